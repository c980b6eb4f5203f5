//! The part of `crates/observe/src/status` that goes over the control socket.

#[path = "../../crates/observe/src/status/model.rs"]
#[allow(dead_code)]
mod model;
#[path = "../../crates/observe/src/status/process.rs"]
#[allow(dead_code)]
mod process;

pub use model::*;
pub use process::ProcessStatus;
