//! `rewrite` and `uri`, which change the path of requests.
//!
//! Caddy applies them one after the other: of several `rewrite` in a block the first that matches, then those of blocks that match the
//! new path. Here, only the first redirect or rewrite applies. So one that follows another is joined with it, or the paths are rejected.

use super::matcher::{self, routed, with_tests};
use super::placeholders::{self, TextPlace};
use super::scope::{CaddyRewrite, Reach, Scope, tests_path};
use super::site::CaddySiteParts;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{for_each, on_path};
use crate::pattern::ForeignPattern;

const REWRITTEN: &str = "an earlier rewrite leads to its paths, and only one is applied here";

/// Note on a rewrite to paths that a rule before it guards. Here, the rule holds for them, too.
pub(super) const GUARDED: &str = "it leads to paths that an earlier rule guards, which holds after a rewrite, too";

/// A redirect or rewrite.
pub(super) struct CaddyRule<'a> {
    pub(super) directive: &'a Directive,
    /// Target in our form.
    pub(super) target: &'a str,
    /// Block in which only the first match of its kind counts.
    pub(super) group: Option<usize>,
}

/// Adds redirects or rewrites for all paths of a directive.
pub(super) fn add(
    site: &mut CaddySiteParts<'_, '_>,
    reach: &Reach,
    scope: &Scope,
    make: impl Fn(Option<String>) -> KdlNode,
) {
    let tests = reach.tests_of_rule(scope);
    site.parts.redirects.extend(for_each(&routed(&reach.paths), |pattern| {
        let node = with_tests(make(pattern), &tests);
        if reach.is_missing { node.word_property("missing", "on") } else { node }
    }));
}

/// Adds a rewrite to these paths.
fn add_rewrite(
    site: &mut CaddySiteParts<'_, '_>,
    rule: &CaddyRule<'_>,
    to: Vec<ForeignPattern>,
    reach: &Reach,
    scope: &mut Scope,
    notes: &mut Notes,
) {
    let make = |pattern: Option<String>, target: &str| on_path("rewrite", pattern).text(target);
    follow_up(site, rule, reach, scope, make, notes);
    let leads_to = |path: &ForeignPattern| {
        to.iter().any(|to| path.covers(to))
            && (reach.paths.is_empty() || !reach.paths.iter().all(|from| path.covers(from)))
    };
    if site.guarded.iter().any(leads_to) {
        notes.left(rule.directive, GUARDED);
    }
    if rule.target.contains('?') {
        scope.changed_queries.push(to.clone());
    }
    let at = site.parts.redirects.len();
    add(site, reach, scope, |pattern| make(pattern, rule.target));
    scope.rewrites.push(CaddyRewrite {
        group: rule.group,
        from: reach.paths.clone(),
        tests: reach.tests_of_rule(scope),
        to,
        target: rule.target.to_owned(),
        line: site.parts.redirects[at].clone(),
    });
}

/// Applies a rule to requests that an earlier rewrite leads to its paths.
pub(super) fn follow_up(
    site: &mut CaddySiteParts<'_, '_>,
    rule: &CaddyRule<'_>,
    reach: &Reach,
    scope: &mut Scope,
    make: impl Fn(Option<String>, &str) -> KdlNode,
    notes: &mut Notes,
) {
    let own = |test: &&String| !scope.tests.contains(test);
    let own: Vec<String> = reach.tests.iter().filter(own).cloned().collect();
    for earlier in scope.rewrites.clone() {
        let is_of_group = rule.group.is_some() && rule.group == earlier.group;
        if is_of_group || !earlier.to.iter().any(|to| reach.meets(to)) {
            continue;
        }
        let keeps_path = earlier.target.starts_with("{path}?");
        let covers = |to: &ForeignPattern| reach.paths.is_empty() || reach.paths.iter().any(|path| path.covers(to));
        let from = match keeps_path {
            true if earlier.from.is_empty() => Ok(reach.paths.clone()),
            true => reach.shared_with(&earlier.from),
            false if earlier.to.iter().all(covers) => Ok(earlier.from.clone()),
            false => Err(String::new()),
        };
        let is_told = !reach.is_missing && (keeps_path || !own.iter().any(|test| tests_path(test)));
        let target = in_turn(&earlier.target, rule.target);
        let at = site.parts.redirects.iter().position(|node| *node == earlier.line);
        let (Ok(from), Some(target), Some(at), true) = (from, target, at, is_told) else {
            site.parts.close(rule.directive, &earlier.from, REWRITTEN, notes);
            continue;
        };
        if keeps_path && from.is_empty() && !reach.paths.is_empty() {
            continue;
        }
        let mut tests = earlier.tests.clone();
        tests.extend(own.iter().filter(|test| !earlier.tests.contains(test)).cloned());
        let nodes = for_each(&routed(&from), |pattern| with_tests(make(pattern, &target), &tests));
        site.parts.redirects.splice(at..at, nodes);
    }
}

