//! The part of `crates/tailcoat/src/control` that reads and writes orders and reports.

#[path = "../../crates/tailcoat/src/control/order.rs"]
#[allow(dead_code)]
mod order;

pub use order::{ControlOrder, ControlReport};
