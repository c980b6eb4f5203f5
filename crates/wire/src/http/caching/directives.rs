//! Cache-Control of requests and responses (RFC 9111, section 5.2).
//!
//! The parser is lenient with directives that restrict a cache and strict with those that permit something.

use super::targeted;
use crate::http::list::{elements, trim};
use crate::http::{Fields, KnownField, Request};

use super::freshness::parse_delta_seconds;

/// Cache directives of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseDirectives {
    /// `no-store`
    pub no_store: bool,
    /// `no-cache` without field names: validate before every reuse.
    pub no_cache: bool,
    /// `private`, even with field names or another argument: a shared cache must not store the response.
    pub private: bool,
    /// `public`
    pub public: bool,
    /// `must-revalidate`
    pub must_revalidate: bool,
    /// `proxy-revalidate`
    pub proxy_revalidate: bool,
    /// `must-understand`
    pub must_understand: bool,
    /// `max-age` in seconds; 0 if the value is invalid, because it is safer to treat the response as stale (section
    /// 4.2.1).
    pub max_age: Option<u32>,
    /// `s-maxage` in seconds; 0 if the value is invalid.
    pub s_maxage: Option<u32>,
    /// `stale-while-revalidate` (RFC 5861, section 3), in seconds.
    pub stale_while_revalidate: Option<u32>,
    /// `stale-if-error` (RFC 5861, section 4), in seconds.
    pub stale_if_error: Option<u32>,
    /// Field names in `no-cache`, in lower case. The cache must not store these fields.
    pub omitted_fields: Vec<Box<[u8]>>,
    /// True if the directives came from a targeted field (RFC 9213), which overrides Expires.
    pub is_targeted: bool,
}

/// Cache directives of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDirectives {
    /// `no-store`
    pub no_store: bool,
    /// `no-cache`, or `Pragma: no-cache` without Cache-Control (section 5.4).
    pub no_cache: bool,
    /// `only-if-cached`
    pub only_if_cached: bool,
    /// `max-age` in seconds; 0 if the value is invalid.
    pub max_age: Option<u32>,
    /// `min-fresh`, in seconds.
    pub min_fresh: Option<u32>,
    /// `max-stale` in seconds; `u32::MAX` without a value.
    pub max_stale: Option<u32>,
    /// `stale-if-error` (RFC 5861, section 4), in seconds.
    pub stale_if_error: Option<u32>,
}

impl ResponseDirectives {
    /// Parses Cache-Control, or the first valid one of the targeted fields (RFC 9213, section 2.2).
    pub fn of(fields: &Fields, targeted_fields: &[Box<str>]) -> Self {
        targeted_fields.iter().find_map(|name| targeted::directives(fields, name)).unwrap_or_else(|| {
            let mut directives = Self::default();
            for value in fields.values(b"cache-control") {
                elements(value).for_each(|element| directives.add(element));
            }
            directives
        })
    }

    /// Returns whether a shared cache may store the response to a request with Authorization (section 3.5).
    pub fn permits_authorized(&self) -> bool {
        self.must_revalidate || self.public || self.s_maxage.is_some()
    }

    /// Returns whether a shared cache must not serve the response once it is stale. `s-maxage` implies this (section
    /// 5.2.2.10).
    pub fn forbids_stale(&self) -> bool {
        self.must_revalidate || self.proxy_revalidate || self.no_cache || self.s_maxage.is_some()
    }

    /// Adds a directive. If a lifetime occurs several times, the smallest one counts: section 4.2.1 permits the first
    /// one, or to treat the response as stale.
    pub(super) fn add(&mut self, element: &[u8]) {
        let CacheDirective { name, argument, is_exact } = CacheDirective::of(element);
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if is("no-store") {
            self.no_store = true;
        } else if is("private") {
            self.private = true;
        } else if is("no-cache") {
            let before = self.omitted_fields.len();
            let names = unquoted(argument.unwrap_or_default());
            self.omitted_fields.extend(elements(names).map(|name| name.to_ascii_lowercase().into()));
            self.no_cache |= self.omitted_fields.len() == before;
        } else if is("must-revalidate") {
            self.must_revalidate = true;
        } else if is("proxy-revalidate") {
            self.proxy_revalidate = true;
        } else if is("public") {
            self.public |= is_exact;
        } else if is("must-understand") {
            self.must_understand |= is_exact;
        } else if is("max-age") {
            lower(&mut self.max_age, seconds(argument, is_exact));
        } else if is("s-maxage") {
            lower(&mut self.s_maxage, seconds(argument, is_exact));
        } else if is("stale-while-revalidate") {
            lower(&mut self.stale_while_revalidate, seconds(argument, is_exact));
        } else if is("stale-if-error") {
            lower(&mut self.stale_if_error, seconds(argument, is_exact));
        }
    }
}

