//! Expressions in `server_name`, as the names that they match.

use regex_syntax::hir::{Class, Hir, HirKind, Look};

use super::host_roots::HostPart;
use super::syntax::NginxDirective;
use crate::pattern::{expression, quoted};

/// Most names of an expression.
const NAMES_MAX: usize = 64;

/// Names of a server, as sites have them, without expressions.
pub(super) fn of_block(block: &[NginxDirective]) -> Vec<String> {
    let names = block.iter().filter(|child| child.name == "server_name").flat_map(|child| &child.arguments);
    let names = names.filter(|name| !name.starts_with(['~', '$', '_']) && !name.is_empty());
    let with_domains = |name: &String| match name.strip_prefix('.') {
        Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
        None => vec![name.clone()],
    };
    names.flat_map(with_domains).collect()
}

/// Returns `true` for a server that has all names that no other one has: it says so, or it has no name.
pub(super) fn is_default(block: &[NginxDirective]) -> bool {
    let says = |child: &NginxDirective| child.name == "listen" && (child.has("default_server") || child.has("default"));
    let has_expression = of_names(block).any(|name| name.starts_with('~'));
    block.iter().any(says) || (of_block(block).is_empty() && !has_expression)
}

fn of_names(block: &[NginxDirective]) -> impl Iterator<Item = &str> {
    let directives = block.iter().filter(|child| child.name == "server_name");
    directives.flat_map(|child| child.arguments.iter().map(String::as_str))
}

/// A group of an expression of `server_name`, which is a variable.
pub(super) struct HostVariable {
    pub(super) name: String,
    /// The part of the host that it is, where that can be said.
    pub(super) part: Option<HostPart>,
    /// The expression with all groups.
    pub(super) expression: String,
}

/// Variables that the only expression of a server's names sets.
pub(super) fn variables(block: &[NginxDirective]) -> Vec<HostVariable> {
    let mut all = of_names(block).filter_map(|name| name.strip_prefix('~'));
    let (Some(text), None) = (all.next(), all.next()) else { return Vec::new() };
    let Ok(text) = expression(text) else { return Vec::new() };
    let Ok(compiled) = regex::Regex::new(&text) else { return Vec::new() };
    // Other expressions set numbers, too.
    let has_others = has_expressions(block);
    let part = part_of_host(&text);
    let of = |(index, name): (usize, Option<&str>)| {
        let part = part.as_ref().filter(|(own, _)| *own as usize == index).map(|(_, part)| part.clone());
        let names = name.map(str::to_owned).into_iter().chain((!has_others).then(|| index.to_string()));
        let expression = text.clone();
        names.map(move |name| HostVariable { name, part: part.clone(), expression: expression.clone() })
    };
    compiled.capture_names().enumerate().skip(1).flat_map(of).collect()
}

fn has_expressions(block: &[NginxDirective]) -> bool {
    block.iter().any(|child| {
        let is_expression = matches!(child.name.as_str(), "rewrite" | "if")
            || (child.name == "location" && child.first().starts_with('~'));
        is_expression || has_expressions(child.children())
    })
}

/// The group that is the host without a leading `www.` and without an ending.
fn part_of_host(text: &str) -> Option<(u32, HostPart)> {
    let whole = regex_syntax::parse(text).ok()?;
    let HirKind::Concat(parts) = whole.kind() else { return None };
    let [start, inner @ .., end] = parts.as_slice() else { return None };
    if *start.kind() != HirKind::Look(Look::Start) || *end.kind() != HirKind::Look(Look::End) {
        return None;
    }
    let literal = |hir: &Hir| match hir.kind() {
        HirKind::Literal(literal) => std::str::from_utf8(&literal.0).ok().map(str::to_ascii_lowercase),
        _ => None,
    };
    let is_www = |hir: &Hir| {
        expand(hir, &mut true).is_some_and(|mut names| {
            names.sort();
            names == ["www."] || names == ["", "www."]
        })
    };
    let (strips_www, inner) = match inner {
        [first, rest @ ..] if is_www(first) => (true, rest),
        rest => (false, rest),
    };
    let (group, suffix) = match inner {
        [group] => (group, String::new()),
        [group, suffix] => (group, literal(suffix).filter(|suffix| suffix.starts_with('.'))?),
        _ => return None,
    };
    let HirKind::Capture(group) = group.kind() else { return None };
    let is_repeated = matches!(group.sub.kind(), HirKind::Repetition(repetition) if repetition.max.is_none());
    is_repeated.then_some((group.index, HostPart { strips_www, suffix }))
}

