//! Send sides of streams (RFC 9000, section 3.1).

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::frame::{stream_header_bytes, write_stream_header};
use crate::id::QuicStreamId;
use crate::ranges::RangeSet;

use super::sent_frame::SentFrame;
use super::{WriteEnd, flow::SendFlow};

/// Bytes of data at least in a frame that doesn't carry all that the stream has. Smaller frames cost more than the
/// packet's rest.
const PART_BYTES_MIN: usize = 16;

/// Send side of a stream.
pub(super) struct SendSide {
    /// Offset up to which the peer has acknowledged everything.
    start: u64,
    /// Offset up to which data was sent once.
    next: u64,
    /// Offset up to which the application has written.
    end: u64,
    /// Limit of the peer.
    limit: u64,
    /// Data from `start` on. If the first is empty, there is no data. If the second is empty, `more` has none.
    chunks: [Bytes; 2],
    more: Option<Box<SendMore>>,
    pub(super) priority: i16,
    state: SendState,
    /// True if a frame with the end must be sent.
    is_fin_due: bool,
    /// True if the peer has acknowledged the end.
    is_fin_acked: bool,
    /// True if RESET_STREAM must be sent.
    pub(super) is_reset_due: bool,
    /// True if the stream is scheduled.
    pub(super) is_scheduled: bool,
    /// Reason for which the application awaits that it can write.
    pub(super) waits: Waits,
}

/// Rare parts of a send side.
#[derive(Default)]
struct SendMore {
    /// Data after the first two chunks.
    chunks: VecDeque<Chunk>,
    /// Ranges after `start` that the peer has acknowledged.
    acked: RangeSet,
    /// Ranges that must be sent again.
    lost: RangeSet,
    /// Error code of the reset.
    code: u64,
}

/// Data of a stream.
struct Chunk {
    offset: u64,
    data: Bytes,
}

/// States of a send side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    /// The application may write.
    Open,
    /// The application has finished the stream.
    Finished,
    /// The application has reset the stream.
    Reset,
    /// The peer has stopped the stream, and it was reset therefore.
    Stopped,
    /// The peer has acknowledged the end or the reset.
    Done,
}

/// Reasons for which an application awaits that it can write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// The application doesn't wait.
    No,
    /// The limit of the stream is reached.
    Stream,
    /// The stream is in the queue for room of the connection.
    Connection,
}

impl SendSide {
    /// Makes a side that has sent nothing.
    pub(super) fn new(limit: u64) -> Self {
        Self {
            start: 0,
            next: 0,
            end: 0,
            limit,
            chunks: [Bytes::new(), Bytes::new()],
            more: None,
            priority: 0,
            state: SendState::Open,
            is_fin_due: false,
            is_fin_acked: false,
            is_reset_due: false,
            is_scheduled: false,
            waits: Waits::No,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == SendState::Done
    }

    /// True if the peer must acknowledge something.
    pub(super) fn is_busy(&self) -> bool {
        match self.state {
            SendState::Open => self.start < self.end,
            SendState::Finished | SendState::Reset | SendState::Stopped => true,
            SendState::Done => false,
        }
    }

    /// Bytes that the limit of the stream permits to write.
    pub(super) fn room(&self) -> u64 {
        self.limit.saturating_sub(self.end)
    }

    /// Raises the limit. Returns true if the application waits for that.
    pub(super) fn raise_limit(&mut self, limit: u64) -> bool {
        self.limit = self.limit.max(limit);
        self.waits == Waits::Stream && self.room() > 0
    }

    /// Fails unless the application may write.
    pub(super) fn check_open(&self) -> Result<(), WriteEnd> {
        match self.state {
            SendState::Open => Ok(()),
            SendState::Stopped => Err(WriteEnd::Stopped(self.reset_code())),
            SendState::Finished | SendState::Reset | SendState::Done => Err(WriteEnd::Closed),
        }
    }

    /// Takes at most so many bytes off the chunks. Returns their number.
    pub(super) fn push(&mut self, chunks: &mut [Bytes], bytes_max: u64) -> u64 {
        let begin = self.end;
        for chunk in chunks.iter_mut().filter(|chunk| !chunk.is_empty()) {
            let room = bytes_max - (self.end - begin);
            if room == 0 {
                break;
            }
            let data = if chunk.len() as u64 <= room { std::mem::take(chunk) } else { chunk.split_to(room as usize) };
            let offset = self.end;
            self.end += data.len() as u64;
            if self.chunks[0].is_empty() {
                self.chunks[0] = data;
            } else if self.chunks[1].is_empty() {
                self.chunks[1] = data;
            } else {
                self.more.get_or_insert_default().chunks.push_back(Chunk { offset, data });
            }
        }
        self.end - begin
    }

    /// Ends the stream after what was written.
    pub(super) fn finish(&mut self) -> Result<(), WriteEnd> {
        self.check_open()?;
        self.state = SendState::Finished;
        self.is_fin_due = true;
        Ok(())
    }

    /// Drops all data. Returns false if the stream has been reset or has ended.
    pub(super) fn reset(&mut self, code: u64, is_by_peer: bool, flow: &mut SendFlow) -> bool {
        if !matches!(self.state, SendState::Open | SendState::Finished) {
            return false;
        }
        flow.on_dropped(self.end - self.start);
        flow.on_withdrawn(self.end - self.next);
        (self.start, self.end) = (self.next, self.next);
        self.chunks = [Bytes::new(), Bytes::new()];
        **self.more.get_or_insert_default() = SendMore { code, ..SendMore::default() };
        self.state = if is_by_peer { SendState::Stopped } else { SendState::Reset };
        self.is_fin_due = false;
        self.waits = Waits::No;
        true
    }

    /// Error code of the reset.
    pub(super) fn reset_code(&self) -> u64 {
        self.more.as_ref().map_or(0, |more| more.code)
    }

    /// Final size of a stream that was reset.
    pub(super) fn final_bytes(&self) -> u64 {
        self.next
    }

    /// True if the stream was reset, and the peer hasn't acknowledged that.
    pub(super) fn is_reset(&self) -> bool {
        matches!(self.state, SendState::Reset | SendState::Stopped)
    }

    /// Handles that the peer has acknowledged the reset.
    pub(super) fn on_reset_acked(&mut self) {
        if self.is_reset() {
            self.state = SendState::Done;
            self.more = None;
        }
    }

    /// True if data or the end must be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.next < self.end || self.is_fin_due || self.more.as_ref().is_some_and(|more| !more.lost.is_empty())
    }

