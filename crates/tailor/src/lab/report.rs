//! The record of a lab's run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::statistics::{Estimate, median, paired_ratio};
use crate::engine::Failures;
use crate::report::{BenchReport, IntervalReport};
use crate::web99::Web99Summary;

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
    pub steps: Vec<SweepStep>,
    /// Or, in a lab that searches, the highest values at which the loads passed.
    #[serde(default)]
    pub searches: Vec<SearchResult>,
    /// How far those may be off, as a share.
    #[serde(default)]
    pub search_precision: Option<f64>,
    /// Whether the table and plots of an endurance test belong to it.
    #[serde(default)]
    pub is_endurance: bool,
    /// Whether it was broken off.
    pub interrupted: bool,
    /// The first server against itself: processor time a request over all steps, or the highest values.
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
    /// What is started before it and counted with it.
    #[serde(default)]
    pub helpers: Vec<Vec<String>>,
    /// What is behind it and not counted.
    #[serde(default)]
    pub backends: Vec<Vec<String>>,
    /// Its files: name and text.
    pub files: Vec<(String, String)>,
    /// The program that is missing, if it was left out.
    pub missing: Option<String>,
}

/// What was measured with one value of the sweep.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Step")]
pub struct SweepStep {
    /// The value.
    pub value: Option<String>,
    /// What was measured of each server. The last is the first one again.
    pub servers: Vec<ServerResult>,
    /// The first server against itself: processor time a request.
    #[serde(default)]
    pub control: Option<Estimate>,
}

/// The highest values at which the loads passed with a server. The last server is the first one again.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SearchResult {
    /// Its name.
    pub name: String,
    /// Round by round; 0 if none passed.
    pub best: Vec<u64>,
    /// All that was tried, in order.
    pub tries: Vec<Try>,
}

/// A value that was tried.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Try {
    /// The value.
    pub value: u64,
    /// Whether all loads passed.
    pub has_passed: bool,
    /// What was measured.
    pub measurement: Measurement,
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
    pub loads: Vec<LabLoadResult>,
}

/// What a load gave.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "LoadResult")]
pub struct LabLoadResult {
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
    /// Whether the load's own requirements hold.
    #[serde(default)]
    pub passed: bool,
    /// What a load of the web99 workload showed.
    #[serde(default)]
    pub web99: Option<Web99Summary>,
    /// What the client ran short of.
    pub limits: Vec<String>,
    /// The run, piece by piece.
    pub intervals: Vec<IntervalReport>,
}

/// What a load's program reports.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LoadReport {
    #[serde(flatten)]
    bench: BenchReport,
    web99: Option<Web99Summary>,
}

impl LabLoadResult {
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
    /// Processor time a served request.
    pub fn processor_micros_per_request(&self) -> f64 {
        self.user_micros_per_request + self.system_micros_per_request
    }

    /// Adds what a load gave. Each load watched the whole server while it counted; the first is as good as any.
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

    /// Whether no request came to an end, well or not: the server or its load did not get a processor.
    pub(super) fn is_empty(&self) -> bool {
        self.loads.iter().all(|load| load.served + load.failures.total() == 0)
    }

    /// Whether nothing failed. Under more lines than a server sustains some operations may; what it does must be right.
    fn is_clean(&self) -> bool {
        self.loads.iter().all(|load| match &load.web99 {
            Some(web99) => web99.is_right(),
            None => load.failures.total() == 0,
        })
    }

    /// The share of a processor that the server used.
    pub(super) fn processor_share(&self) -> f64 {
        (self.user_seconds + self.system_seconds) / self.counted_seconds.max(1e-9)
    }
}

impl SweepStep {
    /// Whether the first server came out as itself. An endurance test, where it would be another day, has no control.
    pub(super) fn is_controlled(&self) -> bool {
        self.control.is_none_or(|control| (control.median - 1.0).abs() <= CONTROL_MAX)
    }
}

impl SearchResult {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), best: Vec::new(), tries: Vec::new() }
    }

    /// The highest values, round by round.
    pub(super) fn values(&self) -> Vec<f64> {
        self.best.iter().map(|best| *best as f64).collect()
    }

    /// What was measured at the highest value that passed.
    pub(super) fn at_best(&self) -> Option<&Measurement> {
        let passed = self.tries.iter().filter(|it| it.has_passed);
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

    /// The median over the rounds.
    pub(super) fn median(&self, value: impl Fn(&Measurement) -> f64) -> f64 {
        median(&self.values(value))
    }

    /// The median over the rounds of something of one load.
    pub(super) fn load_median(&self, load: usize, value: impl Fn(&LabLoadResult) -> f64) -> f64 {
        median(&self.measurements.iter().filter_map(|it| it.loads.get(load)).map(value).collect::<Vec<_>>())
    }

    pub(super) fn processor(&self) -> Vec<f64> {
        self.values(Measurement::processor_micros_per_request)
    }
}

impl CompareReport {
    /// With the control and the verdict filled in.
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
        self.passed = !self.interrupted && has_data && is_clean && self.is_controlled();
        self
    }

    /// Whether the first server came out as itself, at each value of a sweep.
    pub(super) fn is_controlled(&self) -> bool {
        match self.searches.is_empty() {
            true => self.steps.iter().all(SweepStep::is_controlled),
            false => self.control.is_some_and(|control| (control.median - 1.0).abs() <= self.control_max()),
        }
    }

    /// How far the control may be off. Two searches may each be off by their precision.
    pub(super) fn control_max(&self) -> f64 {
        self.search_precision.map_or(CONTROL_MAX, |precision| CONTROL_MAX.max(2.0 * precision))
    }
}
