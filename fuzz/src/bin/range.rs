//! Range fields. The first line of the input is the length of the representation.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailcoat_fuzz::take_number;
use wire::http::range::{GAP_BYTES_MAX, Selection, select, write_content_range};

const RANGES_MAX: usize = 16;

fuzz_target!(|input: &[u8]| {
    let (length, value) = take_number(input);
    match select(value, length, RANGES_MAX) {
        Selection::Whole => {}
        Selection::Unsatisfiable => assert!(length > 0),
        Selection::Single(range) => {
            assert!(range.start < range.end && range.end <= length);
            // The range in Content-Range selects the same range.
            let mut content_range = Vec::new();
            write_content_range(&range, length, &mut content_range);
            let spec = content_range["bytes ".len()..].split(|byte| *byte == b'/').next().unwrap();
            let again = [b"bytes=", spec].concat();
            assert_eq!(select(&again, length, RANGES_MAX), Selection::Single(range));
        }
        Selection::Several(mut ranges) => {
            assert!((2..=RANGES_MAX).contains(&ranges.len()));
            ranges.sort_by_key(|range| range.start);
            assert!(ranges.iter().all(|range| range.start < range.end && range.end <= length));
            assert!(ranges.windows(2).all(|pair| pair[1].start - pair[0].end >= GAP_BYTES_MAX));
        }
    }
});
