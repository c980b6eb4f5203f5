//! Status as data, in the form that the control socket and the status page use.

use serde::{Deserialize, Serialize};

use super::ProcessStatus;
use crate::metrics::{
    HandlerKind, HistogramCounts, HolderCount, LiveFtpSession, LiveRequest, StageCounts, upper_bound_us,
};

/// Status of the server at one moment. Counts are since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusReport {
    /// Version of the program.
    pub version: String,
    /// Start of the server, in seconds since 1970.
    pub started_unix_s: u64,
    /// Time of this status, in milliseconds since 1970.
    pub unix_ms: u64,
    /// True if workers count; otherwise all counts are missing.
    pub has_counters: bool,
    /// Process, as the kernel sees it.
    pub process: ProcessStatus,
    /// Workers.
    pub workers: Vec<WorkerStatus>,
    /// Load shedding and its reasons.
    pub overload: OverloadStatus,
    /// Sites, and `none` and `other`.
    pub sites: Vec<SiteStatus>,
    /// Upstreams.
    pub upstreams: Vec<UpstreamStatus>,
    /// WebAssembly modules by name.
    pub modules: Vec<ModuleStatus>,
    /// CGI programs.
    pub programs: ProgramStatus,
    /// Object cache: files and responses in memory.
    pub object_cache: ObjectCacheStatus,
    /// Cache of responses on disk, if there is one.
    #[serde(default)]
    pub disk_cache: Option<DiskCacheStatus>,
    /// Cache of responses that instances share, if there is one.
    #[serde(default)]
    pub shared_cache: Option<SharedCacheStatus>,
    /// Memory that clients hold.
    pub client_memory: ClientMemoryStatus,
    /// Buffered content of requests and responses.
    pub buffers: BufferStatus,
    /// Results of the response caches.
    pub response_cache: Vec<CacheResultCount>,
    /// TLS handshakes.
    pub tls: TlsStatus,
    /// Certificates that most need attention: those with errors, then those that expire first.
    pub certificates: Vec<CertificateStatus>,
    /// Access logs.
    pub access_log: LogStatus,
    /// Lines of the server log suppressed because many were similar.
    pub log_lines_suppressed: u64,
    /// Store that instances share, if there is one that responds.
    #[serde(default)]
    pub store: Option<StoreStatus>,
    /// Trace spans, if traces are on.
    pub spans: Option<SpanStatus>,
    /// Limits that clients reached.
    pub limits: Vec<LimitCount>,
    /// Handling of bots.
    pub bots: BotStatus,
    /// Limit of connections, and the clients with the most.
    pub places: PlaceStatus,
    /// Connections closed to make room for others.
    pub evictions: Vec<EvictionCount>,
    /// Connections closed by a panic.
    pub panics: u64,
    /// Output of HTTP/3.
    pub quic: QuicStatus,
    /// Open requests.
    pub requests_open: u64,
    /// Requests open for the longest time.
    pub requests: Vec<LiveRequest>,
    /// FTP sessions and their transfers.
    pub ftp: FtpStatus,
    /// Connections and datagrams of other protocols, if there are listeners for them.
    pub streams: Option<StreamsStatus>,
}

/// Connections and datagrams that are forwarded: those of TLS by server name, TCP and UDP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamsStatus {
    /// Open connections, and clients of UDP.
    pub open: u64,
    /// Connections that were closed before they had a listener.
    pub rejections: Vec<StreamRejectionCount>,
    /// Listeners of the controller.
    pub listeners: Vec<StreamStatus>,
    /// Backends that had a connection.
    pub backends: Vec<StreamStatus>,
}

/// Connections of a listener, or to the servers of a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamStatus {
    /// Name that the controller has given it.
    pub name: String,
    /// Open connections, and clients of UDP.
    pub open: u64,
    /// Connections and clients of UDP since the start.
    pub connections: u64,
    /// Connections that reached no server.
    pub failures: u64,
    /// Bytes from clients.
    pub received_bytes: u64,
    /// Bytes to clients.
    pub sent_bytes: u64,
}

/// Connections that were closed for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamRejectionCount {
    /// `limit`, `client-hello` or `server-name`.
    pub reason: String,
    /// Number of connections.
    pub count: u64,
}

