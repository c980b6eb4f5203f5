//! `tailor web99`: a workload of static and dynamic pages over slow lines, modelled on public descriptions of
//! SPECweb99. Its results are not SPECweb99 results.

mod check;
mod client;
mod commands;
mod file_set;
mod mix;
mod operation;
mod options;
mod post_log;
mod run;
mod scripts;
mod summary;
mod tables;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;

pub(crate) use options::{RunConditions, Web99Output, Web99Workload};
pub(crate) use summary::{Web99Report, Web99Summary};

use crate::end::ProgramEnd;
use crate::search::Search;
use crate::units::{parse_count, parse_share};

/// Commands of `tailor web99` that send load.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Web99Action {
    /// Check each operation by itself: bodies, cookies and the post log
    Check {
        /// Workload of the check.
        #[command(flatten)]
        workload: Web99Workload,
        /// Number of connections that the file set was written for
        #[arg(short = 'c', long, value_name = "N", default_value = "100", value_parser = parse_count)]
        connections: u64,
    },
    /// Load a server over a number of lines, and report whether it sustains them
    Run {
        /// Workload of the run.
        #[command(flatten)]
        workload: Web99Workload,
        /// Number of concurrent connections, one line each
        #[arg(short = 'c', long, value_name = "N", default_value = "100", value_parser = parse_count)]
        connections: u64,
        /// Conditions of the run.
        #[command(flatten)]
        conditions: RunConditions,
        /// Outputs of the run.
        #[command(flatten)]
        output: Web99Output,
    },
    /// Find the highest number of connections that a server sustains
    Search {
        /// Workload of the search.
        #[command(flatten)]
        workload: Web99Workload,
        /// Number of connections to begin with
        #[arg(long, value_name = "N", default_value = "50", value_parser = parse_count)]
        from: u64,
        /// Maximum number of connections; the file set must suffice for them
        #[arg(long, value_name = "N", default_value = "2000", value_parser = parse_count)]
        to: u64,
        /// Maximum error of the result
        #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = parse_share)]
        precision: f64,
        /// Conditions of each run.
        #[command(flatten)]
        conditions: RunConditions,
        /// Outputs of the search.
        #[command(flatten)]
        output: Web99Output,
    },
}

/// Runs a command.
///
/// # Errors
/// The command is impossible: the message gives the reason.
pub(crate) fn run(command: &Web99Action) -> Result<ProgramEnd, String> {
    match command {
        Web99Action::Check { workload, connections } => run_check(workload, *connections),
        Web99Action::Run { workload, connections, conditions, output } => {
            let stop = crate::end::stop_on_signals()?;
            let report = run::run(workload, conditions, output, *connections, &stop)?;
            write_report(&report, output)?;
            Ok(end(&report))
        }
        Web99Action::Search { workload, from, to, precision, conditions, output } => {
            run_search(workload, Search::new(*from, *to, *precision), conditions, output)
        }
    }
}

/// JSON schema of a run's report.
pub(crate) fn schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(Web99Report)).expect("a schema can be written as JSON")
}

/// Writes the file set for this number of connections, and the dynamic operations, below `root`.
///
/// # Errors
/// A file could not be written.
pub(crate) fn write_site(root: &Path, connections: u64) -> Result<(), String> {
    file_set::write(root, file_set::directory_count(connections))?;
    scripts::write(root)
}

/// List of the static files for this number of connections, with a weight and a path on each line.
pub(crate) fn weighted_urls(connections: u64) -> String {
    file_set::weighted_urls(file_set::directory_count(connections))
}

fn run_check(workload: &Web99Workload, connections: u64) -> Result<ProgramEnd, String> {
    let findings = run::check(workload, &workload.commands()?, workload.directories(connections))?;
    for fault in &findings.faults {
        println!("{fault}");
    }
    println!("{} checks, {} faults", findings.checked, findings.faults.len());
    Ok(if findings.faults.is_empty() { ProgramEnd::Passed } else { ProgramEnd::Failed })
}

/// Tries numbers of connections until the result is precise enough and confirmed. Reports the last sustained run with the
/// highest number; if no number is sustained, the last run.
fn run_search(
    workload: &Web99Workload,
    mut search: Search,
    conditions: &RunConditions,
    output: &Web99Output,
) -> Result<ProgramEnd, String> {
    let stop = crate::end::stop_on_signals()?;
    let (mut sustained, mut last) = (BTreeMap::new(), None);
    while let Some(connections) = search.next().filter(|_| !stop.load(Ordering::Relaxed)) {
        let report = run::run(workload, conditions, output, connections, &stop)?;
        if report.bench.interrupted {
            break;
        }
        let (share, is_sustained) = (report.web99.conforming_share() * 100.0, report.web99.is_sustained);
        eprintln!(
            "{connections} connections: {share:.1} % conform{}",
            if is_sustained { "" } else { ", not sustained" }
        );
        search.on_tried(connections, is_sustained);
        match is_sustained {
            true => drop(sustained.insert(connections, report)),
            false => last = Some(report),
        }
    }
    let end_of_search = search.end();
    let best = end_of_search.best.and_then(|best| sustained.remove(&best));
    if let Some(report) = &best {
        let (highest, low) = (report.web99.connections, end_of_search.low);
        match end_of_search.high {
            Some(high) => {
                eprintln!("highest sustained: {highest} connections, the capacity is between {low} and {high}")
            }
            None => eprintln!("highest sustained: {highest} connections, the capacity is {low} or more"),
        }
    }
    let report = best.or(last).ok_or("interrupted before the first number was tried")?;
    write_report(&report, output)?;
    Ok(if stop.load(Ordering::Relaxed) { ProgramEnd::Interrupted } else { end(&report) })
}

fn end(report: &Web99Report) -> ProgramEnd {
    match (report.bench.interrupted, report.bench.passed) {
        (true, _) => ProgramEnd::Interrupted,
        (false, true) => ProgramEnd::Passed,
        (false, false) => ProgramEnd::Failed,
    }
}

fn write_report(report: &Web99Report, output: &Web99Output) -> Result<(), String> {
    if let Some(path) = &output.json {
        let json = serde_json::to_string_pretty(report).map_err(|error| error.to_string())?;
        crate::report::write_to(path, &json)?;
    }
    if let Some(path) = &output.html {
        crate::report::write_to(path, &report.to_html())?;
    }
    // A program reads the JSON on standard output, so nothing else may be written there.
    if output.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        crate::output::print(&report.to_text())?;
    }
    Ok(())
}