/// Target of a rule whose request was rewritten before; `None` if it cannot be told.
fn in_turn(first: &str, second: &str) -> Option<String> {
    let (path, query) = match first.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (first.trim_end_matches("{query}"), None),
    };
    let rest = ["{path}", "{host}", "{scheme}", "{query}", "{&query}"]
        .iter()
        .fold(second.to_owned(), |text, known| text.replace(known, ""));
    let reads_query = second.contains("query");
    if rest.contains('{') || (reads_query && query.is_some()) {
        return None;
    }
    let target = second.replace("{path}", path);
    Some(match query {
        Some(query) if !target.contains('?') => format!("{target}?{query}"),
        _ => target,
    })
}

/// All paths.
fn all_paths() -> ForeignPattern {
    ForeignPattern::Prefix("/".to_owned())
}

/// Paths of a target, in lower case and as written.
fn targets(path: &str) -> Vec<ForeignPattern> {
    let lower = matcher::path(path);
    let written = match path.strip_suffix('*') {
        Some(prefix) => ForeignPattern::Prefix(prefix.to_owned()),
        None => ForeignPattern::Exact(path.to_owned()),
    };
    if lower == written { vec![lower] } else { vec![lower, written] }
}

/// `rewrite`.
pub(super) fn rewrite(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &mut Scope,
    notes: &mut Notes,
) {
    let group = Some(scope.block);
    let source = placeholders::with_host_groups(values.first().map_or("", String::as_str), &reach.groups);
    let target = placeholders::text(&source, TextPlace::Target, site.host.as_deref());
    let target = match target.and_then(|to| placeholders::with_groups_of(to, reach.has_groups(), &reach.tests)) {
        // A rewrite keeps the query unless it names one.
        Ok(target) => target.replace("{path}{query}", "{path}"),
        Err(why) => return site.parts.close(directive, &reach.paths, why, notes),
    };
    // A query alone keeps the path.
    let target = if target.starts_with('?') { format!("{{path}}{target}") } else { target };
    if target.starts_with("{path}?") && !target["{path}?".len()..].contains('?') {
        let all = if reach.paths.is_empty() { vec![all_paths()] } else { reach.paths.clone() };
        return add_rewrite(site, &CaddyRule { directive, target: &target, group }, all, reach, scope, notes);
    }
    if let ([ForeignPattern::Prefix(prefix)], Some(front)) = (reach.paths.as_slice(), target.strip_suffix("{path}"))
        && !scope.prefix.is_empty()
        && scope.paths.as_deref() == Some(&reach.paths)
        && front.starts_with('/')
        && !front.contains(['{', '?'])
    {
        // Of a prefix that was removed: it is there until the request is forwarded, and the new one follows it.
        let kept = prefix.trim_end_matches('/');
        let expression = format!("(?i)^{}(/.*)$", regex::escape(kept));
        let paths = vec![ForeignPattern::Expression(expression)];
        let reach = Reach { paths, ..reach.clone() };
        let target = format!("{kept}{front}{{1}}");
        let to = targets(&format!("{kept}{front}*"));
        return add_rewrite(site, &CaddyRule { directive, target: &target, group }, to, &reach, scope, notes);
    }
    if target == "{path}" {
        return;
    }
    let fixed = target.split(['{', '?']).next().unwrap_or_default();
    let to = match (target.starts_with('/'), target.contains('{')) {
        (true, false) => targets(fixed),
        (true, true) => targets(&format!("{fixed}*")),
        (false, _) if target.starts_with("{path}") => vec![all_paths()],
        (false, _) => {
            return site.parts.close(directive, &reach.paths, "the target of `rewrite` must be a path", notes);
        }
    };
    let new = &to[0];
    // A path that gets longer stays below a prefix.
    let is_longer = |path: &ForeignPattern| matches!(path, ForeignPattern::Prefix(_)) && target.starts_with("{path}");
    let stays = scope.paths.as_ref().is_none_or(|paths| paths.iter().any(|path| path.covers(new) || is_longer(path)));
    let meets = |(paths, _): &(Vec<ForeignPattern>, String)| paths.iter().any(|path| path.overlaps(new));
    if !stays || scope.tests_path() || !scope.prefix.is_empty() || scope.earlier.iter().any(meets) {
        return rewrite_out(site, directive, &target, reach, scope, notes);
    }
    add_rewrite(site, &CaddyRule { directive, target: &target, group }, to, reach, scope, notes);
}

