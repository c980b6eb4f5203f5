//! Congestion control of a path (RFC 9002, section 7).

mod bbr;
mod cubic;
mod hystart;
mod new_reno;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use bbr::Bbr;
use cubic::Cubic;
use new_reno::NewReno;

use crate::rtt::Rtt;

/// Smallest window, in datagrams (RFC 9002, section 7.2).
const WINDOW_DATAGRAMS_MIN: u64 = 2;

/// Largest window, in bytes: more than 10 Gbit/s over 200 ms needs. A peer that acknowledges packets it has not received cannot make
/// the server send more at once.
const WINDOW_BYTES_MAX: u64 = 256 << 20;

/// Round-trip time up to which flows are not paced: timers would be coarser than the gaps.
const UNPACED_ROUND_TRIP: Duration = Duration::from_millis(1);

/// Algorithm of congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionAlgorithm {
    /// CUBIC (RFC 9438) with HyStart++ (RFC 9406).
    Cubic,
    /// NewReno (RFC 9002).
    NewReno,
    /// BBR, version 1.
    Bbr,
}

/// Congestion controller of a path.
#[derive(Clone, Debug)]
pub(crate) enum Congestion {
    /// CUBIC.
    Cubic(Cubic),
    /// NewReno.
    NewReno(NewReno),
    /// BBR; boxed, because others are much smaller.
    Bbr(Box<Bbr>),
}

impl Congestion {
    /// Controller of a new path. Packets are sent in datagrams of at most `datagram_bytes`.
    pub(crate) fn new(kind: CongestionAlgorithm, initial_window_bytes: u64, datagram_bytes: u16, now: Instant) -> Self {
        let window = initial_window_bytes.min(WINDOW_BYTES_MAX);
        match kind {
            CongestionAlgorithm::Cubic => Self::Cubic(Cubic::new(window, datagram_bytes)),
            CongestionAlgorithm::NewReno => Self::NewReno(NewReno::new(window, datagram_bytes)),
            CongestionAlgorithm::Bbr => Self::Bbr(Box::new(Bbr::new(window, datagram_bytes, now))),
        }
    }

    /// Bytes that may be in flight.
    #[inline]
    pub(crate) fn window(&self) -> u64 {
        match self {
            Self::Cubic(cubic) => cubic.flow.window,
            Self::NewReno(reno) => reno.flow.window,
            Self::Bbr(bbr) => bbr.window(),
        }
    }

    /// Notes a packet that counts as in flight. `in_flight_before` does not have its bytes.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Instant, number: u64, bytes: u64, in_flight_before: u64) {
        match self {
            Self::Cubic(cubic) => cubic.flow.on_sent(number, bytes, in_flight_before),
            Self::NewReno(reno) => reno.flow.on_sent(number, bytes, in_flight_before),
            Self::Bbr(bbr) => bbr.on_sent(now, number, bytes, in_flight_before),
        }
    }

    /// Notes a packet in flight that is acknowledged for the first time. `rtt` has the sample of its ACK frame.
    #[inline]
    pub(crate) fn on_acked(
        &mut self,
        now: Instant,
        sent_at: Instant,
        number: u64,
        bytes: u64,
        is_app_limited: bool,
        rtt: &Rtt,
    ) {
        match self {
            Self::Cubic(cubic) => cubic.on_acked(now, sent_at, bytes, is_app_limited, rtt),
            Self::NewReno(reno) => reno.on_acked(sent_at, bytes, is_app_limited),
            Self::Bbr(bbr) => bbr.on_acked(now, sent_at, number, bytes, is_app_limited, rtt),
        }
    }

    /// Ends an ACK frame that has acknowledged packets in flight. `in_flight` does not have them any more.
    pub(crate) fn on_ack_end(&mut self, now: Instant, in_flight: u64, is_app_limited: bool, largest_acked: u64) {
        match self {
            Self::Cubic(cubic) => cubic.on_ack_end(in_flight, largest_acked),
            Self::NewReno(reno) => drop(reno.flow.on_ack_end(in_flight, largest_acked)),
            Self::Bbr(bbr) => bbr.on_ack_end(now, in_flight, is_app_limited, largest_acked),
        }
    }

    /// Notes lost packets, or a larger count of CE marks, for which `lost_bytes` is zero. `sent_at` is the time of the newest packet.
    pub(crate) fn on_congestion(&mut self, now: Instant, sent_at: Instant, is_persistent: bool, lost_bytes: u64) {
        match self {
            Self::Cubic(cubic) => cubic.on_congestion(now, sent_at, is_persistent, lost_bytes),
            Self::NewReno(reno) => reno.on_congestion(now, sent_at, is_persistent, lost_bytes),
            Self::Bbr(bbr) => bbr.on_congestion(is_persistent, lost_bytes),
        }
    }

    /// Notes that all packets of the last congestion event have arrived after all. The window of before is restored, once for each
    /// event, unless CE marks or persistent congestion have reduced it.
    pub(crate) fn on_spurious_loss(&mut self) {
        match self {
            Self::Cubic(cubic) => cubic.on_spurious_loss(),
            Self::NewReno(reno) => reno.on_spurious_loss(),
            // The model does not depend on single losses.
            Self::Bbr(_) => {}
        }
    }

    /// Sets the largest size of datagrams.
    pub(crate) fn set_datagram_bytes(&mut self, bytes: u16) {
        match self {
            Self::Cubic(cubic) => cubic.flow.set_datagram_bytes(bytes),
            Self::NewReno(reno) => reno.flow.set_datagram_bytes(bytes),
            Self::Bbr(bbr) => bbr.set_datagram_bytes(bytes),
        }
    }

    /// Rate at which packets should be sent, in bytes per second; `None` without pacing.
    ///
    /// Rates exceed a window for each round trip (RFC 9002, section 7.7): by a factor of 2 in slow start, because the window doubles
    /// meanwhile, and by 1.25 later. The initial window is not paced before the first sample.
    pub(crate) fn pacing_rate(&self, rtt: &Rtt) -> Option<u64> {
        if !rtt.is_sampled() || rtt.smoothed() <= UNPACED_ROUND_TRIP {
            return None;
        }
        match self {
            Self::Bbr(bbr) => Some(bbr.pacing_rate(rtt)),
            _ => {
                let gain = if self.is_slow_start() { 2.0 } else { 1.25 };
                Some((gain * self.window() as f64 / rtt.smoothed().as_secs_f64()) as u64)
            }
        }
    }

    /// True if the window grows exponentially.
    pub(crate) fn is_slow_start(&self) -> bool {
        match self {
            Self::Cubic(cubic) => cubic.flow.is_slow_start(),
            Self::NewReno(reno) => reno.flow.is_slow_start(),
            Self::Bbr(bbr) => bbr.is_startup(),
        }
    }

    /// Window at which slow start ends, after the first congestion.
    pub(crate) fn slow_start_threshold(&self) -> Option<u64> {
        let threshold = match self {
            Self::Cubic(cubic) => cubic.flow.threshold,
            Self::NewReno(reno) => reno.flow.threshold,
            Self::Bbr(_) => return None,
        };
        (threshold != u64::MAX).then_some(threshold)
    }
}

