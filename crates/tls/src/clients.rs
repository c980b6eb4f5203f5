//! Verifiers of client certificates.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use crate::config::AcceptedClients;

/// Verifier for certificates of these CAs.
///
/// # Panics
/// There is no CA.
pub fn client_verifier(authorities: RootCertStore, accepts: AcceptedClients) -> Arc<dyn ClientCertVerifier> {
    let provider = Arc::new(default_provider());
    if accepts == AcceptedClients::All {
        return Arc::new(AcceptAll(provider.signature_verification_algorithms));
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider);
    let builder = if accepts == AcceptedClients::Verified { builder } else { builder.allow_unauthenticated() };
    // Fails without CA certificates, or for revocation lists: there are some of the first, and none of the second.
    builder.build().expect("there is at least one authority")
}

/// Accepts every certificate whose key the client has, and clients without one.
#[derive(Debug)]
struct AcceptAll(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for AcceptAll {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Hints would keep clients from sending other certificates.
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
