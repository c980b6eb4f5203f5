//! HTTP/2 without a socket: streams of a connection and their results.

use std::ops::Range;
use std::time::Duration;

use wire::h1::{BodyLimits, HeadLimits};
use wire::h2::{
    BudgetLimit, ClientEvent, EngineTurn, ErrorCode, H2ClientConnection, H2Limits, H2Output, OutgoingRequest,
    Placement, StreamId,
};
use wire::http::Fields;

use super::clock::Nanos;
use super::failure::{FailureClass, FailureReason};
use super::shared::ThreadShared;
use super::streams::{LoadStreams, ResponseEvent};
use super::workload::WorkloadRequest;

/// Initial window of a stream, as large as in browsers (Chromium).
const STREAM_WINDOW_BYTES: u32 = 6 << 20;
/// Window of a connection, as large as in browsers (Chromium).
const CONNECTION_WINDOW_BYTES: u32 = 15 << 20;
/// Limit of streams before the server's SETTINGS arrive. RFC 9113, section 6.5.2 recommends that servers permit at
/// least this number.
const STREAMS_AT_FIRST: usize = 100;
/// Maximum content to write at once.
pub(super) const CONTENT_BYTES_MAX: usize = 256 << 10;

/// Resources of the engine for one call.
pub(super) fn engine_turn<'a>(output: &'a mut H2Output, limits: &'a H2Limits, now: Nanos) -> EngineTurn<'a> {
    EngineTurn { now: Duration::from_nanos(now), limits, output }
}

/// Moves output to `filled`, so that the connection handles further input. The caller takes all of it after each read,
/// so it is bounded by the size of a read.
pub(super) fn make_room(output: &mut H2Output, filled: &mut Vec<u8>) {
    filled.extend_from_slice(output.bytes());
    output.clear();
}

/// One connection's HTTP/2.
#[derive(Debug)]
pub(crate) struct Http2 {
    connection: H2ClientConnection,
    output: H2Output,
    /// Output that input has filled; it precedes the rest.
    filled: Vec<u8>,
    /// Input that is not understood yet: the beginning of a frame.
    partial: Vec<u8>,
    streams: LoadStreams<StreamId>,
    is_settled: bool,
}

/// Returns the limits of all connections of a run. The load generator does not defend itself against the server,
/// because it counts everything the server does. So there are no budgets, and the time limit ends what could continue
/// forever.
pub(crate) fn limits(time_out: Duration) -> H2Limits {
    let unlimited = BudgetLimit { burst: u32::MAX - 1, per_second: u32::MAX };
    H2Limits {
        head: HeadLimits { head_bytes_max: 64 << 10, fields_max: 256, target_bytes_max: 0 },
        body: BodyLimits { body_bytes_max: u64::MAX, extension_bytes_max: 0, trailer_bytes_max: 64 << 10 },
        header_block_bytes_max: 64 << 10,
        encoder_table_bytes_max: 4096,
        stream_window_bytes: STREAM_WINDOW_BYTES,
        connection_window_bytes: CONNECTION_WINDOW_BYTES,
        window_bytes_max: CONNECTION_WINDOW_BYTES,
        settings_timeout: time_out,
        stalled_timeout: time_out,
        peer_resets: unlimited,
        stream_faults: unlimited,
        settings: unlimited,
        pings: unlimited,
        priorities: unlimited,
        window_updates: unlimited,
        idle_frames: unlimited,
        ..H2Limits::default()
    }
}

impl Http2 {
    /// Creates a connection and writes its preface.
    pub(crate) fn new(limits: &H2Limits, now: Nanos) -> Self {
        let now = Duration::from_nanos(now);
        let mut http2 = Self {
            connection: H2ClientConnection::new(now, limits),
            output: H2Output::default(),
            filled: Vec::new(),
            partial: Vec::new(),
            streams: LoadStreams::default(),
            is_settled: false,
        };
        http2.connection.start(&mut EngineTurn { now, limits, output: &mut http2.output });
        http2
    }

    /// Returns whether the server accepts another request now.
    pub(crate) fn takes_requests(&self) -> bool {
        (self.is_settled || self.streams.len() < STREAMS_AT_FIRST) && self.connection.can_open()
    }

