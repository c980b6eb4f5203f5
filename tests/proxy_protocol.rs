//! PROXY protocol, from proxies on our listeners and towards upstreams.

use std::io::Write;

use crate::support::real_server::{RealServer, Recipe};
use crate::support::waiting::lines_of;
use crate::support::{TestServer, read_all, read_until};

/// Server whose listener trusts these proxies, and the file of its access log.
fn server(trusted: &str) -> (TestServer, tempfile::NamedTempFile) {
    server_with(trusted, "")
}

/// Server like that of [`server`], with these limits.
fn server_with(trusted: &str, limits: &str) -> (TestServer, tempfile::NamedTempFile) {
    let log = tempfile::NamedTempFile::new().expect("a file for the log");
    let path = log.path().display();
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\" proxy-protocol=on\n respond \"/\" 200 \"hello\"\n deny \"192.0.2.66\"\n}}\n\
         access-log \"{path}\" format=\"{{client}} {{client_port}} {{status}}\"\n\
         server {{ workers 1; trusted-proxies \"{trusted}\" }}\nlimits {{ {limits} }}\n"
    ));
    (server, log)
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
const LAST_GET: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc0\0\x02\x02\x01\x02\x01\xbb";
const V2_LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

#[test]
fn the_client_is_who_the_proxy_says() {
    let (server, log) = server("127.0.0.0/8");
    let check = |header: &[u8], expect: &str| {
        let answer = server.exchange(&[header, GET, GET].concat());
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 2, "{answer}");
        assert_eq!(answer.matches(expect).count(), 2, "{answer}");
    };
    check(b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n", "HTTP/1.1 200 ");
    check(b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n", "HTTP/1.1 200 ");
    check(V2, "HTTP/1.1 200 ");
    // Rules apply to the client, not to the proxy.
    check(b"PROXY TCP4 192.0.2.66 192.0.2.2 1 2\r\n", "HTTP/1.1 403 ");
    check(b"PROXY UNKNOWN\r\n", "HTTP/1.1 200 ");
    check(V2_LOCAL, "HTTP/1.1 200 ");
    let lines = lines_of(log.path(), 12);
    for (index, expect) in
        ["192.0.2.1 56324 200", "2001:db8::1 1 200", "192.0.2.1 258 200", "192.0.2.66 1 403"].into_iter().enumerate()
    {
        assert_eq!(lines[2 * index..2 * index + 2], [expect, expect]);
    }
    assert!(lines[8..].iter().all(|line| line.starts_with("127.0.0.1 ")), "{lines:?}");
}

#[test]
fn a_header_may_come_in_pieces() {
    let (server, _log) = server("127.0.0.1");
    let mut stream = server.connect();
    for byte in [b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", GET].concat() {
        stream.write_all(&[byte]).expect("the server reads");
        stream.flush().expect("nothing is kept back");
    }
    assert!(read_until(&mut stream, "hello").starts_with("HTTP/1.1 200 "));
}

/// Without a valid header from a trusted proxy, the connection closes without a response.
#[test]
fn no_request_is_read_without_a_header() {
    let (server, _log) = server_with("127.0.0.1", "head-timeout \"1s\"; idle-timeout \"1s\"");
    for input in
        [GET, b"PROXY TCP4 192.0.2.1\r\nGET / HTTP/1.1\r\n", b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n", &V2[..20]]
    {
        assert_eq!(server.exchange(input), "", "{}", input.escape_ascii());
    }
    // The wait for the header has a time limit.
    let mut stream = server.connect();
    stream.write_all(b"PROXY TCP4 ").expect("the server reads");
    assert_eq!(read_all(&mut stream), "");
    assert_eq!(read_all(&mut server.connect()), "");
}

#[test]
fn others_are_not_believed() {
    let (server, log) = server("192.0.2.7");
    assert!(server.exchange(GET).starts_with("HTTP/1.1 200 "));
    let answer = server.exchange(&[b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", GET].concat());
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(lines_of(log.path(), 2).iter().all(|line| line.starts_with("127.0.0.1 ")));
}

const HAPROXY: Recipe<'_> = Recipe {
    needs: &["haproxy"],
    files: &[(
        "haproxy.cfg",
        "defaults\n mode http\n timeout client 9s\n timeout server 9s\n timeout connect 9s\n\
         frontend a\n bind 127.0.0.1:@PORT@ accept-proxy\n \
         http-request return status 200 content-type text/plain lf-string \"%[src] %[src_port] %[dst] %[dst_port]\"\n",
    )],
    command: &["haproxy", "-db", "-f", "@DIR@/haproxy.cfg"],
    environment: &[],
};

const NGINX: Recipe<'_> = Recipe {
    needs: &["nginx"],
    files: &[(
        "nginx.conf",
        "daemon off; worker_processes 1; pid @DIR@/pid; error_log @DIR@/error.log; events { }\n\
         http { access_log off; client_body_temp_path @DIR@/body; proxy_temp_path @DIR@/proxy;\n\
         fastcgi_temp_path @DIR@/f; uwsgi_temp_path @DIR@/u; scgi_temp_path @DIR@/s;\n\
         server { listen 127.0.0.1:@PORT@ proxy_protocol;\n\
         return 200 \"$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port\"; } }\n",
    )],
    command: &["nginx", "-c", "@DIR@/nginx.conf"],
    environment: &[],
};

/// Each client's own address reaches the upstream, even where upstream connections could be kept. A trusted proxy's
/// header is passed on.
#[test]
fn servers_are_reported_both_ends() {
    for (name, recipe) in [("HAProxy", HAPROXY), ("nginx", NGINX)] {
        let Some(receiver) = RealServer::start(&recipe) else { continue };
        for version in ["v1", "v2"] {
            let server = TestServer::run(&format!(
                "upstream \"u\" {{\n server \"http://{}\"\n proxy-protocol \"{version}\"\n}}\n\
                 site {{\n listen \"127.0.0.1:0\" proxy-protocol=on\n forward \"u\"\n}}\n\
                 server {{ workers 1; trusted-proxies \"127.0.0.1\" }}\n",
                receiver.address
            ));
            for (header, expect) in [
                (b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n".as_slice(), "192.0.2.1 56324 192.0.2.2 443"),
                (b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n", "2001:db8::1 1 2001:db8::2 2"),
                (V2, "192.0.2.1 258 192.0.2.2 443"),
            ] {
                let mut stream = server.connect();
                stream.write_all(&[header, GET, LAST_GET].concat()).unwrap();
                let answer = read_all(&mut stream);
                assert_eq!(answer.matches(expect).count(), 2, "{name}, {version}: {answer}");
            }
            let mut stream = server.connect();
            let (source, destination) = (stream.local_addr().unwrap(), server.address);
            stream.write_all(&[b"PROXY UNKNOWN\r\n", GET].concat()).unwrap();
            let expect = format!("127.0.0.1 {} 127.0.0.1 {}", source.port(), destination.port());
            read_until(&mut stream, &expect);
        }
    }
}
