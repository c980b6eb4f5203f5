//! `bench --scenario`: users that follow sequences of requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::output::check_schema;
use crate::server::{FakeServerAction, ReceivedRequest, ok, response, start};
use crate::{bench, failures, in_parallel, tailor};

/// Writes a scenario file, and `users.csv` beside it.
fn files(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("users.csv"), "user,password\nann,a b\nbob,\"x,\"\"y\"\ncid,z\n").unwrap();
    let path = directory.path().join("scenario.kdl");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}

fn run(url: &str, text: &str, arguments: &[&str]) -> (Value, i32) {
    let (_directory, path) = files(text);
    let (report, code) = bench(url, &[&["--scenario", &path], arguments].concat());
    let schema: Value = serde_json::from_str(include_str!("../../schema/bench.json")).unwrap();
    check_schema(&schema, &schema, &report, "report");
    (report, code)
}

/// Served and failed members of each row: runs, then steps, for each scenario.
fn rows(report: &Value) -> Vec<(u64, u64)> {
    let counts = |group: &Value| (group["served"].as_u64().unwrap(), group["failed"].as_u64().unwrap());
    let mut rows = Vec::new();
    for scenario in report["scenarios"].as_array().unwrap() {
        rows.push(counts(&scenario["runs"]));
        rows.extend(scenario["steps"].as_array().unwrap().iter().map(|step| counts(&step["requests"])));
    }
    rows
}

fn target(request: &ReceivedRequest) -> &str {
    request.head.split(' ').nth(1).unwrap()
}

/// A shop that answers 400 unless token, cookie and credentials are right.
fn shop(request: &ReceivedRequest, tokens: &AtomicUsize) -> FakeServerAction {
    let content = String::from_utf8_lossy(&request.content).into_owned();
    let cookie = request.head.lines().find_map(|line| line.strip_prefix("Cookie: ")).unwrap_or_default();
    let session = cookie.strip_prefix("session=").unwrap_or("none");
    let is_right = match target(request) {
        "/login" if request.head.starts_with("GET") => {
            let number = tokens.fetch_add(1, Ordering::SeqCst);
            let fields = format!("Set-Cookie: session={number}; Path=/; HttpOnly\r\n");
            let page = format!("<input name=\"csrf\" value=\"t/{number}\">");
            return FakeServerAction::Reply(response("200 OK", &fields, page.as_bytes()));
        }
        "/login" => {
            let credentials = ["user=ann&password=a%20b", "user=bob&password=x%2C%22y", "user=cid&password=z"];
            credentials.iter().any(|it| content == format!("{it}&csrf=t%2F{session}"))
        }
        "/me" => return FakeServerAction::Reply(ok(format!("{{\"user\": {{\"id\": {session}}}}}").as_bytes())),
        path => {
            path == format!("/orders/{session}") && request.head.contains(&format!("X-Id: {session}\r\n")) && {
                content == "{\"n\": 1}"
            }
        }
    };
    FakeServerAction::Reply(match (is_right, target(request)) {
        (false, _) => response("400 Bad Request", "", b""),
        (true, "/login") => response("302 Found", "Location: /me\r\n", b""),
        (true, _) => ok(b"order accepted"),
    })
}

const SHOP: &str = r#"
data "users.csv"
scenario "order" {
    get "/login" { capture "csrf" regex="name=\"csrf\" value=\"([^\"]+)\"" }
    post "/login" {
        name "sign in"
        header "Content-Type" "application/x-www-form-urlencoded"
        body "user=${user}&password=${password:url}&csrf=${csrf:url}"
        expect status=302 header="Location: /me"
    }
    get "/me" { capture "id" json="/user/id" }
    put "/orders/${id}" { header "X-Id" "${id}"; body "{\"n\": 1}"; expect contains="accepted" }
}
"#;

#[test]
fn values_and_cookies_are_passed_on() {
    let tokens = Arc::new(AtomicUsize::new(0));
    let server = start(move |request| shop(request, &tokens));
    in_parallel(
        &[&["-n", "30", "-c", "4"][..], &["-n", "30", "-c", "4", "-t", "2"], &["-R", "100", "-d", "300ms", "-c", "8"]],
        |arguments| {
            let (report, code) = run(&server.url, SHOP, arguments);
            assert_eq!((rows(&report), code), (vec![(30, 0); 5], 0), "{arguments:?}: {report}");
            assert_eq!(report["served"], 120, "{report}");
        },
    );
}

