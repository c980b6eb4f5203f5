//! Request streams: order of frames, content, trailers (RFC 9114, section 4.1).

use super::super::frame::{H3FrameHeader, kind};
use super::super::streams::{IncomingFrame, Receive};
use super::super::{H3Error, H3ErrorCode, H3Event, H3StreamId, H3Turn};
use super::{H3Engine, H3Side, H3Step, IncomingSection, StepResult, StreamInput, decompression_failed};
use crate::field_section::decode_trailers;

impl H3Engine {
    pub(super) fn on_request<Head>(&mut self, input: &mut StreamInput<'_>, turn: &mut H3Turn<'_>) -> StepResult<Head> {
        let id = input.stream;
        loop {
            let Some(stream) = self.streams.find(id).filter(|stream| stream.receive != Receive::Ended) else {
                input.consume_all();
                return Ok(H3Step::Event(H3Event::NeedInput));
            };
            if stream.frame.is_some() {
                if let Some(step) = self.on_payload(input, turn)? {
                    return Ok(step);
                }
                continue;
            }
            let (start, mut end) = (input.at, input.at);
            let Some(header) = H3FrameHeader::parse(input.bytes, &mut end) else { break };
            if stream.receive == Receive::Skip {
                stream.frame = Some(IncomingFrame { is_data: false, missing_bytes: header.payload_bytes });
                input.at = end;
                continue;
            }
            header.check_on_request(self.role)?;
            let step = match header.kind {
                kind::DATA => self.on_data(id, header.payload_bytes, turn)?,
                kind::HEADERS => {
                    let is_trailers = check_section(stream.receive, stream.is_tunnel)?;
                    if header.payload_bytes > turn.limits.field_section_bytes_max as u64 {
                        input.at = end;
                        return self.on_large_section(id, header.payload_bytes, is_trailers, turn);
                    }
                    let range = end..end + header.payload_bytes as usize;
                    if input.bytes.len() < range.end {
                        break;
                    }
                    end = range.end;
                    let is_last = input.is_fin && end == input.bytes.len();
                    Some(H3Step::Section(IncomingSection {
                        stream: id,
                        frame_start: start,
                        range,
                        is_trailers,
                        is_last,
                    }))
                }
                _ => {
                    let missing_bytes = self.on_unknown_frame(&header, turn)?;
                    if let Some(stream) = self.streams.find(id) {
                        stream.frame = Some(IncomingFrame { is_data: false, missing_bytes });
                    }
                    None
                }
            };
            input.at = end;
            if let Some(step) = step {
                return Ok(step);
            }
        }
        self.on_input_end(input, !input.is_consumed(), turn).map(H3Step::Event)
    }

    /// Passes on or skips the available part of a frame's payload.
    fn on_payload<Head>(
        &mut self,
        input: &mut StreamInput<'_>,
        turn: &mut H3Turn<'_>,
    ) -> Result<Option<H3Step<Head>>, H3Error> {
        let id = input.stream;
        let Some(stream) = self.streams.find(id) else { return Ok(None) };
        let Some(frame) = &mut stream.frame else { return Ok(None) };
        let bytes = frame.missing_bytes.min((input.bytes.len() - input.at) as u64);
        let content = input.at..input.at + bytes as usize;
        input.at = content.end;
        frame.missing_bytes -= bytes;
        let (is_data, is_complete) = (frame.is_data, frame.missing_bytes == 0);
        if is_complete {
            stream.frame = None;
        }
        if is_data && !content.is_empty() && stream.is_read() {
            let is_last = input.is_fin && is_complete && input.is_consumed();
            if is_last && !stream.is_length_right() {
                return self.malformed(id, turn).map(Some);
            }
            if is_last {
                self.end_receiving(id);
            }
            return Ok(Some(H3Step::Event(H3Event::Content { stream: id, content, is_last })));
        }
        if is_complete {
            return Ok(None);
        }
        self.on_input_end(input, true, turn).map(|event| Some(H3Step::Event(event)))
    }

    /// Handles the end of the available input. `is_truncated`: a frame is incomplete.
    fn on_input_end<Head>(
        &mut self,
        input: &StreamInput<'_>,
        is_truncated: bool,
        turn: &mut H3Turn<'_>,
    ) -> Result<H3Event<Head>, H3Error> {
        let id = input.stream;
        let Some(stream) = self.streams.find(id).filter(|_| input.is_fin) else { return Ok(H3Event::NeedInput) };
        // Section 7.1: the last frame of a stream that ends must be complete.
        if is_truncated {
            return Err(H3Error::frame("truncated frame at the end of a stream"));
        }
        let (receive, is_read, is_right) = (stream.receive, stream.is_read(), stream.is_length_right());
        match receive {
            Receive::AwaitHead => {
                let is_server = self.role == H3Side::Server;
                let code = if is_server { H3ErrorCode::H3_REQUEST_INCOMPLETE } else { H3ErrorCode::H3_MESSAGE_ERROR };
                self.stream_fault(id, code, turn)
            }
            // Section 4.1.2: the content must have the length of Content-Length.
            Receive::AwaitContent if is_read && !is_right => self.stream_fault(id, H3ErrorCode::H3_MESSAGE_ERROR, turn),
            _ => {
                self.end_receiving(id);
                let has_event = receive == Receive::AwaitContent && is_read;
                let content = H3Event::Content { stream: id, content: 0..0, is_last: true };
                Ok(if has_event { content } else { H3Event::NeedInput })
            }
        }
    }

