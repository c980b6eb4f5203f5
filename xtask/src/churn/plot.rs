//! Plot of a run: response times, and the times of faults.

use std::fmt::Write;

use serde_json::Value;

use crate::charts::svg::{FONT, THEMES, Theme, escape, text};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 112.0;
const RIGHT: f64 = 744.0;
const TOP: f64 = 76.0;
const BOTTOM: f64 = 300.0;
/// Top of the first row of faults, and the height of each.
const FAULTS_TOP: f64 = 336.0;
const FAULT_HEIGHT: f64 = 22.0;
const HEIGHT: f64 = FAULTS_TOP + 4.0 * FAULT_HEIGHT + 12.0;

/// Kinds of faults, in the order of their rows.
const KINDS: [&str; 4] = ["kill", "cut off", "store stopped", "store wiped"];

/// Plots of a result, one for each theme, with its name.
pub(super) fn draw(result: &Value) -> Vec<(&'static str, String)> {
    THEMES.iter().map(|theme| (theme.name, draw_with(result, theme))).collect()
}

fn draw_with(result: &Value, theme: &Theme) -> String {
    let seconds = result["seconds"].as_f64().unwrap_or(1.0);
    let series = result["series"].as_array().map_or(&[][..], Vec::as_slice);
    let most = series.iter().filter_map(|item| item["p99_ms"].as_f64()).fold(1.0, f64::max);
    let top = nice(most);
    let x = |second: f64| LEFT + (RIGHT - LEFT) * second / seconds;
    let y = |milliseconds: f64| BOTTOM - (BOTTOM - TOP) * (milliseconds / top).min(1.0);
    let title = "Three instances and faults at random";
    let sum = |name: &str| -> u64 { series.iter().filter_map(|item| item[name].as_u64()).sum() };
    let subtitle = format!(
        "Response times of {} requests in {:.0} minutes: {} failed. {} handshakes: {} failed. {} of {} purges lost.",
        sum("requests"),
        seconds / 60.0,
        sum("failed"),
        sum("handshakes"),
        sum("handshakes_failed"),
        result["purges"]["lost"].as_u64().unwrap_or(0),
        result["purges"]["ordered"].as_u64().unwrap_or(0),
    );
    let mut body = String::new();
    text(&mut body, 16.0, 32.0, "start", theme.text, "font-size=\"17\" font-weight=\"600\"", title);
    text(&mut body, 16.0, 54.0, "start", theme.muted, "font-size=\"13\"", &subtitle);
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        let _ = writeln!(body, "<path d=\"M{LEFT} {0:.1}H{RIGHT}\" stroke=\"{1}\"/>", y(value), theme.reference);
        let label = if part == 0 { "0".to_owned() } else { format!("{value} ms") };
        text(&mut body, LEFT - 6.0, y(value) + 4.0, "end", theme.muted, "font-size=\"12\"", &label);
    }
    for part in 0..=6 {
        let second = seconds * f64::from(part) / 6.0;
        let label = if seconds < 600.0 { format!("{second:.0} s") } else { format!("{:.0} min", second / 60.0) };
        let anchor = if part == 6 { "end" } else { "middle" };
        text(&mut body, x(second), BOTTOM + 18.0, anchor, theme.muted, "font-size=\"12\"", &label);
    }
    for (name, color, label) in [("p99_ms", theme.warning, "p99"), ("p50_ms", theme.ours, "p50")] {
        let points: Vec<(f64, f64)> =
            series.iter().filter_map(|item| Some((x(item["at"].as_f64()?), y(item[name].as_f64()?)))).collect();
        let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>",
            line.join(" ")
        );
        if let Some((_, y)) = points.last() {
            text(&mut body, RIGHT, y - 6.0, "end", color, "font-size=\"13\" font-weight=\"600\"", label);
        }
    }
    let faults = result["faults"].as_array().map_or(&[][..], Vec::as_slice);
    for (row, kind) in KINDS.iter().enumerate() {
        let middle = FAULTS_TOP + FAULT_HEIGHT * row as f64;
        text(&mut body, LEFT - 8.0, middle + 4.0, "end", theme.muted, "font-size=\"12\"", kind);
        for fault in faults.iter().filter(|fault| fault["kind"] == *kind) {
            let (Some(from), Some(to)) = (fault["from"].as_f64(), fault["to"].as_f64()) else { continue };
            let width = (x(to) - x(from)).max(1.5);
            let _ = writeln!(
                body,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"12\" fill=\"{}\"/>",
                x(from),
                middle - 6.0,
                theme.muted
            );
        }
    }
    let mut file = String::from("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" ");
    let _ = write!(file, "width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" ");
    let _ = writeln!(file, "aria-labelledby=\"title description\" font-family=\"{FONT}\">");
    let _ = writeln!(
        file,
        "<title id=\"title\">{}</title>\n<desc id=\"description\">{}</desc>",
        escape(title),
        escape(&subtitle)
    );
    let _ = writeln!(file, "<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{}\"/>", theme.background);
    file + &body + "</svg>\n"
}

/// Round number that is not smaller, with quarters that are round, too.
fn nice(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 8.0, 10.0].iter().map(|part| part * power).find(|round| *round >= value).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_and_times_are_drawn() {
        let result = serde_json::json!({
            "seconds": 60,
            "series": [{ "at": 0, "requests": 7, "failed": 0, "p50_ms": 1.0, "p99_ms": 9.0, "handshakes": 2, "handshakes_failed": 0 },
                { "at": 30, "requests": 3, "failed": 0, "p50_ms": null, "p99_ms": null, "handshakes": 1, "handshakes_failed": 0 }],
            "faults": [{ "kind": "kill", "from": 10, "to": 12 }, { "kind": "store wiped", "from": 20, "to": 20 }],
            "purges": { "ordered": 5, "lost": 0 },
        });
        let plots = draw(&result);
        assert_eq!(plots.iter().map(|(theme, _)| *theme).collect::<Vec<_>>(), ["light", "dark"]);
        let text = &plots[0].1;
        assert!(text.contains("10 requests in 1 minutes: 0 failed. 3 handshakes"), "{text}");
        assert_eq!(text.matches("height=\"12\"").count(), 2);
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, expect) in [(9.0, 10.0), (10.0, 10.0), (11.0, 20.0), (33.0, 40.0), (55.0, 80.0), (0.7, 0.8)] {
            assert!((nice(value) - expect).abs() < 1e-9, "{value}");
        }
    }
}
