//! Turns a checked configuration into everything that workers share of it.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::io;
use std::sync::{Arc, OnceLock};

use rustls::server::ProducesTickets;

use super::ServerStartError;
use super::listeners::Listeners;
use super::memory::memory_bytes;
use crate::acme;
use crate::config::{AccessLog, CacheConfig, Config, UpstreamConfig};
use crate::confinement::Confined;
use crate::connection::{
    Abilities, AlternativeService, ClientLimit, KernelTls, ListenerState, QlogTraces, QuicKeys, QuicSettings,
    RESERVED_PLACES, Shares, StreamTaker,
};
use crate::disk_cache::DiskStore;
use crate::handler::{HandlerParts, SharedSite, UpstreamTable};
use crate::known_clients::Bans;
use crate::log::{LogChange, LogHandle, LogId, ServerLog, Trouble, event};
use crate::memory_budget::MemoryBudget;
use crate::metrics::Metrics;
use crate::modules::{Modules, Patience};
use crate::object_cache::ObjectStore;
use crate::observer::Observer;
use crate::overload::SharedOverload;
use crate::routing::rules::{AllRules, ChallengeSecret};
use crate::shared_cache::SharedCache;
use crate::spawner::Spawner;
use crate::spool::{SpoolLimits, SpoolStore};
use crate::stream_proxy::StreamProxy;
use crate::tls::{AllTls, SiteTls, TicketKey, Tickets};
use crate::traces::{SpanCounts, Tracer};
use crate::upstream::SharedUpstream;
use crate::worker::{GenerationPlan, SharedParts};

/// File descriptors reserved for listeners, logs and runtimes; connections and cached files share the others.
const DESCRIPTORS_RESERVED: usize = 64;

/// Fraction of the memory that the cache uses at most, as a divisor, unless the configuration sets a size.
const CACHE_PART: u64 = 4;

/// Fraction of the memory that clients may hold, as a divisor, unless the configuration sets a limit. Together with the
/// cache this leaves half of the memory to the program, its modules and the kernel's socket buffers.
const CLIENT_MEMORY_PART: u64 = 4;

/// Advice in the log when the server closes connections because clients hold too much memory.
const MEMORY_HELP: &str = "the client that holds most loses its largest connections first; if clients are honest and there is \
                           more memory, raise `client-memory-bytes-max`";
/// Limit of all buffers between clients and upstreams: this many bytes or this fraction of the memory (a divisor),
/// whichever is less, unless the configuration sets one.
const BUFFERED_BYTES_MAX: u64 = 128 << 20;
const BUFFERED_PART: u64 = 8;

/// Advice in the log when the cache keeps fewer files open than its configuration says.
const FILES_HELP: &str = "connections need the other half of the file descriptors; raise the limit of open files \
                          (`LimitNOFILE` of systemd, `ulimit -n`)";

/// Advice in the log when workers cannot accept connections.
const ACCEPT_HELP: &str = "raise the limit of open files (`LimitNOFILE` of systemd, `ulimit -n`) or add memory; until then \
                           new connections replace idle ones";

/// Advice in the log when `connections-max` is reached.
const PLACE_HELP: &str = "idle and slow connections are closed first; `tailcoat status` lists the clients with most connections: \
                          add proxies to `trusted-proxies`, ban attackers, or raise `connections-max`";

