//! Content of requests and responses, as a guest reads and writes it.

use std::pin::Pin;
use std::task::{Context as Task, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::Body;
use wasmtime::{Result, bail, format_err};
use wire::http::Fields;

use crate::RequestContent;

/// Result of a guest's read: number of bytes, and true if they are the last.
pub(super) type Read = (usize, bool);

/// Content of a request.
#[derive(Debug, Default)]
pub struct RequestBody {
    /// Source of the content; `None` after its end.
    source: Option<RequestContent>,
    /// Bytes received that the guest has not read yet.
    piece: Bytes,
    /// Bytes that were read, if the next handler needs them, too.
    kept: Vec<u8>,
    trailers: Fields,
    was_read: bool,
    /// Content that the guest has written instead.
    written: Option<Vec<u8>>,
    /// True if there is more than can be kept.
    is_too_large: bool,
}

/// Content for the next handler.
#[derive(Debug, PartialEq, Eq)]
pub enum PassedContent {
    /// Content as the client sends it.
    AsSent,
    /// Bytes to send instead.
    Instead(Vec<u8>),
}

impl RequestBody {
    /// Sets the source of the content.
    pub fn set_source(&mut self, source: RequestContent) {
        self.source = Some(source);
    }

    /// True if the client has sent more than can be kept for the next handler.
    pub fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// Content for the next handler. Must be called once everything that it needs is present.
    pub fn take_passed(&mut self) -> PassedContent {
        match self.written.take() {
            Some(written) => PassedContent::Instead(written),
            None if self.was_read => PassedContent::Instead(std::mem::take(&mut self.kept)),
            None => PassedContent::AsSent,
        }
    }

    pub(super) fn trailers(&self) -> &Fields {
        &self.trailers
    }

    /// Bytes of memory that are kept for the next handler, or wait for the guest.
    pub(super) fn held_bytes(&self) -> usize {
        self.piece.len() + self.kept.capacity() + self.written.as_ref().map_or(0, Vec::capacity)
    }

    /// Fills a part of `buffer`: all of it, unless the content ends earlier.
    pub(super) fn poll_read(
        &mut self,
        task: &mut Task<'_>,
        buffer: &mut [u8],
        filled: &mut usize,
        kept_max: Option<usize>,
    ) -> Poll<Result<Read>> {
        self.was_read = true;
        while *filled < buffer.len() {
            if self.piece.is_empty() && !ready!(self.poll_piece(task))? {
                break;
            }
            let count = self.piece.len().min(buffer.len() - *filled);
            buffer[*filled..*filled + count].copy_from_slice(&self.piece[..count]);
            self.keep(count, kept_max)?;
            self.piece.advance(count);
            *filled += count;
        }
        let is_end = self.piece.is_empty() && self.source.is_none();
        Poll::Ready(Ok((*filled, is_end)))
    }

    /// Reads the remaining content, for the next handler.
    pub(super) fn poll_rest(&mut self, task: &mut Task<'_>, kept_max: usize) -> Poll<Result<()>> {
        while self.was_read && self.written.is_none() {
            if self.piece.is_empty() && !ready!(self.poll_piece(task))? {
                break;
            }
            self.keep(self.piece.len(), Some(kept_max))?;
            self.piece.clear();
        }
        Poll::Ready(Ok(()))
    }

    /// Appends to the content that replaces the client's.
    pub(super) fn write(&mut self, bytes: &[u8], bytes_max: usize) -> Result<()> {
        append(self.written.get_or_insert_default(), bytes, bytes_max)
    }

    fn keep(&mut self, count: usize, kept_max: Option<usize>) -> Result<()> {
        let Some(kept_max) = kept_max else { return Ok(()) };
        if self.kept.len() + count > kept_max {
            self.is_too_large = true;
            bail!("more content than buffered-bytes-max");
        }
        self.kept.extend_from_slice(&self.piece[..count]);
        Ok(())
    }

    /// Waits for a piece; returns false at the end.
    fn poll_piece(&mut self, task: &mut Task<'_>) -> Poll<Result<bool>> {
        loop {
            let Some(source) = &mut self.source else { return Poll::Ready(Ok(false)) };
            match ready!(Pin::new(source).poll_frame(task)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => {
                        self.piece = data;
                        return Poll::Ready(Ok(true));
                    }
                    Err(frame) => {
                        for (name, value) in frame.into_trailers().iter().flatten() {
                            self.trailers.push(name.as_str(), value);
                        }
                    }
                },
                Some(Err(_)) => {
                    return Poll::Ready(Err(format_err!("the request content ended early")));
                }
                None => self.source = None,
            }
        }
    }
}

/// Content of a response.
#[derive(Debug, Default)]
pub struct ResponseContent {
    /// Next handler's content, if the guest has asked for it, and the number of bytes read.
    of_next: Option<Bytes>,
    /// Content that the guest has written.
    written: Option<Vec<u8>>,
    /// The guest's content from before the next handler's response, followed by that response's. Sent if the guest
    /// writes nothing more.
    joined: Option<Vec<u8>>,
}

