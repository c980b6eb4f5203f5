//! TLS to servers: the name asked for, the CAs trusted, and the protocols offered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{AcquireError, CertificateProblem};
use crate::config::{self, AcceptedName, CertificateError, FileState, UpstreamTls};

/// TLS settings for the servers of an upstream. Its files may be reloaded while it is in use.
pub(super) struct ClientTls {
    config: UpstreamTls,
    pub(super) offers_http2: bool,
    connectors: RwLock<Connectors>,
    /// States of the files that were read last.
    read_states: Mutex<Vec<Option<FileState>>>,
}

/// Connectors made from the files read last. Each has its own resumable sessions, so that no session begun with
/// another certificate or CA is resumed.
#[derive(Clone)]
struct Connectors {
    /// Offers HTTP/2, if allowed, and HTTP/1.1.
    any: TlsConnector,
    /// Offers HTTP/1.1 only.
    http1: TlsConnector,
}

impl ClientTls {
    /// Reads the configured files; `None` if no server uses TLS.
    ///
    /// # Errors
    /// A file can't be read or is invalid.
    pub(super) fn load(upstream: &config::UpstreamConfig) -> Result<Option<Self>, CertificateError> {
        if !upstream.has_tls() {
            return Ok(None);
        }
        let config = upstream.tls.clone();
        // A connection that begins with a client's address carries one request.
        let offers_http2 = config.offers_http2 && upstream.proxy_protocol.is_none();
        // Taken before the files are read, so that a change in between is noticed later.
        let read_states = Mutex::new(file_states(&config));
        let connectors = RwLock::new(Connectors::load(&config, offers_http2)?);
        Ok(Some(Self { config, offers_http2, connectors, read_states }))
    }

    /// True if any setting comes from a file.
    pub(super) fn has_files(&self) -> bool {
        self.config.files().next().is_some()
    }

    /// Checks whether its files have changed since they were read.
    pub(super) fn has_new_files(&self) -> bool {
        file_states(&self.config) != *self.read_states()
    }

    /// Reads the files again. Open connections keep their settings.
    ///
    /// # Errors
    /// A file can't be read or is invalid; the old settings then stay in use.
    pub(super) fn reload(&self) -> Result<(), CertificateError> {
        *self.read_states() = file_states(&self.config);
        let connectors = Connectors::load(&self.config, self.offers_http2)?;
        *self.connectors.write().unwrap_or_else(PoisonError::into_inner) = connectors;
        Ok(())
    }

    fn read_states(&self) -> MutexGuard<'_, Vec<Option<FileState>>> {
        // The value is replaced as a whole.
        self.read_states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connectors(&self) -> Connectors {
        // The value is replaced as a whole.
        self.connectors.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes the handshake with a server at `host`.
    ///
    /// # Errors
    /// The handshake fails: `Untrusted` if the server's certificate is invalid.
    pub(super) async fn connect(
        &self,
        socket: TcpStream,
        host: &str,
        wants_http1: bool,
    ) -> Result<TlsStream<TcpStream>, AcquireError> {
        let name = self.config.server_name.as_deref().unwrap_or(host);
        // RFC 3986, section 3.2.2: brackets are the URL's.
        let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| AcquireError::Untrusted(CertificateProblem::OtherName))?;
        let Connectors { any, http1 } = self.connectors();
        let connector = if wants_http1 { http1 } else { any };
        connector.connect(name, socket).await.map_err(|error| {
            match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                Some(rustls::Error::InvalidCertificate(problem)) => AcquireError::Untrusted(problem.into()),
                Some(_) => AcquireError::NoTls,
                None => error.into(),
            }
        })
    }
}

impl From<&rustls::CertificateError> for CertificateProblem {
    fn from(error: &rustls::CertificateError) -> Self {
        use rustls::CertificateError as Error;
        match error {
            // A CA of the same name has another key.
            Error::UnknownIssuer | Error::BadSignature => Self::UnknownCa,
            Error::Expired | Error::ExpiredContext { .. } => Self::Expired,
            Error::NotValidYet | Error::NotValidYetContext { .. } => Self::NotYetValid,
            Error::NotValidForName | Error::NotValidForNameContext { .. } => Self::OtherName,
            _ => Self::Invalid,
        }
    }
}