/// State that survives reloads.
pub(super) struct Lasting {
    pub(super) store: Arc<ObjectStore>,
    /// Buffers of messages between clients and upstreams.
    pub(super) spools: Arc<SpoolStore>,
    /// Cache of responses on disk.
    pub(super) disk: Arc<DiskStore>,
    /// Cache of responses that instances share.
    pub(super) shared_cache: Arc<SharedCache>,
    pub(super) access_log: LogHandle,
    pub(super) server_log: ServerLog,
    pub(super) tickets: Arc<Tickets>,
    /// Keys of QUIC.
    pub(super) quic_keys: Arc<QuicKeys>,
    /// Secret of challenges, for configurations without a key of their own.
    pub(super) challenge_secret: ChallengeSecret,
    /// Clients whose QUIC connections operators watch.
    pub(super) qlog: Arc<QlogTraces>,
    pub(super) client_limit: Arc<ClientLimit>,
    pub(super) bans: Arc<Bans>,
    /// Proxy of connections and datagrams of other protocols.
    pub(super) streams: Arc<StreamProxy>,
    pub(super) accept_trouble: Arc<Trouble>,
    /// Memory that clients hold, and its limit.
    pub(super) memory: Arc<MemoryBudget>,
    pub(super) memory_trouble: Arc<Trouble>,
    pub(super) place_trouble: Arc<Trouble>,
    /// Overload state that workers share.
    pub(super) overload: Arc<SharedOverload>,
    /// Counts of exported and dropped spans.
    pub(super) span_counts: Arc<SpanCounts>,
    /// Counters of the workers, if metrics are enabled.
    pub(super) metrics: Option<Arc<Metrics>>,
    /// Gathers the data for `tailcoat status` and metrics.
    pub(super) observer: Arc<Observer>,
    /// Set when a configuration first needs to start programs.
    pub(super) spawner: OnceLock<Arc<Spawner>>,
    /// Permissions that this process has kept.
    pub(super) confined: Confined,
    /// Kernel TLS features, if the server was started with `kernel-tls`.
    pub(super) kernel_tls: Option<Abilities>,
    /// Limit of open file descriptors of this process.
    pub(super) descriptors_max: usize,
}

/// Everything that workers share of one configuration.
pub(super) struct Assembly {
    pub(super) parts: Arc<SharedParts>,
    pub(super) modules: Arc<Modules>,
    pub(super) tls: AllTls,
}

/// Changes to apply when an assembly comes into use.
pub(super) struct Changes {
    pub(super) logs: LogChange,
    pub(super) certificates: acme::AcmePlan,
}

/// Extent to which a configuration may differ from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeExtent {
    /// Any part, and the files that it names.
    Any,
    /// Routes of a controller alone. What stays is used again without a look at its files.
    Routes,
}

