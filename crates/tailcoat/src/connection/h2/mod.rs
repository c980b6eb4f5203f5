//! A connection that speaks HTTP/2.
//!
//! The engine (`wire::h2`) knows frames, windows and priorities; here requests become exchanges with handlers, and what
//! they answer becomes frames. A response that is in memory and may be sent at once never becomes an exchange.

mod content;
mod exchange;
mod extended_connect;
mod head;
mod live;
mod receive;
mod respond;
mod send;
mod time_limits;
mod tunnel;
mod upload;
mod wakers;

use std::cell::OnceCell;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};
use std::time::Duration;

use wire::h1::{BodyLimits, HeadLimits};
use wire::h2::{ConnectionError, ErrorCode, H2Output, H2ServerConnection};

use self::exchange::Exchanges;
use self::receive::ReceiveBuffers;
use self::time_limits::Clocks;
use super::{ConnectionScratch, ConnectionStage, Context, OpenedConnection, Socket, Transport};
use crate::config;
use crate::handler::Now;
use crate::log::LogClient;
use crate::memory_budget::Charge;
use crate::tls::TlsInfo;

/// Output that is gathered before it is sent: four full records of TLS with one system call.
const OUTPUT_BYTES: usize = 64 << 10;

/// Bytes that a connection sends before others have their turn.
const TURN_BYTES_MAX: usize = 1 << 20;

/// Heads of the largest size that a connection may hold; beyond, new streams are refused. With the default of
/// `head-bytes-max` that is 512 KiB: for each of as many streams as a client may open, 2 KiB of a head that routing and a
/// handler keep.
const HEADS_MAX: u64 = 32;

/// Reads of a connection before others have their turn: what is sliced into tiny frames takes longer to work through than
/// to send.
const READS_A_TURN_MAX: u32 = 8;

/// The connection.
pub struct H2Connection {
    socket: Transport,
    context: Rc<Context>,
    client: LogClient,
    /// How it speaks TLS, if it does.
    tls: Option<Rc<TlsInfo>>,
    /// Where the client has connected to, once somebody wanted to know, or as a proxy has told it.
    destination: OnceCell<Box<SocketAddr>>,
    wire: H2ServerConnection,
    /// What the client was told.
    limits: Rc<wire::h2::H2Limits>,
    /// Its number among all that the worker has opened.
    number: NonZeroU64,
    /// Its place in the table of connections.
    slot: u32,
    listener: u16,
    requests: u32,
    state: H2ConnectionState,
    /// Input that is not done with: the beginning of a frame, or what waits for output to go.
    kept: Vec<u8>,
    /// `kept` has not been looked at since it was kept.
    has_unseen_input: bool,
    /// Output that the socket has not taken.
    unsent: Vec<u8>,
    /// The socket takes nothing now.
    is_blocked: bool,
    exchanges: Exchanges,
    /// Bytes that those held when the connection was polled last.
    exchange_bytes: usize,
    /// What the connection holds for its client, but for heads of requests.
    held: Option<Charge>,
    clocks: Clocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum H2ConnectionState {
    /// Nothing was sent.
    New,
    Open,
    /// What is in the output is the last.
    Finishing,
    /// The client is to end.
    Lingering,
    /// Its place is needed: it ends at once.
    Evicted,
}

/// What a connection is lent while it is polled.
struct H2Turn<'a, 'task> {
    context: &'a Context,
    task: &'a mut Task<'task>,
    limits: &'a wire::h2::H2Limits,
    output: &'a mut H2Output,
    /// For content that comes while it is sent.
    content: &'a mut Vec<u8>,
    now: Now,
    /// Bytes that were sent.
    sent_bytes: usize,
    /// Bytes of content that came for exchanges.
    content_bytes: usize,
    reads: u32,
}

impl H2Turn<'_, '_> {
    /// What the engine is lent.
    fn wire(&mut self) -> wire::h2::EngineTurn<'_> {
        wire::h2::EngineTurn { now: time(self.now), limits: self.limits, output: self.output }
    }

