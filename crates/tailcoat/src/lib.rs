//! The server: a library and a thin `main.rs`.

pub mod acme;
pub mod cli;
pub mod config;
pub mod confinement;
pub mod connection;
pub mod control;
pub mod fair_queue;
pub mod handler;
pub mod import;
pub mod log;
pub mod memory_budget;
pub mod metrics;
pub mod modules;
pub mod object_cache;
pub mod overload;
pub mod routing;
pub mod server;
pub mod spawner;
pub mod spool;
pub mod status;
pub mod tls;
pub mod traces;
pub mod upstream;
pub mod worker;
