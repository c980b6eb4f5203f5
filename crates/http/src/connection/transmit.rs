//! Sending of bytes, memory and files, as far as the socket accepts them.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use bytes::Buf;

use super::Transport;
use super::output::Output;
use super::page_cache::PageCacheWarming;
use super::stream::StreamedContent;
use crate::handler::Segment;
use crate::object_cache::{OpenFile, file_time_now_ns};

/// Bytes of a file copied at once where sendfile is not used. So many bytes are known to be in the page cache before.
const COPY_CHUNK_BYTES: u64 = 64 << 10;

/// Length of the last piece of a file, in bytes. The last piece is copied, so that the file can be checked between
/// reading and sending it. Kept small, because sendfile avoids copying: with 64 KiB, a file of 100 KiB needed half as
/// much CPU time again.
const LAST_PIECE_BYTES: u64 = OpenFile::END_BYTES;

/// Bytes that a connection sends before others get their turn. A piece of a file goes to the kernel in one call; with
/// smaller pieces, the calls cost more than the bytes.
const TURN_BYTES_MAX: u64 = OpenFile::PIECE_BYTES;

/// Output that a socket has not accepted yet. This is the memory that a slow client costs.
#[derive(Debug)]
pub(crate) struct Transmission {
    bytes: Vec<u8>,
    bytes_sent: usize,
    tail: VecDeque<Segment>,
    /// Range of the file that is known to be in the page cache.
    resident: Range<u64>,
    warming: PageCacheWarming,
    /// Streamed content, after all other output.
    stream: Option<Box<StreamedContent>>,
    /// True if the socket would have accepted more, but other connections get their turn.
    has_yielded: bool,
    /// True if the socket is closed after the last byte. The end of the stream and the last bytes then leave in one segment.
    pub closes: bool,
    /// Bytes accepted by the socket so far.
    pub total_sent: u64,
}

/// Sends `output` and leaves it empty. Returns the rest as a transmission if the socket does not accept all of it, or if
/// a file must be sent.
///
/// If `closes` is true, the last bytes and the end of the stream leave in one segment. That saves another segment and
/// its acknowledgement.
pub(crate) fn send_now(socket: &mut Transport, output: &mut Output, closes: bool) -> io::Result<Option<Transmission>> {
    let mut sent = 0;
    let has_file = output.tail.iter().any(|segment| matches!(segment, Segment::File { .. }));
    while !has_file && (!output.bytes.is_empty() || !output.tail.is_empty()) {
        let bytes = &output.bytes[sent..];
        let polled = match closes && !output.has_tail() {
            true => socket.poll_write_more(bytes),
            false => poll_write_memory(socket, bytes, &output.tail),
        };
        match polled {
            Poll::Ready(count) => {
                let mut count = count?;
                let from_bytes = count.min(output.bytes.len() - sent);
                sent += from_bytes;
                count -= from_bytes;
                if sent == output.bytes.len() {
                    output.bytes.clear();
                    sent = 0;
                }
                advance(&mut output.tail, count);
            }
            Poll::Pending => break,
        }
    }
    // If the transport is not drained, the caller waits for it as for unsent output.
    if output.is_empty() && !(closes && socket.poll_drained().is_pending()) {
        if closes {
            // Closing the socket alone would drop unsent output if the client has sent bytes that were not read.
            socket.shutdown_write()?;
        }
        return Ok(None);
    }
    let mut transmission = Transmission::new(output);
    transmission.bytes_sent = sent;
    transmission.return_buffers(output);
    Ok(Some(transmission))
}

impl Transmission {
    /// Takes all output.
    pub(crate) fn new(output: &mut Output) -> Self {
        Self {
            bytes: std::mem::take(&mut output.bytes),
            bytes_sent: 0,
            tail: std::mem::take(&mut output.tail),
            resident: 0..0,
            warming: PageCacheWarming::default(),
            stream: output.stream.take(),
            has_yielded: false,
            closes: false,
            total_sent: 0,
        }
    }