/// Store that instances share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreStatus {
    /// Engine and address.
    pub place: String,
    /// Name of this instance.
    pub instance: String,
    /// True if the latest operation failed.
    pub is_away: bool,
    /// Operations since the start.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that took too long.
    pub timeouts: u64,
    /// Values that could not be used, each time that they were read.
    pub unusable_values: u64,
    /// Mean time of an operation, in microseconds.
    pub mean_us: u64,
    /// Time of all operations, in microseconds.
    pub sum_us: u64,
    /// Time since the latest operation that succeeded, in milliseconds; `None` before the first.
    pub age_ms: Option<u64>,
    /// Number of the next order of another instance.
    pub next_event: Option<u64>,
    /// Orders that wait for the store.
    pub waiting_events: u64,
    /// Times that this instance may have missed orders, and has emptied its cache.
    pub resyncs: u64,
    /// True if this instance removes old orders and records.
    pub is_housekeeper: bool,
    /// Clock of this instance less the engine's, in milliseconds.
    pub skew_ms: Option<i64>,
    /// All instances, by name.
    pub instances: Vec<InstanceStatus>,
}

/// Instance that shares a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceStatus {
    /// Name in its configuration.
    pub name: String,
    /// Name with the start of its process.
    pub id: String,
    /// True for the instance that reports.
    pub is_this: bool,
    /// Version of the program.
    pub version: String,
    /// Start of the process, in seconds since 1970.
    pub started_unix_s: u64,
    /// Age of its record, in milliseconds.
    pub age_ms: u64,
    /// Orders that it has not applied yet.
    pub lag_events: Option<u64>,
    /// Own orders that wait for the store.
    pub waiting_events: u64,
    /// Clock of the instance less the engine's, in milliseconds.
    pub skew_ms: Option<i64>,
}

/// FTP sessions and their transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FtpStatus {
    /// Open sessions.
    pub sessions_open: u64,
    /// Sessions since the start.
    pub sessions: u64,
    /// Logins.
    pub logins: u64,
    /// Logins rejected because of the user or the password.
    pub logins_rejected: u64,
    /// Bytes of files and listings sent.
    pub sent_bytes: u64,
    /// Bytes of files received.
    pub received_bytes: u64,
    /// Transfers that have ended, by kind; kinds without transfers are left out.
    pub transfers: Vec<FtpTransferCount>,
    /// Sessions, first those with transfers.
    pub live: Vec<LiveFtpSession>,
}

/// Transfers of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FtpTransferCount {
    /// `download`, `upload` or `listing`.
    pub direction: String,
    /// True if they were complete.
    pub is_complete: bool,
    /// Number of transfers.
    pub count: u64,
}

/// Output of HTTP/3.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuicStatus {
    /// Calls that have sent datagrams; each sends up to 64.
    pub sends: u64,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Calls that have failed, whose datagrams are lost.
    pub sends_failed: u64,
}

/// One worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerStatus {
    /// Number of the worker, from 0.
    pub index: usize,
    /// True if the worker responded in time; otherwise its own data is missing.
    pub has_answered: bool,
    /// True if the worker has ended because fewer are configured; only its counts remain.
    pub has_ended: bool,
    /// CPU time of the worker's thread, in microseconds.
    pub busy_us: u64,
    /// Connections by state.
    pub connections: StageCounts,
    /// Connections accepted.
    pub connections_opened: u64,
    /// Connections closed.
    pub connections_closed: u64,
    /// Open requests.
    pub requests_open: u64,
    /// Bytes received from clients.
    pub received_bytes: u64,
    /// Bytes sent to clients.
    pub sent_bytes: u64,
    /// Event-loop lag in milliseconds: time that ready connections waited in the last tenth of a second.
    pub lag_ms: u64,
    /// Load that the worker sheds: 0 to 1,000 for TLS handshakes, the next 1,000 for programs and modules, the last for
    /// upstreams.
    pub shed_level_permille: u64,
    /// Reason of the shedding; empty without shedding.
    pub shed_reason: String,
}

/// Overload of the whole server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverloadStatus {
    /// True if a worker or the queue of an upstream sheds now.
    pub is_shedding: bool,
    /// Reasons: `lag`, `handshakes`, `memory`, `queue`.
    pub reasons: Vec<String>,
    /// Requests and handshakes shed, by reason.
    pub shed: Vec<ShedCount>,
}

