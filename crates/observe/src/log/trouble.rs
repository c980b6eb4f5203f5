//! Continuing trouble is logged when it begins, not each time.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::ServerLog;

/// Time without an occurrence after which trouble is over, and the next one is news.
const QUIET_TIME: Duration = Duration::from_secs(60);

/// Trouble of one kind, shared by all who may have it.
#[derive(Debug)]
pub struct Trouble {
    log: ServerLog,
    /// Advice for the operator.
    help: &'static str,
    /// Time of the last occurrence.
    last: Mutex<Option<Instant>>,
}

impl Trouble {
    /// Creates it without an occurrence.
    pub fn new(log: ServerLog, help: &'static str) -> Self {
        Self { log, help, last: Mutex::default() }
    }

    /// Records an occurrence, and logs it if it is news.
    #[track_caller]
    pub fn tell(&self, message: impl Display) {
        if self.is_news(Instant::now()) {
            self.log.warn(message, self.help);
        }
    }

    fn is_news(&self, now: Instant) -> bool {
        // No code under the lock can panic.
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        last.is_none_or(|last| now.saturating_duration_since(last) >= QUIET_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogLevel;

    #[test]
    fn trouble_is_reported_when_it_begins() {
        let trouble = Trouble::new(ServerLog::stderr(LogLevel::Error), "");
        let start = Instant::now();
        // (seconds since the start, logged or not)
        for (seconds, expect) in [(0, true), (1, false), (59, false), (118, false), (178, true), (179, false)] {
            assert_eq!(trouble.is_news(start + Duration::from_secs(seconds)), expect, "{seconds}");
        }
    }
}
