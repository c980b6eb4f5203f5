//! The load generator's engine: threads, each with one epoll loop over many connections.
//!
//! A [`LoadPlan`] says what to do; [`start`] begins it; what the threads counted comes back interval by interval. The hot path
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

pub use arrivals::ArrivalPace;
pub use check::{BodyCheck, ResponseCheck, Sha256, parse_sha256};
pub use connection::LineUsage;
pub use failure::{FailureClass, Failures};
pub(crate) use http2::Http2Request;
pub use line::SimulatedLine;
pub(crate) use line::parse_line;
pub(crate) use pieces::Cursor;
pub use pieces::{ContentPiece, ContentPieces};
pub use plan::{Abort, ConnectionPersistence, LoadPlan, TargetAddress};
pub use processor_time::ProcessorTime;
pub use recorder::{HandshakeCounts, IntervalRecord};
pub use run::{Interval, RunOutcome, RunningLoad, start};
pub use shared::Tally;
pub use workload::{RequestForm, RequestOrder, Workload, WorkloadRequest};
