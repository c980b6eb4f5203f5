//! Overload of the whole process: one line in the log when the first worker begins to shed, and one when the last has ended.

use std::sync::{Mutex, PoisonError};

use crate::log::{ServerLog, event};
use crate::metrics::ShedReason;

/// Advice for the operator.
const HELP: &str = "`tailcoat status` shows what is shed; add workers or machines, or find the expensive requests";

/// Part of overload that workers share.
#[derive(Debug)]
pub struct SharedOverload {
    log: ServerLog,
    state: Mutex<OverloadState>,
}

#[derive(Debug, Default)]
struct OverloadState {
    /// Workers that shed.
    workers: u32,
    /// When the first of them began.
    began_ms: u64,
}

impl SharedOverload {
    /// No worker sheds yet.
    pub fn new(log: ServerLog) -> Self {
        Self { log, state: Mutex::default() }
    }

    /// Workers that shed.
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
        // Nothing is left half done where it could panic.
        what(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
