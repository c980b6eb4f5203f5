//! Sections: the paths of `Directory`, `Files`, `Location` and their relatives, in the order of their merge.

use super::access;
use super::host::is;
use super::rewrite_values::flag_name;
use crate::directive::Directive;
use crate::pattern::{ForeignPattern, expression, has_branches};

/// A part of the site's paths that is a directory on the disk.
#[derive(Debug, Clone)]
pub(super) struct Mount {
    /// Prefix without a slash at its end; empty is the whole site.
    pub(super) prefix: String,
    pub(super) directory: String,
    /// True if it is a file.
    pub(super) is_file: bool,
}

/// Directives with the paths they are for.
pub(super) struct ApacheSection<'a> {
    /// Alternatives; `None` is a pattern that cannot be read.
    pub(super) patterns: Result<Vec<ForeignPattern>, String>,
    pub(super) directive: &'a Directive,
    pub(super) block: &'a [Directive],
    /// Place in the merge: kind, then depth of the directory.
    rank: (u8, usize),
    /// Prefix for rewrites of a directory, if it is one.
    pub(super) base: Option<String>,
    /// Other prefixes of the same directory, by aliases.
    pub(super) other_bases: Vec<String>,
}

impl<'a> ApacheSection<'a> {
    /// Directives of a `.htaccess` file, which are for all paths.
    pub(super) fn of_site(directive: &'a Directive, block: &'a [Directive]) -> Self {
        let patterns = Ok(vec![ForeignPattern::Prefix("/".to_owned())]);
        Self { patterns, directive, block, rank: (0, 0), base: Some(String::new()), other_bases: Vec::new() }
    }
}

impl ApacheSection<'_> {
    /// Prefixes for rewrites of a directory.
    pub(super) fn bases(&self) -> impl Iterator<Item = &String> {
        self.base.iter().chain(&self.other_bases)
    }

    /// Returns `true` for paths of URLs.
    pub(super) fn is_of_location(&self) -> bool {
        self.rank.0 == 3
    }

    /// Returns `true` for directories of the disk whose paths have one alias, or none. An expression may be for all.
    pub(super) fn is_of_directory(&self) -> bool {
        let is_fixed =
            |pattern: &ForeignPattern| matches!(pattern, ForeignPattern::Prefix(_) | ForeignPattern::Exact(_));
        let is_fixed = || self.patterns.as_deref().is_ok_and(|patterns| patterns.iter().all(is_fixed));
        self.rank.0 == 0 || (self.rank.0 == 1 && !is(self.directive, "proxy") && is_fixed())
    }

    /// Returns `true` for two sections of one directory.
    pub(super) fn is_same_directory(&self, other: &Self) -> bool {
        let place = |section: &Self| section.directive.first().trim_end_matches('/').to_owned();
        let is_fixed = |section: &Self| is(section.directive, "directory") && section.rank.0 == 0;
        is_fixed(self) && is_fixed(other) && place(self) == place(other)
    }

    /// Returns `true` if it has directives of mod_rewrite, which replace those of sections before.
    pub(super) fn has_rewrites(&self) -> bool {
        self.block.iter().any(|child| child.name.to_ascii_lowercase().starts_with("rewrite"))
    }

    /// Returns `true` if some path may match the patterns of both.
    pub(super) fn may_share_paths(&self, other: &Self) -> bool {
        let (Ok(own), Ok(others)) = (&self.patterns, &other.patterns) else { return true };
        own.iter().any(|own| others.iter().any(|other| own.overlaps(other)))
    }

    /// Returns `true` if both may be for one path. Of two directories, one must be in the other.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let is_directory = |section: &Self| {
            section.rank.0 == 0 && is(section.directive, "directory") && !section.directive.first().contains(['*', '?'])
        };
        match is_directory(self) && is_directory(other) {
            true => self.covers(other) || other.covers(self),
            false => self.may_share_paths(other),
        }
    }

    /// Returns `true` if all paths of another section are paths of this one. Of two directories, one is in the other.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let place = |section: &Self| section.directive.first().trim_end_matches('/').to_owned();
        if self.rank.0 == 0 && other.rank.0 == 0 && is(self.directive, "directory") && is(other.directive, "directory")
        {
            let (outer, inner) = (place(self), place(other));
            return inner.strip_prefix(&outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        }
        match (&self.patterns, &other.patterns) {
            (Ok(outer), Ok(inner)) => inner.iter().all(|inner| outer.iter().any(|outer| outer.covers(inner))),
            _ => false,
        }
    }
}

