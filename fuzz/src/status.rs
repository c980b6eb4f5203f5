//! The part of `crates/tailcoat/src/status` that goes over the control socket.

#[path = "../../crates/tailcoat/src/status/model.rs"]
#[allow(dead_code)]
mod model;
#[path = "../../crates/tailcoat/src/status/process.rs"]
#[allow(dead_code)]
mod process;

pub use model::*;
pub use process::ProcessStatus;
