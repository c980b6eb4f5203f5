//! `rewrite` and `return`: other paths and other places for requests.

use regex::Regex;

use super::Notes;
use super::condition::{self, Test};
use super::location::Scene;
use super::precedence::{chosen, has_branches, heads_meet};
use super::settings::{Level, Rules};
use super::syntax::Directive;
use super::values::{self, Location, expression, push_query, without_look_around};
use crate::import::kdl::Node;

/// Expressions that fit all paths and keep what they are, and those that keep what is behind the slash.
const WHOLE: [&str; 5] = ["(.*)", "^(.*)", "^(.*)$", "(.*)$", "^(.+)$"];
const BEHIND_SLASH: [&str; 4] = ["/(.*)", "^/(.*)", "^/(.*)$", "/(.*)$"];
const ANY: [&str; 9] = ["^", "/", "^/", ".*", "^.*", "^.*$", ".*$", "^/.*", "^/.*$"];

/// `rewrite EXPRESSION TARGET [FLAG]`, for the paths of a location's pattern, perhaps on a condition. `None` if it never applies.
///
/// # Errors
///
/// Why it can't be said here.
pub(super) fn rewrite(
    directive: &Directive,
    pattern: Option<&str>,
    test: Option<&Test>,
) -> Result<Option<Node>, String> {
    let Some((pattern, source)) = confined(directive.first(), directive.argument(1), pattern)? else { return Ok(None) };
    let mut target = values::target(&source, &pattern)?;
    if target.starts_with('{') && !target.starts_with("{path}") && !target.starts_with("{scheme}") {
        // A group mostly begins with a slash; of two at the start one is taken away.
        target.insert(0, '/');
    }
    let status = match directive.argument(2) {
        "permanent" => Some(301),
        "redirect" => Some(302),
        _ if is_redirect(directive) => Some(302),
        _ => None,
    };
    let is_without_query = target.ends_with('?');
    if is_without_query {
        target.pop();
    } else if !target.contains("query}") && (status.is_some() || target.contains('?')) {
        push_query(&mut target);
    }
    let node = match status {
        Some(status) => Node::with("redirect", pattern).text(target).word_property("status", status),
        None => Node::with("rewrite", pattern).text(target),
    };
    Ok(Some(test.into_iter().fold(node, |node, test| test.on(node))))
}

/// The pattern of the paths that an expression fits within a location, and the target in its terms.
fn confined(fits: &str, target: &str, pattern: Option<&str>) -> Result<Option<(String, String)>, String> {
    let all = pattern.unwrap_or("*");
    let of_all = |target: String| match target.contains("$1") {
        true => Err("what the expression keeps has no name in the target".to_owned()),
        false => Ok(Some((all.to_owned(), target))),
    };
    if ANY.contains(&fits) {
        return of_all(target.to_owned());
    }
    if WHOLE.contains(&fits) {
        return of_all(target.replace("$1", "$uri"));
    }
    if BEHIND_SLASH.contains(&fits) {
        return of_all(target.replace("/$1", "$uri"));
    }
    if !may_apply(fits, pattern) {
        return Ok(None);
    }
    let fits = expression(fits, false)?;
    let Some(pattern) = pattern else { return Ok(Some((format!("~{fits}"), target.to_owned()))) };
    if pattern.starts_with('/') && !pattern.ends_with('*') {
        return Ok(of_path(&fits, target, pattern));
    }
    let head = head(&fits);
    let is_within = literal(pattern).is_some_and(|literal| head.starts_with(&literal));
    match is_within && !has_branches(&fits) {
        true if fits.starts_with('^') => Ok(Some((format!("~{fits}"), target.to_owned()))),
        true => Ok(Some((format!("~^{fits}"), target.to_owned()))),
        false => {
            Err("a rewrite is for all paths that its expression fits, not only for those of a location".to_owned())
        }
    }
}

/// Whether paths of a pattern may begin as those of an expression do.
fn may_apply(fits: &str, pattern: Option<&str>) -> bool {
    let pattern = pattern.unwrap_or_default();
    let start = match pattern.strip_prefix("~^") {
        Some(expression) if !has_branches(expression) => head(expression),
        Some(_) => String::new(),
        None => pattern.split(['*', '~']).next().unwrap_or_default().to_owned(),
    };
    !fits.starts_with('^') || has_branches(fits) || heads_meet(&head(fits), &start)
}

