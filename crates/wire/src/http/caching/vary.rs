//! Selection of responses by request fields (RFC 9111, section 4.1).

use crate::http::forwarding::is_same_field;
use crate::http::list::{elements, trim};
use crate::http::negotiation::is_token;
use crate::http::{Fields, Request};

/// Maximum number of field names. With more names, the comparison for each request costs too much.
const NAMES_MAX: usize = 32;

/// Mark before the value of a field with an ambiguous name. No value contains this byte.
const AMBIGUOUS_MARK: u8 = 1;

/// Request fields that select a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vary {
    /// No fields.
    #[default]
    Nothing,
    /// Names in lower case, sorted, without duplicates.
    Fields(Vec<Box<[u8]>>),
    /// `*`: the response depends on more than request fields, so no other request matches. Also used if there are too
    /// many names, or one that no field can have: what its sender means is unknown.
    Everything,
}

impl Vary {
    /// Parses Vary of a response.
    pub fn of(fields: &Fields) -> Self {
        let mut names = Vec::new();
        for element in fields.values(b"vary").flat_map(elements) {
            if element == b"*" || !is_token(element) {
                return Self::Everything;
            }
            names.push(element.to_ascii_lowercase().into_boxed_slice());
        }
        names.sort_unstable();
        names.dedup();
        match names.len() {
            0 => Self::Nothing,
            1..=NAMES_MAX => Self::Fields(names),
            _ => Self::Everything,
        }
    }
}

/// Appends the value of a request field (name in lower case) in a normal form, equal for all requests with the same
/// meaning (section 4.1). It joins lines and removes white space between list members, and differences in case and
/// order where they have no meaning. An absent field differs from an empty one. Some servers treat `_` and `-` in names
/// as equal, others do not, so a request with such a name matches no other.
pub fn write_selecting_value(request: &Request<'_>, name: &[u8], out: &mut Vec<u8>) {
    for field in &request.head.fields {
        let other = field.name.of(request.bytes);
        if other.len() == name.len() && is_same_field(other, name) && !other.eq_ignore_ascii_case(name) {
            out.push(AMBIGUOUS_MARK);
            out.extend_from_slice(field.value.of(request.bytes));
        }
    }
    write_own_value(request, name, out);
}

fn write_own_value(request: &Request<'_>, name: &[u8], out: &mut Vec<u8>) {
    let is_wanted = |other: &[u8]| other.eq_ignore_ascii_case(name);
    let lines = request.head.fields.iter().filter(|field| is_wanted(field.name.of(request.bytes)));
    let mut lines = lines.map(|field| field.value.of(request.bytes)).peekable();
    if lines.peek().is_none() {
        return;
    }
    out.push(b'=');
    let start = out.len();
    let members = lines.flat_map(elements);
    match name {
        // RFC 9110, section 12.5.3: codings have weights, so their order has no meaning.
        b"accept-encoding" => write_sorted(members, out),
        // Section 12.5.4: some servers use the order of languages.
        b"accept-language" => members.enumerate().for_each(|(index, member)| write_member(index, member, true, out)),
        _ => members.enumerate().for_each(|(index, member)| write_member(index, member, false, out)),
    }
    if matches!(name, b"accept-encoding" | b"accept-language") {
        out[start..].make_ascii_lowercase();
    }
}

/// Number of members that are sorted without an allocation; browsers send fewer.
const SORTED_IN_PLACE: usize = 16;

/// Appends the members in an order independent of theirs.
fn write_sorted<'a>(members: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    let (mut few, mut many, mut count) = ([&b""[..]; SORTED_IN_PLACE], Vec::new(), 0);
    for member in members {
        match few.get_mut(count) {
            Some(slot) => *slot = member,
            None => {
                if many.is_empty() {
                    many.extend(few);
                }
                many.push(member);
            }
        }
        count += 1;
    }
    let slots = if many.is_empty() { &mut few[..count] } else { &mut many[..] };
    let lower = |member: &'a [u8]| member.iter().map(u8::to_ascii_lowercase);
    slots.sort_unstable_by(|first, second| lower(first).cmp(lower(second)));
    slots.iter().enumerate().for_each(|(index, member)| write_member(index, member, true, out));
}

