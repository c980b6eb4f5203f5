//! Streamed content, which is produced while it is sent.

use std::io;
use std::ops::Range;
use std::task::{Context as Task, Poll};

use wire::h1::{CHUNK_SIZE_LINE_BYTES_MAX, write_chunk_size_line, write_fields};
use wire::http::Fields;

use crate::handler::{ContentSource, Filled};

/// Minimum room in the buffer for which a piece is requested, in bytes.
const PIECE_BYTES_MIN: usize = 4 << 10;

/// Bytes of a buffer reserved for the framing of a chunk around a piece of content.
const CHUNK_OVERHEAD_BYTES: usize = CHUNK_SIZE_LINE_BYTES_MAX + 2;

/// Source of content, and the framing of its output.
pub(crate) struct StreamedContent {
    source: Box<dyn ContentSource>,
    framing: StreamFraming,
    is_complete: bool,
    /// Bytes of content received from the source so far.
    pub content_bytes: u64,
}

/// Framing of streamed content (RFC 9112, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFraming {
    /// Fixed length; the number of bytes still to come.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// End of the connection.
    UntilClose,
}

impl std::fmt::Debug for StreamedContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streaming").field("framing", &self.framing).finish_non_exhaustive()
    }
}

impl StreamedContent {
    /// Makes streamed content from a source.
    pub(crate) fn new(source: Box<dyn ContentSource>, framing: StreamFraming) -> Self {
        Self { source, framing, is_complete: false, content_bytes: 0 }
    }

    /// True if all content has been returned.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Lets the source read ahead while the client accepts nothing.
    pub(crate) fn poll_ahead(&mut self, task: &mut Task<'_>) {
        if !self.is_complete {
            self.source.poll_ahead(task);
        }
    }

    /// Fills `buffer` with available content in its framing; returns the range that was filled. Pending if there is
    /// none. Gathers several pieces and the end of the content, so that one write sends all.
    ///
    /// # Errors
    /// The content cannot be completed. The caller must close the connection in a way that the client notices.
    pub(crate) fn poll_gather(&mut self, task: &mut Task<'_>, buffer: &mut Vec<u8>) -> Poll<io::Result<Range<usize>>> {
        let line_bytes = if self.framing == StreamFraming::Chunked { CHUNK_SIZE_LINE_BYTES_MAX } else { 0 };
        let mut gathered = 0..0;
        while !self.is_complete && buffer.len() - gathered.end >= PIECE_BYTES_MIN + CHUNK_OVERHEAD_BYTES {
            let start = gathered.end + line_bytes;
            let room = start..buffer.len() - 2;
            match self.source.poll_fill(task, &mut buffer[room]) {
                Poll::Ready(Ok(Filled::Content(length))) => self.on_content(length, start, buffer, &mut gathered)?,
                Poll::Ready(Ok(Filled::End(trailers))) => self.on_end(trailers.as_deref(), buffer, &mut gathered)?,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if gathered.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(gathered))
    }

    /// Adds the framing of content that was read to `start`, and moves it next to the content gathered before.
    fn on_content(
        &mut self,
        length: usize,
        start: usize,
        buffer: &mut [u8],
        gathered: &mut Range<usize>,
    ) -> io::Result<()> {
        self.content_bytes += length as u64;
        let mut piece = start..start + length;
        match &mut self.framing {
            StreamFraming::Length(remaining) => {
                *remaining = remaining.checked_sub(length as u64).ok_or(io::ErrorKind::InvalidData)?;
            }
            StreamFraming::Chunked => {
                piece.start -= write_chunk_size_line(&mut buffer[..start], length);
                buffer[piece.end..piece.end + 2].copy_from_slice(b"\r\n");
                piece.end += 2;
            }
            StreamFraming::UntilClose => {}
        }
        if gathered.start == gathered.end {
            *gathered = piece;
        } else {
            // The gap is a few bytes, because size lines differ in length. The first and largest piece is not moved.
            buffer.copy_within(piece.clone(), gathered.end);
            gathered.end += piece.len();
        }
        Ok(())
    }

    fn on_end(
        &mut self,
        trailers: Option<&Fields>,
        buffer: &mut Vec<u8>,
        gathered: &mut Range<usize>,
    ) -> io::Result<()> {
        self.is_complete = true;
        match self.framing {
            StreamFraming::Length(0) | StreamFraming::UntilClose => {}
            StreamFraming::Length(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            StreamFraming::Chunked => {
                let mut end = b"0\r\n".to_vec();
                if let Some(trailers) = trailers {
                    write_fields(&mut end, trailers);
                }
                end.extend_from_slice(b"\r\n");
                let at = gathered.end;
                // Trailers have their own limit, which may exceed the room left.
                if buffer.len() < at + end.len() {
                    buffer.resize(at + end.len(), 0);
                }
                buffer[at..at + end.len()].copy_from_slice(&end);
                gathered.end += end.len();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use super::*;

    struct Pieces(VecDeque<Option<&'static str>>);

    impl ContentSource for Pieces {
        fn poll_fill(&mut self, _: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
            match self.0.pop_front() {
                Some(Some(piece)) => {
                    buffer[..piece.len()].copy_from_slice(piece.as_bytes());
                    Poll::Ready(Ok(Filled::Content(piece.len())))
                }
                Some(None) => Poll::Pending,
                None => {
                    let mut trailers = Fields::new();
                    trailers.push("A", "b");
                    Poll::Ready(Ok(Filled::End(Some(Box::new(trailers)))))
                }
            }
        }
    }

    #[test]
    fn framings() {
        let chunked = "3\r\nabc\r\n2\r\nde\r\n|c\r\nfghijklmnopq\r\n0\r\nA: b\r\n\r\n";
        for (framing, expect) in [
            (StreamFraming::Chunked, Ok(chunked)),
            (StreamFraming::UntilClose, Ok("abcde|fghijklmnopq")),
            (StreamFraming::Length(17), Ok("abcde|fghijklmnopq")),
            (StreamFraming::Length(18), Err(io::ErrorKind::UnexpectedEof)),
            (StreamFraming::Length(16), Err(io::ErrorKind::InvalidData)),
        ] {
            let pieces = [Some("abc"), Some("de"), None, Some("fghijklmnopq")];
            let mut streaming = StreamedContent::new(Box::new(Pieces(pieces.into())), framing);
            let (mut buffer, mut sent) = (vec![0; 8 << 10], String::new());
            let task = &mut Task::from_waker(Waker::noop());
            let result = loop {
                match streaming.poll_gather(task, &mut buffer) {
                    Poll::Ready(Ok(gathered)) => sent.push_str(str::from_utf8(&buffer[gathered]).unwrap()),
                    Poll::Ready(Err(error)) => break Err(error.kind()),
                    Poll::Pending => panic!("pending with nothing given out"),
                }
                if streaming.is_complete() {
                    break Ok(sent.as_str());
                }
                sent.push('|');
            };
            assert_eq!(result, expect, "{framing:?}");
        }
    }
}
