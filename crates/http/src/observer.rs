//! Observer: gathers the status of the server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::disk_cache::{DiskStore, DiskUsage};
use crate::known_clients::Bans;
use crate::log::{LogCounts, ServerLog};
use crate::memory_budget::MemoryBudget;
use crate::metrics::{
    BotKind, CacheResult, ChallengeResult, Counter, Eviction, FtpDirection, FtpMetrics, HandlerKind, HistogramCounts,
    HolderCount, Inquiry, Limit, Metrics, ModuleFailure, ModuleMetrics, ShedReason, StatusClass, StreamMetrics,
    StreamRejection, StreamReport, VersionKind, WorkerMetrics, WorkerReport,
};
use crate::object_cache::ObjectStore;
use crate::shared_cache::SharedCache;
use crate::spool::SpoolStore;
use crate::status::{
    BotCount, BufferStatus, CacheResultCount, CertificateStatus, ClientMemoryStatus, DiscoveryStatus, DiskCacheStatus,
    EvictionCount, FtpStatus, FtpTransferCount, LimitCount, LogStatus, ModuleFailureCount, ModuleStatus,
    ObjectCacheStatus, OverloadStatus, PlaceStatus, ProcessStatus, ProgramStatus, QuicStatus, RequestCount,
    ServerStatus, ShedCount, SiteStatus, SpanStatus, StatusReport, StoreStatus, StreamRejectionCount, StreamStatus,
    StreamsStatus, TlsStatus, UpstreamStatus, WorkerStatus,
};
use crate::tls::SiteTls;
use crate::traces::SpanCounts;
use crate::upstream::SharedUpstream;

/// Time limit for the reply of a worker. A slower worker is stuck, and the status shows that.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Gathers the status for any thread that asks.
#[derive(Debug)]
pub struct Observer {
    started_unix_s: u64,
    metrics: Option<Arc<Metrics>>,
    sources: Mutex<StatusSources>,
    /// Latest status of the store that instances share.
    shared_store: Mutex<Option<StoreStatus>>,
}

/// Sources of the status other than counters. They change with the configuration.
#[derive(Clone, Debug, Default)]
pub struct StatusSources {
    /// Object cache.
    pub store: Option<Arc<ObjectStore>>,
    /// Memory held for clients.
    pub client_memory: Option<Arc<MemoryBudget>>,
    /// Buffered content of requests and responses.
    pub spools: Option<Arc<SpoolStore>>,
    /// Cache of responses on disk.
    pub disk: Option<Arc<DiskStore>>,
    /// Cache of responses that instances share.
    pub shared_cache: Option<Arc<SharedCache>>,
    /// Bans, and connections in the tarpit.
    pub bans: Option<Arc<Bans>>,
    /// The upstreams of the configuration.
    pub upstreams: Vec<Arc<SharedUpstream>>,
    /// Sites with TLS, each with its first name.
    pub certificates: Arc<[(String, Arc<SiteTls>)]>,
    /// Counts of access log records.
    pub log_counts: Option<LogCounts>,
    /// Server log.
    pub server_log: Option<ServerLog>,
    /// Counts of spans, if traces are on.
    pub span_counts: Option<Arc<SpanCounts>>,
    /// Counts of connections and datagrams of other protocols.
    pub streams: Option<Arc<StreamMetrics>>,
    /// Channels to the workers, with their numbers.
    pub inquiries: Vec<(usize, UnboundedSender<Inquiry>)>,
}

impl Observer {
    /// Creates an observer that knows only the counters, if there are any.
    pub fn new(metrics: Option<Arc<Metrics>>) -> Arc<Self> {
        Arc::new(Self {
            started_unix_s: unix_time().as_secs(),
            metrics,
            sources: Mutex::default(),
            shared_store: Mutex::default(),
        })
    }

    /// The counters, if there are any.
    pub fn metrics(&self) -> Option<&Arc<Metrics>> {
        self.metrics.as_ref()
    }

    /// Replaces the sources.
    pub fn apply(&self, sources: StatusSources) {
        *self.sources() = sources;
    }

