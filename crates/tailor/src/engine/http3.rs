//! HTTP/3 on one QUIC connection: streams and their results.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{
    ConnectionError, ConnectionHandle, Dir, Event, ReadError, StreamEvent, StreamId, Transmit, VarInt, WriteError,
};
use rustix::io::Errno;
use wire::h1::{BodyLimits, HeadLimits};
use wire::h3::{
    BudgetLimit, H3ClientConnection, H3ErrorCode, H3Event, H3IncomingResponse, H3Limits, H3Output, H3PreparedRequest,
    H3StreamId, H3Turn, OutgoingRequest,
};
use wire::http::Fields;

use super::clock::Nanos;
use super::failure::{FailureClass, FailureReason};
use super::quic::{ClientDatagramSocket, ReceivedBatch, SentBurst};
use super::shared::ThreadShared;
use super::streams::{LoadStreams, ResponseEvent};
use super::workload::WorkloadRequest;

/// Code of a CONNECTION_CLOSE for a TLS alert (RFC 9001, section 4.8), and the alerts that reasons explain.
const CRYPTO_ERROR: u64 = 0x100;
const NO_APPLICATION_PROTOCOL: u64 = CRYPTO_ERROR + 120;

/// One connection's HTTP/3.
pub(crate) struct Http3 {
    socket: ClientDatagramSocket,
    quic: quinn_proto::Connection,
    handle: ConnectionHandle,
    engine: H3ClientConnection,
    output: H3Output,
    /// Streams of this side, in the order of the buffers in [`H3Output`].
    own: [Option<StreamId>; 3],
    /// Stream for the next request, if the server accepts one.
    next_stream: Option<StreamId>,
    streams: LoadStreams<H3StreamId>,
    /// Input that is not understood yet: beginnings of frames, by stream.
    partial: Vec<(H3StreamId, Vec<u8>)>,
    /// Requests that QUIC has not accepted yet, by stream.
    unsent: Vec<(StreamId, Bytes)>,
    /// Output that the socket has not accepted.
    blocked: Option<(Transmit, Vec<u8>)>,
    /// Buffer for the input of a stream.
    pieces: Vec<Bytes>,
    /// Buffer for frames whose bytes are known already.
    scratch: Vec<u8>,
    is_open: bool,
    is_full_handshake: bool,
    early_data: EarlyData,
    /// True if a ticket for another connection has arrived.
    has_ticket: bool,
    /// Responses that are complete since the connection began or moved.
    completed: u64,
    /// Time when the last datagram arrived.
    pub(crate) heard: Nanos,
}

/// Early data of a connection (0-RTT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EarlyData {
    None,
    /// Requests were sent before the handshake.
    Sent,
    Accepted,
}

/// Event of a connection.
#[derive(Debug)]
pub(crate) enum Http3Event {
    /// The handshake is complete. True if the server has accepted early data.
    Open { is_early: bool },
    /// A request or the whole connection.
    Response(ResponseEvent),
    /// The connection is over.
    Lost(FailureClass, FailureReason),
}

/// Reply to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http3Reply {
    Continue,
    /// Cancel the request at this place, which is no longer in flight.
    Cancel(usize),
    /// The connection is no longer used.
    Stop,
}

/// Handler of events.
pub(crate) type OnHttp3Event<'a> = &'a mut dyn FnMut(Http3Event, &mut ThreadShared) -> Http3Reply;

/// Result of handling input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Continue,
    /// The stream delivers nothing more.
    StreamOver,
    Stop,
}

/// Returns the limits of all connections of a run. As for HTTP/2, the load generator does not defend itself.
pub(crate) fn limits() -> H3Limits {
    let unlimited = BudgetLimit { burst: u32::MAX - 1, per_second: u32::MAX };
    H3Limits {
        head: HeadLimits { head_bytes_max: 64 << 10, fields_max: 256, target_bytes_max: 0 },
        body: BodyLimits { body_bytes_max: u64::MAX, extension_bytes_max: 0, trailer_bytes_max: 64 << 10 },
        field_section_bytes_max: 64 << 10,
        unknown_frame_bytes_max: u64::MAX,
        peer_resets: unlimited,
        stream_faults: unlimited,
        priorities: unlimited,
        idle_frames: unlimited,
        ..H3Limits::default()
    }
}

