//! TLS of QUIC connections (RFC 9001). The client's server name selects the site, as over TCP.

use std::any::Any;
use std::io::Cursor;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{KeyChange, ServerConnection, Version};
use rustls::server::{Acceptor, NoServerSessionStorage};
use rustls::{HandshakeKind, ServerConfig as TlsSettings};

use super::early_sessions::{EarlySessions, NoTickets};
use super::quic_keys::NextKeys;
use super::{ListenerTls, SiteMark, TlsInfo, subject};

/// HTTP/3 (RFC 9114, section 3.1).
const HTTP3: &[u8] = b"h3";

/// Maximum length of a ClientHello, in bytes. It is kept until it is complete. Real clients send about two thousand.
const HELLO_BYTES_MAX: usize = 16 << 10;

/// Largest payload of a TLS record (RFC 8446, section 5.1).
const RECORD_BYTES_MAX: usize = 16 << 10;

/// Tickets for early data that a client gets on a connection. Each is used once, and a browser may open two connections.
const EARLY_TICKETS: usize = 2;

/// Value of a setting of TLS that means early data in QUIC (RFC 9001, section 4.6.1).
const EARLY_DATA: u32 = u32::MAX;

/// Alert for a message that came too late (RFC 8446, section 6).
const UNEXPECTED_MESSAGE: u8 = 10;

/// Alert for a message that can't be decoded (RFC 8446, section 6).
const DECODE_ERROR: u8 = 50;

/// Alert for a site without HTTP/3 (RFC 7301, section 3.2).
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// Fingerprint of a ClientHello; `None` if it has none.
pub type HelloFingerprint = fn(&[u8]) -> Option<String>;

/// TLS of a listener, in the form for QUIC.
pub struct QuicTls {
    tls: Arc<ListenerTls>,
    /// Computes fingerprints; `None` if they are not wanted.
    fingerprint: Option<HelloFingerprint>,
    /// Address that the client has connected to, if it may select a site.
    local: Option<IpAddr>,
}

/// Settings of a site for QUIC.
#[derive(Clone)]
pub(super) struct QuicSite {
    settings: Arc<TlsSettings>,
    /// Settings for keys before the site is known. They are the same for all sites.
    initial: Arc<QuicServerConfig>,
}

/// Handshake of a connection, and what is needed of it later.
struct SiteSession {
    initial: Arc<QuicServerConfig>,
    stage: Stage,
    next_keys: Option<NextKeys>,
}

enum Stage {
    AwaitHello(Box<HelloReader>),
    Handshake(Box<Handshake>),
    /// The handshake is complete, and its state is freed.
    Done(Box<QuicHandshake>),
}

/// Reader of a ClientHello, before the site is known.
struct HelloReader {
    tls: Arc<ListenerTls>,
    parameters: TransportParameters,
    acceptor: Acceptor,
    /// ClientHello as far as it has arrived.
    hello: Vec<u8>,
    fingerprint: Option<HelloFingerprint>,
    local: Option<IpAddr>,
}

struct Handshake {
    connection: ServerConnection,
    site: SiteMark,
    /// JA4 fingerprint of the ClientHello.
    ja4: Option<Box<str>>,
    /// True if the engine knows that the parameters are there.
    is_told: bool,
}

/// Result of a handshake.
#[derive(Clone, Debug)]
pub struct QuicHandshake {
    /// Parameters of the connection.
    pub info: TlsInfo,
    /// True if a session was resumed.
    pub is_resumed: bool,
}

/// Settings of a site for QUIC; `None` if its cipher suites are of TLS 1.2 only. With `early`, clients may send early
/// data.
pub(super) fn quic_settings(settings: &TlsSettings, early: Option<&Arc<EarlySessions>>) -> Option<QuicSite> {
    let is_tls13 = |suite: &rustls::SupportedCipherSuite| suite.tls13().is_some();
    if !settings.crypto_provider().cipher_suites.iter().any(is_tls13) {
        return None;
    }
    let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite())?;
    let mut settings = settings.clone();
    settings.alpn_protocols = vec![HTTP3.to_vec()];
    if let Some(early) = early {
        settings.ticketer = Arc::new(NoTickets);
        settings.session_storage = Arc::clone(early) as _;
        settings.max_early_data_size = EARLY_DATA;
        settings.send_tls13_tickets = EARLY_TICKETS;
    } else {
        settings.session_storage = Arc::new(NoServerSessionStorage {});
    }
    let settings = Arc::new(settings);
    let initial = Arc::new(QuicServerConfig::with_initial(Arc::clone(&settings), suite).ok()?);
    Some(QuicSite { settings, initial })
}

