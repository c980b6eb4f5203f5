//! Words of a condition.

use std::ops::Range;

use crate::ExpressionError;

/// A token and its place in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionToken {
    pub(crate) kind: ConditionTokenKind,
    pub(crate) span: Range<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConditionTokenKind {
    /// Name of a variable, or a word such as `and`.
    Word(String),
    /// Text in single quotes; two of them are one.
    Text(String),
    /// Whole number.
    Number(u64),
    /// `==`, `(` and the like.
    Symbol(&'static str),
}

/// Symbols, the longer first.
const SYMBOLS: [&str; 9] = ["==", "!=", "<=", ">=", "<", ">", "(", ")", ","];

/// Symbols of other languages, and their forms here.
const FOREIGN: [(&str, &str); 11] = [
    ("&&", "write `and`"),
    ("||", "write `or`"),
    ("=~", "write `matches`"),
    ("!~", "write `not path matches '…'`"),
    ("~", "write `matches`"),
    ("=", "write `==`"),
    ("!", "write `not`"),
    ("\"", "write texts in single quotes: `'…'`"),
    ("$", "variables have no dollar sign: write `host`, not `$host`"),
    ("{", "variables in conditions have no braces: write `host`, not `{host}`"),
    ("/", "write texts and paths in single quotes: `'/…'`"),
];

pub(crate) fn tokens(text: &str) -> Result<Vec<ConditionToken>, ExpressionError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(character) = text[at..].chars().next() {
        let start = at;
        let kind = match character {
            ' ' | '\t' | '\n' | '\r' => {
                at += 1;
                continue;
            }
            '\'' => {
                let (content, end) = quoted(text, at)?;
                at = end;
                ConditionTokenKind::Text(content)
            }
            '0'..='9' => {
                at += text[at..].bytes().take_while(|byte| is_of_word(*byte)).count();
                let number = text[start..at].parse().map_err(|_| {
                    let message = format!("`{}` is not a number", &text[start..at]);
                    ExpressionError::new(start..at, message)
                        .help("write texts and addresses in single quotes: `'192.0.2.1'`")
                })?;
                ConditionTokenKind::Number(number)
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                at += text[at..].bytes().take_while(|byte| is_of_word(*byte)).count();
                ConditionTokenKind::Word(text[start..at].to_owned())
            }
            _ => match SYMBOLS.iter().find(|symbol| text[at..].starts_with(**symbol)) {
                Some(symbol) => {
                    at += symbol.len();
                    ConditionTokenKind::Symbol(symbol)
                }
                None => {
                    let end = at + character.len_utf8();
                    let error =
                        |span: Range<usize>, shown: &str| ExpressionError::new(span, format!("unexpected `{shown}`"));
                    let foreign = FOREIGN.iter().find(|(foreign, _)| text[at..].starts_with(foreign));
                    return Err(match foreign {
                        Some((foreign, help)) => error(at..at + foreign.len(), foreign).help(*help),
                        None => error(at..end, &text[at..end]),
                    });
                }
            },
        };
        tokens.push(ConditionToken { kind, span: start..at });
    }
    Ok(tokens)
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)
}

/// Content of a text in quotes, and where it ends.
fn quoted(text: &str, start: usize) -> Result<(String, usize), ExpressionError> {
    let mut content = String::new();
    let mut rest = start + 1;
    loop {
        let Some(length) = text[rest..].find('\'') else {
            let error = ExpressionError::new(start..text.len(), "this text has no closing quote");
            return Err(error.help("write `'` after it; write `''` for a single quote within a text"));
        };
        content.push_str(&text[rest..rest + length]);
        rest += length + 1;
        if !text[rest..].starts_with('\'') {
            return Ok((content, rest));
        }
        content.push('\'');
        rest += 1;
    }
}
