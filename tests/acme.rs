//! Automatic certificates from pebble, a test CA that makes all the trouble that RFC 8555 permits.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tempfile::TempDir;

use crate::support::h3::{H3Session, has_client};
use crate::support::operated::Operated;
use crate::support::port::free_port;
use crate::support::real_server::{RealServer, Recipe};
use crate::support::tls::{TestCa, TlsStream, ask, handshake};
use crate::support::waiting::{eventually, eventually_some};
use crate::support::write_program;
use crate::support::{PATIENCE, TestServer, tailcoat};

/// Test CA, its name server, and the port where it validates.
struct Pebble {
    // Both run until they are dropped.
    _names: RealServer,
    server: RealServer,
    management: u16,
    names_management: u16,
    /// Certificate that signs the CA's own HTTPS certificate.
    ca: TempDir,
    http: u16,
    https: u16,
}

/// Behaviour of the CA.
#[derive(Clone, Copy)]
struct Manners<'a> {
    /// Members of its configuration, each with a comma.
    config: &'a str,
    environment: &'a [(&'a str, &'a str)],
    /// True if it can reach our port for http-01.
    finds_http: bool,
}

const STRICT: Manners<'_> = Manners { config: "", environment: &[("PEBBLE_VA_NOSLEEP", "1")], finds_http: true };

impl Pebble {
    /// Starts the CA. Skips and returns `None` if it is not installed.
    fn start(manners: Manners<'_>) -> Option<Self> {
        let [management, names_management, http, https] = [(); 4].map(|()| free_port());
        let names_command = [
            "pebble-challtestsrv",
            "-dnsserver",
            "127.0.0.1:@PORT@",
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
            "-doh",
            "",
            "-management",
            &format!("127.0.0.1:{names_management}"),
            "-defaultIPv4",
            "127.0.0.1",
            "-defaultIPv6",
            "",
        ];
        let names = Recipe { needs: &["pebble", "pebble-challtestsrv"], command: &names_command, ..Recipe::default() };
        let names = RealServer::start(&names)?;
        let authority = TestCa::new();
        let pair = authority.sign(&["localhost"]);
        let ca = tempfile::tempdir().expect("a directory for certificates");
        fs::write(ca.path().join("ca.pem"), authority.pem()).expect("it can be written");
        let looks_at = if manners.finds_http { http } else { free_port() };
        let config = format!(
            "{{ \"pebble\": {{ \"listenAddress\": \"127.0.0.1:@PORT@\", \"managementListenAddress\": \"127.0.0.1:{management}\",
             \"certificate\": \"@DIR@/cert.pem\", \"privateKey\": \"@DIR@/key.pem\", {}
             \"httpPort\": {looks_at}, \"tlsPort\": {https}, \"retryAfter\": {{ \"authz\": 1, \"order\": 1 }} }} }}",
            manners.config,
        );
        let server = RealServer::start(&Recipe {
            needs: &[],
            files: &[("pebble.json", &config), ("cert.pem", &pair.certificate), ("key.pem", &pair.key)],
            command: &["pebble", "-config", "@DIR@/pebble.json", "-dnsserver", &names.address.to_string()],
            environment: manners.environment,
        })?;
        Some(Self { _names: names, server, management, names_management, ca, http, https })
    }

    /// Options that get certificates from this CA, and retry soon.
    fn settings(&self, more: &str) -> String {
        format!(
            "automatic-certificates {{\n directory \"https://localhost:{}/dir\" ca-file=\"{}\"\n retry-interval \"1s\"\n{more}\n}}\n",
            self.server.address.port(),
            self.ca.path().join("ca.pem").display(),
        )
    }

    /// Site on the ports where the CA validates.
    fn site(&self, names: &str, inside: &str) -> String {
        let Self { http, https, .. } = self;
        format!(
            "site {names} {{\n listen \"127.0.0.1:{http}\"\n listen \"127.0.0.1:{https}\" tls=on\n respond \"/\" 200 \"hello\"\n\
             {inside}\n}}\n"
        )
    }

