//! Response content on its way to the HTTP/2 engine: bytes in memory, parts of files, and streamed content.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use bytes::{Buf, Bytes};
use wire::h2::{H2ServerConnection, Placement, StreamGone, StreamId};
use wire::http::Fields;

use super::{H2Turn, OUTPUT_BYTES};
use crate::handler::{Body, ContentSource, ContentStream, Filled, Segment};
use crate::object_cache::{Blocking, OpenFile, file_time_now_ns};

/// Bytes of a file that must be in the page cache before any of them is sent.
const FILE_CHUNK_BYTES: u64 = 512 << 10;

/// Minimum number of bytes requested from a source.
const PIECE_BYTES_MIN: u64 = 4 << 10;

/// Remaining content of a response.
#[derive(Default)]
pub(super) struct OutgoingContent {
    /// Segments offered to the engine that it has not fetched yet.
    offered: VecDeque<Segment>,
    /// Segments after the offered ones.
    waiting: VecDeque<Segment>,
    stream: Option<ContentStream>,
    /// Read that loads the next part of a file into the page cache.
    warming: Option<Blocking<()>>,
    is_end_offered: bool,
    /// Bytes that the engine has fetched.
    pub(super) sent_bytes: u64,
}

/// State of an offer to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    All,
    /// The client must take the offered content first.
    AwaitsClient,
}

impl OutgoingContent {
    /// Takes over a complete body.
    pub(super) fn new(body: Body) -> Self {
        Self { waiting: body.segments.into(), stream: body.stream, ..Self::default() }
    }

    /// Remaining content from this byte on. Its end was offered to the engine already.
    pub(super) fn rest(content: Bytes, sent_bytes: u64) -> Self {
        let offered = VecDeque::from([Segment::Bytes(content)]);
        Self { offered, is_end_offered: true, sent_bytes, ..Self::default() }
    }

    /// No content: the response ended with its head.
    pub(super) fn ended() -> Self {
        Self { is_end_offered: true, ..Self::default() }
    }

