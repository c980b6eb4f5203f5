//! Simulated lines: they must keep their rate. A busy machine may make them a little slower, never faster.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::server::{FakeServerAction, ok, start};
use crate::{bench, failures, longer, percentile_ms, undisturbed};

#[test]
fn each_line_keeps_its_rate() {
    let content = vec![b'x'; 100_000];
    let server = start(move |_| FakeServerAction::Reply(ok(&content)));
    let measure = |_| bench(&server.url, &["-c", "20", "-n", "20", "--line", "400k", "--ramp-up", "100ms"]);
    let (report, _) = undisturbed(measure, |(report, _)| percentile_ms(&report["latency"], 50.0) < 4_000.0);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(20)));
    let lines = &report["lines"];
    assert_eq!(lines["count"].as_u64(), Some(20));
    let rate = |name: &str| lines[name].as_f64().unwrap();
    assert!(rate("max") < 408e3 && rate("median") > 200e3, "{}", lines["rates"]);
    // The response has 100,040 bytes at 400 kbit/s, and the request is sent before it.
    let median = percentile_ms(&report["latency"], 50.0);
    assert!((1_960.0..4_000.0).contains(&median), "{median} ms");
}

/// A fast line carries more at a time than the buffer of a slow line holds.
#[test]
fn a_fast_line_keeps_its_rate() {
    let content = vec![b'x'; 1_000_000];
    let server = start(move |_| FakeServerAction::Reply(ok(&content)));
    let measure = |_| bench(&server.url, &["-c", "4", "-n", "4", "--line", "8M"]);
    let (report, _) = undisturbed(measure, |(report, _)| report["lines"]["median"].as_f64() > Some(4e6));
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(4)));
    let lines = &report["lines"];
    let rate = |name: &str| lines[name].as_f64().unwrap();
    assert!(rate("max") < 8.2e6 && rate("median") > 4e6, "{}", lines["rates"]);
}

/// Two of four lines get no byte of a response.
#[test]
fn starved_lines_are_among_the_slow_ones() {
    let measure = |number| {
        let connections = AtomicUsize::new(0);
        let server = start(move |request| {
            let is_first = request.number_on_connection == 0;
            match is_first && connections.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                true => FakeServerAction::Stall,
                false => FakeServerAction::Reply(ok(&[b'x'; 1000])),
            }
        });
        // On a busy machine, a response may begin late.
        bench(&server.url, &["-c", "4", "-d", longer(&["1s", "5s"], number), "--line", "100k"])
    };
    let (report, _) = undisturbed(measure, |(report, _)| report["lines"]["starved"] == 2);
    let lines = &report["lines"];
    assert_eq!((lines["count"].as_u64(), lines["starved"].as_u64()), (Some(4), Some(2)), "{lines}");
    assert_eq!(lines["min"].as_f64(), Some(0.0), "{lines}");
    assert!(lines["within_2_percent_share"].as_f64().unwrap() <= 0.5, "{lines}");

    // Lines whose requests time out again and again are starved as well.
    let server = start(|_| FakeServerAction::Stall);
    let (report, _) = bench(&server.url, &["-c", "2", "-d", "500ms", "--line", "100k", "--timeout", "100ms"]);
    let lines = &report["lines"];
    assert_eq!((lines["count"].as_u64(), lines["starved"].as_u64()), (Some(2), Some(2)), "{lines}");
}

#[test]
fn latency_on_a_line() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    let measure = |_| bench(&server.url, &["-c", "4", "-n", "40", "--line", "-,latency=60ms"]);
    let (report, _) = undisturbed(measure, |(report, _)| percentile_ms(&report["latency"], 50.0) < 500.0);
    assert_eq!(failures(&report), []);
    let median = percentile_ms(&report["latency"], 50.0);
    assert!((60.0..500.0).contains(&median), "{median} ms");
}

/// A new connection takes a round trip for TCP, one for TLS, and one for the request.
#[test]
fn round_trips_of_new_connections() {
    let line = ["-c", "2", "-n", "4", "--keep-alive", "0", "--line", "-,latency=100ms"];
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    let least = |report: &serde_json::Value| report["latency"]["min_nanos"].as_f64().unwrap() / 1e6;
    let (report, _) = undisturbed(|_| bench(&server.url, &line), |(report, _)| least(report) < 1_000.0);
    let tls_server = crate::tls::LocalhostCa::new(crate::tls::BOTH, &[]).start(|_| FakeServerAction::Reply(ok(b"x")));
    let measure = |_| bench(&tls_server.url, &[&line[..], &["-k"]].concat());
    let (tls_report, _) = undisturbed(measure, |(report, _)| least(report) < 1_000.0);
    for (report, round_trips) in [(report, 2.0), (tls_report, 3.0)] {
        assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(4)));
        let least = least(&report);
        // A busy machine adds some time, and the timers of lines up to 1 ms each.
        assert!((round_trips * 100.0..1_000.0).contains(&least), "{round_trips} round trips: {least} ms");
        let connect = report["connect"]["min_nanos"].as_f64().unwrap() / 1e6;
        assert!(connect >= (round_trips - 1.0) * 100.0, "{round_trips} round trips: {connect} ms to connect");
    }
}

