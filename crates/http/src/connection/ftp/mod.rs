//! FTP connections: the control connection, with at most one data connection.
//!
//! A session is one connection of the worker, like a connection of HTTP. Its data connection is a second socket in the
//! same place, so that both are polled together.

mod account;
mod data;
mod login;
mod look;
mod pausing;
mod receive;
mod secure;
mod transfer;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use wire::ftp::{
    FtpAbilities, FtpAction, FtpFamily, FtpReply, FtpSession, FtpStep, PassiveMode, TransferType, push_epsv_reply,
    push_pasv_reply,
};

use self::data::DataChannel;
use self::login::LoggingIn;
use self::look::Looking;
use self::receive::Changing;
pub(crate) use self::secure::FtpOpening;
use self::transfer::Transferring;
use super::{ConnectionStage, Context, OpenedConnection, Socket, Transport, WakeReason};
use crate::handler::FtpFiles;
use crate::log::LogClient;
use crate::memory_budget::Charge;
use crate::metrics::Limit;
use crate::tls::{ListenerTls, TlsInfo, TlsSettings};

/// Maximum number of commands of a connection before others get their turn.
const STEPS_A_TURN_MAX: u32 = 32;

/// First port that active mode may use. Services have lower ones.
const ACTIVE_PORT_MIN: u16 = 1_024;

/// FTP connection of a client.
pub(crate) struct FtpConnection {
    socket: Transport,
    context: Rc<Context>,
    client: LogClient,
    /// Slot in the table of connections.
    slot: u32,
    listener: u16,
    session: FtpSession,
    /// TLS of the control connection.
    tls: Option<Rc<TlsInfo>>,
    /// Settings for data connections with TLS.
    settings: Option<Arc<TlsSettings>>,
    /// True if the connection began with TLS.
    is_implicit: bool,
    /// TLS that begins when the reply to AUTH is sent.
    next_tls: Option<Arc<ListenerTls>>,
    /// User that has logged in; empty before.
    user: Box<[u8]>,
    /// True if the user has logged in without a password.
    is_anonymous: bool,
    /// Change of the tree whose result a reply must tell.
    changing: Option<Box<Changing>>,
    /// Login whose password is verified.
    logging_in: Option<Box<LoggingIn>>,
    /// Host that the client has selected with HOST.
    host: Option<Box<[u8]>>,
    has_greeted: bool,
    /// True if no further command is read.
    is_closing: bool,
    /// True if the sending side is closed.
    is_lingering: bool,
    /// Commands that were not handled yet.
    input: Vec<u8>,
    /// Replies that the socket has not accepted yet.
    output: Vec<u8>,
    /// Path whose state a reply must tell.
    looking: Option<Box<Looking>>,
    data: DataChannel,
    transfer: Option<Box<Transferring>>,
    /// Time of the last command or end of a transfer, in milliseconds.
    active_ms: u64,
    /// Address of the server, once a data connection has needed it.
    local: Option<IpAddr>,
    /// Time until which the maximum rate makes transfers wait, in microseconds.
    paid_until_us: u64,
    /// Memory charge for buffers of the connection.
    held: Option<Charge>,
}

/// Result of a step.
enum Progress {
    /// Another step may be possible.
    Made,
    /// The socket or a waker must be waited for.
    Waits,
}

impl FtpConnection {
    /// Makes the connection from an accepted socket, or after the handshake of TLS.
    pub(crate) fn new(opened: OpenedConnection, listener: u16, context: Rc<Context>) -> Self {
        let OpenedConnection { transport, client, slot, tls, ftp, .. } = opened;
        let has_tls = ftp.is_some();
        let FtpOpening { settings, before } = ftp.map(|ftp| *ftp).unwrap_or_default();
        let (has_greeted, is_implicit) = (before.is_some(), has_tls && before.is_none());
        let (mut session, host) = before.map(|before| (before.session, before.host)).unwrap_or_default();
        if has_tls {
            session.on_tls();
        }
        let active_ms = context.clock.now().monotonic_ms;
        Self {
            socket: transport,
            context,
            client,
            slot,
            listener,
            session,
            tls,
            settings,
            is_implicit,
            next_tls: None,
            user: Box::default(),
            is_anonymous: false,
            changing: None,
            logging_in: None,
            host,
            has_greeted,
            is_closing: false,
            is_lingering: false,
            input: Vec::new(),
            output: Vec::new(),
            looking: None,
            data: DataChannel::None,
            transfer: None,
            active_ms,
            local: None,
            paid_until_us: 0,
            held: None,
        }
    }

