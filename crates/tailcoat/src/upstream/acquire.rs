use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use wire::proxy_protocol::Endpoints;

use super::balance::{Balancer, Candidate};
use super::connect::{connect, proxy_preamble};
use super::health::{FULL_SHARE, Standing};
use super::lease::{Lease, Slot};
use super::pool::{Connection, Pool, PoolLimits};
use super::queue::QueuePlace;
use super::shared::SharedUpstream;
use super::tried::Tried;
use super::{AcquireError, monotonic_ms};

/// How often kept connections are looked through for those that are no longer of use.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A worker's own part of an upstream: its kept connections, and its choices.
pub struct Upstream {
    pub(super) shared: Arc<SharedUpstream>,
    pub(super) pool_limits: PoolLimits,
    /// Names of the servers, and of the upstream, for logs: this worker's own, so that none has to be copied.
    pub(super) server_names: Box<[Rc<str>]>,
    name: Rc<str>,
    pools: RefCell<Vec<Pool>>,
    balancer: RefCell<Balancer>,
    /// Scratch space of a choice.
    candidates: RefCell<Vec<Candidate>>,
    is_swept: Cell<bool>,
}

/// What a request wants of an upstream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// The key of consistent hashing ([`hash_key`](super::hash_key)), if the request has one.
    pub key: Option<u64>,
    /// What was tried before.
    pub tried: Tried,
    /// A number that stands for the client, who has a share of the queue; `None` if it speaks for many.
    pub client: Option<u64>,
    /// The client's connection, of which the PROXY protocol tells; `None` if it came over a unix socket.
    pub endpoints: Option<Endpoints>,
}

/// A connection that is on its way: a future that the worker polls.
pub enum Acquire {
    /// It was kept, and is there.
    Ready(Option<Lease>),
    /// It has to be opened, or waited for.
    Waiting(Pin<Box<dyn Future<Output = Result<Lease, AcquireError>>>>),
}

/// Why no server could be chosen.
enum Refused {
    /// All have as many connections in use as they may.
    Busy,
    /// None is left.
    NoServer,
}

impl Upstream {
    /// A worker's own part; `seed` makes its random choices differ from other workers'.
    pub fn new(shared: Arc<SharedUpstream>, seed: u64) -> Rc<Self> {
        let count = shared.servers.len();
        Rc::new(Self {
            pool_limits: PoolLimits::new(&shared.config),
            pools: RefCell::new((0..count).map(|_| Pool::default()).collect()),
            balancer: RefCell::new(Balancer::new(shared.config.balance.clone(), count, seed)),
            candidates: RefCell::new(Vec::with_capacity(count)),
            is_swept: Cell::new(false),
            server_names: shared.servers.iter().map(|server| server.name.as_str().into()).collect(),
            name: shared.name().into(),
            shared,
        })
    }

    /// What it is called.
    pub fn name(&self) -> &Rc<str> {
        &self.name
    }

    /// What all workers share.
    pub fn shared(&self) -> &Arc<SharedUpstream> {
        &self.shared
    }

    /// Gets a connection to a server that may take a request. If one was kept, it is there at once, without a system call
    /// or an allocation. Otherwise the next server is tried when one can't be connected to, up to `tries-max`.
    pub fn acquire(self: &Rc<Self>, wanted: Wanted, now_ms: u64) -> Acquire {
        let slot = match self.choose_in_turn(&wanted, now_ms) {
            Ok(slot) => slot,
            Err(refused) => return Acquire::Waiting(Box::pin(self.acquire_slowly(Err(refused), wanted, now_ms))),
        };
        let kept = if wanted.tried.wants_new() { None } else { self.take_kept(slot.server, now_ms) };
        match kept {
            Some(connection) => Acquire::Ready(Some(Lease::new(connection, slot, true))),
            None => Acquire::Waiting(Box::pin(self.acquire_slowly(Ok(slot), wanted, now_ms))),
        }
    }

