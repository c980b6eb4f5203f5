//! Slots whose user follows a scenario: one request at a time, with pauses between them.

use super::{LoadConnection, LoadPhase, SentRequest};
use crate::engine::clock::Nanos;
use crate::engine::failure::{FailureClass, FailureReason};
use crate::engine::response::KeptResponse;
use crate::engine::shared::ThreadShared;

impl LoadConnection {
    /// Claims the next request: that of a due step, or a due request of a load without scenarios.
    pub(super) fn claim(&mut self, shared: &mut ThreadShared, now: Nanos) -> Option<Nanos> {
        if self.session.is_none() {
            return shared.claim(now);
        }
        if self.is_in_run() {
            if let Some(ready_at) = self.step_ready_at().filter(|&ready_at| ready_at > now) {
                self.set_timer(ready_at, shared);
                return None;
            }
            if self.session.as_ref().is_some_and(|session| session.is_at_end()) {
                self.end_run(true, shared, now);
            }
        }
        if !self.is_in_run() {
            // The claim stands for the run, and each step is active as well.
            let due = shared.claim(now)?;
            let (session, scenarios) = (self.session.as_mut()?, shared.scenarios.as_mut()?);
            session.begin(due, scenarios, &mut shared.rng);
        }
        match self.step_ready_at()? {
            ready_at if ready_at > now => {
                self.set_timer(ready_at, shared);
                None
            }
            ready_at => {
                shared.active += 1;
                Some(ready_at)
            }
        }
    }

    /// True between the start and the end of a run of a scenario.
    pub(super) fn is_in_run(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.is_running)
    }

    /// True if the user's pause is over.
    pub(super) fn is_step_due(&self, now: Nanos) -> bool {
        self.phase == LoadPhase::Open
            && self.in_flight.is_empty()
            && self.is_in_run()
            && self.step_ready_at().is_some_and(|ready_at| ready_at <= now)
    }

    fn step_ready_at(&self) -> Option<Nanos> {
        self.session.as_ref().map(|session| session.ready_at)
    }

    /// Handles the response of a step. Returns the verdict, which includes that of the scenario.
    pub(super) fn finish_step(
        &mut self,
        exchange: &SentRequest,
        kept: Option<Box<KeptResponse>>,
        verdict: Option<(FailureClass, FailureReason)>,
        shared: &mut ThreadShared,
        now: Nanos,
    ) -> Option<(FailureClass, FailureReason)> {
        let Some(session) = &mut self.session else { return verdict };
        let verdict = verdict.or_else(|| kept.and_then(|kept| session.take(&kept)));
        self.count_step(exchange, verdict.is_none(), shared, now);
        match (&verdict, &mut self.session) {
            (None, Some(session)) => {
                session.advance(now, &mut shared.rng);
                if session.is_at_end() && session.ready_at <= now {
                    self.end_run(true, shared, now);
                }
            }
            _ => self.end_run(false, shared, now),
        }
        verdict
    }

    /// Ends the run of a user whose request failed, if there is one.
    pub(super) fn fail_step(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if !self.is_in_run() {
            return;
        }
        if let Some(exchange) = self.in_flight.front().copied() {
            self.count_step(&exchange, false, shared, now);
        } else if let (Some(due), Some(session)) = (self.claimed, &self.session) {
            let exchange = SentRequest { request: session.request(), due, sent: now, abort_after_bytes: u64::MAX };
            self.count_step(&exchange, false, shared, now);
        } else {
            // The connection ended in a pause, and the next request opens another.
            return;
        }
        self.end_run(false, shared, now);
    }

    fn count_step(&self, exchange: &SentRequest, is_served: bool, shared: &mut ThreadShared, now: Nanos) {
        let Some(scenarios) = shared.scenarios.as_mut().filter(|_| exchange.due >= shared.counted_from) else { return };
        let Some(step) = scenarios.record.steps.get_mut(exchange.request as usize) else { return };
        let (latency, at) = (now.saturating_sub(exchange.due), exchange.due - shared.counted_from);
        match is_served {
            true => step.serve(latency, latency <= shared.deadline, at),
            false => step.fail(at),
        }
    }

    fn end_run(&mut self, is_complete: bool, shared: &mut ThreadShared, now: Nanos) {
        let (Some(session), Some(scenarios)) = (&mut self.session, &mut shared.scenarios) else { return };
        session.is_running = false;
        shared.active -= 1;
        scenarios.open_runs -= 1;
        if session.started < shared.counted_from {
            return;
        }
        let run = &mut scenarios.record.runs[session.scenario()];
        match is_complete {
            true => run.serve(now.saturating_sub(session.started), true, session.started - shared.counted_from),
            false => run.fail(session.started - shared.counted_from),
        }
    }
}
