//! Time limits of a connection and their effects.

use wire::h2::{ErrorCode, H2ServerConnection, ServerEvent};

use super::{H2Connection, H2ConnectionState, H2Turn};
use crate::connection::{ConnectionStage, WakeReason};
use crate::handler::Now;
use crate::metrics::Limit;

/// Time for which an idle connection keeps its memory for the next request, in milliseconds.
const REST_TIME_MS: u64 = 1_000;

/// Start times of the waits of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    /// Time since which there has been no request.
    idle_since_ms: u64,
    has_no_request: bool,
    /// True if memory has been freed since then.
    has_rested: bool,
    /// Start of an incomplete frame or header block; `None` if there is none.
    partial_since_ms: Option<u64>,
    /// Time at which the socket last accepted output, or was found to accept none.
    sent_at_ms: u64,
    was_blocked: bool,
}

impl Clocks {
    pub(super) fn new(now: Now) -> Self {
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
    pub(super) fn on_request(&mut self) {
        self.has_no_request = false;
    }

    /// Records input. `is_progress` is true if any of it was consumed, `has_rest` if any is left.
    pub(super) fn on_input(&mut self, is_progress: bool, wire: &H2ServerConnection, has_rest: bool, now: Now) {
        let is_block_open = wire.awaits_continuation();
        if !is_block_open && (is_progress || !has_rest) {
            self.partial_since_ms = None;
        }
        if is_block_open || has_rest {
            self.partial_since_ms.get_or_insert(now.monotonic_ms);
        }
    }

    /// True if the connection awaits nothing but another request.
    fn is_idle(&self) -> bool {
        self.has_no_request && self.partial_since_ms.is_none()
    }

    /// Records that the socket has accepted output.
    pub(super) fn on_sent(&mut self, now: Now) {
        self.sent_at_ms = now.monotonic_ms;
    }
}

impl H2Connection {
    /// Applies the time limits that have expired.
    pub(super) fn check_time(&mut self, turn: &mut H2Turn<'_>) {
        let verdict = turn.exchange.context.table.borrow_mut().take_verdict(self.exchanges.client().slot);
        match verdict {
            None => return,
            Some(WakeReason::Evicted) => return self.on_evicted(turn),
            Some(WakeReason::Shed) => return self.on_shed(turn),
            Some(WakeReason::TimedOut) => {}
        }
        // Checked first, because the client has not been waited for about output added below.
        let has_unsent = !turn.output.is_empty();
        while let Some(event) = self.wire.handle_timeout(&mut turn.wire()) {
            match event {
                ServerEvent::Reset { stream, .. } => self.exchanges.on_reset(stream, &turn.exchange),
                _ => return self.on_closed(turn),
            }
        }
        let (now_ms, context) = (turn.exchange.now.monotonic_ms, turn.exchange.context);
        let limits = &context.generation().limits;
        let is_past = |since_ms: u64, timeout: std::time::Duration| now_ms >= since_ms + timeout.as_millis() as u64;
        if has_unsent && is_past(self.clocks.sent_at_ms, limits.write_timeout) {
            // The client accepts nothing, so it gets no error.
            turn.output.clear();
            self.socket.abort_on_close();
            self.state = H2ConnectionState::Finishing;
            turn.exchange.context.count_limit(Limit::WriteTimeout);
        } else if self.clocks.partial_since_ms.is_some_and(|since_ms| is_past(since_ms, limits.head_timeout)) {
            turn.exchange.context.count_limit(Limit::HeadTimeout);
            self.finish(ErrorCode::ENHANCE_YOUR_CALM, "a frame took too long to arrive", turn);
        } else if self.clocks.is_idle() && is_past(self.clocks.idle_since_ms, limits.idle_timeout) {
            self.finish(ErrorCode::NO_ERROR, "idle", turn);
        } else if self.clocks.is_idle() && !self.clocks.has_rested {
            self.rest();
        }
        let (mut streams, exchange_turn) = turn.streams(&mut self.wire, &self.socket);
        self.exchanges.check_time(&mut streams, exchange_turn);
    }

