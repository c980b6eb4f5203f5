//! Further tiers: stored responses on disk, which survive restarts, and in a store that instances share.
//!
//! Each stored response is written to both as well. A response that memory does not have is read back into memory, and then
//! served from there. If memory is full, only the head of a response on disk is read, and its content is sent from the file,
//! which stays open. Removals apply to the further tiers first: what is read at the same time
//! is then found to be outdated.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wire::http::caching::{CacheTag, RequestDirectives, StoredResponseMeta};
use wire::http::{Fields, Request, Status};

use super::store::{CacheEntry, content_of, object_parts};
use super::{ResponseCacheInner, SharedResponseCache};
use crate::config::{ForwardConfig, GatewayConfig, PathPattern, ResponseCaching, RulesConfig, SiteConfig};
use crate::disk_cache::{DiskCache, DiskEntry, DiskStore, EntryName, EntryTest, EntryText, FileHolder};
use crate::handler::{Now, OwnedRequest, Routed};
use crate::object_cache::{Blocking, CachedObject, Object, ObjectContent, OpenFile, Variant};
use crate::shared_cache::{FetchStamp, SharedCache, SharedEntry, SharedText};

/// Tier below memory.
pub(super) enum FurtherTier {
    Disk(DiskKey),
    /// Store that instances share.
    Shared,
}

/// Key of a response on disk, and the name of its entry. The name is a slow hash, so a request computes it once.
pub(super) struct DiskKey {
    full: Vec<u8>,
    namespace_bytes: usize,
    name: EntryName,
}

/// Result of reading a response from a further tier.
pub(super) enum TierLoad {
    /// The response is in memory now.
    Stored,
    /// A response for one request, because memory has no room for it.
    Alone(Rc<CachedObject>),
    /// No response.
    Missing,
}

/// Response on disk whose content is not read yet.
struct FoundResponse {
    entry: Arc<DiskEntry>,
    response: CacheEntry,
    variant: Option<Variant>,
    /// True if it is served from its file.
    stays: bool,
}

/// Longest content that is always read into memory: an open file would cost as much.
const FILE_BYTES_MIN: u64 = 4 << 10;

/// Divisor of the object memory that responses from disk leave free. An eviction makes room for one object; without a spare part,
/// the next response from disk would take that room, and displace another.
const SPARE_DIVISOR: u64 = 8;

/// Memory of an object in addition to its content, as estimated before it is made.
const HEAD_BYTES: u64 = 2 << 10;

/// Version of the form of properties.
const META_VERSION: u8 = 3;

/// Longest list in properties, against damage that a checksum does not find.
const LIST_MAX: u32 = 100_000;

/// Place of a response cache on disk and in the store that instances share.
#[derive(Clone, Debug)]
pub struct CachePlace {
    store: Arc<DiskStore>,
    shared: Arc<SharedCache>,
    /// Beginning of all keys on disk: a hash of what makes stored responses of a configuration valid for another one.
    namespace: Box<[u8]>,
    /// Beginning of all keys in the store of instances.
    shared_namespace: Box<[u8]>,
}

/// Part of a configuration that decides about the responses of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheOwner<'a> {
    /// Site of the cache.
    pub site: &'a SiteConfig,
    /// Paths of the cache.
    pub path: &'a PathPattern,
    /// Upstream, and changes of requests and responses.
    pub forward: &'a ForwardConfig,
    /// Scripts, if they respond.
    pub gateway: Option<&'a GatewayConfig>,
}

impl CachePlace {
    /// Place of a cache.
    pub fn new(
        (store, shared): (&Arc<DiskStore>, &Arc<SharedCache>),
        owner: CacheOwner<'_>,
        caching: &ResponseCaching,
    ) -> Self {
        let CacheOwner { site, path, forward, .. } = owner;
        let ForwardConfig { upstream, host, client_fields, strip_prefix, rewrites, .. } = forward;
        let meaning = format!(
            "{META_VERSION} {:?} {:?} {path:?} {caching:?} {upstream} {host:?} {client_fields:?} {strip_prefix} {rewrites:?}",
            site.names, site.listen
        );
        let (store, shared) = (Arc::clone(store), Arc::clone(shared));
        Self { store, shared, namespace: digest(&meaning), shared_namespace: digest(&owner.meaning(caching)) }
    }

