//! A checked configuration. It is immutable and shared by all workers. A reload replaces the whole [`Config`].

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use expression::Map;
use serde::{Deserialize, Serialize};

use super::access_log::{AccessLog, LogFilter};
use super::automatic::AutomaticCertificates;
use super::bots::{ClientKnowledge, TarpitLimits};
use super::buffering::{BufferLimits, BufferingConfig};
use super::compression::{CompressionLevel, CompressionSettings};
use super::confinement::Confinement;
use super::control_plane::{ControlPlane, RouteParts};
use super::fixed::{ErrorPageConfig, RespondConfig};
use super::ftp::FtpConfig;
use super::gateway::{GatewayConfig, GatewayProtocol, ProgramUser};
use super::http2::{CongestionControl, Http2Limits, HttpVersions};
use super::intermediary::Intermediary;
use super::internal_redirects::InternalRedirects;
use super::module::{ModuleConfig, ModulesConfig};
use super::programs::PROGRAM_EXTENSIONS;
use super::rates::ResponseRates;
use super::response_caching::ResponseCaching;
use super::root::{RootPattern, RootPiece, SymlinkRule};
use super::route::{PathPattern, RouteConfig};
use super::rules::{ClientPattern, RulesConfig};
use super::store::StoreConfig;
use super::tls::{KernelTlsConfig, Tls};
use super::traces::Traces;
use super::traffic::{Mirror, ResponseRewrites, Retry, Split};
use super::upstream::UpstreamConfig;

/// A whole, checked configuration.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Config {
    /// Workers and what they share.
    pub server: ServerSettings,
    /// Everything that grows has a limit here.
    pub limits: Limits,
    /// Restrictions that the server applies to itself.
    pub confinement: Confinement,
    /// The object cache.
    pub cache: CacheConfig,
    /// Settings that all modules share.
    pub modules: ModulesConfig,
    /// Servers that requests are forwarded to, by groups. Configurations that follow each other share those that stay.
    pub upstreams: Vec<Arc<UpstreamConfig>>,
    /// Settings of automatic certificates.
    pub automatic_certificates: AutomaticCertificates,
    /// The sites; the first that matches a request's host and listener has it. The configuration after a change shares the
    /// sites that the change leaves alone.
    pub sites: Vec<Arc<SiteConfig>>,
    /// Rules of all sites, in addition to a site's own.
    pub rules: RulesConfig,
    /// Log of all requests of sites that don't name one of their own.
    pub access_log: Option<AccessLog>,
    /// Traces, if they are kept.
    pub traces: Option<Traces>,
    /// Store that several instances share, if there is one.
    pub store: Option<StoreConfig>,
    /// Maps of the expression language.
    pub maps: Vec<Arc<Map>>,
    /// Files of secrets, by name.
    pub secrets: Vec<(String, PathBuf)>,
    /// Routes of the controller. Their sites and upstreams are the last of those above.
    pub routes: Option<Arc<RouteParts>>,
}

impl Config {
    /// Returns `true` if requests can start programs.
    pub fn has_programs(&self) -> bool {
        self.gateways().any(|gateway| gateway.protocol == GatewayProtocol::Cgi)
    }

    /// Returns `true` if a rule of the site, or of all sites, guards this path.
    pub fn guards(&self, site: &SiteConfig, path: &PathPattern) -> bool {
        self.rules.guards(path) || site.rules.guards(path)
    }

    /// True if these sites, which share a listener, answer with status and fixed responses alone. Such a listener has places
    /// of its own, so that monitoring gets through when all others are taken.
    pub fn is_for_monitoring(&self, sites: &[usize]) -> bool {
        let routes = || sites.iter().flat_map(|site| &self.sites[*site].routes);
        let is_status = |route: &RouteConfig| matches!(route.handler, HandlerConfig::Status(_));
        let is_quick = |route: &RouteConfig| is_status(route) || matches!(route.handler, HandlerConfig::Respond(_));
        routes().any(is_status) && routes().all(is_quick)
    }

