//! Receiving: streams of QUIC become requests and their content.

use bytes::Bytes;
use tailcoat_quic::{Dir, ReadEnd};
use wire::h1::MessageRejection;
use wire::h3::{H3Error, H3ErrorCode, H3Event, H3IncomingRequest, H3StreamId};

use super::early::mark_early;
use super::streams::{H3Streams, h3_id, quic_id};
use super::{H3ConnectionState, H3Turn, H3WorkerConnection};

/// State of a stream after its input was taken.
#[derive(Default)]
struct StreamInput {
    /// Input that was not processed before. It precedes what was taken.
    kept: Vec<u8>,
    /// True if the stream ends after the input.
    has_ended: bool,
    /// True if then nothing remains to be done on the stream.
    is_over: bool,
    /// Error code, if the client has reset the stream.
    reset: Option<H3ErrorCode>,
}

/// Outcome of handling input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handled {
    /// More input is needed, or the stream waits.
    All,
    /// The stream or connection is closed.
    Closed,
}

impl H3WorkerConnection {
    /// Accepts streams that the client has opened.
    pub(super) fn accept_streams(&mut self, dir: Dir, turn: &mut H3Turn<'_>) {
        let mut newest = None;
        while let Some(id) = self.streams.transport.proto.streams().accept(dir) {
            let id = h3_id(id);
            newest = Some(id);
            let (engine, mut wire) = self.streams.engine();
            match engine.accept(id, &mut wire) {
                H3Event::NeedInput => self.streams.open(id),
                event => _ = self.on_stream_event(event, &[], turn),
            }
        }
        if let Some(newest) = newest.filter(|newest| !newest.is_unidirectional()) {
            self.streams.on_newest(newest);
        }
    }

    /// Reads all streams that may have input, in the order in which it arrived.
    pub(super) fn read(&mut self, turn: &mut H3Turn<'_>) {
        self.streams.engine.refuse_streams(self.exchanges.holds_too_much(&turn.exchange));
        while !self.streams.readable.is_empty() {
            let mut readable = std::mem::take(&mut self.streams.readable);
            for id in readable.drain(..) {
                self.read_stream(id, turn);
                if self.state != H3ConnectionState::Open {
                    return;
                }
                if id.is_unidirectional() {
                    while let Some(unblocked) = self.streams.engine.poll_unblocked() {
                        self.streams.mark_readable(unblocked);
                    }
                }
            }
            if self.streams.readable.is_empty() {
                self.streams.readable = readable;
            }
        }
    }

    /// Reports that the client accepts nothing more on a stream.
    pub(super) fn on_stopped(&mut self, id: H3StreamId, code: u64, turn: &mut H3Turn<'_>) {
        let (engine, mut wire) = self.streams.engine();
        let event = engine.on_stop_sending(id, H3ErrorCode(code), &mut wire);
        self.on_stream_event(event, &[], turn);
    }

    fn read_stream(&mut self, id: H3StreamId, turn: &mut H3Turn<'_>) {
        let mut pieces = std::mem::take(&mut self.streams.pieces);
        if let Some(input) = self.streams.take_input(id, &mut pieces, turn) {
            self.handle_pieces(id, &pieces, input, turn);
        }
        pieces.clear();
        self.streams.pieces = pieces;
    }

    fn handle_pieces(&mut self, id: H3StreamId, pieces: &[Bytes], input: StreamInput, turn: &mut H3Turn<'_>) {
        let StreamInput { mut kept, has_ended, is_over, reset } = input;
        if let Some(code) = reset {
            let (engine, mut wire) = self.streams.engine();
            let event = engine.on_reset(id, code, &mut wire);
            self.on_stream_event(event, &[], turn);
            if id.is_unidirectional() {
                self.streams.forget_incoming(id);
            }
            return;
        }
        let last = pieces.len().saturating_sub(1);
        for (index, piece) in pieces.iter().enumerate() {
            if self.handle(id, &mut kept, piece, has_ended && index == last, turn) == Handled::Closed {
                return;
            }
        }
        if pieces.is_empty() && self.handle(id, &mut kept, &[], has_ended, turn) == Handled::Closed {
            return;
        }
        match (has_ended, id.is_unidirectional()) {
            (true, true) => self.streams.forget_incoming(id),
            (true, false) if is_over => self.streams.remove(id),
            _ if kept.is_empty() => {}
            _ => self.streams.keep_input(id, kept),
        }
    }

    /// Handles input of a stream, after the input that was kept. Keeps the part that was not processed.
    fn handle(
        &mut self,
        id: H3StreamId,
        kept: &mut Vec<u8>,
        piece: &[u8],
        is_fin: bool,
        turn: &mut H3Turn<'_>,
    ) -> Handled {
        let is_continued = !kept.is_empty();
        if is_continued {
            kept.extend_from_slice(piece);
        }
        let mut at = 0;
        loop {
            let input = if is_continued { &kept[at..] } else { &piece[at..] };
            let (head, text) = (&mut *turn.request.head, &mut *turn.request.text);
            let (engine, mut wire) = self.streams.engine();
            let handled = engine.handle_input(id, input, is_fin, head, text, &mut wire);
            at += handled.consumed_bytes;
            match handled.event {
                H3Event::NeedInput | H3Event::Blocked => break,
                H3Event::AwaitOutput => {
                    self.send_own();
                    if self.streams.output.length() > 0 {
                        self.streams.stall(id);
                        break;
                    }
                }
                event => {
                    // The stream of such a request has ended, and its input is consumed.
                    let is_whole = matches!(&event, H3Event::Head(request) if !request.has_content);
                    if self.on_stream_event(event, input, turn) == Handled::Closed {
                        return Handled::Closed;
                    }
                    if is_whole {
                        break;
                    }
                }
            }
        }
        if is_continued {
            kept.drain(..at);
        } else {
            kept.extend_from_slice(&piece[at..]);
        }
        Handled::All
    }

