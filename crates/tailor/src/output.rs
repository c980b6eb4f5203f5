//! Standard output.

use std::io::Write;

/// Prints a text on standard output. A reader that wants no more of it, such as `head`, is not an error.
pub(crate) fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}

/// Formats words so that a shell reads the same words.
pub(crate) fn shell_words(words: &[String]) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_@%+=:,./-".contains(character);
    let quote = |word: &String| match word.is_empty() || !word.chars().all(is_plain) {
        true => format!("'{}'", word.replace('\'', "'\\''")),
        false => word.clone(),
    };
    words.iter().map(quote).collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell() {
        let words = ["bench", "--require", "p99<5ms", "it's", "", "http://[::1]:80/?a&b"].map(str::to_owned);
        assert_eq!(shell_words(&words), "bench --require 'p99<5ms' 'it'\\''s' '' 'http://[::1]:80/?a&b'");
    }
}
