//! `cargo xtask attack`: builds the server and runs the attacks of `conformance/attacks` against it.

use std::error::Error;
use std::process::Command;

/// Runs the attacks that the arguments name. Returns whether all passed or were skipped.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // The whole workspace, so that features are those of `cargo test --workspace` and nothing is built twice.
    let mut command = Command::new(cargo);
    command.args(["test", "--quiet", "--workspace", "--test", "attacks", "--"]).args(arguments);
    Ok(command.status().map_err(|error| format!("cannot start cargo: {error}"))?.success())
}