    /// Appends a STREAM frame to `out`, up to the length `limit`. Returns `None` if there is no room for it.
    ///
    /// A frame that would leave a byte or two is put at the end, after PADDING and without its length.
    pub(super) fn write_frame(&mut self, id: QuicStreamId, out: &mut Vec<u8>, limit: usize) -> Option<SentFrame> {
        let lost = self.more.as_ref().and_then(|more| more.lost.first());
        let range = lost.clone().unwrap_or(self.next..self.end);
        let room = limit.saturating_sub(out.len());
        let header_bytes = stream_header_bytes(id, range.start, None);
        let space = room.checked_sub(header_bytes)?;
        let available = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(usize::from(u16::MAX));
        let data_bytes = available.min(space);
        if data_bytes < available && data_bytes < PART_BYTES_MIN {
            return None;
        }
        let end = range.start + data_bytes as u64;
        let is_fin = self.state == SendState::Finished && end == self.end;
        let with_length = stream_header_bytes(id, range.start, Some(data_bytes)) + data_bytes;
        let rest = space - data_bytes;
        if rest > 0 && with_length <= room {
            write_stream_header(out, id, range.start, Some(data_bytes), is_fin);
        } else {
            out.resize(out.len() + rest, 0);
            write_stream_header(out, id, range.start, None, is_fin);
        }
        self.append_data(range.start, data_bytes, out);
        match &mut self.more {
            Some(more) if lost.is_some() => more.lost.remove(range.start..end),
            _ => self.next = end,
        }
        if is_fin {
            self.is_fin_due = false;
        }
        Some(SentFrame::Stream { id, offset: range.start, bytes: data_bytes as u16, is_fin })
    }

    /// Appends data that the stream keeps.
    fn append_data(&self, offset: u64, mut count: usize, out: &mut Vec<u8>) {
        let mut skipped = offset - self.start;
        for chunk in &self.chunks {
            let length = chunk.len() as u64;
            if skipped < length && count > 0 {
                let part = &chunk[skipped as usize..];
                let part = &part[..part.len().min(count)];
                out.extend_from_slice(part);
                count -= part.len();
                skipped = 0;
            } else {
                skipped = skipped.saturating_sub(length);
            }
        }
        let Some(more) = self.more.as_ref().filter(|_| count > 0) else { return };
        let first = more.chunks.front().map_or(0, |chunk| chunk.offset);
        let from = first + skipped;
        let index = more.chunks.partition_point(|chunk| chunk.offset + chunk.data.len() as u64 <= from);
        for chunk in more.chunks.range(index..) {
            let part = &chunk.data[from.saturating_sub(chunk.offset) as usize..];
            let part = &part[..part.len().min(count)];
            out.extend_from_slice(part);
            count -= part.len();
            if count == 0 {
                break;
            }
        }
        debug_assert_eq!(count, 0);
    }

