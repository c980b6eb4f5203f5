//! Response heads: the same however they are split, and never read otherwise than httparse reads them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::h1::{HeadLimits, MalformedResponse, ResponseHead, parse_response_head};
use wire::http::Method;

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 400, fields_max: 20, target_bytes_max: 0 };

fuzz_target!(|input: &[u8]| {
    let mut head = ResponseHead::default();
    let whole = parse_response_head(input, &mut head, &LIMITS);
    // Of several faults, another may be seen first.
    assert_eq!(byte_by_byte(input).map_err(|_| ()), whole.map_err(|_| ()));
    // A peer cannot make the client keep more than this.
    assert!(whole != Ok(None) || input.len() < LIMITS.head_bytes_max);
    let Ok(Some(length)) = whole else { return };
    assert!(length <= input.len() && length <= LIMITS.head_bytes_max && head.fields.len() <= LIMITS.fields_max);
    check_against_httparse(&head, &input[..length]);
    for method in [Method::Get, Method::Head] {
        let _ = head.framing(input, method);
    }
    let _ = head.is_persistent(input);
});

/// As a connection does it: parsed again with each byte that comes, until it is decided.
fn byte_by_byte(input: &[u8]) -> Result<Option<usize>, MalformedResponse> {
    let mut head = ResponseHead::default();
    for end in 0..=input.len() {
        let parsed = parse_response_head(&input[..end], &mut head, &LIMITS);
        if parsed != Ok(None) {
            return parsed;
        }
    }
    Ok(None)
}

fn check_against_httparse(head: &ResponseHead, bytes: &[u8]) {
    let mut headers = [httparse::EMPTY_HEADER; LIMITS.fields_max];
    let mut other = httparse::Response::new(&mut headers);
    match other.parse(bytes) {
        Ok(status) => assert_eq!(status, httparse::Status::Complete(bytes.len())),
        // httparse knows no versions but 1.0 and 1.1.
        Err(httparse::Error::Version) => return,
        Err(error) => panic!("httparse refuses what we accept: {error}"),
    }
    assert_eq!(other.code, Some(head.status.code()));
    assert_eq!(other.headers.len(), head.fields.len());
    for (header, field) in other.headers.iter().zip(&head.fields) {
        assert_eq!(header.name.as_bytes(), field.name.of(bytes));
        assert_eq!(header.value, field.value.of(bytes));
    }
}
