//! Certificates, and a TLS client.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, NamedGroup, RootCertStore, StreamOwned, SupportedProtocolVersion};

use super::TestServer;

/// Certificate authority (CA) of a test.
pub(crate) struct TestCa(CertifiedIssuer<'static, KeyPair>);

/// Certificate and its key, as PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl TestCa {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Test authority");
        let key = KeyPair::generate().expect("a key can be made");
        Self(CertifiedIssuer::self_signed(params, key).expect("it can be signed"))
    }

    /// Certificate of the CA itself, as PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Signs a certificate for these names; the first is the common name, too.
    pub(crate) fn sign(&self, names: &[&str]) -> Pair {
        self.sign_key(names, &KeyPair::generate().expect("a key can be made"))
    }

    /// Signs a certificate that is valid from the first day of one year to the first day of another.
    pub(crate) fn sign_for(&self, names: &[&str], from: i32, to: i32) -> Pair {
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = params_of(names);
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let certificate = params.signed_by(&key, &self.0).expect("it can be signed");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Signs a certificate with an RSA key.
    pub(crate) fn sign_rsa(&self, names: &[&str]) -> Pair {
        let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048);
        self.sign_key(names, &key.expect("a key can be made"))
    }

    fn sign_key(&self, names: &[&str], key: &KeyPair) -> Pair {
        let certificate = params_of(names).signed_by(key, &self.0).expect("it can be signed");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Client configuration that trusts the CA; it presents the certificate `own`, if given.
    pub(crate) fn client(&self, own: Option<&Pair>) -> ClientConfig {
        self.client_of(rustls::DEFAULT_VERSIONS, own)
    }

    /// Client configuration for these TLS versions.
    pub(crate) fn client_of(&self, versions: &[&'static SupportedProtocolVersion], own: Option<&Pair>) -> ClientConfig {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        // Same preference as browsers.
        provider.kx_groups.sort_by_key(|group| group.name() != NamedGroup::X25519MLKEM768);
        self.client_with(provider, versions, own)
    }

    /// Client configuration with only the cipher suites and groups of `provider`.
    pub(crate) fn client_with(
        &self,
        provider: CryptoProvider,
        versions: &[&'static SupportedProtocolVersion],
        own: Option<&Pair>,
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(self.pem().as_bytes()).expect("it is PEM");
        roots.add(certificate).expect("it can be trusted");
        let builder = ClientConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(versions);
        let builder = builder.expect("there are versions").with_root_certificates(roots);
        match own {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).map(|one| one.expect("PEM"));
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("it is PEM");
                builder.with_client_auth_cert(chain.collect(), key).expect("they fit")
            }
        }
    }
}

/// Certificate request for these names; the first is the common name, too.
fn params_of(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names.clone()).expect("names are good");
    params.distinguished_name.push(DnType::CommonName, names[0].clone());
    params
}

impl Pair {
    /// Writes `NAME.pem` and `NAME.key` into a directory.
    pub(crate) fn write(&self, directory: &Path, name: &str) {
        for (extension, text) in [("key", &self.key), ("pem", &self.certificate)] {
            std::fs::write(directory.join(format!("{name}.{extension}")), text).expect("it can be written");
        }
    }
}

/// TLS connection.
pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Opens a connection and performs the handshake.
pub(crate) fn connect(server: &TestServer, client: &Arc<ClientConfig>, name: &str) -> io::Result<TlsStream> {
    handshake(server.connect(), client, name)
}

/// Performs the handshake on a connection.
pub(crate) fn handshake(socket: TcpStream, client: &Arc<ClientConfig>, name: &str) -> io::Result<TlsStream> {
    let name = ServerName::try_from(name.to_owned()).expect("it is a name");
    let session = ClientConnection::new(Arc::clone(client), name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(session, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

/// Sends the last request of a connection, and reads the response.
pub(crate) fn ask(stream: &mut TlsStream, request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
