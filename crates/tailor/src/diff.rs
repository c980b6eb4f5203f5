//! `tailor diff`: compares records of `tailor bench`, with an exit code for continuous integration.

use std::fmt::Write;
use std::path::Path;

use crate::end::ProgramEnd;
use crate::report::{BenchReport, LoadShape};
use crate::statistics::{Change, change};
use crate::units::{format_nanos, format_rate, parse_share};

/// Share of failed requests by which the new runs may exceed the old ones.
const FAILED_SHARE_MAX: f64 = 0.001;

/// Options of `tailor diff`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DiffOptions {
    /// Records of the old state; commas separate repeated runs, at least two
    #[arg(value_name = "OLD.json,...")]
    pub old: String,
    /// Records of the new state
    #[arg(value_name = "NEW.json,...")]
    pub new: String,
    /// Change for the worse that is accepted
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = parse_share)]
    pub tolerance: f64,
}

/// Compares two sets of records, and prints the changes.
///
/// # Errors
/// The records cannot be read, or cannot be compared.
pub(crate) fn run(options: &DiffOptions) -> Result<ProgramEnd, String> {
    let (text, is_worse) = describe(&read(&options.old)?, &read(&options.new)?, options.tolerance)?;
    crate::output::print(&text)?;
    Ok(if is_worse { ProgramEnd::Failed } else { ProgramEnd::Passed })
}

pub(crate) fn read(paths: &str) -> Result<Vec<BenchReport>, String> {
    let read = |path: &str| {
        let text = crate::input::read_text(Path::new(path))?;
        serde_json::from_str(&text).map_err(|error| format!("{path}: not a record of `tailor bench`: {error}"))
    };
    paths.split(',').map(read).collect()
}

/// Measured quantity of a run.
struct Quantity {
    name: &'static str,
    value: fn(&BenchReport) -> Option<f64>,
    format: fn(f64) -> String,
    is_more_better: bool,
}

const QUANTITIES: [Quantity; 6] = [
    Quantity {
        name: "served/s",
        value: |report| Some(report.served_per_second),
        format: format_rate,
        is_more_better: true,
    },
    Quantity { name: "p50", value: |report| nanos(report, 50.0), format: format_time, is_more_better: false },
    Quantity { name: "p90", value: |report| nanos(report, 90.0), format: format_time, is_more_better: false },
    Quantity { name: "p99", value: |report| nanos(report, 99.0), format: format_time, is_more_better: false },
    Quantity { name: "p99.9", value: |report| nanos(report, 99.9), format: format_time, is_more_better: false },
    Quantity {
        name: "us/request",
        value: |report| report.server.as_ref().map(|server| server.processor_micros_per_request),
        format: |micros| format!("{micros:.2}"),
        is_more_better: false,
    },
];

fn nanos(report: &BenchReport, percentile: f64) -> Option<f64> {
    report.latency.at(percentile).map(|nanos| nanos as f64)
}

fn format_time(nanos: f64) -> String {
    format_nanos(nanos as u64)
}

/// Describes the changes. Returns true if one is for the worse: shown by its interval, and beyond the tolerance.
fn describe(old: &[BenchReport], new: &[BenchReport], tolerance: f64) -> Result<(String, bool), String> {
    if old.len() < 2 || new.len() < 2 {
        return Err("one run does not show how much runs differ; give at least two records of each, better more: \
                    tailor diff old1.json,old2.json,old3.json new1.json,new2.json,new3.json"
            .to_owned());
    }
    old.iter().chain(new).try_for_each(|report| check_same_load(&old[0].load, &report.load))?;
    if old.iter().chain(new).any(|report| report.interrupted) {
        return Err("a run was interrupted".to_owned());
    }
    let (mut out, mut is_any_worse) = (String::new(), false);
    for quantity in &QUANTITIES {
        let values = |reports: &[BenchReport]| reports.iter().map(quantity.value).collect::<Option<Vec<f64>>>();
        // In some run the value is unknown, or the server was not watched.
        let (Some(old), Some(new)) = (values(old), values(new)) else { continue };
        let change = change(&logs(&new), &logs(&old));
        let verdict = judge(&change, quantity.is_more_better, tolerance);
        is_any_worse |= verdict == Verdict::Worse;
        let [before, after] = [&old, &new].map(|values| (quantity.format)(mean(values)));
        let text = format!("  {:<12} {before:>10} -> {after:>10}  x {change}  {}", quantity.name, verdict.text());
        // Writing to a string does not fail.
        let _ = writeln!(out, "{}", text.trim_end());
    }
    let [before, after] = [old, new].map(|reports| mean(&reports.iter().map(failed_share).collect::<Vec<f64>>()));
    let has_more_failures = after > before + FAILED_SHARE_MAX;
    let verdict = if has_more_failures { "  worse" } else { "" };
    let _ = writeln!(out, "  {:<12} {:>8.3} % -> {:>8.3} %{verdict}", "failed", before * 100.0, after * 100.0);
    let limits = old.iter().chain(new).flat_map(|report| &report.limits).filter(|limit| limit.is_warning());
    let mut limits: Vec<String> = limits.map(|limit| limit.sentence()).collect();
    limits.dedup_by_key(|text| text.split(':').next().unwrap_or_default().to_owned());
    limits.iter().for_each(|limit| out += &format!("  {limit}\n"));
    Ok((out, is_any_worse || has_more_failures))
}

