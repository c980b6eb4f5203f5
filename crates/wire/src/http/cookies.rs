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

/// Value of the first cookie of this name, as [`cookies`] has it.
pub fn cookie<'a>(request: &Request<'a>, name: &[u8]) -> Option<&'a [u8]> {
    if !request.head.has(KnownField::Cookie) {
        return None;
    }
    request.field_lines(KnownField::Cookie).find_map(|line| {
        let mut rest = line;
        loop {
            let end = memchr::memchr(b';', rest).unwrap_or(rest.len());
            let after = rest[..end].trim_ascii().strip_prefix(name).map(<[u8]>::trim_ascii_start);
            match after {
                Some([]) => return Some(&b""[..]),
                Some([b'=', value @ ..]) => return Some(value.trim_ascii_start()),
                _ => rest = rest.get(end + 1..)?,
            }
        }
    })
}

/// Returns whether some application may read a cookie by this name, or by a name that begins with it. Old Java servers
/// split cookies at commas, too. PHP turns dots, spaces and brackets in names into underscores, ASP.NET ignores letter
/// case, and some applications decode names.
pub fn cookie_may_have_name((name, value): (&[u8], &[u8]), wanted: &[u8], is_prefix: bool) -> bool {
    let of_value = value.split(|&byte| byte == b',').skip(1);
    let mut names = name.split(|&byte| byte == b',').chain(of_value).map(|part| {
        let end = memchr::memchr(b'=', part).unwrap_or(part.len());
        part[..end].trim_ascii()
    });
    names.any(|name| is_read_as(name, wanted, is_prefix))
}

/// Returns whether some application may find an argument of this name, and of this value if there is one, in a query.
/// Applications decode names and values, some split at semicolons, too, and PHP folds names as those of cookies.
pub fn query_may_have(query: &[u8], wanted: &[u8], wanted_value: Option<&[u8]>) -> bool {
    let mut arguments = query.split(|&byte| matches!(byte, b'&' | b';')).map(|pair| {
        let at = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        (&pair[..at], pair.get(at + 1..).unwrap_or_default())
    });
    let spaced = |byte| if byte == b'+' { b' ' } else { byte };
    arguments.any(|(name, value)| {
        is_read_as(name, wanted, false)
            && wanted_value.is_none_or(|wanted| decoded(value).map(spaced).eq(decoded(wanted).map(spaced)))
    })
}

fn is_read_as(name: &[u8], wanted: &[u8], is_prefix: bool) -> bool {
    let mut bytes = decoded(name).skip_while(|byte| matches!(byte, b' ' | b'\t' | b'"'));
    let is_begin = wanted.iter().all(|byte| bytes.next().is_some_and(|other| folded(other) == folded(*byte)));
    // In PHP, `a[b]` is a part of `a`.
    is_begin && (is_prefix || matches!(bytes.next(), None | Some(b'[' | b'"' | 0)))
}

fn folded(byte: u8) -> u8 {
    match byte {
        b'.' | b' ' | b'+' | b'[' => b'_',
        _ => byte.to_ascii_lowercase(),
    }
}

/// Bytes of a name, percent-decoded.
fn decoded(name: &[u8]) -> impl Iterator<Item = u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let mut rest = name;
    core::iter::from_fn(move || {
        let (&first, tail) = rest.split_first()?;
        rest = tail;
        if first == b'%'
            && let [high, low, tail @ ..] = tail
            && let (Some(high), Some(low)) = (digit(*high), digit(*low))
        {
            rest = tail;
            return Some(high << 4 | low);
        }
        Some(first)
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
            for name in ["", "a", "b", "c", "2\"", "1"] {
                let first = expect.iter().find(|(known, _)| *known == name.as_bytes()).map(|(_, value)| *value);
                assert_eq!(cookie(&request, name.as_bytes()), first, "{lines:?} {name}");
            }
        };
        check(&[], &[]);
        check(&["a=1"], &[("a", "1")]);
        check(&["a=1; b=2", "c=3"], &[("a", "1"), ("b", "2"), ("c", "3")]);
        check(&["a=1;b=2;\tc"], &[("a", "1"), ("b", "2"), ("c", "")]);
        check(&["a=b=c; =d; a = e ;"], &[("a", "b=c"), ("", "d"), ("a", "e"), ("", "")]);
        check(&["ab=1; a =2", "a"], &[("ab", "1"), ("a", "2"), ("a", "")]);
        check(&["a=\"1; 2\""], &[("a", "\"1"), ("2\"", "")]);
    }

    #[test]
    fn names_by_which_applications_read_cookies() {
        let check = |name: &str, value: &str, expect: [bool; 2]| {
            let may = |is_prefix| cookie_may_have_name((name.as_bytes(), value.as_bytes()), b"login_a", is_prefix);
            assert_eq!([may(false), may(true)], expect, "{name}={value}");
        };
        check("login_a", "1", [true, true]);
        check("login_a1", "", [false, true]);
        check("login_", "", [false, false]);
        check("xlogin_a", "", [false, false]);
        for name in ["LOGIN_a", "login.a", "login a", "login[a", "login+a", "%6Cogin%5fa", "%20login_a", "\"login_a\""]
        {
            check(name, "1", [true, true]);
        }
        check("login_a[b]", "", [true, true]);
        check("login_a%00b", "", [true, true]);
        check("login_%6", "", [false, false]);
        check("login-a", "", [false, false]);
        check("x", "1,login_a=2", [true, true]);
        check("x", "1, login_ab=2", [false, true]);
        check("x,login_a", "2", [true, true]);
        check("x", "login_a", [false, false]);
    }

    #[test]
    fn arguments_that_applications_find() {
        let check = |query: &str, expect: [bool; 2]| {
            let may = |value| query_may_have(query.as_bytes(), b"action", value);
            assert_eq!([may(None), may(Some(&b"a b"[..]))], expect, "{query}");
        };
        for query in ["action=a+b", "x&action=a%20b", "x;%61ction=%61+b", "ACTION=a b", "action[]=a+b"] {
            check(query, [true, true]);
        }
        check("action", [true, false]);
        check("action=a", [true, false]);
        check("x=action", [false, false]);
        check("actions=a+b", [false, false]);
        check("", [false, false]);
    }
}
