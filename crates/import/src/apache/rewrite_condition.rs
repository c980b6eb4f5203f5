//! Conditions of rewrites: `RewriteCond`.

use regex::Regex;

use super::expression::{ApacheCondition, matching, variable as expression_variable};
use super::rewrite::{RewriteRule, UNKNOWN_NAMES};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::pattern::{ForeignPattern, expression, quoted};

/// A condition as a property, and as the expression language says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PropertyCondition {
    pub(super) name: &'static str,
    pub(super) value: String,
    when: String,
}

/// Conditions of a rule, as properties: each alternative is a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tests {
    pub(super) properties: Vec<PropertyCondition>,
    /// Conditions of the expression language that must hold, too.
    pub(super) whens: Vec<String>,
    pub(super) paths: Vec<ForeignPattern>,
    pub(super) excluded: Vec<ForeignPattern>,
    pub(super) is_missing: bool,
    /// True if paths of directories do not fulfil them.
    pub(super) is_no_directory: bool,
    /// True if only paths with a file fulfil them.
    pub(super) is_existing: bool,
    /// True if directories do not.
    pub(super) is_file: bool,
    /// True if the path `/` does not fulfil them.
    pub(super) leaves_root: bool,
    pub(super) is_never: bool,
    /// Groups of the last condition, where they are known.
    pub(super) groups: Vec<String>,
    /// Beginning of the target, and its form here: paths begin with a slash that no group has.
    pub(super) leading: Option<(&'static str, &'static str)>,
}

impl Tests {
    /// Conditions on other things than paths and files.
    pub(super) fn conditions(&self) -> Vec<String> {
        self.properties.iter().map(|one| one.when.clone()).chain(self.whens.iter().cloned()).collect()
    }
}