impl fmt::Debug for Http3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3").field("handle", &self.handle).field("streams", &self.streams).finish_non_exhaustive()
    }
}

impl Http3 {
    /// Creates a connection whose handshake begins.
    pub(crate) fn new(
        socket: ClientDatagramSocket,
        (handle, quic): (ConnectionHandle, quinn_proto::Connection),
        limits: &H3Limits,
        now: Nanos,
    ) -> Self {
        Self {
            socket,
            quic,
            handle,
            engine: H3ClientConnection::new(limits),
            output: H3Output::default(),
            own: [None; 3],
            next_stream: None,
            streams: LoadStreams::default(),
            partial: Vec::new(),
            unsent: Vec::new(),
            blocked: None,
            pieces: Vec::new(),
            scratch: Vec::new(),
            is_open: false,
            is_full_handshake: false,
            early_data: EarlyData::None,
            has_ticket: false,
            completed: 0,
            heard: now,
        }
    }

    /// Begins HTTP/3 before the handshake is complete, if an earlier connection permits it. Returns whether it does.
    pub(crate) fn begin_early(&mut self, shared: &ThreadShared, now: Nanos) -> bool {
        let is_early = self.quic.has_0rtt();
        if is_early {
            self.early_data = EarlyData::Sent;
            self.begin(shared, now);
        }
        is_early
    }

    /// True if the connection, which had early data, has no ticket for the next one yet.
    pub(crate) fn awaits_ticket(&self) -> bool {
        self.early_data != EarlyData::None && !self.has_ticket
    }

    /// True if this number of responses is complete since the connection began or moved.
    pub(crate) fn is_move_due(&self, after: u64) -> bool {
        self.is_open && self.completed >= after
    }

    /// Moves the connection to another socket. The server learns of it by the next packet.
    pub(crate) fn move_to(&mut self, socket: ClientDatagramSocket) {
        (self.socket, self.completed, self.blocked) = (socket, 0, None);
        self.quic.local_address_changed();
    }

    /// Returns whether the server accepts another request now.
    pub(crate) fn takes_requests(&self) -> bool {
        self.next_stream.is_some()
    }

    /// True if the handshake included the server's certificate.
    pub(crate) fn is_full_handshake(&self) -> bool {
        self.is_full_handshake
    }

    /// Returns whether a part of any response has arrived.
    pub(crate) fn is_within_response(&self) -> bool {
        self.streams.has_response()
    }

    /// Writes a request. The server must accept [one more](Http3::takes_requests).
    pub(crate) fn request(&mut self, index: u32, shared: &ThreadShared, now: Nanos) {
        let Some(form) = &shared.requests[index as usize].http3 else { return };
        let Some(id) = self.next_stream.take() else { return };
        let mut turn =
            H3Turn { now: Duration::from_nanos(now), limits: &shared.http3_limits, output: &mut self.output };
        // The engine opens the stream; the frames are known already.
        self.scratch.clear();
        self.engine.send_prepared_request(h3_id(id), &form.head, true, &mut self.scratch, &mut turn);
        self.streams.push(h3_id(id), index, &shared.requests);
        self.write(id, form.frames.clone());
        self.next_stream = self.quic.streams().open(Dir::Bi);
    }

    /// Passes a request, or its rest, to QUIC.
    fn write(&mut self, id: StreamId, mut frames: Bytes) {
        let mut stream = self.quic.send_stream(id);
        while !frames.is_empty() {
            match stream.write_chunks(std::slice::from_mut(&mut frames)) {
                Ok(_) => {}
                Err(WriteError::Blocked) => return self.unsent.push((id, frames)),
                // The event that the server stopped the stream follows.
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => return,
            }
        }
        // Fails only if the server has stopped the stream.
        let _ = stream.finish();
    }

