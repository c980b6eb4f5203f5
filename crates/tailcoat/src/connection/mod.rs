//! Connections: they join the protocol engines of `wire` to sockets, and ask routing for answers.
//!
//! A connection is a hand-written future. It polls its socket directly, works in buffers that belong to the thread, and
//! keeps bytes of its own only while a request is incomplete or a response is stuck.

mod arrival;
mod client_limit;
mod clock;
mod connections;
mod eviction;
mod generation;
mod group;
mod h1;
mod h2;
mod handshakes;
mod holders;
mod holdings;
mod kernel_tls;
mod live;
mod opening;
mod output;
mod record;
mod socket;
mod stream;
mod table;
mod tls_socket;
mod transmit;
mod transport;
mod tunnel;

use std::cell::{Cell, Ref, RefCell};
use std::io;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

pub use client_limit::{ClientLimit, ClientPlace};
pub use clock::WorkerClock;
pub use connections::{Admission, Connections};
pub use generation::{Generation, ListenerState};
use h1::H1Connection;
use h2::H2Connection;
use handshakes::Handshakes;
pub use holdings::{Claimant, ClientOrigin, Shares};
pub use kernel_tls::{Abilities, KernelTls, Unavailable};
use opening::{OpenedConnection, OpeningConnection};
pub use socket::Socket;
pub use table::{ConnectionStage, ConnectionTable, Newcomer, RESERVED_PLACES, Room, SWEEPS_A_ROUND, WakeReason};
use tls_socket::TlsSocket;
use transport::Transport;
use wire::http::RequestHead;

use self::output::Output;
use crate::config::Limits;
use crate::log::{LogClient, Recorder};
use crate::memory_budget::{Charge, HolderSource, Shed, WorkerBudget};
use crate::metrics::{Eviction, Limit, WorkerMetrics};
use crate::overload::{Overload, OverloadLimits};
use crate::routing::rules::KeyHasher;

/// Input that is read at once, beyond a head's limit.
const READ_BYTES: usize = 16 << 10;

/// Bytes of content that are passed on at once.
const CONTENT_BYTES: usize = 64 << 10;

/// Bytes from which on it is counted what a connection holds: the beginning of a frame or of a head costs no more than the
/// connection itself.
const CHARGED_BYTES_MIN: usize = 1 << 10;

/// What all connections of a worker share. It stays on the worker's thread.
pub struct Context {
    /// What they serve by now.
    generation: RefCell<Rc<Generation>>,
    /// The worker's clock.
    pub clock: WorkerClock,
    /// Connections that were opened so far.
    opened: Cell<u64>,
    /// All open connections.
    pub table: RefCell<ConnectionTable>,
    /// Tells clients apart in it.
    hasher: KeyHasher,
    /// Where requests are logged.
    pub recorder: RefCell<Recorder>,
    /// The handshakes of TLS that begin.
    pub handshakes: Handshakes,
    /// When more comes than the worker can do.
    pub overload: Rc<Overload>,
    /// Where it is counted what the worker does, if it is.
    metrics: Option<Arc<WorkerMetrics>>,
    /// Memory that clients hold.
    memory: Rc<WorkerBudget>,
    /// Set when the worker ends: answers in progress are the last ones.
    pub is_draining: Cell<bool>,
    /// Bytes of the buffers for input: enough for all that was ever allowed, since a connection may have kept so much.
    input_bytes: Cell<usize>,
    scratch: RefCell<ConnectionScratch>,
}

/// Buffers that a connection uses while it is polled, and none keeps.
struct ConnectionScratch {
    input: Vec<u8>,
    /// What reading into `input` gave, if that has been done before the connection is polled.
    read: Option<io::Result<usize>>,
    /// Whether responses that can be sent at once stay in `output` when the connection has been polled.
    gathers: bool,
    head: RequestHead,
    path: Vec<u8>,
    host: Vec<u8>,
    output: Output,
    /// The text of a head of HTTP/2.
    text: Vec<u8>,
    /// Output in the form of HTTP/2.
    frames: wire::h2::H2Output,
    /// For content that comes while it is sent.
    content: Vec<u8>,
}

impl ConnectionScratch {
    /// All connections of the worker use it in turn. What one left when it failed is nobody else's.
    fn clear(&mut self, input_bytes: usize) {
        self.output.clear();
        self.frames.clear();
        if self.input.len() < input_bytes {
            // It had lent the buffer to a handler when it failed, or more is allowed since.
            self.input = vec![0; input_bytes];
        }
    }
}

/// Bytes that are read at once, with the beginning of a head or frame that was read before: more than the largest frame.
fn input_bytes(limits: &Limits) -> usize {
    limits.head_bytes_max + READ_BYTES
}

/// The limits by which overload is measured.
pub fn overload_limits(limits: &Limits) -> OverloadLimits {
    OverloadLimits { lag_max: limits.lag_max, tls_handshake_timeout: limits.tls_handshake_timeout }
}

impl Context {
    /// The context, counting here.
    #[must_use]
    pub fn counting(self, metrics: Arc<WorkerMetrics>) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// The context, counting memory that clients hold here.
    #[must_use]
    pub fn budgeting(self, memory: Rc<WorkerBudget>) -> Self {
        Self { memory, ..self }
    }

    /// The holder of the connection in this place, made when it charges something.
    fn holder_source(&self, slot: u32) -> HolderSource {
        HolderSource::new(&self.memory, slot)
    }

