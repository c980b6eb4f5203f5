//! mod_rewrite: `RewriteRule`. Conditions are in [`super::rewrite_condition`], names and variables in
//! [`super::rewrite_values`], and rules that forward in [`super::rewrite_forward`].

use std::collections::HashMap;

use super::redirects::of_ours;
use super::rewrite_aliases::AliasBelow;
use super::rewrite_condition::{Tests, conditions_of, path_matches, with_properties};
use super::rewrite_values::{ALL, ALL_BELOW, flags_of, is_of_script, is_own_file, leads_to_itself, rejects, variable};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{SiteParts, on_path, with_path};
use crate::pattern::{ForeignPattern, expression, quoted};

/// Place of rules: a host, or a directory whose prefix the paths lack.
pub(super) struct RewriteScope<'a> {
    /// Prefix of the directory without a slash at its end; `None` for a host.
    pub(super) base: Option<&'a str>,
    pub(super) has_tls: bool,
    pub(super) names: &'a [String],
    /// True if a script answers `*.php`.
    pub(super) has_scripts: bool,
    /// True if upstreams get the client's `Host`.
    pub(super) preserves_host: bool,
    /// Prefixes of directories with rules of their own.
    pub(super) inner: &'a [String],
    /// True if no `RewriteOptions` lets directories inherit rules.
    pub(super) inner_replace: bool,
    /// Directory of the site.
    pub(super) root: &'a str,
    /// First name of an index file.
    pub(super) index: &'a str,
    /// Paths of `Location` sections that lift rules of directories.
    pub(super) lifted: &'a [ForeignPattern],
    /// Paths of `Location` sections that reject clients.
    pub(super) guarded: &'a [ForeignPattern],
    /// Aliases below the directory.
    pub(super) aliases: &'a [AliasBelow],
}

/// Reason why a redirect to another host is not translated.
pub(super) const UNKNOWN_NAMES: &str = "the names of the site are not known";

/// Result of the rules of a block.
#[derive(Default)]
pub(super) struct RewriteOutcome {
    /// Script or file for paths without a file.
    pub(super) fallback: Option<String>,
    /// True if directories are paths without a file, too.
    pub(super) takes_directories: bool,
    /// True if the directory of the rules itself has an index nevertheless.
    pub(super) keeps_base: bool,
    /// True if paths with a file are not forwarded.
    pub(super) keeps_files: bool,
    /// Directories whose rules lead all directories below to a script.
    led_directories: Vec<(String, String)>,
}

impl RewriteOutcome {
    /// Joins rewrites that lead to a directory with its own rules, which lead directories to a script: only the first
    /// rewrite of a request counts here.
    pub(super) fn join_rules(&self, parts: &mut SiteParts) {
        for (base, script) in &self.led_directories {
            let mut nodes = Vec::new();
            for node in std::mem::take(&mut parts.redirects) {
                let is_plain = node.name() == "rewrite" && !node.has_property("missing");
                if is_plain && node.last_value() == format!("{base}/") {
                    nodes.push(node.with_last_value(|_| script.clone()));
                    continue;
                }
                if is_plain && node.is_for("*") && node.last_value() == format!("{base}{{path}}") {
                    nodes.push(node.clone().with_first_value("~/$").with_last_value(|_| script.clone()));
                }
                nodes.push(node);
            }
            nodes.push(KdlNode::with("rewrite", format!("~^{}/(?:.*/)?$", regex::escape(base))).text(script));
            parts.redirects = nodes;
        }
    }
}

