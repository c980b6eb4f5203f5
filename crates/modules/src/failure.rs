//! Failures of modules: a request got no response, or only part of one.

use std::fmt;

use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::Module;
use super::limiter::Limiter;
use super::meter::Meter;
use crate::log::event;
use crate::metrics::ModuleFailure;

/// Reason why a module gave no complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    cause: ModuleFailure,
    how: String,
}

impl CallFailure {
    /// Failure with this cause. `how` says what happened, with the module as its subject.
    pub fn new(cause: ModuleFailure, how: impl Into<String>) -> Self {
        Self { cause, how: how.into() }
    }

    /// Failure that the module reported itself.
    pub(super) fn failed(how: impl fmt::Display) -> Self {
        Self::new(ModuleFailure::Failed, how.to_string())
    }

    /// Failure of an instance that ended with this error, by its meter and limiter.
    pub(super) fn of(error: &wasmtime::Error, meter: &Meter, limiter: &Limiter) -> Self {
        if meter.is_used_up() {
            return Self::new(ModuleFailure::ProcessorTimeMax, "used more CPU time than cpu-time-max");
        }
        if error.is::<PoolConcurrencyLimitError>() {
            let how = format!("no free instance for a request: {}", error.root_cause());
            return Self::new(ModuleFailure::InstancesMax, how);
        }
        match limiter.rejected() {
            None => Self::failed(error_text(error)),
            Some(limit) => {
                let how = format!("{} (limit reached: {limit})", error_text(error));
                Self::new(limit.cause(), how)
            }
        }
    }

    /// Cause of the failure, as counted in metrics.
    pub fn cause(&self) -> ModuleFailure {
        self.cause
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.how)
    }
}

impl Module {
    /// Counts a failure and logs it. `request` is method and target, if known.
    pub fn note(&self, failure: &CallFailure, request: Option<&str>) {
        self.metrics.on_failure(failure.cause);
        let help = match failure.cause {
            // The client caused it, and gets the reason in its response.
            ModuleFailure::BufferedBytesMax => return,
            ModuleFailure::InstancesMax => "raise instances-max, or find out what the instances wait for",
            _ => "",
        };
        let request = request.unwrap_or_default();
        let values: &[(&str, &dyn fmt::Display)] =
            &[("module", &self.name), ("reason", failure), ("request", &request)];
        self.log().warn(event("module failed", values), help);
    }
}

fn error_text(error: &wasmtime::Error) -> String {
    if let Some(I32Exit(status)) = error.downcast_ref() {
        return format!("it exited with status {status}");
    }
    let cause = error.downcast_ref::<Trap>().map_or_else(|| error.root_cause().to_string(), Trap::to_string);
    match innermost_function(error) {
        Some(name) => format!("{cause}, in {name}"),
        None => cause,
    }
}

/// Innermost function of the backtrace, if the file contains names.
fn innermost_function(error: &wasmtime::Error) -> Option<&str> {
    error.downcast_ref::<WasmBacktrace>()?.frames().iter().find_map(|frame| frame.func_name())
}