    /// Charges what a connection holds from now on, in `held`. Little is not worth it.
    fn charge_held(&self, slot: u32, bytes: usize, held: &mut Option<Charge>) {
        match held {
            Some(charge) if bytes >= CHARGED_BYTES_MIN => charge.set(bytes),
            Some(_) => *held = None,
            None if bytes >= CHARGED_BYTES_MIN => *held = Some(self.memory.holder(slot).charge(bytes)),
            None => {}
        }
    }

    /// Frees the place of a connection that has ended.
    fn leave(&self, slot: u32) {
        self.table.borrow_mut().remove(slot);
        self.memory.forget(slot);
    }

    /// Wakes this worker's share of the connections that must be closed because clients hold too much memory. Returns how
    /// many, and the bytes that they hold.
    pub fn shed_connections(&self) -> (usize, u64) {
        let Shed { slots, bytes } = self.memory.shed();
        let mut table = self.table.borrow_mut();
        for &slot in &slots {
            self.count_limit(Limit::ClientMemoryBytesMax);
            table.shed(slot);
        }
        (slots.len(), bytes)
    }

    /// Where it is counted what the worker does, if it is.
    pub fn metrics(&self) -> Option<&WorkerMetrics> {
        self.metrics.as_deref()
    }

    /// Counts that a client has come to a limit.
    pub fn count_limit(&self, limit: Limit) {
        if let Some(metrics) = &self.metrics {
            metrics.on_limit(limit);
        }
    }

    /// Counts a connection that is closed because its place is needed, by what it awaits.
    pub fn count_eviction(&self, stage: ConnectionStage) {
        if let Some(metrics) = &self.metrics {
            metrics.on_eviction(match stage {
                ConnectionStage::Opening => Eviction::Opening,
                ConnectionStage::Idle | ConnectionStage::Resting => Eviction::Idle,
                ConnectionStage::Head => Eviction::Head,
                ConnectionStage::Content => Eviction::Content,
                ConnectionStage::Answer => Eviction::Answer,
                ConnectionStage::Write => Eviction::Write,
                ConnectionStage::Linger => Eviction::Linger,
                ConnectionStage::Tunnel => Eviction::Tunnel,
            });
        }
    }

    /// Client and network that a connection counts for where places are shared out.
    fn origin(&self, client: LogClient) -> ClientOrigin {
        if client.is_local_proxy() || self.generation().router.trusts(client) {
            return ClientOrigin::EXEMPT;
        }
        ClientOrigin::new(self.hasher.of_client(client), self.hasher.of_network(client))
    }

    /// A connection of this client that was accepted from a listener.
    pub fn newcomer(&self, client: LogClient, listener: u16) -> Newcomer {
        Newcomer { origin: self.origin(client), is_reserved: self.generation().is_reserved(listener) }
    }

    /// Counts bytes that came from a client.
    #[inline]
    fn count_received(&self, bytes: usize) {
        if let Some(metrics) = &self.metrics {
            metrics.received_bytes.add(bytes as u64);
        }
    }

    /// Counts bytes that went to a client.
    #[inline]
    fn count_sent(&self, bytes: u64) {
        if let Some(metrics) = &self.metrics {
            metrics.sent_bytes.add(bytes);
        }
    }

    /// A context that begins with this generation.
    pub fn new(generation: Generation, recorder: Recorder, clock: WorkerClock, overload: Rc<Overload>) -> Self {
        let limits = &generation.limits;
        let input_bytes = input_bytes(limits);
        let input = vec![0; input_bytes];
        Self {
            handshakes: Handshakes::new(limits.tls_handshakes_per_second_max, limits.tls_handshake_timeout),
            overload,
            generation: RefCell::new(Rc::new(generation)),
            clock,
            opened: Cell::new(0),
            table: RefCell::default(),
            hasher: KeyHasher::default(),
            recorder: RefCell::new(recorder),
            metrics: None,
            memory: WorkerBudget::new(Arc::default(), 0),
            is_draining: Cell::new(false),
            input_bytes: Cell::new(input_bytes),
            scratch: RefCell::new(ConnectionScratch {
                input,
                read: None,
                gathers: false,
                head: RequestHead::default(),
                path: Vec::new(),
                host: Vec::new(),
                output: Output::default(),
                text: Vec::new(),
                frames: wire::h2::H2Output::default(),
                content: vec![0; CONTENT_BYTES],
            }),
        }
    }

    /// The number of a connection that begins: no other connection of this worker has it, before or after.
    fn next_connection_number(&self) -> NonZeroU64 {
        let number = NonZeroU64::MIN.saturating_add(self.opened.get());
        self.opened.set(number.get());
        number
    }

    /// What is served by now. Not to be held while anything is waited for.
    pub fn generation(&self) -> Ref<'_, Generation> {
        Ref::map(self.generation.borrow(), Rc::as_ref)
    }

    /// Serves by another generation from the next request on; returns the one before.
    pub fn apply(&self, generation: Generation) -> Rc<Generation> {
        let limits = &generation.limits;
        self.input_bytes.set(self.input_bytes.get().max(input_bytes(limits)));
        self.handshakes.apply_limit(limits.tls_handshakes_per_second_max, limits.tls_handshake_timeout);
        self.overload.apply_limits(overload_limits(limits));
        self.generation.replace(Rc::new(generation))
    }

    /// Whether a connection of this listener takes no further request.
    fn is_ending(&self, listener: u16) -> bool {
        self.is_draining.get() || self.generation().is_retired(listener)
    }
}
