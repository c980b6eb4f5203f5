//! Connections: they join the protocol engines of `wire` to sockets, and pass requests to routing.
//!
//! A connection is a hand-written future. It polls its socket directly and works in buffers that belong to the thread.
//! It keeps its own bytes only while a request is incomplete or a response waits for the client.

mod arrival;
mod client_limit;
mod clock;
mod connections;
mod detached;
mod eviction;
mod exchange;
mod ftp;
mod generation;
mod group;
mod h1;
mod h2;
mod h3;
mod handshakes;
mod holders;
mod holdings;
mod kernel_tls;
mod lingering;
mod live;
mod opening;
mod output;
mod page_cache;
mod quic;
mod record;
mod socket;
mod stream;
mod table;
mod tarpit;
mod tls_socket;
mod transfer_rate;
mod transmit;
mod transport;
mod tunnel;
mod woken;

use std::cell::{Cell, Ref, RefCell};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

pub use arrival::{Arrived, route};
pub use client_limit::{ClientLimit, ClientPlace};
pub use clock::WorkerClock;
pub use connections::{Admission, Connections};
pub use detached::{DetachedConnection, HeldPlace, StreamTaker};
pub use exchange::AlternativeService;
use ftp::FtpConnection;
pub use generation::{Generation, ListenerState, request_limits};
use h1::H1Connection;
use h2::H2Connection;
use h3::H3WorkerConnection;
use handshakes::Handshakes;
pub use holdings::{Claimant, ClientOrigin, Shares};
pub use kernel_tls::{Abilities, KernelTls, Unavailable};
use opening::{OpenedConnection, OpeningConnection};
pub use quic::{
    EndpointRole, EndpointSockets, QlogTraces, QuicBuffers, QuicEndpoint, QuicKeys, QuicSettings, QuicSocket,
    SLOTS_MAX, TagKey, steer,
};
pub use socket::Socket;
pub use table::{ConnectionStage, ConnectionTable, Newcomer, RESERVED_PLACES, Room, SWEEPS_A_ROUND, WakeReason};
use tarpit::TarpitConnection;
use tls_socket::TlsSocket;
use transport::Transport;
use wire::http::RequestHead;

use self::transfer_rate::TransferRateLimit;
use crate::config::Limits;
use crate::log::{LogClient, Recorder, Trouble, event};
use crate::memory_budget::{Charge, HolderClient, HolderSource, Shed, WorkerBudget};
use crate::metrics::{Eviction, Limit, WorkerMetrics};
use crate::overload::{Overload, OverloadLimits};
use crate::routing::rules::KeyHasher;

/// Bytes read at once in addition to the limit of a head.
const READ_BYTES: usize = 16 << 10;

/// Bytes of content forwarded at once.
const CONTENT_BYTES: usize = 64 << 10;

/// Minimum memory of a connection that is charged, in bytes. The beginning of a frame or head costs no more than the
/// connection itself.
const CHARGED_BYTES_MIN: usize = 1 << 10;

/// State that all connections of a worker share. Stays on the worker's thread.
pub struct Context {
    /// Current configuration.
    generation: RefCell<Rc<Generation>>,
    /// Clock of the worker.
    pub clock: WorkerClock,
    /// Number of connections opened so far.
    opened: Cell<u64>,
    /// Table of all open connections.
    pub table: RefCell<ConnectionTable>,
    /// Hashes clients and networks for the table.
    hasher: KeyHasher,
    /// Writer of the access logs.
    pub recorder: RefCell<Recorder>,
    /// Limit and order of TLS handshakes.
    pub handshakes: Handshakes,
    /// Detection of overload and load shedding.
    pub overload: Rc<Overload>,
    /// Counters of the worker; `None` if metrics are off.
    metrics: Option<Arc<WorkerMetrics>>,
    /// Memory that clients hold.
    memory: Rc<WorkerBudget>,
    /// Log line about connections that are closed because clients hold too much memory.
    memory_trouble: Option<Arc<Trouble>>,
    /// True if the worker is stopping: responses in progress are the last ones.
    pub is_draining: Cell<bool>,
    /// Size of the input buffers in bytes. Never shrinks, because a connection may have kept as much input as an
    /// earlier limit allowed.
    input_bytes: Cell<usize>,
    scratch: RefCell<ConnectionScratch>,
}

