//! Templates of redirects and rewrites, expanded to URLs.

use expression::{Fact, Groups};
use regex::bytes::Captures;
use wire::http::path;

use super::RoutedFacts;
use super::field_edits::UnsafeValue;
use crate::config::{PathPattern, Template, TemplatePiece, Variable};
use crate::handler::Routed;

/// Parts of a path that a pattern leaves open.
pub(crate) struct Match<'p> {
    rest: &'p [u8],
    captures: Option<Captures<'p>>,
    /// Groups of the rule's condition.
    groups: Option<Groups>,
}

impl<'p> Match<'p> {
    /// Matches a path against a pattern; `None` if it does not match.
    pub(crate) fn new(pattern: &PathPattern, path: &'p [u8]) -> Option<Self> {
        let rest = match pattern {
            PathPattern::Regex(regex) => {
                return regex.get().captures(path).map(|captures| Self {
                    rest: &[],
                    captures: Some(captures),
                    groups: None,
                });
            }
            PathPattern::Any => path.strip_prefix(b"/").unwrap_or(path),
            PathPattern::Exact(exact) => path.strip_prefix(exact.as_bytes()).filter(|rest| rest.is_empty())?,
            PathPattern::Prefix(prefix) => path.strip_prefix(prefix.as_bytes())?,
            PathPattern::Suffix(suffix) => {
                let front = path.strip_suffix(suffix.as_bytes())?;
                front.strip_prefix(b"/").unwrap_or(front)
            }
        };
        Some(Self { rest, captures: None, groups: None })
    }

    /// The match, with the groups of the rule's condition.
    pub(crate) fn with_groups(self, groups: Option<Groups>) -> Self {
        Self { groups, ..self }
    }

    fn group(&self, name: &str) -> &'p [u8] {
        let Some(captures) = &self.captures else { return &[] };
        let group = match name.parse::<usize>() {
            Ok(index) => captures.get(index),
            Err(_) => captures.name(name),
        };
        group.map_or(&[][..], |group| group.as_bytes())
    }
}

/// Writes the URL that a template gives for a request. Inserted values are percent-encoded, so that each stays within
/// its part of the URL. What the operator has written stays as it is.
///
/// # Errors
/// A variable cannot be told, or leads to another directory.
pub(crate) fn write_target(
    template: &Template,
    matched: &Match<'_>,
    routed: &Routed<'_>,
    out: &mut Vec<u8>,
) -> Result<(), UnsafeValue> {
    let start = out.len();
    let mut is_in_query = false;
    for piece in &template.pieces {
        match piece {
            TemplatePiece::Literal(text) => {
                is_in_query |= text.contains('?');
                out.extend_from_slice(text.as_bytes());
            }
            TemplatePiece::Host => out.extend_from_slice(routed.host),
            TemplatePiece::Scheme => out.extend_from_slice(routed.scheme().as_bytes()),
            TemplatePiece::Path => encode(routed.path, is_in_query, out),
            TemplatePiece::Rest => encode(matched.rest, is_in_query, out),
            TemplatePiece::Group(name) => encode(matched.group(name), is_in_query, out),
            TemplatePiece::Query => {
                if let Some(query) = routed.query {
                    is_in_query = true;
                    out.push(b'?');
                    out.extend_from_slice(query);
                }
            }
            TemplatePiece::FurtherQuery => {
                if let Some(query) = routed.query.filter(|query| !query.is_empty()) {
                    out.push(b'&');
                    out.extend_from_slice(query);
                }
            }
            TemplatePiece::Argument(name) => write_encoded(argument(routed.query, name), out),
            // The configuration does not allow these pieces in targets.
            TemplatePiece::Client
            | TemplatePiece::User
            | TemplatePiece::RequestId
            | TemplatePiece::Tls(_)
            | TemplatePiece::Field(_) => {}
            TemplatePiece::Variable(variable) => {
                let facts = RoutedFacts::new(routed);
                let value = variable.read(&facts, matched.groups.as_ref()).map_err(|_| UnsafeValue)?;
                match variable.is_of_operator() {
                    true if value.iter().all(u8::is_ascii_graphic) => {
                        is_in_query |= value.contains(&b'?');
                        out.extend_from_slice(&value);
                    }
                    false if is_in_query || !leads_up(variable, &value) => encode(&value, is_in_query, out),
                    _ => return Err(UnsafeValue),
                }
            }
        }
    }
    // Two slashes at the start would name a host of the client's choice (RFC 3986, section 4.2).
    while out[start..].starts_with(b"//") {
        out.remove(start);
    }
    let url = &out[start..];
    match [&b"/"[..], b"http://", b"https://"].iter().any(|valid| url.starts_with(valid)) {
        true => Ok(()),
        false => Err(UnsafeValue),
    }
}

/// Returns true if a value in a path would lead to another directory than its place. A path itself is normalized.
fn leads_up(variable: &Variable, value: &[u8]) -> bool {
    let is_path = matches!(variable, Variable::Fact(Fact::Path));
    !is_path && value.split(|byte| matches!(byte, b'/' | b'\\')).any(|segment| matches!(segment, b"." | b".."))
}

/// Value of an argument of a query, still encoded; empty if it is missing.
pub(crate) fn argument<'q>(query: Option<&'q [u8]>, name: &str) -> &'q [u8] {
    arguments(query).find(|(other, _)| *other == name.as_bytes()).map_or(&[][..], |(_, value)| value)
}

