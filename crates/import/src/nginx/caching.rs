//! Caching directives of nginx: `proxy_cache_…` and similar ones.

use super::syntax::NginxDirective;
use super::upstream::set;
use super::values::time;
use super::{Chain, Notes};
use crate::kdl::KdlNode;

/// Block `cache` for a family of directives (`proxy`, `fastcgi`), if they cache responses and the cache key can be
/// translated: one user's response must never be sent to another.
pub(super) fn block(family: &str, chain: Chain<'_>, notes: &mut Notes) -> Option<KdlNode> {
    let name = |option: &str| format!("{family}_{option}");
    let cache = chain.last(&name("cache")).filter(|cache| cache.first() != "off")?;
    let mut options = ages(&chain.all(&name("cache_valid")), notes);
    if let Some(stale) = chain.last(&name("cache_use_stale")).filter(|stale| stale.first() != "off") {
        if stale.arguments.iter().any(|reason| reason != "updating") {
            set(&mut options, KdlNode::with("stale-if-error", "1d"));
        }
        if stale.has("updating") {
            set(&mut options, KdlNode::with("stale-while-revalidate", "1m"));
        }
    }
    let excepted = [chain.all(&name("no_cache")), chain.all(&name("cache_bypass"))].concat();
    let is_kept_apart = bypass(&excepted, &mut options, notes)
        & chain.last(&name("cache_key")).is_none_or(|key| add_key(key, &mut options, notes));
    if let Some(ignored) = chain.last(&name("ignore_headers")).filter(|it| it.arguments.iter().any(|it| is_cookie(it)))
    {
        match chain.all(&name("hide_header")).iter().any(|hidden| is_cookie(hidden.first())) {
            true => options.push(KdlNode::new("set-cookie").word("drop")),
            false => notes.left(
                ignored,
                "responses with cookies are not cached; `set-cookie keep` of `cache` would send one client's cookie to all",
            ),
        }
    }
    if !is_kept_apart {
        notes.left(cache, "responses are not cached, because their cache key cannot be translated");
        return None;
    }
    if options.is_empty() {
        // An empty block would be none.
        options.push(KdlNode::new("heuristic").word("off"));
    }
    Some(KdlNode::new("cache").block(options))
}

pub(super) fn is_cookie(field: &str) -> bool {
    field.eq_ignore_ascii_case("set-cookie")
}

/// Default times of freshness.
fn ages(directives: &[&NginxDirective], notes: &mut Notes) -> Vec<KdlNode> {
    let mut options = Vec::new();
    for directive in directives {
        let Some((age, statuses)) = directive.arguments.split_last() else { continue };
        match time(age) {
            None => notes.left(directive, "this is not a time"),
            Some(_) if statuses.iter().any(|status| status == "any") => {
                notes.left(directive, "list the statuses in `default-age`");
            }
            Some(age) => {
                options.push(statuses.iter().fold(KdlNode::with("default-age", age), |node, status| node.word(status)));
            }
        }
    }
    options
}

/// Requests that bypass the cache by a cookie. Returns `true` if these are all requests with private responses.
fn bypass(directives: &[&NginxDirective], options: &mut Vec<KdlNode>, notes: &mut Notes) -> bool {
    let mut cookies: Vec<&str> = Vec::new();
    let mut are_all = true;
    for directive in directives {
        for variable in &directive.arguments {
            let cookie = match variable.strip_prefix("$cookie_") {
                None if variable == "$http_cookie" => "*",
                Some(cookie) => cookie,
                None => {
                    // Clients that ask for a new response (`$arg_nocache`) get the cached one, which is not private.
                    let is_for_fresh_response = directive.name.ends_with("_bypass")
                        && ["$arg_", "$http_"].iter().any(|kind| variable.starts_with(kind))
                        && variable != "$http_authorization";
                    are_all &= is_for_fresh_response;
                    notes.left(directive, format!("only cookies can bypass the cache, not `{variable}`"));
                    continue;
                }
            };
            if !cookies.contains(&cookie) {
                cookies.push(cookie);
            }
        }
    }
    if !cookies.is_empty() {
        options.push(KdlNode::new("bypass-cookies").texts(cookies.iter()));
    }
    are_all
}

/// Cache key in addition to the URL. Returns `true` if the whole key can be translated.
fn add_key(directive: &NginxDirective, options: &mut Vec<KdlNode>, notes: &mut Notes) -> bool {
    let text = directive.arguments.concat();
    let (mut cookies, mut fields) = (Vec::new(), Vec::new());
    for variable in text.split('$').skip(1) {
        let variable = variable.trim_start_matches('{');
        let end = variable.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(variable.len());
        let variable = &variable[..end];
        match (variable.strip_prefix("cookie_"), variable.strip_prefix("http_")) {
            (Some(cookie), _) => cookies.push(cookie.to_owned()),
            (_, Some("host")) => {}
            (_, Some(field)) => fields.push(field.replace('_', "-")),
            _ if is_of_url(variable) => {}
            _ => {
                notes.left(directive, format!("the cache key cannot contain `${variable}`"));
                return false;
            }
        }
    }
    if !["$request", "$args", "$query_string"].iter().any(|query| text.replace(['{', '}'], "").contains(query)) {
        notes.left(directive, "the cache key always contains the query");
    }
    for (name, values) in [("key-cookies", cookies), ("key-headers", fields)] {
        if !values.is_empty() {
            options.push(KdlNode::new(name).texts(values.iter()));
        }
    }
    true
}

fn is_of_url(variable: &str) -> bool {
    matches!(
        variable,
        "scheme"
            | "host"
            | "server_name"
            | "server_port"
            | "proxy_host"
            | "proxy_port"
            | "request_uri"
            | "request"
            | "uri"
            | "document_uri"
            | "is_args"
            | "args"
            | "query_string"
            | "request_method"
    ) || variable.starts_with("arg_")
}
