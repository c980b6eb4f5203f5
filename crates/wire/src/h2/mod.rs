//! HTTP/2 (RFC 9113), with HPACK (RFC 7541) and extensible priorities (RFC 9218).
//!
//! A connection ([`ServerConnection`], [`ClientConnection`]) has no socket and buffers neither input nor output. The
//! caller keeps input that is not consumed. For each [`Turn`] it lends the connection an [`Output`] to write to, the
//! time, and the limits. Incoming content is never copied; the caller decides whether to copy outgoing content.

pub mod hpack;

mod budget;
mod client;
mod engine;
mod error;
mod field_rules;
mod frame;
mod frame_write;
mod limits;
mod output;
mod priority;
mod ready;
mod request_head;
mod response_head;
mod server;
mod settings;
mod streams;
mod window;

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

pub use budget::BudgetLimit;
pub use client::{ClientConnection, ClientEvent, ClientHandled, OutgoingRequest, PreparedRequest};
pub use engine::StreamGone;
pub use error::{ConnectionError, ErrorCode};
pub use frame::{FRAME_BYTES_MAX, FRAME_HEADER_BYTES, PREFACE};
pub use limits::Limits;
pub use output::{Output, Placement};
pub use priority::Priority;
pub use request_head::IncomingRequest;
pub use server::{ServerConnection, ServerEvent, ServerHandled};
pub use settings::PeerSettings;

/// Id of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u32);

impl StreamId {
    /// Returns the id as a number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Environment of a connection while the caller drives it.
#[derive(Debug)]
pub struct Turn<'a> {
    /// Time since any fixed moment.
    pub now: Duration,
    /// Limits, the same for the whole life of the connection.
    pub limits: &'a Limits,
    /// Buffer for output. The caller must send it in order.
    pub output: &'a mut Output,
}
