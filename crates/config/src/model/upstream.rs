//! Upstream servers: the model.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::discovery::{DiscoveredProtocol, Discovery};
use super::tls::CertificateFiles;

/// A group of servers that can answer the same requests.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamConfig {
    /// Name in `forward` and in logs.
    pub name: String,
    /// Servers of the file; at least one is no backup, unless there is a source of others.
    pub servers: Vec<UpstreamServer>,
    /// Source of further servers, which change while the server runs.
    pub discovery: Option<Box<Discovery>>,
    /// True if servers that an order sets later may use TLS.
    pub expects_tls: bool,
    /// Load balancing method.
    pub balance: Balance,
    /// Maximum time to open a connection, including name resolution.
    pub connect_timeout: Duration,
    /// Connections in use at once to each server, by all workers together, or requests in progress if connections carry
    /// several; 0 is no limit.
    pub connections_max: u32,
    /// Unused connections that a worker keeps open to each server.
    pub idle_max: usize,
    /// Maximum time that an idle connection stays open.
    pub idle_timeout: Duration,
    /// Policy for sharing idle connections among clients.
    pub reuse: ConnectionReuse,
    /// Requests sent on a connection before it is closed; 0 is no limit.
    pub requests_per_connection_max: u32,
    /// Requests in progress at once on a connection of HTTP/2.
    pub streams_per_connection_max: usize,
    /// Maximum age of a connection on which a request is sent.
    pub connection_age_max: Duration,
    /// Requests that may wait for a connection while all servers have as many as they may; 0 is none.
    pub queue_max: usize,
    /// Maximum time that a request waits in the queue.
    pub queue_timeout: Duration,
    /// Waiting time above which the queue can be overloaded; zero is no limit, `None` a twentieth of `queue_timeout`.
    pub queue_wait_max: Option<Duration>,
    /// Maximum number of servers tried for a request.
    pub tries_max: usize,
    /// Failures in a row after which a server is passed over; 0 is never.
    pub fail_max: u32,
    /// In what time they must have happened.
    pub fail_window: Duration,
    /// Time of the first ejection; it doubles with each further failure.
    pub eject_time: Duration,
    /// Maximum time of an ejection.
    pub eject_time_max: Duration,
    /// Sends requests to ejected servers if there are no others.
    pub last_resort: bool,
    /// In what time a server that is back comes to its full share; zero is at once.
    pub slow_start: Duration,
    /// Interval at which names are resolved again.
    pub resolve_interval: Duration,
    /// Version of the PROXY protocol header at the beginning of each connection; `None` sends none.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// TLS for servers at `https://…`.
    pub tls: UpstreamTls,
    /// Active health check of the servers.
    pub health_check: Option<HealthCheck>,
    /// Cookie that keeps a client with a server.
    pub sticky: Option<Box<StickyCookie>>,
}

/// Cookie, or header field, that keeps a client with a server of an [`UpstreamConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StickyCookie {
    /// Name of the cookie.
    pub name: String,
    /// True for a header field of this name, in responses and requests, in place of a cookie. It has no attributes.
    pub is_header: bool,
    /// File of the key that signs it; `None` is a key of this machine.
    pub key_file: Option<PathBuf>,
    /// Lifetime; `None` until the browser closes.
    pub age_max: Option<Duration>,
    /// Paths that it is sent for.
    pub path: String,
    /// Domain that it is sent to; `None` is the host of the request.
    pub domain: Option<String>,
    /// Sends it only over TLS; `None` if the client uses TLS now.
    pub is_secure: Option<bool>,
    /// Hides it from scripts.
    pub is_http_only: bool,
    /// Value of SameSite.
    pub same_site: &'static str,
}

/// TLS of an [`UpstreamConfig`]'s servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// CA certificates (PEM) that must have signed server certificates; `None` trusts the system's CAs.
    pub authorities: Option<PathBuf>,
    /// Name that is requested (SNI) and that the certificate must have; `None` is the host of the address.
    pub server_name: Option<String>,
    /// Verifies server certificates.
    pub is_verified: bool,
    /// Client certificate for servers that require one.
    pub certificate: Option<CertificateFiles>,
    /// Offers HTTP/2.
    pub offers_http2: bool,
    /// Names of which the certificate must have one, in place of the server name; none leaves that.
    pub accepted_names: Vec<AcceptedName>,
}

/// Name in a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceptedName {
    /// DNS name.
    Dns(String),
    /// URI.
    Uri(String),
}

impl UpstreamTls {
    /// The files that have something of it, which may change.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let authorities = self.authorities.iter().map(PathBuf::as_path);
        authorities.chain(self.certificate.iter().flat_map(CertificateFiles::paths))
    }
}

impl Default for UpstreamTls {
    fn default() -> Self {
        Self {
            authorities: None,
            server_name: None,
            is_verified: true,
            certificate: None,
            offers_http2: true,
            accepted_names: Vec::new(),
        }
    }
}

