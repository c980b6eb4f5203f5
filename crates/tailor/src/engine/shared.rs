//! State that the connections of a thread share.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fastrand::Rng;
use wire::h1::ResponseHead;
use wire::http::Fields;

use super::arrivals::Arrivals;
use super::clock::{Nanos, RunClock};
use super::connect::Connector;
use super::failure::{FailureClass, FailureReason};
use super::groups::GroupRecord;
use super::plan::LoadPlan;
use super::quic::QuicClient;
use super::recorder::IntervalRecord;
use super::response::KnownHead;
use super::scenario::ThreadScenarios;
use super::workload::{Workload, WorkloadRequest};

/// Size of the buffer for reads from a socket.
const INPUT_BYTES: usize = 128 << 10;

/// Counts of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Times that the request was sent, completely or in part.
    pub sent: u64,
    /// Times that the response passed all checks.
    pub served: u64,
}

/// State that the connections of a thread share. A connection stores none of this itself.
pub(crate) struct ThreadShared {
    pub(crate) plan: Arc<LoadPlan>,
    pub(crate) clock: RunClock,
    pub(crate) epoll: OwnedFd,
    pub(crate) rng: Rng,
    pub(crate) connector: Connector,
    pub(crate) workload: Workload,
    pub(crate) requests: Arc<[WorkloadRequest]>,
    pub(crate) known_heads: Vec<KnownHead>,
    pub(crate) scratch_head: ResponseHead,
    pub(crate) http2_limits: wire::h2::H2Limits,
    pub(crate) http3_limits: wire::h3::H3Limits,
    /// QUIC of the thread, if the run uses HTTP/3.
    pub(crate) quic: Option<Box<QuicClient>>,
    /// Fields of the last HTTP/2 head.
    pub(crate) response_fields: Fields,
    pub(crate) input: Vec<u8>,
    /// Buffer for decrypted TLS records.
    pub(crate) plaintext: Vec<u8>,
    pub(crate) output: Vec<u8>,
    pub(crate) arrivals: Arrivals,
    /// Open loop: start of counting. Requests that were due before are not counted, even if they end later. In a closed
    /// loop 0, because what ends in the counted time counts.
    pub(crate) counted_from: Nanos,
    /// Requests that were claimed and are not finished.
    pub(crate) active: u64,
    /// Open loop: slots that wait for a request, the longest wait first.
    pub(crate) idle_slots: VecDeque<u32>,
    /// Open loop: last time when a request was due and no slot was free.
    pub(crate) starved_at: Nanos,
    pub(crate) timers: BinaryHeap<Reverse<(Nanos, u32)>>,
    pub(crate) record: IntervalRecord,
    /// Scenarios, if the plan has some.
    pub(crate) scenarios: Option<Box<ThreadScenarios>>,
    /// Counts by phase of the load profile; empty without one.
    pub(crate) phases: Vec<GroupRecord>,
    /// Maximum latency of a response in time.
    pub(crate) deadline: Nanos,
    /// Counts by request, if the plan wants them; otherwise empty.
    pub(crate) tallies: Vec<Tally>,
}

/// Random numbers of a thread. Threads of a run differ, and the same thread of another run with the seed does not.
fn thread_rng(seed: u32, thread: usize) -> Rng {
    Rng::with_seed(u64::from(seed) << 32 | thread as u64)
}

impl ThreadShared {
    pub(crate) fn new(plan: &Arc<LoadPlan>, clock: RunClock, epoll: OwnedFd, thread: usize, requests_max: u64) -> Self {
        let workload = plan.workload.for_thread(thread, plan.threads);
        let requests = Arc::clone(workload.requests());
        Self {
            clock,
            epoll,
            rng: thread_rng(plan.seed, thread),
            connector: Connector::new(plan),
            known_heads: requests.iter().map(|_| KnownHead::default()).collect(),
            requests,
            workload,
            scratch_head: ResponseHead::default(),
            http2_limits: super::http2::limits(plan.time_out),
            http3_limits: super::http3::limits(),
            quic: QuicClient::new(plan).map(Box::new),
            response_fields: Fields::new(),
            input: vec![0; INPUT_BYTES],
            plaintext: if plan.tls.is_some() { vec![0; INPUT_BYTES] } else { Vec::new() },
            output: Vec::with_capacity(16 << 10),
            arrivals: Arrivals::new(plan.pace.clone(), thread, plan.threads, requests_max),
            counted_from: 0,
            active: 0,
            idle_slots: VecDeque::new(),
            starved_at: 0,
            timers: BinaryHeap::new(),
            record: IntervalRecord::default(),
            scenarios: plan.scenarios.as_ref().map(|set| Box::new(ThreadScenarios::new(set, thread, plan.threads))),
            phases: vec![GroupRecord::default(); plan.profile().map_or(0, |profile| profile.phases().len())],
            deadline: plan.deadline.map_or(Nanos::MAX, super::clock::nanos),
            tallies: if plan.is_tallied { vec![Tally::default(); plan.workload.requests().len()] } else { Vec::new() },
            plan: Arc::clone(plan),
        }
    }

    /// Claims a due request.
    pub(crate) fn claim(&mut self, now: Nanos) -> Option<Nanos> {
        loop {
            let due = self.arrivals.claim(now, &mut self.rng)?;
            if self.arrivals.is_open() {
                let lag = now.saturating_sub(due);
                let is_counted = due >= self.counted_from;
                if is_counted {
                    self.record.lag.saturating_record(lag);
                    self.record.waited += u64::from(due <= self.starved_at);
                }
                if lag > super::clock::nanos(self.plan.time_out) {
                    // The request timed out before a connection was free.
                    if is_counted {
                        let reason = FailureReason::Text("no connection was free in time");
                        self.record.fail(FailureClass::TimeOut, reason);
                        self.phase_of(due, |phase, at| phase.fail(at));
                    }
                    continue;
                }
            }
            self.active += 1;
            return Some(due);
        }
    }

    /// Counts a request in flight, due at this time, as failed.
    pub(crate) fn fail(&mut self, class: FailureClass, reason: FailureReason, due: Nanos) {
        self.active -= 1;
        if due >= self.counted_from {
            self.record.fail(class, reason);
            self.phase_of(due, |phase, at| phase.fail(at));
        }
    }

    /// Counts the latency of a served response.
    pub(crate) fn serve(&mut self, due: Nanos, now: Nanos) {
        let latency = now.saturating_sub(due);
        let is_in_time = latency <= self.deadline;
        self.record.served += 1;
        self.record.in_time += u64::from(is_in_time);
        self.record.latency.saturating_record(latency);
        self.phase_of(due, |phase, at| phase.serve(latency, is_in_time, at));
    }

    /// Counts in the phase of the load profile in which a request was due, if there is a profile. `count` also gets the
    /// due time since the start of counting.
    pub(crate) fn phase_of(&mut self, due: Nanos, count: impl FnOnce(&mut GroupRecord, Nanos)) {
        if let Some(profile) = self.plan.profile() {
            let at = due.saturating_sub(self.counted_from);
            if let Some(phase) = self.phases.get_mut(profile.phase_at(at)) {
                count(phase, at);
            }
        }
    }

    /// Counts a request in flight, due at this time, as aborted on purpose.
    pub(crate) fn abort(&mut self, due: Nanos) {
        self.active -= 1;
        self.record.aborted += u64::from(due >= self.counted_from);
    }

    /// Returns an unused claim.
    pub(crate) fn give_back(&mut self, due: Nanos) {
        self.active -= 1;
        self.arrivals.give_back(due);
    }
}
