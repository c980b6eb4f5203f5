//! Servers of upstreams that come from SRV records and Consul.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use simple_dns::rdata::{A, RData, SRV};
use simple_dns::{CLASS, Name, Packet, PacketFlag, RCODE, ResourceRecord};
use tempfile::TempDir;

use crate::support::engines;
use crate::support::function_server::{FunctionServer, response};
use crate::support::operated::Operated;
use crate::support::waiting::{eventually, stays};
use crate::support::{TestServer, ask, tailcoat};

/// Server whose responses are its name.
pub(crate) fn named(name: &'static str) -> FunctionServer {
    FunctionServer::start(move |_| response("200 OK", "", name))
}

pub(crate) fn get(server: &TestServer) -> String {
    let text = ask(server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let (head, content) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    if head.starts_with("HTTP/1.1 200") { content.to_owned() } else { head.split(' ').nth(1).unwrap_or("").to_owned() }
}

/// Responses to some requests, with their counts.
pub(crate) fn counts(server: &TestServer, requests: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    (0..requests).for_each(|_| *counts.entry(get(server)).or_default() += 1);
    counts
}

pub(crate) fn expect_counts(server: &TestServer, expect: &[(&str, usize)]) {
    let expect = expect.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<BTreeMap<_, _>>();
    let sum = expect.values().sum();
    let mut found = BTreeMap::new();
    eventually("requests are spread as the source says", || {
        found = counts(server, sum);
        found == expect
    });
}

/// State of the source of the first upstream.
pub(crate) fn source(operated: &Operated) -> serde_json::Value {
    let output = operated.order(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    status["upstreams"][0]["discovery"].clone()
}

pub(crate) fn config(discover: &str, more: &str) -> String {
    format!(
        "upstream \"app\" {{\n discover {discover}\n balance round-robin\n {more}\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"app\"\n}}\n"
    )
}

/// Server with a state directory of its own, which knows no servers.
fn started(config: &str) -> Operated {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    started_in(directory, config, &state)
}

/// Server with this state directory.
pub(crate) fn started_with(config: &str, state: &Path) -> Operated {
    started_in(tempfile::tempdir().unwrap(), config, state)
}

fn started_in(directory: TempDir, config: &str, state: &Path) -> Operated {
    Operated::start_with(directory, config, |command: &mut Command| _ = command.env("STATE_DIRECTORY", state))
}

/// Behaviour of a [`NameServer`].
#[derive(Default)]
struct Zone {
    /// Priority, weight and port of each record; the target is this machine.
    services: Vec<(u16, u16, u16)>,
    /// Response code in place of records.
    failure: Option<RCODE>,
    /// Responds to no query.
    is_silent: bool,
    /// Sends bytes that are no message.
    is_garbage: bool,
}

/// Name server of one service.
struct NameServer {
    address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    queries: Arc<AtomicU64>,
    queries_over_tcp: Arc<AtomicU64>,
}

impl NameServer {
    fn start(services: &[(u16, u16, u16)]) -> Self {
        let zone = Arc::new(Mutex::new(Zone { services: services.to_vec(), ..Zone::default() }));
        // The port is free for both protocols.
        let (socket, listener) = loop {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            if let Ok(listener) = TcpListener::bind(socket.local_addr().unwrap()) {
                break (socket, listener);
            }
        };
        let server = Self {
            address: socket.local_addr().unwrap(),
            zone,
            queries: Arc::default(),
            queries_over_tcp: Arc::default(),
        };
        let (zone, queries) = (Arc::clone(&server.zone), Arc::clone(&server.queries));
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut buffer) {
                queries.fetch_add(1, Ordering::SeqCst);
                if let Some(reply) = reply(&lock(&zone), &buffer[..length], 512) {
                    socket.send_to(&reply, client).unwrap();
                }
            }
        });
        let (zone, queries) = (Arc::clone(&server.zone), Arc::clone(&server.queries_over_tcp));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                queries.fetch_add(1, Ordering::SeqCst);
                let mut length = [0; 2];
                stream.read_exact(&mut length).unwrap();
                let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut query).unwrap();
                if let Some(reply) = reply(&lock(&zone), &query, 65_535) {
                    stream.write_all(&(reply.len() as u16).to_be_bytes()).unwrap();
                    stream.write_all(&reply).unwrap();
                }
            }
        });
        server
    }

    fn zone(&self) -> MutexGuard<'_, Zone> {
        lock(&self.zone)
    }

    /// Arguments of `discover`.
    fn discover(&self) -> String {
        format!("\"srv:_http._tcp.app.test\" resolver=\"{}\"", self.address)
    }
}

