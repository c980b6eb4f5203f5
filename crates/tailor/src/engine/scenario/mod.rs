//! Scenarios: sequences of requests that a simulated user sends, with values from data and from earlier responses.

mod capture;
mod cookies;
mod session;
mod template;

use std::sync::Arc;

use fastrand::Rng;

pub(crate) use capture::{CaptureSource, ResponseCapture};
pub(crate) use session::Session;
pub(crate) use template::{RequestTemplate, TemplatePart};

use super::clock::Nanos;
use super::groups::{GroupRecord, merge_groups};

/// Scenarios of a run. Their steps are the requests of the workload, in order.
#[derive(Debug)]
pub(crate) struct ScenarioSet {
    /// Scenarios.
    pub scenarios: Vec<Scenario>,
    /// Cumulative weights of the scenarios.
    pub weights: Vec<f64>,
    /// Data whose columns are variables.
    pub data: Vec<DataSet>,
    /// Number of variables.
    pub variables: usize,
}

/// Sequence of requests.
#[derive(Debug)]
pub(crate) struct Scenario {
    /// Name.
    pub name: String,
    /// Requests in order; at least one.
    pub steps: Vec<ScenarioStep>,
    /// Pause after the last response, before the user begins the next run.
    pub think_after: ThinkTime,
    /// True if the user sends back the cookies that responses set.
    pub has_cookies: bool,
}

/// Request of a scenario.
#[derive(Debug)]
pub(crate) struct ScenarioStep {
    /// Name in reports.
    pub name: String,
    /// Index of the request in the workload, which has its method and the check of status, length and fields.
    pub request: u32,
    /// Pause before the request.
    pub think: ThinkTime,
    /// Method.
    pub method: String,
    /// Path and query.
    pub target: RequestTemplate,
    /// Header fields, except those that the connection adds.
    pub fields: Vec<(String, RequestTemplate)>,
    /// Content.
    pub body: Option<RequestTemplate>,
    /// Texts that the content of the response must contain.
    pub contains: Vec<String>,
    /// Values to take from the response.
    pub captures: Vec<ResponseCapture>,
}

impl ScenarioStep {
    /// True if the content of the response is needed.
    pub(crate) fn keeps_content(&self) -> bool {
        let is_content = |capture: &ResponseCapture| !matches!(capture.source, CaptureSource::Field(_));
        !self.contains.is_empty() || self.captures.iter().any(is_content)
    }
}

/// Pause of a user, uniform between two bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThinkTime {
    /// Minimum.
    pub min: Nanos,
    /// Maximum.
    pub max: Nanos,
}

impl ThinkTime {
    fn draw(self, rng: &mut Rng) -> Nanos {
        if self.min < self.max { rng.u64(self.min..=self.max) } else { self.min }
    }
}

/// Rows of data. Each run of a scenario takes one.
#[derive(Debug)]
pub(crate) struct DataSet {
    /// Variable of each column.
    pub columns: Vec<usize>,
    /// Rows; at least one.
    pub rows: Vec<Vec<Vec<u8>>>,
    /// True to draw rows at random. Otherwise runs take them in turn.
    pub is_random: bool,
}

/// Scenarios of a thread: the shared set, and the places of the thread in it.
#[derive(Debug)]
pub(crate) struct ThreadScenarios {
    pub(crate) set: Arc<ScenarioSet>,
    /// Number of the next run. Those of several threads differ.
    next_run: u64,
    threads: u64,
    /// Runs in progress.
    pub(crate) open_runs: u64,
    pub(crate) record: ScenarioRecord,
}

/// Counts of scenarios.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScenarioRecord {
    /// Runs of each scenario; their latency is the time from start to end.
    pub runs: Vec<GroupRecord>,
    /// Requests of each step, in the order of the workload.
    pub steps: Vec<GroupRecord>,
}

impl ScenarioRecord {
    fn new(set: &ScenarioSet) -> Self {
        let steps = set.scenarios.iter().map(|scenario| scenario.steps.len()).sum();
        Self { runs: vec![GroupRecord::default(); set.scenarios.len()], steps: vec![GroupRecord::default(); steps] }
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: &Self) {
        merge_groups(&mut self.runs, &other.runs);
        merge_groups(&mut self.steps, &other.steps);
    }
}

impl ThreadScenarios {
    pub(crate) fn new(set: &Arc<ScenarioSet>, thread: usize, threads: usize) -> Self {
        Self {
            set: Arc::clone(set),
            next_run: thread as u64,
            threads: threads as u64,
            open_runs: 0,
            record: ScenarioRecord::new(set),
        }
    }

    /// Forgets the counts of the warm-up.
    pub(crate) fn reset(&mut self) {
        self.record = ScenarioRecord::new(&self.set);
    }

    /// Number of the next run.
    fn take_number(&mut self) -> u64 {
        let number = self.next_run;
        self.next_run += self.threads;
        number
    }
}