/// A server of an [`UpstreamConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamServer {
    /// Address of the server.
    pub address: UpstreamServerAddress,
    /// Share of requests relative to other servers.
    pub weight: u32,
    /// Gets requests only when all other servers are down.
    pub backup: bool,
}

/// Address of a server, written as in the configuration: `http://localhost:8080`, `https://app.example`,
/// `h2c://localhost:50051`, `tcp://localhost:9000`, `unix:/run/app.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamServerAddress {
    /// HTTP over TCP: a name or an address (IPv6 in brackets), and a port.
    Tcp(String, u16),
    /// HTTP/2 over TCP without TLS, by prior knowledge: the same.
    Http2(String, u16),
    /// HTTP over TLS: the same.
    Tls(String, u16),
    /// Another protocol over TCP: the same.
    OtherTcp(String, u16),
    /// Any protocol over a unix socket.
    Unix(PathBuf),
}

impl UpstreamServerAddress {
    /// Name or IP address (IPv6 in brackets); `None` for a unix socket.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Tcp(host, _) | Self::Http2(host, _) | Self::Tls(host, _) | Self::OtherTcp(host, _) => Some(host),
            Self::Unix(_) => None,
        }
    }
}

/// Load balancing method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Of two chosen at random, the one with fewer requests in progress.
    LeastConnections,
    /// Each in turn.
    RoundRobin,
    /// One server for each key, as long as it is up and not much busier than the others.
    Hash(HashKey),
}

/// Clients whose requests may share a kept connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionReuse {
    /// Only those of the client connection that it was opened for.
    Never,
    /// All clients until the connection has carried a body; from then on, that client connection.
    Safe,
    /// All clients.
    Always,
}

/// Key of requests that go to the same server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// The client's address.
    Address,
    /// The value of this field.
    Field(String),
    /// The value of this cookie.
    Cookie(String),
}

/// Versions of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// Active health check by GET requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Path and query of the request.
    pub path: String,
    /// `Host` of the request; `None` is the server's address.
    pub host: Option<String>,
    /// Time from one check to the next.
    pub interval: Duration,
    /// Maximum time of a response, including the connection.
    pub timeout: Duration,
    /// Lowest status of a good answer.
    pub status_min: u16,
    /// Highest status of a good answer.
    pub status_max: u16,
    /// Good checks in a row after which a server that was down is up.
    pub rise: u32,
    /// Bad checks in a row after which a server that was up is down.
    pub fall: u32,
}

impl UpstreamConfig {
    /// Servers in a group: they are looked at one by one for each request.
    pub const SERVERS_MAX: usize = 1_000;

    /// A group with the defaults, and no server yet.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            servers: Vec::new(),
            discovery: None,
            expects_tls: false,
            balance: Balance::LeastConnections,
            connect_timeout: Duration::from_secs(5),
            connections_max: Self::CONNECTIONS_MAX,
            idle_max: 128,
            idle_timeout: Duration::from_secs(4),
            reuse: ConnectionReuse::Safe,
            requests_per_connection_max: 0,
            streams_per_connection_max: 100,
            connection_age_max: Duration::from_secs(3600),
            queue_max: 1_000,
            queue_timeout: Duration::from_secs(10),
            queue_wait_max: None,
            tries_max: 3,
            fail_max: 3,
            fail_window: Duration::from_secs(10),
            eject_time: Duration::from_secs(5),
            eject_time_max: Duration::from_secs(300),
            last_resort: true,
            slow_start: Duration::ZERO,
            resolve_interval: Duration::from_secs(30),
            proxy_protocol: None,
            tls: UpstreamTls::default(),
            health_check: None,
            sticky: None,
        }
    }

    /// Waiting time above which the queue can be overloaded; zero is no limit.
    pub fn queue_wait_max(&self) -> Duration {
        self.queue_wait_max.unwrap_or(self.queue_timeout / 20)
    }

    /// Returns `true` if any server uses TLS.
    pub fn has_tls(&self) -> bool {
        self.expects_tls
            || self.servers.iter().any(|server| matches!(server.address, UpstreamServerAddress::Tls(..)))
            || self.discovery.as_ref().is_some_and(|discovery| discovery.protocol == DiscoveredProtocol::Tls)
    }

    /// Upstream of one server with the defaults, for a URL in place of a name.
    pub fn of_server(address: UpstreamServerAddress) -> Self {
        let name = address.to_string();
        Self { servers: vec![UpstreamServer { address, weight: 1, backup: false }], ..Self::named(name) }
    }
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            path: "/".into(),
            host: None,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            status_min: 200,
            status_max: 399,
            rise: 2,
            fall: 3,
        }
    }
}

impl fmt::Display for UpstreamServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write!(f, "http://{host}:{port}"),
            Self::Http2(host, port) => write!(f, "h2c://{host}:{port}"),
            Self::Tls(host, port) => write!(f, "https://{host}:{port}"),
            Self::OtherTcp(host, port) => write!(f, "tcp://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
