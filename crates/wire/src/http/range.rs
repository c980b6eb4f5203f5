//! Range requests (RFC 9110, section 14).

use std::io::Write;
use std::ops::Range;

use super::list;

/// Part of a representation that a Range field selects. Ranges are byte offsets within its length, and never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The whole representation, because the field is ignored: 200.
    Whole,
    /// One range: 206 with Content-Range.
    Single(Range<u64>),
    /// At least two ranges that do not touch, in the order of the field: 206 with `multipart/byteranges`.
    Several(Vec<Range<u64>>),
    /// No range lies within the representation: 416 with the Content-Range of [`write_content_range_unsatisfied`].
    Unsatisfiable,
}

/// Ranges with a smaller gap are joined. The head of a part takes about as many bytes (RFC 9110, section 15.3.7.2).
pub const GAP_BYTES_MAX: u64 = 80;

/// Selects ranges by the value of a Range field. `complete_length` is the length of the representation in bytes.
///
/// Ignores an invalid field (RFC 9110, section 14.2): another unit, a syntax error, or more than `ranges_max` ranges.
/// Joins ranges that overlap or nearly touch. So no request makes the server send more than the representation and
/// `ranges_max` part heads (CVE-2011-3192, "Apache Killer").
pub fn select(value: &[u8], complete_length: u64, ranges_max: usize) -> Selection {
    // Many clients always send a Range field. An empty file has no range, but this should not be an error, and a server
    // may always ignore the field.
    if complete_length == 0 {
        return Selection::Whole;
    }
    let Some(set) = range_set(value) else { return Selection::Whole };
    // The ranges are counted before anything is allocated, because nearly all requests have one range.
    let mut first = None;
    let (mut count, mut satisfiable_count) = (0, 0);
    for element in list::elements(set) {
        let Some(spec) = Spec::parse(element) else { return Selection::Whole };
        count += 1;
        if let Some(range) = spec.within(complete_length) {
            satisfiable_count += 1;
            first.get_or_insert(range);
        }
    }
    match (first, satisfiable_count) {
        _ if count == 0 || count > ranges_max => Selection::Whole,
        (None, _) => Selection::Unsatisfiable,
        (Some(range), 1) => Selection::Single(range),
        (Some(_), _) => {
            let ranges = list::elements(set).filter_map(|element| Spec::parse(element)?.within(complete_length));
            let mut joined = join(ranges.collect());
            if joined.len() == 1 { Selection::Single(joined.remove(0)) } else { Selection::Several(joined) }
        }
    }
}

/// Appends the value of Content-Range for a part (RFC 9110, section 14.4). `complete_length` is the length of the
/// representation in bytes.
pub fn write_content_range(range: &Range<u64>, complete_length: u64, out: &mut Vec<u8>) {
    write!(out, "bytes {}-{}/{complete_length}", range.start, range.end - 1).expect("a Vec takes all that is written");
}

/// Appends the value of Content-Range for a 416 (RFC 9110, section 14.4).
pub fn write_content_range_unsatisfied(complete_length: u64, out: &mut Vec<u8>) {
    write!(out, "bytes */{complete_length}").expect("a Vec takes all that is written");
}

/// Returns what follows `bytes=`. Units are case-insensitive (RFC 9110, section 14.1).
fn range_set(value: &[u8]) -> Option<&[u8]> {
    let (unit, set) = value.split_at_checked(b"bytes=".len())?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

/// A range of the field. Numbers beyond 64 bits become the largest one, because no representation is that long.
enum Spec {
    From { first: u64, last: u64 },
    Suffix { length: u64 },
}

impl Spec {
    /// Parses `int-range` or `suffix-range` (RFC 9110, section 14.1.2).
    fn parse(element: &[u8]) -> Option<Self> {
        let dash = element.iter().position(|&byte| byte == b'-')?;
        let (first, last) = (&element[..dash], &element[dash + 1..]);
        let spec = match (first.is_empty(), last.is_empty()) {
            (true, true) => return None,
            (true, false) => Self::Suffix { length: parse_number(last)? },
            (false, true) => Self::From { first: parse_number(first)?, last: u64::MAX },
            (false, false) => Self::From { first: parse_number(first)?, last: parse_number(last)? },
        };
        match spec {
            // Invalid rather than unsatisfiable (RFC 9110, section 14.1.1).
            Self::From { first, last } if last < first => None,
            spec => Some(spec),
        }
    }

    /// Returns the bytes of the range; `None` if a representation of this length has none of them.
    fn within(&self, complete_length: u64) -> Option<Range<u64>> {
        let range = match *self {
            Self::From { first, last } => first..last.saturating_add(1).min(complete_length),
            Self::Suffix { length } => complete_length.saturating_sub(length)..complete_length,
        };
        (!range.is_empty()).then_some(range)
    }
}

fn parse_number(digits: &[u8]) -> Option<u64> {
    let mut number: u64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    }
    Some(number)
}