    /// Sets the status of the store that instances share; `None` if there is none.
    pub fn set_shared_store(&self, status: Option<StoreStatus>) {
        *self.shared_store() = status;
    }

    fn shared_store(&self) -> MutexGuard<'_, Option<StoreStatus>> {
        // The value is always replaced as a whole, so a panic cannot leave it half changed.
        self.shared_store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gathers the status, with at most `requests_max` open requests per worker.
    pub async fn status(&self, requests_max: usize) -> StatusReport {
        let sources = self.sources().clone();
        let reports = ask_all(&sources.inquiries, requests_max).await;
        let now = unix_time();
        let mut status = StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_s: self.started_unix_s,
            unix_ms: now.as_millis() as u64,
            has_counters: self.metrics.is_some(),
            process: ProcessStatus::read(),
            store: self.shared_store().clone(),
            upstreams: upstream_statuses(&sources, &reports),
            certificates: most_urgent(certificates_of(&sources)),
            access_log: sources.log_counts.as_ref().map_or_else(LogStatus::default, |counts| {
                let counts = counts.total();
                LogStatus { written: counts.written, dropped: counts.dropped }
            }),
            log_lines_suppressed: sources.server_log.as_ref().map_or(0, ServerLog::suppressed),
            spans: sources.span_counts.as_ref().map(|counts| {
                let [(_, exported), (_, dropped), (_, failed)] = counts.by_result();
                SpanStatus { exported, dropped, failed }
            }),
            ..StatusReport::default()
        };
        if let Some(memory) = &sources.client_memory {
            status.client_memory =
                ClientMemoryStatus { held_bytes: memory.held_bytes(), limit_bytes: memory.limit_bytes() };
        }
        if let Some(usage) = sources.disk.as_ref().and_then(|disk| disk.usage()) {
            let DiskUsage { entries, bytes, hits, damaged, unwritten, evictions } = usage;
            let entries = entries as u64;
            status.disk_cache = Some(DiskCacheStatus { entries, bytes, hits, damaged, unwritten, evictions });
        }
        status.shared_cache = sources.shared_cache.as_ref().and_then(|cache| cache.usage());
        status.bots.tarpitted = sources.bans.as_ref().map_or(0, |bans| bans.tarpitted() as u64);
        if let Some(spools) = &sources.spools {
            let (memory_bytes_max, file_bytes_max) = spools.limits();
            let (memory_bytes, file_bytes) = (spools.memory_bytes(), spools.file_bytes());
            status.buffers = BufferStatus { memory_bytes, memory_bytes_max, file_bytes, file_bytes_max };
        }
        status.streams = sources.streams.as_ref().and_then(|streams| stream_status(streams));
        if let Some(store) = &sources.store {
            status.object_cache = cache_status(store);
        }
        status.requests_open = reports.iter().flatten().map(|report| report.requests_open as u64).sum();
        status.places = place_status(&reports);
        status.workers = worker_statuses(&sources.inquiries, &reports);
        status.overload = overload_status(&status);
        status.ftp.sessions_open = reports.iter().flatten().map(|report| report.ftp_sessions_open as u64).sum();
        let of_workers = reports.iter().flatten();
        status.ftp.live = of_workers.flat_map(|report| report.ftp_sessions.iter().cloned()).collect();
        status.ftp.live.sort_by_key(|session| (session.command.is_empty(), std::cmp::Reverse(session.age_ms)));
        status.requests = reports.into_iter().flatten().flat_map(|report| report.requests).collect();
        status.requests.sort_by_key(|request| std::cmp::Reverse(request.age_ms));
        if let Some(metrics) = &self.metrics {
            add_counts(&mut status, metrics);
            add_shed_counts(&mut status, metrics);
            let modules = metrics.modules().into_iter();
            status.modules = modules.map(|(name, metrics)| module_status(name, &metrics)).collect();
            let programs = metrics.programs();
            status.programs = ProgramStatus {
                running: programs.running.get(),
                started: programs.started.get(),
                rejected: programs.rejected.get(),
            };
        }
        status
    }

    /// All certificates, those that need attention first.
    pub fn certificates(&self) -> Vec<CertificateStatus> {
        certificates_of(&self.sources().clone())
    }

    fn sources(&self) -> MutexGuard<'_, StatusSources> {
        // The value is replaced as a whole, so a panic cannot leave it half changed.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Certificates in a status; `tailcoat certificates` lists all.
