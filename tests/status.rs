//! Observability of the running server: metrics, the status page, `status`, `upstreams`, `log tail`, `doctor`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::port::free_port;
use crate::support::waiting::{eventually, eventually_some};
use crate::support::write_program;
use crate::support::{PATIENCE, TestServer, read_all, tailcoat};

/// Server of one worker with a page, a control socket and a status page, and further options of its site and `server`.
fn start(site: &str, server: &str) -> (TestServer, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("page.html"), "a page").unwrap();
    let place = directory.path().display();
    let config = format!(
        "server {{ workers 1; control-socket \"{place}/control.sock\"; status-listen \"unix:{place}/status.sock\"; {server} }}\n\
         access-log \"{place}/access.log\"\n\
         site \"a.example\" \"127.0.0.1\" {{\n listen \"127.0.0.1:0\"\n root \"{place}\"\n metrics \"/metrics\"\n \
         status-page \"/status\"\n {site}\n}}\n"
    );
    (TestServer::run(&config), directory)
}

fn get(server: &TestServer, target: &str, host: &str, fields: &str) -> String {
    let mut stream = server.connect();
    // The sending side stays open, because a closed one would abort a forwarded request.
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{fields}\r\n").unwrap();
    read_all(&mut stream)
}

/// Output of a command about the server of this directory.
fn tell(directory: &Path, arguments: &[&str]) -> String {
    let output =
        tailcoat().args(arguments).arg("--socket").arg(directory.join("control.sock")).output().expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn status(directory: &Path) -> Value {
    serde_json::from_str(&tell(directory, &["status", "--json"])).expect("JSON")
}

/// Polls the status until the value is present.
fn await_status<T>(directory: &Path, wanted: impl Fn(&Value) -> Option<T>) -> T {
    eventually_some("it is in the status", || wanted(&status(directory)))
}

/// Value of a metrics sample, whose labels contain no spaces.
fn sample(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(line.parse().expect("a number"))
}

#[test]
fn requests_are_counted_by_site_handler_status_and_version() {
    let (server, directory) = start("respond \"/fixed\" 503 \"x\"\n redirect \"/old\" \"/page.html\"", "");
    for target in ["/page.html", "/page.html", "/missing", "/fixed", "/old"] {
        get(&server, target, "a.example", "");
    }
    server.exchange(b"GET /page.html HTTP/1.0\r\n\r\n");
    server.exchange(b"no request\r\n\r\n");
    let metrics = get(&server, "/metrics", "127.0.0.1", "");
    for (labels, count) in [
        ("handler=\"files\",status=\"2xx\",version=\"1.1\"", 2.0),
        ("handler=\"files\",status=\"4xx\",version=\"1.1\"", 1.0),
        ("handler=\"respond\",status=\"5xx\",version=\"1.1\"", 1.0),
        ("handler=\"rules\",status=\"3xx\",version=\"1.1\"", 1.0),
        ("handler=\"files\",status=\"2xx\",version=\"1.0\"", 1.0),
        ("handler=\"none\",status=\"4xx\",version=\"unknown\"", 1.0),
    ] {
        let name = format!("tailcoat_http_requests_total{{site=\"a.example\",{labels}}}");
        assert_eq!(sample(&metrics, &name), Some(count), "{name} in\n{metrics}");
    }
    assert_eq!(sample(&metrics, "tailcoat_http_request_duration_seconds_count{site=\"a.example\"}"), Some(7.0));
    // The time of the last check decides which of the two it is.
    let lookups =
        |result: &str| sample(&metrics, &format!("tailcoat_object_cache_lookups_total{{result=\"{result}\"}}"));
    assert_eq!(lookups("hit").zip(lookups("miss")).map(|(hits, misses)| hits + misses), Some(4.0), "{metrics}");
    assert_eq!(sample(&metrics, "tailcoat_connections_opened_total"), Some(8.0));
    assert!(sample(&metrics, "tailcoat_received_bytes_total").is_some_and(|bytes| bytes > 300.0), "{metrics}");
    assert!(sample(&metrics, "process_resident_memory_bytes").is_some_and(|bytes| bytes > 1e6), "{metrics}");
    let reported = status(directory.path());
    assert_eq!(reported["workers"][0]["connections_opened"], 8, "{reported:#}");
    let overview = tell(directory.path(), &["status"]);
    assert!(overview.starts_with("tailcoat ") && overview.contains("since start 7"), "{overview}");
}

#[test]
fn metrics_come_in_the_format_that_is_asked_for() {
    let (server, directory) = start("", "");
    let text = get(&server, "/metrics", "127.0.0.1", "");
    assert!(text.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{text}");
    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2\r\n";
    let open = get(&server, "/metrics", "127.0.0.1", accept);
    assert!(
        open.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{open}"
    );
    assert!(open.ends_with("# EOF\n"), "{open}");
    // Same metrics on a listener of their own.
    let mut stream = UnixStream::connect(directory.path().join("status.sock")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("tailcoat_build_info{version="), "{answer}");
}

#[test]
fn without_a_guard_only_this_machine_is_reported() {
    let (server, _directory) = start("", "trusted-proxies \"127.0.0.1\"");
    // The trusted proxy names a client on another machine.
    let answer = get(&server, "/metrics", "127.0.0.1", "X-Forwarded-For: 192.0.2.1\r\n");
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let (server, _directory) = start("", "");
    for (target, host, expect) in [
        ("/metrics", "127.0.0.1", "200"),
        ("/status", "localhost", "200"),
        ("/status?json", "[::1]", "200"),
        // A page whose host name resolves to this machine (DNS rebinding).
        ("/metrics", "evil.example", "403"),
        ("/status?json", "a.example", "403"),
    ] {
        let answer = get(&server, target, host, "");
        assert_eq!(&answer[9..12], expect, "{target} of {host}");
    }
    let posted =
        server.exchange(b"POST /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert!(posted.starts_with("HTTP/1.1 405 ") && posted.contains("\r\nAllow: GET, HEAD\r\n"), "{posted}");
}

/// Issue 17: a proxy on the same machine made the server's status public.
#[test]
fn a_proxy_on_this_machine_makes_nothing_public() {
    let fields = [
        "X-Forwarded-For: 203.0.113.9",
        "X-Forwarded-For: 127.0.0.1",
        "x-real-ip: 203.0.113.9",
        "X_Forwarded_For: 203.0.113.9",
        "Fly-Client-IP: 203.0.113.9",
        "Forwarded: for=203.0.113.9",
        "VIA: 1.1 proxy",
        "X-Forwarded-Proto: https",
        "CF-Connecting-IP: 203.0.113.9",
    ];
    let check = |server: &TestServer, field: &str, expect: &str| {
        for target in ["/metrics", "/status", "/status?json"] {
            let answer = get(server, target, "127.0.0.1", &format!("{field}\r\n"));
            assert_eq!(&answer[9..12], expect, "{target} {field}");
        }
    };
    let (server, _directory) = start("", "");
    fields.iter().for_each(|field| check(&server, field, "403"));
    check(&server, "X-Forward: 1", "200");
    // A trusted proxy names the client.
    let (server, _directory) = start("", "trusted-proxies \"127.0.0.1\"");
    for field in fields {
        check(&server, field, if field.ends_with("127.0.0.1") { "200" } else { "403" });
    }
    check(&server, "X-Forwarded-For: 127.0.0.1, 203.0.113.9", "403");
    check(&server, "X-Forwarded-For: unknown", "403");
    check(&server, "X-Forward: 1", "200");
}

#[test]
fn rules_say_who_may_see_it() {
    let (server, _directory) = start("allow \"127.0.0.1\" path=\"/metrics\"\n deny all path=\"/metrics\"", "");
    assert!(get(&server, "/metrics", "a.example", "").starts_with("HTTP/1.1 200 "), "rules decide, whatever the host");
    let (server, _directory) = start("deny all path=\"/metrics\"", "");
    assert!(get(&server, "/metrics", "127.0.0.1", "").starts_with("HTTP/1.1 403 "));
}

#[test]
fn what_anybody_could_see_is_an_error_of_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    for (config, says) in [
        ("site { listen 20080; metrics \"/metrics\" }", Some("`/metrics` has no access rule")),
        ("site { listen 20080; status-page \"/s\"; deny \"192.0.2.1\" }", Some("`/s` has no access rule")),
        (
            "server { status-listen 20081 }\nsite { listen 20080; respond \"*\" 200 }",
            Some("can be reached from other machines"),
        ),
        ("site { listen 20080; metrics \"/metrics\"; deny all path=\"/metrics\" }", None),
        ("deny all\nsite { listen 20080; metrics \"/metrics\" }", None),
        ("site { listen \"127.0.0.1:20080\"; metrics \"/metrics\" }", None),
    ] {
        let file = directory.path().join("tailcoat.kdl");
        std::fs::write(&file, config).unwrap();
        let output = tailcoat().arg("check").arg("-c").arg(&file).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), says.is_none(), "{config}: {errors}");
        assert!(says.is_none_or(|says| errors.contains(says)), "{config}: {errors}");
    }
}

