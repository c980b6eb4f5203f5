//! Paths that rules and handlers of other servers match, and their form here.

use regex::Regex;

use crate::look_ahead;

/// Paths of a rule or handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ForeignPattern {
    /// One path.
    Exact(String),
    /// All paths that begin with a text.
    Prefix(String),
    /// All paths that end with a text.
    Suffix(String),
    /// All paths that contain a match of an expression.
    Expression(String),
}

impl ForeignPattern {
    /// The pattern in a configuration; `None` is all paths.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Self::Exact(path) => Some(path.clone()),
            Self::Prefix(prefix) if prefix.is_empty() || prefix == "/" => None,
            Self::Prefix(prefix) if prefix.ends_with('/') => Some(format!("{prefix}*")),
            Self::Prefix(prefix) => Some(format!("~^{}", regex::escape(prefix))),
            Self::Suffix(suffix) => {
                let extension = suffix.strip_prefix('.').unwrap_or_default();
                let is_plain = !extension.is_empty() && extension.chars().all(|c| c.is_ascii_alphanumeric());
                Some(if is_plain { format!("*{suffix}") } else { format!("~{}$", regex::escape(suffix)) })
            }
            Self::Expression(expression) => Some(format!("~{expression}")),
        }
    }

    /// Returns `true` if all paths match.
    pub(crate) fn is_all(&self) -> bool {
        self.text().is_none()
    }

    /// An expression for the same paths.
    pub(crate) fn expression(&self) -> String {
        match self {
            Self::Exact(path) => format!("^{}$", regex::escape(path)),
            Self::Prefix(prefix) => format!("^{}", regex::escape(prefix)),
            Self::Suffix(suffix) => format!("{}$", regex::escape(suffix)),
            Self::Expression(expression) => expression.clone(),
        }
    }

    /// Pattern of these paths in upper and lower case.
    pub(crate) fn without_case(&self) -> Self {
        if self.is_all() {
            return self.clone();
        }
        let expression = self.expression();
        if expression.starts_with("(?i)") { self.clone() } else { Self::Expression(format!("(?i){expression}")) }
    }

    /// Pattern of these paths in upper and lower case, unless it is an expression or has no letters.
    pub(crate) fn fixed_without_case(&self) -> Self {
        match self {
            Self::Exact(text) | Self::Prefix(text) | Self::Suffix(text)
                if text.bytes().any(|byte| byte.is_ascii_alphabetic()) =>
            {
                self.without_case()
            }
            _ => self.clone(),
        }
    }

    /// Common prefix of all its paths.
    pub(crate) fn head(&self) -> String {
        match self {
            Self::Exact(path) | Self::Prefix(path) => path.clone(),
            Self::Suffix(_) => String::new(),
            Self::Expression(expression) => head_of(expression),
        }
    }

    /// Returns `true` if a path may match both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(path), other) | (other, Self::Exact(path)) => other.fits(path),
            _ => {
                let ignores_case = |one: &Self| matches!(one, Self::Expression(text) if text.starts_with("(?i)"));
                let (one, two) = match ignores_case(self) || ignores_case(other) {
                    true => (self.head_in_lower_case(), other.head_in_lower_case()),
                    false => (self.head(), other.head()),
                };
                one.starts_with(&two) || two.starts_with(&one)
            }
        }
    }

    /// Common prefix of all its paths in lower case.
    fn head_in_lower_case(&self) -> String {
        match self {
            Self::Expression(expression) => head_of(split_flag(expression).1).to_ascii_lowercase(),
            other => other.head().to_ascii_lowercase(),
        }
    }

    /// Returns `true` if a path matches.
    pub(crate) fn fits(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == path,
            Self::Prefix(prefix) => path.starts_with(prefix.as_str()),
            Self::Suffix(suffix) => path.ends_with(suffix.as_str()),
            Self::Expression(expression) => Regex::new(expression).is_ok_and(|expression| expression.is_match(path)),
        }
    }

    /// Returns `true` if all paths of the other match, too.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            _ if self.is_all() || self == other => true,
            (_, Self::Exact(path)) => self.fits(path),
            (Self::Prefix(prefix), other) => other.head().starts_with(prefix.as_str()),
            (Self::Suffix(suffix), Self::Suffix(other)) => other.ends_with(suffix.as_str()),
            _ => false,
        }
    }

    /// Paths that match both; `Ok(None)` if there is none.
    ///
    /// # Errors
    ///
    /// If no pattern can be written for them.
    pub(crate) fn and(&self, other: &Self) -> Result<Option<Self>, String> {
        if self.covers(other) {
            return Ok(Some(other.clone()));
        }
        if other.covers(self) {
            return Ok(Some(self.clone()));
        }
        if !self.overlaps(other) {
            return Ok(None);
        }
        match (self, other) {
            (Self::Prefix(prefix), Self::Suffix(suffix)) | (Self::Suffix(suffix), Self::Prefix(prefix)) => {
                Ok(Some(Self::Expression(format!("^{}.*{}$", regex::escape(prefix), regex::escape(suffix)))))
            }
            (Self::Prefix(prefix), Self::Expression(inner)) | (Self::Expression(inner), Self::Prefix(prefix))
                if is_end_only(inner) =>
            {
                let (flag, inner) = split_flag(inner);
                Ok(Some(Self::Expression(format!("{flag}^{}.*(?:{inner})", regex::escape(prefix)))))
            }
            _ => Err("the paths that match both patterns have no pattern here".to_owned()),
        }
    }

    /// The paths that begin with a text and continue with a path of the pattern.
    pub(crate) fn below(&self, prefix: &str) -> Self {
        if prefix.is_empty() {
            return self.clone();
        }
        match self {
            Self::Exact(path) => Self::Exact(format!("{prefix}{path}")),
            Self::Prefix(path) => Self::Prefix(format!("{prefix}{path}")),
            Self::Suffix(suffix) => {
                Self::Expression(format!("^{}/.*{}$", regex::escape(prefix), regex::escape(suffix)))
            }
            Self::Expression(expression) => {
                let (flag, inner) = split_flag(expression);
                let prefix = regex::escape(prefix);
                match inner.strip_prefix('^') {
                    Some(rest) if !inner.contains('|') => Self::Expression(format!("{flag}^{prefix}{rest}")),
                    _ => Self::Expression(format!("{flag}^{prefix}.*(?:{inner})")),
                }
            }
        }
    }
}

