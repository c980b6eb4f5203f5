//! Labs from start to end, with Python's server, which is installed almost everywhere.

use std::path::Path;

use serde_json::Value;

use crate::skips::skip_without;
use crate::tailor;

const LAB: &str = r#"lab "test" {
    about "a test"
    rounds 2
    site "page"
    sweep 1 4
    load "pages" "-c @VALUE@ -d 400ms --warm-up 400ms --urls @ROOT@/urls.txt --expect-same @URL@/"
    server "python" {
        needs "python3"
        version "python3" "--version"
        command "python3" "-m" "http.server" "@PORT@" "--bind" "127.0.0.1" "--directory" "@ROOT@"
    }
    server "absent" { needs "there-is-no-such-program"; command "there-is-no-such-program" }
}"#;

#[test]
fn a_lab_from_start_to_end() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        skip_without("python3");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("lab.kdl"), LAB).unwrap();
    let output = tailor(&["compare", &path("lab.kdl"), "--json", &path("old.json"), "--html", &path("page.html")]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // On a busy machine, the A/A control may hold or not. Both exit codes are right, but no other.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("2 pairs are too few for a confidence interval"), "{text}");
    assert!(!text.contains("95 %") && text.contains("round brackets"), "no percentage below six pairs: {text}");
    assert!(text.contains("python (again)") && text.contains("absent: skipped"), "{text}");
    assert!(text.contains("4, x python (range of 2 pairs):\n  server "), "a table of ratios at each value: {text}");

    let mut report: Value = serde_json::from_str(&std::fs::read_to_string(path("old.json")).unwrap()).unwrap();
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 2);
    for measurement in steps.iter().flat_map(|step| step["servers"][0]["measurements"].as_array().unwrap()) {
        let processor = measurement["user_micros_per_request"].as_f64().unwrap()
            + measurement["system_micros_per_request"].as_f64().unwrap();
        assert!((20.0..100_000.0).contains(&processor), "{processor} us a request");
        // The server has one thread, busy from the start. CPU time during the warm-up must not count.
        let seconds = |name: &str| measurement[name].as_f64().unwrap();
        let used = seconds("user_seconds") + seconds("system_seconds");
        assert!(used <= seconds("counted_seconds") * 1.5, "{used} s");
        assert!(measurement["memory_bytes_max"].as_u64().unwrap() > 1_000_000);
        let load = &measurement["loads"][0];
        assert!(load["served"].as_u64().unwrap() > 0);
        assert_eq!(load["failures"]["wrong body"].as_u64(), Some(0));
    }
    assert!(report["servers"][0]["version"].as_str().unwrap().starts_with("Python 3"));
    assert_eq!(report["servers"][1]["missing"], "there-is-no-such-program");
    let page = std::fs::read_to_string(path("page.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("<h2>Environment</h2>"));

    // On a busy machine the control may be off, and then the runs could not be compared.
    for step in report["steps"].as_array_mut().unwrap() {
        step["servers"][1]["measurements"] = step["servers"][0]["measurements"].clone();
    }
    std::fs::write(path("old.json"), report.to_string()).unwrap();

    // Compared with itself, the run has no difference.
    let output = tailor(&["compare", &path("old.json"), &path("old.json")]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("x 1.000  (not judged)") && text.contains("Record at least three runs"), "{text}");
    let twice = format!("{0},{0}", path("old.json"));
    let output = tailor(&["compare", &twice, &twice]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("x 1.000 [1.000 - 1.000]  (no difference shown)"), "{text}");

    // Runs of different labs cannot be compared.
    let mut other = report;
    other["lab_text"] = "another".into();
    std::fs::write(path("new.json"), other.to_string()).unwrap();
    let output = tailor(&["compare", &path("old.json"), &path("new.json")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("Not comparable"));
}

/// Runs a lab with a Python server and these nodes. Returns its record, its output and its exit code.
fn run_lab(directory: &Path, nodes: &str) -> Option<(Value, String, Option<i32>)> {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        skip_without("python3");
        return None;
    }
    let server = r#"server "python" {
        command "python3" "-m" "http.server" "@PORT@" "--bind" "127.0.0.1" "--directory" "@ROOT@"
        backend "python3" "-m" "http.server" "@BACKEND_PORT@" "--bind" "127.0.0.1"
    }"#;
    let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    std::fs::write(path("lab.kdl"), format!("lab \"test\" {{\n rounds 1\n site \"file:1024\"\n{nodes}\n{server}\n}}"))
        .unwrap();
    let output = tailor(&["compare", &path("lab.kdl"), "--json", &path("run.json"), "--html", &path("page.html")]);
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let record = std::fs::read_to_string(path("run.json")).unwrap_or_else(|error| panic!("{error}: {text}"));
    Some((serde_json::from_str(&record).unwrap(), text, output.status.code()))
}

