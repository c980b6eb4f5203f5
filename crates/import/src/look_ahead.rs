//! Expressions with negative look-ahead and lookbehind, which expressions here lack, in the form without them.
//!
//! `/\.(?!well-known)` matches the same paths as `/\.(?:$|[^w]|w(?:$|[^e]|e…))`. That is possible where only fixed texts
//! are looked for. Nothing else may have to match after it, except letters of one class up to the end. Lookbehind must
//! begin the expression or one of its branches.

use std::collections::BTreeMap;

use crate::pattern::end_of_group;

/// Most bytes of the texts that are looked for; the result has some ten times as many.
const TEXTS_BYTES_MAX: usize = 400;

/// The expression without look-ahead and lookbehind; `None` if it cannot be written so. Others stay.
pub(crate) fn without(expression: &str) -> Option<String> {
    let expression = &without_look_behind(expression)?;
    let mut result = String::new();
    let mut rest = expression.as_str();
    while let Some(start) = find(rest, "(?!") {
        result.push_str(&rest[..start]);
        let inner = &rest[start + "(?!".len()..];
        let end = end_of_group(inner)?;
        let after = &inner[end + 1..];
        if let Some((class, is_optional, tail)) = class_to_end(after) {
            let others = other_than(&texts(&inner[..end])?, class, &format!("[^{class}]*$"));
            result.push_str(&if is_optional { others } else { others.replacen(r"\z|", "", 1) });
            rest = tail;
            continue;
        }
        if let Some((letter, tail)) = letter_after_any(after) {
            let texts = texts(&inner[..end])?;
            if texts.iter().any(|text| text.contains(letter)) {
                return None;
            }
            let others = other_than(&texts, &format!("{letter}\n"), &format!(".*{letter}"));
            result.push_str(&others.replace(r"\z|", &format!("{letter}|")));
            rest = tail;
            continue;
        }
        // One more letter, or any number of them.
        let letter = after.strip_prefix('.').filter(|rest| rest.is_empty() || rest.starts_with(['|', ')']));
        let tail = letter.or(after.strip_prefix(".*")).unwrap_or(after);
        if !(tail.is_empty() || tail.starts_with(['|', ')']) || (after != tail && tail == "$")) {
            return None;
        }
        let others = other_than(&texts(&inner[..end])?, "", "");
        result.push_str(&if letter.is_some() { others.replacen(r"\z|", "", 1) } else { others });
        rest = letter.unwrap_or(after);
    }
    result.push_str(rest);
    Some(result)
}

/// The class of letters of which the rest of a branch consists, whether there may be none, and what follows the branch.
/// Within a name, what a slash begins is the rest of a path.
fn class_to_end(after: &str) -> Option<(&str, bool, &str)> {
    let (class, rest) = after.strip_prefix("[^")?.split_once(']')?;
    let is_plain = class.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./_".contains(&byte));
    let (is_optional, rest) = match rest.strip_prefix('*') {
        Some(rest) => (true, rest),
        None => (false, rest.strip_prefix('+')?),
    };
    let tail = rest.strip_prefix('$')?;
    (is_plain && (tail.is_empty() || tail.starts_with(['|', ')']))).then_some((class, is_optional, tail))
}

/// The letter that must follow any letters at the end of a branch, and what follows the branch.
fn letter_after_any(after: &str) -> Option<(char, &str)> {
    let rest = after.strip_prefix(".*")?;
    let letter = rest.chars().next().filter(|letter| ":;,=@/ ".contains(*letter))?;
    let tail = &rest[letter.len_utf8()..];
    (tail.is_empty() || tail.starts_with(['|', ')'])).then_some((letter, tail))
}

/// The expression without lookbehind: `(?<!ab)c` is `(?:^|[^b]|(?:^|[^a])b)c`.
fn without_look_behind(expression: &str) -> Option<String> {
    let mut result = String::new();
    let mut rest = expression;
    while let Some(start) = find(rest, "(?<!") {
        result.push_str(&rest[..start]);
        let before = result.strip_prefix("(?i)").unwrap_or(&result);
        let before = before.trim_end_matches("(?:").trim_end_matches('(');
        if !(before.is_empty() || before.ends_with('|')) {
            return None;
        }
        let inner = &rest[start + "(?<!".len()..];
        let end = end_of_group(inner)?;
        let [text] = texts(&inner[..end])?.try_into().ok()?;
        let letters: Vec<char> = text.chars().rev().collect();
        let mut alternatives = Vec::new();
        let mut known = String::new();
        for letter in letters {
            alternatives.push(format!("(?:^|[^{}]){known}", in_class(&letter)));
            known.insert_str(0, &regex::escape(&letter.to_string()));
        }
        result.push_str(&format!("(?:{})", alternatives.join("|")));
        rest = &inner[end + 1..];
    }
    result.push_str(rest);
    Some(result)
}

/// Start of the first group with this beginning that is no literal text.
fn find(expression: &str, beginning: &str) -> Option<usize> {
    let mut is_escaped = false;
    expression.char_indices().find_map(|(at, character)| {
        let is_literal = std::mem::take(&mut is_escaped);
        is_escaped = character == '\\' && !is_literal;
        (!is_literal && expression[at..].starts_with(beginning)).then_some(at)
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

/// A letter in a class of letters.
fn in_class(letter: &char) -> String {
    match letter {
        '\\' | ']' | '[' | '^' | '-' | '&' | '~' => format!("\\{letter}"),
        letter => letter.to_string(),
    }
}

/// An expression for all that does not begin with one of these texts. Of a letter that differs, none is in `excluded`,
/// and `tail` must match after it.
fn other_than(texts: &[String], excluded: &str, tail: &str) -> String {
    let mut by_first: BTreeMap<char, Vec<String>> = BTreeMap::new();
    for text in texts {
        let mut characters = text.chars();
        if let Some(first) = characters.next() {
            by_first.entry(first).or_default().push(characters.as_str().to_owned());
        }
    }
    let class: String = by_first.keys().map(in_class).collect();
    let mut alternatives = vec![r"\z".to_owned(), format!("[^{class}{excluded}]{tail}")];
    for (first, rest) in &by_first {
        // All that continues a whole text begins with it.
        let is_possible = !rest.iter().any(String::is_empty) && !excluded.contains(*first);
        if is_possible {
            let first = regex::escape(&first.to_string());
            alternatives.push(format!("{first}{}", other_than(rest, excluded, tail)));
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
        // Lemmy: methods other than these, with what follows them.
        check(
            r"^(?!(GET|HEAD)).*:",
            &["POST:a", "G:", "GE:a", "HEA:", ":", "PUT:x:y", "HEX:GET:"],
            &["GET:a", "HEAD:a", "GETX:a", "POST", "GE", ""],
        );
        check(r"/(?!oidc)[^./]+$", &["/a", "/x/oid", "/oixc"], &["/", "/oidc", "/a.b", "/oidcx"]);
        check(r"\.(?!css|js)[^./]*$", &["a.", "a.cs", "a.j", "b.png"], &["a.css", "a.jsx", "a.png/b"]);
        check(r"(?i)((\.ini|(?<!robots)\.txt))", &["a.ini", ".txt", "bots.TXT"], &["robots.txt", "x/Robots.txt"]);
    }

    #[test]
    fn what_cannot_be_written_out_is_known() {
        let check = |expression: &str| assert_eq!(without(expression), None, "{expression}");
        check(r"^/(?!a)b");
        check(r"^/(?!v[12])");
        check(r"^/(?!a");
        check(r"^/(?!)");
        check(r"a(?<!b)c");
        check(r"(?<!a|b)c");
    }
}
