//! The server: a library and a thin `main.rs`.

pub mod cli;
pub mod config;
pub mod handler;
pub mod log;
pub mod object_cache;
