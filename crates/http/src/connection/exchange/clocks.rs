//! Times for which a connection with streams has waited for its client.

use std::time::Duration;

use crate::config::Limits;
use crate::connection::ConnectionStage;
use crate::handler::Now;

/// Time for which an idle connection keeps its memory for the next request, in milliseconds.
const REST_TIME_MS: u64 = 1_000;

/// Start times of the waits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionClocks {
    /// Time since which there has been no request; at first, that of the connection's start.
    idle_since_ms: u64,
    has_no_request: bool,
    /// True if memory has been freed since then.
    has_rested: bool,
    /// Start of an incomplete frame or head; `None` if there is none.
    partial_since_ms: Option<u64>,
    /// Time at which the transport last accepted output, or was found to accept none.
    sent_at_ms: u64,
    was_blocked: bool,
}

/// Time limit that has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpiredWait {
    /// The client has accepted no output for `write-timeout`.
    Write,
    /// A frame or head has been incomplete for `head-timeout`.
    Head,
    /// There has been no request for `idle-timeout`.
    Idle,
    /// The connection has been idle for long enough to free its memory. Reported once for each idle time.
    Rest,
}

/// Next wait of a connection for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionWait {
    /// Stage of the connection; `None` if its exchanges determine it.
    pub stage: Option<ConnectionStage>,
    /// Time by which [`ConnectionClocks::take_expired`] must be called.
    pub deadline_ms: Option<u64>,
}

impl ConnectionClocks {
    pub(crate) fn new(now: Now) -> Self {
        Self {
            idle_since_ms: now.monotonic_ms,
            has_no_request: true,
            has_rested: false,
            partial_since_ms: None,
            sent_at_ms: now.monotonic_ms,
            was_blocked: false,
        }
    }

    /// Ends the idle time when a request is received.
    pub(crate) fn on_request(&mut self) {
        self.has_no_request = false;
    }

    /// Records that the transport has accepted output.
    pub(crate) fn on_sent(&mut self, now: Now) {
        self.sent_at_ms = now.monotonic_ms;
    }

    /// Time at which the transport last accepted output, or was found to accept none.
    pub(crate) fn sent_at_ms(&self) -> u64 {
        self.sent_at_ms
    }

    /// Records if a frame or head is incomplete. `is_new` is true if it is another than before.
    pub(crate) fn on_partial(&mut self, is_partial: bool, is_new: bool, now: Now) {
        if is_new || !is_partial {
            self.partial_since_ms = None;
        }
        if is_partial {
            self.partial_since_ms.get_or_insert(now.monotonic_ms);
        }
    }

    /// Start of the connection, or of the current idle time, in milliseconds.
    pub(crate) fn idle_since_ms(&self) -> u64 {
        self.idle_since_ms
    }

    /// Begins another idle time.
    pub(crate) fn restart_idle(&mut self, now: Now) {
        self.idle_since_ms = now.monotonic_ms;
    }

    /// True if there was no request at the last wait.
    pub(crate) fn has_no_request(&self) -> bool {
        self.has_no_request
    }

    /// True if the connection awaits nothing but another request.
    fn is_idle(&self) -> bool {
        self.has_no_request && self.partial_since_ms.is_none()
    }

    /// Determines the first time limit that has expired.
    pub(crate) fn take_expired(&mut self, limits: &Limits, now: Now) -> Option<ExpiredWait> {
        let is_past = |since_ms: u64, timeout: Duration| now.monotonic_ms >= since_ms + millis(timeout);
        if self.was_blocked && is_past(self.sent_at_ms, limits.write_timeout) {
            return Some(ExpiredWait::Write);
        }
        if self.partial_since_ms.is_some_and(|since_ms| is_past(since_ms, limits.head_timeout)) {
            return Some(ExpiredWait::Head);
        }
        if !self.is_idle() {
            return None;
        }
        if is_past(self.idle_since_ms, limits.idle_timeout) {
            return Some(ExpiredWait::Idle);
        }
        (!std::mem::replace(&mut self.has_rested, true)).then_some(ExpiredWait::Rest)
    }

