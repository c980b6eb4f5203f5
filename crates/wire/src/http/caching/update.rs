//! Which fields are stored, and what a validation changes about them (RFC 9111, sections 3.1, 3.2 and 4.3).

use super::ResponseDirectives;
use crate::http::list::elements;
use crate::http::{Fields, Status};

/// Fields of a connection, or of the way through proxies (section 3.1; RFC 9110, section 7.6.1), and what is made anew with
/// each response: its age and its length.
const NEVER_STORED: [&[u8]; 12] = [
    b"age",
    b"connection",
    b"content-length",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authentication-info",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// Fields that say how stored content is to be read: a 304 has no content, so what it says of them is not believed
/// (section 3.2).
const NEVER_UPDATED: [&[u8]; 3] = [b"content-encoding", b"content-range", b"content-length"];

/// What a response to HEAD says of the stored response to GET (section 4.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadUpdate {
    /// It is about the same version: the stored fields are updated by it.
    Same,
    /// There is a new version, or none: the stored response is of no use any more.
    Invalid,
    /// Nothing.
    Unrelated,
}

/// The fields of a response that are stored.
pub fn stored_fields(fields: &Fields, directives: &ResponseDirectives) -> Fields {
    let connection: Vec<&[u8]> = fields.values(b"connection").flat_map(elements).collect();
    let mut stored = Fields::new();
    for (name, value) in fields.iter() {
        let is_one_of = |names: &[&[u8]]| names.iter().any(|other| name.eq_ignore_ascii_case(other));
        let is_omitted = directives.omitted_fields.iter().any(|other| name.eq_ignore_ascii_case(other));
        if !is_one_of(&NEVER_STORED) && !is_one_of(&connection) && !is_omitted {
            stored.push(name, value);
        }
    }
    stored
}

/// The stored fields as a 304, or a 200 to HEAD, makes them (section 3.2): what it has replaces what was stored.
pub fn updated_fields(stored: &Fields, fields: &Fields, directives: &ResponseDirectives) -> Fields {
    let new = stored_fields(fields, directives);
    let is_new = |name: &[u8]| new.values(name).next().is_some();
    let is_kept = |name: &[u8]| NEVER_UPDATED.iter().any(|other| name.eq_ignore_ascii_case(other));
    let mut updated = Fields::new();
    for (name, value) in stored.iter().filter(|(name, _)| is_kept(name) || !is_new(name)) {
        updated.push(name, value);
    }
    for (name, value) in new.iter().filter(|(name, _)| !is_kept(name)) {
        updated.push(name, value);
    }
    updated
}

/// Whether a 304 is about the stored response (section 4.3.4), which is the only one that was asked about: it names no
/// other version.
pub fn is_update_of(stored: &Fields, fields: &Fields) -> bool {
    match (strong_etag(fields), strong_etag(stored)) {
        (Some(new), Some(old)) => new == old,
        (Some(_), None) => false,
        (None, _) => true,
    }
}

fn strong_etag(fields: &Fields) -> Option<&[u8]> {
    fields.get("ETag").filter(|etag| !etag.starts_with(b"W/"))
}

/// What a response to HEAD says of the stored response with this length in bytes.
pub fn head_update(stored: (Status, &Fields, u64), response: (Status, &Fields)) -> HeadUpdate {
    let ((stored_status, stored, length), (status, fields)) = (stored, response);
    if status.code() >= 500 {
        return HeadUpdate::Unrelated;
    }
    let differs = |name: &[u8]| match (stored.values(name).next(), fields.values(name).next()) {
        (Some(old), Some(new)) => old != new,
        _ => false,
    };
    let declared = fields.values(b"content-length").next();
    let length_differs = declared.is_some_and(|declared| declared != length.to_string().as_bytes());
    match status != stored_status || differs(b"etag") || differs(b"last-modified") || length_differs {
        true => HeadUpdate::Invalid,
        false => HeadUpdate::Same,
    }
}

/// Adds the preconditions that ask whether the stored response is still the current one (section 4.3.1); whether there
/// are any.
pub fn write_validators(stored: &Fields, request_fields: &mut Fields) -> bool {
    let mut has_any = false;
    for (validator, condition) in [(&b"etag"[..], "If-None-Match"), (b"last-modified", "If-Modified-Since")] {
        if let Some(value) = stored.values(validator).next() {
            request_fields.set(condition, value);
            has_any = true;
        }
    }
    has_any
}

