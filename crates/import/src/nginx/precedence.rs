//! Location that nginx chooses for a path, and an order of locations in which the first match is the same one.
//!
//! nginx finds the longest prefix, enters its block and repeats this. Then it finds the first expression that matches,
//! from the innermost block outwards, unless the chosen prefix next to it has `^~`. Where no order gives the same
//! result, there is a [`Conflict`].

use std::cmp::Reverse;

use super::matching::{LocationMatch, expression_of};
use super::syntax::NginxDirective;

/// Maximum nesting of locations; real configurations have less.
pub(super) const DEPTH_MAX: usize = 8;

/// A location of a server.
pub(super) struct ServerLocation<'a> {
    pub(super) location: LocationMatch,
    pub(super) directive: &'a NginxDirective,
    /// The locations around it, the outermost first.
    pub(super) around: Vec<&'a NginxDirective>,
}

/// Paths of two locations that the order gives to another one than nginx does.
#[derive(Clone, Copy)]
pub(super) struct Conflict<'f, 'a> {
    pub(super) prefix: &'f ServerLocation<'a>,
    pub(super) expression: &'f ServerLocation<'a>,
}

/// Locations of a server, nested ones included, in the order of nginx's choice. Locations that nginx never chooses are
/// left out. `refuse` gets those that cannot be read.
pub(super) fn of_server<'a>(
    server: &'a [NginxDirective],
    reject: &mut impl FnMut(&'a NginxDirective, &[&'a NginxDirective], String),
) -> Vec<ServerLocation<'a>> {
    let mut all = Vec::new();
    collect(server, &[], None, &mut all, reject);
    all.retain(|found: &ServerLocation<'a>| found.location.is_expression() || found.is_chosen(server));
    let shields: Vec<String> =
        all.iter().filter(|found| found.is_shielded()).map(|found| found.text().to_owned()).collect();
    all.sort_by_key(|found| found.order(&shields));
    ordered(all)
}

/// Puts each location before those that nginx would choose after it, as far as all such pairs allow.
fn ordered<'a>(mut rest: Vec<ServerLocation<'a>>) -> Vec<ServerLocation<'a>> {
    let precedes = |one: &ServerLocation<'a>, other: &ServerLocation<'a>, is_longest: bool| {
        if !one.location.overlaps(&other.location) {
            return false;
        }
        match (one.location.is_expression(), other.location.is_expression()) {
            (true, false) => other.location.is_prefix() && other.is_searched_for(one),
            (false, true) => is_longest && one.location.is_prefix() && !one.is_searched_for(other),
            (false, false) => one.text().len() > other.text().len() || !one.location.is_prefix(),
            (true, true) => false,
        }
    };
    let longest: Vec<usize> = rest.iter().map(|found| found.longest_around(&rest)).collect();
    let mut before: Vec<Vec<usize>> = rest
        .iter()
        .enumerate()
        .map(|(at, found)| {
            let is_before = |(other, one): &(usize, &ServerLocation<'a>)| {
                let are_expressions = found.location.is_expression() && one.location.is_expression();
                let is_longest = one.location.is_prefix() && one.text().len() >= longest[at];
                *other != at
                    && (precedes(one, found, is_longest)
                        || (are_expressions && *other < at && one.location.overlaps(&found.location)))
            };
            rest.iter().enumerate().filter(is_before).map(|(other, _)| other).collect()
        })
        .collect();
    let mut result = Vec::with_capacity(rest.len());
    let mut left: Vec<Option<ServerLocation<'a>>> = rest.drain(..).map(Some).collect();
    while let Some(first) = left.iter().position(Option::is_some) {
        let is_free = |at: &usize| left[*at].is_some() && before[*at].iter().all(|other| left[*other].is_none());
        // Without a free one there is a conflict.
        let next = (first..left.len()).find(is_free).unwrap_or(first);
        before[next].clear();
        result.extend(left[next].take());
    }
    result
}

fn collect<'a>(
    block: &'a [NginxDirective],
    around: &[&'a NginxDirective],
    prefix: Option<&str>,
    all: &mut Vec<ServerLocation<'a>>,
    reject: &mut impl FnMut(&'a NginxDirective, &[&'a NginxDirective], String),
) {
    for directive in block.iter().filter(|directive| directive.name == "location") {
        if around.len() == DEPTH_MAX {
            reject(directive, around, "blocks are nested too deeply".to_owned());
            continue;
        }
        let location = LocationMatch::read(directive).and_then(|location| location.within(prefix));
        let inside = [around, &[directive]].concat();
        match location {
            Ok(location) => {
                let has_inner = directive.children().iter().any(|child| child.name == "location");
                // The paths of `~ ^/a/` are those of a prefix.
                let front = Some(location.head()).filter(|head| location.is_of_front(head));
                if location.is_expression() && has_inner && front.is_none() {
                    reject(directive, around, "there are locations in one that is an expression".to_owned());
                    continue;
                }
                let front = if location.is_expression() { front.as_deref() } else { location.prefix() };
                collect(directive.children(), &inside, front.or(prefix), all, reject);
                all.push(ServerLocation { location, directive, around: around.to_vec() });
            }
            Err(why) => reject(directive, around, why),
        }
    }
}

