//! Requests that reach a directive, and what happened to them before.

use std::collections::HashMap;

use super::files::{CaddyFront, CaddyTries};
use super::matcher::{HostGroups, any_path, joined};
use super::site::OWN_PATH;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::pattern::ForeignPattern;

/// Requests that reach a directive, and what was done to them before.
#[derive(Clone, Default)]
pub(super) struct Scope {
    pub(super) paths: Option<Vec<ForeignPattern>>,
    pub(super) tests: Vec<String>,
    /// Paths and conditions of earlier blocks and handlers, whose requests never get here.
    pub(super) earlier: Vec<(Vec<ForeignPattern>, String)>,
    /// Paths and conditions of earlier blocks whose requests get to later handlers, but to no other `handle`.
    pub(super) taken: Vec<(Vec<ForeignPattern>, String)>,
    /// True if handlers follow the block.
    pub(super) has_later: bool,
    /// Conditions of earlier redirects.
    pub(super) redirected: Vec<String>,
    /// Prefix that was removed from the path.
    pub(super) prefix: String,
    pub(super) root: Option<String>,
    /// True if a root of this block is for all its paths.
    pub(super) has_own_root: bool,
    /// Matcher of the last root.
    pub(super) root_matcher: Option<String>,
    /// True if a root of some paths follows it.
    pub(super) has_other_roots: bool,
    /// Number of roots of parts that the blocks around have.
    pub(super) outer_roots: usize,
    /// Roots of parts.
    pub(super) roots: Vec<(Vec<ForeignPattern>, String)>,
    pub(super) tries: CaddyTries,
    /// Front controller of scripts that are for some requests only.
    pub(super) front: Option<CaddyFront>,
    /// True if a directive before may have changed the path.
    pub(super) is_rewritten: bool,
    /// Rewrites before, whose requests have another path now.
    pub(super) rewrites: Vec<CaddyRewrite>,
    /// Header fields of the request that were changed before, in lower case.
    pub(super) changed: Vec<String>,
    /// Paths of requests whose query was changed before; none are all.
    pub(super) changed_queries: Vec<Vec<ForeignPattern>>,
    /// Groups that expressions have in the host.
    pub(super) groups: Vec<HostGroups>,
    /// Number of the block.
    pub(super) block: usize,
    /// Named matchers.
    pub(super) named: HashMap<String, Directive>,
    /// Nesting of the block.
    pub(super) depth: usize,
}

/// A rewrite that a request may have passed.
#[derive(Debug, Clone)]
pub(super) struct CaddyRewrite {
    /// Block in which it is one of several of which the first match counts.
    pub(super) group: Option<usize>,
    pub(super) from: Vec<ForeignPattern>,
    pub(super) tests: Vec<String>,
    /// Paths to which it leads, as written and in lower case.
    pub(super) to: Vec<ForeignPattern>,
    /// Target in our form.
    pub(super) target: String,
    /// First line of the translation.
    pub(super) line: KdlNode,
}

impl Scope {
    /// Returns `true` if requests of a guard may have another path after a rewrite, for which it is not.
    pub(super) fn leaves(&self, reach: &Reach) -> bool {
        let covers = |to: &ForeignPattern| reach.paths.iter().any(|path| path.covers(to));
        let is_restricted = !reach.has_all_paths(self) || reach.tests.iter().any(|test| tests_path(test));
        let mut rewrites = self.rewrites.iter().filter(|rewrite| reach.meets_any(&rewrite.from));
        is_restricted && rewrites.any(|rewrite| reach.paths.is_empty() || !rewrite.to.iter().all(covers))
    }

    /// Returns `true` if a condition of the block depends on the path.
    pub(super) fn tests_path(&self) -> bool {
        self.tests.iter().any(|test| tests_path(test))
    }

    /// Path of the last file of `try_files`, in lower case and with the prefix that was removed.
    pub(super) fn fallback(&self) -> Option<String> {
        self.tries.fallback.as_deref().map(|path| format!("{}{path}", self.prefix).to_ascii_lowercase())
    }

    /// Returns `true` if its requests have a path to which only a rewrite leads.
    pub(super) fn is_own(&self) -> bool {
        self.prefix.strip_prefix(OWN_PATH).is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
    }

    /// Continues after a block for all requests, which it leaves to later handlers.
    pub(super) fn follow(&mut self, inside: Self) {
        let outer = std::mem::replace(self, inside);
        self.taken = outer.taken;
        self.named = outer.named;
        self.has_later = outer.has_later;
        self.depth = outer.depth;
        self.block = outer.block;
        self.has_own_root = outer.has_own_root;
        self.root_matcher = outer.root_matcher;
        self.has_other_roots = outer.has_other_roots;
        self.outer_roots = outer.outer_roots.min(self.roots.len());
    }

