//! The Cookie field (RFC 6265, section 4.2), read as leniently as most applications read it.

use super::{KnownField, Request};

/// Names and values of a request's cookies, in their order. Several field lines mean the same as one whose parts `; `
/// separates (RFC 9113, section 8.2.3). A part without `=` is a name without a value.
pub fn cookies<'a>(request: &Request<'a>) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    let pairs = request.field_lines(KnownField::Cookie).flat_map(|line| line.split(|&byte| byte == b';'));
    pairs.map(<[u8]>::trim_ascii).map(|pair| match memchr::memchr(b'=', pair) {
        Some(at) => (pair[..at].trim_ascii_end(), pair[at + 1..].trim_ascii_start()),
        None => (pair, &b""[..]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{RequestHead, Span};

    #[test]
    fn names_and_values() {
        let check = |lines: &[&str], expect: &[(&str, &str)]| {
            let bytes = lines.concat().into_bytes();
            let (mut head, mut at) = (RequestHead::default(), 0);
            for line in lines {
                head.push_field(Span::new(at, at), Span::new(at, at + line.len()), KnownField::Cookie);
                at += line.len();
            }
            let request = Request { head: &head, bytes: &bytes };
            let expect: Vec<_> = expect.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
            assert_eq!(cookies(&request).collect::<Vec<_>>(), expect, "{lines:?}");
        };
        check(&[], &[]);
        check(&["a=1"], &[("a", "1")]);
        check(&["a=1; b=2", "c=3"], &[("a", "1"), ("b", "2"), ("c", "3")]);
        check(&["a=1;b=2;\tc"], &[("a", "1"), ("b", "2"), ("c", "")]);
        check(&["a=b=c; =d; a = e ;"], &[("a", "b=c"), ("", "d"), ("a", "e"), ("", "")]);
        check(&["a=\"1; 2\""], &[("a", "\"1"), ("2\"", "")]);
    }
}
