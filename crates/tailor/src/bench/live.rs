//! Live view of a run on a terminal: curves of rate and latency, a histogram of latency, and failures by class.

use std::collections::VecDeque;
use std::fmt::Write as _;

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Bar, BarChart, Block, Borders, Paragraph, Row, Sparkline, Table};
use ratatui::{Frame, Terminal};

use super::terminal::OtherScreen;
use crate::engine::{Interval, IntervalRecord, LoadPlan, TargetAddress};
use crate::report::IntervalReport;
use crate::units::{format_bytes, format_count, format_nanos, format_number_of, format_rate};

/// Intervals in a curve; the widest terminals have fewer columns.
const POINTS_MAX: usize = 512;
/// Columns of the failures beside the histogram.
const FAILURES_WIDTH: u16 = 34;
/// Largest number of bars in the histogram.
const BARS_MAX: u16 = 16;

/// View on standard error; dropping it restores the terminal.
pub(super) struct LiveView {
    terminal: Terminal<OtherScreen>,
    figures: LiveFigures,
}

/// Figures that the view shows.
#[derive(Debug, Default)]
struct LiveFigures {
    title: String,
    record: IntervalRecord,
    rates: VecDeque<u64>,
    p99_nanos: VecDeque<u64>,
    last: Option<IntervalReport>,
}

impl LiveView {
    /// Shows an empty view on the terminal's other screen. Interrupts still end the run.
    ///
    /// # Errors
    /// Standard error is no terminal, or one without a size.
    pub(super) fn new(plan: &LoadPlan) -> std::io::Result<Self> {
        let address = match &plan.address {
            TargetAddress::Tcp(address) => address.to_string(),
            TargetAddress::Unix(path) => path.display().to_string(),
        };
        let connections = format_number_of(plan.connections as u64, "connection");
        let title = format!("tailor: {address}, {}, {connections}", plan.protocol());
        let terminal = Terminal::new(OtherScreen::enter()?)?;
        let mut view = Self { terminal, figures: LiveFigures { title, ..LiveFigures::default() } };
        view.draw();
        Ok(view)
    }

    /// Shows an interval that ended.
    pub(super) fn show(&mut self, interval: &Interval, report: &IntervalReport) {
        self.figures.add(interval, report);
        self.draw();
    }

    /// Draws the figures. A run continues even if its view cannot be written.
    fn draw(&mut self) {
        let _ = self.terminal.draw(|frame| self.figures.draw(frame));
    }
}

impl LiveFigures {
    fn add(&mut self, interval: &Interval, report: &IntervalReport) {
        self.record.merge(&interval.record);
        self.rates.push_back(report.served_per_second as u64);
        self.p99_nanos.push_back(report.p99_nanos);
        for values in [&mut self.rates, &mut self.p99_nanos] {
            if values.len() > POINTS_MAX {
                values.pop_front();
            }
        }
        self.last = Some(report.clone());
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let rows = [Constraint::Length(2), Constraint::Fill(1), Constraint::Fill(1), Constraint::Fill(2)];
        let [head, rate, p99, bottom] = Layout::vertical(rows).areas(frame.area());
        let columns = [Constraint::Fill(1), Constraint::Length(FAILURES_WIDTH)];
        let [histogram, failures] = Layout::horizontal(columns).spacing(2).areas(bottom);
        frame.render_widget(Paragraph::new(vec![Line::from(self.title.as_str()).bold(), self.facts().into()]), head);

        let last = self.last.as_ref();
        let [now, max] =
            [last.map_or(0.0, |last| last.served_per_second), maximum(&self.rates) as f64].map(format_rate);
        let title = format!("served per second: {now}, maximum {max}");
        frame.render_widget(curve(&self.rates, rate, title).green(), rate);
        let [now, max] = [last.map_or(0, |last| last.p99_nanos), maximum(&self.p99_nanos)].map(format_nanos);
        let title = format!("p99 of an interval: {now}, maximum {max}");
        frame.render_widget(curve(&self.p99_nanos, p99, title).yellow(), p99);
        frame.render_widget(self.histogram(histogram.height.saturating_sub(1)), histogram);
        frame.render_widget(self.failures(), failures);
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

    /// Served requests by latency, with a bar for each step of the same ratio.
    fn histogram(&self, rows: u16) -> BarChart<'_> {
        let latency = &self.record.latency;
        let parts = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)]
            .map(|(name, quantile)| format!("{name} {}", format_nanos(latency.value_at_quantile(quantile))));
        let title = format!("latency: {}", parts.join(", "));
        let bar = |(low, high)| {
            let count = latency.count_between(low, high);
            let label = Line::from(format!("{:>8}", format_nanos(high)));
            Bar::default().label(label).value(count).text_value(format_count(count))
        };
        let bins = match latency.is_empty() {
            true => Vec::new(),
            false => bins(latency.min().max(1), latency.max().max(1), rows.clamp(1, BARS_MAX)),
        };
        let bars: Vec<Bar<'_>> = bins.into_iter().map(bar).collect();
        BarChart::horizontal(bars).bar_gap(0).bar_style(Style::new().cyan()).block(titled(title))
    }

    fn failures(&self) -> Table<'_> {
        let failures = self.record.failures.iter();
        let row = |(class, count): (crate::engine::FailureClass, u64)| {
            Row::new([class.name().to_owned(), format!("{:>12}", format_count(count))]).red()
        };
        let title = format!("failed: {}", format_count(self.record.failures.total()));
        Table::new(failures.map(row), [Constraint::Fill(1), Constraint::Length(12)]).block(titled(title))
    }
}

