//! Fields to store, and updates of them by a validation (RFC 9111, sections 3.1, 3.2 and 4.3).

use super::{ResponseDirectives, Vary};
use crate::http::list::elements;
use crate::http::{Fields, Status};

/// Fields that belong to a connection or to the path through proxies (section 3.1; RFC 9110, section 7.6.1), and those
/// that the cache generates for each response: Age and Content-Length.
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

/// Fields that a validation does not change (section 3.2). Some describe the stored content, which a 304 does not have.
/// Set-Cookie is for the client whose request validated.
const NEVER_UPDATED: [&[u8]; 4] = [b"content-encoding", b"content-range", b"content-length", b"set-cookie"];

/// Effect of a response to HEAD on the stored response to GET (section 4.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadUpdate {
    /// Both describe the same version; update the stored fields.
    Same,
    /// There is a new version or none; remove the stored response.
    Invalid,
    /// The response has no effect.
    Unrelated,
}

/// Returns the fields of a response that are stored.
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

/// Returns the stored fields, updated by a 304 or by a 200 to HEAD (section 3.2). New fields replace stored ones. Vary
/// only grows, because the stored content still depends on the fields that selected it.
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
    match (Vary::of(stored), Vary::of(&updated)) {
        (Vary::Everything, _) => {
            updated.set("Vary", "*");
        }
        (Vary::Fields(mut names), Vary::Fields(new)) if !names.iter().all(|name| new.contains(name)) => {
            names.extend(new);
            names.sort_unstable();
            names.dedup();
            updated.set("Vary", names.join(&b", "[..]));
        }
        (Vary::Fields(names), Vary::Nothing) => {
            updated.set("Vary", names.join(&b", "[..]));
        }
        (Vary::Nothing | Vary::Fields(_), _) => {}
    }
    updated
}

/// Returns whether a 304 refers to the stored response (section 4.3.4), the only one that the request named: the 304
/// must not name another version.
pub fn is_update_of(stored: &Fields, fields: &Fields) -> bool {
    match (fields.get("ETag"), stored.get("ETag")) {
        (Some(new), _) if is_strong(new) => is_same_representation(stored, fields),
        // RFC 9110, section 8.8.3.2: the weak comparison.
        (Some(new), Some(old)) => opaque_tag(new) == opaque_tag(old),
        // An older version of a file may be restored. It is not modified since the date, but it is different.
        (_, _) => match (fields.get("Last-Modified"), stored.get("Last-Modified")) {
            (Some(new), Some(old)) => new == old,
            (_, _) => true,
        },
    }
}

/// Returns whether a 304 names the stored response by a strong entity tag. Then the content is equal, byte by byte, to
/// the response for the validating request (RFC 9110, section 8.8.1), whatever selected the stored one.
pub fn is_same_representation(stored: &Fields, fields: &Fields) -> bool {
    fields.get("ETag").is_some_and(|etag| is_strong(etag) && stored.get("ETag") == Some(etag))
}

fn is_strong(etag: &[u8]) -> bool {
    !etag.starts_with(b"W/")
}

fn opaque_tag(etag: &[u8]) -> &[u8] {
    etag.strip_prefix(b"W/").unwrap_or(etag)
}

/// Returns the effect of a response to HEAD on the stored response with this length in bytes.
pub fn head_update(stored: (Status, &Fields, u64), response: (Status, &Fields)) -> HeadUpdate {
    let ((stored_status, stored, length), (status, fields)) = (stored, response);
    // An error, or a result of a condition or range of this request.
    if status.code() >= 500 || matches!(status.code(), 206 | 304 | 412 | 416) {
        return HeadUpdate::Unrelated;
    }
    // Each validator that the response has must match.
    let differs = |name: &[u8]| fields.values(name).next().is_some_and(|new| stored.values(name).next() != Some(new));
    let declared = fields.values(b"content-length").next();
    let length_differs = declared.is_some_and(|declared| declared != length.to_string().as_bytes());
    match status != stored_status || differs(b"etag") || differs(b"last-modified") || length_differs {
        true => HeadUpdate::Invalid,
        false => HeadUpdate::Same,
    }
}

/// Adds the preconditions that validate the stored response (section 4.3.1). Returns whether there are any.
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
        check(&[("Set-Cookie", "a=1")], &[("Set-Cookie", "a=2")], &[("Set-Cookie", "a=1")]);
        check(&[("A", "1")], &[("Set-Cookie", "a=2")], &[("A", "1")]);
    }

    #[test]
    fn vary_only_grows() {
        let check = |stored: &[&str], new: &[&str], expect: &[&str]| {
            let of = |values: &[&str]| fields(&values.iter().map(|value| ("Vary", *value)).collect::<Vec<_>>());
            let found = updated_fields(&of(stored), &of(new), &ResponseDirectives::of(&of(new), &[]));
            assert_eq!(found, of(expect), "{stored:?} {new:?}");
        };
        check(&[], &["Cookie"], &["Cookie"]);
        check(&["Cookie"], &[], &["Cookie"]);
        check(&["Cookie"], &[""], &["cookie"]);
        check(&["Cookie"], &["cookie, Accept"], &["cookie, Accept"]);
        check(&["Cookie", "A"], &["Accept"], &["a, accept, cookie"]);
        check(&["Cookie"], &["*"], &["*"]);
        check(&["*"], &["Cookie"], &["*"]);
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
        check("W/\"a\"", "W/\"b\"", false);
        check("W/\"a\"", "W/\"a\"", true);
        check("\"a\"", "W/\"a\"", true);
        check("", "W/\"a\"", true);
        check("W/\"a\"", "\"a\"", false);
        check("", "", true);
        let of = |date: &str| fields(&[("Last-Modified", date)]);
        assert!(is_update_of(&of("now"), &of("now")) && is_update_of(&of("now"), &Fields::new()));
        assert!(!is_update_of(&of("now"), &of("then")));
    }

    #[test]
    fn only_a_strong_entity_tag_proves_the_content() {
        let check = |stored: &str, new: &str, expect: bool| {
            let of = |tag: &str| if tag.is_empty() { Fields::new() } else { fields(&[("ETag", tag)]) };
            assert_eq!(is_same_representation(&of(stored), &of(new)), expect, "{stored} {new}");
        };
        check("\"a\"", "\"a\"", true);
        check("\"a\"", "\"b\"", false);
        check("\"a\"", "", false);
        check("", "", false);
        check("W/\"a\"", "W/\"a\"", false);
        check("\"a\"", "W/\"a\"", false);
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
        check(200, &[("Last-Modified", "then")], HeadUpdate::Invalid);
        check(304, &[], HeadUpdate::Unrelated);
        check(412, &[], HeadUpdate::Unrelated);
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
