//! The part of `crates/tailcoat/src/control` that reads and writes orders and reports.

#[path = "../../crates/tailcoat/src/control/explanation.rs"]
#[allow(dead_code)]
mod explanation;
#[path = "../../crates/tailcoat/src/control/order.rs"]
#[allow(dead_code)]
mod order;

pub use explanation::{ExplainQuestion, Explanation};
pub use order::{ControlOrder, ControlReport};
