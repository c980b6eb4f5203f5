//! `tailor agent`: parts of a load that start together and end as one result.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::server::{FakeServer, FakeServerAction, ok, start};
use crate::{failures, tailor};

/// Running agent; it is killed when it is dropped.
struct Agent {
    child: Child,
    address: String,
}

impl Agent {
    fn start(secret: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailor"));
        command.args(["agent", "--listen", "127.0.0.1:0", "--secret"]).arg(secret).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("tailor agent: listening on ").expect("an address").to_owned();
        Self { child, address }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a new secret.
fn secret(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    assert!(tailor(&["agent", "--new-secret", path.to_str().unwrap()]).status.success());
    path
}

/// Runs a load on agents. Returns the report, or the error.
fn bench(server: &FakeServer, agents: &str, secret: &Path, arguments: &[&str]) -> Result<Value, String> {
    let own =
        ["bench", "--quiet", "--json", "-", &server.url, "--agents", agents, "--secret", secret.to_str().unwrap()];
    let output = tailor(&[&own, arguments].concat());
    serde_json::from_slice(&output.stdout).map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn parts_make_one_result() {
    let directory = tempfile::tempdir().unwrap();
    let secret = secret(directory.path(), "secret");
    let agents = [(); 2].map(|()| Agent::start(&secret, &[]));
    let names = format!("{},{}", agents[0].address, agents[1].address);
    let server = start(|request| {
        let is_listed = request.head.starts_with("GET /listed ");
        FakeServerAction::Delay(Duration::from_millis(if is_listed { 20 } else { 5 }), ok(b"x"))
    });
    let urls = directory.path().join("urls");
    std::fs::write(&urls, "/listed\n").unwrap();
    let urls = urls.to_str().unwrap();
    let directory_of_scenario = tempfile::tempdir().unwrap();
    std::fs::write(directory_of_scenario.path().join("users.csv"), "user\nann\n").unwrap();
    let scenario = directory_of_scenario.path().join("scenario.kdl");
    std::fs::write(&scenario, "data \"users.csv\"\nscenario \"s\" { get \"/${user}\" }").unwrap();
    for (arguments, served, latency_ms) in [
        (&["-c", "4", "-n", "101"][..], 101, 5.0),
        (&["-c", "4", "-R", "200", "-d", "1s"], 200, 5.0),
        (&["-c", "4", "--profile", "100:500ms,200:500ms"], 150, 5.0),
        (&["-c", "4", "-n", "20", "--urls", urls], 20, 20.0),
        (&["-c", "4", "-n", "20", "--scenario", scenario.to_str().unwrap()], 20, 5.0),
    ] {
        let before = server.connections.load(std::sync::atomic::Ordering::SeqCst);
        let report = bench(&server, &names, &secret, arguments).unwrap();
        assert_eq!((report["served"].as_u64(), failures(&report)), (Some(served), vec![]), "{arguments:?}: {report}");
        assert_eq!(report["latency"]["count"].as_u64(), Some(served), "{arguments:?}");
        assert!(report["latency"]["min_nanos"].as_f64().unwrap() / 1e6 >= latency_ms - 0.1, "{arguments:?}: {report}");
        assert_eq!(report["connections"].as_u64(), Some(4), "{arguments:?}: {report}");
        let opened = || server.connections.load(std::sync::atomic::Ordering::SeqCst) - before;
        // A connection without a request may be accepted later.
        let began = Instant::now();
        while opened() < 4 && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(opened(), 4, "only agents connect");
        assert!(report["passed"].as_bool().unwrap(), "{report}");
    }
    let report = bench(&server, &names, &secret, &["-c", "2", "-n", "10", "--require", "p50<1ms"]).unwrap();
    assert_eq!(report["passed"], false, "the controller judges: {report}");
}

#[test]
fn agents_reject_what_they_must() {
    let directory = tempfile::tempdir().unwrap();
    let (known, other) = (secret(directory.path(), "a"), secret(directory.path(), "b"));
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    let agent = Agent::start(&known, &["--allow", "192.0.2.1", "--connections-max", "100", "--duration-max", "10s"]);
    for (secret, arguments, expect) in [
        (&other, &["-n", "1"][..], "same secret"),
        (&known, &["-n", "1"], "the agent loads only 192.0.2.1 (--allow)"),
        (&known, &["-c", "101", "-n", "200"], "101 connections are more than 100"),
        (&known, &["-d", "11s"], "longer than 10 s"),
        (&known, &["--urls", "/nonexistent"], "/nonexistent"),
    ] {
        let error = bench(&server, &agent.address, secret, arguments).unwrap_err();
        assert!(error.contains(expect), "{arguments:?}: {error}");
    }
    assert_eq!(server.connections.load(std::sync::atomic::Ordering::SeqCst), 0);
    // Bytes that are no TLS end only their own connection.
    let mut stream = std::net::TcpStream::connect(&agent.address).unwrap();
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = bench(&server, &agent.address, &known, &["-n", "1"]).unwrap_err();
    assert!(error.contains("--allow"), "{error}");
    let output = tailor(&["bench", &server.url, "--agents", "127.0.0.1:1", "--secret", known.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("agent 127.0.0.1:1: Connection refused"));
}

#[test]
fn a_lost_agent_ends_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let secret = secret(directory.path(), "secret");
    let mut agents = [(); 2].map(|()| Agent::start(&secret, &[]));
    let names = format!("{},{}", agents[0].address, agents[1].address);
    let server = start(|_| FakeServerAction::Delay(Duration::from_millis(5), ok(b"x")));
    let started = Instant::now();
    let error = std::thread::scope(|scope| {
        let run = scope.spawn(|| bench(&server, &names, &secret, &["-c", "2", "-d", "60s"]));
        while server.heads.lock().unwrap().len() < 10 {
            std::thread::sleep(Duration::from_millis(10));
        }
        let busy = bench(&server, &agents[1].address, &secret, &["-n", "1"]).unwrap_err();
        assert!(busy.contains("is running another load"), "{busy}");
        agents[0].child.kill().unwrap();
        run.join().unwrap().unwrap_err()
    });
    assert!(error.contains(&format!("agent {}:", agents[0].address)), "{error}");
    assert!(started.elapsed() < Duration::from_secs(40), "{:?}", started.elapsed());
    // The other agent ends its part, and takes another.
    let began = Instant::now();
    let report = loop {
        match bench(&server, &agents[1].address, &secret, &["-c", "1", "-n", "5"]) {
            Err(error) if error.contains("is running another load") && began.elapsed() < Duration::from_secs(30) => {}
            result => break result,
        }
    };
    assert_eq!(report.unwrap()["served"], 5);
}
