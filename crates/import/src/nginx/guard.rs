//! Guards that cannot be translated exactly: they are translated as far as possible, and the rest is rejected.

use super::auth_request::AuthScene;
use super::auth_request::AuthServer;
use super::condition::{self, PropertyTest};
use super::matching::{LocationMatch, expression, without_look_around};
use super::precedence::ServerLocation;
use super::settings::{DirectiveLevel, ImportedRules};
use super::syntax::NginxDirective;
use super::{Chain, Notes, auth_request, forward};
use crate::kdl::KdlNode;

/// Translates a directive if it is a guard, and returns `true` then.
pub(super) fn add(
    rules: &mut ImportedRules,
    directive: &NginxDirective,
    level: &DirectiveLevel,
    notes: &mut Notes,
) -> bool {
    match directive.name.as_str() {
        "limit_except" => limit_except(rules, directive, level, notes),
        // Translated when all locations are known; [`of_requests`] rejects what cannot be.
        "auth_request" if *level != DirectiveLevel::Http => {}
        name if is_guard(name) => {
            if directive.first() != "off" {
                rules.close(directive, level, "its access rule cannot be translated", notes);
            }
        }
        _ => return false,
    }
    true
}

/// Returns `true` if a directive that is unknown by name controls access.
fn is_guard(name: &str) -> bool {
    let is_other = matches!(name, "auth_basic" | "auth_basic_user_file" | "auth_delay" | "auth_request_set");
    let families = [
        "auth_",
        "access_by_lua",
        "rewrite_by_lua",
        "js_access",
        "secure_link",
        "modsecurity",
        "shib_request",
        "testcookie",
    ];
    !is_other && !name.starts_with("modsecurity_") && families.iter().any(|family| name.starts_with(family))
}

/// `limit_except GET { deny all; }`: all other methods are rejected, even those that some clients could use.
fn limit_except(rules: &mut ImportedRules, directive: &NginxDirective, level: &DirectiveLevel, notes: &mut Notes) {
    let mut methods = directive.arguments.clone();
    if directive.has("GET") && !directive.has("HEAD") {
        methods.push("HEAD".to_owned());
    }
    let test = PropertyTest::Method(format!("!{}", methods.join(" ")));
    let mut node = condition::deny(403, level.pattern(), &test);
    let denies_all = |child: &NginxDirective| child.name == "deny" && child.first() == "all";
    if !directive.children().iter().all(denies_all) {
        node = node.comment(notes.rejected(directive, "other methods can only be rejected for all clients"));
    }
    rules.closed.push(node);
}

/// `internal`: clients cannot request these paths. The server requests them itself: for error pages and scripts, and for
/// upstreams (`X-Accel-Redirect`).
pub(super) fn internal(
    rules: &mut ImportedRules,
    directive: &NginxDirective,
    location: &LocationMatch,
    server: &[NginxDirective],
    notes: &mut Notes,
) {
    if is_led_to(location, server) {
        // The internal requests are known, so nothing is missing. For clients, nothing exists here.
        let node = KdlNode::new("deny").word("all");
        let node = location.pattern().iter().fold(node, |node, pattern| node.property("path", pattern));
        rules.closed.push(node.word_property("status", 404).word_property("internal", "on"));
        return;
    }
    match location.pattern() {
        // Upstreams may lead there: see `internal_redirects`.
        Some(pattern) => rules.closed.push(KdlNode::with("internal", pattern)),
        None => rules.close(directive, &DirectiveLevel::Server, "all paths of the site would be internal", notes),
    }
}

/// Allows upstreams to redirect to the internal locations of the server, unless the location ignores the field.
pub(super) fn internal_redirects(server: &[NginxDirective], family: &str, chain: Chain<'_>) -> Option<KdlNode> {
    let ignored = chain.last(&format!("{family}_ignore_headers"));
    let is_field = |word: &String| word.eq_ignore_ascii_case("x-accel-redirect");
    if ignored.is_some_and(|ignored| ignored.arguments.iter().any(is_field)) {
        return None;
    }
    let mut patterns = Vec::new();
    collect_internal(server, server, &mut patterns);
    let node = KdlNode::new("x-accel-redirect").texts(patterns.iter());
    (!patterns.is_empty()).then_some(node)
}

fn collect_internal(block: &[NginxDirective], server: &[NginxDirective], patterns: &mut Vec<String>) {
    for directive in block.iter().filter(|directive| directive.name == "location") {
        if directive.children().iter().any(|child| child.name == "internal") {
            let location = LocationMatch::read(directive).ok().filter(|location| !is_led_to(location, server));
            patterns.extend(location.and_then(|location| location.pattern()));
        }
        collect_internal(directive.children(), server, patterns);
    }
}

