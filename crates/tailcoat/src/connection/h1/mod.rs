//! A connection that speaks HTTP/1.

mod live;
mod receive;
mod respond;
mod tunnel;

use std::cell::OnceCell;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};

use wire::h1::{BodyFraming, Framing, H1Event, H1ServerConnection, InputLimits};
use wire::h2::PREFACE;
use wire::http::Request;

use self::receive::Receiving;
use self::respond::Sending;
use self::tunnel::H1Tunnel;
use super::arrival::{Arrived, NO_PLACE, REQUEST_TIMEOUT, route};
use super::output::Output;
use super::transmit::send_now;
use super::{ConnectionScratch, ConnectionStage, Context, OpenedConnection, Socket, Transport, WakeReason};
use crate::handler::{ClientLinkCell, Now, OwnedRequest, Routed};
use crate::log::LogClient;
use crate::memory_budget::Charge;
use crate::metrics::Limit;
use crate::routing::{RequestAccount, ResponseFuture};
use crate::tls::TlsInfo;

/// Reads of a connection before others have their turn: what is pipelined, or sliced into tiny records of TLS, takes longer to
/// work through than to send.
const READS_A_TURN_MAX: u32 = 8;

/// The connection.
pub struct H1Connection {
    socket: Transport,
    context: Rc<Context>,
    client: LogClient,
    /// How it speaks TLS, if it does.
    tls: Option<Rc<TlsInfo>>,
    wire: H1ServerConnection,
    /// Its number among all that the worker has opened.
    number: NonZeroU64,
    /// Its place in the table of connections.
    slot: u32,
    listener: u16,
    requests: u32,
    /// Where the client has connected to, once somebody wanted to know, or as a proxy has told it.
    destination: OnceCell<Box<SocketAddr>>,
    /// The client speaks HTTP/2, so that this ends.
    is_http2: bool,
    /// No further request is read.
    is_closing: bool,
    /// After the last response, input is still to be expected.
    lingers: bool,
    /// `kept` has not been looked at since it was kept.
    has_unseen_input: bool,
    /// Input that is not done with: an incomplete head, or requests behind one that is not answered yet.
    kept: Vec<u8>,
    /// A request's content that has not come to its end.
    receiving: Option<Box<Receiving>>,
    /// A request whose answer is awaited.
    answering: Option<Box<Answering>>,
    /// Output that the socket has not taken yet.
    sending: Option<Box<Sending>>,
    /// What follows when HTTP has ended.
    tunneling: Option<Box<H1Tunnel>>,
    /// What the connection holds for its client, but for heads of requests.
    held: Option<Charge>,
}

struct Answering {
    future: ResponseFuture,
    request: Rc<OwnedRequest>,
    framing: Framing,
    account: RequestAccount,
}

/// Output that a connection leaves to be sent later, at most: a few small responses.
const GATHERED_BYTES_MAX: usize = 8 << 10;

/// What a connection is given while it is polled.
struct H1Turn<'a, 'task> {
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

/// Counts the limit that a connection has come to that took too long.
fn count_verdict(verdict: WakeReason, stage: ConnectionStage, context: &Context) {
    let limit = match (verdict, stage) {
        (WakeReason::TimedOut, ConnectionStage::Head) => Limit::HeadTimeout,
        (WakeReason::TimedOut, ConnectionStage::Content) => Limit::BodyTimeout,
        (WakeReason::TimedOut, ConnectionStage::Write) => Limit::WriteTimeout,
        _ => return,
    };
    context.count_limit(limit);
}

impl H1Connection {
    /// A connection that was accepted from a listener.
    pub fn new(opened: OpenedConnection, listener: u16, context: Rc<Context>) -> Self {
        let OpenedConnection { transport, client, destination, tls, input, slot, .. } = opened;
        let number = context.next_connection_number();
        Self {
            socket: transport,
            context,
            client,
            destination: destination.map(OnceCell::from).unwrap_or_default(),
            tls,
            wire: H1ServerConnection::default(),
            number,
            slot,
            listener,
            requests: 0,
            is_http2: false,
            is_closing: false,
            lingers: false,
            has_unseen_input: !input.is_empty(),
            kept: input,
            receiving: None,
            answering: None,
            sending: None,
            tunneling: None,
            held: None,
        }
    }

    /// Ends it. To be called once, whatever it was in the middle of.
    pub fn close(&mut self) {
        self.finish_sending();
        self.finish_tunneling();
        self.context.leave(self.slot);
    }

