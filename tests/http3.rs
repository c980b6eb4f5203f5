//! HTTP/3, with aioquic as the client. The tests of `versions` have more requests.

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::support::h3::{H3Session, has_client};
use crate::support::operated::Operated;
use crate::support::port::free_port;
use crate::support::tls::TestCa;
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::waiting::eventually;

const HTTP3: &str = "server {\n http-versions \"1.1\" \"2\" \"3\"\n}\n";

/// Length of content that needs more than the first window.
const LARGE_BYTES: usize = 3 << 20;

/// Server with two workers.
pub(crate) struct H3Server {
    pub(crate) operated: Operated,
    pub(crate) port: u16,
}

/// Upstream that answers requests whose content ends with `END`.
fn upstream() -> ScriptedUpstream {
    ScriptedUpstream::start(vec![vec![
        ScriptStep::Read("END"),
        ScriptStep::Write("HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nreceived"),
    ]])
}

/// Option that proxies to an upstream.
fn forward(upstream: &ScriptedUpstream) -> String {
    format!("forward \"http://{}\" {{\n  body-bytes-max \"8MiB\"\n }}", upstream.address)
}

impl H3Server {
    /// Starts a server with HTTP/3, unless there is no client.
    #[track_caller]
    pub(crate) fn start(options: &str) -> Option<Self> {
        Self::start_with("", options)
    }

    /// Starts a server as [`start`](Self::start) does, with further sections of the configuration.
    #[track_caller]
    pub(crate) fn start_with(sections: &str, options: &str) -> Option<Self> {
        if !has_client() {
            return None;
        }
        let (directory, port) = (certificate(), free_port());
        let operated = Operated::start_in(directory, &config(&format!("{HTTP3}{sections}"), port, options));
        Some(Self { operated, port })
    }

    /// Applies other options.
    pub(crate) fn reload(&self, options: &str) {
        self.operated.reload(&config(HTTP3, self.port, options));
    }

    /// Opens a connection.
    pub(crate) fn connect(&self) -> H3Session {
        H3Session::connect(address(self.port), &self.authority())
    }

    fn authority(&self) -> PathBuf {
        self.operated.path().join("ca.pem")
    }
}

/// Directory with a certificate for `localhost`.
fn certificate() -> TempDir {
    let (directory, authority) = (tempfile::tempdir().unwrap(), TestCa::new());
    std::fs::write(directory.path().join("ca.pem"), authority.pem()).unwrap();
    authority.sign(&["localhost"]).write(directory.path(), "localhost");
    directory
}

