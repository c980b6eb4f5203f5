//! TLS of a site: the model, and the files of certificates.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, InconsistentKeys, RootCertStore};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::config::{Config, Listen};
use crate::regular_file::{is_denied, read_regular};

/// The TLS of a site.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Tls {
    /// Certificates; empty without TLS.
    pub certificates: Vec<CertificateFiles>,
    /// Choice of an automatic certificate; `None` lets the names decide.
    pub automatic: Option<bool>,
    /// Result of that choice. The one certificate may then be missing for a while.
    pub is_automatic: bool,
    /// Profile of the automatic certificate; `None` is that of all sites.
    pub profile: Option<String>,
    /// The oldest version that is spoken.
    pub version_min: TlsVersion,
    /// Names of the cipher suites, the best first; none is all that are safe.
    pub cipher_suites: Vec<String>,
    /// Request for client certificates; `None` requests none.
    pub client_certificates: Option<ClientCertificates>,
    /// Turns session tickets off.
    pub has_no_tickets: bool,
    /// Accepts requests in early data (0-RTT) of HTTP/3.
    pub has_early_data: bool,
}

impl Tls {
    /// True if a cipher suite is of TLS 1.3.
    pub fn has_tls13(&self) -> bool {
        self.cipher_suites.is_empty() || self.cipher_suites.iter().any(|suite| suite.starts_with("TLS13_"))
    }
}

impl Config {
    /// True if this site offers HTTP/3 on this address, which is one of its own.
    pub fn has_http3(&self, site: usize, listen: &Listen) -> bool {
        let config = &self.sites[site];
        // A proxy reports its client at the beginning of a connection, which QUIC has no place for. Clients reach the addresses
        // of a controller through others, most of which carry only TCP, and the port differs.
        let is_direct = !config.proxied_listen.contains(listen) && site < self.first_route_site();
        let is_https = config.tls_listen.contains(listen) && config.ftp.is_none();
        let has_udp = matches!(listen, Listen::Tcp(_));
        self.server.http_versions.http3 && is_direct && is_https && has_udp && config.tls.has_tls13()
    }
}

/// Use of the kernel's TLS (kTLS), if available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTlsConfig {
    /// Asks for the use of the kernel.
    pub is_wanted: bool,
    /// Of a file, so many bytes have to be sent.
    pub file_bytes_min: u64,
}

impl Default for KernelTlsConfig {
    fn default() -> Self {
        Self { is_wanted: false, file_bytes_min: 1 << 20 }
    }
}

/// The files of a certificate, as PEM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateFiles {
    /// The certificate, and those that lead from it to one that clients know.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// An OCSP response to staple, as DER.
    pub ocsp: Option<PathBuf>,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TlsVersion {
    /// 1.2
    #[default]
    Tls12,
    /// 1.3
    Tls13,
}

/// Request for client certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// CA certificates (PEM) that must have signed client certificates.
    pub authorities: PathBuf,
    /// Clients that are accepted.
    pub accepts: AcceptedClients,
}

/// Clients that a site with client certificates accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedClients {
    /// Clients with a valid certificate.
    Verified,
    /// Clients with a valid certificate, and clients without one.
    VerifiedOrBare,
    /// All clients. A certificate is requested, but neither verified nor known to rules and logs. Only controllers set this.
    All,
}

/// Names of the cipher suites, those of TLS 1.3 first.
pub const CIPHER_SUITES: &[&str] = &[
    "TLS13_AES_256_GCM_SHA384",
    "TLS13_AES_128_GCM_SHA256",
    "TLS13_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Key for handshakes.
    pub key: Arc<CertifiedKey>,
    /// The names and addresses it is for, lower case; a wildcard begins with `*.`.
    pub names: Vec<String>,
    /// First second of validity, since 1970.
    pub not_before_unix_seconds: i64,
    /// Last second of validity, since 1970.
    pub not_after_unix_seconds: i64,
    /// Name of the CA that has signed it: its common name, or the whole name.
    pub issuer: String,
}

/// Reason why a certificate cannot be used.
#[derive(Debug)]
pub struct CertificateError {
    path: PathBuf,
    reason: String,
    /// True if the process lacks the permission for the file.
    pub(crate) is_denied: bool,
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for CertificateError {}

impl CertificateError {
    /// Error for this reason.
    pub fn at(path: &Path, reason: impl fmt::Display) -> Self {
        Self { path: path.to_owned(), reason: reason.to_string(), is_denied: false }
    }

