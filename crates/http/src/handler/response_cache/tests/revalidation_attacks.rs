//! Attacks by revalidation: a user gets content made for another, because a 304 or a response to HEAD changed which
//! requests a stored response satisfies (issue 17, RFC 9111, sections 4.3.4 and 4.3.5).

use super::*;

const ANNA: &str = "GET / HTTP/1.1\nCookie: anna\n";
const BERT: &str = "GET / HTTP/1.1\nCookie: bert\n";

const STALE: &str = "Cache-Control: max-age=0\nETag: \"a\"";
const STALE_BY_DATE: &str = "Cache-Control: max-age=0\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT";

#[test]
fn vary_in_a_304_keeps_the_first_users_content_from_others() {
    let site = CacheFixture::answering(&[
        answer(200, STALE, "anna's"),
        answer(304, "Cache-Control: max-age=60\nETag: \"a\"\nVary: Cookie", ""),
        answer(200, "Cache-Control: max-age=60\nVary: Cookie", "bert's"),
    ]);
    site.ask(ANNA).is(200, "anna's");
    site.ask(ANNA).is(200, "anna's").has("Vary: Cookie");
    site.ask(BERT).is(200, "bert's");
    site.ask(ANNA).is(200, "anna's").has("Vary: Cookie");
    site.ask(BERT).is(200, "bert's");
    assert_eq!(site.asked(), ["GET", "GET If-None-Match: \"a\"", "GET"]);
}

/// The stored content was made for Anna; Bert's request validates it. A strong entity tag says that it is also
/// Bert's.
#[test]
fn a_strong_entity_tag_gives_the_content_to_who_validated_it() {
    let site = CacheFixture::answering(&[
        answer(200, STALE, "shared"),
        answer(304, "Cache-Control: max-age=60\nETag: \"a\"\nVary: Cookie", ""),
        answer(200, "Cache-Control: max-age=60\nVary: Cookie", "anna's"),
    ]);
    site.ask(ANNA).is(200, "shared");
    site.ask(BERT).is(200, "shared");
    // No response has said whether it is still Anna's.
    site.ask(ANNA).is(200, "anna's");
    site.ask(BERT).is(200, "shared");
}

/// Without one, "not modified" says when Bert's page last changed, not that it is Anna's.
#[test]
fn who_validates_by_a_weak_validator_gets_content_of_their_own() {
    for (stored, validated) in [
        (STALE_BY_DATE, "Vary: Cookie"),
        (STALE_BY_DATE, "Vary: *"),
        (STALE_BY_DATE, "Cache-Control: private"),
        (STALE_BY_DATE, "Cache-Control: no-store"),
        (STALE, "Cache-Control: private"),
        (STALE, "ETag: W/\"a\"\nVary: Cookie"),
        ("Cache-Control: max-age=0\nETag: W/\"a\"", "ETag: W/\"a\"\nVary: Cookie"),
        ("Cache-Control: max-age=0\nETag: W/\"a\"", "ETag: W/\"b\""),
        (STALE_BY_DATE, "Last-Modified: Sun, 06 Nov 1994 08:49:36 GMT"),
    ] {
        let own = answer(200, "Cache-Control: private", "bert's");
        let site = CacheFixture::answering(&[answer(200, stored, "anna's"), answer(304, validated, ""), own]);
        site.ask(ANNA).is(200, "anna's");
        site.ask(BERT).is(200, "bert's");
        assert_eq!(site.store.usage().objects, 0, "{stored} {validated}");
        assert_eq!(site.asked().last().map(String::as_str), Some("GET"), "{stored} {validated}");
    }
}

/// A response that became private is not served to others, neither stale nor while the upstream is down.
#[test]
fn what_a_304_makes_private_is_not_kept() {
    for directives in ["private", "no-store", "private, max-age=60"] {
        let stale = "Cache-Control: max-age=0, stale-if-error=60\nETag: \"a\"";
        let validated = format!("Cache-Control: {directives}\nETag: \"a\"");
        let site = CacheFixture::answering(&[
            answer(200, stale, "anna's"),
            answer(304, &validated, ""),
            answer(503, "A: 1", "down"),
        ]);
        site.ask(ANNA).is(200, "anna's");
        // The client and each cache on the way see the directive.
        site.ask(ANNA).is(200, "anna's").has(&format!("Cache-Control: {directives}"));
        assert_eq!(site.store.usage().objects, 0);
        site.ask(BERT).is(503, "down");
    }
}

