//! `cargo xtask bench --charts`: BENCHMARKS.md and its charts, from the results files of runs and a template.

mod chart;
mod page;
mod plan;
pub(crate) mod results;
pub(crate) mod svg;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Directory of the charts, from the root.
const DIRECTORY: &str = "docs/charts";
const PAGE: &str = "BENCHMARKS.md";
const TEMPLATE: &str = "benches/BENCHMARKS.md.in";

/// Writes the page and the charts.
pub(crate) fn write(root: &Path) -> Result<(), String> {
    let wanted = generated(root)?;
    std::fs::create_dir_all(root.join(DIRECTORY)).map_err(|error| format!("{DIRECTORY}: {error}"))?;
    for (path, text) in &wanted {
        std::fs::write(root.join(path), text).map_err(|error| format!("{path}: {error}"))?;
    }
    for path in present(root).difference(&wanted.keys().cloned().collect()) {
        std::fs::remove_file(root.join(path)).map_err(|error| format!("{path}: {error}"))?;
    }
    println!("{} and {} charts written", PAGE, wanted.len() - 1);
    Ok(())
}

/// Differences between the page and charts in the tree and what the results files give, a line each.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let wanted = match generated(root) {
        Ok(wanted) => wanted,
        Err(message) => return vec![message],
    };
    let differs = |path: &&String| std::fs::read_to_string(root.join(path)).ok().as_ref() != wanted.get(*path);
    let missing = wanted.keys().filter(differs);
    let problem =
        |path: &String| format!("{path}: is not what {} gives; run `cargo xtask bench --charts`", results::DIRECTORY);
    // Without results the page is written by hand.
    if wanted.len() == 1 {
        return Vec::new();
    }
    let mut problems: Vec<String> = missing.map(problem).collect();
    problems.extend(present(root).iter().filter(|path| !wanted.contains_key(*path)).map(problem));
    problems
}

/// The charts in the tree.
fn present(root: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(root.join(DIRECTORY)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.ends_with(".svg")).map(|name| format!("{DIRECTORY}/{name}")).collect()
}

/// Path and text of each generated file.
fn generated(root: &Path) -> Result<BTreeMap<String, String>, String> {
    let runs = results::load(root)?;
    check_names(&runs)?;
    let template = std::fs::read_to_string(root.join(TEMPLATE)).map_err(|error| format!("{TEMPLATE}: {error}"))?;
    let page = page::render(&template, &runs).map_err(|message| format!("{TEMPLATE}: {message}"))?;
    let mut files = BTreeMap::from([(PAGE.to_owned(), page)]);
    for plan in &plan::PLANS {
        if let Some(chart) = chart::chart(plan, &runs) {
            for theme in &svg::THEMES {
                files.insert(format!("{DIRECTORY}/{}-{}.svg", plan.name, theme.name), svg::draw(&chart, theme));
            }
        }
    }
    Ok(files)
}

/// Each run has a chart, and each of its servers a name in it.
fn check_names(runs: &[results::BenchRun]) -> Result<(), String> {
    for run in runs {
        let path = format!("{}/{}.json", results::DIRECTORY, run.name);
        let groups = plan::PLANS.iter().flat_map(|plan| plan.groups).filter(|group| group.run == run.name);
        let parts: Vec<_> =
            groups.filter_map(|group| run.parts.iter().find(|part| part.name.starts_with(group.part))).collect();
        if parts.is_empty() {
            return Err(format!("{path}: no chart shows it; add it to xtask/src/charts/plan.rs"));
        }
        if let Some(name) = parts.into_iter().flat_map(chart::unknown).next() {
            return Err(format!("{path}: the server {name:?} has no name in xtask/src/charts/plan.rs"));
        }
    }
    Ok(())
}
