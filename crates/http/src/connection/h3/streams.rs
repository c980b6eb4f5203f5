//! Streams of a connection, as exchanges use them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tailcoat_quic::QuicStreamId;
use wire::Priority;
use wire::h3::{H3ErrorCode, H3Limits, H3Output, H3ServerConnection, H3StreamGone, H3StreamId, H3Turn};
use wire::http::date::DATE_BYTES;
use wire::http::{Fields, Status};
use wire::qpack::write_literal;

use crate::connection::exchange::{AlternativeService, HttpStreams, StreamClosed, StreamFault};
use crate::connection::quic::QuicTransport;
use crate::object_cache::EncodedHead;

/// Largest piece of a stream's content that is fetched before QUIC has accepted the one before, in bytes.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// Largest content that is sent together with its head, in bytes.
const AT_ONCE_BYTES_MAX: usize = PIECE_BYTES;

/// Largest content that is copied to its head, in bytes. Longer content is shared with the cache.
const COPIED_BYTES_MAX: usize = 512;

/// Streams of a connection, with its engines.
pub(super) struct H3Streams {
    pub(super) transport: QuicTransport,
    pub(super) engine: H3ServerConnection,
    pub(super) limits: Rc<H3Limits>,
    /// Output of the connection itself.
    pub(super) output: H3Output,
    /// Time of the turn, in the form for the engine.
    pub(super) now: Duration,
    /// Request streams, sorted.
    pub(super) requests: VecDeque<RequestStream>,
    /// Unidirectional streams of the client.
    incoming: Vec<H3UniStream>,
    /// Request streams with output.
    pub(super) unsent: Vec<H3StreamId>,
    /// Streams that may have input.
    pub(super) readable: Vec<H3StreamId>,
    /// Streams whose input waits until output of the connection itself is sent.
    stalled: Vec<H3StreamId>,
    /// Buffer for the input of one stream at a time.
    pub(super) pieces: Vec<Bytes>,
}

/// Stream of a request and its response.
pub(super) struct RequestStream {
    pub(super) id: H3StreamId,
    pub(super) receiving: ReceivingSide,
    /// Output before that in `output` that QUIC has not accepted.
    pub(super) head: Bytes,
    /// Output in the form of frames.
    pub(super) output: Vec<u8>,
    /// Content after the output that QUIC has not accepted. May be shared with the cache.
    pub(super) piece: Bytes,
    /// Content that follows the piece and was not fetched.
    pub(super) offered_bytes: u64,
    /// Trailers that follow the content.
    pub(super) trailers: Vec<u8>,
    /// True if the stream ends after all that.
    pub(super) is_last: bool,
    /// True if QUIC has accepted the end.
    pub(super) is_finished: bool,
    /// True if the stream is in `unsent`.
    pub(super) is_unsent: bool,
    /// True for a CONNECT request.
    pub(super) is_tunnel: bool,
}

/// Unidirectional stream of the client.
struct H3UniStream {
    id: H3StreamId,
    receiving: ReceivingSide,
}

/// Input of a stream.
pub(super) struct ReceivingSide {
    /// Input that is not processed: the beginning of a frame, or a section that waits for QPACK instructions.
    pub(super) kept: Vec<u8>,
    /// True if QUIC has delivered the end of the stream.
    pub(super) has_ended: bool,
    /// True if the stream is in `readable`.
    pub(super) is_readable: bool,
    /// Bytes of content that no handler has taken.
    pub(super) untaken_bytes: usize,
}

impl ReceivingSide {
    /// Input of a stream that the client has opened, and that must be read.
    fn new() -> Self {
        Self { kept: Vec::new(), has_ended: false, is_readable: true, untaken_bytes: 0 }
    }
}

/// Converts an id to the form of QUIC.
pub(super) fn quic_id(id: H3StreamId) -> QuicStreamId {
    QuicStreamId(id.0)
}

/// Converts an id to the form of HTTP/3.
pub(super) fn h3_id(id: QuicStreamId) -> H3StreamId {
    H3StreamId(id.0)
}

impl H3Streams {
    /// Makes the streams of a connection that has received nothing.
    pub(super) fn new(transport: QuicTransport, limits: Rc<H3Limits>) -> Self {
        let (output, requests, incoming, unsent, readable, stalled, pieces) = Default::default();
        let mut engine = H3ServerConnection::new(&limits);
        engine.set_streams_end(H3StreamId(4 * limits.concurrent_streams_max as u64));
        let now = Duration::ZERO;
        Self { transport, engine, limits, output, now, requests, incoming, unsent, readable, stalled, pieces }
    }

