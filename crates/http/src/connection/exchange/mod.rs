//! Exchanges of requests and responses on streams, for each version of HTTP that has several streams on a connection.
//!
//! A version is an adapter. It implements [`HttpStreams`] with its engine, and reports requests, content and resets to
//! the connection's [`StreamExchanges`]. After each change it calls [`StreamExchanges::drive`], and sends. Events drive
//! the exchanges: nothing here knows a socket.

mod alternative;
mod clocks;
mod content;
mod extended_connect;
mod head;
mod head_policy;
mod limits;
mod request;
mod respond;
mod stream_exchange;
mod stream_exchanges;
mod streams;
mod time_limits;
mod tunnel;
mod upload;
mod wakers;

use std::cell::{Cell, OnceCell};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::task::Waker;

pub use alternative::AlternativeService;
pub(crate) use alternative::{ALT_SVC, RESPONSES_WITH_ALTERNATIVE};
pub(crate) use clocks::{ConnectionClocks, ExpiredWait};
pub(crate) use head_policy::HeadPolicy;
pub(crate) use limits::message_limits;
pub(crate) use request::RequestBuffers;
pub(crate) use stream_exchanges::{ContentLost, StreamExchanges};
pub(crate) use streams::{HttpStreams, StreamClosed, StreamFault, StreamKey};

use super::Context;
use super::record::ClientPeer;
use crate::handler::Now;
use crate::log::LogClient;
use crate::tls::TlsInfo;

/// Client of a connection, and the connection's place in the worker.
pub(crate) struct ExchangeClient {
    /// Client as the socket or a trusted proxy reports it.
    pub client: LogClient,
    /// TLS state; `None` without TLS.
    pub tls: Option<Rc<TlsInfo>>,
    /// Local address that the client connected to, or that a proxy reported. Read at its first use.
    pub destination: OnceCell<Box<SocketAddr>>,
    /// Number of the connection, unique among all that the worker has opened.
    pub number: NonZeroU64,
    /// Slot in the table of connections.
    pub slot: u32,
    /// Number of the listener.
    pub listener: u16,
    /// Responses that still tell of HTTP/3, provided that the listener has it.
    pub alternatives_due: Cell<u8>,
}

impl ExchangeClient {
    fn peer(&self) -> ClientPeer<'_> {
        ClientPeer { client: self.client, tls: self.tls.as_deref() }
    }

    /// Listener whose alternative the next response tells of.
    fn alternative(&self) -> Option<u16> {
        let due = self.alternatives_due.get().checked_sub(1)?;
        self.alternatives_due.set(due);
        Some(self.listener)
    }

    /// Local address that the client connected to; `None` for a unix socket.
    fn destination(&self, local_address: impl FnOnce() -> Option<SocketAddr>) -> Option<SocketAddr> {
        if self.destination.get().is_none()
            && let Some(address) = local_address()
        {
            let _ = self.destination.set(Box::new(address));
        }
        self.destination.get().map(|destination| **destination)
    }
}

/// Resources that exchanges use while their connection is polled.
pub(crate) struct ExchangeTurn<'a> {
    /// State of the worker.
    pub context: &'a Context,
    /// Waker of the connection.
    pub waker: &'a Waker,
    /// Buffer for streamed content.
    pub content: &'a mut Vec<u8>,
    /// Further buffers of its size. A piece of content is lent its buffer until it is placed.
    pub spare_content: &'a mut Vec<Vec<u8>>,
    /// Time of the turn.
    pub now: Now,
    /// Bytes of request content received in this turn.
    pub received_bytes: usize,
}

impl<'a> ExchangeTurn<'a> {
    /// A turn that has received nothing yet, with the worker's buffers for content.
    pub(crate) fn new(
        context: &'a Context,
        waker: &'a Waker,
        (content, spare_content): (&'a mut Vec<u8>, &'a mut Vec<Vec<u8>>),
        now: Now,
    ) -> Self {
        Self { context, waker, content, spare_content, now, received_bytes: 0 }
    }
}
