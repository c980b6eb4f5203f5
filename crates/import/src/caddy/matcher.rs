//! Matchers: the requests that a directive is for.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::expression::ExpressionValue;
use super::placeholders;
use super::scope::tests_path;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::pattern::{ForeignPattern, expression, has_branches, quoted};

/// Networks of `private_ranges`.
pub(super) const PRIVATE_RANGES: [&str; 6] =
    ["192.168.0.0/16", "172.16.0.0/12", "10.0.0.0/8", "127.0.0.0/8", "fd00::/8", "::1"];

/// Requests of a matcher: those that fulfil all its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Matcher {
    /// Alternatives; `None` is all paths.
    pub(super) paths: Option<Vec<ForeignPattern>>,
    /// Conditions in our form. Those with the same key are alternatives.
    conditions: Vec<(String, String)>,
    /// True if no file may have the path.
    pub(super) is_missing: bool,
    /// True if no request matches.
    pub(super) never: bool,
    /// True if its conditions are on the path, too.
    pub(super) has_path_tests: bool,
    /// True if it has parts, also those that all requests of the site fulfil.
    has_parts: bool,
    /// True if the paths are those of `path_regexp`.
    is_expression: bool,
    /// True if one of the hosts fits, if there are any.
    hosts: Option<bool>,
    /// Groups that expressions have in the host of all requests.
    pub(super) groups: Vec<HostGroups>,
}

/// Name of an expression, and its groups.
pub(super) type HostGroups = (String, Vec<String>);

/// Knowledge about requests of a site while its matchers are read.
pub(super) struct MatcherScope<'a> {
    pub(super) named: &'a HashMap<String, Directive>,
    /// Host that all requests have, if it is known.
    pub(super) host: Option<&'a str>,
    /// True if the field `Host` has no port.
    pub(super) has_plain_host: bool,
    /// True if all requests use TLS, false if none does.
    pub(super) has_tls: Option<bool>,
    /// True if clients may be found through proxies.
    pub(super) has_proxies: bool,
    /// True if clients are found in a way that is not translated.
    pub(super) has_other_clients: bool,
    /// True for a guard, which applies also if its condition cannot be told.
    pub(super) is_of_guard: bool,
}

