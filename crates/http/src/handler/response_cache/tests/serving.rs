//! Responses that clients get.

use bytes::Bytes;
use wire::http::ContentCoding;

use super::*;
use crate::handler::compression::representation;

#[test]
fn what_is_fresh_is_served_from_memory() {
    for first in [answer(200, FRESH, "hello"), streamed(FRESH, &["he", "llo"])] {
        let site = CacheFixture::answering(&[first]);
        site.ask("GET /").is(200, "hello");
        site.ask("GET /").is(200, "hello").has("Age: 0").has("Content-Length: 5").has("ETag: \"a\"");
        site.ask("HEAD /").has("Content-Length: 5");
        site.ask("GET / HTTP/1.1\nCookie: a=b\n").is(200, "hello");
        site.ask("GET / HTTP/1.1\nIf-None-Match: \"a\"\n").is(304, "").has("ETag: \"a\"").has_no("Content-Type");
        site.ask("GET / HTTP/1.1\nIf-None-Match: \"b\"\n").is(200, "hello");
        site.ask("GET / HTTP/1.1\nRange: bytes=1-2\n").is(206, "el");
        site.ask("GET / HTTP/1.1\nRange: bytes=9-\n").is(416, "").has("Content-Range: bytes */5");
        let several = site.ask("GET / HTTP/1.1\nRange: bytes=0-0,4-4\n");
        // The gaps are shorter than the head of a part.
        several.is(206, "hello");
        assert_eq!(site.asked(), ["GET"]);
    }
}

#[test]
fn other_statuses_are_stored_as_they_are() {
    let site = CacheFixture::answering(&[answer(404, FRESH, "none")]);
    site.ask("GET /").is(404, "none");
    site.ask("GET / HTTP/1.1\nIf-None-Match: \"a\"\nRange: bytes=0-1\n").is(404, "none").has("Age: 0");
}

#[test]
fn urls_are_distinguished() {
    let site = CacheFixture::new(|config| config.ignored_parameters = vec![NamePattern::new("utm_*")]);
    let site = site.and(&[answer(200, FRESH, "1"), answer(200, FRESH, "2"), answer(200, FRESH, "3")]);
    site.ask("GET /?a=1").is(200, "1");
    site.ask("GET /?a=2").is(200, "2");
    site.ask("GET /%3Fa=1").is(200, "3");
    site.ask("GET /?a=1&utm_source=x").is(200, "1");
    site.ask("GET http://H/?a=2").is(200, "2");
}

#[test]
fn stale_responses_are_validated() {
    let stale = "Cache-Control: max-age=0\nETag: \"a\"\nLast-Modified: then\nA: 1\nContent-Type: text/plain";
    let site =
        CacheFixture::answering(&[answer(200, stale, "one"), answer(304, "Cache-Control: max-age=60\nA: 2", "")]);
    site.ask("GET /").is(200, "one");
    // The client's own condition is evaluated on the validated response.
    site.ask("GET / HTTP/1.1\nIf-None-Match: \"x\"\nRange: bytes=0-1\n").is(206, "on").has("A: 2");
    site.ask("GET /").is(200, "one").has("A: 2").has("Content-Type: text/plain").has("Cache-Control: max-age=60");
    assert_eq!(site.asked(), ["GET", "GET If-None-Match: \"a\" If-Modified-Since: then"]);
}

#[test]
fn a_new_version_replaces_the_stale_one() {
    let stale = "Cache-Control: max-age=0\nETag: \"a\"";
    let site = CacheFixture::answering(&[answer(200, stale, "one"), answer(200, FRESH, "two")]);
    site.ask("GET /").is(200, "one");
    site.ask("GET / HTTP/1.1\nIf-None-Match: \"a\"\n").is(304, "");
    site.ask("GET /").is(200, "two");

    // RFC 9111, section 4.3.4: a 304 about another version changes nothing, and the whole is fetched.
    let site = CacheFixture::answering(&[
        answer(200, stale, "one"),
        answer(304, "ETag: \"b\"", ""),
        answer(200, FRESH, "two"),
    ]);
    site.ask("GET /").is(200, "one");
    site.ask("GET /").is(200, "two");
    assert_eq!(site.asked(), ["GET", "GET If-None-Match: \"a\"", "GET"]);
}

