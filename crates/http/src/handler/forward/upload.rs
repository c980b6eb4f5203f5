//! Sends a request to a server: its head, and its content as it arrives from the client.

use std::io;
use std::task::{Context as Task, Poll, ready};

use wire::fastcgi::{CONTENT_BYTES_MAX, write_stdin_end, write_stdin_header};
use wire::h1::{BodyFraming, CHUNK_SIZE_LINE_BYTES_MAX, write_chunk_size_line, write_fields};
use wire::http::Fields;

use super::peer::GatewayPeer;
use crate::config::Intermediary;
use crate::handler::ClientLink;

/// A request being sent to a server.
#[derive(Debug)]
pub(super) struct ForwardUpload {
    head: Vec<u8>,
    head_bytes_sent: usize,
    /// Request line for logs; empty if it is the head's first line.
    line: Vec<u8>,
    coding: UploadCoding,
    /// Encoded chunks or records that the connection has not accepted yet.
    chunks: Vec<u8>,
    chunk_bytes_sent: usize,
    sent_bytes: u64,
    has_content: bool,
    /// True while content waits for the server's 100 Continue.
    pub(super) awaits_continue: bool,
    state: UploadState,
}

/// Encoding of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadCoding {
    /// Unchanged bytes.
    Plain,
    /// Chunks (RFC 9112, section 7.1).
    Chunks,
    /// FastCGI records.
    Records,
}

