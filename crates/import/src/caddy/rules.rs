//! Directives that apply before handlers, and fixed responses.

use super::matcher::{routed, with_tests};
use super::placeholders::{self, TextPlace};
use super::site::{CaddySiteParts, Reach, Scope};
use super::{files, matcher, proxy};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{for_each, on_path, with_path};
use crate::pattern::ForeignPattern;

/// Translates a directive that does not answer requests itself.
pub(super) fn translate(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &mut Scope,
    notes: &mut Notes,
) {
    scope.is_rewritten |= matches!(directive.name.as_str(), "rewrite" | "uri" | "try_files");
    match directive.name.as_str() {
        "root" => root(site, directive, values, reach, scope, notes),
        "header" => header(site, directive, values, reach, scope, notes),
        "request_header" => request_header(site, directive, values, reach, scope, notes),
        "redir" => {
            redirect(site, directive, values, reach, scope, notes);
            if !reach.is_missing {
                scope.redirected.extend(Some(reach.condition(scope)).filter(|condition| !condition.is_empty()));
            }
        }
        "rewrite" => rewrite(site, directive, values, reach, scope, notes),
        "uri" => uri(site, directive, values, reach, scope, notes),
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
        "vars" | "map" => notes.left(directive, "there are no variables"),
        "log_append" | "log_name" | "intercept" | "timeouts" => notes.left(directive, "there is no counterpart"),
        "templates" | "method" | "fs" | "copy_response" | "copy_response_headers" => {
            site.parts.close(directive, &reach.paths, "there is no counterpart", notes);
        }
        // A directive of a plugin may guard what follows.
        _ => site.parts.close(directive, &reach.paths, "there is no such directive", notes),
    }
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
    let is_general = reach.paths.is_empty() || scope.paths.as_ref() == Some(&reach.paths);
    match is_general {
        true => scope.root = Some(root),
        false => scope.roots.push((reach.paths.clone(), root)),
    }
}

