//! TLS: versions, names, certificates, sessions.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::{cipher_suite as suites, default_provider};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, HandshakeKind, ProtocolVersion, SignatureScheme};
use tempfile::TempDir;

use crate::support::tls::{TestCa, ask, connect, handshake};
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::waiting::{eventually, eventually_some};
use crate::support::{LARGE_BYTES, TestServer, read_all, site_with_large_file, tailcoat};

const LAST_GET: &str = "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";

/// Directory with the CA's certificate, and certificates for these names, in files of the same names.
fn certificates(authority: &TestCa, names: &[&str]) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory for certificates");
    std::fs::write(directory.path().join("ca.pem"), authority.pem()).expect("it can be written");
    for name in names {
        authority.sign(&[name]).write(directory.path(), &name.replace('*', "any"));
    }
    directory
}

/// Option for a certificate that [`certificates`] has made.
fn certificate(directory: &Path, name: &str) -> String {
    let path = directory.join(name.replace('*', "any"));
    format!("certificate \"{0}.pem\" key=\"{0}.key\"", path.display())
}

fn site(directory: &Path, name: &str, inside: &str) -> String {
    let certificate = certificate(directory, name);
    format!(
        "site \"{name}\" {{\n listen \"127.0.0.1:0\" tls=on\n {certificate}\n respond \"/\" 200 \"{name}\"\n{inside}}}\n"
    )
}

const ONE_WORKER: &str = "server { workers 1 }\n";

/// ClientHello of a client.
fn client_hello(authority: &TestCa) -> Vec<u8> {
    let name = "a.example".try_into().expect("it is a name");
    let mut session = rustls::ClientConnection::new(Arc::new(authority.client(None)), name).expect("a session");
    let mut hello = Vec::new();
    session.write_tls(&mut hello).expect("memory takes it");
    hello
}

/// One client starts many handshakes, and stays or leaves: another client waits for few of them.
#[test]
fn many_handshakes_of_one_client_hold_up_no_other() {
    let authority = TestCa::new();
    let directory = certificates(&authority, &["a.example"]);
    let hello = client_hello(&authority);
    let limits = "limits {\n tls-handshakes-per-second-max 5\n tls-handshake-timeout \"20s\"\n}\n";
    let config = [ONE_WORKER, limits, &site(directory.path(), "a.example", "")].concat();
    for stays in [false, true] {
        let server = TestServer::run(&config);
        let held: Vec<_> = (0..300)
            .filter_map(|_| {
                let mut attacker = server.connect();
                attacker.write_all(&hello).expect("the server reads");
                stays.then_some(attacker)
            })
            .collect();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 2], 0)).into()).expect("the loopback has it");
        socket.connect(&server.address.into()).expect("the server takes connections");
        let client = Arc::new(authority.client(None));
        let mut stream = handshake(socket.into(), &client, "a.example").expect("the handshake succeeds");
        assert!(ask(&mut stream, LAST_GET).expect("an answer").starts_with("HTTP/1.1 200 "), "{stays}");
        drop(held);
    }
}

#[test]
fn requests_are_answered_as_without() {
    let (authority, files) = (TestCa::new(), site_with_large_file());
    let keys = certificates(&authority, &["localhost"]);
    std::fs::write(files.path().join("index.html"), "hello").expect("it can be written");
    let path = |name: &str| keys.path().join(name).display().to_string();
    let server =
        TestServer::serve(files.path(), &["--tls-cert", &path("localhost.pem"), "--tls-key", &path("localhost.key")]);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut client = authority.client_of(&[version], None);
        client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let stream = connect(&server, &Arc::new(client.clone()), "localhost").expect("the handshake succeeds");
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
        client.alpn_protocols.remove(0);
        let client = Arc::new(client);
        let mut stream = connect(&server, &client, "localhost").expect("the handshake succeeds");
        assert_eq!(stream.conn.protocol_version(), Some(version.version));
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        // Requests in sequence; then some at once, large ones among them.
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        for _ in 0..3 {
            stream.write_all(get("/").as_bytes()).expect("the server reads");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\nhello") {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("an answer comes");
                head.push(byte[0]);
            }
        }
        let last = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answers = ask(&mut stream, &[&get("/large"), &get("/"), &get("/large"), last].concat());
        let answers = answers.expect("the server says that it ends");
        assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 4);
        assert_eq!(answers.bytes().filter(|byte| *byte == b'x').count() / 1_000, 2 * LARGE_BYTES / 1_000);
        assert!(answers.ends_with("hello"));
    }
}

