//! One fetch for many, and removing stored responses.

use super::*;

#[test]
fn unsafe_requests_invalidate() {
    let answers = [
        answer(200, FRESH, "a"),
        answer(200, "Cache-Control: max-age=60\nVary: X", "b"),
        answer(200, FRESH, "c"),
        answer(500, "A: b", ""),
    ];
    let site = CacheFixture::answering(&answers);
    site.ask("GET /a").is(200, "a");
    site.ask("GET /b").is(200, "b");
    site.ask("GET /c").is(200, "c");
    site.ask("POST /a").is(500, "");
    site.ask("GET /a").is(200, "a");
    let site = site.and(&[
        answer(201, "Location: b\nContent-Location: http://other/c", ""),
        answer(200, FRESH, "a2"),
        answer(200, FRESH, "b2"),
    ]);
    site.ask("POST /a").is(201, "");
    site.ask("GET /a").is(200, "a2");
    site.ask("GET /b").is(200, "b2");
    site.ask("GET /c").is(200, "c");
}

#[test]
fn one_fetch_for_all_who_want_the_same() {
    let when = Rc::new(Cell::new(false));
    let waits = |answer: FakeUpstreamResponse| FakeUpstreamResponse { when: Some(Rc::clone(&when)), ..answer };
    for (first, requests) in [
        (waits(answer(200, FRESH, "one")), 1),
        (waits(streamed(FRESH, &["o", "ne"])), 1),
        (waits(answer(200, "Cache-Control: no-store", "one")), 4),
        (waits(answer(503, "", "")), 4),
    ] {
        when.set(false);
        let site = CacheFixture::answering(&[first]).and(&vec![answer(200, "Cache-Control: no-store", "one"); 3]);
        let got = site.runtime.block_on(async {
            let all = [(); 4].map(|()| site.start("GET / HTTP/1.1\n"));
            let all = all.map(|outcome| site.finish(outcome));
            let tell = async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                when.set(true);
            };
            let [first, second, third, fourth] = all;
            tokio::join!(first, second, third, fourth, tell)
        });
        got.1.is(200, "one");
        got.3.is(200, "one");
        assert_eq!(site.asked().len(), requests);
    }
}

#[test]
fn who_waits_goes_on_when_the_first_leaves_or_takes_too_long() {
    for leaves in [true, false] {
        let never = Rc::new(Cell::new(false));
        let site = CacheFixture::new(|config| config.collapse_timeout = Duration::from_millis(20))
            .and(&[FakeUpstreamResponse { when: Some(never), ..answer(200, FRESH, "one") }, answer(200, FRESH, "two")]);
        site.runtime.block_on(async {
            let task = &mut Task::from_waker(Waker::noop());
            let mut first = Box::pin(site.finish(site.start("GET / HTTP/1.1\n")));
            assert!(first.as_mut().poll(task).is_pending());
            let mut second = Box::pin(site.finish(site.start("GET / HTTP/1.1\n")));
            assert!(second.as_mut().poll(task).is_pending());
            assert_eq!(site.asked().len(), 1, "the second waits");
            if leaves {
                drop(first);
            }
            second.await.is(200, "two");
        });
    }
}

#[test]
fn what_is_changed_while_it_is_fetched_is_not_stored() {
    let when = Rc::new(Cell::new(false));
    let site = CacheFixture::answering(&[
        FakeUpstreamResponse { when: Some(Rc::clone(&when)), ..streamed(FRESH, &["old"]) },
        answer(200, "", ""),
        answer(200, FRESH, "new"),
    ]);
    site.runtime.block_on(async {
        let first = site.start("GET / HTTP/1.1\n");
        let HandlerOutcome::Wait(first) = first else { panic!() };
        let HandlerOutcome::Ready(first) = first.await else { panic!() };
        site.finish(site.start("POST / HTTP/1.1\n")).await.is(200, "");
        when.set(true);
        site.receive(first).await.is(200, "old");
    });
    site.ask("GET /").is(200, "new");
}

#[test]
fn purged() {
    let site = CacheFixture::answering(&vec![answer(200, FRESH, "x"); 4]);
    for path in ["/", "/a", "/a/b", "/b"] {
        site.ask(&format!("GET {path}"));
    }
    assert_eq!(site.shared.purge(Purge::Url(b"http://h/a")), 1);
    assert_eq!(site.shared.purge(Purge::Url(b"http://h/a")), 0);
    assert_eq!(site.shared.purge(Purge::Prefix(b"http://h/a")), 1);
    assert_eq!(site.shared.purge(Purge::Prefix(b"http://")), 2);
    assert_eq!(site.store.usage().objects, 0);
    site.worker.tick();
    assert!(site.worker.is_empty());
}

