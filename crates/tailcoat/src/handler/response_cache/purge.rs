//! Taking responses out because an operator says so.

use memchr::memchr;
use wire::http::path;

use super::SharedResponseCache;
use super::key::{SCHEME, split_target, url_of_key};

/// Which responses are taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purge<'a> {
    /// Those for this URL, whatever else they depend on and however a client wrote it.
    Url(&'a [u8]),
    /// Those for all URLs that begin so.
    Prefix(&'a [u8]),
    /// All.
    All,
}

impl SharedResponseCache {
    /// Takes responses out, and sees to it that none is stored that is on its way; returns how many were there.
    pub fn purge(&self, which: Purge<'_>) -> usize {
        let wanted = match which {
            Purge::Url(url) | Purge::Prefix(url) => self.normal_form(&self.as_key(url)),
            Purge::All => Vec::new(),
        };
        let matches = |key: &[u8]| match which {
            Purge::Url(_) => self.normal_form(url_of_key(key)) == wanted,
            Purge::Prefix(_) => self.normal_form(url_of_key(key)).starts_with(&wanted),
            Purge::All => true,
        };
        // In this order: what is stored in between is not kept.
        self.flights.invalidate(matches);
        self.store.remove_matching(self.id, matches)
    }

    /// A URL as this cache has it in its keys.
    fn as_key(&self, url: &[u8]) -> Vec<u8> {
        let (authority, path_and_query) = split_target(url, b"");
        let mut key = Vec::new();
        match path_and_query {
            // What is to begin so may end in the midst of a host.
            [] => {
                key.extend_from_slice(SCHEME.as_bytes());
                key.extend_from_slice(b"://");
                key.extend(authority.iter().map(u8::to_ascii_lowercase));
            }
            _ => self.key_rules.write_url(authority, path_and_query, &mut key),
        }
        key
    }

    /// One form for all URLs that servers take for the same: without the root of the DNS and the port that goes without
    /// saying, and with a path without dot segments and needless encoding.
    fn normal_form(&self, url: &[u8]) -> Vec<u8> {
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
}
