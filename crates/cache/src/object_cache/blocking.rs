use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinError, JoinHandle, spawn_blocking};

/// Work on the blocking pool. Dropping this before the pool has begun the work cancels it; work that has begun runs to
/// its end.
#[derive(Debug)]
pub struct Blocking<T> {
    handle: JoinHandle<T>,
}

impl<T: Send + 'static> Blocking<T> {
    /// Queues work for the pool.
    pub fn spawn(work: impl FnOnce() -> T + Send + 'static) -> Self {
        Self { handle: spawn_blocking(work) }
    }
}

impl<T> Future for Blocking<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle).poll(task)
    }
}

impl<T> Drop for Blocking<T> {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::Blocking;

    #[test]
    fn work_without_a_waiter_is_not_begun() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (go_on, wait) = channel::<()>();
            let busy = Blocking::spawn(move || wait.recv());
            let begun = Arc::new(AtomicUsize::new(0));
            let queue = || {
                let begun = Arc::clone(&begun);
                Blocking::spawn(move || begun.fetch_add(1, Ordering::Relaxed))
            };
            let (first, second, third) = (queue(), queue(), queue());
            drop(first);
            drop(second);
            go_on.send(()).unwrap();
            busy.await.unwrap().unwrap();
            assert_eq!(third.await.unwrap(), 0, "the others were not begun");
        });
    }
}
