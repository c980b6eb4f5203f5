//! `tailor bench`: sends load to a server and reports rate and latency.

pub(crate) mod access_log;
mod find;
mod limits;
mod live;
mod message;
mod metrics;
mod null_server;
mod options;
pub(crate) mod plan;
mod precision;
mod profile;
mod progress;
mod require;
mod scenario;
mod shared_line;
pub(crate) mod target;
mod terminal;
mod tls;
mod vegeta;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use find::schema as find_schema;
pub(crate) use options::LoadOptions;
pub(crate) use options::parse_json_file;
pub(crate) use precision::PrecisionGoal;
pub(crate) use profile::ProfileOption;
#[cfg(test)]
pub(crate) use profile::parse as parse_profile;
pub(crate) use require::Requirement;
pub(crate) use shared_line::SharedLine;
pub(crate) use tls::{TlsChoices, config as tls_config};

use crate::end::ProgramEnd;
use crate::engine;
use crate::report::{self, BenchReport};
use progress::ProgressDisplay;

/// Runs a benchmark and writes the reports that the options name.
///
/// # Errors
/// The run is impossible: the message gives the reason.
pub(crate) fn run(options: &LoadOptions) -> Result<ProgramEnd, String> {
    if !options.find.is_empty() {
        return find::run(options);
    }
    run_with(options, measure)
}

/// Runs a benchmark with this way to measure, and writes the reports that the options name.
pub(crate) fn run_with(options: &LoadOptions, measure: Measure) -> Result<ProgramEnd, String> {
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

/// Way to run a plan to its end.
pub(crate) type Measure =
    fn(&LoadOptions, engine::LoadPlan, &Arc<AtomicBool>) -> Result<(BenchReport, engine::RunOutcome), String>;

/// Progress and other outputs during a run.
pub(crate) struct RunOutputs {
    progress: ProgressDisplay,
    intervals: report::IntervalOutputs,
    metrics: Option<metrics::MetricsServer>,
}

impl RunOutputs {
    pub(crate) fn open(options: &LoadOptions, plan: &engine::LoadPlan) -> Result<Self, String> {
        let metrics = options.metrics.map(metrics::MetricsServer::start).transpose()?;
        if let Some(metrics) = metrics.as_ref().filter(|_| !options.quiet) {
            eprintln!("metrics: http://{}/metrics", metrics.address());
        }
        let intervals = report::IntervalOutputs::open(options)?;
        Ok(Self { progress: ProgressDisplay::new(options, plan), intervals, metrics })
    }

    /// Adds an interval that ended.
    pub(crate) fn add(&mut self, interval: &engine::Interval, builder: &mut report::Builder) -> Result<(), String> {
        let report = builder.add(interval, &mut self.intervals)?;
        self.progress.show(interval, &report);
        if let Some(metrics) = &self.metrics {
            metrics.add(interval, &report);
        }
        Ok(())
    }

    /// Ends the outputs.
    pub(crate) fn finish(self) -> Result<(), String> {
        let Self { progress, mut intervals, metrics: _ } = self;
        drop(progress);
        intervals.finish()
    }
}

/// Runs a plan to its end.
pub(crate) fn measure(
    options: &LoadOptions,
    plan: engine::LoadPlan,
    stop: &Arc<AtomicBool>,
) -> Result<(BenchReport, engine::RunOutcome), String> {
    measure_with(options, plan, stop, &mut |_| {})
}

/// Runs a plan to its end, and passes on each interval that ended.
pub(crate) fn measure_with(
    options: &LoadOptions,
    mut plan: engine::LoadPlan,
    stop: &Arc<AtomicBool>,
    on_interval: &mut dyn FnMut(&engine::Interval),
) -> Result<(BenchReport, engine::RunOutcome), String> {
    limits::raise_descriptor_limit();
    let machine = limits::Machine::read(&plan, options.shared_line);
    let line = options.shared_line.map(|line| line.open(&mut plan)).transpose()?;
    let line_report = line.as_ref().map(|line| line.report);
    let watched = match options.watch_group.as_slice() {
        [] => options.watch.map(report::observe::Observed::Process),
        directories => Some(report::observe::Observed::group(directories)),
    };
    let mut builder = report::Builder::new(options, &plan, watched);
    let mut precision = options.until_precise.map(|goal| precision::RunPrecision::new(goal, &plan));
    let mut outputs = RunOutputs::open(options, &plan)?;
    let (mut running, interface) = match line {
        Some(line) => line.start(plan.clone(), Arc::clone(stop))?,
        None => {
            let running = engine::start(plan.clone(), Arc::clone(stop));
            (running.map_err(|error| format!("cannot start the load: {error}"))?, None)
        }
    };
    running.wait_for_counting();
    builder.begin();
    while let Some(interval) = running.next_interval() {
        outputs.add(&interval, &mut builder)?;
        on_interval(&interval);
        if precision.as_mut().is_some_and(|precision| precision.add(&interval)) {
            running.end();
        }
    }
    outputs.finish()?;
    let outcome = running.finish();
    drop(interface);
    let interrupted = stop.load(Ordering::Relaxed);
    let calibrate = || match interrupted || options.no_calibration {
        true => None,
        false => null_server::calibrate(&plan, limits::LAG_QUANTILE),
    };
    let limits = machine.limits(&limits::Machine::read(&plan, options.shared_line), &plan, &outcome, calibrate);
    let mut report = builder.finish(&outcome, limits, interrupted);
    report.shared_line = line_report;
    report.precision = precision.map(precision::RunPrecision::finish);
    Ok((report, outcome))
}

pub(crate) fn write_reports(options: &LoadOptions, report: &BenchReport) -> Result<(), String> {
    // A program reads the JSON on standard output, so nothing else may be written there.
    if options.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        crate::output::print(&report::text::page(report))?;
    }
    if let Some(path) = &options.json {
        report::write_to(path, &report::json::to_string(report))?;
    }
    if let Some(path) = &options.html {
        report::write_to(path, &report::html::page(report))?;
    }
    Ok(())
}
