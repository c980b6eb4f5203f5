//! Purging: removing responses on an operator's request.

use memchr::memchr;
use wire::http::caching::CacheTag;
use wire::http::path;

use std::sync::Arc;

use super::SharedResponseCache;
use super::key::{SCHEME, split_target, url_of_key};
use crate::object_cache::Object;
use crate::shared_cache::{CachePurge, PurgeTest};

/// Responses to purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purge<'a> {
    /// Responses for this URL, in all variants and spellings.
    Url(&'a [u8]),
    /// Responses for all URLs with this prefix.
    Prefix(&'a [u8]),
    /// Responses with this tag, in `Surrogate-Key` or `Cache-Tag`.
    Tag(&'a [u8]),
    /// All responses.
    All,
}

/// Test for responses that a purge removes.
#[derive(Clone, Debug)]
enum PurgeMatcher {
    /// URL in normal form.
    Url(Vec<u8>),
    /// Beginning of URLs in normal form; all have an empty one.
    Prefix(Vec<u8>),
    Tag(CacheTag),
}

impl PurgeMatcher {
    /// True for responses with this key and these written tags.
    fn matches(&self, key: &[u8], tags: &[u8]) -> bool {
        match self {
            Self::Url(url) => normal_form(url_of_key(key)) == *url,
            Self::Prefix(prefix) => prefix.is_empty() || normal_form(url_of_key(key)).starts_with(prefix),
            Self::Tag(tag) => tag.is_written_in(tags),
        }
    }
}

impl<'a> From<&'a CachePurge> for Purge<'a> {
    fn from(purge: &'a CachePurge) -> Self {
        match purge {
            CachePurge::Url(url) => Self::Url(url.as_bytes()),
            CachePurge::Prefix(prefix) => Self::Prefix(prefix.as_bytes()),
            CachePurge::Tag(tag) => Self::Tag(tag.as_bytes()),
            CachePurge::All => Self::All,
        }
    }
}

impl SharedResponseCache {
    /// Removes responses from memory and disk, and keeps fetches in progress from storing theirs; returns the number
    /// removed. Waits for the disk.
    pub fn purge(&self, which: Purge<'_>) -> usize {
        let matcher = self.matcher(which);
        if let PurgeMatcher::Tag(tag) = matcher {
            return self.purge_tag(tag);
        }
        let matches = move |key: &[u8]| matcher.matches(key, &[]);
        // In this order, so that a response stored or read in between is removed.
        self.flights.invalidate(&matches);
        let of_disk = matches.clone();
        let on_disk = self.purge_disk(move |key, _| of_disk(key));
        self.count_disk_alone(&on_disk) + self.store.remove_matching(self.id, matches)
    }

    fn matcher(&self, which: Purge<'_>) -> PurgeMatcher {
        match which {
            Purge::Url(url) => PurgeMatcher::Url(normal_form(&self.as_key(url))),
            Purge::Prefix(url) => PurgeMatcher::Prefix(normal_form(&self.as_key(url))),
            Purge::Tag(tag) => PurgeMatcher::Tag(CacheTag::of(tag)),
            Purge::All => PurgeMatcher::Prefix(Vec::new()),
        }
    }

    /// Test whether a purge is for the response with this key.
    pub(super) fn purge_test(self: &Arc<Self>, key: &[u8]) -> PurgeTest {
        let (cache, key) = (Arc::clone(self), key.to_vec());
        Arc::new(move |purge, tags| cache.matcher(purge.into()).matches(&key, tags))
    }

    fn purge_tag(&self, tag: CacheTag) -> usize {
        // In this order, so that a response stored or read in between is removed.
        self.flights.purge_tag(tag);
        let on_disk = self.purge_disk(move |_, tags| tag.is_written_in(tags));
        let has_tag = |object: &Object| object.response().is_some_and(|response| tag.is_in(&response.fields));
        self.count_disk_alone(&on_disk) + self.store.remove_objects(self.id, has_tag)
    }

    /// Number of keys that memory does not have.
    fn count_disk_alone(&self, keys: &[Box<[u8]>]) -> usize {
        keys.iter().filter(|key| self.store.peek(self.id, key).is_none()).count()
    }

    /// Key that this cache uses for a URL.
    fn as_key(&self, url: &[u8]) -> Vec<u8> {
        let (authority, path_and_query) = split_target(url, b"");
        let mut key = Vec::new();
        match path_and_query {
            // A prefix may end within a host.
            [] => {
                key.extend_from_slice(SCHEME.as_bytes());
                key.extend_from_slice(b"://");
                key.extend(authority.iter().map(u8::to_ascii_lowercase));
            }
            _ => self.key_rules.write_url(authority, path_and_query, &mut key),
        }
        key
    }
}

/// Normalises a URL, so that all spellings compare equal: without the DNS root, default port, dot segments and needless
/// encoding.
fn normal_form(url: &[u8]) -> Vec<u8> {
    let (authority, path_and_query) = split_target(url, b"");
    let Some(scheme) = url.strip_suffix(path_and_query).and_then(|start| start.strip_suffix(authority)) else {
        return url.to_vec();
    };
    let host = authority.strip_suffix(b":80").or(authority.strip_suffix(b":443")).unwrap_or(authority);
    let host = if path_and_query.is_empty() { authority } else { host.strip_suffix(b".").unwrap_or(host) };
    let mut normal = [scheme, host].concat();
    let (path, query) = path_and_query.split_at(memchr(b'?', path_and_query).unwrap_or(path_and_query.len()));
    let mut buffer = Vec::new();
    match path::normalise(path, &mut buffer) {
        Ok(path) => path::encode(path, &mut normal),
        Err(_) => normal.extend_from_slice(path),
    }
    normal.extend_from_slice(query);
    normal
}
