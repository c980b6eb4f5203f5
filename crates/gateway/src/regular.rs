//! Regular expressions of resources.

/// Bytes of a regular expression, at most, and its memory once compiled.
const REGEX_BYTES_MAX: usize = 4 << 10;
const REGEX_MEMORY_MAX: usize = 1 << 20;

/// Reason why a regular expression cannot be compiled.
pub(crate) fn regex_problem(text: &str) -> Option<String> {
    if text.len() > REGEX_BYTES_MAX {
        return Some(format!("the regular expression has more than {REGEX_BYTES_MAX} bytes"));
    }
    let compiled = regex::RegexBuilder::new(text).size_limit(REGEX_MEMORY_MAX).build();
    compiled.err().map(|error| {
        let error = error.to_string();
        let cause = error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        format!("the regular expression {text:?} is not valid: {cause}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions() {
        for (text, is_valid) in [("/a/[0-9]+", true), ("(", false), ("(?=x)", false), ("a{1000}{1000}{1000}", false)] {
            assert_eq!(regex_problem(text).is_none(), is_valid, "{text}");
        }
        assert!(regex_problem(&"a".repeat(5_000)).is_some());
    }
}
