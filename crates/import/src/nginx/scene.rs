//! Surroundings of a location, to which it may refer.

use super::files::{DirectoryOptions, alias};
use super::http::HttpBlock;
use super::matching::{LocationMatch, heads_meet};
use super::precedence::{ServerLocation, chosen};
use super::syntax::NginxDirective;
use super::{Chain, guard, leading};

/// A location as what is made of it depends on: where it stands, and what it may refer to.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) location: &'a LocationMatch,
    /// The blocks that hold there; its own is the last.
    pub(super) chain: Chain<'a>,
    /// All locations of the server: some are referred to by `@name`.
    pub(super) locations: &'a [ServerLocation<'a>],
    /// Locations that have paths of this one which it lacks.
    pub(super) wider: &'a [ServerLocation<'a>],
    /// Block of the server.
    pub(super) server: &'a [NginxDirective],
    /// Directives around all locations.
    pub(super) around: Chain<'a>,
    /// The site's own files' directories.
    pub(super) directories: &'a DirectoryOptions<'a>,
    pub(super) shared: &'a HttpBlock,
}

impl<'a> Scene<'a> {
    /// The innermost block that says anything.
    pub(super) fn block(&self) -> &'a [NginxDirective] {
        self.chain.blocks.iter().rev().find(|block| !block.is_empty()).copied().unwrap_or_default()
    }

    /// The location as the server has it.
    fn found(&self) -> Option<&'a ServerLocation<'a>> {
        self.locations.iter().find(|found| std::ptr::eq(&found.location, self.location))
    }

    /// A location that has some paths before this one, and neither a directive of this one nor another that rejects all
    /// clients.
    pub(super) fn claimed_without(&self, directive: &NginxDirective) -> Option<&'a ServerLocation<'a>> {
        let own = self.locations.len() - self.wider.len();
        let text = directive.text();
        let is_like = |child: &NginxDirective| {
            child.text() == text
                || (child.name == "deny" && child.first() == "all")
                || matches!((child.name.as_str(), child.first().as_bytes().first()), ("return", Some(b'4')))
        };
        self.locations[..own.saturating_sub(1)].iter().find(|other| {
            !matches!(other.location, LocationMatch::Named(_))
                && other.location.overlaps(self.location)
                && !other.directive.children().iter().any(is_like)
        })
    }

    /// The directive of a location that is of directories only, if others are to say who gets their index.
    pub(super) fn with_index_of_others(&self, directories: &DirectoryOptions<'_>) -> Option<&'a NginxDirective> {
        let own = self.found()?;
        let is_alike = |other| guard::have_the_same_files(own, other, self.around);
        let is_of_all = match self.location {
            LocationMatch::Exact(path) if path.ends_with('/') => directories.index.iter().all(|name| {
                chosen(self.server, &format!("{path}{name}")).is_ok_and(|other| {
                    is_alike(
                        other
                            .and_then(|other| self.locations.iter().find(|found| std::ptr::eq(found.directive, other))),
                    )
                })
            }),
            // Which directories these are is not known.
            LocationMatch::Expression(expression) if expression.ends_with("/$") && !directories.index.is_empty() => {
                let may_have = |found: &&ServerLocation<'_>| match &found.location {
                    LocationMatch::Named(_) => false,
                    LocationMatch::Exact(path) => directories.index.iter().any(|name| path.ends_with(name)),
                    other => heads_meet(&other.head(), &own.location.head()),
                };
                is_alike(None) && self.locations.iter().filter(may_have).all(|found| is_alike(Some(found)))
            }
            _ => return None,
        };
        (!is_of_all).then_some(own.directive)
    }

    /// Alias of an enclosing location: the root, and the prefix that paths lose.
    pub(super) fn alias_around(&self) -> Option<(String, Option<String>)> {
        let is_place = |child: &&NginxDirective| matches!(child.name.as_str(), "root" | "alias");
        let around = &self.found()?.around;
        let (place, directive) = around
            .iter()
            .rev()
            .find_map(|directive| Some((directive.children().iter().rfind(is_place)?, directive)))?;
        let location = LocationMatch::read(directive).ok()?;
        alias(place.first(), &location).filter(|_| place.name == "alias" && !place.first().contains('$'))
    }

    /// A location with a name.
    pub(super) fn named(&self, name: &str) -> Option<&'a ServerLocation<'a>> {
        self.locations.iter().find(|found| matches!(&found.location, LocationMatch::Named(other) if other == name))
    }

    /// The only path that a location with a name leads to, if it does nothing else.
    pub(super) fn path_of_named(&self, name: &str) -> Option<&'a str> {
        leading::of_all(self.named(name)?.directive.children())
    }

    /// Returns `true` if a path is one of the location's.
    pub(super) fn has(&self, path: &str) -> bool {
        let own = self.block();
        chosen(self.server, path).is_ok_and(|found| found.is_some_and(|found| std::ptr::eq(own, found.children())))
    }
}
