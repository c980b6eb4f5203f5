//! HTTP/2 without a socket: streams of a connection and their results.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use wire::h1::{BodyLimits, HeadLimits};
use wire::h2::{
    BudgetLimit, ClientEvent, EngineTurn, ErrorCode, H2ClientConnection, H2Limits, H2Output, OutgoingRequest,
    Placement, StreamId,
};
use wire::http::{Fields, Status};

use super::check::BodyJudge;
use super::clock::Nanos;
use super::failure::{FailureClass, FailureReason};
use super::shared::ThreadShared;
use super::workload::WorkloadRequest;

/// Initial window of a stream, as large as in browsers (Chromium).
const STREAM_WINDOW_BYTES: u32 = 6 << 20;
/// Window of a connection, as large as in browsers (Chromium).
const CONNECTION_WINDOW_BYTES: u32 = 15 << 20;
/// Limit of streams before the server's SETTINGS arrive. RFC 9113, section 6.5.2 recommends that servers permit at
/// least this number.
const STREAMS_AT_FIRST: usize = 100;
/// Maximum number of requests that a server may reject in a row with REFUSED_STREAM on a connection. Further ones fail,
/// because a server that rejects everything would get them forever.
const REFUSED_MAX: u32 = 100;
/// Maximum content of requests to write at once.
const CONTENT_BYTES_MAX: usize = 256 << 10;

/// One connection's HTTP/2.
#[derive(Debug)]
pub(crate) struct Http2 {
    connection: H2ClientConnection,
    output: H2Output,
    /// Input that is not understood yet: the beginning of a frame.
    partial: Vec<u8>,
    /// Open streams, in the order of their ids.
    streams: VecDeque<LoadStream>,
    is_settled: bool,
    has_completed: bool,
    /// Requests with REFUSED_STREAM since the last complete response.
    refused: u32,
}

/// A request in flight and the state of its response.
#[derive(Debug)]
struct LoadStream {
    id: StreamId,
    request: u32,
    status: u16,
    verdict: Option<FailureClass>,
    judge: BodyJudge,
    content_bytes: u64,
    /// Received bytes, including heads and frame headers.
    received_bytes: u64,
}

/// Meaning of the input. A place is the index among the requests in flight; 0 is the oldest.
#[derive(Debug)]
pub(crate) enum H2ClientEvent {
    /// The caller must provide more input.
    NeedInput,
    /// An event that concerns no single request.
    Other,
    /// A piece of a response; `received_bytes` counts all of the response so far.
    Piece { place: usize, received_bytes: u64 },
    /// The response is complete, and the request is no longer in flight.
    Complete { place: usize, status: u16, verdict: Option<FailureClass>, received_bytes: u64 },
    /// The request has failed and is no longer in flight.
    Failed { place: usize, class: FailureClass, reason: FailureReason },
    /// The server has not handled the request, which is no longer in flight.
    Refused { place: usize },
    /// The server accepts no more requests. It has not handled those from this place on; they are no longer in flight.
    /// `is_orderly`: the server has answered requests before and sent no error.
    GoAway { from_place: usize, is_orderly: bool, code: u32 },
    /// The input is not valid HTTP/2, for this reason.
    Malformed(&'static str),
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
            partial: Vec::new(),
            streams: VecDeque::new(),
            is_settled: false,
            has_completed: false,
            refused: 0,
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
        let mut turn =
            EngineTurn { now: Duration::from_nanos(now), limits: &shared.http2_limits, output: &mut self.output };
        let has_content = !form.content.is_empty();
        let Some(id) = self.connection.send_request(&form.head(), &form.fields, !has_content, &mut turn) else {
            return;
        };
        if has_content {
            // The stream was just opened, so it still exists.
            let _ = self.connection.offer_content(id, form.content.len() as u64, true, &mut turn);
        }
        self.streams.push_back(LoadStream {
            id,
            request: index,
            status: 0,
            verdict: None,
            judge: BodyJudge::new(request.check.body.as_ref()),
            content_bytes: 0,
            received_bytes: 0,
        });
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
    ) -> (usize, H2ClientEvent) {
        let ThreadShared { http2_limits, http2_fields, requests, .. } = shared;
        let mut turn = EngineTurn { now: Duration::from_nanos(now), limits: http2_limits, output: &mut self.output };
        let handled = self.connection.handle_input(input, http2_fields, &mut turn);
        let consumed_bytes = handled.consumed_bytes as u64;
        let event = match handled.event {
            ClientEvent::NeedInput => H2ClientEvent::NeedInput,
            ClientEvent::AwaitOutput => H2ClientEvent::Other,
            ClientEvent::Response { stream, status, is_last } => {
                let Some(place) = self.place(stream) else { return (handled.consumed_bytes, H2ClientEvent::Other) };
                self.streams[place].on_head(status, http2_fields, requests);
                self.on_piece(place, consumed_bytes, is_last, requests)
            }
            ClientEvent::Content { stream, content, is_last } => {
                self.connection.take_content(stream, content.len(), &mut turn);
                let Some(place) = self.place(stream) else { return (handled.consumed_bytes, H2ClientEvent::Other) };
                self.streams[place].on_content(&input[content], requests);
                self.on_piece(place, consumed_bytes, is_last, requests)
            }
            ClientEvent::Trailers { stream } => match self.place(stream) {
                Some(place) => self.on_piece(place, consumed_bytes, true, requests),
                None => H2ClientEvent::Other,
            },
            other => self.on_end(other),
        };
        self.is_settled |= handled.consumed_bytes > 0;
        (handled.consumed_bytes, event)
    }

