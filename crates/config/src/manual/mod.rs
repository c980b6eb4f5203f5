//! Pages for people and editors, generated from the tables of options.

pub(crate) mod lookup;
mod pages;
mod schema;

pub use lookup::{reference_of, search};
pub use pages::{default_config, manual, reference};
pub use schema::schema;
