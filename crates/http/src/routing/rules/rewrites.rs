//! Redirects and rewrites: finds the rule that matches a request, and applies it.

use expression::Groups;
use wire::http::{Request, Status, path, query_may_have};

use super::super::path_index::PathIndex;
use super::RoutedFacts;
use super::target::{Match, arguments, write_target};
use crate::config::{
    Condition, FieldTest, QueryTest, Rewrite, RuleConditions, RuleTest, Template, TemplatePiece, TextTest, Variable,
};
use crate::handler::{BuiltResponse, Routed};

/// Redirects and rewrites, in order.
#[derive(Debug, Default)]
pub(crate) struct Rewrites {
    rules: Vec<Rewrite>,
    /// Paths of the rules, because a site may have thousands of them.
    paths: PathIndex,
}

/// Result of a redirect or rewrite.
#[derive(Debug)]
pub(crate) enum Rewritten {
    /// New path and query.
    Target(RewrittenTarget),
    /// Redirect or error response.
    Answer(Box<BuiltResponse>),
}

/// Target that a request is served as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewrittenTarget {
    /// Path in the form of [`Routed::path`].
    pub path: Vec<u8>,
    /// Query in the form of [`Routed::query`].
    pub query: Option<Vec<u8>>,
}

impl RewrittenTarget {
    /// Encodes the target as in a request line.
    pub fn encoded(&self) -> Vec<u8> {
        let mut encoded = Vec::with_capacity(self.path.len() + 32);
        path::encode(&self.path, &mut encoded);
        if let Some(query) = &self.query {
            encoded.push(b'?');
            encoded.extend_from_slice(query);
        }
        encoded
    }
}

impl Rewrites {
    /// Indexes these rules by path.
    pub(crate) fn new(rules: Vec<Rewrite>) -> Self {
        let paths = PathIndex::new(rules.iter().map(|rule| rule.path.clone()).collect());
        Self { rules, paths }
    }

    /// True if there are no rules.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules, in order.
    pub(super) fn rules(&self) -> &[Rewrite] {
        &self.rules
    }

    /// Returns the first rule that matches a request.
    pub(crate) fn find(&self, routed: &Routed<'_>) -> Option<&Rewrite> {
        self.find_from(routed, 0).map(|(_, rule)| rule)
    }

    /// Returns the first rule from `from` on that matches a request, with its index.
    pub(crate) fn find_from(&self, routed: &Routed<'_>, from: usize) -> Option<(usize, &Rewrite)> {
        // `*` of OPTIONS and the target of CONNECT cannot be rewritten.
        if self.rules.is_empty() || !routed.path.starts_with(b"/") {
            return None;
        }
        let index = self.paths.find(routed.path, from, |index| fits(&self.rules[index].conditions, routed))?;
        Some((index, &self.rules[index]))
    }
}

/// Applies a rule that matches.
pub(crate) fn apply(rule: &Rewrite, routed: &Routed<'_>) -> Rewritten {
    let bad_request = || Rewritten::Answer(BuiltResponse::new(Status::BAD_REQUEST));
    let Some(matched) = Match::new(&rule.path, routed.path) else { return bad_request() };
    let mut url = Vec::with_capacity(128);
    if write_target(&rule.target, &matched.with_groups(groups_of(rule, routed)), routed, &mut url).is_err() {
        return bad_request();
    }
    let Some(status) = rule.status else {
        return parse_target(&url, &rule.target, routed).map_or_else(bad_request, Rewritten::Target);
    };
    if routed.host.is_empty() && rule.target.pieces.contains(&TemplatePiece::Host) {
        // HTTP/1.0 without Host: the target of the redirect is unknown.
        return bad_request();
    }
    let mut response = BuiltResponse::new(status);
    response.fields.push("Location", url);
    Rewritten::Answer(response)
}