    /// Receives datagrams once.
    pub(crate) fn receive(&mut self, shared: &mut ThreadShared, now: Nanos) -> Result<ReceivedBatch, Errno> {
        let Some(client) = &mut shared.quic else { return Err(Errno::AGAIN) };
        let Self { socket, quic, handle, is_full_handshake, is_open, has_ticket, .. } = self;
        let received = client.receive(socket, *handle, shared.clock.instant(now), |event| {
            quic.handle_event(event);
        })?;
        if !*is_open {
            *is_full_handshake |= super::verification::take_verified();
        }
        *has_ticket |= super::verification::take_ticketed();
        self.heard = now;
        self.pass_events(shared);
        Ok(received)
    }

    /// Handles the expired timer, if it is due.
    pub(crate) fn handle_timeout(&mut self, shared: &mut ThreadShared, now: Nanos) {
        let now = shared.clock.instant(now);
        if self.quic.poll_timeout().is_some_and(|at| at <= now) {
            self.quic.handle_timeout(now);
            self.pass_events(shared);
        }
    }

    /// Time of the next timer.
    pub(crate) fn next_timeout(&mut self, shared: &ThreadShared) -> Option<Nanos> {
        self.quic.poll_timeout().map(|at| shared.clock.nanos_of(at))
    }

    /// Passes events to the endpoint, and its replies back.
    fn pass_events(&mut self, shared: &mut ThreadShared) {
        let Some(client) = &mut shared.quic else { return };
        while let Some(event) = self.quic.poll_endpoint_events() {
            if let Some(reply) = client.handle_event(self.handle, event) {
                self.quic.handle_event(reply);
            }
        }
    }

    /// Handles what has arrived. Returns false if the connection is no longer used.
    pub(crate) fn handle_events(&mut self, shared: &mut ThreadShared, now: Nanos, on_event: OnHttp3Event<'_>) -> bool {
        while let Some(event) = self.quic.poll() {
            let flow = match event {
                Event::Connected => match self.on_connected(shared, now) {
                    Ok(()) => {
                        let is_early = self.early_data == EarlyData::Accepted;
                        self.reply(Http3Event::Open { is_early }, shared, now, on_event)
                    }
                    Err(reason) => {
                        let lost = Http3Event::Lost(FailureClass::EarlyClose, reason);
                        self.reply(lost, shared, now, on_event)
                    }
                },
                Event::ConnectionLost { reason } => {
                    let (class, reason) = explain(&reason, self.is_open);
                    self.reply(Http3Event::Lost(class, reason), shared, now, on_event)
                }
                Event::Stream(event) => self.on_stream_event(event, shared, now, on_event),
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => Flow::Continue,
            };
            if flow == Flow::Stop {
                return false;
            }
        }
        true
    }

    fn on_connected(&mut self, shared: &ThreadShared, now: Nanos) -> Result<(), FailureReason> {
        self.is_open = true;
        match self.early_data {
            EarlyData::None => self.begin(shared, now),
            _ if self.quic.accepted_0rtt() => self.early_data = EarlyData::Accepted,
            _ => {
                self.early_data = EarlyData::None;
                return self.begin_again(shared, now);
            }
        }
        Ok(())
    }

    /// Sends all requests again, because the server has rejected early data: it knows none of the streams.
    fn begin_again(&mut self, shared: &ThreadShared, now: Nanos) -> Result<(), FailureReason> {
        self.engine = H3ClientConnection::new(&shared.http3_limits);
        (self.output, self.own, self.next_stream) = (H3Output::default(), [None; 3], None);
        self.partial.clear();
        self.unsent.clear();
        self.begin(shared, now);
        for index in self.streams.take_requests() {
            if self.next_stream.is_none() {
                return Err(FailureReason::Text("the server rejected early data and then accepted fewer requests"));
            }
            self.request(index, shared, now);
        }
        Ok(())
    }

    /// Begins HTTP/3.
    fn begin(&mut self, shared: &ThreadShared, now: Nanos) {
        let mut turn =
            H3Turn { now: Duration::from_nanos(now), limits: &shared.http3_limits, output: &mut self.output };
        self.engine.start(&mut turn);
        self.send_own();
        self.next_stream = self.quic.streams().open(Dir::Bi);
    }

