//! Reload of a running server: open requests continue, and an invalid configuration changes nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[cfg(feature = "modules")]
use crate::support::guests::{compiled_directory, guests};
use crate::support::h2::H2Client;
use crate::support::operated::Operated;
use crate::support::port::free_port;
use crate::support::skips::skip;
use crate::support::tls::{TestCa, connect};
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::waiting::eventually;
use crate::support::{PATIENCE, read_all, read_until, write_program};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

/// Site that responds with this text.
fn saying(text: &str) -> String {
    format!("site {{\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"{text}\"\n}}\n")
}

fn get(stream: &mut (impl Read + Write), text: &str) -> String {
    stream.write_all(GET).unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&bytes).contains(text) {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "ended before {text:?}: {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends a request on a new connection. Its sending side stays open, because a closed one would abort a forwarded
/// request.
fn ask_once(operated: &Operated, path: &str) -> String {
    let mut stream = operated.server.connect();
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    read_all(&mut stream)
}

#[test]
fn a_connection_that_is_open_gets_the_next_answer_by_the_new_configuration() {
    let operated = Operated::start(&saying("first"));
    let mut h1 = operated.server.connect();
    let mut h2 = H2Client::connect(&operated.server);
    get(&mut h1, "first");
    let answer = h2.get("/");
    assert_eq!(answer.content, b"first");
    operated.reload(&saying("second"));
    get(&mut h1, "second");
    assert_eq!(h2.get("/").content, b"second");
    get(&mut operated.server.connect(), "second");
    // By signal; the log has the result.
    operated.write_config(&saying("third"));
    operated.server.signal("HUP");
    eventually("the signal", || operated.file("errors.log").matches("configuration reloaded").count() == 2);
    get(&mut h1, "third");
}

#[test]
fn a_wrong_configuration_changes_nothing_and_says_why() {
    let operated = Operated::start(&saying("right"));
    let mut stream = operated.server.connect();
    get(&mut stream, "right");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let listening =
        |address: &str| format!("{}site {{\n listen \"{address}\"\n respond \"/\" 200\n}}\n", saying("wrong"));
    let log = |path: &str| format!("access-log \"{path}\"\n{}", saying("wrong"));
    for (config, code, reported) in [
        (saying("wrong") + "site {\n listn \"127.0.0.1:0\"\n}\n", 3, "did you mean `listen`?"),
        (saying("wrong") + "site {", 3, "tailcoat.kdl"),
        (listening("192.0.2.1:1"), 3, "192.0.2.1:1"),
        (listening(&taken.to_string()), 1, "cannot bind 127.0.0.1"),
        (log("@DIR@/none/access.log"), 3, "none/access.log"),
        (saying("wrong") + "site {\n listen \"127.0.0.1:0\"\n root \"@DIR@/none\"\n}\n", 3, "mkdir -p"),
        (saying("wrong") + "site {\n listen \"127.0.0.1:0\"\n basic-auth \"*\" \"none.htpasswd\"\n respond \"*\" 200\n}\n", 3, "htpasswd -B"),
        (
            "site \"a.example\" {\n listen \"127.0.0.1:0\" tls=on\n certificate \"@DIR@/none.pem\"\n respond \"/\" 200\n}\n".into(),
            3,
            "none.pem",
        ),
    ] {
        operated.write_config(&config);
        let output = operated.order(&["reload"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{config}: {said}");
        assert!(said.contains(reported), "{config}: {said}");
        let logged = || operated.file("errors.log");
        eventually(reported, || logged().contains("reload failed: ") && logged().contains(reported));
        get(&mut stream, "right");
        get(&mut operated.server.connect(), "right");
    }
    // Findings show their line, with a caret below the place.
    operated.write_config(&(saying("wrong") + "site {\n listn \"127.0.0.1:0\"\n}\n"));
    let said = String::from_utf8_lossy(&operated.order(&["reload"]).stderr).into_owned();
    assert!(said.contains("listn \"127.0.0.1:0\"") && said.contains("^^|^^"), "{said}");
    std::fs::remove_file(operated.path().join("tailcoat.kdl")).unwrap();
    let output = operated.order(&["reload"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.contains("tailcoat.kdl: ")), (Some(1), true), "{said}");
    operated.reload(&saying("right again"));
    get(&mut stream, "right again");
}

#[test]
fn what_is_under_way_goes_on() {
    const BYTES: usize = 64 << 20;
    let upload = ScriptedUpstream::start(vec![vec![
        ScriptStep::Read("END"),
        ScriptStep::Write("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone"),
        ScriptStep::Read("never"),
    ]]);
    let chat = ScriptedUpstream::start(vec![vec![
        ScriptStep::Read("\r\n\r\n"),
        ScriptStep::Write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
        ScriptStep::Echo,
    ]]);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("large"), vec![b'x'; BYTES]).unwrap();
    let config = format!(
        "access-log \"@DIR@/before.log\" format=\"{{path}} {{status}} {{bytes}}\"\nsite {{\n listen \"127.0.0.1:0\"\n \
         root \"@DIR@\"\n forward \"http://{}\" path=\"/upload\"\n forward \"http://{}\" path=\"/chat\"\n}}\n",
        upload.address, chat.address
    );
    let operated = Operated::start_in(directory, &config);
    let mut download = operated.server.connect();
    download.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let begin = read_until(&mut download, "\r\n\r\n");
    let mut uploading = operated.server.connect();
    uploading.write_all(b"POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 1000003\r\n\r\n").unwrap();
    uploading.write_all(&[b'u'; 500_000]).unwrap();
    let mut socket = operated.server.connect();
    socket.write_all(b"GET /chat HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
    read_until(&mut socket, "101 Switching Protocols");
    // The server drops their origins, and the log.
    operated.reload(&format!("access-log \"@DIR@/after.log\" format=\"{{path}} {{status}}\"\n{}", saying("other")));
    operated.reload(&format!("access-log \"@DIR@/after.log\" format=\"{{path}} {{status}}\"\n{}", saying("another")));
    uploading.write_all(&[b'u'; 500_000]).unwrap();
    uploading.write_all(b"END").unwrap();
    read_until(&mut uploading, "done");
    get(&mut uploading, "another");
    for message in ["one", "two"] {
        socket.write_all(message.as_bytes()).unwrap();
        read_until(&mut socket, message);
    }
    let mut left = BYTES - begin.split_once("\r\n\r\n").unwrap().1.len();
    let mut buffer = vec![0; 1 << 20];
    while left > 0 {
        let piece = left.min(buffer.len());
        let count = download.read(&mut buffer[..piece]).unwrap();
        assert!(count > 0, "{left} bytes are missing");
        left -= count;
    }
    download.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    assert!(!matches!(download.read(&mut buffer), Ok(1..)), "nothing comes after it");
    drop(socket);
    // Requests end in the log that they began with.
    eventually("the log", || operated.file("before.log").lines().count() == 3);
    let mut lines: Vec<String> = operated.file("before.log").lines().map(str::to_owned).collect();
    lines.sort();
    assert!(lines[0].starts_with("/chat 101 "), "{lines:?}");
    assert_eq!(lines[1..], [format!("/large 200 {BYTES}"), "/upload 200 4".to_owned()]);
    eventually("the log", || operated.file("after.log") == "/ 200\n");
}

#[test]
fn listeners_come_and_go() {
    let unix = |name: &str| {
        format!("site {{\n listen \"unix:@DIR@/{name}\" \"127.0.0.1:0\"\n respond \"/\" 200 \"{name}\"\n}}\n")
    };
    let operated = Operated::start(&unix("first"));
    let at = |name: &str| UnixStream::connect(operated.path().join(name));
    let mut first = at("first").unwrap();
    first.set_read_timeout(Some(PATIENCE)).unwrap();
    get(&mut first, "200 OK");
    let mut tcp = operated.server.connect();
    operated.reload(&unix("second"));
    get(&mut at("second").unwrap(), "second");
    get(&mut tcp, "second");
    assert!(at("first").is_err(), "its file is gone");
    // Clients of the removed listener may send one more request, and get `Connection: close`.
    let answer = get(&mut first, "first");
    assert!(answer.contains("Connection: close"), "{answer}");
    assert_eq!(first.read(&mut [0; 10]).unwrap(), 0);
    // There and back again, during the retirement.
    operated.reload(&unix("first"));
    get(&mut at("first").unwrap(), "first");
    // Same socket with other permissions.
    operated.reload(&unix("first").replace("listen \"unix", "listen mode=\"600\" \"unix"));
    get(&mut at("first").unwrap(), "first");
}

#[test]
fn an_address_of_tcp_is_given_up_and_taken_again() {
    let port = free_port();
    let both = format!("{}site {{\n listen \"127.0.0.1:{port}\"\n respond \"/\" 200 \"there\"\n}}\n", saying("here"));
    let operated = Operated::start(&saying("here"));
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(500));
    for round in 0..3 {
        operated.reload(&both);
        let mut stream = connect().unwrap();
        get(&mut stream, "there");
        operated.reload(&saying("here"));
        // The kernel accepts no new connections. Some kernels permit socket filters to root only.
        if connect().is_ok() {
            let is_told = || operated.file("errors.log").contains("Operation not permitted");
            eventually(&format!("round {round}: why it does is logged"), is_told);
        }
        let answer = get(&mut stream, "there");
        assert!(answer.contains("Connection: close"), "round {round}: {answer}");
    }
    eventually("the socket is closed", || connect().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused));
    operated.reload(&both);
    get(&mut connect().unwrap(), "there");
}

#[test]
fn a_single_address_beside_all() {
    let port = free_port();
    let site = |listen: &str, text: &str| format!("site {{\n listen {listen}\n respond \"/\" 200 \"{text}\"\n}}\n");
    let all = format!("{}{}", saying("here"), site(&port.to_string(), "all"));
    let both = format!("{}{all}", site(&format!("\"127.0.0.1:{port}\""), "one"));
    let operated = Operated::start(&both);
    let ask = |host: u8| {
        let address = std::net::SocketAddr::from(([127, 0, 0, host], port));
        let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) else {
            return String::new();
        };
        stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
        read_all(&mut stream)
    };
    assert!(ask(1).ends_with("one") && ask(2).ends_with("all"));
    operated.reload(&all);
    // The socket of the single address is closed after a while.
    eventually("the single address is one of all", || ask(1).ends_with("all"));
    operated.reload(&both);
    assert!(ask(1).ends_with("one") && ask(2).ends_with("all"));
}

