//! Servers that a source names, beside those of the configuration.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout;

use super::shared::SharedUpstream;
use crate::config::{UpstreamConfig, UpstreamServer};

/// State of an upstream's source.
#[derive(Debug, Default)]
pub(super) struct Discovered {
    state: Mutex<DiscoveredState>,
    /// Notified when the source was asked for the first time.
    asked: Notify,
}

#[derive(Clone, Debug, Default)]
struct DiscoveredState {
    /// Servers that the source named last, in order, each once.
    servers: Vec<UpstreamServer>,
    /// Further servers that it named, above the limit.
    ignored: u64,
    is_asked: bool,
    answered_at: Option<Instant>,
    /// Reason why the latest question failed.
    error: Option<String>,
    failures: u64,
    changes: u64,
}

/// State of an upstream's source, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryState {
    /// Source in the configuration.
    pub source: String,
    /// Servers that it named last.
    pub servers: u64,
    /// Further servers that it named, which are not used.
    pub ignored: u64,
    /// Time since its latest response.
    pub age: Option<Duration>,
    /// Reason why the latest question failed.
    pub error: Option<String>,
    /// Questions that failed.
    pub failures: u64,
    /// Responses that changed the servers.
    pub changes: u64,
}

impl Discovered {
    /// State that continues another.
    pub(super) fn reuse(before: &Self) -> Self {
        Self { state: Mutex::new(before.lock().clone()), asked: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, DiscoveredState> {
        // No update is left half done by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Servers of a configuration with those of its source.
pub(super) fn all_servers(config: &UpstreamConfig, discovered: Option<&Discovered>) -> Vec<UpstreamServer> {
    let found = discovered.map(|discovered| discovered.lock().servers.clone()).unwrap_or_default();
    config.servers.iter().cloned().chain(found).collect()
}

impl SharedUpstream {
    /// Uses these servers of the source beside those of the configuration, and returns true if this is a change. Servers
    /// above the limit are ignored.
    pub fn set_discovered(&self, mut found: Vec<UpstreamServer>) -> bool {
        let Some(discovered) = &self.discovered else { return false };
        // Sources name servers in any order, and some more than once.
        found.sort_by_cached_key(|server| (server.backup, server.address.to_string()));
        let mut known: HashSet<String> = self.config.servers.iter().map(|server| server.address.to_string()).collect();
        found.retain(|server| known.insert(server.address.to_string()));
        let max = UpstreamConfig::SERVERS_MAX.saturating_sub(self.config.servers.len());
        let ignored = found.len().saturating_sub(max) as u64;
        found.truncate(max);
        let mut state = discovered.lock();
        let is_first = !std::mem::replace(&mut state.is_asked, true);
        state.answered_at = Some(Instant::now());
        state.error = None;
        state.ignored = ignored;
        let is_change = state.servers != found;
        if is_change {
            state.servers = found;
            state.changes += 1;
        }
        drop(state);
        if is_change {
            // The TLS settings were loaded, because the protocol of the source is known.
            let _ = self.set_servers(&all_servers(&self.config, Some(discovered)));
        }
        if is_first {
            discovered.asked.notify_waiters();
        }
        is_change
    }

    /// Uses servers that the source has named before the process started, until it responds. Returns true if there are any.
    pub fn restore_discovered(&self, mut found: Vec<UpstreamServer>) -> bool {
        let Some(discovered) = &self.discovered else { return false };
        found.truncate(UpstreamConfig::SERVERS_MAX.saturating_sub(self.config.servers.len()));
        let mut state = discovered.lock();
        if state.answered_at.is_some() || found.is_empty() {
            return false;
        }
        state.servers = found;
        drop(state);
        let _ = self.set_servers(&all_servers(&self.config, Some(discovered)));
        // Requests may have come first.
        discovered.asked.notify_waiters();
        true
    }

    /// Servers that the source named last.
    pub fn discovered_servers(&self) -> Vec<UpstreamServer> {
        self.discovered.as_ref().map(|discovered| discovered.lock().servers.clone()).unwrap_or_default()
    }

    /// Notes that a question to the source failed. The last servers stay. Returns true if the one before succeeded.
    pub fn note_discovery_failure(&self, error: &str) -> bool {
        let Some(discovered) = &self.discovered else { return false };
        let mut state = discovered.lock();
        let is_new = state.error.replace(error.to_owned()).is_none();
        state.failures += 1;
        if !std::mem::replace(&mut state.is_asked, true) {
            discovered.asked.notify_waiters();
        }
        is_new
    }

    /// State of the source, if the upstream has one.
    pub fn discovery_state(&self) -> Option<DiscoveryState> {
        let source = self.config.discovery.as_ref()?.source.to_string();
        let state = self.discovered.as_ref()?.lock();
        Some(DiscoveryState {
            source,
            servers: state.servers.len() as u64,
            ignored: state.ignored,
            age: state.answered_at.map(|at| at.elapsed()),
            error: state.error.clone(),
            failures: state.failures,
            changes: state.changes,
        })
    }

    /// Waits until the source was asked for the first time, at most `connect-timeout`. Returns false if it was asked before.
    pub(super) async fn await_discovery(&self) -> bool {
        let Some(discovered) = &self.discovered else { return false };
        let mut asked = pin!(discovered.asked.notified());
        // Registered before the check, so that no notification is lost in between.
        asked.as_mut().enable();
        if discovered.lock().is_asked {
            return false;
        }
        // After the limit, the request fails as it does without a server.
        let _ = timeout(self.config.connect_timeout, asked).await;
        true
    }
}