    /// Whether the client has begun with the preface of HTTP/2: nothing else was read or sent.
    pub fn is_http2(&self) -> bool {
        self.is_http2
    }

    /// The connection, to go on with in another version; and its listener.
    pub fn into_opened(self) -> (OpenedConnection, u16, Rc<Context>) {
        let Self { socket, client, destination, tls, kept, slot, listener, context, .. } = self;
        let opened = OpenedConnection {
            transport: socket,
            client,
            destination: destination.into_inner(),
            tls,
            input: kept,
            slot,
            is_http2: true,
        };
        (opened, listener, context)
    }

    /// Its socket, which is to be waited for when `poll` returned `Pending`.
    pub fn socket(&mut self) -> &mut Socket {
        self.socket.socket_mut()
    }

    /// Reads what has come into `input`, if a request is all that is awaited; else nothing.
    pub fn read_ahead(&mut self, input: &mut [u8]) -> Option<io::Result<usize>> {
        let awaits_request = self.kept.is_empty()
            && self.receiving.is_none()
            && self.answering.is_none()
            && self.sending.is_none()
            && self.tunneling.is_none()
            && !self.is_closing;
        match &mut self.socket {
            Transport::Plain(socket) if awaits_request => match socket.poll_read(input) {
                Poll::Ready(read) => Some(read),
                Poll::Pending => None,
            },
            _ => None,
        }
    }

    /// Sends what polling left in `output`. Ready when that is done; else the connection is to be polled again, to go on
    /// with it or, if that is impossible, to end.
    pub fn send_gathered(&mut self, output: &mut Output) -> Poll<()> {
        let output_bytes = output.bytes.len() as u64;
        match send_now(&mut self.socket, output, false) {
            Ok(None) => {
                self.context.count_sent(output_bytes);
                return Poll::Ready(());
            }
            Ok(Some(transmission)) => {
                self.context.count_sent(output_bytes.saturating_sub(transmission.remaining()));
                self.begin_sending(transmission, None, None, self.context.clock.now());
            }
            Err(_) => self.is_closing = true,
        }
        Poll::Pending
    }

    /// Goes on until something has to be waited for: the socket, or what wakes the task. Ready when the connection is to be
    /// closed.
    pub fn poll(&mut self, task: &mut Task<'_>) -> Poll<()> {
        // A peer's error ends its connection, and concerns nobody else.
        let polled = self.drive(task).map(|_| ());
        if polled.is_pending() {
            let sending_bytes = self.sending.as_ref().map_or(0, |sending| sending.held_bytes());
            let held_bytes = self.kept.capacity() + sending_bytes + self.socket.held_bytes();
            self.context.charge_held(self.slot, held_bytes, &mut self.held);
        }
        polled
    }

