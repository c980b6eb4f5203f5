//! Directives that apply before handlers, and fixed responses.

use super::matcher::{routed, with_tests};
use super::placeholders::{self, TextPlace};
use super::rewrites::CaddyRule;
use super::scope::{Reach, Scope};
use super::site::CaddySiteParts;
use super::{files, proxy, rewrites};
use crate::config;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{for_each, on_path, with_path};
use crate::pattern::ForeignPattern;

/// Reason why a rule is not translated that reads a header field or query after its change: here, they change later.
pub(super) const CHANGED: &str = "a header field or query that it reads was changed before, which happens later here";

/// Translates a directive that does not answer requests itself.
pub(super) fn translate(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &mut Scope,
    notes: &mut Notes,
) {
    let is_rewrite = matches!(directive.name.as_str(), "rewrite" | "uri");
    scope.is_rewritten |= is_rewrite || directive.name == "try_files";
    if is_rewrite && !scope.roots.is_empty() {
        let why = "the root of some paths is chosen before, which is that of the new path here";
        return site.parts.close(directive, &reach.paths, why, notes);
    }
    match directive.name.as_str() {
        "root" => root(site, directive, values, reach, scope, notes),
        "header" => header(site, directive, values, reach, scope, notes),
        "request_header" => {
            request_header(site, directive, values, reach, scope, notes);
            scope
                .changed
                .extend(values.first().map(|name| operation(name.trim_end_matches(':')).0.to_ascii_lowercase()));
        }
        "redir" => {
            redirect(site, directive, values, reach, scope, notes);
            if !reach.is_missing {
                scope.redirected.extend(Some(reach.condition(scope)).filter(|condition| !condition.is_empty()));
            }
        }
        "rewrite" => rewrites::rewrite(site, directive, values, reach, scope, notes),
        "uri" => rewrites::uri(site, directive, values, reach, scope, notes),
        "try_files" => files::try_files(site, directive, values, reach, scope, notes),
        "basic_auth" | "basicauth" => basic_auth(site, directive, values, reach, scope, notes),
        "forward_auth" => proxy::forward_auth(site, directive, values, reach, scope, notes),
        "request_body" => request_body(site, directive, reach, notes),
        "log" => log(site, directive, notes),
        "log_skip" | "skip_log" => {
            if reach.paths.is_empty() {
                site.parts.others.retain(|node| node.name() != "access-log");
                site.parts.others.push(KdlNode::new("access-log").word("off"));
            } else {
                site.parts.others.extend(for_each(&routed(&reach.paths), |pattern| on_path("log-skip", pattern)));
            }
        }
        "handle_errors" => error_pages(site, directive, notes),
        "encode" => {
            notes.needless(directive, "content of compressible types is compressed for all clients that accept it")
        }
        "push" => notes.needless(directive, "browsers have removed server push"),
        "tracing" => notes.left(directive, "write a block `traces`"),
        "vars" if is_of_files(directive) => {
            site.parts.close(directive, &reach.paths, "this variable chooses the files; write `root`", notes);
        }
        "vars" => notes.left(directive, "there are no variables"),
        "map" => notes.left(directive, "a map turns a variable into fixed texts, each by a text or an expression"),
        "intercept" => {
            let is_change = |child: &&Directive| matches!(child.name.as_str(), "handle_response" | "replace_status");
            let is_harmless = |child: &Directive| proxy::is_of_errors(child, directive);
            match directive.children().iter().filter(is_change).all(is_harmless) {
                true => notes.left(directive, "responses pass unchanged; `error-page` shows a page"),
                false => site.parts.close(directive, &reach.paths, "there is no counterpart", notes),
            }
        }
        "log_append" | "log_name" | "timeouts" => notes.left(directive, "there is no counterpart"),
        "templates" | "method" | "fs" | "copy_response" | "copy_response_headers" => {
            site.parts.close(directive, &reach.paths, "there is no counterpart", notes);
        }
        // A directive of a plugin may guard what follows.
        _ => site.parts.close(directive, &reach.paths, "there is no such directive", notes),
    }
}

/// Returns `true` for `vars` that set a variable of files, as `root` does.
fn is_of_files(directive: &Directive) -> bool {
    let is_name = |name: &str| matches!(name, "root" | "fs");
    directive.arguments.iter().any(|word| is_name(word)) || directive.children().iter().any(|one| is_name(&one.name))
}

