//! TLS settings of the load generator.

use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Builds the TLS settings. Certificates are verified by the system's CAs, by those in a file, or not at all.
/// Sessions are resumed only if `resumes` is set. Otherwise each connection stands for a new user and costs the server
/// a full handshake.
pub(crate) fn config(
    insecure: bool,
    roots: Option<&Path>,
    resumes: bool,
    is_http2: bool,
) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?;
    let mut config = if insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider))).with_no_client_auth()
    } else {
        builder.with_root_certificates(root_certificates(roots)?).with_no_client_auth()
    };
    if !resumes {
        config.resumption = Resumption::disabled();
    }
    // Offer only the measured protocol: a silent fallback would measure another one.
    config.alpn_protocols = vec![if is_http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
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
