//! Recording: storing a response while it is sent.
//!
//! A separate task reads the upstream at full speed. So a slow client delays no request that waits for the stored
//! response, and a client that leaves does not spoil it. Content that the client has not read yet is shared with the
//! recording. If the response is too large to store, the task reads no faster than the client.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context as Task, Poll, Waker};

use bytes::{Buf, Bytes};
use wire::http::Fields;

use super::ResponseCacheInner;
use super::flights::{FetchEnd, Ticket};
use super::store::CacheEntry;
use crate::handler::{Body, ContentSource, ContentStream, Filled, Now, OwnedRequest, Routed, Segment};

/// Size of one read.
const PIECE_BYTES_MAX: usize = 16 << 10;

/// Most unread bytes when a response is not recorded.
const UNREAD_BYTES_MAX: usize = 64 << 10;

/// Buffer between the task that reads the upstream and the client.
#[derive(Default)]
struct Pipe {
    unread: VecDeque<Bytes>,
    unread_bytes: usize,
    end: Option<Result<Option<Box<Fields>>, io::ErrorKind>>,
    client_has_gone: bool,
    /// Task that waits: the client's for content, or the reading one for the client.
    waker: Option<Waker>,
}

/// The client's end of the pipe.
struct RecordingReader(Rc<RefCell<Pipe>>);

/// A response that is being read.
struct Recording {
    inner: Rc<ResponseCacheInner>,
    request: Rc<OwnedRequest>,
    pipe: Rc<RefCell<Pipe>>,
    /// Recorded content; `None` once the response is known not to be storable.
    kept: Option<RecordedEntry>,
}

struct RecordedEntry {
    entry: CacheEntry,
    ticket: Ticket,
    /// Pieces of content, each counted against the memory limit.
    pieces: Vec<Bytes>,
    bytes: u64,
}

/// Reads a response's content and stores the response when it is complete, never before (RFC 9111, section 3.3).
/// Returns the same content for the client.
pub(super) fn record(
    inner: Rc<ResponseCacheInner>,
    request: Rc<OwnedRequest>,
    entry: CacheEntry,
    body: Body,
    ticket: Ticket,
) -> Body {
    let length = body.length();
    let pipe = Rc::new(RefCell::new(Pipe::default()));
    let kept = RecordedEntry { entry, ticket, pieces: Vec::new(), bytes: 0 };
    let mut recording = Recording { inner, request, pipe: Rc::clone(&pipe), kept: Some(kept) };
    for segment in body.segments {
        if let Segment::Bytes(bytes) = segment {
            recording.take(bytes);
        }
    }
    if let Some(stream) = body.stream {
        tokio::task::spawn_local(recording.run(stream.source, length));
    }
    Body { segments: Vec::new(), stream: Some(ContentStream { source: Box::new(RecordingReader(pipe)), length }) }
}

impl Recording {
    /// Reads to the end, or until neither the client nor the cache wants the rest.
    async fn run(mut self, mut source: Box<dyn ContentSource>, length: Option<u64>) {
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        loop {
            let filled = poll_fn(|task| source.poll_fill(task, &mut buffer));
            let filled = tokio::time::timeout(self.inner.shared.content_timeout, filled).await;
            match filled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(Filled::Content(count)) => self.take(Bytes::copy_from_slice(&buffer[..count])),
                Ok(Filled::End(trailers)) => return self.finish(trailers, length),
                Err(error) => return self.pipe.borrow_mut().end(Err(error.kind())),
            }
            if self.kept.is_none() && !self.client_keeps_up(&mut *source).await {
                return;
            }
        }
    }

    /// Takes a piece of content.
    fn take(&mut self, mut piece: Bytes) {
        let shared = &self.inner.shared;
        if let Some(kept) = &mut self.kept {
            let bytes = kept.bytes + piece.len() as u64;
            match shared.hold(piece.clone()).filter(|_| bytes <= shared.config.object_bytes_max) {
                Some(counted) => {
                    piece = counted;
                    kept.bytes = bytes;
                    kept.pieces.push(piece.clone());
                }
                None => self.stop_recording(),
            }
        }
        self.pipe.borrow_mut().put(piece);
    }

    /// Stores the content, if it is complete.
    fn finish(mut self, trailers: Option<Box<Fields>>, length: Option<u64>) {
        if let Some(RecordedEntry { entry, ticket, pieces, bytes }) = self.kept.take()
            && length.is_none_or(|length| length == bytes)
        {
            let content = self.inner.shared.hold(pieces.concat().into()).filter(|_| !ticket.is_outdated(&entry.fields));
            let ended = content.map_or(FetchEnd::NotStored, |content| {
                // A slow client shares the stored content from now on.
                self.pipe.borrow_mut().replace_unread(&content);
                let routed = Routed { now: Now::read(), ..self.request.routed(false) };
                self.inner.store(&routed, entry, content, &ticket)
            });
            ticket.end(ended);
        }
        self.pipe.borrow_mut().end(Ok(trailers));
    }

    /// Stops recording, because the response is too large. Waiting requests fetch for themselves.
    fn stop_recording(&mut self) {
        let Some(RecordedEntry { ticket, .. }) = self.kept.take() else { return };
        self.inner.shared.uncacheable.note(ticket.key(), Now::read().monotonic_ms);
        ticket.end(FetchEnd::NotStored);
    }

    /// Waits until the client has read most of the content, while the source reads ahead. Returns whether the client
    /// is still there.
    async fn client_keeps_up(&self, source: &mut dyn ContentSource) -> bool {
        poll_fn(|task| {
            let mut pipe = self.pipe.borrow_mut();
            if !pipe.client_has_gone && pipe.unread_bytes > UNREAD_BYTES_MAX {
                pipe.waker = Some(task.waker().clone());
                source.poll_ahead(task);
                return Poll::Pending;
            }
            Poll::Ready(!pipe.client_has_gone)
        })
        .await
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // The task ends with the worker; the response is then incomplete.
        self.pipe.borrow_mut().end(Err(io::ErrorKind::UnexpectedEof));
    }
}

impl Pipe {
    fn put(&mut self, piece: Bytes) {
        if !self.client_has_gone && !piece.is_empty() {
            self.unread_bytes += piece.len();
            self.unread.push_back(piece);
            self.wake();
        }
    }

    /// Replaces the unread pieces by the same bytes of the whole content.
    fn replace_unread(&mut self, content: &Bytes) {
        self.unread.clear();
        if self.unread_bytes > 0 {
            self.unread.push_back(content.slice(content.len() - self.unread_bytes..));
        }
    }

    /// Records the end; the first one counts.
    fn end(&mut self, end: Result<Option<Box<Fields>>, io::ErrorKind>) {
        self.end.get_or_insert(end);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl ContentSource for RecordingReader {
    fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
        let pipe = &mut *self.0.borrow_mut();
        if let Some(piece) = pipe.unread.front_mut() {
            let count = piece.len().min(buffer.len());
            piece.copy_to_slice(&mut buffer[..count]);
            if piece.is_empty() {
                pipe.unread.pop_front();
            }
            pipe.unread_bytes -= count;
            pipe.wake();
            return Poll::Ready(Ok(Filled::Content(count)));
        }
        match &mut pipe.end {
            Some(Ok(trailers)) => Poll::Ready(Ok(Filled::End(trailers.take()))),
            Some(Err(kind)) => Poll::Ready(Err((*kind).into())),
            None => {
                pipe.waker = Some(task.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for RecordingReader {
    fn drop(&mut self) {
        let pipe = &mut *self.0.borrow_mut();
        pipe.client_has_gone = true;
        pipe.unread.clear();
        pipe.wake();
    }
}