#[test]
fn the_name_chooses_site_and_certificate() {
    let authority = TestCa::new();
    let names = ["a.example", "*.b.example", "b.test"];
    let keys = certificates(&authority, &names);
    let config: String = names.iter().map(|name| site(keys.path(), name, "")).collect();
    let server = TestServer::run(&(config + ONE_WORKER));
    let client = Arc::new(authority.client(None));
    for (name, expect) in
        [("a.example", "a.example"), ("x.b.example", "*.b.example"), ("b.test", "b.test"), ("A.EXAMPLE", "a.example")]
    {
        let mut stream = connect(&server, &client, name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        let answer = ask(&mut stream, &request).expect("an answer comes");
        assert!(answer.ends_with(&format!("\r\n\r\n{expect}")), "{name}: {answer}");
    }
    // An unknown name gets the first site's certificate, which does not match.
    assert!(connect(&server, &client, "c.test").is_err());
}

#[test]
fn sessions_are_resumed_by_whichever_worker() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    // The client must present a certificate each time: a session may be of a site on another listener, which needs
    // none.
    let asks = format!("client-certificate \"optional\" ca-file=\"{}\"\n", keys.path().join("ca.pem").display());
    for (option, expect) in
        [("", HandshakeKind::Resumed), ("tls-tickets off\n", HandshakeKind::Full), (asks.as_str(), HandshakeKind::Full)]
    {
        let server = TestServer::run(&(site(keys.path(), "a.example", option) + "server { workers 2 }\n"));
        let client = Arc::new(authority.client(None));
        for round in 0..8 {
            let mut stream = connect(&server, &client, "a.example").expect("the handshake succeeds");
            let kind = stream.conn.handshake_kind();
            assert_eq!(kind, Some(if round == 0 { HandshakeKind::Full } else { expect }), "{option:?} {round}");
            ask(&mut stream, LAST_GET).expect("an answer comes");
        }
    }
}

#[test]
fn clients_show_certificates() {
    let (authority, clients, strangers) = (TestCa::new(), TestCa::new(), TestCa::new());
    let keys = certificates(&authority, &["a.example", "b.example", "c.example"]);
    let known = keys.path().join("clients.pem");
    std::fs::write(&known, clients.pem()).expect("it can be written");
    let asks = |mode: &str| format!("client-certificate \"{mode}\" ca-file=\"{}\"\n", known.display());
    let config = [
        site(keys.path(), "a.example", &asks("required")),
        site(keys.path(), "b.example", &asks("optional")),
        site(keys.path(), "c.example", ""),
    ];
    let server = TestServer::run(&(config.concat() + ONE_WORKER));
    let (friend, stranger) = (clients.sign(&["friend"]), strangers.sign(&["stranger"]));
    let get = |own, name: &str, host: &str| {
        let client = Arc::new(authority.client(own));
        let mut stream = connect(&server, &client, name)?;
        ask(&mut stream, &format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
    };
    for (own, name, host, expect) in [
        (Some(&friend), "a.example", "a.example", Some("200")),
        (Some(&stranger), "a.example", "a.example", None),
        (None, "a.example", "a.example", None),
        (Some(&friend), "b.example", "b.example", Some("200")),
        (Some(&stranger), "b.example", "b.example", None),
        (None, "b.example", "b.example", Some("200")),
        // A connection to one site gives no access to another with stricter client certificates.
        (None, "c.example", "a.example", Some("421")),
        (None, "b.example", "a.example", Some("421")),
        (Some(&friend), "a.example", "c.example", Some("200")),
    ] {
        let status = get(own, name, host).ok().and_then(|answer| Some(answer.split(' ').nth(1)?.to_owned()));
        assert_eq!(status.as_deref(), expect, "{name} {host} {}", own.is_some());
    }
}

#[test]
fn new_certificates_are_taken_up() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    let config = site(keys.path(), "a.example", "") + "server { workers 1; certificate-check-interval \"100ms\" }\n";
    let server = TestServer::run(&config);
    let client = Arc::new(authority.client(None));
    let serial = || {
        let stream = connect(&server, &client, "a.example").expect("the handshake succeeds");
        stream.conn.peer_certificates().expect("it has one")[0].to_vec()
    };
    let mut open = connect(&server, &client, "a.example").expect("the handshake succeeds");
    let first = serial();
    std::fs::write(keys.path().join("a.example.pem"), "broken").expect("it can be written");
    server.await_log("the certificates in use stay in use");
    assert_eq!(serial(), first, "an unusable certificate is not used");
    authority.sign(&["a.example"]).write(keys.path(), "a.example");
    eventually("the new certificate is used", || serial() != first);
    assert!(ask(&mut open, LAST_GET).expect("an answer comes").starts_with("HTTP/1.1 200 "));
}