fn root(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &mut Scope,
    notes: &mut Notes,
) {
    let root =
        match placeholders::text(values.first().map_or("", String::as_str), TextPlace::Fixed, site.host.as_deref()) {
            Ok(root) if reach.tests == scope.tests && !reach.is_missing => root,
            Ok(_) => {
                return site.parts.close(directive, &reach.paths, "a root has no conditions except the path", notes);
            }
            Err(why) => return site.parts.close(directive, &reach.paths, why, notes),
        };
    let is_general = reach.has_all_paths(scope);
    let matcher = if directive.arguments.len() > 1 { directive.first().trim_start_matches('*') } else { "" };
    let is_joined = scope.root_matcher.as_deref() == Some(matcher);
    scope.root_matcher = Some(matcher.to_owned());
    if scope.has_own_root && (!is_general || !is_joined || scope.has_other_roots) {
        scope.has_other_roots = true;
        return notes.left(directive, "an earlier `root` is for all paths, and only the first counts");
    }
    match is_general {
        // Of several in a row, the last counts.
        true => {
            scope.has_own_root = true;
            scope.root = Some(root);
            // Roots of the blocks around it do not count.
            scope.roots.drain(..std::mem::take(&mut scope.outer_roots));
        }
        false => match scope.roots.last_mut() {
            Some((paths, last)) if *paths == reach.paths => *last = root,
            _ => scope.roots.push((reach.paths.clone(), root)),
        },
    }
}

fn redirect(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &mut Scope,
    notes: &mut Notes,
) {
    let status = match values.get(1).map(String::as_str) {
        None | Some("temporary") => 302,
        Some("permanent") => 301,
        Some(status) => match status.parse() {
            Ok(status @ (301 | 302 | 303 | 307 | 308)) => status,
            _ => return site.parts.close(directive, &reach.paths, "this is no status of a redirect", notes),
        },
    };
    let target = placeholders::with_host_groups(values.first().map_or("", String::as_str), &reach.groups);
    let needs_password = site.auths.iter().any(|(_, path, _)| is_guarded(path.as_ref(), reach, scope));
    let place = if needs_password { TextPlace::Field } else { TextPlace::Target };
    let target = placeholders::text(&target, place, site.host.as_deref());
    match target.and_then(|to| placeholders::with_groups_of(to, reach.has_groups(), &reach.tests)) {
        Ok(target) => {
            // Of a prefix that was removed, `{path}` has none here.
            if !scope.prefix.is_empty() && (target.contains("{path}") || scope.is_own()) {
                let why = "the target would have another prefix, or the path was rewritten before";
                return site.parts.close(directive, &reach.paths, why, notes);
            }
            if needs_password {
                return guarded_redirect(site, directive, &target, status, reach, scope, notes);
            }
            let make = |pattern: Option<String>, target: &str| {
                on_path("redirect", pattern).text(target).word_property("status", status)
            };
            let rule = CaddyRule { directive, target: &target, group: None };
            rewrites::follow_up(site, &rule, reach, scope, make, notes);
            rewrites::add(site, reach, scope, |pattern| make(pattern, &target));
        }
        Err(why) => site.parts.close(directive, &reach.paths, why, notes),
    }
}

/// A redirect for clients with a password. It is a handler, because redirects come before passwords here.
fn guarded_redirect(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    target: &str,
    status: u16,
    reach: &Reach,
    scope: &Scope,
    notes: &mut Notes,
) {
    if reach.is_missing {
        return site.parts.close(
            directive,
            &reach.paths,
            "a redirect after passwords has no condition on files",
            notes,
        );
    }
    let paths = routed(&reach.paths);
    let respond = |pattern| with_tests(on_path("respond", pattern).word(status), &reach.tests);
    site.parts.handlers.extend(for_each(&paths, respond));
    let mut tests = reach.tests_of_rule(scope);
    tests.push(format!("status == {status}"));
    let location = |pattern: Option<String>| {
        with_tests(KdlNode::new("response-header").texts(pattern).text("Location").text(target), &tests)
    };
    site.parts.fields.extend(for_each(&paths, location));
}

/// Returns `true` if requests need a password that paths have, or all.
fn is_guarded(path: Option<&ForeignPattern>, reach: &Reach, scope: &Scope) -> bool {
    let is_earlier = path.is_some_and(|path| {
        scope.earlier.iter().any(|(earlier, _)| earlier.iter().any(|earlier| earlier.covers(path)))
    });
    path.is_none_or(|path| reach.meets(path)) && !is_earlier
}

