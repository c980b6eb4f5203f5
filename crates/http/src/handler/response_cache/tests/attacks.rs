//! Attacks: choosing what others get, reading what others got, and using up memory.

use super::*;

/// A site whose responses are all storable, each different.
fn counting() -> CacheFixture {
    let contents = ["1", "2", "3", "4", "5", "6", "7", "8"];
    CacheFixture::answering(&contents.map(|content| answer(200, FRESH, content)))
}

/// Web cache poisoning (J. Kettle, 2018 and 2020): fields that change an application's response but are not in the
/// key.
#[test]
fn who_names_another_url_gets_a_response_of_their_own() {
    for line in ["X-Original-URL: /admin", "x_rewrite_url: /admin", "X-HTTP-Method-Override: POST", "X-Host: evil"] {
        let site = counting();
        site.ask(&format!("GET / HTTP/1.1\n{line}\n")).is(200, "1");
        site.ask("GET /").is(200, "2");
        site.ask(&format!("GET / HTTP/1.1\n{line}\n")).is(200, "1");
        // A purge of the requested URL removes them.
        assert_eq!(site.shared.purge(Purge::Url(b"http://h/")), 2, "{line}");
    }
}

#[test]
fn other_hosts_and_paths_are_other_keys() {
    let site = counting();
    site.ask("GET /").is(200, "1");
    // An absolute target overrides the Host field (RFC 9112, section 3.2.2), here and at the upstream.
    site.ask("GET http://evil/").is(200, "2");
    site.ask("GET http://h:81/").is(200, "3");
    site.ask("GET http://h./").is(200, "4");
    site.ask("GET //").is(200, "5");
    site.ask("GET /%2f").is(200, "6");
    site.ask("GET /?").is(200, "7");
    site.ask("GET http://H/").is(200, "1");
}

/// Web cache deception (O. Gil, 2017; "Gotta cache 'em all", 2024): a path that is read in two ways.
#[test]
fn what_leads_elsewhere_is_passed_on() {
    for path in ["/static/..%2faccount", "/account/%2e%2e/static/a.css", "/static/..;/account", "/static/..%5caccount"]
    {
        let site = counting();
        site.ask(&format!("GET {path}")).is(200, "1");
        site.ask(&format!("GET {path}")).is(200, "2");
        assert_eq!(site.store.usage().objects, 0, "{path}");
    }
}

/// Connection names a field, so that the upstream does not see it although it would select the response.
#[test]
fn fields_that_go_no_further_choose_nothing() {
    let site = counting();
    let poison = "GET / HTTP/1.1\nConnection: close, Accept-Language\nAccept-Language: de\n";
    site.ask(poison).is(200, "1");
    site.ask(poison).is(200, "2");
    assert_eq!(site.store.usage().objects, 0);
    for connection in ["close", "keep-alive, TE", "Upgrade", " , close"] {
        site.ask(&format!("GET / HTTP/1.1\nConnection: {connection}\n")).is(200, "3");
    }
}

/// No client selects a response that depends on a field from Tailcoat.
#[test]
fn what_depends_on_what_we_write_is_not_stored() {
    for (name, objects) in
        [("X-Forwarded-For", 0), ("Via", 0), ("Accept, Forwarded", 0), ("X-Forwarded-Proto", 1), ("Accept", 1)]
    {
        let lines = format!("Cache-Control: max-age=60\nVary: {name}");
        let site = CacheFixture::answering(&[answer(200, &lines, "1")]);
        site.ask("GET /").is(200, "1");
        assert_eq!(site.store.usage().objects, objects, "{name}");
    }
}

/// For CGI programs `Accept_Language` is Accept-Language; for others it is not.
#[test]
fn ambiguous_names_of_fields_choose_a_response_of_their_own() {
    let lines = "Cache-Control: max-age=60\nVary: Accept-Language";
    let site = CacheFixture::answering(&["1", "2", "3"].map(|content| answer(200, lines, content)));
    site.ask("GET / HTTP/1.1\nAccept_Language: de\n").is(200, "1");
    site.ask("GET /").is(200, "2");
    site.ask("GET / HTTP/1.1\nAccept-Language: de\n").is(200, "3");
}

