//! What workers count, and what they tell of themselves when they are asked.
//!
//! Each worker counts in memory of its own ([`WorkerMetrics`]): a relaxed load and store of what nobody else writes, without
//! a lock or an allocation. Who wants to know adds up what all workers have. What changes too often to be kept up to date,
//! such as which requests are open, is asked for with an [`Inquiry`], and costs nothing as long as nobody asks.

mod counter;
mod histogram;
mod kind;
mod module;
mod names;
mod report;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use counter::Counter;
pub use histogram::{BUCKETS, Histogram, HistogramCounts, upper_bound_us};
pub use kind::{CacheResult, Eviction, HandlerKind, Limit, ModuleFailure, ShedReason, StatusClass, VersionKind};
pub use module::{ModuleMetrics, ProgramMetrics, SharedCounter};
pub use names::NameSlot;
use names::Names;
pub use report::{HolderCount, Inquiry, LiveRequest, REQUESTS_TOLD_MAX, StageCounts, WorkerReport};
pub use worker::{RequestFacts, SiteMetrics, UpstreamFacts, UpstreamMetrics, WorkerMetrics};

/// The counters of all workers. They live as long as the process: a worker that is started anew, or a site that comes back
/// with another configuration, goes on counting where it was.
#[derive(Debug)]
pub struct Metrics {
    state: Mutex<State>,
    programs: Arc<ProgramMetrics>,
}

#[derive(Debug)]
struct State {
    sites: Names,
    upstreams: Names,
    module_names: Names,
    /// By the slots of their names.
    modules: Vec<Arc<ModuleMetrics>>,
    workers: Vec<Arc<WorkerMetrics>>,
}

impl Metrics {
    /// Counters for at most so many sites, as many upstreams and as many modules by their names; what is of further ones is
    /// counted together.
    pub fn new(names_max: usize) -> Arc<Self> {
        let names = || Names::new(names_max);
        let (sites, upstreams, module_names) = (names(), names(), names());
        let state = State { sites, upstreams, module_names, modules: Vec::new(), workers: Vec::new() };
        Arc::new(Self { state: Mutex::new(state), programs: Arc::default() })
    }

    /// Where requests of the site of this name are counted. Sites of the same name are counted together.
    pub fn site(&self, name: &str) -> NameSlot {
        self.state().sites.slot(name)
    }

    /// Where requests to the upstream of this name are counted.
    pub fn upstream(&self, name: &str) -> NameSlot {
        self.state().upstreams.slot(name)
    }

    /// The counters of modules of this name.
    pub fn module(&self, name: &str) -> Arc<ModuleMetrics> {
        let mut state = self.state();
        let index = state.module_names.slot(name).index();
        while state.modules.len() <= index {
            state.modules.push(Arc::default());
        }
        Arc::clone(&state.modules[index])
    }

    /// The counters of modules that were asked for, with their names.
    pub fn modules(&self) -> Vec<(String, Arc<ModuleMetrics>)> {
        let state = self.state();
        let all = state.module_names.all().into_iter().zip(state.modules.iter().cloned());
        // A module without a name there is none, and others only where there are too many.
        let is_there = |index: usize, of: &ModuleMetrics| index > 1 || (index == 1 && of.requests.get() > 0);
        all.enumerate().filter(|(index, (_, of))| is_there(*index, of)).map(|(_, named)| named).collect()
    }

    /// The counters of programs that are started for requests.
    pub fn programs(&self) -> &Arc<ProgramMetrics> {
        &self.programs
    }

    /// The counters of the worker with this number.
    pub fn worker(&self, index: usize) -> Arc<WorkerMetrics> {
        let mut state = self.state();
        while state.workers.len() <= index {
            let slots = (state.sites.slots(), state.upstreams.slots());
            state.workers.push(Arc::new(WorkerMetrics::new(slots.0, slots.1)));
        }
        Arc::clone(&state.workers[index])
    }

    /// The counters of all workers there have been.
    pub fn workers(&self) -> Vec<Arc<WorkerMetrics>> {
        self.state().workers.clone()
    }

    /// The names of sites by their slots.
    pub fn site_names(&self) -> Vec<String> {
        self.state().sites.all()
    }

    /// The names of upstreams by their slots.
    pub fn upstream_names(&self) -> Vec<String> {
        self.state().upstreams.all()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done where it could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_limit_are_counted_together() {
        let metrics = Metrics::new(2);
        let slots = ["a", "b", "a", "c", "d"].map(|name| metrics.site(name));
        assert_eq!(slots[0], slots[2]);
        assert_ne!(slots[0], slots[1]);
        assert_eq!(slots[3], slots[4]);
        assert_eq!(slots[3], NameSlot::OTHER);
        assert_eq!(metrics.site_names(), ["none", "other", "a", "b"]);
    }

    #[test]
    fn modules_of_a_name_are_counted_together() {
        let metrics = Metrics::new(1);
        ["shop", "shop", "blog", "news"].iter().for_each(|name| metrics.module(name).requests.add(1));
        metrics.module("shop").on_failure(ModuleFailure::InstancesMax);
        let counts: Vec<_> = metrics
            .modules()
            .into_iter()
            .map(|(name, of)| (name, of.requests.get(), of.failures(ModuleFailure::InstancesMax)))
            .collect();
        assert_eq!(counts, [("other".to_owned(), 2, 0), ("shop".to_owned(), 2, 1)]);
        metrics.module("shop").requests.subtract(1);
        assert_eq!(metrics.module("shop").requests.get(), 1);
    }

    #[test]
    fn a_worker_goes_on_counting() {
        let metrics = Metrics::new(1);
        metrics.worker(1).connections_opened.add(2);
        metrics.worker(1).connections_opened.add(3);
        let counts: Vec<_> = metrics.workers().iter().map(|worker| worker.connections_opened.get()).collect();
        assert_eq!(counts, [0, 5]);
    }
}
