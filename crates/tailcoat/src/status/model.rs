//! What there is to see, as data: the form in which it goes over the control socket and to the page.

use serde::{Deserialize, Serialize};

use super::ProcessStatus;
use crate::metrics::{HandlerKind, HistogramCounts, HolderCount, LiveRequest, StageCounts, upper_bound_us};

/// All that there is to see at a moment. Counts are since the server was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Of the program.
    pub version: String,
    /// When it was started, in seconds since 1970.
    pub started_unix_s: u64,
    /// When this was gathered, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Whether workers count; if not, all that they would have counted is missing.
    pub has_counters: bool,
    /// The process as the kernel sees it.
    pub process: ProcessStatus,
    /// Each worker.
    pub workers: Vec<WorkerStatus>,
    /// Shedding of requests, with its reasons.
    pub overload: OverloadStatus,
    /// Each site, and `none` and `other`.
    pub sites: Vec<SiteStatus>,
    /// Each upstream.
    pub upstreams: Vec<UpstreamStatus>,
    /// WebAssembly modules by their names.
    pub modules: Vec<ModuleStatus>,
    /// Programs that are started for requests.
    pub programs: ProgramStatus,
    /// Files and responses in memory.
    pub object_cache: ObjectCacheStatus,
    /// Memory that clients hold.
    pub client_memory: ClientMemoryStatus,
    /// What the caches before upstreams did.
    pub response_cache: Vec<CacheResultCount>,
    /// Handshakes.
    pub tls: TlsStatus,
    /// Access logs.
    pub access_log: LogStatus,
    /// Lines of the server's own log that were not shown, for there were many alike.
    pub log_lines_suppressed: u64,
    /// Spans, if traces are kept.
    pub spans: Option<SpanStatus>,
    /// How often somebody came to which limit.
    pub limits: Vec<LimitCount>,
    /// Places for connections, and which clients hold most.
    pub places: PlaceStatus,
    /// Connections that were closed because others needed their places.
    pub evictions: Vec<EvictionCount>,
    /// Connections that a panic has ended.
    pub panics: u64,
    /// Requests that are open.
    pub requests_open: u64,
    /// Those that have been open longest.
    pub requests: Vec<LiveRequest>,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerStatus {
    /// Its number, from 0.
    pub index: usize,
    /// Whether it has answered in time; if not, what only it knows is missing.
    pub has_answered: bool,
    /// Whether it is no more, for fewer are wanted: only what it has counted is left.
    pub has_ended: bool,
    /// Time that its thread has had a processor, in microseconds.
    pub busy_us: u64,
    /// Its connections by what they await.
    pub connections: StageCounts,
    /// Connections that were accepted.
    pub connections_opened: u64,
    /// Those that have ended.
    pub connections_closed: u64,
    /// Requests that are open.
    pub requests_open: u64,
    /// Bytes that came from clients.
    pub received_bytes: u64,
    /// Bytes that went to clients.
    pub sent_bytes: u64,
    /// How long ready connections waited for it in the last tenth of a second, in milliseconds.
    pub lag_ms: u64,
    /// How much it sheds: 0 to 1,000 for TLS handshakes, as much again for programs and modules, and again for upstreams.
    pub shed_level_permille: u64,
    /// Why it sheds; empty if it doesn't.
    pub shed_reason: String,
}

/// Overload of the whole server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverloadStatus {
    /// True if a worker or the queue of an upstream sheds now.
    pub is_shedding: bool,
    /// Why: `lag`, `handshakes`, `memory`, `queue`.
    pub reasons: Vec<String>,
    /// Requests and handshakes that were shed.
    pub shed: Vec<ShedCount>,
}

/// Requests and handshakes that were shed for a reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShedCount {
    /// Why.
    pub reason: String,
    /// How many requests or handshakes.
    pub count: u64,
}

/// A site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SiteStatus {
    /// Its first name.
    pub name: String,
    /// Requests that were answered; what has not happened is left out.
    pub requests: Vec<RequestCount>,
    /// Those whose clients went before they were answered.
    pub aborted: u64,
    /// Bytes of content that were sent.
    pub content_bytes: u64,
    /// How long requests took.
    pub durations: TimesStatus,
}

/// Requests of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestCount {
    /// Who has answered.
    pub handler: String,
    /// The class of the status.
    pub status: String,
    /// The version of HTTP.
    pub version: String,
    /// How many.
    pub count: u64,
}

/// An upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UpstreamStatus {
    /// Its name.
    pub name: String,
    /// Answers by the class of their status, from 1xx.
    pub responses: Vec<u64>,
    /// Requests that no server has answered.
    pub unanswered: u64,
    /// Servers that were asked besides the first.
    pub retries: u64,
    /// From when a connection was wanted to the head of the answer.
    pub first_byte: TimesStatus,
    /// Requests that wait for a connection.
    pub queue: u64,
    /// True if they wait too long, so that some are rejected.
    pub is_overloaded: bool,
    /// Requests that were rejected so.
    pub shed: u64,
    /// Connections that are kept for further requests.
    pub idle: u64,
    /// Its servers.
    pub servers: Vec<ServerStatus>,
}

/// A server of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// Its address, as it is configured.
    pub name: String,
    /// `up`, `trial` or `down`.
    pub health: String,
    /// Whether it is only there for when no other is.
    pub is_backup: bool,
    /// Connections in use.
    pub in_use: u64,
    /// Requests that were given to it.
    pub requests: u64,
    /// Those that failed by its fault.
    pub failures: u64,
}

