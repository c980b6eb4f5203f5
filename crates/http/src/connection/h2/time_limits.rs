//! Time limits of a connection and their effects.

use wire::h2::{ErrorCode, ServerEvent};

use super::{H2Connection, H2ConnectionState, H2Turn};
use crate::connection::WakeReason;
use crate::connection::exchange::ExpiredWait;
use crate::metrics::Limit;

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
        while let Some(event) = self.wire.handle_timeout(&mut turn.wire()) {
            match event {
                ServerEvent::Reset { stream, .. } => self.exchanges.on_reset(stream, &turn.exchange),
                _ => return self.on_closed(turn),
            }
        }
        let context = turn.exchange.context;
        let expired = self.clocks.take_expired(&context.generation().limits, turn.exchange.now);
        match expired {
            None => {}
            Some(ExpiredWait::Write) => {
                // The client accepts nothing, so it gets no error.
                turn.output.clear();
                self.socket.abort_on_close();
                self.state = H2ConnectionState::Finishing;
                context.count_limit(Limit::WriteTimeout);
            }
            Some(ExpiredWait::Head) => {
                context.count_limit(Limit::HeadTimeout);
                self.finish(ErrorCode::ENHANCE_YOUR_CALM, "a frame took too long to arrive", turn);
            }
            Some(ExpiredWait::Idle) => self.finish(ErrorCode::NO_ERROR, "idle", turn),
            Some(ExpiredWait::Rest) => {
                self.wire.shrink();
                self.exchanges.shrink();
            }
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

    /// Sets the deadline and stage for the next wait.
    pub(super) fn await_next(&mut self, turn: &mut H2Turn<'_>) {
        let (now, context) = (turn.exchange.now, turn.exchange.context);
        let (is_blocked, has_exchanges) = (!turn.output.is_empty(), !self.exchanges.is_empty());
        let own = self.clocks.await_next(is_blocked, has_exchanges, &context.generation().limits, now);
        let engine_ms = self.wire.next_timeout(turn.limits).map(|time| time.as_millis() as u64);
        let (mut streams, exchange_turn) = turn.streams(&mut self.wire, &self.socket);
        let exchanges = self.exchanges.await_next(&mut streams, exchange_turn);
        self.exchange_bytes = exchanges.held_bytes;
        let deadline_ms = [own.deadline_ms, engine_ms, exchanges.deadline_ms].into_iter().flatten().min();
        let slot = self.exchanges.client().slot;
        let mut table = context.table.borrow_mut();
        if !self.clocks.has_no_request() {
            table.note_progress(slot, (turn.sent_bytes + turn.exchange.received_bytes) as u64);
        }
        table.enter(slot, own.stage.unwrap_or(exchanges.stage), deadline_ms, turn.exchange.waker);
    }
}
