//! HTTP/2 connections.
//!
//! The engine (`wire::h2`) handles frames, windows and priorities. This module turns requests into exchanges with
//! handlers, and their responses into frames. A response that is in memory and may be sent at once never becomes an
//! exchange.

mod live;
mod receive;
mod send;
mod streams;
mod time_limits;

use std::cell::{Cell, OnceCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll};
use std::time::Duration;

use wire::h2::{ConnectionError, ErrorCode, H2Output, H2ServerConnection, StreamId};

use self::receive::ReceiveBuffers;
pub(super) use self::streams::H2Streams;
use super::exchange::{
    AlternativeService, ConnectionClocks, ExchangeClient, ExchangeTurn, RESPONSES_WITH_ALTERNATIVE, RequestBuffers,
    StreamExchanges, message_limits,
};
use super::lingering::poll_lingering;
use super::tarpit::TarpitConnection;
use super::{ConnectionScratch, Context, OpenedConnection, Socket, Transport};
use crate::config;
use crate::handler::{Now, ResponseEnding};
use crate::memory_budget::Charge;

/// Bytes of output gathered before they are sent: four full TLS records in one system call.
const OUTPUT_BYTES: usize = 64 << 10;

/// Maximum number of bytes that a connection sends before others get their turn.
const TURN_BYTES_MAX: usize = 1 << 20;

/// Maximum number of reads of a connection before others get their turn. Tiny frames take longer to process than to
/// send.
const READS_A_TURN_MAX: u32 = 8;

/// HTTP/2 connection of a client.
pub(crate) struct H2Connection {
    socket: Transport,
    context: Rc<Context>,
    wire: H2ServerConnection,
    /// Limits that the client has received in SETTINGS.
    limits: Rc<wire::h2::H2Limits>,
    requests: u32,
    state: H2ConnectionState,
    /// Unprocessed input: the beginning of a frame, or input that must wait until output is sent.
    kept: Vec<u8>,
    /// True if `kept` has not been parsed since it was stored.
    has_unseen_input: bool,
    /// Output that the socket has not accepted.
    unsent: Vec<u8>,
    /// True if the socket accepts no output now.
    is_blocked: bool,
    exchanges: StreamExchanges<StreamId>,
    /// Bytes that the exchanges held at the last poll.
    exchange_bytes: usize,
    /// First bytes of the client, until its first request, if a fingerprint is wanted.
    beginning: Option<Vec<u8>>,
    /// Memory charge for buffers of the connection, without the heads of requests.
    held: Option<Charge>,
    clocks: ConnectionClocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum H2ConnectionState {
    /// Nothing has been sent yet.
    New,
    Open,
    /// The output buffer holds the last output.
    Finishing,
    /// The server waits for the client to end the connection.
    Lingering,
    /// Another connection needs the place, so this one ends at once.
    Evicted,
}

/// Resources that a connection borrows while it is polled.
struct H2Turn<'a> {
    exchange: ExchangeTurn<'a>,
    limits: &'a wire::h2::H2Limits,
    output: &'a mut H2Output,
    /// Bytes sent in this turn.
    sent_bytes: usize,
    reads: u32,
}

impl<'a> H2Turn<'a> {
    /// Resources in the form for the engine.
    fn wire(&mut self) -> wire::h2::EngineTurn<'_> {
        wire::h2::EngineTurn { now: time(self.exchange.now), limits: self.limits, output: self.output }
    }

    /// Engine in the form for the exchanges, and the rest of the turn for them.
    fn streams<'t>(
        &'t mut self,
        wire: &'t mut H2ServerConnection,
        socket: &'t Transport,
    ) -> (H2Streams<'t>, &'t mut ExchangeTurn<'a>) {
        let turn =
            wire::h2::EngineTurn { now: time(self.exchange.now), limits: self.limits, output: &mut *self.output };
        (H2Streams { wire, turn, socket }, &mut self.exchange)
    }

    /// True if other connections must get their turn.
    fn is_over(&self) -> bool {
        self.sent_bytes >= TURN_BYTES_MAX || self.reads >= READS_A_TURN_MAX
    }
}

