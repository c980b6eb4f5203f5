//! Facts about clients, in logs and conditions: fingerprints of TLS, QUIC and HTTP/2, countries and network operators.

use std::path::Path;
use std::process::Command;

use crate::http3::H3Server;
use crate::support::operated::Operated;
use crate::support::port::free_port;
use crate::support::tls::TestCa;
use crate::support::waiting::lines_of;
use crate::support::{TestServer, ask};

/// Status that curl gets.
fn curl(directory: &Path, port: u16, arguments: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["--silent", "--max-time", "60", "--noproxy", "*", "--output", "/dev/null", "--ipv4", "--cacert"])
        .arg(directory.join("ca.pem"))
        .args(["--write-out", "%{http_code}"])
        .args(arguments)
        .arg(format!("https://localhost:{port}/"))
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Parts of a JA4 fingerprint: what is readable, and the two hashes.
fn parts(ja4: &str) -> (&str, &str, &str) {
    let mut parts = ja4.split('_');
    let all = (parts.next().unwrap(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let is_hash = |text: &str| text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(all.0.len() == 10 && is_hash(all.1) && is_hash(all.2) && parts.next().is_none(), "{ja4}");
    all
}

#[test]
fn handshakes_and_http2_have_fingerprints() {
    let (directory, port, authority) = (tempfile::tempdir().unwrap(), free_port(), TestCa::new());
    std::fs::write(directory.path().join("ca.pem"), authority.pem()).unwrap();
    authority.sign(&["localhost"]).write(directory.path(), "localhost");
    let config = |rules: &str| {
        format!(
            "site {{\n listen \"127.0.0.1:{port}\" tls=on\n certificate \"@DIR@/localhost.pem\" key=\"@DIR@/localhost.key\"\n \
             respond \"/\" 200 \"ok\"\n access-log \"@DIR@/log\" format=\"{{ja4}} {{http2_fingerprint}}\"\n{rules}\n}}\n"
        )
    };
    let server = Operated::start_in(directory, &config(""));
    let log = server.path().join("log");
    let all = [&["--http1.1"][..], &["--http2"], &["--http2"], &["--http2", "--tls-max", "1.2"]];
    for (before, arguments) in all.into_iter().enumerate() {
        assert_eq!(curl(server.path(), port, arguments), "200", "{arguments:?}");
        // Workers write their own lines, so that the order would not be known.
        lines_of(&log, before + 1);
    }
    let lines = lines_of(&log, all.len());
    let logged: Vec<_> = lines.iter().map(|line| line.split_once(' ').unwrap()).collect();
    let [(h1, none), (h2, http2), again, (old, _)] = logged[..] else { panic!("{lines:?}") };
    assert_eq!(none, "-", "HTTP/1 has no fingerprint of HTTP/2");
    for (ja4, begin, end) in [(h1, "t13d", "h1"), (h2, "t13d", "h2"), (old, "t12d", "h2")] {
        let (readable, ..) = parts(ja4);
        assert!(readable.starts_with(begin) && readable.ends_with(end), "{ja4}");
    }
    assert_eq!(again, (h2, http2), "the same client");
    // Settings, window, priorities, and pseudo-fields in the order of the client.
    let [settings, window, _, fields] = http2.split('|').collect::<Vec<_>>()[..] else { panic!("{http2}") };
    assert!(settings.split(';').all(|setting| setting.split_once(':').is_some()), "{http2}");
    assert!(window.parse::<u32>().is_ok(), "{http2}");
    let mut sorted: Vec<_> = fields.split(',').collect();
    sorted.sort_unstable();
    assert_eq!(sorted, ["a", "m", "p", "s"], "{http2}");
    // Both are keys of conditions.
    server.reload(&config(&format!(" deny all when=\"http2_fingerprint == '{http2}' and ja4 == '{h2}'\"\n")));
    let arguments = ["--http1.1", "--http2"].map(|version| curl(server.path(), port, &[version]));
    assert_eq!(arguments, ["200", "403"]);
}

#[test]
fn quic_handshakes_have_fingerprints() {
    let options = |rules: &str| {
        format!("respond \"/\" 200 \"ok\"\n access-log \"@DIR@/log\" format=\"{{version}} {{ja4}}\"\n {rules}")
    };
    let Some(server) = H3Server::start(&options("")) else { return };
    for _ in 0..2 {
        assert_eq!(server.connect().order("get /"), "200 ok");
    }
    assert_eq!(curl(server.operated.path(), server.port, &["--http2"]), "200");
    let log = server.operated.path().join("log");
    // Workers write their own lines, so that the order may differ.
    let mut lines = lines_of(&log, 3);
    lines.sort_by_key(|line| line.contains(" t13d"));
    let ja4: Vec<_> = lines.iter().map(|line| line.split_once(' ').unwrap().1).collect();
    let (readable, ..) = parts(ja4[0]);
    assert!(readable.starts_with("q13d") && readable.ends_with("h3"), "{lines:?}");
    assert_eq!(ja4[0], ja4[1], "the same client");
    assert!(ja4[2].starts_with("t13d"), "{lines:?}");
    server.reload(&options(&format!("deny all when=\"ja4 == '{}'\"", ja4[0])));
    assert_eq!(server.connect().order("get /").split(' ').next(), Some("403"));
    assert_eq!(curl(server.operated.path(), server.port, &["--http2"]), "200");
}

/// Value in the encoding of MaxMind's format: its type and size, then its bytes.
fn value(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let size = bytes.len() as u8;
    assert!(size < 29, "longer sizes have more bytes");
    let control = if kind > 7 { vec![size, kind - 7] } else { vec![kind << 5 | size] };
    [control, bytes.to_vec()].concat()
}

fn text(text: &str) -> Vec<u8> {
    value(2, text.as_bytes())
}

fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let content = entries.iter().flat_map(|(key, value)| [text(key), value.clone()]).flatten();
    std::iter::once(7 << 5 | entries.len() as u8).chain(content).collect()
}

/// Database in MaxMind's format (version 2.0) that knows one network of eight bits.
fn database(network: u8, data: &[u8]) -> Vec<u8> {
    const NODES: u32 = 8;
    let mut tree = Vec::new();
    for depth in 0..NODES {
        let next = if depth + 1 == NODES { NODES + 16 } else { depth + 1 };
        // A record with the number of nodes means that nothing is known.
        let is_one = network >> (7 - depth) & 1 == 1;
        for record in if is_one { [NODES, next] } else { [next, NODES] } {
            tree.extend_from_slice(&record.to_be_bytes()[1..]);
        }
    }
    let metadata = map(&[
        ("node_count", value(6, &[NODES as u8])),
        ("record_size", value(5, &[24])),
        ("ip_version", value(5, &[4])),
        ("database_type", text("Test")),
        ("languages", vec![0, 11 - 7]),
        ("binary_format_major_version", value(5, &[2])),
        ("binary_format_minor_version", value(5, &[])),
        ("build_epoch", value(9, &[1])),
        ("description", map(&[])),
    ]);
    [&tree[..], &[0; 16], data, b"\xab\xcd\xefMaxMind.com", &metadata].concat()
}

#[test]
fn countries_and_network_operators() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let country = |code: &str| map(&[("country", map(&[("iso_code", text(code))]))]);
    std::fs::write(directory.path().join("country.mmdb"), database(127, &country("DE"))).unwrap();
    let system = map(&[("autonomous_system_number", value(6, &64_496_u32.to_be_bytes()))]);
    std::fs::write(directory.path().join("asn.mmdb"), database(127, &system)).unwrap();
    let config = format!(
        "server {{\n workers 1\n trusted-proxies \"127.0.0.1\"\n country-database \"{place}/country.mmdb\"\n \
         asn-database \"{place}/asn.mmdb\"\n}}\nsite {{\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"hello\"\n \
         respond \"/asn\" 200 \"hello\"\n deny all path=\"/closed\" when=\"country == 'FR'\"\n \
         deny all path=\"/asn\" when=\"asn == '64496'\"\n respond \"/closed\" 200 \"open\"\n \
         access-log \"{place}/log\" format=\"{{country}} {{asn}}\"\n}}\n"
    );
    let server = TestServer::run(&config);
    let status = |path: &str, client: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\r\n");
        ask(&server, &request)[9..12].to_owned()
    };
    assert_eq!([status("/", "127.9.9.9"), status("/", "192.0.2.1")], ["200", "200"]);
    assert_eq!(lines_of(&directory.path().join("log"), 2), ["DE 64496", "- -"]);
    assert_eq!([status("/asn", "127.9.9.9"), status("/asn", "192.0.2.1")], ["403", "200"]);
    assert_eq!(status("/closed", "127.9.9.9"), "200");
    // A new file counts without a reload; a file that is wrong changes nothing.
    std::fs::write(directory.path().join("new"), database(127, &country("FR"))).unwrap();
    std::fs::rename(directory.path().join("new"), directory.path().join("country.mmdb")).unwrap();
    server.await_log("database of addresses reloaded");
    assert_eq!(status("/closed", "127.9.9.9"), "403");
    std::fs::write(directory.path().join("country.mmdb"), "oops").unwrap();
    server.await_log("database of addresses not reloaded");
    assert_eq!(status("/closed", "127.9.9.9"), "403");
}
