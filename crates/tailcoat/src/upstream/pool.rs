//! A worker's kept connections to one server.

use std::collections::VecDeque;

use super::stream::Stream;
use crate::config;

/// A connection, and what its limits are about.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    /// When it was opened, in milliseconds of the monotonic clock.
    pub(super) opened_ms: u64,
    /// Requests sent on it.
    pub(super) requests: u32,
}

/// The limits of kept connections, times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLimits {
    idle_max: usize,
    idle_timeout_ms: u64,
    requests_max: u32,
    age_max_ms: u64,
}

impl PoolLimits {
    pub(super) fn new(upstream: &config::Upstream) -> Self {
        Self {
            // A connection that began with a client's address is of no use to others.
            idle_max: if upstream.proxy_protocol.is_some() { 0 } else { upstream.idle_max },
            idle_timeout_ms: upstream.idle_timeout.as_millis() as u64,
            requests_max: upstream.requests_per_connection_max,
            age_max_ms: upstream.connection_age_max.as_millis() as u64,
        }
    }

    /// Whether another request may be sent on a connection that so many were sent on.
    pub(super) fn may_be_kept(&self, requests: u32) -> bool {
        self.idle_max > 0 && (self.requests_max == 0 || requests < self.requests_max)
    }
}

/// Kept connections. The one used last is used first, so that those that aren't needed grow old and go.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Each with when it was put here, the oldest first.
    idle: VecDeque<(u64, Connection)>,
}

impl Pool {
    /// Takes a connection that is open as far as can be known.
    pub(super) fn take(&mut self, limits: &PoolLimits, now_ms: u64) -> Option<Connection> {
        while let Some((since_ms, connection)) = self.idle.pop_back() {
            if is_usable(since_ms, &connection, limits, now_ms) {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection, in the place of the oldest if there are enough.
    pub(super) fn put(&mut self, connection: Connection, limits: &PoolLimits, now_ms: u64) {
        if !limits.may_be_kept(connection.requests) {
            return;
        }
        if self.idle.len() >= limits.idle_max {
            self.idle.pop_front();
        }
        self.idle.push_back((now_ms, connection));
    }

    /// Closes connections that are no longer of use.
    pub(super) fn sweep(&mut self, limits: &PoolLimits, now_ms: u64) {
        self.idle.retain(|(since_ms, connection)| is_usable(*since_ms, connection, limits, now_ms));
    }

    /// Closes all.
    pub(super) fn clear(&mut self) {
        self.idle.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.idle.len()
    }
}

fn is_usable(since_ms: u64, connection: &Connection, limits: &PoolLimits, now_ms: u64) -> bool {
    now_ms.saturating_sub(since_ms) < limits.idle_timeout_ms
        && now_ms.saturating_sub(connection.opened_ms) < limits.age_max_ms
        && connection.stream.is_quiet()
}
