//! Paths that locations and expressions match.

use regex::Regex;

use super::syntax::NginxDirective;
use crate::expression::PathExpression;
use crate::look_ahead;
use crate::pattern::end_of_group;
use crate::pattern::with_literal_braces;

/// Paths of a `location`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LocationMatch {
    /// `location = /path`
    Exact(String),
    /// `location ^~ /path`: goes before expressions.
    PrefixFirst(String),
    /// `location ~ expression`, as an expression of ours.
    Expression(PathExpression),
    /// `location /path`
    Prefix(String),
    /// `location @name`: no path's, but what others name.
    Named(String),
}

impl LocationMatch {
    /// Reads a `location`.
    ///
    /// # Errors
    ///
    /// The reason why its expression cannot be translated.
    pub(super) fn read(directive: &NginxDirective) -> Result<Self, String> {
        let second = directive.argument(1).to_owned();
        if Self::is_path_with_slashes(directive) {
            return Err("several slashes of a path are always one".to_owned());
        }
        Ok(match directive.first() {
            "=" => Self::Exact(second),
            "^~" => Self::PrefixFirst(second),
            "~" | "~*" => Self::Expression(expression_of(directive)?),
            name if name.starts_with('@') => Self::Named(name.to_owned()),
            prefix => Self::Prefix(prefix.to_owned()),
        })
    }

    /// Returns `true` for a path or prefix with several slashes in a row, which no request has here.
    pub(super) fn is_path_with_slashes(directive: &NginxDirective) -> bool {
        let is_expression = matches!(directive.first(), "~" | "~*");
        directive.name == "location" && !is_expression && directive.arguments.iter().any(|text| text.contains("//"))
    }

    /// Location with the paths of a pattern of ours.
    pub(super) fn of_pattern(pattern: &str) -> Self {
        match (pattern.strip_prefix('~'), pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
            (Some(expression), ..) => Self::Expression(expression.to_owned().into()),
            (_, Some(""), _) => Self::Prefix("/".to_owned()),
            (_, Some(ending), _) => Self::Expression(format!("{}$", regex::escape(ending)).into()),
            (.., Some(prefix)) => Self::Prefix(prefix.to_owned()),
            _ => Self::Exact(pattern.to_owned()),
        }
    }

    /// The pattern of its paths; `None` is all.
    pub(super) fn pattern(&self) -> Option<String> {
        match self {
            Self::Exact(path) => Some(path.clone()),
            Self::Prefix(prefix) | Self::PrefixFirst(prefix) if prefix == "/" => None,
            Self::Prefix(prefix) | Self::PrefixFirst(prefix) if prefix.ends_with('/') => Some(format!("{prefix}*")),
            Self::Prefix(prefix) | Self::PrefixFirst(prefix) => Some(format!("~^{}", regex::escape(prefix))),
            Self::Expression(expression) => Some(ending(expression).unwrap_or_else(|| format!("~{}", &**expression))),
            Self::Named(_) => None,
        }
    }

    /// The path or the front of all its paths.
    pub(super) fn prefix(&self) -> Option<&str> {
        match self {
            Self::Exact(path) | Self::Prefix(path) | Self::PrefixFirst(path) => Some(path),
            Self::Expression(_) | Self::Named(_) => None,
        }
    }

    /// This location inside one whose paths all begin with `prefix`.
    ///
    /// # Errors
    ///
    /// The reason why its expression cannot be limited to these paths.
    pub(super) fn within(self, prefix: Option<&str>) -> Result<Self, String> {
        let (Self::Expression(inner), Some(prefix)) = (&self, prefix.filter(|prefix| *prefix != "/")) else {
            return Ok(self);
        };
        if inner.starts_with('^') && self.head().starts_with(prefix) {
            return Ok(self);
        }
        // The front keeps its letter case.
        let (inner, flags) = inner.strip_prefix("(?i)").map_or((&**inner, "?:"), |inner| (inner, "?i:"));
        let head = head(inner);
        // A match that begins within the prefix, except at its last slash, would have to be found in a part of it.
        let (lower, head) = (prefix.to_ascii_lowercase(), head.to_ascii_lowercase());
        let begins_within = (1..prefix.len()).any(|at| heads_meet(&lower[at..], &head) && &lower[at..] != "/");
        if inner.contains('^') || head.is_empty() || begins_within {
            return Err("its expression cannot be limited to paths of the enclosing location".to_owned());
        }
        let front = match prefix.strip_suffix('/') {
            Some(directory) if head.starts_with('/') => format!("{}(?:/.*)?", regex::escape(directory)),
            _ => format!("{}.*", regex::escape(prefix)),
        };
        Ok(Self::Expression(format!("^{front}({flags}{inner})").into()))
    }