fn lock(zone: &Mutex<Zone>) -> MutexGuard<'_, Zone> {
    zone.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Response to a query, cut at this length.
fn reply(zone: &Zone, query: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let query = Packet::parse(query).unwrap();
    let question = query.questions[0].clone();
    assert_eq!(question.qname.to_string(), "_http._tcp.app.test");
    if zone.is_silent {
        return None;
    }
    if zone.is_garbage {
        return Some(vec![0xff; 40]);
    }
    let mut packet = Packet::new_reply(query.id());
    packet.set_flags(PacketFlag::RESPONSE);
    packet.questions.push(question.clone());
    let target = Name::new_unchecked("here.test");
    match zone.failure {
        Some(failure) => *packet.rcode_mut() = failure,
        None => {
            for &(priority, weight, port) in &zone.services {
                let srv = RData::SRV(SRV { priority, weight, port, target: target.clone() });
                packet.answers.push(ResourceRecord::new(question.qname.clone(), CLASS::IN, 1, srv));
            }
            let address = RData::A(A { address: 0x7f00_0001 });
            packet.additional_records.push(ResourceRecord::new(target, CLASS::IN, 1, address));
        }
    }
    let bytes = packet.build_bytes_vec_compressed().unwrap();
    if bytes.len() <= bytes_max {
        return Some(bytes);
    }
    packet.set_flags(PacketFlag::RESPONSE | PacketFlag::TRUNCATION);
    packet.answers.clear();
    packet.additional_records.clear();
    packet.build_bytes_vec().ok()
}

#[test]
fn srv_records_are_followed() {
    let [one, two, three] = ["one", "two", "three"].map(named);
    let port = |server: &FunctionServer| server.address.port();
    let names = NameServer::start(&[(1, 3, port(&one)), (1, 1, port(&two)), (5, 1, port(&three))]);
    let operated = started(&config(&names.discover(), ""));
    expect_counts(&operated.server, &[("one", 6), ("two", 2)]);
    let text = String::from_utf8(operated.order(&["upstreams"]).stdout).unwrap();
    assert!(text.contains("source srv:_http._tcp.app.test: 3 servers, last response 0:00:0"), "{text}");
    assert!(text.contains(&format!("http://{} (backup)", three.address)), "{text}");

    // Another server, without a reload.
    names.zone().services = vec![(1, 1, port(&two)), (1, 1, port(&three))];
    expect_counts(&operated.server, &[("two", 4), ("three", 4)]);
    eventually("the change is logged", || {
        let line = "upstream servers discovered: upstream=app source=srv:_http._tcp.app.test servers=2";
        operated.file("errors.log").contains(line)
    });

    // Each kind of failure keeps the last servers.
    for (what, change) in [
        ("SERVFAIL", &(|zone: &mut Zone| zone.failure = Some(RCODE::ServerFailure)) as &dyn Fn(&mut Zone)),
        ("names no servers", &|zone| zone.failure = Some(RCODE::NameError)),
        ("does not respond", &|zone| zone.is_silent = true),
        ("does not respond", &|zone| zone.is_garbage = true),
    ] {
        let before = source(&operated)["changes"].clone();
        change(&mut names.zone());
        eventually("the failure is seen", || {
            source(&operated)["error"].as_str().is_some_and(|text| text.contains(what))
        });
        assert_eq!(counts(&operated.server, 4).values().sum::<usize>(), 4);
        expect_counts(&operated.server, &[("two", 2), ("three", 2)]);
        let services = names.zone().services.clone();
        *names.zone() = Zone { services, ..Zone::default() };
        eventually("it responds again", || source(&operated)["error"].is_null());
        assert_eq!(source(&operated)["changes"], before, "{what}");
    }
    for line in ["source of servers failed", "source of servers responds again"] {
        eventually(line, || operated.file("errors.log").contains(line));
    }

    // RFC 2782: a target of `.` says that there is no such service; no record says nothing.
    let order = operated.order(&["set", "servers", "app", "http://127.0.0.1:9"]);
    let error = String::from_utf8_lossy(&order.stderr).into_owned();
    assert!(error.contains("come from srv:_http._tcp.app.test; change them there"), "{error}");
}

