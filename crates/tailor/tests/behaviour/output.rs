//! Output of the program, and its exit codes.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

use crate::server::{FakeServerAction, ok, start};
use crate::{bench, longer, tailor, undisturbed};

#[test]
fn all_outputs_of_a_run() {
    let server = start(|_| FakeServerAction::Delay(Duration::from_millis(2), ok(b"x")));
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let measure = |_| {
        tailor(&[
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
        ])
    };
    let lines = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
    let output = undisturbed(measure, |output| lines(&output.stderr) >= 3);
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
    for part in ["<!doctype html>", "Requests served per second", "Latency by percentile", "Server memory", "</html>"] {
        assert!(html.contains(part) || html.contains(&part.replace("&#39;", "'")), "{part}");
    }
    for outside in ["src=", "href=", "<script", "@import", "url("] {
        assert!(!html.contains(outside), "the page needs nothing from elsewhere: {outside}");
    }
}

#[test]
fn what_can_not_be_is_reported_before_the_run() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    for (arguments, reported) in [
        (&["--json", "/nonexistent/x"][..], "/nonexistent/x: No such file"),
        (&["--html", "/nonexistent/x"], "/nonexistent/x: No such file"),
        (&["-d", "0"], "must be more than 0"),
        (&["--require", "p99<5"], "the time needs a unit, such as 5ms"),
    ] {
        let output = tailor(&[&["bench", &server.url, "-n", "1"], arguments].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.contains(reported)), (Some(2), true), "{said}");
        assert!(!said.contains("/s  p50"), "nothing was measured: {said}");
    }
    assert!(server.heads.lock().unwrap().is_empty());
}

/// Like wrk, the program takes a URL as its first argument.
#[test]
fn a_url_first_is_a_benchmark() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    // So long that each interval has responses, unless the machine stalls.
    let measure = |_| tailor(&[&server.url, "-c", "2", "-d", "3s", "--interval", "1s", "--latency"]);
    let output = undisturbed(measure, |output| !String::from_utf8_lossy(&output.stderr).contains(" 0/s"));
    let (text, progress) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && text.contains("p99.9"), "{text}{progress}");
    assert!(!progress.contains(" 0/s"), "nothing is told of the rest after the last interval: {progress}");
    let output = tailor(&["-c", "2", "-n2", "-q", &server.url]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_report_is_what_the_published_schema_says() {
    for (name, published) in [
        ("bench", include_str!("../../schema/bench.json")),
        ("compare", include_str!("../../schema/compare.json")),
        ("find", include_str!("../../schema/find.json")),
        ("kernels", include_str!("../../schema/kernels.json")),
        ("replay", include_str!("../../schema/replay.json")),
        ("web99", include_str!("../../schema/web99.json")),
    ] {
        let printed = String::from_utf8(tailor(&["schema", name]).stdout).unwrap();
        assert!(
            printed == published,
            "`tailor schema {name} > crates/tailor/schema/{name}.json` publishes what has changed"
        );
    }
    let published = include_str!("../../schema/bench.json");
    let schema: Value = serde_json::from_str(published).unwrap();
    let server = start(|request| match request.number % 7 {
        6 => FakeServerAction::Close(Vec::new()),
        _ => FakeServerAction::Reply(ok(b"x")),
    });
    let me = std::process::id().to_string();
    let open = ["-R", "100", "--line", "1M", "--require", "p99<1s", "--watch", &me, "--interval", "50ms"];
    for arguments in [&[][..], &open, &["--expect-status", "404"]] {
        let (report, _) = bench(&server.url, &[&["-n", "30", "-c", "2"], arguments].concat());
        check_schema(&schema, &schema, &report, "report");
    }
    let mut wrong = bench(&server.url, &["-n", "1"]).0;
    wrong["latency"]["count"] = "1".into();
    assert!(std::panic::catch_unwind(|| check_schema(&schema, &schema, &wrong, "report")).is_err(), "the check checks");
}

/// Panics if the value does not match the schema. It supports only the parts of JSON Schema that our schemas use. A
/// property that the schema does not name is an error.
pub(crate) fn check_schema(root: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap_or_else(|| panic!("{reference} is there"));
        return check_schema(root, target, value, place);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let passes = |choice: &Value| match choice["type"].as_str() {
            Some("null") => value.is_null(),
            _ => !value.is_null(),
        };
        let choice = choices.iter().find(|choice| passes(choice)).unwrap_or_else(|| panic!("{place}: {value}"));
        return check_schema(root, choice, value, place);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        return assert!(choices.iter().any(|choice| choice["const"] == *value), "{place}: {value}");
    }
    let is_of = |name: &Value| match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "null" => value.is_null(),
        other => panic!("{place}: the type {other} is not known here"),
    };
    let types = &schema["type"];
    let is_right = types.as_array().map_or_else(|| is_of(types), |names| names.iter().any(is_of));
    assert!(is_right, "{place}: {value} is no {types}");
    for item in value.as_array().into_iter().flatten() {
        check_schema(root, &schema["items"], item, &format!("{place}[]"));
    }
    let Some(object) = value.as_object() else { return };
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(object.contains_key(name.as_str().unwrap()), "{place}: {name} is required");
    }
    for (name, value) in object {
        let place = format!("{place}.{name}");
        let property = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
        check_schema(root, property.unwrap_or_else(|| panic!("{place} is in the schema")), value, &place);
    }
}

