//! Runs that last until their result is precise: the confidence interval of a quantity over the time of the run.

use crate::engine::{ArrivalPace, Interval, LoadPlan};
use crate::report::PrecisionReport;
use crate::statistics::mean_interval;
use crate::units::parse_share;

/// Number of batches of intervals. The means of long batches hardly depend on each other, though neighbouring intervals
/// do.
const BATCHES: usize = 10;
/// Factor by which a run grows between two looks at its precision. Many looks would find a narrow interval by chance.
const GROWTH: f64 = 1.25;
/// Looks in a row at which the interval must be narrow enough, for the same reason.
const LOOKS: u32 = 2;

/// Precision at which a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PrecisionGoal {
    /// `None` for the rate of a closed loop, or the mean latency of an open loop.
    quantity: Option<PreciseQuantity>,
    share: f64,
}

/// Quantity that must be precise.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PreciseQuantity {
    Rate,
    Mean,
    Percentile(f64),
}

/// Parses `1%`, `p99:2%` or `rate:0.5%`.
pub(super) fn parse(text: &str) -> Result<PrecisionGoal, String> {
    let (quantity, share) = match text.split_once(':') {
        None => (None, text),
        Some((name, share)) => (Some(parse_quantity(name)?), share),
    };
    match parse_share(share)? {
        share if share > 0.0 && share < 1.0 => Ok(PrecisionGoal { quantity, share }),
        _ => Err("the precision must be more than 0 and less than 100%".to_owned()),
    }
}

fn parse_quantity(name: &str) -> Result<PreciseQuantity, String> {
    match name {
        "rate" => Ok(PreciseQuantity::Rate),
        "mean" => Ok(PreciseQuantity::Mean),
        name => match name.strip_prefix('p').and_then(|digits| digits.parse::<f64>().ok()) {
            Some(percentile) if (0.0..100.0).contains(&percentile) => Ok(PreciseQuantity::Percentile(percentile)),
            _ => Err(format!("unknown quantity `{name}`; use rate, mean, p50, p99 and so on")),
        },
    }
}

impl PreciseQuantity {
    fn name(self) -> String {
        match self {
            Self::Rate => "rate".to_owned(),
            Self::Mean => "mean".to_owned(),
            Self::Percentile(percentile) => format!("p{percentile}"),
        }
    }

    /// Value in an interval of this length in seconds: responses per second, or nanoseconds.
    fn value(self, interval: &Interval, seconds: f64) -> f64 {
        let latency = &interval.record.latency;
        match self {
            Self::Rate => interval.record.served as f64 / seconds,
            Self::Mean => latency.mean(),
            Self::Percentile(percentile) => latency.value_at_quantile(percentile / 100.0) as f64,
        }
    }
}

/// Precision of a run so far.
#[derive(Debug)]
pub(super) struct RunPrecision {
    quantity: PreciseQuantity,
    share: f64,
    values: Vec<f64>,
    end_seconds: f64,
    /// Number of intervals at which to look next.
    next_look: usize,
    /// Looks in a row at which the interval was narrow enough.
    narrow_looks: u32,
    report: PrecisionReport,
}

impl RunPrecision {
    pub(super) fn new(goal: PrecisionGoal, plan: &LoadPlan) -> Self {
        let default = match plan.pace {
            ArrivalPace::Closed => PreciseQuantity::Rate,
            _ => PreciseQuantity::Mean,
        };
        let quantity = goal.quantity.unwrap_or(default);
        let report =
            PrecisionReport { quantity: quantity.name(), goal_share: goal.share, ..PrecisionReport::default() };
        Self {
            quantity,
            share: goal.share,
            values: Vec::new(),
            end_seconds: 0.0,
            next_look: 2 * BATCHES,
            narrow_looks: 0,
            report,
        }
    }

    /// Adds an interval. Returns true if the result is precise.
    pub(super) fn add(&mut self, interval: &Interval) -> bool {
        let seconds = (interval.end_seconds - self.end_seconds).max(1e-9);
        self.end_seconds = interval.end_seconds;
        self.add_value(self.quantity.value(interval, seconds))
    }

