//! Caddyfile: tokens, server blocks, snippets and `import`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::directive::Directive;
use crate::expression::ReadOnce;
use crate::source::{INCLUDE_DEPTH_MAX, SourceReader, included};
use crate::{FileLine, ImportError};

/// Maximum nesting of blocks; real configurations have less, and more would overflow the stack.
const NESTING_MAX: usize = 64;

/// Maximum number of directives, snippets included. Snippets that import each other twice would double with each step.
const DIRECTIVES_MAX: usize = 200_000;

/// A Caddyfile with all that it imports.
#[derive(Debug, Default)]
pub(super) struct Caddyfile {
    pub(super) options: Vec<Directive>,
    pub(super) sites: Vec<CaddySite>,
    /// Routes that `invoke` names.
    pub(super) routes: HashMap<String, Vec<Directive>>,
    /// The file, and those that it imports.
    pub(super) files: Vec<PathBuf>,
    /// Environment variables without value and default, and where they are.
    pub(super) unset: Vec<(String, FileLine)>,
}

/// A block with its addresses.
#[derive(Debug)]
pub(super) struct CaddySite {
    pub(super) addresses: Vec<String>,
    pub(super) directives: Vec<Directive>,
    pub(super) place: FileLine,
}

#[derive(Debug, Clone)]
struct Token {
    text: String,
    line: usize,
    /// Line on which it ends.
    end: usize,
    is_quoted: bool,
}

impl Token {
    fn is(&self, text: &str) -> bool {
        !self.is_quoted && self.text == text
    }
}

/// Reads a file and all that it imports.
pub(super) fn read(path: &Path) -> Result<Caddyfile, ImportError> {
    let mut reader = Reader::default();
    let text = reader.source.read(path, false)?;
    reader.found.files.push(path.to_owned());
    reader.file(path, &text, 0)?;
    Ok(reader.found)
}

#[cfg(test)]
pub(super) fn parse(text: &str) -> Result<Caddyfile, ImportError> {
    let mut reader = Reader::default();
    reader.file(Path::new("Caddyfile"), text, 0)?;
    Ok(reader.found)
}

#[derive(Default)]
struct Reader {
    source: SourceReader,
    found: Caddyfile,
    snippets: HashMap<String, Vec<Directive>>,
    directives: usize,
}

impl Reader {
    fn file(&mut self, path: &Path, text: &str, depth: usize) -> Result<(), ImportError> {
        let file: Rc<Path> = path.into();
        let text = self.with_environment(text, &file);
        let tokens = tokens(&text, &file)?;
        let mut parser = Parser { tokens: &tokens, at: 0, file };
        let mut is_first = depth == 0;
        while let Some(token) = parser.peek() {
            let place = parser.place(token.line);
            if std::mem::take(&mut is_first) && token.is("{") {
                parser.at += 1;
                self.found.options = parser.block(1, place.line)?;
                continue;
            }
            if token.is("import") {
                let words = parser.line();
                self.import_sites(&words, &place, depth)?;
                continue;
            }
            let (names, block) = parser.server_block()?;
            if let [name] = names.as_slice()
                && let Some(name) = name.strip_prefix('(').and_then(|name| name.strip_suffix(')'))
            {
                self.snippets.insert(name.to_owned(), block);
                continue;
            }
            let block = self.expand(block, &Arguments::default(), depth)?;
            match names.as_slice() {
                [name] if name.starts_with("&(") => {
                    let name = name.trim_start_matches("&(").trim_end_matches(')');
                    self.found.routes.insert(name.to_owned(), block);
                }
                _ => self.found.sites.push(CaddySite { addresses: names, directives: block, place }),
            }
        }
        Ok(())
    }

    /// `{$NAME}` and `{$NAME:DEFAULT}`, which Caddy replaces before it reads tokens.
    fn with_environment(&mut self, text: &str, file: &Rc<Path>) -> String {
        let mut result = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find("{$") {
            let Some(length) = rest[start..].find(['}', '\n']).filter(|at| rest.as_bytes()[start + *at] == b'}') else {
                result.push_str(&rest[..start + 2]);
                rest = &rest[start + 2..];
                continue;
            };
            result.push_str(&rest[..start]);
            let (name, default) = match rest[start + 2..start + length].split_once(':') {
                Some((name, default)) => (name, Some(default)),
                None => (&rest[start + 2..start + length], None),
            };
            match std::env::var(name).ok().or(default.map(str::to_owned)) {
                Some(value) => result.push_str(&value),
                None => {
                    let line = text[..text.len() - rest.len() + start].matches('\n').count() + 1;
                    self.found.unset.push((name.to_owned(), FileLine { file: file.clone(), line }));
                }
            }
            rest = &rest[start + length + 1..];
        }
        result.push_str(rest);
        result
    }

