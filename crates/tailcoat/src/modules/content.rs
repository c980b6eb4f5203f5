//! The content of a request, on its way to a module: supplied when the module wants it, and not before.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Task, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use wasmtime_wasi_http::Error;

/// The module's end: a body, read on whatever thread the module runs.
#[derive(Debug)]
pub struct RequestContent(Arc<Mutex<ModuleContentState>>);

/// The server's end.
#[derive(Debug)]
pub struct RequestContentSupply(Arc<Mutex<ModuleContentState>>);

#[derive(Debug, Default)]
struct ModuleContentState {
    /// A piece that the module has not taken yet.
    piece: Option<Bytes>,
    trailers: Option<HeaderMap>,
    is_complete: bool,
    /// The module waits for a piece.
    reader: Option<Waker>,
    /// The server waits for the module to want one.
    supplier: Option<Waker>,
    /// One of the ends has gone.
    is_abandoned: bool,
}

impl RequestContent {
    /// Content to come, and where it is supplied.
    pub fn new() -> (Self, RequestContentSupply) {
        let state = Arc::<Mutex<ModuleContentState>>::default();
        (Self(Arc::clone(&state)), RequestContentSupply(state))
    }

    /// Content that is there.
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
    /// Ready when the module waits for content; never, if it wants no more.
    pub fn poll_wanted(&self, task: &mut Task<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.reader.is_some() && state.piece.is_none() && !state.is_complete {
            return Poll::Ready(());
        }
        // The same task asks again and again.
        if state.supplier.as_ref().is_none_or(|supplier| !supplier.will_wake(task.waker())) {
            state.supplier = Some(task.waker().clone());
        }
        Poll::Pending
    }

    /// Supplies a piece. To be called when one is wanted.
    pub fn supply(&self, piece: Bytes) {
        change(&self.0, |state| state.piece = Some(piece));
    }

    /// Says that nothing more comes.
    pub fn complete(&self, trailers: Option<HeaderMap>) {
        change(&self.0, |state| {
            state.is_complete = true;
            state.trailers = trailers;
        });
    }
}

/// Changes something that the module may wait for.
fn change(state: &Mutex<ModuleContentState>, change: impl FnOnce(&mut ModuleContentState)) {
    let reader = {
        let mut state = lock(state);
        change(&mut state);
        state.reader.take()
    };
    // Whoever is woken wants the lock.
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
        // Whoever is woken wants the lock.
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
    // Whoever panicked while holding it left a whole state.
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
