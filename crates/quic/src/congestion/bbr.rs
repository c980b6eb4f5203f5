//! BBR, version 1 (draft-cardwell-iccrg-bbr-congestion-control-00), with delivery rates of draft-cheng-iccrg-delivery-rate-estimation.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::WINDOW_BYTES_MAX;
use crate::rtt::Rtt;

/// Gain in STARTUP, 2/ln 2: the least one that doubles the rate in each round trip.
const STARTUP_GAIN: f64 = 2.885;

/// Gain of the window later: one product of bandwidth and delay in flight, and one for late acknowledgments.
const WINDOW_GAIN: f64 = 2.0;

/// Gains of the pacing rate in PROBE_BW, one after the other.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];

/// Growth of the bandwidth in a round trip that keeps STARTUP going.
const STARTUP_GROWTH: f64 = 1.25;

/// Round trips without growth that end STARTUP.
const STARTUP_ROUNDS: u8 = 3;

/// Part of the bytes of a round trip whose loss ends STARTUP: one in eight. Shallow buffers lose much more, random losses are fewer.
const STARTUP_LOSS_DIVISOR: u64 = 8;

/// Round trips for which the largest bandwidth counts.
const BANDWIDTH_ROUNDS: usize = 10;

/// Round trips for which the largest aggregation of acknowledgments counts, in each of two slots.
const AGGREGATION_ROUNDS: u8 = 5;

/// Time for which the shortest round-trip time counts.
const MIN_RTT_TIME: Duration = Duration::from_secs(10);

/// Least time in PROBE_RTT.
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);

/// Smallest window, in datagrams: acknowledgments for every second packet keep two of four in flight.
const WINDOW_DATAGRAMS_MIN: u64 = 4;

/// Difference between two measures of the same time: the times of sent packets are kept in microseconds.
const TIME_ROUNDING: Duration = Duration::from_micros(2);

/// Most checkpoints in flight, which bounds memory. Each round trip makes about eight.
const CHECKPOINTS_MAX: usize = 16;

/// BBR controller.
#[derive(Clone, Debug)]
pub(crate) struct Bbr {
    initial_window: u64,
    datagram_bytes: u64,
    window: u64,
    mode: Mode,
    /// Largest bandwidths of the last round trips, in bytes per second.
    bandwidths: [u64; BANDWIDTH_ROUNDS],
    /// Index of this round trip in `bandwidths`.
    bandwidth_at: u8,
    /// True if this round trip had a sample. Others do not take a slot, because quiet flows must keep their estimate.
    has_bandwidth: bool,
    /// Largest of `bandwidths`.
    bandwidth: u64,
    min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    last_rtt: Duration,
    /// Bytes acknowledged in the life of the path.
    delivered: u64,
    delivered_at: Instant,
    /// Time at which the newest acknowledged packet was sent.
    acked_sent_at: Instant,
    /// Packets in flight at which samples of the bandwidth begin.
    checkpoints: VecDeque<Checkpoint>,
    /// Count of delivered bytes up to which the flow was limited by the application.
    limited_until: u64,
    sent: u64,
    round_end: u64,
    /// Count of delivered bytes at the start of the round trip.
    round_delivered: u64,
    /// Bytes lost in this round trip.
    round_lost: u64,
    /// Bandwidth of the last growth in STARTUP.
    full_bandwidth: u64,
    full_rounds: u8,
    /// True after the end of STARTUP.
    is_full: bool,
    /// True if nothing was in flight before the packets of this flight.
    is_restart: bool,
    /// Bytes acknowledged by the ACK frame in work.
    acked_now: u64,
    /// Bytes lost since the last ACK frame.
    lost_now: u64,
    recovery: Option<Recovery>,
    aggregation: Aggregation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    ProbeBandwidth {
        /// Index in [`CYCLE`], and the time since which it holds.
        index: u8,
        since: Instant,
    },
    ProbeRtt {
        /// Time and packet that end the mode, once few enough bytes are in flight.
        until: Option<(Instant, u64)>,
        /// Shortest round-trip time in this mode.
        min_rtt: Duration,
    },
}

