//! `bench --find`: the capacity of a server with a known limit.

use std::time::Duration;

use serde_json::Value;

use crate::output::check_schema;
use crate::server::{FakeServerAction, ok, start};
use crate::{bench, tailor, undisturbed};

/// Requests in flight and the time of each, so at most 400 a second are served.
const CONNECTIONS: &str = "8";
const DELAY: Duration = Duration::from_millis(20);
const CAPACITY: u64 = 400;

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("{name}: {report}"))
}

#[test]
fn the_capacity_lies_in_the_interval() {
    let server = start(|_| FakeServerAction::Delay(DELAY, ok(b"x")));
    let page = tempfile::NamedTempFile::new().unwrap();
    let words = ["--find", "p99<200ms,failures<1%", "-c", CONNECTIONS, "-d", "1s", "--find-precision", "10%"];
    let html = ["--html", page.path().to_str().unwrap()];
    // A server that responds within 20 ms has a capacity, unless the machine stalls again and again.
    let measure = |_| bench(&server.url, &[&words[..], &html].concat());
    let (report, code) = undisturbed(measure, |(_, code)| *code == 0);
    check_schema(
        &serde_json::from_str(include_str!("../../schema/find.json")).unwrap(),
        &serde_json::from_str(include_str!("../../schema/find.json")).unwrap(),
        &report,
        "report",
    );
    assert_eq!(code, 0, "{report}");
    let (best, low) = (number(&report, "capacity_per_second"), number(&report, "low_per_second"));
    // More than the server can serve is due for a second, and what is late by 200 ms fails: at most a fifth more.
    assert!(best <= CAPACITY * 13 / 10 && low <= best, "{report}");
    assert!(report["high_per_second"].as_u64().is_none_or(|high| high > best), "{report}");
    assert_eq!(report["conditions"], serde_json::json!(["p99<200ms", "failures<1%"]));
    let tries = report["tries"].as_array().unwrap();
    let passed = |rate: u64| {
        let of_rate = tries.iter().filter(|tried| tried["rate_per_second"] == rate);
        of_rate.filter(|tried| tried["passed"] == true).count()
    };
    assert!(passed(best) >= 2, "the result is confirmed: {report}");
    for tried in tries {
        let conditions = tried["conditions"].as_array().unwrap();
        let all_hold = conditions.iter().all(|condition| condition["holds"] == true);
        assert_eq!(tried["passed"], all_hold, "{tried}");
    }
    let page = std::fs::read_to_string(page.path()).unwrap();
    assert!(page.contains("Latency by rate") && page.contains("the capacity"), "{page}");
}

#[test]
fn a_server_that_is_too_slow_has_no_capacity() {
    let server = start(|_| FakeServerAction::Delay(DELAY, ok(b"x")));
    let words = ["--find", "p50<1ms", "-c", "2", "-d", "100ms", "--find-precision", "50%"];
    let (report, code) = bench(&server.url, &words);
    assert_eq!((report["capacity_per_second"].as_u64(), code), (None, 1), "{report}");
    assert_eq!(number(&report, "low_per_second"), 0);
}

#[test]
fn searches_that_are_impossible() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    let failing = start(|_| FakeServerAction::Close(Vec::new()));
    for (url, arguments, expect) in [
        (&server.url, &["--find", "failures=0"][..], "needs a limit of the latency"),
        (&server.url, &["--find", "rate>10k"], "needs a limit of the latency"),
        (&server.url, &["--find", "p99>1ms"], "needs a limit of the latency"),
        (&server.url, &["--find", "p99<1ms", "-R", "10"], "cannot be used with"),
        (&server.url, &["--find", "p99<1ms,speed=1"], "unknown quantity `speed`"),
        (&failing.url, &["--find", "p99<1ms"], "served no request: the server closed the connection (FIN)"),
    ] {
        let output = tailor(&[&["bench", url], arguments].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(expect), "{arguments:?}: {message}");
    }
}