    /// Whether it is the turn of other connections.
    fn is_over(&self) -> bool {
        self.sent_bytes >= TURN_BYTES_MAX || self.reads >= READS_A_TURN_MAX
    }
}

/// The time as the engine has it.
fn time(now: Now) -> Duration {
    Duration::from_millis(now.monotonic_ms)
}

/// The limits of a connection in the engine's form. How much content a request may have depends on who gets it.
pub(super) fn engine_limits(limits: &config::Limits) -> wire::h2::H2Limits {
    let own = limits.http2;
    wire::h2::H2Limits {
        head: HeadLimits {
            head_bytes_max: limits.head_bytes_max,
            fields_max: limits.fields_max,
            target_bytes_max: limits.target_bytes_max,
        },
        body: BodyLimits {
            body_bytes_max: u64::MAX,
            extension_bytes_max: limits.head_bytes_max,
            trailer_bytes_max: limits.head_bytes_max,
        },
        concurrent_streams_max: own.concurrent_streams_max,
        // A head that is only somewhat too large is still read, and answered with 431.
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
    /// A connection whose first bytes are still to come, or are what was read already.
    pub fn new(opened: OpenedConnection, listener: u16, context: Rc<Context>) -> Self {
        let OpenedConnection { transport, client, destination, tls, input, slot, .. } = opened;
        let (now, number) = (context.clock.now(), context.next_connection_number());
        let limits = Rc::clone(&context.generation().h2_limits);
        Self {
            socket: transport,
            client,
            tls,
            destination: destination.map(OnceCell::from).unwrap_or_default(),
            wire: H2ServerConnection::new(time(now), &limits),
            limits,
            number,
            slot,
            listener,
            requests: 0,
            state: H2ConnectionState::New,
            has_unseen_input: !input.is_empty(),
            kept: input,
            unsent: Vec::new(),
            is_blocked: false,
            exchanges: Exchanges::default(),
            exchange_bytes: 0,
            held: None,
            clocks: Clocks::new(now),
            context,
        }
    }

    /// Its socket, which is to be waited for when `poll` returned `Pending`.
    pub fn socket(&mut self) -> &mut Socket {
        self.socket.socket_mut()
    }

    /// Goes on until something has to be waited for: the socket, or what wakes the task. Ready when the connection is to be
    /// closed.
    pub fn poll(&mut self, task: &mut Task<'_>) -> Poll<()> {
        // A peer's error ends its connection, and concerns nobody else.
        self.drive(task).map(|_| ())
    }

    /// Ends it, whatever it is in the middle of. To be called once.
    pub fn close(&mut self) {
        let now = self.context.clock.now();
        for exchange in self.exchanges.take_all() {
            self.record_exchange(&exchange, false, now);
        }
        self.context.leave(self.slot);
    }

    fn drive(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let context = Rc::clone(&self.context);
        let scratch = &mut *context.scratch.borrow_mut();
        scratch.clear(context.input_bytes.get());
        if self.state == H2ConnectionState::Lingering {
            return self.drive_lingering(&mut scratch.input, &context, task);
        }
        let ConnectionScratch { input, head, text, path, host, frames, content, .. } = scratch;
        frames.resume(&mut self.unsent);
        let now = context.clock.now();
        let limits = &*Rc::clone(&self.limits);
        let turn = &mut H2Turn {
            context: &context,
            task,
            limits,
            output: frames,
            content,
            now,
            sent_bytes: 0,
            content_bytes: 0,
            reads: 0,
        };
        self.drive_turn(&mut ReceiveBuffers { input, head, text, path, host }, turn)?;
        turn.output.suspend(&mut self.unsent);
        if self.state == H2ConnectionState::Evicted {
            return Poll::Ready(Ok(()));
        }
        self.charge_held(&context);
        if self.state == H2ConnectionState::Finishing && self.unsent.is_empty() {
            self.state = H2ConnectionState::Lingering;
            self.socket.shutdown_write()?;
            return self.drive_lingering(&mut scratch.input, &context, task);
        }
        Poll::Pending
    }

    /// Charges what the connection holds from now on until it is polled again.
    fn charge_held(&mut self, context: &Context) {
        let exchange_bytes = if self.exchanges.is_empty() { 0 } else { self.exchange_bytes };
        let own_bytes = self.kept.capacity() + self.unsent.capacity() + self.socket.held_bytes();
        context.charge_held(self.slot, exchange_bytes + own_bytes, &mut self.held);
    }

    /// True if nothing more may be kept, and new streams are refused until the client has taken responses: it holds too many heads of requests.
    fn holds_too_much(&self, turn: &H2Turn<'_, '_>) -> bool {
        !self.exchanges.is_empty()
            && turn.context.memory.head_bytes(self.slot)
                >= HEADS_MAX * turn.context.generation().limits.head_bytes_max as u64
    }

    /// Reads, has requests answered, and sends, as far as it goes.
    fn drive_turn(&mut self, buffers: &mut ReceiveBuffers<'_>, turn: &mut H2Turn<'_, '_>) -> io::Result<()> {
        self.is_blocked = false;
        if self.state == H2ConnectionState::New {
            self.wire.start(&mut turn.wire());
            self.state = H2ConnectionState::Open;
        }
        self.check_time(turn);
        if turn.context.is_ending(self.listener) {
            self.wire.shut_down(&mut turn.wire());
        }
        loop {
            let has_read = self.drive_reading(buffers, turn)?;
            turn.reads += 1;
            self.drive_exchanges(turn);
            self.drive_sending(turn)?;
            if turn.is_over() {
                // What else there is to do waits until others have had their turn.
                turn.task.waker().wake_by_ref();
                break;
            }
            if !has_read {
                self.drive_ahead();
                break;
            }
        }
        if self.wire.is_drained() && self.state != H2ConnectionState::Evicted {
            self.state = H2ConnectionState::Finishing;
        }
        self.await_next(turn);
        Ok(())
    }

    /// Ends the connection, after what is in the output.
    fn finish(&mut self, code: ErrorCode, reason: &'static str, turn: &mut H2Turn<'_, '_>) {
        self.wire.fail(ConnectionError { code, reason }, &mut turn.wire());
        self.on_closed(turn);
    }

    /// The engine has ended the connection.
    fn on_closed(&mut self, turn: &mut H2Turn<'_, '_>) {
        self.state = H2ConnectionState::Finishing;
        for exchange in self.exchanges.take_all() {
            self.record_exchange(&exchange, false, turn.now);
        }
    }

    /// Where the client has connected to, as it sees it; `None` for a unix socket.
    fn destination(&self) -> Option<SocketAddr> {
        if self.destination.get().is_none()
            && let Some(address) = self.socket.local_address()
        {
            let _ = self.destination.set(Box::new(address));
        }
        self.destination.get().map(|destination| **destination)
    }

    /// Reads on and drops what comes, until the client ends or has had time enough: else what it still sends would reset
    /// the connection before it has read the last frames.
    fn drive_lingering(&mut self, input: &mut [u8], context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let mut table = context.table.borrow_mut();
        if table.take_verdict(self.slot).is_some() {
            return Poll::Ready(Ok(()));
        }
        if table.stage(self.slot) != ConnectionStage::Linger {
            let deadline_ms =
                context.clock.now().monotonic_ms + context.generation().limits.linger_timeout.as_millis() as u64;
            table.enter(self.slot, ConnectionStage::Linger, Some(deadline_ms), task.waker());
        }
        for _ in 0..READS_A_TURN_MAX {
            if ready!(self.socket.poll_read(input))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}
