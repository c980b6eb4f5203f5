//! Connection before its first request: the PROXY protocol header, if a proxy must send one, and the TLS handshake.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};
use std::time::Duration;

use bots::fingerprint::ja4_of_records;
use rustls::server::{Accepted, Acceptor};
use rustls::{AlertDescription, HandshakeKind};
use wire::http::Status;
use wire::proxy_protocol::{MalformedProxyHeader, ProxyHeader, parse_proxy_header};

use super::ftp::FtpOpening;
use super::handshakes::{LinePlace, TooManyHandshakes};
use super::record::{ClientPeer, LoggedResponse, record};
use super::tls_socket::READ_BYTES_MAX;
use super::{ConnectionStage, Context, Newcomer, Socket, TlsSocket, Transport, WakeReason};
use crate::log::{LogClient, Subject};
use crate::memory_budget::Charge;
use crate::metrics::{HandlerKind, Limit};
use crate::tls::{ListenerTls, ServerConnection, SiteMark, TlsInfo, alerts};

/// Maximum length of a ClientHello, in bytes, with the headers of its records. It is kept until it is complete. rustls
/// accepts no longer one; real clients send about two thousand bytes.
const HELLO_BYTES_MAX: usize = 0xffff;

/// Length in bytes up to which a ClientHello is not charged to the client's memory, because it is kept only briefly.
const UNCOUNTED_HELLO_BYTES: usize = 4 << 10;

/// Connection before its first request.
pub(crate) struct OpeningConnection {
    context: Rc<Context>,
    /// Slot in the table of connections, until the opened connection takes it.
    slot: Option<u32>,
    listener: u16,
    client: LogClient,
    destination: Option<Box<SocketAddr>>,
    tls: Option<Arc<ListenerTls>>,
    awaited: Awaited,
    /// Unprocessed input. A ClientHello is kept as a whole, because the session reads it again.
    kept: Vec<u8>,
    /// Bytes of it that were already searched for the ClientHello.
    hello_bytes: usize,
    /// Memory charge of a long ClientHello.
    charge: Option<Charge>,
    /// JA4 fingerprint of the ClientHello, if it is wanted.
    ja4: Option<Box<str>>,
    has_deadline: bool,
    /// Control connection of FTP; `None` for HTTP.
    ftp: Option<Box<FtpOpening>>,
}

/// Next step of the opening.
enum Awaited {
    ProxyHeader(Socket),
    /// ClientHello, which names the site.
    Hello(Socket, Box<Acceptor>),
    /// The connection's turn among many handshakes. The client must only stay connected.
    Turn(Socket, Box<Accepted>, Option<LinePlace>),
    /// End of the handshake, with the site and the requested server name.
    Handshake(Box<TlsSocket>, SiteMark, Option<Box<str>>),
    /// End of a handshake for ACME validation by TLS.
    Validation(Box<TlsSocket>),
    /// Proxy of connections that takes this one, with its server name.
    Proxy(Socket, String),
    /// End of the connection by the client, after an error was sent.
    End(Socket),
    Nothing,
}

/// End of an opening.
pub(crate) enum OpeningEnd {
    /// The connection is ready for its first request.
    Opened(OpenedConnection),
    /// The connection is not for HTTP.
    Detached(DetachedSocket),
}

/// Socket of a connection that is not for HTTP, after its ClientHello.
pub(crate) struct DetachedSocket {
    /// The socket.
    pub socket: Socket,
    /// Server name of the ClientHello, in lower case; empty without one.
    pub server_name: String,
    /// Received bytes: at least the ClientHello.
    pub received: Vec<u8>,
}

/// Connection that is ready for its first request.
pub(crate) struct OpenedConnection {
    /// Transport of its bytes.
    pub transport: Transport,
    /// Address of the client.
    pub client: LogClient,
    /// Local address that the client connected to, if a proxy reported it.
    pub destination: Option<Box<SocketAddr>>,
    /// TLS state; `None` without TLS.
    pub tls: Option<Rc<TlsInfo>>,
    /// Beginning of the first request, if it was received already.
    pub input: Vec<u8>,
    /// Slot in the table of connections.
    pub slot: u32,
    /// True if the client has negotiated HTTP/2. Without TLS, that is not known yet.
    pub is_http2: bool,
    /// Control connection of FTP with TLS.
    pub ftp: Option<Box<FtpOpening>>,
}

const PLAIN_HTTP_HEAD: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 64\r\n\
    Connection: close\r\n\r\n";

const PLAIN_HTTP_REASON: &[u8] = b"This port speaks TLS: ask for https:// instead, not for http://\n";

impl OpenedConnection {
    /// Makes a connection from a socket that was just accepted, with nothing before the first request.
    pub(crate) fn at_once(socket: Socket, client: LogClient, newcomer: Newcomer, context: &Context) -> Self {
        let slot = context.table.borrow_mut().insert(newcomer);
        Self {
            transport: Transport::Plain(socket),
            client,
            destination: None,
            tls: None,
            input: Vec::new(),
            slot,
            is_http2: false,
            ftp: None,
        }
    }
}