impl RequestDirectives {
    /// Parses the directives of a request.
    pub fn of(request: &Request<'_>) -> Self {
        let mut directives = Self::default();
        let has = |field| request.head.has(field);
        if has(KnownField::CacheControl) {
            for value in request.field_lines(KnownField::CacheControl) {
                elements(value).for_each(|element| directives.add(element));
            }
        } else if has(KnownField::Pragma) {
            directives.no_cache = request
                .field_lines(KnownField::Pragma)
                .flat_map(elements)
                .any(|element| element.eq_ignore_ascii_case(b"no-cache"));
        }
        directives
    }

    fn add(&mut self, element: &[u8]) {
        let CacheDirective { name, argument, is_exact } = CacheDirective::of(element);
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if is("no-store") {
            self.no_store = true;
        } else if is("no-cache") {
            self.no_cache = true;
        } else if is("only-if-cached") {
            self.only_if_cached = true;
        } else if is("max-age") {
            self.max_age.get_or_insert(seconds(argument, is_exact).unwrap_or(0));
        } else if is("min-fresh") {
            self.min_fresh = self.min_fresh.or(seconds(argument, is_exact));
        } else if is("max-stale") {
            let given = if argument.is_none() { Some(u32::MAX) } else { seconds(argument, is_exact) };
            self.max_stale = self.max_stale.or(given);
        } else if is("stale-if-error") {
            self.stale_if_error = self.stale_if_error.or(seconds(argument, is_exact));
        }
    }
}

/// `token [ "=" ( token / quoted-string ) ]` (RFC 9111, section 5.2).
struct CacheDirective<'a> {
    name: &'a [u8],
    argument: Option<&'a [u8]>,
    /// True if there is no white space around `=`.
    is_exact: bool,
}

impl<'a> CacheDirective<'a> {
    fn of(element: &'a [u8]) -> Self {
        match memchr::memchr(b'=', element) {
            None => Self { name: element, argument: None, is_exact: true },
            Some(at) => {
                let (name, argument) = (&element[..at], &element[at + 1..]);
                let (trimmed_name, trimmed) = (trim(name), trim(argument));
                let is_exact = trimmed_name.len() == name.len() && trimmed.len() == argument.len();
                Self { name: trimmed_name, argument: Some(trimmed), is_exact }
            }
        }
    }
}

/// Sets a time to the smaller one; an invalid one counts as 0.
fn lower(time: &mut Option<u32>, seconds: Option<u32>) {
    let seconds = seconds.unwrap_or(0);
    *time = Some(time.map_or(seconds, |time| time.min(seconds)));
}

/// Parses a number of seconds as token or as quoted string; recipients must accept both (section 5.2).
fn seconds(argument: Option<&[u8]>, is_exact: bool) -> Option<u32> {
    argument.filter(|_| is_exact).and_then(|argument| parse_delta_seconds(unquoted(argument)))
}

