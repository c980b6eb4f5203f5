//! Requests and responses are the same in HTTP/1.1 and HTTP/2, with and without TLS, towards clients and upstreams.

use std::fs;

use crate::support::upstream::ScriptStep::{Pause, Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::versions::{AnyVersion, TestVersion, UpstreamVersion, VersionUpstream, versions};
use crate::support::waiting::eventually;

/// Bytes in a pattern that reveals missing and misplaced ones.
fn bytes(length: u32) -> Vec<u8> {
    (0..length).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

#[test]
fn files() {
    let site = tempfile::tempdir().unwrap();
    let path = site.path();
    let sizes = [0, 1, 1_000, 16_384, 65_535, 65_536, 70_000, 1_500_000];
    for size in sizes {
        fs::write(path.join(format!("{size}.bin")), bytes(size)).unwrap();
    }
    let text: String = (0..5_000).map(|number| format!("line {number}\n")).collect();
    fs::write(path.join("text.txt"), &text).unwrap();
    fs::create_dir(path.join("folder")).unwrap();
    let root = format!(" root \"{}\"\n browse", path.display());
    let Some(server) = AnyVersion::start(&root, "") else { return };
    // A file that has just been written has no strong entity tag.
    eventually("the entity tag is strong", || {
        server.ask_all("/text.txt", &[]).field("etag").is_some_and(|tag| !tag.starts_with("W/"))
    });
    for round in 0..2 {
        for size in sizes {
            let answer = server.ask_all(&format!("/{size}.bin"), &[]);
            assert_eq!(answer.status, 200, "{size} in round {round}");
            assert!(answer.content == bytes(size), "{size} in round {round}");
            assert_eq!(answer.field("content-length"), Some(size.to_string().as_str()));
        }
    }
    let check = |path: &str, arguments: &[&str], status: u16, length: usize| {
        let answer = server.ask_all(path, arguments);
        assert_eq!((answer.status, answer.content.len()), (status, length), "{path} {arguments:?}");
        answer
    };
    for target in ["/70000.bin", "/1000.bin"] {
        let head = check(target, &["--head"], 200, 0);
        let etag = format!("If-None-Match: {}", head.field("etag").unwrap());
        check(target, &["--header", &etag], 304, 0);
        let part = check(target, &["--range", "100-299"], 206, 200);
        assert!(part.content == bytes(300)[100..]);
        assert_eq!(server.ask_all(target, &["--range", "9999999-"]).status, 416);
        assert_eq!(server.ask_all(target, &["--header", "If-Match: \"other\""]).status, 412);
    }
    let text_coded = server.ask_all("/text.txt", &["--header", "Accept-Encoding: gzip"]);
    assert_eq!(text_coded.field("content-encoding"), Some("gzip"));
    assert!(
        server.ask_all("/text.txt", &["--compressed", "--header", "Accept-Encoding: gzip"]).content == text.as_bytes()
    );
    assert_eq!(server.ask_all("/nowhere", &[]).status, 404);
    assert_eq!(server.ask_all("/nowhere", &["--head"]).status, 404);
    assert_eq!(server.ask_all("/folder", &[]).field("location"), Some("/folder/"));
    assert_eq!(server.ask_all("/folder/", &[]).status, 200);
    assert_eq!(server.ask_all("/text.txt", &["--data", "a=b"]).status, 405);
    assert_eq!(server.ask_all("/text.txt", &["--request", "OPTIONS"]).status, 204);
    assert_eq!(server.ask_all("/text.txt", &["--request", "BREW"]).status, 501);
    assert_eq!(server.ask_all("/%2e%2e/%2e%2e/etc/passwd", &[]).status, 400);
    assert_eq!(server.ask_all("/%zz", &[]).status, 400);
}

#[test]
fn large_files_in_use() {
    // A file of the sources has not changed lately, and is the same in the next seconds.
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let content = fs::read(format!("{docs}/configuration.md")).unwrap();
    let Some(server) = AnyVersion::start(&format!(" root \"{docs}\"\n metrics \"/metrics\""), "") else { return };
    let held_bytes = || {
        let metrics = String::from_utf8(server.ask(TestVersion::H2, "/metrics", &[]).content).unwrap();
        let value = metrics.lines().find_map(|line| line.strip_prefix("tailcoat_object_cache_file_content_bytes "));
        value.unwrap().parse::<usize>().unwrap()
    };
    eventually("the file is in memory", || {
        assert!(server.ask_all("/configuration.md", &[]).content == content);
        held_bytes() == content.len()
    });
    assert!(server.ask_all("/configuration.md", &[]).content == content);
    let part = server.ask_all("/configuration.md", &["--range", "100000-199999"]);
    assert!(part.status == 206 && part.content == content[100_000..200_000]);
    assert_eq!(held_bytes(), content.len());
}

/// Upstream that sends `say` on each connection, after it has read this.
fn saying(read: &'static str, say: &[&'static str]) -> ScriptedUpstream {
    let mut script = vec![Await(read)];
    for piece in say {
        script.extend([Say(piece), Pause(20)]);
    }
    ScriptedUpstream::start(vec![script])
}

#[test]
fn forwarding() {
    const END: &str = "\r\n\r\n";
    for (name, arguments, read, say, status, content) in [
        (
            "with a length",
            &[][..],
            END,
            &["HTTP/1.1 299 Fine\r\nX-B: 1\r\nx-b: 2\r\nContent-Length: 3\r\n\r\nabc"][..],
            299,
            "abc",
        ),
        (
            "in pieces, with trailers",
            &[],
            END,
            &[
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                "2\r\nde\r\n",
                "0\r\nServer-Timing: 1\r\n\r\n",
            ],
            200,
            "abcde",
        ),
        ("up to the end", &[], END, &["HTTP/1.1 200 OK\r\n\r\nabc", "def"], 200, "abcdef"),
        ("HEAD", &["--head"], END, &["HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"], 200, ""),
        ("204", &[], END, &["HTTP/1.1 204 No Content\r\n\r\n"], 204, ""),
        ("204 to HEAD", &["--head"], END, &["HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n"], 204, ""),
        ("205 to HEAD", &["--head"], END, &["HTTP/1.1 205 Reset Content\r\nContent-Length: 3\r\n\r\n"], 205, ""),
        (
            "two lengths to HEAD",
            &["--head"],
            END,
            &["HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n"],
            502,
            "",
        ),
        (
            "a length and chunks to HEAD",
            &["--head"],
            END,
            &["HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"],
            502,
            "",
        ),
        ("no number to HEAD", &["--head"], END, &["HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n"], 502, ""),
        ("304", &[], END, &["HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 3\r\n\r\n"], 304, ""),
        (
            "early hints",
            &[],
            END,
            &["HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", "HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno"],
            404,
            "no",
        ),
        (
            "content of known length",
            &["--data", "abc=def"],
            "abc=def",
            &["HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"],
            201,
            "ok",
        ),
        ("no answer", &[], END, &[""], 502, "502"),
        ("nonsense", &[], END, &["FTP ready\r\n\r\n"], 502, "502"),
        (
            "fields that HTTP/2 must not have",
            &[],
            END,
            &["HTTP/1.1 200 OK\r\nKeep-Alive: 3\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\nx"],
            200,
            "x",
        ),
    ] {
        let upstream = saying(read, say);
        for way in [UpstreamVersion::Http1, UpstreamVersion::H2c, UpstreamVersion::Tls, UpstreamVersion::TlsHttp1] {
            let backend = VersionUpstream::start(way, upstream.address);
            let Some(server) = AnyVersion::start(" forward \"backend\"", &backend.upstream) else { return };
            let answer = server.ask_all("/a?b", arguments);
            assert_eq!(answer.status, status, "{name}, {way:?}: {answer:?}");
            let found = String::from_utf8_lossy(&answer.content);
            let is_good = if status == 502 { found.contains(content) } else { found == content };
            assert!(is_good, "{name}, {way:?}: {answer:?}");
            match name {
                "in pieces, with trailers" => {
                    assert_eq!(answer.trailers, [("server-timing".to_owned(), "1".to_owned())])
                }
                "HEAD" => assert_eq!(answer.field("content-length"), Some("3"), "{way:?}"),
                "204 to HEAD" | "205 to HEAD" => assert!(answer.field("content-length").is_none(), "{name}, {way:?}"),
                "early hints" => assert_eq!(answer.interim, [103]),
                "fields that HTTP/2 must not have" => assert!(answer.field("upgrade").is_none()),
                _ => {}
            }
        }
    }
}

#[test]
fn what_an_upstream_gets() {
    let upstream = ScriptedUpstream::start(vec![vec![
        Await("\r\n\r\n"),
        Say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    ]]);
    let forward = format!(" forward \"http://{}\" {{\n  client-fields none\n }}", upstream.address);
    let Some(server) = AnyVersion::start(&forward, "") else { return };
    let arguments = ["--user-agent", "x", "--header", "X-A: 1", "--header", "X-Empty;", "--cookie", "a=b; c=d"];
    let versions = versions();
    let heads = versions.iter().map(|version| {
        server.ask(*version, "/%41//b?c=%20", &arguments);
        let head = upstream.connection().to_ascii_lowercase();
        let (line, fields) = head.trim_end().split_once("\r\n").expect("a request line");
        // Via names the version, and Host the port; the order is the client's.
        let fields = fields.lines().filter(|field| !field.starts_with("via:") && !field.starts_with("host:"));
        let mut fields: Vec<_> = fields.map(str::to_owned).collect();
        fields.sort();
        (line.to_owned(), fields)
    });
    let heads: Vec<_> = heads.collect();
    for (version, head) in versions.iter().zip(&heads) {
        assert_eq!(head.0, "get /%41//b?c=%20 http/1.1", "{version:?}");
        assert_eq!(head.1, heads[0].1, "{version:?}");
        assert!(head.1.contains(&"cookie: a=b; c=d".to_owned()), "{head:?}");
    }
}

#[test]
fn content_of_requests() {
    let directory = tempfile::tempdir().unwrap();
    let content = directory.path().join("content");
    let upstream = crate::support::real_server::RealServer::start(&crate::support::real_server::Recipe {
        needs: &["python3"],
        files: &[("echo.py", include_str!("applications/echo_server.py"))],
        command: &["python3", "@DIR@/echo.py", "@PORT@"],
        environment: &[],
    });
    let Some(upstream) = upstream else { return };
    let data = format!("@{}", content.display());
    for way in [UpstreamVersion::Http1, UpstreamVersion::H2c, UpstreamVersion::Tls] {
        let backend = VersionUpstream::start(way, upstream.address);
        let forward = " forward \"backend\" {\n  body-bytes-max \"1MiB\"\n }";
        let Some(server) = AnyVersion::start(forward, &backend.upstream) else { return };
        check_content(&server, &content, &data);
    }
}

fn check_content(server: &AnyVersion, content: &std::path::Path, data: &str) {
    for length in [0, 1, 65_535, 300_000, 1 << 20] {
        fs::write(content, bytes(length)).unwrap();
        for arguments in [
            &["--data-binary", data][..],
            &["--data-binary", data, "--header", "Transfer-Encoding: chunked"],
            &["--data-binary", data, "--header", "Expect: 100-continue"],
        ] {
            for version in versions() {
                let answer = server.ask(version, "/", arguments);
                assert_eq!(answer.status, 200, "{version:?} {length} {arguments:?}");
                assert!(answer.content == bytes(length), "{version:?} {length} {arguments:?}");
            }
        }
    }
    fs::write(content, bytes((1 << 20) + 1)).unwrap();
    for version in versions() {
        assert_eq!(server.ask(version, "/", &["--data-binary", data]).status, 413, "{version:?}");
    }
}

#[test]
fn rules_and_fixed_answers() {
    let site = tempfile::tempdir().unwrap();
    fs::write(site.path().join("file.html"), "file").unwrap();
    let options = format!(
        " root \"{}\"\n respond \"/fixed\" 418 \"short and stout\"\n redirect \"/old/*\" \"/new/{{rest}}\"\n \
         response-header \"X-Set\" \"1\"\n response-header \"Accept-Ranges\" \"\"\n \
         response-header \"X-Added\" \"2\" action=\"add\"\n deny all path=\"/secret/*\"",
        site.path().display()
    );
    let Some(server) = AnyVersion::start(&options, "") else { return };
    for _ in 0..2 {
        let answer = server.ask_all("/file.html", &[]);
        assert_eq!((answer.status, answer.field("x-set"), answer.field("x-added")), (200, Some("1"), Some("2")));
        assert_eq!(
            (answer.content, answer.fields.iter().any(|(name, _)| name == "accept-ranges")),
            (b"file".into(), false)
        );
    }
    assert_eq!(server.ask_all("/fixed", &[]).status, 418);
    assert_eq!(server.ask_all("/old/a", &[]).field("location"), Some("/new/a"));
    assert_eq!(server.ask_all("/secret/a", &[]).status, 403);
    assert_eq!(server.ask_all("/fixed", &["--head"]).content, b"");
}

#[test]
fn stored_answers() {
    let upstream = saying(
        "\r\n\r\n",
        &["HTTP/1.1 200 OK\r\nCache-Control: max-age=1000\r\nETag: \"e\"\r\n\
           Content-Length: 5\r\n\r\nfresh"],
    );
    let forward = format!(" forward \"http://{}\" {{\n  cache {{\n cache-status\n }}\n }}", upstream.address);
    let Some(server) = AnyVersion::start(&forward, "") else { return };
    // With TLS it is another URL.
    for version in versions() {
        server.ask(version, "/", &[]);
    }
    for _ in 0..2 {
        for version in versions() {
            let answer = server.ask(version, "/", &[]);
            assert_eq!((answer.status, answer.content.as_slice()), (200, &b"fresh"[..]), "{version:?}");
            let status = answer.field("cache-status").unwrap_or_default();
            assert!(status.starts_with("tailcoat; hit; ttl="), "{version:?}: {status}");
        }
    }
    assert_eq!(server.ask(TestVersion::H2, "/", &["--header", "If-None-Match: \"e\""]).status, 304);
    assert_eq!(server.ask(TestVersion::H2, "/", &["--range", "1-2"]).content, b"re");
}
