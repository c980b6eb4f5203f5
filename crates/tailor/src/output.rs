//! Standard output.

use std::io::Write;

/// Prints a text on standard output. A reader that wants no more of it, such as `head`, is not an error.
pub(crate) fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}
