//! `cargo xtask bench`: measures the programs of a release beside their peers, and draws BENCHMARKS.md.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::charts;
use crate::release::{self, ProfileSource};

/// With `--charts`, writes BENCHMARKS.md and its charts from the results files. Otherwise builds tailcoat and tailor as for a release, and
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
    if let Err(error) = release::build_here(&ProfileSource::EarlierTraining) {
        eprintln!("{error}");
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
