//! WebAssembly modules: input, output and permissions of an instance.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::guests::{compiled_directory, content, guests, serve_guests};
use crate::support::port::free_port;
use crate::support::tls;
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::versions::{AnyVersion, versions};
use crate::support::waiting::{eventually, settled};
use crate::support::{PATIENCE, TestServer, ask, read_all, read_until};

/// Whole response to a GET.
fn get(server: &TestServer, target: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h.example\r\nConnection: close\r\n\r\n"))
}

fn check(server: &TestServer, target: &str, expect: &str) {
    let answer = get(server, target);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{target}: {answer}");
    assert_eq!(content(&answer), expect, "{target}");
}

#[test]
fn what_a_module_gets() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "", "");
    let described = |head: &str| {
        let answer = ask(&server, &format!("{head}Connection: close\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{head}: {answer}");
        content(&answer)
    };
    let check = |head: &str, expect: &[&str]| {
        let description = described(head);
        for line in expect {
            assert!(description.lines().any(|one| one == *line), "{line:?} is not in {description}");
        }
    };
    check(
        "GET /request?a=%20b HTTP/1.1\r\nHost: Shop.example:8080\r\nAccept: text/plain\r\nAccept: */*\r\n",
        &[
            r#"Method::Get Some(Scheme::Http) Some("Shop.example:8080") Some("/request?a=%20b")"#,
            "accept: text/plain",
            "accept: */*",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-host: Shop.example:8080",
            "x-forwarded-proto: http",
        ],
    );
    check(
        "GET http://shop.example/request HTTP/1.1\r\nHost: shop.example\r\n",
        &[r#"Method::Get Some(Scheme::Http) Some("shop.example") Some("/request")"#],
    );
    check(
        "PURGE /request HTTP/1.0\r\n",
        &[r#"Method::Other("PURGE") Some(Scheme::Http) Some("localhost") Some("/request")"#],
    );
    // Hop-by-hop and forged fields do not reach the module.
    let hostile = described(
        "GET /request HTTP/1.1\r\nHost: h\r\nConnection: x-mine, close\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nProxy: evil\r\n\
         X-Forwarded-For: 192.0.2.1\r\nX_Forwarded_For: 192.0.2.1\r\nTE: trailers\r\n",
    );
    for absent in ["x-mine", "keep-alive", "proxy:", "192.0.2.1", "te:", "connection"] {
        assert!(!hostile.contains(absent), "{absent:?} is in {hostile}");
    }
}

#[test]
fn modules_with_tls_are_reported() {
    let Some(guests) = guests() else { return };
    let (authority, directory) = (tls::TestCa::new(), tempfile::tempdir().unwrap());
    authority.sign(&["h.example"]).write(directory.path(), "h");
    let (path, compiled) = (directory.path().display(), compiled_directory());
    let server = TestServer::run(&format!(
        "modules {{ compile-wait \"5m\"; compiled \"{}\" }}\nsite {{\n listen \"127.0.0.1:0\" tls=on\n \
         certificate \"{path}/h.pem\" key=\"{path}/h.key\"\n module \"*\" \"{}\"\n}}\n",
        compiled.display(),
        guests.display()
    ));
    let mut stream = tls::connect(&server, &Arc::new(authority.client(None)), "h.example").unwrap();
    let request = "GET /request HTTP/1.1\r\nHost: h.example\r\nConnection: close\r\n\r\n";
    let answer = tls::ask(&mut stream, request).unwrap();
    assert!(answer.contains("Some(Scheme::Https)"), "{answer}");
}

#[test]
fn modules_answer_alike_in_all_versions() {
    let Some(guests) = guests() else { return };
    let options = format!(
        " module \"*\" \"{}\" {{ forwarded-headers none; body-bytes-max \"2MiB\" }}\n compress off",
        guests.display()
    );
    let shared = format!("modules {{ compile-wait \"5m\"; compiled \"{}\" }}", compiled_directory().display());
    let Some(server) = AnyVersion::start(&options, &shared) else { return };
    let directory = tempfile::tempdir().unwrap();
    let content = directory.path().join("content");
    std::fs::write(&content, "y".repeat(300_000)).unwrap();
    let upload = format!("@{}", content.display());
    let chunked = ["--data-binary", &upload, "--header", "Transfer-Encoding: chunked"];
    for (path, arguments, status, expect) in [
        ("/hello", &[][..], 200, "hello\n".to_owned()),
        ("/hello", &["--head"], 200, String::new()),
        ("/fields", &[], 200, "fields".to_owned()),
        ("/large?300000", &[], 200, "x".repeat(300_000)),
        ("/pieces", &[], 200, "one two three".to_owned()),
        ("/trailers", &[], 200, "content".to_owned()),
        ("/echo", &["--data-binary", &upload], 200, "y".repeat(300_000)),
        ("/echo", &chunked, 200, "y".repeat(300_000)),
        ("/status?204", &[], 204, String::new()),
        ("/status?404", &[], 404, "404".to_owned()),
        ("/trap", &[], 500, "500".to_owned()),
    ] {
        let versions = versions();
        let mut answers = versions.iter().map(|version| server.ask(*version, path, arguments)).collect::<Vec<_>>();
        for (version, answer) in versions.iter().zip(&mut answers) {
            let reported = String::from_utf8_lossy(&answer.content);
            assert_eq!(answer.status, status, "{version:?} {path}");
            assert!(
                if status < 400 { reported == expect } else { reported.contains(&expect) },
                "{version:?} {path}: {reported}"
            );
            // The module's timing decides if there is a length. Compression, which is off, would follow from it.
            answer.fields.retain(|(name, _)| name != "content-length");
        }
        for (version, answer) in versions.iter().zip(&answers) {
            assert!(answer.fields == answers[0].fields, "{version:?} {path}: {answer:?}\nnot {:?}", answers[0]);
            assert_eq!(answer.trailers, answers[0].trailers, "{version:?} {path}");
        }
        assert_eq!(path == "/trailers", answers[0].trailers == [("x-checksum".to_owned(), "42".to_owned())], "{path}");
    }
    // The module sees the same request, except scheme and port.
    let versions = versions();
    let described = versions.iter().map(|version| {
        let answer = server.ask(*version, "/request?a=%20", &["--user-agent", "x", "--cookie", "a=b; c=d"]);
        let reported = String::from_utf8_lossy(&answer.content).into_owned();
        let scheme = if reported.contains("Scheme::Https") { "https" } else { "http" };
        let mut lines: Vec<_> = reported.lines().skip(1).map(str::to_owned).collect();
        lines.sort();
        (scheme, reported.contains(r#"Some("/request?a=%20")"#) && reported.contains("Some(\"localhost:"), lines)
    });
    let described: Vec<_> = described.collect();
    let schemes: Vec<_> = described.iter().map(|reported| reported.0).collect();
    assert_eq!(schemes, ["http", "https", "http", "https", "https"][..versions.len()]);
    for (version, reported) in versions.iter().zip(&described) {
        assert!(reported.1, "{version:?}: {reported:?}");
        assert_eq!(reported.2, described[0].2, "{version:?}");
    }
}

#[test]
fn what_a_module_gives() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "", "error-page 404 \"file:/dev/null\"");
    let answer = get(&server, "/hello");
    assert!(answer.contains("\r\ncontent-type: text/plain\r\n"), "{answer}");
    assert!(answer.contains("\r\nServer: tailcoat\r\n") && answer.contains("\r\nDate: "), "{answer}");
    let answer = get(&server, "/fields");
    assert!(answer.contains("\r\nx-a: 1\r\n") && answer.contains("\r\nx-a: 2\r\n"), "{answer}");
    check(&server, "/large?40000", &"x".repeat(40_000));
    check(&server, "/length?5-5", "xxxxx");
    for (status, expect) in [("204", "HTTP/1.1 204 "), ("404", "HTTP/1.1 404 "), ("599", "HTTP/1.1 599 ")] {
        assert!(get(&server, &format!("/status?{status}")).starts_with(expect), "{status}");
    }
    let head = ask(&server, "HEAD /length?5-5 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(head.contains("\r\nContent-Length: 5\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let head = ask(&server, "HEAD /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn errors_without_content_have_the_operators_pages() {
    let Some(guests) = guests() else { return };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("page.html"), "the operator's page").unwrap();
    let pages = format!("error-page 404 \"5xx\" \"file:{}/page.html\"", directory.path().display());
    let server = serve_guests(guests, "", &pages);
    for (target, status) in [("/status?404", "404"), ("/trap", "500"), ("/no-answer", "500")] {
        let answer = get(&server, target);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
        assert_eq!(content(&answer), "the operator's page", "{target}");
    }
}

#[test]
fn requests_on_one_connection() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "", "");
    let one = "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n";
    let post = "POST /hang-on-content HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
    let last = "GET /count HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let answers = ask(&server, &format!("{one}{post}{one}{last}"));
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 4, "{answers}");
    assert!(answers.contains("read") && answers.matches("hello\n").count() == 2, "{answers}");
}

