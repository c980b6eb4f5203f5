//! Wake-ups for a task that waits for an instance on another thread.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Task, Wake, Waker};

/// States: the instance rests; it runs; it runs and has produced output.
const RESTS: u8 = 0;
const RUNS: u8 = 1;
const HAS_GIVEN: u8 = 2;

/// Delays the wake-up of the waiting task until the instance pauses. If each piece of output woke it, both threads
/// would take turns several times per request.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    state: AtomicU8,
    waiter: Mutex<Option<Waker>>,
}

impl Pauses {
    /// Waker for the instance to call instead of this task's.
    pub(super) fn waker(self: &Arc<Self>, task: &Task<'_>) -> Waker {
        let mut waiter = self.waiter.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *waiter {
            Some(waiter) => waiter.clone_from(task.waker()),
            None => *waiter = Some(task.waker().clone()),
        }
        Waker::from(Arc::clone(self))
    }

    /// Records that the instance runs.
    pub(super) fn begin(&self) {
        self.state.store(RUNS, Ordering::SeqCst);
    }

    /// Records that the instance has paused or ended. Another wake-up reports the end.
    pub(super) fn end(&self, has_ended: bool) {
        if self.state.swap(RESTS, Ordering::SeqCst) == HAS_GIVEN && !has_ended {
            self.wake_waiter();
        }
    }

    fn wake_waiter(&self) {
        let waiter = self.waiter.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

impl Wake for Pauses {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.compare_exchange(RUNS, HAS_GIVEN, Ordering::SeqCst, Ordering::SeqCst) == Err(RESTS) {
            self.wake_waiter();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Count(AtomicU8);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn who_waits_is_woken_at_a_pause() {
        let (pauses, count) = (Arc::<Pauses>::default(), Arc::<Count>::default());
        let waker = Waker::from(Arc::clone(&count));
        let wait = || pauses.waker(&Task::from_waker(&waker));
        let check = |expect: u8| assert_eq!(count.0.swap(0, Ordering::SeqCst), expect);
        wait().wake();
        check(1);
        let given = wait();
        pauses.begin();
        given.wake_by_ref();
        given.wake_by_ref();
        check(0);
        pauses.end(false);
        check(1);
        wait();
        pauses.begin();
        pauses.end(false);
        check(0);
        pauses.begin();
        given.wake_by_ref();
        pauses.end(true);
        check(0);
    }
}
