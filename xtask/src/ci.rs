//! `cargo xtask ci`: every check there is, in the order of how soon each can tell that something is wrong.

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::{attack, caching, conformance, failures, fuzz, licences, modules, packaging, skips, tidy, words};

/// Duration of each fuzz target: a smoke run, which tries all seeds and their neighbors.
const FUZZ_SECONDS: &str = "5";

/// A check's name, and the check: whether all passed. It may add reports of failed tests for the summary.
type CiCheck = (&'static str, fn(&mut Vec<String>) -> bool);

/// Features of tailcoat that a build can leave out, in the order of its manifest.
const FEATURES: [&str; 5] = ["acme", "gateway", "import", "modules", "traces"];

const CHECKS: [CiCheck; 14] = [
    ("tidiness", |_| report(tidy::check(Path::new(".")))),
    ("words", |_| is_passed(words::run(std::iter::empty()))),
    ("licences", |_| report(licences::check(Path::new("."))) & licences::run_cargo_deny(Path::new("."))),
    ("format", |_| format()),
    ("lints", |_| cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
    ("features", |_| features()),
    ("documentation", |_| documentation()),
    ("tests", tests),
    ("conformance", |_| {
        is_passed(conformance::run(std::iter::empty())) & is_passed(conformance::run(std::iter::once("ftp".to_owned())))
    }),
    ("attacks", |_| is_passed(attack::run(std::iter::once("--short".to_owned())))),
    // Languages whose tools are quick to fetch. Run the others if you change what modules see.
    ("modules", |_| modules::pass(&["go", "http-wasm-tck"])),
    ("packaging", |_| is_passed(packaging::run(std::iter::empty()))),
    ("caching", |_| is_passed(caching::run(std::iter::empty()))),
    ("fuzzing", |_| is_passed(fuzz::run(["--seconds", FUZZ_SECONDS].into_iter().map(str::to_owned)))),
];

/// Runs the named checks, or all, continues after a failure, and prints a summary with all skipped tests.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let wanted: Vec<String> = arguments.collect();
    if let Some(unknown) = wanted.iter().find(|name| !CHECKS.iter().any(|(check, _)| check == name)) {
        eprintln!("there is no check {unknown:?}, but {}", CHECKS.map(|(name, _)| name).join(", "));
        return ExitCode::from(2);
    }
    if let Err(error) = skips::begin_list(std::iter::once("ci").chain(wanted.iter().map(String::as_str))) {
        eprintln!("cannot keep a list of skipped tests: {error}");
        return ExitCode::FAILURE;
    }
    let results: Vec<(&str, bool, u64, Vec<String>)> = CHECKS
        .iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name))
        .map(|(name, check)| {
            println!("\n== {name}");
            let start = Instant::now();
            let mut failed = Vec::new();
            (*name, check(&mut failed), start.elapsed().as_secs(), failed)
        })
        .collect();
    println!("\n== skipped");
    skips::print_list();
    println!("\n== summary");
    for (name, passed, seconds, failed) in &results {
        println!("{} {name}, {seconds} s", if *passed { "ok    " } else { "FAILED" });
        failed.iter().for_each(|report| println!("{report}"));
    }
    if results.iter().all(|(_, passed, _, _)| *passed) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tests(failed: &mut Vec<String>) -> bool {
    failures::run_tests(&mut command(&["test", "--workspace", "--no-fail-fast"]), failed).unwrap_or_else(|error| {
        println!("cannot run cargo test: {error}");
        false
    })
}

fn format() -> bool {
    let members = cargo(&["fmt", "--all", "--check"]);
    members & cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])
}

/// Builds with other features than the default: none, and all but one. Lints of the library and the program with each;
/// tests of the library, and of what the program says without its parts, with none. The black-box tests of a single missing
/// feature are only compiled where they cost no second build of the program.
fn features() -> bool {
    let none = ["--no-default-features", "-p", "tailcoat"];
    let lints = |features: &str| {
        let mut arguments = vec!["clippy"];
        arguments.extend(none);
        arguments.extend(["--features", features, "--", "-D", "warnings"]);
        cargo(&arguments)
    };
    let each = FEATURES.iter().map(|without| {
        let others: Vec<&str> = FEATURES.into_iter().filter(|feature| feature != without).collect();
        lints(&others.join(","))
    });
    // All are tried before the first failure counts, so that one run finds all errors.
    let of_each = each.fold(true, |all, one| all & one);
    let mut tests = vec!["test"];
    tests.extend(none);
    let mut library = tests.clone();
    library.push("--lib");
    tests.extend(["--test", "blackbox", "absent_parts"]);
    lints("") & of_each & cargo(&library) & cargo(&tests)
}

/// Includes private items, because contributors read them.
fn documentation() -> bool {
    let mut command = command(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
    succeeds(command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links"))
}

fn cargo(arguments: &[&str]) -> bool {
    succeeds(&mut command(arguments))
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

fn succeeds(command: &mut Command) -> bool {
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cannot start {}: {error}", command.get_program().display());
            false
        }
    }
}

fn report(problems: Vec<String>) -> bool {
    problems.iter().for_each(|problem| println!("{problem}"));
    problems.is_empty()
}

fn is_passed(result: Result<bool, Box<dyn Error>>) -> bool {
    result.unwrap_or_else(|error| {
        println!("{error}");
        false
    })
}