    /// Handles an event of a stream. `input` is what the event's content refers to.
    fn on_stream_event(&mut self, event: H3Event<H3IncomingRequest>, input: &[u8], turn: &mut H3Turn<'_>) -> Handled {
        match event {
            H3Event::Head(request) => self.on_request(&request, turn),
            H3Event::Content { stream, content, is_last } => {
                if let Some(state) = self.streams.find(stream) {
                    state.receiving.untaken_bytes += content.len();
                }
                self.exchanges.on_content(stream, &input[content], is_last, &mut turn.exchange);
            }
            H3Event::Trailers { stream, fields } => {
                self.exchanges.on_trailers(stream, fields, &mut self.streams, &mut turn.exchange);
            }
            H3Event::Rejected { stream, rejection } => {
                let head = &*turn.request.head;
                self.exchanges.on_rejected(stream, rejection, head, &mut self.streams, &mut turn.exchange);
            }
            H3Event::Reset { stream, code, is_by_peer } => {
                self.streams.abort(stream, if is_by_peer { H3ErrorCode::H3_REQUEST_CANCELLED } else { code });
                self.exchanges.on_reset(stream, &turn.exchange);
                return Handled::Closed;
            }
            H3Event::StopSending { stream, code } => {
                self.streams.transport.proto.streams().stop(quic_id(stream), code.0);
                self.streams.forget_incoming(stream);
                return Handled::Closed;
            }
            H3Event::PriorityChanged { stream, priority } => self.streams.set_priority(stream, priority),
            H3Event::GoAway { .. } | H3Event::NeedInput | H3Event::AwaitOutput | H3Event::Blocked => {}
            H3Event::Closed(error) => {
                self.finish(error, turn);
                return Handled::Closed;
            }
        }
        Handled::All
    }

    fn on_request(&mut self, request: &H3IncomingRequest, turn: &mut H3Turn<'_>) {
        self.clocks.on_request();
        if request.priority.urgency != wire::Priority::default().urgency {
            self.streams.set_priority(request.stream, request.priority);
        }
        if request.protocol.is_some()
            && let Some(stream) = self.streams.find(request.stream)
        {
            stream.is_tunnel = true;
        }
        let H3Turn { exchange, request: buffers, .. } = turn;
        if self.early_since_ms.is_some() && !mark_early(buffers.head, buffers.text) {
            let rejection = MessageRejection::TOO_EARLY;
            return self.exchanges.on_rejected(request.stream, rejection, buffers.head, &mut self.streams, exchange);
        }
        self.exchanges.on_request(request, buffers, &mut self.streams, exchange);
    }

    /// Closes the connection with an error of this side's choice.
    pub(super) fn fail(&mut self, code: H3ErrorCode, reason: &'static str, turn: &mut H3Turn<'_>) {
        self.finish(H3Error { code, reason }, turn);
    }
}

impl H3Streams {
    /// Takes the input that has arrived in order, as much as handlers have room for, and adds it to `pieces`. Returns `None`
    /// if the stream is closed.
    fn take_input(&mut self, id: H3StreamId, pieces: &mut Vec<Bytes>, turn: &mut H3Turn<'_>) -> Option<StreamInput> {
        let window_bytes = turn.exchange.context.generation().limits.http2.window_bytes_max as usize;
        let (transport, receiving, is_finished) = self.receiving(id)?;
        receiving.is_readable = false;
        let mut input = StreamInput { kept: std::mem::take(&mut receiving.kept), ..StreamInput::default() };
        let mut room = window_bytes.saturating_sub(receiving.untaken_bytes);
        let streams = transport.proto.streams();
        while room > 0 {
            match streams.read(quic_id(id), room) {
                Ok(piece) => {
                    room = room.saturating_sub(piece.len());
                    pieces.push(piece);
                }
                Err(ReadEnd::Finished) => {
                    receiving.has_ended = true;
                    break;
                }
                Err(ReadEnd::Reset(code)) => {
                    input.reset = Some(H3ErrorCode(code));
                    break;
                }
                // A stream that has ended or was stopped delivers nothing.
                Err(ReadEnd::Blocked | ReadEnd::Closed) => break,
            }
        }
        input.has_ended = receiving.has_ended;
        input.is_over = is_finished;
        if room == 0 && !pieces.is_empty() {
            // QUIC reports input only after a read was blocked. If handlers take the content, there is room again.
            self.mark_readable(id);
        }
        Some(input)
    }

    /// Sets the priority of a stream. QUIC sends those with higher numbers first, and begins with 0.
    fn set_priority(&mut self, id: H3StreamId, priority: wire::Priority) {
        let number = i32::from(wire::Priority::default().urgency) - i32::from(priority.urgency);
        self.transport.proto.streams().set_priority(quic_id(id), number);
    }
}
