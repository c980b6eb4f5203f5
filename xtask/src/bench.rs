//! `cargo xtask bench SCENARIO [OPTION]...`: builds the release server and measures it beside its peers.

use std::process::{Command, ExitCode};

/// Builds tailcoat and hands all arguments on to `benches/bench.py`, whose exit status is the result.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo).args(["build", "--release", "--package", "tailcoat"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return ExitCode::FAILURE;
    }
    match Command::new("python3").arg("benches/bench.py").args(arguments).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot start python3, which the benchmarks need: {error}");
            ExitCode::FAILURE
        }
    }
}
