//! Tests of the built `tailor` against fake servers that control each response.

mod agent;
mod diff;
mod failures;
mod find;
mod hostile;
mod http2;
mod http3;
mod import;
mod lab;
mod latency;
mod limits;
mod lines;
mod messages;
mod output;
#[allow(dead_code)]
#[path = "../../../../tests/support/port.rs"]
mod port;
mod precise;
mod profile;
mod replay;
mod requests;
mod scenario;
mod server;
#[allow(dead_code)]
#[path = "../../../../tests/support/skips.rs"]
mod skips;
mod tls;
mod web99;

use std::process::{Command, Output};

use serde_json::Value;

/// Runs `tailor bench` with these arguments. Returns its JSON report and exit code.
fn bench(url: &str, arguments: &[&str]) -> (Value, i32) {
    let output = tailor(&[&["bench", "--quiet", "--json", "-", url], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let report = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}\n{}", String::from_utf8_lossy(&output.stderr)));
    (report, output.status.code().unwrap_or(-1))
}

fn tailor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tailor")).args(arguments).output().expect("tailor starts")
}

/// Tries of a measurement that a busy machine may disturb.
const TRIES: usize = 10;

/// First measurement that is as expected, or the last one. A measurement gets the number of its try.
fn undisturbed<T>(mut measure: impl FnMut(usize) -> T, is_expected: impl Fn(&T) -> bool) -> T {
    for number in 0..TRIES - 1 {
        let measured = measure(number);
        if is_expected(&measured) {
            return measured;
        }
    }
    measure(TRIES - 1)
}

/// Time limit for a try: later ones have more time for the requests that are served.
fn longer<'a>(times: &[&'a str], number: usize) -> &'a str {
    times[number.min(times.len() - 1)]
}

/// Checks all rows of a table in parallel, because they mostly wait.
fn in_parallel<T: Sync>(rows: &[T], check: impl Fn(&T) + Sync) {
    std::thread::scope(|scope| {
        for row in rows {
            scope.spawn(|| check(row));
        }
    });
}

/// Failure counts of a report that are not 0, by class, in the order of the classes' names.
fn failures(report: &Value) -> Vec<(String, u64)> {
    let classes = report["failures"].as_object().expect("failures by class");
    let mut counts: Vec<_> = classes
        .iter()
        .map(|(name, count)| (name.clone(), count.as_u64().unwrap()))
        .filter(|(_, count)| *count > 0)
        .collect();
    counts.sort();
    counts
}

/// Percentile of a distribution in milliseconds.
fn percentile_ms(distribution: &Value, percentile: f64) -> f64 {
    let points = distribution["percentiles"].as_array().expect("percentiles");
    let point = points.iter().find(|point| point["percentile"].as_f64().unwrap() >= percentile).expect("a percentile");
    point["nanos"].as_f64().unwrap() / 1e6
}
