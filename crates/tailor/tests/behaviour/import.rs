//! `tailor import`, and targets of vegeta: the requests that the other tools would send.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::server::{FakeServerAction, ReceivedRequest, ok, response, start};
use crate::{bench, failures, tailor};

/// Imports a file, and runs the scenario against a server. Returns the requests with their counts, and the comments.
fn import_and_run(name: &str, text: &str, runs: &str) -> (BTreeMap<String, usize>, String) {
    let server = start(|request| match request.head.starts_with("POST /login") {
        true => FakeServerAction::Reply(response("200 OK", "X-Trace: t1\r\n", b"{\"token\": \"abc\"}")),
        false => FakeServerAction::Reply(ok(b"hello")),
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, text.replace("http://server", &server.url)).unwrap();
    let scenario = directory.path().join("scenario.kdl");
    let (path, scenario) = (path.to_str().unwrap(), scenario.to_str().unwrap());
    let output = tailor(&["import", "-o", scenario, path]);
    let skipped = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{skipped}");
    let written = std::fs::read_to_string(scenario).unwrap();
    let (report, code) = bench(&server.url, &["--scenario", scenario, "-n", runs, "-c", "2"]);
    assert_eq!((failures(&report), code), (vec![], 0), "{written}\n{report}");
    let mut requests = BTreeMap::new();
    for head in server.heads.lock().unwrap().iter() {
        let field = |name: &str| head.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1");
        *requests.entry(format!("{line} {}{}", field("Authorization"), field("X-A"))).or_default() += 1;
    }
    (requests, written + &skipped)
}

#[test]
fn a_script_of_k6() {
    let script = "import http from 'k6/http';\nimport { check, sleep } from 'k6';\n\
        export const options = { vus: 2, duration: '3s' };\n\
        export default function () {\n\
          const login = http.post('http://server/login', JSON.stringify({ user: 'ann' }));\n\
          check(login, { 'is 200': (r) => r.status === 200 });\n\
          const token = login.json('token');\n\
          const page = http.get(`http://server/me`, { headers: { Authorization: `Bearer ${token}` } });\n\
          check(page, { 'has text': (r) => r.body.includes('hello') });\n\
          sleep(0.01);\n\
          if (page.status === 200) { http.get('http://server/never'); }\n\
        }\n";
    let (requests, text) = import_and_run("load.js", script, "6");
    let expect = [("POST /login ", 6), ("GET /me Authorization: Bearer abc", 6)];
    assert_eq!(requests, expect.map(|(name, count)| (name.to_owned(), count)).into(), "{text}");
    assert!(text.contains("-c 2 -d 3s http://127.0.0.1:"), "{text}");
    assert!(text.contains("line 11: not translated: a statement"), "{text}");
}

#[test]
fn a_script_of_wrk() {
    let script = "wrk.headers[\"X-A\"] = \"b\"\nlocal paths = { \"/a\", \"/b\" }\n\
        request = function()\n  return wrk.format(\"GET\", paths[math.random(#paths)])\nend\n\
        function response(status)\n  print(status)\nend\n";
    let (requests, text) = import_and_run("load.lua", script, "40");
    assert_eq!(requests.keys().collect::<Vec<_>>(), ["GET /a X-A: b", "GET /b X-A: b"], "{text}");
    assert_eq!(requests.values().sum::<usize>(), 40, "{text}");
    assert!(text.contains("line 6: not translated: function response()"), "{text}");
}

#[test]
fn a_recording() {
    let har = "{\"log\": {\"entries\": [\
        {\"startedDateTime\": \"2026-01-01T00:00:00.000Z\", \"time\": 10, \"request\": {\"method\": \"GET\", \"url\": \"http://server/a?b=c\", \
         \"headers\": [{\"name\": \"X-A\", \"value\": \"${x}\"}]}, \"response\": {\"status\": 200}},\
        {\"startedDateTime\": \"2026-01-01T00:00:00.020Z\", \"request\": {\"method\": \"GET\", \"url\": \"https://cdn.example/\", \
         \"headers\": []}, \"response\": {\"status\": 200}}]}}";
    let (requests, text) = import_and_run("recording.har", har, "4");
    assert_eq!(requests, [("GET /a?b=c X-A: ${x}".to_owned(), 4)].into(), "{text}");
    assert!(text.contains("not translated: GET https://cdn.example/"), "{text}");
}

#[test]
fn files_that_cannot_be_imported() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text, expect) in [
        ("a.txt", "", "unknown extension"),
        ("a.har", "{}", "not an HTTP archive"),
        ("a.js", "export default function () { }", "no request that can be translated"),
        ("a.lua", "x = 'a", "line 1: a text has no end"),
        ("b.js", &format!("x = {}", "(".repeat(100_000)), "levels of nesting"),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        let output = tailor(&["import", path.to_str().unwrap()]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(expect), "{name}: {message}");
    }
    let path = directory.path().join("large.har");
    std::fs::File::create(&path).unwrap().set_len(100 << 20).unwrap();
    let output = tailor(&["import", path.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("save the HAR file without content"), "{output:?}");
    // A content without an end.
    let path = directory.path().join("targets");
    std::fs::write(&path, "POST http://127.0.0.1:1/\n@/dev/zero\n").unwrap();
    let output = tailor(&["bench", "--targets", path.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/zero: more than"), "{output:?}");
    let output = tailor(&["compare", "keepalive-1k", "--servers", "none"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no server `none`; use "), "{output:?}");
}

/// Runs `bench --targets -` with this standard input. Returns the report.
fn bench_targets(input: &str, arguments: &[&str]) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailor"));
    command.args(["bench", "--quiet", "--json", "-", "--targets", "-"]).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stdout)))
}

#[test]
fn targets_of_vegeta() {
    let act = |request: &ReceivedRequest| {
        let line = request.head.lines().next().unwrap_or_default();
        let is_right = match line {
            "GET /a HTTP/1.1" => request.head.contains("\r\nX-A: 1\r\n") && request.head.contains("\r\nX-A: 2\r\n"),
            "POST /b HTTP/1.1" => request.content == b"hi" && request.head.contains("\r\nContent-Length: 2\r\n"),
            _ => false,
        };
        FakeServerAction::Reply(if is_right { ok(b"x") } else { response("400 Bad Request", "", b"") })
    };
    let server = start(act);
    let url = &server.url;
    let directory = tempfile::tempdir().unwrap();
    let body = directory.path().join("body");
    std::fs::write(&body, "hi").unwrap();
    let http = format!("GET {url}/a\nX-A: 1\nX-A: 2\n\nPOST {url}/b\nContent-Length: 2\n@{}\n", body.display());
    let json = format!(
        "{{\"method\":\"GET\",\"url\":\"{url}/a\",\"header\":{{\"X-A\":[\"1\",\"2\"]}}}}\n\
         {{\"method\":\"POST\",\"url\":\"{url}/b\",\"body\":\"aGk=\"}}\n"
    );
    for input in [http, json] {
        let report = bench_targets(&input, &["-n", "10", "-c", "1"]);
        assert_eq!((report["served"].as_u64(), failures(&report)), (Some(10), vec![]), "{input}: {report}");
    }
}
