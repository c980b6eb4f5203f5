//! Health of a server, learnt from requests (passive) and from checks (active). A state machine that is given the
//! time.

use crate::config;

/// Share of a server that is fully in service, in thousandths of its weight.
pub(super) const FULL_SHARE: u32 = 1_000;

/// Share with which a slow start begins.
const FIRST_SHARE: u32 = 100;

/// Configured limits of [`Health`], times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HealthLimits {
    fail_max: u32,
    fail_window_ms: u64,
    eject_time_ms: u64,
    eject_time_max_ms: u64,
    slow_start_ms: u64,
    rise: u32,
    fall: u32,
}

impl HealthLimits {
    pub(super) fn new(upstream: &config::UpstreamConfig) -> Self {
        let check = upstream.health_check.clone().unwrap_or_default();
        Self {
            fail_max: upstream.fail_max,
            fail_window_ms: upstream.fail_window.as_millis() as u64,
            eject_time_ms: upstream.eject_time.as_millis() as u64,
            eject_time_max_ms: upstream.eject_time_max.as_millis() as u64,
            slow_start_ms: upstream.slow_start.as_millis() as u64,
            rise: check.rise,
            fall: check.fall,
        }
    }
}

/// Health of one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    limits: HealthLimits,
    circuit: Circuit,
    /// Failures in a row; `first_failure_ms` is the time of the first.
    failures: u32,
    first_failure_ms: u64,
    /// Ejections in a row, without a long time of good service in between.
    ejections: u32,
    /// Time at which the server came back into service; `None` if it was never down.
    back_since_ms: Option<u64>,
    is_check_bad: bool,
    /// Checks in a row that contradict `is_check_bad`.
    contradictions: u32,
}

/// State of the circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Circuit {
    /// Requests go through.
    Closed,
    /// No request goes through until then.
    Open { until_ms: u64 },
    /// One trial request is in progress; its result decides the next state.
    HalfOpen,
}

/// Verdict on sending a request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerFitness {
    /// Yes; the server has this share of its weight, in thousandths.
    Fit(u32),
    /// One request may, as a trial: [`Health::begin_trial`].
    Trial,
    /// No request may, if there is another server.
    Out,
}

/// Change of health that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthChange {
    /// Passed over for this many milliseconds.
    Ejected(u64),
    /// In service again.
    Back,
    /// Health checks report the server as down.
    ChecksBad,
    /// Health checks report the server as up.
    ChecksGood,
}

impl Health {
    pub(super) fn new(limits: HealthLimits) -> Self {
        Self {
            limits,
            circuit: Circuit::Closed,
            failures: 0,
            first_failure_ms: 0,
            ejections: 0,
            back_since_ms: None,
            is_check_bad: false,
            contradictions: 0,
        }
    }

    /// Reuses what is known of the same server, except its limits. A trial in progress is abandoned, because its
    /// result goes to the old state.
    pub(super) fn reuse(&mut self, before: &Self) {
        let limits = self.limits;
        *self = Self { limits, ..*before };
        self.abandon_trial();
    }

    /// Tells whether a request may be sent.
    pub(super) fn standing(&self, now_ms: u64) -> ServerFitness {
        match self.circuit {
            _ if self.is_check_bad => ServerFitness::Out,
            Circuit::Closed => ServerFitness::Fit(self.share(now_ms)),
            Circuit::Open { until_ms } if now_ms >= until_ms => ServerFitness::Trial,
            Circuit::Open { .. } | Circuit::HalfOpen => ServerFitness::Out,
        }
    }

    /// True if the server is fit with its full share, and no failure counts against it.
    pub(super) fn is_settled(&self, now_ms: u64) -> bool {
        self.failures == 0 && self.standing(now_ms) == ServerFitness::Fit(FULL_SHARE)
    }