#[test]
fn progress_on_a_terminal_is_one_line_that_is_written_over() {
    let server = start(|_| FakeServerAction::Delay(Duration::from_millis(2), ok(b"x")));
    let command = format!(
        "{} bench {} -c 2 -d 700ms --interval 200ms --json /dev/null",
        env!("CARGO_BIN_EXE_tailor"),
        server.url
    );
    // script(1) gives the program a terminal.
    let run = |_| Command::new("script").args(["-q", "-e", "-c", &command, "/dev/null"]).output();
    let updates = |text: &[u8]| String::from_utf8_lossy(text).matches("\r\x1b[K").count();
    let output = undisturbed(run, |output| output.as_ref().is_ok_and(|output| updates(&output.stdout) >= 3));
    let Ok(output) = output else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    let (progress, report) = text.rsplit_once("\r\x1b[K").expect("progress");
    assert!(progress.matches("\r\x1b[K").count() >= 2 && !progress.contains('\n'), "{text:?}");
    for part in ["/s", "p50", "p99", "failed 0"] {
        assert!(progress.contains(part), "{part}: {text:?}");
    }
    assert!(report.contains("served"), "{text:?}");
}

#[test]
fn requirements_make_the_exit_code() {
    let server = start(|_| FakeServerAction::Delay(Duration::from_millis(5), ok(b"x")));
    for (requirement, expect) in
        [("p50<2s", 0), ("p50<1ms", 1), ("failures=0", 0), ("rate>1M", 1), ("served=20", 0), ("mean>=5ms", 0)]
    {
        let (report, code) = bench(&server.url, &["-n", "20", "-c", "2", "--require", requirement]);
        assert_eq!((code, report["passed"].as_bool()), (expect, Some(expect == 0)), "{requirement}");
    }
}

