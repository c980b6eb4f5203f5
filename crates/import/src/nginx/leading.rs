//! Targets of rewrites: nginx continues there with the rewrites of the location that has the new path, and this server
//! stops.

use regex::Regex;

use super::matching::{LocationMatch, exception, expression, has_branches, head, heads_meet, without_look_around};
use super::precedence::chosen;
use super::rewrite::{is_of_all, is_redirect, literal, may_apply, redirect};
use super::scene::Scene;
use super::settings::{DirectiveLevel, ImportedRules};
use super::syntax::NginxDirective;
use super::{Chain, Notes, condition, guard};
use crate::kdl::KdlNode;
use crate::pattern::quoted;

/// Returns `true` if a block sends requests elsewhere whose paths begin with `head`.
pub(super) fn reaches(block: &[NginxDirective], head: &str) -> bool {
    block.iter().any(|directive| match directive.name.as_str() {
        "return" => redirect(directive, "*").is_some(),
        "if" => reaches(directive.children(), head),
        "rewrite" => Path::BeginsWith(head).may_fit(directive),
        _ => false,
    })
}

/// Knowledge about a path.
#[derive(Clone, Copy)]
enum Path<'a> {
    Is(&'a str),
    BeginsWith(&'a str),
}

impl<'a> Path<'a> {
    /// Knowledge about the target of a rewrite.
    fn of_target(target: &'a str) -> Self {
        let path = target.split('?').next().unwrap_or_default();
        match path.find(['$', '{']) {
            Some(end) => Self::BeginsWith(&path[..end]),
            None => Self::Is(path),
        }
    }

    /// Returns `true` if an expression may match it.
    fn may_fit(self, rewrite: &NginxDirective) -> bool {
        let expression = rewrite.first();
        if let Some((base, except)) = exception(expression) {
            let fits = |expression: &str, path| Regex::new(expression).map_or(true, |found| found.is_match(path));
            return match self {
                Self::Is(path) => fits(&base, path) && !fits(&except, path),
                // All that follows a match is of no importance.
                Self::BeginsWith(start) => may_begin(&base, start) && (except.contains('$') || !fits(&except, start)),
            };
        }
        match self {
            Self::Is(path) => {
                let compiled = rewrite.expression.get(|| Ok(expression.to_owned()));
                compiled.map_or(true, |compiled| compiled.regex().is_none_or(|regex| regex.is_match(path)))
            }
            Self::BeginsWith(start) => may_begin(expression, start),
        }
    }

    /// Returns `true` if it may belong to no location, except those that may match more of it than is known.
    fn may_have_no_location(self, server: &[NginxDirective]) -> bool {
        let (Self::Is(start) | Self::BeginsWith(start)) = self;
        let has_all = |location: LocationMatch| match location {
            LocationMatch::Prefix(prefix) | LocationMatch::PrefixFirst(prefix) => start.starts_with(&prefix),
            LocationMatch::Exact(path) => matches!(self, Self::Is(_)) && path == start,
            LocationMatch::Expression(_) | LocationMatch::Named(_) => false,
        };
        let locations = server.iter().filter(|directive| directive.name == "location");
        !locations.filter_map(|directive| LocationMatch::read(directive).ok()).any(has_all)
    }

    /// The locations that may have it.
    fn locations(self, server: &'a [NginxDirective]) -> Vec<&'a NginxDirective> {
        let start = match self {
            Self::Is(path) => match chosen(server, path) {
                Ok(found) => return found.into_iter().collect(),
                Err(()) => path,
            },
            Self::BeginsWith(start) => start,
        };
        let mut all = Vec::new();
        collect(server, &mut all);
        let whole = |directive: &&&NginxDirective| match LocationMatch::read(directive) {
            Ok(location) if location.is_prefix() => {
                location.prefix().filter(|prefix| start.starts_with(prefix)).map(str::len)
            }
            _ => None,
        };
        let longest = all.iter().filter_map(|directive| whole(&directive)).max();
        all.retain(|directive| match LocationMatch::read(directive) {
            Ok(LocationMatch::Named(_)) => false,
            Ok(LocationMatch::Exact(path)) => path.starts_with(start),
            Ok(location) => {
                heads_meet(&location.head(), start) && whole(&directive).is_none_or(|length| Some(length) == longest)
            }
            Err(_) => true,
        });
        all
    }
}

/// Returns `true` if an expression may match paths with this start.
fn may_begin(expression: &str, start: &str) -> bool {
    !expression.starts_with('^') || has_branches(expression) || heads_meet(&head(expression), start)
}

fn collect<'a>(block: &'a [NginxDirective], all: &mut Vec<&'a NginxDirective>) {
    for directive in block.iter().filter(|directive| directive.name == "location") {
        all.push(directive);
        collect(directive.children(), all);
    }
}

/// Reason why a rewrite cannot be translated, if there is one: here, rewrites apply once, and to any location that has
/// the path then. `block` is the block of the location or server that contains it.
pub(super) fn leads_on(
    directive: &NginxDirective,
    block: &[NginxDirective],
    server: &[NginxDirective],
) -> Option<&'static str> {
    if is_redirect(directive) {
        return None;
    }
    let path = Path::of_target(directive.argument(1));
    let is_of_server = std::ptr::eq(block, server);
    let locations = path.locations(server);
    if directive.argument(2) == "break" && !is_of_server {
        // The path stays in its location. This makes no difference if another location has the same files.
        let own = meaning(server, &|location| std::ptr::eq(location.children(), block));
        let is_same = |location: &&NginxDirective| meaning(server, &|other| std::ptr::eq(other, *location)) == own;
        let is_same_without_location = || meaning(server, &|_| false) == own;
        let is_same_for_all =
            locations.iter().all(is_same) && (!path.may_have_no_location(server) || is_same_without_location());
        return (!is_same_for_all).then_some("its paths stay this location's, whosever they would be");
    }
    let later = block.iter().position(|other| other.text() == directive.text()).map_or(block, |at| &block[at + 1..]);
    let goes_on = directive.argument(2).is_empty() && sends_on(later, path);
    let is_sent_on = goes_on || locations.iter().any(|location| sends_on(location.children(), path));
    is_sent_on.then_some("what it leads to would be sent elsewhere once more")
}

