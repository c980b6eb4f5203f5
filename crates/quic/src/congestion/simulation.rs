//! Flows over a simulated bottleneck, in simulated time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::*;
use crate::pacer::Pacer;

const DATAGRAM: u64 = 1200;

/// Bottleneck with a queue that drops at its tail.
#[derive(Clone, Copy)]
pub(super) struct Line {
    /// Bytes per second.
    pub(super) rate: u64,
    pub(super) round_trip: Duration,
    pub(super) buffer_bytes: u64,
    /// One of as many packets is lost at random; zero for none.
    pub(super) loss_of: u64,
    /// Packets that an ACK frame acknowledges.
    pub(super) ack_packets: usize,
}

/// Flow that always has data.
pub(super) struct Simulation {
    pub(super) congestion: Congestion,
    pub(super) rtt: Rtt,
    pub(super) now: Instant,
    pub(super) delivered: u64,
    pub(super) lost: u64,
    /// Times of the timer of the pacer.
    pub(super) waits: u64,
    pub(super) window_max: u64,
    line: Line,
    pacer: Pacer,
    in_flight: u64,
    number: u64,
    random: u64,
    is_free_at: Instant,
    sent: VecDeque<(u64, Instant)>,
    /// Packets on the way, with the times at which their acknowledgments may arrive.
    acks: VecDeque<(Instant, u64)>,
}

impl Simulation {
    pub(super) fn new(kind: CongestionAlgorithm, line: Line) -> Self {
        let now = Instant::now();
        Self {
            congestion: Congestion::new(kind, 10 * DATAGRAM, DATAGRAM as u16, now),
            rtt: Rtt::new(Duration::from_millis(333)),
            now,
            delivered: 0,
            lost: 0,
            waits: 0,
            window_max: 0,
            line,
            pacer: Pacer::new(now),
            in_flight: 0,
            number: 0,
            random: 1,
            is_free_at: now,
            sent: VecDeque::new(),
            acks: VecDeque::new(),
        }
    }

    pub(super) fn run(&mut self, time: Duration) -> &mut Self {
        let end = self.now + time;
        while self.now < end {
            let timer = self.send();
            let ack = self.acks.get((self.line.ack_packets - 1).min(self.acks.len().wrapping_sub(1))).map(|ack| ack.0);
            match (timer, ack) {
                (Some(timer), None) => (self.now, self.waits) = (timer, self.waits + 1),
                (Some(timer), Some(ack)) if timer < ack => (self.now, self.waits) = (timer, self.waits + 1),
                (_, Some(ack)) => {
                    self.now = ack.max(self.now);
                    self.acknowledge();
                }
                (None, None) => {
                    // All packets in flight are lost: the probe timeout finds that.
                    self.now += 2 * self.rtt.pto_base();
                    let newest = self.sent.back().map_or(self.now, |sent| sent.1);
                    self.lose(self.sent.len(), newest);
                }
            }
            self.window_max = self.window_max.max(self.congestion.window());
        }
        self
    }

    fn send(&mut self) -> Option<Instant> {
        while self.in_flight + DATAGRAM <= self.congestion.window() {
            let (rate, window) = (self.congestion.pacing_rate(&self.rtt), self.congestion.window());
            let wait = self.pacer.wait(self.now, DATAGRAM, rate, DATAGRAM as u16, window);
            if wait.is_some() {
                return wait;
            }
            self.pacer.on_sent(DATAGRAM);
            self.congestion.on_sent(self.now, self.number, DATAGRAM, self.in_flight);
            self.sent.push_back((self.number, self.now));
            self.in_flight += DATAGRAM;
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let is_lost = self.line.loss_of != 0 && (self.random >> 33).is_multiple_of(self.line.loss_of);
            let queue = self.is_free_at.saturating_duration_since(self.now).as_secs_f64() * self.line.rate as f64;
            if !is_lost && queue as u64 <= self.line.buffer_bytes {
                let time = Duration::from_secs_f64(DATAGRAM as f64 / self.line.rate as f64);
                self.is_free_at = self.is_free_at.max(self.now) + time;
                self.acks.push_back((self.is_free_at + self.line.round_trip, self.number));
            }
            self.number += 1;
        }
        None
    }

    fn lose(&mut self, count: usize, newest: Instant) {
        self.sent.drain(..count);
        let bytes = count as u64 * DATAGRAM;
        self.in_flight -= bytes;
        self.lost += bytes;
        self.congestion.on_congestion(self.now, newest, false, bytes);
    }

