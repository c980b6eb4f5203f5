//! Handlers for incoming frames, except header blocks.

use super::super::frame::{FRAME_HEADER_BYTES, FrameHeader, H2Frame, TOO_MUCH_PADDING, flag};
use super::super::frame_write::{write_ping, write_settings_ack, write_window_update};
use super::super::streams::Past;
use super::super::{ConnectionError, EngineTurn, ErrorCode, Priority, StreamId};
use super::{Engine, EngineStep, IncomingData, Role};

type StepResult = Result<Option<EngineStep>, ConnectionError>;

impl Engine {
    /// Handles a complete frame; `end` is its end in the input.
    pub(super) fn on_frame(
        &mut self,
        header: &FrameHeader,
        frame: H2Frame<'_>,
        end: usize,
        input: &[u8],
        turn: &mut EngineTurn<'_>,
    ) -> StepResult {
        match frame {
            H2Frame::Headers { fragment, is_own_dependency } => {
                let padding_bytes =
                    if header.has(flag::PADDED) { usize::from(input[end - header.payload_bytes]) } else { 0 };
                let fragment_end = end - padding_bytes;
                let range = fragment_end - fragment.len()..fragment_end;
                self.on_headers(header, range, is_own_dependency, input, turn)
            }
            H2Frame::Continuation { fragment } => self.on_continuation(header, fragment, input, turn),
            H2Frame::Priority => self.on_priority(turn),
            H2Frame::ResetStream(code) => self.on_reset(header.stream, code, turn),
            H2Frame::Settings(payload) => self.on_settings(payload, turn),
            H2Frame::SettingsAck => self.on_settings_ack(turn),
            H2Frame::Ping(opaque) => self.on_ping(opaque, turn),
            H2Frame::PingAck(opaque) => {
                self.on_ping_ack(opaque, turn);
                self.spend_idle_frame(turn).map(|()| None)
            }
            H2Frame::GoAway { last_stream, code } => self.on_go_away(last_stream, code, turn),
            H2Frame::WindowUpdate(increment) => self.on_window_update(header.stream, increment, turn),
            H2Frame::PriorityUpdate { stream, value } => self.on_priority_update(stream, value, turn),
            // RFC 9113, section 5.5: ignored. Some clients send one or two on purpose (GREASE).
            H2Frame::Unknown => self.spend_idle_frame(turn).map(|()| None),
        }
    }

    /// Handles the beginning of a DATA frame (section 6.1). Its payload is passed on as it arrives.
    pub(super) fn on_data(
        &mut self,
        header: FrameHeader,
        rest: &[u8],
        at: &mut usize,
        turn: &mut EngineTurn<'_>,
    ) -> StepResult {
        let (mut overhead_bytes, mut padding_bytes) = (FRAME_HEADER_BYTES, 0);
        if header.has(flag::PADDED) {
            if header.payload_bytes == 0 {
                return Err(ConnectionError::frame_size("payload too short"));
            }
            let Some(length) = rest.get(FRAME_HEADER_BYTES) else { return Ok(Some(EngineStep::NeedInput)) };
            (overhead_bytes, padding_bytes) = (FRAME_HEADER_BYTES + 1, usize::from(*length));
        }
        let bytes_after = header.payload_bytes + FRAME_HEADER_BYTES - overhead_bytes;
        let content_bytes = bytes_after.checked_sub(padding_bytes).ok_or(TOO_MUCH_PADDING)?;
        let is_last = header.has(flag::END_STREAM);
        *at += overhead_bytes;
        // Section 6.9: the whole frame counts, even if its stream is closed.
        self.receive.on_received(header.payload_bytes).map_err(|_| too_much_content())?;
        if content_bytes == 0 && !is_last {
            self.spend_idle_frame(turn)?;
        }
        self.data = Some(IncomingData { stream: header.stream, content_bytes, padding_bytes, is_last });
        let counted = match self.stream(header.stream) {
            Some(stream) if !stream.is_received => Some(stream.receive.on_received(header.payload_bytes).is_ok()),
            _ => None,
        };
        let is_counted = counted == Some(true);
        let step = if counted == Some(false) {
            self.stream_fault(header.stream, ErrorCode::FLOW_CONTROL_ERROR, turn)?
        } else {
            self.check_data(&header, content_bytes, turn)?
        };
        // Padding, and content that no handler reads, is taken immediately. For a stream that was just closed this has
        // happened already.
        let not_content_bytes = header.payload_bytes - content_bytes;
        if !is_counted {
            self.take(None, header.payload_bytes as u32, turn);
        } else if self.takes_content(header.stream) {
            if content_bytes > 0 {
                // Content that no handler reads earns nothing.
                self.spent.pings.earn(1);
            }
            self.take(Some(header.stream), not_content_bytes as u32, turn);
        } else {
            self.take(Some(header.stream), header.payload_bytes as u32, turn);
        }
        Ok(step)
    }

