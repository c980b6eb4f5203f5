//! `location`: handlers for a part of a site, and what holds there.

use super::condition::{PropertyTest, answer_path};
use super::files::{DirectoryOptions, FilesBlock, FilesPart, HandlerFallback, Last, MissingRewrites, Tries};
use super::matching::LocationMatch;
use super::precedence::ServerLocation;
use super::rewrite::{self, redirect};
use super::scene::Scene;
use super::settings::{DirectiveContext, DirectiveLevel, ImportedRules};
use super::syntax::NginxDirective;
use super::upstream::set;
use super::{Chain, Notes, auth_request, condition, forward, guard, leading};
use crate::kdl::KdlNode;

/// Reason why something has no target.
const SENT_ON: &str = "what it leads to would be sent elsewhere once more";

/// Reason why missing files are not told apart.
pub(super) const FORWARDED: &str = "no file is looked for before requests are forwarded, nor at another place";

/// Translation of a server's locations.
#[derive(Default)]
pub(super) struct LocationParts {
    pub(super) rules: ImportedRules,
    /// Handlers in the order in which they are tried.
    pub(super) handlers: Vec<PartHandler>,
    /// The handler that has what all others decline.
    pub(super) last: Option<KdlNode>,
    /// True if files below the site's own root are served.
    pub(super) has_files: bool,
    /// The script that answers what is no file.
    pub(super) front_controller: Option<String>,
    /// True if rewrites of other paths go before it.
    pub(super) is_front_rewritten: bool,
    /// Index files of the directories of paths that are no location's.
    pub(super) index: Vec<String>,
}

/// A handler of a part of a site.
pub(super) enum PartHandler {
    Node(LocationMatch, KdlNode),
    Files(FilesPart),
    /// A handler that leaves some of its paths to those that follow, which nginx does not.
    Scripts {
        location: LocationMatch,
        node: KdlNode,
        /// The paths of its `try_files`, to one of which missing scripts lead.
        tried: Vec<String>,
    },
}

impl PartHandler {
    fn location(&self) -> &LocationMatch {
        match self {
            Self::Node(location, _) | Self::Scripts { location, .. } => location,
            Self::Files(part) => &part.location,
        }
    }
}

