//! Builds a worker's own state ([`Generation`]) from the plan that all workers share.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::config::Config;
use crate::connection::{Generation, KernelTls, ListenerState, Shares};
use crate::handler::{Encoders, SharedSite};
use crate::known_clients::Bans;
use crate::log::{LogId, LogView, ServerLog};
use crate::metrics::{Metrics, NameSlot};
use crate::object_cache::WorkerCache;
use crate::overload::Overload;
use crate::routing::rules::{AllRules, RequestIds, Rules};
use crate::routing::{Router, SiteSetup};
use crate::tls::Validations;
use crate::traces::Tracer;
use crate::upstream::{SharedUpstream, Upstream};

/// Sites that a worker prepares before it serves connections again.
const SITES_A_TURN: usize = 16;

/// Parts of a configuration that workers and the server share. The same in all generations of the configuration.
pub struct SharedParts {
    /// Configuration that they were made from.
    pub config: Arc<Config>,
    /// Shared part of each upstream.
    pub upstreams: Vec<Arc<SharedUpstream>>,
    /// Shared part of each site.
    pub sites: Vec<Arc<SharedSite>>,
    /// Rules of all sites.
    pub rules: Arc<AllRules>,
    /// Access log of each site, by the site's index.
    pub site_logs: Vec<Option<LogId>>,
    /// TLS identity of each site that has TLS: [`SiteTls::id`](crate::tls::SiteTls::id).
    pub site_tls: Vec<Option<u32>>,
    /// Responses to the CA's challenges (ACME), if certificates are automatic.
    pub validations: Option<Arc<Validations>>,
    /// Exporter of traces, if tracing is enabled.
    pub tracer: Option<Arc<Tracer>>,
}

/// Plan by which workers serve: the shared parts, with the listeners and limits of a number of workers.
pub struct GenerationPlan {
    /// Parts of the configuration.
    pub parts: Arc<SharedParts>,
    /// Limit of open connections of each worker.
    pub connections_max: usize,
    /// Shares of the places that a client or network may hold when most are taken.
    pub shares: Shares,
    /// Indices of each listener's sites, by the listener's number.
    pub listener_sites: Vec<Vec<usize>>,
    /// Index of each listener's routes of a controller, by the listener's number.
    pub listener_routes: Vec<Option<usize>>,
    /// Protocol settings of each listener, by its number.
    pub listeners: Vec<ListenerState>,
    /// True if this change has retired a listener.
    pub has_retired: bool,
    /// Rules for kernel TLS, if it is enabled.
    pub kernel_tls: Option<KernelTls>,
    /// Access logs, as the worker's recorder needs them.
    pub logs: LogView,
    /// Banned clients and networks.
    pub bans: Arc<Bans>,
    /// Server log.
    pub server_log: ServerLog,
}

/// Builds a worker's generations, one after another.
pub(super) struct GenerationBuilder {
    index: usize,
    cache: Rc<WorkerCache>,
    encoders: Rc<Encoders>,
    overload: Rc<Overload>,
    ids: Rc<RequestIds>,
    /// Counters of the workers, if metrics are enabled.
    metrics: Option<Arc<Metrics>>,
    /// The worker's upstreams in the latest generation, with their idle connections.
    upstreams: Rc<RefCell<Vec<Rc<Upstream>>>>,
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
        let (cache, overload) = (Rc::clone(cache), Rc::clone(overload));
        Self { index, cache, encoders, overload, ids: Rc::default(), metrics, upstreams: Rc::default() }
    }

    /// The worker's upstreams, always those of the latest generation.
    pub(super) fn upstreams(&self) -> &Rc<RefCell<Vec<Rc<Upstream>>>> {
        &self.upstreams
    }

    /// Builds the generation of a plan; yields to connections between sites.
    pub(super) async fn build(&mut self, plan: &Arc<GenerationPlan>) -> Generation {
        let parts = &plan.parts;
        let upstreams = self.reuse_upstreams(parts);
        let counted = self.count_sites(parts, &upstreams);
        let mut setups = Vec::with_capacity(parts.sites.len());
        let logs = parts.site_logs.iter().zip(&parts.site_tls);
        for (index, (shared, (&log, &tls))) in parts.sites.iter().zip(logs).enumerate() {
            if index % SITES_A_TURN == SITES_A_TURN - 1 {
                tokio::task::yield_now().await;
            }
            setups.push(SiteSetup {
                config: &parts.config.sites[index],
                gate: parts.rules.gates[index].clone(),
                ftp: shared.ftp(&parts.config.sites[index], &self.cache),
                handlers: shared.handlers(&self.cache, &upstreams, &self.overload),
                error_pages: shared.error_pages(&self.cache),
                pace: shared.pace(&parts.config.sites[index]),
                encoders: Rc::clone(&self.encoders),
                rules: parts.rules.sites[index].as_ref().map(|rules| {
                    let authorizers = shared.authorizers(&upstreams, &self.overload);
                    Rules::new(rules, &self.ids).authorizing(authorizers).banning(&plan.bans)
                }),
                log,
                tls,
                server_log: plan.server_log.clone(),
                counted: counted[index],
            });
        }
        self.upstreams.replace(upstreams);
        let routes = parts.config.routes.as_ref().map(|routes| (routes, plan.listener_routes.as_slice()));
        let router = Router::with_routes(setups, &plan.listener_sites, routes).trusting(&parts.rules, &self.ids);
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
        generation.listeners.clone_from(&plan.listeners);
        generation.connections_max = plan.connections_max;
        generation.shares = plan.shares;
        generation
    }

    /// The worker's part of each upstream, reused where the shared part is unchanged.
    fn reuse_upstreams(&self, parts: &SharedParts) -> Vec<Rc<Upstream>> {
        let before = self.upstreams.borrow();
        let upstream = |(index, shared): (usize, &Arc<SharedUpstream>)| {
            let known = before.iter().find(|known| Arc::ptr_eq(known.shared(), shared)).cloned();
            let seed = (self.index as u64) << 32 | index as u64;
            known.unwrap_or_else(|| Upstream::new(Arc::clone(shared), seed))
        };
        parts.upstreams.iter().enumerate().map(upstream).collect()
    }

    /// Registers the names of sites and upstreams as metrics labels; returns the slot of each site.
    fn count_sites(&self, parts: &SharedParts, upstreams: &[Rc<Upstream>]) -> Vec<NameSlot> {
        let Some(metrics) = &self.metrics else { return vec![NameSlot::NONE; parts.config.sites.len()] };
        for upstream in upstreams {
            upstream.count_at(metrics.upstream(upstream.name()));
        }
        let sites: Vec<_> = parts.config.sites.iter().map(|site| metrics.site(&site.label())).collect();
        metrics.worker(self.index).prepare(sites.iter().copied(), upstreams.iter().map(|upstream| upstream.counted()));
        sites
    }
}
