//! Course of a run over time: the table of IBM's endurance tests, and plots.

use super::report::{CompareReport, Measurement};
use crate::engine::FailureClass;
use crate::report::IntervalReport;
use crate::report::plot::{Plot, Series};
use crate::units::{format_bytes, format_count, format_nanos};

/// Number of intervals at each end of a run whose means show whether memory grows.
const ENDS: usize = 20;

/// Table with a column for each server, from its last round.
pub(super) fn rows(report: &CompareReport) -> Vec<Vec<String>> {
    let measured = last_measurements(report);
    let mut heads = vec![String::new()];
    heads.extend(measured.iter().map(|(name, _)| (*name).to_owned()));
    let mut rows = vec![heads];
    let mut add = |name: &str, value: &dyn Fn(&Measurement) -> String| {
        let mut row = vec![name.to_owned()];
        row.extend(measured.iter().map(|(_, measurement)| value(measurement)));
        rows.push(row);
    };
    let percent = |seconds: f64, it: &Measurement| format!("{:.2} %", seconds / it.counted_seconds.max(1e-9) * 100.0);
    add("duration", &|it| format_duration(it.counted_seconds));
    add("average CPU time, user", &|it| percent(it.user_seconds, it));
    add("average CPU time, system", &|it| percent(it.system_seconds, it));
    let memories: [(&str, MemoryOf); 2] =
        [("memory", |it| it.server_memory_bytes), ("own memory", |it| it.server_own_memory_bytes)];
    for (name, bytes) in memories {
        if measured.iter().flat_map(|(_, it)| intervals(it)).any(|it| bytes(it).is_some()) {
            let start = |it: &Measurement| memory_mean(&intervals(it)[..intervals(it).len().min(ENDS)], bytes);
            let end = |it: &Measurement| memory_mean(&intervals(it)[intervals(it).len().saturating_sub(ENDS)..], bytes);
            add(&format!("{name} at the start"), &|it| format_bytes(start(it)));
            add(&format!("{name} at the end"), &|it| format_bytes(end(it)));
        }
    }
    add("memory, peak", &|it| format_bytes(it.memory_bytes_max as f64));
    add("swap, peak", &|it| format_bytes(it.swap_bytes_max as f64));
    add("total requests served", &|it| format_count(it.loads.iter().map(|load| load.served).sum()));
    add("requests/s", &|it| {
        format_count(it.loads.iter().map(|load| load.served_per_second).sum::<f64>().round() as u64)
    });
    add("mean latency", &|it| format_nanos(mean_nanos(it) as u64));
    add("failed", &|it| format_count(it.loads.iter().map(|load| load.failures.total()).sum()));
    for class in FailureClass::ALL {
        let count = |it: &Measurement| it.loads.iter().map(|load| load.failures.of(*class)).sum::<u64>();
        // IBM's table always has these four classes.
        let is_original = matches!(
            class,
            FailureClass::Connect | FailureClass::EarlyClose | FailureClass::Write | FailureClass::TimeOut
        );
        if is_original || measured.iter().any(|(_, it)| count(it) > 0) {
            add(&format!("— {}", class.name()), &|it| format_count(count(it)));
        }
    }
    rows
}

/// Plots of requests served over time; an endurance test also has CPU time, memory and latency.
pub(super) fn plots(report: &CompareReport) -> String {
    let plot = |title, value: fn(&IntervalReport) -> f64, format_y| plot(report, title, value, format_y);
    let mut out =
        plot("Requests served per second, last round", |it| it.served_per_second, |value| format_count(value as u64));
    if report.is_endurance {
        let percent: fn(f64) -> String = |value| format!("{value:.1} %");
        out += &plot("CPU time, user", |it| it.server_user_share.unwrap_or(0.0) * 100.0, percent);
        out += &plot("CPU time, system", |it| it.server_system_share.unwrap_or(0.0) * 100.0, percent);
        out += &plot("Memory", |it| it.server_memory_bytes.unwrap_or(0) as f64, format_bytes);
        out += &plot("Own memory", |it| it.server_own_memory_bytes.unwrap_or(0) as f64, format_bytes);
        out += &plot("Latency, p99", |it| it.p99_nanos as f64, |value| format_nanos(value as u64));
    }
    out
}

fn plot(report: &CompareReport, title: &str, value: fn(&IntervalReport) -> f64, format_y: fn(f64) -> String) -> String {
    let measured = last_measurements(report);
    let seconds_max = measured.iter().flat_map(|(_, it)| intervals(it)).map(|it| it.end_seconds).fold(0.0, f64::max);
    let (unit_seconds, x_label) = match seconds_max {
        s if s > 6.0 * 3600.0 => (3600.0, "hours"),
        s if s > 600.0 => (60.0, "minutes"),
        _ => (1.0, "seconds"),
    };
    let series = measured.iter().map(|(name, measurement)| Series {
        name,
        points: intervals(measurement).iter().map(|it| (it.end_seconds / unit_seconds, value(it))).collect(),
    });
    let series: Vec<Series<'_>> = series.collect();
    if series.iter().all(|series| series.points.len() < 2) {
        return String::new(); // Such short loads have no course to plot.
    }
    Plot { title, x_label, series, x_marks: Vec::new(), format_y }.to_html()
}

/// Last measurement of each server; in a search, the one at the highest value that passed.
fn last_measurements(report: &CompareReport) -> Vec<(&str, &Measurement)> {
    let servers = report.steps.last().map_or(&[][..], |step| &step.servers);
    let measured = servers.iter().filter_map(|server| Some((server.name.as_str(), server.measurements.last()?)));
    let searched = report.searches.iter().filter_map(|search| Some((search.name.as_str(), search.at_best()?)));
    measured.chain(searched).collect()
}

/// Intervals of the first load without an incomplete last one. Each load watches the same server, so the first
/// suffices.
fn intervals(measurement: &Measurement) -> &[IntervalReport] {
    let intervals = measurement.loads.first().map_or(&[][..], |load| &load.intervals);
    let length = |it: &IntervalReport| it.end_seconds - it.start_seconds;
    match intervals {
        [first, .., last] if length(last) < length(first) / 2.0 => &intervals[..intervals.len() - 1],
        _ => intervals,
    }
}

/// A kind of memory that intervals record.
type MemoryOf = fn(&IntervalReport) -> Option<u64>;

fn memory_mean(intervals: &[IntervalReport], bytes: MemoryOf) -> f64 {
    let sum: u64 = intervals.iter().filter_map(bytes).sum();
    sum as f64 / intervals.len().max(1) as f64
}

fn mean_nanos(measurement: &Measurement) -> f64 {
    let served: u64 = measurement.loads.iter().map(|load| load.served).sum();
    measurement.loads.iter().map(|load| load.mean_nanos * load.served as f64).sum::<f64>() / served.max(1) as f64
}

fn format_duration(seconds: f64) -> String {
    match seconds {
        s if s >= 3600.0 => format!("{:.2} h", s / 3600.0),
        s if s >= 60.0 => format!("{:.1} min", s / 60.0),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (seconds, expect) in [(12.34, "12.3 s"), (90.0, "1.5 min"), (86_400.0, "24.00 h")] {
            assert_eq!(format_duration(seconds), expect);
        }
    }
}
