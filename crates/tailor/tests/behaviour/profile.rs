//! `bench --profile` and `--deadline`: rates that change, and what each phase shows.

use std::time::Duration;

use serde_json::Value;

use crate::output::check_schema;
use crate::server::{FakeServerAction, ok, start};
use crate::{bench, in_parallel, tailor};

fn phases(report: &Value) -> Vec<(u64, u64)> {
    let phases = report["phases"].as_array().unwrap();
    phases.iter().map(|phase| (phase["served"].as_u64().unwrap(), phase["failed"].as_u64().unwrap())).collect()
}

#[test]
fn each_phase_gets_its_requests() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    in_parallel(
        &[
            ("100:300ms,0:200ms,100-300:500ms", &[][..], vec![30, 0, 100]),
            ("300-100:500ms", &["-t", "2"], vec![100]),
            ("100-300/3:300ms", &[], vec![10, 20, 30]),
            ("100:100ms", &["--warm-up", "200ms"], vec![10]),
        ],
        |(profile, arguments, expect)| {
            let (report, code) = bench(&server.url, &[&["--profile", profile, "-c", "8"], *arguments].concat());
            let counts: Vec<u64> = phases(&report).into_iter().map(|(served, _)| served).collect();
            assert_eq!((&counts, code), (expect, 0), "{profile}: {report}");
            assert_eq!(report["served"].as_u64().unwrap(), expect.iter().sum::<u64>(), "{profile}");
            assert_eq!(report["load"]["profile"], *profile);
            let schema: Value = serde_json::from_str(include_str!("../../schema/bench.json")).unwrap();
            check_schema(&schema, &schema, &report, "report");
        },
    );
}

/// A server with room for 50 requests a second gets 150 of them in half a second. It needs a second more for the rest.
#[test]
fn a_spike_ends_late() {
    let server = start(|_| FakeServerAction::Delay(Duration::from_millis(20), ok(b"x")));
    let words = ["--profile", "10:500ms,150:500ms,10:3s", "-c", "1", "--deadline", "200ms"];
    let (report, _) = bench(&server.url, &[&words[..], &["--require", "goodput<25"]].concat());
    assert_eq!(phases(&report), [(5, 0), (75, 0), (30, 0)], "{report}");
    let late = |phase: usize| report["phases"][phase]["late_until_seconds"].as_f64();
    // A busy machine may be late once.
    assert!(late(0).is_none_or(|seconds| seconds < 0.48), "{report}");
    // The last request of the spike starts 75 * 20 ms after its start, at the earliest.
    assert!(late(1).unwrap() > 0.48, "{report}");
    assert!(late(2).unwrap() > 0.7, "{report}");
    let in_time: u64 = report["phases"].as_array().unwrap().iter().map(|it| it["in_time"].as_u64().unwrap()).sum();
    assert!(in_time < 110, "{report}");
    let goodput = report["goodput_per_second"].as_f64().unwrap();
    assert!((goodput * report["duration_seconds"].as_f64().unwrap() - in_time as f64).abs() < 0.01, "{report}");
    assert_eq!(report["requirements"][0]["value"].as_f64(), Some(goodput));
}

#[test]
fn mistakes() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    for (arguments, expect) in [
        (&["--profile", "1k"][..], "is not RATE:TIME"),
        (&["--profile", "1k:1s", "-R", "5"], "cannot be used with"),
        (&["--profile", "1k:1s", "-d", "5s"], "cannot be used with"),
        (&["--profile", "1k:1s", "-n", "5"], "cannot be used with"),
        (&["--deadline", "0"], "must be more than 0"),
        (&["--require", "goodput>5"], "needs --deadline"),
    ] {
        let output = tailor(&[&["bench", &server.url], arguments].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(expect), "{arguments:?}: {message}");
    }
}