/// The same for a single path: whether it is one that fits is known, and what the groups are.
fn of_path(fits: &str, target: &str, path: &str) -> Option<(String, String)> {
    let captures = Regex::new(fits).ok()?.captures(path)?;
    let mut target = target.to_owned();
    for index in (1..captures.len()).rev() {
        target = target.replace(&format!("${index}"), captures.get(index).map_or("", |group| group.as_str()));
    }
    Some((path.to_owned(), target))
}

/// Whether a block sends requests elsewhere whose paths begin so.
pub(super) fn reaches(block: &[Directive], head: &str) -> bool {
    block.iter().any(|directive| match directive.name.as_str() {
        "return" => redirect(directive, "*").is_some(),
        "if" => reaches(directive.children(), head),
        "rewrite" => Path::BeginsWith(head).may_fit(directive.first()),
        _ => false,
    })
}

/// What is known of a path.
#[derive(Clone, Copy)]
enum Path<'a> {
    Is(&'a str),
    BeginsWith(&'a str),
}

impl<'a> Path<'a> {
    /// What is known of the path that a rewrite leads to.
    fn of_target(target: &'a str) -> Self {
        let path = target.split('?').next().unwrap_or_default();
        match path.find('$') {
            Some(end) => Self::BeginsWith(&path[..end]),
            None => Self::Is(path),
        }
    }

    /// Whether an expression may fit it.
    fn may_fit(self, expression: &str) -> bool {
        match self {
            Self::Is(path) => Regex::new(expression).map_or(true, |expression| expression.is_match(path)),
            Self::BeginsWith(start) => {
                !expression.starts_with('^') || has_branches(expression) || heads_meet(&head(expression), start)
            }
        }
    }

    /// The locations that may have it.
    fn locations(self, server: &'a [Directive]) -> Vec<&'a Directive> {
        let start = match self {
            Self::Is(path) => match chosen(server, path) {
                Ok(found) => return found.into_iter().collect(),
                Err(()) => path,
            },
            Self::BeginsWith(start) => start,
        };
        let mut all = Vec::new();
        collect(server, &mut all);
        let whole = |directive: &&&Directive| match Location::read(directive) {
            Ok(location) if location.is_prefix() => {
                location.prefix().filter(|prefix| start.starts_with(prefix)).map(str::len)
            }
            _ => None,
        };
        let longest = all.iter().filter_map(|directive| whole(&directive)).max();
        all.retain(|directive| match Location::read(directive) {
            Ok(Location::Named(_)) => false,
            Ok(Location::Exact(path)) => path.starts_with(start),
            Ok(location) => {
                heads_meet(&location.head(), start) && whole(&directive).is_none_or(|length| Some(length) == longest)
            }
            Err(_) => true,
        });
        all
    }
}

fn collect<'a>(block: &'a [Directive], all: &mut Vec<&'a Directive>) {
    for directive in block.iter().filter(|directive| directive.name == "location") {
        all.push(directive);
        collect(directive.children(), all);
    }
}

/// Whether a rewrite is one that clients see.
pub(super) fn is_redirect(directive: &Directive) -> bool {
    let target = directive.argument(1);
    matches!(directive.argument(2), "permanent" | "redirect") || target.contains("://") || target.starts_with("$scheme")
}

/// Why a rewrite can't be one of ours, which are applied once and to whichever location has the path then, if it can't be.
/// `block` is what it stands in, of a location or of the server.
pub(super) fn leads_on(directive: &Directive, block: &[Directive], server: &[Directive]) -> Option<&'static str> {
    if is_redirect(directive) {
        return None;
    }
    let path = Path::of_target(directive.argument(1));
    let is_of_server = std::ptr::eq(block, server);
    let locations = path.locations(server);
    if directive.argument(2) == "break" && !is_of_server {
        let is_own = |location: &&Directive| std::ptr::eq(location.children(), block);
        return (!locations.iter().all(is_own)).then_some("its paths stay this location's, whosever they would be");
    }
    let behind = block.iter().position(|other| other.text() == directive.text()).map_or(block, |at| &block[at + 1..]);
    let goes_on = directive.argument(2).is_empty() && sends_on(behind, path);
    let is_sent_on = goes_on || locations.iter().any(|location| sends_on(location.children(), path));
    is_sent_on.then_some("what it leads to would be sent elsewhere once more")
}

/// Whether nginx sends a path on that `try_files` has led to, for which it begins anew.
pub(super) fn is_sent_on(path: &str, server: &[Directive]) -> bool {
    let path = Path::of_target(path);
    sends_on(server, path) || path.locations(server).iter().any(|location| sends_on(location.children(), path))
}

