//! Record of a lab's run, and its verdict.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use crate::end::ProgramEnd;
use crate::engine::Failures;
use crate::report::{BenchReport, IntervalReport, Limit};
use crate::statistics::{Estimate, median, paired_ratio};
use crate::units::format_count;
use crate::web99::Web99Summary;

/// Default of the maximum distance of an A/A control's interval from 1.
pub(super) const CONTROL_MARGIN: f64 = 0.03;

/// Record of a lab's run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct CompareReport {
    /// Version of this format.
    pub format_version: u32,
    /// Version of tailor.
    pub tailor_version: String,
    /// Name of the lab.
    pub lab: String,
    /// Purpose of the lab.
    pub about: String,
    /// Text of the lab file.
    pub lab_text: String,
    /// Time at the end of the run, in seconds since 1970.
    pub start_unix_seconds: f64,
    /// Duration of each load in seconds, if it replaces the lab's.
    pub duration_seconds: Option<f64>,
    /// Machine and settings of the run.
    pub environment: Environment,
    /// The servers and their settings.
    pub servers: Vec<ServerDescription>,
    /// Measurements, with a step for each value of the sweep.
    pub steps: Vec<SweepStep>,
    /// Results of a search: the highest values at which all loads passed. A lab has either these or steps.
    #[serde(default)]
    pub searches: Vec<SearchResult>,
    /// Maximum error of the searches, as a share of their results.
    #[serde(default)]
    pub search_precision: Option<f64>,
    /// True if the report has the table and plots of an endurance test.
    #[serde(default)]
    pub is_endurance: bool,
    /// True if the servers ran in an emulator, whose time says nothing.
    #[serde(default)]
    pub is_emulated: bool,
    /// True if the run was interrupted.
    pub interrupted: bool,
    /// A/A control, the first server compared with itself: CPU time per request over all steps, or the highest values.
    pub control: Option<Estimate>,
    /// Maximum distance of the control's interval from 1, as a share.
    #[serde(default = "control_margin")]
    pub control_margin: f64,
    /// True if no request failed, the whole interval of the control is within the margin, and the run was not interrupted.
    /// Below six pairs, the whole range of the control must be within the margin.
    pub passed: bool,
}

/// Margin of older records, which do not have one.
fn control_margin() -> f64 {
    CONTROL_MARGIN
}

/// Server and its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ServerDescription {
    /// Name of the server.
    pub name: String,
    /// First line of its version command's output.
    pub version: String,
    /// Command that started it.
    pub command: Vec<String>,
    /// Commands that are part of the server and start before it; their CPU time is counted.
    #[serde(default)]
    pub helpers: Vec<Vec<String>>,
    /// Upstreams of the server; their CPU time is not counted.
    #[serde(default)]
    pub backends: Vec<Vec<String>>,
    /// Files of the server: name and text.
    pub files: Vec<(String, String)>,
    /// Missing program, if the run left the server out.
    pub missing: Option<String>,
}

/// Measurements at one value of the sweep.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Step")]
pub(crate) struct SweepStep {
    /// Value of the sweep.
    pub value: Option<String>,
    /// Results of each server. The last is the first server again, as control.
    pub servers: Vec<ServerResult>,
    /// A/A control, the first server compared with itself: CPU time per request.
    #[serde(default)]
    pub control: Option<Estimate>,
}

/// Highest values at which a server passed all loads. The last server is the first one again, as control.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct SearchResult {
    /// Name of the server.
    pub name: String,
    /// Highest value of each round, which passed twice; 0 if none passed.
    pub best: Vec<u64>,
    /// Lower bound of each round: the greatest value up to which every try passed.
    #[serde(default)]
    pub low: Vec<u64>,
    /// Upper bound of each round: the smallest value from which on every try failed; null if the greatest value passed.
    #[serde(default)]
    pub high: Vec<Option<u64>>,
    /// All values tried, in order.
    pub tries: Vec<Try>,
}

/// Value that a search tried.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Try {
    /// Value in place of `@VALUE@`.
    pub value: u64,
    /// True if all loads passed.
    pub has_passed: bool,
    /// Measurement at this value.
    pub measurement: Measurement,
}

/// Measurements of a server.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ServerResult {
    /// Name of the server.
    pub name: String,
    /// Measurements by round.
    pub measurements: Vec<Measurement>,
}

/// Measurement of a server in one round.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Measurement {
    /// CPU time in user space per served request, in microseconds.
    pub user_micros_per_request: f64,
    /// CPU time in the kernel per served request, in microseconds.
    pub system_micros_per_request: f64,
    /// CPU time of the server in user space while the first load counted, in seconds.
    pub user_seconds: f64,
    /// CPU time of the server in the kernel while the first load counted, in seconds.
    pub system_seconds: f64,
    /// Time during which the first load counted, in seconds.
    pub counted_seconds: f64,
    /// Peak of the sampled memory in use.
    pub memory_bytes_max: u64,
    /// Peak of the sampled swap in use.
    pub swap_bytes_max: u64,
    /// Results of each load.
    pub loads: Vec<LabLoadResult>,
}

