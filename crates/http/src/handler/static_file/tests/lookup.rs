//! Lookup: the file for each path, and paths that are not files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;

use tokio::task::{LocalSet, spawn_local, yield_now};
use wire::http::{KnownField, Method, Request, RequestHead};

use super::FileFixture;
use crate::config::{PathPattern, RootPiece, Runners};
use crate::handler::{ClientLinkCell, Now, Response, Routed, Segment};
use crate::log::LogClient;

#[test]
fn files_of_both_kinds() {
    let site = FileFixture::new(|_, limits| {
        limits.object_bytes_max = 10;
        limits.revalidate_after = std::time::Duration::from_secs(3600);
    });
    site.write("small.txt", "small");
    site.write("large.txt", "larger than ten bytes");
    site.settle();
    for (path, body) in [("/small.txt", "small"), ("/large.txt", "larger than ten bytes")] {
        for attempt in 0..3 {
            let got = site.get(path).expect(200, body);
            assert_eq!(got.field("Content-Type"), Some("text/plain; charset=utf-8"));
            assert_eq!(got.field("Content-Length"), Some(body.len().to_string().as_str()));
            assert_eq!(got.field("Last-Modified"), Some("Sun, 09 Sep 2001 01:46:40 GMT"));
            assert_eq!(got.field("Accept-Ranges"), Some("bytes"));
            assert_eq!(got.field("Vary"), Some("Accept-Encoding"));
            assert!(attempt == 0 || !got.waited, "{path} is cached");
        }
    }
    site.get("/missing").expect(404, "");
}

#[test]
fn names_of_all_kinds() {
    let site = FileFixture::new(|_, _| ());
    for name in
        ["plain", "with space", "ünï", "a%20b", "semi;colon", "quo\"te", "new\nline", "\u{1}", ".well-known/x", "a.b/c"]
    {
        site.write(name, name);
        site.get(&format!("/{name}")).expect(200, name);
    }
    let long = "n".repeat(255);
    site.write(&long, "long");
    site.get(&format!("/{long}")).expect(200, "long");
    site.get(&format!("/{long}n")).expect(404, "");
    site.get(&"/n".repeat(3000)).expect(404, "");
    site.get("/plain/").expect(404, "");
    site.get("/plain/x").expect(404, "");
    site.get("/nul\0").expect(404, "");
}

#[test]
fn hidden_files() {
    let names = ["/.env", "/.git/config", "/a/.b", "/a/.c/d", "/.well-known/.a", "/.well-known-not/a"];
    for hidden in [false, true] {
        let site = FileFixture::new(|files, _| files.hidden = hidden);
        for name in names {
            site.write(&name[1..], "x");
            site.get(name).expect(if hidden { 200 } else { 404 }, if hidden { "x" } else { "" });
        }
        site.write(".well-known/acme-challenge/a", "x");
        site.get("/.well-known/acme-challenge/a").expect(200, "x");
    }
}

#[test]
fn what_is_no_file_and_what_leads_out() {
    let site = FileFixture::new(|files, _| files.root.pieces = vec![RootPiece::Literal("root".into())]);
    site.write("outside/secret", "secret");
    site.write("root/inside/file", "file");
    symlink("../outside/secret", site.path("root/link")).unwrap();
    symlink(site.path("outside"), site.path("root/absolute")).unwrap();
    symlink("inside/file", site.path("root/good")).unwrap();
    symlink(site.path("root/inside"), site.path("root/good-absolute")).unwrap();
    symlink("nowhere", site.path("root/dangling")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, site.path("root/fifo"), 0o644.into()).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(site.path("root/socket")).unwrap();
    for path in ["/link", "/absolute/secret", "/absolute/", "/fifo", "/socket"] {
        for _ in 0..2 {
            site.get(path).expect(403, "");
        }
    }
    site.get("/dangling").expect(404, "");
    for _ in 0..2 {
        site.get("/good").expect(200, "file");
        site.get("/good-absolute/file").expect(200, "file");
    }
    if !rustix::process::getuid().is_root() {
        fs::set_permissions(site.path("root/inside/file"), fs::Permissions::from_mode(0o000)).unwrap();
        site.get("/good").expect(403, "");
    }
}

