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

/// Bytes that a client has moved, and the time that the server has waited for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransferRate {
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

impl TransferRate {
    /// Counts time spent waiting for the client.
    pub(super) fn on_wait(&mut self, waited_ms: u64) {
        self.waited_ms += waited_ms;
    }

    /// Counts bytes that the client has moved, after the wait for them.
    pub(super) fn on_bytes(&mut self, bytes: u64, limit: &TransferRateLimit) {
        self.counted_bytes += bytes;
        // A limit may be set later.
        if limit.bytes_per_second_min > 0 {
            let paid_ms_max = self.waited_ms.saturating_add(limit.credit_ms_max);
            let bytes_max = paid_ms_max.saturating_mul(limit.bytes_per_second_min).div_ceil(1_000);
            self.counted_bytes = self.counted_bytes.min(bytes_max);
        }
    }

    /// True if the client is too slow after this further time without bytes.
    pub(super) fn is_too_slow(&self, waiting_ms: u64, limit: &TransferRateLimit) -> bool {
        self.wait_left_ms(limit).is_some_and(|left_ms| waiting_ms >= left_ms)
    }

    /// Time without further bytes after which the client is too slow; `None` without a limit.
    pub(super) fn wait_left_ms(&self, limit: &TransferRateLimit) -> Option<u64> {
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
    fn the_time_left_is_exact() {
        let mut rate = TransferRate::default();
        assert_eq!(rate.wait_left_ms(&LIMIT), Some(2_001));
        rate.on_wait(1_500);
        rate.on_bytes(300, &LIMIT);
        assert_eq!(rate.wait_left_ms(&LIMIT), Some(1_501));
        assert!(!rate.is_too_slow(1_500, &LIMIT) && rate.is_too_slow(1_501, &LIMIT));
    }
}
