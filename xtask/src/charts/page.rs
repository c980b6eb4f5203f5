//! BENCHMARKS.md: a template with prose, in which directives on lines of their own are replaced by charts, tables and figures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::chart::{self, digits, ordered, quantity, quantity_with_quartiles};
use super::plan::{BASE, ChartPlan, FLOOR, PLANS, SERVERS};
use super::results::{BenchPart, BenchRun, Figure, Mark, Spread};
use super::svg;

/// The page. A template's `{{chart NAME}}` starts a section, which ends at the next heading or directive and is left out if
/// the chart has no data; `{{marks}}`, `{{machine}}` and `{{versions}}` stand for what their names say.
pub(super) fn render(template: &str, runs: &[BenchRun]) -> Result<String, String> {
    let mut page = String::new();
    let mut after = String::new();
    let mut is_left_out = false;
    for line in template.lines() {
        let directive = line.strip_prefix("{{").and_then(|line| line.strip_suffix("}}"));
        if directive.is_some() || line.starts_with('#') {
            page.push_str(&std::mem::take(&mut after));
            is_left_out = false;
        }
        match directive.map(|directive| directive.split_once(' ').unwrap_or((directive, ""))) {
            None if is_left_out => {}
            None => page.extend([line, "\n"]),
            Some(("marks", "")) => page.push_str(&marks(runs)),
            Some(("machine", "")) => page.push_str(&machine(runs)),
            Some(("versions", "")) => page.push_str(&versions(runs)),
            Some(("chart", name)) => {
                let plan = PLANS.iter().find(|plan| plan.name == name).ok_or(format!("there is no chart {name:?}"))?;
                match chart::chart(plan, runs) {
                    Some(chart) => {
                        page.push_str(&picture(plan, &svg::describe(&chart)));
                        after = figures(plan, runs);
                    }
                    None => is_left_out = true,
                }
            }
            Some((other, _)) => return Err(format!("there is no directive {other:?}")),
        }
    }
    page.push_str(&after);
    Ok(single_blank_lines(&page))
}

fn picture(plan: &ChartPlan, description: &str) -> String {
    let name = plan.name;
    format!(
        "### {}\n\n<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"{directory}/{name}-dark.svg\">\n  \
         <img src=\"{directory}/{name}-light.svg\" alt=\"{}\">\n</picture>\n\n",
        plan.question,
        svg::escape(description),
        directory = super::DIRECTORY,
    )
}

/// Tables of a chart's runs, folded.
fn figures(plan: &ChartPlan, runs: &[BenchRun]) -> String {
    let mut text = String::from("\n<details>\n<summary>Figures, marks and commands</summary>\n");
    let mut marked = BTreeSet::new();
    for (label, run, part) in chart::parts(plan, runs) {
        let control = part.control.map_or(String::new(), |control| format!(", A/A {control:.3}"));
        let day = run.started.split('T').next().unwrap_or_default();
        let turns = if part.turns == 1 { "1 turn".to_owned() } else { format!("{} turns", part.turns) };
        let _ = write!(text, "\n**{label}**: commit {}, {day}, {turns}{control}. `{}`\n\n", run.commit, run.command);
        for reason in &run.void {
            let attempts =
                if run.attempts == 1 { "1 attempt".to_owned() } else { format!("{} attempts", run.attempts) };
            let _ = write!(text, "**Void after {attempts}**: {reason}\n\n");
        }
        text.push_str(&table(plan, part));
        if marked.insert(&run.name) {
            text.push_str(&mark_table(run));
        }
    }
    text.push_str("\n</details>\n\n");
    text
}

fn table(plan: &ChartPlan, part: &BenchPart) -> String {
    let figures: Vec<_> = ordered(plan, part).collect();
    let has = |wanted: fn(&Figure) -> bool| figures.iter().any(|(.., figure)| wanted(figure));
    let base = plan.names.iter().find(|(name, _)| *name == BASE).map_or("Tailcoat", |(_, label)| label);
    let mut columns: Vec<(String, Box<Column>)> = vec![("median (quartiles)".into(), Box::new(absolute))];
    if has(|figure| figure.ratio.is_some()) {
        columns.push((format!("× {base}"), Box::new(|figure, _| spread(figure.ratio))));
    }
    if has(|figure| figure.of_floor.is_some()) {
        columns.push(("× floor".into(), Box::new(|figure, _| spread(figure.of_floor))));
    }
    if has(|figure| figure.per_second.is_some()) {
        columns.push(("responses/s".into(), Box::new(|figure, _| figure.per_second.map_or(String::new(), digits))));
    }
    if has(|figure| figure.p99_us.is_some()) {
        columns
            .push(("p99".into(), Box::new(|figure, _| figure.p99_us.map_or(String::new(), |us| quantity(us, "us")))));
    }
    let mut text = String::from("| |");
    columns.iter().for_each(|(title, _)| text.extend([" ", title, " |"]));
    let _ = write!(text, "\n|---|{}\n", "---|".repeat(columns.len()));
    for (_, label, figure) in figures {
        let cells: Vec<String> = columns.iter().map(|(_, cell)| cell(figure, &part.unit)).collect();
        let _ = writeln!(text, "| {label} | {} |", cells.join(" | "));
    }
    text
}

type Column = dyn Fn(&Figure, &str) -> String;

fn absolute(figure: &Figure, unit: &str) -> String {
    quantity_with_quartiles(figure.absolute, unit)
}

fn spread(spread: Option<Spread>) -> String {
    spread.map_or(String::new(), |Spread { median, lower, upper }| {
        format!("{} ({} – {})", precise(median), digits(lower), digits(upper))
    })
}

