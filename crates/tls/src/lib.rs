//! TLS: certificates and settings by site, reloaded when their files change.
//!
//! This room knows no socket: `connection/opening.rs` has the handshake, `connection/tls_socket.rs` the data after it.

pub mod alerts;
mod clients;
mod data_sessions;
mod early_sessions;
mod keeper;
mod quic;
mod records;
mod site;
mod sites;
mod state_files;
mod subject;
mod suites;
mod tickets;
mod validations;

pub use clients::client_verifier;
pub use keeper::{KeptSites, keep, reload};
pub use quic::{HelloFingerprint, QuicHandshake, QuicTls};
pub use rustls::ServerConfig as TlsSettings;
pub use rustls::server::UnbufferedServerConnection as ServerConnection;
pub use site::{CertificateFacts, RenewalState, SiteMark, SiteTls};
pub use sites::{AllTls, ListenerTls};
pub use state_files::{PUBLIC_FILE, create_private_directory, write_private, write_public};
pub use tickets::{TicketKey, Tickets};
pub use validations::{Shown, Validations};

use std::sync::OnceLock;

use crate::log::TlsRecord;
use tailcoat_config as config;
use tailcoat_observe::log;

/// Parameters of a TLS connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsInfo {
    /// Version in the form of logs: `TLSv1.3`.
    pub version: &'static str,
    /// Cipher suite.
    pub cipher_suite: &'static str,
    /// Server name that the client requested, in lower case.
    pub server_name: Option<Box<str>>,
    /// Subject of the verified client certificate (RFC 4514).
    pub client_subject: Option<Box<str>>,
    /// Site whose settings apply: its [`SiteTls::id`].
    pub site: u32,
    /// True if HTTP/2 was negotiated (RFC 7301).
    pub is_http2: bool,
    /// True if the site has HTTP/3.
    pub has_http3: bool,
    /// JA4 fingerprint of the ClientHello; empty if it is not wanted.
    pub ja4: Option<Box<str>>,
    /// Fingerprint of the beginning of the HTTP/2 connection, once it is known.
    pub http2: OnceLock<Box<str>>,
}

impl TlsInfo {
    /// Parameters after the handshake. `server_name` is the name that the client requested.
    pub fn new(connection: &ServerConnection, server_name: Option<Box<str>>, site: SiteMark) -> Self {
        let version = match connection.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_3) => "TLSv1.3",
            _ => "TLSv1.2",
        };
        let suite = connection.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        let client = connection.peer_certificates().and_then(|chain| chain.first()).filter(|_| site.verifies_clients);
        Self {
            version,
            cipher_suite: suite.unwrap_or_default(),
            server_name,
            client_subject: client.and_then(|certificate| subject::subject_of(certificate)).map(Into::into),
            site: site.id,
            is_http2: connection.alpn_protocol() == Some(site::HTTP2),
            has_http3: site.has_http3,
            ja4: None,
            http2: OnceLock::new(),
        }
    }

    /// JA4 fingerprint of the ClientHello; empty if it is unknown.
    pub fn ja4(&self) -> &str {
        self.ja4.as_deref().unwrap_or_default()
    }

    /// Fingerprint of the beginning of the HTTP/2 connection; empty if it is unknown.
    pub fn http2_fingerprint(&self) -> &str {
        self.http2.get().map_or("", |text| text)
    }

    /// Parameters for the access log.
    pub fn record(&self) -> TlsRecord<'_> {
        TlsRecord {
            version: self.version,
            cipher_suite: self.cipher_suite,
            server_name: self.server_name.as_deref().unwrap_or_default(),
            client: self.client_subject.as_deref().unwrap_or_default(),
        }
    }
}
