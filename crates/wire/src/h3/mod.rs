//! HTTP/3 (RFC 9114), with extensible priorities (RFC 9218) and extended CONNECT (RFC 9220), over any transport of streams.
//!
//! A connection ([`H3ServerConnection`], [`H3ClientConnection`]) knows no QUIC library. The transport [opens](H3Connection::accept)
//! streams of the peer and hands over their input in order. The caller keeps input that is not consumed. Frames of messages go
//! into a buffer that the caller lends for each; other output goes to [`H3Output`]. Incoming content is never copied.

mod connection;
mod engine;
mod error;
mod event;
mod frame;
mod limits;
mod settings;
mod streams;
mod varint;

mod client;
mod server;

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

pub use crate::field_section::budget::BudgetLimit;
pub use crate::field_section::outgoing_request::OutgoingRequest;
pub use crate::field_section::priority::Priority;
pub use client::{H3Client, H3ClientConnection, H3IncomingResponse};
pub use connection::{H3Connection, H3Role};
pub use engine::H3StreamGone;
pub use error::{H3Error, H3ErrorCode};
pub use event::{H3Event, H3Handled};
pub use limits::H3Limits;
pub use server::{H3IncomingRequest, H3Server, H3ServerConnection};
pub use settings::H3PeerSettings;

/// A request head that is encoded once and sent many times.
pub type H3PreparedRequest = crate::field_section::outgoing_request::PreparedRequestHead<crate::qpack::Qpack>;

/// Id of a stream (RFC 9000, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct H3StreamId(pub u64);

impl H3StreamId {
    /// Returns whether only one side sends on the stream.
    pub fn is_unidirectional(self) -> bool {
        self.0 & 2 != 0
    }
}

impl fmt::Display for H3StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Output of the connection itself. The caller sends each buffer in order on a unidirectional stream of its own. It opens
/// the stream when the buffer is first filled, and never closes it. Each buffer begins with the type of its stream.
#[derive(Debug, Default)]
pub struct H3Output {
    /// Control stream. It must be opened first.
    pub control: Vec<u8>,
    /// QPACK encoder stream. It stays empty unless this side's encoder uses the dynamic table.
    pub encoder: Vec<u8>,
    /// QPACK decoder stream. It stays empty unless the peer's encoder may use the dynamic table.
    pub decoder: Vec<u8>,
}

impl H3Output {
    /// Returns the number of bytes in all buffers.
    pub fn length(&self) -> usize {
        self.control.len() + self.encoder.len() + self.decoder.len()
    }
}

/// Environment of a connection while the caller drives it.
#[derive(Debug)]
pub struct H3Turn<'a> {
    /// Time since any fixed moment.
    pub now: Duration,
    /// Limits, the same for the whole life of the connection.
    pub limits: &'a H3Limits,
    /// Buffers for output of the connection itself.
    pub output: &'a mut H3Output,
}
