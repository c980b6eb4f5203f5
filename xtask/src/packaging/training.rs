//! The training of released programs: its requests get the responses that it expects.

use std::error::Error;
use std::path::Path;

use super::CheckOutcome;
use crate::release::try_out;

/// Tries the built programs.
pub(super) fn check(program: &Path) -> Result<CheckOutcome, Box<dyn Error>> {
    let programs = program.parent().ok_or("the program has no directory")?;
    if !programs.join("tailor").exists() {
        return Ok(CheckOutcome::Missing("tailor"));
    }
    try_out(programs)?;
    Ok(CheckOutcome::Passed)
}