/// Groups of the condition's regular expression, if the target has some.
fn groups_of(rule: &Rewrite, routed: &Routed<'_>) -> Option<Groups> {
    let has_groups = rule.target.variables().any(|variable| matches!(variable, Variable::Group(_)));
    let when = rule.conditions.when.as_ref().filter(|_| has_groups)?;
    Some(when.evaluate_with_groups(&RoutedFacts::new(routed)).1)
}

/// Splits a target into path and query; `None` if the path leads above the root or has invalid percent-encoding.
fn parse_target(url: &[u8], template: &Template, routed: &Routed<'_>) -> Option<RewrittenTarget> {
    let (raw, query) = match memchr::memchr(b'?', url) {
        Some(at) => (&url[..at], Some(url[at + 1..].to_vec())),
        None if has_query(template) => (url, None),
        None => (url, routed.query.map(<[u8]>::to_vec)),
    };
    let mut buffer = Vec::new();
    let path = path::normalise(raw, &mut buffer).ok()?.to_vec();
    Some(RewrittenTarget { path, query })
}

/// Returns true if a template sets the query, even to an empty one.
fn has_query(template: &Template) -> bool {
    template.pieces.iter().any(|piece| match piece {
        TemplatePiece::Literal(text) => text.contains('?'),
        TemplatePiece::Query => true,
        _ => false,
    })
}

/// Returns true if all conditions other than the path hold.
pub fn fits(conditions: &RuleConditions, routed: &Routed<'_>) -> bool {
    fits_with(conditions, routed, |test| query_fits(&test.of, routed.query) != test.is_negated)
        && conditions.when.as_ref().is_none_or(|when| when.evaluate(&RoutedFacts::new(routed)).is_true())
}

/// As [`fits`], for one reading of the path.
pub(crate) fn fits_path(conditions: &RuleConditions, routed: &Routed<'_>, path: &[u8]) -> bool {
    let facts = || RoutedFacts::new(routed).with_path(path);
    fits_with(conditions, routed, |test| query_fits(&test.of, routed.query) != test.is_negated)
        && conditions.when.as_ref().is_none_or(|when| when.evaluate(&facts()).is_true())
}

/// Returns true unless the condition of a guard does not hold for sure, for one reading of the path.
pub(crate) fn may_hold(when: Option<&Condition>, routed: &Routed<'_>, path: &[u8]) -> bool {
    when.is_none_or(|when| when.evaluate(&RoutedFacts::new(routed).with_path(path)).may_be_true())
}

/// Returns true if the condition of a rule that opens something holds for sure, for one reading of the path.
pub(crate) fn holds_surely(when: Option<&Condition>, routed: &Routed<'_>, path: &[u8]) -> bool {
    when.is_none_or(|when| when.evaluate(&RoutedFacts::new(routed).with_path(path)).is_true())
}

/// As [`fits`], for a rule that rejects: a query also fits in a form that an application may read. Negated tests and
/// expressions look at the query as it was sent. A condition that cannot be told holds.
pub(crate) fn fits_as_read(conditions: &RuleConditions, routed: &Routed<'_>, path: &[u8]) -> bool {
    let query = routed.query.unwrap_or_default();
    let may_fit = |test: &QueryTest| match test {
        QueryTest::Has(name) => query_may_have(query, name.as_bytes(), None),
        QueryTest::Equals(name, value) => query_may_have(query, name.as_bytes(), Some(value.as_bytes())),
        QueryTest::Matches(_) => false,
    };
    fits_with(conditions, routed, |test| {
        query_fits(&test.of, routed.query) != test.is_negated || (!test.is_negated && may_fit(&test.of))
    }) && may_hold(conditions.when.as_ref(), routed, path)
}

fn fits_with(
    conditions: &RuleConditions,
    routed: &Routed<'_>,
    query_holds: impl FnOnce(&RuleTest<QueryTest>) -> bool,
) -> bool {
    let RuleConditions { methods, query, field, when: _, is_missing: _ } = conditions;
    let method = routed.request.method_name();
    holds(methods, |methods| methods.iter().any(|name| name.as_bytes() == method))
        && query.as_ref().is_none_or(query_holds)
        && holds(field, |test| field_fits(test, &routed.request))
}

