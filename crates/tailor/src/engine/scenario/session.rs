//! State of one simulated user in a scenario.

use std::sync::Arc;

use fastrand::Rng;

use super::cookies::CookieJar;
use super::template::TemplatePlace;
use super::{Scenario, ScenarioSet, ScenarioStep, ThreadScenarios};
use crate::engine::clock::Nanos;
use crate::engine::failure::{FailureClass, FailureReason};
use crate::engine::response::KeptResponse;

/// State of a user: its place in a scenario, its values and its cookies.
#[derive(Debug)]
pub(crate) struct Session {
    set: Arc<ScenarioSet>,
    scenario: usize,
    /// Index of the next step; the number of steps after the last one.
    step: usize,
    /// True between the start and the end of a run.
    pub(crate) is_running: bool,
    /// Time when the next step, or the end of the run, is due.
    pub(crate) ready_at: Nanos,
    /// Due time of the run.
    pub(crate) started: Nanos,
    run: u64,
    values: Vec<Vec<u8>>,
    cookies: CookieJar,
    /// Target of the request in flight.
    target: Vec<u8>,
    content: Vec<u8>,
}

/// Values for a template.
pub(super) struct SessionValues<'a> {
    pub(super) values: &'a [Vec<u8>],
    pub(super) run: u64,
    pub(super) rng: &'a mut Rng,
}

impl SessionValues<'_> {
    pub(super) fn of(&self, variable: usize) -> &[u8] {
        &self.values[variable]
    }
}

impl Session {
    pub(crate) fn new(set: &Arc<ScenarioSet>) -> Self {
        Self {
            scenario: 0,
            step: 0,
            is_running: false,
            ready_at: 0,
            started: 0,
            run: 0,
            values: vec![Vec::new(); set.variables],
            cookies: CookieJar::default(),
            target: Vec::new(),
            content: Vec::new(),
            set: Arc::clone(set),
        }
    }

    fn of_set(&self) -> &Scenario {
        &self.set.scenarios[self.scenario]
    }

    fn step(&self) -> &ScenarioStep {
        &self.of_set().steps[self.step]
    }

    /// Index of the scenario.
    pub(crate) fn scenario(&self) -> usize {
        self.scenario
    }

    /// Request of the workload that belongs to the step.
    pub(crate) fn request(&self) -> u32 {
        self.step().request
    }

    /// True after the last step.
    pub(crate) fn is_at_end(&self) -> bool {
        self.step == self.of_set().steps.len()
    }

    /// Begins a run of a scenario, drawn by weight.
    pub(crate) fn begin(&mut self, due: Nanos, thread: &mut ThreadScenarios, rng: &mut Rng) {
        let set = Arc::clone(&self.set);
        let point = rng.f64() * set.weights.last().copied().unwrap_or(0.0);
        self.scenario = set.weights.partition_point(|&sum| sum <= point).min(set.scenarios.len() - 1);
        self.run = thread.take_number();
        self.cookies.clear();
        for data in &set.data {
            let rows = data.rows.len();
            let row = if data.is_random { rng.usize(..rows) } else { (self.run % rows as u64) as usize };
            for (variable, value) in data.columns.iter().zip(&data.rows[row]) {
                self.values[*variable].clone_from(value);
            }
        }
        self.step = 0;
        (self.is_running, self.started) = (true, due);
        self.ready_at = due + self.step().think.draw(rng);
        thread.open_runs += 1;
    }

    /// Appends the request of the step.
    pub(crate) fn write_request(&mut self, connection_field: Option<&str>, rng: &mut Rng, out: &mut Vec<u8>) {
        let set = Arc::clone(&self.set);
        let scenario = &set.scenarios[self.scenario];
        let step = &scenario.steps[self.step];
        let mut values = SessionValues { values: &self.values, run: self.run, rng };
        self.target.clear();
        step.target.write(TemplatePlace::Target, &mut values, &mut self.target);
        out.extend_from_slice(step.method.as_bytes());
        out.push(b' ');
        out.extend_from_slice(&self.target);
        out.extend_from_slice(b" HTTP/1.1\r\n");
        for (name, value) in &step.fields {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            value.write(TemplatePlace::Field, &mut values, out);
            out.extend_from_slice(b"\r\n");
        }
        if scenario.has_cookies && self.cookies.write(&self.target, out) {
            out.extend_from_slice(b"\r\n");
        }
        if let Some(option) = connection_field {
            out.extend_from_slice(format!("Connection: {option}\r\n").as_bytes());
        }
        self.content.clear();
        if let Some(body) = &step.body {
            body.write(TemplatePlace::Content, &mut values, &mut self.content);
        }
        if step.body.is_some() || step.method == "POST" {
            out.extend_from_slice(format!("Content-Length: {}\r\n", self.content.len()).as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.content);
    }

    /// Takes cookies and values from a response that passed the check of its head. Returns the reason if it has not what
    /// the step needs.
    pub(crate) fn take(&mut self, response: &KeptResponse) -> Option<(FailureClass, FailureReason)> {
        let set = Arc::clone(&self.set);
        let scenario = &set.scenarios[self.scenario];
        let step = &scenario.steps[self.step];
        if scenario.has_cookies {
            for field in response.fields("set-cookie") {
                self.cookies.set(field, &self.target);
            }
        }
        let fail = |class, text: String| Some((class, FailureReason::Message(format!("{}: {text}", step.name))));
        for text in &step.contains {
            if !response.content.windows(text.len()).any(|window| window == text.as_bytes()) {
                return fail(FailureClass::Body, format!("does not contain `{text}`"));
            }
        }
        for capture in &step.captures {
            match capture.source.find(response) {
                Some(value) => self.values[capture.variable] = value,
                None => {
                    let class = match capture.source {
                        super::CaptureSource::Field(_) => FailureClass::Field,
                        _ => FailureClass::Body,
                    };
                    return fail(class, format!("nothing to capture for `{}`", capture.name));
                }
            }
        }
        None
    }

    /// Goes on to the next step, or to the end of the run.
    pub(crate) fn advance(&mut self, now: Nanos, rng: &mut Rng) {
        self.step += 1;
        let think = if self.is_at_end() { self.of_set().think_after } else { self.step().think };
        self.ready_at = now + think.draw(rng);
    }
}