#[test]
fn clients_get_the_kind_of_certificate_that_they_understand() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    authority.sign_rsa(&["a.example"]).write(keys.path(), "rsa");
    let other = certificate(keys.path(), "rsa");
    let server = TestServer::run(&(site(keys.path(), "a.example", &format!("{other}\n")) + ONE_WORKER));
    for (suite, expect) in [
        (suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "rsa.pem"),
        (suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "a.example.pem"),
        (suites::TLS13_AES_128_GCM_SHA256, "a.example.pem"),
    ] {
        let provider = CryptoProvider { cipher_suites: vec![suite], ..default_provider() };
        let version = if suite.tls13().is_some() { &TLS13 } else { &TLS12 };
        let client = Arc::new(authority.client_with(provider, &[version], None));
        let stream = connect(&server, &client, "a.example").expect("the handshake succeeds");
        let expect = CertificateDer::from_pem_file(keys.path().join(expect)).expect("it is PEM");
        assert_eq!(stream.conn.peer_certificates().expect("it has one")[0], expect, "{suite:?}");
    }
}

/// A client can use a record only when it is complete; many small ones cost much.
#[test]
fn records_are_small_at_first_and_full_later() {
    // TLS 1.3: the type, and the tag (RFC 8446, section 5.2).
    const OVERHEAD_BYTES: usize = 17;
    const SMALL_BYTES: usize = 4 << 10;
    const FULL_BYTES: usize = 16 << 10;
    const CONTENT_BYTES: usize = 256 << 10;
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    let files = tempfile::tempdir().expect("a directory for the site");
    std::fs::write(files.path().join("large"), vec![b'x'; CONTENT_BYTES]).expect("it can be written");
    let root = format!("root \"{}\"\ntls-tickets off\n", files.path().display());
    let server = TestServer::run(&(site(keys.path(), "a.example", &root) + ONE_WORKER));
    let client = Arc::new(authority.client(None));
    let mut stream = connect(&server, &client, "a.example").expect("the handshake succeeds");
    // Lengths of the records' content, until this many bytes have arrived.
    let mut records = |path: &str, content_bytes: usize| {
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n").expect("the server reads");
        let mut lengths = Vec::new();
        while lengths.iter().sum::<usize>() <= content_bytes {
            let mut header = [0; 5];
            stream.sock.read_exact(&mut header).expect("a record comes");
            let mut record = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
            stream.sock.read_exact(&mut record).expect("all of it comes");
            lengths.push(record.len() - OVERHEAD_BYTES);
        }
        lengths
    };
    for is_first in [true, false] {
        let lengths = records("/large", CONTENT_BYTES);
        assert!(lengths[0] <= SMALL_BYTES, "{lengths:?}");
        let small_bytes: usize = lengths.iter().take_while(|length| **length <= SMALL_BYTES).sum();
        assert!(!is_first || small_bytes >= FULL_BYTES, "{lengths:?}");
        let full = lengths.iter().filter(|length| **length == FULL_BYTES).count();
        assert!(full >= 3 * CONTENT_BYTES / FULL_BYTES / 4 - 1, "{lengths:?}");
    }
    assert_eq!(records("/", "a.example".len()).len(), 1, "head and content are joined");
}

/// Verifier that trusts any certificate, and keeps the stapled OCSP response (RFC 6066, section 8).
#[derive(Debug)]
struct Stapled(Arc<CryptoProvider>, Mutex<Vec<u8>>);