/// Returns `true` if an error page or the last argument of `try_files` is one of a location's paths.
pub(super) fn is_led_to(location: &LocationMatch, block: &[NginxDirective]) -> bool {
    block.iter().any(|directive| {
        let is_leader = matches!(directive.name.as_str(), "error_page" | "try_files" | "auth_request");
        let path = directive.arguments.last().map_or("", |path| path.split(['?', '$']).next().unwrap_or_default());
        (is_leader && location.fits(path)) || is_led_to(location, directive.children())
    })
}

/// Addresses reported by proxies, if access depends on them. Here, such proxies apply to all sites, with
/// `X-Forwarded-For`. Without them, a client of a proxy would be allowed as the proxy. Returns the rejected directive.
pub(super) fn of_reported_addresses<'a>(
    block: &'a [NginxDirective],
    chain: Chain<'a>,
    rules: &mut ImportedRules,
    notes: &mut Notes,
) -> Option<&'a NginxDirective> {
    let of_all = chain.blocks[0];
    let is_of_address = |directive: &NginxDirective| match directive.name.as_str() {
        "allow" | "deny" => directive.first() != "all",
        "set" | "if" => directive.arguments.iter().any(|word| word.contains("$remote_addr")),
        _ => false,
    };
    if !of_all.iter().any(is_of_address) && find(block, &is_of_address).is_none() {
        return None;
    }
    let is_reported = |directive: &NginxDirective| directive.name == "set_real_ip_from";
    let field = chain.last("real_ip_header").map_or("X-Real-IP", NginxDirective::first);
    let is_read = ["x-forwarded-for", "proxy_protocol"].iter().any(|known| known.eq_ignore_ascii_case(field));
    let (directive, why) = if let Some(directive) = find(block, &is_reported) {
        let why = "`trusted-proxies` of `server` applies to all sites, and without it all requests come from the proxy's address";
        (directive, why.to_owned())
    } else {
        let directive = of_all.iter().find(|directive| is_reported(directive) && !is_read)?;
        (directive, format!("`trusted-proxies` reads `X-Forwarded-For` or `Forwarded`, not `{field}`"))
    };
    rules.close(directive, &DirectiveLevel::Server, why, notes);
    Some(directive)
}

/// A directive of a block, or of one inside.
fn find<'a>(block: &'a [NginxDirective], is_meant: &dyn Fn(&NginxDirective) -> bool) -> Option<&'a NginxDirective> {
    block.iter().find_map(
        |directive| {
            if is_meant(directive) { Some(directive) } else { find(directive.children(), is_meant) }
        },
    )
}

/// Location whose expression cannot be read. If it has a handler or a guard, all paths that it may match are rejected.
pub(super) fn unreadable(
    directive: &NginxDirective,
    why: String,
    around: Chain<'_>,
    rules: &mut ImportedRules,
    notes: &mut Notes,
) {
    // The location around one answers otherwise, perhaps.
    let is_inside = around.length > 2;
    if !is_inside && meaning(around.with(directive.children()), directive.children()).is_empty() {
        return notes.left(directive, why);
    }
    if LocationMatch::is_path_with_slashes(directive) {
        let mut path = directive.arguments.last().cloned().unwrap_or_default();
        while path.contains("//") {
            path = path.replace("//", "/");
        }
        let pattern = LocationMatch::Prefix(path).pattern();
        return rules.close(directive, &DirectiveLevel::Location { pattern, is_forwarded: false }, why, notes);
    }
    let ignores_case = directive.first() == "~*";
    let pattern = expression(&without_look_around(directive.argument(1)), ignores_case).ok();
    let pattern = pattern.filter(|expression| !expression.is_empty()).map(|expression| format!("~{expression}"));
    rules.close(directive, &DirectiveLevel::Location { pattern, is_forwarded: false }, why, notes);
}

/// Returns `true` if a block controls access, or rejects all clients.
pub(super) fn is_guarded(block: &[NginxDirective]) -> bool {
    block.iter().any(|child| {
        let name = child.name.as_str();
        matches!(name, "allow" | "deny" | "auth_basic" | "satisfy" | "internal" | "limit_except" | "return" | "if")
            || is_guard(name)
    })
}

