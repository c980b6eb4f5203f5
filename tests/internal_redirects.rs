//! Internal redirects of upstreams: `X-Accel-Redirect` and `X-Sendfile`, and paths that only they reach.

use std::io::{Read, Write};

use tempfile::TempDir;

use crate::support::fastcgi::{Act, Application, answer};
use crate::support::function_server::{FunctionServer, field, response};
use crate::support::h2_upstream::{END_HEADERS, H2Upstream, block, kind};
use crate::support::versions::AnyVersion;
use crate::support::{TestServer, ask};

/// Upstream that answers with the fields of the request's query, `+` for a space and `|` for a line break.
fn application() -> FunctionServer {
    FunctionServer::start(|head| {
        let target = head.split(' ').nth(1).unwrap_or_default();
        let fields = target.split_once('?').map_or("", |(_, query)| query).replace('+', " ").replace('|', "\r\n");
        let fields = if fields.is_empty() { fields } else { fields + "\r\n" };
        response("201 Created", &fields, "of the application")
    })
}

/// A site whose files below `/in/` are internal, and the directory above their root.
fn site(application: &FunctionServer, options: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path().join("files");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("a b.txt"), "0123456789").unwrap();
    std::fs::write(directory.path().join("secret.txt"), "secret").unwrap();
    std::os::unix::fs::symlink(directory.path().join("secret.txt"), files.join("link.txt")).unwrap();
    let path = files.display();
    let options = options.replace("FILES", files.to_str().unwrap());
    let site = format!(
        " allow \"127.0.0.1\"\n deny all\n internal \"/in/*\"\n files \"/in/*\" {{\n  root \"{path}\"\n  \
         strip-prefix \"/in\"\n }}\n respond \"/public\" 200 \"public\"\n forward \"http://{}\" {{\n {options}\n }}\n",
        application.address
    );
    (directory, site)
}

fn server(application: &FunctionServer, options: &str) -> (TempDir, TestServer) {
    let (directory, site) = site(application, options);
    (directory, TestServer::run(&format!("site {{\n listen \"127.0.0.1:0\"\n{site}}}\nserver {{ workers 1 }}\n")))
}

fn get(server: &TestServer, target: &str, fields: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n"))
}

const ALLOWED: &str = "x-accel-redirect \"/in/*\" \"/public\"";

