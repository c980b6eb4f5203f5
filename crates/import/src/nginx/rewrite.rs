//! `rewrite` and `return`: other paths and other places for requests.

use regex::Regex;

use super::condition::PropertyTest;
use super::matching::{LocationMatch, exception, expression, has_branches, head, heads_meet};
use super::syntax::NginxDirective;
use super::values::{self, push_query};
use crate::kdl::KdlNode;
use crate::pattern::quoted;

/// Expressions that match all paths and capture the whole path, and those that capture the part after the slash.
const WHOLE: [&str; 5] = ["(.*)", "^(.*)", "^(.*)$", "(.*)$", "^(.+)$"];
const AFTER_SLASH: [&str; 4] = ["/(.*)", "^/(.*)", "^/(.*)$", "/(.*)$"];
const ANY: [&str; 9] = ["^", "/", "^/", ".*", "^.*", "^.*$", ".*$", "^/.*", "^/.*$"];

/// Returns `true` if an expression is known to match all paths.
pub(super) fn is_of_all(fits: &str) -> bool {
    ANY.contains(&fits) || WHOLE.contains(&fits) || AFTER_SLASH.contains(&fits)
}

/// `rewrite EXPRESSION TARGET [FLAG]`, for the paths of a location's pattern, perhaps on a condition. `None` if it never applies.
///
/// # Errors
///
/// The reason why it cannot be translated.
pub(super) fn rewrite(
    directive: &NginxDirective,
    pattern: Option<&str>,
    test: Option<&PropertyTest>,
) -> Result<Option<KdlNode>, String> {
    let Some(Confined { pattern, target: source, when }) = confined(directive.first(), directive.argument(1), pattern)?
    else {
        return Ok(None);
    };
    let mut target = values::target(&source, &pattern)?;
    if target.starts_with('{') && !target.starts_with("{path}") && !target.starts_with("{scheme}") {
        // A group mostly begins with a slash; of two at the start one is taken away.
        target.insert(0, '/');
    }
    let status = match directive.argument(2) {
        "permanent" => Some(301),
        "redirect" => Some(302),
        _ if is_redirect(directive) => Some(302),
        _ => None,
    };
    let is_without_query = target.ends_with('?');
    if is_without_query {
        target.pop();
    } else if !target.contains("query}") && (status.is_some() || target.contains('?')) {
        push_query(&mut target);
    }
    let node = match status {
        Some(status) => KdlNode::with("redirect", pattern).text(target).word_property("status", status),
        None => KdlNode::with("rewrite", pattern).text(target),
    };
    Ok(Some(match (when, test) {
        (Some(when), Some(PropertyTest::When(test))) => node.property("when", format!("{when} and ({test})")),
        (Some(when), test) => test.into_iter().fold(node.property("when", when), |node, test| test.on(node)),
        (None, test) => test.into_iter().fold(node, |node, test| test.on(node)),
    }))
}

/// Rewrite of a location's paths.
struct Confined {
    /// Paths that the expression fits within the location.
    pattern: String,
    /// The target in the pattern's terms.
    target: String,
    /// Further condition.
    when: Option<String>,
}

impl Confined {
    fn of(pattern: impl Into<String>, target: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), target: target.into(), when: None }
    }
}

/// Condition that the path is one of a pattern's.
fn is_path_of(pattern: &str) -> Option<String> {
    let expression = match pattern.strip_prefix('~') {
        Some(expression) => expression.to_owned(),
        None => match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
            (Some(ending), _) if !ending.is_empty() => format!("{}$", regex::escape(ending)),
            (_, Some(front)) if !front.is_empty() => format!("^{}", regex::escape(front)),
            _ => return None,
        },
    };
    Some(format!("path matches {}", quoted(&expression)))
}