/// A rewrite of index files that is none of their directories: nginx applies it when it has found one.
pub(super) fn of_index<'a>(server: &'a [Directive]) -> Option<&'a Directive> {
    let mut locations = Vec::new();
    collect(server, &mut locations);
    let blocks = || std::iter::once(server).chain(locations.iter().map(|location| location.children()));
    let mut names: Vec<&str> = vec!["index.html"];
    for directive in blocks().flatten().filter(|directive| directive.name == "index") {
        names.extend(directive.arguments.iter().map(|name| name.trim_start_matches('/')));
    }
    let prefixes = locations.iter().filter_map(|location| Location::read(location).ok()?.prefix().map(str::to_owned));
    let heads = blocks().flatten().filter(|directive| directive.name == "rewrite").map(|rewrite| head(rewrite.first()));
    let directories = prefixes.chain(heads).filter_map(|path| Some(path[..=path.rfind('/')?].to_owned()));
    let rewritten = |path: &str| {
        let location = chosen(server, path).ok().flatten();
        let own = location.into_iter().flat_map(Directive::children);
        server.iter().chain(own).find(|directive| {
            directive.name == "rewrite" && !is_redirect(directive) && Path::Is(path).may_fit(directive.first())
        })
    };
    directories.chain(["/".to_owned(), "/a/".to_owned()]).find_map(|directory| {
        let of_index = names.iter().find_map(|name| rewritten(&format!("{directory}{name}")))?;
        rewritten(&directory).is_none().then_some(of_index)
    })
}

fn sends_on(block: &[Directive], path: Path<'_>) -> bool {
    block.iter().any(|directive| match directive.name.as_str() {
        "return" => redirect(directive, "*").is_some(),
        // What is there is not sent on for not being there.
        "if" => !condition::is_of_missing(directive) && sends_on(directive.children(), path),
        "rewrite" => path.may_fit(directive.first()),
        _ => false,
    })
}

/// The only path that a block leads to, if it does nothing else.
pub(super) fn of_all(block: &[Directive]) -> Option<&str> {
    let [directive] = block else { return None };
    let is_of_all =
        directive.name == "rewrite" && (ANY.contains(&directive.first()) || WHOLE.contains(&directive.first()));
    let path = directive.argument(1).split('?').next().filter(|path| path.starts_with('/') && !path.contains('$'));
    path.filter(|_| is_of_all && matches!(directive.argument(2), "" | "last") && !is_redirect(directive))
}

/// A pattern of at least all paths that a rewrite is for, if these are not all.
pub(super) fn paths(directive: &Directive, pattern: Option<&str>) -> Option<String> {
    let fits = directive.first();
    let is_for_all = ANY.contains(&fits) || WHOLE.contains(&fits) || BEHIND_SLASH.contains(&fits);
    let fits = expression(&without_look_around(fits), false).ok().filter(|fits| !is_for_all && !fits.is_empty());
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

/// Refuses the paths of a rewrite that can't be one of ours, alone or in an `if`, and says whether it is one.
pub(super) fn refuse_further(
    directive: &Directive,
    scene: Scene<'_>,
    level: &Level,
    rules: &mut Rules,
    notes: &mut Notes,
) -> bool {
    let own = scene.chain.blocks.iter().rev().find(|block| !block.is_empty()).copied().unwrap_or_default();
    refuse(directive, own, scene.server, level, rules, notes)
}

/// The same for one of these blocks, the server's or a location's.
pub(super) fn refuse(
    directive: &Directive,
    block: &[Directive],
    server: &[Directive],
    level: &Level,
    rules: &mut Rules,
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
        // What is not there is nobody's then.
        notes.left(directive, why);
        return true;
    }
    rules.close_paths(directive, paths(rewrite, level.pattern()), why, notes);
    true
}

/// The front that a `rewrite … break` takes from the paths of a location before its handler has them.
pub(super) fn stripped_prefix<'a>(directive: &Directive, location: &'a Location) -> Option<&'a str> {
    if directive.name != "rewrite" || directive.argument(2) != "break" {
        return None;
    }
    let (Location::Prefix(prefix) | Location::PrefixFirst(prefix)) = location else { return None };
    let prefix = prefix.trim_end_matches('/');
    let rest = directive.first().trim_start_matches('^').strip_prefix(prefix)?.trim_end_matches('$');
    let is_front = matches!(
        (rest, directive.argument(1)),
        ("/(.*)" | "/(.+)" | "/?(.*)" | "/*(.*)", "/$1") | ("(/.*)" | "(/.+)" | "(.*)", "$1")
    );
    (is_front && !prefix.is_empty()).then_some(prefix)
}