#[test]
fn long_responses_come_over_tcp_and_have_a_limit() {
    let one = named("one");
    let mut services = vec![(1, 1, one.address.port())];
    services.extend((0..999).map(|number| (9, 1, 20_000 + number)));
    services.extend((0..300).map(|number| (9, 1, 30_000 + number)));
    let names = NameServer::start(&services);
    let operated = started(&config(&names.discover(), "server \"http://127.0.0.1:9\" backup=on"));
    expect_counts(&operated.server, &[("one", 3)]);
    assert!(names.queries_over_tcp.load(Ordering::SeqCst) > 0);
    let found = source(&operated);
    assert_eq!(found["servers"], 999, "{found}");
    assert_eq!(found["ignored"], 1, "1,000 records are read: {found}");
}

/// The first request waits for the first answer, and a server of the file is a backup.
#[test]
fn requests_wait_for_the_first_answer() {
    let (one, spare) = (named("one"), named("spare"));
    let names = NameServer::start(&[(1, 1, one.address.port())]);
    names.zone().is_silent = true;
    let first = started(&config(&names.discover(), "connect-timeout \"50s\""));
    eventually("the source is asked", || names.queries.load(Ordering::SeqCst) > 0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| get(&first.server));
        names.zone().is_silent = false;
        assert_eq!(waiting.join().unwrap(), "one");
    });
    // A source that fails from the start.
    names.zone().failure = Some(RCODE::Refused);
    let failing = started(&config(&names.discover(), ""));
    assert_eq!(get(&failing.server), "503");
    let backup = format!("server \"http://{}\" backup=on", spare.address);
    let failing = started(&config(&names.discover(), &backup));
    assert_eq!(get(&failing.server), "spare");
}

