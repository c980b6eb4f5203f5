//! Targeted cache control (RFC 9213): fields such as CDN-Cache-Control. Their syntax is a dictionary of Structured
//! Fields (RFC 8941, section 3.2). A field with any error is ignored.

use super::ResponseDirectives;
use crate::http::Fields;

/// Parses the directives in the field of this name; `None` if it is absent, empty or invalid.
pub(super) fn directives(fields: &Fields, name: &str) -> Option<ResponseDirectives> {
    let lines: Vec<&[u8]> = fields.values(name.as_bytes()).collect();
    let value = lines.join(&b", "[..]);
    let mut directives = ResponseDirectives { is_targeted: true, ..Default::default() };
    let mut parser = StructuredParser { rest: value.trim_ascii() };
    if parser.rest.is_empty() {
        return None;
    }
    loop {
        let (key, item) = parser.member()?;
        add(&mut directives, key, item);
        parser.skip(b" \t");
        match parser.rest {
            [] => return Some(directives),
            [b',', rest @ ..] => parser.rest = rest,
            _ => return None,
        }
        parser.skip(b" \t");
    }
}

/// Adds a member. Ignores a known directive with a value of the wrong type (RFC 9213, section 2.1), except `private`:
/// its sender means no shared cache.
fn add(directives: &mut ResponseDirectives, key: &[u8], item: StructuredItem<'_>) {
    match item {
        StructuredItem::Boolean(true) => directives.add(key),
        StructuredItem::Integer(_) | StructuredItem::Other if key == b"private" => directives.private = true,
        // If a key occurs several times the last one counts (RFC 8941, section 4.2.2).
        StructuredItem::Integer(digits) => {
            let age = match key {
                b"max-age" => &mut directives.max_age,
                b"s-maxage" => &mut directives.s_maxage,
                b"stale-while-revalidate" => &mut directives.stale_while_revalidate,
                b"stale-if-error" => &mut directives.stale_if_error,
                _ => return,
            };
            *age = Some(super::freshness::parse_delta_seconds(digits).unwrap_or(0));
        }
        StructuredItem::Boolean(false) | StructuredItem::Other => {}
    }
}

#[derive(Clone, Copy)]
enum StructuredItem<'a> {
    Boolean(bool),
    /// Digits, with the sign if negative.
    Integer(&'a [u8]),
    /// A type that no directive uses.
    Other,
}

struct StructuredParser<'a> {
    rest: &'a [u8],
}