    /// Returns `true` if a path is one of its paths.
    pub(super) fn fits(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == path,
            Self::Prefix(prefix) | Self::PrefixFirst(prefix) => path.starts_with(prefix),
            Self::Expression(expression) => expression.fits(path),
            Self::Named(_) => false,
        }
    }

    pub(super) fn is_expression(&self) -> bool {
        matches!(self, Self::Expression(_))
    }

    /// Returns `true` if it matches all paths with a prefix, not a single path.
    pub(super) fn is_prefix(&self) -> bool {
        matches!(self, Self::Prefix(_) | Self::PrefixFirst(_))
    }

    /// The alternatives of an expression, if one of them is that of scripts without PATH_INFO; otherwise itself.
    pub(super) fn branches_of_scripts(&self) -> Vec<Self> {
        let whole = vec![self.clone()];
        let Self::Expression(expression) = self else { return whole };
        let branches: Vec<&str> = expression.split('|').collect();
        let is_split = |branch: &&str| Regex::new(branch).is_ok();
        let has_scripts = branches.len() > 1 && branches.iter().any(|branch| branch.ends_with(r"\.php$"));
        if !has_scripts || !branches.iter().all(is_split) || expression.starts_with("(?") {
            return whole;
        }
        branches.into_iter().map(|branch| Self::Expression(branch.to_owned().into())).collect()
    }

    /// Returns `true` if an expression matches all paths with this front.
    pub(super) fn is_of_front(&self, front: &str) -> bool {
        let Self::Expression(expression) = self else { return false };
        expression.strip_prefix('^').is_some_and(|rest| !front.is_empty() && rest == regex::escape(front))
    }

    /// Common prefix of all its paths.
    pub(super) fn head(&self) -> String {
        match self {
            Self::Exact(path) | Self::Prefix(path) | Self::PrefixFirst(path) => path.clone(),
            Self::Expression(expression) if expression.starts_with('^') && !has_branches(expression) => {
                head(expression)
            }
            Self::Expression(_) | Self::Named(_) => String::new(),
        }
    }

    /// Texts with one of which each of its paths begins, if it is an expression for which they are known.
    fn heads(&self) -> Option<&[String]> {
        match self {
            Self::Expression(expression) => expression.heads(),
            _ => None,
        }
    }

    /// Returns `true` if a path may belong to both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Named(_), _) | (_, Self::Named(_)) => false,
            (Self::Exact(path), other) | (other, Self::Exact(path)) => other.fits(path),
            _ => {
                let (own, others) = (self.head(), other.head());
                let own = self.heads().unwrap_or(std::slice::from_ref(&own));
                let others = other.heads().unwrap_or(std::slice::from_ref(&others));
                own.iter().any(|head| others.iter().any(|other| heads_meet(head, other)))
            }
        }
    }
}

/// The expression of a `location`, which is compiled once.
///
/// # Errors
///
/// The reason why it cannot be translated.
pub(super) fn expression_of(directive: &NginxDirective) -> Result<PathExpression, String> {
    directive.expression.get(|| expression(directive.argument(1), directive.first() == "~*"))
}

/// An expression of nginx (PCRE), if it says the same here.
pub(super) fn expression(text: &str, ignores_case: bool) -> Result<String, String> {
    let text = if ignores_case { format!("(?i){text}") } else { text.to_owned() };
    let text = with_literal_braces(&text);
    let text = look_ahead::without(&text).unwrap_or(text);
    match Regex::new(&text) {
        Ok(_) => Ok(text),
        Err(regex::Error::Syntax(message)) => {
            // The last line of the message says what is wrong; those before draw where.
            let reason = message.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Err(format!("its expression cannot be translated: {reason}"))
        }
        Err(error) => Err(format!("its expression cannot be translated: {error}")),
    }
}

/// The expression before a negative look-ahead at the end, and one of the paths that it keeps away: `^/` and `^/(?:a|b.+)`
/// of `^/(?!a|b.+)`.
pub(super) fn exception(text: &str) -> Option<(String, String)> {
    let (base, rest) = text.split_once("(?!")?;
    let inner = rest.strip_suffix(')')?;
    let except = format!("{base}(?:{inner})");
    // No further group may be open or look around.
    let is_read = |text: &str| !text.contains("(?!") && !text.contains("(?<") && Regex::new(text).is_ok();
    (base.starts_with('^') && !has_branches(base) && is_read(base) && is_read(inner) && is_read(&except))
        .then(|| (base.to_owned(), except))
}

