//! Banned phrases and openings, and where a text has them.

use std::collections::HashMap;

use kdl::{KdlDocument, KdlNode};

/// The words that are banned, each with its replacement.
const BANNED: &str = include_str!("banned.kdl");

/// A word of a text in lower case, or a punctuation mark.
pub(super) struct ProseToken {
    pub(super) text: String,
    pub(super) line: usize,
    /// True where white space or the end of a line comes before.
    pub(super) is_spaced: bool,
}

impl ProseToken {
    pub(super) fn is_word(&self) -> bool {
        self.text.starts_with(|first: char| first.is_alphanumeric() || first == '`')
    }
}

/// Splits lines with their numbers into tokens. A hyphen is a token, an apostrophe within a word is none.
pub(super) fn tokens(lines: &[(usize, String)]) -> Vec<ProseToken> {
    let mut tokens = Vec::new();
    for (line, text) in lines {
        let is_part = |character: char| character.is_alphanumeric() || character == '_' || character == '\'';
        let mut rest = text.as_str();
        let mut is_spaced = true;
        while let Some(first) = rest.chars().next() {
            let length = match rest.find(|character| !is_part(character)).unwrap_or(rest.len()) {
                _ if first == '\'' => 1,
                0 => first.len_utf8(),
                length => rest[..length].trim_end_matches('\'').len(),
            };
            if !first.is_whitespace() {
                tokens.push(ProseToken { text: rest[..length].to_lowercase(), line: *line, is_spaced });
            }
            is_spaced = first.is_whitespace();
            rest = &rest[length..];
        }
    }
    tokens
}

/// Words in a row: for each place the words that may stand there, or none for any word.
struct Pattern(Vec<Vec<String>>);

impl Pattern {
    fn parse(text: &str) -> Self {
        let place = |word: &str| match word {
            "*" => Vec::new(),
            word => word.split('|').map(str::to_lowercase).collect(),
        };
        Self(text.split_whitespace().map(place).collect())
    }

    fn is_at(&self, tokens: &[ProseToken]) -> bool {
        let fits = |(place, token): (&Vec<String>, &ProseToken)| match place.is_empty() {
            true => token.is_word(),
            false => place.contains(&token.text),
        };
        tokens.len() >= self.0.len() && self.0.iter().zip(tokens).all(fits)
    }

    /// True if the pattern is at some place that covers `at` and the `length` tokens from there.
    fn covers(&self, tokens: &[ProseToken], at: usize, length: usize) -> bool {
        let first = (at + length).saturating_sub(self.0.len());
        (first..=at).any(|start| self.is_at(&tokens[start..]))
    }
}

struct Phrase {
    pattern: Pattern,
    replacement: String,
    /// Longer phrases in which this one may stand.
    exceptions: Vec<Pattern>,
}

struct Opening {
    pattern: Pattern,
    replacement: String,
    /// True if only documentation must not begin so.
    is_of_documentation: bool,
}

/// The lists of `banned.kdl`.
pub(super) struct Banned {
    phrases: Vec<Phrase>,
    /// Places in `phrases` by the first word.
    by_first: HashMap<String, Vec<usize>>,
    openings: Vec<Opening>,
}

/// A banned phrase in a text.
pub(super) struct Hit<'a> {
    pub(super) line: usize,
    /// As it stands in the text, in lower case.
    pub(super) found: String,
    pub(super) replacement: &'a str,
}