    fn takes_content(&mut self, stream: u32) -> bool {
        self.stream(stream).is_some_and(|stream| !stream.discards_content)
    }

    /// Returns whether the stream accepts DATA. The engine drops content that it does not accept.
    fn check_data(&mut self, header: &FrameHeader, content_bytes: usize, turn: &mut EngineTurn<'_>) -> StepResult {
        let Some(stream) = self.stream(header.stream) else {
            return self.check_data_of_closed(header, turn).map(|()| None);
        };
        if stream.is_received {
            return self.stream_fault(header.stream, ErrorCode::STREAM_CLOSED, turn);
        }
        if !stream.has_head {
            return self.stream_fault(header.stream, ErrorCode::PROTOCOL_ERROR, turn);
        }
        stream.received_bytes += content_bytes as u64;
        // Section 8.1.1: the content must have the length of Content-Length, unless the message has none by definition.
        let is_last = header.has(flag::END_STREAM);
        let is_wrong = stream
            .expected_bytes
            .is_some_and(|expected| stream.received_bytes > expected || is_last && stream.received_bytes < expected);
        if is_wrong || stream.has_no_content && content_bytes > 0 {
            return self.stream_fault(header.stream, ErrorCode::PROTOCOL_ERROR, turn);
        }
        let is_limited = !stream.is_tunnel && !stream.discards_content;
        if is_limited && stream.received_bytes > stream.body_bytes_max {
            stream.discards_content = true;
            // The caller will not take content that arrived earlier.
            let waiting_bytes = stream.receive.waiting_bytes() - header.payload_bytes as u32;
            self.take(Some(header.stream), waiting_bytes, turn);
            return Ok(Some(EngineStep::ContentTooLarge(StreamId(header.stream))));
        }
        Ok(None)
    }

    fn check_data_of_closed(&mut self, header: &FrameHeader, turn: &mut EngineTurn<'_>) -> Result<(), ConnectionError> {
        let stream = header.stream;
        if self.is_idle(stream) {
            return Err(ConnectionError::protocol("DATA on an idle stream"));
        }
        match self.streams.past(stream) {
            Past::ResetByUs => {
                let frame_bytes = (FRAME_HEADER_BYTES + header.payload_bytes) as u64;
                match self.late_bytes.checked_sub(frame_bytes) {
                    Some(rest) => self.late_bytes = rest,
                    // The peer has sent more than was in flight, so it ignores the reset.
                    None => self.spend_idle_frame(turn)?,
                }
                Ok(())
            }
            // Section 5.1: a peer that has ended or reset a stream must not send on it.
            Past::Ended => Err(ConnectionError::new(ErrorCode::STREAM_CLOSED, "DATA on a closed stream")),
            // Closed long ago, perhaps by this side while the frame was in flight.
            Past::Unknown => self.spend_idle_frame(turn),
        }
    }

