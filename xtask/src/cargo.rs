//! Commands of cargo.

use std::process::Command;

/// Packages and targets whose dependencies have the features that they have in `cargo test --workspace`: cargo chooses features
/// for all packages of a command at once, and compiles a dependency again for each choice. To name examples, of which there are
/// none, adds the features of dev-dependencies.
pub(crate) const LIKE_TESTS: [&str; 4] = ["--workspace", "--lib", "--bins", "--examples"];

/// A command of the cargo that runs this program.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Runs a command. Returns whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cannot start {}: {error}", command.get_program().display());
            false
        }
    }
}