/// Names for an expression whose first label is one of some letters: all names below the rest, and the condition that a
/// host is none of them. `others` are the other names of the site.
pub(super) fn of_label(text: &str, others: &[String]) -> Option<(String, String)> {
    let text = expression(text.trim_start_matches('~')).ok()?;
    let (_, part) = part_of_host(&text)?;
    let HostPart { strips_www: false, suffix } = part else { return None };
    if suffix.is_empty() {
        return None;
    }
    let is_other = |name: &String| match (name.strip_prefix('*'), name.strip_suffix('*')) {
        (Some(end), _) => format!("not host ends-with {}", quoted(end)),
        (_, Some(start)) => format!("not host starts-with {}", quoted(start)),
        _ => format!("host != {}", quoted(name)),
    };
    let others = others.iter().map(is_other);
    let conditions: Vec<String> = [format!("not host matches {}", quoted(&text))].into_iter().chain(others).collect();
    Some((format!("*{suffix}"), conditions.join(" and ")))
}

/// Names that an expression of `server_name` matches, with `*.` for any text before a domain, and whether these are all
/// of them: a part that may be repeated any number of times is left out. Returns `None` if a part of a name would be
/// enough, or if there are too many.
pub(super) fn of_expression(expression: &str) -> Option<(Vec<String>, bool)> {
    let whole = regex_syntax::parse(expression.trim_start_matches('~')).ok()?;
    let HirKind::Concat(parts) = whole.kind() else { return None };
    let [start, inner @ .., end] = parts.as_slice() else { return None };
    if *start.kind() != HirKind::Look(Look::Start) || *end.kind() != HirKind::Look(Look::End) {
        return None;
    }
    let mut are_all = true;
    let names = expand(&Hir::concat(inner.to_vec()), &mut are_all)?;
    let is_name = |name: &String| {
        let rest = name.strip_prefix("*.").or(name.strip_suffix(".*")).unwrap_or(name);
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
    };
    if names.iter().any(|name| name == "*") {
        return Some((vec!["*".to_owned()], are_all));
    }
    (!names.is_empty() && names.iter().all(is_name)).then_some((names, are_all))
}