impl MatcherScope<'_> {
    /// The matcher that a directive begins with, and its other arguments.
    pub(super) fn of<'d>(&self, directive: &'d Directive) -> Result<(Matcher, &'d [String]), String> {
        let Some((first, rest)) = directive.arguments.split_first() else { return Ok((Matcher::default(), &[])) };
        if first == "*" {
            return Ok((Matcher::default(), rest));
        }
        if first.starts_with('/') {
            return Ok((Matcher { paths: Some(vec![path_of_matcher(first)?]), ..Matcher::default() }, rest));
        }
        match first.strip_prefix('@') {
            Some(name) => Ok((self.named(name)?, rest)),
            None => Ok((Matcher::default(), &directive.arguments)),
        }
    }

    /// A named matcher.
    pub(super) fn named(&self, name: &str) -> Result<Matcher, String> {
        let Some(directive) = self.named.get(name) else { return Err(format!("there is no matcher `@{name}`")) };
        let mut matcher = Matcher::default();
        match directive.arguments.split_first() {
            // An expression without its name.
            Some((text, [])) if text.contains(['(', '{', '=']) => {
                self.add(&mut matcher, "expression", &directive.arguments, directive.children())?;
            }
            Some((name, values)) => self.add(&mut matcher, name, values, directive.children())?,
            None => {
                for child in directive.children() {
                    self.add(&mut matcher, &child.name, &child.arguments, child.children())?;
                }
            }
        }
        Ok(matcher.finished())
    }

    /// The host of all requests, if a matcher compares the field with an expression.
    fn fixed_host(&self, values: &[String]) -> Option<&str> {
        let [.., name, _] = values else { return None };
        let is_fixed = self.has_plain_host && name.eq_ignore_ascii_case("host");
        self.host.filter(|_| is_fixed).filter(placeholders::is_known)
    }

    pub(super) fn add(
        &self,
        matcher: &mut Matcher,
        name: &str,
        values: &[String],
        block: &[Directive],
    ) -> Result<(), String> {
        matcher.has_parts = true;
        if name != "not" && !block.is_empty() {
            return Err(format!("the block of the matcher `{name}` has no counterpart"));
        }
        match name {
            "path" => {
                let paths = values.iter().map(|value| path_of_matcher(value)).collect::<Result<Vec<_>, _>>()?;
                if std::mem::take(&mut matcher.is_expression) {
                    let expression = matcher.paths.take().unwrap_or_default();
                    matcher.push("path", any_path(&expression));
                    matcher.has_path_tests = true;
                }
                matcher.paths.get_or_insert_default().extend(paths);
            }
            "path_regexp" => {
                let Some(text) = values.last() else { return Err("it needs an expression".to_owned()) };
                let pattern = ForeignPattern::Expression(expression(text)?);
                match &matcher.paths {
                    // Groups of the expression are known only in the pattern.
                    None => {
                        matcher.paths = Some(vec![pattern]);
                        matcher.is_expression = true;
                    }
                    Some(_) => {
                        matcher.push("path", path_condition(&pattern));
                        matcher.has_path_tests = true;
                    }
                }
            }
            "host" => {
                let Some(host) = self.host else {
                    return Err("`host` can be decided only for a site with known names".to_owned());
                };
                if values.iter().any(|value| value.contains('{')) {
                    return Err("a host must be fixed".to_owned());
                }
                *matcher.hosts.get_or_insert_default() |= values.iter().any(|value| fits_host(value, host));
            }
            "protocol" => match (values.first().map(String::as_str), self.has_tls) {
                (Some("https"), Some(has_tls)) => matcher.never |= !has_tls,
                (Some("http"), Some(has_tls)) => matcher.never |= has_tls,
                (Some(scheme @ ("http" | "https")), None) => {
                    matcher.push("scheme", format!("scheme == {}", quoted(scheme)));
                }
                (Some("grpc"), _) => {
                    matcher.push("grpc", "request.header.Content-Type starts-with 'application/grpc'".to_owned());
                }
                _ => return Err("this protocol cannot be a condition".to_owned()),
            },
            "method" => {
                let names: Vec<String> = values.iter().map(|value| quoted(&value.to_ascii_uppercase())).collect();
                matcher.push("method", format!("method in ({})", names.join(", ")));
            }
            "query" => {
                for value in values {
                    let (key, condition) = query(value, self.is_of_guard)?;
                    matcher.push(&key, condition);
                }
            }
            "header" => {
                let (key, condition) = header(values)?;
                matcher.push(&key, condition);
            }
            "header_regexp" if self.fixed_host(values).is_some() => {
                let host = self.fixed_host(values).unwrap_or_default();
                let text = values.last().map_or("", String::as_str);
                let expression = regex::Regex::new(&expression(text)?).map_err(|error| error.to_string())?;
                let name = if values.len() > 2 { values[0].clone() } else { String::new() };
                match expression.captures(host) {
                    Some(groups) => {
                        let groups = groups.iter().map(|group| group.map_or("", |group| group.as_str()).to_owned());
                        matcher.groups.push((name, groups.collect()));
                    }
                    None => matcher.never = true,
                }
            }
            "header_regexp" => {
                let [.., name, text] = values else { return Err("it needs a field and an expression".to_owned()) };
                let condition = format!("request.header.{name} matches {}", quoted(&of_lines(&expression(text)?)));
                matcher.push(&format!("~{name}"), condition);
            }
            "remote_ip" | "client_ip" if self.has_other_clients => {
                return Err("how Caddy finds clients here has no counterpart".to_owned());
            }
            "remote_ip" if self.has_proxies => {
                let why = "after `trusted_proxies`, the address of a proxy is not known: write `client_ip`";
                return Err(why.to_owned());
            }
            "remote_ip" | "client_ip" => {
                let condition = clients(values)?;
                matcher.push(name, condition);
            }
            "not" => {
                let mut inner = Matcher::default();
                match values.split_first() {
                    Some((name, values)) => self.add_inner(&mut inner, name, values, block)?,
                    None if block.is_empty() => return Err("`not` needs a matcher".to_owned()),
                    None => {
                        for child in block {
                            self.add_inner(&mut inner, &child.name, &child.arguments, child.children())?;
                        }
                    }
                }
                let inner = inner.finished();
                matcher.has_path_tests |= inner.paths.is_some() || inner.has_path_tests;
                if inner.never {
                    return Ok(());
                }
                match (inner.condition(), inner.is_missing) {
                    (Some(condition), false) => {
                        let key = format!("not {}", matcher.conditions.len());
                        matcher.push(&key, format!("not ({condition})"));
                    }
                    (Some(_), true) => return Err("files cannot be one condition of several".to_owned()),
                    (None, true) => matcher.is_missing = true,
                    (None, false) => matcher.never = true,
                }
            }
            "expression" => match super::expression::read(&values.join(" "), self)? {
                ExpressionValue::Fixed(holds) => matcher.never |= !holds,
                ExpressionValue::Test(test) => {
                    matcher.has_path_tests |= tests_path(&test);
                    let key = format!("expression {}", matcher.conditions.len());
                    matcher.push(&key, test);
                }
            },
            "file" => return Err("files cannot be a condition, except of `try_files`".to_owned()),
            name => return Err(format!("the matcher `{name}` has no counterpart")),
        }
        Ok(())
    }

    /// A part of `not`, where `file` says that there is none.
    fn add_inner(
        &self,
        matcher: &mut Matcher,
        name: &str,
        values: &[String],
        block: &[Directive],
    ) -> Result<(), String> {
        if name == "file" && values.is_empty() && block.is_empty() {
            matcher.is_missing = true;
            return Ok(());
        }
        let was_missing = matcher.is_missing;
        self.add(matcher, name, values, block)?;
        match matcher.is_missing && !was_missing {
            true => Err("files cannot be a condition, except of `try_files`".to_owned()),
            false => Ok(()),
        }
    }
}

