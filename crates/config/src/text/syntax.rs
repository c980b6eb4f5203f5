//! Checks tokens of a text for common mistakes in KDL, with messages for people, and limits their nesting.

use std::ops::Range;

use super::lex::{Token, TokenKind, tokens};
use crate::diagnostic::{ConfigFinding, Diagnostics};
use crate::value::meant_size;

/// Deepest nesting of blocks, and of comments. The options need two.
pub const NESTING_MAX: usize = 8;

/// Longest name, number or keyword, in bytes.
const WORD_BYTES_MAX: usize = 256;

/// Findings in a text.
pub(crate) struct CheckedSyntax {
    /// The mistakes: of those that leave a line in doubt the first of the line, and all words that are none.
    pub(crate) findings: Vec<ConfigFinding>,
    /// True if there are no mistakes except words whose meaning is clear, so that the text can be parsed.
    pub(crate) is_readable: bool,
}

/// The mistakes in a text. That it is one of nginx is the only one then.
pub(crate) fn check(text: &str) -> CheckedSyntax {
    let mut found = check_tokens(text);
    if !found.findings.is_empty()
        && let Some(span) = nginx_line(text)
    {
        let finding = ConfigFinding::new(span, "this is nginx syntax", "a line of nginx");
        let help = "`tailcoat import FILE` translates a configuration of nginx".to_owned();
        found = CheckedSyntax { findings: vec![finding.help(help)], is_readable: false };
    }
    found
}

/// A line that only a configuration of nginx has.
fn nginx_line(text: &str) -> Option<Range<usize>> {
    const BLOCKS: [&str; 5] = ["location /", "location = /", "location ~", "location ^~", "location @"];
    const LINES: [&str; 4] = ["server_name ", "proxy_pass ", "fastcgi_pass ", "try_files "];
    text.lines().find_map(|line| {
        let line = line.trim();
        let starts = |names: &[&str]| names.iter().any(|name| line.starts_with(name));
        let is_nginx = (line.contains('{') && starts(&BLOCKS)) || (line.ends_with(';') && starts(&LINES));
        let start = line.as_ptr() as usize - text.as_ptr() as usize;
        is_nginx.then_some(start..start + line.len())
    })
}

fn check_tokens(text: &str) -> CheckedSyntax {
    let mut checker = SyntaxChecker {
        text,
        findings: Vec::new(),
        is_readable: true,
        found_up_to: 0,
        blocks: Vec::new(),
        state: StatementState::Start,
        words: 0,
    };
    for token in tokens(text) {
        checker.check(&token);
        if checker.findings.len() > Diagnostics::LIST_MAX || checker.blocks.len() > NESTING_MAX {
            return CheckedSyntax { findings: checker.findings, is_readable: false };
        }
    }
    checker.finish()
}

struct SyntaxChecker<'a> {
    text: &'a str,
    findings: Vec<ConfigFinding>,
    is_readable: bool,
    /// End of the last line with a finding.
    found_up_to: usize,
    /// Spans of open blocks, and `true` if `/-` disables them.
    blocks: Vec<(Range<usize>, bool)>,
    state: StatementState,
    /// Names and values of the statement so far.
    words: usize,
}

/// State within a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StatementState {
    /// Nothing.
    Start,
    /// A name or value that ends here.
    Word(usize),
    /// A name or value, and space.
    Space,
    /// `name=`.
    Equals,
    /// `/-`, before the name of an option or within one.
    Slashdash { at_start: bool },
    /// `\`.
    Escline,
    /// A block. Another may follow one that `/-` takes away.
    Block { is_away: bool },
}

