//! A scanner of Rust source: comments, string literals and code, each with its line, and whether the line belongs to tests.

/// Parts of a source file, in order.
pub(super) struct SourceParts {
    /// Comments, each line of a block comment by itself.
    pub(super) comments: Vec<Comment>,
    /// String literals outside tests.
    pub(super) literals: Vec<Literal>,
    /// Code by line, with comments and the content of literals blanked out. Lines of tests are empty.
    pub(super) code: Vec<String>,
}

/// One line of a comment.
pub(super) struct Comment {
    pub(super) line: usize,
    /// `//`, `///`, `//!` or `/*`.
    pub(super) marker: &'static str,
    /// Content after the marker and one space.
    pub(super) text: String,
    /// True where code stands on the line before the comment.
    pub(super) is_trailing: bool,
}

/// A string literal as it stands in the source, escapes included.
pub(super) struct Literal {
    /// Line of its first character.
    pub(super) line: usize,
    pub(super) text: String,
}

/// Splits `text` into its parts. A file `in_tests` has no literals and no code that count.
pub(super) fn scan(text: &str, in_tests: bool) -> SourceParts {
    let mut scanner = Scanner {
        rest: text,
        line: 1,
        in_tests,
        depth: 0,
        tests_depth: None,
        is_test_next: false,
        source: SourceParts {
            comments: Vec::new(),
            literals: Vec::new(),
            code: vec![String::new(); text.split('\n').count()],
        },
    };
    while !scanner.rest.is_empty() {
        scanner.step();
    }
    scanner.source
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
    in_tests: bool,
    /// Open braces.
    depth: usize,
    /// Depth at which the item with `#[cfg(test)]` began that the scanner is in.
    tests_depth: Option<usize>,
    /// True after `#[cfg(test)]`, until the item begins.
    is_test_next: bool,
    source: SourceParts,
}

impl Scanner<'_> {
    fn step(&mut self) {
        let rest = self.rest;
        if rest.starts_with("//") {
            self.line_comment();
        } else if rest.starts_with("/*") {
            self.block_comment();
        } else if let Some((prefix, hashes)) = string_start(rest).filter(|_| !self.follows_word()) {
            self.string(prefix, hashes);
        } else if let Some(length) = char_literal(rest) {
            self.code("' '");
            self.advance(length);
        } else {
            self.code_char();
        }
    }

    fn is_test(&self) -> bool {
        self.in_tests || self.tests_depth.is_some()
    }

    /// True where the character before belongs to a word, so that `r"` is the end of a name.
    fn follows_word(&self) -> bool {
        let before = self.source.code[self.line - 1].chars().next_back();
        before.is_some_and(|before| before.is_alphanumeric() || before == '_')
    }

    fn advance(&mut self, length: usize) {
        self.line += self.rest[..length].matches('\n').count();
        self.rest = &self.rest[length..];
    }

    fn code(&mut self, text: &str) {
        if !self.is_test() {
            self.source.code[self.line - 1].push_str(text);
        }
    }

    fn code_char(&mut self) {
        if self.rest.starts_with("#[cfg(test)]") {
            self.is_test_next = true;
        }
        let Some(first) = self.rest.chars().next() else { return };
        match first {
            '{' => {
                if std::mem::take(&mut self.is_test_next) && self.tests_depth.is_none() {
                    self.tests_depth = Some(self.depth);
                }
                self.code("{");
                self.depth += 1;
            }
            '}' => {
                self.depth = self.depth.saturating_sub(1);
                if self.tests_depth == Some(self.depth) {
                    self.tests_depth = None;
                }
                self.code("}");
            }
            '\n' => {}
            _ => {
                // `#[cfg(test)] mod tests;` has no body here.
                if first == ';' {
                    self.is_test_next = false;
                }
                self.code(first.encode_utf8(&mut [0; 4]));
            }
        }
        self.advance(first.len_utf8());
    }

    fn line_comment(&mut self) {
        let length = self.rest.find('\n').unwrap_or(self.rest.len());
        let comment = &self.rest[..length];
        let marker = if comment.starts_with("////") {
            "//"
        } else {
            ["///", "//!"].into_iter().find(|marker| comment.starts_with(marker)).unwrap_or("//")
        };
        let text = &comment[marker.len()..];
        self.comment(marker, text.strip_prefix(' ').unwrap_or(text));
        self.advance(length);
    }

    fn block_comment(&mut self) {
        let length = self.rest.find("*/").map_or(self.rest.len(), |end| end + 2);
        let comment = self.rest[..length].trim_start_matches(['/', '*', '!']).trim_end_matches(['/', '*']);
        for text in comment.split('\n') {
            self.comment("/*", text.trim().trim_start_matches('*').trim());
            self.line += 1;
        }
        self.line -= comment.matches('\n').count() + 1;
        self.advance(length);
    }

    fn comment(&mut self, marker: &'static str, text: &str) {
        let is_trailing = !self.before_on_line().trim().is_empty();
        self.source.comments.push(Comment { line: self.line, marker, text: text.to_owned(), is_trailing });
    }

    fn before_on_line(&self) -> &str {
        &self.source.code[self.line - 1]
    }

    fn string(&mut self, prefix: usize, hashes: Option<usize>) {
        let content = &self.rest[prefix..];
        let (length, end) = match hashes {
            Some(hashes) => {
                let end = format!("\"{}", "#".repeat(hashes));
                (content.find(&end).unwrap_or(content.len()), end.len())
            }
            None => (escaped_length(content), 1),
        };
        if !self.is_test() {
            self.source.literals.push(Literal { line: self.line, text: content[..length].to_owned() });
        }
        self.code("\"\"");
        self.advance((prefix + length + end).min(self.rest.len()));
    }
}

