//! W3C Trace Context, levels 1 and 2: the fields `traceparent` and `tracestate`.

use std::fmt;

/// Name of the field that identifies the trace and the sender's span.
pub const TRACEPARENT: &str = "traceparent";
/// Name of the field for data of tracing systems.
pub const TRACESTATE: &str = "tracestate";

/// Length of a `traceparent` with version 00.
const TRACEPARENT_BYTES: usize = 55;
/// Maximum number of list members; longer lists are dropped (section 3.3.1.1).
const MEMBERS_MAX: usize = 32;
/// Maximum length of a member's key, and of its value (section 3.3.1.3).
const KEY_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 256;

const FLAG_SAMPLED: u8 = 0x01;
const FLAG_RANDOM: u8 = 0x02;

/// Id of a trace; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// Id of a span, which is one operation within a trace; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

/// Trace and span of the sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Trace that the request belongs to.
    pub trace_id: TraceId,
    /// Span of the sender.
    pub parent_id: SpanId,
    /// True if the sender may have recorded its span.
    pub is_sampled: bool,
    /// True if the last 7 bytes of the trace id are random (level 2, section 3.2.2.5.2).
    pub is_random: bool,
}

impl TraceId {
    /// Creates the id from a number; 0 becomes 1.
    pub fn new(number: u128) -> Self {
        Self(number.max(1).to_be_bytes())
    }

    /// Returns the id, most significant byte first.
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// Returns whether to sample the trace, for a share from 0 to 1. The random bytes of the id decide, so all systems
    /// that use them choose the same traces.
    pub fn is_among(self, part: f64) -> bool {
        let [.., a, b, c, d, e, f, g] = self.0;
        let random = u64::from_be_bytes([0, a, b, c, d, e, f, g]);
        random < (part * (1_u64 << 56) as f64) as u64
    }
}

impl SpanId {
    /// Creates the id from a number; 0 becomes 1.
    pub fn new(number: u64) -> Self {
        Self(number.max(1).to_be_bytes())
    }

    /// Returns the id, most significant byte first.
    pub fn bytes(self) -> [u8; 8] {
        self.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl TraceParent {
    /// Parses the lines of a request's `traceparent`. Returns `None` if there is not exactly one valid line; a new
    /// trace then begins (section 4.3).
    pub fn parse<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let value = lines.next()?.trim_ascii();
        if lines.next().is_some() {
            return None;
        }
        let (known, rest) = value.split_at_checked(TRACEPARENT_BYTES)?;
        let version = hexadecimal::<1>(&known[..2])?;
        match version {
            [0] if !rest.is_empty() => return None,
            [0xff] => return None,
            // Parse the known part of later versions (section 3.2.4).
            _ if !rest.is_empty() && !rest.starts_with(b"-") => return None,
            _ => {}
        }
        if [known[2], known[35], known[52]] != [b'-'; 3] {
            return None;
        }
        let trace_id = hexadecimal::<16>(&known[3..35]).filter(|id| *id != [0; 16])?;
        let parent_id = hexadecimal::<8>(&known[36..52]).filter(|id| *id != [0; 8])?;
        let [flags] = hexadecimal::<1>(&known[53..55])?;
        Some(Self {
            trace_id: TraceId(trace_id),
            parent_id: SpanId(parent_id),
            is_sampled: flags & FLAG_SAMPLED != 0,
            is_random: flags & FLAG_RANDOM != 0,
        })
    }
}

impl TraceParent {
    /// Returns the defined flags (section 3.2.2.5). Undefined ones must not be forwarded.
    pub fn flags(self) -> u8 {
        u8::from(self.is_sampled) * FLAG_SAMPLED + u8::from(self.is_random) * FLAG_RANDOM
    }
}

/// Writes the value of the field in version 00.
impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace_id, self.parent_id, self.flags())
    }
}

/// Joins the members of a request's `tracestate` to one line. Returns an empty line if there are none, or if the field
/// is invalid and must be dropped (section 3.3.1).
pub fn joined_tracestate<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut joined = Vec::new();
    let mut count = 0;
    for member in lines.flat_map(|line| line.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii) {
        if member.is_empty() {
            continue;
        }
        count += 1;
        if count > MEMBERS_MAX || !is_member(member) {
            return Vec::new();
        }
        if count > 1 {
            joined.push(b',');
        }
        joined.extend_from_slice(member);
    }
    joined
}