fn expand(hir: &Hir, are_all: &mut bool) -> Option<Vec<String>> {
    let names = match hir.kind() {
        HirKind::Empty => vec![String::new()],
        HirKind::Literal(literal) => vec![std::str::from_utf8(&literal.0).ok()?.to_ascii_lowercase()],
        HirKind::Class(Class::Unicode(class)) => {
            let count: usize = class.ranges().iter().map(regex_syntax::hir::ClassUnicodeRange::len).sum();
            if count > NAMES_MAX {
                return None;
            }
            let letters = class.ranges().iter().flat_map(|range| range.start()..=range.end());
            letters.map(|letter| letter.to_ascii_lowercase().to_string()).collect()
        }
        HirKind::Capture(group) => expand(&group.sub, are_all)?,
        HirKind::Repetition(repetition) => match (repetition.min, repetition.max) {
            // A text before a dot; the caller rejects the star in other places. No name begins with the dot that follows.
            (0..=1, None) if is_any(&repetition.sub) => vec!["*".to_owned()],
            (0, None) => {
                *are_all = false;
                vec![String::new()]
            }
            (min @ 0..=1, Some(1)) => {
                let mut names = expand(&repetition.sub, are_all)?;
                if min == 0 {
                    names.push(String::new());
                }
                names
            }
            _ => return None,
        },
        HirKind::Concat(parts) => {
            let mut names = vec![String::new()];
            for part in parts {
                let next = expand(part, are_all)?;
                if names.len() * next.len() > NAMES_MAX {
                    return None;
                }
                names = names.iter().flat_map(|name| next.iter().map(move |part| format!("{name}{part}"))).collect();
            }
            names
        }
        HirKind::Alternation(parts) => {
            let mut names = Vec::new();
            for part in parts {
                names.extend(expand(part, are_all)?);
            }
            names
        }
        HirKind::Look(_) | HirKind::Class(_) => return None,
    };
    let mut unique: Vec<String> = Vec::new();
    for name in names {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    (unique.len() <= NAMES_MAX).then_some(unique)
}

/// Returns `true` for `.`, which matches all letters of a name.
fn is_any(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => {
            ('!'..='~').all(|letter| class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&letter)))
        }
        HirKind::Capture(group) => is_any(&group.sub),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_become_their_names() {
        let check = |input: &str, expect: &[&str]| {
            assert_eq!(of_expression(input).unwrap_or_default().0, expect, "{input}");
        };
        // GitLab Pages, and Authelia's test environment.
        check(r"~^.*\.pages\.example$", &["*.pages.example"]);
        check(r"~^(a|b)\.example([0-9])*\.com$", &["a.example.com", "b.example.com"]);
        assert_eq!(of_expression(r"~^a\d*\.b$"), Some((vec!["a.b".to_owned()], false)));
        check(r"~^(www\.)?example\.com$", &["www.example.com", "example.com"]);
        check(r"~^(?:a|b)\.Example\.com$", &["a.example.com", "b.example.com"]);
        check(r"~^mx[12]\.example\.com$", &["mx1.example.com", "mx2.example.com"]);
        check(r"~^(?<name>.+)\.example\.com$", &["*.example.com"]);
        check(r"~^(.+\.)?example\.com$", &["*.example.com", "example.com"]);
        check(r"~^www\.(?<domain>.+)$", &["www.*"]);
        check(r"~^(www\.)?(?<domain>.+)$", &["*"]);
        // Other names than these match, too.
        check(r"~^a.*\.example\.com$", &[]);
        check(r"~^a.+\.example\.com$", &[]);
        check(r"~^\w+\.example\.com$", &[]);
        check(r"~example\.com$", &[]);
        check(r"~^www\.", &[]);
        check(r"~^a|b$", &[]);
        check(r"~^a\$", &[]);
        check(r"~^((a|b)(a|b)(a|b)(a|b)){1}((a|b)(a|b)(a|b)(a|b))$", &[]);
    }
    #[test]
    fn groups_are_parts_of_the_host() {
        let check = |text: &str, expect: Option<(bool, &str)>| {
            let found = part_of_host(text).map(|(_, part)| part);
            let expect = expect.map(|(strips_www, suffix)| HostPart { strips_www, suffix: suffix.to_owned() });
            assert_eq!(found, expect, "{text}");
        };
        check(r"^(?<user>.+)\.example\.com$", Some((false, ".example.com")));
        check(r"^(?<user>[a-z0-9-]+)\.Example\.com$", Some((false, ".example.com")));
        check(r"^www\.(?<domain>.+)$", Some((true, "")));
        check(r"^(www\.)?(?<domain>.+)$", Some((true, "")));
        check(r"^(?:www\.)?(.+)\.a$", Some((true, ".a")));
        check(r"^(.+)a$", None);
        check(r"^(a|b)\.c$", None);
        check(r"^app\.(.+)$", None);
        check(r"^(.+)\.(.+)$", None);
        check(r"(.+)\.a$", None);
    }
}