    fn on_stream_event(
        &mut self,
        event: StreamEvent,
        shared: &mut ThreadShared,
        now: Nanos,
        on_event: OnHttp3Event<'_>,
    ) -> Flow {
        match event {
            StreamEvent::Opened { dir } => {
                while let Some(id) = self.quic.streams().accept(dir) {
                    let (limits, output) = (&shared.http3_limits, &mut self.output);
                    let mut turn = H3Turn { now: Duration::from_nanos(now), limits, output };
                    let event = self.engine.accept(h3_id(id), &mut turn);
                    let flow = match self.on_engine_event(event, &[], 0, shared) {
                        None => self.read(id, shared, now, on_event),
                        Some(event) => self.reply(Http3Event::Response(event), shared, now, on_event),
                    };
                    if flow == Flow::Stop {
                        return Flow::Stop;
                    }
                }
                Flow::Continue
            }
            StreamEvent::Readable { id } => self.read(id, shared, now, on_event),
            StreamEvent::Writable { id } => {
                if let Some(index) = self.unsent.iter().position(|(unsent, _)| *unsent == id) {
                    let (id, frames) = self.unsent.swap_remove(index);
                    self.write(id, frames);
                }
                Flow::Continue
            }
            StreamEvent::Stopped { id, error_code } => {
                self.drop_unsent(id);
                let (limits, output) = (&shared.http3_limits, &mut self.output);
                let mut turn = H3Turn { now: Duration::from_nanos(now), limits, output };
                let event = self.engine.on_stop_sending(h3_id(id), H3ErrorCode(error_code.into_inner()), &mut turn);
                match event {
                    // Only the request is stopped; the response follows.
                    H3Event::StopSending { .. } => Flow::Continue,
                    event => match self.on_engine_event(event, &[], 0, shared) {
                        None => Flow::Continue,
                        Some(event) => self.reply(Http3Event::Response(event), shared, now, on_event),
                    },
                }
            }
            StreamEvent::Available { dir: Dir::Bi } => {
                if self.next_stream.is_none() {
                    self.next_stream = self.quic.streams().open(Dir::Bi);
                }
                Flow::Continue
            }
            StreamEvent::Available { dir: Dir::Uni } => {
                self.send_own();
                Flow::Continue
            }
            StreamEvent::Finished { .. } => Flow::Continue,
        }
    }

