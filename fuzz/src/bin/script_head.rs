//! Heads of scripts' responses: the same however they are split, within their limits, and never with what could end a line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::cgi::{ScriptHead, parse_script_head};
use wire::h1::{HeadLimits, MalformedResponse, ResponseHead};
use wire::http::Method;

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 400, fields_max: 20, target_bytes_max: 0 };

fuzz_target!(|input: &[u8]| {
    let mut head = ResponseHead::default();
    let whole = parse_script_head(input, &mut head, &LIMITS);
    // Of several faults, another may be seen first.
    assert_eq!(byte_by_byte(input).map_err(|_| ()), whole.map_err(|_| ()));
    // A script cannot make the server keep more than this.
    assert!(whole != Ok(None) || input.len() < LIMITS.head_bytes_max);
    let Ok(Some(found)) = whole else { return };
    assert!(
        found.bytes <= input.len() && found.bytes <= LIMITS.head_bytes_max && head.fields.len() <= LIMITS.fields_max
    );
    assert!((100..=999).contains(&head.status.code()));
    for field in &head.fields {
        for text in [field.name.of(input), field.value.of(input)] {
            assert!(!text.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
        }
    }
    if let Some(location) = found.local_location {
        assert!(location.of(input).starts_with(b"/") && !location.of(input).starts_with(b"//"));
    }
    let _ = head.framing(input, Method::Get);
});

/// As it comes from a slow script: parsed again with each byte, until it is decided.
fn byte_by_byte(input: &[u8]) -> Result<Option<ScriptHead>, MalformedResponse> {
    let mut head = ResponseHead::default();
    for end in 0..=input.len() {
        let parsed = parse_script_head(&input[..end], &mut head, &LIMITS);
        if parsed != Ok(None) {
            return parsed;
        }
    }
    Ok(None)
}