impl RewriteRule<'_> {
    /// Alternatives of the conditions.
    pub(super) fn alternatives(&self, conditions: &[&Directive]) -> Result<Vec<Tests>, String> {
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
        if all.iter().all(|tests| tests.is_existing) && all.len() > 1 {
            all.truncate(1);
            all[0].is_file = false;
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
            // No file is known before the directories of a host.
            if self.is_of_host() && matches!(subject, "%{REQUEST_FILENAME}" | "%{SCRIPT_FILENAME}") {
                let is_never = !is_negated;
                // The path `/` is a directory of the disk.
                return one(Tests { is_never, leaves_root: is_negated && text == "-d", ..Tests::default() });
            }
            let is_other = !subject.ends_with('}') || subject.contains('$');
            if is_other {
                return Err(format!("`{subject}` is another file"));
            }
            return one(Tests {
                is_missing: is_negated,
                is_no_directory: is_negated && matches!(text, "-d" | "-e"),
                is_existing: !is_negated,
                is_file: !is_negated && matches!(text, "-f" | "-s" | "-F"),
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
        // Clients choose the host: no target may take a group of it.
        let has_groups = !is_negated && self.uses_groups() && has_group(text);
        if let Some(variable) = variable.as_ref().filter(|variable| has_groups && *variable != "host") {
            let (text, leading) = match name {
                "REQUEST_URI" => with_slash(text, self.target_text()),
                _ => (text.to_owned(), None),
            };
            let when = format!("{variable} matches {}", quoted(&expression(&format!("{flag}{text}"))?));
            let groups = (0..10).map(|group| format!("{{match.{group}}}")).collect();
            return one(Tests { whens: vec![when], groups, leading, ..Tests::default() });
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
            "REMOTE_ADDR" => {
                let expression = match text.strip_prefix('=') {
                    Some(address) => format!("^{address}$"),
                    None => text.to_owned(),
                };
                let Some(ApacheCondition::When(when)) = matching("client", &expression) else {
                    return Err("clients are named by address".to_owned());
                };
                let when = if is_negated { format!("not {when}") } else { when };
                return one(Tests { whens: vec![when], ..Tests::default() });
            }
            "REQUEST_FILENAME" | "SCRIPT_FILENAME" if text.contains('^') => {
                return Err(format!("`%{{{name}}}` is a path on the disk"));
            }
            "REQUEST_URI" | "REQUEST_FILENAME" | "SCRIPT_FILENAME" => {
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
        let not = if is_negated { "not " } else { "" };
        let variable = variable.ok_or_else(|| format!("`%{{{name}}}` cannot be a condition"))?;
        let when = match text {
            "" | "^$" | "=" | "=\"\"" => format!("{not}{variable} == ''"),
            text => match text.strip_prefix('=') {
                Some(other) => format!("{not}{variable} == {}", quoted(other.trim_matches('"'))),
                None => format!("{not}{variable} matches {}", quoted(&expression(&format!("{flag}{text}"))?)),
            },
        };
        Ok(vec![match property(name, text, flag, is_negated)? {
            Some((name, value)) => {
                Tests { properties: vec![PropertyCondition { name, value, when }], ..Tests::default() }
            }
            None => Tests { whens: vec![when], ..Tests::default() },
        }])
    }
}

/// The property of a rule that is the same condition; `None` if no property is.
fn property(name: &str, text: &str, flag: &str, is_negated: bool) -> Result<Option<(&'static str, String)>, String> {
    let sign = if is_negated { "!" } else { "" };
    Ok(Some(match name {
        "REQUEST_METHOD" => {
            let methods = text.trim_start_matches(['^', '=', '(']).trim_end_matches(['$', ')']);
            let methods: Vec<&str> = methods.split('|').collect();
            let is_name = |method: &&str| !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphabetic());
            if !methods.iter().all(is_name) || !flag.is_empty() {
                return Ok(None);
            }
            ("method", format!("{sign}{}", methods.join(" ").to_ascii_uppercase()))
        }
        "QUERY_STRING" if !text.starts_with('=') => {
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
                    None => return Ok(None),
                },
            };
            if matches!(text, "" | "^$" | "=" | "=\"\"") {
                ("field", format!("{}{field}", if is_negated { "" } else { "!" }))
            } else if let Some(value) = text.strip_prefix('=') {
                ("field", format!("{sign}{field}: {value}"))
            } else {
                ("field", format!("{sign}{field}: ~{}", expression(&format!("{flag}{text}"))?))
            }
        }
    }))
}

/// An expression for paths whose first group begins without a slash. With the beginning of a target that names the group,
/// in both forms.
fn with_slash(text: &str, target: &str) -> (String, Option<(&'static str, &'static str)>) {
    let inner = text.strip_prefix('^').unwrap_or(text);
    let of_parent = inner.strip_prefix("(.*)?/").or(inner.strip_prefix("(.*)/"));
    if let Some(rest) = of_parent.filter(|_| target.starts_with("%1/")) {
        return (format!("^/((?:.*/)?){rest}"), Some(("%1/", "/{match.1}")));
    }
    for (from, to) in [("(.+)", "^/(.*)"), ("(.*)", "^/(.*)"), ("(/.+)", "^/(.+)"), ("(/.*)", "^/(.*)")] {
        if let Some(rest) = inner.strip_prefix(from).filter(|rest| !rest.starts_with(['?', '*', '+', '{']))
            && target.starts_with("%1")
        {
            return (format!("{to}{rest}"), Some(("%1", "/{match.1}")));
        }
    }
    (text.to_owned(), None)
}

pub(super) fn with_properties(node: KdlNode, tests: &Tests) -> KdlNode {
    let node = tests.properties.iter().fold(node, |node, one| node.property(one.name, &one.value));
    if tests.whens.is_empty() { node } else { node.property("when", tests.whens.join(" and ")) }
}

/// The condition that a path matches a pattern.
pub(super) fn path_matches(pattern: &ForeignPattern) -> String {
    format!("path matches {}", quoted(&pattern.expression()))
}

/// Conditions on requests, which do not depend on files, under which a rule with this pattern applies.
pub(super) fn conditions_of(tests: &Tests, pattern: &ForeignPattern) -> Vec<String> {
    let paths = tests.paths.iter().chain(Some(pattern).filter(|pattern| !pattern.is_all())).map(path_matches);
    let excluded = tests.excluded.iter().map(|excluded| format!("not {}", path_matches(excluded)));
    tests.conditions().into_iter().chain(paths).chain(excluded).collect()
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
    result.is_file |= other.is_file;
    result.leaves_root |= other.leaves_root;
    result.is_never |= other.is_never;
    if !other.groups.is_empty() {
        result.groups.clone_from(&other.groups);
        result.leading = other.leading;
    }
    Ok(result)
}
