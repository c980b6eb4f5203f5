//! Frames for packets, and their acknowledgment or loss.

use std::collections::VecDeque;

use crate::frame::{write_max_data, write_max_stream_data, write_max_streams, write_reset_stream, write_stop_sending};
use crate::id::Dir;

use super::control::StreamControl;
use super::{SentFrame, Streams};

/// Length of the longest frame without data: RESET_STREAM with three integers of eight bytes.
const CONTROL_BYTES_MAX: usize = 25;

impl Streams {
    /// True if there are frames to send.
    pub(crate) fn can_send(&self) -> bool {
        let [bidirectional, unidirectional] = &self.peers;
        !self.schedule.is_empty()
            || !self.controls.is_empty()
            || self.receive_flow.is_due
            || bidirectional.is_due
            || unidirectional.is_due
    }

    /// Appends frames to `out`, up to the length `end`, and adds them to `sent`. A packet that fills up to `end` must
    /// have no frames after these, because the last one may have no length.
    pub(crate) fn write_frames(&mut self, out: &mut Vec<u8>, end: usize, sent: &mut VecDeque<SentFrame>) {
        self.write_controls(out, end, sent);
        while let Some(id) = self.schedule.front() {
            let Some(side) = self.tables.send(id) else {
                self.schedule.pop();
                continue;
            };
            let Some(frame) = side.write_frame(id, out, end) else { break };
            sent.push_back(frame);
            if !side.has_unsent() {
                side.is_scheduled = false;
                self.schedule.pop();
            } else if out.len() >= end {
                self.schedule.rotate();
            }
        }
    }

    fn write_controls(&mut self, out: &mut Vec<u8>, end: usize, sent: &mut VecDeque<SentFrame>) {
        let has_room = |out: &Vec<u8>| out.len() + CONTROL_BYTES_MAX <= end;
        if self.receive_flow.is_due && has_room(out) {
            write_max_data(out, self.receive_flow.raise());
            sent.push_back(SentFrame::MaxData);
        }
        for (peers, dir) in self.peers.iter_mut().zip([Dir::Bi, Dir::Uni]) {
            if peers.is_due && has_room(out) {
                write_max_streams(out, dir, peers.raise());
                sent.push_back(SentFrame::MaxStreams { dir });
            }
        }
        while has_room(out)
            && let Some((id, control)) = self.controls.pop()
        {
            match control {
                StreamControl::Reset => {
                    let Some(side) = self.tables.send(id) else { continue };
                    side.is_reset_due = false;
                    write_reset_stream(out, id, side.reset_code(), side.final_bytes());
                    sent.push_back(SentFrame::ResetStream { id });
                }
                StreamControl::Stop => {
                    let Some(side) = self.tables.receive(id) else { continue };
                    side.is_stop_due = false;
                    let Some(code) = side.stop_code() else { continue };
                    write_stop_sending(out, id, code);
                    sent.push_back(SentFrame::StopSending { id });
                }
                StreamControl::Limit => {
                    let Some(side) = self.tables.receive(id) else { continue };
                    side.is_limit_due = false;
                    write_max_stream_data(out, id, side.raise(self.window_bytes));
                    sent.push_back(SentFrame::MaxStreamData { id });
                }
            }
        }
    }

    /// Handles an acknowledgment of a frame.
    pub(crate) fn on_acked(&mut self, frame: &SentFrame) {
        match *frame {
            SentFrame::Stream { id, offset, bytes, is_fin } => {
                let Some(side) = self.tables.send(id) else { return };
                let was_busy = side.is_busy();
                side.on_acked(offset, bytes, is_fin, &mut self.send_flow);
                if side.is_scheduled && !side.has_unsent() {
                    // A packet that was thought to be lost has arrived.
                    side.is_scheduled = false;
                    self.schedule.remove(side.priority, id);
                }
                self.sending -= usize::from(was_busy && !side.is_busy());
                if side.is_done() {
                    self.on_side_done(id);
                }
            }
            SentFrame::ResetStream { id } => {
                let Some(side) = self.tables.send(id).filter(|side| side.is_reset()) else { return };
                if side.is_reset_due {
                    self.controls.remove(id, StreamControl::Reset);
                }
                side.on_reset_acked();
                self.sending -= 1;
                self.on_side_done(id);
            }
            _ => {}
        }
    }

    /// Handles the loss of a frame. What the client still needs is sent again.
    pub(crate) fn on_lost(&mut self, frame: &SentFrame) {
        match *frame {
            SentFrame::Stream { id, offset, bytes, is_fin } => {
                let Some(side) = self.tables.send(id) else { return };
                if side.on_lost(offset, bytes, is_fin) && !side.is_scheduled {
                    // The client may wait for this part to use later ones.
                    side.is_scheduled = true;
                    self.schedule.push_front(side.priority, id);
                }
            }
            SentFrame::ResetStream { id } => {
                if let Some(side) = self.tables.send(id)
                    && side.is_reset()
                    && !std::mem::replace(&mut side.is_reset_due, true)
                {
                    self.controls.push(id, StreamControl::Reset);
                }
            }
            SentFrame::StopSending { id } => {
                if let Some(side) = self.tables.receive(id)
                    && side.stop_code().is_some()
                    && !std::mem::replace(&mut side.is_stop_due, true)
                {
                    self.controls.push(id, StreamControl::Stop);
                }
            }
            SentFrame::MaxStreamData { id } => {
                if let Some(side) = self.tables.receive(id)
                    && side.wants_data()
                    && !std::mem::replace(&mut side.is_limit_due, true)
                {
                    self.controls.push(id, StreamControl::Limit);
                }
            }
            SentFrame::MaxData => self.receive_flow.is_due = true,
            SentFrame::MaxStreams { dir } => self.peers[dir as usize].is_due = true,
            _ => {}
        }
    }

    /// True if the stream is open in any direction.
    #[cfg(test)]
    pub(super) fn is_open(&mut self, id: crate::id::QuicStreamId) -> bool {
        self.tables.send(id).is_some() || self.tables.receive(id).is_some()
    }
}