/// Packet at which a sample of the bandwidth begins.
#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    number: u64,
    sent_at: Instant,
    /// State when the packet was sent.
    delivered: u64,
    delivered_at: Instant,
    acked_sent_at: Instant,
    is_app_limited: bool,
}

/// Limit after losses: packets leave only as others arrive, for one round trip.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    window: u64,
    /// Packet whose acknowledgment permits growth.
    conserves_until: u64,
    /// Packet whose acknowledgment ends the recovery.
    end: u64,
}

/// Bytes that arrive acknowledged in excess of the bandwidth, because receivers and radio links collect acknowledgments.
#[derive(Clone, Copy, Debug)]
struct Aggregation {
    since: Instant,
    bytes: u64,
    /// Largest excesses of two periods of [`AGGREGATION_ROUNDS`].
    excess: [u64; 2],
    rounds: u8,
}

impl Bbr {
    pub(super) fn new(initial_window: u64, datagram_bytes: u16, now: Instant) -> Self {
        let datagram_bytes = datagram_bytes.into();
        let initial_window = initial_window.max(WINDOW_DATAGRAMS_MIN * datagram_bytes);
        Self {
            initial_window,
            datagram_bytes,
            window: initial_window,
            mode: Mode::Startup,
            bandwidths: [0; BANDWIDTH_ROUNDS],
            bandwidth_at: 0,
            has_bandwidth: false,
            bandwidth: 0,
            min_rtt: None,
            min_rtt_at: now,
            last_rtt: Duration::ZERO,
            delivered: 0,
            delivered_at: now,
            acked_sent_at: now,
            checkpoints: VecDeque::new(),
            limited_until: 0,
            sent: 0,
            round_end: 0,
            round_delivered: 0,
            round_lost: 0,
            full_bandwidth: 0,
            full_rounds: 0,
            is_full: false,
            is_restart: false,
            acked_now: 0,
            lost_now: 0,
            recovery: None,
            aggregation: Aggregation { since: now, bytes: 0, excess: [0; 2], rounds: 0 },
        }
    }

    pub(super) fn window(&self) -> u64 {
        match (self.mode, self.recovery) {
            (Mode::ProbeRtt { .. }, _) => self.window.min(self.probe_rtt_window()),
            (Mode::Startup, _) | (_, None) => self.window,
            (_, Some(recovery)) => self.window.min(recovery.window),
        }
    }

    pub(super) fn is_startup(&self) -> bool {
        self.mode == Mode::Startup
    }

    pub(super) fn pacing_rate(&self, rtt: &Rtt) -> u64 {
        let gain = match self.mode {
            Mode::Startup => STARTUP_GAIN,
            Mode::Drain => 1.0 / STARTUP_GAIN,
            Mode::ProbeBandwidth { index, .. } => CYCLE[usize::from(index) % CYCLE.len()],
            Mode::ProbeRtt { .. } => 1.0,
        };
        let mut rate = gain * self.bandwidth as f64;
        if !self.is_full {
            // Before the path is known, no slower than the initial window permits.
            let round_trip = self.min_rtt.unwrap_or(rtt.smoothed()).max(Duration::from_micros(1));
            rate = rate.max(gain * self.initial_window as f64 / round_trip.as_secs_f64());
        }
        (rate as u64).max(self.datagram_bytes)
    }

    pub(super) fn set_datagram_bytes(&mut self, bytes: u16) {
        self.datagram_bytes = bytes.into();
        self.window = self.window.max(self.window_min());
    }

    pub(super) fn on_sent(&mut self, now: Instant, number: u64, _bytes: u64, in_flight_before: u64) {
        self.sent = number;
        if in_flight_before == 0 {
            // Time without packets in flight does not count.
            (self.delivered_at, self.acked_sent_at, self.is_restart) = (now, now, true);
            self.checkpoints.clear();
        }
        let is_due = match self.checkpoints.back() {
            Some(last) => now.saturating_duration_since(last.sent_at) >= self.min_rtt.unwrap_or_default() / 8,
            None => true,
        };
        if is_due && self.checkpoints.len() < CHECKPOINTS_MAX {
            self.checkpoints.push_back(Checkpoint {
                number,
                sent_at: now,
                delivered: self.delivered,
                delivered_at: self.delivered_at,
                acked_sent_at: self.acked_sent_at,
                is_app_limited: self.limited_until > self.delivered,
            });
        }
    }

