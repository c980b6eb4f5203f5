//! Frames of the client.

use bytes::Bytes;

use crate::error::TransportError;
use crate::id::{Dir, QuicStreamId};

use super::flow::ReceiveFlow;
use super::receive::ReceiveSide;
use super::send::Waits;
use super::{StreamEvent, Streams};

impl Streams {
    /// Handles a STREAM frame. `data` may share the memory of its datagram.
    ///
    /// # Errors
    /// The client violates the protocol.
    pub(crate) fn on_stream(
        &mut self,
        id: QuicStreamId,
        offset: u64,
        data: Bytes,
        is_fin: bool,
    ) -> Result<(), TransportError> {
        self.receive(id, |side, window, flow| side.on_data(offset, data, is_fin, window, flow))
    }

    /// Handles a RESET_STREAM frame.
    ///
    /// # Errors
    /// The client violates the protocol.
    pub(crate) fn on_reset_stream(
        &mut self,
        id: QuicStreamId,
        code: u64,
        final_bytes: u64,
    ) -> Result<(), TransportError> {
        self.receive(id, |side, _, flow| side.on_reset(code, final_bytes, flow))
    }

    /// Opens a stream if it is new, and calls `handle` with its window and that of the connection. If `handle` returns
    /// true, the application must read.
    #[inline]
    fn receive(
        &mut self,
        id: QuicStreamId,
        handle: impl FnOnce(&mut ReceiveSide, u64, &mut ReceiveFlow) -> Result<bool, TransportError>,
    ) -> Result<(), TransportError> {
        self.open_to_receive(id)?;
        let Some(side) = self.tables.receive(id) else { return Ok(()) };
        let pieces = side.pieces();
        let is_readable = handle(side, self.window_bytes, &mut self.receive_flow)?;
        self.unread_pieces = self.unread_pieces + side.pieces() - pieces;
        self.controls.cancel_limit(id, side);
        let is_accepted = self.peers[id.dir() as usize].is_accepted(id.number());
        if is_readable && is_accepted && !std::mem::replace(&mut side.is_told, true) {
            self.events.push_back(StreamEvent::Readable { id });
        }
        if side.is_done() {
            self.on_receive_done(id);
        }
        Ok(())
    }

    /// Handles a STOP_SENDING frame. Resets the stream with the client's code (RFC 9000, section 3.5).
    ///
    /// # Errors
    /// The client violates the protocol.
    pub(crate) fn on_stop_sending(&mut self, id: QuicStreamId, code: u64) -> Result<(), TransportError> {
        self.open_to_send(id)?;
        if self.reset_side(id, code, true) {
            self.events.push_back(StreamEvent::Stopped { id, code });
        }
        Ok(())
    }

    /// Handles a MAX_DATA frame.
    pub(crate) fn on_max_data(&mut self, bytes: u64) {
        self.send_flow.raise_limit(bytes);
    }

    /// Handles a MAX_STREAM_DATA frame.
    ///
    /// # Errors
    /// The client violates the protocol.
    pub(crate) fn on_max_stream_data(&mut self, id: QuicStreamId, bytes: u64) -> Result<(), TransportError> {
        self.open_to_send(id)?;
        if let Some(side) = self.tables.send(id)
            && side.raise_limit(bytes)
        {
            // The event follows when the connection has room, too.
            side.waits = Waits::Connection;
            self.blocked.push_back(id);
        }
        Ok(())
    }

    /// Handles a MAX_STREAMS frame. A server opens no bidirectional streams.
    pub(crate) fn on_max_streams(&mut self, dir: Dir, count: u64) {
        if dir == Dir::Uni {
            self.own_max = self.own_max.max(count);
        }
    }

    /// Handles a STREAM_DATA_BLOCKED frame. Limits rise when the application reads, so that it only opens the stream.
    ///
    /// # Errors
    /// The client violates the protocol.
    pub(crate) fn on_stream_data_blocked(&mut self, id: QuicStreamId) -> Result<(), TransportError> {
        self.open_to_receive(id)
    }

    /// Opens a stream that the client sends on, if it is new.
    fn open_to_receive(&mut self, id: QuicStreamId) -> Result<(), TransportError> {
        if id.is_by_server() {
            return Err(TransportError::stream_state("frame for a stream that only the server sends on"));
        }
        self.open_by_peer(id)
    }

    /// Opens a stream that this side sends on, if it is new.
    fn open_to_send(&mut self, id: QuicStreamId) -> Result<(), TransportError> {
        match (id.is_by_server(), id.dir()) {
            (false, Dir::Bi) => self.open_by_peer(id),
            (true, Dir::Uni) if id.number() < self.own_opened => Ok(()),
            (true, _) => Err(TransportError::stream_state("frame for a stream that the server has not opened")),
            (false, Dir::Uni) => Err(TransportError::stream_state("frame for a stream that only the client sends on")),
        }
    }

    fn open_by_peer(&mut self, id: QuicStreamId) -> Result<(), TransportError> {
        if self.peers[id.dir() as usize].open(id.number())? {
            self.tables.insert(id, self.window_bytes, self.first_limits[0]);
        }
        Ok(())
    }
}
