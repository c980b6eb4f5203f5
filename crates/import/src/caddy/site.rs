//! A site: walks through its directives in the order in which Caddy applies them.

use std::collections::{BTreeSet, HashMap};

use super::address::{CaddyListener, bound_to, listeners};
use super::matcher::{Matcher, MatcherScope, PRIVATE_RANGES, joined, of_fixed, routed, with_tests};
use super::scope::{Reach, Scope};
use super::{Shared, files, maps, matcher, order, proxy, rules, tls};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{SiteParts, for_each, on_path};
use crate::pattern::{ForeignPattern, quoted};

/// Maximum nesting of `handle` and `route`.
const DEPTH_MAX: usize = 16;

/// Beginning of paths to which only rewrites lead. A number follows.
pub(super) const OWN_PATH: &str = "/_";

/// Names, listeners and place of a site.
pub(super) struct SiteContext<'a> {
    pub(super) names: Vec<String>,
    /// Host of all requests, for matchers.
    pub(super) host: Option<String>,
    pub(super) listeners: &'a BTreeSet<CaddyListener>,
    pub(super) place: &'a Directive,
}

/// A site while it is translated.
pub(super) struct CaddySiteParts<'s, 'a> {
    pub(super) parts: SiteParts,
    pub(super) shared: &'s mut Shared<'a>,
    pub(super) host: Option<String>,
    pub(super) has_tls: bool,
    /// True if it has requests without TLS, too.
    has_both: bool,
    /// True if it listens at the usual ports only, which the field `Host` does not have.
    has_plain_host: bool,
    /// True if its certificate comes from Caddy's own authority.
    pub(super) is_internal: bool,
    /// Passwords that were required so far: paths and file.
    pub(super) auths: Vec<(&'static str, Option<ForeignPattern>, String)>,
    /// Header fields that only upstreams get: name in lower case, directive, and paths.
    pub(super) upstream_fields: Vec<(String, Directive, Vec<ForeignPattern>)>,
    /// True if the last handler has all requests without a file, also those for a directory.
    pub(super) has_rest_of_files: bool,
    /// Paths of guards so far.
    pub(super) guarded: Vec<ForeignPattern>,
    /// True if what no handler takes is rejected, or gets the front controller.
    pub(super) rejects_rest: bool,
    /// Number of the first path of its own: the Caddyfile names none from there on.
    own_first: usize,
    /// Number of blocks so far.
    blocks: usize,
}

/// Translates a site.
pub(super) fn translate(
    context: SiteContext<'_>,
    directives: &[Directive],
    shared: &mut Shared<'_>,
    notes: &mut Notes,
) -> KdlNode {
    let is_tls = |listener: &CaddyListener| matches!(listener, CaddyListener::Automatic | CaddyListener::Port(_, true));
    let has_tls = context.listeners.iter().any(is_tls);
    let is_internal = shared.options.has_local_certificates;
    let mut site = CaddySiteParts {
        parts: SiteParts { ignores_case: true, ..SiteParts::default() },
        shared,
        host: context.host.clone(),
        has_tls,
        has_both: has_tls && context.listeners.iter().any(|listener| !is_tls(listener)),
        has_plain_host: context.listeners.iter().all(CaddyListener::is_usual),
        is_internal,
        auths: Vec::new(),
        upstream_fields: Vec::new(),
        has_rest_of_files: false,
        guarded: Vec::new(),
        rejects_rest: false,
        own_first: first_own(directives),
        blocks: 0,
    };
    site.parts.names = context.names.iter().filter(|name| !name.is_empty()).cloned().collect();
    site.parts.rejections.extend(deeper_hosts(&site.parts.names));
    let mut has_certificate = false;
    for directive in directives.iter().filter(|directive| directive.name == "tls") {
        has_certificate |= tls::translate(directive, &mut site, notes);
    }
    let bound = bound_to(directives, site.shared);
    site.listen(&context, &bound, has_certificate, notes);
    let mut scope = Scope::default();
    let directives = &maps::replaced(directives, site.shared);
    let is_total = site.walk(directives, false, &mut scope, notes);
    let is_total = is_total || site.rejects_rest || site.parts.last.is_some();
    for (name, directive, paths) in std::mem::take(&mut site.upstream_fields) {
        let changed = Scope { changed: vec![name], ..Scope::default() };
        let mut handlers = site.parts.handlers.iter().chain(&site.parts.last);
        if handlers.any(|node| node.property_text("when").is_some_and(|test| changed.reads_field(&[test.to_owned()]))) {
            let why = "a matcher reads this field, which changes before handlers are chosen";
            site.parts.close(&directive, &paths, why, notes);
        }
    }
    if !is_total && !site.parts.files.iter().any(|node| node.name() == "root") {
        // Caddy answers with an empty response what no handler takes.
        site.parts.handlers.push(KdlNode::with("respond", "*").word(rest_status(&scope)));
    }
    if !site.parts.files.iter().any(|node| node.name() == "root") {
        let root = scope.root.unwrap_or_else(|| ".".to_owned());
        let is_page = |node: &KdlNode| node.name() == "error-page" && node.last_value().starts_with('/');
        let others = std::mem::take(&mut site.parts.others).into_iter();
        let page = |node: KdlNode| node.with_last_value(|page| format!("file:{root}{page}"));
        site.parts.others = others.map(|node| if is_page(&node) { page(node) } else { node }).collect();
    }
    if site.has_rest_of_files && site.parts.files.iter().any(|node| node.name() == "root") {
        site.parts.files.retain(|node| node.name() != "browse");
        site.parts.set_file_option(KdlNode::new("index"));
    }
    // The paths of rewrites end as those of other handlers may do.
    let own: Vec<&str> = site.parts.internal.iter().map(|node| node.first_value().trim_end_matches('*')).collect();
    site.parts.handlers.sort_by_key(|node| !own.iter().any(|path| node.pattern().contains(path)));
    for node in site.parts.handlers.iter_mut().filter(|node| node.name() == "files") {
        // Options of all files of the site are not those of these.
        for option in ["browse", "require-index", "fallback", "extensions"] {
            let has = |nodes: &[KdlNode]| nodes.iter().any(|other| other.name() == option);
            if has(&site.parts.files) && !has(&node.children) {
                node.children.push(KdlNode::new(option).word("off"));
            }
        }
    }
    let comment = [vec![context.place.place.to_string()], notes.unwritten()].concat().join("\n");
    site.parts.into_node(&comment)
}

impl CaddySiteParts<'_, '_> {
    fn listen(&mut self, context: &SiteContext<'_>, bound: &[String], has_certificate: bool, notes: &mut Notes) {
        let is_automatic = context.listeners.iter().all(|listener| *listener == CaddyListener::Automatic);
        let is_public = context.names.iter().all(|name| is_public(name)) && !self.is_internal;
        let mut add = |port: u16, has_tls: bool| {
            let nodes = listeners(bound, port).into_iter();
            self.parts.options.extend(nodes.map(|node| if has_tls { node.word_property("tls", "on") } else { node }));
        };
        if !is_automatic || !bound.is_empty() {
            for listener in context.listeners {
                match listener {
                    CaddyListener::Automatic => {
                        add(80, false);
                        add(443, true);
                    }
                    CaddyListener::Port(port, has_tls) => add(*port, *has_tls),
                }
            }
            if context.listeners.contains(&CaddyListener::Automatic) {
                self.parts.options.push(KdlNode::new("redirect-to-https"));
            }
        }
        if self.has_tls && !has_certificate && !is_public {
            let name = context.names.iter().find(|name| !name.is_empty()).map_or("default", String::as_str);
            let name = name.replace('*', "wildcard");
            let node =
                KdlNode::with("certificate", format!("tls/{name}.pem")).property("key", format!("tls/{name}.key"));
            let why = "there is no internal CA: put a certificate there, or use `automatic-certificates` with your CA";
            notes.left(context.place, why);
            self.parts.options.push(node.comment(why));
        }
    }

