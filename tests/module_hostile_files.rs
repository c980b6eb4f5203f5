//! Hostile modules that no compiler generates, written in WebAssembly's text format.

use std::fmt::Write as _;
use std::path::Path;

use tempfile::TempDir;

use crate::support::guests::{guests, serve_guests};
use crate::support::{TestServer, ask};

fn get(server: &TestServer, target: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
}

/// File of a module with this text.
fn assemble(directory: &Path, text: &str) -> std::path::PathBuf {
    let file = directory.join("hostile.wasm");
    std::fs::write(&file, wat::parse_str(text).expect("it is WebAssembly")).expect("it can be written");
    file
}

/// Server with this module at `/hostile`, and a file beside it.
fn server(text: &str) -> (TestServer, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "a file").unwrap();
    let module = assemble(directory.path(), text);
    let server = TestServer::run(&format!(
        "server {{ workers 1; pin-workers off }}\nmodules {{ compile-wait \"5m\"; compiled off; instances-max 4 }}\nsite {{\n \
         listen \"127.0.0.1:0\"\n module \"/hostile\" \"{}\" {{ memory-bytes-max \"1MiB\"; table-elements-max 1000 }}\n \
         root \"{}\"\n}}\n",
        module.display(),
        directory.path().display()
    ));
    (server, directory)
}

/// http-wasm module with these definitions and this body of `handle_request`.
fn filter(definitions: &str, handle_request: &str) -> String {
    format!(
        "(module {definitions} (func (export \"handle_response\") (param i32 i32))\n\
         (func (export \"handle_request\") (result i64) {handle_request}))"
    )
}

#[test]
fn what_an_instance_takes_ends_its_own_request() {
    const MEMORY: &str = "(memory (export \"memory\") 1)";
    let forever = |taking: &str| format!("(loop $more (br_if $more (i32.ne ({taking}) (i32.const -1)))) unreachable");
    for (text, logged) in [
        (
            filter(&format!("{MEMORY} (table $t 1 funcref)"), &forever("table.grow $t (ref.null func) (i32.const 10)")),
            "limit reached: table-elements-max",
        ),
        (filter(MEMORY, &forever("memory.grow (i32.const 1)")), "memory-bytes-max of the module"),
        // Too much memory from the start.
        (filter("(memory (export \"memory\") 17)", "(i64.const 0)"), "memory-bytes-max of the module"),
        // An invalid address.
        (
            filter(
                &format!("(import \"http_handler\" \"set_uri\" (func $set_uri (param i32 i32)))\n{MEMORY}"),
                "(call $set_uri (i32.const -1) (i32.const -1)) (i64.const 1)",
            ),
            "address outside the module's memory",
        ),
        // A start function that traps.
        (
            filter(&format!("{MEMORY} (func $start unreachable) (start $start)"), "(i64.const 0)"),
            "`unreachable` instruction executed",
        ),
    ] {
        let (server, _directory) = server(&text);
        // More requests than there are instances: a failed instance frees its resources.
        for _ in 0..6 {
            let answer = get(&server, "/hostile");
            assert!(answer.starts_with("HTTP/1.1 500 "), "{text}: {answer}");
            assert!(get(&server, "/file").ends_with("a file"), "{text}");
        }
        server.await_log(logged);
    }
}

/// Component with this many core instances and tables.
fn component(instances: u32, tables: u32) -> String {
    let mut text = "(component (core module $m) (core module $t (table 1 funcref))\n".to_owned();
    for (count, module) in [(instances, "$m"), (tables, "$t")] {
        for _ in 0..count {
            let _ = writeln!(text, "(core instance (instantiate {module}))");
        }
    }
    text + ")"
}

/// A writer of module files can cause no more than a line in the log with files that cannot be instantiated.
#[test]
fn new_files_that_want_too_much_are_not_used() {
    let Some(guests) = guests() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hostile.wasm");
    for (text, logged) in [
        (component(300, 0), "loading new module file failed"),
        (component(0, 100), "loading new module file failed"),
        (
            filter("(memory (export \"memory\") 1) (table 10000000 funcref)", "(i64.const 0)"),
            "loading new module file failed",
        ),
        ("(module (memory (export \"memory\") 1))".to_owned(), "without the function handle_request"),
        (filter("", "(i64.const 0)"), "exports no memory"),
        (
            filter("(import \"wasi_unstable\" \"fd_write\" (func)) (memory (export \"memory\") 1)", "(i64.const 0)"),
            "loading new module file failed",
        ),
    ] {
        std::fs::copy(guests, &file).unwrap();
        let server = serve_guests(&file, "", "");
        assert!(get(&server, "/hello").contains("hello\n"));
        assemble(directory.path(), &text);
        server.await_log(logged);
        assert!(get(&server, "/hello").contains("hello\n"), "after {text:.80}");
    }
}
