//! Response cache: requests that reach the upstream, and responses that reach clients.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use crate::support::waiting::eventually;
use crate::support::{TestServer, read_all, tailcoat};

/// Server that counts its requests, and responds as their paths say, with the count as content.
pub(crate) struct CountingOrigin {
    address: SocketAddr,
    shared: Arc<CountingOriginShared>,
}

#[derive(Default)]
struct CountingOriginShared {
    requests: AtomicUsize,
    connections: Mutex<Vec<TcpStream>>,
    /// While true, closes all connections at once.
    is_down: std::sync::atomic::AtomicBool,
}

impl CountingOrigin {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(CountingOriginShared::default());
        let of_connections = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&of_connections);
                shared.connections.lock().unwrap().push(stream.try_clone().unwrap());
                // A closed connection is no failure here.
                std::thread::spawn(move || drop(answer(stream, &shared)));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    pub(crate) fn go_down(&self) {
        self.shared.is_down.store(true, Ordering::SeqCst);
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn answer(mut stream: TcpStream, shared: &CountingOriginShared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some((path, head)) = read_head(&mut reader)? {
        if shared.is_down.load(Ordering::SeqCst) {
            // Shut down, because dropping is not enough while a clone exists.
            return stream.shutdown(Shutdown::Both);
        }
        let count = shared.requests.fetch_add(1, Ordering::SeqCst) + 1;
        if head.contains("If-None-Match: \"v\"") {
            stream.write_all(b"HTTP/1.1 304 Not Modified\r\nETag: \"v\"\r\nX: new\r\n\r\n")?;
            continue;
        }
        if let Some(broken) = broken(&path) {
            stream.write_all(broken.replace("NNNN", &format!("{count:04}")).as_bytes())?;
            return stream.shutdown(Shutdown::Both);
        }
        let fields = match path.as_str() {
            "/stale" => "Cache-Control: max-age=0\r\nETag: \"v\"\r\nX: old\r\n",
            "/private" | "/slow-private" => "Cache-Control: private\r\n",
            "/spare" => "Cache-Control: max-age=0, stale-if-error=100\r\n",
            "/outdated" => "Cache-Control: max-age=0, stale-while-revalidate=100\r\n",
            "/varied" => "Cache-Control: max-age=100\r\nVary: X-Lang\r\n",
            "/anything" => "Cache-Control: max-age=100\r\nVary: *\r\n",
            "/public" => "Cache-Control: public, max-age=100\r\n",
            "/cookie" => "Cache-Control: max-age=100\r\nSet-Cookie: session=secret\r\n",
            "/old" => "Cache-Control: max-age=100\r\nAge: 40\r\n",
            "/silent" => "",
            "/zero" => "Cache-Control: public, max-age=0\r\n",
            "/expired" => "Expires: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
            _ => "Cache-Control: max-age=100\r\nETag: \"e\"\r\n",
        };
        let content = format!("{count:04}") + if path.starts_with("/large") { &LARGE } else { "" };
        // A slow origin: requests for the same path meet while it works.
        let pause = |milliseconds| std::thread::sleep(Duration::from_millis(milliseconds));
        pause(if path == "/slow-private" { 300 } else { 0 });
        // Sends the content separately, so that the head is forwarded before it.
        let length = content.len();
        stream.write_all(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n").as_bytes())?;
        pause(if path == "/slow" { 300 } else { 1 });
        if !head.starts_with("HEAD") {
            stream.write_all(content.as_bytes())?;
        }
    }
    Ok(())
}

/// Bytes after the count in large content.
static LARGE: LazyLock<String> = LazyLock::new(|| "x".repeat(100 << 10));

/// Incomplete and invalid responses, by path. `NNNN` stands for the count.
fn broken(path: &str) -> Option<&'static str> {
    let responses = [
        ("/cut-length", "HTTP/1.1 200 OK\r\nCache-Control: max-age=100\r\nContent-Length: 8\r\n\r\nNNNN"),
        ("/cut-chunk", "HTTP/1.1 200 OK\r\nCache-Control: max-age=100\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nNNNN"),
        (
            "/cut-chunks",
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=100\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nNNNN\r\n",
        ),
        (
            "/cut-trailers",
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=100\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nNNNN\r\n0\r\nA: b",
        ),
        ("/cut-head", "HTTP/1.1 200 OK\r\nCache-Control: max-age=100\r\nContent-Le"),
        (
            "/split-cr",
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=100\r\nX: a\rSet-Cookie: b\r\nContent-Length: 4\r\n\r\nNNNN",
        ),
        ("/split-nul", "HTTP/1.1 200 OK\r\nCache-Control: max-age=100\r\nX: a\0b\r\nContent-Length: 4\r\n\r\nNNNN"),
        ("/split-name", "HTTP/1.1 200 OK\r\nCache-Control: max-age=100\r\nX y: a\r\nContent-Length: 4\r\n\r\nNNNN"),
        (
            "/two-lengths",
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=100\r\nContent-Length: 4\r\nContent-Length: 8\r\n\r\nNNNNevil",
        ),
        (
            "/two-responses",
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=100\r\nContent-Length: 4\r\n\r\nNNNN\
                           HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        ),
    ];
    responses.iter().find(|(of, _)| *of == path).map(|(_, response)| *response)
}

fn read_head(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<(String, String)>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(None);
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    Ok(Some((path, head)))
}

/// Server in front of the origin, with these options of `cache` and of `server`.
pub(crate) fn front(origin: &CountingOrigin, cache: &str, server: &str) -> TestServer {
    let address = origin.address;
    TestServer::run(&format!(
        "server {{\n workers 2\n {server}\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"http://{address}\" {{\n cache {{\n {cache}\n }}\n }}\n}}\n"
    ))
}

/// Sends a request on its own connection, which any worker may accept.
fn ask(server: &TestServer, method: &str, path: &str) -> String {
    ask_with(server, &format!("{method} {path}"), "")
}

/// Sends a request with these header lines; they may name another host.
pub(crate) fn ask_with(server: &TestServer, request: &str, lines: &str) -> String {
    let mut stream = server.connect();
    let host = if lines.starts_with("Host: ") { "" } else { "Host: h\r\n" };
    let lines = lines.replace('\n', "\r\n");
    stream.write_all(format!("{request} HTTP/1.1\r\n{host}{lines}Connection: close\r\n\r\n").as_bytes()).unwrap();
    read_all(&mut stream)
}

#[track_caller]
pub(crate) fn check(answer: &str, content: &str) {
    let (head, found) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    assert_eq!(found, content, "{head}");
}

#[test]
fn fresh_answers_are_served_by_all_workers() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "cache-status", "");
    let first = ask(&server, "GET", "/a");
    check(&first, "0001");
    assert!(first.contains("\r\nCache-Status: tailcoat; fwd=uri-miss; fwd-status=200; stored\r\n"), "{first}");
    for _ in 0..8 {
        let answer = ask(&server, "GET", "/a");
        check(&answer, "0001");
        for line in
            ["Cache-Control: max-age=100", "Content-Length: 4", "Age: ", "Date: ", "Cache-Status: tailcoat; hit; ttl="]
        {
            assert_eq!(answer.matches(&format!("\r\n{line}")).count(), 1, "{line}: {answer}");
        }
        assert!(!answer.contains("\r\nServer: "), "the origin names none: {answer}");
    }
    check(&ask(&server, "HEAD", "/a"), "");
    // The stored response for one URL never serves another.
    check(&ask(&server, "GET", "/b"), "0002");
    check(&ask(&server, "GET", "/a?b"), "0003");
    assert_eq!(origin.requests(), 3);
}

