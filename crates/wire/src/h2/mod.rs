//! HTTP/2 (RFC 9113), with HPACK (RFC 7541) and extensible priorities (RFC 9218).
//!
//! A connection ([`ServerConnection`], [`ClientConnection`]) has no socket and keeps neither input nor output: what it
//! has not understood stays with the caller, and what is to be sent goes into an [`Output`] that the caller lends it for
//! its [`Turn`], as it does the time and the limits. Content is never copied on its way in, and on its way out as the
//! caller likes.

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
pub use output::{Output, Piece, Placement};
pub use priority::Priority;
pub use request_head::IncomingRequest;
pub use server::{ServerConnection, ServerEvent, ServerHandled};
pub use settings::PeerSettings;

/// The number of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u32);

impl StreamId {
    /// The number itself.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a connection is lent while it has its turn.
#[derive(Debug)]
pub struct Turn<'a> {
    /// The time, since any moment that stays the same.
    pub now: Duration,
    /// The limits; the same as when the connection began.
    pub limits: &'a Limits,
    /// Where output goes. What is in it is sent before anything that comes later.
    pub output: &'a mut Output,
}
