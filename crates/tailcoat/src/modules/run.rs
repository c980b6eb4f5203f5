//! Where an instance runs: on the worker's thread, and on others when it computes for long.

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

/// A module that has computed so long leaves the worker's thread when it is next interrupted. Not an option: it is as
/// long as a worker's other requests may wait for one, and as short as pays for moving.
const TIME_ON_WORKER: Duration = Duration::from_millis(1);

/// What an instance does for a request. Dropping it ends the instance.
pub(super) struct InstanceRun<T> {
    place: RunPlace<T>,
    /// It is not to begin on the worker's thread.
    leaves_at_once: bool,
    meter: Arc<Meter>,
    runtime: Arc<Runtime>,
}

enum RunPlace<T> {
    /// On the thread that polls it.
    Here(Metered<T>),
    /// On a thread for those that take long.
    Away(JoinHandle<T>, Arc<Pauses>),
    /// Nowhere any more.
    Ended,
}

/// An instance, which is metered and can be interrupted while it runs.
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
        // An instance that is used again may have ended elsewhere.
        meter.set_here();
        let metered = Metered { work: Box::pin(work), meter: Arc::clone(&meter), runtime: Arc::clone(&runtime) };
        Self { place: RunPlace::Here(metered), leaves_at_once: false, meter, runtime }
    }

    /// The same, but it begins on other threads: it may wait there for what no worker waits for.
    pub(super) fn new_away(
        work: impl Future<Output = T> + Send + 'static,
        meter: Arc<Meter>,
        runtime: Arc<Runtime>,
    ) -> Self {
        let mut run = Self::new(work, meter, runtime);
        run.leaves_at_once = true;
        run
    }

    /// Gives the instance its turn, if it runs here. Ready with what came of it; with `None` if that was told before, or
    /// nothing came of it as the server itself failed (a panic, which is on standard error).
    pub(super) fn poll(&mut self, task: &mut Task<'_>) -> Poll<Option<T>> {
        if std::mem::take(&mut self.leaves_at_once) {
            self.leave_worker();
        }
        let mut polled = self.poll_place(task);
        if polled.is_pending() && matches!(self.place, RunPlace::Here(_)) && self.meter.used() >= TIME_ON_WORKER {
            self.leave_worker();
            // It has to be polled where it is now, so that whoever waits is told. It may have ended there by then.
            polled = self.poll_place(task);
        }
        if polled.is_ready() {
            self.place = RunPlace::Ended;
        }
        polled
    }

    /// What is to be woken when the instance has given something and pauses, if it runs elsewhere. Its end wakes the task by
    /// which it was polled.
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

    /// Lets it do what it still has to, for so long at most.
    pub(super) fn finish(mut self, limit: Duration) {
        match std::mem::replace(&mut self.place, RunPlace::Ended) {
            RunPlace::Here(run) => {
                self.meter.set_away();
                // It ends by itself.
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

/// The time that an instance runs, up to its end or its next pause.
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
