//! Modules in operation: counters, replacement and reload under load, and state that survives.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::support::guests::{compiled_directory, filters, guests};
use crate::support::h2::H2Client;
use crate::support::operated::Operated;
use crate::support::waiting::{eventually, eventually_some};
use crate::support::{ask, read_until};

/// Limits low enough for a test to reach.
const LIMITS: &str = "memory-bytes-max \"16MiB\"; cpu-time-max \"200ms\"; response-bytes-max \"1MiB\"; \
                      first-byte-timeout \"10m\"";

/// One site with a module and a file, and further options of both.
fn config(module: &str, options: &str, site: &str) -> String {
    format!(
        "modules {{ compile-wait \"5m\"; compiled \"{}\"; check-interval \"100ms\" }}\nsite \"h\" {{\n listen \"127.0.0.1:0\"\n {site}\n \
         files \"/file\" root=\"@DIR@\"\n module \"*\" \"{module}\" {{ {options} }}\n}}\n",
        compiled_directory().display()
    )
}

fn start(config: &str) -> Operated {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "a file").unwrap();
    Operated::start_in(directory, config)
}

fn get(operated: &Operated, target: &str) -> String {
    ask(&operated.server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
}

/// Whole response on a kept connection. The module's timing decides whether it is chunked.
fn ask_again(stream: &mut TcpStream, target: &str) -> String {
    write!(stream, "GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut answer = read_until(stream, "\r\n\r\n");
    let length = answer.split_once("Content-Length: ").map(|(_, rest)| rest.split_once("\r\n").unwrap().0.to_owned());
    loop {
        let content = answer.split_once("\r\n\r\n").expect("the head is there").1;
        let is_whole = match &length {
            Some(length) => content.len() == length.parse::<usize>().unwrap(),
            None => content.ends_with("0\r\n\r\n"),
        };
        if is_whole {
            return answer;
        }
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "it is not whole: {answer}");
        answer.push_str(str::from_utf8(&buffer[..count]).unwrap());
    }
}

fn status(operated: &Operated) -> Value {
    serde_json::from_slice(&operated.order(&["status", "--json"]).stdout).expect("JSON")
}

/// Polls the status until the condition holds.
fn await_status(operated: &Operated, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually_some("the status changes", || Some(status(operated)).filter(|status| is_so(status)))
}

fn failures(module: &Value, cause: &str) -> u64 {
    let failures = module["failures"].as_array().expect("a list");
    let of_cause = failures.iter().find(|failure| failure["cause"] == cause).expect("each cause is told of");
    of_cause["count"].as_u64().expect("a number")
}

#[test]
fn what_is_counted_of_a_module() {
    let Some(guests) = guests() else { return };
    let operated = start(&config(&guests.display().to_string(), LIMITS, "metrics \"/metrics\""));
    for target in ["/hello", "/trap", "/panic", "/memory", "/loop", "/flood", "/hello"] {
        get(&operated, target);
    }
    let mut waiting = operated.server.connect();
    waiting.write_all(b"GET /hang HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let status = await_status(&operated, |status| status["modules"][0]["requests"] == 8);
    assert_eq!(status["modules"][0]["name"], "guests");
    // Only the waiting instance is left; the others have ended and released everything.
    let status = await_status(&operated, |status| status["modules"][0]["instances"] == 1);
    let module = &status["modules"][0];
    let held = status["modules"][0]["memory_bytes"].as_u64().unwrap();
    assert!((64 << 10..16 << 20).contains(&held), "{held}");
    for (cause, count) in [
        ("failed", 2),
        ("memory-bytes-max", 1),
        ("cpu-time-max", 1),
        ("response-bytes-max", 1),
        ("first-byte-timeout", 0),
        ("instances-max", 0),
    ] {
        assert_eq!(failures(module, cause), count, "{cause}: {module:#}");
    }
    let metrics = ask(
        &operated.server,
        "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/openmetrics-text\r\nConnection: close\r\n\r\n",
    );
    for line in [
        "tailcoat_module_requests_total{module=\"guests\"} 8",
        "tailcoat_module_instances{module=\"guests\"} 1",
        "tailcoat_module_failures_total{module=\"guests\",cause=\"cpu-time-max\"} 1",
        "tailcoat_module_failures_total{module=\"guests\",cause=\"table-elements-max\"} 0",
        "tailcoat_cgi_programs 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    let text = String::from_utf8(operated.order(&["status"]).stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("module guests")).expect("a line for it");
    assert!(line.contains("1 instances") && line.contains("cpu-time-max 1"), "{line}");
    drop(waiting);
    await_status(&operated, |status| {
        status["modules"][0]["instances"] == 0 && status["modules"][0]["memory_bytes"] == 0
    });
}

/// Measured by count: loops still run after this many other requests of the same workers.
#[test]
fn others_are_answered_while_modules_loop() {
    let Some(guests) = guests() else { return };
    let options = "cpu-time-max \"1h\"; first-byte-timeout \"1h\"";
    let operated = start(&config(&guests.display().to_string(), options, ""));
    let mut stream = operated.server.connect();
    let mut ask_others = || {
        for _ in 0..100 {
            for (target, answer) in [("/file", "a file"), ("/hello", "hello\n")] {
                assert!(ask_again(&mut stream, target).contains(answer));
            }
        }
    };
    let busy_us = |operated: &Operated| -> u64 {
        let status = status(operated);
        status["workers"].as_array().unwrap().iter().map(|worker| worker["busy_us"].as_u64().unwrap()).sum()
    };
    ask_others();
    let start = busy_us(&operated);
    ask_others();
    let undisturbed = busy_us(&operated) - start;
    let mut loops: Vec<TcpStream> = (0..8).map(|_| operated.server.connect()).collect();
    for stream in &mut loops {
        stream.write_all(b"GET /loop HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    }
    await_status(&operated, |status| status["modules"][0]["instances"] == 8);
    let start = busy_us(&operated);
    ask_others();
    // CPU time of the workers' own threads: the loops have left them. A worker that ran them would be busy all the
    // time.
    let disturbed = busy_us(&operated) - start;
    assert!(disturbed < 3 * undisturbed + 100_000, "{disturbed} us, {undisturbed} us without loops");
    for stream in &mut loops {
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let error = stream.read(&mut [0; 1]).expect_err("they still loop");
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    }
    assert_eq!(failures(&status(&operated)["modules"][0], "cpu-time-max"), 0);
}

/// Copies a module's file with this many custom sections (Binary Format, section 5.5.3), which make it another file.
fn put(original: &Path, file: &Path, count: usize) {
    let mut bytes = std::fs::read(original).unwrap();
    // Id, size, length of its name, name.
    (0..count).for_each(|_| bytes.extend_from_slice(b"\0\x04\x03new"));
    let next = file.with_extension("next");
    std::fs::write(&next, bytes).unwrap();
    std::fs::rename(next, file).unwrap();
}

/// Runs clients during `operate`: on kept connections, on new ones, and over HTTP/2. Each response must arrive and be
/// right; returns their number.
fn under_load(operated: &Operated, target: &str, expect: &str, operate: impl FnOnce(&AtomicU64)) -> u64 {
    let (is_done, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let go_on = |ask: &mut dyn FnMut()| {
        while !is_done.load(Ordering::Relaxed) {
            ask();
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut stream = operated.server.connect();
                go_on(&mut || {
                    let answer = ask_again(&mut stream, target);
                    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(expect), "{answer}");
                });
            });
        }
        scope.spawn(|| {
            go_on(&mut || {
                let answer = get(operated, target);
                assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(expect), "{answer}");
            });
        });
        scope.spawn(|| {
            let mut client = H2Client::connect(&operated.server);
            go_on(&mut || {
                let answer = client.get(target);
                assert_eq!((answer.status(), answer.content.as_slice()), (200, expect.as_bytes()));
            });
        });
        operate(&count);
        is_done.store(true, Ordering::Relaxed);
    });
    count.into_inner()
}

/// Waits for this many more responses.
fn await_answers(count: &AtomicU64, more: u64) {
    let wanted = count.load(Ordering::Relaxed) + more;
    eventually("clients are answered", || count.load(Ordering::Relaxed) >= wanted);
}

#[test]
fn new_files_take_the_place_of_old_ones_under_load() {
    let (Some(guests), Some(filters)) = (guests(), filters()) else { return };
    for (original, target, options) in
        [(guests, "/hello", ""), (filters, "/guest/hello", "reset none"), (filters, "/guest/hello", "reset memory")]
    {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("shop.wasm");
        put(original, &file, 0);
        let operated = start(&config(&file.display().to_string(), options, ""));
        let answers = under_load(&operated, target, "hello\n", |count| {
            for number in 1..=4 {
                await_answers(count, 20);
                put(original, &file, number);
                eventually("the new file is used", || {
                    operated.file("errors.log").matches("module replaced by its new file").count() >= number
                });
            }
            await_answers(count, 20);
        });
        let status = status(&operated);
        let module = &status["modules"][0];
        assert_eq!(module["requests"], answers, "{module:#}");
        assert!(module["failures"].as_array().unwrap().iter().all(|failure| failure["count"] == 0), "{module:#}");
        assert!(!operated.file("errors.log").contains("panicked"));
    }
}

#[test]
fn reloads_under_load_keep_what_modules_have() {
    let Some(guests) = guests() else { return };
    let module = guests.display().to_string();
    let operated = start(&config(&module, "key-value on", ""));
    assert!(get(&operated, "/key-value?default,set,colour,red").contains("set"));
    under_load(&operated, "/hello", "hello\n", |count| {
        for number in 1..=3 {
            await_answers(count, 20);
            // Another site with the same file, compiled for another engine.
            let more = format!(
                "site \"more\" {{\n listen \"127.0.0.1:0\"\n module \"*\" \"{module}\" {{ environment \"N\" \"{number}\" }}\n}}\n"
            );
            operated.reload(&(config(&module, "key-value on", "") + &more));
            let answer = ask(&operated.server, "GET /environment HTTP/1.1\r\nHost: more\r\nConnection: close\r\n\r\n");
            assert!(answer.contains(&format!("N={number}\n")), "{answer}");
        }
        await_answers(count, 20);
    });
    assert!(get(&operated, "/key-value?default,get,colour").contains("red"));
    // Counters continue.
    assert!(status(&operated)["modules"][0]["requests"].as_u64().unwrap() > 80);
}
