//! Draws a chart: horizontal bars with whiskers for quartiles, as SVG that needs no script and no font of its own.

use std::fmt::Write;

use super::chart::{Bar, BarKind, Chart};

/// Colors of a page. The blues are of the palette by Okabe and Ito, which color-blind readers can tell apart.
pub(crate) struct Theme {
    pub(crate) name: &'static str,
    pub(crate) background: &'static str,
    pub(crate) text: &'static str,
    pub(crate) muted: &'static str,
    pub(crate) ours: &'static str,
    peer: &'static str,
    pub(crate) reference: &'static str,
    pub(crate) warning: &'static str,
}

pub(crate) const THEMES: [Theme; 2] = [
    Theme {
        name: "light",
        background: "#ffffff",
        text: "#1f2328",
        muted: "#59636e",
        ours: "#0072b2",
        peer: "#b6bec8",
        reference: "#dfe3e8",
        warning: "#bc4c00",
    },
    Theme {
        name: "dark",
        background: "#0d1117",
        text: "#f0f6fc",
        muted: "#9198a1",
        ours: "#56b4e9",
        peer: "#4d5763",
        reference: "#2f3742",
        warning: "#f0883e",
    },
];

const WIDTH: f64 = 520.0;
const MARGIN: f64 = 16.0;
const BARS_LEFT: f64 = 150.0;
const BARS_RIGHT: f64 = 374.0;
const ROW_HEIGHT: f64 = 26.0;
const BAR_HEIGHT: f64 = 16.0;
const HEADING_HEIGHT: f64 = 32.0;
const CAP_HEIGHT: f64 = 7.0;
const LINE_CHARACTERS_MAX: usize = 74;

pub(crate) const FONT: &str = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', sans-serif";

