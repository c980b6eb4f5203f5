//! mod_alias: `Redirect` and its relatives.

use super::section;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{SiteParts, for_each, on_path, with_path};
use crate::pattern::{ForeignPattern, expression};

/// `Redirect` and its relatives, in a section for these paths. None are all paths.
pub(super) fn redirect(directive: &Directive, paths: &[ForeignPattern], parts: &mut SiteParts, notes: &mut Notes) {
    let is_expression = directive.name.eq_ignore_ascii_case("redirectmatch");
    let mut words: Vec<&str> = directive.arguments.iter().map(String::as_str).collect();
    let mut status = if directive.name.eq_ignore_ascii_case("redirectpermanent") { 301 } else { 302 };
    if let Some(found) = words.first().and_then(|word| match word.to_ascii_lowercase().as_str() {
        "permanent" => Some(301),
        "temp" => Some(302),
        "seeother" => Some(303),
        "gone" => Some(410),
        word => word.parse::<u16>().ok(),
    }) {
        status = found;
        words.remove(0);
    }
    let (from, to) = match words.as_slice() {
        [from, to] => (*from, Some(*to)),
        // For all paths of the section.
        [to] if status < 400 && !is_expression => {
            parts.redirects.extend(for_each(paths, |pattern| {
                on_path("redirect", pattern).text(to).word_property("status", status)
            }));
            return;
        }
        [] if status >= 400 => {
            let nodes = for_each(paths, |pattern| with_path(KdlNode::new("deny").word("all"), pattern));
            parts.rejections.extend(nodes.into_iter().map(|node| node.word_property("status", status)));
            return;
        }
        [from] => (*from, None),
        _ => return notes.left(directive, "it needs a path and a URL"),
    };
    let patterns = match is_expression {
        true => expression(from).map(|text| vec![ForeignPattern::Expression(text)]),
        false => Ok(section::prefix(from)),
    };
    let patterns = match patterns {
        Ok(patterns) => patterns,
        Err(why) => return parts.close(directive, &[], why, notes),
    };
    let Some(to) = to.filter(|_| status < 400) else {
        let nodes = for_each(&patterns, |pattern| {
            let node = with_path(KdlNode::new("deny").word("all"), pattern);
            if status == 403 { node } else { node.word_property("status", status) }
        });
        parts.rejections.extend(nodes);
        return;
    };
    let query = if to.contains('?') { "" } else { "{query}" };
    if is_expression {
        let target =
            (1..10).fold(to.to_owned(), |text, group| text.replace(&format!("${group}"), &format!("{{{group}}}")));
        parts.redirects.extend(for_each(&patterns, |pattern| {
            on_path("redirect", pattern).text(format!("{target}{query}")).word_property("status", status)
        }));
        return;
    }
    for pattern in &patterns {
        let rest = match pattern {
            ForeignPattern::Exact(_) => String::new(),
            ForeignPattern::Prefix(prefix) if prefix == "/" => "{path}".to_owned(),
            _ if from.ends_with('/') => "{rest}".to_owned(),
            _ => "/{rest}".to_owned(),
        };
        let to = if rest == "{path}" { to.strip_suffix('/').unwrap_or(to) } else { to };
        let node = on_path("redirect", pattern.text()).text(format!("{to}{rest}{query}"));
        parts.redirects.push(node.word_property("status", status));
    }
}

/// Returns `true` if the path of a `FallbackResource` is rewritten or rejected once more, and notes that.
pub(super) fn leads_on(directive: &Directive, parts: &SiteParts, notes: &mut Notes) -> bool {
    let path = directive.first();
    let nodes = parts.redirects.iter().filter(|node| !node.has_property("missing")).chain(&parts.rejections);
    let fits = |node: &KdlNode| match node.pattern() {
        // Requests for other paths have gone there before.
        "*" | "all" => false,
        pattern => fits(pattern, path),
    };
    let leads = nodes.into_iter().any(fits);
    if leads {
        notes.left(directive, "missing paths get 404, because another rule is for the path to which it leads");
    }
    leads
}

/// Returns `true` if a pattern of ours fits a path.
fn fits(pattern: &str, path: &str) -> bool {
    match (pattern.strip_prefix('~'), pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
        (Some(expression), ..) => ForeignPattern::Expression(expression.to_owned()).fits(path),
        (_, Some(prefix), _) => path.starts_with(prefix),
        (_, _, Some(suffix)) => path.ends_with(suffix),
        _ => pattern == path,
    }
}

#[cfg(test)]
mod tests {
    use crate::apache::directory_index::tests::lines;

    /// Issue 23: a path to which missing ones lead is subject to other rules, too.
    #[test]
    fn fallbacks_are_not_rewritten() {
        let rules = |directory: &str, rule: &str| {
            lines(&format!(
                "<Directory /nowhere>\nRewriteEngine On\nRewriteRule {rule}\n</Directory>\n<Directory {directory}>\n\
                 FallbackResource /a/b.txt\n</Directory>"
            ))
        };
        for (directory, line) in
            [("/nowhere", "fallback \"/a/b.txt\""), ("/nowhere/a", "rewrite \"/a/*\" \"/a/b.txt\"")]
        {
            let (text, remarks) = rules(directory, "^c$ /d [L]");
            assert!(text.contains(line) && remarks.is_empty(), "{text} {remarks:?}");
            let (text, remarks) = rules(directory, "\\.txt$ /d [L]");
            assert!(!text.contains(line) && remarks[0].contains("missing paths get 404"), "{text} {remarks:?}");
        }
    }

    /// Issue 23: rules of a section without a directory were those of the whole host.
    #[test]
    fn rules_without_a_directory_are_rejected() {
        let check = |section: &str, expect: &str| {
            let name = section.split(' ').next().unwrap_or_default();
            let rule = "RewriteEngine On\nRewriteRule ^a /b [L]";
            let (text, remarks) = lines(&format!("<{section}>\n{rule}\n</{name}>"));
            assert!(text.lines().any(|line| line == expect), "{section}: {text} {remarks:?}");
        };
        check("DirectoryMatch ^/nowhere/(a|b)/", "deny all path=\"~^/(a|b)/\"");
        check("Location /a", "deny all path=\"/a\"");
        check("Directory /", "deny all");
        check("Directory /nowhere/a", "rewrite \"~^/a/a\" \"/b\"");
    }

    /// Issue 23: groups that an expression lacks made the translation invalid.
    #[test]
    fn groups_that_are_absent_are_empty() {
        let target = |rule: &str| {
            let (text, _) = lines(&format!("RewriteEngine On\nRewriteRule {rule} [L]"));
            text.lines().find(|line| line.starts_with("rewrite")).map(str::to_owned).unwrap_or_default()
        };
        assert_eq!(target("^/a /b/$1"), "rewrite \"~^/a\" \"/b/\"");
        assert_eq!(target("^/a(.*) /b/$1$2"), "rewrite \"~^/a(.*)\" \"/b/{1}\"");
        assert_eq!(target("!^/a /b/$1"), "rewrite \"*\" \"/b/\" when=\"not path matches '^/a'\"");
        let (text, _) = lines("<Directory /nowhere/a>\nRewriteEngine On\nRewriteRule !^b /c [L]\n</Directory>");
        assert!(text.contains("rewrite \"/a/*\" \"/c\" when=\"not path matches '^/a/b'\""), "{text}");
        assert_eq!(target("^ /b/$1"), "rewrite \"*\" \"/b/\"");
    }
}
