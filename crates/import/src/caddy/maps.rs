//! `map`: placeholders with values of a table, as maps.

use regex::Regex;

use super::Shared;
use super::expression;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::pattern;

/// Beginning of placeholders for maps.
pub(super) const MAP_PLACEHOLDER: &str = "map.";

/// Directives of a block with variables in place of placeholders that its maps set. A map that cannot be translated stays.
pub(super) fn replaced(directives: &[Directive], shared: &mut Shared<'_>) -> Vec<Directive> {
    let mut names: Vec<(String, String)> = Vec::new();
    let mut rest: Vec<Directive> = Vec::new();
    for directive in directives {
        let is_other = |name: &String| !names.iter().any(|(known, _)| known == name);
        let is_new = directive.arguments.iter().skip(1).all(is_other);
        match (directive.name == "map" && is_new).then(|| read(directive)).flatten() {
            Some(maps) => {
                for (placeholder, base, lines) in maps {
                    let name = shared.map(&base, &lines);
                    names.push((placeholder, format!("{{{MAP_PLACEHOLDER}{name}}}")));
                }
            }
            None => rest.push(directive.clone()),
        }
    }
    for directive in &mut rest {
        replace(directive, &names);
        directive.block = directive.block.as_deref().map(|block| replaced(block, shared));
    }
    rest
}

/// Replaces placeholders in a directive and its block.
fn replace(directive: &mut Directive, names: &[(String, String)]) {
    for (placeholder, variable) in names {
        directive.arguments.iter_mut().for_each(|text| *text = text.replace(placeholder, variable));
    }
    directive.block.iter_mut().flatten().for_each(|child| replace(child, names));
}

/// Value of a map, and its cases.
pub(super) type MapLines = (String, Vec<KdlNode>);

/// Maps of a directive: the placeholder of each, its name, and its lines.
fn read(directive: &Directive) -> Option<Vec<(String, String, MapLines)>> {
    let (source, placeholders) = directive.arguments.split_first()?;
    let source = expression::variable(source.strip_prefix('{')?.strip_suffix('}')?)?;
    let maps = placeholders.iter().enumerate().map(|(index, placeholder)| {
        let name = placeholder.strip_prefix('{')?.strip_suffix('}')?;
        let lines = cases(directive.children(), index)?;
        expression::is_name(name).then(|| (placeholder.clone(), name.to_owned(), (format!("{{{source}}}"), lines)))
    });
    maps.collect()
}

/// Cases of one of the placeholders. Here, exact texts count before expressions.
fn cases(children: &[Directive], index: usize) -> Option<Vec<KdlNode>> {
    let mut lines = Vec::new();
    let mut expressions: Vec<Regex> = Vec::new();
    for child in children {
        let value = child.arguments.get(index)?;
        if value.contains(['{', '}', '$']) || value == "-" {
            return None;
        }
        let node = match child.name.as_str() {
            "default" => KdlNode::with("default", value),
            text => match text.strip_prefix('~') {
                Some(text) => {
                    let text = pattern::expression(text).ok()?;
                    expressions.push(Regex::new(&text).ok()?);
                    KdlNode::with("case", format!("~{text}")).text(value)
                }
                None if text.contains(['*', '{']) || expressions.iter().any(|earlier| earlier.is_match(text)) => {
                    return None;
                }
                None => KdlNode::with("case", text).text(value),
            },
        };
        lines.push(node);
    }
    Some(lines)
}
