//! Server side of a connection.

use super::engine::{H3Step, IncomingSection, StreamInput, decompression_failed};
use super::streams::Receive;
use super::{H3Connection, H3Error, H3ErrorCode, H3Event, H3Handled, H3Role, H3StreamGone, H3StreamId, H3Turn};
use crate::field_section::request_head::{HEAD_TOO_LARGE, HeadFault, IncomingRequest, decode_request};
use crate::field_section::status_digits;
use crate::h1::MessageRejection;
use crate::http::date::DATE_BYTES;
use crate::http::{Fields, Method, RequestHead, Status};
use crate::qpack::PreparedSection;

/// A request with a complete head.
pub type H3IncomingRequest = IncomingRequest<H3StreamId>;

/// Server role of an HTTP/3 connection.
pub type H3ServerConnection = H3Connection<H3Server>;

/// Role of a server.
#[derive(Debug, Default)]
pub struct H3Server;

impl H3Role for H3Server {
    type Head = H3IncomingRequest;

    const IS_SERVER: bool = true;
}

type ServerEvent = H3Event<H3IncomingRequest>;

impl H3Connection<H3Server> {
    /// Turns rejection of new requests (H3_REQUEST_REJECTED) on or off. Each request that arrives while it is on counts
    /// as an error of the peer (`stream_faults`).
    pub fn refuse_streams(&mut self, is_rejected: bool) {
        self.engine.refuses_streams = is_rejected;
    }

    /// Sets the smallest id of a stream that the transport does not permit the client to open, now that it has
    /// announced more. Priorities of such streams are errors (RFC 9218, section 7.2).
    pub fn set_streams_end(&mut self, streams_end: H3StreamId) {
        self.engine.streams_end = streams_end.0;
    }

    /// Handles input of a stream that has not been consumed. Call it with the rest until it returns
    /// [`H3Event::NeedInput`] or [`H3Event::Blocked`]. `is_fin`: the stream ends after `input`. Decodes a request's head
    /// into `head` and `text`.
    pub fn handle_input(
        &mut self,
        stream: H3StreamId,
        input: &[u8],
        is_fin: bool,
        head: &mut RequestHead,
        text: &mut Vec<u8>,
        turn: &mut H3Turn<'_>,
    ) -> H3Handled<H3IncomingRequest> {
        let mut input = StreamInput::new(stream, input, is_fin);
        let event = loop {
            match self.engine.handle_input(&mut input, turn) {
                H3Step::Section(section) => match self.on_section(&section, &mut input, head, text, turn) {
                    Ok(Some(event)) => break event,
                    Ok(None) => {}
                    Err(error) => break self.engine.fail(error),
                },
                H3Step::HeadTooLarge(stream) => {
                    head.clear();
                    text.clear();
                    break H3Event::Rejected { stream, rejection: HEAD_TOO_LARGE };
                }
                H3Step::ContentTooLarge(stream) => {
                    break H3Event::Rejected { stream, rejection: MessageRejection::CONTENT_TOO_LARGE };
                }
                H3Step::Event(event) => break event,
            }
        };
        H3Handled { consumed_bytes: input.at, event }
    }

    fn on_section(
        &mut self,
        section: &IncomingSection,
        input: &mut StreamInput<'_>,
        head: &mut RequestHead,
        text: &mut Vec<u8>,
        turn: &mut H3Turn<'_>,
    ) -> Result<Option<ServerEvent>, H3Error> {
        if section.is_trailers {
            return self.engine.on_trailers(section, input, turn);
        }
        let (stream, bytes) = (section.stream, input.bytes);
        let Some(mut reader) = self.engine.open_section(section, input)? else { return Ok(Some(H3Event::Blocked)) };
        let required = reader.required;
        let rules = turn.limits.request_rules();
        let decoded =
            decode_request(&mut reader, &bytes[section.range.clone()], stream, section.is_last, head, text, &rules);
        let decoded = decoded.map_err(decompression_failed)?;
        self.engine.acknowledge(stream, required, turn.output);
        let Some(opened) = self.engine.streams.find(stream) else { return Ok(None) };
        opened.receive = if section.is_last { Receive::Ended } else { Receive::AwaitContent };
        Ok(Some(match decoded {
            Ok(mut request) => {
                opened.expected_bytes = request.content_length;
                opened.is_tunnel = head.method == Method::Connect;
                request.settle_priority(&mut opened.priority);
                H3Event::Head(request)
            }
            Err(HeadFault::Rejected(rejection)) => {
                opened.discards_content = true;
                H3Event::Rejected { stream, rejection }
            }
            Err(HeadFault::Malformed) => {
                return self.engine.stream_fault(stream, H3ErrorCode::H3_MESSAGE_ERROR, turn).map(Some);
            }
        }))
    }

    /// Writes a response's head; `is_last` if there is no content. With a status 1xx, another head must follow (RFC
    /// 9110, section 15.2). Omits fields that HTTP/3 forbids, such as Connection.
    pub fn send_response(
        &mut self,
        stream: H3StreamId,
        status: Status,
        fields: &Fields,
        is_last: bool,
        out: &mut Vec<u8>,
        turn: &mut H3Turn<'_>,
    ) -> Result<(), H3StreamGone> {
        let digits = status_digits(status);
        let pseudo_fields = std::iter::once((&b":status"[..], &digits[..]));
        self.engine.send_fields(stream, pseudo_fields, fields, is_last, out, turn)
    }

    /// Writes a response's head that was encoded before, with this date. `add` may append fields with
    /// [`write_literal`](crate::qpack::write_literal).
    pub fn send_prepared(
        &mut self,
        stream: H3StreamId,
        section: &PreparedSection,
        date: &[u8; DATE_BYTES],
        is_last: bool,
        out: &mut Vec<u8>,
        add: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), H3StreamGone> {
        self.send_section(stream, is_last, out, |out| {
            section.write(date, out);
            add(out);
        })
    }

    /// Writes a response's head that `write` appends: a prefix, a status and fields, encoded without the dynamic table.
    pub fn send_section(
        &mut self,
        stream: H3StreamId,
        is_last: bool,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), H3StreamGone> {
        self.engine.send_section(stream, is_last, out, write)
    }

    /// Turns a CONNECT stream into an ordinary one, because its response does not open a tunnel.
    pub fn reject_tunnel(&mut self, stream: H3StreamId) {
        if let Some(stream) = self.engine.streams.find(stream) {
            stream.is_tunnel = false;
        }
    }
}
