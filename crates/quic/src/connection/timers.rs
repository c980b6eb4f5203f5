//! Timers of a connection.

use std::time::{Duration, Instant};

use super::receive::KEEP_TIMEOUTS;
use super::{Connection, LostReason, State};

impl Connection {
    /// Time at which [`Self::handle_timeout`] must be called, unless something else happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Open => {}
            State::Closing(closing) => return Some(closing.until),
            State::Draining { until } => return Some(*until),
            State::Drained => return None,
        }
        let keys_at = self.keys.as_ref().and_then(|keys| keys.drop_at());
        // Nothing can be sent before the peer has sent more.
        let is_blocked = self.is_blocked();
        let [ack_at, pace_at] = [self.data.received.due_at(), self.pace_at].map(|at| at.filter(|_| !is_blocked));
        let timers = [self.idle_at, self.loss_timer(), ack_at, pace_at, self.path_fails_at, keys_at];
        timers.into_iter().flatten().min()
    }

    /// Handles timers that have expired. Packets may be due after it.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        match &self.state {
            State::Open => {}
            State::Closing(closing) if closing.until <= now => return self.drain(),
            State::Draining { until } if *until <= now => return self.drain(),
            State::Closing(_) | State::Draining { .. } | State::Drained => return,
        }
        if is_due(self.idle_at) {
            return self.lose(LostReason::TimedOut);
        }
        if is_due(self.loss_timer()) {
            self.on_loss_timer(now);
        }
        if is_due(self.pace_at) {
            self.pace_at = None;
        }
        if is_due(self.path_fails_at) {
            self.on_path_failed();
        }
        if let Some(keys) = &mut self.keys {
            keys.drop_previous(now);
        }
    }

    /// Time without packets after which the connection is dropped; at least several probe timeouts (RFC 9000, section
    /// 10.1).
    pub(super) fn idle_timeout(&self) -> Duration {
        self.peer.idle_timeout.max(self.probe_timeout() * KEEP_TIMEOUTS)
    }

    /// Time after which packets of before can't arrive any more.
    pub(super) fn keep_until(&self, now: Instant) -> Instant {
        now + self.probe_timeout() * KEEP_TIMEOUTS
    }
}
