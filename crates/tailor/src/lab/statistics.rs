//! Medians and their confidence intervals.

use std::fmt;

use fastrand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of resamples of a bootstrap.
const RESAMPLES: usize = 4000;

/// Estimate with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl fmt::Display for Estimate {
    /// Omits the interval of a single round, which would claim a certainty that does not exist.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.3}", self.median)?;
        match self.low < self.high {
            true => write!(formatter, " [{:.3} - {:.3}]", self.low, self.high),
            false => Ok(()),
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

/// Median of paired ratios with its interval by the bootstrap (resampled rounds, percentile method).
pub(crate) fn paired_ratio(values: &[f64], base: &[f64]) -> Estimate {
    let ratios: Vec<f64> = values
        .iter()
        .zip(base)
        .filter(|(_, base)| **base > 0.0)
        .map(|(a, b)| a / b)
        .filter(|ratio| ratio.is_finite())
        .collect();
    bootstrap(|rng| median(&resample(&ratios, rng)), median(&ratios))
}

/// Ratio of two unpaired medians with its interval by the bootstrap.
pub(crate) fn unpaired_ratio(values: &[f64], base: &[f64]) -> Estimate {
    let ratio = |values: &[f64], base: &[f64]| median(values) / median(base).max(f64::MIN_POSITIVE);
    bootstrap(|rng| ratio(&resample(values, rng), &resample(base, rng)), ratio(values, base))
}

fn bootstrap(mut statistic: impl FnMut(&mut Rng) -> f64, median: f64) -> Estimate {
    // A fixed seed gives the same interval for the same rounds.
    let mut rng = Rng::with_seed(99);
    let mut resampled: Vec<f64> = (0..RESAMPLES).map(|_| statistic(&mut rng)).collect();
    resampled.sort_by(f64::total_cmp);
    let at = |share: f64| resampled[((RESAMPLES - 1) as f64 * share).round() as usize];
    Estimate { median, low: at(0.025), high: at(0.975) }
}

fn resample(values: &[f64], rng: &mut Rng) -> Vec<f64> {
    values.iter().map(|_| values[rng.usize(..values.len())]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        for (values, expect) in [(&[][..], 0.0), (&[3.0], 3.0), (&[3.0, 1.0, 2.0], 2.0), (&[1.0, 2.0, 4.0, 3.0], 2.5)] {
            assert_eq!(median(values), expect, "{values:?}");
        }
    }

    #[test]
    fn intervals_hold_the_truth() {
        // Of 200 experiments of 9 rounds whose true ratio is 2, at least 85 % of the intervals must contain it. The
        // percentile bootstrap of so few rounds is known to be a little narrow.
        let mut rng = Rng::with_seed(5);
        let mut held = 0;
        for _ in 0..200 {
            let mut noise = |scale: f64| (0..9).map(|_| scale * (1.0 + 0.1 * (rng.f64() - 0.5))).collect::<Vec<f64>>();
            let (values, base) = (noise(2.0), noise(1.0));
            let estimate = paired_ratio(&values, &base);
            held += u32::from((estimate.low..=estimate.high).contains(&2.0));
            assert!(estimate.low <= estimate.median && estimate.median <= estimate.high);
        }
        assert!(held >= 170, "{held} of 200");
    }
}