fn config(server: &str, port: u16, options: &str) -> String {
    let certificate = "certificate \"@DIR@/localhost.pem\" key=\"@DIR@/localhost.key\"";
    format!("{server}site {{\n listen \"127.0.0.1:{port}\" tls=on\n {certificate}\n {options}\n}}\n")
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[test]
fn on_by_default() {
    for (server, is_on) in [("", true), (HTTP3, true), ("server {\n http-versions \"1.1\" \"2\"\n}\n", false)] {
        let port = free_port();
        let _operated = Operated::start_in(certificate(), &config(server, port, "respond \"/\" 200 \"ok\""));
        assert_eq!(UdpSocket::bind(address(port)).is_err(), is_on, "{server}");
    }
}

/// Alt-Svc of a response, which must be the same in HTTP/1.1 and HTTP/2.
fn alternative(server: &Operated, url: &str) -> Vec<String> {
    let all = ["--http1.1", "--http2"].map(|version| {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*", version])
            .args(["--dump-header", "-", "--output", "/dev/null", "--cacert"])
            .arg(server.path().join("ca.pem"))
            .args(["--ipv4", url])
            .output()
            .unwrap();
        assert!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr));
        let head = String::from_utf8(output.stdout).unwrap();
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        let values = lines.filter(|(name, _)| name.eq_ignore_ascii_case("Alt-Svc"));
        values.map(|(_, value)| value.to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(all[0], all[1], "{url}");
    all.into_iter().next().unwrap()
}

#[test]
fn responses_over_tls_tell_of_it() {
    let fields = "Cache-Control: max-age=100\r\nContent-Length: 1\r\nAlt-Svc: h3=\":1\"\r\nConnection: close";
    let respond = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\nx");
    let upstream = ScriptedUpstream::start(vec![vec![ScriptStep::Read("\r\n\r\n"), ScriptStep::Write(respond.leak())]]);
    let (directory, port, plain) = (certificate(), free_port(), free_port());
    for name in ["file", "own"] {
        let path = directory.path().join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), "file").unwrap();
    }
    let options = format!(
        "listen \"127.0.0.1:{plain}\"\n root \"@DIR@\"\n respond \"/fixed\" 200 \"ok\"\n \
         response-header \"/own/*\" \"Alt-Svc\" \"clear\"\n forward \"http://{}\" path=\"/up/*\" {{\n cache\n}}",
        upstream.address
    );
    let server = Operated::start_in(directory, &config("", port, &options));
    let told = [format!("h3=\":{port}\"; ma=86400")];
    for _ in 0..2 {
        for path in ["/file/file", "/fixed", "/missing", "/up/a"] {
            assert_eq!(alternative(&server, &format!("https://localhost:{port}{path}")), told, "{path}");
            assert_eq!(alternative(&server, &format!("http://localhost:{plain}{path}")), [""; 0], "{path}");
        }
        for path in ["/own/file", "/own/missing"] {
            assert_eq!(alternative(&server, &format!("https://localhost:{port}{path}")), ["clear"], "{path}");
        }
    }
}

#[test]
fn a_udp_port_in_use_costs_http3_only() {
    let port = free_port();
    let udp = UdpSocket::bind(address(port)).unwrap();
    let config = config("", port, "respond \"/\" 200 \"ok\"");
    let server = Operated::start_in(certificate(), &config);
    eventually("the log tells", || server.file("errors.log").contains("UDP port"));
    let url = format!("https://localhost:{port}/");
    assert_eq!(alternative(&server, &url), [""; 0]);
    drop(udp);
    server.reload(&config);
    assert_eq!(alternative(&server, &url), [format!("h3=\":{port}\"; ma=86400")]);
    if has_client() {
        assert_eq!(H3Session::connect(address(port), &server.path().join("ca.pem")).order("get /"), "200 ok");
    }
}

#[test]
fn a_site_with_older_cipher_suites_costs_its_own_http3_only() {
    let port = free_port();
    let site = |name: &str, option: &str| {
        let site = config("", port, &format!("respond \"/\" 200 \"ok\"\n {option}"));
        site.replacen("site {", &format!("site \"{name}\" {{"), 1)
    };
    let older = site("127.0.0.1", "tls-cipher-suites \"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256\"");
    let server = Operated::start_in(certificate(), &format!("{older}{}", site("localhost", "")));
    let told = [format!("h3=\":{port}\"; ma=86400")];
    let url = format!("https://localhost:{port}/");
    assert_eq!(alternative(&server, &url), told);
    eventually("the log tells", || server.file("errors.log").contains("with TLS and HTTP/3"));
    let explained = String::from_utf8(server.order(&["explain", &url]).stdout).unwrap();
    assert!(explained.contains(&format!("127.0.0.1:{port} with TLS and HTTP/3")), "{explained}");
    if has_client() {
        assert_eq!(H3Session::connect(address(port), &server.path().join("ca.pem")).order("get /"), "200 ok");
    }
}

#[test]
fn requests_and_uploads_are_forwarded() {
    let upstream = upstream();
    let Some(server) = H3Server::start(&forward(&upstream)) else { return };
    let mut session = server.connect();
    for bytes in [0, 1, LARGE_BYTES] {
        assert_eq!(session.order(&format!("post /upload {bytes}")), "200 received", "{bytes}");
        let input = upstream.connection();
        assert!(input.starts_with("POST /upload HTTP/1.1\r\n"), "{bytes}");
        let (_, content) = input.split_once("\r\n\r\n").unwrap();
        let count = content.bytes().filter(|byte| *byte == b'x').count();
        assert!(count == bytes && content.contains("END"), "{bytes}: {count}");
    }
}

