//! Time limits of a connection and their effects.

use std::time::Duration;

use wire::h3::{H3Error, H3ErrorCode};

use super::{H3ConnectionState, H3Turn, H3WorkerConnection};
use crate::connection::{ConnectionStage, WakeReason};
use crate::handler::Now;
use crate::metrics::Limit;

/// Time for which an idle connection keeps its memory for the next request, in milliseconds.
const REST_TIME_MS: u64 = 1_000;

/// Start times of the waits of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct H3Clocks {
    /// Start of the handshake, or time since which there has been no request.
    idle_since_ms: u64,
    has_no_request: bool,
    /// True if memory has been freed since then.
    has_rested: bool,
    /// Start of an incomplete head; `None` if there is none.
    partial_since_ms: Option<u64>,
    /// Time at which QUIC last accepted output, or was found to accept none.
    sent_at_ms: u64,
    was_blocked: bool,
}

impl H3Clocks {
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

    /// Records that QUIC has accepted output.
    pub(super) fn on_sent(&mut self, now: Now) {
        self.sent_at_ms = now.monotonic_ms;
    }

    /// True if the connection awaits nothing but another request.
    fn is_idle(&self) -> bool {
        self.has_no_request && self.partial_since_ms.is_none()
    }
}

impl H3WorkerConnection {
    /// Applies the time limits that have expired.
    pub(super) fn check_time(&mut self, turn: &mut H3Turn<'_>) {
        let context = turn.exchange.context;
        let verdict = context.table.borrow_mut().take_verdict(self.exchanges.client().slot);
        match (verdict, self.state) {
            (None, _) => return,
            (Some(_), H3ConnectionState::Closing | H3ConnectionState::Evicted) => {
                self.state = H3ConnectionState::Evicted;
                return;
            }
            (Some(WakeReason::Evicted), _) => return self.on_evicted(turn),
            (Some(WakeReason::Shed), _) => {
                self.fail(H3ErrorCode::H3_EXCESSIVE_LOAD, "clients hold too much memory", turn);
                self.state = H3ConnectionState::Evicted;
                return;
            }
            (Some(WakeReason::TimedOut), H3ConnectionState::Handshaking) => {
                context.count_limit(Limit::TlsHandshakeTimeout);
                self.fail(H3ErrorCode::H3_NO_ERROR, "the handshake took too long", turn);
                self.state = H3ConnectionState::Evicted;
                return;
            }
            (Some(WakeReason::TimedOut), H3ConnectionState::Open) => {}
        }
        let (engine, mut wire) = self.streams.engine();
        engine.handle_timeout(&mut wire);
        let now_ms = turn.exchange.now.monotonic_ms;
        let (write_timeout, head_timeout, idle_timeout) = {
            let limits = &context.generation().limits;
            (limits.write_timeout, limits.head_timeout, limits.idle_timeout)
        };
        let is_past = |since_ms: u64, timeout: Duration| now_ms >= since_ms + millis(timeout);
        if self.clocks.was_blocked && is_past(self.clocks.sent_at_ms, write_timeout) {
            context.count_limit(Limit::WriteTimeout);
            return self.fail(H3ErrorCode::H3_EXCESSIVE_LOAD, "the client accepts nothing", turn);
        }
        if self.clocks.partial_since_ms.is_some_and(|since_ms| is_past(since_ms, head_timeout)) {
            context.count_limit(Limit::HeadTimeout);
            return self.fail(H3ErrorCode::H3_EXCESSIVE_LOAD, "a head took too long to arrive", turn);
        }
        if self.clocks.is_idle() && is_past(self.clocks.idle_since_ms, idle_timeout) {
            return self.fail(H3ErrorCode::H3_NO_ERROR, "idle", turn);
        }
        if self.clocks.is_idle() && !self.clocks.has_rested {
            self.clocks.has_rested = true;
            self.streams.shrink();
            self.exchanges.shrink();
        }
        self.exchanges.check_time(&mut self.streams, &mut turn.exchange);
    }