impl LocationParts {
    /// Translates the block of a location.
    pub(super) fn add(&mut self, scene: Scene<'_>, block: &[NginxDirective], notes: &mut Notes) {
        let Scene { location, chain, shared, .. } = scene;
        if auth_request::is_asked_only(location.prefix(), block, scene.server) {
            let node = KdlNode::new("deny").word("all");
            let node = location.pattern().iter().fold(node, |node, pattern| node.property("path", pattern));
            self.rules.closed.push(node.word_property("status", 404).word_property("internal", "on"));
            return;
        }
        if let Some(named) = error_location(scene, block) {
            let scene = Scene { chain: chain.with(named), ..scene };
            return self.add(scene, named, notes);
        }
        let pass = forward::pass(block);
        let level = DirectiveLevel::Location { pattern: location.pattern(), is_forwarded: pass.is_some() };
        let mut rules = ImportedRules::default();
        let mut files = FilesBlock::default();
        // Paths that all clients are denied need no handler.
        let lets_in = block.iter().any(|child| child.name == "allow") || chain.last("satisfy").is_some();
        let is_internal = block.iter().any(|child| child.name == "internal");
        let is_page = is_internal && guard::is_led_to(location, scene.server);
        let mut is_answered = pass.is_none() && (is_page || !is_of_files(block)) && !lets_in;
        for child in block {
            if auth_request::is_part(chain, child, scene.server) {
                continue;
            }
            if child.name == "internal" {
                guard::internal(&mut rules, child, location, scene.server, notes);
                continue;
            }
            if self.add_answer(child, scene, notes) {
                is_answered = true;
                continue;
            }
            if condition::rejects_missing(child) && pass.is_some_and(|pass| pass.name != "fastcgi_pass") {
                rules.close(child, &level, FORWARDED, notes);
                continue;
            }
            let known = files.add(child, location)
                || is_of_handler(child)
                || forward::is_option(child, notes)
                || rewrite::stripped_prefix(child, location).is_some()
                || leading::reject_further(child, scene, &level, &mut rules, notes)
                || rules.add(child, DirectiveContext { level: &level, shared }, notes);
            if !known {
                notes.unknown(child);
            }
        }
        let is_exact = matches!(location, LocationMatch::Exact(_));
        let is_redirect = |node: &KdlNode| {
            let leads_away = node.name() == "redirect"
                || (node.name() == "rewrite" && is_exact && !node.last_value().starts_with('{'));
            leads_away && location.pattern().is_some_and(|pattern| node.is_rule_of(&pattern))
        };
        let is_redirected = rules.redirects.iter().any(is_redirect);
        let needs_files =
            pass.is_none() && !is_answered && !is_redirected && !is_left_to_others(location, block, scene);
        if let Some((directive, why)) = files.elsewhere {
            match needs_files {
                true => self.reject(directive, location, why, notes),
                false => notes.left(directive, why),
            }
        }
        if let Some(pass) = pass {
            self.add_pass(pass, scene, notes);
            rules.redirects.extend(slash_redirect(scene));
            rules.redirects.extend(forward::replaced_prefix(pass, scene));
            rules.fields.extend(forward::fields(chain, &level, shared, notes));
        } else if needs_files && files.elsewhere.is_none() {
            files.options = std::mem::take(&mut rules.files);
            let stripped = |child| Some((child, rewrite::stripped_prefix(child, location)?));
            match block.iter().find_map(stripped) {
                Some((rewrite, _)) if files.is_below_alias(scene) => {
                    self.reject(rewrite, location, "an `alias` removes a prefix from the path, too", notes);
                }
                Some((rewrite, prefix)) => {
                    leading::reject_stripped_index(rewrite, prefix, scene, &mut rules, notes);
                    files.options.push(KdlNode::with("strip-prefix", prefix));
                    self.add_files(files, scene, notes);
                }
                None => self.add_files(files, scene, notes),
            }
        }
        for child in block.iter().filter(|child| is_guard_of_own_paths(child)) {
            if let Some(other) = scene.claimed_without(child) {
                notes.left(child, format!("it also holds for paths of `{}`", other.directive.line()));
            }
        }
        self.keep_apart(scene, block, &mut rules);
        self.take(rules, notes);
    }

