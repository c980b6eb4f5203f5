//! Content of a response, as it arrives from a server.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};

use wire::h1::{BodyDecoder, BodyLimits};
use wire::http::Fields;

use super::ForwardInner;
use super::peer::GatewayPeer;
use super::read_ahead::ReadAhead;
use super::records::Records;
use super::response::body_limits;
use super::upload::{ForwardUpload, response_trailers};
use crate::handler::{ClientLink, ContentSource, Filled, Now, TunnelStream};
use crate::log::{LogClient, escaped, event};
use crate::upstream::{self, Ending, Tried, UpstreamFailure};

/// An exchange whose response has begun.
pub(super) struct Upstreaming {
    pub(super) peer: GatewayPeer,
    /// Content of the request, which may still be on its way.
    pub(super) upload: ForwardUpload,
    pub(super) link: Rc<ClientLink>,
    pub(super) client: LogClient,
    pub(super) inner: Rc<ForwardInner>,
    /// FastCGI records that carry the response, if the server speaks FastCGI.
    pub(super) records: Option<Box<Records>>,
    pub(super) is_http: bool,
    /// True if the server may send content after a response that has none.
    pub(super) may_have_content: bool,
    /// True if the client has called a gRPC method.
    pub(super) is_grpc: bool,
    pub(super) trailer_limits: usize,
    /// Time of the latest read.
    pub(super) now: Now,
}

impl Upstreaming {
    /// Ends the exchange after the whole response.
    pub(super) fn finish(self, is_reusable: bool) {
        self.link.remove_deadlines();
        // FastCGI frames content: no server takes it for another request.
        let is_in_doubt = self.is_http && (self.upload.has_content() || self.may_have_content);
        let ending = match is_reusable && self.upload.is_complete() {
            true if is_in_doubt => Ending::ReusableBySameClient,
            true => Ending::Reusable,
            false => Ending::Close,
        };
        self.link.forwarding().borrow_mut().on_end(self.now.unix_us);
        self.peer.finish(ending, self.now.monotonic_ms);
    }

    /// Ends the exchange after a head without content. Some servers send content all the same if the fields `declare`
    /// it.
    pub(super) fn finish_without_content(mut self, is_reusable: bool, declares_content: bool) {
        self.may_have_content = declares_content;
        self.finish(is_reusable);
    }

    /// Streams the content that follows the head.
    pub(super) fn stream(mut self, awaiting: RemainingContent, is_persistent: bool) -> UpstreamContent {
        self.peer.answered(self.now.monotonic_ms);
        let limits = body_limits(self.trailer_limits);
        self.link.set_deadline(None);
        UpstreamContent {
            upstreaming: Some(self),
            awaiting,
            limits,
            is_persistent,
            is_waiting: false,
            is_drained: false,
        }
    }

    /// Logs that the response ends early.
    pub(super) fn warn_of_cut(&self, reason: &dyn fmt::Display) {
        let (name, request) = (self.peer.name(), escaped(self.upload.request_line()));
        let values: &[(&str, &dyn fmt::Display)] = &[("server", &name), ("reason", reason), ("request", &request)];
        self.inner.plan.log.warn(event("upstream response cut off", values), "");
    }

    /// Turns the connection into a tunnel for another protocol.
    ///
    /// # Errors
    /// The peer, if it is a program: programs have no tunnels.
    pub(super) fn into_tunnel(self) -> Result<Box<dyn TunnelStream>, GatewayPeer> {
        Ok(Box::new(self.peer.into_tunnel(Now::read().monotonic_ms)?))
    }
}

/// Reads in a turn that bring no content. Useless reads must not delay other connections.
const EMPTY_READS_PER_TURN_MAX: u32 = 64;

impl TunnelStream for upstream::UpstreamTunnel {
    fn poll_read(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_read(task, buffer)
    }

    fn poll_write(&mut self, task: &mut Task<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write(task, bytes)
    }

    fn poll_shutdown(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        self.poll_shutdown(task)
    }
}

