//! Client (curl) for all versions of HTTP, whose responses must not depend on the version.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::TestServer;
use super::h3::has_client;
use super::port::free_port;
use super::skips::skip_without;
use super::tls::TestCa;

/// HTTP version and transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestVersion {
    /// HTTP/1.1
    H1,
    /// HTTP/1.1 over TLS
    H1Tls,
    /// HTTP/2 without TLS, by prior knowledge
    H2c,
    /// HTTP/2 over TLS
    H2,
    /// HTTP/3
    H3,
}

const ALL: [TestVersion; 5] = [TestVersion::H1, TestVersion::H1Tls, TestVersion::H2c, TestVersion::H2, TestVersion::H3];

/// Client with the arguments of curl, on aioquic.
const H3_CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/support/h3_client.py");

/// Server with the same site on a plain and a TLS listener.
pub(crate) struct AnyVersion {
    _server: TestServer,
    plain: SocketAddr,
    tls: SocketAddr,
    directory: TempDir,
}

/// Protocol towards an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamVersion {
    Http1,
    H2c,
    /// HTTP/2 over TLS.
    Tls,
    /// HTTP/1.1 over TLS.
    TlsHttp1,
}

/// Upstream that speaks the wanted protocol: a Tailcoat that forwards to an HTTP/1.1 server, or that server itself if
/// it can.
pub(crate) struct VersionUpstream {
    _server: Option<(TestServer, TempDir)>,
    /// Configuration block of the upstream `backend`.
    pub(crate) upstream: String,
}

impl VersionUpstream {
    /// Upstream that reaches the server at this address.
    pub(crate) fn start(way: UpstreamVersion, address: SocketAddr) -> Self {
        if way == UpstreamVersion::Http1 {
            let upstream = format!("upstream \"backend\" {{\n server \"http://{address}\"\n}}\n");
            return Self { _server: None, upstream };
        }
        let directory = tempfile::tempdir().expect("a directory for the certificate");
        let authority = TestCa::new();
        std::fs::write(directory.path().join("backend.pem"), authority.pem()).expect("it can be written");
        authority.sign(&["localhost"]).write(directory.path(), "localhost");
        let path = directory.path().display();
        let tls = match way {
            UpstreamVersion::Http1 | UpstreamVersion::H2c => String::new(),
            UpstreamVersion::Tls | UpstreamVersion::TlsHttp1 => {
                format!("tls=on\n certificate \"{path}/localhost.pem\" key=\"{path}/localhost.key\"")
            }
        };
        let server = TestServer::run(&format!(
            "site \"localhost\" {{\n listen \"127.0.0.1:0\" {tls}\n default\n forward \"http://{address}\" {{\n  \
             client-fields keep\n body-bytes-max \"1GiB\"\n }}\n}}\nserver {{ workers 1 }}\n"
        ));
        let port = server.address.port();
        let options = match way {
            UpstreamVersion::Http1 | UpstreamVersion::H2c => format!("server \"h2c://localhost:{port}\""),
            UpstreamVersion::Tls => {
                format!("server \"https://localhost:{port}\"\n tls-authorities \"{path}/backend.pem\"")
            }
            UpstreamVersion::TlsHttp1 => {
                format!("server \"https://localhost:{port}\"\n tls-authorities \"{path}/backend.pem\"\n tls-http2 off")
            }
        };
        let upstream = format!("upstream \"backend\" {{\n {options}\n}}\n");
        Self { _server: Some((server, directory)), upstream }
    }
}

/// Response as compared between versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VersionResponse {
    pub(crate) status: u16,
    /// Names in lower case and values, in order of names, without those that depend on the connection or the time.
    pub(crate) fields: Vec<(String, String)>,
    /// Interim responses, and trailers after the final one.
    pub(crate) interim: Vec<u16>,
    pub(crate) trailers: Vec<(String, String)>,
    pub(crate) content: Vec<u8>,
}

