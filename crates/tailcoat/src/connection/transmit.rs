//! Sending: bytes, memory and files, as far as the socket takes them.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use bytes::Buf;

use super::Transport;
use super::output::Output;
use super::stream::StreamedContent;
use crate::handler::Segment;
use crate::object_cache::{Blocking, OpenFile, file_time_now_ns};

/// Bytes of a file that are brought into the page cache at once.
const WARM_BYTES: u64 = 512 << 10;

/// Bytes of a file that are copied at once where it isn't sent by the kernel itself. At least so many are known to be in
/// the page cache before they are.
const COPY_CHUNK_BYTES: u64 = 64 << 10;

/// The last bytes of a file are copied, so that the file can be looked at between reading and sending them. Few, for
/// copying is what sendfile saves: with 64 KiB a file of 100 KiB took half as much CPU time again.
const LAST_PIECE_BYTES: u64 = OpenFile::END_BYTES;

/// Bytes that a connection sends before others have their turn: a piece of a file goes to the kernel in one call. Less,
/// and calls cost a large file more than its bytes.
const TURN_BYTES_MAX: u64 = OpenFile::PIECE_BYTES;

/// Output that a socket has not taken yet: what a slow client costs in memory.
#[derive(Debug)]
pub struct Transmission {
    bytes: Vec<u8>,
    bytes_sent: usize,
    tail: VecDeque<Segment>,
    /// Where the file being sent is known to be in the page cache.
    resident: Range<u64>,
    /// The read that brings more of it there.
    warming: Option<Blocking<()>>,
    /// Content that comes while it is sent, after all else.
    stream: Option<Box<StreamedContent>>,
    /// The socket would have taken more, but other connections have their turn.
    has_yielded: bool,
    /// Bytes taken by the socket so far.
    pub total_sent: u64,
}