#[test]
fn an_endurance_test_with_commands_before_and_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let nodes = format!(
        r#"endurance
        before "sh" "-c" "echo before >> {0}"
        beside "sh" "-c" "echo beside >> {0}; sleep 600"
        load "clients" "-c 4 -R 50 -d 2s --interval 200ms @URL@/file""#,
        path("commands")
    );
    let Some((record, text, code)) = run_lab(directory.path(), &nodes) else { return };
    // With one server and one round there is no control: the lab passes if no request failed.
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(record["steps"][0]["servers"].as_array().unwrap().len(), 1);
    assert_eq!(std::fs::read_to_string(path("commands")).unwrap(), "before\nbeside\n");
    for row in [
        "average CPU time, user",
        "average CPU time, system",
        "memory at the end",
        "swap, peak",
        "total requests served",
        "requests/s",
        "mean latency",
        "— failed connect",
        "— early close",
        "— write failure",
        "— time-out",
    ] {
        assert!(text.contains(row), "{row}: {text}");
    }
    let served = text.lines().find_map(|line| line.trim().strip_prefix("total requests served")).unwrap().trim();
    assert!((95..=105).contains(&served.parse::<u32>().unwrap()), "{served}");
    let page = std::fs::read_to_string(path("page.html")).unwrap();
    for plot in ["Requests served per second", "CPU time, user", "Memory"] {
        assert!(page.contains(plot), "{plot}");
    }
}

#[test]
fn servers_take_turns() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("commands").to_str().unwrap().to_owned();
    // The `before` command runs for each start: once for the server, once for its control.
    let nodes = format!(
        r#"turns 3
        before "sh" "-c" "echo before >> {path}"
        load "clients" "-c 1 -n 5 @URL@/file""#
    );
    let Some((record, text, code)) = run_lab(directory.path(), &nodes) else { return };
    assert!(matches!(code, Some(0 | 1)), "{text}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "before\nbefore\n");
    for server in record["steps"][0]["servers"].as_array().unwrap() {
        let measurements = server["measurements"].as_array().unwrap();
        let served: Vec<u64> = measurements.iter().map(|it| it["loads"][0]["served"].as_u64().unwrap()).collect();
        assert_eq!(served, [5, 5, 5], "the turn that fills caches is not counted");
    }
    let page = std::fs::read_to_string(directory.path().join("page.html")).unwrap();
    assert!(page.contains("CPU time per request, by measurement"));
}

#[test]
fn a_lab_searches_the_highest_value_that_passes() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = r#"search from=20 to=120 precision="20%"
        load "requests" "-c 1 -n @VALUE@ --require served<60 @URL@/file""#;
    let Some((record, text, code)) = run_lab(directory.path(), nodes) else { return };
    assert_eq!(code, Some(0), "{text}");
    for search in record["searches"].as_array().unwrap() {
        let best = search["best"][0].as_u64().unwrap();
        assert!((48..60).contains(&best), "{best}: {text}");
        let tries = search["tries"].as_array().unwrap();
        assert!(tries.iter().all(|it| it["has_passed"] == (it["value"].as_u64().unwrap() < 60)), "{text}");
        assert_eq!(tries.iter().filter(|it| it["value"] == best).count(), 2, "the highest value is confirmed: {text}");
        let (low, high) = (search["low"][0].as_u64().unwrap(), search["high"][0].as_u64().unwrap());
        assert!(low == best && (60..=75).contains(&high), "{low} to {high}: {text}");
    }
}

