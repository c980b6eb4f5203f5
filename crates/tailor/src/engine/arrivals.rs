//! Times of the requests.

use fastrand::Rng;

use super::clock::{Nanos, SECOND};
use super::profile::LoadProfile;

/// Schedule of the requests.
#[derive(Clone, Debug)]
pub(crate) enum ArrivalPace {
    /// Closed loop: as soon as a connection is free.
    Closed,
    /// Open loop: requests per second, at equal intervals.
    Constant(f64),
    /// Open loop: mean requests per second, at random intervals as from independent users (a Poisson process).
    Poisson(f64),
    /// Open loop: rates that change over time.
    Profile {
        /// Rates over time.
        profile: LoadProfile,
        /// True for random intervals, as from independent users.
        is_random: bool,
    },
    /// Open loop: times after the start, ascending.
    Recorded(std::sync::Arc<[Nanos]>),
}

/// Schedule of one thread.
#[derive(Debug)]
pub(crate) struct Arrivals {
    pace: ArrivalPace,
    /// Index of this thread. It takes each `threads`th request, beginning with this one.
    thread: usize,
    threads: usize,
    start: Nanos,
    /// End of the schedule, exclusive.
    end: Nanos,
    /// Requests that may still be claimed.
    remaining: u64,
    /// Open loop: number of requests due so far, and the time of the next.
    count: u64,
    next: Option<Nanos>,
    /// Random profile: expected number of requests of all threads until the next one.
    expected: f64,
    /// Claims that were returned unused.
    returned: Vec<Nanos>,
}

impl Arrivals {
    pub(crate) fn new(pace: ArrivalPace, thread: usize, threads: usize, requests_max: u64) -> Self {
        Self {
            pace,
            thread,
            threads,
            start: 0,
            end: Nanos::MAX,
            remaining: requests_max,
            count: 0,
            next: None,
            expected: 0.0,
            returned: Vec::new(),
        }
    }

    /// Sets the time of the start and of the end.
    pub(crate) fn start(&mut self, start: Nanos, end: Nanos, rng: &mut Rng) {
        (self.start, self.end) = (start, end);
        self.next = self.due_after(start, rng);
    }

