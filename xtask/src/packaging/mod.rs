//! `cargo xtask packaging`: what users are given, tried: the manual as a book, the manifests, the image, the
//! training of released programs.

mod chart;
mod container;
mod kubernetes;
mod manual;
mod training;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::skips;

const USAGE: &str = "usage: cargo xtask packaging [--program FILE] [--write] [manual|kubernetes|container|training]...";

/// Result of a check: no fault, or a reason why it cannot run here.
pub(crate) enum CheckOutcome {
    Passed,
    Skipped(String),
    /// Skipped because this program is not installed.
    Missing(&'static str),
}

type PackageCheck = fn(&Path) -> Result<CheckOutcome, Box<dyn Error>>;

const CHECKS: [(&str, PackageCheck); 4] = [
    ("manual", manual::check),
    ("kubernetes", kubernetes::check),
    ("container", container::check),
    ("training", training::check),
];

/// Runs the checks that are named, or all. Says whether none has failed.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let mut program = PathBuf::from("target/debug/tailcoat");
    let mut wanted = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--write" => {
                std::fs::write(chart::PLAIN, chart::render()?)?;
                return Ok(true);
            }
            "--program" => program = arguments.next().ok_or(USAGE)?.into(),
            name if CHECKS.iter().any(|(check, _)| *check == name) => wanted.push(argument),
            _ => return Err(USAGE.into()),
        }
    }
    let program = std::path::absolute(program)?;
    if !program.exists() {
        return Err(format!("there is no {}: `cargo build -p tailcoat` makes it", program.display()).into());
    }
    let mut is_well = true;
    for (name, check) in CHECKS.iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|it| it == name)) {
        match check(&program) {
            Ok(CheckOutcome::Passed) => println!("{name}: passed"),
            Ok(CheckOutcome::Skipped(why)) => skips::skip_as(name, &why),
            Ok(CheckOutcome::Missing(tool)) => is_well &= skips::passes_without(name, tool),
            Err(error) => {
                println!("{name}: FAILED: {error}");
                is_well = false;
            }
        }
    }
    Ok(is_well)
}

/// Manifests for the rights of the controller, and for Tailcoat's own resources.
pub(crate) fn access_manifests() -> Result<String, Box<dyn Error>> {
    let all = chart::render()?;
    let of_access = all.split("---\n").filter(|manifest| manifest.contains("app.kubernetes.io/component: access"));
    Ok(of_access.collect::<Vec<_>>().join("---\n"))
}

/// True if a program of this name exists.
fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Runs a command that must end well, and returns what it prints.
fn output(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        return Err(format!("{name}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr)).into());
    }
    Ok(text(&output.stdout))
}

/// Turns a false condition into an error.
fn expect(holds: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(format!("not so: {what}").into()) }
}