/// A module, or all of its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModuleStatus {
    /// Its name: that of its file, without the extension.
    pub name: String,
    /// Instances that there are now: those at work, and those that wait for another request.
    pub instances: u64,
    /// Memory that they have now, in bytes.
    pub memory_bytes: u64,
    /// How many modules of this name are being compiled: their paths get 503.
    pub compiling: u64,
    /// How many have a file that can't be used: likewise.
    pub unusable: u64,
    /// Requests that an instance was given.
    pub requests: u64,
    /// Requests that it did not answer, or not whole.
    pub failures: Vec<ModuleFailureCount>,
}

/// How often a module failed in a way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModuleFailureCount {
    /// `failed`, or the name of the option that ended it.
    pub cause: String,
    /// How often.
    pub count: u64,
}

/// Programs that are started for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramStatus {
    /// Those that run now.
    pub running: u64,
    /// Those that were started.
    pub started: u64,
    /// Requests for which there was no place among those that run.
    pub refused: u64,
}

/// Files and responses in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectCacheStatus {
    /// Objects.
    pub objects: u64,
    /// Memory of their heads and contents, in bytes.
    pub memory_bytes: u64,
    /// What that may be.
    pub memory_bytes_max: u64,
    /// Open descriptors of large files.
    pub files: u64,
    /// How many there may be.
    pub files_max: u64,
    /// Objects that had to make room.
    pub evictions: u64,
    /// Lookups of files that found an object to be served at once.
    pub hits: u64,
    /// Lookups of files that did not.
    pub misses: u64,
    /// Content of upstreams' responses that anybody holds, in bytes.
    pub response_bytes: u64,
}

/// Memory that clients make this process hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientMemoryStatus {
    /// Bytes that they hold.
    pub held_bytes: u64,
    /// Bytes that they may hold.
    pub limit_bytes: u64,
}

/// How often a cache did something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheResultCount {
    /// What: `hit`, `miss` and so on, as in access logs.
    pub result: String,
    /// How often.
    pub count: u64,
}

/// Handshakes of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsStatus {
    /// With keys that were agreed upon anew.
    pub full: u64,
    /// That took up an earlier session.
    pub resumed: u64,
    /// That came to nothing.
    pub failed: u64,
}

/// Access logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogStatus {
    /// Records that logs have taken.
    pub written: u64,
    /// Records that were dropped.
    pub dropped: u64,
}

/// What became of the spans of traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpanStatus {
    /// Those that a collector has taken.
    pub exported: u64,
    /// Those for which the queue had no room.
    pub dropped: u64,
    /// Those that a collector has refused, or that it could not be given in time.
    pub failed: u64,
}

/// How often somebody came to a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitCount {
    /// The name of its option.
    pub limit: String,
    /// How often.
    pub count: u64,
}

/// Places for connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlaceStatus {
    /// How many there are, without those of listeners for monitoring.
    pub places: u64,
    /// Clients with most connections.
    pub clients: Vec<HolderCount>,
    /// Networks with most connections.
    pub networks: Vec<HolderCount>,
}

/// Connections that were closed because others needed their places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvictionCount {
    /// Stage that they awaited.
    pub awaited: String,
    /// How many.
    pub count: u64,
}

/// How long things took: counts by the buckets of [`upper_bound_us`], as far as there are any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimesStatus {
    /// By bucket.
    pub buckets: Vec<u64>,
    /// All durations together, in microseconds.
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
    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How many were at most so long, where that is the bound of a bucket.
    pub fn count_up_to(&self, bound_us: u64) -> u64 {
        let within = self.buckets.iter().enumerate().take_while(|(index, _)| upper_bound_us(*index) <= bound_us);
        within.map(|(_, count)| count).sum()
    }

    /// What has come since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let of_before = before.buckets.iter().chain(std::iter::repeat(&0));
        let buckets = self.buckets.iter().zip(of_before).map(|(now, before)| now.saturating_sub(*before)).collect();
        Self { buckets, sum_us: self.sum_us.saturating_sub(before.sum_us) }
    }

    /// Adds what another has.
    pub fn add(&mut self, other: &Self) {
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += count;
        }
        self.sum_us = self.sum_us.wrapping_add(other.sum_us);
    }

    /// The time that this share of all (in thousandths) took at most, in microseconds, to a quarter; `None` if there is
    /// nothing.
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

impl Status {
    /// Requests that were answered, of all sites; but for those that ask about the server itself.
    pub fn requests_answered(&self) -> u64 {
        self.visitors_requests().map(|requests| requests.count).sum()
    }

    /// Of these, those whose status is of this class.
    pub fn requests_of_class(&self, class: &str) -> u64 {
        self.visitors_requests().filter(|requests| requests.status == class).map(|requests| requests.count).sum()
    }

    fn visitors_requests(&self) -> impl Iterator<Item = &RequestCount> {
        let all = self.sites.iter().flat_map(|site| &site.requests);
        all.filter(|requests| requests.handler != HandlerKind::Status.name())
    }

    /// How long requests of all sites took.
    pub fn durations(&self) -> TimesStatus {
        let mut sum = TimesStatus::default();
        self.sites.iter().for_each(|site| sum.add(&site.durations));
        sum
    }

    /// Connections of all workers by what they await.
    pub fn connections(&self) -> StageCounts {
        let mut sum = StageCounts::default();
        self.workers.iter().for_each(|worker| sum.add(&worker.connections));
        sum
    }

    /// Open connections.
    pub fn connections_open(&self) -> u64 {
        self.workers.iter().map(|worker| worker.connections_opened.saturating_sub(worker.connections_closed)).sum()
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
            // To the end of their buckets.
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
