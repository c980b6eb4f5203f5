use std::sync::OnceLock;

use super::{
    CacheResult, Counter, Eviction, HandlerKind, Histogram, Limit, NameSlot, ShedReason, StatusClass, VersionKind,
};

/// What a worker has counted. Only it writes here; its cache lines are nobody else's.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerMetrics {
    /// Connections that were accepted, and those that have ended.
    pub connections_opened: Counter,
    /// Those that have ended.
    pub connections_closed: Counter,
    /// Bytes that clients have sent, as they are when TLS is taken off.
    pub received_bytes: Counter,
    /// Bytes that clients were sent, as they are before TLS is put on.
    pub sent_bytes: Counter,
    /// Lookups of files that found an object to be served at once.
    pub object_hits: Counter,
    /// Lookups of files that did not.
    pub object_misses: Counter,
    /// Handshakes with keys that were agreed upon anew.
    pub handshakes_full: Counter,
    /// Handshakes that took up an earlier session.
    pub handshakes_resumed: Counter,
    /// Handshakes that came to nothing.
    pub handshakes_failed: Counter,
    /// Connections that a panic of ours has ended.
    pub panics: Counter,
    cache_results: [Counter; CacheResult::ALL.len()],
    limits: [Counter; Limit::ALL.len()],
    evictions: [Counter; Eviction::ALL.len()],
    sheds: [Counter; ShedReason::ALL.len()],
    sites: Box<[OnceLock<Box<SiteMetrics>>]>,
    upstreams: Box<[OnceLock<Box<UpstreamMetrics>>]>,
}

/// What was counted of the requests of a site.
#[derive(Debug)]
pub struct SiteMetrics {
    requests: [Counter; REQUEST_KINDS],
    /// Those whose client went before they were answered (499 in access logs).
    pub aborted: Counter,
    /// Bytes of content that were sent.
    pub content_bytes: Counter,
    /// From when a request came to when its answer was sent, or at least written; not of those about the server itself.
    pub durations: Histogram,
}

/// What was counted of the requests to an upstream.
#[derive(Debug, Default)]
pub struct UpstreamMetrics {
    /// By the class of the answer.
    pub responses: [Counter; StatusClass::ALL.len()],
    /// Requests that no server has answered.
    pub unanswered: Counter,
    /// Servers that were asked besides the first.
    pub retries: Counter,
    /// From when a connection was wanted to the head of the answer.
    pub first_byte: Histogram,
}

/// What is counted of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts {
    /// Which site it was for.
    pub site: NameSlot,
    /// Who has answered it.
    pub handler: HandlerKind,
    /// In which version it came.
    pub version: VersionKind,
    /// The status of the answer, as the access log has it.
    pub status: u16,
    /// Bytes of content that were sent.
    pub content_bytes: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
}

/// What is counted of a request that was sent on to another server.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamFacts {
    /// Which upstream.
    pub upstream: NameSlot,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// Servers that were asked.
    pub tries: u32,
    /// When the head of the answer came, in microseconds since a connection was wanted.
    pub first_byte_us: Option<u64>,
}

const REQUEST_KINDS: usize = HandlerKind::ALL.len() * StatusClass::ALL.len() * VersionKind::ALL.len();

/// A status that was never sent: the client had gone.
const CLIENT_GONE: u16 = 499;

