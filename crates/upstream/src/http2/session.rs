use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use wire::h2::{
    ClientEvent, EngineTurn, ErrorCode, H2ClientConnection, H2Limits, H2Output, OutgoingRequest, Placement, StreamId,
};
use wire::http::Fields;

use super::{ResponsePiece, StreamFailure, UpstreamExchange};
use crate::memory_budget::Charge;
use crate::monotonic_ms;
use crate::stream::UpstreamStream;

/// Size of one read. It must hold the start of an incomplete frame and the bytes after it.
const READ_BYTES: usize = 64 << 10;

/// Most content bytes framed at once.
const WRITE_BYTES: usize = 48 << 10;

/// Reads in a turn, so that a server that sends without end does not delay others.
const READS_PER_TURN_MAX: usize = 16;

/// Most content bytes of a request that wait to be framed.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// Limits after which a session takes no more exchanges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLimits {
    pub(crate) streams_max: usize,
    pub(crate) requests_max: u32,
    pub(crate) age_max_ms: u64,
    pub(crate) idle_timeout_ms: u64,
}

/// An HTTP/2 connection and the exchanges on it.
pub(crate) struct UpstreamSession(RefCell<UpstreamSessionState>);

struct UpstreamSessionState {
    engine: H2ClientConnection,
    limits: Rc<H2Limits>,
    output: H2Output,
    /// Received bytes that were not parsed yet.
    input: Vec<u8>,
    /// True if output must be sent before the engine continues with `input`.
    awaits_output: bool,
    exchanges: HashMap<StreamId, UpstreamExchange>,
    /// Wakes the task that reads and writes.
    driver: Waker,
    /// Tasks that wait for the server's SETTINGS.
    awaiting_settings: Vec<Waker>,
    leases: usize,
    requests: u32,
    opened_ms: u64,
    idle_since_ms: u64,
    /// Number of received events that concern an exchange.
    events: u64,
    /// True if no more exchanges may begin here.
    is_retired: bool,
    /// Reason that the connection has ended.
    end: Option<StreamFailure>,
}

/// Reads and writes on the socket of a session until it ends.
pub(crate) async fn drive(session: Rc<UpstreamSession>, mut socket: UpstreamStream, scratch: Rc<RefCell<Vec<u8>>>) {
    let ended = std::future::poll_fn(|task| session.poll_drive(&mut socket, &scratch, task)).await;
    session.0.borrow_mut().on_ended(match ended {
        Ok(()) => None,
        Err(_) => Some(StreamFailure::Closed),
    });
}

impl UpstreamSession {
    /// Creates a session on a connection on which nothing was sent.
    pub(crate) fn new(limits: Rc<H2Limits>, now_ms: u64) -> Rc<Self> {
        let mut state = UpstreamSessionState {
            engine: H2ClientConnection::new(Duration::from_millis(now_ms), &limits),
            limits,
            output: H2Output::default(),
            input: Vec::new(),
            awaits_output: false,
            exchanges: HashMap::new(),
            driver: Waker::noop().clone(),
            awaiting_settings: Vec::new(),
            leases: 0,
            requests: 0,
            opened_ms: now_ms,
            idle_since_ms: now_ms,
            events: 0,
            is_retired: false,
            end: None,
        };
        state.turn(|engine, turn| engine.start(turn));
        Rc::new(Self(RefCell::new(state)))
    }

    /// Reserves room for an exchange, if there is any. Returns whether the session had exchanges before.
    pub(crate) fn join(&self, limits: &SessionLimits, now_ms: u64) -> Option<bool> {
        let mut state = self.0.borrow_mut();
        let is_fit = !state.is_retired
            && state.end.is_none()
            && state.leases < limits.streams_max
            && (limits.requests_max == 0 || state.requests < limits.requests_max)
            && now_ms.saturating_sub(state.opened_ms) < limits.age_max_ms
            && state.engine.can_open();
        is_fit.then(|| {
            state.leases += 1;
            state.requests = state.requests.saturating_add(1);
            state.requests > 1
        })
    }

    /// Releases the room that [`join`](Self::join) reserved.
    pub(super) fn leave(&self) {
        let mut state = self.0.borrow_mut();
        state.leases -= 1;
        state.idle_since_ms = monotonic_ms();
        if state.is_retired {
            state.driver.wake_by_ref();
        }
    }

    /// Checks whether the server allows extended CONNECT (RFC 8441); false until its SETTINGS arrive.
    pub(crate) fn enables_connect(&self) -> bool {
        self.0.borrow().engine.peer_settings().enables_connect_protocol
    }

