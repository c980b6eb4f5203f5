//! Time limits of a connection and their effects.

use std::time::Duration;

use wire::h3::{H3Error, H3ErrorCode};

use super::{H3ConnectionState, H3Turn, H3WorkerConnection};
use crate::connection::exchange::ExpiredWait;
use crate::connection::{ConnectionStage, WakeReason};
use crate::handler::Now;
use crate::metrics::Limit;

/// Time after which a connection with an open request sends a PING, in milliseconds. Clients drop a silent connection after
/// 30 s, and do not see that a handler is at work.
const PING_INTERVAL_MS: u64 = 10_000;

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
            (Some(WakeReason::TimedOut), _) if self.is_handshake_late(turn.exchange.now) => {
                context.count_limit(Limit::TlsHandshakeTimeout);
                self.fail(H3ErrorCode::H3_NO_ERROR, "the handshake took too long", turn);
                self.state = H3ConnectionState::Evicted;
                return;
            }
            (Some(WakeReason::TimedOut), _) => {}
        }
        let (engine, mut wire) = self.streams.engine();
        engine.handle_timeout(&mut wire);
        let expired = self.clocks.take_expired(&context.generation().limits, turn.exchange.now);
        match expired {
            None => {}
            Some(ExpiredWait::Write) => {
                context.count_limit(Limit::WriteTimeout);
                return self.fail(H3ErrorCode::H3_EXCESSIVE_LOAD, "the client accepts nothing", turn);
            }
            Some(ExpiredWait::Head) => {
                context.count_limit(Limit::HeadTimeout);
                return self.fail(H3ErrorCode::H3_EXCESSIVE_LOAD, "a head took too long to arrive", turn);
            }
            Some(ExpiredWait::Idle) => return self.fail(H3ErrorCode::H3_NO_ERROR, "idle", turn),
            Some(ExpiredWait::Rest) => {
                self.streams.shrink();
                self.exchanges.shrink();
            }
        }
        if !self.exchanges.is_empty() && turn.exchange.now.monotonic_ms >= self.quiet_since_ms + PING_INTERVAL_MS {
            self.streams.transport.proto.ping();
        }
        self.exchanges.check_time(&mut self.streams, &mut turn.exchange);
    }

    /// True if the time for the handshake is over.
    fn is_handshake_late(&self, now: Now) -> bool {
        self.state == H3ConnectionState::Handshaking
            || self.early_deadline_ms().is_some_and(|deadline_ms| now.monotonic_ms >= deadline_ms)
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
        let context = turn.exchange.context;
        if turn.sent_bytes > 0 {
            self.quiet_since_ms = turn.exchange.now.monotonic_ms;
        }
        let (stage, deadline_ms) = match self.state {
            H3ConnectionState::Handshaking => {
                let timeout_ms = millis(context.generation().limits.tls_handshake_timeout);
                (ConnectionStage::Opening, Some(self.clocks.idle_since_ms() + timeout_ms))
            }
            H3ConnectionState::Open => self.await_open(turn),
            H3ConnectionState::Closing | H3ConnectionState::Evicted => {
                let is_new = context.table.borrow().stage(slot) != ConnectionStage::Linger;
                if is_new {
                    self.clocks.restart_idle(turn.exchange.now);
                }
                let linger_ms = millis(context.generation().limits.linger_timeout);
                (ConnectionStage::Linger, Some(self.clocks.idle_since_ms() + linger_ms))
            }
        };
        let table = &mut *context.table.borrow_mut();
        table.note_progress(slot, (turn.sent_bytes + turn.exchange.received_bytes) as u64);
        table.enter(slot, stage, deadline_ms, turn.exchange.waker);
    }

    fn await_open(&mut self, turn: &mut H3Turn<'_>) -> (ConnectionStage, Option<u64>) {
        let (now, context) = (turn.exchange.now, turn.exchange.context);
        self.clocks.on_partial(self.streams.has_partial_input(), false, now);
        let (is_blocked, has_exchanges) = (self.streams.has_unsent(), !self.exchanges.is_empty());
        let own = self.clocks.await_next(is_blocked, has_exchanges, &context.generation().limits, now);
        let engine_ms = self.streams.engine.next_timeout().map(millis);
        let exchanges = self.exchanges.await_next(&mut self.streams, &mut turn.exchange);
        self.exchange_bytes = exchanges.held_bytes;
        // A PING that could not be sent is tried again.
        let ping_ms = has_exchanges.then(|| (self.quiet_since_ms + PING_INTERVAL_MS).max(now.monotonic_ms + 1_000));
        let is_ending = self.streams.engine.is_drained() && self.streams.is_empty();
        let end_ms = is_ending.then(|| match self.leaves_by_ms() {
            leaves_by_ms if now.monotonic_ms < leaves_by_ms => leaves_by_ms,
            _ => self.acknowledged_by_ms(),
        });
        let deadline_ms =
            [own.deadline_ms, engine_ms, exchanges.deadline_ms, ping_ms, end_ms, self.early_deadline_ms()];
        let deadline_ms = deadline_ms.into_iter().flatten().min();
        (own.stage.unwrap_or(exchanges.stage), deadline_ms)
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}