    /// Returns `true` if a condition depends on a header field or query that was changed before.
    pub(super) fn reads_changed(&self, reach: &Reach, tests: &[String]) -> bool {
        let is_of_query = || tests.iter().any(|test| test.contains("query"));
        let meets = |to: &Vec<ForeignPattern>| to.is_empty() || reach.meets_any(to);
        self.reads_field(tests) || (self.changed_queries.iter().any(meets) && is_of_query())
    }

    /// Returns `true` if a condition depends on a header field that was changed before.
    pub(super) fn reads_field(&self, tests: &[String]) -> bool {
        let reads = |test: &String, name: &String| {
            let test = test.to_ascii_lowercase();
            let ends = |rest: &str| rest.starts_with([' ', ')', ',']) || rest.is_empty();
            let field = format!("request.header.{name}");
            test.match_indices(&field).any(|(at, _)| ends(&test[at + field.len()..]))
                || (name == "cookie" && test.contains("cookie."))
        };
        self.changed.iter().any(|name| tests.iter().any(|test| reads(test, name)))
    }

    /// Returns `true` if requests have another path or root than in an outer scope.
    pub(super) fn changes(&self, outer: &Self) -> bool {
        self.prefix != outer.prefix || self.root != outer.root || self.roots != outer.roots || self.tries != outer.tries
    }
}

/// Returns `true` if a condition depends on the path. Texts may look like one that does.
pub(super) fn tests_path(test: &str) -> bool {
    ["path ==", "path starts-with", "path ends-with", "path matches", "map."].iter().any(|start| test.contains(start))
}

/// Requests that a directive is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reach {
    /// Alternatives; empty is all paths.
    pub(super) paths: Vec<ForeignPattern>,
    pub(super) tests: Vec<String>,
    /// True if only paths without a file match.
    pub(super) is_missing: bool,
    /// Groups that expressions have in the host.
    pub(super) groups: Vec<HostGroups>,
}

impl Reach {
    /// Returns `true` if a path may be among its paths.
    pub(super) fn meets(&self, path: &ForeignPattern) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|own| own.overlaps(path))
    }

    /// Returns `true` if one of some paths may be among its paths; none are all paths.
    pub(super) fn meets_any(&self, paths: &[ForeignPattern]) -> bool {
        paths.is_empty() || paths.iter().any(|path| self.meets(path))
    }

    /// Returns `true` if a path has groups.
    pub(super) fn has_groups(&self) -> bool {
        let has_groups = |text: &str| regex::Regex::new(text).is_ok_and(|expression| expression.captures_len() > 1);
        self.paths.iter().any(|path| matches!(path, ForeignPattern::Expression(text) if has_groups(text)))
    }

    /// Returns `true` if it has all paths of the scope.
    pub(super) fn has_all_paths(&self, scope: &Scope) -> bool {
        self.paths.is_empty() || scope.paths.as_ref() == Some(&self.paths)
    }

    /// Paths that it shares with some others.
    ///
    /// # Errors
    ///
    /// The reason why they have no pattern.
    pub(super) fn shared_with(&self, paths: &[ForeignPattern]) -> Result<Vec<ForeignPattern>, String> {
        if self.paths.is_empty() { Ok(paths.to_vec()) } else { joined(paths, &self.paths) }
    }

    /// The conditions, and that no earlier block has the request.
    pub(super) fn tests_of_rule(&self, scope: &Scope) -> Vec<String> {
        let earlier = scope.earlier.iter().filter(|(paths, _)| self.meets_any(paths));
        self.tests.iter().cloned().chain(earlier.map(|(_, condition)| format!("not ({condition})"))).collect()
    }

    /// The conditions for rejections, and that no redirect has the request, unless that had another path before.
    pub(super) fn tests_of_rejection(&self, scope: &Scope) -> Vec<String> {
        if scope.is_rewritten { self.tests_of_rule(scope) } else { self.tests_of_response(scope) }
    }

    /// The conditions for fields of responses, and that no redirect has the request.
    pub(super) fn tests_of_response(&self, scope: &Scope) -> Vec<String> {
        let redirected = scope.redirected.iter().map(|condition| format!("not ({condition})"));
        self.tests_of_rule(scope).into_iter().chain(redirected).collect()
    }

    /// The paths and conditions as one; empty for all requests of the scope.
    pub(super) fn condition(&self, scope: &Scope) -> String {
        let own = self.tests.iter().filter(|test| !scope.tests.contains(test)).cloned();
        let paths = (!self.paths.is_empty()).then(|| any_path(&self.paths));
        paths.into_iter().chain(own).collect::<Vec<_>>().join(" and ")
    }
}