/// Appends a list member. Removes white space around parameters if the field has parameters.
fn write_member(index: usize, member: &[u8], has_parameters: bool, out: &mut Vec<u8>) {
    if index > 0 {
        out.push(b',');
    }
    if !has_parameters {
        out.extend_from_slice(member);
        return;
    }
    for (index, part) in member.split(|&byte| byte == b';').enumerate() {
        if index > 0 {
            out.push(b';');
        }
        out.extend_from_slice(trim(part));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fields, with_request};
    use super::*;

    #[test]
    fn named() {
        let check = |lines: &[&str], expect: Vary| {
            let lines: Vec<_> = lines.iter().map(|value| ("Vary", *value)).collect();
            assert_eq!(Vary::of(&fields(&lines)), expect, "{lines:?}");
        };
        let names = |names: &[&str]| Vary::Fields(names.iter().map(|name| name.as_bytes().into()).collect());
        check(&[], Vary::Nothing);
        check(&[" , "], Vary::Nothing);
        check(&["Foo"], names(&["foo"]));
        check(&["foo, Bar", "FOO,, baz"], names(&["bar", "baz", "foo"]));
        for lines in [&["*"][..], &["*, *"], &[", *"], &["", "*"], &["*, Foo"], &["Foo, *"], &["Foo", "*"]] {
            check(lines, Vary::Everything);
        }
        for malformed in ["\"Cookie\"", "Cookie;q=1", "Cookie Accept", "Accept, Cookie:", "Coo\u{e9}kie", "'a', (b)"] {
            check(&[malformed], Vary::Everything);
        }
    }

    #[test]
    fn selecting() {
        let written = |name: &str, lines: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|value| (name, *value)).collect();
            let mut out = Vec::new();
            with_request(&lines, |request| {
                write_selecting_value(request, &name.to_ascii_lowercase().into_bytes(), &mut out)
            });
            out
        };
        let same = |name: &str, first: &[&str], second: &[&str], expect: bool| {
            assert_eq!(written(name, first) == written(name, second), expect, "{name} {first:?} {second:?}");
        };
        same("Foo", &["1"], &["1"], true);
        same("Foo", &["1"], &["2"], false);
        same("Foo", &[], &["1"], false);
        same("Foo", &[], &[""], false);
        same("Foo", &["1, 2"], &["1", "2"], true);
        same("Foo", &["1,2"], &[" 1 ,  2 "], true);
        same("Foo", &["1, 2"], &["2, 1"], false);
        same("Foo", &["a"], &["A"], false);
        same("Foo", &["\"1, 2\""], &["\"1,2\""], false);
        same("Accept-Encoding", &["gzip, br;q=0.5"], &["BR ; q=0.5", "gzip"], true);
        same("Accept-Encoding", &["gzip"], &["br"], false);
        let many: Vec<String> = (0..40).map(|number| format!("c{number}")).collect();
        let turned: Vec<&str> = many.iter().rev().map(String::as_str).collect();
        same("Accept-Encoding", &[&many.join(", ")], &[&turned.join(",")], true);
        same("Accept-Language", &["en, de"], &["eN,De"], true);
        same("Accept-Language", &["en, de"], &["de, en"], false);
        assert_eq!(written("Foo", &[]), b"");
    }

    #[test]
    fn names_that_some_take_for_the_same() {
        let check = |first: &[(&str, &str)], second: &[(&str, &str)], expect: bool| {
            let written = |lines: &[(&str, &str)]| {
                let mut out = Vec::new();
                with_request(lines, |request| write_selecting_value(request, b"a-b", &mut out));
                out
            };
            assert_eq!(written(first) == written(second), expect, "{first:?} {second:?}");
        };
        check(&[("A-B", "1")], &[("a-b", "1"), ("A-C", "2"), ("A_C", "3")], true);
        check(&[("A_B", "1")], &[], false);
        check(&[("A_B", "1")], &[("A-B", "1")], false);
        check(&[("A-B", "1"), ("A_B", "2")], &[("A-B", "1")], false);
        check(&[("A-B", "1"), ("A_B", "2")], &[("A-B", "1_2")], false);
        check(&[("A_B", "1")], &[("A_B", "2")], false);
    }
}