    pub(super) fn on_acked(
        &mut self,
        now: Instant,
        sent_at: Instant,
        _number: u64,
        bytes: u64,
        _is_app_limited: bool,
        rtt: &Rtt,
    ) {
        self.delivered += bytes;
        self.acked_now += bytes;
        self.delivered_at = now;
        self.acked_sent_at = self.acked_sent_at.max(sent_at);
        self.last_rtt = rtt.latest();
        if self.min_rtt.is_none_or(|min| self.last_rtt <= min) {
            (self.min_rtt, self.min_rtt_at) = (Some(self.last_rtt), now);
        }
    }

    pub(super) fn on_congestion(&mut self, is_persistent: bool, lost_bytes: u64) {
        self.lost_now += lost_bytes;
        self.round_lost += lost_bytes;
        if is_persistent {
            // Bandwidth and delay are still known: the window grows again by what is acknowledged.
            self.window = self.window_min();
        }
    }

    pub(super) fn on_ack_end(&mut self, now: Instant, in_flight: u64, is_app_limited: bool, largest_acked: u64) {
        let acked = std::mem::take(&mut self.acked_now);
        let lost = std::mem::take(&mut self.lost_now);
        if is_app_limited {
            self.limited_until = self.delivered + in_flight.max(1);
        }
        let is_round_end = largest_acked >= self.round_end;
        let is_limited = self.sample_bandwidth(now, largest_acked);
        let excess = self.aggregation.add(now, acked, self.bandwidth);
        self.recover(in_flight, acked, lost, is_round_end, largest_acked);
        if is_round_end {
            self.end_round(is_limited);
        }
        self.change_mode(now, in_flight, lost, is_app_limited, largest_acked);
        self.set_window(acked, excess, is_app_limited);
    }

    /// Takes the sample that ends with the newest acknowledged checkpoint. Returns true if the application has limited the flow.
    fn sample_bandwidth(&mut self, now: Instant, largest_acked: u64) -> bool {
        let passed = self.checkpoints.partition_point(|checkpoint| checkpoint.number <= largest_acked);
        // The newest one stays: it serves for the packets up to the next one.
        self.checkpoints.drain(..passed.saturating_sub(1));
        let Some(checkpoint) = self.checkpoints.front().filter(|_| passed > 0) else {
            return self.limited_until > self.delivered;
        };
        // The slower of sending and of acknowledging: acknowledgments may arrive in one burst.
        let sending = self.acked_sent_at.saturating_duration_since(checkpoint.acked_sent_at);
        let acknowledging = now.saturating_duration_since(checkpoint.delivered_at);
        let time = sending.max(acknowledging);
        let is_app_limited = checkpoint.is_app_limited;
        if time.is_zero() || self.min_rtt.is_some_and(|min| time + TIME_ROUNDING < min) {
            return is_app_limited;
        }
        let bandwidth = ((self.delivered - checkpoint.delivered) as f64 / time.as_secs_f64()) as u64;
        if !is_app_limited || bandwidth > self.bandwidth {
            let slot = &mut self.bandwidths[usize::from(self.bandwidth_at)];
            *slot = bandwidth.max(*slot);
            self.has_bandwidth = true;
            self.bandwidth = self.bandwidths.iter().copied().max().unwrap_or(0);
        }
        is_app_limited
    }

    fn end_round(&mut self, is_limited: bool) {
        if !self.is_full {
            let delivered = self.delivered - self.round_delivered;
            let is_lossy = self.round_lost > WINDOW_DATAGRAMS_MIN * self.datagram_bytes
                && self.round_lost > (delivered + self.round_lost) / STARTUP_LOSS_DIVISOR;
            if self.bandwidth as f64 >= STARTUP_GROWTH * self.full_bandwidth as f64 {
                (self.full_bandwidth, self.full_rounds) = (self.bandwidth, 0);
            } else if !is_limited {
                self.full_rounds += 1;
            }
            self.is_full = self.bandwidth > 0 && (is_lossy || self.full_rounds >= STARTUP_ROUNDS);
        }
        if std::mem::take(&mut self.has_bandwidth) {
            self.bandwidth_at = (self.bandwidth_at + 1) % BANDWIDTH_ROUNDS as u8;
            self.bandwidths[usize::from(self.bandwidth_at)] = 0;
            self.bandwidth = self.bandwidths.iter().copied().max().unwrap_or(0);
        }
        self.aggregation.end_round();
        self.round_end = self.sent + 1;
        self.round_delivered = self.delivered;
        self.round_lost = 0;
    }

