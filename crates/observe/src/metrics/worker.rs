use std::sync::OnceLock;

use super::{
    BotKind, CacheResult, ChallengeResult, Counter, Eviction, FtpMetrics, HandlerKind, Histogram, Limit, NameSlot,
    ShedReason, StatusClass, VersionKind,
};

/// Counters of one worker. Only the worker writes them; they share no cache line with other workers.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerMetrics {
    /// Connections accepted.
    pub connections_opened: Counter,
    /// Connections closed.
    pub connections_closed: Counter,
    /// Bytes received from clients, after TLS is removed.
    pub received_bytes: Counter,
    /// Bytes sent to clients, before TLS is added.
    pub sent_bytes: Counter,
    /// Lookups of files that found an object ready to be served.
    pub object_hits: Counter,
    /// Lookups of files that found none.
    pub object_misses: Counter,
    /// Full TLS handshakes.
    pub handshakes_full: Counter,
    /// TLS handshakes that resumed a session.
    pub handshakes_resumed: Counter,
    /// TLS handshakes that failed.
    pub handshakes_failed: Counter,
    /// Connections closed by a panic.
    pub panics: Counter,
    /// Counters of FTP.
    pub ftp: FtpMetrics,
    /// Calls that have sent datagrams of QUIC.
    pub quic_sends: Counter,
    /// Datagrams of QUIC that were sent.
    pub quic_datagrams: Counter,
    /// Calls that have failed to send datagrams of QUIC.
    pub quic_sends_failed: Counter,
    cache_results: [Counter; CacheResult::ALL.len()],
    limits: [Counter; Limit::ALL.len()],
    evictions: [Counter; Eviction::ALL.len()],
    sheds: [Counter; ShedReason::ALL.len()],
    bots: [Counter; BotKind::ALL.len()],
    challenges: [Counter; ChallengeResult::ALL.len()],
    sites: Box<[OnceLock<Box<SiteMetrics>>]>,
    upstreams: Box<[OnceLock<Box<UpstreamMetrics>>]>,
}

/// Counters of the requests of one site.
#[derive(Debug)]
pub struct SiteMetrics {
    requests: [Counter; REQUEST_KINDS],
    /// Requests whose client disconnected before the response was complete (499 in access logs).
    pub aborted: Counter,
    /// Bytes of content sent.
    pub content_bytes: Counter,
    /// Times from the arrival of a request until its response was sent, or at least written, without requests for
    /// status and metrics.
    pub durations: Histogram,
}

/// Counters of the requests to one upstream.
#[derive(Debug, Default)]
pub struct UpstreamMetrics {
    /// Responses by class of status.
    pub responses: [Counter; StatusClass::ALL.len()],
    /// Requests that no server responded to.
    pub unanswered: Counter,
    /// Requests sent to another server after the first one failed.
    pub retries: Counter,
    /// Times from the request for a connection to the head of the response.
    pub first_byte: Histogram,
}

/// Facts of a request, to be counted.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts {
    /// Slot of the site.
    pub site: NameSlot,
    /// Kind of the handler.
    pub handler: HandlerKind,
    /// Version of HTTP.
    pub version: VersionKind,
    /// Status of the response, as in the access log.
    pub status: u16,
    /// Bytes of content sent.
    pub content_bytes: u64,
    /// Duration in microseconds.
    pub duration_us: u64,
}

/// Facts of a forwarded request, to be counted.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamFacts {
    /// Slot of the upstream.
    pub upstream: NameSlot,
    /// Status of the response, if there was one.
    pub status: Option<u16>,
    /// Servers tried.
    pub tries: u32,
    /// Time from the request for a connection to the head of the response, in microseconds.
    pub first_byte_us: Option<u64>,
}

const REQUEST_KINDS: usize = HandlerKind::ALL.len() * StatusClass::ALL.len() * VersionKind::ALL.len();

