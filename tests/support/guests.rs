//! Modules that tests run, built once per test process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::TestServer;
use super::skips::skip_without;

/// Components of `wasi:http`, from `tests/guests`. Skips and returns `None` if their compiler is missing.
pub(crate) fn guests() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    built(&BUILT, "guests", "wasm32-wasip2", "guests.wasm")
}

/// Core module for http-wasm, from `tests/http_wasm_guests`. Skips and returns `None` if its compiler is missing.
pub(crate) fn filters() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    built(&BUILT, "http_wasm_guests", "wasm32-wasip1", "filters.wasm")
}

/// Builds a module once. Each test that needs it skips where the target is missing.
fn built(
    built: &'static OnceLock<Option<PathBuf>>,
    directory: &str,
    target: &str,
    file: &str,
) -> Option<&'static Path> {
    let file = built.get_or_init(|| build(directory, target, file)).as_deref();
    if file.is_none() {
        skip_without(target);
    }
    file
}

fn build(directory: &str, target: &str, file: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let installed = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output().ok()?;
    let library = PathBuf::from(String::from_utf8_lossy(&installed.stdout).trim_end());
    if !library.is_dir() {
        return None;
    }
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--locked", "--target", target])
        .arg("--manifest-path")
        .arg(root.join("tests").join(directory).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&built)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status();
    assert!(status.is_ok_and(|status| status.success()), "the guests can be built");
    Some(built.join(target).join("release").join(file))
}

/// Directory for compiled modules, shared by all tests, with the permissions that the server needs.
pub(crate) fn compiled_directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled")
}

/// Server whose site has the guests with these options at `/`, and the options `before` ahead of them.
pub(crate) fn serve_guests(guests: &Path, options: &str, before: &str) -> TestServer {
    serve_guests_with(guests, options, before, "")
}

/// Server like that of [`serve_guests`], with options of `modules`.
pub(crate) fn serve_guests_with(guests: &Path, options: &str, before: &str, shared: &str) -> TestServer {
    let (guests, compiled) = (guests.display(), compiled_directory());
    TestServer::run(&format!(
        "server {{ workers 1; pin-workers off }}\n\
         modules {{ compile-wait \"5m\"; compiled \"{}\"; check-interval \"100ms\"; {shared} }}\n\
         site {{\n listen \"127.0.0.1:0\"\n {before}\n module \"*\" \"{guests}\" {{ {options} }}\n}}\n",
        compiled.display()
    ))
}

/// Content of a response, with chunks decoded. The module's timing decides whether there are chunks.
pub(crate) fn content(answer: &str) -> String {
    let (head, mut rest) = answer.split_once("\r\n\r\n").unwrap_or_default();
    if !head.contains("Transfer-Encoding: chunked") {
        return rest.to_owned();
    }
    let mut content = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        content.push_str(&after[..size]);
        rest = if size == 0 { "" } else { &after[size + 2..] };
    }
    content
}
