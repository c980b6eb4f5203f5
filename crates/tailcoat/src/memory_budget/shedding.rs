//! Choice of the connections to close when clients hold too much: the largest holders over all workers.

use std::cmp::Reverse;
use std::sync::{MutexGuard, PoisonError};

use super::{MemoryBudget, Pressure, WorkerBudget};

/// Limit of connections per report: those that hold most. If closing them is not enough, the next round closes more.
const REPORTED_MAX: usize = 1_024;

/// Memory that each worker's connections hold, as of the worker's last report.
#[derive(Debug, Default)]
pub(super) struct Reports(Vec<Holding>);

/// Connection, and the bytes that it holds. All workers order equal ones alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Holding {
    bytes: u64,
    worker: u32,
    slot: u32,
}

/// Connections of a worker that must be closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shed {
    /// Slots of these connections in the worker's table.
    pub slots: Vec<u32>,
    /// Bytes that they hold.
    pub bytes: u64,
}

impl WorkerBudget {
    /// Reports to the other workers what this one's connections hold.
    pub fn report(&self) {
        let mut own = self.holdings();
        if own.len() > REPORTED_MAX {
            own.select_nth_unstable_by_key(REPORTED_MAX, |&(bytes, _)| Reverse(bytes));
            own.truncate(REPORTED_MAX);
        }
        let worker = self.worker();
        let mut reports = self.budget().reports();
        reports.0.retain(|holding| holding.worker != worker);
        reports.0.extend(own.into_iter().map(|(bytes, slot)| Holding { bytes, worker, slot }));
    }

    /// This worker's share of the connections that must be closed, by all workers' reports.
    pub fn shed(&self) -> Shed {
        let budget = self.budget();
        let mut reports = budget.reports();
        let mut excess_bytes = budget.excess_bytes();
        let worker = self.worker();
        reports.0.sort_unstable_by_key(|&holding| Reverse(holding));
        let mut shed = Shed::default();
        for holding in &reports.0 {
            if excess_bytes == 0 {
                break;
            }
            excess_bytes = excess_bytes.saturating_sub(holding.bytes);
            if holding.worker == worker {
                shed.slots.push(holding.slot);
                shed.bytes += holding.bytes;
            }
        }
        shed
    }

    /// True if workers must close connections.
    pub fn is_critical(&self) -> bool {
        self.budget().pressure() == Pressure::Critical
    }

    /// Withdraws this worker's report, because its connections hold nothing.
    pub(super) fn withdraw_report(&self) {
        let worker = self.worker();
        self.budget().reports().0.retain(|holding| holding.worker != worker);
    }
}

impl MemoryBudget {
    fn reports(&self) -> MutexGuard<'_, Reports> {
        // No code under the lock can panic halfway through a change.
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory_budget::Charge;

    const KIB: usize = 1 << 10;

    /// Two workers whose connections hold this many KiB each.
    fn workers(budget: &Arc<MemoryBudget>, held: [&[usize]; 2]) -> [(std::rc::Rc<WorkerBudget>, Vec<Charge>); 2] {
        let mut number = 0;
        held.map(|held| {
            let worker = WorkerBudget::new(Arc::clone(budget), number);
            number += 1;
            let charges = held.iter().enumerate();
            let charges = charges.map(|(slot, kib)| worker.holder(slot as u32).charge(kib * KIB)).collect();
            worker.report();
            (worker, charges)
        })
    }

    #[test]
    fn connections_that_hold_most_are_closed_whichever_worker_has_them() {
        let budget = Arc::new(MemoryBudget::default());
        // 1,600 KiB are held: 375 KiB more than 7/8 of 1,400 KiB.
        let both = workers(&budget, [&[100, 250, 300, 150], &[200, 100, 350, 150]]);
        budget.set_limit_bytes(1_400 * KIB as u64);
        let [(first, _), (second, _)] = &both;
        let share = |kib: usize| Shed { slots: vec![2], bytes: (kib * KIB) as u64 };
        assert_eq!((second.shed(), first.shed()), (share(350), share(300)));
    }

    #[test]
    fn of_equals_no_more_are_closed_than_must_be() {
        let budget = Arc::new(MemoryBudget::default());
        let both = workers(&budget, [&[100; 5], &[100; 5]]);
        budget.set_limit_bytes(1_000 * KIB as u64);
        // 1,000 KiB are held; 875 may be.
        let [(first, _), (second, _)] = &both;
        assert!(first.is_critical());
        assert_eq!((first.shed().slots.len(), second.shed().slots.len()), (0, 2));
    }

    #[test]
    fn nothing_is_closed_below_the_limit_s_seven_eighths() {
        let budget = Arc::new(MemoryBudget::default());
        let mut both = workers(&budget, [&[500], &[500]]);
        budget.set_limit_bytes(1_000 * KIB as u64);
        both[0].1.clear();
        assert_eq!(both[1].0.shed(), Shed::default());
        drop(both);
        assert!(budget.reports().0.is_empty(), "workers that have ended are no longer reported");
    }
}
