//! Threads that compress.

use tokio::sync::oneshot;

/// Niceness of compressing threads: requests for cached content come first.
const NICENESS: i32 = 10;

/// Runs `work` in a thread that ends with it. An encoder needs megabytes, and allocators keep freed memory with the
/// thread: in a pool of waiting threads, that was ten times the limit of the cache. `None` if no thread could be
/// started, or if `work` panics.
pub(crate) async fn in_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("compress".to_owned());
    let started = thread.spawn(move || {
        // Workers come first. Fails only where a sandbox forbids it.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        // The receiver may be gone.
        let _ = sender.send(work());
    });
    started.ok()?;
    receiver.await.ok()
}
