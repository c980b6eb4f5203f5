//! Log lines about forwarded requests: the upstream, the timing, and the reason of a failure.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

use crate::support::upstream::ScriptStep::{Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::lines_of;
use crate::support::{PATIENCE, TestServer, ask, read_all, tailcoat};

const HEAD: &str = "\r\n\r\n";

/// Address at which nothing listens. Another test could get a port that is free now.
const REFUSED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
}

/// Upstream as logs name it.
fn name(address: std::net::SocketAddr) -> String {
    format!("http://{address}")
}

#[test]
fn the_access_log_tells_the_server_and_its_times() {
    let rejected = REFUSED;
    let slow = ScriptedUpstream::start(vec![vec![
        Await(HEAD),
        Say("HTTP/1.1 201 Created\r\nContent-Length: 2\r\nConnection: close\r\n\r\no"),
        crate::support::upstream::ScriptStep::Pause(30),
        Say("k"),
    ]]);
    let silent = ScriptedUpstream::start(vec![vec![Await("never")]]);
    let directory = tempfile::tempdir().unwrap();
    let sites = |format: &str, name: &str| {
        let log = directory.path().join(name);
        let server = TestServer::run(&format!(
            "access-log \"{}\" format={format}\nsite {{\n listen \"127.0.0.1:0\"\n respond \"/here\" 200\n\
             forward \"http://{}\" path=\"/slow\"\n forward \"http://{rejected}\" path=\"/refused\"\n\
             forward \"http://{}\" path=\"/silent\" {{ first-byte-timeout \"200ms\" }}\n}}\nserver {{ workers 1 }}\n",
            log.display(),
            slow.address,
            silent.address
        ));
        for path in ["/here", "/slow", "/refused", "/silent"] {
            ask(&server, &get(path));
        }
        (log, server)
    };
    let template = "\"{path} {status} {upstream} {upstream_status} {upstream_tries} {upstream_connect_us} \
                    {upstream_first_byte_us} {upstream_duration_us} {upstream_duration_s} {cache_status}\"";
    let (log, _server) = sites(template, "template");
    let lines_of = lines_of(&log, 4);
    let words = |line: usize| lines_of[line].split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines_of[0], "/here 200 - - - - - - - -");
    let [path, status, server, answered, tries, connect, first, all, seconds, cache] = &words(1)[..] else { panic!() };
    assert_eq!((&**path, &**status, &**server, &**answered), ("/slow", "201", &*name(slow.address), "201"));
    assert_eq!((&**tries, &**cache), ("1", "-"));
    let [connect, first, all] = [connect, first, all].map(|number| number.parse::<u64>().unwrap());
    // The head may be noticed late, but the request arrived before the pause.
    assert!(connect <= first && first <= all && all >= 30_000, "{lines_of:?}");
    assert_eq!(*seconds, format!("{}.{:06}", all / 1_000_000, all % 1_000_000));
    assert_eq!(words(2)[..6], ["/refused", "502", &name(rejected), "-", "1", "-"]);
    assert_eq!(words(3)[..5], ["/silent", "504", &name(silent.address), "-", "1"]);
    assert!(words(3)[7].parse::<u64>().unwrap() >= 190_000, "{lines_of:?}");
    // The binary log has the same, and converts to the same JSON.
    let (log, mut server) = sites("\"binary\"", "binary");
    server.signal("TERM");
    assert!(server.wait());
    let json = tailcoat().args(["log", "convert", "--format", "json"]).arg(&log).output().unwrap();
    let json = String::from_utf8(json.stdout).unwrap();
    let slow_line = json.lines().nth(1).unwrap_or_else(|| panic!("{json}"));
    for expect in [
        format!(
            ",\"upstream\":\"http://{}\",\"upstream_tries\":1,\"upstream_status\":201,\"upstream_connect_us\":",
            slow.address
        ),
        ",\"upstream_first_byte_us\":".to_owned(),
        ",\"upstream_duration_us\":".to_owned(),
    ] {
        assert!(slow_line.contains(&expect), "{slow_line}");
    }
    assert!(!json.lines().next().unwrap().contains("upstream"), "{json}");
}