impl QuicTls {
    /// Makes the TLS of a listener; `None` if its default site has no HTTP/3.
    pub fn new(tls: Arc<ListenerTls>, fingerprint: Option<HelloFingerprint>) -> Option<Self> {
        tls.find(None, || None).quic().map(|_| Self { tls, fingerprint, local: None })
    }

    /// Copy for a client that has connected to this address; `None` if the address selects no site.
    pub fn at(&self, local: Option<IpAddr>) -> Option<Self> {
        let local = local.filter(|_| self.tls.has_addresses())?;
        Some(Self { tls: Arc::clone(&self.tls), fingerprint: self.fingerprint, local: Some(local) })
    }

    fn initial(&self) -> Arc<QuicServerConfig> {
        // Local invariant: the constructor has looked, and the certificates that replace others have the same versions.
        self.tls.find(None, || None).quic().expect("the default site has HTTP/3").initial
    }
}

impl ServerConfig for QuicTls {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.initial().initial_keys(version, id)
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.initial().retry_tag(version, id, packet)
    }

    fn start_session(self: Arc<Self>, _: u32, parameters: &TransportParameters) -> Box<dyn Session> {
        let reader = HelloReader {
            tls: Arc::clone(&self.tls),
            parameters: *parameters,
            acceptor: Acceptor::default(),
            hello: Vec::new(),
            fingerprint: self.fingerprint,
            local: self.local,
        };
        Box::new(SiteSession { initial: self.initial(), stage: Stage::AwaitHello(Box::new(reader)), next_keys: None })
    }
}

impl HelloReader {
    /// Reads a part of the ClientHello. When it is complete, the site is known.
    fn read(&mut self, bytes: &[u8]) -> Result<Option<Handshake>, TransportError> {
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
            Ok(None) => return Ok(None),
            Err((error, _)) => return Err(alert(DECODE_ERROR, &error.to_string())),
        };
        let site = self.tls.find(name.as_deref(), || self.local);
        let settings = site.quic().ok_or_else(|| alert(NO_APPLICATION_PROTOCOL, "the site has no HTTP/3"))?.settings;
        let mut parameters = Vec::new();
        self.parameters.write(&mut parameters);
        let connection = ServerConnection::new(settings, Version::V1, parameters)
            .map_err(|error| TransportError { reason: error.to_string(), ..internal_error() })?;
        let ja4 = self.fingerprint.and_then(|fingerprint| fingerprint(&self.hello)).map(Into::into);
        let mut handshake = Handshake { connection, site: site.mark(), ja4, is_told: false };
        handshake.read(&self.hello)?;
        Ok(Some(handshake))
    }
}

impl Handshake {
    fn read(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let read = self.connection.read_hs(bytes);
        read.map_err(|error| match self.connection.alert() {
            Some(code) => alert(code.into(), &error.to_string()),
            None => TransportError { reason: error.to_string(), ..internal_error() },
        })
    }

    /// True when the client's first message is processed, for the first call.
    fn tell(&mut self) -> bool {
        let has_parameters = self.connection.alpn_protocol().is_some();
        has_parameters && !std::mem::replace(&mut self.is_told, true)
    }

    fn result(&self) -> Option<QuicHandshake> {
        let connection = &self.connection;
        let suite = connection.negotiated_cipher_suite()?.suite().as_str();
        let client =
            connection.peer_certificates().and_then(|chain| chain.first()).filter(|_| self.site.verifies_clients);
        let info = TlsInfo {
            version: "TLSv1.3",
            cipher_suite: suite.unwrap_or_default(),
            server_name: connection.server_name().map(|name| name.to_ascii_lowercase().into()),
            client_subject: client.and_then(|certificate| subject::subject_of(certificate)).map(Into::into),
            site: self.site.id,
            is_http2: false,
            has_http3: true,
            ja4: self.ja4.clone(),
            http2: OnceLock::new(),
        };
        Some(QuicHandshake { info, is_resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed) })
    }
}