impl AnyVersion {
    /// Starts a site with these options. Skips and returns `None` if curl lacks HTTP/2.
    pub(crate) fn start(options: &str, elsewhere: &str) -> Option<Self> {
        let version = Command::new("curl").arg("--version").output().ok();
        if !version.is_some_and(|output| String::from_utf8_lossy(&output.stdout).contains("HTTP2")) {
            // One without HTTP/2 is of no use.
            skip_without("curl");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory for the certificate");
        let authority = TestCa::new();
        std::fs::write(directory.path().join("ca.pem"), authority.pem()).expect("it can be written");
        authority.sign(&["localhost"]).write(directory.path(), "localhost");
        let path = directory.path().display();
        // The server prints addresses in the order of its listeners.
        let [plain, tls] = free_ports();
        let server = TestServer::run(&format!(
            "site \"localhost\" {{\n listen \"{plain}\"\n listen \"{tls}\" tls=on\n default\n \
             certificate \"{path}/localhost.pem\" key=\"{path}/localhost.key\"\n{options}\n}}\n\
             server {{\n workers 1\n http-versions \"1.1\" \"2\" \"3\"\n}}\n{elsewhere}\n"
        ));
        Some(Self { _server: server, plain, tls, directory })
    }

    /// Sends a request in this version, with further arguments for curl.
    pub(crate) fn ask(&self, version: TestVersion, path: &str, arguments: &[&str]) -> VersionResponse {
        let (scheme, address) = match version {
            TestVersion::H1 | TestVersion::H2c => ("http", self.plain),
            TestVersion::H1Tls | TestVersion::H2 | TestVersion::H3 => ("https", self.tls),
        };
        let [head, content] = ["head", "content"].map(|name| self.directory.path().join(name));
        let [_, _] = [&head, &content].map(|file| std::fs::remove_file(file).is_ok());
        let output = client(version, address.port())
            .args(["--dump-header", &text(&head), "--output", &text(&content)])
            .args(["--cacert", &text(&self.directory.path().join("ca.pem"))])
            .args(arguments)
            .arg(format!("{scheme}://localhost:{}{path}", address.port()))
            .stdin(Stdio::null())
            .output()
            .expect("the client can be started");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{version:?} {path} {arguments:?}: {errors}");
        let expect = match version {
            TestVersion::H1 | TestVersion::H1Tls => "1.1",
            TestVersion::H2c | TestVersion::H2 => "2",
            TestVersion::H3 => "3",
        };
        assert_eq!(said, expect, "{version:?} {path}");
        // For HEAD, curl writes the head as content.
        let content = if arguments.contains(&"--head") { None } else { std::fs::read(content).ok() };
        VersionResponse::new(&std::fs::read_to_string(head).expect("there is a head"), content.unwrap_or_default())
    }

    /// Sends the request in all versions; the responses must be equal.
    pub(crate) fn ask_all(&self, path: &str, arguments: &[&str]) -> VersionResponse {
        let first = self.ask(ALL[0], path, arguments);
        for version in versions().into_iter().skip(1) {
            let answer = self.ask(version, path, arguments);
            assert!(answer == first, "{version:?} {path} {arguments:?}: {answer:?}\nnot {first:?}");
        }
        first
    }
}

impl VersionResponse {
    /// Parses curl's dump: interim heads, final head, trailers.
    fn new(dump: &str, content: Vec<u8>) -> Self {
        let mut answer = Self { content, ..Self::default() };
        let mut is_after = false;
        for line in dump.lines() {
            if let Some(line) = line.strip_prefix("HTTP/") {
                let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
                if answer.status != 0 {
                    answer.interim.push(answer.status);
                    answer.fields.clear();
                }
                (answer.status, is_after) = (status, false);
            } else if let Some((name, value)) = line.split_once(':') {
                let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
                let differs = ["connection", "keep-alive", "transfer-encoding", "date", "age", "alt-svc"];
                if differs.contains(&name.as_str()) {
                    continue;
                }
                let lines = if is_after { &mut answer.trailers } else { &mut answer.fields };
                lines.push((name, value));
            } else {
                is_after = true;
            }
        }
        answer.fields.sort();
        answer
    }

    /// Value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// Versions that a client on this machine speaks. HTTP/3 needs aioquic.
pub(crate) fn versions() -> Vec<TestVersion> {
    let has_http3 = has_client();
    ALL.into_iter().filter(|version| has_http3 || *version != TestVersion::H3).collect()
}

/// Client of a version for `localhost` at a port. It prints the version that it has spoken.
fn client(version: TestVersion, port: u16) -> Command {
    if version == TestVersion::H3 {
        let mut client = Command::new("python3");
        client.arg(H3_CLIENT);
        return client;
    }
    let mut client = Command::new("curl");
    client
        .args(["--silent", "--show-error", "--path-as-is", "--max-time", "60", "--noproxy", "*", "--globoff"])
        .arg(match version {
            TestVersion::H1 | TestVersion::H1Tls => "--http1.1",
            TestVersion::H2c => "--http2-prior-knowledge",
            TestVersion::H2 | TestVersion::H3 => "--http2",
        })
        .args(["--write-out", "%{http_version}"])
        .args(["--resolve", &format!("localhost:{port}:127.0.0.1")]);
    client
}

/// Two free addresses.
fn free_ports() -> [SocketAddr; 2] {
    [(), ()].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