    /// Splits into the engine and its resources.
    pub(super) fn engine(&mut self) -> (&mut H3ServerConnection, H3Turn<'_>) {
        let Self { engine, limits, output, now, .. } = self;
        (engine, H3Turn { now: *now, limits, output })
    }

    /// Adds a stream that the client has opened, which is read next.
    pub(super) fn open(&mut self, id: H3StreamId) {
        self.push_readable(id);
        if id.is_unidirectional() {
            return self.incoming.push(H3UniStream { id, receiving: ReceivingSide::new() });
        }
        let output = self.transport.take_buffer();
        let index = match self.requests.back() {
            Some(last) if last.id > id => self.requests.partition_point(|other| other.id < id),
            _ => self.requests.len(),
        };
        self.requests.insert(index, RequestStream::new(id, output));
    }

    /// Permits further requests, after the client has opened the stream of this one.
    pub(super) fn on_newest(&mut self, newest: H3StreamId) {
        let streams_max = self.limits.concurrent_streams_max;
        self.engine.set_streams_end(H3StreamId(newest.0 + 4 * (streams_max as u64 + 1)));
    }

    /// Request stream with this id.
    pub(super) fn find(&mut self, id: H3StreamId) -> Option<&mut RequestStream> {
        let index = self.index(id)?;
        Some(&mut self.requests[index])
    }

    /// Place of a request stream, until another one is added or removed.
    pub(super) fn index(&self, id: H3StreamId) -> Option<usize> {
        // Ids of requests are 4 apart (RFC 9000, section 2.1). Unless a stream between has ended, this is the place.
        let before = (id.0.checked_sub(self.requests.front()?.id.0)? / 4) as usize;
        if self.requests.get(before).is_some_and(|stream| stream.id == id) {
            return Some(before);
        }
        self.requests.binary_search_by_key(&id, |stream| stream.id).ok()
    }

    /// Input of a stream with the transport, and true if this side has ended its part.
    pub(super) fn receiving(&mut self, id: H3StreamId) -> Option<(&mut QuicTransport, &mut ReceivingSide, bool)> {
        if id.is_unidirectional() {
            let stream = self.incoming.iter_mut().find(|stream| stream.id == id)?;
            return Some((&mut self.transport, &mut stream.receiving, true));
        }
        let index = self.index(id)?;
        let RequestStream { receiving, is_finished, .. } = &mut self.requests[index];
        Some((&mut self.transport, receiving, *is_finished))
    }

    /// Keeps input of a stream that was not processed.
    pub(super) fn keep_input(&mut self, id: H3StreamId, kept: Vec<u8>) {
        if let Some((_, receiving, _)) = self.receiving(id) {
            receiving.kept = kept;
        }
    }

    /// Forgets a unidirectional stream of the client.
    pub(super) fn forget_incoming(&mut self, id: H3StreamId) {
        self.incoming.retain(|stream| stream.id != id);
    }

    /// Removes a request stream.
    pub(super) fn remove(&mut self, id: H3StreamId) {
        if let Some(index) = self.index(id) {
            self.remove_at(index);
        }
    }

    /// Removes the request stream at an index.
    pub(super) fn remove_at(&mut self, index: usize) {
        if let Some(RequestStream { output, .. }) = self.requests.remove(index) {
            self.transport.keep_buffer(output);
        }
    }

    /// Drops all streams, because the connection is closed.
    pub(super) fn clear(&mut self) {
        self.requests = VecDeque::new();
        (self.incoming, self.unsent, self.readable, self.stalled) = Default::default();
        self.output = H3Output::default();
    }

    /// True if any stream has output that QUIC has not accepted.
    pub(super) fn has_unsent(&self) -> bool {
        self.output.length() > 0 || self.requests.iter().any(RequestStream::has_output)
    }

    /// True if no request stream is open.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// True if a request's head is incomplete.
    pub(super) fn has_partial_input(&self) -> bool {
        self.requests.iter().any(|stream| !stream.receiving.has_ended && !stream.receiving.kept.is_empty())
    }

    /// Bytes of memory that the streams hold, without content that exchanges hold.
    pub(super) fn held_bytes(&mut self) -> usize {
        let requests = self.requests.iter().map(RequestStream::held_bytes).sum::<usize>();
        let incoming = self.incoming.iter().map(|stream| stream.receiving.kept.capacity()).sum::<usize>();
        self.output.length() + requests + incoming + self.transport.held_bytes()
    }