    /// Key in the store of instances.
    fn shared_key(&self, key: &[u8]) -> Vec<u8> {
        [&self.shared_namespace, key].concat()
    }

    /// Key on disk.
    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.namespace, key].concat()
    }
}

impl DiskKey {
    /// Key in memory.
    pub(super) fn key(&self) -> &[u8] {
        &self.full[self.namespace_bytes..]
    }
}

impl CacheOwner<'_> {
    /// All that can change a response, as text. Instances have addresses, limits and logs of their own, so these are no part of it.
    fn meaning(&self, caching: &ResponseCaching) -> String {
        let Self { site: SiteConfig { names, rules, .. }, path, forward, gateway } = self;
        let RulesConfig { rewrites, request_fields, forward_auths, .. } = rules;
        let caching = ResponseCaching {
            object_bytes_max: 0,
            collapse_timeout: Duration::ZERO,
            collapse_max: 0,
            cache_status: false,
            ..caching.clone()
        };
        let forward = without_limits(forward);
        let gateway = gateway.map(|gateway| GatewayConfig {
            forward: forward.clone(),
            keeps_connections: false,
            error_bytes_max: 0,
            ..(*gateway).clone()
        });
        format!(
            "{META_VERSION} {names:?} {path:?} {caching:?} {forward:?} {gateway:?} {rewrites:?} {request_fields:?} {forward_auths:?}"
        )
    }
}

/// Configuration without parts that change no response which a cache stores.
fn without_limits(forward: &ForwardConfig) -> ForwardConfig {
    let usual = ForwardConfig::to("");
    ForwardConfig {
        body_bytes_max: usual.body_bytes_max,
        upgrades: usual.upgrades,
        first_byte_timeout: usual.first_byte_timeout,
        between_bytes_timeout: usual.between_bytes_timeout,
        total_timeout: usual.total_timeout,
        abort_with_client: usual.abort_with_client,
        tunnel_timeout: usual.tunnel_timeout,
        response_head_bytes_max: usual.response_head_bytes_max,
        response_fields_max: usual.response_fields_max,
        cache: None,
        buffers: usual.buffers,
        retry: usual.retry,
        mirrors: usual.mirrors,
        ..forward.clone()
    }
}

fn digest(meaning: &str) -> Box<[u8]> {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, meaning.as_bytes()).as_ref()[..16].into()
}

impl SharedResponseCache {
    /// Cache on disk, if there is one.
    fn disk(&self) -> Option<(Arc<DiskCache>, &CachePlace)> {
        let place = self.place.as_ref().filter(|place| place.store.is_on())?;
        Some((place.store.get()?, place))
    }

    /// True if a response may be served from its open file, which counts as a hit. If the file was damaged since it was opened, the
    /// response is removed from memory and disk.
    pub(super) fn confirm_file(&self, object: &Object, file: &OpenFile) -> bool {
        let is_whole = file.is_unchanged();
        if let Some(place) = &self.place {
            if is_whole { place.store.count_hit() } else { place.store.count_damaged() }
        }
        if !is_whole {
            drop(self.remove_from_disk(&[object.path()]));
            self.store.remove(object);
        }
        is_whole
    }

    /// True if a response on disk is served from its file because memory has no room for its content. Not if it must be
    /// validated.
    fn stays_on_disk(&self, response: &CacheEntry, content_bytes: u64) -> bool {
        let limits = self.store.limits();
        let is_fresh = !response.stored.is_no_cache && response.stored.remaining_ms(Now::read().monotonic_ms) > 0;
        let has_room = || {
            let memory_bytes = self.store.usage().memory_bytes.saturating_add(HEAD_BYTES);
            let spare = limits.memory_bytes_max / SPARE_DIVISOR;
            memory_bytes.saturating_add(content_bytes) <= limits.memory_bytes_max - spare
        };
        content_bytes > FILE_BYTES_MIN && limits.files_max > 0 && is_fresh && !has_room()
    }