/// Requests and handshakes shed for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShedCount {
    /// Reason.
    pub reason: String,
    /// Number of requests or handshakes.
    pub count: u64,
}

/// One site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SiteStatus {
    /// First name of the site.
    pub name: String,
    /// Requests with a response, by kind; kinds without requests are left out.
    pub requests: Vec<RequestCount>,
    /// Requests whose client disconnected before the response was complete.
    pub aborted: u64,
    /// Bytes of content sent.
    pub content_bytes: u64,
    /// Durations of requests.
    pub durations: TimesStatus,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestCount {
    /// Kind of the handler.
    pub handler: String,
    /// Class of the status.
    pub status: String,
    /// Version of HTTP.
    pub version: String,
    /// Number of requests.
    pub count: u64,
}

/// One upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UpstreamStatus {
    /// Name of the upstream.
    pub name: String,
    /// Responses by class of status, from 1xx.
    pub responses: Vec<u64>,
    /// Requests that no server responded to.
    pub unanswered: u64,
    /// Requests sent to another server after the first one failed.
    pub retries: u64,
    /// Times from the request for a connection to the head of the response.
    pub first_byte: TimesStatus,
    /// Requests that wait for a connection.
    pub queue: u64,
    /// True if requests wait too long, so that some are shed.
    pub is_overloaded: bool,
    /// Requests shed.
    pub shed: u64,
    /// Idle keep-alive connections.
    pub idle: u64,
    /// Servers of the upstream.
    pub servers: Vec<ServerStatus>,
    /// Source of servers, if it has one.
    pub discovery: Option<DiscoveryStatus>,
}

/// Source of an upstream's servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiscoveryStatus {
    /// Source as configured.
    pub source: String,
    /// Servers that it named last.
    pub servers: u64,
    /// Further servers that it named, above the limit.
    pub ignored: u64,
    /// Time since its latest response, in milliseconds; `None` before the first.
    pub age_ms: Option<u64>,
    /// Reason why the latest question failed.
    pub error: Option<String>,
    /// Questions that failed.
    pub failures: u64,
    /// Responses that changed the servers.
    pub changes: u64,
}

/// One server of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// Address as configured.
    pub name: String,
    /// `up`, `failing`, `trial`, `down` or `drained`.
    pub health: String,
    /// True for a server that is used only if no other is up.
    pub is_backup: bool,
    /// Connections in use.
    pub in_use: u64,
    /// Requests sent to the server.
    pub requests: u64,
    /// Requests that failed because of the server.
    pub failures: u64,
}

/// Modules of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModuleStatus {
    /// Name: that of the file, without extension.
    pub name: String,
    /// Instances, busy and idle.
    pub instances: u64,
    /// Memory of the instances, in bytes.
    pub memory_bytes: u64,
    /// Modules of this name that are compiling; their paths get 503.
    pub compiling: u64,
    /// Modules of this name that failed to load; their paths get 503.
    pub unusable: u64,
    /// Requests that an instance handled.
    pub requests: u64,
    /// Requests with no response or an incomplete one, by cause.
    pub failures: Vec<ModuleFailureCount>,
}

/// Failures of a module by one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModuleFailureCount {
    /// `failed`, or the name of the option that ended it.
    pub cause: String,
    /// Number of failures.
    pub count: u64,
}

/// CGI programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramStatus {
    /// Programs that run now.
    pub running: u64,
    /// Programs started.
    pub started: u64,
    /// Requests rejected because all programs were busy.
    #[serde(rename = "refused")]
    pub rejected: u64,
}

/// Object cache: files and responses in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectCacheStatus {
    /// Objects in the cache.
    pub objects: u64,
    /// Memory of their heads and contents, in bytes.
    pub memory_bytes: u64,
    /// Limit of that memory, in bytes.
    pub memory_bytes_max: u64,
    /// Open file descriptors of large files.
    pub files: u64,
    /// Limit of those descriptors.
    pub files_max: u64,
    /// Objects evicted.
    pub evictions: u64,
    /// Lookups of files that found an object ready to be served.
    pub hits: u64,
    /// Lookups of files that found none.
    pub misses: u64,
    /// Content of large files in memory, kept or being sent, in bytes.
    pub file_content_bytes: u64,
    /// Cached upstream responses, in the cache or being sent, in bytes.
    pub response_bytes: u64,
}