const CERTIFICATES_MAX: usize = 200;

/// Names of a certificate in a status.
const CERTIFICATE_NAMES_MAX: usize = 20;

fn certificates_of(sources: &StatusSources) -> Vec<CertificateStatus> {
    let of_site = |(name, site): &(String, Arc<SiteTls>)| {
        let (facts, renewal, config) = (site.facts(), site.renewal(), site.config());
        let whole = CertificateStatus {
            site: name.clone(),
            is_automatic: config.is_automatic,
            is_replaced: site.is_replaced(),
            file: config.certificates.first().map_or_else(String::new, |files| files.certificate.display().to_string()),
            error: renewal.error.unwrap_or_default(),
            next_try_unix_s: renewal.next_try_unix_seconds,
            ..CertificateStatus::default()
        };
        let each = facts.iter().map(|facts| CertificateStatus {
            names: facts.names.iter().take(CERTIFICATE_NAMES_MAX).cloned().collect(),
            issuer: facts.issuer.clone(),
            not_before_unix_s: Some(facts.not_before_unix_seconds),
            not_after_unix_s: Some(facts.not_after_unix_seconds),
            ..whole.clone()
        });
        let each: Vec<_> = each.collect();
        // An automatic certificate may not be there yet.
        if each.is_empty() { vec![whole] } else { each }
    };
    let mut certificates: Vec<_> = sources.certificates.iter().flat_map(of_site).collect();
    certificates.sort_by_cached_key(CertificateStatus::urgency);
    certificates
}

fn most_urgent(mut certificates: Vec<CertificateStatus>) -> Vec<CertificateStatus> {
    certificates.truncate(CERTIFICATES_MAX);
    certificates
}

/// Counts of other protocols; `None` if there is no listener for them, and was none.
fn stream_status(metrics: &StreamMetrics) -> Option<StreamsStatus> {
    let status = |(name, report): (String, StreamReport)| {
        let StreamReport { open, connections, failures, received_bytes, sent_bytes } = report;
        StreamStatus { name, open, connections, failures, received_bytes, sent_bytes }
    };
    let (listeners, backends) = (metrics.listeners(), metrics.backends());
    let is_used = !listeners.is_empty() || !backends.is_empty();
    let rejections = StreamRejection::ALL
        .into_iter()
        .map(|reason| StreamRejectionCount { reason: reason.label().to_owned(), count: metrics.rejections(reason) });
    is_used.then(|| StreamsStatus {
        open: metrics.open(),
        rejections: rejections.collect(),
        listeners: listeners.into_iter().map(status).collect(),
        backends: backends.into_iter().map(status).collect(),
    })
}

/// Asks all workers at once, and waits for all replies together.
async fn ask_all(inquiries: &[(usize, UnboundedSender<Inquiry>)], requests_max: usize) -> Vec<Option<WorkerReport>> {
    let asked: Vec<_> = inquiries
        .iter()
        .map(|(_, worker)| {
            let (answer, report) = oneshot::channel();
            // A worker that has ended does not reply.
            let _ = worker.send(Inquiry { requests_max, answer });
            report
        })
        .collect();
    let limit = Instant::now() + ANSWER_LIMIT;
    let mut reports = Vec::with_capacity(asked.len());
    for report in asked {
        reports.push(timeout_at(limit, report).await.ok().and_then(Result::ok));
    }
    reports
}

/// Clients and networks in a status.
const HOLDERS_REPORTED_MAX: usize = 10;

