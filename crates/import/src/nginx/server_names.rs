//! Expressions in `server_name`, as the names that they match.

use regex_syntax::hir::{Class, Hir, HirKind, Look};

use super::syntax::NginxDirective;

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
        let rest = name.strip_prefix("*.").unwrap_or(name);
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
    };
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
}
