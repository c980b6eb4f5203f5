//! The load generator's engine: threads, each with one epoll loop over many connections.
//!
//! A [`Plan`] says what to do; [`start`] begins it; what the threads counted comes back interval by interval. The hot path
//! of a request is one `send` and one `recv`, without allocation: requests are encoded before the run, and a response
//! head that is the same as the last is compared instead of parsed.

mod arrivals;
mod check;
mod clock;
mod connect;
mod connection;
mod failure;
mod http2;
mod line;
mod pieces;
mod plan;
mod processor_time;
mod protocol;
mod recorder;
mod response;
mod run;
mod shared;
mod worker;
mod workload;

pub use arrivals::Pace;
pub use check::{BodyCheck, Check, Sha256, parse_sha256};
pub use connection::LineUsage;
pub use failure::{FailureClass, Failures};
pub(crate) use http2::Http2Request;
pub use line::Line;
pub(crate) use line::parse_line;
pub(crate) use pieces::Cursor;
pub use pieces::{Piece, Pieces};
pub use plan::{Abort, Address, Persistence, Plan};
pub use processor_time::ProcessorTime;
pub use recorder::{Handshakes, Record};
pub use run::{Interval, Outcome, Running, start};
pub use shared::Tally;
pub use workload::{Form, Order, Request, Workload};
