//! Lookup: from a request to a stored response.

use std::rc::Rc;

use wire::h1::BodyFraming;
use wire::http::caching::{RequestDirectives, ReuseDecision, reuse, write_selecting_value};
use wire::http::{KnownField, Method, Request, cookie_may_have_name, cookies};

use super::ResponseCacheInner;
use super::key::{VARIANT_MARK, leads_elsewhere};
use crate::handler::Routed;
use crate::object_cache::{CacheLookup, CachedObject, Object, ObjectContent, OpenFile, Variant};

/// Result of a lookup.
pub(super) enum Look {
    /// Forward the request as it is, for this reason (RFC 9211, section 2.2).
    Pass(&'static str),
    /// Serve this response.
    Serve(Rc<CachedObject>),
    /// Serve this response, then revalidate it.
    ServeAndRevalidate(Rc<CachedObject>),
    /// Revalidate this response first.
    Validate(Rc<CachedObject>),
    /// Nothing is stored.
    Miss,
}

impl Look {
    /// True if nothing is stored in memory, although the cache may handle the request.
    pub(super) fn is_miss(&self) -> bool {
        matches!(self, Self::Miss) || matches!(self, Self::Pass(reason) if *reason == MISS)
    }
}

/// Reason for requests that the cache passes on because nothing is stored.
const MISS: &str = "miss";

/// Prefix of a cookie's name among the fields that select a variant; no field name begins like this.
pub(super) const COOKIE_MARK: &[u8] = b"cookie;";

/// Reason for requests that the cache must not handle.
pub(super) const BYPASS: &str = "bypass";

/// Keys of a request.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// Key of the URL.
    pub(super) url: Vec<u8>,
    /// Key of the variant that the request selects, if the URL has several and it is not the first of them.
    pub(super) variant: Vec<u8>,
}

impl Keys {
    /// Most specific key known before the response.
    pub(super) fn narrowest(&self) -> &[u8] {
        if self.variant.is_empty() { &self.url } else { &self.variant }
    }

    /// Kind of miss for these keys (RFC 9211, section 2.2).
    pub(super) fn missed(&self) -> &'static str {
        if self.variant.is_empty() { "uri-miss" } else { "vary-miss" }
    }
}

impl ResponseCacheInner {
    /// Looks for a response. Leaves the keys in `keys`.
    #[inline]
    pub(super) fn look_up(&self, routed: &Routed<'_>) -> Look {
        if !matches!(routed.request.method(), Method::Get | Method::Head) {
            return Look::Pass("method");
        }
        if !self.is_for_cache(routed) {
            return Look::Pass(BYPASS);
        }
        let request = &routed.request;
        let now_ms = routed.now.monotonic_ms;
        let (object, is_due) = match self.find(routed, now_ms) {
            CacheLookup::Fresh(object) => (object, false),
            CacheLookup::Due(object) => (object, true),
            CacheLookup::Miss => return miss(request),
        };
        if let ObjectContent::File(file) = &object.object.identity().content {
            return match self.serves_from_file(request, &object.object, file, is_due) {
                true => Look::Serve(object),
                false => miss(request),
            };
        }
        let asked = self.asked(request);
        if !is_due && asked == RequestDirectives::default() {
            return Look::Serve(object);
        }
        let Some(response) = object.object.response() else { return miss(request) };
        match reuse(&response.stored, &asked, now_ms) {
            ReuseDecision::Serve => Look::Serve(object),
            ReuseDecision::ServeAndRevalidate if request.method() == Method::Get => Look::ServeAndRevalidate(object),
            ReuseDecision::ServeAndRevalidate => Look::Serve(object),
            // `learn_from_head` applies the response to HEAD to the stored one.
            ReuseDecision::Validate if request.method() == Method::Head => Look::Pass("stale"),
            ReuseDecision::Validate => Look::Validate(object),
        }
    }

    /// True if a stored response may be served from its file. Otherwise it is not in memory any more: a response that must be
    /// validated, or may have to be, is read into memory first.
    fn serves_from_file(&self, request: &Request<'_>, object: &Object, file: &OpenFile, is_due: bool) -> bool {
        if is_due || self.asked(request) != RequestDirectives::default() {
            self.shared.store.remove(object);
            return false;
        }
        self.shared.confirm_file(object, file)
    }

    /// Directives of the request, if the configuration obeys them.
    pub(super) fn asked(&self, request: &Request<'_>) -> RequestDirectives {
        let has_any = request.head.has(KnownField::CacheControl) || request.head.has(KnownField::Pragma);
        if has_any && self.shared.config.request_directives {
            return RequestDirectives::of(request);
        }
        RequestDirectives::default()
    }