    /// Waits for a slot if there is none, and opens a connection.
    fn acquire_slowly(
        self: &Rc<Self>,
        chosen: Result<Slot, Refused>,
        mut wanted: Wanted,
        now_ms: u64,
    ) -> impl Future<Output = Result<Lease, AcquireError>> + use<> {
        let upstream = Rc::clone(self);
        async move {
            // The runtime's clock, which tests can move.
            let began = Instant::now();
            let now_ms = || now_ms + began.elapsed().as_millis() as u64;
            let mut chosen = chosen;
            let mut error = AcquireError::NoServer;
            loop {
                let mut slot = match chosen {
                    Ok(slot) => slot,
                    Err(Refused::Busy) => upstream.wait_for_slot(&wanted, now_ms).await?,
                    Err(Refused::NoServer) => return Err(error),
                };
                match upstream.open(&slot, &wanted, now_ms()).await {
                    Ok((connection, is_reused)) => return Ok(Lease::new(connection, slot, is_reused)),
                    Err(failed) => {
                        let server = &upstream.server_names[usize::from(slot.server)];
                        upstream.shared.log.warn(format_args!("{server}: {failed}"), "");
                        error = failed;
                        slot.report_failure(now_ms());
                        wanted.tried.add(slot.server);
                    }
                }
                drop(slot);
                if wanted.tried.count() >= upstream.shared.config.tries_max {
                    return Err(error);
                }
                chosen = upstream.choose_in_turn(&wanted, now_ms());
            }
        }
    }

    async fn wait_for_slot(self: &Rc<Self>, wanted: &Wanted, now_ms: impl Fn() -> u64) -> Result<Slot, AcquireError> {
        let place = QueuePlace::join(&self.shared, wanted.client).ok_or(AcquireError::QueueFull)?;
        let slot = poll_fn(|task| {
            if !place.is_called(task.waker()) {
                return Poll::Pending;
            }
            match self.choose(wanted, now_ms()) {
                Ok(slot) => Poll::Ready(Ok(slot)),
                Err(Refused::NoServer) => Poll::Ready(Err(AcquireError::NoServer)),
                Err(Refused::Busy) => {
                    // What is free may be where this request has failed.
                    if wanted.tried.count() > 0 {
                        place.call_next();
                    }
                    Poll::Pending
                }
            }
        });
        timeout(self.shared.config.queue_timeout, slot).await.unwrap_or(Err(AcquireError::QueueTimeout))
    }

    /// A connection for a slot: a kept one, which there may be after waiting, or a new one.
    async fn open(&self, slot: &Slot, wanted: &Wanted, now_ms: u64) -> Result<(Connection, bool), AcquireError> {
        if !wanted.tried.wants_new()
            && let Some(connection) = self.take_kept(slot.server, now_ms)
        {
            return Ok((connection, true));
        }
        let config = &self.shared.config;
        let preamble = proxy_preamble(config.proxy_protocol, wanted.endpoints);
        let stream = connect(self.shared.server(slot.server), config.connect_timeout, &preamble).await?;
        Ok((Connection { stream, opened_ms: now_ms, requests: 1 }, false))
    }

    fn take_kept(&self, server: u16, now_ms: u64) -> Option<Connection> {
        let mut connection = self.pools.borrow_mut()[usize::from(server)].take(&self.pool_limits, now_ms)?;
        connection.requests = connection.requests.saturating_add(1);
        Some(connection)
    }

    /// Keeps a connection for another request.
    pub(super) fn keep(self: &Rc<Self>, server: u16, connection: Connection, now_ms: u64) {
        self.pools.borrow_mut()[usize::from(server)].put(connection, &self.pool_limits, now_ms);
        if !self.is_swept.replace(true) {
            tokio::task::spawn_local(sweep_regularly(Rc::downgrade(self)));
        }
    }

    /// Closes the kept connections to a server.
    pub(super) fn forget_kept(&self, server: u16) {
        self.pools.borrow_mut()[usize::from(server)].clear();
    }

