//! mod_rewrite: `RewriteCond` and `RewriteRule`.

use regex::Regex;

use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{SiteParts, on_path, with_path};
use crate::pattern::{ForeignPattern, expression};

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
}

/// Reason why a redirect to another host is not translated.
const UNKNOWN_NAMES: &str = "the names of the site are not known";

/// Result of the rules of a block.
#[derive(Default)]
pub(super) struct RewriteOutcome {
    /// Script or file for paths without a file.
    pub(super) fallback: Option<String>,
    /// True if directories are paths without a file, too.
    pub(super) takes_directories: bool,
    /// True if paths with a file are not forwarded.
    pub(super) keeps_files: bool,
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
    // A rule before has ended the processing for paths with a file.
    let mut is_missing = false;
    let engine = block.iter().rfind(|child| is(child, "rewriteengine"));
    let is_on = engine.is_none_or(|engine| engine.first().eq_ignore_ascii_case("on"));
    for directive in block {
        match directive.name.to_ascii_lowercase().as_str() {
            "rewritebase" => base = Some(directive.first().trim_end_matches('/').to_owned()),
            "rewritecond" => conditions.push(directive),
            "rewriterule" if is_on => {
                let own = std::mem::take(&mut conditions);
                let mut rule = Rule { directive, scope, base: base.as_deref(), is_missing };
                // A block around may have turned the rules on, or not: then those that reject hold.
                if engine.is_none() && !rule.is_rejection() {
                    notes.left(directive, "there is no `RewriteEngine on` beside it");
                    continue;
                }
                match rule.translate(&own, parts, &mut found, notes) {
                    Ok(()) => is_missing = rule.is_missing,
                    Err(why) => rule.close(why, parts, notes),
                }
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

/// The name of a flag in its short form, if it has one.
fn flag_name(name: &str) -> String {
    let short = match name.to_ascii_lowercase().as_str() {
        "forbidden" => "F",
        "gone" => "G",
        "redirect" => "R",
        "nocase" => "NC",
        "last" => "L",
        "chain" => "C",
        "next" => "N",
        "skip" => "S",
        "handler" => "H",
        "proxy" => "P",
        "qsappend" => "QSA",
        "qsdiscard" => "QSD",
        other => return other.to_ascii_uppercase(),
    };
    short.to_owned()
}

struct Rule<'a> {
    directive: &'a Directive,
    scope: &'a RewriteScope<'a>,
    base: Option<&'a str>,
    is_missing: bool,
}

/// A condition as a property, and as the expression language says it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PropertyCondition {
    name: &'static str,
    value: String,
    when: String,
}

/// Conditions of a rule, as properties: each alternative is a line.
#[derive(Debug, Clone, Default)]
struct Tests {
    properties: Vec<PropertyCondition>,
    /// Conditions of the expression language that must hold, too.
    whens: Vec<String>,
    paths: Vec<ForeignPattern>,
    excluded: Vec<ForeignPattern>,
    is_missing: bool,
    /// True if paths of directories do not fulfil them.
    is_no_directory: bool,
    /// True if only paths with a file fulfil them.
    is_existing: bool,
    is_never: bool,
    /// Groups of the last condition, where they are known.
    groups: Vec<String>,
}

impl Rule<'_> {
    fn flags(&self) -> Vec<String> {
        let text = self.directive.argument(2).trim_start_matches('[').trim_end_matches(']');
        let flags = text.split(',').map(str::trim).filter(|flag| !flag.is_empty());
        // Names are in upper or lower case.
        flags
            .map(|flag| match flag.split_once('=') {
                Some((name, value)) => format!("{}={value}", flag_name(name)),
                None => flag_name(flag),
            })
            .collect()
    }

    /// Returns `true` if the target names groups of conditions.
    fn uses_groups(&self) -> bool {
        let target = self.directive.argument(1);
        target.match_indices('%').any(|(at, _)| target[at + 1..].starts_with(|next: char| next.is_ascii_digit()))
    }

    fn is_rejection(&self) -> bool {
        let is_of = |flag: &String| matches!(flag.as_str(), "F" | "G") || flag.starts_with("R=4");
        self.flags().iter().any(is_of)
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
        let flags = self.flags();
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
        ) && self.base.is_none_or(str::is_empty)
        {
            return Ok(ForeignPattern::Prefix("/".to_owned()));
        }
        let (is_negated, text) = match text.strip_prefix('!') {
            Some(text) => (true, text),
            None => (false, text),
        };
        if is_negated {
            return Err("it applies to all paths except those of an expression".to_owned());
        }
        let text = match (self.base, text.strip_prefix('^')) {
            (None, _) => text.to_owned(),
            (Some(base), Some(rest)) if !crate::pattern::has_branches(text) => {
                format!("^{}/{}", regex::escape(base), rest.strip_prefix("/?").unwrap_or(rest))
            }
            (Some(base), _) if base.is_empty() && !text.contains('^') => text.to_owned(),
            (Some(base), None) if !crate::pattern::has_branches(text) => format!("^{}/.*{text}", regex::escape(base)),
            (Some(base), _) => {
                format!("^{}/(?:{})", regex::escape(base), text.replace("|^", "|").trim_start_matches('^'))
            }
        };
        let text = if flags.iter().any(|flag| flag == "NC" || flag == "nocase") { format!("(?i){text}") } else { text };
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
        let sets_only = |flag: &String| flag.starts_with("E=") || flag.starts_with("ENV=") || flag == "NC";
        if target == "-" && !flags.is_empty() && flags.iter().all(sets_only) {
            notes.needless(self.directive, "it sets a variable only; scripts get `Authorization` by themselves");
            return Ok(());
        }
        if target.replace('\\', "").ends_with(".gz") && !flags.iter().any(|flag| flag.starts_with('R')) {
            notes.needless(
                self.directive,
                "files with `.gz`, `.br` or `.zst` beside them are sent so (`precompressed`)",
            );
            return Ok(());
        }
        let alternatives = self.alternatives(conditions)?;
        if target == "-" && !has(&["F", "forbidden", "G", "gone"]) && value("R").is_none() {
            // Such a rule only sets a variable, or ends the processing.
            if flags.iter().any(|flag| flag.starts_with("H=") || flag.starts_with("S=")) {
                return Err("handlers and skipped rules have no counterpart".to_owned());
            }
            if alternatives.iter().any(|tests| tests.is_existing) {
                self.is_missing = true;
                return Ok(());
            }
            if has(&["L", "END", "last"]) {
                return self.pass_through(&alternatives, parts, notes);
            }
            notes.needless(self.directive, "scripts get `Authorization` with `pass-credentials=on`, or by themselves");
            return Ok(());
        }
        if has(&["C", "chain", "N", "next"])
            || flags.iter().any(|flag| flag.starts_with("S=") || flag.starts_with("N="))
        {
            return Err("rules that depend on each other have no counterpart".to_owned());
        }
        let redirect = flags.iter().find_map(|flag| match flag.as_str() {
            "R" | "redirect" => Some(302),
            flag => flag.strip_prefix("R=").or(flag.strip_prefix("redirect=")).map(|status| match status {
                "permanent" => 301,
                "temp" => 302,
                "seeother" => 303,
                status => status.parse().unwrap_or(302),
            }),
        });
        let status = match redirect {
            _ if has(&["F", "forbidden"]) => Some(403),
            _ if has(&["G", "gone"]) => Some(410),
            Some(status) if status >= 400 => Some(status),
            _ => None,
        };
        for tests in &alternatives {
            match status {
                Some(status) => self.deny(tests, status, parts)?,
                None => self.rewrite(tests, target, redirect, &flags, parts, found, notes)?,
            }
        }
        Ok(())
    }

