//! Control of the running server by its operator: signals, and commands on the control socket.

mod order;
mod signals;
mod socket;

pub use order::{Order, Reply, Report, Request};
pub use signals::{Command, Signals};
pub use socket::{Audience, ControlSocket, give};
