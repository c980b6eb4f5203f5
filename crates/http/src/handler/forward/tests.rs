use wire::h1::{BodyFraming, HeadLimits, parse_request_head};
use wire::http::{Fields, RequestHead, RequestTarget};

use super::request::forwarded_head;
use crate::config::{ClientFields, ForwardConfig, ForwardHost, ForwardedField};
use crate::handler::{ClientLinkCell, Now, Proxied, Routed};
use crate::log::LogClient;

/// Head that is sent for this request, without its final empty line.
fn forwarded(input: &str, framing: BodyFraming, change: impl FnOnce(&mut ForwardConfig)) -> String {
    forwarded_for("[::ffff:192.0.2.1]:5", None, input, framing, change)
}

fn forwarded_for(
    client: &str,
    proxied: Option<Proxied>,
    input: &str,
    framing: BodyFraming,
    change: impl FnOnce(&mut ForwardConfig),
) -> String {
    let mut config = ForwardConfig { client_fields: ClientFields::None, ..ForwardConfig::to("x") };
    change(&mut config);
    let mut head = RequestHead::default();
    parse_request_head(input.as_bytes(), &mut head, &HeadLimits::default()).unwrap().unwrap();
    let request = wire::http::Request { head: &head, bytes: input.as_bytes() };
    let target = RequestTarget::parse(request.target(), head.method).unwrap();
    let mut path = Vec::new();
    let routed = Routed {
        request,
        path: wire::http::path::normalise(target.path, &mut path).unwrap_or(target.path),
        query: target.query,
        host: b"h",
        client: client.parse().map_or(LogClient::Unix, LogClient::Ip),
        tls: None,
        proxied,
        trace: None,
        locations: None,
        link: &ClientLinkCell::default(),
        has_next: false,
        now: Now::read(),
    };
    let bytes = forwarded_head(&routed, framing, &config, "up:8080", &Fields::new(), Fields::new()).to_bytes();
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
    check("GET /a//b/%7e%2Fc;d?e=%00/../f HTTP/1.1\r\nHost: h", "GET /a//b/%7e%2Fc;d?e=%00/../f HTTP/1.1|Host: h");
    // The server sees the path that access rules saw.
    check("GET /a//b/%2e/../%7e?d=%00 HTTP/1.1\r\nHost: h", "GET /a/~?d=%00 HTTP/1.1|Host: h");
    check("GET /admin/x/../../c%20d HTTP/1.1\r\nHost: h", "GET /c%20d HTTP/1.1|Host: h");
    check("GET /admin%2f..%2fc HTTP/1.1\r\nHost: h", "GET /c HTTP/1.1|Host: h");
    check("GET http://h/admin//../c? HTTP/1.1\r\nHost: h", "GET /c? HTTP/1.1|Host: h");
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
        ("forged prefix of links, as frameworks read it", "X-Forwarded-Prefix: //evil"),
        ("forged port, as CGI reads it", "x_forwarded_port: 1"),
        ("smuggled length, as CGI reads it", "Content_Length: 9"),
        ("smuggled coding, as CGI reads it", "Transfer_Encoding: chunked"),
        ("front of the path, as gunicorn reads it", "SCRIPT_NAME: /public"),
        ("forged user, as CGI reads it", "X_User: root"),
    ] {
        let input = format!("GET / HTTP/1.1\r\nHost: h\r\n{field}");
        let head = forwarded(&format!("{input}\r\n\r\n"), BodyFraming::None, |_| {});
        assert_eq!(head, "GET / HTTP/1.1|Host: h|Via: 1.1 tailcoat", "{name}");
    }
    let input = "GET / HTTP/1.1\r\nHost: h\r\nX_User: root\r\n\r\n";
    let head = forwarded(input, BodyFraming::None, |config| config.underscore_fields = true);
    assert_eq!(head, "GET / HTTP/1.1|Host: h|X_User: root|Via: 1.1 tailcoat");
    // Connection can't remove fields that the server relies on.
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
    let check = |change: fn(&mut ForwardConfig), expect: &str| {
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
fn who_the_client_is() {
    let check = |client: &str, fields: &str, expect: &str| {
        let input = format!("GET / HTTP/1.1\r\nHost: H:8\r\n{fields}\r\n");
        let both = |forward: &mut ForwardConfig| forward.client_fields = ClientFields::Both;
        let head = forwarded_for(client, None, &input, BodyFraming::None, both);
        assert_eq!(head.split_once("|Via: 1.1 tailcoat|").unwrap().1, expect, "{client} {fields}");
    };
    let v4 = "X-Forwarded-For: 192.0.2.1|X-Forwarded-Host: H:8|X-Forwarded-Proto: http|\
              Forwarded: for=192.0.2.1;host=\"H:8\";proto=http";
    check("192.0.2.1:5", "", v4);
    check("[::ffff:192.0.2.1]:5", "", v4);
    check("192.0.2.1:5", "X-Forwarded-For: 127.0.0.1\r\nForwarded: for=::1\r\nX-Forwarded-Proto: https\r\n", v4);
    check("192.0.2.1:5", "Connection: X-Forwarded-For, Forwarded\r\nX_FORWARDED_HOST: evil\r\n", v4);
    check(
        "[2001:db8::1]:5",
        "",
        "X-Forwarded-For: 2001:db8::1|X-Forwarded-Host: H:8|X-Forwarded-Proto: http|\
         Forwarded: for=\"[2001:db8::1]\";host=\"H:8\";proto=http",
    );
    check(
        "unix",
        "",
        "X-Forwarded-For: unix|X-Forwarded-Host: H:8|X-Forwarded-Proto: http|\
         Forwarded: for=unknown;host=\"H:8\";proto=http",
    );
}

/// Fields sent for a request from a trusted proxy, which wrote the last `entries` of the list.
#[test]
fn the_client_of_a_trusted_proxy() {
    let check = |field, entries, fields: &str, expect: &str| {
        let proxied = Proxied { peer: LogClient::Ip("10.0.0.9:1".parse().unwrap()), field, entries };
        let input = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n");
        let both = |forward: &mut ForwardConfig| forward.client_fields = ClientFields::Both;
        let head = forwarded_for("192.0.2.1:0", Some(proxied), &input, BodyFraming::None, both);
        assert_eq!(head.strip_prefix("GET / HTTP/1.1|Host: h|").unwrap(), expect, "{fields}");
    };
    use ForwardedField::{Forwarded, XForwardedFor};
    check(
        XForwardedFor,
        1,
        "X-Forwarded-For: 127.0.0.1, 192.0.2.1:80\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: Www.Example",
        "Via: 1.1 tailcoat|X-Forwarded-For: 192.0.2.1, 10.0.0.9|X-Forwarded-Host: Www.Example|X-Forwarded-Proto: https|\
         Forwarded: for=192.0.2.1;host=\"Www.Example\";proto=https, for=10.0.0.9;host=\"h\";proto=http",
    );
    check(
        XForwardedFor,
        2,
        "X-Forwarded-For: 2001:db8::1\r\nX-Forwarded-For: 10.0.0.2\r\nX-Forwarded-Port: 443\r\nForwarded: for=evil",
        "X-Forwarded-Port: 443|Via: 1.1 tailcoat|X-Forwarded-For: 2001:db8::1, 10.0.0.2, 10.0.0.9|X-Forwarded-Host: h|\
         X-Forwarded-Proto: http|\
         Forwarded: for=\"[2001:db8::1]\", for=10.0.0.2, for=10.0.0.9;host=\"h\";proto=http",
    );
    // A list that holds no addresses, several lines of a single-line field, and a bad scheme and host.
    check(
        XForwardedFor,
        0,
        "X-Forwarded-For: unknown\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a b",
        "Via: 1.1 tailcoat|X-Forwarded-For: 10.0.0.9|X-Forwarded-Host: h|X-Forwarded-Proto: http|\
         Forwarded: for=10.0.0.9;host=\"h\";proto=http",
    );
    check(
        XForwardedFor,
        0,
        "X-Forwarded-Proto: javascript",
        "Via: 1.1 tailcoat|X-Forwarded-For: 10.0.0.9|X-Forwarded-Host: h|X-Forwarded-Proto: http|\
         Forwarded: for=10.0.0.9;host=\"h\";proto=http",
    );
    check(
        Forwarded,
        2,
        "Forwarded: for=127.0.0.1;by=\"a, b\", For=\"[2001:db8::1]:80\";Host=\"w:1\";proto=https, for=10.0.0.2\r\n\
         X-Forwarded-For: evil\r\nX-Forwarded-Proto: evil",
        "Via: 1.1 tailcoat|X-Forwarded-For: 2001:db8::1, 10.0.0.2, 10.0.0.9|X-Forwarded-Host: w:1|\
         X-Forwarded-Proto: https|Forwarded: For=\"[2001:db8::1]:80\";Host=\"w:1\";proto=https, for=10.0.0.2, \
         for=10.0.0.9;host=\"h\";proto=http",
    );
}

/// Fields that applications take for the client's address, or for the path of the request (issue 17).
#[test]
fn addresses_and_paths_that_clients_claim_are_not_passed_on() {
    let addresses =
        ["X-Real-IP", "x_real_ip", "True-Client-IP", "CF-Connecting-IP", "Client-IP", "X-Cluster-Client-IP"];
    let paths = ["X-Original-URL", "X-Rewrite-URL", "x_original_url"];
    for name in addresses.into_iter().chain(paths) {
        let input = format!("GET / HTTP/1.1\r\nHost: h\r\n{name}: 127.0.0.1\r\n\r\n");
        let head = |client_fields| {
            forwarded(&input, BodyFraming::None, |forward| {
                (forward.client_fields, forward.underscore_fields) = (client_fields, true);
            })
        };
        for which in [ClientFields::XForwarded, ClientFields::Forwarded, ClientFields::Both, ClientFields::None] {
            assert!(!head(which).contains("127.0.0.1"), "{name} {which:?}");
        }
        assert!(head(ClientFields::Keep).contains(&format!("{name}: 127.0.0.1|")), "{name}");
        let field = ForwardedField::XForwardedFor;
        let proxied = Proxied { peer: LogClient::Ip("10.0.0.9:1".parse().unwrap()), field, entries: 0 };
        let of_proxy = forwarded_for("10.0.0.9:1", Some(proxied), &input, BodyFraming::None, |forward| {
            forward.underscore_fields = true;
        });
        assert!(of_proxy.contains(&format!("{name}: 127.0.0.1|")), "{name}");
    }
}

/// A third party gets nothing about the client.
#[test]
fn fields_of_clients_may_be_withheld() {
    let input = "POST /a?b HTTP/1.1\r\nHost: h\r\nCookie: a\r\nAuthorization: b\r\nX_c: d\r\nExpect: 100-continue\r\nTE: \
                 trailers\r\nUpgrade: websocket\r\nConnection: TE, upgrade\r\nContent-Length: 3\r\n\r\n";
    let withhold = |forward: &mut ForwardConfig| (forward.passes_fields, forward.underscore_fields) = (false, true);
    let head = forwarded(input, BodyFraming::Length(3), withhold);
    assert_eq!(head, "POST /a?b HTTP/1.1|Host: h|Via: 1.1 tailcoat|Content-Length: 3");
    let head = forwarded(&input.replace("POST", "GET"), BodyFraming::None, withhold);
    assert_eq!(head, "GET /a?b HTTP/1.1|Host: h|Via: 1.1 tailcoat|Content-Length: 0");
}

#[test]
fn via_is_added_to() {
    for (input, expect) in [
        (
            "GET / HTTP/1.1\r\nHost: h\r\nvIa: 1.0 a\r\nVia:\r\nVia: 1.1 b (c, d)\r\n\r\n",
            "1.0 a, 1.1 b (c, d), 1.1 tailcoat",
        ),
        ("GET / HTTP/1.0\r\nHost: h\r\n\r\n", "1.0 tailcoat"),
    ] {
        let head = forwarded(input, BodyFraming::None, |_| {});
        assert_eq!(head, format!("GET / HTTP/1.1|Host: h|Via: {expect}"));
    }
    let head = forwarded("GET / HTTP/1.1\r\nHost: h\r\n\r\n", BodyFraming::None, |forward| {
        forward.intermediary.via_name = "edge".into();
    });
    assert_eq!(head, "GET / HTTP/1.1|Host: h|Via: 1.1 edge");
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