#[test]
fn labs_that_come_with_the_program() {
    let output = tailor(&["compare", "--list"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in [
        "keepalive-1k",
        "static-mix",
        "static-dynamic-mix",
        "clients-sweep",
        "slow-lines",
        "page",
        "soak",
        "cold-disk",
        "web99",
        "web99-search",
        "web99-static",
        "marks-http1",
        "marks-tls",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
    }
}

const VARIED_LAB: &str = r#"lab "varied" {
    about "a test"
    rounds 2
    turns 2
    site "page"
    load "pages" "-c 1 -d 200ms @URL@/index.html"
    server "python" {
        needs "python3"
        command "sh" "-c" "echo $MARK $(cat /proc/sys/PARAMETER) >> @LOG@; exec python3 -m http.server @PORT@ --bind 127.0.0.1 --directory @ROOT@"
    }
}"#;

/// Runs the lab with a varied setting. Returns its output, and what each server saw at its start.
fn vary(setting: &str) -> (String, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let lab = directory.path().join("lab.kdl");
    let text = VARIED_LAB.replace("@LOG@", log.to_str().unwrap()).replace("PARAMETER", PARAMETER_PATH);
    std::fs::write(&lab, text).unwrap();
    // A process that was killed has left a note; no process has this number.
    std::fs::write(directory.path().join("tailor-vary-4294967295"), format!("{PARAMETER}\n{}", parameter())).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tailor"))
        .args(["compare", lab.to_str().unwrap(), "--vary", setting])
        .env("TMPDIR", directory.path())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let seen = std::fs::read_to_string(log).unwrap_or_default();
    (text, seen.lines().map(|line| line.trim().to_owned()).collect())
}

/// Kernel parameter that changes nothing for other tests.
const PARAMETER: &str = "net.ipv4.tcp_autocorking";
const PARAMETER_PATH: &str = "net/ipv4/tcp_autocorking";

fn parameter() -> String {
    std::fs::read_to_string(Path::new("/proc/sys").join(PARAMETER_PATH)).unwrap_or_default().trim().to_owned()
}

#[test]
fn one_setting_varied() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        skip_without("python3");
        return;
    }
    let (text, seen) = vary("env:MARK=one,two");
    assert!(text.contains("python MARK=one (again)") && text.contains("python MARK=two"), "{text}");
    let marks: Vec<&str> = seen.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(marks.iter().filter(|mark| **mark == "two").count() * 2, marks.len() - marks.len() / 3, "{marks:?}");
    let (text, _) = vary("text:http.server=http.server,missing.module");
    assert!(text.contains("missing.module"), "{text}");
    let (text, _) = vary("text:nothing=a,b");
    assert!(text.contains("`nothing` does not occur in the command or the files of python"), "{text}");
    let (text, _) = vary("sysctl:net.ipv4.no_such=1,2");
    assert!(text.contains("--vary: net.ipv4.no_such: No such file"), "{text}");
}

#[test]
fn a_kernel_parameter_varied() {
    let old = parameter();
    let path = Path::new("/proc/sys").join(PARAMETER_PATH);
    if std::process::Command::new("python3").arg("--version").output().is_err() || std::fs::write(&path, &old).is_err()
    {
        skip_without("python3 and the right to set kernel parameters");
        return;
    }
    let (text, seen) = vary(&format!("sysctl:{PARAMETER}=0,1"));
    assert_eq!(seen, ["0", "1", "0", "0", "1", "0"], "A B A, A B A: {text}");
    assert_eq!(parameter(), old, "put back: {text}");
    assert!(text.contains("is put back to") && text.contains("without turns"), "{text}");
    let (text, _) = vary(&format!("sysctl:{PARAMETER}=0,none"));
    assert!(text.contains("cannot set net.ipv4.tcp_autocorking to none"), "{text}");
    assert_eq!(parameter(), old);
}

/// A lab of Python's server, with one small load.
fn python_lab(directory: &std::path::Path) -> String {
    let lab = r#"lab "small" {
        about "test"
        rounds 2
        site "realistic"
        load "one" "-c 1 -n 20 @URL@/"
        server "python" {
            needs "python3"
            command "python3" "-m" "http.server" "@PORT@" "--bind" "127.0.0.1" "-d" "@ROOT@"
        }
    }"#;
    let path = directory.join("small.kdl");
    std::fs::write(&path, lab).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Settings that only root can change are set in the lab, and are gone after it. Without a setting there is no result.