/// Buffers that a connection uses only while it is polled.
struct ConnectionScratch {
    input: Vec<u8>,
    head: RequestHead,
    path: Vec<u8>,
    host: Vec<u8>,
    /// Text of an HTTP/2 head.
    text: Vec<u8>,
    /// Output of an HTTP/2 connection.
    frames: wire::h2::H2Output,
    /// Buffer for streamed content.
    content: Vec<u8>,
    /// Further buffers of its size.
    spare_content: Vec<Vec<u8>>,
}

impl ConnectionScratch {
    /// Prepares the buffers for the next connection, which must not see what a failed one has left.
    fn clear(&mut self, input_bytes: usize) {
        self.frames.clear();
        if self.input.len() < input_bytes {
            // A failed connection had lent the buffer to a handler, or the limit has grown.
            self.input = vec![0; input_bytes];
        }
    }
}

/// Size of the input buffer in bytes: room for a read after the beginning of a head or frame. Larger than the largest
/// frame.
fn input_bytes(limits: &Limits) -> usize {
    limits.head_bytes_max + READ_BYTES
}

/// Limits for the detection of overload.
pub fn overload_limits(limits: &Limits) -> OverloadLimits {
    OverloadLimits { lag_max: limits.lag_max, tls_handshake_timeout: limits.tls_handshake_timeout }
}

impl Context {
    /// Sets the metrics that count the worker's operations.
    #[must_use]
    pub fn counting(self, metrics: Arc<WorkerMetrics>) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Sets the budget for memory that clients hold, and the log line about connections that are closed for it.
    #[must_use]
    pub fn budgeting(self, memory: Rc<WorkerBudget>, trouble: Arc<Trouble>) -> Self {
        Self { memory, memory_trouble: Some(trouble), ..self }
    }

    /// Source of the holder for the connection in this slot. The holder is made at its first charge.
    fn holder_source(&self, slot: u32) -> HolderSource {
        HolderSource::new(&self.memory, slot)
    }

    /// Charges the memory that a connection holds from now on to `held`. Amounts below `CHARGED_BYTES_MIN` are not
    /// charged.
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

    /// True if clients hold too much memory, so that [`Self::shed_connections`] must be called.
    #[inline]
    fn is_out_of_memory(&self) -> bool {
        self.memory.is_critical()
    }

    /// Wakes this worker's part of the connections that must be closed because clients hold too much memory, and returns
    /// their slots. `client_at` returns the client of the connection in a slot.
    #[cold]
    fn shed_connections(&self, client_at: impl Fn(u32) -> Option<LogClient>) -> Vec<u32> {
        let budget = self.memory.budget();
        let held_bytes = budget.held_bytes();
        let Shed { slots, bytes } = self.memory.shed(|slot| self.holder_client(client_at(slot)?));
        if slots.is_empty() {
            return slots;
        }
        let mut table = self.table.borrow_mut();
        for &slot in &slots {
            self.count_limit(Limit::ClientMemoryBytesMax);
            table.shed(slot);
        }
        if let Some(trouble) = &self.memory_trouble {
            let message = "closed connections of the clients that held most memory";
            trouble.tell(event(
                message,
                &[
                    ("connections", &slots.len()),
                    ("released_bytes", &bytes),
                    ("held_bytes", &held_bytes),
                    ("client_memory_bytes_max", &budget.limit_bytes()),
                ],
            ));
        }
        slots
    }

