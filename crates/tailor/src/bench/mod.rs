//! `tailor bench`: sends load to a server and reports rate and latency.

pub(crate) mod access_log;
mod find;
mod limits;
mod null_server;
mod options;
pub(crate) mod plan;
mod profile;
mod progress;
mod require;
mod scenario;
pub(crate) mod target;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use find::{FindReport, schema as find_schema};
pub use options::LoadOptions;
pub(crate) use options::parse_json_file;
pub use profile::ProfileOption;
pub use require::Requirement;
pub(crate) use tls::config as tls_config;

use crate::end::ProgramEnd;
use crate::engine;
use crate::report::{self, BenchReport};
use progress::ProgressDisplay;

/// Runs a benchmark and writes the reports that the options name.
///
/// # Errors
/// The run is impossible: the message gives the reason.
pub fn run(options: &LoadOptions) -> Result<ProgramEnd, String> {
    if !options.find.is_empty() {
        return find::run(options);
    }
    let plan = plan::make(options)?;
    // Check this first, so that an unwritable file fails before the run, not after it.
    for path in options.json.iter().chain(&options.html) {
        report::check_writable(path)?;
    }
    let stop = crate::end::stop_on_signals()?;
    let (report, _) = measure(options, plan, &stop)?;
    let end = match (stop.load(Ordering::Relaxed), report.passed) {
        (true, _) => ProgramEnd::Interrupted,
        (false, true) => ProgramEnd::Passed,
        (false, false) => ProgramEnd::Failed,
    };
    write_reports(options, &report)?;
    Ok(end)
}

/// Runs a plan to its end.
pub(crate) fn measure(
    options: &LoadOptions,
    plan: engine::LoadPlan,
    stop: &Arc<AtomicBool>,
) -> Result<(BenchReport, engine::RunOutcome), String> {
    limits::raise_descriptor_limit();
    let machine = limits::Machine::read(&plan);
    let watched = match options.watch_group.as_slice() {
        [] => options.watch.map(report::observe::Observed::Process),
        directories => Some(report::observe::Observed::group(directories)),
    };
    let mut builder = report::Builder::new(options, &plan, watched);
    let mut progress = ProgressDisplay::new(options);
    let mut outputs = report::IntervalOutputs::open(options)?;
    let mut running =
        engine::start(plan.clone(), Arc::clone(stop)).map_err(|error| format!("cannot start the load: {error}"))?;
    running.wait_for_counting();
    builder.begin();
    while let Some(interval) = running.next_interval() {
        let interval = builder.add(&interval, &mut outputs)?;
        progress.show(&interval);
    }
    progress.clear();
    let outcome = running.finish();
    outputs.finish()?;
    let interrupted = stop.load(Ordering::Relaxed);
    let calibrate = || match interrupted || options.no_calibration {
        true => None,
        false => null_server::calibrate(&plan, limits::LAG_QUANTILE),
    };
    let limits = machine.limits(&limits::Machine::read(&plan), &plan, &outcome, calibrate);
    Ok((builder.finish(&outcome, limits, interrupted), outcome))
}

fn write_reports(options: &LoadOptions, report: &BenchReport) -> Result<(), String> {
    // A program reads the JSON on standard output, so nothing else may be written there.
    if options.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        print!("{}", report::text::page(report));
    }
    if let Some(path) = &options.json {
        report::write_to(path, &report::json::to_string(report))?;
    }
    if let Some(path) = &options.html {
        report::write_to(path, &report::html::page(report))?;
    }
    Ok(())
}
