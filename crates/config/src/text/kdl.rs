//! KDL 2 as a tree of nodes, from the tokens of [`super::lex`]. It takes time in proportion to the text. The depth of
//! its recursion is that of the blocks, which [`super::syntax`] limits before.

use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use super::lex::{Token, TokenKind, is_newline, tokens};
use super::syntax::{explain_word, is_number, meant_by};
use crate::diagnostic::{ConfigFinding, ConfigSource};

/// A text, or the inside of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct KdlDocument {
    pub(crate) nodes: Vec<ParsedNode>,
}

/// A name with its values, and a block if it has one.
#[derive(Clone, Debug)]
pub(crate) struct ParsedNode {
    pub(crate) name: String,
    /// Bytes of the name.
    pub(crate) span: Range<usize>,
    pub(crate) entries: Vec<KdlEntry>,
    pub(crate) children: Option<KdlDocument>,
    /// Set if the node is from a snippet, or a file that is included.
    pub(crate) origin: Option<NodeOrigin>,
}

/// Text that a node is from, and the place in the text of its block that leads there.
#[derive(Clone, Debug)]
pub(crate) struct NodeOrigin {
    pub(crate) source: Arc<ConfigSource>,
    pub(crate) used_at: Range<usize>,
}

/// An argument, or a property with its name.
#[derive(Clone, Debug)]
pub(crate) struct KdlEntry {
    pub(crate) name: Option<KdlName>,
    pub(crate) value: KdlValue,
    /// Bytes of the value, with the name of a property.
    pub(crate) span: Range<usize>,
}

/// Name of a property.
#[derive(Clone, Debug)]
pub(crate) struct KdlName {
    pub(crate) text: String,
    pub(crate) span: Range<usize>,
}

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum KdlValue {
    String(String),
    Integer(i128),
    Float(f64),
    Bool(bool),
    Null,
}

impl KdlValue {
    /// The value as in a text.
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::String(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Bool(true) => "on".into(),
            Self::Bool(false) => "off".into(),
            Self::Null => String::new(),
        }
    }

    /// The text, if it is one.
    pub(crate) fn as_string(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }
}

/// Parses a text whose words [`super::syntax::check`] accepts. A word that lacks only its quotes is read as the text
/// that its author meant.
///
/// # Errors
///
/// Findings about what is not KDL, at most one in a line.
pub(crate) fn parse(text: &str) -> Result<KdlDocument, Vec<ConfigFinding>> {
    let mut parser = KdlParser { text, tokens: tokens(text).peekable(), findings: Vec::new(), found_up_to: 0 };
    let document = parser.nodes();
    match parser.findings.is_empty() {
        true => Ok(document),
        false => Err(parser.findings),
    }
}

struct KdlParser<'t, T: Iterator<Item = Token>> {
    text: &'t str,
    tokens: Peekable<T>,
    findings: Vec<ConfigFinding>,
    /// End of the last line with a finding.
    found_up_to: usize,
}