    /// Finds the stored response, whether or not it may be served. Leaves the keys in `keys`.
    pub(super) fn find(&self, routed: &Routed<'_>, now_ms: u64) -> CacheLookup {
        let Keys { url, variant: variant_key } = &mut *self.keys.borrow_mut();
        self.shared.key_rules.write_key(routed, url);
        variant_key.clear();
        let first = self.cache.get(self.shared.id, url, now_ms);
        let (CacheLookup::Fresh(object) | CacheLookup::Due(object)) = &first else { return first };
        let Some(variant) = object.object.response().and_then(|response| response.variant.as_ref()) else {
            return first;
        };
        write_variant_key(&routed.request, url, variant, variant_key);
        if variant_key.ends_with(&variant.selecting) && variant_key.len() == selecting_at(url) + variant.selecting.len()
        {
            variant_key.clear();
            return first;
        }
        self.cache.get(self.shared.id, variant_key, now_ms)
    }

    /// True if a cache may handle the request. It must read, without content, and without conditions that only the
    /// upstream can evaluate (RFC 9110, sections 13.1.1 and 13.1.4).
    fn is_for_cache(&self, routed: &Routed<'_>) -> bool {
        const NOT_FOR_CACHE: [KnownField; 3] =
            [KnownField::IfMatch, KnownField::IfUnmodifiedSince, KnownField::Upgrade];
        let request = &routed.request;
        routed.link.get().is_none_or(|link| link.framing() == BodyFraming::None)
            && !NOT_FOR_CACHE.iter().any(|field| request.head.has(*field))
            && !leads_elsewhere(request.target())
            && !takes_fields_away(request)
            && !self.has_bypass_cookie(request)
    }

    fn has_bypass_cookie(&self, request: &Request<'_>) -> bool {
        let patterns = &self.shared.config.bypass_cookies;
        if patterns.is_empty() || !request.head.has(KnownField::Cookie) {
            return false;
        }
        cookies(request).any(|cookie| patterns.iter().any(|pattern| pattern.may_name(cookie)))
    }
}

/// True if Connection names fields that are not forwarded (RFC 9110, section 7.6.1). The response would be stored for
/// clients that send those fields, but the upstream did not see them.
fn takes_fields_away(request: &Request<'_>) -> bool {
    const HARMLESS: [&[u8]; 5] = [b"", b"close", b"keep-alive", b"te", b"upgrade"];
    let options = || request.field_lines(KnownField::Connection).flat_map(|line| line.split(|&byte| byte == b','));
    request.head.has(KnownField::Connection)
        && !options().all(|option| HARMLESS.iter().any(|known| option.trim_ascii().eq_ignore_ascii_case(known)))
}

/// Handles a miss: HEAD and range requests are forwarded unchanged, and their responses are not stored.
fn miss(request: &Request<'_>) -> Look {
    let is_whole = request.method() == Method::Get && !request.head.has(KnownField::Range);
    if is_whole { Look::Miss } else { Look::Pass(MISS) }
}

/// Writes the key of the variant that a request selects from the set of `variant`.
pub(super) fn write_variant_key(request: &Request<'_>, url: &[u8], variant: &Variant, out: &mut Vec<u8>) {
    out.extend_from_slice(url);
    out.push(VARIANT_MARK);
    out.extend_from_slice(&variant.set.to_be_bytes());
    write_selecting(request, &variant.names, out);
}

/// Writes the request's values of these fields.
pub(super) fn write_selecting(request: &Request<'_>, names: &[Box<[u8]>], out: &mut Vec<u8>) {
    for name in names {
        match name.strip_prefix(COOKIE_MARK) {
            None => write_selecting_value(request, name, out),
            Some(wanted) => {
                // No field value has the bytes that separate these: values cannot run together.
                for (name, value) in cookies(request) {
                    if name == wanted {
                        out.push(1);
                        out.extend_from_slice(value);
                    } else if cookie_may_have_name((name, value), wanted, false) {
                        out.push(2);
                        out.extend_from_slice(name);
                        out.push(3);
                        out.extend_from_slice(value);
                    }
                }
            }
        }
        // No field value has this byte.
        out.push(0);
    }
}

/// Offset in a variant's key at which the request's field values begin.
fn selecting_at(url: &[u8]) -> usize {
    url.len() + size_of_val(&VARIANT_MARK) + size_of::<u64>()
}
