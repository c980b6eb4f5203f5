//! Overload of the whole process: one log line when the first worker begins to shed, and one when the last has ended.

use std::sync::{Mutex, PoisonError};

use crate::log::{ServerLog, event};
use crate::metrics::ShedReason;

/// Advice in the log about an overload.
const HELP: &str = "`tailcoat status` shows what is shed; add workers or machines, or find the expensive requests";

/// Overload state that all workers share.
#[derive(Debug)]
pub struct SharedOverload {
    log: ServerLog,
    state: Mutex<OverloadState>,
}

#[derive(Debug, Default)]
struct OverloadState {
    /// Number of workers that shed.
    workers: u32,
    /// Time at which the first of them began.
    began_ms: u64,
}

impl SharedOverload {
    /// State in which no worker sheds.
    pub fn new(log: ServerLog) -> Self {
        Self { log, state: Mutex::default() }
    }

    /// Number of workers that shed.
    pub fn workers(&self) -> u32 {
        self.with(|state| state.workers)
    }

    pub(super) fn begin(&self, worker: usize, reason: ShedReason, lag_ms: u64, now_ms: u64) {
        let is_first = self.with(|state| {
            state.workers += 1;
            state.began_ms = if state.workers == 1 { now_ms } else { state.began_ms };
            state.workers == 1
        });
        if is_first {
            let reason = reason.name();
            self.log
                .warn(event("overload began", &[("reason", &reason), ("lag_ms", &lag_ms), ("worker", &worker)]), HELP);
        }
    }

    pub(super) fn end(&self, worker: usize, now_ms: u64) {
        let began_ms = self.with(|state| {
            state.workers = state.workers.saturating_sub(1);
            (state.workers == 0).then_some(state.began_ms)
        });
        if let Some(began_ms) = began_ms {
            let lasted_ms = now_ms.saturating_sub(began_ms);
            self.log.info(event("overload ended", &[("lasted_ms", &lasted_ms), ("worker", &worker)]));
        }
    }

    fn with<T>(&self, what: impl FnOnce(&mut OverloadState) -> T) -> T {
        // No code under the lock can panic halfway through a change.
        what(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