impl SyntaxChecker<'_> {
    fn check(&mut self, token: &Token) {
        let span = token.span.clone();
        match token.kind {
            TokenKind::Space => self.on_space(),
            TokenKind::Newline => self.on_newline(),
            TokenKind::LineComment => {}
            TokenKind::BlockComment => self.on_block_comment(token),
            TokenKind::Semicolon => self.state = StatementState::Start,
            TokenKind::Open => self.on_open(span),
            TokenKind::Close => self.on_close(span),
            TokenKind::Slashdash => {
                if matches!(self.state, StatementState::Slashdash { .. } | StatementState::Equals) {
                    self.find(ConfigFinding::new(span, "this disables nothing", "an option or value must follow `/-`"));
                }
                self.state = StatementState::Slashdash { at_start: self.state == StatementState::Start };
            }
            // A disabled part may stand on the next line; another `/-` there is still one too many.
            TokenKind::Escline if matches!(self.state, StatementState::Slashdash { .. }) => {}
            TokenKind::Escline => self.state = StatementState::Escline,
            TokenKind::Punctuation => self.on_punctuation(span),
            TokenKind::Word => self.on_word(span),
        }
    }

    fn on_space(&mut self) {
        if matches!(self.state, StatementState::Word(_)) {
            self.state = StatementState::Space;
        }
    }

    fn on_newline(&mut self) {
        self.state = match self.state {
            StatementState::Escline => StatementState::Space,
            StatementState::Slashdash { at_start } => StatementState::Slashdash { at_start },
            _ => StatementState::Start,
        };
    }

    fn on_block_comment(&mut self, token: &Token) {
        let opening = token.span.start..token.span.start + 2;
        if token.nesting > NESTING_MAX {
            self.find(ConfigFinding::new(
                opening,
                format!("nested deeper than {NESTING_MAX} levels"),
                "comments in here",
            ));
        } else if !self.text[token.span.clone()].ends_with("*/") || token.span.len() < 4 {
            let finding = ConfigFinding::new(opening, "this comment is not closed", "opened here");
            self.find(finding.help("write `*/` where it ends".to_owned()));
        }
        self.on_space();
    }

    fn on_open(&mut self, span: Range<usize>) {
        let is_away = matches!(self.state, StatementState::Slashdash { at_start: false });
        match self.state {
            StatementState::Start | StatementState::Slashdash { at_start: true } => {
                let finding = ConfigFinding::new(span.clone(), "this block has no name before it", "opened here");
                self.find(finding.help("write the name and its `{` on one line".to_owned()));
            }
            StatementState::Block { is_away: false } => {
                self.find(ConfigFinding::new(span.clone(), "an option has only one block", "a second one"));
            }
            _ => {}
        }
        self.blocks.push((span.clone(), is_away));
        if self.blocks.len() > NESTING_MAX {
            self.find(ConfigFinding::new(span, format!("nested deeper than {NESTING_MAX} levels"), "one too many"));
        }
        self.state = StatementState::Start;
    }

    fn on_close(&mut self, span: Range<usize>) {
        match self.blocks.pop() {
            Some((_, is_away)) => self.state = StatementState::Block { is_away },
            None => {
                let finding = ConfigFinding::new(span, "this `}` closes no block", "this");
                self.find(finding.help("remove it, or open a block before it".to_owned()));
                self.state = StatementState::Start;
            }
        }
    }

    fn on_punctuation(&mut self, span: Range<usize>) {
        if &self.text[span.clone()] != "=" {
            return self.find(
                ConfigFinding::new(span, "type annotations are not supported", "this").help("remove it".to_owned()),
            );
        }
        if !matches!(self.state, StatementState::Word(_) | StatementState::Space) {
            let finding = ConfigFinding::new(span, "this value has no name", "no name before it");
            return self.find(finding.help("write a property as `name=value`".to_owned()));
        }
        if let Some(finding) = self.assignment(&span) {
            self.find(finding);
        }
        self.state = StatementState::Equals;
    }

    /// Finding about `listen = 8080`: only the name of the option precedes the sign.
    fn assignment(&self, equals: &Range<usize>) -> Option<ConfigFinding> {
        if self.words != 1 {
            return None;
        }
        let name = self.text[..equals.start].split_whitespace().next_back().unwrap_or_default();
        let rest = self.text[equals.end..].lines().next().unwrap_or_default();
        let value = rest.split("//").next().unwrap_or_default().trim().trim_end_matches(['{', '}', ';']).trim();
        if value.is_empty() {
            return None;
        }
        let finding = ConfigFinding::new(equals.clone(), "no `=` follows the name of an option", "this");
        Some(finding.help(format!("write `{name} {value}`")))
    }

    fn on_word(&mut self, span: Range<usize>) {
        let is_first = matches!(self.state, StatementState::Start | StatementState::Slashdash { at_start: true });
        self.words = if is_first { 1 } else { self.words + 1 };
        let word = &self.text[span.clone()];
        match (explain_word(word), self.state) {
            (None | Some(_), StatementState::Word(end)) if end == span.start => {
                let finding = ConfigFinding::new(span.clone(), "a space is missing before this", "this");
                let help = word.starts_with(',').then(|| "separate values with a space, not with a comma".to_owned());
                self.find(finding.help(help));
            }
            (Some((message, help)), _) if meant_by(word).is_some() && span.start >= self.found_up_to => {
                self.findings.push(ConfigFinding::new(span.clone(), message, "this").help(help));
            }
            // A word that is part of an earlier finding.
            (Some(_), _) if meant_by(word).is_some() => {}
            (Some((message, help)), _) => {
                self.find(ConfigFinding::new(shortened(span.clone(), self.text), message, "this").help(help));
            }
            (None, StatementState::Block { .. }) => {
                let finding = ConfigFinding::new(span.clone(), "begin an option on a new line, or after `;`", "this");
                self.find(finding);
            }
            (None, StatementState::Escline) => {
                let finding =
                    ConfigFinding::new(span.clone(), "`\\` must be at the end of a line", "this comes after it");
                self.find(finding.help("in a quoted text, write it as `\\\\`".to_owned()));
            }
            _ => {}
        }
        self.state = StatementState::Word(span.end);
    }

    /// Notes a mistake, the first of its line: after it all else is only confused.
    fn find(&mut self, finding: ConfigFinding) {
        let start = finding.span.start;
        self.is_readable = false;
        if start >= self.found_up_to {
            self.found_up_to = self.text[start..].find('\n').map_or(self.text.len(), |length| start + length + 1);
            self.findings.push(finding);
        }
    }

    fn finish(mut self) -> CheckedSyntax {
        // Text that is not closed goes on to the end, with the ends of blocks.
        let has_open_text = self.findings.iter().any(|finding| finding.message == TEXT_NOT_CLOSED);
        for (span, _) in std::mem::take(&mut self.blocks) {
            self.is_readable = false;
            if has_open_text {
                continue;
            }
            let finding = ConfigFinding::new(span, "this block is not closed", "opened here");
            self.findings.push(finding.help("write `}` where it ends".to_owned()));
        }
        if let StatementState::Slashdash { .. } | StatementState::Equals | StatementState::Escline = self.state {
            let seen = self.text.trim_end();
            let last = seen.chars().next_back().map_or(0, char::len_utf8);
            let span = seen.len() - last..seen.len();
            self.find(ConfigFinding::new(span, "something must follow this", "the text ends here"));
        }
        CheckedSyntax { findings: self.findings, is_readable: self.is_readable }
    }
}