/// Rejects the directories of a location from whose paths a rewrite removes the prefix, if the location of the rest
/// differs. nginx looks there for the index.
pub(super) fn reject_stripped_index(
    directive: &NginxDirective,
    prefix: &str,
    scene: Scene<'_>,
    rules: &mut ImportedRules,
    notes: &mut Notes,
) {
    if leads_on(directive, scene.block(), scene.server).is_some() {
        let pattern = format!("~^{}/(?:.*/)?$", regex::escape(prefix));
        let why = "the location of the path without its prefix decides who gets the index of a directory";
        rules.close_paths(directive, Some(pattern), why, notes);
    }
}

/// Guards and directories of a location, whatever rewrites it has.
fn meaning(server: &[NginxDirective], is_meant: &dyn Fn(&NginxDirective) -> bool) -> Vec<String> {
    let mut blocks = Vec::new();
    find(server, is_meant, &mut blocks);
    let chain = Chain::new(&[]).with(server).with_all(blocks.iter().copied());
    let lines = guard::meaning_of_files(chain, blocks.last().copied().unwrap_or_default());
    lines.into_iter().filter(|line| !line.starts_with("rewrite ")).collect()
}

/// Finds a location within a block, with the blocks around it.
fn find<'a>(
    within: &'a [NginxDirective],
    is_meant: &dyn Fn(&NginxDirective) -> bool,
    blocks: &mut Vec<&'a [NginxDirective]>,
) -> bool {
    within.iter().filter(|directive| directive.name == "location").any(|directive| {
        blocks.push(directive.children());
        let is_found = is_meant(directive) || find(directive.children(), is_meant, blocks);
        if !is_found {
            blocks.pop();
        }
        is_found
    })
}