#[test]
fn content_goes_both_ways_as_it_comes() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "", "");
    let mut stream = server.connect();
    stream.write_all(b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    for piece in ["first", "second", "third"] {
        write!(stream, "{:x}\r\n{piece}\r\n", piece.len()).unwrap();
        read_until(&mut stream, piece);
    }
    stream.write_all(b"0\r\nX-Sum: 7\r\n\r\n").unwrap();
    let end = read_until(&mut stream, "\r\n\r\n");
    assert_eq!(end, "0\r\nx-sum: 7\r\n\r\n", "trailers come back");
}

#[test]
fn long_content_takes_little_memory() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "body-bytes-max \"1GiB\"; cpu-time-max \"10m\"", "");
    check(&server, "/hello", "hello\n");
    let before = server.memory_kib();
    const BYTES: usize = 32 << 20;
    let mut stream = server.connect();
    write!(stream, "POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {BYTES}\r\n\r\n").unwrap();
    let mut reader = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || stream.write_all(&vec![b'y'; BYTES]));
    // The client reads nothing for a while: then neither module nor server reads on.
    let grown = settled("the server reads no more", || server.memory_kib()).saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB");
    let answer = read_all(&mut reader);
    assert_eq!(answer.bytes().filter(|byte| *byte == b'y').count(), BYTES);
    writer.join().unwrap().unwrap();
}

