//! Content of a request on its way to a module. The server supplies it only when the module asks for it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Task, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use wasmtime_wasi_http::Error;

/// Module's end: a body, which any thread may read.
#[derive(Debug)]
pub struct RequestContent(Arc<Mutex<ModuleContentState>>);

/// Server's end.
#[derive(Debug)]
pub struct RequestContentSupply(Arc<Mutex<ModuleContentState>>);

#[derive(Debug, Default)]
struct ModuleContentState {
    /// Piece that the module has not taken yet.
    piece: Option<Bytes>,
    trailers: Option<HeaderMap>,
    is_complete: bool,
    /// Wakes the module, which waits for a piece.
    reader: Option<Waker>,
    /// Wakes the server, which waits for the module's demand.
    supplier: Option<Waker>,
    /// True once one of the ends is dropped.
    is_abandoned: bool,
}

impl RequestContent {
    /// Both ends of a content that has not begun.
    pub fn new() -> (Self, RequestContentSupply) {
        let state = Arc::<Mutex<ModuleContentState>>::default();
        (Self(Arc::clone(&state)), RequestContentSupply(state))
    }

    /// Content that is complete already.
    pub fn whole(content: Bytes, trailers: Option<HeaderMap>) -> Self {
        let piece = Some(content).filter(|content| !content.is_empty());
        Self(Arc::new(Mutex::new(ModuleContentState {
            piece,
            trailers,
            is_complete: true,
            ..ModuleContentState::default()
        })))
    }
}

impl RequestContentSupply {
    /// Ready when the module waits for content; never, if it needs no more.
    pub fn poll_wanted(&self, task: &mut Task<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.reader.is_some() && state.piece.is_none() && !state.is_complete {
            return Poll::Ready(());
        }
        // Usually the same task polls again.
        if state.supplier.as_ref().is_none_or(|supplier| !supplier.will_wake(task.waker())) {
            state.supplier = Some(task.waker().clone());
        }
        Poll::Pending
    }

    /// Supplies a piece. Must be called only when [`Self::poll_wanted`] is ready.
    pub fn supply(&self, piece: Bytes) {
        change(&self.0, |state| state.piece = Some(piece));
    }

    /// Ends the content.
    pub fn complete(&self, trailers: Option<HeaderMap>) {
        change(&self.0, |state| {
            state.is_complete = true;
            state.trailers = trailers;
        });
    }
}

/// Changes the state and wakes the module.
fn change(state: &Mutex<ModuleContentState>, change: impl FnOnce(&mut ModuleContentState)) {
    let reader = {
        let mut state = lock(state);
        change(&mut state);
        state.reader.take()
    };
    // Called after the lock is released, because the woken task takes it.
    if let Some(reader) = reader {
        reader.wake();
    }
}

impl Body for RequestContent {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let mut state = lock(&self.0);
        if let Some(piece) = state.piece.take() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if state.is_complete {
            return Poll::Ready(state.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        if state.is_abandoned {
            return Poll::Ready(Some(Err(Error::ConnectionTerminated)));
        }
        state.reader = Some(task.waker().clone());
        let supplier = state.supplier.take();
        // Released before the wake, because the woken task takes the lock.
        drop(state);
        if let Some(supplier) = supplier {
            supplier.wake();
        }
        Poll::Pending
    }
}

impl Drop for RequestContentSupply {
    fn drop(&mut self) {
        change(&self.0, |state| state.is_abandoned = true);
    }
}

fn lock(state: &Mutex<ModuleContentState>) -> MutexGuard<'_, ModuleContentState> {
    // A panic under the lock leaves the state whole.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_supplied_when_it_is_wanted() {
        let task = &mut Task::from_waker(Waker::noop());
        let (mut content, supply) = RequestContent::new();
        let mut read = |task: &mut Task<'_>| match Pin::new(&mut content).poll_frame(task) {
            Poll::Pending => "nothing yet".to_owned(),
            Poll::Ready(None) => "the end".to_owned(),
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => String::from_utf8_lossy(&data).into_owned(),
                Err(frame) => format!("{:?}", frame.into_trailers().unwrap()),
            },
            Poll::Ready(Some(Err(error))) => error.to_string(),
        };
        assert!(supply.poll_wanted(task).is_pending(), "the module did not ask");
        assert_eq!(read(task), "nothing yet");
        assert!(supply.poll_wanted(task).is_ready());
        supply.supply(Bytes::from_static(b"abc"));
        assert!(supply.poll_wanted(task).is_pending(), "there is a piece");
        assert_eq!(read(task), "abc");
        assert!(supply.poll_wanted(task).is_pending(), "the module has one to look at");
        assert_eq!(read(task), "nothing yet");
        supply.complete(Some(HeaderMap::from_iter([("a".parse().unwrap(), "b".parse().unwrap())])));
        assert_eq!(read(task), r#"{"a": "b"}"#);
        assert_eq!(read(task), "the end");
    }

    #[test]
    fn content_that_is_not_whole_has_no_end() {
        let task = &mut Task::from_waker(Waker::noop());
        let (mut content, supply) = RequestContent::new();
        assert!(Pin::new(&mut content).poll_frame(task).is_pending());
        drop(supply);
        assert!(matches!(Pin::new(&mut content).poll_frame(task), Poll::Ready(Some(Err(_)))));
    }
}