fn place_status(reports: &[Option<WorkerReport>]) -> PlaceStatus {
    let top = |of_worker: fn(&WorkerReport) -> &[HolderCount]| {
        let mut sums: Vec<HolderCount> = Vec::new();
        for reported in reports.iter().flatten().flat_map(of_worker) {
            match sums.iter_mut().find(|sum| sum.holder == reported.holder) {
                Some(sum) => sum.connections += reported.connections,
                None => sums.push(reported.clone()),
            }
        }
        sums.sort_by_key(|sum| std::cmp::Reverse(sum.connections));
        sums.truncate(HOLDERS_REPORTED_MAX);
        sums
    };
    PlaceStatus {
        places: reports.iter().flatten().map(|report| report.places).sum(),
        clients: top(|report| &report.clients),
        networks: top(|report| &report.networks),
    }
}

/// Status of workers by number. Workers that no longer have a channel have ended.
fn worker_statuses(
    inquiries: &[(usize, UnboundedSender<Inquiry>)],
    reports: &[Option<WorkerReport>],
) -> Vec<WorkerStatus> {
    let mut statuses = Vec::new();
    for ((index, _), report) in inquiries.iter().zip(reports) {
        let status = status_of_worker(&mut statuses, *index);
        status.has_ended = false;
        if let Some(report) = report {
            status.has_answered = true;
            status.busy_us = report.busy_us;
            status.connections = report.connections;
            status.requests_open = report.requests_open as u64;
            status.lag_ms = report.lag_ms;
            status.shed_level_permille = report.shed_level_permille;
            status.shed_reason.clone_from(&report.shed_reason);
        }
    }
    statuses
}

/// Entry of the worker with this number; a new entry counts as ended until its worker replies.
fn status_of_worker(statuses: &mut Vec<WorkerStatus>, index: usize) -> &mut WorkerStatus {
    for index in statuses.len()..=index {
        statuses.push(WorkerStatus { index, has_ended: true, ..WorkerStatus::default() });
    }
    &mut statuses[index]
}

fn upstream_statuses(sources: &StatusSources, reports: &[Option<WorkerReport>]) -> Vec<UpstreamStatus> {
    let idle = |index: usize| {
        let of_workers = reports.iter().flatten().filter_map(|report| report.upstream_idle.get(index));
        of_workers.map(|count| *count as u64).sum()
    };
    let statuses = sources.upstreams.iter().enumerate().map(|(index, upstream)| UpstreamStatus {
        name: upstream.name().to_owned(),
        responses: vec![0; StatusClass::ALL.len()],
        queue: upstream.queue_length() as u64,
        is_overloaded: upstream.is_queue_overloaded(),
        shed: upstream.queue_shed(),
        idle: idle(index),
        servers: upstream
            .server_states()
            .into_iter()
            .map(|state| ServerStatus {
                name: state.name,
                health: state.health.to_owned(),
                is_backup: state.is_backup,
                in_use: state.in_use.into(),
                requests: state.requests,
                failures: state.failures,
            })
            .collect(),
        discovery: upstream.discovery_state().map(|state| DiscoveryStatus {
            source: state.source,
            servers: state.servers,
            ignored: state.ignored,
            age_ms: state.age.map(|age| age.as_millis().try_into().unwrap_or(u64::MAX)),
            error: state.error,
            failures: state.failures,
            changes: state.changes,
        }),
        ..UpstreamStatus::default()
    });
    statuses.collect()
}

/// Current shedding and its reasons; counts are added later.
fn overload_status(status: &StatusReport) -> OverloadStatus {
    let is_shedding_for = |reason: &ShedReason| match reason {
        ShedReason::Queue => status.upstreams.iter().any(|upstream| upstream.is_overloaded),
        reason => status.workers.iter().any(|worker| worker.shed_reason == reason.name()),
    };
    let reasons: Vec<_> = ShedReason::ALL.iter().filter(|reason| is_shedding_for(reason)).collect();
    let reasons: Vec<_> = reasons.into_iter().map(|reason| reason.name().to_owned()).collect();
    let queued = status.upstreams.iter().map(|upstream| upstream.shed).sum();
    let count = |reason| if reason == ShedReason::Queue { queued } else { 0 };
    let shed =
        ShedReason::ALL.iter().map(|&reason| ShedCount { reason: reason.name().to_owned(), count: count(reason) });
    OverloadStatus { is_shedding: !reasons.is_empty(), reasons, shed: shed.collect() }
}