/// Length of the alias that has the paths of a pattern; 0 for the root.
pub(super) fn alias_length(pattern: &ForeignPattern, mounts: &[Mount]) -> usize {
    mount_of(&pattern.head(), mounts).map_or(0, |mount| mount.prefix.len())
}

/// The alias that has a path, or else the root.
pub(super) fn mount_of<'m>(path: &str, mounts: &'m [Mount]) -> Option<&'m Mount> {
    let has =
        |mount: &&Mount| path.strip_prefix(&mount.prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    mounts.iter().filter(has).min_by_key(|mount| std::cmp::Reverse(mount.prefix.len()))
}

/// Sections of a host, the first to be merged first. Those of the main server come before those of the host.
pub(super) fn of_host<'a>(blocks: &[&'a [Directive]], mounts: &[Mount]) -> Vec<ApacheSection<'a>> {
    let mut sections = Vec::new();
    for block in blocks {
        collect(block, None, mounts, &mut sections);
        let proxies = block.iter().filter(|child| is(child, "proxy") && !access::is_open(child.children()));
        for directive in proxies {
            let patterns = proxied(directive, blocks);
            if !patterns.as_ref().is_ok_and(Vec::is_empty) {
                // Sections of directories do not hold for paths that are forwarded.
                let (block, rank) = (directive.children(), (1, 0));
                sections.push(ApacheSection { patterns, directive, block, rank, base: None, other_bases: Vec::new() });
            }
        }
    }
    sections.sort_by_key(|section| section.rank);
    sections
}

/// Paths that are forwarded to the servers of a `Proxy` section.
fn proxied(section: &Directive, blocks: &[&[Directive]]) -> Result<Vec<ForeignPattern>, String> {
    let server = section.first().trim_end_matches('*');
    let is_otherwise = blocks.iter().any(|block| block.iter().any(|child| forwards_otherwise(child, false)));
    if is_otherwise || server.contains(['*', '?', '[', '~']) {
        return Err("access rules are for paths, not for servers".to_owned());
    }
    let passes = blocks.iter().flat_map(|block| block.iter()).filter(|child| is(child, "proxypass"));
    Ok(passes.filter(|pass| pass.argument(1) != "!").flat_map(|pass| passed_to(server, pass)).collect())
}

/// Paths of a `ProxyPass` that are forwarded to URLs with this beginning.
fn passed_to(server: &str, pass: &Directive) -> Vec<ForeignPattern> {
    let (path, target) = (pass.first(), pass.argument(1).to_ascii_lowercase());
    // Letter case matters in paths only; a rule for more paths rejects more.
    let server = server.to_ascii_lowercase();
    match server.strip_prefix(&target).map(|rest| rest.trim_start_matches('/')) {
        _ if target.starts_with(&server) => prefix(path),
        Some("") => prefix(path),
        Some(rest) => vec![ForeignPattern::Prefix(format!("{}/{rest}", path.trim_end_matches('/'))).without_case()],
        None => Vec::new(),
    }
}

