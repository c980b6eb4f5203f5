//! TLS of QUIC connections (RFC 9001). The client's server name selects the site, as over TCP.

use std::any::Any;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{DirectionalKeys, KeyChange, Keys, ServerConnection, Suite, Version};
use rustls::server::{Acceptor, NoServerSessionStorage};
use rustls::{HandshakeKind, ServerConfig as TlsSettings, Side};
use tailcoat_quic::{ConnectionId, TlsServer, TlsSession, TransportError};

use super::early_sessions::{EarlySessions, NoTickets};
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

/// Alert for a message that can't be decoded (RFC 8446, section 6).
const DECODE_ERROR: u8 = 50;

/// Alert for a site without HTTP/3 (RFC 7301, section 3.2).
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// Fingerprint of a ClientHello; `None` if it has none.
pub type HelloFingerprint = fn(&[u8]) -> Option<String>;

/// TLS of a listener, in the form for QUIC.
pub struct QuicTls {
    tls: Arc<ListenerTls>,
    /// Cipher suite of Initial packets. Their keys are the same for all sites.
    initial: Suite,
    /// Computes fingerprints; `None` if they are not wanted.
    fingerprint: Option<HelloFingerprint>,
    /// Address that the client has connected to, if it may select a site.
    local: Option<IpAddr>,
}

/// Handshake of a connection.
enum SiteSession {
    AwaitHello(Box<HelloReader>),
    Handshake(Box<Handshake>),
}

/// Reader of a ClientHello, before the site is known.
struct HelloReader {
    tls: Arc<ListenerTls>,
    /// Encoded transport parameters of the server.
    parameters: Vec<u8>,
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
pub(super) fn quic_settings(settings: &TlsSettings, early: Option<&Arc<EarlySessions>>) -> Option<Arc<TlsSettings>> {
    let is_tls13 = |suite: &rustls::SupportedCipherSuite| suite.tls13().is_some();
    if !settings.crypto_provider().cipher_suites.iter().any(is_tls13) {
        return None;
    }
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
    Some(Arc::new(settings))
}

impl QuicTls {
    /// Makes the TLS of a listener, of whose sites one has HTTP/3. `None` if the library lacks the keys of first packets.
    pub fn new(tls: Arc<ListenerTls>, fingerprint: Option<HelloFingerprint>) -> Option<Self> {
        let initial = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite())?;
        Some(Self { tls, initial, fingerprint, local: None })
    }

    /// Copy for a client that has connected to this address; `None` if the address selects no site.
    pub fn at(&self, local: Option<IpAddr>) -> Option<Self> {
        let local = local.filter(|_| self.tls.has_addresses())?;
        let Self { initial, fingerprint, .. } = *self;
        Some(Self { tls: Arc::clone(&self.tls), initial, fingerprint, local: Some(local) })
    }
}

impl TlsServer for QuicTls {
    fn initial_keys(&self, id: &ConnectionId) -> Keys {
        self.initial.keys(id, Side::Server, Version::V1)
    }

    fn start(&self, parameters: Vec<u8>) -> Box<dyn TlsSession> {
        let reader = HelloReader {
            tls: Arc::clone(&self.tls),
            parameters,
            acceptor: Acceptor::default(),
            hello: Vec::new(),
            fingerprint: self.fingerprint,
            local: self.local,
        };
        Box::new(SiteSession::AwaitHello(Box::new(reader)))
    }
}

impl HelloReader {
    /// Reads a part of the ClientHello. When it is complete, the site is known.
    fn read(&mut self, bytes: &[u8]) -> Result<Option<Handshake>, TransportError> {
        self.hello.extend_from_slice(bytes);
        if self.hello.len() > HELLO_BYTES_MAX {
            return Err(TransportError::alert(DECODE_ERROR, "ClientHello too long"));
        }
        for part in bytes.chunks(RECORD_BYTES_MAX) {
            // The acceptor reads records, which QUIC does not have.
            let length = (part.len() as u16).to_be_bytes();
            let record = [&[0x16, 3, 1, length[0], length[1]], part].concat();
            let mut rest = &record[..];
            while !rest.is_empty() {
                let count = self.acceptor.read_tls(&mut rest);
                if !count.is_ok_and(|count| count > 0) {
                    return Err(TransportError::alert(DECODE_ERROR, "malformed ClientHello"));
                }
            }
        }
        let name = match self.acceptor.accept() {
            Ok(Some(accepted)) => accepted.client_hello().server_name().map(str::to_ascii_lowercase),
            Ok(None) => return Ok(None),
            Err((error, _)) => return Err(TransportError::alert(DECODE_ERROR, error.to_string())),
        };
        let site = self.tls.find(name.as_deref(), || self.local);
        let has_none = || TransportError::alert(NO_APPLICATION_PROTOCOL, "the site has no HTTP/3");
        let settings = site.quic().ok_or_else(has_none)?;
        let parameters = std::mem::take(&mut self.parameters);
        let connection = ServerConnection::new(settings, Version::V1, parameters)
            .map_err(|error| TransportError::internal(error.to_string()))?;
        let ja4 = self.fingerprint.and_then(|fingerprint| fingerprint(&self.hello)).map(Into::into);
        let mut handshake = Handshake { connection, site: site.mark(), ja4 };
        handshake.read(&self.hello)?;
        Ok(Some(handshake))
    }
}

