//! Values of KDL nodes as text.

use kdl::{KdlDocument, KdlNode, KdlValue};

/// Parses a document. The error has the line.
pub(crate) fn parse(text: &str) -> Result<KdlDocument, String> {
    text.parse().map_err(|error: kdl::KdlError| describe(&error))
}

/// Nodes within a node.
pub(crate) fn children(node: &KdlNode) -> &[KdlNode] {
    node.children().map_or(&[][..], KdlDocument::nodes)
}

/// First argument of a node.
pub(crate) fn argument(node: &KdlNode) -> Result<String, String> {
    arguments(node).into_iter().next().ok_or_else(|| format!("`{}` has no value", node.name().value()))
}

/// Property of a node.
pub(crate) fn property(node: &KdlNode, name: &str) -> Option<String> {
    node.get(name).map(text)
}

/// Arguments of a node as text.
pub(crate) fn arguments(node: &KdlNode) -> Vec<String> {
    node.entries().iter().filter(|entry| entry.name().is_none()).map(|entry| text(entry.value())).collect()
}

/// Number of the line on which a node begins.
pub(crate) fn line(document: &str, node: &KdlNode) -> usize {
    let before = &document[..node.span().offset().min(document.len())];
    before.bytes().filter(|&byte| byte == b'\n').count() + 1
}

fn text(value: &KdlValue) -> String {
    value.as_string().map_or_else(|| value.to_string(), str::to_owned)
}

fn describe(error: &kdl::KdlError) -> String {
    let first = error.diagnostics.first().map(|diagnostic| {
        let line = diagnostic.input[..diagnostic.span.offset().min(diagnostic.input.len())].lines().count().max(1);
        format!("line {line}: {diagnostic}")
    });
    first.unwrap_or_else(|| error.to_string())
}
