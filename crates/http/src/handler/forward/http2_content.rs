//! Content of a response, as it arrives from a server over HTTP/2.

use std::io;
use std::rc::Rc;
use std::task::{Context as Task, Poll};

use wire::http::Fields;

use super::ForwardInner;
use super::exchange::UpstreamUpload;
use super::read_ahead::ReadAhead;
use super::upload::response_trailers;
use crate::handler::{ClientLink, ContentSource, Filled, Now, TunnelStream};
use crate::log::{LogClient, escaped, event};
use crate::upstream::{H2UpstreamTunnel, ResponsePiece, StreamFailure, StreamLease, Tried, UpstreamFailure};

/// An exchange whose response has begun.
pub(super) struct Downloading {
    pub(super) lease: StreamLease,
    /// Content of the request, which may still be on its way.
    pub(super) upload: UpstreamUpload,
    pub(super) link: Rc<ClientLink>,
    pub(super) inner: Rc<ForwardInner>,
    pub(super) request_line: Vec<u8>,
    /// True if the client has called a gRPC method.
    pub(super) is_grpc: bool,
}

impl Downloading {
    /// Ends the exchange after the whole response.
    pub(super) fn finish(self) {
        self.link.remove_deadlines();
        let now = Now::read();
        self.link.forwarding().borrow_mut().on_end(now.unix_us);
        self.lease.finish(now.monotonic_ms);
    }

    /// Streams the content that follows. With `may_read_ahead`, it is read ahead of a slow client.
    pub(super) fn into_source(self, client: LogClient, may_read_ahead: bool) -> Box<dyn ContentSource> {
        let (inner, link) = (Rc::clone(&self.inner), Rc::clone(&self.link));
        let content = Http2Content { downloading: Some(self), trailers: None, is_waiting: false };
        match may_read_ahead {
            true => Box::new(ReadAhead::new(content, inner, link, client)),
            false => Box::new(content),
        }
    }

    fn fail(self, failure: UpstreamFailure, kind: io::ErrorKind) {
        let now = Now::read();
        let (name, request) = (self.lease.server_name(), escaped(&self.request_line));
        self.inner.plan.log.warn(
            event("upstream response cut off", &[("server", &name), ("reason", &kind), ("request", &request)]),
            "",
        );
        self.link.forwarding().borrow_mut().on_end(now.unix_us);
        // The response has begun, so that no retry is possible.
        self.lease.fail(failure, &mut Tried::default(), now.monotonic_ms);
    }
}

/// Content that arrives from a server.
struct Http2Content {
    /// `None` after the end of the exchange.
    downloading: Option<Downloading>,
    trailers: Option<Box<Fields>>,
    /// True while the deadline runs: the worker waits for the server, not for the client.
    is_waiting: bool,
}

impl Http2Content {
    /// Starts the deadline for the server's next bytes.
    fn await_more(&mut self) {
        if let Some(downloading) = &self.downloading
            && !std::mem::replace(&mut self.is_waiting, true)
        {
            let timeout = downloading.inner.plan.config.between_bytes_timeout;
            downloading.link.set_deadline(Some(Now::read().monotonic_ms + timeout.as_millis() as u64));
        }
    }

    fn on_end(&mut self, trailers: Option<Box<Fields>>) -> Poll<io::Result<Filled>> {
        if let Some(downloading) = self.downloading.take() {
            let intermediary = &downloading.inner.plan.config.intermediary;
            self.trailers =
                trailers.and_then(|trailers| response_trailers(trailers, intermediary, downloading.is_grpc));
            downloading.finish();
        }
        Poll::Ready(Ok(Filled::End(self.trailers.take())))
    }

    /// Drops the exchange because the client has left. A reset tells the server; its health is unaffected.
    fn abort(&mut self) -> Poll<io::Result<Filled>> {
        if let Some(downloading) = self.downloading.take() {
            downloading.link.forwarding().borrow_mut().on_end(Now::read().unix_us);
        }
        Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
    }

    fn fail(&mut self, failure: UpstreamFailure, kind: io::ErrorKind) -> Poll<io::Result<Filled>> {
        if let Some(downloading) = self.downloading.take() {
            downloading.fail(failure, kind);
        }
        Poll::Ready(Err(kind.into()))
    }
}

impl ContentSource for Http2Content {
    fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
        let Some(Downloading { lease, upload, link, inner, .. }) = &mut self.downloading else {
            return Poll::Ready(Ok(Filled::End(self.trailers.take())));
        };
        if link.take_late() {
            return self.fail(UpstreamFailure::TimedOut, io::ErrorKind::TimedOut);
        }
        // A server may respond while the request is still being sent.
        let _ = upload.poll_send(lease, link, &inner.plan.config.intermediary, task);
        let Poll::Ready(piece) = lease.poll_response(task, buffer) else {
            if link.has_client_ended() && inner.plan.config.abort_with_client {
                return self.abort();
            }
            self.await_more();
            return Poll::Pending;
        };
        if std::mem::take(&mut self.is_waiting) {
            link.set_deadline(None);
        }
        match piece {
            Ok(ResponsePiece::Content(length)) => Poll::Ready(Ok(Filled::Content(length))),
            Ok(ResponsePiece::End(trailers)) => self.on_end(trailers),
            // The engine rejects a second head.
            Ok(ResponsePiece::Head { .. }) => self.fail(UpstreamFailure::Faulty, io::ErrorKind::InvalidData),
            Err(StreamFailure::Closed) => self.fail(UpstreamFailure::Closed, io::ErrorKind::UnexpectedEof),
            Err(StreamFailure::NotHttp2(_)) => self.fail(UpstreamFailure::Malformed, io::ErrorKind::InvalidData),
            Err(StreamFailure::Malformed) => self.fail(UpstreamFailure::Faulty, io::ErrorKind::InvalidData),
            Err(StreamFailure::Rejected | StreamFailure::Reset(_)) => {
                self.fail(UpstreamFailure::Faulty, io::ErrorKind::ConnectionReset)
            }
        }
    }
}

impl TunnelStream for H2UpstreamTunnel {
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
