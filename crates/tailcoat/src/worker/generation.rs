//! Builds a worker's own state ([`Generation`]) from the plan that all workers share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::config::{Config, ListenerRules, SiteConfig};
use crate::connection::{Context, Generation, KernelTls, ListenerState, Shares, StreamTaker};
use crate::handler::{DefaultPages, Encoders, ForwardWorker, SharedSite, WorkerParts, WorkerUpstreams};
use crate::known_clients::Bans;
use crate::log::{LogId, LogView, ServerLog};
use crate::metrics::{Metrics, NameSlot};
use crate::object_cache::WorkerCache;
use crate::overload::Overload;
use crate::routing::rules::{AllRules, RequestIds, Rules, SharedRules};
use crate::routing::{Router, SiteSetup, WorkerSite};
use crate::tls::Validations;
use crate::traces::Tracer;
use crate::upstream::{SharedUpstream, Upstream};

/// Work on sites before a worker serves connections again. To use a site again counts 1.
const WORK_A_TURN: usize = 2_048;

/// Work to build a site.
const BUILD_WORK: usize = WORK_A_TURN / 16;

/// Parts of a configuration that workers and the server share. The same in all generations of the configuration.
pub(crate) struct SharedParts {
    /// Configuration that they were made from.
    pub(crate) config: Arc<Config>,
    /// Shared part of each upstream.
    pub(crate) upstreams: Vec<Arc<SharedUpstream>>,
    /// Shared part of each site.
    pub(crate) sites: Vec<Arc<SharedSite>>,
    /// Rules of all sites.
    pub(crate) rules: Arc<AllRules>,
    /// Access log of each site, by the site's index.
    pub(crate) site_logs: Vec<Option<LogId>>,
    /// TLS identity of each site that has TLS: [`SiteTls::id`](crate::tls::SiteTls::id).
    pub(crate) site_tls: Vec<Option<u32>>,
    /// Responses to the CA's challenges (ACME), if certificates are automatic.
    pub(crate) validations: Option<Arc<Validations>>,
    /// Exporter of traces, if tracing is enabled.
    pub(crate) tracer: Option<Arc<Tracer>>,
}

/// Plan by which workers serve: the shared parts, with the listeners and limits of a number of workers.
pub(crate) struct GenerationPlan {
    /// Parts of the configuration.
    pub(crate) parts: Arc<SharedParts>,
    /// Limit of open connections of each worker.
    pub(crate) connections_max: usize,
    /// Shares of the places that a client or network may hold when most are taken.
    pub(crate) shares: Shares,
    /// Indices of each listener's sites, by the listener's number.
    pub(crate) listener_sites: Vec<Vec<usize>>,
    /// Routes of a controller for each listener that has any, by the listener's number; empty without a controller.
    pub(crate) listener_routes: Vec<Option<Arc<ListenerRules>>>,
    /// Protocol settings of each listener, by its number.
    pub(crate) listeners: Vec<ListenerState>,
    /// True if this change has retired a listener.
    pub(crate) has_retired: bool,
    /// Rules for kernel TLS, if it is enabled.
    pub(crate) kernel_tls: Option<KernelTls>,
    /// Proxy of connections that are not for HTTP.
    pub(crate) stream_taker: Arc<dyn StreamTaker>,
    /// Access logs, as the worker's recorder needs them.
    pub(crate) logs: LogView,
    /// Banned clients and networks.
    pub(crate) bans: Arc<Bans>,
    /// Server log.
    pub(crate) server_log: ServerLog,
}

/// Builds a worker's generations, one after another.
pub(super) struct GenerationBuilder {
    index: usize,
    cache: Rc<WorkerCache>,
    encoders: Rc<Encoders>,
    default_pages: Rc<DefaultPages>,
    forwards: ForwardWorker,
    ids: Rc<RequestIds>,
    /// Counters of the workers, if metrics are enabled.
    metrics: Option<Arc<Metrics>>,
    /// The worker's upstreams in the latest generation, with their idle connections.
    upstreams: Rc<RefCell<WorkerUpstreams>>,
    /// Sites of the latest generation.
    sites: HashMap<*const SiteConfig, BuiltSite>,
}

/// A worker's site, and all that it was built from.
struct BuiltSite {
    config: Arc<SiteConfig>,
    shared: Arc<SharedSite>,
    rules: Option<Arc<SharedRules>>,
    log: Option<LogId>,
    tls: Option<u32>,
    has_server_field: bool,
    site: WorkerSite,
}

impl GenerationBuilder {
    /// Builder for the worker with this index.
    pub(super) fn new(
        index: usize,
        cache: &Rc<WorkerCache>,
        metrics: Option<Arc<Metrics>>,
        overload: &Rc<Overload>,
    ) -> Self {
        let encoders = Rc::new(Encoders::new(cache.store()));
        let forwards = ForwardWorker { overload: Rc::clone(overload), buffer: Rc::default() };
        let (cache, ids, upstreams, sites) = (Rc::clone(cache), Rc::default(), Rc::default(), HashMap::new());
        let default_pages = Rc::default();
        Self { index, cache, encoders, default_pages, forwards, ids, metrics, upstreams, sites }
    }

    /// The worker's upstreams, always those of the latest generation.
    pub(super) fn upstreams(&self) -> &Rc<RefCell<WorkerUpstreams>> {
        &self.upstreams
    }

