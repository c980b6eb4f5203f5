//! Expressions of matchers in the Common Expression Language (CEL), as conditions.

use super::maps::MAP_PLACEHOLDER;
use super::matcher::{Matcher, MatcherScope, path_condition};
use crate::pattern::{ForeignPattern, expression, quoted};

/// Nesting of parentheses and negations that is read.
const DEPTH_MAX: usize = 16;

/// An expression as a condition, or a fixed value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExpressionValue {
    Fixed(bool),
    Test(String),
}

impl ExpressionValue {
    fn negated(self) -> Self {
        match self {
            Self::Fixed(value) => Self::Fixed(!value),
            Self::Test(test) => Self::Test(format!("not ({test})")),
        }
    }

    /// Joins both: with `and`, or with `or`.
    fn joined(self, other: Self, is_and: bool) -> Self {
        match (self, other) {
            (Self::Fixed(value), other) | (other, Self::Fixed(value)) => {
                // The value decides, or the other does.
                if value == is_and { other } else { Self::Fixed(value) }
            }
            (Self::Test(one), Self::Test(other)) if is_and => Self::Test(format!("{one} and {other}")),
            (Self::Test(one), Self::Test(other)) => Self::Test(format!("({one} or {other})")),
        }
    }
}

/// Reads an expression.
///
/// # Errors
///
/// The part that has no counterpart.
pub(super) fn read(text: &str, scope: &MatcherScope<'_>) -> Result<ExpressionValue, String> {
    let mut reader = ExpressionReader { rest: text.trim(), scope, depth: 1 };
    let verdict = reader.any()?;
    match reader.rest {
        "" => Ok(verdict),
        rest => Err(unknown(rest)),
    }
}

fn unknown(rest: &str) -> String {
    format!("the expression has no counterpart from `{rest}` on")
}

struct ExpressionReader<'t, 's, 'm> {
    rest: &'t str,
    scope: &'s MatcherScope<'m>,
    depth: usize,
}

/// A value of an argument.
enum Argument {
    Text(String),
    /// Names and values of a map.
    Map(Vec<(String, Vec<String>)>),
}

impl<'t> ExpressionReader<'t, '_, '_> {
    /// Takes a sign and the space after it.
    fn takes(&mut self, sign: &str) -> bool {
        let rest = self.rest.strip_prefix(sign);
        rest.inspect(|rest| self.rest = rest.trim_start()).is_some()
    }

    fn needs(&mut self, sign: &str) -> Result<(), String> {
        if self.takes(sign) { Ok(()) } else { Err(unknown(self.rest)) }
    }

    fn any(&mut self) -> Result<ExpressionValue, String> {
        let mut verdict = self.all()?;
        while self.takes("||") {
            verdict = verdict.joined(self.all()?, false);
        }
        Ok(verdict)
    }