#[test]
fn methods() {
    let site = FileFixture::new(|_, _| ());
    site.write("file", "file");
    let check = |method: Method, has_next: bool, expect: u16| {
        let got = site.request(method, "", "/file", &[], has_next);
        assert_eq!(got.status, expect, "{method:?}");
        if matches!(expect, 204 | 405) {
            assert_eq!(got.field("Allow"), Some("GET, HEAD, OPTIONS"));
        }
    };
    check(Method::Get, false, 200);
    check(Method::Head, false, 200);
    check(Method::Options, false, 204);
    for method in [Method::Post, Method::Put, Method::Delete, Method::Patch, Method::Trace, Method::Other] {
        check(method, false, 405);
        check(method, true, 0);
    }
    check(Method::Options, true, 0);
}

#[test]
fn what_is_declined() {
    let site = FileFixture::new(|files, _| {
        files.permission_rule = true;
        files.ignore_query = false;
        files.strip_prefix = "/files".into();
    });
    site.write("file", "file");
    let check = |target: &str, has_next: bool, expect: u16| {
        let got = site.request(Method::Get, "", target, &[], has_next);
        assert_eq!(got.status, expect, "{target}");
    };
    for (mode, served) in
        [(0o644, true), (0o444, true), (0o640, false), (0o755, false), (0o654, false), (0o1644, false)]
    {
        fs::set_permissions(site.path("file"), fs::Permissions::from_mode(mode)).unwrap();
        site.settle();
        site.cache.store().remove_root(site.root_id());
        check("/files/file", true, if served { 200 } else { 0 });
        check("/files/file", false, if served { 200 } else { 403 });
    }
    fs::set_permissions(site.path("file"), fs::Permissions::from_mode(0o644)).unwrap();
    site.settle();
    check("/files/file?q", true, 0);
    check("/files/file?q", false, 200);
    check("/files/missing", true, 0);
    check("/files/missing", false, 404);
    check("/files/", true, 0);
    check("/files/", false, 403);
    check("/file", true, 0);
    check("/file", false, 404);
    check("/filesfile", false, 404);
}

#[test]
fn what_another_handler_may_have_is_declined() {
    let site =
        FileFixture::with_runners(Runners { after: vec![PathPattern::Any], ..Runners::default() }, |files, _| {
            files.index = vec!["index.html".into(), "index.php".into()];
            files.exclude_extensions = ["php".into(), "cgi".into()].into();
        });
    for name in ["a.php", "a.PHP", "a.php.txt", "php", ".php/a", "page/index.html", "program/index.php", "none/a.css"] {
        site.write(name, "content");
    }
    std::os::unix::fs::symlink("/etc/hostname", site.path("outside")).unwrap();
    site.settle();
    let check = |target: &str, with_next: u16, alone: u16| {
        // From the disk, and from the cache.
        for _ in 0..2 {
            let got = |has_next| site.request(Method::Get, "", target, &[], has_next).status;
            assert_eq!((got(true), got(false)), (with_next, alone), "{target}");
        }
    };
    check("/a.php", 0, 0);
    check("/a.PHP", 0, 0);
    check("/a.php.txt", 200, 200);
    check("/php", 200, 200);
    check("/page/", 200, 200);
    check("/program/", 0, 0);
    check("/none/", 0, 403);
    check("/none/a.css", 200, 200);
    // No redirect for a directory that this handler does not serve.
    check("/page", 301, 301);
    check("/program", 0, 301);
    check("/none", 0, 301);
    check("/outside", 0, 403);
}

#[test]
fn a_program_is_for_who_runs_it() {
    let runners = Runners { before: vec![PathPattern::Suffix(".php".into())], ..Runners::default() };
    let site = FileFixture::with_runners(runners, |files, _| {
        files.index = vec!["index.html".into(), "index.php".into()];
        files.strip_prefix = "/files".into();
        files.exclude_extensions = ["php".into(), "phtml".into()].into();
    });
    for name in ["index.php", "dir/index.php", "page/index.html", "t.phtml", "up/X.PHP", "up/a.txt"] {
        site.write(name, "content");
    }
    site.settle();
    let check = |method: Method, target: &str, expect: (u16, &str)| {
        for has_next in [false, true, false] {
            let got = site.request(method, "", target, &[], has_next);
            let head = if got.status == 0 { got.head.as_str() } else { "" };
            assert_eq!((got.status, head), expect, "{method:?} {target} {has_next}");
        }
    };
    check(Method::Get, "/files/", (0, "/files/index.php"));
    check(Method::Get, "/files/dir/?q", (0, "/files/dir/index.php"));
    check(Method::Head, "/files/dir/", (0, "/files/dir/index.php"));
    check(Method::Get, "/files/dir", (301, ""));
    check(Method::Get, "/files/page/", (200, ""));
    // No handler has these: they are declined.
    check(Method::Get, "/files/t.phtml", (0, ""));
    check(Method::Get, "/files/up/X.PHP", (0, ""));
    check(Method::Get, "/files/index.php", (0, ""));
    // A POST to a directory goes to its script, too.
    check(Method::Post, "/files/dir/", (0, "/files/dir/index.php"));
    assert_eq!(site.request(Method::Post, "", "/files/page/", &[], false).status, 405);
    assert_eq!(site.request(Method::Post, "", "/files/page/", &[], true).status, 0);
}

