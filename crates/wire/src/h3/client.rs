//! Client side of a connection.

use super::engine::{H3Step, IncomingSection, StreamInput, decompression_failed};
use super::streams::Receive;
use super::{
    H3Connection, H3Error, H3ErrorCode, H3Event, H3Handled, H3PreparedRequest, H3Role, H3StreamId, H3Turn,
    OutgoingRequest,
};
use crate::field_section::response_head::decode_response;
use crate::http::{Fields, Status};

/// Client role of an HTTP/3 connection. It permits no server push.
pub type H3ClientConnection = H3Connection<H3Client>;

/// Role of a client.
#[derive(Debug, Default)]
pub struct H3Client {
    /// Buffer for the text of response heads.
    text: Vec<u8>,
}

/// Head of a response; its fields are in the `fields` of [`H3Connection::handle_response`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H3IncomingResponse {
    /// Stream of the request.
    pub stream: H3StreamId,
    /// Status of the response. After a 1xx status another head follows.
    pub status: Status,
    /// True if the response is complete.
    pub is_last: bool,
}

impl H3Role for H3Client {
    type Head = H3IncomingResponse;

    const IS_SERVER: bool = false;
}

type ClientEvent = H3Event<H3IncomingResponse>;

impl H3Connection<H3Client> {
    /// Writes a request's head for a stream that the caller has opened; `is_last` if there is no content. `fields` must
    /// not contain Host, which `authority` replaces. Returns whether the server accepts the request.
    pub fn send_request(
        &mut self,
        stream: H3StreamId,
        request: &OutgoingRequest<'_>,
        fields: &Fields,
        is_last: bool,
        out: &mut Vec<u8>,
        turn: &mut H3Turn<'_>,
    ) -> bool {
        self.engine.open_own(stream, request.method, turn)
            && self.engine.send_fields(stream, request.pseudo_fields(), fields, is_last, out, turn).is_ok()
    }

    /// Writes a request's head that was encoded before. Otherwise equal to [`H3Connection::send_request`].
    pub fn send_prepared_request(
        &mut self,
        stream: H3StreamId,
        request: &H3PreparedRequest,
        is_last: bool,
        out: &mut Vec<u8>,
        turn: &mut H3Turn<'_>,
    ) -> bool {
        let write = |out: &mut Vec<u8>| out.extend_from_slice(request.block());
        self.engine.open_own(stream, request.method(), turn)
            && self.engine.send_section(stream, is_last, out, write).is_ok()
    }

    /// Handles input of a stream that has not been consumed. Call it with the rest until it returns
    /// [`H3Event::NeedInput`] or [`H3Event::Blocked`]. `is_fin`: the stream ends after `input`.
    pub fn handle_response(
        &mut self,
        stream: H3StreamId,
        input: &[u8],
        is_fin: bool,
        fields: &mut Fields,
        turn: &mut H3Turn<'_>,
    ) -> H3Handled<H3IncomingResponse> {
        let mut input = StreamInput::new(stream, input, is_fin);
        let event = match self.engine.handle_input(&mut input, turn) {
            H3Step::Section(section) => {
                let handled = self.on_section(&section, &mut input, fields, turn);
                handled.unwrap_or_else(|error| self.engine.fail(error))
            }
            H3Step::HeadTooLarge(stream) | H3Step::ContentTooLarge(stream) => {
                self.engine.reset(stream, turn.output);
                H3Event::Reset { stream, code: H3ErrorCode::H3_REQUEST_CANCELLED, is_by_peer: false }
            }
            H3Step::Event(event) => event,
        };
        H3Handled { consumed_bytes: input.at, event }
    }

    fn on_section(
        &mut self,
        section: &IncomingSection,
        input: &mut StreamInput<'_>,
        fields: &mut Fields,
        turn: &mut H3Turn<'_>,
    ) -> Result<ClientEvent, H3Error> {
        let (stream, malformed) = (section.stream, H3ErrorCode::H3_MESSAGE_ERROR);
        if section.is_trailers {
            return Ok(self.engine.on_trailers(section, input, turn)?.unwrap_or(H3Event::NeedInput));
        }
        let (bytes, limits) = (&input.bytes[section.range.clone()], &turn.limits.head);
        let Some(mut reader) = self.engine.open_section(section, input)? else { return Ok(H3Event::Blocked) };
        let (required, text) = (reader.required, &mut self.role.text);
        let decoded = decode_response(&mut reader, bytes, limits.head_bytes_max, limits.fields_max, text, fields);
        let decoded = decoded.map_err(decompression_failed)?;
        self.engine.acknowledge(stream, required, turn.output);
        let (Ok((status, content_length)), Some(known)) = (decoded, self.engine.streams.find(stream)) else {
            return self.engine.stream_fault(stream, malformed, turn);
        };
        let (is_last, is_informational) = (section.is_last, status.code() < 200);
        if !is_informational {
            known.receive = Receive::AwaitContent;
            known.has_no_content |= status.has_no_content();
            known.expected_bytes = content_length.filter(|_| !known.has_no_content);
            // A CONNECT that failed has ordinary content.
            known.is_tunnel &= status.code() < 300;
        }
        // RFC 9114, section 4.1: an interim response must not end the stream.
        if is_last && (is_informational || !known.is_length_right()) {
            return self.engine.stream_fault(stream, malformed, turn);
        }
        if is_last {
            self.engine.end_receiving(stream);
        }
        Ok(H3Event::Head(H3IncomingResponse { stream, status, is_last }))
    }
}
