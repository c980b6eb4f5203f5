//! nginx: reads its configuration, and translates it.
//!
//! [`syntax`] reads directives, [`http`] walks through them, and [`server`] makes a site of each `server`. [`location`]
//! translates its parts, and [`precedence`] finds which of them has a path. [`settings`] translates directives that all
//! blocks may contain. Among these, [`rewrite`] and [`condition`] translate redirects, and [`guard`] access rules,
//! which must stay closed; [`auth_request`] those that a server decides. [`added_fields`] says which response fields a location has. [`variables`] replaces the user's own variables, [`query_suffix`] one that is a part of a URL, and [`aliases`] an `alias` that is a root. [`flags`] replaces variables that hold conditions, [`host_roots`] writes roots that depend on the host, and [`unreachable`](mod@unreachable) removes what no request reaches. [`files`] and [`forward`] translate handlers, [`error_page`] error pages, [`caching`]
//! caches, and [`values`] times, paths and variables.

mod added_fields;
mod aliases;
mod auth_request;
mod caching;
mod condition;
mod error_page;
mod files;
mod flags;
mod forward;
mod guard;
mod host_roots;
mod http;
mod leading;
mod location;
mod matching;
mod needless;
mod precedence;
mod query_suffix;
mod rewrite;
mod scene;
mod server;
mod server_names;
mod settings;
mod syntax;
#[cfg(test)]
mod tests;
mod unreachable;
mod upstream;
mod values;
mod variables;

use std::path::Path;

use self::syntax::NginxDirective;
use super::kdl::KdlNode;
use super::notes::Notes;
use super::{ImportError, Remark};

/// Nodes of the translation of an nginx configuration with its included files, and remarks.
pub(super) fn translate(path: &Path) -> Result<(Vec<KdlNode>, Vec<Remark>), ImportError> {
    Ok(translate_directives(&syntax::read(path)?))
}

fn translate_directives(directives: &[NginxDirective]) -> (Vec<KdlNode>, Vec<Remark>) {
    let mut notes = Notes::default();
    let (directives, maps) = variables::replace(&flags::expanded(&query_suffix::removed(directives)), &mut notes);
    let directives = unreachable::removed(&directives, &mut notes);
    let mut directives = aliases::as_roots(&directives);
    with_lists_last(&mut directives);
    let nodes = http::translate(&directives, maps, &mut notes);
    (nodes, notes.sorted(&directives))
}

/// The blocks that a directive may be inherited from, the widest first: `http` without its servers, `server`, and
/// locations in locations.
#[derive(Clone, Copy)]
struct Chain<'a> {
    blocks: [&'a [NginxDirective]; BLOCKS_MAX],
    /// Parts that may be inherited: the start of each, because servers and locations are at the end.
    inherited: [&'a [NginxDirective]; BLOCKS_MAX],
    /// Number of blocks. Some are empty.
    length: usize,
}

const BLOCKS_MAX: usize = 2 + precedence::DEPTH_MAX + 2;

/// Puts servers and locations at the end of their block: there may be thousands of them among which nothing is inherited.
fn with_lists_last(directives: &mut [NginxDirective]) {
    directives.sort_by_key(is_of_list);
    directives.iter_mut().filter_map(|directive| directive.block.as_mut()).for_each(|block| with_lists_last(block));
}

fn is_of_list(directive: &NginxDirective) -> bool {
    directive.block.is_some() && matches!(directive.name.as_str(), "server" | "upstream" | "location")
}

/// Part of a block that may be inherited.
fn inherited(block: &[NginxDirective]) -> &[NginxDirective] {
    &block[..block.iter().position(is_of_list).unwrap_or(block.len())]
}

impl<'a> Chain<'a> {
    fn new(http: &'a [NginxDirective]) -> Self {
        Self { blocks: [&[]; _], inherited: [&[]; _], length: 0 }.with(http)
    }

    /// With a block inside those that there are.
    fn with(mut self, block: &'a [NginxDirective]) -> Self {
        // Local invariant: locations are not nested more deeply, and one with a name is as deep as the one that names it.
        if let Some(free) = self.blocks.get_mut(self.length) {
            *free = block;
            self.inherited[self.length] = inherited(block);
            self.length += 1;
        }
        self
    }

    /// With blocks inside blocks.
    fn with_all(self, blocks: impl Iterator<Item = &'a [NginxDirective]>) -> Self {
        blocks.fold(self, Self::with)
    }

    /// Returns `true` if a directive is in the server's block or in that of all servers.
    fn is_of_server(&self, directive: &NginxDirective) -> bool {
        self.inherited[..2].iter().any(|block| block.iter().any(|other| std::ptr::eq(other, directive)))
    }

    /// Returns `true` if a block includes a file that is missing here.
    fn has_missing_include(&self) -> bool {
        self.blocks.iter().any(|block| block.iter().any(|directive| directive.name == "include"))
    }

    /// The directive that says where files are.
    fn place(&self) -> Option<&'a NginxDirective> {
        self.last_of(&["root", "alias"])
    }

    /// The directives of this name that hold: those of the innermost block that has any.
    fn all(&self, name: &str) -> Vec<&'a NginxDirective> {
        self.all_of(&[name])
    }

    /// Directives of several names, which are inherited together.
    fn all_of(&self, names: &[&str]) -> Vec<&'a NginxDirective> {
        let of = |block: &&'a [NginxDirective]| -> Vec<&'a NginxDirective> {
            #[cfg(test)]
            crate::expression::counted::add(block.len());
            block.iter().filter(|directive| names.contains(&directive.name.as_str())).collect()
        };
        self.inherited.iter().rev().map(of).find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// The directive that applies, of those that may stand once.
    fn last(&self, name: &str) -> Option<&'a NginxDirective> {
        self.last_of(&[name])
    }

    fn last_of(&self, names: &[&str]) -> Option<&'a NginxDirective> {
        self.all_of(names).last().copied()
    }
}
