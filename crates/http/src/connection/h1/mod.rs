//! HTTP/1 connections.

mod live;
mod receive;
mod respond;
mod states;
mod tunnel;

use std::cell::OnceCell;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use wire::h1::{BodyFraming, Framing, H1Event, H1ServerConnection, InputLimits};
use wire::h2::PREFACE;
use wire::http::{Request, RequestHead};

use self::receive::Receiving;
use self::states::{H1Following, H1Output};
use super::arrival::{Arrived, NO_PLACE, REQUEST_TIMEOUT, route};
use super::group::Turn;
use super::lingering::poll_lingering;
use super::output::Output;
use super::tarpit::TarpitConnection;
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
pub(crate) struct H1Connection {
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
    /// True if `kept` has not been parsed since it was stored.
    has_unseen_input: bool,
    /// Unprocessed input: an incomplete head, or requests pipelined after one that is still in progress.
    kept: Vec<u8>,
    /// Content of a request that has not been received completely.
    receiving: Option<Box<Receiving>>,
    following: H1Following,
    output: H1Output,
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
    /// Input that was read before the poll.
    input: Option<io::Result<&'a [u8]>>,
    output: &'a mut Output,
    /// True if responses that can be sent at once stay in `output` after the poll.
    gathers: bool,
    now: Now,
}

