use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use wire::h2::{OutgoingRequest, StreamId};
use wire::http::Fields;

use super::{ResponsePiece, StreamFailure, UpstreamSession};
use crate::lease::{ServerSlot, UpstreamFailure};
use crate::memory_budget::Charge;
use crate::server::ServerId;
use crate::tried::Tried;

/// A stream on an HTTP/2 connection, for one exchange. Dropping it before the exchange is complete resets the stream,
/// and does not affect the server's health.
#[derive(Debug)]
pub struct StreamLease {
    stream: OwnStream,
    slot: ServerSlot,
    is_reused: bool,
    /// Number of [`UpstreamSession::events`] when the lease was given.
    events_before: u64,
}

/// Room on a connection, and the stream once the exchange has begun.
#[derive(Debug)]
struct OwnStream {
    session: Rc<UpstreamSession>,
    stream: Option<StreamId>,
}

impl StreamLease {
    pub(crate) fn new(session: Rc<UpstreamSession>, slot: ServerSlot, is_reused: bool) -> Self {
        let events_before = session.events();
        Self { stream: OwnStream { session, stream: None }, slot, is_reused, events_before }
    }

    /// Waits for the server's SETTINGS and tells whether it allows extended CONNECT (RFC 8441).
    ///
    /// # Errors
    /// The connection has ended.
    pub fn poll_enables_connect(&self, task: &mut Context<'_>) -> Poll<Result<bool, StreamFailure>> {
        self.stream.session.poll_enables_connect(task)
    }

    /// As [`Lease::sticky_field`](crate::Lease::sticky_field).
    pub fn sticky_field(&self, named: Option<ServerId>, is_secure: bool) -> Option<crate::StickyField> {
        self.slot.sticky_field(named, is_secure)
    }

    /// Begins the exchange; `is_last` if the request has no content. `charge` counts the memory kept for both
    /// directions.
    ///
    /// # Errors
    /// The connection accepts no more streams.
    pub fn begin(
        &mut self,
        request: &OutgoingRequest<'_>,
        fields: &Fields,
        is_last: bool,
        charge: Charge,
    ) -> Result<(), StreamFailure> {
        self.stream.stream = Some(self.stream.session.begin(request, fields, is_last, charge)?);
        Ok(())
    }

    /// Polls for the next part of the response; content goes to `buffer`.
    ///
    /// # Errors
    /// The response is missing or incomplete.
    pub fn poll_response(
        &mut self,
        task: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<ResponsePiece, StreamFailure>> {
        self.stream.poll_response(task, buffer)
    }

    /// Polls for the number of content bytes the server accepts now, at least one.
    ///
    /// # Errors
    /// The server accepts no more content; its response may still be read.
    pub fn poll_room(&mut self, task: &mut Context<'_>) -> Poll<Result<usize, StreamFailure>> {
        self.stream.session.poll_room(self.stream.id()?, task)
    }

    /// Queues content of the request, at most as much as there is [room](Self::poll_room) for.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn offer(&mut self, content: &[u8]) -> Result<(), StreamFailure> {
        self.stream.session.offer(self.stream.id()?, content)
    }

    /// Ends the request, with trailer fields if there are any.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn end_request(&mut self, trailers: Option<Fields>) -> Result<(), StreamFailure> {
        self.stream.session.end_request(self.stream.id()?, trailers)
    }

    /// Content bytes of the request that were offered and not sent yet.
    pub fn unsent_bytes(&self) -> usize {
        self.stream.stream.map_or(0, |stream| self.stream.session.unsent_bytes(stream))
    }

    /// Name of the server, as [`Lease::server_name`](crate::Lease::server_name).
    pub fn server_name(&self) -> &Rc<str> {
        self.slot.server_name()
    }

    /// True if the connection had exchanges before, as [`Lease::is_reused`](crate::Lease::is_reused).
    pub fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// True if the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        self.slot.is_secure()
    }

    /// Records a good response, as [`Lease::answered`](crate::Lease::answered).
    pub fn answered(&mut self, now_ms: u64) {
        self.slot.report_success(now_ms);
    }

    /// Ends the exchange as a success.
    pub fn finish(mut self, now_ms: u64) {
        self.slot.report_success(now_ms);
    }

    /// Ends the exchange as a failure. Adds to `tried` what a retry must avoid.
    pub fn fail(mut self, failure: UpstreamFailure, tried: &mut Tried, now_ms: u64) {
        let is_unheard = self.stream.session.events() == self.events_before;
        let is_stale = failure == UpstreamFailure::Closed && self.is_reused && is_unheard;
        if (is_stale || failure == UpstreamFailure::Rejected) && !tried.wants_new() {
            return tried.add_stale();
        }
        if failure == UpstreamFailure::TimedOut && is_unheard {
            // The connection may be dead without notice; retire it.
            self.stream.session.retire();
        }
        tried.add(self.slot.server.shared.id);
        if !matches!(failure, UpstreamFailure::Faulty | UpstreamFailure::Rejected) {
            self.slot.report_failure(now_ms);
        }
    }

    /// Ends the exchange and turns the stream into a tunnel for bytes of another protocol.
    pub fn into_tunnel(mut self, now_ms: u64) -> H2UpstreamTunnel {
        self.slot.report_success(now_ms);
        H2UpstreamTunnel { stream: self.stream, _slot: self.slot }
    }
}

/// An HTTP/2 stream that carries another protocol.
#[derive(Debug)]
pub struct H2UpstreamTunnel {
    stream: OwnStream,
    _slot: ServerSlot,
}

impl H2UpstreamTunnel {
    /// Reads received bytes into `buffer`; 0 is the end.
    pub fn poll_read(&mut self, task: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match ready!(self.stream.poll_response(task, buffer)) {
            Ok(ResponsePiece::Content(length)) => Poll::Ready(Ok(length)),
            Ok(_) => Poll::Ready(Ok(0)),
            Err(_) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    /// Queues as much of `bytes` as there is room for.
    pub fn poll_write(&mut self, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let stream = self.stream.id().map_err(gone)?;
        let room = ready!(self.stream.session.poll_room(stream, task)).map_err(gone)?;
        let length = room.min(bytes.len());
        self.stream.session.offer(stream, &bytes[..length]).map_err(gone)?;
        Poll::Ready(Ok(length))
    }

    /// Ends the sending side.
    pub fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.stream.id().map_err(gone)?;
        Poll::Ready(self.stream.session.end_request(stream, None).map_err(gone))
    }
}

fn gone(_: StreamFailure) -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

impl OwnStream {
    fn id(&self) -> Result<StreamId, StreamFailure> {
        self.stream.ok_or(StreamFailure::Closed)
    }

    fn poll_response(
        &mut self,
        task: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<ResponsePiece, StreamFailure>> {
        self.session.poll_response(self.id()?, task, buffer)
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        if let Some(stream) = self.stream {
            self.session.forget(stream);
        }
        self.session.leave();
    }
}
