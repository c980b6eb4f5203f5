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
    /// Label that containers must have, as `NAME` or `NAME=VALUE`.
    pub label: Option<String>,
    /// Network of which containers have the address to use.
    pub network: Option<String>,
    /// Port to use; `None` is the only one.
    pub port: Option<DiscoveredPort>,
    /// API server; `None` is that of the pod.
    pub endpoint: Option<StoreEndpoint>,
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
    /// Containers of an engine with the API of Docker, which listens on this socket.
    Docker(PathBuf),
    /// EndpointSlices of a service in Kubernetes.
    Kubernetes {
        /// Namespace of the service.
        namespace: String,
        /// Name of the service.
        service: String,
    },
}

/// Port of discovered servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveredPort {
    /// Number.
    Number(u16),
    /// Name, in the source.
    Name(String),
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

    /// True if credentials of the pod are read.
    pub fn uses_service_account(&self) -> bool {
        matches!(self.source, DiscoverySource::Kubernetes { .. })
    }

    /// Text that is the same for sources that name the same servers.
    pub fn identity(&self) -> String {
        let mut text = format!("{} {}", self.source, self.protocol.name());
        for (name, value) in [("tag", &self.tag), ("label", &self.label), ("network", &self.network)] {
            text.extend(value.iter().map(|value| format!(" {name}={value:?}")));
        }
        text.extend(self.port.iter().map(|port| format!(" port={port}")));
        text.extend(self.resolver.iter().map(|resolver| format!(" resolver={resolver}")));
        text.extend(self.endpoint.iter().map(|endpoint| format!(" endpoint={endpoint}")));
        text
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
            Self::Docker(socket) => write!(f, "docker:{}", socket.display()),
            Self::Kubernetes { namespace, service } => write!(f, "kubernetes://{namespace}/{service}"),
        }
    }
}

impl fmt::Display for DiscoveredPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}