/// Memory held for clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientMemoryStatus {
    /// Bytes held.
    pub held_bytes: u64,
    /// Limit of those bytes.
    pub limit_bytes: u64,
}

/// Cache of responses on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskCacheStatus {
    /// Number of responses.
    pub entries: u64,
    /// Size of their files.
    pub bytes: u64,
    /// Responses read from disk and served.
    pub hits: u64,
    /// Files dropped because they were incomplete or changed.
    pub damaged: u64,
    /// Responses that were not written.
    pub unwritten: u64,
    /// Responses evicted to keep the limits.
    pub evictions: u64,
}

/// Cache of responses that instances share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedCacheStatus {
    /// True if responses are read from the store at present.
    pub is_used: bool,
    /// Responses read from the store and served.
    pub hits: u64,
    /// Responses that the store did not have.
    pub misses: u64,
    /// Responses that were not served, because a purge came after them, or may have.
    pub purged: u64,
    /// Values that are not whole, or not of Tailcoat.
    pub damaged: u64,
    /// Reads that requests did not wait for any longer.
    pub timeouts: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Responses written.
    pub written: u64,
    /// Responses that were not written.
    pub unwritten: u64,
}

/// Content of requests and responses that waits for a slow peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BufferStatus {
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Bytes that may be in memory.
    pub memory_bytes_max: u64,
    /// Bytes in files.
    pub file_bytes: u64,
    /// Bytes that may be in files.
    pub file_bytes_max: u64,
}

/// Requests with one result of the response cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheResultCount {
    /// Result: `hit`, `miss` and so on, as in access logs.
    pub result: String,
    /// Number of requests.
    pub count: u64,
}

/// TLS handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsStatus {
    /// Full handshakes.
    pub full: u64,
    /// Handshakes that resumed a session.
    pub resumed: u64,
    /// Handshakes that failed.
    pub failed: u64,
}

/// A certificate of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CertificateStatus {
    /// First name of the site.
    pub site: String,
    /// Names of the certificate, at most 20.
    pub names: Vec<String>,
    /// CA that has signed it.
    pub issuer: String,
    /// First second of validity, since 1970; `None` if there is no certificate yet.
    pub not_before_unix_s: Option<i64>,
    /// Last second of validity, since 1970; `None` if there is no certificate yet.
    pub not_after_unix_s: Option<i64>,
    /// True if the server obtains and renews it.
    pub is_automatic: bool,
    /// True if an operator has replaced that of the configuration.
    pub is_replaced: bool,
    /// File of the certificate.
    pub file: String,
    /// Error of the last try to obtain or read it; empty if it has succeeded.
    pub error: String,
    /// Time of the renewal, or of the next try, in seconds since 1970; `None` if it is not known.
    pub next_try_unix_s: Option<i64>,
}

impl CertificateStatus {
    /// Key of the order in which certificates need attention.
    pub fn urgency(&self) -> (bool, i64) {
        (self.error.is_empty(), self.not_after_unix_s.unwrap_or(i64::MIN))
    }
}

/// Access logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogStatus {
    /// Records written.
    pub written: u64,
    /// Records dropped.
    pub dropped: u64,
}

/// Trace spans by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpanStatus {
    /// Spans that a collector accepted.
    pub exported: u64,
    /// Spans dropped because the queue was full.
    pub dropped: u64,
    /// Spans that a collector rejected, or that could not be sent in time.
    pub failed: u64,
}

/// Times that clients reached one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitCount {
    /// Name of the option.
    pub limit: String,
    /// Number of times.
    pub count: u64,
}

/// Handling of bots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BotStatus {
    /// Requests by class.
    pub requests: Vec<BotCount>,
    /// Challenges that clients have returned, by result.
    pub challenges: Vec<BotCount>,
    /// Connections in the tarpit.
    pub tarpitted: u64,
}

/// Count by class or result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BotCount {
    /// Class or result.
    pub kind: String,
    /// Number of times.
    pub count: u64,
}

/// Limit of connections, and the clients with the most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlaceStatus {
    /// Limit of connections, without those of listeners for monitoring.
    pub places: u64,
    /// Clients with the most connections.
    pub clients: Vec<HolderCount>,
    /// Networks with the most connections.
    pub networks: Vec<HolderCount>,
}

