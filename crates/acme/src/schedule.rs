//! Times of renewals and retries.

use std::time::Duration;

use crate::config::RETRY_INTERVAL_MAX;

/// Longest pause after a successful order.
const PAUSE_MAX: Duration = Duration::from_secs(3_600);

/// Tries in the lifetime of a certificate, at least: a third of it, for renewal, has eight.
const TRIES_IN_A_LIFETIME: u64 = 24;

/// First and last second of a certificate, since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) not_before: i64,
    pub(super) not_after: i64,
}

/// Time to renew a certificate: at `fraction` (0 to 1) of the window that the CA suggests (RFC 9773, section 4.2), or
/// after two thirds of its lifetime.
pub(super) fn renewal_time(validity: Validity, window: Option<(i64, i64)>, fraction: f64) -> i64 {
    let Validity { not_before, not_after } = validity;
    let lifetime = not_after.saturating_sub(not_before);
    let wanted = match window {
        Some((start, end)) if start < end => start + ((end - start) as f64 * fraction) as i64,
        _ => not_before + lifetime / 3 * 2,
    };
    // In time, whatever the CA suggests.
    wanted.min(not_before.saturating_add(lifetime / 10 * 9))
}

/// Pause after a successful order, whatever the CA suggests; otherwise a CA that suggests a past time would get orders
/// without end.
pub(super) fn pause_after_success(validity: Validity, first: Duration) -> Duration {
    let lifetime = validity.not_after.saturating_sub(validity.not_before).max(0).unsigned_abs();
    Duration::from_secs((lifetime / 3).min(PAUSE_MAX.as_secs())).max(first.min(PAUSE_MAX))
}

/// Wait after consecutive failures. It doubles each time, up to a day, or a part of the lifetime of the certificate in
/// use. A random part of up to a quarter spreads orders that failed together. `random` is 0 to 1.
pub(super) fn retry_wait(first: Duration, failures: u32, in_use: Option<Validity>, random: f64) -> Duration {
    let doubled = first.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    let of_lifetime = in_use.map_or(RETRY_INTERVAL_MAX, |validity| {
        let lifetime = validity.not_after.saturating_sub(validity.not_before).max(0).unsigned_abs();
        Duration::from_secs(lifetime / TRIES_IN_A_LIFETIME)
    });
    doubled.min(of_lifetime.max(first)).min(RETRY_INTERVAL_MAX).mul_f64(1.0 + random / 4.0)
}

/// Time of the next attempt, as stored. A time further away than any wait was written with a wrong clock, and is
/// ignored.
pub(super) fn retry_time(noted: i64, now: i64) -> i64 {
    let wait_max = RETRY_INTERVAL_MAX.mul_f64(1.25).as_secs() as i64;
    if noted.saturating_sub(now) > wait_max { now } else { noted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_renewed_in_time() {
        let validity = Validity { not_before: 1_000, not_after: 91_000 };
        for (window, fraction, expect) in [
            (None, 0.5, 61_000),
            (Some((50_000, 60_000)), 0.0, 50_000),
            (Some((50_000, 60_000)), 0.5, 55_000),
            // A past window is due.
            (Some((-20, -10)), 0.5, -15),
            // An invalid window.
            (Some((60_000, 50_000)), 0.5, 61_000),
            // A window that is too late.
            (Some((50_000, 200_000)), 1.0, 82_000),
        ] {
            assert_eq!(renewal_time(validity, window, fraction), expect, "{window:?}");
        }
        let broken = Validity { not_before: i64::MAX, not_after: i64::MIN };
        assert!(renewal_time(broken, None, 0.0) < i64::MAX, "nothing overflows");
    }

    #[test]
    fn a_clock_that_was_wrong_holds_nothing_up() {
        let now = 1_000_000;
        for (noted, expect) in [
            (0, 0),
            (now + 60, now + 60),
            (now + 86_400, now + 86_400),
            (now + 2 * 86_400, now),
            (i64::MAX, now),
            (i64::MIN, i64::MIN),
        ] {
            assert_eq!(retry_time(noted, now), expect, "{noted}");
        }
    }

    #[test]
    fn success_is_followed_by_a_pause() {
        for (lifetime, first_seconds, expect_seconds) in
            [(90 * 86_400, 60, 3_600), (12, 1, 4), (12, 60, 60), (12, 86_400, 3_600), (0, 1, 1), (-5, 1, 1)]
        {
            let validity = Validity { not_before: 1_000, not_after: 1_000 + lifetime };
            let pause = pause_after_success(validity, Duration::from_secs(first_seconds));
            assert_eq!(pause.as_secs(), expect_seconds, "{lifetime} {first_seconds}");
        }
    }

    #[test]
    fn failures_are_followed_by_longer_waits() {
        let minute = Duration::from_secs(60);
        for (failures, random, expect_seconds) in
            [(1, 0.0, 60), (1, 1.0, 75), (2, 0.0, 120), (5, 0.0, 960), (12, 0.0, 86_400), (400, 1.0, 108_000)]
        {
            assert_eq!(retry_wait(minute, failures, None, random).as_secs(), expect_seconds, "{failures}");
        }
        let of_days = |days: i64| Some(Validity { not_before: 1_000, not_after: 1_000 + days * 86_400 });
        for (in_use, expect_seconds) in
            [(of_days(90), 86_400), (of_days(45), 86_400), (of_days(6), 21_600), (of_days(0), 60), (of_days(-1), 60)]
        {
            assert_eq!(retry_wait(minute, 30, in_use, 0.0).as_secs(), expect_seconds, "{in_use:?}");
        }
    }

    /// Each lifetime that CAs offer leaves time for a CA that is away for most of the last third.
    #[test]
    fn certificates_of_all_lifetimes_outlive_a_failure_of_the_ca() {
        const HOUR: i64 = 3_600;
        for (lifetime_hours, tries_min) in [(6 * 24, 14), (45 * 24, 20), (90 * 24, 30), (24, 10)] {
            let validity = Validity { not_before: 0, not_after: lifetime_hours * HOUR };
            let due = renewal_time(validity, None, 0.5);
            assert_eq!(due, lifetime_hours * HOUR / 3 * 2);
            // As late as possible each time.
            let (mut now, mut failures, mut longest) = (due, 0, 0);
            while now < validity.not_after {
                failures += 1;
                let wait = retry_wait(Duration::from_secs(60), failures, Some(validity), 1.0).as_secs() as i64;
                longest = longest.max(wait);
                now += wait;
            }
            assert!(failures >= tries_min, "{lifetime_hours} hours: {failures} tries");
            // So long before the end, at least, the CA must be back.
            assert!(longest * 4 <= validity.not_after - due, "{lifetime_hours} hours: {longest} s between tries");
        }
    }
}
