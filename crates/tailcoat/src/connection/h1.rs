//! A connection that speaks HTTP/1.

use std::io;
use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};

use wire::h1::{Event, Framing, Refusal, ServerConnection};
use wire::http::{Host, Method, Request, Status, Target, Version, path};

use super::output::{Manner, Output, Persistence};
use super::transmit::{Transmission, send_now};
use super::{Context, Scratch, Socket, Stage, Verdict};
use crate::handler::{Now, OwnedRequest, PageFormat, Response, Routed, error_response};
use crate::log::{Client, LogId, Record, Subject};
use crate::routing::{Answer, ResponseFuture};

/// How long a connection is read on after its last response, so that what the client still sends does not reset the
/// connection before the client has read the response (RFC 9112, section 9.6).
const LINGER_MS: u64 = 2_000;

/// The connection.
pub struct H1Connection {
    socket: Socket,
    context: Rc<Context>,
    client: Client,
    wire: ServerConnection,
    /// Its place in the table of connections.
    slot: u32,
    listener: u16,
    requests: u32,
    /// No further request is read.
    is_closing: bool,
    /// After the last response, input is still to be expected.
    lingers: bool,
    /// `kept` has not been looked at since it was kept.
    has_unseen_input: bool,
    /// Input that is not done with: an incomplete head, or requests behind one that is not answered yet.
    kept: Vec<u8>,
    /// A request whose content is being read.
    deferred: Option<Box<Deferred>>,
    /// A request whose answer is awaited.
    answering: Option<Box<Answering>>,
    /// Output that the socket has not taken yet.
    sending: Option<Box<Sending>>,
}

struct Deferred {
    request: OwnedRequest,
    framing: Framing,
    started_ms: u64,
    content_bytes: u64,
}

struct Answering {
    future: ResponseFuture,
    request: Rc<OwnedRequest>,
    framing: Framing,
    log: Option<LogId>,
}

struct Sending {
    transmission: Transmission,
    started_ms: u64,
    /// What to log when it is sent, if that has not been done.
    exchange: Option<Exchange>,
}

struct Exchange {
    request: OwnedRequest,
    log: LogId,
    status: Status,
    content_bytes: u64,
}

/// What a connection is given while it is polled.
struct Turn<'a, 'task> {
    context: &'a Context,
    task: &'a mut Task<'task>,
    output: &'a mut Output,
    now: Now,
}

/// A request while it is answered: what is logged of it, and what its framing says of the connection.
struct Incoming<'a> {
    routed: Routed<'a>,
    framing: Framing,
}

impl H1Connection {
    /// A connection over a socket that was accepted from a listener.
    pub fn new(socket: Socket, client: Client, listener: u16, context: Rc<Context>) -> Self {
        let slot = context.table.borrow_mut().insert();
        Self {
            socket,
            context,
            client,
            wire: ServerConnection::default(),
            slot,
            listener,
            requests: 0,
            is_closing: false,
            lingers: false,
            has_unseen_input: false,
            kept: Vec::new(),
            deferred: None,
            answering: None,
            sending: None,
        }
    }

    /// Its place in the table of connections.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Its socket, which is to be waited for when `poll` returned `Pending`.
    pub fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Goes on until something has to be waited for: the socket, or what wakes the task. Ready when the connection is to be
    /// closed.
    pub fn poll(&mut self, task: &mut Task<'_>) -> Poll<()> {
        // A peer's error ends its connection, and concerns nobody else.
        self.drive(task).map(|_| ())
    }