    /// `import` outside all blocks: files with sites.
    fn import_sites(&mut self, words: &[Token], place: &FileLine, depth: usize) -> Result<(), ImportError> {
        let name = words.get(1).map_or("", |word| word.text.as_str());
        if depth == INCLUDE_DEPTH_MAX {
            return Err(loops(place));
        }
        if self.snippets.contains_key(name) {
            let message = "a snippet with sites cannot be imported outside a site".to_owned();
            return Err(ImportError::Malformed { place: place.clone(), message });
        }
        for file in files(place, name)? {
            let text = self.source.read(&file, true)?;
            self.found.files.push(file.clone());
            self.file(&file, &text, depth + 1)?;
        }
        Ok(())
    }

    /// Directives with the content of snippets and files in place of each `import`.
    fn expand(
        &mut self,
        block: Vec<Directive>,
        arguments: &Arguments<'_>,
        depth: usize,
    ) -> Result<Vec<Directive>, ImportError> {
        let mut all = Vec::with_capacity(block.len());
        for mut directive in block {
            self.directives += 1;
            if depth > INCLUDE_DEPTH_MAX || self.directives > DIRECTIVES_MAX {
                return Err(loops(&directive.place));
            }
            arguments.replace(&mut directive);
            if directive.name == "{block}" {
                all.extend(arguments.block.iter().cloned());
                continue;
            }
            if let Some(key) = directive.name.strip_prefix("{blocks.").and_then(|rest| rest.strip_suffix('}')) {
                let found = arguments.block.iter().filter(|child| child.name == key);
                all.extend(found.flat_map(Directive::children).cloned());
                continue;
            }
            if let Some(inner) = directive.block.take() {
                directive.block = Some(self.expand(inner, arguments, depth)?);
            }
            if directive.name != "import" {
                all.push(directive);
                continue;
            }
            let inner =
                Arguments { values: directive.arguments.get(1..).unwrap_or_default(), block: directive.children() };
            match self.snippets.get(directive.first()).cloned() {
                Some(snippet) => all.append(&mut self.expand(snippet, &inner, depth + 1)?),
                None => {
                    for file in files(&directive.place, directive.first())? {
                        let text = self.source.read(&file, true)?;
                        self.found.files.push(file.clone());
                        let path: Rc<Path> = file.as_path().into();
                        let text = self.with_environment(&text, &path);
                        let tokens = tokens(&text, &path)?;
                        let mut parser = Parser { tokens: &tokens, at: 0, file: path };
                        let read = parser.block(0, 1)?;
                        all.append(&mut self.expand(read, &inner, depth + 1)?);
                    }
                }
            }
        }
        Ok(all)
    }
}

fn loops(place: &FileLine) -> ImportError {
    ImportError::Malformed { place: place.clone(), message: "files or snippets import each other in a loop".to_owned() }
}

/// Files of an `import`, which start from the directory of the file that names them.
fn files(place: &FileLine, name: &str) -> Result<Vec<PathBuf>, ImportError> {
    let directory = place.file.parent().unwrap_or(Path::new(""));
    let pattern = directory.join(name);
    included(&pattern).map_err(|error| ImportError::Unreadable { file: pattern, error })
}

/// Values that an `import` hands to a snippet.
#[derive(Default)]
struct Arguments<'a> {
    values: &'a [String],
    block: &'a [Directive],
}

