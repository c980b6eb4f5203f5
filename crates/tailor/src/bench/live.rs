//! Live view of a run on a terminal: curves of rate and latency, percentiles, and failures.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;

use crate::engine::{Interval, IntervalRecord, LoadPlan, TargetAddress};
use crate::report::IntervalReport;
use crate::units::{format_bytes, format_count, format_nanos, format_rate};

/// Intervals in a curve; a terminal of 80 columns has room for them.
const POINTS_MAX: usize = 76;
/// Rows of a curve.
const ROWS: usize = 4;
/// Characters for the eighths of a row.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Switch to the terminal's other screen, and back. What was on the screen returns with it.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Position at the first character; what follows the cursor is cleared line by line, so the view does not flicker.
const HOME: &str = "\x1b[H";

/// View on standard error; dropping it restores the terminal.
pub(super) struct LiveView(LiveFigures);

/// Figures that the view shows.
#[derive(Debug, Default)]
struct LiveFigures {
    title: String,
    record: IntervalRecord,
    rates: VecDeque<f64>,
    p99_nanos: VecDeque<f64>,
    last: Option<IntervalReport>,
}

impl LiveView {
    /// Shows an empty view. Interrupts still end the run.
    pub(super) fn new(plan: &LoadPlan) -> Self {
        let address = match &plan.address {
            TargetAddress::Tcp(address) => address.to_string(),
            TargetAddress::Unix(path) => path.display().to_string(),
        };
        let connections = format_count(plan.connections as u64);
        let title = format!("{address}, {}, {connections} connections", plan.protocol());
        let view = Self(LiveFigures { title, ..LiveFigures::default() });
        show(&format!("{ENTER}{}", view.0.screen()));
        view
    }

    /// Shows an interval that ended.
    pub(super) fn show(&mut self, interval: &Interval, report: &IntervalReport) {
        self.0.add(interval, report);
        show(&self.0.screen());
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        show(LEAVE);
    }
}

/// Writes to the terminal. A run continues even if its view cannot be written.
fn show(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

impl LiveFigures {
    fn add(&mut self, interval: &Interval, report: &IntervalReport) {
        self.record.merge(&interval.record);
        self.rates.push_back(report.served_per_second);
        self.p99_nanos.push_back(report.p99_nanos as f64);
        for values in [&mut self.rates, &mut self.p99_nanos] {
            if values.len() > POINTS_MAX {
                values.pop_front();
            }
        }
        self.last = Some(report.clone());
    }

    /// The whole screen. Each line clears what was after it.
    fn screen(&self) -> String {
        let lines = self.lines();
        lines.iter().fold(HOME.to_owned(), |out, line| out + line + "\x1b[K\r\n") + "\x1b[J"
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("tailor: {}", self.title), self.facts(), String::new()];
        let (rate, p99) = self.last.as_ref().map_or((0.0, 0), |last| (last.served_per_second, last.p99_nanos));
        lines.push(format!("served per second: {}, maximum {}", format_rate(rate), format_rate(maximum(&self.rates))));
        lines.extend(curve(&self.rates));
        let max = format_nanos(maximum(&self.p99_nanos) as u64);
        lines.push(format!("p99 of an interval: {}, maximum {max}", format_nanos(p99)));
        lines.extend(curve(&self.p99_nanos));
        let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];
        let mut latency = "latency:".to_owned();
        for (name, quantile) in quantiles {
            let _ = write!(latency, "  {name} {}", format_nanos(self.record.latency.value_at_quantile(quantile)));
        }
        lines.extend([latency, String::new(), format!("failed: {}", format_count(self.record.failures.total()))]);
        let failures = self.record.failures.iter();
        lines.extend(failures.map(|(class, count)| format!("  {:<20} {:>12}", class.name(), format_count(count))));
        lines
    }

    fn facts(&self) -> String {
        let Some(last) = &self.last else { return "waiting for the first interval".to_owned() };
        let mut facts = format!(
            "{:.0} s   {} served   client {:.0} % of a CPU",
            last.end_seconds,
            format_count(self.record.served),
            last.client_processor_share * 100.0
        );
        if let (Some(user), Some(system)) = (last.server_user_share, last.server_system_share) {
            let _ = write!(facts, "   server {:.0} % of a CPU", (user + system) * 100.0);
        }
        if let Some(bytes) = last.server_memory_bytes {
            let _ = write!(facts, ", {}", format_bytes(bytes as f64));
        }
        facts
    }
}

fn maximum(values: &VecDeque<f64>) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// Rows of a curve, the highest first. The greatest value fills all of them.
fn curve(values: &VecDeque<f64>) -> Vec<String> {
    let unit = maximum(values).max(1e-9) / (ROWS * 8) as f64;
    let row = |row: usize| {
        let cell = |value: &f64| EIGHTHS[((value / unit).round() as usize).saturating_sub(row * 8).min(8)];
        format!("  {}", values.iter().map(cell).collect::<String>())
    };
    (0..ROWS).rev().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{FailureClass, FailureReason};

    #[test]
    fn curves() {
        assert_eq!(curve(&[0.0, 8.0, 32.0, 9.0].into()), ["    █ ", "    █ ", "    █▁", "   ███"]);
        assert_eq!(curve(&VecDeque::new()), ["  "; ROWS]);
    }

    #[test]
    fn a_screen() {
        let mut figures = LiveFigures { title: "127.0.0.1:80".to_owned(), ..LiveFigures::default() };
        assert!(figures.screen().contains("waiting for the first interval"));
        for second in 1..=POINTS_MAX + 10 {
            let mut interval = Interval { end_seconds: second as f64, ..Interval::default() };
            interval.record.served = 1000;
            interval.record.latency.record_n(2_000_000, 1000).unwrap();
            interval.record.fail(FailureClass::TimeOut, FailureReason::Unknown);
            let report = IntervalReport {
                start_seconds: second as f64 - 1.0,
                end_seconds: second as f64,
                served: 1000,
                served_per_second: 1000.0,
                failures: interval.record.failures.clone(),
                bytes_received: 0,
                p50_nanos: 1_990_000,
                p99_nanos: 2_000_000,
                max_nanos: 3_000_000,
                client_processor_share: 0.25,
                server_user_share: Some(0.5),
                server_system_share: Some(0.1),
                server_memory_bytes: Some(1 << 20),
                server_own_memory_bytes: Some(1 << 19),
            };
            figures.add(&interval, &report);
        }
        let screen = figures.screen();
        for expect in [
            "tailor: 127.0.0.1:80",
            "86 s   86,000 served   client 25 % of a CPU   server 60 % of a CPU, 1.00 MiB",
            "served per second: 1,000, maximum 1,000",
            "p99 of an interval: 2.00 ms, maximum 2.00 ms",
            "failed: 86",
            "time-out",
        ] {
            assert!(screen.contains(expect), "{expect}: {screen}");
        }
        assert!(figures.lines().iter().all(|line| line.chars().count() <= 80), "{screen}");
        assert!(figures.lines().len() <= 24, "a terminal has 24 lines");
    }
}