/// Checks that two loads are the same, apart from their random choices.
///
/// # Errors
/// The loads differ; the text names the parts that do.
pub(crate) fn check_same_load(one: &LoadShape, other: &LoadShape) -> Result<(), String> {
    let parts = |load: &LoadShape| {
        let LoadShape { pace, rate_per_second, profile, connections, threads, pipeline, protocol, tls, seed: _ } =
            load.clone();
        [
            ("pace", pace),
            ("rate", rate_per_second.map_or("none".to_owned(), |rate| rate.to_string())),
            ("profile", profile.unwrap_or_else(|| "none".to_owned())),
            ("connections", connections.to_string()),
            ("threads", threads.to_string()),
            ("pipeline or streams", pipeline.to_string()),
            ("protocol", protocol),
            ("TLS", tls.to_string()),
        ]
    };
    let (one, other) = (parts(one), parts(other));
    let pairs = one.iter().zip(&other).filter(|(one, other)| one != other);
    let different: Vec<String> = pairs.map(|((name, one), (_, other))| format!("{name} {one} and {other}")).collect();
    if different.is_empty() { Ok(()) } else { Err(format!("the loads differ: {}", different.join(", "))) }
}

fn failed_share(report: &BenchReport) -> f64 {
    let failed = report.failures.total();
    failed as f64 / (report.served + failed).max(1) as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Logarithms; a value of 0 counts as very small.
fn logs(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value.max(1e-9).ln()).collect()
}

/// Verdict on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Better,
    NoDifference,
    /// For the worse, but within the tolerance.
    Tolerated,
    Worse,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::NoDifference => "no difference shown",
            Self::Tolerated => "worse, but within the tolerance",
            Self::Worse => "worse",
        }
    }
}

fn judge(change: &Change, is_more_better: bool, tolerance: f64) -> Verdict {
    let Some([low, high]) = change.interval else { return Verdict::NoDifference };
    // Factor by which the new state is worse.
    let (factor, is_worse) = match is_more_better {
        true => (1.0 / change.ratio, high < 1.0),
        false => (change.ratio, low > 1.0),
    };
    match is_worse {
        _ if low <= 1.0 && 1.0 <= high => Verdict::NoDifference,
        true if factor > 1.0 + tolerance => Verdict::Worse,
        true => Verdict::Tolerated,
        false => Verdict::Better,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let change = |ratio, low, high| Change { ratio, interval: Some([low, high]) };
        for (change, is_more_better, expect) in [
            (change(1.2, 1.1, 1.3), false, Verdict::Worse),
            (change(1.2, 0.9, 1.5), false, Verdict::NoDifference),
            (change(1.04, 1.01, 1.07), false, Verdict::Tolerated),
            (change(0.8, 0.7, 0.9), false, Verdict::Better),
            (change(0.8, 0.7, 0.9), true, Verdict::Worse),
            (change(1.2, 1.1, 1.3), true, Verdict::Better),
            (Change { ratio: 2.0, interval: None }, false, Verdict::NoDifference),
        ] {
            assert_eq!(judge(&change, is_more_better, 0.05), expect, "{change:?}");
        }
    }

    #[test]
    fn loads_that_differ() {
        let load = |rate: f64, connections: u64| -> LoadShape {
            serde_json::from_value(serde_json::json!({
                "pace": "constant", "rate_per_second": rate, "connections": connections, "threads": 1, "pipeline": 1,
                "tls": false,
            }))
            .unwrap()
        };
        let first = load(1000.0, 2);
        assert_eq!(check_same_load(&first, &LoadShape { seed: Some(1), ..first.clone() }), Ok(()));
        let error = check_same_load(&first, &load(1000.25, 3)).unwrap_err();
        assert_eq!(error, "the loads differ: rate 1000 and 1000.25, connections 2 and 3");
    }
}