impl<T: Iterator<Item = Token>> KdlParser<'_, T> {
    /// Nodes up to the end of the block, whose `}` stays.
    fn nodes(&mut self) -> KdlDocument {
        let mut document = KdlDocument::default();
        while let Some(Token { kind, span, .. }) = self.tokens.next_if(|token| token.kind != TokenKind::Close) {
            match kind {
                TokenKind::Word => document.nodes.push(self.node(span)),
                TokenKind::Slashdash => match self.after_slashdash(&span) {
                    Some(Token { kind: TokenKind::Word, span, .. }) => drop(self.node(span)),
                    Some(_) => self.disables_nothing(span),
                    None => {}
                },
                TokenKind::Escline => self.escaped_line(span),
                TokenKind::Open | TokenKind::Punctuation => self.find(span, "this is not the name of an option"),
                TokenKind::Close
                | TokenKind::Space
                | TokenKind::Newline
                | TokenKind::LineComment
                | TokenKind::BlockComment
                | TokenKind::Semicolon => {}
            }
        }
        document
    }

    /// A node, after its name.
    fn node(&mut self, span: Range<usize>) -> ParsedNode {
        let name = self.name(span.clone(), "this is not the name of an option");
        let mut node = ParsedNode { name, span, entries: Vec::new(), children: None, origin: None };
        let mut has_block = false;
        while let Some(Token { kind, span, .. }) = self.tokens.next_if(|token| token.kind != TokenKind::Close) {
            match kind {
                TokenKind::Space | TokenKind::LineComment | TokenKind::BlockComment => {}
                TokenKind::Newline | TokenKind::Semicolon => break,
                TokenKind::Escline => self.escaped_line(span),
                TokenKind::Word => node.entries.push(self.entry(span)),
                TokenKind::Open => {
                    has_block = true;
                    node.children = Some(self.block(span));
                }
                TokenKind::Slashdash => match self.after_slashdash(&span) {
                    // After a block, it is the next node that `/-` takes away.
                    Some(Token { kind: TokenKind::Word, span, .. }) if has_block => {
                        drop(self.node(span));
                        break;
                    }
                    Some(Token { kind: TokenKind::Word, span, .. }) => drop(self.entry(span)),
                    Some(Token { span, .. }) => {
                        has_block = true;
                        drop(self.block(span));
                    }
                    None => {}
                },
                TokenKind::Close | TokenKind::Punctuation => self.find(span, "this value has no name"),
            }
        }
        node
    }

    /// The nodes of a block, after its `{`, and its `}`.
    fn block(&mut self, span: Range<usize>) -> KdlDocument {
        let document = self.nodes();
        if self.tokens.next_if(|token| token.kind == TokenKind::Close).is_none() {
            self.find(span, "this block is not closed");
        }
        document
    }

    /// An argument or property, after its first word.
    fn entry(&mut self, span: Range<usize>) -> KdlEntry {
        self.skip_space();
        let is_equals = |token: &Token| token.kind == TokenKind::Punctuation && &self.text[token.span.clone()] == "=";
        let Some(equals) = self.tokens.next_if(is_equals) else {
            return KdlEntry { name: None, value: self.value(span.clone()), span };
        };
        let text = self.name(span.clone(), "this is not the name of a property");
        self.skip_space();
        let (value, end) = match self.tokens.next_if(|token| token.kind == TokenKind::Word) {
            Some(word) => (self.value(word.span.clone()), word.span.end),
            None => {
                self.find(equals.span.clone(), "a value must follow this");
                (KdlValue::Null, equals.span.end)
            }
        };
        KdlEntry { span: span.start..end, value, name: Some(KdlName { text, span }) }
    }

    /// The token that `/-` takes away with what belongs to it. Notes if there is none.
    fn after_slashdash(&mut self, span: &Range<usize>) -> Option<Token> {
        loop {
            self.skip_space();
            if self.tokens.next_if(|token| matches!(token.kind, TokenKind::Newline | TokenKind::LineComment)).is_none()
            {
                break;
            }
        }
        let next = self.tokens.next_if(|token| matches!(token.kind, TokenKind::Word | TokenKind::Open));
        if next.is_none() {
            self.disables_nothing(span.clone());
        }
        next
    }

    fn disables_nothing(&mut self, span: Range<usize>) {
        self.note(ConfigFinding::new(span, "this disables nothing", "an option or value must follow `/-`"));
    }

    /// Space within a line, which `\` continues on the next.
    fn skip_space(&mut self) {
        let is_space =
            |token: &Token| matches!(token.kind, TokenKind::Space | TokenKind::BlockComment | TokenKind::Escline);
        while let Some(token) = self.tokens.next_if(is_space) {
            if token.kind == TokenKind::Escline {
                self.escaped_line(token.span);
            }
        }
    }

    /// The rest of a line after `\`.
    fn escaped_line(&mut self, span: Range<usize>) {
        let is_rest =
            |token: &Token| matches!(token.kind, TokenKind::Space | TokenKind::BlockComment | TokenKind::LineComment);
        while self.tokens.next_if(is_rest).is_some() {}
        let is_end = self.tokens.next_if(|token| token.kind == TokenKind::Newline).is_some();
        if !is_end && self.tokens.peek().is_some() {
            self.find(span, "`\\` must be at the end of a line");
        }
    }

    fn name(&mut self, span: Range<usize>, message: &'static str) -> String {
        match self.value(span.clone()) {
            KdlValue::String(text) => text,
            _ => {
                self.find(span, message);
                String::new()
            }
        }
    }

    fn value(&mut self, span: Range<usize>) -> KdlValue {
        let word = &self.text[span.clone()];
        if explain_word(word).is_some() {
            return meant_by(word).map_or(KdlValue::Null, KdlValue::String);
        }
        if word.trim_start_matches('#').starts_with('"') {
            return string(word).map(KdlValue::String).unwrap_or_else(|| {
                let first_line = word.find('\n').unwrap_or(word.len());
                let help = "in a text, write `\\` and `\"` as `\\\\` and `\\\"`".to_owned();
                let span = span.start..span.start + first_line;
                self.note(ConfigFinding::new(span, "this text is not valid", "this").help(help));
                KdlValue::Null
            });
        }
        match word {
            "#true" => KdlValue::Bool(true),
            "#false" => KdlValue::Bool(false),
            "#null" => KdlValue::Null,
            "#inf" => KdlValue::Float(f64::INFINITY),
            "#-inf" => KdlValue::Float(f64::NEG_INFINITY),
            "#nan" => KdlValue::Float(f64::NAN),
            _ if is_number(word) => number(word).unwrap_or_else(|| {
                self.find(span, "this number is too large");
                KdlValue::Null
            }),
            _ => KdlValue::String(word.to_owned()),
        }
    }

    fn find(&mut self, span: Range<usize>, message: &'static str) {
        self.note(ConfigFinding::new(span, message, "here"));
    }

    /// Notes a finding, if it is the first of its line: what follows is often a consequence.
    fn note(&mut self, finding: ConfigFinding) {
        let start = finding.span.start;
        if start >= self.found_up_to {
            self.found_up_to = self.text[start..].find('\n').map_or(self.text.len(), |length| start + length + 1);
            self.findings.push(finding);
        }
    }
}