    /// Handles an acknowledgment of a STREAM frame.
    pub(super) fn on_acked(&mut self, offset: u64, bytes: u16, is_fin: bool, flow: &mut SendFlow) {
        if !matches!(self.state, SendState::Open | SendState::Finished) {
            return;
        }
        let range = offset.max(self.start)..offset + u64::from(bytes);
        if !range.is_empty() {
            if range.start == self.start {
                self.drop_to(range.end, flow);
            } else {
                let more = self.more.get_or_insert_default();
                more.lost.remove(range.clone());
                more.acked.insert(range);
            }
        }
        if is_fin {
            self.is_fin_acked = true;
            self.is_fin_due = false;
        }
        if self.is_fin_acked && self.start == self.end {
            self.state = SendState::Done;
            self.more = None;
        }
    }

    /// Drops data up to an offset, and what is acknowledged after it.
    fn drop_to(&mut self, mut to: u64, flow: &mut SendFlow) {
        if let Some(more) = &mut self.more {
            while let Some(range) = more.acked.first().filter(|range| range.start <= to) {
                to = to.max(range.end);
                more.acked.pop_first();
            }
            more.lost.remove_below(to);
        }
        let mut count = to - self.start;
        flow.on_dropped(count);
        self.start = to;
        while count > 0 {
            let first = &mut self.chunks[0];
            let length = first.len() as u64;
            if count < length {
                first.advance(count as usize);
                return;
            }
            count -= length;
            self.chunks.swap(0, 1);
            self.chunks[1] = match self.more.as_mut().and_then(|more| more.chunks.pop_front()) {
                Some(chunk) => chunk.data,
                None => Bytes::new(),
            };
        }
    }

    /// Handles a loss of a STREAM frame. Returns true if something must be sent again.
    pub(super) fn on_lost(&mut self, offset: u64, bytes: u16, is_fin: bool) -> bool {
        if !matches!(self.state, SendState::Open | SendState::Finished) {
            return false;
        }
        let range = offset.max(self.start)..offset + u64::from(bytes);
        if !range.is_empty() {
            let SendMore { acked, lost, .. } = &mut **self.more.get_or_insert_default();
            for gap in acked.gaps(range) {
                lost.insert(gap);
            }
        }
        self.is_fin_due |= is_fin && !self.is_fin_acked;
        self.has_unsent()
    }

    /// Frees memory that isn't needed now.
    pub(super) fn shrink(&mut self) {
        let is_unused = |more: &SendMore| more.chunks.is_empty() && more.acked.is_empty() && more.lost.is_empty();
        if !self.is_reset() && self.more.as_deref().is_some_and(is_unused) {
            self.more = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_of_two_chunks_needs_no_allocation() {
        let mut flow = SendFlow::new(1 << 20);
        flow.raise_limit(1 << 20);
        let mut side = SendSide::new(1 << 20);
        let chunks = [Bytes::from(vec![1; 100]), Bytes::from(vec![2; 5000])];
        assert_eq!(side.push(&mut chunks.clone(), 1 << 20), 5100);
        flow.on_written(5100);
        side.finish().unwrap();
        assert_eq!(side.chunks[1].as_ptr(), chunks[1].as_ptr(), "shared");
        let mut sent = Vec::new();
        while side.has_unsent() {
            sent.push(side.write_frame(QuicStreamId(0), &mut Vec::new(), 1200).unwrap());
        }
        for frame in &sent {
            let SentFrame::Stream { offset, bytes, is_fin, .. } = *frame else { unreachable!() };
            side.on_acked(offset, bytes, is_fin, &mut flow);
            assert!(side.more.is_none());
            assert_eq!(side.chunks.iter().map(Bytes::len).sum::<usize>() as u64, flow.unacked());
        }
        assert!(side.is_done());
    }

    #[test]
    fn acknowledgments_after_a_gap_are_remembered() {
        let mut flow = SendFlow::new(1 << 20);
        flow.raise_limit(1 << 20);
        let mut side = SendSide::new(1 << 20);
        side.push(&mut [Bytes::from(vec![1; 400])], 400);
        flow.on_written(400);
        for _ in 0..4 {
            side.write_frame(QuicStreamId(0), &mut Vec::new(), if side.next == 0 { 102 } else { 104 }).unwrap();
        }
        side.on_acked(200, 200, false, &mut flow);
        assert_eq!(flow.unacked(), 400, "the chunk is kept");
        assert!(side.on_lost(0, 300, false));
        assert_eq!(side.more.as_ref().unwrap().lost.first(), Some(0..200));
        side.on_acked(0, 100, false, &mut flow);
        assert_eq!(side.more.as_ref().unwrap().lost.first(), Some(100..200));
        side.on_acked(100, 100, false, &mut flow);
        assert_eq!((flow.unacked(), side.has_unsent(), side.is_busy()), (0, false, false));
        assert!(!side.on_lost(0, 400, false));
        side.shrink();
        assert!(side.more.is_none());
    }
}