/// Status of `respond`, `error` or `abort`, and the text on its line.
fn status_and_body(directive: &Directive, values: &[String]) -> (u16, Option<String>) {
    match (directive.name.as_str(), values) {
        ("abort", _) => (403, None),
        ("error", [message, status]) => (status.parse().unwrap_or(500), Some(message.clone())),
        ("error", [value]) => (value.parse().unwrap_or(500), None),
        (_, [value]) => match value.parse::<u16>() {
            Ok(status) => (status, None),
            Err(_) => (200, Some(value.clone())),
        },
        // Another one than a number has no counterpart.
        (_, [body, status, ..]) => (status.parse().unwrap_or(0), Some(body.clone())),
        _ => (200, None),
    }
}

/// Returns `true` for a response that rejects.
pub(super) fn rejects(directive: &Directive, values: &[String]) -> bool {
    matches!(directive.name.as_str(), "respond" | "error" | "abort") && status_and_body(directive, values).0 >= 400
}

/// `respond`, `error` and `abort`.
pub(super) fn respond(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &Scope,
    notes: &mut Notes,
) -> bool {
    let (status, body) = status_and_body(directive, values);
    let inner = directive.children().iter().find(|child| child.name == "body").map(|child| child.first().to_owned());
    let body = body.or(inner).filter(|_| directive.name == "respond");
    if reach.is_missing {
        site.parts.close(directive, &reach.paths, "a response has no condition on files", notes);
        return false;
    }
    if status >= 400 {
        site.guarded.extend(reach.paths.iter().cloned());
    }
    let is_conditional = reach.tests != scope.tests;
    // The file that `try_files` shows in place of a missing one.
    let fallback = scope.fallback();
    let has_fallback = (scope.tries.is_used && !reach.has_all_paths(scope))
        || fallback.is_some_and(|fallback| reach.paths.iter().any(|path| path.fits(&fallback)));
    if status >= 400 && scope.tries.fallback.is_some() && !reach.has_all_paths(scope) {
        notes.left(directive, "it rejects missing paths, too, which `try_files` gives another path");
    }
    let is_guard = is_conditional || has_fallback || (directive.name == "error" && scope.paths.is_none());
    if is_guard && status >= 400 && scope.leaves(reach) {
        notes.left(directive, "it holds for paths before a rewrite, too");
    }
    if is_guard && status >= 400 && scope.is_rewritten && !scope.redirected.is_empty() {
        notes.left(directive, "it rejects requests before they are redirected");
    }
    // An argument of the query may have several values.
    let is_vague = reach.tests.iter().any(|test| ["query.", "cookie."].iter().any(|part| test.contains(part)));
    let tests = reach.tests_of_rejection(scope);
    let reads_changed = scope.reads_changed(reach, &tests);
    if (is_conditional || has_fallback) && status >= 400 && reads_changed {
        site.parts.close(directive, &reach.paths, CHANGED, notes);
        return false;
    }
    if (is_conditional || has_fallback || (is_vague && !reads_changed)) && status >= 400 {
        // A rejection that cannot be told must apply, as only `deny` does.
        let paths = site.parts.protected(&reach.paths);
        site.parts.guards.extend(for_each(&paths, |pattern| {
            let node = with_tests(with_path(KdlNode::new("deny").word("all"), pattern), &tests);
            if status == 403 { node } else { node.word_property("status", status) }
        }));
        return !is_conditional && !has_fallback && reach.has_all_paths(scope);
    }
    // Scripts to which other paths lead, later in Caddy's order, are not rejected. Paths that were rewritten before are.
    let is_first = scope.paths.is_none() && !reads_changed;
    if directive.name == "error" && status >= 400 && !reach.paths.is_empty() && is_first {
        let paths = site.parts.protected(&reach.paths);
        site.parts.guards.extend(for_each(&paths, |pattern| {
            let node = with_path(KdlNode::new("deny").word("all"), pattern);
            let node = if status == 403 { node } else { node.word_property("status", status) };
            let node = if scope.is_rewritten { node } else { node.word_property("internal", "on") };
            with_tests(node, &tests)
        }));
        return false;
    }
    let body = match body.map(|body| placeholders::text(&body, TextPlace::Fixed, site.host.as_deref())).transpose() {
        Ok(body) => body,
        Err(why) => {
            site.parts.close(directive, &reach.paths, why, notes);
            return reach.paths.is_empty();
        }
    };
    if !(200..=599).contains(&status) {
        site.parts.close(directive, &reach.paths, "this is no status of a response", notes);
        return reach.paths.is_empty();
    }
    let paths = match status {
        400.. => site.parts.protected(&reach.paths),
        _ => routed(&reach.paths),
    };
    site.parts.handlers.extend(for_each(&paths, |pattern| {
        let node = on_path("respond", pattern).word(status);
        with_tests(node.texts(body.iter()), &reach.tests)
    }));
    !is_conditional && reach.has_all_paths(scope)
}