/// Status in logs of a request whose client disconnected; never sent.
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
            ftp: FtpMetrics::default(),
            quic_sends: Counter::default(),
            quic_datagrams: Counter::default(),
            quic_sends_failed: Counter::default(),
            cache_results: row(),
            limits: row(),
            evictions: row(),
            sheds: row(),
            bots: row(),
            challenges: row(),
            sites: (0..site_slots).map(|_| OnceLock::new()).collect(),
            upstreams: (0..upstream_slots).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Allocates the counters of these sites and upstreams, so that no request has to.
    pub fn prepare(&self, sites: impl IntoIterator<Item = NameSlot>, upstreams: impl IntoIterator<Item = NameSlot>) {
        for slot in sites.into_iter().chain([NameSlot::NONE]) {
            self.sites[slot.index()].get_or_init(Box::default);
        }
        for slot in upstreams {
            self.upstreams[slot.index()].get_or_init(Box::default);
        }
    }

    /// Counts a request with a response.
    #[inline]
    pub fn on_request(&self, facts: &RequestFacts) {
        let Some(site) = self.sites[facts.site.index()].get() else { return };
        site.requests[request_index(facts.handler, StatusClass::of(facts.status), facts.version)].add(1);
        site.content_bytes.add(facts.content_bytes);
        // Requests for status would dominate the durations of a quiet server.
        if facts.handler != HandlerKind::Status {
            site.durations.record(facts.duration_us);
        }
        if facts.status == CLIENT_GONE {
            site.aborted.add(1);
        }
    }

    /// Counts a forwarded request.
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

    /// Counts a result of the response cache.
    #[inline]
    pub fn on_cache(&self, result: CacheResult) {
        self.cache_results[result as usize].add(1);
    }

    /// Counts that a client reached a limit.
    #[inline]
    pub fn on_limit(&self, limit: Limit) {
        self.limits[limit as usize].add(1);
    }

    /// Counts a request by its class.
    #[inline]
    pub fn on_bot(&self, kind: BotKind) {
        self.bots[kind as usize].add(1);
    }

    /// Requests of this class.
    pub fn bots(&self, kind: BotKind) -> u64 {
        self.bots[kind as usize].get()
    }

    /// Counts a challenge that a client has returned.
    pub fn on_challenge(&self, result: ChallengeResult) {
        self.challenges[result as usize].add(1);
    }

    /// Challenges with this result.
    pub fn challenges(&self, result: ChallengeResult) -> u64 {
        self.challenges[result as usize].get()
    }

    /// Counts a shed request or handshake.
    pub fn on_shed(&self, reason: ShedReason) {
        self.sheds[reason as usize].add(1);
    }

    /// Requests and handshakes shed for this reason.
    pub fn sheds(&self, reason: ShedReason) -> u64 {
        self.sheds[reason as usize].get()
    }

    /// Requests with this result of the response cache.
    pub fn cache_results(&self, result: CacheResult) -> u64 {
        self.cache_results[result as usize].get()
    }

    /// Counts a connection closed to make room.
    pub fn on_eviction(&self, eviction: Eviction) {
        self.evictions[eviction as usize].add(1);
    }

    /// Connections closed to make room, in this state.
    pub fn evictions(&self, eviction: Eviction) -> u64 {
        self.evictions[eviction as usize].get()
    }

    /// Times that clients reached this limit.
    pub fn limit_hits(&self, limit: Limit) -> u64 {
        self.limits[limit as usize].get()
    }

    /// Counters of the site in this slot, if allocated.
    pub fn site(&self, index: usize) -> Option<&SiteMetrics> {
        self.sites.get(index)?.get().map(|site| &**site)
    }

    /// Counters of the upstream in this slot, if allocated.
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
    /// Requests of this kind.
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
        // A slot without memory is not counted, and does no harm.
        worker.on_request(&RequestFacts { site: NameSlot::OTHER, ..facts });
        assert!(worker.site(1).is_none());
    }
}