    /// Sets a TXT record in the CA's name server.
    fn set_record(&self, name: &str, value: &str) {
        let record = serde_json::json!({ "host": format!("{name}."), "value": value });
        let url = format!("http://127.0.0.1:{}/set-txt", self.names_management);
        let status = Command::new("curl").args(["-sSf", "--data", &record.to_string(), &url]).status();
        assert!(status.expect("curl is there").success(), "{record}");
    }

    /// Response of its management interface, fetched by curl, which is not under test.
    fn ask(&self, path: &str, content: Option<&str>) -> String {
        let mut curl = Command::new("curl");
        curl.arg("-sS").arg("--cacert").arg(self.ca.path().join("ca.pem"));
        if let Some(content) = content {
            curl.args(["--data-binary", content]);
        }
        let output = curl.arg(format!("https://localhost:{}{path}", self.management)).output().expect("curl is there");
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("it is text")
    }

    /// Client that trusts certificates signed by this CA.
    fn client(&self) -> Arc<ClientConfig> {
        let root = CertificateDer::from_pem_slice(self.ask("/roots/0", None).as_bytes()).expect("it is PEM");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(root).expect("it can be trusted");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        Arc::new(builder.expect("there are versions").with_root_certificates(roots).with_no_client_auth())
    }

    /// Connects to a site as soon as its certificate satisfies `is_wanted`.
    fn connect(&self, name: &str, is_wanted: impl Fn(&CertificateDer<'_>) -> bool) -> TlsStream {
        let client = self.client();
        eventually_some("it has the certificate", || {
            let socket = TcpStream::connect(("127.0.0.1", self.https)).expect("the server takes connections");
            socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a read time-out");
            handshake(socket, &client, name).ok().filter(|stream| is_wanted(&certificate_of(stream)))
        })
    }
}

fn certificate_of(stream: &TlsStream) -> CertificateDer<'static> {
    stream.conn.peer_certificates().expect("there is one")[0].clone().into_owned()
}

/// Runs a configuration with this state directory.
fn run(config: &str, state: &Path) -> TestServer {
    let file = tempfile::NamedTempFile::new().expect("a file for the configuration");
    fs::write(file.path(), config).expect("it can be written");
    let mut command = tailcoat();
    command.arg("run").arg("-c").arg(file.path()).env("STATE_DIRECTORY", state);
    TestServer::start(command)
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { vec![entry.path()] }).collect()
}

/// Waits until a file with this extension contains this text.
fn await_file(state: &Path, extension: &str, says: &str) {
    eventually(&format!("a file .{extension} contains {says}"), || {
        let found = files(state).into_iter().filter(|path| path.extension().is_some_and(|found| found == extension));
        found.into_iter().any(|path| fs::read_to_string(path).is_ok_and(|text| text.contains(says)))
    });
}

const GET: &str = "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n";

#[test]
fn a_public_name_is_enough() {
    // The CA rejects every third nonce and delays each validation.
    let environment = &[("PEBBLE_WFE_NONCEREJECT", "30"), ("PEBBLE_VA_SLEEPTIME", "1"), ("PEBBLE_AUTHZREUSE", "0")];
    let Some(pebble) = Pebble::start(Manners { environment, ..STRICT }) else { return };
    let state = tempfile::tempdir().expect("a state directory");
    // The server answers challenges on port 80 whatever the rules say.
    let rules = "redirect-to-https\n deny \"192.0.2.1\"\n rewrite \"/*\" \"/\"\n";
    let config = pebble.settings("") + &pebble.site("\"example.com\" \"www.example.com\"", rules);
    let server = run(&config, state.path());
    let mut stream = pebble.connect("example.com", |_| true);
    let certificate = certificate_of(&stream);
    assert!(ask(&mut stream, GET).expect("an answer").ends_with("hello"));
    assert_eq!(certificate_of(&pebble.connect("www.example.com", |_| true)), certificate);
    // A challenge that is over is not served any more.
    let token = "GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n";
    let mut plain = TcpStream::connect(("127.0.0.1", pebble.http)).expect("the server takes connections");
    plain.write_all(token.as_bytes()).expect("it reads");
    assert!(crate::support::read_all(&mut plain).starts_with("HTTP/1.1 308 "));
    for path in files(state.path()) {
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o077, 0, "{path:?}");
    }
    // Another process that shares the directory uses the stored certificate at once, without an order.
    drop(server);
    let account = fs::read(files(state.path()).into_iter().find(|path| path.ends_with("account.json")).expect("one"));
    let _server = run(&config, state.path());
    assert_eq!(certificate_of(&pebble.connect("example.com", |_| true)), certificate);
    let account_again =
        fs::read(files(state.path()).into_iter().find(|path| path.ends_with("account.json")).expect("one"));
    assert_eq!(account.expect("it can be read"), account_again.expect("it can be read"));
}

