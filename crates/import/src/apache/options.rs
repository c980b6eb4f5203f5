//! Options of a site: `Options` and `ErrorDocument`.

use super::host::is;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::SiteParts;
use crate::pattern::ForeignPattern;

/// `Options`, of which only the listing has a counterpart.
pub(super) fn options(directive: &Directive, paths: &[ForeignPattern], parts: &mut SiteParts, notes: &mut Notes) {
    for word in &directive.arguments {
        let (is_off, name) = match word.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, word.trim_start_matches('+')),
        };
        match name.to_ascii_lowercase().as_str() {
            "indexes" | "all" if paths.is_empty() => {
                parts.set_file_option(KdlNode::new("browse").word(if is_off { "off" } else { "on" }));
            }
            "indexes" if !is_off => notes.left(directive, "write `browse` into a `files` block"),
            "includes" | "includesnoexec" if !is_off => notes.left(directive, "there are no server-side includes"),
            "multiviews" if is_off => parts.files.retain(|node| node.name() != "extensions"),
            "multiviews" if paths.is_empty() => parts.set_file_option(KdlNode::with("extensions", "html")),
            "multiviews" => notes.left(directive, "write `extensions` into a `files` block"),
            _ => {}
        }
    }
    let is_relative = directive.arguments.iter().any(|word| word.starts_with(['+', '-']));
    if !is_relative
        && paths.is_empty()
        && !directive.arguments.iter().any(|word| matches!(word.to_ascii_lowercase().as_str(), "indexes" | "all"))
    {
        parts.files.retain(|node| node.name() != "browse");
    }
    if !is_relative
        && paths.is_empty()
        && !directive.arguments.iter().any(|word| word.eq_ignore_ascii_case("multiviews"))
    {
        parts.files.retain(|node| node.name() != "extensions");
    }
}

/// `ErrorDocument`.
pub(super) fn error_page(directive: &Directive, parts: &mut SiteParts, notes: &mut Notes) {
    let page = directive.argument(1);
    match (directive.first().parse::<u16>(), page.starts_with('/')) {
        (Ok(400..=599), true) if page.contains('?') => notes.left(directive, "an error page has no query"),
        (Ok(status @ 400..=599), true) => {
            parts.others.push(KdlNode::new("error-page").word(status).text(page));
        }
        _ if page == "default" => {}
        _ => notes.left(directive, "an error page must be a path of the site"),
    }
}

/// Drops error pages of a site without files, whose pages come from its upstream.
pub(super) fn drop_error_pages<'a>(all: impl Iterator<Item = &'a Directive>, parts: &mut SiteParts, notes: &mut Notes) {
    let is_page = |node: &KdlNode| node.name() == "error-page" && node.last_value().starts_with('/');
    if parts.others.iter().any(is_page) {
        parts.others.retain(|node| !is_page(node));
        for directive in all.filter(|child| is(child, "errordocument") && child.argument(1).starts_with('/')) {
            notes.left(directive, "an error page must be a file, not an upstream response");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::apache::directory_index::tests::lines;

    /// Issue 23: an error page of a site without a root was no valid configuration.
    #[test]
    fn sites_without_files_have_no_error_pages() {
        let (text, remarks) = lines("ProxyPass / http://b/\nErrorDocument 404 /404.html");
        assert!(!text.contains("error-page") && remarks[0].contains("must be a file"), "{text} {remarks:?}");
    }
}