/// A rewrite to a path for which another block is, too. Here, it leads to a path of its own, which no client can request.
fn rewrite_out(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    target: &str,
    reach: &Reach,
    scope: &mut Scope,
    notes: &mut Notes,
) {
    let is_unconditional = reach.tests == scope.tests && !reach.is_missing;
    let loses_prefix = scope.prefix.is_empty() || !target.contains("{path}");
    if !reach.has_all_paths(scope) || !is_unconditional || !loses_prefix || scope.is_own() {
        return site.parts.close(directive, &reach.paths, "a rewrite leads out of its block", notes);
    }
    let prefix = site.own_path("");
    let target = format!("{prefix}{target}");
    let rule = CaddyRule { directive, target: &target, group: Some(scope.block) };
    add_rewrite(site, &rule, Vec::new(), reach, scope, notes);
    if !reach.paths.is_empty() {
        // A rewrite of all requests leads here, which is not rewritten again.
        site.seal(reach, 404);
    }
    // No others have these paths.
    scope.paths = Some(vec![ForeignPattern::Prefix(format!("{prefix}/"))]);
    scope.prefix = prefix;
    scope.tests.clear();
    scope.earlier.clear();
    scope.taken.clear();
    scope.redirected.clear();
    scope.rewrites.clear();
}

/// `uri`.
pub(super) fn uri(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &mut Scope,
    notes: &mut Notes,
) {
    let [operation, value, ..] = values else {
        return site.parts.close(directive, &reach.paths, "there is no counterpart", notes);
    };
    let prefix = format!("/{}", value.trim_matches('/').to_ascii_lowercase());
    if operation != "strip_prefix" || value.contains('{') || reach.is_missing || !scope.prefix.is_empty() {
        return site.parts.close(directive, &reach.paths, "there is no counterpart", notes);
    }
    let is_below = |path: &ForeignPattern| {
        path.head().strip_prefix(&prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let is_of_block = scope.paths.as_ref() == Some(&reach.paths) && reach.tests == scope.tests;
    if is_of_block && !reach.paths.is_empty() && reach.paths.iter().all(is_below) {
        scope.prefix = prefix;
        return;
    }
    let why = "only a prefix of the path is removed";
    if scope.paths.is_some() || !scope.earlier.is_empty() {
        return site.parts.close(directive, &reach.paths, why, notes);
    }
    let start = format!("(?i)^{}", regex::escape(&prefix));
    // Paths of the rule, and those to which it leads.
    let expression = |path: &ForeignPattern| {
        let below = |text: &str| text[prefix.len()..].trim_start_matches('/').to_owned();
        let (text, to) = match path {
            ForeignPattern::Prefix(path) if prefix.starts_with(path.as_str()) => {
                (format!("{start}(?:/(.*))?$"), all_paths())
            }
            ForeignPattern::Prefix(text) if is_below(path) => {
                let rest = below(text);
                (format!("{start}/({}.*)$", regex::escape(&rest)), ForeignPattern::Prefix(format!("/{rest}")))
            }
            ForeignPattern::Exact(text) if is_below(path) => {
                let rest = below(text);
                (format!("{start}/?({})$", regex::escape(&rest)), ForeignPattern::Exact(format!("/{rest}")))
            }
            _ => return None,
        };
        Some((ForeignPattern::Expression(text), to))
    };
    let all = [all_paths()];
    let paths = if reach.paths.is_empty() { &all } else { reach.paths.as_slice() };
    let Some((paths, to)) = paths.iter().map(expression).collect::<Option<(Vec<_>, Vec<_>)>>() else {
        return site.parts.close(directive, &reach.paths, why, notes);
    };
    let reach = Reach { paths, is_missing: false, ..reach.clone() };
    for earlier in scope.rewrites.clone() {
        if earlier.to.iter().any(|to| to.overlaps(&ForeignPattern::Prefix(prefix.clone()))) {
            site.parts.close(directive, &earlier.from, REWRITTEN, notes);
        }
    }
    add_rewrite(site, &CaddyRule { directive, target: "/{1}", group: None }, to, &reach, scope, notes);
}