    /// Client of the connection.
    pub(crate) fn client(&self) -> LogClient {
        self.client
    }

    /// Socket of the control connection.
    pub(crate) fn socket(&mut self) -> &mut Socket {
        self.socket.socket_mut()
    }

    /// Socket of the data connection, or the one that listens for it, while a transfer needs it.
    pub(crate) fn data_socket(&mut self) -> Option<&mut Socket> {
        let transfer = self.transfer.as_mut()?;
        if transfer.awaits_connection() { self.data.socket_mut() } else { transfer.socket_mut() }
    }

    /// Closes the connection in any state. Must be called once.
    pub(crate) fn close(&mut self) {
        self.abort_transfer(426);
        self.context.leave(self.slot);
    }

    /// Polls until a socket or a waker must be waited for. Ready when the connection must be closed, or begins TLS.
    pub(crate) fn poll(&mut self, task: &mut Task<'_>) -> Poll<()> {
        // A peer's error ends its own connection only.
        let polled = self.drive(task).map(|result| {
            if result.is_err() {
                self.next_tls = None;
            }
        });
        if polled.is_pending() {
            self.context.charge_held(self.slot, self.held_bytes(), &mut self.held);
        }
        polled
    }

    /// Bytes of memory that the connection holds for its client.
    fn held_bytes(&self) -> usize {
        let names_bytes = self.user.len() + self.host.as_ref().map_or(0, |host| host.len());
        // At most one of these.
        let waiting_bytes = self.transfer.as_ref().map_or(0, |transfer| transfer.held_bytes())
            + self.looking.as_ref().map_or(0, |looking| looking.held_bytes())
            + self.logging_in.as_ref().map_or(0, |logging_in| logging_in.held_bytes())
            + self.changing.as_ref().map_or(0, |changing| changing.held_bytes);
        let buffers_bytes = self.input.capacity() + self.output.capacity() + self.socket.held_bytes();
        buffers_bytes + self.session.held_bytes() + names_bytes + waiting_bytes
    }

