//! Report as text for people.

use std::fmt::Write;

use super::{BenchReport, Distribution, LineTraffic, RequirementResult};
use crate::engine::{DatagramCounts, HandshakeCounts};
use crate::units::{format_bytes, format_count, format_nanos, format_number_of, format_rate};

const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// Formats a report as text.
pub(crate) fn page(report: &BenchReport) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_page(&mut out, report);
    out
}

fn write_page(out: &mut String, report: &BenchReport) -> std::fmt::Result {
    let load = &report.load;
    let rate = match (&load.profile, load.rate_per_second) {
        (Some(profile), _) => format!(" {profile}"),
        (None, Some(rate)) => format!(" loop, {}/s scheduled", format_rate(rate)),
        (None, None) => " loop".to_owned(),
    };
    writeln!(
        out,
        "{}{rate}, {}{}, {:.2} s, {}{}",
        load.pace,
        format_number_of(load.connections, "connection"),
        load.streams(),
        report.duration_seconds,
        report.address,
        if load.tls { ", TLS" } else { "" },
    )?;
    writeln!(out)?;
    writeln!(
        out,
        "  served       {:>12}   {:>12}/s",
        format_count(report.served),
        format_rate(report.served_per_second)
    )?;
    if let (Some(goodput), Some(deadline)) = (report.goodput_per_second, report.deadline_nanos) {
        let share = goodput * report.duration_seconds / report.served.max(1) as f64;
        writeln!(
            out,
            "  in time      {:>12}   {:>12}/s   within {}",
            format!("{:.2} %", share * 100.0),
            format_rate(goodput),
            format_nanos(deadline)
        )?;
    }
    if let Some(precision) = &report.precision {
        writeln!(out, "  precision    {}", precision.sentence())?;
    }
    writeln!(out, "  failed       {:>12}", format_count(report.failures.total()))?;
    for (class, count) in report.failures.iter() {
        let line =
            format!("    {:<18} {:>5}   {}", class.name(), format_count(count), report.format_reasons(class.name()));
        writeln!(out, "{}", line.trim_end())?;
    }
    for (name, count) in [("aborted", report.aborted), ("unfinished", report.unfinished)] {
        if count > 0 {
            writeln!(out, "  {name:<12} {:>12}", format_count(count))?;
        }
    }
    let per_second = |bytes: u64| format_bytes(bytes as f64 / report.duration_seconds.max(1e-9));
    writeln!(
        out,
        "  received     {:>12}   {:>12}/s",
        format_bytes(report.bytes_received as f64),
        per_second(report.bytes_received)
    )?;
    writeln!(out, "  connected    {:>12}", format_count(report.connections))?;
    if let Some(HandshakeCounts { full, resumed, early }) = report.handshakes {
        write!(out, "  handshakes   {:>12}   {:>12} resumed", format_count(full + resumed), format_count(resumed))?;
        if early > 0 {
            write!(out, ", {} with early data", format_count(early))?;
        }
        match report.tls_handshake.as_ref().filter(|times| times.count > 0) {
            Some(times) => {
                let [p50, p99] = [50.0, 99.0].map(|percentile| format_percentile(times, percentile));
                writeln!(out, "   p50 {p50}, p99 {p99}")?;
            }
            None => writeln!(out)?,
        }
    }
    if let Some(datagrams) = &report.datagrams {
        write_datagrams(out, datagrams)?;
    }
    let statuses: Vec<String> =
        report.statuses.iter().map(|(class, count)| format!("{class} {}", format_count(*count))).collect();
    let is_all_success = report.statuses.keys().eq(["2xx"]);
    if !is_all_success && !statuses.is_empty() {
        writeln!(out, "  statuses     {}", statuses.join(", "))?;
    }
    writeln!(out)?;
    write_latencies(out, report)?;
    super::scenarios::write_text(out, &report.scenarios)?;
    super::phases::write_text(out, &report.phases)?;
    if let Some(line) = &report.shared_line {
        writeln!(out, "  line         {}\n", line.sentence())?;
    }
    if let Some(lines) = &report.lines {
        write_lines(out, lines)?;
    }
    write_processors(out, report)?;
    for limit in &report.limits {
        writeln!(out, "  {}", limit.sentence())?;
    }
    for RequirementResult { text, holds, value } in &report.requirements {
        writeln!(
            out,
            "  {} {text} (is {})",
            if *holds { "holds:" } else { "DOES NOT HOLD:" },
            value.map_or_else(|| unknown(report), |value| format_value(text, value))
        )?;
    }
    if report.interrupted {
        writeln!(out, "  INTERRUPTED: these are the measurements so far; nothing passed")?;
    }
    Ok(())
}

fn write_datagrams(out: &mut String, datagrams: &DatagramCounts) -> std::fmt::Result {
    let DatagramCounts { received, sent, receive_calls, send_calls, failed_sends, moves } = *datagrams;
    let a_call = |datagrams: u64, calls: u64| datagrams as f64 / calls.max(1) as f64;
    writeln!(
        out,
        "  datagrams    {:>12}   {:>12} sent   {:.1} a receiving call, {:.1} a sending call",
        format_count(received),
        format_count(sent),
        a_call(received, receive_calls),
        a_call(sent, send_calls),
    )?;
    if failed_sends > 0 {
        writeln!(out, "  FAILED SENDS {:>12}   their datagrams were lost", format_count(failed_sends))?;
    }
    if moves > 0 {
        writeln!(out, "  moves        {:>12}   to another UDP port", format_count(moves))?;
    }
    Ok(())
}