#[test]
fn fields_may_say_what_the_cache_did() {
    let origin = CountingOrigin::start();
    let server = TestServer::run(&format!(
        "server {{ workers 1 }}\nsite {{\n listen \"127.0.0.1:0\"\n response-header \"X-Cache\" \"{{cache_status}}\"\n \
         respond \"/fixed\" 200\n forward \"http://{}\" {{\n cache {{\n default-age \"1h\"\n }}\n }}\n}}\n",
        origin.address
    ));
    for (path, expect) in [("/a", "\r\nX-Cache: miss\r\n"), ("/a", "\r\nX-Cache: hit\r\n")] {
        let answer = ask(&server, "GET", path);
        assert!(answer.contains(expect), "{answer}");
    }
    let answer = ask(&server, "GET", "/fixed");
    assert!(!answer.contains("X-Cache"), "{answer}");
}

#[test]
fn a_pipeline_of_hits_is_answered_in_order() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "", "");
    check(&ask(&server, "GET", "/a"), "0001");
    check(&ask(&server, "GET", "/b"), "0002");
    let mut input = String::new();
    for path in ["/a", "/b", "/c", "/b", "/a"] {
        input += &format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    let input = input.trim_end().to_owned() + "\r\nConnection: close\r\n\r\n";
    // The sending side stays open until the response, because a closed one would abort the request.
    let mut stream = server.connect();
    stream.write_all(input.as_bytes()).unwrap();
    let answers = read_all(&mut stream);
    let contents: Vec<&str> = answers.split("\r\n\r\n").skip(1).map(|rest| &rest[..4]).collect();
    assert_eq!(contents, ["0001", "0002", "0003", "0002", "0001"], "{answers}");
}

