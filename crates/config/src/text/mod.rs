//! From a file to a KDL document: what is checked before the options are looked at.

pub(crate) mod files;
pub(crate) mod format;
pub(crate) mod kdl;
pub(crate) mod lex;
pub(crate) mod syntax;

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crate::diagnostic::{ConfigFinding, ConfigSource, Diagnostics, is_harmful};
use crate::regular_file::open_regular;
use kdl::KdlDocument;
use lex::{TokenKind, tokens};
use syntax::CheckedSyntax;

/// Largest configuration file, in bytes: some ten thousand sites. Like the other limits of
/// configurations it is no option: only the text that it is for could set it.
pub const TEXT_BYTES_MAX: usize = 4 << 20;

/// Reads a file's bytes, no more than are allowed and one.
pub(crate) fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    read_bytes_from(open_regular(path)?)
}

/// Reads no more bytes than are allowed and one.
pub(crate) fn read_bytes_from(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(TEXT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The source that these bytes are. What is no UTF-8 or too long is noted.
pub(crate) fn to_source(
    name: &str,
    bytes: Vec<u8>,
    directory: &Path,
    diagnostics: &mut Diagnostics,
) -> Arc<ConfigSource> {
    let too_long = bytes.len() > TEXT_BYTES_MAX;
    let invalid_at = std::str::from_utf8(&bytes).err().map(|error| error.valid_up_to());
    let text = if too_long { String::new() } else { String::from_utf8_lossy(&bytes).into_owned() };
    let source = Arc::new(ConfigSource { name: name.to_owned(), text, directory: directory.to_owned() });
    if too_long {
        let message = format!("the file is larger than {} MiB, which is the limit", TEXT_BYTES_MAX >> 20);
        let help =
            "many sites of one pattern are one site with `root \"/srv/{host}\"`; others can be split by `include`";
        diagnostics.error(&source, ConfigFinding::new(0..0, message, "").help(help.to_owned()));
    } else if let Some(at) = invalid_at {
        diagnostics.error(
            &source,
            ConfigFinding::new(at..at, "the file is not UTF-8", "from here on").help("save it as UTF-8".to_owned()),
        );
    }
    source
}

/// The source without its sites: to read thousands of them takes a while. What only looks like one stays.
pub(crate) fn without_sites(source: &ConfigSource) -> Arc<ConfigSource> {
    let mut text = String::new();
    let (mut kept_up_to, mut depth) = (0, 0_usize);
    // Where the site begins that is being passed over; whether a statement could begin, and whether a line goes on.
    let (mut site, mut is_start, mut goes_on) = (None, true, false);
    for token in tokens(&source.text) {
        match token.kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth = depth.saturating_sub(1),
            TokenKind::Escline => goes_on = true,
            TokenKind::Word if depth == 0 && is_start && &source.text[token.span.clone()] == "site" => {
                site = Some(token.span.start);
            }
            _ => {}
        }
        let is_end = depth == 0
            && match token.kind {
                TokenKind::Newline => !std::mem::take(&mut goes_on),
                kind => matches!(kind, TokenKind::Semicolon | TokenKind::Close),
            };
        if is_end && let Some(start) = site.take() {
            text.push_str(&source.text[kept_up_to..start]);
            kept_up_to = token.span.end;
        }
        let is_between = matches!(token.kind, TokenKind::Space | TokenKind::LineComment | TokenKind::BlockComment);
        is_start = is_end || is_start && is_between;
    }
    // One without an end goes on to that of the text.
    text.push_str(&source.text[kept_up_to..site.unwrap_or(source.text.len()).max(kept_up_to)]);
    Arc::new(ConfigSource { name: source.name.clone(), text, directory: source.directory.clone() })
}

/// Parses a text. What is wrong is noted. Words without the quotes that they need are taken
/// for texts, so that whatever else is wrong is found as well.
pub(crate) fn parse_document(source: &Arc<ConfigSource>, diagnostics: &mut Diagnostics) -> Option<KdlDocument> {
    if let Some(finding) = harmful_character(&source.text) {
        diagnostics.error(source, finding);
        return None;
    }
    let CheckedSyntax { findings, is_readable } = syntax::check(&source.text);
    let has_findings = !findings.is_empty();
    findings.into_iter().for_each(|finding| diagnostics.error(source, finding));
    if !is_readable {
        return None;
    }
    match kdl::parse(&source.text) {
        Ok(document) => Some(document),
        Err(findings) => {
            // Words that lack their quotes are reported; other mistakes may follow from them.
            findings.into_iter().filter(|_| !has_findings).for_each(|finding| diagnostics.error(source, finding));
            None
        }
    }
}

fn harmful_character(text: &str) -> Option<ConfigFinding> {
    let (at, character) = text.char_indices().find(|(_, character)| is_harmful(*character))?;
    let message = format!("the character U+{:04X} cannot be used in a configuration", character as u32);
    Some(ConfigFinding::new(at..at + character.len_utf8(), message, "this").help("is this the right file?".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_without_sites() {
        let check = |text: &str, expect: &str| {
            let source = ConfigSource { name: String::new(), text: text.to_owned(), directory: "/".into() };
            assert_eq!(without_sites(&source).text, expect, "{text}");
        };
        check("", "");
        check("server { workers 1 }\n", "server { workers 1 }\n");
        check("site { root \"/\" }\nserver { workers 1 }\n", "\nserver { workers 1 }\n");
        check("site \"a\" {\n root \"}\"\n files \"/b\" { browse }\n}; server {}", "; server {}");
        check("a; site \"a\" \\\n \"b\" { root \"/\" } // c\nsite {}\nb", "a;  // c\n\nb");
        check("/* site { */ site /* { */ {}\nb", "/* site { */ \nb");
        check("site \"without a block\"\nb", "b");
        // A part of something else, a comment, or another node of this name.
        for text in ["server { site {} }", "/-site {}", "a site {}", "(a)site {}", "\"site\" {}", "sites {}"] {
            check(text, text);
        }
        check("server {}\nsite { root", "server {}\n");
    }
}
