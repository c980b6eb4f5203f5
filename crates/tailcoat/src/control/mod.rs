//! Control of the running server by its operator: signals, and commands on the control socket.

mod explanation;
mod order;
mod signals;
mod socket;

pub use explanation::{ExplainQuestion, ExplainedOption, ExplainedRule, ExplainedServer, ExplainedSite, Explanation};
pub use order::{ControlOrder, ControlReply, ControlReport, ControlRequest};
pub use signals::{SignalCommand, Signals};
pub use socket::{Audience, ControlSocket, give};