impl Matcher {
    /// The matcher after its last part: several lines with hosts are alternatives.
    pub(super) fn finished(mut self) -> Self {
        self.never |= self.hosts == Some(false);
        self
    }

    fn push(&mut self, key: &str, condition: String) {
        self.conditions.push((key.to_owned(), condition));
    }

    /// Conditions other than the path, all of which must hold.
    pub(super) fn tests(&self) -> Vec<String> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for (key, condition) in &self.conditions {
            match groups.iter_mut().find(|(known, _)| known == key) {
                Some((_, alternatives)) => alternatives.push(condition),
                None => groups.push((key, vec![condition])),
            }
        }
        let join = |alternatives: Vec<&str>| match alternatives.as_slice() {
            [one] => (*one).to_owned(),
            several => format!("({})", several.join(" or ")),
        };
        groups.into_iter().map(|(_, alternatives)| join(alternatives)).collect()
    }

    /// The whole matcher as a condition; `None` if all requests match.
    pub(super) fn condition(&self) -> Option<String> {
        let paths = self.paths.as_deref().map(any_path);
        let all: Vec<String> = paths.into_iter().chain(self.tests()).collect();
        (!all.is_empty()).then(|| all.join(" and "))
    }
}

/// Patterns for a route. Caddy ignores the case of paths, except of expressions.
pub(super) fn routed(patterns: &[ForeignPattern]) -> Vec<ForeignPattern> {
    patterns.iter().map(ForeignPattern::fixed_without_case).collect()
}

/// A condition on the path.
pub(super) fn path_condition(pattern: &ForeignPattern) -> String {
    match &pattern.fixed_without_case() {
        ForeignPattern::Exact(path) => format!("path == {}", quoted(path)),
        ForeignPattern::Prefix(prefix) => format!("path starts-with {}", quoted(prefix)),
        ForeignPattern::Suffix(suffix) => format!("path ends-with {}", quoted(suffix)),
        ForeignPattern::Expression(expression) => format!("path matches {}", quoted(expression)),
    }
}

/// A condition that the path matches one of some patterns.
pub(super) fn any_path(paths: &[ForeignPattern]) -> String {
    let all: Vec<String> = paths.iter().map(path_condition).collect();
    if all.len() == 1 { all.concat() } else { format!("({})", all.join(" or ")) }
}

/// A node with conditions.
pub(super) fn with_tests(node: KdlNode, tests: &[String]) -> KdlNode {
    if tests.is_empty() { node } else { node.property("when", tests.join(" and ")) }
}