    /// All scripts and applications; some of them twice.
    pub fn gateways(&self) -> impl Iterator<Item = &GatewayConfig> {
        self.sites.iter().flat_map(|site| &site.routes).filter_map(|route| match &route.handler {
            HandlerConfig::Gateway(gateway, _) => Some(&**gateway),
            _ => None,
        })
    }
}

/// Workers and what they share.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// User to switch to when root starts the server; `None` is the user `tailcoat`, if there is one.
    pub user: Option<ProgramUser>,
    /// Number of workers; `None` is one a core that the process may use.
    pub workers: Option<usize>,
    /// Binds each worker to its own CPU core.
    pub pin_workers: bool,
    /// Time that open requests have to finish after SIGTERM or SIGINT.
    pub grace_time: Duration,
    /// Maximum time that a new process has to become ready during an upgrade.
    pub upgrade_timeout: Duration,
    /// Sends `Server: tailcoat` in responses.
    pub server_field: bool,
    /// Versions of HTTP that are spoken, of which there is at least one.
    pub http_versions: HttpVersions,
    /// Congestion control of HTTP/3 connections.
    pub quic_congestion_control: CongestionControl,
    /// Length of each listener's accept queue.
    pub listen_backlog: u32,
    /// Wake the server only when the first bytes have come (TCP_DEFER_ACCEPT).
    pub defer_accept: bool,
    /// Length of the TCP Fast Open queue; 0 is off.
    pub fast_open_queue: u32,
    /// Send without waiting for full segments (TCP_NODELAY).
    pub no_delay: bool,
    /// Use of the kernel's TLS for large files (kTLS).
    pub kernel_tls: KernelTlsConfig,
    /// Threads a worker may use for reads that would block.
    pub blocking_threads_max: usize,
    /// Proxies whose word about the client's address is taken.
    pub trusted_proxies: Vec<ClientPattern>,
    /// Files that some of them are from.
    pub trusted_proxies_files: Vec<PathBuf>,
    /// The field in which they give it.
    pub forwarded_field: ForwardedField,
    /// Interval at which certificate files are checked.
    pub certificate_check_interval: Duration,
    /// Least severity that the server's own log on stderr shows.
    pub log_level: LogLevel,
    /// A logged request reaches its log after this time at the latest.
    pub access_log_flush_interval: Duration,
    /// Requests that could not be logged are reported in the server's own log at most this often.
    pub access_log_report_interval: Duration,
    /// Socket for commands to the running server.
    pub control_socket: Option<PathBuf>,
    /// Controller that routes come from.
    pub control_plane: Option<Box<ControlPlane>>,
    /// Local addresses for metrics and the status page, apart from sites.
    pub status_listen: Vec<Listen>,
    /// Databases and services that tell about clients.
    pub client_knowledge: ClientKnowledge,
    /// Directory for buffer files.
    pub buffer_directory: Option<PathBuf>,
    /// Counts the work of workers.
    pub counters: bool,
    /// Sites, and upstreams, that are counted by themselves; further ones are counted together.
    pub counted_names_max: usize,
}

/// A field in which proxies say for whom they forward a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedField {
    /// `X-Forwarded-For`
    XForwardedFor,
    /// `Forwarded` (RFC 7239)
    Forwarded,
}

/// Severity of a line in the server's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something that a person should look at.
    Warn,
    /// Start, stop, reload.
    Info,
    /// For finding faults.
    Debug,
}

impl LogLevel {
    /// The one of this name, as in the configuration.
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "error" => Self::Error,
            "warn" => Self::Warn,
            "info" => Self::Info,
            "debug" => Self::Debug,
            _ => return None,
        })
    }
}

