//! Plots as SVG, so that a page needs neither network nor script.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 76.0;
/// Space for the half of the last mark's label that extends beyond the axis.
const RIGHT: f64 = 40.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;
/// Maximum points of a line; more than one per pixel would not be visible.
const POINTS_MAX: usize = 1200;
const COLORS: [&str; 8] = ["#0b62a4", "#c8502b", "#2c8f5b", "#8a4fb0", "#b8860b", "#5a6a7a", "#b03060", "#1f8a8a"];

/// Plot of lines over one axis.
pub(crate) struct Plot<'a> {
    pub(crate) title: &'a str,
    pub(crate) x_label: &'a str,
    pub(crate) series: Vec<Series<'a>>,
    /// Positions and labels of the marks on the x axis; empty for round numbers.
    pub(crate) x_marks: Vec<(f64, String)>,
    pub(crate) format_y: fn(f64) -> String,
}

/// Line of a plot.
pub(crate) struct Series<'a> {
    pub(crate) name: &'a str,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Plot<'_> {
    /// Builds the plot as an HTML figure.
    pub(crate) fn to_html(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x_max = points().map(|point| point.0).fold(f64::MIN_POSITIVE, f64::max);
        // An axis of round numbers begins at 0.
        let x_start = if self.x_marks.is_empty() { 0.0 } else { x_max };
        let x_min = points().map(|point| point.0).fold(x_start, f64::min).min(x_max - f64::MIN_POSITIVE);
        let y_step = round_step(points().map(|point| point.1).fold(0.0, f64::max) / 5.0);
        let y_max = (points().map(|point| point.1).fold(0.0, f64::max) / y_step).ceil().max(1.0) * y_step;
        let x = |value: f64| LEFT + (value - x_min) / (x_max - x_min).max(1e-12) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - value / y_max * (HEIGHT - TOP - BOTTOM);
        writeln!(out, "<figure><figcaption>{}{}</figcaption>", escape(self.title), self.legend())?;
        writeln!(out, r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#, escape(self.title))?;
        for mark in 0..=(y_max / y_step).round() as u32 {
            let (value, at) = (f64::from(mark) * y_step, y(f64::from(mark) * y_step));
            writeln!(out, r#"<line class="grid" x1="{LEFT}" x2="{:.1}" y1="{at:.1}" y2="{at:.1}"/>"#, WIDTH - RIGHT)?;
            writeln!(
                out,
                r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
                LEFT - 6.0,
                at + 4.0,
                escape(&(self.format_y)(value))
            )?;
        }
        for (value, label) in self.x_marks(x_min, x_max) {
            let at = x(value);
            writeln!(out, r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{:.1}"/>"#, HEIGHT - BOTTOM)?;
            writeln!(
                out,
                r#"<text x="{at:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                HEIGHT - BOTTOM + 16.0,
                escape(&label)
            )?;
        }
        writeln!(
            out,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 8.0,
            escape(self.x_label)
        )?;
        for (index, series) in self.series.iter().enumerate() {
            let path: Vec<String> =
                thin(&series.points).iter().map(|&(px, py)| format!("{:.1},{:.1}", x(px), y(py))).collect();
            let color = COLORS[index % COLORS.len()];
            writeln!(
                out,
                r#"<polyline fill="none" stroke="{color}" stroke-width="1.6" points="{}"/>"#,
                path.join(" ")
            )?;
            if series.points.len() <= 40 {
                for &(px, py) in &series.points {
                    let title = format!("{}: {}", series.name, (self.format_y)(py));
                    writeln!(
                        out,
                        r#"<circle cx="{:.1}" cy="{:.1}" r="2.5" fill="{color}"><title>{}</title></circle>"#,
                        x(px),
                        y(py),
                        escape(&title)
                    )?;
                }
            }
        }
        writeln!(out, "</svg></figure>")
    }

    fn legend(&self) -> String {
        if self.series.len() < 2 {
            return String::new();
        }
        let entry = |(index, series): (usize, &Series<'_>)| {
            format!(r#" <span style="color:{}">&#9632; {}</span>"#, COLORS[index % COLORS.len()], escape(series.name))
        };
        self.series.iter().enumerate().map(entry).collect()
    }

    fn x_marks(&self, min: f64, max: f64) -> Vec<(f64, String)> {
        if !self.x_marks.is_empty() {
            return self.x_marks.iter().filter(|(value, _)| (min..=max).contains(value)).cloned().collect();
        }
        let step = round_step((max - min) / 8.0);
        let first = (min / step).ceil() as i64;
        let last = (max / step).floor() as i64;
        (first..=last.min(first + 20))
            .map(|mark| mark as f64 * step)
            .map(|value| (value, format_plain(value)))
            .collect()
    }
}

/// Reduces the points to [`POINTS_MAX`]. Each group of neighbours keeps its minimum and maximum, so that no peak is
/// lost.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points.to_vec();
    }
    let group = points.len().div_ceil(POINTS_MAX / 2);
    points
        .chunks(group)
        .flat_map(|chunk| {
            let least = chunk.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
            let greatest = chunk.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
            let mut pair: Vec<_> = least.into_iter().chain(greatest).collect();
            pair.sort_by(|a, b| a.0.total_cmp(&b.0));
            pair
        })
        .collect()
}

/// Smallest number of the form 1, 2 or 5 times a power of ten that is at least `least`.
fn round_step(least: f64) -> f64 {
    if least.is_nan() || least <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= least * 0.999)
        .unwrap_or(power * 10.0)
}

/// Formats a number without trailing zeros.
pub(crate) fn format_plain(value: f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text.split_once('.') {
        Some(_) => text.to_owned(),
        None => crate::units::format_count(text.parse::<i64>().unwrap_or(0).unsigned_abs()),
    }
}

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    wire::http::escape_html(text, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (least, expect) in
            [(0.9, 1.0), (1.0, 1.0), (1.1, 2.0), (3.0, 5.0), (70.0, 100.0), (0.013, 0.02), (0.0, 1.0)]
        {
            assert!((round_step(least) - expect).abs() < 1e-12, "{least}: {}", round_step(least));
        }
    }

    #[test]
    fn thinning_keeps_peaks() {
        let points: Vec<(f64, f64)> =
            (0..100_000).map(|index| (f64::from(index), f64::from(u8::from(index == 55_555)))).collect();
        let thinned = thin(&points);
        assert!(thinned.len() <= POINTS_MAX && thinned.contains(&(55_555.0, 1.0)));
    }
}
