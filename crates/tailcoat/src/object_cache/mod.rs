//! Responses in wire form; files opened below a root; freshness.

mod object;
mod open_file;

pub use object::{CachedObject, Coding, Content, Object, Representation};
pub use open_file::{FileIdentity, OpenFile};
