//! Store that several instances share: the model.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::regular_file::read_regular;

/// Store that several instances share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Engine and its address; a checked configuration has one.
    pub place: Option<StorePlace>,
    /// Name of this instance; the host name by default.
    pub instance: Option<String>,
    /// User of Valkey, or access key ID of S3.
    pub username: Option<String>,
    /// File of the password, secret access key or token.
    pub password_file: Option<PathBuf>,
    /// CA certificates (PEM) for the engine; `None` trusts the system's CAs.
    pub authorities: Option<PathBuf>,
    /// File of a secret that encrypts all values.
    pub key_file: Option<PathBuf>,
    /// URL of an S3 server or of the Kubernetes API, instead of the usual one.
    pub endpoint: Option<StoreEndpoint>,
    /// Region of S3.
    pub region: String,
    /// Maximum time of one operation.
    pub timeout: Duration,
    /// Interval between two reads of events; `None` takes the engine's.
    pub poll_interval: Option<Duration>,
    /// Time after which another instance takes over from one that has stopped.
    pub lease_time: Duration,
    /// State that is shared; `None` shares all that the engine can hold.
    pub shares: Option<Vec<SharedState>>,
    /// Shared limits while the store cannot be reached.
    pub limits_without_store: LimitsWithoutStore,
    /// Longest time that a request waits for a response that instances share.
    pub response_timeout: Duration,
    /// Largest response that instances share, in bytes.
    pub response_bytes_max: u64,
}

/// Engine of a store and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// Directory on this machine, or on NFS.
    Directory(PathBuf),
    /// Valkey or Redis.
    Valkey(ValkeyPlace),
    /// Objects of S3, or of a server with its interface.
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Prefix of all keys.
        prefix: String,
    },
    /// Key-value store of Consul.
    Consul {
        /// Address of the agent.
        endpoint: StoreEndpoint,
        /// Prefix of all keys.
        prefix: String,
    },
    /// Secrets and Leases of Kubernetes.
    Kubernetes {
        /// Namespace of the objects.
        namespace: String,
        /// Prefix of their names.
        prefix: String,
    },
}

/// Address of Valkey or Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValkeyPlace {
    /// Servers, at least one: hosts and ports.
    pub nodes: Vec<(String, u16)>,
    /// Meaning of the servers.
    pub topology: ValkeyTopology,
    /// Uses TLS.
    pub is_tls: bool,
    /// Number of the database.
    pub database: u32,
}

/// Meaning of the servers of a [`ValkeyPlace`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValkeyTopology {
    /// One server.
    Standalone,
    /// Sentinels that know the primary of this name.
    Sentinel(String),
    /// Nodes of a cluster.
    Cluster,
}

/// Host and port of an engine that speaks HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEndpoint {
    /// Uses TLS.
    pub is_tls: bool,
    /// Name or address; one of IPv6 without brackets.
    pub host: String,
    /// Port of the engine.
    pub port: u16,
}

/// Kind of state that instances share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedState {
    /// Automatic certificates, their account and challenges.
    Certificates,
    /// Keys of TLS session tickets.
    Tickets,
    /// Purges, bans, drains and other orders of operators.
    Orders,
    /// Counts of rate limits.
    Limits,
    /// Configurations that are rolled out. Only if the operator asks for it, because they can start programs.
    Rollouts,
    /// Cached responses. Only if the operator asks for it, because they take space in the engine.
    Responses,
}

/// Shared limits while the store cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitsWithoutStore {
    /// Each instance applies the whole limit to its own requests.
    #[default]
    Local,
    /// Requests that a shared limit counts are rejected.
    Closed,
}

/// Abilities of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreAbilities {
    /// Counts many keys in one call, fast enough for rate limits.
    pub has_counters: bool,
    /// Holds cached responses.
    pub has_responses: bool,
    /// Largest value, in bytes.
    pub value_bytes_max: usize,
    /// Interval between two reads of events that the engine bears.
    pub poll_interval: Duration,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            place: None,
            instance: None,
            username: None,
            password_file: None,
            authorities: None,
            key_file: None,
            endpoint: None,
            region: "us-east-1".to_owned(),
            timeout: Duration::from_secs(2),
            poll_interval: None,
            lease_time: Duration::from_secs(15),
            shares: None,
            limits_without_store: LimitsWithoutStore::Local,
            response_timeout: Duration::from_millis(50),
            response_bytes_max: 1 << 20,
        }
    }
}

impl StoreConfig {
    /// True if this kind of state is shared.
    pub fn has(&self, state: SharedState) -> bool {
        let is_possible = !state.needs_key() || self.key_file.is_some();
        is_possible
            && match (&self.shares, &self.place) {
                (Some(shares), _) => shares.contains(&state),
                (None, Some(place)) => !state.is_optional() && place.can_share(state),
                (None, None) => false,
            }
    }

    /// Interval between two reads of events.
    pub fn poll_interval(&self) -> Duration {
        let usual = self.place.as_ref().map_or(Duration::from_secs(1), |place| place.abilities().poll_interval);
        self.poll_interval.unwrap_or(usual)
    }
}

impl StoreConfig {
    /// Shortest secret of `key-file`, in bytes.
    pub const KEY_BYTES_MIN: usize = 32;

    /// Content of a file of a secret, without white space at its end.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is empty.
    pub fn read_secret(path: &Path) -> io::Result<Vec<u8>> {
        let content = read_regular(path)?;
        match content.trim_ascii_end() {
            [] => Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty")),
            secret => Ok(secret.to_vec()),
        }
    }
}