    /// Waits for the server's SETTINGS and tells whether it allows extended CONNECT.
    pub(super) fn poll_enables_connect(&self, task: &mut Context<'_>) -> Poll<Result<bool, StreamFailure>> {
        let mut state = self.0.borrow_mut();
        if let Some(failure) = state.end {
            return Poll::Ready(Err(failure));
        }
        if state.engine.has_peer_settings() {
            return Poll::Ready(Ok(state.engine.peer_settings().enables_connect_protocol));
        }
        if !state.awaiting_settings.iter().any(|waker| waker.will_wake(task.waker())) {
            state.awaiting_settings.push(task.waker().clone());
        }
        Poll::Pending
    }

    /// Stops new exchanges; the session ends with the last one.
    pub(crate) fn retire(&self) {
        let mut state = self.0.borrow_mut();
        state.is_retired = true;
        state.driver.wake_by_ref();
    }

    /// Handles timeouts and retires the session if it is idle or old. Returns whether it can still be used.
    pub(crate) fn sweep(&self, limits: &SessionLimits, now_ms: u64) -> bool {
        let mut state = self.0.borrow_mut();
        let timed_out = state.turn(|engine, turn| engine.handle_timeout(turn));
        if let Some(ClientEvent::Closed(error)) = timed_out {
            state.on_ended(Some(StreamFailure::NotHttp2(error.reason)));
        }
        let is_idle = state.leases == 0 && now_ms.saturating_sub(state.idle_since_ms) >= limits.idle_timeout_ms;
        let is_old = now_ms.saturating_sub(state.opened_ms) >= limits.age_max_ms;
        if (is_idle || is_old) && !state.is_retired {
            state.is_retired = true;
            state.driver.wake_by_ref();
        }
        state.end.is_none() && !state.is_retired
    }

    /// Begins an exchange; `is_last` if the request has no content.
    pub(super) fn begin(
        &self,
        request: &OutgoingRequest<'_>,
        fields: &Fields,
        is_last: bool,
        charge: Charge,
    ) -> Result<StreamId, StreamFailure> {
        let mut state = self.0.borrow_mut();
        let begun = state.turn(|engine, turn| engine.send_request(request, fields, is_last, turn));
        let stream = begun.ok_or(StreamFailure::Rejected)?;
        state.exchanges.insert(stream, UpstreamExchange::new(charge));
        state.driver.wake_by_ref();
        Ok(stream)
    }