/// A client puts a field into the dynamic table of QPACK, and then refers to it.
#[test]
fn repeated_fields_are_sent_once() {
    let value = "a-field-of-more-than-forty-bytes-for-all-requests";
    let handlers = format!("respond \"/\" 200 \"known\" field=\"X-Told: {value}\"\n respond \"/\" 200 \"unknown\"");
    let Some(server) = H3Server::start(&handlers) else { return };
    let mut session = server.connect();
    let mut head_bytes = |value: &str, expect: &str| {
        let response = session.order(&format!("tell / {value}"));
        let bytes = response.strip_prefix(expect).unwrap_or_else(|| panic!("{value}: {response}"));
        bytes.parse::<usize>().unwrap()
    };
    let first_bytes = head_bytes(value, "200 known ");
    // The client inserts a field when it sees it again, and may wait for an acknowledgment.
    eventually("the head is shorter", || head_bytes(value, "200 known ") + 30 < first_bytes);
    head_bytes("another", "200 unknown ");
}

#[test]
fn logs_and_upstreams_see_the_cipher_suite() {
    let upstream = upstream();
    let rule = "request-header \"X-Tls\" \"{tls_version} {tls_cipher_suite} {tls_server_name}\"";
    let log = "access-log \"@DIR@/access.log\" format=\"{tls_version} {tls_cipher_suite} {tls_server_name}\"\n";
    let Some(server) = H3Server::start_with(log, &format!("{rule}\n {}", forward(&upstream))) else { return };
    assert_eq!(server.connect().order("post /upload 1"), "200 received");
    let expect = "TLSv1.3 TLS13_AES_256_GCM_SHA384 localhost";
    let input = upstream.connection();
    assert!(input.contains(&format!("\r\nX-Tls: {expect}\r\n")), "{input}");
    eventually("the line is written", || server.operated.file("access.log").lines().any(|line| line == expect));
}

#[test]
fn connections_of_a_client_are_traced() {
    let Some(server) = H3Server::start("respond \"/\" 200 \"ok\"") else { return };
    let mut command = crate::support::tailcoat();
    command.args(["log", "quic", "127.0.0.1", "--socket"]).arg(server.operated.path().join("control.sock"));
    let mut trace = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let (sender, records) = std::sync::mpsc::channel();
    let stdout = std::io::BufReader::new(trace.stdout.take().unwrap());
    std::thread::spawn(move || {
        for line in std::io::BufRead::lines(stdout).map_while(Result::ok) {
            let record = line.strip_prefix('\u{1e}').expect("a record separator (RFC 7464)");
            let _ = sender.send(serde_json::from_str::<serde_json::Value>(record).expect("JSON"));
        }
    });
    // Only connections that begin after the order arrived are traced.
    let mut shown = Vec::new();
    eventually("packets are traced", || {
        assert_eq!(server.connect().order("get /"), "200 ok");
        shown.extend(records.try_iter());
        let is_received =
            |record: &serde_json::Value| record["name"].as_str().is_some_and(|name| name.ends_with("packet_received"));
        let is_in_1rtt = |record: &serde_json::Value| record["data"]["header"]["packet_type"] == "1RTT";
        shown.iter().any(is_received) && shown.iter().any(is_in_1rtt)
    });
    trace.kill().unwrap();
    trace.wait().unwrap();
    assert!(shown[0]["qlog_version"].is_string(), "{}", shown[0]);
    let rejected = server.operated.order(&["log", "quic", "127.0.0.1/33"]);
    assert!(!rejected.status.success());
}

#[test]
fn many_workers_share_a_port_and_clients_may_move() {
    let Some(server) = H3Server::start("respond \"/\" 200 \"ok\"") else { return };
    // The kernel chooses a worker by the client's port.
    for _ in 0..6 {
        let mut session = server.connect();
        assert_eq!(session.order("get /"), "200 ok");
        for _ in 0..3 {
            assert_eq!(session.order("move"), "moved");
            assert_eq!(session.order("get /"), "200 ok");
        }
    }
}

