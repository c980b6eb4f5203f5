//! TLS: the client counts handshakes, verifies certificates, and counts faults as TLS failures.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion, version};
use serde_json::Value;

use crate::server::{FakeServer, FakeServerAction, FakeServerStream, ReceivedRequest, ok, start_on};
use crate::{bench, failures, tailor};

/// Certificate authority (CA), and the settings of a server with a certificate from it for `localhost`.
pub(crate) struct LocalhostCa {
    /// Certificate of the CA, for `--cacert`.
    file: tempfile::NamedTempFile,
    config: Arc<ServerConfig>,
}

impl LocalhostCa {
    /// Creates a CA. Its server uses these TLS versions, and offers these protocols by ALPN if there are any.
    pub(crate) fn new(versions: &[&'static SupportedProtocolVersion], protocols: &[&[u8]]) -> Self {
        Self::with_provider(aws_lc_rs::default_provider(), versions, protocols)
    }

    /// Creates a CA whose server also has these groups and cipher suites.
    fn with_provider(
        provider: CryptoProvider,
        versions: &[&'static SupportedProtocolVersion],
        protocols: &[&[u8]],
    ) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(issuer.pem().as_bytes()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["localhost".into()]).unwrap().signed_by(&key, &issuer).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.into()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Self { file, config: Arc::new(config) }
    }

    /// Path of the CA's certificate.
    pub(crate) fn path(&self) -> &str {
        self.file.path().to_str().unwrap()
    }

    /// Converter of accepted connections to TLS.
    pub(crate) fn opener(&self) -> impl Fn(TcpStream) -> Option<Box<dyn FakeServerStream>> + Send + Sync + 'static {
        let config = self.config.clone();
        move |stream| Some(Box::new(StreamOwned::new(ServerConnection::new(config.clone()).ok()?, stream)))
    }

    /// Starts a server that answers each request by `act`.
    pub(crate) fn start(
        &self,
        act: impl Fn(&ReceivedRequest) -> FakeServerAction + Send + Sync + 'static,
    ) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        start_on(listener, url, act, self.opener())
    }

    /// Loads a server whose certificate is verified with this CA.
    fn bench(&self, server: &FakeServer, arguments: &[&str]) -> (Value, i32) {
        bench(&server.url, &[&["--cacert", self.path()], arguments].concat())
    }
}

impl FakeServerStream for StreamOwned<ServerConnection, TcpStream> {
    fn tcp(&self) -> &TcpStream {
        &self.sock
    }

    fn end(&mut self) {
        self.conn.send_close_notify();
        let _ = self.flush();
    }
}

pub(crate) const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

#[test]
fn groups_and_ciphers_are_those_of_the_options() {
    let authority = LocalhostCa::with_provider(
        CryptoProvider {
            kx_groups: vec![kx_group::SECP256R1],
            cipher_suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256],
            ..aws_lc_rs::default_provider()
        },
        &[&version::TLS13],
        &[],
    );
    for (arguments, is_served) in [
        (&["--tls-groups", "P-256", "--tls-ciphers", "TLS_AES_128_GCM_SHA256"][..], true),
        (&["--tls-groups", "x25519,p-256"], true),
        (&["--tls-groups", "X25519"], false),
        (&["--tls-ciphers", "TLS_AES_256_GCM_SHA384"], false),
    ] {
        let server = authority.start(|_| FakeServerAction::Reply(ok(b"x")));
        let (report, _) = authority.bench(&server, &[&["-c", "1", "-n", "2"], arguments].concat());
        let expected = if is_served { (2, 0) } else { (0, 2) };
        let tls_failures = report["failures"]["TLS failure"].as_u64().unwrap_or_default();
        assert_eq!((report["served"].as_u64().unwrap(), tls_failures), expected, "{arguments:?}: {report}");
    }
}

#[test]
fn handshakes_are_counted() {
    for versions in [&[&version::TLS13][..], &[&version::TLS12]] {
        let authority = LocalhostCa::new(versions, &[]);
        for (arguments, full, resumed) in [
            (&[][..], 4..=4, 0..=0),
            (&["--keep-alive", "0"], 100..=100, 0..=0),
            (&["--requests-per-connection", "10"], 10..=13, 0..=0),
            // The first connections have no session to resume.
            (&["--keep-alive", "0", "--resume"], 1..=12, 88..=99),
        ] {
            let server = authority.start(|_| FakeServerAction::Reply(ok(b"x")));
            let (report, code) = authority.bench(&server, &[&["-c", "4", "-n", "100"], arguments].concat());
            assert_eq!((failures(&report), report["served"].as_u64(), code), (vec![], Some(100), 0), "{arguments:?}");
            let count = |name: &str| report["handshakes"][name].as_u64().unwrap();
            assert!(full.contains(&count("full")) && resumed.contains(&count("resumed")), "{arguments:?}: {report}");
            assert_eq!(report["connections"].as_u64().unwrap(), count("full") + count("resumed"));
            assert_eq!(report["connect"]["count"], report["connections"]);
            assert_eq!(report["tls_handshake"]["count"], report["connections"]);
            let mean = |name: &str| report[name]["mean_nanos"].as_f64().unwrap();
            assert!((1.0..=mean("connect")).contains(&mean("tls_handshake")), "it is a part of connecting");
            assert_eq!(report["load"]["tls"].as_bool(), Some(true));
        }
    }
}

