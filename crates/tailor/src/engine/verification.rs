//! Notes what QUIC libraries do not tell of TLS: whether a handshake verified a certificate, which a resumed one does not, and
//! whether a ticket for another session has arrived.

use std::cell::Cell;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, NamedGroup, SignatureScheme};

/// Sessions that are remembered, each for one connection.
const SESSIONS_MAX: usize = 4_096;

thread_local! {
    static HAS_VERIFIED: Cell<bool> = const { Cell::new(false) };
    static HAS_TICKET: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a ticket has arrived on this thread since the last call.
pub(crate) fn take_ticketed() -> bool {
    HAS_TICKET.take()
}

/// Returns whether a handshake of this thread has verified a certificate since the last call.
pub(crate) fn take_verified() -> bool {
    HAS_VERIFIED.take()
}

/// Verifier that notes its calls.
#[derive(Debug)]
pub(crate) struct NotedVerifier(pub(crate) Arc<dyn ServerCertVerifier>);

impl ServerCertVerifier for NotedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        HAS_VERIFIED.set(true);
        self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Sessions for later connections. It notes each that arrives.
#[derive(Debug)]
pub(crate) struct NotedTickets(ClientSessionMemoryCache);

impl Default for NotedTickets {
    fn default() -> Self {
        Self(ClientSessionMemoryCache::new(SESSIONS_MAX))
    }
}

impl ClientSessionStore for NotedTickets {
    fn set_kx_hint(&self, server_name: ServerName<'static>, group: NamedGroup) {
        self.0.set_kx_hint(server_name, group);
    }

    fn kx_hint(&self, server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.0.kx_hint(server_name)
    }

    fn set_tls12_session(&self, server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.0.set_tls12_session(server_name, value);
    }

    fn tls12_session(&self, server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.tls12_session(server_name)
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        self.0.remove_tls12_session(server_name);
    }

    fn insert_tls13_ticket(&self, server_name: ServerName<'static>, value: Tls13ClientSessionValue) {
        HAS_TICKET.set(true);
        self.0.insert_tls13_ticket(server_name, value);
    }

    fn take_tls13_ticket(&self, server_name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(server_name)
    }
}