#[test]
fn the_page_runs_only_its_own_script() {
    let (server, _directory) = start("", "");
    let answer = get(&server, "/status", "127.0.0.1", "");
    assert!(answer.contains("\r\nContent-Type: text/html; charset=utf-8\r\n"), "{answer}");
    assert!(answer.contains("\r\nContent-Security-Policy: default-src 'none'; script-src 'sha256-"), "{answer}");
    let data = get(&server, "/status?json", "127.0.0.1", "");
    let (_, json) = data.split_once("\r\n\r\n").unwrap();
    let data: Value = serde_json::from_str(json).unwrap();
    assert_eq!(data["workers"].as_array().map(Vec::len), Some(1), "{data:#}");
}

#[test]
fn an_open_request_is_reported_of_with_all_that_is_known() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = silent.local_addr().unwrap();
    let (server, directory) = start(&format!("forward \"http://{upstream}\" path=\"/slow/*\""), "");
    let mut stream = server.connect();
    stream.write_all(b"GET /slow/file?q=1 HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
    let reported = await_status(directory.path(), |status| status["requests"].get(0).cloned());
    for (key, expect) in [
        ("method", "GET"),
        ("target", "/slow/file?q=1"),
        ("host", "a.example"),
        ("handler", "forward"),
        ("stage", "answering"),
        ("version", "1.1"),
        ("client", "127.0.0.1"),
    ] {
        assert_eq!(reported[key], expect, "{reported:#}");
    }
    assert!(reported["upstream"].as_str().is_some_and(|server| server.contains(&upstream.to_string())), "{reported:#}");
    let seen = status(directory.path());
    assert_eq!((&seen["requests_open"], &seen["workers"][0]["connections"]["answering"]), (&1.into(), &1.into()));
    let overview = tell(directory.path(), &["status"]);
    assert!(overview.contains("GET a.example/slow/file?q=1 HTTP/1.1"), "{overview}");
    assert!(overview.contains("processing") && !overview.contains("answering"), "{overview}");
    // The client leaves, which ends its request; metrics count it as aborted.
    drop(stream);
    await_status(directory.path(), |status| (status["requests_open"] == 0).then_some(()));
    let sites = status(directory.path())["sites"].clone();
    assert!(sites.as_array().is_some_and(|sites| sites.iter().any(|site| site["aborted"] == 1)), "{sites:#}");
}

