//! Unidirectional streams of the peer: the control stream and those of QPACK (RFC 9114, section 6.2; RFC 9204, section 4.2).

use super::super::frame::{H3FrameHeader, kind, stream_kind};
use super::super::streams::IncomingKind;
use super::super::{H3Error, H3ErrorCode, H3Event, H3PeerSettings, H3StreamId, H3Turn, Priority, varint};
use super::{H3Engine, H3Side, StreamInput, on_decoder_stream, on_stream};

type EventResult<Head> = Result<H3Event<Head>, H3Error>;

impl H3Engine {
    pub(super) fn on_incoming<Head>(
        &mut self,
        input: &mut StreamInput<'_>,
        turn: &mut H3Turn<'_>,
    ) -> EventResult<Head> {
        let stream = input.stream;
        let Some(index) = self.incoming.iter().position(|incoming| incoming.id == stream.0) else {
            input.consume_all();
            return Ok(H3Event::NeedInput);
        };
        if self.incoming[index].kind == IncomingKind::AwaitType {
            let Some(number) = varint::read(input.bytes, &mut input.at) else {
                // RFC 9114, section 6.2: a stream may end before its type.
                if input.is_fin {
                    self.incoming.remove(index);
                }
                return Ok(H3Event::NeedInput);
            };
            let Some(kind) = self.incoming_kind(number)? else {
                self.incoming.remove(index);
                input.consume_all();
                self.spend_idle_frame(turn)?;
                return Ok(H3Event::StopSending { stream, code: H3ErrorCode::H3_STREAM_CREATION_ERROR });
            };
            self.incoming[index].kind = kind;
        }
        let event = match self.incoming[index].kind {
            IncomingKind::QpackEncoder => self.on_encoder_stream(input, turn)?,
            IncomingKind::QpackDecoder => self.on_decoder_instructions(input)?,
            _ => self.on_control(index, input, turn)?,
        };
        if let Some(event) = event {
            return Ok(event);
        }
        if input.is_fin { Err(closed_critical_stream()) } else { Ok(H3Event::NeedInput) }
    }

    /// Returns what a stream with this type is; `None` if the type is not known. Each kind occurs once.
    fn incoming_kind(&self, number: u64) -> Result<Option<IncomingKind>, H3Error> {
        let creation_error = |reason| Err(H3Error::new(H3ErrorCode::H3_STREAM_CREATION_ERROR, reason));
        let kind = match number {
            stream_kind::CONTROL => IncomingKind::AwaitSettings,
            stream_kind::QPACK_ENCODER => IncomingKind::QpackEncoder,
            stream_kind::QPACK_DECODER => IncomingKind::QpackDecoder,
            stream_kind::PUSH if self.role == H3Side::Server => return creation_error("push stream of a client"),
            // Section 4.6: a client that has sent no MAX_PUSH_ID permits no push.
            stream_kind::PUSH => return Err(H3Error::id("push that was not permitted")),
            _ => return Ok(None),
        };
        let is_control = |kind| matches!(kind, IncomingKind::AwaitSettings | IncomingKind::Control);
        let is_same = |other: IncomingKind| other == kind || is_control(other) && is_control(kind);
        if self.incoming.iter().any(|incoming| is_same(incoming.kind)) {
            return creation_error("second stream of a type that occurs once");
        }
        Ok(Some(kind))
    }

    fn on_encoder_stream<Head>(
        &mut self,
        input: &mut StreamInput<'_>,
        turn: &mut H3Turn<'_>,
    ) -> Result<Option<H3Event<Head>>, H3Error> {
        let decoder = &mut self.decoder;
        let handled = on_decoder_stream(&mut self.has_decoder_stream, turn.output, |out| {
            decoder.handle_instructions(&input.bytes[input.at..], out)
        });
        input.at += handled.map_err(|invalid| H3Error::new(H3ErrorCode::QPACK_ENCODER_STREAM_ERROR, invalid.0))?;
        Ok(None)
    }

    fn on_decoder_instructions<Head>(&mut self, input: &mut StreamInput<'_>) -> Result<Option<H3Event<Head>>, H3Error> {
        let handled = self.encoder.handle_instructions(&input.bytes[input.at..]);
        input.at += handled.map_err(|invalid| H3Error::new(H3ErrorCode::QPACK_DECODER_STREAM_ERROR, invalid.0))?;
        Ok(None)
    }