/// A run ends at its first failed step, and the report says which one.
#[test]
fn a_failed_check_ends_the_run() {
    for (step, expect) in [
        ("get \"/a\" { capture \"x\" json=\"/x\" }", ("wrong body", "GET /a: nothing to capture for `x`")),
        ("get \"/a\" { capture \"x\" header=\"X\" }", ("wrong field", "GET /a: nothing to capture for `X`")),
        ("get \"/a\" { name \"a\"; expect contains=\"zzz\" }", ("wrong body", "a: does not contain `zzz`")),
        ("get \"/a\" { expect status=404 }", ("wrong status", "200")),
    ] {
        let server = start(|_| FakeServerAction::Reply(ok(b"{}")));
        let text =
            format!("scenario \"s\" {{ get \"/\"; {step}; get \"/never\" }}").replace("\"x\" header", "\"X\" header");
        let (report, _) = run(&server.url, &text, &["-n", "5", "-c", "1"]);
        assert_eq!(rows(&report), [(0, 5), (5, 0), (0, 5), (0, 0)], "{step}: {report}");
        assert_eq!(failures(&report), [(expect.0.to_owned(), 5)], "{step}");
        assert_eq!(report["failure_reasons"][expect.0], expect.1, "{step}");
        assert!(!server.heads.lock().unwrap().iter().any(|head| head.contains("/never")), "{step}");
    }
}

/// Runs go on over a new connection when the server ends one.
#[test]
fn connections_end_within_runs() {
    let server = start(|_| FakeServerAction::End(response("200 OK", "Connection: close\r\n", b"x")));
    let text = "scenario \"s\" { get \"/a\"; think \"20ms\"; get \"/b\" }";
    let (report, code) = run(&server.url, text, &["-n", "6", "-c", "2"]);
    assert_eq!((rows(&report), code), (vec![(6, 0); 3], 0), "{report}");
    assert_eq!(server.connections.load(Ordering::SeqCst), 12);
    let resetting = start(|request| match target(request) {
        "/b" => FakeServerAction::Reset,
        _ => FakeServerAction::Reply(ok(b"x")),
    });
    let (report, _) = run(&resetting.url, text, &["-n", "6", "-c", "2"]);
    assert_eq!(rows(&report), [(0, 6), (6, 0), (0, 6)], "{report}");
}

#[test]
fn pauses_are_part_of_runs_and_not_of_requests() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    let text = "scenario \"s\" { think \"50ms\"; get \"/a\"; think \"60ms\" \"80ms\"; get \"/b\"; think \"40ms\" }";
    for arguments in [&["-n", "4", "-c", "4"][..], &["-R", "40", "-d", "100ms", "-c", "4"]] {
        let (report, _) = run(&server.url, text, arguments);
        assert_eq!(rows(&report), [(4, 0), (4, 0), (4, 0)], "{report}");
        let time = report["scenarios"][0]["runs"]["p50_nanos"].as_u64().unwrap();
        // The histogram rounds to three digits.
        assert!(time >= 149_000_000, "{arguments:?}: {report}");
        assert_eq!(report["unfinished"], 0);
    }
}

#[test]
fn weights_data_and_built_in_variables() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    let text = "data \"users.csv\" order=\"random\"\n\
                scenario \"a\" weight=3 { get \"/a/${run}/${user}\" }\nscenario \"b\" { get \"/b/${run}/${random}\" }";
    let (report, _) = run(&server.url, text, &["-n", "400", "-c", "4", "-t", "2", "--seed", "1"]);
    let rows = rows(&report);
    assert_eq!(rows[0].0 + rows[2].0, 400, "{report}");
    assert!((250..350).contains(&rows[0].0), "{report}");
    let heads = server.heads.lock().unwrap();
    let part = |head: &String, index: usize| head.split(['/', ' ']).nth(index).unwrap().to_owned();
    let runs: BTreeSet<String> = heads.iter().map(|head| part(head, 3)).collect();
    assert_eq!(runs.len(), 400, "run numbers differ");
    let users: BTreeSet<String> = heads.iter().filter(|head| part(head, 2) == "a").map(|head| part(head, 4)).collect();
    assert_eq!(users.into_iter().collect::<Vec<_>>(), ["ann", "bob", "cid"]);
}

#[test]
fn mistakes() {
    let (_directory, path) = files("scenario \"s\" {\n  get \"/${id}\"\n}");
    let (_other, good) = files("scenario \"s\" { get \"/\" }");
    for (arguments, expect) in [
        (&["--scenario", &path, "http://127.0.0.1:1/"][..], "scenario.kdl: line 2: `id` has no value here"),
        (&["--scenario", "/none.kdl", "http://127.0.0.1:1/"], "/none.kdl: No such file"),
        (&["--scenario", &good, "http://127.0.0.1:1/x"], "names the server only, without the path `/x`"),
        (&["--scenario", &good, "--http2", "http://127.0.0.1:1/"], "cannot be used with"),
        (&["--scenario", &good], "URL"),
    ] {
        let output = tailor(&[&["bench"], arguments].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(expect), "{arguments:?}: {message}");
    }
}
