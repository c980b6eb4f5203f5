//! Everyday features with programs of other projects, and with all versions of HTTP.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::function_server::{FunctionServer, response};
use crate::support::operated::Operated;
use crate::support::port::free_port;
use crate::support::real_server::is_installed;
use crate::support::skips::skip_without;
use crate::support::tls::TestCa;
use crate::support::versions::{AnyVersion, versions};
use crate::support::waiting::eventually;
use crate::support::{TestServer, ask};

fn get(server: &TestServer, target: &str, fields: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n"))
}

/// Format that the manual gives.
const GOACCESS_FORMAT: &str = "%d %t %h %e %m %U %q %H %v %s %b %T \"%u\" \"%R\" %^";

#[test]
fn logs_of_w3c_are_read_by_goaccess() {
    if !is_installed("goaccess") {
        return skip_without("goaccess");
    }
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n respond \"/missing\" 404\n respond \"*\" 200 \"content\"\n \
         access-log \"{}\" format=\"w3c\"\n}}\n",
        log.display()
    ));
    for target in ["/", "/page?a=b%20c", "/missing", "/%22quoted%22"] {
        get(&server, target, "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nReferer: https://other.example/a\r\n");
    }
    get(&server, "/without-fields", "");
    eventually("all requests are logged", || {
        fs::read_to_string(&log).unwrap_or_default().lines().filter(|line| !line.starts_with('#')).count() == 5
    });
    let report = directory.path().join("report.json");
    let output = Command::new("goaccess")
        .args([
            "--no-global-config",
            "--date-format=%Y-%m-%d",
            "--time-format=%T",
            "--log-format",
            GOACCESS_FORMAT,
            "-o",
        ])
        .args([&report, &log])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let general = &report["general"];
    assert_eq!((&general["valid_requests"], &general["failed_requests"]), (&5.into(), &0.into()), "{general}");
    let statuses = report["status_codes"]["data"].to_string();
    assert!(statuses.contains("\"4") && statuses.contains("404"), "{statuses}");
}

#[test]
fn a_syslog_over_tls() {
    if !is_installed("openssl") {
        return skip_without("openssl");
    }
    let directory = tempfile::tempdir().unwrap();
    let (authority, port) = (TestCa::new(), free_port());
    fs::write(directory.path().join("ca.pem"), authority.pem()).unwrap();
    authority.sign(&["localhost"]).write(directory.path(), "localhost");
    let mut command = Command::new("openssl");
    command.args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{port}"), "-cert", "localhost.pem"]);
    command.args(["-key", "localhost.key"]).current_dir(directory.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut collector = command.stdin(Stdio::piped()).spawn().unwrap();
    eventually("the collector listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n respond \"*\" 200\n access-log \"syslog+tls://localhost:{port}/local0\" \
         ca-file=\"{}/ca.pem\" format=\"{{target}}|end\"\n}}\n",
        directory.path().display()
    ));
    get(&server, "/over-tls", "");
    let mut output = BufReader::new(collector.stdout.take().unwrap());
    let mut message = Vec::new();
    while !message.ends_with(b"/over-tls|") {
        assert!(output.read_until(b'|', &mut message).unwrap() > 0, "{}", String::from_utf8_lossy(&message));
    }
    let message = String::from_utf8_lossy(&message).into_owned();
    let (length, rest) = message.split_once(' ').unwrap();
    assert!(length.parse::<usize>().unwrap() == rest.len() + "end".len() && rest.starts_with("<134>1 "), "{message}");
    let _ = collector.kill();
    let _ = collector.wait();
}

/// Time is what is tested: a response takes at least as long as its rate says.
#[test]
fn all_versions_of_http_have_a_maximum_rate() {
    let content = "x".repeat(192 << 10);
    let options = format!("connection-rate-max \"64KiB\"\n respond \"/\" 200 \"{content}\"\n");
    let Some(server) = AnyVersion::start(&options, "") else { return };
    std::thread::scope(|scope| {
        for version in versions() {
            let (server, content) = (&server, &content);
            scope.spawn(move || {
                let began = Instant::now();
                let answer = server.ask(version, "/", &[]);
                let took = began.elapsed();
                assert_eq!((answer.status, answer.content.len()), (200, content.len()), "{version:?}");
                assert!(took >= Duration::from_millis(2_000), "{version:?}: {took:?}");
            });
        }
    });
}

