//! Woken streams of a connection. Of a hundred streams that wait for upstreams, only those with work to do are polled.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use super::StreamKey;

/// Streams that were woken since they were last taken.
#[derive(Debug)]
pub(super) struct WokenStreams<Id> {
    streams: Mutex<Vec<Id>>,
    connection: Waker,
}

#[derive(Debug)]
struct StreamWaker<Id> {
    woken: Arc<WokenStreams<Id>>,
    stream: Id,
}

impl<Id: StreamKey> WokenStreams<Id> {
    /// Makes an empty list for a connection with this waker.
    pub(super) fn new(connection: &Waker) -> Arc<Self> {
        Arc::new(Self { streams: Mutex::default(), connection: connection.clone() })
    }

    /// Waker of a stream, which also wakes the connection.
    pub(super) fn waker(self: &Arc<Self>, stream: Id) -> Waker {
        Arc::new(StreamWaker { woken: Arc::clone(self), stream }).into()
    }

    /// Takes the streams that were woken.
    pub(super) fn take(&self) -> Vec<Id> {
        // A panic while the lock is held leaves no half-made change.
        std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<Id: StreamKey> Wake for StreamWaker<Id> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        {
            let streams = &mut *self.woken.streams.lock().unwrap_or_else(PoisonError::into_inner);
            if streams.contains(&self.stream) {
                return;
            }
            streams.push(self.stream);
        }
        self.woken.connection.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct WakeCounter(std::sync::atomic::AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[test]
    fn streams_wake_their_connection_once() {
        let counter = Arc::new(WakeCounter::default());
        let woken = WokenStreams::new(&Arc::clone(&counter).into());
        let [first, second] = [1, 3].map(|stream| woken.waker(stream));
        assert!(woken.take().is_empty());
        first.wake_by_ref();
        first.wake_by_ref();
        second.wake_by_ref();
        assert_eq!((woken.take(), counter.0.load(std::sync::atomic::Ordering::Relaxed)), (vec![1, 3], 2));
        second.wake();
        assert_eq!(woken.take(), [3]);
    }
}
