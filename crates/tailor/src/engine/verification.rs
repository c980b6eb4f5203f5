//! Notes whether a TLS handshake verified a certificate. A resumed handshake does not.

use std::cell::Cell;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

thread_local! {
    static HAS_VERIFIED: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a handshake of this thread has verified a certificate since the last call. QUIC libraries do not tell
/// full handshakes from resumed ones.
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
