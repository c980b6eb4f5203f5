//! HTTP/3 connections.
//!
//! QUIC has streams, flow control and scheduling ([`quic`](super::quic)). The engine (`wire::h3`) handles frames. This module joins
//! both, and reports requests to the exchanges, which all versions with streams share.

mod early;
mod receive;
mod send;
mod streams;
mod time_limits;

use std::cell::{Cell, OnceCell};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::task::{Context as Task, Poll};
use std::time::{Duration, Instant};

use tailcoat_quic::{QuicEvent, StreamEvent, TlsSession};
use wire::h3::{H3Error, H3ErrorCode, H3Limits, H3StreamId};
use wire::qpack::DecoderLimits;

use self::send::OwnStreams;
use self::streams::{H3Streams, h3_id};
use super::exchange::{
    ConnectionClocks, ExchangeClient, ExchangeTurn, RequestBuffers, StreamExchanges, message_limits,
};
use super::live::Live;
use super::quic::QuicTransport;
use super::{ConnectionScratch, Context};
use crate::config;
use crate::handler::ResponseEnding;
use crate::log::LogClient;
use crate::memory_budget::Charge;
use crate::tls::{QuicHandshake, TlsInfo};

/// Rounds of reading and sending before others get their turn.
const ROUNDS_A_TURN_MAX: u32 = 8;

/// Exchanges of an HTTP/3 connection.
type H3Exchanges = StreamExchanges<H3StreamId>;

/// HTTP/3 connection of a client.
pub(crate) struct H3WorkerConnection {
    context: Rc<Context>,
    streams: H3Streams,
    exchanges: H3Exchanges,
    own: OwnStreams,
    state: H3ConnectionState,
    /// Streams whose content cannot be completed, to be reset.
    lost: Vec<H3StreamId>,
    /// Bytes that the exchanges held at the last poll.
    exchange_bytes: usize,
    /// Memory charge for buffers of the connection, without the heads of requests.
    held: Option<Charge>,
    clocks: ConnectionClocks,
    /// Time at which the connection last sent a packet.
    quiet_since_ms: u64,
    /// Time at which the connection last received a packet.
    silent_since_ms: u64,
    /// Time of the GOAWAY frame, by which the client knows that the connection ends.
    ending_since_ms: Option<u64>,
    /// Time at which requests could arrive, while the handshake is not complete.
    early_since_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum H3ConnectionState {
    Handshaking,
    Open,
    /// The connection is closed. QUIC repeats that if packets still arrive.
    Closing,
    /// Another connection needs the place, so this one ends at once.
    Evicted,
}

/// Resources that a connection borrows while it is polled.
struct H3Turn<'a> {
    exchange: ExchangeTurn<'a>,
    request: RequestBuffers<'a>,
    now: Instant,
    sent_bytes: usize,
}

/// Converts the limits of a connection to the form for the engine.
pub(super) fn engine_limits(limits: &config::Limits) -> H3Limits {
    let own = limits.http2;
    let (head, body) = message_limits(limits);
    H3Limits {
        head,
        body,
        concurrent_streams_max: own.concurrent_streams_max as usize,
        // No stream may wait for the dynamic table: clients use only the entries that they know to have arrived.
        decoder: DecoderLimits { table_bytes_max: own.header_table_bytes_max as usize, blocked_streams_max: 0 },
        // A head that is only slightly too large is read, and gets status 431.
        field_section_bytes_max: 2 * limits.head_bytes_max,
        enables_connect_protocol: true,
        peer_resets: own.peer_resets,
        stream_faults: own.stream_faults,
        priorities: own.priorities,
        idle_frames: own.idle_frames,
        ..H3Limits::default()
    }
}

