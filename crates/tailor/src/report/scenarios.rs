//! Scenarios in reports: their runs and steps.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::build::value_at;
use super::text::format_latency;
use crate::engine::{GroupRecord, ScenarioRecord, ScenarioSet};
use crate::units::{format_count, format_nanos};

/// Figures of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Scenario")]
pub(crate) struct ScenarioReport {
    /// Name.
    pub name: String,
    /// Whole runs. Served runs are those whose requests all passed; their time goes from start to end, with pauses.
    pub runs: GroupReport,
    /// Requests of the scenario, in order.
    pub steps: Vec<StepReport>,
}

/// Figures of a request of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Step")]
pub(crate) struct StepReport {
    /// Name.
    pub name: String,
    /// Requests.
    pub requests: GroupReport,
}

/// Counts and times of a group of requests, or of runs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Group")]
pub(crate) struct GroupReport {
    /// Members that passed every check.
    pub served: u64,
    /// Members that failed.
    pub failed: u64,
    /// Median time. Null if failed members make it unknown.
    pub p50_nanos: Option<u64>,
    /// 99th percentile of the time. Null if failed members make it unknown.
    pub p99_nanos: Option<u64>,
    /// Maximum time of members that passed.
    pub max_nanos: u64,
}

/// Creates the reports of all scenarios.
pub(super) fn build(set: &ScenarioSet, record: &ScenarioRecord) -> Vec<ScenarioReport> {
    let of = |groups: &[GroupRecord], index: usize| {
        groups.get(index).map(group).unwrap_or_else(|| group(&GroupRecord::default()))
    };
    let scenarios = set.scenarios.iter().enumerate();
    let report = |(index, scenario): (usize, &crate::engine::Scenario)| ScenarioReport {
        name: scenario.name.clone(),
        runs: of(&record.runs, index),
        steps: scenario
            .steps
            .iter()
            .map(|step| StepReport { name: step.name.clone(), requests: of(&record.steps, step.request as usize) })
            .collect(),
    };
    scenarios.map(report).collect()
}

fn group(record: &GroupRecord) -> GroupReport {
    GroupReport {
        served: record.served,
        failed: record.failed,
        p50_nanos: value_at(&record.latency, record.failed, 50.0),
        p99_nanos: value_at(&record.latency, record.failed, 99.0),
        max_nanos: if record.served == 0 { 0 } else { record.latency.max() },
    }
}

/// Writes the table of scenarios as text.
pub(super) fn write_text(out: &mut String, scenarios: &[ScenarioReport]) -> std::fmt::Result {
    if scenarios.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {:<32} {:>10} {:>8} {:>10} {:>10} {:>10}", "scenario", "served", "failed", "p50", "p99", "max")?;
    for scenario in scenarios {
        write_row(out, &format!("{} (runs)", scenario.name), &scenario.runs)?;
        for step in &scenario.steps {
            write_row(out, &format!("  {}", step.name), &step.requests)?;
        }
    }
    writeln!(out)
}

fn write_row(out: &mut String, name: &str, group: &GroupReport) -> std::fmt::Result {
    let time = |nanos| format_latency(nanos, group.failed);
    let max = (group.served > 0).then_some(group.max_nanos);
    writeln!(
        out,
        "  {name:<32} {:>10} {:>8} {:>10} {:>10} {:>10}",
        format_count(group.served),
        format_count(group.failed),
        time(group.p50_nanos),
        time(group.p99_nanos),
        max.map_or("-".to_owned(), format_nanos)
    )
}
