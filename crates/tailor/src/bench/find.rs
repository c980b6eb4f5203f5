//! `tailor bench --find`: the highest rate of an open loop at which all conditions hold.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;

use super::{LoadOptions, measure, plan};
use crate::end::ProgramEnd;
use crate::report::html::document;
use crate::report::plot::{Plot, Series, escape};
use crate::report::text::format_latency;
use crate::report::{BenchReport, Limit, RequirementResult, check_writable, write_to};
use crate::search::Search;
use crate::units::{format_count, format_nanos, format_rate};

/// Version of the report's format.
const FORMAT_VERSION: u32 = 1;
/// Duration of a try without `-d`.
const TRY_DURATION_DEFAULT: Duration = Duration::from_secs(5);
/// Duration of the closed loop that bounds the search.
const PROBE_DURATION: Duration = Duration::from_secs(1);
/// First rate to try, as a share of the rate of the closed loop. Most servers pass it, so few tries follow.
const FROM_SHARE: f64 = 0.5;
/// Highest rate to try, as a share of the rate of the closed loop. An open loop rarely exceeds it. If this rate passes, the closed loop
/// was slow by chance or by its few connections, and higher rates follow, up to the second share.
const TO_SHARE: f64 = 1.25;
const TO_SHARE_MAX: f64 = 20.0;
/// Width of the longest bar of latency in texts.
const BAR_WIDTH: f64 = 30.0;

/// Report of a search.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct FindReport {
    /// Version of this format.
    pub format_version: u32,
    /// Version of tailor.
    pub tailor_version: String,
    /// Command-line arguments of the run.
    pub arguments: Vec<String>,
    /// Address of the server.
    pub address: String,
    /// Conditions that a try must meet.
    pub conditions: Vec<String>,
    /// Responses per second in a closed loop before the search.
    pub closed_loop_per_second: f64,
    /// Highest rate in requests per second at which two tries met all conditions, or null if there is none.
    pub capacity_per_second: Option<u64>,
    /// Highest rate up to which every try passed.
    pub low_per_second: u64,
    /// Lowest rate from which on every try failed. Null if the highest rate passed: the capacity may be greater.
    pub high_per_second: Option<u64>,
    /// Limits of the client in tries that failed. If there are any, the server may be faster than the result.
    pub limits: Vec<Limit>,
    /// True if the search was interrupted.
    pub interrupted: bool,
    /// All tries, in order.
    pub tries: Vec<FindTry>,
}

/// Try of a rate.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct FindTry {
    /// Requests due per second.
    pub rate_per_second: u64,
    /// True if all conditions held.
    pub passed: bool,
    /// Responses per second that passed every check.
    pub served_per_second: f64,
    /// Failed requests.
    pub failed: u64,
    /// Median of the latency. Null if failed requests make it unknown.
    pub p50_nanos: Option<u64>,
    /// 99th percentile of the latency. Null if failed requests make it unknown.
    pub p99_nanos: Option<u64>,
    /// Results of the conditions.
    pub conditions: Vec<RequirementResult>,
}

/// Searches, and writes the reports that the options name.
///
/// # Errors
/// The search is impossible: the message gives the reason.
pub(super) fn run(options: &LoadOptions) -> Result<ProgramEnd, String> {
    if !options.find.iter().any(super::Requirement::limits_latency) {
        return Err(
            "--find needs a limit of the latency, such as p99<5ms: without it, a queue that grows passes".into()
        );
    }
    for path in options.json.iter().chain(&options.html) {
        check_writable(path)?;
    }
    let stop = crate::end::stop_on_signals()?;
    let report = search(options, &stop)?;
    if options.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        crate::output::print(&report.to_text())?;
    }
    if let Some(path) = &options.json {
        write_to(path, &serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?)?;
    }
    if let Some(path) = &options.html {
        write_to(path, &report.to_html())?;
    }
    Ok(match (report.interrupted, report.capacity_per_second) {
        (true, _) => ProgramEnd::Interrupted,
        (false, Some(_)) => ProgramEnd::Passed,
        (false, None) => ProgramEnd::Failed,
    })
}

