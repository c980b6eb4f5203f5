//! Report of a replay.

use std::collections::BTreeMap;
use std::fmt::Write;

use schemars::JsonSchema;
use serde::Serialize;

use super::difference::ResponseDifference;
use crate::units::{format_count, format_number_of};

/// Result of `tailor replay`.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct ReplayReport {
    /// Requests that both servers were sent.
    pub requests: u64,
    /// Requests whose responses are the same.
    pub same: u64,
    /// Requests whose responses differ.
    pub different: u64,
    /// Requests to which the old server gave two different responses. What differed between them was not compared.
    pub unstable: u64,
    /// Lines of the log that were left out: other methods, or no requests.
    pub left_out: usize,
    /// Differences by kind.
    pub differences: BTreeMap<String, DifferenceKind>,
}

/// Differences of one kind.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct DifferenceKind {
    /// Number of requests with it.
    pub requests: u64,
    /// Some of these requests.
    pub examples: Vec<DifferenceExample>,
}

/// Request with a difference.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct DifferenceExample {
    /// Method and target.
    pub request: String,
    /// Values of the old and the new server, if the kind does not say them.
    pub detail: String,
}

/// JSON schema of a report.
pub(crate) fn schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(ReplayReport)).expect("a schema can be written as JSON")
}

impl ReplayReport {
    /// True if no responses differ.
    pub(super) fn is_same(&self) -> bool {
        self.different == 0
    }

    /// Counts a request with its differences.
    pub(super) fn count(
        &mut self,
        request: &str,
        found: Vec<ResponseDifference>,
        is_unstable: bool,
        examples_max: usize,
    ) {
        self.requests += 1;
        self.unstable += u64::from(is_unstable);
        *(if found.is_empty() { &mut self.same } else { &mut self.different }) += 1;
        for ResponseDifference { kind, detail, .. } in found {
            let kind = self.differences.entry(kind).or_default();
            kind.requests += 1;
            if kind.examples.len() < examples_max {
                kind.examples.push(DifferenceExample { request: request.to_owned(), detail });
            }
        }
    }

    /// Adds the counts of another report.
    pub(super) fn add(&mut self, other: Self, examples_max: usize) {
        self.requests += other.requests;
        self.same += other.same;
        self.different += other.different;
        self.unstable += other.unstable;
        for (name, kind) in other.differences {
            let known = self.differences.entry(name).or_default();
            known.requests += kind.requests;
            known.examples.extend(kind.examples);
            known.examples.truncate(examples_max);
        }
    }

    /// Text for a terminal, with the most frequent differences first.
    pub(super) fn text(&self, examples_max: usize) -> String {
        let mut out = String::new();
        let requests = format_number_of(self.requests, "request");
        let [same, different] = [self.same, self.different].map(format_count);
        // Writing to a string does not fail.
        let _ = writeln!(out, "{requests}: {same} same, {different} different");
        if self.unstable > 0 {
            let unstable = format_count(self.unstable);
            let _ =
                writeln!(out, "{unstable} of them differ each time on the old server; those parts were not compared");
        }
        if self.left_out > 0 {
            let left_out = format_count(self.left_out as u64);
            let _ =
                writeln!(out, "{left_out} lines of the log left out: other methods (see --methods), or no requests");
        }
        let mut kinds: Vec<_> = self.differences.iter().collect();
        kinds.sort_by_key(|(_, kind)| std::cmp::Reverse(kind.requests));
        for (name, kind) in kinds {
            let _ = writeln!(out, "\n{:>9}  {name}", format_count(kind.requests));
            for DifferenceExample { request, detail } in kind.examples.iter().take(examples_max) {
                let detail = if detail.is_empty() { String::new() } else { format!("  {detail}") };
                let _ = writeln!(out, "           {request}{detail}");
            }
        }
        out
    }
}
