//! HTTP and FTP as a worker serves them: connections, the way of a request through rules and handlers, responses.

#[cfg(not(feature = "modules"))]
mod absent;
pub mod connection;
pub mod handler;
pub mod known_clients;
pub mod observer;
pub mod routing;
pub mod spool;

#[cfg(not(feature = "modules"))]
pub use absent::modules;
use tailcoat_cache::{disk_cache, object_cache, shared_cache};
use tailcoat_config as config;
use tailcoat_limits::{fair_queue, memory_budget, overload};
#[cfg(feature = "modules")]
pub use tailcoat_modules as modules;
use tailcoat_observe::{log, metrics, status, traces};
use tailcoat_spawner as spawner;
use tailcoat_tls as tls;
use tailcoat_upstream as upstream;