impl Assembly {
    /// Assembles a configuration and opens all that it names, except listeners. It changes nothing that is in use.
    /// Unchanged parts of the configuration before keep their state. Modules that compile longer than `patience`
    /// start to serve later.
    ///
    /// # Errors
    /// The part that could not be opened.
    pub(super) fn new(
        mut config: Config,
        lasting: &Lasting,
        before: Option<(&Self, ChangeExtent)>,
        patience: Patience,
    ) -> Result<(Self, Changes), ServerStartError> {
        let reused = before.map(|(reused, _)| reused);
        let Lasting { store, server_log, .. } = lasting;
        let is_new = before.is_none_or(|(_, extent)| extent == ChangeExtent::Any);
        limit_files(&mut config.cache, lasting.descriptors_max, is_new.then_some(server_log));
        let cache = &mut config.cache;
        if cache.memory_bytes_auto {
            cache.memory_bytes_max = cache.memory_bytes_max.min(memory_bytes() / CACHE_PART);
        }
        config.limits.client_memory_bytes_max.get_or_insert_with(|| memory_bytes() / CLIENT_MEMORY_PART);
        let is_automatic =
            acme::place_certificates(&mut config).map_err(ServerStartError::at("cannot store certificates"))?;
        let (logs, site_logs) = prepare_logs(&config, &lasting.access_log)?;
        let unchanged = match before {
            Some((before, ChangeExtent::Routes)) => before.unchanged_sites(&config),
            _ => Vec::new(),
        };
        let upstreams = reuse_upstreams(&config, server_log, before)?;
        if let Some(routes) = &config.routes {
            upstreams.iter().for_each(|upstream| upstream.set_first_servers(routes));
        }
        let modules = Modules::load(
            &config,
            server_log,
            lasting.metrics.as_deref(),
            reused.map(|reused| &*reused.modules),
            patience,
        );
        let modules = Arc::new(modules.map_err(ServerStartError::at("cannot load module"))?);
        if config.starts_programs() && lasting.spawner.get().is_none() {
            let spawner = Spawner::start_threads(|| Ok(()));
            let spawner = spawner.map_err(ServerStartError::at("cannot start the threads that run programs"))?;
            // If another thread has set one meanwhile, this one is dropped and its threads end.
            let _ = lasting.spawner.set(spawner);
        }
        let table = UpstreamTable::new(&upstreams);
        let parts = HandlerParts {
            store,
            upstreams: &table,
            modules: &modules,
            log: server_log,
            observer: &lasting.observer,
            spawner: lasting.spawner.get(),
            spools: &lasting.spools,
            disk: &lasting.disk,
            shared_cache: &lasting.shared_cache,
        };
        let known = OnceCell::new();
        let mut sites: Vec<Arc<SharedSite>> = Vec::with_capacity(config.sites.len());
        for (index, site) in config.sites.iter().enumerate() {
            let before = unchanged.get(index).copied().flatten();
            let same = before.and_then(|before| reused?.parts.sites.get(before)).filter(|same| same.stays(&table));
            sites.push(match same {
                Some(same) => Arc::clone(same),
                None => {
                    let by_name = || known.get_or_init(|| Self::sites_by_name(reused, &unchanged));
                    let named = || by_name().get(&(site.names.as_slice(), site.listen.as_slice())).copied();
                    let itself = before.and_then(|before| reused?.parts.sites.get(before));
                    let known = itself.map(|site| &**site).or_else(named);
                    let shared = SharedSite::new(site, &config, parts, known, &sites);
                    Arc::new(shared.map_err(ServerStartError::at("cannot set up a site"))?)
                }
            });
        }
        let known = reused.map(|reused| &*reused.parts.rules);
        let rules = AllRules::with_unchanged(&config, server_log, &lasting.challenge_secret, known, &unchanged);
        let rules = rules.map(Arc::new).map_err(ServerStartError::at("cannot set up access rules and rate limits"))?;
        let tickets: Arc<dyn ProducesTickets> = Arc::clone(&lasting.tickets) as _;
        let tls = AllTls::with_unchanged(&config, &tickets, reused.map(|reused| &reused.tls), &unchanged);
        let tls = tls.map_err(ServerStartError::at("cannot load certificate"))?;
        if !tls.sites().is_empty() {
            let prepared = lasting.tickets.prepare().map_err(io::Error::other);
            prepared.map_err(ServerStartError::at("cannot create TLS session ticket keys"))?;
        }
        let certificates = acme::AcmePlan::new(&config, &tls, lasting.spawner.get().cloned())
            .map_err(ServerStartError::at("cannot store certificates"))?;
        let reused_tracer = reused.and_then(|reused| reused.parts.tracer.as_ref());
        let tracer = Tracer::reuse(config.traces.as_ref(), &lasting.span_counts, server_log, reused_tracer);
        let tracer = tracer.map_err(ServerStartError::at("cannot export traces"))?;
        let mut site_tls = vec![None; config.sites.len()];
        tls.sites().iter().for_each(|(index, site)| site_tls[*index] = Some(site.id));
        let validations = is_automatic.then(|| Arc::clone(tls.validations()));
        let config = Arc::new(config);
        let parts = SharedParts { config, upstreams, sites, rules, site_logs, site_tls, validations, tracer };
        let assembly = Self { parts: Arc::new(parts), modules, tls };
        Ok((assembly, Changes { logs, certificates }))
    }

