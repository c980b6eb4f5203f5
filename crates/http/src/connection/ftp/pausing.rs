//! Pauses of transfers that are ahead of their maximum rate.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as Task, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// Pause of a transfer.
#[derive(Default)]
pub(super) struct Pausing {
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pausing {
    /// Waits until this time. `deadline_ms` is that of the client, which gets `grace_ms` after the pause.
    pub(super) fn poll(
        &mut self,
        now_ms: u64,
        paid_until_us: u64,
        (deadline_ms, grace_ms): (&mut u64, u64),
        task: &mut Task<'_>,
    ) -> Poll<()> {
        let pause_ms = (paid_until_us / 1_000).saturating_sub(now_ms);
        if pause_ms > 0 {
            *deadline_ms = now_ms + pause_ms + grace_ms;
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(Duration::from_millis(pause_ms))));
            ready!(timer.as_mut().poll(task));
        }
        self.timer = None;
        Poll::Ready(())
    }
}