#[test]
fn what_may_not_be_stored_is_not() {
    let cut = FakeUpstreamResponse { is_cut: true, ..streamed(FRESH, &["hel"]) };
    let large = Box::leak("x".repeat((1 << 20) + 1).into_boxed_str());
    for (first, request) in [
        (answer(200, "Cache-Control: no-store", "1"), "GET /"),
        (answer(200, "Cache-Control: private, max-age=9", "1"), "GET /"),
        (answer(200, "Cache-Control: max-age=9\nVary: *", "1"), "GET /"),
        (answer(200, "Cache-Control: max-age=9\nSet-Cookie: a=b", "1"), "GET /"),
        (answer(200, FRESH, "1"), "GET / HTTP/1.1\nAuthorization: x\n"),
        (answer(206, FRESH, "1"), "GET / HTTP/1.1\nRange: bytes=0-0\n"),
        (answer(200, FRESH, large), "GET /"),
        (cut, "GET /"),
    ] {
        let site = CacheFixture::answering(&[first, answer(200, "Cache-Control: no-store", "2")]);
        site.ask(request);
        site.ask("GET /").is(200, "2");
        assert_eq!(site.asked().len(), 2, "{request}");
    }
}

#[test]
fn a_client_sees_what_breaks_off() {
    let site = CacheFixture::answering(&[FakeUpstreamResponse { is_cut: true, ..streamed(FRESH, &["hel"]) }]);
    assert_eq!(site.ask("GET /").content, Err(io::ErrorKind::UnexpectedEof));
}

#[test]
fn what_turns_out_too_large_is_passed_on() {
    let site = CacheFixture::new(|config| config.object_bytes_max = 4).and(&[
        streamed(FRESH, &["12", "34", "56"]),
        FakeUpstreamResponse { is_cut: true, ..streamed(FRESH, &["12", "34", "5"]) },
    ]);
    site.ask("GET /").is(200, "123456");
    assert_eq!(site.ask("GET /").content, Err(io::ErrorKind::UnexpectedEof));
}

#[test]
fn cookies_by_policy() {
    let first = || answer(200, "Cache-Control: max-age=9\nSet-Cookie: a=b", "1");
    let site = CacheFixture::new(|config| config.set_cookie = SetCookie::Keep).and(&[first()]);
    site.ask("GET /");
    site.ask("GET /").has("Set-Cookie: a=b");
    let site = CacheFixture::new(|config| config.set_cookie = SetCookie::Drop).and(&[first()]);
    site.ask("GET /").has("Set-Cookie: a=b");
    site.ask("GET /").is(200, "1").has_no("Set-Cookie");

    let site = CacheFixture::new(|config| config.bypass_cookies = vec![NamePattern::new("login*")]);
    let site = site.and(&[answer(200, FRESH, "1"), answer(200, FRESH, "2")]);
    site.ask("GET /").is(200, "1");
    site.ask("GET / HTTP/1.1\nCookie: a=b; login_x=1\n").is(200, "2");
    site.ask("GET / HTTP/1.1\nCookie: a=login\n").is(200, "1");
}

#[test]
fn variants() {
    let varying = |content| answer(200, "Cache-Control: max-age=60\nVary: Accept-Language", content);
    let site = CacheFixture::answering(&[varying("en"), varying("de"), varying("none"), answer(200, FRESH, "fr")]);
    let ask = |language: &str| site.ask(&format!("GET / HTTP/1.1\nAccept-Language: {language}\n"));
    for _ in 0..2 {
        ask("en").is(200, "en");
        ask("de").is(200, "de");
        site.ask("GET /").is(200, "none");
        // RFC 9111, section 4.1: a response that lacks its Vary.
        ask("fr").is(200, "fr");
    }
    site.ask("GET /").is(200, "none");
    assert_eq!(site.asked().len(), 4);
    assert_eq!(site.shared.purge(Purge::Url(b"http://h/")), 4);
}

