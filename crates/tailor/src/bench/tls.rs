//! TLS settings of the load generator.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DEFAULT_VERSIONS, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, version};

use crate::engine::{LoadVersion, NotedVerifier};

/// Builds the TLS settings. Certificates are verified by the system's CAs, by those in a file, or not at all.
/// Sessions are resumed only if `resumes` is set. Otherwise each connection stands for a new user and costs the server
/// a full handshake.
pub(crate) fn config(
    insecure: bool,
    roots: Option<&Path>,
    resumes: bool,
    http: LoadVersion,
) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    // QUIC has no other version (RFC 9001, section 4.2).
    let versions = if http == LoadVersion::Http3 { &[&version::TLS13][..] } else { DEFAULT_VERSIONS };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| format!("TLS: {error}"))?;
    let mut verifier: Arc<dyn ServerCertVerifier> = if insecure {
        Arc::new(Unverified(provider))
    } else {
        let roots = Arc::new(root_certificates(roots)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        verifier.map_err(|error| format!("CA certificates: {error}"))?
    };
    if http == LoadVersion::Http3 {
        verifier = Arc::new(NotedVerifier(verifier));
    }
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    if !resumes {
        config.resumption = Resumption::disabled();
    }
    // Offer only the measured protocol: a silent fallback would measure another one.
    let protocol: &[u8] = match http {
        LoadVersion::Http1 => b"http/1.1",
        LoadVersion::Http2 => b"h2",
        LoadVersion::Http3 => b"h3",
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

fn root_certificates(path: Option<&Path>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    match path {
        Some(path) => {
            let error = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|e| error(&e))? {
                store.add(certificate.map_err(|e| error(&e))?).map_err(|e| error(&e))?;
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if store.is_empty() {
        return Err("no CA certificates to verify the server; use --cacert FILE or --insecure".into());
    }
    Ok(store)
}

/// Verifier that accepts any certificate. The server must still prove that it holds the certificate's key.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