    /// Reads all input of a stream.
    fn read(&mut self, id: StreamId, shared: &mut ThreadShared, now: Nanos, on_event: OnHttp3Event<'_>) -> Flow {
        let mut pieces = std::mem::take(&mut self.pieces);
        let (mut is_fin, mut reset) = (false, None);
        let mut stream = self.quic.recv_stream(id);
        // A stream that has ended or was stopped delivers nothing.
        if let Ok(mut chunks) = stream.read(true) {
            loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => pieces.push(chunk.bytes),
                    Ok(None) => is_fin = true,
                    Err(ReadError::Reset(code)) => reset = Some(H3ErrorCode(code.into_inner())),
                    Err(ReadError::Blocked) => break,
                }
                if is_fin || reset.is_some() {
                    break;
                }
            }
            // Windows that are opened are sent with the next packets.
            let _ = chunks.finalize();
        }
        let flow = self.handle_pieces(h3_id(id), &pieces, is_fin, reset, shared, now, on_event);
        pieces.clear();
        self.pieces = pieces;
        flow
    }

    #[expect(clippy::too_many_arguments, reason = "the input of a stream, and its context")]
    fn handle_pieces(
        &mut self,
        id: H3StreamId,
        pieces: &[Bytes],
        is_fin: bool,
        reset: Option<H3ErrorCode>,
        shared: &mut ThreadShared,
        now: Nanos,
        on_event: OnHttp3Event<'_>,
    ) -> Flow {
        let last = pieces.len().saturating_sub(1);
        for (index, piece) in pieces.iter().enumerate() {
            let flow = self.handle_input(id, piece, is_fin && index == last, shared, now, on_event);
            if flow != Flow::Continue {
                return flow;
            }
        }
        if pieces.is_empty() && is_fin {
            return self.handle_input(id, &[], true, shared, now, on_event);
        }
        let Some(code) = reset else { return Flow::Continue };
        let mut turn =
            H3Turn { now: Duration::from_nanos(now), limits: &shared.http3_limits, output: &mut self.output };
        let event = self.engine.on_reset(id, code, &mut turn);
        match self.on_engine_event(event, &[], 0, shared) {
            None => Flow::Continue,
            Some(event) => self.reply(Http3Event::Response(event), shared, now, on_event),
        }
    }

    /// Handles input of a stream, after the input that was kept.
    fn handle_input(
        &mut self,
        id: H3StreamId,
        piece: &[u8],
        is_fin: bool,
        shared: &mut ThreadShared,
        now: Nanos,
        on_event: OnHttp3Event<'_>,
    ) -> Flow {
        let kept = self.partial.iter().position(|(stream, _)| *stream == id);
        let joined = kept.map(|index| {
            let (_, mut joined) = self.partial.swap_remove(index);
            joined.extend_from_slice(piece);
            joined
        });
        let input = joined.as_deref().unwrap_or(piece);
        let mut at = 0;
        loop {
            let (limits, output) = (&shared.http3_limits, &mut self.output);
            let mut turn = H3Turn { now: Duration::from_nanos(now), limits, output };
            let fields = &mut shared.response_fields;
            let handled = self.engine.handle_response(id, &input[at..], is_fin, fields, &mut turn);
            let start = at;
            at += handled.consumed_bytes;
            match handled.event {
                H3Event::NeedInput | H3Event::Blocked => break,
                H3Event::AwaitOutput => {
                    self.send_own();
                    break;
                }
                event => {
                    if let Some(event) = self.on_engine_event(event, &input[start..], handled.consumed_bytes, shared) {
                        match self.reply(Http3Event::Response(event), shared, now, on_event) {
                            Flow::Continue => {}
                            flow => return flow,
                        }
                    }
                }
            }
        }
        if at < input.len() {
            let rest = input[at..].to_vec();
            self.partial.push((id, rest));
        }
        Flow::Continue
    }

    /// Converts an event of the engine, whose content refers to `input`.
    fn on_engine_event(
        &mut self,
        event: H3Event<H3IncomingResponse>,
        input: &[u8],
        consumed_bytes: usize,
        shared: &ThreadShared,
    ) -> Option<ResponseEvent> {
        let (requests, consumed_bytes) = (&shared.requests[..], consumed_bytes as u64);
        match event {
            H3Event::Head(head) => {
                let place = self.streams.place(head.stream)?;
                self.streams.on_head(place, head.status, &shared.response_fields, requests);
                Some(self.on_piece(head.stream, place, consumed_bytes, head.is_last, requests))
            }
            H3Event::Content { stream, content, is_last } => {
                let place = self.streams.place(stream)?;
                self.streams.on_content(place, &input[content], requests);
                Some(self.on_piece(stream, place, consumed_bytes, is_last, requests))
            }
            H3Event::Trailers { stream, .. } => {
                let place = self.streams.place(stream)?;
                Some(self.on_piece(stream, place, consumed_bytes, true, requests))
            }
            H3Event::Reset { stream, code, is_by_peer } => {
                self.abandon(stream, if is_by_peer { H3ErrorCode::H3_REQUEST_CANCELLED } else { code });
                let (class, reason) = match is_by_peer {
                    true => (FailureClass::EarlyClose, FailureReason::H3StreamReset(code.0)),
                    false => (FailureClass::Malformed, FailureReason::Text(code.name())),
                };
                let is_refusal = is_by_peer && code == H3ErrorCode::H3_REQUEST_REJECTED;
                Some(self.streams.on_reset(stream, is_refusal, class, reason))
            }
            H3Event::StopSending { stream, code } => {
                // The server may have closed it.
                let _ = self.quic.recv_stream(quic_id(stream)).stop(var_int(code));
                None
            }
            H3Event::GoAway { first_unhandled } => {
                let reason = FailureReason::Text("the server sent GOAWAY before it had answered a request");
                Some(self.streams.on_go_away(|id| id.0 < first_unhandled, false, reason))
            }
            H3Event::Closed(error) => {
                let code = error.code;
                self.engine.fail(error);
                self.quic.close(shared.clock.instant(shared.clock.now()), var_int(code), Bytes::new());
                Some(ResponseEvent::Malformed(error.reason))
            }
            H3Event::NeedInput
            | H3Event::AwaitOutput
            | H3Event::Blocked
            | H3Event::Rejected { .. }
            | H3Event::PriorityChanged { .. } => None,
        }
    }

    fn on_piece(
        &mut self,
        id: H3StreamId,
        place: usize,
        consumed_bytes: u64,
        is_last: bool,
        requests: &[WorkloadRequest],
    ) -> ResponseEvent {
        self.completed += u64::from(is_last);
        if is_last && self.drop_unsent(quic_id(id)) {
            // The server has answered without the rest of the request, which it does not need.
            let _ = self.quic.send_stream(quic_id(id)).reset(var_int(H3ErrorCode::H3_NO_ERROR));
        }
        self.streams.on_piece(place, consumed_bytes, is_last, requests)
    }

    /// Passes an event on, and cancels a request if the reply says so.
    fn reply(&mut self, event: Http3Event, shared: &mut ThreadShared, now: Nanos, on_event: OnHttp3Event<'_>) -> Flow {
        match on_event(event, shared) {
            Http3Reply::Continue => Flow::Continue,
            Http3Reply::Stop => Flow::Stop,
            Http3Reply::Cancel(place) => {
                self.cancel(place, shared, now);
                Flow::StreamOver
            }
        }
    }

    /// Cancels a request that is no longer in flight.
    pub(crate) fn cancel(&mut self, place: usize, shared: &ThreadShared, now: Nanos) {
        let Some(id) = self.streams.remove(place) else { return };
        let mut turn =
            H3Turn { now: Duration::from_nanos(now), limits: &shared.http3_limits, output: &mut self.output };
        self.engine.reset(id, &mut turn);
        self.abandon(id, H3ErrorCode::H3_REQUEST_CANCELLED);
    }

    /// Ends both directions of a stream, and drops its input and output.
    fn abandon(&mut self, id: H3StreamId, code: H3ErrorCode) {
        self.drop_unsent(quic_id(id));
        self.partial.retain(|(stream, _)| *stream != id);
        // Either direction may be closed already.
        let _ = self.quic.send_stream(quic_id(id)).reset(var_int(code));
        let _ = self.quic.recv_stream(quic_id(id)).stop(var_int(code));
    }

    /// Drops the rest of a request. Returns whether there was one.
    fn drop_unsent(&mut self, id: StreamId) -> bool {
        let index = self.unsent.iter().position(|(unsent, _)| *unsent == id);
        index.map(|index| self.unsent.swap_remove(index)).is_some()
    }

    /// Passes output of the connection itself to QUIC. The part that is not accepted stays.
    fn send_own(&mut self) {
        let buffers = [&mut self.output.control, &mut self.output.encoder, &mut self.output.decoder];
        for (own, buffer) in self.own.iter_mut().zip(buffers).filter(|(_, buffer)| !buffer.is_empty()) {
            if own.is_none() {
                *own = self.quic.streams().open(Dir::Uni);
            }
            if let Some(id) = *own
                && let Ok(count) = self.quic.send_stream(id).write(buffer)
            {
                buffer.drain(..count);
            }
        }
    }

    /// Sends all that QUIC permits and the socket accepts.
    pub(crate) fn flush(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if (self.is_open || self.early_data != EarlyData::None) && self.output.length() > 0 {
            self.send_own();
        }
        let ThreadShared { quic: Some(client), record, clock, .. } = shared else { return };
        let output = &mut client.output;
        if let Some((transmit, payload)) = &self.blocked {
            match self.socket.send(transmit, payload) {
                SentBurst::Blocked => return,
                sent => record.count_datagrams(transmit, sent),
            }
            self.blocked = None;
        }
        loop {
            output.clear();
            let segments_max = self.socket.segments_max(usize::from(self.quic.current_mtu()));
            let Some(transmit) = self.quic.poll_transmit(clock.instant(now), segments_max, output) else { break };
            match self.socket.send(&transmit, output) {
                SentBurst::Blocked => {
                    self.blocked = Some((transmit, output.clone()));
                    break;
                }
                // A probe for a larger size may exceed what the path carries (RFC 8899).
                SentBurst::Failed if transmit.size > usize::from(self.quic.current_mtu()) => {}
                sent => record.count_datagrams(&transmit, sent),
            }
        }
        self.pass_events(shared);
    }

    /// Closes the connection, and forgets it without waiting for the server.
    pub(crate) fn close(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if !self.quic.is_closed() {
            self.quic.close(shared.clock.instant(now), var_int(H3ErrorCode::H3_NO_ERROR), Bytes::new());
        }
        self.flush(shared, now);
        if let Some(client) = &mut shared.quic {
            client.handle_event(self.handle, quinn_proto::EndpointEvent::drained());
        }
    }
}

