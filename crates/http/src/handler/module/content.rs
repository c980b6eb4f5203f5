//! Content in both directions: to the module when it wants some, and to the client when it has room.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use wire::http::Fields;

use super::component::Components;
use super::request::module_trailers;
use super::response::passed_on_fields;
use crate::handler::{ClientLink, ContentSource, Filled, Now};
use crate::metrics::ModuleFailure;
use crate::modules::{Call, CallFailure, ContentFrame, ModuleCode, RequestContentSupply, ResponseBody};

/// Most bytes of a request's content that a module gets at once.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Content of a request, passed to the module.
#[derive(Debug)]
pub(super) struct ModuleUpload {
    link: Rc<ClientLink>,
    /// `None` after the end of the content, or if there was none.
    pub(super) supply: Option<RequestContentSupply>,
    /// True if the module waits for content that the client has not sent yet.
    awaits_client: bool,
}

impl ModuleUpload {
    pub(super) fn new(link: Rc<ClientLink>, supply: Option<RequestContentSupply>) -> Self {
        Self { link, supply, awaits_client: false }
    }

    /// Moves the state to a new value, for another owner.
    pub(super) fn take(&mut self) -> Self {
        Self::new(Rc::clone(&self.link), self.supply.take())
    }

    pub(super) fn link(&self) -> &ClientLink {
        &self.link
    }

    /// Supplies a piece of content while the response has `time` to arrive. The time stops while the worker waits for
    /// the client, which has limits of its own.
    pub(super) fn poll_supply_within(&mut self, time: Duration, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let polled = self.poll_supply(task);
        if polled.is_ready() && std::mem::take(&mut self.awaits_client) {
            await_until(&self.link, time);
        } else if self.link.wants_content() && !std::mem::replace(&mut self.awaits_client, true) {
            self.link.set_deadline(None);
        }
        polled
    }

    /// Supplies a piece of content if the module wants one. Ready after it did.
    pub(super) fn poll_supply(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let Some(supply) = &self.supply else { return Poll::Pending };
        ready!(supply.poll_wanted(task));
        let taken = ready!(self.link.poll_take(task, |_, content| {
            let piece = &content[..content.len().min(PIECE_BYTES_MAX)];
            supply.supply(Bytes::copy_from_slice(piece));
            Poll::Ready(Ok(piece.len()))
        }))?;
        if taken == 0 {
            supply.complete(self.link.take_trailers().as_deref().map(module_trailers));
            self.supply = None;
        }
        Poll::Ready(Ok(()))
    }
}

/// Sets the deadline to this time from now.
pub(super) fn await_until(link: &ClientLink, time: Duration) {
    link.set_deadline(Some(Now::read().monotonic_ms + time.as_millis() as u64));
}

/// Content available at the start of a response.
pub(super) enum Beginning {
    /// Complete content.
    Whole(Vec<Bytes>),
    /// A part; the stream begins with it.
    Part,
}

/// Content of a module's response.
pub(super) struct ModuleContent {
    /// `None` after the end.
    call: Option<Call>,
    body: ResponseBody,
    upload: ModuleUpload,
    handler: Rc<Components>,
    code: Arc<ModuleCode>,
    /// Bytes received from the module that the client has not taken.
    piece: Bytes,
    trailers: Option<Box<Fields>>,
    bytes: u64,
    /// True while the deadline for the module runs.
    is_waiting: bool,
}

impl ModuleContent {
    pub(super) fn new(
        call: Call,
        body: ResponseBody,
        upload: ModuleUpload,
        handler: Rc<Components>,
        code: Arc<ModuleCode>,
    ) -> Self {
        Self {
            call: Some(call),
            body,
            upload,
            handler,
            code,
            piece: Bytes::new(),
            trailers: None,
            bytes: 0,
            is_waiting: false,
        }
    }