/// State that CUBIC and NewReno share.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Congestion window, in bytes.
    window: u64,
    /// Window at which slow start ends; `u64::MAX` before the first congestion.
    threshold: u64,
    /// Beginning of the last recovery period. Packets of before cause no further reduction, and do not grow the window.
    recovery_from: Option<Instant>,
    /// Most bytes in flight in this round trip.
    flight_max: u32,
    /// Most bytes in flight in the round trip before.
    flight_max_before: u32,
    /// Number of the last packet sent.
    sent: u64,
    /// Packet whose acknowledgment ends this round trip.
    round_end: u64,
    datagram_bytes: u64,
}

impl Flow {
    fn new(window: u64, datagram_bytes: u16) -> Self {
        let datagram_bytes = datagram_bytes.into();
        Self {
            window: window.max(WINDOW_DATAGRAMS_MIN * datagram_bytes),
            threshold: u64::MAX,
            recovery_from: None,
            flight_max: 0,
            flight_max_before: 0,
            sent: 0,
            round_end: 0,
            datagram_bytes,
        }
    }

    fn window_min(&self) -> u64 {
        WINDOW_DATAGRAMS_MIN * self.datagram_bytes
    }

    fn is_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    fn on_sent(&mut self, number: u64, bytes: u64, in_flight_before: u64) {
        self.sent = number;
        self.flight_max = self.flight_max.max(saturate(in_flight_before + bytes));
    }

    /// Returns true if a round trip has ended.
    fn on_ack_end(&mut self, in_flight: u64, largest_acked: u64) -> bool {
        if largest_acked < self.round_end {
            return false;
        }
        self.round_end = self.sent + 1;
        (self.flight_max_before, self.flight_max) = (self.flight_max, saturate(in_flight));
        true
    }

    fn is_recovering(&self, sent_at: Instant) -> bool {
        self.recovery_from.is_some_and(|from| sent_at <= from)
    }

    /// True if an acknowledgment of a packet sent at this time may grow the window.
    ///
    /// A window of which less than half was in use must not grow, whatever the caller knows of the application: the path has not
    /// proved that it carries more.
    fn may_grow(&self, sent_at: Instant, is_app_limited: bool) -> bool {
        !is_app_limited && !self.is_recovering(sent_at) && self.window < self.window_proved()
    }

    /// Twice the bytes in flight, of which the path has taken one half.
    fn window_proved(&self) -> u64 {
        2 * u64::from(self.flight_max.max(self.flight_max_before))
    }

    fn grow(&mut self, bytes: u64) {
        self.window = (self.window + bytes).min(WINDOW_BYTES_MAX);
    }

    /// Begins a recovery period with this window.
    fn reduce(&mut self, now: Instant, window: u64) {
        self.window = window.max(self.window_min());
        self.threshold = self.window;
        self.recovery_from = Some(now);
    }

    /// Reduces the window to the minimum (RFC 9002, section 7.6.2).
    fn on_persistent_congestion(&mut self) {
        self.window = self.window_min();
        self.recovery_from = None;
    }

    fn set_datagram_bytes(&mut self, bytes: u16) {
        self.datagram_bytes = bytes.into();
        self.window = self.window.max(self.window_min());
    }
}

fn saturate(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