/// Paths that match one of each list.
pub(super) fn joined(one: &[ForeignPattern], other: &[ForeignPattern]) -> Result<Vec<ForeignPattern>, String> {
    let mut all: Vec<ForeignPattern> = Vec::new();
    for (one, other) in one.iter().flat_map(|one| other.iter().map(move |other| (one, other))) {
        if let Some(pattern) = one.and(other)?.map(|pattern| of_fixed(&[one, other], pattern))
            && !all.contains(&pattern)
        {
            all.push(pattern);
        }
    }
    Ok(all)
}

/// A pattern made of others: an expression that none of them is ignores case.
pub(super) fn of_fixed(parts: &[&ForeignPattern], pattern: ForeignPattern) -> ForeignPattern {
    let is_expression = |part: &ForeignPattern| matches!(part, ForeignPattern::Expression(_));
    match is_expression(&pattern) && !parts.iter().any(|part| is_expression(part)) {
        true => pattern.without_case(),
        false => pattern,
    }
}

/// A path that a matcher names.
///
/// # Errors
///
/// The reason why it cannot be compared here.
fn path_of_matcher(text: &str) -> Result<ForeignPattern, String> {
    if text.contains(['{', '%', '[', '\\']) || text.contains("//") || (text.contains('?') && text.contains('*')) {
        return Err(format!("the path `{text}` has no counterpart: braces, classes and escapes cannot be compared"));
    }
    Ok(path(text))
}

/// A path matcher of Caddy, in lower case: [`routed`] ignores case.
pub(super) fn path(text: &str) -> ForeignPattern {
    let text = text.to_ascii_lowercase();
    let text = text.as_str();
    let middle = text.trim_start_matches('*').trim_end_matches('*');
    if middle.contains('*') || middle.contains('?') || middle.contains('[') {
        // A star inside a path matches no slash.
        let parts = text.split('*').map(|part| regex::escape(part).replace(r"\?", "[^/]"));
        return ForeignPattern::Expression(format!("(?i)^{}$", parts.collect::<Vec<_>>().join("[^/]*")));
    }
    match (text.starts_with('*'), text.ends_with('*')) {
        (_, true) if middle.is_empty() => ForeignPattern::Prefix("/".to_owned()),
        (true, true) => ForeignPattern::Expression(format!("(?i){}", regex::escape(middle))),
        (true, false) => ForeignPattern::Suffix(middle.to_owned()),
        (false, true) => ForeignPattern::Prefix(middle.to_owned()),
        (false, false) => ForeignPattern::Exact(text.to_owned()),
    }
}

/// Returns `true` if a host matches a name that may have `*` as labels.
pub(super) fn fits_host(pattern: &str, host: &str) -> bool {
    let (pattern, host) = (pattern.to_ascii_lowercase(), host.to_ascii_lowercase());
    let (one, other): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), host.split('.').collect());
    one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| *one == "*" || one == other)
}

/// Key and condition of a query.
fn query(text: &str, is_of_guard: bool) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').unwrap_or((text, "*"));
    if name.is_empty() || name.contains(['*', '{']) {
        return Err("an argument of the query has a fixed name".to_owned());
    }
    let condition = match value {
        // An argument may be empty, which a variable does not tell.
        "*" => format!("query matches {}", quoted(&format!("(?:^|[&;]){}(?:[=&;]|$)", letters(name)))),
        value if value.is_empty() || value.contains(['*', '{']) => {
            return Err("an argument is compared as a whole, or not at all".to_owned());
        }
        value if is_of_guard => format!("query.{name} == {}", quoted(value)),
        // An argument may have several values, which a variable does not tell either.
        value => {
            let pair = format!("(?:^|[&;]){}={}(?:[&;]|$)", letters(name), letters(value));
            format!("query matches {}", quoted(&pair))
        }
    };
    Ok((format!("query {name}"), condition))
}