/// Returns `true` if nginx rewrites a path again after `try_files` of this location has led to it.
pub(super) fn is_sent_on(path: &str, scene: Scene<'_>) -> bool {
    let path = Path::of_target(path);
    let own = scene.block();
    let sends = |location: &&NginxDirective| match std::ptr::eq(location.children(), own) {
        true => sends_another_on(own, path),
        false => sends_on(location.children(), path),
    };
    sends_another_on(scene.server, path) || path.locations(scene.server).iter().any(sends)
}

/// Returns `true` if a block rewrites a path again to which it has led. Facts about all paths also hold for the one
/// before.
fn sends_another_on(block: &[NginxDirective], path: Path<'_>) -> bool {
    block.iter().any(|directive| match directive.name.as_str() {
        "if" if condition::is_of_path(directive) => sends_on(std::slice::from_ref(directive), path),
        "if" => !condition::is_of_missing(directive) && sends_another_on(directive.children(), path),
        "rewrite" => path.may_fit(directive) && !(is_redirect(directive) && is_of_all(directive.first())),
        _ => false,
    })
}

/// Returns `true` if a rule of a server is for a path that nginx requests itself. Other facts are those of the request
/// before.
pub(super) fn changes(server: &[NginxDirective], path: &str) -> bool {
    server.iter().any(|directive| match directive.name.as_str() {
        "if" => {
            condition::is_of_path(directive) || condition::parts(directive)[0].trim_start_matches('!').starts_with('-')
        }
        "rewrite" => Path::Is(path).may_fit(directive),
        _ => false,
    })
}

/// Directive that sends index files elsewhere but not their directories. nginx does so when it has found one.
pub(super) fn of_index(server: &[NginxDirective]) -> Option<&NginxDirective> {
    let mut locations = Vec::new();
    collect(server, &mut locations);
    let blocks = || std::iter::once(server).chain(locations.iter().map(|location| location.children()));
    let mut names: Vec<&str> = vec!["index.html"];
    for directive in blocks().flatten().filter(|directive| directive.name == "index") {
        names.extend(directive.arguments.iter().map(|name| name.trim_start_matches('/')));
    }
    let of_locations = locations.iter().filter_map(|location| Some(LocationMatch::read(location).ok()?.head()));
    let heads = blocks().flatten().filter(|directive| directive.name == "rewrite").map(|rewrite| head(rewrite.first()));
    let directories = of_locations.chain(heads).flat_map(|path| {
        let directory = path.rfind('/').map(|end| path[..=end].to_owned());
        directory.into_iter().chain((!path.ends_with('/')).then(|| format!("{path}/")))
    });
    let sent_on = |path: &str| {
        let location = chosen(server, path).ok().flatten();
        let own = location.into_iter().flat_map(NginxDirective::children);
        let leads = |directive: &&NginxDirective| match directive.name.as_str() {
            "rewrite" => !is_redirect(directive) && Path::Is(path).may_fit(directive),
            // Such as those who have not signed in.
            "if" => !condition::is_of_missing(directive) && sends_on(directive.children(), Path::Is(path)),
            _ => false,
        };
        server.iter().chain(own).filter(leads).collect::<Vec<_>>()
    };
    directories.chain(["/".to_owned(), "/a/".to_owned()]).find_map(|directory| {
        let of_directory = sent_on(&directory);
        let is_own = |lead: &&NginxDirective| !of_directory.iter().any(|other| std::ptr::eq(*other, *lead));
        names.iter().find_map(|name| sent_on(&format!("{directory}{name}")).into_iter().find(is_own))
    })
}