    /// Passes on the available part of a DATA frame's payload.
    pub(super) fn on_data_payload(
        &mut self,
        rest_bytes: usize,
        at: &mut usize,
        turn: &mut EngineTurn<'_>,
    ) -> Option<EngineStep> {
        let data = self.data.as_mut()?;
        let content_bytes = data.content_bytes.min(rest_bytes);
        let content = *at..*at + content_bytes;
        data.content_bytes -= content_bytes;
        *at += content_bytes;
        if data.content_bytes == 0 {
            let padding_bytes = data.padding_bytes.min(rest_bytes - content_bytes);
            data.padding_bytes -= padding_bytes;
            *at += padding_bytes;
        }
        let IncomingData { stream, is_last, .. } = *data;
        let is_complete = data.content_bytes + data.padding_bytes == 0;
        if is_complete {
            self.data = None;
        }
        let is_last = is_last && is_complete;
        if !self.takes_content(stream) || content.is_empty() && !is_last {
            if is_last {
                self.end_receiving(stream, turn);
            }
            // After a complete frame the next one follows.
            return (!is_complete).then_some(EngineStep::NeedInput);
        }
        if is_last {
            self.end_receiving(stream, turn);
        }
        Some(EngineStep::Content { stream: StreamId(stream), content, is_last })
    }

    /// Ends the peer's message.
    pub(crate) fn end_receiving(&mut self, stream: u32, turn: &mut EngineTurn<'_>) {
        let Some(slot) = self.streams.find(stream) else { return };
        let known = self.streams.at(slot);
        known.is_received = true;
        // This side has also finished if the end of its content was offered and everything is sent.
        if known.is_sent() {
            self.close(slot, false, turn);
        }
    }

    /// Returns `bytes` to the windows, because the caller has read them or will never get them (`None`).
    pub(crate) fn take(&mut self, stream: Option<u32>, bytes: u32, turn: &mut EngineTurn<'_>) {
        if bytes == 0 {
            return;
        }
        let pace = self.pace(turn.limits);
        let mut consumed_bytes = bytes;
        if let Some(id) = stream {
            // When the stream was closed, its bytes were taken.
            let Some(stream) = self.stream(id) else { return };
            consumed_bytes = bytes.min(stream.receive.waiting_bytes());
            let is_received = stream.is_received;
            if let Some(increment) = stream.receive.on_consumed(bytes, turn.now, &pace)
                && !is_received
            {
                write_window_update(&mut turn.output.bytes, id, increment);
            }
        }
        if let Some(increment) = self.receive.on_consumed(consumed_bytes, turn.now, &pace) {
            write_window_update(&mut turn.output.bytes, 0, increment);
        }
    }

    fn on_priority(&mut self, turn: &mut EngineTurn<'_>) -> StepResult {
        if !self.spent.priorities.spend(turn.now, turn.limits.priorities) {
            return Err(ConnectionError::too_much("too many PRIORITY frames"));
        }
        Ok(None)
    }

    fn on_priority_update(&mut self, stream: u32, value: &[u8], turn: &mut EngineTurn<'_>) -> StepResult {
        // RFC 9218, section 7.1: only clients send it, and only for requests.
        if self.role == Role::Client || stream.is_multiple_of(2) {
            return Err(ConnectionError::protocol("PRIORITY_UPDATE of what has no priority"));
        }
        self.on_priority(turn)?;
        let priority = Priority::parse(value);
        if self.streams.find(stream).is_some() {
            self.set_priority(stream, priority);
        } else if stream > self.last_peer_stream {
            self.early_priorities.retain(|(id, _)| *id != stream);
            // At most as many as streams may be open; others are dropped, because a priority is only a hint.
            if self.early_priorities.len() < turn.limits.concurrent_streams_max as usize {
                self.early_priorities.push((stream, priority));
            }
        }
        Ok(None)
    }

    fn on_reset(&mut self, stream: u32, code: ErrorCode, turn: &mut EngineTurn<'_>) -> StepResult {
        let Some(slot) = self.streams.find(stream) else {
            if self.is_idle(stream) {
                return Err(ConnectionError::protocol("RST_STREAM on an idle stream"));
            }
            return self.spend_idle_frame(turn).map(|()| None);
        };
        // A client needs no budget, because it has opened the stream itself.
        if self.role == Role::Server && !self.spent.peer_resets.spend(turn.now, turn.limits.peer_resets) {
            return Err(ConnectionError::too_much("too many streams reset"));
        }
        self.close(slot, false, turn);
        Ok(Some(EngineStep::Reset { stream: StreamId(stream), code, is_by_peer: true }))
    }