fn holds<T>(test: &Option<RuleTest<T>>, fits: impl FnOnce(&T) -> bool) -> bool {
    test.as_ref().is_none_or(|test| fits(&test.of) != test.is_negated)
}

fn query_fits(test: &QueryTest, query: Option<&[u8]>) -> bool {
    match test {
        QueryTest::Has(name) => arguments(query).any(|(other, _)| other == name.as_bytes()),
        QueryTest::Equals(name, value) => {
            arguments(query).any(|(other, its)| other == name.as_bytes() && its == value.as_bytes())
        }
        QueryTest::Matches(regex) => regex.get().is_match(query.unwrap_or_default()),
    }
}

fn field_fits(test: &FieldTest, request: &Request<'_>) -> bool {
    let lines = request.head.fields.iter().filter(|line| {
        let name = line.name.of(request.bytes);
        name.eq_ignore_ascii_case(test.name.as_bytes())
    });
    lines.map(|line| line.value.of(request.bytes)).any(|value| match &test.value {
        None => true,
        Some(TextTest::Equals(text)) => value == text.as_bytes(),
        Some(TextTest::Matches(regex)) => regex.get().is_match(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::rules::tests::{RuleTestRequest, rules};

    /// Applies the rules of a site to a request; returns `PATH?QUERY`, or status and location.
    fn rewritten(text: &str, head: &str) -> String {
        let rewrites = Rewrites::new(rules(text).rewrites);
        let request = RuleTestRequest::new(&format!("{head}\r\n\r\n"));
        let routed = request.routed();
        match rewrites.find(&routed).map(|rule| apply(rule, &routed)) {
            None => "-".into(),
            Some(Rewritten::Target(target)) => {
                let path = String::from_utf8_lossy(&target.path).into_owned();
                let query = target.query.map(|query| format!("?{}", String::from_utf8_lossy(&query)));
                path + &query.unwrap_or_default()
            }
            Some(Rewritten::Answer(response)) => {
                let location = response.fields.get("Location").unwrap_or_default();
                format!("{} {}", response.status, String::from_utf8_lossy(location)).trim_end().to_owned()
            }
        }
    }

    #[test]
    fn rewrites() {
        let check = |text: &str, target: &str, expect: &str| {
            assert_eq!(rewritten(text, &format!("GET {target} HTTP/1.1\r\nHost: h")), expect, "{text} {target}");
        };
        // Clean URLs, moved trees, old queries.
        check(r#"redirect "*.html" "/{rest}" status=301"#, "/a/b.html", "301 /a/b");
        check(r#"rewrite "/blog/*" "/weblog/{rest}""#, "/blog/a?b", "/weblog/a?b");
        check(r#"rewrite "*" "/index.php?q={path}{&query}""#, "/a/b?c=d", "/index.php?q=/a/b&c=d");
        check(r#"rewrite "*" "/index.php?q={path}{&query}""#, "/a", "/index.php?q=/a");
        check(r#"rewrite "*" "/index.php?""#, "/a?b", "/index.php?");
        check(r#"rewrite "*" "/index.php""#, "/a?b", "/index.php?b");
        check(r#"redirect "/article.php" "/article/{query.id}" query="id""#, "/article.php?id=5", "302 /article/5");
        check(r#"redirect "/article.php" "/article/{query.id}" query="id""#, "/article.php", "-");
        check(r##"rewrite #"~^/u/([a-z]+)/(.*)$"# "/users/{2}/{1}""##, "/u/anna/a%20b", "/users/a b/anna");
        // Targets are decoded once and normalized.
        check(r#"rewrite "/a/*" "/b%20c/{rest}""#, "/a/%2541", "/b c/%41");
        check(r##"rewrite #"~^/x(.*)y(.*)$"# "/a/b/{1}{2}/c""##, "/x.y.", "/a/c");
        check(r##"rewrite #"~^/x(.*)y(.*)$"# "/{1}{2}/c""##, "/x.y.", "400");
        check(r#"rewrite "/a/*" "/b/{query.x}""#, "/a/?x=../../../etc", "400");
        check(r#"rewrite "/a/*" "/b/{query.x}""#, "/a/?x=%2e%2e/c", "/c?x=%2e%2e/c");
        check(r#"rewrite "/a/*" "/b/{query.x}""#, "/a/?x=%zz", "400");
    }

    #[test]
    fn the_first_that_fits() {
        let text = r#"
            redirect "/a/b" "/1" query="x"
            redirect "/a/*" "/2" method="POST"
            redirect "/a/b" "/3"
            redirect "*" "/4" field="X-Kind: old"
            redirect "/c" "/5""#;
        let check = |head: &str, expect: &str| assert_eq!(rewritten(text, head), expect, "{head}");
        check("GET /a/b?x HTTP/1.1\r\nHost: h", "302 /1");
        check("POST /a/b HTTP/1.1\r\nHost: h", "302 /2");
        check("GET /a/b HTTP/1.1\r\nHost: h", "302 /3");
        check("GET /c HTTP/1.1\r\nHost: h\r\nX-Kind: old", "302 /4");
        check("GET /c HTTP/1.1\r\nHost: h", "302 /5");
        check("GET /d HTTP/1.1\r\nHost: h", "-");
        check("OPTIONS * HTTP/1.1\r\nHost: h\r\nX-Kind: old", "-");
    }

    #[test]
    fn conditions() {
        let check = |condition: &str, head: &str, expect: bool| {
            let found = rewritten(&format!("redirect \"*\" \"/x\" {condition}"), head);
            assert_eq!(found, if expect { "302 /x" } else { "-" }, "{condition} {head}");
        };
        check(r#"method="GET HEAD""#, "HEAD / HTTP/1.1\r\nHost: h", true);
        check(r#"method="GET HEAD""#, "POST / HTTP/1.1\r\nHost: h", false);
        check(r#"method="!GET HEAD""#, "POST / HTTP/1.1\r\nHost: h", true);
        check(r#"method="!GET HEAD""#, "GET / HTTP/1.1\r\nHost: h", false);
        check(r#"method="PURGE""#, "PURGE / HTTP/1.1\r\nHost: h", true);
        check(r#"query="a=1""#, "GET /?b&a=1 HTTP/1.1\r\nHost: h", true);
        check(r#"query="a=1""#, "GET /?a=12 HTTP/1.1\r\nHost: h", false);
        check(r#"query="!a""#, "GET / HTTP/1.1\r\nHost: h", true);
        check(r#"query="~^a=[0-9]+$""#, "GET /?a=12 HTTP/1.1\r\nHost: h", true);
        check(r#"query="~^a=[0-9]+$""#, "GET /?a=x HTTP/1.1\r\nHost: h", false);
        check(r#"field="Cookie""#, "GET / HTTP/1.1\r\nHost: h\r\ncookie: a", true);
        check(r#"field="!Cookie""#, "GET / HTTP/1.1\r\nHost: h\r\ncookie: a", false);
        check(r#"field="X-Forwarded-Proto: http""#, "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-Proto: http", true);
        check(r#"field="X-Forwarded-Proto: http""#, "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-Proto: https", false);
        check(r#"field="A: 2""#, "GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\nA: 2", true);
        check(r#"field="User-Agent: ~(?i)bot""#, "GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: RoBot/1", true);
        check(r#"method="GET" query="a" field="B""#, "GET /?a HTTP/1.1\r\nHost: h\r\nB: 1", true);
        check(r#"method="GET" query="a" field="B""#, "GET /?a HTTP/1.1\r\nHost: h", false);
    }

    #[test]
    fn without_a_host() {
        let text = r#"redirect "*" "https://{host}{path}""#;
        assert_eq!(rewritten(text, "GET /a HTTP/1.0"), "400");
        assert_eq!(rewritten(text, "GET /a HTTP/1.0\r\nHost: H.example"), "302 https://h.example/a");
    }
}
