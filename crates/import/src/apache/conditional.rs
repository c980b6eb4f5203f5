//! `<If>`, `<ElseIf>` and `<Else>`.

use super::expression::{self, ApacheCondition, ExpressionScope};
use super::host::is;
use super::redirects::redirect;
use super::{access, fields};
use crate::directive::Directive;
use crate::notes::Notes;
use crate::parts::SiteParts;
use crate::pattern::{ForeignPattern, quoted};

/// Translates the conditional blocks among these directives.
pub(super) fn translate(
    block: &[Directive],
    paths: &[ForeignPattern],
    scope: ExpressionScope<'_>,
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    // Condition that no block before holds; `None` if that is unknown.
    let mut none_before = Some(ApacheCondition::Constant(true));
    for directive in block {
        let own = match directive.name.to_ascii_lowercase().as_str() {
            "if" => {
                none_before = Some(ApacheCondition::Constant(true));
                expression::condition(&directive.arguments.join(" "), scope)
            }
            "elseif" => expression::condition(&directive.arguments.join(" "), scope),
            "else" => Some(ApacheCondition::Constant(true)),
            _ => continue,
        };
        let (Some(own), Some(before)) = (own, none_before.take()) else {
            leave(directive, paths, parts, notes);
            continue;
        };
        none_before = Some(before.clone().and(own.clone().not()));
        match before.and(own) {
            ApacheCondition::Constant(false) => {}
            ApacheCondition::Constant(true) => apply(directive, paths, None, scope, parts, notes),
            ApacheCondition::When(text) => apply(directive, paths, Some(&text), scope, parts, notes),
        }
    }
}

/// Translates `<FilesMatch "(?<!...)$">`: header fields of all files except some. Returns `true` if it did.
pub(super) fn translate_other_files(
    directive: &Directive,
    scope: ExpressionScope<'_>,
    parts: &mut SiteParts,
    notes: &mut Notes,
) -> bool {
    let text = directive.first().strip_prefix("(?<!").and_then(|text| text.strip_suffix(")$"));
    let Some(text) = text.filter(|text| !text.contains("(?<") && !text.contains("(?!")) else { return false };
    let Ok(text) = crate::pattern::expression(&format!("(?:{text})$")) else { return false };
    let is_field = |child: &Directive| is(child, "header") || is(child, "requestheader");
    if !is(directive, "filesmatch") || !directive.children().iter().all(is_field) {
        return false;
    }
    let when = format!("not path matches {}", quoted(&text));
    apply(directive, &[], Some(&when), scope, parts, notes);
    true
}

/// Returns `true` if a directive controls access, or rewrites.
pub(super) fn guards(directive: &Directive) -> bool {
    access::is_part(directive)
        || directive.name.to_ascii_lowercase().starts_with("rewrite")
        || directive.children().iter().any(guards)
}

/// Notes a block whose condition has no counterpart. If it guards something, its paths are rejected.
fn leave(directive: &Directive, paths: &[ForeignPattern], parts: &mut SiteParts, notes: &mut Notes) {
    match guards(directive) {
        true => parts.close(directive, paths, "its condition has no counterpart", notes),
        false => notes.left(directive, "its condition has no counterpart"),
    }
}

fn apply(
    directive: &Directive,
    paths: &[ForeignPattern],
    when: Option<&str>,
    scope: ExpressionScope<'_>,
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    let block = directive.children();
    match access::of_all(block, scope) {
        Ok(Some(false)) => {
            let from = parts.rejections.len();
            parts.reject(paths);
            condition_of(&mut parts.rejections[from..], when);
        }
        // Access for all would lift rules of sections.
        Ok(Some(true)) if !parts.guards.is_empty() => {
            parts.close(directive, paths, "access under a condition lifts no rule", notes);
        }
        Ok(_) => {}
        Err(why) => parts.close(directive, paths, why, notes),
    }
    // Rules for some methods are not among those of the block itself.
    for child in block.iter().filter(|child| access::is_limit(child) || is(child, "satisfy")) {
        parts.close(child, paths, "it has no counterpart under a condition", notes);
    }
    for child in block.iter().filter(|child| !access::is_part(child)) {
        let name = child.name.to_ascii_lowercase();
        match name.as_str() {
            "header" | "requestheader" => {
                let from = parts.fields.len();
                fields::header(child, paths, scope, parts, notes);
                condition_of(&mut parts.fields[from..], when);
            }
            "redirect" | "redirectpermanent" | "redirecttemp" | "redirectmatch" if paths.is_empty() => {
                let (from, rejections) = (parts.redirects.len(), parts.rejections.len());
                redirect(child, paths, from, parts, notes);
                condition_of(&mut parts.redirects[from..], when);
                condition_of(&mut parts.rejections[rejections..], when);
            }
            "setenv" | "unsetenv" | "setenvif" | "setenvifnocase" => {}
            _ if guards(child) => parts.close(child, paths, "it has no counterpart under a condition", notes),
            _ if is(child, "rewriteengine") => {}
            _ => notes.left(child, "it has no counterpart under a condition"),
        }
    }
}

fn condition_of(nodes: &mut [crate::kdl::KdlNode], when: Option<&str>) {
    if let Some(when) = when {
        nodes.iter_mut().for_each(|node| node.add_condition(when));
    }
}
