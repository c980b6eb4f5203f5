//! `error_page`: which file a page is.

use super::matching::Location;
use super::precedence::{Found, chosen};
use super::syntax::Directive;
use super::{Chain, Notes, forward};
use crate::import::kdl::Node;

/// Directories of a server's error pages.
pub(super) struct ErrorPages<'a> {
    pub(super) block: &'a [Directive],
    pub(super) locations: &'a [Found<'a>],
    pub(super) server: Chain<'a>,
    /// The root of the site's own files, if there are any.
    pub(super) own_root: Option<&'a str>,
}

/// Place of an error page.
enum Place {
    /// Below the root of the site.
    Site,
    File(String),
    /// Not a file, or a file with an unknown name.
    Nowhere,
}

impl ErrorPages<'_> {
    /// Says of an `error-page` which file it is, if that is not below the site's root. Returns whether it is one.
    pub(super) fn take(&self, node: &mut Node, notes: &mut Notes) -> bool {
        let page = node.last_value().to_owned();
        match self.place(&page) {
            Place::Site => {}
            Place::File(file) => *node = node.clone().with_last_value(|_| format!("file:{file}")),
            Place::Nowhere => {
                if let Some(directive) = find(self.block, &page) {
                    notes.left(directive, "an error page must be a file, not an upstream response");
                }
                return false;
            }
        }
        true
    }

    fn place(&self, page: &str) -> Place {
        let location = chosen(self.block, page).ok().flatten();
        let found = location.and_then(|location| self.locations.iter().find(|found| same(found, location)));
        let chain = found.map_or(self.server, |found| self.server.with_all(found.blocks()));
        let own = found.map(|found| found.directive.children()).unwrap_or_default();
        let is_answered = own.iter().any(|child| child.name == "return" || forward::is_foreign(&child.name));
        let is_file = !is_answered && forward::pass(own).is_none();
        match chain.place().filter(|_| is_file) {
            None if self.own_root.is_some() => Place::Site,
            Some(root) if root.name == "root" && Some(root.first()) == self.own_root => Place::Site,
            Some(place) if !place.first().contains('$') => match (place.name.as_str(), found) {
                ("alias", Some(found)) => {
                    alias(place.first(), &found.location, page).map_or(Place::Nowhere, Place::File)
                }
                _ => Place::File(format!("{}{page}", place.first().trim_end_matches('/'))),
            },
            _ => Place::Nowhere,
        }
    }
}

fn same(found: &Found<'_>, location: &Directive) -> bool {
    std::ptr::eq(found.directive, location)
}

/// The file that a path is by an `alias`.
fn alias(target: &str, location: &Location, page: &str) -> Option<String> {
    match location {
        Location::Exact(_) => Some(target.to_owned()),
        Location::Prefix(prefix) | Location::PrefixFirst(prefix) => {
            Some(format!("{target}{}", page.strip_prefix(prefix.as_str())?))
        }
        Location::Expression(_) | Location::Named(_) => None,
    }
}

/// The `error_page` of a page.
fn find<'a>(block: &'a [Directive], page: &str) -> Option<&'a Directive> {
    block.iter().find_map(|directive| {
        let is_meant = directive.name == "error_page" && directive.arguments.last().is_some_and(|last| last == page);
        if is_meant { Some(directive) } else { find(directive.children(), page) }
    })
}