/// The stored response has a targeted field (RFC 9213), which the 304 leaves out.
#[test]
fn private_in_a_304_counts_beside_a_stored_targeted_field() {
    let site = CacheFixture::new(|caching| caching.targeted_fields = vec!["cdn-cache-control".into()]).and(&[
        answer(200, "CDN-Cache-Control: max-age=0, stale-if-error=60\nETag: \"a\"", "anna's"),
        answer(304, "Cache-Control: private\nETag: \"a\"", ""),
        answer(503, "A: 1", "down"),
    ]);
    site.ask(ANNA).is(200, "anna's");
    site.ask(ANNA).is(200, "anna's");
    site.ask(BERT).is(503, "down");
}

/// A 304 that names fewer fields: the stored content still depends on those that selected it.
#[test]
fn a_304_does_not_take_vary_away() {
    for vary in ["", "\nVary: Accept-Language", "\nVary: "] {
        let site = CacheFixture::answering(&[
            answer(200, &format!("{STALE}\nVary: Cookie"), "anna's"),
            answer(304, &format!("Cache-Control: max-age=60\nETag: \"a\"{vary}"), ""),
            answer(200, "Cache-Control: max-age=60\nVary: Cookie", "bert's"),
        ]);
        site.ask(ANNA).is(200, "anna's");
        site.ask(ANNA).is(200, "anna's");
        let got = site.ask(ANNA);
        let names = got.is(200, "anna's").head.lines().find_map(|line| line.strip_prefix("Vary:"));
        assert!(names.is_some_and(|names| names.to_lowercase().contains("cookie")), "{}", got.head);
        site.ask(BERT).is(200, "bert's");
    }
}

#[test]
fn other_variants_stay_where_they_are() {
    let varying = |content| answer(200, "Cache-Control: max-age=0\nETag: \"a\"\nVary: Accept-Language", content);
    let site = CacheFixture::answering(&[
        varying("en"),
        varying("de"),
        answer(304, "Cache-Control: max-age=60\nETag: \"a\"\nVary: Accept-Language, Cookie", ""),
        answer(200, "Cache-Control: max-age=60\nVary: Accept-Language, Cookie", "bert's"),
    ]);
    let ask = |user: &str, language: &str| site.ask(&format!("{user}Accept-Language: {language}\n"));
    ask(ANNA, "en").is(200, "en");
    ask(ANNA, "de").is(200, "de");
    ask(ANNA, "de").is(200, "de");
    ask(BERT, "de").is(200, "bert's");
    ask(ANNA, "de").is(200, "de");
    assert_eq!(site.asked().len(), 4);
}

/// Bert waits for the response to Anna's request, which is not for him.
#[test]
fn who_waits_for_a_validation_gets_content_of_their_own() {
    for (validated, last) in [
        ("Cache-Control: max-age=60\nETag: \"a\"\nVary: Cookie", answer(200, "Cache-Control: private", "bert's")),
        ("Cache-Control: private\nETag: \"a\"", answer(200, "Cache-Control: private", "bert's")),
        // The stored response must not be served in place of the error either.
        ("Cache-Control: private\nETag: \"a\"", answer(503, "A: 1", "bert's")),
    ] {
        let when = Rc::new(Cell::new(false));
        let stale = "Cache-Control: max-age=0, stale-if-error=60\nETag: \"a\"";
        let validation = FakeUpstreamResponse { when: Some(Rc::clone(&when)), ..answer(304, validated, "") };
        let status = last.status;
        let site = CacheFixture::answering(&[answer(200, stale, "anna's"), validation, last]);
        site.ask(ANNA).is(200, "anna's");
        site.runtime.block_on(async {
            let (anna, bert) = (site.finish(site.start(ANNA)), site.finish(site.start(BERT)));
            let open = async {
                for _ in 0..4 {
                    tokio::task::yield_now().await;
                }
                when.set(true);
            };
            let (anna, bert, ()) = tokio::join!(anna, bert, open);
            anna.is(200, "anna's");
            bert.is(status, "bert's");
        });
    }
}