/// Names and values of a query's arguments, still encoded.
pub(crate) fn arguments(query: Option<&[u8]>) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pairs = query.unwrap_or_default().split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| match memchr::memchr(b'=', pair) {
        Some(at) => (&pair[..at], &pair[at + 1..]),
        None => (pair, &[][..]),
    })
}

fn encode(text: &[u8], is_in_query: bool, out: &mut Vec<u8>) {
    if !is_in_query {
        return path::encode(text, out);
    }
    for &byte in text {
        // Bytes that would end an argument, or mean a space in it, are encoded, too.
        match byte {
            b'+' | b'=' | b';' => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            _ => path::encode(&[byte], out),
        }
    }
}

/// Writes text that may be percent-encoded already. Encodes bytes that are not allowed in a path or in the value of an
/// argument.
fn write_encoded(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        if byte == b'%' { out.push(byte) } else { path::encode(&[byte], out) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Regex;
    use crate::routing::rules::tests::RuleTestRequest;

    fn literal(text: &str) -> TemplatePiece {
        TemplatePiece::Literal(text.into())
    }

    fn target(pattern: &PathPattern, pieces: &[TemplatePiece], url: &str) -> Option<String> {
        let request = RuleTestRequest::new(&format!("GET {url} HTTP/1.1\r\nHost: h.example\r\n\r\n"));
        let routed = request.routed();
        let matched = Match::new(pattern, routed.path)?;
        let mut out = Vec::new();
        write_target(&Template { pieces: pieces.to_vec() }, &matched, &routed, &mut out).unwrap();
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn targets() {
        use TemplatePiece::{Argument, FurtherQuery, Group, Host, Path, Query, Rest};
        let check = |pattern: &PathPattern, pieces: &[TemplatePiece], url: &str, expect: Option<&str>| {
            assert_eq!(target(pattern, pieces, url).as_deref(), expect, "{pattern:?} {pieces:?} {url}");
        };
        let old = PathPattern::Prefix("/old/".into());
        check(&old, &[literal("/new")], "/old/a", Some("/new"));
        check(&old, &[literal("/new")], "/other", None);
        check(&old, &[literal("/new/"), Rest, Query], "/old/a/b?x=1", Some("/new/a/b?x=1"));
        check(&old, &[literal("/new/"), Rest, Query], "/old/", Some("/new/"));
        check(&old, &[literal("/new/"), Rest, Query], "/old/?", Some("/new/?"));
        check(&old, &[literal("/?p="), Rest, FurtherQuery], "/old/a%26b=c+d?x=1", Some("/?p=a%26b%3Dc%2Bd&x=1"));
        check(&old, &[literal("/?p="), Rest, FurtherQuery], "/old/a?", Some("/?p=a"));
        check(&PathPattern::Any, &[literal("https://"), Host, Path, Query], "/a%20b", Some("https://h.example/a%20b"));
        check(&PathPattern::Any, &[literal("/b/"), Rest], "/a", Some("/b/a"));
        check(&PathPattern::Suffix(".html".into()), &[literal("/"), Rest], "/a/b.html", Some("/a/b"));
        check(&PathPattern::Exact("/a".into()), &[literal("/b")], "/a", Some("/b"));
        check(&PathPattern::Exact("/a".into()), &[literal("/b")], "/ab", None);
        check(&PathPattern::Any, &[literal("/article/"), Argument("id".into())], "/?x=1&id=5", Some("/article/5"));
        check(&PathPattern::Any, &[literal("/article/"), Argument("id".into())], "/?idx=5", Some("/article/"));
        check(&PathPattern::Any, &[literal("/"), Argument("u".into())], "/?u=a?b%2Fc\\d", Some("/a%3Fb%2Fc%5Cd"));
        let regex = PathPattern::Regex(Regex::new("^/(?<year>[0-9]{4})/(.*)$").unwrap());
        let groups = [literal("/"), Group("2".into()), literal("?y="), Group("year".into())];
        check(&regex, &groups, "/2026/a%20b", Some("/a%20b?y=2026"));
        check(&regex, &groups, "/26/a", None);
    }

    #[test]
    fn no_host_of_the_clients_choice() {
        use TemplatePiece::{Argument, Group};
        let regex = PathPattern::Regex(Regex::new("^/go(.*)$").unwrap());
        let check = |piece: TemplatePiece, url: &str, expect: &str| {
            assert_eq!(target(&regex, &[literal("/"), piece], url).as_deref(), Some(expect), "{url}");
        };
        check(Group("1".into()), "/go/evil.example", "/evil.example");
        check(Argument("u".into()), "/go?u=/evil.example", "/evil.example");
        check(Argument("u".into()), "/go?u=//evil.example", "/evil.example");
        check(Argument("u".into()), "/go?u=\\evil.example", "/%5Cevil.example");
        check(Group("1".into()), "/go%0D%0ASet-Cookie:%20x", "/%0D%0ASet-Cookie:%20x");
    }

    proptest! {
        #[test]
        fn only_bytes_of_urls(path in proptest::collection::vec(1_u8.., 0..40), in_query in any::<bool>()) {
            let mut out = Vec::new();
            encode(&path, in_query, &mut out);
            prop_assert!(out.iter().all(u8::is_ascii_graphic));
            let mut end = Vec::new();
            write_encoded(&path, &mut end);
            prop_assert!(end.iter().all(u8::is_ascii_graphic));
        }
    }
}
