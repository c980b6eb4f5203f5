//! `location`: handlers for a part of a site, and what holds there.

use super::condition::answer_path;
use super::files::{Behind, FilesBlock, FilesPart, Last, Tries};
use super::http::Shared;
use super::rewrite::{self, redirect};
use super::settings::{Level, Password, Rules};
use super::syntax::Directive;
use super::upstream::set;
use super::values::Location;
use super::{Chain, Notes, forward, guard};
use crate::import::kdl::Node;

/// What locations of a server become.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) rules: Rules,
    /// Handlers in the order in which they are tried.
    handlers: Vec<Handler>,
    /// The handler that has what all others decline.
    pub(super) last: Option<Node>,
    /// Whether files below the site's own root are served.
    pub(super) has_files: bool,
    /// The script that answers what is no file.
    pub(super) front_controller: Option<String>,
}

/// A handler of a part of a site.
enum Handler {
    Node(Node),
    Files(FilesPart),
    /// A handler that leaves some of its paths to those that follow, which nginx does not, and the pattern of them.
    Scripts(Node, String),
}

/// A location, its directive, and the blocks of the locations around it.
pub(super) type Found<'a> = (Location, &'a Directive, Vec<&'a [Directive]>);

/// A location as what is made of it depends on: where it stands, and what it may refer to.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) location: &'a Location,
    /// The blocks that hold there; its own is the last.
    pub(super) chain: Chain<'a>,
    /// All locations of the server: some are referred to by `@name`.
    pub(super) locations: &'a [Found<'a>],
    /// What the server's block says.
    pub(super) server: &'a [Directive],
    pub(super) shared: &'a Shared,
}

/// Locations of a server, and those inside them, in the order in which nginx chooses. What can't be read is refused.
pub(super) fn of_server<'a>(block: &'a [Directive], rules: &mut Rules, notes: &mut Notes) -> Vec<Found<'a>> {
    let mut all = Vec::new();
    collect(block, &[], None, &mut all, &mut |directive, why| guard::unreadable(directive, why, rules, notes));
    all.sort_by_key(|(location, ..)| location.order());
    all
}

fn collect<'a>(
    block: &'a [Directive],
    around: &[&'a [Directive]],
    prefix: Option<&str>,
    all: &mut Vec<Found<'a>>,
    refuse: &mut impl FnMut(&Directive, String),
) {
    for directive in block.iter().filter(|directive| directive.name == "location") {
        let inside = [around, &[directive.children()]].concat();
        match Location::read(directive) {
            Ok(location) => {
                let location = location.within(prefix);
                collect(directive.children(), &inside, location.prefix().or(prefix), all, refuse);
                all.push((location, directive, around.to_vec()));
            }
            Err(why) => {
                refuse(directive, why);
                collect(directive.children(), &inside, prefix, all, refuse);
            }
        }
    }
}

impl Parts {
    /// Takes up what the block of a location says.
    pub(super) fn add(&mut self, scene: Scene<'_>, block: &[Directive], notes: &mut Notes) {
        let Scene { location, chain, shared, .. } = scene;
        let pass = forward::pass(block);
        let level = Level::Location { pattern: location.pattern(), is_forwarded: pass.is_some() };
        let mut rules = Rules::default();
        let mut files = FilesBlock::default();
        // Whom nobody may ask needs no handler.
        let lets_in = |child: &Directive| matches!(child.name.as_str(), "allow" | "satisfy");
        let mut is_answered = pass.is_none() && !is_of_files(block) && !block.iter().any(lets_in);
        for child in block {
            if child.name == "internal" {
                guard::internal(&mut rules, child, location, scene.server, notes);
                continue;
            }
            if self.add_answer(child, scene, notes) {
                is_answered = true;
                continue;
            }
            let known = files.add(child, location, notes)
                || is_of_handler(child)
                || forward::is_option(child, notes)
                || rewrite::stripped_prefix(child, location).is_some()
                || rules.add(child, &level, shared, notes);
            if !known {
                notes.unknown(child);
            }
        }
        add_password(&mut rules, block, chain, &level);
        let is_redirect = |node: &Node| {
            node.name() == "redirect" && location.pattern().is_some_and(|pattern| node.is_rule_of(&pattern))
        };
        let is_redirected = rules.redirects.iter().any(is_redirect);
        if let Some(pass) = pass {
            self.add_pass(pass, scene, notes);
            rules.redirects.extend(forward::replaced_prefix(pass, scene));
            rules.fields.extend(forward::fields(chain, &level, shared, notes));
        } else if !is_answered && !is_redirected {
            files.options = std::mem::take(&mut rules.files);
            let stripped = block.iter().find_map(|child| rewrite::stripped_prefix(child, location));
            files.options.extend(stripped.map(|prefix| Node::with("strip-prefix", prefix)));
            self.add_files(files, scene, notes);
        }
        self.keep_apart(scene, block, &mut rules);
        self.take(rules);
    }