#[test]
fn slow_senders() {
    let server = start(|request| {
        assert_eq!(request.content.len(), 10_000);
        FakeServerAction::Reply(ok(b"x"))
    });
    let content = "x".repeat(10_000);
    let measure = |_| bench(&server.url, &["-c", "2", "-n", "2", "--line", "-/200k", "--body", &content]);
    let (report, _) = undisturbed(measure, |(report, _)| percentile_ms(&report["latency"], 50.0) < 1_000.0);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(2)));
    // 10 kB at 200 kbit/s.
    let median = percentile_ms(&report["latency"], 50.0);
    assert!((400.0..1_000.0).contains(&median), "{median} ms");
}

/// The response has 101 packets, in rounds of 10, 20, 40 and 80. With the handshake and the request that is 5 round trips.
#[test]
fn slow_start_takes_round_trips() {
    let content = vec![b'x'; 100 * 1460];
    let server = start(move |_| FakeServerAction::Reply(ok(&content)));
    for (line, round_trips) in [("-,latency=60ms", 5.0), ("-,latency=60ms,slow-start=off", 2.0)] {
        let measure = |_| bench(&server.url, &["-c", "1", "-n", "1", "--line", line]);
        let (report, _) = undisturbed(measure, |(report, _)| percentile_ms(&report["latency"], 100.0) < 1_500.0);
        assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(1)), "{line}");
        let time = report["latency"]["min_nanos"].as_f64().unwrap() / 1e6;
        assert!((round_trips * 60.0..1_500.0).contains(&time), "{line}: {time} ms");
    }
    // Later responses of the connection begin with the window that the earlier ones have reached: 80, then 160 packets.
    let least = |report: &serde_json::Value| report["latency"]["min_nanos"].as_f64().unwrap() / 1e6;
    let measure = |_| bench(&server.url, &["-c", "1", "-n", "4", "--line", "-,latency=60ms"]);
    let (report, _) = undisturbed(measure, |(report, _)| least(report) < 240.0);
    let last = least(&report);
    assert!((60.0..240.0).contains(&last), "one round trip: {last} ms");
}

#[test]
fn lost_packets_cost_time_and_no_content() {
    let content = vec![b'x'; 50 * 1460];
    let server = start(move |_| FakeServerAction::Reply(ok(&content)));
    let words = ["-c", "4", "-n", "40", "--seed", "1", "--expect-same", "--line", "-,latency=20ms,loss=5%"];
    let (report, _) = bench(&server.url, &words);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(40)));
    let [least, most] = ["min_nanos", "max_nanos"].map(|name| report["latency"][name].as_f64().unwrap() / 1e6);
    // One of 40 requests in twenty loses its first packet, which is sent again after 200 ms.
    assert!(least >= 20.0 && most >= 100.0, "{least} to {most} ms");
}

/// All connections share a line of the kernel, which leads to a server on a loopback address, and nothing of it is left.
#[test]
fn a_line_that_all_connections_share() {
    if !rustix::process::geteuid().is_root() {
        return crate::skips::skip("not root");
    }
    let ip = |words: &str| std::process::Command::new("ip").args(words.split(' ')).output();
    let has_pairs = ip("link add tailorprobe type veth").is_ok_and(|output| output.status.success());
    let _ = ip("link del tailorprobe");
    if !has_pairs {
        return crate::skips::skip_without("ip, and pairs of virtual interfaces (veth)");
    }
    let content = vec![b'x'; 100_000];
    let server = start(move |_| FakeServerAction::Reply(ok(&content)));
    let line = ["--shared-line", "4M/1M,latency=20ms,buffer=64k", "--timeout", "60s"];
    let (report, _) = bench(&server.url, &[&["-c", "4", "-n", "8"], &line[..]].concat());
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(8)));
    assert_eq!(report["shared_line"]["receive_buffer_bytes"].as_u64(), Some(64_000), "{}", report["shared_line"]);
    // 800,000 bytes at 4 Mbit/s, less what the line permits at once.
    let seconds = report["duration_seconds"].as_f64().unwrap();
    assert!(seconds > 1.4, "{seconds} s");
    // Other runs of tailor may have interfaces, with the number of their process.
    let has_left = |entry: &std::fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        let process = name.strip_prefix("tlr").map(|process| std::path::Path::new("/proc").join(process));
        process.is_some_and(|process| !process.exists())
    };
    let left: Vec<_> = std::fs::read_dir("/sys/class/net").unwrap().flatten().filter(has_left).collect();
    assert!(left.is_empty(), "interfaces of a process that ended: {left:?}");

    let output = crate::tailor(&["bench", "--shared-line", "1M", "http://192.0.2.1/"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && message.contains("is on another"), "{message}");
}