#[test]
fn content_that_is_too_long_is_rejected() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "body-bytes-max \"10B\"", "");
    let answer = ask(&server, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[test]
fn pieces_come_when_they_are_written() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "", "");
    // A client that reads too late has all pieces at once.
    eventually("the last piece comes after the first", || {
        let mut stream = server.connect();
        stream.write_all(b"GET /pieces HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
        let first = read_until(&mut stream, "one ");
        let rest = read_all(&mut stream);
        assert!(first.contains("three") != rest.contains("three"), "{first}{rest}");
        !first.contains("three")
    });
    let trailers = get(&server, "/trailers");
    assert!(trailers.ends_with("7\r\ncontent\r\n0\r\nx-checksum: 42\r\n\r\n"), "{trailers}");
}

#[test]
fn nothing_is_granted_by_default() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "", "");
    check(&server, "/environment", "0 arguments\n");
    check(&server, "/read?/etc/passwd", "error: NotFound");
    check(&server, "/list?/", "error: NotFound");
    check(&server, "/write?/tmp/x", "error: NotFound");
    check(&server, &format!("/connect?{}", server.address), "error: PermissionDenied");
    // Names are not looked up, because a query would leak data.
    check(&server, "/connect?localhost:80", "error: Uncategorized");
    check(&server, "/key-value?default,get,a", "access denied");
    check(&server, &format!("/ask?http://{}/hello", server.address), "error: ErrorCode::HttpRequestDenied");
}

#[test]
fn what_was_granted() {
    let Some(guests) = guests() else { return };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), "a file").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", directory.path().join("out")).unwrap();
    let path = directory.path().display();
    let options = format!(
        "environment \"NAME\" \"Fish & Co\"\n directory \"/data\" \"{path}\"\n directory \"/scratch\" \"{path}\" write=on"
    );
    let server = serve_guests(guests, &options, "");
    check(&server, "/environment", "NAME=Fish & Co\n0 arguments\n");
    check(&server, "/read?/data/a", "a file");
    check(&server, "/read?/data/../../etc/passwd", "error: PermissionDenied");
    check(&server, "/read?/data/out", "error: PermissionDenied");
    check(&server, "/write?/data/a", "error: PermissionDenied");
    check(&server, "/write?/scratch/b", "done");
    check(&server, "/read?/data/b", "written");
}

