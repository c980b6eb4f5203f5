//! nginx's configuration language: directives with arguments, which end with a semicolon or a block.

use std::path::Path;
use std::rc::Rc;

pub(super) use crate::directive::Directive as NginxDirective;
use crate::expression::ReadOnce;
use crate::source::{INCLUDE_DEPTH_MAX, SourceReader, included};
use crate::{FileLine, ImportError};

/// Maximum nesting of blocks; real configurations have less, and more would overflow the stack.
const NESTING_MAX: usize = 64;

/// Reads a file and all that it includes, in its place.
pub(super) fn read(path: &Path) -> Result<Vec<NginxDirective>, ImportError> {
    let root = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Reader { root, source: SourceReader::default() }.read(path, 0)
}

/// Reads a file, and those that it includes.
struct Reader<'a> {
    /// Directory of the main file, from which nginx looks whichever file says `include`.
    root: &'a Path,
    source: SourceReader,
}

impl Reader<'_> {
    fn read(&mut self, path: &Path, depth: usize) -> Result<Vec<NginxDirective>, ImportError> {
        let text = self.source.read(path, depth > 0)?;
        let directives = parse(path, &text).map_err(|error| foreign(path, &text).unwrap_or(error))?;
        self.include(directives, depth)
    }

    /// Replaces each `include` by the included directives. One without a pattern whose file is missing stays.
    fn include(&mut self, directives: Vec<NginxDirective>, depth: usize) -> Result<Vec<NginxDirective>, ImportError> {
        let mut all = Vec::with_capacity(directives.len());
        for mut directive in directives {
            if let Some(block) = directive.block.take() {
                directive.block = Some(self.include(block, depth)?);
            }
            if directive.name != "include" || directive.arguments.len() != 1 {
                all.push(directive);
                continue;
            }
            if depth == INCLUDE_DEPTH_MAX {
                let message = "files include each other in a loop".to_owned();
                return Err(ImportError::Malformed { place: directive.place, message });
            }
            match included(&self.root.join(directive.first())) {
                Ok(files) => {
                    for file in files {
                        all.append(&mut self.read(&file, depth + 1)?);
                    }
                }
                Err(_) => all.push(directive),
            }
        }
        Ok(all)
    }
}

/// Returns `true` if a line begins a block that every nginx configuration has.
fn begins_block(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    matches!(words.as_slice(), ["http" | "events" | "server", "{"] | ["upstream" | "location", .., "{"])
}

/// Error for a configuration of another server, if it looks like one.
fn foreign(path: &Path, text: &str) -> Option<ImportError> {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let has_section = lines().any(|line| line.starts_with('<') && line.ends_with('>'));
    let message = if has_section {
        "this looks like an Apache configuration, but it has a name of nginx's; rename it, and see docs/from-apache.md"
    } else if !lines().any(|line| line.ends_with(';') || begins_block(line)) && lines().any(|line| line.ends_with('{'))
    {
        "this is not an nginx configuration; name one of Caddy `Caddyfile`, and see docs/from-caddy.md"
    } else {
        return None;
    };
    let place = FileLine { file: path.into(), line: 1 };
    Some(ImportError::Malformed { place, message: message.to_owned() })
}

/// Directives of a text.
pub(super) fn parse(file: &Path, text: &str) -> Result<Vec<NginxDirective>, ImportError> {
    let mut parser = NginxParser { file: file.into(), rest: text, line: 1 };
    parser.directives(0, 1)
}

/// Separates the modifier of a `location` from its path, as in `location ~^/private`. nginx reads both forms alike.
fn separate_modifier(arguments: &mut Vec<String>) {
    let [word] = arguments.as_slice() else { return };
    let modifier = ["=", "^~", "~*", "~"].into_iter().find(|modifier| word.starts_with(modifier));
    if let Some(modifier) = modifier {
        *arguments = vec![modifier.to_owned(), word[modifier.len()..].to_owned()];
    }
}

#[derive(Debug, PartialEq, Eq)]
enum NginxToken {
    Word(String),
    End,
    Open,
    Close,
}

struct NginxParser<'a> {
    file: Rc<Path>,
    rest: &'a str,
    line: usize,
}

