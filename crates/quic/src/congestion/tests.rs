//! Tests of single rules, in simulated time.

use std::time::{Duration, Instant};

use super::*;
use proptest::prelude::*;

const DATAGRAM: u64 = 1000;
const ROUND_TRIP: Duration = Duration::from_millis(100);
const ALL: [CongestionAlgorithm; 3] =
    [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno, CongestionAlgorithm::Bbr];

/// Flow with one flight for each round trip.
struct Flow {
    congestion: Congestion,
    rtt: Rtt,
    now: Instant,
    number: u64,
}

impl Flow {
    fn new(kind: CongestionAlgorithm, window: u64) -> Self {
        let now = Instant::now();
        let mut rtt = Rtt::new(ROUND_TRIP);
        rtt.update(ROUND_TRIP, Duration::ZERO);
        Self { congestion: Congestion::new(kind, window, DATAGRAM as u16, now), rtt, now, number: 0 }
    }

    /// Sends so many bytes, and acknowledges them after a round trip.
    fn flight(&mut self, bytes: u64, is_app_limited: bool) {
        let (sent_at, first) = (self.now, self.number);
        for in_flight in (0..bytes).step_by(DATAGRAM as usize) {
            self.congestion.on_sent(sent_at, self.number, DATAGRAM, in_flight);
            self.number += 1;
        }
        self.now += self.rtt.latest();
        let mut in_flight = (self.number - first) * DATAGRAM;
        for number in first..self.number {
            in_flight -= DATAGRAM;
            self.congestion.on_acked(self.now, sent_at, number, DATAGRAM, is_app_limited, &self.rtt);
            self.congestion.on_ack_end(self.now, in_flight, is_app_limited, number);
        }
    }

    /// Fills the window in a round trip.
    fn full_flight(&mut self) {
        self.flight(self.congestion.window() / DATAGRAM * DATAGRAM, false);
    }

    fn lose(&mut self) {
        self.congestion.on_congestion(self.now, self.now, false, DATAGRAM);
        self.now += Duration::from_millis(1);
    }
}

#[test]
fn controllers_are_small() {
    assert!(size_of::<Congestion>() <= 120, "{}", size_of::<Congestion>());
}

#[test]
fn slow_start_doubles_the_window() {
    for kind in ALL {
        let mut flow = Flow::new(kind, 10 * DATAGRAM);
        assert!(flow.congestion.is_slow_start() && flow.congestion.slow_start_threshold().is_none());
        flow.full_flight();
        assert_eq!(flow.congestion.window(), 20 * DATAGRAM, "{kind:?}");
        flow.full_flight();
        assert_eq!(flow.congestion.window(), 40 * DATAGRAM, "{kind:?}");
    }
}

#[test]
fn cubic_grows_by_its_formula() {
    let mut flow = Flow::new(CongestionAlgorithm::Cubic, 1000 * DATAGRAM);
    flow.lose();
    assert_eq!(flow.congestion.window(), 700 * DATAGRAM);
    assert_eq!(flow.congestion.slow_start_threshold(), Some(700 * DATAGRAM));
    // K is the cube root of (1000 - 700) / 0.4. The first ACK starts the time.
    let to_plateau = (300.0f64 / 0.4).cbrt();
    flow.full_flight();
    let start = flow.now;
    while flow.now - start < Duration::from_secs(15) {
        flow.full_flight();
        // A flight brings the window to the curve at one round trip later.
        let time = (flow.now - start + ROUND_TRIP).as_secs_f64() - to_plateau;
        let expected = (0.4 * time.powi(3) + 1000.0) * DATAGRAM as f64;
        let window = flow.congestion.window() as f64;
        assert!((window / expected - 1.0).abs() < 0.02, "{window} instead of {expected}");
    }
    assert!(flow.congestion.window() > 1050 * DATAGRAM, "beyond the plateau");
}

#[test]
fn cubic_is_not_slower_than_reno() {
    let mut flow = Flow::new(CongestionAlgorithm::Cubic, 20 * DATAGRAM);
    flow.lose();
    assert_eq!(flow.congestion.window(), 14 * DATAGRAM);
    // Below the window of before, the estimate grows by 9/17 datagrams a round trip, later by 1.
    (0..10).for_each(|_| flow.full_flight());
    let window = flow.congestion.window();
    assert!((18 * DATAGRAM..21 * DATAGRAM).contains(&window), "{window}");
    flow.rtt = Rtt::new(Duration::from_millis(5));
    flow.rtt.update(Duration::from_millis(5), Duration::ZERO);
    (0..10).for_each(|_| flow.full_flight());
    let before = flow.congestion.window();
    (0..10).for_each(|_| flow.full_flight());
    let growth = flow.congestion.window() - before;
    assert!((8 * DATAGRAM..=11 * DATAGRAM).contains(&growth), "{growth}");
}

