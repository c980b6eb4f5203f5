//! `cargo xtask attack`: builds the server and runs the attacks of `conformance/attacks` against it.

use std::error::Error;

use crate::cargo;

/// Runs the attacks that the arguments name. Returns whether all passed or were skipped.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    // The whole workspace, so that features are those of `cargo test --workspace` and nothing is built twice.
    let mut command = cargo::command(&["test", "--quiet", "--workspace", "--test", "attacks", "--"]);
    command.args(arguments);
    Ok(command.status().map_err(|error| format!("cannot start cargo: {error}"))?.success())
}
