//! `rewrite` and `return`: other paths and other places for requests.

use regex::Regex;

use super::condition::PropertyTest;
use super::matching::{LocationMatch, expression, has_branches, head, heads_meet};
use super::syntax::NginxDirective;
use super::values::{self, push_query};
use crate::kdl::KdlNode;

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
    let Some((pattern, source)) = confined(directive.first(), directive.argument(1), pattern)? else { return Ok(None) };
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
    Ok(Some(test.into_iter().fold(node, |node, test| test.on(node))))
}

/// The pattern of the paths that an expression fits within a location, and the target in its terms.
fn confined(fits: &str, target: &str, pattern: Option<&str>) -> Result<Option<(String, String)>, String> {
    let all = pattern.unwrap_or("*");
    let of_all = |target: String| match target.contains("$1") {
        true => Err("the target cannot name what the expression matched".to_owned()),
        false => Ok(Some((all.to_owned(), target))),
    };
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
    let Some(pattern) = pattern else { return Ok(Some((format!("~{fits}"), target.to_owned()))) };
    if pattern.starts_with('/') && !pattern.ends_with('*') {
        return Ok(of_path(&fits, target, pattern));
    }
    let head = head(&fits);
    let is_within = literal(pattern).is_some_and(|literal| head.starts_with(&literal));
    match is_within && !has_branches(&fits) {
        true if fits.starts_with('^') => Ok(Some((format!("~{fits}"), target.to_owned()))),
        true => Ok(Some((format!("~^{fits}"), target.to_owned()))),
        false => {
            Err("a rewrite applies to all paths that its expression matches, not only to those of a location"
                .to_owned())
        }
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

/// The front that a `rewrite … break` takes from the paths of a location before its handler has them.
pub(super) fn stripped_prefix<'a>(directive: &NginxDirective, location: &'a LocationMatch) -> Option<&'a str> {
    if directive.name != "rewrite" || directive.argument(2) != "break" {
        return None;
    }
    let (LocationMatch::Prefix(prefix) | LocationMatch::PrefixFirst(prefix)) = location else { return None };
    let prefix = prefix.trim_end_matches('/');
    let rest = directive.first().trim_start_matches('^').strip_prefix(prefix)?.trim_end_matches('$');
    let is_front = matches!(
        (rest, directive.argument(1)),
        ("/(.*)" | "/(.+)" | "/?(.*)" | "/*(.*)", "/$1") | ("(/.*)" | "(/.+)" | "(.*)", "$1")
    );
    (is_front && !prefix.is_empty()).then_some(prefix)
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
        check("^/a/?(.*)$ /b/$1", Some("/a/*"), Err("not only to those of a location"));
        check("^/a/x|/b /b", Some("/a/*"), Err("not only to those of a location"));
        check(r"/(.*)\.htm$ /b/$1", Some("~^/a"), Err("not only to those of a location"));
        check(r"^/(\w+)$ /b/$1", Some("/a"), Ok(Some(r#"rewrite "/a" "/b/a""#)));
        check(r"^/(\d+)$ /b/$1", Some("/a"), Ok(None));
        check("^/a(?<n>.)$ /b/$n", None, Ok(Some(r#"rewrite "~^/a(?<n>.)$" "/b/{n}""#)));
    }
}