/// Content that arrives from a server.
pub(super) struct UpstreamContent {
    /// `None` after the end of the exchange.
    pub(super) upstreaming: Option<Upstreaming>,
    awaiting: RemainingContent,
    limits: BodyLimits,
    is_persistent: bool,
    /// True while the deadline runs: the worker waits for the server, not for the client.
    is_waiting: bool,
    /// True if the content is dropped. The client's connection then has its own deadlines.
    pub(super) is_drained: bool,
}

/// Rest of the content.
#[derive(Debug)]
pub(super) enum RemainingContent {
    /// This many bytes.
    Length(u64),
    /// Chunks.
    Chunks(Box<BodyDecoder>),
    /// FastCGI records up to their end; this many bytes, if the head gave a length.
    Records(Option<u64>),
    /// Bytes until the connection closes.
    Close,
    /// Nothing more; trailer fields, if there were any.
    Nothing(Option<Box<Fields>>),
}

impl UpstreamContent {
    /// Starts the deadline for the server's next bytes.
    fn await_more(&mut self) {
        if let Some(upstreaming) = self.upstreaming.as_ref().filter(|_| !self.is_drained)
            && !std::mem::replace(&mut self.is_waiting, true)
        {
            let timeout = upstreaming.inner.plan.config.between_bytes_timeout;
            upstreaming.link.set_deadline(Some(Now::read().monotonic_ms + timeout.as_millis() as u64));
        }
    }

    /// Clears the deadline: content has arrived, and later content gets a new one.
    fn await_no_more(&mut self) {
        if let Some(upstreaming) = &self.upstreaming
            && std::mem::take(&mut self.is_waiting)
        {
            upstreaming.link.set_deadline(None);
        }
    }

    /// Ends the exchange after all content; the connection may be reused.
    fn finish(&mut self, is_clean: bool, trailers: Option<Box<Fields>>) {
        self.awaiting = RemainingContent::Nothing(trailers);
        if let Some(mut upstreaming) = self.upstreaming.take() {
            upstreaming.now = Now::read();
            upstreaming.finish(self.is_persistent && is_clean);
        }
    }

    /// Turns this into the source of a response's content. With `may_read_ahead`, it reads ahead of a slow client.
    pub(super) fn into_source(self, may_read_ahead: bool) -> Box<dyn ContentSource> {
        match &self.upstreaming {
            Some(Upstreaming { inner, link, client, .. }) if may_read_ahead => {
                let (inner, link, client) = (Rc::clone(inner), Rc::clone(link), *client);
                Box::new(ReadAhead::new(self, inner, link, client))
            }
            _ => Box::new(self),
        }
    }

    /// Drops the exchange because the client has left. Closing the connection tells the server; its health is
    /// unaffected.
    fn abort(&mut self) -> Poll<io::Result<Filled>> {
        if let Some(upstreaming) = self.upstreaming.take() {
            upstreaming.link.forwarding().borrow_mut().on_end(Now::read().unix_us);
        }
        Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
    }

    fn fail(&mut self, failure: UpstreamFailure, kind: io::ErrorKind) -> Poll<io::Result<Filled>> {
        if let Some(upstreaming) = self.upstreaming.take() {
            let now = Now::read();
            upstreaming.warn_of_cut(&kind);
            upstreaming.link.forwarding().borrow_mut().on_end(now.unix_us);
            // The response has begun, so that no retry is possible.
            upstreaming.peer.fail(failure, &mut Tried::default(), now.monotonic_ms);
        }
        Poll::Ready(Err(kind.into()))
    }

    /// Decodes `buffer[..count]` from the server; returns the length of content now at the start of `buffer`.
    fn on_input(&mut self, buffer: &mut [u8], count: usize) -> Result<usize, ()> {
        match &mut self.awaiting {
            RemainingContent::Length(remaining) => {
                let length = usize::try_from(*remaining).unwrap_or(usize::MAX).min(count);
                *remaining -= length as u64;
                if *remaining == 0 {
                    self.finish(length == count, None);
                }
                Ok(length)
            }
            RemainingContent::Chunks(_) => self.on_chunks(buffer, count),
            RemainingContent::Records(_) => self.on_records(buffer, count),
            RemainingContent::Close | RemainingContent::Nothing(_) => Ok(count),
        }
    }