    /// Bytes of memory that wait for the client, without content shared with others.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.tail.iter().map(Segment::own_bytes).sum::<usize>()
    }

    /// Returns the buffers to `output`, and keeps unsent data in memory of exactly its size.
    pub(crate) fn return_buffers(&mut self, output: &mut Output) {
        let bytes = self.bytes[self.bytes_sent..].to_vec();
        output.bytes = std::mem::replace(&mut self.bytes, bytes);
        output.bytes.clear();
        self.bytes_sent = 0;
        let tail = self.tail.drain(..).collect();
        output.tail = std::mem::replace(&mut self.tail, tail);
    }

    /// Bytes that the socket has not accepted yet.
    pub(crate) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.bytes_sent) as u64 + self.tail.iter().map(Segment::length).sum::<u64>()
    }

    /// Bytes of content received from a stream so far.
    pub(crate) fn streamed_bytes(&self) -> u64 {
        self.stream.as_ref().map_or(0, |stream| stream.content_bytes)
    }

    /// True if the client has accepted all available output, so that only the source is waited for.
    pub(crate) fn awaits_source(&self) -> bool {
        self.stream.is_some() && self.bytes.is_empty() && self.tail.is_empty()
    }

    /// Lets the source of a stream read ahead while the client is slow.
    pub(crate) fn poll_ahead(&mut self, task: &mut Task<'_>) {
        if let Some(stream) = &mut self.stream
            && !self.has_yielded
        {
            stream.poll_ahead(task);
        }
    }

    /// Sends until all is sent. Pending if the socket accepts no more, or the source of a stream has no more for now.
    /// `buffer` is used for streamed content.
    ///
    /// # Errors
    /// The error of the socket or of the stream, or `InvalidData` if a file changed meanwhile. The response then cannot
    /// be completed.
    pub(crate) fn poll_send(
        &mut self,
        socket: &mut Transport,
        task: &mut Task<'_>,
        buffer: &mut Vec<u8>,
    ) -> Poll<io::Result<()>> {
        let total_max = self.total_sent + TURN_BYTES_MAX;
        self.has_yielded = false;
        loop {
            if self.total_sent >= total_max {
                // Other connections get their turn first, because a client on the same machine accepts output without
                // limit.
                self.has_yielded = true;
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            let bytes = &self.bytes[self.bytes_sent..];
            let count = match self.tail.front() {
                None if bytes.is_empty() => match ready!(self.poll_stream(socket, task, buffer))? {
                    Some(count) => count,
                    None => {
                        if !(self.closes && matches!(socket, Transport::Plain(_))) {
                            socket.cork(false);
                        }
                        return socket.poll_drained().map(Ok);
                    }
                },
                Some(Segment::File { file, offset, length }) if bytes.is_empty() => {
                    let (file, offset, length) = (Arc::clone(file), *offset, *length);
                    ready!(self.poll_send_file(&file, offset, length, socket, task))?
                }
                Some(Segment::File { .. }) => ready!(socket.poll_write_more(bytes))?,
                _ => ready!(poll_write_memory(socket, bytes, &self.tail))?,
            };
            self.total_sent += count as u64;
            let from_bytes = count.min(self.bytes.len() - self.bytes_sent);
            self.bytes_sent += from_bytes;
            if self.bytes_sent == self.bytes.len() {
                self.bytes.clear();
                self.bytes_sent = 0;
            }
            advance(&mut self.tail, count - from_bytes);
        }
    }

    /// Sends content from the stream. Returns the number of bytes that the socket accepted, and keeps the rest; `None`
    /// at the end.
    fn poll_stream(
        &mut self,
        socket: &mut Transport,
        task: &mut Task<'_>,
        buffer: &mut Vec<u8>,
    ) -> Poll<io::Result<Option<usize>>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(None)) };
        if stream.is_complete() {
            return Poll::Ready(Ok(None));
        }
        let gathered = ready!(stream.poll_gather(task, buffer))?;
        if gathered.is_empty() {
            return Poll::Ready(Ok(None));
        }
        let piece = &buffer[gathered];
        let sent = match socket.poll_write(piece) {
            Poll::Ready(sent) => sent?,
            Poll::Pending => 0,
        };
        self.total_sent += sent as u64;
        self.bytes = piece[sent..].to_vec();
        self.bytes_sent = 0;
        // The bytes were counted above; the loop counts only bytes taken from `bytes`.
        Poll::Ready(Ok(Some(0)))
    }

    /// Sends a piece of a file; returns the number of bytes that the socket accepted.
    fn poll_send_file(
        &mut self,
        file: &Arc<OpenFile>,
        offset: u64,
        length: u64,
        socket: &mut Transport,
        task: &mut Task<'_>,
    ) -> Poll<io::Result<usize>> {
        let now_ns = file_time_now_ns();
        ready!(self.poll_resident(task, file, offset, length, now_ns));
        if file.is_volatile(now_ns) {
            return poll_send_copy(socket, file, offset, length);
        }
        // The last piece is read, then the file is checked, and only then the piece is sent. A complete response is
        // therefore of one version. An entry of a disk cache has only one.
        let last_bytes = if file.is_entry() { 0 } else { LAST_PIECE_BYTES };
        if length <= last_bytes {
            return poll_send_last(socket, file, offset, length);
        }
        socket.prepare_file(length)?;
        let chunk = (length - last_bytes).min(known_bytes(&self.resident, offset));
        if chunk == length - last_bytes && last_bytes > 0 {
            // The last piece must share a segment with the bytes before it.
            socket.cork(true);
        }
        match ready!(socket.poll_send_file(file, offset, chunk as usize)).inspect_err(|error| file.note_error(error))? {
            0 => Poll::Ready(Err(changed())),
            count => Poll::Ready(Ok(count)),
        }
    }

    /// Waits until the next piece of the file can be sent without waiting for a disk; another thread loads it.
    fn poll_resident(
        &mut self,
        task: &mut Task<'_>,
        file: &Arc<OpenFile>,
        offset: u64,
        length: u64,
        now_ns: i64,
    ) -> Poll<()> {
        let is_known = known_bytes(&self.resident, offset) >= length.min(COPY_CHUNK_BYTES);
        if !is_known || self.warming.is_reading() {
            let resident_bytes = ready!(self.warming.poll_resident(file, offset, length, now_ns, task));
            self.resident = offset..offset + resident_bytes;
        }
        Poll::Ready(())
    }
}