/// The paths that an expression fits within a location, and the target in its terms.
fn confined(fits: &str, target: &str, pattern: Option<&str>) -> Result<Option<Confined>, String> {
    let all = pattern.unwrap_or("*");
    let of_all = |target: String| match target.contains("$1") {
        true => Err("the target cannot name what the expression matched".to_owned()),
        false => Ok(Some(Confined::of(all, target))),
    };
    let has_groups = || (1..10).any(|group| target.contains(&format!("${group}")));
    if let Some((base, except)) = exception(fits).filter(|_| !has_groups() && may_apply(fits, pattern)) {
        let is_not = format!("not path matches {}", quoted(&except));
        let is_base = format!("path matches {}", quoted(&base));
        return Ok(Some(match pattern {
            Some(pattern) => {
                Confined { when: Some(format!("{is_base} and {is_not}")), ..Confined::of(pattern, target) }
            }
            None => Confined { when: Some(is_not), ..Confined::of(format!("~{base}"), target) },
        }));
    }
    if ANY.contains(&fits) {
        return of_all(target.to_owned());
    }
    if WHOLE.contains(&fits) {
        return of_all(target.replace("$1", "$uri"));
    }
    if AFTER_SLASH.contains(&fits) {
        return of_all(target.replace("/$1", "$uri"));
    }
    if !may_apply(fits, pattern) {
        return Ok(None);
    }
    let fits = expression(fits, false)?;
    let Some(pattern) = pattern else { return Ok(Some(Confined::of(format!("~{fits}"), target))) };
    if pattern.starts_with('/') && !pattern.ends_with('*') {
        return Ok(of_path(&fits, target, pattern).map(|(pattern, target)| Confined::of(pattern, target)));
    }
    let head = head(&fits);
    let is_within = literal(pattern).is_some_and(|literal| head.starts_with(&literal));
    match is_within && !has_branches(&fits) {
        true if fits.starts_with('^') => Ok(Some(Confined::of(format!("~{fits}"), target))),
        true => Ok(Some(Confined::of(format!("~^{fits}"), target))),
        false => match is_path_of(pattern) {
            Some(when) => Ok(Some(Confined { when: Some(when), ..Confined::of(format!("~{fits}"), target) })),
            None => Err("a rewrite applies to all paths that its expression matches, not only to those of a location"
                .to_owned()),
        },
    }
}

/// Returns `true` if paths of a pattern may have the prefix of an expression.
pub(super) fn may_apply(fits: &str, pattern: Option<&str>) -> bool {
    let pattern = pattern.unwrap_or_default();
    let start = match pattern.strip_prefix("~^") {
        Some(expression) if !has_branches(expression) => head(expression),
        Some(_) => String::new(),
        None => pattern.split(['*', '~']).next().unwrap_or_default().to_owned(),
    };
    !fits.starts_with('^') || has_branches(fits) || heads_meet(&head(fits), &start)
}

/// Target of a single path: the match and its groups are known.
fn of_path(fits: &str, target: &str, path: &str) -> Option<(String, String)> {
    let captures = Regex::new(fits).ok()?.captures(path)?;
    let mut target = target.to_owned();
    for index in (1..captures.len()).rev() {
        target = target.replace(&format!("${index}"), captures.get(index).map_or("", |group| group.as_str()));
    }
    Some((path.to_owned(), target))
}

/// Returns `true` if clients see the rewrite.
pub(super) fn is_redirect(directive: &NginxDirective) -> bool {
    let target = directive.argument(1);
    matches!(directive.argument(2), "permanent" | "redirect") || target.contains("://") || target.starts_with("$scheme")
}

/// The front that a `rewrite … break` takes from the paths of a location before its handler has them. It may be a part of
/// the front of the location.
pub(super) fn stripped_prefix<'a>(directive: &'a NginxDirective, location: &LocationMatch) -> Option<&'a str> {
    if directive.name != "rewrite" || directive.argument(2) != "break" {
        return None;
    }
    let front = match location {
        LocationMatch::Exact(_) | LocationMatch::Named(_) => return None,
        location => location.head(),
    };
    let fits = directive.first().trim_start_matches('^');
    let fits = fits.strip_suffix('$').unwrap_or(fits);
    let after_slash = ["/(.*)", "/(.+)", "/?(.*)", "/*(.*)"];
    let rests: &[&str] = match directive.argument(1) {
        "/$1" => &after_slash,
        "$1" => &["(/.*)", "(/.+)", "(.*)"],
        _ => return None,
    };
    let prefix = rests.iter().find_map(|rest| fits.strip_suffix(rest))?;
    let is_within = front.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    (is_within && prefix.starts_with('/') && !prefix.ends_with('/')).then_some(prefix)
}