    /// Builds the generation of a plan. It uses unchanged parts of the one that serves, and yields to connections between
    /// sites.
    pub(super) async fn build(&mut self, plan: &Arc<GenerationPlan>, serving: Option<&Context>) -> Generation {
        let parts = &plan.parts;
        let has_server_field = parts.config.server.server_field;
        if self.default_pages.has_server_field != has_server_field {
            self.default_pages = Rc::new(DefaultPages::new(has_server_field));
        }
        let upstreams = self.reuse_upstreams(parts);
        let mut known = std::mem::take(&mut self.sites);
        let (mut sites, mut work) = (Vec::with_capacity(parts.sites.len()), 0);
        for index in 0..parts.sites.len() {
            let config = &parts.config.sites[index];
            let reused = known.remove(&Arc::as_ptr(config)).filter(|known| known.is_of(parts, index));
            work += if reused.is_some() { 1 } else { BUILD_WORK };
            let built = reused.unwrap_or_else(|| self.build_site(plan, index, &upstreams));
            sites.push((Arc::clone(config), built.site.clone()));
            self.sites.insert(Arc::as_ptr(config), built);
            if work >= WORK_A_TURN {
                work = 0;
                tokio::task::yield_now().await;
            }
        }
        self.upstreams.replace(upstreams);
        let before = serving.map(Context::generation);
        let before = before.as_ref().map(|before| &before.router);
        let router = Router::with_routes(&sites, &plan.listener_sites, &plan.listener_routes, before);
        let router = router.trusting(&parts.rules, &self.ids);
        let router =
            router.validated(parts.validations.as_ref()).banning(&plan.bans).tracing(parts.tracer.as_ref(), &self.ids);
        let router = router.locating(&parts.rules.locations);
        let config = &parts.config;
        let tells_destinations = config.upstreams.iter().any(|upstream| upstream.proxy_protocol.is_some())
            || config.gateways().next().is_some();
        let mut generation = Generation::new(router, config.limits.clone());
        generation.http_versions = config.server.http_versions;
        generation.server_field = config.server.server_field;
        generation.tells_destinations = tells_destinations;
        generation.wants_fingerprints = config.takes_fingerprints();
        generation.kernel_tls = plan.kernel_tls;
        generation.stream_taker = Some(Arc::clone(&plan.stream_taker));
        generation.listeners.clone_from(&plan.listeners);
        generation.connections_max = plan.connections_max;
        generation.shares = plan.shares;
        generation
    }

    /// Builds a site.
    fn build_site(&self, plan: &GenerationPlan, index: usize, upstreams: &WorkerUpstreams) -> BuiltSite {
        let parts = &*plan.parts;
        let (config, shared) = (&parts.config.sites[index], &parts.sites[index]);
        let worker = WorkerParts { cache: &self.cache, upstreams, forwards: &self.forwards };
        let (rules, log, tls) = (&parts.rules.sites[index], parts.site_logs[index], parts.site_tls[index]);
        let counted = self.count_site(config);
        let site = WorkerSite::new(SiteSetup {
            config,
            gate: parts.rules.gates[index].clone(),
            ftp: shared.ftp(config, &self.cache),
            handlers: shared.handlers(&worker),
            error_pages: shared.error_pages(&self.cache),
            default_pages: Rc::clone(&self.default_pages),
            pace: shared.pace(config),
            encoders: Rc::clone(&self.encoders),
            rules: rules.as_ref().map(|rules| {
                let authorizers = shared.authorizers(&worker);
                Rules::new(rules, &self.ids).authorizing(authorizers).banning(&plan.bans)
            }),
            log,
            tls,
            server_log: plan.server_log.clone(),
            counted,
        });
        let (config, shared, rules) = (Arc::clone(config), Arc::clone(shared), rules.clone());
        let has_server_field = parts.config.server.server_field;
        BuiltSite { config, shared, rules, log, tls, has_server_field, site }
    }

    /// The worker's part of each upstream, reused where the shared part is unchanged.
    fn reuse_upstreams(&self, parts: &SharedParts) -> WorkerUpstreams {
        let mut slots = Vec::new();
        let upstreams = WorkerUpstreams::reuse(&parts.upstreams, &self.upstreams.borrow(), |index, shared| {
            let seed = (self.index as u64) << 32 | index as u64;
            let upstream = Upstream::new(Arc::clone(shared), seed);
            if let Some(metrics) = &self.metrics {
                let slot = metrics.upstream(upstream.name());
                upstream.count_at(slot);
                slots.push(slot);
            }
            upstream
        });
        if let Some(metrics) = &self.metrics {
            metrics.worker(self.index).prepare([], slots);
        }
        upstreams
    }

    /// Registers the name of a site as a label of metrics.
    fn count_site(&self, site: &SiteConfig) -> NameSlot {
        let Some(metrics) = &self.metrics else { return NameSlot::NONE };
        let slot = metrics.site(&site.label());
        metrics.worker(self.index).prepare([slot], []);
        slot
    }
}

impl BuiltSite {
    /// True if the site with this index would be built from the same parts.
    fn is_of(&self, parts: &SharedParts, index: usize) -> bool {
        let is_same = |(own, other): (&Arc<SharedRules>, &Arc<SharedRules>)| Arc::ptr_eq(own, other);
        let rules = &parts.rules.sites[index];
        Arc::ptr_eq(&self.config, &parts.config.sites[index])
            && Arc::ptr_eq(&self.shared, &parts.sites[index])
            && self.rules.is_some() == rules.is_some()
            && self.rules.as_ref().zip(rules.as_ref()).is_none_or(is_same)
            && (self.log, self.tls) == (parts.site_logs[index], parts.site_tls[index])
            && self.has_server_field == parts.config.server.server_field
            && parts.rules.gates[index].is_none()
    }
}
