//! Pacing of datagrams (RFC 9002, section 7.7).

use std::time::{Duration, Instant};

/// Datagrams that a burst holds at least: the initial window of RFC 9002, section 7.2, which paths must take at once anyway.
const BURST_DATAGRAMS_MIN: u64 = 10;

/// Time of a burst at the pacing rate. Shorter ones would break batches of datagrams and set timers too often on fast lines.
const BURST_TIME: Duration = Duration::from_millis(2);

/// Largest burst, in bytes, so that queues of switches and of receivers do not overflow.
const BURST_BYTES_MAX: u64 = 256 << 10;

/// Token bucket that spreads datagrams over the round-trip time.
///
/// Datagrams go out while there are tokens. An empty bucket must fill to half of a burst first, so that datagrams leave in batches,
/// with one timer for each batch. A batch may overdraw the bucket; the next one then waits longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    /// Bytes that may be sent; negative after an overdraft. Fractions matter, because polls may follow each other quickly.
    tokens: f64,
    /// Time of the last filling.
    filled_at: Instant,
    /// True while an empty bucket fills to half of a burst.
    is_empty: bool,
}

impl Pacer {
    /// Pacer whose bucket is full.
    pub(crate) fn new(now: Instant) -> Self {
        // The first call of `wait` cuts the tokens to a burst.
        Self { tokens: f64::INFINITY, filled_at: now, is_empty: false }
    }

    /// Time to wait for before the next datagram or batch; `None` if it may be sent now.
    ///
    /// `bytes` is the size of the datagram or batch, and `rate` the pacing rate in bytes per second; flows without a rate are not
    /// paced. `window` is the congestion window.
    pub(crate) fn wait(
        &mut self,
        now: Instant,
        bytes: u64,
        rate: Option<u64>,
        datagram_bytes: u16,
        window: u64,
    ) -> Option<Instant> {
        let rate = rate.unwrap_or(u64::MAX).max(1);
        let burst = burst_bytes(rate, datagram_bytes);
        if rate == u64::MAX || window <= burst {
            // The window alone limits bursts.
            (self.tokens, self.filled_at, self.is_empty) = (burst as f64, now, false);
            return None;
        }
        let gained = now.saturating_duration_since(self.filled_at).as_secs_f64() * rate as f64;
        self.tokens = (self.tokens + gained).min(burst as f64);
        self.filled_at = self.filled_at.max(now);

        // Tokens below a byte are noise of the rounding.
        let needed = if self.is_empty { bytes.max(burst / 2) } else { bytes }.min(burst) as f64 - 1.0;
        if self.tokens >= needed {
            self.is_empty = false;
            return None;
        }
        self.is_empty = true;
        let missing = bytes.max(burst / 2).min(burst) as f64 - self.tokens;
        // A minute at most: a connection with a longer wait would time out.
        Some(now + Duration::from_secs_f64((missing / rate as f64).min(60.0)) + Duration::from_nanos(1))
    }

    /// Bytes that a batch may have now without an overdraft: at least those of one datagram. Call it after [`wait`](Self::wait).
    pub(crate) fn batch_bytes(&self, datagram_bytes: u16) -> u64 {
        (self.tokens.max(0.0) as u64).max(datagram_bytes.into())
    }

    /// Takes the tokens of datagrams that were sent.
    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.tokens -= bytes as f64;
    }
}