    /// Cache that instances share, if there is one.
    fn shared_tier(&self) -> Option<&CachePlace> {
        self.place.as_ref().filter(|place| place.shared.is_on())
    }

    /// Stamp of a fetch that begins now, for the cache that instances share.
    pub(super) fn stamp(&self) -> Option<FetchStamp> {
        self.shared_tier()?.shared.stamp()
    }

    /// Key on disk of the response with this key; `None` without a cache on disk.
    pub(super) fn disk_key(&self, key: &[u8]) -> Option<DiskKey> {
        let place = self.place.as_ref().filter(|place| place.store.is_on())?;
        let full = place.key(key);
        let name = EntryName::of(&full);
        Some(DiskKey { full, namespace_bytes: place.namespace.len(), name })
    }

    /// Tier that has a response with this key, or may have. `disk_key` is its key on disk. `was_asked`: the store of instances was
    /// asked.
    pub(super) fn further_tier(
        &self,
        key: &[u8],
        disk_key: Option<DiskKey>,
        was_asked: bool,
        now_ms: u64,
    ) -> Option<FurtherTier> {
        let is_there = |key: &DiskKey| self.disk().is_some_and(|(disk, _)| disk.has(key.name));
        if let Some(disk_key) = disk_key.filter(is_there) {
            return Some(FurtherTier::Disk(disk_key));
        }
        let place = self.shared_tier().filter(|_| !was_asked)?;
        (place.shared.is_usable() && !self.uncacheable.has(key, now_ms)).then_some(FurtherTier::Shared)
    }

    /// Removes a stored response from all tiers.
    pub(super) fn remove(&self, object: &Object) {
        self.remove_from_tiers(&[object.path()]);
        self.store.remove(object);
    }

    /// Removes responses from the further tiers. Returns the removal of their files, which goes on if it is dropped; `None` if
    /// there are none.
    pub(super) fn remove_from_tiers(&self, keys: &[&[u8]]) -> Option<tokio::task::JoinHandle<()>> {
        if let Some(place) = self.shared_tier() {
            keys.iter().for_each(|key| place.shared.remove(&place.shared_key(key)));
        }
        self.remove_from_disk(keys)
    }

    fn remove_from_disk(&self, keys: &[&[u8]]) -> Option<tokio::task::JoinHandle<()>> {
        let (disk, place) = self.disk()?;
        let names = keys.iter().map(|key| EntryName::of(&place.key(key)));
        let names: Vec<_> = names.filter(|name| disk.remove(*name)).collect();
        (!names.is_empty()).then(|| tokio::task::spawn_blocking(move || disk.remove_files(&names)))
    }

    /// Removes responses whose keys and written tags match from disk; returns their keys. Waits for the disk.
    pub(super) fn purge_disk(&self, test: impl Fn(&[u8], &[u8]) -> bool + Send + Sync + 'static) -> Vec<Box<[u8]>> {
        let Some((disk, place)) = self.disk() else { return Vec::new() };
        let namespace = place.namespace.clone();
        let length = namespace.len();
        let test: EntryTest =
            Arc::new(move |key, tags| key.strip_prefix(&*namespace).is_some_and(|key| test(key, tags)));
        disk.remove_matching(&test).into_iter().map(|key| key[length..].into()).collect()
    }

    /// Writes a stored response to the further tiers, in threads that may wait. The stamp is that of its fetch; without one,
    /// other instances do not get it.
    pub(super) fn persist(&self, object: &Object, stamp: Option<FetchStamp>) {
        if let (Some(place), Some(stamp)) = (self.shared_tier(), stamp) {
            share(place, object, stamp);
        }
        let Some((disk, place)) = self.disk() else { return };
        let Some(stored) = object.response().filter(|_| !object.is_dead()) else { return };
        let key = place.key(object.path());
        let (name, content) = (EntryName::of(&key), content_of(object));
        let tags = CacheTag::write_all(&stored.fields);
        let text = EntryText { key: &key, labels: &tags };
        let Some(pending) = disk.begin_write(name, text, content.len()) else {
            // An older one must not outlive it.
            if disk.remove(name) {
                drop(tokio::task::spawn_blocking(move || disk.remove_files(&[name])));
            }
            return;
        };
        let meta = write_meta(object.identity().status, &stored.fields, &stored.stored, stored.variant.as_ref(), 0);
        drop(tokio::task::spawn_blocking(move || {
            pending.write(EntryText { key: &key, labels: &tags }, &meta, &content);
        }));
    }
}