#[test]
fn extensions_are_tried_in_their_order() {
    let site = FileFixture::new(|files, _| {
        files.extensions = ["html".into(), "txt".into()].into();
        files.fallback = Some("/app.txt".into());
        files.strip_prefix = "/s".into();
    });
    for name in ["a.html", "a.txt", "b.txt", "c", "c.html", "d/x", "d.html", "app.txt", ".hidden.html"] {
        site.write(name, name);
    }
    site.settle();
    // From the disk, and from the cache.
    for has_next in [false, true, false, true] {
        let check = |target: &str, expect: &str| {
            let got = site.request(Method::Get, "", target, &[], has_next);
            assert_eq!((got.status, String::from_utf8_lossy(&got.body).as_ref()), (200, expect), "{target}");
        };
        check("/s/a", "a.html");
        check("/s/a?q", "a.html");
        check("/s/b", "b.txt");
        check("/s/c", "c");
        check("/s/b.txt", "b.txt");
        check("/s/a/", "app.txt");
        check("/s/e", "app.txt");
        assert_eq!(site.request(Method::Get, "", "/s/d", &[], false).status, 301);
        assert_ne!(site.request(Method::Get, "", "/s/.hidden", &[], has_next).body, b".hidden.html");
    }
}

#[test]
fn hidden_files_are_not_passed_on() {
    let site = FileFixture::new(|_, _| {});
    for name in [".env", ".git/config", "a/.b/c", ".well-known/.a", "plain"] {
        site.write(name, "x");
    }
    site.settle();
    let check = |method: Method, target: &str, expect: u16| {
        assert_eq!(site.request(method, "", target, &[], true).status, expect, "{method:?} {target}");
    };
    for method in [Method::Get, Method::Head, Method::Post, Method::Other] {
        check(method, "/.env", 404);
        check(method, "/.env/x", 404);
        check(method, "/.git", 404);
        check(method, "/.git/nothing", 404);
        check(method, "/a/.b/c", 404);
        check(method, "/.well-known/.a", 404);
        check(method, "/.other", 0);
        check(method, "/a/.other/c", 0);
        check(method, "/.well-known/other", 0);
    }
}

#[test]
fn directories() {
    let site = FileFixture::new(|files, _| files.index = vec!["index.html".into(), "index.htm".into()]);
    site.write("index.html", "home");
    site.write("a/index.htm", "second");
    site.write("b/index.html/file", "a directory of that name");
    site.write("b/index.htm", "not the directory");
    site.write("empty/file", "");
    site.write("odd %?#\\name/index.html", "odd");
    site.settle();
    site.get("/").expect(200, "home");
    site.get("/index.html").expect(200, "home");
    let got = site.get("/a/").expect(200, "second");
    assert_eq!(got.field("Content-Type"), Some("text/html; charset=utf-8"));
    site.get("/b/").expect(200, "not the directory");
    site.get("/empty/").expect(403, "");
    site.get("/missing/").expect(404, "");
    site.get("/empty/file").expect(200, "");
    for (target, location) in
        [("/a", "/a/"), ("/a?q=1&r=%2f", "/a/?q=1&r=%2f"), ("/empty", "/empty/"), ("/b/index.html", "/b/index.html/")]
    {
        let got = site.get(target).expect(301, "");
        assert_eq!(got.field("Location"), Some(location));
    }
    let got = site.request(Method::Get, "", "/odd %", &[], false);
    assert_eq!(got.status, 404);
}

#[test]
fn fallback() {
    let site = FileFixture::new(|files, _| files.fallback = Some("/app.html".into()));
    site.write("app.html", "app");
    site.write("file", "file");
    site.settle();
    for path in ["/", "/user/7", "/missing.js", "/user/", "/.env"] {
        let got = site.get(path).expect(200, "app");
        assert_eq!(got.field("Content-Type"), Some("text/html; charset=utf-8"), "{path}");
    }
    site.get("/file").expect(200, "file");
    assert_eq!(site.cache.store().usage().objects, 2, "one object for all paths");
    fs::remove_file(site.path("app.html")).unwrap();
    site.settle();
    site.get("/other").expect(404, "");
}

