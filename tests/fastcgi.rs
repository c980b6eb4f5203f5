//! FastCGI: parameters that applications get, their responses, and hostile ones.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use crate::support::fastcgi::{Act, Application, FastCgiRequest, answer, end, error, output, record};
use crate::support::h2::H2Client;
use crate::support::waiting::settled;
use crate::support::{LARGE_BYTES, PATIENCE, TestServer, ask, read_all, read_until};

/// Server in front of an application, with these options of `fastcgi`.
fn front(application: SocketAddr, options: &str) -> TestServer {
    front_of_site(application, options, "")
}

/// Server in front of an application, with options of `fastcgi` and of the site.
fn front_of_site(application: SocketAddr, options: &str, of_site: &str) -> TestServer {
    TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n {of_site}\n\
         fastcgi \"/app/*\" \"{application}\" {{\n application \"/app\"\n {options}\n }}\n}}\n\
         server {{ workers 1 }}\n"
    ))
}

const GET: &str = "GET /app/a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// Parameters that an application gets for a request, without those that are always the same.
fn reported(request: &str, options: &str) -> Vec<String> {
    const SAME: [&str; 12] = [
        "GATEWAY_INTERFACE",
        "SERVER_SOFTWARE",
        "SERVER_ADDR",
        "SERVER_PORT",
        "REMOTE_ADDR",
        "REMOTE_HOST",
        "REMOTE_PORT",
        "SERVER_PROTOCOL",
        "REQUEST_SCHEME",
        "SERVER_NAME",
        "HTTP_HOST",
        "HTTP_CONNECTION",
    ];
    let application = Application::answering(answer("A: b\n\n"));
    let server = front(application.address, options);
    ask(&server, request);
    let parameters = application.request().parameters.into_iter();
    parameters
        .filter(|(name, _)| !SAME.contains(&name.as_str()))
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

#[test]
fn what_an_application_is_reported() {
    let check = |request: &str, expect: &[&str]| {
        assert_eq!(reported(&request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"), ""), expect, "{request}");
    };
    let get = |target: &str, path_info: &str, query: &str| {
        let [uri, query, path_info] =
            [format!("REQUEST_URI={target}"), format!("QUERY_STRING={query}"), format!("PATH_INFO={path_info}")];
        let expect = ["REQUEST_METHOD=GET", &uri, &query, "SCRIPT_NAME=/app", &path_info];
        check(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"), &expect);
    };
    get("/app/", "/", "");
    get("/app/a/b", "/a/b", "");
    get("/app/a?b=c&d=%2F", "/a", "b=c&d=%2F");
    get("/app/a?", "/a", "");
    get("/app/a%20b//c/%41", "/a b/c/A", "");
    get("/app/a%2Fb", "/a/b", "");
    check(
        "POST /app/a HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n",
        &[
            "REQUEST_METHOD=POST",
            "REQUEST_URI=/app/a",
            "QUERY_STRING=",
            "CONTENT_TYPE=text/plain",
            "SCRIPT_NAME=/app",
            "PATH_INFO=/a",
        ],
    );
}

#[test]
fn fields_become_variables() {
    let check = |fields: &str, expect: &[&str]| {
        let request = format!("GET /app/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n");
        let reported = reported(&request, "");
        let fields: Vec<_> = reported.iter().filter(|line| line.starts_with("HTTP_")).collect();
        assert_eq!(fields, expect, "{request:?}");
    };
    check("Accept: a\r\nX-b: 1\r\nX-Empty:\r\n", &["HTTP_ACCEPT=a", "HTTP_X_B=1", "HTTP_X_EMPTY="]);
    check("A: 1\r\nB: 2\r\na: 3\r\n", &["HTTP_A=1, 3", "HTTP_B=2"]);
    check("Cookie: a=1\r\nCookie: b=2\r\n", &["HTTP_COOKIE=a=1; b=2"]);
    check("Authorization: Basic x\r\n", &["HTTP_AUTHORIZATION=Basic x"]);
    // httpoxy (CVE-2016-5385)
    check("Proxy: http://evil/\r\nproxy: x\r\n", &[]);
    // In CGI, an underscore is a hyphen: no client can forge a field with it.
    check("X_Mine: 127.0.0.1\r\nContent_Length: 9\r\nX-Mine: 1\r\n", &["HTTP_X_MINE=1"]);
    // Nor the client's address (issue 17).
    check("X_Real_IP: 1\r\nX-Real-IP: 1\r\nClient-IP: 1\r\nTrue-Client-IP: 1\r\nCF-Connecting-IP: 1\r\n", &[]);
    check("X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: https\r\nForwarded: for=1\r\nVia: x\r\n", &[]);
    check("Connection: x-mine\r\nX-Mine: 1\r\nTE: x\r\nUpgrade: x\r\nKeep-Alive: 1\r\n", &[]);
    check("X!Y: 1\r\nX.Y: 2\r\nX~Z: 1\r\n", &[]);
}

#[test]
fn the_client_and_the_server() {
    let application = Application::answering(answer("A: b\n\n"));
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n fastcgi \"*\" \"{}\" {{ application \"/\" }}\n }}\n\
         server {{ workers 1; trusted-proxies \"127.0.0.1\" }}\n",
        application.address
    ));
    let names = ["SERVER_NAME", "HTTP_HOST", "HTTPS", "REQUEST_SCHEME", "SERVER_PORT", "REMOTE_ADDR", "REMOTE_PORT"];
    let check = |fields: &str, expect: [Option<&str>; 7]| {
        ask(&server, &format!("GET / HTTP/1.1\r\nConnection: close\r\n{fields}\r\n"));
        let request = application.request();
        assert_eq!(names.map(|name| request.get(name)), expect, "{fields:?}");
        assert_eq!(request.get("SERVER_ADDR"), Some("127.0.0.1"));
        assert_eq!(request.get("SERVER_PROTOCOL"), Some("HTTP/1.1"));
        assert_eq!(request.get("GATEWAY_INTERFACE"), Some("CGI/1.1"));
    };
    let port = server.address.port().to_string();
    check(
        "Host: Example.com:81\r\nX-Forwarded-For: 192.0.2.7\r\n",
        [Some("example.com"), Some("Example.com:81"), None, Some("http"), Some(&port), Some("192.0.2.7"), None],
    );
    check(
        "Host: h\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n",
        [Some("h"), Some("h"), Some("on"), Some("https"), Some("443"), Some("192.0.2.7"), None],
    );
}

/// Also if another handler runs first, and in HTTP/2.
#[test]
fn where_the_client_has_connected_to() {
    let application = Application::answering(answer("A: b\n\n"));
    let root = tempfile::tempdir().expect("a root");
    std::fs::write(root.path().join("index.php"), "<?php").expect("it can be written");
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n\
         fastcgi \"*.php\" \"{}\" {{ fallback \"/index.php\" }}\n }}\nserver {{ workers 1 }}\n",
        root.path().display(),
        application.address
    ));
    let mut http2 = H2Client::connect(&server);
    let check = || {
        let request = application.request();
        let reported = ["SERVER_ADDR", "SERVER_PORT"].map(|name| request.get(name).unwrap_or("-"));
        assert_eq!(reported.join(":"), server.address.to_string(), "{request:?}");
    };
    for path in ["/a", "/b", "/a", "/index.php"] {
        assert_eq!(http2.get(path).status(), 200);
        check();
        ask(&server, &format!("GET {path}/1 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        check();
    }
}

#[test]
fn fields_that_are_set_here() {
    let application = Application::answering(answer("A: b\n\n"));
    let rules =
        "request-header \"X-Forwarded-User\" \"anna\"\nrequest-header \"X-Forwarded-Port\" \"1\" action=\"add\"";
    let server = front_of_site(application.address, "", rules);
    ask(&server, &GET.replace("Host", "X-Forwarded-User: root\r\nX-Forwarded-Port: 2\r\nX-Forwarded-Ssl: on\r\nHost"));
    let request = application.request();
    let names = ["HTTP_X_FORWARDED_USER", "HTTP_X_FORWARDED_PORT", "HTTP_X_FORWARDED_SSL"];
    assert_eq!(names.map(|name| request.get(name)), [Some("anna"), Some("1"), None]);
}

#[test]
fn variables_of_the_configuration() {
    let options =
        "variable \"APP_ENV\" \"production\"\n variable \"SERVER_SOFTWARE\" \"\"\n variable \"PATH_INFO\" \"/x\"";
    let reported = reported(GET, options);
    assert!(
        reported.contains(&"APP_ENV=production".to_owned()) && reported.contains(&"PATH_INFO=/x".to_owned()),
        "{reported:?}"
    );
    assert!(!reported.contains(&"PATH_INFO=/a".to_owned()));
}

#[test]
fn answers() {
    let check = |said: &str, expect: &str| {
        let application = Application::answering(answer(said));
        let answered = ask(&front(application.address, ""), GET);
        let answered = answered.split("\r\n").filter(|line| !line.starts_with("Date: ") && *line != "Server: tailcoat");
        assert_eq!(answered.collect::<Vec<_>>().join("|"), expect, "{said:?}");
    };
    check(
        "Content-Type: text/plain\r\n\r\nabc",
        "HTTP/1.1 200 OK|Content-Type: text/plain|Content-Length: 3|Connection: close||abc",
    );
    check(
        "A: b\nStatus: 404 Gone Fishing\n\nabc",
        "HTTP/1.1 404 Gone Fishing|A: b|Content-Length: 3|Connection: close||abc",
    );
    check("Status: 204\n\n", "HTTP/1.1 204 No Content|Connection: close||");
    check("A: b\n\n", "HTTP/1.1 200 OK|A: b|Content-Length: 0|Connection: close||");
    check("Location: http://h/\n\n", "HTTP/1.1 302 Found|Location: http://h/|Content-Length: 0|Connection: close||");
    check(
        "Set-Cookie: a=1\nSet-Cookie: b=2\nConnection: x\nTransfer-Encoding: chunked\n\n0\r\n",
        "HTTP/1.1 200 OK|Set-Cookie: a=1|Set-Cookie: b=2|Content-Length: 3|Connection: close||0|",
    );
    check("Content-Length: 3\n\nabcdef", "HTTP/1.1 200 OK|Content-Length: 3|Connection: close||abc");
}

#[test]
fn heads_and_content_in_pieces() {
    let text = "Content-Type: text/plain\r\nContent-Length: 26\r\n\r\nabcdefghijklmnopqrstuvwxyz";
    let mut records: Vec<u8> = text.bytes().flat_map(|byte| record(6, &[byte])).collect();
    records.extend([error("note\n"), output(""), end()].concat());
    let application = Application::start(move |_| {
        records.chunks(7).flat_map(|piece| [Act::Write(piece.to_vec()), Act::Pause(1)]).collect()
    });
    let answered = ask(&front(application.address, ""), GET);
    assert!(answered.ends_with("\r\n\r\nabcdefghijklmnopqrstuvwxyz"), "{answered}");
}

#[test]
fn hostile_applications() {
    let check = |name: &str, said: Vec<u8>, expect: &str| {
        let application = Application::start(move |_| vec![Act::Write(said.clone()), Act::Close]);
        let answered = ask(&front(application.address, ""), GET);
        assert!(answered.starts_with(&format!("HTTP/1.1 {expect}")), "{name}: {answered}");
    };
    check("closes at once", Vec::new(), "502");
    check("speaks HTTP", b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), "502");
    check("ends without an answer", end(), "502");
    check("ends in its head", [output("A: b\n"), end()].concat(), "502");
    check("closes in its head", output("A: b\n"), "502");
    check("no head", answer("Hello\n\n"), "502");
    check("no fields", answer("\n\nHello"), "502");
    check("two statuses", answer("Status: 200\nStatus: 404\n\n"), "502");
    check("an interim status", answer("HTTP/1.1 100 Continue\r\n\r\n"), "502");
    check("two lengths", answer("Content-Length: 1\nContent-Length: 2\n\na"), "502");
    check("a wrong length", answer("Content-Length: x\n\na"), "502");
    check("promises too much", answer("Content-Length: 9\n\na"), "502");
    check("line feeds in a value", answer("A: b\rC: d\n\n"), "502");
    check("a head without end", answer(&"A: b\n".repeat(20_000)), "502");
    check("a line without end", answer(&"A".repeat(100_000)), "502");
    let mut other = answer("A: b\n\n");
    other[3] = 2;
    check("another request's id", other, "502");
    check("a management record", [record(9, b""), answer("A: b\n\n")].concat(), "502");
    check("is overloaded", record(3, &[0, 0, 0, 0, 2, 0, 0, 0]), "503");
    check("can't multiplex", record(3, &[0, 0, 0, 0, 1, 0, 0, 0]), "502");
    check("unknown role", record(3, &[0, 0, 0, 0, 3, 0, 0, 0]), "502");
}

#[test]
fn answers_that_break_off_look_so() {
    for (head, rest) in [("", Vec::new()), ("", record(9, b"")), ("Content-Length: 9\n", end())] {
        let (begun, barrier) = (output(&format!("A: b\n{head}\nabc")), Arc::new(Barrier::new(2)));
        let acts = vec![Act::Write(begun), Act::Meet(Arc::clone(&barrier)), Act::Write(rest.clone()), Act::Close];
        let application = Application::start(move |_| acts.clone());
        let server = front(application.address, "");
        let mut client = server.connect();
        client.write_all(GET.as_bytes()).unwrap();
        let mut answered = read_until(&mut client, "abc");
        barrier.wait();
        answered.push_str(&read_all(&mut client));
        assert!(!answered.ends_with("0\r\n\r\n"), "{rest:?}: {answered}");
    }
}

#[test]
fn errors_without_end_end() {
    for first in ["", "A: b\n\nabc"] {
        let (first, flood) = (output(first), error(&"e".repeat(60_000)));
        let acts = vec![Act::Write(first), Act::Flood(flood)];
        let application = Application::start(move |_| acts.clone());
        let server = front(application.address, "first-byte-timeout \"500ms\"\n between-bytes-timeout \"500ms\"");
        let began = Instant::now();
        let answered = ask(&server, GET);
        assert!(began.elapsed() < PATIENCE / 2, "the server aborts the request");
        assert!(answered.is_empty() || answered.contains("504") || answered.contains("abc"), "{answered}");
        assert!(!answered.ends_with("0\r\n\r\n"), "the response does not look complete");
        // Other requests are served, meanwhile and after it.
        assert!(
            ask(&server, "GET /other HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 404")
        );
    }
}

#[test]
fn time_is_limited() {
    let application = Application::start(|_| vec![Act::AwaitClose]);
    let server = front(application.address, "first-byte-timeout \"300ms\"");
    assert!(ask(&server, GET).starts_with("HTTP/1.1 504"));
    assert!(application.request().is_aborted, "the end of its connection tells the application");
    let rejected = TestServer::run(
        "site {\n listen \"127.0.0.1:0\"\n fastcgi \"/app/*\" \"unix:/nowhere/at/all.sock\" { application \"/app\" }\n }\n",
    );
    assert!(ask(&rejected, GET).starts_with("HTTP/1.1 502"));
}

#[test]
fn clients_that_go_take_their_requests_along() {
    for begun in ["", "A: b\n\nabc"] {
        let acts = vec![Act::Write(output(begun)), Act::AwaitClose];
        let application = Application::start(move |_| acts.clone());
        let server = front(application.address, "");
        let mut client = server.connect();
        client.write_all(GET.as_bytes()).unwrap();
        if !begun.is_empty() {
            read_until(&mut client, "abc");
        }
        application.await_request();
        drop(client);
        let gone = Instant::now();
        assert!(application.request().is_aborted && gone.elapsed() < PATIENCE / 2, "{begun:?}");
    }
}

#[test]
fn content_goes_both_ways_in_constant_memory() {
    let application = Application::start(|request: &FastCgiRequest| {
        let head = format!("X-Got: {}\n\n", request.content.len());
        let mut acts = vec![Act::Write(output(&head))];
        acts.extend((0..LARGE_BYTES / 32_768).map(|_| Act::Write(output(&"y".repeat(32_768)))));
        acts.push(Act::Write(end()));
        acts
    });
    let server = front(application.address, "body-bytes-max \"1GiB\"");
    let before = server.resident_kib_max();
    let mut client = server.connect();
    write!(client, "POST /app/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {LARGE_BYTES}\r\n\r\n")
        .unwrap();
    client.write_all(&vec![b'x'; LARGE_BYTES]).unwrap();
    let head = read_until(&mut client, "\r\n\r\n");
    assert!(head.contains(&format!("X-Got: {LARGE_BYTES}\r\n")), "{head}");
    // The client is slow; the server fetches only as much as the client reads.
    settled("the server reads no more", || server.memory_kib() >> 10);
    let mut count = 0;
    let mut buffer = [0; 65_536];
    while let Ok(bytes @ 1..) = client.read(&mut buffer) {
        count += buffer[..bytes].iter().filter(|byte| **byte == b'y').count();
    }
    assert!(count + 65_536 >= LARGE_BYTES, "{count} bytes came");
    let grown_kib = server.resident_kib_max() - before;
    // A debug build on a busy machine holds some more than 4 MiB.
    assert!(grown_kib < 6 << 10, "{grown_kib} KiB for {LARGE_BYTES} bytes");
}

#[test]
fn content_that_is_too_much_or_without_length() {
    let application = Application::answering(answer("A: b\n\n"));
    let server = front(application.address, "body-bytes-max \"10B\"");
    let post = |rest: &str| ask(&server, &format!("POST /app/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{rest}"));
    assert!(post("Content-Length: 11\r\n\r\n").starts_with("HTTP/1.1 413"));
    assert!(post("Content-Length: 3\r\n\r\nabc").starts_with("HTTP/1.1 200"));
    let request = application.request();
    assert_eq!((request.get("CONTENT_LENGTH"), request.content.as_slice()), (Some("3"), &b"abc"[..]));
}

#[test]
fn connections_are_kept_if_that_is_wanted() {
    let application = Application::answering(answer("Content-Type: text/plain\n\nabc"));
    for (options, expect) in [("", [0, 1]), ("keep-connections", [2, 2])] {
        let server = front(application.address, options);
        for connection in expect {
            assert!(ask(&server, GET).ends_with("abc"));
            let request = application.request();
            assert_eq!((request.connection, request.is_kept), (connection, !options.is_empty()), "{options}");
        }
    }
}

#[test]
fn a_connection_that_has_more_to_say_is_not_kept() {
    let said = [answer("A: b\n\nabc"), output("of no request")].concat();
    let application = Application::answering(said);
    let server = front(application.address, "keep-connections");
    assert!(ask(&server, GET).ends_with("abc") && ask(&server, GET).ends_with("abc"));
    // Each connection has a thread, and these report in any order.
    let mut connections = [application.request().connection, application.request().connection];
    connections.sort_unstable();
    assert_eq!(connections, [0, 1]);
}

#[test]
fn a_kept_connection_that_was_closed_costs_no_request() {
    let application = Application::start(|request: &FastCgiRequest| match request.connection {
        0 => vec![Act::Write(answer("A: b\n\nfirst")), Act::Close],
        _ => vec![Act::Write(answer("A: b\n\nsecond"))],
    });
    let server = front(application.address, "keep-connections");
    assert!(ask(&server, GET).ends_with("first"));
    assert!(ask(&server, GET).ends_with("second"));
}

#[test]
fn head_gets_no_content() {
    let application = Application::answering(answer("Content-Type: text/plain\nContent-Length: 3\n\nabc"));
    let server = front(application.address, "");
    let answered = ask(&server, &GET.replace("GET", "HEAD"));
    assert!(answered.contains("Content-Length: 3\r\n") && answered.ends_with("\r\n\r\n"), "{answered}");
}

#[test]
fn local_redirects() {
    let application = Application::start(|request: &FastCgiRequest| {
        let text = match request.get("PATH_INFO") {
            Some("/a") => "Location: /app/b?c=d#e\n\n".to_owned(),
            Some("/circle") => "Location: /app/circle\n\n".to_owned(),
            Some("/file") => "Location: /fixed\n\n".to_owned(),
            Some("/status") => "Status: 302\nLocation: /app/b\n\n".to_owned(),
            _ => format!("A: b\n\n{:?} {}", request.parameters, request.content.len()),
        };
        vec![Act::Write(answer(&text))]
    });
    for rules in ["", "response-header \"X-Rule\" \"1\""] {
        let of_site = format!("respond \"/fixed\" 200 \"fixed\"\n {rules}");
        let server = front_of_site(application.address, "", &of_site);
        let post =
            GET.replace("GET", "POST").replace("\r\n\r\n", "\r\nContent-Type: x/y\r\nContent-Length: 3\r\n\r\nabc");
        for request in [GET, &post] {
            let answered = ask(&server, request);
            for expect in
                ["(\"REQUEST_METHOD\", \"GET\")", "(\"PATH_INFO\", \"/b\")", "(\"QUERY_STRING\", \"c=d\")", "] 0"]
            {
                assert!(answered.contains(expect), "{expect}: {answered}");
            }
            assert!(!answered.contains("CONTENT_"), "{answered}");
        }
        let get = |path: &str| ask(&server, &GET.replace("/app/a", path));
        assert!(get("/app/file").ends_with("fixed"));
        assert!(get("/app/circle").starts_with("HTTP/1.1 500"));
        assert!(get("/app/status").starts_with("HTTP/1.1 302"));
    }
}

#[test]
fn answers_are_cached_and_errors_have_pages() {
    let application = Application::answering(answer("Cache-Control: max-age=60\n\nabc"));
    let server = front(application.address, "cache { }");
    assert!(ask(&server, GET).ends_with("abc"));
    let again = ask(&server, GET);
    assert!(again.ends_with("abc") && again.contains("Age: "), "{again}");
    application.request();
    assert!(application.try_request().is_none(), "it is asked once");
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("502.html");
    std::fs::write(&page, "the operator's page").unwrap();
    let broken = Application::answering(answer("no head\n\n"));
    let server = front_of_site(broken.address, "", &format!("error-page 502 \"file:{}\"", page.display()));
    let answered = ask(&server, GET);
    assert!(answered.starts_with("HTTP/1.1 502") && answered.ends_with("the operator's page"), "{answered}");
}
