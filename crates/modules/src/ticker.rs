//! Interrupts modules that compute: a thread advances the engine's epoch as long as any module runs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use wasmtime::Engine;

/// Time between interrupts. Not an option: a shorter one costs modules more, and a longer one delays other requests.
pub(super) const SLICE: Duration = Duration::from_millis(1);

/// Thread that advances the epoch. It sleeps while no module runs.
#[derive(Debug)]
pub(super) struct Ticker {
    state: Arc<TickerState>,
    thread: Thread,
    joined: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct TickerState {
    /// Number of times that a module started to run on a thread, and stopped.
    entered: AtomicU64,
    left: AtomicU64,
    is_parked: AtomicBool,
    is_ended: AtomicBool,
}

impl Ticker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(engine: Engine) -> io::Result<Self> {
        let state = Arc::new(TickerState::default());
        let of_thread = Arc::clone(&state);
        let joined =
            std::thread::Builder::new().name("module-clock".into()).spawn(move || tick(&of_thread, &engine))?;
        Ok(Self { state, thread: joined.thread().clone(), joined: Some(joined) })
    }

    /// Records that a module starts to run on this thread.
    pub(super) fn enter(&self) {
        self.state.entered.fetch_add(1, Ordering::SeqCst);
        if self.state.is_parked.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
    }

    /// Records that it has stopped, for now or for good.
    pub(super) fn leave(&self) {
        self.state.left.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.state.is_ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
        if let Some(joined) = self.joined.take() {
            // The thread does not panic; a panic would have ended it as well.
            let _ = joined.join();
        }
    }
}

fn tick(state: &TickerState, engine: &Engine) {
    let mut entered_before = 0;
    while !state.is_ended.load(Ordering::SeqCst) {
        std::thread::sleep(SLICE);
        engine.increment_epoch();
        // In this order: a module that enters after the read is seen in the next round, or unparks the thread.
        let left = state.left.load(Ordering::SeqCst);
        let entered = state.entered.load(Ordering::SeqCst);
        if entered == left && entered == std::mem::replace(&mut entered_before, entered) {
            park(state, entered);
        }
    }
}

/// Sleeps until a module runs.
fn park(state: &TickerState, entered: u64) {
    state.is_parked.store(true, Ordering::SeqCst);
    while state.entered.load(Ordering::SeqCst) == entered && !state.is_ended.load(Ordering::SeqCst) {
        std::thread::park();
    }
    state.is_parked.store(false, Ordering::SeqCst);
}
