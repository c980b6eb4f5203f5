//! The server: a library and a thin `main.rs`.

#[cfg(not(feature = "acme"))]
mod absent;
pub mod cli;
pub mod confinement;
pub mod control;
mod control_plane;
mod server;
mod stream_proxy;
mod worker;

#[cfg(not(feature = "acme"))]
pub use absent::acme;
#[cfg(feature = "acme")]
pub use tailcoat_acme as acme;
pub use tailcoat_cache::{disk_cache, object_cache, shared_cache};
pub use tailcoat_config as config;
pub use tailcoat_http::{connection, handler, known_clients, modules, observer, routing, spool};
#[cfg(feature = "import")]
pub use tailcoat_import as import;
pub use tailcoat_limits::{memory_budget, overload};
pub use tailcoat_observe::{log, metrics, status, traces};
pub use tailcoat_spawner as spawner;
pub use tailcoat_tls as tls;
pub use tailcoat_upstream as upstream;