impl WorkerMetrics {
    pub(super) fn new(site_slots: usize, upstream_slots: usize) -> Self {
        fn row<T: Default, const N: usize>() -> [T; N] {
            std::array::from_fn(|_| T::default())
        }
        Self {
            connections_opened: Counter::default(),
            connections_closed: Counter::default(),
            received_bytes: Counter::default(),
            sent_bytes: Counter::default(),
            object_hits: Counter::default(),
            object_misses: Counter::default(),
            handshakes_full: Counter::default(),
            handshakes_resumed: Counter::default(),
            handshakes_failed: Counter::default(),
            panics: Counter::default(),
            cache_results: row(),
            limits: row(),
            evictions: row(),
            sheds: row(),
            sites: (0..site_slots).map(|_| OnceLock::new()).collect(),
            upstreams: (0..upstream_slots).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Has memory ready for what these sites and upstreams count, so that none has to be found while requests come.
    pub fn prepare(&self, sites: impl IntoIterator<Item = NameSlot>, upstreams: impl IntoIterator<Item = NameSlot>) {
        for slot in sites.into_iter().chain([NameSlot::NONE]) {
            self.sites[slot.index()].get_or_init(Box::default);
        }
        for slot in upstreams {
            self.upstreams[slot.index()].get_or_init(Box::default);
        }
    }

    /// Counts a request that has been answered.
    #[inline]
    pub fn on_request(&self, facts: &RequestFacts) {
        let Some(site) = self.sites[facts.site.index()].get() else { return };
        site.requests[request_index(facts.handler, StatusClass::of(facts.status), facts.version)].add(1);
        site.content_bytes.add(facts.content_bytes);
        // Whoever looks at the server would see mostly that, where little else is asked.
        if facts.handler != HandlerKind::Status {
            site.durations.record(facts.duration_us);
        }
        if facts.status == CLIENT_GONE {
            site.aborted.add(1);
        }
    }

    /// Counts what became of a request to another server.
    pub fn on_forwarded(&self, facts: &UpstreamFacts) {
        let Some(upstream) = self.upstreams[facts.upstream.index()].get() else { return };
        match facts.status {
            Some(status) => upstream.responses[StatusClass::of(status) as usize].add(1),
            None => upstream.unanswered.add(1),
        }
        upstream.retries.add(u64::from(facts.tries.saturating_sub(1)));
        if let Some(first_byte_us) = facts.first_byte_us {
            upstream.first_byte.record(first_byte_us);
        }
    }

    /// Counts what the cache before another server did.
    #[inline]
    pub fn on_cache(&self, result: CacheResult) {
        self.cache_results[result as usize].add(1);
    }

    /// Counts that somebody has come to a limit.
    #[inline]
    pub fn on_limit(&self, limit: Limit) {
        self.limits[limit as usize].add(1);
    }

    /// Counts a request or handshake that was shed.
    pub fn on_shed(&self, reason: ShedReason) {
        self.sheds[reason as usize].add(1);
    }

    /// Requests and handshakes that were shed for this reason.
    pub fn sheds(&self, reason: ShedReason) -> u64 {
        self.sheds[reason as usize].get()
    }

    /// How often a cache did that.
    pub fn cache_results(&self, result: CacheResult) -> u64 {
        self.cache_results[result as usize].get()
    }

    /// Counts a connection that was closed because its place was needed.
    pub fn on_eviction(&self, eviction: Eviction) {
        self.evictions[eviction as usize].add(1);
    }

    /// Connections that were closed because their places were needed.
    pub fn evictions(&self, eviction: Eviction) -> u64 {
        self.evictions[eviction as usize].get()
    }

    /// How often somebody has come to this limit.
    pub fn limit_hits(&self, limit: Limit) -> u64 {
        self.limits[limit as usize].get()
    }

    /// What is counted of the site in this place, if anything may be.
    pub fn site(&self, index: usize) -> Option<&SiteMetrics> {
        self.sites.get(index)?.get().map(|site| &**site)
    }

    /// The same of an upstream.
    pub fn upstream(&self, index: usize) -> Option<&UpstreamMetrics> {
        self.upstreams.get(index)?.get().map(|upstream| &**upstream)
    }
}

impl Default for SiteMetrics {
    fn default() -> Self {
        Self {
            requests: std::array::from_fn(|_| Counter::default()),
            aborted: Counter::default(),
            content_bytes: Counter::default(),
            durations: Histogram::default(),
        }
    }
}

impl SiteMetrics {
    /// How many requests were answered so.
    pub fn requests(&self, handler: HandlerKind, class: StatusClass, version: VersionKind) -> u64 {
        self.requests[request_index(handler, class, version)].get()
    }
}

#[inline]
fn request_index(handler: HandlerKind, class: StatusClass, version: VersionKind) -> usize {
    (handler as usize * StatusClass::ALL.len() + class as usize) * VersionKind::ALL.len() + version as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::HistogramCounts;

    #[test]
    fn kinds_of_requests_have_places_of_their_own() {
        let worker = WorkerMetrics::new(2, 1);
        worker.prepare([], []);
        let mut facts = RequestFacts {
            site: NameSlot::NONE,
            handler: HandlerKind::None,
            version: VersionKind::Unknown,
            status: 0,
            content_bytes: 10,
            duration_us: 1,
        };
        let classes = StatusClass::ALL.iter().zip([101, 204, 304, 499, 503]);
        for (&handler, (_, status)) in
            HandlerKind::ALL.iter().flat_map(|kind| std::iter::repeat(kind).zip(classes.clone()))
        {
            for &version in VersionKind::ALL {
                facts = RequestFacts { handler, version, status, ..facts };
                worker.on_request(&facts);
            }
        }
        let site = worker.site(0).unwrap();
        let all = HandlerKind::ALL.len() * StatusClass::ALL.len() * VersionKind::ALL.len();
        let about_the_server = StatusClass::ALL.len() * VersionKind::ALL.len();
        let mut durations = HistogramCounts::default();
        durations.add(&site.durations);
        assert_eq!(durations.count() as usize, all - about_the_server);
        assert!(site.requests.iter().all(|counter| counter.get() == 1));
        let gone = HandlerKind::ALL.len() * VersionKind::ALL.len();
        assert_eq!(site.aborted.get() as usize, gone);
        // What has no memory is not counted, and does no harm.
        worker.on_request(&RequestFacts { site: NameSlot::OTHER, ..facts });
        assert!(worker.site(1).is_none());
    }
}
