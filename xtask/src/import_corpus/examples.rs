//! Examples of paths for regular expressions.

/// Paths that an expression may match: its first alternatives, without repetition.
pub(super) fn examples(expression: &str) -> Vec<String> {
    let mut results = vec![String::new()];
    let mut characters = expression.chars().peekable();
    generate(&mut characters, &mut results, 0);
    results.truncate(8);
    let with_slash = |text: String| {
        if text.starts_with('/') { text } else { format!("/{}{text}", if text.starts_with('.') { "x" } else { "" }) }
    };
    results.into_iter().map(with_slash).collect()
}

fn generate(characters: &mut std::iter::Peekable<std::str::Chars<'_>>, results: &mut Vec<String>, depth: usize) {
    let start = results.clone();
    let mut finished: Vec<String> = Vec::new();
    let mut last_length = 1;
    while let Some(character) = characters.next() {
        let piece: Vec<String> = match character {
            '^' | '$' => continue,
            '\\' => match characters.next() {
                Some('d') => vec!["1".to_owned()],
                Some('w') => vec!["a".to_owned()],
                Some('s' | 'b' | 'S' | 'W' | 'D') | None => vec![String::new()],
                Some(literal) => vec![literal.to_string()],
            },
            '.' => vec!["x".to_owned()],
            '[' => {
                let mut first = None;
                let mut is_negated = false;
                for inner in characters.by_ref() {
                    match inner {
                        ']' => break,
                        '^' if first.is_none() => is_negated = true,
                        inner => first = first.or(Some(inner)),
                    }
                }
                vec![if is_negated { "x".to_owned() } else { first.unwrap_or('x').to_string() }]
            }
            '(' => {
                let mut is_negative = false;
                if characters.next_if_eq(&'?').is_some() {
                    match characters.next() {
                        Some('!') => is_negative = true,
                        Some('<' | 'P') => while characters.next_if(|c| *c != '>').is_some() {},
                        _ => {}
                    }
                    characters.next_if_eq(&'>');
                }
                let mut inner = vec![String::new()];
                if depth < 8 {
                    generate(characters, &mut inner, depth + 1);
                }
                if is_negative { vec![String::new()] } else { inner }
            }
            ')' if depth > 0 => break,
            '|' => {
                finished.append(results);
                results.clone_from(&start);
                continue;
            }
            '*' | '?' | '+' => continue,
            '{' => {
                while characters.next_if(|c| *c != '}').is_some() {}
                characters.next();
                continue;
            }
            literal => vec![literal.to_string()],
        };
        last_length = piece.len().max(last_length);
        let joined = piece.iter().flat_map(|piece| results.iter().map(move |result| format!("{result}{piece}")));
        *results = joined.take(12).collect();
    }
    finished.append(results);
    finished.truncate(12);
    *results = finished;
}