impl OpeningConnection {
    /// Makes a connection that was just accepted from a listener. Returns it with its slot in the table of connections.
    pub(crate) fn new(
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
        let is_ftp = context.generation().router.ftp_site(listener, None).is_some();
        let ftp = is_ftp.then(Box::default);
        (Self::in_slot(slot, awaited, client, listener, tls, ftp, context), slot)
    }

    /// Makes the connection of a control connection of FTP, after the reply to AUTH.
    pub(crate) fn of_ftp(
        socket: Socket,
        client: LogClient,
        listener: u16,
        slot: u32,
        tls: Option<Arc<ListenerTls>>,
        ftp: FtpOpening,
        context: Rc<Context>,
    ) -> Self {
        let awaited = Awaited::Hello(socket, Box::default());
        Self::in_slot(slot, awaited, client, listener, tls, Some(Box::new(ftp)), context)
    }

    fn in_slot(
        slot: u32,
        awaited: Awaited,
        client: LogClient,
        listener: u16,
        tls: Option<Arc<ListenerTls>>,
        ftp: Option<Box<FtpOpening>>,
        context: Rc<Context>,
    ) -> Self {
        Self {
            context,
            slot: Some(slot),
            listener,
            client,
            destination: None,
            tls,
            awaited,
            kept: Vec::new(),
            hello_bytes: 0,
            charge: None,
            ja4: None,
            has_deadline: false,
            ftp,
        }
    }

    /// Listener that accepted the connection.
    pub(crate) fn listener(&self) -> u16 {
        self.listener
    }

    /// Address of the client.
    pub(crate) fn client(&self) -> LogClient {
        self.client
    }

    /// State that all connections of the worker share.
    pub(crate) fn context(&self) -> &Rc<Context> {
        &self.context
    }

    /// Socket to wait for after `poll` returned `Pending`.
    pub(crate) fn socket(&mut self) -> Option<&mut Socket> {
        match &mut self.awaited {
            Awaited::ProxyHeader(socket)
            | Awaited::Hello(socket, _)
            | Awaited::Turn(socket, ..)
            | Awaited::Proxy(socket, _)
            | Awaited::End(socket) => Some(socket),
            Awaited::Handshake(tls, ..) | Awaited::Validation(tls) => Some(tls.socket_mut()),
            Awaited::Nothing => None,
        }
    }

