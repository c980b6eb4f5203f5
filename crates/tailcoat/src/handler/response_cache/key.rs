//! What responses are found by: the URL of the request.

use memchr::memchr;
use wire::http::{KnownField, Request};

use crate::config::NamePattern;
use crate::object_cache::ObjectStore;

/// Follows the URL in the key of a response that shares it with others.
pub(super) const VARIANT_MARK: u8 = 0;

/// Which responses are taken out of all caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purge<'a> {
    /// Those for this URL, whatever else they depend on.
    Url(&'a [u8]),
    /// Those for all URLs that begin so.
    Prefix(&'a [u8]),
}

/// Takes responses out; returns how many.
pub fn purge(store: &ObjectStore, which: Purge<'_>) -> usize {
    store.remove_responses(|key| match which {
        Purge::Url(url) => key.strip_prefix(url).is_some_and(|rest| matches!(rest, [] | [VARIANT_MARK, ..])),
        Purge::Prefix(prefix) => key.starts_with(prefix),
    })
}

/// The scheme, as long as there is no other.
pub(super) const SCHEME: &str = "http";

/// Writes a request's key: scheme, host and port as they were sent, for an upstream may put them into its answers; path
/// as it was sent, for what it is decoded to may be another resource's; and query, but for parameters that are ignored.
pub(super) fn write_key(request: &Request<'_>, ignored: &[NamePattern], out: &mut Vec<u8>) {
    let target = request.target();
    let (authority, path_and_query) = split_target(target, request.field(KnownField::Host).unwrap_or_default());
    write_url(authority, path_and_query, ignored, out);
}

/// Writes the key of a path and query on a host.
pub(super) fn write_url(authority: &[u8], path_and_query: &[u8], ignored: &[NamePattern], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(SCHEME.as_bytes());
    out.extend_from_slice(b"://");
    out.extend(authority.iter().map(u8::to_ascii_lowercase));
    if !path_and_query.starts_with(b"/") {
        out.push(b'/');
    }
    match memchr(b'?', path_and_query).filter(|_| !ignored.is_empty()) {
        None => out.extend_from_slice(path_and_query),
        Some(at) => {
            out.extend_from_slice(&path_and_query[..at]);
            write_query(&path_and_query[at + 1..], ignored, out);
        }
    }
}

/// Host and port, and path and query: of the target if it has both (RFC 9112, section 3.2.2), else of the Host field.
pub(super) fn split_target<'a>(target: &'a [u8], host: &'a [u8]) -> (&'a [u8], &'a [u8]) {
    if target.starts_with(b"/") {
        return (host, target);
    }
    // It was parsed before: what is neither is not for a cache.
    let rest = memchr::memmem::find(target, b"://").map_or(target, |at| &target[at + 3..]);
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    rest.split_at(end)
}

fn write_query(query: &[u8], ignored: &[NamePattern], out: &mut Vec<u8>) {
    let mut separator = b'?';
    for parameter in query.split(|&byte| byte == b'&') {
        let name = &parameter[..memchr(b'=', parameter).unwrap_or(parameter.len())];
        if !ignored.iter().any(|pattern| pattern.matches(name)) {
            out.push(separator);
            out.extend_from_slice(parameter);
            separator = b'&';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let ignored = [NamePattern::new("utm_*"), NamePattern::new("fbclid")];
        let check = |target: &str, host: &str, expect: &str| {
            let (authority, path_and_query) = split_target(target.as_bytes(), host.as_bytes());
            let mut key = b"rest".to_vec();
            write_url(authority, path_and_query, &ignored, &mut key);
            assert_eq!(String::from_utf8(key).unwrap(), expect, "{target} {host}");
        };
        check("/", "Example.org", "http://example.org/");
        check("/a%2Fb//c?", "h:81", "http://h:81/a%2Fb//c?");
        check("/a?x=1&utm_source=y&&Z", "h", "http://h/a?x=1&&Z");
        check("/a?fbclid=1&utm_", "h", "http://h/a");
        check("/a?fbclid2=1&fbclid", "h", "http://h/a?fbclid2=1");
        check("http://H2:81/b?c", "h", "http://h2:81/b?c");
        check("http://h2?c", "h", "http://h2/?c");
        check("http://h2", "h", "http://h2/");
        check("/a", "", "http:///a");
    }
}
