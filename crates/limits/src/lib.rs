//! Shares of the server that a client may take: memory, places in queues, and time of an overloaded worker.

pub mod fair_queue;
pub mod memory_budget;
pub mod overload;

use tailcoat_config as config;
use tailcoat_observe::{log, metrics};