impl ServerCertVerifier for Stapled {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        response: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.1.lock().expect("no thread panics with it") = response.to_vec();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[test]
fn an_ocsp_response_is_sent_as_long_as_its_file_has_it() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    let response = keys.path().join("a.example.ocsp");
    std::fs::write(&response, "first").expect("it can be written");
    let config = site(keys.path(), "a.example", "") + "server { workers 1; certificate-check-interval \"100ms\" }\n";
    let key = "a.example.key\"";
    let server = TestServer::run(&config.replace(key, &format!("{key} ocsp=\"{}\"", response.display())));
    for version in [&TLS12, &TLS13] {
        let verifier = Arc::new(Stapled(Arc::new(default_provider()), Mutex::default()));
        let builder = ClientConfig::builder_with_protocol_versions(&[version]).dangerous();
        let mut client = builder.with_custom_certificate_verifier(Arc::clone(&verifier) as _).with_no_client_auth();
        // A resumed session has no certificate.
        client.resumption = Resumption::disabled();
        let client = Arc::new(client);
        let stapled = || {
            connect(&server, &client, "a.example").expect("the handshake succeeds");
            verifier.1.lock().expect("no thread panics with it").clone()
        };
        let next = format!("of {version:?}");
        assert!(!stapled().is_empty());
        std::fs::write(&response, &next).expect("it can be written");
        eventually("the new response is sent", || stapled() == next.as_bytes());
    }
}

#[test]
fn clients_are_sent_to_https_and_reported_to_stay() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    let socket = keys.path().join("socket");
    let inside = format!("listen \"unix:{}\"\nredirect-to-https\nhsts \"1h\" subdomains=on\n", socket.display());
    let server = TestServer::run(&(site(keys.path(), "a.example", &inside) + ONE_WORKER));
    let mut plain = std::os::unix::net::UnixStream::connect(&socket).expect("the server takes connections");
    let request = "GET /b%20c?d HTTP/1.1\r\nHost: a.example:80\r\nConnection: close\r\n\r\n";
    plain.write_all(request.as_bytes()).expect("the server reads");
    let mut answer = String::new();
    plain.read_to_string(&mut answer).expect("an answer comes");
    assert!(answer.starts_with("HTTP/1.1 308 "), "{answer}");
    // The port is the configured one: 0 in tests.
    assert!(answer.contains("\r\nLocation: https://a.example:0/b%20c?d\r\n"), "{answer}");
    assert!(!answer.contains("Strict-Transport-Security"), "{answer}");
    let client = Arc::new(authority.client(None));
    let mut stream = connect(&server, &client, "a.example").expect("the handshake succeeds");
    let answer = ask(&mut stream, LAST_GET).expect("an answer comes");
    assert!(answer.contains("\r\nStrict-Transport-Security: max-age=3600; includeSubDomains\r\n"), "{answer}");
}

#[test]
fn slow_and_senseless_handshakes_end() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    let config = site(keys.path(), "a.example", "") + ONE_WORKER + "limits { tls-handshake-timeout \"300ms\" }\n";
    let server = TestServer::run(&config);
    // Silent, or stuck in the middle of the first message.
    for input in [&b""[..], &[22, 3, 1, 2, 0, 1]] {
        let mut stream = server.connect();
        stream.write_all(input).expect("the server reads");
        assert_eq!(read_all(&mut stream), "", "{input:?}");
    }
    // Alert in plain text (RFC 8446, section 6): level fatal, and its description.
    for input in [&b"get / HTTP/1.1\r\n\r\n"[..], &[22, 3, 1, 0, 4, 2, 0, 0, 0], &[0; 64]] {
        let mut stream = server.connect();
        stream.write_all(input).expect("the server reads");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(&[21, 3]), "{input:?} {answer:?}");
    }
    // Other clients are served meanwhile, however their bytes are split.
    let client = Arc::new(authority.client(None));
    // On a busy machine, a handshake may take longer than the limit.
    let mut stream = eventually_some("a handshake succeeds", || connect(&server, &client, "a.example").ok());
    for byte in LAST_GET.as_bytes() {
        stream.write_all(&[*byte]).expect("the server reads");
    }
    assert!(ask(&mut stream, "").expect("an answer comes").ends_with("a.example"));
}

#[test]
fn proxies_speak_before_tls() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    let config = site(keys.path(), "a.example", "deny \"192.0.2.66\"\n").replace("tls=on", "tls=on proxy-protocol=on");
    let server = TestServer::run(&(config + "server { workers 1; trusted-proxies \"127.0.0.1\" }\n"));
    let client = Arc::new(authority.client(None));
    for (address, expect) in [("192.0.2.1", "HTTP/1.1 200 "), ("192.0.2.66", "HTTP/1.1 403 ")] {
        let mut socket = server.connect();
        write!(socket, "PROXY TCP4 {address} 192.0.2.2 1 443\r\n").expect("the server reads");
        let mut stream = handshake(socket, &client, "a.example").expect("the handshake succeeds");
        let answer = ask(&mut stream, LAST_GET).expect("an answer comes");
        assert!(answer.starts_with(expect), "{address}: {answer}");
    }
}

