use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wire::http::caching::{Defaults, ResponseDirectives};
use wire::http::{Fields, Status};

use super::flights::Flights;
use super::uncacheable::Uncacheable;
use crate::config::ResponseCaching;
use crate::object_cache::{ObjectStore, RootId};

/// What all workers share of a cache for upstreams' responses.
#[derive(Debug)]
pub struct SharedResponseCache {
    pub(super) config: ResponseCaching,
    /// How long the head of a response is waited for that no client waits for.
    pub(super) head_timeout: Duration,
    /// How long a response that is stored may stand still.
    pub(super) content_timeout: Duration,
    pub(super) ranges_max: usize,
    pub(super) id: RootId,
    pub(super) store: Arc<ObjectStore>,
    pub(super) flights: Arc<Flights>,
    pub(super) uncacheable: Uncacheable,
    /// Bytes of responses that are not whole yet.
    recording_bytes: AtomicU64,
    /// The next number of a set of variants.
    next_set: AtomicU64,
}

/// What all responses that are being recorded may take of the memory for objects: a quarter.
const RECORDING_DIVISOR: u64 = 4;

impl SharedResponseCache {
    /// An empty cache that keeps responses in this store. Where no client waits for the upstream, it is given as long for
    /// the head of a response, and for each piece of its content.
    pub fn new(
        config: ResponseCaching,
        (head_timeout, content_timeout): (Duration, Duration),
        ranges_max: usize,
        store: Arc<ObjectStore>,
    ) -> Arc<Self> {
        Arc::new(Self {
            config,
            head_timeout,
            content_timeout,
            ranges_max,
            id: store.new_root_id(),
            store,
            flights: Arc::default(),
            uncacheable: Uncacheable::default(),
            recording_bytes: AtomicU64::new(0),
            next_set: AtomicU64::new(0),
        })
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

    /// Takes memory for a piece of a response that is recorded; whether there is as much.
    pub(super) fn reserve(&self, bytes: u64) -> bool {
        let reserved = self.recording_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_there = reserved <= self.store.limits().memory_bytes_max / RECORDING_DIVISOR;
        if !is_there {
            self.release(bytes);
        }
        is_there
    }

    /// Gives memory back.
    pub(super) fn release(&self, bytes: u64) {
        self.recording_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn whole_seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}
