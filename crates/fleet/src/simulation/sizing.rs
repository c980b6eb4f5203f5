//! Figures of many instances, from the decisions that servers run: delay of purges, load of the store, renewals at the same time,
//! error of limits.

use std::time::Duration;

use super::network::SimulatedStore;
use super::random::Random;
use super::{Conditions, run};
use crate::{FleetLease, LeaseRequest, SharedBucket, StoreReply, StoreRequest};

/// Figures of a number of instances.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizing {
    /// Number of instances.
    pub members: usize,
    /// Times from a purge to its application by another instance, in milliseconds: median, 99 %, longest.
    pub purge_ms: [u64; 3],
    /// Requests to the store in a second, without those of limits and certificates.
    pub requests_per_second: f64,
    /// Renewal of one certificate, due at all instances at once.
    pub herd: Herd,
    /// Error of a limit of 100 requests/s with twice that load at random moments, half of it at one instance.
    pub limit_error: f64,
    /// As before, with 10,000 requests/s.
    pub large_limit_error: f64,
    /// Error of a limit of 100 requests/s if all instances but one get their requests in the same moments.
    pub worst_limit_error: f64,
}

/// Result of a renewal that is due at all instances at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Herd {
    /// Orders of the certificate.
    pub orders: u32,
    /// Requests to the store in all.
    pub requests: u64,
    /// Most requests in one second.
    pub requests_per_second_max: u64,
}

/// Limit and load of a run, and how instances learn of each other.
#[derive(Clone, Debug)]
pub struct LimitRun<'a> {
    /// Requests in a second that the limit grants; the load is twice as much.
    pub rate: u64,
    /// Share of the load at each instance.
    pub shares: &'a [f64],
    /// Interval of an instance's messages to the store.
    pub interval_ms: u64,
    /// Time until the store has responded.
    pub delay_ms: u64,
    /// Time of the run.
    pub time: Duration,
    /// Moments of requests.
    pub arrivals: LimitLoad,
}

/// Moments of requests at an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitLoad {
    /// Equal distances. Instances with equal shares get their requests in the same millisecond, which is the worst case.
    Even,
    /// Random moments, by this seed, as requests of many clients.
    Random(u64),
}

impl Sizing {
    /// Simulates this many instances, with a store such as Valkey.
    pub fn of(members: usize) -> Self {
        let conditions = Conditions { settle: Duration::from_secs(5), ..Conditions::calm(members) };
        let outcome = run(1, &conditions);
        let shares: Vec<f64> =
            (0..members).map(|member| if member == 0 { 0.5 } else { 0.5 / (members - 1).max(1) as f64 }).collect();
        let limit = |rate, arrivals| {
            let time = Duration::from_secs(30);
            let run = LimitRun { rate, shares: &shares, interval_ms: 100, delay_ms: 2, time, arrivals };
            let (granted, ideally) = run.run();
            granted as f64 / ideally.max(1) as f64 - 1.0
        };
        Self {
            members,
            purge_ms: [0.5, 0.99, 1.0].map(|share| outcome.delay_ms(share)),
            requests_per_second: outcome.requests_per_second(),
            herd: Herd::of(members),
            limit_error: limit(100, LimitLoad::Random(1)),
            large_limit_error: limit(10_000, LimitLoad::Random(1)),
            worst_limit_error: limit(100, LimitLoad::Even),
        }
    }
}

impl LimitRun<'_> {
    /// Runs it. Returns granted requests of all instances, beside those of one limiter that gets all requests.
    pub fn run(&self) -> (u64, u64) {
        const SECOND: u64 = 1_000_000_000;
        let (cost, burst) = (SECOND / self.rate, SECOND / 5);
        let mut buckets = vec![SharedBucket::default(); self.shares.len()];
        let mut ideal = SharedBucket::default();
        let (mut stored_full_at, mut granted, mut ideally) = (0_u64, 0, 0);
        // Time of a reply and its backlog, by instance.
        let mut replies: Vec<Option<(u64, u64)>> = vec![None; self.shares.len()];
        let mut owed = vec![0.0; self.shares.len()];
        let mut random = match self.arrivals {
            LimitLoad::Even => None,
            LimitLoad::Random(seed) => Some(Random::new(seed)),
        };
        for ms in 0..self.time.as_millis() as u64 {
            let now = SECOND + ms * 1_000_000;
            for (index, bucket) in buckets.iter_mut().enumerate() {
                let share = self.rate as f64 / 500.0 * self.shares[index];
                match &mut random {
                    None => owed[index] += share,
                    Some(random) => {
                        let is_one_more = random.below(1 << 32) < (share.fract() * 2_f64.powi(32)) as u64;
                        owed[index] = share.floor() + f64::from(u8::from(is_one_more));
                    }
                }
                while owed[index] >= 1.0 {
                    owed[index] -= 1.0;
                    granted += u64::from(bucket.take(cost, burst, now).is_ok());
                    ideally += u64::from(ideal.take(cost, burst, now).is_ok());
                }
                if let Some((_, backlog)) = replies[index].take_if(|(at, _)| *at <= ms) {
                    bucket.settle(backlog, now);
                }
                let is_due = (ms + 7 * index as u64).is_multiple_of(self.interval_ms);
                if is_due && bucket.unsent_ns > 0 && replies[index].is_none() {
                    stored_full_at = stored_full_at.max(now) + bucket.send();
                    replies[index] = Some((ms + self.delay_ms, stored_full_at - now));
                }
            }
        }
        (granted, ideally)
    }
}

