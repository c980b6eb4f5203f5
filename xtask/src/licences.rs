//! Checks that the build may use its dependencies: licences by `deny.toml`, sources by crates.io.
//!
//! This needs neither network nor further tools. cargo-deny does the same, and looks for advisories, which it fetches;
//! where it is installed, `cargo xtask ci` runs it, too, and says so where it isn't.

use std::path::Path;
use std::process::Command;

use spdx::{Expression, ParseMode};

use crate::{cargo, skips};

/// Faults of the dependencies of the workspace at `root`, a line each.
pub(crate) fn check(root: &Path) -> Vec<String> {
    match try_check(root) {
        Ok(problems) => problems,
        Err(message) => vec![message],
    }
}

/// Runs cargo-deny, if it is installed; whether it found nothing.
pub(crate) fn run_cargo_deny(root: &Path) -> bool {
    let cargo_deny = || Command::new("cargo-deny");
    if !cargo_deny().arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skips::passes_without("advisories", "cargo-deny");
    }
    let status = cargo_deny().args(["--workspace", "check"]).current_dir(root).status();
    status.is_ok_and(|status| status.success())
}

fn try_check(root: &Path) -> Result<Vec<String>, String> {
    let rules = std::fs::read_to_string(root.join("deny.toml")).map_err(|error| format!("deny.toml: {error}"))?;
    let allowed = allowed_licences(&rules);
    let tree = ["tree", "--workspace", "--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}|{l}"];
    let output =
        cargo::command(&tree).current_dir(root).output().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let mut problems: Vec<String> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| problem(line, &allowed)).collect();
    problems.sort_unstable();
    problems.dedup();
    Ok(problems)
}

/// The list `allow` of deny.toml.
fn allowed_licences(rules: &str) -> Vec<String> {
    let list = rules.split("\nallow = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Fault of a package, from a line `name version (source)|licence`.
fn problem(line: &str, allowed: &[String]) -> Option<String> {
    let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
    if package.contains("://") {
        return Some(format!("{package}: not from crates.io"));
    }
    let Ok(expression) = Expression::parse_mode(licence, ParseMode::LAX) else {
        return Some(format!("{package}: its licence {licence:?} is no SPDX expression"));
    };
    // With its exception, if it has one: that is a licence of its own.
    let is_allowed = expression.evaluate(|requirement| allowed.contains(&requirement.to_string()));
    (!is_allowed).then(|| format!("{package}: its licence {licence} is not allowed by deny.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems() {
        let allowed = allowed_licences("# x\nallow = [\n    \"MIT\",\n    \"Apache-2.0 WITH LLVM-exception\",\n]\n");
        assert_eq!(allowed, ["MIT", "Apache-2.0 WITH LLVM-exception"]);
        for (line, expect) in [
            ("a v1.0.0|MIT", None),
            ("a v1.0.0|MIT (*)", None),
            ("a v1.0.0 (/somewhere/a)|MIT OR GPL-2.0-only", None),
            ("a v1.0.0|GPL-2.0-only/MIT", None),
            ("a v1.0.0|Apache-2.0 WITH LLVM-exception OR GPL-2.0-only", None),
            ("a v1.0.0|Apache-2.0", Some("a v1.0.0: its licence Apache-2.0 is not allowed by deny.toml")),
            (
                "a v1.0.0|MIT WITH LLVM-exception",
                Some("a v1.0.0: its licence MIT WITH LLVM-exception is not allowed by deny.toml"),
            ),
            ("", None),
            (
                "a v1.0.0|MIT AND GPL-2.0-only",
                Some("a v1.0.0: its licence MIT AND GPL-2.0-only is not allowed by deny.toml"),
            ),
            ("a v1.0.0|", Some("a v1.0.0: its licence \"\" is no SPDX expression")),
            ("a v1.0.0 (https://git.example/a#1)|MIT", Some("a v1.0.0 (https://git.example/a#1): not from crates.io")),
        ] {
            assert_eq!(problem(line, &allowed).as_deref(), expect, "{line}");
        }
    }
}