    fn add_value(&mut self, value: f64) -> bool {
        self.values.push(value);
        if self.values.len() < self.next_look {
            return false;
        }
        self.next_look = (self.values.len() as f64 * GROWTH).ceil() as usize;
        self.look();
        self.report.reached = self.narrow_looks >= LOOKS;
        self.report.reached
    }

    /// Estimates mean and confidence interval from the means of batches.
    fn look(&mut self) {
        let length = self.values.len() / BATCHES;
        if length == 0 {
            return;
        }
        // The first intervals are left out rather than the last, because the run may have begun slowly.
        let from = self.values.len() - length * BATCHES;
        let means: Vec<f64> =
            self.values[from..].chunks(length).map(|batch| batch.iter().sum::<f64>() / length as f64).collect();
        let (mean, half_width) = mean_interval(&means);
        self.report.value = mean;
        self.report.half_width_share = (mean > 0.0).then_some(half_width / mean);
        let is_narrow = mean > 0.0 && half_width <= self.share * mean;
        self.narrow_looks = if is_narrow { self.narrow_looks + 1 } else { 0 };
    }

    /// Report at the end of the run.
    pub(super) fn finish(mut self) -> PrecisionReport {
        if !self.report.reached {
            self.look();
        }
        self.report
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    #[test]
    fn goals() {
        for (text, expect) in [
            ("1%", Ok((None, 0.01))),
            ("p99:2%", Ok((Some(PreciseQuantity::Percentile(99.0)), 0.02))),
            ("rate:0.005", Ok((Some(PreciseQuantity::Rate), 0.005))),
            ("0", Err("more than 0")),
            ("100%", Err("more than 0")),
            ("p100:1%", Err("unknown quantity `p100`")),
            ("speed:1%", Err("unknown quantity `speed`")),
            ("x", Err("not a share")),
        ] {
            match (parse(text), expect) {
                (Ok(goal), Ok((quantity, share))) => assert_eq!(goal, PrecisionGoal { quantity, share }, "{text}"),
                (Err(error), Err(expect)) => assert!(error.contains(expect), "{text}: {error}"),
                (parsed, _) => panic!("{text}: {parsed:?}"),
            }
        }
    }

    fn precision(share: f64) -> RunPrecision {
        RunPrecision {
            quantity: PreciseQuantity::Rate,
            share,
            values: Vec::new(),
            end_seconds: 0.0,
            next_look: 2 * BATCHES,
            narrow_looks: 0,
            report: PrecisionReport::default(),
        }
    }

    /// Runs end near the truth, though intervals depend on the ones before them, and though the run looks several times.
    #[test]
    fn precise_runs_are_right() {
        let mut rng = Rng::with_seed(3);
        for (correlation, deviation) in [(0.0, 5.0), (0.5, 3.0), (0.8, 2.0)] {
            let (mut held, mut lengths) = (0, 0);
            const RUNS: usize = 1000;
            for _ in 0..RUNS {
                let (mut precision, mut noise) = (precision(0.01), 0.0);
                for length in 1.. {
                    let normal = (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos();
                    noise = correlation * noise + deviation * normal;
                    if precision.add_value(100.0 + noise) {
                        lengths += length;
                        break;
                    }
                }
                let report = precision.finish();
                assert!(report.reached && report.half_width_share.unwrap() <= 0.01);
                held += usize::from((report.value - 100.0).abs() <= 1.0);
            }
            let share = held as f64 / RUNS as f64;
            assert!(share >= 0.88, "correlation {correlation}: {share} after {} intervals", lengths / RUNS);
        }
    }

    #[test]
    fn imprecise_runs_say_so() {
        let mut precise = precision(0.01);
        assert!(!(0..15).any(|value| precise.add_value(f64::from(value % 5))));
        let report = precise.finish();
        assert!(!report.reached && report.half_width_share.is_some_and(|share| share > 0.01), "{report:?}");
        assert_eq!(precision(0.01).finish().half_width_share, None, "without any interval");
    }
}
