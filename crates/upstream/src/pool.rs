//! A worker's kept connections to one server.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use super::stream::UpstreamStream;
use crate::config::{self, ConnectionReuse};

/// Idle time after which a reserved connection is closed, in milliseconds. Short, because only one client can use it
/// and a server may hold a process for it.
const RESERVED_IDLE_MS_MAX: u64 = 1_000;

/// Number of a client connection, unique within the worker.
pub type ClientConnectionId = NonZeroU64;

/// A connection, and the values that limits apply to.
#[derive(Debug)]
pub(super) struct PooledConnection {
    pub(super) stream: UpstreamStream,
    /// Time at which it was opened, in milliseconds of the monotonic clock.
    pub(super) opened_ms: u64,
    /// Requests sent on it.
    pub(super) requests: u32,
    /// Only client connection whose requests may still be sent on it; `None` if any may.
    pub(super) reserved_for: Option<ClientConnectionId>,
}

/// Limits of kept connections, times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLimits {
    idle_max: usize,
    idle_timeout_ms: u64,
    reserved_idle_timeout_ms: u64,
    requests_max: u32,
    age_max_ms: u64,
}

impl PoolLimits {
    pub(super) fn new(upstream: &config::UpstreamConfig) -> Self {
        let idle_timeout_ms = upstream.idle_timeout.as_millis() as u64;
        Self {
            // A connection that began with one client's address can't serve others.
            idle_max: if upstream.proxy_protocol.is_some() { 0 } else { upstream.idle_max },
            idle_timeout_ms,
            reserved_idle_timeout_ms: match upstream.reuse {
                ConnectionReuse::Never => idle_timeout_ms,
                ConnectionReuse::Safe | ConnectionReuse::Always => idle_timeout_ms.min(RESERVED_IDLE_MS_MAX),
            },
            requests_max: upstream.requests_per_connection_max,
            age_max_ms: upstream.connection_age_max.as_millis() as u64,
        }
    }

    /// Checks whether a connection that has carried `requests` may carry another.
    pub(super) fn may_be_kept(&self, requests: u32) -> bool {
        self.idle_max > 0 && (self.requests_max == 0 || requests < self.requests_max)
    }
}

/// Kept connections. The one used last is reused first, so that unneeded ones grow old and close.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Connections for any client, each with the time it was put here; the oldest first.
    idle: VecDeque<(u64, PooledConnection)>,
    /// Connections reserved for one client connection; the oldest first.
    reserved: VecDeque<(u64, PooledConnection)>,
}

impl Pool {
    /// Takes a connection that seems open: one reserved for this client connection, else one for any client.
    pub(super) fn take(
        &mut self,
        client: Option<ClientConnectionId>,
        limits: &PoolLimits,
        now_ms: u64,
    ) -> Option<PooledConnection> {
        while let Some((since_ms, connection)) = self.take_reserved(client) {
            if is_usable(since_ms, &connection, limits, now_ms) {
                return Some(connection);
            }
        }
        while let Some((since_ms, connection)) = self.idle.pop_back() {
            if is_usable(since_ms, &connection, limits, now_ms) {
                return Some(connection);
            }
        }
        None
    }

    fn take_reserved(&mut self, client: Option<ClientConnectionId>) -> Option<(u64, PooledConnection)> {
        let is_own = |(_, connection): &(u64, PooledConnection)| connection.reserved_for == client;
        let at = client.and_then(|_| self.reserved.iter().rposition(is_own))?;
        self.reserved.remove(at)
    }

    /// Keeps a connection, and drops the oldest if the pool is full. Reserved ones are dropped first: otherwise a
    /// client could displace the connections that all clients use.
    pub(super) fn put(&mut self, connection: PooledConnection, limits: &PoolLimits, now_ms: u64) {
        if !limits.may_be_kept(connection.requests) {
            return;
        }
        if self.len() >= limits.idle_max {
            let _oldest = self.reserved.pop_front().or_else(|| self.idle.pop_front());
        }
        let list = if connection.reserved_for.is_some() { &mut self.reserved } else { &mut self.idle };
        list.push_back((now_ms, connection));
    }

    /// Drops connections that have expired or closed.
    pub(super) fn sweep(&mut self, limits: &PoolLimits, now_ms: u64) {
        let is_usable =
            |(since_ms, connection): &(u64, PooledConnection)| is_usable(*since_ms, connection, limits, now_ms);
        self.idle.retain(is_usable);
        self.reserved.retain(is_usable);
    }

    pub(super) fn clear(&mut self) {
        self.idle.clear();
        self.reserved.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.idle.len() + self.reserved.len()
    }
}

fn is_usable(since_ms: u64, connection: &PooledConnection, limits: &PoolLimits, now_ms: u64) -> bool {
    let idle_timeout_ms = match connection.reserved_for {
        None => limits.idle_timeout_ms,
        Some(_) => limits.reserved_idle_timeout_ms,
    };
    now_ms.saturating_sub(since_ms) < idle_timeout_ms
        && now_ms.saturating_sub(connection.opened_ms) < limits.age_max_ms
        && connection.stream.is_quiet()
}
