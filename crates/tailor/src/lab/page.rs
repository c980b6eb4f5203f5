//! Report of a lab's run as text and HTML.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::endurance;
use super::report::{CompareReport, LabLoadResult, Measurement, SearchResult, ServerResult, SweepStep};
use crate::engine::Failures;
use crate::report::html::document;
use crate::report::plot::{Plot, Series, escape};
use crate::statistics::{PAIRS_MIN, median, paired_ratio};
use crate::units::{format_bytes, format_count, format_nanos, format_rate};

impl CompareReport {
    /// Formats the report as text.
    pub(crate) fn to_text(&self) -> String {
        let mut out = format!("{}: {}\n\n", self.lab, self.about);
        for (title, rows) in self.tables() {
            if let Some(title) = title {
                let _ = writeln!(out, "{title}:");
            }
            write_table(&mut out, &rows);
        }
        for (_, note) in self.notes() {
            let _ = writeln!(out, "{note}");
        }
        out
    }

    /// Formats the report as an HTML page.
    pub(crate) fn to_html(&self) -> String {
        let mut out = format!("<h1>{}</h1>\n<p>{}</p>\n", escape(&self.lab), escape(&self.about));
        for (class, note) in self.notes() {
            let _ = writeln!(out, "<p class=\"{class}\">{}</p>", escape(&note));
        }
        for (title, rows) in self.tables() {
            if let Some(title) = title {
                let _ = writeln!(out, "<h2>{}</h2>", escape(&title));
            }
            out.push_str(&html_table(&rows));
        }
        out.push_str(&self.plots());
        out.push_str("<h2>Environment</h2>");
        out.push_str(&facts_table(&self.environment.facts()));
        for server in self.servers.iter().filter(|server| server.missing.is_none()) {
            let _ = writeln!(out, "<h2>{}</h2><p>{}</p>", escape(&server.name), escape(&server.version));
            let commands = server.backends.iter().chain(&server.helpers).chain([&server.command]);
            let commands: Vec<String> = commands.map(|words| words.join(" ")).collect();
            let _ = writeln!(out, "<pre>{}</pre>", escape(&commands.join("\n")));
            for (name, text) in &server.files {
                let _ = writeln!(out, "<p>{}</p><pre>{}</pre>", escape(name), escape(text));
            }
        }
        let _ = writeln!(out, "<h2>The lab</h2><pre>{}</pre>", escape(&self.lab_text));
        let names: Vec<&str> = self.servers.iter().map(|server| server.name.as_str()).collect();
        let date = crate::units::format_date(self.start_unix_seconds);
        document(&format!("tailor compare {}: {}, {date}", self.lab, names.join(", ")), &out)
    }

    /// Tables with their titles. The first row of each has the column titles; all rows have its length.
    fn tables(&self) -> Vec<(Option<String>, Vec<Vec<String>>)> {
        let mut tables = Vec::new();
        if !self.searches.is_empty() {
            tables.push((Some("Highest value at which all loads passed".to_owned()), self.search_rows()));
        }
        for step in &self.steps {
            tables.push((step.value.clone(), step_rows(step)));
            if let [first, _, ..] = step.servers.as_slice() {
                let value = step.value.as_ref().map_or(String::new(), |value| format!("{value}, "));
                let title = format!("{value}x {} {}", first.name, brackets(self.pairs()));
                tables.push((Some(title), ratio_rows(first, &step.servers[1..])));
            }
        }
        if self.is_endurance {
            tables.push((Some("Endurance".to_owned()), endurance::rows(self)));
        }
        tables
    }

