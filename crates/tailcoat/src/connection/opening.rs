//! A connection before its first request: the header of the PROXY protocol, if a proxy is to send one, and the handshake of
//! TLS.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};
use std::time::Duration;

use rustls::server::{Accepted, Acceptor};
use rustls::{AlertDescription, HandshakeKind};
use wire::http::Status;
use wire::proxy_protocol::{MalformedProxyHeader, ProxyHeader, parse_proxy_header};

use super::handshakes::{LinePlace, TooManyHandshakes};
use super::record::{ClientPeer, LoggedResponse, record};
use super::tls_socket::READ_BYTES_MAX;
use super::{ConnectionStage, Context, Newcomer, Socket, TlsSocket, Transport, WakeReason};
use crate::log::{LogClient, Subject};
use crate::memory_budget::Charge;
use crate::metrics::{HandlerKind, Limit};
use crate::tls::{ListenerTls, ServerConnection, TlsInfo, alerts};

/// Bytes of a client's first message, with the heads of its records. They are kept until the message is whole. rustls takes
/// no more; those of clients have some two thousand.
const HELLO_BYTES_MAX: usize = 0xffff;

/// Bytes of a first message up to which it is not counted as memory of the client: it is there for a moment.
const UNCOUNTED_HELLO_BYTES: usize = 4 << 10;

/// The connection.
pub struct OpeningConnection {
    context: Rc<Context>,
    /// Its place in the table of connections, until that is handed on.
    slot: Option<u32>,
    listener: u16,
    client: LogClient,
    destination: Option<Box<SocketAddr>>,
    tls: Option<Arc<ListenerTls>>,
    awaited: Awaited,
    /// What has come and is not done with; of the client's first message all, for the session reads it once more.
    kept: Vec<u8>,
    /// Bytes of it that were looked at for the client's first message.
    hello_bytes: usize,
    /// The memory that a long first message takes.
    charge: Option<Charge>,
    has_deadline: bool,
}

/// What is awaited of the client.
enum Awaited {
    ProxyHeader(Socket),
    /// Its first message, which says which site it wants.
    Hello(Socket, Box<Acceptor>),
    /// Its turn, when there are many handshakes. Nothing is awaited of the client, but that it stays.
    Turn(Socket, Box<Accepted>, Option<LinePlace>),
    /// The end of the handshake. The id of the site, and the name that was asked for.
    Handshake(Box<TlsSocket>, u32, Option<Box<str>>),
    /// The end of a handshake that shows an authority something.
    Validation(Box<TlsSocket>),
    /// The client to end, after it was told what is wrong.
    End(Socket),
    /// Nothing more.
    Nothing,
}

/// A connection whose first request can come.
pub struct OpenedConnection {
    /// What carries its bytes.
    pub transport: Transport,
    /// Who the client is, as far as the connection says.
    pub client: LogClient,
    /// Where the client has connected to, if a proxy has told it.
    pub destination: Option<Box<SocketAddr>>,
    /// How it speaks TLS, if it does.
    pub tls: Option<Rc<TlsInfo>>,
    /// The beginning of the first request, if it has come already.
    pub input: Vec<u8>,
    /// Its place in the table of connections.
    pub slot: u32,
    /// Whether it speaks HTTP/2, as far as is known.
    pub is_http2: bool,
}

const PLAIN_HTTP_HEAD: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 64\r\n\
    Connection: close\r\n\r\n";

const PLAIN_HTTP_REASON: &[u8] = b"This port speaks TLS: ask for https:// instead, not for http://\n";

impl OpenedConnection {
    /// A connection over a socket that was just accepted, with nothing before the first request.
    pub fn at_once(socket: Socket, client: LogClient, newcomer: Newcomer, context: &Context) -> Self {
        let slot = context.table.borrow_mut().insert(newcomer);
        Self {
            transport: Transport::Plain(socket),
            client,
            destination: None,
            tls: None,
            input: Vec::new(),
            slot,
            is_http2: false,
        }
    }
}

impl OpeningConnection {
    /// A connection that was just accepted from a listener, and its place in the table of connections.
    pub fn new(
        socket: Socket,
        client: LogClient,
        listener: u16,
        newcomer: Newcomer,
        is_proxied: bool,
        tls: Option<Arc<ListenerTls>>,
        context: Rc<Context>,
    ) -> (Self, u32) {
        let slot = context.table.borrow_mut().insert(newcomer);
        let awaited = match is_proxied {
            true => Awaited::ProxyHeader(socket),
            false => Awaited::Hello(socket, Box::default()),
        };
        let (destination, kept) = (None, Vec::new());
        (
            Self {
                context,
                slot: Some(slot),
                listener,
                client,
                destination,
                tls,
                awaited,
                kept,
                hello_bytes: 0,
                charge: None,
                has_deadline: false,
            },
            slot,
        )
    }

