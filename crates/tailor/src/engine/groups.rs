//! Counts of groups of requests: phases of a load profile, steps and runs of scenarios.

use hdrhistogram::Histogram;

use super::clock::Nanos;
use super::recorder::latency_histogram;

/// Counts of a group of requests.
#[derive(Clone, Debug)]
pub(crate) struct GroupRecord {
    /// Responses that passed all checks.
    pub served: u64,
    /// Failed requests.
    pub failed: u64,
    /// Served responses within the deadline, if there is one.
    pub in_time: u64,
    /// Due time of the last request that failed or missed the deadline, since the start of counting.
    pub late_until: Option<Nanos>,
    /// Latency of served responses. It takes its full size with the first one, because a scenario may have thousands of
    /// steps.
    pub latency: Histogram<u64>,
}

impl Default for GroupRecord {
    fn default() -> Self {
        Self { served: 0, failed: 0, in_time: 0, late_until: None, latency: empty_histogram() }
    }
}

/// Histogram without values, which takes little memory.
fn empty_histogram() -> Histogram<u64> {
    // The bounds are constants within what the crate allows.
    Histogram::new_with_bounds(1, 2, 1).expect("valid bounds")
}

impl GroupRecord {
    /// Counts a served response. `at` is the due time since the start of counting.
    pub(crate) fn serve(&mut self, latency: Nanos, is_in_time: bool, at: Nanos) {
        if self.latency.is_empty() {
            self.latency = latency_histogram();
        }
        self.served += 1;
        self.latency.saturating_record(latency);
        if is_in_time {
            self.in_time += 1;
        } else {
            self.late_until = self.late_until.max(Some(at));
        }
    }

    /// Counts a failed request.
    pub(crate) fn fail(&mut self, at: Nanos) {
        self.failed += 1;
        self.late_until = self.late_until.max(Some(at));
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.served += other.served;
        self.failed += other.failed;
        self.in_time += other.in_time;
        self.late_until = self.late_until.max(other.late_until);
        if self.latency.is_empty() {
            self.latency = other.latency.clone();
        } else if !other.latency.is_empty() {
            self.latency.add(&other.latency).expect("the same bounds");
        }
    }
}

/// Adds the groups of a thread to those of others.
pub(crate) fn merge_groups(groups: &mut Vec<GroupRecord>, more: &[GroupRecord]) {
    groups.resize_with(groups.len().max(more.len()), GroupRecord::default);
    for (group, more) in groups.iter_mut().zip(more) {
        group.merge(more);
    }
}
