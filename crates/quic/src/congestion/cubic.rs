//! CUBIC (RFC 9438) with HyStart++ (RFC 9406).

use std::time::{Duration, Instant};

use super::Flow;
use super::hystart::HyStart;
use crate::rtt::Rtt;

/// Factor of a reduction, 7/10 (RFC 9438, section 4.6).
const BETA: f64 = 0.7;

/// Steepness of the growth, in datagrams per cube of a second (RFC 9438, section 5.1).
const C: f64 = 0.4;

/// Growth of the Reno-friendly estimate, in datagrams for each round trip (RFC 9438, section 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// CUBIC controller.
#[derive(Clone, Debug)]
pub(crate) struct Cubic {
    pub(super) flow: Flow,
    /// Window at which the curve is flat (W_max), in bytes.
    plateau: f32,
    /// Window before the last reduction (cwnd_prior), in bytes.
    prior: f32,
    phase: Phase,
    /// State before the last congestion event, if a spurious loss may restore it. Events are rare.
    before: Option<Box<Before>>,
}

/// Phase of the growth.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// First slow start. `sample` is the round-trip time of the ACK frame in work, in microseconds.
    HyStart { hystart: HyStart, sample: Option<u32> },
    /// Later slow start, or congestion avoidance that waits for the next growth.
    Pause,
    /// Congestion avoidance.
    Epoch(Epoch),
}

/// Stage of congestion avoidance during which the window grows along one curve.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Instant,
    /// Reno-friendly estimate (W_est), in bytes.
    friendly: f64,
    /// Time from the start to the plateau (K), in seconds; negative if the curve is already above.
    to_plateau: f32,
    /// Part of a byte by which the window has grown.
    fraction: f32,
}

/// State before a congestion event.
#[derive(Clone, Copy, Debug)]
struct Before {
    window: u64,
    threshold: u64,
    plateau: f32,
    prior: f32,
}

impl Cubic {
    pub(super) fn new(window: u64, datagram_bytes: u16) -> Self {
        Self {
            flow: Flow::new(window, datagram_bytes),
            plateau: 0.0,
            prior: 0.0,
            phase: Phase::HyStart { hystart: HyStart::new(), sample: None },
            before: None,
        }
    }

    pub(super) fn on_acked(&mut self, now: Instant, sent_at: Instant, bytes: u64, is_app_limited: bool, rtt: &Rtt) {
        if let Phase::HyStart { sample, .. } = &mut self.phase {
            *sample = Some(u32::try_from(rtt.latest().as_micros()).unwrap_or(u32::MAX - 1));
        }
        if !self.flow.may_grow(sent_at, is_app_limited) {
            if let Phase::Epoch(_) = self.phase
                && !self.flow.is_recovering(sent_at)
            {
                // Time in which the window is not in use must not count. The next epoch continues on the same curve.
                self.phase = Phase::Pause;
            }
            return;
        }
        if self.flow.is_slow_start() {
            let bytes = match &self.phase {
                Phase::HyStart { hystart, .. } => hystart.growth(bytes),
                _ => bytes,
            };
            self.flow.grow(bytes);
            if !self.flow.is_slow_start() {
                self.end_slow_start();
            }
            return;
        }
        self.avoid_congestion(now, bytes, rtt);
    }

    /// Begins congestion avoidance without a loss (RFC 9438, section 4.10).
    fn end_slow_start(&mut self) {
        self.flow.threshold = self.flow.window;
        self.plateau = self.flow.window as f32;
        self.phase = Phase::Pause;
    }

    fn avoid_congestion(&mut self, now: Instant, bytes: u64, rtt: &Rtt) {
        let datagram = self.flow.datagram_bytes as f64;
        let window = self.flow.window as f64;
        let plateau = f64::from(self.plateau);
        let mut epoch = match self.phase {
            Phase::Epoch(epoch) => epoch,
            _ => {
                let to_plateau = ((plateau - window) / datagram / C).cbrt() as f32;
                Epoch { start: now, friendly: window, to_plateau, fraction: 0.0 }
            }
        };
        let elapsed = now.saturating_duration_since(epoch.start);
        let curve = |time: Duration| {
            let time = time.as_secs_f64() - f64::from(epoch.to_plateau);
            C * time * time * time * datagram + plateau
        };

        let alpha = if epoch.friendly >= self.prior.into() { 1.0 } else { ALPHA };
        epoch.friendly += alpha * bytes as f64 * datagram / window;
        let grown = if curve(elapsed) < epoch.friendly {
            window.max(epoch.friendly)
        } else {
            let target = curve(elapsed + rtt.smoothed()).clamp(window, 1.5 * window);
            window + (target - window) / window * bytes as f64
        };
        let growth = grown - window + f64::from(epoch.fraction);
        epoch.fraction = growth.fract() as f32;
        self.flow.grow(growth as u64);
        // A window above the threshold is in congestion avoidance, and stays there.
        self.phase = Phase::Epoch(epoch);
    }

    pub(super) fn on_ack_end(&mut self, in_flight: u64, largest_acked: u64) {
        let is_round_end = self.flow.on_ack_end(in_flight, largest_acked);
        if let Phase::HyStart { hystart, sample } = &mut self.phase {
            // RFC 9406 ends a round trip before it takes the sample.
            let is_end = is_round_end && hystart.on_round_end();
            if let Some(sample) = sample.take() {
                hystart.on_sample(sample);
            }
            if is_end {
                self.end_slow_start();
            }
        }
    }

    pub(super) fn on_congestion(&mut self, now: Instant, sent_at: Instant, is_persistent: bool, lost_bytes: u64) {
        if !self.flow.is_recovering(sent_at) {
            let Flow { window, threshold, .. } = self.flow;
            let before = Before { window, threshold, plateau: self.plateau, prior: self.prior };
            self.before = (lost_bytes > 0).then(|| Box::new(before));
            self.prior = window as f32;
            // Fast convergence (RFC 9438, section 4.7): a flow whose window shrinks leaves room to new flows.
            let is_shrinking = self.prior < self.plateau;
            self.plateau = if is_shrinking { self.prior * ((1.0 + BETA) / 2.0) as f32 } else { self.prior };
            self.phase = Phase::Pause;
            self.flow.reduce(now, window * 7 / 10);
        }
        if is_persistent {
            self.before = None;
            self.phase = Phase::Pause;
            self.flow.on_persistent_congestion();
        }
    }

    pub(super) fn on_spurious_loss(&mut self) {
        let Some(before) = self.before.take() else { return };
        self.flow.window = self.flow.window.max(before.window);
        self.flow.threshold = self.flow.threshold.max(before.threshold);
        self.flow.recovery_from = None;
        (self.plateau, self.prior) = (before.plateau, before.prior);
        self.phase = Phase::Pause;
    }
}