    /// Checks the time limits for settings and windows.
    pub(crate) fn handle_timeout(&mut self, shared: &ThreadShared, now: Nanos) -> H2ClientEvent {
        let mut turn =
            EngineTurn { now: Duration::from_nanos(now), limits: &shared.http2_limits, output: &mut self.output };
        match self.connection.handle_timeout(&mut turn) {
            // The connection finds that its request exceeds the time limit, like any other.
            Some(ClientEvent::Reset { .. }) | None => H2ClientEvent::Other,
            Some(event) => self.on_end(event),
        }
    }

    /// Cancels a request that is no longer in flight.
    pub(crate) fn cancel(&mut self, place: usize, shared: &ThreadShared, now: Nanos) {
        let Some(stream) = self.streams.remove(place) else { return };
        let mut turn =
            EngineTurn { now: Duration::from_nanos(now), limits: &shared.http2_limits, output: &mut self.output };
        self.connection.reset(stream.id, ErrorCode::CANCEL, &mut turn);
    }

    /// Announces that no more requests follow.
    pub(crate) fn shut_down(&mut self, shared: &ThreadShared, now: Nanos) {
        let mut turn =
            EngineTurn { now: Duration::from_nanos(now), limits: &shared.http2_limits, output: &mut self.output };
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
            let mut turn = EngineTurn { now: Duration::from_nanos(now), limits: &shared.http2_limits, output };
            let place = |id: StreamId, range: Range<u64>, out: &mut Vec<u8>| {
                let Ok(place) = streams.binary_search_by_key(&id, |stream| stream.id) else { return Placement::Lost };
                let request = &shared.requests[streams[place].request as usize];
                let content = request.http2.as_ref().map_or(&[][..], |form| &form.content);
                // The offered content exists, so the range is valid and fits into memory.
                out.extend_from_slice(&content[range.start as usize..range.end as usize]);
                Placement::Copied
            };
            connection.poll_output(CONTENT_BYTES_MAX, &mut turn, place);
        }
        out.extend_from_slice(self.output.bytes());
        self.output.clear();
    }

    /// Returns whether the server has sent a frame.
    pub(crate) fn has_started(&self) -> bool {
        self.is_settled
    }

    /// Returns whether a part of any response has arrived.
    pub(crate) fn is_within_response(&self) -> bool {
        self.streams.iter().any(|stream| stream.received_bytes > 0)
    }

    fn place(&self, id: StreamId) -> Option<usize> {
        // Servers usually answer in order.
        match self.streams.front() {
            Some(first) if first.id == id => Some(0),
            _ => self.streams.binary_search_by_key(&id, |stream| stream.id).ok(),
        }
    }

    fn on_piece(
        &mut self,
        place: usize,
        consumed_bytes: u64,
        is_last: bool,
        requests: &[WorkloadRequest],
    ) -> H2ClientEvent {
        let stream = &mut self.streams[place];
        stream.received_bytes += consumed_bytes;
        let received_bytes = stream.received_bytes;
        if !is_last {
            return H2ClientEvent::Piece { place, received_bytes };
        }
        // The place was just found, so it is valid.
        let Some(mut stream) = self.streams.remove(place) else { return H2ClientEvent::Other };
        (self.has_completed, self.refused) = (true, 0);
        let check = &requests[stream.request as usize].check;
        let body = stream.judge.finish(check.body.as_ref());
        let verdict = stream.verdict.or_else(|| check.judge_length(stream.content_bytes)).or(body);
        H2ClientEvent::Complete { place, status: stream.status, verdict, received_bytes }
    }

    /// Handles the early end of a stream or of the connection.
    fn on_end(&mut self, event: ClientEvent) -> H2ClientEvent {
        match event {
            ClientEvent::Reset { stream, is_by_peer, code } => {
                let Some(place) = self.place(stream) else { return H2ClientEvent::Other };
                self.streams.remove(place);
                if is_by_peer && code == ErrorCode::REFUSED_STREAM && self.refused < REFUSED_MAX {
                    self.refused += 1;
                    return H2ClientEvent::Refused { place };
                }
                match is_by_peer {
                    true => {
                        let reason = FailureReason::StreamReset(code.0);
                        H2ClientEvent::Failed { place, class: FailureClass::EarlyClose, reason }
                    }
                    false => {
                        let reason = FailureReason::Text(code.name());
                        H2ClientEvent::Failed { place, class: FailureClass::Malformed, reason }
                    }
                }
            }
            ClientEvent::GoAway { last_stream, code } => {
                let from_place = self.streams.partition_point(|stream| stream.id <= last_stream);
                self.streams.truncate(from_place);
                let is_orderly = self.has_completed && code == ErrorCode::NO_ERROR;
                H2ClientEvent::GoAway { from_place, is_orderly, code: code.0 }
            }
            ClientEvent::Closed(error) => H2ClientEvent::Malformed(error.reason),
            _ => H2ClientEvent::Other,
        }
    }
}

impl LoadStream {
    fn on_head(&mut self, status: Status, fields: &Fields, requests: &[WorkloadRequest]) {
        // A final response follows an interim one (RFC 9110, section 15.2).
        if status.code() >= 200 {
            self.status = status.code();
            let check = &requests[self.request as usize].check;
            self.verdict = check.judge_fields(status.code(), |name, is_right| fields.values(name).any(is_right));
        }
    }

    fn on_content(&mut self, content: &[u8], requests: &[WorkloadRequest]) {
        self.content_bytes += content.len() as u64;
        self.judge.update(requests[self.request as usize].check.body.as_ref(), content);
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
        }
    }

    fn head(&self) -> OutgoingRequest<'_> {
        OutgoingRequest {
            method: &self.method,
            scheme: Some(self.scheme),
            authority: Some(&self.authority),
            path: Some(&self.path),
            protocol: None,
        }
    }
}