/// A value of a header field: its name, operation and our action.
fn operation(name: &str) -> (&str, &'static str) {
    match name.chars().next() {
        Some('+') => (&name[1..], "add"),
        Some('?') => (&name[1..], "default"),
        Some('>') => (&name[1..], "set"),
        Some('-') => (&name[1..], "remove"),
        _ => (name, "set"),
    }
}

/// Lines for a header field.
pub(super) fn field_lines(
    option: &'static str,
    words: &[String],
    paths: &[ForeignPattern],
) -> Result<Vec<KdlNode>, String> {
    let [name, values @ ..] = words else { return Ok(Vec::new()) };
    if values.len() > 1 {
        return Err("values are set as a whole, not replaced in part".to_owned());
    }
    let (name, action) = operation(name.trim_end_matches(':'));
    if name.contains(['*', '{']) {
        return Err("a field has a fixed name".to_owned());
    }
    if option == "request-header" && config::is_own_request_field(name) {
        return Err("this field controls how the request is sent".to_owned());
    }
    let value = match action {
        "remove" => String::new(),
        _ => placeholders::text(values.first().map_or("", String::as_str), TextPlace::Field, None)?,
    };
    Ok(for_each(&routed(paths), |pattern| {
        let node = match pattern {
            Some(pattern) => KdlNode::with(option, pattern),
            None => KdlNode::new(option),
        };
        let node = node.text(name).text(&value);
        if matches!(action, "add" | "default") { node.property("action", action) } else { node }
    }))
}

fn header(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &Scope,
    notes: &mut Notes,
) {
    let tests = reach.tests_of_response(scope);
    let mut lines: Vec<(&Directive, Vec<String>)> = Vec::new();
    if !values.is_empty() {
        lines.push((directive, values.to_vec()));
    }
    for child in directive.children() {
        if !matches!(child.name.as_str(), "defer" | "match") {
            lines.push((child, [std::slice::from_ref(&child.name), &child.arguments].concat()));
        }
    }
    for (at, words) in lines {
        if matches!(words[0].as_str(), "-Server" | "-server" | "-Via") {
            notes.left(at, "`server-tokens off` of `server` hides the version of this server");
            continue;
        }
        if reach.is_missing {
            notes.left(at, "a header field has no condition on files");
            continue;
        }
        match field_lines("response-header", &words, &reach.paths) {
            Ok(new) => site.parts.fields.extend(new.into_iter().map(|node| with_tests(node, &tests))),
            Err(why) => notes.left(at, why),
        }
    }
}

fn request_header(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &Scope,
    notes: &mut Notes,
) {
    let tests = reach.tests_of_rule(scope);
    match field_lines("request-header", values, &reach.paths) {
        Ok(new) => site.parts.fields.extend(new.into_iter().map(|node| with_tests(node, &tests))),
        Err(why) => site.parts.close(directive, &reach.paths, why, notes),
    }
}

fn basic_auth(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &Scope,
    notes: &mut Notes,
) {
    let users = directive.children().iter().map(|child| format!("{}:{}\n", child.name, child.first()));
    let content: String = users.collect();
    let is_known = matches!(values.first().map(String::as_str), None | Some("bcrypt" | "argon2id" | "argon2"));
    if content.is_empty() || !is_known {
        return site.parts.close(directive, &reach.paths, "it has no users with hashes that can be read here", notes);
    }
    let file = site.shared.file("users.htpasswd", &content);
    let realm = values.get(1).map_or("restricted", String::as_str);
    let make = |pattern: Option<String>| on_path("basic-auth", pattern).text(&file).property("realm", realm);
    add_auth(site, "basic-auth", directive, &file, reach, scope, make, notes);
}