#[test]
fn upstreams_and_their_servers_are_shown() {
    // No process listens there.
    let gone = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (server, directory) = start(&format!("forward \"http://{gone}\" path=\"/app/*\""), "");
    let answer = get(&server, "/app/", "a.example", "");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let reported = tell(directory.path(), &["upstreams"]);
    assert!(reported.contains(&format!("{gone}: 0 in use, 1 requests, 1 failures")), "{reported}");
    let metrics = get(&server, "/metrics", "127.0.0.1", "");
    let name = format!("tailcoat_upstream_unanswered_total{{upstream=\"http://{gone}\"}}");
    assert_eq!(sample(&metrics, &name), Some(1.0), "{metrics}");
}

#[test]
fn programs_that_run_are_counted() {
    let programs = tempfile::tempdir().unwrap();
    let script = programs.path().join("waits");
    let text = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nbegun'\nwhile [ ! -e go ]; do sleep 0.05; done\n";
    write_program(&script, text);
    let site = format!(
        "cgi \"/cgi-bin/*\" root=\"{}\" {{\n strip-prefix \"/cgi-bin\"\n processes-max 1\n queue-max 0\n }}",
        programs.path().display()
    );
    let (server, directory) = start(&site, "");
    let mut stream = server.connect();
    write!(stream, "GET /cgi-bin/waits HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").unwrap();
    let running = |count: u64| move |status: &Value| (status["programs"]["running"] == count).then_some(());
    await_status(directory.path(), running(1));
    assert!(get(&server, "/cgi-bin/waits", "a.example", "").starts_with("HTTP/1.1 503 "));
    std::fs::write(programs.path().join("go"), "").unwrap();
    assert!(read_all(&mut stream).contains("begun"));
    await_status(directory.path(), running(0));
    let metrics = get(&server, "/metrics", "127.0.0.1", "");
    for (name, count) in [
        ("tailcoat_cgi_programs", 0.0),
        ("tailcoat_cgi_programs_started_total", 1.0),
        ("tailcoat_cgi_programs_refused_total", 1.0),
    ] {
        assert_eq!(sample(&metrics, name), Some(count), "{name}");
    }
}