    fn recover(&mut self, in_flight: u64, acked: u64, lost: u64, is_round_end: bool, largest_acked: u64) {
        let window_min = self.window_min();
        match &mut self.recovery {
            None if lost > 0 => {
                let window = (in_flight + acked).max(window_min);
                self.recovery = Some(Recovery { window, conserves_until: self.sent + 1, end: self.sent });
            }
            None => {}
            Some(recovery) => {
                if lost > 0 {
                    recovery.end = self.sent;
                    recovery.window = recovery.window.saturating_sub(lost);
                } else if largest_acked > recovery.end {
                    self.recovery = None;
                    return;
                }
                if is_round_end && largest_acked >= recovery.conserves_until {
                    recovery.conserves_until = 0;
                }
                if recovery.conserves_until == 0 {
                    recovery.window += acked;
                }
                recovery.window = recovery.window.max(in_flight + acked).max(window_min);
            }
        }
    }

    fn change_mode(&mut self, now: Instant, in_flight: u64, lost: u64, is_app_limited: bool, largest_acked: u64) {
        if self.mode == Mode::Startup && self.is_full {
            self.mode = Mode::Drain;
        }
        if self.mode == Mode::Drain && in_flight <= self.in_flight_at(1.0) {
            self.probe_bandwidth(now);
        }
        if let Mode::ProbeBandwidth { index, since } = &self.mode {
            let min_rtt = self.min_rtt.unwrap_or_default();
            let gain = CYCLE[usize::from(*index)];
            let is_over = now.saturating_duration_since(*since) > min_rtt;
            let is_next = if gain > 1.0 {
                // The probe must fill the path, unless that causes losses.
                is_over && (lost > 0 || is_app_limited || in_flight >= self.in_flight_at(gain))
            } else if gain < 1.0 {
                // The queue of the probe must leave, which may be soon.
                is_over || in_flight <= self.in_flight_at(1.0)
            } else {
                is_over
            };
            if is_next {
                self.mode = Mode::ProbeBandwidth { index: (index + 1) % CYCLE.len() as u8, since: now };
            }
        }
        self.probe_rtt(now, in_flight, is_app_limited, largest_acked);
        self.is_restart = false;
    }

    /// Begins PROBE_BW with a gain that depends on the flow, so that flows do not probe at the same time. The gain of 0.75 is left
    /// out, because it belongs after 1.25.
    fn probe_bandwidth(&mut self, now: Instant) {
        let index = match (self.sent % 7) as u8 {
            0 => 0,
            other => other + 1,
        };
        self.mode = Mode::ProbeBandwidth { index, since: now };
    }

    fn probe_rtt(&mut self, now: Instant, in_flight: u64, is_app_limited: bool, largest_acked: u64) {
        let window = self.probe_rtt_window();
        let (sent, last_rtt, datagram_bytes) = (self.sent, self.last_rtt, self.datagram_bytes);
        if let Mode::ProbeRtt { until, min_rtt } = &mut self.mode {
            *min_rtt = last_rtt.min(*min_rtt);
            match *until {
                None if in_flight <= window + datagram_bytes => *until = Some((now + PROBE_RTT_TIME, sent + 1)),
                Some((time, number)) if now >= time && largest_acked >= number => {
                    (self.min_rtt, self.min_rtt_at) = (Some(*min_rtt), now);
                    if self.is_full {
                        self.probe_bandwidth(now);
                    } else {
                        self.mode = Mode::Startup;
                    }
                }
                _ => {}
            }
        } else if now.saturating_duration_since(self.min_rtt_at) > MIN_RTT_TIME {
            if is_app_limited || self.is_restart {
                // The flow leaves the queue empty by itself.
                (self.min_rtt, self.min_rtt_at) = (Some(last_rtt), now);
            } else {
                self.mode = Mode::ProbeRtt { until: None, min_rtt: last_rtt };
            }
        }
    }

