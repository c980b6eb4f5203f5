//! What a checked configuration says of the servers that requests are forwarded to.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::tls::CertificateFiles;

/// A group of servers that can answer the same requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// What `forward` and logs call it.
    pub name: String,
    /// The servers; there is at least one that is no backup.
    pub servers: Vec<UpstreamServer>,
    /// Who of them gets a request.
    pub balance: Balance,
    /// How long a connection may take to come about, looking up the name included.
    pub connect_timeout: Duration,
    /// Connections in use at once to each server, by all workers together, or requests in progress if connections carry
    /// several; 0 is no limit.
    pub connections_max: u32,
    /// Unused connections that a worker keeps open to each server.
    pub idle_max: usize,
    /// How long an unused connection is kept open.
    pub idle_timeout: Duration,
    /// Which requests may be sent on a kept connection.
    pub reuse: Reuse,
    /// Requests sent on a connection before it is closed; 0 is no limit.
    pub requests_per_connection_max: u32,
    /// Requests in progress at once on a connection of HTTP/2.
    pub streams_per_connection_max: usize,
    /// How old a connection may be when a request is sent on it.
    pub connection_age_max: Duration,
    /// Requests that may wait for a connection while all servers have as many as they may; 0 is none.
    pub queue_max: usize,
    /// How long a request may wait so.
    pub queue_timeout: Duration,
    /// How long requests may wait so before the queue is overloaded; zero is no limit, `None` is a twentieth of `queue_timeout`.
    pub queue_wait_max: Option<Duration>,
    /// Servers that are asked for a request, one after another.
    pub tries_max: usize,
    /// Failures in a row after which a server is passed over; 0 is never.
    pub fail_max: u32,
    /// In what time they must have happened.
    pub fail_window: Duration,
    /// How long a server is passed over the first time; doubles each time it fails again.
    pub eject_time: Duration,
    /// How long it is passed over at most.
    pub eject_time_max: Duration,
    /// Whether servers that seem to be down are asked all the same when there are no others.
    pub last_resort: bool,
    /// In what time a server that is back comes to its full share; zero is at once.
    pub slow_start: Duration,
    /// How often names are looked up again.
    pub resolve_interval: Duration,
    /// Whether and how the client's address is told to servers before anything else.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// How those are spoken to whose address is `https://…`.
    pub tls: UpstreamTls,
    /// How servers are checked on, beside the requests they answer.
    pub health_check: Option<HealthCheck>,
}

/// How TLS is spoken with the servers of an [`Upstream`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Certificates of the authorities whose word is taken, as PEM; `None` is those that the system trusts.
    pub authorities: Option<PathBuf>,
    /// The name that a server is asked for and has to prove; `None` is the host of its address.
    pub server_name: Option<String>,
    /// Whether a server has to prove who it is.
    pub is_verified: bool,
    /// What is shown to servers that want to know who asks.
    pub certificate: Option<CertificateFiles>,
    /// Whether HTTP/2 is offered.
    pub offers_http2: bool,
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
        Self { authorities: None, server_name: None, is_verified: true, certificate: None, offers_http2: true }
    }
}

/// A server of an [`Upstream`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamServer {
    /// Where it is.
    pub address: ServerAddress,
    /// Its share of the requests, relative to the others'.
    pub weight: u32,
    /// Whether it is asked only when the others are down.
    pub backup: bool,
}

/// Where a server is. Written as in the configuration: `http://localhost:8080`, `https://app.example`,
/// `h2c://localhost:50051`, `tcp://localhost:9000`, `unix:/run/app.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
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

/// Who of several servers gets a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Of two chosen at random, the one with fewer requests in progress.
    LeastConnections,
    /// Each in turn.
    RoundRobin,
    /// The same one for the same key, as long as it is there and not much busier than the others.
    Hash(HashKey),
}

/// Which clients' requests a kept connection may carry, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Only those of the client connection that it was opened for.
    Never,
    /// Those of all clients until it has carried content; from then on, those of that client connection.
    Safe,
    /// Those of all clients.
    Always,
}

/// What requests have in common that shall go to the same server.
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

/// How servers are checked on: with GET requests of the server's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Path and query of the request.
    pub path: String,
    /// Its `Host`; `None` is the server's address.
    pub host: Option<String>,
    /// Time from one check to the next.
    pub interval: Duration,
    /// How long an answer may take, with the connection.
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

impl Upstream {
    /// Servers in a group: they are looked at one by one for each request.
    pub const SERVERS_MAX: usize = 1_000;

    /// A group with the defaults, and no server yet.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            servers: Vec::new(),
            balance: Balance::LeastConnections,
            connect_timeout: Duration::from_secs(5),
            connections_max: Self::CONNECTIONS_MAX,
            idle_max: 128,
            idle_timeout: Duration::from_secs(4),
            reuse: Reuse::Safe,
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
        }
    }

    /// How long requests may wait before the queue is overloaded; zero is no limit.
    pub fn queue_wait_max(&self) -> Duration {
        self.queue_wait_max.unwrap_or(self.queue_timeout / 20)
    }

    /// Whether any server is spoken to by TLS.
    pub fn has_tls(&self) -> bool {
        self.servers.iter().any(|server| matches!(server.address, ServerAddress::Tls(..)))
    }

    /// One server with the defaults: what a URL stands for where the name of an upstream could.
    pub fn of_server(address: ServerAddress) -> Self {
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

impl fmt::Display for ServerAddress {
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
