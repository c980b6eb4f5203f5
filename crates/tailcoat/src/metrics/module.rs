//! What is counted of modules and of programs that were started. A module may run on any thread, so these are shared: who
//! counts does it once or twice a request, and for what has failed.

use std::sync::atomic::{AtomicU64, Ordering};

use super::ModuleFailure;

/// A number that any thread may change.
#[derive(Debug, Default)]
pub struct SharedCounter(AtomicU64);

/// What was counted of the modules of a name.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ModuleMetrics {
    /// Requests that an instance was given.
    pub requests: SharedCounter,
    /// Instances that there are now: those at work, and those that wait for another request.
    pub instances: SharedCounter,
    /// Memory that they have now, in bytes.
    pub memory_bytes: SharedCounter,
    /// Modules that are being compiled.
    pub compiling: SharedCounter,
    /// Modules whose file can't be used.
    pub unusable: SharedCounter,
    failures: [SharedCounter; ModuleFailure::ALL.len()],
}

/// What was counted of programs that were started for requests.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ProgramMetrics {
    /// Programs that were started.
    pub started: SharedCounter,
    /// Those that have not ended.
    pub running: SharedCounter,
    /// Requests for which there was no place among those that run.
    pub refused: SharedCounter,
}

impl SharedCounter {
    /// So many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// So many fewer; they were added before.
    pub fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// How many there are.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl ModuleMetrics {
    /// Counts that a request came to nothing.
    pub fn on_failure(&self, failure: ModuleFailure) {
        self.failures[failure as usize].add(1);
    }

    /// How often that happened.
    pub fn failures(&self, failure: ModuleFailure) -> u64 {
        self.failures[failure as usize].get()
    }
}