impl Handshake {
    fn read(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let read = self.connection.read_hs(bytes);
        read.map_err(|error| match self.connection.alert() {
            Some(code) => TransportError::alert(code.into(), error.to_string()),
            None => TransportError::internal(error.to_string()),
        })
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

impl SiteSession {
    fn handshake(&self) -> Option<&Handshake> {
        match self {
            Self::AwaitHello(_) => None,
            Self::Handshake(handshake) => Some(handshake),
        }
    }
}

impl TlsSession for SiteSession {
    fn read(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        match self {
            Self::AwaitHello(reader) => {
                if let Some(handshake) = reader.read(bytes)? {
                    *self = Self::Handshake(Box::new(handshake));
                }
                Ok(())
            }
            Self::Handshake(handshake) => handshake.read(bytes),
        }
    }

    fn write(&mut self, out: &mut Vec<u8>) -> Option<KeyChange> {
        match self {
            Self::AwaitHello(_) => None,
            Self::Handshake(handshake) => handshake.connection.write_hs(out),
        }
    }

    fn early_keys(&self) -> Option<DirectionalKeys> {
        self.handshake()?.connection.zero_rtt_keys()
    }

    fn peer_parameters(&self) -> Option<&[u8]> {
        self.handshake()?.connection.quic_transport_parameters()
    }

    fn is_handshaking(&self) -> bool {
        self.handshake().is_none_or(|handshake| handshake.connection.is_handshaking())
    }
}

impl QuicHandshake {
    /// Result of the handshake of a connection; `None` before the client's first message is complete. The client's
    /// certificate is known at the end.
    pub fn of(session: &dyn TlsSession) -> Option<Self> {
        let session: &dyn Any = session;
        session.downcast_ref::<SiteSession>()?.handshake()?.result()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use rustls::quic::ClientConnection;
    use rustls::{ClientConfig, RootCertStore};

    use super::*;
    use crate::AllTls;
    use crate::config::{CertificateFiles, Config, HostPattern, Listen, SiteConfig, Tls};

    const SERVER_PARAMETERS: &[u8] = &[4, 1, 9];
    const CLIENT_PARAMETERS: &[u8] = &[4, 1, 7];

    /// TLS of a site with a certificate of its own, and a client that trusts it.
    struct Site {
        tls: QuicTls,
        roots: RootCertStore,
    }

    impl Site {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let [certificate, key] = ["pem", "key"].map(|name| directory.path().join("a").with_extension(name));
            let pair = KeyPair::generate().unwrap();
            let signed = CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&pair).unwrap();
            std::fs::write(&certificate, signed.pem()).unwrap();
            std::fs::write(&key, pair.serialize_pem()).unwrap();
            let listen = Listen::Tcp(([0, 0, 0, 0], 443).into());
            let site = SiteConfig {
                names: vec![HostPattern::Exact("a.example".into())],
                tls_listen: vec![listen.clone()],
                tls: Tls { certificates: vec![CertificateFiles { certificate, key, ocsp: None }], ..Tls::default() },
                ..SiteConfig::default()
            };
            let config = Config { sites: vec![Arc::new(site)], ..Config::default() };
            let tickets = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
            let all = AllTls::new(&config, &tickets, None).unwrap();
            let listener = Arc::clone(&all.listeners(&config)[&listen]);
            let mut roots = RootCertStore::empty();
            roots.add(signed.der().clone()).unwrap();
            let fingerprint: HelloFingerprint = |hello| Some(format!("{} bytes", hello.len()));
            Self { tls: QuicTls::new(listener, Some(fingerprint)).unwrap(), roots }
        }

        fn client(&self, protocol: &[u8]) -> ClientConnection {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let builder =
                ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
            let mut config = builder.unwrap().with_root_certificates(self.roots.clone()).with_no_client_auth();
            config.alpn_protocols = vec![protocol.to_vec()];
            let name = "a.example".try_into().unwrap();
            ClientConnection::new(Arc::new(config), Version::V1, name, CLIENT_PARAMETERS.to_vec()).unwrap()
        }
    }

    /// Output at each level. A change of keys begins the next one.
    fn output_of(mut write: impl FnMut(&mut Vec<u8>) -> Option<KeyChange>) -> (Vec<Vec<u8>>, Vec<KeyChange>) {
        let (mut levels, mut changes) = (vec![Vec::new()], Vec::new());
        loop {
            let level = levels.last_mut().unwrap();
            let before = level.len();
            match write(level) {
                Some(change) => {
                    changes.push(change);
                    levels.push(Vec::new());
                }
                None if level.len() == before => return (levels, changes),
                None => {}
            }
        }
    }

    fn hello_of(client: &mut ClientConnection) -> Vec<u8> {
        let mut hello = Vec::new();
        assert!(client.write_hs(&mut hello).is_none());
        hello
    }

    #[test]
    fn a_handshake_gives_parameters_and_keys() {
        let site = Site::new();
        let mut client = site.client(HTTP3);
        let mut session = site.tls.start(SERVER_PARAMETERS.to_vec());
        let hello = hello_of(&mut client);
        for part in hello.chunks(100) {
            assert!(session.peer_parameters().is_none() && session.is_handshaking());
            assert!(QuicHandshake::of(&*session).is_none());
            assert!(session.write(&mut Vec::new()).is_none());
            session.read(part).unwrap();
        }
        assert_eq!(session.peer_parameters(), Some(CLIENT_PARAMETERS));
        assert!(session.early_keys().is_none());
        let (levels, changes) = output_of(|out| session.write(out));
        assert!(matches!(&changes[..], [KeyChange::Handshake { .. }, KeyChange::OneRtt { .. }]));
        for level in &levels[..2] {
            client.read_hs(level).unwrap();
        }
        assert_eq!(client.quic_transport_parameters(), Some(SERVER_PARAMETERS));
        session.read(&output_of(|out| client.write_hs(out)).0.concat()).unwrap();
        assert!(!session.is_handshaking());
        let handshake = QuicHandshake::of(&*session).unwrap();
        assert_eq!(handshake.info.server_name.as_deref(), Some("a.example"));
        assert_eq!(handshake.info.ja4.as_deref(), Some(&*format!("{} bytes", hello.len())));
        assert!(!handshake.is_resumed);
        assert!(!output_of(|out| session.write(out)).0.concat().is_empty(), "tickets follow");
    }

    #[test]
    fn bad_messages_are_alerts() {
        let site = Site::new();
        let mut session = site.tls.start(Vec::new());
        let hello = hello_of(&mut site.client(b"other"));
        let no_protocol = session.read(&hello).unwrap_err();
        let malformed = site.tls.start(Vec::new()).read(&[2; 100]).unwrap_err();
        let mut endless = site.tls.start(Vec::new());
        let mut too_long = endless.read(&[1, 0, 0xff, 0xff]);
        for _ in 0..=HELLO_BYTES_MAX / 1_000 {
            too_long = too_long.and_then(|()| endless.read(&[0; 1_000]));
        }
        let codes = [no_protocol, malformed, too_long.unwrap_err()].map(|error| error.code);
        assert_eq!(codes, [0x178, 0x132, 0x132]);
    }

    #[test]
    fn initial_keys_are_those_of_the_client() {
        let site = Site::new();
        let id = ConnectionId::new(&[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08]).unwrap();
        let own = site.tls.initial_keys(&id);
        let client = site.tls.initial.keys(&id, Side::Client, Version::V1);
        let mut packet = *b"text";
        let tag = client.local.packet.encrypt_in_place(1, b"header", &mut packet).unwrap();
        let mut packet = [&packet, tag.as_ref()].concat();
        assert_eq!(own.remote.packet.decrypt_in_place(1, b"header", &mut packet).unwrap(), b"text");
    }
}