    /// Keeps away what wider locations say of redirects and of `Cache-Control`: nginx takes what one location says.
    fn keep_apart(&self, scene: Scene<'_>, block: &[NginxDirective], rules: &mut ImportedRules) {
        let Some(pattern) = scene.location.pattern() else { return };
        let mut wider = scene.wider.iter().filter(|other| other.location.overlaps(scene.location));
        // Other directives have URLs, too, such as `proxy_pass`.
        let is_redirected = block.iter().any(|child| child.name == "return" && redirect(child, "*").is_some())
            || rules.redirects.iter().any(|node| node.is_rule_of(&pattern));
        let is_led_away =
            |other: &ServerLocation<'_>| leading::reaches(other.directive.children(), &scene.location.head());
        if !is_redirected && wider.clone().any(is_led_away) {
            rules.redirects.push(KdlNode::with("rewrite", &pattern).text("{path}"));
        }
        let is_single = matches!(scene.location, LocationMatch::Exact(_));
        let is_kept = |other: &ServerLocation<'_>| {
            let block = other.directive.children();
            (other.location.prefix().is_some() || is_single) && is_of_files(block) && says_age(block)
        };
        let said = scene.chain.last("expires").is_some_and(|expires| expires.first() != "off")
            || scene.chain.all("add_header").into_iter().any(is_age);
        let is_said_around = scene.chain.blocks[..2].iter().any(|block| says_age(block));
        if is_of_files(block) && !said && (is_said_around || wider.any(is_kept)) {
            rules.fields.push(KdlNode::with("cache-control", pattern).text(""));
        }
    }

    /// Takes all handlers. No handler gets a request between them and their files unless nginx would give it one.
    pub(super) fn take_handlers(&mut self, root: Option<&str>, notes: &mut Notes) -> Vec<KdlNode> {
        let has_option = |name| self.rules.files.iter().any(|option| option.name() == name);
        let (has_fallback, has_extensions) = (has_option("fallback"), has_option("extensions"));
        let root = root.filter(|_| self.has_files);
        let has_last = self.last.is_some();
        let front_controller = self.front_controller.as_deref();
        let mut groups: Vec<Vec<KdlNode>> = Vec::new();
        let mut later: Vec<LaterHandler> = Vec::new();
        let mut redirects = std::mem::take(&mut self.rules.redirects);
        let mut rewrites = MissingRewrites::after(&mut redirects);
        // From the last to the first, so that the next handler is known.
        for handler in std::mem::take(&mut self.handlers).into_iter().rev() {
            let location = handler.location().clone();
            let target = match &handler {
                PartHandler::Files(part) => part.missing.as_ref().map(|(_, rewrite)| rewrite.last_value().to_owned()),
                _ => None,
            };
            let is_sent_on = is_rewritten_if_missing(rewrites.redirects(), &location, target.as_deref());
            let own = LaterHandler::of(&handler);
            // One that does the same with what this one lacks changes nothing.
            let is_other = |other: &&LaterHandler| {
                let is_same = own.plain.is_some() && other.plain == own.plain;
                other.location.overlaps(&location) && !is_same
            };
            let others: Vec<&LaterHandler> = later.iter().filter(is_other).collect();
            // Handlers that lack the same files lead on, and scripts are kept apart by their paths.
            let leads_on = |other: &&LaterHandler| match (&own.plain, &other.plain) {
                (Some((root, _)), Some((same, _))) => root == same,
                (own, _) => own.is_some() && other.scripts.is_some(),
            };
            // Its own rewrite goes before that of a wider location.
            let has_handler = has_last || (is_sent_on && own.plain.is_none()) || !others.iter().all(leads_on);
            let scripts = others.iter().filter_map(|other| other.scripts.clone()).collect();
            let nodes = match handler {
                PartHandler::Node(_, node) => vec![node],
                PartHandler::Scripts { location, node, tried } => {
                    let name = front_controller.map(|script| script.split(['?', '{']).next().unwrap_or_default());
                    let is_led_to_front = name.is_some_and(|script| tried.iter().any(|path| path == script));
                    // A directory, or a file that is no script, is one of the root here.
                    let is_of_root = self.has_files && !is_of_script_names(&location);
                    let is_claimed =
                        has_handler || has_fallback || is_of_root || (front_controller.is_some() && !is_led_to_front);
                    let pattern = location.pattern().filter(|_| is_claimed);
                    let missing = pattern.map(|pattern| KdlNode::with("respond", pattern).word(404));
                    [node].into_iter().chain(missing).collect()
                }
                PartHandler::Files(part) => {
                    let later =
                        HandlerFallback { root, has_fallback, has_extensions, has_handler, scripts, front_controller };
                    part.into_nodes(later, &mut rewrites, notes)
                }
            };
            if !nodes.is_empty() {
                later.push(own);
            }
            groups.push(nodes);
        }
        self.is_front_rewritten = rewrites.finish();
        self.rules.redirects = redirects;
        let answers = self.rules.answers.iter().map(|status| answer(*status));
        answers.chain(groups.into_iter().rev().flatten()).collect()
    }

    /// Lines of an inner location go before those of outer ones if the first match counts, and after them if the last
    /// does.
    fn take(&mut self, rules: ImportedRules, notes: &mut Notes) {
        self.rules.closed.extend(rules.closed);
        self.rules.fixed.extend(rules.fixed);
        self.rules.answers.extend(rules.answers);
        self.rules.guards.extend(rules.guards);
        self.rules.redirects.extend(rules.redirects);
        self.rules.fields.splice(0..0, rules.fields);
        self.rules.others.extend(rules.others);
        if let Some(log) = rules.access_log {
            self.rules.add_access_log(log, notes);
        }
    }

    fn add_pass(&mut self, pass: &NginxDirective, scene: Scene<'_>, notes: &mut Notes) {
        if pass.name == "fastcgi_pass" {
            // Only some of its paths may continue after the script's name.
            for location in &scene.location.branches_of_scripts() {
                self.add_one_pass(pass, Scene { location, ..scene }, notes);
            }
            return;
        }
        self.add_one_pass(pass, scene, notes);
    }

    fn add_one_pass(&mut self, pass: &NginxDirective, scene: Scene<'_>, notes: &mut Notes) {
        let location = scene.location.clone();
        if let Some((choices, default)) = forward::choices(pass, scene.chain.blocks[0]) {
            let to = |url: String| NginxDirective { arguments: vec![url], ..pass.clone() };
            for (url, condition) in choices {
                match forward::handler(&to(url), scene, notes) {
                    Ok(node) => {
                        let is_for_all = location.pattern().is_none();
                        let node = if is_for_all { node.property("path", "*") } else { node };
                        self.handlers.push(PartHandler::Node(location.clone(), node.property("when", condition)));
                    }
                    Err(why) => return self.reject(pass, scene.location, why, notes),
                }
            }
            return self.add_one_pass(&to(default), scene, notes);
        }
        match forward::handler(pass, scene, notes) {
            Ok(node) if node.name() == "forward" && location.pattern().is_none() => self.last = Some(node),
            Ok(node) if node.name() == "fastcgi" && location.pattern().is_some() => {
                let tries = scene.block().iter().find(|child| child.name == "try_files");
                let paths = tries.map(|tries| tries.arguments.as_slice()).unwrap_or_default();
                let tried = paths.iter().map(|path| path.split(['?', '$']).next().unwrap_or_default().to_owned());
                self.handlers.push(PartHandler::Scripts { location, node, tried: tried.collect() });
            }
            Ok(node) => self.handlers.push(PartHandler::Node(location, node)),
            Err(why) => self.reject(pass, scene.location, why, notes),
        }
    }

    /// No handler answers if nginx's cannot be translated; other handlers must not get these paths.
    fn reject(
        &mut self,
        directive: &NginxDirective,
        location: &LocationMatch,
        why: impl Into<String>,
        notes: &mut Notes,
    ) {
        let node = KdlNode::with("respond", location.pattern().as_deref().unwrap_or("*")).word(502);
        self.handlers.push(PartHandler::Node(location.clone(), node.comment(notes.rejected(directive, why))));
    }

    /// Translates a directive that answers all requests: `return`, and handlers that only nginx has.
    fn add_answer(&mut self, directive: &NginxDirective, scene: Scene<'_>, notes: &mut Notes) -> bool {
        let Scene { location, chain, .. } = scene;
        if forward::is_foreign(&directive.name) {
            self.reject(directive, location, "there is no such handler", notes);
            return true;
        }
        if directive.name == "stub_status" {
            self.add_status(directive, location, notes);
            return true;
        }
        if directive.name != "return" {
            return false;
        }
        let pattern = location.pattern();
        let pattern = pattern.as_deref().unwrap_or("*");
        match redirect(directive, pattern) {
            Some(Ok(node)) => self.rules.redirects.push(node),
            Some(Err(why)) => self.reject(directive, location, why, notes),
            None => match respond(directive, pattern, chain) {
                Ok(node) => self.handlers.push(PartHandler::Node(location.clone(), node)),
                Err(why) => self.reject(directive, location, why, notes),
            },
        }
        true
    }

    /// The status page, which has more than `stub_status`, in another form. It has one path; nginx answers for all below.
    fn add_status(&mut self, directive: &NginxDirective, location: &LocationMatch, notes: &mut Notes) {
        let Some(path) = location.prefix().filter(|path| *path != "/") else {
            return self.reject(directive, location, "`status-page` needs a path", notes);
        };
        let comment = format!("{}: stub_status: a page; for data as JSON, read {path}?json", directive.place);
        let page = KdlNode::with("status-page", path).comment(comment);
        self.handlers.push(PartHandler::Node(location.clone(), page));
        if let Some(pattern) = location.pattern().filter(|_| location.is_prefix()) {
            let rest = KdlNode::with("respond", pattern).word(404);
            self.handlers.push(PartHandler::Node(location.clone(), rest));
        }
    }

    fn add_files(&mut self, files: FilesBlock<'_>, scene: Scene<'_>, notes: &mut Notes) {
        let tries = files.tries.map(|tries| Tries::read(tries, notes)).unwrap_or_default();
        match scene.location.pattern() {
            None => self.add_site_files(files, tries, scene, notes),
            Some(pattern) => self.add_part(files, tries, pattern, scene, notes),
        }
    }

    /// The files of all paths that are no location's.
    fn add_site_files(&mut self, files: FilesBlock<'_>, tries: Tries, scene: Scene<'_>, notes: &mut Notes) {
        self.has_files |= tries.has_files;
        if tries.is_html_added {
            set(&mut self.rules.files, KdlNode::with("extensions", "html"));
        }
        if let Some(path) = tries.fallback {
            set(&mut self.rules.files, KdlNode::with("fallback", path));
        }
        match tries.last {
            Last::Nothing => {}
            Last::File(path) | Last::Script(path) if leading::is_sent_on(&path, scene) => {
                self.reject_missing(files.tries, scene.location, SENT_ON, notes);
            }
            Last::File(path) => set(&mut self.rules.files, KdlNode::with("fallback", path)),
            Last::Script(path) => self.front_controller = Some(path),
            Last::Named(name) => self.add_named(&name, files.tries, scene, notes),
        }
        for option in files.options.into_iter().chain(scene.directories.options(None)) {
            set(&mut self.rules.files, option);
        }
        if let Some(root) = files.root {
            self.rules.files.insert(0, KdlNode::with("root", root));
        }
    }

    fn add_part(
        &mut self,
        files: FilesBlock<'_>,
        mut tries: Tries,
        pattern: String,
        scene: Scene<'_>,
        notes: &mut Notes,
    ) {
        let FilesBlock { root, alias: own_alias, mut options, tries: directive, elsewhere: _ } = files;
        let own = DirectoryOptions::of(scene.chain, &tries);
        options.extend(own.options(Some(scene.directories)));
        options.extend(tries.is_html_added.then(|| KdlNode::with("extensions", "html")));
        let alias = own_alias.or_else(|| scene.alias_around().filter(|_| root.is_none()));
        let stripped = alias.as_ref().and_then(|(_, prefix)| prefix.clone());
        let own_root = root.map(str::to_owned).or(alias.map(|(root, _)| root));
        let fallback = |path: &str| {
            let path = stripped.as_deref().and_then(|prefix| path.strip_prefix(prefix)).unwrap_or(path);
            KdlNode::with("fallback", path)
        };
        options.extend(tries.fallback.as_deref().map(fallback));
        let mut missing = None;
        let (mut has_successor, mut is_rejected) = (false, false);
        if let Last::Named(name) = &tries.last
            && let Some(path) = scene.path_of_named(name)
        {
            tries.last = Last::Script(path.to_owned());
        }
        match &tries.last {
            Last::Nothing => {}
            Last::File(path) | Last::Script(path) if leading::is_sent_on(path, scene) => {
                (has_successor, is_rejected) = (true, true);
            }
            Last::File(path) if scene.has(path) => options.push(fallback(path)),
            Last::File(path) | Last::Script(path) => {
                let rewrite = KdlNode::with("rewrite", &pattern).text(path).word_property("missing", "on");
                missing = directive.cloned().zip(Some(rewrite));
            }
            Last::Named(_) => has_successor = true,
        }
        options.extend(stripped.map(|prefix| KdlNode::with("strip-prefix", prefix)));
        if let Some(directive) = scene.with_index_of_others(&own) {
            let why = "other locations decide who gets the directory's files";
            return self.reject(directive, scene.location, why, notes);
        }
        let is_own = own_root.is_some() || !options.is_empty() || has_successor;
        let around = scene.chain.last("root").map(|root| root.first().to_owned());
        let root = own_root.or(around).filter(|root| tries.has_files && !root.contains('$'));
        self.handlers.push(PartHandler::Files(FilesPart {
            location: scene.location.clone(),
            pattern,
            root,
            is_own,
            options,
            has_successor,
            missing,
        }));
        if is_rejected {
            self.reject_missing(directive, scene.location, SENT_ON, notes);
        }
        if let Last::Named(name) = tries.last {
            self.add_named(&name, directive, scene, notes);
        }
    }

    /// The handler of a location with a name, in the place of another.
    fn add_named(&mut self, name: &str, tries: Option<&NginxDirective>, scene: Scene<'_>, notes: &mut Notes) {
        let Some(ServerLocation { directive, .. }) = scene.named(name) else { return };
        let block = directive.children();
        let inside = Scene { chain: scene.chain.with(block), ..scene };
        let is_guarded = guard::is_guarded(block);
        match forward::pass(block).filter(|_| !is_guarded) {
            Some(pass) => {
                self.add_pass(pass, inside, notes);
                let level = DirectiveLevel::Location { pattern: scene.location.pattern(), is_forwarded: true };
                let fields = forward::fields(inside.chain, &level, scene.shared, notes);
                self.rules.fields.splice(0..0, fields);
            }
            // A rewrite to a script is what such a location mostly is.
            None => match scene.path_of_named(name) {
                Some(path) if scene.location.pattern().is_none() => self.front_controller = Some(path.to_owned()),
                _ => {
                    let why = "only a location that forwards requests, without access rules, can be another's fallback";
                    self.reject_missing(tries, scene.location, why, notes);
                }
            },
        }
    }

    /// Missing files are rejected, and no other handler gets them.
    fn reject_missing(
        &mut self,
        tries: Option<&NginxDirective>,
        location: &LocationMatch,
        why: &'static str,
        notes: &mut Notes,
    ) {
        let Some(directive) = tries else { return };
        let comment = notes.rejected(directive, why);
        match location.pattern() {
            Some(pattern) => {
                let node = KdlNode::with("respond", pattern).word(404).comment(comment);
                self.handlers.push(PartHandler::Node(location.clone(), node));
            }
            None => {
                let rewrite =
                    PropertyTest::Missing.on(KdlNode::with("rewrite", "*").text(answer_path(404))).comment(comment);
                self.rules.answer_elsewhere(404, vec![rewrite]);
            }
        }
    }
}