/// `return 301 URL`; `None` if it is no redirect.
pub(super) fn redirect(directive: &Directive, pattern: &str) -> Option<Result<Node, String>> {
    let (status, target) = match (directive.first(), directive.argument(1)) {
        (url, "") if url.contains("://") => ("302", url),
        (status @ ("301" | "302" | "303" | "307" | "308"), target) => (status, target),
        _ => return None,
    };
    Some(
        values::target(target, pattern)
            .map(|target| Node::with("redirect", pattern).text(target).word_property("status", status)),
    )
}

/// What all paths of a pattern begin with, if they are all that begin so: `/a/` of `/a/*`, `/a` of `~^/a`.
fn literal(pattern: &str) -> Option<String> {
    match pattern.strip_prefix("~^") {
        Some(expression) => Some(head(expression)).filter(|head| regex::escape(head) == expression),
        None => pattern.strip_suffix('*').filter(|prefix| prefix.starts_with('/')).map(str::to_owned),
    }
}

/// What all that an expression fits begins with.
pub(super) fn head(expression: &str) -> String {
    let mut head = String::new();
    let mut characters = expression.strip_prefix('^').unwrap_or(expression).chars().peekable();
    while let Some(character) = characters.next() {
        let literal = match character {
            '\\' => match characters.next_if(|next| !next.is_alphanumeric()) {
                Some(escaped) => escaped,
                None => break,
            },
            '.' | '(' | ')' | '[' | '^' | '$' | '|' | '+' => break,
            // What stands before may be there no time.
            '?' | '*' | '{' => {
                head.pop();
                break;
            }
            literal => literal,
        };
        head.push(literal);
    }
    head
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::import::kdl;
    use crate::import::nginx::syntax;

    #[test]
    fn rewrites_stay_in_their_location() {
        let check = |text: &str, pattern: Option<&str>, expect: Result<Option<&str>, &str>| {
            let directives = syntax::parse(Path::new("n"), &format!("rewrite {text};")).unwrap();
            let found = rewrite(&directives[0], pattern, None).map(|node| node.map(|node| kdl::write(&[node])));
            match (&found, expect) {
                (Ok(found), Ok(expect)) => assert_eq!(found.as_deref().map(str::trim_end), expect, "{text}"),
                (Err(why), Err(expect)) => assert!(why.contains(expect), "{text}: {why}"),
                _ => panic!("{text}: {found:?}, expected {expect:?}"),
            }
        };
        check("^ /b", None, Ok(Some(r#"rewrite "*" "/b""#)));
        check("^ /b break", Some("~^/a"), Ok(Some(r#"rewrite "~^/a" "/b""#)));
        check("(.*) /b?p=$1 last", Some("~^/a"), Ok(Some(r#"rewrite "~^/a" "/b?p={path}{&query}""#)));
        check(
            "^(.*)$ /new$1 permanent",
            Some("/old/*"),
            Ok(Some(r#"redirect "/old/*" "/new{path}{query}" status=301"#)),
        );
        check("^/(.*)$ https://b/$1?", Some("*.x"), Ok(Some(r#"redirect "*.x" "https://b{path}" status=302"#)));
        check("^/(.*)$ /b?q=$1", None, Err("has no name"));
        check("^/a/(.*)$ /b/$1", Some("/a/*"), Ok(Some(r#"rewrite "~^/a/(.*)$" "/b/{1}""#)));
        check("/a/(.*)$ /b/$1", Some("/a/*"), Ok(Some(r#"rewrite "~^/a/(.*)$" "/b/{1}""#)));
        check("^/a/?(.*)$ /b/$1", Some("/a/*"), Err("not only for those of a location"));
        check("^/a/x|/b /b", Some("/a/*"), Err("not only for those of a location"));
        check(r"/(.*)\.htm$ /b/$1", Some("~^/a"), Err("not only for those of a location"));
        check(r"^/(\w+)$ /b/$1", Some("/a"), Ok(Some(r#"rewrite "/a" "/b/a""#)));
        check(r"^/(\d+)$ /b/$1", Some("/a"), Ok(None));
        check("^/a(?<n>.)$ /b/$n", None, Ok(Some(r#"rewrite "~^/a(?<n>.)$" "/b/{n}""#)));
    }

    #[test]
    fn expressions_begin_with_their_head() {
        let check = |expression: &str, expect: &str| assert_eq!(head(expression), expect, "{expression}");
        check(r"^/a\.b/(.*)$", "/a.b/");
        check("^/ab?c", "/a");
        check("^/ab+c", "/ab");
        check("^/ab{0,2}c", "/a");
        check(r"^/\d+", "/");
        check("(a|b)", "");
    }
}