#[test]
fn contents_of_all_lengths() {
    let authority = LocalhostCa::new(BOTH, &[]);
    // Longer than a TLS record, than a socket's buffer, and than one read.
    for length in [0, 1, 16_384, 16_385, 3_000_000] {
        let content: Vec<u8> = (0..length).map(|index: u32| (index % 251) as u8).collect();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content).unwrap();
        let path = file.path().to_str().unwrap();
        let server = authority.start(|request| FakeServerAction::Reply(ok(&request.content)));
        let body = format!("@{path}");
        let arguments = ["-c", "2", "-n", "6", "--pipeline", "2", "--body", &body, "--expect-body", path];
        let (report, _) = authority.bench(&server, &arguments);
        assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(6)), "{length} bytes");
    }
}

#[test]
fn certificates_are_verified() {
    let authority = LocalhostCa::new(BOTH, &[]);
    let other = LocalhostCa::new(BOTH, &[]);
    let server = authority.start(|_| FakeServerAction::Reply(ok(b"x")));
    let port = server.url.rsplit(':').next().unwrap();
    let elsewhere = format!("https://127.0.0.1:{port}/");
    let file = |authority: &LocalhostCa| authority.file.path().to_str().unwrap().to_owned();
    for (url, arguments, served) in [
        (&server.url, vec!["--cacert".into(), file(&authority)], 10),
        (&server.url, vec!["--cacert".into(), file(&other)], 0),
        (&elsewhere, vec!["--cacert".into(), file(&authority)], 0), // The certificate has another name.
        (&elsewhere, vec!["--insecure".into()], 10),
        (&elsewhere, vec!["-k".into()], 10),
    ] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (report, code) = bench(url, &[&["-c", "2", "-n", "10"], &arguments[..]].concat());
        let expect = if served == 0 { vec![("TLS failure".to_owned(), 10)] } else { vec![] };
        assert_eq!((failures(&report), report["served"].as_u64()), (expect, Some(served)), "{url} {arguments:?}");
        assert_eq!(code, i32::from(served == 0));
        if served == 0 {
            assert_eq!(report["handshakes"]["full"].as_u64(), Some(0), "none was completed");
            let reason = report["failure_reasons"]["TLS failure"].as_str().unwrap();
            assert!(reason.contains("certificate") && reason.contains("-k"), "{reason}");
        }
    }
}

#[test]
fn a_faulty_server_is_counted_to_the_number() {
    let authority = LocalhostCa::new(BOTH, &[]);
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
    let server = authority.start(move |request| match request.number % 8 {
        1 => FakeServerAction::Close(format!("{head}01234").into()),
        2 => FakeServerAction::End(format!("{head}01234").into()),
        3 => FakeServerAction::End("HTTP/1.1 200 OK\r\n\r\nuntil the end".into()),
        // Without close_notify, an attacker may have cut the content short.
        4 => FakeServerAction::Close("HTTP/1.1 200 OK\r\n\r\nuntil the".into()),
        5 => FakeServerAction::Reset,
        6 => FakeServerAction::Close(Vec::new()),
        // A record that cannot be decrypted.
        7 => FakeServerAction::Raw([&[23, 3, 3, 0, 32][..], &[0; 32]].concat()),
        _ => FakeServerAction::Reply(format!("{head}0123456789").into()),
    });
    let (report, _) = authority.bench(&server, &["-c", "3", "-n", "400"]);
    let expect = [("TLS failure", 50), ("early close", 250)].map(|(name, count)| (name.to_owned(), count));
    assert_eq!((failures(&report), report["served"].as_u64()), (expect.to_vec(), Some(100)));
}

#[test]
fn what_is_no_tls_is_a_tls_failure() {
    for (name, answer) in [
        ("plaintext", &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..]),
        ("zeros", &[0; 4096]),
        ("an alert: handshake failure", &[21, 3, 3, 0, 2, 2, 40]),
        ("a record that is too long", &[22, 3, 3, 0xff, 0xff, 2, 0, 0]),
        ("a ServerHello of nonsense", &[22, 3, 3, 0, 8, 2, 0, 0, 4, 9, 9, 9, 9]),
        ("application data before the handshake", &[23, 3, 3, 0, 3, 1, 2, 3]),
        ("an end", b""),
    ] {
        let (report, _) = bench(&raw_server(answer, true), &["-c", "2", "-n", "10", "-k"]);
        assert_eq!(failures(&report), [("TLS failure".to_owned(), 10)], "{name}");
        assert_eq!((report["served"].as_u64(), report["connections"].as_u64()), (Some(0), Some(0)), "{name}");
    }
}

#[test]
fn a_handshake_that_takes_too_long_is_a_time_out() {
    for answer in [&b""[..], &[22, 3, 3, 0, 200, 2, 0, 0]] {
        let arguments = ["-c", "2", "-n", "4", "-k", "--timeout", "150ms"];
        let (report, _) = bench(&raw_server(answer, false), &arguments);
        assert_eq!(failures(&report), [("time-out".to_owned(), 4)]);
    }
}

/// Starts a server that answers the first bytes with `answer`, then closes the connection or leaves it open.
fn raw_server(answer: &[u8], is_ended: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let answer = answer.to_vec();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 16 << 10]);
            let _ = stream.write_all(&answer);
            if !is_ended {
                // Open until the test process ends.
                std::mem::forget(stream);
            }
        }
    });
    url
}

#[test]
fn a_server_without_tls() {
    let url = crate::hostile::flood(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x", Duration::from_millis(1));
    let output = tailor(&["bench", "-q", "-n", "1", &url.replace("http://", "https://")]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("TLS failure") && text.contains("does not speak TLS on this port"), "{text}");
}
