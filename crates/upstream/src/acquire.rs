use std::cell::{Cell, Ref, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use wire::http::{KnownField, Request, cookies};
use wire::proxy_protocol::Endpoints;

use super::balance::{Balancer, Candidate};
use super::connect::{ConnectRequest, connect, proxy_preamble};
use super::health::{FULL_SHARE, ServerFitness};
use super::http2::{self, SessionLimits, StreamLease, UpstreamSession};
use super::lease::{Lease, ServerSlot};
use super::pool::{ClientConnectionId, PooledConnection};
use super::server::{ServerId, UpstreamProtocol};
use super::shared::SharedUpstream;
use super::tried::Tried;
use super::worker_server::{self, WorkerServer, WorkerServers};
use super::{AcquireError, AcquireFailure, monotonic_ms};
use crate::config;
use crate::fair_queue::{QueueOverloaded, QueuePlace};
use crate::log::event;
use crate::metrics::NameSlot;

/// Divisor of `queue-wait-max`: a request that has waited that long checks for overload again after each such part.
const LOOKS_DIVISOR: u32 = 4;

/// Interval at which kept connections are swept, so that expired and closed ones are dropped.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A worker's own part of an upstream: its kept connections and its load balancing.
pub struct Upstream {
    pub(super) shared: Arc<SharedUpstream>,
    /// Servers as of `seen_version`.
    servers: RefCell<WorkerServers>,
    seen_version: Cell<u64>,
    name: Rc<str>,
    own: Weak<Self>,
    /// Slot in which the worker counts requests of this upstream.
    counted: Cell<NameSlot>,
    session_limits: SessionLimits,
    http2_limits: Rc<wire::h2::H2Limits>,
    read_buffer: Rc<RefCell<Vec<u8>>>,
    balancer: RefCell<Balancer>,
    /// Scratch space of a choice, kept to save an allocation.
    candidates: RefCell<Vec<Candidate>>,
    is_swept: Cell<bool>,
}

/// Requirements of a request on its upstream.
#[derive(Clone, Copy, Debug, Default)]
pub struct AcquireOptions {
    /// Key of consistent hashing ([`hash_key`](super::hash_key)), if the request has one.
    pub key: Option<u64>,
    /// Server that the client's cookie names (sticky sessions).
    pub sticky: Option<ServerId>,
    /// Servers that have failed this request already.
    pub tried: Tried,
    /// Number of the client, for its share of the queue; `None` if the peer speaks for many clients.
    pub client: Option<u64>,
    /// Number of the client connection, if a kept connection may be reserved for it. The peer then speaks for one
    /// client.
    pub client_connection: Option<ClientConnectionId>,
    /// True if the exchange will become a tunnel for another protocol.
    pub is_upgrade: bool,
    /// Endpoints of the client's connection, for the PROXY protocol; `None` if the client came over a unix socket.
    pub endpoints: Option<Endpoints>,
}

/// A connection being acquired: a future that the worker polls.
pub enum Acquire {
    /// A kept connection, available at once.
    Ready(Option<Leased>),
    /// A connection that must be opened or waited for.
    Waiting(Pin<Box<dyn Future<Output = Result<Leased, AcquireFailure>>>>),
}

/// Connection or stream that an exchange was given.
#[derive(Debug)]
pub enum Leased {
    /// A connection for this exchange alone.
    Connection(Lease),
    /// A stream on an HTTP/2 connection.
    Stream(StreamLease),
}

/// Transport that a slot is filled with.
enum SlotContent {
    /// A connection, and whether it was used before.
    Connection(PooledConnection, bool),
    /// A session with room for the exchange, and whether it was used before.
    Session(Rc<UpstreamSession>, bool),
}

/// Reason that no server could be chosen.
enum NoSlot {
    /// All fit servers have reached their limit of connections.
    Busy,
    /// No server is left to try.
    NoServer,
}

impl Upstream {
    /// Creates a worker's own part; `seed` makes its random choices differ from other workers'.
    pub fn new(shared: Arc<SharedUpstream>, seed: u64) -> Rc<Self> {
        let (set, version) = shared.servers.get_with_version();
        let count = set.iter().count();
        Rc::new_cyclic(|own| Self {
            servers: RefCell::new(worker_server::follow(&set, &[], &shared, own)),
            own: Weak::clone(own),
            seen_version: Cell::new(version),
            session_limits: session_limits(&shared.config),
            http2_limits: Rc::new(http2::limits(&shared.config)),
            read_buffer: Rc::default(),
            balancer: RefCell::new(Balancer::new(shared.config.balance.clone(), count, seed)),
            candidates: RefCell::new(Vec::with_capacity(count)),
            is_swept: Cell::new(false),
            name: shared.name().into(),
            counted: Cell::default(),
            shared,
        })
    }

    /// Name of the upstream in the configuration.
    pub fn name(&self) -> &Rc<str> {
        &self.name
    }

    /// Slot in which requests of this upstream are counted.
    pub fn counted(&self) -> NameSlot {
        self.counted.get()
    }

    /// Sets the slot in which requests of this upstream are counted.
    pub fn count_at(&self, slot: NameSlot) {
        self.counted.set(slot);
    }

    /// Number of connections kept for further requests.
    pub fn idle(&self) -> usize {
        self.servers().iter().map(|server| server.pool.borrow().len()).sum()
    }

    /// Current servers.
    fn servers(&self) -> WorkerServers {
        Rc::clone(&self.current_servers())
    }

    fn current_servers(&self) -> Ref<'_, WorkerServers> {
        if self.shared.servers.version() != self.seen_version.get() {
            self.follow_servers();
        }
        self.servers.borrow()
    }

    /// Follows a change of the servers. Connections kept to a removed one close.
    #[cold]
    fn follow_servers(&self) {
        let (set, version) = self.shared.servers.get_with_version();
        let before = Rc::clone(&self.servers.borrow());
        let servers = worker_server::follow(&set, &before, &self.shared, &self.own);
        let index = |server: &Rc<WorkerServer>| before.iter().position(|known| Rc::ptr_eq(known, server));
        self.balancer.borrow_mut().rearrange(&servers.iter().map(index).collect::<Vec<_>>());
        self.servers.replace(servers);
        self.seen_version.set(version);
    }

    /// True if some server may speak HTTP/2.
    pub fn may_speak_http2(&self) -> bool {
        self.current_servers().iter().any(|server| self.shared.may_speak_http2(server.shared.protocol))
    }

    /// State that all workers share.
    pub fn shared(&self) -> &Arc<SharedUpstream> {
        &self.shared
    }

    /// Gets a connection to a server that may take a request. A kept connection is available at once, without a
    /// system call or an allocation. Otherwise a new one is opened; if that fails, the next server is tried, up to
    /// `tries-max`.
    pub fn acquire(self: &Rc<Self>, wanted: AcquireOptions, now_ms: u64) -> Acquire {
        let slot = match self.choose_in_turn(&wanted, now_ms) {
            Ok(slot) => slot,
            Err(rejected) => return Acquire::Waiting(Box::pin(self.acquire_slowly(Err(rejected), wanted, now_ms))),
        };
        match self.take_open(&slot.server, &wanted, now_ms) {
            Some(way) => Acquire::Ready(Some(Leased::new(way, slot, &wanted))),
            None => Acquire::Waiting(Box::pin(self.acquire_slowly(Ok(slot), wanted, now_ms))),
        }
    }

    /// Waits for a slot if there is none, then opens a connection.
    fn acquire_slowly(
        self: &Rc<Self>,
        chosen: Result<ServerSlot, NoSlot>,
        mut wanted: AcquireOptions,
        now_ms: u64,
    ) -> impl Future<Output = Result<Leased, AcquireFailure>> + use<> {
        let upstream = Rc::clone(self);
        async move {
            // The runtime's clock, which tests can move.
            let began = Instant::now();
            let now_ms = || now_ms + began.elapsed().as_millis() as u64;
            let mut chosen = chosen;
            let mut failure = AcquireFailure::from(AcquireError::NoServer);
            if matches!(chosen, Err(NoSlot::NoServer)) && upstream.shared.await_discovery().await {
                chosen = upstream.choose_in_turn(&wanted, now_ms());
            }
            loop {
                let mut slot = match chosen {
                    Ok(slot) => slot,
                    Err(NoSlot::Busy) => upstream.wait_for_slot(&wanted, now_ms).await?,
                    Err(NoSlot::NoServer) => return Err(failure),
                };
                match upstream.open(&slot, &wanted, now_ms()).await {
                    Ok(way) => return Ok(Leased::new(way, slot, &wanted)),
                    // Neither the server's fault nor cured by another server.
                    Err(AcquireError::Exhausted) => return Err(AcquireError::Exhausted.into()),
                    Err(error) => {
                        failure = AcquireFailure { error, server: Some(Rc::clone(&slot.server.name)) };
                        slot.report_failure(now_ms());
                        wanted.tried.add(slot.server.shared.id);
                    }
                }
                drop(slot);
                if wanted.tried.count() >= upstream.shared.config.tries_max {
                    return Err(failure);
                }
                chosen = upstream.choose_in_turn(&wanted, now_ms());
                // The last failure is logged with the request that it ends.
                if !matches!(chosen, Err(NoSlot::NoServer)) {
                    upstream.log_failure(&failure);
                }
            }
        }
    }

    /// Logs a failed server whose request is sent to another one.
    fn log_failure(&self, failure: &AcquireFailure) {
        let AcquireFailure { error, server } = failure;
        let values: &[(&str, &dyn fmt::Display)] =
            &[("server", &server.as_deref().unwrap_or_default()), ("reason", error)];
        self.shared.log.warn(event("connecting to upstream server failed", values), error.help());
    }

    async fn wait_for_slot(
        self: &Rc<Self>,
        wanted: &AcquireOptions,
        now_ms: impl Fn() -> u64,
    ) -> Result<ServerSlot, AcquireError> {
        let config = &self.shared.config;
        let limits = self.shared.queue_limits();
        let place = QueuePlace::join_at(&self.shared, wanted.client, config.queue_max, now_ms(), limits);
        let place = place.ok_or(AcquireError::QueueFull)?;
        let end = Instant::now() + config.queue_timeout;
        // Without a limit to the wait, the first check for overload is at the end.
        let wait_max = match config.queue_wait_max() {
            Duration::ZERO => config.queue_timeout,
            wait_max => wait_max,
        };
        let mut look = Instant::now() + wait_max;
        loop {
            let slot = poll_fn(|task| {
                ready!(place.poll_called(task.waker())).map_err(|QueueOverloaded| AcquireError::QueueOverloaded)?;
                match self.choose(wanted, now_ms()) {
                    Ok(slot) => Poll::Ready(Ok(slot)),
                    Err(NoSlot::NoServer) => Poll::Ready(Err(AcquireError::NoServer)),
                    Err(NoSlot::Busy) => {
                        // The free server may be one that has failed this request; then another request can use it.
                        if wanted.tried.count() > 0 || wanted.sticky.is_some() {
                            place.call_next();
                        }
                        Poll::Pending
                    }
                }
            });
            if let Ok(slot) = timeout_at(look.min(end), slot).await {
                place.on_served();
                return slot;
            }
            if look >= end {
                return Err(AcquireError::QueueTimeout);
            }
            place.look(now_ms()).map_err(|QueueOverloaded| AcquireError::QueueOverloaded)?;
            look += wait_max / LOOKS_DIVISOR;
        }
    }

    /// Finds a transport for a slot: one that is open already, perhaps after a wait, or a new one. If several
    /// requests want a session, one of them opens it and all join it.
    async fn open(
        self: &Rc<Self>,
        slot: &ServerSlot,
        wanted: &AcquireOptions,
        now_ms: u64,
    ) -> Result<SlotContent, AcquireError> {
        let server = &slot.server;
        loop {
            if let Some(way) = self.take_open(server, wanted, now_ms) {
                return Ok(way);
            }
            if !self.expects_session(server, wanted) {
                return self.connect(server, wanted, now_ms).await;
            }
            let opening = server.sessions.borrow().opening();
            if let Some(mut opening) = opening {
                // An error here means that the request opening the session has stopped.
                if let Ok(Some(error)) = opening.wait_for(Option::is_some).await.map(|error| *error) {
                    return Err(error);
                }
                continue;
            }
            let opening = server.sessions.borrow_mut().open();
            // Runs even if the future is dropped.
            let _end = OnDrop(|| server.sessions.borrow_mut().opened());
            let way = self.connect(server, wanted, now_ms).await;
            if let Err(error) = way {
                opening.fail(error);
            }
            return way;
        }
    }

    async fn connect(
        self: &Rc<Self>,
        server: &WorkerServer,
        wanted: &AcquireOptions,
        now_ms: u64,
    ) -> Result<SlotContent, AcquireError> {
        let config = &self.shared.config;
        let opened = ConnectRequest {
            limit: config.connect_timeout,
            preamble: &proxy_preamble(config.proxy_protocol, wanted.endpoints),
            tls: self.shared.tls.as_ref(),
            wants_http1: wanted.is_upgrade,
        };
        let (stream, is_http2) = connect(&server.shared, opened).await?;
        if server.shared.protocol == UpstreamProtocol::Negotiated && !wanted.is_upgrade {
            server.sessions.borrow_mut().has_chosen_http2 = Some(is_http2);
        }
        if !is_http2 {
            let connection = PooledConnection { stream, opened_ms: now_ms, requests: 1, reserved_for: None };
            return Ok(SlotContent::Connection(connection, false));
        }
        let session = UpstreamSession::new(Rc::clone(&self.http2_limits), monotonic_ms());
        let scratch = Rc::clone(&self.read_buffer);
        tokio::task::spawn_local(http2::drive(Rc::clone(&session), stream, scratch));
        // A new session has room.
        let is_reused = session.join(&self.session_limits, monotonic_ms()).ok_or(AcquireError::NoServer)?;
        server.sessions.borrow_mut().add(Rc::clone(&session));
        self.sweep_from_now_on();
        Ok(SlotContent::Session(session, is_reused))
    }

    /// Checks whether a connection to the server should carry several exchanges. Before the first handshake it
    /// assumes so.
    fn expects_session(&self, server: &WorkerServer, wanted: &AcquireOptions) -> bool {
        match server.shared.protocol {
            UpstreamProtocol::OneAtATime => false,
            UpstreamProtocol::Http2 => true,
            UpstreamProtocol::Negotiated => {
                let chosen = server.sessions.borrow().has_chosen_http2;
                let offered = self.shared.tls.as_ref().is_some_and(|tls| tls.offers_http2);
                offered && !wanted.is_upgrade && chosen.unwrap_or(true)
            }
        }
    }

    /// Takes a connection or session that is open already.
    fn take_open(&self, server: &WorkerServer, wanted: &AcquireOptions, now_ms: u64) -> Option<SlotContent> {
        let protocol = server.shared.protocol;
        if protocol != UpstreamProtocol::OneAtATime {
            // Ask for extended CONNECT (RFC 8441), which some servers lack, only if HTTP/1.1 is possible too.
            let is_upgrade = wanted.is_upgrade && protocol == UpstreamProtocol::Negotiated;
            let sessions = server.sessions.borrow();
            let joined = sessions.join(&self.session_limits, is_upgrade, monotonic_ms());
            if let Some((session, is_reused)) = joined {
                return Some(SlotContent::Session(session, is_reused));
            }
        }
        if wanted.tried.wants_new() {
            return None;
        }
        let mut connection = server.pool.borrow_mut().take(wanted.client_connection, &server.pool_limits, now_ms)?;
        connection.requests = connection.requests.saturating_add(1);
        Some(SlotContent::Connection(connection, true))
    }

    /// Sweeps kept connections regularly as long as there are any.
    pub(super) fn sweep_from_now_on(self: &Rc<Self>) {
        if !self.is_swept.replace(true) {
            tokio::task::spawn_local(sweep_regularly(Rc::downgrade(self)));
        }
    }

    /// Calls [`choose`](Self::choose) unless other requests are queued.
    fn choose_in_turn(self: &Rc<Self>, wanted: &AcquireOptions, now_ms: u64) -> Result<ServerSlot, NoSlot> {
        // With sticky sessions, requests may wait for one server while another is free.
        if self.shared.sticky.is_none() && !self.shared.queue.is_empty() {
            return Err(NoSlot::Busy);
        }
        self.choose(wanted, now_ms)
    }

    /// Chooses a server and takes a slot there. Fit servers come first, then fit backups. The last resort is any
    /// server that has not failed this very request.
    fn choose(self: &Rc<Self>, wanted: &AcquireOptions, now_ms: u64) -> Result<ServerSlot, NoSlot> {
        let servers = &*self.servers();
        if let Some(chosen) = wanted.sticky.and_then(|id| self.choose_sticky(servers, id, wanted, now_ms)) {
            return chosen;
        }
        let mut busy = false;
        for is_backup in [false, true] {
            let fit = |server: &WorkerServer| match server.is_backup() != is_backup || server.shared.is_drained() {
                true => ServerFitness::Out,
                false => server.shared.standing(now_ms),
            };
            match self.choose_from(servers, wanted, now_ms, fit) {
                Err(NoSlot::NoServer) => {}
                Err(NoSlot::Busy) => busy = true,
                chosen => return chosen,
            }
            // Backups are for servers that are down, not for busy ones.
            if busy {
                return Err(NoSlot::Busy);
            }
        }
        if !self.shared.config.last_resort {
            return Err(NoSlot::NoServer);
        }
        self.choose_from(servers, wanted, now_ms, |server| match server.shared.is_drained() {
            true => ServerFitness::Out,
            false => ServerFitness::Fit(FULL_SHARE),
        })
    }

    /// Takes a slot at the server that the client's cookie names, even if it is drained or a backup. `None` if it is
    /// removed or down, or has failed this request.
    fn choose_sticky(
        &self,
        servers: &[Rc<WorkerServer>],
        id: ServerId,
        wanted: &AcquireOptions,
        now_ms: u64,
    ) -> Option<Result<ServerSlot, NoSlot>> {
        let server = servers.iter().find(|server| server.shared.id == id && !wanted.tried.contains(id))?;
        let of = &server.shared;
        let slot = |is_trial| Some(Ok(ServerSlot { server: Rc::clone(server), is_trial }));
        match of.standing(now_ms) {
            ServerFitness::Out => None,
            ServerFitness::Fit(_) if self.shared.take_slot(of) => slot(false),
            ServerFitness::Fit(_) => Some(Err(NoSlot::Busy)),
            ServerFitness::Trial if of.with_health(now_ms, |health| health.begin_trial(now_ms)) => {
                if self.shared.take_slot(of) {
                    return slot(true);
                }
                of.with_health(now_ms, super::health::Health::abandon_trial);
                None
            }
            ServerFitness::Trial => None,
        }
    }

    /// Server that a request's cookie or header field names, if sessions are sticky.
    pub fn sticky_server(&self, request: &Request<'_>) -> Option<ServerId> {
        let sticky = self.shared.config.sticky.as_ref()?;
        let is_named = |server: &&Rc<WorkerServer>, sent: &[u8]| {
            server.sticky_value.as_ref().is_some_and(|value| super::sticky::is_value(value, sent))
        };
        if sticky.is_header {
            let sent = request.field_by_name(sticky.name.as_bytes())?;
            return self.servers().iter().find(|server| is_named(server, sent)).map(|server| server.shared.id);
        }
        if !request.head.has(KnownField::Cookie) {
            return None;
        }
        let servers = self.servers();
        // An earlier cookie of the same name may be for a longer path, or of another upstream.
        let named = cookies(request).filter(|(name, _)| *name == sticky.name.as_bytes());
        let named = named.map(|(_, sent)| sent).find_map(|sent| servers.iter().find(|server| is_named(server, sent)));
        named.map(|server| server.shared.id)
    }

    fn choose_from(
        self: &Rc<Self>,
        servers: &[Rc<WorkerServer>],
        wanted: &AcquireOptions,
        now_ms: u64,
        standing: impl Fn(&WorkerServer) -> ServerFitness,
    ) -> Result<ServerSlot, NoSlot> {
        let mut candidates = self.candidates.borrow_mut();
        candidates.clear();
        let mut is_busy = false;
        let slot = |server: &Rc<WorkerServer>, is_trial| ServerSlot { server: Rc::clone(server), is_trial };
        for (index, server) in servers.iter().enumerate() {
            let of = &server.shared;
            if wanted.tried.contains(of.id) {
                continue;
            }
            let standing = standing(server);
            if standing == ServerFitness::Out {
                continue;
            }
            let in_use = of.in_use();
            let most = self.shared.config.connections_max;
            if most > 0 && in_use >= most {
                is_busy = true;
                continue;
            }
            match standing {
                // The first request after the ejection time is the trial.
                ServerFitness::Trial => {
                    if of.with_health(now_ms, |health| health.begin_trial(now_ms)) {
                        if self.shared.take_slot(of) {
                            return Ok(slot(server, true));
                        }
                        of.with_health(now_ms, super::health::Health::abandon_trial);
                    }
                }
                ServerFitness::Fit(share) => {
                    let weight = server.weight().saturating_mul(share).max(1);
                    candidates.push(Candidate { server: index as u16, weight, in_use, hash: of.hash });
                }
                ServerFitness::Out => {}
            }
        }
        loop {
            let Some(index) = self.balancer.borrow_mut().choose(&candidates, wanted.key) else {
                return Err(if is_busy { NoSlot::Busy } else { NoSlot::NoServer });
            };
            let server = &servers[usize::from(index)];
            if self.shared.take_slot(&server.shared) {
                return Ok(slot(server, false));
            }
            // Another worker took the last slot.
            is_busy = true;
            candidates.retain(|candidate| candidate.server != index);
        }
    }

    /// Closes kept connections that have expired or closed; returns whether any is left.
    pub(super) fn sweep(&self, now_ms: u64) -> bool {
        let sweep = |server: &Rc<WorkerServer>| {
            let mut pool = server.pool.borrow_mut();
            pool.sweep(&server.pool_limits, now_ms);
            let has_sessions = server.sessions.borrow_mut().sweep(&self.session_limits, monotonic_ms());
            has_sessions || pool.len() > 0
        };
        // All are swept, also after the first with a connection left.
        self.servers().iter().map(sweep).fold(false, |any, has| any | has)
    }
}