/// Adds access rules of which the first match counts.
#[expect(clippy::too_many_arguments, reason = "one place for two kinds of rules")]
pub(super) fn add_auth(
    site: &mut CaddySiteParts<'_, '_>,
    kind: &'static str,
    directive: &Directive,
    key: &str,
    reach: &Reach,
    scope: &Scope,
    make: impl Fn(Option<String>) -> KdlNode,
    notes: &mut Notes,
) {
    if kind == "basic-auth" && scope.changed.iter().any(|name| name == "authorization") {
        return site.parts.close(directive, &reach.paths, CHANGED, notes);
    }
    let patterns: Vec<Option<ForeignPattern>> = match reach.paths.as_slice() {
        [] => vec![None],
        paths => paths.iter().cloned().map(Some).collect(),
    };
    let is_outer = |(other, path, known): &(&str, Option<ForeignPattern>, String)| {
        *other == kind && known != key && is_guarded(path.as_ref(), reach, scope)
    };
    if site.auths.iter().any(is_outer) {
        let why = "another rule of this kind has these paths, and only the first match counts";
        return site.parts.close(directive, &reach.paths, why, notes);
    }
    site.auths.extend(patterns.iter().map(|path| (kind, path.clone(), key.to_owned())));
    if scope.leaves(reach) {
        notes.left(directive, "it holds for paths before a rewrite, too");
    }
    let tests = reach.tests_of_rule(scope);
    site.guarded.extend(reach.paths.iter().cloned());
    let paths = site.parts.protected(&reach.paths);
    site.parts.guards.extend(for_each(&paths, |pattern| with_tests(make(pattern), &tests)));
}

fn request_body(site: &mut CaddySiteParts<'_, '_>, directive: &Directive, reach: &Reach, notes: &mut Notes) {
    for child in directive.children() {
        match (child.name.as_str(), proxy::size(child.first())) {
            ("max_size", Some(size)) if reach.paths.is_empty() => {
                site.parts.options.push(KdlNode::with("body-bytes-max", size));
            }
            ("max_size", Some(_)) => notes.left(child, "`body-bytes-max` applies to a site or a `forward`"),
            _ => notes.left(child, "there is no counterpart"),
        }
    }
}

fn log(site: &mut CaddySiteParts<'_, '_>, directive: &Directive, notes: &mut Notes) {
    let child = |name: &str| directive.children().iter().find(|child| child.name == name);
    let target = match child("output") {
        Some(output) => match output.first() {
            "file" => output.arguments.get(1).map_or("stdout", String::as_str),
            "stdout" | "stderr" => "stdout",
            "discard" => return,
            _ => return notes.left(output, "logs go to a file, `stdout` or `syslog`"),
        },
        None => "stdout",
    };
    let format = match child("format") {
        Some(format) if format.first() == "console" => "combined",
        _ => "json",
    };
    for other in directive.children() {
        match other.name.as_str() {
            "output" | "level" => {}
            "format" if matches!(other.first(), "json" | "console") && other.children().is_empty() => {}
            _ => notes.left(other, "there is no counterpart"),
        }
    }
    site.parts.others.retain(|node| node.name() != "access-log");
    site.parts.others.push(KdlNode::with("access-log", target).property("format", format));
}

fn error_pages(site: &mut CaddySiteParts<'_, '_>, directive: &Directive, notes: &mut Notes) {
    let rewrite = directive.children().iter().find(|child| child.name == "rewrite");
    let page = rewrite.map(|child| match child.arguments.as_slice() {
        [page] => page.as_str(),
        [all, page] if all == "*" => page,
        _ => "",
    });
    let children = directive.children();
    let is_fixed = |child: &Directive| {
        let status = child.arguments.last().filter(|status| status.parse::<u16>().is_ok());
        child.name == "respond" && status.is_some_and(|status| directive.arguments != [status.as_str()])
    };
    let is_text = |child: &Directive| matches!(child.name.as_str(), "respond" | "header");
    let is_of_page = |child: &Directive| matches!(child.name.as_str(), "rewrite" | "root" | "file_server" | "encode");
    let root = children.iter().find(|child| child.name == "root").and_then(|child| child.arguments.last());
    let is_page =
        |page: &str| page.starts_with('/') && !page.contains('{') && root.is_none_or(|root| !root.contains('{'));
    match page {
        Some(page) if is_page(page) && children.iter().all(is_of_page) => {
            let mut statuses = directive.arguments.clone();
            if statuses.is_empty() {
                statuses = vec!["4xx".to_owned(), "5xx".to_owned()];
            }
            let node = statuses.iter().fold(KdlNode::new("error-page"), |node, status| match status.parse::<u16>() {
                Ok(status) => node.word(status),
                Err(_) => node.text(status),
            });
            site.parts.others.push(match root {
                Some(root) => node.text(format!("file:{root}{page}")),
                None => node.text(page),
            });
        }
        Some(_) => notes.left(directive, "name each page: `error-page 404 \"/404.html\"`"),
        None if children.iter().all(is_text) && !children.iter().any(is_fixed) => {
            notes.needless(directive, "errors have a short page");
        }
        None => notes.left(directive, "`error-page` shows a file of the site"),
    }
}