    /// Bytes of memory held until they are offered to the engine.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(Segment::own_bytes).sum()
    }

    /// True if the engine knows the end of the content.
    pub(super) fn is_end_offered(&self) -> bool {
        self.is_end_offered
    }

    /// Lets the source read ahead while the client accepts nothing.
    pub(super) fn poll_ahead(&mut self, task: &mut Task<'_>) {
        if let Some(stream) = self.stream.as_mut().filter(|_| !self.is_end_offered) {
            stream.source.poll_ahead(task);
        }
    }

    /// True if a handler still produces content.
    pub(super) fn has_stream(&self) -> bool {
        self.stream.is_some() && !self.is_end_offered
    }

    /// Adds a piece and offers it.
    pub(super) fn offer_bytes(
        &mut self,
        bytes: Bytes,
        stream: StreamId,
        wire: &mut H2ServerConnection,
        turn: &mut H2Turn<'_, '_>,
    ) -> Result<(), StreamGone> {
        wire.offer_content(stream, bytes.len() as u64, false, &mut turn.wire())?;
        self.offered.push_back(Segment::Bytes(bytes));
        Ok(())
    }

    /// Offers the end of the content.
    pub(super) fn offer_end(
        &mut self,
        stream: StreamId,
        wire: &mut H2ServerConnection,
        turn: &mut H2Turn<'_, '_>,
    ) -> Result<(), StreamGone> {
        self.is_end_offered = true;
        wire.offer_content(stream, 0, true, &mut turn.wire())
    }

    /// Offers content to the engine, as much as the client accepts. Pending if the content must be waited for.
    ///
    /// # Errors
    /// The content cannot be completed; the caller must reset the stream.
    pub(super) fn poll_offer(
        &mut self,
        stream: StreamId,
        wire: &mut H2ServerConnection,
        task: &mut Task<'_>,
        turn: &mut H2Turn<'_, '_>,
    ) -> Poll<io::Result<Offered>> {
        loop {
            if self.is_end_offered {
                return Poll::Ready(Ok(Offered::All));
            }
            if wire.unsent_bytes(stream).is_none_or(|bytes| bytes > 0) {
                return Poll::Ready(Ok(Offered::AwaitsClient));
            }
            let offered = match self.waiting.pop_front() {
                Some(Segment::File { file, offset, length }) => {
                    let length_now = match self.poll_resident(&file, offset, length, task) {
                        Poll::Ready(length_now) => length_now,
                        Poll::Pending => {
                            self.waiting.push_front(Segment::File { file, offset, length });
                            return Poll::Pending;
                        }
                    };
                    if length_now < length {
                        let (offset, length) = (offset + length_now, length - length_now);
                        self.waiting.push_front(Segment::File { file: Arc::clone(&file), offset, length });
                    }
                    Segment::File { file, offset, length: length_now }
                }
                Some(segment) => segment,
                None if self.stream.is_some() => match ready!(self.poll_source(stream, wire, task, turn))? {
                    Some(offered) => return Poll::Ready(Ok(offered)),
                    None => continue,
                },
                // The content is empty from the beginning; otherwise its end was offered with the last piece.
                None => return Poll::Ready(self.offer_end(stream, wire, turn).map_err(gone).map(|()| Offered::All)),
            };
            self.is_end_offered = self.waiting.is_empty() && self.stream.is_none();
            wire.offer_content(stream, offered.length(), self.is_end_offered, &mut turn.wire()).map_err(gone)?;
            self.offered.push_back(offered);
        }
    }

    /// Offers content from the source; `None` if the caller must look at the next segment.
    fn poll_source(
        &mut self,
        stream: StreamId,
        wire: &mut H2ServerConnection,
        task: &mut Task<'_>,
        turn: &mut H2Turn<'_, '_>,
    ) -> Poll<io::Result<Option<Offered>>> {
        let Some(source) = &mut self.stream else { return Poll::Ready(Ok(None)) };
        // Nothing is buffered for a client that accepts nothing.
        let wanted_bytes = wire.wanted_bytes(stream);
        if wanted_bytes == 0 {
            return Poll::Ready(Ok(Some(Offered::AwaitsClient)));
        }
        let room = wanted_bytes.clamp(PIECE_BYTES_MIN, OUTPUT_BYTES as u64) as usize;
        let Gathered { length, is_end, trailers } =
            ready!(gather(&mut *source.source, task, &mut turn.content[..room]))?;
        if let Some(remaining) = &mut source.length {
            *remaining = remaining.checked_sub(length as u64).ok_or(io::ErrorKind::InvalidData)?;
            if is_end && *remaining > 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        let is_last = is_end && trailers.is_none();
        if length > 0 {
            let bytes = Bytes::copy_from_slice(&turn.content[..length]);
            wire.offer_content(stream, length as u64, is_last, &mut turn.wire()).map_err(gone)?;
            self.offered.push_back(Segment::Bytes(bytes));
        } else if is_last {
            wire.offer_content(stream, 0, true, &mut turn.wire()).map_err(gone)?;
        }
        self.is_end_offered = is_end;
        if let Some(trailers) = trailers {
            wire.send_trailers(stream, *trailers, &mut turn.wire()).map_err(gone)?;
        }
        Poll::Ready(Ok(None))
    }

    /// Appends the next bytes to `out`, as many as the engine requests.
    pub(super) fn place(&mut self, range: &Range<u64>, out: &mut Vec<u8>) -> Placement {
        debug_assert_eq!(range.start, self.sent_bytes);
        let mut length = range.end - range.start;
        while length > 0 {
            let Some(segment) = self.offered.front_mut() else { return Placement::Lost };
            let now = length.min(segment.length());
            match segment {
                Segment::Bytes(bytes) => {
                    out.extend_from_slice(&bytes[..now as usize]);
                    bytes.advance(now as usize);
                }
                Segment::File { file, offset, length: remaining } => {
                    // The last bytes must be of the same version of the file as the bytes sent before.
                    let is_last = now == *remaining;
                    if read(file, *offset, now as usize, out).is_err() || is_last && !file.is_unchanged() {
                        return Placement::Lost;
                    }
                    *offset += now;
                    *remaining -= now;
                }
            }
            length -= now;
            self.sent_bytes += now;
            if segment.length() == 0 {
                self.offered.pop_front();
            }
        }
        Placement::Copied
    }

    /// Returns the number of bytes from `offset` on that can be sent without waiting for a disk. Another thread loads
    /// missing pages into the page cache.
    fn poll_resident(&mut self, file: &Arc<OpenFile>, offset: u64, length: u64, task: &mut Task<'_>) -> Poll<u64> {
        let chunk = length.min(FILE_CHUNK_BYTES);
        if let Some(warming) = &mut self.warming {
            // An error (a panic, or the end of the process) is ignored here; the later read of the file meets it, too.
            let _ = ready!(Pin::new(warming).poll(task));
            self.warming = None;
            return Poll::Ready(chunk);
        }
        match file.resident_bytes(offset, chunk, file_time_now_ns()) {
            0 if !file.is_resident(offset, chunk) => {}
            0 => return Poll::Ready(chunk),
            bytes => return Poll::Ready(bytes),
        }
        let file = Arc::clone(file);
        let warming = self.warming.insert(Blocking::spawn(move || file.warm(offset, chunk)));
        // The new read is polled at once, because only a polled future wakes the task.
        let _ = ready!(Pin::new(warming).poll(task));
        self.warming = None;
        Poll::Ready(chunk)
    }
}

/// Content gathered from a source.
struct Gathered {
    length: usize,
    is_end: bool,
    /// Trailer fields at the end, if there are any.
    trailers: Option<Box<Fields>>,
}

/// Gathers several pieces from a source, as far as they are ready.
fn gather(source: &mut dyn ContentSource, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Gathered>> {
    let mut length = 0;
    while length < buffer.len() {
        match source.poll_fill(task, &mut buffer[length..]) {
            Poll::Ready(Ok(Filled::Content(count))) => length += count,
            Poll::Ready(Ok(Filled::End(trailers))) => {
                let trailers = trailers.filter(|trailers| !trailers.is_empty());
                return Poll::Ready(Ok(Gathered { length, is_end: true, trailers }));
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending if length == 0 => return Poll::Pending,
            Poll::Pending => break,
        }
    }
    Poll::Ready(Ok(Gathered { length, is_end: false, trailers: None }))
}

/// Appends a part of a file.
fn read(file: &OpenFile, offset: u64, length: usize, out: &mut Vec<u8>) -> io::Result<()> {
    let start = out.len();
    out.resize(start + length, 0);
    file.read_exact_at(&mut out[start..], offset)
}

fn gone(_: StreamGone) -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}
