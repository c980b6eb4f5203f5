//! The servers of an upstream, which an operator or a discovery may replace while requests are in progress.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::server::SharedServer;
use crate::config::{UpstreamServer, UpstreamServerAddress};

/// Servers of an upstream at one time.
#[derive(Default)]
pub(super) struct ServerSet {
    servers: Box<[ServerInSet]>,
}

/// A server and its part in a set.
pub(super) struct ServerInSet {
    pub(super) shared: Arc<SharedServer>,
    pub(super) weight: u32,
    pub(super) is_backup: bool,
}

/// The current [`ServerSet`]. Workers compare its version with that of their own list before each choice.
pub(super) struct LiveServers {
    version: AtomicU64,
    count: AtomicUsize,
    state: Mutex<LiveState>,
    /// Notified after each replacement.
    changed: Notify,
}

struct LiveState {
    set: Arc<ServerSet>,
    /// Servers that were removed and may still have requests in progress.
    removed: Vec<Weak<SharedServer>>,
}

impl ServerSet {
    /// Makes a set of the configured servers. `server` creates or finds the state of each.
    pub(super) fn new(
        servers: &[UpstreamServer],
        server: impl Fn(&UpstreamServerAddress) -> Arc<SharedServer>,
    ) -> Self {
        let servers = servers.iter().map(|configured| ServerInSet {
            shared: server(&configured.address),
            weight: configured.weight,
            is_backup: configured.backup,
        });
        Self { servers: servers.collect() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ServerInSet> {
        self.servers.iter()
    }

    /// Server with this name.
    pub(super) fn find(&self, name: &str) -> Option<&ServerInSet> {
        self.iter().find(|server| server.shared.name == name)
    }

    fn contains(&self, shared: &Arc<SharedServer>) -> bool {
        self.iter().any(|server| Arc::ptr_eq(&server.shared, shared))
    }
}

impl LiveServers {
    pub(super) fn new(set: ServerSet) -> Self {
        Self {
            version: AtomicU64::new(0),
            count: AtomicUsize::new(set.servers.len()),
            state: Mutex::new(LiveState { set: Arc::new(set), removed: Vec::new() }),
            changed: Notify::new(),
        }
    }

    /// Servers that replace others, which another upstream had.
    pub(super) fn replaced(set: Arc<ServerSet>) -> Self {
        Self {
            version: AtomicU64::new(1),
            count: AtomicUsize::new(set.servers.len()),
            state: Mutex::new(LiveState { set, removed: Vec::new() }),
            changed: Notify::new(),
        }
    }

    /// Number of replacements so far.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Number of servers.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Current set.
    pub(super) fn get(&self) -> Arc<ServerSet> {
        Arc::clone(&self.lock().set)
    }

    /// Current set and its version.
    pub(super) fn get_with_version(&self) -> (Arc<ServerSet>, u64) {
        let state = self.lock();
        (Arc::clone(&state.set), self.version())
    }

    /// Number of removed servers that are remembered, with those that no request uses any more.
    #[cfg(test)]
    pub(super) fn removed_count(&self) -> usize {
        self.lock().removed.len()
    }

    /// Waits for the next replacement, if it is enabled before.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Replaces the set by that which `make` builds from it. `make` also gets a search for removed servers, by name.
    pub(super) fn replace(
        &self,
        make: impl FnOnce(&ServerSet, &dyn Fn(&str) -> Option<Arc<SharedServer>>) -> ServerSet,
    ) {
        let mut state = self.lock();
        let removed = |name: &str| state.removed.iter().filter_map(Weak::upgrade).find(|server| server.name == name);
        let set = Arc::new(make(&state.set, &removed));
        let before = std::mem::replace(&mut state.set, Arc::clone(&set));
        state.removed.retain(|server| server.upgrade().is_some_and(|server| !set.contains(&server)));
        let gone = before.iter().filter(|server| !set.contains(&server.shared));
        state.removed.extend(gone.map(|server| Arc::downgrade(&server.shared)));
        self.count.store(set.servers.len(), Ordering::Relaxed);
        // Within the lock, so that each version belongs to one set.
        self.version.fetch_add(1, Ordering::Release);
        drop(state);
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, LiveState> {
        // No update is left half done by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
