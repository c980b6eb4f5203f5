//! Receive sides of streams (RFC 9000, section 3.2).

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::codec::VARINT_MAX;
use crate::error::TransportError;

use super::ReadEnd;
use super::flow::{ReceiveFlow, is_limit_due};

/// Pieces of a stream that are kept as they arrived. More are joined, because each holds the memory of its datagram.
const PIECES_AS_RECEIVED: usize = 32;

/// Largest piece that is copied if it must wait. Otherwise, the piece would hold the memory of a much larger datagram.
const COPIED_BYTES_MAX: usize = 512;

/// Size from which pieces are not joined any more, so that bytes aren't copied again and again.
pub(super) const JOINED_BYTES: usize = 16 << 10;

/// Pieces that each stream may have. A peer that loses every second packet of a small window needs fewer.
const PIECES_MIN: usize = 256;

/// Bytes of window for each further piece: a piece and a gap of the size of a packet.
const WINDOW_BYTES_PER_PIECE: u64 = 2_048;

/// Receive side of a stream.
pub(super) struct ReceiveSide {
    /// Offset up to which the application has read, or data was dropped.
    read: u64,
    /// Highest offset that has arrived. Final size if `has_final`.
    end: u64,
    /// Limit that the peer knows, or that is in a packet.
    limit: u64,
    /// Data at `read`.
    piece: Bytes,
    more: Option<Box<ReceiveMore>>,
    state: ReceiveState,
    /// True if the final size is known.
    has_final: bool,
    /// True if the application knows that it must read.
    pub(super) is_told: bool,
    /// True if MAX_STREAM_DATA must be sent.
    pub(super) is_limit_due: bool,
    /// True if STOP_SENDING must be sent.
    pub(super) is_stop_due: bool,
}

/// Memory of a piece without its data, in bytes, with that of its allocation.
pub(super) const PIECE_BYTES: usize = size_of::<Piece>() + 32;

/// Rare parts of a receive side.
#[derive(Default)]
struct ReceiveMore {
    /// Data after `piece`: sorted, not empty, without overlaps. If `piece` is empty, the first begins after `read`.
    pieces: VecDeque<Piece>,
    /// Number of pieces at which they are joined.
    join_at: usize,
    /// Error code of the peer's reset, or of this side's STOP_SENDING.
    code: u64,
}

/// Data of a stream.
struct Piece {
    offset: u64,
    data: Bytes,
}

/// States of a receive side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveState {
    /// The application reads.
    Open,
    /// The application reads nothing more, and the final size is unknown.
    Stopped,
    /// The peer has reset the stream, and the application doesn't know.
    Reset,
    /// The application knows the end, or has stopped the stream and the final size is known.
    Done,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

impl ReceiveMore {
    /// Adds data, without the parts that are there.
    fn insert(&mut self, mut offset: u64, mut data: Bytes) {
        let mut index = match self.pieces.back() {
            Some(last) if last.end() > offset => self.pieces.partition_point(|piece| piece.end() <= offset),
            _ => self.pieces.len(),
        };
        while !data.is_empty() {
            let next = self.pieces.get(index).map_or(u64::MAX, |piece| piece.offset);
            let count = if next <= offset {
                let count = (self.pieces[index].end() - offset).min(data.len() as u64);
                data.advance(count as usize);
                count
            } else {
                let count = (next - offset).min(data.len() as u64);
                let mut part = data.split_to(count as usize);
                if part.len() <= COPIED_BYTES_MAX {
                    part = Bytes::copy_from_slice(&part);
                }
                self.pieces.insert(index, Piece { offset, data: part });
                count
            };
            offset += count;
            index += 1;
        }
    }

    /// Joins neighbors in memory of their own.
    fn join(&mut self) {
        let mut joined = VecDeque::with_capacity(self.pieces.len());
        let mut pieces = std::mem::take(&mut self.pieces).into_iter().peekable();
        while let Some(Piece { offset, data }) = pieces.next() {
            let mut end = offset + data.len() as u64;
            let mut run = Vec::new();
            while offset + (JOINED_BYTES as u64) > end
                && let Some(next) = pieces.next_if(|next| next.offset == end && next.data.len() < JOINED_BYTES)
            {
                if run.is_empty() {
                    run.extend_from_slice(&data);
                }
                end = next.end();
                run.extend_from_slice(&next.data);
            }
            let data = if run.is_empty() { data } else { Bytes::from(run.into_boxed_slice()) };
            joined.push_back(Piece { offset, data });
        }
        joined.shrink_to_fit();
        self.join_at = 2 * joined.len();
        self.pieces = joined;
    }
}

