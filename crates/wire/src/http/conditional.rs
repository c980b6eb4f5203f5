//! Conditional requests (RFC 9110, section 13).

use super::{KnownField, Method, Request, date, list};

/// Validators of the current version of a representation (RFC 9110, section 8.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validators<'a> {
    /// Entity tag as in the ETag field, with quotes, and with `W/` if it is weak.
    pub etag: Option<&'a [u8]>,
    /// Time of Last-Modified, in seconds since 1970.
    pub last_modified: Option<u64>,
}

/// Result of evaluating the preconditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Handle the request as if it had no conditions.
    Passed,
    /// Answer with 304: the client has the current version (GET and HEAD only).
    NotModified,
    /// Answer with 412.
    Failed,
}

/// Evaluates a request's preconditions in the order of RFC 9110, section 13.2.2. Call it only if the response would
/// otherwise be successful (section 13.2.1). If-Range comes after it: see [`range_value`].
pub fn evaluate(request: &Request<'_>, validators: &Validators<'_>) -> Precondition {
    let head = request.head;
    let is_read = matches!(request.method(), Method::Get | Method::Head);
    if head.has(KnownField::IfMatch) {
        if !matches_any(request, KnownField::IfMatch, validators.etag, strong_eq) {
            return Precondition::Failed;
        }
    } else if let (Some(since), Some(modified)) =
        (date(request, KnownField::IfUnmodifiedSince), validators.last_modified)
        && modified > since
    {
        return Precondition::Failed;
    }
    if head.has(KnownField::IfNoneMatch) {
        if matches_any(request, KnownField::IfNoneMatch, validators.etag, weak_eq) {
            return if is_read { Precondition::NotModified } else { Precondition::Failed };
        }
    } else if is_read
        && let (Some(since), Some(modified)) = (date(request, KnownField::IfModifiedSince), validators.last_modified)
        && modified <= since
    {
        return Precondition::NotModified;
    }
    Precondition::Passed
}

/// Returns the value of the Range field, for [`range::select`](super::range::select); `None` if the server must ignore
/// it. Only GET has ranges (RFC 9110, section 14.2), and If-Range must match (section 13.1.5).
pub fn range_value<'a>(request: &Request<'a>, validators: &Validators<'_>) -> Option<&'a [u8]> {
    let value = request.field(KnownField::Range)?;
    // Range is not a list, so a second line makes it invalid.
    if request.method() != Method::Get || request.head.is_repeated(KnownField::Range) {
        return None;
    }
    let Some(condition) = request.field(KnownField::IfRange) else { return Some(value) };
    let holds = !request.head.is_repeated(KnownField::IfRange)
        && match split_etag(condition) {
            Some((etag, b"")) => validators.etag.is_some_and(|current| strong_eq(etag, current)),
            // The date must match exactly; a later one does not. The client must ensure that it is a strong validator
            // (section 13.1.5).
            _ => date::parse(condition).is_some_and(|date| validators.last_modified == Some(date)),
        };
    holds.then_some(value)
}

/// Returns whether an entity tag in the lines of the field matches the current one. `*` matches any existing
/// representation. Ignores everything after a syntax error.
fn matches_any(request: &Request<'_>, field: KnownField, current: Option<&[u8]>, eq: fn(&[u8], &[u8]) -> bool) -> bool {
    if !request.head.is_repeated(field) && request.field(field) == Some(b"*") {
        return true;
    }
    let Some(current) = current else { return false };
    request.field_lines(field).flat_map(etags).any(|etag| eq(etag, current))
}

/// Returns the entity tags of a list, up to the first syntax error. [`list::elements`] cannot be used, because a
/// backslash in an entity tag is not an escape.
fn etags(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = value;
    std::iter::from_fn(move || {
        while let [b' ' | b'\t' | b',', after @ ..] = rest {
            rest = after;
        }
        let (etag, after) = split_etag(rest)?;
        rest = list::trim(after);
        // Only a comma separates entity tags.
        (rest.is_empty() || rest[0] == b',').then_some(etag)
    })
}

/// Splits off the leading entity tag: `[ "W/" ] DQUOTE *etagc DQUOTE` (RFC 9110, section 8.8.3).
fn split_etag(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let opaque_start = if value.starts_with(b"W/") { 2 } else { 0 };
    let inner = value[opaque_start..].strip_prefix(b"\"")?;
    let inner_length = inner.iter().position(|&byte| !matches!(byte, 0x21 | 0x23..=0x7e | 0x80..))?;
    (inner[inner_length] == b'"').then(|| value.split_at(opaque_start + inner_length + 2))
}

/// RFC 9110, section 8.8.3.2: equal, and neither is weak.
fn strong_eq(etag: &[u8], other: &[u8]) -> bool {
    etag == other && !etag.starts_with(b"W/")
}

/// RFC 9110, section 8.8.3.2: equal, ignoring weakness.
fn weak_eq(etag: &[u8], other: &[u8]) -> bool {
    opaque(etag) == opaque(other)
}

