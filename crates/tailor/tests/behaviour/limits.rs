//! Limits of the client: it reports each one that it reaches, and avoids those it can.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output};

use serde_json::Value;

use crate::failures;
use crate::server::{FakeServerAction, ok, start};
use crate::skips::{skip, skip_without};

/// Runs `tailor bench` from a shell script that ends with `exec "$@"`, and returns the report.
fn bench_in_shell(shell: &str, arguments: &[&str]) -> Value {
    let program = [env!("CARGO_BIN_EXE_tailor"), "bench", "--quiet", "--json", "-"];
    let output = Command::new("sh").args(["-c", shell, "sh"]).args(program).args(arguments).output().unwrap();
    parse(&output)
}

fn parse(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

fn limits(report: &Value) -> Vec<&str> {
    report["limits"].as_array().unwrap().iter().map(|limit| limit["text"].as_str().unwrap()).collect()
}

/// Each response takes 100 ms, so four connections serve 40 of 1,000 requests per second while the client is idle.
#[test]
fn a_slow_server_is_the_limit() {
    let server = start(|_| FakeServerAction::Delay(std::time::Duration::from_millis(100), ok(b"x")));
    let measure = |_| crate::bench(&server.url, &["-c", "4", "-R", "1000", "-d", "500ms", "--timeout", "300ms"]).0;
    let full_of = |report: &Value| -> Vec<Value> {
        let limits = report["limits"].as_array().unwrap().iter();
        limits.filter(|limit| limit["text"].as_str().unwrap().contains("no free connection")).cloned().collect()
    };
    // On a busy machine, the client may wait for a CPU, and then it is a limit itself.
    let report = crate::undisturbed(measure, |report| full_of(report).iter().any(|limit| limit["by"] == "server"));
    let full = full_of(&report);
    assert_eq!(full.len(), 1, "{report}");
    assert_eq!(full[0]["by"], "server", "{report}");
    assert!(
        !full[0]["text"].as_str().unwrap().contains("-c"),
        "more connections do not make the server faster: {report}"
    );
}

/// The client reaches its own limit, and says what it can do against a server that answers at once.
#[test]
fn a_busy_client_is_calibrated() {
    let url = greedy_server("127.0.0.1:0");
    for (arguments, is_calibrated) in [(&["-d", "300ms"][..], true), (&["-d", "300ms", "--no-calibration"], false)] {
        let (report, _) = crate::bench(&url, &[&["-c", "64", "--pipeline", "16"], arguments].concat());
        // The server may be slower than the client.
        for limit in limits(&report).iter().filter(|limit| limit.starts_with("CPU")) {
            assert_eq!(limit.contains("answers at once it reached"), is_calibrated, "{limit}");
        }
    }
}

#[test]
fn descriptors() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    // The client raises the soft limit of file descriptors up to the hard limit.
    let report = bench_in_shell(r#"ulimit -S -n 20; exec "$@""#, &["-c", "40", "-n", "400", &server.url]);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(400)));
    assert!(!limits(&report).iter().any(|limit| limit.starts_with("file descriptors")), "{:?}", limits(&report));

    let report = bench_in_shell(r#"ulimit -n 20; exec "$@""#, &["-c", "40", "-n", "400", &server.url]);
    let failed = report["failures"]["failed connect"].as_u64().unwrap();
    assert!(failed > 0 && failed + report["served"].as_u64().unwrap() == 400, "{report}");
    assert!(limits(&report).iter().any(|limit| limit.starts_with("file descriptors: none was free")), "{report}");
}

/// Runs in a network namespace of its own with twenty ports; see [`ports`].
#[test]
#[ignore = "run by the test `ports`"]
fn in_a_network_of_twenty_ports() {
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40019").unwrap();
    let run = |url: &str, arguments: &[&str]| {
        parse(&crate::tailor(&[&["bench", "--quiet", "--json", "-", url], arguments].concat()))
    };
    // The server lets the client close first, so the client's ports enter TIME_WAIT.
    let url = greedy_server("127.0.0.1:30003");
    let report = run(&url, &["-c", "19", "-d", "3s", "--keep-alive", "0"]);
    // The kernel reuses such a port after one second at the earliest, and twenty are used up before.
    assert!(limits(&report).iter().any(|limit| limit.contains("in TIME_WAIT")), "{report}");
    // With more concurrent connections than one address has ports, the client uses further addresses.
    let url = greedy_server("127.0.0.1:30001");
    let report = run(&url, &["-c", "70", "-n", "700"]);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(700)), "{report}");
    assert!(report["client"]["sources"].as_u64().unwrap() >= 4, "{report}");
    assert!(
        limits(&report).iter().any(|limit| limit.contains("times; ") && limit.starts_with("ports: none was free")),
        "{report}"
    );
    // The IPv6 loopback network has no further address.
    let url = greedy_server("[::1]:30002");
    let report = run(&url, &["-c", "70", "-n", "700"]);
    let failed = report["failures"]["failed connect"].as_u64().unwrap();
    assert!(failed > 0 && failed + report["served"].as_u64().unwrap() == 700, "{report}");
    assert!(limits(&report).iter().any(|limit| limit.contains("no other source address")), "{report}");
}

#[test]
fn ports() {
    let script = r#"ip link set lo up && exec "$0" --exact limits::in_a_network_of_twenty_ports --ignored --nocapture"#;
    let words = ["--user", "--map-root-user", "--net", "sh", "-c", script];
    let Ok(output) = Command::new("unshare").args(words).arg(std::env::current_exe().unwrap()).output() else {
        skip_without("unshare");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // Some machines do not let users create a network namespace.
    if text.contains("running 1 test") {
        assert!(output.status.success(), "{text}");
    } else {
        skip(&format!("no network namespace can be made here: {text}"));
    }
}

/// Starts a server that answers every request and never closes a connection.
fn greedy_server(address: &str) -> String {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut input = [0; 4096];
                while matches!(stream.read(&mut input), Ok(1..)) {
                    let _ = stream.write_all(&ok(b"x"));
                }
                // The client closed first, so that TIME_WAIT is on its side.
            });
        }
    });
    format!("http://{address}/")
}
