//! Medians of paired ratios, and their confidence intervals.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Confidence level of intervals.
const CONFIDENCE: f64 = 0.95;
/// Minimum number of pairs for a confidence interval. Even the range of five pairs contains the median of all pairs only
/// with a probability of 93.75 %.
pub(crate) const PAIRS_MIN: u64 = 6;

/// Median of paired ratios. From six pairs on it has a 95 % confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Estimate {
    /// The median.
    pub median: f64,
    /// Lower end of the interval; below six pairs, the smallest ratio.
    pub low: f64,
    /// Upper end of the interval; below six pairs, the greatest ratio.
    pub high: f64,
    /// Number of pairs.
    #[serde(default)]
    pub pairs: u64,
}

impl Estimate {
    /// True if there are enough pairs for a confidence interval. Otherwise `low` and `high` are the range of the ratios.
    pub(crate) fn has_interval(&self) -> bool {
        self.pairs >= PAIRS_MIN
    }

    /// True if the whole interval, or the whole range, is within a margin of 1. For an interval this is a test of
    /// equivalence: if the true ratio is outside the margin, it passes with a probability of at most 2.5 %.
    pub(crate) fn is_within(&self, margin: f64) -> bool {
        self.pairs > 0 && self.low >= 1.0 / (1.0 + margin) && self.high <= 1.0 + margin
    }
}

impl fmt::Display for Estimate {
    /// Writes an interval in square brackets and a range in round ones. A single pair has neither.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, low, high, pairs } = self;
        match pairs {
            0 => write!(formatter, "-"),
            1 => write!(formatter, "{median:.3}"),
            _ if self.has_interval() => write!(formatter, "{median:.3} [{low:.3} - {high:.3}]"),
            _ => write!(formatter, "{median:.3} ({low:.3} - {high:.3})"),
        }
    }
}

/// Middle value; of an even number of values, the mean of the middle two. Returns 0 for no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// Median of paired ratios, on a logarithmic scale: the ratio of B to A is the inverse of that of A to B.
pub(crate) fn paired_ratio(values: &[f64], base: &[f64]) -> Estimate {
    let ratios = values.iter().zip(base).filter(|(_, base)| **base > 0.0).map(|(value, base)| value / base);
    let mut logs: Vec<f64> = ratios.map(f64::ln).filter(|log| !log.is_nan()).collect();
    if logs.is_empty() {
        return Estimate::default();
    }
    logs.sort_by(f64::total_cmp);
    let (low, high) = median_interval(&logs);
    Estimate { median: median(&logs).exp(), low: low.exp(), high: high.exp(), pairs: logs.len() as u64 }
}

/// Confidence interval of the median, from order statistics; the range if there are too few values. It makes no
/// assumption on the distribution, so an outlier cannot stretch it.
///
/// The interval from the kth smallest to the kth greatest value contains the median with a probability that follows from
/// the binomial distribution. Two neighbouring intervals are interpolated to the confidence level (Hettmansperger and
/// Sheather, "Confidence intervals based on interpolated order statistics", 1986).
fn median_interval(sorted: &[f64]) -> (f64, f64) {
    let count = sorted.len();
    if (count as u64) < PAIRS_MIN {
        return (sorted[0], sorted[count - 1]);
    }
    let mut rank = 1;
    while coverage(count, rank + 1) >= CONFIDENCE {
        rank += 1;
    }
    let (outer, inner) = (coverage(count, rank), coverage(count, rank + 1));
    let share = (outer - CONFIDENCE) / (outer - inner);
    let weight = (count - rank) as f64 * share / (rank as f64 + (count - 2 * rank) as f64 * share);
    let between = |outer: f64, inner: f64| if outer == inner { outer } else { outer + weight * (inner - outer) };
    (between(sorted[rank - 1], sorted[rank]), between(sorted[count - rank], sorted[count - rank - 1]))
}

/// Change of a quantity between repeated runs of two states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Change {
    /// Ratio of the new state to the old one: that of the geometric means of their runs.
    pub(crate) ratio: f64,
    /// 95 % confidence interval; `None` if a state has only one run.
    pub(crate) interval: Option<[f64; 2]>,
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.3}", self.ratio)?;
        match self.interval {
            Some([low, high]) => write!(formatter, " [{low:.3} - {high:.3}]"),
            None => Ok(()),
        }
    }
}

/// Quantiles of 0.975 of Student's t distribution, by degrees of freedom from 1.
const T_QUANTILES: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Mean of independent values, and half the width of its 95 % confidence interval (Student's t). At least two values.
pub(crate) fn mean_interval(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(2) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let quantile = T_QUANTILES[(values.len().max(2) - 2).min(T_QUANTILES.len() - 1)];
    (mean, quantile * (squares / (count - 1.0) / count).sqrt())
}

/// Slope of a line with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slope {
    pub(crate) slope: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl fmt::Display for Slope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.3} [{:.3}, {:.3}]", self.slope, self.low, self.high)
    }
}

