//! Conditions that a run must meet to pass.

use crate::report::BenchReport;
use crate::units::{parse_count, parse_duration, parse_number};

/// Condition that a run must meet to pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Requirement {
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
    /// Responses served per second within the deadline.
    Goodput,
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
    let seconds = || {
        // k6 means milliseconds by it, and seconds would hold always.
        if bound.parse::<f64>().is_ok_and(|number| number != 0.0) {
            return Err(format!("`{text}`: the time needs a unit, such as {bound}ms"));
        }
        parse_duration(bound).map(|duration| duration.as_secs_f64())
    };
    let (quantity, bound) = match name.trim() {
        "rate" => (RequiredQuantity::Rate, parse_number(bound)?),
        "goodput" => (RequiredQuantity::Goodput, parse_number(bound)?),
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
                    "unknown quantity `{name}`; use p50, p99.9 and so on, mean, max, rate, goodput, served or failures"
                ));
            }
        },
    };
    Ok(Requirement { text: text.to_owned(), quantity, relation, bound })
}

impl Requirement {
    /// True if the condition sets an upper limit for a latency.
    pub(super) fn limits_latency(&self) -> bool {
        use RequiredQuantity::{Max, Mean, Percentile};
        matches!(self.quantity, Percentile(_) | Mean | Max)
            && matches!(self.relation, Relation::Less | Relation::LessOrEqual)
    }

    /// True if the condition is about responses within the deadline.
    pub(super) fn needs_deadline(&self) -> bool {
        self.quantity == RequiredQuantity::Goodput
    }

    /// Returns true if the condition holds, and the value compared. A failed request is infinitely late: the value is
    /// `None` for a percentile that falls on one, and for mean and maximum if there is one. If nothing was served, no
    /// latency has a value. A condition without a value does not hold.
    pub(crate) fn judge(&self, report: &BenchReport, percentile: impl Fn(f64) -> Option<u64>) -> (bool, Option<f64>) {
        let latency = &report.latency;
        let failed = report.failures.total();
        let if_none_failed = |nanos: f64| (latency.count > 0 && failed == 0).then_some(nanos / 1e9);
        let value = match self.quantity {
            RequiredQuantity::Percentile(p) => percentile(p).map(|nanos| nanos as f64 / 1e9),
            RequiredQuantity::Mean => if_none_failed(latency.mean_nanos),
            RequiredQuantity::Max => if_none_failed(latency.max_nanos as f64),
            RequiredQuantity::Rate => Some(report.served_per_second),
            RequiredQuantity::Goodput => report.goodput_per_second,
            RequiredQuantity::Served => Some(report.served as f64),
            RequiredQuantity::Failures => Some(failed as f64),
            RequiredQuantity::FailureShare => Some(failed as f64 / (report.served + failed).max(1) as f64),
        };
        let holds = value.is_some_and(|value| match self.relation {
            Relation::Less => value < self.bound,
            Relation::LessOrEqual => value <= self.bound,
            Relation::Greater => value > self.bound,
            Relation::GreaterOrEqual => value >= self.bound,
            Relation::Equal => value == self.bound,
        });
        (holds, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{LoadOptions, plan};
    use crate::engine::{FailureClass, FailureReason, RunOutcome};
    use crate::report::{Builder, RequirementResult};

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        options: LoadOptions,
    }

    /// Judges a run with `served` responses after 3.9 ms and `failed` time-outs.
    fn judge(requirement: &str, served: u64, failed: u64) -> RequirementResult {
        let words = ["bench", "http://127.0.0.1:1/", "--require", requirement];
        let options = <Command as clap::Parser>::parse_from(words).options;
        let mut outcome = RunOutcome { duration: std::time::Duration::from_secs(1), ..RunOutcome::empty() };
        outcome.record.served = served;
        outcome.record.latency.record_n(3_900_000, served).unwrap();
        (0..failed).for_each(|_| outcome.record.fail(FailureClass::TimeOut, FailureReason::Unknown));
        let builder = Builder::new(&options, &plan::make(&options).unwrap(), None);
        builder.finish(&outcome, Vec::new(), false).requirements.remove(0)
    }

    #[test]
    fn failed_requests_are_infinitely_late() {
        for (requirement, served, failed, expect) in [
            ("p99<50ms", 400, 0, (true, true)),
            ("p99<50ms", 200, 200, (false, false)),
            ("p99<50ms", 396, 4, (true, true)),
            ("p99<50ms", 395, 5, (false, false)),
            ("p50<50ms", 200, 200, (true, true)),
            ("p99>1ms", 200, 200, (false, false)),
            ("mean<50ms", 399, 1, (false, false)),
            ("max<50ms", 399, 1, (false, false)),
            ("max<50ms", 400, 0, (true, true)),
            ("failures<1%", 399, 1, (true, true)),
            ("p50<50ms", 0, 1, (false, false)),
        ] {
            let result = judge(requirement, served, failed);
            assert_eq!(
                (result.holds, result.value.is_some()),
                expect,
                "{requirement}: {served} served, {failed} failed"
            );
        }
    }

    #[test]
    fn conditions() {
        for (text, expect) in [
            ("p99<5ms", Some((RequiredQuantity::Percentile(99.0), Relation::Less, 0.005))),
            ("p99.9 <= 1s", Some((RequiredQuantity::Percentile(99.9), Relation::LessOrEqual, 1.0))),
            ("rate>0.4", Some((RequiredQuantity::Rate, Relation::Greater, 0.4))),
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
