use wire::h1::{BodyFraming, HeadLimits, parse_request_head};
use wire::http::{Fields, RequestHead, Target};

use super::request::forwarded_head;
use crate::config::{ClientFields, Forward, ForwardHost};
use crate::handler::{ClientLinkCell, Now, Routed};
use crate::log::Client;

/// The head that is sent for this request, without its final empty line.
fn forwarded(input: &str, framing: BodyFraming, change: impl FnOnce(&mut Forward)) -> String {
    let mut config = Forward { client_fields: ClientFields::None, ..Forward::to("x") };
    change(&mut config);
    let mut head = RequestHead::default();
    parse_request_head(input.as_bytes(), &mut head, &HeadLimits::default()).unwrap().unwrap();
    let request = wire::http::Request { head: &head, bytes: input.as_bytes() };
    let target = Target::parse(request.target(), head.method).unwrap();
    let routed = Routed {
        request,
        path: target.path,
        query: target.query,
        host: b"h",
        client: Client::Ip("[::ffff:192.0.2.1]:5".parse().unwrap()),
        link: &ClientLinkCell::default(),
        has_next: false,
        now: Now::read(),
    };
    let bytes = forwarded_head(&routed, framing, &config, "up:8080", &Fields::new()).bytes;
    String::from_utf8(bytes).unwrap().strip_suffix("\r\n\r\n").unwrap().replace("\r\n", "|")
}

fn check(input: &str, expect: &str) {
    let input = format!("{input}\r\n\r\n");
    assert_eq!(forwarded(&input, BodyFraming::None, |_| {}), format!("{expect}|Via: 1.1 tailcoat"), "{input}");
}

#[test]
fn fields_keep_their_order_and_case() {
    check(
        "GET /a?b HTTP/1.1\r\nhOST: H:1\r\nX-b: 1\r\nx-A:\r\nX-b: 2",
        "GET /a?b HTTP/1.1|Host: H:1|X-b: 1|x-A: |X-b: 2",
    );
}

#[test]
fn targets() {
    check("GET /a//b/%2e/../c?d=%00 HTTP/1.1\r\nHost: h", "GET /a//b/%2e/../c?d=%00 HTTP/1.1|Host: h");
    check("GET http://H:8/a?b HTTP/1.1\r\nHost: other", "GET /a?b HTTP/1.1|Host: H:8");
    check("GET http://h HTTP/1.1\r\nHost: other", "GET / HTTP/1.1|Host: h");
    check("GET http://h?b HTTP/1.1\r\nHost: other", "GET /?b HTTP/1.1|Host: h");
    check("M-SEARCH /a HTTP/1.1\r\nHost: h", "M-SEARCH /a HTTP/1.1|Host: h");
}

#[test]
fn fields_of_the_connection_go_no_further() {
    check(
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nTE: gzip\r\n\
         Proxy-Connection: x\r\nUpgrade: h2c\r\nProxy-Authorization: x\r\nTrailer: A",
        "GET / HTTP/1.1|Host: h|Trailer: A",
    );
}

#[test]
fn attacks_by_fields() {
    for (name, field) in [
        ("httpoxy (CVE-2016-5385)", "Proxy: http://evil/"),
        ("forged client", "X-Forwarded-For: 127.0.0.1"),
        ("forged client, as CGI reads it", "X_Forwarded_For: 127.0.0.1"),
        ("forged client, RFC 7239", "Forwarded: for=127.0.0.1"),
    ] {
        let input = format!("GET / HTTP/1.1\r\nHost: h\r\n{field}");
        let head = forwarded(&format!("{input}\r\n\r\n"), BodyFraming::None, |_| {});
        assert_eq!(head, "GET / HTTP/1.1|Host: h|Via: 1.1 tailcoat", "{name}");
    }
    // Connection can't make us drop what the server decides by.
    check(
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: cookie, authorization, host\r\nCookie: a\r\nAuthorization: b",
        "GET / HTTP/1.1|Host: h|Cookie: a|Authorization: b",
    );
}

#[test]
fn content_is_framed_anew() {
    for (framing, expect) in
        [(BodyFraming::Length(7), "Content-Length: 7"), (BodyFraming::Chunked, "Transfer-Encoding: chunked")]
    {
        let input = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\nExpect: 100-continue\r\n\r\n";
        let head = forwarded(input, framing, |_| {});
        assert_eq!(head, format!("POST / HTTP/1.1|Host: h|Expect: 100-continue|Via: 1.1 tailcoat|{expect}"));
    }
}

#[test]
fn what_the_configuration_changes() {
    let get = "GET /app/a%20b?c HTTP/1.1\r\nHost: h:1\r\nVia: 1.0 x\r\nX-Forwarded-For: y\r\n\r\n";
    let check = |change: fn(&mut Forward), expect: &str| {
        assert_eq!(forwarded(get, BodyFraming::None, change), expect);
    };
    check(
        |forward| forward.host = ForwardHost::Upstream,
        "GET /app/a%20b?c HTTP/1.1|Host: up:8080|Via: 1.0 x, 1.1 tailcoat",
    );
    check(
        |forward| forward.host = ForwardHost::Set("s".into()),
        "GET /app/a%20b?c HTTP/1.1|Host: s|Via: 1.0 x, 1.1 tailcoat",
    );
    check(
        |forward| forward.client_fields = ClientFields::Both,
        "GET /app/a%20b?c HTTP/1.1|Host: h:1|Via: 1.0 x, 1.1 tailcoat|X-Forwarded-For: 192.0.2.1|\
         X-Forwarded-Host: h:1|X-Forwarded-Proto: http|Forwarded: for=192.0.2.1;host=\"h:1\";proto=http",
    );
    check(
        |forward| forward.client_fields = ClientFields::Keep,
        "GET /app/a%20b?c HTTP/1.1|Host: h:1|X-Forwarded-For: y|Via: 1.0 x, 1.1 tailcoat",
    );
}

#[test]
fn upgrades() {
    let ask = |fields: &str, framing| {
        let head = forwarded(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n"), framing, |_| {});
        head.contains("Upgrade: ") && head.contains("Connection: Upgrade")
    };
    for (fields, framing, expect) in [
        ("Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket", BodyFraming::None, true),
        ("Upgrade: websocket", BodyFraming::None, false),
        ("Connection: upgrade\r\nUpgrade: h2c", BodyFraming::None, false),
        ("Connection: upgrade\r\nUpgrade: websocket, h2c", BodyFraming::None, false),
        ("Connection: upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c", BodyFraming::None, false),
        ("Connection: upgrade\r\nUpgrade: websocket", BodyFraming::Length(1), false),
    ] {
        assert_eq!(ask(fields, framing), expect, "{fields}");
    }
}