/// Class and reason of the requests of a connection that has ended.
fn explain(error: &ConnectionError, is_open: bool) -> (FailureClass, FailureReason) {
    let message = || FailureReason::Message(error.to_string());
    let class = if is_open { FailureClass::EarlyClose } else { FailureClass::Tls };
    match error {
        ConnectionError::VersionMismatch => {
            (FailureClass::Connect, FailureReason::Text("the server does not speak version 1 of QUIC"))
        }
        ConnectionError::TimedOut => (FailureClass::TimeOut, FailureReason::Text("no packets from the server")),
        ConnectionError::Reset => (class, FailureReason::Text("the server reset the connection (stateless reset)")),
        ConnectionError::ApplicationClosed(close) => (class, FailureReason::H3Close(close.error_code.into_inner())),
        ConnectionError::ConnectionClosed(close) if u64::from(close.error_code) == NO_APPLICATION_PROTOCOL => {
            (class, FailureReason::Text("the server does not offer HTTP/3 (ALPN)"))
        }
        ConnectionError::TransportError(fault) if u64::from(fault.code) & !0xff == CRYPTO_ERROR => {
            let hint = match fault.reason.contains("certificate") {
                true => "; --cacert FILE trusts this CA, -k skips verification",
                false => "",
            };
            (FailureClass::Tls, FailureReason::Message(format!("{}{hint}", fault.reason)))
        }
        ConnectionError::TransportError(_) if is_open => (FailureClass::Malformed, message()),
        _ => (class, message()),
    }
}