/// Adds the counts of shed requests.
fn add_shed_counts(status: &mut StatusReport, metrics: &Metrics) {
    let workers = metrics.workers();
    for (shed, &reason) in status.overload.shed.iter_mut().zip(ShedReason::ALL) {
        shed.count += workers.iter().map(|worker| worker.sheds(reason)).sum::<u64>();
    }
}

fn cache_status(store: &ObjectStore) -> ObjectCacheStatus {
    let (usage, limits) = (store.usage(), store.limits());
    ObjectCacheStatus {
        objects: usage.objects as u64,
        memory_bytes: usage.memory_bytes,
        memory_bytes_max: limits.memory_bytes_max,
        files: usage.files as u64,
        files_max: limits.files_max as u64,
        evictions: usage.evictions,
        file_content_bytes: store.file_memory().bytes(),
        response_bytes: store.content_memory().bytes(),
        ..ObjectCacheStatus::default()
    }
}

/// Adds the counts of workers.
fn add_counts(status: &mut StatusReport, metrics: &Metrics) {
    let workers = metrics.workers();
    let sum = |counter: fn(&WorkerMetrics) -> &Counter| workers.iter().map(|worker| counter(worker).get()).sum::<u64>();
    // Includes workers that have ended, so that their counts are not lost.
    for (index, worker) in workers.iter().enumerate() {
        let reported = status_of_worker(&mut status.workers, index);
        // Reads the closed ones first, so that they never exceed the opened ones.
        reported.connections_closed = worker.connections_closed.get();
        reported.connections_opened = worker.connections_opened.get();
        reported.received_bytes = worker.received_bytes.get();
        reported.sent_bytes = worker.sent_bytes.get();
    }
    status.object_cache.hits = sum(|worker| &worker.object_hits);
    status.object_cache.misses = sum(|worker| &worker.object_misses);
    status.panics = sum(|worker| &worker.panics);
    status.quic = QuicStatus {
        sends: sum(|worker| &worker.quic_sends),
        datagrams: sum(|worker| &worker.quic_datagrams),
        sends_failed: sum(|worker| &worker.quic_sends_failed),
    };
    status.tls = TlsStatus {
        full: sum(|worker| &worker.handshakes_full),
        resumed: sum(|worker| &worker.handshakes_resumed),
        failed: sum(|worker| &worker.handshakes_failed),
    };
    let results = CacheResult::ALL.iter().map(|&result| CacheResultCount {
        result: result.name().to_owned(),
        count: workers.iter().map(|worker| worker.cache_results(result)).sum(),
    });
    status.response_cache = results.collect();
    let limits = Limit::ALL.iter().map(|&limit| LimitCount {
        limit: limit.name().to_owned(),
        count: workers.iter().map(|worker| worker.limit_hits(limit)).sum(),
    });
    status.limits = limits.collect();
    let requests = BotKind::ALL.iter().map(|&kind| BotCount {
        kind: kind.name().to_owned(),
        count: workers.iter().map(|worker| worker.bots(kind)).sum(),
    });
    status.bots.requests = requests.collect();
    let challenges = ChallengeResult::ALL.iter().map(|&result| BotCount {
        kind: result.name().to_owned(),
        count: workers.iter().map(|worker| worker.challenges(result)).sum(),
    });
    status.bots.challenges = challenges.collect();
    let evictions = Eviction::ALL.iter().map(|&eviction| EvictionCount {
        awaited: eviction.name().to_owned(),
        count: workers.iter().map(|worker| worker.evictions(eviction)).sum(),
    });
    status.evictions = evictions.collect();
    add_ftp_counts(&mut status.ftp, &workers);
    let sites = metrics.site_names().into_iter().enumerate();
    status.sites = sites.filter_map(|(index, name)| site_status(index, name, &workers)).collect();
    for (index, name) in metrics.upstream_names().into_iter().enumerate() {
        add_upstream_counts(status, index, name, &workers);
    }
}

