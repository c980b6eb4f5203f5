//! `cargo xtask fuzz [TARGET]... [--seconds N]`: builds the fuzz targets and runs each for a while.

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::cargo::{self, succeeds};

/// Default duration of each target: enough to try all seeds and some hundred thousand variations of them.
const SECONDS_DEFAULT: u32 = 5;

/// Longest input, in bytes: targets have limits of their own below it, so that those are tried too.
const INPUT_BYTES_MAX: u32 = 512;

/// The coverage that libFuzzer goes by. The pinned stable compiler has it too; only sanitizers would need another, and
/// without unsafe code there is little for them to find.
// words: allow the string is a list of compiler flags
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Runs the targets named, or all. Ends at the first that fails; the input it fails on is then in `fuzz/artifacts`.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let (mut targets, mut seconds) = (Vec::new(), SECONDS_DEFAULT);
    while let Some(argument) = arguments.next() {
        if argument == "--seconds" {
            let value = arguments.next().unwrap_or_default();
            seconds = value.parse().map_err(|_| format!("--seconds takes a whole number, not {value:?}"))?;
        } else {
            targets.push(argument);
        }
    }
    let known = known_targets()?;
    if let Some(unknown) = targets.iter().find(|target| !known.contains(target)) {
        return Err(format!("no fuzz target {unknown:?}; there are {}", known.join(", ")).into());
    }
    let triple = build()?;
    let targets = if targets.is_empty() { &known } else { &targets };
    fuzz_all(targets, &triple, seconds)
}

/// Runs a target on each processor, and starts no further one after a failure.
fn fuzz_all(targets: &[String], triple: &str, seconds: u32) -> Result<bool, Box<dyn Error>> {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let (next, is_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let run = || -> Result<(), String> {
        while !is_failed.load(Ordering::Relaxed)
            && let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed))
        {
            match fuzz(target, triple, seconds) {
                Ok(true) => {}
                failed => {
                    is_failed.store(true, Ordering::Relaxed);
                    failed?;
                }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..processors).map(|_| scope.spawn(run)).collect();
        runs.into_iter().try_for_each(|run| run.join().map_err(|_| "a thread that runs fuzz targets panicked")?)
    })?;
    Ok(!is_failed.into_inner())
}

/// The targets are the files of `fuzz/src/bin`.
fn known_targets() -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir("fuzz/src/bin").map_err(|error| format!("cannot read fuzz/src/bin: {error}"))?;
    let mut targets: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned)).collect();
    targets.sort();
    Ok(targets)
}

/// Returns the triple built for: named, it keeps the flags from build scripts, which could not be linked with them.
fn build() -> Result<String, String> {
    let version = Command::new("rustc").arg("-vV").output().map_err(|error| format!("cannot start rustc: {error}"))?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let triple = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc does not tell its host")?;
    let mut cargo = cargo::command(&["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", triple]);
    match succeeds(cargo.env("RUSTFLAGS", RUSTFLAGS).env_remove("CARGO_ENCODED_RUSTFLAGS")) {
        true => Ok(triple.to_owned()),
        false => Err("the fuzz targets cannot be built: they need Rust and a C++ compiler".to_owned()),
    }
}

fn fuzz(target: &str, triple: &str, seconds: u32) -> Result<bool, String> {
    // New inputs go into the first corpus; the seeds in the second stay as they are.
    let found = format!("fuzz/target/found/{target}");
    for folder in [&found, "fuzz/artifacts"] {
        std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {folder}: {error}"))?;
    }
    println!("{target}: {seconds} s");
    let output = Command::new(Path::new("fuzz/target").join(triple).join("release").join(target))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .args(["-timeout=60", "-rss_limit_mb=512", "-verbosity=0"])
        .arg(format!("-artifact_prefix=fuzz/artifacts/{target}-"))
        .args([&found, &format!("fuzz/corpus/{target}")])
        .output()
        .map_err(|error| format!("cannot start fuzz target {target}: {error}"))?;
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        eprintln!("fuzz target {target} failed; the input is in fuzz/artifacts");
    }
    Ok(output.status.success())
}