/// JSON schema of a report.
pub(crate) fn schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(FindReport)).expect("a schema can be written as JSON")
}

fn search(options: &LoadOptions, stop: &Arc<AtomicBool>) -> Result<FindReport, String> {
    let quiet = LoadOptions { find: Vec::new(), json: None, html: None, quiet: true, ..options.clone() };
    let probe = LoadOptions { duration: Some(PROBE_DURATION), no_calibration: true, ..quiet.clone() };
    let (probed, _) = measure(&probe, plan::make(&probe)?, stop)?;
    if probed.served == 0 {
        let reasons: Vec<_> = probed.failure_reasons.values().map(String::as_str).collect();
        return Err(format!("{} served no request: {}", probed.address, reasons.join(", ")));
    }
    let closed = probed.served_per_second;
    let bound = |share: f64| (closed * share).ceil().max(1.0) as u64;
    let mut search = Search::new(bound(FROM_SHARE), bound(TO_SHARE), options.find_precision);
    let mut report = FindReport::new(options, &probed);
    while !stop.load(Ordering::Relaxed) {
        let Some(rate) = search.next() else {
            match search.raise(bound(TO_SHARE_MAX)) {
                true => continue,
                false => break,
            }
        };
        let duration = options.duration.or(Some(TRY_DURATION_DEFAULT));
        let at_rate = LoadOptions { require: options.find.clone(), rate: Some(rate as f64), duration, ..quiet.clone() };
        let (measured, _) = measure(&at_rate, plan::make(&at_rate)?, stop)?;
        if measured.interrupted {
            break;
        }
        search.on_tried(rate, measured.passed);
        report.add(rate, measured);
        if let Some(tried) = report.tries.last().filter(|_| !options.quiet) {
            eprintln!("{}", tried.line());
        }
    }
    let end = search.end();
    report.interrupted = stop.load(Ordering::Relaxed);
    (report.capacity_per_second, report.low_per_second, report.high_per_second) = (end.best, end.low, end.high);
    Ok(report)
}