fn is_member(member: &[u8]) -> bool {
    let Some(equals) = member.iter().position(|&byte| byte == b'=') else { return false };
    let (key, value) = (&member[..equals], &member[equals + 1..]);
    is_key(key)
        && (1..=VALUE_BYTES_MAX).contains(&value.len())
        && value.iter().all(|byte| matches!(byte, b' '..=b'~') && *byte != b'=')
}

/// Keys of level 2 (section 3.3.1.3.1), which include those of level 1.
fn is_key(key: &[u8]) -> bool {
    let is_first = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_further = |byte: &u8| is_first(byte) || b"_-*/@".contains(byte);
    key.len() <= KEY_BYTES_MAX && key.first().is_some_and(is_first) && key.iter().all(is_further)
}

/// Parses lower-case hexadecimal digits, two for each byte.
fn hexadecimal<const BYTES: usize>(digits: &[u8]) -> Option<[u8; BYTES]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns what is forwarded of these lines if their trace continues.
    fn passed_on(lines: &[&str]) -> Option<String> {
        TraceParent::parse(lines.iter().map(|line| line.as_bytes())).map(|parent| parent.to_string())
    }

    const TRACE: &str = "12345678901234567890123456789012";
    const PARENT: &str = "1234567890123456";

    /// Cases of the W3C test suite (`test/test.py` of w3c/trace-context), with their names there.
    #[test]
    fn traceparent() {
        let check = |value: &str, expect: Option<&str>| {
            let (value, expect) = (fill(value), expect.map(fill));
            assert_eq!(passed_on(&[&value]), expect, "{value}");
        };
        assert_eq!(passed_on(&[]), None);
        let duplicated = fill("00-T-P-01");
        assert_eq!(passed_on(&[&duplicated, &duplicated]), None);
        check("00-T-P-01", Some("00-T-P-01"));
        check("00-T-P-00", Some("00-T-P-00"));
        // random flag (level 2), and flags without a meaning
        check("00-T-P-02", Some("00-T-P-02"));
        check("00-T-P-ff", Some("00-T-P-03"));
        // version 0x00
        check("00-T-P-01.", None);
        check("00-T-P-01-what-the-future-will-be-like", None);
        // version 0xcc
        check("cc-T-P-01", Some("00-T-P-01"));
        check("cc-T-P-01-what-the-future-will-be-like", Some("00-T-P-01"));
        check("cc-T-P-01.what-the-future-will-be-like", None);
        // version 0xff
        check("ff-T-P-01", None);
        // version: illegal characters, too long, too short
        for version in [".0", "0.", "000", "0000", "0", ""] {
            check(&format!("{version}-T-P-01"), None);
        }
        // trace id: all zero, illegal characters, too long, too short
        for trace in ["0".repeat(32), format!(".{}", &TRACE[1..]), format!("{}.", &TRACE[1..]), format!("{TRACE}3")] {
            check(&format!("00-{trace}-P-01"), None);
        }
        check(&format!("00-{}-P-01", &TRACE[1..]), None);
        check(&format!("00-{}-P-01", "ABCDEF7890123456789012345678901A"), None);
        // parent id: the same
        for parent in ["0".repeat(16), format!(".{}", &PARENT[1..]), format!("{}.", &PARENT[1..]), format!("{PARENT}7")]
        {
            check(&format!("00-T-{parent}-01"), None);
        }
        check(&format!("00-T-{}-01", &PARENT[1..]), None);
        // flags: illegal characters, too long, too short
        for flags in [".0", "0.", "001", "1", "", "0A"] {
            check(&format!("00-T-P-{flags}"), None);
        }
        // OWS
        for value in [" 00-T-P-01", "\t00-T-P-01", "00-T-P-01 ", "\t 00-T-P-01 \t"] {
            check(value, Some("00-T-P-01"));
        }
        // separators: illegal characters
        for value in ["00_T-P-01", "00-T_P-01", "00-T-P_01"] {
            check(value, None);
        }
    }

    fn fill(text: impl AsRef<str>) -> String {
        text.as_ref().replace('T', TRACE).replace('P', PARENT)
    }

    #[test]
    fn tracestate() {
        let check = |lines: &[&str], expect: &str| {
            let joined = joined_tracestate(lines.iter().map(|line| line.as_bytes()));
            assert_eq!(String::from_utf8(joined).unwrap(), expect, "{lines:?}");
        };
        check(&[], "");
        check(&["foo=1,bar=2"], "foo=1,bar=2");
        // empty header
        check(&[""], "");
        check(&["foo=1", ""], "foo=1");
        check(&["", "foo=1"], "foo=1");
        // multiple headers, different keys; duplicated keys are kept as they are
        check(&["foo=1,bar=2", "rojo=1,congo=2", "baz=3"], "foo=1,bar=2,rojo=1,congo=2,baz=3");
        check(&["foo=1", "foo=2"], "foo=1,foo=2");
        // all allowed characters
        let keys = "abcdefghijklmnopqrstuvwxyz0123456789_-*/";
        let values: String = (' '..='~').filter(|letter| !",=".contains(*letter)).collect();
        for key in [keys.to_owned(), format!("{keys}@a-z0-9_-*/"), "0a".to_owned()] {
            check(&[&format!("{key}={values}")], &format!("{key}={values}"));
        }
        // OWS
        check(&["foo=1 \t , \t bar=2, \t baz=3"], "foo=1,bar=2,baz=3");
        check(&["\t foo=1 \t"], "foo=1");
        // keys: illegal characters, vendor format
        for key in ["foo ", "FOO", "foo.bar", "@foo", "", "_a"] {
            check(&[&format!("{key}=1,bar=2")], "");
        }
        for key in ["foo@", "foo@@bar", "foo@bar@baz"] {
            check(&[&format!("{key}=1,bar=2")], &format!("{key}=1,bar=2"));
        }
        // member count limit
        let members: Vec<_> = (1..=33).map(|number| format!("bar{number:02}={number:02}")).collect();
        check(&[&members[..10].join(","), &members[10..32].join(",")], &members[..32].join(","));
        check(&[&members[..10].join(","), &members[10..].join(",")], "");
        // key and value length limits
        for (key_bytes, value_bytes, is_valid) in [(256, 256, true), (257, 1, false), (1, 257, false)] {
            let member = format!("{}={}", "z".repeat(key_bytes), "v".repeat(value_bytes));
            check(&["foo=1", &member], &if is_valid { format!("foo=1,{member}") } else { String::new() });
        }
        // values: illegal characters
        for value in ["foo=bar=baz", "foo=,bar=3", "foo", "foo=\u{e9}"] {
            check(&[value], "");
        }
    }

    #[test]
    fn a_part_of_all_traces() {
        let check = |number: u128, part: f64, expect: bool| {
            assert_eq!(TraceId::new(number).is_among(part), expect, "{number:x} {part}");
        };
        check(u128::MAX, 1.0, true);
        check(0, 0.0, false);
        check(1 << 54, 0.25, false);
        check((1 << 54) - 1, 0.25, true);
        // The first 9 bytes may have any value.
        check(0xffff << 64 | ((1 << 54) - 1), 0.25, true);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(trace: u128, parent: u64, is_sampled: bool, is_random: bool) {
            let (trace_id, parent_id) = (TraceId::new(trace), SpanId::new(parent));
            let written = TraceParent { trace_id, parent_id, is_sampled, is_random };
            let text = written.to_string();
            prop_assert_eq!(TraceParent::parse([text.as_bytes()].into_iter()), Some(written));
        }

        #[test]
        fn what_is_passed_on_is_valid(lines in proptest::collection::vec("[a-c=,@ \t\\PC]{0,40}", 0..4)) {
            let joined = joined_tracestate(lines.iter().map(|line| line.as_bytes()));
            prop_assert_eq!(joined_tracestate([joined.as_slice()].into_iter()), joined);
        }
    }
}