#[test]
fn limits_that_are_hit_are_counted_by_name() {
    let (server, directory) = start("rate-limit \"/page.html\" \"1/m\"", "");
    let statuses: Vec<_> = (0..3).map(|_| get(&server, "/page.html", "a.example", "")[9..12].to_owned()).collect();
    assert_eq!(statuses, ["200", "429", "429"]);
    server.exchange(format!("GET /{} HTTP/1.1\r\nHost: a.example\r\n\r\n", "x".repeat(9_000)).as_bytes());
    let limits = status(directory.path())["limits"].clone();
    let count = |name: &str| {
        let found = limits.as_array().into_iter().flatten().find(|limit| limit["limit"] == name);
        found.and_then(|limit| limit["count"].as_u64())
    };
    assert_eq!((count("rate-limit"), count("target-bytes-max"), count("head-timeout")), (Some(2), Some(1), Some(0)));
}

#[test]
fn the_log_is_followed_with_filters() {
    let (server, directory) = start("", "");
    let mut command = tailcoat();
    command.args(["log", "tail", "--status", "4xx", "--path", "/no", "--format", "{status} {path}", "--socket"]);
    let mut tail = command.arg(directory.path().join("control.sock")).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    // Requests appear only once the tail is connected.
    let start = Instant::now();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Some(Ok(line)) = lines.next() {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let line = loop {
        for target in ["/page.html", "/other", "/not-there"] {
            get(&server, target, "a.example", "");
        }
        if let Ok(line) = receiver.recv_timeout(Duration::from_millis(300)) {
            break line;
        }
        assert!(start.elapsed() < PATIENCE, "nothing was shown");
    };
    assert_eq!(line, "404 /not-there");
    tail.kill().unwrap();
    tail.wait().unwrap();
    let rejected = tailcoat()
        .args(["log", "tail", "--format", "binary", "--socket"])
        .arg(directory.path().join("control.sock"))
        .output()
        .unwrap();
    assert!(!rejected.status.success());
}

/// Log tails and silent clients on the control socket leave room for others.
#[test]
fn the_control_socket_has_room_for_others() {
    let (_server, directory) = start("", "");
    let socket = directory.path().join("control.sock");
    let look_on = || {
        let mut command = tailcoat();
        command.args(["log", "tail", "--socket"]).arg(&socket);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let idle: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let mut looking_on: Vec<_> = (0..18).map(|_| look_on()).collect();
    // Clients without a place get a message.
    eventually("two are rejected", || looking_on.iter_mut().filter_map(|tail| tail.try_wait().unwrap()).count() >= 2);
    assert!(tell(directory.path(), &["status"]).starts_with("tailcoat "));
    let mut rejected = 0;
    for mut tail in looking_on {
        let _ = tail.kill();
        let said = String::from_utf8(tail.wait_with_output().unwrap().stderr).unwrap();
        rejected += usize::from(
            said == "tailcoat: 16 commands watch the server already, which is the maximum; end one and try again\n",
        );
    }
    assert_eq!(rejected, 2);
    drop(idle);
}

/// Requests about the server itself are counted apart, and not in the latency of visitors' requests.
#[test]
fn looking_is_not_counted_as_a_visit() {
    let (server, directory) = start("", "");
    get(&server, "/page.html", "a.example", "");
    (0..4).for_each(|_| _ = get(&server, "/metrics", "127.0.0.1", ""));
    let metrics = get(&server, "/metrics", "127.0.0.1", "");
    let counts: f64 = metrics
        .lines()
        .filter(|line| line.starts_with("tailcoat_http_request_duration_seconds_count{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert_eq!(counts, 1.0, "{metrics}");
    assert!(metrics.contains("handler=\"status\""), "{metrics}");
    assert!(tell(directory.path(), &["status"]).contains("since start 1\n"));
}

#[test]
fn counters_can_be_off() {
    let (server, directory) = start("", "counters off");
    get(&server, "/page.html", "a.example", "");
    let metrics = get(&server, "/metrics", "127.0.0.1", "");
    assert!(
        !metrics.contains("tailcoat_http_requests_total") && metrics.contains("tailcoat_connections{"),
        "{metrics}"
    );
    assert!(tell(directory.path(), &["status"]).contains("counters    off"));
}

#[test]
fn the_doctor_looks_at_machine_and_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tailcoat.kdl");
    std::fs::write(&file, "limits { rate-bytes-per-second-min 0 }\nsite { listen 20080; respond \"*\" 200 }\n")
        .unwrap();
    let output = tailcoat().args(["doctor", "--json", "-c"]).arg(&file).output().unwrap();
    let findings: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let has = |what: &str| findings.as_array().is_some_and(|all| all.iter().any(|finding| finding["what"] == what));
    assert!(has("`rate-bytes-per-second-min` is 0") && has("there is no `control-socket`"), "{findings:#}");
    assert_eq!(output.status.code(), Some(1), "safety is at stake");
    let text = Command::new(tailcoat().get_program()).args(["doctor", "--no-config"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&text.stdout).contains("control-socket"));
}
