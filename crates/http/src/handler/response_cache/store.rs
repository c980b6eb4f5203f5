//! Storing: from a received response to a stored one.

use std::borrow::Cow;
use std::rc::Rc;

use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use wire::http::caching::{StoredResponseMeta, Vary, stored_fields};
use wire::http::{ContentCoding, Fields, Request, Status, date};

use super::flights::{FetchEnd, Ticket};
use super::key::{split_target, url_of_key};
use super::lookup::{write_selecting, write_variant_key};
use super::{ResponseCacheInner, SharedResponseCache};
use crate::config::SetCookie;
use crate::handler::Routed;
use crate::handler::compression::{
    add_coding, add_vary, is_compressed, late_heads, representation, representation_in_file,
};
use crate::handler::forward::ACCEL_EXPIRES;
use crate::object_cache::{
    CacheLookup, CachedObject, Codings, Object, ObjectContent, ObjectOrigin, ObjectParts, StoredResponse, Variant,
};
use crate::shared_cache::FetchStamp;
use wire::http::KnownField;
use wire::http::caching::{ResponseDirectives, resolve};

/// A response to store, without its content.
#[derive(Clone, Debug)]
pub(super) struct CacheEntry {
    pub(super) status: Status,
    /// Fields as they are stored.
    pub(super) fields: Fields,
    pub(super) stored: StoredResponseMeta,
    /// Stamp of the fetch, for the cache that instances share.
    pub(super) stamp: Option<FetchStamp>,
}

impl ResponseCacheInner {
    /// Fields of a response as they are stored. `None` if it may not be stored because it sets a cookie, or depends
    /// on fields that clients do not send.
    pub(super) fn fields_to_store(
        &self,
        fields: &Fields,
        directives: &ResponseDirectives,
        unix_seconds: u64,
    ) -> Option<Fields> {
        if self.depends_on_what_we_write(fields) {
            return None;
        }
        let mut fields = stored_fields(fields, directives);
        fields.remove(ACCEL_EXPIRES);
        if !fields.has("Date") {
            // RFC 9110, section 6.6.1.
            fields.push("Date", date::format(unix_seconds));
        }
        match self.shared.config.set_cookie {
            SetCookie::Reject if fields.has("Set-Cookie") => return None,
            SetCookie::Drop => fields.remove("Set-Cookie"),
            SetCookie::Reject | SetCookie::Keep => {}
        }
        Some(fields)
    }

    /// True if a response depends on fields that Tailcoat writes: the key does not cover their values.
    pub(super) fn depends_on_what_we_write(&self, fields: &Fields) -> bool {
        let has_ours = |names: &[Box<[u8]>]| names.iter().any(|name| self.shared.key_rules.is_written_by_us(name));
        has_ours(&self.shared.key_names) || matches!(Vary::of(fields), Vary::Fields(names) if has_ours(&names))
    }

    /// Stores a response to this request, fetched with this ticket. The content must be
    /// [held](super::SharedResponseCache::hold).
    pub(super) fn store(&self, routed: &Routed<'_>, entry: CacheEntry, content: Bytes, ticket: &Ticket) -> FetchEnd {
        self.put(routed, entry, content, ticket).1
    }

    /// Stores a response. Returns it even if it was invalidated meanwhile, for the request that caused it.
    fn put(
        &self,
        routed: &Routed<'_>,
        entry: CacheEntry,
        content: Bytes,
        ticket: &Ticket,
    ) -> (Rc<CachedObject>, FetchEnd) {
        let mut key = Vec::new();
        self.shared.key_rules.write_key(routed, &mut key);
        self.shared.uncacheable.forget(&key);
        let variant = self.variant(&routed.request, &entry.fields, &mut key, routed.now.monotonic_ms);
        let stamp = entry.stamp.clone();
        let parts = object_parts(entry, ObjectContent::Memory(content), variant, &self.shared);
        let object = self.cache.adopt(self.shared.store.insert(self.shared.id, &key, parts));
        let is_outdated = || object.object.response().is_some_and(|response| ticket.is_outdated(&response.fields));
        if is_outdated() {
            // Invalidated after the last check, perhaps before there was an object to remove.
            self.shared.remove(&object.object);
            return (object, FetchEnd::NotStored);
        }
        self.shared.persist(&object.object, stamp);
        if is_outdated() {
            self.shared.remove(&object.object);
            return (object, FetchEnd::NotStored);
        }
        (object, FetchEnd::Stored)
    }