#[test]
fn names_are_shown_by_handshakes_when_responses_fail() {
    let Some(pebble) = Pebble::start(Manners { finds_http: false, ..STRICT }) else { return };
    let state = tempfile::tempdir().expect("a state directory");
    let server = run(&(pebble.settings("") + &pebble.site("\"example.com\"", "")), state.path());
    server.await_log("ordering certificate failed");
    let mut stream = pebble.connect("example.com", |_| true);
    assert!(ask(&mut stream, GET).expect("an answer").ends_with("hello"));
    await_file(state.path(), "json", "\"failures\":0");
}

#[test]
fn wildcards_are_shown_by_dns() {
    let Some(pebble) = Pebble::start(STRICT) else { return };
    let (state, hook) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let program = hook.path().join("hook");
    let script = format!(
        "#!/bin/sh\nset -e\necho \"$@\" >> {0}/log\nurl=http://127.0.0.1:{1}\ntest \"$1\" = zone\ncase $2 in\n\
         add) curl -sSf --data \"{{\\\"host\\\":\\\"$3.\\\",\\\"value\\\":\\\"$4\\\"}}\" $url/set-txt ;;\n\
         remove) curl -sSf --data \"{{\\\"host\\\":\\\"$3.\\\"}}\" $url/clear-txt ;;\nesac\n",
        hook.path().display(),
        pebble.names_management,
    );
    write_program(&program, &script);
    let settings = pebble.settings(&format!("dns-hook \"{}\" \"zone\"", program.display()));
    let _server = run(&(settings + &pebble.site("\"example.com\" \"*.example.com\"", "")), state.path());
    let certificate = certificate_of(&pebble.connect("example.com", |_| true));
    assert_eq!(certificate_of(&pebble.connect("shop.example.com", |_| true)), certificate);
    let log = fs::read_to_string(hook.path().join("log")).expect("it was called");
    for verb in ["add", "remove"] {
        let calls = log.lines().filter(|line| line.starts_with(&format!("zone {verb} _acme-challenge.example.com ")));
        assert_eq!(calls.count(), 2, "{log}");
    }
}

#[test]
fn accounts_that_belong_to_another() {
    const KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let config =
        format!("\"externalAccountBindingRequired\": true, \"externalAccountMACKeys\": {{ \"kid-1\": \"{KEY}\" }},");
    let Some(pebble) = Pebble::start(Manners { config: &config, ..STRICT }) else { return };
    let state = tempfile::tempdir().expect("a state directory");
    let key_file = state.path().join("eab");
    let binding = |key: &str| {
        fs::write(&key_file, key).expect("it can be written");
        format!("external-account \"kid-1\" key-file=\"{}\"", key_file.display())
    };
    // Without a key, or with a wrong one, there is no account, and so no certificate.
    for more in [String::new(), binding("AAAA")] {
        let server = run(&(pebble.settings(&more) + &pebble.site("\"example.com\"", "")), &state.path().join("wrong"));
        await_file(&state.path().join("wrong"), "json", "\"failures\":");
        assert!(!files(state.path()).iter().any(|path| path.ends_with("account.json")));
        drop(server);
    }
    let config = pebble.settings(&binding(KEY)) + &pebble.site("\"example.com\"", "");
    let _server = run(&config, &state.path().join("right"));
    pebble.connect("example.com", |_| true);
}