#[test]
fn what_is_known_is_kept() {
    const RESPONSE: &str = "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: 6\r\n\r\nstored";
    let cached = ScriptedUpstream::start(vec![vec![
        ScriptStep::Read("\r\n\r\n"),
        ScriptStep::Write(RESPONSE),
        ScriptStep::Read("never"),
    ]]);
    let config = |first: &str, timeout: &str| {
        format!(
            "{first}site {{\n listen \"127.0.0.1:0\"\n default\n rate-limit \"/limited\" \"1/h\"\n \
             forward \"http://{}\" path=\"/cached\" {{\n first-byte-timeout \"{timeout}\"\n cache {{ }}\n }}\n \
             respond \"/limited\" 200 \"passed\"\n}}\n",
            cached.address
        )
    };
    let operated = Operated::start(&config("", "10s"));
    let ask = |path: &str| ask_once(&operated, path);
    assert!(ask("/cached").ends_with("stored"));
    assert!(ask("/limited").ends_with("passed"));
    let other = "site \"other.example\" {\n listen \"127.0.0.1:0\"\n respond \"/\" 200\n}\n";
    for (first, timeout) in [(other, "10s"), ("", "20s")] {
        operated.reload(&config(first, timeout));
        // A second connection would be a second request, which this upstream does not answer.
        assert!(ask("/cached").contains("Age: "), "{first}");
        assert!(ask("/limited").starts_with("HTTP/1.1 429 "), "{first}");
    }
    assert_eq!(cached.try_connection(), None);
}

