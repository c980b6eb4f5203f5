//! Counters of modules and CGI programs. A module may run on any thread, so these are shared; a request changes them
//! once or twice, and once more on a failure.

use std::sync::atomic::{AtomicU64, Ordering};

use super::ModuleFailure;

/// Number that any thread may change.
#[derive(Debug, Default)]
pub struct SharedCounter(AtomicU64);

/// Counters of the modules of one name.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ModuleMetrics {
    /// Requests that an instance handled.
    pub requests: SharedCounter,
    /// Instances, busy and idle.
    pub instances: SharedCounter,
    /// Memory of the instances, in bytes.
    pub memory_bytes: SharedCounter,
    /// Modules that are compiling.
    pub compiling: SharedCounter,
    /// Modules that failed to load.
    pub unusable: SharedCounter,
    failures: [SharedCounter; ModuleFailure::ALL.len()],
}

/// Counters of CGI programs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ProgramMetrics {
    /// Programs started.
    pub started: SharedCounter,
    /// Programs that run now.
    pub running: SharedCounter,
    /// Requests rejected because all programs were busy.
    pub rejected: SharedCounter,
}

impl SharedCounter {
    /// Adds to the number.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Subtracts what was added before.
    pub fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// Current number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl ModuleMetrics {
    /// Counts a failed request.
    pub fn on_failure(&self, failure: ModuleFailure) {
        self.failures[failure as usize].add(1);
    }

    /// Number of failures by this cause.
    pub fn failures(&self, failure: ModuleFailure) -> u64 {
        self.failures[failure as usize].get()
    }
}
