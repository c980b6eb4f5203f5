//! A lab from start to end, with a server that is nearly everywhere: Python's.

use serde_json::Value;

use crate::tailor;

const LAB: &str = r#"lab "test" {
    about "a test"
    rounds 2
    site "page"
    sweep 1 4
    load "pages" "-c @VALUE@ -d 300ms --warm-up 900ms --urls @ROOT@/urls.txt --expect-same @URL@/"
    server "python" {
        needs "python3"
        version "python3" "--version"
        command "python3" "-m" "http.server" "@PORT@" "--bind" "127.0.0.1" "--directory" "@ROOT@"
    }
    server "nobody" { needs "there-is-no-such-program"; command "there-is-no-such-program" }
}"#;

#[test]
fn a_lab_from_start_to_end() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        eprintln!("not run: python3 is not installed");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("lab.kdl"), LAB).unwrap();
    let output = tailor(&["compare", &path("lab.kdl"), "--json", &path("old.json"), "--html", &path("page.html")]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Whether the A/A control holds on a busy machine is chance: both ends are fine, but nothing else.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("python (again)") && text.contains("nobody: left out"), "{text}");

    let mut report: Value = serde_json::from_str(&std::fs::read_to_string(path("old.json")).unwrap()).unwrap();
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 2);
    for measurement in steps.iter().flat_map(|step| step["servers"][0]["measurements"].as_array().unwrap()) {
        let processor = measurement["user_micros_per_request"].as_f64().unwrap()
            + measurement["system_micros_per_request"].as_f64().unwrap();
        assert!((20.0..100_000.0).contains(&processor), "{processor} us a request");
        // A server of one thread that is busy from the start: what it used while the load warmed up is not counted.
        let seconds = |name: &str| measurement[name].as_f64().unwrap();
        let used = seconds("user_seconds") + seconds("system_seconds");
        assert!(used <= seconds("counted_seconds") * 1.5, "{used} s");
        assert!(measurement["memory_bytes_max"].as_u64().unwrap() > 1_000_000);
        let load = &measurement["loads"][0];
        assert!(load["served"].as_u64().unwrap() > 10);
        assert_eq!(load["failures"]["wrong body"].as_u64(), Some(0));
    }
    assert!(report["servers"][0]["version"].as_str().unwrap().starts_with("Python 3"));
    assert_eq!(report["servers"][1]["missing"], "there-is-no-such-program");
    let page = std::fs::read_to_string(path("page.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("Where it was measured"));

    // On a busy machine it may be off, and then nothing may be compared.
    report["control"] = serde_json::json!({"median": 1.0, "low": 1.0, "high": 1.0});
    std::fs::write(path("old.json"), report.to_string()).unwrap();

    // The run against itself: nothing differs, and no difference is shown.
    let output = tailor(&["compare", &path("old.json"), &path("old.json")]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("x 1.000") && text.contains("no difference shown"), "{text}");

    // Another lab: may not be compared.
    let mut other = report;
    other["lab_text"] = "another".into();
    std::fs::write(path("new.json"), other.to_string()).unwrap();
    let output = tailor(&["compare", &path("old.json"), &path("new.json")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("May not be compared"));
}

#[test]
fn labs_that_come_with_the_program() {
    let output = tailor(&["compare", "--list"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in ["keepalive-1k", "static-mix", "clients-sweep", "slow-lines", "page", "soak", "web99-static"] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
    }
}
