//! Report as an HTML page: one file that needs no network.

use std::fmt::Write;

use super::plot::{Plot, Series, escape};
use super::text::{failed_note, format_percentile};
use super::{BenchReport, Distribution, IntervalReport};
use crate::engine::HandshakeCounts;
use crate::units::{format_bytes, format_count, format_nanos, format_number_of, format_rate};

pub(crate) const STYLE: &str = "
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; color: #1c2833; background: #fff; max-width: 1040px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse; margin: .6em 0 } th, td { padding: .2em .6em; text-align: right; white-space: nowrap; border-bottom: 1px solid #dde3e8 }
th:first-child, td:first-child { text-align: left } th { font-weight: 600 }
figure { margin: 1.4em 0 } figcaption { font-weight: 600; margin-bottom: .3em } figcaption span { font-weight: 400; margin-left: .8em }
figure { overflow-x: auto } svg { width: 100%; min-width: 600px; height: auto } svg text { font-size: 12px; fill: #51606d } svg .grid { stroke: #e4e9ed; stroke-width: 1 }
.wide { overflow-x: auto } .facts td { white-space: normal; vertical-align: top; text-align: left } .facts td + td { overflow-wrap: anywhere } .note { color: #51606d } .warn, code { overflow-wrap: anywhere }
.warn { background: #fdf0e1; border-left: 4px solid #d9822b; padding: .5em .8em } .bad { color: #b3261e } code, pre { font-size: 13px }
pre { background: #f5f7f9; padding: .8em; overflow-x: auto }
@media (max-width: 480px) { th, td { padding: .2em .3em } }
@media (prefers-color-scheme: dark) {
body { color: #e6e9ee; background: #14171b } th, td { border-color: #333a42 } .note { color: #9aa4ae } .bad { color: #ff8a80 }
.warn { background: #3a2a14 } pre { background: #1e2328 } svg text { fill: #9aa4ae } svg .grid { stroke: #2b3138 }
svg polyline, svg circle, figcaption span { filter: brightness(1.6) }
}
";

/// Builds the HTML page of a report.
pub(crate) fn page(report: &BenchReport) -> String {
    let date = crate::units::format_date(report.start_unix_seconds);
    document(&format!("tailor: {}, {date}", report.address), &body(report))
}

/// Builds the body of the page.
pub(crate) fn body(report: &BenchReport) -> String {
    let mut body = String::new();
    // Writing to a string does not fail.
    let _ = write_body(&mut body, report);
    body
}

/// Wraps a body in a page with tailor's style.
pub(crate) fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n<style>{STYLE}</style>\n<body>\n{body}</body>\n</html>\n",
        escape(title)
    )
}

fn write_body(out: &mut String, report: &BenchReport) -> std::fmt::Result {
    writeln!(out, "<h1>{} requests served per second</h1>", format_rate(report.served_per_second))?;
    let date = crate::units::format_date(report.start_unix_seconds);
    writeln!(out, "<p class=\"note\">{}, {date}</p>", escape(&report.address))?;
    writeln!(out, "<p><code>tailor {}</code></p>", escape(&crate::output::shell_words(&report.arguments)))?;
    if report.interrupted {
        writeln!(out, "<p class=\"warn\">Interrupted: these are the measurements so far; nothing passed.</p>")?;
    }
    for limit in &report.limits {
        let class = if limit.is_warning() { "warn" } else { "note" };
        writeln!(out, "<p class=\"{class}\">{}</p>", escape(&limit.sentence()))?;
    }
    if let Some(line) = &report.shared_line {
        writeln!(out, "<p class=\"note\">Line {}</p>", escape(&line.sentence()))?;
    }
    write_totals(out, report)?;
    write_latencies(out, report)?;
    if !report.scenarios.is_empty() {
        let mut scenarios = String::new();
        super::scenarios::write_text(&mut scenarios, &report.scenarios)?;
        writeln!(out, "<h2>Scenarios</h2>\n<pre>{}</pre>", escape(&scenarios))?;
    }
    if !report.phases.is_empty() {
        let mut phases = String::new();
        super::phases::write_text(&mut phases, &report.phases)?;
        writeln!(out, "<h2>Phases</h2>\n<pre>{}</pre>", escape(&phases))?;
    }
    out.push_str(&served_over_time(&report.intervals));
    out.push_str(&latency_by_percentile(report));
    out.push_str(&latency_over_time(&report.intervals));
    out.push_str(&processors_over_time(&report.intervals));
    out.push_str(&memory_over_time(&report.intervals));
    if let Some(lines) = &report.lines {
        let points = lines.rates.iter().enumerate().map(|(rank, rate)| ((rank + 1) as f64, *rate)).collect();
        let series = vec![Series { name: "rate", points }];
        let format_y = |value: f64| format!("{:.1} kbit/s", value / 1e3);
        out.push_str(
            &Plot {
                title: "Rate of each line",
                x_label: "lines, slowest first",
                series,
                x_marks: Vec::new(),
                format_y,
            }
            .to_html(),
        );
    }
    Ok(())
}

fn write_totals(out: &mut String, report: &BenchReport) -> std::fmt::Result {
    writeln!(out, "<table class=\"facts\">")?;
    let mut row = |name: &str, value: String| writeln!(out, "<tr><td>{}<td>{}", escape(name), escape(&value));
    row(
        "load",
        format!(
            "{} loop, {}{}, {}",
            report.load.pace,
            format_number_of(report.load.connections, "connection"),
            report.load.streams(),
            format_number_of(report.load.threads, "thread")
        ),
    )?;
    if let Some(rate) = report.load.rate_per_second {
        row("scheduled rate", format!("{}/s", format_rate(rate)))?;
    }
    if let Some(profile) = &report.load.profile {
        row("profile", profile.clone())?;
    }
    if let (Some(goodput), Some(deadline)) = (report.goodput_per_second, report.deadline_nanos) {
        row("goodput", format!("{}/s within {}", format_rate(goodput), format_nanos(deadline)))?;
    }
    if let Some(seed) = report.load.seed {
        row("seed", seed.to_string())?;
    }
    row("duration", format!("{:.2} s", report.duration_seconds))?;
    if let Some(precision) = &report.precision {
        row("precision", precision.sentence())?;
    }
    row("served", format_count(report.served))?;
    row("failed", format_count(report.failures.total()))?;
    for (class, count) in report.failures.iter() {
        let reasons = match report.format_reasons(class.name()) {
            reasons if reasons.is_empty() => reasons,
            reasons => format!(": {reasons}"),
        };
        row(&format!("— {}", class.name()), format_count(count) + &reasons)?;
    }
    if report.aborted + report.unfinished > 0 {
        row("aborted, unfinished", format!("{}, {}", format_count(report.aborted), format_count(report.unfinished)))?;
    }
    row("received", format_bytes(report.bytes_received as f64))?;
    row("connections opened", format_count(report.connections))?;
    if let Some(HandshakeCounts { full, resumed, early }) = report.handshakes {
        let early = if early > 0 { format!(", {} with early data", format_count(early)) } else { String::new() };
        row("TLS handshakes", format!("{}, {} resumed{early}", format_count(full + resumed), format_count(resumed)))?;
    }
    if let Some(datagrams) = report.datagrams {
        let [received, sent, failed] = [datagrams.received, datagrams.sent, datagrams.failed_sends].map(format_count);
        row("datagrams", format!("{received} received, {sent} sent, {failed} failed sends"))?;
    }
    if let Some(times) = report.tls_handshake.as_ref().filter(|times| times.count > 0) {
        let [p50, p99] = [50.0, 99.0].map(|percentile| format_percentile(times, percentile));
        row("TLS handshake time", format!("p50 {p50}, p99 {p99}"))?;
    }
    let client = &report.client;
    row(
        "client CPU time",
        format!(
            "{:.2} us per request, busiest thread {:.0} %",
            client.processor_micros_per_request,
            client.busiest_thread_share * 100.0
        ),
    )?;
    if let Some(server) = &report.server {
        row(
            "server CPU time",
            format!(
                "{:.2} us per request (user {:.2} s, system {:.2} s)",
                server.processor_micros_per_request, server.user_seconds, server.system_seconds
            ),
        )?;
        row(
            "server memory",
            format!(
                "{}, swap {}",
                format_bytes(server.memory_bytes_max as f64),
                format_bytes(server.swap_bytes_max as f64)
            ),
        )?;
    }
    for requirement in &report.requirements {
        row(&requirement.text, if requirement.holds { "holds".into() } else { "does not hold".into() })?;
    }
    writeln!(out, "</table>")
}

/// Distributions of latency with their names.
fn distributions(report: &BenchReport) -> Vec<(&'static str, &Distribution)> {
    match (&report.latency_uncorrected, &report.lag) {
        (Some(uncorrected), Some(lag)) => {
            vec![("latency", &report.latency), ("from send", uncorrected), ("send delay", lag)]
        }
        _ => vec![("latency", &report.latency)],
    }
}

fn write_latencies(out: &mut String, report: &BenchReport) -> std::fmt::Result {
    let columns = distributions(report);
    write!(out, "<div class=\"wide\"><table><tr><th>")?;
    for (name, _) in &columns {
        write!(out, "<th>{name}")?;
    }
    for percentile in [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0] {
        let name = if percentile == 100.0 { "max".to_owned() } else { format!("p{percentile}") };
        write!(out, "<tr><td>{name}")?;
        for (_, distribution) in &columns {
            write!(out, "<td>{}", format_percentile(distribution, percentile))?;
        }
    }
    writeln!(out, "</table></div>")?;
    match failed_note(report) {
        Some(note) => writeln!(out, "<p class=\"note\">{note}</p>"),
        None => Ok(()),
    }
}

fn served_over_time(intervals: &[IntervalReport]) -> String {
    let points = |value: fn(&IntervalReport) -> f64| over_time(intervals, value);
    let mut series = vec![Series { name: "served", points: points(|interval| interval.served_per_second) }];
    if intervals.iter().any(|interval| interval.failures.total() > 0) {
        let failed = |interval: &IntervalReport| {
            interval.failures.total() as f64 / (interval.end_seconds - interval.start_seconds).max(1e-9)
        };
        series.push(Series { name: "failed", points: points(failed) });
    }
    let format_y = |value: f64| format_count(value as u64);
    Plot { title: "Requests served per second", x_label: "seconds", series, x_marks: Vec::new(), format_y }.to_html()
}

/// Plot of latency over percentiles. On its axis each further nine has the same width.
fn latency_by_percentile(report: &BenchReport) -> String {
    let nines = |percentile: f64| -((100.0 - percentile.min(100.0 - 1e-9)) / 100.0).log10();
    let series = |(name, distribution): (&'static str, &Distribution)| {
        let finite = distribution.percentiles.iter().filter(|point| point.percentile < 100.0);
        Series { name, points: finite.map(|point| (nines(point.percentile), point.nanos as f64)).collect() }
    };
    let marks = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999];
    Plot {
        title: "Latency by percentile",
        x_label: "percentile",
        series: distributions(report).into_iter().map(series).collect(),
        x_marks: marks.map(|percentile| (nines(percentile), format!("{percentile} %"))).into(),
        format_y: |value| format_nanos(value as u64),
    }
    .to_html()
}

fn latency_over_time(intervals: &[IntervalReport]) -> String {
    let series = vec![
        Series { name: "p50", points: over_time(intervals, |interval| interval.p50_nanos as f64) },
        Series { name: "p99", points: over_time(intervals, |interval| interval.p99_nanos as f64) },
        Series { name: "max", points: over_time(intervals, |interval| interval.max_nanos as f64) },
    ];
    let format_y = |value: f64| format_nanos(value as u64);
    Plot { title: "Latency over time", x_label: "seconds", series, x_marks: Vec::new(), format_y }.to_html()
}

fn processors_over_time(intervals: &[IntervalReport]) -> String {
    let percent = |share: f64| share * 100.0;
    let mut series = Vec::new();
    if intervals.iter().any(|interval| interval.server_user_share.is_some()) {
        let user = over_time(intervals, |interval| interval.server_user_share.unwrap_or(0.0));
        let system = over_time(intervals, |interval| interval.server_system_share.unwrap_or(0.0));
        series.push(Series { name: "server, user", points: user });
        series.push(Series { name: "server, system", points: system });
    }
    series.push(Series { name: "client", points: over_time(intervals, |interval| interval.client_processor_share) });
    for series in &mut series {
        series.points.iter_mut().for_each(|point| point.1 = percent(point.1));
    }
    let format_y = |value: f64| format!("{value:.0} %");
    Plot { title: "CPU time in percent of one core", x_label: "seconds", series, x_marks: Vec::new(), format_y }
        .to_html()
}

fn memory_over_time(intervals: &[IntervalReport]) -> String {
    if intervals.iter().all(|interval| interval.server_memory_bytes.is_none()) {
        return String::new();
    }
    let points = over_time(intervals, |interval| interval.server_memory_bytes.unwrap_or(0) as f64);
    let series = vec![Series { name: "memory", points }];
    Plot { title: "Server memory", x_label: "seconds", series, x_marks: Vec::new(), format_y: format_bytes }.to_html()
}

fn over_time(intervals: &[IntervalReport], value: impl Fn(&IntervalReport) -> f64) -> Vec<(f64, f64)> {
    let whole = without_rest(intervals, |interval| interval.end_seconds - interval.start_seconds);
    whole.iter().map(|interval| (interval.end_seconds, value(interval))).collect()
}

/// Intervals without a last one that is too short for a rate, such as the time for responses after the end of the load.
fn without_rest<T>(intervals: &[T], seconds: impl Fn(&T) -> f64) -> &[T] {
    match intervals {
        [whole @ .., rest] if whole.last().is_some_and(|before| seconds(rest) < seconds(before) / 2.0) => whole,
        all => all,
    }
}

#[cfg(test)]
mod tests {
    use super::without_rest;

    #[test]
    fn a_short_last_interval_has_no_rate() {
        let check = |seconds: &[f64], count: usize| {
            assert_eq!(without_rest(seconds, |one| *one), &seconds[..count], "{seconds:?}");
        };
        check(&[], 0);
        check(&[0.01], 1);
        check(&[1.0, 1.0, 0.01], 2);
        check(&[1.0, 0.6], 2);
        check(&[1.0, 0.01, 1.0], 3);
    }
}