    /// Ends the connection because its place is needed or the server stops.
    fn on_evicted(&mut self, turn: &mut H2Turn<'_>) {
        // The client has already received GOAWAY, and the requests received before still get responses.
        if turn.exchange.context.is_draining.get() {
            return;
        }
        let code = if self.exchanges.is_empty() { ErrorCode::NO_ERROR } else { ErrorCode::ENHANCE_YOUR_CALM };
        self.finish(code, "the connection was closed to make room for other clients", turn);
        // The client gets the part that the socket accepts at once.
        self.state = H2ConnectionState::Evicted;
    }

    /// Ends the connection because clients hold too much memory, and this one more than others.
    fn on_shed(&mut self, turn: &mut H2Turn<'_>) {
        let has_unsent = !turn.output.is_empty();
        self.finish(ErrorCode::ENHANCE_YOUR_CALM, "clients hold too much memory", turn);
        self.kept = Vec::new();
        if has_unsent {
            // The client accepts nothing, so it gets no error.
            turn.output.clear();
            self.socket.abort_on_close();
        }
    }

    /// Frees memory that an idle connection does not need.
    fn rest(&mut self) {
        self.clocks.has_rested = true;
        self.wire.shrink();
        self.exchanges.shrink();
    }

    /// Sets the deadline and stage for the next wait.
    pub(super) fn await_next(&mut self, turn: &mut H2Turn<'_>) {
        let (now_ms, context) = (turn.exchange.now.monotonic_ms, turn.exchange.context);
        let generation = context.generation();
        let limits = &generation.limits;
        let millis = |time: std::time::Duration| time.as_millis() as u64;
        let is_blocked = !turn.output.is_empty();
        let clocks = &mut self.clocks;
        if is_blocked && !std::mem::replace(&mut clocks.was_blocked, is_blocked) {
            clocks.sent_at_ms = now_ms;
        }
        clocks.was_blocked = is_blocked;
        let is_idle = self.exchanges.is_empty() && !is_blocked;
        if is_idle && !std::mem::replace(&mut clocks.has_no_request, true) {
            (clocks.idle_since_ms, clocks.has_rested) = (now_ms, false);
        }
        clocks.has_no_request = is_idle;
        let stage = match (is_idle, is_blocked) {
            _ if is_idle && clocks.partial_since_ms.is_some() => Some(ConnectionStage::Head),
            _ if is_idle && !clocks.has_rested => Some(ConnectionStage::Resting),
            (true, _) => Some(ConnectionStage::Idle),
            // A blocked socket means that the client is slow, even if its exchanges wait for handlers.
            (_, true) => Some(ConnectionStage::Write),
            (_, false) => None,
        };
        let rest_ms = if clocks.has_rested { millis(limits.idle_timeout) } else { REST_TIME_MS };
        let own = [
            clocks.is_idle().then_some(clocks.idle_since_ms + rest_ms.min(millis(limits.idle_timeout))),
            is_blocked.then_some(clocks.sent_at_ms + millis(limits.write_timeout)),
            clocks.partial_since_ms.map(|since_ms| since_ms + millis(limits.head_timeout)),
            self.wire.next_timeout(turn.limits).map(millis),
        ];
        let (mut streams, exchange_turn) = turn.streams(&mut self.wire, &self.socket);
        let exchanges = self.exchanges.await_next(&mut streams, exchange_turn);
        self.exchange_bytes = exchanges.held_bytes;
        let deadline_ms = own.into_iter().chain([exchanges.deadline_ms]).flatten().min();
        let mut table = turn.exchange.context.table.borrow_mut();
        if !is_idle {
            table.note_progress(self.exchanges.client().slot, (turn.sent_bytes + turn.exchange.received_bytes) as u64);
        }
        table.enter(self.exchanges.client().slot, stage.unwrap_or(exchanges.stage), deadline_ms, turn.exchange.waker);
    }
}
