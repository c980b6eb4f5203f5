//! A worker's report on itself, for the status page and metrics.

use std::cell::RefCell;
use std::rc::Rc;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::connection::{Connections, Context};
use crate::handler::WorkerUpstreams;
use crate::metrics::{Inquiry, REQUESTS_REPORTED_MAX, WorkerReport};
use crate::object_cache::WorkerCache;

/// Parts of a worker that its report reads.
pub(super) struct Reporter {
    pub(super) context: Rc<Context>,
    pub(super) connections: Rc<Connections>,
    pub(super) cache: Rc<WorkerCache>,
    pub(super) upstreams: Rc<RefCell<WorkerUpstreams>>,
}

impl Reporter {
    /// Answers inquiries until all senders are dropped.
    pub(super) async fn run(self, mut inquiries: UnboundedReceiver<Inquiry>) {
        while let Some(Inquiry { requests_max, answer }) = inquiries.recv().await {
            // The asker may have gone.
            let _ = answer.send(self.report(requests_max.min(REQUESTS_REPORTED_MAX)));
        }
    }

    fn report(&self, requests_max: usize) -> WorkerReport {
        let (requests_open, requests) = self.connections.longest_open_requests(requests_max);
        let (ftp_sessions_open, ftp_sessions) = self.connections.ftp_sessions(requests_max);
        // Skipped for metrics, which ask often and need counts only, because this visits all connections.
        let [clients, networks] = if requests_max > 0 { self.connections.top_holders() } else { Default::default() };
        let overload = self.context.overload.report();
        let busy = clock_gettime(ClockId::ThreadCPUTime);
        WorkerReport {
            busy_us: (busy.tv_sec * 1_000_000 + busy.tv_nsec / 1_000).max(0) as u64,
            connections: self.context.table.borrow().stages(),
            places: self.context.generation().connections_max as u64,
            clients,
            networks,
            requests_open,
            requests,
            ftp_sessions_open,
            ftp_sessions,
            upstream_idle: self.upstreams.borrow().list().iter().map(|upstream| upstream.idle()).collect(),
            objects: self.cache.len(),
            lag_ms: overload.lag_ms,
            shed_level_permille: overload.level_permille,
            shed_reason: overload.reason.map_or_else(String::new, |reason| reason.name().to_owned()),
        }
    }
}
