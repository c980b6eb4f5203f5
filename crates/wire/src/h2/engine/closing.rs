//! Closing of streams and connections.

use std::time::Duration;

use super::super::frame_write::{write_go_away, write_ping, write_reset};
use super::super::ready::ReadyStreams;
use super::super::{ConnectionError, EngineTurn, ErrorCode, H2Limits, H2Output, StreamId};
use super::{Engine, EngineStep, H2EngineState, Role};

/// Time limit for the reply to the first GOAWAY.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
const SHUTDOWN_PING: [u8; 8] = *b"shutdown";

/// Last stream in a GOAWAY that only announces another one (RFC 9113, section 6.8).
const ANY_STREAM: u32 = 0x7fff_ffff;

/// State of a graceful shutdown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Shutdown {
    #[default]
    None,
    /// First GOAWAY sent: no new streams are wanted, but those in flight are accepted.
    Announced(Duration),
    /// Second GOAWAY sent: streams after this one are not accepted.
    Final(u32),
}

impl Shutdown {
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::Final(_))
    }
}

/// Factor for the size of late DATA frames, relative to the window. Headers count, too, so a peer that sends small
/// frames needs more than its window.
const LATE_FRAMING: u64 = 2;

impl Engine {
    /// Resets a stream. Returns whether it was open.
    pub(crate) fn reset(&mut self, stream: StreamId, code: ErrorCode, turn: &mut EngineTurn<'_>) -> bool {
        let Some(slot) = self.streams.find(stream.0) else { return false };
        write_reset(&mut turn.output.bytes, stream.0, code);
        self.close(slot, true, turn);
        true
    }

    /// Removes a stream and returns its share of the connection's window.
    pub(super) fn close(&mut self, slot: u32, is_reset_by_us: bool, turn: &mut EngineTurn<'_>) {
        self.ready.remove(&mut self.streams, slot);
        let stream = self.streams.remove(slot, is_reset_by_us);
        if is_reset_by_us && !stream.is_received {
            // Before the peer learns of the reset, it may have used up the stream's window. For all streams together
            // this is at most the connection's window.
            let window_bytes = u64::from(stream.receive.available_bytes());
            let connection_bytes = u64::from(self.receive.available_bytes() + self.receive.waiting_bytes());
            self.late_bytes = (self.late_bytes + LATE_FRAMING * window_bytes).min(LATE_FRAMING * connection_bytes);
        }
        self.take(None, stream.receive.waiting_bytes(), turn);
    }

    /// Ends the connection because of an error of the peer.
    pub(crate) fn fail(&mut self, error: ConnectionError, output: &mut H2Output) {
        // An earlier GOAWAY cannot be revoked (RFC 9113, section 6.8).
        let last_stream = match self.shutdown {
            Shutdown::Final(last_stream) => last_stream,
            _ => self.last_peer_stream,
        };
        write_go_away(&mut output.bytes, last_stream, error);
        self.state = H2EngineState::Closed(error);
        self.streams.clear();
        self.ready = ReadyStreams::default();
        self.data = None;
        self.block = None;
    }

    /// Begins a graceful shutdown.
    pub(crate) fn shut_down(&mut self, turn: &mut EngineTurn<'_>) {
        if !matches!(self.shutdown, Shutdown::None) || matches!(self.state, H2EngineState::Closed(_)) {
            return;
        }
        if self.role == Role::Client {
            return self.shut_down_finally(turn.output);
        }
        write_go_away(&mut turn.output.bytes, ANY_STREAM, GRACEFUL);
        write_ping(&mut turn.output.bytes, SHUTDOWN_PING, false);
        self.shutdown = Shutdown::Announced(turn.now);
    }

    fn shut_down_finally(&mut self, output: &mut H2Output) {
        write_go_away(&mut output.bytes, self.last_peer_stream, GRACEFUL);
        self.shutdown = Shutdown::Final(self.last_peer_stream);
    }

    /// Returns whether nothing remains to do: no new streams are accepted, and none is open.
    pub(crate) fn is_drained(&self) -> bool {
        matches!(self.state, H2EngineState::Closed(_))
            || self.streams.len() == 0 && (self.shutdown.is_final() || self.peer_last_stream.is_some())
    }

    pub(super) fn on_ping_ack(&mut self, opaque: [u8; 8], turn: &mut EngineTurn<'_>) {
        // After one round trip all streams that were in flight have arrived.
        if matches!(self.shutdown, Shutdown::Announced(_)) && opaque == SHUTDOWN_PING {
            self.shut_down_finally(turn.output);
        }
    }

    pub(super) fn on_go_away(
        &mut self,
        last_stream: u32,
        code: ErrorCode,
        turn: &mut EngineTurn<'_>,
    ) -> Result<Option<EngineStep>, ConnectionError> {
        self.spend_idle_frame(turn)?;
        // Section 6.8: the id must not increase.
        if self.peer_last_stream.is_some_and(|before| last_stream > before) {
            return Err(ConnectionError::protocol("GOAWAY that takes back another"));
        }
        self.peer_last_stream = Some(last_stream);
        Ok(Some(EngineStep::GoAway { last_stream: StreamId(last_stream), code }))
    }

    /// Removes own streams that the peer will not answer (section 6.8).
    pub(crate) fn forget_after(&mut self, last_stream: StreamId, turn: &mut EngineTurn<'_>) {
        while let Some((id, slot)) = self.streams.last()
            && id > last_stream.0
        {
            self.close(slot, true, turn);
        }
    }

    /// Returns the latest time for [`Engine::handle_timeout`].
    pub(crate) fn next_timeout(&self, limits: &H2Limits) -> Option<Duration> {
        let settings = self.settings_sent_at.map(|at| at + limits.settings_timeout);
        let shutdown = match self.shutdown {
            Shutdown::Announced(at) => Some(at + SHUTDOWN_TIMEOUT),
            _ => None,
        };
        let stalled = self.stalled().map(|(_, since)| since + limits.stalled_timeout);
        let lingering = self.lingering().map(|(_, since)| since + limits.linger_timeout);
        [settings, shutdown, stalled, lingering].into_iter().flatten().min()
    }

    /// Handles expired timers. Call it until it returns `None`.
    pub(crate) fn handle_timeout(&mut self, turn: &mut EngineTurn<'_>) -> Option<EngineStep> {
        if matches!(self.state, H2EngineState::Closed(_)) {
            return None;
        }
        if self.settings_sent_at.is_some_and(|at| turn.now >= at + turn.limits.settings_timeout) {
            let error = ConnectionError::new(ErrorCode::SETTINGS_TIMEOUT, "SETTINGS not acknowledged");
            self.fail(error, turn.output);
            return Some(EngineStep::Closed(error));
        }
        if let Shutdown::Announced(at) = self.shutdown
            && turn.now >= at + SHUTDOWN_TIMEOUT
        {
            self.shut_down_finally(turn.output);
        }
        while let Some((answered, since)) = self.lingering()
            && turn.now >= since + turn.limits.linger_timeout
        {
            self.reset(answered, ErrorCode::NO_ERROR, turn);
        }
        let (stream, since) = self.stalled()?;
        if turn.now < since + turn.limits.stalled_timeout {
            return None;
        }
        let code = ErrorCode::ENHANCE_YOUR_CALM;
        self.reset(stream, code, turn);
        Some(EngineStep::Reset { stream, code, is_by_peer: false })
    }
}

const GRACEFUL: ConnectionError = ConnectionError::new(ErrorCode::NO_ERROR, "");
