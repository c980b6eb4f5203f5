//! Choice of the connections to close when clients hold too much.
//!
//! Workers close the largest connection of the client that holds most, over all workers, then look again. So a client
//! with many small connections loses those, and a client below others keeps its own. Each worker computes this from the
//! same reports, and closes its part.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use super::client::{HolderClient, Prefix};
use super::{Pressure, WorkerBudget};

/// Limit of connections per report: the largest of the clients that hold most. If closing them is not enough, the next
/// round closes more.
const REPORTED_MAX: usize = 1_024;

/// Divisor of a network's bytes, for comparing them with the bytes of one client. The same as for places
/// (`connection/eviction.rs`).
const CLIENTS_A_NETWORK: u64 = 4;

/// Time for which a report holds. While a worker waits for those of others, it repeats its own.
const REPORT_TIME: Duration = Duration::from_millis(10);

/// Time for all workers to report what their connections hold. A worker without time is not waited for any longer, and
/// none is while the count is far above the limit. The others then use its last report. What its clients hold beyond
/// that costs the clients of others nothing, and grows no further before that worker reports.
const WAIT_TIME: Duration = Duration::from_millis(100);

/// Time between two rounds, for connections to close and release their memory.
const ROUND_TIME: Duration = Duration::from_millis(10);

/// Divisor of the limit. While the count is far above the limit, a worker whose connections hold this part more
/// than before begins the next round at once.
const URGENT_PART: u64 = 8;

/// Time in which a connection that was chosen has closed. After it, the connection is counted like any other.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// Running workers, and the memory that their connections hold, as of each worker's last report.
#[derive(Debug, Default)]
pub(super) struct Reports(Vec<Report>);

#[derive(Debug)]
struct Report {
    worker: u32,
    /// `None` before the first report.
    reported_at: Option<Instant>,
    holdings: Vec<Holding>,
    /// Bytes of all its connections, also of those that `holdings` leaves out.
    held_bytes: u64,
    /// Part of `held_bytes` in connections that were chosen and are about to close.
    closing_bytes: u64,
}

/// Sum of the reports of all workers.
struct Reported {
    holdings: Vec<Holding>,
    held_bytes: u64,
    closing_bytes: u64,
}

/// Progress of a worker's part in closing connections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShedTimes {
    /// Time of this worker's first report in the current round; `None` before it.
    waiting_since: Option<Instant>,
    /// Time of its last report.
    reported_at: Option<Instant>,
    /// Time at which this worker last closed its part.
    shed_at: Option<Instant>,
    /// Least bytes that its connections have held since.
    least_bytes: u64,
}

