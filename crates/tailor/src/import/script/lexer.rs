//! Tokens of scripts.

use super::ScriptLanguage;

/// ScriptToken.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ScriptToken {
    Name(String),
    Number(f64),
    Text(String),
    /// Template of JavaScript: texts, with the source of an expression after each but the last.
    Template(Vec<(String, String)>),
    Sign(&'static str),
}

/// Operators and punctuation, the longest first.
const SIGNS: [&str; 39] = [
    "===", "!==", "...", "=>", "==", "!=", "~=", "<=", ">=", "&&", "||", "??", "?.", "++", "--", "+=", "-=", "*=",
    "..", "::", "=", "+", "-", "*", "/", "%", "#", "<", ">", "(", ")", "{", "}", "[", "]", ";", ":", ",", ".",
];
/// Signs of one byte that have no meaning here, but that a script may contain.
const OTHER_SIGNS: [&str; 6] = ["!", "?", "^", "&", "|", "~"];

/// Splits a script into tokens with their lines.
pub(super) fn tokens(text: &str, language: ScriptLanguage) -> Result<Vec<(ScriptToken, usize)>, String> {
    let mut lexer = Lexer { text, at: 0, line: 1, language };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_space()?;
        let line = lexer.line;
        let divides = tokens.last().is_some_and(|(last, _)| ends_operand(last));
        match lexer.next(divides) {
            Ok(Some(token)) => tokens.push((token, line)),
            Ok(None) => return Ok(tokens),
            Err(error) => return Err(format!("line {line}: {error}")),
        }
    }
}

/// Sign for a regular expression, which has no translation.
const PATTERN: &str = "/.../";

/// Returns whether a token ends an operand, so that `/` after it divides.
fn ends_operand(token: &ScriptToken) -> bool {
    match token {
        ScriptToken::Sign(sign) => [")", "]", "}", "++", "--", PATTERN].contains(sign),
        ScriptToken::Name(name) => name != "return",
        _ => true,
    }
}