#[test]
fn cubic_converges_fast() {
    let mut flow = Flow::new(CongestionAlgorithm::Cubic, 1000 * DATAGRAM);
    flow.lose();
    flow.lose();
    let Congestion::Cubic(_) = &flow.congestion else { unreachable!() };
    assert_eq!(flow.congestion.window(), 490 * DATAGRAM);
    // The plateau is at 0.85 of 700: the window is there after K, and hardly grows.
    let to_plateau = Duration::from_secs_f64(((0.85 * 700.0 - 490.0f64) / 0.4).cbrt());
    let end = flow.now + to_plateau;
    while flow.now < end {
        flow.full_flight();
    }
    assert!(flow.congestion.window().abs_diff(595 * DATAGRAM) < 8 * DATAGRAM, "{}", flow.congestion.window());
}

#[test]
fn reno_halves_the_window_and_adds_a_datagram_each_round_trip() {
    let mut flow = Flow::new(CongestionAlgorithm::NewReno, 100 * DATAGRAM);
    flow.lose();
    assert_eq!((flow.congestion.window(), flow.congestion.is_slow_start()), (50 * DATAGRAM, false));
    (0..10).for_each(|_| flow.full_flight());
    assert!(flow.congestion.window().abs_diff(60 * DATAGRAM) <= DATAGRAM, "{}", flow.congestion.window());
}

#[test]
fn a_recovery_period_has_one_reduction() {
    for (kind, window) in [(CongestionAlgorithm::Cubic, 70_000), (CongestionAlgorithm::NewReno, 50_000)] {
        let mut flow = Flow::new(kind, 100 * DATAGRAM);
        let sent_at = flow.now;
        flow.now += ROUND_TRIP;
        flow.congestion.on_sent(sent_at, 0, 100 * DATAGRAM, 0);
        for _ in 0..5 {
            flow.congestion.on_congestion(flow.now, sent_at, false, DATAGRAM);
            flow.congestion.on_acked(flow.now, sent_at, 0, DATAGRAM, false, &flow.rtt);
        }
        assert_eq!(flow.congestion.window(), window, "neither reduced again nor grown");
        flow.congestion.on_congestion(flow.now, flow.now + ROUND_TRIP, false, DATAGRAM);
        assert!(flow.congestion.window() < window);
    }
}

#[test]
fn persistent_congestion_leaves_the_minimum_and_slow_start_follows() {
    for (kind, datagrams, threshold) in
        [(CongestionAlgorithm::Cubic, 2, 70), (CongestionAlgorithm::NewReno, 2, 50), (CongestionAlgorithm::Bbr, 4, 0)]
    {
        let mut flow = Flow::new(kind, 100 * DATAGRAM);
        flow.congestion.on_congestion(flow.now, flow.now, true, 50 * DATAGRAM);
        assert_eq!(flow.congestion.window(), datagrams * DATAGRAM, "{kind:?}");
        assert!(flow.congestion.is_slow_start());
        flow.congestion.on_spurious_loss();
        assert_eq!(flow.congestion.window(), datagrams * DATAGRAM, "not restored");
        if kind == CongestionAlgorithm::Bbr {
            continue;
        }
        assert_eq!(flow.congestion.slow_start_threshold(), Some(threshold * DATAGRAM));
        flow.full_flight();
        assert_eq!(flow.congestion.window(), 2 * datagrams * DATAGRAM);
        (0..5).for_each(|_| flow.full_flight());
        assert!(!flow.congestion.is_slow_start());
        assert!(flow.congestion.window() < (threshold + 10) * DATAGRAM, "{}", flow.congestion.window());
    }
}

#[test]
fn windows_are_never_below_the_minimum() {
    for kind in ALL {
        let mut flow = Flow::new(kind, 0);
        for _ in 0..20 {
            flow.lose();
            assert!(flow.congestion.window() >= 2 * DATAGRAM);
        }
        flow.congestion.set_datagram_bytes(1452);
        assert!(flow.congestion.window() >= 2904);
    }
}

#[test]
fn flows_limited_by_the_application_do_not_grow() {
    for kind in [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno] {
        for loses in [false, true] {
            let mut flow = Flow::new(kind, 100 * DATAGRAM);
            if loses {
                flow.lose();
            }
            let window = flow.congestion.window();
            (0..100).for_each(|_| flow.flight(5 * DATAGRAM, true));
            assert_eq!(flow.congestion.window(), window);
            // The caller may err: little in flight proves the same.
            (0..100).for_each(|_| flow.flight(5 * DATAGRAM, false));
            assert_eq!(flow.congestion.window(), window);
        }
    }
    let mut flow = Flow::new(CongestionAlgorithm::Bbr, 100 * DATAGRAM);
    (0..300).for_each(|_| flow.flight(5 * DATAGRAM, true));
    assert_eq!(flow.congestion.window(), 100 * DATAGRAM);
}