/// Translates the rules of a block, in their order.
pub(super) fn translate(
    block: &[Directive],
    scope: &RewriteScope<'_>,
    parts: &mut SiteParts,
    notes: &mut Notes,
) -> RewriteOutcome {
    let mut found = RewriteOutcome::default();
    let mut conditions: Vec<&Directive> = Vec::new();
    let mut base = scope.base.map(str::to_owned);
    let mut state = RewriteState::default();
    let engine = block.iter().rfind(|child| is(child, "rewriteengine"));
    let is_on = engine.is_none_or(|engine| engine.first().eq_ignore_ascii_case("on"));
    for (index, directive) in block.iter().enumerate() {
        match directive.name.to_ascii_lowercase().as_str() {
            "rewritebase" => base = Some(directive.first().trim_end_matches('/').to_owned()),
            "rewritecond" => conditions.push(directive),
            "rewriterule" if is_on => {
                let own = std::mem::take(&mut conditions);
                let taken = std::mem::take(&mut state);
                let later = &block[index + 1..];
                let target_base = base.as_deref();
                let mut rule = RewriteRule { directive, scope, target_base, state: taken, later };
                // A block around may have turned the rules on, or not: then those that reject hold.
                if engine.is_none() && !rule.is_rejection() {
                    notes.left(directive, "there is no `RewriteEngine on` beside it");
                } else if let Err(why) = rule.translate(&own, parts, &mut found, notes) {
                    rule.close(why, parts, notes);
                }
                state = rule.state;
            }
            "rewriterule" => conditions.clear(),
            "rewritemap" => notes.left(directive, "there are no maps of rewrites"),
            _ => {}
        }
    }
    found
}

fn is(directive: &Directive, name: &str) -> bool {
    directive.name.eq_ignore_ascii_case(name)
}

/// Effects of the rules before.
#[derive(Default)]
pub(super) struct RewriteState {
    /// True if a rule has ended the processing for paths with a file.
    is_missing: bool,
    /// Variables with a fixed value.
    pub(super) variables: HashMap<String, String>,
    /// Conditions under which a rule has ended the processing.
    passed: Vec<String>,
    /// Conditions among them that depend on the path only, and hold for no more paths than in Apache.
    exempt: Vec<String>,
    /// True if a rule before decides which of the next rules apply.
    is_chained: bool,
    /// True if a rule before leads missing paths to a script, so that rules reach only paths that exist.
    is_behind_front: bool,
    /// Paths of rules of a host that end the processing, and paths to which they lead.
    led: Vec<ForeignPattern>,
}

pub(super) struct RewriteRule<'a> {
    pub(super) directive: &'a Directive,
    pub(super) scope: &'a RewriteScope<'a>,
    /// Prefix of relative targets: the directory, unless `RewriteBase` says otherwise.
    target_base: Option<&'a str>,
    pub(super) state: RewriteState,
    /// Directives after it.
    later: &'a [Directive],
}

