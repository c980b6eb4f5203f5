//! One QUIC connection: packets and timers.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;

use tailcoat_quic::{Connection, ConnectionKey, Datagram, EndpointEvent, QuicEvent};

use super::endpoint::QuicEndpoint;
use super::timers::TimerEntry;
use crate::connection::Context;

/// Bytes that a connection has sent or will send, and the client has not acknowledged.
pub(super) const SEND_WINDOW_BYTES_MAX: u64 = 1 << 20;

/// Buffers that a worker keeps for the next streams.
const SPARE_BUFFERS_MAX: usize = 512;

/// Capacity of a buffer that is kept, in bytes. Longer content is not copied to it.
const SPARE_BYTES_MAX: usize = 8 << 10;

/// QUIC connection of an endpoint.
pub(crate) struct QuicTransport {
    endpoint: Rc<QuicEndpoint>,
    key: ConnectionKey,
    /// Streams and their flow control.
    pub proto: Connection,
    slot: u32,
    local: Option<IpAddr>,
    timer: TimerEntry,
    /// Datagrams that have arrived and are not handled.
    datagrams: Vec<Datagram>,
    /// Size of the largest datagram that has arrived, in bytes.
    datagram_bytes_max: usize,
    /// Bytes that QUIC keeps at most until the client has acknowledged them.
    send_window_bytes: u64,
    /// True if the connection counts among those whose clients' addresses are not validated.
    is_unvalidated: bool,
    /// True if the endpoint has forgotten the connection.
    is_forgotten: bool,
    /// True if this side has closed the connection.
    is_closed: bool,
}

impl QuicTransport {
    /// Makes the transport of a connection that the endpoint has accepted.
    pub(super) fn new(
        endpoint: Rc<QuicEndpoint>,
        key: ConnectionKey,
        proto: Connection,
        slot: u32,
        local: Option<IpAddr>,
        is_unvalidated: bool,
    ) -> Self {
        endpoint.unvalidated.set(endpoint.unvalidated.get() + usize::from(is_unvalidated));
        let (timer, datagrams) = Default::default();
        Self {
            endpoint,
            key,
            proto,
            slot,
            local,
            timer,
            datagrams,
            datagram_bytes_max: 0,
            send_window_bytes: SEND_WINDOW_BYTES_MAX,
            is_unvalidated,
            is_forgotten: false,
            is_closed: false,
        }
    }

    /// State that all connections of the worker share.
    pub(crate) fn context(&self) -> &Rc<Context> {
        &self.endpoint.context
    }

    /// Listener that accepted the connection.
    pub(crate) fn listener(&self) -> u16 {
        self.endpoint.listener()
    }

    /// Local address that the client sends to.
    pub(crate) fn local_address(&self) -> SocketAddr {
        let mut address = self.endpoint.local_address();
        if let Some(ip) = self.local {
            address.set_ip(ip);
        }
        address
    }

    /// Handles packets that have arrived, and expired timers. Returns true if there were packets.
    pub(crate) fn receive(&mut self, now: Instant) -> bool {
        self.datagram_bytes_max = self.endpoint.take_datagrams(self.key, &mut self.datagrams);
        let has_packets = !self.datagrams.is_empty();
        for datagram in self.datagrams.drain(..) {
            self.proto.handle_datagram(now, datagram);
        }
        if self.proto.poll_timeout().is_some_and(|at| at <= now) {
            self.proto.handle_timeout(now);
        }
        if self.is_unvalidated && !self.proto.is_handshaking() {
            self.on_validated();
        }
        self.pass_events();
        has_packets
    }

    /// Limits what QUIC keeps until the client acknowledges it: twice the bytes that may be on their way, and a piece of
    /// content for each of these streams, which QUIC keeps as a whole.
    pub(crate) fn fit_send_window(&mut self, streams: usize, piece_bytes: usize) {
        let congestion_bytes = self.proto.congestion_window();
        let pieces_bytes = (streams as u64 + 1).saturating_mul(piece_bytes as u64);
        let bytes = congestion_bytes.saturating_mul(2).saturating_add(pieces_bytes).min(SEND_WINDOW_BYTES_MAX);
        if bytes != self.send_window_bytes {
            self.send_window_bytes = bytes;
            self.proto.streams().set_send_window(bytes);
        }
    }

    /// Memory that data of streams and packets takes at most, in bytes: output that the client has not acknowledged, and input
    /// that was not read. A piece of input may keep its datagram.
    pub(crate) fn held_bytes(&mut self) -> usize {
        let packet_bytes = self.proto.sent_memory();
        let streams = self.proto.streams();
        packet_bytes + streams.unread_memory(self.datagram_bytes_max) + streams.unacked_bytes() as usize
    }

    /// Frees memory that an idle connection does not need.
    pub(crate) fn shrink(&mut self) {
        self.datagrams = Vec::new();
        self.proto.shrink();
        self.endpoint.shrink(self.key);
    }

    /// Takes an empty buffer for the output of a stream.
    pub(crate) fn take_buffer(&self) -> Vec<u8> {
        self.endpoint.buffers.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the buffer of a stream that has ended for another one of the worker.
    pub(crate) fn keep_buffer(&self, mut buffer: Vec<u8>) {
        let spare = &mut *self.endpoint.buffers.spare.borrow_mut();
        if spare.len() < SPARE_BUFFERS_MAX && (1..=SPARE_BYTES_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            spare.push(buffer);
        }
    }

    /// Next event of the connection or its streams.
    pub(crate) fn poll_event(&mut self) -> Option<QuicEvent> {
        self.proto.poll_event()
    }

    /// Sends as much as may be sent now. Returns the number of bytes. The connection is woken if more is left.
    pub(crate) fn transmit(&mut self, now: Instant, waker: &Waker) -> usize {
        self.pass_events();
        let is_closed = self.is_closed.then_some(self.key);
        let (sent_bytes, has_more) =
            self.endpoint.transmit(self.slot, &mut self.proto, &mut self.timer, is_closed, now);
        self.endpoint.context.count_sent(sent_bytes as u64);
        self.pass_events();
        if has_more {
            waker.wake_by_ref();
        }
        sent_bytes
    }

    /// Closes the connection with an error of the application (RFC 9114, section 8).
    pub(crate) fn close(&mut self, code: u64, reason: &'static str, now: Instant) {
        self.is_closed = !self.proto.is_closed();
        self.proto.close(now, code, reason.as_bytes());
    }

    /// True if the connection has ended, and the packets that may still arrive have been waited for.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_forgotten || self.proto.is_drained()
    }

    /// Passes events to the endpoint, and the IDs that it makes back.
    fn pass_events(&mut self) {
        while let Some(event) = self.proto.poll_endpoint_event() {
            self.is_forgotten |= matches!(event, EndpointEvent::Drained);
            if let Some(ids) = self.endpoint.handle_event(self.key, event) {
                self.proto.handle_ids(ids);
            }
        }
    }

    fn on_validated(&mut self) {
        self.endpoint.unvalidated.set(self.endpoint.unvalidated.get() - usize::from(self.is_unvalidated));
        self.is_unvalidated = false;
    }
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        self.on_validated();
        if !self.is_forgotten {
            let _ = self.endpoint.handle_event(self.key, EndpointEvent::Drained);
        }
    }
}