#[test]
fn certificates_are_renewed() {
    let config = "\"profiles\": { \"short\": { \"description\": \"x\", \"validityPeriod\": 12 } },";
    let Some(pebble) = Pebble::start(Manners { config, ..STRICT }) else { return };
    let state = tempfile::tempdir().expect("a state directory");
    let settings = pebble.settings("profile \"short\"");
    let _server = run(&(settings + &pebble.site("\"example.com\"", "")), state.path());
    let mut first = pebble.connect("example.com", |_| true);
    let certificate = certificate_of(&first);
    let second = pebble.connect("example.com", |now| *now != certificate);
    pebble.connect("example.com", |now| ![&certificate, &certificate_of(&second)].contains(&now));
    // A connection from before the first reload continues.
    assert!(ask(&mut first, GET).expect("an answer").ends_with("hello"));
}

#[test]
fn authorities_say_when_to_renew() {
    let Some(pebble) = Pebble::start(STRICT) else { return };
    let state = tempfile::tempdir().expect("a state directory");
    let config = pebble.settings("") + &pebble.site("\"example.com\"", "");
    let server = run(&config, state.path());
    let certificate = certificate_of(&pebble.connect("example.com", |_| true));
    drop(server);
    let pem = files(state.path()).into_iter().find(|path| path.extension().is_some_and(|found| found == "pem"));
    let pem = fs::read_to_string(pem.expect("there is one")).expect("it can be read");
    let start = pem.find("-----BEGIN CERTIFICATE-----").expect("a certificate");
    let end = pem.find("-----END CERTIFICATE-----").expect("its end") + "-----END CERTIFICATE-----\n".len();
    let window = r#"{"suggestedWindow":{"start":"2020-01-01T00:00:00Z","end":"2020-01-02T00:00:00Z"}}"#;
    let order = serde_json::json!({ "certificate": &pem[start..end], "ariResponse": window });
    pebble.ask("/set-renewal-info/", Some(&order.to_string()));
    // Simulates the next day's check.
    for path in files(state.path()).iter().filter(|path| path.extension().is_some_and(|found| found == "json")) {
        if !path.ends_with("account.json") {
            fs::remove_file(path).expect("it can be removed");
        }
    }
    let _server = run(&config, state.path());
    pebble.connect("example.com", |now| *now != certificate);
}

#[test]
fn reloads_and_upgrades_leave_orders_and_account_as_they_are() {
    let environment = &[("PEBBLE_VA_SLEEPTIME", "2"), ("PEBBLE_AUTHZREUSE", "0")];
    let Some(pebble) = Pebble::start(Manners { environment, ..STRICT }) else { return };
    let state = tempfile::tempdir().expect("a state directory");
    let config = |names: &[&str]| {
        let sites = names.iter().map(|name| pebble.site(&format!("\"{name}\""), "")).collect::<String>();
        pebble.settings("") + "access-log \"@DIR@/access.log\" format=\"{host} {path}\"\n" + &sites
    };
    let directory = tempfile::tempdir().expect("a directory");
    let keep_state = |command: &mut Command| _ = command.env("STATE_DIRECTORY", state.path());
    let mut operated = Operated::start_with(directory, &config(&["a.example.com"]), keep_state);
    let account = || files(state.path()).into_iter().find(|path| path.ends_with("account.json")).map(fs::read);
    let certificate = |name: &str| certificate_of(&pebble.connect(name, |_| true));
    // During the order.
    await_file(state.path(), "json", "");
    operated.reload(&config(&["b.example.com", "a.example.com"]));
    let (first, second) = (certificate("a.example.com"), certificate("b.example.com"));
    operated.reload(&config(&["a.example.com", "b.example.com"]));
    let before = account().expect("there is one").expect("it can be read");
    assert_eq!((certificate("a.example.com"), certificate("b.example.com")), (first.clone(), second.clone()));
    // An upgrade during another order; the new process starts the order again.
    operated.reload(&config(&["c.example.com", "a.example.com", "b.example.com"]));
    operated.upgrade();
    assert_eq!((certificate("a.example.com"), certificate("b.example.com")), (first, second));
    certificate("c.example.com");
    assert_eq!(account().expect("there still is").expect("it can be read"), before);
    for name in ["a.example.com", "b.example.com"] {
        let line = format!("{name} /.well-known/acme-challenge/");
        let log = eventually_some("its challenge is logged", || {
            Some(operated.file("access.log")).filter(|log| log.lines().any(|found| found.starts_with(&line)))
        });
        let mut tokens: Vec<_> = log.lines().filter_map(|found| found.strip_prefix(&line)).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 1, "{name} was ordered once: {log}");
    }
    operated.signal("TERM");
}

