//! Representations of a file.

use std::fs;
use std::sync::Arc;

use wire::http::{KnownField, Method};

use super::{FileFixture, random_bytes, set_modified};
use crate::config::{FieldMatch, FieldRule, PathPattern};

#[test]
fn conditions() {
    let site = FileFixture::new(|_, _| ());
    site.write("file.txt", "content");
    site.settle();
    let etag = site.get("/file.txt").field("ETag").unwrap().to_owned();
    assert!(etag.starts_with('"') && etag.ends_with('"'));
    let weak = format!("W/{etag}");
    let list = format!("\"x\", {etag}");
    let (before, at) = ("Sun, 09 Sep 2001 01:46:39 GMT", "Sun, 09 Sep 2001 01:46:40 GMT");
    let check = |fields: &[(KnownField, &str)], expect: u16| {
        let got = site.get_with("/file.txt", fields);
        assert_eq!(got.status, expect, "{fields:?}");
        if expect == 304 {
            assert_eq!(
                (got.body.len(), got.field("ETag"), got.field("Vary")),
                (0, Some(etag.as_str()), Some("Accept-Encoding"))
            );
            assert_eq!((got.field("Content-Length"), got.field("Content-Type")), (None, None));
        }
    };
    check(&[(KnownField::IfNoneMatch, &etag)], 304);
    check(&[(KnownField::IfNoneMatch, &weak)], 304);
    check(&[(KnownField::IfNoneMatch, &list)], 304);
    check(&[(KnownField::IfNoneMatch, "*")], 304);
    check(&[(KnownField::IfNoneMatch, "\"x\"")], 200);
    check(&[(KnownField::IfNoneMatch, "\"x\""), (KnownField::IfModifiedSince, at)], 200);
    check(&[(KnownField::IfModifiedSince, at)], 304);
    check(&[(KnownField::IfModifiedSince, before)], 200);
    check(&[(KnownField::IfMatch, &etag)], 200);
    check(&[(KnownField::IfMatch, &weak)], 412);
    check(&[(KnownField::IfMatch, "\"x\"")], 412);
    check(&[(KnownField::IfUnmodifiedSince, before)], 412);
    check(&[(KnownField::IfUnmodifiedSince, at)], 200);
    check(&[(KnownField::IfNoneMatch, &etag), (KnownField::Range, "bytes=0-1")], 304);
    check(&[(KnownField::IfMatch, "\"x\""), (KnownField::IfNoneMatch, &etag)], 412);
}

#[test]
fn ranges() {
    for object_bytes_max in [5, 1000] {
        let site = FileFixture::new(|_, limits| limits.object_bytes_max = object_bytes_max);
        let content: Vec<u8> = (0..200).collect();
        site.write("file.png", &content);
        site.settle();
        let etag = site.get("/file.png").field("ETag").unwrap().to_owned();
        let check = |range: &str, if_range: Option<&str>, expect: u16, body: &[u8], content_range: Option<&str>| {
            let mut fields = vec![(KnownField::Range, range)];
            fields.extend(if_range.map(|value| (KnownField::IfRange, value)));
            let got = site.get_with("/file.png", &fields).expect(expect, body);
            assert_eq!(got.field("Content-Range"), content_range);
            assert_eq!(got.field("Content-Encoding"), None);
        };
        check("bytes=0-9", None, 206, &content[..10], Some("bytes 0-9/200"));
        check("bytes=-10", None, 206, &content[190..], Some("bytes 190-199/200"));
        check("bytes=150-", None, 206, &content[150..], Some("bytes 150-199/200"));
        check("bytes=0-9", Some(&etag), 206, &content[..10], Some("bytes 0-9/200"));
        check("bytes=0-9", Some("\"x\""), 200, &content, None);
        check("bytes=0-9", Some("Sun, 09 Sep 2001 01:46:40 GMT"), 206, &content[..10], Some("bytes 0-9/200"));
        check("bytes=0-9", Some("Sun, 09 Sep 2001 01:46:41 GMT"), 200, &content, None);
        check("bytes=200-", None, 416, b"", Some("bytes */200"));
        check("bytes=x", None, 200, &content, None);
        let got = site.request(Method::Head, "", "/file.png", &[(KnownField::Range, "bytes=0-9")], false);
        assert_eq!(got.status, 200);
        let got = site.get_with("/file.png", &[(KnownField::Range, "bytes=0-1,150-151")]);
        let content_type = got.field("Content-Type").unwrap().to_owned();
        let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").unwrap();
        let mut body = Vec::new();
        for (range, bytes) in [("0-1", &content[..2]), ("150-151", &content[150..152])] {
            let start = if body.is_empty() { "" } else { "\r\n" };
            let head =
                format!("{start}--{boundary}\r\nContent-Type: image/png\r\nContent-Range: bytes {range}/200\r\n\r\n");
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(bytes);
        }
        body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        let got = got.expect(206, &body);
        assert_eq!((got.field("ETag"), got.field("Accept-Ranges")), (Some(etag.as_str()), Some("bytes")));
    }
}