/// Returns `true` if a directive forwards paths in another way than `ProxyPass` of a host.
fn forwards_otherwise(directive: &Directive, is_inner: bool) -> bool {
    let has_flag = directive.argument(2).split([',', '[', ']']).any(|flag| flag_name(flag.trim()) == "P");
    is(directive, "proxypassmatch")
        || (is_inner && is(directive, "proxypass"))
        || (is(directive, "rewriterule") && has_flag)
        || (is(directive, "proxyrequests") && directive.first().eq_ignore_ascii_case("on"))
        || (!is(directive, "virtualhost") && directive.children().iter().any(|child| forwards_otherwise(child, true)))
}

/// Paths of the section around others, or why they are unknown, and its rank.
type SectionAround<'s> = (Result<&'s [ForeignPattern], &'s String>, (u8, usize));

/// Collects the sections of a block. `around` are paths and rank of the section that has the block.
fn collect<'a>(
    block: &'a [Directive],
    around: Option<SectionAround<'_>>,
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
        let patterns = match (patterns, around) {
            (Ok(patterns), Some((Ok(outer), _))) => within(outer, &patterns),
            // More paths may be rejected, but never allowed.
            (Ok(_), Some((Err(why), _))) if !access::is_closed(directive.children()) => Err(why.clone()),
            (patterns, _) => patterns,
        };
        // A directory of another site.
        if patterns.as_ref().is_ok_and(Vec::is_empty) {
            continue;
        }
        let rank = match (kind, is_expression, around) {
            ("directory", false, None) => (0, text.trim_end_matches('/').matches('/').count()),
            ("directory", true, None) => (1, 0),
            // Files of a directory come after those of all directories, in the order of their directories.
            (_, _, Some((_, (0, depth)))) => (2, 1 + depth),
            (_, _, Some(_)) => (2, usize::MAX),
            ("files", ..) => (2, 0),
            _ => (3, 0),
        };
        let own = if kind == "directory" && !is_expression { bases(text, mounts) } else { Vec::new() };
        let base = match (kind, patterns.as_deref()) {
            // Rules of an expression match the whole path on the disk.
            _ if is_expression => None,
            ("directory", Ok([ForeignPattern::Prefix(prefix), ..])) => {
                Some(own.first().cloned().unwrap_or_else(|| prefix.trim_end_matches('/').to_owned()))
            }
            _ => None,
        };
        let other_bases = own.into_iter().skip(1).collect();
        if kind == "directory" {
            let patterns = patterns.as_ref().map(Vec::as_slice);
            collect(directive.children(), Some((patterns, rank)), mounts, sections);
        }
        sections.push(ApacheSection { patterns, directive, block: directive.children(), rank, base, other_bases });
    }
}

/// Paths of a directory and all below.
fn directory(text: &str, mounts: &[Mount]) -> Result<Vec<ForeignPattern>, String> {
    let text = text.trim_end_matches('/');
    let mut patterns = Vec::new();
    if text.contains(['*', '?']) {
        // Such a section is for files of that name, too, but not for the directory around it: no name is empty.
        let text = text.split('/').map(|name| if name == "*" { "[^/]+".to_owned() } else { glob(name) });
        return directory_expression(&format!("^{}(?:/|$)", text.collect::<Vec<_>>().join("/")), mounts);
    }
    for mount in mounts {
        let own = mount.directory.trim_end_matches('/');
        if own == text || own.starts_with(&format!("{text}/")) {
            patterns.push(ForeignPattern::Prefix(format!("{}/", mount.prefix)));
            patterns.extend(mount.is_file.then(|| ForeignPattern::Exact(mount.prefix.clone())));
        } else if let Some(rest) = text.strip_prefix(own).filter(|rest| rest.starts_with('/')) {
            patterns.push(ForeignPattern::Prefix(format!("{}{rest}/", mount.prefix)));
        }
    }
    Ok(patterns)
}

