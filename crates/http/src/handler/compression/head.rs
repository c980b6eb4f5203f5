//! Heads of compressed responses: conditions for compression, and the changes that it makes.

use wire::http::{ContentCoding, Fields, Status};

use crate::config::{ResponseCompression, is_compressible};

/// Longest media type that is compared, in bytes; longer ones are not compressed.
const TYPE_BYTES_MAX: usize = 64;

/// Beginning of types that are compressed, except event streams.
const TEXT: &[u8] = b"text/";

/// True if a response with this head is compressed for clients that accept a coding. `length` is that of its content, if
/// it is known.
pub(crate) fn is_compressed(
    status: Status,
    fields: &Fields,
    length: Option<u64>,
    settings: &ResponseCompression,
) -> bool {
    let has_whole = !status.has_no_content() && !matches!(status, Status::RESET_CONTENT | Status::PARTIAL_CONTENT);
    // Empty content gets larger.
    if !has_whole || length.is_some_and(|length| length < settings.bytes_min.max(1)) {
        return false;
    }
    let mut is_type = false;
    for (name, value) in fields.iter() {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        match name.len() {
            12 if is("Content-Type") => is_type = is_compressible_type(value),
            16 if is("Content-Encoding") => return false,
            13 if is("Cache-Control") && forbids_transformation(value) => return false,
            13 if is("Content-Range") => return false,
            // Checksums are those of the upstream's content.
            14 if is("Content-Digest") => return false,
            11 if is("Repr-Digest") || is("Content-MD5") => return false,
            6 if is("Digest") => return false,
            _ => {}
        }
    }
    is_type
}

/// Event streams are not compressed: each client would hold an encoder for hours.
fn is_compressible_type(value: &[u8]) -> bool {
    let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
    let media_type = value[..end].trim_ascii();
    if let Some((kind, subtype)) = media_type.split_at_checked(TEXT.len())
        && kind.eq_ignore_ascii_case(TEXT)
    {
        return !subtype.eq_ignore_ascii_case(b"event-stream");
    }
    let mut lower = [0; TYPE_BYTES_MAX];
    let Some(lower) = lower.get_mut(..media_type.len()) else { return false };
    lower.copy_from_slice(media_type);
    lower.make_ascii_lowercase();
    str::from_utf8(lower).is_ok_and(is_compressible)
}

/// True if the directive `no-transform` is there (RFC 9111, section 5.2.2.6).
fn forbids_transformation(cache_control: &[u8]) -> bool {
    cache_control
        .split(|byte| *byte == b',')
        .any(|directive| directive.trim_ascii().eq_ignore_ascii_case(b"no-transform"))
}

/// Adds Accept-Encoding to Vary (RFC 9110, section 12.5.5).
pub(crate) fn add_vary(fields: &mut Fields) {
    let is_there = |name: &[u8]| name == b"*" || name.eq_ignore_ascii_case(b"Accept-Encoding");
    let has_it = |value: &[u8]| value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).any(is_there);
    if !fields.has("Vary") {
        fields.push("Vary", "Accept-Encoding");
    } else if !fields.values(b"Vary").any(has_it) {
        fields.extend_value("Vary", "Accept-Encoding");
    }
}

/// Changes the fields of a response whose content gets this coding. Its entity tag gets weak, because the compressed
/// content has the same meaning, but other bytes (RFC 9110, section 8.8.1).
pub(crate) fn add_coding(fields: &mut Fields, coding: ContentCoding) {
    fields.push("Content-Encoding", coding.name());
    if fields.has("Accept-Ranges") {
        fields.remove("Accept-Ranges");
    }
    if let Some(etag) = fields.get("ETag").filter(|etag| !etag.starts_with(b"W/")) {
        let weak = [b"W/", etag].concat();
        fields.set("ETag", weak);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CompressionLevel;

    fn fields(lines: &str) -> Fields {
        let mut fields = Fields::new();
        for line in lines.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            fields.push(name, value);
        }
        fields
    }

    fn text(fields: &Fields) -> String {
        let line = |(name, value): (&[u8], &[u8])| {
            format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
        };
        fields.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn conditions() {
        let settings = ResponseCompression { bytes_min: 100, level: CompressionLevel::Balanced };
        let check = |status: u16, lines: &str, length: Option<u64>, expect: bool| {
            let status = Status::new(status).unwrap();
            assert_eq!(is_compressed(status, &fields(lines), length, &settings), expect, "{status} {lines} {length:?}");
        };
        check(200, "content-type: text/html; charset=utf-8", Some(100), true);
        check(200, "Content-Type: TEXT/HTML;charset=utf-8", None, true);
        check(404, "Content-Type: application/problem+json", None, true);
        check(200, "Content-Type: text/html", Some(99), false);
        check(200, "Content-Type: text/html", Some(0), false);
        check(200, "", None, false);
        for content_type in ["image/png", "text/event-stream", "Text/Event-Stream; x=y", "application/grpc+proto"] {
            check(200, &format!("Content-Type: {content_type}"), None, false);
        }
        for status in [101, 204, 205, 206, 304] {
            check(status, "Content-Type: text/html", None, false);
        }
        for line in [
            "Content-Encoding: gzip",
            "Content-Encoding: identity",
            "Content-Range: bytes 0-9/10",
            "Cache-Control: max-age=5, No-Transform",
            "Content-Digest: sha-256=:x:",
            "Repr-Digest: sha-256=:x:",
            "Digest: sha-256=x",
            "Content-MD5: x",
        ] {
            check(200, &format!("Content-Type: text/html\n{line}"), None, false);
        }
        check(200, "Content-Type: text/html\nCache-Control: no-store", None, true);
    }

    #[test]
    fn vary_is_merged() {
        for (before, expect) in [
            ("", "Vary: Accept-Encoding"),
            ("Vary: Cookie", "Vary: Cookie, Accept-Encoding"),
            ("Vary: Cookie\nA: b", "A: b\nVary: Cookie, Accept-Encoding"),
            ("Vary: *", "Vary: *"),
            ("vary: origin,accept-encoding", "vary: origin,accept-encoding"),
            ("Vary: Cookie\nVary: Accept-Encoding", "Vary: Cookie\nVary: Accept-Encoding"),
        ] {
            let mut fields = fields(before);
            add_vary(&mut fields);
            assert_eq!(text(&fields), expect, "{before}");
        }
    }

    #[test]
    fn entity_tags_become_weak() {
        for (before, expect) in [
            ("A: b", "A: b\nContent-Encoding: gzip"),
            ("ETag: \"x\"", "Content-Encoding: gzip\nETag: W/\"x\""),
            ("ETag: W/\"x\"\nAccept-Ranges: bytes", "ETag: W/\"x\"\nContent-Encoding: gzip"),
        ] {
            let mut fields = fields(before);
            add_coding(&mut fields, ContentCoding::Gzip);
            assert_eq!(text(&fields), expect, "{before}");
        }
    }
}