impl RewriteRule<'_> {
    pub(super) fn flags(&self) -> Vec<String> {
        flags_of(self.directive)
    }

    pub(super) fn is_of_host(&self) -> bool {
        self.scope.base.is_none()
    }

    pub(super) fn target_text(&self) -> &str {
        self.directive.argument(1)
    }

    /// Returns `true` if the target names groups of conditions.
    pub(super) fn uses_groups(&self) -> bool {
        let target = self.target_text();
        target.match_indices('%').any(|(at, _)| target[at + 1..].starts_with(|next: char| next.is_ascii_digit()))
    }

    fn is_rejection(&self) -> bool {
        rejects(self.directive)
    }

    /// Rejects the paths that the rule may be for.
    fn close(&self, why: String, parts: &mut SiteParts, notes: &mut Notes) {
        let flags = self.flags();
        let redirects = flags.iter().any(|flag| flag.starts_with('R') && !flag.starts_with("R=4"));
        // A lost redirect between spellings of a URL opens nothing.
        if redirects && (why.contains("THE_REQUEST") || why == UNKNOWN_NAMES) {
            return notes.left(self.directive, why);
        }
        match self.pattern() {
            Ok(pattern) if !pattern.is_all() => parts.close(self.directive, &[pattern], why, notes),
            _ => parts.close(self.directive, &[], why, notes),
        }
    }

    /// Paths of the rule.
    fn pattern(&self) -> Result<ForeignPattern, String> {
        let text = self.directive.first();
        if matches!(
            text,
            "^" | "."
                | ".*"
                | "^.*"
                | "^.*$"
                | "^(.*)$"
                | "(.*)"
                | "^(.*)"
                | "(.*)$"
                | ".*$"
                | "^/(.*)$"
                | "^/?(.*)$"
                | "^/(.*)"
                | "^/?(.*)"
                | "^.+$"
                | "^/"
                | "/"
                | "^/?"
                | "^(.+)$"
                | "(.+)"
                | ".+"
                | "^/.*$"
                | "/(.*)"
                | "/(.*)$"
        ) && self.scope.base.is_none_or(str::is_empty)
        {
            return Ok(ForeignPattern::Prefix("/".to_owned()));
        }
        // Its paths are excluded.
        if text.starts_with('!') {
            return Ok(ForeignPattern::Prefix(format!("{}/", self.scope.base.unwrap_or_default())));
        }
        self.expression_of(text)
    }

    fn expression_of(&self, text: &str) -> Result<ForeignPattern, String> {
        let flags = self.flags();
        // The start, or a slash: the path of a directory has a slash before it here.
        let at_names = ["(^|/)", "(?:^|/)", "(/|^)"].iter().find_map(|start| text.strip_prefix(start));
        let has_inner_start = text.replace("[^", "").replace("\\^", "").trim_start_matches('^').contains('^');
        let text = match (self.scope.base, text.strip_prefix('^')) {
            (None, _) => text.to_owned(),
            (Some(base), _) if at_names.is_some_and(|rest| !rest.contains('^') || rest.contains("[^")) => {
                format!("^{}(?:/.*)?(/){}", regex::escape(base), at_names.unwrap_or_default())
            }
            (Some(_), _) if has_inner_start && !crate::pattern::has_branches(text) => {
                return Err("its expression looks for the start of the path of its directory".to_owned());
            }
            (Some(base), Some(rest)) if !crate::pattern::has_branches(text) => {
                format!("^{}/{}", regex::escape(base), rest.strip_prefix("/?").unwrap_or(rest))
            }
            (Some(base), _) if base.is_empty() && !text.contains('^') => text.to_owned(),
            (Some(base), None) if !crate::pattern::has_branches(text) => format!("^{}/.*{text}", regex::escape(base)),
            (Some(base), _) => {
                format!("^{}/(?:{})", regex::escape(base), text.replace("|^", "|").trim_start_matches('^'))
            }
        };
        let base = self.scope.base.map_or_else(String::new, |base| format!("^{}/", regex::escape(base)));
        let text = match flags.iter().any(|flag| flag == "NC") {
            // The path of the directory itself is in its own letter case.
            true if base.len() > "^/".len() && text.starts_with(&base) => format!("{base}(?i){}", &text[base.len()..]),
            true => format!("(?i){text}"),
            false => text,
        };
        expression(&text).map(ForeignPattern::Expression)
    }

    fn translate(
        &mut self,
        conditions: &[&Directive],
        parts: &mut SiteParts,
        found: &mut RewriteOutcome,
        notes: &mut Notes,
    ) -> Result<(), String> {
        let flags = self.flags();
        let has = |names: &[&str]| flags.iter().any(|flag| names.contains(&flag.as_str()));
        let value = |name: &str| flags.iter().find_map(|flag| flag.strip_prefix(name)?.strip_prefix('='));
        let target = self.directive.argument(1);
        self.state.is_chained |= has(&["C", "N"]) || flags.iter().any(|flag| flag.starts_with("S="));
        let sets_only = |flag: &String| flag.starts_with("E=") || flag.starts_with("ENV=") || flag == "NC";
        self.set_variables(conditions);
        if target == "-" && !flags.is_empty() && flags.iter().all(sets_only) {
            notes.needless(self.directive, "it sets a variable only; scripts get `Authorization` by themselves");
            return Ok(());
        }
        let plain = target.replace('\\', "");
        let is_precompressed = [".gz", ".br", ".zst"].iter().any(|end| plain.ends_with(end));
        if is_precompressed && !flags.iter().any(|flag| flag.starts_with('R')) {
            notes.needless(
                self.directive,
                "files with `.gz`, `.br` or `.zst` beside them are sent so (`precompressed`)",
            );
            return Ok(());
        }
        if let [condition] = conditions
            && let Some(directory) = self.directory_of(condition, target)
        {
            // Directories are no regular files.
            let node = KdlNode::with("files", "*").property("root", directory);
            parts.handlers.push(node.block(vec![KdlNode::new("index")]));
            return Ok(());
        }
        if !self.is_rejection() && conditions.iter().any(|condition| is_own_file(condition, target)) {
            notes.left(self.directive, "a file of a cache is not looked for before the page itself");
            return Ok(());
        }
        let mut alternatives = self.alternatives(conditions)?;
        if let Some(text) = self.directive.first().strip_prefix('!') {
            let excluded = self.expression_of(text)?;
            alternatives.iter_mut().for_each(|tests| tests.excluded.push(excluded.clone()));
        }
        if target == "-" && !has(&["F", "G"]) && value("R").is_none() {
            // Such a rule only sets a variable, or ends the processing.
            if flags.iter().any(|flag| flag.starts_with("H=") || flag.starts_with("S=")) {
                return Err("handlers and skipped rules have no counterpart".to_owned());
            }
            if alternatives.iter().any(|tests| tests.is_existing) {
                self.state.is_missing = true;
                return Ok(());
            }
            if has(&["L", "END"]) {
                return self.pass_through(&alternatives);
            }
            notes.needless(self.directive, "scripts get `Authorization` with `pass-credentials=on`, or by themselves");
            return Ok(());
        }
        if has(&["C", "N"]) || flags.iter().any(|flag| flag.starts_with("S=") || flag.starts_with("N=")) {
            return Err("rules that depend on each other have no counterpart".to_owned());
        }
        let redirect = flags.iter().find_map(|flag| match flag.as_str() {
            "R" => Some(302),
            flag => flag.strip_prefix("R=").map(|status| match status {
                "permanent" => 301,
                "temp" => 302,
                "seeother" => 303,
                status => status.parse().unwrap_or(302),
            }),
        });
        let status = match redirect {
            _ if has(&["F"]) => Some(403),
            _ if has(&["G"]) => Some(410),
            Some(status) if status >= 400 => Some(status),
            _ => None,
        };
        for tests in &alternatives {
            match status {
                Some(status) => self.deny(tests, status, parts, notes)?,
                None => self.rewrite(tests, target, redirect, &flags, parts, found, notes)?,
            }
        }
        Ok(())
    }

    /// Directory in which a rule of a host looks for files first: its condition is `DIRECTORY%{REQUEST_URI} -f`.
    fn directory_of(&self, condition: &Directive, target: &str) -> Option<String> {
        let is_whole = matches!(self.directive.first(), "^(.+)" | "^(.*)" | "^(.+)$" | "^(.*)$" | "(.*)" | "(.+)");
        let directory = condition.first().strip_suffix("%{REQUEST_URI}")?.trim_end_matches('/');
        let place = directory.replace("%{DOCUMENT_ROOT}", self.scope.root.trim_end_matches('/'));
        let fits = is_whole
            && self.scope.base.is_none()
            && condition.argument(1) == "-f"
            && target.strip_suffix("$1")?.trim_end_matches('/') == directory;
        (fits && place.starts_with('/') && !place.contains(['%', '$'])).then_some(place)
    }

    /// Rules after this one do not apply to its paths.
    fn pass_through(&mut self, alternatives: &[Tests]) -> Result<(), String> {
        let pattern = self.pattern()?;
        for tests in alternatives {
            if tests.is_never {
                continue;
            }
            let conditions = conditions_of(tests, &pattern);
            let is_exact = self.scope.base.is_none()
                || (self.directive.first().starts_with('^') && !crate::pattern::has_branches(self.directive.first()));
            if *tests == Tests::default() && is_exact && conditions.len() == 1 && !self.state.is_chained {
                self.state.exempt.push(format!("not {}", conditions[0]));
            }
            if tests.is_missing || conditions.is_empty() {
                return Err("it ends the processing for paths without a file".to_owned());
            }
            self.state.passed.push(conditions.join(" and "));
        }
        Ok(())
    }

    /// Paths of the rule under conditions, and the conditions that are left.
    fn paths(&self, tests: &Tests, pattern: &ForeignPattern) -> (Vec<ForeignPattern>, Tests) {
        match tests.paths.as_slice() {
            [] => (vec![pattern.clone()], tests.clone()),
            paths if pattern.is_all() => (paths.to_vec(), tests.clone()),
            paths => {
                let all: Result<Vec<_>, _> = paths.iter().map(|path| path.and(pattern)).collect();
                if let Ok(all) = all {
                    return (all.into_iter().flatten().collect(), tests.clone());
                }
                let any: Vec<String> = paths.iter().map(path_matches).collect();
                let mut tests = tests.clone();
                tests.whens.push(format!("({})", any.join(" or ")));
                (vec![pattern.clone()], tests)
            }
        }
    }

    fn deny(&self, tests: &Tests, status: u16, parts: &mut SiteParts, notes: &mut Notes) -> Result<(), String> {
        if tests.is_never {
            return Ok(());
        }
        if tests.is_missing {
            // Paths without a file get no content anyway, but a script may answer.
            return Err("a rejection has no condition on files".to_owned());
        }
        let pattern = self.pattern()?;
        let excluded = tests.excluded.iter().map(|excluded| format!("not {}", path_matches(excluded)));
        let exempt = self.state.exempt.iter().cloned().chain(self.inner().filter(|_| self.scope.inner_replace));
        let whens = tests.whens.iter().cloned().chain(excluded).chain(exempt).collect();
        let tests = &Tests { whens, ..tests.clone() };
        let (paths, tests) = &self.paths(tests, &pattern);
        if self.state.led.iter().any(|led| paths.iter().any(|path| path.overlaps(led))) {
            notes.left(self.directive, "it also rejects paths that a rule before leads there");
        }
        if self.state.passed.len() > self.state.exempt.len() {
            notes.left(self.directive, "it also rejects paths for which a rule before ends the processing");
        }
        for pattern in paths {
            if self.state.is_behind_front && status == 403 {
                let node = on_path("files", pattern.text()).property("root", self.scope.root);
                parts.handlers.push(with_properties(node, tests).block(vec![KdlNode::new("forbidden")]));
                continue;
            }
            let node = with_path(KdlNode::new("deny").word("all"), pattern.text());
            let node = with_properties(node, tests);
            parts.rejections.push(if status == 403 { node } else { node.word_property("status", status) });
        }
        Ok(())
    }

    /// Conditions for a rule after those that end the processing. A rule that keeps the script itself needs none.
    pub(super) fn passed(&self, script: &str) -> Vec<String> {
        let own = path_matches(&ForeignPattern::Exact(script.to_owned()));
        let passed = self.state.passed.iter().filter(|passed| **passed != own).map(|passed| format!("not ({passed})"));
        passed.chain(self.inner()).collect()
    }

    /// Conditions that a path is in no alias: Apache matches the path on the disk. Rejects paths of an alias for which the
    /// rule may be meant.
    fn aliases(&self, pattern: &ForeignPattern, parts: &mut SiteParts, notes: &mut Notes) -> Vec<String> {
        let mut conditions = Vec::new();
        for alias in self.scope.aliases.iter().filter(|alias| pattern.overlaps(&alias.paths())) {
            match alias.applies(self.directive.first()) {
                Some(true) => continue,
                Some(false) => {}
                None => parts.close(self.directive, &[alias.paths()], "an alias has other paths than its rule", notes),
            }
            conditions.push(format!("not {}", path_matches(&alias.paths())));
        }
        conditions
    }

    /// Conditions that a path is in no directory with rules of its own. Rules of a host apply to all directories.
    fn inner(&self) -> impl Iterator<Item = String> {
        let base = self.scope.base;
        let is_inner = move |prefix: &&String| {
            base.is_some_and(|base| prefix.len() > base.len() && prefix.starts_with(base) && !prefix.is_empty())
        };
        let inner = self.scope.inner.iter().filter(is_inner);
        inner.map(|prefix| format!("not path starts-with {}", quoted(&format!("{prefix}/"))))
    }

    /// Expression for `^(/a/.*)` if its target `/srv$1` is the root `/srv/a` on the disk with the rest of the path.
    fn below_root(&self, target: &str) -> Option<String> {
        let inner = self.directive.first().strip_prefix("^(")?.trim_end_matches('$').strip_suffix(".*)")?;
        let place = target.strip_suffix("$1")?;
        let is_own = format!("{place}{inner}") == format!("{}/", self.scope.root.trim_end_matches('/'));
        (is_own && self.scope.base.is_none()).then(|| format!("^{}(.*)$", regex::escape(inner)))
    }

    /// Returns `true` if a later rule leads all missing paths, and all directories, to the same script.
    fn is_before_front(&self, script: &str) -> bool {
        let mut conditions: Vec<&Directive> = Vec::new();
        self.later.iter().any(|directive| {
            if is(directive, "rewritecond") {
                conditions.push(directive);
                return false;
            }
            let own = std::mem::take(&mut conditions);
            let is_file_test = |condition: &&Directive| {
                condition.first() == "%{REQUEST_FILENAME}" && matches!(condition.argument(1), "!-f" | "!-l")
            };
            let is_all = directive.first() == "." || ALL.contains(&directive.first());
            let is_same = is(directive, "rewriterule") && directive.argument(1) == script;
            is_same && is_all && own.iter().all(is_file_test)
        })
    }

    #[expect(clippy::too_many_arguments, reason = "one place for redirects and rewrites")]
    fn rewrite(
        &mut self,
        tests: &Tests,
        target: &str,
        redirect: Option<u16>,
        flags: &[String],
        parts: &mut SiteParts,
        found: &mut RewriteOutcome,
        notes: &mut Notes,
    ) -> Result<(), String> {
        let has = |name: &str| flags.iter().any(|flag| flag == name);
        if tests.is_never {
            return Ok(());
        }
        let of_all = Tests { is_existing: false, is_file: false, ..tests.clone() };
        let tests = match tests.is_existing {
            false => tests,
            // Paths without a file lead to the same script anyway.
            true if tests.is_file && self.is_before_front(target) => &of_all,
            true => return Err("a rewrite has no condition that a file exists".to_owned()),
        };
        let mut pattern = self.pattern()?;
        let below_root = self.below_root(target);
        if let Some(expression) = &below_root {
            pattern = ForeignPattern::Expression(expression.clone());
        }
        let target = if below_root.is_some() { "/$1".to_owned() } else { self.with_variables(target)? };
        let target = target.as_str();
        let is_missing = tests.is_missing || self.state.is_missing;
        let is_url = target.contains("://");
        if has("P") {
            return self.forward(tests, target, &pattern, parts, found, notes);
        }
        let absolute = match (is_url || target.starts_with('/'), self.target_base) {
            (true, _) => target.to_owned(),
            // The path begins with a slash.
            (false, _) if target.starts_with("%{REQUEST_URI}") => target.to_owned(),
            (false, Some(base)) => format!("{base}/{target}"),
            (false, None) if target.starts_with('%') => target.to_owned(),
            (false, None) => format!("/{target}"),
        };
        // A group of all paths lacks the slash at their beginning.
        let lacks_slash =
            self.scope.base == Some("") || (self.scope.base.is_none() && self.directive.first().contains('/'));
        if pattern.is_all() && lacks_slash && absolute.contains("$1") && !absolute.contains("/$1") {
            pattern = ForeignPattern::Expression("^/(.*)$".to_owned());
        }
        let mut text = match tests.leading.and_then(|(from, to)| Some((to, target.strip_prefix(from)?))) {
            Some((to, rest)) => format!("{to}{}", self.target(rest, tests, &pattern)?),
            None => self.target(&absolute, tests, &pattern)?,
        };
        let is_redirect = redirect.is_some() || is_url;
        let drops = text.ends_with('?') || has("QSD");
        text.truncate(text.trim_end_matches('?').len());
        if !drops && !text.contains("{query}") {
            if text.contains('?') && has("QSA") {
                text.push_str("{&query}");
            } else if !text.contains('?') && is_redirect {
                text.push_str("{query}");
            }
        }
        let script = text.split(['?', '{']).next().unwrap_or_default().to_owned();
        if self.is_of_host() && !is_redirect && !has("PT") && text != "{path}" {
            // Apache finds sections by the path that the client requested.
            let target = match text.contains('{') {
                true => ForeignPattern::Prefix(script.clone()),
                false => ForeignPattern::Exact(script.clone()),
            };
            let is_other = |section: &&ForeignPattern| section.overlaps(&target) && !section.covers(&pattern);
            if self.scope.lifted.iter().any(|lifted| is_other(&lifted)) {
                return Err(
                    "its target is in a `Location` that lifts rules of directories; Apache lifts none there".to_owned()
                );
            }
            if self.scope.guarded.iter().any(|guarded| is_other(&guarded)) {
                notes.left(self.directive, "its target is in a `Location`, whose access rules hold for it, too");
            }
            if has("L") || has("END") {
                self.state.led.extend([pattern.clone(), target]);
            }
        }
        if !is_redirect && !is_missing {
            self.note_index(&pattern, &script, parts, notes);
        }
        let is_general = tests.conditions().is_empty() && tests.paths.is_empty() && self.state.passed.is_empty();
        if is_missing && pattern.is_all() && !is_redirect && is_general && self.scope.base == Some("") {
            // One path, such as that of a favicon, is left alone by rules after it.
            let leaves_little =
                |path: &ForeignPattern| matches!(path, ForeignPattern::Exact(_)) || is_of_script(path, &script);
            self.state.is_behind_front |= tests.excluded.iter().all(leaves_little) && !self.scope.root.is_empty();
        }
        let takes_directories = !tests.is_no_directory && !self.state.is_missing;
        let is_front =
            is_missing && pattern.is_all() && !is_redirect && !text.contains(['?', '{']) && tests.paths.is_empty();
        if is_front
            && tests.properties.is_empty()
            && tests.whens.is_empty()
            && tests.excluded.is_empty()
            && self.passed(&script).is_empty()
            && (self.scope.has_scripts || !script.ends_with(".php"))
        {
            found.takes_directories = takes_directories;
            found.keeps_base = self.scope.base == Some("") && ALL_BELOW.contains(&self.directive.first());
            // Rules for missing paths that stand before go first.
            if parts.redirects.iter().any(|node| node.has_property("missing")) {
                parts.redirects.push(KdlNode::with("rewrite", "*").text(script).word_property("missing", "on"));
            } else {
                found.fallback = Some(script);
            }
            return Ok(());
        }
        if is_missing && pattern.is_all() && !is_redirect && !text.contains('{') {
            found.takes_directories |= takes_directories;
        }
        let is_plain = tests.conditions().is_empty() && tests.paths.is_empty() && tests.excluded.is_empty();
        if let Some(base) =
            self.scope.base.filter(|base| !base.is_empty() && takes_directories && is_missing && is_plain)
            && ALL.contains(&self.directive.first())
            && !is_redirect
            && !text.contains(['{', '?'])
        {
            found.led_directories.push((base.to_owned(), text.clone()));
        }
        let mut ended = conditions_of(tests, &pattern);
        if ended.is_empty() {
            ended.push(path_matches(&pattern));
        }
        let aliases = if is_missing { Vec::new() } else { self.aliases(&pattern, parts, notes) };
        let excluded = tests.excluded.iter().map(|excluded| format!("not {}", path_matches(excluded)));
        let excluded = excluded.chain(aliases);
        let mut whens: Vec<String> = tests.whens.iter().cloned().chain(excluded).chain(self.passed(&script)).collect();
        // A path after the script stays.
        let is_excluded = tests.excluded.iter().any(|excluded| is_of_script(excluded, &text));
        if !is_excluded
            && self.scope.base == Some("")
            && pattern.is_all()
            && !is_redirect
            && !is_missing
            && text.ends_with(".php")
        {
            whens.push(format!("not path starts-with {}", quoted(&format!("{text}/"))));
        }
        let tests = &Tests { whens, ..tests.clone() };
        // Rules after it may be for paths with a file, unless no such path gets here.
        let leads_to_itself = leads_to_itself(self.directive).filter(|_| self.state.is_missing && !is_redirect);
        if leads_to_itself.is_some() && (has("L") || has("END")) {
            // Apache ends there.
            self.state.passed.push(ended.join(" and "));
        }
        if leads_to_itself == Some(true) {
            return Ok(());
        }
        let (paths, tests) = &self.paths(tests, &pattern);
        for pattern in paths {
            let node = if is_redirect {
                let status = redirect.unwrap_or(302);
                on_path("redirect", pattern.text()).text(&text).word_property("status", status)
            } else {
                on_path("rewrite", pattern.text()).text(&text)
            };
            let node = with_properties(node, tests);
            parts.redirects.push(if is_missing { node.word_property("missing", "on") } else { node });
        }
        Ok(())
    }

    /// Notes a rule for an index file: Apache applies it to the directory, too. If the target is guarded, the directory
    /// is rejected.
    fn note_index(&self, pattern: &ForeignPattern, target: &str, parts: &mut SiteParts, notes: &mut Notes) {
        let Some(base) = self.scope.base else { return };
        let of_directory = |rest: &str| {
            let path = format!("{base}/{rest}");
            pattern.fits(&format!("{path}{}", self.scope.index)) && !pattern.fits(&path)
        };
        if !of_directory("") {
            return;
        }
        let target = ForeignPattern::Prefix(target.to_owned());
        let is_guard = |node: &KdlNode| {
            let guards = matches!(node.name(), "basic-auth" | "deny") && node.last_value() != "off";
            guards && of_ours(node.pattern()).overlaps(&target)
        };
        if parts.guards.iter().any(is_guard) {
            let below = if of_directory("x/") { "(?:.*/)?" } else { "" };
            let paths = ForeignPattern::Expression(format!("^{}/{below}$", regex::escape(base)));
            parts.close(self.directive, &[paths], "it leads index files to guarded paths", notes);
        } else {
            notes.left(self.directive, "a directory gets its index file, although the rule is for it");
        }
    }

    /// The target with our placeholders.
    fn target(&self, text: &str, tests: &Tests, pattern: &ForeignPattern) -> Result<String, String> {
        let source = self.directive.first();
        // A group that the expression lacks is empty, and an expression that must not match has none.
        let groups = regex::Regex::new(source).map_or(1, |source| source.captures_len());
        let groups = if source.starts_with('!') { 1 } else { groups };
        let mut result = String::new();
        let mut rest = text;
        while let Some(start) = rest.find(['$', '%', '\\']) {
            result.push_str(&rest[..start].replace('{', "{{").replace('}', "}}"));
            let sign = rest.as_bytes()[start];
            rest = &rest[start + 1..];
            if sign == b'\\' {
                let next = rest.chars().next();
                result.extend(next);
                rest = &rest[next.map_or(0, char::len_utf8)..];
                continue;
            }
            if let Some(name) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).filter(|_| sign == b'%') {
                result.push_str(variable(name.0)?);
                rest = name.1;
                continue;
            }
            let Some(group) = rest.chars().next().and_then(|c| c.to_digit(10)) else {
                result.push(char::from(sign));
                continue;
            };
            rest = &rest[1..];
            if sign == b'$' && group > 0 && group as usize >= groups {
                continue;
            }
            if sign == b'%' {
                let value = tests.groups.get(group as usize);
                result.push_str(value.ok_or("a group of a condition is unknown")?);
            } else if pattern.is_all() {
                // The group is the whole path, with or without the slash.
                let has_slash = self.scope.base.is_none() && !source.contains('/');
                if result.ends_with('/') && !has_slash {
                    result.pop();
                }
                result.push_str("{path}");
            } else if group == 0 {
                result.push_str("{path}");
            } else {
                result.push_str(&format!("{{{group}}}"));
            }
        }
        result.push_str(&rest.replace('{', "{{").replace('}', "}}"));
        if result.starts_with("{path}{path}") || result.starts_with("//") {
            return Err("its target begins with two slashes".to_owned());
        }
        Ok(result)
    }
}