/// Prefixes of the paths of a directory that is a mount or below one.
fn bases(text: &str, mounts: &[Mount]) -> Vec<String> {
    let text = text.trim_end_matches('/');
    let base = |mount: &Mount| {
        let rest = text.strip_prefix(mount.directory.trim_end_matches('/'))?;
        (rest.is_empty() || rest.starts_with('/')).then(|| format!("{}{rest}", mount.prefix))
    };
    mounts.iter().filter(|mount| !mount.is_file).filter_map(base).collect()
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
    if let Some(texts) = fixed_texts(text) {
        return Ok(mounts.iter().flat_map(|mount| texts.iter().flat_map(|text| containing(text, mount))).collect());
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

/// Fixed texts, one of which a path has, such as `(/srv/a|/srv/b)`.
fn fixed_texts(text: &str) -> Option<Vec<&str>> {
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text);
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"/_-".contains(&byte);
    let is_fixed = |text: &&str| text.starts_with('/') && text.len() > 1 && text.bytes().all(is_letter);
    let all: Vec<&str> = inner.split('|').collect();
    (all.len() > 1 && all.iter().all(is_fixed)).then_some(all)
}

/// Paths of a mount whose place on the disk has a text.
fn containing(text: &str, mount: &Mount) -> Vec<ForeignPattern> {
    let place = mount.directory.trim_end_matches('/');
    if place.contains(text) {
        return vec![ForeignPattern::Prefix(format!("{}/", mount.prefix))];
    }
    let prefix = regex::escape(&mount.prefix);
    // The text may begin within the place of the mount.
    let starts = (1..text.len()).filter(|at| place.ends_with(&text[..*at]));
    let parts = starts.map(|at| ForeignPattern::Expression(format!("^{prefix}{}", regex::escape(&text[at..]))));
    parts.chain([ForeignPattern::Expression(format!("^{prefix}/(?:.*/)?{}", regex::escape(&text[1..])))]).collect()
}

fn location(text: &str) -> Result<Vec<ForeignPattern>, String> {
    if text.contains(['*', '?']) {
        // Such a section is for the whole path, without those below.
        return Ok(vec![ForeignPattern::Expression(format!("^{}$", glob(text)))]);
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

/// Expression for directories that are no scripts with a path after them.
const NO_SCRIPT: &str = r"^(?:[^.]|\.(?:\z|[^p]|p(?:\z|[^h]|h(?:\z|[^p]|p(?:\z|[^/])))))*/";

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
                if let Some(sign) = characters.next_if_eq(&'^') {
                    // Names have no slash.
                    result.extend([sign, '/']);
                }
            }
            ']' => {
                is_in_class = false;
                result.push(']');
            }
            // A path after a script has names of its own.
            '^' if !is_in_class && characters.clone().take(3).eq("(?!".chars()) => result.push_str(NO_SCRIPT),
            '^' if !is_in_class => result.push('/'),
            // A path after a name with other letters is no part of it.
            '$' if is_other_name(text, &result) => result.push('$'),
            '$' if !is_in_class => result.push_str("(?:/.*)?$"),
            character => result.push(character),
        }
    }
    expression(&result).map(ForeignPattern::Expression)
}

/// Paths among those of a section for names whose last name fits: a directory on the way has another one.
pub(super) fn at_last_name(pattern: &ForeignPattern) -> ForeignPattern {
    match pattern {
        ForeignPattern::Expression(text) if text.starts_with('/') && !text.ends_with('$') && !has_branches(text) => {
            ForeignPattern::Expression(format!("{text}[^/]*$"))
        }
        other => other.clone(),
    }
}

/// Returns `true` if an expression for names looks for all names except some, and this part of it ends with a class of
/// letters. Guards hold for programs within a path, too.
fn is_other_name(text: &str, result: &str) -> bool {
    text.contains("(?!") && result.trim_end_matches(['*', '+']).ends_with(']')
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
                // A directory, and a name after it.
                (ForeignPattern::Expression(directory), ForeignPattern::Expression(text)) if text.starts_with('/') => {
                    Some(ForeignPattern::Expression(format!("(?:{directory}).*(?:{text})")))
                }
                (outer, inner) => outer.and(inner)?,
            };
            all.extend(both);
        }
    }
    Ok(all)
}
