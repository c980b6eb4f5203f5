//! Sections: the paths of `Directory`, `Files`, `Location` and their relatives, in the order of their merge.

use crate::directive::Directive;
use crate::pattern::{ForeignPattern, expression};

/// A part of the site's paths that is a directory on the disk.
#[derive(Debug, Clone)]
pub(super) struct Mount {
    /// Prefix without a slash at its end; empty is the whole site.
    pub(super) prefix: String,
    pub(super) directory: String,
}

/// Directives with the paths they are for.
pub(super) struct ApacheSection<'a> {
    /// Alternatives; `None` is a pattern that cannot be read.
    pub(super) patterns: Result<Vec<ForeignPattern>, String>,
    pub(super) directive: &'a Directive,
    pub(super) block: &'a [Directive],
    /// Place in the merge: kind, then length for directories.
    rank: (u8, usize),
    /// Prefix for rewrites of a directory, if it is one.
    pub(super) base: Option<String>,
}

impl<'a> ApacheSection<'a> {
    /// Directives of a `.htaccess` file, which are for all paths.
    pub(super) fn of_site(directive: &'a Directive, block: &'a [Directive]) -> Self {
        let patterns = Ok(vec![ForeignPattern::Prefix("/".to_owned())]);
        Self { patterns, directive, block, rank: (0, 0), base: Some(String::new()) }
    }
}

/// Sections of a host, the first to be merged first. Those of the main server come before those of the host.
pub(super) fn of_host<'a>(blocks: &[&'a [Directive]], mounts: &[Mount]) -> Vec<ApacheSection<'a>> {
    let mut sections = Vec::new();
    for block in blocks {
        collect(block, None, mounts, &mut sections);
    }
    sections.sort_by_key(|section| section.rank);
    sections
}

fn collect<'a>(
    block: &'a [Directive],
    outer: Option<&[ForeignPattern]>,
    mounts: &[Mount],
    sections: &mut Vec<ApacheSection<'a>>,
) {
    for directive in block {
        let name = directive.name.to_ascii_lowercase();
        let is_expression = name.ends_with("match") || directive.first() == "~";
        let text = if directive.first() == "~" { directive.argument(1) } else { directive.first() };
        let kind = name.trim_end_matches("match");
        let patterns = match kind {
            "directory" if is_expression => directory_expression(text, mounts),
            "directory" => directory(text, mounts),
            "location" if is_expression => expression(text).map(|text| vec![ForeignPattern::Expression(text)]),
            "location" => location(text),
            "files" if is_expression => files_expression(text).map(|pattern| vec![pattern]),
            "files" => files(text).map(|pattern| vec![pattern]),
            _ => continue,
        };
        let patterns = match (patterns, outer) {
            (Ok(patterns), Some(outer)) => within(outer, &patterns),
            (patterns, _) => patterns,
        };
        // A directory of another site.
        if patterns.as_ref().is_ok_and(Vec::is_empty) {
            continue;
        }
        let rank = match (kind, is_expression) {
            ("directory", false) => (0, text.trim_end_matches('/').len()),
            ("directory", true) => (1, 0),
            ("files", _) => (2, 0),
            _ => (3, 0),
        };
        let rank = if outer.is_some() { (rank.0.max(2), 0) } else { rank };
        let base = match (kind, patterns.as_deref()) {
            ("directory", Ok([ForeignPattern::Prefix(prefix), ..])) => Some(prefix.trim_end_matches('/').to_owned()),
            _ => None,
        };
        if kind == "directory" {
            collect(directive.children(), patterns.as_deref().ok(), mounts, sections);
        }
        sections.push(ApacheSection { patterns, directive, block: directive.children(), rank, base });
    }
}

/// Paths of a directory and all below.
fn directory(text: &str, mounts: &[Mount]) -> Result<Vec<ForeignPattern>, String> {
    let text = text.trim_end_matches('/');
    let mut patterns = Vec::new();
    if text.contains(['*', '?']) {
        return directory_expression(&format!("^{}(?:/|$)", glob(text)), mounts);
    }
    for mount in mounts {
        let own = mount.directory.trim_end_matches('/');
        if own == text || own.starts_with(&format!("{text}/")) {
            patterns.push(ForeignPattern::Prefix(format!("{}/", mount.prefix)));
        } else if let Some(rest) = text.strip_prefix(own).filter(|rest| rest.starts_with('/')) {
            patterns.push(ForeignPattern::Prefix(format!("{}{rest}/", mount.prefix)));
        }
    }
    Ok(patterns)
}

const DISK_PATH: &str = "an expression for paths on the disk cannot be one for paths of the site";