/// Limits, each safe on the open Internet by default.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of a request's head, from its first byte to the empty line.
    pub head_bytes_max: usize,
    /// Maximum number of field lines in a head. Trailers, which are not kept, count towards `head_bytes_max`.
    pub fields_max: usize,
    /// Bytes of a request target.
    pub target_bytes_max: usize,
    /// Bytes of a request's content; more is 413. Sites and their handlers may have others.
    pub body_bytes_max: BodyBytesMax,
    /// Maximum number of requests on a connection; the last response says `Connection: close`. 0 is no limit.
    pub requests_per_connection_max: u32,
    /// Open connections of the whole server. `None`: what the limit of file descriptors allows.
    pub connections_max: Option<usize>,
    /// Open connections of one client's address; 0 is no limit. `None`: a share of the places when most are taken.
    pub connections_per_client_max: Option<u32>,
    /// Open connections of one network; 0 is no limit. `None`: a share of the places when most are taken.
    pub connections_per_network_max: Option<u32>,
    /// Memory that all clients together may hold. `None`: a part of the memory that there is.
    pub client_memory_bytes_max: Option<u64>,
    /// Passwords that are checked at the same time.
    pub password_checks_max: usize,
    /// Passwords that may wait to be checked.
    pub password_checks_waiting_max: usize,
    /// Maximum time of a connection without a request.
    pub idle_timeout: Duration,
    /// Maximum time to receive a head, from its first byte to its last.
    pub head_timeout: Duration,
    /// Maximum time from accepting a TLS connection to the end of the handshake.
    pub tls_handshake_timeout: Duration,
    /// Handshakes of TLS that a worker begins in a second; others wait. 0 is no limit.
    pub tls_handshakes_per_second_max: u32,
    /// Maximum pause in a request body.
    pub body_timeout: Duration,
    /// Maximum time without progress of a response because the client does not read.
    pub write_timeout: Duration,
    /// Least mean rate of a body or response, in bytes a second, after the first `write_timeout`; 0 is no limit.
    pub rate_bytes_per_second_min: u64,
    /// Time for which a connection is read after its last response. Otherwise, data that the client still sends could
    /// reset the connection before the client has read the response.
    pub linger_timeout: Duration,
    /// Connections that are kept without a response.
    pub tarpit: TarpitLimits,
    /// Time that ready connections may wait for their worker before it sheds load; zero is no limit.
    pub lag_max: Duration,
    /// Ranges in one request; more are answered with the whole.
    pub ranges_max: usize,
    /// Bytes of logged requests that may wait for the writer, for each worker.
    pub access_log_ring_bytes_max: usize,
    /// Bytes of lines that may wait while a log takes nothing, for each log.
    pub access_log_pending_bytes_max: usize,
    /// Bytes of a single logged value (target, field, user); longer ones are cut and marked. At most 65,535.
    pub access_log_value_bytes_max: usize,
    /// Of all buffers between clients and upstreams.
    pub buffers: BufferLimits,
    /// Of a connection that speaks HTTP/2.
    pub http2: Http2Limits,
}

/// Maximum size of a request body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyBytesMax {
    /// As many as in the wider place: that of a handler is its site, that of a site are the limits.
    #[default]
    Inherited,
    /// [`Self::ANSWERED_HERE`] where this server answers, any number where another does: it has limits of its own.
    Auto,
    /// So many.
    Bytes(u64),
}

impl BodyBytesMax {
    /// Value of `Auto` where this server answers, because nothing here needs more.
    const ANSWERED_HERE: u64 = 1 << 20;

    /// This, or that of the wider place.
    #[must_use]
    pub fn or(self, wider: Self) -> Self {
        if self == Self::Inherited { wider } else { self }
    }

    /// Limit in bytes where this server answers.
    pub fn answered_here(self) -> u64 {
        match self {
            Self::Inherited | Self::Auto => Self::ANSWERED_HERE,
            Self::Bytes(bytes) => bytes,
        }
    }

