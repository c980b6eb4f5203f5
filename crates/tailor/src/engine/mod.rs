//! Engine of the load generator: threads, each with one epoll loop for many connections.
//!
//! [`start`] runs a [`LoadPlan`] and returns the counts of the threads by interval. The hot path of a request is one
//! `send` and one `recv`, without allocation. The engine encodes requests before the run. It parses a response head
//! only if it differs from the last one.

mod arrivals;
mod check;
mod clock;
mod connect;
mod connection;
mod failure;
mod groups;
mod grpc;
mod http2;
mod http3;
mod line;
mod pieces;
mod plan;
mod processor_time;
mod profile;
mod protocol;
mod quic;
mod recorder;
mod response;
mod run;
mod scenario;
mod shared;
mod sockets;
mod streams;
mod verification;
mod web_socket;
mod window;
mod worker;
mod workload;

pub(crate) use arrivals::ArrivalPace;
pub(crate) use check::{BodyCheck, ResponseCheck, parse_sha256};
pub(crate) use connection::LineUsage;
pub(crate) use failure::{FailureClass, FailureReason, Failures};
pub(crate) use groups::GroupRecord;
pub(crate) use grpc::framed as grpc_framed;
pub(crate) use http2::Http2Request;
pub(crate) use http3::Http3Request;
pub(crate) use line::SimulatedLine;
pub(crate) use line::parse_line;
pub(crate) use pieces::Cursor;
pub(crate) use pieces::{ContentPiece, ContentPieces};
pub(crate) use plan::{Abort, ConnectionPersistence, LoadPlan, LoadVersion, TargetAddress};
pub(crate) use processor_time::ProcessorTime;
pub(crate) use profile::{LoadProfile, ProfilePhase};
pub(crate) use recorder::{DatagramCounts, HandshakeCounts, IntervalRecord, latency_histogram};
pub(crate) use run::{Interval, RunOutcome, RunningLoad, start};
pub(crate) use scenario::{
    CaptureSource, DataSet, RequestTemplate, ResponseCapture, Scenario, ScenarioRecord, ScenarioSet, ScenarioStep,
    TemplatePart, ThinkTime,
};
pub(crate) use shared::Tally;
pub(crate) use verification::{NotedTickets, NotedVerifier};
pub(crate) use web_socket::WebSocketHandshake;
pub(crate) use web_socket::message_frame;
pub(crate) use workload::{RequestOrder, Workload, WorkloadRequest};