    /// Lets the window grow by what is acknowledged, up to the target.
    fn set_window(&mut self, acked: u64, excess: u64, is_app_limited: bool) {
        if let Mode::ProbeRtt { .. } = self.mode {
            return;
        }
        let target = if self.is_full {
            let gain = if self.mode == Mode::Drain { STARTUP_GAIN } else { WINDOW_GAIN };
            self.in_flight_at(gain).saturating_add(self.aggregation.largest()).min(self.window + acked)
        } else {
            let target = self.in_flight_at(STARTUP_GAIN).saturating_add(excess).max(self.initial_window);
            // The first samples come with too few acknowledgments to show the bandwidth.
            let is_first = self.delivered <= self.initial_window && !is_app_limited;
            let target = if is_first { self.window + acked } else { target };
            // STARTUP does not reduce the window.
            target.min(self.window + acked).max(self.window)
        };
        self.window = target.clamp(self.window_min(), WINDOW_BYTES_MAX.max(self.window_min()));
    }

    /// Bytes in flight that keep the path busy, times a gain.
    fn in_flight_at(&self, gain: f64) -> u64 {
        match self.min_rtt {
            Some(min_rtt) if self.bandwidth > 0 => {
                let product = self.bandwidth as f64 * min_rtt.as_secs_f64();
                ((gain * product) as u64).max(self.window_min())
            }
            _ => self.initial_window,
        }
    }

    /// Window in PROBE_RTT. Half of the product of bandwidth and delay leaves no queue, and costs less than a nearly closed window.
    fn probe_rtt_window(&self) -> u64 {
        self.in_flight_at(0.5)
    }

    fn window_min(&self) -> u64 {
        WINDOW_DATAGRAMS_MIN * self.datagram_bytes
    }
}

impl Aggregation {
    /// Adds acknowledged bytes. Returns the excess over what the bandwidth explains.
    fn add(&mut self, now: Instant, acked: u64, bandwidth: u64) -> u64 {
        let expected = (bandwidth as f64 * now.saturating_duration_since(self.since).as_secs_f64()) as u64;
        if self.bytes <= expected {
            (self.since, self.bytes) = (now, acked);
            return 0;
        }
        self.bytes += acked;
        let excess = self.bytes - expected;
        if bandwidth > 0 {
            self.excess[0] = self.excess[0].max(excess);
        }
        excess
    }

    fn end_round(&mut self) {
        self.rounds += 1;
        if self.rounds >= AGGREGATION_ROUNDS {
            (self.excess, self.rounds) = ([0, self.excess[0]], 0);
        }
    }