    fn drive(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        let context = Rc::clone(&self.context);
        context.scratch.borrow_mut().clear(context.input_bytes.get());
        if !std::mem::replace(&mut self.has_greeted, true) {
            self.greet();
        }
        let verdict = context.table.borrow_mut().take_verdict(self.slot);
        if let Some(verdict) = verdict {
            self.on_verdict(verdict)?;
        }
        for _ in 0..STEPS_A_TURN_MAX {
            let is_flushed = self.flush()?.is_ready();
            if is_flushed && self.next_tls.is_some() {
                return Poll::Ready(Ok(()));
            }
            if is_flushed && self.is_closing {
                return self.drive_lingering(&context, task);
            }
            match self.step(is_flushed, task)? {
                Progress::Made => {}
                Progress::Waits if is_flushed && !self.output.is_empty() => {}
                Progress::Waits => {
                    self.set_deadline(task);
                    return Poll::Pending;
                }
            }
        }
        // Other connections get their turn first.
        self.set_deadline(task);
        task.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads and drops input after the last reply, until the client closes or the time limit is reached. Closing with
    /// unread input would reset the connection, and the client could lose the reply.
    fn drive_lingering(&mut self, context: &Context, task: &Task<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.is_lingering, true) {
            self.socket.shutdown_write()?;
            let linger_ms = context.generation().limits.linger_timeout.as_millis() as u64;
            let deadline_ms = context.clock.now().monotonic_ms + linger_ms;
            context.table.borrow_mut().enter(self.slot, ConnectionStage::Linger, Some(deadline_ms), task.waker());
        }
        let input = &mut context.scratch.borrow_mut().input;
        for _ in 0..STEPS_A_TURN_MAX {
            if ready!(self.socket.poll_read(input))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        // Other connections get their turn first.
        task.waker().wake_by_ref();
        Poll::Pending
    }

    fn greet(&mut self) {
        // ABOR comes as urgent data (RFC 959, section 4.1.3), which would be lost to normal reads.
        let _ = rustix::net::sockopt::set_socket_oobinline(&*self.socket.socket_mut(), true);
        if let Some(metrics) = self.context.metrics() {
            metrics.ftp.sessions.add(1);
        }
        self.reply(&FtpReply::new(220, "Ready."));
    }

    fn reply(&mut self, reply: &FtpReply) {
        reply.push(&mut self.output);
    }

    /// Sends replies; ready when all are sent.
    fn flush(&mut self) -> io::Result<Poll<()>> {
        let mut sent = 0;
        while sent < self.output.len() {
            match self.socket.poll_write(&self.output[sent..])? {
                Poll::Ready(count) => sent += count,
                Poll::Pending => break,
            }
        }
        self.context.count_sent(sent as u64);
        if sent == self.output.len() {
            self.output = Vec::new();
            return Ok(Poll::Ready(()));
        }
        self.output.drain(..sent);
        Ok(Poll::Pending)
    }

    /// Makes one step. While replies wait for the client, only a transfer continues.
    fn step(&mut self, is_flushed: bool, task: &mut Task<'_>) -> io::Result<Progress> {
        if self.transfer.is_some() && self.poll_transfer(task).is_ready() {
            return Ok(Progress::Made);
        }
        if !is_flushed || self.is_closing || self.next_tls.is_some() {
            return Ok(Progress::Waits);
        }
        if self.changing.is_some() {
            return Ok(if self.poll_change(task).is_ready() { Progress::Made } else { Progress::Waits });
        }
        if self.logging_in.is_some() {
            return Ok(if self.poll_login(task).is_ready() { Progress::Made } else { Progress::Waits });
        }
        if self.looking.is_some() {
            return Ok(if self.poll_look(task).is_ready() { Progress::Made } else { Progress::Waits });
        }
        if self.transfer.is_none() && self.has_lost_service() {
            self.close_with(&FtpReply::new(421, "This service has ended, closing the connection."));
            return Ok(Progress::Made);
        }
        let abilities = self.abilities();
        match self.session.handle_input(&self.input, &abilities) {
            FtpStep::Act(consumed_bytes, action) => {
                self.input.drain(..consumed_bytes);
                if self.input.is_empty() {
                    self.input = Vec::new();
                }
                self.active_ms = self.context.clock.now().monotonic_ms;
                if self.context.generation().router.bans(self.client) {
                    self.context.count_limit(Limit::Ban);
                    self.close_with(&FtpReply::new(421, "Access denied, closing the connection."));
                } else {
                    self.act(action);
                }
                Ok(Progress::Made)
            }
            FtpStep::AwaitTransfer => Ok(Progress::Waits),
            FtpStep::NeedInput => self.read(),
        }
    }

    fn read(&mut self) -> io::Result<Progress> {
        let input = &mut self.context.scratch.borrow_mut().input;
        match self.socket.poll_read(input)? {
            Poll::Ready(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(count) => {
                self.context.count_received(count);
                self.input.extend_from_slice(&input[..count]);
                // A read ends before urgent data, so a short one does not mean that no more is there.
                self.socket.socket_mut().retry_read();
                Ok(Progress::Made)
            }
            Poll::Pending => Ok(Progress::Waits),
        }
    }

    fn abilities(&self) -> FtpAbilities {
        let has_hosts = self.context.generation().router.has_names(self.listener);
        let may_connect = self.site().is_some_and(|site| site.config.has_active_mode);
        FtpAbilities { may_write: self.may_write(), may_connect, tls: self.tls_ability(), has_hosts }
    }

    /// Site of the session in the current configuration; `None` if a reload has removed it.
    fn site(&self) -> Option<Rc<FtpFiles>> {
        self.context.generation().router.ftp_site(self.listener, self.host.as_deref()).cloned()
    }

    /// True if a reload has removed the listener, or uses it for HTTP now.
    fn has_lost_service(&self) -> bool {
        let generation = self.context.generation();
        generation.is_retired(self.listener) || generation.router.ftp_site(self.listener, None).is_none()
    }

    fn act(&mut self, action: FtpAction) {
        match action {
            FtpAction::Reply(reply) => self.reply(&reply),
            FtpAction::Close(reply) => self.close_with(&reply),
            FtpAction::LogIn(user, password) => self.begin_login(user, password),
            FtpAction::SelectHost(host) => {
                let host = host.into_bytes().into_boxed_slice();
                let is_known = self.context.generation().router.ftp_site(self.listener, Some(&host)).is_some();
                if is_known {
                    self.host = Some(host);
                }
                let reply = self.session.on_host(is_known);
                self.reply(&reply);
            }
            FtpAction::Listen(mode) => self.listen(mode),
            FtpAction::Transfer(transfer) => self.begin_transfer(transfer),
            FtpAction::Look(question, path) => self.begin_look(question, path),
            FtpAction::Abort => {
                self.abort_transfer(426);
                self.data = DataChannel::None;
                self.reply(&FtpReply::new(226, "Abort successful."));
            }
            FtpAction::ShowStatus => self.show_status(),
            FtpAction::StartTls(reply) => self.start_tls(&reply),
            FtpAction::Change(change) => self.begin_change(change),
            FtpAction::UseAddress(address) => self.use_address(address),
        }
    }

    /// Opens a port for the next data connection.
    fn listen(&mut self, mode: PassiveMode) {
        // Frees the port of an earlier command.
        self.data = DataChannel::None;
        let (Some(site), Some(local)) = (self.site(), self.local_ip()) else {
            return self.reply(&FtpReply::new(425, "No address for a data connection."));
        };
        let family = FtpFamily::of(local);
        match mode {
            PassiveMode::Pasv if family == FtpFamily::V6 => {
                return self.reply(&FtpReply::new(425, "PASV is for IPv4: use EPSV."));
            }
            PassiveMode::Epsv(Some(wanted)) if wanted != family => {
                return self.reply(&FtpReply::other_family(if family == FtpFamily::V4 { 1 } else { 2 }));
            }
            PassiveMode::Pasv | PassiveMode::Epsv(_) => {}
        }
        let deadline_ms = self.active_ms + site.config.data_timeout.as_millis() as u64;
        let Ok((data, port)) = DataChannel::listen(local, site.config.passive_ports.clone(), deadline_ms) else {
            return self.reply(&FtpReply::new(425, "No port for a data connection is free."));
        };
        self.data = data;
        match (mode, local.to_canonical()) {
            (PassiveMode::Pasv, IpAddr::V4(ip)) => {
                push_pasv_reply(&mut self.output, site.config.passive_address.unwrap_or(ip), port);
            }
            _ => push_epsv_reply(&mut self.output, port),
        }
    }

    /// Keeps the client's address for the next data connection. Other addresses, and ports of services, would make the
    /// server attack third parties (FTP bounce; RFC 2577, section 3).
    fn use_address(&mut self, address: SocketAddr) {
        self.data = DataChannel::None;
        let is_own =
            matches!(self.client, LogClient::Ip(client) if client.ip().to_canonical() == address.ip().to_canonical());
        if !is_own || address.port() < ACTIVE_PORT_MIN {
            return self.reply(&FtpReply::new(504, "Only your own address is allowed, with a port from 1024 on."));
        }
        let Some(local) = self.local_ip() else {
            return self.reply(&FtpReply::new(425, "No address for a data connection."));
        };
        self.data = DataChannel::Named { from: local, to: address };
        self.reply(&FtpReply::new(200, "OK."));
    }

    /// Address of the server that the client is connected to.
    fn local_ip(&mut self) -> Option<IpAddr> {
        self.local = self.local.or_else(|| self.socket.local_address().map(|address| address.ip()));
        self.local
    }

    fn show_status(&mut self) {
        let mut text = format!("Status:\nConnected from {}\n", self.client);
        text.push_str(if self.session.is_logged_in() { "Logged in\n" } else { "Not logged in\n" });
        text.push_str(match self.session.transfer_type() {
            TransferType::Ascii => "TYPE: A, STRU: F, MODE: S\n",
            TransferType::Image => "TYPE: I, STRU: F, MODE: S\n",
        });
        if let Some(transfer) = &self.transfer {
            text.push_str(&format!("Transfer in progress: {} bytes\n", transfer.moved_bytes()));
        }
        text.push_str("End");
        self.reply(&FtpReply::with_text(211, text));
    }

    /// Ends a transfer in progress, replies, and reads no further command.
    fn close_with(&mut self, reply: &FtpReply) {
        self.abort_transfer(426);
        (self.data, self.looking, self.logging_in, self.changing, self.input) = Default::default();
        self.reply(reply);
        self.is_closing = true;
    }

    /// Handles a time-out or eviction.
    fn on_verdict(&mut self, verdict: WakeReason) -> io::Result<()> {
        match verdict {
            WakeReason::Evicted => {
                self.close_with(&FtpReply::new(421, "Service not available, closing the connection."));
                // Sent only if the client accepts it at once.
                let _ = self.flush()?;
                self.socket.end();
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            // The memory of the connection must be free at once.
            WakeReason::Shed => {
                self.socket.abort_on_close();
                Err(io::ErrorKind::OutOfMemory.into())
            }
            WakeReason::TimedOut if self.is_lingering => Err(io::ErrorKind::TimedOut.into()),
            WakeReason::TimedOut if !self.output.is_empty() => {
                self.context.count_limit(Limit::WriteTimeout);
                Err(io::ErrorKind::TimedOut.into())
            }
            WakeReason::TimedOut if self.transfer.is_some() => {
                self.on_transfer_timeout();
                Ok(())
            }
            WakeReason::TimedOut => {
                let now_ms = self.context.clock.now().monotonic_ms;
                if self.data.has_expired(now_ms) {
                    self.data = DataChannel::None;
                }
                if now_ms >= self.idle_deadline_ms() {
                    self.close_with(&FtpReply::new(421, "Timeout: no command, closing the connection."));
                }
                Ok(())
            }
        }
    }

    fn idle_deadline_ms(&self) -> u64 {
        let idle_timeout = self.site().map(|site| site.config.idle_timeout);
        let idle_timeout = idle_timeout.unwrap_or(self.context.generation().limits.idle_timeout);
        self.active_ms + idle_timeout.as_millis() as u64
    }

    /// Sets the stage of the connection, and the deadline for what it waits for.
    fn set_deadline(&mut self, task: &Task<'_>) {
        let now_ms = self.context.clock.now().monotonic_ms;
        let write_timeout_ms = self.context.generation().limits.write_timeout.as_millis() as u64;
        let (stage, deadline_ms) = if !self.output.is_empty() {
            if self.context.table.borrow().stage(self.slot) == ConnectionStage::Write {
                return;
            }
            (ConnectionStage::Write, Some(now_ms + write_timeout_ms))
        } else if let Some(transfer) = &self.transfer {
            transfer.stage()
        } else if self.looking.is_some() || self.logging_in.is_some() || self.changing.is_some() {
            (ConnectionStage::Answer, None)
        } else {
            let idle_ms = self.idle_deadline_ms();
            (ConnectionStage::Idle, Some(self.data.deadline_ms().map_or(idle_ms, |data_ms| idle_ms.min(data_ms))))
        };
        self.context.table.borrow_mut().enter(self.slot, stage, deadline_ms, task.waker());
    }
}