    /// Sites of `reused`, by their names and addresses, except those that are unchanged.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn sites_by_name<'r>(
        reused: Option<&'r Self>,
        unchanged: &[Option<usize>],
    ) -> HashMap<(&'r [crate::config::HostPattern], &'r [crate::config::Listen]), &'r SharedSite> {
        let unchanged: HashSet<usize> = unchanged.iter().flatten().copied().collect();
        let sites = reused.into_iter().flat_map(|reused| reused.parts.config.sites.iter().zip(&reused.parts.sites));
        let changed = sites.enumerate().filter(|(index, _)| !unchanged.contains(index)).map(|(_, site)| site);
        changed.map(|(site, shared)| ((site.names.as_slice(), site.listen.as_slice()), &**shared)).collect()
    }

    /// Index here of each site of a configuration that is the same; `None` for others.
    fn unchanged_sites(&self, config: &Config) -> Vec<Option<usize>> {
        let before = self.parts.config.sites.iter().enumerate();
        let before: HashMap<_, _> = before.map(|(index, site)| (Arc::as_ptr(site), index)).collect();
        config.sites.iter().map(|site| before.get(&Arc::as_ptr(site)).copied()).collect()
    }

    /// Sites with TLS, each with its first name.
    pub(super) fn named_tls(&self) -> Arc<[(String, Arc<SiteTls>)]> {
        let sites = self.tls.sites().iter();
        sites.map(|(index, site)| (self.parts.config.sites[*index].label(), Arc::clone(site))).collect()
    }

    /// Plan by which each of `workers` workers serves.
    pub(super) fn generation(&self, listeners: &Listeners, workers: usize, lasting: &Lasting) -> GenerationPlan {
        let config = &self.parts.config;
        let mut listener_sites = vec![Vec::new(); listeners.count()];
        let mut listener_routes = Vec::new();
        if config.routes.is_some() {
            listener_routes.resize(listeners.count(), None);
        }
        let of_routes = config.routes.iter().flat_map(|routes| &routes.listeners);
        let of_routes: HashMap<_, _> = of_routes.map(|(listen, rules)| (listen, rules)).collect();
        let (tls, takes_fingerprints) = (self.tls.listeners(config), config.takes_fingerprints());
        let mut states = vec![ListenerState { is_retired: true, ..ListenerState::default() }; listeners.count()];
        for (number, plan) in listeners.plans() {
            listener_sites[usize::from(number)].clone_from(&plan.sites);
            if let Some(rules) = of_routes.get(&plan.listen) {
                listener_routes[usize::from(number)] = Some(Arc::clone(rules));
            }
            let tls = tls.get(&plan.listen).cloned();
            let quic = tls.as_ref().filter(|_| plan.has_http3 && listeners.has_datagrams(number));
            let quic = quic.and_then(|tls| {
                let congestion = config.server.quic_congestion_control;
                let (limits, traces) = (&config.limits, &lasting.qlog);
                QuicSettings::new(Arc::clone(tls), limits, congestion, traces, takes_fingerprints)
            });
            states[usize::from(number)] = ListenerState {
                is_proxied: plan.is_proxied,
                tls,
                alternative: listeners.datagram_port(number).filter(|_| quic.is_some()).map(AlternativeService::new),
                quic: quic.map(Arc::new),
                begins_with_tls: plan.has_tls,
                is_retired: false,
                is_reserved: config.is_for_monitoring(&plan.sites),
            };
        }
        let has_reserved = states.iter().any(|listener| listener.is_reserved);
        let reserved = if has_reserved { RESERVED_PLACES * workers } else { 0 };
        let connections_max = self.connections_max(lasting.descriptors_max.saturating_sub(reserved)).div_ceil(workers);
        let limits = &config.limits;
        GenerationPlan {
            parts: Arc::clone(&self.parts),
            connections_max,
            shares: Shares::of(
                connections_max,
                limits.connections_per_client_max.is_none(),
                limits.connections_per_network_max.is_none(),
            ),
            listener_sites,
            listener_routes,
            listeners: states,
            has_retired: listeners.has_retired(),
            kernel_tls: lasting.kernel_tls.map(|abilities| {
                let file_bytes_min = config.server.kernel_tls.file_bytes_min;
                KernelTls { file_bytes_min, abilities }
            }),
            stream_taker: Arc::clone(&lasting.streams) as Arc<dyn StreamTaker>,
            logs: lasting.access_log.view(),
            bans: Arc::clone(&lasting.bans),
            server_log: lasting.server_log.clone(),
        }
    }

    fn connections_max(&self, descriptors_max: usize) -> usize {
        let possible = descriptors_max.saturating_sub(self.parts.config.cache.files_max + DESCRIPTORS_RESERVED).max(16);
        self.parts.config.limits.connections_max.map_or(possible, |wanted| wanted.min(possible))
    }
}