    fn of_io(path: &Path, error: &io::Error) -> Self {
        Self { is_denied: is_denied(error), ..Self::at(path, describe(error)) }
    }
}

/// Reason why the texts of a certificate and its key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PemFault {
    /// Fault of the certificate, or of those that lead from it to one that clients know.
    Certificate(String),
    /// Fault of the private key.
    Key(String),
    /// The key is that of another certificate.
    OtherKey,
}

impl PemFault {
    fn certificate(reason: impl fmt::Display) -> Self {
        Self::Certificate(reason.to_string())
    }

    fn key(reason: impl fmt::Display) -> Self {
        Self::Key(reason.to_string())
    }
}

impl fmt::Display for PemFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(reason) => write!(f, "certificate: {reason}"),
            Self::Key(reason) => write!(f, "key: {reason}"),
            Self::OtherKey => f.write_str("key: this is not the key of the certificate"),
        }
    }
}

impl std::error::Error for PemFault {}

/// Returns `true` if the text has a private key with a passphrase (RFC 7468, section 11; RFC 1421 as OpenSSL writes
/// it).
fn is_encrypted(key: &[u8]) -> bool {
    let text = String::from_utf8_lossy(key);
    text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || text.contains("Proc-Type: 4,ENCRYPTED")
}

impl Certificate {
    /// Reads a certificate chain and its private key from PEM texts.
    ///
    /// # Errors
    /// A text is not what it should be, or the key is another certificate's.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, PemFault> {
        let chain = certificates_of(certificate).map_err(PemFault::certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            pem::Error::NoItemsFound if is_encrypted(key) => PemFault::key(
                "this private key is encrypted, but the server cannot ask for a passphrase when it starts: \
                 write it without one (`openssl pkey -in OLD -out NEW`)",
            ),
            pem::Error::NoItemsFound => PemFault::key("there is no private key in this file"),
            error => PemFault::key(error),
        })?;
        let key = default_provider().key_provider.load_private_key(key).map_err(PemFault::key)?;
        let (names, validity, issuer) = {
            let (_, parsed) = X509Certificate::from_der(&chain[0]).map_err(PemFault::certificate)?;
            (names_of(&parsed), parsed.validity().clone(), issuer_of(&parsed))
        };
        ParsedCertificate::try_from(&chain[0]).map_err(PemFault::certificate)?;
        let key = CertifiedKey::new(chain, key);
        match key.keys_match() {
            // Not all kinds of keys tell.
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(_) => return Err(PemFault::OtherKey),
        }
        Ok(Self {
            key: Arc::new(key),
            names,
            not_before_unix_seconds: validity.not_before.timestamp(),
            not_after_unix_seconds: validity.not_after.timestamp(),
            issuer,
        })
    }

    /// Returns `true` if the certificate has this name, or a wildcard for its first part (RFC 9525, section 6.3).
    pub fn is_for(&self, name: &str) -> bool {
        let below = name.split_once('.').map(|(_, parent)| parent);
        self.names.iter().any(|known| match known.strip_prefix("*.") {
            Some(parent) => below.is_some_and(|below| below.eq_ignore_ascii_case(parent)),
            None => known.eq_ignore_ascii_case(name),
        })
    }
}

impl CertificateFiles {
    /// All files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.certificate, &self.key].into_iter().chain(&self.ocsp).map(PathBuf::as_path)
    }

    /// Reads them.
    ///
    /// # Errors
    /// A file can't be read, is not what it should be, or the key is another certificate's.
    pub fn load(&self) -> Result<Certificate, CertificateError> {
        let read = |path: &Path| read_regular(path).map_err(|error| CertificateError::of_io(path, &error));
        let (certificate, key) = (read(&self.certificate)?, read(&self.key)?);
        let mut loaded = Certificate::from_pem(&certificate, &key).map_err(|fault| match fault {
            PemFault::Certificate(reason) => CertificateError::at(&self.certificate, reason),
            PemFault::Key(reason) => CertificateError::at(&self.key, reason),
            PemFault::OtherKey => {
                let reason = format!("this is not the key of {}", self.certificate.display());
                CertificateError::at(&self.key, reason)
            }
        })?;
        if let Some(ocsp) = &self.ocsp {
            let response = read_regular(ocsp).map_err(|error| CertificateError::of_io(ocsp, &error))?;
            // The file may be about to be written. A handshake cannot carry an empty response (RFC 6066, section 8).
            if response.is_empty() {
                return Err(CertificateError::at(ocsp, "there is no OCSP response in this file"));
            }
            Arc::make_mut(&mut loaded.key).ocsp = Some(response);
        }
        Ok(loaded)
    }
}

