//! `DirectoryIndex`, and listings of directories: `Options Indexes`.

use super::access;
use super::host::{is, is_of_files};
use super::section::{self, ApacheSection, Mount};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::SiteParts;
use crate::pattern::ForeignPattern;

/// Names of index files that a block has; `None` if it has no such directive. Names in other directories are left out.
pub(super) fn names_of(block: &[Directive]) -> Option<Vec<String>> {
    let mut names: Option<Vec<String>> = None;
    for directive in block.iter().filter(|child| is(child, "directoryindex")) {
        let names = names.get_or_insert_default();
        match directive.arguments.as_slice() {
            [word] if word.eq_ignore_ascii_case("disabled") => names.clear(),
            words => names.extend(words.iter().filter(|name| !name.starts_with('/')).cloned()),
        }
    }
    names
}

/// Names of index files of a site, whose directives stand in its blocks and in sections for all paths.
pub(super) fn of_site(blocks: &[&[Directive]], sections: &[ApacheSection<'_>], is_of_directory: bool) -> Vec<String> {
    let is_of_all = |section: &&ApacheSection<'_>| {
        section.patterns.as_deref().is_ok_and(|patterns| patterns.iter().any(ForeignPattern::is_all))
    };
    let of_sections = sections.iter().filter(is_of_all).rev().find_map(|section| names_of(section.block));
    let default = || match is_of_directory {
        // Packages of PHP add its index.
        true => vec!["index.html".to_owned(), "index.php".to_owned()],
        false => vec!["index.html".to_owned()],
    };
    of_sections.or_else(|| blocks.iter().rev().find_map(|block| names_of(block))).unwrap_or_else(default)
}