#[test]
fn head_tells_of_what_is_stored() {
    let stale = "Cache-Control: max-age=0\nETag: \"a\"";
    let site = CacheFixture::answering(&[
        answer(200, stale, "one"),
        answer(200, "ETag: \"a\"\nCache-Control: max-age=60\nA: 2", ""),
    ]);
    site.ask("GET /");
    site.ask("HEAD /").is(200, "");
    site.ask("GET /").is(200, "one").has("A: 2");
    let site = CacheFixture::answering(&[
        answer(200, stale, "one"),
        answer(200, "ETag: \"b\"", ""),
        answer(200, FRESH, "two"),
    ]);
    site.ask("GET /");
    site.ask("HEAD /");
    site.ask("GET /").is(200, "two");
    assert_eq!(site.asked(), ["GET", "HEAD", "GET"]);
}

#[test]
fn stale_while_it_is_validated() {
    let stale = "Cache-Control: max-age=0, stale-while-revalidate=60\nETag: \"a\"";
    let site = CacheFixture::answering(&[answer(200, stale, "one"), streamed(FRESH, &["two"])]);
    site.ask("GET /").is(200, "one");
    site.ask("GET /").is(200, "one");
    site.ask("GET /").is(200, "two").has("Age: 0");
    assert_eq!(site.asked(), ["GET", "GET If-None-Match: \"a\""]);
}

#[test]
fn stale_if_the_upstream_fails() {
    let unreachable = || answer(503, "", "");
    let check = |cache_control: &str, failure: FakeUpstreamResponse, expect: (u16, &str)| {
        let site = CacheFixture::answering(&[
            answer(200, &format!("Cache-Control: max-age=0{cache_control}\nETag: \"a\""), "one"),
            failure,
        ]);
        site.ask("GET /");
        site.ask("GET /").is(expect.0, expect.1);
    };
    check(", stale-if-error=60", unreachable(), (200, "one"));
    check(", stale-if-error=60", answer(500, "A: b", "sorry"), (200, "one"));
    check(", stale-if-error=60", answer(404, "A: b", "none"), (404, "none"));
    check(", stale-if-error=60, must-revalidate", unreachable(), (503, ""));
    check("", unreachable(), (503, ""));
}

#[test]
fn directives_of_requests() {
    let site = CacheFixture::new(|config| config.request_directives = true).and(&[
        answer(200, FRESH, "one"),
        answer(304, "Cache-Control: max-age=60", ""),
        answer(200, "Cache-Control: no-store", "two"),
    ]);
    site.ask("GET / HTTP/1.1\nCache-Control: only-if-cached\n").is(504, "");
    site.ask("GET /").is(200, "one");
    site.ask("GET / HTTP/1.1\nPragma: no-cache\n").is(200, "one");
    site.ask("GET / HTTP/1.1\nCache-Control: only-if-cached\n").is(200, "one");
    site.ask("GET / HTTP/1.1\nCache-Control: min-fresh=100\n").is(200, "two");
    assert_eq!(site.asked().len(), 3);

    let site = CacheFixture::answering(&[answer(200, FRESH, "one")]);
    site.ask("GET / HTTP/1.1\nCache-Control: no-store\n").is(200, "one");
    site.ask("GET / HTTP/1.1\nCache-Control: no-cache\n").is(200, "one");
}

#[test]
fn the_cache_says_what_it_did() {
    let site = CacheFixture::new(|config| config.cache_status = true).and(&[
        answer(200, "Cache-Control: max-age=0\nETag: \"a\"", "one"),
        answer(304, "", ""),
        streamed(FRESH, &["two"]),
        answer(200, "", ""),
        answer(200, "Cache-Control: no-store", "three"),
    ]);
    site.ask("GET /").has("Cache-Status: tailcoat; fwd=uri-miss; fwd-status=200; stored").has_no("Age");
    site.ask("GET /").has("Cache-Status: tailcoat; fwd=stale; fwd-status=304");
    site.ask("GET /").is(200, "two").has("Cache-Status: tailcoat; fwd=stale; fwd-status=200; stored");
    site.ask("POST /").has("Cache-Status: tailcoat; fwd=method");
    site.ask("GET /").has("Cache-Status: tailcoat; fwd=uri-miss; fwd-status=200");
}