/// Quoted text that the author of a wrong word meant.
pub(crate) fn meant_by(word: &str) -> Option<String> {
    match word {
        "true" => Some("on".to_owned()),
        "false" | "null" => Some("off".to_owned()),
        _ if let Some(inner) = within_single_quotes(word) => Some(inner.to_owned()),
        _ if word.contains(CURLY_QUOTES) => Some(word.trim_matches(CURLY_QUOTES).to_owned()),
        _ if unknown_escape(word).is_some() => Some(word[1..word.len() - 1].replace("\\\\", "\\")),
        _ => (!word.starts_with(['#', '"']) && !word.contains('"') && word.len() <= WORD_BYTES_MAX)
            .then(|| meant_size(word).unwrap_or_else(|| word.to_owned())),
    }
}

/// KDL takes single quotes for letters of a word.
fn within_single_quotes(word: &str) -> Option<&str> {
    word.strip_prefix('\'')?.strip_suffix('\'').filter(|inner| !inner.contains(['\'', '\\', '"']))
}

/// First character after a backslash that is not a valid escape (KDL 2, "Escapes"), in a text of one line that is
/// closed and not raw. Expressions are often written this way.
fn unknown_escape(word: &str) -> Option<char> {
    if !word.starts_with('"') || word.starts_with("\"\"\"") || !is_closed(word) {
        return None;
    }
    let mut rest = &word[1..word.len() - 1];
    while let Some((_, after)) = rest.split_once('\\') {
        let escape = after.chars().next()?;
        let is_unicode = || {
            let digits = after[1..].strip_prefix('{').and_then(|rest| rest.split_once('}')).map(|(digits, _)| digits);
            let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
            code.and_then(char::from_u32).is_some()
        };
        let is_known = "nrt\\\"bfs".contains(escape) || escape.is_whitespace() || (escape == 'u' && is_unicode());
        if !is_known {
            return Some(escape);
        }
        rest = &after[escape.len_utf8()..];
    }
    None
}

