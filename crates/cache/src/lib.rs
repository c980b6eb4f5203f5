//! Files and responses that the server keeps, in memory and on disk.

#![warn(unreachable_pub)]

pub mod disk_cache;
pub mod object_cache;

use tailcoat_config as config;
use tailcoat_observe::{log, metrics};