#[test]
fn the_access_log_tells_what_the_cache_did() {
    let fresh = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Say(fresh)]]);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let server = TestServer::run(&format!(
        "access-log \"{}\" format=\"{{method}} {{cache_status}} {{upstream_status}}\"\nsite {{\n listen \"127.0.0.1:0\"\n\
         forward \"http://{}\" {{ cache {{}} }}\n}}\nserver {{ workers 1 }}\n",
        log.display(),
        upstream.address
    ));
    for method in ["GET", "GET", "POST"] {
        ask(&server, &format!("{method} / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
    }
    assert_eq!(lines_of(&log, 3), ["GET miss 200", "GET hit -", "POST bypass 200"]);
}

#[test]
fn the_servers_log_tells_which_server_failed_and_why() {
    let rejected = REFUSED;
    let closing = ScriptedUpstream::start(vec![vec![Await(HEAD), Say("")]]);
    let silent = ScriptedUpstream::start(vec![vec![Await("never")]]);
    let broken =
        ScriptedUpstream::start(vec![vec![Await(HEAD), Say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")]]);
    let foreign = ScriptedUpstream::start(vec![vec![Await(HEAD), Say("SSH-2.0-x\r\n")]]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let (a, b, c, d) = (closing.address, silent.address, broken.address, foreign.address);
    let config = format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward \"http://{rejected}\" path=\"/refused\"\n\
         forward \"http://{a}\" path=\"/closing\"\n forward \"http://{b}\" path=\"/silent\" {{ first-byte-timeout \"200ms\" }}\n\
         forward \"http://{c}\" path=\"/broken\"\n forward \"http://{d}\" path=\"/foreign\"\n}}\nserver {{ workers 1 }}\n"
    );
    std::fs::write(file.path(), config).unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = tailcoat();
    command.arg("run").arg("-c").arg(file.path()).stdout(std::process::Stdio::null());
    let child = command.stderr(log.reopen().unwrap()).spawn().unwrap();
    let _child = Killed(child);
    let mut seen = 0;
    // As root, the server logs a warning first.
    let address: std::net::SocketAddr = loop {
        let all = lines_of(log.path(), seen + 1);
        seen += 1;
        if let Some((_, address)) = all[seen - 1].split_once("listening on ") {
            break address.parse().unwrap();
        }
    };
    for (path, expect) in [
        (
            "/refused",
            vec![format!(
                "{rejected} reason=\"cannot connect: connection refused\" request=\"GET /refused HTTP/1.1\" client=127.0.0.1"
            )],
        ),
        (
            "/closing",
            vec![format!(
                "{a} reason=\"closed the connection without a response\" request=\"GET /closing HTTP/1.1\" client=127.0.0.1"
            )],
        ),
        (
            "/silent",
            vec![format!("{b} reason=\"sent no response in time\" request=\"GET /silent HTTP/1.1\" client=127.0.0.1")],
        ),
        ("/broken", vec![format!("{c} reason=\"unexpected end of file\" request=\"GET /broken HTTP/1.1\"")]),
        ("/foreign", vec![" request=\"GET /foreign HTTP/1.1\" client=127.0.0.1".to_owned()]),
    ] {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        std::io::Write::write_all(&mut stream, get(path).as_bytes()).unwrap();
        read_all(&mut stream);
        let all = lines_of(log.path(), seen + expect.len());
        for expect in expect {
            let line = &all[seen];
            assert!(line.contains(" warning: ") && line.ends_with(&expect), "{path}: {line}");
            seen += 1;
        }
    }
}

/// A failed request is one line. Servers that failed before another one got the request have lines of their own.
#[test]
fn one_failure_is_logged_once() {
    // Bound and not listening: each connect fails, and no other test gets the port.
    let sockets: [_; 2] = std::array::from_fn(|_| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket
    });
    let refused = sockets.each_ref().map(|socket| socket.local_addr().unwrap().as_socket().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    drop(std::os::unix::net::UnixListener::bind(path("unused.sock")).unwrap());
    let server = TestServer::run(&format!(
        "upstream \"app\" {{\n server \"http://{}\"\n server \"http://{}\"\n balance \"round-robin\"\n }}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"app\" path=\"/two\"\n forward \"unix:{}\" path=\"/missing\"\n\
         fastcgi \"*.php\" \"unix:{}\"\n }}\nserver {{ workers 1 }}\n",
        refused[0],
        refused[1],
        path("missing.sock"),
        path("unused.sock")
    ));
    for target in ["/two", "/missing", "/a.php"] {
        let answered = ask(&server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        assert!(answered.starts_with("HTTP/1.1 502"), "{target}: {answered}");
    }
    let lines: Vec<_> = server.end_with_log().into_iter().filter(|line| line.contains(" warning: ")).collect();
    let lines: Vec<_> = lines.iter().filter(|line| !line.contains("runs as root")).collect();
    let expect = [
        vec!["connecting to upstream server failed: server=http://127.0.0.1:".to_owned()],
        vec![
            "upstream request failed: upstream=app server=http://127.0.0.1:".to_owned(),
            "reason=\"cannot connect: connection refused\" request=\"GET /two HTTP/1.1\" client=127.0.0.1".to_owned(),
        ],
        vec![
            format!("upstream request failed: upstream=unix:{} reason=\"no such socket\"", path("missing.sock")),
            " client=127.0.0.1; is the application running, ".to_owned(),
        ],
        vec![
            format!("upstream=unix:{} reason=\"no process listens on the socket\"", path("unused.sock")),
            " client=127.0.0.1; is the application running?".to_owned(),
        ],
    ];
    assert_eq!(lines.len(), expect.len(), "{lines:#?}");
    for (line, expect) in lines.iter().zip(expect) {
        assert!(expect.iter().all(|part| line.contains(part.as_str())), "{line}: {expect:?}");
    }
}

/// Process that ends with the test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // A failure here would only hide the finding of the test.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn busy_servers_say_when_to_come_again() {
    let upstream = ScriptedUpstream::start(vec![vec![Await(HEAD), Await("never")]]);
    let server = TestServer::run(&format!(
        "upstream \"app\" {{\n server \"http://{}\"\n connections-max 1\n queue-max 0\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"app\"\n}}\nserver {{ workers 1 }}\n",
        upstream.address
    ));
    let mut first = server.connect();
    std::io::Write::write_all(&mut first, get("/").as_bytes()).unwrap();
    upstream.await_received(HEAD);
    let answer = ask(&server, &get("/"));
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    // Random, so that clients don't all return at once.
    assert!((1..=3).any(|seconds| answer.contains(&format!("\r\nRetry-After: {seconds}\r\n"))), "{answer}");
}

#[test]
fn whether_an_answer_was_complete_is_logged_and_which_request_it_was() {
    let whole = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok";
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    for (answer, word) in [(whole, "complete"), (cut, "aborted")] {
        let upstream = ScriptedUpstream::start(vec![vec![Await("\r\n\r\n"), Say(answer)]]);
        let mut server = TestServer::run(&format!(
            "access-log \"{}\" format=\"{{status}} {{completion}} {{request_id}}\"\nsite {{\n listen \"127.0.0.1:0\"\n\
             forward \"http://{}\"\n request-header \"X-Id\" \"{{request_id}}\"\n}}\n",
            log.display(),
            upstream.address
        ));
        ask(&server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        server.signal("TERM");
        assert!(server.wait());
        let seen = upstream.connection();
        let id = seen.lines().find_map(|line| line.strip_prefix("X-Id: ")).unwrap();
        assert_eq!(std::fs::read_to_string(&log).unwrap(), format!("200 {word} {id}\n"));
        std::fs::remove_file(&log).unwrap();
    }
}