/// Gives a response to the other instances, if it stays fresh for a while.
fn share(place: &CachePlace, object: &Object, stamp: FetchStamp) {
    let Some(stored) = object.response().filter(|_| !object.is_dead()) else { return };
    let Some(skew_ms) = place.shared.skew_ms() else { return };
    let fresh_ms = stored.stored.remaining_ms(Now::read().monotonic_ms);
    if stored.stored.is_no_cache || fresh_ms <= 0 {
        return;
    }
    let text = SharedText { key: place.shared_key(object.path()), labels: CacheTag::write_all(&stored.fields) };
    let meta = write_meta(object.identity().status, &stored.fields, &stored.stored, stored.variant.as_ref(), skew_ms);
    place.shared.write(text, meta, content_of(object), stamp, Duration::from_millis(fresh_ms.unsigned_abs()));
}

impl ResponseCacheInner {
    /// Reads a response from a further tier into memory.
    pub(super) async fn load(&self, request: &OwnedRequest, key: &[u8], tier: &FurtherTier) -> TierLoad {
        match tier {
            FurtherTier::Disk(disk_key) => {
                self.load_from_disk(disk_key, self.may_stay_on_disk(&request.request())).await
            }
            FurtherTier::Shared => self.load_shared(key).await,
        }
    }

    /// Reads a response of another instance into memory. Stale ones are left to a fetch.
    async fn load_shared(&self, key: &[u8]) -> TierLoad {
        let shared = &self.shared;
        let Some(place) = shared.shared_tier() else { return TierLoad::Missing };
        let (full, test) = (place.shared_key(key), shared.purge_test(key));
        let Some(entry) = place.shared.read(full.clone(), Arc::clone(&test)).await else { return TierLoad::Missing };
        if shared.store.peek(shared.id, key).is_some() {
            return TierLoad::Stored;
        }
        let SharedEntry { meta, content, skew_ms, .. } = &entry;
        let Some((status, fields, stored, variant)) = read_meta(meta, *skew_ms) else {
            place.shared.on_damaged();
            return TierLoad::Missing;
        };
        if stored.is_no_cache || stored.remaining_ms(Now::read().monotonic_ms) <= 0 {
            return TierLoad::Missing;
        }
        let Some((reserved, is_stored)) = shared.reserve(content.len() as u64) else { return TierLoad::Missing };
        let content = reserved.hold(Bytes::clone(content));
        let response = CacheEntry { status, fields, stored, stamp: None };
        let parts = object_parts(response, ObjectContent::Memory(content), variant, shared);
        let object = match is_stored {
            true => self.cache.adopt(shared.store.insert(shared.id, key, parts)),
            false => Rc::new(CachedObject { object: shared.store.lone(shared.id, key, parts) }),
        };
        if !place.shared.is_current(&full, &entry, &test) {
            // Purged while it was read.
            shared.store.remove(&object.object);
            return TierLoad::Missing;
        }
        if object.object.is_dead() { TierLoad::Alone(object) } else { TierLoad::Stored }
    }

    /// Reads a response from disk, if that needs only what the kernel has in memory. Returns true if the response is in memory
    /// now.
    pub(super) fn load_now(&self, routed: &Routed<'_>, key: &DiskKey) -> bool {
        let Some((disk, _)) = self.shared.disk() else { return false };
        let Some(entry) = disk.open_now(key.name, &key.full) else { return false };
        let Some(found) = self.found(entry, self.may_stay_on_disk(&routed.request)) else { return false };
        let content = self.content_now(&found);
        content.is_some_and(|content| matches!(self.keep_found(&disk, key.key(), found, content), TierLoad::Stored))
    }