    /// True if the last request failed, and the server still gets requests.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0 && self.circuit == Circuit::Closed
    }

    /// Takes the right to send the trial request; `false` if another request has it.
    pub(super) fn begin_trial(&mut self, now_ms: u64) -> bool {
        let may = self.standing(now_ms) == ServerFitness::Trial;
        if may {
            self.circuit = Circuit::HalfOpen;
        }
        may
    }

    /// Abandons a trial that ended without a result: another request may be the trial.
    pub(super) fn abandon_trial(&mut self) {
        if self.circuit == Circuit::HalfOpen {
            self.circuit = Circuit::Open { until_ms: 0 };
        }
    }

    /// Records a response. Even as a last resort, that shows that the server is back.
    pub(super) fn on_success(&mut self, now_ms: u64) -> Option<HealthChange> {
        self.failures = 0;
        if self.circuit == Circuit::Closed {
            return None;
        }
        self.circuit = Circuit::Closed;
        self.back_since_ms = Some(now_ms);
        Some(HealthChange::Back)
    }

    /// Records a failed request; `is_trial` if it was the trial request.
    pub(super) fn on_failure(&mut self, is_trial: bool, now_ms: u64) -> Option<HealthChange> {
        match self.circuit {
            Circuit::HalfOpen if is_trial => Some(self.eject(now_ms)),
            // Requests sent before the ejection say nothing new.
            Circuit::Open { .. } | Circuit::HalfOpen => None,
            Circuit::Closed => {
                // Each worker reads the clock for itself, and one may be slightly late.
                let passed_ms = now_ms.saturating_sub(self.first_failure_ms);
                if self.failures == 0 || passed_ms > self.limits.fail_window_ms {
                    self.failures = 0;
                    self.first_failure_ms = now_ms;
                }
                self.failures += 1;
                (self.limits.fail_max > 0 && self.failures >= self.limits.fail_max).then(|| self.eject(now_ms))
            }
        }
    }

    /// Records the result of a check.
    pub(super) fn on_check(&mut self, is_good: bool, now_ms: u64) -> Option<HealthChange> {
        if is_good != self.is_check_bad {
            self.contradictions = 0;
            return None;
        }
        self.contradictions += 1;
        let needed = if is_good { self.limits.rise } else { self.limits.fall };
        if self.contradictions < needed {
            return None;
        }
        self.contradictions = 0;
        self.is_check_bad = !is_good;
        if is_good {
            self.circuit = Circuit::Closed;
            self.failures = 0;
            self.back_since_ms = Some(now_ms);
        }
        Some(if is_good { HealthChange::ChecksGood } else { HealthChange::ChecksBad })
    }

    fn eject(&mut self, now_ms: u64) -> HealthChange {
        let HealthLimits { eject_time_ms, eject_time_max_ms, .. } = self.limits;
        // After long enough in service, earlier ejections no longer count.
        if self.circuit == Circuit::Closed && self.back_since_ms.is_none_or(|since| now_ms - since > eject_time_max_ms)
        {
            self.ejections = 0;
        }
        let length_ms = eject_time_ms.saturating_mul(1 << self.ejections.min(32)).min(eject_time_max_ms);
        self.ejections += 1;
        self.failures = 0;
        self.circuit = Circuit::Open { until_ms: now_ms + length_ms };
        HealthChange::Ejected(length_ms)
    }

    /// Share of the weight; in a slow start it grows evenly with time.
    fn share(&self, now_ms: u64) -> u32 {
        let Some(since_ms) = self.back_since_ms else { return FULL_SHARE };
        let passed_ms = now_ms.saturating_sub(since_ms);
        if passed_ms >= self.limits.slow_start_ms {
            return FULL_SHARE;
        }
        let grown = u64::from(FULL_SHARE - FIRST_SHARE) * passed_ms / self.limits.slow_start_ms;
        FIRST_SHARE + grown as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three failures within 10 s eject for 5 s, at most 60 s; slow start of 10 s; checks rise 2, fall 3.
    fn health(change: impl FnOnce(&mut HealthLimits)) -> Health {
        let mut limits = HealthLimits {
            fail_max: 3,
            fail_window_ms: 10_000,
            eject_time_ms: 5_000,
            eject_time_max_ms: 60_000,
            slow_start_ms: 0,
            rise: 2,
            fall: 3,
        };
        change(&mut limits);
        Health::new(limits)
    }

    const FIT: ServerFitness = ServerFitness::Fit(FULL_SHARE);

    /// Fails until it is ejected.
    fn fail(health: &mut Health, now_ms: u64) -> Option<HealthChange> {
        (0..3).map(|_| health.on_failure(false, now_ms)).last().flatten()
    }

    #[test]
    fn failures_in_a_row_and_in_the_window_eject() {
        // Requests with their times; `true` is a success.
        let check = |requests: &[(u64, bool)], expect: ServerFitness| {
            let mut health = health(|_| {});
            for (now_ms, is_success) in requests {
                match is_success {
                    true => health.on_success(*now_ms),
                    false => health.on_failure(false, *now_ms),
                };
            }
            let now_ms = requests.last().map_or(0, |last| last.0);
            assert_eq!(health.standing(now_ms), expect, "{requests:?}");
            assert_eq!(health.is_settled(now_ms), expect == FIT && requests.last().is_none_or(|last| last.1));
        };
        check(&[], FIT);
        check(&[(0, false), (1, false)], FIT);
        check(&[(0, false), (1, false), (2, true)], FIT);
        check(&[(0, false), (1, false), (2, false)], ServerFitness::Out);
        check(&[(0, false), (1, false), (10_000, false)], ServerFitness::Out);
        check(&[(0, false), (1, false), (10_001, false)], FIT);
        check(&[(0, false), (1, false), (2, true), (3, false)], FIT);
        check(&[(0, false), (1, false), (10_001, false), (10_002, false), (10_003, false)], ServerFitness::Out);
        check(&[(0, false), (1, false), (2, false), (3, true)], FIT);
    }

    #[test]
    fn without_a_greatest_number_failures_do_not_eject() {
        let mut health = health(|limits| limits.fail_max = 0);
        assert!((0..1_000).all(|now_ms| health.on_failure(false, now_ms).is_none()));
        assert_eq!(health.standing(1_000), FIT);
    }

    #[test]
    fn one_request_tries_a_server_out() {
        let mut health = health(|_| {});
        assert!(!health.begin_trial(0));
        assert_eq!(fail(&mut health, 0), Some(HealthChange::Ejected(5_000)));
        assert_eq!((health.standing(4_999), health.begin_trial(4_999)), (ServerFitness::Out, false));
        assert_eq!(health.standing(5_000), ServerFitness::Trial);
        assert!(health.begin_trial(5_000));
        // The other requests wait for the trial's result.
        assert_eq!((health.standing(6_000), health.begin_trial(6_000)), (ServerFitness::Out, false));
        // Requests sent before the ejection say nothing new.
        assert_eq!(health.on_failure(false, 6_000), None);
        // The trial ended without a result: another request takes it.
        health.abandon_trial();
        assert!(health.begin_trial(6_001));
        assert_eq!(health.on_success(6_002), Some(HealthChange::Back));
        assert_eq!(health.standing(6_002), FIT);
        health.abandon_trial();
        assert_eq!(health.standing(6_003), FIT);
    }

    #[test]
    fn who_fails_again_is_out_for_longer() {
        let mut health = health(|_| {});
        let mut now_ms = 0;
        assert_eq!(fail(&mut health, now_ms), Some(HealthChange::Ejected(5_000)));
        for expect_ms in [10_000, 20_000, 40_000, 60_000, 60_000] {
            now_ms += 60_000;
            assert!(health.begin_trial(now_ms));
            assert_eq!(health.on_failure(true, now_ms), Some(HealthChange::Ejected(expect_ms)));
            assert_eq!(health.standing(now_ms + expect_ms - 1), ServerFitness::Out);
            assert_eq!(health.standing(now_ms + expect_ms), ServerFitness::Trial);
        }
        // Back, and soon ejected again: the earlier ejections still count.
        health.on_success(now_ms);
        assert_eq!(fail(&mut health, now_ms + 60_000), Some(HealthChange::Ejected(60_000)));
        // After a long time of good service they do not.
        health.on_success(now_ms + 70_000);
        assert_eq!(fail(&mut health, now_ms + 130_001), Some(HealthChange::Ejected(5_000)));
    }

    #[test]
    fn a_slow_start() {
        let mut health = health(|limits| limits.slow_start_ms = 10_000);
        assert_eq!(health.standing(0), FIT, "not at the beginning: all would be slow");
        fail(&mut health, 0);
        health.on_success(5_000);
        for (now_ms, share) in
            [(5_000, 100), (5_001, 100), (10_000, 550), (14_999, 999), (15_000, 1_000), (99_000, 1_000)]
        {
            assert_eq!(health.standing(now_ms), ServerFitness::Fit(share), "{now_ms}");
            assert_eq!(health.is_settled(now_ms), share == FULL_SHARE);
        }
    }

    #[test]
    fn checks_take_down_and_bring_back() {
        // Checks, each with the change it causes.
        let check = |checks: &[(bool, Option<HealthChange>)]| {
            let mut health = health(|_| {});
            for (index, (is_good, expect)) in checks.iter().enumerate() {
                assert_eq!(health.on_check(*is_good, 0), *expect, "{index} of {checks:?}");
            }
            health.standing(0)
        };
        let down = (false, Some(HealthChange::ChecksBad));
        let up = (true, Some(HealthChange::ChecksGood));
        let (good, bad) = ((true, None), (false, None));
        assert_eq!(check(&[good, good, good]), FIT);
        assert_eq!(check(&[bad, bad]), FIT);
        assert_eq!(check(&[bad, bad, good, bad, bad]), FIT);
        assert_eq!(check(&[bad, bad, down, bad]), ServerFitness::Out);
        assert_eq!(check(&[bad, bad, down, good]), ServerFitness::Out);
        assert_eq!(check(&[bad, bad, down, good, bad, good]), ServerFitness::Out);
        assert_eq!(check(&[bad, bad, down, good, up]), FIT);
        assert_eq!(check(&[bad, bad, down, good, up, bad, bad, down]), ServerFitness::Out);
    }

    #[test]
    fn checks_and_requests_are_both_heard() {
        let mut health = health(|limits| limits.slow_start_ms = 10_000);
        (0..3).for_each(|_| _ = health.on_check(false, 0));
        health.on_success(0);
        assert_eq!(health.standing(0), ServerFitness::Out, "an answer does not outweigh checks");
        fail(&mut health, 0);
        (0..2).for_each(|_| _ = health.on_check(true, 1_000));
        assert_eq!(health.standing(1_000), ServerFitness::Fit(FIRST_SHARE), "good checks end an ejection");
    }
}
