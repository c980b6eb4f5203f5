//! Files and responses that the server keeps, in memory and on disk.

pub mod disk_cache;
pub mod object_cache;

use tailcoat_config as config;
use tailcoat_observe::{log, metrics};
