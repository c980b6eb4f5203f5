//! WebSockets through the server, to a third-party server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::support::real_server::{RealServer, Recipe};
use crate::support::tls::TestCa;
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::versions::{UpstreamVersion, VersionUpstream};
use crate::support::{TestServer, read_until};

const SERVER: Recipe<'_> = Recipe {
    needs: &["/usr/bin/python3", "/usr/lib/python3/dist-packages/websockets"],
    files: &[
        ("server.py", include_str!("applications/websocket_server.py")),
        ("client.py", include_str!("applications/websocket_client.py")),
    ],
    command: &["/usr/bin/python3", "@DIR@/server.py", "@PORT@"],
    environment: &[],
};

#[test]
fn all_that_the_protocol_has() {
    let Some(upstream) = RealServer::start(&SERVER) else { return };
    let (authority, directory) = (TestCa::new(), upstream.directory());
    authority.sign(&["localhost"]).write(directory, "localhost");
    let (upstream_address, path) = (upstream.address, directory.display());
    let certificate = format!("certificate \"{path}/localhost.pem\" key=\"{path}/localhost.key\"");
    let encrypted = format!(" tls=on\n {certificate}");
    for (scheme, listen, way) in [
        ("ws", "", UpstreamVersion::Http1),
        ("wss", &encrypted, UpstreamVersion::Http1),
        // RFC 8441.
        ("ws", "", UpstreamVersion::H2c),
        ("wss", &encrypted, UpstreamVersion::Tls),
        ("ws", "", UpstreamVersion::TlsHttp1),
    ] {
        let backend = VersionUpstream::start(way, upstream_address);
        let server = TestServer::run(&format!(
            "site \"localhost\" {{\n listen \"127.0.0.1:0\"{listen}\n default\n forward \"backend\"\n}}\n\
             server {{ workers 1 }}\n{}",
            backend.upstream
        ));
        let client = Command::new("/usr/bin/python3")
            .arg(directory.join("client.py"))
            .arg(format!("{scheme}://localhost:{}/", server.address.port()))
            .output()
            .expect("it can be started");
        let (said, errors) = (String::from_utf8_lossy(&client.stdout), String::from_utf8_lossy(&client.stderr));
        assert!(client.status.success(), "{scheme}, {way:?}: {said}{errors}");
    }
}

/// Limit of user-space memory per WebSocket, in bytes.
const MEMORY_BYTES_MAX: u64 = 4 << 10;

/// Sends a message and waits for its echo.
fn say(stream: &mut TcpStream, message: &str) {
    stream.write_all(message.as_bytes()).unwrap();
    let mut echo = vec![0; message.len()];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(String::from_utf8_lossy(&echo), message);
}

/// Opens this many WebSockets, each with messages in both directions.
#[test]
fn two_thousand_open_ones() {
    const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    const BROWSER_UPGRADE: &[u8] = b"GET /chat HTTP/1.1\r\nHost: www.example.com\r\n\
        User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\nAccept: */*\r\n\
        Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate\r\nSec-WebSocket-Version: 13\r\n\
        Origin: http://www.example.com\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nConnection: keep-alive, Upgrade\r\nPragma: no-cache\r\n\
        Cache-Control: no-cache\r\nUpgrade: websocket\r\n\r\n";
    const OPEN: [usize; 2] = [500, 2_000];
    // This process holds both the clients' and the upstream's ends.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let all = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, all).unwrap();
    let upstream =
        ScriptedUpstream::start(vec![vec![ScriptStep::Read("\r\n\r\n"), ScriptStep::Write(SWITCH), ScriptStep::Echo]]);
    let log = tempfile::NamedTempFile::new().unwrap();
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\"\n}}\nserver {{ workers 1 }}\naccess-log \"{}\"\n",
        upstream.address,
        log.path().display()
    ));
    let (mut open, mut memory) = (Vec::new(), Vec::new());
    for count in OPEN {
        while open.len() < count {
            let mut stream = server.connect();
            stream.write_all(BROWSER_UPGRADE).unwrap();
            read_until(&mut stream, "\r\n\r\n");
            open.push(stream);
        }
        for round in 0..3 {
            for (index, stream) in open.iter_mut().enumerate() {
                say(stream, &format!("message {round} of connection {index}\n"));
            }
        }
        memory.push(server.memory_kib());
    }
    let each = (memory[1] - memory[0]) * 1024 / (OPEN[1] - OPEN[0]) as u64;
    println!("{each} bytes a connection");
    assert!(each <= MEMORY_BYTES_MAX, "{each} bytes a connection");
}
