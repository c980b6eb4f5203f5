//! The canonical form of a configuration: a node a line, four spaces a block, one space between values, at most one
//! empty line. Comments stay where they are, and so do the ways in which numbers and texts are written.

use std::fmt::Write;

use super::kdl::{self, KdlDocument};
use super::lex::{Token, TokenKind, tokens};

const INDENT: &str = "    ";

/// The canonical form of a valid KDL text; `None` for what this formatter does not understand, so that it never
/// changes what a text says.
pub(crate) fn format(text: &str) -> Option<String> {
    let text = text.trim_start_matches('\u{feff}');
    let mut writer = FormatWriter::default();
    for token in tokens(text) {
        writer.write(text, &token);
    }
    let formatted = writer.finish();
    (meaning(text)? == meaning(&formatted)? && comments(text) == comments(&formatted)).then_some(formatted)
}

/// Meaning of a text, without its layout.
fn meaning(text: &str) -> Option<String> {
    let mut meaning = String::new();
    write_meaning(&kdl::parse(text).ok()?, &mut meaning);
    Some(meaning)
}

fn write_meaning(document: &KdlDocument, meaning: &mut String) {
    for node in &document.nodes {
        // Writing to a `String` never fails.
        let _ = write!(meaning, "{:?}", node.name);
        for entry in &node.entries {
            let _ = match &entry.name {
                Some(name) => write!(meaning, " {:?}={:?}", name.text, entry.value),
                None => write!(meaning, " {:?}", entry.value),
            };
        }
        if let Some(children) = &node.children {
            meaning.push('{');
            write_meaning(children, meaning);
            meaning.push('}');
        }
        meaning.push('\n');
    }
}

fn comments(text: &str) -> Vec<String> {
    tokens(text)
        .filter(|token| matches!(token.kind, TokenKind::LineComment | TokenKind::BlockComment))
        .map(|token| text[token.span].trim_end().to_owned())
        .collect()
}

#[derive(Default)]
struct FormatWriter {
    out: String,
    /// Blocks that are open.
    depth: usize,
    /// True if the next token follows the last one without a space.
    glue: bool,
    /// Newlines since the last token that isn't space.
    newlines: usize,
    /// Effect of the last token on the next.
    after: After,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum After {
    /// The file begins.
    #[default]
    Start,
    /// A value or the like: more may follow in the line.
    Value,
    /// `/-`: what it takes away follows, wherever it stands.
    Slashdash,
    /// `\`: the line goes on after the newline.
    Escline,
    /// `{`.
    Open,
    /// `}`.
    Close,
    /// `;`.
    Semicolon,
    /// `//`, which ends with the line.
    LineComment,
}

impl FormatWriter {
    fn write(&mut self, text: &str, token: &Token) {
        let written = &text[token.span.clone()];
        match token.kind {
            TokenKind::Space => {}
            TokenKind::Newline => self.newlines += 1,
            TokenKind::LineComment => {
                // A comment between `\` and the newline changes nothing.
                let is_in_escline = self.after == After::Escline && self.newlines == 0;
                self.place_comment();
                self.put(written.trim_end(), if is_in_escline { After::Escline } else { After::LineComment });
            }
            TokenKind::BlockComment => {
                self.place_comment();
                self.put(written, After::Value);
            }
            TokenKind::Semicolon if self.after == After::Escline && self.newlines == 1 => {
                self.continue_line();
                self.put(";", After::Semicolon);
            }
            TokenKind::Semicolon => {
                if !matches!(self.after, After::Start | After::Open | After::LineComment) && self.newlines == 0 {
                    self.after = After::Semicolon;
                }
            }
            TokenKind::Open => {
                self.place(true);
                self.put("{", After::Open);
                self.depth += 1;
            }
            TokenKind::Close => {
                self.depth = self.depth.saturating_sub(1);
                if self.after == After::Open {
                    self.out.push('}');
                } else {
                    self.start_line(false);
                    self.out.push('}');
                }
                (self.after, self.newlines) = (After::Close, 0);
            }
            TokenKind::Slashdash => {
                self.place(true);
                self.put(written, After::Slashdash);
                self.glue = true;
            }
            TokenKind::Escline => {
                self.place(false);
                self.put(written, After::Escline);
            }
            TokenKind::Punctuation => {
                self.glue = true;
                self.place(false);
                self.put(written, After::Value);
                self.glue = true;
            }
            TokenKind::Word => {
                self.place(false);
                self.put(written, After::Value);
            }
        }
    }

    fn put(&mut self, written: &str, after: After) {
        self.out.push_str(written);
        self.after = after;
        self.newlines = 0;
        self.glue = false;
    }