impl UploadCoding {
    /// Coding for content that arrives in this framing.
    pub(super) fn of_http(framing: BodyFraming) -> Self {
        if framing == BodyFraming::Chunked { Self::Chunks } else { Self::Plain }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadState {
    /// Content may follow.
    Open,
    /// The client's content has ended; some may wait to be sent.
    Ended,
    /// All is sent.
    Complete,
    /// The server accepts no more; its response may still be read.
    Broken,
}

impl ForwardUpload {
    pub(super) fn new(head: Vec<u8>, line: Vec<u8>, coding: UploadCoding, framing: BodyFraming) -> Self {
        let state = if framing == BodyFraming::None { UploadState::Ended } else { UploadState::Open };
        Self {
            head,
            head_bytes_sent: 0,
            line,
            coding,
            chunks: Vec::new(),
            chunk_bytes_sent: 0,
            sent_bytes: 0,
            has_content: !matches!(framing, BodyFraming::None | BodyFraming::Length(0)),
            awaits_continue: false,
            state,
        }
    }

    /// Begins again with another connection. Allowed only while no content was taken.
    pub(super) fn restart(&mut self, framing: BodyFraming, awaits_continue: bool) {
        let (head, line) = (std::mem::take(&mut self.head), std::mem::take(&mut self.line));
        *self = Self { awaits_continue, ..Self::new(head, line, self.coding, framing) };
    }

    /// Sets the bytes sent before the content, if they depend on the server's protocol.
    pub(super) fn set_head(&mut self, head: Vec<u8>) {
        self.head = head;
    }

    /// Request line for logs.
    pub(super) fn request_line(&self) -> &[u8] {
        if !self.line.is_empty() {
            return &self.line;
        }
        self.head.split(|byte| *byte == b'\r').next().unwrap_or_default()
    }

    /// True if the server has received the whole request, so that its connection can take another.
    pub(super) fn is_complete(&self) -> bool {
        self.state == UploadState::Complete
    }

    /// True if anything was sent after the head.
    pub(super) fn has_content(&self) -> bool {
        self.has_content
    }

    /// Bytes sent so far.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Sends head and content. Ready when nothing more will be sent.
    pub(super) fn poll_send(
        &mut self,
        peer: &mut GatewayPeer,
        link: &ClientLink,
        intermediary: &Intermediary,
        task: &mut Task<'_>,
    ) -> Poll<()> {
        match self.poll_send_all(peer, link, intermediary, task) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => {
                if self.state != UploadState::Complete {
                    peer.end_request();
                }
                self.state = UploadState::Complete;
                Poll::Ready(())
            }
            Poll::Ready(Err(_)) => {
                self.state = UploadState::Broken;
                Poll::Ready(())
            }
        }
    }

    fn poll_send_all(
        &mut self,
        peer: &mut GatewayPeer,
        link: &ClientLink,
        intermediary: &Intermediary,
        task: &mut Task<'_>,
    ) -> Poll<io::Result<()>> {
        if matches!(self.state, UploadState::Complete | UploadState::Broken) {
            return Poll::Ready(if self.state == UploadState::Complete {
                Ok(())
            } else {
                Err(io::ErrorKind::BrokenPipe.into())
            });
        }
        while self.head_bytes_sent < self.head.len() {
            let sent = ready!(peer.poll_write(task, &self.head[self.head_bytes_sent..]))?;
            self.head_bytes_sent += sent;
            self.sent_bytes += sent as u64;
        }
        loop {
            while self.chunk_bytes_sent < self.chunks.len() {
                let sent = ready!(peer.poll_write(task, &self.chunks[self.chunk_bytes_sent..]))?;
                self.chunk_bytes_sent += sent;
                self.sent_bytes += sent as u64;
            }
            self.chunks = Vec::new();
            self.chunk_bytes_sent = 0;
            if self.state == UploadState::Ended {
                return Poll::Ready(Ok(()));
            }
            if self.awaits_continue {
                return Poll::Pending;
            }
            ready!(self.poll_take(peer, link, intermediary, task))?;
        }
    }

    /// Takes content from the client.
    fn poll_take(
        &mut self,
        peer: &mut GatewayPeer,
        link: &ClientLink,
        intermediary: &Intermediary,
        task: &mut Task<'_>,
    ) -> Poll<io::Result<()>> {
        let (coding, chunks) = (self.coding, &mut self.chunks);
        let taken = ready!(link.poll_take(task, |task, content| {
            match coding {
                UploadCoding::Plain => return peer.poll_write(task, content),
                UploadCoding::Chunks => push_chunk(content, chunks),
                UploadCoding::Records => push_records(content, chunks),
            }
            Poll::Ready(Ok(content.len()))
        }))?;
        self.sent_bytes += if coding == UploadCoding::Plain { taken as u64 } else { 0 };
        if taken == 0 {
            self.state = UploadState::Ended;
            match coding {
                UploadCoding::Plain => {}
                UploadCoding::Chunks => push_last_chunk(request_trailers(link, intermediary), &mut self.chunks),
                UploadCoding::Records => write_stdin_end(&mut self.chunks),
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

fn push_records(content: &[u8], records: &mut Vec<u8>) {
    records.reserve(content.len() + 64);
    for piece in content.chunks(CONTENT_BYTES_MAX) {
        write_stdin_header(piece.len(), records);
        records.extend_from_slice(piece);
    }
}

fn push_last_chunk(trailers: Option<Box<Fields>>, chunks: &mut Vec<u8>) {
    chunks.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        write_fields(chunks, &trailers);
    }
    chunks.extend_from_slice(b"\r\n");
}

/// Trailer fields of a request that are passed on, if there are any.
pub(super) fn request_trailers(link: &ClientLink, intermediary: &Intermediary) -> Option<Box<Fields>> {
    let mut trailers = link.take_trailers()?;
    trailers.retain(|name| intermediary.passes_request_trailer(name));
    (!trailers.is_empty()).then_some(trailers)
}

/// Trailer fields of a response that are passed on, if there are any.
pub(super) fn response_trailers(
    mut trailers: Box<Fields>,
    intermediary: &Intermediary,
    is_grpc: bool,
) -> Option<Box<Fields>> {
    trailers.retain(|name| intermediary.passes_response_trailer(name, is_grpc));
    (!trailers.is_empty()).then_some(trailers)
}