/// Guards for paths with a line feed at the end. They keep these from other handlers than those of an expression for
/// the path before it. In nginx, `$` also matches there. Guards check such paths both ways.
pub(super) fn of_line_ends(locations: &[ServerLocation<'_>], server: &[NginxDirective]) -> Option<KdlNode> {
    let mut passes = Vec::new();
    collect_passes(server, &mut passes);
    let is_answered_otherwise = |found: &ServerLocation<'_>| {
        let LocationMatch::Expression(expression) = &found.location else { return false };
        let block = found.directive.children();
        let pass = forward::pass(block).map(NginxDirective::text);
        let answers = block
            .iter()
            .any(|child| matches!(child.name.as_str(), "return" | "rewrite") || forward::is_foreign(&child.name));
        ends_before_line_feed(expression)
            && (pass.is_some() || answers)
            && passes.iter().any(|other| pass.as_ref() != Some(other))
    };
    let comment = "to nginx `$` fits before a line feed at the end, too";
    let node = || KdlNode::new("deny").word("all").property("path", r"~\n$").comment(comment);
    locations.iter().any(is_answered_otherwise).then(node)
}

fn collect_passes(block: &[NginxDirective], passes: &mut Vec<String>) {
    passes.extend(forward::pass(block).map(NginxDirective::text));
    block.iter().for_each(|directive| collect_passes(directive.children(), passes));
}

/// Returns `true` if an expression has `$`, except after something that matches a line feed here.
fn ends_before_line_feed(expression: &str) -> bool {
    let fits_line_feed = |front: &str| {
        let front = front.trim_end_matches(')');
        front.ends_with(".*") || front.ends_with(".+")
    };
    let is_end = |at: usize| {
        let front = &expression[..at];
        let escapes = front.len() - front.trim_end_matches('\\').len();
        escapes.is_multiple_of(2) && !fits_line_feed(front)
    };
    expression.match_indices('$').any(|(at, _)| is_end(at))
}

/// Returns `true` if two locations have the same guards and handlers.
pub(super) fn mean_the_same(one: &ServerLocation<'_>, other: &ServerLocation<'_>, server: Chain<'_>) -> bool {
    let meaning = |found: &ServerLocation<'_>| meaning(server.with_all(found.blocks()), found.directive.children());
    meaning(one) == meaning(other)
}

/// Returns `true` if files of two locations have the same guards and directory; no location means those of the server.
pub(super) fn have_the_same_files(
    one: &ServerLocation<'_>,
    other: Option<&ServerLocation<'_>>,
    server: Chain<'_>,
) -> bool {
    let meaning = |found: Option<&ServerLocation<'_>>| match found {
        Some(found) => meaning_of_files(server.with_all(found.blocks()), found.directive.children()),
        None => meaning_of_files(server, &[]),
    };
    meaning(Some(one)) == meaning(other)
}

/// Guards and directories of a block's files.
pub(super) fn meaning_of_files(chain: Chain<'_>, block: &[NginxDirective]) -> Vec<String> {
    let is_of_directories =
        |line: &String| matches!(line.split(' ').next().unwrap_or_default(), "index" | "autoindex" | "try_files");
    meaning(chain, block).into_iter().filter(|line| !is_of_directories(line)).collect()
}

/// Guards and handlers of a block, inherited ones included.
fn meaning(chain: Chain<'_>, block: &[NginxDirective]) -> Vec<String> {
    let groups: [&[&str]; 7] = [
        &["allow", "deny"],
        &["auth_basic"],
        &["auth_basic_user_file"],
        &["satisfy"],
        &["root", "alias"],
        &["index"],
        &["autoindex"],
    ];
    // Settings of the server's files apply to every path.
    let is_own = |directive: &&NginxDirective| {
        !matches!(directive.name.as_str(), "root" | "index" | "autoindex") || !chain.is_of_server(directive)
    };
    let inherited = groups.into_iter().flat_map(|names| chain.all_of(names)).filter(is_own);
    let own = block.iter().filter(|directive| {
        let name = directive.name.as_str();
        matches!(name, "alias" | "try_files" | "return" | "rewrite" | "if" | "limit_except" | "internal" | "location")
            || is_guard(name)
            || forward::is_foreign(name)
    });
    inherited.chain(own).chain(forward::pass(block)).map(NginxDirective::text).collect()
}

/// Access to the paths of a location, by address and by password.
struct Guard<'a> {
    access: Vec<&'a NginxDirective>,
    /// Realm and file.
    password: Option<(&'a str, &'a str)>,
    auth: Option<AuthServer>,
    /// True if address or password is enough.
    is_any: bool,
    /// True if the upstream gets the password.
    is_passed_on: bool,
}

/// A translated guard, and its paths.
struct StatedGuard<'f, 'a> {
    location: Option<&'f LocationMatch>,
    guard: Guard<'a>,
    is_for_addresses: bool,
    is_for_passwords: bool,
    is_for_auths: bool,
}