/// Number of bytes from `offset` on that are known to be in the page cache. Returns 0 for an offset before the known
/// range, because ranges may be requested in any order.
fn known_bytes(resident: &Range<u64>, offset: u64) -> u64 {
    if resident.contains(&offset) { resident.end - offset } else { 0 }
}

/// Sends a piece by copying it. Checks the file again before the last piece.
fn poll_send_copy(socket: &mut Transport, file: &OpenFile, offset: u64, length: u64) -> Poll<io::Result<usize>> {
    let mut buffer = vec![0; length.min(COPY_CHUNK_BYTES) as usize];
    file.read_exact_at(&mut buffer, offset)?;
    if length <= COPY_CHUNK_BYTES && !file.is_unchanged() {
        return Poll::Ready(Err(changed()));
    }
    socket.poll_write(&buffer)
}

/// Sends the last piece, if the file has not changed.
fn poll_send_last(socket: &mut Transport, file: &OpenFile, offset: u64, length: u64) -> Poll<io::Result<usize>> {
    if offset + length != file.identity.size {
        return poll_send_copy(socket, file, offset, length);
    }
    match file.unchanged_end()? {
        Some(end) => socket.poll_write(&end[end.len() - length as usize..]),
        None => Poll::Ready(Err(changed())),
    }
}

fn changed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "file changed while it was sent")
}

/// Sends `bytes` and the segment after them, if that is in memory.
fn poll_write_memory(socket: &mut Transport, bytes: &[u8], tail: &VecDeque<Segment>) -> Poll<io::Result<usize>> {
    match tail.front() {
        Some(Segment::Bytes(content)) if bytes.is_empty() => socket.poll_write(content),
        Some(Segment::Bytes(content)) => socket.poll_write_vectored(&[IoSlice::new(bytes), IoSlice::new(content)]),
        _ => socket.poll_write(bytes),
    }
}

/// Drops `count` bytes from the front of the segments, and empty segments.
fn advance(tail: &mut VecDeque<Segment>, mut count: usize) {
    while let Some(segment) = tail.front_mut() {
        let taken = (count as u64).min(segment.length());
        count -= taken as usize;
        match segment {
            Segment::Bytes(bytes) => bytes.advance(taken as usize),
            Segment::File { offset, length, .. } => {
                *offset += taken;
                *length -= taken;
            }
        }
        if segment.length() > 0 {
            return;
        }
        tail.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::known_bytes;

    #[test]
    fn only_what_was_looked_at_is_known() {
        for (offset, expect) in [(99, 0), (100, 50), (149, 1), (150, 0), (0, 0)] {
            assert_eq!(known_bytes(&(100..150), offset), expect, "{offset}");
        }
        assert_eq!(known_bytes(&(0..0), 0), 0);
    }
}
