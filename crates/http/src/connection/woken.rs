//! Wakers of a worker's connections: each notes the slot of its connection for the task that polls them all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// Connections woken by anything other than their socket.
#[derive(Default)]
pub(super) struct Woken {
    state: Mutex<WokenState>,
}

/// Woken connections, and the task that polls them.
#[derive(Default)]
pub(super) struct WokenState {
    pub(super) slots: Vec<u32>,
    /// Waker of the polling task while it sleeps.
    pub(super) sleeper: Option<Waker>,
}

pub(super) struct PlaceWaker {
    pub(super) woken: Arc<Woken>,
    pub(super) slot: u32,
}

impl Woken {
    pub(super) fn state(&self) -> MutexGuard<'_, WokenState> {
        // A panic while the lock is held leaves no half-made change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_any(&self) -> bool {
        !self.state().slots.is_empty()
    }
}

impl Wake for PlaceWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let sleeper = {
            let state = &mut *self.woken.state();
            if state.slots.last() != Some(&self.slot) {
                state.slots.push(self.slot);
            }
            state.sleeper.take()
        };
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }
}
