//! Who answers a request. Handlers are a closed set, matched in one place.

pub mod error_page;
pub mod page;
mod request;
mod response;
pub mod static_file;

use std::future::Future;
use std::pin::Pin;

pub use request::OwnedRequest;
pub use response::{Body, BuiltResponse, Form, Response, Segment};
use wire::http::Request;

/// What a handler makes of a request.
pub enum Outcome {
    /// The answer is there at once: the way of all that is in memory.
    Ready(Response),
    /// The answer has to be waited for. The future owns what it needs of the request; it runs on this worker's thread.
    Wait(Pin<Box<dyn Future<Output = Outcome>>>),
    /// The next handler that matches may have it.
    Decline,
}

/// A request on its way to the handlers: what routing found out about it.
#[derive(Clone, Copy)]
pub struct Routed<'a> {
    /// Head and bytes.
    pub request: Request<'a>,
    /// The path: percent-decoded, without dot segments or empty segments, beginning with `/`. May have any bytes but NUL.
    pub path: &'a [u8],
    /// The query as it was sent, without `?`.
    pub query: Option<&'a [u8]>,
    /// The host, lower case, without port; empty if there was none (HTTP/1.0).
    pub host: &'a [u8],
    /// Whether another handler follows, so that what isn't this one's business is better declined than refused.
    pub has_next: bool,
    /// The time.
    pub now: Now,
}

/// The time as the worker's event loop sees it: read once a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of the system's monotonic clock, which never goes back: the same clock for all workers, because what
    /// one of them has just checked is good for all.
    pub monotonic_ms: u64,
    /// Seconds since 1970.
    pub unix_seconds: u64,
}

impl Now {
    /// Reads the clocks.
    pub fn read() -> Self {
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        let real = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Self {
            monotonic_ms: (monotonic.tv_sec * 1000 + monotonic.tv_nsec / 1_000_000) as u64,
            unix_seconds: real.tv_sec.max(0) as u64,
        }
    }
}