    async fn load_from_disk(&self, disk_key: &DiskKey, may_stay: bool) -> TierLoad {
        let Some((disk, _)) = self.shared.disk() else { return TierLoad::Missing };
        let (name, key) = (disk_key.name, disk_key.key());
        let entry = match disk.open_now(name, &disk_key.full) {
            Some(entry) => Some(entry),
            None if !disk.has(name) => None,
            None => {
                let (of_thread, full) = (Arc::clone(&disk), disk_key.full.clone());
                Blocking::spawn(move || of_thread.open_entry(name, &full)).await.ok().flatten()
            }
        };
        let Some(entry) = entry else { return TierLoad::Missing };
        let Some(found) = self.found(entry, may_stay) else {
            // Of another version.
            drop(self.shared.remove_from_disk(&[key]));
            return TierLoad::Missing;
        };
        let content = match self.content_now(&found) {
            Some(content) => Some(content),
            None => self.content(&disk, &found).await,
        };
        content.map_or(TierLoad::Missing, |content| self.keep_found(&disk, key, found, content))
    }

    /// True if the response to a request may be served from its file: without a demand that may lead to a validation.
    fn may_stay_on_disk(&self, request: &Request<'_>) -> bool {
        self.asked(request) == RequestDirectives::default()
    }

    /// Reads the properties of a response on disk; `None` if another version has written them.
    fn found(&self, entry: DiskEntry, may_stay: bool) -> Option<FoundResponse> {
        let (status, fields, stored, variant) = read_meta(entry.meta(), 0)?;
        let response = CacheEntry { status, fields, stored, stamp: None };
        let stays = may_stay && self.shared.stays_on_disk(&response, entry.content_bytes());
        Some(FoundResponse { entry: Arc::new(entry), response, variant, stays })
    }

    /// Content of a response on disk, and whether memory has room to store it, if that needs only what the kernel has in memory.
    fn content_now(&self, found: &FoundResponse) -> Option<(ObjectContent, bool)> {
        let entry = &found.entry;
        if found.stays {
            let is_checked = entry.is_checked() || entry.content_now().is_some();
            return is_checked.then(|| (ObjectContent::File(Arc::clone(entry.file())), true));
        }
        // Counted before it is read: many requests may read large responses at the same time.
        let (reserved, is_stored) = self.shared.reserve(entry.content_bytes())?;
        Some((ObjectContent::Memory(reserved.hold(entry.content_now()?)), is_stored))
    }

    /// Content as [`Self::content_now`], read by a thread that may wait for the disk.
    async fn content(&self, disk: &Arc<DiskCache>, found: &FoundResponse) -> Option<(ObjectContent, bool)> {
        let (reserved, is_stored) = self.shared.reserve(found.entry.content_bytes())?;
        let (disk, entry) = (Arc::clone(disk), Arc::clone(&found.entry));
        let content = Blocking::spawn(move || disk.read_content(&entry)).await.ok().flatten()?;
        Some(match found.stays {
            true => (ObjectContent::File(Arc::clone(found.entry.file())), true),
            false => (ObjectContent::Memory(reserved.hold(content)), is_stored),
        })
    }

    /// Makes the object of a response on disk.
    fn keep_found(
        &self,
        disk: &DiskCache,
        key: &[u8],
        found: FoundResponse,
        (content, is_stored): (ObjectContent, bool),
    ) -> TierLoad {
        let shared = &self.shared;
        if shared.store.peek(shared.id, key).is_some() {
            return TierLoad::Stored;
        }
        let FoundResponse { entry, response, variant, stays } = found;
        let parts = object_parts(response, content, variant, shared);
        let object = match is_stored {
            true => self.cache.adopt(shared.store.insert(shared.id, key, parts)),
            // Memory is full, also with content that clients still read.
            false => Rc::new(CachedObject { object: shared.store.lone(shared.id, key, parts) }),
        };
        let (store, root, path_bytes) = (Arc::clone(&shared.store), shared.id, key.len());
        if !disk.on_read(&entry, stays.then_some(FileHolder { store, root, path_bytes })) {
            // Removed or replaced while it was read.
            shared.store.remove(&object.object);
            return TierLoad::Missing;
        }
        if object.object.is_dead() { TierLoad::Alone(object) } else { TierLoad::Stored }
    }
}