/// Results of a load.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "LoadResult")]
pub(crate) struct LabLoadResult {
    /// Name of the load.
    pub name: String,
    /// Responses that passed all checks.
    pub served: u64,
    /// Responses served per second.
    pub served_per_second: f64,
    /// Failed requests by class.
    pub failures: Failures,
    /// Mean latency.
    pub mean_nanos: f64,
    /// Median latency. Null if it falls on a failed request, or if there are too few values.
    pub p50_nanos: Option<u64>,
    /// 99th percentile of the latency. Null if it falls on a failed request, or if there are too few values.
    pub p99_nanos: Option<u64>,
    /// Maximum latency.
    pub max_nanos: u64,
    /// Share of simulated lines that carried at least 80 % of their rate, if the load had lines.
    pub conforming_lines_share: Option<f64>,
    /// True if the load's own requirements hold.
    #[serde(default)]
    pub passed: bool,
    /// Results of the web99 workload, if the load was one.
    #[serde(default)]
    pub web99: Option<Web99Summary>,
    /// Limits that the load reached.
    pub limits: Vec<Limit>,
    /// Intervals of the run.
    pub intervals: Vec<IntervalReport>,
}

/// Report that a load's program writes.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LoadReport {
    #[serde(flatten)]
    bench: BenchReport,
    web99: Option<Web99Summary>,
}

impl LabLoadResult {
    /// Median latency; infinite if it falls on a failed request.
    pub(super) fn p50(&self) -> f64 {
        self.p50_nanos.map_or(f64::INFINITY, |nanos| nanos as f64)
    }

    /// 99th percentile of the latency; infinite if it falls on a failed request.
    pub(super) fn p99(&self) -> f64 {
        self.p99_nanos.map_or(f64::INFINITY, |nanos| nanos as f64)
    }

    fn new(name: &str, LoadReport { bench: report, web99 }: LoadReport) -> Self {
        let of_lines = report.lines.as_ref().and_then(|lines| {
            let bound = lines.receive_bits_per_second? as f64 * 0.8;
            Some(lines.rates.iter().filter(|rate| **rate >= bound).count() as f64 / lines.rates.len().max(1) as f64)
        });
        Self {
            name: name.to_owned(),
            passed: report.passed,
            conforming_lines_share: web99.as_ref().map(Web99Summary::conforming_share).or(of_lines),
            web99,
            served: report.served,
            served_per_second: report.served_per_second,
            mean_nanos: report.latency.mean_nanos,
            p50_nanos: report.latency.at(50.0),
            p99_nanos: report.latency.at(99.0),
            max_nanos: report.latency.max_nanos,
            failures: report.failures,
            limits: report.limits,
            intervals: report.intervals,
        }
    }
}

impl Measurement {
    /// CPU time per served request, in microseconds.
    pub(crate) fn processor_micros_per_request(&self) -> f64 {
        self.user_micros_per_request + self.system_micros_per_request
    }

    /// Adds the results of a load. Each load watches the whole server while it counts, so the first one's figures are
    /// used.
    pub(super) fn add(&mut self, name: &str, report: LoadReport) {
        if self.loads.is_empty() {
            let server = report.bench.server.clone().unwrap_or_default();
            (self.user_seconds, self.system_seconds) = (server.user_seconds, server.system_seconds);
            self.counted_seconds = report.bench.duration_seconds;
        }
        self.loads.push(LabLoadResult::new(name, report));
        let served = self.loads.iter().map(|load| load.served).sum::<u64>().max(1) as f64;
        self.user_micros_per_request = self.user_seconds * 1e6 / served;
        self.system_micros_per_request = self.system_seconds * 1e6 / served;
    }

    /// True if no request ended, served or failed: the server or its load got no CPU time.
    pub(super) fn is_empty(&self) -> bool {
        self.loads.iter().all(|load| load.served + load.failures.total() == 0)
    }

    /// True if no request failed. In the web99 workload an overloaded server may fail some, but its responses must be
    /// right.
    fn is_clean(&self) -> bool {
        self.loads.iter().all(|load| match &load.web99 {
            Some(web99) => web99.is_right(),
            None => load.failures.total() == 0,
        })
    }

    /// CPU time of the server as a share of one CPU.
    pub(super) fn processor_share(&self) -> f64 {
        (self.user_seconds + self.system_seconds) / self.counted_seconds.max(1e-9)
    }
}

impl SweepStep {
    /// True if the control is within a margin of 1. An endurance test has none, because it would double its time.
    pub(super) fn is_controlled(&self, margin: f64) -> bool {
        self.control.is_none_or(|control| control.is_within(margin))
    }
}

