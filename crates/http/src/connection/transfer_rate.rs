//! Mean rate of a client that sends content or reads a response, for `rate-bytes-per-second-min`.

use crate::config::Limits;

/// Limit of slow transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransferRateLimit {
    /// Minimum rate; 0 is no limit.
    bytes_per_second_min: u64,
    /// Waiting time before the limit applies, in milliseconds.
    grace_ms: u64,
    /// Waiting time that earlier bytes may pay for, in milliseconds. Without this bound, a client could send much at
    /// once and then hold it for hours with a byte a second.
    credit_ms_max: u64,
}

/// Meter of a transfer in one direction: finds clients that are too slow. Only time for which the server waits for the
/// client counts, so that a slow handler does no harm.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransferMeter {
    rate: TransferRate,
    /// Start of the wait in progress; `None` if the client is not waited for.
    waiting_since_ms: Option<u64>,
}

/// Bytes that a client has moved, and the time that the server has waited for it.
#[derive(Clone, Copy, Debug, Default)]
struct TransferRate {
    /// Bytes moved, without those beyond the credit.
    counted_bytes: u64,
    waited_ms: u64,
}

impl TransferRateLimit {
    /// Limit of a configuration. A client may pause as long as the longer of the time limits for a single wait.
    pub(super) fn of(limits: &Limits) -> Self {
        let grace_ms = limits.write_timeout.as_millis() as u64;
        Self {
            bytes_per_second_min: limits.rate_bytes_per_second_min,
            grace_ms,
            credit_ms_max: grace_ms.max(limits.body_timeout.as_millis() as u64),
        }
    }
}

impl TransferMeter {
    /// Begins a wait for the client, unless one is in progress.
    pub(super) fn begin_wait(&mut self, now_ms: u64) {
        self.waiting_since_ms.get_or_insert(now_ms);
    }

    /// Ends a wait for the client, if one is in progress.
    pub(super) fn end_wait(&mut self, now_ms: u64) {
        if let Some(since_ms) = self.waiting_since_ms.take() {
            self.rate.on_wait(now_ms.saturating_sub(since_ms));
        }
    }

    /// Counts bytes that the client has moved, after the wait for them.
    pub(super) fn on_bytes(&mut self, bytes: u64, limit: &TransferRateLimit) {
        self.rate.on_bytes(bytes, limit);
    }

    /// Start of the wait in progress; `None` if the client is not waited for.
    pub(super) fn waiting_since_ms(&self) -> Option<u64> {
        self.waiting_since_ms
    }

    /// True if the client is too slow.
    pub(super) fn is_too_slow(&self, now_ms: u64, limit: &TransferRateLimit) -> bool {
        let waiting_ms = self.waiting_since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
        self.rate.is_too_slow(waiting_ms, limit)
    }

    /// Time at which the client is too slow unless it moves bytes first; `None` if it is not waited for, or has no limit.
    pub(super) fn deadline_ms(&self, limit: &TransferRateLimit) -> Option<u64> {
        self.waiting_since_ms?.checked_add(self.rate.wait_left_ms(limit)?)
    }
}

impl TransferRate {
    /// Counts time spent waiting for the client.
    fn on_wait(&mut self, waited_ms: u64) {
        self.waited_ms += waited_ms;
    }

    /// Counts bytes that the client has moved, after the wait for them.
    fn on_bytes(&mut self, bytes: u64, limit: &TransferRateLimit) {
        self.counted_bytes += bytes;
        // A limit may be set later.
        if limit.bytes_per_second_min > 0 {
            let paid_ms_max = self.waited_ms.saturating_add(limit.credit_ms_max);
            let bytes_max = paid_ms_max.saturating_mul(limit.bytes_per_second_min).div_ceil(1_000);
            self.counted_bytes = self.counted_bytes.min(bytes_max);
        }
    }

    /// True if the client is too slow after this further time without bytes.
    fn is_too_slow(&self, waiting_ms: u64, limit: &TransferRateLimit) -> bool {
        self.wait_left_ms(limit).is_some_and(|left_ms| waiting_ms >= left_ms)
    }

