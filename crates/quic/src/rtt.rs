//! Round-trip time of a path (RFC 9002, section 5).

use std::time::Duration;

/// Granularity of timers (RFC 9002, section 6.1.2).
const GRANULARITY: Duration = Duration::from_millis(1);

/// Longest round-trip time that is believed. A longer one would only delay all timers.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(60);

/// Eighths of the round-trip time that the time threshold of losses adds to it (RFC 9002, section 6.1.2).
const LOSS_EIGHTHS: u8 = 1;

/// Largest such number on a path that reorders packets.
const LOSS_EIGHTHS_MAX: u8 = 8;

/// Estimate of the round-trip time of a path.
///
/// Times are kept in nanoseconds of 64 bits, so that an estimate is small and cheap to update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rtt {
    latest: u64,
    smoothed: u64,
    variation: u64,
    /// Shortest sample; `u64::MAX` before the first one.
    min: u64,
    /// Eighths of the round-trip time that the time threshold of losses adds to it.
    loss_eighths: u8,
}

impl Rtt {
    /// Estimate before the first sample (RFC 9002, section 5.3).
    pub(crate) fn new(initial: Duration) -> Self {
        let initial = nanoseconds(initial);
        Self { latest: initial, smoothed: initial, variation: initial / 2, min: u64::MAX, loss_eighths: LOSS_EIGHTHS }
    }

    /// Adds a sample. The caller cuts `ack_delay` to the peer's maximum after the handshake is confirmed, and passes zero for
    /// packets of the Initial space.
    pub(crate) fn update(&mut self, latest: Duration, ack_delay: Duration) {
        let latest = nanoseconds(latest);
        self.latest = latest;
        if !self.is_sampled() {
            *self = Self { latest, smoothed: latest, variation: latest / 2, min: latest, ..*self };
            return;
        }
        // The minimum ignores the delay, because the peer may lie about it.
        self.min = self.min.min(latest);
        let ack_delay = nanoseconds(ack_delay);
        let adjusted = if latest - self.min >= ack_delay { latest - ack_delay } else { latest };
        self.variation = (3 * self.variation + self.smoothed.abs_diff(adjusted)) / 4;
        self.smoothed = (7 * self.smoothed + adjusted) / 8;
    }

    /// Weighted mean of the samples.
    pub(crate) fn smoothed(&self) -> Duration {
        Duration::from_nanos(self.smoothed)
    }

    /// Last sample.
    pub(crate) fn latest(&self) -> Duration {
        Duration::from_nanos(self.latest)
    }

    /// Shortest sample, or the initial estimate before the first one.
    pub(crate) fn min(&self) -> Duration {
        Duration::from_nanos(self.min.min(self.latest))
    }

    /// Mean deviation of the samples.
    pub(crate) fn variation(&self) -> Duration {
        Duration::from_nanos(self.variation)
    }

    /// Probe timeout without the peer's acknowledgment delay and without backoff (RFC 9002, section 6.2.1).
    pub(crate) fn pto_base(&self) -> Duration {
        self.smoothed() + (4 * self.variation()).max(GRANULARITY)
    }

    /// Time after which a packet is lost, if a later one is acknowledged (RFC 9002, section 6.1.2).
    pub(crate) fn loss_delay(&self) -> Duration {
        let round_trip = self.latest.max(self.smoothed);
        Duration::from_nanos(round_trip + round_trip / 8 * u64::from(self.loss_eighths)).max(GRANULARITY)
    }

    /// Makes the time threshold of losses longer, because a packet taken for lost was acknowledged after `elapsed`. On a path
    /// that reorders packets, late ones would be sent again and again.
    pub(crate) fn on_late(&mut self, elapsed: Duration) {
        while self.loss_eighths < LOSS_EIGHTHS_MAX && self.loss_delay() < elapsed {
            self.loss_eighths *= 2;
        }
    }

    /// Forgets the shortest sample, as persistent congestion demands (RFC 9002, section 5.2).
    pub(crate) fn on_persistent_congestion(&mut self) {
        if self.is_sampled() {
            self.min = self.latest;
        }
    }

    /// True after the first sample.
    pub(crate) fn is_sampled(&self) -> bool {
        self.min != u64::MAX
    }
}

/// Nanoseconds of a time, at most those of [`ROUND_TRIP_MAX`].
fn nanoseconds(time: Duration) -> u64 {
    time.min(ROUND_TRIP_MAX).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_first_sample_replaces_the_initial_estimate() {
        let mut rtt = Rtt::new(ms(333));
        assert!(!rtt.is_sampled());
        assert_eq!((rtt.smoothed(), rtt.min(), rtt.pto_base()), (ms(333), ms(333), ms(999)));
        rtt.update(ms(40), ms(25));
        assert!(rtt.is_sampled());
        assert_eq!((rtt.smoothed(), rtt.variation(), rtt.min(), rtt.latest()), (ms(40), ms(20), ms(40), ms(40)));
        assert_eq!(rtt.pto_base(), ms(120));
    }

    #[test]
    fn delays_of_the_peer_count_unless_they_go_below_the_minimum() {
        let mut rtt = Rtt::new(ms(333));
        rtt.update(ms(40), ms(0));
        rtt.update(ms(64), ms(24));
        assert_eq!((rtt.smoothed(), rtt.variation(), rtt.latest()), (ms(40), ms(15), ms(64)));
        rtt.update(ms(48), ms(24));
        assert_eq!(rtt.smoothed(), ms(41), "48 - 24 is below the minimum");
        rtt.update(ms(10), ms(5));
        assert_eq!(rtt.min(), ms(10));
    }

    #[test]
    fn steady_samples_reduce_the_timeout_to_the_granularity() {
        let mut rtt = Rtt::new(ms(333));
        (0..200).for_each(|_| rtt.update(ms(20), ms(0)));
        assert_eq!(rtt.pto_base(), ms(21));
    }

    #[test]
    fn late_packets_make_the_time_threshold_longer() {
        let mut rtt = Rtt::new(ms(80));
        assert_eq!(rtt.loss_delay(), ms(90));
        rtt.update(ms(40), ms(0));
        assert_eq!(rtt.loss_delay(), ms(45));
        for (late, delay) in [(45, 45), (46, 50), (50, 50), (51, 60), (500, 80), (40, 80)] {
            rtt.on_late(ms(late));
            assert_eq!(rtt.loss_delay(), ms(delay), "{late}");
        }
        rtt.update(ms(48), ms(0));
        assert_eq!(rtt.loss_delay(), ms(96), "the last sample is longer than the mean");
        rtt.on_persistent_congestion();
        assert_eq!(rtt.loss_delay(), ms(96));
        let mut rtt = Rtt::new(ms(0));
        rtt.on_late(ms(1));
        assert_eq!((rtt.loss_delay(), rtt.loss_eighths), (GRANULARITY, LOSS_EIGHTHS));
    }

    proptest! {
        #[test]
        fn estimates_stay_within_the_samples(samples in prop::collection::vec((0u64..u64::MAX, 0u64..u64::MAX), 1..50)) {
            let mut rtt = Rtt::new(ms(333));
            for &(latest, delay) in &samples {
                rtt.update(Duration::from_micros(latest), Duration::from_micros(delay));
                prop_assert!(rtt.min() <= rtt.latest() && rtt.smoothed() <= ROUND_TRIP_MAX);
                prop_assert!(rtt.smoothed() + Duration::from_nanos(1) * 50 >= rtt.min());
                prop_assert!(rtt.pto_base() >= rtt.smoothed() + GRANULARITY);
            }
        }
    }
}
