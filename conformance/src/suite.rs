//! Runs many cases at once against one server.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::case::Case;
use crate::client::{CaseClient, Feed};
use crate::expect::CaseOutcome;

/// Test of a server.
#[derive(Clone, Debug)]
pub struct Suite {
    /// Address and time-outs.
    pub client: CaseClient,
    /// True to send each input byte by byte, too, which must change nothing.
    pub split: bool,
    /// True to test Tailcoat's own choices where the RFC allows several, and that it never closes without a response.
    pub tailcoat: bool,
    /// Connections at a time.
    pub connections: usize,
}

/// A case that failed.
#[derive(Clone, Debug)]
pub struct CaseFailure {
    /// Index of the case.
    pub case: usize,
    /// Expected and actual outcome.
    pub message: String,
}

impl Suite {
    /// Runs the cases and returns those that failed, in order.
    pub fn run(&self, cases: &[Case]) -> Vec<CaseFailure> {
        let next = AtomicUsize::new(0);
        let failures = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.connections.min(cases.len()) {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(case) = cases.get(index) else { break };
                        if let Err(message) = self.run_case(case) {
                            failures.lock().expect("no thread panics").push(CaseFailure { case: index, message });
                        }
                    }
                });
            }
        });
        let mut failures = failures.into_inner().expect("no thread panics");
        failures.sort_by_key(|failure| failure.case);
        failures
    }

    fn run_case(&self, case: &Case) -> Result<(), String> {
        let outcome = self.check(case, Feed::Whole)?;
        if self.split {
            let split = self.check(case, Feed::Split).map_err(|message| format!("byte by byte: {message}"))?;
            if !split.is_same_as(&outcome) && !case.expect.depends_on_time() {
                return Err(format!("in one write: {outcome}, byte by byte: {split}"));
            }
        }
        Ok(())
    }

    fn check(&self, case: &Case, feed: Feed) -> Result<CaseOutcome, String> {
        let choice = case.tailcoat.as_ref().filter(|_| self.tailcoat);
        let outcome = self.client.run(&case.input, choice.unwrap_or(&case.expect), feed);
        let outcome = outcome.map_err(|error| error.to_string())?;
        case.expect.check(&outcome, !self.tailcoat)?;
        if let Some(choice) = choice {
            choice.check(&outcome, false).map_err(|message| format!("by our own choice: {message}"))?;
        }
        Ok(outcome)
    }
}
