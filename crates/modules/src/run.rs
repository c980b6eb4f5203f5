//! Runs an instance on the worker's thread, or on other threads once it has computed for long.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, Waker};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::engine::Runtime;
use super::meter::Meter;
use super::pauses::Pauses;
use super::ticker::Ticker;

/// Time after which a module leaves the worker's thread at the next interrupt. Not an option: other requests of the
/// worker cannot wait longer, and moving earlier does not pay.
const TIME_ON_WORKER: Duration = Duration::from_millis(1);

/// Work of an instance for a request. Dropping it ends the instance.
pub(super) struct InstanceRun<T> {
    place: RunPlace<T>,
    /// True if the work must not start on the worker's thread.
    leaves_at_once: bool,
    meter: Arc<Meter>,
    runtime: Arc<Runtime>,
}

enum RunPlace<T> {
    /// Runs on the thread that polls it.
    Here(Metered<T>),
    /// Runs on a thread for long computations.
    Away(JoinHandle<T>, Arc<Pauses>),
    /// Has ended.
    Ended,
}

/// Instance with a meter and interrupts for each run.
struct Metered<T> {
    work: Pin<Box<dyn Future<Output = T> + Send>>,
    meter: Arc<Meter>,
    runtime: Arc<Runtime>,
}

impl<T: Send + 'static> InstanceRun<T> {
    pub(super) fn new(
        work: impl Future<Output = T> + Send + 'static,
        meter: Arc<Meter>,
        runtime: Arc<Runtime>,
    ) -> Self {
        // A reused instance may have ended on another thread.
        meter.set_here();
        let metered = Metered { work: Box::pin(work), meter: Arc::clone(&meter), runtime: Arc::clone(&runtime) };
        Self { place: RunPlace::Here(metered), leaves_at_once: false, meter, runtime }
    }

    /// Starts on other threads, where it may wait for things that no worker waits for.
    pub(super) fn new_away(
        work: impl Future<Output = T> + Send + 'static,
        meter: Arc<Meter>,
        runtime: Arc<Runtime>,
    ) -> Self {
        let mut run = Self::new(work, meter, runtime);
        run.leaves_at_once = true;
        run
    }

    /// Gives the instance its turn, if it runs here. Ready with its result; with `None` if the result was taken before,
    /// or the run panicked (standard error has the message).
    pub(super) fn poll(&mut self, task: &mut Task<'_>) -> Poll<Option<T>> {
        if std::mem::take(&mut self.leaves_at_once) {
            self.leave_worker();
        }
        let mut polled = self.poll_place(task);
        if polled.is_pending() && matches!(self.place, RunPlace::Here(_)) && self.meter.used() >= TIME_ON_WORKER {
            self.leave_worker();
            // Polled at its new place, so that the waiting task is registered. It may have ended there already.
            polled = self.poll_place(task);
        }
        if polled.is_ready() {
            self.place = RunPlace::Ended;
        }
        polled
    }

    /// Waker to call when the instance has produced output and pauses, if it runs on another thread. Its end wakes the
    /// task that polled it.
    pub(super) fn waker(&self, task: &Task<'_>) -> Option<Waker> {
        match &self.place {
            RunPlace::Away(_, pauses) => Some(pauses.waker(task)),
            RunPlace::Here(_) | RunPlace::Ended => None,
        }
    }

    fn poll_place(&mut self, task: &mut Task<'_>) -> Poll<Option<T>> {
        match &mut self.place {
            RunPlace::Ended => Poll::Ready(None),
            RunPlace::Away(handle, _) => Pin::new(handle).poll(task).map(Result::ok),
            RunPlace::Here(run) => Pin::new(run).poll(task).map(Some),
        }
    }

    /// Lets the instance complete its work, at most for `limit`.
    pub(super) fn finish(mut self, limit: Duration) {
        match std::mem::replace(&mut self.place, RunPlace::Ended) {
            RunPlace::Here(run) => {
                self.meter.set_away();
                // Ends by itself.
                drop(self.runtime.threads().spawn(tokio::time::timeout(limit, run)));
            }
            RunPlace::Away(mut handle, _) => {
                self.runtime.threads().spawn(async move {
                    if tokio::time::timeout(limit, &mut handle).await.is_err() {
                        handle.abort();
                    }
                });
            }
            RunPlace::Ended => {}
        }
    }

    fn leave_worker(&mut self) {
        self.place = match std::mem::replace(&mut self.place, RunPlace::Ended) {
            RunPlace::Here(mut run) => {
                self.meter.set_away();
                let pauses = Arc::<Pauses>::default();
                let of_thread = Arc::clone(&pauses);
                let run = poll_fn(move |task| {
                    of_thread.begin();
                    let polled = Pin::new(&mut run).poll(task);
                    of_thread.end(polled.is_ready());
                    polled
                });
                RunPlace::Away(self.runtime.threads().spawn(run), pauses)
            }
            elsewhere => elsewhere,
        };
    }
}

impl<T> Drop for InstanceRun<T> {
    fn drop(&mut self) {
        if let RunPlace::Away(handle, _) = &self.place {
            handle.abort();
        }
    }
}

impl<T> Future for Metered<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<T> {
        let Self { work, meter, runtime } = &mut *self;
        let _running = RunningInstance::begin(meter, runtime.ticker());
        work.as_mut().poll(task)
    }
}

/// Time during which an instance runs, up to its end or next pause.
struct RunningInstance<'a> {
    meter: &'a Meter,
    ticker: &'a Ticker,
}

impl<'a> RunningInstance<'a> {
    fn begin(meter: &'a Meter, ticker: &'a Ticker) -> Self {
        ticker.enter();
        meter.begin();
        Self { meter, ticker }
    }
}

impl Drop for RunningInstance<'_> {
    fn drop(&mut self) {
        self.meter.end();
        self.ticker.leave();
    }
}