    /// Writes a request. The server must accept [one more](Http2::takes_requests).
    pub(crate) fn request(&mut self, index: u32, shared: &ThreadShared, now: Nanos) {
        let request = &shared.requests[index as usize];
        let Some(form) = &request.http2 else { return };
        let mut turn = engine_turn(&mut self.output, &shared.http2_limits, now);
        let has_content = !form.content.is_empty();
        let Some(id) = self.connection.send_request(&form.head(), &form.fields, !has_content, &mut turn) else {
            return;
        };
        if has_content {
            // The stream was just opened, so it still exists.
            let _ = self.connection.offer_content(id, form.content.len() as u64, true, &mut turn);
        }
        self.streams.push(id, index, &shared.requests);
    }

    /// Joins earlier input that was incomplete with this input.
    pub(crate) fn join(&mut self, input: &[u8]) -> Option<Vec<u8>> {
        if self.partial.is_empty() {
            return None; // Which leaves its memory where it is.
        }
        let mut joined = std::mem::take(&mut self.partial);
        joined.extend_from_slice(input);
        Some(joined)
    }

    /// Keeps the incomplete rest of `joined`, if present, or of `input`: everything from `at` on.
    pub(crate) fn keep(&mut self, joined: Option<Vec<u8>>, input: &[u8], at: usize) {
        match joined {
            Some(mut joined) => {
                joined.drain(..at);
                self.partial = joined;
            }
            None => self.partial.extend_from_slice(&input[at..]),
        }
    }

    /// Handles input. Call it with the rest until it needs more.
    pub(crate) fn handle_input(
        &mut self,
        input: &[u8],
        shared: &mut ThreadShared,
        now: Nanos,
    ) -> (usize, ResponseEvent) {
        let ThreadShared { http2_limits, response_fields, requests, .. } = shared;
        let mut turn = engine_turn(&mut self.output, http2_limits, now);
        let handled = self.connection.handle_input(input, response_fields, &mut turn);
        let consumed_bytes = handled.consumed_bytes as u64;
        let event = match handled.event {
            ClientEvent::NeedInput => ResponseEvent::NeedInput,
            ClientEvent::AwaitOutput => {
                make_room(&mut self.output, &mut self.filled);
                ResponseEvent::Other
            }
            ClientEvent::Response { stream, status, is_last } => {
                if let Some(place) = self.streams.place(stream) {
                    self.streams.on_head(place, status, response_fields, requests);
                }
                self.on_piece(stream, consumed_bytes, is_last, requests)
            }
            ClientEvent::Content { stream, content, is_last } => {
                self.connection.take_content(stream, content.len(), &mut turn);
                if let Some(place) = self.streams.place(stream) {
                    self.streams.on_content(place, &input[content], requests);
                }
                self.on_piece(stream, consumed_bytes, is_last, requests)
            }
            ClientEvent::Trailers { stream } => {
                if let Some(place) = self.streams.place(stream) {
                    self.streams.on_trailers(place, response_fields);
                }
                self.on_piece(stream, consumed_bytes, true, requests)
            }
            other => self.on_end(other),
        };
        self.is_settled |= handled.consumed_bytes > 0;
        (handled.consumed_bytes, event)
    }

    /// Checks the time limits for settings and windows.
    pub(crate) fn handle_timeout(&mut self, shared: &ThreadShared, now: Nanos) -> ResponseEvent {
        let mut turn = engine_turn(&mut self.output, &shared.http2_limits, now);
        match self.connection.handle_timeout(&mut turn) {
            // The connection finds that its request exceeds the time limit, like any other.
            Some(ClientEvent::Reset { .. }) | None => ResponseEvent::Other,
            Some(event) => self.on_end(event),
        }
    }

    /// Cancels a request that is no longer in flight.
    pub(crate) fn cancel(&mut self, place: usize, shared: &ThreadShared, now: Nanos) {
        let Some(id) = self.streams.remove(place) else { return };
        let mut turn = engine_turn(&mut self.output, &shared.http2_limits, now);
        self.connection.reset(id, ErrorCode::CANCEL, &mut turn);
    }

    /// Announces that no more requests follow.
    pub(crate) fn shut_down(&mut self, shared: &ThreadShared, now: Nanos) {
        let mut turn = engine_turn(&mut self.output, &shared.http2_limits, now);
        self.connection.shut_down(&mut turn);
    }

    /// Returns whether content of a request can be sent now.
    pub(crate) fn has_content_to_send(&self) -> bool {
        self.connection.has_content_to_send()
    }

