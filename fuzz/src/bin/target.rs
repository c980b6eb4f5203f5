//! Request targets and paths. The first line of the input is the method.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http::{Method, RequestTarget, TargetForm, path};

fuzz_target!(|input: &[u8]| {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (method, target) = (Method::from_name(&input[..end]), input.get(end + 1..).unwrap_or_default());
    check_path(target);
    let Ok(parsed) = RequestTarget::parse(target, method) else { return };
    assert!(target.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#'));
    assert_eq!(parsed.form == TargetForm::Authority, method == Method::Connect);
    match parsed.form {
        TargetForm::Origin => assert_eq!(joined(&parsed), target),
        TargetForm::Absolute => assert!(target.ends_with(parsed.path) || parsed.query.is_some() || parsed.path == b"/"),
        TargetForm::Authority => assert!(parsed.path.is_empty() && parsed.host.is_some_and(|host| host.port.is_some())),
        TargetForm::Asterisk => assert_eq!(method, Method::Options),
    }
    if matches!(parsed.form, TargetForm::Origin | TargetForm::Absolute) {
        assert!(parsed.path.starts_with(b"/"));
        check_path(parsed.path);
    }
});

fn joined(target: &RequestTarget<'_>) -> Vec<u8> {
    match target.query {
        Some(query) => [target.path, b"?", query].concat(),
        None => target.path.to_vec(),
    }
}

/// A normalised path stays below the root, and is the same when it is encoded and normalised again.
fn check_path(raw: &[u8]) {
    let mut buffer = Vec::new();
    let Ok(normal) = path::normalise(raw, &mut buffer) else { return };
    assert!(normal.starts_with(b"/") && !normal.contains(&0));
    let segments: Vec<&[u8]> = normal[1..].split(|byte| *byte == b'/').collect();
    for (index, segment) in segments.iter().enumerate() {
        assert!(!matches!(*segment, b"." | b".."));
        assert!(!segment.is_empty() || index + 1 == segments.len());
    }
    let (mut encoded, mut again) = (Vec::new(), Vec::new());
    path::encode(normal, &mut encoded);
    assert!(encoded.iter().all(|byte| byte.is_ascii_graphic() && !b"<>\"'&?#\\".contains(byte)));
    assert_eq!(path::normalise(&encoded, &mut again), Ok(normal));
}