/// Reads CA certificates.
///
/// # Errors
///
/// The file cannot be read, or has no usable certificate.
pub fn load_authority(path: &Path) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| CertificateError::at(path, error))?;
    }
    Ok(roots)
}

/// CA certificates of a file, or of the system. Those of the system that cannot be parsed are not trusted.
///
/// # Errors
///
/// The file cannot be read, or has no usable certificate.
pub fn trusted_authorities(file: Option<&Path>) -> Result<RootCertStore, CertificateError> {
    if let Some(file) = file {
        return load_authority(file);
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Ok(roots)
}

/// TLS of a client that presents no certificate, and trusts the CAs of a file or of the system.
///
/// # Errors
///
/// The file cannot be read, or has no usable certificate.
pub fn tls_client_settings(file: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let roots = trusted_authorities(file).map_err(|error| error.to_string())?;
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

impl ClientCertificates {
    /// Reads the CA certificates.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has no usable certificate.
    pub fn load(&self) -> Result<RootCertStore, CertificateError> {
        load_authority(&self.authorities)
    }
}

/// All certificates of a file, of which there is at least one.
fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let text = read_regular(path).map_err(|error| CertificateError::of_io(path, &error))?;
    certificates_of(&text).map_err(|reason| CertificateError::at(path, reason))
}

/// All certificates of a PEM text, of which there is at least one.
fn certificates_of(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let none = "there is no certificate in this file".to_owned();
    match CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if certificates.is_empty() => Err(none),
        Err(pem::Error::NoItemsFound) => Err(none),
        result => result.map_err(|error| error.to_string()),
    }
}

/// Subject alternative names. The common name no longer counts (RFC 9525, section 2).
fn names_of(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let names = extension.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            // RFC 5280, section 4.2.1.6: the octets of an address.
            GeneralName::IPAddress(octets) => match octets.len() {
                4 => <[u8; 4]>::try_from(*octets).ok().map(|octets| IpAddr::from(octets).to_string()),
                _ => <[u8; 16]>::try_from(*octets).ok().map(|octets| IpAddr::from(octets).to_string()),
            },
            _ => None,
        })
        .collect()
}

/// Common name of the CA, or its whole name.
fn issuer_of(certificate: &X509Certificate<'_>) -> String {
    let issuer = certificate.issuer();
    let common = issuer.iter_common_name().find_map(|name| name.as_str().ok());
    let name = common.map_or_else(|| issuer.to_string(), str::to_owned);
    name.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_certificates() {
        let pair = rcgen::KeyPair::generate().unwrap();
        let names = ["a.example", "*.b.example", "C.example", "192.0.2.1", "2001:db8::1"].map(str::to_owned);
        let certificate = rcgen::CertificateParams::new(names.to_vec()).unwrap().self_signed(&pair).unwrap();
        let directory = tempfile::tempdir().unwrap();
        // Both in one file.
        let path = directory.path().join("both.pem");
        std::fs::write(&path, pair.serialize_pem() + &certificate.pem()).unwrap();
        let certificate = CertificateFiles { certificate: path.clone(), key: path, ocsp: None }.load().unwrap();
        for (name, expect) in [
            ("a.example", true),
            ("A.Example", true),
            ("x.b.example", true),
            ("192.0.2.1", true),
            ("2001:db8::1", true),
            ("192.0.2.2", false),
            ("b.example", false),
            ("x.y.b.example", false),
            ("c.example", true),
            ("*.b.example", true),
            ("example", false),
            ("", false),
        ] {
            assert_eq!(certificate.is_for(name), expect, "{name}");
        }
    }
}