impl FindReport {
    fn new(options: &LoadOptions, probed: &BenchReport) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            tailor_version: probed.tailor_version.clone(),
            arguments: probed.arguments.clone(),
            address: probed.address.clone(),
            conditions: options.find.iter().map(|condition| condition.text.clone()).collect(),
            closed_loop_per_second: probed.served_per_second,
            capacity_per_second: None,
            low_per_second: 0,
            high_per_second: None,
            limits: Vec::new(),
            interrupted: false,
            tries: Vec::new(),
        }
    }

    fn add(&mut self, rate_per_second: u64, measured: BenchReport) {
        if !measured.passed {
            for limit in measured.limits.into_iter().filter(Limit::is_warning) {
                // One limit of each part is enough.
                if self.limits.iter().all(|known| known.by != limit.by) {
                    self.limits.push(limit);
                }
            }
        }
        self.tries.push(FindTry {
            rate_per_second,
            passed: measured.passed,
            served_per_second: measured.served_per_second,
            failed: measured.failures.total(),
            p50_nanos: measured.latency.at(50.0),
            p99_nanos: measured.latency.at(99.0),
            conditions: measured.requirements,
        });
    }

    /// Describes the result in a sentence.
    fn result(&self) -> String {
        let conditions = self.conditions.join(", ");
        match (self.capacity_per_second, self.high_per_second) {
            (None, _) => format!("no rate holds {conditions}"),
            (Some(best), Some(high)) => format!(
                "{}/s hold {conditions}; the capacity is between {} and {}/s",
                format_count(best),
                format_count(self.low_per_second),
                format_count(high)
            ),
            (Some(best), None) => {
                format!("{}/s hold {conditions}; the capacity may be greater", format_count(best))
            }
        }
    }

    /// Tries in the order of their rates.
    fn by_rate(&self) -> Vec<&FindTry> {
        let mut tries: Vec<_> = self.tries.iter().collect();
        tries.sort_by_key(|tried| tried.rate_per_second);
        tries
    }

    /// Formats the report as text. The bars show where the latency turns up.
    fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "{}", self.result())?;
        writeln!(out, "closed loop: {}/s, {}\n", format_rate(self.closed_loop_per_second), self.address)?;
        writeln!(out, "  {:>10} {:>12} {:>8} {:>10} {:>10}", "due/s", "served/s", "failed", "p50", "p99")?;
        let longest = self.tries.iter().filter_map(|tried| tried.p99_nanos).max().unwrap_or(0);
        for tried in self.by_rate() {
            let bar = tried.p99_nanos.map_or(String::new(), |nanos| bar(nanos, longest));
            writeln!(out, "  {} {bar}", tried.line())?;
        }
        for limit in &self.limits {
            writeln!(out, "  {}", limit.sentence())?;
        }
        if self.interrupted {
            writeln!(out, "  INTERRUPTED: these are the tries so far")?;
        }
        Ok(())
    }

    /// Formats the report as an HTML page with plots of latency and served requests by rate.
    fn to_html(&self) -> String {
        let tries = self.by_rate();
        let points = |value: fn(&FindTry) -> Option<f64>| {
            let point = |tried: &&FindTry| Some((tried.rate_per_second as f64, value(tried)?));
            tries.iter().filter_map(point).collect()
        };
        let latency = Plot {
            title: "Latency by rate",
            x_label: "requests due per second",
            series: vec![
                Series { name: "p50", points: points(|tried| tried.p50_nanos.map(|nanos| nanos as f64)) },
                Series { name: "p99", points: points(|tried| tried.p99_nanos.map(|nanos| nanos as f64)) },
            ],
            x_marks: Vec::new(),
            format_y: |value| format_nanos(value as u64),
        };
        let served = Plot {
            title: "Served by rate",
            x_label: "requests due per second",
            series: vec![Series { name: "served per second", points: points(|tried| Some(tried.served_per_second)) }],
            x_marks: Vec::new(),
            format_y: |value| format_count(value as u64),
        };
        // The page is written at the end of the search.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let date = crate::units::format_date(now.as_secs_f64());
        let body = format!(
            "<h1>{}</h1>\n<p class=\"note\">{}, {date}</p>\n{}{}<pre>{}</pre>\n",
            escape(&self.result()),
            escape(&self.address),
            latency.to_html(),
            served.to_html(),
            escape(&self.to_text())
        );
        document(&format!("tailor: capacity of {}, {date}", self.address), &body)
    }
}

impl FindTry {
    /// Row of the table.
    fn line(&self) -> String {
        let time = |nanos| format_latency(nanos, self.failed);
        format!(
            "{:>10} {:>12} {:>8} {:>10} {:>10}  {}",
            format_count(self.rate_per_second),
            format_rate(self.served_per_second),
            format_count(self.failed),
            time(self.p50_nanos),
            time(self.p99_nanos),
            if self.passed { "holds" } else { "fails" }
        )
    }
}

/// Bar whose length is logarithmic, because latencies grow by orders of magnitude.
fn bar(nanos: u64, longest: u64) -> String {
    // Below 10 us there is nothing to see.
    let length = |nanos: u64| (nanos as f64 / 1e4).max(1.0).log10();
    "#".repeat((length(nanos) / length(longest).max(1e-9) * BAR_WIDTH).round() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_orders_of_magnitude() {
        for (nanos, longest, expect) in [
            (0, 0, 0),
            (10_000, 10_000_000, 0),
            (100_000, 10_000_000, 10),
            (1_000_000, 10_000_000, 20),
            (10_000_000, 10_000_000, 30),
        ] {
            assert_eq!(bar(nanos, longest).len(), expect, "{nanos} of {longest}");
        }
    }
}
