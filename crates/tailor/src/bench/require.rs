//! Conditions that a run must meet to pass.

use crate::report::BenchReport;
use crate::units::{parse_count, parse_duration};

/// Condition that a run must meet to pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Requirement {
    /// Condition as the user typed it.
    pub text: String,
    quantity: RequiredQuantity,
    relation: Relation,
    bound: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum RequiredQuantity {
    /// Percentile of the latency, in seconds.
    Percentile(f64),
    Mean,
    Max,
    /// Responses served per second.
    Rate,
    Served,
    Failures,
    /// Failed requests as a share of all requests that ended.
    FailureShare,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Relation {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
}

/// Parses a condition such as `p99<5ms`, `rate>=10k`, `failures=0` or `failures<0.1%`.
pub(super) fn parse(text: &str) -> Result<Requirement, String> {
    let at = text.find(['<', '>', '=']).ok_or_else(|| format!("`{text}` has no <, <=, >, >= or ="))?;
    let (name, rest) = text.split_at(at);
    let (relation, bound) = match rest.as_bytes() {
        [b'<', b'=', ..] => (Relation::LessOrEqual, &rest[2..]),
        [b'>', b'=', ..] => (Relation::GreaterOrEqual, &rest[2..]),
        [b'<', ..] => (Relation::Less, &rest[1..]),
        [b'>', ..] => (Relation::Greater, &rest[1..]),
        _ => (Relation::Equal, &rest[1..]),
    };
    let bound = bound.trim();
    let seconds = || parse_duration(bound).map(|duration| duration.as_secs_f64());
    let (quantity, bound) = match name.trim() {
        "rate" => (RequiredQuantity::Rate, parse_count(bound)? as f64),
        "served" => (RequiredQuantity::Served, parse_count(bound)? as f64),
        "failures" | "errors" => match bound.strip_suffix('%') {
            Some(share) => {
                let share: f64 =
                    share.parse().map_err(|_| format!("`{bound}` is not a share (0 to 1, or 0% to 100%)"))?;
                (RequiredQuantity::FailureShare, share / 100.0)
            }
            None => (RequiredQuantity::Failures, parse_count(bound)? as f64),
        },
        "mean" => (RequiredQuantity::Mean, seconds()?),
        "max" => (RequiredQuantity::Max, seconds()?),
        name => match name.strip_prefix('p').and_then(|digits| digits.parse::<f64>().ok()) {
            Some(percentile) if (0.0..=100.0).contains(&percentile) => {
                (RequiredQuantity::Percentile(percentile), seconds()?)
            }
            _ => {
                return Err(format!(
                    "unknown quantity `{name}`; use p50, p99.9 and so on, mean, max, rate, served or failures"
                ));
            }
        },
    };
    Ok(Requirement { text: text.to_owned(), quantity, relation, bound })
}

impl Requirement {
    /// Returns true if the condition holds, and the value compared. If nothing was served, no condition on latency
    /// holds.
    pub fn judge(&self, report: &BenchReport, percentile: impl Fn(f64) -> u64) -> (bool, f64) {
        let latency = &report.latency;
        let value = match self.quantity {
            RequiredQuantity::Percentile(p) => percentile(p) as f64 / 1e9,
            RequiredQuantity::Mean => latency.mean_nanos / 1e9,
            RequiredQuantity::Max => latency.max_nanos as f64 / 1e9,
            RequiredQuantity::Rate => report.served_per_second,
            RequiredQuantity::Served => report.served as f64,
            RequiredQuantity::Failures => report.failures.total() as f64,
            RequiredQuantity::FailureShare => {
                report.failures.total() as f64 / (report.served + report.failures.total()).max(1) as f64
            }
        };
        let needs_latency =
            matches!(self.quantity, RequiredQuantity::Percentile(_) | RequiredQuantity::Mean | RequiredQuantity::Max);
        let holds = match self.relation {
            Relation::Less => value < self.bound,
            Relation::LessOrEqual => value <= self.bound,
            Relation::Greater => value > self.bound,
            Relation::GreaterOrEqual => value >= self.bound,
            Relation::Equal => value == self.bound,
        };
        (holds && !(needs_latency && latency.count == 0), value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions() {
        for (text, expect) in [
            ("p99<5ms", Some((RequiredQuantity::Percentile(99.0), Relation::Less, 0.005))),
            ("p99.9 <= 1s", Some((RequiredQuantity::Percentile(99.9), Relation::LessOrEqual, 1.0))),
            ("rate>10k", Some((RequiredQuantity::Rate, Relation::Greater, 10_000.0))),
            ("failures=0", Some((RequiredQuantity::Failures, Relation::Equal, 0.0))),
            ("failures<0.5%", Some((RequiredQuantity::FailureShare, Relation::Less, 0.005))),
            ("max>=1ms", Some((RequiredQuantity::Max, Relation::GreaterOrEqual, 0.001))),
            ("p101<1s", None),
            ("p99", None),
            ("speed>1", None),
            ("p99<fast", None),
        ] {
            let parsed = parse(text).ok().map(|it| (it.quantity, it.relation, it.bound));
            assert_eq!(parsed, expect, "{text}");
        }
    }
}