    fn search_rows(&self) -> Vec<Vec<String>> {
        let ratio = format!("x the first {}", brackets(self.pairs()));
        let heads = ["server", "highest", "between", &ratio, "us/request", "served/s", "CPU", "conforming", "memory"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        let base = self.searches.first().map(SearchResult::values).unwrap_or_default();
        for search in &self.searches {
            let ratio = paired_ratio(&search.values(), &base);
            let highest = format_count(median(&search.values()) as u64);
            let mut row = vec![search.name.clone(), highest, search.bounds(), ratio.to_string()];
            // No value passed, so no measurement fills these cells.
            row.extend(search.at_best().map_or_else(|| vec![String::new(); 5], measured_cells));
            rows.push(row);
        }
        rows
    }

    /// Notes on the run: class of urgency, and text.
    fn notes(&self) -> Vec<(&'static str, String)> {
        let mut notes = Vec::new();
        if self.interrupted {
            notes.push(("warn", "Interrupted: these are the measurements so far; nothing passed.".to_owned()));
        }
        if self.is_emulated {
            let text = "The servers ran in an emulator, not by KVM: ITS TIME PROVES NOTHING. Compare kernels by --mode instructions.";
            notes.push(("warn", text.to_owned()));
        }
        notes.extend(self.control_note());
        notes.extend(self.pairs_note());
        for server in &self.servers {
            if let Some(program) = &server.missing {
                notes.push(("note", format!("{}: skipped, {program} is not installed", server.name)));
            }
        }
        let measured = self
            .steps
            .iter()
            .flat_map(|step| &step.servers)
            .flat_map(|server| server.measurements.iter().map(|measurement| (&server.name, measurement)));
        let tried =
            self.searches.iter().flat_map(|search| search.tries.iter().map(|it| (&search.name, &it.measurement)));
        let (mut limits, mut faults) = (Vec::new(), Vec::new());
        let mut failed: BTreeMap<&String, Failures> = BTreeMap::new();
        for (name, load) in measured.chain(tried).flat_map(|(name, it)| it.loads.iter().map(move |load| (name, load))) {
            limits.extend(load.limits.iter().map(|limit| {
                let class = if limit.is_warning() { "warn" } else { "note" };
                (class, format!("{name}: {}", limit.sentence()))
            }));
            if load.web99.is_none() {
                failed.entry(name).or_default().merge(&load.failures);
            }
            let web99 = load.web99.iter().filter(|web99| !web99.is_right());
            faults.extend(
                web99.map(|web99| format!("{name}: incorrect responses: {:?} {:?}", web99.faults, web99.post_log)),
            );
        }
        faults.dedup();
        notes.extend(faults.into_iter().map(|fault| ("warn", fault)));
        for (name, failures) in failed.into_iter().filter(|(_, failures)| failures.total() > 0) {
            let classes: Vec<_> =
                failures.iter().map(|(class, count)| format!("{} {}", format_count(count), class.name())).collect();
            notes.push((
                "warn",
                format!("{name}: requests failed, so its figures prove nothing: {}", classes.join(", ")),
            ));
        }
        limits.sort();
        limits.dedup_by(|a, b| a.1.split(' ').take(8).eq(b.1.split(' ').take(8)));
        notes.extend(limits);
        notes
    }

    fn control_note(&self) -> Option<(&'static str, String)> {
        let control = self.control.filter(|_| !self.is_endurance)?;
        let percent = self.control_max() * 100.0;
        let text = format!("A/A control: the first server against itself {control}");
        if self.is_controlled() {
            return Some(("note", format!("{text}: within {percent:.0} %")));
        }
        let off = self.steps.iter().filter(|step| !step.is_controlled(self.control_margin));
        let off: Vec<String> =
            off.filter_map(|step| Some(format!("{}: {}", step.value.as_ref()?, step.control?))).collect();
        let place = if off.is_empty() { String::new() } else { format!(" at {}", off.join(", ")) };
        Some((
            "warn",
            format!(
                "{text}: not all of it is within {percent:.0} %{place}, so DIFFERENCES OF THIS RUN PROVE NOTHING{}",
                if off.is_empty() { "" } else { " THERE" }
            ),
        ))
    }

    /// Says that there are too few pairs for intervals, or that the order of the servers is not balanced.
    fn pairs_note(&self) -> Option<(&'static str, String)> {
        let pairs = self.pairs();
        let advice = format!("run at least {PAIRS_MIN} rounds (--rounds {PAIRS_MIN})");
        match pairs {
            _ if self.is_endurance => None,
            1 => Some(("note", format!("One round shows neither noise nor the effect of the order: {advice}"))),
            2..PAIRS_MIN => Some((
                "note",
                format!(
                    "{pairs} pairs are too few for a confidence interval; round brackets hold their range: {advice}"
                ),
            )),
            _ => None,
        }
    }

    fn plots(&self) -> String {
        let mut out = String::new();
        let numbers: Vec<Option<f64>> =
            self.steps.iter().map(|step| step.value.as_ref().and_then(|value| value.parse().ok())).collect();
        if self.steps.len() > 1 && numbers.iter().all(Option::is_some) {
            let series = |value: fn(&ServerResult) -> f64| self.sweep_series(&numbers, value);
            let x_marks: Vec<(f64, String)> =
                numbers.iter().flatten().map(|number| (number.max(1.0).log10(), format!("{number}"))).collect();
            let rate = |server: &ServerResult| server.load_median(0, |load| load.served_per_second);
            let format_y = |value: f64| format_count(value as u64);
            out += &Plot {
                title: "Served per second",
                x_label: "value",
                series: series(rate),
                x_marks: x_marks.clone(),
                format_y,
            }
            .to_html();
            let processor = |server: &ServerResult| median(&server.processor());
            let format_y = |value: f64| format!("{value:.0} us");
            out +=
                &Plot { title: "CPU time per request", x_label: "value", series: series(processor), x_marks, format_y }
                    .to_html();
        }
        if let [step] = self.steps.as_slice() {
            out += &measurements_plot(step);
        }
        out + &endurance::plots(self)
    }

    /// Builds a line for each server over the values of the sweep, which have a logarithmic axis.
    fn sweep_series(&self, numbers: &[Option<f64>], value: fn(&ServerResult) -> f64) -> Vec<Series<'_>> {
        let names = self.steps[0].servers.iter().map(|server| server.name.as_str());
        names
            .enumerate()
            .map(|(index, name)| {
                let points = self.steps.iter().zip(numbers).filter_map(|(step, number)| {
                    Some((number.unwrap_or(1.0).max(1.0).log10(), value(step.servers.get(index)?)))
                });
                Series { name, points: points.collect() }
            })
            .collect()
    }
}

