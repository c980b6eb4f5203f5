use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use wire::http::caching::{Defaults, ResponseDirectives};
use wire::http::{Fields, Status};

use super::flights::Flights;
use super::key::KeyRules;
use super::lookup::COOKIE_MARK;
use super::persistence::CachePlace;
use super::uncacheable::Uncacheable;
use crate::config::{ForwardConfig, ResponseCaching, ResponseCompression};
use crate::handler::Now;
use crate::handler::forward::ACCEL_EXPIRES;
use crate::object_cache::{ObjectStore, ReservedMemory, RootId};

/// Part of a response cache that all workers share.
#[derive(Debug)]
pub struct SharedResponseCache {
    pub(super) config: ResponseCaching,
    /// Configuration of the forward that the cache serves.
    forward: ForwardConfig,
    pub(super) key_rules: KeyRules,
    /// Fields and cookies that select every response, as in [`Variant::names`](crate::object_cache::Variant).
    pub(super) key_names: Box<[Box<[u8]>]>,
    /// Time limit for the head of a background fetch.
    pub(super) head_timeout: Duration,
    /// Time limit between two pieces of recorded content.
    pub(super) content_timeout: Duration,
    pub(super) ranges_max: usize,
    /// True if a client's departure ends its fetch.
    pub(super) aborts_with_client: bool,
    pub(super) id: RootId,
    pub(super) store: Arc<ObjectStore>,
    pub(super) flights: Arc<Flights>,
    pub(super) uncacheable: Arc<Uncacheable>,
    /// Number of the next set of variants.
    next_set: Arc<AtomicU64>,
    /// Place on disk, if responses may be kept there.
    pub(super) place: Option<CachePlace>,
}

/// Divisor of the object memory for content that is not stored yet or no longer: a quarter on top.
const UNSTORED_DIVISOR: u64 = 4;

impl SharedResponseCache {
    /// Creates an empty cache for this forward that keeps responses in this store, and not on disk.
    #[cfg(test)]
    pub fn new(
        config: ResponseCaching,
        forward: &ForwardConfig,
        ranges_max: usize,
        store: Arc<ObjectStore>,
    ) -> Arc<Self> {
        Arc::new(Self::empty(config, forward, ranges_max, store))
    }

    /// Creates the cache that replaces `reused`. It keeps the stored responses and the fetches in progress if the
    /// configuration gives them the same meaning.
    pub fn reuse(
        config: ResponseCaching,
        forward: &ForwardConfig,
        ranges_max: usize,
        store: Arc<ObjectStore>,
        place: Option<CachePlace>,
        reused: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let Some(reused) = reused.filter(|reused| reused.means_the_same(&config, forward)) else {
            return Arc::new(Self { place, ..Self::empty(config, forward, ranges_max, store) });
        };
        if reused.forward == *forward && reused.ranges_max == ranges_max {
            return Arc::clone(reused);
        }
        Arc::new(Self {
            id: reused.id,
            flights: Arc::clone(&reused.flights),
            uncacheable: Arc::clone(&reused.uncacheable),
            next_set: Arc::clone(&reused.next_set),
            place,
            ..Self::empty(config, forward, ranges_max, store)
        })
    }

    /// True if stored responses stay valid under this configuration. Time and size limits make no difference to that.
    pub(in crate::handler) fn means_the_same(&self, config: &ResponseCaching, forward: &ForwardConfig) -> bool {
        let ForwardConfig { upstream, host, client_fields, strip_prefix, compression, rewrites, .. } = forward;
        let known = &self.forward;
        self.config == *config
            && known.upstream == *upstream
            && known.host == *host
            && known.client_fields == *client_fields
            && known.strip_prefix == *strip_prefix
            && known.compression == *compression
            && known.rewrites == *rewrites
    }

    fn empty(config: ResponseCaching, forward: &ForwardConfig, ranges_max: usize, store: Arc<ObjectStore>) -> Self {
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
            // Sets of an earlier process, whose responses are on disk, have lower numbers.
            next_set: Arc::new(AtomicU64::new(Now::read().unix_us)),
            place: None,
        }
    }

    /// Defaults for responses with this status and without caching fields.
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

    /// Compression of stored responses, if they are compressed.
    pub(super) fn compression(&self) -> Option<ResponseCompression> {
        self.forward.compression.resolved()
    }

    /// Caching directives in a response's fields. X-Accel-Expires comes before all others, as in nginx.
    pub(super) fn directives(&self, fields: &Fields) -> ResponseDirectives {
        if let Some(seconds) = fields.get(ACCEL_EXPIRES).and_then(accel_lifetime) {
            let mut own = Fields::new();
            match seconds {
                0 => own.push("Cache-Control", "no-store"),
                seconds => own.push("Cache-Control", format!("max-age={seconds}")),
            };
            return ResponseDirectives::of(&own, &[]);
        }
        ResponseDirectives::of(fields, &self.config.targeted_fields)
    }

    /// Number for a new set of variants.
    pub(super) fn new_set(&self) -> u64 {
        self.next_set.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts memory for a response that is read from disk, and returns whether it may be stored. Responses that may not
    /// serve one request each, and take at most as much memory again; `None` if that is used.
    pub(super) fn reserve(&self, bytes: u64) -> Option<(ReservedMemory, bool)> {
        let (memory, limit) = (self.store.content_memory(), self.content_bytes_max());
        let stored = memory.reserve(bytes, limit).map(|reserved| (reserved, true));
        stored.or_else(|| Some((memory.reserve(bytes, limit.saturating_mul(2))?, false)))
    }

    fn content_bytes_max(&self) -> u64 {
        let memory_bytes_max = self.store.limits().memory_bytes_max;
        memory_bytes_max + memory_bytes_max / UNSTORED_DIVISOR
    }

    /// Counts content that will be stored against the memory limit; `None` if the limit is reached. Content being
    /// read, and evicted content that clients still read, count, too.
    pub(super) fn hold(&self, content: Bytes) -> Option<Bytes> {
        self.store.content_memory().hold(content, self.content_bytes_max())
    }
}

/// Lifetime in X-Accel-Expires, in seconds: a number, or `@` and a time in seconds since 1970. `None` if it is invalid.
fn accel_lifetime(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let number = |digits: &[u8]| str::from_utf8(digits).ok()?.parse::<u64>().ok();
    match value.strip_prefix(b"@") {
        Some(time) => Some(number(time)?.saturating_sub(Now::read().unix_seconds)),
        None => number(value),
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