#[test]
fn idle_time_does_not_grow_the_window_of_cubic() {
    let mut flow = Flow::new(CongestionAlgorithm::Cubic, 1000 * DATAGRAM);
    flow.lose();
    (0..20).for_each(|_| flow.full_flight());
    let before = flow.congestion.window();
    flow.now += Duration::from_secs(100);
    flow.flight(DATAGRAM, true);
    flow.full_flight();
    flow.full_flight();
    let growth = flow.congestion.window() - before;
    assert!(growth < 40 * DATAGRAM, "{growth}");
}

#[test]
fn spurious_losses_restore_the_window_once() {
    for kind in [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno] {
        let mut flow = Flow::new(kind, 100 * DATAGRAM);
        flow.lose();
        flow.congestion.on_spurious_loss();
        assert_eq!(flow.congestion.window(), 100 * DATAGRAM);
        assert!(flow.congestion.is_slow_start() && flow.congestion.slow_start_threshold().is_none());
        flow.lose();
        let reduced = flow.congestion.window();
        flow.congestion.on_spurious_loss();
        flow.congestion.on_congestion(flow.now, flow.now, false, 0);
        assert_eq!(flow.congestion.window(), reduced);
        flow.congestion.on_spurious_loss();
        assert_eq!(flow.congestion.window(), reduced, "CE marks are not spurious");
    }
}

#[test]
fn optimistic_acknowledgments_do_not_inflate_windows() {
    for kind in ALL {
        // The peer acknowledges each packet at once, in many ACK frames, while the server has little to send.
        let mut flow = Flow::new(kind, 10 * DATAGRAM);
        flow.rtt.update(Duration::from_nanos(1), Duration::ZERO);
        for number in 0..100_000 {
            flow.congestion.on_sent(flow.now, number, DATAGRAM, 0);
            let sent_at = flow.now;
            flow.now += Duration::from_micros(1);
            flow.congestion.on_acked(flow.now, sent_at, number, DATAGRAM, false, &flow.rtt);
            flow.congestion.on_ack_end(flow.now, 0, false, number);
        }
        assert!(flow.congestion.window() <= 20 * DATAGRAM, "{kind:?}: {}", flow.congestion.window());

        // All windows in flight, acknowledged at once: there is still an upper bound.
        let mut flow = Flow::new(kind, WINDOW_BYTES_MAX / 2);
        for _ in 0..100 {
            let (window, sent_at) = (flow.congestion.window(), flow.now);
            flow.congestion.on_sent(sent_at, flow.number, window, 0);
            flow.now += Duration::from_micros(10);
            flow.congestion.on_acked(flow.now, sent_at, flow.number, window, false, &flow.rtt);
            flow.congestion.on_ack_end(flow.now, 0, false, flow.number);
            flow.number += 1;
        }
        assert!(flow.congestion.window() <= WINDOW_BYTES_MAX, "{kind:?}");
    }
}

#[test]
fn rates_follow_windows() {
    let now = Instant::now();
    let mut rtt = Rtt::new(ROUND_TRIP);
    for kind in ALL {
        let mut congestion = Congestion::new(kind, 100_000, DATAGRAM as u16, now);
        assert_eq!(congestion.pacing_rate(&Rtt::new(ROUND_TRIP)), None, "the initial window is not paced");
        rtt.update(ROUND_TRIP, Duration::ZERO);
        let rate = congestion.pacing_rate(&rtt).unwrap();
        assert!((2_000_000..3_000_000).contains(&rate), "{kind:?}: {rate}");
        if kind != CongestionAlgorithm::Bbr {
            congestion.on_congestion(now, now, false, DATAGRAM);
            assert_eq!(congestion.pacing_rate(&rtt), Some(congestion.window() * 25 / 2));
        }
        let mut short = Rtt::new(ROUND_TRIP);
        short.update(Duration::from_micros(900), Duration::ZERO);
        assert_eq!(congestion.pacing_rate(&short), None);
    }
}

proptest! {
    #[test]
    fn no_history_breaks_the_bounds(
        kind in 0usize..3,
        steps in prop::collection::vec((0u8..6, 0u64..3000, any::<bool>()), 0..200),
    ) {
        let mut flow = Flow::new(ALL[kind], 10 * DATAGRAM);
        for (step, value, flag) in steps {
            flow.now += Duration::from_millis(value);
            match step {
                0 => flow.congestion.on_congestion(flow.now, flow.now, flag, value),
                1 => flow.congestion.on_spurious_loss(),
                2 => flow.congestion.set_datagram_bytes(1200 + (value % 252) as u16),
                3 => flow.rtt.update(Duration::from_micros(value * value), Duration::ZERO),
                4 => flow.flight((value % 50) * DATAGRAM, flag),
                _ => flow.full_flight(),
            }
            prop_assert!((2 * DATAGRAM..=WINDOW_BYTES_MAX).contains(&flow.congestion.window()));
            prop_assert!(flow.congestion.pacing_rate(&flow.rtt) != Some(0));
            // Long flights cost the test time, not the controller.
            if flow.congestion.window() > 4_000_000 {
                flow.congestion.on_congestion(flow.now, flow.now + Duration::from_secs(1), true, 1);
            }
        }
    }
}
