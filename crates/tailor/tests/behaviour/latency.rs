//! Latencies: they must match the delays of the server, including stalls.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::server::{FakeServerAction, ok, start};
use crate::{bench, failures, in_parallel, percentile_ms, undisturbed};

#[test]
fn a_programmed_distribution() {
    // Each round has 100 requests with delays of 20, 22 … 218 ms. The closed loop has several connections, so that the
    // run is short. The open loop has as many as requests in progress.
    in_parallel(&[&["-c", "20"][..], &["-c", "100", "-R", "200"]], |arguments| {
        // On a busy machine, requests may be delayed on their way, above all a few of them.
        const EXCESSES_MAX_MS: [(f64, f64); 5] =
            [(10.0, 50.0), (50.0, 50.0), (90.0, 100.0), (99.0, 500.0), (100.0, 1000.0)];
        // Expected and measured milliseconds of each percentile.
        let measure = |_| {
            let made = Arc::new(Mutex::new(Vec::new()));
            let delays = made.clone();
            let server = start(move |request| {
                let begin = Instant::now();
                std::thread::sleep(Duration::from_millis(20 + 2 * (request.number * 37 % 100) as u64));
                // On a busy machine, sleeping takes longer than requested, so use the measured time.
                delays.lock().unwrap().push(begin.elapsed().as_secs_f64() * 1e3);
                FakeServerAction::Reply(ok(b"x"))
            });
            let (report, _) = bench(&server.url, &[&["-n", "300"], *arguments].concat());
            let mut made = made.lock().unwrap().clone();
            made.sort_by(f64::total_cmp);
            assert_eq!((failures(&report), report["latency"]["count"].as_u64(), made.len()), (vec![], Some(300), 300));
            EXCESSES_MAX_MS.map(|(percentile, _)| {
                let expect_ms = made[(percentile / 100.0 * 300.0) as usize - 1];
                (expect_ms, percentile_ms(&report["latency"], percentile))
            })
        };
        let is_exact = |expect_ms: f64, measured_ms: f64, excess_max_ms: f64| {
            (-0.01 * expect_ms..excess_max_ms).contains(&(measured_ms - expect_ms))
        };
        let result = undisturbed(measure, |result| {
            EXCESSES_MAX_MS
                .iter()
                .zip(result)
                .all(|((_, most), (expect, measured))| is_exact(*expect, *measured, *most))
        });
        for ((percentile, most), (expect, measured)) in EXCESSES_MAX_MS.into_iter().zip(result) {
            let message = format!("{arguments:?}, p{percentile}: {measured} ms instead of {expect} ms");
            assert!(is_exact(expect, measured, most), "{message}");
        }
    });
}

#[test]
fn a_stall_is_not_hidden() {
    // A third of the requests fall due during the stall and wait between 1 s and 0 s. A busy machine can make the
    // wait longer, never shorter.
    const EXPECTED_MS: [(f64, f64); 4] = [(70.0, 100.0), (80.0, 400.0), (90.0, 700.0), (99.0, 970.0)];
    const LIMITS_MS: std::ops::Range<f64> = -20.0..500.0;
    let measure = |_| {
        // The server answers no request from second 1 to second 2.
        let began = OnceLock::new();
        let server = start(move |_| {
            let elapsed = began.get_or_init(Instant::now).elapsed();
            let stall = (Duration::from_secs(1)..Duration::from_secs(2)).contains(&elapsed);
            FakeServerAction::Delay(if stall { Duration::from_secs(2) - elapsed } else { Duration::ZERO }, ok(b"x"))
        });
        let (report, _) = bench(&server.url, &["-c", "4", "-R", "400", "-d", "3s"]);
        assert_eq!((failures(&report), report["latency"]["count"].as_u64()), (vec![], Some(1200)));
        report
    };
    let excess_ms = |report: &serde_json::Value, percentile: f64, expect_ms: f64| {
        percentile_ms(&report["latency"], percentile) - expect_ms
    };
    // Only the four requests in progress during the stall show it in their uncorrected latency.
    let uncorrected = |report: &serde_json::Value| {
        [99.0, 100.0].map(|percentile| percentile_ms(&report["latency_uncorrected"], percentile))
    };
    let report = undisturbed(measure, |report| {
        let [hidden, most] = uncorrected(report);
        let is_expected = |(percentile, expect)| LIMITS_MS.contains(&excess_ms(report, percentile, expect));
        hidden < 500.0 && most > 900.0 && EXPECTED_MS.into_iter().all(is_expected)
    });
    for (percentile, expect_ms) in EXPECTED_MS {
        let excess_ms = excess_ms(&report, percentile, expect_ms);
        assert!(LIMITS_MS.contains(&excess_ms), "p{percentile}: {excess_ms} ms more than {expect_ms} ms");
    }
    let [hidden, most] = uncorrected(&report);
    assert!(hidden < 500.0, "the uncorrected 99th percentile: {hidden} ms");
    assert!(most > 900.0, "the longest: {most} ms");
}