#[test]
fn listing() {
    let site = FileFixture::new(|files, _| files.browse = true);
    site.write("a/file <1>.txt", "12345");
    site.write("a/.hidden", "");
    site.write("a/b/file", "");
    site.write("c/index.html", "index");
    symlink("/etc/passwd", site.path("a/outside")).unwrap();
    symlink("b", site.path("a/link")).unwrap();
    let got = site.get("/a/");
    let page = String::from_utf8(got.body.clone()).unwrap();
    assert_eq!((got.status, got.field("Content-Type")), (200, Some("text/html; charset=utf-8")));
    assert_eq!(got.field("Vary"), Some("Accept"));
    assert!(page.contains("file &lt;1&gt;.txt") && page.contains("./b/") && page.contains("./link/"), "{page}");
    assert!(!page.contains("hidden\"") && !page.contains("outside"), "{page}");
    let got = site.get_with("/a/?sort=name", &[(KnownField::Accept, "application/json")]);
    let names: Vec<serde_json::Value> = serde_json::from_slice(&got.body).unwrap();
    let names: Vec<_> = names.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["b", "link", "file <1>.txt"]);
    site.get("/c/").expect(200, "index");
    site.get("/missing/").expect(404, "");
    assert_eq!(site.get("/a").field("Location"), Some("/a/"));
}

#[test]
fn a_listing_is_made_once_for_all_waiting_requests() {
    let site = FileFixture::new(|files, _| files.browse = true);
    site.write("a/file", "");
    let inner = &site.handler.inner;
    let root = site.runtime.block_on(inner.open_root(b"", Now::read())).unwrap();
    let list = |path: &'static str| {
        let (tree, root) = (Arc::clone(&inner.tree), Arc::clone(&root));
        spawn_local(async move {
            let (head, request_bytes) = (RequestHead::default(), []);
            let request = Request { head: &head, bytes: &request_bytes };
            let path = path.as_bytes();
            let (client, link, now) = (LogClient::Unix, &ClientLinkCell::default(), Now::read());
            let routed = Routed {
                request,
                path,
                query: None,
                host: b"",
                client,
                tls: None,
                proxied: None,
                trace: None,
                locations: None,
                link,
                has_next: false,
                now,
            };
            tree.list(&root, path, &routed).await
        })
    };
    let content = |response: Response| {
        let Response::Built(built) = response else { panic!("no object is cached here") };
        match &built.body.segments[..] {
            [Segment::Bytes(bytes)] => bytes.clone(),
            other => panic!("{other:?}"),
        }
    };
    site.runtime.block_on(LocalSet::new().run_until(async {
        let turns = inner.tree.listings.acquire_many(inner.tree.listings.available_permits() as u32).await.unwrap();
        let waiting: Vec<_> = (0..5).map(|_| list("/a/")).collect();
        let gone = list("/");
        let settle = || async {
            for _ in 0..20 {
                yield_now().await
            }
        };
        settle().await;
        assert_eq!(inner.tree.listings_in_progress.count(), 2);
        gone.abort();
        waiting[0].abort();
        settle().await;
        assert_eq!(inner.tree.listings_in_progress.count(), 1);
        drop(turns);
        let mut pages = Vec::new();
        for one in waiting.into_iter().skip(1) {
            pages.push(content(one.await.unwrap().unwrap()));
        }
        assert!(pages.iter().all(|page| page.as_ptr() == pages[0].as_ptr()), "all have the same");
        settle().await;
        assert_eq!(inner.tree.listings_in_progress.count(), 0);
    }));
}

#[test]
fn mass_hosting() {
    let site = FileFixture::new(|files, _| {
        files.root.pieces.push(RootPiece::Literal("/".into()));
        files.root.pieces.push(RootPiece::HostPrefix(1));
        files.root.pieces.push(RootPiece::Literal("/".into()));
        files.root.pieces.push(RootPiece::Host);
        files.root.strip_www = true;
    });
    site.write("a/a.example/index.html", "a");
    site.write("b/b.example/index.html", "b");
    site.write("secret/index.html", "secret");
    let get = |host: &str| site.request(Method::Get, host, "/", &[], false);
    for _ in 0..2 {
        get("a.example").expect(200, "a");
        get("b.example").expect(200, "b");
        get("www.b.example").expect(200, "b");
        for host in ["c.example", "", "..", "../secret", "a.example/../../secret", ".example", "secret"] {
            get(host).expect(404, "");
        }
    }
}