    /// Keeps away what wider locations say of redirects and of `Cache-Control`: nginx takes what one location says.
    fn keep_apart(&self, scene: Scene<'_>, block: &[Directive], rules: &mut Rules) {
        let Some(pattern) = scene.location.pattern() else { return };
        let wider = |(other, ..): &&Found<'_>| scene.location.is_before(other);
        let mut wider = scene.locations.iter().filter(wider);
        let is_redirected = block.iter().any(|child| redirect(child, "*").is_some())
            || rules.redirects.iter().any(|node| node.is_rule_of(&pattern));
        let is_led_away = |(other, directive, _): &Found<'_>| {
            let is_sweeping = other.pattern().is_none() || scene.location.prefix().is_some();
            is_sweeping && rewrite::reaches(directive.children(), scene.location.prefix())
        };
        if !is_redirected && wider.clone().any(is_led_away) {
            rules.redirects.push(Node::with("rewrite", &pattern).text("{path}"));
        }
        let is_kept = |(other, directive, _): &Found<'_>| {
            other.prefix().is_some() && is_of_files(directive.children()) && says_age(directive.children())
        };
        let said = scene.chain.blocks.iter().any(|block| says_age(block));
        if is_of_files(block) && !said && wider.any(is_kept) {
            rules.fields.push(Node::with("cache-control", pattern).text(""));
        }
    }

    /// All handlers, between which and their files nobody is asked whom nginx would not ask.
    pub(super) fn take_handlers(&mut self, root: Option<&str>) -> Vec<Node> {
        let has_fallback = self.rules.files.iter().any(|option| option.name() == "fallback");
        let root = root.filter(|_| self.has_files);
        let has_last = self.last.is_some() || self.front_controller.is_some();
        let mut nodes: Vec<Node> = self.rules.answers.iter().map(|status| answer(*status)).collect();
        let handlers = std::mem::take(&mut self.handlers);
        let count = handlers.len();
        let is_other = |handler: &Handler| !matches!(handler, Handler::Files(_));
        let others: Vec<bool> = handlers.iter().map(is_other).collect();
        for (index, handler) in handlers.into_iter().enumerate() {
            let has_handler = has_last || others[(index + 1).min(count)..].contains(&true);
            match handler {
                Handler::Node(node) => nodes.push(node),
                Handler::Scripts(node, pattern) => {
                    nodes.push(node);
                    if has_last || has_fallback {
                        nodes.push(Node::with("respond", pattern).word(404));
                    }
                }
                Handler::Files(part) => nodes.extend(part.into_nodes(Behind { root, has_fallback, has_handler })),
            }
        }
        nodes
    }

    /// Lines of a part go before those of wider ones where the first counts, and behind them where the last does.
    fn take(&mut self, rules: Rules) {
        self.rules.closed.extend(rules.closed);
        self.rules.refusals.extend(rules.refusals);
        self.rules.answers.extend(rules.answers);
        self.rules.guards.extend(rules.guards);
        self.rules.redirects.extend(rules.redirects);
        self.rules.fields.splice(0..0, rules.fields);
        self.rules.others.extend(rules.others);
    }

    fn add_pass(&mut self, pass: &Directive, scene: Scene<'_>, notes: &mut Notes) {
        match forward::handler(pass, scene, notes) {
            Ok(node) if node.name() == "forward" && scene.location.pattern().is_none() => self.last = Some(node),
            Ok(node) => self.handlers.push(match scene.location.pattern() {
                Some(pattern) if node.name() == "fastcgi" => Handler::Scripts(node, pattern),
                _ => Handler::Node(node),
            }),
            Err(why) => self.refuse(pass, scene.location, why, notes),
        }
    }

    /// Nobody answers where nginx has a handler that can't be said; what else has these paths must not get them.
    fn refuse(&mut self, directive: &Directive, location: &Location, why: impl Into<String>, notes: &mut Notes) {
        let node = Node::with("respond", location.pattern().as_deref().unwrap_or("*")).word(502);
        self.handlers.push(Handler::Node(node.comment(notes.refused(directive, why))));
    }

    /// Whether a directive answers all that come: `return`, and what only nginx has.
    fn add_answer(&mut self, directive: &Directive, scene: Scene<'_>, notes: &mut Notes) -> bool {
        let Scene { location, chain, .. } = scene;
        if forward::is_foreign(&directive.name) {
            self.refuse(directive, location, "there is no such handler", notes);
            return true;
        }
        if directive.name != "return" {
            return false;
        }
        let pattern = location.pattern();
        let pattern = pattern.as_deref().unwrap_or("*");
        match redirect(directive, pattern) {
            Some(Ok(node)) => self.rules.redirects.push(node),
            Some(Err(why)) => self.refuse(directive, location, why, notes),
            None => match respond(directive, pattern, chain) {
                Ok(node) => self.handlers.push(Handler::Node(node)),
                Err(why) => self.refuse(directive, location, why, notes),
            },
        }
        true
    }

    fn add_files(&mut self, files: FilesBlock<'_>, scene: Scene<'_>, notes: &mut Notes) {
        let FilesBlock { root, alias, mut options, tries } = files;
        let outcome = tries.map(|tries| Tries::read(tries, notes)).unwrap_or_default();
        if outcome.is_html_added {
            let missing = Node::with("rewrite", "~^/(.*[^/])$").text("/{1}.html").word_property("missing", "on");
            self.rules.redirects.push(missing);
        }
        let Some(pattern) = scene.location.pattern() else {
            self.has_files = true;
            match outcome.last {
                Last::Nothing => {}
                Last::File(path) => set(&mut self.rules.files, Node::with("fallback", path)),
                Last::Script(path) => self.front_controller = Some(path),
                Last::Named(name) => self.add_named(&name, scene, notes),
            }
            for option in options {
                set(&mut self.rules.files, option);
            }
            if let Some(root) = root {
                self.rules.files.insert(0, Node::with("root", root));
            }
            return;
        };
        if let Last::File(path) = &outcome.last {
            options.push(Node::with("fallback", path));
        }
        if let Some((_, Some(prefix))) = alias.as_ref() {
            options.push(Node::with("strip-prefix", prefix));
        }
        let own_root = root.map(str::to_owned).or(alias.map(|(root, _)| root));
        let is_own = own_root.is_some() || !options.is_empty();
        let around = scene.chain.last("root").map(|root| root.first().to_owned());
        let root = own_root.or(around).filter(|root| !root.contains('$'));
        let has_successor = !matches!(outcome.last, Last::Nothing | Last::File(_));
        self.handlers.push(Handler::Files(FilesPart {
            pattern: pattern.clone(),
            root,
            is_own: is_own || has_successor,
            options,
            has_successor,
        }));
        match outcome.last {
            Last::Named(name) => self.add_named(&name, scene, notes),
            Last::Script(path) => {
                self.rules.redirects.push(Node::with("rewrite", &pattern).text(path).word_property("missing", "on"));
            }
            Last::Nothing | Last::File(_) => {}
        }
    }

    /// The handler of a location with a name, in the place of another.
    fn add_named(&mut self, name: &str, scene: Scene<'_>, notes: &mut Notes) {
        let is_meant = |location: &Location| matches!(location, Location::Named(other) if other == name);
        let Some((_, directive, _)) = scene.locations.iter().find(|(location, ..)| is_meant(location)) else { return };
        let block = directive.children();
        let scene = Scene { chain: scene.chain.with(block), ..scene };
        match forward::pass(block) {
            Some(pass) => {
                self.add_pass(pass, scene, notes);
                let level = Level::Location { pattern: scene.location.pattern(), is_forwarded: true };
                let fields = forward::fields(scene.chain, &level, scene.shared, notes);
                self.rules.fields.splice(0..0, fields);
            }
            None => {
                // A rewrite to a script is what such a location mostly is.
                let rewrite = block.iter().find(|child| child.name == "rewrite");
                match rewrite.map(|rewrite| rewrite.argument(1).split(['?', '$']).next().unwrap_or_default()) {
                    Some(path) if path.starts_with('/') => self.front_controller = Some(path.to_owned()),
                    _ => notes.left(directive, "only a location that hands requests on can be another's last resort"),
                }
            }
        }
    }
}

