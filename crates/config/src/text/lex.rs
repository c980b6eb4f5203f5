//! KDL 2 as a sequence of tokens that together are the whole text: enough to format it and to count its nesting.
//! Any text has tokens; whether they are valid KDL is the parser's business.

use std::ops::Range;

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    /// Byte range in the text.
    pub(crate) span: Range<usize>,
    /// Deepest nesting of a block comment; else 0.
    pub(crate) nesting: usize,
}

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// White space within a line.
    Space,
    /// The end of a line.
    Newline,
    /// `//` to the end of the line, which is not part of it.
    LineComment,
    /// `/*` to `*/`.
    BlockComment,
    /// `/-`.
    Slashdash,
    /// `\`, which continues the line.
    Escline,
    /// `{`.
    Open,
    /// `}`.
    Close,
    /// `;`.
    Semicolon,
    /// `=`, `(` or `)`.
    Punctuation,
    /// A name, number, keyword or string.
    Word,
}

/// The tokens of a text.
pub(crate) fn tokens(text: &str) -> impl Iterator<Item = Token> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let (kind, length, nesting) = first_token(rest);
        let token = Token { kind, span: at..at + length, nesting };
        at += length;
        Some(token)
    })
}

/// Newlines (KDL 2, "Newline").
pub(crate) fn is_newline(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\u{85}' | '\u{0b}' | '\u{0c}' | '\u{2028}' | '\u{2029}')
}

/// White space within a line (KDL 2, "Whitespace"), and the byte order mark.
fn is_space(character: char) -> bool {
    !is_newline(character) && (character.is_whitespace() || character == '\u{feff}')
}

fn first_token(rest: &str) -> (TokenKind, usize, usize) {
    let run = |is_part: fn(char) -> bool| rest.find(|character| !is_part(character)).unwrap_or(rest.len());
    let first = rest.chars().next().unwrap_or_default();
    match first {
        '\r' if rest.starts_with("\r\n") => (TokenKind::Newline, 2, 0),
        _ if is_newline(first) => (TokenKind::Newline, first.len_utf8(), 0),
        _ if is_space(first) => (TokenKind::Space, run(is_space), 0),
        '{' => (TokenKind::Open, 1, 0),
        '}' => (TokenKind::Close, 1, 0),
        ';' => (TokenKind::Semicolon, 1, 0),
        '=' | '(' | ')' => (TokenKind::Punctuation, 1, 0),
        '\\' => (TokenKind::Escline, 1, 0),
        '"' => (TokenKind::Word, string_length(rest), 0),
        '#' => (TokenKind::Word, raw_string_length(rest).unwrap_or_else(|| word_length(rest)), 0),
        '/' if rest.starts_with("//") => (TokenKind::LineComment, run(|character| !is_newline(character)), 0),
        '/' if rest.starts_with("/*") => {
            let (length, nesting) = block_comment(rest);
            (TokenKind::BlockComment, length, nesting)
        }
        '/' if rest.starts_with("/-") => (TokenKind::Slashdash, 2, 0),
        _ => (TokenKind::Word, word_length(rest), 0),
    }
}

/// Length of a bare word, at least one character. A slash is part of it, as in paths without quotes, but not where a
/// comment begins. `http://a` is a word, too: in KDL a comment begins there, but people mean a URL that needs quotes.
fn word_length(rest: &str) -> usize {
    let is_end = |at: usize, character: char| {
        is_newline(character)
            || is_space(character)
            || matches!(character, '{' | '}' | ';' | '=' | '(' | ')' | '\\' | '"')
            || (rest[at..].starts_with("//") && !is_in_url(rest, at))
            || rest[at..].starts_with("/*")
    };
    rest.char_indices().skip(1).find(|(at, character)| is_end(*at, *character)).map_or(rest.len(), |(at, _)| at)
}

/// Returns `true` if the two slashes at this place follow a scheme and begin a host.
fn is_in_url(word: &str, at: usize) -> bool {
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    word[..at].strip_suffix(':').is_some_and(is_scheme)
        && word[at + 2..].starts_with(|first: char| first.is_alphanumeric() || matches!(first, '[' | '$'))
}

