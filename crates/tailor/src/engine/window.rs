//! Congestion window of the server on a simulated line: slow start and losses, seen from the client.

use fastrand::Rng;

use super::clock::{MILLISECOND, Nanos};

/// Payload of a packet.
const SEGMENT_BYTES: u64 = 1460;
/// Window of a new connection (RFC 6928).
const INITIAL_WINDOW_BYTES: u64 = 10 * SEGMENT_BYTES;
/// Minimum of the threshold after a loss (RFC 5681, section 3.1).
const THRESHOLD_BYTES_MIN: u64 = 2 * SEGMENT_BYTES;
/// A smaller window brings too few acknowledgements for a fast retransmission (RFC 5681, section 3.2).
const FAST_RETRANSMISSION_BYTES_MIN: u64 = 4 * SEGMENT_BYTES;
/// Minimum time until a server sends a lost packet again without acknowledgements; that of Linux.
const RETRANSMISSION_TIME_MIN: Nanos = 200 * MILLISECOND;

/// Window of a server. It sends a window of bytes per round trip. The window doubles each time (slow start), after a
/// loss it grows by one packet (congestion avoidance).
#[derive(Clone, Copy, Debug)]
pub(crate) struct CongestionWindow {
    round_trip: Nanos,
    /// Share of packets that are lost.
    loss: f64,
    bytes: u64,
    threshold_bytes: u64,
    /// Bytes of the current round that have not arrived.
    left_bytes: u64,
    /// Arrival of the first byte of the round.
    round_at: Nanos,
    /// Time when lost packets arrive.
    held_until: Nanos,
    has_lost: bool,
    /// True after the first response has begun.
    has_begun: bool,
}

impl CongestionWindow {
    pub(crate) fn new(round_trip: Nanos, loss: f64) -> Self {
        Self {
            round_trip,
            loss,
            bytes: INITIAL_WINDOW_BYTES,
            threshold_bytes: u64::MAX,
            left_bytes: INITIAL_WINDOW_BYTES,
            round_at: 0,
            held_until: 0,
            has_lost: false,
            has_begun: false,
        }
    }

    /// Begins a response, not before `now`. If the last round is over, its acknowledgements have arrived.
    pub(crate) fn begin(&mut self, now: Nanos) {
        if !self.has_begun || now >= self.round_at + self.round_trip {
            if self.left_bytes == 0 {
                self.grow();
            }
            self.has_begun = true;
            (self.round_at, self.left_bytes, self.has_lost) = (now, self.bytes, false);
        }
    }

    /// Returns the bytes that have arrived by now, or the time when the next ones arrive.
    pub(crate) fn arrived_bytes(&mut self, now: Nanos) -> Result<u64, Nanos> {
        if now < self.held_until.max(self.round_at) {
            return Err(self.held_until.max(self.round_at));
        }
        if self.left_bytes == 0 {
            let next = self.round_at + self.round_trip;
            if now < next {
                return Err(next);
            }
            self.grow();
            // A line that is slower than the window gets acknowledgements all the time.
            self.round_at = if now < next + self.round_trip { next } else { now };
            (self.left_bytes, self.has_lost) = (self.bytes, false);
        }
        Ok(self.left_bytes)
    }

    fn grow(&mut self) {
        self.bytes += if self.bytes < self.threshold_bytes { self.bytes } else { SEGMENT_BYTES };
    }

    /// Subtracts received bytes, of which packets may have been lost. What follows a lost packet waits for it.
    pub(crate) fn pay(&mut self, bytes: u64, now: Nanos, rng: &mut Rng) {
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        if self.loss <= 0.0 || self.has_lost {
            return;
        }
        // The probability that one packet of them is lost. All losses of a round are repaired together.
        let packets = bytes as f64 / SEGMENT_BYTES as f64;
        if rng.f64() < 1.0 - (1.0 - self.loss).powf(packets) {
            self.lose(now);
        }
    }