/// An answer that is nothing but a status.
fn answer(status: u16) -> Node {
    Node::with("respond", answer_path(status)).word(status)
}

/// Whether files are what a block answers with.
fn is_of_files(block: &[Directive]) -> bool {
    let answers = |child: &Directive| {
        matches!(child.name.as_str(), "return" | "internal")
            || forward::is_foreign(&child.name)
            || (child.name == "deny" && child.first() == "all")
    };
    forward::pass(block).is_none() && !block.iter().any(answers)
}

/// Whether a block says how long its files are fresh.
fn says_age(block: &[Directive]) -> bool {
    block.iter().any(|directive| match directive.name.as_str() {
        "expires" => directive.first() != "off",
        "add_header" => directive.first().eq_ignore_ascii_case("cache-control"),
        _ => false,
    })
}

/// `return 200 "text"`.
pub(super) fn respond(directive: &Directive, pattern: &str, chain: Chain<'_>) -> Result<Node, String> {
    let status: u16 = directive.first().parse().map_err(|_| "this is no status".to_owned())?;
    if status == 444 {
        return Err("a request is always answered".to_owned());
    }
    let node = Node::with("respond", pattern).word(status);
    match directive.argument(1) {
        "" => Ok(node),
        text if text.contains('$') => Err("`respond` has a fixed text".to_owned()),
        text => {
            let extension = pattern.rsplit_once('.').map_or("", |(_, extension)| extension);
            let by_name = mime_guess::from_ext(extension).first_raw().filter(|_| !pattern.starts_with('~'));
            let content_type = by_name.or(chain.last("default_type").map(Directive::first));
            let node = node.text(text);
            Ok(match content_type {
                None | Some("text/plain") => node,
                Some(content_type) => node.property("type", content_type),
            })
        }
    }
}

