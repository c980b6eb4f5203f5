//! Dates in HTTP (RFC 9110, section 5.6.7).

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use httpdate::HttpDate;

/// Length of an IMF-fixdate, in bytes.
pub const DATE_BYTES: usize = 29;

/// 9999-12-31 23:59:59, the last second that an IMF-fixdate can express.
const LAST_UNIX_SECOND: u64 = 253_402_300_799;

/// Parses a date in any of the three formats (IMF-fixdate, RFC 850, asctime) into seconds since 1970. Returns `None`
/// for invalid dates, which include days that do not exist, wrong weekdays, and dates before 1970.
pub fn parse(value: &[u8]) -> Option<u64> {
    let date: HttpDate = str::from_utf8(value).ok()?.parse().ok()?;
    let since_epoch = std::time::SystemTime::from(date).duration_since(UNIX_EPOCH).ok()?;
    Some(since_epoch.as_secs())
}

/// Formats seconds since 1970 as an IMF-fixdate (`Sun, 06 Nov 1994 08:49:37 GMT`). File systems can hold later times
/// than the year 9999; they become its last second.
pub fn format(unix_seconds: u64) -> [u8; DATE_BYTES] {
    let time = UNIX_EPOCH + Duration::from_secs(unix_seconds.min(LAST_UNIX_SECOND));
    let mut bytes = [b' '; DATE_BYTES];
    let written = write!(&mut bytes[..], "{}", HttpDate::from(time));
    debug_assert!(written.is_ok(), "IMF-fixdate has a fixed length");
    bytes
}

/// Formats seconds since 1970 for pages and JSON (RFC 3339): `1994-11-06T08:49:37Z`. Treats times after the year 9999
/// like [`format()`].
pub fn format_rfc3339(unix_seconds: u64) -> [u8; 20] {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let fixdate = format(unix_seconds);
    let month = 1 + MONTHS.chunks(3).position(|name| name == &fixdate[8..11]).unwrap_or_default() as u8;
    let mut bytes = *b"0000-00-00T00:00:00Z";
    bytes[..4].copy_from_slice(&fixdate[12..16]);
    bytes[5..7].copy_from_slice(&[b'0' + month / 10, b'0' + month % 10]);
    bytes[8..10].copy_from_slice(&fixdate[5..7]);
    bytes[11..19].copy_from_slice(&fixdate[17..25]);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{LAST_UNIX_SECOND, format, format_rfc3339, parse};

    #[test]
    fn parsed() {
        let check = |value: &str, expect: Option<u64>| assert_eq!(parse(value.as_bytes()), expect, "{value:?}");
        check("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777));
        check("Sunday, 06-Nov-94 08:49:37 GMT", Some(784_111_777));
        check("Sun Nov  6 08:49:37 1994", Some(784_111_777));
        check("Thu, 01 Jan 1970 00:00:00 GMT", Some(0));
        check("Thu, 29 Feb 2024 23:59:59 GMT", Some(1_709_251_199));
        check("Fri, 31 Dec 9999 23:59:59 GMT", Some(LAST_UNIX_SECOND));
        for value in [
            "",
            "0",
            "-1",
            "Sun",
            "now",
            "784111777",
            "1994-11-06T08:49:37Z",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 +0000",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:60:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Thu, 31 Feb 2024 00:00:00 GMT",
            "Wed, 31 Dec 1969 23:59:59 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT, Sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 0\u{ff18}:49:37 GMT",
            "\"abc\"",
        ] {
            check(value, None);
        }
        assert_eq!(parse(b"Sun, 06 Nov 1994 08:49:37 GM\xff"), None);
    }

    #[test]
    fn formatted() {
        let check = |seconds: u64, expect: &str| assert_eq!(format(seconds), expect.as_bytes(), "{seconds}");
        check(0, "Thu, 01 Jan 1970 00:00:00 GMT");
        check(784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT");
        check(4_294_967_296, "Sun, 07 Feb 2106 06:28:16 GMT");
        check(LAST_UNIX_SECOND, "Fri, 31 Dec 9999 23:59:59 GMT");
        check(u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn formatted_as_rfc3339() {
        let check = |seconds: u64, expect: &str| assert_eq!(format_rfc3339(seconds), expect.as_bytes(), "{seconds}");
        check(0, "1970-01-01T00:00:00Z");
        check(784_111_777, "1994-11-06T08:49:37Z");
        check(1_709_251_199, "2024-02-29T23:59:59Z");
        check(u64::MAX, "9999-12-31T23:59:59Z");
    }

    proptest! {
        #[test]
        fn there_and_back(seconds in 0..=LAST_UNIX_SECOND) {
            prop_assert_eq!(parse(&format(seconds)), Some(seconds));
        }

        #[test]
        fn any_bytes(value in proptest::collection::vec(any::<u8>(), 0..40), at in 0..super::DATE_BYTES, byte: u8) {
            let _ = parse(&value);
            let mut nearly = format(784_111_777);
            nearly[at] = byte;
            if let Some(seconds) = parse(&nearly) {
                prop_assert_eq!(format(seconds), nearly);
            }
        }
    }
}
