//! `cargo xtask conformance ftp`: runs pyftpdlib's functional tests against the server.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::skips;

/// Place of pyftpdlib, psutil and pytest, and of pyftpdlib's `tests` in `suite`. `.ci/run` installs them there.
const LIBRARY: &str = "/usr/local/lib/pyftpdlib";

/// Runs the command; the arguments are names of tests. Returns whether all tests that apply passed.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let suite = Path::new(LIBRARY).join("suite");
    if !suite.join("tests/test_functional.py").is_file() {
        skips::skip_as("ftp", &format!("{LIBRARY} is not installed"));
        println!(".ci/run has the commands that install it.");
        return Ok(true);
    }
    if !Path::new("target/debug/tailcoat").is_file() {
        return Err("target/debug/tailcoat is missing; it is built by `cargo build -p tailcoat`".into());
    }
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", LIBRARY).arg("conformance/ftp/run.py").arg(suite).args(arguments);
    Ok(command.stdin(Stdio::null()).status()?.success())
}