    /// Limit in bytes where an upstream answers.
    pub fn forwarded(self) -> u64 {
        match self {
            Self::Inherited | Self::Auto => u64::MAX,
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// The object cache.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheConfig {
    /// Memory for heads and bodies of all workers together, in bytes.
    pub memory_bytes_max: u64,
    /// True if the limit is lower on machines with little memory.
    pub memory_bytes_auto: bool,
    /// Files up to this size, in bytes, are kept in memory; larger ones as an open descriptor.
    pub object_bytes_max: u64,
    /// Descriptors kept open for larger files.
    pub files_max: usize,
    /// Time for which an object is served before its file is checked.
    pub revalidate_after: Duration,
    /// Watch directories (inotify), so that changes are seen at once.
    pub watch: bool,
    /// Directories watched at a time; the others are looked at from time to time.
    pub watches_max: usize,
    /// Maximum number of open roots with `{host}`; others are opened again for each request that needs them.
    pub roots_max: usize,
    /// Cache of responses on disk.
    pub disk: Option<DiskCacheConfig>,
}

/// Cache of responses on disk: the tier under that in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCacheConfig {
    /// Directory of the files.
    pub directory: PathBuf,
    /// Size of all files, in bytes.
    pub bytes_max: u64,
    /// Number of files.
    pub files_max: usize,
}

/// A site: which requests it takes, and how it answers them.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct SiteConfig {
    /// Host names it answers to; none is any.
    pub names: Vec<HostPattern>,
    /// Addresses it listens on; none is the default address.
    pub listen: Vec<Listen>,
    /// Addresses of `listen` on which connections of trusted proxies begin with the PROXY protocol.
    pub proxied_listen: Vec<Listen>,
    /// Addresses of `listen` with TLS.
    pub tls_listen: Vec<Listen>,
    /// TLS of these addresses.
    pub tls: Tls,
    /// Takes requests for hosts that no site of the listener names.
    pub default: bool,
    /// Path patterns and their handlers, tried in order; one that declines leaves the request to the next that matches.
    pub routes: Vec<RouteConfig>,
    /// True if the order of the routes is that of their patterns and conditions, the most specific first.
    pub orders_routes: bool,
    /// Pages for error statuses.
    pub error_pages: Vec<ErrorPageConfig>,
    /// Bytes of a request's content.
    pub body_bytes_max: BodyBytesMax,
    /// Rules before and after the handlers.
    pub rules: RulesConfig,
    /// Access log of the site, in place of the server's.
    pub access_log: Option<AccessLog>,
    /// Choice of the requests that its log has; `None` is all.
    pub log_filter: Option<Arc<LogFilter>>,
    /// Turns off access logging for the site, in the server's access log too.
    pub access_log_off: bool,
    /// Paths whose requests are not logged.
    pub unlogged: Vec<PathPattern>,
    /// Maximum rates of responses.
    pub rates: ResponseRates,
    /// Set if the site speaks FTP on its addresses, and no HTTP.
    pub ftp: Option<Arc<FtpConfig>>,
}

impl SiteConfig {
    /// Name in metrics: the first name of the site, or `_` without names.
    pub fn label(&self) -> String {
        self.names.first().map_or_else(|| "_".to_owned(), HostPattern::to_string)
    }
}

/// View of the server's own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusView {
    /// In which form.
    pub kind: StatusViewKind,
}

/// In which form the server tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusViewKind {
    /// As metrics, for Prometheus.
    Metrics,
    /// As a page that plots them.
    Page,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Listen {
    /// TCP over IPv4 or IPv6.
    Tcp(SocketAddr),
    /// A unix socket at this path, with these permissions.
    Unix(PathBuf, u32),
    /// A socket that was open when the process began (systemd's socket activation), by name.
    Inherited(String),
}

/// Hosts that a site answers to. Names are in lower case, without a trailing dot or port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// Just this name or address.
    Exact(String),
    /// Any name that ends with this suffix, which begins with a dot: `*.example.com` is `.example.com`.
    Suffix(String),
    /// Any name that begins with this, which ends with a dot: `www.*` is `www.`.
    Prefix(String),
}