/// Limits the files that the cache keeps open. Connections need most file descriptors; if the operator wants many files open,
/// half of them. The log says that such a limit is not reached.
fn limit_files(cache: &mut CacheConfig, descriptors_max: usize, log: Option<&ServerLog>) {
    let is_raised = cache.files_max > CacheConfig::default().files_max;
    let files_max = descriptors_max / if is_raised { 2 } else { 4 };
    if files_max >= cache.files_max {
        return;
    }
    cache.files_max = files_max;
    if let Some(log) = log.filter(|_| is_raised) {
        let values: &[(_, &dyn Display)] = &[("files_max", &files_max), ("file_descriptors", &descriptors_max)];
        log.warn(event("`files-max` was lowered", values), FILES_HELP);
    }
}

fn reuse_upstreams(
    config: &Config,
    log: &ServerLog,
    before: Option<(&Assembly, ChangeExtent)>,
) -> Result<Vec<Arc<SharedUpstream>>, ServerStartError> {
    let reused = before.map_or(&[][..], |(reused, _)| &reused.parts.upstreams);
    let looks_at_files = before.is_none_or(|(_, extent)| extent == ChangeExtent::Any);
    let known: HashMap<&str, &Arc<SharedUpstream>> = reused.iter().map(|known| (known.name(), known)).collect();
    let upstreams = config.upstreams.iter();
    let reuse = |upstream: &Arc<UpstreamConfig>| match known.get(upstream.name.as_str()).copied() {
        Some(known) if !looks_at_files && known.is_of(upstream) => Ok(Arc::clone(known)),
        known => SharedUpstream::reuse(upstream, log.clone(), known),
    };
    let upstreams: Result<_, _> = upstreams.map(reuse).collect();
    upstreams.map_err(io::Error::other).map_err(ServerStartError::at("cannot set up an upstream"))
}

/// Opens the access logs that are new; returns the log of each site.
fn prepare_logs(config: &Config, handle: &LogHandle) -> Result<(LogChange, Vec<Option<LogId>>), ServerStartError> {
    let (mut logs, mut shared): (Vec<AccessLog>, Option<usize>) = (Vec::new(), None);
    let mut add = |log: &AccessLog| {
        logs.push(log.clone());
        logs.len() - 1
    };
    // Most sites have the log of all sites, which is listed once.
    let chosen: Vec<Option<usize>> = config
        .sites
        .iter()
        .map(|site| match (&site.access_log, &config.access_log) {
            _ if site.access_log_off => None,
            (Some(own), _) => Some(add(own)),
            (None, Some(all)) => Some(*shared.get_or_insert_with(|| add(all))),
            (None, None) => None,
        })
        .collect();
    let options = crate::log::LogOptions::of(&config.server, &config.limits);
    let change = handle.prepare(&logs, options).map_err(ServerStartError::at("cannot start the access log"))?;
    let site_logs = chosen.iter().map(|log| log.and_then(|log| change.ids.get(log).copied())).collect();
    Ok((change, site_logs))
}

impl Lasting {
    /// Applies the configuration's limit of memory that clients may hold.
    pub(super) fn apply_memory_limit(&self, config: &Config) {
        self.memory.set_limit_bytes(config.limits.client_memory_bytes_max.unwrap_or(u64::MAX));
    }

    /// Applies the configuration's cache on disk. If its directory cannot be used, responses are kept in memory alone.
    pub(super) fn apply_disk_cache(&self, config: &Config) {
        if let Err(error) = self.disk.apply(config.cache.disk.as_ref()) {
            let help = "create the directory for the server's user; until then, responses are kept in memory alone";
            self.server_log.warn(crate::log::event("disk cache not opened", &[("reason", &error)]), help);
        }
    }

