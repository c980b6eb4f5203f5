//! Apache's expressions (`<If>`, `Require expr`, `expr=`), as conditions here.

use std::collections::BTreeMap;

use crate::pattern::{expression, quoted};

/// A condition, or a constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ApacheCondition {
    Constant(bool),
    When(String),
}

impl ApacheCondition {
    pub(super) fn not(self) -> Self {
        match self {
            Self::Constant(holds) => Self::Constant(!holds),
            Self::When(text) => Self::When(format!("not ({text})")),
        }
    }

    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Constant(false), _) | (_, Self::Constant(false)) => Self::Constant(false),
            (Self::Constant(true), other) | (other, Self::Constant(true)) => other,
            (one, other) if one == other => one,
            (Self::When(one), Self::When(other)) => Self::When(format!("({one}) and ({other})")),
        }
    }

    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Constant(true), _) | (_, Self::Constant(true)) => Self::Constant(true),
            (Self::Constant(false), other) | (other, Self::Constant(false)) => other,
            (one, other) if one == other => one,
            (Self::When(one), Self::When(other)) => Self::When(format!("({one}) or ({other})")),
        }
    }
}

/// Variables of the environment, with the condition under which each is set; `None` if that is unknown.
pub(super) type ApacheEnvironment = BTreeMap<String, Option<ApacheCondition>>;

/// Facts of a site that expressions test.
#[derive(Clone, Copy)]
pub(super) struct ExpressionScope<'a> {
    pub(super) has_tls: bool,
    pub(super) environment: &'a ApacheEnvironment,
}

/// Deepest nesting of parentheses.
const NESTING_MAX: usize = 20;

/// Translates an expression; `None` if it has no counterpart.
pub(super) fn condition(text: &str, scope: ExpressionScope<'_>) -> Option<ApacheCondition> {
    let mut parser = Parser { rest: text.trim(), scope, depth: 0 };
    let found = parser.any()?;
    parser.rest.trim_start().is_empty().then_some(found)
}

/// The name of a variable of the server in conditions; `None` if it has none.
pub(super) fn variable(name: &str) -> Option<String> {
    Some(match name {
        "REQUEST_URI" => "path".to_owned(),
        "HTTP_HOST" | "SERVER_NAME" => "host".to_owned(),
        "QUERY_STRING" => "query".to_owned(),
        "REQUEST_METHOD" => "method".to_owned(),
        "REMOTE_ADDR" | "CONN_REMOTE_ADDR" => "client".to_owned(),
        "HTTP_USER_AGENT" => "request.header.User-Agent".to_owned(),
        "HTTP_REFERER" => "request.header.Referer".to_owned(),
        "HTTP_COOKIE" => "request.header.Cookie".to_owned(),
        "HTTP_ACCEPT" => "request.header.Accept".to_owned(),
        "HTTP_FORWARDED" => "request.header.Forwarded".to_owned(),
        name => {
            let field = ["HTTP:", "req:", "http:"].iter().find_map(|prefix| name.strip_prefix(prefix))?;
            format!("request.header.{field}")
        }
    })
}

/// A side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Operand {
    Variable(String),
    Text(String),
    /// Value of a variable of the environment.
    Environment(ApacheCondition),
}

struct Parser<'a> {
    rest: &'a str,
    scope: ExpressionScope<'a>,
    depth: usize,
}