impl H3WorkerConnection {
    /// Makes the connection of a client whose first packet has arrived.
    pub(crate) fn new(transport: QuicTransport, client: LogClient, slot: u32) -> Self {
        let context = Rc::clone(transport.context());
        let (now, number) = (context.clock.now(), context.next_connection_number());
        let limits = Rc::clone(&context.generation().h3_limits);
        let exchanges = new_exchanges(&transport, client, None, number, slot);
        Self {
            streams: H3Streams::new(transport, limits),
            exchanges,
            own: OwnStreams::default(),
            state: H3ConnectionState::Handshaking,
            lost: Vec::new(),
            exchange_bytes: 0,
            held: None,
            clocks: ConnectionClocks::new(now),
            quiet_since_ms: now.monotonic_ms,
            silent_since_ms: now.monotonic_ms,
            ending_since_ms: None,
            early_since_ms: None,
            context,
        }
    }

    /// Client of the connection. A client that has migrated keeps the address that it began with.
    pub(crate) fn client(&self) -> LogClient {
        self.exchanges.client().client
    }

    /// Calls `tell` with each request whose response is pending or being sent.
    pub(crate) fn each_request(&self, tell: &mut dyn FnMut(&Live<'_>)) {
        self.exchanges.each_request(tell);
    }

    /// Polls until packets or a waker must be waited for. Ready when the connection must be dropped.
    pub(crate) fn poll(&mut self, task: &mut Task<'_>) -> Poll<()> {
        let context = Rc::clone(&self.context);
        let scratch = &mut *context.scratch.borrow_mut();
        scratch.clear(context.input_bytes.get());
        let ConnectionScratch { head, text, path, host, content, spare_content, .. } = scratch;
        let now = context.clock.now();
        let turn = &mut H3Turn {
            exchange: ExchangeTurn::new(&context, task.waker(), (content, spare_content), now),
            request: RequestBuffers { head, text, path, host },
            now: Instant::now(),
            sent_bytes: 0,
        };
        self.streams.now = Duration::from_millis(now.monotonic_ms);
        self.drive(turn);
        // A connection of QUIC has no socket of its own to keep: its client waits for packets that do not come.
        let is_dropped = self.exchanges.ending() != ResponseEnding::Normal;
        let is_over = is_dropped || self.streams.transport.is_drained() || self.state == H3ConnectionState::Evicted;
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Closes the connection in any state. Must be called once.
    pub(crate) fn close(&mut self) {
        if self.is_handshaking() {
            self.count_handshake(None);
        }
        self.exchanges.close(&self.context);
    }

    /// Handles packets and time, serves requests, and sends.
    fn drive(&mut self, turn: &mut H3Turn<'_>) {
        if self.streams.transport.receive(turn.now) {
            self.silent_since_ms = turn.exchange.now.monotonic_ms;
        }
        self.streams.fit_send_window();
        self.check_time(turn);
        while let Some(event) = self.streams.transport.poll_event() {
            self.on_event(event, turn);
        }
        if self.state == H3ConnectionState::Open {
            self.serve(turn);
        }
        turn.sent_bytes += self.streams.transport.transmit(turn.now, turn.exchange.waker);
        self.await_next(turn);
        self.charge_held();
    }

    /// Reads and serves requests, as far as possible without waiting.
    fn serve(&mut self, turn: &mut H3Turn<'_>) {
        self.streams.resume_stalled();
        let listener = self.exchanges.client().listener;
        let context = turn.exchange.context;
        if context.is_ending(listener) || context.generation().quic(listener).is_none() {
            self.ending_since_ms.get_or_insert(turn.exchange.now.monotonic_ms);
            let (engine, mut wire) = self.streams.engine();
            engine.shut_down(&mut wire);
        }
        for round in 0.. {
            self.read(turn);
            self.exchanges.drive(&mut self.streams, &mut turn.exchange);
            self.send_own();
            let has_sent = self.send_requests(&mut turn.exchange);
            self.reset_lost(&turn.exchange);
            if has_sent {
                self.clocks.on_sent(turn.exchange.now);
                self.exchanges.on_windows();
            }
            self.exchanges.finish_sent(&mut self.streams, &turn.exchange);
            let has_news = has_sent && !self.exchanges.is_empty();
            if !has_news && self.streams.readable.is_empty() && self.streams.unsent.is_empty() {
                let is_blocked = self.streams.has_unsent();
                self.exchanges.drive_ahead(is_blocked, &mut self.streams);
                break;
            }
            if round == ROUNDS_A_TURN_MAX {
                // The remaining work waits until other connections had their turn.
                turn.exchange.waker.wake_by_ref();
                break;
            }
        }
        if self.state == H3ConnectionState::Open && self.is_ready_to_end(turn.exchange.now) {
            self.finish(H3Error { code: H3ErrorCode::H3_NO_ERROR, reason: "" }, turn);
        }
    }

    fn on_event(&mut self, event: QuicEvent, turn: &mut H3Turn<'_>) {
        match event {
            QuicEvent::Connected(session) => self.on_connected(&*session),
            QuicEvent::HelloReceived => self.on_first_message(turn),
            QuicEvent::Lost(_) => self.on_closed(turn),
            QuicEvent::Stream(StreamEvent::Opened { dir }) => self.accept_streams(dir, turn),
            QuicEvent::Stream(StreamEvent::Readable { id }) => self.streams.mark_readable(h3_id(id)),
            QuicEvent::Stream(StreamEvent::Writable { id }) => self.streams.mark_unsent(h3_id(id)),
            QuicEvent::Stream(StreamEvent::Stopped { id, code }) => self.on_stopped(h3_id(id), code, turn),
        }
    }

    /// Begins HTTP/3 after the handshake, unless early data has begun it.
    fn on_connected(&mut self, session: &dyn TlsSession) {
        let handshake = QuicHandshake::of(session);
        self.count_handshake(handshake.as_ref());
        if self.early_since_ms.take().is_none() {
            self.begin(handshake);
        }
    }

    /// Begins HTTP/3.
    fn begin(&mut self, handshake: Option<QuicHandshake>) {
        let tls = handshake.map(|handshake| Rc::new(handshake.info));
        let ExchangeClient { client, number, slot, .. } = *self.exchanges.client();
        self.exchanges = new_exchanges(&self.streams.transport, client, tls, number, slot);
        self.state = H3ConnectionState::Open;
        self.clocks = ConnectionClocks::new(self.context.clock.now());
        let (engine, mut wire) = self.streams.engine();
        engine.start(&mut wire);
    }

    fn count_handshake(&self, handshake: Option<&QuicHandshake>) {
        let Some(metrics) = self.context.metrics() else { return };
        match handshake {
            Some(handshake) if handshake.is_resumed => metrics.handshakes_resumed.add(1),
            Some(_) => metrics.handshakes_full.add(1),
            None => metrics.handshakes_failed.add(1),
        }
    }

    /// Closes the connection with an error.
    fn finish(&mut self, error: H3Error, turn: &mut H3Turn<'_>) {
        self.streams.transport.close(error.code.0, error.reason, turn.now);
        self.on_closed(turn);
    }

    fn is_handshaking(&self) -> bool {
        self.state == H3ConnectionState::Handshaking || self.early_since_ms.is_some()
    }

    /// Drops all exchanges after the connection was closed.
    fn on_closed(&mut self, turn: &mut H3Turn<'_>) {
        if self.is_handshaking() {
            self.count_handshake(None);
        }
        self.state = H3ConnectionState::Closing;
        self.early_since_ms = None;
        self.exchanges.end_all(turn.exchange.context, turn.exchange.now);
        self.streams.clear();
    }

    /// Charges the memory that the connection holds until its next poll.
    fn charge_held(&mut self) {
        let bytes = self.exchange_bytes + self.streams.held_bytes();
        self.context.charge_held(self.exchanges.client().slot, bytes, &mut self.held);
    }
}

/// Makes the exchanges of a connection.
fn new_exchanges(
    transport: &QuicTransport,
    client: LogClient,
    tls: Option<Rc<TlsInfo>>,
    number: NonZeroU64,
    slot: u32,
) -> H3Exchanges {
    let listener = transport.listener();
    let destination = OnceCell::new();
    StreamExchanges::new(ExchangeClient {
        client,
        tls,
        destination,
        number,
        slot,
        listener,
        alternatives_due: Cell::default(),
    })
}