/// Adds redirects or rewrites for all paths of a directive.
fn add_redirects(
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

fn redirect(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &Scope,
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
    let target = values.first().map_or("", String::as_str);
    match placeholders::text(target, TextPlace::Target, site.host.as_deref()) {
        Ok(target) => {
            // Of a prefix that was removed, `{path}` has none here.
            if !scope.prefix.is_empty() && target.contains("{path}") {
                let why = "the target would have the prefix that was removed";
                return site.parts.close(directive, &reach.paths, why, notes);
            }
            let make =
                |pattern: Option<String>| on_path("redirect", pattern).text(&target).word_property("status", status);
            add_redirects(site, reach, scope, make);
        }
        Err(why) => site.parts.close(directive, &reach.paths, why, notes),
    }
}

fn rewrite(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &mut Scope,
    notes: &mut Notes,
) {
    let source = values.first().map_or("", String::as_str);
    let target = match placeholders::text(source, TextPlace::Target, site.host.as_deref()) {
        // A rewrite keeps the query unless it names one.
        Ok(target) => target.replace("{path}{query}", "{path}"),
        Err(why) => return site.parts.close(directive, &reach.paths, why, notes),
    };
    // A query alone keeps the path.
    let target = if target.starts_with('?') { format!("{{path}}{target}") } else { target };
    if target.starts_with("{path}?") && !target["{path}?".len()..].contains('?') {
        let make = |pattern: Option<String>| on_path("rewrite", pattern).text(&target);
        return add_redirects(site, reach, scope, make);
    }
    if let ([ForeignPattern::Prefix(prefix)], Some(front)) = (reach.paths.as_slice(), target.strip_suffix("{path}"))
        && !scope.prefix.is_empty()
        && scope.paths.as_deref() == Some(&reach.paths)
        && front.starts_with('/')
        && !front.contains(['{', '?'])
    {
        // Of a prefix that was removed: it is there until the request is forwarded, and the new one follows it.
        let kept = prefix.trim_end_matches('/');
        let expression = format!("~(?i)^{}(/.*)$", regex::escape(kept));
        let node = KdlNode::with("rewrite", expression).text(format!("{kept}{front}{{1}}"));
        site.parts.redirects.push(with_tests(node, &reach.tests_of_rule(scope)));
        return;
    }
    let Some(path) = target.strip_prefix('/') else {
        let why = "the target of `rewrite` must be a path";
        return match target.starts_with("{path}") && !target.contains('?') {
            true => {}
            false => site.parts.close(directive, &reach.paths, why, notes),
        };
    };
    let is_inside = scope.paths.is_some() || !scope.earlier.is_empty();
    let is_for_all = reach.paths.is_empty() || scope.paths.as_ref() == Some(&reach.paths);
    let fixed = path.split('{').next().unwrap_or_default().split('?').next().unwrap_or_default();
    let new = match target.contains('{') {
        false => ForeignPattern::Exact(format!("/{fixed}")),
        true => ForeignPattern::Prefix(format!("/{fixed}")),
    };
    let lower = matcher::path(&match &new {
        ForeignPattern::Prefix(path) => format!("{path}*"),
        other => other.head(),
    });
    let stays = scope.paths.as_ref().is_none_or(|paths| paths.iter().any(|path| path.covers(&lower)));
    if is_inside && !stays {
        if !is_for_all || !scope.prefix.is_empty() || new.is_all() {
            let why = "a rewrite leads out of its block";
            return site.parts.close(directive, &reach.paths, why, notes);
        }
        if let Some(text) = new.text() {
            site.parts.closed.push(KdlNode::with("internal", text));
        }
        scope.paths = Some(vec![lower]);
        scope.earlier.clear();
    }
    let make = |pattern: Option<String>| on_path("rewrite", pattern).text(&target);
    add_redirects(site, reach, scope, make);
}

fn uri(
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
    let is_of_block = scope.paths.as_ref() == Some(&reach.paths) && !reach.paths.is_empty();
    let is_below = |path: &ForeignPattern| path.head().starts_with(&prefix);
    match operation.as_str() {
        "strip_prefix" if is_of_block && reach.paths.iter().all(is_below) && scope.prefix.is_empty() => {
            scope.prefix = prefix;
        }
        "strip_prefix" if scope.prefix.is_empty() && scope.earlier.is_empty() => {
            let expression = format!("(?i)^{}(?:/(.*))?$", regex::escape(&prefix));
            let expression = ForeignPattern::Expression(expression);
            let is_whole = reach.paths.is_empty() || reach.paths.iter().any(is_below);
            if !is_whole || scope.paths.is_some() {
                return site.parts.close(directive, &reach.paths, "only a prefix of the path is removed", notes);
            }
            let reach = Reach { paths: vec![expression], tests: reach.tests.clone(), is_missing: false };
            let make = |pattern: Option<String>| on_path("rewrite", pattern).text("/{1}");
            add_redirects(site, &reach, scope, make);
        }
        _ => site.parts.close(directive, &reach.paths, "there is no counterpart", notes),
    }
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
    let (status, body) = match (directive.name.as_str(), values) {
        ("abort", _) => (403, None),
        ("error", [message, status]) => (status.parse().unwrap_or(500), Some(message.clone())),
        ("error", [value]) => (value.parse().unwrap_or(500), None),
        (_, [value]) => match value.parse::<u16>() {
            Ok(status) => (status, None),
            Err(_) => (200, Some(value.clone())),
        },
        (_, [body, status, ..]) => (status.parse().unwrap_or(200), Some(body.clone())),
        _ => (200, None),
    };
    let inner = directive.children().iter().find(|child| child.name == "body").map(|child| child.first().to_owned());
    let body = body.or(inner).filter(|_| directive.name == "respond");
    if reach.is_missing {
        site.parts.close(directive, &reach.paths, "a response has no condition on files", notes);
        return false;
    }
    let is_conditional = reach.tests != scope.tests;
    // The file that `try_files` shows in place of a missing one.
    let fallback = scope.tries.fallback.as_deref().map(str::to_ascii_lowercase);
    let has_fallback = fallback.is_some_and(|fallback| reach.paths.iter().any(|path| path.fits(&fallback)));
    if (is_conditional || has_fallback) && status >= 400 {
        // A rejection that cannot be told must apply, as only `deny` does.
        let tests = reach.tests_of_rule(scope);
        let paths = site.parts.protected(&reach.paths);
        site.parts.guards.extend(for_each(&paths, |pattern| {
            let node = with_tests(with_path(KdlNode::new("deny").word("all"), pattern), &tests);
            if status == 403 { node } else { node.word_property("status", status) }
        }));
        return false;
    }
    // Scripts to which other paths lead, later in Caddy's order, are not rejected. Paths that were rewritten before are.
    if directive.name == "error" && status >= 400 && !reach.paths.is_empty() && scope.paths.is_none() {
        let paths = site.parts.protected(&reach.paths);
        site.parts.guards.extend(for_each(&paths, |pattern| {
            let node = with_path(KdlNode::new("deny").word("all"), pattern);
            let node = if status == 403 { node } else { node.word_property("status", status) };
            let node = if scope.is_rewritten { node } else { node.word_property("internal", "on") };
            with_tests(node, &reach.tests)
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
    !is_conditional && (reach.paths.is_empty() || scope.paths.as_ref() == Some(&reach.paths))
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
    let patterns: Vec<Option<ForeignPattern>> = match reach.paths.as_slice() {
        [] => vec![None],
        paths => paths.iter().cloned().map(Some).collect(),
    };
    let is_outer = |(other, path, known): &(&str, Option<ForeignPattern>, String)| {
        let is_earlier = path.as_ref().is_some_and(|path| {
            scope.earlier.iter().any(|(earlier, _)| earlier.iter().any(|earlier| earlier.covers(path)))
        });
        let meets = match path {
            None => true,
            Some(path) => reach.paths.is_empty() || reach.paths.iter().any(|own| own.overlaps(path)),
        };
        *other == kind && known != key && meets && !is_earlier
    };
    if site.auths.iter().any(is_outer) {
        let why = "another rule of this kind has these paths, and only the first match counts";
        return site.parts.close(directive, &reach.paths, why, notes);
    }
    site.auths.extend(patterns.iter().map(|path| (kind, path.clone(), key.to_owned())));
    let tests = reach.tests_of_rule(scope);
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
    let page = directive
        .children()
        .iter()
        .find(|child| child.name == "rewrite")
        .map(|child| child.arguments.iter().rfind(|word| word.starts_with('/')).map_or("", String::as_str));
    let respond = directive.children().iter().all(|child| matches!(child.name.as_str(), "respond" | "header"));
    match page {
        Some(page) if page.starts_with('/') && !page.contains('{') => {
            let mut statuses = directive.arguments.clone();
            if statuses.is_empty() {
                statuses = vec!["4xx".to_owned(), "5xx".to_owned()];
            }
            let node = statuses.iter().fold(KdlNode::new("error-page"), |node, status| match status.parse::<u16>() {
                Ok(status) => node.word(status),
                Err(_) => node.text(status),
            });
            site.parts.others.push(node.text(page));
        }
        Some(_) => notes.left(directive, "name each page: `error-page 404 \"/404.html\"`"),
        None if respond => notes.needless(directive, "errors have a short page"),
        None => notes.left(directive, "`error-page` shows a file of the site"),
    }
}
