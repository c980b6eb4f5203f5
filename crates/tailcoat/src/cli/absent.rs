//! Commands of parts that this build leaves out.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use super::{EXIT_USAGE, fail};
use crate::config::OptionalPart;

/// Arguments that are not read, because the command is absent.
#[derive(Debug, Args)]
pub(super) struct AbsentCommand {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

impl AbsentCommand {
    /// Says which part of the product has the command.
    pub(super) fn run(self, part: OptionalPart) -> ExitCode {
        fail(part.absence());
        ExitCode::from(EXIT_USAGE)
    }
}
