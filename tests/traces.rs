//! Traces: context of incoming requests, and exported spans.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::port::free_port;
use crate::support::real_server::{RealServer, Recipe};
use crate::support::tls::TestCa;
use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::{eventually, eventually_some, lines_of};
use crate::support::write_program;
use crate::support::{TestServer, ask};

const HEAD: &str = "\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const NAMED: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";

/// Collector that parses with OpenTelemetry's own classes.
const COLLECTOR: Recipe<'_> = Recipe {
    needs: &["/usr/bin/python3", "/usr/local/lib/opentelemetry/opentelemetry/proto"],
    files: &[("collector.py", include_str!("applications/otlp_collector.py"))],
    command: &["/usr/bin/python3", "@DIR@/collector.py", "@PORT@"],
    environment: &[("PYTHONPATH", "/usr/local/lib/opentelemetry")],
};

fn get(path: &str, lines: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h.example:8080\r\nConnection: close\r\n{lines}\r\n")
}

/// Address that no process listens on.
fn unused_address() -> std::net::SocketAddr {
    std::net::SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Server that forwards `/app/*` to this address.
fn forwarding(to: &str, further: &str) -> TestServer {
    TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n respond \"/here\" 200\n forward \"http://{to}\" path=\"/app/*\"\n}}\n\
         server {{ workers 1 }}\n{further}\n"
    ))
}

/// Values of a field in a head.
fn values(head: &str, name: &str) -> Vec<String> {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).collect()
}

/// Spans that the collector has written, once there are this many.
fn spans(directory: &Path, count: usize) -> Vec<Value> {
    let lines = lines_of(&directory.join("spans"), count);
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn whose_context_goes_on() {
    let check = |traces: &str, sent: &str, expect: &dyn Fn(&[String], &[String]) -> bool| {
        let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(OK)]]);
        let server = forwarding(&upstream.address.to_string(), traces);
        assert!(ask(&server, &get("/app/a", sent)).starts_with("HTTP/1.1 200"));
        let head = upstream.connection();
        let (parents, states) = (values(&head, "traceparent"), values(&head, "tracestate"));
        assert!(expect(&parents, &states), "{traces:?} {sent:?}: {head}");
    };
    let with_state = format!("{NAMED}tracestate: a=1\r\nTraceState: b=2\r\n");
    let named = NAMED.trim_end().split_once(": ").unwrap().1;
    // Without the block they are ordinary fields.
    check("", &with_state, &|parents, states| parents == [named] && states == ["a=1", "b=2"]);
    check("", "", &|parents, states| parents.is_empty() && states.is_empty());
    // No spans are exported, so the caller's span stays the parent.
    check("traces {}", &with_state, &|parents, states| parents == [named] && states == ["a=1,b=2"]);
    let is_begun = |parents: &[String], states: &[String]| {
        let [parent] = parents else { return false };
        parent.len() == 55 && parent.ends_with("-03") && !parent.contains(TRACE) && states.is_empty()
    };
    check("traces {}", "", &is_begun);
    check("traces {}", &with_state.replace("00-0af", "00-0AF"), &is_begun);
    check("traces {}", &format!("{NAMED}{NAMED}tracestate: a=1\r\n"), &is_begun);
    check("traces { accept-context none; }", &with_state, &is_begun);
    check("traces { accept-context \"trusted-proxies\"; }", &with_state, &is_begun);
    let trusting = "traces { accept-context \"trusted-proxies\"; }\nserver { trusted-proxies \"127.0.0.1\"; }";
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(OK)]]);
    let text = format!("site {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\"\n}}\n{trusting}\n", upstream.address);
    ask(&TestServer::run(&text), &get("/", &format!("{with_state}X-Forwarded-For: 192.0.2.1\r\n")));
    assert_eq!(values(&upstream.connection(), "traceparent"), [named]);
    check("traces { sample-ratio 0; }", "", &|parents, _| parents.iter().all(|parent| parent.ends_with("-02")));
}

