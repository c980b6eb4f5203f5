//! HTTP/2 (RFC 9113), with HPACK (RFC 7541) and extensible priorities (RFC 9218).
//!
//! A connection ([`H2ServerConnection`], [`H2ClientConnection`]) has no socket and buffers neither input nor output. The
//! caller keeps input that is not consumed. For each [`EngineTurn`] it lends the connection an [`H2Output`] to write to, the
//! time, and the limits. Incoming content is never copied; the caller decides whether to copy outgoing content.

pub mod hpack;

mod client;
mod engine;
mod error;
mod frame;
mod frame_write;
mod limits;
mod output;
mod ready;
mod server;
mod settings;
mod streams;
mod window;

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

pub use crate::field_section::budget::BudgetLimit;
pub use crate::field_section::outgoing_request::OutgoingRequest;
pub use crate::field_section::priority::Priority;
pub use client::{ClientEvent, ClientHandled, H2ClientConnection};
pub use engine::StreamGone;
pub use error::{ConnectionError, ErrorCode};
pub use frame::{FRAME_BYTES_MAX, FRAME_HEADER_BYTES, PREFACE};
pub use limits::H2Limits;
pub use output::{H2Output, Placement};
pub use server::{H2ServerConnection, ServerEvent, ServerHandled};
pub use settings::PeerSettings;

/// A request with a complete head.
pub type H2IncomingRequest = crate::field_section::request_head::IncomingRequest<StreamId>;

/// A request head that is encoded once and sent many times.
pub type PreparedRequest = crate::field_section::outgoing_request::PreparedRequestHead<hpack::Hpack>;

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
pub struct EngineTurn<'a> {
    /// Time since any fixed moment.
    pub now: Duration,
    /// Limits, the same for the whole life of the connection.
    pub limits: &'a H2Limits,
    /// Buffer for output. The caller must send it in order.
    pub output: &'a mut H2Output,
}