impl Parser<'_> {
    fn take(&mut self, text: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Takes a name, and what separates it from the next word.
    fn take_word(&mut self, word: &str) -> bool {
        let before = self.rest;
        if self.take(word) && !self.rest.starts_with(|next: char| next.is_ascii_alphanumeric()) {
            return true;
        }
        self.rest = before;
        false
    }

    fn any(&mut self) -> Option<ApacheCondition> {
        let mut found = self.all()?;
        while self.take("||") {
            found = found.or(self.all()?);
        }
        Some(found)
    }

    fn all(&mut self) -> Option<ApacheCondition> {
        let mut found = self.one()?;
        while self.take("&&") {
            found = found.and(self.one()?);
        }
        Some(found)
    }

    fn one(&mut self) -> Option<ApacheCondition> {
        self.depth += 1;
        if self.depth > NESTING_MAX {
            return None;
        }
        let found = if !self.rest.trim_start().starts_with("!~") && self.take("!") {
            self.one()?.not()
        } else if self.take("(") {
            let inner = self.any()?;
            self.take(")").then_some(inner)?
        } else if self.take_word("true") {
            ApacheCondition::Constant(true)
        } else if self.take_word("false") {
            ApacheCondition::Constant(false)
        } else if self.take_word("-z") {
            is_set(self.operand()?).not()
        } else if self.take_word("-n") || self.take_word("-T") {
            is_set(self.operand()?)
        } else if self.take_word("-R") {
            client_in(&self.operand()?)?
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Some(found)
    }

    fn comparison(&mut self) -> Option<ApacheCondition> {
        let one = self.operand()?;
        for (sign, is_negated) in [("=~", false), ("!~", true)] {
            if self.take(sign) {
                let found = matches(one, &self.expression()?)?;
                return Some(if is_negated { found.not() } else { found });
            }
        }
        for (sign, is_negated) in [("==", false), ("!=", true), ("-eq", false), ("-ne", true), ("=", false)] {
            if self.take(sign) {
                let found = equals(one, self.operand()?)?;
                return Some(if is_negated { found.not() } else { found });
            }
        }
        if self.take_word("-ipmatch") {
            let is_client = matches!(&one, Operand::Variable(name) if name == "client");
            return if is_client { client_in(&self.operand()?) } else { None };
        }
        if self.take_word("-in") || self.take_word("in") { self.list(one) } else { None }
    }

    /// `{ 'a', 'b' }` after `in`.
    fn list(&mut self, one: Operand) -> Option<ApacheCondition> {
        self.take("{").then_some(())?;
        let mut found = ApacheCondition::Constant(false);
        loop {
            found = found.or(equals(one.clone(), self.operand()?)?);
            if self.take("}") {
                return Some(found);
            }
            self.take(",").then_some(())?;
        }
    }

    fn operand(&mut self) -> Option<Operand> {
        self.rest = self.rest.trim_start();
        if let Some(rest) = self.rest.strip_prefix("%{") {
            let (name, rest) = rest.split_once('}')?;
            self.rest = rest;
            return self.variable(name);
        }
        if let Some(quote) = self.rest.chars().next().filter(|first| matches!(first, '\'' | '"')) {
            let (text, rest) = self.rest[1..].split_once(quote)?;
            self.rest = rest;
            if let Some(name) = text.strip_prefix("%{").and_then(|text| text.strip_suffix('}')) {
                return self.variable(name);
            }
            return (!text.contains(['%', '\\'])).then(|| Operand::Text(text.to_owned()));
        }
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || "_.-/:*".contains(letter);
        let end = self.rest.find(|letter| !is_word(letter)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        if word.is_empty() {
            return None;
        }
        self.rest = rest;
        if !self.rest.starts_with('(') {
            return Some(Operand::Text(word.to_owned()));
        }
        self.rest = &self.rest[1..];
        let Operand::Text(argument) = self.operand()? else { return None };
        self.take(")").then_some(())?;
        match word {
            "req" | "http" | "req_novary" => self.variable(&format!("HTTP:{argument}")),
            "reqenv" | "env" => self.variable(&format!("ENV:{argument}")),
            _ => None,
        }
    }

    fn variable(&self, name: &str) -> Option<Operand> {
        let text = |text: &str| Some(Operand::Text(text.to_owned()));
        let is_tls = self.scope.has_tls;
        match name {
            "HTTPS" => return text(if is_tls { "on" } else { "off" }),
            "REQUEST_SCHEME" => return text(if is_tls { "https" } else { "http" }),
            "SERVER_PORT" => return text(if is_tls { "443" } else { "80" }),
            "REQUEST_STATUS" => return Some(Operand::Variable("status".to_owned())),
            _ => {}
        }
        let of_environment = ["ENV:", "env:", "reqenv:"].iter().find_map(|prefix| name.strip_prefix(prefix));
        match of_environment {
            Some(name) => self.scope.environment.get(name).cloned().flatten().map(Operand::Environment),
            None => variable(name).map(Operand::Variable),
        }
    }

    /// `/.../i`, `m#...#`.
    fn expression(&mut self) -> Option<String> {
        self.rest = self.rest.trim_start();
        let text = self.rest.strip_prefix('m').unwrap_or(self.rest);
        let sign = text.chars().next().filter(char::is_ascii_punctuation)?;
        let text = &text[1..];
        let end = text.match_indices(sign).map(|(at, _)| at).find(|at| !text[..*at].ends_with('\\'))?;
        let (inner, rest) = (&text[..end], &text[end + 1..]);
        let flags = rest.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(rest.len());
        self.rest = &rest[flags..];
        let inner = if sign == '/' { inner.replace(r"\/", "/") } else { inner.to_owned() };
        let flag = if rest[..flags].contains('i') { "(?i)" } else { "" };
        expression(&format!("{flag}{inner}")).ok()
    }
}

fn is_set(operand: Operand) -> ApacheCondition {
    match operand {
        Operand::Text(text) => ApacheCondition::Constant(!text.is_empty()),
        Operand::Variable(name) => ApacheCondition::When(format!("not {name} == ''")),
        Operand::Environment(condition) => condition,
    }
}

fn equals(one: Operand, other: Operand) -> Option<ApacheCondition> {
    match (one, other) {
        (Operand::Text(one), Operand::Text(other)) => Some(ApacheCondition::Constant(one == other)),
        (Operand::Variable(name), Operand::Text(text)) | (Operand::Text(text), Operand::Variable(name)) => {
            if name == "client" {
                return client_in(&Operand::Text(text));
            }
            // A host is a name in any letter case.
            let text = if name == "host" { text.to_ascii_lowercase() } else { text };
            Some(ApacheCondition::When(format!("{name} == {}", quoted(&text))))
        }
        (Operand::Environment(condition), Operand::Text(text)) if text.is_empty() => Some(condition.not()),
        (Operand::Environment(condition), Operand::Text(text)) if text == "1" => Some(condition),
        _ => None,
    }
}

/// The condition that an expression matches a variable. Addresses of clients are compared as networks.
pub(super) fn matching(variable: &str, text: &str) -> Option<ApacheCondition> {
    if variable != "client" {
        return Some(ApacheCondition::When(format!("{variable} matches {}", quoted(text))));
    }
    let digits = text.strip_prefix('^')?.replace(r"\.", ".");
    let network = match digits.strip_suffix('$') {
        Some(address) => address.to_owned(),
        None => digits.strip_suffix('.')?.to_owned(),
    };
    client_in(&Operand::Text(network))
}

fn matches(one: Operand, text: &str) -> Option<ApacheCondition> {
    match one {
        Operand::Variable(name) => matching(&name, text),
        Operand::Text(value) => {
            regex::Regex::new(text).ok().map(|text| ApacheCondition::Constant(text.is_match(&value)))
        }
        Operand::Environment(_) => None,
    }
}

fn client_in(network: &Operand) -> Option<ApacheCondition> {
    let Operand::Text(text) = network else { return None };
    let network = quoted(&super::requirements::client_of(text)?);
    Some(ApacheCondition::When(format!("client in ({network})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_conditions() {
        let environment =
            ApacheEnvironment::from([("good".to_owned(), Some(ApacheCondition::When("client == 'a'".to_owned())))]);
        let check = |text: &str, expect: Option<&str>| {
            let found = condition(text, ExpressionScope { has_tls: false, environment: &environment });
            let found = found.map(|condition| match condition {
                ApacheCondition::Constant(holds) => holds.to_string(),
                ApacheCondition::When(text) => text,
            });
            assert_eq!(found.as_deref(), expect, "{text}");
        };
        check("%{REQUEST_URI} =~ m#/login$#", Some("path matches '/login$'"));
        check("%{QUERY_STRING} =~ /(^|&)v=/", Some("query matches '(^|&)v='"));
        check("%{HTTP_USER_AGENT} == 'BadBot'", Some("request.header.User-Agent == 'BadBot'"));
        check("%{HTTP_USER_AGENT} != BadBot", Some("not (request.header.User-Agent == 'BadBot')"));
        check("req('Host') != 'WWW.example.com'", Some("not (request.header.Host == 'WWW.example.com')"));
        check("%{HTTP_HOST} == 'WWW.example.com'", Some("host == 'www.example.com'"));
        check(
            "-z %{req:Cookie} && ! -n %{HTTP:X}",
            Some("(not (not request.header.Cookie == '')) and (not (not request.header.X == ''))"),
        );
        check("%{HTTPS} == 'on' || reqenv('good') == 1", Some("client == 'a'"));
        check("%{HTTPS} == 'off' || %{unknown}", None);
        check("%{REMOTE_ADDR} -ipmatch '10.0.0.0/8'", Some("client in ('10.0.0.0/8')"));
        check("%{REMOTE_ADDR} =~ /^10\\.1\\./", Some("client in ('10.1.0.0/16')"));
        check("%{REMOTE_ADDR} == '10.0.0.1'", Some("client in ('10.0.0.1')"));
        check("%{REMOTE_ADDR} =~ /^10\\.[12]\\./", None);
        check("-R '10.1'", Some("client in ('10.1.0.0/16')"));
        check("%{REQUEST_METHOD} in { 'GET', 'HEAD' }", Some("(method == 'GET') or (method == 'HEAD')"));
        check("(%{REQUEST_METHOD} == 'it''s", None);
        check(&"(".repeat(100), None);
        check("file('/etc/passwd') == 'a'", None);
    }
}
