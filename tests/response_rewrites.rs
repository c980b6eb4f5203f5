//! Changes of responses: `Location`, cookies and texts in the content.

use crate::support::function_server::{FunctionServer, field, response};
use crate::support::upstream::ScriptStep::{Pause, Read as Await, Write as Say};
use crate::support::upstream::ScriptedUpstream;
use crate::support::versions::AnyVersion;
use crate::support::{TestServer, ask};

/// Upstream that answers with the fields of the request's query, `+` for a space and `|` for a line break.
fn application() -> FunctionServer {
    FunctionServer::start(|head| {
        let target = head.split(' ').nth(1).unwrap_or_default();
        let fields = target.split_once('?').map_or("", |(_, query)| query).replace('+', " ").replace('|', "\r\n");
        let fields = if fields.is_empty() { fields } else { fields + "\r\n" };
        response("200 OK", &fields, "<head>Hello</head> hello")
    })
}

fn server(application: &FunctionServer, options: &str) -> TestServer {
    TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\" {{\n{options}\n}}\n}}\nserver {{ workers 1 }}\n",
        application.address
    ))
}

fn get(server: &TestServer, target: &str, fields: &str) -> String {
    ask(server, &format!("GET {target} HTTP/1.1\r\nHost: h:81\r\n{fields}Connection: close\r\n\r\n"))
}

#[test]
fn locations_and_cookies() {
    let application = application();
    let own = application.address;
    let rewrites = "rewrite-location \"http://a/two/\" \"/one/\"\n rewrite-cookie-domain \"a\" \"b\"\n rewrite-cookie-path \
                    \"/\" \"/app/\"";
    let named = server(&application, rewrites);
    let answer =
        get(&named, "/?Location:+http://a/two/x|Set-Cookie:+a=1;+Domain=a;+Path=/|Refresh:+1;+url=http://a/two/", "");
    for line in ["Location: /one/x", "Set-Cookie: a=1; Domain=b; Path=/app/", "Refresh: 1; url=/one/"] {
        assert!(answer.contains(&format!("\r\n{line}\r\n")), "{line}: {answer}");
    }
    let automatic = server(&application, "rewrite-location auto\n strip-prefix \"/app\"");
    for (location, expect) in [
        ("/x".to_owned(), "/app/x"),
        ("http://h:81/x?y".to_owned(), "/app/x?y"),
        (format!("http://{own}/x"), "/app/x"),
        ("http://other/x".to_owned(), "http://other/x"),
    ] {
        let answer = get(&automatic, &format!("/app/?Location:+{location}"), "");
        assert_eq!(field(&answer, "location"), expect);
    }
}

#[test]
fn texts_in_the_content() {
    let application = application();
    let options = "substitute \"</head>\" \"<script></script></head>\" once=on\n substitute \"hello\" \"Goodbye\"\n \
                   substitute-types \"text/css\"";
    let server = server(&application, options);
    let changed = "<head>Goodbye<script></script></head> Goodbye";
    let target = "/?Content-Type:+text/html|ETag:+\"x\"|Content-MD5:+y|Accept-Ranges:+bytes";
    let answer = get(&server, target, "Accept-Encoding: gzip, br\r\n");
    assert!(answer.ends_with(changed), "{answer}");
    assert_eq!((field(&answer, "etag"), field(&answer, "content-md5")), ("W/\"x\"", ""));
    assert_eq!(field(&answer, "content-length"), changed.len().to_string());
    let heads = application.heads();
    assert_eq!(field(&heads[0], "accept-encoding"), "", "the upstream must not compress: {heads:?}");
    assert!(get(&server, "/?Content-Type:+text/css", "").ends_with(changed));
    for unchanged in ["text/plain", "text/html|Content-Encoding:+gzip", "text/html|Cache-Control:+no-transform"] {
        let answer = get(&server, &format!("/?Content-Type:+{unchanged}|ETag:+\"x\""), "");
        assert!(answer.ends_with("<head>Hello</head> hello") && field(&answer, "etag") == "\"x\"", "{answer}");
    }
    let head = ask(&server, &format!("HEAD {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    assert!(field(&head, "etag") == "W/\"x\"" && field(&head, "content-length").is_empty(), "{head}");
}

#[test]
fn changed_content_is_compressed_and_cached() {
    let application = application();
    let server = server(&application, "substitute \"hello\" \"Goodbye\"\n cache\n compress-bytes-min 1");
    let target = "/?Content-Type:+text/html|Cache-Control:+max-age=60";
    for _ in 0..2 {
        assert!(get(&server, target, "").ends_with("<head>Goodbye</head> Goodbye"));
        let answer = get(&server, target, "Accept-Encoding: gzip\r\n");
        assert!(!answer.contains("hello"), "{answer}");
    }
    assert_eq!(application.heads().len(), 1);
}

#[test]
fn a_text_is_found_across_pieces_in_all_versions() {
    let upstream = ScriptedUpstream::start(vec![vec![
        Await("\r\n\r\n"),
        Say("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n<he>\r\n"),
        Pause(20),
        Say("3\r\nsec\r\n"),
        Pause(20),
        Say("6\r\nret se\r\n4\r\ncret\r\n3\r\nsec\r\n0\r\n\r\n"),
    ]]);
    let site = format!(" forward \"http://{}\" {{\n substitute \"secret\" \"PUBLIC\"\n }}\n", upstream.address);
    let Some(server) = AnyVersion::start(&site, "") else { return };
    let answer = server.ask_all("/", &[]);
    assert_eq!(String::from_utf8_lossy(&answer.content), "<he>PUBLIC PUBLICsec");
}