/// Length of the prefix of a string literal up to its content, and the number of hashes of a raw one.
fn string_start(rest: &str) -> Option<(usize, Option<usize>)> {
    let after = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    let kind = rest.len() - after.len();
    if after.starts_with('"') {
        return Some((kind + 1, None));
    }
    let hashed = after.strip_prefix('r')?;
    let hashes = hashed.len() - hashed.trim_start_matches('#').len();
    hashed[hashes..].starts_with('"').then_some((kind + 1 + hashes + 1, Some(hashes)))
}

/// Bytes before the quote that ends a literal with escapes.
fn escaped_length(content: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in content.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at,
            _ => {}
        }
    }
    content.len()
}

/// Length of a character literal at the start of `rest`; a lifetime is none.
fn char_literal(rest: &str) -> Option<usize> {
    let content = rest.strip_prefix('\'')?;
    if let Some(escape) = content.strip_prefix('\\') {
        return Some(3 + escape.char_indices().skip(1).find(|(_, character)| *character == '\'')?.0);
    }
    let first = content.chars().next()?;
    content[first.len_utf8()..].starts_with('\'').then_some(2 + first.len_utf8())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_literals_and_code_are_reported_apart() {
        let source = scan(
            "//! Top.\n/// Doc.\nfn a<'a>() { // tail\n    let quote = '\"'; let escape = '\\''; b(\"x // y\\\" z\");\n}\n/* one\n * two */\nlet raw = r#\"a \"b\" c\"#;\n",
            false,
        );
        let comments: Vec<_> = source
            .comments
            .iter()
            .map(|comment| (comment.line, comment.marker, comment.text.as_str(), comment.is_trailing))
            .collect();
        assert_eq!(
            comments,
            [
                (1, "//!", "Top.", false),
                (2, "///", "Doc.", false),
                (3, "//", "tail", true),
                (6, "/*", "one", false),
                (7, "/*", "two", false),
            ]
        );
        let literals: Vec<_> = source.literals.iter().map(|literal| (literal.line, literal.text.as_str())).collect();
        assert_eq!(literals, [(4, "x // y\\\" z"), (8, "a \"b\" c")]);
        assert_eq!(source.code[7], "let raw = \"\";");
    }

    #[test]
    fn literals_and_code_of_tests_are_left_out() {
        let text = "#[cfg(test)]\nmod files;\nfn a() { b(\"one\") }\n#[cfg(test)]\nmod tests {\n    fn c() { d(\"two\") }\n    // kept\n}\nfn e() { f(\"three\") }\n";
        let source = scan(text, false);
        let literals: Vec<_> = source.literals.iter().map(|literal| literal.text.as_str()).collect();
        assert_eq!(literals, ["one", "three"]);
        assert_eq!((source.code[5].as_str(), source.comments.len()), ("", 1));
        assert!(scan(text, true).literals.is_empty());
    }
}