/// The flags of an expression, and the rest.
pub(crate) fn split_flag(expression: &str) -> (&'static str, &str) {
    match expression.strip_prefix("(?i)") {
        Some(rest) => ("(?i)", rest),
        None => ("", expression),
    }
}

/// Returns `true` if an expression matches only the end of a path, at least a dot and what follows.
fn is_end_only(expression: &str) -> bool {
    let (_, inner) = split_flag(expression);
    inner.starts_with(r"\.") && inner.ends_with('$') && !inner.contains('^') && !has_branches(inner)
}

/// Returns `true` if an expression has `|` outside all groups.
pub(crate) fn has_branches(expression: &str) -> bool {
    let (mut depth, mut is_escaped) = (0, false);
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

/// Common prefix of all paths that contain a match.
fn head_of(expression: &str) -> String {
    if !expression.starts_with('^') || has_branches(expression) {
        return String::new();
    }
    let mut head = String::new();
    let mut characters = expression[1..].chars().peekable();
    while let Some(character) = characters.next() {
        let literal = match character {
            '\\' => match characters.next_if(|next| !next.is_alphanumeric()) {
                Some(escaped) => escaped,
                None => break,
            },
            '.' | '(' | ')' | '[' | '^' | '$' | '|' | '+' => break,
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

/// An expression of PCRE or Go, if it has the same meaning here.
///
/// # Errors
///
/// The reason why it cannot be translated.
pub(crate) fn expression(text: &str) -> Result<String, String> {
    let text = &with_literal_braces(text);
    let without = look_ahead::without(text);
    match Regex::new(without.as_deref().unwrap_or(text)) {
        Ok(_) => Ok(without.unwrap_or_else(|| text.to_owned())),
        Err(regex::Error::Syntax(message)) => {
            let reason = message.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Err(format!("its expression cannot be translated: {reason}"))
        }
        Err(error) => Err(format!("its expression cannot be translated: {error}")),
    }
}

/// An expression whose braces that repeat nothing are literal, as in PCRE.
pub(crate) fn with_literal_braces(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '{']) {
        let (before, from) = rest.split_at(at);
        result.push_str(before);
        let length = match from.strip_prefix('\\') {
            // An escape, or `\p{…}` and `\x{…}` with its name.
            Some(escaped) => {
                let letter = escaped.chars().next().map_or(0, char::len_utf8);
                let named = escaped[letter..].strip_prefix('{').filter(|_| escaped.starts_with(['p', 'P', 'x', 'u']));
                1 + letter + named.and_then(|name| name.find('}')).map_or(0, |end| end + 2)
            }
            None => {
                let end = from.find('}').unwrap_or(0);
                let counts = from.get(1..end).unwrap_or_default();
                let is_repetition = counts.starts_with(|digit: char| digit.is_ascii_digit())
                    && counts.bytes().all(|byte| byte.is_ascii_digit() || byte == b',');
                if !is_repetition {
                    result.push('\\');
                }
                1
            }
        };
        result.push_str(&from[..length.min(from.len())]);
        rest = &from[length.min(from.len())..];
    }
    result.push_str(rest);
    result
}

/// Place of the parenthesis that closes a group, after its start.
pub(crate) fn end_of_group(inner: &str) -> Option<usize> {
    let (mut depth, mut is_escaped, mut is_class) = (0, false, false);
    inner.char_indices().find_map(|(at, letter)| {
        match letter {
            _ if std::mem::take(&mut is_escaped) => {}
            '\\' => is_escaped = true,
            '[' => is_class = true,
            ']' => is_class = false,
            _ if is_class => {}
            '(' => depth += 1,
            ')' if depth == 0 => return Some(at),
            ')' => depth -= 1,
            _ => {}
        }
        None
    })
}

/// A text of a condition.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> ForeignPattern {
        ForeignPattern::Prefix(text.to_owned())
    }

    #[test]
    fn patterns_are_written() {
        let check = |pattern: ForeignPattern, expect: Option<&str>| assert_eq!(pattern.text().as_deref(), expect);
        check(prefix("/"), None);
        check(prefix("/a/"), Some("/a/*"));
        check(prefix("/a.b"), Some(r"~^/a\.b"));
        check(ForeignPattern::Suffix(".php".to_owned()), Some("*.php"));
        check(ForeignPattern::Suffix("/x".to_owned()), Some("~/x$"));
        check(prefix("/A/").without_case(), Some("~(?i)^/A/"));
    }

    #[test]
    fn patterns_without_case_may_be_apart() {
        let check = |one: &ForeignPattern, other: &ForeignPattern, expect: bool| {
            assert_eq!((one.overlaps(other), other.overlaps(one)), (expect, expect), "{one:?} and {other:?}");
        };
        check(&prefix("/a/").without_case(), &prefix("/b/"), false);
        check(&prefix("/a/").without_case(), &prefix("/A/b/"), true);
        check(&ForeignPattern::Suffix(".x".to_owned()).without_case(), &prefix("/b/"), true);
    }

    #[test]
    fn patterns_are_joined() {
        let check = |one: &ForeignPattern, other: &ForeignPattern, expect: Option<&str>| {
            for (one, other) in [(one, other), (other, one)] {
                let found = one.and(other).unwrap().map(|pattern| pattern.text().unwrap_or_default());
                assert_eq!(found.as_deref(), expect, "{one:?} and {other:?}");
            }
        };
        check(&prefix("/a/"), &prefix("/a/b/"), Some("/a/b/*"));
        check(&prefix("/a/"), &prefix("/b/"), None);
        check(&prefix("/a/"), &ForeignPattern::Suffix(".css".to_owned()), Some(r"~^/a/.*\.css$"));
        check(&prefix("/a/"), &ForeignPattern::Exact("/a/b".to_owned()), Some("/a/b"));
        check(
            &prefix("/a/"),
            &ForeignPattern::Expression(r"\.(?:js|css)$".to_owned()),
            Some(r"~^/a/.*(?:\.(?:js|css)$)"),
        );
        let expression = ForeignPattern::Expression("a|b".to_owned());
        assert!(prefix("/a/").and(&expression).is_err());
    }

    /// Issue 23: expressions against templates in queries were rejected.
    #[test]
    fn braces_may_be_literal() {
        let check = |text: &str, expect: &str| {
            assert_eq!(with_literal_braces(text), expect);
            assert!(Regex::new(expect).is_ok(), "{expect}");
        };
        check("({{|}}|{%|%})", r"(\{\{|}}|\{%|%})");
        check(r"a{2}b{1,3}c{4,}", r"a{2}b{1,3}c{4,}");
        check(r"\{x\}{", r"\{x\}\{");
        check(r"\p{L}{2}\x{41}", r"\p{L}{2}\x{41}");
        check("{,3}", r"\{,3}");
    }
}
