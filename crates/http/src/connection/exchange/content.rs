//! Response content on its way to a stream: bytes in memory, parts of files, and streamed content.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use bytes::{Buf, Bytes};
use wire::http::Fields;

use super::{ContentLost, ExchangeTurn, HttpStreams, StreamClosed};
use crate::connection::CONTENT_BYTES;
use crate::connection::page_cache::{PageCacheWarming, WARM_BYTES};
use crate::handler::{Body, ContentSource, ContentStream, Filled, Segment};
use crate::object_cache::{OpenFile, file_time_now_ns};

/// Minimum number of bytes requested from a source.
const PIECE_BYTES_MIN: u64 = 4 << 10;

/// Maximum number of bytes requested from a source: four full frames of HTTP/2, or TLS records.
const PIECE_BYTES_MAX: u64 = 64 << 10;

/// Length from which a piece of streamed content is not copied, in bytes. Another buffer would cost more.
const LENT_BYTES_MIN: usize = 2 << 10;

/// Maximum number of further buffers that a worker keeps: content of as many streams that are ready at once.
const SPARE_BUFFERS_MAX: usize = 8;

/// Remaining content of a response.
#[derive(Default)]
pub(super) struct OutgoingContent {
    /// Segments offered to the adapter that it has not fetched yet.
    offered: VecDeque<Segment>,
    /// Segments after the offered ones.
    waiting: VecDeque<Segment>,
    /// Piece of the stream that was offered, after `offered`.
    lent: LentPiece,
    stream: Option<ContentStream>,
    warming: PageCacheWarming,
    is_end_offered: bool,
    /// Bytes that the adapter has fetched.
    pub(super) sent_bytes: u64,
}

/// Piece of streamed content in the buffer that its source has filled. It need not be copied before it is placed.
#[derive(Default)]
struct LentPiece {
    /// One of the worker's buffers for content; empty if nothing is lent.
    buffer: Vec<u8>,
    /// Part of the buffer that was not placed yet.
    range: Range<usize>,
}

impl LentPiece {
    /// Returns the buffer to the worker.
    fn give_back(&mut self, turn: &mut ExchangeTurn<'_>) {
        let buffer = std::mem::take(&mut self.buffer);
        if !buffer.is_empty() && turn.spare_content.len() < SPARE_BUFFERS_MAX {
            turn.spare_content.push(buffer);
        }
        self.range = 0..0;
    }
}