/// Pairs of a prefix and an expression whose common paths go to the wrong one of the two.
pub(super) fn conflicts<'f, 'a>(all: &'f [ServerLocation<'a>]) -> Vec<Conflict<'f, 'a>> {
    let mut conflicts = Vec::new();
    let longest: Vec<usize> = all.iter().map(|found| found.longest_around(all)).collect();
    for (index, prefix) in all.iter().enumerate().filter(|(_, found)| found.location.is_prefix()) {
        for (other, expression) in all.iter().enumerate().filter(|(_, found)| found.location.is_expression()) {
            // A location for all paths comes last, even with `^~`.
            let is_before = other < index || prefix.location.pattern().is_none();
            let may_be_longest =
                || prefix.text().len() >= longest[other] && prefix.location.overlaps(&expression.location);
            if prefix.is_searched_for(expression) != is_before && may_be_longest() {
                conflicts.push(Conflict { prefix, expression });
            }
        }
    }
    conflicts
}

/// Location that nginx chooses for a path; `Err` if that is unknown.
pub(super) fn chosen<'a>(block: &'a [NginxDirective], path: &str) -> Result<Option<&'a NginxDirective>, ()> {
    let locations = || block.iter().filter(|directive| directive.name == "location");
    let found = longest(locations(), path);
    let mut inner = None;
    if let Some(found) = found {
        if found.first() == "=" {
            return Ok(Some(found));
        }
        inner = chosen(found.children(), path)?;
        if inner.is_some_and(|inner| matches!(inner.first(), "=" | "~" | "~*")) {
            return Ok(inner);
        }
    }
    let is_first = found.is_some_and(|found| found.first() == "^~");
    let of_expression = locations().filter(|directive| !is_first && matches!(directive.first(), "~" | "~*"));
    for directive in of_expression {
        if expression_of(directive).map_err(drop)?.fits(path) {
            return Ok(chosen(directive.children(), path)?.or(Some(directive)));
        }
    }
    Ok(inner.or(found))
}

/// The location of a block that is the path, or the longest front of it.
fn longest<'a>(locations: impl Iterator<Item = &'a NginxDirective>, path: &str) -> Option<&'a NginxDirective> {
    let fits = |directive: &&NginxDirective| match directive.first() {
        "=" => directive.argument(1) == path,
        "~" | "~*" => false,
        "^~" => path.starts_with(directive.argument(1)),
        prefix => !prefix.starts_with('@') && path.starts_with(prefix),
    };
    let length = |directive: &&NginxDirective| match directive.first() {
        "=" => (true, 0),
        "^~" => (false, directive.argument(1).len()),
        prefix => (false, prefix.len()),
    };
    locations.filter(fits).max_by_key(length)
}

