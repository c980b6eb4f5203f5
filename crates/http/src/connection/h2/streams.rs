//! HTTP/2 as the exchanges of a connection see it.

use std::net::SocketAddr;
use std::ops::Range;

use bytes::Bytes;
use wire::Priority;
use wire::h2::hpack::write_literal;
use wire::h2::{EngineTurn, ErrorCode, H2ServerConnection, Placement, StreamGone, StreamId};
use wire::http::date::DATE_BYTES;
use wire::http::{Fields, Status};

use super::OUTPUT_BYTES;
use crate::connection::Transport;
use crate::connection::exchange::{AlternativeService, HttpStreams, StreamClosed, StreamFault};
use crate::object_cache::EncodedHead;

/// Engine of a connection in a turn.
pub(in crate::connection) struct H2Streams<'a> {
    pub(super) wire: &'a mut H2ServerConnection,
    pub(super) turn: EngineTurn<'a>,
    pub(super) socket: &'a Transport,
}

impl HttpStreams for H2Streams<'_> {
    type Id = StreamId;

    fn local_address(&self) -> Option<SocketAddr> {
        self.socket.local_address()
    }

    fn write_encoded(head: &EncodedHead, date: &[u8; DATE_BYTES], out: &mut Vec<u8>) {
        head.h2.write(date, out);
    }

    fn write_encoded_some(
        head: &EncodedHead,
        date: &[u8; DATE_BYTES],
        out: &mut Vec<u8>,
        keeps: impl FnMut(&[u8]) -> bool,
    ) {
        head.h2.write_some(date, out, &mut Vec::new(), keeps);
    }

    fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        write_literal(out, name, value);
    }

    fn write_alternative(out: &mut Vec<u8>, alternative: &AlternativeService) {
        out.extend_from_slice(alternative.h2());
    }

    fn send_encoded(
        &mut self,
        stream: StreamId,
        is_last: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), StreamClosed> {
        self.wire.send_block(stream, is_last, &mut self.turn, write).map_err(closed)
    }

    fn send_response(
        &mut self,
        stream: StreamId,
        status: Status,
        fields: &Fields,
        is_last: bool,
    ) -> Result<(), StreamClosed> {
        self.wire.send_response(stream, status, fields, is_last, &mut self.turn).map_err(closed)
    }

    fn send_informational(&mut self, stream: StreamId, status: Status, fields: &Fields) -> Result<(), StreamClosed> {
        self.wire.send_informational(stream, status, fields, &mut self.turn).map_err(closed)
    }

    fn reject_tunnel(&mut self, stream: StreamId) {
        self.wire.reject_tunnel(stream);
    }

    fn offer_content(&mut self, stream: StreamId, bytes: u64, is_last: bool) -> Result<(), StreamClosed> {
        self.wire.offer_content(stream, bytes, is_last, &mut self.turn).map_err(closed)
    }

    fn send_content(&mut self, stream: StreamId, bytes: &Bytes, part: Range<usize>, priority: Priority) -> u64 {
        let content = &bytes[part];
        let is_first = content.len() <= OUTPUT_BYTES
            && !self.wire.has_content_to_send()
            && priority.urgency <= Priority::default().urgency;
        let offered = self.wire.offer_content(stream, content.len() as u64, true, &mut self.turn);
        if offered.is_err() || !is_first {
            return 0;
        }
        self.wire.poll_output(usize::MAX, &mut self.turn, |_, range, out| {
            out.extend_from_slice(&content[range.start as usize..range.end as usize]);
            Placement::Copied
        });
        content.len() as u64 - self.wire.unsent_bytes(stream).unwrap_or(0)
    }

    fn send_trailers(&mut self, stream: StreamId, fields: Fields) -> Result<(), StreamClosed> {
        self.wire.send_trailers(stream, fields, &mut self.turn).map_err(closed)
    }

    fn wanted_bytes(&mut self, stream: StreamId) -> u64 {
        self.wire.wanted_bytes(stream)
    }

    fn unsent_bytes(&mut self, stream: StreamId) -> Option<u64> {
        self.wire.unsent_bytes(stream)
    }

    fn take_content(&mut self, stream: StreamId, bytes: usize) {
        self.wire.take_content(stream, bytes, &mut self.turn);
    }

    fn set_body_bytes_max(&mut self, stream: StreamId, body_bytes_max: u64) {
        self.wire.set_body_bytes_max(stream, body_bytes_max);
    }

    fn reset(&mut self, stream: StreamId, fault: StreamFault) {
        let code = match fault {
            StreamFault::Cancelled => ErrorCode::CANCEL,
            StreamFault::Internal => ErrorCode::INTERNAL_ERROR,
            StreamFault::TunnelBroken => ErrorCode::CONNECT_ERROR,
            StreamFault::Overload => ErrorCode::ENHANCE_YOUR_CALM,
        };
        self.wire.reset(stream, code, &mut self.turn);
    }
}

fn closed(_: StreamGone) -> StreamClosed {
    StreamClosed
}