/// Length of a regular expression with its flags; `None` if the line has no end of it.
fn pattern_length(rest: &str) -> Option<usize> {
    let (mut is_escaped, mut is_class) = (false, false);
    let end = rest.char_indices().skip(1).find_map(|(at, character)| match character {
        '\n' => Some(None),
        _ if std::mem::take(&mut is_escaped) => None,
        '\\' => {
            is_escaped = true;
            None
        }
        '[' | ']' => {
            is_class = character == '[';
            None
        }
        '/' if !is_class => Some(Some(at + 1)),
        _ => None,
    })??;
    Some(end + rest[end..].bytes().take_while(u8::is_ascii_alphabetic).count())
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    language: ScriptLanguage,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let taken = &self.rest()[..bytes];
        self.line += taken.matches('\n').count();
        self.at += bytes;
        taken
    }

    /// Takes the text before `end`, which is taken, too.
    fn take_until(&mut self, end: &str) -> Result<&'a str, String> {
        let length = self.rest().find(end).ok_or_else(|| format!("`{end}` is missing"))?;
        let taken = self.take(length);
        self.take(end.len());
        Ok(taken)
    }

    /// Skips spaces and comments.
    fn skip_space(&mut self) -> Result<(), String> {
        loop {
            let rest = self.rest();
            let space = rest.len() - rest.trim_start().len();
            self.take(space);
            let rest = self.rest();
            let (is_line, block_end) = match self.language {
                ScriptLanguage::Lua if rest.starts_with("--[[") => (false, "]]"),
                ScriptLanguage::Lua => (rest.starts_with("--"), ""),
                ScriptLanguage::JavaScript if rest.starts_with("/*") => (false, "*/"),
                ScriptLanguage::JavaScript => (rest.starts_with("//"), ""),
            };
            if is_line {
                self.take(rest.find('\n').unwrap_or(rest.len()));
            } else if block_end.is_empty() {
                return Ok(());
            } else {
                let line = self.line;
                self.take_until(block_end).map_err(|error| format!("line {line}: {error}"))?;
            }
        }
    }

    /// Takes a token. `divides` tells if `/` is an operator here.
    fn next(&mut self, divides: bool) -> Result<Option<ScriptToken>, String> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(None) };
        let is_lua = self.language == ScriptLanguage::Lua;
        let token = match first {
            '"' | '\'' => {
                self.take(1);
                ScriptToken::Text(self.quoted(first)?)
            }
            '`' if !is_lua => {
                self.take(1);
                ScriptToken::Template(self.template()?)
            }
            '[' if is_lua && rest.starts_with("[[") => {
                self.take(2);
                // Lua drops a line break after the bracket.
                ScriptToken::Text(self.take_until("]]")?.trim_start_matches('\n').to_owned())
            }
            '0'..='9' => {
                let length = rest.find(|it: char| !it.is_ascii_alphanumeric() && it != '.' && it != '_');
                let text = self.take(length.unwrap_or(rest.len())).replace('_', "");
                ScriptToken::Number(text.parse().map_err(|_| format!("`{text}` is not a number"))?)
            }
            first if first.is_alphabetic() || first == '_' || first == '$' => {
                let length = rest.find(|it: char| !it.is_alphanumeric() && it != '_' && it != '$');
                ScriptToken::Name(self.take(length.unwrap_or(rest.len())).to_owned())
            }
            '/' if !is_lua && !divides => {
                self.take(pattern_length(rest).ok_or("a regular expression has no end")?);
                ScriptToken::Sign(PATTERN)
            }
            first => {
                let sign = SIGNS.iter().chain(&OTHER_SIGNS).find(|sign| rest.starts_with(**sign));
                let sign = sign.ok_or_else(|| format!("`{first}` has no meaning here"))?;
                self.take(sign.len());
                ScriptToken::Sign(sign)
            }
        };
        Ok(Some(token))
    }

    /// Takes a text up to its quote.
    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let mut out = String::new();
        loop {
            match self.rest().chars().next() {
                None | Some('\n') => return Err("a text has no end".to_owned()),
                Some('\\') => out.extend(self.escape()?),
                Some(character) => {
                    self.take(character.len_utf8());
                    if character == quote {
                        return Ok(out);
                    }
                    out.push(character);
                }
            }
        }
    }

    /// Takes an escape sequence. A continued line is none.
    fn escape(&mut self) -> Result<Option<char>, String> {
        self.take(1);
        let character = self.rest().chars().next().ok_or("a text has no end")?;
        self.take(character.len_utf8());
        let hex = |digits: &str| u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
        Ok(Some(match character {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            '0' => '\0',
            '\n' => return Ok(None),
            'x' | 'u' => {
                let length = if character == 'x' { 2 } else { 4 };
                let digits = self.rest().get(..length).unwrap_or_default();
                let found = hex(digits).ok_or_else(|| format!("unknown escape `\\{character}{digits}`"))?;
                self.take(length);
                found
            }
            other => other,
        }))
    }

    /// Takes a template up to its end.
    fn template(&mut self) -> Result<Vec<(String, String)>, String> {
        let (mut pieces, mut text) = (Vec::new(), String::new());
        loop {
            let rest = self.rest();
            match rest.chars().next() {
                None => return Err("a template has no end".to_owned()),
                Some('`') => {
                    self.take(1);
                    pieces.push((text, String::new()));
                    return Ok(pieces);
                }
                Some('\\') => text.extend(self.escape()?),
                Some('$') if rest.starts_with("${") => {
                    self.take(2);
                    pieces.push((std::mem::take(&mut text), self.take_until("}")?.to_owned()));
                }
                Some(character) => text.push_str(self.take(character.len_utf8())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts() {
        let name = |text: &str| ScriptToken::Name(text.to_owned());
        let text = |text: &str| ScriptToken::Text(text.to_owned());
        let (lua, javascript) = (ScriptLanguage::Lua, ScriptLanguage::JavaScript);
        for (script, language, expect) in [
            (
                "a.b = 1 -- c\n--[[ d\n ]] 'x\\n' .. \"y\\\"\"",
                lua,
                vec![
                    (name("a"), 1),
                    (ScriptToken::Sign("."), 1),
                    (name("b"), 1),
                    (ScriptToken::Sign("="), 1),
                    (ScriptToken::Number(1.0), 1),
                    (text("x\n"), 3),
                    (ScriptToken::Sign(".."), 3),
                    (text("y\""), 3),
                ],
            ),
            ("[[\na ]b]]", lua, vec![(text("a ]b"), 1)]),
            (
                "/* a\n */ x => `b${y}c` // d",
                javascript,
                vec![
                    (name("x"), 2),
                    (ScriptToken::Sign("=>"), 2),
                    (ScriptToken::Template(vec![("b".into(), "y".into()), ("c".into(), String::new())]), 2),
                ],
            ),
            (
                "a(/[/\"]\\/'(/gi) / 2",
                javascript,
                vec![
                    (name("a"), 1),
                    (ScriptToken::Sign("("), 1),
                    (ScriptToken::Sign(PATTERN), 1),
                    (ScriptToken::Sign(")"), 1),
                    (ScriptToken::Sign("/"), 1),
                    (ScriptToken::Number(2.0), 1),
                ],
            ),
            (
                "a++ / /b/g / 2",
                javascript,
                vec![
                    (name("a"), 1),
                    (ScriptToken::Sign("++"), 1),
                    (ScriptToken::Sign("/"), 1),
                    (ScriptToken::Sign(PATTERN), 1),
                    (ScriptToken::Sign("/"), 1),
                    (ScriptToken::Number(2.0), 1),
                ],
            ),
            ("1_000 '\\x41\\u0042'", javascript, vec![(ScriptToken::Number(1000.0), 1), (text("AB"), 1)]),
        ] {
            assert_eq!(tokens(script, language), Ok(expect), "{script}");
        }
        for (script, expect) in [
            ("\n'a", "line 2: a text has no end"),
            ("`a", "line 1: a template has no end"),
            ("a(/[/\n/", "line 1: a regular expression has no end"),
            ("/* a", "line 1: `*/` is missing"),
            ("\u{1}", "has no meaning"),
            ("'\\u00'", "unknown escape"),
        ] {
            let error = tokens(script, javascript).unwrap_err();
            assert!(error.contains(expect), "{script}: {error}");
        }
    }
}