impl Leased {
    fn new(way: SlotContent, slot: ServerSlot, wanted: &AcquireOptions) -> Self {
        match way {
            SlotContent::Connection(connection, is_reused) => {
                Self::Connection(Lease::new(connection, slot, is_reused, wanted.client_connection))
            }
            SlotContent::Session(session, is_reused) => Self::Stream(StreamLease::new(session, slot, is_reused)),
        }
    }
}

/// Runs a closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn session_limits(config: &config::UpstreamConfig) -> SessionLimits {
    SessionLimits {
        streams_max: config.streams_per_connection_max,
        requests_max: config.requests_per_connection_max,
        age_max_ms: config.connection_age_max.as_millis() as u64,
        idle_timeout_ms: config.idle_timeout.as_millis() as u64,
    }
}

/// Sweeps as long as connections are kept.
async fn sweep_regularly(upstream: Weak<Upstream>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let Some(upstream) = upstream.upgrade() else { return };
        if !upstream.sweep(monotonic_ms()) {
            upstream.is_swept.set(false);
            return;
        }
    }
}

impl Acquire {
    /// Polls for the connection.
    pub fn poll_acquire(&mut self, task: &mut Context<'_>) -> Poll<Result<Leased, AcquireFailure>> {
        match self {
            Self::Ready(lease) => match lease.take() {
                Some(lease) => Poll::Ready(Ok(lease)),
                // Polled again after it was ready, which no caller should do.
                None => Poll::Pending,
            },
            Self::Waiting(future) => future.as_mut().poll(task),
        }
    }
}

impl Future for Acquire {
    type Output = Result<Leased, AcquireFailure>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_acquire(task)
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("shared", &self.shared).field("servers", &self.servers.borrow()).finish()
    }
}