#[test]
fn an_authority_that_comes_later() {
    let Some(pebble) = Pebble::start(STRICT) else { return };
    let state = tempfile::tempdir().expect("a state directory");
    // No process listens on the CA's future port yet.
    let unused = free_port();
    let settings = pebble.settings("").replace(&format!(":{}/", pebble.server.address.port()), &format!(":{unused}/"));
    let server = run(&(settings + &pebble.site("\"example.com\"", "")), state.path());
    eventually("two orders have failed", || {
        let log = server.log.lock().expect("no thread panics with it");
        log.iter().filter(|line| line.contains("ordering certificate failed")).count() >= 2
    });
    // Issue 23: the advice was to change DNS.
    server.await_log("the CA did not respond");
    // Other sites are served meanwhile; only handshakes fail.
    let answer = server.exchange(b"GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n");
    assert!(answer.ends_with("hello"), "{answer}");
    let socket = TcpStream::connect(("127.0.0.1", pebble.https)).expect("the server takes connections");
    assert!(handshake(socket, &pebble.client(), "example.com").is_err());
    let forwarder = TcpListener::bind(("127.0.0.1", unused)).expect("the port is free");
    let authority = pebble.server.address;
    std::thread::spawn(move || {
        for mut client in forwarder.incoming().flatten() {
            let mut server = TcpStream::connect(authority).expect("it listens");
            let (mut client_copy, mut server_copy) =
                (client.try_clone().expect("a copy"), server.try_clone().expect("a copy"));
            std::thread::spawn(move || std::io::copy(&mut client_copy, &mut server_copy));
            std::thread::spawn(move || std::io::copy(&mut server, &mut client));
        }
    });
    pebble.connect("example.com", |_| true);
    let log = server.end_with_log().join("\n");
    assert!(!log.contains("in DNS"), "{log}");
}

/// The record is set once, also for wildcards, and without a program. The CA's error says which it is.
#[test]
fn records_of_dns_stay() {
    let environment = &[("PEBBLE_VA_NOSLEEP", "1"), ("PEBBLE_AUTHZREUSE", "0")];
    let Some(pebble) = Pebble::start(Manners { environment, finds_http: false, ..STRICT }) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().join("state");
    let config =
        pebble.settings("challenges \"dns-persist-01\"") + &pebble.site("\"example.com\" \"*.example.com\"", "");
    let operated = Operated::start_with(directory, &config, |command| _ = command.env("STATE_DIRECTORY", state));
    let value = record_of(&operated);
    let account = value.strip_prefix("pebble.letsencrypt.org; accounturi=").expect("the CA's name is there");
    let account = account.strip_suffix("; policy=wildcard").expect("a name is a wildcard");
    assert!(account.starts_with("https://localhost:"), "{account}");
    let advice = "set the record in DNS; the server tries again";
    let error = format!("it needs the TXT record _validation-persist.example.com {value}");
    eventually("the error names the record", || {
        let log = operated.file("errors.log");
        log.lines().any(|line| line.contains(&error) && line.contains(advice))
    });
    pebble.set_record("_validation-persist.example.com", &value);
    let certificate = certificate_of(&pebble.connect("example.com", |_| true));
    assert_eq!(certificate_of(&pebble.connect("shop.example.com", |_| true)), certificate);
    // A further order needs nothing more.
    pebble.set_record("_validation-persist.www.example.com", &value.replace("; policy=wildcard", ""));
    operated.reload(&config.replace("\"*.example.com\"", "\"*.example.com\" \"www.example.com\""));
    pebble.connect("example.com", |now| *now != certificate);
    operated.signal("TERM");
}