    /// Applies the configuration's limits of buffers between clients and upstreams.
    pub(super) fn apply_buffer_limits(&self, config: &Config) {
        let limits = config.limits.buffers;
        self.spools.apply(&SpoolLimits {
            directory: config.buffer_directory(),
            memory_bytes_max: limits
                .memory_bytes_max
                .unwrap_or_else(|| BUFFERED_BYTES_MAX.min(memory_bytes() / BUFFERED_PART)),
            file_bytes_max: limits.file_bytes_max,
            file_bytes_per_client_max: limits.file_bytes_per_client_max,
        });
    }

    /// State for the first configuration.
    ///
    /// # Errors
    /// The kernel lacks a feature that the server needs.
    pub(super) fn new(
        config: &Config,
        server_log: ServerLog,
        descriptors_max: usize,
        ticket_keys: Vec<TicketKey>,
        (quic_keys, challenge_secret): (Option<QuicKeys>, Option<ChallengeSecret>),
        confined: Confined,
    ) -> Result<Self, ServerStartError> {
        let options = crate::log::LogOptions::of(&config.server, &config.limits);
        let (access_log, _) = crate::log::start(&[], options, server_log.clone())
            .map_err(ServerStartError::at("cannot start the access log"))?;
        let store =
            ObjectStore::new(config.cache.clone()).map_err(ServerStartError::at("cannot set up the object cache"))?;
        let tickets = Tickets::new(ticket_keys);
        let tickets =
            tickets.map_err(io::Error::other).map_err(ServerStartError::at("cannot reuse TLS session ticket keys"))?;
        let quic_keys = quic_keys.map_or_else(QuicKeys::generate, Ok).map_err(io::Error::other);
        let quic_keys = quic_keys.map_err(ServerStartError::at("cannot create keys of HTTP/3"))?;
        let challenge_secret = challenge_secret.map_or_else(ChallengeSecret::generate, Ok).map_err(io::Error::other);
        let challenge_secret = challenge_secret.map_err(ServerStartError::at("cannot create the key of challenges"))?;
        let metrics = config.server.counters.then(|| Metrics::new(config.server.counted_names_max));
        Ok(Self {
            observer: Observer::new(metrics.clone()),
            span_counts: Arc::default(),
            metrics,
            store,
            access_log,
            spools: SpoolStore::new(server_log.clone()),
            disk: DiskStore::new(server_log.clone()),
            shared_cache: Arc::default(),
            accept_trouble: Arc::new(Trouble::new(server_log.clone(), ACCEPT_HELP)),
            memory: Arc::default(),
            memory_trouble: Arc::new(Trouble::new(server_log.clone(), MEMORY_HELP)),
            place_trouble: Arc::new(Trouble::new(server_log.clone(), PLACE_HELP)),
            overload: Arc::new(SharedOverload::new(server_log.clone())),
            streams: Arc::new(StreamProxy::new(&server_log)),
            server_log,
            tickets,
            quic_keys: Arc::new(quic_keys),
            challenge_secret,
            client_limit: Arc::default(),
            qlog: Arc::default(),
            bans: Arc::new(Bans::with_decisions()),
            spawner: confined.spawner().map_or_else(OnceLock::new, |spawner| Arc::clone(spawner).into()),
            confined,
            kernel_tls: None,
            descriptors_max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_leave_descriptors_to_connections() {
        for (configured, descriptors_max, expect) in
            [(1_024, 20_000, 1_024), (1_024, 1_024, 256), (10_000, 1_024, 512), (10_000, 65_536, 10_000), (0, 1_024, 0)]
        {
            let mut cache = CacheConfig { files_max: configured, ..CacheConfig::default() };
            limit_files(&mut cache, descriptors_max, None);
            assert_eq!(cache.files_max, expect, "{configured} of {descriptors_max}");
        }
    }
}