/// Issue 23: a reload promised that an upgrade would apply another user, and then the upgrade failed.
#[test]
fn another_user_waits_for_a_restart() {
    let saying = "site {\n listen \"127.0.0.1:0\"\n respond \"*\" 200 \"here\"\n}\n";
    let mut operated = Operated::start(saying);
    operated.write_config(saying);
    let text = operated.file("tailcoat.kdl").replace("server {\n", "server {\n user \"nobody\"\n");
    fs::write(operated.path().join("tailcoat.kdl"), text).unwrap();
    let output = operated.order(&["reload"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "warning: `user` changes when the server is restarted, not with an upgrade\n");
    operated.upgrade();
    assert!(get(&operated.server, "/", "").ends_with("here"));
}

/// Issue 23: an upstream none of whose requests succeeded was shown as up.
#[test]
fn upstreams_that_fail_are_shown() {
    // No process listens there.
    let gone = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let operated = Operated::start(&format!("site {{\n listen \"127.0.0.1:0\"\n forward \"http://{gone}\"\n}}\n"));
    let overview = || {
        let output = operated.order(&["status"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let fail = || assert!(get(&operated.server, "/", "").starts_with("HTTP/1.1 502 "));
    fail();
    let text = overview();
    assert!(text.contains("0 of 1 servers up, 1 failing"), "{text}");
    // The server is ejected then.
    (0..3).for_each(|_| fail());
    let text = overview();
    assert!(text.contains("0 of 1 servers up"), "{text}");
}

/// Issue 23: `permission denied` of a socket had no advice.
#[test]
fn a_socket_without_permission_has_advice() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = directory.path().join("php.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o000)).unwrap();
    fs::write(directory.path().join("index.php"), "<?php").unwrap();
    let operated = Operated::start(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{0}\"\n fastcgi \"*.php\" \"unix:{1}\"\n}}\n",
        directory.path().display(),
        socket.display()
    ));
    assert!(get(&operated.server, "/index.php", "").starts_with("HTTP/1.1 502 "));
    eventually("the advice is logged", || {
        operated.file("errors.log").contains("give this server's user write permission for the socket")
    });
}

/// Apache's rules after a front controller reject what exists; the application has all other URLs.
#[test]
fn what_exists_is_forbidden() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("closed/inner")).unwrap();
    for name in ["closed/a.txt", "closed/page.html", "closed/inner/b.php", "open.txt"] {
        fs::write(directory.path().join(name), "file").unwrap();
    }
    let next = FunctionServer::start(|_| response("200 OK", "", "next"));
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{0}\"\n extensions \"html\"\n files \"/closed/*\" {{ forbidden }}\n forward \"http://{1}\"\n}}\n",
        directory.path().display(),
        next.address
    ));
    let check = |method: &str, target: &str, status: &str, content: &str| {
        let answer = ask(&server, &format!("{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {target}: {answer}");
        assert!(answer.ends_with(content), "{method} {target}: {answer}");
    };
    for _ in 0..2 {
        for target in ["/closed/a.txt", "/closed/%61.txt?x", "/closed//a.txt", "/closed/inner", "/closed/inner/"] {
            check("GET", target, "403", "");
            check("POST", target, "403", "");
        }
        // A file that would be found with its extension.
        check("GET", "/closed/page", "403", "");
        // A script with a path after it.
        check("GET", "/closed/inner/b.php/c/d", "403", "");
        check("DELETE", "/closed/", "403", "");
        check("GET", "/closed/missing", "200", "next");
        check("GET", "/closed/inner/missing/deep", "200", "next");
        check("POST", "/closed/missing", "200", "next");
        check("GET", "/open.txt", "200", "file");
    }
}

#[test]
fn directories_without_an_index() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("index.html"), "page").unwrap();
    fs::create_dir(directory.path().join("empty")).unwrap();
    let server = |options: &str| {
        TestServer::run(&format!(
            "site {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n {options}\n}}\n",
            directory.path().display()
        ))
    };
    let check = |options: &str, target: &str, expect: &str| {
        let answer = get(&server(options), target, "");
        assert!(answer.starts_with(&format!("HTTP/1.1 {expect} ")), "{options} {target}: {answer}");
    };
    check("fallback \"/index.html\"", "/empty/", "200");
    for options in
        ["require-index\n fallback \"/index.html\"", "require-index\n rewrite \"*\" \"/index.html\" missing=on"]
    {
        check(options, "/empty/", "403");
        check(options, "/empty", "301");
        check(options, "/missing", "200");
        check(options, "/", "200");
    }
    // The next handler gets no directory that exists.
    let next = FunctionServer::start(|_| response("200 OK", "", "next"));
    let forward = format!("forward \"http://{}\"", next.address);
    check(&forward, "/empty/", "200");
    check(&format!("require-index\n {forward}"), "/empty/", "403");
    check(&format!("require-index\n {forward}"), "/missing/", "200");
    check("require-index\n browse", "/empty/", "200");
    // Without names of index files, directories are like missing files.
    check(&format!("index\n {forward}"), "/empty", "200");
    check("index\n fallback \"/index.html\"", "/empty", "200");
    check("index", "/empty", "404");
    check("index\n browse", "/empty", "301");
}