fn alert(code: u8, reason: &str) -> TransportError {
    TransportError { code: TransportErrorCode::crypto(code), frame: None, reason: reason.to_owned() }
}

fn internal_error() -> TransportError {
    TransportError { code: TransportErrorCode::INTERNAL_ERROR, frame: None, reason: String::new() }
}

impl SiteSession {
    fn connection(&self) -> Option<&ServerConnection> {
        match &self.stage {
            Stage::Handshake(handshake) => Some(&handshake.connection),
            Stage::AwaitHello(_) | Stage::Done(_) => None,
        }
    }
}

impl Session for SiteSession {
    fn initial_keys(&self, id: &ConnectionId, _: Side) -> Keys {
        // Local invariant: the engine has checked the version with the first packet, and it supports only one.
        self.initial.initial_keys(1, id).expect("the version is supported")
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let result = match &self.stage {
            Stage::AwaitHello(_) => None,
            Stage::Handshake(handshake) => handshake.result(),
            Stage::Done(result) => Some(QuicHandshake::clone(result)),
        };
        result.map(|result| Box::new(result) as _)
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        // The handshake data has it.
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.connection()?.zero_rtt_keys()?;
        Some((Box::new(keys.header), Box::new(keys.packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        match &self.stage {
            Stage::AwaitHello(_) => true,
            Stage::Handshake(handshake) => handshake.connection.is_handshaking(),
            Stage::Done(_) => false,
        }
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        match &mut self.stage {
            Stage::AwaitHello(reader) => {
                let Some(mut handshake) = reader.read(bytes)? else { return Ok(false) };
                let is_news = handshake.tell();
                self.stage = Stage::Handshake(Box::new(handshake));
                Ok(is_news)
            }
            Stage::Handshake(handshake) => {
                handshake.read(bytes)?;
                Ok(handshake.tell())
            }
            // Clients have nothing to say after it (RFC 9001, section 6: no KeyUpdate).
            Stage::Done(_) => Err(alert(UNEXPECTED_MESSAGE, "the handshake is complete")),
        }
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(bytes) = self.connection().and_then(|connection| connection.quic_transport_parameters()) else {
            return Ok(None);
        };
        Ok(Some(TransportParameters::read(Side::Server, &mut Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, output: &mut Vec<u8>) -> Option<Keys> {
        let Stage::Handshake(handshake) = &mut self.stage else { return None };
        let before = output.len();
        let keys = match handshake.connection.write_hs(output) {
            Some(KeyChange::Handshake { keys }) => keys,
            Some(KeyChange::OneRtt { keys, next }) => {
                self.next_keys = Some(NextKeys::new(next));
                keys
            }
            None => {
                // The engine calls until there is no more output.
                if output.len() == before && !handshake.connection.is_handshaking() {
                    self.stage = Stage::Done(Box::new(handshake.result()?));
                }
                return None;
            }
        };
        Some(Keys {
            header: KeyPair { local: Box::new(keys.local.header), remote: Box::new(keys.remote.header) },
            packet: KeyPair { local: Box::new(keys.local.packet), remote: Box::new(keys.remote.packet) },
        })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.next_keys.as_mut().map(NextKeys::take)
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // Only clients get Retry packets.
        false
    }

    fn export_keying_material(&self, _: &mut [u8], _: &[u8], _: &[u8]) -> Result<(), ExportKeyingMaterialError> {
        // HTTP/3 needs none.
        Err(ExportKeyingMaterialError)
    }
}

impl QuicHandshake {
    /// Result of the handshake of a connection; `None` before the client's first message is complete. The client's
    /// certificate is known at the end.
    pub fn of(session: &dyn Session) -> Option<Self> {
        session.handshake_data()?.downcast::<Self>().ok().map(|result| *result)
    }
}