    /// Handles the beginning of a DATA frame.
    fn on_data<Head>(
        &mut self,
        id: H3StreamId,
        payload_bytes: u64,
        turn: &mut H3Turn<'_>,
    ) -> Result<Option<H3Step<Head>>, H3Error> {
        if payload_bytes == 0 {
            self.spend_idle_frame(turn)?;
        }
        let Some(stream) = self.streams.find(id) else { return Ok(None) };
        if stream.receive != Receive::AwaitContent {
            return Err(H3Error::unexpected("DATA before a head or after trailers"));
        }
        stream.frame = Some(IncomingFrame { is_data: true, missing_bytes: payload_bytes });
        stream.received_bytes = stream.received_bytes.saturating_add(payload_bytes);
        let is_wrong = stream.expected_bytes.is_some_and(|expected| stream.received_bytes > expected);
        if is_wrong && stream.is_read() || stream.has_no_content && payload_bytes > 0 {
            return self.malformed(id, turn).map(Some);
        }
        if stream.is_read() && !stream.is_tunnel && stream.received_bytes > stream.body_bytes_max {
            stream.discards_content = true;
            return Ok(Some(H3Step::ContentTooLarge(id)));
        }
        Ok(None)
    }

    /// Handles a section that is too long to keep.
    fn on_large_section<Head>(
        &mut self,
        id: H3StreamId,
        payload_bytes: u64,
        is_trailers: bool,
        turn: &mut H3Turn<'_>,
    ) -> StepResult<Head> {
        if is_trailers || self.role == H3Side::Client {
            return self.malformed(id, turn);
        }
        if let Some(stream) = self.streams.find(id) {
            stream.receive = Receive::Skip;
            stream.frame = Some(IncomingFrame { is_data: false, missing_bytes: payload_bytes });
        }
        self.cancel_sections(id, turn.output);
        Ok(H3Step::HeadTooLarge(id))
    }

    /// Resets the stream of a malformed message (section 4.1.2).
    pub(crate) fn malformed<Head>(&mut self, id: H3StreamId, turn: &mut H3Turn<'_>) -> StepResult<Head> {
        self.stream_fault(id, H3ErrorCode::H3_MESSAGE_ERROR, turn).map(H3Step::Event)
    }

    /// Decodes trailers and ends the message. Returns `None` if the caller has dropped the message.
    pub(crate) fn on_trailers<Head>(
        &mut self,
        section: &IncomingSection,
        input: &mut StreamInput<'_>,
        turn: &mut H3Turn<'_>,
    ) -> Result<Option<H3Event<Head>>, H3Error> {
        let (stream, limits, bytes) = (section.stream, &turn.limits.head, input.bytes);
        let Some(mut reader) = self.open_section(section, input)? else { return Ok(Some(H3Event::Blocked)) };
        let required = reader.required;
        let block = &bytes[section.range.clone()];
        let decoded = decode_trailers(&mut reader, block, limits.head_bytes_max, limits.fields_max);
        let decoded = decoded.map_err(decompression_failed)?;
        self.acknowledge(stream, required, turn.output);
        let Some(known) = self.streams.find(stream) else { return Ok(None) };
        let is_read = known.is_read();
        let Some(fields) = decoded.ok().filter(|_| !is_read || known.is_length_right()) else {
            return self.stream_fault(stream, H3ErrorCode::H3_MESSAGE_ERROR, turn).map(Some);
        };
        known.receive = Receive::AwaitEnd;
        if section.is_last {
            self.end_receiving(stream);
        }
        Ok(is_read.then_some(H3Event::Trailers { stream, fields }))
    }

    /// Ends the peer's message.
    pub(crate) fn end_receiving(&mut self, id: H3StreamId) {
        let Some(stream) = self.streams.find(id) else { return };
        stream.receive = Receive::Ended;
        if stream.is_sent {
            self.streams.remove(id);
        }
    }
}

/// Checks that a section may come now. Returns whether it is a trailer section.
fn check_section(receive: Receive, is_tunnel: bool) -> Result<bool, H3Error> {
    match receive {
        Receive::AwaitHead => Ok(false),
        // Section 4.4: on a tunnel only DATA is permitted.
        Receive::AwaitContent if !is_tunnel => Ok(true),
        _ => Err(H3Error::unexpected("HEADERS after trailers or in a tunnel")),
    }
}