#[test]
fn the_client_gets_the_file() {
    let application = application();
    let (_directory, server) = server(&application, ALLOWED);
    let target = "/report?X-Accel-Redirect:+/in/a%20b.txt|Content-Type:+application/pdf|Content-Disposition:+attachment\
                  |Set-Cookie:+a=1|Set-Cookie:+b=2|X-Internal:+yes|ETag:+\"other\"";
    let answer = get(&server, target, "");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n0123456789"), "{answer}");
    for line in
        ["Content-Type: application/pdf", "Content-Disposition: attachment", "Set-Cookie: a=1", "Set-Cookie: b=2"]
    {
        assert!(answer.contains(&format!("\r\n{line}\r\n")), "{line}: {answer}");
    }
    for name in ["X-Accel-Redirect", "X-Internal", "other"] {
        assert!(!answer.contains(name), "{name}: {answer}");
    }
    let answer = get(&server, target, "Range: bytes=2-4\r\n");
    assert!(answer.starts_with("HTTP/1.1 206") && answer.ends_with("\r\n\r\n234"), "{answer}");
    let tag = field(&get(&server, target, ""), "etag").to_owned();
    let answer = get(&server, target, &format!("If-None-Match: {tag}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 304") && !answer.contains("0123"), "{answer}");
    let head = ask(&server, &format!("HEAD {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    assert!(head.contains("\r\nContent-Length: 10\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    // A request with content becomes a GET.
    let post = format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc");
    assert!(ask(&server, &post).ends_with("\r\n\r\n0123456789"));
    // Other handlers can be the target as well, and it may have a query.
    assert!(get(&server, "/x?X-Accel-Redirect:+/public?a=b", "").ends_with("public"));
}

#[test]
fn only_allowed_paths_are_obeyed() {
    let application = application();
    let (_directory, server) = server(&application, ALLOWED);
    // Clients reach no internal path, however they spell it.
    for target in ["/in/a%20b.txt", "/IN/a%20b.txt", "/in/", "/%69n/a%20b.txt", "/x/../in/a%20b.txt", "//in/a%20b.txt"]
    {
        let answer = get(&server, target, "");
        assert!(answer.starts_with("HTTP/1.1 404") || answer.ends_with("of the application"), "{target}: {answer}");
        assert!(!answer.contains("0123456789"), "{target}: {answer}");
    }
    for location in ["/other", "/in/../other", "http://other/in/a%20b.txt", "in/a", "/in/%2e%2e/other", ""] {
        let answer = get(&server, &format!("/x?X-Accel-Redirect:+{location}"), "");
        assert!(answer.starts_with("HTTP/1.1 201") && answer.ends_with("of the application"), "{location}: {answer}");
        assert!(!answer.contains("X-Accel"), "{location}: {answer}");
    }
    server.await_log("internal redirect ignored");
    // Nothing leads out of the root.
    for location in ["/in/link.txt", "/in/%2e%2e%2fsecret.txt", "/in/..%2f..%2fsecret.txt", "/in/nothing"] {
        let answer =
            get(&server, &format!("/x?X-Accel-Redirect:+{location}|Content-Type:+text/css|Set-Cookie:+a=1"), "");
        assert!(!answer.contains("\r\n\r\nsecret") && !answer.starts_with("HTTP/1.1 200"), "{location}: {answer}");
    }
    // Without such a file, the next handler gets the path. Its own fields win.
    let answer = get(&server, "/x?X-Accel-Redirect:+/in/nothing|Set-Cookie:+a=1", "");
    assert!(!answer.contains("0123456789"), "{answer}");
}

#[test]
fn without_the_option_the_fields_are_removed() {
    let application = application();
    let (_directory, server) = server(&application, "");
    let answer = get(&server, "/x?X-Accel-Redirect:+/in/a%20b.txt|x-sendfile:+/etc/passwd|X-Accel-Buffering:+no", "");
    assert!(answer.starts_with("HTTP/1.1 201") && answer.ends_with("of the application"), "{answer}");
    assert!(!answer.to_lowercase().contains("x-accel-redirect") && !answer.contains("passwd"), "{answer}");
}

#[test]
fn files_by_their_names() {
    let application = application();
    let (directory, server) = server(&application, "x-sendfile \"FILES\" \"/in\"");
    let path = directory.path().display();
    let answer = get(&server, &format!("/x?X-Sendfile:+{path}/files/a+b.txt"), "");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n0123456789"), "{answer}");
    for file in [format!("{path}/secret.txt"), format!("{path}/files/../secret.txt"), "/etc/passwd".to_owned()] {
        let answer = get(&server, &format!("/x?X-Sendfile:+{file}"), "");
        assert!(answer.starts_with("HTTP/1.1 201") && answer.ends_with("of the application"), "{file}: {answer}");
    }
}

#[test]
fn redirects_in_a_circle_end() {
    let application = FunctionServer::start(|_| response("200 OK", "X-Accel-Redirect: /again\r\n", ""));
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\" {{\n x-accel-redirect \"*\"\n }}\n}}\n",
        application.address
    ));
    assert!(get(&server, "/x", "").starts_with("HTTP/1.1 500"));
    assert_eq!(application.heads().len(), 11);
}

#[test]
fn rules_apply_to_the_target() {
    let application = application();
    let (_directory, server) = server(&application, ALLOWED);
    let text = format!(
        "site {{\n listen \"127.0.0.1:0\"\n deny all path=\"/public\"\n respond \"/public\" 200 \"public\"\n \
         forward \"http://{}\" {{\n cache\n x-accel-redirect \"/public\"\n }}\n}}\n",
        application.address
    );
    drop(server);
    let server = TestServer::run(&text);
    for _ in 0..2 {
        let answer = get(
            &server,
            "/x?X-Accel-Redirect:+/public|Cache-Control:+public,max-age=600|Content-Type:+text/css|Set-Cookie:+a=1",
            "",
        );
        assert!(
            answer.starts_with("HTTP/1.1 403") && !answer.contains("text/css") && !answer.contains("max-age"),
            "{answer}"
        );
        assert!(answer.contains("Set-Cookie: a=1"), "{answer}");
    }
    // A redirect is never stored.
    assert_eq!(application.heads().len(), 2);
}

#[test]
fn all_versions_of_http() {
    let application = application();
    let (_directory, site) = site(&application, ALLOWED);
    let Some(server) = AnyVersion::start(&site, "") else { return };
    let answer = server.ask_all("/x?X-Accel-Redirect:+/in/a%20b.txt", &["--range", "1-3"]);
    assert_eq!((answer.status, answer.content.as_slice()), (206, &b"123"[..]));
    assert_eq!(server.ask_all("/in/a%20b.txt", &[]).status, 404);
}

