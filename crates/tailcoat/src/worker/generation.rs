//! From what all workers share of a configuration to what one of them serves by.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::config::Config;
use crate::connection::{Generation, KernelTls, ListenerState, Shares};
use crate::handler::SharedSite;
use crate::log::{LogId, LogView, ServerLog};
use crate::metrics::{Metrics, NameSlot};
use crate::object_cache::WorkerCache;
use crate::overload::Overload;
use crate::routing::rules::{AllRules, RequestIds, Rules};
use crate::routing::{Bans, Router, SiteSetup};
use crate::tls::Validations;
use crate::traces::Tracer;
use crate::upstream::{SharedUpstream, Upstream};

/// Sites that a worker prepares before its connections have their turn.
const SITES_A_TURN: usize = 16;

/// What all workers share of a configuration.
pub struct GenerationPlan {
    /// The configuration.
    pub config: Arc<Config>,
    /// Open connections that each worker may have.
    pub connections_max: usize,
    /// Shares of them that clients and networks may hold when most are taken.
    pub shares: Shares,
    /// For each listener, by its number, the indices of its sites.
    pub listener_sites: Vec<Vec<usize>>,
    /// How connections of each listener are taken.
    pub listeners: Vec<ListenerState>,
    /// Whether a listener has been retired just now.
    pub has_retired: bool,
    /// When the kernel is to encipher what is sent over TLS, if ever.
    pub kernel_tls: Option<KernelTls>,
    /// What authorities ask for, if certificates are automatic.
    pub validations: Option<Arc<Validations>>,
    /// What all workers share of the sites.
    pub sites: Vec<Arc<SharedSite>>,
    /// The rules of all sites.
    pub rules: Arc<AllRules>,
    /// What all workers share of the upstreams.
    pub upstreams: Vec<Arc<SharedUpstream>>,
    /// For each site the log of its requests.
    pub site_logs: Vec<Option<LogId>>,
    /// For each site its TLS, if it has any: [`SiteTls::id`](crate::tls::SiteTls::id).
    pub site_tls: Vec<Option<u32>>,
    /// What is known of the logs.
    pub logs: LogView,
    /// Clients that are kept out.
    pub bans: Arc<Bans>,
    /// What is done about traces, if they are kept.
    pub tracer: Option<Arc<Tracer>>,
    /// Where is said what happened.
    pub server_log: ServerLog,
}

/// Makes a worker's generations, one after the other.
pub(super) struct GenerationBuilder {
    index: usize,
    cache: Rc<WorkerCache>,
    overload: Rc<Overload>,
    ids: Rc<RequestIds>,
    /// Where it is counted what the worker does, if it is.
    metrics: Option<Arc<Metrics>>,
    /// Those of the latest, with the connections that they keep.
    upstreams: Rc<RefCell<Vec<Rc<Upstream>>>>,
}

impl GenerationBuilder {
    /// For the worker of this index.
    pub(super) fn new(
        index: usize,
        cache: &Rc<WorkerCache>,
        metrics: Option<Arc<Metrics>>,
        overload: &Rc<Overload>,
    ) -> Self {
        let (cache, overload) = (Rc::clone(cache), Rc::clone(overload));
        Self { index, cache, overload, ids: Rc::default(), metrics, upstreams: Rc::default() }
    }

    /// The worker's part of the upstreams, which is that of the latest generation at any time.
    pub(super) fn upstreams(&self) -> &Rc<RefCell<Vec<Rc<Upstream>>>> {
        &self.upstreams
    }

    /// Makes the generation of a plan, letting connections have their turn meanwhile.
    pub(super) async fn build(&mut self, plan: &Arc<GenerationPlan>) -> Generation {
        let upstreams = self.reuse_upstreams(plan);
        let counted = self.count_sites(plan, &upstreams);
        let mut setups = Vec::with_capacity(plan.sites.len());
        let logs = plan.site_logs.iter().zip(&plan.site_tls);
        for (index, (shared, (&log, &tls))) in plan.sites.iter().zip(logs).enumerate() {
            if index % SITES_A_TURN == SITES_A_TURN - 1 {
                tokio::task::yield_now().await;
            }
            setups.push(SiteSetup {
                config: &plan.config.sites[index],
                handlers: shared.handlers(&self.cache, &upstreams, &self.overload),
                error_pages: shared.error_pages(&self.cache),
                rules: plan.rules.sites[index].as_ref().map(|rules| Rules::new(rules, &self.ids)),
                log,
                tls,
                server_log: plan.server_log.clone(),
                counted: counted[index],
            });
        }
        self.upstreams.replace(upstreams);
        let router = Router::new(setups, &plan.listener_sites).trusting(&plan.rules, &self.ids);
        let router =
            router.validated(plan.validations.as_ref()).banning(&plan.bans).tracing(plan.tracer.as_ref(), &self.ids);
        let config = &plan.config;
        let tells_destinations = config.upstreams.iter().any(|upstream| upstream.proxy_protocol.is_some())
            || config.gateways().next().is_some();
        let mut generation = Generation::new(router, config.limits.clone());
        generation.http_versions = config.server.http_versions;
        generation.server_field = config.server.server_field;
        generation.tells_destinations = tells_destinations;
        generation.kernel_tls = plan.kernel_tls;
        generation.listeners.clone_from(&plan.listeners);
        generation.connections_max = plan.connections_max;
        generation.shares = plan.shares;
        generation
    }

    /// The worker's part of the upstreams: of those that stay, the one that there is.
    fn reuse_upstreams(&self, plan: &GenerationPlan) -> Vec<Rc<Upstream>> {
        let before = self.upstreams.borrow();
        let upstream = |(index, shared): (usize, &Arc<SharedUpstream>)| {
            let known = before.iter().find(|known| Arc::ptr_eq(known.shared(), shared)).cloned();
            let seed = (self.index as u64) << 32 | index as u64;
            known.unwrap_or_else(|| Upstream::new(Arc::clone(shared), seed))
        };
        plan.upstreams.iter().enumerate().map(upstream).collect()
    }

    /// Has memory ready for what sites and upstreams count; returns where each site's requests are counted.
    fn count_sites(&self, plan: &GenerationPlan, upstreams: &[Rc<Upstream>]) -> Vec<NameSlot> {
        let Some(metrics) = &self.metrics else { return vec![NameSlot::NONE; plan.config.sites.len()] };
        for upstream in upstreams {
            upstream.count_at(metrics.upstream(upstream.name()));
        }
        let sites: Vec<_> = plan.config.sites.iter().map(|site| metrics.site(&site.label())).collect();
        metrics.worker(self.index).prepare(sites.iter().copied(), upstreams.iter().map(|upstream| upstream.counted()));
        sites
    }
}
