//! Dates in all three forms.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http::date;

fuzz_target!(|value: &[u8]| {
    if let Some(seconds) = date::parse(value) {
        // A formatted date parses as that date.
        assert_eq!(date::parse(&date::format(seconds)), Some(seconds));
        assert!(date::format_rfc3339(seconds).is_ascii());
    }
});