    /// The listener it was accepted from.
    pub fn listener(&self) -> u16 {
        self.listener
    }

    /// The client, as far as the connection says who it is.
    pub fn client(&self) -> LogClient {
        self.client
    }

    /// What it shares with all connections of the worker.
    pub fn context(&self) -> &Rc<Context> {
        &self.context
    }

    /// Its socket, which is to be waited for when `poll` returned `Pending`.
    pub fn socket(&mut self) -> Option<&mut Socket> {
        match &mut self.awaited {
            Awaited::ProxyHeader(socket)
            | Awaited::Hello(socket, _)
            | Awaited::Turn(socket, ..)
            | Awaited::End(socket) => Some(socket),
            Awaited::Handshake(tls, ..) | Awaited::Validation(tls) => Some(tls.socket_mut()),
            Awaited::Nothing => None,
        }
    }

    /// Goes on until something has to be waited for.
    ///
    /// # Errors
    /// The connection is to be closed. Nobody is there who could make sense of a response.
    pub fn poll(&mut self, task: &mut Task<'_>) -> Poll<io::Result<OpenedConnection>> {
        let context = Rc::clone(&self.context);
        if let Some(slot) = self.slot {
            let table = &mut *context.table.borrow_mut();
            // Out of time, or its place is needed: as for one that has sent nothing yet.
            if let Some(verdict) = table.take_verdict(slot) {
                let is_handshaking = self.tls.is_some() && !matches!(self.awaited, Awaited::End(_));
                if verdict == WakeReason::TimedOut && is_handshaking {
                    context.count_limit(Limit::TlsHandshakeTimeout);
                }
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if !std::mem::replace(&mut self.has_deadline, true) {
                let deadline_ms = context.clock.now().monotonic_ms + self.time_limit().as_millis() as u64;
                table.enter(slot, ConnectionStage::Opening, Some(deadline_ms), task.waker());
            }
        }
        let scratch = &mut *context.scratch.borrow_mut();
        scratch.clear(context.input_bytes.get());
        let buffer = &mut scratch.input;
        loop {
            self.awaited = match std::mem::replace(&mut self.awaited, Awaited::Nothing) {
                Awaited::ProxyHeader(socket) => ready!(self.poll_proxy_header(socket, buffer))?,
                Awaited::Hello(socket, acceptor) => match self.tls {
                    Some(_) => ready!(self.poll_hello(socket, acceptor, buffer, task))?,
                    None => return Poll::Ready(self.opened(Transport::Plain(socket), None)),
                },
                Awaited::Turn(socket, accepted, place) => ready!(self.poll_turn(socket, accepted, place, task))?,
                Awaited::Handshake(mut tls, site, name) => match tls.poll_handshake() {
                    Poll::Ready(Ok(())) => {
                        let Some(session) = tls.session() else {
                            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
                        };
                        self.count_handshake(Some(session));
                        let info = Rc::new(TlsInfo::new(session, name, site));
                        return Poll::Ready(self.opened(Transport::Tls(tls), Some(info)));
                    }
                    Poll::Ready(Err(error)) => {
                        self.count_handshake(None);
                        self.end_session(*tls, error, task)?
                    }
                    Poll::Pending => {
                        self.awaited = Awaited::Handshake(tls, site, name);
                        return Poll::Pending;
                    }
                },
                Awaited::Validation(mut tls) => {
                    if let Poll::Ready(result) = tls.poll_handshake() {
                        // It has seen what it wanted to see (RFC 8737, section 3).
                        return Poll::Ready(Err(result.err().unwrap_or(io::ErrorKind::ConnectionAborted.into())));
                    }
                    self.awaited = Awaited::Validation(tls);
                    return Poll::Pending;
                }
                Awaited::End(mut socket) => {
                    match socket.poll_read(buffer) {
                        Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                        // The client still sends: others have their turn before it is read again.
                        Poll::Ready(Ok(_)) => task.waker().wake_by_ref(),
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => {}
                    }
                    self.awaited = Awaited::End(socket);
                    return Poll::Pending;
                }
                Awaited::Nothing => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            };
        }
    }

    /// Ends the sending side and waits for the client to end, but no longer than `linger-timeout`: bytes that were not read
    /// would reset the connection, and the client could lose the alert (RFC 9112, section 9.6).
    fn end(&mut self, socket: Socket, task: &Task<'_>) -> io::Result<Awaited> {
        (self.kept, self.charge) = Default::default();
        socket.shutdown_write()?;
        // Local invariant: it has its place until it is handed on.
        let slot = self.slot.ok_or(io::ErrorKind::NotConnected)?;
        let context = &self.context;
        let linger_ms = context.generation().limits.linger_timeout.as_millis() as u64;
        let deadline_ms = context.clock.now().monotonic_ms + linger_ms;
        context.table.borrow_mut().enter(slot, ConnectionStage::Linger, Some(deadline_ms), task.waker());
        Ok(Awaited::End(socket))
    }

    /// Sends the alert and ends.
    fn end_with_alert(&mut self, mut socket: Socket, alert: &[u8], task: &Task<'_>) -> io::Result<Awaited> {
        self.count_handshake(None);
        // A socket on which nothing was sent yet takes all of it, unless the client has gone.
        let _ = socket.poll_write(alert);
        self.end(socket, task)
    }

    /// Ends after a handshake has failed, of which the client was told if it is still there.
    fn end_session(&mut self, tls: TlsSocket, error: io::Error, task: &Task<'_>) -> io::Result<Awaited> {
        match error.kind() {
            io::ErrorKind::InvalidData => self.end(tls.into_socket(), task),
            _ => Err(error),
        }
    }

    /// Counts a handshake that is over; without a session, it has failed.
    fn count_handshake(&self, session: Option<&ServerConnection>) {
        let Some(metrics) = self.context.metrics() else { return };
        match session.map(|session| session.handshake_kind()) {
            None => metrics.handshakes_failed.add(1),
            Some(Some(HandshakeKind::Resumed)) => metrics.handshakes_resumed.add(1),
            Some(_) => metrics.handshakes_full.add(1),
        }
    }

    fn time_limit(&self) -> Duration {
        let limits = &self.context.generation().limits;
        match self.tls {
            Some(_) => limits.tls_handshake_timeout,
            None => limits.head_timeout,
        }
    }

    fn opened(&mut self, transport: Transport, tls: Option<Rc<TlsInfo>>) -> io::Result<OpenedConnection> {
        Ok(OpenedConnection {
            transport,
            client: self.client,
            destination: self.destination.take(),
            is_http2: tls.as_ref().is_some_and(|tls| tls.is_http2),
            tls,
            input: std::mem::take(&mut self.kept),
            // Local invariant: it is handed on once, for nothing is awaited any more.
            slot: self.slot.take().ok_or(io::ErrorKind::NotConnected)?,
        })
    }

    fn poll_proxy_header(&mut self, mut socket: Socket, buffer: &mut [u8]) -> Poll<io::Result<Awaited>> {
        loop {
            let count = match socket.poll_read(buffer) {
                Poll::Ready(count) => count?,
                Poll::Pending => {
                    self.awaited = Awaited::ProxyHeader(socket);
                    return Poll::Pending;
                }
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.kept.extend_from_slice(&buffer[..count]);
            match parse_proxy_header(&self.kept) {
                Ok(None) => {}
                Ok(Some((header, length))) => {
                    // Otherwise it is the proxy's own connection, or of a client that has no address.
                    if let ProxyHeader::Proxied(endpoints) = header {
                        self.client = LogClient::Ip(endpoints.source);
                        if let Some(slot) = self.slot {
                            let origin = self.context.origin(self.client);
                            self.context.table.borrow_mut().set_origin(slot, origin);
                        }
                        self.destination = Some(Box::new(endpoints.destination));
                    }
                    self.kept.drain(..length);
                    return Poll::Ready(Ok(Awaited::Hello(socket, Box::default())));
                }
                // A proxy that does not say who the client is must not be answered as if it had, nor with an error: that
                // would go to a client whose request was never read.
                Err(MalformedProxyHeader(reason)) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, reason)));
                }
            }
        }
    }

    fn poll_hello(
        &mut self,
        mut socket: Socket,
        mut acceptor: Box<Acceptor>,
        buffer: &mut [u8],
        task: &Task<'_>,
    ) -> Poll<io::Result<Awaited>> {
        loop {
            if self.hello_bytes == 0 && self.kept.first().is_some_and(u8::is_ascii_uppercase) {
                self.refuse_plain_http(&mut socket);
                return Poll::Ready(self.end(socket, task));
            }
            while self.hello_bytes < self.kept.len() {
                if self.hello_bytes >= HELLO_BYTES_MAX {
                    let alert = alerts::plain(AlertDescription::DecodeError);
                    return Poll::Ready(self.end_with_alert(socket, &alert, task));
                }
                self.hello_bytes += acceptor.read_tls(&mut &self.kept[self.hello_bytes..])?;
                match acceptor.accept() {
                    Ok(Some(accepted)) => {
                        return match self.context.handshakes.join(self.client) {
                            Ok(place) => Poll::Ready(Ok(Awaited::Turn(socket, Box::new(accepted), place))),
                            Err(TooManyHandshakes) => {
                                self.context.count_limit(Limit::TlsHandshakesPerSecondMax);
                                Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()))
                            }
                        };
                    }
                    Ok(None) => {}
                    Err((error, alert)) => {
                        let alert = alerts::of_first_message(&error, alert);
                        return Poll::Ready(self.end_with_alert(socket, &alert, task));
                    }
                }
            }
            match socket.poll_read(&mut buffer[..READ_BYTES_MAX]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(count) => {
                    self.kept.extend_from_slice(&buffer[..count?]);
                    self.charge_hello();
                }
                Poll::Pending => {
                    self.awaited = Awaited::Hello(socket, acceptor);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Counts what a long first message takes: it is kept here, and rustls keeps it too and reads it into a message.
    fn charge_hello(&mut self) {
        if self.kept.len() <= UNCOUNTED_HELLO_BYTES {
            return;
        }
        let Some(slot) = self.slot else { return };
        let bytes = 3 * self.kept.capacity();
        match &mut self.charge {
            Some(charge) => charge.set(bytes),
            None => self.charge = Some(self.context.memory.holder(slot).charge(bytes)),
        }
    }

    /// Tells a client that speaks HTTP without TLS why it gets no answer: no record of TLS begins with a letter (RFC 8446,
    /// section 5.1), and each method that has been registered does.
    fn refuse_plain_http(&self, socket: &mut Socket) {
        // A socket on which nothing was sent yet takes all of it; one that has gone, nothing.
        let _ = socket.poll_write(&[PLAIN_HTTP_HEAD, PLAIN_HTTP_REASON].concat());
        let context = &self.context;
        let account = context.generation().router.default_account(self.listener);
        let peer = ClientPeer { client: self.client, tls: None };
        let sent = (Status::BAD_REQUEST, PLAIN_HTTP_REASON.len() as u64);
        let told = LoggedResponse { link: None, handler: HandlerKind::None, is_hit: false, sent, is_complete: true };
        let now = context.clock.now();
        record(context, peer, &account, Subject::Malformed(&self.kept), &[], told, now..now);
    }

    /// Begins the handshake when it is its turn: handshakes take long, and others are not to wait for many of them.
    fn poll_turn(
        &mut self,
        socket: Socket,
        accepted: Box<Accepted>,
        mut place: Option<LinePlace>,
        task: &mut Task<'_>,
    ) -> Poll<io::Result<Awaited>> {
        if socket.is_ended() {
            // It can't send the rest of a handshake any more.
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        let now_ms = self.context.clock.now().monotonic_ms;
        if place.as_mut().is_some_and(|place| place.poll_turn(now_ms, task).is_pending()) {
            self.awaited = Awaited::Turn(socket, accepted, place);
            return Poll::Pending;
        }
        drop(place);
        if !self.context.handshakes.take_turn() {
            task.waker().wake_by_ref();
            self.awaited = Awaited::Turn(socket, accepted, None);
            return Poll::Pending;
        }
        // Local invariant: only connections with TLS come here.
        let Some(tls) = &self.tls else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        let name = accepted.client_hello().server_name().map(str::to_ascii_lowercase);
        let site = tls.find(name.as_deref());
        let validation = tls.validation(&accepted.client_hello());
        drop(accepted);
        let is_validation = validation.is_some();
        self.charge = None;
        let session = ServerConnection::new(validation.unwrap_or_else(|| site.settings())).map_err(io::Error::other)?;
        let mut tls = Box::new(TlsSocket::new(socket, session, self.context.generation().kernel_tls));
        if let Err(error) = tls.feed(&std::mem::take(&mut self.kept)) {
            self.count_handshake(None);
            return Poll::Ready(self.end_session(*tls, error, task));
        }
        Poll::Ready(Ok(match is_validation {
            true => Awaited::Validation(tls),
            false => Awaited::Handshake(tls, site.id, name.map(Into::into)),
        }))
    }
}

impl Drop for OpeningConnection {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.context.leave(slot);
        }
    }
}