/// Returns `true` if a rewrite leads all paths but some to a front controller, with the path after its name.
pub(super) fn is_front(rewrite: &NginxDirective) -> bool {
    exception(rewrite.first()).is_some() && rewrite.argument(1).ends_with(".php$request_uri")
}

/// Rewrite of directories to such a front controller, which nginx applies to their indexes.
pub(super) fn front_of_directories(server: &[NginxDirective]) -> Option<KdlNode> {
    let rewrite = of_index(server).filter(|rewrite| is_front(rewrite))?;
    let (base, except) = exception(rewrite.first())?;
    let target = rewrite.argument(1).replace("$request_uri", "{path}{query}");
    let root = base.trim_start_matches('^');
    let when =
        format!("path matches {} and not path matches {} and path != {}", quoted(&base), quoted(&except), quoted(root));
    Some(KdlNode::with("rewrite", "~/$").text(target).property("when", when))
}

fn sends_on(block: &[NginxDirective], path: Path<'_>) -> bool {
    block.iter().any(|directive| match directive.name.as_str() {
        "return" => redirect(directive, "*").is_some(),
        // Existing files do not match this condition.
        "if" => !condition::is_of_missing(directive) && sends_on(directive.children(), path),
        "rewrite" => path.may_fit(directive),
        _ => false,
    })
}

/// The only path that a block leads to, if it does nothing else.
pub(super) fn of_all(block: &[NginxDirective]) -> Option<&str> {
    let [directive] = block else { return None };
    let is_of_all = directive.name == "rewrite" && is_of_all(directive.first());
    let path = directive.argument(1).split('?').next().filter(|path| path.starts_with('/') && !path.contains('$'));
    path.filter(|_| is_of_all && matches!(directive.argument(2), "" | "last") && !is_redirect(directive))
}

/// A pattern of at least all paths that a rewrite is for, if these are not all.
pub(super) fn paths(directive: &NginxDirective, pattern: Option<&str>) -> Option<String> {
    let fits = directive.first();
    let fits = expression(&without_look_around(fits), false)
        .ok()
        .filter(|fits| !is_of_all(directive.first()) && !fits.is_empty());
    let is_within = |fits: &str| match pattern {
        None => true,
        Some(pattern) => {
            fits.starts_with('^') && literal(pattern).is_some_and(|literal| head(fits).starts_with(&literal))
        }
    };
    match fits.filter(|fits| is_within(fits) && !has_branches(fits)) {
        Some(fits) => Some(format!("~{fits}")),
        None => pattern.map(str::to_owned),
    }
}

/// Rejects the paths of a rewrite that cannot be translated, alone or in an `if`. Returns `true` if it is one.
pub(super) fn reject_further(
    directive: &NginxDirective,
    scene: Scene<'_>,
    level: &DirectiveLevel,
    rules: &mut ImportedRules,
    notes: &mut Notes,
) -> bool {
    reject(directive, scene.block(), scene.server, level, rules, notes)
}

/// Rejects such paths of one of these blocks, the server's or a location's.
pub(super) fn reject(
    directive: &NginxDirective,
    block: &[NginxDirective],
    server: &[NginxDirective],
    level: &DirectiveLevel,
    rules: &mut ImportedRules,
    notes: &mut Notes,
) -> bool {
    let rewrite = match directive.name.as_str() {
        "rewrite" => Some(directive),
        "if" => directive.children().iter().find(|child| child.name == "rewrite"),
        _ => None,
    };
    let rewrite = rewrite.filter(|rewrite| may_apply(rewrite.first(), level.pattern()));
    let Some((rewrite, why)) = rewrite.and_then(|rewrite| Some((rewrite, leads_on(rewrite, block, server)?))) else {
        return false;
    };
    if condition::is_of_missing(directive) {
        // Missing files then have no handler.
        notes.left(directive, why);
        return true;
    }
    rules.close_paths(directive, paths(rewrite, level.pattern()), why, notes);
    true
}