impl NginxParser<'_> {
    /// Directives up to the end of the block that was opened in this line, or of the text.
    fn directives(&mut self, depth: usize, opened: usize) -> Result<Vec<NginxDirective>, ImportError> {
        if depth > NESTING_MAX {
            return Err(self.wrong(self.line, "blocks are nested too deeply"));
        }
        let mut directives = Vec::new();
        let mut words: Vec<String> = Vec::new();
        let mut line = self.line;
        loop {
            match self.token()? {
                Some(NginxToken::Word(word)) => {
                    if words.is_empty() {
                        line = self.line;
                    }
                    words.push(word);
                }
                Some(NginxToken::End) if words.is_empty() => return Err(self.wrong(self.line, "unexpected `;`")),
                Some(NginxToken::End) => directives.push(self.directive(&mut words, None, line)),
                Some(NginxToken::Open) if words.is_empty() => return Err(self.wrong(self.line, "unexpected `{`")),
                Some(NginxToken::Open) => {
                    // Such a block contains Lua.
                    let block = if words[0].ends_with("_by_lua_block") {
                        self.skip_foreign_block(line)?;
                        Vec::new()
                    } else {
                        self.directives(depth + 1, line)?
                    };
                    directives.push(self.directive(&mut words, Some(block), line));
                }
                Some(NginxToken::Close) if depth > 0 && words.is_empty() => return Ok(directives),
                None if depth == 0 && words.is_empty() => return Ok(directives),
                Some(NginxToken::Close) if depth == 0 => return Err(self.wrong(self.line, "unexpected `}`")),
                _ if !words.is_empty() => {
                    return Err(self.wrong(line, format!("`{}` does not end with `;` or a block", words[0])));
                }
                _ => return Err(self.wrong(opened, "a block is not closed")),
            }
        }
    }

    fn directive(&self, words: &mut Vec<String>, block: Option<Vec<NginxDirective>>, line: usize) -> NginxDirective {
        let mut words = std::mem::take(words).into_iter();
        let name = words.next().unwrap_or_default();
        let mut arguments: Vec<String> = words.collect();
        if name == "location" {
            separate_modifier(&mut arguments);
        }
        NginxDirective {
            name,
            arguments,
            block,
            place: FileLine { file: self.file.clone(), line },
            had_variables: false,
            expression: ReadOnce::default(),
        }
    }

    fn token(&mut self) -> Result<Option<NginxToken>, ImportError> {
        self.skip_space();
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let token = match first {
            ';' => NginxToken::End,
            '{' => NginxToken::Open,
            '}' => NginxToken::Close,
            '"' | '\'' => return self.quoted(first).map(Some),
            _ => return Ok(Some(self.bare())),
        };
        self.take(1);
        Ok(Some(token))
    }

    fn skip_space(&mut self) {
        loop {
            let trimmed = self.rest.trim_start();
            self.take(self.rest.len() - trimmed.len());
            if !self.rest.starts_with('#') {
                return;
            }
            self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    /// A word without quotation marks: `${name}` belongs to it, other braces don't.
    fn bare(&mut self) -> NginxToken {
        let mut word = String::new();
        let mut characters = self.rest.char_indices();
        let mut end = self.rest.len();
        let mut is_in_name = false;
        while let Some((index, character)) = characters.next() {
            match character {
                '\\' => {
                    push_escaped(characters.next().map(|(_, next)| next), &mut word);
                    continue;
                }
                '{' if word.ends_with('$') => is_in_name = true,
                '}' if is_in_name => is_in_name = false,
                ';' | '{' => {
                    end = index;
                    break;
                }
                _ if character.is_whitespace() => {
                    end = index;
                    break;
                }
                _ => {}
            }
            word.push(character);
        }
        self.take(end);
        NginxToken::Word(word)
    }

    fn quoted(&mut self, quote: char) -> Result<NginxToken, ImportError> {
        let line = self.line;
        let mut word = String::new();
        let mut characters = self.rest.char_indices().skip(1);
        while let Some((index, character)) = characters.next() {
            if character == quote {
                self.take(index + 1);
                return Ok(NginxToken::Word(word));
            }
            if character != '\\' {
                word.push(character);
                continue;
            }
            push_escaped(characters.next().map(|(_, next)| next), &mut word);
        }
        Err(self.wrong(line, "a quotation mark is not closed"))
    }

    /// Skips to the brace that closes the block that is open.
    fn skip_foreign_block(&mut self, line: usize) -> Result<(), ImportError> {
        let mut depth = 1;
        let end = self.rest.char_indices().find_map(|(index, character)| {
            depth += match character {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            (depth == 0).then_some(index + 1)
        });
        match end {
            Some(end) => {
                self.take(end);
                Ok(())
            }
            None => Err(self.wrong(line, "a block is not closed")),
        }
    }

    fn take(&mut self, length: usize) {
        let (taken, rest) = self.rest.split_at(length);
        self.line += taken.matches('\n').count();
        self.rest = rest;
    }

    fn wrong(&self, line: usize, message: impl Into<String>) -> ImportError {
        ImportError::Malformed { place: FileLine { file: self.file.clone(), line }, message: message.into() }
    }
}

/// Adds the character for a backslash sequence, in quotation marks or without.
fn push_escaped(escaped: Option<char>, word: &mut String) {
    match escaped {
        Some(next @ ('"' | '\'' | '\\')) => word.push(next),
        Some('n') => word.push('\n'),
        Some('t') => word.push('\t'),
        Some('r') => word.push('\r'),
        // Anything else is an expression's.
        other => {
            word.push('\\');
            word.extend(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn directives_are_read() {
        let check = |text: &str, expect: &[(&str, &[&str], usize)]| {
            let directives = parse(Path::new("n"), text).unwrap();
            let found: Vec<_> = directives
                .iter()
                .map(|directive| {
                    let arguments: Vec<&str> = directive.arguments.iter().map(String::as_str).collect();
                    (directive.name.as_str(), arguments, directive.place.line)
                })
                .collect();
            let expect: Vec<_> = expect.iter().map(|(name, words, line)| (*name, words.to_vec(), *line)).collect();
            assert_eq!(found, expect, "{text}");
        };
        check("", &[]);
        check("# nothing\n\nuser www-data; # who\n", &[("user", &["www-data"], 3)]);
        check("a 'b c' \"d;{\";", &[("a", &["b c", "d;{"], 1)]);
        check(r#"rewrite ^/a/(.*)\.php$ /b/$1;"#, &[("rewrite", &[r"^/a/(.*)\.php$", "/b/$1"], 1)]);
        check(r#"location ~ "^/\d{4}/" { }"#, &[("location", &["~", r"^/\d{4}/"], 1)]);
        check(r"location ~ \\.php$ { }", &[("location", &["~", r"\.php$"], 1)]);
        check(r#"a "\\.b\'\"\." '\\.\'\"' \"\';"#, &[("a", &[r#"\.b'"\."#, r#"\.'""#, r#""'"#], 1)]);
        check("set $a ${b}c;", &[("set", &["$a", "${b}c"], 1)]);
        check("content_by_lua_block { x = {1} }\nb;", &[("content_by_lua_block", &[], 1), ("b", &[], 2)]);
    }

    #[test]
    fn what_is_none_is_said_with_its_line() {
        let check = |text: &str, expect: &str| {
            assert_eq!(parse(Path::new("n"), text).unwrap_err().to_string(), expect, "{text}");
        };
        check("user www-data", "n:1: `user` does not end with `;` or a block");
        check("\nhttp {\n", "n:2: a block is not closed");
        check("}", "n:1: unexpected `}`");
        check("a;\n;", "n:2: unexpected `;`");
        check("{ }", "n:1: unexpected `{`");
        check("a 'b", "n:1: a quotation mark is not closed");
        check("x { a }", "n:1: `a` does not end with `;` or a block");
        check(&"a {".repeat(100), "n:1: blocks are nested too deeply");
    }

    #[test]
    fn other_servers_are_known() {
        let check = |text: &str, expect: Option<&str>| {
            let found = foreign(Path::new("n"), text).map(|error| error.to_string());
            assert_eq!(found.is_some(), expect.is_some(), "{text}: {found:?}");
            assert!(found.unwrap_or_default().contains(expect.unwrap_or_default()), "{text}");
        };
        check("<VirtualHost *:80>\n  ServerName a\n</VirtualHost>\n", Some("from-apache.md"));
        check("# mine\nexample.com {\n  file_server\n}\n", Some("from-caddy.md"));
        check("http {\n  server {\n    listen 80\n  }\n  a;\n", None);
        check("user www-data", None);
    }

    #[test]
    fn files_are_included_in_their_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("sites")).unwrap();
        fs::write(path("nginx.conf"), "http { include sites/*; include none/*.conf; include missing; }").unwrap();
        fs::write(path("sites/b"), "server { include ../common; }").unwrap();
        fs::write(path("sites/a"), "server { }").unwrap();
        fs::write(path("sites/.hidden"), "no").unwrap();
        fs::write(path("common"), "listen 80;").unwrap();
        fs::write(path("circle"), "include circle;").unwrap();
        // `include` looks from the main file's directory.
        fs::write(path("sites/b"), "server { include common; }").unwrap();
        let directives = read(&path("nginx.conf")).unwrap();
        let names: Vec<&str> = directives[0].children().iter().map(|directive| directive.name.as_str()).collect();
        assert_eq!(names, ["server", "server", "include"]);
        assert_eq!(directives[0].children()[1].children()[0].line(), "listen 80");
        assert!(
            read(&path("circle")).unwrap_err().to_string().ends_with("circle:1: files include each other in a loop")
        );
    }

    /// Issue 17: each of these is included twice as often as the one before, and a device has no end.
    #[test]
    fn included_files_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for number in 0..INCLUDE_DEPTH_MAX {
            let next = number + 1;
            fs::write(path(&number.to_string()), format!("include {next}; include {next};")).unwrap();
        }
        fs::write(path(&INCLUDE_DEPTH_MAX.to_string()), "").unwrap();
        let error = read(&path("0")).unwrap_err().to_string();
        assert!(error.ends_with("more than 20000 files or 64 MiB are included"), "{error}");
        fs::write(path("device"), "include /dev/zero;").unwrap();
        let error = read(&path("device")).unwrap_err().to_string();
        assert_eq!(error, "/dev/zero: this is no regular file");
    }
}