/// `return 301 URL`; `None` if it is no redirect.
pub(super) fn redirect(directive: &NginxDirective, pattern: &str) -> Option<Result<KdlNode, String>> {
    let (status, target) = match (directive.first(), directive.argument(1)) {
        (url, "") if url.contains("://") => ("302", url),
        (status @ ("301" | "302" | "303" | "307" | "308"), target) => (status, target),
        _ => return None,
    };
    Some(
        values::target(target, pattern)
            .map(|target| KdlNode::with("redirect", pattern).text(target).word_property("status", status)),
    )
}

/// Common prefix of a pattern that matches all paths with that prefix: `/a/` of `/a/*`, `/a` of `~^/a`.
pub(super) fn literal(pattern: &str) -> Option<String> {
    match pattern.strip_prefix("~^") {
        Some(expression) => Some(head(expression)).filter(|head| regex::escape(head) == expression),
        None => pattern.strip_suffix('*').filter(|prefix| prefix.starts_with('/')).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::kdl;
    use crate::nginx::syntax;

    #[test]
    fn rewrites_stay_in_their_location() {
        let check = |text: &str, pattern: Option<&str>, expect: Result<Option<&str>, &str>| {
            let directives = syntax::parse(Path::new("n"), &format!("rewrite {text};")).unwrap();
            let found = rewrite(&directives[0], pattern, None).map(|node| node.map(|node| kdl::write(&[node])));
            match (&found, expect) {
                (Ok(found), Ok(expect)) => assert_eq!(found.as_deref().map(str::trim_end), expect, "{text}"),
                (Err(why), Err(expect)) => assert!(why.contains(expect), "{text}: {why}"),
                _ => panic!("{text}: {found:?}, expected {expect:?}"),
            }
        };
        check("^ /b", None, Ok(Some(r#"rewrite "*" "/b""#)));
        check("^ /b break", Some("~^/a"), Ok(Some(r#"rewrite "~^/a" "/b""#)));
        check("(.*) /b?p=$1 last", Some("~^/a"), Ok(Some(r#"rewrite "~^/a" "/b?p={path}{&query}""#)));
        check(
            "^(.*)$ /new$1 permanent",
            Some("/old/*"),
            Ok(Some(r#"redirect "/old/*" "/new{path}{query}" status=301"#)),
        );
        check("^/(.*)$ https://b/$1?", Some("*.x"), Ok(Some(r#"redirect "*.x" "https://b{path}" status=302"#)));
        check("^/(.*)$ /b?q=$1", None, Err("cannot name"));
        check("^/a/(.*)$ /b/$1", Some("/a/*"), Ok(Some(r#"rewrite "~^/a/(.*)$" "/b/{1}""#)));
        check("/a/(.*)$ /b/$1", Some("/a/*"), Ok(Some(r#"rewrite "~^/a/(.*)$" "/b/{1}""#)));
        check(
            "^/a/?(.*)$ /b/$1",
            Some("/a/*"),
            Ok(Some(r#"rewrite "~^/a/?(.*)$" "/b/{1}" when="path matches '^/a/'""#)),
        );
        check("^/a/x|/b /b", Some("/a/*"), Ok(Some(r#"rewrite "~^/a/x|/b" "/b" when="path matches '^/a/'""#)));
        check(
            "^/(?!a|b.+) /c$request_uri",
            Some("*.php"),
            Ok(Some(
                r#"rewrite "*.php" "/c{path}{query}" when="path matches '^/' and not path matches '^/(?:a|b.+)'""#,
            )),
        );
        check(r"^/(\w+)$ /b/$1", Some("/a"), Ok(Some(r#"rewrite "/a" "/b/a""#)));
        check(r"^/(\d+)$ /b/$1", Some("/a"), Ok(None));
        check("^/a(?<n>.)$ /b/$n", None, Ok(Some(r#"rewrite "~^/a(?<n>.)$" "/b/{n}""#)));
    }
}
