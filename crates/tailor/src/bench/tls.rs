//! TLS settings of the load generator.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CipherSuite, ClientConfig, DEFAULT_VERSIONS, DigitallySignedStruct, Error, NamedGroup, RootCertStore,
    SignatureScheme, SupportedCipherSuite, version,
};

use crate::engine::{LoadVersion, NotedTickets, NotedVerifier};

/// Choices of a user for TLS.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TlsChoices<'a> {
    /// True to accept any certificate.
    pub(crate) insecure: bool,
    /// File with the CAs that verify certificates, instead of the system's.
    pub(crate) roots: Option<&'a Path>,
    /// True to resume sessions. Otherwise each connection stands for a new user and costs the server a full handshake.
    pub(crate) resumes: bool,
    /// True to offer early data (0-RTT) with resumed sessions.
    pub(crate) has_early_data: bool,
    /// Groups for the key exchange, the preferred one first. If empty, all of the library.
    pub(crate) groups: &'a [NamedGroup],
    /// Cipher suites, the preferred one first. If empty, all of the library.
    pub(crate) ciphers: &'a [CipherSuite],
}

/// Builds the TLS settings.
pub(crate) fn config(choices: &TlsChoices<'_>, http: LoadVersion) -> Result<Arc<ClientConfig>, String> {
    let TlsChoices { insecure, roots, resumes, has_early_data, groups, ciphers } = *choices;
    let mut provider = aws_lc_rs::default_provider();
    if !groups.is_empty() {
        provider.kx_groups = groups.iter().filter_map(|name| group(*name)).collect();
    }
    if !ciphers.is_empty() {
        provider.cipher_suites = ciphers.iter().filter_map(|name| cipher_suite(*name)).collect();
    }
    let provider = Arc::new(provider);
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
    config.enable_early_data = has_early_data;
    if !resumes {
        config.resumption = Resumption::disabled();
    } else if has_early_data {
        config.resumption = Resumption::store(Arc::new(NotedTickets::default()));
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

fn group(name: NamedGroup) -> Option<&'static dyn SupportedKxGroup> {
    aws_lc_rs::ALL_KX_GROUPS.iter().copied().find(|group| group.name() == name)
}

fn cipher_suite(name: CipherSuite) -> Option<SupportedCipherSuite> {
    aws_lc_rs::ALL_CIPHER_SUITES.iter().copied().find(|suite| suite.suite() == name)
}

/// Parses the name of a group, in the form of OpenSSL or of the registry of TLS.
pub(crate) fn parse_group(text: &str) -> Result<NamedGroup, String> {
    let name = match text.to_ascii_lowercase().as_str() {
        "p-256" => "secp256r1".to_owned(),
        "p-384" => "secp384r1".to_owned(),
        other => other.to_owned(),
    };
    let mut groups = aws_lc_rs::ALL_KX_GROUPS.iter().map(|group| group.name());
    groups
        .find(|group| format!("{group:?}").eq_ignore_ascii_case(&name))
        .ok_or_else(|| "groups are X25519MLKEM768, X25519, P-256 and P-384".to_owned())
}

/// Parses the name of a cipher suite, as the registry of TLS has it, with or without `13` in the prefix of TLS 1.3.
pub(crate) fn parse_cipher_suite(text: &str) -> Result<CipherSuite, String> {
    let plain = |name: &str| name.to_ascii_uppercase().replacen("TLS13_", "TLS_", 1);
    let names = || aws_lc_rs::ALL_CIPHER_SUITES.iter().map(|suite| suite.suite());
    names().find(|suite| plain(&format!("{suite:?}")) == plain(text)).ok_or_else(|| {
        let names: Vec<String> = names().map(|suite| plain(&format!("{suite:?}"))).collect();
        format!("cipher suites are {}", names.join(", "))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_ciphers_have_names() {
        let group = |text: &str| parse_group(text).ok();
        assert_eq!(group("P-256"), Some(NamedGroup::secp256r1));
        assert_eq!(group("x25519"), Some(NamedGroup::X25519));
        assert_eq!(group("X25519MLKEM768"), Some(NamedGroup::X25519MLKEM768));
        assert_eq!(group("P-255"), None);
        let suite = |text: &str| parse_cipher_suite(text).ok();
        assert_eq!(suite("TLS_AES_128_GCM_SHA256"), Some(CipherSuite::TLS13_AES_128_GCM_SHA256));
        assert_eq!(suite("tls13_aes_128_gcm_sha256"), Some(CipherSuite::TLS13_AES_128_GCM_SHA256));
        assert_eq!(suite("TLS_NULL"), None);
    }
}
