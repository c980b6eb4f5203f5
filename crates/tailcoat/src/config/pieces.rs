//! A long text, parsed in pieces: reading a thousand sites is most of what a reload takes.

use std::num::NonZero;
use std::ops::Range;
use std::thread;

use kdl::{KdlDocument, KdlError, KdlIdentifier};
use miette::SourceSpan;

use super::lex::{TokenKind, tokens};

/// Bytes of a piece at least. A thread takes about as long to start as some hundred bytes to parse.
const PIECE_BYTES_MIN: usize = 16 << 10;

/// Pieces at most. More cores are better left to those who serve meanwhile.
const PIECES_MAX: usize = 4;

/// Parses a text.
///
/// # Errors
/// The error of the KDL parser.
pub(super) fn parse(text: &str) -> Result<KdlDocument, KdlError> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let count = (text.len() / PIECE_BYTES_MIN).min(cores).min(PIECES_MAX);
    match if count > 1 { parse_pieces(text, &pieces(text, count)) } else { None } {
        Some(document) => Ok(document),
        // Errors must refer to the whole text.
        None => KdlDocument::parse_v2(text),
    }
}

/// Splits a text into about this many pieces of similar length. Each ends with a top-level block and the line after it.
fn pieces(text: &str, count: usize) -> Vec<Range<usize>> {
    let mut pieces = Vec::with_capacity(count);
    let (mut start, mut depth, mut is_after_block) = (0, 0_usize, false);
    for token in tokens(text) {
        match token.kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth = depth.saturating_sub(1),
            TokenKind::Newline if is_after_block && token.span.end - start >= text.len() / count => {
                pieces.push(start..token.span.end);
                start = token.span.end;
            }
            _ => {}
        }
        is_after_block = match token.kind {
            TokenKind::Close => depth == 0,
            TokenKind::Space | TokenKind::LineComment => is_after_block,
            _ => false,
        };
    }
    pieces.push(start..text.len());
    pieces
}

/// `None` if one is no document, or there is no thread for it.
fn parse_pieces(text: &str, pieces: &[Range<usize>]) -> Option<KdlDocument> {
    let (first, others) = pieces.split_first()?;
    thread::scope(|scope| {
        let start = |piece: &Range<usize>| {
            let piece = piece.clone();
            thread::Builder::new().name("config".into()).spawn_scoped(scope, move || parse_piece(text, piece))
        };
        let others: Vec<_> = others.iter().map(start).collect::<Result<_, _>>().ok()?;
        let mut document = parse_piece(text, first.clone())?;
        for other in others {
            let mut other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            document.nodes_mut().append(other.nodes_mut());
        }
        Some(document)
    })
}

fn parse_piece(text: &str, piece: Range<usize>) -> Option<KdlDocument> {
    let mut document = KdlDocument::parse_v2(text.get(piece.clone())?).ok()?;
    shift(&mut document, piece.start);
    Some(document)
}

/// Has all spans begin so many bytes later.
fn shift(document: &mut KdlDocument, by: usize) {
    let later = |span: SourceSpan| SourceSpan::from((span.offset() + by, span.len()));
    let shift_name = |name: &mut KdlIdentifier| name.set_span(later(name.span()));
    document.set_span(later(document.span()));
    for node in document.nodes_mut() {
        node.set_span(later(node.span()));
        shift_name(node.name_mut());
        node.ty_mut().iter_mut().for_each(shift_name);
        for entry in node.entries_mut() {
            entry.set_span(later(entry.span()));
            entry.name_mut().into_iter().for_each(shift_name);
            entry.ty_mut().into_iter().for_each(shift_name);
        }
        node.children_mut().iter_mut().for_each(|children| shift(children, by));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that is read of a document.
    fn seen(document: &KdlDocument) -> Vec<String> {
        let mut seen = Vec::new();
        for node in document.nodes() {
            seen.push(format!("{:?} {:?} {:?} {:?}", node.name().value(), node.name().span(), node.ty(), node.span()));
            for entry in node.entries() {
                let name = entry.name().map(|name| (name.value(), name.span()));
                seen.push(format!("{name:?} {:?} {:?} {:?}", entry.value(), entry.ty(), entry.span()));
            }
            seen.extend(node.children().map(self::seen).unwrap_or_default());
        }
        seen
    }

    const BLOCKS: &[&str] = &[
        "site \"a.example\" { root \"/srv/}\"; header \"X\" \"{\" } // }\n",
        "site \"b.example\" \\\n \"c.example\" {\n  listen \"1.2.3.4:80\" tls=(t)#true /* { */\n}\n\n",
        "/-site {\n  root \"/none\"\n}\n",
        "limits /-{\n a 1\n} {\n  body-bytes-max \"1MiB\"\n}  \n",
        "text \"\"\"\n  }\n  {\n  \"\"\"\n",
        "raw #\"}\"{\"#; empty {}; one\n",
        "site { } /-\n { a }\n",
        "ä \"ö\" {\u{2028} ü 1\u{2028}}\u{2028}",
        "last { a; b { c } }",
    ];

    #[test]
    fn pieces_are_the_whole() {
        for rotated in 0..BLOCKS.len() {
            let text: String = (0..60).map(|number| BLOCKS[(number + rotated) % (BLOCKS.len() - 1)]).collect();
            let text = text + BLOCKS[BLOCKS.len() - 1];
            let whole = KdlDocument::parse_v2(&text).unwrap();
            for count in 1..9 {
                let pieces = pieces(&text, count);
                assert!(pieces.len().abs_diff(count) <= 1, "{} instead of {count}", pieces.len());
                let ends = pieces.iter().map(|piece| piece.end);
                let starts = pieces.iter().map(|piece| piece.start);
                assert!(starts.skip(1).chain([text.len()]).eq(ends), "{pieces:?}");
                let parsed = parse_pieces(&text, &pieces).unwrap();
                assert_eq!(seen(&parsed), seen(&whole), "{count}");
            }
            assert_eq!(seen(&parse(&text).unwrap()), seen(&whole));
        }
    }

    #[test]
    fn what_is_wrong_is_reported_of_the_whole() {
        let text = "site { root \"/srv\" }\n".repeat(4_000) + "site { root \"/srv }\n";
        let (whole, parsed) = (KdlDocument::parse_v2(&text).unwrap_err(), parse(&text).unwrap_err());
        assert!(parse_pieces(&text, &pieces(&text, 4)).is_none());
        assert_eq!(parsed.diagnostics, whole.diagnostics);
        assert!(parse("").unwrap().nodes().is_empty());
    }
}