    /// As [`choose`](Self::choose), but not before others that wait.
    fn choose_in_turn(self: &Rc<Self>, wanted: &Wanted, now_ms: u64) -> Result<Slot, Refused> {
        if !self.shared.queue.is_empty() {
            return Err(Refused::Busy);
        }
        self.choose(wanted, now_ms)
    }

    /// Chooses a server and takes a slot there: from those that are fit, else from the backups that are, else, as a last
    /// resort, from all that have not failed this very request.
    fn choose(self: &Rc<Self>, wanted: &Wanted, now_ms: u64) -> Result<Slot, Refused> {
        let mut busy = false;
        for is_backup in [false, true] {
            let fit = |server: u16| {
                let of = self.shared.server(server);
                if of.is_backup != is_backup { Standing::Out } else { of.standing(now_ms) }
            };
            match self.choose_from(wanted, now_ms, fit) {
                Err(Refused::NoServer) => {}
                Err(Refused::Busy) => busy = true,
                chosen => return chosen,
            }
            // Backups are for servers that are down, not for busy ones.
            if busy {
                return Err(Refused::Busy);
            }
        }
        if !self.shared.config.last_resort {
            return Err(Refused::NoServer);
        }
        self.choose_from(wanted, now_ms, |_| Standing::Fit(FULL_SHARE))
    }

    fn choose_from(
        self: &Rc<Self>,
        wanted: &Wanted,
        now_ms: u64,
        standing: impl Fn(u16) -> Standing,
    ) -> Result<Slot, Refused> {
        let mut candidates = self.candidates.borrow_mut();
        candidates.clear();
        let mut is_busy = false;
        let slot = |server, is_trial| Slot { upstream: Rc::clone(self), server, is_trial };
        for server in (0..self.shared.servers.len() as u16).filter(|server| !wanted.tried.contains(*server)) {
            let standing = standing(server);
            if standing == Standing::Out {
                continue;
            }
            let of = self.shared.server(server);
            let in_use = of.in_use();
            let most = self.shared.config.connections_max;
            if most > 0 && in_use >= most {
                is_busy = true;
                continue;
            }
            match standing {
                // The first request after the time that it was passed over finds out.
                Standing::Trial => {
                    if of.with_health(now_ms, |health| health.begin_trial(now_ms)) {
                        if self.shared.take_slot(server) {
                            return Ok(slot(server, true));
                        }
                        of.with_health(now_ms, super::health::Health::abandon_trial);
                    }
                }
                Standing::Fit(share) => {
                    let weight = of.weight.saturating_mul(share).max(1);
                    candidates.push(Candidate { server, weight, in_use, hash: of.hash });
                }
                Standing::Out => {}
            }
        }
        loop {
            let Some(server) = self.balancer.borrow_mut().choose(&candidates, wanted.key) else {
                return Err(if is_busy { Refused::Busy } else { Refused::NoServer });
            };
            if self.shared.take_slot(server) {
                return Ok(slot(server, false));
            }
            // Another worker was faster.
            is_busy = true;
            candidates.retain(|candidate| candidate.server != server);
        }
    }

    /// Closes kept connections that are no longer of use; says whether any is left.
    pub(super) fn sweep(&self, now_ms: u64) -> bool {
        let mut pools = self.pools.borrow_mut();
        pools.iter_mut().for_each(|pool| pool.sweep(&self.pool_limits, now_ms));
        pools.iter().any(|pool| pool.len() > 0)
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
    /// The connection, when it is there.
    pub fn poll_acquire(&mut self, task: &mut Context<'_>) -> Poll<Result<Lease, AcquireError>> {
        match self {
            Self::Ready(lease) => match lease.take() {
                Some(lease) => Poll::Ready(Ok(lease)),
                // Polled again after it was ready, as no caller should.
                None => Poll::Pending,
            },
            Self::Waiting(future) => future.as_mut().poll(task),
        }
    }
}

impl Future for Acquire {
    type Output = Result<Lease, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_acquire(task)
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept: Vec<_> = self.pools.borrow().iter().map(Pool::len).collect();
        f.debug_struct("Upstream").field("shared", &self.shared).field("kept", &kept).finish()
    }
}