/// Returns `true` for a guard that nginx checks in its own location only, and this server for all of its paths.
fn is_guard_of_own_paths(directive: &NginxDirective) -> bool {
    match directive.name.as_str() {
        "internal" | "limit_except" => true,
        "if" => condition::is_guard(directive) && !condition::rejects_missing(directive),
        _ => false,
    }
}

/// Redirect of `/a` to `/a/`, which nginx adds to a location that forwards the paths below. Otherwise, the application's
/// relative links would lead elsewhere.
fn slash_redirect(scene: Scene<'_>) -> Option<KdlNode> {
    let path = scene.location.prefix().filter(|_| scene.location.is_prefix())?.strip_suffix('/')?;
    let has_own = scene.locations.iter().any(|found| found.location.prefix() == Some(path));
    let is_internal = scene.block().iter().any(|child| child.name == "internal");
    let node = || KdlNode::with("redirect", path).text(format!("{path}/{{query}}")).word_property("status", 301);
    (!path.is_empty() && !has_own && !is_internal).then(node)
}

/// A handler of a part of a site, as those before it see it.
struct LaterHandler {
    location: LocationMatch,
    /// Files and the path for missing ones, if that is all it has.
    plain: Option<(String, String)>,
    /// Expression of scripts that it runs.
    scripts: Option<String>,
}