    fn lose(&mut self, now: Nanos) {
        self.has_lost = true;
        self.threshold_bytes = (self.bytes / 2).max(THRESHOLD_BYTES_MIN);
        if self.bytes >= FAST_RETRANSMISSION_BYTES_MIN {
            self.bytes = self.threshold_bytes;
            self.held_until = now + self.round_trip;
        } else {
            self.bytes = SEGMENT_BYTES;
            self.held_until = now + retransmission_time(self.round_trip);
        }
    }
}

/// Time until a packet is sent again without acknowledgements of later ones.
pub(crate) fn retransmission_time(round_trip: Nanos) -> Nanos {
    (2 * round_trip).max(RETRANSMISSION_TIME_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Nanos = 100 * MILLISECOND;

    /// Time from the first byte to the last one of a response, in virtual time.
    fn transfer(window: &mut CongestionWindow, start: Nanos, mut bytes: u64, rng: &mut Rng) -> Nanos {
        let mut now = start;
        window.begin(now);
        loop {
            match window.arrived_bytes(now) {
                Err(at) => now = at,
                Ok(arrived) => {
                    let taken = arrived.min(bytes).min(64 << 10);
                    window.pay(taken, now, rng);
                    bytes -= taken;
                    if bytes == 0 {
                        return now - start;
                    }
                }
            }
        }
    }

    #[test]
    fn slow_start() {
        // Rounds of 10, 20, 40 … packets.
        for (packets, round_trips) in [(1, 0), (10, 0), (11, 1), (30, 1), (31, 2), (70, 2), (630, 5), (631, 6)] {
            let mut window = CongestionWindow::new(ROUND_TRIP, 0.0);
            let time = transfer(&mut window, 7, packets * SEGMENT_BYTES, &mut Rng::with_seed(1));
            assert_eq!(time, round_trips * ROUND_TRIP, "{packets} packets");
        }
        // The next response of a connection begins with the window that the last one has reached.
        let (mut window, mut rng) = (CongestionWindow::new(ROUND_TRIP, 0.0), Rng::with_seed(1));
        transfer(&mut window, 0, 30 * SEGMENT_BYTES, &mut rng);
        assert_eq!(transfer(&mut window, 10 * ROUND_TRIP, 40 * SEGMENT_BYTES, &mut rng), 0);
        // A window that was not used up does not grow.
        transfer(&mut window, 20 * ROUND_TRIP, SEGMENT_BYTES, &mut rng);
        assert_eq!(transfer(&mut window, 30 * ROUND_TRIP, 81 * SEGMENT_BYTES, &mut rng), ROUND_TRIP);
    }

    /// The rate on a line with losses follows the square root of the loss (Mathis et al. 1997): about 1.2 packets per
    /// round trip and root of the loss. Here losses of a round count once, so it is somewhat more.
    #[test]
    fn losses() {
        for loss in [0.001, 0.01] {
            let (mut window, mut rng) = (CongestionWindow::new(ROUND_TRIP, loss), Rng::with_seed(1));
            let packets = 200_000;
            let time = transfer(&mut window, 0, packets * SEGMENT_BYTES, &mut rng);
            let per_round_trip = packets as f64 * ROUND_TRIP as f64 / time as f64;
            let expect = 1.22 / f64::sqrt(loss);
            assert!((0.6..1.6).contains(&(per_round_trip / expect)), "{loss}: {per_round_trip} and {expect}");
        }
        // A single lost packet of a small window waits for the timer.
        let mut window = CongestionWindow {
            bytes: SEGMENT_BYTES,
            left_bytes: SEGMENT_BYTES,
            ..CongestionWindow::new(ROUND_TRIP, 1.0)
        };
        window.pay(SEGMENT_BYTES, 0, &mut Rng::with_seed(1));
        assert_eq!(window.arrived_bytes(0), Err(200 * MILLISECOND));
    }
}
