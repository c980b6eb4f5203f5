//! Progress of a run: on a terminal, one line that is overwritten, or the live view; otherwise, a line for each interval.

use std::io::{IsTerminal, Write};

use super::LoadOptions;
use super::live::LiveView;
use crate::engine::{Interval, LoadPlan};
use crate::report::IntervalReport;
use crate::units::{format_count, format_nanos};

/// Writer of progress to standard error; dropping it clears the terminal, so that the report can follow.
pub(super) struct ProgressDisplay {
    is_shown: bool,
    is_terminal: bool,
    interval_seconds: f64,
    live: Option<LiveView>,
}

impl ProgressDisplay {
    pub(super) fn new(options: &LoadOptions, plan: &LoadPlan) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self {
            is_shown: !options.quiet,
            is_terminal,
            interval_seconds: options.interval.as_secs_f64(),
            live: (options.live && is_terminal).then(|| LiveView::new(plan)).and_then(Result::ok),
        }
    }

    /// Shows the figures of an interval that ended.
    pub(super) fn show(&mut self, interval: &Interval, report: &IntervalReport) {
        // An empty rest after the last whole interval has no figures to show.
        let is_empty = report.served + report.failures.total() == 0;
        let is_rest = report.end_seconds - report.start_seconds < self.interval_seconds / 2.0;
        match &mut self.live {
            _ if is_empty && is_rest => {}
            Some(live) => live.show(interval, report),
            None if self.is_shown => self.show_line(report),
            None => {}
        }
    }

    fn show_line(&self, interval: &IntervalReport) {
        // Without responses there is no latency.
        let time = |nanos| if interval.served == 0 { "-".to_owned() } else { format_nanos(nanos) };
        let line = format!(
            "{:7.1} s  {:>10}/s  p50 {:>8}  p99 {:>8}  max {:>8}  failed {}",
            interval.end_seconds,
            format_count(interval.served_per_second.round() as u64),
            time(interval.p50_nanos),
            time(interval.p99_nanos),
            time(interval.max_nanos),
            format_count(interval.failures.total()),
        );
        let mut out = std::io::stderr().lock();
        // A run continues even if its progress cannot be written.
        let _ = if self.is_terminal { write!(out, "\r\x1b[K{line}") } else { writeln!(out, "{line}") };
        let _ = out.flush();
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        if self.is_shown && self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}
