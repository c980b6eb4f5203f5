//! What an operator tells the running server: signals, and orders on the control socket.

mod signals;
mod socket;

pub use signals::{Command, Signals};
pub use socket::{ControlSocket, Executor, Order, Report, give};
