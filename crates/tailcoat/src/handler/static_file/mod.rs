//! Files below a root.

pub mod listing;