/// Response of Consul to a change.
fn try_put(consul: SocketAddr, path: &str, content: &str) -> String {
    let mut stream = TcpStream::connect(consul).unwrap();
    let head = format!("PUT {path} HTTP/1.1\r\nHost: consul\r\nConnection: close\r\nContent-Length: {}", content.len());
    stream.write_all(format!("{head}\r\n\r\n{content}").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Changes something in Consul.
fn put(consul: SocketAddr, path: &str, content: &str) {
    let text = try_put(consul, path, content);
    assert!(text.starts_with("HTTP/1.1 200"), "{path}: {text}");
}

#[test]
fn services_of_consul_are_followed() {
    let Some(mut consul) = engines::consul() else { return };
    let [one, two, three] = ["one", "two", "three"].map(named);
    let register = |id: &str, server: &FunctionServer, weight: u32, tag: &str| {
        let (ip, port) = (server.address.ip(), server.address.port());
        let content = format!(
            "{{\"ID\":\"{id}\",\"Name\":\"web\",\"Address\":\"{ip}\",\"Port\":{port},\"Tags\":[\"{tag}\"],\
             \"Weights\":{{\"Passing\":{weight},\"Warning\":1}},\
             \"Check\":{{\"TTL\":\"10m\",\"Status\":\"passing\"}}}}"
        );
        put(consul.address, "/v1/agent/service/register", &content);
    };
    eventually("it has a leader", || try_put(consul.address, "/v1/kv/test", "a").starts_with("HTTP/1.1 200"));
    register("one", &one, 3, "v 1&");
    register("two", &two, 1, "v 1&");
    register("other", &three, 1, "v2");
    let discover = format!("\"consul://{}/web\" tag=\"v 1&\"", consul.address);
    let operated = started(&config(&discover, ""));
    expect_counts(&operated.server, &[("one", 6), ("two", 2)]);

    // Blocking queries: a change arrives at once, without polling.
    let failures = source(&operated)["failures"].clone();
    put(consul.address, "/v1/agent/check/fail/service:one", "");
    expect_counts(&operated.server, &[("two", 4)]);
    register("three", &three, 1, "v 1&");
    expect_counts(&operated.server, &[("two", 2), ("three", 2)]);
    put(consul.address, "/v1/agent/service/deregister/two", "");
    expect_counts(&operated.server, &[("three", 4)]);
    assert_eq!(source(&operated)["failures"], failures);

    // Consul ends: the last servers stay, also after a reload that changes the upstream.
    consul.kill();
    eventually("the failure is seen", || !source(&operated)["error"].is_null());
    assert_eq!(counts(&operated.server, 4), BTreeMap::from([("three".to_owned(), 4)]));
    operated.reload(&config(&discover, "connect-timeout \"2s\""));
    assert_eq!(counts(&operated.server, 4), BTreeMap::from([("three".to_owned(), 4)]));
    eventually("the failure is shown", || {
        String::from_utf8_lossy(&operated.order(&["upstreams"]).stdout).contains("FAILED: it cannot be reached: ")
    });
}

/// A source that lies costs nothing else: its entries are dropped, its responses have a limit, and it is not asked faster.
#[test]
fn hostile_sources() {
    let one = named("one");
    let good = format!(
        "{{\"Node\":{{\"Address\":\"127.0.0.1\"}},\"Service\":{{\"Address\":\"\",\"Port\":{}}}}}",
        one.address.port()
    );
    let bad = [
        r#"{"Node":{"Address":"a b"},"Service":{"Port":80}}"#,
        r#"{"Node":{"Address":"a\r\nX: y"},"Service":{"Port":80}}"#,
        r#"{"Node":{"Address":"127.0.0.1"},"Service":{"Port":0}}"#,
        r#"{"Node":{"Address":"0.0.0.0"},"Service":{"Port":80}}"#,
    ];
    let index = AtomicU64::new(1);
    let content = Arc::new(Mutex::new(format!("[{},{good}]", bad.join(","))));
    let shown = Arc::clone(&content);
    let consul = FunctionServer::start(move |_| {
        // Each response says that everything has changed.
        let fields = format!("X-Consul-Index: {}\r\n", index.fetch_add(1, Ordering::SeqCst));
        response("200 OK", &fields, &shown.lock().unwrap())
    });
    let operated = started(&config(&format!("\"consul://{}/web\"", consul.address), ""));
    expect_counts(&operated.server, &[("one", 3)]);
    eventually("wrong entries are logged", || operated.file("errors.log").contains("invalid=4"));
    consul.heads();
    // Time is what this tests. On a busy machine there is more of it.
    let began = Instant::now();
    stays("it serves", Duration::from_secs(3), || get(&operated.server) == "one");
    let asked = consul.heads().len() as u64;
    let seconds = began.elapsed().as_secs();
    assert!(asked <= seconds + 2, "{asked} questions in {seconds} s");
    let many = (1..=1_500).map(|port| good.replace(&one.address.port().to_string(), &port.to_string()));
    let many = format!("[{good},{}]", many.collect::<Vec<_>>().join(","));
    let answers: [(&str, String); 5] = [
        ("the response is not one of Consul", "[".repeat(100_000)),
        ("the response is not one of Consul", "{\"a\":1}".to_owned()),
        ("the response is not one of Consul", String::new()),
        ("its response is too large", format!("[{}{good}]", " ".repeat(17 << 20))),
        ("", many),
    ];
    for (expect, answer) in answers {
        *content.lock().unwrap() = answer;
        match expect {
            "" => eventually("some are ignored", || source(&operated)["ignored"] == 501),
            _ => {
                let failures = source(&operated)["failures"].as_u64().unwrap();
                eventually("the failure is seen", || {
                    let source = source(&operated);
                    let error = source["error"].as_str().unwrap_or_default();
                    source["failures"].as_u64() > Some(failures) && error.contains(expect)
                });
                assert_eq!(get(&operated.server), "one");
            }
        }
    }
    assert_eq!(source(&operated)["servers"], 1_000);
    // An empty answer of Consul is one: the instances are gone.
    *content.lock().unwrap() = "[]".to_owned();
    eventually("there is no server", || get(&operated.server) == "503");
}

#[test]
fn wrong_configurations_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tailcoat.kdl");
    for (discover, expect) in [
        ("\"etcd://a/b\"", "`etcd://a/b` is not a source of servers"),
        ("\"srv:app.test\" tag=\"a\"", "`tag`, `token-file` and `ca-file` are not for SRV records"),
        ("\"consul://a/web\" resolver=\"127.0.0.1\"", "`resolver` is for SRV records"),
        ("\"consul://a/web\" port=80", "the source names the port of each server"),
        ("\"consul://a/web\" endpoint=\"https://a\"", "`endpoint` is for Kubernetes"),
        ("\"docker:run/docker.sock\" label=\"a=b\"", "`docker:run/docker.sock` is not a source of servers"),
        ("\"docker:/run/docker.sock\"", "all containers would get requests"),
        ("\"docker:/run/docker.sock\" label=\"a\" port=\"http\"", "ports of containers have no names"),
        ("\"docker:/run/docker.sock\" label=\"a\" port=0", "0 is not a port"),
        ("\"docker:/run/docker.sock\" label=\"a\" tag=\"a\"", "`tag` is for Consul"),
        ("\"docker:/run/docker.sock\" label=\"a\" ca-file=\"ca.pem\"", "a socket has no `token-file` or `ca-file`"),
        ("\"kubernetes://shop/api\" label=\"a\"", "`label` and `network` are for Docker"),
        ("\"kubernetes://shop/Api\"", "`kubernetes://shop/Api` is not a source of servers"),
        ("\"kubernetes://shop/api\" endpoint=\"http://a\" ca-file=\"ca.pem\"", "`ca-file` has no effect without TLS"),
        ("\"consul://a/web\" ca-file=\"ca.pem\"", "`ca-file` has no effect without TLS"),
        ("\"srv:app.test\" resolver=\"dns.test\"", "`dns.test` is not the address of a name server"),
        ("\"srv:app.test\" protocol=\"tcp\"", "`forward` uses HTTP with this upstream"),
        (
            "\"srv:app.test\" protocol=\"h2c\"\n proxy-protocol \"v2\"",
            "`proxy-protocol` needs one client per connection",
        ),
        ("\"srv:app.test\"\n tls-http2 off", "no server of this upstream uses TLS"),
    ] {
        std::fs::write(&file, config(discover, "")).unwrap();
        let output = tailcoat().arg("check").arg("-c").arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && text.contains(expect), "{discover}: {text}");
    }
    for discover in [
        "\"srv:app.test\" protocol=\"https\"\n tls-http2 off",
        "\"consuls://a/web\" ca-file=\"ca.pem\"",
        "\"docker:/run/docker.sock\" network=\"shop\" port=8080",
        "\"kubernetes://shop/api\" port=\"http\"",
        "\"kubernetes://shop/api\" port=80 endpoint=\"https://a:6443\" ca-file=\"ca.pem\" token-file=\"token\"",
    ] {
        std::fs::write(&file, config(discover, "")).unwrap();
        let output = tailcoat().arg("check").arg("-c").arg(&file).output().unwrap();
        assert!(output.status.success(), "{discover}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