#[test]
fn stale_answers_are_validated() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "", "");
    assert!(ask(&server, "GET", "/stale").contains("\r\nX: old\r\n"));
    let validated = ask(&server, "GET", "/stale");
    check(&validated, "0001");
    assert!(validated.contains("\r\nX: new\r\n"), "{validated}");
    assert_eq!(origin.requests(), 2);
}

#[test]
fn many_who_want_the_same_cause_one_request() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "", "");
    let answers: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..100).map(|_| scope.spawn(|| ask(&server, "GET", "/slow"))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    answers.iter().for_each(|answer| check(answer, "0001"));
    assert_eq!(origin.requests(), 1);
}

#[test]
fn those_who_each_get_their_own_do_not_wait_for_each_other() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "", "");
    let start = Instant::now();
    let mut answers: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..100).map(|_| scope.spawn(|| ask(&server, "GET", "/slow-private"))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    // In sequence they would take 30 seconds.
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    answers.sort_unstable();
    answers.dedup();
    assert_eq!((answers.len(), origin.requests()), (100, 100));
}

#[test]
fn a_client_that_leaves_does_not_spoil_what_is_stored() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "", "");
    let mut leaving = server.connect();
    leaving.write_all(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    crate::support::read_until(&mut leaving, "\r\n\r\n");
    drop(leaving);
    check(&ask(&server, "GET", "/slow"), "0001");
    assert_eq!(origin.requests(), 1);
}

#[test]
fn an_origin_that_is_down_is_made_up_for() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "", "");
    check(&ask(&server, "GET", "/spare"), "0001");
    check(&ask(&server, "GET", "/stale"), "0002");
    origin.go_down();
    check(&ask(&server, "GET", "/spare"), "0001");
    let answer = ask(&server, "GET", "/stale");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

#[test]
fn unsafe_requests_invalidate() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "", "");
    check(&ask(&server, "GET", "/a"), "0001");
    check(&ask(&server, "DELETE", "/a"), "0002");
    check(&ask(&server, "GET", "/a"), "0003");
    check(&ask(&server, "PURGE", "/a"), "0004");
}