/// State of an offer to the adapter.
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

    /// Remaining content from this byte on. Its end was offered to the adapter already.
    pub(super) fn rest(content: Bytes, sent_bytes: u64) -> Self {
        let offered = VecDeque::from([Segment::Bytes(content)]);
        Self { offered, is_end_offered: true, sent_bytes, ..Self::default() }
    }

    /// No content: the response ended with its head.
    pub(super) fn ended() -> Self {
        Self { is_end_offered: true, ..Self::default() }
    }

    /// Bytes of memory held until they are offered to the adapter.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(Segment::own_bytes).sum()
    }

    /// True if the adapter knows the end of the content.
    pub(super) fn is_end_offered(&self) -> bool {
        self.is_end_offered
    }

    /// True if all offered content was placed.
    pub(super) fn is_drained(&self) -> bool {
        self.offered.is_empty() && self.lent.range.is_empty()
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
    pub(super) fn offer_bytes<S: HttpStreams>(
        &mut self,
        bytes: Bytes,
        stream: S::Id,
        streams: &mut S,
    ) -> Result<(), StreamClosed> {
        streams.offer_content(stream, bytes.len() as u64, false)?;
        self.offered.push_back(Segment::Bytes(bytes));
        Ok(())
    }

    /// Offers the end of the content.
    pub(super) fn offer_end<S: HttpStreams>(&mut self, stream: S::Id, streams: &mut S) -> Result<(), StreamClosed> {
        self.is_end_offered = true;
        streams.offer_content(stream, 0, true)
    }

    /// Offers content to the adapter, as much as the client accepts. Pending if the content must be waited for.
    ///
    /// # Errors
    /// The content cannot be completed; the caller must reset the stream.
    pub(super) fn poll_offer<S: HttpStreams>(
        &mut self,
        stream: S::Id,
        streams: &mut S,
        task: &mut Task<'_>,
        turn: &mut ExchangeTurn<'_>,
    ) -> Poll<io::Result<Offered>> {
        loop {
            if self.is_end_offered {
                return Poll::Ready(Ok(Offered::All));
            }
            if streams.unsent_bytes(stream).is_none_or(|bytes| bytes > 0) {
                return Poll::Ready(Ok(Offered::AwaitsClient));
            }
            let offered = match self.waiting.pop_front() {
                Some(Segment::File { file, offset, length }) => {
                    if let Some(content) = file.content_in_use() {
                        self.waiting
                            .push_front(Segment::Bytes(content.slice(offset as usize..(offset + length) as usize)));
                        continue;
                    }
                    let length_now = match self.warming.poll_resident(
                        &file,
                        offset,
                        length.min(WARM_BYTES),
                        file_time_now_ns(),
                        task,
                    ) {
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
                None if self.stream.is_some() => match ready!(self.poll_source(stream, streams, task, turn))? {
                    Some(offered) => return Poll::Ready(Ok(offered)),
                    None => continue,
                },
                // The content is empty from the beginning; otherwise its end was offered with the last piece.
                None => return Poll::Ready(self.offer_end(stream, streams).map_err(closed).map(|()| Offered::All)),
            };
            self.is_end_offered = self.waiting.is_empty() && self.stream.is_none();
            streams.offer_content(stream, offered.length(), self.is_end_offered).map_err(closed)?;
            self.offered.push_back(offered);
        }
    }

    /// Offers content from the source; `None` if the caller must look at the next segment.
    fn poll_source<S: HttpStreams>(
        &mut self,
        stream: S::Id,
        streams: &mut S,
        task: &mut Task<'_>,
        turn: &mut ExchangeTurn<'_>,
    ) -> Poll<io::Result<Option<Offered>>> {
        let Some(source) = &mut self.stream else { return Poll::Ready(Ok(None)) };
        // Nothing is buffered for a client that accepts nothing.
        let wanted_bytes = streams.wanted_bytes(stream);
        if wanted_bytes == 0 {
            return Poll::Ready(Ok(Some(Offered::AwaitsClient)));
        }
        let room = wanted_bytes.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX) as usize;
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
            streams.offer_content(stream, length as u64, is_last).map_err(closed)?;
            self.keep_piece(length, turn);
        } else if is_last {
            streams.offer_content(stream, 0, true).map_err(closed)?;
        }
        self.is_end_offered = is_end;
        if let Some(trailers) = trailers {
            streams.send_trailers(stream, *trailers).map_err(closed)?;
        }
        Poll::Ready(Ok(None))
    }

    /// Appends the next bytes of the lent piece.
    fn place_lent(&mut self, length: u64, out: &mut Vec<u8>, turn: &mut ExchangeTurn<'_>) -> Result<(), ContentLost> {
        let LentPiece { buffer, range } = &mut self.lent;
        let end = range.start + length as usize;
        if end > range.end {
            return Err(ContentLost);
        }
        out.extend_from_slice(&buffer[range.start..end]);
        range.start = end;
        self.sent_bytes += length;
        if self.lent.range.is_empty() {
            self.lent.give_back(turn);
        }
        Ok(())
    }

    /// Keeps a piece that the source has written to the turn's buffer.
    fn keep_piece(&mut self, length: usize, turn: &mut ExchangeTurn<'_>) {
        if length < LENT_BYTES_MIN {
            self.offered.push_back(Segment::Bytes(Bytes::copy_from_slice(&turn.content[..length])));
            return;
        }
        let next = turn.spare_content.pop().unwrap_or_else(|| vec![0; CONTENT_BYTES]);
        self.lent = LentPiece { buffer: std::mem::replace(turn.content, next), range: 0..length };
    }

    /// Returns a buffer of the worker at the end of a turn. The client is slow, so its content is copied to memory of
    /// its size.
    pub(super) fn settle(&mut self, turn: &mut ExchangeTurn<'_>) {
        if self.lent.buffer.is_empty() {
            return;
        }
        self.offered.push_back(Segment::Bytes(Bytes::copy_from_slice(&self.lent.buffer[self.lent.range.clone()])));
        self.lent.give_back(turn);
    }

    /// Appends the next bytes to `out`, as many as the adapter requests.
    pub(super) fn place(
        &mut self,
        range: &Range<u64>,
        out: &mut Vec<u8>,
        turn: &mut ExchangeTurn<'_>,
    ) -> Result<(), ContentLost> {
        debug_assert_eq!(range.start, self.sent_bytes);
        let mut length = range.end - range.start;
        while length > 0 {
            let Some(segment) = self.offered.front_mut() else { return self.place_lent(length, out, turn) };
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
                        return Err(ContentLost);
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
        Ok(())
    }

    /// Takes the next offered bytes, at most `length_max`. Bytes in memory are shared, not copied.
    pub(super) fn take(&mut self, length_max: u64, turn: &mut ExchangeTurn<'_>) -> Result<Bytes, ContentLost> {
        let Some(segment) = self.offered.front_mut() else { return self.take_lent(length_max, turn) };
        let length = length_max.min(segment.length());
        let bytes = match segment {
            Segment::Bytes(bytes) => bytes.split_to(length as usize),
            Segment::File { file, offset, length: remaining } => {
                let bytes = file.read_bytes_at(length as usize, *offset).map_err(|_| ContentLost)?;
                // The last bytes must be of the same version of the file as the bytes sent before.
                if length == *remaining && !file.is_unchanged() {
                    return Err(ContentLost);
                }
                *offset += length;
                *remaining -= length;
                bytes
            }
        };
        self.sent_bytes += length;
        if segment.length() == 0 {
            self.offered.pop_front();
        }
        Ok(bytes)
    }

    /// Copies the next bytes of the lent piece.
    fn take_lent(&mut self, length_max: u64, turn: &mut ExchangeTurn<'_>) -> Result<Bytes, ContentLost> {
        let length = length_max.min(self.lent.range.len() as u64);
        let mut copy = Vec::with_capacity(length as usize);
        self.place_lent(length, &mut copy, turn)?;
        if copy.is_empty() { Err(ContentLost) } else { Ok(Bytes::from(copy)) }
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

/// Error of content whose stream is closed.
pub(super) fn closed(_: StreamClosed) -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}
