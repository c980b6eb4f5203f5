//! The record of a lab's run, as JSON, text and HTML.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::statistics::{Estimate, median, paired_ratio};
use crate::engine::Failures;
use crate::report::html::document;
use crate::report::plot::{Plot, Series, escape};
use crate::report::{BenchReport, IntervalReport};
use crate::units::{format_bytes, format_count, format_nanos};

/// An A/A control must come within this of 1.
const CONTROL_MAX: f64 = 0.03;

/// The record of a lab's run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CompareReport {
    /// The version of this form.
    pub format_version: u32,
    /// The program's version.
    pub tailor_version: String,
    /// The lab's name.
    pub lab: String,
    /// What it is about.
    pub about: String,
    /// The lab itself.
    pub lab_text: String,
    /// When it ended, in seconds since 1970.
    pub start_unix_seconds: f64,
    /// How long each load ran, if not as long as the lab says.
    pub duration_seconds: Option<f64>,
    /// Where it was measured.
    pub environment: Environment,
    /// The servers and their settings.
    pub servers: Vec<ServerDescription>,
    /// What was measured; a step for each value of the sweep.
    pub steps: Vec<Step>,
    /// Whether it was broken off.
    pub interrupted: bool,
    /// The first server against itself: processor time a request, over all steps.
    pub control: Option<Estimate>,
    /// Whether nothing failed, the control holds, and it was not broken off.
    pub passed: bool,
}

/// A server and its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerDescription {
    /// The name.
    pub name: String,
    /// What it says of its version.
    pub version: String,
    /// How it was started.
    pub command: Vec<String>,
    /// Its files: name and text.
    pub files: Vec<(String, String)>,
    /// The program that is missing, if it was left out.
    pub missing: Option<String>,
}

/// What was measured with one value of the sweep.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// The value.
    pub value: Option<String>,
    /// What was measured of each server. The last is the first one again.
    pub servers: Vec<ServerResult>,
}

/// What was measured of a server.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServerResult {
    /// Its name.
    pub name: String,
    /// Round by round.
    pub measurements: Vec<Measurement>,
}

/// What was measured of a server in a round.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// Processor time a served request in user space.
    pub user_micros_per_request: f64,
    /// Processor time a served request in the kernel.
    pub system_micros_per_request: f64,
    /// The server's processor time in user space while the first load counted, in seconds.
    pub user_seconds: f64,
    /// The same in the kernel.
    pub system_seconds: f64,
    /// How long the first load counted, in seconds.
    pub counted_seconds: f64,
    /// Most memory that was seen.
    pub memory_bytes_max: u64,
    /// Most swap that was seen.
    pub swap_bytes_max: u64,
    /// What each load gave.
    pub loads: Vec<LoadResult>,
}

/// What a load gave.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LoadResult {
    /// Its name.
    pub name: String,
    /// Responses that passed all checks.
    pub served: u64,
    /// Responses served a second.
    pub served_per_second: f64,
    /// Failed requests by class.
    pub failures: Failures,
    /// Mean latency.
    pub mean_nanos: f64,
    /// Median latency.
    pub p50_nanos: u64,
    /// 99th percentile of the latency.
    pub p99_nanos: u64,
    /// Greatest latency.
    pub max_nanos: u64,
    /// The share of simulated lines that carried at least 80 % of their rate; with lines.
    pub conforming_lines_share: Option<f64>,
    /// What the client ran short of.
    pub limits: Vec<String>,
    /// The run, piece by piece.
    pub intervals: Vec<IntervalReport>,
}

impl LoadResult {
    pub(super) fn new(name: String, report: BenchReport) -> Self {
        let conforming = report.lines.as_ref().and_then(|lines| {
            let bound = lines.receive_bits_per_second? as f64 * 0.8;
            Some(lines.rates.iter().filter(|rate| **rate >= bound).count() as f64 / lines.rates.len().max(1) as f64)
        });
        Self {
            name,
            served: report.served,
            served_per_second: report.served_per_second,
            mean_nanos: report.latency.mean_nanos,
            p50_nanos: report.latency.at(50.0),
            p99_nanos: report.latency.at(99.0),
            max_nanos: report.latency.max_nanos,
            failures: report.failures,
            conforming_lines_share: conforming,
            limits: report.limits,
            intervals: report.intervals,
        }
    }
}

impl Measurement {
    /// Processor time a served request.
    pub fn processor_micros_per_request(&self) -> f64 {
        self.user_micros_per_request + self.system_micros_per_request
    }

    fn failures(&self) -> u64 {
        self.loads.iter().map(|load| load.failures.total()).sum()
    }
}

