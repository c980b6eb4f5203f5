use std::path::{Path, PathBuf};

use super::*;

const TEMPLATE_TEXT: &str =
    "# Title\n\n{{marks}}\n\n## Files\n\n{{chart small-files}}\n\nProse.\n\n{{chart page}}\n\nNot there.\n";

/// A results file with these servers and ratios to Tailcoat.
fn record(void: &str, nginx: f64) -> String {
    format!(
        r#"{{"name": "keepalive-64", "command": "benches/bench.py keepalive-1k", "commit": "0123456789", "started": "2026-11-23T03:00:00Z",
        "machine": {{"kernel": "Linux 6", "cpu": "A CPU", "cores": 2, "memory_gib": 23.6, "virtual": true, "network": "loopback",
        "congestion_control": "cubic"}}, "servers": {{"nginx": {{"version": "nginx version: nginx/1.30.6"}}}}, "attempts": 3, "void": [{void}],
        "parts": [{{"part": "64 connections", "unit": "us", "turns": 16, "control": 1.003, "servers": {{
        "tailcoat": {{"median": 6.1, "lower": 6.0, "upper": 6.3}},
        "tailcoat-again": {{"median": 6.1, "lower": 6.0, "upper": 6.3, "ratio": {{"median": 1.003, "lower": 0.99, "upper": 1.02}}}},
        "nginx": {{"median": 11.5, "lower": 11, "upper": 12, "ratio": {{"median": {nginx}, "lower": 1.8, "upper": 1.9}}}}}}}}],
        "marks": [{{"text": "t", "measured": {nginx}, "limit": 1.5, "at_least": true, "met": {}, "name": "nginx", "base": "tailcoat"}}]}}"#,
        nginx >= 1.5
    )
}

fn directory_with(name: &str, record: &str) -> PathBuf {
    let root = std::env::temp_dir().join(format!("xtask-charts-{}-{name}", std::process::id()));
    std::fs::create_dir_all(root.join(results::DIRECTORY)).expect("a directory");
    std::fs::write(root.join(TEMPLATE), TEMPLATE_TEXT).expect("a file");
    std::fs::write(root.join(results::DIRECTORY).join("keepalive-64.json"), record).expect("a file");
    root
}

#[test]
fn the_page_is_what_the_results_give() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let problems = check(&root);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_changed_result_is_noticed() {
    let root = directory_with("noticed", &record("", 1.88));
    assert_eq!(check(&root).len(), 3, "page and two charts are missing");
    write(&root).expect("they can be written");
    assert_eq!(check(&root), [""; 0]);
    let page = std::fs::read_to_string(root.join(PAGE)).expect("it was written");
    assert!(page.contains("| nginx needs at least 1.5 × Tailcoat's CPU time | 1.880 × | met |"), "{page}");
    assert!(page.contains("Of 1 marks, 1 are met, 0 are missed.\n"), "{page}");
    assert!(page.contains("</picture>\n\nProse.\n\n<details>"), "{page}");
    assert!(!page.contains("Not there"), "a section without data is left out: {page}");
    std::fs::write(root.join(DIRECTORY).join("gone-light.svg"), "").expect("a file");
    std::fs::write(root.join(results::DIRECTORY).join("keepalive-64.json"), record("", 1.4)).expect("a file");
    let problems = check(&root).join("\n");
    for path in ["BENCHMARKS.md", "small-files-light.svg", "small-files-dark.svg", "gone-light.svg"] {
        assert!(problems.contains(path), "{problems}");
    }
    write(&root).expect("they can be written");
    assert_eq!(check(&root), [""; 0]);
    let page = std::fs::read_to_string(root.join(PAGE)).expect("it was written");
    assert!(page.contains("| 1 KiB, 64 keep-alive connections | nginx needs at least 1.5 × Tailcoat's CPU time | 1.400 × | **missed** |"), "{page}");
    std::fs::remove_dir_all(root).expect("it is ours");
}

#[test]
fn a_void_run_is_shown_as_void() {
    let run = results::parse(&record("\"control: off\"", 1.88)).expect("it is a run");
    let page = page::render(TEMPLATE_TEXT, std::slice::from_ref(&run)).expect("a page");
    assert!(page.contains("**Void after 3 attempts**: control: off"), "{page}");
    assert!(page.contains("| void |") && !page.contains("| met |"), "{page}");
    let chart = chart::chart(&plan::PLANS[0], &[run]).expect("a chart");
    assert!(svg::draw(&chart, &svg::THEMES[0]).contains("void run"));
}

#[test]
fn a_chart_says_in_words_what_it_draws() {
    let run = results::parse(&record("", 1.88)).expect("it is a run");
    let chart = chart::chart(&plan::PLANS[0], &[run]).expect("a chart");
    let drawn = svg::draw(&chart, &svg::THEMES[1]);
    assert!(drawn.contains("<title id=\"title\">How much CPU time does a small file need?</title>"), "{drawn}");
    assert!(drawn.contains("Tailcoat 1.00 ×, nginx 1.88 ×.</desc>"), "{drawn}");
    // The control has no bar; its quartiles are the whiskers of Tailcoat's.
    assert_eq!(drawn.matches("rx=\"2\"").count(), 2, "{drawn}");
    assert_eq!(drawn.matches("stroke-width=\"1.5\"").count(), 2, "{drawn}");
    // nginx's bar is as much longer as its ratio says.
    let widths: Vec<f64> = drawn
        .split("width=\"")
        .skip(1)
        .filter_map(|rest| rest.split_once("\" height=\"16\""))
        .filter_map(|(width, _)| width.parse().ok())
        .collect();
    assert!((widths[1] / widths[0] - 1.88).abs() < 0.01, "{widths:?}");
}

#[test]
fn quantities_read_well() {
    for (value, unit, expect) in [
        (6.158, "us", "6.16 µs"),
        (84.13, "us", "84.1 µs"),
        (7830.0, "us", "7.83 ms"),
        (-3.0, "us", "-3.00 µs"),
        (449.2, "bytes", "449 bytes"),
        (32976.0, "bytes", "32,976 bytes"),
        (0.956, "of 1", "95.6 %"),
        (1.083, "x", "1.08 ×"),
    ] {
        assert_eq!(chart::quantity(value, unit), expect);
    }
}

#[test]
fn results_without_a_chart_are_an_error() {
    let text = record("", 1.88).replace("keepalive-64", "other");
    let error = check_names(&[results::parse(&text).expect("it is a run")]).expect_err("no chart shows it");
    assert!(error.contains("no chart shows it"), "{error}");
    let text = record("", 1.88).replace("\"nginx\": {\"median\"", "\"strange\": {\"median\"");
    let error = check_names(&[results::parse(&text).expect("it is a run")]).expect_err("it has no name");
    assert!(error.contains("\"strange\" has no name"), "{error}");
}