    /// Reads what is in parentheses, or after a negation.
    fn inner(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<ExpressionValue, String>,
    ) -> Result<ExpressionValue, String> {
        if self.depth == DEPTH_MAX {
            return Err("the expression is nested too deeply".to_owned());
        }
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn all(&mut self) -> Result<ExpressionValue, String> {
        let mut verdict = self.one()?;
        while self.takes("&&") {
            verdict = verdict.joined(self.one()?, true);
        }
        Ok(verdict)
    }

    fn one(&mut self) -> Result<ExpressionValue, String> {
        if !self.rest.starts_with("!=") && self.takes("!") {
            return Ok(self.inner(Self::one)?.negated());
        }
        if self.takes("(") {
            let inner = self.inner(Self::any)?;
            self.needs(")")?;
            return Ok(inner);
        }
        if self.rest.starts_with('{') {
            return self.comparison();
        }
        let name = self.word();
        match (name, self.rest.starts_with('(')) {
            ("true", false) => Ok(ExpressionValue::Fixed(true)),
            ("false", false) => Ok(ExpressionValue::Fixed(false)),
            ("", _) | (_, false) => Err(unknown(self.rest)),
            (name, true) => self.call(name),
        }
    }

    fn word(&mut self) -> &'t str {
        let end = self.rest.find(|one: char| !one.is_ascii_alphanumeric() && one != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    /// A text in quotation marks. One with a backslash is not read.
    fn text(&mut self) -> Result<String, String> {
        let Some(mark) = self.rest.chars().next().filter(|mark| matches!(mark, '\'' | '"')) else {
            return Err(unknown(self.rest));
        };
        let Some((text, rest)) = self.rest[1..].split_once(mark) else { return Err(unknown(self.rest)) };
        if text.contains('\\') {
            return Err("texts with a backslash have no counterpart".to_owned());
        }
        self.rest = rest.trim_start();
        Ok(text.to_owned())
    }

    /// Texts in brackets, or one text.
    fn texts(&mut self) -> Result<Vec<String>, String> {
        if !self.takes("[") {
            return Ok(vec![self.text()?]);
        }
        let mut texts = Vec::new();
        while !self.takes("]") {
            texts.push(self.text()?);
            self.takes(",");
        }
        Ok(texts)
    }

    fn argument(&mut self) -> Result<Argument, String> {
        if !self.takes("{") {
            return self.text().map(Argument::Text);
        }
        let mut map = Vec::new();
        while !self.takes("}") {
            let name = self.text()?;
            self.needs(":")?;
            map.push((name, self.texts()?));
            self.takes(",");
        }
        Ok(Argument::Map(map))
    }

    /// A matcher as a function, such as `path('/a/*')`.
    fn call(&mut self, name: &str) -> Result<ExpressionValue, String> {
        self.needs("(")?;
        let mut texts = Vec::new();
        let mut map = Vec::new();
        while !self.takes(")") {
            match self.argument()? {
                Argument::Text(text) => texts.push(text),
                Argument::Map(other) => map.extend(other),
            }
            self.takes(",");
        }
        let mut matcher = Matcher::default();
        let takes_map = matches!(name, "query" | "header");
        if takes_map == map.is_empty() || takes_map != texts.is_empty() {
            return Err(format!("`{name}` has other arguments here"));
        }
        match name {
            "query" => {
                let pairs =
                    map.iter().flat_map(|(name, values)| values.iter().map(move |value| format!("{name}={value}")));
                self.scope.add(&mut matcher, name, &pairs.collect::<Vec<_>>(), &[])?;
            }
            "header" => {
                for (field, values) in map {
                    for value in values {
                        self.scope.add(&mut matcher, name, &[field.clone(), value], &[])?;
                    }
                }
            }
            "path" | "path_regexp" | "method" | "host" | "protocol" | "header_regexp" | "remote_ip" | "client_ip" => {
                self.scope.add(&mut matcher, name, &texts, &[])?;
            }
            name => return Err(format!("the matcher `{name}` has no counterpart in an expression")),
        }
        let matcher = matcher.finished();
        Ok(match matcher.condition() {
            _ if matcher.never => ExpressionValue::Fixed(false),
            Some(test) => ExpressionValue::Test(test),
            None => ExpressionValue::Fixed(true),
        })
    }

    /// A comparison of a placeholder.
    fn comparison(&mut self) -> Result<ExpressionValue, String> {
        let Some((name, rest)) = self.rest[1..].split_once('}') else { return Err(unknown(self.rest)) };
        let variable = variable(name).ok_or_else(|| format!("`{{{name}}}` has no counterpart here"))?;
        self.rest = rest.trim_start();
        if let Some(sign) = ["==", "!="].into_iter().find(|sign| self.takes(sign)) {
            let text = self.text()?;
            if text.is_empty() && variable.starts_with("cookie.") {
                return Err("a cookie that is missing is no empty one".to_owned());
            }
            return Ok(ExpressionValue::Test(format!("{variable} {sign} {}", quoted(&text))));
        }
        if self.takes("in ") {
            let texts: Vec<String> = self.texts()?.iter().map(|text| quoted(text)).collect();
            return match texts.is_empty() {
                true => Ok(ExpressionValue::Fixed(false)),
                false => Ok(ExpressionValue::Test(format!("{variable} in ({})", texts.join(", ")))),
            };
        }
        self.needs(".")?;
        let method = self.word();
        self.needs("(")?;
        let text = self.text()?;
        self.needs(")")?;
        let test = match method {
            "startsWith" => format!("{variable} starts-with {}", quoted(&text)),
            "endsWith" => format!("{variable} ends-with {}", quoted(&text)),
            "contains" => format!("{variable} contains {}", quoted(&text)),
            "matches" if variable == "path" => path_condition(&ForeignPattern::Expression(expression(&text)?)),
            "matches" => format!("{variable} matches {}", quoted(&expression(&text)?)),
            method => return Err(format!("`{method}` has no counterpart")),
        };
        Ok(ExpressionValue::Test(test))
    }
}

/// Variable of a placeholder.
pub(super) fn variable(name: &str) -> Option<String> {
    if let Some(map) = name.strip_prefix(MAP_PLACEHOLDER) {
        return Some(format!("map.{map}"));
    }
    let short = name.strip_prefix("http.request.").unwrap_or(name);
    Some(match short {
        "method" => "method".to_owned(),
        "host" => "host".to_owned(),
        "scheme" => "scheme".to_owned(),
        "path" | "uri.path" => "path".to_owned(),
        short => {
            let of = |prefix: &str| short.strip_prefix(prefix).filter(|name| is_name(name));
            if let Some(field) = of("header.") {
                format!("request.header.{field}")
            } else if let Some(argument) = of("uri.query.").or(of("query.")) {
                format!("query.{argument}")
            } else {
                format!("cookie.{}", of("cookie.")?)
            }
        }
    })
}

/// Returns `true` if variables may have this name.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn found(text: &str) -> Result<ExpressionValue, String> {
        let named = HashMap::new();
        read(
            text,
            &MatcherScope {
                named: &named,
                host: Some("a.example"),
                has_tls: Some(false),
                has_proxies: false,
                has_other_clients: false,
                is_of_guard: true,
                has_plain_host: false,
            },
        )
    }

