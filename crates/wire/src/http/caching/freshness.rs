//! Age and freshness lifetime (RFC 9111, section 4.2).

use super::ResponseDirectives;
use crate::http::list::elements;
use crate::http::{Fields, Status, date};

/// Value for numbers of seconds that are too large (RFC 9111, section 1.2.2).
pub const DELTA_SECONDS_MAX: u32 = 1 << 31;

/// Heuristic lifetime: a tenth of the time since Last-Modified (RFC 9111, section 4.2.2), but at most one day, so that
/// wrong guesses expire.
const HEURISTIC_DIVISOR: u64 = 10;
const HEURISTIC_SECONDS_MAX: u64 = 86_400;

/// Arrival of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reception {
    /// Time since the request was sent, in milliseconds.
    pub delay_ms: u64,
    /// Time of arrival, in seconds since 1970.
    pub unix_seconds: u64,
}

/// Age of a response when it arrived, and its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// `corrected_initial_age` in milliseconds (section 4.2.3).
    pub initial_age_ms: u64,
    /// `freshness_lifetime` in seconds, as the response states it (section 4.2.1); `None` if it states none.
    pub lifetime_seconds: Option<u32>,
}

impl Freshness {
    /// Computes age and lifetime from the fields of a response.
    pub fn of(fields: &Fields, directives: &ResponseDirectives, reception: Reception) -> Self {
        // RFC 9110, section 6.6.1: without a valid Date, use the time of arrival.
        let date = first_date(fields, b"date").flatten().unwrap_or(reception.unix_seconds);
        let apparent_age = reception.unix_seconds.saturating_sub(date);
        let corrected_age_value_ms = u64::from(age_field(fields).unwrap_or(0)) * 1_000 + reception.delay_ms;
        Self {
            initial_age_ms: corrected_age_value_ms.max(apparent_age.min(DELTA_SECONDS_MAX.into()) * 1_000),
            lifetime_seconds: explicit_lifetime(fields, directives, date),
        }
    }

    /// Returns the heuristic lifetime of a response that states none (section 4.2.2); `None` if no heuristic applies.
    pub fn heuristic_seconds(
        fields: &Fields,
        directives: &ResponseDirectives,
        status: Status,
        reception: Reception,
    ) -> Option<u32> {
        if !is_heuristically_cacheable(status) && !directives.public {
            return None;
        }
        let date = first_date(fields, b"date").flatten().unwrap_or(reception.unix_seconds);
        let last_modified = first_date(fields, b"last-modified").flatten()?;
        Some((date.saturating_sub(last_modified) / HEURISTIC_DIVISOR).min(HEURISTIC_SECONDS_MAX) as u32)
    }
}

/// Returns the value of the Age field; the first one of a list (section 5.1). `None` if it is absent or invalid.
pub fn age_field(fields: &Fields) -> Option<u32> {
    parse_delta_seconds(elements(fields.values(b"age").next()?).next()?)
}

