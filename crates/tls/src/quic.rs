//! TLS of QUIC connections (RFC 9001). The client's server name selects the site, as over TCP.

use std::any::Any;
use std::sync::Arc;

use quinn_proto::crypto::rustls::{HandshakeData, QuicServerConfig};
use quinn_proto::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::ServerConfig as TlsSettings;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::CertificateDer;
use rustls::server::Acceptor;

use super::{ListenerTls, TlsInfo, subject};

/// HTTP/3 (RFC 9114, section 3.1).
const HTTP3: &[u8] = b"h3";

/// Maximum length of a ClientHello, in bytes. It is kept until it is complete. Real clients send about two thousand.
const HELLO_BYTES_MAX: usize = 16 << 10;

/// Largest payload of a TLS record (RFC 8446, section 5.1).
const RECORD_BYTES_MAX: usize = 16 << 10;

/// Alert for a message that can't be decoded (RFC 8446, section 6).
const DECODE_ERROR: u8 = 50;

/// Alert for a site without HTTP/3 (RFC 7301, section 3.2).
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// TLS of a listener, in the form for QUIC.
pub struct QuicTls(Arc<ListenerTls>);

/// Handshake of a connection.
struct SiteSession {
    tls: Arc<ListenerTls>,
    version: u32,
    parameters: TransportParameters,
    /// Settings for keys before the site is known. They are the same for all sites.
    any: Arc<QuicServerConfig>,
    acceptor: Acceptor,
    /// ClientHello as far as it has arrived.
    hello: Vec<u8>,
    chosen: Option<ChosenSite>,
}

struct ChosenSite {
    session: Box<dyn Session>,
    site: u32,
}

/// Result of the handshake, for [`TlsInfo::of_quic`].
struct QuicHandshake {
    site: u32,
    server_name: Option<String>,
}

/// Settings of a site for QUIC; `None` if its cipher suites are of TLS 1.2 only.
pub(super) fn quic_settings(settings: &TlsSettings) -> Option<Arc<QuicServerConfig>> {
    let is_tls13 = |suite: &rustls::SupportedCipherSuite| suite.tls13().is_some();
    if !settings.crypto_provider().cipher_suites.iter().any(is_tls13) {
        return None;
    }
    let initial = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite())?;
    let mut settings = settings.clone();
    settings.alpn_protocols = vec![HTTP3.to_vec()];
    QuicServerConfig::with_initial(Arc::new(settings), initial).ok().map(Arc::new)
}

impl QuicTls {
    /// Makes the TLS of a listener; `None` if its default site has no HTTP/3.
    pub fn new(tls: Arc<ListenerTls>) -> Option<Self> {
        tls.find(None).quic().map(|_| Self(tls))
    }

    fn any(&self) -> Arc<QuicServerConfig> {
        // Local invariant: the constructor has looked, and the certificates that replace others have the same versions.
        self.0.find(None).quic().expect("the default site has HTTP/3")
    }
}

impl ServerConfig for QuicTls {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.any().initial_keys(version, id)
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.any().retry_tag(version, id, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, parameters: &TransportParameters) -> Box<dyn Session> {
        Box::new(SiteSession {
            tls: Arc::clone(&self.0),
            version,
            parameters: *parameters,
            any: self.any(),
            acceptor: Acceptor::default(),
            hello: Vec::new(),
            chosen: None,
        })
    }
}

impl SiteSession {
    fn chosen(&self) -> Option<&dyn Session> {
        self.chosen.as_ref().map(|chosen| &*chosen.session)
    }

    fn chosen_mut(&mut self) -> Option<&mut Box<dyn Session>> {
        self.chosen.as_mut().map(|chosen| &mut chosen.session)
    }

    /// Reads a part of the ClientHello. When it is complete, the site is known.
    fn read_hello(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.hello.extend_from_slice(bytes);
        if self.hello.len() > HELLO_BYTES_MAX {
            return Err(alert(DECODE_ERROR, "ClientHello too long"));
        }
        for part in bytes.chunks(RECORD_BYTES_MAX) {
            // The acceptor reads records, which QUIC does not have.
            let length = (part.len() as u16).to_be_bytes();
            let record = [&[0x16, 3, 1, length[0], length[1]], part].concat();
            let mut rest = &record[..];
            while !rest.is_empty() {
                let count = self.acceptor.read_tls(&mut rest);
                if !count.is_ok_and(|count| count > 0) {
                    return Err(alert(DECODE_ERROR, "malformed ClientHello"));
                }
            }
        }
        let name = match self.acceptor.accept() {
            Ok(Some(accepted)) => accepted.client_hello().server_name().map(str::to_ascii_lowercase),
            Ok(None) => return Ok(false),
            Err((error, _)) => return Err(alert(DECODE_ERROR, &error.to_string())),
        };
        let site = self.tls.find(name.as_deref());
        let settings = site.quic().ok_or_else(|| alert(NO_APPLICATION_PROTOCOL, "the site has no HTTP/3"))?;
        let session = settings.start_session(self.version, &self.parameters);
        let chosen = self.chosen.insert(ChosenSite { session, site: site.id });
        chosen.session.read_handshake(&std::mem::take(&mut self.hello))
    }
}

fn alert(code: u8, reason: &str) -> TransportError {
    TransportError { code: TransportErrorCode::crypto(code), frame: None, reason: reason.to_owned() }
}

impl Session for SiteSession {
    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        match self.chosen() {
            Some(session) => session.initial_keys(id, side),
            // Local invariant: the engine has checked the version with the first packet.
            None => self.any.initial_keys(self.version, id).expect("the version is supported"),
        }
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let chosen = self.chosen.as_ref()?;
        let data = chosen.session.handshake_data()?.downcast::<HandshakeData>().ok()?;
        Some(Box::new(QuicHandshake { site: chosen.site, server_name: data.server_name }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.chosen()?.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.chosen()?.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.chosen()?.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.chosen().is_none_or(|session| session.is_handshaking())
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        match self.chosen_mut() {
            Some(session) => session.read_handshake(bytes),
            None => self.read_hello(bytes),
        }
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.chosen().map_or(Ok(None), |session| session.transport_parameters())
    }

    fn write_handshake(&mut self, output: &mut Vec<u8>) -> Option<Keys> {
        self.chosen_mut()?.write_handshake(output)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.chosen_mut()?.next_1rtt_keys()
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // Only clients get Retry packets.
        false
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.chosen().ok_or(ExportKeyingMaterialError)?.export_keying_material(output, label, context)
    }
}

impl TlsInfo {
    /// Parameters of a QUIC connection after its handshake; `None` before.
    pub fn of_quic(session: &dyn Session) -> Option<Self> {
        let handshake = session.handshake_data()?.downcast::<QuicHandshake>().ok()?;
        let chain = session.peer_identity().and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
        let client = chain.as_ref().and_then(|chain| chain.first());
        Some(Self {
            version: "TLSv1.3",
            // The QUIC engine does not tell it.
            cipher_suite: "",
            server_name: handshake.server_name.map(Into::into),
            client_subject: client.and_then(|certificate| subject::subject_of(certificate)).map(Into::into),
            site: handshake.site,
            is_http2: false,
            has_http3: true,
        })
    }
}
