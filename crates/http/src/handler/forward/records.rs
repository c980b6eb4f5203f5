//! FastCGI records of a response: separates output from error lines for the log.

use wire::fastcgi::{FastCgiEnd, FastCgiPiece, ProtocolStatus, ResponseDecoder};

use crate::handler::cgi::ErrorLines;

/// Decoder of one response.
pub(super) struct Records {
    decoder: ResponseDecoder,
    errors: ErrorLines,
    /// True if the server keeps the connection open after the response.
    is_kept: bool,
    /// End of the response, and whether no byte followed it.
    ended: Option<(FastCgiEnd, bool)>,
}

impl Records {
    /// Creates a decoder that sends error output to `errors`.
    pub(super) fn new(errors: ErrorLines, is_kept: bool) -> Self {
        Self { decoder: ResponseDecoder::default(), errors, is_kept, ended: None }
    }

    /// Moves the output within `buffer[..filled]` to the front; returns its length.
    ///
    /// # Errors
    /// The reason that the records are invalid, or that the server rejects the request.
    pub(super) fn unwrap(&mut self, buffer: &mut [u8], filled: usize) -> Result<usize, &'static str> {
        let (mut at, mut length) = (0, 0);
        while at < filled {
            if let Some((_, is_clean)) = &mut self.ended {
                *is_clean = false;
                break;
            }
            let input = &buffer[at..filled];
            let decoded = self.decoder.decode(input).map_err(|malformed| malformed.0)?;
            match decoded.piece {
                FastCgiPiece::Nothing => {}
                FastCgiPiece::Output(range) => {
                    let output_bytes = range.len();
                    buffer.copy_within(at + range.start..at + range.end, length);
                    length += output_bytes;
                }
                FastCgiPiece::Error(range) => self.errors.push(&input[range]),
                FastCgiPiece::Ended(ended) => {
                    self.errors.end();
                    self.ended = Some((ended, true));
                    match ended.protocol_status {
                        ProtocolStatus::Complete => {}
                        ProtocolStatus::Overloaded => return Err("is overloaded"),
                        ProtocolStatus::NotMultiplexed | ProtocolStatus::UnknownRole => {
                            return Err("does not accept requests for the FastCGI role responder");
                        }
                    }
                }
            }
            at += decoded.consumed_bytes;
        }
        Ok(length)
    }

    /// Resets the decoder for another connection.
    pub(super) fn restart(&mut self) {
        (self.decoder, self.ended) = (ResponseDecoder::default(), None);
    }

    /// True if the response has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// True if the server has reported overload.
    pub(super) fn is_overloaded(&self) -> bool {
        matches!(self.ended, Some((ended, _)) if ended.protocol_status == ProtocolStatus::Overloaded)
    }

    /// True if the response has ended, no byte followed it, and the connection may carry another request.
    pub(super) fn is_reusable(&self) -> bool {
        self.is_kept && matches!(self.ended, Some((_, true)))
    }
}
