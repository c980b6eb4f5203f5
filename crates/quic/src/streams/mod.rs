//! Streams of a connection (RFC 9000, sections 2 to 4).
//!
//! A server has thousands of short streams: a request in one frame, a response in a few. A bidirectional stream is one
//! entry of a table, without further allocations. Lost or reordered packets and long responses take more.

mod control;
mod flow;
mod frames;
mod packets;
mod receive;
mod schedule;
mod send;
mod sent_frame;
mod table;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;

use crate::codec::VARINT_MAX;
use crate::id::{Dir, QuicStreamId};
use crate::parameters::PeerParameters;

use control::{Controls, StreamControl};
use flow::{PeerStreams, ReceiveFlow, SendFlow};
use schedule::Schedule;
use send::Waits;
pub(crate) use sent_frame::SentFrame;
use table::Tables;

/// Limits of a connection's streams.
#[derive(Clone, Debug)]
pub struct StreamLimits {
    /// Bytes of a stream that the client may send before the application has read them.
    pub window_bytes: u64,
    /// Bytes of all streams that the client may send before the application has read them.
    pub connection_window_bytes: u64,
    /// Bidirectional streams that the client may have open.
    pub bidi_max: u64,
    /// Unidirectional streams that the client may have open.
    pub uni_max: u64,
    /// Bytes of all streams that are kept at most until the client acknowledges them.
    pub send_window_bytes: u64,
}

/// Event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// Streams can be accepted. Each must then be read.
    Opened {
        /// Direction of the streams.
        dir: Dir,
    },
    /// An accepted stream can be read, after a read was blocked.
    Readable {
        /// Stream that can be read.
        id: QuicStreamId,
    },
    /// A stream accepts data, after a write was blocked or has taken a part.
    Writable {
        /// Stream that can be written.
        id: QuicStreamId,
    },
    /// The client accepts nothing more on the stream. The stream was reset with this code (RFC 9000, section 3.5).
    Stopped {
        /// Stream that the client has stopped.
        id: QuicStreamId,
        /// Error code of the application.
        code: u64,
    },
}

/// Reason for which there is nothing to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// An event follows when more arrives.
    Blocked,
    /// The stream has ended, and was read wholly.
    Finished,
    /// The client has reset the stream with this code.
    Reset(u64),
    /// The stream was stopped, or its end was read before.
    Closed,
}

/// Reason for which nothing can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// An event follows when the stream can be written.
    Blocked,
    /// The client has stopped the stream with this code.
    Stopped(u64),
    /// The stream was finished or reset, or was never open.
    Closed,
}

/// Streams of a connection.
///
/// The application reads each stream until its end, or stops it. It finishes or resets the other direction. Otherwise,
/// the stream stays open.
pub struct Streams {
    tables: Tables,
    /// Streams that the client opens: bidirectional ones, then unidirectional ones.
    peers: [PeerStreams; 2],
    receive_flow: ReceiveFlow,
    send_flow: SendFlow,
    /// Window of each stream, in bytes.
    window_bytes: u64,
    /// Number of streams that this side has opened.
    own_opened: u64,
    /// Number of streams that this side may open.
    own_max: u64,
    /// First limits of the client for bidirectional streams that it opens, and for unidirectional ones of this side.
    first_limits: [u64; 2],
    /// Events, except those that flags of the streams or of the connection stand for.
    events: VecDeque<StreamEvent>,
    /// Streams that wait for room of the connection.
    blocked: VecDeque<QuicStreamId>,
    controls: Controls,
    schedule: Schedule,
    /// Send sides that are not wholly acknowledged.
    sending: usize,
    /// Pieces of data that the application has not read.
    unread_pieces: usize,
}

// Each idle connection has one.
const _: () = assert!(size_of::<Streams>() <= 512);

impl Streams {
    /// Makes the streams of a new connection.
    pub(crate) fn new(limits: &StreamLimits) -> Self {
        Self {
            tables: Tables::new(),
            peers: [PeerStreams::new(limits.bidi_max), PeerStreams::new(limits.uni_max)],
            receive_flow: ReceiveFlow::new(limits.connection_window_bytes),
            send_flow: SendFlow::new(limits.send_window_bytes),
            window_bytes: limits.window_bytes.min(VARINT_MAX),
            own_opened: 0,
            own_max: 0,
            first_limits: [0; 2],
            events: VecDeque::new(),
            blocked: VecDeque::new(),
            controls: Controls::default(),
            schedule: Schedule::default(),
            sending: 0,
            unread_pieces: 0,
        }
    }