impl LaterHandler {
    fn of(handler: &PartHandler) -> Self {
        let location = handler.location().clone();
        let scripts = match (handler, &location) {
            (PartHandler::Scripts { .. }, LocationMatch::Expression(expression)) => Some(expression.to_string()),
            _ => None,
        };
        let plain = match handler {
            PartHandler::Files(part) => part.plain(),
            _ => None,
        };
        Self { location, plain, scripts }
    }
}

/// Returns `true` if a rewrite of another location would get paths of this one that its handler lacks.
fn is_rewritten_if_missing<'a>(
    mut redirects: impl Iterator<Item = &'a KdlNode>,
    location: &LocationMatch,
    target: Option<&str>,
) -> bool {
    let own = location.pattern().unwrap_or_else(|| "*".to_owned());
    redirects.any(|node| {
        let is_same = target == Some(node.last_value());
        node.has_property("missing")
            && !node.is_for(&own)
            && !is_same
            && LocationMatch::of_pattern(node.first_value()).overlaps(location)
    })
}

/// Block of the location with a name to which all requests of another go: `error_page 418 = @name; return 418;`.
fn error_location<'a>(scene: Scene<'a>, block: &[NginxDirective]) -> Option<&'a [NginxDirective]> {
    let is_part = |child: &NginxDirective| matches!(child.name.as_str(), "error_page" | "return");
    let status = block.iter().find(|child| child.name == "return")?.first();
    let page = block.iter().find(|child| child.name == "error_page")?;
    let [of, "=", name] = page.arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] else { return None };
    let named = scene.named(name)?.directive.children();
    let is_plain = block.iter().all(is_part) && !guard::is_guarded(named) && forward::pass(named).is_some();
    (of == status && is_plain).then_some(named)
}

