//! Flags, variables and files that rewrites name.

use super::rewrite::RewriteRule;
use super::rewrite_condition::Tests;
use crate::directive::Directive;
use crate::pattern::{ForeignPattern, end_of_group};

/// Expressions that match all paths, and that of the directory itself.
pub(super) const ALL: [&str; 7] = ["^", ".*", "^.*$", "^(.*)$", "(.*)", "^(.*)", "^.*"];

/// Expressions that match all paths but that of the directory itself, of which nothing is left.
pub(super) const ALL_BELOW: [&str; 5] = [".", ".+", "(.+)", "^.+$", "^(.+)$"];

/// The name of a flag in its short form, if it has one.
pub(super) fn flag_name(name: &str) -> String {
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
        "passthrough" => "PT",
        other => return other.to_ascii_uppercase(),
    };
    short.to_owned()
}

/// Returns `true` for the condition that the target exists, which depends on the path.
pub(super) fn is_own_file(condition: &Directive, target: &str) -> bool {
    let file = condition.first().trim_start_matches("%{DOCUMENT_ROOT}").trim_start_matches('/');
    let own = target.trim_start_matches("%{DOCUMENT_ROOT}").trim_start_matches('/');
    condition.argument(1) == "-f" && file == own && (own.contains('$') || own.contains("%{REQUEST_URI}"))
}

/// Value of a variable that common rules set to the path of their directory, by comparing the path with its rest:
/// `RewriteCond %{REQUEST_URI}::$0 ^(/.+)/(.*)::\2$` and `RewriteRule .* - [E=BASE:%1]`.
pub(super) fn base_of(condition: &Directive, value: &str) -> Option<String> {
    let group: usize = value.strip_prefix('%')?.parse().ok()?;
    let subject = condition.first().replace("%{REQUEST_URI}", "/x").replace("$0", "x").replace("$1", "x");
    if subject.contains(['%', '$']) || condition.first() == subject {
        return None;
    }
    // The text to which it refers is the rest of the path.
    let text = condition.argument(1).replace(r"\1", "x").replace(r"\2", "x");
    let expression = regex::Regex::new(&text).ok()?;
    let found = expression.captures(&subject).and_then(|found| found.get(group).map(|group| group.as_str().to_owned()));
    Some(found.unwrap_or_default())
}

/// Placeholder of a server variable.
pub(super) fn variable(name: &str) -> Result<&'static str, String> {
    Ok(match name {
        "HTTP_HOST" | "SERVER_NAME" => "{host}",
        "REQUEST_URI" => "{path}",
        "QUERY_STRING" => "{query}",
        "REQUEST_SCHEME" => "{scheme}",
        _ => return Err(format!("`%{{{name}}}` has no counterpart here")),
    })
}

/// Returns `true` for a rule whose target is the path itself, as `^(a.*)` and `$1`; `false` if only a part before it is
/// dropped that may be missing, as `^(x/)?(a.*)` and `$2`. Apache does not apply such a rule to its own result.
pub(super) fn leads_to_itself(directive: &Directive) -> Option<bool> {
    let text = directive.first().strip_prefix('^')?;
    let text = text.strip_suffix('$').unwrap_or(text);
    let (first, rest) = split_group(text)?;
    if rest.is_empty() {
        return (directive.argument(1) == "$1").then_some(true);
    }
    split_group(rest.strip_prefix('?')?).filter(|(_, rest)| rest.is_empty())?;
    let groups = first.matches('(').count() - first.matches("(?").count();
    (directive.argument(1) == format!("${}", groups + 1)).then_some(false)
}

/// The group with which an expression begins, and the text after it.
fn split_group(text: &str) -> Option<(&str, &str)> {
    let is_group = !text.starts_with("(?") && !text.contains(r"\(");
    let end = end_of_group(text.strip_prefix('(').filter(|_| is_group)?)?;
    Some(text.split_at(end + "()".len()))
}

/// Returns `true` if a pattern is for a script and paths that begin with its own, with or without an escaped dot.
pub(super) fn is_of_script(pattern: &ForeignPattern, script: &str) -> bool {
    let head = pattern.head();
    head == script || (pattern.fits(script) && script.strip_prefix(&head).is_some_and(|rest| rest.starts_with('.')))
}

/// Flags of a rule, with names in upper case.
pub(super) fn flags_of(rule: &Directive) -> Vec<String> {
    let text = rule.argument(2).trim_start_matches('[').trim_end_matches(']');
    let flags = text.split(',').map(str::trim).filter(|flag| !flag.is_empty());
    let flags = flags.map(|flag| match flag.split_once('=') {
        Some((name, value)) => format!("{}={value}", flag_name(name)),
        None => flag_name(flag),
    });
    flags.collect()
}

/// Returns `true` if a rule rejects requests.
pub(super) fn rejects(rule: &Directive) -> bool {
    flags_of(rule).iter().any(|flag| matches!(flag.as_str(), "F" | "G") || flag.starts_with("R=4"))
}

impl RewriteRule<'_> {
    /// The target with known variables in place of their names; without the directory of the site.
    pub(super) fn with_variables(&self, target: &str) -> Result<String, String> {
        let root = self.scope.root.trim_end_matches('/');
        let below = |directory: &str| target.strip_prefix(directory).filter(|path| path.starts_with(['/', '$']));
        let target = match below("%{DOCUMENT_ROOT}").or_else(|| below(root).filter(|_| root.len() > 1)) {
            Some(path) => path,
            None => target,
        };
        let mut result = String::new();
        let mut rest = target;
        while let Some((before, from)) = rest.split_once("%{ENV:") {
            let Some((name, after)) = from.split_once('}') else { break };
            let value = self.state.variables.get(name).map(String::as_str);
            // A directory of its own is the root of its site; and common rules set the scheme.
            let value = value.or((name == "BASE").then_some("")).or((name == "PROTO").then_some("%{REQUEST_SCHEME}"));
            result.push_str(before);
            result.push_str(value.ok_or_else(|| format!("`%{{ENV:{name}}}` has no counterpart here"))?);
            rest = after;
        }
        result.push_str(rest);
        Ok(result)
    }

    /// Keeps the variables that a rule sets.
    pub(super) fn set_variables(&mut self, conditions: &[&Directive]) {
        for flag in self.flags() {
            let Some(text) = flag.strip_prefix("E=").or(flag.strip_prefix("ENV=")) else { continue };
            let (name, value) = text.split_once(':').unwrap_or((text, ""));
            let value = match value.contains(['%', '$']) {
                false => match self.alternatives(conditions).as_deref() {
                    Ok([tests]) if tests.is_never => continue,
                    Ok([tests]) if *tests == Tests::default() => Some(value.to_owned()),
                    _ => None,
                },
                true => conditions.last().and_then(|condition| base_of(condition, value)),
            };
            match value {
                Some(value) => self.state.variables.insert(name.to_owned(), value),
                None => self.state.variables.remove(name),
            };
        }
    }
}