#[test]
fn upstreams_are_told_of_tls() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    let upstream = ScriptedUpstream::start(vec![vec![
        ScriptStep::Read("\r\n\r\n"),
        ScriptStep::Write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"),
    ]]);
    let forward = format!("forward \"http://{}\" {{ forwarded-headers \"both\" }}\n", upstream.address);
    let config = site(keys.path(), "a.example", &forward).replace("respond \"/\" 200 \"a.example\"", "");
    let server = TestServer::run(&(config + ONE_WORKER));
    let mut stream = connect(&server, &Arc::new(authority.client(None)), "a.example").expect("the handshake succeeds");
    let answer = ask(&mut stream, LAST_GET).expect("an answer comes");
    assert!(answer.ends_with("ok"), "{answer}");
    let head = upstream.connection();
    assert!(head.contains("\r\nX-Forwarded-Proto: https\r\n"), "{head}");
    assert!(head.contains(";proto=https"), "{head}");
}

/// Clients can tell the end of a streamed response from an attacker's (RFC 8446, section 6.1).
#[test]
fn the_end_is_reported() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    let upstream = ScriptedUpstream::start(vec![vec![
        ScriptStep::Read("\r\n\r\n"),
        ScriptStep::Write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\no"),
        ScriptStep::Pause(20),
        ScriptStep::Write("k"),
    ]]);
    let forward = format!("forward \"http://{}\"\n", upstream.address);
    let config = site(keys.path(), "a.example", &forward).replace("respond \"/\" 200 \"a.example\"", "");
    let server = |limits: &str| TestServer::run(&[config.as_str(), ONE_WORKER, limits].concat());
    let (usual, hasty) = (server(""), server("limits { idle-timeout \"300ms\" }\n"));
    let client = Arc::new(authority.client(None));
    // The end of the connection ends the content; and a request that never arrives.
    for (server, request, end) in [
        (&usual, "GET / HTTP/1.0\r\nHost: a.example\r\n\r\n", "\r\n\r\nok"),
        (&usual, LAST_GET, "0\r\n\r\n"),
        (&hasty, "", ""),
    ] {
        let mut stream = connect(server, &client, "a.example").expect("the handshake succeeds");
        assert!(ask(&mut stream, request).expect("it says that it ends").ends_with(end));
    }
}