impl Herd {
    /// Instances that find the certificate due within one second. The one with the lease orders for five seconds; the others look
    /// once a second, as servers do.
    pub fn of(members: usize) -> Self {
        const ORDER: Duration = Duration::from_secs(5);
        const LEASE: Duration = Duration::from_secs(15);
        let mut random = Random::new(members as u64);
        let mut store = SimulatedStore::default();
        let mut herd = Self::default();
        let begin = |member: usize| (FleetLease::new(&member.to_string(), LEASE), None::<Duration>);
        let mut all: Vec<_> = (0..members).map(begin).collect();
        let mut looks_at: Vec<Duration> = (0..members).map(|_| Duration::from_millis(random.below(1_000))).collect();
        let (mut is_renewed, mut by_second) = (false, vec![0_u64; 120]);
        for ms in 0..120_000 {
            let now = Duration::from_millis(ms);
            for (member, (lease, ordered_at)) in all.iter_mut().enumerate() {
                let is_over = ordered_at.is_some_and(|at| now >= at + ORDER);
                if is_over && !lease.is_done() && lease.is_held(now) {
                    is_renewed = true;
                    lease.release();
                    looks_at[member] = now;
                }
                let gives_up = ordered_at.is_none() && now > LEASE * 3 / 2 + Duration::from_secs(1);
                if now < looks_at[member] || lease.is_done() || gives_up {
                    continue;
                }
                while let Some(request) = lease.poll(now) {
                    herd.requests += 1;
                    by_second[ms as usize / 1_000] += 1;
                    tell(&mut store, lease, request, now);
                }
                looks_at[member] = now + Duration::from_secs(1);
                if lease.is_held(now) && ordered_at.is_none() {
                    // A certificate that another has renewed is read, not ordered.
                    herd.orders += u32::from(!is_renewed);
                    *ordered_at = Some(if is_renewed { now.saturating_sub(ORDER) } else { now });
                }
            }
        }
        herd.requests_per_second_max = by_second.into_iter().max().unwrap_or(0);
        herd
    }
}

/// Carries a request of a lease out.
fn tell(store: &mut SimulatedStore, lease: &mut FleetLease, request: LeaseRequest, now: Duration) {
    let key = "lease".to_owned();
    let request = match request {
        LeaseRequest::Read => StoreRequest::Get(key),
        LeaseRequest::Write(value, expect) => StoreRequest::Put { key, value, expect },
    };
    match store.carry_out(request, 0) {
        StoreReply::Entry(entry) => lease.on_entry(now, entry),
        StoreReply::Done(version) => lease.on_written(now, Some(version)),
        _ => lease.on_written(now, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_instance_orders_for_all() {
        for members in [1, 3, 30] {
            let herd = Herd::of(members);
            assert_eq!(herd.orders, 1, "{herd:?}");
            assert!(herd.requests_per_second_max <= 4 * members as u64 + 10, "{herd:?}");
        }
    }

    #[test]
    fn few_instances() {
        let sizing = Sizing::of(3);
        assert!(sizing.purge_ms[2] < 1_000 && sizing.limit_error.abs() < 0.05, "{sizing:?}");
    }

    /// Error of a limit of 100 requests/s that gets twice as many, half of them at one instance.
    fn error_of(members: usize, arrivals: LimitLoad) -> f64 {
        let others = 0.5 / (members - 1) as f64;
        let shares: Vec<f64> = std::iter::once(0.5).chain(std::iter::repeat_n(others, members - 1)).collect();
        let time = Duration::from_secs(30);
        let (granted, ideally) =
            LimitRun { rate: 100, shares: &shares, interval_ms: 100, delay_ms: 2, time, arrivals }.run();
        granted as f64 / ideally as f64 - 1.0
    }

    #[test]
    fn hundreds_of_instances_that_rarely_see_a_key() {
        for seed in 0..5 {
            let error = error_of(300, LimitLoad::Random(seed));
            assert!(error.abs() < 0.05, "seed {seed}: {error}");
        }
    }

    /// A first request of the key at all instances at once: each grants it, before any knows of the others.
    #[test]
    fn the_same_moment_at_all_instances() {
        let error = error_of(300, LimitLoad::Even);
        assert!((0.05..0.2).contains(&error), "docs/sizing.md names it: {error}");
    }
}