#[cfg(test)]
mod tests {
    use super::super::tests::fields;
    use super::*;

    #[test]
    fn stored() {
        let check = |lines: &[(&str, &str)], expect: &[(&str, &str)]| {
            let all = fields(lines);
            let found = stored_fields(&all, &ResponseDirectives::of(&all, &[]));
            assert_eq!(found, fields(expect), "{lines:?}");
        };
        check(&[("A", "1"), ("a", "2"), ("Date", "x")], &[("A", "1"), ("a", "2"), ("Date", "x")]);
        check(&[("Connection", "a, B"), ("A", "1"), ("b", "2"), ("c", "3")], &[("c", "3")]);
        check(&[("Age", "1"), ("Content-Length", "2"), ("Keep-Alive", "x"), ("TE", "x"), ("Upgrade", "x")], &[]);
        check(
            &[("Proxy-Authenticate", "x"), ("Transfer-Encoding", "x"), ("Set-Cookie", "a=b")],
            &[("Set-Cookie", "a=b")],
        );
        let no_cache = ("Cache-Control", "no-cache=\"a, B\"");
        check(&[no_cache, ("A", "1"), ("b", "2"), ("c", "3")], &[no_cache, ("c", "3")]);
    }

    #[test]
    fn updated() {
        let check = |stored: &[(&str, &str)], new: &[(&str, &str)], expect: &[(&str, &str)]| {
            let new = fields(new);
            let found = updated_fields(&fields(stored), &new, &ResponseDirectives::of(&new, &[]));
            assert_eq!(found, fields(expect), "{stored:?} {new:?}");
        };
        check(&[("A", "1"), ("B", "2")], &[("b", "3")], &[("A", "1"), ("b", "3")]);
        check(&[("A", "1"), ("A", "2")], &[("A", "3"), ("A", "4")], &[("A", "3"), ("A", "4")]);
        check(&[("A", "1")], &[("Connection", "A"), ("A", "2")], &[("A", "1")]);
        check(
            &[("Content-Encoding", "gzip"), ("Content-Type", "a/b")],
            &[("Content-Encoding", "br"), ("Content-Length", "0"), ("Content-Type", "c/d")],
            &[("Content-Encoding", "gzip"), ("Content-Type", "c/d")],
        );
    }

    #[test]
    fn of_the_same_version() {
        let check = |stored: &str, new: &str, expect: bool| {
            let of = |tag: &str| if tag.is_empty() { Fields::new() } else { fields(&[("ETag", tag)]) };
            assert_eq!(is_update_of(&of(stored), &of(new)), expect, "{stored} {new}");
        };
        check("\"a\"", "\"a\"", true);
        check("\"a\"", "\"b\"", false);
        check("\"a\"", "", true);
        check("", "\"a\"", false);
        check("W/\"a\"", "W/\"b\"", true);
        check("W/\"a\"", "\"a\"", false);
        check("", "", true);
    }

    #[test]
    fn by_head() {
        let check = |status: u16, lines: &[(&str, &str)], expect: HeadUpdate| {
            let stored = fields(&[("ETag", "\"a\""), ("A", "1")]);
            let found = head_update((Status::OK, &stored, 3), (Status::new(status).unwrap(), &fields(lines)));
            assert_eq!(found, expect, "{status} {lines:?}");
        };
        check(200, &[("A", "2")], HeadUpdate::Same);
        check(200, &[("Content-Length", "3")], HeadUpdate::Same);
        check(200, &[("Content-Length", "4")], HeadUpdate::Invalid);
        check(200, &[("ETag", "\"b\"")], HeadUpdate::Invalid);
        check(410, &[], HeadUpdate::Invalid);
        check(503, &[], HeadUpdate::Unrelated);
    }

    #[test]
    fn validators() {
        let mut request = fields(&[("If-None-Match", "\"client's\"")]);
        assert!(!write_validators(&fields(&[("Date", "x")]), &mut request));
        assert!(write_validators(&fields(&[("ETag", "\"a\""), ("Last-Modified", "then")]), &mut request));
        assert_eq!(request, fields(&[("If-None-Match", "\"a\""), ("If-Modified-Since", "then")]));
    }
}
