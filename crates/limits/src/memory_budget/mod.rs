//! Memory that clients make this process hold: request heads, content, responses in a queue, and output that a socket
//! does not take.
//!
//! Code that holds such memory keeps a [`Charge`] for it and drops both together. Charges of a connection belong to its
//! [`Holder`], and holders to a worker's [`WorkerBudget`]. Workers publish their counts in steps of some tens of KiB,
//! so that a charge costs a few additions in the worker's own memory. Above the limit, workers close the largest
//! connections of the client that holds most, no matter which worker has them.

mod client;
mod holder;
mod shedding;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

pub use self::client::HolderClient;
pub use self::holder::{Charge, Holder, HolderSource, WorkerBudget};
use self::shedding::Reports;
pub use self::shedding::Shed;

/// Memory that clients hold, over all workers.
#[derive(Debug)]
pub struct MemoryBudget {
    /// Sum of the workers' published counts. Wraps for a moment if a worker releases more than it has published.
    held_bytes: AtomicU64,
    limit_bytes: AtomicU64,
    /// Notified when the count crosses the limit.
    alarm: Notify,
    reports: Mutex<Reports>,
}

/// Fill level of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Less than three quarters of the limit.
    Normal,
    /// Three quarters of the limit or more.
    High,
    /// The limit or more: workers close connections.
    Critical,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self {
            held_bytes: AtomicU64::new(0),
            limit_bytes: AtomicU64::new(u64::MAX),
            alarm: Notify::new(),
            reports: Mutex::default(),
        }
    }
}

impl MemoryBudget {
    /// Bytes that clients hold, without the unpublished part: at most [`holder::PUBLISHED_STEP_BYTES`] per worker, and
    /// for about a second.
    pub fn held_bytes(&self) -> u64 {
        let held = self.held_bytes.load(Ordering::Relaxed);
        if held > u64::MAX / 2 { 0 } else { held }
    }

    /// Limit of bytes that clients may hold.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes the limit. Workers close connections at once if clients exceed it.
    pub fn set_limit_bytes(&self, bytes: u64) {
        self.limit_bytes.store(bytes, Ordering::Relaxed);
        if self.pressure() == Pressure::Critical {
            self.alarm.notify_waiters();
        }
    }

    /// Present fill level of the budget.
    pub fn pressure(&self) -> Pressure {
        let (held, limit) = (self.held_bytes(), self.limit_bytes());
        if held >= limit {
            Pressure::Critical
        } else if held >= limit - limit / 4 {
            Pressure::High
        } else {
            Pressure::Normal
        }
    }

    /// True if clients hold 5/4 of the limit or more: they take memory faster than workers can compare them.
    fn is_urgent(&self) -> bool {
        let limit = self.limit_bytes();
        self.held_bytes() >= limit.saturating_add(limit / 4)
    }

    /// Bytes to release of `held_bytes` until workers stop closing connections: down to 7/8 of the limit.
    fn excess_bytes(&self, held_bytes: u64) -> u64 {
        let limit = self.limit_bytes();
        held_bytes.saturating_sub(limit - limit / 8)
    }

    fn reports(&self) -> MutexGuard<'_, Reports> {
        // No code under the lock can panic halfway through a change.
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until clients reach the limit.
    async fn critical(&self) {
        loop {
            let mut alarm = pin!(self.alarm.notified());
            // From here on no alarm is missed.
            alarm.as_mut().enable();
            if self.pressure() == Pressure::Critical {
                return;
            }
            alarm.await;
        }
    }

    /// Adds a worker's change since it last published.
    fn publish(&self, change: i64) {
        // A negative change wraps; the sum of all changes is never negative.
        let before = self.held_bytes.fetch_add(change as u64, Ordering::Relaxed);
        let limit = self.limit_bytes();
        let after = before.wrapping_add(change as u64);
        if change > 0 && before < limit && (limit..=u64::MAX / 2).contains(&after) {
            self.alarm.notify_waiters();
        }
    }
}

impl WorkerBudget {
    /// Waits until clients reach the limit.
    pub fn critical(&self) -> impl Future<Output = ()> {
        self.budget().critical()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn pressure_follows_what_is_held() {
        let budget = MemoryBudget::default();
        assert_eq!(budget.pressure(), Pressure::Normal);
        budget.set_limit_bytes(100);
        // (change, pressure, bytes above 7/8 of the limit)
        for (change, pressure, excess) in [
            (74, Pressure::Normal, 0),
            (1, Pressure::High, 0),
            (24, Pressure::High, 11),
            (1, Pressure::Critical, 12),
            (-12, Pressure::High, 0),
            (-88, Pressure::Normal, 0),
        ] {
            budget.publish(change);
            assert_eq!((budget.pressure(), budget.excess_bytes(budget.held_bytes())), (pressure, excess), "{change}");
        }
        budget.publish(-1);
        assert_eq!(budget.held_bytes(), 0, "a worker released first what another had published");
    }

    #[tokio::test]
    async fn an_alarm_is_raised_when_the_limit_is_crossed_or_lowered() {
        let budget = Arc::new(MemoryBudget::default());
        budget.set_limit_bytes(100);
        let waiting = Arc::clone(&budget);
        let waiting = tokio::spawn(async move { waiting.critical().await });
        budget.publish(99);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        budget.publish(1);
        waiting.await.unwrap();
        budget.publish(-50);
        let waiting = Arc::clone(&budget);
        let waiting = tokio::spawn(async move { waiting.critical().await });
        tokio::task::yield_now().await;
        budget.set_limit_bytes(50);
        waiting.await.unwrap();
    }
}