#[test]
fn settings_of_the_kernel() {
    if !rustix::process::geteuid().is_root() {
        return crate::skips::skip("not root");
    }
    let directory = tempfile::tempdir().unwrap();
    let lab = python_lab(directory.path());
    let congestion = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let before = congestion();
    let json = directory.path().join("run.json");
    for (setting, names) in [
        ("congestion=cubic,reno", ["python cubic", "python reno"]),
        (
            "qdisc:lo=none,tbf rate 10mbit burst 32k latency 50ms",
            ["python none", "python tbf rate 10mbit burst 32k latency 50ms"],
        ),
        ("qdisc:lo=htb rate 10mbit,htb rate 20mbit", ["python htb rate 10mbit", "python htb rate 20mbit"]),
        ("cgroup:cpu=0.5,max", ["python cpu=0.5", "python cpu=max"]),
        ("cgroup:memory=64M,128M", ["python memory=64M", "python memory=128M"]),
        (
            "command:python=python3 -m http.server @PORT@ -d @ROOT@,python3 -B -m http.server @PORT@ -d @ROOT@",
            ["python python3 -m http.server @PORT@ -d @ROOT@", "python python3 -B -m http.server @PORT@ -d @ROOT@"],
        ),
    ] {
        let output =
            tailor(&["compare", &lab, "--control-margin", "100%", "--vary", setting, "--json", json.to_str().unwrap()]);
        let message = String::from_utf8_lossy(&output.stderr);
        let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap_or_default())
            .unwrap_or_else(|_| panic!("{setting}: {message}"));
        let found: Vec<&str> =
            report["servers"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(found, names, "{setting}");
        for server in report["steps"][0]["servers"].as_array().unwrap() {
            for measurement in server["measurements"].as_array().unwrap() {
                assert_eq!(measurement["loads"][0]["served"], 20, "{setting}: {server}");
            }
        }
        std::fs::remove_file(&json).unwrap();
    }
    assert_eq!(congestion(), before);
    for (setting, expect) in [
        ("congestion=cubic,nonsense", "nonsense"),
        ("qdisc:lo=none,nonsense", "nonsense"),
        ("sysctl:net.ipv4.nonsense=1,2", "net.ipv4.nonsense"),
    ] {
        let output = tailor(&["compare", &lab, "--vary", setting]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(expect), "{setting}: {message}");
        assert!(!message.contains("round 1"), "nothing is measured: {message}");
    }
}

/// `kill -9` in the middle of a run: the guard puts the kernel parameter back, and the server ends.
#[test]
fn kill_puts_settings_back() {
    const PARAMETER: &str = "/proc/sys/net/ipv4/tcp_fin_timeout";
    if !rustix::process::geteuid().is_root() {
        return crate::skips::skip("not root");
    }
    let directory = tempfile::tempdir().unwrap();
    let lab = python_lab(directory.path());
    let value = || std::fs::read_to_string(PARAMETER).unwrap().trim().to_owned();
    let before = value();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tailor"));
    let vary = "sysctl:net.ipv4.tcp_fin_timeout=57,58";
    command.args(["compare", &lab, "--rounds", "50", "--vary", vary]).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let wait_for = |condition: &dyn Fn(&str) -> bool| {
        for _ in 0..3000 {
            if condition(&value()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("the value stays {}", value());
    };
    wait_for(&|value| value == "57");
    let run = format!("tailor-{}/run", child.id());
    let is_in_run = |process: &std::fs::DirEntry| {
        std::fs::read_link(process.path().join("cwd")).is_ok_and(|path| path.to_string_lossy().contains(&run))
    };
    let servers = || std::fs::read_dir("/proc").unwrap().flatten().filter(is_in_run).count();
    wait_for(&|_| servers() > 0);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for(&|value| value == before);
    wait_for(&|_| servers() == 0);
}

/// A soak that is stopped goes on where it was, and its servers are those of before.
#[test]
fn a_soak_in_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let lab = directory.path().join("soak.kdl");
    let text = std::fs::read_to_string(python_lab(directory.path())).unwrap();
    let text = text
        .replace("-c 1 -n 20 @URL@/", "-c 2 -R 40 -d 1h --interval 100ms @URL@/")
        .replace("about", "endurance\nabout");
    std::fs::write(&lab, text).unwrap();
    let records = directory.path().join("records");
    let run = |duration: &str| {
        let paths = [records.to_str().unwrap(), "--lab", lab.to_str().unwrap()];
        let output =
            tailor(&[&["soak", "--servers", "python", "--piece", "1s", "--duration", duration], &paths[..]].concat());
        let (text, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(0), "{text}{error}");
        text
    };
    let text = run("2s");
    assert!(text.contains("in 2 pieces, servers started 1 time\n"), "{text}");
    // A piece that was not written whole does not count.
    let pieces = records.join("pieces.ndjson");
    let mut torn = std::fs::read(&pieces).unwrap();
    torn.extend_from_slice(b"\n{\"start\": 0, \"meas");
    std::fs::write(&pieces, torn).unwrap();
    let text = run("5s");
    assert!(text.contains("in 5 pieces, servers started 2 times"), "{text}");
    let row = |name: &str| {
        text.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"))
    };
    assert!(row("total requests served").contains("200"), "{text}");
    assert!(row("memory growth, bytes per request").contains('['), "{text}");
    assert!(row("growth of own memory, likewise").contains('['), "{text}");
    let page = std::fs::read_to_string(records.join("report.html")).unwrap();
    assert!(page.contains("<title>tailor soak: Soak of python, 20") && page.contains("Memory"), "{page}");
    let output = tailor(&["soak", "--servers", "nginx", records.to_str().unwrap(), "--lab", lab.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "other servers need another directory");
}