/// Length of a quoted string, of one or of several lines, to the end of the text if it isn't closed.
fn string_length(rest: &str) -> usize {
    let quotes = if rest.starts_with("\"\"\"") { "\"\"\"" } else { "\"" };
    let mut at = quotes.len();
    loop {
        match rest[at..].find(['"', '\\']).map(|length| at + length) {
            None => return rest.len(),
            Some(found) if rest[found..].starts_with('\\') => {
                at = found + 1 + rest[found + 1..].chars().next().map_or(0, char::len_utf8);
            }
            Some(found) if rest[found..].starts_with(quotes) => return found + quotes.len(),
            Some(found) => at = found + 1,
        }
    }
}

/// Length of a raw string, `#"..."#` with any number of `#`; `None` if it is none.
fn raw_string_length(rest: &str) -> Option<usize> {
    let hashes = rest.bytes().take_while(|&byte| byte == b'#').count();
    let quotes = match &rest[hashes..] {
        tail if tail.starts_with("\"\"\"") => "\"\"\"",
        tail if tail.starts_with('"') => "\"",
        _ => return None,
    };
    let end = format!("{quotes}{}", &rest[..hashes]);
    let start = hashes + quotes.len();
    Some(rest[start..].find(&end).map_or(rest.len(), |length| start + length + end.len()))
}

/// Length of a block comment, which may have others within, and how deep they go.
fn block_comment(rest: &str) -> (usize, usize) {
    let (mut at, mut depth, mut deepest) = (2, 1_usize, 1);
    while depth > 0 {
        let Some(found) = rest[at..].find(['*', '/']).map(|length| at + length) else { return (rest.len(), deepest) };
        match &rest[found..] {
            tail if tail.starts_with("*/") => (at, depth) = (found + 2, depth - 1),
            tail if tail.starts_with("/*") => (at, depth) = (found + 2, depth + 1),
            _ => at = found + 1,
        }
        deepest = deepest.max(depth);
    }
    (at, deepest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_the_whole_text() {
        let check = |text: &str, expect: &[(TokenKind, &str)]| {
            let found: Vec<_> = tokens(text).map(|token| (token.kind, &text[token.span])).collect();
            assert_eq!(found, expect, "{text}");
        };
        use TokenKind::*;
        check("", &[]);
        check("a 1", &[(Word, "a"), (Space, " "), (Word, "1")]);
        check("a{b;}\r\n", &[(Word, "a"), (Open, "{"), (Word, "b"), (Semicolon, ";"), (Close, "}"), (Newline, "\r\n")]);
        check(
            "k=\"v\\\"{\" // c {\n",
            &[
                (Word, "k"),
                (Punctuation, "="),
                (Word, "\"v\\\"{\""),
                (Space, " "),
                (LineComment, "// c {"),
                (Newline, "\n"),
            ],
        );
        check("/* a /* b */ { */x", &[(BlockComment, "/* a /* b */ { */"), (Word, "x")]);
        check("#\"a\"b\"#;", &[(Word, "#\"a\"b\"#"), (Semicolon, ";")]);
        check("#true", &[(Word, "#true")]);
        check("\"\"\"\n a \" \"\n \"\"\" b", &[(Word, "\"\"\"\n a \" \"\n \"\"\""), (Space, " "), (Word, "b")]);
        check(
            "/-a \\\n b",
            &[
                (Slashdash, "/-"),
                (Word, "a"),
                (Space, " "),
                (Escline, "\\"),
                (Newline, "\n"),
                (Space, " "),
                (Word, "b"),
            ],
        );
        check("\"open {", &[(Word, "\"open {")]);
        check("/* open {", &[(BlockComment, "/* open {")]);
        check("/", &[(Word, "/")]);
        check("a http://b:1 {", &[(Word, "a"), (Space, " "), (Word, "http://b:1"), (Space, " "), (Open, "{")]);
        check("a:// b", &[(Word, "a:"), (LineComment, "// b")]);
        check("a//b", &[(Word, "a"), (LineComment, "//b")]);
    }
}