#[test]
fn logs_and_upstreams_are_reported() {
    let (authority, clients) = (TestCa::new(), TestCa::new());
    let keys = certificates(&authority, &["a.example"]);
    let known = keys.path().join("clients.pem");
    std::fs::write(&known, clients.pem()).expect("it can be written");
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    let upstream = ScriptedUpstream::start(vec![vec![ScriptStep::Read("\r\n\r\n"), ScriptStep::Write(ok)]]);
    let log = |name: &str| keys.path().join(name).display().to_string();
    let rules = format!(
        "forward \"http://{}\"\nclient-certificate \"optional\" ca-file=\"{}\"\naccess-log \"{}\" format=binary\n\
         request-header \"X-Client\" \"{{tls_client}}\"\n\
         request-header \"X-Tls\" \"{{tls_version}} {{tls_cipher_suite}} {{tls_server_name}} {{scheme}}\"\n",
        upstream.address,
        known.display(),
        log("binary")
    );
    let config = site(keys.path(), "a.example", &rules).replace("respond \"/\" 200 \"a.example\"", "");
    let mut server = TestServer::run(&(config + ONE_WORKER));
    let anna = clients.sign(&["anna, O=Admins"]);
    let request = LAST_GET.replace("Connection", "X-Client: CN=root\r\nX_Client: CN=root\r\nConnection");
    // The second connection uses the ticket of the first, with the same client certificate.
    let friend = Arc::new(authority.client_of(&[&rustls::version::TLS13], Some(&anna)));
    let stranger = Arc::new(authority.client_of(&[&rustls::version::TLS12], None));
    for (client, version, suite, names) in [
        (&friend, "TLSv1.3", "TLS13_AES_256_GCM_SHA384", &["CN=anna\\, O\\=Admins"][..]),
        (&friend, "TLSv1.3", "TLS13_AES_256_GCM_SHA384", &["CN=anna\\, O\\=Admins"]),
        (&stranger, "TLSv1.2", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", &[]),
    ] {
        let mut stream = connect(&server, client, "a.example").expect("the handshake succeeds");
        assert!(ask(&mut stream, &request).expect("an answer comes").ends_with("ok"));
        let head = upstream.connection();
        let reported = |name: &str| head.lines().filter_map(|line| line.strip_prefix(name)).collect::<Vec<_>>();
        assert_eq!(reported("X-Tls: "), [format!("{version} {suite} a.example https")], "{head}");
        assert_eq!(reported("X-Client: "), names, "{head}");
        assert_eq!(reported("X_Client: "), [""; 0], "{head}");
    }
    server.signal("TERM");
    assert!(server.wait());
    let lines = |format: &str| {
        let output = tailcoat().args(["log", "convert", "--format", format]).arg(log("binary")).output();
        let text = String::from_utf8(output.expect("the built binary starts").stdout).expect("logs are text");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let json = lines("json");
    let expect = ",\"tls_version\":\"TLSv1.3\",\"tls_cipher_suite\":\"TLS13_AES_256_GCM_SHA384\",\
                  \"tls_server_name\":\"a.example\",\"tls_client\":\"CN=anna\\\\, O\\\\=Admins\",\"upstream\":";
    assert!(json[0].contains(expect) && json[1].contains(expect), "{json:?}");
    assert!(json[2].contains("\"tls_version\":\"TLSv1.2\"") && !json[2].contains("tls_client"), "{json:?}");
    let w3c = lines("w3c");
    assert!(w3c[3].ends_with(" x-tls-version x-tls-cipher-suite x-tls-server-name x-tls-client"), "{w3c:?}");
    let of_friend = " TLSv1.3 TLS13_AES_256_GCM_SHA384 a.example \"CN=anna\\x5C, O\\x5C=Admins\"";
    assert!(w3c[4].ends_with(of_friend), "{w3c:?}");
    let of_stranger = " TLSv1.2 TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 a.example -";
    assert!(w3c[6].ends_with(of_stranger), "{w3c:?}");
    let template = lines("{tls_version}|{tls_server_name}|\"{tls_client}\"");
    assert_eq!(template[0], "TLSv1.3|a.example|\"CN=anna\\x5C, O\\x5C=Admins\"");
    assert_eq!(template[2], "TLSv1.2|a.example|\"-\"");
}

#[test]
fn versions_and_suites_are_those_that_are_allowed() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    let options = "tls-version-min \"1.3\"\ntls-cipher-suites \"TLS13_CHACHA20_POLY1305_SHA256\"\n";
    let server = TestServer::run(&(site(keys.path(), "a.example", options) + ONE_WORKER));
    let stream = connect(&server, &Arc::new(authority.client(None)), "a.example").expect("the handshake succeeds");
    assert_eq!(stream.conn.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    let suite = stream.conn.negotiated_cipher_suite().map(|suite| suite.suite());
    assert_eq!(suite, Some(rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256));
    // By default, the key exchange withstands quantum computers.
    let group = stream.conn.negotiated_key_exchange_group().map(|group| group.name());
    assert_eq!(group, Some(rustls::NamedGroup::X25519MLKEM768));
}

#[test]
fn wrong_certificates_are_found_before_the_start() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example", "b.example"]);
    let path = |name: &str| keys.path().join(name).display().to_string();
    let check = |option: &str, expect: &str| {
        let file = keys.path().join("tailcoat.kdl");
        let text =
            format!("site \"a.example\" {{\n listen \"127.0.0.1:0\" tls=on\n {option}\n respond \"/\" 200\n}}\n");
        std::fs::write(&file, text).expect("it can be written");
        let output = tailcoat().arg("check").arg("-c").arg(&file).output().expect("the built binary starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        // Messages are wrapped into lines.
        let said = said.split(|character: char| character.is_whitespace() || character == '│').collect::<String>();
        assert!(said.contains(&expect.replace(' ', "")), "{option}: {said}");
        output.status.success()
    };
    let (certificate, key, other) = (path("a.example.pem"), path("a.example.key"), path("b.example.key"));
    assert!(!check("", "this site has no certificate"));
    assert!(!check(&format!("certificate \"{certificate}\" key=\"{other}\""), "this is not the key of"));
    assert!(!check(&format!("certificate \"{certificate}\""), "there is no private key in this file"));
    assert!(!check(&format!("certificate \"{key}\""), "there is no certificate in this file"));
    assert!(!check("certificate \"/nowhere.pem\"", "there is no such file"));
    let good = format!("certificate \"{certificate}\" key=\"{key}\"");
    assert!(check(&good, ""));
    assert!(!check(&format!("{good}\nclient-certificate \"required\""), "has no `ca-file`"));
    assert!(!check(
        &format!("{good}\ntls-version-min \"1.3\"\ntls-cipher-suites \"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\""),
        "has no suite of TLS 1.3"
    ));
    let of_other = format!("certificate \"{}\" key=\"{other}\"", path("b.example.pem"));
    assert!(check(&of_other, "no certificate of this site is valid for `a.example`"), "that is a warning");
}

#[test]
fn http_without_tls_is_reported_so() {
    let authority = TestCa::new();
    let keys = certificates(&authority, &["a.example"]);
    let log = keys.path().join("access.log");
    let server =
        TestServer::run(&(site(keys.path(), "a.example", &format!("access-log \"{}\"\n", log.display())) + ONE_WORKER));
    let answer = crate::support::ask(&server, "GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let (head, content) = answer.split_once("\r\n\r\n").expect("there is an answer");
    assert!(head.starts_with("HTTP/1.1 400 ") && content.contains("https://"), "{answer}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", content.len())), "{head}");
    // Input that is neither TLS nor HTTP gets no HTTP response.
    assert!(!crate::support::ask(&server, "\x00\x01nonsense").contains("HTTP/1.1"));
    server.signal("TERM");
    let mut server = server;
    assert!(server.wait());
    let logged = std::fs::read_to_string(log).expect("there is a log");
    assert!(logged.contains("\"GET /a HTTP/1.1\" 400 "), "{logged}");
}

/// Runs `serve --tls` with this state directory.
fn serve_tls(files: &Path, state: &Path) -> TestServer {
    let mut command = tailcoat();
    command.args(["serve", "--tls", "--workers", "1", "--listen", "127.0.0.1:0"]).arg(files);
    command.env_remove("STATE_DIRECTORY").env("XDG_STATE_HOME", state);
    TestServer::start(command)
}

/// Response to curl, which trusts the CA in `state`.
fn curl_trusting(state: &Path, host: &str, server: &TestServer) -> String {
    let (authority, port) = (state.join("tailcoat/local-ca.pem"), server.address.port());
    let url = format!("https://{host}:{port}/");
    let output = std::process::Command::new("curl").args(["-sS", "--cacert"]).arg(authority).arg(url).output();
    let output = output.expect("curl is installed");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn a_certificate_for_this_machine_is_made() {
    let (files, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    std::fs::write(files.path().join("index.html"), "hello").expect("it can be written");
    let start = || serve_tls(files.path(), state.path());
    let authority_path = state.path().join("tailcoat/local-ca.pem");
    let read = || std::fs::read(&authority_path).expect("there is an authority");
    let first = {
        let _server = start();
        read()
    };
    let permissions = |name: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = state.path().join("tailcoat").join(name);
        std::fs::metadata(path).expect("it was made").permissions().mode() & 0o777
    };
    let expect = [("local-ca.pem", 0o644), ("local-ca.key", 0o600), ("local.pem", 0o600)];
    expect.into_iter().for_each(|(name, mode)| assert_eq!(permissions(name), mode, "{name}"));
    let server = start();
    assert_eq!(read(), first, "an authority is trusted once, and so made once");
    for host in ["localhost", "127.0.0.1"] {
        assert_eq!(curl_trusting(state.path(), host, &server), "hello");
    }
}

#[test]
fn servers_that_start_at_once_have_one_authority() {
    let (files, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    std::fs::write(files.path().join("index.html"), "hello").expect("it can be written");
    let start = || serve_tls(files.path(), state.path());
    let servers: Vec<_> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
        starting.into_iter().map(|server| server.join().expect("it has started")).collect()
    });
    for server in &servers {
        assert_eq!(curl_trusting(state.path(), "localhost", server), "hello");
    }
}