/// Buffers of the worker thread for routing requests.
struct RoutingBuffers<'a> {
    head: &'a mut RequestHead,
    path: &'a mut Vec<u8>,
    host: &'a mut Vec<u8>,
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
    pub(crate) fn new(opened: OpenedConnection, listener: u16, context: Rc<Context>) -> Self {
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
            has_unseen_input: !input.is_empty(),
            kept: input,
            receiving: None,
            following: H1Following::Requests,
            output: H1Output::default(),
            held: None,
        }
    }

    /// Closes the connection in any state. Must be called once.
    pub(crate) fn close(&mut self) {
        self.finish_sending();
        self.finish_tunneling();
        self.context.leave(self.slot);
    }

    /// True if the client began with the HTTP/2 preface; nothing else was read or sent.
    pub(crate) fn is_http2(&self) -> bool {
        self.following == H1Following::Http2
    }

    /// True if the connection must be kept without a response.
    pub(super) fn is_for_tarpit(&self) -> bool {
        self.following == H1Following::Tarpit
    }

    /// Converts the connection to one in the tarpit; `None` if that is full.
    pub(super) fn into_tarpit(mut self) -> Option<TarpitConnection> {
        let limits = self.context.generation().limits.tarpit;
        let bans = Arc::clone(self.context.generation().router.ban_table());
        let Some(place) = bans.take_tarpit_place(limits.connections_max) else {
            self.close();
            return None;
        };
        let Self { socket, client, slot, context, tls, .. } = self;
        Some(TarpitConnection::new(socket.into_socket(), client, slot, tls.is_none(), place, context))
    }

    /// Converts the connection for another version of HTTP; returns its listener and context, too.
    pub(crate) fn into_opened(self) -> (OpenedConnection, u16, Rc<Context>) {
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
    pub(crate) fn socket(&mut self) -> &mut Socket {
        self.socket.socket_mut()
    }

    /// True if the connection awaits nothing but a request.
    fn awaits_request(&self) -> bool {
        self.kept.is_empty() && self.receiving.is_none() && self.output.is_idle() && !self.following.is_closed()
    }

    /// Reads into `input` if the connection awaits nothing but a request; `None` otherwise.
    pub(crate) fn read_ahead(&mut self, input: &mut [u8]) -> Option<io::Result<usize>> {
        let awaits_request = self.awaits_request();
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
    pub(crate) fn send_gathered(&mut self, output: &mut Output) -> Poll<()> {
        let output_bytes = output.bytes.len() as u64;
        match send_now(&mut self.socket, output, false) {
            Ok(None) => {
                self.context.count_sent(output_bytes);
                return Poll::Ready(());
            }
            Ok(Some(transmission)) => {
                self.context.count_sent(output_bytes.saturating_sub(transmission.remaining()));
                self.begin_sending(transmission, None, None);
            }
            Err(_) => self.following.close(),
        }
        Poll::Pending
    }

    /// Polls until the socket or a waker must be waited for. Ready when the connection must be closed.
    pub(crate) fn poll(&mut self, task: &mut Task<'_>, turn: &mut Turn<'_>) -> Poll<()> {
        // A peer's error ends its own connection only.
        let polled = self.drive(task, turn).map(|_| ());
        if polled.is_pending() {
            let sending_bytes = self.output.sending().map_or(0, |sending| sending.held_bytes());
            let held_bytes = self.kept.capacity() + sending_bytes + self.socket.held_bytes();
            self.context.charge_held(self.slot, held_bytes, &mut self.held);
        }
        polled
    }

    /// Runs until the connection must wait; ready when it must be closed.
    fn drive(&mut self, task: &mut Task<'_>, turn: &mut Turn<'_>) -> Poll<io::Result<()>> {
        let context = &*Rc::clone(&self.context);
        context.scratch.borrow_mut().clear(context.input_bytes.get());
        let Turn { input, output, gathers } = turn;
        let now = context.clock.now();
        let turn = &mut H1Turn { context, task, input: input.take(), output, gathers: *gathers, now };
        let verdict = context.table.borrow_mut().take_verdict(self.slot);
        // A drain ends idle connections. A request may have arrived after the connection was found idle.
        let is_last_look =
            verdict == Some(WakeReason::Evicted) && context.is_ending(self.listener) && self.awaits_request();
        if let Some(verdict) = verdict.filter(|_| !is_last_look)
            && self.on_verdict(verdict, turn)?.is_ready()
        {
            self.socket.end();
            return Poll::Ready(Ok(()));
        }
        let mut reads = 0;
        loop {
            match (&self.output, self.following) {
                (H1Output::Send(_) | H1Output::SendInterim(..) | H1Output::SendUpgrade(..), _) => {
                    ready!(self.drive_sending(turn))?;
                }
                (H1Output::AwaitResponse(_), _) => ready!(self.drive_answering(turn))?,
                (H1Output::Tunnel(_), _) => return self.drive_tunneling(context, turn.task),
                (H1Output::AwaitRequest, H1Following::Requests) => {
                    if reads == READS_A_TURN_MAX {
                        // Other connections get their turn first, because a client may send faster than the server
                        // responds.
                        turn.task.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    reads += 1;
                    if self.drive_reading(turn)?.is_pending() {
                        if is_last_look && self.awaits_request() {
                            self.socket.end();
                            return Poll::Ready(Ok(()));
                        }
                        return Poll::Pending;
                    }
                }
                (H1Output::AwaitRequest, H1Following::Remains) => return self.drive_lingering(context, turn.task),
                (H1Output::AwaitRequest, H1Following::Nothing) => {
                    self.socket.end();
                    return Poll::Ready(Ok(()));
                }
                (H1Output::AwaitRequest, H1Following::Http2 | H1Following::Tarpit) => return Poll::Ready(Ok(())),
                (H1Output::AwaitRequest, H1Following::Dropped) => {
                    self.socket.abort_on_close();
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    /// Handles a time-out or eviction. Ready if that ends the connection.
    fn on_verdict(&mut self, verdict: WakeReason, turn: &mut H1Turn<'_, '_>) -> io::Result<Poll<()>> {
        let context = turn.context;
        let stage = context.table.borrow().stage(self.slot);
        count_verdict(verdict, stage, context);
        match (verdict, stage) {
            (WakeReason::Evicted, _) => self.on_evicted(turn),
            // A response is already being sent, so an error response is no longer possible.
            (WakeReason::TimedOut, ConnectionStage::Content) if self.output.sending().is_some() => {
                Err(io::ErrorKind::TimedOut.into())
            }
            (WakeReason::TimedOut, ConnectionStage::Head | ConnectionStage::Content) => {
                self.reject(REQUEST_TIMEOUT, &[], turn);
                self.flush(turn)?;
                Ok(Poll::Pending)
            }
            (WakeReason::TimedOut, ConnectionStage::Answer) => {
                if let Some(link) = self.link() {
                    link.set_late(turn.task);
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
    fn on_evicted(&mut self, turn: &mut H1Turn<'_, '_>) -> io::Result<Poll<()>> {
        if self.output.sending().is_some() {
            self.socket.abort_on_close();
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.output.answering().is_some() || self.receiving.is_some() {
            self.reject(NO_PLACE, &[], turn);
            self.flush(turn)?;
        }
        Ok(Poll::Ready(()))
    }

    /// Reads, and answers the requests. Ready when something else must be done first.
    fn drive_reading(&mut self, turn: &mut H1Turn<'_, '_>) -> Poll<io::Result<()>> {
        let context = turn.context;
        let ConnectionScratch { input: buffer, head, path, host, .. } = &mut *context.scratch.borrow_mut();
        let received_bytes;
        let input = match turn.input.take() {
            // The connection has kept nothing.
            Some(read) => {
                let input = read?;
                received_bytes = Some(input.len());
                input
            }
            None => {
                let mut filled = self.kept.len();
                // Usually nothing is kept, and then the call is not worth its cost.
                if filled > 0 {
                    buffer[..filled].copy_from_slice(&self.kept);
                }
                received_bytes = match self.has_unseen_input {
                    true => None,
                    false => match self.socket.poll_read(&mut buffer[filled..]) {
                        Poll::Ready(count) => Some(count?),
                        Poll::Pending => {
                            self.await_input(context, turn.task);
                            return Poll::Pending;
                        }
                    },
                };
                filled += received_bytes.unwrap_or(0);
                &buffer[..filled]
            }
        };
        turn.now = context.clock.now();
        match received_bytes {
            Some(0) => {
                self.following.close();
                return self.flush(turn).into();
            }
            Some(count) => context.count_received(count),
            None => {}
        }
        self.kept = Vec::new();
        self.has_unseen_input = false;
        if self.requests == 0 && context.generation().http_versions.http2 && begins_http2(input) {
            self.following = H1Following::Http2;
            self.kept = input.to_vec();
            return Poll::Ready(Ok(()));
        }
        self.on_input(input, &mut RoutingBuffers { head, path, host }, turn).into()
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

    /// Answers the complete requests in `input`, and sends their responses together.
    fn on_input(
        &mut self,
        input: &[u8],
        buffers: &mut RoutingBuffers<'_>,
        turn: &mut H1Turn<'_, '_>,
    ) -> io::Result<()> {
        let context = turn.context;
        let RoutingBuffers { head, path, host } = buffers;
        let filled = input.len();
        let mut at = 0;
        while at < filled && !self.following.is_closed() && self.output.is_idle() {
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
            if self.following == H1Following::Nothing {
                self.following.close_lingering();
            } else if self.following.is_closed() {
                // Other input is dropped with the connection.
            } else {
                self.has_unseen_input = !self.output.is_idle();
                self.kept = input[at..].to_vec();
            }
        }
        if turn.gathers && self.may_gather(turn.output) {
            return Ok(());
        }
        self.flush(turn)
    }

    /// Returns true if the output can wait for the rest of the group without loss.
    fn may_gather(&self, output: &Output) -> bool {
        let goes_on = self.following.is_closed() || !self.output.is_idle();
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

    /// Waits for the client to end after the last response, at most for the time limit.
    fn drive_lingering(&mut self, context: &Context, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        poll_lingering(&mut self.socket, self.slot, &mut context.scratch.borrow_mut().input, context, task)
    }
}

/// True if the input begins with the part of the HTTP/2 preface (RFC 9113, section 3.4) that no HTTP/1 request can
/// have.
fn begins_http2(input: &[u8]) -> bool {
    input.starts_with(&PREFACE[..HTTP2_LINE_BYTES])
}

/// Length in bytes of the preface's first line. As a request line it has a version that is not HTTP/1.
const HTTP2_LINE_BYTES: usize = 16;
