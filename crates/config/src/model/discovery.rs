//! Sources of an upstream's servers: the model.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::store::StoreEndpoint;
use super::upstream::UpstreamServerAddress;

/// Source of an upstream's servers, which change while the server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// Source.
    pub source: DiscoverySource,
    /// Protocol of the servers that it names.
    pub protocol: DiscoveredProtocol,
    /// Tag that instances of a service must have.
    pub tag: Option<String>,
    /// File of the token that the source requires.
    pub token_file: Option<PathBuf>,
    /// CA certificates (PEM) for the source; `None` trusts the system's CAs.
    pub authorities: Option<PathBuf>,
    /// Name server; `None` is that of the system.
    pub resolver: Option<SocketAddr>,
}

/// Service that knows servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoverySource {
    /// SRV records of this name (RFC 2782).
    Srv(String),
    /// Service in the catalog of Consul.
    Consul {
        /// Address of the agent.
        endpoint: StoreEndpoint,
        /// Name of the service.
        service: String,
    },
}

/// Protocol of discovered servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscoveredProtocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// HTTP/2 without TLS.
    Http2,
    /// TLS.
    Tls,
    /// Another protocol over TCP, such as FastCGI.
    Other,
}

impl Discovery {
    /// Files that are read to ask the source.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.token_file.iter().chain(&self.authorities)
    }
}

impl DiscoveredProtocol {
    /// All protocols.
    pub const ALL: [Self; 4] = [Self::Http, Self::Http2, Self::Tls, Self::Other];

    /// Name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Http2 => "h2c",
            Self::Tls => "https",
            Self::Other => "tcp",
        }
    }

    /// Protocol of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Address of a server with this protocol. The host is a name, or an address of which IPv6 is in brackets.
    pub fn address(self, host: String, port: u16) -> UpstreamServerAddress {
        match self {
            Self::Http => UpstreamServerAddress::Tcp(host, port),
            Self::Http2 => UpstreamServerAddress::Http2(host, port),
            Self::Tls => UpstreamServerAddress::Tls(host, port),
            Self::Other => UpstreamServerAddress::OtherTcp(host, port),
        }
    }
}

impl fmt::Display for DiscoverySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Srv(name) => write!(f, "srv:{name}"),
            Self::Consul { endpoint, service } => {
                let scheme = if endpoint.is_tls { "consuls" } else { "consul" };
                write!(f, "{scheme}://{}/{service}", endpoint.authority())
            }
        }
    }
}