    /// Goes on until something has to be waited for; ready when the connection is to be closed.
    fn drive(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let context = Rc::clone(&self.context);
        context.scratch.borrow_mut().clear(context.input_bytes.get());
        let verdict = context.table.borrow_mut().take_verdict(self.slot);
        if let Some(verdict) = verdict
            && self.on_verdict(verdict, &context, task)?.is_ready()
        {
            self.socket.end();
            return Poll::Ready(Ok(()));
        }
        let mut reads = 0;
        loop {
            if self.sending.is_some() {
                ready!(self.drive_sending(&context, task))?;
            } else if self.answering.is_some() {
                ready!(self.drive_answering(&context, task))?;
            } else if self.tunneling.is_some() {
                return self.drive_tunneling(&context, task);
            } else if !self.is_closing {
                if reads == READS_A_TURN_MAX {
                    // The others first: a client may send faster than it is answered.
                    task.waker().wake_by_ref();
                    return Poll::Pending;
                }
                reads += 1;
                ready!(self.drive_reading(&context, task))?;
            } else if self.lingers {
                return self.drive_lingering(&context, task);
            } else {
                if !self.is_http2 {
                    self.socket.end();
                }
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Ends what took too long. Ready if that ends the connection.
    fn on_verdict(&mut self, verdict: WakeReason, context: &Context, task: &mut Task<'_>) -> io::Result<Poll<()>> {
        let stage = context.table.borrow().stage(self.slot);
        count_verdict(verdict, stage, context);
        match (verdict, stage) {
            (WakeReason::Evicted, _) => self.on_evicted(context, task),
            // Too late for a response of its own.
            (WakeReason::TimedOut, ConnectionStage::Content) if self.sending.is_some() => {
                Err(io::ErrorKind::TimedOut.into())
            }
            (WakeReason::TimedOut, ConnectionStage::Head | ConnectionStage::Content) => {
                let output = &mut context.scratch.borrow_mut().output;
                let mut turn = H1Turn { context, task, output, now: context.clock.now() };
                self.refuse(REQUEST_TIMEOUT, &[], &mut turn);
                self.flush(&mut turn)?;
                Ok(Poll::Pending)
            }
            (WakeReason::TimedOut, ConnectionStage::Answer) => {
                if let Some(link) = self.link() {
                    link.set_late(task);
                }
                Ok(Poll::Pending)
            }
            (WakeReason::TimedOut, ConnectionStage::Write) => Err(io::ErrorKind::TimedOut.into()),
            // What it holds must be free at once.
            (WakeReason::Shed, _) => {
                self.socket.abort_on_close();
                Err(io::ErrorKind::OutOfMemory.into())
            }
            _ => Ok(Poll::Ready(())),
        }
    }

    /// Gives up the place, whatever the connection is in the middle of. A request that is not answered yet gets 503, as far
    /// as the socket takes that at once.
    fn on_evicted(&mut self, context: &Context, task: &mut Task<'_>) -> io::Result<Poll<()>> {
        if self.sending.is_some() {
            self.socket.abort_on_close();
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.answering.is_some() || self.receiving.is_some() {
            let output = &mut context.scratch.borrow_mut().output;
            let mut turn = H1Turn { context, task, output, now: context.clock.now() };
            self.refuse(NO_PLACE, &[], &mut turn);
            self.flush(&mut turn)?;
        }
        Ok(Poll::Ready(()))
    }

    /// Reads, and answers what was read. Ready when something else is to be done first.
    fn drive_reading(&mut self, context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let scratch = &mut *context.scratch.borrow_mut();
        let mut filled = self.kept.len();
        // Mostly there is nothing, which is not worth a call either.
        if filled > 0 {
            scratch.input[..filled].copy_from_slice(&self.kept);
        }
        if !self.has_unseen_input {
            let read = match scratch.read.take() {
                Some(read) => Poll::Ready(read),
                None => self.socket.poll_read(&mut scratch.input[filled..]),
            };
            match read {
                Poll::Ready(Ok(0)) => {
                    self.is_closing = true;
                    let output = &mut scratch.output;
                    self.flush(&mut H1Turn { context, task, output, now: context.clock.now() })?;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(count) => {
                    let count = count?;
                    context.count_received(count);
                    filled += count;
                }
                Poll::Pending => {
                    self.await_input(context, task);
                    return Poll::Pending;
                }
            }
        }
        self.kept = Vec::new();
        self.has_unseen_input = false;
        if self.requests == 0 && context.generation().http_versions.http2 && begins_http2(&scratch.input[..filled]) {
            self.is_http2 = true;
            self.is_closing = true;
            self.kept = scratch.input[..filled].to_vec();
            return Poll::Ready(Ok(()));
        }
        self.on_input(filled, scratch, context, task).into()
    }

    /// Notes until when input is waited for.
    fn await_input(&mut self, context: &Context, task: &mut Task<'_>) {
        let now_ms = context.clock.now().monotonic_ms;
        let limits = &context.generation().limits;
        let mut table = context.table.borrow_mut();
        let (stage, timeout) = if self.receiving.is_some() {
            (ConnectionStage::Content, limits.body_timeout)
        } else if !self.kept.is_empty() {
            // A head has to be complete some time after its first byte, however many pieces it comes in.
            if table.stage(self.slot) == ConnectionStage::Head {
                return;
            }
            (ConnectionStage::Head, limits.head_timeout)
        } else {
            (ConnectionStage::Idle, limits.idle_timeout)
        };
        table.enter(self.slot, stage, Some(now_ms + timeout.as_millis() as u64), task.waker());
    }

    /// Answers the requests in `scratch.input[..filled]`, as far as they are complete, and sends the answers together.
    fn on_input(
        &mut self,
        filled: usize,
        scratch: &mut ConnectionScratch,
        context: &Context,
        task: &mut Task<'_>,
    ) -> io::Result<()> {
        let ConnectionScratch { input, head, path, host, output, gathers, .. } = scratch;
        let input = &input[..filled];
        let turn = &mut H1Turn { context, task, output, now: context.clock.now() };
        let mut at = 0;
        while at < filled && !self.is_closing && self.sending.is_none() && self.answering.is_none() {
            match self.wire.handle_input(&input[at..], head, &self.input_limits(context)) {
                Ok(H1Event::NeedInput) => break,
                Ok(H1Event::Request(incoming)) => {
                    let request = Request { head, bytes: &input[at..] };
                    at += incoming.head_bytes;
                    self.requests = self.requests.saturating_add(1);
                    let link = match incoming.framing.body {
                        BodyFraming::None => ClientLinkCell::without_content(context.holder_source(self.slot)),
                        framing => {
                            let body_bytes_max = context.generation().input_limits.body.body_bytes_max;
                            ClientLinkCell::with_content(
                                framing,
                                body_bytes_max,
                                Some(context.holder_source(self.slot)),
                            )
                        }
                    };
                    let link = link.of_connection(self.number);
                    let tls = self.tls.clone();
                    let arrived = Arrived { client: self.client, tls: tls.as_ref(), link: &link, now: turn.now };
                    match route(request, &incoming.target, incoming.host, arrived, path, host) {
                        Ok(routed) => {
                            let incoming = Incoming { routed, framing: incoming.framing };
                            self.on_request(&incoming, at == filled, turn)?;
                        }
                        Err(refusal) => self.refuse(refusal, request.bytes, turn),
                    }
                }
                Ok(H1Event::Content(decoded)) => {
                    at += decoded.consumed_bytes;
                    self.on_unread_content(decoded.content.len(), decoded.is_complete, turn)?;
                }
                Err(refusal) => self.refuse(refusal, &input[at..], turn),
            }
            if turn.output.is_full() {
                self.flush(turn)?;
            }
        }
        if at < filled {
            self.lingers |= self.is_closing;
            self.has_unseen_input = !self.is_closing && (self.sending.is_some() || self.answering.is_some());
            if !self.is_closing {
                self.kept = input[at..].to_vec();
            }
        }
        if *gathers && self.may_gather(turn.output) {
            return Ok(());
        }
        self.flush(turn)
    }

    /// Whether nothing is lost if the output waits until others have theirs.
    fn may_gather(&self, output: &Output) -> bool {
        let goes_on = self.is_closing || self.answering.is_some() || self.sending.is_some() || self.tunneling.is_some();
        !goes_on && !output.has_tail() && output.bytes.len() <= GATHERED_BYTES_MAX
    }

    /// The limits of what comes next. How much content there may be depends on who gets it, which is known when the head
    /// has been routed.
    fn input_limits(&self, context: &Context) -> InputLimits {
        let mut limits = context.generation().input_limits;
        limits.body.body_bytes_max = self.receiving.as_ref().map_or(u64::MAX, |receiving| receiving.body_bytes_max());
        limits
    }

    /// Where the client has connected to, as it sees it; `None` for a unix socket.
    fn destination(&self) -> Option<SocketAddr> {
        if self.destination.get().is_none()
            && let Some(address) = self.socket.local_address()
        {
            let _ = self.destination.set(Box::new(address));
        }
        self.destination.get().map(|destination| **destination)
    }

    /// Reads on after the last response and drops what comes, until the client ends or has had time enough: else what
    /// it still sends would reset the connection before it has read the response (RFC 9112, section 9.6).
    fn drive_lingering(&mut self, context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let mut table = context.table.borrow_mut();
        if table.stage(self.slot) != ConnectionStage::Linger {
            self.socket.shutdown_write()?;
            let deadline_ms =
                context.clock.now().monotonic_ms + context.generation().limits.linger_timeout.as_millis() as u64;
            table.enter(self.slot, ConnectionStage::Linger, Some(deadline_ms), task.waker());
        }
        let input = &mut context.scratch.borrow_mut().input;
        for _ in 0..READS_A_TURN_MAX {
            if ready!(self.socket.poll_read(input))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Whether it is the client's preface of HTTP/2 (RFC 9113, section 3.4), as far as no request of HTTP/1 has it.
fn begins_http2(input: &[u8]) -> bool {
    input.starts_with(&PREFACE[..HTTP2_LINE_BYTES])
}

/// Bytes of the preface's first line, which would be a request of a version that HTTP/1 is not.
const HTTP2_LINE_BYTES: usize = 16;