/// An expression that fits at least what one with look-around fits, which regular expressions here don't have: looking
/// around only takes paths away.
pub(super) fn without_look_around(text: &str) -> String {
    let mut result = text.to_owned();
    while let Some(start) = ["(?!", "(?=", "(?<!", "(?<="].iter().filter_map(|opening| result.find(opening)).min() {
        // One that is not closed can't be read anyway.
        let Some(length) = end_of_group(&result[start + 1..]) else { return String::new() };
        result.replace_range(start..=start + 1 + length, "");
    }
    result
}

/// `*.php` for `\.php$`.
fn ending(expression: &str) -> Option<String> {
    let extension = expression.strip_prefix(r"\.")?.strip_suffix('$')?;
    extension.chars().all(|c| c.is_ascii_alphanumeric()).then(|| format!("*.{extension}"))
}

/// Returns `true` if a path may begin with both.
pub(super) fn heads_meet(one: &str, other: &str) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Returns `true` if an expression has `|` outside all groups, so that it has several beginnings.
pub(super) fn has_branches(expression: &str) -> bool {
    let mut depth = 0;
    let mut is_escaped = false;
    expression.chars().any(|character| {
        let is_literal = std::mem::take(&mut is_escaped);
        match character {
            _ if is_literal => {}
            '\\' => is_escaped = true,
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '|' => return depth == 0,
            _ => {}
        }
        false
    })
}

/// Common prefix of all texts that an expression matches.
pub(super) fn head(expression: &str) -> String {
    let mut head = String::new();
    let mut characters = expression.strip_prefix('^').unwrap_or(expression).chars().peekable();
    while let Some(character) = characters.next() {
        let literal = match character {
            '\\' => match characters.next_if(|next| !next.is_alphanumeric()) {
                Some(escaped) => escaped,
                None => break,
            },
            '.' | '(' | ')' | '[' | '^' | '$' | '|' | '+' => break,
            // The character before may be absent.
            '?' | '*' | '{' => {
                head.pop();
                break;
            }
            literal => literal,
        };
        head.push(literal);
    }
    head
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn locations_are_patterns() {
        let check = |text: &str, expect: Result<Option<&str>, &str>| {
            let directives = crate::nginx::syntax::parse(Path::new("n"), &format!("location {text} {{}}")).unwrap();
            match (LocationMatch::read(&directives[0]).map(|location| location.pattern()), expect) {
                (Ok(pattern), Ok(expect)) => assert_eq!(pattern.as_deref(), expect, "{text}"),
                (Err(message), Err(expect)) => assert!(message.contains(expect), "{text}: {message}"),
                (found, expect) => panic!("{text}: {found:?}, expected {expect:?}"),
            }
        };
        check("/", Ok(None));
        check("= /healthz", Ok(Some("/healthz")));
        check("/api/", Ok(Some("/api/*")));
        check("/api", Ok(Some("~^/api")));
        check("^~ /.well-known/", Ok(Some("/.well-known/*")));
        check(r"~ \.php$", Ok(Some("*.php")));
        check(r"~* \.(jpg|png)$", Ok(Some(r"~(?i)\.(jpg|png)$")));
        check(r"~ ^/(?!a)", Ok(Some(r"~^/(?:\z|[^a])")));
        check(r"~ ^/(?!admin)x", Err("look-around"));
    }

    #[test]
    fn what_looks_around_is_left_out() {
        let check = |text: &str, expect: &str| assert_eq!(without_look_around(text), expect, "{text}");
        check(r"/\.(?!well-known)", r"/\.");
        check(r"^/(?!a(b|c)\))(?<=x)d", "^/d");
        check("(?<n>a)", "(?<n>a)");
        check("(?!a", "");
    }

    #[test]
    fn expressions_begin_with_their_head() {
        let check = |expression: &str, expect: &str| assert_eq!(head(expression), expect, "{expression}");
        check(r"^/a\.b/(.*)$", "/a.b/");
        check("^/ab?c", "/a");
        check("^/ab+c", "/ab");
        check("^/ab{0,2}c", "/a");
        check(r"^/\d+", "/");
        check("(a|b)", "");
    }
}