/// Half of the requests time out. The latencies of the others say nothing about a percentile above them.
#[test]
fn failed_requests_are_infinitely_late() {
    let requirements = ["--require", "p99<60s", "--require", "p25<60s", "--require", "mean<60s"];
    let measure = |number| {
        let server = start(|request| match request.number % 2 {
            0 => FakeServerAction::Reply(ok(b"x")),
            _ => FakeServerAction::Stall,
        });
        let time_out = longer(&["200ms", "3s"], number);
        let arguments = ["bench", &server.url, "-q", "-c", "4", "-n", "20", "--timeout", time_out];
        tailor(&[&arguments[..], &requirements].concat())
    };
    let output = undisturbed(measure, |output| String::from_utf8_lossy(&output.stdout).contains("(10) rank"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for expect in [
        "DOES NOT HOLD: p99<60s (is unknown: failed requests rank as infinitely late)",
        "DOES NOT HOLD: mean<60s (is unknown: failed requests rank as infinitely late)",
        "holds: p25<60s (is ",
        "failed requests (10) rank as infinitely late in the percentiles",
    ] {
        assert!(text.contains(expect), "{expect}: {text}");
    }
    assert!(text.lines().any(|line| line.trim().starts_with("p99 ") && line.contains("unknown")), "{text}");
}

#[test]
fn percentiles_of_few_values() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    let output = tailor(&["bench", &server.url, "-q", "-c", "2", "-n", "200"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let cell = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap().trim().to_owned();
    assert!(cell("p99 ").ends_with('s') && cell("max ").ends_with('s'), "{text}");
    assert_eq!((cell("p99.9 ").as_str(), cell("p99.99 ").as_str()), ("-", "-"), "{text}");
}

#[test]
fn mistakes_are_reported() {
    for (arguments, expect) in [
        (&["bench", "ftp://x/"][..], "use http://, https://, ws:// or wss://"),
        (&["bench", "http://127.0.0.1:1/", "http://127.0.0.1:2/"], "the same server"),
        (&["bench", "http://127.0.0.1:1/", "-c", "0"], "more than 0"),
        (&["bench", "http://127.0.0.1:1/", "-c", "0.5"], "`0.5` is not a whole number"),
        (&["bench", "http://127.0.0.1:1/", "-R", "0"], "more than 0"),
        (&["bench", "http://127.0.0.1:1/", "--require", "fast"], "has no <"),
        (&["bench", "http://127.0.0.1:1/", "--expect-body", "/nonexistent"], "/nonexistent"),
        (&["bench"], "<URL>"),
        (&["compare", "cold-disk", "--sweep", "x"], "`x` is not one of the lab's values: calm, disk"),
        (&["bench", "-n", "1", "--json", "http://127.0.0.1:1/"], "--json - writes to standard output"),
    ] {
        let output = tailor(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(expect), "{arguments:?}: {text}");
    }
}

#[test]
fn a_run_that_is_broken_off_reports_and_does_not_pass() {
    let (sender, requests) = std::sync::mpsc::channel();
    let sender = Mutex::new(sender);
    let server = start(move |_| {
        // The test may have seen enough.
        let _ = sender.lock().unwrap().send(());
        FakeServerAction::Reply(ok(b"x"))
    });
    let child = Command::new(env!("CARGO_BIN_EXE_tailor"))
        .args(["bench", &server.url, "-c", "2", "-d", "60s", "--quiet", "--json", "-"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    (0..10).for_each(|_| requests.recv_timeout(Duration::from_secs(60)).expect("requests arrive"));
    let id = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["interrupted"].as_bool(), report["passed"].as_bool()), (Some(true), Some(false)));
    assert!(report["served"].as_u64().unwrap() > 0);
    assert_eq!(output.status.code(), Some(130));
}

/// On a terminal `--live` draws on the other screen, and leaves it before the report. Elsewhere there are plain lines.
#[test]
fn a_live_view() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    let bench = ["bench", "--live", "-c", "1", "-R", "100", "-d", "1s", "--interval", "100ms", &server.url];
    let output = tailor(&bench);
    let progress = String::from_utf8(output.stderr).unwrap();
    assert!(progress.contains("failed 0\n") && !progress.contains('\x1b'), "{progress}");
    if !std::path::Path::new("/usr/bin/script").exists() {
        return crate::skips::skip_without("/usr/bin/script");
    }
    let command = format!("stty cols 80 rows 24; {} {}", env!("CARGO_BIN_EXE_tailor"), bench.join(" "));
    let output = std::process::Command::new("/usr/bin/script").args(["-qec", &command, "/dev/null"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let view = text.split_once("\x1b[?1049h").and_then(|(_, rest)| rest.split_once("\x1b[?1049l"));
    let (view, report) = view.unwrap_or_else(|| panic!("{text}"));
    // Between words the view moves the cursor.
    assert!(["tailor: 127.0.0.1:", "served", "failed:", "█"].iter().all(|part| view.contains(part)), "{view}");
    assert!(report.contains("p99.9") && output.status.success(), "{report}");
}
