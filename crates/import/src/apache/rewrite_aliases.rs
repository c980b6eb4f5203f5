//! Rules of mod_rewrite that reject paths, for aliases of directories below that of the rules.

use regex::Regex;

use super::host::is;
use super::rewrite;
use super::rewrite_values::{ALL, ALL_BELOW, rejects};
use super::section::{ApacheSection, Mount};
use crate::directive::Directive;
use crate::notes::Notes;
use crate::parts::SiteParts;
use crate::pattern::{ForeignPattern, has_branches};

/// Paths of a rule below an alias.
enum BelowAlias {
    /// Expression for these paths.
    Expression(String),
    None,
    /// Some of them may be its paths.
    Unknown,
}

/// Rejects the paths of a section whose rules see other paths than those of the site: one without a directory, or of a
/// directory around the root. Returns `true` if it has such rules.
pub(super) fn reject_without_directory(
    section: &ApacheSection<'_>,
    mounts: &[Mount],
    parts: &mut SiteParts,
    notes: &mut Notes,
) -> bool {
    let is_off = |child: &Directive| is(child, "rewriteengine") && !child.first().eq_ignore_ascii_case("on");
    let own = section.directive.first().trim_end_matches('/');
    let is_below = |mount: &Mount| {
        let rest = mount.directory.strip_prefix(own);
        mount.prefix.is_empty() && rest.is_some_and(|rest| rest.starts_with('/'))
    };
    let is_around = is(section.directive, "directory") && mounts.iter().any(is_below);
    let rule = section.block.iter().find(|child| is(child, "rewriterule"));
    let Some(rule) = rule.filter(|_| section.base.is_none() || is_around) else { return false };
    if !section.block.iter().any(is_off) {
        let patterns = section.patterns.as_deref().unwrap_or_default();
        parts.close(
            rule,
            patterns,
            "rules stand in a host, its root or a directory below, without an expression",
            notes,
        );
    }
    true
}

/// Translates the rejections of a section for the aliases of directories below its own: Apache matches the rest of the
/// path on the disk, which has other names than the path of the request.
pub(super) fn reject_below(
    section: &ApacheSection<'_>,
    mounts: &[Mount],
    scope: &rewrite::RewriteScope<'_>,
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    if !is(section.directive, "directory") {
        return;
    }
    let own = section.directive.first().trim_end_matches('/');
    for mount in mounts.iter().filter(|mount| !mount.is_file) {
        let Some(rest) = mount.directory.strip_prefix(own).filter(|rest| rest.starts_with('/')) else { continue };
        let block = block_below(section.block, &format!("{}/", &rest[1..]), mount, parts, notes);
        let base = Some(mount.prefix.as_str());
        rewrite::translate(&block, &rewrite::RewriteScope { base, ..*scope }, parts, notes);
    }
}

/// The rejections of a block as rules of a directory below it, whose path is `rest`.
fn block_below(
    block: &[Directive],
    rest: &str,
    mount: &Mount,
    parts: &mut SiteParts,
    notes: &mut Notes,
) -> Vec<Directive> {
    let is_off = |child: &Directive| is(child, "rewriteengine") && !child.first().eq_ignore_ascii_case("on");
    if block.iter().any(is_off) {
        return Vec::new();
    }
    let (mut found, mut conditions) = (Vec::new(), Vec::new());
    for directive in block {
        if is(directive, "rewriteengine") {
            found.push(directive.clone());
        } else if is(directive, "rewritecond") {
            conditions.push(directive.clone());
        } else if is(directive, "rewriterule") {
            let own = std::mem::take(&mut conditions);
            if !rejects(directive) {
                continue;
            }
            match below(directive.first(), rest) {
                BelowAlias::None => {}
                BelowAlias::Expression(text) => {
                    let mut directive = directive.clone();
                    directive.arguments[0] = text;
                    found.extend(own);
                    found.push(directive);
                }
                BelowAlias::Unknown => {
                    let paths = [ForeignPattern::Prefix(format!("{}/", mount.prefix))];
                    parts.close(directive, &paths, "an alias has other paths than its rule", notes);
                }
            }
        }
    }
    found
}

/// The expression for the paths below a directory. `rest` is its path from the directory of the rule.
fn below(text: &str, rest: &str) -> BelowAlias {
    if ALL.contains(&text) || ALL_BELOW.contains(&text) {
        return BelowAlias::Expression("^".to_owned());
    }
    if text.starts_with('!') || has_branches(text) {
        return BelowAlias::Unknown;
    }
    let Some(anchored) = text.strip_prefix('^') else {
        // A match that begins in the directory's own path needs a slash, or a letter that may be one.
        let is_plain =
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"\\_-|()$".contains(&byte) || byte == b'.')
                && !text.replace("\\.", "").contains('.')
                && text.matches('\\').count() == text.matches("\\.").count();
        let has_own = Regex::new(text).is_ok_and(|expression| expression.is_match(rest));
        return if is_plain && !has_own { BelowAlias::Expression(text.to_owned()) } else { BelowAlias::Unknown };
    };
    let head = ForeignPattern::Expression(text.to_owned()).head();
    let prefix = regex::escape(rest);
    match anchored.strip_prefix(&prefix).or(anchored.strip_prefix(rest)) {
        Some(inner) if !inner.starts_with(['?', '*', '{', '+']) => BelowAlias::Expression(format!("^{inner}")),
        _ if !rest.starts_with(&head) && !head.starts_with(rest) => BelowAlias::None,
        _ => BelowAlias::Unknown,
    }
}
