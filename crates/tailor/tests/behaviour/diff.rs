//! `tailor diff`: records of bench, their changes, and the exit code.

use serde_json::Value;

use crate::server::{FakeServerAction, ok, start};
use crate::tailor;

#[test]
fn records_of_bench() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    let (record, _) = crate::bench(&server.url, &["-c", "2", "-n", "200"]);
    let directory = tempfile::tempdir().unwrap();
    // Records whose latencies are multiples of the measured ones, and with this number of failed requests.
    let write = |name: &str, factor: f64, failed: u64| {
        let mut record = record.clone();
        for point in record["latency"]["percentiles"].as_array_mut().unwrap() {
            point["nanos"] = Value::from((1e6 * factor) as u64);
        }
        record["served_per_second"] = Value::from(1000.0 / factor);
        record["failures"]["time-out"] = Value::from(failed);
        let path = directory.path().join(name);
        std::fs::write(&path, record.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let old = [write("a", 1.0, 0), write("b", 1.01, 0), write("c", 0.99, 0)].join(",");
    let same = [write("d", 1.01, 0), write("e", 1.0, 0), write("f", 0.98, 0)].join(",");
    let slow = [write("g", 1.5, 0), write("h", 1.49, 0), write("i", 1.51, 0)].join(",");
    let faulty = [write("j", 1.0, 2), write("k", 1.01, 2), write("l", 0.99, 2)].join(",");
    let run = |words: &[&str]| {
        let output = tailor(&[&["diff"], words].concat());
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (output.status.code(), text)
    };
    for (words, code, expect) in [
        (&[old.as_str(), &same][..], 0, "no difference shown"),
        (&[&old, &slow], 1, "x 1.500 ["),
        (&["--tolerance", "60%", &old, &slow], 0, "worse, but within the tolerance"),
        (&[&slow, &old], 0, "better"),
        (&[&old, &faulty], 1, "0.990 %  worse"),
        (&[&write("m", 1.0, 0), &slow], 2, "one run does not show how much runs differ"),
        (&["/nonexistent", &slow], 2, "/nonexistent"),
    ] {
        let (status, text) = run(words);
        assert!(status == Some(code) && text.contains(expect), "{words:?}: {status:?}: {text}");
    }
    let (other, _) = crate::bench(&server.url, &["-c", "3", "-n", "200"]);
    let path = directory.path().join("other");
    std::fs::write(&path, other.to_string()).unwrap();
    let path = path.to_str().unwrap();
    let (status, text) = run(&[&old, &format!("{path},{path}")]);
    assert!(status == Some(2) && text.contains("the loads differ"), "{text}");
}