    /// Runs until the connection must wait.
    ///
    /// # Errors
    /// The connection must be closed, because the client cannot interpret a response.
    pub(crate) fn poll(&mut self, task: &mut Task<'_>) -> Poll<io::Result<OpeningEnd>> {
        let context = Rc::clone(&self.context);
        if let Some(slot) = self.slot {
            let table = &mut *context.table.borrow_mut();
            // The connection timed out or is evicted, and is closed like one that has sent nothing.
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
                        let ja4 = self.ja4.take();
                        let info = Rc::new(TlsInfo { ja4, ..TlsInfo::new(session, name, site) });
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
                        // The CA has seen the certificate that it asked for (RFC 8737, section 3).
                        return Poll::Ready(Err(result.err().unwrap_or(io::ErrorKind::ConnectionAborted.into())));
                    }
                    self.awaited = Awaited::Validation(tls);
                    return Poll::Pending;
                }
                Awaited::Proxy(socket, server_name) => {
                    let received = std::mem::take(&mut self.kept);
                    return Poll::Ready(Ok(OpeningEnd::Detached(DetachedSocket { socket, server_name, received })));
                }
                Awaited::End(mut socket) => {
                    match socket.poll_read(buffer) {
                        Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                        // The client still sends; other connections get their turn before the next read.
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

    /// Closes the sending side and waits for the client to end, at most for `linger-timeout`. Closing with unread bytes
    /// would reset the connection, and the client could lose the alert (RFC 9112, section 9.6).
    fn end(&mut self, socket: Socket, task: &Task<'_>) -> io::Result<Awaited> {
        (self.kept, self.charge) = Default::default();
        socket.shutdown_write()?;
        // Local invariant: the slot is set until the opened connection takes it.
        let slot = self.slot.ok_or(io::ErrorKind::NotConnected)?;
        let context = &self.context;
        let linger_ms = context.generation().limits.linger_timeout.as_millis() as u64;
        let deadline_ms = context.clock.now().monotonic_ms + linger_ms;
        context.table.borrow_mut().enter(slot, ConnectionStage::Linger, Some(deadline_ms), task.waker());
        Ok(Awaited::End(socket))
    }

    /// Sends the alert and closes.
    fn end_with_alert(&mut self, mut socket: Socket, alert: &[u8], task: &Task<'_>) -> io::Result<Awaited> {
        self.count_handshake(None);
        // A socket on which nothing was sent yet accepts all of it, unless the client has gone.
        let _ = socket.poll_write(alert);
        self.end(socket, task)
    }

    /// Closes after a failed handshake. An alert was sent if the client is still connected.
    fn end_session(&mut self, tls: TlsSocket, error: io::Error, task: &Task<'_>) -> io::Result<Awaited> {
        match error.kind() {
            io::ErrorKind::InvalidData => self.end(tls.into_socket(), task),
            _ => Err(error),
        }
    }

    fn count_handshake(&self, session: Option<&ServerConnection>) {
        count_handshake(&self.context, session);
    }

    fn time_limit(&self) -> Duration {
        let limits = &self.context.generation().limits;
        match self.tls {
            Some(_) => limits.tls_handshake_timeout,
            None => limits.head_timeout,
        }
    }

    fn opened(&mut self, transport: Transport, tls: Option<Rc<TlsInfo>>) -> io::Result<OpeningEnd> {
        Ok(OpeningEnd::Opened(OpenedConnection {
            transport,
            client: self.client,
            destination: self.destination.take(),
            is_http2: tls.as_ref().is_some_and(|tls| tls.is_http2),
            tls,
            input: std::mem::take(&mut self.kept),
            ftp: self.ftp.take(),
            // Local invariant: the slot is taken once, because no further step follows.
            slot: self.slot.take().ok_or(io::ErrorKind::NotConnected)?,
        }))
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
                    // Without addresses, the connection is the proxy's own, or its client has no address.
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
                // A proxy that does not name the client gets no response. The response could reach a client whose
                // request was never read.
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
            if self.ftp.is_none() && self.hello_bytes == 0 && self.kept.first().is_some_and(u8::is_ascii_uppercase) {
                self.reject_plain_http(&mut socket);
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
                        let router = &self.context.generation().router;
                        // First, because the handshake of a forwarded connection is not this worker's.
                        if self.ftp.is_none()
                            && let Some(name) = router.stream_name(self.listener, accepted.client_hello().server_name())
                        {
                            return Poll::Ready(Ok(Awaited::Proxy(socket, name)));
                        }
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

    /// Charges a long ClientHello. It is kept here, and rustls keeps it, too, and decodes it into a message.
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

    /// Sends an error response to a client that speaks HTTP without TLS. Each registered method begins with a letter,
    /// but no TLS record does (RFC 8446, section 5.1).
    fn reject_plain_http(&self, socket: &mut Socket) {
        // A socket on which nothing was sent yet accepts all of it. If the client has gone, the error does not matter.
        let _ = socket.poll_write(&[PLAIN_HTTP_HEAD, PLAIN_HTTP_REASON].concat());
        let context = &self.context;
        let account = context.generation().router.default_account(self.listener);
        let peer = ClientPeer { client: self.client, tls: None };
        let sent = (Status::BAD_REQUEST, PLAIN_HTTP_REASON.len() as u64);
        let logged = LoggedResponse { link: None, handler: HandlerKind::None, hit: "", sent, is_complete: true };
        let now = context.clock.now();
        record(context, peer, &account, Subject::Malformed(&self.kept), &[], logged, now..now);
    }

    /// Begins the handshake when its turn comes. Handshakes take long, so other connections must not wait for many of
    /// them.
    fn poll_turn(
        &mut self,
        socket: Socket,
        accepted: Box<Accepted>,
        mut place: Option<LinePlace>,
        task: &mut Task<'_>,
    ) -> Poll<io::Result<Awaited>> {
        if socket.is_ended() {
            // The client can no longer send the rest of a handshake.
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
        // Local invariant: only connections with TLS reach this point.
        let Some(tls) = &self.tls else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        let name = accepted.client_hello().server_name().map(str::to_ascii_lowercase);
        let local = || self.destination.as_deref().copied().or_else(|| socket.local_address()).map(|local| local.ip());
        let site = tls.find(name.as_deref(), local);
        let validation = tls.validation(&accepted.client_hello());
        drop(accepted);
        let is_validation = validation.is_some();
        self.charge = None;
        let settings = match (validation, &mut self.ftp) {
            (Some(validation), _) => validation,
            (None, None) => site.settings(),
            (None, Some(ftp)) => Arc::clone(ftp.settings.insert(site.ftp_settings())),
        };
        if self.context.generation().wants_fingerprints {
            self.ja4 = ja4_of_records(&self.kept).map(Into::into);
        }
        let session = ServerConnection::new(settings).map_err(io::Error::other)?;
        let mut tls = Box::new(TlsSocket::new(socket, session, self.context.generation().kernel_tls));
        if let Err(error) = tls.feed(&std::mem::take(&mut self.kept)) {
            self.count_handshake(None);
            return Poll::Ready(self.end_session(*tls, error, task));
        }
        Poll::Ready(Ok(match is_validation {
            true => Awaited::Validation(tls),
            false => Awaited::Handshake(tls, site.mark(), name.map(Into::into)),
        }))
    }
}

/// Counts a completed handshake; `None` means that it failed.
pub(super) fn count_handshake(context: &Context, session: Option<&ServerConnection>) {
    let Some(metrics) = context.metrics() else { return };
    match session.map(|session| session.handshake_kind()) {
        None => metrics.handshakes_failed.add(1),
        Some(Some(HandshakeKind::Resumed)) => metrics.handshakes_resumed.add(1),
        Some(_) => metrics.handshakes_full.add(1),
    }
}

impl Drop for OpeningConnection {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.context.leave(slot);
        }
    }
}