    /// Handles frames of the control stream until one has an event.
    fn on_control<Head>(
        &mut self,
        index: usize,
        input: &mut StreamInput<'_>,
        turn: &mut H3Turn<'_>,
    ) -> Result<Option<H3Event<Head>>, H3Error> {
        loop {
            let incoming = &mut self.incoming[index];
            let skipped_bytes = incoming.skipped_bytes.min((input.bytes.len() - input.at) as u64);
            incoming.skipped_bytes -= skipped_bytes;
            input.at += skipped_bytes as usize;
            let mut start = input.at;
            let Some(header) = H3FrameHeader::parse(input.bytes, &mut start) else { return Ok(None) };
            let is_first = incoming.kind == IncomingKind::AwaitSettings;
            if is_first && header.kind != kind::SETTINGS {
                return Err(H3Error::new(H3ErrorCode::H3_MISSING_SETTINGS, "the first frame is not SETTINGS"));
            }
            if !is_first {
                header.check_on_control(self.role)?;
            }
            if header.is_unknown() {
                input.at = start;
                self.incoming[index].skipped_bytes = self.on_unknown_frame(&header, turn)?;
                continue;
            }
            if header.payload_bytes > turn.limits.control_frame_bytes_max as u64 {
                return Err(H3Error::too_much("frame on the control stream too large"));
            }
            let end = start + header.payload_bytes as usize;
            let Some(payload) = input.bytes.get(start..end) else { return Ok(None) };
            incoming.kind = IncomingKind::Control;
            input.at = end;
            if let Some(event) = self.on_control_frame(header.kind, payload, turn)? {
                return Ok(Some(event));
            }
        }
    }

    fn on_control_frame<Head>(
        &mut self,
        frame_kind: u64,
        payload: &[u8],
        turn: &mut H3Turn<'_>,
    ) -> Result<Option<H3Event<Head>>, H3Error> {
        match frame_kind {
            kind::SETTINGS => self.on_settings(H3PeerSettings::parse(payload)?, turn),
            kind::GOAWAY => return self.on_go_away(read_number(payload)?, turn).map(Some),
            kind::MAX_PUSH_ID => self.on_max_push_id(read_number(payload)?, turn)?,
            kind::PRIORITY_UPDATE => return self.on_priority_update(payload, turn),
            // CANCEL_PUSH, or PRIORITY_UPDATE of a push: neither side ever promised one (RFC 9114, section 7.2.3; RFC
            // 9218, section 7.2).
            kind::CANCEL_PUSH => read_number(payload).and(Err(H3Error::id("push that was not promised")))?,
            _ => return Err(H3Error::id("push that was not promised")),
        }
        Ok(None)
    }

    fn on_settings(&mut self, settings: H3PeerSettings, turn: &mut H3Turn<'_>) {
        self.peer = Some(settings);
        let (encoder, out) = (&mut self.encoder, &mut turn.output.encoder);
        on_stream(&mut self.has_encoder_stream, stream_kind::QPACK_ENCODER, out, |out| {
            encoder.set_peer_limits(settings.table_bytes_max, settings.blocked_streams_max, out);
        });
    }

    /// Handles MAX_PUSH_ID (section 7.2.7). This server never pushes.
    fn on_max_push_id(&mut self, id: u64, turn: &H3Turn<'_>) -> Result<(), H3Error> {
        if self.max_push_id.is_some_and(|before| id < before) {
            return Err(H3Error::id("MAX_PUSH_ID that takes back another"));
        }
        self.max_push_id = Some(id);
        self.spend_idle_frame(turn)
    }

    fn on_priority_update<Head>(
        &mut self,
        payload: &[u8],
        turn: &mut H3Turn<'_>,
    ) -> Result<Option<H3Event<Head>>, H3Error> {
        if !self.spent.priorities.spend(turn.now, turn.limits.priorities) {
            return Err(H3Error::too_much("too many PRIORITY_UPDATE frames"));
        }
        let mut at = 0;
        let stream = varint::read(payload, &mut at).ok_or(H3Error::frame("truncated PRIORITY_UPDATE"))?;
        // RFC 9218, section 7.2: the id must be that of a request stream that the client may open.
        if !stream.is_multiple_of(4) || stream >= self.streams_end {
            return Err(H3Error::id("PRIORITY_UPDATE of what has no priority"));
        }
        let priority = Priority::parse(&payload[at..]);
        if let Some(known) = self.streams.find(H3StreamId(stream)) {
            let is_changed = known.priority != priority;
            known.priority = priority;
            return Ok(is_changed.then_some(H3Event::PriorityChanged { stream: H3StreamId(stream), priority }));
        }
        if stream >= self.next_peer_stream {
            self.early_priorities.retain(|(id, _)| *id != stream);
            // At most as many as streams may be open; others are dropped, because a priority is only a hint.
            if self.early_priorities.len() < turn.limits.concurrent_streams_max {
                self.early_priorities.push((stream, priority));
            }
        }
        Ok(None)
    }

    pub(super) fn take_early_priority(&mut self, stream: u64) -> Option<Priority> {
        let index = self.early_priorities.iter().position(|(id, _)| *id == stream)?;
        Some(self.early_priorities.swap_remove(index).1)
    }
}

/// Reads a payload that is one number (RFC 9114, section 7.1: more or less is an error).
fn read_number(payload: &[u8]) -> Result<u64, H3Error> {
    let mut at = 0;
    let number = varint::read(payload, &mut at).filter(|_| at == payload.len());
    number.ok_or(H3Error::frame("payload that is not one number"))
}

pub(super) fn closed_critical_stream() -> H3Error {
    H3Error::new(H3ErrorCode::H3_CLOSED_CRITICAL_STREAM, "closed critical stream")
}