    /// Applies the client's transport parameters.
    pub(crate) fn on_peer_parameters(&mut self, parameters: &PeerParameters) {
        self.send_flow.raise_limit(parameters.initial_max_data);
        self.own_max = self.own_max.max(parameters.initial_max_streams_uni);
        self.first_limits = [parameters.initial_max_stream_data_bidi_local, parameters.initial_max_stream_data_uni];
        // Usually, there are no streams yet.
        for stream in self.tables.exchanges.iter_mut() {
            stream.send.raise_limit(parameters.initial_max_stream_data_bidi_local);
        }
    }

    /// Next event of a stream. The application takes all.
    pub fn poll_event(&mut self) -> Option<StreamEvent> {
        for (peers, dir) in self.peers.iter_mut().zip([Dir::Bi, Dir::Uni]) {
            if std::mem::take(&mut peers.has_new) {
                return Some(StreamEvent::Opened { dir });
            }
        }
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        while !self.blocked.is_empty() && self.send_flow.is_open() {
            let id = self.blocked.pop_front()?;
            if let Some(side) = self.tables.send(id).filter(|side| side.waits == Waits::Connection) {
                side.waits = Waits::No;
                return Some(StreamEvent::Writable { id });
            }
        }
        None
    }

    /// Accepts the next stream that the client has opened.
    pub fn accept(&mut self, dir: Dir) -> Option<QuicStreamId> {
        let number = self.peers[dir as usize].accept()?;
        let id = QuicStreamId::of(number, dir, false);
        // A later stream may have opened this one.
        self.tables.insert(id, self.window_bytes, self.first_limits[0]);
        if let Some(side) = self.tables.receive(id) {
            side.is_told = true;
        }
        Some(id)
    }

    /// Opens a unidirectional stream, if the client permits.
    pub fn open_uni(&mut self) -> Option<QuicStreamId> {
        if self.own_opened >= self.own_max {
            return None;
        }
        let id = QuicStreamId::of(self.own_opened, Dir::Uni, true);
        self.own_opened += 1;
        self.tables.insert_own(id, self.first_limits[1]);
        Some(id)
    }

    /// Reads the next data of a stream: at most so many bytes, usually the data of a frame.
    ///
    /// # Errors
    /// There is nothing to read now, or the stream has ended.
    pub fn read(&mut self, id: QuicStreamId, bytes_max: usize) -> Result<Bytes, ReadEnd> {
        let side = self.tables.receive(id).ok_or(ReadEnd::Closed)?;
        let pieces = side.pieces();
        let was_due = side.is_limit_due;
        let read = side.read(bytes_max, self.window_bytes, &mut self.receive_flow);
        self.unread_pieces = self.unread_pieces + side.pieces() - pieces;
        if side.is_limit_due && !was_due {
            self.controls.push(id, StreamControl::Limit);
        }
        if side.is_done() {
            self.on_receive_done(id);
        }
        read
    }

    /// Lets the client send nothing more on a stream. Data that arrives later is dropped.
    pub fn stop(&mut self, id: QuicStreamId, code: u64) {
        let Some(side) = self.tables.receive(id) else { return };
        self.unread_pieces -= side.pieces();
        if side.stop(code, &mut self.receive_flow) {
            side.is_stop_due = true;
            self.controls.push(id, StreamControl::Stop);
        }
        self.controls.cancel_limit(id, side);
        if side.is_done() {
            self.on_receive_done(id);
        }
    }

    /// Writes to a stream as much as limits permit, and takes it off the chunks. Returns the number of bytes.
    ///
    /// # Errors
    /// Nothing can be written now, or nothing can be written any more.
    pub fn write(&mut self, id: QuicStreamId, chunks: &mut [Bytes]) -> Result<usize, WriteEnd> {
        let side = self.tables.send(id).ok_or(WriteEnd::Closed)?;
        side.check_open()?;
        let was_busy = side.is_busy();
        let room = self.send_flow.room();
        let written = side.push(chunks, room.min(side.room()));
        let is_blocked = chunks.iter().any(|chunk| !chunk.is_empty());
        if is_blocked && side.waits != Waits::Connection {
            side.waits = if side.room() == 0 { Waits::Stream } else { Waits::Connection };
            if side.waits == Waits::Connection {
                self.blocked.push_back(id);
            }
        }
        if written == 0 {
            return if is_blocked { Err(WriteEnd::Blocked) } else { Ok(0) };
        }
        self.send_flow.on_written(written);
        self.sending += usize::from(!was_busy);
        if !side.is_scheduled {
            side.is_scheduled = true;
            self.schedule.push(side.priority, id);
        }
        // The chunks are in memory, so that their length fits.
        Ok(written as usize)
    }