    /// Lets QUIC keep as much output as the line of the client needs.
    pub(super) fn fit_send_window(&mut self) {
        self.transport.fit_send_window(self.requests.len(), PIECE_BYTES);
    }

    /// Frees memory that an idle connection does not need.
    pub(super) fn shrink(&mut self) {
        self.engine.shrink();
        self.transport.shrink();
        self.requests.shrink_to_fit();
        (self.unsent, self.readable, self.pieces) = Default::default();
    }

    /// Lets the connection read a stream, if it is open.
    pub(super) fn mark_readable(&mut self, id: H3StreamId) {
        if let Some((_, receiving, _)) = self.receiving(id)
            && !std::mem::replace(&mut receiving.is_readable, true)
        {
            self.push_readable(id);
        }
    }

    /// Unidirectional streams are read first, because requests may depend on their instructions and priorities.
    fn push_readable(&mut self, id: H3StreamId) {
        let index = if id.is_unidirectional() { 0 } else { self.readable.len() };
        self.readable.insert(index, id);
    }

    /// Lets a stream be read again in the next turn.
    pub(super) fn stall(&mut self, id: H3StreamId) {
        if !self.stalled.contains(&id) {
            self.stalled.push(id);
        }
    }

    /// Lets stalled streams be read.
    pub(super) fn resume_stalled(&mut self) {
        for id in std::mem::take(&mut self.stalled) {
            self.mark_readable(id);
        }
    }

    /// Lets the connection send output of a stream.
    pub(super) fn mark_unsent(&mut self, id: H3StreamId) {
        if let Some(stream) = self.find(id)
            && !std::mem::replace(&mut stream.is_unsent, true)
        {
            self.unsent.push(id);
        }
    }

    /// Resets both directions of a stream, and forgets it.
    pub(super) fn abort(&mut self, id: H3StreamId, code: H3ErrorCode) {
        let streams = self.transport.proto.streams();
        // Either direction may be closed already.
        if !id.is_unidirectional() {
            streams.reset(quic_id(id), code.0);
        }
        streams.stop(quic_id(id), code.0);
        self.remove(id);
    }

    /// Calls `write` with the engine and the output of a stream.
    fn write(
        &mut self,
        id: H3StreamId,
        write: impl FnOnce(&mut H3ServerConnection, &mut RequestStream, H3Turn<'_>) -> Result<(), H3StreamGone>,
    ) -> Result<(), StreamClosed> {
        let index = self.index(id).ok_or(StreamClosed)?;
        let Self { engine, limits, output, now, requests, unsent, .. } = self;
        let state = &mut requests[index];
        // Output follows content that was fetched before.
        state.output.extend_from_slice(&std::mem::take(&mut state.piece));
        write(engine, state, H3Turn { now: *now, limits, output }).map_err(|_| StreamClosed)?;
        if !std::mem::replace(&mut state.is_unsent, true) {
            unsent.push(id);
        }
        Ok(())
    }
}

impl RequestStream {
    fn new(id: H3StreamId, output: Vec<u8>) -> Self {
        Self {
            id,
            receiving: ReceivingSide::new(),
            head: Bytes::new(),
            output,
            piece: Bytes::new(),
            offered_bytes: 0,
            trailers: Vec::new(),
            is_last: false,
            is_finished: false,
            is_unsent: false,
            is_tunnel: false,
        }
    }

    /// True if there is output that QUIC has not accepted.
    pub(super) fn has_output(&self) -> bool {
        self.pending_bytes() > 0 || self.offered_bytes > 0 || !self.trailers.is_empty()
    }

    /// Bytes of output and fetched content that QUIC has not accepted.
    fn pending_bytes(&self) -> usize {
        self.head.len() + self.output.len() + self.piece.len()
    }

    fn held_bytes(&self) -> usize {
        let buffers = [&self.receiving.kept, &self.output, &self.trailers];
        size_of::<Self>() + buffers.map(Vec::capacity).iter().sum::<usize>() + self.head.len() + self.piece.len()
    }
}

impl HttpStreams for H3Streams {
    type Id = H3StreamId;

    fn local_address(&self) -> Option<SocketAddr> {
        Some(self.transport.local_address())
    }

    fn write_encoded(head: &EncodedHead, date: &[u8; DATE_BYTES], out: &mut Vec<u8>) {
        head.h3.write(date, out);
    }