    /// Stores a response again in the same place with the same content, after an update that leaves its key
    /// unchanged. If it was invalidated meanwhile, nothing is stored.
    pub(super) fn store_again(&self, object: &Object, entry: CacheEntry) -> Rc<CachedObject> {
        let variant = object.response().and_then(|response| response.variant.clone());
        let stamp = entry.stamp.clone();
        let content = ObjectContent::Memory(content_of(object));
        let mut parts = object_parts(entry, content, variant, &self.shared);
        reuse_codings(&mut parts, object);
        let object = self.cache.adopt(self.shared.store.replace(object, parts));
        self.shared.persist(&object.object, stamp);
        object
    }

    /// Stores a response under the key that this request now selects, after an update that narrows its use. Fields
    /// and key change together.
    pub(super) fn store_elsewhere(
        &self,
        routed: &Routed<'_>,
        object: &Object,
        entry: CacheEntry,
        ticket: Option<&Ticket>,
    ) -> (Rc<CachedObject>, FetchEnd) {
        let was_there = !object.is_dead();
        self.remove_for(routed, object);
        match ticket.filter(|ticket| was_there && !ticket.is_invalid()) {
            Some(ticket) => self.put(routed, entry, content_of(object), ticket),
            None => (self.unstored(object, entry), FetchEnd::NotStored),
        }
    }

    /// Builds the response for one request alone.
    pub(super) fn unstored(&self, object: &Object, entry: CacheEntry) -> Rc<CachedObject> {
        let parts = object_parts(entry, ObjectContent::Memory(content_of(object)), None, &self.shared);
        Rc::new(CachedObject { object: self.shared.store.unstored(object, parts) })
    }

    /// Removes stored responses for the target of an unsafe request, and for the URLs that its response names (RFC
    /// 9111, section 4.4). When it is done, they are not on disk either.
    pub(super) async fn invalidate(&self, routed: &Routed<'_>, fields: &Fields) {
        let request = &routed.request;
        let mut url = Vec::new();
        self.shared.key_rules.write_key(routed, &mut url);
        let mut removals = vec![self.remove_url(&url)];
        let host = request.field(KnownField::Host).unwrap_or_default();
        let (authority, target) = split_target(request.target(), host);
        for name in ["Location", "Content-Location"] {
            let reference = fields.get(name);
            if let Some(target) =
                reference.and_then(|reference| resolve(reference, super::key::SCHEME, authority, target))
            {
                self.shared.key_rules.write_url(authority, &target, &mut url);
                removals.push(self.remove_url(&url));
            }
        }
        for removal in removals.into_iter().flatten() {
            // An error is a panic; then the index has no such entry any more.
            let _ = removal.await;
        }
    }

    /// Removes the stored responses for a key and for its URL, plain and over TLS. Variants can't be found without
    /// the first.
    fn remove_url(&self, key: &[u8]) -> Option<JoinHandle<()>> {
        let (shared, url) = (&self.shared, url_of_key(key));
        shared.flights.invalidate(|key| url_of_key(key) == url);
        let mut over_tls = url.to_vec();
        shared.key_rules.write_override(b"x-forwarded-proto", b"https", true, &mut over_tls);
        let keys = [key, url, &over_tls];
        let removal = shared.remove_from_tiers(&keys);
        for key in keys {
            if let Some(object) = shared.store.peek(shared.id, key) {
                shared.store.remove(&object);
            }
        }
        removal
    }

