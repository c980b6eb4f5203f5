//! TLS of control and data connections (RFC 4217).

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use rustls::HandshakeKind;
use wire::ftp::{FtpReply, FtpSession, FtpTls};

use super::FtpConnection;
use super::transfer::TransferStage;
use crate::connection::handshakes::{LinePlace, TooManyHandshakes};
use crate::connection::opening::count_handshake;
use crate::connection::{OpeningConnection, TlsSocket, Transport};
use crate::metrics::Limit;
use crate::tls::{ServerConnection, TlsSettings};

/// Control connection while its handshake runs.
#[derive(Default)]
pub(crate) struct FtpOpening {
    /// Settings of the control connection and its data connections, after the client has named a site.
    pub settings: Option<Arc<TlsSettings>>,
    /// Session before AUTH; `None` for implicit TLS.
    pub(super) before: Option<FtpBeforeTls>,
}

/// State of a session that outlives AUTH.
pub(super) struct FtpBeforeTls {
    pub(super) session: FtpSession,
    pub(super) host: Option<Box<[u8]>>,
}

impl FtpConnection {
    /// True if the client has sent AUTH, and TLS must begin.
    pub(crate) fn begins_tls(&self) -> bool {
        self.next_tls.is_some()
    }

    /// Converts the connection for the handshake.
    pub(crate) fn into_opening(self) -> OpeningConnection {
        let Self { socket, context, client, slot, listener, session, host, next_tls, .. } = self;
        let ftp = FtpOpening { settings: None, before: Some(FtpBeforeTls { session, host }) };
        OpeningConnection::of_ftp(socket.into_socket(), client, listener, slot, next_tls, ftp, context)
    }

    /// Prepares TLS, which begins after the reply was sent.
    pub(super) fn start_tls(&mut self, reply: &FtpReply) {
        let tls = self.context.generation().late_tls(self.listener).cloned();
        if tls.is_none() {
            return self.reply(&FtpReply::new(431, "TLS is not available any more."));
        }
        (self.data, self.input) = Default::default();
        self.next_tls = tls;
        self.reply(reply);
    }

    /// Use of TLS in the current configuration.
    pub(super) fn tls_ability(&self) -> FtpTls {
        let is_available = self.session.is_secure() || self.context.generation().late_tls(self.listener).is_some();
        match self.site() {
            _ if self.is_implicit => FtpTls::Implicit,
            Some(site) if site.config.needs_tls => FtpTls::Required,
            _ if is_available => FtpTls::Offered,
            _ => FtpTls::Off,
        }
    }

    /// Lets a data connection wait for its turn among many handshakes.
    pub(super) fn join_handshakes(&self) -> Result<Option<LinePlace>, FtpReply> {
        self.context.handshakes.join(self.client).map_err(|TooManyHandshakes| {
            self.context.count_limit(Limit::TlsHandshakesPerSecondMax);
            FtpReply::new(425, "Too many TLS handshakes: try again later.")
        })
    }

    /// Begins the handshake of a data connection when its turn comes.
    pub(super) fn poll_data_turn(&mut self, task: &mut Task<'_>) -> Poll<Result<(), FtpReply>> {
        let (context, settings) = (Rc::clone(&self.context), self.settings.clone());
        let Some(transfer) = &mut self.transfer else { return Poll::Ready(Err(failed())) };
        let TransferStage::Turn(place) = &mut transfer.stage else { return Poll::Ready(Err(failed())) };
        if let Some(place) = place {
            ready!(place.poll_turn(context.clock.now().monotonic_ms, task));
        }
        *place = None;
        if !context.handshakes.take_turn() {
            task.waker().wake_by_ref();
            return Poll::Pending;
        }
        let session = settings.and_then(|settings| ServerConnection::new(settings).ok());
        let (Some(session), Some(socket)) = (session, transfer.socket.take()) else {
            return Poll::Ready(Err(failed()));
        };
        let tls = TlsSocket::new(socket.into_socket(), session, context.generation().kernel_tls);
        transfer.socket = Some(Transport::Tls(Box::new(tls)));
        transfer.stage = TransferStage::Handshake;
        Poll::Ready(Ok(()))
    }

    /// Drives the handshake of a data connection. The peer must prove that it is the client of the control connection.
    pub(super) fn poll_data_handshake(&mut self) -> Poll<Result<(), FtpReply>> {
        let needs_reuse = self.site().is_none_or(|site| site.config.needs_session_reuse);
        let socket = self.transfer.as_mut().and_then(|transfer| transfer.socket.as_mut());
        let Some(Transport::Tls(tls)) = socket else { return Poll::Ready(Err(failed())) };
        let result: io::Result<()> = ready!(tls.poll_handshake());
        let session = tls.session().filter(|_| result.is_ok());
        count_handshake(&self.context, session);
        let kind = session.map(|session| session.handshake_kind());
        Poll::Ready(match kind {
            None => Err(failed()),
            Some(kind) if needs_reuse && kind != Some(HandshakeKind::Resumed) => {
                Err(FtpReply::new(522, "The data connection must resume the TLS session of the control connection."))
            }
            Some(_) => Ok(()),
        })
    }
}

fn failed() -> FtpReply {
    FtpReply::new(425, "No TLS on the data connection.")
}
