//! `cargo xtask bench`: measures the optimized build beside its peers, and draws BENCHMARKS.md.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::cargo::{self, succeeds};
use crate::charts;

/// With `--charts`, writes BENCHMARKS.md and its charts from the results files. Otherwise builds tailcoat and tailor, and
/// passes all arguments to `benches/bench.py`, whose exit status is the result.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let arguments: Vec<String> = arguments.collect();
    if arguments == ["--charts"] {
        return match charts::write(Path::new(".")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("{message}");
                ExitCode::FAILURE
            }
        };
    }
    if !succeeds(&mut cargo::command(&["build", "--profile", "optimized", "-p", "tailcoat", "-p", "tailor"])) {
        return ExitCode::FAILURE;
    }
    match Command::new("python3").arg("benches/bench.py").args(arguments).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot start python3, which runs the benchmarks: {error}");
            ExitCode::FAILURE
        }
    }
}