/// Returns `true` if a location is a directory whose files are those of the locations around it, in spite of redirects on
/// a condition.
fn is_left_to_others(location: &LocationMatch, block: &[NginxDirective], scene: Scene<'_>) -> bool {
    let is_condition = |child: &NginxDirective| matches!(child.name.as_str(), "if" | "access_log" | "log_not_found");
    let wider = scene.wider.iter().filter(|other| other.location.overlaps(location));
    let is_directory = matches!(location, LocationMatch::Exact(path) if path.ends_with('/'));
    let has_condition = block.iter().any(|child| child.name == "if");
    is_directory
        && has_condition
        && block.iter().all(is_condition)
        && wider.clone().all(|other| is_of_files(other.directive.children()))
}

/// Returns `true` if all paths of a location are names of PHP scripts.
fn is_of_script_names(location: &LocationMatch) -> bool {
    match location {
        LocationMatch::Exact(path) => path.ends_with(".php"),
        LocationMatch::Expression(expression) => expression.trim_end_matches(['$', ')', '(', '|']).contains(r"\.php"),
        _ => false,
    }
}

/// Response that is only a status.
fn answer(status: u16) -> KdlNode {
    KdlNode::with("respond", answer_path(status)).word(status)
}

/// Returns `true` if a block answers with files.
fn is_of_files(block: &[NginxDirective]) -> bool {
    let answers = |child: &NginxDirective| {
        child.name == "return" || forward::is_foreign(&child.name) || (child.name == "deny" && child.first() == "all")
    };
    forward::pass(block).is_none() && !block.iter().any(answers)
}