/// Web cache deception by delimiters ("Gotta cache 'em all", 2024): the upstream may see `/account`.
#[test]
fn what_may_end_elsewhere_has_no_default_age() {
    for path in ["/account;x.css", "/account%3fx.css", "/account%23x.css", "/account%2fx.css", "/account%0a.css"] {
        let site = CacheFixture::new(|caching| caching.default_ages = vec![(Status::OK, Duration::from_secs(60))]);
        let site = site.and(&["1", "2"].map(|content| answer(200, "X: y", content)));
        site.ask(&format!("GET {path}")).is(200, "1");
        site.ask(&format!("GET {path}")).is(200, "2");
        assert_eq!(site.store.usage().objects, 0, "{path}");
    }
    // A response with an explicit lifetime is meant for this URL.
    let site = counting();
    site.ask("GET /account;x.css").is(200, "1");
    site.ask("GET /account;x.css").is(200, "1");
}

/// A GET with content ("fat GET"): the content is not in the key.
#[test]
fn a_get_with_content_is_passed_on() {
    let site = counting();
    let link = ClientLinkCell::with_content(wire::h1::BodyFraming::Length(1), 1, None);
    let asked = site.start_with("GET / HTTP/1.1\nContent-Length: 1\n", &link);
    site.runtime.block_on(site.finish(asked)).is(200, "1");
    site.ask("GET /").is(200, "2");
}

#[test]
fn private_responses_are_not_stored() {
    for (request, lines) in [
        ("GET /", "Cache-Control: private, max-age=60"),
        ("GET /", "Cache-Control: no-store, max-age=60"),
        ("GET /", "Cache-Control: max-age=60\nSet-Cookie: session=1"),
        ("GET /", "Cache-Control: max-age=60\nVary: *"),
        ("GET / HTTP/1.1\nAuthorization: Basic eDp5\n", "Cache-Control: max-age=60"),
    ] {
        let site = CacheFixture::answering(&[answer(200, lines, "secret"), answer(200, lines, "other")]);
        site.ask(request).is(200, "secret");
        site.ask("GET /").is(200, "other");
    }
}

/// More fields than any real response depends on, which each request would have to check.
#[test]
fn a_huge_vary_is_not_stored() {
    let lines = |count: usize| {
        let names: Vec<String> = (0..count).map(|number| format!("F{number}")).collect();
        format!("Cache-Control: max-age=60\nVary: {}", names.join(", "))
    };
    for (count, objects) in [(32, 1), (33, 0), (10_000, 0)] {
        let site = CacheFixture::answering(&[answer(200, &lines(count), "1")]);
        site.ask("GET /").is(200, "1");
        assert_eq!(site.store.usage().objects, objects, "{count}");
    }
}

/// A sixteenth of the memory.
const LARGE: &str = match str::from_utf8(&[b'x'; 64 << 10]) {
    Ok(text) => text,
    Err(_) => unreachable!(),
};

/// Between two ticks, displaced responses used up the room of their successors, and nothing more was stored.
#[test]
fn displaced_responses_leave_room_at_once() {
    const COUNT: usize = 64;
    let site = CacheFixture::new(|_| {});
    let mut hits = 0;
    for number in 0..COUNT {
        for _ in 0..2 {
            site.upstream.answers.borrow_mut().push_back(answer(200, FRESH, LARGE));
            site.ask(&format!("GET /{number}")).is(200, LARGE);
        }
        hits += site.upstream.answers.borrow_mut().drain(..).count();
    }
    // A new response may be displaced before its second request, but most are not.
    assert!(hits > COUNT / 2, "{hits} of {COUNT}");
}

/// Clients that request many different responses and read none of them.
#[test]
fn slow_clients_hold_no_more_memory_than_there_may_be() {
    let site = CacheFixture::new(|_| {});
    let mut held = Vec::new();
    site.runtime.block_on(async {
        for number in 0..64 {
            site.upstream.answers.borrow_mut().push_back(answer(200, FRESH, LARGE));
            let HandlerOutcome::Wait(outcome) = site.start(&format!("GET /{number} HTTP/1.1\n")) else { panic!() };
            outcome.await;
            // Their responses are purged, but the clients still hold them.
            let HandlerOutcome::Ready(Response::Cached { object, .. }) =
                site.start(&format!("GET /{number} HTTP/1.1\n"))
            else {
                continue;
            };
            let ObjectContent::Memory(content) =
                &object.object.representation(crate::object_cache::ContentCoding::Identity).content
            else {
                panic!()
            };
            held.push(content.slice(1..2));
            site.worker.tick();
        }
    });
    let bytes = site.store.content_memory().bytes();
    assert!(bytes <= MEMORY_BYTES_MAX + MEMORY_BYTES_MAX / 4, "{bytes}");
    assert!(bytes > MEMORY_BYTES_MAX, "{bytes}: more were stored than there is room for");
    drop(held);
    site.shared.purge(Purge::All);
    site.worker.tick();
    assert_eq!(site.store.content_memory().bytes(), 0);
}
