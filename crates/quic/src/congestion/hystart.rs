//! End of slow start before losses: HyStart++ (RFC 9406).

/// Least increase of the round-trip time that ends slow start, in microseconds (`MIN_RTT_THRESH`).
const INCREASE_MIN: u32 = 4_000;

/// Largest increase of the round-trip time that is tolerated, in microseconds (`MAX_RTT_THRESH`).
const INCREASE_MAX: u32 = 16_000;

/// Part of the round-trip time that is tolerated as an increase (`MIN_RTT_DIVISOR`).
const INCREASE_DIVISOR: u32 = 8;

/// Samples of a round trip that are needed (`N_RTT_SAMPLE`).
const SAMPLES: u8 = 8;

/// Factor by which conservative slow start is slower (`CSS_GROWTH_DIVISOR`).
const GROWTH_DIVISOR: u64 = 4;

/// Round trips of conservative slow start before congestion avoidance (`CSS_ROUNDS`).
const ROUNDS: u8 = 5;

/// Observer of round-trip times in the first slow start. Times are in microseconds; `u32::MAX` means none.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// Shortest time of the last round trip.
    last: u32,
    /// Shortest time of this round trip.
    current: u32,
    /// Shortest time of the round trip in which conservative slow start began; none in slow start.
    baseline: u32,
    /// Samples of this round trip.
    samples: u8,
    /// Round trips of conservative slow start.
    rounds: u8,
}

impl HyStart {
    pub(super) const fn new() -> Self {
        Self { last: u32::MAX, current: u32::MAX, baseline: u32::MAX, samples: 0, rounds: 0 }
    }

    /// Bytes by which the window grows for acknowledged bytes. Flows are paced, so that there is no limit for each ACK frame.
    pub(super) fn growth(&self, acked_bytes: u64) -> u64 {
        if self.is_conservative() { acked_bytes / GROWTH_DIVISOR } else { acked_bytes }
    }

    fn is_conservative(&self) -> bool {
        self.baseline != u32::MAX
    }

    /// Adds the sample of an ACK frame.
    pub(super) fn on_sample(&mut self, sample: u32) {
        self.current = self.current.min(sample);
        self.samples = self.samples.saturating_add(1);
        if self.samples < SAMPLES {
            return;
        }
        if self.is_conservative() {
            if self.current < self.baseline {
                // The increase has passed: it was no queue.
                (self.baseline, self.rounds) = (u32::MAX, 0);
            }
        } else if self.last != u32::MAX {
            let increase = (self.last / INCREASE_DIVISOR).clamp(INCREASE_MIN, INCREASE_MAX);
            if self.current >= self.last.saturating_add(increase) {
                (self.baseline, self.rounds) = (self.current, 0);
            }
        }
    }

    /// Ends a round trip. Returns true if slow start must end.
    pub(super) fn on_round_end(&mut self) -> bool {
        (self.last, self.current, self.samples) = (self.current, u32::MAX, 0);
        if self.is_conservative() {
            self.rounds += 1;
        }
        self.rounds >= ROUNDS
    }
}