#[test]
fn chosen_fields_and_cookies_tell_responses_apart() {
    let site = CacheFixture::new(|config| {
        config.key_fields = vec!["X-Device".into()];
        config.key_cookies = vec!["currency".into()];
    });
    let plain = "Cache-Control: max-age=60";
    let varying = "Cache-Control: max-age=60\nVary: Accept-Language";
    let site = site.and(&[answer(200, plain, "1"), answer(200, plain, "2"), answer(200, plain, "3")]);
    let ask = |path: &str, lines: &str| site.ask(&format!("GET {path} HTTP/1.1\n{lines}"));
    for _ in 0..2 {
        ask("/", "").is(200, "1");
        ask("/", "X-Device: phone\n").is(200, "2");
        ask("/", "X-Device: phone\nCookie: a=b; currency=EUR\n").is(200, "3");
        ask("/", "Cookie: currency=EUR; other=c\nX-Device: phone\nAccept: x\n").is(200, "3");
    }
    let site = site.and(&[answer(200, varying, "4"), answer(200, varying, "5"), answer(200, varying, "6")]);
    let ask = |path: &str, lines: &str| site.ask(&format!("GET {path} HTTP/1.1\n{lines}"));
    for _ in 0..2 {
        ask("/v", "").is(200, "4");
        ask("/v", "Accept-Language: en\n").is(200, "5");
        ask("/v", "Accept-Language: en\nX-Device: phone\n").is(200, "6");
    }
}

#[test]
fn a_validation_that_is_overtaken_still_answers() {
    let when = Rc::new(Cell::new(false));
    let site = CacheFixture::answering(&[
        answer(200, "Cache-Control: max-age=0\nETag: \"a\"\nA: 1", "one"),
        FakeUpstreamResponse {
            when: Some(Rc::clone(&when)),
            ..answer(304, "Cache-Control: max-age=60\nETag: \"a\"\nA: 2", "")
        },
        answer(200, FRESH, "two"),
    ]);
    site.ask("GET /").is(200, "one");
    let (got, ()) = site.runtime.block_on(async {
        let purge = async {
            tokio::task::yield_now().await;
            assert_eq!(site.shared.purge(Purge::All), 1);
            when.set(true);
        };
        tokio::join!(site.finish(site.start("GET / HTTP/1.1\n")), purge)
    });
    got.is(200, "one").has("A: 2");
    // The validated response is gone, and is not stored again.
    site.ask("GET /").is(200, "two");
}

#[test]
fn codings_outlive_a_validation() {
    let content: &'static str = Box::leak("text ".repeat(500).into_boxed_str());
    let stale = "Cache-Control: max-age=0\nETag: \"a\"\nContent-Type: text/plain";
    let mut forward = ForwardConfig::to("x");
    forward.compression.is_on = Some(true);
    let site = CacheFixture::with(ResponseCaching::default(), &forward);
    let site = site.and(&[answer(200, stale, content), answer(304, "Cache-Control: max-age=60\nA: 2", "")]);
    site.ask("GET /").is(200, content);
    let stored = || site.store.peek(site.shared.id, b"http://h/").unwrap();
    let before = stored();
    let encoded = representation(Status::OK, ContentCoding::Gzip, &Fields::new(), Bytes::from_static(b"encoded"));
    let cell = before.codings().unwrap().cell(ContentCoding::Gzip).unwrap();
    assert!(cell.set(Some(Box::new(encoded))).is_ok());
    site.ask("GET /").is(200, content);
    let after = stored();
    let kept = after.representation(ContentCoding::Gzip);
    let ObjectContent::Memory(bytes) = &kept.content else { panic!("a file") };
    assert_eq!(&bytes[..], b"encoded");
    let mut head = Vec::new();
    kept.head.h1.write(&[b'?'; DATE_BYTES], &mut head);
    let head = String::from_utf8(head).unwrap();
    for line in ["A: 2", "Content-Encoding: gzip", "ETag: W/\"a\"", "Vary: Accept-Encoding"] {
        assert!(head.lines().any(|other| other == line), "{line}: {head}");
    }
}