/// Meaning of the brackets after a ratio.
fn brackets(pairs: u64) -> String {
    match pairs {
        PAIRS_MIN.. => "[95 %]".to_owned(),
        2.. => format!("(range of {pairs} pairs)"),
        _ => "(one pair)".to_owned(),
    }
}

/// Plot of CPU time per request over the measurements; empty if no server has at least three.
fn measurements_plot(step: &SweepStep) -> String {
    let points = |server: &ServerResult| (1..).map(f64::from).zip(server.processor()).collect::<Vec<_>>();
    let series = step.servers.iter().map(|server| Series { name: &server.name, points: points(server) });
    let series: Vec<Series<'_>> = series.collect();
    if series.iter().all(|series| series.points.len() < 3) {
        return String::new();
    }
    let format_y = |value: f64| format!("{value:.0} us");
    let title = "CPU time per request, by measurement";
    Plot { title, x_label: "measurement", series, x_marks: Vec::new(), format_y }.to_html()
}

/// Cells of the measurement at the highest value: CPU time per request, rate, CPU share, lines, memory.
fn measured_cells(measurement: &Measurement) -> Vec<String> {
    let rate: f64 = measurement.loads.iter().map(|load| load.served_per_second).sum();
    let share = measurement.loads.first().and_then(|load| load.conforming_lines_share);
    vec![
        format!("{:.2}", measurement.processor_micros_per_request()),
        format_rate(rate),
        format!("{:.0} %", measurement.processor_share() * 100.0),
        share.map_or(String::new(), |share| format!("{:.1} %", share * 100.0)),
        format_bytes(measurement.memory_bytes_max as f64),
    ]
}