/// Takes back that a response was used, after the request for which it was read. A response that no other request wants then
/// leaves memory first.
pub(super) fn forget_first_use(object: &CachedObject) {
    object.object.take_visited();
}

/// Properties of a response, with times of a clock from which the own differs by `skew_ms`.
fn write_meta(
    status: Status,
    fields: &Fields,
    stored: &StoredResponseMeta,
    variant: Option<&Variant>,
    skew_ms: i64,
) -> Vec<u8> {
    let mut out = vec![META_VERSION];
    let now = Now::read();
    out.extend_from_slice(&status.code().to_le_bytes());
    let age_ms = (now.monotonic_ms as i64).saturating_sub(stored.born_ms);
    out.extend_from_slice(&((now.unix_us / 1_000) as i64).saturating_sub(age_ms).saturating_sub(skew_ms).to_le_bytes());
    for seconds in [stored.lifetime_seconds, stored.stale_while_revalidate_seconds, stored.stale_if_error_seconds] {
        out.extend_from_slice(&seconds.to_le_bytes());
    }
    out.push(u8::from(stored.is_no_cache) | u8::from(stored.forbids_stale) << 1);
    write_count(fields.iter().count(), &mut out);
    for (name, value) in fields.iter() {
        write_text(name, &mut out);
        write_text(value, &mut out);
    }
    out.push(variant.is_some().into());
    if let Some(variant) = variant {
        write_count(variant.names.len(), &mut out);
        variant.names.iter().for_each(|name| write_text(name, &mut out));
        write_text(&variant.selecting, &mut out);
        out.extend_from_slice(&variant.set.to_le_bytes());
    }
    out
}

fn write_count(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn write_text(text: &[u8], out: &mut Vec<u8>) {
    write_count(text.len(), out);
    out.extend_from_slice(text);
}

/// Reads properties with times of a clock from which the own differs by `skew_ms`; `None` if they are not as this version writes them.
fn read_meta(mut meta: &[u8], skew_ms: i64) -> Option<(Status, Fields, StoredResponseMeta, Option<Variant>)> {
    let input = &mut meta;
    if take::<1>(input)? != [META_VERSION] {
        return None;
    }
    let status = Status::new(u16::from_le_bytes(take(input)?))?;
    let born_unix_ms = i64::from_le_bytes(take(input)?);
    let [lifetime_seconds, stale_while_revalidate_seconds, stale_if_error_seconds] =
        [u32::from_le_bytes(take(input)?), u32::from_le_bytes(take(input)?), u32::from_le_bytes(take(input)?)];
    let [flags] = take::<1>(input)?;
    let now = Now::read();
    // If the clock was set back, the response counts as new, not as one from the future.
    let age_ms = ((now.unix_us / 1_000) as i64).saturating_sub(skew_ms).saturating_sub(born_unix_ms).max(0);
    let stored = StoredResponseMeta {
        born_ms: (now.monotonic_ms as i64).saturating_sub(age_ms),
        lifetime_seconds,
        stale_while_revalidate_seconds,
        stale_if_error_seconds,
        is_no_cache: flags & 1 != 0,
        forbids_stale: flags & 2 != 0,
    };
    let mut fields = Fields::new();
    for _ in 0..take_count(input)? {
        let (name, value) = (take_text(input)?, take_text(input)?);
        fields.push(name, value);
    }
    let variant = match take::<1>(input)? {
        [0] => None,
        _ => {
            let names: Option<Vec<Box<[u8]>>> =
                (0..take_count(input)?).map(|_| Some(take_text(input)?.into())).collect();
            let (selecting, set) = (take_text(input)?.into(), u64::from_le_bytes(take(input)?));
            Some(Variant { names: names?.into(), selecting, set })
        }
    };
    input.is_empty().then_some((status, fields, stored, variant))
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = input.split_first_chunk::<N>()?;
    *input = rest;
    Some(*first)
}

fn take_count(input: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(input)?)).filter(|count| *count <= LIST_MAX)
}

