//! TLS of the tests: one certificate, sessions that may be resumed, and early data.

use std::sync::{Arc, OnceLock};

use quinn_proto::crypto::rustls::QuicClientConfig;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::quic::{DirectionalKeys, KeyChange, Keys, ServerConnection, Suite, Version};
use rustls::{ClientConfig, RootCertStore, ServerConfig, Side};
use tailcoat_quic::{ConnectionId, TlsServer, TlsSession, TransportError};

pub(crate) const NAME: &str = "localhost";
pub(crate) const PROTOCOL: &[u8] = b"test";

fn certificate() -> &'static (CertificateDer<'static>, PrivateKeyDer<'static>) {
    static CERTIFICATE: OnceLock<(CertificateDer<'static>, PrivateKeyDer<'static>)> = OnceLock::new();
    CERTIFICATE.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        (made.cert.der().clone(), PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap())
    })
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

pub(crate) fn initial_suite() -> Suite {
    TLS13_AES_128_GCM_SHA256.tls13().unwrap().quic_suite().unwrap()
}

/// Settings of the clients. A large first message names many protocols.
pub(crate) fn client_tls(is_large: bool) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(certificate().0.clone()).unwrap();
    let versions = [&rustls::version::TLS13];
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&versions).unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    // With both, quinn does not send a lost part of its first message again while its window is full of early data.
    config.enable_early_data = !is_large;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    if is_large {
        config.alpn_protocols.extend((0..30).map(|number| vec![b'a' + number; 200]));
    }
    config
}

pub(crate) fn quinn_tls(config: &ClientConfig) -> Arc<QuicClientConfig> {
    Arc::new(QuicClientConfig::try_from(config.clone()).unwrap())
}

/// TLS of the server.
pub(crate) struct Server {
    config: Arc<ServerConfig>,
}

impl Server {
    pub(crate) fn new() -> Self {
        let versions = [&rustls::version::TLS13];
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&versions).unwrap();
        let (chain, key) = certificate();
        let mut config = builder.with_no_client_auth().with_single_cert(vec![chain.clone()], key.clone_key()).unwrap();
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.max_early_data_size = u32::MAX;
        Self { config: Arc::new(config) }
    }
}

struct Session(ServerConnection);

impl TlsServer for Server {
    fn initial_keys(&self, id: &ConnectionId) -> Keys {
        initial_suite().keys(id, Side::Server, Version::V1)
    }

    fn start(&self, parameters: Vec<u8>) -> Box<dyn TlsSession> {
        Box::new(Session(ServerConnection::new(Arc::clone(&self.config), Version::V1, parameters).unwrap()))
    }
}

impl TlsSession for Session {
    fn read(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let read = self.0.read_hs(bytes);
        read.map_err(|error| match self.0.alert() {
            Some(code) => TransportError::alert(code.into(), error.to_string()),
            None => TransportError::internal(error.to_string()),
        })
    }

    fn write(&mut self, out: &mut Vec<u8>) -> Option<KeyChange> {
        self.0.write_hs(out)
    }

    fn early_keys(&self) -> Option<DirectionalKeys> {
        self.0.zero_rtt_keys()
    }

    fn peer_parameters(&self) -> Option<&[u8]> {
        self.0.quic_transport_parameters()
    }

    fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }
}
