//! `tailor history`: recorded runs of the same load over time.

use std::path::PathBuf;

use crate::diff::{check_same_load, read};
use crate::end::ProgramEnd;
use crate::report::html::document;
use crate::report::plot::{Plot, Series, escape};
use crate::report::text::format_percentile;
use crate::report::{BenchReport, write_to};
use crate::units::{format_count, format_date, format_nanos, format_rate};

/// Maximum number of dates below a plot.
const MARKS_MAX: usize = 7;

/// Options of `tailor history`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HistoryOptions {
    /// Records of `tailor bench --json` of the same load
    #[arg(value_name = "FILE", required = true)]
    pub records: Vec<String>,
    /// Write plots as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Prints a table of the runs by date, and writes the page that the options name.
///
/// # Errors
/// The records cannot be read, or are of different loads.
pub(crate) fn run(options: &HistoryOptions) -> Result<ProgramEnd, String> {
    let mut reports = Vec::new();
    for path in &options.records {
        reports.extend(read(path)?);
    }
    reports.sort_by(|a, b| a.start_unix_seconds.total_cmp(&b.start_unix_seconds));
    reports.iter().try_for_each(|report| check_same_load(&reports[0].load, &report.load))?;
    let text = table(&reports);
    if let Some(path) = &options.html {
        write_to(path, &page(&reports, &text))?;
    }
    crate::output::print(&text)?;
    Ok(ProgramEnd::Passed)
}

fn table(reports: &[BenchReport]) -> String {
    let mut out = format!(
        "{:<22} {:>12} {:>10} {:>10} {:>10} {:>12} {:>10}  {}\n",
        "", "served/s", "p50", "p99", "p99.9", "us/request", "failed", "version"
    );
    for report in reports {
        let time = |percentile| format_percentile(&report.latency, percentile);
        let cost =
            report.server.as_ref().map_or("-".to_owned(), |it| format!("{:.2}", it.processor_micros_per_request));
        out += &format!(
            "{:<22} {:>12} {:>10} {:>10} {:>10} {:>12} {:>10}  {}\n",
            format_date(report.start_unix_seconds),
            format_rate(report.served_per_second),
            time(50.0),
            time(99.0),
            time(99.9),
            cost,
            format_count(report.failures.total()),
            report.tailor_version
        );
    }
    out
}

fn page(reports: &[BenchReport], text: &str) -> String {
    let step = reports.len().div_ceil(MARKS_MAX).max(1);
    let mark = |(index, report): (usize, &BenchReport)| {
        // The day is enough below a plot.
        let date = format_date(report.start_unix_seconds);
        (index as f64, date.split(' ').next().unwrap_or_default().to_owned())
    };
    let mut marks: Vec<(f64, String)> = reports.iter().enumerate().step_by(step).map(mark).collect();
    marks.dedup_by(|next, mark| next.1 == mark.1);
    let points = |value: &dyn Fn(&BenchReport) -> Option<f64>| -> Vec<(f64, f64)> {
        reports.iter().enumerate().filter_map(|(index, report)| Some((index as f64, value(report)?))).collect()
    };
    let latency = |percentile: f64| points(&move |report| report.latency.at(percentile).map(|nanos| nanos as f64));
    let failed = |report: &BenchReport| Some(report.failures.total() as f64);
    let mut plots = vec![
        plot("Requests served per second", vec![("served", points(&|it| Some(it.served_per_second)))], &marks, |it| {
            format_count(it as u64)
        }),
        plot("Latency", vec![("p50", latency(50.0)), ("p99", latency(99.0)), ("p99.9", latency(99.9))], &marks, |it| {
            format_nanos(it as u64)
        }),
    ];
    let cost = points(&|report| report.server.as_ref().map(|server| server.processor_micros_per_request));
    if !cost.is_empty() {
        plots.push(plot("CPU time of the server per request", vec![("us", cost)], &marks, |it| format!("{it:.2} us")));
    }
    if reports.iter().any(|report| report.failures.total() > 0) {
        plots.push(plot("Failed requests", vec![("failed", points(&failed))], &marks, |it| format_count(it as u64)));
    }
    let (first, last) = (&reports[0], &reports[reports.len() - 1]);
    let mut servers: Vec<&str> = reports.iter().map(|report| report.address.as_str()).collect();
    servers.sort_unstable();
    servers.dedup();
    let title = format!(
        "{}: {} runs from {} to {}",
        servers.join(", "),
        format_count(reports.len() as u64),
        format_date(first.start_unix_seconds),
        format_date(last.start_unix_seconds)
    );
    let body = format!(
        "<h1>{}</h1>\n<p><code>tailor {}</code></p>\n{}<div class=\"wide\"><pre>{}</pre></div>\n",
        escape(&title),
        escape(&crate::output::shell_words(&last.arguments)),
        plots.concat(),
        escape(text)
    );
    document(&format!("tailor history: {title}"), &body)
}

fn plot(
    title: &str,
    series: Vec<(&str, Vec<(f64, f64)>)>,
    marks: &[(f64, String)],
    format_y: fn(f64) -> String,
) -> String {
    let series = series.into_iter().map(|(name, points)| Series { name, points }).collect();
    Plot { title, x_label: "runs by date (UTC)", series, x_marks: marks.to_vec(), format_y }.to_html()
}