    /// Ends a stream after what was written.
    ///
    /// # Errors
    /// The client has stopped the stream, or the stream was finished or reset before.
    pub fn finish(&mut self, id: QuicStreamId) -> Result<(), WriteEnd> {
        let side = self.tables.send(id).ok_or(WriteEnd::Closed)?;
        let was_busy = side.is_busy();
        side.finish()?;
        self.sending += usize::from(!was_busy);
        if !side.is_scheduled {
            side.is_scheduled = true;
            self.schedule.push(side.priority, id);
        }
        Ok(())
    }

    /// Ends a stream with an error. Data that the client has not acknowledged is dropped.
    pub fn reset(&mut self, id: QuicStreamId, code: u64) {
        self.reset_side(id, code, false);
    }

    /// Resets a stream. Returns false if it was reset or has ended before.
    fn reset_side(&mut self, id: QuicStreamId, code: u64, is_by_peer: bool) -> bool {
        let Some(side) = self.tables.send(id) else { return false };
        let was_busy = side.is_busy();
        let is_reset = side.reset(code, is_by_peer, &mut self.send_flow);
        if is_reset {
            self.sending += usize::from(!was_busy);
            side.is_reset_due = true;
            if std::mem::take(&mut side.is_scheduled) {
                self.schedule.remove(side.priority, id);
            }
            self.controls.push(id, StreamControl::Reset);
        }
        is_reset
    }

    /// Sets the priority of a stream. Higher ones are sent first; streams begin with 0. The range is that of `i16`.
    pub fn set_priority(&mut self, id: QuicStreamId, priority: i32) {
        let priority = priority.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
        if let Some(side) = self.tables.send(id).filter(|side| side.priority != priority) {
            if side.is_scheduled {
                self.schedule.remove(side.priority, id);
                self.schedule.push(priority, id);
            }
            side.priority = priority;
        }
    }

    /// Sets the bytes of all streams that are kept at most until the client acknowledges them.
    pub fn set_send_window(&mut self, bytes: u64) {
        self.send_flow.set_window(bytes);
    }

    /// Bytes that are kept because the client has not acknowledged them, or bytes of the same stream before them.
    pub fn unacked_bytes(&self) -> u64 {
        self.send_flow.unacked()
    }

    /// Number of streams with data, an end or a reset that the client has not acknowledged.
    pub fn sending(&self) -> usize {
        self.sending
    }

    /// Memory that data which the application has not read may hold, in bytes: a bound from above. A small piece may hold its
    /// datagram, which has at most so many bytes.
    pub fn unread_memory(&self, datagram_bytes: usize) -> usize {
        let joined_bytes = self.unread_pieces * 2 * receive::JOINED_BYTES;
        let data_bytes = usize::try_from(self.receive_flow.unread()).unwrap_or(usize::MAX).min(joined_bytes);
        self.unread_pieces * (datagram_bytes + receive::PIECE_BYTES) + data_bytes
    }

    #[cfg(test)]
    fn unread_pieces(&self) -> usize {
        self.unread_pieces
    }

    /// Bytes that the client has sent and the application has not read, with gaps.
    pub fn unread_bytes(&self) -> u64 {
        self.receive_flow.unread()
    }

    /// Number of bidirectional streams that are open.
    pub fn exchanges(&self) -> usize {
        self.tables.exchanges.len()
    }

    /// Frees memory that an idle connection doesn't need.
    pub fn shrink(&mut self) {
        self.tables.shrink();
        self.events.shrink_to_fit();
        self.blocked.shrink_to_fit();
        self.controls.shrink();
        self.schedule.shrink();
    }

    /// Forgets the receive side of a stream.
    fn on_receive_done(&mut self, id: QuicStreamId) {
        // Its frames are not needed any more.
        self.controls.remove(id, StreamControl::Limit);
        self.controls.remove(id, StreamControl::Stop);
        self.on_side_done(id);
    }

    /// Forgets a stream if the other side has ended, too.
    fn on_side_done(&mut self, id: QuicStreamId) {
        if self.tables.end(id) && !id.is_by_server() {
            self.peers[id.dir() as usize].on_ended();
        }
    }
}
