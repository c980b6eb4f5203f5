//! Runs that end when they are precise, their history, and metrics while they run.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::server::{FakeServer, FakeServerAction, ok, start};
use crate::{bench, failures, tailor, undisturbed};

/// Server that answers after 2 ms.
fn steady() -> FakeServer {
    start(|_| FakeServerAction::Delay(Duration::from_millis(2), ok(b"x")))
}

#[test]
fn a_run_ends_when_it_is_precise() {
    let server = steady();
    for arguments in [&["-c", "4"][..], &["-c", "8", "-R", "200"], &["-c", "8", "-R", "200", "-t", "2"]] {
        let all = [arguments, &["-d", "60s", "--interval", "50ms", "--until-precise", "30%"]].concat();
        // On a busy machine, a minute may not be enough.
        let (report, code) =
            undisturbed(|_| bench(&server.url, &all), |(report, _)| report["precision"]["reached"] == true);
        let precision = &report["precision"];
        assert_eq!((precision["reached"].as_bool(), failures(&report), code), (Some(true), vec![], 0), "{report}");
        assert!(precision["half_width_share"].as_f64().unwrap() <= 0.3, "{precision}");
        let seconds = report["duration_seconds"].as_f64().unwrap();
        assert!((0.9..40.0).contains(&seconds), "{arguments:?}: {seconds} s");
        // Rate and duration end at the same moment.
        let rate = report["served"].as_f64().unwrap() / seconds;
        let error = rate / report["served_per_second"].as_f64().unwrap() - 1.0;
        assert!(error.abs() < 0.05, "{rate}/s: {report}");
        assert_eq!(report["unfinished"].as_u64().unwrap() > 0, !arguments.contains(&"-R"), "{report}");
    }
}

#[test]
fn a_run_that_is_not_precise_in_time() {
    let server = start(|request| match request.number % 7 {
        0 => FakeServerAction::Delay(Duration::from_millis(50), ok(b"x")),
        _ => FakeServerAction::Reply(ok(b"x")),
    });
    let arguments = ["-c", "1", "-d", "1s", "--interval", "20ms", "--until-precise", "max:0.01%"];
    let output = tailor(&[&["bench", &server.url], &arguments[..]].concat());
    assert!(String::from_utf8_lossy(&output.stderr).contains("unknown quantity `max`"));
    let arguments = ["-c", "1", "-d", "1s", "--interval", "20ms", "--until-precise", "mean:0.01%"];
    let (report, code) = bench(&server.url, &arguments);
    assert_eq!((report["precision"]["reached"].as_bool(), code), (Some(false), 0), "{report}");
    let text = String::from_utf8(tailor(&[&["bench", "-q", &server.url], &arguments[..]].concat()).stdout).unwrap();
    assert!(text.contains("the time was used up before +- 0.01 %"), "{text}");
}

#[test]
fn history() {
    let server = steady();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    for run in 0..3 {
        bench_to(&server, &path(&format!("{run}.json")), "2");
    }
    bench_to(&server, &path("other.json"), "3");
    let page = path("history.html");
    let output = tailor(&["history", "--html", &page, &path("2.json"), &path("0.json"), &path("1.json")]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.lines().count() == 4 && text.contains(" UTC "), "{text}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<title>tailor history: 127.0.0.1:") && page.contains(" 3 runs from 20"), "{page}");
    assert!(page.contains("Requests served per second") && page.contains("Latency"), "{page}");
    let output = tailor(&["history", &path("0.json"), &path("other.json")]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("the loads differ"));
}

fn bench_to(server: &FakeServer, path: &str, connections: &str) {
    let output = tailor(&["bench", "-q", "-n", "20", "-c", connections, "--json", path, &server.url]);
    assert!(output.status.success());
}

/// Fetches a path from an address.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn metrics_while_it_runs() {
    let server = steady();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailor"));
    command.args(["bench", "-c", "2", "-d", "300s", "--interval", "50ms", "--metrics", "127.0.0.1:0", &server.url]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut progress = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    progress.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("metrics: http://").unwrap().strip_suffix("/metrics").unwrap().to_owned();
    // A client that sends nothing delays the others, and stops none of them.
    let silent = TcpStream::connect(&address).unwrap();
    for _ in 0..3 {
        line.clear();
        progress.read_line(&mut line).unwrap();
    }
    let value_in = |text: &str, name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("tailor_{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    };
    let mut text = get(&address, "/metrics");
    drop(silent);
    // On a busy machine, three intervals may end before the first response.
    let began = Instant::now();
    while value_in(&text, "served_total") == 0.0 && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
        text = get(&address, "/metrics");
    }
    let value = |name: &str| value_in(&text, name);
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && value("served_total") > 0.0, "{text}");
    assert_eq!(value("latency_seconds_count"), value("served_total"));
    assert_eq!(value("latency_seconds_bucket{le=\"0.001\"}"), 0.0, "the server takes 2 ms");
    assert_eq!(value("latency_seconds_bucket{le=\"30\"}"), value("served_total"));
    assert_eq!(value("failed_total{class=\"time-out\"}"), 0.0);
    assert!(get(&address, "/other").starts_with("HTTP/1.1 404"));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