/// The validation after a response that was served stale.
#[test]
fn a_validation_in_the_background_keeps_users_apart() {
    let stale = "Cache-Control: max-age=0, stale-while-revalidate=60\nETag: \"a\"";
    let site = CacheFixture::answering(&[
        answer(200, stale, "anna's"),
        answer(304, "Cache-Control: max-age=60\nETag: \"a\"\nVary: Cookie", ""),
        answer(200, "Cache-Control: max-age=60\nVary: Cookie", "bert's"),
    ]);
    site.ask(ANNA).is(200, "anna's");
    site.ask(ANNA).is(200, "anna's");
    site.ask(BERT).is(200, "bert's");
    site.ask(ANNA).is(200, "anna's");
}

#[test]
fn what_head_says_keeps_users_apart() {
    for said in [
        "Cache-Control: max-age=60\nETag: \"a\"\nVary: Cookie",
        "Cache-Control: max-age=60\nVary: Cookie",
        "Cache-Control: private",
        "Cache-Control: no-store\nETag: \"a\"",
        "Cache-Control: max-age=60\nVary: *",
        // RFC 9111, section 4.3.5: a validator that the stored response does not have.
        "Cache-Control: max-age=60\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT",
        "Cache-Control: max-age=60\nETag: \"b\"",
    ] {
        let own = answer(200, "Cache-Control: private", "bert's");
        let site = CacheFixture::answering(&[answer(200, STALE, "anna's"), answer(200, said, ""), own]);
        site.ask(ANNA).is(200, "anna's");
        site.ask("HEAD / HTTP/1.1\nCookie: anna\n");
        assert_eq!(site.store.usage().objects, 0, "{said}");
        site.ask(BERT).is(200, "bert's");
        assert_eq!(site.asked(), ["GET", "HEAD", "GET"], "{said}");
    }
}

/// A response to the client's own condition says nothing about the stored one.
#[test]
fn a_conditional_head_removes_nothing() {
    let site = CacheFixture::answering(&[
        answer(200, STALE, "1"),
        answer(304, "ETag: \"a\"", ""),
        answer(304, "ETag: \"a\"", ""),
    ]);
    site.ask("GET /").is(200, "1");
    site.ask("HEAD / HTTP/1.1\nIf-None-Match: \"a\"\n").is(304, "");
    site.ask("GET /").is(200, "1");
}

/// A cookie is for the client whose request validated: no other client gets it.
#[test]
fn a_cookie_in_a_304_is_not_stored() {
    for policy in [SetCookie::Reject, SetCookie::Drop, SetCookie::Keep] {
        let site = CacheFixture::new(|caching| caching.set_cookie = policy).and(&[
            answer(200, STALE, "1"),
            answer(304, "Cache-Control: max-age=60\nETag: \"a\"\nSet-Cookie: s=anna", ""),
            answer(304, "Cache-Control: max-age=60\nETag: \"a\"", ""),
        ]);
        site.ask(ANNA).is(200, "1");
        site.ask(ANNA).is(200, "1").has("Set-Cookie: s=anna");
        site.ask(BERT).is(200, "1").has_no("Set-Cookie");
        // With a cookie, a 304 is no more sharable than a 200.
        assert_eq!(site.asked().len(), if policy == SetCookie::Reject { 3 } else { 2 }, "{policy:?}");
    }
}

/// A client that forbids storing, or has credentials, changes nothing for others.
#[test]
fn what_a_request_forbids_leaves_the_stored_response() {
    for line in ["Cache-Control: no-store", "Authorization: Basic eDp5"] {
        let site = CacheFixture::new(|caching| caching.request_directives = true).and(&[
            answer(200, STALE, "1"),
            answer(304, "Cache-Control: max-age=60\nETag: \"a\"", ""),
            answer(304, "Cache-Control: max-age=60\nETag: \"a\"", ""),
        ]);
        site.ask("GET /").is(200, "1");
        site.ask(&format!("GET / HTTP/1.1\n{line}\n")).is(200, "1");
        assert_eq!(site.store.usage().objects, 1, "{line}");
        site.ask("GET /").is(200, "1");
        assert_eq!(site.asked().len(), 3, "{line}");
    }
}
