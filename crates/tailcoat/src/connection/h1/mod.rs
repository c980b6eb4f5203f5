//! HTTP/1 connections.

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

/// Maximum number of reads of a connection before others get their turn. Pipelined requests and tiny TLS records take
/// longer to process than to send.
const READS_A_TURN_MAX: u32 = 8;

/// HTTP/1 connection of a client.
pub struct H1Connection {
    socket: Transport,
    context: Rc<Context>,
    client: LogClient,
    /// TLS state; `None` without TLS.
    tls: Option<Rc<TlsInfo>>,
    wire: H1ServerConnection,
    /// Number of the connection, unique among all that the worker has opened.
    number: NonZeroU64,
    /// Slot in the table of connections.
    slot: u32,
    listener: u16,
    requests: u32,
    /// Local address that the client connected to, or that a proxy reported. Read at its first use.
    destination: OnceCell<Box<SocketAddr>>,
    /// True if the client speaks HTTP/2, so that this connection object ends.
    is_http2: bool,
    /// True if no further request is read.
    is_closing: bool,
    /// True if input may still arrive after the last response.
    lingers: bool,
    /// True if `kept` has not been parsed since it was stored.
    has_unseen_input: bool,
    /// Unprocessed input: an incomplete head, or requests pipelined after one that is still in progress.
    kept: Vec<u8>,
    /// Content of a request that has not been received completely.
    receiving: Option<Box<Receiving>>,
    /// Request whose response is pending.
    answering: Option<Box<Answering>>,
    /// Output that the socket has not accepted yet.
    sending: Option<Box<Sending>>,
    /// Tunnel that follows HTTP.
    tunneling: Option<Box<H1Tunnel>>,
    /// Memory charge for buffers of the connection, without the heads of requests.
    held: Option<Charge>,
}

struct Answering {
    future: ResponseFuture,
    request: Rc<OwnedRequest>,
    framing: Framing,
    account: RequestAccount,
}

/// Maximum output in bytes that a connection leaves to be sent with its group: a few small responses.
const GATHERED_BYTES_MAX: usize = 8 << 10;

/// Resources that a connection uses while it is polled.
struct H1Turn<'a, 'task> {
    context: &'a Context,
    task: &'a mut Task<'task>,
    output: &'a mut Output,
    now: Now,
}

/// Received request with its framing, which determines if the connection persists.
struct Incoming<'a> {
    routed: Routed<'a>,
    framing: Framing,
}

