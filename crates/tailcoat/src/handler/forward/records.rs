//! The records of a FastCGI server's answer: what is its output, and what of it is for the log.

use wire::fastcgi::{Ended, Piece, ProtocolStatus, ResponseDecoder};

use crate::handler::gateway::ErrorLines;

/// Reads the answer of one request.
pub(super) struct Records {
    decoder: ResponseDecoder,
    errors: ErrorLines,
    /// Whether the server keeps the connection open behind the answer.
    is_kept: bool,
    /// How the answer ended, and whether nothing came behind it.
    ended: Option<(Ended, bool)>,
}

impl Records {
    /// An answer whose errors are these.
    pub(super) fn new(errors: ErrorLines, is_kept: bool) -> Self {
        Self { decoder: ResponseDecoder::default(), errors, is_kept, ended: None }
    }

    /// Takes the output out of `buffer[..filled]` and brings it together at the beginning; returns its length.
    ///
    /// # Errors
    /// Why the records can't be read, or what the server says it can't do.
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
                Piece::Nothing => {}
                Piece::Output(range) => {
                    let output_bytes = range.len();
                    buffer.copy_within(at + range.start..at + range.end, length);
                    length += output_bytes;
                }
                Piece::Error(range) => self.errors.push(&input[range]),
                Piece::Ended(ended) => {
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

    /// Begins again, with another connection.
    pub(super) fn restart(&mut self) {
        (self.decoder, self.ended) = (ResponseDecoder::default(), None);
    }

    /// Whether the answer has come to its end.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether the server has said that it has too much to do.
    pub(super) fn is_overloaded(&self) -> bool {
        matches!(self.ended, Some((ended, _)) if ended.protocol_status == ProtocolStatus::Overloaded)
    }

    /// Whether the answer has come to its end, and nothing behind it, so that the connection can have another request.
    pub(super) fn is_reusable(&self) -> bool {
        self.is_kept && matches!(self.ended, Some((_, true)))
    }
}
