//! Closing of streams and connections.

use std::time::Duration;

use super::super::frame::{kind, write_number};
use super::super::streams::Receive;
use super::super::{H3Error, H3ErrorCode, H3Event, H3Output, H3StreamId, H3Turn};
use super::control::closed_critical_stream;
use super::{H3Engine, H3Side, on_decoder_stream};

/// Time from the first GOAWAY to the second: a round trip, so that requests in flight arrive.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Id in a GOAWAY that only announces another one (RFC 9114, section 5.2).
const ANY_STREAM: u64 = (1 << 62) - 4;

/// State of a graceful shutdown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum H3Shutdown {
    #[default]
    None,
    /// First GOAWAY sent: no new streams are wanted, but those in flight are accepted.
    Announced(Duration),
    /// Second GOAWAY sent: streams from this one on are not accepted.
    Final(u64),
}

impl H3Shutdown {
    /// Returns whether the stream is not accepted any more.
    pub(super) fn is_final_before(self, stream: u64) -> bool {
        matches!(self, Self::Final(first) if stream >= first)
    }
}

impl H3Engine {
    /// Ends the connection because of an error of the peer.
    pub(crate) fn fail<Head>(&mut self, error: H3Error) -> H3Event<Head> {
        let error = *self.closed.get_or_insert(error);
        self.streams.clear();
        self.incoming = Vec::new();
        self.early_priorities = Vec::new();
        H3Event::Closed(error)
    }

    /// Removes a stream that this side resets. Returns whether it was open.
    pub(crate) fn reset(&mut self, id: H3StreamId, output: &mut H3Output) -> bool {
        let Some(stream) = self.streams.remove(id) else { return false };
        if !matches!(stream.receive, Receive::Ended | Receive::Skip) {
            self.cancel_sections(id, output);
        }
        true
    }

    /// Tells the peer's encoder that no more sections of the stream are decoded (RFC 9204, section 2.2.2.2).
    pub(super) fn cancel_sections(&mut self, id: H3StreamId, output: &mut H3Output) {
        let decoder = &mut self.decoder;
        on_decoder_stream(&mut self.has_decoder_stream, output, |out| decoder.cancel(id.0, out));
    }

    /// Handles RESET_STREAM.
    pub(crate) fn on_reset<Head>(&mut self, id: H3StreamId, code: H3ErrorCode, turn: &mut H3Turn<'_>) -> H3Event<Head> {
        if id.is_unidirectional() {
            let index = self.incoming.iter().position(|incoming| incoming.id == id.0);
            let removed = index.map(|index| self.incoming.remove(index));
            let is_critical = removed.is_some_and(|incoming| incoming.kind.is_critical());
            return if is_critical { self.fail(closed_critical_stream()) } else { H3Event::NeedInput };
        }
        self.on_abort(id, code, turn)
    }

    /// Handles STOP_SENDING.
    pub(crate) fn on_stop_sending<Head>(
        &mut self,
        id: H3StreamId,
        code: H3ErrorCode,
        turn: &mut H3Turn<'_>,
    ) -> H3Event<Head> {
        // All unidirectional streams of this side are critical.
        if id.is_unidirectional() {
            return self.fail(closed_critical_stream());
        }
        // RFC 9114, section 4.1: a server may respond without the rest of the request.
        if self.role == H3Side::Client
            && let Some(stream) = self.streams.find(id)
        {
            stream.is_sent = true;
            let is_ended = stream.receive == Receive::Ended;
            if is_ended {
                self.streams.remove(id);
            }
            return H3Event::StopSending { stream: id, code };
        }
        self.on_abort(id, code, turn)
    }

    fn on_abort<Head>(&mut self, id: H3StreamId, code: H3ErrorCode, turn: &mut H3Turn<'_>) -> H3Event<Head> {
        if let Some(error) = self.closed {
            return H3Event::Closed(error);
        }
        if !self.reset(id, turn.output) {
            return H3Event::NeedInput;
        }
        // A client needs no budget, because it has opened the stream itself.
        if self.role == H3Side::Server && !self.spent.peer_resets.spend(turn.now, turn.limits.peer_resets) {
            return self.fail(H3Error::too_much("too many streams reset"));
        }
        H3Event::Reset { stream: id, code, is_by_peer: true }
    }

    pub(super) fn on_go_away<Head>(&mut self, first: u64, turn: &mut H3Turn<'_>) -> Result<H3Event<Head>, H3Error> {
        // Section 7.2.6: servers send the id of a request stream.
        if self.role == H3Side::Client && !first.is_multiple_of(4) {
            return Err(H3Error::id("GOAWAY with an id that is no request"));
        }
        // Section 5.2: the id must not increase.
        if self.peer_first_unhandled.is_some_and(|before| first > before) {
            return Err(H3Error::id("GOAWAY that takes back another"));
        }
        self.spend_idle_frame(turn)?;
        self.peer_first_unhandled = Some(first);
        while self.role == H3Side::Client
            && let Some(last) = self.streams.last().filter(|last| last.0 >= first)
        {
            self.reset(last, turn.output);
        }
        Ok(H3Event::GoAway { first_unhandled: first })
    }

    /// Begins a graceful shutdown.
    pub(crate) fn shut_down(&mut self, turn: &mut H3Turn<'_>) {
        if !matches!(self.shutdown, H3Shutdown::None) || self.closed.is_some() {
            return;
        }
        if self.role == H3Side::Client {
            // No push was ever accepted.
            write_number(&mut turn.output.control, kind::GOAWAY, 0);
            self.shutdown = H3Shutdown::Final(0);
            return;
        }
        write_number(&mut turn.output.control, kind::GOAWAY, ANY_STREAM);
        self.shutdown = H3Shutdown::Announced(turn.now);
    }

    /// Returns the latest time for [`H3Engine::handle_timeout`].
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        match self.shutdown {
            H3Shutdown::Announced(at) if self.closed.is_none() => Some(at + SHUTDOWN_TIMEOUT),
            _ => None,
        }
    }

    /// Completes a graceful shutdown when its time has come.
    pub(crate) fn handle_timeout(&mut self, turn: &mut H3Turn<'_>) {
        if self.next_timeout().is_some_and(|at| turn.now >= at) {
            write_number(&mut turn.output.control, kind::GOAWAY, self.next_peer_stream);
            self.shutdown = H3Shutdown::Final(self.next_peer_stream);
        }
    }

    /// Returns whether nothing remains to do: no new streams are accepted, and none is open.
    pub(crate) fn is_drained(&self) -> bool {
        // Section 5.2: GOAWAY of a client says nothing of its requests.
        let is_refused = self.role == H3Side::Client && self.peer_first_unhandled.is_some();
        let is_ending = matches!(self.shutdown, H3Shutdown::Final(_)) || is_refused;
        self.closed.is_some() || self.streams.len() == 0 && is_ending
    }
}