    /// Translates a block. Directives of a route are in their order. Returns `true` if it answers all requests that reach
    /// it.
    fn walk(&mut self, directives: &[Directive], is_route: bool, scope: &mut Scope, notes: &mut Notes) -> bool {
        let matchers = directives.iter().filter_map(|child| Some((child.name.strip_prefix('@')?, child)));
        scope.named.extend(matchers.map(|(name, directive)| (name.to_owned(), directive.clone())));
        let directives: Vec<Directive> = directives.iter().map(in_short).collect();
        let rest: Vec<&Directive> = directives.iter().filter(|child| !child.name.starts_with('@')).collect();
        let ordered = if is_route { rest } else { self.sorted(rest, scope) };
        self.blocks += 1;
        scope.block = self.blocks;
        let ordered = self.joined_routes(&ordered, scope, notes);
        self.walk_ordered(&ordered.iter().collect::<Vec<_>>(), scope, notes)
    }

    /// Directives in the order in which they apply.
    fn sorted<'d>(&self, mut directives: Vec<&'d Directive>, scope: &Scope) -> Vec<&'d Directive> {
        let matchers = self.matchers(scope);
        let matcher = |directive: &Directive| match has_no_matcher(directive) {
            true => Some(Matcher::default()),
            false => matchers.of(directive).ok().map(|(matcher, _)| matcher),
        };
        let found: HashMap<*const Directive, Option<Matcher>> =
            directives.iter().map(|directive| (std::ptr::from_ref(*directive), matcher(directive))).collect();
        let of = |directive: &Directive| found.get(&std::ptr::from_ref(directive)).and_then(Option::as_ref);
        let position = |directive: &Directive| order::position_in(&self.shared.options.order, &directive.name);
        directives.sort_by_key(|directive| position(directive));
        for same in directives.chunk_by_mut(|one, other| position(one) == position(other)) {
            order::sort(same, |one, other| order::compare(of(one), of(other)));
        }
        directives
    }

    fn matchers<'m>(&'m self, scope: &'m Scope) -> MatcherScope<'m> {
        MatcherScope {
            named: &scope.named,
            host: self.host.as_deref(),
            has_tls: (!self.has_both).then_some(self.has_tls),
            has_proxies: self.shared.options.has_proxies(),
            has_other_clients: self.shared.options.has_other_clients,
            is_of_guard: false,
            has_plain_host: self.has_plain_host,
        }
    }

    /// Translates directives in their order.
    fn walk_ordered(&mut self, directives: &[&Directive], scope: &mut Scope, notes: &mut Notes) -> bool {
        for (index, directive) in directives.iter().enumerate() {
            let rest = &directives[index + 1..];
            if matches!(directive.name.as_str(), "tls" | "bind") {
                continue;
            }
            let (reach, values) = match self.reach(directive, scope) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(why) => {
                    self.unknown_matcher(directive, scope, why, notes);
                    continue;
                }
            };
            // Rules for requests come before header fields change. Handlers come later, as with Caddy.
            let is_rule = order::position(&directive.name) < order::position("handle");
            if is_rule && scope.reads_changed(&reach, &reach.tests_of_rule(scope)) {
                match is_harmless(directive) {
                    true => notes.left(directive, rules::CHANGED),
                    false => self.parts.close(directive, &reach.paths, rules::CHANGED, notes),
                }
                continue;
            }
            if let Some(why) = files::misses(directive, values, &reach, scope) {
                self.parts.close(directive, &reach.paths, why, notes);
                continue;
            }
            let is_total = match directive.name.as_str() {
                "handle" | "handle_path" | "route" => self.handle(directive, reach, rest, scope, notes),
                "invoke" => {
                    let name = values.first().map_or("", String::as_str);
                    match self.shared.file.routes.get(name).cloned() {
                        Some(block) => self.handle(&invoked(directive, block), reach, rest, scope, notes),
                        None => {
                            self.parts.close(directive, &reach.paths, "there is no such route", notes);
                            reach.paths.is_empty()
                        }
                    }
                }
                name if order::position(name) >= order::position("abort") => {
                    let is_total = self.answer(directive, values, &reach, rest, scope, notes);
                    let condition = reach.condition(scope);
                    if name != "php_fastcgi" && !reach.is_missing && !condition.is_empty() {
                        // Rules that follow in a `route` do not apply to these requests.
                        scope.earlier.push((reach.paths.clone(), condition));
                    }
                    is_total
                }
                _ => {
                    rules::translate(self, directive, values, &reach, scope, notes);
                    false
                }
            };
            if is_total {
                return true;
            }
        }
        false
    }

    /// Requests of a directive within a scope, and its arguments. `Ok(None)` if there are none.
    pub(super) fn reach<'d>(
        &self,
        directive: &'d Directive,
        scope: &Scope,
    ) -> Result<Option<(Reach, &'d [String])>, String> {
        let (matcher, values) = match has_no_matcher(directive) {
            true => (Matcher::default(), directive.arguments.as_slice()),
            false => {
                let is_of_guard = is_guard(directive);
                MatcherScope { is_of_guard, ..self.matchers(scope) }.of(directive)?
            }
        };
        if matcher.never {
            return Ok(None);
        }
        if matcher.has_path_tests && !scope.prefix.is_empty() {
            return Err("a part of the path was removed before, which this condition cannot tell".to_owned());
        }
        let below = |paths: &[ForeignPattern]| {
            paths.iter().map(|path| of_fixed(&[path], path.below(&scope.prefix))).collect::<Vec<_>>()
        };
        let own = matcher.paths.as_deref().map(below);
        let paths = match (&scope.paths, own) {
            (None, own) => own.unwrap_or_default(),
            (Some(outer), None) => outer.clone(),
            (Some(outer), Some(own)) => {
                let fits = |paths: &[ForeignPattern], path: &String| paths.iter().any(|one| one.fits(path));
                if scope.fallback().is_some_and(|path| fits(&own, &path) && !fits(outer, &path)) {
                    return Err("`try_files` leads to its paths, out of their block".to_owned());
                }
                let paths = joined(outer, &own)?;
                if paths.is_empty() {
                    return Ok(None);
                }
                paths
            }
        };
        let paths = if paths.iter().any(ForeignPattern::is_all) { Vec::new() } else { paths };
        let mut tests = scope.tests.clone();
        tests.extend(matcher.tests());
        let groups = scope.groups.iter().cloned().chain(matcher.groups).collect();
        Ok(Some((Reach { paths, tests, is_missing: matcher.is_missing, groups }, values)))
    }

    /// Rejects requests of a rule or handler whose matcher cannot be translated.
    fn unknown_matcher(&mut self, directive: &Directive, scope: &Scope, why: String, notes: &mut Notes) {
        if is_harmless(directive) {
            return notes.left(directive, why);
        }
        let paths = scope.paths.clone().unwrap_or_default();
        self.parts.close(directive, &paths, why, notes);
    }

    /// `handle`, `handle_path` and `route`.
    fn handle(
        &mut self,
        directive: &Directive,
        mut reach: Reach,
        rest: &[&Directive],
        scope: &mut Scope,
        notes: &mut Notes,
    ) -> bool {
        let own = (directive.name == "handle_path").then(|| matcher::path(directive.first()).below(&scope.prefix));
        if matches!(own, Some(ForeignPattern::Exact(_))) {
            // Nothing is left of one path.
            return self.handle(&without_path(directive), reach, rest, scope, notes);
        }
        let is_route = directive.name == "route";
        let has_conditions = reach.tests != scope.tests;
        if !is_route {
            // Of several `handle`, the first is for a request, also if it leaves it to later handlers.
            let taken = scope.taken.iter().filter(|(paths, _)| reach.meets_any(paths));
            let taken: Vec<String> = taken.map(|(_, condition)| condition.clone()).collect();
            if taken.iter().any(String::is_empty) {
                return false;
            }
            reach.tests.extend(taken.iter().map(|condition| format!("not ({condition})")));
        }
        if scope.depth == DEPTH_MAX || reach.is_missing {
            let why =
                if reach.is_missing { "a block has no condition on files" } else { "blocks are nested too deeply" };
            self.parts.close(directive, &reach.paths, why, notes);
            return reach.paths.is_empty();
        }
        let mut inside = scope.clone();
        if directive.name == "handle_path" {
            match (own, reach.paths.as_slice()) {
                // The block around it has one path of them, or those below a longer prefix.
                (Some(ForeignPattern::Prefix(prefix)), [ForeignPattern::Exact(_) | ForeignPattern::Prefix(_)]) => {
                    inside.prefix = prefix.trim_end_matches('/').to_owned();
                }
                _ => {
                    self.parts.close(directive, &reach.paths, "only one prefix of a path is removed", notes);
                    return reach.paths.is_empty();
                }
            }
        }
        inside.has_later |= has_handlers(rest);
        let has_later = inside.has_later;
        let (is_total, inside) = self.handle_block(directive.children(), is_route, &reach, inside, notes);
        let is_for_all = reach.paths.is_empty() && reach.tests == scope.tests;
        let is_whole = reach.tests == scope.tests && reach.has_all_paths(scope);
        let condition = reach.condition(scope);
        if !is_total && has_later {
            scope.is_rewritten |= inside.is_rewritten;
            scope.changed.extend(inside.changed.iter().skip(scope.changed.len()).cloned());
            let known = scope.changed_queries.len();
            scope.changed_queries.extend(inside.changed_queries.iter().skip(known).cloned());
            if !is_whole {
                scope.rewrites.extend(inside.rewrites.iter().skip(scope.rewrites.len()).cloned());
            }
            let is_handle = |next: &&Directive| matches!(next.name.as_str(), "handle" | "handle_path");
            // A condition that cannot be told must not lead around the other blocks.
            let is_vague = !is_route && has_conditions && rest.iter().any(is_handle);
            if is_whole {
                scope.follow(inside);
            } else if is_vague || inside.changes(scope) {
                let why = "requests that it leaves to later handlers have another path or root then, or a condition";
                let comment = notes.rejected(directive, why);
                let node = |pattern| with_tests(on_path("respond", pattern).word(403), &inside.tests);
                let nodes = for_each(&routed(inside.paths.as_deref().unwrap_or_default()), node);
                self.parts.handlers.extend(nodes.into_iter().map(|node| node.comment(comment.clone())));
            }
            if is_vague {
                scope.earlier.push((reach.paths, condition));
                return false;
            }
            if !is_route {
                scope.taken.push((reach.paths, if is_whole { String::new() } else { condition }));
            }
            return false;
        }
        if is_route {
            if is_total && !condition.is_empty() {
                scope.earlier.push((reach.paths.clone(), condition));
            }
            return is_total && is_for_all;
        }
        scope.earlier.push((reach.paths, condition));
        is_whole
    }

    /// Content of a `handle` or `route`. Returns `true` if it answers all requests that reach it, and their scope after it.
    fn handle_block(
        &mut self,
        block: &[Directive],
        is_route: bool,
        reach: &Reach,
        mut inside: Scope,
        notes: &mut Notes,
    ) -> (bool, Scope) {
        inside.depth += 1;
        inside.paths = (!reach.paths.is_empty()).then(|| reach.paths.clone());
        inside.tests = reach.tests.clone();
        inside.groups.clone_from(&reach.groups);
        inside.taken.clear();
        inside.has_own_root = false;
        inside.root_matcher = None;
        inside.has_other_roots = false;
        inside.outer_roots = inside.roots.len();
        let is_total = self.walk(block, is_route, &mut inside, notes);
        if !is_total && !is_route && !inside.has_later {
            let paths = inside.paths.clone().unwrap_or_default();
            let reach = Reach { paths, tests: inside.tests.clone(), is_missing: false, groups: Vec::new() };
            self.seal(&reach, rest_status(&inside));
        }
        (is_total, inside)
    }

    /// Begin of paths to which only the translation leads, below a prefix.
    pub(super) fn own_path(&mut self, below: &str) -> String {
        let path = format!("{below}{OWN_PATH}{}", self.own_first + self.parts.internal.len());
        self.parts.internal.push(KdlNode::with("internal", format!("{path}/*")));
        path
    }

    /// Keeps requests from later handlers.
    pub(super) fn seal(&mut self, reach: &Reach, status: u16) {
        let has_root = self.parts.files.iter().any(|node| node.name() == "root");
        if reach.paths.is_empty() && reach.tests.is_empty() && has_root {
            return;
        }
        let node = |pattern| with_tests(on_path("respond", pattern).word(status), &reach.tests);
        self.parts.handlers.extend(for_each(&routed(&reach.paths), node));
    }

    /// Metrics, which must have a rule for their clients.
    fn add_metrics(&mut self, path: &str, directive: &Directive, notes: &mut Notes) {
        self.parts.handlers.push(KdlNode::with("metrics", path));
        let ranges = PRIVATE_RANGES.iter().map(|range| KdlNode::with("allow", *range));
        let rules = ranges.chain([KdlNode::new("deny").word("all")]);
        self.parts.guards.extend(rules.map(|rule| rule.property("path", path)));
        notes.left(directive, "only clients of private networks get metrics; `allow` others");
    }

    /// A directive that answers requests. Returns `true` if it answers all that reach it.
    fn answer(
        &mut self,
        directive: &Directive,
        values: &[String],
        reach: &Reach,
        rest: &[&Directive],
        scope: &mut Scope,
        notes: &mut Notes,
    ) -> bool {
        if matches!(directive.name.as_str(), "respond" | "error" | "abort") {
            return rules::respond(self, directive, values, reach, scope, notes);
        }
        if reach.is_missing && !(directive.name == "reverse_proxy" && reach.paths.is_empty() && reach.tests.is_empty())
        {
            self.parts.close(directive, &reach.paths, "a handler has no condition on files", notes);
            return false;
        }
        match directive.name.as_str() {
            "reverse_proxy" => proxy::reverse_proxy(self, directive, values, reach, scope, notes),
            "php_fastcgi" => {
                files::php(self, directive, values, reach, scope, rest, notes);
                false
            }
            "file_server" => {
                files::file_server(self, directive, values, reach, scope, notes);
                true
            }
            "metrics" => {
                let is_first = reach.tests.is_empty() && self.parts.handlers.is_empty();
                match reach.paths.is_empty() {
                    true if is_first => {
                        // All paths have them.
                        self.parts.redirects.push(KdlNode::with("rewrite", "*").text("/metrics"));
                        self.add_metrics("/metrics", directive, notes);
                    }
                    true => notes.left(directive, "`metrics` has one path"),
                    false => {}
                }
                for path in &reach.paths {
                    match path {
                        ForeignPattern::Exact(path) => self.add_metrics(path, directive, notes),
                        _ => notes.left(directive, "`metrics` has one path"),
                    }
                }
                return reach.paths.is_empty();
            }
            _ => {
                self.parts.close(directive, &reach.paths, "there is no such handler", notes);
                true
            }
        };
        reach.has_all_paths(scope) && reach.tests == scope.tests && directive.name != "php_fastcgi" && !reach.is_missing
    }
}

