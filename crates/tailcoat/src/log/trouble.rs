//! What goes on going wrong is told when it begins, and not each time.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::ServerLog;

/// After so long without it, trouble is over, and would be news again.
const QUIET_TIME: Duration = Duration::from_secs(60);

/// Trouble of one kind, for all who may have it.
#[derive(Debug)]
pub struct Trouble {
    log: ServerLog,
    /// What a person can do about it.
    help: &'static str,
    /// When it was there last.
    last: Mutex<Option<Instant>>,
}

impl Trouble {
    /// None yet.
    pub fn new(log: ServerLog, help: &'static str) -> Self {
        Self { log, help, last: Mutex::default() }
    }

    /// Tells of it, if that is news.
    #[track_caller]
    pub fn tell(&self, message: impl Display) {
        if self.is_news(Instant::now()) {
            self.log.warn(message, self.help);
        }
    }

    fn is_news(&self, now: Instant) -> bool {
        // Nothing is left half done.
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        last.is_none_or(|last| now.saturating_duration_since(last) >= QUIET_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogLevel;

    #[test]
    fn trouble_is_told_when_it_begins() {
        let trouble = Trouble::new(ServerLog::stderr(LogLevel::Error), "");
        let start = Instant::now();
        // (seconds since the beginning, whether it is told)
        for (seconds, expect) in [(0, true), (1, false), (59, false), (118, false), (178, true), (179, false)] {
            assert_eq!(trouble.is_news(start + Duration::from_secs(seconds)), expect, "{seconds}");
        }
    }
}