    /// Goes to the place of the next token: after the last one, or on a new line. `{`, and `/-` before a block, may
    /// follow the `}` of another block on the same line.
    fn place(&mut self, may_follow_block: bool) {
        let goes_on = match self.after {
            After::Slashdash => true,
            After::Value => self.newlines == 0,
            After::Close => may_follow_block && self.newlines == 0,
            After::Escline if self.newlines == 1 => return self.continue_line(),
            // An escaped newline continues the line over one newline, not over two.
            After::Escline => self.newlines == 0,
            After::Start | After::Open | After::Semicolon | After::LineComment => false,
        };
        match (goes_on, self.glue) {
            (true, true) => {}
            (true, false) => self.out.push(' '),
            (false, _) => self.start_line(true),
        }
    }

    /// A comment stays in the line of what it follows.
    fn place_comment(&mut self) {
        if self.newlines == 0 && !matches!(self.after, After::Start | After::LineComment) {
            self.out.push(' ');
        } else if self.after == After::Escline && self.newlines == 1 {
            self.continue_line();
        } else {
            self.start_line(true);
        }
    }

    /// Begins a line, after an empty one if there was one and it may stay.
    fn start_line(&mut self, may_be_empty: bool) {
        if self.after != After::Start {
            self.out.push('\n');
            if may_be_empty && self.newlines > 1 && self.after != After::Open {
                self.out.push('\n');
            }
        }
        self.out.push_str(&INDENT.repeat(self.depth));
    }

    /// Begins a line that belongs to the one before.
    fn continue_line(&mut self) {
        self.out.push('\n');
        self.out.push_str(&INDENT.repeat(self.depth + 1));
    }

    fn finish(mut self) -> String {
        if !self.out.is_empty() {
            self.out.push('\n');
        }
        self.out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::syntax;

    #[test]
    fn the_canonical_form() {
        let check = |text: &str, expect: &str| {
            let formatted = format(text).unwrap_or_else(|| panic!("not formatted: {text}"));
            assert_eq!(formatted, expect, "{text}");
            assert_eq!(format(&formatted).as_deref(), Some(expect), "twice: {text}");
        };
        check("", "");
        check("a", "a\n");
        check("\n\n a   1  2\n\n\n\nb\n", "a 1 2\n\nb\n");
        check("site \"a\"{root \"/\";browse}", "site \"a\" {\n    root \"/\"\n    browse\n}\n");
        check("a {\n\n  b\n\n}\nc", "a {\n    b\n}\nc\n");
        check("a {}", "a {}\n");
        check("a { }\n", "a {}\n");
        check("a {\n\n}\n", "a {}\n");
        check("a{b{c}}", "a {\n    b {\n        c\n    }\n}\n");
        check("a k = \"v\"  # \n".trim_end_matches("# \n"), "a k=\"v\"\n");
        check("// one\n\n\n// two\na // three  \n", "// one\n\n// two\na // three\n");
        check(
            "a { // first\n  // second\n b // third\n} // fourth\n",
            "a { // first\n    // second\n    b // third\n} // fourth\n",
        );
        check("a /* x\n  y */ 1\n", "a /* x\n  y */ 1\n");
        check("/- a 1\nb", "/-a 1\nb\n");
        check("a /- 1 2", "a /-1 2\n");
        check("a /- { b } { c }", "a /-{\n    b\n} {\n    c\n}\n");
        check("a 1 \\\n  2\n", "a 1 \\\n    2\n");
        check("a 1 \\ // why\n  2\n", "a 1 \\ // why\n    2\n");
        check("a \\\n;b", "a \\\n    ;\nb\n");
        check("a 1 \\\n\n\n b", "a 1 \\\n\nb\n");
        check("a;b; c\r\nd\r\n", "a\nb\nc\nd\n");
        check("a; // x\nb", "a // x\nb\n");
        check("\u{feff}a", "a\n");
        check("a \"\"\"\n  x\n  \"\"\" 2\n", "a \"\"\"\n  x\n  \"\"\" 2\n");
        check("a #\"r\"aw\"# 0x10", "a #\"r\"aw\"# 0x10\n");
    }

    proptest! {
        #[test]
        fn what_is_formatted_is_canonical_and_means_the_same(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "a", "site", "\"x y\"", "1", " ", "  ", "\n", "\n\n", ";", "{", "}", "{\n", "}\n", "// c\n", "/* d */",
                "/-", "=", "k=1", "\\\n", "\\", "#true", "\"\"\"\n q\n \"\"\"", "\t", "\r\n",
            ]), 0..40)
        ) {
            let text = pieces.concat();
            if syntax::check(&text).findings.is_empty() && kdl::parse(&text).is_ok() {
                let formatted = format(&text);
                prop_assert!(formatted.is_some(), "not formatted: {text:?}");
                prop_assert_eq!(format(formatted.as_deref().unwrap_or_default()), formatted);
            }
        }
    }
}