/// Profiles of certificates for 90 and for 6 days.
const PROFILES: &str = "\"profiles\": { \"default\": { \"description\": \"x\", \"validityPeriod\": 7776000 },
                        \"shortlived\": { \"description\": \"x\", \"validityPeriod\": 518400 } },";

/// The CA validates addresses by responses and by handshakes. A client that connects to an address names no server, and
/// gets the certificate of that address.
#[test]
fn addresses_have_certificates() {
    let config = PROFILES;
    for (finds_http, challenge) in [(true, "http-01"), (false, "tls-alpn-01")] {
        let Some(pebble) = Pebble::start(Manners { finds_http, config, ..STRICT }) else { return };
        let state = tempfile::tempdir().expect("a state directory");
        let settings = pebble.settings(&format!("profile \"default\"\n challenges \"{challenge}\""));
        let of_address = "automatic-certificate profile=\"shortlived\"";
        let sites = pebble.site("\"example.com\"", "") + &pebble.site("\"127.0.0.1\"", of_address);
        let _server = run(&(settings + &sites), state.path());
        let mut stream = pebble.connect("127.0.0.1", |_| true);
        let get = GET.replace("example.com", "127.0.0.1");
        assert!(ask(&mut stream, &get).expect("an answer").ends_with("hello"), "{challenge}");
        assert_eq!(lifetime(&certificate_of(&stream)), 6 * 86_400, "{challenge}");
        let of_name = certificate_of(&pebble.connect("example.com", |_| true));
        assert_ne!(of_name, certificate_of(&stream));
        assert_eq!(lifetime(&of_name), 90 * 86_400, "{challenge}");
    }
}

/// A client of HTTP/3 that connects to an address gets its certificate as well.
#[test]
fn addresses_have_certificates_over_http3() {
    if !has_client() {
        return;
    }
    let Some(pebble) = Pebble::start(Manners { config: PROFILES, ..STRICT }) else { return };
    let state = tempfile::tempdir().expect("a state directory");
    let of_address = "automatic-certificate profile=\"shortlived\"";
    let sites = pebble.site("\"example.com\"", "") + &pebble.site("\"127.0.0.1\"", of_address);
    let versions = "server { http-versions \"1.1\" \"2\" \"3\" }\n";
    let _server = run(&(versions.to_owned() + &pebble.settings("") + &sites), state.path());
    pebble.connect("127.0.0.1", |_| true);
    let root = state.path().join("root.pem");
    fs::write(&root, pebble.ask("/roots/0", None)).expect("it can be written");
    let mut session = H3Session::connect_by_address(([127, 0, 0, 1], pebble.https).into(), &root);
    assert_eq!(session.order("get /"), "200 hello");
}

/// Seconds for which a certificate is valid.
fn lifetime(certificate: &CertificateDer<'_>) -> i64 {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).expect("it is a certificate");
    let validity = parsed.validity();
    validity.not_after.timestamp() - validity.not_before.timestamp() + 1
}

#[test]
fn instances_share_certificates() {
    share_certificates("example.com", "http-01", "");
}

#[test]
fn instances_share_certificates_of_addresses() {
    share_certificates("127.0.0.1", "tls-alpn-01", "automatic-certificate profile=\"shortlived\"");
}