    fn on_settings(&mut self, payload: &[u8], turn: &mut EngineTurn<'_>) -> StepResult {
        if !self.spent.settings.spend(turn.now, turn.limits.settings) {
            return Err(ConnectionError::too_much("too many SETTINGS frames"));
        }
        let before = self.peer;
        self.peer.apply(payload, self.role == Role::Client)?;
        // A smaller value may come before the final one, and the encoder must evict entries for it. So it gets each
        // value.
        for setting in payload.chunks_exact(6).filter(|setting| setting[..2] == [0, 1]) {
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            self.encoder.set_table_bytes_max(value as usize);
        }
        if self.peer.initial_window_bytes != before.initial_window_bytes {
            self.shift_windows(before.initial_window_bytes)?;
        }
        write_settings_ack(&mut turn.output.bytes);
        Ok(None)
    }

    /// Adjusts the windows of all streams to a new initial window (RFC 9113, section 6.9.2).
    fn shift_windows(&mut self, before: u32) -> Result<(), ConnectionError> {
        let now = self.peer.initial_window_bytes;
        for index in 0..self.streams.len() {
            let slot = self.streams.slot(index);
            let shifted = self.streams.at(slot).send.shift(before, now);
            shifted.map_err(|_| window_overflow())?;
            self.update_ready(slot);
        }
        Ok(())
    }

    fn on_settings_ack(&mut self, turn: &mut EngineTurn<'_>) -> StepResult {
        let Some(sent_at) = self.settings_sent_at.take() else {
            return Err(ConnectionError::protocol("acknowledgement of no SETTINGS"));
        };
        self.round_trip = turn.now.saturating_sub(sent_at).max(std::time::Duration::from_millis(1));
        self.decoder.set_table_bytes_max(turn.limits.header_table_bytes_max as usize);
        Ok(None)
    }

    fn on_ping(&mut self, opaque: [u8; 8], turn: &mut EngineTurn<'_>) -> StepResult {
        if !self.spent.pings.spend(turn.now, turn.limits.pings) {
            return Err(ConnectionError::too_much("too many PING frames"));
        }
        write_ping(&mut turn.output.bytes, opaque, true);
        Ok(None)
    }

    fn on_window_update(&mut self, stream: u32, increment: u32, turn: &mut EngineTurn<'_>) -> StepResult {
        if !self.spent.window_updates.spend(turn.now, turn.limits.window_updates) {
            return Err(ConnectionError::too_much("too many WINDOW_UPDATE frames"));
        }
        if stream == 0 {
            if increment == 0 {
                return Err(ConnectionError::protocol("WINDOW_UPDATE by 0"));
            }
            return self.send.grow(increment).map(|()| None).map_err(|_| window_overflow());
        }
        let Some(slot) = self.streams.find(stream) else {
            if self.is_idle(stream) {
                return Err(ConnectionError::protocol("WINDOW_UPDATE on an idle stream"));
            }
            // The frame may have been in flight when the stream ended.
            return Ok(None);
        };
        if increment == 0 {
            return self.stream_fault(stream, ErrorCode::PROTOCOL_ERROR, turn);
        }
        if self.streams.at(slot).send.grow(increment).is_err() {
            return self.stream_fault(stream, ErrorCode::FLOW_CONTROL_ERROR, turn);
        }
        self.update_ready(slot);
        Ok(None)
    }

    /// Returns whether the stream is idle: neither side has opened it (RFC 9113, section 5.1.1).
    fn is_idle(&self, stream: u32) -> bool {
        match self.role {
            Role::Server => stream.is_multiple_of(2) || stream > self.last_peer_stream,
            Role::Client => stream.is_multiple_of(2) || stream >= self.next_own_stream,
        }
    }

    pub(super) fn spend_idle_frame(&mut self, turn: &mut EngineTurn<'_>) -> Result<(), ConnectionError> {
        if self.spent.idle_frames.spend(turn.now, turn.limits.idle_frames) {
            return Ok(());
        }
        Err(ConnectionError::too_much("too many frames that say nothing"))
    }
}

fn too_much_content() -> ConnectionError {
    ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, "more content than the connection's window")
}

fn window_overflow() -> ConnectionError {
    ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, "window too large")
}