/// Joins ranges that overlap or have a gap of less than [`GAP_BYTES_MAX`]. A joined range takes the position of its
/// first range in the field (RFC 9110, section 15.3.7.2).
fn join(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut by_start: Vec<(usize, Range<u64>)> = ranges.into_iter().enumerate().collect();
    by_start.sort_unstable_by_key(|(place, range)| (range.start, *place));
    let mut joined: Vec<(usize, Range<u64>)> = Vec::with_capacity(by_start.len());
    for (place, range) in by_start {
        match joined.last_mut() {
            Some((last_place, last)) if range.start < last.end.saturating_add(GAP_BYTES_MAX) => {
                *last_place = place.min(*last_place);
                last.end = range.end.max(last.end);
            }
            _ => joined.push((place, range)),
        }
    }
    joined.sort_unstable_by_key(|(place, _)| *place);
    joined.into_iter().map(|(_, range)| range).collect()
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::ops::Range;

    use proptest::prelude::*;

    use super::{GAP_BYTES_MAX, Selection, Spec, select, write_content_range, write_content_range_unsatisfied};

    const RANGES_MAX: usize = 16;

    #[test]
    fn selected() {
        let check = |value: &str, length: u64, expect: Selection| {
            assert_eq!(select(value.as_bytes(), length, RANGES_MAX), expect, "{value:?} of {length}");
        };
        let single = Selection::Single;
        check("bytes=0-0", 1000, single(0..1));
        check("bytes=0-499", 1000, single(0..500));
        check("bytes=500-", 1000, single(500..1000));
        check("bytes=0-", 1000, single(0..1000));
        check("bytes=999-", 1000, single(999..1000));
        check("bytes=999-5000", 1000, single(999..1000));
        check("bytes=-1", 1000, single(999..1000));
        check("bytes=-5000", 1000, single(0..1000));
        check("BYTES=1-2", 1000, single(1..3));
        check("bytes= 1-2", 1000, single(1..3));
        check("bytes=,1-2 ,,", 1000, single(1..3));
        check("bytes=007-8", 1000, single(7..9));
        check("bytes=0-18446744073709551615", 1000, single(0..1000));
        check("bytes=0-99999999999999999999999999", 1000, single(0..1000));
        check("bytes=-99999999999999999999999999", 1000, single(0..1000));
        check("bytes=0-", u64::MAX, single(0..u64::MAX));
        check("bytes=18446744073709551614-18446744073709551615", u64::MAX, single(u64::MAX - 1..u64::MAX));
        check("bytes=1000-", 1000, Selection::Unsatisfiable);
        check("bytes=1000-1001,2000-", 1000, Selection::Unsatisfiable);
        check("bytes=-0", 1000, Selection::Unsatisfiable);
        check("bytes=99999999999999999999-", 1000, Selection::Unsatisfiable);
        check("bytes=18446744073709551615-", u64::MAX, Selection::Unsatisfiable);
        check("bytes=0-", 0, Selection::Whole);
        check("bytes=-5", 0, Selection::Whole);
        check("bytes=0-0,500-599,-1", 1000, Selection::Several(vec![0..1, 500..600, 999..1000]));
        check("bytes=500-599, 0-0", 1000, Selection::Several(vec![500..600, 0..1]));
        check("bytes=0-0,2000-,500-599", 1000, Selection::Several(vec![0..1, 500..600]));
        check("bytes=0-0,2000-", 1000, single(0..1));
        check("bytes=0-10,5-20", 1000, single(0..21));
        check("bytes=0-10,11-20", 1000, single(0..21));
        check("bytes=0-9,89-89", 1000, single(0..90));
        check("bytes=0-9,90-90", 1000, Selection::Several(vec![0..10, 90..91]));
        check("bytes=900-999,0-9,850-950", 1000, Selection::Several(vec![850..1000, 0..10]));
        check("bytes=-1,0-0,-500", 1000, Selection::Several(vec![500..1000, 0..1]));
    }

    #[test]
    fn ignored() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes=-",
            "bytes=a-b",
            "bytes=1",
            "bytes=1-2-3",
            "bytes=--1",
            "bytes=2-1",
            "bytes=0-1,2-1",
            "bytes=0-1,x",
            "bytes=1 -2",
            "bytes=1- 2",
            "bytes=+1-2",
            "bytes=0x1-2",
            "bytes=1.0-2",
            "bytes:0-1",
            "bytes =0-1",
            "items=0-1",
            "0-1",
            "byte=0-1",
            "bytes=0-1;2-3",
            "bytes=\u{ff11}-2",
            "bytes=\"0-1\"",
        ] {
            assert_eq!(select(value.as_bytes(), 1000, RANGES_MAX), Selection::Whole, "{value:?}");
        }
    }

    #[test]
    fn apache_killer() {
        // CVE-2011-3192: more than a thousand ranges, each from 5 to nearly the end, which servers sent one after the
        // other.
        let specs: Vec<String> = (0..1300).map(|last| format!("5-{}", last + 5)).collect();
        let value = format!("bytes=0-,{}", specs.join(","));
        assert_eq!(select(value.as_bytes(), 10_000, RANGES_MAX), Selection::Whole);
        assert_eq!(select(value.as_bytes(), 10_000, usize::MAX), Selection::Single(0..10_000));
        let specs: Vec<String> = (0..100).map(|index| format!("{0}-{0}", index * 1000)).collect();
        let value = format!("bytes={}", specs.join(","));
        assert_eq!(select(value.as_bytes(), 100_000, 99), Selection::Whole);
        assert!(matches!(select(value.as_bytes(), 100_000, 100), Selection::Several(ranges) if ranges.len() == 100));
        assert_eq!(select(b"bytes=0-0", 1, 0), Selection::Whole);
    }

    #[test]
    fn content_range() {
        let mut out = b"Content-Range: ".to_vec();
        write_content_range(&(42..1234), 1234, &mut out);
        out.push(b'\n');
        write_content_range_unsatisfied(u64::MAX, &mut out);
        assert_eq!(str::from_utf8(&out), Ok("Content-Range: bytes 42-1233/1234\nbytes */18446744073709551615"));
    }

    fn specs() -> impl Strategy<Value = Vec<(Option<u64>, Option<u64>)>> {
        let number = || proptest::option::weighted(0.8, prop_oneof![0..2000_u64, Just(u64::MAX)]);
        proptest::collection::vec((number(), number()), 1..8)
    }

    fn value_of(specs: &[(Option<u64>, Option<u64>)]) -> String {
        let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        let specs: Vec<String> =
            specs.iter().map(|(first, last)| format!("{}-{}", number(*first), number(*last))).collect();
        format!("bytes={}", specs.join(", "))
    }

    /// Reference implementation: marks each selected byte; `None` if the field is invalid.
    fn model(specs: &[(Option<u64>, Option<u64>)], length: u64) -> Option<Vec<bool>> {
        let mut asked = vec![false; length as usize];
        for spec in specs {
            let wanted: Box<dyn Fn(u64) -> bool> = match *spec {
                (None, None) => return None,
                (Some(first), Some(last)) if last < first => return None,
                (Some(first), last) => Box::new(move |at| at >= first && last.is_none_or(|last| at <= last)),
                (None, Some(suffix)) => Box::new(move |at| length - at <= suffix),
            };
            for at in 0..length {
                asked[at as usize] |= wanted(at);
            }
        }
        Some(asked)
    }

    fn ranges_of(selection: Selection, length: u64) -> Vec<Range<u64>> {
        match selection {
            Selection::Whole => iter::once(0..length).collect(),
            Selection::Single(range) => iter::once(range).collect(),
            Selection::Several(ranges) => ranges,
            Selection::Unsatisfiable => vec![],
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn as_the_model(specs in specs(), length in 1..1500_u64) {
            let selection = select(value_of(&specs).as_bytes(), length, RANGES_MAX);
            let Some(asked) = model(&specs, length) else {
                prop_assert_eq!(selection, Selection::Whole);
                return Ok(());
            };
            prop_assert_eq!(selection == Selection::Unsatisfiable, !asked.contains(&true));
            let ranges = ranges_of(selection, length);
            let is_sent = |at: u64| ranges.iter().any(|range| range.contains(&at));
            for at in 0..length {
                prop_assert!(is_sent(at) || !asked[at as usize], "{} is asked for but not sent", at);
            }
            // Bytes that are sent and not selected lie in gaps.
            let extra = (0..length).filter(|at| is_sent(*at) && !asked[*at as usize]).count() as u64;
            prop_assert!(extra <= GAP_BYTES_MAX * specs.len() as u64);
        }

        #[test]
        fn sound_for_any_bytes(
            value in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..60),
                "bytes=[0-9, -]{0,60}".prop_map(String::into_bytes),
            ],
            length: u64,
            ranges_max in 0..20_usize,
        ) {
            let selection = select(&value, length, ranges_max);
            if let Selection::Several(ranges) = &selection {
                prop_assert!((2..=ranges_max).contains(&ranges.len()));
                let mut sorted = ranges.clone();
                sorted.sort_by_key(|range| range.start);
                prop_assert!(sorted.windows(2).all(|pair| pair[1].start - pair[0].end >= GAP_BYTES_MAX));
            }
            if length > 0 {
                for range in ranges_of(selection, length) {
                    prop_assert!(range.start < range.end && range.end <= length);
                }
            }
        }

        #[test]
        fn content_range_there_and_back(start in 0..u64::MAX - 1, size in 1..u64::MAX, length in 1..u64::MAX) {
            let (start, length) = (start % length, length);
            let range = start..start.saturating_add(size).min(length);
            let mut out = Vec::new();
            write_content_range(&range, length, &mut out);
            let spec = &out[b"bytes ".len()..out.iter().position(|byte| *byte == b'/').unwrap()];
            prop_assert_eq!(Spec::parse(spec).and_then(|spec| spec.within(length)), Some(range));
        }
    }
}