impl Connectors {
    fn load(tls: &UpstreamTls, offers_http2: bool) -> Result<Self, CertificateError> {
        let mut config = client_config(tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let http1 = TlsConnector::from(Arc::new(config.clone()));
        if offers_http2 {
            config.alpn_protocols.insert(0, b"h2".to_vec());
        }
        Ok(Self { any: TlsConnector::from(Arc::new(config)), http1 })
    }
}

/// Checks whether the server has chosen HTTP/2.
pub(super) fn has_chosen_http2(stream: &TlsStream<TcpStream>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

fn file_states(tls: &UpstreamTls) -> Vec<Option<FileState>> {
    tls.files().map(FileState::of).collect()
}

/// Settings for handshakes with servers.
///
/// # Errors
/// A file can't be read or is invalid.
pub fn client_config(tls: &UpstreamTls) -> Result<ClientConfig, CertificateError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    // Local invariant: the provider has suites of both versions.
    let builder = builder.unwrap_or_else(|error| panic!("{error}"));
    let roots = || config::trusted_authorities(tls.authorities.as_deref());
    let builder = match tls.is_verified {
        true if !tls.accepted_names.is_empty() => {
            let verifier = AcceptedNames::new(roots()?, &provider, &tls.accepted_names);
            let path = tls.authorities.as_deref().unwrap_or(std::path::Path::new("the system's CAs"));
            let verifier = verifier.map_err(|error| CertificateError::at(path, error))?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        true => builder.with_root_certificates(roots()?),
        false => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
    };
    Ok(match &tls.certificate {
        Some(files) => {
            let key = files.load()?.key;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)))
        }
        None => builder.with_no_client_auth(),
    })
}

/// Verifies certificates as usual, with other names than the requested one.
#[derive(Debug)]
struct AcceptedNames {
    usual: Arc<WebPkiServerVerifier>,
    names: Box<[AcceptedName]>,
}

impl AcceptedNames {
    fn new(roots: RootCertStore, provider: &Arc<CryptoProvider>, names: &[AcceptedName]) -> Result<Self, String> {
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        let usual = builder.build().map_err(|error| error.to_string())?;
        Ok(Self { usual, names: names.into() })
    }
}

impl ServerCertVerifier for AcceptedNames {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        requested: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |name: &ServerName<'_>| self.usual.verify_server_cert(certificate, chain, name, ocsp, now);
        let mut result = Err(rustls::CertificateError::NotValidForName.into());
        for name in &self.names {
            result = match name {
                AcceptedName::Dns(name) => match ServerName::try_from(name.as_str()) {
                    Ok(name) => verify(&name),
                    Err(_) => continue,
                },
                // The name is verified last, so that this error means that all else is right.
                AcceptedName::Uri(uri) => match verify(requested) {
                    Ok(_) if has_uri(certificate, uri) => Ok(ServerCertVerified::assertion()),
                    Err(rustls::Error::InvalidCertificate(
                        rustls::CertificateError::NotValidForName
                        | rustls::CertificateError::NotValidForNameContext { .. },
                    )) if has_uri(certificate, uri) => Ok(ServerCertVerified::assertion()),
                    Ok(_) => Err(rustls::CertificateError::NotValidForName.into()),
                    Err(error) => Err(error),
                },
            };
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// True if a certificate has this URI as a subject alternative name.
fn has_uri(certificate: &CertificateDer<'_>, uri: &str) -> bool {
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return false };
    let names = parsed.subject_alternative_name().ok().flatten();
    names.is_some_and(|names| {
        names.value.general_names.iter().any(|name| matches!(name, GeneralName::URI(found) if *found == uri))
    })
}

/// Accepts any certificate, as `tls-verify off` says. The server must still prove that it has the certificate's key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
