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
