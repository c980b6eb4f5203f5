//! Accept-Encoding and Accept, as field lines.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailcoat_fuzz::with_fields;
use wire::http::negotiation::{CodingWeights, prefers_json};
use wire::http::{ContentCoding, KnownField};

const AVAILABLE: [ContentCoding; 4] =
    [ContentCoding::Brotli, ContentCoding::Zstd, ContentCoding::Gzip, ContentCoding::Identity];

fuzz_target!(|lines: &[u8]| {
    let read = with_fields(lines, |request| {
        let values = |known| request.field_lines(known).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let accepted = values(KnownField::Accept).join(b", ".as_slice());
        let encodings = values(KnownField::AcceptEncoding).join(b", ".as_slice());
        (CodingWeights::of(request), prefers_json(request), accepted, encodings)
    });
    let Some((weights, json, accepted, encodings)) = read else { return };
    let chosen = weights.choose(AVAILABLE);
    let greatest = AVAILABLE.iter().map(|coding| weights.weight(*coding)).max().unwrap();
    assert_eq!(chosen.map_or(0, |place| weights.weight(AVAILABLE[place])), greatest);
    assert!(greatest <= 1000);
    // Several lines are the same as one (RFC 9110, section 5.3), unless a quoted string is open at a line's end.
    if !accepted.contains(&b'"') && !encodings.contains(&b'"') {
        let mut joined = Vec::new();
        for (name, value) in [(&b"Accept: "[..], &accepted), (b"Accept-Encoding: ", &encodings)] {
            if !value.is_empty() {
                joined.extend_from_slice(&[name, value, b"\n"].concat());
            }
        }
        let again = with_fields(&joined, |request| (CodingWeights::of(request), prefers_json(request)));
        let has_empty_list = encodings.is_empty() && weights.weight(ContentCoding::Identity) != 1000;
        assert!(again == Some((weights, json)) || has_empty_list);
    }
});
