//! What is written, and how the program ends.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::server::{Action, ok, start};
use crate::{bench, tailor};

#[test]
fn all_outputs_of_a_run() {
    let server = start(|_| Action::Delay(Duration::from_millis(2), ok(b"x")));
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let output = tailor(&[
        "bench",
        &server.url,
        "-c",
        "2",
        "-d",
        "600ms",
        "--interval",
        "200ms",
        "--json",
        &path("json"),
        "--html",
        &path("html"),
        "--hdr-log",
        &path("hdr"),
        "--intervals",
        &path("ndjson"),
        "--watch",
        &std::process::id().to_string(),
    ]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("served") && text.contains("p99.9"), "{text}");
    let progress = String::from_utf8(output.stderr).unwrap();
    assert!(progress.lines().count() >= 3 && !progress.contains('\x1b'), "plain where it is no terminal: {progress}");

    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    let report: Value = serde_json::from_str(&read("json")).unwrap();
    let lines: Vec<Value> = read("ndjson").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let served =
        |intervals: &mut dyn Iterator<Item = &Value>| intervals.map(|it| it["served"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(served(&mut lines.iter()), report["served"].as_u64().unwrap());
    assert!(report["server"]["memory_bytes_max"].as_u64().unwrap() > 100_000);
    assert!(read("hdr").lines().filter(|line| !line.starts_with('#')).count() >= 3);
    let html = read("html");
    for part in
        ["<!doctype html>", "Pages served a second", "Latency by percentile", "The server&#39;s memory", "</html>"]
    {
        assert!(html.contains(part) || html.contains(&part.replace("&#39;", "'")), "{part}");
    }
    for outside in ["src=", "href=", "<script", "@import", "url("] {
        assert!(!html.contains(outside), "the page needs nothing from elsewhere: {outside}");
    }
}

#[test]
fn the_report_is_what_the_schema_says() {
    let schema: Value = serde_json::from_slice(&tailor(&["schema", "bench"]).stdout).unwrap();
    let server = start(|_| Action::Reply(ok(b"x")));
    let (report, _) = bench(&server.url, &["-n", "10", "-c", "1", "-R", "100", "--line", "1M", "--require", "p99<1s"]);
    let required: Vec<&str> =
        schema["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let present: Vec<&String> = report.as_object().unwrap().keys().collect();
    for name in &required {
        assert!(report.get(name).is_some(), "{name} is required");
    }
    for name in present {
        assert!(schema["properties"].get(name).is_some(), "{name} is in the schema");
    }
}

#[test]
fn requirements_make_the_exit_code() {
    let server = start(|_| Action::Delay(Duration::from_millis(5), ok(b"x")));
    for (requirement, expect) in
        [("p50<2s", 0), ("p50<1ms", 1), ("failures=0", 0), ("rate>1M", 1), ("served=20", 0), ("mean>=5ms", 0)]
    {
        let (report, code) = bench(&server.url, &["-n", "20", "-c", "2", "--require", requirement]);
        assert_eq!((code, report["passed"].as_bool()), (expect, Some(expect == 0)), "{requirement}");
    }
}

#[test]
fn mistakes_are_told() {
    for (arguments, expect) in [
        (&["bench", "ftp://x/"][..], "only http and https"),
        (&["bench", "http://127.0.0.1:1/", "http://127.0.0.1:2/"], "one server"),
        (&["bench", "http://127.0.0.1:1/", "-c", "0"], "more than 0"),
        (&["bench", "http://127.0.0.1:1/", "--require", "fast"], "has no <"),
        (&["bench", "http://127.0.0.1:1/", "--expect-body", "/nonexistent"], "/nonexistent"),
        (&["bench"], "<URL>"),
    ] {
        let output = tailor(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(expect), "{arguments:?}: {text}");
    }
}

#[test]
fn a_run_that_is_broken_off_reports_and_does_not_pass() {
    let server = start(|_| Action::Reply(ok(b"x")));
    let child = Command::new(env!("CARGO_BIN_EXE_tailor"))
        .args(["bench", &server.url, "-c", "2", "-d", "60s", "--quiet", "--json", "-"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let id = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["interrupted"].as_bool(), report["passed"].as_bool()), (Some(true), Some(false)));
    assert!(report["served"].as_u64().unwrap() > 0);
    assert_eq!(output.status.code(), Some(130));
}