#[test]
fn rates_below_one_per_second() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    // Requests are due after 0 and 0.625 s.
    let (report, _) = bench(&server.url, &["-c", "1", "-R", "1.6", "-d", "1.2s"]);
    assert_eq!((report["served"].as_u64(), report["load"]["rate_per_second"].as_f64()), (Some(2), Some(1.6)));
    let (report, _) = bench(&server.url, &["-c", "1", "-R", "0.5", "-n", "1"]);
    assert_eq!(report["load"]["rate_per_second"].as_f64(), Some(0.5));
}

#[test]
fn an_open_loop_keeps_its_rate() {
    in_parallel(&["constant", "poisson"], |arrivals| {
        let server = start(|_| FakeServerAction::Reply(ok(b"x")));
        let load = ["-c", "8", "-R", "500", "-d", "2s", "--arrivals", *arrivals, "-t", "2", "--seed", "2"];
        let (report, _) = bench(&server.url, &load);
        let served = report["served"].as_u64().unwrap();
        let expect = if *arrivals == "constant" { 1000..=1000 } else { 870..=1130 };
        assert!(expect.contains(&served), "{arrivals}: {served}");
        assert_eq!(report["load"]["pace"], *arrivals);
        // The connections were established before the first request.
        assert_eq!((report["connections"].as_u64(), report["connect"]["count"].as_u64()), (Some(8), Some(8)));
    });
}

/// The server answers nothing in the warm-up. What was due then is answered when counting has begun, and must not count.
#[test]
fn the_warm_up_does_not_count() {
    static START: OnceLock<Instant> = OnceLock::new();
    // Counting begins 0.2 s for connecting and 0.5 s of warm-up after the start.
    const STALL: Duration = Duration::from_millis(900);
    for (rate, is_failing) in [("100", false), ("100", true)] {
        let server = start(move |_| {
            let elapsed = START.get_or_init(Instant::now).elapsed();
            match is_failing {
                false => FakeServerAction::Delay(STALL.saturating_sub(elapsed), ok(b"x")),
                true => FakeServerAction::Close(Vec::new()),
            }
        });
        let (report, _) = bench(&server.url, &["-c", "200", "-R", rate, "--warm-up", "500ms", "-d", "500ms"]);
        let failed: u64 = failures(&report).iter().map(|(_, count)| count).sum();
        assert_eq!(report["served"].as_u64().unwrap() + failed, 50, "{report}");
        assert_eq!(report["lag"]["count"].as_u64(), Some(50), "{report}");
        let served_per_second = report["served_per_second"].as_f64().unwrap();
        assert!(served_per_second <= 100.1, "{served_per_second}/s of 100/s due");
    }
}

#[test]
fn requests_that_fall_due_and_find_no_connection_fail_in_the_end() {
    let server = start(|_| FakeServerAction::Delay(Duration::from_millis(100), ok(b"x")));
    // One connection serves 10 requests per second, but 100 per second are due.
    // On a machine that stalls, none may be served in time.
    let measure = |_| bench(&server.url, &["-c", "1", "-R", "100", "-d", "1s", "--timeout", "500ms"]);
    let (report, _) = undisturbed(measure, |(report, _)| report["served"] != 0);
    let served = report["served"].as_u64().unwrap();
    let time_outs = report["failures"]["time-out"].as_u64().unwrap();
    assert_eq!(served + time_outs, 100, "every request that was due is accounted for");
    assert!((1..=17).contains(&served), "{served}");
    let per_second = report["served_per_second"].as_f64().unwrap();
    assert!(per_second < 11.5, "{per_second}: what was served late is no throughput");
}