/// An expression for a name or value of the query, whose letters may be encoded.
fn letters(text: &str) -> String {
    let either = |digit: char| match digit.is_ascii_alphabetic() {
        true => format!("[{digit}{}]", digit.to_ascii_uppercase()),
        false => digit.to_string(),
    };
    let letter = |byte: u8| {
        let encoded: String = format!("{byte:02x}").chars().map(either).collect();
        match char::from(byte) {
            ' ' => r"(?:\+|%20)".to_owned(),
            letter if letter.is_ascii() => format!("(?:{}|%{encoded})", regex::escape(&letter.to_string())),
            _ => format!("%{encoded}"),
        }
    };
    text.bytes().map(letter).collect()
}

/// Start and end of a line of a header field: a variable has all of them, joined.
const LINE_START: &str = "(?:^|, )";
const LINE_END: &str = "(?:, |$)";

/// An expression for one of several lines of a header field.
fn of_lines(text: &str) -> String {
    if has_branches(text) {
        return text.to_owned();
    }
    let (start, rest) = text.strip_prefix('^').map_or(("", text), |rest| (LINE_START, rest));
    match rest.strip_suffix('$').filter(|rest| !rest.ends_with('\\')) {
        Some(middle) => format!("{start}{middle}{LINE_END}"),
        None => format!("{start}{rest}"),
    }
}

/// Key and condition of a header field.
fn header(values: &[String]) -> Result<(String, String), String> {
    let key = |name: &str| format!("header {}", name.to_ascii_lowercase());
    match values {
        [name] => Ok(match name.strip_prefix('!') {
            Some(name) => (key(name), format!("not request.header.{name}")),
            None => (key(name), format!("request.header.{name}")),
        }),
        [name, value] if !value.contains('{') => {
            let middle = value.trim_matches('*');
            let escaped = regex::escape(middle);
            let variable = format!("request.header.{name}");
            let condition = match (value.starts_with('*'), value.ends_with('*')) {
                (false, false) => format!("{variable} matches {}", quoted(&format!("{LINE_START}{escaped}{LINE_END}"))),
                (true, true) if value.len() <= 2 => variable,
                (true, true) => format!("{variable} contains {}", quoted(middle)),
                (true, false) => format!("{variable} matches {}", quoted(&format!("{escaped}{LINE_END}"))),
                (false, true) => format!("{variable} matches {}", quoted(&format!("{LINE_START}{escaped}"))),
            };
            Ok((key(name), condition))
        }
        _ => Err("this condition on a header field has no counterpart".to_owned()),
    }
}

fn clients(values: &[String]) -> Result<String, String> {
    let mut networks = Vec::new();
    for value in values {
        match value.as_str() {
            "private_ranges" => networks.extend(PRIVATE_RANGES.map(quoted)),
            "forwarded" => return Err("`trusted-proxies` of `server` replaces `forwarded`".to_owned()),
            value if value.contains(['{', '%']) => return Err("networks must be fixed".to_owned()),
            value => networks.push(quoted(&network(value))),
        }
    }
    Ok(format!("client in ({})", networks.join(", ")))
}

/// A network without bits after its prefix, which Caddy ignores.
fn network(text: &str) -> String {
    let masked = || {
        let (address, length) = text.split_once('/')?;
        let length: u32 = length.parse().ok()?;
        Some(match address.parse().ok()? {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32_u32.checked_sub(length)?).unwrap_or(0);
                format!("{}/{length}", Ipv4Addr::from(u32::from(address) & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128_u32.checked_sub(length)?).unwrap_or(0);
                format!("{}/{length}", Ipv6Addr::from(u128::from(address) & mask))
            }
        })
    };
    masked().unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 23: `127.0.0.1/8` has bits after its prefix, which the configuration rejects.
    #[test]
    fn private_ranges_are_networks() {
        for range in PRIVATE_RANGES {
            assert!(crate::config::network_from_text(range).is_ok(), "{range}");
        }
    }

    #[test]
    fn networks_have_no_bits_after_their_prefix() {
        let check = |text: &str, expect: &str| assert_eq!(network(text), expect);
        check("127.0.0.1/8", "127.0.0.0/8");
        check("10.1.2.3/32", "10.1.2.3/32");
        check("10.1.2.3/0", "0.0.0.0/0");
        check("fd00::1/8", "fd00::/8");
        check("10.1.2.3", "10.1.2.3");
        check("10.1.2.3/33", "10.1.2.3/33");
    }
}