#[test]
fn programs_and_logs_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let (root, log) = (directory.path().join("root"), directory.path().join("log"));
    std::fs::create_dir(&root).unwrap();
    let script = root.join("env.cgi");
    write_program(&script, "#!/bin/sh\necho Content-Type: text/plain\necho\nenv\n");
    let unused = unused_address();
    let server = TestServer::run(&format!(
        "access-log \"{}\" format=\"{{status}} {{trace_id}} {{span_id}}\"\n\
         site {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n cgi \"*.cgi\"\n forward \"http://{unused}\" path=\"/gone\"\n}}\n\
         traces {{}}\n",
        log.display(),
        root.display()
    ));
    let answer = ask(&server, &get("/env.cgi", &format!("{NAMED}tracestate: a=1\r\ntrace_parent: x\r\n")));
    assert!(answer.contains(&format!("HTTP_TRACEPARENT=00-{TRACE}-b7ad6b7169203331-01\n")), "{answer}");
    assert!(answer.contains("HTTP_TRACESTATE=a=1\n"), "{answer}");
    ask(&server, &get("/gone", NAMED));
    server.await_log(&format!(" trace={TRACE}"));
    server.end_with_log();
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log, format!("200 {TRACE} b7ad6b7169203331\n502 {TRACE} b7ad6b7169203331\n"));
}

#[test]
fn a_collector_gets_spans() {
    let Some(collector) = RealServer::start(&COLLECTOR) else { return };
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(OK)]]);
    let address = upstream.address.to_string();
    let server = forwarding(
        &address,
        &format!(
            "traces {{\n endpoint \"http://{}\"\n header \"X-Key\" \"secret\"\n service-name \"edge\"\n \
             resource-attribute \"deployment.environment.name\" \"test\"\n batch-delay \"10ms\"\n \
             attribute-bytes-max \"16B\"\n}}",
            collector.address
        ),
    );
    let agent = "User-Agent: 0123456789abcdef and more\r\n";
    ask(&server, &get("/app/a?b=c&sig=d", &format!("{NAMED}tracestate: a=1\r\n{agent}")));
    // Requests without sampling, or invalid ones, create no span.
    ask(&server, &get("/here", &NAMED.replace("-01\r", "-00\r")));
    ask(&server, &get("/none", "").replace("GET", "BREW"));
    let reported = spans(collector.directory(), 3);
    let by_name = |name: &str, kind: u64| {
        let of = |span: &&Value| span["name"] == *name && span["kind"] == kind;
        reported.iter().find(of).unwrap_or_else(|| panic!("{name}, {kind}: {reported:?}"))
    };
    let (ours, way, other) = (by_name("GET", 2), by_name("GET", 3), by_name("HTTP", 2));
    for span in [ours, way, other] {
        assert_eq!((&span["path"], &span["key"]), (&"/v1/traces".into(), &"secret".into()), "{span}");
        assert_eq!(span["content_type"], "application/x-protobuf", "{span}");
        assert_eq!(span["resource"]["service.name"], "edge", "{span}");
        assert_eq!(span["resource"]["deployment.environment.name"], "test", "{span}");
    }
    assert_eq!((&ours["trace"], &ours["parent"]), (&TRACE.into(), &"b7ad6b7169203331".into()));
    assert_eq!((&ours["state"], &ours["flags"], &ours["error"]), (&"a=1".into(), &0x301.into(), &false.into()));
    let attributes = &ours["attributes"];
    for (name, value) in [
        ("http.request.method", Value::from("GET")),
        ("url.path", "/app/a".into()),
        ("url.query", "b=c&sig=REDACTED".into()),
        ("url.scheme", "http".into()),
        ("network.protocol.version", "1.1".into()),
        ("server.address", "h.example".into()),
        ("server.port", 8080.into()),
        ("client.address", "127.0.0.1".into()),
        ("user_agent.original", "0123456789abcdef".into()),
        ("http.response.status_code", 200.into()),
    ] {
        assert_eq!(attributes[name], value, "{name}: {ours}");
    }
    assert_eq!((&way["trace"], &way["parent"]), (&TRACE.into(), &ours["span"]));
    assert_eq!(way["attributes"]["server.port"], upstream.address.port());
    assert_eq!(way["events"], serde_json::json!(["connected", "response head"]));
    assert!(way["nanoseconds"].as_u64() > Some(0), "{way}");
    // The upstream's parent is our span.
    let parent = &values(&upstream.connection(), "traceparent")[0];
    assert_eq!(*parent, format!("00-{TRACE}-{}-01", way["span"].as_str().unwrap()));
    assert_eq!((&other["parent"], &other["error"]), (&"".into(), &true.into()), "{other}");
    assert_eq!(other["attributes"]["http.request.method_original"], "BREW");
    assert_eq!(other["attributes"]["error.type"], "501");
}