/// Returns `true` if a block sets the freshness of its files.
fn says_age(block: &[NginxDirective]) -> bool {
    block.iter().any(|directive| match directive.name.as_str() {
        "expires" => directive.first() != "off",
        _ => is_age(directive),
    })
}

fn is_age(directive: &NginxDirective) -> bool {
    directive.name == "add_header" && directive.first().eq_ignore_ascii_case("cache-control")
}

/// `return 200 "text"`.
pub(super) fn respond(directive: &NginxDirective, pattern: &str, chain: Chain<'_>) -> Result<KdlNode, String> {
    let status: u16 = directive.first().parse().map_err(|_| "this is no status".to_owned())?;
    if status == 444 {
        return Err("a request always gets a response".to_owned());
    }
    let node = KdlNode::with("respond", pattern).word(status);
    match directive.argument(1) {
        "" => Ok(node),
        text if text.contains('$') => Err("the text of `respond` must be fixed".to_owned()),
        text => {
            let extension = pattern.rsplit_once('.').map_or("", |(_, extension)| extension);
            let by_name = mime_guess::from_ext(extension).first_raw().filter(|_| !pattern.starts_with('~'));
            let content_type = by_name.or(chain.last("default_type").map(NginxDirective::first));
            let node = node.text(text);
            Ok(match content_type {
                None | Some("text/plain") => node,
                Some(content_type) => node.property("type", content_type),
            })
        }
    }
}

