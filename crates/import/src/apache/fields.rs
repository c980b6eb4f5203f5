//! Header fields, and how long clients keep files.

use super::expression::{self, ApacheCondition, ExpressionScope};
use super::redirects::of_ours;
use super::rewrite_condition::path_matches;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{SiteParts, for_each};
use crate::pattern::{ForeignPattern, quoted};

/// `Header` and `RequestHeader`.
pub(super) fn header(
    directive: &Directive,
    paths: &[ForeignPattern],
    scope: ExpressionScope<'_>,
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    let mut words: Vec<&str> = directive.arguments.iter().map(String::as_str).collect();
    if matches!(words.first(), Some(word) if word.eq_ignore_ascii_case("always") || word.eq_ignore_ascii_case("onsuccess"))
    {
        words.remove(0);
    }
    let is_request = directive.name.eq_ignore_ascii_case("requestheader");
    let option = if is_request { "request-header" } else { "response-header" };
    let (action, name, rest) = match words.as_slice() {
        [action, name, rest @ ..] => (action.to_ascii_lowercase(), name.trim_end_matches(':'), rest),
        _ => return notes.left(directive, "it needs a field"),
    };
    if action.starts_with("edit") {
        return notes.left(directive, "values are set as a whole, not replaced in part");
    }
    let is_removal = action == "unset";
    let (value, condition) = match rest {
        rest if is_removal => ("", rest.first()),
        [value, rest @ ..] => (*value, rest.first()),
        [] => ("", None),
    };
    if is_removal && matches!(name.to_ascii_lowercase().as_str(), "etag" | "server") {
        return notes.left(directive, "files have an `ETag`, and `server-tokens` sets `Server`");
    }
    let condition = match condition {
        None | Some(&"early") => ApacheCondition::Constant(true),
        Some(word) => match condition_of(word, scope) {
            Some(condition) => condition,
            None => return notes.left(directive, format!("a header field has no condition `{word}`")),
        },
    };
    let when = match condition {
        ApacheCondition::Constant(false) => return,
        ApacheCondition::Constant(true) => None,
        ApacheCondition::When(text) => Some(text),
    };
    let action = match action.as_str() {
        "set" | "unset" => "set",
        "add" | "append" | "merge" => "add",
        "setifempty" => "default",
        _ => return notes.left(directive, "values are set as a whole, not replaced in part"),
    };
    let Some(value) = value_of(value) else {
        return notes.left(directive, "its value has variables without a counterpart");
    };
    parts.fields.extend(for_each(paths, |pattern| {
        let node = match pattern {
            Some(pattern) => KdlNode::with(option, pattern),
            None => KdlNode::new(option),
        };
        let node = node.text(name).text(&value);
        let node = if action == "set" { node } else { node.property("action", action) };
        when.iter().fold(node, |node, when| node.property("when", when))
    }));
}

/// Keeps `Cache-Control` from the site's own redirects, unless there are many: Apache sends no field of `Header` with
/// them, except those of `always`.
pub(super) fn keep_from_redirects(parts: &mut SiteParts) {
    const REDIRECTS_MAX: usize = 4;
    let is_permanent = |node: &KdlNode| node.property_text("status") == Some("301");
    let is_meant =
        |node: &&KdlNode| node.name() == "redirect" && node.is_rule_of(node.first_value()) && !is_permanent(node);
    let paths: Vec<ForeignPattern> =
        parts.redirects.iter().filter(is_meant).map(|node| of_ours(node.pattern())).collect();
    // `ExpiresDefault` says what redirects have.
    let is_field = |node: &&mut KdlNode| {
        let is_own = node.property_text("action") != Some("default");
        node.name() == "response-header" && node.has_value("cache-control") && is_own
    };
    for node in parts.fields.iter_mut().filter(is_field).filter(|_| paths.len() <= REDIRECTS_MAX) {
        // That of directories, too.
        node.add_condition("status != 301");
        for path in &paths {
            node.add_condition(&format!("not {}", path_matches(path)));
        }
    }
}

/// `env=NAME`, `env=!NAME` and `expr=TEXT`.
fn condition_of(word: &str, scope: ExpressionScope<'_>) -> Option<ApacheCondition> {
    if let Some(text) = word.strip_prefix("expr=") {
        return expression::condition(text, scope);
    }
    let name = word.strip_prefix("env=")?;
    let (is_negated, name) = match name.strip_prefix('!') {
        Some(name) => (true, name),
        None => (false, name),
    };
    let condition = scope.environment.get(name).cloned().flatten()?;
    Some(if is_negated { condition.not() } else { condition })
}