#[test]
fn an_operator_purges_and_a_client_does_not() {
    let origin = CountingOrigin::start();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let server = front(&origin, "", &format!("control-socket \"{}\"", socket.display()));
    for path in ["/a", "/b/c", "/b/d", "/private"] {
        ask(&server, "GET", path);
    }
    let purge = |url: &str| {
        let output = tailcoat().args(["cache", "purge", "--socket"]).arg(&socket).arg(url).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(purge("http://h/none"), "0\n");
    assert_eq!(purge("http://h/a"), "1\n");
    check(&ask(&server, "GET", "/a"), "0005");
    check(&ask(&server, "GET", "/b/c"), "0002");
    assert_eq!(purge("http://h/b/*"), "2\n");
    check(&ask(&server, "GET", "/b/c"), "0006");
    assert_eq!(purge("--all"), "2\n");
    check(&ask(&server, "GET", "/b/c"), "0007");
    drop(server);
    let output = tailcoat().args(["cache", "purge", "--socket"]).arg(&socket).arg("http://h/").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn parts_and_heads_of_what_is_stored() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "", "");
    check(&ask(&server, "GET", "/a"), "0001");
    let checked = |lines: &str, status: &str, content: &str| {
        let answer = ask_with(&server, "GET /a", lines);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{lines}: {answer}");
        if status != "416" {
            check(&answer, content);
        }
        answer
    };
    let part = checked("Range: bytes=1-2\n", "206", "00");
    assert!(part.contains("\r\nContent-Range: bytes 1-2/4\r\n") && part.contains("\r\nAge: "), "{part}");
    checked("Range: bytes=-1\nIf-Range: \"e\"\n", "206", "1");
    checked("Range: bytes=-1\nIf-Range: \"other\"\n", "200", "0001");
    checked("Range: bytes=4-\n", "416", "");
    checked("If-None-Match: \"e\"\n", "304", "");
    checked("If-None-Match: \"other\"\n", "200", "0001");
    let head = ask(&server, "HEAD", "/a");
    assert!(head.contains("\r\nContent-Length: 4\r\n") && head.contains("\r\nAge: "), "{head}");
    check(&head, "");
    assert_eq!(origin.requests(), 1);
}

#[test]
fn what_a_response_depends_on() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "key-headers \"X-Device\"; key-cookies \"currency\"; ignore-parameters \"utm_*\"", "");
    for _ in 0..2 {
        check(&ask(&server, "GET", "/varied"), "0001");
        check(&ask_with(&server, "GET /varied", "X-Lang: de\n"), "0002");
        check(&ask_with(&server, "GET /varied?utm_source=x", "X-Lang: de\nX-Other: 1\n"), "0002");
        check(&ask_with(&server, "GET /varied", "X-Device: phone\n"), "0003");
        check(&ask_with(&server, "GET /varied", "Cookie: a=b; currency=EUR\n"), "0004");
        check(&ask_with(&server, "GET /varied", "Host: other\n"), "0005");
    }
    check(&ask(&server, "GET", "/anything"), "0006");
    check(&ask(&server, "GET", "/anything"), "0007");

    let server = front(&origin, "key-host off; key-parameters \"page\"", "");
    for _ in 0..2 {
        check(&ask(&server, "GET", "/a?page=1&x=1"), "0008");
        check(&ask_with(&server, "GET /a?x=2&page=1", "Host: other\n"), "0008");
        check(&ask(&server, "GET", "/a?page=2"), "0009");
    }
}

#[test]
fn age_counts_from_where_the_response_was_made() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "cache-status", "");
    ask(&server, "GET", "/old");
    let answer = ask(&server, "GET", "/old");
    let age = answer.split_once("\r\nAge: ").and_then(|(_, rest)| rest.split_once("\r\n")).unwrap().0;
    assert!((40..80).contains(&age.parse::<u32>().unwrap()), "{answer}");
    let (_, rest) = answer.split_once("; hit; ttl=").unwrap();
    let ttl = rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap();
    assert!((20..=60).contains(&ttl.parse::<u32>().unwrap()), "{answer}");
}

#[test]
fn a_stale_answer_is_served_while_it_is_fetched_anew() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "", "");
    check(&ask(&server, "GET", "/outdated"), "0001");
    check(&ask(&server, "GET", "/outdated"), "0001");
    eventually("it is fetched again", || !ask(&server, "GET", "/outdated").ends_with("0001"));
}