/// The newest values that the area has room for.
fn curve(values: &VecDeque<u64>, area: Rect, title: String) -> Sparkline<'static> {
    let skipped = values.len().saturating_sub(usize::from(area.width));
    let newest: Vec<u64> = values.iter().skip(skipped).copied().collect();
    Sparkline::default().data(newest).block(titled(title))
}

fn titled(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(title)
}

fn maximum(values: &VecDeque<u64>) -> u64 {
    values.iter().copied().max().unwrap_or(0)
}

/// Ranges of the same ratio from the smallest value to the greatest.
fn bins(min: u64, max: u64, count: u16) -> Vec<(u64, u64)> {
    let ratio = max as f64 / min as f64;
    let edge = |index: u16| (min as f64 * ratio.powf(f64::from(index) / f64::from(count))).round() as u64;
    let bins = (0..count).map(|index| (edge(index) + u64::from(index > 0), edge(index + 1)));
    bins.filter(|(low, high)| low <= high).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::engine::{FailureClass, FailureReason};

    fn report(second: usize) -> IntervalReport {
        IntervalReport {
            start_seconds: second as f64 - 1.0,
            end_seconds: second as f64,
            served: 1000,
            served_per_second: 1000.0,
            failures: crate::engine::Failures::default(),
            bytes_received: 0,
            p50_nanos: 1_990_000,
            p99_nanos: 2_000_000,
            max_nanos: 3_000_000,
            client_processor_share: 0.25,
            server_user_share: Some(0.5),
            server_system_share: Some(0.1),
            server_memory_bytes: Some(1 << 20),
            server_own_memory_bytes: Some(1 << 19),
        }
    }

    fn screen(figures: &LiveFigures, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| figures.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_screen() {
        let mut figures = LiveFigures { title: "tailor: 127.0.0.1:80".to_owned(), ..LiveFigures::default() };
        assert!(screen(&figures, 80, 24).contains("waiting for the first interval"));
        for second in 1..=100 {
            let mut interval = Interval { end_seconds: second as f64, ..Interval::default() };
            interval.record.served = 1000;
            interval.record.latency.record_n(1_000_000, 10).unwrap();
            interval.record.latency.record_n(2_000_000, 990).unwrap();
            interval.record.fail(FailureClass::TimeOut, FailureReason::Unknown);
            figures.add(&interval, &report(second));
        }
        let text = screen(&figures, 80, 24);
        for expect in [
            "tailor: 127.0.0.1:80",
            "100 s   100,000 served   client 25 % of a CPU   server 60 % of a CPU, 1.00 MiB",
            "served per second: 1,000, maximum 1,000",
            "p99 of an interval: 2.00 ms, maximum 2.00 ms",
            "latency: p50 2.00 ms",
            "99,000",
            "failed: 100",
            "time-out",
            "████████████████████████████████████████████████████████████████████████████████",
        ] {
            assert!(text.contains(expect), "{expect}: {text}");
        }
        for (width, height) in [(1, 1), (20, 5), (300, 100)] {
            assert!(!screen(&figures, width, height).is_empty(), "any size");
        }
    }

    #[test]
    fn bars_cover_all_values_once() {
        assert_eq!(bins(100, 1_000_000, 4), [(100, 1_000), (1_001, 10_000), (10_001, 100_000), (100_001, 1_000_000)]);
        assert_eq!(bins(7, 7, 3).iter().filter(|(low, high)| (low..=high).contains(&&7)).count(), 1);
    }
}
