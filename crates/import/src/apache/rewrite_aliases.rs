//! Rules of mod_rewrite and aliases below the directory of the rules.

use regex::Regex;

use super::host::is;
use super::rewrite;
use super::rewrite_condition::path_matches;
use super::rewrite_values::{ALL, ALL_BELOW, rejects};
use super::section::{ApacheSection, Mount};
use crate::directive::Directive;
use crate::kdl::KdlNode;
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

/// An alias with paths below those of a directory.
pub(super) struct AliasBelow {
    prefix: String,
    /// Path on the disk from the directory on, if the alias leads to a directory below.
    rest: Option<String>,
}

impl AliasBelow {
    pub(super) fn paths(&self) -> ForeignPattern {
        ForeignPattern::Expression(format!("^{}(?:/|$)", regex::escape(&self.prefix)))
    }

    /// Returns `true` if a rule of the directory with this expression is for all paths of the alias, and `false` if it is
    /// for none; `None` if it may be for some.
    pub(super) fn applies(&self, text: &str) -> Option<bool> {
        let Some(rest) = &self.rest else { return Some(false) };
        match below(text, rest) {
            _ if ALL.contains(&text) || ALL_BELOW.contains(&text) => Some(true),
            BelowAlias::None => Some(false),
            BelowAlias::Expression(_) | BelowAlias::Unknown => None,
        }
    }
}

/// Aliases below the paths of a directory.
pub(super) fn of_section(section: &ApacheSection<'_>, mounts: &[Mount]) -> Vec<AliasBelow> {
    let own = section.directive.first().trim_end_matches('/');
    let Some(base) = section.base.as_deref().filter(|_| is(section.directive, "directory")) else { return Vec::new() };
    let is_below = |mount: &&Mount| mount.prefix.strip_prefix(base).is_some_and(|rest| rest.starts_with('/'));
    let of = |mount: &Mount| {
        let rest = mount.directory.strip_prefix(own).filter(|rest| rest.starts_with('/'));
        AliasBelow { prefix: mount.prefix.clone(), rest: rest.map(|rest| format!("{}/", &rest[1..])) }
    };
    mounts.iter().filter(is_below).map(of).collect()
}

/// Keeps rejections of a directory from aliases that lead to other directories.
pub(super) fn keep_elsewhere(section: &ApacheSection<'_>, mounts: &[Mount], rejections: &mut [KdlNode]) {
    for alias in of_section(section, mounts).iter().filter(|alias| alias.rest.is_none()) {
        let condition = format!("not {}", path_matches(&alias.paths()));
        rejections.iter_mut().for_each(|node| node.add_condition(&condition));
    }
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

#[cfg(test)]
mod tests {
    use crate::apache::directory_index::tests::lines;

    /// Issue 23: rules of a directory were applied to paths of an alias, which are others on the disk.
    #[test]
    fn rules_of_a_directory_are_not_for_aliases() {
        let check = |alias: &str, rule: &str, expect: &str| {
            let (text, _) = lines(&format!(
                "Alias /old {alias}\n<Directory /nowhere>\nRewriteEngine on\nRewriteRule {rule} [L]\n</Directory>"
            ));
            assert!(text.lines().any(|line| line == expect), "{alias} {rule}: {text}");
        };
        let except = "when=\"not path matches '^/old(?:/|$)'\"";
        check("/other", "^old/(.*)$ /b", &format!("rewrite \"~^/old/(.*)$\" \"/b\" {except}"));
        check("/nowhere/a", "^old/ /b", &format!("rewrite \"~^/old/\" \"/b\" {except}"));
        // A rule for some paths of the alias.
        check("/nowhere/a", "bak$ /b", "deny all path=\"~^/old(?:/|$)\"");
        check("/nowhere/a", "^ /b", "rewrite \"*\" \"/b\"");
        check("/other", "^c /b", "rewrite \"~^/c\" \"/b\"");
        // Issue 23: Apache leads a directory to where its index file is led.
        let rule = "<Directory /nowhere>\nRewriteEngine on\nRewriteRule ^index\\.html$ /a/ [L]\n</Directory>\n";
        let (text, remarks) = lines(rule);
        assert!(!text.contains("deny") && remarks[0].contains("gets its index file"), "{text} {remarks:?}");
        let (text, _) = lines(&format!("{rule}<Location /a>\nRequire all denied\n</Location>"));
        assert!(text.contains("deny all path=\"~^/$\""), "{text}");
        // Issue 23: rules of a directory were applied beside those that replace them.
        let of = |rules: &str| format!("<Directory /nowhere>\nRewriteEngine on\n{rules}\n</Directory>\n");
        let (text, remarks) = lines(&(of("RewriteRule ^a /b") + &of("RewriteRule ^c /d")));
        assert!(text.contains("\"/d\"") && !text.contains("\"/b\""), "{text}");
        assert!(remarks[0].contains("replace it"), "{remarks:?}");
        let (text, _) = lines(&(of("RewriteRule ^a /b") + &of("RewriteOptions Inherit\nRewriteRule ^c /d")));
        assert!(text.contains("\"/b\""), "{text}");
        // Rules of an expression match the whole path on the disk.
        let rule = "RewriteEngine on\nRewriteRule ^a /b";
        let (text, _) = lines(&format!("<DirectoryMatch ^/(nowhere|x)/>\n{rule}\n</DirectoryMatch>"));
        assert!(text.contains("deny all") && !text.contains("rewrite"), "{text}");
        let closed = "<If \"%{REQUEST_METHOD} == 'POST'\">\nRequire all denied\n</If>";
        let (text, _) = lines(&format!("Alias /old /other\n<Directory /nowhere>\n{closed}\n</Directory>"));
        assert!(
            text.contains(&format!("deny all when=\"(method == 'POST') and ({})\"", &except[6..except.len() - 1])),
            "{text}"
        );
    }
}