/// Size of a burst.
fn burst_bytes(rate: u64, datagram_bytes: u16) -> u64 {
    let bytes = rate / (Duration::from_secs(1).as_nanos() / BURST_TIME.as_nanos()) as u64;
    bytes.clamp(BURST_DATAGRAMS_MIN * u64::from(datagram_bytes), BURST_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM: u16 = 1200;

    /// Sends single datagrams for a time as fast as the pacer permits. Returns the bytes sent and the number of waits.
    fn send(rate: u64, window: u64, time: Duration) -> (u64, u64) {
        let start = Instant::now();
        let (mut now, mut pacer, mut sent, mut waits) = (start, Pacer::new(start), 0, 0);
        while now < start + time {
            match pacer.wait(now, DATAGRAM.into(), Some(rate), DATAGRAM, window) {
                None => {
                    pacer.on_sent(DATAGRAM.into());
                    sent += u64::from(DATAGRAM);
                }
                Some(at) => {
                    assert!(at > now);
                    (now, waits) = (at, waits + 1);
                }
            }
        }
        (sent, waits)
    }

    #[test]
    fn the_rate_is_kept_at_all_speeds() {
        for rate in [20_000, 1_000_000, 10_000_000, 100_000_000, 2_000_000_000] {
            let (sent, _) = send(rate, u64::MAX, Duration::from_secs(2));
            let burst = burst_bytes(rate, DATAGRAM);
            assert!(sent.abs_diff(2 * rate) <= burst + 2 * u64::from(DATAGRAM), "{sent} bytes at {rate}");
        }
    }

    #[test]
    fn timers_are_for_batches_not_for_datagrams() {
        // Slow and long line: five datagrams for each timer.
        let (sent, waits) = send(500_000, 100_000, Duration::from_secs(1));
        assert!(sent / u64::from(DATAGRAM) >= waits * 9 / 2, "{waits} timers for {sent} bytes");
        // Fast line: a batch of 40 datagrams fits in half of a burst.
        let (sent, waits) = send(100_000_000, 10_000_000, Duration::from_secs(1));
        assert!(sent / u64::from(DATAGRAM) >= waits * 40, "{waits} timers for {sent} bytes");
    }

    #[test]
    fn short_paths_and_small_windows_do_not_wait() {
        assert_eq!(send(u64::MAX, 1 << 20, Duration::ZERO).1, 0);
        let now = Instant::now();
        let mut pacer = Pacer::new(now);
        for _ in 0..1000 {
            assert_eq!(pacer.wait(now, 48_000, None, DATAGRAM, 1 << 30), None);
            pacer.on_sent(48_000);
            assert_eq!(pacer.wait(now, 1200, Some(100_000), DATAGRAM, 12_000), None, "one initial window");
        }
    }

    #[test]
    fn overdrafts_are_paid_back() {
        let now = Instant::now();
        let mut pacer = Pacer::new(now);
        assert_eq!(pacer.wait(now, 1200, Some(1_000_000), DATAGRAM, 1 << 20), None);
        assert_eq!(pacer.batch_bytes(DATAGRAM), 12_000);
        pacer.on_sent(48_000);
        assert_eq!(pacer.batch_bytes(DATAGRAM), 1200);
        let at = pacer.wait(now, 1200, Some(1_000_000), DATAGRAM, 1 << 20).unwrap();
        assert!(
            (at - now).abs_diff(Duration::from_millis(42)) < Duration::from_micros(10),
            "36 of debt and 6 of a batch"
        );
        assert!(pacer.wait(at - Duration::from_millis(1), 1200, Some(1_000_000), DATAGRAM, 1 << 20).is_some());
        assert_eq!(pacer.wait(at, 1200, Some(1_000_000), DATAGRAM, 1 << 20), None);
    }

    #[test]
    fn batches_larger_than_a_burst_start_with_a_full_bucket() {
        let now = Instant::now();
        let mut pacer = Pacer::new(now);
        assert_eq!(pacer.wait(now, 48_000, Some(1_000_000), DATAGRAM, 1 << 20), None);
        pacer.on_sent(12_000);
        let at = pacer.wait(now, 48_000, Some(1_000_000), DATAGRAM, 1 << 20).unwrap();
        assert!((at - now).abs_diff(Duration::from_millis(12)) < Duration::from_micros(10));
        assert_eq!(pacer.wait(at, 48_000, Some(1_000_000), DATAGRAM, 1 << 20), None);
    }

    #[test]
    fn idle_time_saves_no_more_than_a_burst() {
        let now = Instant::now();
        let mut pacer = Pacer::new(now);
        let later = now + Duration::from_secs(3600);
        assert_eq!(pacer.wait(later, 1200, Some(1_000_000), DATAGRAM, 1 << 20), None);
        assert_eq!(pacer.batch_bytes(DATAGRAM), 12_000);
        assert_eq!(pacer.wait(now, 1200, Some(1_000_000), DATAGRAM, 1 << 20), None, "time that goes back");
    }

    #[test]
    fn frequent_polls_lose_no_fractions() {
        let start = Instant::now();
        let mut pacer = Pacer::new(start);
        pacer.wait(start, 1200, Some(50_000), DATAGRAM, 1 << 20);
        pacer.on_sent(12_000);
        let mut now = start;
        while pacer.wait(now, 1200, Some(50_000), DATAGRAM, 1 << 20).is_some() {
            now += Duration::from_micros(3);
        }
        assert!((now - start).abs_diff(Duration::from_millis(120)) < Duration::from_millis(1));
    }
}