    #[test]
    fn expressions_are_conditions() {
        let check =
            |text: &str, expect: &str| assert_eq!(found(text), Ok(ExpressionValue::Test(expect.to_owned())), "{text}");
        check("path('/1/*')", "path starts-with '/1/'");
        check("path('/1/*', '/A')", "(path starts-with '/1/' or path matches '(?i)^/a$')");
        check("!path(\"/1\") && method('get')", "not (path == '/1') and method in ('GET')");
        check(
            "(method('GET') || query({'v': '1'})) && {path} != '/1'",
            "(method in ('GET') or query.v == '1') and path != '/1'",
        );
        check("{http.request.uri.path}.startsWith('/1')", "path starts-with '/1'");
        check("{header.X-A}.matches('^b')", "request.header.X-A matches '^b'");
        check("{http.request.method} in ['GET', 'PUT']", "method in ('GET', 'PUT')");
        check(
            "header({'X-A': ['b*', '*c*']})",
            "(request.header.X-A matches '(?:^|, )b' or request.header.X-A contains 'c')",
        );
        check("host('b.example') || path_regexp('n', '^/1')", "path matches '^/1'");
        check("host('a.example') && !remote_ip('10.0.0.0/8')", "not (client in ('10.0.0.0/8'))");
    }

    #[test]
    fn expressions_may_be_fixed() {
        let check = |text: &str, expect: bool| assert_eq!(found(text), Ok(ExpressionValue::Fixed(expect)), "{text}");
        check("host('b.example') && path('/1')", false);
        check("protocol('http') || path('/1')", true);
        check("!protocol('https')", true);
    }

    #[test]
    fn other_expressions_are_rejected() {
        for text in [
            "",
            "path('/1'",
            "path('/1') path('/2')",
            "{path} == 1",
            "{err.status_code} == '404'",
            "file({'try_files': ['/1']})",
            "{path}.size() > 1",
            "path('/1') ? true : false",
            "vars({'a': 'b'})",
            "{cookie.a} == ''",
            "{path} == '/1' + '/2'",
            "query('v')",
            r"{path} == '/\1'",
            "path()",
        ] {
            assert!(found(text).is_err(), "{text}: {:?}", found(text));
        }
        assert!(found(&format!("{}path('/1'){}", "(".repeat(99), ")".repeat(99))).is_err());
        assert!(found(&format!("{}path('/1')", "!".repeat(9999))).is_err());
    }
}