impl ServerResult {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), measurements: Vec::new() }
    }

    pub(super) fn values(&self, value: impl Fn(&Measurement) -> f64) -> Vec<f64> {
        self.measurements.iter().map(value).collect()
    }

    /// The median over the rounds.
    fn median(&self, value: impl Fn(&Measurement) -> f64) -> f64 {
        median(&self.values(value))
    }

    /// The median over the rounds of something of one load.
    fn load_median(&self, load: usize, value: impl Fn(&LoadResult) -> f64) -> f64 {
        median(&self.measurements.iter().filter_map(|it| it.loads.get(load)).map(value).collect::<Vec<_>>())
    }

    fn processor(&self) -> Vec<f64> {
        self.values(Measurement::processor_micros_per_request)
    }
}

impl CompareReport {
    /// With the control and the verdict filled in.
    pub(super) fn judged(mut self) -> Self {
        let pairs = self.steps.iter().filter_map(|step| Some((step.servers.first()?, step.servers.last()?)));
        let (first, again): (Vec<_>, Vec<_>) = pairs.map(|(a, b)| (a.processor(), b.processor())).unzip();
        let control = paired_ratio(&again.concat(), &first.concat());
        let measurements = || self.steps.iter().flat_map(|step| &step.servers).flat_map(|server| &server.measurements);
        let failures: u64 = measurements().map(Measurement::failures).sum();
        self.passed = !self.interrupted
            && measurements().count() > 0
            && failures == 0
            && (control.median - 1.0).abs() <= CONTROL_MAX;
        self.control = Some(control);
        self
    }

