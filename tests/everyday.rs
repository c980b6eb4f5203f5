//! Features of ordinary sites: patterns of names, rates, choices of log lines, a syslog elsewhere, links.

use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use crate::support::h2::H2Client;
use crate::support::{TestServer, ask};

fn get(server: &TestServer, host: &str, target: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
}

#[test]
fn names_with_a_star_at_the_end() {
    let server = TestServer::run(
        "site \"exact.example\" {\n listen \"127.0.0.1:0\"\n respond \"*\" 200 \"exact\"\n}\n\
         site \"www.*\" {\n listen \"127.0.0.1:0\"\n respond \"*\" 200 \"start\"\n}\n\
         site \"*.b.example\" {\n listen \"127.0.0.1:0\"\n respond \"*\" 200 \"end\"\n}\n",
    );
    for (host, expect) in [
        ("exact.example", "exact"),
        ("www.anything.example", "start"),
        ("WWW.anything.example", "start"),
        ("www.b.example", "end"),
        ("ww.example", "exact"),
        ("www", "exact"),
    ] {
        assert!(get(&server, host, "/").ends_with(&format!("\r\n\r\n{expect}")), "{host}");
    }
}

/// Time that a response takes.
fn time(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

/// Time is what is tested: a response takes at least as long as its rate says.
#[test]
fn responses_have_a_maximum_rate() {
    let directory = tempfile::tempdir().unwrap();
    let content = "x".repeat(96 << 10);
    std::fs::write(directory.path().join("file"), &content).unwrap();
    let server = |options: &str| {
        TestServer::run(&format!(
            "server {{ workers 2 }}\nsite {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n respond \"/small\" 200 \"s\"\n {options}\n}}\n",
            directory.path().display()
        ))
    };
    let whole = |server: &TestServer| {
        let response = get(server, "h", "/file");
        assert!(response.ends_with(&content) && response.contains("ength: 98304\r\n"), "{} bytes", response.len());
    };
    let slow = server("connection-rate-max \"64KiB\"");
    // The first piece is sent at once.
    assert!(time(|| whole(&slow)) >= Duration::from_millis(1_200));
    let parts = ask(&slow, "GET /file HTTP/1.1\r\nHost: h\r\nRange: bytes=10-19\r\nConnection: close\r\n\r\n");
    assert!(parts.starts_with("HTTP/1.1 206 ") && parts.ends_with("\r\n\r\nxxxxxxxxxx"), "{parts}");
    assert!(parts.contains("ontent-Range: bytes 10-19/98304\r\n"), "{parts}");
    let head = ask(&slow, "HEAD /file HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(head.contains("ength: 98304\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(get(&slow, "h", "/small").ends_with("\r\n\r\ns"));
    // All streams of a connection share the rate.
    let mut client = H2Client::connect(&slow);
    let took = time(|| {
        let streams = [(); 2].map(|()| client.ask("GET", "/file", &[], true));
        for stream in streams {
            assert_eq!(client.finish(stream).content.len(), content.len());
        }
    });
    assert!(took >= Duration::from_millis(2_600), "{took:?}");
    let free = server("connection-rate-max \"1KiB\" after=\"1MiB\"");
    whole(&free);
    let shared = server("site-rate-max \"64KiB\"");
    let took = time(|| {
        std::thread::scope(|scope| {
            let workers = [(); 2].map(|()| scope.spawn(|| whole(&shared)));
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
    });
    assert!(took >= Duration::from_millis(2_500), "{took:?}");
}

#[test]
fn logs_of_some_requests() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().display();
    let server = TestServer::run(&format!(
        "access-log \"{at}/errors\" format=\"{{status}} {{target}} {{user_agent}}\" \
         when=\"status >= 400 or request.header.X-Debug == '1'\"\n\
         site \"a\" {{\n listen \"127.0.0.1:0\"\n respond \"/ok\" 200 \"ok\"\n}}\n\
         site \"none\" {{\n listen \"127.0.0.1:0\"\n respond \"*\" 200\n access-log \"{at}/none\" sample=0\n}}\n\
         site \"half\" {{\n listen \"127.0.0.1:0\"\n respond \"*\" 200\n access-log \"{at}/half\" sample=0.5 format=\"{{target}}\"\n}}\n"
    ));
    get(&server, "a", "/ok?1");
    get(&server, "a", "/missing");
    ask(&server, "GET /ok?2 HTTP/1.1\r\nHost: a\r\nX-Debug: 1\r\nConnection: close\r\n\r\n");
    (0..200).for_each(|_| drop(get(&server, "half", "/")));
    get(&server, "none", "/");
    get(&server, "a", "/last");
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    // The server writes all that is left before it ends.
    server.end_with_log();
    // Each worker writes its own requests, so that the order is not that of the requests.
    let errors = read("errors");
    let mut lines: Vec<&str> = errors.lines().map(|line| line.trim_end_matches(" -").trim_end()).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["200 /ok?2", "404 /last", "404 /missing"]);
    assert_eq!(read("none"), "");
    let half = read("half").lines().count();
    // 200 tosses of a coin: less than one run in a billion is outside.
    assert!((50..=150).contains(&half), "{half}");
}

#[test]
fn requests_are_logged_unless_it_is_off() {
    let log = |text: &str| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tailcoat.kdl");
        std::fs::write(&file, format!("site {{\n listen \"127.0.0.1:0\"\n respond \"*\" 200\n {text}\n}}\n")).unwrap();
        let mut command = std::process::Command::new("bash");
        let out = directory.path().join("out");
        let script = format!("exec \"$@\" > \"{}\"", out.display());
        command.args(["-c", &script, "bash"]).arg(crate::support::tailcoat().get_program()).arg("run").arg(&file);
        let server = TestServer::start(command);
        get(&server, "h", "/path");
        server.end_with_log();
        std::fs::read_to_string(out).unwrap()
    };
    assert!(log("").contains("\"GET /path HTTP/1.1\" 200 "));
    assert_eq!(log("access-log off"), "");
}

#[test]
fn a_syslog_of_another_machine() {
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let stream = TcpListener::bind("127.0.0.1:0").unwrap();
    let (udp, tcp) = (datagrams.local_addr().unwrap().port(), stream.local_addr().unwrap().port());
    let server = TestServer::run(&format!(
        "site \"a\" {{\n listen \"127.0.0.1:0\"\n respond \"*\" 200\n access-log \"syslog+udp://127.0.0.1:{udp}/local0\"\n}}\n\
         site \"b\" {{\n listen \"127.0.0.1:0\"\n respond \"*\" 200\n access-log \"syslog+tcp://localhost:{tcp}\" format=\"{{target}}\"\n}}\n"
    ));
    get(&server, "a", "/over-udp");
    let mut buffer = [0; 4_096];
    let length = datagrams.recv(&mut buffer).unwrap();
    let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
    assert!(message.starts_with("<134>1 2") && message.contains(" tailcoat "), "{message}");
    assert!(message.contains("\"GET /over-udp HTTP/1.1\" 200"), "{message}");
    get(&server, "b", "/over-tcp");
    let (mut connection, _) = stream.accept().unwrap();
    let mut frame = String::new();
    while !frame.ends_with("/over-tcp") {
        let count = connection.read(&mut buffer).unwrap();
        frame.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    let (length, message) = frame.split_once(' ').unwrap();
    assert_eq!(length.parse::<usize>().unwrap(), message.len(), "{frame}");
    // A syslog that is down costs no request anything.
    drop((connection, stream));
    for _ in 0..200 {
        assert!(get(&server, "b", "/down").starts_with("HTTP/1.1 200 "));
    }
}

#[test]
fn links_out_of_the_root() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["root", "shared", "secret"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::fs::write(at("shared/file"), "shared").unwrap();
    std::fs::write(at("secret/file"), "secret").unwrap();
    symlink(at("shared/file"), at("root/to-shared")).unwrap();
    symlink("../secret/file", at("root/to-secret")).unwrap();
    let check = |option: &str, shared: &str, secret: &str| {
        let server = TestServer::run(&format!(
            "confinement {{\n read \"{0}\"\n}}\nsite {{\n listen \"127.0.0.1:0\"\n root \"{0}/root\"\n {option}\n}}\n",
            directory.path().display()
        ));
        for (path, expect) in [("/to-shared", shared), ("/to-secret", secret), ("/to-shared", shared)] {
            let response = get(&server, "h", path);
            assert_eq!(response.split(' ').nth(1), Some(expect), "{option} {path}: {response}");
        }
    };
    check("", "403", "403");
    check("symlinks \"inside\"", "403", "403");
    check("symlinks \"owner\"", "200", "200");
    check(&format!("symlinks \"below\" \"{}\"", at("shared").display()), "200", "403");
    check("symlinks \"all\"", "200", "200");
}

/// Home pages of users, as the manual shows them.
#[test]
fn home_pages_of_users() {
    let manual = include_str!("../docs/serve-a-site.md");
    let (_, section) = manual.split_once("## Home pages of users").unwrap();
    let config = section.split("```").nth(1).unwrap().strip_prefix("kdl\n").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for (name, content) in [
        ("www/index.html", "of all"),
        ("home/ann/public_html/index.html", "of ann"),
        ("home/ann/public_html/photos/a", "photo"),
        ("home/ann/secret", "secret"),
    ] {
        std::fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        std::fs::write(at(name), content).unwrap();
    }
    symlink("/etc/passwd", at("home/ann/public_html/out")).unwrap();
    let config = config.replace("listen 8080", "listen \"127.0.0.1:0\"");
    let config = config.replace("/srv/www", &at("www").display().to_string());
    let server = TestServer::run(&config.replace("\"/home\"", &format!("\"{}\"", at("home").display())));
    for (path, status, content) in [
        ("/~ann", "302", ""),
        ("/~ann/", "200", "of ann"),
        ("/~ann/photos/a", "200", "photo"),
        ("/~ann/out", "403", ""),
        ("/~bob/", "404", ""),
        ("/~ann/../secret", "404", ""),
        ("/~ann/%2e%2e/secret", "404", ""),
        ("/~ann/..%2Fsecret", "404", ""),
        ("/.user/ann/secret", "404", ""),
        ("/.user/ann/public_html/../secret", "404", ""),
        ("/", "200", "of all"),
    ] {
        let response = get(&server, "h", path);
        assert_eq!(response.split(' ').nth(1), Some(status), "{path}: {response}");
        assert!(response.ends_with(content) && !response.contains("secret\n"), "{path}: {response}");
    }
    // A directory redirects to the path that clients know.
    let response = get(&server, "h", "/~ann/photos?a=b");
    assert!(response.contains("\r\nLocation: /~ann/photos/?a=b\r\n"), "{response}");
}

/// Without index files, a directory is like a missing file, as in `try_files $uri /index.html`.
#[test]
fn a_fallback_for_directories() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join("sub")).unwrap();
    std::fs::write(directory.path().join("sub/index.html"), "of sub").unwrap();
    std::fs::write(directory.path().join("index.html"), "of all").unwrap();
    let root = directory.path().display();
    for (index, of_sub) in [("index", ["200", "of all"]), ("", ["301", ""])] {
        let options = format!("root \"{root}\"\n{index}\nfallback \"/index.html\"");
        let server = TestServer::run(&format!("site {{\nlisten \"127.0.0.1:0\"\n{options}\n}}\n"));
        for (path, [status, content]) in [("/", ["200", "of all"]), ("/none", ["200", "of all"]), ("/sub", of_sub)] {
            let response = get(&server, "h", path);
            assert_eq!(response.split(' ').nth(1), Some(status), "{path}: {response}");
            assert!(response.ends_with(content), "{path}: {response}");
        }
        let expect = if index.is_empty() { "of sub" } else { "of all" };
        assert!(get(&server, "h", "/sub/").ends_with(expect));
    }
}