/// Sends `output`. If the socket doesn't take all of it at once, or a file has to be sent, what remains comes back as a
/// transmission, and `output` is empty.
///
/// If it `closes` the connection, the last bytes and the end of the stream leave in one segment, which saves another and
/// its acknowledgement.
pub fn send_now(socket: &mut Transport, output: &mut Output, closes: bool) -> io::Result<Option<Transmission>> {
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
    // If it is not drained, that is waited for as the rest of something is.
    if output.is_empty() && !(closes && socket.poll_drained().is_pending()) {
        if closes {
            // Not left to closing: that drops what is not yet sent if the client has sent something that nobody read.
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
    /// Takes all that is to be sent out of `output`.
    pub fn new(output: &mut Output) -> Self {
        Self {
            bytes: std::mem::take(&mut output.bytes),
            bytes_sent: 0,
            tail: std::mem::take(&mut output.tail),
            resident: 0..0,
            warming: None,
            stream: output.stream.take(),
            has_yielded: false,
            total_sent: 0,
        }
    }

    /// Bytes of memory that wait for the client, but for content that it shares with others.
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.tail.iter().map(Segment::own_bytes).sum::<usize>()
    }

    /// Gives the output its buffers back, and keeps what is not sent yet in memory of just its size.
    pub fn return_buffers(&mut self, output: &mut Output) {
        let bytes = self.bytes[self.bytes_sent..].to_vec();
        output.bytes = std::mem::replace(&mut self.bytes, bytes);
        output.bytes.clear();
        self.bytes_sent = 0;
        let tail = self.tail.drain(..).collect();
        output.tail = std::mem::replace(&mut self.tail, tail);
    }

    /// Bytes that the socket has not taken yet.
    pub fn remaining(&self) -> u64 {
        (self.bytes.len() - self.bytes_sent) as u64 + self.tail.iter().map(Segment::length).sum::<u64>()
    }

    /// Content that came from a stream so far.
    pub fn streamed_bytes(&self) -> u64 {
        self.stream.as_ref().map_or(0, |stream| stream.content_bytes)
    }

    /// Whether the client has taken all that there is, so that nothing is awaited of it.
    pub fn awaits_source(&self) -> bool {
        self.stream.is_some() && self.bytes.is_empty() && self.tail.is_empty()
    }

    /// Lets the source of a stream read ahead, if the client keeps it waiting.
    pub fn poll_ahead(&mut self, task: &mut Task<'_>) {
        if let Some(stream) = &mut self.stream
            && !self.has_yielded
        {
            stream.poll_ahead(task);
        }
    }

    /// Sends until the socket takes no more (pending), the source of a stream has no more for now (pending) or all is
    /// sent. `buffer` is for content of streams.
    ///
    /// # Errors
    /// The socket's, and `InvalidData` if a file changed under way, and those of a stream: then the response can't be
    /// completed.
    pub fn poll_send(
        &mut self,
        socket: &mut Transport,
        task: &mut Task<'_>,
        buffer: &mut Vec<u8>,
    ) -> Poll<io::Result<()>> {
        let total_max = self.total_sent + TURN_BYTES_MAX;
        self.has_yielded = false;
        loop {
            if self.total_sent >= total_max {
                // The others first: a client on the same machine takes whatever it is given.
                self.has_yielded = true;
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            let bytes = &self.bytes[self.bytes_sent..];
            let count = match self.tail.front() {
                None if bytes.is_empty() => match ready!(self.poll_stream(socket, task, buffer))? {
                    Some(count) => count,
                    None => {
                        socket.cork(false);
                        return socket.poll_drained().map(Ok);
                    }
                },
                Some(Segment::File { .. }) if bytes.is_empty() => ready!(self.poll_send_file(socket, task))?,
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

    /// Sends what comes from the stream; returns how much the socket took, and keeps the rest. `None` at the end.
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
        // Counted above: what the loop counts is taken from `bytes`.
        Poll::Ready(Ok(Some(0)))
    }

    /// Sends a piece of the file at the front; returns how much the socket took.
    fn poll_send_file(&mut self, socket: &mut Transport, task: &mut Task<'_>) -> Poll<io::Result<usize>> {
        let Some(Segment::File { file, offset, length }) = self.tail.front() else {
            unreachable!("called with a file in front")
        };
        let (file, offset, length) = (Arc::clone(file), *offset, *length);
        let now_ns = file_time_now_ns();
        ready!(self.poll_resident(task, &file, offset, length, now_ns));
        if file.is_volatile(now_ns) {
            return poll_send_copy(socket, &file, offset, length);
        }
        // The last piece is read, the file looked at once more, and only then the piece sent: so a response that is
        // complete is of one version.
        if length <= LAST_PIECE_BYTES {
            return poll_send_last(socket, &file, offset, length);
        }
        socket.prepare_file(length)?;
        let chunk = (length - LAST_PIECE_BYTES).min(known_bytes(&self.resident, offset));
        if chunk == length - LAST_PIECE_BYTES {
            // The last piece is to share a segment with what is before it.
            socket.cork(true);
        }
        match ready!(socket.poll_send_file(&file, offset, chunk as usize))? {
            0 => Poll::Ready(Err(changed())),
            count => Poll::Ready(Ok(count)),
        }
    }

    /// Waits until the next piece of the file can be sent without waiting for a disk: that is done by another thread.
    fn poll_resident(
        &mut self,
        task: &mut Task<'_>,
        file: &Arc<OpenFile>,
        offset: u64,
        length: u64,
        now_ns: i64,
    ) -> Poll<()> {
        if let Some(warming) = &mut self.warming {
            // An error here (a panic, or the end of the process) is met again by whoever reads the file.
            let _ = ready!(Pin::new(warming).poll(task));
            self.warming = None;
            return Poll::Ready(());
        }
        if known_bytes(&self.resident, offset) >= length.min(COPY_CHUNK_BYTES) {
            return Poll::Ready(());
        }
        let mut resident_bytes = file.resident_bytes(offset, length, now_ns);
        if resident_bytes == 0 {
            resident_bytes = length.min(WARM_BYTES);
            if !file.is_resident(offset, resident_bytes) {
                let file = Arc::clone(file);
                self.warming = Some(Blocking::spawn(move || file.warm(offset, resident_bytes)));
            }
        }
        self.resident = offset..offset + resident_bytes;
        let Some(warming) = &mut self.warming else { return Poll::Ready(()) };
        // Not ready yet, but only who has polled it is woken.
        let _ = ready!(Pin::new(warming).poll(task));
        self.warming = None;
        Poll::Ready(())
    }
}

/// Bytes from this offset on that are known to be in the page cache. Those before the known ones are not: ranges may be
/// asked for in any order.
fn known_bytes(resident: &Range<u64>, offset: u64) -> u64 {
    if resident.contains(&offset) { resident.end - offset } else { 0 }
}

/// Sends a piece by copying it. Before the last one, the file is looked at once more.
fn poll_send_copy(socket: &mut Transport, file: &OpenFile, offset: u64, length: u64) -> Poll<io::Result<usize>> {
    let mut buffer = vec![0; length.min(COPY_CHUNK_BYTES) as usize];
    file.read_exact_at(&mut buffer, offset)?;
    if length <= COPY_CHUNK_BYTES && !file.is_unchanged() {
        return Poll::Ready(Err(changed()));
    }
    socket.poll_write(&buffer)
}

/// Sends the last piece, if the file is still the same.
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

/// Sends `bytes` and, if it is in memory, the segment behind them.
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