    fn on_records(&mut self, buffer: &mut [u8], count: usize) -> Result<usize, ()> {
        let records = self.upstreaming.as_mut().and_then(|upstreaming| upstreaming.records.as_mut());
        let (RemainingContent::Records(remaining), Some(records)) = (&mut self.awaiting, records) else { return Ok(0) };
        let output_bytes = records.unwrap(buffer, count).map_err(|_| ())?;
        let mut length = output_bytes;
        if let Some(remaining) = remaining {
            // Bytes beyond the declared length are cut off.
            length = length.min(usize::try_from(*remaining).unwrap_or(usize::MAX));
            *remaining -= length as u64;
        }
        if records.has_ended() {
            if matches!(remaining, Some(1..)) {
                return Err(());
            }
            let is_reusable = records.is_reusable();
            self.finish(is_reusable, None);
        }
        Ok(length)
    }

    fn on_chunks(&mut self, buffer: &mut [u8], count: usize) -> Result<usize, ()> {
        let RemainingContent::Chunks(decoder) = &mut self.awaiting else { return Ok(0) };
        let (mut at, mut length) = (0, 0);
        while at < count {
            let decoded = decoder.decode(&buffer[at..count], &self.limits).map_err(|_| ())?;
            let content = at + decoded.content.start..at + decoded.content.end;
            let content_bytes = content.len();
            buffer.copy_within(content, length);
            length += content_bytes;
            at += decoded.consumed_bytes;
            if decoded.is_complete {
                let trailers = Box::new(decoder.take_trailers());
                let trailers = self.upstreaming.as_ref().and_then(|upstreaming| {
                    response_trailers(trailers, &upstreaming.inner.plan.config.intermediary, upstreaming.is_grpc)
                });
                self.finish(at == count, trailers);
                break;
            }
        }
        Ok(length)
    }
}

impl ContentSource for UpstreamContent {
    fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
        for _ in 0..EMPTY_READS_PER_TURN_MAX {
            if let RemainingContent::Nothing(trailers) = &mut self.awaiting {
                let trailers = trailers.take();
                self.finish(true, None);
                return Poll::Ready(Ok(Filled::End(trailers)));
            }
            let Some(Upstreaming { peer, upload, link, inner, .. }) = &mut self.upstreaming else {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            };
            if !self.is_drained && link.take_late() {
                return self.fail(UpstreamFailure::TimedOut, io::ErrorKind::TimedOut);
            }
            // A server may respond while the request is still being sent.
            let _ = upload.poll_send(peer, link, &inner.plan.config.intermediary, task);
            let room = match self.awaiting {
                // One byte more, to see whether the server sends more than it declared.
                RemainingContent::Length(remaining) => {
                    usize::try_from(remaining).unwrap_or(usize::MAX).saturating_add(1).min(buffer.len())
                }
                _ => buffer.len(),
            };
            let read = peer.poll_read(task, &mut buffer[..room]);
            if read.is_pending() {
                if !self.is_drained && link.has_client_ended() && inner.plan.config.abort_with_client {
                    return self.abort();
                }
                self.await_more();
                return Poll::Pending;
            }
            let count = match ready!(read) {
                Ok(0) if matches!(self.awaiting, RemainingContent::Close) => {
                    self.finish(false, None);
                    continue;
                }
                Ok(0) => return self.fail(UpstreamFailure::Closed, io::ErrorKind::UnexpectedEof),
                Ok(count) => count,
                Err(error) => return self.fail(UpstreamFailure::Closed, error.kind()),
            };
            match self.on_input(buffer, count) {
                // The deadline for more content continues.
                Ok(0) => {}
                Ok(length) => {
                    self.await_no_more();
                    return Poll::Ready(Ok(Filled::Content(length)));
                }
                Err(()) => return self.fail(UpstreamFailure::Faulty, io::ErrorKind::InvalidData),
            }
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}
