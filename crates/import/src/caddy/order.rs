//! Order in which Caddy applies the directives of a block.

use std::cmp::Ordering;

use super::matcher::Matcher;
use crate::pattern::ForeignPattern;

/// Directives in the order in which Caddy applies them.
const ORDER: [&str; 38] = [
    "tracing",
    "map",
    "vars",
    "fs",
    "root",
    "log_append",
    "skip_log",
    "log_skip",
    "log_name",
    "header",
    "copy_response_headers",
    "request_body",
    "timeouts",
    "redir",
    "method",
    "rewrite",
    "uri",
    "try_files",
    "basicauth",
    "basic_auth",
    "forward_auth",
    "request_header",
    "encode",
    "push",
    "intercept",
    "templates",
    "invoke",
    "handle",
    "handle_path",
    "route",
    "abort",
    "error",
    "copy_response",
    "respond",
    "metrics",
    "reverse_proxy",
    "php_fastcgi",
    "file_server",
];

/// Place of a directive in Caddy's order; settings of a site come first.
pub(super) fn position(name: &str) -> usize {
    position_in(&ORDER, name)
}

/// Place of a directive in an order.
pub(super) fn position_in(order: &[impl AsRef<str>], name: &str) -> usize {
    // A `handle_path` is a `handle`, of which the first match counts.
    let name = if name == "handle_path" { "handle" } else { name };
    order.iter().position(|known| known.as_ref() == name).map_or(0, |at| at + 1)
}

/// Names of directives, in Caddy's order.
pub(super) fn usual() -> Vec<String> {
    ORDER.map(str::to_owned).to_vec()
}

/// Moves a directive as the option `order` says: `NAME first`, `NAME last`, `NAME before OTHER` or `NAME after OTHER`.
///
/// # Errors
///
/// The reason why it stays where it is.
pub(super) fn moved(order: &mut Vec<String>, words: &[String]) -> Result<(), String> {
    let (name, place, other) = match words {
        [name, place] => (name, place.as_str(), ""),
        [name, place, other] => (name, place.as_str(), other.as_str()),
        _ => return Err("an order is a directive and its place".to_owned()),
    };
    // Both names of a directive are moved.
    let usual = |name: &str| match name {
        "basicauth" => "basic_auth".to_owned(),
        "skip_log" => "log_skip".to_owned(),
        "handle_path" => "handle".to_owned(),
        name => name.to_owned(),
    };
    let (name, other) = (usual(name), usual(other));
    let is_other = |known: &String| usual(known) == other;
    let (own, mut rest): (Vec<_>, Vec<_>) = order.iter().cloned().partition(|known| usual(known) == name);
    let to = match place {
        "first" => Some(0),
        "last" => Some(rest.len()),
        "before" => rest.iter().position(is_other),
        "after" => rest.iter().rposition(is_other).map(|at| at + 1),
        _ => None,
    };
    let Some(to) = to else { return Err("the other directive has no place".to_owned()) };
    rest.splice(to..to, own);
    *order = rest;
    Ok(())
}

/// Sorts a list as Caddy does. Its order is none: of three directives, each of two may equal the third, which does not
/// sort by paths. So the result depends on the algorithm, which is by insertion.
pub(super) fn sort<T>(list: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    for end in 1..list.len() {
        let mut at = end;
        while at > 0 && compare(&list[at], &list[at - 1]) == Ordering::Less {
            list.swap(at, at - 1);
            at -= 1;
        }
    }
}

/// Compares two directives of the same name: the one with the more specific path first.
pub(super) fn compare(one: Option<&Matcher>, other: Option<&Matcher>) -> Ordering {
    let length = |matcher: Option<&Matcher>| match matcher?.paths.as_deref()? {
        [ForeignPattern::Exact(path)] => Some((path.len(), path.clone(), 0)),
        [ForeignPattern::Prefix(path)] => Some((path.len(), path.clone(), 1)),
        [ForeignPattern::Suffix(path)] => Some((path.len() + 1, path.clone(), 0)),
        [ForeignPattern::Expression(path)] => Some((path.len(), path.clone(), 0)),
        _ => None,
    };
    let is_general = |matcher: Option<&Matcher>| matcher.is_none_or(|matcher| *matcher == Matcher::default());
    match (length(one), length(other)) {
        (Some((one, text, star)), Some((other, other_text, other_star))) => {
            other.cmp(&one).then_with(|| text.cmp(&other_text)).then(star.cmp(&other_star))
        }
        _ => is_general(one).cmp(&is_general(other)),
    }
}
