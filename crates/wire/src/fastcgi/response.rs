//! Records of a response: standard output, standard error, and the end.

use std::ops::Range;

use super::record::{HEADER_BYTES, Header, record_type};

/// Error of a response whose records are malformed. The text is fixed and contains no input of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedRecord(pub &'static str);

/// Result of a request (FastCGI 1.0, section 5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastCgiEnd {
    /// Exit status that the application returned.
    pub application_status: u32,
    /// Status of the protocol: whether the application handled the request.
    pub protocol_status: ProtocolStatus,
}

/// Protocol status of END_REQUEST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolStatus {
    /// The application handled the request.
    Complete,
    /// Rejected: the connection already carries a request. The server never sends a second one.
    NotMultiplexed,
    /// Rejected: the application is out of resources.
    Overloaded,
    /// Rejected: the application is not a responder.
    UnknownRole,
}

/// Meaning of a piece of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastCgiPiece {
    /// No output; the decoder may need more input.
    Nothing,
    /// Range of the input that is standard output.
    Output(Range<usize>),
    /// Range of the input that is standard error.
    Error(Range<usize>),
    /// End of the request; bytes after it do not belong to this response.
    Ended(FastCgiEnd),
}

/// Result of [`ResponseDecoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedFastCgi {
    /// Bytes of the input that the caller may drop; 0 only for an empty input.
    pub consumed_bytes: usize,
    /// Meaning of the consumed bytes.
    pub piece: FastCgiPiece,
}

/// Decodes the records of one response, however the input is split. Buffers at most one header.
#[derive(Clone, Debug, Default)]
pub struct ResponseDecoder {
    state: FastCgiRecordState,
    /// Beginning of a header or of an END_REQUEST's content.
    partial: [u8; HEADER_BYTES],
    partial_bytes: u8,
    output_has_ended: bool,
    error_has_ended: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum FastCgiRecordState {
    #[default]
    Header,
    Content {
        is_output: bool,
        content_bytes: u16,
        padding_bytes: u8,
    },
    End {
        padding_bytes: u8,
    },
    /// Padding before the state `then`.
    Padding {
        padding_bytes: u8,
        then: Option<FastCgiEnd>,
    },
    Done,
}

impl ResponseDecoder {
    /// Decodes `input` up to the end of one piece.
    ///
    /// # Errors
    /// A record has another version or request id or an unexpected type, or comes after the end.
    pub fn decode(&mut self, input: &[u8]) -> Result<DecodedFastCgi, MalformedRecord> {
        let mut at = 0;
        while at < input.len() {
            let rest = &input[at..];
            match self.state {
                FastCgiRecordState::Header => {
                    at += self.fill_partial(rest);
                    if let Some(bytes) = self.take_partial() {
                        self.on_header(Header::from_bytes(bytes))?;
                    }
                }
                FastCgiRecordState::Content { is_output, content_bytes, padding_bytes } => {
                    let count = rest.len().min(usize::from(content_bytes));
                    let content_bytes = content_bytes - count as u16;
                    self.state = match content_bytes {
                        0 => after(padding_bytes, None),
                        _ => FastCgiRecordState::Content { is_output, content_bytes, padding_bytes },
                    };
                    let range = at..at + count;
                    let piece = if is_output { FastCgiPiece::Output(range) } else { FastCgiPiece::Error(range) };
                    return Ok(DecodedFastCgi { consumed_bytes: at + count, piece });
                }
                FastCgiRecordState::End { padding_bytes } => {
                    at += self.fill_partial(rest);
                    if let Some(bytes) = self.take_partial() {
                        self.state = after(padding_bytes, Some(ended(bytes)?));
                    }
                }
                FastCgiRecordState::Padding { padding_bytes, then } => {
                    let count = rest.len().min(usize::from(padding_bytes));
                    at += count;
                    self.state = after(padding_bytes - count as u8, then);
                }
                FastCgiRecordState::Done => return Err(MalformedRecord("bytes after the end of the response")),
            }
            if let FastCgiRecordState::Padding { padding_bytes: 0, then: Some(ended) } = self.state {
                self.state = FastCgiRecordState::Done;
                return Ok(DecodedFastCgi { consumed_bytes: at, piece: FastCgiPiece::Ended(ended) });
            }
        }
        Ok(DecodedFastCgi { consumed_bytes: at, piece: FastCgiPiece::Nothing })
    }

    fn fill_partial(&mut self, input: &[u8]) -> usize {
        let filled = usize::from(self.partial_bytes);
        let count = input.len().min(HEADER_BYTES - filled);
        self.partial[filled..filled + count].copy_from_slice(&input[..count]);
        self.partial_bytes += count as u8;
        count
    }

    fn take_partial(&mut self) -> Option<[u8; HEADER_BYTES]> {
        let is_whole = usize::from(self.partial_bytes) == HEADER_BYTES;
        is_whole.then(|| {
            self.partial_bytes = 0;
            self.partial
        })
    }

    fn on_header(&mut self, header: Header) -> Result<(), MalformedRecord> {
        if !header.is_ours() {
            return Err(MalformedRecord("a record of another version or request"));
        }
        let Header { content_bytes, padding_bytes, .. } = header;
        let (is_output, has_ended) = match header.record_type {
            record_type::STDOUT => (true, &mut self.output_has_ended),
            record_type::STDERR => (false, &mut self.error_has_ended),
            record_type::END_REQUEST if content_bytes == 8 => {
                self.state = FastCgiRecordState::End { padding_bytes };
                return Ok(());
            }
            record_type::END_REQUEST => return Err(MalformedRecord("an end of unknown form")),
            _ => return Err(MalformedRecord("a record that a response cannot have")),
        };
        if *has_ended && content_bytes > 0 {
            return Err(MalformedRecord("output after its end"));
        }
        // A stream ends with an empty record (section 3.3). Applications may omit it.
        *has_ended |= content_bytes == 0;
        self.state = match content_bytes {
            0 => after(padding_bytes, None),
            _ => FastCgiRecordState::Content { is_output, content_bytes, padding_bytes },
        };
        Ok(())
    }
}

/// Returns the state after content: padding if there is any, otherwise a header or the end.
fn after(padding_bytes: u8, then: Option<FastCgiEnd>) -> FastCgiRecordState {
    match (padding_bytes, then) {
        (0, None) => FastCgiRecordState::Header,
        (padding_bytes, then) => FastCgiRecordState::Padding { padding_bytes, then },
    }
}

fn ended(content: [u8; HEADER_BYTES]) -> Result<FastCgiEnd, MalformedRecord> {
    let [a, b, c, d, protocol_status, ..] = content;
    let protocol_status = match protocol_status {
        0 => ProtocolStatus::Complete,
        1 => ProtocolStatus::NotMultiplexed,
        2 => ProtocolStatus::Overloaded,
        3 => ProtocolStatus::UnknownRole,
        _ => return Err(MalformedRecord("an end of unknown status")),
    };
    Ok(FastCgiEnd { application_status: u32::from_be_bytes([a, b, c, d]), protocol_status })
}
