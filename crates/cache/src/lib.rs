//! Files and responses that the server keeps: in memory, on disk, and in a store that instances share.

pub mod disk_cache;
pub mod object_cache;
pub mod shared_cache;

use tailcoat_config as config;
use tailcoat_observe::{log, metrics, status};
