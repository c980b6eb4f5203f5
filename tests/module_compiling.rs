//! Modules during compilation: the server listens, and their paths respond with 503; also compilation in advance.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;

use crate::support::guests::{filters, guests};
use crate::support::operated::Operated;
use crate::support::waiting::{eventually, eventually_some};
use crate::support::{TestServer, ask, tailcoat};

/// Writes a core module for http-wasm whose many functions take a while to compile. Without the functions of that ABI
/// it is unusable, which only compiling detects.
fn write_filter(file: &Path, functions: usize, is_usable: bool) {
    let mut text = "(module (memory (export \"memory\") 1)".to_owned();
    for number in 0..functions {
        let steps = "(local.set 0 (i64.add (i64.mul (local.get 0) (local.get 0)) (i64.const 7)))".repeat(20);
        write!(text, "(func (export \"f{number}\") (param i64) (result i64) {steps} (local.get 0))").unwrap();
    }
    if is_usable {
        text.push_str("(func (export \"handle_request\") (result i64) (i64.const 1))");
        text.push_str("(func (export \"handle_response\") (param i32 i32))");
    }
    text.push(')');
    let next = file.with_extension("next");
    std::fs::write(&next, wat::parse_str(&text).unwrap()).unwrap();
    std::fs::rename(next, file).unwrap();
}

/// Number of functions that take seconds to compile on any machine.
const MANY: usize = 2000;

fn config(modules: &str, file: &Path) -> String {
    format!(
        "modules {{ {modules}; check-interval \"100ms\" }}\nsite {{\n listen \"127.0.0.1:0\"\n respond \"/open\" 200 \"open\"\n \
         module \"*\" \"{}\"\n respond \"*\" 200 \"guarded\"\n}}\n",
        file.display()
    )
}

fn get(server: &TestServer, target: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
}

/// Number in the status of the first module.
fn status(operated: &Operated, what: &str) -> u64 {
    let status: Value = serde_json::from_slice(&operated.order(&["status", "--json"]).stdout).expect("JSON");
    status["modules"][0][what].as_u64().expect("a number")
}

fn is_unavailable(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nRetry-After: 5\r\n") && !answer.contains("guarded")
}

#[test]
fn paths_of_a_module_get_503_until_it_is_compiled() {
    // A test that looks too late begins again, with more to compile.
    let mut functions = MANY;
    let operated = eventually_some("the test looks before the module is compiled", || {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("filter.wasm");
        write_filter(&file, functions, true);
        functions *= 2;
        let operated = Operated::start_in(directory, &config("compiled off; compile-wait \"0s\"", &file));
        let answer = get(&operated.server, "/guarded");
        assert!(get(&operated.server, "/open").ends_with("open"), "others are served");
        let text = String::from_utf8(operated.order(&["status"]).stdout).unwrap();
        if status(&operated, "compiling") == 0 {
            return None;
        }
        assert!(is_unavailable(&answer), "a filter that is not there lets nothing pass: {answer}");
        assert!(text.lines().any(|line| line.starts_with("module filter") && line.ends_with("   compiling")), "{text}");
        Some(operated)
    });
    eventually("the module is ready", || {
        let answer = get(&operated.server, "/guarded");
        assert!(is_unavailable(&answer) || answer.starts_with("HTTP/1.1 200 "), "{answer}");
        answer.ends_with("guarded")
    });
    assert_eq!((status(&operated, "compiling"), status(&operated, "unusable")), (0, 0));
    operated.server.await_log("module compiled: ");
}

#[test]
fn a_component_gets_503_until_it_is_compiled() {
    let Some(guests) = guests() else { return };
    // A test that asks too late begins again.
    let server = eventually_some("the test asks before the component is compiled", || {
        let server = TestServer::run(&config("compiled off; compile-wait \"0s\"", guests));
        let answer = get(&server, "/hello");
        assert!(is_unavailable(&answer) || answer.contains("hello\n"), "{answer}");
        is_unavailable(&answer).then_some(server)
    });
    eventually("the module is ready", || get(&server, "/hello").contains("hello\n"));
}

