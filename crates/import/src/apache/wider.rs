//! Remarks on access rules that hold for more paths here than in Apache.

use super::host::is;
use super::section::{self, ApacheSection, Mount};
use crate::directive::Directive;
use crate::notes::Notes;
use crate::pattern::ForeignPattern;

/// Notes paths that a section with a rule guards here, but not in Apache.
pub(super) fn note(section: &ApacheSection<'_>, blocks: &[&[Directive]], mounts: &[Mount], notes: &mut Notes) {
    let Ok(patterns) = &section.patterns else { return };
    if section.is_of_location() || is(section.directive, "proxy") {
        return;
    }
    let is_index = |mount: &&Mount| {
        let path = format!("{}/", mount.prefix);
        let fits = |path: &str| patterns.iter().any(|pattern| pattern.fits(path));
        !mount.is_file && !fits(&path) && fits(&format!("{path}index.html"))
    };
    let is_glob = is(section.directive, "directory") && section.directive.first().contains(['*', '?']);
    if is_glob && mounts.iter().any(|mount| is_index(&mount)) {
        notes.left(
            section.directive,
            "the index file of the directory around is rejected, too, and so is the directory",
        );
    }
    for pass in forwarded(blocks, patterns) {
        notes.left(
            pass,
            "access rules of directories and files also hold for its paths; in Apache, those of `Location` do",
        );
    }
}

/// Notes forwarded paths to which rules of mod_rewrite of a directory apply here, but not in Apache.
pub(super) fn note_rules(section: &ApacheSection<'_>, blocks: &[&[Directive]], notes: &mut Notes) {
    let Ok(patterns) = &section.patterns else { return };
    if !section.block.iter().any(|child| is(child, "rewriterule")) || section.is_of_location() {
        return;
    }
    for pass in forwarded(blocks, patterns) {
        notes.left(pass, "rewrites of directories also apply to its paths; in Apache, those of the host do");
    }
}

/// Directives that forward some of these paths.
fn forwarded<'d>(blocks: &[&'d [Directive]], patterns: &[ForeignPattern]) -> impl Iterator<Item = &'d Directive> {
    blocks.iter().flat_map(|block| block.iter()).filter(|child| {
        let is_meant = |path: &ForeignPattern| patterns.iter().any(|pattern| path.overlaps(pattern));
        forwards(child) && section::prefix(child.first()).iter().any(is_meant)
    })
}

/// Returns `true` if `ProxyPass` forwards all paths of a redirect: Apache looks for it first.
pub(super) fn is_forwarded_before(redirect: &Directive, blocks: &[&[Directive]]) -> bool {
    let all = || blocks.iter().flat_map(|block| block.iter());
    let is_exclusion = |child: &Directive| is(child, "proxypass") && matches!(child.argument(1), "" | "!");
    let from = redirect.arguments.iter().find(|word| word.starts_with(['/', '^'])).map_or("", String::as_str);
    let is_expression = is(redirect, "redirectmatch");
    let paths = match is_expression {
        true => vec![ForeignPattern::Expression(from.to_owned())],
        false => section::prefix(from),
    };
    // A redirect of these is none to clients.
    let is_rejection = redirect
        .arguments
        .first()
        .is_some_and(|word| word.eq_ignore_ascii_case("gone") || word.parse().is_ok_and(|status: u16| status >= 400));
    let forwards_all = |pass: &Directive| {
        let own = section::prefix(pass.first());
        forwards(pass) && paths.iter().all(|path| own.iter().any(|own| own.covers(path)))
    };
    !from.is_empty() && !is_rejection && !all().any(is_exclusion) && all().any(forwards_all)
}

/// Returns `true` if a directive forwards a path.
fn forwards(directive: &Directive) -> bool {
    is(directive, "proxypass") && directive.first().starts_with('/') && !matches!(directive.argument(1), "" | "!")
}

#[cfg(test)]
mod tests {
    use crate::apache::directory_index::tests::lines;

    /// Issue 23: rules that hold for more paths than in Apache had no remark.
    #[test]
    fn wider_rules_have_a_remark() {
        let check = |text: &str, expect: Option<&str>| {
            let (_, remarks) = lines(text);
            assert_eq!(remarks.len(), usize::from(expect.is_some()), "{text}: {remarks:?}");
            assert!(remarks.iter().all(|remark| remark.contains(expect.unwrap_or_default())), "{remarks:?}");
        };
        let closed = |section: &str| {
            let name = section.split(' ').next().unwrap_or_default();
            format!("<{section}>\nRequire all denied\n</{name}>\n")
        };
        check(&closed("Directory \"/nowhere/*\""), Some("so is the directory"));
        check(&closed("Directory /nowhere/a"), None);
        let pass = "ProxyPass /api http://127.0.0.1:1/api\n";
        check(&(closed("Files a.txt") + pass), Some("of `Location` do"));
        check(&(closed("Directory /nowhere/b") + pass), None);
        check(&(closed("Location /api") + pass), None);
        check(&(closed("Files a.txt") + "ProxyPass /api !"), None);
        let rules = "<Directory /nowhere>\nRewriteEngine on\nRewriteRule ^a - [F]\n</Directory>\n";
        check(&format!("{rules}{pass}"), Some("those of the host do"));
    }

    /// Issue 23: redirects of paths that Apache forwards came first.
    #[test]
    fn forwarded_paths_are_not_redirected() {
        let check = |redirect: &str, expect: bool| {
            let (text, _) = lines(&format!("ProxyPass /a/ http://127.0.0.1:1/a/\n{redirect}"));
            assert_eq!(
                text.lines().any(|line| line.starts_with("redirect \"") || line.starts_with("deny")),
                expect,
                "{text}"
            );
        };
        check("Redirect /a/b /c", false);
        check("RedirectMatch 301 ^/a/x$ /c", false);
        check("Redirect /b /c", true);
        check("Redirect / /c", true);
        check("RedirectMatch a$ /c", true);
        check("Redirect gone /a/b", true);
        check("ProxyPass /a/b !\nRedirect /a/b /c", true);
    }
}