/// Configuration of the handler that answers.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one for each handler of a configuration")]
pub enum HandlerConfig {
    /// Files below a root.
    Files(FilesConfig),
    /// Fixed response.
    Respond(RespondConfig),
    /// Another server's answer.
    Forward(Box<ForwardConfig>),
    /// A script's or application's answer.
    Gateway(Arc<GatewayConfig>, GatewayPart),
    /// A WebAssembly module's answer.
    Module(Box<ModuleConfig>),
    /// View of the server's own state.
    Status(StatusView),
}

/// Part of a gateway's requests that a route handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayPart {
    /// Requests for scripts.
    Scripts,
    /// Requests that nothing else handles: directories without their slash, and the fallback.
    Rest,
}

/// Requests that another server answers.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardConfig {
    /// The name of the upstream: of one that the configuration has, or the address of a single server.
    pub upstream: String,
    /// Value of `Host`.
    pub host: ForwardHost,
    /// Header fields about the client for the upstream.
    pub client_fields: ClientFields,
    /// Passes fields with underscores in their names. Many applications treat these as fields with hyphens, or as
    /// variables that only servers set.
    pub underscore_fields: bool,
    /// Passes the client's header fields. Otherwise the upstream gets only those that this server sets.
    pub passes_fields: bool,
    /// Prefix removed from a path before it is forwarded; empty for none.
    pub strip_prefix: String,
    /// Bytes of a request's content.
    pub body_bytes_max: BodyBytesMax,
    /// Protocols, in lower case, that a connection may change to.
    pub upgrades: Vec<String>,
    /// Maximum time from the end of the request to the end of the response's head.
    pub first_byte_timeout: Duration,
    /// Maximum pause in the response body.
    pub between_bytes_timeout: Duration,
    /// Maximum time for the whole exchange; `None` is unlimited.
    pub total_timeout: Option<Duration>,
    /// Aborts the request when the client closes its connection, or its sending half.
    pub abort_with_client: bool,
    /// Maximum time without data in both directions of a tunnel.
    pub tunnel_timeout: Duration,
    /// Bytes of a response's head, and of its trailer section.
    pub response_head_bytes_max: usize,
    /// Field lines in a response's head.
    pub response_fields_max: usize,
    /// Caching of responses; `None` caches nothing.
    pub cache: Option<ResponseCaching>,
    /// Fields that are added and removed on the way.
    pub intermediary: Box<Intermediary>,
    /// Adds the requested target to a rewritten request, as scripts need it.
    pub tells_target_asked: bool,
    /// True if scripts or applications answer, a few at a time.
    pub runs_scripts: bool,
    /// Buffering of messages.
    pub buffers: Box<BufferingConfig>,
    /// Compression of responses.
    pub compression: CompressionSettings,
    /// Internal redirects by responses.
    pub internal_redirects: Box<InternalRedirects>,
    /// Retries by status; `None` retries none.
    pub retry: Option<Box<Retry>>,
    /// Shares of requests for other upstreams.
    pub splits: Vec<Split>,
    /// Shares of requests whose copies other upstreams get.
    pub mirrors: Vec<Mirror>,
    /// Changes of responses; `None` if there are none.
    pub rewrites: Option<Arc<ResponseRewrites>>,
}

/// Value of `Host` in a forwarded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardHost {
    /// The client's value.
    Keep,
    /// The address of the upstream's first server.
    Upstream,
    /// This.
    Set(String),
}

/// Header fields that tell an upstream about the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFields {
    /// By X-Forwarded-For, X-Forwarded-Host and X-Forwarded-Proto.
    XForwarded,
    /// By Forwarded (RFC 7239).
    Forwarded,
    /// By all of them.
    Both,
    /// Not at all.
    None,
    /// The request's own fields, from any sender.
    Keep,
}

impl ClientFields {
    /// Value for a word in the configuration.
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "forwarded" => Self::Forwarded,
            "both" => Self::Both,
            "none" => Self::None,
            "keep" => Self::Keep,
            _ => Self::XForwarded,
        }
    }
}