/// Blocks into which points are grouped for a slope. Neighbouring points depend on each other, the means of blocks
/// hardly.
const BLOCKS: usize = 16;

/// Slope of points that belong to several sections, each with a level of its own. `None` if there are too few points.
pub(crate) fn slope(sections: &[Vec<(f64, f64)>]) -> Option<Slope> {
    let total: usize = sections.iter().map(Vec::len).sum();
    let block = total.div_ceil(BLOCKS).max(1);
    let (mut deviations, mut levels) = (Vec::new(), 0);
    for section in sections {
        let mean = |points: &[(f64, f64)]| {
            let sum = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
            (sum.0 / points.len() as f64, sum.1 / points.len() as f64)
        };
        let blocks: Vec<(f64, f64)> = section.chunks_exact(block).map(mean).collect();
        if blocks.len() < 2 {
            continue;
        }
        levels += 1;
        let middle = mean(&blocks);
        deviations.extend(blocks.iter().map(|point| (point.0 - middle.0, point.1 - middle.1)));
    }
    // The slope and each level take a degree of freedom.
    let freedom = deviations.len().checked_sub(levels + 1).filter(|freedom| *freedom >= 4)?;
    let squares: f64 = deviations.iter().map(|(x, _)| x * x).sum();
    if squares <= 0.0 {
        return None;
    }
    let slope = deviations.iter().map(|(x, y)| x * y).sum::<f64>() / squares;
    let rest: f64 = deviations.iter().map(|(x, y)| (y - slope * x).powi(2)).sum();
    let half = T_QUANTILES[freedom.min(T_QUANTILES.len()) - 1] * (rest / freedom as f64 / squares).sqrt();
    Some(Slope { slope, low: slope - half, high: slope + half })
}

/// Change between runs whose logarithms are given, with the interval of Welch's t test. Both states have at least one
/// run. There are too few runs for order statistics.
pub(crate) fn change(new: &[f64], old: &[f64]) -> Change {
    let mean = |logs: &[f64]| logs.iter().sum::<f64>() / logs.len() as f64;
    let difference = mean(new) - mean(old);
    let ratio = difference.exp();
    if new.len() < 2 || old.len() < 2 {
        return Change { ratio, interval: None };
    }
    // Squared error of the mean.
    let error = |logs: &[f64]| {
        let squares: f64 = logs.iter().map(|log| (log - mean(logs)).powi(2)).sum();
        squares / (logs.len() - 1) as f64 / logs.len() as f64
    };
    let [new_error, old_error] = [error(new), error(old)];
    let sum = new_error + old_error;
    let freedom =
        sum * sum / (new_error * new_error / (new.len() - 1) as f64 + old_error * old_error / (old.len() - 1) as f64);
    // Rounded down, and with the last quantile for more, the interval is wider than needed, never narrower. Without any
    // variance the freedom is not a number, and the interval has no width.
    let quantile = T_QUANTILES[(freedom as usize).clamp(1, T_QUANTILES.len()) - 1];
    let half = quantile * sum.sqrt();
    Change { ratio, interval: Some([(difference - half).exp(), (difference + half).exp()]) }
}