/// Connection, and the bytes that it holds. All workers order equal ones alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holding {
    bytes: u64,
    worker: u32,
    slot: u32,
    /// `None` if many clients may share the connection. It then counts alone.
    client: Option<HolderClient>,
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
    /// Does this worker's next step while clients exceed the limit, and returns those of its connections that must be
    /// closed now. First the worker reports. Once all workers have, or have had the time, it closes its part.
    /// `client_of` returns the client of a connection, unless that is a proxy.
    ///
    /// Must be called often: a worker that is busy calls it between its connections.
    #[cold]
    pub fn shed(&self, client_of: impl Fn(u32) -> Option<HolderClient>) -> Shed {
        let (now, times) = (Instant::now(), self.times.get());
        if !self.is_critical() {
            self.times.set(ShedTimes { waiting_since: None, ..times });
            return Shed::default();
        }
        let is_urgent = self.budget().is_urgent();
        let (own_bytes, step_bytes) = (self.worker_bytes(), self.budget().limit_bytes() / URGENT_PART);
        if times.shed_at.is_some_and(|shed_at| now < shed_at + ROUND_TIME) {
            let least_bytes = times.least_bytes.min(own_bytes);
            if !is_urgent || own_bytes - least_bytes < step_bytes {
                self.times.set(ShedTimes { least_bytes, ..times });
                return Shed::default();
            }
        }
        let waiting_since = times.waiting_since.unwrap_or(now);
        let is_new = |reported_at| now < reported_at + REPORT_TIME;
        if is_urgent || times.waiting_since.is_none() || !times.reported_at.is_some_and(is_new) {
            self.report(now, &client_of);
            self.times.set(ShedTimes { waiting_since: Some(waiting_since), reported_at: Some(now), ..times });
        }
        let is_complete = self.budget().reports().are_complete(now);
        if !is_complete && !is_urgent && now < waiting_since + WAIT_TIME {
            return Shed::default();
        }
        self.times.set(ShedTimes { waiting_since: None, shed_at: Some(now), least_bytes: own_bytes, ..times });
        let Reported { holdings, held_bytes, closing_bytes } = self.budget().reports().all();
        // Bytes that no report shows are in connections that cannot be compared with others.
        let excess_bytes = self.budget().excess_bytes(held_bytes.min(self.budget().held_bytes()));
        let shed = choose(holdings, excess_bytes.saturating_sub(closing_bytes), self.worker());
        self.mark_closing(&shed.slots, now);
        shed
    }

    /// True if workers must close connections.
    #[inline]
    pub fn is_critical(&self) -> bool {
        self.budget().pressure() == Pressure::Critical
    }

    /// Reports to the other workers what this one's connections hold.
    fn report(&self, now: Instant, client_of: impl Fn(u32) -> Option<HolderClient>) {
        let worker = self.worker();
        let (mut own, mut closing_bytes) = (Vec::new(), 0);
        self.each_holder(|slot, holder| {
            let bytes = holder.held_bytes();
            if holder.closing_since().is_some_and(|since| now < since + CLOSE_TIME_MAX) {
                closing_bytes += bytes;
            } else {
                own.push(Holding { bytes, worker, slot, client: client_of(slot).or_else(|| holder.proxied_client()) });
            }
        });
        if own.len() > REPORTED_MAX {
            let held = Held::of(&own);
            own.select_nth_unstable_by_key(REPORTED_MAX, |holding| Reverse((held.rank(holding), holding.bytes)));
            own.truncate(REPORTED_MAX);
        }
        let mut reports = self.budget().reports();
        if let Some(report) = reports.0.iter_mut().find(|report| report.worker == worker) {
            let held_bytes = self.worker_bytes();
            *report = Report { worker, reported_at: Some(now), holdings: own, held_bytes, closing_bytes };
        }
    }
}

impl Reports {
    pub(super) fn add_worker(&mut self, worker: u32) {
        self.0.push(Report { worker, reported_at: None, holdings: Vec::new(), held_bytes: 0, closing_bytes: 0 });
    }

    pub(super) fn remove_worker(&mut self, worker: u32) {
        self.0.retain(|report| report.worker != worker);
    }

    /// True if all workers have reported lately.
    fn are_complete(&self, now: Instant) -> bool {
        let is_new = |reported_at: Instant| now.saturating_duration_since(reported_at) < REPORT_TIME;
        self.0.iter().all(|report| report.reported_at.is_some_and(is_new))
    }

    fn all(&self) -> Reported {
        let sum = |bytes: fn(&Report) -> u64| self.0.iter().map(bytes).sum();
        Reported {
            holdings: self.0.iter().flat_map(|report| &report.holdings).copied().collect(),
            held_bytes: sum(|report| report.held_bytes),
            closing_bytes: sum(|report| report.closing_bytes),
        }
    }
}

/// Bytes that each client and network holds.
struct Held {
    clients: HashMap<Prefix, u64>,
    networks: HashMap<Prefix, u64>,
}

impl Held {
    fn of(holdings: &[Holding]) -> Self {
        let mut held = Self { clients: HashMap::new(), networks: HashMap::new() };
        for Holding { client, bytes, .. } in holdings {
            if let Some(HolderClient { client, network }) = client {
                *held.clients.entry(*client).or_default() += bytes;
                *held.networks.entry(*network).or_default() += bytes;
            }
        }
        held
    }

    /// Bytes that count for a connection: its client's, or a part of its network's, whichever are more. Then the
    /// client's, to find the one that holds most in a network.
    fn rank(&self, holding: &Holding) -> (u64, u64) {
        let Some(HolderClient { client, network }) = holding.client else { return (holding.bytes, holding.bytes) };
        let of = |counts: &HashMap<Prefix, u64>, key| counts.get(&key).copied().unwrap_or(0);
        let client_bytes = of(&self.clients, client);
        (client_bytes.max(of(&self.networks, network) / CLIENTS_A_NETWORK), client_bytes)
    }

