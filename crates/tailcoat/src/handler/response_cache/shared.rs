use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use wire::http::caching::{Defaults, ResponseDirectives};
use wire::http::{Fields, Status};

use super::flights::Flights;
use super::key::KeyRules;
use super::lookup::COOKIE_MARK;
use super::uncacheable::Uncacheable;
use crate::config::{Forward, ResponseCaching};
use crate::object_cache::{ObjectStore, RootId};

/// What all workers share of a cache for upstreams' responses.
#[derive(Debug)]
pub struct SharedResponseCache {
    pub(super) config: ResponseCaching,
    /// What it is before.
    forward: Forward,
    pub(super) key_rules: KeyRules,
    /// What each response depends on, whatever it says: as in [`Variant::names`](crate::object_cache::Variant).
    pub(super) key_names: Box<[Box<[u8]>]>,
    /// How long the head of a response is waited for that no client waits for.
    pub(super) head_timeout: Duration,
    /// How long a response that is stored may stand still.
    pub(super) content_timeout: Duration,
    pub(super) ranges_max: usize,
    /// Nothing is done any more for clients that have left.
    pub(super) aborts_with_client: bool,
    pub(super) id: RootId,
    pub(super) store: Arc<ObjectStore>,
    pub(super) flights: Arc<Flights>,
    pub(super) uncacheable: Arc<Uncacheable>,
    /// The next number of a set of variants.
    next_set: Arc<AtomicU64>,
}

/// What content of responses may take beyond the memory for objects while it is not stored yet or not any more: a
/// quarter of that.
const UNSTORED_DIVISOR: u64 = 4;

impl SharedResponseCache {
    /// An empty cache before this forward, that keeps responses in this store.
    pub fn new(config: ResponseCaching, forward: &Forward, ranges_max: usize, store: Arc<ObjectStore>) -> Arc<Self> {
        Arc::new(Self::empty(config, forward, ranges_max, store))
    }

    /// The cache that takes another's place, with all that is stored there, if the configuration leaves what it means as it
    /// was: then also who waits for a fetch that was begun before has part in it.
    pub fn succeeding(
        config: ResponseCaching,
        forward: &Forward,
        ranges_max: usize,
        store: Arc<ObjectStore>,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let Some(before) = before.filter(|before| before.means_the_same(&config, forward)) else {
            return Self::new(config, forward, ranges_max, store);
        };
        if before.forward == *forward && before.ranges_max == ranges_max {
            return Arc::clone(before);
        }
        Arc::new(Self {
            id: before.id,
            flights: Arc::clone(&before.flights),
            uncacheable: Arc::clone(&before.uncacheable),
            next_set: Arc::clone(&before.next_set),
            ..Self::empty(config, forward, ranges_max, store)
        })
    }

    /// Whether what is stored is still what would be stored for the same requests: how long is waited for whom, and how much
    /// may be sent, has no part in that.
    pub(in crate::handler) fn means_the_same(&self, config: &ResponseCaching, forward: &Forward) -> bool {
        let Forward { upstream, host, client_fields, strip_prefix, .. } = forward;
        let known = &self.forward;
        self.config == *config
            && known.upstream == *upstream
            && known.host == *host
            && known.client_fields == *client_fields
            && known.strip_prefix == *strip_prefix
    }

    fn empty(config: ResponseCaching, forward: &Forward, ranges_max: usize, store: Arc<ObjectStore>) -> Self {
        Self {
            forward: forward.clone(),
            key_rules: KeyRules::new(&config, forward),
            key_names: key_names(&config),
            config,
            head_timeout: forward.first_byte_timeout,
            content_timeout: forward.between_bytes_timeout,
            ranges_max,
            aborts_with_client: forward.abort_with_client,
            id: store.new_root_id(),
            store,
            flights: Arc::default(),
            uncacheable: Arc::default(),
            next_set: Arc::default(),
        }
    }

    /// What is supposed of responses with this status that don't say it themselves.
    pub(super) fn defaults(&self, status: Status) -> Defaults {
        let config = &self.config;
        let default_age = config.default_ages.iter().find(|(of, _)| *of == status).map(|(_, age)| *age);
        Defaults {
            lifetime_seconds: default_age.map(whole_seconds),
            heuristic: config.heuristic,
            stale_while_revalidate_seconds: whole_seconds(config.stale_while_revalidate),
            stale_if_error_seconds: whole_seconds(config.stale_if_error),
        }
    }

    /// What a response's fields say about its being cached.
    pub(super) fn directives(&self, fields: &Fields) -> ResponseDirectives {
        ResponseDirectives::of(fields, &self.config.targeted_fields)
    }

    /// A number for a new set of variants.
    pub(super) fn new_set(&self) -> u64 {
        self.next_set.fetch_add(1, Ordering::Relaxed)
    }

    /// Content that is to be stored, counted; `None` if there is no memory for it: what is being read, and what clients
    /// have not taken yet of what was evicted, is as much.
    pub(super) fn hold(&self, content: Bytes) -> Option<Bytes> {
        let memory_bytes_max = self.store.limits().memory_bytes_max;
        self.store.content_memory().hold(content, memory_bytes_max + memory_bytes_max / UNSTORED_DIVISOR)
    }
}

fn key_names(config: &ResponseCaching) -> Box<[Box<[u8]>]> {
    let fields = config.key_fields.iter().map(|name| name.to_ascii_lowercase().into_bytes());
    let cookies = config.key_cookies.iter().map(|name| [COOKIE_MARK, name.as_bytes()].concat());
    let mut names: Vec<Box<[u8]>> = fields.chain(cookies).map(Vec::into_boxed_slice).collect();
    names.sort_unstable();
    names.dedup();
    names.into()
}

fn whole_seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}