#[test]
fn a_module_that_cannot_be_used_is_reported_of() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("filter.wasm");
    write_filter(&file, MANY, false);
    // A failure within `compile-wait` prevents the start.
    let waiting = directory.path().join("waiting.kdl");
    std::fs::write(&waiting, config("compiled off; compile-wait \"5m\"", &file)).unwrap();
    let output = tailcoat().args(["run", "-c"]).arg(&waiting).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && errors.contains("without the function handle_request"), "{errors}");
    // After a later failure, the module's paths stay at 503 until a good file arrives.
    let operated = Operated::start_in(directory, &config("compiled off; compile-wait \"0s\"", &file));
    operated.server.await_log("loading module failed: ");
    assert!(is_unavailable(&get(&operated.server, "/guarded")));
    assert!(get(&operated.server, "/open").ends_with("open"));
    assert_eq!((status(&operated, "compiling"), status(&operated, "unusable")), (0, 1));
    // A reload needs the module.
    let output = operated.order(&["reload"]);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("filter.wasm"), "{output:?}");
    write_filter(&file, 1, true);
    eventually("the new file is used", || get(&operated.server, "/guarded").ends_with("guarded"));
    assert_eq!(status(&operated, "unusable"), 0);
}

/// The old process answers requests meanwhile.
#[test]
fn an_upgrade_waits_for_its_modules() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("filter.wasm");
    write_filter(&file, 200, true);
    let mut operated = Operated::start_in(directory, &config("compiled off; compile-wait \"0s\"", &file));
    eventually("the module is ready", || get(&operated.server, "/guarded").ends_with("guarded"));
    let (is_done, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let address = operated.server.address;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let answer = ask_at(address);
                assert!(answer.ends_with("guarded"), "{answer}");
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
        operated.upgrade();
        let before = answers.load(Ordering::Relaxed);
        eventually("the new process answers", || answers.load(Ordering::Relaxed) > before + 10);
        is_done.store(true, Ordering::Relaxed);
    });
}

fn ask_at(address: std::net::SocketAddr) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("a process listens");
    stream.write_all(b"GET /guarded HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Files of machine code below a directory.
fn compiled_files(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(compiled_files(&path));
        } else if path.extension().is_none() {
            // Other files count how often each is used.
            found.insert(path);
        }
    }
    found
}

fn compile(arguments: &[&Path]) -> Output {
    tailcoat().args(["module", "compile"]).args(arguments).output().expect("the built binary starts")
}

#[test]
fn modules_are_compiled_before_there_is_a_server() {
    let Some(filters) = filters() else { return };
    let directory = tempfile::tempdir().unwrap();
    let compiled = directory.path().join("compiled");
    let file = directory.path().join("tailcoat.kdl");
    let options = format!("instances-max 7; compiled \"{}\"; compile-wait \"0s\"", compiled.display());
    std::fs::write(&file, config(&options, filters)).unwrap();
    let output = compile(&[Path::new("-c"), &file]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("filters.wasm: compiled in "), "{output:?}");
    assert_eq!(compiled.metadata().unwrap().mode() & 0o7777, 0o700);
    let files = compiled_files(&compiled);
    assert_eq!(files.len(), 1, "{files:?}");
    // The server uses the compiled files.
    let server = TestServer::run_from(&file);
    eventually("the module is ready", || !get(&server, "/guest/hello").starts_with("HTTP/1.1 503 "));
    assert_eq!(compiled_files(&compiled), files, "nothing was compiled again");
    drop(server);
    // The server runs no code from a directory that other users can read.
    std::fs::set_permissions(&compiled, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = compile(&[Path::new("-c"), &file, filters]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && errors.contains("is open to other users"), "{errors}");
    std::fs::set_permissions(&compiled, std::fs::Permissions::from_mode(0o700)).unwrap();
    // Nor a file that it cannot use.
    let broken = directory.path().join("broken.wasm");
    write_filter(&broken, 1, false);
    let output = compile(&[Path::new("-c"), &file, &broken]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && errors.contains("broken.wasm: "), "{errors}");
}