    /// Collects the content that the module has written so far. Pending only if it is empty and `waits_for_some`.
    ///
    /// # Errors
    /// The content can't be completed.
    pub(super) fn poll_begin(
        &mut self,
        bytes_max: usize,
        waits_for_some: bool,
        task: &mut Task<'_>,
    ) -> Poll<io::Result<Beginning>> {
        let mut pieces: Vec<Bytes> = Vec::new();
        while pieces.iter().map(Bytes::len).sum::<usize>() <= bytes_max {
            match self.poll_piece(task) {
                Poll::Pending if pieces.is_empty() && waits_for_some => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(true)) => pieces.push(std::mem::take(&mut self.piece)),
                Poll::Ready(Ok(false)) if self.trailers.is_some() => break,
                Poll::Ready(Ok(false)) => return Poll::Ready(Ok(Beginning::Whole(pieces))),
            }
        }
        self.piece = pieces.concat().into();
        Poll::Ready(Ok(Beginning::Part))
    }

    /// Lets the response be sent now, although the client may have more content for the module.
    pub(super) fn read_while_answering(&self) {
        if self.upload.supply.is_some() {
            self.upload.link().read_while_answering();
        }
    }

    /// Content bytes received from the module.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Lets the module finish, because no client wants more of its content.
    pub(super) fn finish(&mut self) {
        self.upload.link().set_deadline(None);
        if let Some(call) = self.call.take() {
            self.handler.finish(call, Arc::clone(&self.code));
        }
    }

    /// Ends the module, and records the cause.
    pub(super) fn fail(&mut self, cause: ModuleFailure, how: &str) {
        self.upload.link().set_deadline(None);
        self.handler.module.note(&CallFailure::new(cause, how), None);
        self.call = None;
    }

    /// Polls for a piece; ready with false at the end of the content.
    fn poll_piece(&mut self, task: &mut Task<'_>) -> Poll<io::Result<bool>> {
        loop {
            let Some(call) = &mut self.call else { return Poll::Ready(Ok(false)) };
            match call.poll_content(&mut self.body, task) {
                Poll::Ready(Ok(ContentFrame::Data(data))) if data.is_empty() => {}
                Poll::Ready(Ok(ContentFrame::Data(data))) => {
                    self.bytes += data.len() as u64;
                    if self.bytes > self.handler.module.config().limits.response_bytes_max {
                        return self.break_off(ModuleFailure::ResponseBytesMax, "wrote more than response-bytes-max");
                    }
                    self.piece = data;
                    return Poll::Ready(Ok(true));
                }
                Poll::Ready(Ok(ContentFrame::End(trailers))) => {
                    let trailers = trailers.map(|trailers| passed_on_fields(&trailers));
                    self.trailers = trailers.filter(|trailers| !trailers.is_empty()).map(Box::new);
                    self.finish();
                    return Poll::Ready(Ok(false));
                }
                Poll::Ready(Err(_)) => {
                    // The failure was logged already.
                    self.call = None;
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                Poll::Pending => ready!(self.upload.poll_supply(task))?,
            }
        }
    }

    fn break_off<T>(&mut self, cause: ModuleFailure, how: &str) -> Poll<io::Result<T>> {
        self.fail(cause, how);
        Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
    }

    /// Starts the deadline for the module's next bytes.
    fn await_more(&mut self) {
        if !std::mem::replace(&mut self.is_waiting, true) {
            await_until(self.upload.link(), self.handler.module.config().limits.between_bytes_timeout);
        }
    }
}

impl ContentSource for ModuleContent {
    fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
        if self.upload.link().take_late() {
            let how = "sent nothing for longer than between-bytes-timeout";
            return self.break_off(ModuleFailure::BetweenBytesTimeout, how);
        }
        if self.piece.is_empty() {
            match self.poll_piece(task) {
                Poll::Pending if self.upload.link().has_client_ended() => {
                    // The client has left.
                    self.call = None;
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                }
                Poll::Pending => {
                    self.await_more();
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(false)) => return Poll::Ready(Ok(Filled::End(self.trailers.take()))),
                Poll::Ready(Ok(true)) => {}
            }
        }
        if std::mem::take(&mut self.is_waiting) {
            self.upload.link().set_deadline(None);
        }
        let length = self.piece.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.piece[..length]);
        self.piece.advance(length);
        Poll::Ready(Ok(Filled::Content(length)))
    }
}