/// KDL 2, "Number"; `None` if it does not fit.
fn number(word: &str) -> Option<KdlValue> {
    let digits = word.replace('_', "");
    let (sign, unsigned) = match digits.strip_prefix(['+', '-']) {
        Some(unsigned) => (&digits[..1], unsigned),
        None => ("", digits.as_str()),
    };
    let radix = unsigned.split_at_checked(2).and_then(|(prefix, rest)| match prefix {
        "0x" => Some((16, rest)),
        "0o" => Some((8, rest)),
        "0b" => Some((2, rest)),
        _ => None,
    });
    match radix {
        Some((radix, rest)) => i128::from_str_radix(&format!("{sign}{rest}"), radix).ok().map(KdlValue::Integer),
        None if unsigned.contains(['.', 'e', 'E']) => digits.parse().ok().map(KdlValue::Float),
        None => digits.parse().ok().map(KdlValue::Integer),
    }
}

/// A text in quotes that is closed (KDL 2, "Quoted String", "Multi-line String", "Raw String"); `None` if its inside is
/// not valid.
fn string(word: &str) -> Option<String> {
    let hashes = word.len() - word.trim_start_matches('#').len();
    let quoted = &word[hashes..word.len() - hashes];
    let is_raw = hashes > 0;
    if let Some(inside) = quoted.strip_prefix("\"\"\"").and_then(|rest| rest.strip_suffix("\"\"\"")) {
        return lines(inside, is_raw);
    }
    let inside = quoted.strip_prefix('"')?.strip_suffix('"')?;
    match is_raw {
        true => (!inside.contains(is_newline)).then(|| inside.to_owned()),
        false => unescape(inside, false),
    }
}

/// The lines between `"""`, without the indentation of the last.
fn lines(inside: &str, is_raw: bool) -> Option<String> {
    let inside = inside.replace("\r\n", "\n");
    let inside = inside.strip_prefix(is_newline)?;
    let joined = if is_raw { inside.to_owned() } else { join_escaped_lines(inside) };
    let (before, indentation) = match joined.rfind(is_newline) {
        Some(at) => (Some(&joined[..at]), joined[at..].trim_start_matches(is_newline)),
        None => (None, joined.as_str()),
    };
    if !indentation.chars().all(char::is_whitespace) {
        return None;
    }
    let without_indentation = |line: &str| match line.chars().all(char::is_whitespace) {
        true => Some(String::new()),
        false => line.strip_prefix(indentation).map(str::to_owned),
    };
    let lines = before.into_iter().flat_map(|before| before.split(is_newline));
    let text = lines.map(without_indentation).collect::<Option<Vec<_>>>()?.join("\n");
    if is_raw { Some(text) } else { unescape(&text, true) }
}

