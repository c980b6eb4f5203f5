//! `error_page`: which file a page is.

use super::matching::LocationMatch;
use super::precedence::{ServerLocation, chosen};
use super::syntax::NginxDirective;
use super::{Chain, Notes, forward};
use crate::kdl::KdlNode;

/// Directories of a server's error pages.
pub(super) struct NginxErrorPages<'a> {
    pub(super) block: &'a [NginxDirective],
    pub(super) locations: &'a [ServerLocation<'a>],
    pub(super) server: Chain<'a>,
    /// The root of the site's own files, if there are any.
    pub(super) own_root: Option<&'a str>,
}

/// Place of an error page.
enum ErrorPagePosition {
    /// Below the root of the site.
    Site,
    File(String),
    /// Not a file, or a file with an unknown name.
    Nowhere,
}

impl NginxErrorPages<'_> {
    /// Says of an `error-page` which file it is, if that is not below the site's root. Returns whether it is one.
    pub(super) fn take(&self, node: &mut KdlNode, notes: &mut Notes) -> bool {
        let page = node.last_value().to_owned();
        match self.place(&page) {
            ErrorPagePosition::Site => {}
            ErrorPagePosition::File(file) => *node = node.clone().with_last_value(|_| format!("file:{file}")),
            ErrorPagePosition::Nowhere => {
                if let Some(directive) = find(self.block, &page) {
                    notes.left(directive, "an error page must be a file, not an upstream response");
                }
                return false;
            }
        }
        true
    }

    fn place(&self, page: &str) -> ErrorPagePosition {
        let location = chosen(self.block, page).ok().flatten();
        let found = location.and_then(|location| self.locations.iter().find(|found| same(found, location)));
        let chain = found.map_or(self.server, |found| self.server.with_all(found.blocks()));
        let own = found.map(|found| found.directive.children()).unwrap_or_default();
        let is_answered = own.iter().any(|child| child.name == "return" || forward::is_foreign(&child.name));
        let is_file = !is_answered && forward::pass(own).is_none();
        match chain.place().filter(|_| is_file) {
            None if self.own_root.is_some() => ErrorPagePosition::Site,
            Some(root) if root.name == "root" && Some(root.first()) == self.own_root => ErrorPagePosition::Site,
            Some(place) if !place.first().contains('$') => match (place.name.as_str(), found) {
                ("alias", Some(found)) => alias(place.first(), &found.location, page)
                    .map_or(ErrorPagePosition::Nowhere, ErrorPagePosition::File),
                _ => ErrorPagePosition::File(format!("{}{page}", place.first().trim_end_matches('/'))),
            },
            _ => ErrorPagePosition::Nowhere,
        }
    }
}

fn same(found: &ServerLocation<'_>, location: &NginxDirective) -> bool {
    std::ptr::eq(found.directive, location)
}

/// The file that a path is by an `alias`.
fn alias(target: &str, location: &LocationMatch, page: &str) -> Option<String> {
    match location {
        LocationMatch::Exact(_) => Some(target.to_owned()),
        LocationMatch::Prefix(prefix) | LocationMatch::PrefixFirst(prefix) => {
            Some(format!("{target}{}", page.strip_prefix(prefix.as_str())?))
        }
        LocationMatch::Expression(_) | LocationMatch::Named(_) => None,
    }
}

/// The `error_page` of a page.
fn find<'a>(block: &'a [NginxDirective], page: &str) -> Option<&'a NginxDirective> {
    block.iter().find_map(|directive| {
        let is_meant = directive.name == "error_page" && directive.arguments.last().is_some_and(|last| last == page);
        if is_meant { Some(directive) } else { find(directive.children(), page) }
    })
}