#[test]
fn a_missing_file_is_not_found() {
    let application = application();
    let (_directory, server) = server(&application, ALLOWED);
    let answer = get(&server, "/x?X-Accel-Redirect:+/in/missing|Set-Cookie:+a=1", "");
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n") && answer.contains("\r\nSet-Cookie: a=1\r\n"), "{answer}");
    assert_eq!(application.heads().len(), 1, "the application is not asked about its own redirect");
}

#[test]
fn other_fields_for_the_server_are_removed() {
    let application = application();
    let fields =
        "X-Accel-Expires:+60|X-Accel-Limit-Rate:+1|X-Accel-Charset:+utf-8|X-Accel-Buffering:+no|x-accel-other:+1";
    for options in [ALLOWED.to_owned(), format!("{ALLOWED}\n cache")] {
        let (_directory, server) = server(&application, &options);
        for target in [format!("/x?{fields}"), format!("/x?X-Accel-Redirect:+/public|{fields}")] {
            let answer = get(&server, &target, "");
            assert!(!answer.to_ascii_lowercase().contains("x-accel"), "{answer}");
        }
    }
}

#[test]
fn a_lifetime_for_the_cache() {
    let application = application();
    let (_directory, server) = server(&application, "cache { set-cookie drop }");
    let requests = |target: &str| {
        application.heads();
        (0..3).for_each(|_| drop(get(&server, target, "")));
        application.heads().len()
    };
    let later = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 1_000;
    for (fields, expect) in [
        ("X-Accel-Expires:+60|Cache-Control:+no-cache", 1),
        (&*format!("X-Accel-Expires:+@{later}"), 1),
        ("X-Accel-Expires:+0|Cache-Control:+max-age=60", 3),
        ("X-Accel-Expires:+@1|Cache-Control:+max-age=60", 3),
        ("X-Accel-Expires:+soon|Cache-Control:+max-age=60", 1),
        ("X-Accel-Expires:+soon", 3),
    ] {
        assert_eq!(requests(&format!("/{expect}?{fields}")), expect, "{fields}");
    }
}

#[test]
fn applications_of_other_protocols() {
    const ANSWER: &str =
        "Status: 200 OK\r\nContent-Type: text/x-report\r\nX-Accel-Redirect: /in/a%20b.txt\r\n\r\nof the application";
    let unused = application();
    let (directory, files) = site(&unused, "");
    let files = &files[..files.find(" forward ").unwrap()];
    let check = |protocol: &str, address: &str| {
        let server = TestServer::run(&format!(
            "site {{\n listen \"127.0.0.1:0\"\n{files} {protocol} \"/app/*\" \"{address}\" {{\n application \"/app\"\n \
             x-accel-redirect \"/in/*\"\n }}\n}}\n"
        ));
        let answer = get(&server, "/app/report", "");
        let is_file = answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n0123456789");
        assert!(is_file && answer.contains("text/x-report") && !answer.contains("X-Accel"), "{protocol}: {answer}");
    };
    for protocol in ["scgi", "uwsgi"] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut buffer = [0; 4096];
                let count = stream.read(&mut buffer).unwrap();
                assert!(count > 0);
                stream.write_all(ANSWER.as_bytes()).unwrap();
            }
        });
        check(protocol, &address.to_string());
    }
    let fastcgi = Application::start(|_| vec![Act::Write(answer(ANSWER))]);
    check("fastcgi", &fastcgi.address.to_string());
    drop(directory);
}

#[test]
fn http2_upstreams() {
    let upstream = H2Upstream::start(|_, peer| {
        peer.greet(&[]);
        while let Some(stream) = peer.await_request() {
            let fields = [(":status", "200"), ("x-accel-redirect", "/in/a%20b.txt"), ("x-accel-expires", "1")];
            peer.write(kind::HEADERS, END_HEADERS, stream, &block(&fields));
            peer.data(stream, b"of the application", true);
        }
    });
    let unused = application();
    let (_directory, site) = site(&unused, ALLOWED);
    let site = site.replace(&format!("http://{}", unused.address), &format!("h2c://{}", upstream.address));
    let server = TestServer::run(&format!("site {{\n listen \"127.0.0.1:0\"\n{site}}}\n"));
    for _ in 0..3 {
        let answer = get(&server, "/x", "");
        assert!(answer.ends_with("\r\n\r\n0123456789") && !answer.to_ascii_lowercase().contains("x-accel"), "{answer}");
    }
}