/// The text of an SVG file.
pub(super) fn draw(chart: &Chart, theme: &Theme) -> String {
    let mut body = String::new();
    let subtitle = wrap(chart.subtitle);
    text(&mut body, MARGIN, 32.0, "start", theme.text, "font-size=\"17\" font-weight=\"600\"", chart.title);
    let mut y = 36.0;
    for line in &subtitle {
        y += 18.0;
        text(&mut body, MARGIN, y, "start", theme.muted, "font-size=\"13\"", line);
    }
    y += 6.0;
    for group in &chart.groups {
        y += HEADING_HEIGHT;
        text(&mut body, MARGIN, y - 9.0, "start", theme.text, "font-size=\"15\" font-weight=\"600\"", group.label);
        if group.is_void {
            text(&mut body, WIDTH - MARGIN, y - 9.0, "end", theme.warning, "font-size=\"13\"", "void run: see below");
        }
        let scale = (BARS_RIGHT - BARS_LEFT) / group.longest.max(f64::MIN_POSITIVE);
        let top = y;
        for bar in &group.bars {
            draw_bar(&mut body, bar, y, scale, theme);
            y += ROW_HEIGHT;
        }
        if chart.has_reference {
            let x = BARS_LEFT + scale;
            let _ = writeln!(
                body,
                "<path d=\"M{x:.1} {:.1}V{y:.1}\" stroke=\"{}\" stroke-dasharray=\"2 3\"/>",
                top - 2.0,
                theme.muted
            );
        }
    }
    let height = y + MARGIN - 4.0;
    let (title, description) = (escape(chart.title), escape(&describe(chart)));
    let mut file = String::from("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" ");
    let _ = write!(file, "width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" ");
    let _ = writeln!(file, "aria-labelledby=\"title description\" font-family=\"{FONT}\">");
    let _ = writeln!(file, "<title id=\"title\">{title}</title>\n<desc id=\"description\">{description}</desc>");
    let _ = writeln!(file, "<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{}\"/>", theme.background);
    file.push_str(&body);
    file.push_str("</svg>\n");
    file
}

fn draw_bar(body: &mut String, bar: &Bar, y: f64, scale: f64, theme: &Theme) {
    let (color, weight) = match bar.kind {
        BarKind::Ours => (theme.ours, "600"),
        BarKind::Peer => (theme.peer, "400"),
        BarKind::Reference => (theme.reference, "400"),
    };
    let middle = y + ROW_HEIGHT / 2.0;
    let baseline = middle + 5.0;
    let right = BARS_RIGHT.min(BARS_LEFT + bar.spread.median.max(bar.spread.upper) * scale);
    let at = |value: f64| (BARS_LEFT + value.max(0.0) * scale).min(right);
    let is_broken = BARS_LEFT + bar.spread.median * scale > BARS_RIGHT + 0.5;
    let size = format!("font-size=\"15\" font-weight=\"{weight}\"");
    text(body, BARS_LEFT - 10.0, baseline, "end", theme.text, &size, bar.label);
    let width = at(bar.spread.median) - BARS_LEFT;
    let top = middle - BAR_HEIGHT / 2.0;
    let _ = writeln!(
        body,
        "<rect x=\"{BARS_LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" rx=\"2\" fill=\"{color}\"/>"
    );
    let (lower, upper) = (at(bar.spread.lower), at(bar.spread.upper));
    if is_broken {
        let (x, bottom) = (BARS_RIGHT - 30.0, top + BAR_HEIGHT);
        let _ = writeln!(
            body,
            "<path d=\"M{x} {bottom}l6 -{BAR_HEIGHT}h6l-6 {BAR_HEIGHT}z\" fill=\"{}\"/>",
            theme.background
        );
    } else if upper - lower >= 1.0 {
        let (cap_top, cap) = (middle - CAP_HEIGHT / 2.0, CAP_HEIGHT);
        let caps = format!("M{lower:.1} {cap_top}v{cap}M{upper:.1} {cap_top}v{cap}");
        let line = format!("M{lower:.1} {middle}H{upper:.1}");
        let color = theme.text;
        let _ = writeln!(body, "<path d=\"{caps}{line}\" stroke=\"{color}\" stroke-width=\"1.5\" fill=\"none\"/>");
    }
    let value_left = upper.max(at(bar.spread.median)) + 8.0;
    let note = if bar.note.is_empty() {
        String::new()
    } else {
        let note = escape(&bar.note);
        format!("<tspan dx=\"8\" font-weight=\"400\" font-size=\"13\" fill=\"{}\">{note}</tspan>", theme.muted)
    };
    let _ = writeln!(
        body,
        "<text x=\"{value_left:.1}\" y=\"{baseline}\" fill=\"{}\" {size}>{}{note}</text>",
        theme.text,
        escape(&bar.value)
    );
}

pub(crate) fn text(body: &mut String, x: f64, y: f64, anchor: &str, color: &str, style: &str, content: &str) {
    let content = escape(content);
    let _ =
        writeln!(body, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"{color}\" {style}>{content}</text>");
}

/// One or two lines; the second begins after a sentence.
fn wrap(text: &str) -> Vec<&str> {
    if text.chars().count() <= LINE_CHARACTERS_MAX {
        return vec![text];
    }
    match text.rsplit_once(". ") {
        Some((first, second)) => vec![&text[..=first.len()], second],
        None => vec![text],
    }
}

/// The chart in words, for readers who don't see it.
pub(super) fn describe(chart: &Chart) -> String {
    let mut words = chart.subtitle.to_owned();
    for group in &chart.groups {
        let mut letters = group.label.chars();
        let first = letters.next().into_iter().flat_map(char::to_uppercase);
        let _ = write!(words, " {}{}:", first.collect::<String>(), letters.as_str());
        for (index, bar) in group.bars.iter().enumerate() {
            let _ = write!(words, "{} {} {}", if index == 0 { "" } else { "," }, bar.label, bar.value);
        }
        words.push('.');
    }
    words
}

pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    wire::http::escape_html(text, &mut out);
    out
}
