//! What an operator tells the running server: signals.

mod signals;

pub use signals::{Command, Signals};
