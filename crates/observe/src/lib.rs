//! Reports on the work of the server: logs, counters and traces.

pub mod log;
pub mod metrics;
pub mod traces;

use tailcoat_config as config;