#[test]
fn precompressed_siblings() {
    let mut site = FileFixture::new(|files, limits| {
        files.compress = false;
        limits.watch = false;
    });
    site.write("a.js", "plain");
    site.write("a.js.gz", "gz");
    site.write("a.js.br", "brotli");
    site.write("b.png", "plain");
    site.write("b.png.gz", "gz");
    site.settle();
    let mut etags = std::collections::HashSet::new();
    for (accepted, body, coding) in [
        ("", "plain", None),
        ("gzip", "gz", Some("gzip")),
        ("gzip, br, zstd", "brotli", Some("br")),
        ("zstd", "plain", None),
        ("gzip, br;q=0", "gz", Some("gzip")),
        ("identity;q=0", "plain", None),
    ] {
        let got = site.get_with("/a.js", &[(KnownField::AcceptEncoding, accepted)]).expect(200, body);
        assert_eq!((got.field("Content-Encoding"), got.field("Vary")), (coding, Some("Accept-Encoding")));
        assert_eq!(got.field("Content-Type"), Some("text/javascript; charset=utf-8"));
        etags.insert(got.field("ETag").unwrap().to_owned());
    }
    assert_eq!(etags.len(), 3, "a tag for each coding");
    let got = site.get_with("/b.png", &[(KnownField::AcceptEncoding, "gzip")]).expect(200, "plain");
    assert_eq!(got.field("Vary"), None);
    let got = site.get_with("/a.js", &[(KnownField::AcceptEncoding, "br"), (KnownField::Range, "bytes=0-2")]);
    let got = got.expect(206, "bro");
    assert_eq!((got.field("Content-Range"), got.field("Content-Encoding")), (Some("bytes 0-2/6"), Some("br")));

    let directory = site.directory.path().to_owned();
    let mut check = |accepted: &str, body: &str| {
        site.settle();
        site.later_ms += 1000;
        site.get_with("/a.js", &[(KnownField::AcceptEncoding, accepted)]).expect(200, body);
    };
    // Older than the file: not of this version.
    set_modified(&directory.join("a.js.br"), 999_999_999);
    check("br, gzip", "gz");
    fs::write(directory.join("a.js.zst"), "zstd").unwrap();
    check("br, zstd, gzip", "zstd");
    fs::remove_file(directory.join("a.js.zst")).unwrap();
    check("br, zstd, gzip", "gz");
    fs::write(directory.join("a.js.gz"), "gz again").unwrap();
    check("br, zstd, gzip", "gz again");
    fs::write(directory.join("a.js"), "plain again").unwrap();
    set_modified(&directory.join("a.js.gz"), 1_000_000_000);
    check("br, zstd, gzip", "plain again");
}