#[test]
fn a_key_value_store_is_shared_by_a_modules_instances_alone() {
    let Some(guests) = guests() else { return };
    let options = "key-value on; key-value-bytes-max \"1KiB\"";
    // The guest uses the path, so another module with a store needs another site.
    let other = format!("module \"*\" \"{}\" {{ key-value on }}", guests.display());
    let server = TestServer::run(&format!(
        "modules {{ compile-wait \"5m\"; compiled \"{}\" }}\nsite \"h.example\" {{\n listen \"127.0.0.1:0\"\n \
         module \"*\" \"{}\" {{ {options} }}\n}}\nsite \"other\" {{\n listen \"127.0.0.1:0\"\n {other}\n}}\n",
        compiled_directory().display(),
        guests.display()
    ));
    let check = |operation: &str, expect: &str| check(&server, &format!("/key-value?{operation}"), expect);
    check("default,get,colour", "none");
    check("default,set,colour,red", "set");
    // Other names lead to the same store, the only one.
    check(",get,colour", "red");
    check("mine,get,colour", "no such store");
    check("default,exists,colour", "true");
    check("default,delete,colour", "deleted");
    check("default,exists,colour", "false");
    check("default,increment,visits,2", "2");
    check("default,increment,visits,40", "42");
    check("default,set,visits,many", "set");
    check("default,increment,visits,1", "error: the value is not a number");
    check("default,set-many,a,1,b,2", "set");
    check("default,get-many,a,c,b", "1 none 2");
    check("default,keys", "a b visits");
    check("default,delete-many,a,b", "deleted");
    check("default,keys", "visits");
    check("default,fill,large,2000", "error: the store is full");
    check("default,fill,large,500", "set");
    // Concurrent increments are never lost.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| drop(get(&server, "/key-value?default,increment,n,1"))));
        }
    });
    check("default,get,n", "40");
    let of_other = ask(&server, "GET /key-value?default,keys HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n");
    assert!(of_other.starts_with("HTTP/1.1 200 "), "{of_other}");
    assert_eq!(content(&of_other), "", "another module's store is another one");
}

#[test]
fn requests_to_granted_hosts() {
    let Some(guests) = guests() else { return };
    let upstream = ScriptedUpstream::start(vec![vec![
        ScriptStep::Read("\r\n\r\n"),
        ScriptStep::Write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"),
    ]]);
    let server = serve_guests(guests, &format!("outgoing \"{}\"", upstream.address), "");
    check(&server, &format!("/ask?http://{}/a?b", upstream.address), "200: hi");
    let sent = upstream.connection();
    assert!(sent.starts_with("GET /a?b HTTP/1.1\r\n"), "{sent}");
    assert!(sent.contains(&format!("host: {}\r\n", upstream.address)), "{sent}");
    check(&server, &format!("/ask?http://{}/", server.address), "error: ErrorCode::HttpRequestDenied");
    let closed = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let server = serve_guests(guests, &format!("outgoing \"{closed}\""), "");
    check(&server, &format!("/ask?http://{closed}/"), "error: ErrorCode::ConnectionRefused");
}

#[test]
fn clocks_and_random_numbers() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "", "");
    let clock = get(&server, "/clock");
    let reported = content(&clock);
    let (seconds, resolution) = reported.split_once(' ').unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(seconds.parse().unwrap()) < 100, "{clock}");
    assert_eq!(resolution, "100000", "ns");
    let numbers: Vec<String> = (0..3).map(|_| content(&get(&server, "/random"))).collect();
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2], "{numbers:?}");
}

#[test]
fn lines_for_the_log() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "", "");
    check(&server, "/log?2", "logged");
    server.await_log("info: guests: line 1");
    server.await_log("info: guests: an error");
    check(&server, "/after", "answered");
    server.await_log("info: guests: after the answer");
}

#[test]
fn instances_wait_without_holding_up_others() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "first-byte-timeout \"10m\"", "");
    let start = Instant::now();
    let begin = |count: usize, time_ms: u32| {
        let streams = (0..count).map(|_| {
            let mut stream = server.connect();
            write!(stream, "GET /sleep?{time_ms} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
            stream
        });
        streams.collect::<Vec<TcpStream>>()
    };
    let (mut waiting, sleeping) = (begin(20, 2_000), begin(20, 600_000));
    check(&server, "/hello", "hello\n");
    for stream in &sleeping {
        stream.set_nonblocking(true).unwrap();
        assert!(stream.peek(&mut [0]).is_err(), "it waits");
    }
    for stream in &mut waiting {
        assert!(read_all(stream).contains("slept"));
    }
    assert!(start.elapsed() < PATIENCE / 2, "one after the other they would take 40 s");
}

