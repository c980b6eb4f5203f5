//! Compiles modules in parallel on low-priority threads, while callers wait or continue.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::engine::Runtime;
use super::{Loaded, ModuleLoadError};
use crate::log::{ServerLog, event};

/// Time that a caller waits for the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Without a limit.
    Unlimited,
    /// At most this long; slower compilations continue in the background.
    AtMost(Duration),
}

/// File to compile.
pub(super) struct CompileJob {
    pub(super) file: PathBuf,
    pub(super) runtime: Arc<Runtime>,
    /// Receives the code, or `None` if compiling fails.
    pub(super) deliver: Box<dyn FnOnce(Option<Loaded>) + Send>,
}

/// Progress of the jobs that a caller waits for.
struct CompileProgress {
    state: Mutex<CompileState>,
    changed: Condvar,
    log: ServerLog,
}

struct CompileState {
    waiting: VecDeque<CompileJob>,
    /// Number of unfinished jobs.
    left: usize,
    /// Error of the first failed job.
    error: Option<ModuleLoadError>,
    /// True while the caller waits, who gets the errors then; otherwise the log does.
    is_awaited: bool,
}

/// Compiles files, and waits for them within `patience`.
///
/// # Errors
/// A file that cannot be used, if that is known in time. The log gets later errors.
pub(super) fn compile(jobs: Vec<CompileJob>, patience: Patience, log: &ServerLog) -> Result<(), ModuleLoadError> {
    if jobs.is_empty() {
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = cores.min(jobs.len());
    let state = CompileState { left: jobs.len(), waiting: jobs.into(), error: None, is_awaited: true };
    let progress = Arc::new(CompileProgress { state: Mutex::new(state), changed: Condvar::new(), log: log.clone() });
    for _ in 0..threads {
        let progress = Arc::clone(&progress);
        let thread = std::thread::Builder::new().name("module-loader".into()).spawn(move || progress.work());
        thread.map_err(|error| ModuleLoadError(format!("cannot start a thread for modules: {error}")))?;
    }
    progress.wait(patience)
}

impl CompileProgress {
    fn state(&self) -> MutexGuard<'_, CompileState> {
        // No code under the lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on jobs until none is left.
    fn work(&self) {
        loop {
            let Some(job) = self.state().waiting.pop_front() else { return };
            let begun = Instant::now();
            let (loaded, error) = match Loaded::from(&job.file, &job.runtime) {
                Ok(loaded) => (Some(loaded), None),
                Err(error) => (None, Some(error)),
            };
            (job.deliver)(loaded);
            let mut state = self.state();
            state.left -= 1;
            if !state.is_awaited {
                let file = job.file.display();
                match &error {
                    None => self.log.info(event(
                        "module compiled",
                        &[("file", &file), ("duration_ms", &begun.elapsed().as_millis())],
                    )),
                    Some(error) => self.log.error(
                        event("loading module failed", &[("error", error)]),
                        "its paths get 503; replace the file, or reload a configuration without the module",
                    ),
                }
            }
            state.error = state.error.take().or(error);
            drop(state);
            self.changed.notify_all();
        }
    }

    fn wait(&self, patience: Patience) -> Result<(), ModuleLoadError> {
        let deadline = match patience {
            Patience::Unlimited => None,
            Patience::AtMost(time) => Some(Instant::now() + time),
        };
        let mut state = self.state();
        loop {
            let now = Instant::now();
            if let Some(error) = state.error.take() {
                state.is_awaited = false;
                // The other results are not needed any more.
                state.waiting.clear();
                return Err(error);
            }
            if state.left == 0 {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                state.is_awaited = false;
                self.log.info(event(
                    "started with modules still compiling, whose paths get 503 until they are ready",
                    &[("modules", &state.left)],
                ));
                return Ok(());
            }
            let time = deadline.map_or(Duration::from_secs(3600), |deadline| deadline - now);
            state = self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