/// Removes the quotes if there are both. Field names and numbers never need escapes.
fn unquoted(argument: &[u8]) -> &[u8] {
    match argument {
        [b'"', inner @ .., b'"'] => inner,
        [b'"', inner @ ..] => inner,
        _ => argument,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fields, with_request};
    use super::{RequestDirectives, ResponseDirectives};

    fn response(lines: &[&str]) -> ResponseDirectives {
        let lines: Vec<_> = lines.iter().map(|value| ("Cache-Control", *value)).collect();
        ResponseDirectives::of(&fields(&lines), &[])
    }

    #[test]
    fn response_ages() {
        let check = |lines: &[&str], expect: Option<u32>| assert_eq!(response(lines).max_age, expect, "{lines:?}");
        check(&["max-age=3600"], Some(3600));
        check(&["MaX-aGe=003600"], Some(3600));
        check(&["max-age=\"3600\""], Some(3600));
        check(&["foobar, max-age=3600"], Some(3600));
        check(&["extension=\"max-age=3600\", max-age=1"], Some(1));
        check(&["max-age=1, extension=\"max-age=3600\""], Some(1));
        check(&["extension=\"max-age=3600\""], None);
        // The smallest one counts.
        check(&["max-age=1, max-age=1800"], Some(1));
        check(&["max-age=1800", "max-age=1"], Some(1));
        check(&["max-age=60, max-age=x"], Some(0));
        // Section 1.2.2: a number that is too large means 2^31.
        check(&["max-age=2147483648"], Some(1 << 31));
        check(&["max-age=99999999999999999999"], Some(1 << 31));
        // Section 4.2.1: an invalid value makes the response stale.
        for value in ["max-age", "max-age=", "max-age=-1", "max-age='1'", "max-age=1.0", "max-age=a1", "max-age=1a"] {
            check(&[value], Some(0));
        }
        check(&["max-age =3600"], Some(0));
        check(&["max-age= 3600"], Some(0));
        check(&["s-maxage=3"], None);
    }

    #[test]
    fn response_flags() {
        let check = |value: &str, expect: ResponseDirectives| assert_eq!(response(&[value]), expect, "{value}");
        let none = ResponseDirectives::default;
        check("", none());
        check("No-StOrE", ResponseDirectives { no_store: true, ..none() });
        check("no-cache", ResponseDirectives { no_cache: true, ..none() });
        check("no-cache=", ResponseDirectives { no_cache: true, ..none() });
        check("private=\"\"", ResponseDirectives { private: true, ..none() });
        for value in ["private =x", "private=1", "private=\"set-cookie\"", "private=a, public"] {
            assert!(response(&[value]).private, "{value}");
        }
        let omitted_fields = vec![b"a"[..].into(), b"set-cookie"[..].into()];
        check("no-cache=\"a, Set-Cookie\"", ResponseDirectives { omitted_fields, ..none() });
        check(
            "must-revalidate,proxy-revalidate,,public",
            ResponseDirectives { must_revalidate: true, proxy_revalidate: true, public: true, ..none() },
        );
        check("no-store, must-understand", ResponseDirectives { no_store: true, must_understand: true, ..none() });
        check(
            "s-maxage=4, stale-while-revalidate=5, stale-if-error=x",
            ResponseDirectives {
                s_maxage: Some(4),
                stale_while_revalidate: Some(5),
                stale_if_error: Some(0),
                ..none()
            },
        );
        check("no-storex, xprivate, \"no-cache\"", none());
    }

    #[test]
    fn request() {
        let check = |lines: &[(&str, &str)], expect: RequestDirectives| {
            assert_eq!(with_request(lines, RequestDirectives::of), expect, "{lines:?}");
        };
        let none = RequestDirectives::default();
        check(&[], none);
        check(&[("Cache-Control", "no-cache")], RequestDirectives { no_cache: true, ..none });
        check(&[("Pragma", "x, no-cache")], RequestDirectives { no_cache: true, ..none });
        // Section 5.4: Pragma counts only without Cache-Control.
        check(
            &[("Pragma", "no-cache"), ("Cache-Control", "min-fresh=1")],
            RequestDirectives { min_fresh: Some(1), ..none },
        );
        check(
            &[("Cache-Control", "max-age=0, only-if-cached"), ("Cache-Control", "no-store")],
            RequestDirectives { max_age: Some(0), only_if_cached: true, no_store: true, ..none },
        );
        check(&[("Cache-Control", "max-stale")], RequestDirectives { max_stale: Some(u32::MAX), ..none });
        check(&[("Cache-Control", "max-stale=7")], RequestDirectives { max_stale: Some(7), ..none });
        check(&[("Cache-Control", "max-stale=x, max-age=x")], RequestDirectives { max_age: Some(0), ..none });
    }
}
