//! `location`: handlers for a part of a site, and what holds there.

use super::http::Shared;
use super::settings::{Level, Rules, redirect};
use super::syntax::Directive;
use super::upstream::set;
use super::values::Location;
use super::{Chain, Notes, forward};
use crate::import::kdl::Node;

/// What locations of a server become.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) rules: Rules,
    /// Handlers in the order in which they are tried.
    pub(super) handlers: Vec<Node>,
    /// The handler that has what all others decline.
    pub(super) last: Option<Node>,
    /// Whether files below the site's own root are served.
    pub(super) has_files: bool,
    /// The script that answers what is no file.
    pub(super) front_controller: Option<String>,
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
    pub(super) shared: &'a Shared,
}

/// Locations of a server, and those inside them, in the order in which nginx chooses.
pub(super) fn of_server<'a>(block: &'a [Directive], notes: &mut Notes) -> Vec<Found<'a>> {
    let mut all = Vec::new();
    collect(block, &[], &mut all, notes);
    all.sort_by_key(|(location, ..)| location.order());
    all
}

fn collect<'a>(block: &'a [Directive], around: &[&'a [Directive]], all: &mut Vec<Found<'a>>, notes: &mut Notes) {
    for directive in block.iter().filter(|directive| directive.name == "location") {
        match Location::read(directive) {
            Ok(location) => all.push((location, directive, around.to_vec())),
            Err(why) => notes.left(directive, why),
        }
        let inside = [around, &[directive.children()]].concat();
        collect(directive.children(), &inside, all, notes);
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
        for child in block {
            let known = files.add(child, location, notes)
                || self.add_return(child, &level, notes)
                || is_of_handler(child)
                || forward::is_option(child, notes)
                || rules.add(child, &level, shared, notes);
            if !known {
                notes.unknown(child);
            }
        }
        add_password(&mut rules, block, chain, &level);
        if let Some(pass) = pass {
            match forward::handler(pass, scene, notes) {
                Ok(node) => self.add_handler(node, location),
                Err(why) => notes.left(pass, why),
            }
            rules.fields.extend(forward::fields(chain, &level, shared, notes));
        } else {
            files.options = std::mem::take(&mut rules.files);
            self.add_files(files, scene, notes);
        }
        self.take(rules);
    }

    /// Lines of a part go before those of wider ones where the first counts, and behind them where the last does.
    fn take(&mut self, rules: Rules) {
        self.rules.guards.extend(rules.guards);
        self.rules.redirects.extend(rules.redirects);
        self.rules.fields.splice(0..0, rules.fields);
        self.rules.others.extend(rules.others);
    }

    fn add_handler(&mut self, node: Node, location: &Location) {
        if location.pattern().is_none() && node.name() == "forward" {
            self.last = Some(node);
        } else {
            self.handlers.push(node);
        }
    }

    fn add_return(&mut self, directive: &Directive, level: &Level, notes: &mut Notes) -> bool {
        if directive.name != "return" {
            return false;
        }
        let Level::Location { pattern, .. } = level else { return false };
        let pattern = pattern.as_deref().unwrap_or("*");
        match redirect(directive, pattern) {
            Some(Ok(node)) => self.rules.redirects.push(node),
            Some(Err(why)) => notes.left(directive, why),
            None => match respond(directive, pattern) {
                Ok(node) => self.handlers.push(node),
                Err(why) => notes.left(directive, why),
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
        let own_root = root.or(alias.as_ref().map(|(root, _)| root.as_str()));
        let around = scene.chain.last("root").map(|root| root.first());
        // Without anything of its own, the files are those of the site, if it has them.
        if let Some(root) = own_root.or(around.filter(|_| !options.is_empty() || outcome.last != Last::Nothing)) {
            if let Some((_, Some(prefix))) = alias.as_ref() {
                options.push(Node::with("strip-prefix", prefix));
            }
            self.handlers.push(Node::with("files", &pattern).property("root", root).block(options));
        }
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
            Some(pass) => match forward::handler(pass, scene, notes) {
                Ok(node) => {
                    self.add_handler(node, scene.location);
                    let level = Level::Location { pattern: scene.location.pattern(), is_forwarded: true };
                    let fields = forward::fields(scene.chain, &level, scene.shared, notes);
                    self.rules.fields.splice(0..0, fields);
                }
                Err(why) => notes.left(pass, why),
            },
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

/// The part of a location that says where its files are.
#[derive(Default)]
struct FilesBlock<'a> {
    root: Option<&'a str>,
    /// The root, and what is taken from the front of paths.
    alias: Option<(String, Option<String>)>,
    options: Vec<Node>,
    tries: Option<&'a Directive>,
}

impl<'a> FilesBlock<'a> {
    fn add(&mut self, directive: &'a Directive, location: &Location, notes: &mut Notes) -> bool {
        match directive.name.as_str() {
            "root" | "alias" if directive.first().contains('$') => {
                notes.left(directive, "a root has `{host}` as its only variable");
            }
            "root" => self.root = Some(directive.first()),
            "alias" => match alias(directive.first(), location) {
                Some(alias) => self.alias = Some(alias),
                None => notes.left(directive, "only a location that is a path can have its files under another name"),
            },
            // That a script exists is looked at anyway.
            "try_files" if directive.first() == "$fastcgi_script_name" => {}
            "try_files" => self.tries = Some(directive),
            _ => return false,
        }
        true
    }
}

/// `alias /srv/b/` of `/a/`: the root, and the prefix that paths lose.
fn alias(target: &str, location: &Location) -> Option<(String, Option<String>)> {
    match location {
        Location::Prefix(prefix) | Location::PrefixFirst(prefix) => {
            let prefix = prefix.trim_end_matches('/');
            let target = target.trim_end_matches('/');
            Some((target.to_owned(), (!prefix.is_empty()).then(|| prefix.to_owned())))
        }
        Location::Exact(path) => {
            let (directory, name) = target.rsplit_once('/')?;
            let (around, same) = path.rsplit_once('/')?;
            (name == same).then(|| (directory.to_owned(), (!around.is_empty()).then(|| around.to_owned())))
        }
        Location::Expression(_) | Location::Named(_) => None,
    }
}

/// What `try_files` ends with.
#[derive(Debug, Default, PartialEq, Eq)]
enum Last {
    /// An error, as is always so.
    #[default]
    Nothing,
    File(String),
    /// A script, which gets the query.
    Script(String),
    Named(String),
}

#[derive(Default)]
struct Tries {
    is_html_added: bool,
    last: Last,
}

impl Tries {
    fn read(directive: &Directive, notes: &mut Notes) -> Self {
        let Some((last, files)) = directive.arguments.split_last() else { return Self::default() };
        let is_html_added = files.iter().any(|file| file == "$uri.html");
        if files.iter().any(|file| !matches!(file.as_str(), "$uri" | "$uri/" | "$uri.html" | "$uri/index.html")) {
            notes.left(directive, "files are tried by their own path, and with `.html`");
        }
        let last = match last.as_str() {
            status if status.starts_with('=') => {
                if status != "=404" {
                    notes.left(directive, "what is not there is answered with 404");
                }
                Last::Nothing
            }
            name if name.starts_with('@') => Last::Named(name.to_owned()),
            "$uri" | "$uri/" => Last::Nothing,
            path => {
                let (file, query) = path.split_at(path.find(['?', '$']).unwrap_or(path.len()));
                if query.is_empty() && !file.ends_with(".php") {
                    Last::File(file.to_owned())
                } else {
                    Last::Script(file.to_owned())
                }
            }
        };
        Self { is_html_added, last }
    }
}

/// `return 200 "text"`.
pub(super) fn respond(directive: &Directive, pattern: &str) -> Result<Node, String> {
    let status: u16 = directive.first().parse().map_err(|_| "this is no status".to_owned())?;
    if status == 444 {
        return Err("a request is always answered; `deny` refuses it".to_owned());
    }
    let node = Node::with("respond", pattern).word(status);
    match directive.argument(1) {
        "" => Ok(node),
        text if text.contains('$') => Err("`respond` has a fixed text".to_owned()),
        text => Ok(node.text(text)),
    }
}

/// The password of a block that asks for one itself; what is inherited is the site's.
pub(super) fn add_password(rules: &mut Rules, block: &[Directive], chain: Chain<'_>, level: &Level) {
    let said = block.iter().any(|directive| matches!(directive.name.as_str(), "auth_basic" | "auth_basic_user_file"));
    let Some(realm) = chain.last("auth_basic").filter(|_| said) else { return };
    let file = chain.last("auth_basic_user_file").map(Directive::first);
    rules.add_password(realm.first(), file, chain.last("satisfy").map(Directive::first), level);
}

/// Directives that the handler of a location looks at itself.
fn is_of_handler(directive: &Directive) -> bool {
    match directive.name.as_str() {
        "location" | "client_max_body_size" => true,
        // What only errors lead to is no secret.
        "internal" => true,
        // What splits a path into script and the rest.
        "set" => directive.argument(1).starts_with("$fastcgi_"),
        _ => false,
    }
}