#[test]
fn what_waits_for_the_next_start_is_reported() {
    let operated = Operated::start(&saying("first"));
    operated.write_config(&saying("second"));
    let text = operated.file("tailcoat.kdl");
    let write = |server: &str, cache: &str| {
        let text = text.replace("server {\n", &format!("server {{\n{server}")) + &format!("cache {{\n{cache}}}\n");
        std::fs::write(operated.path().join("tailcoat.kdl"), text).unwrap();
        let output = operated.order(&["reload"]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (name, server, cache) in [
        ("pin-workers", "pin-workers off\n", ""),
        ("blocking-threads-max", "blocking-threads-max 7\n", ""),
        ("counters", "counters off\n", ""),
        ("counted-names-max", "counted-names-max 77\n", ""),
        ("watch", "", "watch off\n"),
        ("watches-max", "", "watches-max 77\n"),
    ] {
        // The warning lasts as long as the difference.
        for (server, cache, expect) in [(server, cache, true), (server, cache, true), ("", "", false)] {
            let (code, said) = write(server, cache);
            assert_eq!(code, Some(0), "{said}");
            let reported = format!("warning: `{name}` changes with the next start or upgrade\n");
            assert_eq!(said, if expect { reported } else { String::new() });
        }
    }
    get(&mut operated.server.connect(), "second");
}

#[test]
fn what_is_counted_goes_on() {
    let site = |name: &str| {
        format!("site \"{name}\" {{\n listen \"127.0.0.1:0\"\n respond \"/\" 200\n metrics \"/metrics\"\n}}\n")
    };
    let operated = Operated::start(&(site("a.example") + &site("127.0.0.1")));
    let ask = |host: &str, target: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        operated.server.exchange(request.as_bytes())
    };
    let counted = |name: &str| {
        let (metrics, name) = (ask("127.0.0.1", "/metrics"), format!("tailcoat_{name} "));
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok());
        value.unwrap_or_else(|| panic!("no {name} in {metrics}"))
    };
    let of_site = |site: &str| counted(&format!("http_request_duration_seconds_count{{site=\"{site}\"}}"));
    let mut open = operated.server.connect();
    // Without a request the connection would be accepted a second later (TCP_DEFER_ACCEPT), and counted in some round.
    write!(open, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    read_until(&mut open, "\r\n\r\n");
    let mut opened = counted("connections_opened_total");
    for (round, config) in [
        site("127.0.0.1") + &site("b.example") + &site("a.example"),
        site("127.0.0.1") + &site("a.example"),
        site("a.example") + &site("127.0.0.1"),
    ]
    .iter()
    .enumerate()
    {
        for _ in 0..4 {
            ask("a.example", "/");
        }
        operated.reload(config);
        // New workers reuse the counters of earlier ones with the same index.
        for workers in ["1", "3"] {
            assert!(operated.order(&["set", "workers", workers]).status.success());
        }
        assert_eq!(of_site("a.example"), 4 * (round as u64 + 1));
        let before = std::mem::replace(&mut opened, counted("connections_opened_total"));
        assert_eq!(opened, before + 4 + 2, "those that asked, and these two that looked");
    }
    ask("b.example", "/");
    assert_eq!(of_site("a.example"), 12 + 1, "without a site of its own it is the first one's");
    // The status shows the present workers.
    eventually("all workers answer that there are", || {
        let status = String::from_utf8(operated.order(&["status", "--json"]).stdout).unwrap();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let there = status["workers"].as_array().unwrap().iter().filter(|worker| worker["has_ended"] == false);
        let answers: Vec<_> = there.map(|worker| worker["has_answered"] == true).collect();
        // A fourth one if a leaving worker has the open connection, with which it stays.
        answers == [true; 3] || answers == [true; 4]
    });
    write!(open, "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").unwrap();
    assert!(read_all(&mut open).starts_with("HTTP/1.1 200 "));
    assert_eq!(of_site("a.example"), 14);
}

#[test]
fn certificates_come_with_their_sites() {
    let authority = TestCa::new();
    let directory = tempfile::tempdir().unwrap();
    for name in ["a.example", "b.example"] {
        authority.sign(&[name]).write(directory.path(), name);
    }
    let site = |name: &str| {
        format!(
            "site \"{name}\" {{\n listen \"127.0.0.1:0\" tls=on\n certificate \"@DIR@/{name}.pem\" \
             key=\"@DIR@/{name}.key\"\n respond \"/\" 200 \"{name}\"\n}}\n"
        )
    };
    let operated = Operated::start_in(directory, &site("a.example"));
    let client = std::sync::Arc::new(authority.client(None));
    let mut open = connect(&operated.server, &client, "a.example").unwrap();
    assert!(connect(&operated.server, &client, "b.example").is_err(), "there is no certificate for it");
    operated.reload(&(site("b.example") + &site("a.example")));
    let mut other = connect(&operated.server, &client, "b.example").unwrap();
    for (stream, name) in [(&mut open, "a.example"), (&mut other, "b.example")] {
        stream.write_all(format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes()).unwrap();
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&bytes).ends_with(name) {
            let count = stream.read(&mut buffer).unwrap();
            bytes.extend_from_slice(&buffer[..count]);
        }
    }
    // Sessions outlive the reload: the second handshake needs no certificate.
    let again = connect(&operated.server, &client, "b.example").unwrap();
    assert_eq!(again.conn.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
}

#[test]
fn workers_come_and_go_unnoticed() {
    let operated = Operated::start(&saying("hello"));
    let address = operated.server.address;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut count = 0;
                    let mut kept: Option<TcpStream> = None;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let mut stream = kept.take().unwrap_or_else(|| TcpStream::connect(address).unwrap());
                        stream.set_read_timeout(Some(PATIENCE)).unwrap();
                        let answer = get(&mut stream, "hello");
                        // Half of them keep their connections.
                        kept = (client % 2 == 0 && !answer.contains("Connection: close")).then_some(stream);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let outputs = ["1", "4", "3", "1", "2"].map(|count| {
            let output = operated.order(&["set", "workers", count]);
            eventually("there are as many", || operated.threads("worker-") == count.parse::<usize>().unwrap());
            output
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for output in outputs {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<u32>>()
    });
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    eventually("the workers that go have gone", || operated.threads("worker-") == 2);
}

/// Independent of the checks in between: their interval is long.
#[cfg(feature = "modules")]
#[test]
fn modules_are_as_new_as_the_reload() {
    let Some(guests) = guests() else { return };
    let directory = tempfile::tempdir().unwrap();
    let module = directory.path().join("shop.wasm");
    std::fs::copy(guests, &module).unwrap();
    let config = |more: &str| {
        format!(
            "limits {{ body-timeout \"10m\" }}\n\
             modules {{\n compile-wait \"5m\"\n compiled \"{}\"\n check-interval \"1h\"\n}}\n\
             site {{\n listen \"127.0.0.1:0\"\n \
             module \"/other/*\" \"@DIR@/shop.wasm\" {{\n settings \"{more}\"\n }}\n \
             module \"*\" \"@DIR@/shop.wasm\" {{\n between-bytes-timeout \"10m\"\n }}\n}}\n",
            compiled_directory().display()
        )
    };
    let operated = Operated::start_in(directory, &config("first"));
    let mut streaming = operated.server.connect();
    streaming.write_all(b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nold").unwrap();
    read_until(&mut streaming, "old");
    assert!(ask_once(&operated, "/hello").contains("hello\n"));
    // An unusable module changes nothing.
    let put = |bytes: &[u8]| {
        std::fs::write(operated.path().join("next"), bytes).unwrap();
        std::fs::rename(operated.path().join("next"), &module).unwrap();
    };
    put(b"\0asm\x0d\0\x01\0broken");
    let output = operated.order(&["reload"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("shop.wasm"), "{said}");
    assert!(ask_once(&operated, "/hello").contains("hello\n"));
    // Another program with the same time stamp and size, as far as the file system tells.
    let other = std::fs::read(guests).unwrap();
    let at = other.windows(6).position(|window| window == b"hello\n").unwrap();
    put(&[&other[..at], b"HELLO\n", &other[at + 6..]].concat());
    operated.reload(&config("first"));
    assert!(ask_once(&operated, "/hello").contains("HELLO\n"), "the module is the new one when the command has ended");
    // With other settings it is another module of the same file: both run the new code.
    operated.reload(&config("second"));
    assert!(ask_once(&operated, "/hello").contains("HELLO\n"));
    assert!(
        ask_once(&operated, "/other/hello").starts_with("HTTP/1.1 404 "),
        "the module answers, which has none such"
    );
    streaming.write_all(b"end").unwrap();
    read_until(&mut streaming, "end");
}

/// Guards and handlers before scripts decide whether an index is requested by its own path. A reload may add them, and
/// nothing else.
#[test]
fn new_guards_and_handlers_hold_for_indexes_of_scripts() {
    let site = |before: &str| {
        format!(
            "site {{\n listen \"127.0.0.1:0\"\n {before}\n cgi \"*.cgi\" root=\"@DIR@/scripts\" {{ index \"index.cgi\" }}\n}}\n"
        )
    };
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("scripts/x/index.cgi");
    std::fs::create_dir_all(script.parent().unwrap()).unwrap();
    write_program(&script, "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nscript'");
    let operated = Operated::start_in(directory, &site(""));
    let check = |path: &str, status: &str, content: &str| {
        let answer = ask_once(&operated, path);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(content), "{path}: {answer}");
    };
    check("/x/", "200", "script");
    operated.reload(&site("deny all path=\"/x/index.cgi\""));
    check("/x/", "403", "");
    operated.reload(&site("respond \"/x/index.cgi\" 200 \"fixed\""));
    check("/x/", "200", "fixed");
    operated.reload(&site("respond \"/y/*\" 200 \"other\""));
    check("/x/", "200", "script");
}

#[test]
fn limits_and_levels_change_until_the_next_reload() {
    let operated = Operated::start(&saying("hello"));
    let order = |arguments: &[&str]| {
        let output = operated.order(arguments);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let long = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "x".repeat(600));
    let mut open = operated.server.connect();
    get(&mut open, "hello");
    assert!(operated.server.exchange(long.as_bytes()).starts_with("HTTP/1.1 404 "));
    assert!(order(&["set", "limit", "target-bytes-max", "500B"]).0);
    assert!(operated.server.exchange(long.as_bytes()).starts_with("HTTP/1.1 414 "));
    get(&mut open, "hello");
    for (name, value, reported) in [("target-bytes-max", "5B", "16"), ("no-such-thing", "5", "no-such-thing")] {
        let (is_done, said) = order(&["set", "limit", name, value]);
        assert!(!is_done && said.contains(reported), "{said}");
    }
    assert!(order(&["set", "limit", "head-bytes-max", "64KiB"]).0, "connections that are open read more at once");
    get(&mut open, "hello");
    // A limit of two values.
    assert!(order(&["set", "limit", "http2-resets-max", "10", "5"]).0);
    let output = operated.order(&["set", "workers", "1"]);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("workers 1: set by an operator"), "{output:?}");
    assert!(order(&["set", "log-level", "error"]).0);
    for reported in ["target-bytes-max \"500B\"", "http2-resets-max 10 5", "log-level error"] {
        let line = format!("info: {reported}: set by an operator");
        eventually(reported, || operated.file("errors.log").contains(&line));
    }
    let before = operated.file("errors.log").len();
    operated.reload(&saying("hello"));
    eventually("the level is that of the configuration", || operated.file("errors.log").len() > before);
    assert!(operated.server.exchange(long.as_bytes()).starts_with("HTTP/1.1 404 "));
}

/// Options that operators set one by one do not undo each other.
#[test]
fn what_is_set_does_not_undo_what_was_set() {
    let operated = Operated::start(&saying("hello"));
    let set = |arguments: &[&str]| assert!(operated.order(&[&["set"], arguments].concat()).status.success());
    set(&["log-level", "error"]);
    // At the same time.
    std::thread::scope(|scope| {
        scope.spawn(|| set(&["limit", "target-bytes-max", "500B"]));
        scope.spawn(|| set(&["limit", "header-fields-max", "3"]));
        scope.spawn(|| set(&["workers", "1"]));
    });
    let request = |target: usize, fields: usize| {
        let fields = "X: y\r\n".repeat(fields);
        let request = format!("GET /{} HTTP/1.1\r\nHost: h\r\n{fields}\r\n", "x".repeat(target));
        operated.server.exchange(request.as_bytes())[9..12].to_owned()
    };
    assert_eq!([request(600, 0), request(10, 4), request(10, 2)], ["414", "431", "404"]);
    eventually("the worker that goes has gone", || operated.threads("worker-") == 1);
    let log = operated.file("errors.log");
    assert!(!log.contains("header-fields-max 3: set by an operator"), "the level is still that of before: {log}");
    operated.reload(&saying("hello"));
    assert_eq!([request(600, 0), request(10, 4)], ["404", "404"]);
    eventually("workers are as configured", || operated.threads("worker-") == 2);
    eventually("the reload is logged", || operated.file("errors.log").contains("configuration reloaded"));
}

/// Clients whose handshake is complete, and that have sent nothing yet, get a response whatever happens to their
/// socket: workers change, the address is removed, another process takes over.
#[test]
fn connections_that_wait_to_be_accepted_are_answered() {
    const COUNT: usize = 60;
    let port = free_port();
    let with_address =
        format!("{}site {{\n listen \"127.0.0.1:{port}\"\n respond \"/\" 200 \"there\"\n}}\n", saying("here"));
    let mut operated = Operated::start(&with_address);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let connect = |count: usize| -> Vec<TcpStream> {
        let connect = |_| {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        };
        (0..count).map(connect).collect()
    };
    let answered = |mut streams: Vec<TcpStream>| streams.iter_mut().for_each(|stream| _ = get(stream, "there"));
    for workers in ["4", "1", "3", "2"] {
        let waiting = connect(COUNT);
        assert!(operated.order(&["set", "workers", workers]).status.success());
        answered(waiting);
    }
    let waiting = connect(COUNT);
    operated.upgrade();
    answered(waiting);
    let waiting = connect(COUNT);
    operated.reload(&saying("here"));
    answered(waiting);
}

#[test]
fn a_file_in_the_place_of_a_socket_is_left_alone() {
    let operated = Operated::start(&saying("here"));
    std::fs::write(operated.path().join("file"), "precious").unwrap();
    for (options, expect) in [
        ("site {\n listen \"unix:@DIR@/file\"\n respond \"/\" 200\n}\n", "cannot bind unix:"),
        ("server {\n control-socket \"@DIR@/file\"\n}\n", "cannot bind control socket /"),
    ] {
        operated.write_config(&(options.to_owned() + &saying("here")));
        if options.starts_with("server") {
            let config = operated.file("tailcoat.kdl").replacen("control-socket", "// control-socket", 1);
            std::fs::write(operated.path().join("tailcoat.kdl"), config).unwrap();
        }
        let output = operated.order(&["reload"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expect), "{said}");
        assert!(said.contains("/file: the path is a file that is not a socket"), "{said}");
        assert_eq!(operated.file("file"), "precious");
    }
    // Nor is a file that has replaced it since.
    operated.reload(&format!("site {{\n listen \"unix:@DIR@/socket\"\n respond \"/\" 200\n}}\n{}", saying("here")));
    std::fs::rename(operated.path().join("file"), operated.path().join("socket")).unwrap();
    operated.reload(&saying("here"));
    assert_eq!(operated.file("socket"), "precious");
}

#[test]
fn a_small_port_that_may_not_be_had_is_reported_with_what_helps() {
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    if !rustix::process::geteuid().is_root() || first.trim() == "0" {
        skip("it takes root, and ports that only root may bind");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let user = Some(rustix::fs::Uid::from_raw(65_534));
    rustix::fs::chown(directory.path(), user, None).unwrap();
    let operated = Operated::start_with(directory, &saying("here"), |command| {
        let program = command.get_program().to_owned();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        *command = std::process::Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all"]);
        command.arg(program).args(arguments);
    });
    operated.write_config(&format!(
        "site {{\n listen \"127.0.0.1:{}\"\n respond \"/\" 200\n}}\n{}",
        81,
        saying("here")
    ));
    let output = operated.order(&["reload"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("cannot bind 127.0.0.1:81: permission denied") && said.contains("CAP_NET_BIND_SERVICE"),
        "{said}"
    );
    assert!(ask_once(&operated, "/").ends_with("here"));
}

#[test]
fn a_server_is_drained() {
    let answering = |text: &'static str| {
        ScriptedUpstream::start(vec![vec![
            ScriptStep::Read("\r\n\r\n"),
            ScriptStep::Write(text),
            ScriptStep::Read("never"),
        ]])
    };
    let first = answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst");
    let second = answering("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond");
    let config = |more: &str| {
        format!(
            "upstream \"app\" {{\n server \"http://{}\"\n server \"http://{}\"\n idle-max 0\n{more}}}\n\
             site {{\n listen \"127.0.0.1:0\"\n forward \"app\"\n}}\n",
            first.address, second.address
        )
    };
    let operated = Operated::start(&config(""));
    let answers = || (0..20).map(|_| ask_once(&operated, "/").split("\r\n\r\n").nth(1).unwrap_or("").to_owned());
    let count_of_first = || answers().filter(|answer| answer == "first").count();
    assert!((1..20).contains(&count_of_first()), "{:?}", answers().collect::<Vec<_>>());
    let name = format!("http://{}", first.address);
    let output = operated.order(&["drain", "app", &name]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.starts_with(&format!("{name} gets no new requests; ")), "{said}");
    assert_eq!(count_of_first(), 0);
    // Another configuration with the same servers keeps the state.
    operated.reload(&config(" tries-max 2\n"));
    assert_eq!(count_of_first(), 0);
    let output = operated.order(&["drain", "app", &name, "--end"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{name} gets requests again\n"));
    assert!((1..20).contains(&count_of_first()));
    for (upstream, server) in [("none", name.as_str()), ("app", "http://192.0.2.1:1")] {
        let output = operated.order(&["drain", upstream, server]);
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn without_a_file_nothing_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let errors = directory.path().join("errors.log");
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &format!("exec \"$@\" 2> >(tee \"{}\" >&2)", errors.display()), "bash"]);
    command.arg(crate::support::tailcoat().get_program()).args(["serve", "-l", "127.0.0.1:0"]).arg(directory.path());
    let server = crate::support::TestServer::start(command);
    server.signal("HUP");
    eventually("the log", || {
        std::fs::read_to_string(&errors).unwrap().contains("not started from a configuration file")
    });
    assert!(server.exchange(GET).starts_with("HTTP/1.1 "));
}

#[test]
fn files_are_watched_if_that_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("sites")).unwrap();
    std::fs::write(directory.path().join("sites/one.kdl"), saying("first")).unwrap();
    let config = "include \"@DIR@/sites/*.kdl\"\n";
    let operated = Operated::start_with(directory, config, |command| _ = command.arg("--watch"));
    let mut stream = operated.server.connect();
    get(&mut stream, "first");
    let site = operated.path().join("sites/one.kdl");
    std::fs::write(&site, "site {").unwrap();
    eventually("the error", || operated.file("errors.log").contains("reload failed: "));
    get(&mut stream, "first");
    std::fs::write(&site, saying("second")).unwrap();
    eventually("the change", || operated.server.exchange(GET).ends_with("second"));
    std::fs::write(
        operated.path().join("sites/two.kdl"),
        saying("other").replace("site {", "site \"other.example\" {"),
    )
    .unwrap();
    let other = b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n";
    eventually("the new file", || operated.server.exchange(other).ends_with("other"));
    get(&mut stream, "second");
}