    /// Rules after this one do not apply to its paths.
    fn pass_through(&self, alternatives: &[Tests], parts: &mut SiteParts, notes: &mut Notes) -> Result<(), String> {
        let pattern = self.pattern()?;
        for tests in alternatives {
            if tests.is_never {
                continue;
            }
            for pattern in self.paths(tests, &pattern)? {
                let node = on_path("rewrite", pattern.text()).text("{path}");
                parts.redirects.push(with_properties(node, tests));
            }
        }
        let _ = notes;
        Ok(())
    }

    /// Paths of the rule under conditions.
    fn paths(&self, tests: &Tests, pattern: &ForeignPattern) -> Result<Vec<ForeignPattern>, String> {
        match tests.paths.as_slice() {
            [] => Ok(vec![pattern.clone()]),
            paths if pattern.is_all() => Ok(paths.to_vec()),
            paths => {
                let all: Result<Vec<_>, _> = paths.iter().map(|path| path.and(pattern)).collect();
                Ok(all?.into_iter().flatten().collect())
            }
        }
    }

    fn deny(&self, tests: &Tests, status: u16, parts: &mut SiteParts) -> Result<(), String> {
        if tests.is_never {
            return Ok(());
        }
        if tests.is_missing {
            // Paths without a file get no content anyway, but a script may answer.
            return Err("a rejection has no condition on files".to_owned());
        }
        let pattern = self.pattern()?;
        let excluded = tests.excluded.iter().map(|excluded| format!("not {}", path_matches(excluded)));
        let tests = &Tests { whens: tests.whens.iter().cloned().chain(excluded).collect(), ..tests.clone() };
        for pattern in self.paths(tests, &pattern)? {
            let node = with_path(KdlNode::new("deny").word("all"), pattern.text());
            let node = with_properties(node, tests);
            parts.rejections.push(if status == 403 { node } else { node.word_property("status", status) });
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "one place for redirects and rewrites")]
    fn rewrite(
        &self,
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
        if tests.is_existing {
            return Err("a rewrite has no condition that a file exists".to_owned());
        }
        let pattern = self.pattern()?;
        // A directory of its own is the root of its site.
        let target = target.strip_prefix("%{ENV:BASE}").unwrap_or(target);
        let is_missing = tests.is_missing || self.is_missing;
        let is_url = target.contains("://");
        if has("P") || has("proxy") {
            return self.forward(tests, target, &pattern, parts, found, notes);
        }
        let absolute = match (is_url || target.starts_with('/'), self.base) {
            (true, _) => target.to_owned(),
            // The path begins with a slash.
            (false, _) if target.starts_with("%{REQUEST_URI}") => target.to_owned(),
            (false, Some(base)) => format!("{base}/{target}"),
            (false, None) if target.starts_with('%') => target.to_owned(),
            (false, None) => format!("/{target}"),
        };
        let mut text = self.target(&absolute, tests, &pattern)?;
        let is_redirect = redirect.is_some() || is_url;
        let drops = text.ends_with('?') || has("QSD");
        text.truncate(text.trim_end_matches('?').len());
        if !drops && !text.contains("{query}") {
            if text.contains('?') && (has("QSA") || has("qsappend")) {
                text.push_str("{&query}");
            } else if !text.contains('?') && is_redirect {
                text.push_str("{query}");
            }
        }
        let script = text.split(['?', '{']).next().unwrap_or_default().to_owned();
        let is_front =
            is_missing && pattern.is_all() && !is_redirect && !text.contains(['?', '{']) && tests.paths.is_empty();
        if is_front
            && tests.properties.is_empty()
            && tests.whens.is_empty()
            && tests.excluded.is_empty()
            && (self.scope.has_scripts || !script.ends_with(".php"))
        {
            found.takes_directories = !tests.is_no_directory && !self.is_missing;
            // Rules for missing paths that stand before go first.
            if parts.redirects.iter().any(|node| node.has_property("missing")) {
                parts.redirects.push(KdlNode::with("rewrite", "*").text(script).word_property("missing", "on"));
            } else {
                found.fallback = Some(script);
            }
            return Ok(());
        }
        for excluded in &tests.excluded {
            let node = on_path("rewrite", excluded.text()).text("{path}");
            if !parts.redirects.contains(&node) {
                parts.redirects.push(node);
            }
        }
        for pattern in self.paths(tests, &pattern)? {
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

    fn forward(
        &self,
        tests: &Tests,
        target: &str,
        pattern: &ForeignPattern,
        parts: &mut SiteParts,
        outcome: &mut RewriteOutcome,
        notes: &mut Notes,
    ) -> Result<(), String> {
        // Upstreams get the path in any case.
        let found = super::proxy::target(target.strip_suffix("%{REQUEST_URI}").unwrap_or(target))?;
        let is_upgrade = tests
            .properties
            .iter()
            .any(|property| property.name == "field" && property.value.to_ascii_lowercase().contains("websocket"));
        if is_upgrade {
            notes.needless(self.directive, "`forward` upgrades connections");
            return Ok(());
        }
        if !tests.properties.is_empty() || !tests.whens.is_empty() || !tests.excluded.is_empty() {
            return Err("a handler has no conditions except the path".to_owned());
        }
        let is_whole = matches!(found.path.as_str(), "/$1" | "$1" | "%{REQUEST_URI}" | "");
        if !is_whole || !pattern.is_all() {
            return Err("paths are forwarded unchanged, or without a prefix".to_owned());
        }
        let node = KdlNode::with("forward", found.to);
        let node = |pattern| {
            let options =
                if self.scope.preserves_host { Vec::new() } else { vec![KdlNode::new("host").word("upstream")] };
            with_path(node.clone(), pattern).block(options)
        };
        match tests.paths.as_slice() {
            [] => {
                outcome.keeps_files |= tests.is_missing;
                outcome.takes_directories |= tests.is_missing && !tests.is_no_directory;
                parts.last = Some(node(None));
            }
            _ if tests.is_missing => return Err("a handler has no conditions except the path".to_owned()),
            paths => parts.handlers.extend(paths.iter().map(|path| node(path.text()))),
        }
        Ok(())
    }

    /// The target with our placeholders.
    fn target(&self, text: &str, tests: &Tests, pattern: &ForeignPattern) -> Result<String, String> {
        let source = self.directive.first();
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
            if sign == b'%' {
                let value = tests.groups.get(group as usize);
                result.push_str(value.ok_or("a group of a condition is unknown")?);
            } else if pattern.is_all() {
                // The group is the whole path, with or without the slash.
                let has_slash = self.base.is_none() && !source.contains('/');
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

    /// Alternatives of the conditions.
    fn alternatives(&self, conditions: &[&Directive]) -> Result<Vec<Tests>, String> {
        let mut all = vec![Tests::default()];
        let mut group: Vec<Tests> = Vec::new();
        for condition in conditions {
            let flags = condition.argument(2).trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
            let is_or = flags.split(',').any(|flag| matches!(flag.trim(), "or" | "ornext"));
            let ignores_case = flags.split(',').any(|flag| matches!(flag.trim(), "nc" | "nocase"));
            group.extend(self.condition(condition, ignores_case)?);
            if is_or {
                continue;
            }
            let mut joined = Vec::new();
            for (one, other) in all.iter().flat_map(|one| group.iter().map(move |other| (one, other))) {
                joined.push(both(one, other)?);
            }
            all = joined;
            group.clear();
            if all.len() > 32 {
                return Err("its conditions have too many alternatives".to_owned());
            }
        }
        // Conditions on files and directories are one alternative.
        if all.iter().all(|tests| tests.is_existing) && !all.is_empty() {
            all.truncate(1);
        }
        Ok(all)
    }

    /// Alternatives of one condition.
    fn condition(&self, condition: &Directive, ignores_case: bool) -> Result<Vec<Tests>, String> {
        let subject = condition.first();
        let (is_negated, text) = match condition.argument(1).strip_prefix('!') {
            Some(text) => (true, text),
            None => (false, condition.argument(1)),
        };
        let one = |tests: Tests| Ok(vec![tests]);
        let constant = |holds: bool| one(Tests { is_never: holds == is_negated, ..Tests::default() });
        if matches!(text, "-f" | "-d" | "-F" | "-l" | "-s" | "-e") {
            if !subject.contains("REQUEST_FILENAME")
                && !subject.contains("REQUEST_URI")
                && !subject.contains("SCRIPT_FILENAME")
            {
                return Err(format!("`{subject}` cannot be a condition"));
            }
            return one(Tests {
                is_missing: is_negated,
                is_no_directory: is_negated && matches!(text, "-d" | "-e"),
                is_existing: !is_negated,
                ..Tests::default()
            });
        }
        let flag = if ignores_case { "(?i)" } else { "" };
        let Some(name) = subject.strip_prefix("%{").and_then(|name| name.strip_suffix('}')) else {
            return Err(format!("`{subject}` cannot be a condition"));
        };
        let fits = |value: &str| match text.strip_prefix('=') {
            Some(other) => Ok(value == other.trim_matches('"')),
            None => Regex::new(&format!("{flag}{text}"))
                .map(|text| text.is_match(value))
                .map_err(|_| "its expression cannot be translated".to_owned()),
        };
        let variable = expression_variable(name);
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        // Clients choose the host: no target may take a group of it.
        let has_groups = !is_negated && self.uses_groups() && has_group(text);
        if let Some(variable) = variable.as_ref().filter(|variable| has_groups && *variable != "host") {
            let when = format!("{variable} matches {}", quoted(&expression(&format!("{flag}{text}"))?));
            let groups = (0..10).map(|group| format!("{{match.{group}}}")).collect();
            return one(Tests { whens: vec![when], groups, ..Tests::default() });
        }
        match name {
            "HTTPS" | "ENV:HTTPS" => return constant(fits(if self.scope.has_tls { "on" } else { "off" })?),
            "REQUEST_SCHEME" => return constant(fits(if self.scope.has_tls { "https" } else { "http" })?),
            "SERVER_PORT" => return constant(fits(if self.scope.has_tls { "443" } else { "80" })?),
            "ENV:REDIRECT_STATUS" => return constant(fits("")?),
            "HTTP_HOST" | "SERVER_NAME" if text.contains('(') && !is_negated => {
                // Groups are known for the names of the site.
                let expression = Regex::new(&format!("{flag}{text}"))
                    .map_err(|_| "its expression cannot be translated".to_owned())?;
                let mut all = Vec::new();
                for name in self.scope.names {
                    let Some(captures) = expression.captures(name) else { continue };
                    let groups = captures.iter().map(|group| group.map_or("", |group| group.as_str()).to_owned());
                    all.push(Tests {
                        properties: vec![PropertyCondition {
                            name: "field",
                            value: format!("Host: {name}"),
                            when: format!("host == {}", quoted(name)),
                        }],
                        groups: groups.collect(),
                        ..Tests::default()
                    });
                }
                if self.scope.names.is_empty() || self.scope.names.iter().any(|name| name.contains('*')) {
                    return Err(UNKNOWN_NAMES.to_owned());
                }
                return Ok(if all.is_empty() { vec![Tests { is_never: true, ..Tests::default() }] } else { all });
            }
            "REQUEST_URI" => {
                if matches!(text, "." | ".*" | "" | "(.*)" | "^(.*)$") {
                    return constant(true);
                }
                let path = match text.strip_prefix('=') {
                    Some(path) => ForeignPattern::Exact(path.to_owned()),
                    None => ForeignPattern::Expression(expression(&format!("{flag}{text}"))?),
                };
                let tests = match is_negated {
                    true => Tests { excluded: vec![path], ..Tests::default() },
                    false => Tests { paths: vec![path], ..Tests::default() },
                };
                return one(tests);
            }
            _ => {}
        }
        let sign = if is_negated { "!" } else { "" };
        let not = if is_negated { "not " } else { "" };
        let variable = variable.ok_or_else(|| format!("`%{{{name}}}` cannot be a condition"))?;
        let (property, value) = match name {
            "REQUEST_METHOD" => {
                let methods = text.trim_start_matches(['^', '=', '(']).trim_end_matches(['$', ')']);
                let methods: Vec<&str> = methods.split('|').collect();
                if !methods.iter().all(|method| method.bytes().all(|byte| byte.is_ascii_alphabetic())) {
                    return Err("methods must be names".to_owned());
                }
                ("method", format!("{sign}{}", methods.join(" ").to_ascii_uppercase()))
            }
            "QUERY_STRING" => {
                let text = if text.is_empty() { "^$" } else { text };
                ("query", format!("{sign}~{}", expression(&format!("{flag}{text}"))?))
            }
            name => {
                let field = match name {
                    "HTTP_USER_AGENT" => "User-Agent",
                    "HTTP_REFERER" => "Referer",
                    "HTTP_COOKIE" => "Cookie",
                    "HTTP_HOST" | "SERVER_NAME" => "Host",
                    "HTTP_ACCEPT" => "Accept",
                    name => match name.strip_prefix("HTTP:") {
                        Some(field) => field,
                        None => return Err(format!("`%{{{name}}}` cannot be a condition")),
                    },
                };
                if text.is_empty() || text == "^$" {
                    ("field", format!("{}{field}", if is_negated { "" } else { "!" }))
                } else if let Some(value) = text.strip_prefix('=') {
                    ("field", format!("{sign}{field}: {value}"))
                } else {
                    ("field", format!("{sign}{field}: ~{}", expression(&format!("{flag}{text}"))?))
                }
            }
        };
        let when = match text {
            "" | "^$" => format!("{not}{variable} == ''"),
            text => match text.strip_prefix('=') {
                Some(other) => format!("{not}{variable} == {}", quoted(other.trim_matches('"'))),
                None => format!("{not}{variable} matches {}", quoted(&expression(&format!("{flag}{text}"))?)),
            },
        };
        one(Tests { properties: vec![PropertyCondition { name: property, value, when }], ..Tests::default() })
    }
}

fn with_properties(node: KdlNode, tests: &Tests) -> KdlNode {
    let node = tests.properties.iter().fold(node, |node, one| node.property(one.name, &one.value));
    if tests.whens.is_empty() { node } else { node.property("when", tests.whens.join(" and ")) }
}

/// The name of a server variable in conditions; `None` if it has none.
fn expression_variable(name: &str) -> Option<String> {
    Some(match name {
        "REQUEST_URI" => "path".to_owned(),
        "HTTP_HOST" | "SERVER_NAME" => "host".to_owned(),
        "QUERY_STRING" => "query".to_owned(),
        "REQUEST_METHOD" => "method".to_owned(),
        "REMOTE_ADDR" => "client".to_owned(),
        "HTTP_USER_AGENT" => "request.header.User-Agent".to_owned(),
        "HTTP_REFERER" => "request.header.Referer".to_owned(),
        "HTTP_COOKIE" => "request.header.Cookie".to_owned(),
        "HTTP_ACCEPT" => "request.header.Accept".to_owned(),
        name => format!("request.header.{}", name.strip_prefix("HTTP:")?),
    })
}

/// The condition that a path matches a pattern.
fn path_matches(pattern: &ForeignPattern) -> String {
    format!("path matches '{}'", pattern.expression().replace('\'', "''"))
}

/// Returns `true` if an expression has a group whose match can be named.
fn has_group(text: &str) -> bool {
    text.match_indices('(').any(|(at, _)| !text[at + 1..].starts_with('?') && !text[..at].ends_with('\\'))
}

/// Conditions that both hold.
fn both(one: &Tests, other: &Tests) -> Result<Tests, String> {
    let mut result = one.clone();
    for property in &other.properties {
        if result.properties.contains(property) {
            continue;
        }
        // A line has one property of each name.
        match result.properties.iter().any(|one| one.name == property.name) {
            true => result.whens.push(property.when.clone()),
            false => result.properties.push(property.clone()),
        }
    }
    result.paths = match (one.paths.as_slice(), other.paths.as_slice()) {
        ([], paths) | (paths, []) => paths.to_vec(),
        (paths, others) => {
            let any: Vec<String> = others.iter().map(path_matches).collect();
            result.whens.push(format!("({})", any.join(" or ")));
            paths.to_vec()
        }
    };
    // Groups are those of the last condition.
    result.whens.extend(other.whens.iter().cloned());
    result.excluded.extend(other.excluded.iter().cloned());
    result.is_missing |= other.is_missing;
    result.is_no_directory |= other.is_no_directory;
    result.is_existing |= other.is_existing;
    result.is_never |= other.is_never;
    if !other.groups.is_empty() {
        result.groups.clone_from(&other.groups);
    }
    Ok(result)
}

/// Placeholder of a server variable.
fn variable(name: &str) -> Result<&'static str, String> {
    Ok(match name {
        "HTTP_HOST" | "SERVER_NAME" => "{host}",
        "REQUEST_URI" => "{path}",
        "QUERY_STRING" => "{query}",
        // Variables that common rules set to the path of the directory and to the scheme.
        "ENV:BASE" => "",
        "REQUEST_SCHEME" | "ENV:PROTO" => "{scheme}",
        _ => return Err(format!("`%{{{name}}}` has no counterpart here")),
    })
}
