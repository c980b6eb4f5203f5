//! Request heads: the same however they are split, and never read otherwise than httparse reads them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::h1::{HeadLimits, MessageRejection, parse_request_head, request_framing};
use wire::http::{Request, RequestHead};

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 400, fields_max: 20, target_bytes_max: 100 };

fuzz_target!(|input: &[u8]| {
    let mut head = RequestHead::default();
    let whole = parse_request_head(input, &mut head, &LIMITS);
    // Of several faults, another may be seen first.
    assert_eq!(byte_by_byte(input).map_err(|_| ()), whole.map_err(|_| ()));
    // A peer cannot make the server keep more than this.
    assert!(whole != Ok(None) || input.len() < LIMITS.head_bytes_max);
    let Ok(Some(length)) = whole else { return };
    assert!(length <= input.len() && length <= LIMITS.head_bytes_max && head.fields.len() <= LIMITS.fields_max);
    let request = Request { head: &head, bytes: &input[..length] };
    check_bytes(&request);
    check_against_httparse(&request);
    let _ = request_framing(&request);
});

/// As a connection does it: parsed again with each byte that comes, until it is decided.
fn byte_by_byte(input: &[u8]) -> Result<Option<usize>, MessageRejection> {
    let mut head = RequestHead::default();
    for end in 0..=input.len() {
        let parsed = parse_request_head(&input[..end], &mut head, &LIMITS);
        if parsed != Ok(None) {
            return parsed;
        }
    }
    Ok(None)
}

fn check_bytes(request: &Request<'_>) {
    assert!(request.target().iter().all(u8::is_ascii_graphic));
    assert!(request.method_name().iter().all(u8::is_ascii_graphic));
    for field in &request.head.fields {
        let (name, value) = (field.name.of(request.bytes), field.value.of(request.bytes));
        assert!(!name.is_empty() && name.iter().all(|byte| byte.is_ascii_graphic() && *byte != b':'));
        assert!(value.iter().all(|byte| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f));
        assert_eq!(value.trim_ascii(), value);
    }
}

fn check_against_httparse(request: &Request<'_>) {
    let mut headers = [httparse::EMPTY_HEADER; LIMITS.fields_max];
    let mut other = httparse::Request::new(&mut headers);
    match other.parse(request.bytes) {
        Ok(status) => assert_eq!(status, httparse::Status::Complete(request.bytes.len())),
        // httparse knows no versions but 1.0 and 1.1, and wants targets to be UTF-8.
        Err(httparse::Error::Version) => return,
        Err(error) => panic!("httparse refuses what we accept: {error}"),
    }
    assert_eq!(other.method.unwrap().as_bytes(), request.method_name());
    assert_eq!(other.path.unwrap().as_bytes(), request.target());
    assert_eq!(other.headers.len(), request.head.fields.len());
    for (header, field) in other.headers.iter().zip(&request.head.fields) {
        assert_eq!(header.name.as_bytes(), field.name.of(request.bytes));
        assert_eq!(header.value, field.value.of(request.bytes));
    }
}