/// Returns `true` for a directive without which no more is open.
fn is_harmless(directive: &Directive) -> bool {
    matches!(
        directive.name.as_str(),
        "header"
            | "request_header"
            | "encode"
            | "log_skip"
            | "skip_log"
            | "log_append"
            | "push"
            | "vars"
            | "request_body"
    )
}

/// Returns `true` for a directive that applies also if its condition cannot be told, or that changes only fields.
fn is_guard(directive: &Directive) -> bool {
    let is_auth = matches!(directive.name.as_str(), "basic_auth" | "basicauth" | "forward_auth");
    let values = directive.arguments.get(1..).unwrap_or_default();
    is_auth || is_harmless(directive) || rules::rejects(directive, values)
}

/// Returns `true` if the first argument is no matcher.
pub(super) fn has_no_matcher(directive: &Directive) -> bool {
    let name = directive.name.as_str();
    // One argument of `root` is a directory, and that of `rewrite` a target.
    matches!(name, "log" | "handle_errors" | "import" | "vars" | "map" | "tracing" | "try_files")
        || (matches!(name, "root" | "rewrite" | "fs") && directive.arguments.len() == 1)
}

/// A `handle` in place of a `handle_path` for one path: its requests have the path `/`, before anything else applies.
fn without_path(directive: &Directive) -> Directive {
    let part = |name: &str, arguments: &[&str], block: Option<Vec<Directive>>| Directive {
        name: name.to_owned(),
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        block,
        ..directive.clone()
    };
    let inside = part("handle", &[], directive.block.clone());
    let route = part("route", &[], Some(vec![part("rewrite", &["*", "/"], None), inside]));
    Directive { name: "handle".to_owned(), block: Some(vec![route]), ..directive.clone() }
}

