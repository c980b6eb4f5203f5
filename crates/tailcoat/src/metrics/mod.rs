//! What workers count, and what they tell of themselves when they are asked.
//!
//! Each worker counts in memory of its own ([`WorkerMetrics`]): a relaxed load and store of what nobody else writes, without
//! a lock or an allocation. Who wants to know adds up what all workers have. What changes too often to be kept up to date,
//! such as which requests are open, is asked for with an [`Inquiry`], and costs nothing as long as nobody asks.

mod counter;
mod histogram;
mod kind;
mod names;
mod report;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use counter::Counter;
pub use histogram::{BUCKETS, Histogram, HistogramCounts, upper_bound_us};
pub use kind::{CacheResult, HandlerKind, Limit, StatusClass, VersionKind};
pub use names::NameSlot;
use names::Names;
pub use report::{Inquiry, LiveRequest, REQUESTS_TOLD_MAX, StageCounts, WorkerReport};
pub use worker::{RequestFacts, SiteMetrics, UpstreamFacts, UpstreamMetrics, WorkerMetrics};

/// The counters of all workers. They live as long as the process: a worker that is started anew, or a site that comes back
/// with another configuration, goes on counting where it was.
#[derive(Debug)]
pub struct Metrics {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sites: Names,
    upstreams: Names,
    workers: Vec<Arc<WorkerMetrics>>,
}

impl Metrics {
    /// Counters for at most so many sites and as many upstreams by their names; what is of further ones is counted together.
    pub fn new(names_max: usize) -> Arc<Self> {
        let state = State { sites: Names::new(names_max), upstreams: Names::new(names_max), workers: Vec::new() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Where requests of the site of this name are counted. Sites of the same name are counted together.
    pub fn site(&self, name: &str) -> NameSlot {
        self.state().sites.slot(name)
    }

    /// Where requests to the upstream of this name are counted.
    pub fn upstream(&self, name: &str) -> NameSlot {
        self.state().upstreams.slot(name)
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
    fn a_worker_goes_on_counting() {
        let metrics = Metrics::new(1);
        metrics.worker(1).connections_opened.add(2);
        metrics.worker(1).connections_opened.add(3);
        let counts: Vec<_> = metrics.workers().iter().map(|worker| worker.connections_opened.get()).collect();
        assert_eq!(counts, [0, 5]);
    }
}