/// Takes `\` with the white space after it out, and leaves other escapes.
fn join_escaped_lines(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        joined.push_str(before);
        let unspaced = after.trim_start();
        if unspaced.len() < after.len() {
            rest = unspaced;
            continue;
        }
        let escaped = after.chars().next().map_or(0, char::len_utf8);
        joined.push('\\');
        joined.push_str(&after[..escaped]);
        rest = &after[escaped..];
    }
    joined.push_str(rest);
    joined
}

/// KDL 2, "Escapes".
fn unescape(inside: &str, has_lines: bool) -> Option<String> {
    let mut text = String::with_capacity(inside.len());
    let mut rest = inside;
    loop {
        let (before, after) = rest.split_once('\\').map_or((rest, None), |(before, after)| (before, Some(after)));
        if !has_lines && before.contains(is_newline) {
            return None;
        }
        text.push_str(before);
        let Some(after) = after else { return Some(text) };
        let escape = after.chars().next()?;
        rest = &after[escape.len_utf8()..];
        match escape {
            'n' => text.push('\n'),
            'r' => text.push('\r'),
            't' => text.push('\t'),
            '\\' | '"' => text.push(escape),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            's' => text.push(' '),
            'u' => {
                let (digits, after) = rest.strip_prefix('{')?.split_once('}')?;
                let is_code = (1..=6).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                text.push(char::from_u32(u32::from_str_radix(digits, 16).ok().filter(|_| is_code)?)?);
                rest = after;
            }
            _ if escape.is_whitespace() => rest = rest.trim_start(),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::syntax::check;

    /// Nodes in a form that tells kinds of values apart.
    fn written(document: &KdlDocument) -> String {
        let entry = |entry: &KdlEntry| {
            let name = entry.name.as_ref().map_or(String::new(), |name| format!("{:?}{:?}=", name.text, name.span));
            format!(" {name}{:?}{:?}", entry.value, entry.span)
        };
        let node = |node: &ParsedNode| {
            let entries: String = node.entries.iter().map(entry).collect();
            let children = node.children.as_ref().map_or(String::new(), |inner| format!(" {{{}}}", written(inner)));
            format!("{:?}{:?}{entries}{children};", node.name, node.span)
        };
        document.nodes.iter().map(node).collect()
    }

    /// As [`written`], of the KDL project's own parser.
    fn written_by_judge(document: &kdl::KdlDocument) -> String {
        let range = |span: miette::SourceSpan| span.offset()..span.offset() + span.len();
        let entry = |entry: &kdl::KdlEntry| {
            let name =
                entry.name().map_or(String::new(), |name| format!("{:?}{:?}=", name.value(), range(name.span())));
            format!(" {name}{:?}{:?}", entry.value(), range(entry.span()))
        };
        let node = |node: &kdl::KdlNode| {
            let entries: String = node.entries().iter().map(entry).collect();
            let children = node.children().map_or(String::new(), |inner| format!(" {{{}}}", written_by_judge(inner)));
            format!("{:?}{:?}{entries}{children};", node.name().value(), range(node.name().span()))
        };
        document.nodes().iter().map(node).collect()
    }

    #[test]
    fn nodes_and_values() {
        let check = |text: &str, expect: &str| {
            let parsed = parse(text).unwrap_or_else(|findings| panic!("{text}: {}", findings[0].message));
            let parsed = written(&parsed);
            let without_spans = regex::Regex::new(r"\d+\.\.\d+").unwrap().replace_all(&parsed, "").into_owned();
            assert_eq!(without_spans, expect, "{text}");
            let judged = kdl::KdlDocument::parse_v2(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
            assert_eq!(parsed, written_by_judge(&judged), "{text}");
        };
        check("", "");
        check("a", "\"a\";");
        check("a 1 -0x1f 0o17 +0b11 1_000", "\"a\" Integer(1) Integer(-31) Integer(15) Integer(3) Integer(1000);");
        check(
            "a 1.5 1e3 -2_0.5E-1 #inf #-inf #nan",
            "\"a\" Float(1.5) Float(1000.0) Float(-2.05) Float(inf) Float(-inf) Float(NaN);",
        );
        check("a #true #false #null b -", "\"a\" Bool(true) Bool(false) Null String(\"b\") String(\"-\");");
        check(
            "a k=1 \"l\" = b #\"m\"# /* c */ = \\ // d\n 2",
            "\"a\" \"k\"=Integer(1) \"l\"=String(\"b\") \"m\"=Integer(2);",
        );
        check("a { b; c 1\n d {}\n}\ne{f}", "\"a\" {\"b\";\"c\" Integer(1);\"d\" {};};\"e\" {\"f\";};");
        check("/-a { b }\nc /-1 2 /- k=3\n/-\nd\ne /-{ f } { g } /-{ h }", "\"c\" Integer(2);\"e\" {\"g\";};");
        check("a {} /-b", "\"a\" {};");
        check("a \\\n 1 \\ // b\n 2", "\"a\" Integer(1) Integer(2);");
        check("a \"\\n\\r\\t\\\\\\\"\\b\\f\\s\\u{e9}\\  \n b\"", "\"a\" String(\"\\n\\r\\t\\\\\\\"\\u{8}\\u{c} éb\");");
        check("a #\"b\\\"# ##\"c\"#d\"##", "\"a\" String(\"b\\\\\") String(\"c\\\"#d\");");
        check("a \"\"\"\n  b\n\n    \"c\"\n  \"\"\"", "\"a\" String(\"b\\n\\n  \\\"c\\\"\");");
        check("a \"\"\"\r\n\tb\\\n   c\r\n\t\"\"\"", "\"a\" String(\"bc\");");
        check("a #\"\"\"\n b\\n\n \"\"\"#", "\"a\" String(\"b\\\\n\");");
        check("a \"\"\"\n\"\"\"", "\"a\" String(\"\");");
        check("\"a b\" \"{\" // }\n", "\"a b\" String(\"{\");");
        check("a \"é\" k=\"ü\"; ä", "\"a\" String(\"é\") \"k\"=String(\"ü\");\"ä\";");
    }

    #[test]
    fn what_is_no_kdl_is_told() {
        let check = |text: &str, expect: &[&str]| {
            let found = parse(text).err().unwrap_or_default();
            let messages: Vec<_> = found.iter().map(|finding| finding.message.as_str()).collect();
            assert_eq!(messages, expect, "{text}");
            assert!(kdl::KdlDocument::parse_v2(text).is_err(), "{text}");
        };
        check("a \"b\nc\"\nd \"e\nf\"", &["this text is not valid", "this text is not valid"]);
        check("a {", &["this block is not closed"]);
        check("a \"\"\"b\"\"\"", &["this text is not valid"]);
        check("a \"\"\"\n  b\n c\n  \"\"\"", &["this text is not valid"]);
        check("a \"\"\"\n  b \"\"\"", &["this text is not valid"]);
        check("1 a", &["this is not the name of an option"]);
        check("a 1=2", &["this is not the name of a property"]);
        check("a=1", &["this value has no name"]);
        check("a b=\n", &["a value must follow this"]);
        check("a { b c= }", &["a value must follow this"]);
        check("a { /- }\nb /-;", &["this disables nothing", "this disables nothing"]);
        check("a \\ {}", &["`\\` must be at the end of a line"]);
        check(&format!("a {}", "9".repeat(40)), &["this number is too large"]);
    }

    #[test]
    fn nested_blocks_take_time_in_proportion() {
        // Each level that `/-` takes away doubles the time of a parser that goes back.
        let text = "/-a { ".repeat(200) + &"}".repeat(200);
        assert!(parse(&text).is_ok_and(|document| document.nodes.is_empty()));
    }

    proptest! {
        /// A text that the KDL project's parser reads is read as the same, with the same spans.
        #[test]
        fn is_read_as_by_the_judge(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "a", "site", "\"x y\"", "1", "-1.5e3", "0x_f", " ", " ", "\n", "\n", ";", "{", "}", " {\n", "}\n", "// c\n",
                "/*d*/", "/-", "=", "k=1", "k=", " \\\n", "\\", "#true", "#null", "\"\"\"\n q\n \"\"\"", "#\"r\"#", "\r\n",
                "\"\\\n b\"", "\"\\u{41}\"", "é", "\t", "-", ".b",
            ]), 1..24)
        ) {
            let text = pieces.concat();
            // The judge takes time that doubles with each level.
            prop_assume!(text.matches('{').count() <= 4);
            if check(&text).findings.is_empty() && let Ok(judged) = kdl::KdlDocument::parse_v2(&text) {
                let parsed = parse(&text);
                let parsed = parsed.map(|document| written(&document)).map_err(|findings| findings[0].message.clone());
                prop_assert_eq!(parsed, Ok(written_by_judge(&judged)), "{:?}", text);
            }
        }
    }
}
