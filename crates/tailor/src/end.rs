//! Ends of the program: its results, and signals.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Results of the program, which become its exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramEnd {
    /// Exit code 0: the command succeeded, and all requirements hold.
    Passed,
    /// Exit code 1: the command succeeded, but a requirement does not hold.
    Failed,
    /// Exit code 2: the command could not run.
    Impossible,
    /// Exit code 130: a signal interrupted the run, which therefore did not pass.
    Interrupted,
}

impl From<ProgramEnd> for ExitCode {
    fn from(end: ProgramEnd) -> Self {
        Self::from(match end {
            ProgramEnd::Passed => 0,
            ProgramEnd::Failed => 1,
            ProgramEnd::Impossible => 2,
            ProgramEnd::Interrupted => 130,
        })
    }
}

/// Returns a flag that SIGINT and SIGTERM set.
pub(crate) fn stop_on_signals() -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| format!("signals: {error}"))?;
    }
    Ok(stop)
}