fn write_latencies(out: &mut String, report: &BenchReport) -> std::fmt::Result {
    let columns: Vec<(&str, &Distribution)> = match (&report.latency_uncorrected, &report.lag) {
        (Some(uncorrected), Some(lag)) => {
            vec![("latency", &report.latency), ("from send", uncorrected), ("send delay", lag)]
        }
        _ => vec![("latency", &report.latency)],
    };
    let row = |out: &mut String, name: &str, value: &dyn Fn(&Distribution) -> String| {
        write!(out, "  {name:<12}")?;
        for (_, distribution) in &columns {
            write!(out, " {:>12}", if distribution.count == 0 { "-".into() } else { value(distribution) })?;
        }
        writeln!(out)
    };
    write!(out, "  {:<12}", "")?;
    for (name, _) in &columns {
        write!(out, " {name:>12}")?;
    }
    writeln!(out)?;
    row(out, "mean", &|distribution| format_nanos(distribution.mean_nanos as u64))?;
    row(out, "deviation", &|distribution| format_nanos(distribution.deviation_nanos as u64))?;
    for percentile in PERCENTILES {
        row(out, &format!("p{percentile}"), &|distribution| format_percentile(distribution, percentile))?;
    }
    row(out, "max", &|distribution| format_nanos(distribution.max_nanos))?;
    if let Some(note) = failed_note(report) {
        writeln!(out, "  {note}")?;
    }
    writeln!(out)
}

fn write_lines(out: &mut String, lines: &LineTraffic) -> std::fmt::Result {
    let bits = |rate: f64| format!("{:.1} kbit/s", rate / 1e3);
    let starved = match lines.starved {
        0 => String::new(),
        count => format!(" ({} starved)", format_count(count)),
    };
    let within = match lines.receive_bits_per_second {
        Some(_) => format!(", {:.2} % within 2 % of the rate", lines.within_2_percent_share * 100.0),
        None => String::new(),
    };
    writeln!(
        out,
        "  lines        {}{starved}, {} to {}, median {}{within}\n",
        format_number_of(lines.count, "line"),
        bits(lines.min),
        bits(lines.max),
        bits(lines.median)
    )
}

fn write_processors(out: &mut String, report: &BenchReport) -> std::fmt::Result {
    let client = &report.client;
    writeln!(
        out,
        "  client       {:.2} us of CPU time per request (user {:.2} s, system {:.2} s), busiest thread {:.0} %",
        client.processor_micros_per_request,
        client.user_seconds,
        client.system_seconds,
        client.busiest_thread_share * 100.0
    )?;
    if let Some(server) = &report.server {
        writeln!(
            out,
            "  server       {:.2} us of CPU time per request (user {:.2} s, system {:.2} s), memory up to {}, swap {}",
            server.processor_micros_per_request,
            server.user_seconds,
            server.system_seconds,
            format_bytes(server.memory_bytes_max as f64),
            format_bytes(server.swap_bytes_max as f64)
        )?;
    }
    Ok(())
}

/// Formats a percentile: `unknown` if it falls on a failed request, `-` if there are too few values for it.
pub(crate) fn format_percentile(distribution: &Distribution, percentile: f64) -> String {
    format_latency(distribution.at(percentile), distribution.failed)
}

/// Formats a percentile of requests of which `failed` failed: `unknown` if it falls on one of them, `-` if there are too few.
pub(crate) fn format_latency(nanos: Option<u64>, failed: u64) -> String {
    match nanos {
        Some(nanos) => format_nanos(nanos),
        None if failed > 0 => "unknown".to_owned(),
        None => "-".to_owned(),
    }
}

/// Explains how failed requests rank; `None` if no request failed.
pub(super) fn failed_note(report: &BenchReport) -> Option<String> {
    (report.latency.failed > 0 && report.latency.count > 0).then(|| {
        format!(
            "failed requests ({}) rank as infinitely late in the percentiles; mean, deviation and max leave them out",
            format_count(report.latency.failed)
        )
    })
}

/// Reason why a condition on latency has no value.
fn unknown(report: &BenchReport) -> String {
    match report.served {
        0 => "unknown: nothing was served".to_owned(),
        _ => "unknown: failed requests rank as infinitely late".to_owned(),
    }
}

/// Formats the value of a condition: as a time, if the condition is about latency.
fn format_value(text: &str, value: f64) -> String {
    if text.starts_with(['p', 'm']) {
        format_nanos((value * 1e9) as u64)
    } else if text.contains('%') {
        format!("{:.3} %", value * 100.0)
    } else if text.starts_with("rate") || text.starts_with("goodput") {
        format_rate(value)
    } else {
        format_count(value as u64)
    }
}
