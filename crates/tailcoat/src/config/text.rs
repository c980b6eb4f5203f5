//! From a file to a KDL document: what is checked before the options are looked at.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use kdl::{KdlDiagnostic, KdlDocument};

use super::diagnostic::{Diagnostics, Source, is_harmful};
use super::lex::{TokenKind, tokens};
use super::read::{Finding, Reader};

/// Largest configuration file, in bytes: some ten thousand sites.
pub const TEXT_BYTES_MAX: usize = 4 << 20;

/// Deepest nesting of blocks. The options need two; the KDL parser takes time that doubles with each level of
/// blocks that are commented out by `/-`.
pub const NESTING_MAX: usize = 8;

/// Reads a file's bytes, no more than are allowed and one.
pub(super) fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    read_bytes_from(File::open(path)?)
}

/// Reads no more bytes than are allowed and one.
pub(super) fn read_bytes_from(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(TEXT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The source that these bytes are. What is no UTF-8 or too long is noted.
pub(super) fn to_source(name: &str, bytes: Vec<u8>, directory: &Path, diagnostics: &mut Diagnostics) -> Arc<Source> {
    let too_long = bytes.len() > TEXT_BYTES_MAX;
    let invalid_at = std::str::from_utf8(&bytes).err().map(|error| error.valid_up_to());
    let text = if too_long { String::new() } else { String::from_utf8_lossy(&bytes).into_owned() };
    let source = Arc::new(Source { name: name.to_owned(), text, directory: directory.to_owned() });
    let mut reader = Reader { source: source.clone(), diagnostics };
    if too_long {
        let message = format!("the file is larger than {} MiB, which is the limit", TEXT_BYTES_MAX >> 20);
        let help =
            "many sites of one pattern are one site with `root \"/srv/{host}\"`; others can be split by `include`";
        reader.error(Finding::new(0..0, message, "").help(help.to_owned()));
    } else if let Some(at) = invalid_at {
        reader.error(Finding::new(at..at, "the file is not UTF-8", "from here on").help("save it as UTF-8".to_owned()));
    }
    source
}

/// Parses a text, unless it could harm the parser. What is wrong is noted.
pub(super) fn parse_document(source: &Arc<Source>, diagnostics: &mut Diagnostics) -> Option<KdlDocument> {
    let mut reader = Reader { source: source.clone(), diagnostics };
    if let Some(finding) = harmful_character(&source.text).or_else(|| nested_too_deep(&source.text)) {
        reader.error(finding);
        return None;
    }
    match KdlDocument::parse_v2(&source.text) {
        Ok(document) => Some(document),
        Err(error) => {
            for diagnostic in condense(error.diagnostics, &source.text) {
                let finding = explain(&diagnostic, &source.text);
                match diagnostic.severity {
                    miette::Severity::Error => reader.error(finding),
                    _ => reader.warning(finding),
                }
            }
            // The parser owes an explanation when it fails.
            if !reader.diagnostics.has_error() {
                reader.error(Finding::new(0..0, "the file is not KDL", ""));
            }
            None
        }
    }
}

fn harmful_character(text: &str) -> Option<Finding> {
    let (at, character) = text.char_indices().find(|(_, character)| is_harmful(*character))?;
    let message = format!("the character U+{:04X} can't be used in a configuration", character as u32);
    Some(Finding::new(at..at + character.len_utf8(), message, "this").help("is this the right file?".to_owned()))
}

fn nested_too_deep(text: &str) -> Option<Finding> {
    let mut depth = 0_usize;
    for token in tokens(text) {
        match token.kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth = depth.saturating_sub(1),
            TokenKind::BlockComment if token.nesting <= NESTING_MAX => {}
            TokenKind::BlockComment => depth = usize::MAX,
            _ => {}
        }
        if depth > NESTING_MAX {
            let message = format!("nested deeper than {NESTING_MAX} levels");
            return Some(Finding::new(token.span, message, "one too many"));
        }
    }
    None
}

/// One diagnostic a line: after the first the parser is only confused.
fn condense(mut diagnostics: Vec<KdlDiagnostic>, text: &str) -> Vec<KdlDiagnostic> {
    diagnostics.sort_by_key(|diagnostic| diagnostic.span.offset());
    let mut seen_up_to = 0;
    diagnostics.retain(|diagnostic| {
        let start = diagnostic.span.offset();
        let is_first = start >= seen_up_to;
        if is_first {
            seen_up_to =
                text.get(start..).and_then(|rest| rest.find('\n')).map_or(text.len(), |length| start + length + 1);
        }
        is_first
    });
    diagnostics
}

/// The parser's finding in the words of people who write configurations.
fn explain(diagnostic: &KdlDiagnostic, text: &str) -> Finding {
    let offset = diagnostic.span.offset().min(text.len());
    let word = word_at(text, offset);
    let written = &text[word.clone()];
    let message = diagnostic.message.clone().unwrap_or_else(|| "this is not KDL".into());
    let quoted = |message: String| Finding::new(word.clone(), message, "this").help(format!("write `\"{written}\"`"));
    let first = written.chars().next().unwrap_or(' ');
    if matches!(written, "true" | "false" | "null") {
        let switch = if written == "true" { "on" } else { "off" };
        return Finding::new(word.clone(), format!("`{written}` is not a value"), "this")
            .help(format!("write `{switch}`"));
    }
    if (first == '/' && !written.starts_with("/-") || first.is_ascii_digit() || written.contains(['{', '(', '[']))
        && !written.contains('"')
        && written.len() > 1
    {
        return quoted(format!("`{written}` needs quotes"));
    }
    if written == "}" {
        return Finding::new(word, "this `}` closes no block", "this")
            .help("take it away, or open a block before".to_owned());
    }
    if message.starts_with("No closing '}'") {
        return Finding::new(span_of(diagnostic, text), "this block is not closed", "opened here")
            .help("write `}` where it ends".to_owned());
    }
    if first == '"' && message.contains("string") {
        return Finding::new(span_of(diagnostic, text), "this text is not written right", "this")
            .help("a text ends with a quote; `\\` and `\"` in it are written `\\\\` and `\\\"`".to_owned());
    }
    Finding::new(span_of(diagnostic, text), message, "here").help(diagnostic.help.clone())
}

fn span_of(diagnostic: &KdlDiagnostic, text: &str) -> Range<usize> {
    let start = diagnostic.span.offset().min(text.len());
    let end = (start + diagnostic.span.len()).min(text.len());
    // A long span hides the place where it begins.
    let line_end = text.get(start..end).and_then(|piece| piece.find('\n')).map_or(end, |length| start + length);
    start..line_end
}

/// The word, without spaces, that an offset is in.
fn word_at(text: &str, offset: usize) -> Range<usize> {
    let is_end = |character: char| character.is_whitespace() || character == ';';
    if !text.is_char_boundary(offset) {
        return offset..offset;
    }
    let start = text[..offset].rfind(is_end).map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    let end = text[offset..].find(is_end).map_or(text.len(), |length| offset + length);
    start..end
}