impl ReceiveSide {
    /// Makes a side that has received nothing and permits the peer a window.
    pub(super) fn new(limit: u64) -> Self {
        Self {
            read: 0,
            end: 0,
            limit,
            piece: Bytes::new(),
            more: None,
            state: ReceiveState::Open,
            has_final: false,
            is_told: false,
            is_limit_due: false,
            is_stop_due: false,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == ReceiveState::Done
    }

    /// Number of pieces of data that are kept.
    pub(super) fn pieces(&self) -> usize {
        usize::from(!self.piece.is_empty()) + self.more.as_ref().map_or(0, |more| more.pieces.len())
    }

    /// Handles data. Returns true if the application can read again. While it can read already, it knows.
    ///
    /// # Errors
    /// The peer violates a limit or the final size, or sends too many small parts.
    pub(super) fn on_data(
        &mut self,
        offset: u64,
        data: Bytes,
        is_fin: bool,
        window: u64,
        flow: &mut ReceiveFlow,
    ) -> Result<bool, TransportError> {
        let had_final = self.has_final;
        self.extend(offset + data.len() as u64, is_fin, flow)?;
        if self.state == ReceiveState::Open {
            let had_piece = !self.piece.is_empty();
            self.keep(offset, data, window)?;
            let has_new_end = !had_final && self.is_at_end();
            return Ok(has_new_end || !had_piece && !self.piece.is_empty());
        }
        self.drop_data(flow);
        if self.has_final && self.state == ReceiveState::Stopped {
            self.set_done();
        }
        Ok(false)
    }

    /// Handles a reset. Returns true if the application must know.
    ///
    /// # Errors
    /// The peer violates a limit or the final size.
    pub(super) fn on_reset(
        &mut self,
        code: u64,
        final_bytes: u64,
        flow: &mut ReceiveFlow,
    ) -> Result<bool, TransportError> {
        let is_whole = self.is_whole();
        self.extend(final_bytes, true, flow)?;
        match self.state {
            // RFC 9000, section 3.2: data that has arrived wholly may be delivered.
            ReceiveState::Open if is_whole => return Ok(false),
            ReceiveState::Open => {
                self.drop_data(flow);
                self.state = ReceiveState::Reset;
                self.more.get_or_insert_default().code = code;
                return Ok(true);
            }
            ReceiveState::Stopped => {
                self.drop_data(flow);
                self.set_done();
            }
            ReceiveState::Reset | ReceiveState::Done => {}
        }
        Ok(false)
    }

    /// Counts bytes up to an offset, which may be the final size.
    fn extend(&mut self, end: u64, is_final: bool, flow: &mut ReceiveFlow) -> Result<(), TransportError> {
        if end > VARINT_MAX {
            return Err(TransportError::flow_control("offset out of range"));
        }
        if self.has_final && (end > self.end || is_final && end != self.end) || is_final && end < self.end {
            return Err(TransportError::final_size("the final size of a stream has changed"));
        }
        if end > self.limit {
            return Err(TransportError::flow_control("more data than the stream permits"));
        }
        flow.on_received(end.saturating_sub(self.end))?;
        self.end = self.end.max(end);
        self.has_final |= is_final;
        Ok(())
    }

    /// Keeps data that was not read.
    fn keep(&mut self, offset: u64, mut data: Bytes, window: u64) -> Result<(), TransportError> {
        let next = self.read + self.piece.len() as u64;
        let known = next.saturating_sub(offset);
        if known >= data.len() as u64 {
            return Ok(());
        }
        data.advance(known as usize);
        let offset = offset + known;
        let is_first = offset == next && self.piece.is_empty();
        if is_first && self.more.as_ref().is_none_or(|more| more.pieces.is_empty()) {
            self.piece = data;
            return Ok(());
        }
        let more = self.more.get_or_insert_default();
        more.insert(offset, data);
        if more.pieces.len() > PIECES_AS_RECEIVED.max(more.join_at) {
            more.join();
            let pieces_max = PIECES_MIN.saturating_add((window / WINDOW_BYTES_PER_PIECE) as usize);
            if more.pieces.len() > pieces_max {
                // Permitted, but the gaps would cost more than the content.
                return Err(TransportError::internal("too many gaps in a stream"));
            }
        }
        self.refill();
        Ok(())
    }

    /// Takes the next data out of `more`, if it follows what was read.
    fn refill(&mut self) {
        if let Some(more) = &mut self.more
            && self.piece.is_empty()
            && more.pieces.front().is_some_and(|piece| piece.offset == self.read)
            && let Some(piece) = more.pieces.pop_front()
        {
            self.piece = piece.data;
            if more.pieces.is_empty() {
                // Most gaps are single.
                self.more = None;
            }
        }
    }

    /// True if the application has read everything.
    fn is_at_end(&self) -> bool {
        self.has_final && self.read == self.end
    }

    /// True if all data up to the final size has arrived.
    fn is_whole(&self) -> bool {
        let mut next = self.read + self.piece.len() as u64;
        for piece in self.more.iter().flat_map(|more| &more.pieces) {
            if piece.offset != next {
                return false;
            }
            next = piece.end();
        }
        self.has_final && next == self.end
    }

    /// Next data in order.
    pub(super) fn read(&mut self, bytes_max: usize, window: u64, flow: &mut ReceiveFlow) -> Result<Bytes, ReadEnd> {
        self.is_told = false;
        match self.state {
            ReceiveState::Open => {}
            ReceiveState::Reset => {
                let code = self.more.as_ref().map_or(0, |more| more.code);
                self.set_done();
                return Err(ReadEnd::Reset(code));
            }
            ReceiveState::Stopped | ReceiveState::Done => return Err(ReadEnd::Closed),
        }
        if self.is_at_end() {
            self.set_done();
            return Err(ReadEnd::Finished);
        }
        if self.piece.is_empty() || bytes_max == 0 {
            return Err(ReadEnd::Blocked);
        }
        let data = if self.piece.len() <= bytes_max {
            std::mem::take(&mut self.piece)
        } else {
            self.piece.split_to(bytes_max)
        };
        self.read += data.len() as u64;
        self.refill();
        flow.on_read(data.len() as u64);
        self.is_limit_due |= !self.has_final && is_limit_due(self.limit, self.larger_limit(window), window);
        Ok(data)
    }

    fn larger_limit(&self, window: u64) -> u64 {
        (self.read + window).min(VARINT_MAX)
    }

    /// Lets the application read nothing more. Returns true if STOP_SENDING must be sent.
    pub(super) fn stop(&mut self, code: u64, flow: &mut ReceiveFlow) -> bool {
        match self.state {
            ReceiveState::Open if !self.has_final => {
                self.drop_data(flow);
                self.state = ReceiveState::Stopped;
                self.more.get_or_insert_default().code = code;
                true
            }
            ReceiveState::Open | ReceiveState::Reset => {
                self.drop_data(flow);
                self.set_done();
                false
            }
            ReceiveState::Stopped | ReceiveState::Done => false,
        }
    }

    /// Drops data that was not read, and returns it to the window of the connection.
    fn drop_data(&mut self, flow: &mut ReceiveFlow) {
        self.piece = Bytes::new();
        if let Some(more) = &mut self.more {
            more.pieces = VecDeque::new();
        }
        flow.on_read(self.end - self.read);
        self.read = self.end;
    }

    fn set_done(&mut self) {
        self.state = ReceiveState::Done;
        self.piece = Bytes::new();
        self.more = None;
    }

    /// True while MAX_STREAM_DATA is of use to the peer.
    pub(super) fn wants_data(&self) -> bool {
        self.state == ReceiveState::Open && !self.has_final
    }

    /// Raises the limit. Returns it for a MAX_STREAM_DATA frame.
    pub(super) fn raise(&mut self, window: u64) -> u64 {
        self.limit = self.limit.max(self.larger_limit(window));
        self.limit
    }

    /// Error code of STOP_SENDING, while it is of use.
    pub(super) fn stop_code(&self) -> Option<u64> {
        let more = self.more.as_ref()?;
        (self.state == ReceiveState::Stopped).then_some(more.code)
    }

    /// Frees memory that isn't needed now.
    pub(super) fn shrink(&mut self) {
        if self.state == ReceiveState::Open && self.more.as_ref().is_some_and(|more| more.pieces.is_empty()) {
            self.more = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 64 << 10;

    fn side() -> (ReceiveSide, ReceiveFlow) {
        (ReceiveSide::new(WINDOW), ReceiveFlow::new(4 * WINDOW))
    }

    fn data(range: std::ops::Range<u64>) -> Bytes {
        range.map(|offset| (offset % 251) as u8).collect::<Vec<_>>().into()
    }

    fn read_all(side: &mut ReceiveSide, flow: &mut ReceiveFlow) -> Vec<u8> {
        let mut all = Vec::new();
        while let Ok(piece) = side.read(usize::MAX, WINDOW, flow) {
            all.extend_from_slice(&piece);
        }
        all
    }

    #[test]
    fn request_in_one_frame_is_shared() {
        let (mut side, mut flow) = side();
        let request = data(0..40);
        assert!(side.on_data(0, request.clone(), true, WINDOW, &mut flow).unwrap());
        let read = side.read(100, WINDOW, &mut flow).unwrap();
        assert_eq!(read.as_ptr(), request.as_ptr());
        assert_eq!(side.read(100, WINDOW, &mut flow), Err(ReadEnd::Finished));
        assert!(side.is_done() && side.more.is_none());
        assert_eq!(flow.unread(), 0);
    }

    #[test]
    fn parts_are_read_in_order_and_once() {
        let (mut side, mut flow) = side();
        for (range, is_readable) in [
            (50..60, false),
            (20..30, false),
            (10..55, false),
            (58..70, false),
            (0..5, true),
            (0..12, false),
            (3..9, false),
        ] {
            assert_eq!(
                side.on_data(range.start, data(range.clone()), false, WINDOW, &mut flow).unwrap(),
                is_readable,
                "{range:?}"
            );
        }
        assert_eq!(side.read(7, WINDOW, &mut flow).unwrap(), data(0..5));
        assert_eq!(side.read(7, WINDOW, &mut flow).unwrap(), data(5..10));
        assert_eq!(side.read(7, WINDOW, &mut flow).unwrap(), data(10..17));
        assert_eq!(read_all(&mut side, &mut flow), data(17..70));
        assert!(!side.on_data(30, data(30..40), false, WINDOW, &mut flow).unwrap());
        assert!(side.on_data(70, Bytes::new(), true, WINDOW, &mut flow).unwrap());
        assert_eq!(side.read(7, WINDOW, &mut flow), Err(ReadEnd::Finished));
    }

    #[test]
    fn final_size_does_not_change() {
        let code = |result: Result<bool, TransportError>| result.unwrap_err().code;
        let (mut side, mut flow) = side();
        side.on_data(10, data(10..20), true, WINDOW, &mut flow).unwrap();
        let side = &mut side;
        let flow = &mut flow;
        assert_eq!(code(side.on_data(15, data(15..21), false, WINDOW, flow)), TransportError::FINAL_SIZE_ERROR);
        assert_eq!(code(side.on_data(0, data(0..5), true, WINDOW, flow)), TransportError::FINAL_SIZE_ERROR);
        assert_eq!(code(side.on_reset(1, 19, flow)), TransportError::FINAL_SIZE_ERROR);
        assert_eq!(code(side.on_reset(1, 21, flow)), TransportError::FINAL_SIZE_ERROR);
        side.on_data(10, data(10..20), true, WINDOW, flow).unwrap();
        assert!(side.on_reset(1, 20, flow).unwrap());
        assert_eq!(side.read(5, WINDOW, flow), Err(ReadEnd::Reset(1)));
        let mut other = ReceiveSide::new(WINDOW);
        other.on_data(10, data(10..20), false, WINDOW, flow).unwrap();
        assert_eq!(code(other.on_data(0, data(0..5), true, WINDOW, flow)), TransportError::FINAL_SIZE_ERROR);
        assert_eq!(code(other.on_reset(1, 19, flow)), TransportError::FINAL_SIZE_ERROR);
    }

    #[test]
    fn reset_after_all_data_changes_nothing() {
        let (mut side, mut flow) = side();
        side.on_data(10, data(10..20), true, WINDOW, &mut flow).unwrap();
        side.on_data(0, data(0..10), false, WINDOW, &mut flow).unwrap();
        assert!(!side.on_reset(1, 20, &mut flow).unwrap());
        assert_eq!(read_all(&mut side, &mut flow), data(0..20));
    }

    #[test]
    fn limits_bound_the_peer_and_rise() {
        let (mut side, mut flow) = side();
        let last = WINDOW - 1;
        side.on_data(last, data(last..WINDOW), false, WINDOW, &mut flow).unwrap();
        for result in [
            side.on_data(WINDOW, data(0..1), false, WINDOW, &mut flow),
            side.on_reset(0, WINDOW + 1, &mut flow),
            side.on_data(VARINT_MAX, data(0..1), false, WINDOW, &mut flow),
        ] {
            assert_eq!(result.unwrap_err().code, TransportError::FLOW_CONTROL_ERROR);
        }
        side.on_data(0, data(0..WINDOW), false, WINDOW, &mut flow).unwrap();
        side.read(WINDOW as usize / 8 - 1, WINDOW, &mut flow).unwrap();
        assert!(!side.is_limit_due);
        side.read(1, WINDOW, &mut flow).unwrap();
        assert!(side.is_limit_due);
        assert_eq!(side.raise(WINDOW), WINDOW + WINDOW / 8);
        side.on_data(WINDOW, data(0..WINDOW / 8), false, WINDOW, &mut flow).unwrap();
    }

    #[test]
    fn small_pieces_do_not_hold_their_datagrams() {
        let (mut side, mut flow) = side();
        let datagram = data(0..1400);
        // Every second byte, then the rest. Without joins, there would be 2,000 pieces.
        for offset in (1..400).step_by(2) {
            side.on_data(offset, datagram.slice(offset as usize..offset as usize + 1), false, WINDOW, &mut flow)
                .unwrap();
        }
        assert_eq!(side.pieces(), 200);
        for piece in &side.more.as_ref().unwrap().pieces {
            assert!(!datagram.as_ptr_range().contains(&piece.data.as_ptr()));
        }
        for offset in (2..400).step_by(2) {
            side.on_data(offset, datagram.slice(offset as usize..offset as usize + 1), false, WINDOW, &mut flow)
                .unwrap();
        }
        side.on_data(400, datagram.slice(400..401), false, WINDOW, &mut flow).unwrap();
        side.more.as_mut().unwrap().join();
        assert_eq!(side.pieces(), 1);
        side.on_data(0, datagram.slice(0..1), false, WINDOW, &mut flow).unwrap();
        assert_eq!(read_all(&mut side, &mut flow), data(0..401));
    }

    #[test]
    fn full_packets_behind_a_gap_are_joined() {
        let window = 4 << 20;
        let (mut side, mut flow) = (ReceiveSide::new(window), ReceiveFlow::new(window));
        for offset in (1200..window - 1200).step_by(1200) {
            side.on_data(offset, data(offset..offset + 1200), false, window, &mut flow).unwrap();
            assert!(side.pieces() <= 2 * PIECES_AS_RECEIVED + offset as usize / JOINED_BYTES * 2);
        }
        side.on_data(0, data(0..1200), false, window, &mut flow).unwrap();
        let all = read_all(&mut side, &mut flow);
        assert!(all == data(0..all.len() as u64) && all.len() > 4_000_000);
    }

    #[test]
    fn too_many_gaps_are_an_error() {
        let (mut side, mut flow) = side();
        let mut result = Ok(false);
        let mut gaps = 0;
        for offset in (1..WINDOW).step_by(2) {
            result = side.on_data(offset, data(0..1), false, WINDOW, &mut flow);
            if result.is_err() {
                break;
            }
            gaps += 1;
        }
        assert_eq!(result.unwrap_err().code, TransportError::INTERNAL_ERROR);
        assert!((256..1024).contains(&gaps), "{gaps}");
    }

    #[test]
    fn stopped_streams_keep_nothing_and_count() {
        let (mut side, mut flow) = side();
        side.on_data(10, data(10..20), false, WINDOW, &mut flow).unwrap();
        assert!(side.stop(7, &mut flow));
        assert_eq!((side.pieces(), flow.unread(), side.stop_code()), (0, 0, Some(7)));
        assert!(!side.stop(8, &mut flow));
        assert!(!side.on_data(20, data(20..30), false, WINDOW, &mut flow).unwrap());
        assert_eq!((side.pieces(), flow.unread()), (0, 0));
        assert_eq!(side.read(5, WINDOW, &mut flow), Err(ReadEnd::Closed));
        assert!(side.on_data(WINDOW, data(0..1), false, WINDOW, &mut flow).is_err());
        assert!(!side.on_reset(3, 500, &mut flow).unwrap());
        assert!(side.is_done() && side.stop_code().is_none());
        assert_eq!(flow.unread(), 0);
        // The final size is known, so that the peer needs no frame.
        let mut other = ReceiveSide::new(WINDOW);
        other.on_data(10, data(10..20), true, WINDOW, &mut flow).unwrap();
        assert!(!other.stop(7, &mut flow));
        assert!(other.is_done());
        assert_eq!(flow.unread(), 0);
    }
}
