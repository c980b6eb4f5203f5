//! A chart's content: bars with values and quartiles, made from a plan and the runs.

use super::plan::{BASE, CONTROL, CONTROLS, ChartPlan, FLOOR, OURS, SERVERS, Scale};
use super::results::{BenchPart, BenchRun, Figure, Spread};

/// A chart that can be drawn.
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) subtitle: &'static str,
    pub(super) groups: Vec<BarGroup>,
    /// True if 1 is a value to compare with.
    pub(super) has_reference: bool,
}

/// Multiples of Tailcoat's value that are drawn in full. A longer bar is broken, so that values near Tailcoat's can be compared.
const RATIO_MAX: f64 = 4.0;
const ABSOLUTE_MAX: f64 = 8.0;

/// Bars with a heading and a scale.
pub(super) struct BarGroup {
    pub(super) label: &'static str,
    pub(super) is_void: bool,
    pub(super) bars: Vec<Bar>,
    /// The value of the longest bar that fits; longer bars are broken.
    pub(super) longest: f64,
}

/// One server's value.
pub(super) struct Bar {
    pub(super) label: &'static str,
    pub(super) kind: BarKind,
    pub(super) spread: Spread,
    /// The value as text, and beside it a second one.
    pub(super) value: String,
    pub(super) note: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BarKind {
    Ours,
    Peer,
    Reference,
}

/// The runs of a plan's groups with their parts; groups without a run are left out.
pub(super) fn parts<'a>(
    plan: &'a ChartPlan,
    runs: &'a [BenchRun],
) -> impl Iterator<Item = (&'static str, &'a BenchRun, &'a BenchPart)> {
    plan.groups.iter().filter_map(|group| {
        let run = runs.iter().find(|run| run.name == group.run)?;
        let part = run.parts.iter().find(|part| part.name.starts_with(group.part))?;
        Some((group.label, run, part))
    })
}

/// The chart of a plan; none if none of its runs is there.
pub(super) fn chart(plan: &ChartPlan, runs: &[BenchRun]) -> Option<Chart> {
    let mut groups: Vec<BarGroup> = Vec::new();
    let mut units = Vec::new();
    for (label, run, part) in parts(plan, runs) {
        let bars = bars(plan, part);
        let longest = bars.iter().map(|bar| bar.spread.upper.max(bar.spread.median)).fold(0.0, f64::max);
        let ours = bars.iter().filter(|bar| bar.kind == BarKind::Ours).map(|bar| bar.spread.median);
        let longest_drawn = match plan.scale {
            Scale::Ratio => RATIO_MAX,
            Scale::Absolute | Scale::AbsolutePerGroup => ABSOLUTE_MAX * ours.fold(f64::INFINITY, f64::min),
        };
        let longest = longest.min(longest_drawn);
        groups.push(BarGroup { label, is_void: !run.void.is_empty(), bars, longest });
        units.push(if plan.scale == Scale::Ratio { "ratio" } else { part.unit.as_str() });
    }
    if plan.scale != Scale::AbsolutePerGroup {
        let longest = |unit: &str| {
            let same = groups.iter().zip(&units).filter(|(_, of)| **of == unit);
            same.map(|(group, _)| group.longest).fold(0.0, f64::max)
        };
        let shared: Vec<f64> = units.iter().map(|unit| longest(unit)).collect();
        groups.iter_mut().zip(shared).for_each(|(group, longest)| group.longest = longest);
    }
    let has_reference = plan.scale == Scale::Ratio;
    (!groups.is_empty()).then_some(Chart { title: plan.question, subtitle: plan.subtitle, groups, has_reference })
}

