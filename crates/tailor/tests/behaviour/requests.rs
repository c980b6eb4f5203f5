//! Requests that the client sends, and the connections it uses for them.

use std::io::Write;
use std::sync::atomic::Ordering;

use crate::server::{FakeServerAction, ok, start};
use crate::{bench, failures, undisturbed};

/// Number of heads that contain a text.
fn count(heads: &[String], text: &str) -> usize {
    heads.iter().filter(|head| head.contains(text)).count()
}

#[test]
fn fields_cookies_methods_and_content() {
    let server = start(|request| FakeServerAction::Reply(ok(&request.content)));
    let url = format!("{}/a?b=c", server.url);
    let arguments = [
        "-n",
        "1",
        "-c",
        "1",
        "-H",
        "X-A: 1",
        "-H",
        "User-Agent: me",
        "-H",
        "Accept:",
        "-b",
        "c=1",
        "-b",
        "d=2",
        "--body",
        "abc",
        "--expect-length",
        "3",
    ];
    let (report, code) = bench(&url, &arguments);
    assert_eq!((failures(&report), code), (vec![], 0));
    let authority = server.url.trim_start_matches("http://");
    let expect = format!(
        "POST /a?b=c HTTP/1.1\r\nHost: {authority}\r\nCookie: c=1; d=2\r\nX-A: 1\r\nUser-Agent: me\r\nContent-Length: 3\r\n\r\n"
    );
    assert_eq!(server.heads.lock().unwrap()[0], expect);
}

#[test]
fn persistence() {
    for (arguments, connections, http10, keep_alive, close) in [
        (&["--keep-alive", "0"][..], 100..=100, 0, 0, 100),
        (&["--keep-alive", "0", "--http10", "1"], 100..=100, 100, 0, 0),
        (&["--requests-per-connection", "10"], 10..=10, 0, 0, 10),
        (&["--requests-per-connection", "10", "--http10", "1"], 10..=10, 100, 90, 0),
        (&[], 4..=4, 0, 0, 0),
    ] {
        let server = start(|request| {
            // HTTP/1.0 needs this field for keep-alive; HTTP/1.1 ignores it.
            let is_kept = request.head.contains("Connection: keep-alive");
            let fields = if is_kept { "Connection: keep-alive\r\n" } else { "" };
            FakeServerAction::Reply(crate::server::response("200 OK", fields, b"x"))
        });
        let (report, _) = bench(&server.url, &[&["-c", "4", "-n", "100"], arguments].concat());
        assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(100)), "{arguments:?}");
        let used = server.connections.load(Ordering::SeqCst);
        // With a number of requests per connection, the last connections may start and not be used up.
        assert!(
            connections.contains(&used) || (used > *connections.end() && used <= connections.end() + 4),
            "{arguments:?}: {used}"
        );
        let heads = server.heads.lock().unwrap();
        assert_eq!(count(&heads, " HTTP/1.0\r\n"), http10, "{arguments:?}");
        if used == *connections.end() {
            assert_eq!(count(&heads, "Connection: keep-alive"), keep_alive, "{arguments:?}");
            assert_eq!(count(&heads, "Connection: close"), close, "{arguments:?}");
        }
    }
}

#[test]
fn pipelining() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    let (report, _) = bench(&server.url, &["-c", "2", "-n", "1000", "--pipeline", "16"]);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(1000)));
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}

#[test]
fn lists_of_urls() {
    let list = |text: &str| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    };
    for (text, arguments, expect) in [
        ("/a\n# not this\n/b\n", &[][..], [500, 500]),
        ("3 /a\n1 /b\n", &[], [750, 250]),
        ("/a\n/b\n", &["--zipf", "1"], [667, 333]),
    ] {
        let server = start(|_| FakeServerAction::Reply(ok(b"x")));
        let file = list(text);
        let load = ["-c", "1", "-n", "1000", "--seed", "1", "--urls", file.path().to_str().unwrap()];
        let arguments = [&load[..], arguments].concat();
        let (report, _) = bench(&server.url, &arguments);
        assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(1000)));
        let heads = server.heads.lock().unwrap();
        for (path, expect) in ["GET /a ", "GET /b "].into_iter().zip(expect) {
            assert!(count(&heads, path).abs_diff(expect) < 70, "{text:?}: {} of {path}", count(&heads, path));
        }
    }
}

#[test]
fn a_log_is_replayed_with_its_timing() {
    let mut log = tempfile::NamedTempFile::new().unwrap();
    for (second, target) in [(0, "/a"), (0, "/b"), (4, "/a"), (10, "/c?d")] {
        writeln!(log, "h - - [01/Jan/2026:00:00:{second:02} +0000] \"GET {target} HTTP/1.1\" 200 1").unwrap();
    }
    let arguments = ["--replay", log.path().to_str().unwrap(), "--replay-speed", "10", "-c", "2"];
    let measure = |_| {
        let server = start(|_| FakeServerAction::Reply(ok(b"x")));
        let (report, _) = bench(&server.url, &arguments);
        assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(4)));
        let heads = server.heads.lock().unwrap();
        let mut targets: Vec<_> = heads.iter().map(|head| head.split(' ').nth(1).unwrap().to_owned()).collect();
        // The first two are due at the same time, on two connections.
        targets[..2].sort();
        (report, targets)
    };
    let expect = ["/a", "/b", "/a", "/c?d"];
    // On a busy machine, one connection may overtake another.
    let (report, targets) = undisturbed(measure, |(_, targets)| *targets == expect);
    assert_eq!(targets, expect);
    assert!(report["duration_seconds"].as_f64().unwrap() >= 0.99);
}

#[test]
fn other_addresses() {
    let server = start(|_| FakeServerAction::Reply(ok(b"x")));
    let port = server.url.rsplit(':').next().unwrap();
    let url = format!("http://example.invalid:{port}/");
    let (report, _) = bench(&url, &["-n", "2", "-c", "1", "--resolve", &format!("example.invalid:{port}:127.0.0.1")]);
    assert_eq!(report["served"].as_u64(), Some(2));
    assert!(server.heads.lock().unwrap()[0].contains(&format!("Host: example.invalid:{port}\r\n")));

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nuntil the end").unwrap();
    });
    let (report, _) = bench("http://localhost/", &["-n", "1", "-c", "1", "--unix-socket", path.to_str().unwrap()]);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(1)));
}

/// With the same seed a run makes the same random choices.
#[test]
fn seeds() {
    let targets = |seed: &str| {
        let server = start(|_| FakeServerAction::Reply(ok(b"x")));
        let urls: Vec<String> = (0..50).map(|number| format!("{}/{number}", server.url)).collect();
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        let load = ["-c", "1", "-n", "40", "--zipf", "1", "--seed", seed];
        let (report, _) = bench(urls[0], &[&urls[1..], &load].concat());
        assert_eq!(report["load"]["seed"].to_string(), seed);
        let heads = server.heads.lock().unwrap();
        heads.iter().map(|head| head.split(' ').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = targets("7");
    assert_eq!((first.len(), &first), (40, &targets("7")));
    assert_ne!(first, targets("8"));
}