    fn acknowledge(&mut self) {
        let count = self.line.ack_packets.min(self.acks.len());
        let acked: Vec<_> = self.acks.drain(..count).map(|ack| ack.1).collect();
        let largest = *acked.last().unwrap();
        let latest = self.sent.iter().find(|sent| sent.0 == largest).unwrap().1;
        self.rtt.update(self.now - latest, Duration::ZERO);
        for &number in &acked {
            let lost = self.sent.iter().position(|sent| sent.0 == number).unwrap();
            if lost > 0 {
                self.lose(lost, self.sent[lost - 1].1);
            }
            let (_, sent_at) = self.sent.pop_front().unwrap();
            self.in_flight -= DATAGRAM;
            self.delivered += DATAGRAM;
            self.congestion.on_acked(self.now, sent_at, number, DATAGRAM, false, &self.rtt);
        }
        self.congestion.on_ack_end(self.now, self.in_flight, false, largest);
    }
}

const fn line(rate: u64, round_trip_ms: u64, buffer_bytes: u64) -> Line {
    Line { rate, round_trip: Duration::from_millis(round_trip_ms), buffer_bytes, loss_of: 0, ack_packets: 2 }
}

const ALL: [CongestionAlgorithm; 3] =
    [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno, CongestionAlgorithm::Bbr];

#[test]
fn all_algorithms_fill_lines() {
    let lines = [
        line(125_000, 20, 30_000),
        line(1_250_000, 100, 125_000),
        line(5_000_000, 50, 250_000),
        line(5_000_000, 10, 100_000),
        line(100_000, 600, 120_000),
    ];
    for kind in ALL {
        for line in lines {
            for ack_packets in [2, 10] {
                let mut flow = Simulation::new(kind, Line { ack_packets, ..line });
                flow.run(Duration::from_secs(10));
                let before = flow.delivered;
                let used = (flow.run(Duration::from_secs(15)).delivered - before) as f64 / (15 * line.rate) as f64;
                assert!(used > 0.8, "{kind:?} uses {used:.2} of {} bytes/s, {:?}", line.rate, line.round_trip);
                // Slow start may overshoot by what the line and its buffer hold.
                let overshoot = line.buffer_bytes + (line.rate as f64 * line.round_trip.as_secs_f64()) as u64;
                let lost = flow.lost.saturating_sub(2 * overshoot) as f64 / flow.delivered as f64;
                assert!(lost < 0.03, "{kind:?} loses {lost:.3} at {} bytes/s, {:?}", line.rate, line.round_trip);
            }
        }
    }
}

#[test]
fn cubic_leaves_slow_start_before_losses_in_deep_buffers() {
    let mut cubic = Simulation::new(CongestionAlgorithm::Cubic, line(5_000_000, 50, 4_000_000));
    let mut reno = Simulation::new(CongestionAlgorithm::NewReno, line(5_000_000, 50, 4_000_000));
    while cubic.congestion.is_slow_start() {
        cubic.run(Duration::from_millis(10));
    }
    assert_eq!(cubic.lost, 0);
    assert!((200_000..3_000_000).contains(&cubic.congestion.window()), "{}", cubic.congestion.window());
    reno.run(Duration::from_secs(2));
    assert!(reno.lost > 100_000, "{}", reno.lost);
}

#[test]
fn bbr_keeps_queues_short_and_withstands_random_losses() {
    let deep = line(2_500_000, 40, 2_000_000);
    let mut bbr = Simulation::new(CongestionAlgorithm::Bbr, deep);
    bbr.run(Duration::from_secs(5));
    assert!(bbr.rtt.smoothed() < Duration::from_millis(65), "{:?}", bbr.rtt.smoothed());
    assert_eq!(bbr.lost, 0);

    let lossy = Line { loss_of: 50, ..line(2_500_000, 40, 200_000) };
    let rates = ALL.map(|kind| {
        let mut flow = Simulation::new(kind, lossy);
        flow.run(Duration::from_secs(10)).delivered as f64 / (10 * lossy.rate) as f64
    });
    assert!(rates[2] > 0.75 && rates[0] < 0.5, "{rates:?}");
}

#[test]
fn bbr_probes_the_round_trip_time() {
    let mut bbr = Simulation::new(CongestionAlgorithm::Bbr, line(1_000_000, 40, 1_000_000));
    bbr.run(Duration::from_secs(5));
    // The route becomes longer; the filter of the round-trip time forgets the shorter one.
    bbr.line.round_trip = Duration::from_millis(80);
    bbr.run(Duration::from_secs(20));
    let before = bbr.delivered;
    bbr.run(Duration::from_secs(10));
    assert!(bbr.delivered - before > 8_000_000, "{}", bbr.delivered - before);
    assert!(bbr.rtt.min() < Duration::from_millis(45));
}

#[test]
fn pacing_sets_few_timers() {
    for kind in ALL {
        let mut flow = Simulation::new(kind, line(5_000_000, 100, 500_000));
        flow.run(Duration::from_secs(10));
        let datagrams = flow.number;
        assert!(flow.waits * 3 < datagrams, "{kind:?}: {} timers for {datagrams} datagrams", flow.waits);
    }
}