/// A page without a lifetime, or with one of 0, may be one client's own: no option and no other client may have it sent to
/// another.
#[test]
fn answers_that_were_never_fresh_are_never_stale() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "stale-while-revalidate \"1m\"\n stale-if-error \"1d\"", "");
    for (path, expect) in [("/silent", ["0001", "0002"]), ("/zero", ["0003", "0004"]), ("/expired", ["0005", "0006"])] {
        check(&ask(&server, "GET", path), expect[0]);
        check(&ask(&server, "GET", path), expect[1]);
    }
    let lenient = |path| ask_with(&server, &format!("GET {path}"), "Cache-Control: max-stale, stale-if-error=100\n");
    check(&lenient("/zero"), "0007");
    check(&ask(&server, "GET", "/stale"), "0008");
    origin.go_down();
    for path in ["/silent", "/zero", "/expired", "/stale"] {
        assert!(ask(&server, "GET", path).starts_with("HTTP/1.1 502"), "{path}");
        assert!(lenient(path).starts_with("HTTP/1.1 502"), "{path}");
    }
}

#[test]
fn whose_answers_are_for_all() {
    let origin = CountingOrigin::start();
    let server = front(&origin, "bypass-cookies \"login\"", "");
    let asked = |path: &str, lines: &str| ask_with(&server, &format!("GET {path}"), lines);
    const AUTHORIZATION: &str = "Authorization: Basic eDp5\n";
    // RFC 9111, section 3.5: only responses that permit sharing are stored.
    check(&asked("/a", AUTHORIZATION), "0001");
    check(&asked("/a", ""), "0002");
    check(&asked("/public", AUTHORIZATION), "0003");
    check(&asked("/public", ""), "0003");
    check(&asked("/cookie", ""), "0004");
    check(&asked("/cookie", ""), "0005");
    check(&asked("/private", ""), "0006");
    check(&asked("/private", ""), "0007");
    check(&asked("/silent", ""), "0008");
    check(&asked("/silent", ""), "0009");
    check(&asked("/a", "Cookie: a=b; login=1\n"), "0010");
    check(&asked("/a", "Cookie: a=b\n"), "0002");
}

#[test]
fn rules_hold_for_what_is_stored() {
    let origin = CountingOrigin::start();
    let address = origin.address;
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n response-header \"X-Rule\" \"1\"\n\
         forward \"http://{address}\" {{\n cache {{}}\n }}\n}}\n"
    ));
    for _ in 0..2 {
        let answer = ask(&server, "GET", "/a");
        check(&answer, "0001");
        assert!(answer.contains("\r\nX-Rule: 1\r\n"), "{answer}");
    }
}

#[test]
fn limits_of_memory_and_of_objects() {
    let origin = CountingOrigin::start();
    let address = origin.address;
    let server = TestServer::run(&format!(
        "cache {{\n memory-bytes-max \"1MiB\"\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"http://{address}\" {{\n cache {{\n cache-status\n }}\n }}\n}}\n"
    ));
    // A hundred times 100 KiB: a response in frequent use stays, and others are evicted.
    ask(&server, "GET", "/often");
    for number in 0..100 {
        let answer = ask(&server, "GET", &format!("/large{number}"));
        assert!(answer.ends_with(&*LARGE));
        check(&ask(&server, "GET", "/often"), "0001");
    }
    let before = origin.requests();
    // The newest first: a new response takes the place of a stored one.
    let numbers = (0..100).rev();
    let hits = numbers.filter(|number| ask(&server, "GET", &format!("/large{number}")).contains("; hit;")).count();
    assert!((1..=10).contains(&hits), "{hits} of a hundred still stored");
    assert_eq!(origin.requests() - before, 100 - hits);

    let server = front(&origin, "object-bytes-max \"100KiB\"", "");
    let before = origin.requests();
    (0..2).for_each(|_| assert!(ask(&server, "GET", "/large").ends_with(&*LARGE)));
    assert_eq!(origin.requests() - before, 2, "four bytes too many");
}
