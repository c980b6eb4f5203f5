//! `cargo xtask ci`: every check there is, in the order of how soon each can tell that something is wrong.

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use crate::cargo::{LIKE_TESTS, command, succeeds};
use crate::{attack, caching, churn, conformance, failures, fuzz, licences, modules, packaging, skips, tidy, words};

/// Duration of each fuzz target: a smoke run, which tries all seeds and their neighbors.
const FUZZ_SECONDS: &str = "5";

/// Tests that run at a time, for each processor.
const TESTS_A_PROCESSOR: usize = 2;

/// A check's name, and the check: whether all passed. It may add reports of failed tests for the summary.
type CiCheck = (&'static str, fn(&mut Vec<String>) -> bool);

/// Features of tailcoat that a build can leave out and that change more than one library, in the order of its manifest.
const FEATURES: [&str; 5] = ["acme", "gateway", "import", "modules", "traces"];

/// Features of libraries that stay: without them, dependencies of other libraries lose features, and are compiled again.
const KEPT_FEATURES: &str = "tailcoat-observe/traces,tailcoat-store/valkey";

const CHECKS: [CiCheck; 15] = [
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
    ("churn", |_| is_passed(churn::run(churn::SHORT.into_iter().map(str::to_owned)))),
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
    let mut command = command(&["test", "--workspace", "--no-fail-fast"]);
    // Most tests wait for a program that waits for them.
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        command.env("RUST_TEST_THREADS", (TESTS_A_PROCESSOR * processors).to_string());
    }
    failures::run_tests(&mut command, failed).unwrap_or_else(|error| {
        println!("cannot run cargo test: {error}");
        false
    })
}

fn format() -> bool {
    let members = cargo(&["fmt", "--all", "--check"]);
    members & cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])
}

/// Builds with other features than the default: none, and all but one. Lints of the library and the program with each; tests of
/// the library, and of what the program says without its parts, with none. The black-box tests of a single missing feature are
/// not compiled, because they would need a second build of the program.
fn features() -> bool {
    let each = FEATURES.iter().map(|without| {
        let others = FEATURES.into_iter().filter(|feature| feature != without).map(|name| format!("tailcoat/{name}"));
        let features = others.chain([KEPT_FEATURES.to_owned()]).collect::<Vec<_>>().join(",");
        let lints = ["clippy", "--no-default-features", "--features", &features];
        cargo(&[&lints[..], &LIKE_TESTS, &["--", "-D", "warnings"]].concat())
    });
    // All are tried before the first failure counts, so that one run finds all errors.
    let of_each = each.fold(true, |all, one| all & one);
    // Alone, the package shows if it needs a feature of a dependency that only others name.
    let none = ["--no-default-features", "-p", "tailcoat"];
    let lints = cargo(&[&["clippy"][..], &none, &["--", "-D", "warnings"]].concat());
    let library = cargo(&[&["test"][..], &none, &["--lib"]].concat());
    let program = cargo(&[&["test"][..], &none, &["--test", "blackbox", "absent_parts"]].concat());
    lints & of_each & library & program
}

/// Includes private items, because contributors read them. Programs whose library has their name are left out, because both would
/// have one page. Examples are named as in `LIKE_TESTS`.
fn documentation() -> bool {
    let mut command = command(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
    command.args(["--lib", "--examples", "--bin", "h2_server", "--bin", "xtask"]);
    succeeds(command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links"))
}

fn cargo(arguments: &[&str]) -> bool {
    succeeds(&mut command(arguments))
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