/// A `route` in place of an `invoke`: of its only block, the directives apply in Caddy's order.
fn invoked(directive: &Directive, block: Vec<Directive>) -> Directive {
    let inside =
        Directive { name: "handle".to_owned(), arguments: Vec::new(), block: Some(block), ..directive.clone() };
    Directive { name: "route".to_owned(), block: Some(vec![inside]), ..directive.clone() }
}

/// First number that no path of the Caddyfile has after [`OWN_PATH`].
fn first_own(directives: &[Directive]) -> usize {
    let of_text = |text: &String| {
        let numbers = text.split(OWN_PATH).skip(1);
        let numbers = numbers.filter_map(|rest| rest.split(|one: char| !one.is_ascii_digit()).next()?.parse().ok());
        numbers.max().unwrap_or(0)
    };
    let of_one = |directive: &Directive| {
        let own = directive.arguments.iter().map(of_text).max().unwrap_or(0);
        own.max(first_own(directive.children()) - 1)
    };
    directives.iter().map(of_one).max().unwrap_or(0) + 1
}

/// Returns `true` if there is a handler after those of `handle`.
fn has_handlers(directives: &[&Directive]) -> bool {
    directives.iter().any(|directive| order::position(&directive.name) >= order::position("route"))
}

/// Status of requests that no handler takes.
fn rest_status(scope: &Scope) -> u16 {
    if scope.tries.is_strict { 404 } else { 200 }
}