/// Directives that the handler of a location looks at itself.
fn is_of_handler(directive: &NginxDirective) -> bool {
    match directive.name.as_str() {
        "location" | "client_max_body_size" => true,
        // Splits a path into script and rest.
        "set" => directive.argument(1).starts_with("$fastcgi_"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::nginx::tests::{site, translated};

    /// Issue 23: constructs of the configurations that projects publish.
    #[test]
    fn published_constructs_are_translated() {
        let check = |inside: &str, expect: &str| {
            let (lines, remarks) = site(inside);
            assert!(lines.contains(expect), "{inside}: {lines}");
            assert_eq!(remarks, Vec::<String>::new(), "{inside}");
        };
        check(
            "location ^~ /a/api { proxy_pass http://b:1; rewrite ^/a/(.*)$ /$1 break; }",
            "path=\"~^/a/api\" {\n    strip-prefix \"/a\"",
        );
        check(
            "set $to b:1; location /a/ { proxy_pass http://$to/rpc; }",
            "rewrite \"/a/*\" \"/a/rpc\"\nforward \"http://b:1\" path=\"/a/*\" {\n    strip-prefix \"/a\"",
        );
        check(
            "location ~ /pack$ { error_page 418 = @git; return 418; } location @git { proxy_pass http://b:1; }",
            "forward \"http://b:1\" path=\"~/pack$\"",
        );
        check("location ~ ^/up/ { location ~ \\.png$ { return 204; } }", "respond #\"~^/up/.*(?:\\.png$)\"# 204");
        check(
            "location ~ ^/w/(.*)$ { alias /d/$1; }",
            "files \"~^/w/(.*)$\" root=\"/d\" {\n    strip-prefix \"/w\"\n}",
        );
        check(
            "if (!-e $request_filename) { rewrite /a$ /a/ permanent; rewrite ^/b/(.*)$ /$1 last; }",
            "redirect \"~/a$\" \"/a/{query}\" status=301 missing=on\nrewrite \"~^/b/(.*)$\" \"/{1}\" missing=on",
        );
        check("if ($request_uri ~ ^(.*)/index.php(.*)) { return 301 $1$2; }", "redirect \"~^(.*)/index.php(.*)\"");
        check("location ~ ^/setup/(?!pub/). { deny all; }", "deny all path=#\"~^/setup/(?:[^p]|p(?:");
        let (text, _) = translated(
            "server { listen 80; server_name a; root /srv; } server { listen 80; server_name a b; root /srv; } \
             server { listen 81; server_name a; root /srv; }",
        );
        let sites: Vec<&str> = text.lines().filter(|line| line.starts_with("site")).collect();
        assert_eq!(sites, ["site \"a\" {", "site \"b\" {", "site \"a\" {"]);
    }

    /// Issue 23: a path that names no script got the index file of the root.
    #[test]
    fn paths_of_scripts_are_no_files_of_the_root() {
        let check = |location: &str, expect: bool| {
            let (lines, _) = site(&format!("location {location} {{ fastcgi_pass unix:/p; }}"));
            assert_eq!(lines.contains("404"), expect, "{location}: {lines}");
        };
        check("= /", true);
        check("/app/", true);
        check("= /index.php", false);
        check(r"~ \.php$", false);
        check(r"~ \.php(/|$)", false);
    }

    /// Issue 23: pages at `/app` had links to the wrong place.
    #[test]
    fn forwarded_directories_have_a_slash() {
        let check = |locations: &str, expect: bool| {
            let (text, _) = translated(&format!("server {{ listen 80; {locations} }}"));
            assert_eq!(text.contains("redirect \"/a\" \"/a/{query}\" status=301"), expect, "{text}");
        };
        check("location /a/ { proxy_pass http://b:1; }", true);
        check("location ^~ /a/ { fastcgi_pass b:1; }", true);
        check("location /a/ { proxy_pass http://b:1/x/; }", true);
        check("location /a/ { proxy_pass http://b:1; } location = /a { return 204; }", false);
        check("location /a/ { proxy_pass http://b:1; } location /a { return 204; }", false);
        check("location /a/ { internal; proxy_pass http://b:1; }", false);
        check("location /a { proxy_pass http://b:1; }", false);
        check("location /a/ { return 204; }", false);
    }
}
