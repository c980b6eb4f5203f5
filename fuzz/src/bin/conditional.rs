//! Conditional requests. The first line of the input is the time of Last-Modified, the second the entity tag, the rest
//! are field lines.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailcoat_fuzz::{take_number, with_fields};
use wire::http::conditional::{Precondition, Validators, evaluate, range_value};
use wire::http::{KnownField, Request};

fuzz_target!(|input: &[u8]| {
    let (modified, rest) = take_number(input);
    let tag_end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    let (etag, lines) = (&rest[..tag_end], rest.get(tag_end + 1..).unwrap_or_default());
    let validators = Validators { etag: Some(etag).filter(|etag| is_etag(etag)), last_modified: Some(modified) };
    with_fields(lines, |request| check(request, &validators));
});

fn is_etag(etag: &[u8]) -> bool {
    let opaque = etag.strip_prefix(b"W/").unwrap_or(etag);
    opaque.len() >= 2
        && opaque.starts_with(b"\"")
        && opaque.ends_with(b"\"")
        && opaque[1..opaque.len() - 1].iter().all(|byte| *byte > b' ' && *byte != b'"' && *byte != 0x7f)
}

fn check(request: &Request<'_>, validators: &Validators<'_>) {
    let has = |known| request.head.has(known);
    let result = evaluate(request, validators);
    match result {
        Precondition::Failed => assert!(has(KnownField::IfMatch) || has(KnownField::IfUnmodifiedSince)),
        Precondition::NotModified => assert!(has(KnownField::IfNoneMatch) || has(KnownField::IfModifiedSince)),
        Precondition::Passed => {}
    }
    // If-None-Match compares weakly, so that a weak tag gives the same as a strong one.
    if !has(KnownField::IfMatch)
        && let Some(etag) = validators.etag.filter(|etag| !etag.starts_with(b"W/"))
    {
        let weak = [b"W/", etag].concat();
        assert_eq!(evaluate(request, &Validators { etag: Some(&weak), ..*validators }), result);
    }
    // A range is never taken from a version that the client does not have.
    if range_value(request, validators).is_some() && has(KnownField::IfRange) {
        assert_eq!(range_value(request, &Validators::default()), None);
    }
    assert!(has(KnownField::Range) || range_value(request, validators).is_none());
}