fn add_ftp_counts(status: &mut FtpStatus, workers: &[Arc<WorkerMetrics>]) {
    let sum = |counter: fn(&FtpMetrics) -> &Counter| workers.iter().map(|worker| counter(&worker.ftp).get()).sum();
    status.sessions = sum(|ftp| &ftp.sessions);
    status.logins = sum(|ftp| &ftp.logins);
    status.logins_rejected = sum(|ftp| &ftp.logins_rejected);
    status.sent_bytes = sum(|ftp| &ftp.sent_bytes);
    status.received_bytes = sum(|ftp| &ftp.received_bytes);
    for (&direction, is_complete) in FtpDirection::ALL.iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let count = workers.iter().map(|worker| worker.ftp.transfers(direction, is_complete)).sum();
        if count > 0 {
            status.transfers.push(FtpTransferCount { direction: direction.name().to_owned(), is_complete, count });
        }
    }
}

/// `None` for a name without requests that is not a site.
fn site_status(index: usize, name: String, workers: &[Arc<WorkerMetrics>]) -> Option<SiteStatus> {
    let of_workers = || workers.iter().filter_map(|worker| worker.site(index));
    of_workers().next()?;
    let mut durations = HistogramCounts::default();
    of_workers().for_each(|site| durations.add(&site.durations));
    let mut requests = Vec::new();
    for &handler in HandlerKind::ALL {
        for &class in StatusClass::ALL {
            for &version in VersionKind::ALL {
                let count = of_workers().map(|site| site.requests(handler, class, version)).sum();
                if count > 0 {
                    requests.push(RequestCount {
                        handler: handler.name().to_owned(),
                        status: class.name().to_owned(),
                        version: version.name().to_owned(),
                        count,
                    });
                }
            }
        }
    }
    Some(SiteStatus {
        name,
        requests,
        aborted: of_workers().map(|site| site.aborted.get()).sum(),
        content_bytes: of_workers().map(|site| site.content_bytes.get()).sum(),
        durations: durations.into(),
    })
}

fn add_upstream_counts(status: &mut StatusReport, index: usize, name: String, workers: &[Arc<WorkerMetrics>]) {
    let of_workers = || workers.iter().filter_map(|worker| worker.upstream(index));
    if of_workers().next().is_none() {
        return;
    }
    let mut first_byte = HistogramCounts::default();
    of_workers().for_each(|upstream| first_byte.add(&upstream.first_byte));
    let known = status.upstreams.iter().position(|upstream| upstream.name == name);
    let known = known.unwrap_or_else(|| {
        status.upstreams.push(UpstreamStatus { name, ..UpstreamStatus::default() });
        status.upstreams.len() - 1
    });
    let reported = &mut status.upstreams[known];
    let responses =
        (0..StatusClass::ALL.len()).map(|class| of_workers().map(|upstream| upstream.responses[class].get()).sum());
    reported.responses = responses.collect();
    reported.unanswered = of_workers().map(|upstream| upstream.unanswered.get()).sum();
    reported.retries = of_workers().map(|upstream| upstream.retries.get()).sum();
    reported.first_byte = first_byte.into();
}

fn module_status(name: String, metrics: &ModuleMetrics) -> ModuleStatus {
    let failures = ModuleFailure::ALL
        .iter()
        .map(|&failure| ModuleFailureCount { cause: failure.name().to_owned(), count: metrics.failures(failure) });
    ModuleStatus {
        name,
        instances: metrics.instances.get(),
        memory_bytes: metrics.memory_bytes.get(),
        compiling: metrics.compiling.get(),
        unusable: metrics.unusable.get(),
        requests: metrics.requests.get(),
        failures: failures.collect(),
    }
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