/// Shutdown sends the waiting spans; also over TLS, to a collector whose CA the configuration names.
#[test]
fn spans_are_sent_at_the_end() {
    let Some(collector) = RealServer::start(&COLLECTOR) else { return };
    let (authority, directory) = (TestCa::new(), tempfile::tempdir().unwrap());
    authority.sign(&["localhost"]).write(directory.path(), "localhost");
    let path = directory.path().display();
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let front = TestServer::run(&format!(
        "site \"localhost\" {{\n listen \"127.0.0.1:0\" tls=on\n default\n \
         certificate \"{path}/localhost.pem\" key=\"{path}/localhost.key\"\n forward \"http://{}\"\n}}\n",
        collector.address
    ));
    let traces = format!(
        "traces {{\n endpoint \"https://localhost:{}/otlp\"\n tls-ca-file \"{}\"\n batch-delay \"1h\"\n}}",
        front.address.port(),
        ca.display()
    );
    let server = forwarding("127.0.0.1:9", &traces);
    ask(&server, &get("/here", ""));
    let log = server.end_with_log();
    assert_eq!(spans(collector.directory(), 1)[0]["path"], "/otlp", "{log:?}");
}

#[test]
fn no_request_waits_for_a_collector() {
    let unused = unused_address();
    let traces = format!(
        "traces {{\n endpoint \"http://{unused}\"\n queue-spans-max 4\n batch-spans-max 2\n batch-delay \"1ms\"\n \
         retry-time \"0s\"\n}}"
    );
    let server = forwarding("127.0.0.1:9", &traces);
    for _ in 0..40 {
        assert!(ask(&server, &get("/here", "")).starts_with("HTTP/1.1 200"));
    }
    server.await_log(&format!("sending spans failed: endpoint=http://{unused}/v1/traces"));
    let log = server.end_with_log();
    assert_eq!(log.iter().filter(|line| line.contains("sending spans failed")).count(), 1, "{log:?}");
}

#[test]
fn what_becomes_of_spans_is_counted() {
    let busy = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n";
    // One rejected span (field 1 of field 1 is 1), with a reason.
    let partial = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n\x0a\x05\x08\x01\x12\x01x";
    let collector = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(busy)], vec![Await(HEAD), Say(partial)]]);
    let directory = TempDir::new().unwrap();
    let config = directory.path().join("tailcoat.kdl");
    let text = |traces: &str| {
        let port = free_port();
        std::fs::write(
            &config,
            format!(
                "site {{\n listen \"127.0.0.1:0\"\n respond \"/here\" 200\n metrics \"/metrics\"\n\
                 forward \"http://127.0.0.1:9\" path=\"/app/*\"\n}}\n{traces}\nserver {{ control-socket \"{}/c{port}\"; }}",
                directory.path().display()
            ),
        )
        .unwrap();
    };
    text("");
    let server = TestServer::run_from(&config);
    let metrics = || ask(&server, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(!metrics().contains("tailcoat_trace_spans"));
    // A reload enables traces.
    text(&format!("traces {{ endpoint \"http://{}\"; batch-delay \"200ms\"; }}", collector.address));
    server.signal("HUP");
    server.await_log("configuration reloaded");
    // All at once, so that they are in one batch. On a busy machine, there may be several.
    let others = "GET /here HTTP/1.1\r\nHost: h.example\r\n\r\n".repeat(19);
    let answers = ask(&server, &(others + &get("/here", "")));
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 20, "{answers}");
    server.await_log("rejected=1 sent=");
    let spans = |metrics: &str, result: &str| {
        let name = format!("tailcoat_trace_spans_total{{result=\"{result}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u32>().ok()).unwrap_or(0)
    };
    let counts = eventually_some("all spans are counted", || {
        let metrics = metrics();
        let counts = (spans(&metrics, "failed"), spans(&metrics, "exported"));
        (counts.0 + counts.1 >= 20).then_some(counts)
    });
    // One of each batch.
    assert!(counts.0 >= 1 && counts.1 >= 1, "{counts:?}");
    // A reload disables traces.
    text("");
    server.signal("HUP");
    eventually("traces are off", || !metrics().contains("tailcoat_trace_spans"));
    let thread = "traces".to_owned();
    eventually("the thread has sent its spans and ended", || !server.thread_names().contains(&thread));
}
