//! Values of KDL nodes as text.

use kdl::{KdlDocument, KdlNode, KdlValue};

/// Deepest nesting of blocks, and of comments: deeper ones overflow the parser's stack. Labs need three.
const NESTING_MAX: usize = 8;

/// Parses a document. The error has the line.
pub(crate) fn parse(text: &str) -> Result<KdlDocument, String> {
    check_nesting(text)?;
    text.parse().map_err(|error: kdl::KdlError| describe(&error))
}

/// Checks the nesting of blocks and comments outside of texts.
fn check_nesting(text: &str) -> Result<(), String> {
    let (mut at, mut blocks, mut comments) = (0, 0usize, 0usize);
    while let Some(&byte) = text.as_bytes().get(at) {
        let rest = &text.as_bytes()[at..];
        let length = match byte {
            b'/' if rest.starts_with(b"/*") => {
                comments += 1;
                2
            }
            b'*' if comments > 0 && rest.starts_with(b"*/") => {
                comments -= 1;
                2
            }
            _ if comments > 0 => 1,
            b'/' if rest.starts_with(b"//") => rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()),
            b'"' | b'#' => text_length(rest),
            b'{' | b'}' => {
                blocks = if byte == b'{' { blocks + 1 } else { blocks.saturating_sub(1) };
                1
            }
            _ => 1,
        };
        if blocks > NESTING_MAX || comments > NESTING_MAX {
            let line = text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1;
            return Err(format!("line {line}: blocks or comments are nested deeper than {NESTING_MAX} levels"));
        }
        at += length;
    }
    Ok(())
}

/// Length of a text with its quotes, such as `"a"`, `"""a"""` or `#"a"#`; 1 if there is none.
fn text_length(rest: &[u8]) -> usize {
    let hashes = rest.iter().take_while(|&&byte| byte == b'#').count();
    let quotes = rest[hashes..].iter().take_while(|&&byte| byte == b'"').count();
    let quotes = match quotes {
        0 => return hashes.max(1),
        1 | 2 => 1,
        _ => 3,
    };
    let end = [&b"\"\"\""[..quotes], &rest[..hashes]].concat();
    let mut at = hashes + quotes;
    while at < rest.len() {
        if rest[at..].starts_with(&end) {
            return at + end.len();
        }
        at += if rest[at] == b'\\' && hashes == 0 { 2 } else { 1 };
    }
    rest.len()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_nesting_is_an_error() {
        for text in ["a {".repeat(200_000), "/*".repeat(200_000), "a /-{".repeat(200_000), "a \"{\" {".repeat(20)] {
            assert!(parse(&text).unwrap_err().contains("line 1: blocks or comments are nested deeper"));
        }
        for text in [
            format!("a \"{}\"", "{".repeat(100)),
            format!("a #\"\\\"{}\"#", "{".repeat(100)),
            format!("a \"\"\"\n  \"{}\n  \"\"\"", "{".repeat(100)),
            format!("// {}\n/* {} */\na \"\\\"{}\" \"\"", "{".repeat(100), "{".repeat(100), "{".repeat(100)),
            "a {\n}\n".repeat(100),
        ] {
            assert!(parse(&text).is_ok(), "{text}");
        }
    }
}