/// A ratio with the digits that a mark may need.
fn precise(ratio: f64) -> String {
    if ratio < 2.0 { format!("{ratio:.3}") } else { digits(ratio) }
}

fn mark_table(run: &BenchRun) -> String {
    if run.marks.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n| mark | measured | |\n|---|---|---|\n");
    for mark in &run.marks {
        let _ = writeln!(text, "| {} | {} | {} |", claim(mark), measured(mark), verdict(run, mark));
    }
    text
}

/// Claim of a mark, in words.
fn claim(mark: &Mark) -> String {
    let bound = if mark.at_least { "at least" } else { "at most" };
    match &mark.of {
        Some((name, base)) => format!(
            "{} needs {bound} {} × {} CPU time",
            known_name(name),
            trimmed(mark.limit),
            if base == FLOOR.0 { "the floor's".into() } else { format!("{}'s", known_name(base)) }
        ),
        None => format!("{}: {bound} {}", mark.text, trimmed(mark.limit)),
    }
}

fn measured(mark: &Mark) -> String {
    match (mark.measured, &mark.of) {
        (None, _) => "never".into(),
        (Some(ratio), Some(_)) => format!("{} ×", precise(ratio)),
        (Some(value), None) => digits(value),
    }
}

fn verdict(run: &BenchRun, mark: &Mark) -> &'static str {
    match (run.void.is_empty(), mark.met) {
        (false, _) => "void",
        (true, true) => "met",
        (true, false) => "**missed**",
    }
}

fn trimmed(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn known_name(name: &str) -> &str {
    SERVERS.iter().find(|(server, _)| *server == name).map_or(name, |(_, label)| label)
}

/// Number of marks that are met, and a table of the others.
fn marks(runs: &[BenchRun]) -> String {
    let all: Vec<(&BenchRun, &Mark)> =
        runs.iter().flat_map(|run| run.marks.iter().map(move |mark| (run, mark))).collect();
    let count = |wanted| all.iter().filter(|(run, mark)| verdict(run, mark) == wanted).count();
    let mut text = format!("Of {} marks, {} are met, {} are missed", all.len(), count("met"), count("**missed**"));
    match count("void") {
        0 => text.push('.'),
        void => {
            let _ = write!(text, ", and {void} belong to void runs.");
        }
    }
    text.push('\n');
    if count("met") < all.len() {
        text.push_str("\n| work | mark | measured | |\n|---|---|---|---|\n");
    }
    for (run, mark) in all {
        if verdict(run, mark) != "met" {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                work(run, mark),
                claim(mark),
                measured(mark),
                verdict(run, mark)
            );
        }
    }
    text
}

/// The question and label that a mark of a run belongs to.
fn work(run: &BenchRun, mark: &Mark) -> String {
    let mut of_run = PLANS
        .iter()
        .flat_map(|plan| plan.groups.iter().map(move |group| (plan, group)))
        .filter(|(_, group)| group.run == run.name);
    let part = mark.text.split_once(':').map_or("", |(part, _)| part);
    let of_part = of_run.clone().find(|(_, group)| !part.is_empty() && group.part == part);
    of_part.or_else(|| of_run.next()).map_or(run.name.clone(), |(plan, group)| {
        let section = if plan.groups.len() > 1 { plan.name.replace('-', " ") + ": " } else { String::new() };
        // Some parts are in no chart.
        let is_other = of_part.is_none() && !group.part.is_empty() && !part.is_empty();
        format!("{section}{}", if is_other { part } else { group.label })
    })
}

fn machine(runs: &[BenchRun]) -> String {
    let machines: BTreeSet<&str> = runs.iter().map(|run| run.machine.as_str()).collect();
    let days: BTreeSet<&str> = runs.iter().filter_map(|run| run.started.split('T').next()).collect();
    let commits: BTreeSet<&str> = runs.iter().map(|run| run.commit.get(..8).unwrap_or(&run.commit)).collect();
    let join = |set: &BTreeSet<&str>| set.iter().copied().collect::<Vec<_>>().join(", ");
    let machines = machines.iter().copied().collect::<Vec<_>>().join("; ");
    format!("- Machine: {machines}.\n- Measured on {}.\n- Commits of Tailcoat: {}.\n", join(&days), join(&commits))
}

/// A table of the servers' versions.
fn versions(runs: &[BenchRun]) -> String {
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (name, version) in runs.iter().flat_map(|run| &run.versions) {
        if let Some((_, label)) = SERVERS.iter().find(|(server, _)| server == name)
            && let Some(number) = version_number(version)
        {
            versions.entry(label.split([' ', ',']).next().unwrap_or(label)).or_default().insert(number);
        }
    }
    let mut text = String::from("| server | version |\n|---|---|\n");
    for (label, numbers) in versions {
        let _ = writeln!(text, "| {label} | {} |", numbers.into_iter().collect::<Vec<_>>().join(", "));
    }
    text
}

/// The first number with a point in what a server says of its version.
fn version_number(text: &str) -> Option<String> {
    let number = |word: &str| {
        let word: String = word.chars().take_while(|next| next.is_ascii_digit() || *next == '.').collect();
        word.contains('.').then(|| word.trim_end_matches('.').to_owned())
    };
    text.split(|next: char| !next.is_ascii_digit() && next != '.')
        .filter(|word| word.starts_with(|first: char| first.is_ascii_digit()))
        .find_map(number)
}

fn single_blank_lines(text: &str) -> String {
    let mut result = String::new();
    let mut was_blank = true;
    for line in text.lines() {
        if !(line.is_empty() && was_blank) {
            result.extend([line, "\n"]);
        }
        was_blank = line.is_empty();
    }
    while result.ends_with("\n\n") {
        result.pop();
    }
    result
}
