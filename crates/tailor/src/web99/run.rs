//! Run of the workload with a number of connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;

use super::check::{self, SiteFindings};
use super::commands::Commands;
use super::file_set::{CLASSES, FILES_PER_CLASS};
use super::operation::{self, Operation, OperationKind};
use super::options::{RunConditions, Web99Output, Web99Workload};
use super::post_log::{self, SentPost};
use super::summary::{Web99Report, Web99Summary};
use crate::bench;
use crate::engine::{ConnectionPersistence, LineUsage, RequestOrder, RunOutcome, Tally};
use crate::report::BenchReport;

/// Minimum number of different operations in a run.
const OPERATIONS_MIN: usize = 20_000;
/// Time for the server to finish requests that were cut off, before its log is read.
const SETTLE: Duration = Duration::from_millis(500);

/// Runs the iterations and returns the report of the worst.
///
/// # Errors
/// The server cannot be reached, or rejects a command.
pub(super) fn run(
    workload: &Web99Workload,
    conditions: &RunConditions,
    output: &Web99Output,
    connections: u64,
    stop: &Arc<AtomicBool>,
) -> Result<Web99Report, String> {
    let commands = workload.commands()?;
    let directories = workload.directories(connections);
    let findings = if conditions.no_check { SiteFindings::default() } else { check(workload, &commands, directories)? };
    let mut reports = Vec::new();
    for _ in 0..conditions.iterations {
        reports.push(iterate(workload, conditions, output, connections, &findings, stop)?);
        if stop.load(Ordering::Relaxed) || !findings.faults.is_empty() {
            break;
        }
    }
    let shares: Vec<f64> = reports.iter().map(|report| report.web99.conforming_share()).collect();
    let quality = |report: &Web99Report| (report.web99.is_sustained, report.web99.conforming_share());
    let worst =
        reports.into_iter().min_by(|a, b| quality(a).partial_cmp(&quality(b)).unwrap_or(std::cmp::Ordering::Equal));
    // There is at least one iteration.
    let mut report = worst.ok_or("no iteration ran")?;
    report.web99.iterations = shares;
    Ok(report)
}

/// Runs the checker, which tries each kind of operation alone.
pub(super) fn check(workload: &Web99Workload, commands: &Commands, directories: u32) -> Result<SiteFindings, String> {
    if workload.mix.is_dynamic() {
        commands.reset()?;
    }
    check::run(commands, workload.mix, directories, workload.users)
}

fn iterate(
    workload: &Web99Workload,
    conditions: &RunConditions,
    output: &Web99Output,
    connections: u64,
    findings: &SiteFindings,
    stop: &Arc<AtomicBool>,
) -> Result<Web99Report, String> {
    // Each iteration begins with new tables.
    let commands = workload.commands()?;
    if workload.mix.is_dynamic() {
        commands.reset()?;
    }
    let directories = workload.directories(connections);
    let files = directories as usize * usize::from(CLASSES * FILES_PER_CLASS);
    let mut rng = Rng::with_seed(u64::from(workload.seed));
    let operations = workload.mix.sample(OPERATIONS_MIN.max(2 * files), directories, workload.users, &mut rng);
    let options = conditions.bench_options(&workload.url, connections, output)?;
    let mut plan = bench::plan::make(&options)?;
    let requests = operation::requests(&operations, &commands.site, &commands.client.authority);
    plan.workload = crate::engine::Workload::new(requests, RequestOrder::InTurn);
    plan.is_tallied = true;
    plan.seed = workload.seed;
    plan.persistence = ConnectionPersistence {
        keep_alive_share: conditions.keep_alive_connection_share(),
        http10_share: conditions.http10,
        http10_single_share: 1.0,
        ..plan.persistence
    };
    let (report, outcome) = bench::measure(&options, plan, stop)?;
    let post_log = match workload.mix.has(OperationKind::Post) {
        true => {
            std::thread::sleep(SETTLE);
            Some(post_log::judge(&commands.fetch()?, &posts(&operations, &outcome.tallies)))
        }
        false => None,
    };
    let summary = Web99Summary {
        connections,
        directories,
        is_short: conditions.is_short(),
        checked: findings.checked,
        faults: findings.faults.clone(),
        operations: by_kind(&operations, &outcome.tallies),
        post_log,
        ..judge_lines(conditions, &report, &outcome)
    };
    let web99 = summary.judged();
    let passed = web99.is_sustained && !report.interrupted && report.served > 0;
    Ok(Web99Report { bench: BenchReport { passed, ..report }, web99 })
}

/// Judges the lines by their mean rates: bytes received over the counted time.
fn judge_lines(conditions: &RunConditions, report: &BenchReport, outcome: &RunOutcome) -> Web99Summary {
    let seconds = report.duration_seconds.max(1e-9);
    let rate = |usage: &LineUsage| usage.received_bytes as f64 * 8.0 / seconds;
    let mut rates: Vec<f64> = outcome.lines.iter().map(rate).collect();
    rates.sort_by(f64::total_cmp);
    let at = |index: usize| rates.get(index).copied().unwrap_or(0.0);
    Web99Summary {
        conforming_bits_per_second: conditions.conforming_rate,
        conforming: rates.iter().filter(|rate| **rate >= conditions.conforming_rate as f64).count() as u64,
        conforming_share_min: conditions.conforming_share,
        failed_share: outcome.record.failures.total() as f64 / outcome.record.finished().max(1) as f64,
        failed_share_max: conditions.failed_share,
        rates_bits_per_second: [at(0), at(rates.len() / 2), at(rates.len().saturating_sub(1))],
        ..Web99Summary::default()
    }
}

fn posts(operations: &[Operation], tallies: &[Tally]) -> Vec<SentPost> {
    let posts = operations.iter().zip(tallies).filter(|(operation, _)| operation.kind == OperationKind::Post);
    posts.map(|(operation, tally)| SentPost { operation: *operation, served: tally.served, sent: tally.sent }).collect()
}

fn by_kind(operations: &[Operation], tallies: &[Tally]) -> BTreeMap<String, [u64; 2]> {
    let mut sums = BTreeMap::new();
    for (operation, tally) in operations.iter().zip(tallies) {
        let [sent, served] = sums.entry(operation.kind.name().to_owned()).or_insert([0, 0]);
        *sent += tally.sent;
        *served += tally.served;
    }
    sums
}
