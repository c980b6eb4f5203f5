//! Time limits of a connection and their effects.

use wire::h2::{ErrorCode, H2ServerConnection, ServerEvent};

use super::exchange::H2Work;
use super::{H2Connection, H2ConnectionState, H2Turn};
use crate::connection::arrival::REQUEST_TIMEOUT;
use crate::connection::transfer_rate::TransferRateLimit;
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
    pub(super) fn check_time(&mut self, turn: &mut H2Turn<'_, '_>) {
        let verdict = turn.context.table.borrow_mut().take_verdict(self.slot);
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
                ServerEvent::Reset { stream, .. } => self.on_reset(stream, turn),
                _ => return self.on_closed(turn),
            }
        }
        let (now_ms, context) = (turn.now.monotonic_ms, turn.context);
        let limits = &context.generation().limits;
        let is_past = |since_ms: u64, timeout: std::time::Duration| now_ms >= since_ms + timeout.as_millis() as u64;
        if has_unsent && is_past(self.clocks.sent_at_ms, limits.write_timeout) {
            // The client accepts nothing, so it gets no error.
            turn.output.clear();
            self.socket.abort_on_close();
            self.state = H2ConnectionState::Finishing;
            turn.context.count_limit(Limit::WriteTimeout);
        } else if self.clocks.partial_since_ms.is_some_and(|since_ms| is_past(since_ms, limits.head_timeout)) {
            turn.context.count_limit(Limit::HeadTimeout);
            self.finish(ErrorCode::ENHANCE_YOUR_CALM, "a frame took too long to arrive", turn);
        } else if self.clocks.is_idle() && is_past(self.clocks.idle_since_ms, limits.idle_timeout) {
            self.finish(ErrorCode::NO_ERROR, "idle", turn);
        } else if self.clocks.is_idle() && !self.clocks.has_rested {
            self.rest();
        }
        self.check_exchanges(turn);
    }

    /// Ends the connection because its place is needed or the server stops.
    fn on_evicted(&mut self, turn: &mut H2Turn<'_, '_>) {
        // The client has already received GOAWAY, and the requests received before still get responses.
        if turn.context.is_draining.get() {
            return;
        }
        let code = if self.exchanges.is_empty() { ErrorCode::NO_ERROR } else { ErrorCode::ENHANCE_YOUR_CALM };
        self.finish(code, "the connection was closed to make room for other clients", turn);
        // The client gets the part that the socket accepts at once.
        self.state = H2ConnectionState::Evicted;
    }

    /// Ends the connection because clients hold too much memory, and this one more than others.
    fn on_shed(&mut self, turn: &mut H2Turn<'_, '_>) {
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

    /// Ends exchanges that took too long.
    fn check_exchanges(&mut self, turn: &mut H2Turn<'_, '_>) {
        let body_timeout_ms = turn.context.generation().limits.body_timeout.as_millis() as u64;
        let (now_ms, rate_limit) = (turn.now.monotonic_ms, turn.context.rate_limit());
        let is_past = |deadline_ms: Option<u64>| deadline_ms.is_some_and(|deadline_ms| now_ms >= deadline_ms);
        for index in (0..self.exchanges.len()).rev() {
            let exchange = self.exchanges.at(index);
            exchange.note_wait(&mut self.wire, now_ms, &rate_limit);
            if let Some(link) = exchange.link()
                && is_past(link.deadline_ms())
            {
                link.set_late(&std::task::Context::from_waker(&exchange.waker));
                exchange.is_due = true;
            }
            let upload = exchange.upload.as_ref();
            let stands_still = upload.is_some_and(|upload| is_past(upload.deadline_ms(body_timeout_ms)));
            if stands_still || upload.is_some_and(|upload| upload.is_too_slow(now_ms, &rate_limit)) {
                turn.context.count_limit(if stands_still { Limit::BodyTimeout } else { Limit::RateMin });
                self.reject_exchange(index, REQUEST_TIMEOUT, turn);
            } else if exchange.is_read_too_slowly(&rate_limit, turn) {
                let takes_nothing = is_past(exchange.wait_deadline_ms(turn));
                turn.context.count_limit(if takes_nothing { Limit::WriteTimeout } else { Limit::RateMin });
                self.reset_exchange(index, ErrorCode::ENHANCE_YOUR_CALM, turn);
            } else if let H2Work::Tunneling(tunneling) = &exchange.work
                && is_past(Some(tunneling.deadline_ms()))
            {
                self.reset_exchange(index, ErrorCode::CANCEL, turn);
            }
        }
    }

    /// Sets the deadline and stage for the next wait.
    pub(super) fn await_next(&mut self, turn: &mut H2Turn<'_, '_>) {
        let (now_ms, context) = (turn.now.monotonic_ms, turn.context);
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
        let mut exchanges_stage = ConnectionStage::Tunnel;
        let rate_limit = TransferRateLimit::of(limits);
        let rest_ms = if clocks.has_rested { millis(limits.idle_timeout) } else { REST_TIME_MS };
        let own = [
            clocks.is_idle().then_some(clocks.idle_since_ms + rest_ms.min(millis(limits.idle_timeout))),
            is_blocked.then_some(clocks.sent_at_ms + millis(limits.write_timeout)),
            clocks.partial_since_ms.map(|since_ms| since_ms + millis(limits.head_timeout)),
            self.wire.next_timeout(turn.limits).map(millis),
        ];
        let mut deadline_ms = own.into_iter().flatten().min();
        self.exchange_bytes = 0;
        for index in 0..self.exchanges.len() {
            let exchange = self.exchanges.at(index);
            exchange.note_wait(&mut self.wire, now_ms, &rate_limit);
            if exchange.may_be_slimmed() {
                self.slim(index, turn);
            }
            let exchange = self.exchanges.at(index);
            self.exchange_bytes += exchange.held_bytes(&mut self.wire);
            let upload = exchange.upload.as_ref();
            let tunnel = match &exchange.work {
                H2Work::Tunneling(tunneling) => Some(tunneling.deadline_ms()),
                _ => None,
            };
            let upload_ms = upload.and_then(|upload| upload.deadline_ms(millis(limits.body_timeout)));
            let wait_ms = exchange.wait_deadline_ms(turn);
            let own = match (upload_ms, wait_ms, tunnel) {
                (Some(_), ..) => ConnectionStage::Content,
                (_, Some(_), _) => ConnectionStage::Write,
                (.., Some(_)) => ConnectionStage::Tunnel,
                _ => ConnectionStage::Answer,
            };
            exchanges_stage = first_stage(exchanges_stage, own);
            // A client that moves a byte now and then keeps the other deadlines away.
            let upload_rate_ms = upload_ms.and_then(|_| exchange.upload.as_ref()?.rate_deadline_ms(&rate_limit));
            let read_rate_ms = exchange.rate_deadline_ms(&rate_limit);
            let link_ms = exchange.link().and_then(|link| link.deadline_ms());
            let all = [deadline_ms, link_ms, upload_ms, wait_ms, tunnel, upload_rate_ms, read_rate_ms];
            deadline_ms = all.into_iter().flatten().min();
        }
        let mut table = turn.context.table.borrow_mut();
        if !is_idle {
            table.note_progress(self.slot, (turn.sent_bytes + turn.content_bytes) as u64);
        }
        table.enter(self.slot, stage.unwrap_or(exchanges_stage), deadline_ms, turn.task.waker());
    }
}

/// Combines the stages of two exchanges. A connection waits for a handler if any exchange does, otherwise for its
/// client.
fn first_stage(one: ConnectionStage, other: ConnectionStage) -> ConnectionStage {
    let order = [ConnectionStage::Answer, ConnectionStage::Content, ConnectionStage::Write];
    order.into_iter().find(|stage| [one, other].contains(stage)).unwrap_or(ConnectionStage::Tunnel)
}
