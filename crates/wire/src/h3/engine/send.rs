//! Outgoing messages. The transport decides what is sent next, and when.

use super::super::frame::{kind, stream_kind, write_header, write_headers};
use super::super::streams::{H3Stream, Receive};
use super::super::{H3StreamId, H3Turn, Priority};
use super::{H3Engine, on_stream};
use crate::field_section::sendable;
use crate::http::Fields;

/// Error of sending on a stream that is closed, or whose message is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H3StreamGone;

impl H3Engine {
    /// Returns the index of a stream on which this side may send.
    fn sending(&self, id: H3StreamId) -> Result<usize, H3StreamGone> {
        self.streams.index(id).filter(|index| !self.streams.at(*index).is_sent).ok_or(H3StreamGone)
    }

    /// Writes a HEADERS frame with the section that `write` appends.
    pub(crate) fn send_section(
        &mut self,
        id: H3StreamId,
        is_last: bool,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), H3StreamGone> {
        let index = self.sending(id)?;
        write_headers(out, write);
        if is_last {
            self.end_sending(index);
        }
        Ok(())
    }

    /// Writes a HEADERS frame with these pseudo-fields and fields, encoded by the connection's encoder.
    pub(crate) fn send_fields<'a>(
        &mut self,
        id: H3StreamId,
        pseudo_fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        fields: &'a Fields,
        is_last: bool,
        out: &mut Vec<u8>,
        turn: &mut H3Turn<'_>,
    ) -> Result<(), H3StreamGone> {
        let index = self.sending(id)?;
        let (encoder, instructions) = (&mut self.encoder, &mut turn.output.encoder);
        on_stream(&mut self.has_encoder_stream, stream_kind::QPACK_ENCODER, instructions, |instructions| {
            let all = pseudo_fields.chain(sendable(fields));
            write_headers(out, |out| encoder.encode(id.0, all, out, instructions));
        });
        if is_last {
            self.end_sending(index);
        }
        Ok(())
    }

    /// Writes the header of a DATA frame.
    pub(crate) fn send_data_header(
        &mut self,
        id: H3StreamId,
        content_bytes: u64,
        is_last: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), H3StreamGone> {
        let index = self.sending(id)?;
        if content_bytes > 0 {
            write_header(out, kind::DATA, content_bytes);
        }
        if is_last {
            self.end_sending(index);
        }
        Ok(())
    }

    /// Ends this side's message.
    fn end_sending(&mut self, index: usize) {
        let stream = self.streams.at_mut(index);
        stream.is_sent = true;
        if stream.receive == Receive::Ended {
            self.streams.remove_at(index);
        }
    }

    /// Opens a stream of this side for a request. Returns whether the peer accepts it.
    pub(crate) fn open_own(&mut self, id: H3StreamId, method: &[u8], turn: &H3Turn<'_>) -> bool {
        if self.closed.is_some() || self.peer_first_unhandled.is_some_and(|first| id.0 >= first) {
            return false;
        }
        let mut stream = H3Stream::new(id.0, turn.limits.body.body_bytes_max);
        stream.has_no_content = method == b"HEAD";
        stream.is_tunnel = method == b"CONNECT";
        self.streams.insert(stream);
        true
    }

    /// Returns the priority of a response.
    pub(crate) fn priority(&mut self, id: H3StreamId) -> Option<Priority> {
        self.streams.find(id).map(|stream| stream.priority)
    }
}
