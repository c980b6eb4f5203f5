//! What a run showed, and its forms.

use std::collections::BTreeMap;
use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::post_log::PostLogSummary;
use crate::report::BenchReport;
use crate::report::html::document;
use crate::report::plot::escape;
use crate::units::format_count;

/// The report of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Web99Report {
    /// What the load was and what it met, as `tailor bench` reports it. `passed` says whether the connections were sustained.
    #[serde(flatten)]
    pub bench: BenchReport,
    /// What is of the workload.
    pub web99: Web99Summary,
}

/// What a run showed of the workload.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Web99Summary {
    /// Simultaneous connections, each a line.
    pub connections: u64,
    /// Directories of the file set.
    pub directories: u32,
    /// Whether the run was shorter than the original's.
    pub is_short: bool,
    /// The rate from which a line conforms, in bits per second.
    pub conforming_bits_per_second: u64,
    /// Lines that conform.
    pub conforming: u64,
    /// The least share of lines that must.
    pub conforming_share_min: f64,
    /// Failed operations as a share of all that came to an end.
    pub failed_share: f64,
    /// The share that it must be less than.
    pub failed_share_max: f64,
    /// Mean rates of the lines over the run, in bits per second: least, median, greatest.
    pub rates_bits_per_second: [f64; 3],
    /// Operations by kind, the warm-up included: sent and served.
    pub operations: BTreeMap<String, [u64; 2]>,
    /// What the checker looked at before the load.
    pub checked: u64,
    /// What it found wrong.
    pub faults: Vec<String>,
    /// The post log beside what was sent, if POSTs were.
    pub post_log: Option<PostLogSummary>,
    /// Whether the server sustained the connections.
    pub is_sustained: bool,
    /// The conforming share of each iteration.
    pub iterations: Vec<f64>,
}

impl Web99Summary {
    /// Lines that conform, as a share of all.
    pub fn conforming_share(&self) -> f64 {
        self.conforming as f64 / self.connections.max(1) as f64
    }

    /// Whether the server did what the workload asks of it, however fast.
    pub fn is_right(&self) -> bool {
        self.faults.is_empty() && self.post_log.as_ref().is_none_or(PostLogSummary::is_right)
    }

    /// With the verdict filled in.
    pub(super) fn judged(mut self) -> Self {
        self.is_sustained = self.is_right()
            && self.conforming_share() >= self.conforming_share_min
            && self.failed_share < self.failed_share_max;
        self
    }

    /// Lines for a person to read: a name and what is to be said of it.
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

    /// In a sentence.
    fn verdict(&self) -> String {
        let form = if self.is_short { " (short form)" } else { "" };
        let not = if self.is_sustained { "" } else { "not " };
        format!("{} connections {not}sustained{form}", format_count(self.connections))
    }
}

impl Web99Report {
    /// The report as text.
    pub fn to_text(&self) -> String {
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

    /// The report as an HTML page.
    pub fn to_html(&self) -> String {
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
        document(&format!("web99: {}", self.bench.address), &out)
    }
}
