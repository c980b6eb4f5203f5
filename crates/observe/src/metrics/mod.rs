//! Counters of workers, and reports that workers give on request.
//!
//! Each worker counts in its own memory ([`WorkerMetrics`]): a relaxed load and store of a value that no other thread
//! writes, without a lock or an allocation. Readers add up the values of all workers. Data that changes too often to be
//! counted, such as the open requests, is asked for with an [`Inquiry`], and costs nothing until then.

mod counter;
mod ftp;
mod histogram;
mod kind;
mod module;
mod names;
mod report;
mod streams;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use counter::Counter;
pub use ftp::FtpMetrics;
pub use histogram::{BUCKETS, Histogram, HistogramCounts, upper_bound_us};
pub use kind::{
    BotKind, CacheResult, ChallengeResult, Eviction, FtpDirection, HandlerKind, Limit, ModuleFailure, ShedReason,
    StatusClass, VersionKind,
};
pub use module::{ModuleMetrics, ProgramMetrics, SharedCounter};
pub use names::NameSlot;
use names::Names;
pub use report::{HolderCount, Inquiry, LiveFtpSession, LiveRequest, REQUESTS_REPORTED_MAX, StageCounts, WorkerReport};
pub use streams::{StreamCounts, StreamMetrics, StreamRejection, StreamReport};
pub use worker::{RequestFacts, SiteMetrics, UpstreamFacts, UpstreamMetrics, WorkerMetrics};

/// Counters of all workers. They live as long as the process: a restarted worker, or a site in a new configuration,
/// continues its counts.
#[derive(Debug)]
pub struct Metrics {
    state: Mutex<MetricsState>,
    programs: Arc<ProgramMetrics>,
}

#[derive(Debug)]
struct MetricsState {
    sites: Names,
    upstreams: Names,
    module_names: Names,
    /// Modules by the slots of their names.
    modules: Vec<Arc<ModuleMetrics>>,
    workers: Vec<Arc<WorkerMetrics>>,
}

impl Metrics {
    /// Creates counters for at most `names_max` sites, upstreams and modules each; further ones share a counter.
    pub fn new(names_max: usize) -> Arc<Self> {
        let names = || Names::new(names_max);
        let (sites, upstreams, module_names) = (names(), names(), names());
        let state = MetricsState { sites, upstreams, module_names, modules: Vec::new(), workers: Vec::new() };
        Arc::new(Self { state: Mutex::new(state), programs: Arc::default() })
    }

    /// Slot for the site of this name. Sites of equal names share a slot.
    pub fn site(&self, name: &str) -> NameSlot {
        self.state().sites.slot(name)
    }

    /// Slot for the upstream of this name.
    pub fn upstream(&self, name: &str) -> NameSlot {
        self.state().upstreams.slot(name)
    }

    /// Counters for modules of this name.
    pub fn module(&self, name: &str) -> Arc<ModuleMetrics> {
        let mut state = self.state();
        let index = state.module_names.slot(name).index();
        while state.modules.len() <= index {
            state.modules.push(Arc::default());
        }
        Arc::clone(&state.modules[index])
    }

    /// Counters of modules in use, with their names.
    pub fn modules(&self) -> Vec<(String, Arc<ModuleMetrics>)> {
        let state = self.state();
        let all = state.module_names.all().into_iter().zip(state.modules.iter().cloned());
        // Slot 0 has no name and is never used; slot 1 only if there are too many names.
        let is_there = |index: usize, of: &ModuleMetrics| index > 1 || (index == 1 && of.requests.get() > 0);
        all.enumerate().filter(|(index, (_, of))| is_there(*index, of)).map(|(_, named)| named).collect()
    }

    /// Counters of CGI programs.
    pub fn programs(&self) -> &Arc<ProgramMetrics> {
        &self.programs
    }

    /// Counters of the worker with this number.
    pub fn worker(&self, index: usize) -> Arc<WorkerMetrics> {
        let mut state = self.state();
        while state.workers.len() <= index {
            let slots = (state.sites.slots(), state.upstreams.slots());
            state.workers.push(Arc::new(WorkerMetrics::new(slots.0, slots.1)));
        }
        Arc::clone(&state.workers[index])
    }

    /// Counters of all workers so far.
    pub fn workers(&self) -> Vec<Arc<WorkerMetrics>> {
        self.state().workers.clone()
    }

    /// Names of sites by slot.
    pub fn site_names(&self) -> Vec<String> {
        self.state().sites.all()
    }

    /// Names of upstreams by slot.
    pub fn upstream_names(&self) -> Vec<String> {
        self.state().upstreams.all()
    }

    fn state(&self) -> MutexGuard<'_, MetricsState> {
        // No code under the lock can panic half-way through a change.
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