    /// Moves the end to an earlier time.
    pub(crate) fn end(&mut self, end: Nanos) {
        self.end = self.end.min(end);
    }

    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.pace, ArrivalPace::Closed)
    }

    /// Claims a due request. Returns the time it was due; for the closed loop `now`.
    pub(crate) fn claim(&mut self, now: Nanos, rng: &mut Rng) -> Option<Nanos> {
        if let Some(due) = self.returned.pop() {
            return Some(due);
        }
        if self.remaining == 0 {
            return None;
        }
        let due = if self.is_open() { self.next.filter(|&due| due <= now)? } else { now };
        if due >= self.end {
            return None;
        }
        if self.is_open() {
            self.next = self.due_after(due, rng);
        }
        self.remaining -= 1;
        Some(due)
    }

    /// Returns an unused claim.
    pub(crate) fn give_back(&mut self, due: Nanos) {
        self.returned.push(due);
    }

    /// Returns the time of the next request (open loop).
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        if !self.returned.is_empty() {
            return Some(0);
        }
        self.next.filter(|&due| self.remaining > 0 && due < self.end)
    }

    /// Returns whether no further request will be due.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        if !self.returned.is_empty() {
            return false;
        }
        match self.next {
            _ if self.remaining == 0 => true,
            // The last request is due before the end. Until then the rate per second is too high.
            Some(due) if self.is_open() => due >= self.end && now >= self.end,
            None if self.is_open() => true,
            _ => now >= self.end,
        }
    }

    /// Returns the time of the request after the one at `due`.
    fn due_after(&mut self, due: Nanos, rng: &mut Rng) -> Option<Nanos> {
        let index = self.count;
        self.count += 1;
        match &self.pace {
            ArrivalPace::Closed => None,
            // Computed from the start rather than from the last request, so that rounding errors do not add up.
            ArrivalPace::Constant(rate) => {
                let position = index as f64 * self.threads as f64 + self.thread as f64;
                Some(self.start + (position / rate * SECOND as f64) as Nanos)
            }
            ArrivalPace::Poisson(rate) => {
                // The processes of all threads add up to the whole rate. `1 - f64()` is never 0.
                let mean = self.threads as f64 / rate * SECOND as f64;
                Some(due + (-(1.0 - rng.f64()).ln() * mean) as Nanos)
            }
            ArrivalPace::Profile { profile, is_random } => {
                let position = if *is_random {
                    // A Poisson process whose clock runs at the rate.
                    self.expected += -(1.0 - rng.f64()).ln() * self.threads as f64;
                    self.expected
                } else {
                    index as f64 * self.threads as f64 + self.thread as f64
                };
                profile.time_of(position).map(|time| self.start + time)
            }
            ArrivalPace::Recorded(times) => {
                let position = usize::try_from(index).ok()?.checked_mul(self.threads)? + self.thread;
                times.get(position).map(|&time| self.start + time)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ProfilePhase;

    fn dues(pace: ArrivalPace, thread: usize, threads: usize, requests_max: u64) -> Vec<Nanos> {
        let mut rng = Rng::with_seed(7);
        let mut arrivals = Arrivals::new(pace, thread, threads, requests_max);
        arrivals.start(100, 100 + SECOND, &mut rng);
        std::iter::from_fn(|| arrivals.claim(Nanos::MAX, &mut rng)).collect()
    }

    #[test]
    fn paces() {
        let ms = 1_000_000;
        assert_eq!(dues(ArrivalPace::Constant(4.0), 0, 1, 99), [100, 100 + 250 * ms, 100 + 500 * ms, 100 + 750 * ms]);
        assert_eq!(dues(ArrivalPace::Constant(4.0), 1, 2, 99), [100 + 250 * ms, 100 + 750 * ms]);
        assert_eq!(dues(ArrivalPace::Constant(4.0), 0, 1, 1), [100]);
        assert_eq!(dues(ArrivalPace::Constant(0.5), 0, 1, 99), [100], "the second is due after 2 s");
        assert_eq!(dues(ArrivalPace::Recorded([1, 2, 2 * SECOND].into()), 0, 1, 99), [101, 102]);
        let poisson = dues(ArrivalPace::Poisson(10_000.0), 0, 1, u64::MAX);
        assert!((9_700..10_300).contains(&poisson.len()), "{}", poisson.len());
        let profile = |is_random| {
            let phase = |from, to| ProfilePhase { from, to, length: SECOND / 2 };
            let profile = LoadProfile::new(vec![phase(2.0, 2.0), phase(0.0, 20_000.0)], 0);
            dues(ArrivalPace::Profile { profile, is_random }, 0, 1, u64::MAX)
        };
        assert_eq!(profile(false)[..2], [100, 100 + 500 * ms]);
        assert_eq!(profile(false).len(), 5_001);
        let random = profile(true);
        assert!((4_800..5_200).contains(&random.len()), "{}", random.len());
        let late = random.iter().filter(|&&due| due > 750 * ms).count() as f64;
        assert!((late / random.len() as f64 - 0.75).abs() < 0.03, "three quarters of a ramp are in its second half");
        let short = poisson.windows(2).filter(|pair| pair[1] - pair[0] < ms / 10).count() as f64;
        assert!((short / poisson.len() as f64 - 0.632).abs() < 0.02, "the share 1 - 1/e is shorter than the mean");
    }

    /// An open loop lasts until its end, not until its last request.
    #[test]
    fn ends() {
        let mut rng = Rng::with_seed(7);
        for (pace, requests_max, expect) in [
            (ArrivalPace::Constant(2.0), 99, [false, false, true]),
            (ArrivalPace::Constant(2.0), 2, [true, true, true]),
            (ArrivalPace::Recorded([1, 2].into()), 99, [true, true, true]),
            (ArrivalPace::Recorded([1, 2, SECOND].into()), 99, [false, false, true]),
        ] {
            let mut arrivals = Arrivals::new(pace.clone(), 0, 1, requests_max);
            arrivals.start(0, SECOND, &mut rng);
            while arrivals.claim(SECOND - 1, &mut rng).is_some() {}
            assert_eq!([0, SECOND - 1, SECOND].map(|now| arrivals.is_over(now)), expect, "{pace:?} {requests_max}");
        }
    }

    #[test]
    fn a_claim_given_back_comes_again() {
        let mut rng = Rng::new();
        let mut arrivals = Arrivals::new(ArrivalPace::Closed, 0, 1, 1);
        arrivals.start(0, 10, &mut rng);
        assert_eq!(arrivals.claim(5, &mut rng), Some(5));
        assert!(arrivals.is_over(5));
        arrivals.give_back(5);
        assert!(!arrivals.is_over(5));
        assert_eq!((arrivals.claim(6, &mut rng), arrivals.claim(6, &mut rng)), (Some(5), None));
    }
}