/// Quotes that word processors write.
const CURLY_QUOTES: [char; 5] = ['\u{201c}', '\u{201d}', '\u{201e}', '\u{2018}', '\u{2019}'];
const TEXT_NOT_CLOSED: &str = "this text is not closed";

/// Fault of a name, number, keyword or text: message and help.
pub(crate) fn explain_word(word: &str) -> Option<(String, Option<String>)> {
    let first = word.chars().next()?;
    if word.trim_start_matches('#').starts_with('"') {
        if !is_closed(word) {
            let first = word.lines().next().unwrap_or_default().trim_end();
            let is_short = word.starts_with('"') && !word.starts_with("\"\"\"") && first.len() <= 80;
            let help =
                if is_short { format!("write `{first}\"`") } else { "a text begins and ends with `\"`".to_owned() };
            return Some((TEXT_NOT_CLOSED.into(), Some(help)));
        }
        return unknown_escape(word).map(|escape| {
            let help =
                "write a backslash as `\\\\`, or write the text as `#\"…\"#`, where it needs no escape".to_owned();
            (format!("`\\{escape}` is not an escape sequence"), Some(help))
        });
    }
    if word.len() > WORD_BYTES_MAX {
        return Some((
            "this word is too long".into(),
            Some(format!("put words of more than {WORD_BYTES_MAX} bytes in quotes")),
        ));
    }
    match word {
        "#true" | "#false" | "#null" | "#inf" | "#-inf" | "#nan" => return None,
        "true" => return Some(("`true` is not a value".into(), Some("write `on`".into()))),
        "false" | "null" => return Some((format!("`{word}` is not a value"), Some("write `off`".into()))),
        _ => {}
    }
    if let Some(inner) = within_single_quotes(word) {
        return Some((format!("`{word}` has single quotes"), Some(format!("write `\"{inner}\"`"))));
    }
    if word.contains(CURLY_QUOTES) {
        let inner = word.trim_matches(CURLY_QUOTES);
        return Some((format!("`{word}` has curly quotes"), Some(format!("write straight ones: `\"{inner}\"`"))));
    }
    if first == '#' {
        return Some((
            format!("`{word}` is not valid here"),
            Some("a comment begins with `//`; `on` and `off` are words".into()),
        ));
    }
    (!is_number(word) && !is_identifier(word)).then(|| {
        let meant = meant_size(word).unwrap_or_else(|| word.to_owned());
        (format!("`{word}` needs quotes"), Some(format!("write `\"{meant}\"`")))
    })
}

/// Returns `true` if a text ends with the quotes and signs that it begins with.
fn is_closed(word: &str) -> bool {
    let hashes = word.bytes().take_while(|&byte| byte == b'#').count();
    let quotes = if word[hashes..].starts_with("\"\"\"") { 3 } else { 1 };
    let tail = format!("{}{}", "\"".repeat(quotes), &word[..hashes]);
    if word.len() < hashes + quotes + tail.len() || !word.ends_with(&tail) {
        return false;
    }
    // In one that is not raw, the quote at the end may be one of the text.
    let inside = &word[hashes + quotes..word.len() - tail.len()];
    let backslashes = inside.bytes().rev().take_while(|&byte| byte == b'\\').count();
    hashes > 0 || backslashes.is_multiple_of(2)
}

/// KDL 2, "Number".
pub(crate) fn is_number(word: &str) -> bool {
    let unsigned = word.strip_prefix(['+', '-']).unwrap_or(word);
    let digits = |text: &str, is_digit: fn(&char) -> bool| {
        text.starts_with(|first| is_digit(&first)) && text.chars().all(|digit| is_digit(&digit) || digit == '_')
    };
    if let Some((radix, rest)) = unsigned.split_at_checked(2) {
        match radix {
            "0x" => return digits(rest, char::is_ascii_hexdigit),
            "0o" => return digits(rest, |digit| ('0'..='7').contains(digit)),
            "0b" => return digits(rest, |digit| ('0'..='1').contains(digit)),
            _ => {}
        }
    }
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).map_or((unsigned, None), |(m, e)| (m, Some(e)));
    let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(w, f)| (w, Some(f)));
    digits(whole, char::is_ascii_digit)
        && fraction.is_none_or(|fraction| digits(fraction, char::is_ascii_digit))
        && exponent
            .is_none_or(|exponent| digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent), char::is_ascii_digit))
}