impl SearchResult {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), best: Vec::new(), low: Vec::new(), high: Vec::new(), tries: Vec::new() }
    }

    /// Bounds of the highest value over all rounds, as text; empty for older records.
    pub(super) fn bounds(&self) -> String {
        match (self.low.iter().min(), self.high.iter().copied().collect::<Option<Vec<u64>>>()) {
            (None, _) => String::new(),
            (Some(low), Some(high)) => {
                format!("{} - {}", format_count(*low), format_count(high.into_iter().max().unwrap_or(0)))
            }
            (Some(low), None) => format!("{} or more", format_count(*low)),
        }
    }

    /// Highest values by round.
    pub(super) fn values(&self) -> Vec<f64> {
        self.best.iter().map(|best| *best as f64).collect()
    }

    /// Measurement at the highest value that passed.
    pub(super) fn at_best(&self) -> Option<&Measurement> {
        // A value above the highest may have passed once, by chance.
        let best = self.best.iter().max().copied().unwrap_or(u64::MAX);
        let passed = self.tries.iter().filter(|it| it.has_passed && it.value <= best);
        passed.max_by_key(|it| it.value).map(|it| &it.measurement)
    }
}

impl ServerResult {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), measurements: Vec::new() }
    }

    pub(super) fn values(&self, value: impl Fn(&Measurement) -> f64) -> Vec<f64> {
        self.measurements.iter().map(value).collect()
    }

    /// Median of a quantity over the rounds.
    pub(super) fn median(&self, value: impl Fn(&Measurement) -> f64) -> f64 {
        median(&self.values(value))
    }

    /// Median over the rounds of a quantity of one load.
    pub(super) fn load_median(&self, load: usize, value: impl Fn(&LabLoadResult) -> f64) -> f64 {
        median(&self.measurements.iter().filter_map(|it| it.loads.get(load)).map(value).collect::<Vec<_>>())
    }

    pub(super) fn processor(&self) -> Vec<f64> {
        self.values(Measurement::processor_micros_per_request)
    }
}

impl CompareReport {
    /// Fills in the controls and the verdict.
    pub(super) fn judged(mut self) -> Self {
        for step in &mut self.steps {
            step.control = match step.servers.as_slice() {
                [first, .., again] => Some(paired_ratio(&again.processor(), &first.processor())),
                _ => None,
            };
        }
        let control = match (self.searches.first(), self.searches.last()) {
            (Some(first), Some(again)) => paired_ratio(&again.values(), &first.values()),
            _ => {
                let pairs = self.steps.iter().filter_map(|step| Some((step.servers.first()?, step.servers.last()?)));
                let (first, again): (Vec<_>, Vec<_>) = pairs.map(|(a, b)| (a.processor(), b.processor())).unzip();
                paired_ratio(&again.concat(), &first.concat())
            }
        };
        let measured = || self.steps.iter().flat_map(|step| &step.servers).flat_map(|server| &server.measurements);
        let tried = || self.searches.iter().flat_map(|search| &search.tries);
        let has_data = measured().next().is_some() || tried().any(|it| it.has_passed);
        let is_clean = measured().all(Measurement::is_clean)
            && tried().filter(|it| it.has_passed).all(|it| it.measurement.is_clean());
        self.control = Some(control);
        self.passed = !self.interrupted && !self.is_emulated && has_data && is_clean && self.is_controlled();
        self
    }

    /// Prints the report, and writes it as JSON and as a page.
    pub(super) fn write(&self, json: Option<&Path>, html: Option<&Path>) -> Result<(), String> {
        if let Some(path) = json {
            let json = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
            crate::report::write_to(path, &json)?;
        }
        if let Some(path) = html {
            crate::report::write_to(path, &self.to_html())?;
        }
        crate::output::print(&self.to_text())
    }

    /// End of the program with this report.
    pub(super) fn end(&self) -> ProgramEnd {
        match (self.interrupted, self.passed) {
            (true, _) => ProgramEnd::Interrupted,
            (false, true) => ProgramEnd::Passed,
            (false, false) => ProgramEnd::Failed,
        }
    }

    /// True if the control holds; in a sweep, at each value.
    pub(super) fn is_controlled(&self) -> bool {
        match self.searches.is_empty() {
            true => self.steps.iter().all(|step| step.is_controlled(self.control_margin)),
            false => self.control.is_some_and(|control| control.is_within(self.control_max())),
        }
    }

    /// Maximum distance of the control's interval from 1. In a search, both results may be off by the precision.
    pub(super) fn control_max(&self) -> f64 {
        self.search_precision.map_or(self.control_margin, |precision| self.control_margin.max(2.0 * precision))
    }

    /// Number of pairs of each ratio; the smallest if steps differ.
    pub(super) fn pairs(&self) -> u64 {
        let steps = self.steps.iter().filter_map(|step| step.control.map(|control| control.pairs));
        steps.min().or_else(|| self.control.map(|control| control.pairs)).unwrap_or(0)
    }
}
