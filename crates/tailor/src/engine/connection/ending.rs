//! End of a connection: by the server, by a failure, or with the run.

use rustix::io::Errno;
use rustix::net::sockopt;

use super::{LoadConnection, LoadPhase};
use crate::engine::clock::{MILLISECOND, Nanos};
use crate::engine::failure::{FailureClass, FailureReason};
use crate::engine::protocol::ClientProtocol;
use crate::engine::shared::ThreadShared;

/// Maximum of the pause after failed connects. A client finds out within this time that the server is back.
const REST_MAX: Nanos = 500 * MILLISECOND;

impl LoadConnection {
    /// Handles an orderly close by the server, which ends a response without other framing.
    pub(super) fn on_peer_closed(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if self.phase == LoadPhase::Open && !self.in_flight.is_empty() && self.protocol.on_close() {
            self.is_peer_closed = true;
            return self.complete_http1(false, shared, now);
        }
        self.on_peer_reset(FailureReason::FIN, shared, now);
    }

    pub(super) fn on_peer_reset(&mut self, reason: FailureReason, shared: &mut ThreadShared, now: Nanos) {
        match self.phase {
            LoadPhase::Open if !self.in_flight.is_empty() || self.claimed.is_some() => {
                // Sending or receiving may notice the end first, by chance. The class depends on how much of the
                // request was sent.
                let is_written = self.unsent_at == self.unsent.len();
                let class = if is_written { FailureClass::EarlyClose } else { self.class_of_unsent() };
                self.fail(class, self.protocol.explain_end(reason), shared, now);
            }
            LoadPhase::Upgrading => {
                let reason = FailureReason::Text("the server closed the connection during the handshake of WebSocket");
                self.fail(FailureClass::EarlyClose, reason, shared, now);
            }
            LoadPhase::Handshaking => {
                let reason = FailureReason::Text("the server closed the connection during the handshake");
                self.fail(FailureClass::Tls, reason, shared, now);
            }
            LoadPhase::Connecting => match self.socket.as_ref().map(sockopt::socket_error) {
                Some(Ok(Err(errno)) | Err(errno)) => self.fail_to_connect(errno, shared, now),
                _ => self.fail(FailureClass::Connect, reason, shared, now),
            },
            _ => self.close_and_go_on(shared, now),
        }
    }

    pub(super) fn fail_to_connect(&mut self, errno: Errno, shared: &mut ThreadShared, now: Nanos) {
        self.fail(FailureClass::Connect, FailureReason::Errno(errno.raw_os_error()), shared, now);
    }

    pub(super) fn fail_to_send(&mut self, errno: Errno, shared: &mut ThreadShared, now: Nanos) {
        self.fail(self.class_of_unsent(), FailureReason::of_errno(errno), shared, now);
    }

    /// Class of the requests of a connection that ended before all bytes were sent. HTTP/2 writes requests together.
    /// Which of them are unwritten is chance.
    fn class_of_unsent(&self) -> FailureClass {
        match self.protocol {
            ClientProtocol::Http1(_) | ClientProtocol::WebSocket(_) => FailureClass::Write,
            ClientProtocol::Http2(_) | ClientProtocol::Http3(_) | ClientProtocol::Http2Sockets(_) => {
                FailureClass::EarlyClose
            }
        }
    }

    pub(super) fn fail_by_tls(&mut self, error: &rustls::Error, shared: &mut ThreadShared, now: Nanos) {
        let reason = match error {
            rustls::Error::InvalidCertificate(_) => {
                format!("{error}; --cacert FILE trusts this CA, -k skips verification")
            }
            rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
                "the server does not speak TLS on this port; use http://, or the port of HTTPS".to_owned()
            }
            error => error.to_string(),
        };
        self.fail(FailureClass::Tls, FailureReason::Message(reason), shared, now);
    }

    /// Counts all requests in flight as failed and reconnects.
    pub(super) fn fail(&mut self, class: FailureClass, reason: FailureReason, shared: &mut ThreadShared, now: Nanos) {
        self.use_line(now);
        self.fail_step(shared, now);
        let in_flight = self.in_flight.drain(..).map(|exchange| exchange.due);
        in_flight.chain(self.claimed.take()).for_each(|due| shared.fail(class, reason.clone(), due));
        self.close(shared, now);
        if class == FailureClass::Connect {
            self.rests_until = now + self.rest;
            self.rest = (self.rest * 2).min(REST_MAX);
            self.set_timer(self.rests_until, shared);
        } else {
            self.go_on(shared, now);
        }
    }

    pub(super) fn close_and_go_on(&mut self, shared: &mut ThreadShared, now: Nanos) {
        self.close(shared, now);
        self.go_on(shared, now);
    }

    fn go_on(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if !self.is_idle {
            self.fill(shared, now);
        }
    }

    /// Ends the connection with the run. The kernel tells the server of a TCP connection, but not of a QUIC connection.
    /// Its server would repeat what it has sent until the idle timeout, at the expense of the next run.
    pub(crate) fn end(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if matches!(self.protocol, ClientProtocol::Http3(_)) {
            self.close(shared, now);
        }
    }

    pub(super) fn close(&mut self, shared: &mut ThreadShared, now: Nanos) {
        if let ClientProtocol::Http3(http3) = &mut self.protocol {
            http3.close(shared, now);
        }
        self.socket = None;
        self.tls = None;
        self.generation = self.generation.wrapping_add(1);
        self.phase = LoadPhase::Closed;
        (self.is_readable, self.is_writable, self.is_peer_closed) = (false, false, false);
        self.unsent.clear();
        self.unsent_at = 0;
        self.response_bytes = 0;
        self.protocol = ClientProtocol::default();
        for credit in [&mut self.receive_credit, &mut self.send_credit].into_iter().flatten() {
            credit.end();
        }
    }
}