/// An expression for paths on the disk, as one for paths of the site.
fn directory_expression(text: &str, mounts: &[Mount]) -> Result<Vec<ForeignPattern>, String> {
    let parsed = expression(text)?;
    if let Some(rest) = text.strip_prefix('^') {
        let mut patterns = Vec::new();
        for mount in mounts {
            let own = regex::escape(mount.directory.trim_end_matches('/'));
            // Directories have few characters that are escaped; both spellings are common.
            let plain = mount.directory.trim_end_matches('/');
            let rest = rest.strip_prefix(own.as_str()).or(rest.strip_prefix(plain));
            if let Some(rest) = rest {
                patterns.push(ForeignPattern::Expression(format!("^{}{rest}", regex::escape(&mount.prefix))));
            } else if regex::Regex::new(&parsed).is_ok_and(|expression| expression.is_match(&format!("{plain}/"))) {
                patterns.push(ForeignPattern::Prefix(format!("{}/", mount.prefix)));
            } else {
                let head = ForeignPattern::Expression(parsed.clone()).head();
                if head.starts_with(plain) || plain.starts_with(&head) {
                    return Err(DISK_PATH.to_owned());
                }
            }
        }
        return Ok(patterns);
    }
    // Paths of the site have what follows the root's directory only.
    let head = ForeignPattern::Expression(format!("^{text}")).head();
    for mount in mounts {
        let plain = mount.directory.trim_end_matches('/');
        let is_within = |head: &str| {
            plain.contains(head)
                || (1..head.len()).any(|end| head.is_char_boundary(end) && plain.ends_with(&head[..end]))
        };
        if head.is_empty() || is_within(&head) {
            return Err(DISK_PATH.to_owned());
        }
    }
    Ok(vec![ForeignPattern::Expression(parsed)])
}

fn location(text: &str) -> Result<Vec<ForeignPattern>, String> {
    if text.contains(['*', '?']) {
        return Ok(vec![ForeignPattern::Expression(format!("^{}(?:/|$)", glob(text)))]);
    }
    let text = if text.starts_with('/') { text.to_owned() } else { return Err("this is no path".to_owned()) };
    Ok(prefix(&text))
}

/// A path and all below.
pub(super) fn prefix(text: &str) -> Vec<ForeignPattern> {
    match text.strip_suffix('/') {
        Some(_) => vec![ForeignPattern::Prefix(text.to_owned())],
        None => vec![ForeignPattern::Prefix(format!("{text}/")), ForeignPattern::Exact(text.to_owned())],
    }
}

/// Files with a name, in all directories.
fn files(text: &str) -> Result<ForeignPattern, String> {
    if text.starts_with('*') && !text[1..].contains(['*', '?', '[']) && text.len() > 1 {
        return Ok(ForeignPattern::Expression(format!("{}(?:/.*)?$", regex::escape(&text[1..]))));
    }
    expression(&format!("/{}(?:/.*)?$", glob(text))).map(ForeignPattern::Expression)
}

/// Files whose names match an expression, in all directories.
fn files_expression(text: &str) -> Result<ForeignPattern, String> {
    let mut result = String::new();
    let mut characters = text.chars().peekable();
    let mut is_in_class = false;
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                result.push('\\');
                result.extend(characters.next());
            }
            '[' if !is_in_class => {
                is_in_class = true;
                result.push('[');
                result.extend(characters.next_if_eq(&'^'));
            }
            ']' => {
                is_in_class = false;
                result.push(']');
            }
            '^' if !is_in_class => result.push('/'),
            '$' if !is_in_class => result.push_str("(?:/.*)?$"),
            character => result.push(character),
        }
    }
    expression(&result).map(ForeignPattern::Expression)
}

/// An expression for a pattern of a shell.
fn glob(text: &str) -> String {
    let mut result = String::new();
    for character in text.chars() {
        match character {
            '*' => result.push_str("[^/]*"),
            '?' => result.push_str("[^/]"),
            '[' | ']' => result.push(character),
            other => result.push_str(&regex::escape(&other.to_string())),
        }
    }
    result
}

/// Paths of a section inside another.
fn within(outer: &[ForeignPattern], inner: &[ForeignPattern]) -> Result<Vec<ForeignPattern>, String> {
    let mut all = Vec::new();
    for outer in outer {
        for inner in inner {
            let both = match (outer, inner) {
                (outer, _) if outer.is_all() => Some(inner.clone()),
                (ForeignPattern::Prefix(prefix), ForeignPattern::Expression(text)) => Some(ForeignPattern::Expression(
                    format!("^{}(?:/.*)?(?:{text})", regex::escape(prefix.trim_end_matches('/'))),
                )),
                (outer, inner) => outer.and(inner)?,
            };
            all.extend(both);
        }
    }
    Ok(all)
}