    /// Determines the next wait for the client. `is_blocked` is true if the transport accepts no output.
    pub(crate) fn await_next(
        &mut self,
        is_blocked: bool,
        has_exchanges: bool,
        limits: &Limits,
        now: Now,
    ) -> ConnectionWait {
        if is_blocked && !self.was_blocked {
            self.sent_at_ms = now.monotonic_ms;
        }
        self.was_blocked = is_blocked;
        let has_no_request = !has_exchanges && !is_blocked;
        if has_no_request && !self.has_no_request {
            (self.idle_since_ms, self.has_rested) = (now.monotonic_ms, false);
        }
        self.has_no_request = has_no_request;
        let stage = match (has_no_request, is_blocked) {
            (true, _) if self.partial_since_ms.is_some() => Some(ConnectionStage::Head),
            (true, _) if !self.has_rested => Some(ConnectionStage::Resting),
            (true, _) => Some(ConnectionStage::Idle),
            // A client that accepts nothing is slow, even if its exchanges wait for handlers.
            (_, true) => Some(ConnectionStage::Write),
            (_, false) => None,
        };
        let idle_ms = millis(limits.idle_timeout);
        let rest_ms = if self.has_rested { idle_ms } else { REST_TIME_MS.min(idle_ms) };
        let deadlines = [
            self.is_idle().then_some(self.idle_since_ms + rest_ms),
            is_blocked.then_some(self.sent_at_ms + millis(limits.write_timeout)),
            self.partial_since_ms.map(|since_ms| since_ms + millis(limits.head_timeout)),
        ];
        ConnectionWait { stage, deadline_ms: deadlines.into_iter().flatten().min() }
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(monotonic_ms: u64) -> Now {
        Now { monotonic_ms, unix_seconds: 0, unix_us: 0 }
    }

    fn limits() -> Limits {
        Limits {
            idle_timeout: Duration::from_secs(60),
            head_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            ..Limits::default()
        }
    }

    fn wait(stage: Option<ConnectionStage>, deadline_ms: u64) -> ConnectionWait {
        ConnectionWait { stage, deadline_ms: Some(deadline_ms) }
    }

    #[test]
    fn an_idle_connection_rests_once_and_ends() {
        let (mut clocks, limits) = (ConnectionClocks::new(at(0)), limits());
        assert_eq!(clocks.await_next(false, false, &limits, at(0)), wait(Some(ConnectionStage::Resting), 1_000));
        assert_eq!(clocks.take_expired(&limits, at(1_000)), Some(ExpiredWait::Rest));
        assert_eq!(clocks.await_next(false, false, &limits, at(1_000)), wait(Some(ConnectionStage::Idle), 60_000));
        assert_eq!(clocks.take_expired(&limits, at(59_999)), None);
        assert_eq!(clocks.take_expired(&limits, at(60_000)), Some(ExpiredWait::Idle));
    }

    #[test]
    fn a_request_begins_another_idle_time() {
        let (mut clocks, limits) = (ConnectionClocks::new(at(0)), limits());
        clocks.on_request();
        let exchanges_decide = ConnectionWait { stage: None, deadline_ms: None };
        assert_eq!(clocks.await_next(false, true, &limits, at(5_000)), exchanges_decide);
        assert_eq!(clocks.take_expired(&limits, at(70_000)), None);
        assert_eq!(clocks.await_next(false, false, &limits, at(70_000)), wait(Some(ConnectionStage::Resting), 71_000));
    }

    #[test]
    fn an_incomplete_head_is_awaited_from_its_start() {
        let (mut clocks, limits) = (ConnectionClocks::new(at(0)), limits());
        clocks.on_partial(true, false, at(100));
        clocks.on_partial(true, false, at(9_000));
        assert_eq!(clocks.await_next(false, false, &limits, at(9_000)), wait(Some(ConnectionStage::Head), 10_100));
        assert_eq!(clocks.take_expired(&limits, at(10_100)), Some(ExpiredWait::Head));
        clocks.on_partial(true, true, at(10_100));
        assert_eq!(clocks.take_expired(&limits, at(20_000)), None);
        clocks.on_partial(false, false, at(20_000));
        assert_eq!(clocks.await_next(false, true, &limits, at(20_000)).deadline_ms, None);
    }

    #[test]
    fn a_client_that_accepts_nothing_has_the_time_from_when_it_began() {
        let (mut clocks, limits) = (ConnectionClocks::new(at(0)), limits());
        clocks.on_request();
        assert_eq!(clocks.await_next(true, true, &limits, at(40_000)), wait(Some(ConnectionStage::Write), 70_000));
        assert_eq!(clocks.take_expired(&limits, at(69_999)), None);
        clocks.on_sent(at(69_999));
        assert_eq!(clocks.take_expired(&limits, at(70_000)), None);
        assert_eq!(clocks.take_expired(&limits, at(99_999)), Some(ExpiredWait::Write));
    }
}