/// Connections closed to make room for others, in one state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvictionCount {
    /// State of the connections.
    pub awaited: String,
    /// Number of connections.
    pub count: u64,
}

/// Histogram of durations: counts by the buckets of [`upper_bound_us`], up to the last one in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimesStatus {
    /// Counts by bucket.
    pub buckets: Vec<u64>,
    /// Sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl From<HistogramCounts> for TimesStatus {
    fn from(counts: HistogramCounts) -> Self {
        let used = counts.buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let mut buckets = counts.buckets;
        buckets.truncate(used);
        Self { buckets, sum_us: counts.sum_us }
    }
}

impl TimesStatus {
    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Number of durations up to this bound, which must be the bound of a bucket.
    pub fn count_up_to(&self, bound_us: u64) -> u64 {
        let within = self.buckets.iter().enumerate().take_while(|(index, _)| upper_bound_us(*index) <= bound_us);
        within.map(|(_, count)| count).sum()
    }

    /// Difference to `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let of_before = before.buckets.iter().chain(std::iter::repeat(&0));
        let buckets = self.buckets.iter().zip(of_before).map(|(now, before)| now.saturating_sub(*before)).collect();
        Self { buckets, sum_us: self.sum_us.saturating_sub(before.sum_us) }
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: &Self) {
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += count;
        }
        self.sum_us = self.sum_us.wrapping_add(other.sum_us);
    }

    /// Quantile in microseconds, with an error of at most a quarter; `None` without durations. The share is in
    /// thousandths.
    pub fn quantile_us(&self, thousandths: u64) -> Option<u64> {
        let count = self.count();
        let rank = (count * thousandths).div_ceil(1_000).max(1);
        let mut seen = 0;
        let index = self.buckets.iter().position(|bucket| {
            seen += bucket;
            seen >= rank
        })?;
        Some(upper_bound_us(index))
    }
}

impl StatusReport {
    /// Requests with a response, of all sites, without those for status and metrics.
    pub fn requests_answered(&self) -> u64 {
        self.visitors_requests().map(|requests| requests.count).sum()
    }

    /// Such requests with this class of status.
    pub fn requests_of_class(&self, class: &str) -> u64 {
        self.visitors_requests().filter(|requests| requests.status == class).map(|requests| requests.count).sum()
    }

    fn visitors_requests(&self) -> impl Iterator<Item = &RequestCount> {
        let all = self.sites.iter().flat_map(|site| &site.requests);
        all.filter(|requests| requests.handler != HandlerKind::Status.name())
    }

    /// Durations of the requests of all sites.
    pub fn durations(&self) -> TimesStatus {
        let mut sum = TimesStatus::default();
        self.sites.iter().for_each(|site| sum.add(&site.durations));
        sum
    }

    /// Connections of all workers by state.
    pub fn connections(&self) -> StageCounts {
        let mut sum = StageCounts::default();
        self.workers.iter().for_each(|worker| sum.add(&worker.connections));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Histogram;

    fn times(durations_us: &[u64]) -> TimesStatus {
        let histogram = Histogram::default();
        durations_us.iter().for_each(|duration_us| histogram.record(*duration_us));
        let mut counts = HistogramCounts::default();
        counts.add(&histogram);
        counts.into()
    }

    #[test]
    fn quantiles() {
        let hundred: Vec<u64> = (1..=100).map(|percent| percent * 1_000).collect();
        for (durations_us, thousandths, expect) in [
            (&[][..], 500, None),
            (&[7], 500, Some(7)),
            (&[1, 2, 3], 500, Some(2)),
            (&[1, 2, 3], 1_000, Some(3)),
            // Up to the ends of their buckets.
            (&hundred, 500, Some(57_343)),
            (&hundred, 990, Some(114_687)),
        ] {
            assert_eq!(times(durations_us).quantile_us(thousandths), expect, "{durations_us:?} {thousandths}");
        }
    }

    #[test]
    fn what_has_come_since() {
        let (before, after) = (times(&[1, 5]), times(&[1, 1, 5, 2_000]));
        let mut again = after.since(&before);
        assert_eq!((again.count(), again.sum_us), (2, 2_001));
        again.add(&before);
        assert_eq!(again, after);
    }
}