impl SharedState {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Certificates, Self::Tickets, Self::Orders, Self::Limits, Self::Rollouts, Self::Responses];

    /// True if instances must have the same `key-file`. Limits: instances count the same keys only if they hash them with the
    /// same secret. Rollouts and responses: another user of the engine must not be able to write a configuration or a page.
    pub const fn needs_key(self) -> bool {
        matches!(self, Self::Limits | Self::Rollouts | Self::Responses)
    }

    /// True if the state is shared only if `share` names it.
    pub const fn is_optional(self) -> bool {
        matches!(self, Self::Rollouts | Self::Responses)
    }

    /// Name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Certificates => "certificates",
            Self::Tickets => "tickets",
            Self::Orders => "orders",
            Self::Limits => "limits",
            Self::Rollouts => "rollouts",
            Self::Responses => "responses",
        }
    }

    /// Kind of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl StorePlace {
    /// Abilities of the engine.
    pub const fn abilities(&self) -> StoreAbilities {
        let usual = StoreAbilities {
            has_counters: false,
            has_responses: false,
            value_bytes_max: 16 << 20,
            poll_interval: Duration::from_millis(800),
        };
        match self {
            Self::Directory(_) => StoreAbilities { poll_interval: Duration::from_millis(250), ..usual },
            Self::Valkey(_) => StoreAbilities {
                has_counters: true,
                has_responses: true,
                poll_interval: Duration::from_millis(250),
                ..usual
            },
            Self::S3 { .. } => StoreAbilities { has_responses: true, ..usual },
            // Consul rejects values above 512 KiB.
            Self::Consul { .. } => {
                StoreAbilities { value_bytes_max: 384 << 10, poll_interval: Duration::from_millis(400), ..usual }
            }
            // A Secret holds at most 1 MiB.
            Self::Kubernetes { .. } => StoreAbilities { value_bytes_max: 512 << 10, ..usual },
        }
    }

    /// True if the engine can hold this kind of state.
    pub const fn can_share(&self, state: SharedState) -> bool {
        let abilities = self.abilities();
        match state {
            SharedState::Certificates | SharedState::Tickets | SharedState::Orders | SharedState::Rollouts => true,
            SharedState::Limits => abilities.has_counters,
            SharedState::Responses => abilities.has_responses,
        }
    }

    /// Name of the engine, for messages.
    pub const fn engine(&self) -> &'static str {
        match self {
            Self::Directory(_) => "a directory",
            Self::Valkey(_) => "Valkey",
            Self::S3 { .. } => "S3",
            Self::Consul { .. } => "Consul",
            Self::Kubernetes { .. } => "Kubernetes",
        }
    }
}

/// Access to an API server of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesAccess {
    /// API server.
    pub endpoint: StoreEndpoint,
    /// CA certificates (PEM); `None` trusts the system's CAs.
    pub authorities: Option<PathBuf>,
    /// File of the token.
    pub token_file: Option<PathBuf>,
}

impl KubernetesAccess {
    /// Access to this API server; without an endpoint, to that of the pod. CA and token are those of the pod's service
    /// account, unless given. A pod's token is not sent in plain text.
    ///
    /// # Errors
    /// No endpoint is given, and the process is not in a pod.
    pub fn new(
        endpoint: Option<&StoreEndpoint>,
        authorities: Option<&Path>,
        token_file: Option<&Path>,
    ) -> Result<Self, String> {
        let account = Path::new(crate::SERVICE_ACCOUNT);
        let (endpoint, ca_of_pod) = match endpoint {
            Some(endpoint) => (endpoint.clone(), None),
            None => (StoreEndpoint::of_pod()?, Some(account.join("ca.crt"))),
        };
        let token_of_pod = Some(account.join("token")).filter(|path| endpoint.is_tls && path.exists());
        let authorities = authorities.map(Path::to_owned).or(ca_of_pod);
        Ok(Self { endpoint, authorities, token_file: token_file.map(Path::to_owned).or(token_of_pod) })
    }
}

impl StoreEndpoint {
    /// API server that the environment of a pod names.
    fn of_pod() -> Result<Self, String> {
        let variable = |name: &str| {
            std::env::var(name)
                .map_err(|_| format!("{name} is not set: outside of a pod, `endpoint` names the API server"))
        };
        let host = variable("KUBERNETES_SERVICE_HOST")?;
        let port = variable("KUBERNETES_SERVICE_PORT_HTTPS").ok().and_then(|port| port.parse().ok());
        Ok(Self { is_tls: true, host, port: port.unwrap_or(443) })
    }

    /// Host and port; an address of IPv6 is in brackets.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for StoreEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Valkey(place) => {
                let scheme = match place.topology {
                    ValkeyTopology::Standalone => "valkey",
                    ValkeyTopology::Sentinel(_) => "valkey-sentinel",
                    ValkeyTopology::Cluster => "valkey-cluster",
                };
                let nodes: Vec<String> = place.nodes.iter().map(|(host, port)| format!("{host}:{port}")).collect();
                write!(f, "{scheme}{}://{}", if place.is_tls { "s" } else { "" }, nodes.join(","))
            }
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Self::Consul { endpoint, prefix } => {
                write!(
                    f,
                    "consul{}://{}:{}/{prefix}",
                    if endpoint.is_tls { "s" } else { "" },
                    endpoint.host,
                    endpoint.port
                )
            }
            Self::Kubernetes { namespace, prefix } => write!(f, "kubernetes://{namespace}/{prefix}"),
        }
    }
}