    /// The report as text.
    pub fn to_text(&self) -> String {
        let mut out = format!("{}: {}\n\n", self.lab, self.about);
        for step in &self.steps {
            if let Some(value) = &step.value {
                let _ = writeln!(out, "{value}:");
            }
            for row in self.rows(step) {
                let _ = writeln!(
                    out,
                    "  {:<18} {:>10} {:>22} {:>12} {:>9} {:>9} {:>10} {:>9}  {}",
                    row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8]
                );
            }
        }
        for note in self.notes() {
            let _ = writeln!(out, "{note}");
        }
        out
    }

    /// The report as an HTML page.
    pub fn to_html(&self) -> String {
        let mut out = format!("<h1>{}</h1>\n<p>{}</p>\n", escape(&self.lab), escape(&self.about));
        for note in self.notes() {
            let _ = writeln!(out, "<p class=\"warn\">{}</p>", escape(&note));
        }
        for step in &self.steps {
            if let Some(value) = &step.value {
                let _ = writeln!(out, "<h2>{}</h2>", escape(value));
            }
            out.push_str("<table>");
            for (index, row) in self.rows(step).iter().enumerate() {
                let cell = if index == 0 { "th" } else { "td" };
                let cells: String = row.iter().map(|text| format!("<{cell}>{}</{cell}>", escape(text))).collect();
                let _ = writeln!(out, "<tr>{cells}</tr>");
            }
            out.push_str("</table>\n");
        }
        out.push_str(&self.plots());
        let settings = serde_json::to_string_pretty(&self.environment).unwrap_or_default();
        let _ = writeln!(out, "<h2>Where it was measured</h2><pre>{}</pre>", escape(&settings));
        for server in self.servers.iter().filter(|server| server.missing.is_none()) {
            let _ = writeln!(out, "<h2>{}</h2><p>{}</p>", escape(&server.name), escape(&server.version));
            let _ = writeln!(out, "<pre>{}</pre>", escape(&server.command.join(" ")));
            for (name, text) in &server.files {
                let _ = writeln!(out, "<p>{}</p><pre>{}</pre>", escape(name), escape(text));
            }
        }
        let _ = writeln!(out, "<h2>The lab</h2><pre>{}</pre>", escape(&self.lab_text));
        document(&format!("tailor compare {}", self.lab), &out)
    }

    /// A table's rows: the head, then a row for each server and load.
    fn rows(&self, step: &Step) -> Vec<[String; 9]> {
        let heads = [
            "server",
            "us/request",
            "x the first [95 %]",
            "served/s",
            "p50",
            "p99",
            "memory",
            "failed",
            "user + system us",
        ];
        let mut rows = vec![heads.map(str::to_owned)];
        let Some(base) = step.servers.first().map(ServerResult::processor) else { return rows };
        for server in &step.servers {
            let loads = server.measurements.first().map_or(&[][..], |it| &it.loads);
            for (index, load) in loads.iter().enumerate() {
                let rate = server.load_median(index, |load| load.served_per_second);
                let nanos = |value: fn(&LoadResult) -> f64| format_nanos(server.load_median(index, value) as u64);
                let failed: u64 = server
                    .measurements
                    .iter()
                    .filter_map(|it| it.loads.get(index))
                    .map(|load| load.failures.total())
                    .sum();
                let latencies = [nanos(|load| load.p50_nanos as f64), nanos(|load| load.p99_nanos as f64)];
                if index > 0 {
                    // Processor time and memory are the server's, under all loads together.
                    let [p50, p99] = latencies;
                    let name = format!("  {}", load.name);
                    rows.push([
                        name,
                        String::new(),
                        String::new(),
                        format_count(rate as u64),
                        p50,
                        p99,
                        String::new(),
                        format_count(failed),
                        String::new(),
                    ]);
                    continue;
                }
                let ratio = paired_ratio(&server.processor(), &base);
                let [p50, p99] = latencies;
                rows.push([
                    if loads.len() > 1 { format!("{} {}", server.name, load.name) } else { server.name.clone() },
                    format!("{:.2}", median(&server.processor())),
                    format!("{:.3} [{:.3} - {:.3}]", ratio.median, ratio.low, ratio.high),
                    format_count(rate as u64),
                    p50,
                    p99,
                    format_bytes(server.median(|it| it.memory_bytes_max as f64)),
                    format_count(failed),
                    format!(
                        "{:.2} + {:.2}",
                        server.median(|it| it.user_micros_per_request),
                        server.median(|it| it.system_micros_per_request)
                    ),
                ]);
            }
        }
        rows
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.interrupted {
            notes.push("Broken off: this is what was measured so far; nothing passed.".to_owned());
        }
        if let Some(control) = &self.control {
            let holds = (control.median - 1.0).abs() <= CONTROL_MAX;
            notes.push(format!(
                "A/A control: the first server against itself {:.3} [{:.3} - {:.3}]{}",
                control.median,
                control.low,
                control.high,
                if holds { "" } else { ": more than 3 % off, so DIFFERENCES OF THIS RUN PROVE NOTHING" }
            ));
        }
        for server in &self.servers {
            if let Some(program) = &server.missing {
                notes.push(format!("{}: left out, {program} is not installed", server.name));
            }
        }
        let measurements = self.steps.iter().flat_map(|step| &step.servers).flat_map(|server| {
            server.measurements.iter().flat_map(|it| &it.loads).flat_map(|load| {
                load.limits.iter().map(|limit| format!("{}: the client was the limit: {limit}", server.name))
            })
        });
        let mut limits: Vec<String> = measurements.collect();
        limits.sort();
        limits.dedup_by(|a, b| a.split(' ').take(8).eq(b.split(' ').take(8)));
        notes.extend(limits);
        notes
    }

    fn plots(&self) -> String {
        let mut out = String::new();
        let numbers: Vec<Option<f64>> =
            self.steps.iter().map(|step| step.value.as_ref().and_then(|value| value.parse().ok())).collect();
        if self.steps.len() > 1 && numbers.iter().all(Option::is_some) {
            let series = |value: fn(&ServerResult) -> f64| self.sweep_series(&numbers, value);
            let x_marks: Vec<(f64, String)> =
                numbers.iter().flatten().map(|number| (number.max(1.0).log10(), format!("{number}"))).collect();
            let rate = |server: &ServerResult| server.load_median(0, |load| load.served_per_second);
            let format_y = |value: f64| format_count(value as u64);
            out += &Plot {
                title: "Served a second",
                x_label: "value",
                series: series(rate),
                x_marks: x_marks.clone(),
                format_y,
            }
            .to_html();
            let processor = |server: &ServerResult| median(&server.processor());
            let format_y = |value: f64| format!("{value:.0} us");
            out += &Plot {
                title: "Processor time a request",
                x_label: "value",
                series: series(processor),
                x_marks,
                format_y,
            }
            .to_html();
        }
        out + &self.time_plot()
    }

    /// A line for each server over the values of the sweep, which are drawn on a logarithmic axis.
    fn sweep_series(&self, numbers: &[Option<f64>], value: fn(&ServerResult) -> f64) -> Vec<Series<'_>> {
        let names = self.steps[0].servers.iter().map(|server| server.name.as_str());
        names
            .enumerate()
            .map(|(index, name)| {
                let points = self.steps.iter().zip(numbers).filter_map(|(step, number)| {
                    Some((number.unwrap_or(1.0).max(1.0).log10(), value(step.servers.get(index)?)))
                });
                Series { name, points: points.collect() }
            })
            .collect()
    }

    /// Pages served against time, in the last round of the last step.
    fn time_plot(&self) -> String {
        let Some(step) = self.steps.last() else { return String::new() };
        let series: Vec<Series<'_>> = step
            .servers
            .iter()
            .filter_map(|server| {
                let intervals = &server.measurements.last()?.loads.first()?.intervals;
                let points = intervals.iter().map(|it| (it.end_seconds, it.served_per_second)).collect();
                Some(Series { name: &server.name, points })
            })
            .collect();
        let format_y = |value: f64| format_count(value as u64);
        Plot {
            title: "Pages served a second over time, last round",
            x_label: "seconds",
            series,
            x_marks: Vec::new(),
            format_y,
        }
        .to_html()
    }
}