#[test]
fn each_variant_is_fetched_once() {
    let varying = |content| streamed("Cache-Control: max-age=60\nVary: X", &[content]);
    let when = Rc::new(Cell::new(false));
    let waits = |answer: FakeUpstreamResponse| FakeUpstreamResponse { when: Some(Rc::clone(&when)), ..answer };
    let site = CacheFixture::answering(&[waits(varying("1")), waits(varying("2"))]);
    let got = site.runtime.block_on(async {
        let all = ["1", "2", "2", "1", "2"].map(|x| site.finish(site.start(&format!("GET / HTTP/1.1\nX: {x}\n"))));
        let [first, second, third, fourth, fifth] = all;
        let tell = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            when.set(true);
        };
        tokio::join!(first, second, third, fourth, fifth, tell)
    });
    got.0.is(200, "1");
    got.1.is(200, "2");
    got.2.is(200, "2");
    got.3.is(200, "1");
    got.4.is(200, "2");
    assert_eq!(site.asked().len(), 2);
}

#[test]
fn who_fetches_beside_another_does_not_store() {
    let when = Rc::new(Cell::new(false));
    let site = CacheFixture::new(|config| config.collapse_max = 0).and(&[
        FakeUpstreamResponse { when: Some(Rc::clone(&when)), ..answer(200, FRESH, "one") },
        answer(200, FRESH, "two"),
    ]);
    site.runtime.block_on(async {
        let first = site.finish(site.start("GET / HTTP/1.1\n"));
        let second = async {
            site.finish(site.start("GET / HTTP/1.1\n")).await.is(200, "two");
            assert_eq!(site.store.usage().objects, 0);
            when.set(true);
        };
        let (first, ()) = tokio::join!(first, second);
        first.is(200, "one");
    });
    site.ask("GET /").is(200, "one");
}

#[test]
fn what_breaks_off_is_fetched_anew_by_those_who_waited() {
    let when = Rc::new(Cell::new(false));
    let cut = FakeUpstreamResponse { is_cut: true, when: Some(Rc::clone(&when)), ..streamed(FRESH, &["hel"]) };
    let site = CacheFixture::answering(&[cut, answer(200, FRESH, "hello")]);
    let (first, second, third, ()) = site.runtime.block_on(async {
        let [first, second, third] = [(); 3].map(|()| site.finish(site.start("GET / HTTP/1.1\n")));
        let tell = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            when.set(true);
        };
        tokio::join!(first, second, third, tell)
    });
    assert_eq!(first.content, Err(io::ErrorKind::UnexpectedEof));
    second.is(200, "hello");
    third.is(200, "hello");
    assert_eq!(site.asked().len(), 2);
}

#[test]
fn purged_however_clients_wrote_it() {
    let written = ["/a", "/%61", "http://H:80/a", "http://h./b/../a", "/a?x", "/a/", "/A", "http://h2/a"];
    let site = CacheFixture::new(|config| config.ignored_parameters = vec![NamePattern::new("utm_*")]);
    // A path with dot segments is never stored.
    let site = site.and(&vec![answer(200, FRESH, "x"); written.len()]);
    for target in written {
        site.ask(&format!("GET {target}"));
    }
    let check = |which: Purge<'_>, expect: usize| assert_eq!(site.shared.purge(which), expect, "{which:?}");
    check(Purge::Url(b"http://h/a?utm_source=x"), 3);
    check(Purge::Url(b"https://h/a?x"), 1);
    check(Purge::Prefix(b"http://h/a"), 1);
    check(Purge::Prefix(b"https://h2"), 1);
    check(Purge::Url(b"http://h/"), 0);
    check(Purge::All, 1);
}

#[test]
fn what_is_purged_while_it_is_fetched_is_not_stored() {
    for which in [Purge::Url(b"http://h/"), Purge::Prefix(b"http://h"), Purge::All] {
        for first in [answer(200, FRESH, "old"), streamed(FRESH, &["old"])] {
            let when = Rc::new(Cell::new(false));
            let first = FakeUpstreamResponse { when: Some(Rc::clone(&when)), ..first };
            let site = CacheFixture::answering(&[first, answer(200, FRESH, "new")]);
            site.runtime.block_on(async {
                let purge = async {
                    tokio::task::yield_now().await;
                    assert_eq!(site.shared.purge(which), 0);
                    when.set(true);
                };
                let (got, ()) = tokio::join!(site.finish(site.start("GET / HTTP/1.1\n")), purge);
                got.is(200, "old");
            });
            site.ask("GET /").is(200, "new");
        }
    }
}