impl Arguments<'_> {
    fn replace(&self, directive: &mut Directive) {
        if self.values.is_empty() {
            return;
        }
        directive.name = self.value(&directive.name);
        let mut arguments = Vec::with_capacity(directive.arguments.len());
        for argument in &directive.arguments {
            let range = argument.strip_prefix("{args[").and_then(|rest| rest.strip_suffix("]}"));
            match range.and_then(|range| range.split_once(':')) {
                Some((from, to)) => {
                    let from = from.parse().unwrap_or(0).min(self.values.len());
                    let to = to.parse().unwrap_or(self.values.len()).clamp(from, self.values.len());
                    arguments.extend_from_slice(&self.values[from..to]);
                }
                None => arguments.push(self.value(argument)),
            }
        }
        directive.arguments = arguments;
    }

    fn value(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (index, value) in self.values.iter().enumerate() {
            text = text.replace(&format!("{{args[{index}]}}"), value).replace(&format!("{{args.{index}}}"), value);
        }
        text
    }
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    file: Rc<Path>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    fn place(&self, line: usize) -> FileLine {
        FileLine { file: self.file.clone(), line }
    }

    fn wrong(&self, line: usize, message: &str) -> ImportError {
        ImportError::Malformed { place: self.place(line), message: message.to_owned() }
    }

    /// The tokens up to the end of the line.
    fn line(&mut self) -> Vec<Token> {
        let mut words: Vec<Token> = Vec::new();
        while let Some(token) = self.peek() {
            if words.last().is_some_and(|last| last.end < token.line) {
                break;
            }
            words.push(token.clone());
            self.at += 1;
        }
        words
    }

    /// Addresses of a site, or the name of a snippet, and the block.
    fn server_block(&mut self) -> Result<(Vec<String>, Vec<Directive>), ImportError> {
        let mut names = Vec::new();
        let Some(first) = self.peek() else { return Ok((names, Vec::new())) };
        if first.is("}") || first.is("{") {
            return Err(self.wrong(first.line, &format!("unexpected `{}`", first.text)));
        }
        loop {
            let words = self.line();
            let Some(last) = words.last() else { return Err(self.wrong(first.line, "a block is not closed")) };
            let opens = last.is("{");
            let is_open_list = last.text.ends_with(',') && !last.is_quoted;
            let count = if opens { words.len() - 1 } else { words.len() };
            for word in &words[..count] {
                names.extend(word.text.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
            }
            if opens {
                return Ok((names, self.block(1, last.line)?));
            }
            if !is_open_list {
                // A file with one site needs no braces.
                return Ok((names, self.block(0, first.line)?));
            }
        }
    }

    /// Directives up to the brace that closes the block, or to the end of the file.
    fn block(&mut self, depth: usize, opened: usize) -> Result<Vec<Directive>, ImportError> {
        if depth > NESTING_MAX {
            return Err(self.wrong(opened, "blocks are nested too deeply"));
        }
        let mut directives = Vec::new();
        while let Some(token) = self.peek() {
            if token.is("}") {
                if depth == 0 {
                    return Err(self.wrong(token.line, "unexpected `}`"));
                }
                self.at += 1;
                return Ok(directives);
            }
            directives.push(self.directive(depth)?);
        }
        match depth {
            0 => Ok(directives),
            _ => Err(self.wrong(opened, "a block is not closed")),
        }
    }

    fn directive(&mut self, depth: usize) -> Result<Directive, ImportError> {
        let mut words: Vec<&Token> = Vec::new();
        let mut opens = None;
        while let Some(token) = self.peek() {
            if words.last().is_some_and(|last| last.end < token.line) || (token.is("}") && !words.is_empty()) {
                break;
            }
            self.at += 1;
            let is_last = self.peek().is_none_or(|next| next.line > token.end || next.is("}"));
            if token.is("{") && is_last {
                opens = Some(token.line);
                break;
            }
            words.push(token);
        }
        let Some(name) = words.first() else {
            return Err(self.wrong(opens.unwrap_or(1), "unexpected `{`"));
        };
        let block = opens.map(|line| self.block(depth + 1, line)).transpose()?;
        Ok(Directive {
            name: name.text.clone(),
            arguments: words[1..].iter().map(|word| word.text.clone()).collect(),
            block,
            place: self.place(name.line),
            had_variables: false,
            expression: ReadOnce::default(),
        })
    }
}

/// Tokens of a text.
fn tokens(text: &str, file: &Rc<Path>) -> Result<Vec<Token>, ImportError> {
    let mut lexer = Lexer { rest: text, line: 1, file };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next()? {
        tokens.push(token);
    }
    Ok(tokens)
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    file: &'a Rc<Path>,
}