impl<'a> StructuredParser<'a> {
    fn member(&mut self) -> Option<(&'a [u8], StructuredItem<'a>)> {
        let key = self.key()?;
        let item = if self.eat(b'=') { self.item_or_inner_list()? } else { StructuredItem::Boolean(true) };
        self.parameters()?;
        Some((key, item))
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        let is_first = |byte: u8| byte.is_ascii_lowercase() || byte == b'*';
        is_first(*self.rest.first()?).then_some(())?;
        Some(self.take(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)))
    }

    fn parameters(&mut self) -> Option<()> {
        while self.eat(b';') {
            self.skip(b" ");
            self.key()?;
            if self.eat(b'=') {
                self.item()?;
            }
        }
        Some(())
    }

    fn item_or_inner_list(&mut self) -> Option<StructuredItem<'a>> {
        if !self.eat(b'(') {
            return self.item();
        }
        loop {
            self.skip(b" ");
            if self.eat(b')') {
                return Some(StructuredItem::Other);
            }
            self.item()?;
            self.parameters()?;
            matches!(self.rest.first()?, b' ' | b')').then_some(())?;
        }
    }

    fn item(&mut self) -> Option<StructuredItem<'a>> {
        match *self.rest.first()? {
            b'?' => {
                self.rest = &self.rest[1..];
                let is_true = self.eat(b'1');
                (is_true || self.eat(b'0')).then_some(StructuredItem::Boolean(is_true))
            }
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b':' => {
                self.rest = &self.rest[1..];
                self.take(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                self.eat(b':').then_some(StructuredItem::Other)
            }
            byte if byte.is_ascii_alphabetic() || byte == b'*' => {
                self.take(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte));
                Some(StructuredItem::Other)
            }
            _ => None,
        }
    }

    /// RFC 8941, section 4.2.4: at most 15 digits, or 12 digits and three decimal places.
    fn number(&mut self) -> Option<StructuredItem<'a>> {
        let whole = self.rest;
        let sign = usize::from(self.eat(b'-'));
        let digits = self.take(|byte| byte.is_ascii_digit()).len();
        if !self.eat(b'.') {
            return matches!(digits, 1..=15).then_some(StructuredItem::Integer(&whole[..sign + digits]));
        }
        let fraction = self.take(|byte| byte.is_ascii_digit()).len();
        (matches!(digits, 1..=12) && matches!(fraction, 1..=3)).then_some(StructuredItem::Other)
    }

    fn string(&mut self) -> Option<StructuredItem<'a>> {
        self.rest = &self.rest[1..];
        loop {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                b'"' => return Some(StructuredItem::Other),
                b'\\' => (self.eat(b'"') || self.eat(b'\\')).then_some(())?,
                0x20..=0x7e => {}
                _ => return None,
            }
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_there = self.rest.first() == Some(&byte);
        self.rest = &self.rest[usize::from(is_there)..];
        is_there
    }

    fn skip(&mut self, bytes: &[u8]) {
        self.take(|byte| bytes.contains(&byte));
    }

    fn take(&mut self, is_wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|byte| !is_wanted(*byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fields;
    use super::*;

    fn check(lines: &[&str], expect: Option<ResponseDirectives>) {
        let lines: Vec<_> = lines.iter().map(|value| ("CDN-Cache-Control", *value)).collect();
        let expect = expect.map(|expect| ResponseDirectives { is_targeted: true, ..expect });
        assert_eq!(directives(&fields(&lines), "cdn-cache-control"), expect, "{lines:?}");
    }

    #[test]
    fn valid() {
        let none = ResponseDirectives::default;
        check(&["max-age=5"], Some(ResponseDirectives { max_age: Some(5), ..none() }));
        check(&["max-age=5,  max-age=6"], Some(ResponseDirectives { max_age: Some(6), ..none() }));
        check(&["max-age=-5"], Some(ResponseDirectives { max_age: Some(0), ..none() }));
        check(
            &["max-age=5;x=1; y", "no-store"],
            Some(ResponseDirectives { max_age: Some(5), no_store: true, ..none() }),
        );
        check(&["foobar, private=?1, no-cache=?0"], Some(ResponseDirectives { private: true, ..none() }));
        for value in ["private=1", "private=\"set-cookie\"", "private=x"] {
            check(&[value], Some(ResponseDirectives { private: true, ..none() }));
        }
        // RFC 9213, section 2.1: ignore a value of another type.
        check(
            &["max-age=\"5\", s-maxage=5.0, stale-if-error"],
            Some(ResponseDirectives { stale_if_error: Some(0), ..none() }),
        );
        check(&["a=(1 \"x\\\"\" y;z=:YQ==:), b=*t/o:k"], Some(none()));
    }

    #[test]
    fn invalid() {
        check(&[], None);
        for value in [
            "",
            " ",
            "max-age=5, &&&",
            "max-age =5",
            "max-age= 5",
            "Max-Age=5",
            "max-age=5,",
            "max-age=",
            "max-age=1234567890123456",
            "max-age=1.2345",
            "max-age=\"5",
            "max-age=\"\\x\"",
            "max-age=(1 2",
            "max-age=(1\"2\")",
            "max-age=?2",
            "max-age=:x",
            "max-age=5 no-store",
        ] {
            check(&[value], None);
        }
    }
}