/// KDL 2, "Identifier String".
fn is_identifier(word: &str) -> bool {
    let unsigned = word.strip_prefix(['+', '-']).unwrap_or(word);
    let undotted = unsigned.strip_prefix('.').unwrap_or(unsigned);
    !undotted.starts_with(|first: char| first.is_ascii_digit())
        && !word.contains(['/', '[', ']', '#', '"', '\\', '{', '}', '(', ')', ';', '=', '\u{feff}'])
        && !matches!(word, "inf" | "-inf" | "nan")
}

/// The first line of a span.
fn shortened(span: Range<usize>, text: &str) -> Range<usize> {
    let length = text[span.clone()].find('\n').unwrap_or(span.len());
    span.start..span.start + length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_reported_in_words() {
        let test = |text: &str, expect: &[&str]| {
            let found: Vec<_> = check(text).findings.into_iter().map(|finding| finding.message).collect();
            assert_eq!(found, expect, "{text}");
        };
        test("root /srv/www", &["`/srv/www` needs quotes"]);
        test(
            "listen 1.2.3.4:5 key=a/b true",
            &["`1.2.3.4:5` needs quotes", "`a/b` needs quotes", "`true` is not a value"],
        );
        test("size 16KiB", &["`16KiB` needs quotes"]);
        test("a = 1\nb \\\n c=1 d = 2", &["no `=` follows the name of an option"]);
        test("a {\n forward http://b:1/ path=\"/c\" {\n }\n}", &["`http://b:1/` needs quotes"]);
        test("a { b https://c }", &["`https://c` needs quotes"]);
        test("root '/srv' 'a", &["`'/srv'` has single quotes"]);
        test("listen \"a\",\"b\"", &["a space is missing before this"]);
        test("listen 0.0.0.0:80\nlisten 127.0.0.1:80", &["`0.0.0.0:80` needs quotes", "`127.0.0.1:80` needs quotes"]);
        test("browse true", &["`true` is not a value"]);
        test("# comment", &["`#` is not valid here"]);
        test("server {\n  server_name a;\n  location / { }\n}", &["this is nginx syntax"]);
        test("a \"~\\d\\\\d\\.\" true", &["`\\d` is not an escape sequence", "`true` is not a value"]);
        test("a \"\\u{41}\\\\d\\n\\\"\\   b\" #\"\\d\"#", &[]);
        test("a \"\\u41\"", &["`\\u` is not an escape sequence"]);
        test("a \"b", &["this text is not closed"]);
        test("a \"b\\\"", &["this text is not closed"]);
        test("a #\"b\"", &["this text is not closed"]);
        test("a /* b", &["this comment is not closed"]);
        test("a {", &["this block is not closed"]);
        test("a }", &["this `}` closes no block"]);
        test("{ a }", &["this block has no name before it"]);
        test("a\n{ b }", &["this block has no name before it"]);
        test("a {} {}", &["an option has only one block"]);
        test("a {} b", &["begin an option on a new line, or after `;`"]);
        test("a \"b\"c", &["a space is missing before this"]);
        test("a = ", &["something must follow this"]);
        test("= b", &["this value has no name"]);
        test("(t)a", &["type annotations are not supported"]);
        test("a \\ b", &["`\\` must be at the end of a line"]);
        test("/- /-\u{feff}", &["this disables nothing"]);
        test("/-\u{feff}", &["something must follow this"]);
        test("/-", &["something must follow this"]);
        test("/- \\\n/- \\\n a", &["this disables nothing"]);
        test("/- \\\n a", &[]);
        test("a 1 0x1f -1.5e3 +1_000 .a - -a a=1 b = \"c\" #true \"\" #\"\"# \\\n b; c { d; /-e 1 } // f", &[]);
        test("a /-{ b } { c }\n/- d\n/-\ne", &[]);
        test("a \"\"\"\n  \"b\" \\\n  \"\"\"", &[]);
    }
}
