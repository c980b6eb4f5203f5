//! Time limits of exchanges and their effects.

use std::time::Duration;

use super::stream_exchange::ExchangeWork;
use super::{ExchangeTurn, HttpStreams, StreamExchanges, StreamFault, StreamKey};
use crate::connection::ConnectionStage;
use crate::connection::arrival::REQUEST_TIMEOUT;
use crate::connection::transfer_rate::TransferRateLimit;
use crate::metrics::Limit;

/// Next wait of a connection's exchanges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangesWait {
    /// Stage of the connection, as far as its exchanges determine it.
    pub stage: ConnectionStage,
    /// Time by which [`StreamExchanges::check_time`] must be called.
    pub deadline_ms: Option<u64>,
    /// Bytes that the exchanges hold for the client, without the heads of requests.
    pub held_bytes: usize,
}

impl<Id: StreamKey> StreamExchanges<Id> {
    /// Ends exchanges that took too long.
    pub(crate) fn check_time<S: HttpStreams<Id = Id>>(&mut self, streams: &mut S, turn: &mut ExchangeTurn<'_>) {
        let body_timeout_ms = millis(turn.context.generation().limits.body_timeout);
        let (now_ms, rate_limit) = (turn.now.monotonic_ms, turn.context.rate_limit());
        let is_past = |deadline_ms: Option<u64>| deadline_ms.is_some_and(|deadline_ms| now_ms >= deadline_ms);
        for index in (0..self.len()).rev() {
            let exchange = self.at(index);
            exchange.note_wait(streams, now_ms, &rate_limit);
            if let Some(link) = exchange.link()
                && is_past(link.deadline_ms())
            {
                link.set_late(&std::task::Context::from_waker(&exchange.waker));
                self.mark_due(index);
            }
            let exchange = self.at(index);
            let upload = exchange.upload.as_ref();
            let stands_still = upload.is_some_and(|upload| is_past(upload.deadline_ms(body_timeout_ms)));
            if stands_still || upload.is_some_and(|upload| upload.is_too_slow(now_ms, &rate_limit)) {
                turn.context.count_limit(if stands_still { Limit::BodyTimeout } else { Limit::RateMin });
                self.reject_exchange(index, REQUEST_TIMEOUT, streams, turn);
            } else if exchange.is_read_too_slowly(&rate_limit, turn) {
                let takes_nothing = is_past(exchange.wait_deadline_ms(turn));
                turn.context.count_limit(if takes_nothing { Limit::WriteTimeout } else { Limit::RateMin });
                self.reset_exchange(index, StreamFault::Overload, streams, turn);
            } else if let ExchangeWork::Tunneling(tunneling) = &exchange.work
                && is_past(Some(tunneling.deadline_ms()))
            {
                self.reset_exchange(index, StreamFault::Cancelled, streams, turn);
            }
        }
    }

    /// Determines what the exchanges wait for until the next turn, and drops what they do not need while they wait.
    pub(crate) fn await_next<S: HttpStreams<Id = Id>>(
        &mut self,
        streams: &mut S,
        turn: &mut ExchangeTurn<'_>,
    ) -> ExchangesWait {
        let generation = turn.context.generation();
        let body_timeout_ms = millis(generation.limits.body_timeout);
        let (now_ms, rate_limit) = (turn.now.monotonic_ms, TransferRateLimit::of(&generation.limits));
        let (mut stage, mut deadline_ms, mut held_bytes) = (ConnectionStage::Tunnel, None, 0);
        for index in 0..self.len() {
            let exchange = self.at(index);
            exchange.outgoing.settle(turn);
            exchange.note_wait(streams, now_ms, &rate_limit);
            if exchange.may_be_slimmed() {
                self.slim(index, turn);
            }
            let exchange = self.at(index);
            held_bytes += exchange.held_bytes(streams);
            let upload = exchange.upload.as_ref();
            let tunnel = match &exchange.work {
                ExchangeWork::Tunneling(tunneling) => Some(tunneling.deadline_ms()),
                _ => None,
            };
            let upload_ms = upload.and_then(|upload| upload.deadline_ms(body_timeout_ms));
            let wait_ms = exchange.wait_deadline_ms(turn);
            let own = match (upload_ms, wait_ms, tunnel) {
                (Some(_), ..) => ConnectionStage::Content,
                (_, Some(_), _) => ConnectionStage::Write,
                (.., Some(_)) => ConnectionStage::Tunnel,
                _ => ConnectionStage::Answer,
            };
            stage = first_stage(stage, own);
            // A client that moves a byte now and then keeps the other deadlines away.
            let upload_rate_ms = upload_ms.and_then(|_| upload?.rate_deadline_ms(&rate_limit));
            let read_rate_ms = exchange.rate_deadline_ms(&rate_limit);
            let link_ms = exchange.link().and_then(|link| link.deadline_ms());
            let all = [deadline_ms, link_ms, upload_ms, wait_ms, tunnel, upload_rate_ms, read_rate_ms];
            deadline_ms = all.into_iter().flatten().min();
        }
        ExchangesWait { stage, deadline_ms, held_bytes }
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}

/// Combines the stages of two exchanges. A connection waits for a handler if any exchange does, otherwise for its
/// client.
fn first_stage(one: ConnectionStage, other: ConnectionStage) -> ConnectionStage {
    let order = [ConnectionStage::Answer, ConnectionStage::Content, ConnectionStage::Write];
    order.into_iter().find(|stage| [one, other].contains(stage)).unwrap_or(ConnectionStage::Tunnel)
}