/// Three instances share a store. The one that orders is killed (kill -9) while the CA validates: another continues its
/// order with the responses of the first, and all use the one certificate.
fn share_certificates(name: &str, challenge: &str, inside: &str) {
    let environment = &[("PEBBLE_VA_SLEEPTIME", "5"), ("PEBBLE_AUTHZREUSE", "0")];
    let profiles = "\"profiles\": { \"default\": { \"description\": \"x\", \"validityPeriod\": 7776000 },
                    \"shortlived\": { \"description\": \"x\", \"validityPeriod\": 518400 } },";
    let Some(pebble) = Pebble::start(Manners { environment, config: profiles, ..STRICT }) else { return };
    let shared = tempfile::tempdir().expect("a directory for the store");
    let config = |number: usize, site: &str| {
        format!(
            "store {{\n url \"{}\"\n instance \"edge-{number}\"\n timeout \"500ms\"\n lease-time \"2s\"\n}}\n{}{site}",
            shared.path().display(),
            pebble.settings(&format!("profile \"default\"\n challenges \"{challenge}\"")),
        )
    };
    let behind =
        format!("site \"{name}\" {{ listen \"127.0.0.1:0\" tls=on; respond \"/\" 200 \"hello\"\n{inside}\n}}\n");
    let behind = behind.as_str();
    let start = |number: usize, site: &str| {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path().join("state");
        Operated::start_with(directory, &config(number, site), |command| _ = command.env("STATE_DIRECTORY", state))
    };
    // The CA cannot reach it.
    let first = start(1, behind);
    let stored = |folder: &str| !files(&shared.path().join(folder)).is_empty();
    eventually("the first has an order", || stored("orders"));
    eventually("the first shows a challenge", || stored("challenges"));
    // Stopped, so that it gets no certificate while the others start.
    first.signal("STOP");
    let front = start(0, &pebble.site(&format!("\"{name}\""), inside));
    let other = start(2, behind);
    drop(first);
    let certificate = certificate_of(&pebble.connect(name, |_| true));
    let client = pebble.client();
    let of_other = eventually_some("the other has the certificate", || {
        handshake(other.server.connect(), &client, name).ok().map(|stream| certificate_of(&stream))
    });
    assert_eq!(of_other, certificate);
    // Logs are written after the certificate is in use, and copied by other processes.
    let logs = || front.file("errors.log") + &other.file("errors.log");
    for expect in ["order of another instance continued", "certificate received from another instance"] {
        eventually(expect, || logs().contains(expect));
    }
    let logs = logs();
    assert_eq!(logs.matches("ACME account created").count(), 0, "{logs}");
    // A new instance needs no order.
    let late = start(3, behind);
    let of_late = eventually_some("the new one has the certificate", || {
        handshake(late.server.connect(), &client, name).ok().map(|stream| certificate_of(&stream))
    });
    assert_eq!(of_late, certificate);
}

/// A record names the account, so all instances that share the account may use it.
#[test]
fn instances_share_the_account_of_a_record() {
    let environment = &[("PEBBLE_VA_NOSLEEP", "1"), ("PEBBLE_AUTHZREUSE", "0")];
    let Some(pebble) = Pebble::start(Manners { environment, finds_http: false, ..STRICT }) else { return };
    let shared = tempfile::tempdir().expect("a directory for the store");
    let start = |number: usize| {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path().join("state");
        let config = format!(
            "store {{\n url \"{}\"\n instance \"edge-{number}\"\n timeout \"500ms\"\n lease-time \"2s\"\n}}\n{}\
             site \"example.com\" {{ listen \"127.0.0.1:0\" tls=on; respond \"/\" 200 \"hello\" }}\n",
            shared.path().display(),
            pebble.settings("challenges \"dns-persist-01\""),
        );
        Operated::start_with(directory, &config, |command| _ = command.env("STATE_DIRECTORY", state))
    };
    let first = start(1);
    let value = record_of(&first);
    drop(first);
    pebble.set_record("_validation-persist.example.com", &value);
    let client = pebble.client();
    let certificate = |instance: &Operated| {
        eventually_some("it has the certificate", || {
            handshake(instance.server.connect(), &client, "example.com").ok().map(|stream| certificate_of(&stream))
        })
    };
    let (second, third) = (start(2), start(3));
    assert_eq!(certificate(&second), certificate(&third));
    // Logs are written after the certificate is in use, and copied by other processes.
    let logs = || second.file("errors.log") + &third.file("errors.log");
    eventually("it is logged", || logs().contains("certificate obtained"));
    let logs = logs();
    assert_eq!(logs.matches("certificate obtained").count(), 1, "{logs}");
    assert_eq!(logs.matches("ACME account created").count(), 0, "{logs}");
}

/// Value of the record that the log asks for.
fn record_of(operated: &Operated) -> String {
    let said = "DNS record expected: name=_validation-persist.example.com value=\"";
    eventually_some("the log names the record", || {
        let log = operated.file("errors.log");
        let (_, rest) = log.split_once(said)?;
        Some(rest.split_once('"')?.0.to_owned())
    })
}