/// RFC 9110, section 15.1.
pub(super) fn is_heuristically_cacheable(status: Status) -> bool {
    matches!(status.code(), 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// `1*DIGIT` (RFC 9111, section 1.2.2).
pub(super) fn parse_delta_seconds(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |number: u32, digit: &u8| number.saturating_mul(10).saturating_add(u32::from(digit - b'0'));
    Some(digits.iter().fold(0, add).min(DELTA_SECONDS_MAX))
}

/// Determines the lifetime in the order of precedence for a shared cache (RFC 9111, section 4.2.1).
fn explicit_lifetime(fields: &Fields, directives: &ResponseDirectives, date: u64) -> Option<u32> {
    if let Some(seconds) = directives.s_maxage.or(directives.max_age) {
        return Some(seconds);
    }
    if directives.is_targeted {
        // RFC 9213, section 2.2.
        return None;
    }
    // Section 5.3: an invalid date, in particular "0", means the past.
    let expires = first_date(fields, b"expires")?.unwrap_or(0);
    Some(expires.saturating_sub(date).min(DELTA_SECONDS_MAX.into()) as u32)
}

/// Parses the date in the first line of this name; `Some(None)` if it is invalid. Case is insignificant (section 4.2).
pub(super) fn first_date(fields: &Fields, name: &[u8]) -> Option<Option<u64>> {
    let value = fields.values(name).next()?;
    Some(date::parse(value).or_else(|| date::parse(&in_usual_case(value))))
}

fn in_usual_case(value: &[u8]) -> Vec<u8> {
    let mut value = value.to_ascii_lowercase();
    let mut follows_letter = false;
    for byte in &mut value {
        if !follows_letter {
            byte.make_ascii_uppercase();
        }
        follows_letter = byte.is_ascii_alphabetic();
    }
    if let Some(zone) = value.strip_suffix(b"Gmt").map(<[u8]>::len) {
        value[zone..].make_ascii_uppercase();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::super::tests::fields;
    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT
    const NOW: u64 = 784_111_777;
    const DATE: (&str, &str) = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
    const HOUR_BEFORE: &str = "Sun, 06 Nov 1994 07:49:37 GMT";
    const HOUR_AFTER: &str = "Sun, 06 Nov 1994 09:49:37 GMT";

    fn freshness(lines: &[(&str, &str)], delay_ms: u64) -> Freshness {
        let fields = fields(lines);
        let reception = Reception { delay_ms, unix_seconds: NOW };
        Freshness::of(&fields, &ResponseDirectives::of(&fields, &[]), reception)
    }

    #[test]
    fn lifetimes() {
        let check = |lines: &[(&str, &str)], expect: Option<u32>| {
            assert_eq!(freshness(lines, 0).lifetime_seconds, expect, "{lines:?}");
        };
        check(&[], None);
        check(&[DATE], None);
        check(&[("Cache-Control", "max-age=5")], Some(5));
        check(&[("Cache-Control", "max-age=5, s-maxage=7")], Some(7));
        check(&[("Cache-Control", "s-maxage=7, max-age=0"), ("Expires", HOUR_BEFORE)], Some(7));
        check(&[("Cache-Control", "max-age=5"), ("Expires", HOUR_AFTER)], Some(5));
        check(&[("Expires", HOUR_AFTER), DATE], Some(3600));
        check(&[("Expires", HOUR_AFTER), ("Date", HOUR_BEFORE)], Some(7200));
        check(&[("Expires", HOUR_AFTER)], Some(3600));
        check(&[("Expires", HOUR_AFTER), ("Date", "today")], Some(3600));
        check(&[("Expires", HOUR_BEFORE), DATE], Some(0));
        check(&[("Expires", DATE.1), DATE], Some(0));
        check(&[("Expires", "0"), DATE], Some(0));
        check(&[("Expires", HOUR_AFTER), ("Expires", "0"), DATE], Some(3600));
        check(&[("Expires", "Fri, 31 Dec 9999 23:59:59 GMT"), DATE], Some(DELTA_SECONDS_MAX));
        // Section 4.2: dates are case-insensitive, but otherwise strict.
        check(&[("Expires", "SUN, 06 NOV 1994 09:49:37 gmt"), DATE], Some(3600));
        check(&[("Expires", "sunday, 06-nov-94 09:49:37 GMT"), DATE], Some(3600));
        check(&[("Expires", "sun nov  6 09:49:37 1994"), DATE], Some(3600));
        check(&[("Expires", "Sun, 06 Nov 1994 09:49:37 UTC"), DATE], Some(0));
        check(&[("Expires", "Sun, 06 Nov 1994 9:49:37 GMT"), DATE], Some(0));
        check(&[("Expires", "Sun 06 Nov 1994 09:49:37 GMT"), DATE], Some(0));
    }

    #[test]
    fn ages() {
        let check = |lines: &[(&str, &str)], delay_ms: u64, expect_ms: u64| {
            assert_eq!(freshness(lines, delay_ms).initial_age_ms, expect_ms, "{lines:?}");
        };
        check(&[], 0, 0);
        check(&[], 1_500, 1_500);
        check(&[DATE, ("Age", "30")], 1_500, 31_500);
        // Section 4.2.3: apparent_age.
        check(&[("Date", HOUR_BEFORE)], 1_500, 3_600_000);
        check(&[("Date", HOUR_BEFORE), ("Age", "7200")], 0, 7_200_000);
        check(&[("Date", HOUR_AFTER), ("Age", "7200")], 0, 7_200_000);
        // Section 5.1.
        check(&[("Age", "7200, 0")], 0, 7_200_000);
        check(&[("Age", "0, 7200")], 0, 0);
        check(&[("Age", "0"), ("Age", "7200")], 0, 0);
        for value in ["abc", "-7200", "7200.0", "7200;foo=bar", ""] {
            check(&[("Age", value)], 0, 0);
        }
        check(&[("Age", "99999999999999999999")], 0, 2_147_483_648_000);
    }

    #[test]
    fn heuristics() {
        let check = |status: u16, cache_control: &str, last_modified: &str, expect: Option<u32>| {
            let fields = fields(&[DATE, ("Cache-Control", cache_control), ("Last-Modified", last_modified)]);
            let directives = ResponseDirectives::of(&fields, &[]);
            let reception = Reception { delay_ms: 0, unix_seconds: NOW };
            let status = Status::new(status).unwrap();
            let found = Freshness::heuristic_seconds(&fields, &directives, status, reception);
            assert_eq!(found, expect, "{status} {cache_control} {last_modified}");
        };
        check(200, "", HOUR_BEFORE, Some(360));
        check(404, "", HOUR_BEFORE, Some(360));
        check(200, "", HOUR_AFTER, Some(0));
        check(200, "", "Thu, 06 Nov 1980 08:49:37 GMT", Some(86_400));
        check(200, "", "x", None);
        check(403, "", HOUR_BEFORE, None);
        check(599, "", HOUR_BEFORE, None);
        check(599, "public", HOUR_BEFORE, Some(360));
    }
}