    /// Client for which a connection's memory counts; `None` for a proxy, which has many clients.
    fn holder_client(&self, client: LogClient) -> Option<HolderClient> {
        let LogClient::Ip(address) = client else { return None };
        (!self.is_proxy(client)).then(|| HolderClient::of(address.ip()))
    }

    /// Counters of the worker; `None` if metrics are off.
    pub fn metrics(&self) -> Option<&WorkerMetrics> {
        self.metrics.as_deref()
    }

    /// Counts that a client has reached a limit.
    pub fn count_limit(&self, limit: Limit) {
        if let Some(metrics) = &self.metrics {
            metrics.on_limit(limit);
        }
    }

    /// Counts an evicted connection by its stage.
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

    /// Client and network that a connection counts for in the shares of places.
    fn origin(&self, client: LogClient) -> ClientOrigin {
        if self.is_proxy(client) {
            return ClientOrigin::EXEMPT;
        }
        ClientOrigin::new(self.hasher.of_client(client), self.hasher.of_network(client))
    }

    /// Limit of slow transfers, of the current configuration.
    fn rate_limit(&self) -> TransferRateLimit {
        TransferRateLimit::of(&self.generation().limits)
    }

    /// True for a peer whose connections may be of many clients.
    fn is_proxy(&self, client: LogClient) -> bool {
        client.is_local_proxy() || self.generation().router.trusts(client)
    }

    /// Makes the newcomer for a client's connection that was accepted from a listener.
    pub fn newcomer(&self, client: LogClient, listener: u16) -> Newcomer {
        Newcomer { origin: self.origin(client), is_reserved: self.generation().is_reserved(listener) }
    }

    #[inline]
    fn count_received(&self, bytes: usize) {
        if let Some(metrics) = &self.metrics {
            metrics.received_bytes.add(bytes as u64);
        }
    }

    #[inline]
    fn count_sent(&self, bytes: u64) {
        if let Some(metrics) = &self.metrics {
            metrics.sent_bytes.add(bytes);
        }
    }

    /// Counts a call that has sent datagrams of QUIC, or has failed to.
    fn count_quic_send(&self, datagrams: usize, has_failed: bool) {
        let Some(metrics) = &self.metrics else { return };
        metrics.quic_sends.add(1);
        metrics.quic_datagrams.add(datagrams as u64);
        metrics.quic_sends_failed.add(has_failed.into());
    }

    /// Makes a context that begins with this generation.
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
            memory_trouble: None,
            is_draining: Cell::new(false),
            input_bytes: Cell::new(input_bytes),
            scratch: RefCell::new(ConnectionScratch {
                input,
                head: RequestHead::default(),
                path: Vec::new(),
                host: Vec::new(),
                text: Vec::new(),
                frames: wire::h2::H2Output::default(),
                content: vec![0; CONTENT_BYTES],
                spare_content: Vec::new(),
            }),
        }
    }

    /// Returns the number of a new connection, unique among all connections of this worker.
    fn next_connection_number(&self) -> NonZeroU64 {
        let number = NonZeroU64::MIN.saturating_add(self.opened.get());
        self.opened.set(number.get());
        number
    }

    /// Current configuration. Must not be borrowed across a wait.
    pub fn generation(&self) -> Ref<'_, Generation> {
        Ref::map(self.generation.borrow(), Rc::as_ref)
    }

    /// Applies another generation from the next request on; returns the previous one.
    pub fn apply(&self, generation: Generation) -> Rc<Generation> {
        let limits = &generation.limits;
        self.input_bytes.set(self.input_bytes.get().max(input_bytes(limits)));
        self.handshakes.apply_limit(limits.tls_handshakes_per_second_max, limits.tls_handshake_timeout);
        self.overload.apply_limits(overload_limits(limits));
        self.generation.replace(Rc::new(generation))
    }

    /// True if a connection of this listener accepts no further request.
    fn is_ending(&self, listener: u16) -> bool {
        self.is_draining.get() || self.generation().is_retired(listener)
    }
}