#[test]
fn a_reload_keeps_connections() {
    let Some(server) = H3Server::start("respond \"/\" 200 \"first\"") else { return };
    let mut session = server.connect();
    assert_eq!(session.order("get /"), "200 first");
    for (workers, text) in [(2, "second"), (1, "third"), (3, "fourth"), (3, "fifth")] {
        let config = config(HTTP3, server.port, &format!("respond \"/\" 200 \"{text}\""));
        server.operated.write_config(&config);
        let file = server.operated.path().join("tailcoat.kdl");
        let config = std::fs::read_to_string(&file).unwrap().replace("workers 2", &format!("workers {workers}"));
        std::fs::write(file, config).unwrap();
        assert!(server.operated.order(&["reload"]).status.success());
        if workers != 2 {
            // A worker that leaves closes its connections.
            session = server.connect();
        }
        assert_eq!(session.order("get /"), format!("200 {text}"), "{workers} workers");
        for _ in 0..4 {
            assert_eq!(server.connect().order("get /"), format!("200 {text}"), "{workers} workers");
        }
    }
}

#[test]
fn a_drain_completes_requests() {
    let upstream = upstream();
    let options = format!("{}\n respond \"/fixed\" 200 \"ok\"", forward(&upstream));
    let Some(mut server) = H3Server::start(&options) else { return };
    let (mut idle, mut busy) = (server.connect(), server.connect());
    assert_eq!(idle.order("get /fixed"), "200 ok");
    busy.order("begin /");
    upstream.await_received("BEGIN");
    server.operated.server.signal("TERM");
    // H3_NO_ERROR
    assert_eq!(idle.order("await-end"), "closed 256");
    assert_eq!(busy.order("finish"), "200 received");
    assert_eq!(busy.order("await-end"), "closed 256");
    assert!(server.operated.server.wait());
}

#[test]
fn a_drain_completes_late_rejections() {
    let upstream = upstream();
    // The client is silent for longer than the server lingers.
    let limits = "limits {\n body-timeout \"1s\"\n linger-timeout \"50ms\"\n}\n";
    let Some(mut server) = H3Server::start_with(limits, &forward(&upstream)) else { return };
    let mut session = server.connect();
    session.order("begin /");
    upstream.await_received("BEGIN");
    server.operated.server.signal("TERM");
    assert_eq!(session.order("await-response"), "408");
    assert_eq!(session.order("await-end"), "closed 256");
    assert!(server.operated.server.wait());
}

#[test]
fn after_a_failed_upgrade_clients_reach_the_old_process() {
    let Some(server) = H3Server::start("respond \"/\" 200 \"ok\"") else { return };
    let mut session = server.connect();
    server.operated.replace_binary(Some("#!/bin/sh\nexit 1\n"));
    assert!(!server.operated.order(&["upgrade"]).status.success());
    assert_eq!(session.order("get /"), "200 ok");
    assert_eq!(server.connect().order("get /"), "200 ok");
}

#[test]
fn an_upgrade_completes_requests() {
    let upstream = upstream();
    let options = format!("{}\n respond \"/fixed\" 200 \"ok\"", forward(&upstream));
    let Some(mut server) = H3Server::start(&options) else { return };
    for _ in 0..3 {
        let old = *server.operated.running().last().unwrap();
        let (mut idle, mut busy) = (server.connect(), server.connect());
        assert_eq!(idle.order("get /fixed"), "200 ok");
        busy.order("begin /");
        upstream.await_received("BEGIN");
        server.operated.upgrade();
        assert_eq!(idle.order("await-end"), "closed 256");
        for _ in 0..4 {
            assert_eq!(server.connect().order("get /fixed"), "200 ok");
        }
        assert!(Operated::is_running(old));
        assert_eq!(busy.order("finish"), "200 received");
        assert_eq!(busy.order("await-end"), "closed 256");
        eventually("the old process ends", || !Operated::is_running(old));
    }
}