impl ForwardConfig {
    /// Forwarding to an upstream with the defaults.
    pub fn to(upstream: impl Into<String>) -> Self {
        Self {
            upstream: upstream.into(),
            host: ForwardHost::Keep,
            client_fields: ClientFields::XForwarded,
            underscore_fields: false,
            passes_fields: true,
            strip_prefix: String::new(),
            body_bytes_max: BodyBytesMax::Inherited,
            upgrades: vec!["websocket".into()],
            first_byte_timeout: Duration::from_secs(60),
            between_bytes_timeout: Duration::from_secs(60),
            total_timeout: None,
            abort_with_client: true,
            tunnel_timeout: Duration::from_secs(3600),
            response_head_bytes_max: 64 << 10,
            response_fields_max: 256,
            cache: None,
            intermediary: Box::default(),
            tells_target_asked: false,
            runs_scripts: false,
            buffers: Box::default(),
            compression: CompressionSettings::default(),
            internal_redirects: Box::default(),
            retry: None,
            splits: Vec::new(),
            mirrors: Vec::new(),
            rewrites: None,
        }
    }
}

/// Files below a root.
#[derive(Clone, Debug, PartialEq)]
pub struct FilesConfig {
    /// Directory of the files.
    pub root: RootPattern,
    /// Prefix that a path loses before its file is looked for; empty for none, and without a slash at its end.
    pub strip_prefix: String,
    /// File names tried for a directory.
    pub index: Vec<String>,
    /// Rejects directories without an index file: neither the fallback nor the next handler gets their paths.
    pub require_index: bool,
    /// True if what exists is rejected.
    pub forbidden: bool,
    /// Lists directories without an index file.
    pub browse: bool,
    /// Entries in a listing; the rest is left out, and the listing says so.
    pub browse_entries_max: usize,
    /// Serves names that begin with a dot.
    pub hidden: bool,
    /// Served, with status 200, for paths without a file (single-page applications): a path below the root.
    pub fallback: Option<String>,
    /// Extensions (without the dot) that are tried for a path without a file, in this order.
    pub extensions: Arc<[String]>,
    /// Serves `file.br`, `file.zst` and `file.gz` to clients that accept them.
    pub precompressed: bool,
    /// Compresses compressible types.
    pub compress: bool,
    /// Level of the encoders.
    pub compress_level: CompressionLevel,
    /// Least size, in bytes, for compression.
    pub compress_bytes_min: u64,
    /// Greatest size, in bytes, for compression.
    pub compress_bytes_max: u64,
    /// TUX's rule: only files that are world-readable, not executable and not sticky are served; the rest is declined.
    pub permission_rule: bool,
    /// Extensions (lower case, without the dot) of files that are left to the next handler, if there is one: programs,
    /// whose source is not for clients. Shared by all that have none of their own.
    pub exclude_extensions: Arc<[String]>,
    /// Ignores queries; otherwise a request with a query is declined if another handler follows.
    pub ignore_query: bool,
    /// `charset` parameter of text types; empty for none.
    pub charset: String,
    /// Content types by file extension (lower case, without the dot), before the built-in table. Shared by all that
    /// have none of their own.
    pub types: Arc<HashMap<String, String>>,
    /// Content type of files whose extension is unknown.
    pub default_type: String,
    /// Fields added to responses, by path or type; later rules win. Shared by all that have none of their own.
    pub fields: Arc<Vec<FieldRule>>,
}

/// A field set on responses for some paths or types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRule {
    /// Responses that get the field.
    pub matches: FieldMatch,
    /// Field name.
    pub name: String,
    /// Field value; empty takes the field away.
    pub value: String,
}