/// Counts the limit that a connection exceeded by its time in a stage.
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
    /// Makes the connection from an opened transport.
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

    /// Closes the connection in any state. Must be called once.
    pub fn close(&mut self) {
        self.finish_sending();
        self.finish_tunneling();
        self.context.leave(self.slot);
    }

    /// True if the client began with the HTTP/2 preface; nothing else was read or sent.
    pub fn is_http2(&self) -> bool {
        self.is_http2
    }

    /// Converts the connection for another version of HTTP; returns its listener and context, too.
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
            ftp: None,
        };
        (opened, listener, context)
    }

    /// Socket to wait for after `poll` returned `Pending`.
    pub fn socket(&mut self) -> &mut Socket {
        self.socket.socket_mut()
    }

    /// Reads into `input` if the connection awaits nothing but a request; `None` otherwise.
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

    /// Sends the output that `poll` left in `output`. Ready when all of it is sent. If pending, the caller must poll
    /// the connection again, which continues sending or closes.
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

    /// Polls until the socket or a waker must be waited for. Ready when the connection must be closed.
    pub fn poll(&mut self, task: &mut Task<'_>) -> Poll<()> {
        // A peer's error ends its own connection only.
        let polled = self.drive(task).map(|_| ());
        if polled.is_pending() {
            let sending_bytes = self.sending.as_ref().map_or(0, |sending| sending.held_bytes());
            let held_bytes = self.kept.capacity() + sending_bytes + self.socket.held_bytes();
            self.context.charge_held(self.slot, held_bytes, &mut self.held);
        }
        polled
    }

    /// Runs until the connection must wait; ready when it must be closed.
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
                    // Other connections get their turn first, because a client may send faster than the server
                    // responds.
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

    /// Handles a time-out or eviction. Ready if that ends the connection.
    fn on_verdict(&mut self, verdict: WakeReason, context: &Context, task: &mut Task<'_>) -> io::Result<Poll<()>> {
        let stage = context.table.borrow().stage(self.slot);
        count_verdict(verdict, stage, context);
        match (verdict, stage) {
            (WakeReason::Evicted, _) => self.on_evicted(context, task),
            // A response is already being sent, so an error response is no longer possible.
            (WakeReason::TimedOut, ConnectionStage::Content) if self.sending.is_some() => {
                Err(io::ErrorKind::TimedOut.into())
            }
            (WakeReason::TimedOut, ConnectionStage::Head | ConnectionStage::Content) => {
                let output = &mut context.scratch.borrow_mut().output;
                let mut turn = H1Turn { context, task, output, now: context.clock.now() };
                self.reject(REQUEST_TIMEOUT, &[], &mut turn);
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
            // The memory of the connection must be free at once.
            (WakeReason::Shed, _) => {
                self.socket.abort_on_close();
                Err(io::ErrorKind::OutOfMemory.into())
            }
            _ => Ok(Poll::Ready(())),
        }
    }

    /// Releases the connection's place in any state. A request without a response gets status 503, if the socket
    /// accepts it at once.
    fn on_evicted(&mut self, context: &Context, task: &mut Task<'_>) -> io::Result<Poll<()>> {
        if self.sending.is_some() {
            self.socket.abort_on_close();
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.answering.is_some() || self.receiving.is_some() {
            let output = &mut context.scratch.borrow_mut().output;
            let mut turn = H1Turn { context, task, output, now: context.clock.now() };
            self.reject(NO_PLACE, &[], &mut turn);
            self.flush(&mut turn)?;
        }
        Ok(Poll::Ready(()))
    }

    /// Reads, and answers the requests. Ready when something else must be done first.
    fn drive_reading(&mut self, context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let scratch = &mut *context.scratch.borrow_mut();
        let mut filled = self.kept.len();
        // Usually nothing is kept, and then the call is not worth its cost.
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

    /// Sets the deadline for input.
    fn await_input(&mut self, context: &Context, task: &mut Task<'_>) {
        let now_ms = context.clock.now().monotonic_ms;
        let limits = &context.generation().limits;
        let mut table = context.table.borrow_mut();
        let (stage, timeout) = if self.receiving.is_some() {
            (ConnectionStage::Content, limits.body_timeout)
        } else if !self.kept.is_empty() {
            // A head must be complete within a fixed time after its first byte, in any number of pieces.
            if table.stage(self.slot) == ConnectionStage::Head {
                return;
            }
            (ConnectionStage::Head, limits.head_timeout)
        } else {
            (ConnectionStage::Idle, limits.idle_timeout)
        };
        table.enter(self.slot, stage, Some(now_ms + timeout.as_millis() as u64), task.waker());
    }

    /// Answers the complete requests in `scratch.input[..filled]`, and sends their responses together.
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
                        Err(rejection) => self.reject(rejection, request.bytes, turn),
                    }
                }
                Ok(H1Event::Content(decoded)) => {
                    at += decoded.consumed_bytes;
                    self.on_unread_content(decoded.content.len(), decoded.is_complete, turn)?;
                }
                Err(rejection) => self.reject(rejection, &input[at..], turn),
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

    /// Returns true if the output can wait for the rest of the group without loss.
    fn may_gather(&self, output: &Output) -> bool {
        let goes_on = self.is_closing || self.answering.is_some() || self.sending.is_some() || self.tunneling.is_some();
        !goes_on && !output.has_tail() && output.bytes.len() <= GATHERED_BYTES_MAX
    }

    /// Limits of the next input. The limit of content depends on the handler, which is known once the head is routed.
    fn input_limits(&self, context: &Context) -> InputLimits {
        let mut limits = context.generation().input_limits;
        limits.body.body_bytes_max = self.receiving.as_ref().map_or(u64::MAX, |receiving| receiving.body_bytes_max());
        limits
    }

    /// Local address that the client connected to; `None` for a unix socket.
    fn destination(&self) -> Option<SocketAddr> {
        if self.destination.get().is_none()
            && let Some(address) = self.socket.local_address()
        {
            let _ = self.destination.set(Box::new(address));
        }
        self.destination.get().map(|destination| **destination)
    }

    /// Reads and drops input after the last response, until the client ends or the time limit is reached. Closing at
    /// once would reset the connection if the client still sends. The client could then lose the response (RFC 9112,
    /// section 9.6).
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

/// True if the input begins with the part of the HTTP/2 preface (RFC 9113, section 3.4) that no HTTP/1 request can
/// have.
fn begins_http2(input: &[u8]) -> bool {
    input.starts_with(&PREFACE[..HTTP2_LINE_BYTES])
}

/// Length in bytes of the preface's first line. As a request line it has a version that is not HTTP/1.
const HTTP2_LINE_BYTES: usize = 16;
