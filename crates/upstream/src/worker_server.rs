//! A worker's own part of a server: its kept connections.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use super::Upstream;
use super::http2::Sessions;
use super::pool::{Pool, PoolLimits, PooledConnection};
use super::server::SharedServer;
use super::server_set::{ServerInSet, ServerSet};
use super::shared::SharedUpstream;

/// A worker's own part of a server. Requests in progress keep it after the server was removed.
pub(super) struct WorkerServer {
    pub(super) shared: Arc<SharedServer>,
    pub(super) upstream: Arc<SharedUpstream>,
    pub(super) pool_limits: PoolLimits,
    owner: Weak<Upstream>,
    /// Name for logs; per worker, so that a clone is an `Rc` count and copies no string.
    pub(super) name: Rc<str>,
    /// Connections kept for one exchange at a time.
    pub(super) pool: RefCell<Pool>,
    /// HTTP/2 connections, and the settings they share.
    pub(super) sessions: RefCell<Sessions>,
    weight: Cell<u32>,
    is_backup: Cell<bool>,
    /// Value of the cookie that names it, for sticky sessions.
    pub(super) sticky_value: Option<Box<str>>,
}

/// A worker's servers of an upstream. Their order is that of the balancer.
pub(super) type WorkerServers = Rc<[Rc<WorkerServer>]>;

impl WorkerServer {
    fn new(server: &ServerInSet, upstream: &Arc<SharedUpstream>, owner: &Weak<Upstream>) -> Self {
        Self {
            shared: Arc::clone(&server.shared),
            upstream: Arc::clone(upstream),
            pool_limits: PoolLimits::new(&upstream.config),
            owner: Weak::clone(owner),
            name: server.shared.name.as_str().into(),
            pool: RefCell::default(),
            sessions: RefCell::default(),
            weight: Cell::new(server.weight),
            is_backup: Cell::new(server.is_backup),
            sticky_value: upstream.sticky.as_ref().map(|signer| signer.value(upstream.name(), &server.shared.name)),
        }
    }

    /// Keeps a connection for another request, unless a reload has replaced the upstream.
    pub(super) fn keep(&self, connection: PooledConnection, now_ms: u64) {
        if let Some(owner) = self.owner.upgrade() {
            self.pool.borrow_mut().put(connection, &self.pool_limits, now_ms);
            owner.sweep_from_now_on();
        }
    }

    /// Share of requests relative to other servers.
    pub(super) fn weight(&self) -> u32 {
        self.weight.get()
    }

    /// True if it gets requests only while no other server is up.
    pub(super) fn is_backup(&self) -> bool {
        self.is_backup.get()
    }
}

impl std::fmt::Debug for WorkerServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerServer").field("name", &self.name).field("kept", &self.pool.borrow().len()).finish()
    }
}

/// Makes a worker's list of the servers in `set`. Those that were in the list `before` keep their connections.
pub(super) fn follow(
    set: &ServerSet,
    before: &[Rc<WorkerServer>],
    upstream: &Arc<SharedUpstream>,
    owner: &Weak<Upstream>,
) -> WorkerServers {
    let servers = set.iter().map(|server| {
        let known = before.iter().find(|known| Arc::ptr_eq(&known.shared, &server.shared));
        let Some(known) = known else { return Rc::new(WorkerServer::new(server, upstream, owner)) };
        known.weight.set(server.weight);
        known.is_backup.set(server.is_backup);
        Rc::clone(known)
    });
    servers.collect()
}
