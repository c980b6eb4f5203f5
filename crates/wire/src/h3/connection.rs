//! Common interface of both roles.

use std::time::Duration;

use super::engine::{H3Engine, H3Side};
use super::streams::Receive;
use super::{H3Error, H3ErrorCode, H3Event, H3Limits, H3PeerSettings, H3StreamGone, H3StreamId, H3Turn, Priority};
use crate::http::Fields;

/// HTTP/3 connection, without its transport. The role is [`H3Server`](super::H3Server) or [`H3Client`](super::H3Client).
#[derive(Debug)]
pub struct H3Connection<R> {
    pub(super) engine: H3Engine,
    pub(super) role: R,
}

/// Role of a connection.
pub trait H3Role: Default {
    /// Head of a message from the peer.
    type Head;

    /// True for a server.
    const IS_SERVER: bool;
}

impl<R: H3Role> H3Connection<R> {
    /// Creates a connection that has sent and received nothing.
    pub fn new(limits: &H3Limits) -> Self {
        let role = if R::IS_SERVER { H3Side::Server } else { H3Side::Client };
        Self { engine: H3Engine::new(role, limits), role: R::default() }
    }

    /// Writes the beginning of the control stream. Call it once.
    pub fn start(&mut self, turn: &mut H3Turn<'_>) {
        self.engine.start(turn);
    }

    /// Reports a stream that the peer has opened, of either kind. Returns [`H3Event::NeedInput`], or
    /// [`H3Event::Reset`] if the stream is rejected.
    pub fn accept(&mut self, stream: H3StreamId, turn: &mut H3Turn<'_>) -> H3Event<R::Head> {
        self.engine.accept(stream, turn)
    }

    /// Reports that the peer has sent RESET_STREAM. Returns [`H3Event::NeedInput`] if nothing follows from it.
    pub fn on_reset(&mut self, stream: H3StreamId, code: H3ErrorCode, turn: &mut H3Turn<'_>) -> H3Event<R::Head> {
        self.engine.on_reset(stream, code, turn)
    }

    /// Reports that the peer has sent STOP_SENDING. Returns [`H3Event::NeedInput`] if nothing follows from it. For a
    /// client, [`H3Event::StopSending`] ends only the request: the response may still arrive.
    pub fn on_stop_sending(
        &mut self,
        stream: H3StreamId,
        code: H3ErrorCode,
        turn: &mut H3Turn<'_>,
    ) -> H3Event<R::Head> {
        self.engine.on_stop_sending(stream, code, turn)
    }

    /// Returns a stream that no longer waits for the peer's QPACK encoder. Call it after input of a unidirectional
    /// stream, until it returns `None`.
    pub fn poll_unblocked(&mut self) -> Option<H3StreamId> {
        self.engine.decoder.poll_unblocked().map(H3StreamId)
    }

    /// Sets the limit of a message's content, if it depends on the handler. It applies to frames that arrive from now on.
    pub fn set_body_bytes_max(&mut self, stream: H3StreamId, body_bytes_max: u64) {
        if let Some(stream) = self.engine.streams.find(stream) {
            stream.body_bytes_max = body_bytes_max;
        }
    }

    /// Writes the header of a DATA frame; the caller appends as many bytes of content. With `is_last` the caller must
    /// end the stream after them; without content nothing is written.
    pub fn send_data_header(
        &mut self,
        stream: H3StreamId,
        content_bytes: u64,
        is_last: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), H3StreamGone> {
        self.engine.send_data_header(stream, content_bytes, is_last, out)
    }

    /// Writes trailers. The caller must end the stream after them.
    pub fn send_trailers(
        &mut self,
        stream: H3StreamId,
        fields: &Fields,
        out: &mut Vec<u8>,
        turn: &mut H3Turn<'_>,
    ) -> Result<(), H3StreamGone> {
        self.engine.send_fields(stream, std::iter::empty(), fields, true, out, turn)
    }

    /// Removes a stream that the caller resets, because it can't be completed. Returns whether it was open.
    pub fn reset(&mut self, stream: H3StreamId, turn: &mut H3Turn<'_>) -> bool {
        self.engine.reset(stream, turn.output)
    }

    /// Returns whether the peer's message on an open stream is incomplete. A server that has sent its response need not
    /// read the rest: it may send STOP_SENDING with H3_NO_ERROR (RFC 9114, section 4.1), and [reset](Self::reset) the
    /// stream here.
    pub fn is_receiving(&mut self, stream: H3StreamId) -> bool {
        self.engine.streams.find(stream).is_some_and(|stream| stream.receive != Receive::Ended)
    }

    /// Returns the priority of a stream; `None` if the stream is closed.
    pub fn priority(&mut self, stream: H3StreamId) -> Option<Priority> {
        self.engine.priority(stream)
    }

    /// Begins a graceful shutdown: requests in flight are still answered (RFC 9114, section 5.2).
    pub fn shut_down(&mut self, turn: &mut H3Turn<'_>) {
        self.engine.shut_down(turn);
    }

    /// Returns the latest time for [`H3Connection::handle_timeout`].
    pub fn next_timeout(&self) -> Option<Duration> {
        self.engine.next_timeout()
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, turn: &mut H3Turn<'_>) {
        self.engine.handle_timeout(turn);
    }

    /// Ends the connection immediately with an error of the caller's choice.
    pub fn fail(&mut self, error: H3Error) {
        let _: H3Event<R::Head> = self.engine.fail(error);
    }

    /// Returns whether the caller can close the connection after it has sent the output: no request is open, and none
    /// will be.
    pub fn is_drained(&self) -> bool {
        self.engine.is_drained()
    }

    /// Returns the number of open requests.
    pub fn open_streams(&self) -> usize {
        self.engine.open_streams()
    }

    /// Returns the peer's settings, once they have arrived.
    pub fn peer_settings(&self) -> Option<&H3PeerSettings> {
        self.engine.peer.as_ref()
    }

    /// Frees memory that is not needed while no stream is open.
    pub fn shrink(&mut self) {
        self.engine.shrink();
    }
}