/// A directive, or the shorter one that it is written out of.
fn in_short(directive: &Directive) -> Directive {
    let short = (directive.name == "reverse_proxy").then(|| proxy::written_out(directive)).flatten();
    short.unwrap_or_else(|| directive.clone())
}

/// A rejection of hosts with more labels than the names of a site have: there, a star is one label.
fn deeper_hosts(names: &[String]) -> Option<KdlNode> {
    let (stars, others): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| name.starts_with("*."));
    let deeper = |name: &&String| format!("host matches {}", quoted(&format!(r".\..+{}$", regex::escape(&name[1..]))));
    let mut condition = stars.iter().map(deeper).collect::<Vec<_>>().join(" or ");
    if !others.is_empty() {
        let others: Vec<String> = others.iter().map(|name| quoted(name)).collect();
        condition = format!("({condition}) and host not in ({})", others.join(", "));
    }
    (!stars.is_empty()).then(|| KdlNode::new("deny").word("all").property("when", condition))
}

/// Returns `true` for a name for which a public CA issues certificates.
fn is_public(name: &str) -> bool {
    let is_address = name.parse::<std::net::IpAddr>().is_ok();
    let is_local = ["localhost", "local", "internal", "home.arpa", "test", "lan", "home"]
        .iter()
        .any(|end| name == *end || name.ends_with(&format!(".{end}")));
    name.contains('.') && !is_address && !is_local
}
