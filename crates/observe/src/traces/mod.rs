//! Traces: the trace that a request belongs to, and its spans.
//!
//! Routing finds a request's [`Trace`] ([`Tracer::begin`]), the handler or upstream gets it, and the access log records
//! it. If the request is sampled, its spans ([`ServerSpan`], [`ClientSpan`]) enter a queue when it is logged
//! ([`Trace::record`]), and a thread sends them to a collector (OTLP). A worker never waits: spans that find the queue
//! full are dropped and counted.

#[cfg(not(feature = "traces"))]
mod absent;
#[cfg(feature = "traces")]
mod client;
#[cfg(feature = "traces")]
mod exporter;
#[cfg(feature = "traces")]
mod otlp;
#[cfg(feature = "traces")]
mod span;
#[cfg(feature = "traces")]
mod tracer;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::http::{Request, Status};

#[cfg(not(feature = "traces"))]
pub use self::absent::{Trace, Tracer};
#[cfg(feature = "traces")]
pub use self::exporter::TracesError;
#[cfg(feature = "traces")]
pub use self::tracer::{Trace, Tracer};
use crate::log::{LogClient, UpstreamRecord};

/// Counts of spans by result.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// Spans that a collector accepted.
    pub exported: AtomicU64,
    /// Spans dropped because the queue was full.
    pub dropped: AtomicU64,
    /// Spans that a collector rejected, or that could not be sent in time.
    pub failed: AtomicU64,
}

/// Request and response, complete.
pub struct ServerSpan<'a> {
    /// Request of the client.
    pub request: Request<'a>,
    /// Client, as trusted proxies report it.
    pub client: LogClient,
    /// Address of the connection.
    pub peer: LogClient,
    /// Host without port.
    pub host: &'a [u8],
    /// True for a request over TLS.
    pub is_tls: bool,
    /// Status of the response.
    pub status: Status,
    /// Bytes of content sent.
    pub content_bytes: u64,
    /// True if that is the whole content.
    pub is_complete: bool,
    /// Arrival of the request, in microseconds since 1970.
    pub start_unix_us: u64,
    /// End of the response, in microseconds since 1970.
    pub end_unix_us: u64,
}

/// Forwarding of a request to an upstream server.
pub struct ClientSpan<'a> {
    /// Request of the client.
    pub request: Request<'a>,
    /// Result of the forwarding.
    pub upstream: UpstreamRecord<'a>,
    /// First request for a connection, in microseconds since 1970.
    pub start_unix_us: u64,
}

impl SpanCounts {
    /// Counts of exported, dropped and failed spans with these names.
    pub fn by_result(&self) -> [(&'static str, u64); 3] {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [("exported", count(&self.exported)), ("dropped", count(&self.dropped)), ("failed", count(&self.failed))]
    }
}

/// Id of a request's trace for a log line; empty if it has none.
pub fn trace_id<T: AsRef<Trace>>(trace: Option<T>) -> impl fmt::Display {
    let id = trace.map(|trace| trace.as_ref().trace_id());
    fmt::from_fn(move |f| id.map_or(Ok(()), |id| write!(f, "{id}")))
}