    fn remove(&mut self, holding: &Holding) {
        let Some(HolderClient { client, network }) = holding.client else { return };
        for (counts, key) in [(&mut self.clients, client), (&mut self.networks, network)] {
            if let Some(bytes) = counts.get_mut(&key) {
                *bytes -= holding.bytes;
            }
        }
    }
}

/// Chooses connections that hold `excess_bytes` together, and returns those of this worker.
fn choose(mut holdings: Vec<Holding>, mut excess_bytes: u64, worker: u32) -> Shed {
    let mut held = Held::of(&holdings);
    // Each client's connections, the largest last. A connection without a client stands alone.
    holdings.sort_unstable_by_key(|holding| (holding.bytes, holding.worker, holding.slot));
    let mut groups: Vec<Vec<Holding>> = Vec::new();
    let mut group_of = HashMap::new();
    for holding in holdings {
        let group = match holding.client {
            Some(client) => *group_of.entry(client.client).or_insert(groups.len()),
            None => groups.len(),
        };
        if group == groups.len() {
            groups.push(Vec::new());
        }
        groups[group].push(holding);
    }
    let entry = |held: &Held, group: usize, largest: &Holding| {
        (held.rank(largest), largest.bytes, largest.worker, largest.slot, group)
    };
    let all = groups.iter().enumerate();
    let mut queue: BinaryHeap<_> =
        all.filter_map(|(group, connections)| Some(entry(&held, group, connections.last()?))).collect();
    let mut shed = Shed::default();
    while excess_bytes > 0 {
        let Some(first) = queue.pop() else { break };
        let group = first.4;
        let Some(largest) = groups[group].last().copied() else { continue };
        let current = entry(&held, group, &largest);
        if current < first {
            // Another client of its network has released some. Ranks only fall, so the order stays right.
            queue.push(current);
            continue;
        }
        groups[group].pop();
        held.remove(&largest);
        excess_bytes = excess_bytes.saturating_sub(largest.bytes);
        if largest.worker == worker {
            shed.slots.push(largest.slot);
            shed.bytes += largest.bytes;
        }
        if let Some(next) = groups[group].last() {
            queue.push(entry(&held, group, next));
        }
    }
    shed
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;
    use crate::memory_budget::{Charge, MemoryBudget};

    const KIB: usize = 1 << 10;

    /// Two workers whose connections hold this many KiB each.
    fn workers(budget: &Arc<MemoryBudget>, held: [&[usize]; 2]) -> [(Rc<WorkerBudget>, Vec<Charge>); 2] {
        let mut number = 0;
        held.map(|held| {
            let worker = WorkerBudget::new(Arc::clone(budget), number);
            number += 1;
            let charges = held.iter().enumerate();
            let charges = charges.map(|(slot, kib)| worker.holder(slot as u32).charge(kib * KIB)).collect();
            worker.trim();
            (worker, charges)
        })
    }

    /// Both workers' parts, with connections that hold this many KiB each.
    fn shed(limit_kib: usize, held: [&[usize]; 2], client_of: impl Fn(u32, u32) -> Option<HolderClient>) -> [Shed; 2] {
        shed_by(client_of, || {
            let budget = Arc::new(MemoryBudget::default());
            let both = workers(&budget, held);
            budget.set_limit_bytes((limit_kib * KIB) as u64);
            both
        })
    }

    /// Both workers' parts: the first one reports, and waits for the second. On a busy machine, a report may be too old
    /// when it is used; then it begins again with new workers.
    fn shed_by(
        client_of: impl Fn(u32, u32) -> Option<HolderClient>,
        make: impl Fn() -> [(Rc<WorkerBudget>, Vec<Charge>); 2],
    ) -> [Shed; 2] {
        loop {
            let [(first, _held), (second, _also_held)] = make();
            assert!(first.is_critical());
            let began = Instant::now();
            assert_eq!(first.shed(|slot| client_of(0, slot)), Shed::default(), "the other worker has not reported");
            let of_second = second.shed(|slot| client_of(1, slot));
            let both = [first.shed(|slot| client_of(0, slot)), of_second];
            if began.elapsed() < REPORT_TIME {
                return both;
            }
        }
    }

    fn client(number: u8) -> HolderClient {
        HolderClient::of([10, number, 0, 1].into())
    }

    #[test]
    fn connections_that_hold_most_are_closed_whichever_worker_has_them() {
        // 1,600 KiB are held: 375 KiB more than 7/8 of 1,400 KiB.
        let held: [&[usize]; 2] = [&[100, 250, 300, 150], &[200, 100, 350, 150]];
        let share = |kib: usize| Shed { slots: vec![2], bytes: (kib * KIB) as u64 };
        assert_eq!(shed(1_400, held, |_, _| None), [share(300), share(350)]);
    }

    #[test]
    fn of_equals_no_more_are_closed_than_must_be() {
        // 1,000 KiB are held; 875 may be.
        assert_eq!(shed(1_000, [&[100; 5], &[100; 5]], |_, _| None).map(|shed| shed.slots.len()), [0, 2]);
    }

    /// Issue 17: sorted by connection, the large connections of honest clients were closed first.
    #[test]
    fn many_small_connections_of_one_client_go_before_larger_ones_of_others() {
        // Slots 0 to 3 are other clients' uploads; the rest is one client's. 2,600 KiB are held: 413 more than 7/8 of
        // 2,500 KiB.
        let held = [vec![100; 4], vec![15; 60]].concat();
        let clients = |worker: u32, slot: u32| Some(client(if slot < 4 { (worker * 4 + slot) as u8 } else { 99 }));
        let closed = shed(2_500, [&held, &held], clients);
        assert!(closed.iter().flat_map(|shed| &shed.slots).all(|&slot| slot >= 4), "{closed:?}");
        assert_eq!(closed.iter().map(|shed| shed.slots.len()).sum::<usize>(), 28);
        // Without clients, connections count alone.
        let closed = shed(2_500, [&held, &held], |_, _| None);
        assert!(closed.iter().flat_map(|shed| &shed.slots).any(|&slot| slot < 4));
    }

    #[test]
    fn a_client_that_a_proxy_names_counts_instead_of_the_proxy() {
        let make = || {
            let budget = Arc::new(MemoryBudget::default());
            let mut both = workers(&budget, [&[], &[]]);
            for (number, (worker, charges)) in both.iter_mut().enumerate() {
                for slot in 0..64 {
                    let holder = worker.holder(slot);
                    holder.note_proxied_client(client(if slot < 4 { 4 * number as u8 + slot as u8 } else { 99 }));
                    charges.push(holder.charge(if slot < 4 { 100 } else { 15 } * KIB));
                }
                worker.trim();
            }
            budget.set_limit_bytes(2_500 * KIB as u64);
            both
        };
        let closed = shed_by(|_, _| None, make);
        assert!(closed.iter().flat_map(|shed| &shed.slots).all(|&slot| slot >= 4), "{closed:?}");
        assert_eq!(closed.iter().map(|shed| shed.slots.len()).sum::<usize>(), 28);
    }

    #[test]
    fn a_network_of_many_clients_goes_before_a_client_below_its_part() {
        let held: Vec<_> = (0..20_u8)
            .map(|number| Holding {
                bytes: 10,
                worker: 0,
                slot: number.into(),
                client: Some(HolderClient::of([192, 0, 2, number].into())),
            })
            .chain([Holding { bytes: 40, worker: 0, slot: 99, client: Some(client(1)) }])
            .collect();
        // The network's 200 bytes count as 50, until 16 connections are left.
        assert!(!choose(held.clone(), 40, 0).slots.contains(&99));
        assert!(choose(held, 80, 0).slots.contains(&99));
    }

    #[test]
    fn a_worker_without_time_is_not_waited_for() {
        let budget = Arc::new(MemoryBudget::default());
        let mut both = workers(&budget, [&[100; 5], &[100; 5]]);
        budget.set_limit_bytes(1_100 * KIB as u64);
        both[0].1.push(both[0].0.holder(5).charge(300 * KIB));
        // The second worker reports, and has no time from then on.
        assert_eq!(both[1].0.shed(|_| None), Shed::default());
        std::thread::sleep(REPORT_TIME);
        let first = &both[0].0;
        assert_eq!(first.shed(|_| None), Shed::default());
        std::thread::sleep(WAIT_TIME);
        assert_eq!(first.shed(|_| None).slots, [5], "one is larger than any of the other worker's");
        assert_eq!(first.shed(|_| None), Shed::default(), "it closes first");
    }

    /// Clients of a busy machine held eight times the limit before the wait was over.
    #[test]
    fn nothing_waits_while_the_count_is_far_above_the_limit() {
        let budget = Arc::new(MemoryBudget::default());
        let both = workers(&budget, [&[100; 12], &[100; 1]]);
        budget.set_limit_bytes(1_000 * KIB as u64);
        assert_eq!(both[0].0.shed(|_| None).slots, [11, 10, 9, 8]);
    }

    /// A worker closed connections for its part of all bytes, in each round again: a starved worker with an attacker cost
    /// the honest clients of another their connections.
    #[test]
    fn connections_of_a_worker_without_time_cost_those_of_others_nothing() {
        let budget = Arc::new(MemoryBudget::default());
        // The first worker has other clients' uploads only; the second has one client's many connections, and no time.
        let both = workers(&budget, [&[100; 4], &[15; 200]]);
        budget.set_limit_bytes(1_500 * KIB as u64);
        let first = &both[0].0;
        assert!(first.is_critical());
        for _ in 0..3 {
            assert_eq!(first.shed(|slot| Some(client(slot as u8))), Shed::default());
            std::thread::sleep(WAIT_TIME);
        }
        assert_eq!(first.shed(|slot| Some(client(slot as u8))), Shed::default());
        // The first worker's report may be too old by now, and then the second waits for a while.
        let of_second = std::iter::repeat_with(|| both[1].0.shed(|_| Some(client(99))));
        let began = Instant::now();
        let mut in_time = of_second.take_while(|_| began.elapsed() < Duration::from_secs(60));
        let closed = in_time.find(|shed| !shed.slots.is_empty()).unwrap();
        assert!(closed.slots.len() > 100, "{closed:?}");
    }

    #[test]
    fn a_worker_that_exceeds_the_limit_alone_waits_for_no_report() {
        let budget = Arc::new(MemoryBudget::default());
        let both = workers(&budget, [&[100; 10], &[100; 1]]);
        budget.set_limit_bytes(1_000 * KIB as u64);
        let first = &both[0].0;
        assert_eq!(first.shed(|_| None), Shed::default());
        std::thread::sleep(WAIT_TIME);
        assert_eq!(first.shed(|_| None).slots, [9, 8]);
    }

    #[test]
    fn connections_that_close_slowly_cost_no_others() {
        // Slots that are closed in three rounds, and in one after another connection has come.
        let closed = || {
            let budget = Arc::new(MemoryBudget::default());
            let worker = WorkerBudget::new(Arc::clone(&budget), 0);
            let mut charges: Vec<_> = (0..10).map(|slot| worker.holder(slot).charge(100 * KIB)).collect();
            budget.set_limit_bytes(1_000 * KIB as u64);
            let began = Instant::now();
            assert_eq!(worker.shed(|_| None).slots, [9, 8]);
            let mut of_rounds = Vec::new();
            for _ in 0..3 {
                std::thread::sleep(ROUND_TIME);
                of_rounds.extend(worker.shed(|_| None).slots);
            }
            charges.push(worker.holder(10).charge(100 * KIB));
            std::thread::sleep(ROUND_TIME);
            let last = worker.shed(|_| None).slots;
            // Later, connections that were chosen would count again.
            (began.elapsed() < CLOSE_TIME_MAX).then_some((of_rounds, last))
        };
        let (of_rounds, last) = std::iter::repeat_with(closed).flatten().next().unwrap();
        assert!(of_rounds.is_empty(), "they still hold their memory: {of_rounds:?}");
        assert_eq!(last, [10], "another one is too much");
    }

    /// Issue 17: a worker closed connections only when its timers ran, so a saturated one was late.
    #[test]
    fn a_worker_alone_closes_connections_at_once() {
        let budget = Arc::new(MemoryBudget::default());
        let worker = WorkerBudget::new(Arc::clone(&budget), 7);
        let _charges = [1, 2].map(|slot| worker.holder(slot).charge(100 * KIB));
        budget.set_limit_bytes(200 * KIB as u64);
        assert_eq!(worker.shed(|_| None).slots, [2]);
    }

    #[test]
    fn nothing_is_closed_below_the_limit() {
        let budget = Arc::new(MemoryBudget::default());
        let mut both = workers(&budget, [&[500], &[500]]);
        budget.set_limit_bytes(1_000 * KIB as u64);
        both[0].1.clear();
        assert_eq!(both[1].0.shed(|_| None), Shed::default());
        drop(both);
        assert!(budget.reports().0.is_empty(), "workers that have ended are no longer reported");
    }
}
