//! Backends: servers that get requests, connections or datagrams.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A group of servers that can answer the same requests. Its endpoints are apart, because they change more often.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    /// Protocol of requests. WebSocket passes through [`BackendProtocol::Http1`].
    #[serde(default)]
    pub protocol: BackendProtocol,
    /// TLS to the servers; `None` is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<BackendTls>,
    /// Keeps a client with one endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<SessionPersistence>,
    /// Options of an upstream, as KDL text, for what policies add: `balance`, `connections-max`, `health-check` and
    /// others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub options: String,
}

/// Protocol of requests to a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendProtocol {
    /// HTTP/1.1. With TLS, the server may choose HTTP/2.
    #[default]
    Http1,
    /// HTTP/2 without TLS, with prior knowledge (`kubernetes.io/h2c`, gRPC).
    Http2,
}

/// TLS to a backend (Gateway API: BackendTLSPolicy).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendTls {
    /// Server name (SNI), and the name that the certificate must have unless `subject_alt_names` says otherwise.
    pub hostname: String,
    /// Certificates of CAs, as PEM; `None` is those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorities: Option<String>,
    /// Names of which the certificate must have one, in place of `hostname`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subject_alt_names: Vec<SubjectAltName>,
    /// Certificate that this server shows to the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<crate::Certificate>,
    /// True if the certificates of servers are not verified.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepts_any_certificate: bool,
}

/// Name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubjectAltName {
    /// DNS name.
    Dns(String),
    /// URI, such as a SPIFFE identifier.
    Uri(String),
}

/// Session persistence (Gateway API: GEP-1619).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionPersistence {
    /// Name of the cookie or header field.
    pub name: String,
    /// Place of the session's identifier.
    #[serde(default)]
    pub kind: PersistenceKind,
    /// Lifetime of the cookie.
    #[serde(default)]
    pub lifetime: Lifetime,
    /// Time after which a session ends, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absolute_timeout_seconds: Option<u64>,
    /// Path of the cookie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// Place of a session's identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PersistenceKind {
    /// A cookie.
    #[default]
    Cookie,
    /// A header field, in responses and requests.
    Header,
}

/// Lifetime of a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lifetime {
    /// Until the browser ends.
    #[default]
    Session,
    /// As long as the session: `Max-Age` is sent.
    Permanent,
}

/// A server of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Address and port.
    pub address: SocketAddr,
    /// False if it gets no new requests. Requests and connections in progress continue.
    #[serde(default = "is_ready", skip_serializing_if = "Clone::clone")]
    pub is_ready: bool,
}

fn is_ready() -> bool {
    true
}

impl Endpoint {
    /// Ready endpoint.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, is_ready: true }
    }
}
