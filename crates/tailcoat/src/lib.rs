//! The server: a library and a thin `main.rs`.

#[cfg(not(all(feature = "acme", feature = "modules")))]
mod absent;
pub mod cli;
pub mod confinement;
pub mod connection;
pub mod control;
pub mod disk_cache;
mod fair_queue;
pub mod handler;
pub mod memory_budget;
pub mod object_cache;
pub mod overload;
pub mod routing;
pub mod server;
pub mod spool;
pub mod status;
pub mod upstream;
pub mod worker;

#[cfg(not(feature = "acme"))]
pub use absent::acme;
#[cfg(not(feature = "modules"))]
pub use absent::modules;
#[cfg(feature = "acme")]
pub use tailcoat_acme as acme;
pub use tailcoat_config as config;
#[cfg(feature = "import")]
pub use tailcoat_import as import;
#[cfg(feature = "modules")]
pub use tailcoat_modules as modules;
pub use tailcoat_observe::{log, metrics, traces};
pub use tailcoat_spawner as spawner;
pub use tailcoat_tls as tls;