impl<'a> ServerLocation<'a> {
    /// The blocks around it, and its own, the outermost first.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &'a [NginxDirective]> {
        self.around.iter().copied().chain([self.directive]).map(NginxDirective::children)
    }

    /// The locations around it that are no expressions.
    fn prefixes_around(&self) -> impl Iterator<Item = &'a NginxDirective> {
        self.around.iter().copied().filter(|directive| !matches!(directive.first(), "~" | "~*"))
    }

    fn text(&self) -> &str {
        self.location.prefix().unwrap_or_default()
    }

    /// Returns `true` if nginx ever chooses it, for paths that no expression matches.
    fn is_chosen(&self, server: &[NginxDirective]) -> bool {
        let Some(prefix) = self.location.prefix() else { return true };
        let mut path = prefix.to_owned();
        if self.location.is_prefix() {
            // A character with which no other prefix continues.
            path.push('\u{1}');
        }
        let mut block = server;
        for expect in self.around.iter().chain([&self.directive]) {
            let locations = block.iter().filter(|directive| directive.name == "location");
            if !longest(locations, &path).is_some_and(|found| std::ptr::eq(found, *expect)) {
                return false;
            }
            block = expect.children();
        }
        true
    }

    /// Returns `true` if nginx checks no expression of the server for its paths.
    fn is_shielded(&self) -> bool {
        self.location.is_prefix() && self.around.first().unwrap_or(&self.directive).first() == "^~"
    }

    /// Smaller goes first.
    fn order(&self, shields: &[String]) -> (u8, Reverse<usize>) {
        let length = Reverse(self.text().len());
        match &self.location {
            LocationMatch::Exact(_) => (0, Reverse(0)),
            // Expressions inside another one stand before it.
            LocationMatch::Expression(_) => match self.prefixes_around().count() {
                0 => (3, Reverse(0)),
                depth => (1, Reverse(depth)),
            },
            // A longer prefix is found before the shield.
            LocationMatch::Prefix(prefix) | LocationMatch::PrefixFirst(prefix) => {
                let is_shielded = shields.iter().any(|shield| prefix.starts_with(shield));
                (if is_shielded { 2 } else { 4 }, length)
            }
            LocationMatch::Named(_) => (5, Reverse(0)),
        }
    }

    /// Returns `true` if nginx checks an expression for paths of this prefix.
    fn is_searched_for(&self, expression: &Self) -> bool {
        let own: Vec<&NginxDirective> = self.around.iter().copied().chain([self.directive]).collect();
        let depth = expression.prefixes_around().count();
        let is_around = expression.prefixes_around().zip(&own).all(|(one, other)| std::ptr::eq(one, *other));
        is_around && depth <= own.len() && own.get(depth).is_none_or(|beside| beside.first() != "^~")
    }

    /// Length of the longest prefix that all paths of an expression have. None of them has a shorter one.
    fn longest_around(&self, all: &[Self]) -> usize {
        if !self.location.is_expression() {
            return 0;
        }
        let head = self.location.head();
        let prefixes = all.iter().filter(|other| other.location.is_prefix()).map(Self::text);
        prefixes.filter(|prefix| head.starts_with(prefix)).map(str::len).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::nginx::syntax;

    const SERVER: &str = r"
        location / { } location = /x { } location ^~ /s/ { } location /s/p/ { } location ~ \.php$ { } location ~ ^/a/ { }
        location /n/ { location ~ \.n$ { } location /n/m/ { } location = /n/x { } } location /n/m/o/ { }
        location /n/m/o/p { }";

    #[test]
    fn locations_are_chosen_as_by_nginx() {
        let directives = syntax::parse(Path::new("n"), SERVER).unwrap();
        let check = |path: &str, expect: &str| {
            let found = chosen(&directives, path).unwrap().map(NginxDirective::line);
            assert_eq!(found.as_deref(), Some(format!("location {expect}").as_str()), "{path}");
        };
        check("/y", "/");
        check("/x", "= /x");
        check("/x.php", r"~ \.php$");
        check("/s/x.php", "^~ /s/");
        check("/s/p/x.php", r"~ \.php$");
        check("/a/x.php", r"~ \.php$");
        check("/a/x", "~ ^/a/");
        check("/n/x", "= /n/x");
        check("/n/y", "/n/");
        check("/n/y.n", r"~ \.n$");
        check("/n/m/y.n", r"~ \.n$");
        check("/n/m/y", "/n/m/");
        check("/n/m/y.php", r"~ \.php$");
        check("/n/m/o/y.n", "/n/m/o/");
    }

    #[test]
    fn what_no_order_can_say_is_known() {
        let check = |text: &str, expect: &[(&str, &str)]| {
            let directives = syntax::parse(Path::new("n"), text).unwrap();
            let all = of_server(&directives, &mut |directive, _, why| panic!("{}: {why}", directive.line()));
            let found: Vec<(String, String)> = conflicts(&all)
                .iter()
                .map(|Conflict { prefix, expression }| (prefix.directive.line(), expression.directive.line()))
                .collect();
            let line = |text: &str| format!("location {text}");
            let expect: Vec<(String, String)> = expect.iter().map(|(a, b)| (line(a), line(b))).collect();
            assert_eq!(found, expect, "{text}");
        };
        check(r"location / { } location /a/ { } location ~ \.php$ { } location ^~ /s/ { } location = /x { }", &[]);
        check(r"location ^~ /s/ { } location /s/p/ { } location ~ \.php$ { }", &[("/s/p/", r"~ \.php$")]);
        check(r"location ^~ /s/ { } location /s/p/ { } location ~ ^/a { }", &[]);
        check(r"location ^~ / { } location ~ \.php$ { }", &[("^~ /", r"~ \.php$")]);
        check(r"location ^~ /s/ { location ~ \.php$ { } } location ~ \.php$ { }", &[]);
        check(r"location /n/ { location ~ \.php$ { } } location /n/m/ { }", &[]);
        check(
            r"location /n/ { location ~ \.php$ { } } location /n/m/ { } location ~ \.p { }",
            &[("/n/m/", r"~ \.php$")],
        );
        check(r"location /n/ { location ~ \.php$ { } location /n/m/ { } }", &[]);
    }
}