    /// Polls for the next part of a response; content goes to `buffer`.
    pub(super) fn poll_response(
        &self,
        stream: StreamId,
        task: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<ResponsePiece, StreamFailure>> {
        let mut state = self.0.borrow_mut();
        let Some(exchange) = state.exchanges.get_mut(&stream) else { return Poll::Ready(Err(StreamFailure::Closed)) };
        let Some(taken) = exchange.take(buffer) else {
            exchange.wait(task.waker(), false);
            return Poll::Pending;
        };
        if let Ok(ResponsePiece::Content(length)) = taken {
            state.act(|engine, turn| engine.take_content(stream, length, turn));
        }
        Poll::Ready(taken)
    }

    /// Polls for the number of content bytes the server accepts, at least one.
    pub(super) fn poll_room(&self, stream: StreamId, task: &mut Context<'_>) -> Poll<Result<usize, StreamFailure>> {
        let mut state = self.0.borrow_mut();
        match state.room(stream) {
            None => Poll::Ready(Err(StreamFailure::Closed)),
            Some(0) => {
                if let Some(exchange) = state.exchanges.get_mut(&stream) {
                    exchange.wait(task.waker(), true);
                }
                Poll::Pending
            }
            Some(bytes) => Poll::Ready(Ok(bytes)),
        }
    }

    /// Queues content of a request.
    pub(super) fn offer(&self, stream: StreamId, content: &[u8]) -> Result<(), StreamFailure> {
        let mut state = self.0.borrow_mut();
        let exchange = state.exchanges.get_mut(&stream).ok_or(StreamFailure::Closed)?;
        exchange.offer(content);
        let length = content.len() as u64;
        let offered = state.turn(|engine, turn| engine.offer_content(stream, length, false, turn));
        state.driver.wake_by_ref();
        offered.map_err(|_| StreamFailure::Closed)
    }

    /// Ends a request, with trailer fields if there are any.
    pub(super) fn end_request(&self, stream: StreamId, trailers: Option<Fields>) -> Result<(), StreamFailure> {
        let mut state = self.0.borrow_mut();
        let ended = state.turn(|engine, turn| match trailers {
            Some(trailers) => engine.send_trailers(stream, trailers, turn),
            None => engine.offer_content(stream, 0, true, turn),
        });
        state.driver.wake_by_ref();
        ended.map_err(|_| StreamFailure::Closed)
    }

    /// Content bytes of a request that were offered and not framed yet.
    pub(super) fn unsent_bytes(&self, stream: StreamId) -> usize {
        self.0.borrow().exchanges.get(&stream).map_or(0, UpstreamExchange::unsent_bytes)
    }

    /// Forgets an exchange, and resets its stream if it is not complete.
    pub(super) fn forget(&self, stream: StreamId) {
        let mut state = self.0.borrow_mut();
        let Some(exchange) = state.exchanges.remove(&stream) else { return };
        // RFC 9113, section 8.1: after a complete response, the rest of the request has no use.
        let code = if exchange.is_answered() { ErrorCode::NO_ERROR } else { ErrorCode::CANCEL };
        state.act(|engine, turn| engine.reset(stream, code, turn));
    }

    /// Number of events that the server has sent about any exchange.
    pub(super) fn events(&self) -> u64 {
        self.0.borrow().events
    }

    fn poll_drive(
        &self,
        socket: &mut UpstreamStream,
        scratch: &RefCell<Vec<u8>>,
        task: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let state = &mut *self.0.borrow_mut();
        let scratch = &mut *scratch.borrow_mut();
        scratch.resize(READ_BYTES, 0);
        state.driver.clone_from(task.waker());
        for _ in 0..READS_PER_TURN_MAX {
            state.end_if_unused();
            let flushed = state.poll_flush(socket, task)?;
            if state.end.is_some() || state.engine.is_drained() {
                // A final GOAWAY is best effort: the server can do without it.
                return Poll::Ready(Ok(()));
            }
            if state.awaits_output {
                // While a server does not read, the worker does not read from it either.
                ready!(flushed);
                let input = std::mem::take(&mut state.input);
                state.handle_input(&input);
                continue;
            }
            let kept = state.input.len();
            scratch[..kept].copy_from_slice(&state.input);
            let count = ready!(socket.poll_read(task, &mut scratch[kept..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            state.handle_input(&scratch[..kept + count]);
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

impl fmt::Debug for UpstreamSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.borrow();
        f.debug_struct("Session").field("leases", &state.leases).field("end", &state.end).finish_non_exhaustive()
    }
}

impl UpstreamSessionState {
    fn turn<R>(&mut self, act: impl FnOnce(&mut H2ClientConnection, &mut EngineTurn<'_>) -> R) -> R {
        let now = Duration::from_millis(monotonic_ms());
        act(&mut self.engine, &mut EngineTurn { now, limits: &self.limits, output: &mut self.output })
    }

    /// Calls [`Self::turn`], and wakes the driver if that made output.
    fn act<R>(&mut self, act: impl FnOnce(&mut H2ClientConnection, &mut EngineTurn<'_>) -> R) -> R {
        let had_output = !self.output.is_empty();
        let result = self.turn(act);
        if !had_output && !self.output.is_empty() || self.is_retired {
            self.driver.wake_by_ref();
        }
        result
    }

    /// Sends GOAWAY if the session is retired and unused.
    fn end_if_unused(&mut self) {
        if self.is_retired && self.leases == 0 && !self.engine.is_drained() {
            self.turn(|engine, turn| engine.shut_down(turn));
        }
    }

    /// Writes all output to the socket.
    fn poll_flush(&mut self, socket: &mut UpstreamStream, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.output.is_empty() {
                self.frame_content();
            }
            if self.output.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let count = ready!(socket.poll_write(task, self.output.bytes()))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.output.drop_front(count);
        }
    }

    /// Frames content of the requests, then wakes tasks that wait for room.
    fn frame_content(&mut self) {
        if !self.engine.has_content_to_send() {
            return;
        }
        let now = Duration::from_millis(monotonic_ms());
        let Self { engine, limits, output, exchanges, .. } = self;
        let mut turn = EngineTurn { now, limits, output };
        // The engine would reset a stream whose content was lost; no content is ever lost here.
        let _ = engine.poll_output(WRITE_BYTES, &mut turn, |stream, range, out| match exchanges.get_mut(&stream) {
            Some(exchange) => exchange.place((range.end - range.start) as usize, out),
            None => Placement::Lost,
        });
        self.tell_of_room();
    }

    /// Number of further content bytes accepted for a request; `None` if it has ended.
    fn room(&mut self, stream: StreamId) -> Option<usize> {
        let exchange = self.exchanges.get(&stream).filter(|exchange| exchange.failure().is_none())?;
        let unsent_bytes = exchange.unsent_bytes();
        self.engine.unsent_bytes(stream)?;
        let wanted_bytes = usize::try_from(self.engine.wanted_bytes(stream)).unwrap_or(usize::MAX);
        Some(wanted_bytes.min(UNSENT_BYTES_MAX.saturating_sub(unsent_bytes)))
    }

    fn tell_of_room(&mut self) {
        let waiting = self.exchanges.iter().filter(|(_, exchange)| exchange.awaits_room());
        let waiting: Vec<StreamId> = waiting.map(|(stream, _)| *stream).collect();
        for stream in waiting {
            if self.room(stream) != Some(0)
                && let Some(exchange) = self.exchanges.get_mut(&stream)
            {
                exchange.wake();
            }
        }
    }

    /// Parses input, up to an incomplete frame.
    fn handle_input(&mut self, input: &[u8]) {
        let (mut at, mut fields) = (0, Fields::new());
        self.awaits_output = loop {
            let handled = self.turn(|engine, turn| engine.handle_input(&input[at..], &mut fields, turn));
            let rest = &input[at..];
            at += handled.consumed_bytes;
            match handled.event {
                ClientEvent::NeedInput => break false,
                ClientEvent::AwaitOutput => break true,
                ClientEvent::Closed(error) => {
                    self.on_ended(Some(StreamFailure::NotHttp2(error.reason)));
                    break false;
                }
                ClientEvent::Content { stream, content, is_last } => match self.exchanges.get_mut(&stream) {
                    Some(exchange) => exchange.on_content(&rest[content], is_last),
                    None => self.turn(|engine, turn| engine.take_content(stream, content.len(), turn)),
                },
                event => self.on_event(event, &mut fields),
            }
            self.events += 1;
        };
        self.input = input[at..].to_vec();
        self.tell_of_room();
        if self.engine.has_peer_settings() {
            self.awaiting_settings.drain(..).for_each(Waker::wake);
        }
    }

    fn on_event(&mut self, event: ClientEvent, fields: &mut Fields) {
        match event {
            ClientEvent::Response { stream, status, is_last } => {
                let Some(exchange) = self.exchanges.get_mut(&stream) else { return };
                if !exchange.on_head(status, std::mem::take(fields), is_last) {
                    exchange.on_end(Err(StreamFailure::Malformed));
                    self.turn(|engine, turn| engine.reset(stream, ErrorCode::ENHANCE_YOUR_CALM, turn));
                }
            }
            ClientEvent::Trailers { stream } => {
                let trailers = Some(Box::new(std::mem::take(fields)));
                self.with(stream, |exchange| exchange.on_end(Ok(trailers)));
            }
            ClientEvent::Reset { stream, code, is_by_peer } => {
                let failure = match (is_by_peer, code) {
                    (false, _) => StreamFailure::Malformed,
                    (true, ErrorCode::REFUSED_STREAM) => StreamFailure::Rejected,
                    (true, code) => StreamFailure::Reset(code),
                };
                self.with(stream, |exchange| exchange.on_end(Err(failure)));
            }
            ClientEvent::GoAway { last_stream, .. } => {
                self.is_retired = true;
                let later = self.exchanges.iter_mut().filter(|(stream, _)| **stream > last_stream);
                later.for_each(|(_, exchange)| exchange.on_end(Err(StreamFailure::Rejected)));
            }
            // Handled by the caller.
            ClientEvent::NeedInput
            | ClientEvent::AwaitOutput
            | ClientEvent::Closed(_)
            | ClientEvent::Content { .. } => {}
        }
    }

    fn with(&mut self, stream: StreamId, what: impl FnOnce(&mut UpstreamExchange)) {
        if let Some(exchange) = self.exchanges.get_mut(&stream) {
            what(exchange);
        }
    }

    /// Ends the session: all its exchanges fail.
    fn on_ended(&mut self, failure: Option<StreamFailure>) {
        let failure = *self.end.get_or_insert(failure.unwrap_or(StreamFailure::Closed));
        self.is_retired = true;
        self.exchanges.values_mut().for_each(|exchange| exchange.on_end(Err(failure)));
        self.awaiting_settings.drain(..).for_each(Waker::wake);
        self.driver.wake_by_ref();
    }
}