/// Probability that the interval from the `rank`th smallest to the `rank`th greatest of `count` values contains the
/// median.
fn coverage(count: usize, rank: usize) -> f64 {
    // Logarithms, because the first terms of many values are smaller than the smallest number.
    let mut log_term = -(count as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    for index in 0..rank {
        below += log_term.exp();
        log_term += ((count - index) as f64 / (index + 1) as f64).ln();
    }
    1.0 - 2.0 * below
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// Simulated experiments for each number of pairs.
    const EXPERIMENTS: usize = 4000;

    #[test]
    fn medians() {
        for (values, expect) in [(&[][..], 0.0), (&[3.0], 3.0), (&[3.0, 1.0, 2.0], 2.0), (&[1.0, 2.0, 4.0, 3.0], 2.5)] {
            assert_eq!(median(values), expect, "{values:?}");
        }
    }

    #[test]
    fn coverage_of_ranks() {
        // Tables of the sign test: 6 and 8 values from the extremes, 20 from the sixth.
        for (count, rank, expect) in [(5, 1, 0.9375), (6, 1, 0.96875), (8, 1, 0.9921875), (20, 6, 0.9586105)] {
            assert!((coverage(count, rank) - expect).abs() < 1e-7, "{count} {rank}: {}", coverage(count, rank));
        }
        assert!((coverage(4000, 1939) - 0.95).abs() < 0.01, "{}", coverage(4000, 1939));
    }

    #[test]
    fn texts() {
        let text = |ratios: &[f64]| paired_ratio(ratios, &vec![1.0; ratios.len()]).to_string();
        assert_eq!(text(&[]), "-");
        assert_eq!(text(&[1.5]), "1.500");
        assert_eq!(text(&[1.0, 1.21]), "1.100 (1.000 - 1.210)");
        assert_eq!(text(&[1.0, 1.1, 1.2, 1.3, 1.4]), "1.200 (1.000 - 1.400)");
        assert!(text(&[1.0, 1.1, 1.2, 1.3, 1.4, 1.5]).contains('['));
        // A failed round is a ratio, too: nothing passed, or the latency is infinite.
        assert_eq!(text(&[0.0, 1.0, f64::INFINITY]), "1.000 (0.000 - inf)");
    }

    /// Generator of noise with a median of 0.
    type Noise = fn(&mut Rng) -> f64;

    /// Kinds of noise by name.
    fn noises() -> [(&'static str, Noise); 5] {
        fn normal(rng: &mut Rng) -> f64 {
            (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos()
        }
        fn exponential(rng: &mut Rng) -> f64 {
            -(1.0 - rng.f64()).ln()
        }
        [
            ("normal", normal),
            ("uniform", |rng| rng.f64() - 0.5),
            ("two-sided exponential", |rng| exponential(rng) * if rng.bool() { 1.0 } else { -1.0 }),
            ("skewed", |rng| exponential(rng) - std::f64::consts::LN_2),
            ("with outliers", |rng| normal(rng) * if rng.f64() < 0.1 { 10.0 } else { 1.0 }),
        ]
    }

    /// Share of experiments whose interval, or range, contains the true ratio of 2.
    fn simulated_coverage(pairs: usize, noise: Noise, rng: &mut Rng) -> f64 {
        let mut held = 0;
        for _ in 0..EXPERIMENTS {
            let base: Vec<f64> = (0..pairs).map(|_| (rng.f64() * 0.5).exp()).collect();
            let values: Vec<f64> = base.iter().map(|base| base * 2.0 * (0.05 * noise(rng)).exp()).collect();
            let estimate = paired_ratio(&values, &base);
            assert_eq!(estimate.has_interval(), pairs >= 6);
            assert!(estimate.low <= estimate.median && estimate.median <= estimate.high, "{estimate:?}");
            held += usize::from((estimate.low..=estimate.high).contains(&2.0));
        }
        held as f64 / EXPERIMENTS as f64
    }

    /// An interval of 95 % contains the truth in 95 % of the cases, for any noise. Below six pairs there is none,
    /// because the range of so few pairs contains it more rarely.
    #[test]
    fn intervals_hold_the_truth() {
        let mut rng = Rng::with_seed(5);
        for pairs in 2..=24 {
            for (name, noise) in noises() {
                let held = simulated_coverage(pairs, noise, &mut rng);
                let expect = match pairs {
                    // The range of n pairs contains the median with a probability of 1 - 2^(1 - n).
                    2..=5 => 1.0 - 0.5f64.powi(pairs as i32 - 1),
                    _ => CONFIDENCE,
                };
                assert!((held - expect).abs() <= 0.02, "{pairs} pairs, {name}: {held}, expected {expect}");
            }
        }
    }

    /// Intervals of repeated runs hold the true change in at least 95 % of the cases, however much runs differ.
    #[test]
    fn changes_hold_the_truth() {
        let mut rng = Rng::with_seed(11);
        let (_, normal) = noises()[0];
        for (old_runs, new_runs) in [(2, 2), (3, 3), (3, 6), (6, 6), (12, 12)] {
            for new_noise in [0.05, 0.2] {
                let mut held = 0;
                for _ in 0..EXPERIMENTS {
                    let old: Vec<f64> = (0..old_runs).map(|_| 0.05 * normal(&mut rng)).collect();
                    let new: Vec<f64> = (0..new_runs).map(|_| 0.7 + new_noise * normal(&mut rng)).collect();
                    let [low, high] = change(&new, &old).interval.unwrap();
                    held += usize::from((low..=high).contains(&0.7f64.exp()));
                }
                let held = held as f64 / EXPERIMENTS as f64;
                assert!(held >= 0.93, "{old_runs} and {new_runs} runs, {new_noise}: {held}");
            }
        }
        assert_eq!(change(&[0.0], &[0.0, 1.0]).interval, None);
        assert_eq!(change(&[0.0, 0.0], &[0.0, 0.0]).interval, Some([1.0, 1.0]));
    }

    /// A leak of one byte per request is seen at 10 million requests. Without a leak, few intervals exclude 0, though memory
    /// rises and falls by megabytes, and though the servers start again.
    #[test]
    fn slopes_of_memory() {
        let mut rng = Rng::with_seed(17);
        let (_, normal) = noises()[0];
        for (leak, starts, seen) in
            [(1.0, 1, 0.99..=1.0), (1.0, 2, 0.8..=1.0), (0.0, 1, 0.0..=0.1), (0.0, 3, 0.0..=0.1)]
        {
            let mut excluded = 0;
            for _ in 0..1000 {
                let mut sections = Vec::new();
                for start in 0..starts {
                    let (level, mut noise) = (f64::from(start) * 5e6 + 50e6, 0.0);
                    let points = (1..=540 / starts).map(|interval| {
                        noise = 0.5 * noise + 0.5e6 * normal(&mut rng);
                        let requests = f64::from(interval) * 10e6 / 540.0;
                        (requests, level + leak * requests + noise)
                    });
                    sections.push(points.collect());
                }
                let slope = slope(&sections).unwrap();
                excluded += usize::from(!(slope.low..=slope.high).contains(&0.0));
                assert!((slope.slope - leak).abs() < 0.8, "{slope}");
            }
            let share = excluded as f64 / 1000.0;
            assert!(seen.contains(&share), "leak {leak}, {starts} starts: {share}");
        }
        assert_eq!(slope(&[vec![(1.0, 1.0); 3]]), None);
        assert_eq!(slope(&[]), None);
    }

    /// Pairs of a real A/A control on a busy machine, some of which are off by a factor of ten.
    #[test]
    fn intervals_hold_the_truth_of_real_controls() {
        let lines = include_str!("control_pairs.txt").lines().filter(|line| !line.starts_with('#'));
        let rows: Vec<Vec<f64>> =
            lines.map(|line| line.split(' ').map(|ratio| ratio.parse().unwrap()).collect()).collect();
        let mut rng = Rng::with_seed(13);
        for column in 0..2 {
            let all: Vec<f64> = rows.iter().map(|row| row[column]).collect();
            assert!(all.len() >= 70);
            // The population is what was measured, so its median is the truth.
            let truth = paired_ratio(&all, &vec![1.0; all.len()]).median;
            for pairs in [6, 8, 12, 24] {
                let holds = |rng: &mut Rng| {
                    let drawn: Vec<f64> = (0..pairs).map(|_| all[rng.usize(..all.len())]).collect();
                    let estimate = paired_ratio(&drawn, &vec![1.0; pairs]);
                    (estimate.low..=estimate.high).contains(&truth)
                };
                let held = (0..EXPERIMENTS).filter(|_| holds(&mut rng)).count() as f64 / EXPERIMENTS as f64;
                assert!((0.93..=0.97).contains(&held), "{pairs} pairs, column {column}: {held}");
            }
        }
    }

    /// The first place of a round costs 10 %. The order alternates, so an even number of rounds cancels that.
    #[test]
    fn even_rounds_cancel_the_position() {
        let ratio = |rounds: i32| {
            let ratios: Vec<f64> = (0..rounds).map(|round| 1.1f64.powi(1 - 2 * (round % 2))).collect();
            paired_ratio(&ratios, &vec![1.0; ratios.len()]).median
        };
        assert!((ratio(6) - 1.0).abs() < 1e-9 && (ratio(12) - 1.0).abs() < 1e-9);
        assert!(ratio(7) > 1.09);
    }

    /// A control passes only if its whole interval is close to 1.
    #[test]
    fn equivalence() {
        let estimate = |low, high, pairs| Estimate { median: 1.0, low, high, pairs };
        for (estimate, expect) in [
            (estimate(0.98, 1.02, 6), true),
            (estimate(0.885, 1.145, 6), false),
            (estimate(0.96, 1.0, 6), false),
            (estimate(1.01, 1.04, 6), false),
            (estimate(1.0, 1.0, 1), true),
            (estimate(1.0, 1.0, 0), false),
        ] {
            assert_eq!(estimate.is_within(0.03), expect, "{estimate:?}");
        }
        // If the truth is just outside the margin, at most 2.5 % of the controls pass.
        let mut rng = Rng::with_seed(7);
        for (name, noise) in noises() {
            let passes = |rng: &mut Rng| {
                let ratios: Vec<f64> = (0..8).map(|_| 1.0301 * (0.01 * noise(rng)).exp()).collect();
                paired_ratio(&ratios, &[1.0; 8]).is_within(0.03)
            };
            let passed = (0..EXPERIMENTS).filter(|_| passes(&mut rng)).count() as f64 / EXPERIMENTS as f64;
            assert!(passed <= 0.04, "{name}: {passed}");
        }
    }
}