fn take_text<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_le_bytes(take(input)?) as usize;
    let (text, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::{ForwardHost, HostPattern, Listen};

    /// Instances share responses if only addresses, limits and logs differ.
    #[test]
    fn meanings() {
        let site = SiteConfig::default();
        let (path, forward) = (PathPattern::Prefix("/".into()), ForwardConfig::to("http://a"));
        let meaning = |site: &SiteConfig, forward: &ForwardConfig, caching: &ResponseCaching| {
            CacheOwner { site, path: &path, forward, gateway: None }.meaning(caching)
        };
        let usual = meaning(&site, &forward, &ResponseCaching::default());
        let with = |change: &dyn Fn(&mut SiteConfig, &mut ForwardConfig, &mut ResponseCaching)| {
            let (mut site, mut forward, mut caching) = (site.clone(), forward.clone(), ResponseCaching::default());
            change(&mut site, &mut forward, &mut caching);
            meaning(&site, &forward, &caching)
        };
        let address = || vec![Listen::Tcp(([127, 0, 0, 1], 8080).into())];
        assert_eq!(with(&|site, _, _| site.listen = address()), usual);
        assert_eq!(with(&|site, _, _| (site.listen, site.tls_listen) = (address(), address())), usual);
        assert_eq!(with(&|site, _, _| site.access_log_off = true), usual);
        assert_eq!(with(&|_, forward, _| forward.first_byte_timeout = Duration::from_secs(1)), usual);
        assert_eq!(with(&|_, _, caching| caching.object_bytes_max = 1), usual);
        let others = [
            with(&|site, _, _| site.names = vec![HostPattern::Exact("a.example".into())]),
            with(&|_, forward, _| forward.upstream = "http://b".into()),
            with(&|_, forward, _| forward.host = ForwardHost::Upstream),
            with(&|_, forward, _| forward.strip_prefix = "/a".into()),
            with(&|_, forward, _| forward.underscore_fields = !forward.underscore_fields),
            with(&|_, _, caching| caching.key_host = !caching.key_host),
            with(&|_, _, caching| caching.stale_if_error = Duration::from_secs(9)),
        ];
        let all: BTreeSet<&String> = others.iter().chain([&usual]).collect();
        assert_eq!(all.len(), others.len() + 1);
    }

    #[test]
    fn properties_come_back_as_they_were() {
        let mut fields = Fields::new();
        fields.push("ETag", "\"a\"").push("X", "").push("X", [0x80, 0xff]);
        let stored = StoredResponseMeta {
            born_ms: Now::read().monotonic_ms as i64 - 5_000,
            lifetime_seconds: 60,
            stale_while_revalidate_seconds: 1,
            stale_if_error_seconds: u32::MAX,
            is_no_cache: false,
            forbids_stale: true,
        };
        let variant = Variant { names: [b"accept"[..].into()].into(), selecting: b"x\0"[..].into(), set: 7 };
        for (variant, skew_ms) in [(None, 0), (Some(variant.clone()), 0), (Some(variant), 120_000)] {
            let meta = write_meta(Status::NOT_FOUND, &fields, &stored, variant.as_ref(), skew_ms);
            let (status, read, times, selected) = read_meta(&meta, skew_ms).unwrap();
            assert_eq!((status, selected), (Status::NOT_FOUND, variant));
            assert!(read.iter().eq(fields.iter()));
            assert!((times.born_ms - stored.born_ms).abs() < 1_000, "{times:?}");
            assert_eq!(StoredResponseMeta { born_ms: stored.born_ms, ..times }, stored);
            for end in 0..meta.len() {
                assert!(read_meta(&meta[..end], 0).is_none(), "{end}");
            }
            assert!(read_meta(&[&meta[..], b"x"].concat(), 0).is_none());
            assert!(read_meta(&[&[META_VERSION + 1], &meta[1..]].concat(), 0).is_none());
        }
    }
}