/// Responses to which a [`FieldRule`] applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldMatch {
    /// By path.
    Path(PathPattern),
    /// By content type: `text/css`, or `image/*` as the prefix `image/`.
    Type(String),
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            user: None,
            workers: None,
            pin_workers: true,
            grace_time: Duration::from_secs(30),
            upgrade_timeout: Duration::from_secs(60),
            server_field: true,
            http_versions: HttpVersions::default(),
            quic_congestion_control: CongestionControl::default(),
            listen_backlog: 4096,
            defer_accept: true,
            fast_open_queue: 0,
            no_delay: true,
            kernel_tls: KernelTlsConfig::default(),
            blocking_threads_max: 16,
            trusted_proxies: Vec::new(),
            trusted_proxies_files: Vec::new(),
            forwarded_field: ForwardedField::XForwardedFor,
            certificate_check_interval: Duration::from_secs(10),
            log_level: LogLevel::Info,
            access_log_flush_interval: Duration::from_millis(200),
            access_log_report_interval: Duration::from_secs(5),
            control_socket: None,
            control_plane: None,
            status_listen: Vec::new(),
            client_knowledge: ClientKnowledge::default(),
            buffer_directory: None,
            counters: true,
            counted_names_max: 100,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes_max: 16 << 10,
            fields_max: 100,
            target_bytes_max: 8 << 10,
            body_bytes_max: BodyBytesMax::Auto,
            requests_per_connection_max: 0,
            connections_max: None,
            connections_per_client_max: None,
            connections_per_network_max: None,
            client_memory_bytes_max: None,
            password_checks_max: 2,
            password_checks_waiting_max: 64,
            idle_timeout: Duration::from_secs(60),
            head_timeout: Duration::from_secs(15),
            tls_handshake_timeout: Duration::from_secs(10),
            tls_handshakes_per_second_max: 0,
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            rate_bytes_per_second_min: 240,
            linger_timeout: Duration::from_secs(2),
            tarpit: TarpitLimits::default(),
            lag_max: Duration::from_secs(1),
            ranges_max: 16,
            access_log_ring_bytes_max: 1 << 20,
            access_log_pending_bytes_max: 1 << 20,
            access_log_value_bytes_max: 8 << 10,
            buffers: BufferLimits::default(),
            http2: Http2Limits::default(),
        }
    }
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            memory_bytes_max: 256 << 20,
            memory_bytes_auto: true,
            object_bytes_max: 64 << 10,
            files_max: 1024,
            revalidate_after: Duration::from_secs(1),
            watch: true,
            watches_max: 16 << 10,
            roots_max: 4096,
            disk: None,
        }
    }
}

impl FilesConfig {
    /// The defaults, below this root.
    pub fn below(root: impl Into<String>) -> Self {
        Self {
            root: RootPattern {
                pieces: vec![RootPiece::Literal(root.into())],
                strip_www: false,
                strip_suffix: String::new(),
                symlinks: SymlinkRule::default(),
            },
            strip_prefix: String::new(),
            index: vec!["index.html".into()],
            require_index: false,
            forbidden: false,
            browse: false,
            browse_entries_max: 10_000,
            hidden: false,
            fallback: None,
            extensions: Arc::default(),
            precompressed: true,
            compress: true,
            compress_level: CompressionLevel::default(),
            compress_bytes_min: 1024,
            compress_bytes_max: 1 << 20,
            permission_rule: false,
            exclude_extensions: PROGRAM_EXTENSIONS.map(str::to_owned).into(),
            ignore_query: true,
            charset: "utf-8".into(),
            types: Arc::default(),
            default_type: "application/octet-stream".into(),
            fields: Arc::default(),
        }
    }

    /// Returns `true` if a directory can have any response of its own.
    pub fn serves_directories(&self) -> bool {
        !self.index.is_empty() || self.browse || self.require_index
    }
}

impl Listen {
    /// Returns `true` if only processes of this machine can connect, as far as the address shows.
    pub fn is_of_this_machine(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(..) => true,
            Self::Inherited(_) => false,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path, _) => write!(f, "unix:{}", path.display()),
            Self::Inherited(name) => write!(f, "systemd:{name}"),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Suffix(suffix) => write!(f, "*{suffix}"),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}