/// Converts the time to the form for the engine.
fn time(now: Now) -> Duration {
    Duration::from_millis(now.monotonic_ms)
}

/// Converts the limits of a connection to the form for the engine.
pub(super) fn engine_limits(limits: &config::Limits) -> wire::h2::H2Limits {
    let own = limits.http2;
    let (head, body) = message_limits(limits);
    wire::h2::H2Limits {
        head,
        body,
        concurrent_streams_max: own.concurrent_streams_max,
        // A head that is only slightly too large is read, and gets status 431.
        header_block_bytes_max: 2 * limits.head_bytes_max,
        continuations_max: own.continuations_max,
        header_table_bytes_max: own.header_table_bytes_max,
        window_bytes_max: own.window_bytes_max,
        enables_connect_protocol: true,
        output_bytes_max: OUTPUT_BYTES,
        settings_timeout: limits.head_timeout,
        stalled_timeout: limits.write_timeout,
        linger_timeout: limits.linger_timeout,
        peer_resets: own.peer_resets,
        stream_faults: own.stream_faults,
        settings: own.settings,
        pings: own.pings,
        priorities: own.priorities,
        window_updates: own.window_updates,
        idle_frames: own.idle_frames,
        ..wire::h2::H2Limits::default()
    }
}

impl H2Connection {
    /// Makes the connection from an opened transport, with input that was read already, if any.
    pub(crate) fn new(opened: OpenedConnection, listener: u16, context: Rc<Context>) -> Self {
        let OpenedConnection { transport, client, destination, tls, input, slot, .. } = opened;
        let (now, number) = (context.clock.now(), context.next_connection_number());
        let destination = destination.map(OnceCell::from).unwrap_or_default();
        let limits = Rc::clone(&context.generation().h2_limits);
        let beginning = context.generation().wants_fingerprints.then(Vec::new);
        Self {
            socket: transport,
            wire: H2ServerConnection::new(time(now), &limits),
            limits,
            requests: 0,
            state: H2ConnectionState::New,
            has_unseen_input: !input.is_empty(),
            kept: input,
            unsent: Vec::new(),
            is_blocked: false,
            exchanges: StreamExchanges::new(ExchangeClient {
                alternatives_due: match AlternativeService::is_for(tls.as_deref()) {
                    true => RESPONSES_WITH_ALTERNATIVE.into(),
                    false => Cell::default(),
                },
                client,
                tls,
                destination,
                number,
                slot,
                listener,
            }),
            exchange_bytes: 0,
            beginning,
            held: None,
            clocks: ConnectionClocks::new(now),
            context,
        }
    }

    /// Socket to wait for after `poll` returned `Pending`.
    pub(crate) fn socket(&mut self) -> &mut Socket {
        self.socket.socket_mut()
    }

    /// Polls until the socket or a waker must be waited for. Ready when the connection must be closed.
    pub(crate) fn poll(&mut self, task: &mut Task<'_>) -> Poll<()> {
        // A peer's error ends its own connection only.
        self.drive(task).map(|_| ())
    }

    /// True if the connection must be kept without a response.
    pub(super) fn is_for_tarpit(&self) -> bool {
        self.exchanges.ending() == ResponseEnding::Tarpit
    }

    /// Converts the connection to one in the tarpit, which ends its other requests; `None` if that is full.
    pub(super) fn into_tarpit(mut self) -> Option<TarpitConnection> {
        let limits = self.context.generation().limits.tarpit;
        let bans = Arc::clone(self.context.generation().router.ban_table());
        let Some(place) = bans.take_tarpit_place(limits.connections_max) else {
            self.close();
            return None;
        };
        let (slot, client) = (self.exchanges.client().slot, self.client());
        self.exchanges.end_all(&self.context, self.context.clock.now());
        Some(TarpitConnection::new(self.socket.into_socket(), client, slot, false, place, self.context))
    }

    /// Closes the connection in any state. Must be called once.
    pub(crate) fn close(&mut self) {
        self.exchanges.close(&self.context);
    }