    /// Time without further bytes after which the client is too slow; `None` without a limit.
    fn wait_left_ms(&self, limit: &TransferRateLimit) -> Option<u64> {
        let paid_ms = self.counted_bytes.saturating_mul(1_000).checked_div(limit.bytes_per_second_min)?;
        Some((paid_ms.max(limit.grace_ms) + 1).saturating_sub(self.waited_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: TransferRateLimit =
        TransferRateLimit { bytes_per_second_min: 100, grace_ms: 2_000, credit_ms_max: 10_000 };

    /// Time until a client is too slow that moves `burst` bytes at first and then `bytes` each second.
    fn seconds_until_too_slow(burst: u64, bytes: u64, limit: &TransferRateLimit) -> Option<u64> {
        let mut rate = TransferRate::default();
        rate.on_bytes(burst, limit);
        (1..1_000).find(|_| {
            rate.on_wait(1_000);
            rate.on_bytes(bytes, limit);
            rate.is_too_slow(0, limit)
        })
    }

    /// Issue 17: a client that had sent 7 MB held them for hours with a byte a second.
    #[test]
    fn a_fast_beginning_pays_for_a_bounded_time() {
        for (burst, bytes, expect) in [
            (0, 1, Some(3)),
            (0, 99, Some(3)),
            (0, 100, None),
            (500, 1, Some(6)),
            (1_000, 1, Some(11)),
            (1 << 40, 1, Some(11)),
            (1 << 40, 50, Some(21)),
            (1 << 40, 100, None),
        ] {
            assert_eq!(seconds_until_too_slow(burst, bytes, &LIMIT), expect, "{burst} {bytes}");
        }
        assert_eq!(seconds_until_too_slow(0, 0, &TransferRateLimit { bytes_per_second_min: 0, ..LIMIT }), None);
    }

    #[test]
    fn bytes_that_came_while_there_was_no_limit_count() {
        let mut rate = TransferRate::default();
        let none = TransferRateLimit { bytes_per_second_min: 0, ..LIMIT };
        rate.on_bytes(1 << 20, &none);
        rate.on_wait(100_000);
        assert_eq!((rate.wait_left_ms(&none), rate.is_too_slow(u64::MAX, &none)), (None, false));
        assert!(!rate.is_too_slow(0, &LIMIT));
    }

    #[test]
    fn only_waits_for_the_client_count() {
        let mut meter = TransferMeter::default();
        assert_eq!((meter.deadline_ms(&LIMIT), meter.is_too_slow(u64::MAX, &LIMIT)), (None, false));
        meter.begin_wait(1_000);
        meter.begin_wait(1_500);
        assert_eq!((meter.waiting_since_ms(), meter.deadline_ms(&LIMIT)), (Some(1_000), Some(3_001)));
        meter.end_wait(2_000);
        meter.end_wait(2_500);
        assert!(!meter.is_too_slow(u64::MAX, &LIMIT));
        meter.begin_wait(10_000);
        assert_eq!(meter.deadline_ms(&LIMIT), Some(11_001));
        assert!(!meter.is_too_slow(11_000, &LIMIT) && meter.is_too_slow(11_001, &LIMIT));
        meter.end_wait(11_000);
        meter.on_bytes(300, &LIMIT);
        meter.begin_wait(11_000);
        assert_eq!(meter.deadline_ms(&LIMIT), Some(12_001));
    }

    #[test]
    fn the_time_left_is_exact() {
        let mut rate = TransferRate::default();
        assert_eq!(rate.wait_left_ms(&LIMIT), Some(2_001));
        rate.on_wait(1_500);
        rate.on_bytes(300, &LIMIT);
        assert_eq!(rate.wait_left_ms(&LIMIT), Some(1_501));
        assert!(!rate.is_too_slow(1_500, &LIMIT) && rate.is_too_slow(1_501, &LIMIT));
    }
}