fn bars(plan: &ChartPlan, part: &BenchPart) -> Vec<Bar> {
    let control = part.servers.iter().find(|(name, _)| name == CONTROL).and_then(|(_, figure)| figure.ratio);
    ordered(plan, part)
        .filter_map(|(name, label, figure)| {
            let (spread, value, note) = if plan.scale == Scale::Ratio {
                let spread = if name == BASE { own_spread(control) } else { figure.ratio? };
                (spread, times(spread.median), quantity(figure.absolute.median, &part.unit))
            } else {
                (figure.absolute, quantity(figure.absolute.median, &part.unit), String::new())
            };
            let kind = match name {
                _ if OURS.contains(&name) && label != "static file" => BarKind::Ours,
                "file" => BarKind::Reference,
                _ if name == FLOOR.0 || name == BASE => BarKind::Reference,
                _ => BarKind::Peer,
            };
            Some(Bar { label, kind, spread, value, note })
        })
        .collect()
}

/// Tailcoat's ratio to itself: 1, with the spread of its control.
fn own_spread(control: Option<Spread>) -> Spread {
    let (lower, upper) = control.map_or((1.0, 1.0), |control| (control.lower, control.upper));
    Spread { median: 1.0, lower, upper }
}

/// The figures of a part with the names for readers, Tailcoat first, the floor last.
pub(super) fn ordered<'a>(
    plan: &'a ChartPlan,
    part: &'a BenchPart,
) -> impl Iterator<Item = (&'static str, &'static str, &'a Figure)> {
    SERVERS.iter().chain([&FLOOR]).filter_map(|(name, label)| {
        let (_, figure) = part.servers.iter().find(|(server, _)| server == name)?;
        let label = plan.names.iter().find(|(of, _)| of == name).map_or(*label, |(_, label)| label);
        Some((*name, label, figure))
    })
}

/// Servers of a part that no plan names.
pub(super) fn unknown(part: &BenchPart) -> impl Iterator<Item = &str> {
    let is_known = |name: &str| CONTROLS.contains(&name) || SERVERS.iter().chain([&FLOOR]).any(|(of, _)| *of == name);
    part.servers.iter().map(|(name, _)| name.as_str()).filter(move |name| !is_known(name))
}

/// A ratio: `1.88 x` with a multiplication sign.
pub(super) fn times(ratio: f64) -> String {
    format!("{} ×", digits(ratio))
}

/// A number with its unit, in a size that reads well.
pub(super) fn quantity(value: f64, unit: &str) -> String {
    quantities(value, &[], unit)
}

/// A number with its quartiles, in the same unit.
pub(super) fn quantity_with_quartiles(spread: Spread, unit: &str) -> String {
    if spread.lower == spread.upper {
        return quantity(spread.median, unit);
    }
    quantities(spread.median, &[spread.lower, spread.upper], unit)
}

/// A number with its unit, and others in parentheses.
fn quantities(value: f64, others: &[f64], unit: &str) -> String {
    let (factor, unit) = match unit {
        "us" if value.abs() >= 1000.0 => (0.001, "ms"),
        "us" => (1.0, "µs"),
        "of 1" => (100.0, "%"),
        "x" => (1.0, "×"),
        _ => (1.0, unit),
    };
    let text = |value: f64| if unit == "bytes" { thousands(value) } else { digits(value * factor) };
    let others: Vec<String> = others.iter().map(|other| text(*other)).collect();
    let others = if others.is_empty() { String::new() } else { format!(" ({})", others.join(" – ")) };
    format!("{} {unit}{others}", text(value))
}

/// Three significant digits, and at most two decimals.
pub(super) fn digits(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size >= 100.0 => 0,
        _ if size >= 10.0 => 1,
        _ => 2,
    };
    if size >= 1000.0 { thousands(value) } else { format!("{value:.decimals$}") }
}

/// A whole number with commas.
pub(super) fn thousands(value: f64) -> String {
    let text = format!("{:.0}", value.abs());
    let mut grouped = String::new();
    for (index, digit) in text.chars().enumerate() {
        if index > 0 && (text.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if value < 0.0 { format!("-{grouped}") } else { grouped }
}