    /// Goes on until something has to be waited for; ready when the connection is to be closed.
    fn drive(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let context = Rc::clone(&self.context);
        // All connections of the worker use it in turn. What one left when it failed is nobody else's.
        context.scratch.borrow_mut().output.clear();
        let verdict = context.table.borrow_mut().take_verdict(self.slot);
        if let Some(verdict) = verdict
            && self.on_verdict(verdict, &context, task)?.is_ready()
        {
            return Poll::Ready(Ok(()));
        }
        loop {
            if self.sending.is_some() {
                ready!(self.drive_sending(&context, task))?;
            } else if self.answering.is_some() {
                ready!(self.drive_answering(&context, task))?;
            } else if !self.is_closing {
                ready!(self.drive_reading(&context, task))?;
            } else if self.lingers {
                return self.drive_lingering(&context, task);
            } else {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Ends what took too long. Ready if that ends the connection.
    fn on_verdict(&mut self, verdict: Verdict, context: &Context, task: &mut Task<'_>) -> io::Result<Poll<()>> {
        let stage = context.table.borrow().stage(self.slot);
        match (verdict, stage) {
            (Verdict::TimedOut, Stage::Head | Stage::Content) => {
                let output = &mut context.scratch.borrow_mut().output;
                let mut turn = Turn { context, task, output, now: context.clock.now() };
                self.refuse(REQUEST_TIMEOUT, &[], &mut turn);
                self.flush(&mut turn)?;
                Ok(Poll::Pending)
            }
            (Verdict::TimedOut, Stage::Write) => Err(io::ErrorKind::TimedOut.into()),
            // The connection was idle when it was condemned, but a request has come since.
            (_, Stage::Answer | Stage::Content | Stage::Write) => Ok(Poll::Pending),
            _ => Ok(Poll::Ready(())),
        }
    }

    /// Reads, and answers what was read. Ready when something else is to be done first.
    fn drive_reading(&mut self, context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let scratch = &mut *context.scratch.borrow_mut();
        let mut filled = self.kept.len();
        scratch.input[..filled].copy_from_slice(&self.kept);
        if !self.has_unseen_input {
            match self.socket.poll_read(&mut scratch.input[filled..]) {
                Poll::Ready(Ok(0)) => {
                    self.is_closing = true;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(count) => filled += count?,
                Poll::Pending => {
                    self.await_input(context, task);
                    return Poll::Pending;
                }
            }
        }
        self.kept = Vec::new();
        self.has_unseen_input = false;
        self.on_input(filled, scratch, context, task).into()
    }

    /// Notes until when input is waited for.
    fn await_input(&mut self, context: &Context, task: &mut Task<'_>) {
        let now_ms = context.clock.now().monotonic_ms;
        let limits = &context.limits;
        let mut table = context.table.borrow_mut();
        let (stage, timeout) = if self.deferred.is_some() {
            (Stage::Content, limits.body_timeout)
        } else if !self.kept.is_empty() {
            // A head has to be complete some time after its first byte, however many pieces it comes in.
            if table.stage(self.slot) == Stage::Head {
                return;
            }
            (Stage::Head, limits.head_timeout)
        } else {
            (Stage::Idle, limits.idle_timeout)
        };
        table.enter(self.slot, stage, Some(now_ms + timeout.as_millis() as u64), task.waker());
    }

    /// Answers the requests in `scratch.input[..filled]`, as far as they are complete, and sends the answers together.
    fn on_input(
        &mut self,
        filled: usize,
        scratch: &mut Scratch,
        context: &Context,
        task: &mut Task<'_>,
    ) -> io::Result<()> {
        let Scratch { input, head, path, host, output } = scratch;
        let input = &input[..filled];
        let turn = &mut Turn { context, task, output, now: context.clock.now() };
        let mut at = 0;
        while !self.is_closing && self.sending.is_none() && self.answering.is_none() {
            match self.wire.handle_input(&input[at..], head, &context.input_limits) {
                Ok(Event::NeedInput) => break,
                Ok(Event::Request(incoming)) => {
                    let request = Request { head, bytes: &input[at..] };
                    at += incoming.head_bytes;
                    self.requests = self.requests.saturating_add(1);
                    match route(request, &incoming.target, incoming.host, turn.now, path, host) {
                        Ok(routed) => {
                            let incoming = Incoming { routed, framing: incoming.framing };
                            self.on_request(incoming, at == filled, turn)?;
                        }
                        Err(refusal) => self.refuse(refusal, request.bytes, turn),
                    }
                }
                Ok(Event::Content(decoded)) => {
                    at += decoded.consumed_bytes;
                    self.on_content(decoded.content.len(), decoded.is_complete, turn)?;
                }
                Err(refusal) => self.refuse(refusal, &input[at..], turn),
            }
            if turn.output.is_full() {
                self.flush(turn)?;
            }
        }
        self.lingers |= self.is_closing && at < filled;
        self.has_unseen_input = !self.is_closing && (self.sending.is_some() || self.answering.is_some()) && at < filled;
        if !self.is_closing {
            self.kept = input[at..].to_vec();
        }
        self.flush(turn)
    }

    fn on_request(&mut self, incoming: Incoming<'_>, is_all_input: bool, turn: &mut Turn<'_, '_>) -> io::Result<()> {
        // A request begins a new stage, even if the rest of the next head is awaited after it.
        turn.context.table.borrow_mut().enter(self.slot, Stage::Idle, None, turn.task.waker());
        if !self.wire.awaits_content() {
            return self.answer(incoming, turn);
        }
        if incoming.framing.expects_continue && is_all_input {
            if !incoming.routed.request.method().is_safe() {
                // The answer will not depend on the content, so that the client need not send it. Whether it still does
                // is unknown, and so is where the next request would begin.
                self.is_closing = true;
                self.lingers = true;
                return self.answer(incoming, turn);
            }
            turn.output.bytes.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.deferred = Some(Box::new(Deferred {
            request: OwnedRequest::new(&incoming.routed),
            framing: incoming.framing,
            started_ms: incoming.routed.now.monotonic_ms,
            content_bytes: 0,
        }));
        Ok(())
    }

    /// Takes note of a piece of content, and answers its request when it was the last. The handlers there are don't read
    /// content, but a request is answered only when its framing has turned out sound.
    fn on_content(&mut self, length: usize, is_complete: bool, turn: &mut Turn<'_, '_>) -> io::Result<()> {
        let Some(deferred) = &mut self.deferred else { return Ok(()) };
        deferred.content_bytes += length as u64;
        if is_complete {
            // Local invariant: it was there two lines above.
            let Some(deferred) = self.deferred.take() else { return Ok(()) };
            let incoming = Incoming { routed: deferred.request.routed(false), framing: deferred.framing };
            return self.answer(incoming, turn);
        }
        if is_too_slow(deferred.content_bytes, turn.now.monotonic_ms - deferred.started_ms, turn.context) {
            self.refuse(REQUEST_TIMEOUT, &[], turn);
        }
        Ok(())
    }

    fn answer(&mut self, incoming: Incoming<'_>, turn: &mut Turn<'_, '_>) -> io::Result<()> {
        match turn.context.router.answer(self.listener, &incoming.routed) {
            Answer::Ready(response, log) => self.respond(incoming, response, log, turn),
            Answer::Wait(future, request, log) => {
                self.answering = Some(Box::new(Answering { future, request, framing: incoming.framing, log }));
                Ok(())
            }
        }
    }

    /// Waits for an answer. Ready when it has been sent, or is being sent.
    fn drive_answering(&mut self, context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let Some(answering) = &mut self.answering else { return Poll::Ready(Ok(())) };
        context.table.borrow_mut().enter(self.slot, Stage::Answer, None, task.waker());
        let response = ready!(answering.future.as_mut().poll(task));
        // Local invariant: it was there when this function began.
        let Some(answering) = self.answering.take() else { return Poll::Ready(Ok(())) };
        let output = &mut context.scratch.borrow_mut().output;
        let incoming = Incoming { routed: answering.request.routed(false), framing: answering.framing };
        let turn = &mut Turn { context, task, output, now: context.clock.now() };
        self.respond(incoming, response, answering.log, turn)?;
        self.flush(turn).into()
    }

    /// Adds a response to the output, and logs it; if it has content of its own to send, sends it.
    fn respond(
        &mut self,
        incoming: Incoming<'_>,
        response: Response,
        log: Option<LogId>,
        turn: &mut Turn<'_, '_>,
    ) -> io::Result<()> {
        let Turn { context, output, now, .. } = turn;
        let persistence = self.persistence(&incoming, context);
        let manner = Manner {
            date: &context.clock.date(*now),
            persistence,
            is_head: incoming.routed.request.method() == Method::Head,
            server_field: context.server_field,
        };
        let (status, content_bytes) = output.write_response(response, manner);
        if !output.tail.is_empty()
            && let Some(transmission) = send_now(&mut self.socket, output)?
        {
            let exchange =
                log.map(|log| Exchange { request: OwnedRequest::new(&incoming.routed), log, status, content_bytes });
            self.begin_sending(transmission, exchange, *now);
            return Ok(());
        }
        if let Some(log) = log {
            let Routed { request, host, now: received, .. } = incoming.routed;
            self.record(log, Subject::Request(request), host, (status, content_bytes), received, *now);
        }
        Ok(())
    }

    /// Whether another request may follow; if not, none is read any more.
    fn persistence(&mut self, incoming: &Incoming<'_>, context: &Context) -> Persistence {
        let requests_max = context.limits.requests_per_connection_max;
        let request = incoming.routed.request;
        self.is_closing |= !incoming.framing.is_persistent
            || context.is_draining.get()
            || (requests_max != 0 && self.requests >= requests_max)
            // What follows a CONNECT is not HTTP, also when it is refused.
            || request.method() == Method::Connect;
        match (self.is_closing, request.head.version) {
            (true, _) => Persistence::Close,
            (false, Version::Http10) => Persistence::PersistentHttp10,
            (false, _) => Persistence::Persistent,
        }
    }

    /// Answers what can't be read as a request, and reads no more.
    fn refuse(&mut self, refusal: Refusal, input: &[u8], turn: &mut Turn<'_, '_>) {
        let Turn { context, output, now, .. } = turn;
        self.is_closing = true;
        self.lingers = true;
        // A response to HEAD has no content, also if it is an error (RFC 9110, section 9.3.2).
        let is_head = match self.deferred.take() {
            Some(deferred) => deferred.request.routed(false).request.method() == Method::Head,
            None => input.starts_with(b"HEAD "),
        };
        let manner = Manner {
            date: &context.clock.date(*now),
            persistence: Persistence::Close,
            is_head,
            server_field: context.server_field,
        };
        let response = error_response(refusal.status, PageFormat::Html);
        let sent = output.write_response(Response::Built(response), manner);
        if let Some(log) = context.router.default_log(self.listener) {
            self.record(log, Subject::Malformed(input), &[], sent, *now, *now);
        }
    }

    /// Sends the output, and keeps what the socket does not take.
    fn flush(&mut self, turn: &mut Turn<'_, '_>) -> io::Result<()> {
        if turn.output.is_empty() {
            return Ok(());
        }
        if let Some(transmission) = send_now(&mut self.socket, turn.output)? {
            self.begin_sending(transmission, None, turn.now);
        }
        Ok(())
    }

    fn begin_sending(&mut self, transmission: Transmission, exchange: Option<Exchange>, now: Now) {
        self.sending = Some(Box::new(Sending { transmission, started_ms: now.monotonic_ms, exchange }));
    }

    /// Sends on. Ready when all is sent.
    fn drive_sending(&mut self, context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let Some(sending) = &mut self.sending else { return Poll::Ready(Ok(())) };
        let sent_before = sending.transmission.total_sent;
        let mut result = sending.transmission.poll_send(&mut self.socket, task);
        let now_ms = context.clock.now().monotonic_ms;
        if result.is_pending() {
            let total_sent = sending.transmission.total_sent;
            if is_too_slow(total_sent, now_ms - sending.started_ms, context) {
                result = Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            } else {
                let mut table = context.table.borrow_mut();
                if total_sent > sent_before || table.stage(self.slot) != Stage::Write {
                    let deadline_ms = now_ms + context.limits.write_timeout.as_millis() as u64;
                    table.enter(self.slot, Stage::Write, Some(deadline_ms), task.waker());
                }
                return Poll::Pending;
            }
        }
        self.finish_sending();
        result
    }

    /// Logs what was sent, whole or not.
    fn finish_sending(&mut self) {
        let Some(sending) = self.sending.take() else { return };
        let Sending { transmission, exchange: Some(exchange), .. } = *sending else { return };
        let content_bytes = exchange.content_bytes.saturating_sub(transmission.remaining());
        let request = &exchange.request;
        let now = self.context.clock.now();
        let subject = Subject::Request(request.request());
        self.record(exchange.log, subject, request.host(), (exchange.status, content_bytes), request.received(), now);
    }

    /// Reads on after the last response and drops what comes, until the client ends or has had time enough.
    fn drive_lingering(&mut self, context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let mut table = context.table.borrow_mut();
        if table.stage(self.slot) != Stage::Linger {
            self.socket.shutdown_write()?;
            let deadline_ms = context.clock.now().monotonic_ms + LINGER_MS;
            table.enter(self.slot, Stage::Linger, Some(deadline_ms), task.waker());
        }
        let input = &mut context.scratch.borrow_mut().input;
        while ready!(self.socket.poll_read(input))? > 0 {}
        Poll::Ready(Ok(()))
    }

    fn record(
        &self,
        log: LogId,
        subject: Subject<'_>,
        host: &[u8],
        (status, content_bytes): (Status, u64),
        received: Now,
        now: Now,
    ) {
        self.context.recorder.borrow_mut().record(&Record {
            log,
            subject,
            client: self.client,
            host,
            user: b"",
            status,
            content_bytes,
            unix_us: received.unix_us,
            duration_us: now.unix_us.saturating_sub(received.unix_us),
        });
    }
}

const REQUEST_TIMEOUT: Refusal =
    Refusal { status: Status::REQUEST_TIMEOUT, reason: "the request took too long to arrive" };

/// Whether a body or response is slower than allowed, measured from its beginning.
fn is_too_slow(bytes: u64, elapsed_ms: u64, context: &Context) -> bool {
    let limits = &context.limits;
    elapsed_ms > limits.write_timeout.as_millis() as u64
        && bytes.saturating_mul(1_000) < limits.rate_bytes_per_second_min.saturating_mul(elapsed_ms)
}

/// Brings path and host into the form that routing and handlers read.
fn route<'a>(
    request: Request<'a>,
    target: &Target<'a>,
    host: Option<Host<'a>>,
    now: Now,
    path_buffer: &'a mut Vec<u8>,
    host_buffer: &'a mut Vec<u8>,
) -> Result<Routed<'a>, Refusal> {
    // The targets of OPTIONS and CONNECT may have none.
    let path = match target.path {
        b"*" | b"" => target.path,
        raw => path::normalise(raw, path_buffer)
            .map_err(|_| Refusal { status: Status::BAD_REQUEST, reason: "malformed path" })?,
    };
    let host = host.map_or(&b""[..], |host| host.lower_case(host_buffer));
    Ok(Routed { request, path, query: target.query, host, has_next: false, now })
}

impl Drop for H1Connection {
    fn drop(&mut self) {
        self.finish_sending();
        self.context.table.borrow_mut().remove(self.slot);
    }
}