/// Rejects the paths of each `auth_request` that cannot be translated.
pub(super) fn of_requests(scene: AuthScene<'_, '_>, rules: &mut ImportedRules, notes: &mut Notes) {
    let own = |block: &[NginxDirective]| block.iter().any(|child| child.name == "auth_request");
    // A location may also change what it inherits, such as by `satisfy any`.
    let is_inherited = scene.translate(scene.server, notes).is_ok_and(|found| found.is_some());
    let claims = scene.locations.iter().map(|found| {
        let chain = scene.server.with_all(found.blocks());
        (chain, found.location.pattern(), own(found.directive.children()))
    });
    for (chain, pattern, is_own) in claims.chain([(scene.server, None, own(scene.server.blocks[1]))]) {
        let is_meant = is_own || is_inherited;
        if let (Err(why), Some(directive), true) = (scene.translate(chain, notes), auth_request::asked(chain), is_meant)
        {
            rules.close_paths(directive, pattern, why, notes);
        }
    }
}

/// Guards of all locations and of the server, in an order in which the first match counts. nginx uses those of one
/// location only. If those of another would match too, each states everything that applies to it, even that all clients
/// are allowed.
pub(super) fn of_locations(
    all: &[ServerLocation<'_>],
    server: Chain<'_>,
    (scene, has_rejections): (AuthScene<'_, '_>, bool),
    notes: &mut Notes,
) -> Vec<KdlNode> {
    let mut said: Vec<StatedGuard<'_, '_>> = Vec::new();
    let mut nodes: Vec<Vec<KdlNode>> = Vec::new();
    let has_front = all.iter().any(|found| found.location.is_prefix() && found.location.pattern().is_none());
    let claims = all.iter().filter(|found| !matches!(found.location, LocationMatch::Named(_)));
    let claims =
        claims.map(|found| (Some(&found.location), server.with_all(found.blocks()), found.directive.children()));
    let of_server = (None, server, server.blocks[1]);
    let claims: Vec<_> = claims.chain((!has_front).then_some(of_server)).collect();
    // From the widest on, so that it is known what would fit as well.
    for (location, chain, block) in claims.into_iter().rev() {
        let guard = Guard::of(chain, block, (scene, has_rejections), notes);
        let overlapping = said.iter().filter(|said| said.overlaps(location));
        let of_addresses: Vec<_> = overlapping.clone().filter(|said| said.is_for_addresses).collect();
        let of_passwords: Vec<_> = overlapping.clone().filter(|said| said.is_for_passwords).collect();
        let of_auths: Vec<_> = overlapping.filter(|said| said.is_for_auths).collect();
        let is_for_addresses =
            is_to_say(location, &of_addresses, guard.access.is_empty(), |said| guard.has_access(said));
        let is_for_passwords =
            is_to_say(location, &of_passwords, guard.password.is_none(), |said| guard.has_password(said));
        let is_for_auths = is_to_say(location, &of_auths, guard.auth.is_none(), |said| guard.auth == said.auth);
        let mut lines = Vec::new();
        if is_for_addresses {
            lines.extend(guard.for_addresses(pattern(location, !of_addresses.is_empty()), !of_addresses.is_empty()));
        }
        if is_for_passwords {
            lines.push(guard.for_passwords(pattern(location, !of_passwords.is_empty())));
        }
        if is_for_auths {
            let pattern = pattern(location, !of_auths.is_empty()).unwrap_or_else(|| "*".to_owned());
            lines.push(match &guard.auth {
                Some(auth) => auth.node(&pattern),
                None => KdlNode::with("forward-auth", pattern).word("off"),
            });
        }
        nodes.push(lines);
        said.push(StatedGuard { location, guard, is_for_addresses, is_for_passwords, is_for_auths });
    }
    nodes.into_iter().rev().flatten().collect()
}

/// Returns `true` if the guard of a location differs from those of enclosing ones.
fn is_to_say(
    location: Option<&LocationMatch>,
    said: &[&StatedGuard<'_, '_>],
    is_open: bool,
    is_same: impl Fn(&Guard<'_>) -> bool,
) -> bool {
    let is_covered = || said.iter().any(|said| said.covers(location));
    said.iter().any(|said| !is_same(&said.guard)) || (!is_open && !is_covered())
}

/// The pattern of a location's guards. `/a/*` guards `/a`, too, which is another location's to guard if there is one.
fn pattern(location: Option<&LocationMatch>, is_narrower: bool) -> Option<String> {
    let pattern = location?.pattern()?;
    match pattern.strip_suffix('*').filter(|prefix| is_narrower && prefix.starts_with('/')) {
        Some(prefix) => Some(format!("~^{}", regex::escape(prefix))),
        None => Some(pattern),
    }
}

impl<'f> StatedGuard<'f, '_> {
    fn overlaps(&self, location: Option<&LocationMatch>) -> bool {
        let (Some(own), Some(other)) = (self.location, location) else { return true };
        own.overlaps(other)
    }

    /// Returns `true` if it applies to all paths of a location.
    fn covers(&self, location: Option<&LocationMatch>) -> bool {
        match self.location.filter(|own| own.pattern().is_some()) {
            None => true,
            Some(own) => own.is_prefix() && location.is_some_and(|other| other.head().starts_with(&own.head())),
        }
    }
}

impl<'a> Guard<'a> {
    fn of(
        chain: Chain<'a>,
        block: &[NginxDirective],
        (scene, has_rejections): (AuthScene<'_, 'a>, bool),
        notes: &mut Notes,
    ) -> Self {
        // nginx returns before it checks access. A response that may not be translated stays guarded.
        if block.iter().any(|child| child.name == "return" && !child.text().contains('$')) {
            return Self { access: Vec::new(), password: None, auth: None, is_any: false, is_passed_on: false };
        }
        let mut access = chain.all_of(&["allow", "deny"]);
        let realm = chain.last("auth_basic").filter(|realm| realm.first() != "off");
        if let Some(realm) = realm.filter(|realm| realm.first().contains('$')) {
            notes.left(realm, "a password is always required; `when=` of `basic-auth` can say for which requests");
        }
        let realm = realm.map(NginxDirective::first);
        // Without a file, nginx requires no password.
        let password = realm.zip(chain.last("auth_basic_user_file").map(NginxDirective::first));
        let any = chain.last("satisfy").filter(|satisfy| satisfy.first() == "any");
        let any = any.filter(|_| password.is_some() && !access.is_empty());
        if let Some(any) = any.filter(|_| has_rejections) {
            let why = "both are required: with `satisfy=\"any\"` a password would allow clients that another line rejects, such as \
                       an `if`";
            notes.left(any, why);
        }
        if any.is_none() && access.iter().all(|line| line.name == "allow") {
            // Such rules reject no client.
            access.clear();
        }
        let is_removed = |field: &&NginxDirective| field.first().eq_ignore_ascii_case("authorization");
        let is_passed_on = has_pass(block) && !chain.all("proxy_set_header").iter().any(is_removed);
        // Where there is an error, the paths are rejected.
        let auth = scene.translate(chain, notes).unwrap_or_default();
        Self { access, password, auth, is_any: any.is_some() && !has_rejections, is_passed_on }
    }

    fn has_access(&self, other: &Self) -> bool {
        let lines = |guard: &Self| guard.access.iter().map(|line| line.line()).collect::<Vec<_>>();
        self.is_any == other.is_any && lines(self) == lines(other)
    }

    fn has_password(&self, other: &Self) -> bool {
        self.is_any == other.is_any && self.password == other.password
    }

    /// With `is_last`, no line of another location is to decide for whom none of these does.
    fn for_addresses(&self, pattern: Option<String>, is_last: bool) -> Vec<KdlNode> {
        let with_path = |node: KdlNode| match &pattern {
            Some(pattern) => node.property("path", pattern),
            None => node,
        };
        let name = |name: &str| if name == "allow" { "allow" } else { "deny" };
        let mut nodes: Vec<KdlNode> = self
            .access
            .iter()
            .map(|line| {
                let node = KdlNode::new(name(&line.name));
                let client = line.first().trim_end_matches(':');
                with_path(if client == "all" { node.word("all") } else { node.text(client) })
            })
            .collect();
        if is_last && !self.access.iter().any(|line| line.first() == "all") {
            // A client that neither rule allows, where a password is enough, needs the password.
            nodes.push(with_path(KdlNode::new(if self.is_any { "deny" } else { "allow" }).word("all")));
        }
        nodes
    }

    fn for_passwords(&self, pattern: Option<String>) -> KdlNode {
        let node = KdlNode::with("basic-auth", pattern.as_deref().unwrap_or("*"));
        let Some((realm, file)) = self.password else { return node.word("off") };
        let node = node.text(file).property("realm", realm);
        let node = if self.is_passed_on { node.word_property("pass-credentials", "on") } else { node };
        if self.is_any { node.property("satisfy", "any") } else { node }
    }
}

fn has_pass(block: &[NginxDirective]) -> bool {
    forward::pass(block).is_some() || block.iter().any(|directive| has_pass(directive.children()))
}