/// HTTP/3 encoding of a request.
#[derive(Debug)]
pub(crate) struct Http3Request {
    head: H3PreparedRequest,
    /// HEADERS frame, and DATA frame if there is content.
    frames: Bytes,
}

impl Http3Request {
    /// Encodes a request. Host in `fields` becomes `:authority` (RFC 9114, section 4.3.1).
    pub(crate) fn new(method: &str, target: &str, fields: &Fields, content: &[u8]) -> Self {
        let mut others = fields.clone();
        others.remove("Host");
        if !content.is_empty() {
            others.push("Content-Length", content.len().to_string());
        }
        let head = OutgoingRequest {
            method: method.as_bytes(),
            scheme: Some(b"https"),
            authority: Some(fields.get("Host").unwrap_or_default()),
            path: Some(target.as_bytes()),
            protocol: None,
        };
        let head = H3PreparedRequest::new(&head, &others);
        let (limits, mut output, mut frames, stream) = (limits(), H3Output::default(), Vec::new(), H3StreamId(0));
        // A connection that is never used encodes the frames, which are the same on all connections.
        let mut engine = H3ClientConnection::new(&limits);
        let mut turn = H3Turn { now: Duration::ZERO, limits: &limits, output: &mut output };
        engine.send_prepared_request(stream, &head, content.is_empty(), &mut frames, &mut turn);
        if !content.is_empty() {
            // The stream was just opened, so it still exists.
            let _ = engine.send_data_header(stream, content.len() as u64, true, &mut frames);
            frames.extend_from_slice(content);
        }
        Self { head, frames: frames.into() }
    }
}

fn h3_id(id: StreamId) -> H3StreamId {
    H3StreamId(id.into())
}

fn quic_id(id: H3StreamId) -> StreamId {
    VarInt::from_u64(id.0).unwrap_or(VarInt::MAX).into()
}

fn var_int(code: H3ErrorCode) -> VarInt {
    VarInt::from_u64(code.0).unwrap_or_default()
}