/// A value with Apache's format specifiers.
fn value_of(text: &str) -> Option<String> {
    let text = text.replace('{', "\u{1}").replace('}', "\u{2}");
    let known = [
        ("%\u{1}REQUEST_SCHEME\u{2}s", "{scheme}"),
        ("%\u{1}HTTP_HOST\u{2}s", "{host}"),
        ("%\u{1}REMOTE_ADDR\u{2}s", "{client}"),
        ("expr=%\u{1}REQUEST_SCHEME\u{2}", "{scheme}"),
        ("expr=%\u{1}REMOTE_ADDR\u{2}", "{client}"),
        ("expr=%\u{1}HTTP_HOST\u{2}", "{host}"),
    ];
    let text = known.iter().fold(text, |text, (from, to)| text.replace(from, to));
    if text.contains("%\u{1}") || text.starts_with("expr=") || text.contains("%t") || text.contains("%D") {
        return None;
    }
    Some(text.replace('\u{1}', "{{").replace('\u{2}', "}}").replace("%%", "%"))
}

/// Seconds of `access plus 1 month`, `A3600` or `"modification plus 2 hours 3 minutes"`.
fn seconds(words: &[String]) -> Option<u64> {
    let text = words.join(" ");
    if let Some(number) = text.strip_prefix(['A', 'M']).and_then(|number| number.parse().ok()) {
        return Some(number);
    }
    let mut words =
        text.split_whitespace().skip_while(|word| matches!(*word, "access" | "now" | "modification" | "plus"));
    let mut total: u64 = 0;
    while let Some(count) = words.next() {
        let unit = match words.next()?.trim_end_matches('s') {
            "year" => 365 * 86400,
            "month" => 30 * 86400,
            "week" => 7 * 86400,
            "day" => 86400,
            "hour" => 3600,
            "minute" => 60,
            "second" => 1,
            _ => return None,
        };
        total = count.parse::<u64>().ok()?.checked_mul(unit)?.checked_add(total)?;
    }
    Some(total)
}

/// Removes what `expires` says of responses that are not files, because scripts have `ExpiresActive Off`.
pub(super) fn keep_expires_of_files(parts: &mut SiteParts) {
    let is_of_redirects = |node: &KdlNode| node.is_when(OF_REDIRECTS);
    parts.fields.retain(|node| {
        node.name() != "response-header" || !node.is_default_of("Cache-Control") || is_of_redirects(node)
    });
}

/// Redirects of the server itself, whose content is HTML.
const OF_REDIRECTS: &str = "status in (301, 302, 303, 307, 308)";

/// `ExpiresByType` and `ExpiresDefault`.
pub(super) fn expires(directive: &Directive, parts: &mut SiteParts, paths: &[ForeignPattern], notes: &mut Notes) {
    let is_default = directive.name.eq_ignore_ascii_case("expiresdefault");
    let words =
        if is_default { directive.arguments.as_slice() } else { directive.arguments.get(1..).unwrap_or_default() };
    let Some(seconds) = seconds(words) else { return notes.left(directive, "this is not a time") };
    let value = format!("max-age={seconds}");
    // `cache-control` is of files.
    let has_other_responses = parts.last.is_some() || parts.handlers.iter().any(|node| node.name() != "files");
    let of_others = |node: KdlNode| node.text("Cache-Control").text(&value).word_property("action", "default");
    let on = |pattern: Option<String>| {
        pattern.map_or_else(|| KdlNode::new("response-header"), |path| KdlNode::with("response-header", path))
    };
    if is_default {
        // The first line that sets a default counts, so types come before.
        parts.fields.extend(for_each(paths, |pattern| of_others(on(pattern)).property("when", OF_REDIRECTS)));
        if has_other_responses {
            parts.fields.extend(for_each(paths, |pattern| of_others(on(pattern))));
        }
        let nodes = for_each(paths, |pattern| match pattern {
            Some(pattern) => KdlNode::with("cache-control", pattern).text(&value),
            None => KdlNode::with("cache-control", &value),
        });
        // Types are more specific, and a later line replaces an earlier one.
        parts.fields.splice(0..0, nodes);
    } else if paths.is_empty() {
        if has_other_responses && directive.first().split('/').all(|part| !part.is_empty()) {
            let text = quoted(&format!("^{}", regex::escape(directive.first())));
            let when = format!("response.header.content-type matches {text}");
            let node = of_others(KdlNode::new("response-header")).property("when", when);
            parts.fields.insert(0, node);
        }
        if directive.first() == "text/html" {
            let node = of_others(KdlNode::new("response-header")).property("when", OF_REDIRECTS);
            parts.fields.insert(0, node);
        }
        parts.fields.push(KdlNode::with("cache-control", directive.first()).text(&value));
    } else {
        notes.left(directive, "`cache-control` has a path or a type");
    }
}

/// Returns `true` if a block turns `ExpiresByType` and `ExpiresDefault` on.
pub(super) fn is_expiring(block: &[Directive]) -> bool {
    block
        .iter()
        .any(|child| child.name.eq_ignore_ascii_case("expiresactive") && child.first().eq_ignore_ascii_case("on"))
}
