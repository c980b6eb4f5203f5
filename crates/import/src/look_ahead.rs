//! Expressions with negative look-ahead, which expressions here lack, in the form without it.
//!
//! `/\.(?!well-known)` matches the same paths as `/\.(?:$|[^w]|w(?:$|[^e]|e…))`. That is possible where only fixed texts
//! are looked for, and where nothing else must match after it.

use std::collections::BTreeMap;

/// Most bytes of the texts that are looked for; the result has some ten times as many.
const TEXTS_BYTES_MAX: usize = 400;

/// The expression without look-ahead; `None` if it cannot be written so. Expressions without look-ahead stay.
pub(crate) fn without(expression: &str) -> Option<String> {
    let mut result = String::new();
    let mut rest = expression;
    while let Some(start) = find(rest) {
        result.push_str(&rest[..start]);
        let inner = &rest[start + "(?!".len()..];
        let end = end_of_group(inner)?;
        let after = &inner[end + 1..];
        // One more letter, or any number of them.
        let letter = after.strip_prefix('.').filter(|rest| rest.is_empty() || rest.starts_with(['|', ')']));
        let tail = letter.or(after.strip_prefix(".*")).unwrap_or(after);
        if !(tail.is_empty() || tail.starts_with(['|', ')']) || (after != tail && tail == "$")) {
            return None;
        }
        let others = other_than(&texts(&inner[..end])?);
        result.push_str(&if letter.is_some() { others.replacen(r"\z|", "", 1) } else { others });
        rest = letter.unwrap_or(after);
    }
    result.push_str(rest);
    Some(result)
}

/// Start of the first look-ahead that is no literal text.
fn find(expression: &str) -> Option<usize> {
    let mut is_escaped = false;
    expression.char_indices().find_map(|(at, character)| {
        let is_literal = std::mem::take(&mut is_escaped);
        is_escaped = character == '\\' && !is_literal;
        (!is_literal && expression[at..].starts_with("(?!")).then_some(at)
    })
}

/// Place of the parenthesis that closes a group, after its start.
fn end_of_group(inner: &str) -> Option<usize> {
    let (mut depth, mut is_escaped) = (0, false);
    inner.char_indices().find_map(|(at, character)| {
        match character {
            _ if std::mem::take(&mut is_escaped) => {}
            '\\' => is_escaped = true,
            '(' => depth += 1,
            ')' if depth == 0 => return Some(at),
            ')' => depth -= 1,
            _ => {}
        }
        None
    })
}

/// Fixed texts of which one is looked for.
fn texts(inner: &str) -> Option<Vec<String>> {
    let inner = match inner.strip_prefix("(?:").or(inner.strip_prefix('(')).and_then(|inner| inner.strip_suffix(')')) {
        Some(group) if end_of_group(group).is_none() => group,
        _ => inner,
    };
    let mut all = vec![String::new()];
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        let last = all.last_mut()?;
        match character {
            '|' => all.push(String::new()),
            '\\' => last.push(characters.next().filter(|next| !next.is_alphanumeric())?),
            '.' | '(' | ')' | '[' | ']' | '*' | '+' | '?' | '{' | '}' | '^' | '$' => return None,
            literal => last.push(literal),
        }
    }
    (all.iter().map(String::len).sum::<usize>() <= TEXTS_BYTES_MAX && all.iter().all(|text| !text.is_empty()))
        .then_some(all)
}

/// An expression for all that does not begin with one of these texts.
fn other_than(texts: &[String]) -> String {
    let mut by_first: BTreeMap<char, Vec<String>> = BTreeMap::new();
    for text in texts {
        let mut characters = text.chars();
        if let Some(first) = characters.next() {
            by_first.entry(first).or_default().push(characters.as_str().to_owned());
        }
    }
    let in_class = |letter: &char| match letter {
        '\\' | ']' | '[' | '^' | '-' | '&' | '~' => format!("\\{letter}"),
        letter => letter.to_string(),
    };
    let class: String = by_first.keys().map(in_class).collect();
    let mut alternatives = vec![r"\z".to_owned(), format!("[^{class}]")];
    for (first, rest) in &by_first {
        // All that continues a whole text begins with it.
        if !rest.iter().any(String::is_empty) {
            alternatives.push(format!("{}{}", regex::escape(&first.to_string()), other_than(rest)));
        }
    }
    format!("(?:{})", alternatives.join("|"))
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[test]
    fn look_ahead_is_written_out() {
        let check = |expression: &str, fits: &[&str], others: &[&str]| {
            let text = without(expression).unwrap();
            let found = Regex::new(&text).unwrap();
            fits.iter().for_each(|path| assert!(found.is_match(path), "{path}: {text}"));
            others.iter().for_each(|path| assert!(!found.is_match(path), "{path}: {text}"));
        };
        check(
            r"/\.(?!well-known)",
            &["/.git/x", "/a/.", "/.well", "/.well-x"],
            &["/.well-known", "/.well-known/a", "/a"],
        );
        check(r"/\.(?!well-known).*", &["/.env", "/.well-known/.env"], &["/.well-known/a"]);
        check(r"(?i)/\.(?!well-known\/)", &["/.well-known", "/.WELL"], &["/.Well-Known/a"]);
        check(r"^/(?!admin|api)", &["/", "/a", "/adm", "/x"], &["/admin", "/api/x"]);
        check(r"\.inc$|^(\.(?!well-known).*|Root)", &["a.inc", ".git", "Root"], &[".well-known"]);
        check(r"a\(?!b", &["a(!b"], &["a!c"]);
    }

    #[test]
    fn what_cannot_be_written_out_is_known() {
        let check = |expression: &str| assert_eq!(without(expression), None, "{expression}");
        check(r"^/(?!a)b");
        check(r"^/(?!v[12])");
        check(r"^/(?!a");
        check(r"^/(?!)");
    }
}
