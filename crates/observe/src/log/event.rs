//! Composition of a log line: an event in the past tense, then its values as `key=value`.

use std::fmt::{self, Display, Write as _};
use std::io;

/// Text of an event and its values, such as `overload began: reason=lag lag_ms=120`. Values that show as nothing are left
/// out. A value that a reader could not tell from its neighbours stands in quotes, with `\` before `"` and `\`.
pub fn event<'a>(what: &'a str, values: &'a [(&'a str, &'a dyn Display)]) -> impl Display + 'a {
    fmt::from_fn(move |f| {
        f.write_str(what)?;
        let mut separator = ":";
        let mut text = String::new();
        for (key, value) in values {
            text.clear();
            write!(text, "{value}")?;
            if !text.is_empty() {
                write!(f, "{separator} {key}=")?;
                write_value(f, &text)?;
                separator = "";
            }
        }
        Ok(())
    })
}

fn write_value(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let needs_quotes = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\\' | '=' | ';');
    if !text.contains(needs_quotes) {
        return f.write_str(text);
    }
    f.write_char('"')?;
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            f.write_char('\\')?;
        }
        f.write_char(character)?;
    }
    f.write_char('"')
}

/// Cause of an I/O error in plain words: `permission denied`, without the number that Rust appends.
pub fn cause(error: &io::Error) -> impl Display {
    let mut text = error.to_string();
    if let Some(number) = error.raw_os_error() {
        let suffix = format!(" (os error {number})");
        text.truncate(text.strip_suffix(&suffix).map_or(text.len(), str::len));
        // The C library's texts begin with a capital letter, which stands for nothing unless it begins an acronym.
        let mut characters = text.chars();
        if let (Some(first), Some('a'..='z' | ' ')) = (characters.next(), characters.next()) {
            text.replace_range(..first.len_utf8(), &first.to_lowercase().to_string());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_the_event() {
        let check = |values: &[(&str, &dyn Display)], expect: &str| {
            assert_eq!(event("overload began", values).to_string(), expect);
        };
        check(&[], "overload began");
        check(&[("reason", &"lag"), ("lag_ms", &120)], "overload began: reason=lag lag_ms=120");
        check(&[("trace", &""), ("worker", &0)], "overload began: worker=0");
        check(&[("worker", &0), ("trace", &"")], "overload began: worker=0");
    }

    #[test]
    fn a_value_forges_no_other() {
        let check = |value: &str, expect: &str| assert_eq!(event("e", &[("k", &value)]).to_string(), expect, "{value}");
        for plain in ["127.0.0.1:80", "[::1]:80", "/a/b.html", "naïve", "a,b", "200"] {
            check(plain, &format!("e: k={plain}"));
        }
        check("GET /", "e: k=\"GET /\"");
        check("a=b", "e: k=\"a=b\"");
        check("a;b", "e: k=\"a;b\"");
        check("a\" k=\"b", r#"e: k="a\" k=\"b""#);
        check(r#"a\" k="b"#, r#"e: k="a\\\" k=\"b""#);
        check("a\u{a0}b", "e: k=\"a\u{a0}b\"");
        check("a\nb", "e: k=\"a\nb\"");
    }

    #[test]
    fn causes_in_plain_words() {
        let of = |number| cause(&io::Error::from_raw_os_error(number)).to_string();
        assert_eq!(of(13), "permission denied");
        assert_eq!(of(98), "address already in use");
        assert_eq!(cause(&io::Error::other("No such thing")).to_string(), "No such thing");
        assert_eq!(cause(&io::ErrorKind::UnexpectedEof.into()).to_string(), "unexpected end of file");
    }
}