/// A process uses a bank of sockets, of which there are eight. An upgrade must not take that of a process which still has
/// connections.
#[test]
fn more_upgrades_than_banks_keep_a_connection() {
    let upstream = upstream();
    // The uploads pause until the last upgrade is done.
    let limits = "limits {\n body-timeout \"10m\"\n}\n";
    let Some(mut server) = H3Server::start_with(limits, &forward(&upstream)) else { return };
    let mut sessions = [server.connect(), server.connect()];
    for session in &mut sessions {
        session.order("begin /");
        upstream.await_received("BEGIN");
    }
    for number in 0..18 {
        server.operated.upgrade();
        for session in &mut sessions {
            assert_eq!(session.order("move"), "moved");
            for _ in 0..4 {
                assert_eq!(session.order("ping"), "pong", "upgrade {number}");
            }
        }
        let last_two = || server.operated.running().len() <= 2;
        eventually("processes without connections end", last_two);
    }
    for session in &mut sessions {
        assert_eq!(session.order("finish"), "200 received");
    }
}

#[test]
fn clients_of_a_process_that_was_killed_get_a_reset() {
    let upstream = upstream();
    let Some(mut server) = H3Server::start(&forward(&upstream)) else { return };
    let mut sessions: Vec<_> = (0..4).map(|_| server.connect()).collect();
    for session in &mut sessions {
        session.order("begin /");
        upstream.await_received("BEGIN");
    }
    let old = server.operated.running()[0];
    server.operated.upgrade();
    assert_eq!(sessions[0].order("ping"), "pong");
    server.operated.server.signal("KILL");
    eventually("the old process ends", || !Operated::is_running(old));
    for session in &mut sessions {
        assert_eq!(session.order("ping"), "closed reset");
    }
}

#[test]
fn a_reload_closes_and_opens_udp_sockets() {
    let upstream = upstream();
    let options = format!("{}\n respond \"/fixed\" 200 \"ok\"", forward(&upstream));
    let Some(server) = H3Server::start(&options) else { return };
    let (first, second) = (server.port, free_port());
    let connect = |port: u16| H3Session::connect(address(port), &server.authority());
    let reload = |port: u16| server.operated.reload(&config(HTTP3, port, &options));
    let is_free = |port: u16| UdpSocket::bind(address(port)).is_ok();
    let (mut idle, mut busy) = (connect(first), connect(first));
    assert_eq!(idle.order("get /fixed"), "200 ok");
    busy.order("begin /");
    upstream.await_received("BEGIN");
    reload(second);
    assert_eq!(connect(second).order("get /fixed"), "200 ok");
    assert_eq!(idle.order("await-end"), "closed 256");
    assert!(!is_free(first), "a connection needs the socket");
    // The address comes back while its connections end.
    reload(first);
    assert_eq!(connect(first).order("get /fixed"), "200 ok");
    eventually("the second address is closed", || is_free(second));
    assert_eq!(busy.order("finish"), "200 received");
    assert_eq!(busy.order("await-end"), "closed 256");
    reload(second);
    eventually("the first address is closed", || is_free(first));
    assert_eq!(connect(second).order("get /fixed"), "200 ok");
    // Without HTTP/3, the TCP socket stays.
    let without = "server {\n http-versions \"1.1\" \"2\"\n}\n";
    let mut last = connect(second);
    server.operated.reload(&config(without, second, &options));
    assert_eq!(last.order("await-end"), "closed 256");
    eventually("the UDP sockets are closed", || is_free(second));
    reload(second);
    assert_eq!(connect(second).order("get /fixed"), "200 ok");
}

#[test]
fn a_client_sees_that_a_handler_is_at_work() {
    // Longer than the client's idle timeout.
    let upstream = ScriptedUpstream::start(vec![vec![
        ScriptStep::Read("END"),
        ScriptStep::Pause(24_000),
        ScriptStep::Write("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlate"),
    ]]);
    let Some(server) = H3Server::start(&forward(&upstream)) else { return };
    let mut session = H3Session::connect_with(address(server.port), &server.authority(), 15);
    assert_eq!(session.order("post / 1"), "200 late");
}