    /// Variant of a response among others for its URL; `None` if it depends on no field. If it is not the first,
    /// `key` becomes the variant's.
    fn variant(&self, request: &Request<'_>, fields: &Fields, key: &mut Vec<u8>, now_ms: u64) -> Option<Variant> {
        let first = self.cache.get(self.shared.id, key, now_ms);
        let (first, is_fresh) = match &first {
            CacheLookup::Fresh(object) => (object.object.response(), true),
            CacheLookup::Due(object) => (object.object.response(), false),
            CacheLookup::Miss => (None, false),
        };
        let known = first.and_then(|first| first.variant.as_ref());
        let names = match Vary::of(fields) {
            Vary::Fields(mut names) => {
                names.extend(self.shared.key_names.iter().cloned());
                names.sort_unstable();
                names.dedup();
                names.into_boxed_slice()
            }
            // RFC 9111, section 4.1: a response without Vary does not replace those that have one.
            Vary::Nothing | Vary::Everything => match known.filter(|_| is_fresh) {
                Some(known) => known.names.clone(),
                None if self.shared.key_names.is_empty() => return None,
                None => self.shared.key_names.clone(),
            },
        };
        let mut selecting = Vec::new();
        write_selecting(request, &names, &mut selecting);
        let selecting = selecting.into_boxed_slice();
        let Some(known) = known.filter(|known| known.names == names) else {
            return Some(Variant { names, selecting, set: self.shared.new_set() });
        };
        if known.selecting != selecting {
            let url = std::mem::take(key);
            write_variant_key(request, &url, known, key);
        }
        Some(Variant { names, selecting, set: known.set })
    }
}

/// Content of a stored response. Only responses in memory are stored again: those in files are read into memory before they are
/// validated.
pub(super) fn content_of(object: &Object) -> Bytes {
    match &object.identity().content {
        ObjectContent::Memory(bytes) => bytes.clone(),
        ObjectContent::File(_) => Bytes::new(),
    }
}

/// Gives new parts the codings of the same content that were made before, so that they are not made again.
fn reuse_codings(parts: &mut ObjectParts, before: &Object) {
    let (Some(codings), Some(known)) = (&mut parts.codings, before.codings()) else { return };
    let ObjectOrigin::Upstream(response) = &parts.origin else { return };
    for coding in [ContentCoding::Gzip, ContentCoding::Brotli, ContentCoding::Zstd] {
        let made = match known.cell(coding).and_then(|cell| cell.get()) {
            None => continue,
            Some(None) => None,
            Some(Some(made)) => {
                let ObjectContent::Memory(content) = &made.content else { continue };
                let mut fields = response.fields.clone();
                add_vary(&mut fields);
                add_coding(&mut fields, coding);
                Some(Box::new(representation(parts.identity.status, coding, &fields, content.clone())))
            }
        };
        codings.set(coding, OnceCell::new_with(Some(made)));
    }
}

/// Builds the object of a response, in wire form.
pub(super) fn object_parts(
    entry: CacheEntry,
    content: ObjectContent,
    variant: Option<Variant>,
    shared: &SharedResponseCache,
) -> ObjectParts {
    let CacheEntry { status, fields, stored, .. } = entry;
    let compression = shared.compression();
    let length = content.length();
    let is_compressed = compression.is_some_and(|settings| is_compressed(status, &fields, Some(length), &settings));
    let mut sent = Cow::Borrowed(&fields);
    if is_compressed {
        add_vary(sent.to_mut());
    }
    let late_heads = matches!(content, ObjectContent::File(_)).then(late_heads);
    let date_of = |name: &str| fields.get(name).and_then(date::parse);
    ObjectParts {
        identity: match content {
            ObjectContent::Memory(content) => representation(status, ContentCoding::Identity, &sent, content),
            ObjectContent::File(file) => representation_in_file(status, &sent, file),
        },
        codings: is_compressed.then(Codings::default),
        // RFC 9111, section 4.3.2: without Last-Modified, a date is compared with Date.
        last_modified_unix_seconds: date_of("Last-Modified").or_else(|| date_of("Date")),
        origin: ObjectOrigin::Upstream(Box::new(StoredResponse {
            stored,
            fields,
            variant,
            compression_level: compression.map(|settings| settings.level).unwrap_or_default(),
            has_cache_status: shared.config.cache_status,
            late_heads,
        })),
    }
}