    fn write_encoded_some(
        head: &EncodedHead,
        date: &[u8; DATE_BYTES],
        out: &mut Vec<u8>,
        keeps: impl FnMut(&[u8]) -> bool,
    ) {
        head.h3.write_some(date, out, &mut Vec::new(), keeps);
    }

    fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        write_literal(out, name, value);
    }

    fn write_alternative(_: &mut Vec<u8>, _: &AlternativeService) {
        // The client has found HTTP/3.
    }

    fn send_encoded(
        &mut self,
        stream: H3StreamId,
        is_last: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), StreamClosed> {
        self.write(stream, |engine, state, _| {
            state.is_last |= is_last;
            engine.send_section(stream, is_last, &mut state.output, write)
        })
    }

    fn send_response(
        &mut self,
        stream: H3StreamId,
        status: Status,
        fields: &Fields,
        is_last: bool,
    ) -> Result<(), StreamClosed> {
        self.write(stream, |engine, state, mut turn| {
            state.is_last |= is_last;
            engine.send_response(stream, status, fields, is_last, &mut state.output, &mut turn)
        })
    }

    fn send_informational(&mut self, stream: H3StreamId, status: Status, fields: &Fields) -> Result<(), StreamClosed> {
        self.send_response(stream, status, fields, false)
    }

    fn reject_tunnel(&mut self, stream: H3StreamId) {
        self.engine.reject_tunnel(stream);
        if let Some(stream) = self.find(stream) {
            stream.is_tunnel = false;
        }
    }

    fn offer_content(&mut self, stream: H3StreamId, bytes: u64, is_last: bool) -> Result<(), StreamClosed> {
        self.write(stream, |engine, state, _| {
            state.is_last |= is_last;
            engine.send_data_header(stream, bytes, is_last, &mut state.output)?;
            state.offered_bytes += bytes;
            Ok(())
        })
    }

    fn send_content(&mut self, stream: H3StreamId, bytes: &Bytes, part: Range<usize>, _: Priority) -> u64 {
        let length = part.len();
        if length > AT_ONCE_BYTES_MAX {
            // A closed stream is reported as an event.
            let _ = self.offer_content(stream, length as u64, true);
            return 0;
        }
        let written = self.write(stream, |engine, state, _| {
            state.is_last = true;
            engine.send_data_header(stream, length as u64, true, &mut state.output)?;
            if length > COPIED_BYTES_MAX {
                state.piece = bytes.slice(part);
            } else {
                state.output.extend_from_slice(&bytes[part]);
            }
            Ok(())
        });
        written.map_or(0, |()| length as u64)
    }

    fn send_trailers(&mut self, stream: H3StreamId, fields: Fields) -> Result<(), StreamClosed> {
        self.write(stream, |engine, state, mut turn| {
            state.is_last = true;
            engine.send_trailers(stream, &fields, &mut state.trailers, &mut turn)
        })
    }

    fn wanted_bytes(&mut self, stream: H3StreamId) -> u64 {
        // The head of a DATA frame follows the output, so QUIC must have accepted the content before it.
        let state = self.find(stream).filter(|state| state.offered_bytes == 0 && state.piece.is_empty());
        state.map_or(0, |state| PIECE_BYTES.saturating_sub(state.pending_bytes()) as u64)
    }

    fn unsent_bytes(&mut self, stream: H3StreamId) -> Option<u64> {
        self.find(stream).map(|state| state.offered_bytes)
    }

    fn take_content(&mut self, stream: H3StreamId, bytes: usize) {
        if let Some(state) = self.find(stream) {
            state.receiving.untaken_bytes = state.receiving.untaken_bytes.saturating_sub(bytes);
            self.mark_readable(stream);
        }
    }

    fn set_body_bytes_max(&mut self, stream: H3StreamId, body_bytes_max: u64) {
        self.engine.set_body_bytes_max(stream, body_bytes_max);
    }

    fn reset(&mut self, stream: H3StreamId, fault: StreamFault) {
        if self.find(stream).is_none() {
            // QUIC has the whole response, and a reset would drop what the client has not acknowledged.
            return;
        }
        let (engine, mut turn) = self.engine();
        engine.reset(stream, &mut turn);
        self.abort(
            stream,
            match fault {
                StreamFault::Cancelled => H3ErrorCode::H3_REQUEST_CANCELLED,
                StreamFault::Internal => H3ErrorCode::H3_INTERNAL_ERROR,
                StreamFault::TunnelBroken => H3ErrorCode::H3_CONNECT_ERROR,
                StreamFault::Overload => H3ErrorCode::H3_EXCESSIVE_LOAD,
            },
        );
    }
}