/// Table with the column titles, then a row for each server and load.
fn step_rows(step: &SweepStep) -> Vec<Vec<String>> {
    let has_lines = step.servers.iter().flat_map(|server| &server.measurements).flat_map(|it| &it.loads);
    let has_lines = has_lines.into_iter().any(|load| load.conforming_lines_share.is_some());
    let mut heads =
        vec!["server", "us/request", "user + system us", "served/s", "p50", "p99", "memory + swap", "failed"];
    heads.extend(has_lines.then_some("conforming"));
    let mut rows = vec![heads.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for server in &step.servers {
        let loads = server.measurements.first().map_or(0, |it| it.loads.len());
        for index in 0..loads {
            let has_served = server.load_median(index, |load| load.served as f64) > 0.0;
            let nanos = |value: fn(&LabLoadResult) -> f64| match server.load_median(index, value) {
                _ if !has_served => "-".to_owned(),
                value if value.is_finite() => format_nanos(value as u64),
                _ => "unknown".to_owned(),
            };
            let failed = server.measurements.iter().filter_map(|it| it.loads.get(index));
            let failed: u64 = failed.map(|load| load.failures.total()).sum();
            // CPU time and memory belong to the server under all loads together.
            let [processor, parts, memory] = if index == 0 { server_cells(server) } else { Default::default() };
            let mut row = vec![
                load_name(server, index),
                processor,
                parts,
                format_rate(server.load_median(index, |load| load.served_per_second)),
                nanos(LabLoadResult::p50),
                nanos(LabLoadResult::p99),
                memory,
                format_count(failed),
            ];
            if has_lines {
                let share = server.load_median(index, |load| load.conforming_lines_share.unwrap_or(f64::NAN));
                row.push(if share.is_nan() { String::new() } else { format!("{:.1} %", share * 100.0) });
            }
            rows.push(row);
        }
    }
    rows
}

/// Table of paired ratios to the first server: the column titles, then a row for each other server and load.
fn ratio_rows(first: &ServerResult, others: &[ServerResult]) -> Vec<Vec<String>> {
    let mut rows = vec![["server", "us/request", "served/s", "p50", "p99"].map(str::to_owned).to_vec()];
    for server in others {
        let loads = server.measurements.first().map_or(0, |it| it.loads.len());
        for index in 0..loads {
            let of_load = |value: fn(&LabLoadResult) -> f64| {
                let values = |it: &ServerResult| it.values(|it| it.loads.get(index).map_or(0.0, value));
                paired_ratio(&values(server), &values(first)).to_string()
            };
            let processor = match index {
                0 => paired_ratio(&server.processor(), &first.processor()).to_string(),
                _ => String::new(),
            };
            rows.push(vec![
                load_name(server, index),
                processor,
                of_load(|load| load.served_per_second),
                of_load(LabLoadResult::p50),
                of_load(LabLoadResult::p99),
            ]);
        }
    }
    rows
}

/// Name of the server, and of the load if there are several.
fn load_name(server: &ServerResult, index: usize) -> String {
    let loads = server.measurements.first().map_or(&[][..], |it| &it.loads);
    match (index, loads) {
        (0, [_]) => server.name.clone(),
        (0, [load, ..]) => format!("{}: {}", server.name, load.name),
        _ => loads.get(index).map_or(String::new(), |load| format!("  {}", load.name)),
    }
}

/// Cells of CPU time per request, its two parts, and memory.
fn server_cells(server: &ServerResult) -> [String; 3] {
    [
        format!("{:.2}", median(&server.processor())),
        format!(
            "{:.2} + {:.2}",
            server.median(|it| it.user_micros_per_request),
            server.median(|it| it.system_micros_per_request)
        ),
        format!(
            "{} + {}",
            format_bytes(server.median(|it| it.memory_bytes_max as f64)),
            format_bytes(server.median(|it| it.swap_bytes_max as f64))
        ),
    ]
}

/// Writes a table with columns as narrow as their cells allow; the first column is left-aligned.
pub(super) fn write_table(out: &mut String, rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string does not fail.
            let _ = match column {
                0 => write!(line, "  {cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// Builds a table that scrolls horizontally where it is wider than the page.
pub(super) fn html_table(rows: &[Vec<String>]) -> String {
    let mut out = "<div class=\"wide\"><table>".to_owned();
    for (index, row) in rows.iter().enumerate() {
        let cell = if index == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|text| format!("<{cell}>{}</{cell}>", escape(text))).collect();
        // Writing to a string does not fail.
        let _ = writeln!(out, "<tr>{cells}</tr>");
    }
    out + "</table></div>\n"
}

/// Builds a table with a name and a value in each row.
pub(super) fn facts_table(facts: &[(String, String)]) -> String {
    let row = |(name, value): &(String, String)| format!("<tr><td>{}<td>{}\n", escape(name), escape(value));
    format!("<table class=\"facts\">{}</table>\n", facts.iter().map(row).collect::<String>())
}