impl Banned {
    /// The project's own lists.
    pub(super) fn load() -> Result<Self, String> {
        Self::parse(BANNED).map_err(|error| format!("banned.kdl: {error}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let document: KdlDocument = text.parse().map_err(|error| format!("{error}"))?;
        let mut banned = Self { phrases: Vec::new(), by_first: HashMap::new(), openings: Vec::new() };
        for node in document.nodes() {
            let entries = node.children().map_or(&[][..], KdlDocument::nodes);
            match node.name().value() {
                "phrases" => entries.iter().try_for_each(|entry| banned.add_phrase(entry))?,
                list @ ("openings" | "openings-of-documentation") => {
                    for entry in entries {
                        let is_of_documentation = list != "openings";
                        let (pattern, replacement) = read(entry)?;
                        banned.openings.push(Opening { pattern, replacement, is_of_documentation });
                    }
                }
                other => return Err(format!("there is no list {other:?}")),
            }
        }
        Ok(banned)
    }

    fn add_phrase(&mut self, entry: &KdlNode) -> Result<(), String> {
        let (pattern, replacement) = read(entry)?;
        let first = pattern.0.first().filter(|first| !first.is_empty());
        for word in first.ok_or_else(|| format!("{}: begins with any word", entry.name().value()))? {
            self.by_first.entry(word.clone()).or_default().push(self.phrases.len());
        }
        let exceptions = entry.children().map_or(&[][..], KdlDocument::nodes);
        let exceptions = exceptions.iter().map(|exception| Pattern::parse(exception.name().value())).collect();
        self.phrases.push(Phrase { pattern, replacement, exceptions });
        Ok(())
    }

    /// Banned phrases among the tokens, by place.
    pub(super) fn hits<'a>(&'a self, tokens: &[ProseToken]) -> Vec<Hit<'a>> {
        let mut hits = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            for phrase in self.by_first.get(&token.text).into_iter().flatten().map(|index| &self.phrases[*index]) {
                let length = phrase.pattern.0.len();
                if phrase.pattern.is_at(&tokens[at..])
                    && !phrase.exceptions.iter().any(|exception| exception.covers(tokens, at, length))
                {
                    let words: Vec<&str> = tokens[at..at + length].iter().map(|token| token.text.as_str()).collect();
                    let (found, replacement) = (words.join(" "), phrase.replacement.as_str());
                    hits.push(Hit { line: token.line, found, replacement });
                }
            }
        }
        hits
    }

    /// The banned opening with which a comment begins.
    pub(super) fn opening<'a>(&'a self, tokens: &[ProseToken], is_documentation: bool) -> Option<Hit<'a>> {
        let fits =
            |opening: &&Opening| (is_documentation || !opening.is_of_documentation) && opening.pattern.is_at(tokens);
        let opening = self.openings.iter().find(fits)?;
        let words: Vec<&str> = tokens[..opening.pattern.0.len()].iter().map(|token| token.text.as_str()).collect();
        let mut found = words.join(" ");
        found[..1].make_ascii_uppercase();
        Some(Hit { line: tokens[0].line, found, replacement: &opening.replacement })
    }
}

/// An entry's pattern, which is its name, and its replacement.
fn read(entry: &KdlNode) -> Result<(Pattern, String), String> {
    let name = entry.name().value();
    let replacement = entry.get(0).and_then(|value| value.as_string()).filter(|text| !text.is_empty());
    let replacement = replacement.ok_or_else(|| format!("{name:?}: no replacement"))?;
    Ok((Pattern::parse(name), replacement.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTS: &str = r#"
        phrases {
            nobody "no client"
            "take|takes up" "apply"
            "take|takes * up" "apply"
            "behind" "after" { "behind a proxy"; "far behind" }
            ", for they" "because they"
        }
        openings { "What" "a noun"; "The same" "what it is" }
        openings-of-documentation { "How" "a noun" }
    "#;

    fn tokens_of(text: &str) -> Vec<ProseToken> {
        let lines: Vec<_> = text.split('\n').enumerate().map(|(index, line)| (index + 1, line.to_owned())).collect();
        tokens(&lines)
    }

    #[test]
    fn phrases_are_found_across_lines_and_not_in_other_words() {
        let banned = Banned::parse(LISTS).expect("lists");
        for (text, expect) in [
            ("Nobody waits.", "1 nobody: no client"),
            ("nobody's 'nobody'", "1 nobody: no client"),
            ("nobody_else, nobodys", ""),
            ("It takes\nup and takes it up", "1 takes up: apply, 2 takes it up: apply"),
            ("takes. Up", ""),
            ("take-up", ""),
            ("behind a proxy, far behind it", ""),
            ("behind a server", "1 behind: after"),
            ("closed, for they end; for they end", "1 , for they: because they"),
        ] {
            let tokens = tokens_of(text);
            let show = |hit: &Hit<'_>| format!("{} {}: {}", hit.line, hit.found, hit.replacement);
            let hits: Vec<_> = banned.hits(&tokens).iter().map(show).collect();
            assert_eq!(hits.join(", "), expect, "{text:?}");
        }
    }

    #[test]
    fn openings_by_kind_of_comment() {
        let banned = Banned::parse(LISTS).expect("lists");
        for (text, is_documentation, expect) in [
            ("What it is.", false, Some("What")),
            ("The same bytes.", true, Some("The same")),
            ("The bytes.", true, None),
            ("How it is.", true, Some("How")),
            ("How it is.", false, None),
            ("Whatever.", true, None),
        ] {
            let tokens = tokens_of(text);
            let found = banned.opening(&tokens, is_documentation).map(|hit| hit.found);
            assert_eq!(found.as_deref(), expect, "{text:?}");
        }
    }

    #[test]
    fn lists_that_cannot_be_read() {
        for (text, expect) in [
            ("phrases { nobody }", "\"nobody\": no replacement"),
            ("phrases { \"* up\" \"apply\" }", "* up: begins with any word"),
            ("words { a b }", "there is no list \"words\""),
        ] {
            assert_eq!(Banned::parse(text).err().as_deref(), Some(expect));
        }
        assert!(Banned::load().is_ok());
    }
}
