//! Phases of a load profile in reports.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::build::value_at;
use super::text::format_latency;
use crate::engine::{GroupRecord, LoadProfile};
use crate::units::{format_count, format_nanos, format_rate};

/// Figures of the requests that were due in a phase of the load profile.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Phase")]
pub(crate) struct PhaseReport {
    /// Start of the phase, in seconds since counting began.
    pub start_seconds: f64,
    /// End of the phase, in seconds since counting began.
    pub end_seconds: f64,
    /// Requests due per second at the start.
    pub from_per_second: f64,
    /// Requests due per second at the end.
    pub to_per_second: f64,
    /// Responses that passed every check.
    pub served: u64,
    /// Failed requests.
    pub failed: u64,
    /// Responses served within the deadline; only with `--deadline`.
    pub in_time: Option<u64>,
    /// Time after the start of the phase until which requests failed or missed the deadline, in seconds. Null if none
    /// did.
    pub late_until_seconds: Option<f64>,
    /// Median of the latency. Null if failed requests make it unknown.
    pub p50_nanos: Option<u64>,
    /// 99th percentile of the latency. Null if failed requests make it unknown.
    pub p99_nanos: Option<u64>,
    /// Maximum latency of served responses.
    pub max_nanos: u64,
}

/// Creates the reports of all phases.
pub(super) fn build(profile: &LoadProfile, records: &[GroupRecord], has_deadline: bool) -> Vec<PhaseReport> {
    let phases = profile.phases().iter().zip(records).enumerate();
    let report = |(index, (phase, record)): (usize, (&crate::engine::ProfilePhase, &GroupRecord))| {
        let start = profile.start_of(index);
        PhaseReport {
            start_seconds: start as f64 / 1e9,
            end_seconds: (start + phase.length) as f64 / 1e9,
            from_per_second: phase.from,
            to_per_second: phase.to,
            served: record.served,
            failed: record.failed,
            in_time: has_deadline.then_some(record.in_time),
            late_until_seconds: record.late_until.map(|at| at.saturating_sub(start) as f64 / 1e9),
            p50_nanos: value_at(&record.latency, record.failed, 50.0),
            p99_nanos: value_at(&record.latency, record.failed, 99.0),
            max_nanos: record.latency.max(),
        }
    };
    phases.map(report).collect()
}

impl PhaseReport {
    fn rates(&self) -> String {
        let [from, to] = [self.from_per_second, self.to_per_second].map(format_rate);
        if from == to { from } else { format!("{from} to {to}") }
    }
}

/// Writes the table of phases as text.
pub(super) fn write_text(out: &mut String, phases: &[PhaseReport]) -> std::fmt::Result {
    if phases.is_empty() {
        return Ok(());
    }
    let has_deadline = phases.iter().any(|phase| phase.in_time.is_some());
    let in_time = |text: &str| if has_deadline { format!(" {text:>10}") } else { String::new() };
    writeln!(
        out,
        "  {:>16} {:>16} {:>10}{} {:>8} {:>10} {:>10} {:>10}   late until",
        "phase",
        "due/s",
        "served",
        in_time("in time"),
        "failed",
        "p50",
        "p99",
        "max"
    )?;
    for phase in phases {
        let time = |nanos| format_latency(nanos, phase.failed);
        let line = format!(
            "  {:>16} {:>16} {:>10}{} {:>8} {:>10} {:>10} {:>10}   {}",
            format!("{:.1} to {:.1} s", phase.start_seconds, phase.end_seconds),
            phase.rates(),
            format_count(phase.served),
            in_time(&phase.in_time.map_or(String::new(), format_count)),
            format_count(phase.failed),
            time(phase.p50_nanos),
            time(phase.p99_nanos),
            if phase.served == 0 { "-".to_owned() } else { format_nanos(phase.max_nanos) },
            phase.late_until_seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.2} s"))
        );
        writeln!(out, "{line}")?;
    }
    writeln!(out)
}