impl ResponseContent {
    /// Continues with the next handler's content, which follows what the guest has written so far.
    pub(super) fn continue_with(&mut self, of_next: Option<Bytes>) {
        let Some(mut before) = self.written.take() else {
            *self = Self { of_next, ..Self::default() };
            return;
        };
        before.extend_from_slice(&of_next.unwrap_or_default());
        *self = Self { of_next: Some(before.clone().into()), written: None, joined: Some(before) };
    }

    /// Number of bytes that the guest has written.
    pub fn written_bytes(&self) -> usize {
        self.written.as_ref().map_or(0, Vec::len)
    }

    /// Bytes of memory that are kept, except for a response that the guest only reads: the caller keeps that, too.
    pub(super) fn held_bytes(&self) -> usize {
        let joined_bytes = self.joined.as_ref().map_or(0, |joined| 2 * joined.capacity());
        self.written.as_ref().map_or(0, Vec::capacity) + joined_bytes
    }

    /// Content that the guest's actions determine; `None` if it has written nothing, so that the next handler's stays.
    pub fn take_written(&mut self) -> Option<Vec<u8>> {
        self.written.take().or_else(|| self.joined.take())
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<Read> {
        let Some(content) = &mut self.of_next else { bail!("the response content was not buffered") };
        let count = content.len().min(buffer.len());
        buffer[..count].copy_from_slice(&content[..count]);
        content.advance(count);
        Ok((count, content.is_empty()))
    }

    pub(super) fn write(&mut self, bytes: &[u8], bytes_max: usize) -> Result<()> {
        append(self.written.get_or_insert_default(), bytes, bytes_max)
    }
}

fn append(written: &mut Vec<u8>, bytes: &[u8], bytes_max: usize) -> Result<()> {
    if written.len() + bytes.len() > bytes_max {
        bail!("more content than buffered-bytes-max");
    }
    written.extend_from_slice(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn body(content: &'static [u8]) -> RequestBody {
        let (source, supply) = RequestContent::new();
        let mut body = RequestBody::default();
        body.set_source(source);
        let task = &mut Task::from_waker(Waker::noop());
        assert!(body.poll_piece(task).is_pending());
        supply.supply(Bytes::from_static(content));
        supply.complete(None);
        // Content that was supplied stays after its supply is dropped.
        drop(supply);
        body
    }

    #[test]
    fn what_was_read_is_passed_on_if_it_was_kept() {
        let check = |read: usize, kept_max: Option<usize>, expect: Option<&[u8]>| {
            let task = &mut Task::from_waker(Waker::noop());
            let mut body = body(b"abcdef");
            let mut buffer = vec![0; read];
            if read > 0 {
                let Poll::Ready(Ok((count, is_end))) = body.poll_read(task, &mut buffer, &mut 0, kept_max) else {
                    panic!("it is there");
                };
                assert_eq!((&buffer[..count], is_end), (&b"abcdef"[..read.min(6)], read > 6));
            }
            if let Some(kept_max) = kept_max {
                assert!(matches!(body.poll_rest(task, kept_max), Poll::Ready(Ok(()))));
            }
            let expect = expect.map_or(PassedContent::AsSent, |content| PassedContent::Instead(content.to_vec()));
            assert_eq!(body.take_passed(), expect, "{read} {kept_max:?}");
        };
        check(0, None, None);
        check(0, Some(9), None);
        check(2, None, Some(b""));
        check(2, Some(9), Some(b"abcdef"));
        check(9, Some(9), Some(b"abcdef"));
    }

    #[test]
    fn what_is_too_much_is_rejected() {
        let task = &mut Task::from_waker(Waker::noop());
        let mut body = body(b"abcdef");
        assert!(matches!(body.poll_read(task, &mut [0; 6], &mut 0, Some(5)), Poll::Ready(Err(_))));
        assert!(body.is_too_large());
        let mut content = ResponseContent::default();
        content.write(b"abc", 5).unwrap();
        assert!(content.write(b"def", 5).is_err());
        assert_eq!(content.take_written(), Some(b"abc".to_vec()));
    }

    #[test]
    fn what_is_written_before_and_after_the_next_handler() {
        let check = |before: &[&[u8]], after: &[&[u8]], expect: Option<&[u8]>| {
            let mut content = ResponseContent::default();
            before.iter().for_each(|bytes| content.write(bytes, 9).unwrap());
            content.continue_with(Some(Bytes::from_static(b"next")));
            after.iter().for_each(|bytes| content.write(bytes, 9).unwrap());
            assert_eq!(content.take_written().as_deref(), expect, "{before:?} {after:?}");
        };
        check(&[], &[], None);
        check(&[b"a", b"b"], &[], Some(b"abnext"));
        check(&[b"a"], &[b"b", b"c"], Some(b"bc"));
        check(&[], &[b""], Some(b""));
    }

    #[test]
    fn the_next_handlers_content_is_read_if_it_was_asked_for() {
        let of_next = |next: Option<Bytes>| {
            let mut content = ResponseContent::default();
            content.continue_with(next);
            content
        };
        assert!(of_next(None).read(&mut [0; 9]).is_err());
        let (mut content, mut buffer) = (of_next(Some(Bytes::from_static(b"abc"))), [0; 2]);
        assert_eq!(content.read(&mut buffer).unwrap(), (2, false));
        assert_eq!(content.read(&mut buffer).unwrap(), (1, true));
        assert_eq!(content.take_written(), None);
    }
}