    /// Appends output to `out`; content of requests only `with_content`.
    pub(crate) fn take_output(&mut self, with_content: bool, shared: &ThreadShared, now: Nanos, out: &mut Vec<u8>) {
        if with_content && self.connection.has_content_to_send() {
            let Self { connection, output, streams, .. } = self;
            let mut turn = engine_turn(output, &shared.http2_limits, now);
            let place = |id: StreamId, range: Range<u64>, out: &mut Vec<u8>| {
                let Some(request) = streams.request(id) else { return Placement::Lost };
                let request = &shared.requests[request as usize];
                let content = request.http2.as_ref().map_or(&[][..], |form| &form.content);
                // The offered content exists, so the range is valid and fits into memory.
                out.extend_from_slice(&content[range.start as usize..range.end as usize]);
                Placement::Copied
            };
            connection.poll_output(CONTENT_BYTES_MAX, &mut turn, place);
        }
        out.append(&mut self.filled);
        out.extend_from_slice(self.output.bytes());
        self.output.clear();
    }

    /// Returns whether the server has sent a frame.
    pub(crate) fn has_started(&self) -> bool {
        self.is_settled
    }

    /// Returns whether a part of any response has arrived.
    pub(crate) fn is_within_response(&self) -> bool {
        self.streams.has_response()
    }

    fn on_piece(
        &mut self,
        stream: StreamId,
        consumed_bytes: u64,
        is_last: bool,
        requests: &[WorkloadRequest],
    ) -> ResponseEvent {
        match self.streams.place(stream) {
            Some(place) => self.streams.on_piece(place, consumed_bytes, is_last, requests),
            None => ResponseEvent::Other,
        }
    }

    /// Handles the early end of a stream or of the connection.
    fn on_end(&mut self, event: ClientEvent) -> ResponseEvent {
        match event {
            ClientEvent::Reset { stream, is_by_peer, code } => {
                let (class, reason) = match is_by_peer {
                    true => (FailureClass::EarlyClose, FailureReason::StreamReset(code.0)),
                    false => (FailureClass::Malformed, FailureReason::Text(code.name())),
                };
                let is_refusal = is_by_peer && code == ErrorCode::REFUSED_STREAM;
                self.streams.on_reset(stream, is_refusal, class, reason)
            }
            ClientEvent::GoAway { last_stream, code } => {
                let reason = FailureReason::GoAway(code.0);
                self.streams.on_go_away(|id| id <= last_stream, code != ErrorCode::NO_ERROR, reason)
            }
            ClientEvent::Closed(error) => ResponseEvent::Malformed(error.reason),
            _ => ResponseEvent::Other,
        }
    }
}

/// HTTP/2 encoding of a request.
#[derive(Debug)]
pub(crate) struct Http2Request {
    method: Box<[u8]>,
    scheme: &'static [u8],
    authority: Box<[u8]>,
    path: Box<[u8]>,
    fields: Fields,
    content: Box<[u8]>,
    /// Protocol of an extended CONNECT (RFC 8441).
    protocol: Option<&'static [u8]>,
}

impl Http2Request {
    /// Encodes a request. Host in `fields` becomes `:authority` (RFC 9113, section 8.3.1).
    pub(crate) fn new(method: &str, is_tls: bool, target: &str, fields: &Fields, content: &[u8]) -> Self {
        let mut others = fields.clone();
        others.remove("Host");
        if !content.is_empty() {
            others.push("Content-Length", content.len().to_string());
        }
        Self {
            method: method.as_bytes().into(),
            scheme: if is_tls { b"https" } else { b"http" },
            authority: fields.get("Host").unwrap_or_default().into(),
            path: target.as_bytes().into(),
            fields: others,
            content: content.into(),
            protocol: None,
        }
    }

    /// Encodes a request that opens a WebSocket (RFC 8441, section 5).
    pub(crate) fn web_socket(is_tls: bool, target: &str, fields: &Fields) -> Self {
        let mut fields = fields.clone();
        fields.push("sec-websocket-version", "13");
        Self { protocol: Some(b"websocket"), ..Self::new("CONNECT", is_tls, target, &fields, b"") }
    }

    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    pub(super) fn head(&self) -> OutgoingRequest<'_> {
        OutgoingRequest {
            method: &self.method,
            scheme: Some(self.scheme),
            authority: Some(&self.authority),
            path: Some(&self.path),
            protocol: self.protocol,
        }
    }
}