/// The password of a block that asks for one itself; what is inherited is the site's.
pub(super) fn add_password(rules: &mut Rules, block: &[Directive], chain: Chain<'_>, level: &Level) {
    let said = block.iter().any(|directive| matches!(directive.name.as_str(), "auth_basic" | "auth_basic_user_file"));
    let Some(realm) = chain.last("auth_basic").filter(|_| said) else { return };
    let is_taken_away = |field: &&Directive| field.first().eq_ignore_ascii_case("authorization");
    let password = Password {
        realm: realm.first(),
        file: chain.last("auth_basic_user_file").map(Directive::first),
        satisfy: chain.last("satisfy").map(Directive::first),
        is_passed_on: has_pass(block) && !chain.all("proxy_set_header").iter().any(is_taken_away),
    };
    rules.add_password(&password, level);
}

fn has_pass(block: &[Directive]) -> bool {
    forward::pass(block).is_some() || block.iter().any(|directive| has_pass(directive.children()))
}

/// Directives that the handler of a location looks at itself.
fn is_of_handler(directive: &Directive) -> bool {
    match directive.name.as_str() {
        "location" | "client_max_body_size" => true,
        // What splits a path into script and the rest.
        "set" => directive.argument(1).starts_with("$fastcgi_"),
        _ => false,
    }
}