    fn largest(&self) -> u64 {
        self.excess[0].max(self.excess[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM: u64 = 1200;
    const ROUND_TRIP: Duration = Duration::from_millis(40);

    /// Sends packets at a steady pace, each acknowledged after a round trip. Returns the time and the next number.
    fn send(
        bbr: &mut Bbr,
        rtt: &Rtt,
        (start, first): (Instant, u64),
        count: u64,
        gap: Duration,
        is_app_limited: bool,
    ) -> (Instant, u64) {
        let mut in_flight = VecDeque::new();
        let mut now = start;
        for number in first..first + count {
            now += gap;
            while let Some(&(sent_at, acked)) = in_flight.front()
                && sent_at + ROUND_TRIP <= now
            {
                in_flight.pop_front();
                acknowledge(bbr, rtt, sent_at, acked, in_flight.len() as u64 * DATAGRAM, is_app_limited);
            }
            bbr.on_sent(now, number, DATAGRAM, in_flight.len() as u64 * DATAGRAM);
            in_flight.push_back((now, number));
        }
        while let Some((sent_at, acked)) = in_flight.pop_front() {
            acknowledge(bbr, rtt, sent_at, acked, in_flight.len() as u64 * DATAGRAM, is_app_limited);
        }
        (now + ROUND_TRIP, first + count)
    }

    fn acknowledge(bbr: &mut Bbr, rtt: &Rtt, sent_at: Instant, number: u64, in_flight: u64, is_app_limited: bool) {
        let now = sent_at + ROUND_TRIP;
        bbr.on_acked(now, sent_at, number, DATAGRAM, is_app_limited, rtt);
        bbr.on_ack_end(now, in_flight, is_app_limited, number);
    }

    #[test]
    fn the_bandwidth_survives_quiet_times() {
        let start = Instant::now();
        let mut rtt = Rtt::new(ROUND_TRIP);
        rtt.update(ROUND_TRIP, Duration::ZERO);
        let mut bbr = Bbr::new(10 * DATAGRAM, DATAGRAM as u16, start);
        let at = send(&mut bbr, &rtt, (start, 0), 1000, Duration::from_millis(1), false);
        let expected = DATAGRAM * 1000;
        assert!(bbr.bandwidth.abs_diff(expected) < expected / 10, "{} instead of {expected}", bbr.bandwidth);
        assert!(!bbr.is_startup() && bbr.checkpoints.capacity() <= CHECKPOINTS_MAX);

        // One packet for each 100 ms, for longer than the filters last.
        let at = send(&mut bbr, &rtt, at, 500, Duration::from_millis(100), true);
        assert!(bbr.bandwidth.abs_diff(expected) < expected / 10, "{} instead of {expected}", bbr.bandwidth);
        assert!(!matches!(bbr.mode, Mode::ProbeRtt { .. }), "the queue is empty without it");

        // The path has become slower: the estimate follows within some round trips.
        send(&mut bbr, &rtt, at, 200, Duration::from_millis(4), false);
        let expected = expected / 4;
        assert!(bbr.bandwidth.abs_diff(expected) < expected / 5, "{} instead of {expected}", bbr.bandwidth);
    }

    #[test]
    fn bursts_of_acknowledgments_do_not_raise_the_bandwidth() {
        let start = Instant::now();
        let mut rtt = Rtt::new(ROUND_TRIP);
        rtt.update(ROUND_TRIP, Duration::ZERO);
        let mut bbr = Bbr::new(100 * DATAGRAM, DATAGRAM as u16, start);
        let mut now = start;
        for round in 0..50 {
            let sent: Vec<_> = (0..40).map(|index| (now + Duration::from_millis(index), round * 40 + index)).collect();
            for (index, &(sent_at, number)) in sent.iter().enumerate() {
                bbr.on_sent(sent_at, number, DATAGRAM, index as u64 * DATAGRAM);
            }
            // All ACK frames arrive together.
            now += 2 * ROUND_TRIP;
            for &(sent_at, number) in &sent {
                bbr.on_acked(now, sent_at, number, DATAGRAM, false, &rtt);
                bbr.on_ack_end(now, (39 - number % 40) * DATAGRAM, false, number);
            }
        }
        assert!(bbr.bandwidth <= DATAGRAM * 1000 * 11 / 10, "{}", bbr.bandwidth);
    }

    #[test]
    fn recovery_keeps_what_arrives_in_flight() {
        let start = Instant::now();
        let mut rtt = Rtt::new(ROUND_TRIP);
        rtt.update(ROUND_TRIP, Duration::ZERO);
        let mut bbr = Bbr::new(10 * DATAGRAM, DATAGRAM as u16, start);
        let (now, number) = send(&mut bbr, &rtt, (start, 0), 1000, Duration::from_millis(1), false);
        let window = bbr.window();
        bbr.on_sent(now, number, DATAGRAM, 20 * DATAGRAM);
        bbr.on_congestion(false, 10 * DATAGRAM);
        acknowledge(&mut bbr, &rtt, now, number - 1, 20 * DATAGRAM, false);
        assert_eq!(bbr.window(), 21 * DATAGRAM);
        // A round trip without losses ends the recovery.
        send(&mut bbr, &rtt, (now, number + 1), 200, Duration::from_millis(1), false);
        assert!(bbr.recovery.is_none() && bbr.window() >= window * 9 / 10, "{} of {window}", bbr.window());
    }
}
