//! Reports on the work of the server: logs, counters, status and traces.

pub mod log;
pub mod metrics;
pub mod status;
pub mod traces;

use tailcoat_config as config;