impl Lexer<'_> {
    fn wrong(&self, line: usize, message: &str) -> ImportError {
        ImportError::Malformed { place: FileLine { file: self.file.clone(), line }, message: message.to_owned() }
    }

    fn take(&mut self, length: usize) {
        self.line += self.rest[..length].matches('\n').count();
        self.rest = &self.rest[length..];
    }

    fn next(&mut self) -> Result<Option<Token>, ImportError> {
        loop {
            let length =
                self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}').len();
            self.take(length);
            if let Some(rest) = self.rest.strip_prefix("\\\n").or(self.rest.strip_prefix("\\\r\n")) {
                // The line goes on; tokens of the next line count as this one's.
                self.rest = rest;
                continue;
            }
            if !self.rest.starts_with('#') {
                break;
            }
            self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
        let line = self.line;
        let (text, is_quoted) = match self.rest.chars().next() {
            None => return Ok(None),
            Some('"') => (self.quoted()?, true),
            Some('`') => (self.raw()?, true),
            _ if self.rest.starts_with("<<") && self.heredoc_marker().is_some() => (self.heredoc()?, true),
            _ => (self.bare(), false),
        };
        Ok(Some(Token { text, line, end: self.line, is_quoted }))
    }

    fn bare(&mut self) -> String {
        let end = self.rest.find(char::is_whitespace).unwrap_or(self.rest.len());
        let word = self.rest[..end].replace("\\{", "{").replace("\\}", "}").replace("\\<<", "<<");
        self.take(end);
        word
    }

    fn quoted(&mut self) -> Result<String, ImportError> {
        let mut word = String::new();
        let mut is_escaped = false;
        for (index, character) in self.rest.char_indices().skip(1) {
            match character {
                // Only quotation marks are escaped.
                '"' if is_escaped => {
                    word.pop();
                    word.push('"');
                }
                '"' => {
                    self.take(index + 1);
                    return Ok(word);
                }
                _ => word.push(character),
            }
            is_escaped = character == '\\' && !is_escaped;
        }
        Err(self.wrong(self.line, "a quotation mark is not closed"))
    }

    fn raw(&mut self) -> Result<String, ImportError> {
        match self.rest[1..].find('`') {
            Some(end) => {
                let word = self.rest[1..=end].to_owned();
                self.take(end + 2);
                Ok(word)
            }
            None => Err(self.wrong(self.line, "a backtick is not closed")),
        }
    }

    fn heredoc_marker(&self) -> Option<String> {
        let line = self.rest[2..].lines().next()?.trim_end();
        let is_marker = !line.is_empty() && line.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        is_marker.then(|| line.to_owned())
    }

    fn heredoc(&mut self) -> Result<String, ImportError> {
        let opened = self.line;
        let marker = self.heredoc_marker().unwrap_or_default();
        let body = self.rest.find('\n').map_or(self.rest.len(), |at| at + 1);
        let mut length = body;
        let mut lines = Vec::new();
        for line in self.rest[body..].split_inclusive('\n') {
            let content = line.trim_end_matches(['\n', '\r']);
            if let Some(after) = content.trim_start().strip_prefix(&marker)
                && (after.is_empty() || after.starts_with(char::is_whitespace))
            {
                let indent = content.len() - content.trim_start().len();
                self.take(length + indent + marker.len());
                let lines: Vec<&str> = lines.iter().map(|line: &&str| line.get(indent..).unwrap_or("")).collect();
                return Ok(lines.join("\n"));
            }
            lines.push(content);
            length += line.len();
        }
        Err(self.wrong(opened, "a heredoc is not closed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(directives: &[Directive]) -> String {
        directives.iter().map(Directive::text).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn sites_are_read() {
        let check = |text: &str, addresses: &[&str], expect: &str| {
            let found = parse(text).unwrap();
            let site = &found.sites[0];
            assert_eq!(
                (site.addresses.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), &*shape(&site.directives)),
                (addresses, expect),
                "{text}"
            );
        };
        check("a.b\nroot * /x\nfile_server", &["a.b"], "root * /x; file_server");
        check(
            "{\n\temail a@b\n}\na.b,\nc.d {\n\tlog {\n\t\toutput stdout\n\t}\n}",
            &["a.b", "c.d"],
            "log { output stdout }",
        );
        check("a.b c.d { # x\n respond \"a \\\"b\\\"\" 200\n}", &["a.b", "c.d"], "respond a \"b\" 200");
        check("a.b {\n respond <<X\n    one\n      two\n    X 200\n}", &["a.b"], "respond one\n  two 200");
        check(
            "(s) {\n header X {args[0]}\n {block}\n}\na.b {\n import s 1 {\n  encode\n }\n}",
            &["a.b"],
            "header X 1; encode",
        );
        check("{$NOT_SET_FOR_SURE:c.d} {\n}", &["c.d"], "");
        check("a.b {\n header X `a \"b`\n header \\\n   Y 1\n}", &["a.b"], "header X a \"b; header Y 1");
    }

    #[test]
    fn errors_have_their_line() {
        let check = |text: &str, expect: &str| assert_eq!(parse(text).unwrap_err().to_string(), expect, "{text}");
        check("a.b {\n log {\n", "Caddyfile:2: a block is not closed");
        check("a.b {\n respond \"x\n}", "Caddyfile:2: a quotation mark is not closed");
        check("(a) {\n import a\n}\nb.c {\n import a\n}", "Caddyfile:2: files or snippets import each other in a loop");
        check("a.b {\n}\n}", "Caddyfile:3: unexpected `}`");
    }
}