fn opaque(etag: &[u8]) -> &[u8] {
    etag.strip_prefix(b"W/").unwrap_or(etag)
}

/// Parses the date in a field. Ignores an invalid date and a field with several lines (RFC 9110, sections 13.1.3 and
/// 13.1.4).
fn date(request: &Request<'_>, field: KnownField) -> Option<u64> {
    if request.head.is_repeated(field) {
        return None;
    }
    date::parse(request.field(field)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Precondition, Validators, etags, evaluate, range_value};
    use crate::http::{KnownField, Method, Request, RequestHead, Span, date};

    const MODIFIED: u64 = 784_111_777;
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AT: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const AT_ASCTIME: &str = "Sun Nov  6 08:49:37 1994";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    const STRONG: Validators<'_> = Validators { etag: Some(b"\"a\""), last_modified: Some(MODIFIED) };
    const WEAK: Validators<'_> = Validators { etag: Some(b"W/\"a\""), last_modified: Some(MODIFIED) };
    const NONE: Validators<'_> = Validators { etag: None, last_modified: None };

    fn with_request<T>(method: Method, fields: &[(&str, &[u8])], read: impl FnOnce(&Request<'_>) -> T) -> T {
        let (mut head, mut bytes) = (RequestHead::default(), Vec::new());
        head.method = method;
        for (name, value) in fields {
            let start = bytes.len();
            bytes.extend_from_slice(value);
            head.push_field(Span::default(), Span::new(start, bytes.len()), KnownField::from_name(name.as_bytes()));
        }
        read(&Request { head: &head, bytes: &bytes })
    }

    fn bytes_of<'a>(fields: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a [u8])> {
        fields.iter().map(|(name, value)| (*name, value.as_bytes())).collect()
    }

    #[test]
    fn preconditions() {
        use Precondition::{Failed, NotModified, Passed};
        let check = |method: Method, fields: &[(&str, &str)], validators: Validators<'_>, expect: Precondition| {
            let found = with_request(method, &bytes_of(fields), |request| evaluate(request, &validators));
            assert_eq!(found, expect, "{method:?} {fields:?} {validators:?}");
        };
        let get = |fields: &[(&str, &str)], expect| check(Method::Get, fields, STRONG, expect);

        get(&[], Passed);

        get(&[("If-None-Match", "\"a\"")], NotModified);
        get(&[("If-None-Match", "W/\"a\"")], NotModified);
        get(&[("If-None-Match", "*")], NotModified);
        get(&[("If-None-Match", "\"b\", \"a\"")], NotModified);
        get(&[("If-None-Match", "\"b,\",,\"a\" ,")], NotModified);
        get(&[("If-None-Match", "\"b\""), ("If-None-Match", "\"a\"")], NotModified);
        get(&[("If-None-Match", "\"b\"")], Passed);
        get(&[("If-None-Match", "\"A\"")], Passed);
        get(&[("If-None-Match", "\"b, \"a\"")], Passed);
        get(&[("If-None-Match", "\"b\" \"a\"")], Passed);
        get(&[("If-None-Match", "a")], Passed);
        get(&[("If-None-Match", "\"a")], Passed);
        get(&[("If-None-Match", "w/\"a\"")], Passed);
        get(&[("If-None-Match", "")], Passed);
        get(&[("If-None-Match", "*, \"b\"")], Passed);
        get(&[("If-None-Match", "\"b\\\", \"a\"")], NotModified);
        check(Method::Head, &[("If-None-Match", "\"a\"")], STRONG, NotModified);
        check(Method::Put, &[("If-None-Match", "\"a\"")], STRONG, Failed);
        check(Method::Put, &[("If-None-Match", "*")], STRONG, Failed);
        check(Method::Get, &[("If-None-Match", "\"a\"")], WEAK, NotModified);
        check(Method::Get, &[("If-None-Match", "\"a\"")], NONE, Passed);
        check(Method::Get, &[("If-None-Match", "*")], NONE, NotModified);

        get(&[("If-Match", "\"a\"")], Passed);
        get(&[("If-Match", "*")], Passed);
        get(&[("If-Match", "\"b\", \"a\"")], Passed);
        get(&[("If-Match", "\"b\""), ("If-Match", "\"a\"")], Passed);
        get(&[("If-Match", "\"b\"")], Failed);
        get(&[("If-Match", "W/\"a\"")], Failed);
        get(&[("If-Match", "a")], Failed);
        check(Method::Get, &[("If-Match", "W/\"a\"")], WEAK, Failed);
        check(Method::Get, &[("If-Match", "\"a\"")], NONE, Failed);
        check(Method::Get, &[("If-Match", "*")], NONE, Passed);

        get(&[("If-Modified-Since", BEFORE)], Passed);
        get(&[("If-Modified-Since", AT)], NotModified);
        get(&[("If-Modified-Since", AT_ASCTIME)], NotModified);
        get(&[("If-Modified-Since", AFTER)], NotModified);
        get(&[("If-Modified-Since", "yesterday")], Passed);
        get(&[("If-Modified-Since", AT), ("If-Modified-Since", AT)], Passed);
        check(Method::Head, &[("If-Modified-Since", AT)], STRONG, NotModified);
        check(Method::Post, &[("If-Modified-Since", AT)], STRONG, Passed);
        check(Method::Get, &[("If-Modified-Since", AT)], NONE, Passed);

        get(&[("If-Unmodified-Since", BEFORE)], Failed);
        get(&[("If-Unmodified-Since", AT)], Passed);
        get(&[("If-Unmodified-Since", AFTER)], Passed);
        get(&[("If-Unmodified-Since", "yesterday")], Passed);
        check(Method::Put, &[("If-Unmodified-Since", BEFORE)], STRONG, Failed);
        check(Method::Get, &[("If-Unmodified-Since", BEFORE)], NONE, Passed);

        // The order of precedence.
        get(&[("If-Match", "\"a\""), ("If-Unmodified-Since", BEFORE)], Passed);
        get(&[("If-Match", "\"b\""), ("If-None-Match", "\"a\"")], Failed);
        get(&[("If-Match", "\"a\""), ("If-None-Match", "\"a\"")], NotModified);
        get(&[("If-None-Match", "\"b\""), ("If-Modified-Since", AT)], Passed);
        get(&[("If-None-Match", "\"a\""), ("If-Modified-Since", BEFORE)], NotModified);
        get(&[("If-Unmodified-Since", BEFORE), ("If-Modified-Since", AT)], Failed);
        get(&[("If-Unmodified-Since", AT), ("If-Modified-Since", AT)], NotModified);
    }

    #[test]
    fn ranges() {
        let check = |method: Method, fields: &[(&str, &str)], validators: Validators<'_>, expect: bool| {
            let found = with_request(method, &bytes_of(fields), |request| range_value(request, &validators).is_some());
            assert_eq!(found, expect, "{method:?} {fields:?} {validators:?}");
        };
        let range = ("Range", "bytes=0-0");
        check(Method::Get, &[], STRONG, false);
        check(Method::Get, &[range], STRONG, true);
        check(Method::Get, &[range, range], STRONG, false);
        check(Method::Head, &[range], STRONG, false);
        check(Method::Post, &[range], STRONG, false);
        check(Method::Get, &[range, ("If-Range", "\"a\"")], STRONG, true);
        check(Method::Get, &[range, ("If-Range", "\"b\"")], STRONG, false);
        check(Method::Get, &[range, ("If-Range", "W/\"a\"")], STRONG, false);
        check(Method::Get, &[range, ("If-Range", "W/\"a\"")], WEAK, false);
        check(Method::Get, &[range, ("If-Range", "\"a\"")], WEAK, false);
        check(Method::Get, &[range, ("If-Range", "\"a\", \"b\"")], STRONG, false);
        check(Method::Get, &[range, ("If-Range", "*")], STRONG, false);
        check(Method::Get, &[range, ("If-Range", "")], STRONG, false);
        check(Method::Get, &[range, ("If-Range", AT)], STRONG, true);
        check(Method::Get, &[range, ("If-Range", AT_ASCTIME)], STRONG, true);
        check(Method::Get, &[range, ("If-Range", BEFORE)], STRONG, false);
        check(Method::Get, &[range, ("If-Range", AFTER)], STRONG, false);
        check(Method::Get, &[range, ("If-Range", AT)], NONE, false);
        check(Method::Get, &[range, ("If-Range", AT), ("If-Range", AT)], STRONG, false);
        check(Method::Get, &[("If-Range", AT)], STRONG, false);
    }

    proptest! {
        #[test]
        fn any_bytes(value in proptest::collection::vec(any::<u8>(), 0..40), text in "[W/\"a, ]{0,20}") {
            for value in [value.as_slice(), text.as_bytes()] {
                for etag in etags(value) {
                    prop_assert!(etag.ends_with(b"\"") && etag.len() >= 2);
                    // An entity tag is a list of one.
                    prop_assert_eq!(etags(etag).collect::<Vec<_>>(), vec![etag]);
                }
                for name in ["If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range"] {
                    let fields = [(name, value), ("Range", b"bytes=0-0")];
                    with_request(Method::Get, &fields, |request| (evaluate(request, &STRONG), range_value(request, &STRONG).is_some()));
                }
            }
        }

        #[test]
        fn dates_compare_as_numbers(modified in 0..4_000_000_000_u64, difference in -2..=2_i64) {
            let since = modified.saturating_add_signed(difference);
            let value = date::format(since);
            let validators = Validators { etag: None, last_modified: Some(modified) };
            let check = |name| with_request(Method::Get, &[(name, &value)], |request| evaluate(request, &validators));
            let (not_modified, failed) = (Precondition::NotModified, Precondition::Failed);
            prop_assert_eq!(check("If-Modified-Since") == not_modified, modified <= since);
            prop_assert_eq!(check("If-Unmodified-Since") == failed, modified > since);
        }
    }
}