/// The pattern of a handler decides about letter case, not the prefix that it removes.
#[test]
fn a_prefix_in_any_case() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), "file a").unwrap();
    let root = directory.path().display();
    let files = |pattern: &str| format!("files \"{pattern}\" root=\"{root}\" {{\nstrip-prefix \"/dl\"\n}}");
    let server = TestServer::run(&format!(
        "site {{\nlisten \"127.0.0.1:0\"\n{}\n}}\nsite \"exact\" {{\nlisten \"127.0.0.1:0\"\n{}\n}}\n",
        files("~(?i)^/dl/"),
        files("/dl/*")
    ));
    for (host, path, status) in [
        ("h", "/dl/a", "200"),
        ("h", "/DL/a", "200"),
        ("h", "/DL/A", "404"),
        ("exact", "/dl/a", "200"),
        ("exact", "/DL/a", "404"),
    ] {
        let response = get(&server, host, path);
        assert_eq!(response.split(' ').nth(1), Some(status), "{host} {path}: {response}");
    }
}

/// A rewrite to a directory of another name redirects to the directory itself, because the client's path is a page.
#[test]
fn a_rewrite_to_another_directory() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join("new/b")).unwrap();
    let root = directory.path().display();
    let rules = "rewrite \"/old/*\" \"/new/{rest}\"\nrewrite \"/page\" \"/new/b\"";
    let server = TestServer::run(&format!("site {{\nlisten \"127.0.0.1:0\"\nroot \"{root}\"\n{rules}\n}}\n"));
    for (path, location) in [("/old/b", "/old/b/"), ("/page", "/new/b/"), ("/new", "/new/")] {
        let response = get(&server, "h", path);
        assert!(response.contains(&format!("\r\nLocation: {location}\r\n")), "{path}: {response}");
    }
}