/// Handlers of directories below the root with other index files. The innermost come first.
pub(super) fn of_sections(
    names: &[String],
    sections: &[ApacheSection<'_>],
    mounts: &[Mount],
    parts: &mut SiteParts,
    notes: &mut Notes,
) -> Vec<KdlNode> {
    let mut nodes = Vec::new();
    for section in sections.iter().rev() {
        let Some(own) = names_of(section.block) else { continue };
        let Ok(patterns) = &section.patterns else { continue };
        // Scripts have their own indexes.
        if patterns.iter().any(ForeignPattern::is_all) || own == names || own.iter().any(|name| name.ends_with(".php"))
        {
            continue;
        }
        for pattern in patterns {
            let mount = section::mount_of(&pattern.head(), mounts);
            match pattern {
                ForeignPattern::Prefix(prefix)
                    if mount.is_some_and(|mount| *prefix == format!("{}/", mount.prefix)) => {}
                ForeignPattern::Prefix(prefix) if mount.is_none_or(|mount| mount.prefix.is_empty()) => {
                    let node = KdlNode::with("files", format!("~^{}(?:.*/)?$", regex::escape(prefix)));
                    nodes.push(node.block(vec![KdlNode::new("index").texts(&own), KdlNode::new("require-index")]));
                }
                pattern => {
                    let directories = ForeignPattern::Expression("/$".to_owned());
                    let closed = pattern.and(&directories).ok().flatten().unwrap_or_else(|| pattern.clone());
                    let directive = section.block.iter().find(|child| is(child, "directoryindex"));
                    let why = "index files are those of a directory below the root";
                    parts.close(directive.unwrap_or(section.directive), &[closed], why, notes);
                }
            }
        }
    }
    nodes
}

/// Handler for the index of directories below the root whose first index files are forbidden: then others count.
pub(super) fn of_others(names: &[String], parts: &SiteParts) -> Option<KdlNode> {
    let is_forbidden = |name: &&String| {
        parts.handlers.iter().filter(|node| node.children.iter().any(|child| child.name() == "forbidden")).any(|node| {
            let expression =
                node.first_value().strip_prefix('~').map(|text| ForeignPattern::Expression(text.to_owned()));
            expression.is_some_and(|expression| expression.fits(&format!("/x/{name}")))
        })
    };
    let others: Vec<String> = names.iter().filter(|name| !is_forbidden(name)).cloned().collect();
    let is_some = !others.is_empty() && others.len() < names.len();
    is_some.then(|| KdlNode::with("files", "~^/.+/$").block(vec![KdlNode::new("index").texts(&others)]))
}

/// Turns listings off that a section turns off for a part of the site.
pub(super) fn drop_listings(
    names: &[String],
    sections: &[ApacheSection<'_>],
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    if !parts.files.iter().any(|node| node.name() == "browse" && node.last_value() == "on") {
        return;
    }
    let is_of_part = |section: &&ApacheSection<'_>| {
        !section.patterns.as_deref().is_ok_and(|patterns| patterns.iter().any(ForeignPattern::is_all))
    };
    if let Some(section) = sections.iter().find(|section| guards_index(section, names)) {
        parts.files.retain(|node| node.name() != "browse");
        notes.left(section.directive, "directories are listed nowhere, because it rejects index files");
    }
    for section in sections.iter().filter(is_of_part) {
        let is_off = |child: &&Directive| is(child, "options") && option(child, &["indexes"]) == Some(false);
        if let Some(directive) = section.block.iter().find(is_off) {
            parts.files.retain(|node| node.name() != "browse");
            notes.left(directive, "directories are listed nowhere, because this turns it off for a part of the site");
        }
    }
}

/// Rejects other methods than those of files for directories whose index a section rejects: otherwise, the script for
/// missing paths would get them.
pub(super) fn reject_methods(
    names: &[String],
    sections: &[ApacheSection<'_>],
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    if let Some(section) = sections.iter().find(|section| guards_index(section, names)) {
        let why = "it rejects index files, whose directories are then for GET and HEAD only";
        let node = KdlNode::new("deny").word("all").property("path", "~/$").property("method", "!GET HEAD");
        parts.closed.push(node.comment(notes.rejected(section.directive, why)));
    }
}

/// Returns `true` if a section of names rejects an index file: Apache rejects the directory then, even if the file is
/// missing.
fn guards_index(section: &ApacheSection<'_>, names: &[String]) -> bool {
    let patterns = section.patterns.as_deref().unwrap_or_default();
    let fits = |name: &String| patterns.iter().any(|pattern| pattern.fits(&format!("/x/{name}")));
    is_of_files(section.directive) && !access::is_open(section.block) && names.iter().any(fits)
}

/// Rejects paths of directories whose rules Apache reads, but forbids: these need an option to follow links.
pub(super) fn reject_forbidden_rules(
    sections: &[ApacheSection<'_>],
    blocks: &[&[Directive]],
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    const NAMES: [&str; 2] = ["followsymlinks", "symlinksifownermatch"];
    let follows = |before: bool, block: &[Directive]| {
        let options = block.iter().filter(|child| is(child, "options"));
        options.fold(before, |before, options| option(options, &NAMES).unwrap_or(before))
    };
    let of_site = blocks.iter().fold(true, |before, block| follows(before, block));
    let of = |section: &ApacheSection<'_>, until: usize| {
        let around = sections[..until].iter().filter(|around| around.covers(section));
        follows(around.fold(of_site, |before, around| follows(before, around.block)), section.block)
    };
    let has_rules = |section: &ApacheSection<'_>| {
        let is_on = |child: &Directive| is(child, "rewriteengine") && child.first().eq_ignore_ascii_case("on");
        section.block.iter().any(is_on)
    };
    for (index, section) in sections.iter().enumerate() {
        let is_inherited = || sections.iter().any(|other| has_rules(other) && other.overlaps(section));
        let directive = section.block.iter().rfind(|child| is(child, "options"));
        let is_meant = has_rules(section) || (directive.is_some() && is_inherited());
        if is_meant && !of(section, index) {
            let why =
                "it lacks FollowSymLinks, without which Apache forbids paths of a directory with rules of mod_rewrite";
            let patterns = section.patterns.as_deref().unwrap_or_default();
            parts.close(directive.unwrap_or(section.directive), patterns, why, notes);
        }
    }
}

/// Value of one of some options after this directive; `None` if it stays as it was.
fn option(directive: &Directive, names: &[&str]) -> Option<bool> {
    let words = || directive.arguments.iter().map(|word| word.to_ascii_lowercase());
    let is_relative = words().any(|word| word.starts_with(['+', '-']));
    let is_named = |word: &str| names.contains(&word.trim_start_matches(['+', '-'])) || word == "all";
    match words().rev().find(|word| is_named(word)) {
        Some(word) => Some(!word.starts_with('-')),
        None if is_relative => None,
        None => Some(false),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::apache::tests::translated;

    /// Lines of a site, and remarks.
    pub(in crate::apache) fn lines(inside: &str) -> (String, Vec<String>) {
        let (lines, remarks) = translated(&format!("DocumentRoot /nowhere\n{inside}"), None);
        (lines.join("\n"), remarks)
    }

    /// Issue 23: a directory without an index showed `index.html`.
    #[test]
    fn directories_have_the_index_that_apache_looks_for() {
        let check = |inside: &str, expect: &str| {
            let (text, remarks) = lines(inside);
            assert!(text.contains(expect), "{inside}: {text}");
            assert_eq!(remarks, Vec::<String>::new());
        };
        check("DirectoryIndex a.html\nDirectoryIndex b.html", "index \"a.html\" \"b.html\"");
        check("DirectoryIndex disabled", "\nindex\n");
        check("DirectoryIndex disabled\nDirectoryIndex a.html", "index \"a.html\"");
        let (text, remarks) = lines("DirectoryIndex /a.html");
        assert!(text.contains("\nindex\n") && remarks[0].contains("one of its directory"), "{text} {remarks:?}");
        check(
            "<Directory /nowhere/a>\nDirectoryIndex disabled\n</Directory>",
            "files \"~^/a/(?:.*/)?$\" {\nindex\nrequire-index\n}",
        );
        let (text, remarks) = lines("<Files *.txt>\nDirectoryIndex b\n</Files>");
        assert!(text.contains("deny all") && remarks[0].contains("its paths are rejected"), "{text}");
    }

    /// Issue 23: a directory without an index led to the script for missing paths, and `FallbackResource` came before a rewrite.
    #[test]
    fn directories_without_an_index_lead_nowhere() {
        let scripts = "<FilesMatch \\.php$>\nSetHandler \"proxy:unix:/p|fcgi://localhost\"\n</FilesMatch>\n";
        let front = |condition: &str, other: &str| {
            lines(&format!(
                "{scripts}<Directory /nowhere>\nRewriteEngine on\nRewriteCond %{{REQUEST_FILENAME}} !-f\n{condition}\
                 RewriteRule . /index.php [L]\n{other}\n</Directory>"
            ))
        };
        for condition in ["", "RewriteCond %{REQUEST_FILENAME} !-d\n"] {
            let (text, _) = front(condition, "DirectoryIndex disabled");
            assert!(
                text.contains("require-index\n") && text.contains("respond \"/\" 403 method=\"!GET HEAD\""),
                "{text}"
            );
            let (text, remarks) =
                front(condition, "</Directory>\n<Files *.html>\nRequire all denied\n</Files>\n<Directory /x>");
            assert!(text.contains("deny all path=\"~/$\" method=\"!GET HEAD\""), "{text}");
            assert!(remarks.iter().any(|remark| remark.contains("for GET and HEAD only")), "{remarks:?}");
            // Rules of a directory below, too.
            let inner = "</Directory>\n<Directory /nowhere/a>\nRewriteEngine on\nRewriteRule ^b - [F]\n</Directory>\n<Directory /x>";
            for other in ["", inner] {
                let (text, remarks) = front(condition, &format!("FallbackResource /other\n{other}"));
                assert!(text.contains("\"/index.php\"") && !text.contains("other"), "{text}");
                assert!(remarks[0].contains("a rewrite leads missing paths elsewhere"), "{remarks:?}");
            }
        }
        let (text, _) =
            lines("<Directory /nowhere/a>\nFallbackResource /b\nRewriteEngine on\nRewriteRule ^c - [F]\n</Directory>");
        assert!(text.contains("and (path != '/a/')"), "{text}");
        // Issue 23: such a site did not start.
        let (text, _) = lines("ProxyPass / http://a:1/\n<Directory /nowhere/a>\nDirectoryIndex b\n</Directory>");
        assert!(!text.contains("files"), "{text}");
        // Sections of the root are not those of an alias elsewhere.
        let (text, _) = lines("Alias /b /other\n<Directory /nowhere>\nDirectoryIndex disabled\n</Directory>");
        assert!(text.contains("strip-prefix \"/b\"\nindex \"index.html\""), "{text}");
    }

    /// Issue 23: directories were listed that a section hides.
    #[test]
    fn listings_stay_off() {
        let (text, remarks) =
            lines("<Directory /nowhere>\nOptions Indexes\n</Directory>\n<Location /a>\nOptions None\n</Location>");
        assert!(!text.contains("browse") && remarks[0].contains("listed nowhere"), "{text} {remarks:?}");
    }

    /// Issue 23: directories without an index were listed whose index is forbidden.
    #[test]
    fn directories_of_forbidden_indexes_are_not_listed() {
        let (text, remarks) = lines("Options Indexes\n<Files *.html>\nRequire all denied\n</Files>");
        assert!(!text.contains("browse") && remarks[0].contains("rejects index files"), "{text} {remarks:?}");
        let (text, _) = lines("Options Indexes\n<Files *.txt>\nRequire all denied\n</Files>");
        assert!(text.contains("browse on"), "{text}");
    }

    /// Issue 23: Apache forbids all paths of a directory with rules whose links must not be followed.
    #[test]
    fn rules_of_directories_need_links() {
        let check = |options: &str, expect: bool| {
            let rules = "RewriteEngine On\nRewriteRule ^x - [F]";
            let (text, _) = lines(&format!("<Directory /nowhere>\n{options}\n{rules}\n</Directory>"));
            assert_eq!(text.lines().any(|line| line == "deny all"), expect, "{options}: {text}");
        };
        check("Options Indexes", true);
        check("Options None", true);
        check("Options -FollowSymLinks", true);
        check("Options -Indexes", false);
        check("Options All", false);
        check("Options SymLinksIfOwnerMatch", false);
        check("", false);
        let (text, _) = lines(
            "<Directory /nowhere>\nRewriteEngine On\n</Directory>\n<Directory /nowhere/a>\nOptions Indexes\n</Directory>",
        );
        assert!(text.contains("deny all path=\"/a/*\""), "{text}");
    }
}
