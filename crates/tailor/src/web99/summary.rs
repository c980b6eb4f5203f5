//! Report of a web99 run, and its formats.

use std::collections::BTreeMap;
use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::post_log::PostLogSummary;
use crate::report::BenchReport;
use crate::report::html::document;
use crate::report::plot::escape;
use crate::units::format_count;

/// Report of a web99 run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Web99Report {
    /// Load and results, as `tailor bench` reports them. `passed` is true if the connections were sustained.
    #[serde(flatten)]
    pub bench: BenchReport,
    /// Results of the workload.
    pub web99: Web99Summary,
}

/// Results of the workload.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Web99Summary {
    /// Concurrent connections, each with its own line.
    pub connections: u64,
    /// Directories of the file set.
    pub directories: u32,
    /// True if the run was shorter than SPECweb99's.
    pub is_short: bool,
    /// Minimum rate of a conforming line, in bits per second.
    pub conforming_bits_per_second: u64,
    /// Number of conforming lines.
    pub conforming: u64,
    /// Minimum share of conforming lines for a sustained run.
    pub conforming_share_min: f64,
    /// Failed operations as a share of all that ended.
    pub failed_share: f64,
    /// Share of failed operations at which a run is not sustained.
    pub failed_share_max: f64,
    /// Mean rates of the lines over the run, in bits per second: minimum, median, maximum.
    pub rates_bits_per_second: [f64; 3],
    /// Operations by kind, including the warm-up: sent and served.
    pub operations: BTreeMap<String, [u64; 2]>,
    /// Checks that the checker made before the load.
    pub checked: u64,
    /// Faults that the checker found.
    pub faults: Vec<String>,
    /// Comparison of the post log with the POSTs sent, if the mix has POSTs.
    pub post_log: Option<PostLogSummary>,
    /// True if the server sustained the connections.
    pub is_sustained: bool,
    /// Share of conforming lines in each iteration.
    pub iterations: Vec<f64>,
}

impl Web99Summary {
    /// Conforming lines as a share of all lines.
    pub(crate) fn conforming_share(&self) -> f64 {
        self.conforming as f64 / self.connections.max(1) as f64
    }

    /// True if the checker and the post log found no fault, at any speed.
    pub(crate) fn is_right(&self) -> bool {
        self.faults.is_empty() && self.post_log.as_ref().is_none_or(PostLogSummary::is_right)
    }

    /// Fills in the verdict.
    pub(super) fn judged(mut self) -> Self {
        self.is_sustained = self.is_right()
            && self.conforming_share() >= self.conforming_share_min
            && self.failed_share < self.failed_share_max;
        self
    }

    /// Lines of the text report: name and value.
    fn lines(&self) -> Vec<(String, String)> {
        let kilobits = |bits: f64| format!("{:.1}", bits / 1e3);
        let [min, median, max] = self.rates_bits_per_second.map(kilobits);
        let mut lines = vec![
            ("connections".to_owned(), format_count(self.connections)),
            (
                "conforming".to_owned(),
                format!(
                    "{} ({:.1} %, at least {:.0} % needed) at {} kbit/s or more",
                    format_count(self.conforming),
                    self.conforming_share() * 100.0,
                    self.conforming_share_min * 100.0,
                    kilobits(self.conforming_bits_per_second as f64)
                ),
            ),
            ("line rates".to_owned(), format!("{min} to {max}, median {median} kbit/s")),
            (
                "failed".to_owned(),
                format!("{:.2} % (must be below {} %)", self.failed_share * 100.0, self.failed_share_max * 100.0),
            ),
            ("file set".to_owned(), format!("{} directories", format_count(u64::from(self.directories)))),
        ];
        for (name, [sent, served]) in &self.operations {
            lines.push((name.clone(), format!("{} sent, {} served", format_count(*sent), format_count(*served))));
        }
        if let Some(log) = &self.post_log {
            let PostLogSummary { recorded, lost, doubled, wrong, .. } = log;
            let text = format!("{} records; {lost} lost, {doubled} duplicate, {wrong} wrong", format_count(*recorded));
            lines.push(("post log".to_owned(), text));
            lines.extend(log.fault.as_ref().map(|fault| ("post log".to_owned(), fault.clone())));
        }
        lines.push(("checks".to_owned(), format!("{}, {} faults", format_count(self.checked), self.faults.len())));
        if self.iterations.len() > 1 {
            let shares: Vec<String> = self.iterations.iter().map(|share| format!("{:.1} %", share * 100.0)).collect();
            lines.push(("iterations".to_owned(), format!("{}; this is the worst", shares.join(", "))));
        }
        lines
    }

    /// Verdict as a sentence.
    fn verdict(&self) -> String {
        let form = if self.is_short { " (short form)" } else { "" };
        let not = if self.is_sustained { "" } else { "not " };
        format!("{} connections {not}sustained{form}", format_count(self.connections))
    }
}

impl Web99Report {
    /// Formats the report as text.
    pub(crate) fn to_text(&self) -> String {
        let mut out = format!("web99: {}\n\n", self.web99.verdict());
        for (name, text) in self.web99.lines() {
            // Writing to a string does not fail.
            let _ = writeln!(out, "  {name:<16} {text}");
        }
        for fault in &self.web99.faults {
            let _ = writeln!(out, "  fault: {fault}");
        }
        out + "\n" + &crate::report::text::page(&self.bench)
    }

    /// Formats the report as an HTML page.
    pub(crate) fn to_html(&self) -> String {
        let mut out = format!("<h1>web99: {}</h1>\n<p>Not a SPECweb99 result.</p>\n", escape(&self.web99.verdict()));
        for fault in &self.web99.faults {
            let _ = writeln!(out, "<p class=\"warn\">{}</p>", escape(fault));
        }
        out.push_str("<table class=\"facts\">");
        for (name, text) in self.web99.lines() {
            let _ = writeln!(out, "<tr><td>{}<td>{}", escape(&name), escape(&text));
        }
        out.push_str("</table>\n");
        out.push_str(&crate::report::html::body(&self.bench));
        let date = crate::units::format_date(self.bench.start_unix_seconds);
        document(&format!("web99: {}, {date}", self.bench.address), &out)
    }
}