#[test]
fn compression() {
    use std::io::Read;
    let text = "All work and no play makes Jack a dull boy. ".repeat(100);
    for object_bytes_max in [1000, 100_000] {
        let site = FileFixture::new(|_, limits| {
            limits.object_bytes_max = object_bytes_max;
            limits.revalidate_after = std::time::Duration::from_secs(3600);
        });
        site.write("text.txt", &text);
        site.write("short.txt", "too short");
        site.write("random.txt", random_bytes(3000));
        site.settle();
        let plain = site.get("/text.txt").expect(200, &text);
        let before = site.cache.store().usage().memory_bytes;
        let unpack = |coding: &str, packed: &[u8]| {
            let mut out = Vec::new();
            match coding {
                "gzip" => flate2::read::GzDecoder::new(packed).read_to_end(&mut out).map(drop).unwrap(),
                "br" => brotli::BrotliDecompress(&mut &*packed, &mut out).unwrap(),
                _ => out = zstd::decode_all(packed).unwrap(),
            }
            out
        };
        for coding in ["gzip", "br", "zstd"] {
            let got = site.get_with("/text.txt", &[(KnownField::AcceptEncoding, coding)]);
            assert_eq!((got.status, got.field("Content-Encoding"), got.waited), (200, Some(coding), true));
            assert_eq!(got.field("Content-Length"), Some(got.body.len().to_string().as_str()));
            assert_ne!(got.field("ETag"), plain.field("ETag"));
            assert_eq!(unpack(coding, &got.body), text.as_bytes());
            let again = site.get_with("/text.txt", &[(KnownField::AcceptEncoding, coding)]).expect(200, &got.body);
            assert!(!again.waited, "kept");
            let etag = got.field("ETag").unwrap();
            let fields = [(KnownField::AcceptEncoding, coding), (KnownField::IfNoneMatch, etag)];
            let not_modified = site.get_with("/text.txt", &fields).expect(304, "");
            assert_eq!((not_modified.field("ETag"), not_modified.field("Vary")), (Some(etag), Some("Accept-Encoding")));
        }
        assert!(site.cache.store().usage().memory_bytes > before, "what was made is counted");
        for (path, vary) in [("/short.txt", Some("Accept-Encoding")), ("/random.txt", Some("Accept-Encoding"))] {
            let got = site.get_with(path, &[(KnownField::AcceptEncoding, "gzip")]);
            assert_eq!((got.status, got.field("Content-Encoding"), got.field("Vary")), (200, None, vary), "{path}");
        }
    }
}

#[test]
fn fields_by_path_and_type() {
    let rule = |matches, name: &str, value: &str| FieldRule { matches, name: name.into(), value: value.into() };
    let site = FileFixture::new(|files, _| {
        files.strip_prefix = "/p".into();
        files.fields = Arc::new(vec![
            rule(FieldMatch::Path(PathPattern::Any), "Cache-Control", "no-cache"),
            rule(FieldMatch::Type("image/".into()), "Cache-Control", "max-age=60"),
            rule(
                FieldMatch::Path(PathPattern::Prefix("/p/static/".into())),
                "Cache-Control",
                "max-age=31536000, immutable",
            ),
            rule(FieldMatch::Type("text/html".into()), "X-Frame-Options", "DENY"),
            rule(FieldMatch::Path(PathPattern::Suffix(".zzz".into())), "ETag", ""),
            rule(FieldMatch::Type("text/html".into()), "Vary", "Cookie"),
        ]);
    });
    for name in ["a.html", "a.png", "static/a.png", "a.zzz"] {
        site.write(name, "x");
    }
    site.settle();
    let check = |path: &str, cache_control: &str, frame: Option<&str>, has_etag: bool| {
        for _ in 0..2 {
            let got = site.get(path);
            assert_eq!(
                (got.field("Cache-Control"), got.field("X-Frame-Options")),
                (Some(cache_control), frame),
                "{path}"
            );
            assert_eq!(got.field("ETag").is_some(), has_etag, "{path}");
        }
    };
    check("/p/a.html", "no-cache", Some("DENY"), true);
    check("/p/a.png", "max-age=60", None, true);
    check("/p/static/a.png", "max-age=31536000, immutable", None, true);
    check("/p/a.zzz", "no-cache", None, false);
    assert_eq!(site.get("/p/a.html").field("Vary"), Some("Accept-Encoding, Cookie"));
    let got = site.get_with("/p/a.png", &[(KnownField::IfNoneMatch, "*")]).expect(304, "");
    assert_eq!(got.field("Cache-Control"), Some("max-age=60"));
}
