//! TLS: which site's certificate and settings a client gets, and keeping them as fresh as their files.
//!
//! It knows no socket: `connection/opening.rs` has the handshake, `connection/tls_socket.rs` what follows.

pub mod alerts;
mod keeper;
mod records;
mod site;
mod sites;
mod state_files;
mod subject;
mod suites;
mod tickets;
mod validations;

pub use keeper::{KeptSites, keep};
pub use rustls::server::UnbufferedServerConnection as ServerConnection;
pub use site::SiteTls;
pub use sites::{AllTls, ListenerTls};
pub use state_files::{PUBLIC_FILE, create_private_directory, write_private, write_public};
pub use tickets::{TicketKey, Tickets};
pub use validations::{Shown, Validations};

use crate::log::TlsRecord;

/// What is known of a connection that speaks TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsInfo {
    /// The version, as logs have it: `TLSv1.3`.
    pub version: &'static str,
    /// The cipher suite.
    pub cipher_suite: &'static str,
    /// The name that the client asked for, lower case.
    pub server_name: Option<Box<str>>,
    /// The subject of the client's certificate, which was found good (RFC 4514).
    pub client_subject: Option<Box<str>>,
    /// The site whose settings hold: its [`SiteTls::id`].
    pub site: u32,
    /// Whether HTTP/2 was agreed upon (RFC 7301).
    pub is_http2: bool,
}

impl TlsInfo {
    /// What there is to know when the handshake is over. `server_name` is what the client asked for.
    pub fn new(connection: &ServerConnection, server_name: Option<Box<str>>, site: u32) -> Self {
        let version = match connection.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_3) => "TLSv1.3",
            _ => "TLSv1.2",
        };
        let suite = connection.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        let client = connection.peer_certificates().and_then(|chain| chain.first());
        Self {
            version,
            cipher_suite: suite.unwrap_or_default(),
            server_name,
            client_subject: client.and_then(|certificate| subject::subject_of(certificate)).map(Into::into),
            site,
            is_http2: connection.alpn_protocol() == Some(site::HTTP2),
        }
    }

    /// For the log.
    pub fn record(&self) -> TlsRecord<'_> {
        TlsRecord {
            version: self.version,
            cipher_suite: self.cipher_suite,
            server_name: self.server_name.as_deref().unwrap_or_default(),
            client: self.client_subject.as_deref().unwrap_or_default(),
        }
    }
}
