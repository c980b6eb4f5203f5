//! Sending a request to a server: its head, and its content as it comes from the client.

use std::io;
use std::task::{Context as Task, Poll, ready};

use wire::h1::{BodyFraming, CHUNK_SIZE_LINE_BYTES_MAX, write_chunk_size_line, write_fields};
use wire::http::Fields;
use wire::http::forwarding::may_be_trailer;

use crate::handler::ClientLink;
use crate::upstream::Lease;

/// A request on its way to a server.
#[derive(Debug)]
pub(super) struct Upload {
    head: Vec<u8>,
    head_bytes_sent: usize,
    /// Chunks that the connection has not taken yet.
    chunks: Vec<u8>,
    chunk_bytes_sent: usize,
    sent_bytes: u64,
    /// The content is not sent before the server has said that it wants it.
    pub(super) awaits_continue: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Content is to come.
    Open,
    /// Nothing more comes from the client.
    Ended,
    /// All is sent.
    Complete,
    /// The server takes no more; what it answers may still be read.
    Broken,
}

impl Upload {
    pub(super) fn new(head: Vec<u8>, framing: BodyFraming, awaits_continue: bool) -> Self {
        let state = if framing == BodyFraming::None { State::Ended } else { State::Open };
        Self {
            head,
            head_bytes_sent: 0,
            chunks: Vec::new(),
            chunk_bytes_sent: 0,
            sent_bytes: 0,
            awaits_continue,
            state,
        }
    }

    /// Begins again with another connection. Only as long as no content was taken.
    pub(super) fn restart(&mut self, framing: BodyFraming, awaits_continue: bool) {
        *self = Self::new(std::mem::take(&mut self.head), framing, awaits_continue);
    }

    /// The first line of the request.
    pub(super) fn request_line(&self) -> &[u8] {
        self.head.split(|byte| *byte == b'\r').next().unwrap_or_default()
    }

    /// Whether the server has got all of the request, so that its connection can take another.
    pub(super) fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    /// Bytes sent so far.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Sends what there is. Ready when nothing more is to be sent.
    pub(super) fn poll_send(&mut self, lease: &mut Lease, link: &ClientLink, task: &mut Task<'_>) -> Poll<()> {
        match self.poll_send_all(lease, link, task) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => {
                self.state = State::Complete;
                Poll::Ready(())
            }
            Poll::Ready(Err(_)) => {
                self.state = State::Broken;
                Poll::Ready(())
            }
        }
    }

    fn poll_send_all(&mut self, lease: &mut Lease, link: &ClientLink, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        if matches!(self.state, State::Complete | State::Broken) {
            return Poll::Ready(if self.state == State::Complete {
                Ok(())
            } else {
                Err(io::ErrorKind::BrokenPipe.into())
            });
        }
        while self.head_bytes_sent < self.head.len() {
            let sent = ready!(lease.poll_write(task, &self.head[self.head_bytes_sent..]))?;
            self.head_bytes_sent += sent;
            self.sent_bytes += sent as u64;
        }
        loop {
            while self.chunk_bytes_sent < self.chunks.len() {
                let sent = ready!(lease.poll_write(task, &self.chunks[self.chunk_bytes_sent..]))?;
                self.chunk_bytes_sent += sent;
                self.sent_bytes += sent as u64;
            }
            self.chunks = Vec::new();
            self.chunk_bytes_sent = 0;
            if self.state == State::Ended {
                return Poll::Ready(Ok(()));
            }
            if self.awaits_continue {
                return Poll::Pending;
            }
            ready!(self.poll_take(lease, link, task))?;
        }
    }

    /// Takes content from the client.
    fn poll_take(&mut self, lease: &mut Lease, link: &ClientLink, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let is_chunked = link.framing() == BodyFraming::Chunked;
        let chunks = &mut self.chunks;
        let taken = ready!(link.poll_take(task, |task, content| {
            if is_chunked {
                push_chunk(content, chunks);
                return Poll::Ready(Ok(content.len()));
            }
            lease.poll_write(task, content)
        }))?;
        self.sent_bytes += if is_chunked { 0 } else { taken as u64 };
        if taken == 0 {
            self.state = State::Ended;
            if is_chunked {
                push_last_chunk(link.take_trailers().as_deref(), &mut self.chunks);
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn push_chunk(content: &[u8], chunks: &mut Vec<u8>) {
    let mut line = [0; CHUNK_SIZE_LINE_BYTES_MAX];
    let line_bytes = write_chunk_size_line(&mut line, content.len());
    chunks.reserve(line_bytes + content.len() + 2);
    chunks.extend_from_slice(&line[CHUNK_SIZE_LINE_BYTES_MAX - line_bytes..]);
    chunks.extend_from_slice(content);
    chunks.extend_from_slice(b"\r\n");
}

fn push_last_chunk(trailers: Option<&Fields>, chunks: &mut Vec<u8>) {
    chunks.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        write_fields(chunks, &passed_on_trailers(trailers));
    }
    chunks.extend_from_slice(b"\r\n");
}

/// The trailer fields that may be passed on.
pub(super) fn passed_on_trailers(trailers: &Fields) -> Fields {
    let mut passed_on = Fields::new();
    for (name, value) in trailers.iter().filter(|(name, _)| may_be_trailer(name)) {
        passed_on.push(name, value);
    }
    passed_on
}
