//! The `tailcoat` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    tailcoat::cli::main()
}