    /// Ends the connection because its place is needed or the server stops.
    fn on_evicted(&mut self, turn: &mut H3Turn<'_>) {
        // The client has already received GOAWAY, and the requests received before still get responses.
        if turn.exchange.context.is_draining.get() {
            return;
        }
        let is_idle = self.exchanges.is_empty();
        let code = if is_idle { H3ErrorCode::H3_NO_ERROR } else { H3ErrorCode::H3_EXCESSIVE_LOAD };
        let reason = "the connection was closed to make room for other clients";
        self.finish(H3Error { code, reason }, turn);
        self.state = H3ConnectionState::Evicted;
    }

    /// Sets the deadline and stage for the next wait.
    pub(super) fn await_next(&mut self, turn: &mut H3Turn<'_>) {
        let slot = self.exchanges.client().slot;
        let (now_ms, context) = (turn.exchange.now.monotonic_ms, turn.exchange.context);
        let (stage, deadline_ms) = match self.state {
            H3ConnectionState::Handshaking => {
                let timeout_ms = millis(context.generation().limits.tls_handshake_timeout);
                (ConnectionStage::Opening, Some(self.clocks.idle_since_ms + timeout_ms))
            }
            H3ConnectionState::Open => self.await_open(turn),
            H3ConnectionState::Closing | H3ConnectionState::Evicted => {
                let is_new = context.table.borrow().stage(slot) != ConnectionStage::Linger;
                if is_new {
                    self.clocks.idle_since_ms = now_ms;
                }
                let linger_ms = millis(context.generation().limits.linger_timeout);
                (ConnectionStage::Linger, Some(self.clocks.idle_since_ms + linger_ms))
            }
        };
        let table = &mut *context.table.borrow_mut();
        table.note_progress(slot, (turn.sent_bytes + turn.exchange.received_bytes) as u64);
        table.enter(slot, stage, deadline_ms, turn.exchange.waker);
    }

    fn await_open(&mut self, turn: &mut H3Turn<'_>) -> (ConnectionStage, Option<u64>) {
        let now_ms = turn.exchange.now.monotonic_ms;
        let has_partial = self.streams.has_partial_input();
        let is_blocked = self.streams.has_unsent();
        let clocks = &mut self.clocks;
        clocks.partial_since_ms = has_partial.then(|| clocks.partial_since_ms.unwrap_or(now_ms));
        if is_blocked && !clocks.was_blocked {
            clocks.sent_at_ms = now_ms;
        }
        clocks.was_blocked = is_blocked;
        let is_idle = self.exchanges.is_empty() && !is_blocked;
        if is_idle && !clocks.has_no_request {
            (clocks.idle_since_ms, clocks.has_rested) = (now_ms, false);
        }
        clocks.has_no_request = is_idle;
        let stage = match (is_idle, is_blocked) {
            (true, _) if has_partial => Some(ConnectionStage::Head),
            (true, _) if !clocks.has_rested => Some(ConnectionStage::Resting),
            (true, _) => Some(ConnectionStage::Idle),
            (_, true) => Some(ConnectionStage::Write),
            (_, false) => None,
        };
        let own = {
            let limits = &turn.exchange.context.generation().limits;
            let idle_ms = millis(limits.idle_timeout);
            let rest_ms = if clocks.has_rested { idle_ms } else { REST_TIME_MS.min(idle_ms) };
            [
                clocks.is_idle().then_some(clocks.idle_since_ms + rest_ms),
                is_blocked.then_some(clocks.sent_at_ms + millis(limits.write_timeout)),
                clocks.partial_since_ms.map(|since_ms| since_ms + millis(limits.head_timeout)),
                self.streams.engine.next_timeout().map(millis),
            ]
        };
        let exchanges = self.exchanges.await_next(&mut self.streams, &mut turn.exchange);
        self.exchange_bytes = exchanges.held_bytes;
        let deadline_ms = own.into_iter().chain([exchanges.deadline_ms]).flatten().min();
        (stage.unwrap_or(exchanges.stage), deadline_ms)
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}
