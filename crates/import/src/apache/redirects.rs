//! mod_alias: `Redirect` and its relatives.

use super::rewrite_condition::path_matches;
use super::section;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{SiteParts, for_each, on_path, with_path};
use crate::pattern::{ForeignPattern, expression};

/// `Redirect` and its relatives, in a section for these paths. None are all paths. Redirects of the same block begin at
/// number `block_start`; they come first.
pub(super) fn redirect(
    directive: &Directive,
    paths: &[ForeignPattern],
    block_start: usize,
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
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
    let is_of = |pattern: &ForeignPattern| paths.is_empty() || paths.iter().any(|path| path.overlaps(pattern));
    let patterns: Vec<ForeignPattern> = patterns.into_iter().filter(is_of).collect();
    if patterns.is_empty() {
        return notes.needless(directive, "its section has none of its paths");
    }
    // A section is for some of the paths only.
    let within: Vec<String> = paths.iter().map(path_matches).collect();
    let within = Some(within.join(" or ")).filter(|within| !within.is_empty());
    let confine = |node: &mut KdlNode, pattern: &ForeignPattern| {
        if let Some(within) = within.as_ref().filter(|_| !paths.iter().any(|path| path.covers(pattern))) {
            node.add_condition(within);
        }
    };
    let Some(to) = to.filter(|_| status < 400) else {
        let is_earlier = |node: &&KdlNode| node.name() == "redirect" && node.is_rule_of(node.first_value());
        let earlier: Vec<ForeignPattern> =
            parts.redirects[block_start..].iter().filter(is_earlier).map(|node| of_ours(node.pattern())).collect();
        for pattern in &patterns {
            let node = with_path(KdlNode::new("deny").word("all"), pattern.text());
            let mut node = if status == 403 { node } else { node.word_property("status", status) };
            for other in earlier.iter().filter(|other| other.overlaps(pattern)) {
                node.add_condition(&format!("not {}", path_matches(other)));
            }
            confine(&mut node, pattern);
            parts.rejections.push(node);
        }
        return;
    };
    let query = if to.contains('?') { "" } else { "{query}" };
    if is_expression {
        let target =
            (1..10).fold(to.to_owned(), |text, group| text.replace(&format!("${group}"), &format!("{{{group}}}")));
        for pattern in &patterns {
            let node = on_path("redirect", pattern.text()).text(format!("{target}{query}"));
            let mut node = node.word_property("status", status);
            confine(&mut node, pattern);
            parts.redirects.push(node);
        }
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
        let mut node = node.word_property("status", status);
        confine(&mut node, pattern);
        parts.redirects.push(node);
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
    of_ours(pattern).fits(path)
}

/// Paths of a pattern of ours.
pub(super) fn of_ours(pattern: &str) -> ForeignPattern {
    match (pattern.strip_prefix('~'), pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
        (Some(expression), ..) => ForeignPattern::Expression(expression.to_owned()),
        (_, Some(prefix), _) => ForeignPattern::Prefix(prefix.to_owned()),
        (_, _, Some(suffix)) => ForeignPattern::Suffix(suffix.to_owned()),
        _ => ForeignPattern::Exact(pattern.to_owned()),
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

    /// Issue 23: a redirect that stands before a rejection was rejected, too.
    #[test]
    fn the_first_redirect_counts() {
        let check = |rules: &str, expect: &str| {
            let (text, remarks) = lines(rules);
            let found: Vec<&str> = text.lines().filter(|line| line.starts_with("deny")).collect();
            assert_eq!((found.join("\n").as_str(), remarks.len()), (expect, 0), "{rules}");
        };
        check("Redirect /a/ /b/\nRedirect gone /c/", "deny all path=\"/c/*\" status=410");
        check("Redirect gone /a/\nRedirectMatch ^/a/b /c", "deny all path=\"/a/*\" status=410");
        check("RedirectMatch ^/a/b /c\nRedirect 403 /a/", "deny all path=\"/a/*\" when=\"not path matches '^/a/b'\"");
        // Issue 23: those of a section were for all paths.
        let of_directory = |rule: &str| format!("<Directory /nowhere/a>\n{rule}\n</Directory>");
        check(&of_directory("Redirect gone /a/b/"), "deny all path=\"/a/b/*\" status=410");
        check(&of_directory("RedirectMatch gone x"), "deny all path=\"~x\" status=410 when=\"path matches '^/a/'\"");
        let (text, remarks) = lines(&of_directory("Redirect /b /c"));
        assert!(!text.contains("redirect") && remarks[0].contains("none of its paths"), "{text}");
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