    fn drive(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let context = Rc::clone(&self.context);
        let scratch = &mut *context.scratch.borrow_mut();
        scratch.clear(context.input_bytes.get());
        if self.state == H2ConnectionState::Lingering {
            return self.drive_lingering(&mut scratch.input, &context, task);
        }
        let ConnectionScratch { input, head, text, path, host, frames, content, spare_content, .. } = scratch;
        frames.resume(&mut self.unsent);
        let now = context.clock.now();
        let limits = &*Rc::clone(&self.limits);
        let turn = &mut H2Turn {
            exchange: ExchangeTurn::new(&context, task.waker(), (content, spare_content), now),
            limits,
            output: frames,
            sent_bytes: 0,
            reads: 0,
        };
        let request = RequestBuffers { head, text, path, host };
        self.drive_turn(&mut ReceiveBuffers { input, request }, turn)?;
        turn.output.suspend(&mut self.unsent);
        match self.exchanges.ending() {
            ResponseEnding::Normal => {}
            ResponseEnding::Close => {
                self.socket.abort_on_close();
                return Poll::Ready(Ok(()));
            }
            ResponseEnding::Tarpit => return Poll::Ready(Ok(())),
        }
        if self.state == H2ConnectionState::Evicted {
            return Poll::Ready(Ok(()));
        }
        self.charge_held(&context);
        if self.state == H2ConnectionState::Finishing && self.unsent.is_empty() {
            self.state = H2ConnectionState::Lingering;
            return self.drive_lingering(&mut scratch.input, &context, task);
        }
        Poll::Pending
    }

    /// Charges the memory that the connection holds until its next poll.
    fn charge_held(&mut self, context: &Context) {
        let exchange_bytes = if self.exchanges.is_empty() { 0 } else { self.exchange_bytes };
        let own_bytes = self.kept.capacity() + self.unsent.capacity() + self.socket.held_bytes();
        context.charge_held(self.exchanges.client().slot, exchange_bytes + own_bytes, &mut self.held);
    }

    /// Reads, routes requests and sends, as far as possible without waiting.
    fn drive_turn(&mut self, buffers: &mut ReceiveBuffers<'_>, turn: &mut H2Turn<'_>) -> io::Result<()> {
        self.is_blocked = false;
        if self.state == H2ConnectionState::New {
            self.wire.start(&mut turn.wire());
            self.state = H2ConnectionState::Open;
        }
        self.check_time(turn);
        if turn.exchange.context.is_ending(self.exchanges.client().listener) {
            self.wire.shut_down(&mut turn.wire());
        }
        loop {
            let has_read = self.drive_reading(buffers, turn)?;
            turn.reads += 1;
            self.drive_exchanges(turn);
            self.drive_sending(turn)?;
            if turn.is_over() {
                // The remaining work waits until other connections had their turn.
                turn.exchange.waker.wake_by_ref();
                break;
            }
            if !has_read {
                self.drive_ahead(turn);
                break;
            }
        }
        if self.wire.is_drained() && self.state != H2ConnectionState::Evicted {
            self.state = H2ConnectionState::Finishing;
        }
        self.await_next(turn);
        Ok(())
    }

    /// Ends the connection after the output that is already gathered.
    fn finish(&mut self, code: ErrorCode, reason: &'static str, turn: &mut H2Turn<'_>) {
        self.wire.fail(ConnectionError { code, reason }, &mut turn.wire());
        self.on_closed(turn);
    }

    /// Drops all exchanges after the engine has ended the connection.
    fn on_closed(&mut self, turn: &mut H2Turn<'_>) {
        self.state = H2ConnectionState::Finishing;
        self.exchanges.end_all(turn.exchange.context, turn.exchange.now);
    }

    /// Waits for the client to end, at most for the time limit.
    fn drive_lingering(&mut self, input: &mut [u8], context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let slot = self.exchanges.client().slot;
        if context.table.borrow_mut().take_verdict(slot).is_some() {
            return Poll::Ready(Ok(()));
        }
        poll_lingering(&mut self.socket, slot, input, context, task)
    }
}
