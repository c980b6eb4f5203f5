//! The configuration: text in, a checked and immutable [`Config`] out.

mod model;

pub use model::*;