#[test]
fn a_new_file_takes_the_place_of_the_old_one_without_a_failed_request() {
    let Some(guests) = guests() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.wasm");
    std::fs::copy(guests, &file).unwrap();
    let server = serve_guests(&file, "", "");
    let mut streaming = server.connect();
    streaming.write_all(b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nold").unwrap();
    read_until(&mut streaming, "old");
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut count = 0;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                let answer = get(&server, "/hello");
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                count += 1;
            }
            count
        });
        // Broken at first: the old one stays. Then a valid one, with an additional custom section.
        std::fs::write(&file, b"\0asm\x0d\0\x01\0broken").unwrap();
        server.await_log("loading new module file failed");
        let mut bytes = std::fs::read(guests).unwrap();
        // A custom section (Binary Format, section 5.5.3): id, size, length of its name, name.
        bytes.extend_from_slice(b"\0\x04\x03new");
        std::fs::write(directory.path().join("next"), bytes).unwrap();
        std::fs::rename(directory.path().join("next"), &file).unwrap();
        server.await_log("module replaced by its new file: module=shop");
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(asking.join().unwrap() > 0);
    });
    streaming.write_all(b"end").unwrap();
    read_until(&mut streaming, "end");
}

#[test]
fn compiled_code_is_kept_where_only_the_server_can_write() {
    let Some(guests) = guests() else { return };
    let directory = tempfile::tempdir().unwrap();
    let start = |compiled: &std::path::Path| {
        TestServer::run(&format!(
            "modules {{ compile-wait \"5m\"; compiled \"{}\" }}\nsite {{\n listen \"127.0.0.1:0\"\n module \"*\" \"{}\"\n}}\n",
            compiled.display(),
            guests.display()
        ))
    };
    let files = |directory: &std::path::Path| {
        let mut count = 0;
        let mut open = vec![directory.to_owned()];
        while let Some(next) = open.pop() {
            for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
                if entry.file_type().unwrap().is_dir() { open.push(entry.path()) } else { count += 1 }
            }
        }
        count
    };
    let own = directory.path().join("own");
    check(&start(&own), "/hello", "hello\n");
    assert!(files(&own) > 0);
    check(&start(&own), "/hello", "hello\n");
    let open = directory.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    check(&start(&open), "/hello", "hello\n");
    assert_eq!(files(&open), 0, "others could have written there");
}

#[test]
fn clients_that_leave_end_their_instances() {
    let Some(guests) = guests() else { return };
    let server = serve_guests(guests, "instances-max 1; queue-timeout \"50s\"", "");
    for request in [
        "GET /hang HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /hang-in-content HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /hang-on-content HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc",
    ] {
        let mut stream = server.connect();
        stream.write_all(request.as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let _ = stream.read(&mut [0; 1000]);
        drop(stream);
        let start = Instant::now();
        check(&server, "/hello", "hello\n");
        assert!(start.elapsed() < PATIENCE / 3, "{request}");
    }
}

/// JavaScript's engine takes a pollable for each piece of content and never drops it. Each would count for
/// `handles-max`.
#[test]
fn a_guest_that_keeps_its_pollables_reads_64_mib() {
    let Some(guests) = guests() else { return };
    let options = "body-bytes-max \"100MiB\"; cpu-time-max \"1h\"; memory-bytes-max \"16MiB\"";
    let server = serve_guests(guests, options, "");
    let bytes = 64 << 20;
    let mut stream = server.connect();
    write!(stream, "POST /keep-pollables HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n")
        .unwrap();
    stream.write_all(&vec![b'x'; bytes]).unwrap();
    let answer = read_all(&mut stream);
    let reported = content(&answer);
    let (read, pollables) = reported.split_once(' ').unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(read, bytes.to_string());
    assert!(pollables.parse::<usize>().unwrap() > bytes / 8192, "{pollables}");
}
