//! Several instances that share a store.

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
#[cfg(feature = "valkey")]
use std::time::Instant;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustls::HandshakeKind;

use crate::support::engines;
use crate::support::function_server::{FunctionServer, response};
use crate::support::operated::Operated;
#[cfg(feature = "valkey")]
use crate::support::real_server::Recipe;
use crate::support::tls::{TestCa, connect};
use crate::support::waiting::eventually;
#[cfg(feature = "valkey")]
use crate::support::waiting::stays;
use crate::support::{TestServer, ask, tailcoat};

/// Limits of a store that fails in the test.
const QUICK: &str = "timeout \"500ms\"\n lease-time \"2s\"";

/// Server whose responses count its requests, and may be stored.
fn origin() -> (FunctionServer, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let server = FunctionServer::start(move |_| {
        let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
        response("200 OK", "Cache-Control: max-age=1000\r\n", &number.to_string())
    });
    (server, count)
}

fn config(store: &str, number: usize, origin: &FunctionServer) -> String {
    format!(
        "store {{\n {store}\n instance \"edge-{number}\"\n}}\n\
         upstream \"app\" {{ server \"http://{0}\"; server \"http://127.0.0.1:9\" }}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"app\" path=\"/app\"\n forward \"http://{0}\" {{ cache }}\n}}\n",
        origin.address
    )
}

fn start(store: &str, number: usize, origin: &FunctionServer) -> Operated {
    Operated::start(&config(store, number, origin))
}

/// Content of a response; `None` if the connection is closed without one.
fn get(operated: &Operated, target: &str) -> Option<String> {
    let mut stream = operated.server.connect();
    let _ = stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes());
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text.split_once("\r\n\r\n").map(|(_, content)| content.to_owned())
}

fn order(operated: &Operated, arguments: &[&str]) -> String {
    let output = operated.order(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn status(operated: &Operated) -> serde_json::Value {
    serde_json::from_str(&order(operated, &["status", "--json"])).unwrap()
}

/// Instances that an instance sees.
fn instances(operated: &Operated) -> Vec<String> {
    let status = status(operated);
    let list = status["store"]["instances"].as_array().cloned().unwrap_or_default();
    list.iter().map(|instance| instance["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until instances see one another and the events of the store. Until then, an instance may still empty its cache.
fn await_all(all: &[Operated]) {
    for operated in all {
        eventually("it sees all instances and events", || {
            let status = status(operated);
            let count = status["store"]["instances"].as_array().map_or(0, Vec::len);
            count == all.len() && status["store"]["resyncs"].as_u64() > Some(0)
        });
    }
}

fn orders_hold_for_all(store: &str) {
    let (origin, _) = origin();
    let all: Vec<Operated> = (0..3).map(|number| start(store, number, &origin)).collect();
    for operated in &all {
        eventually("it sees all instances", || instances(operated) == ["edge-0", "edge-1", "edge-2"]);
    }
    eventually("the status names it", || order(&all[0], &["status"]).contains("instance    edge-1"));

    // A purge at one removes the responses of all.
    let mut before = Vec::new();
    // An instance that may have missed orders empties its cache.
    eventually("responses are kept", || {
        before = all.iter().map(|operated| get(operated, "/a")).collect();
        all.iter().zip(&before).all(|(operated, content)| get(operated, "/a") == *content)
    });
    order(&all[1], &["cache", "purge", "http://h/a"]);
    for (operated, content) in all.iter().zip(&before) {
        eventually("the response is removed", || get(operated, "/a") != *content);
    }

    // A ban at one holds at all, also at one that starts later, until it ends at another.
    order(&all[0], &["ban", "127.0.0.1", "--for", "10m"]);
    for operated in &all {
        eventually("the client is banned", || get(operated, "/a").is_none());
    }
    let late = start(store, 3, &origin);
    eventually("the client is banned at a new instance", || order(&late, &["bans"]).starts_with("127.0.0.1/32  "));
    order(&late, &["unban", "127.0.0.1"]);
    for operated in all.iter().chain([&late]) {
        eventually("the ban ends", || get(operated, "/a").is_some());
    }

    // Drains and other servers of an upstream.
    let drained = |operated: &Operated| {
        let status = status(operated);
        let servers = status["upstreams"][0]["servers"].as_array().cloned().unwrap_or_default();
        servers.iter().map(|server| server["health"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    order(&all[2], &["drain", "app", "http://127.0.0.1:9"]);
    for operated in &all {
        eventually("the server is drained", || drained(operated).contains(&"drained".to_owned()));
    }

    // An instance that ends leaves.
    late.server.signal("TERM");
    eventually("three are left", || instances(&all[0]).len() == 3);
}

#[test]
fn orders_hold_for_all_instances_of_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    orders_hold_for_all(&format!("url \"{}\"\n {QUICK}", directory.path().join("shared").display()));
}

#[test]
#[cfg(feature = "valkey")]
fn orders_hold_for_all_instances_of_valkey() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    orders_hold_for_all(&format!("url \"valkey://{}\"\n {QUICK}", valkey.address));
}

#[test]
fn orders_hold_for_all_instances_of_s3() {
    let Some(s3) = engines::s3() else { return };
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    orders_hold_for_all(&format!(
        "url \"s3://shared/edge\"\n endpoint \"http://{}\"\n username \"id\"\n password-file \"{}\"",
        s3.address,
        secret.display()
    ));
}

#[test]
fn orders_hold_for_all_instances_of_consul() {
    let Some(consul) = engines::consul() else { return };
    orders_hold_for_all(&format!("url \"consul://{}/edge\"", consul.address));
}

#[test]
fn orders_hold_for_all_instances_of_kubernetes() {
    let account = rcgen::KeyPair::generate().unwrap();
    let Some(kubernetes) = engines::Kubernetes::start(&account) else { return };
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, engines::KUBERNETES_TOKEN).unwrap();
    orders_hold_for_all(&format!(
        "url \"kubernetes://default/edge\"\n endpoint \"https://{}\"\n password-file \"{}\"\n tls-ca-file \"{}\"",
        kubernetes.server.address,
        token.display(),
        kubernetes.authority().display()
    ));
}

/// Requests are answered while the store is away.
#[cfg(feature = "valkey")]
fn no_request_waits(operated: &Operated) {
    for _ in 0..50 {
        // Not a limit of speed: the time limit of the store is 500 ms, and no request waits for it. A busy machine delays some
        // requests as long, but not all.
        eventually("a request does not wait for the store", || {
            let begun = Instant::now();
            assert!(get(operated, "/a").is_some());
            begun.elapsed() < Duration::from_millis(450)
        });
    }
}

/// Requests do not wait for a store that was killed. Orders are given when it is back, without any of its values.
#[test]
#[cfg(feature = "valkey")]
fn a_store_that_is_killed() {
    let Some(mut valkey) = engines::valkey(&[], &[]) else { return };
    let (origin, _) = origin();
    let store = format!("url \"valkey://{}\"\n {QUICK}", valkey.address);
    let all: Vec<Operated> = (0..2)
        .map(|number| {
            let config = config(&store, number, &origin);
            Operated::start(&config.replace("site {\n", "site {\n metrics \"/metrics\"\n"))
        })
        .collect();
    await_all(&all);
    let metric = |operated: &Operated, name: &str| -> f64 {
        // The page is for this machine.
        let text = ask(&operated.server, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
    };
    eventually("the store is up", || metric(&all[0], "tailcoat_store_up") == 1.0);
    let content = get(&all[1], "/a");
    valkey.kill();
    eventually("the server log tells", || all[0].file("errors.log").contains("store failed"));
    all.iter().for_each(no_request_waits);
    order(&all[0], &["cache", "purge", "http://h/a"]);
    assert_eq!(get(&all[1], "/a"), content, "the order is not given yet");
    eventually("metrics tell", || {
        metric(&all[0], "tailcoat_store_up") == 0.0
            && metric(&all[0], "tailcoat_store_waiting_orders") == 1.0
            && metric(&all[0], "tailcoat_store_lag_seconds") > 1.0
            && metric(&all[0], "tailcoat_store_errors_total") > 0.0
    });
    valkey.restart(&Recipe { command: &engines::valkey_command(&[]), ..Recipe::default() });
    eventually("the purge is not lost", || get(&all[1], "/a") != content);
    // The other instance may have emptied its cache before the order is given.
    eventually("metrics tell", || {
        metric(&all[0], "tailcoat_store_up") == 1.0 && metric(&all[0], "tailcoat_store_waiting_orders") == 0.0
    });
}

/// Requests do not wait for a store that hangs, and orders are given when it is back. A store that has lost all values does no
/// harm.
#[test]
#[cfg(feature = "valkey")]
fn a_store_that_hangs_and_one_that_is_wiped() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let (origin, _) = origin();
    let store = format!("url \"valkey://{}\"\n {QUICK}", valkey.address);
    let all: Vec<Operated> = (0..2).map(|number| start(&store, number, &origin)).collect();
    await_all(&all);
    let content = get(&all[1], "/a");
    valkey.signal("STOP");
    eventually("the server log tells", || all[0].file("errors.log").contains("store failed"));
    all.iter().for_each(no_request_waits);
    order(&all[0], &["cache", "purge", "http://h/a"]);
    assert_eq!(get(&all[1], "/a"), content, "the order is not given yet");
    valkey.signal("CONT");
    eventually("the purge is not lost", || get(&all[1], "/a") != content);
    eventually("the server log tells", || all[0].file("errors.log").contains("store can be reached again"));

    order(&all[0], &["ban", "192.0.2.1", "--for", "10m"]);
    eventually("it holds at both", || order(&all[1], &["bans"]).contains("192.0.2.1/32"));
    let resyncs = |operated: &Operated| status(operated)["store"]["resyncs"].as_u64().unwrap();
    let before: Vec<u64> = all.iter().map(resyncs).collect();
    assert_eq!(engines::say(valkey.address.port(), "FLUSHALL").as_deref(), Some("+OK\r\n"));
    assert!(order(&all[1], &["bans"]).contains("192.0.2.1/32"));
    order(&all[1], &["ban", "192.0.2.2", "--for", "10m"]);
    eventually("orders go on", || order(&all[0], &["bans"]).contains("192.0.2.2/32"));
    eventually("metrics tell", || all.iter().zip(&before).all(|(operated, before)| resyncs(operated) > *before));
    let late = start(&store, 2, &origin);
    eventually("a new instance learns of earlier bans", || {
        let bans = order(&late, &["bans"]);
        bans.contains("192.0.2.1/32") && bans.contains("192.0.2.2/32")
    });
}

/// Purges a tag by the control socket, which wants to see a descriptor of its directory.
fn purge_tag(operated: &Operated, tag: &str) {
    let stream = UnixStream::connect(operated.path().join("control.sock")).unwrap();
    let order = format!("{{\"order\":\"purge-cache\",\"urls\":[],\"prefixes\":[],\"tags\":[\"{tag}\"]}}\n");
    let directory = std::fs::File::open(operated.path()).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut shown = SendAncillaryBuffer::new(&mut space);
    let shows = [directory.as_fd()];
    assert!(shown.push(SendAncillaryMessage::ScmRights(&shows)));
    sendmsg(&stream, &[IoSlice::new(order.as_bytes())], &mut shown, SendFlags::NOSIGNAL).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.contains("purged"), "{order}: {line}");
}

/// 1,000 purges by tag, each for a response of its own, while an instance is stopped half of the time. None is lost, and none
/// removes more than its response.
#[test]
fn no_purge_is_lost() {
    let purges = 1_000;
    let directory = tempfile::tempdir().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let origin = FunctionServer::start(move |head| {
        let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
        let tag = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
        let fields = format!("Cache-Control: max-age=1000\r\nSurrogate-Key: all tag-{tag}\r\n");
        response("200 OK", &fields, &number.to_string())
    });
    let store = format!("url \"{}\"", directory.path().join("shared").display());
    let all: Vec<Operated> = (0..2).map(|number| start(&store, number, &origin)).collect();
    await_all(&all);
    let target = |number: usize| format!("/{number}");
    // One more, which no purge removes.
    let before: Vec<Option<String>> = (0..=purges).map(|number| get(&all[1], &target(number))).collect();
    std::thread::scope(|scope| {
        let purging = scope.spawn(|| {
            for number in 0..purges {
                purge_tag(&all[0], &format!("tag-{number}"));
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        while !purging.is_finished() {
            // Time is what this tests: away half of the time.
            for signal in ["STOP", "CONT"] {
                all[1].server.signal(signal);
                std::thread::sleep(Duration::from_millis(400));
            }
        }
    });
    let mut left: Vec<usize> = (0..purges).collect();
    eventually("all responses are removed", || {
        left.retain(|number| get(&all[1], &target(*number)) == before[*number]);
        left.is_empty()
    });
    assert_eq!(get(&all[1], &target(purges)), before[purges]);
    let log = all[1].file("errors.log");
    assert!(!log.contains("cache emptied"), "{log}");
}

/// Clients that reconnect to any instance resume their session.
#[test]
fn sessions_are_resumed_by_whichever_instance() {
    let (authority, directory) = (TestCa::new(), tempfile::tempdir().unwrap());
    authority.sign(&["a.example"]).write(directory.path(), "a");
    let path = directory.path().display();
    let config = |share: &str| {
        format!(
            "store {{ url \"{path}/shared\"; share {share} }}\nsite \"a.example\" {{\n listen \"127.0.0.1:0\" tls=on\n \
             certificate \"{path}/a.pem\" key=\"{path}/a.key\"\n respond \"/\" 200 \"hello\"\n}}\n"
        )
    };
    let resumed = |share: &str| {
        let all: Vec<Operated> = (0..3).map(|_| Operated::start(&config(share))).collect();
        let shares = |operated: &Operated| status(operated)["store"]["instances"].as_array().map_or(0, Vec::len) == 3;
        eventually("all instances are there", || all.iter().all(shares));
        let count = |client: &Arc<rustls::ClientConfig>| {
            let kinds = (0..9).map(|round| {
                let mut stream = connect(&all[round % 3].server, client, "a.example").unwrap();
                let kind = stream.conn.handshake_kind();
                crate::support::tls::ask(&mut stream, "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
                    .unwrap();
                kind
            });
            kinds.filter(|kind| *kind == Some(HandshakeKind::Resumed)).count()
        };
        // All but the first, as with one instance.
        eventually("sessions are resumed", || count(&Arc::new(authority.client(None))) == 8);
    };
    resumed("\"tickets\" \"orders\"");
}

/// Three instances with one limit, most requests at the first. Together they grant what one limiter grants of the same requests,
/// within 5 %, and a stopped store rejects no request.
#[test]
#[cfg(feature = "valkey")]
fn instances_share_rate_limits() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    std::fs::write(&key, "k".repeat(32)).unwrap();
    let site =
        "site {\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"hello\"\n rate-limit \"/\" \"20/s\" burst=20\n}\n";
    let store = format!(
        "store {{ url \"valkey://127.0.0.1:{}\"; key-file \"{}\"; timeout \"500ms\" }}\n",
        valkey.address.port(),
        key.display()
    );
    let all: Vec<Operated> = (0..3).map(|_| Operated::start(&format!("{store}{site}"))).collect();
    let alone = Operated::start(site);
    eventually("all instances are there", || all.iter().all(|operated| instances(operated).len() == 3));
    let is_granted = |operated: &Operated| {
        ask(&operated.server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 200")
    };
    let is_close = || {
        let begun = Instant::now();
        let counts: [usize; 2] = std::thread::scope(|scope| {
            let load = |index: usize, pause_ms: u64| {
                let (all, alone, is_granted) = (&all, &alone, &is_granted);
                scope.spawn(move || {
                    let mut counts = [0, 0];
                    while begun.elapsed() < Duration::from_secs(15) {
                        counts[0] += usize::from(is_granted(&all[index]));
                        counts[1] += usize::from(is_granted(alone));
                        std::thread::sleep(Duration::from_millis(pause_ms));
                    }
                    counts
                })
            };
            let threads = [load(0, 5), load(1, 15), load(2, 40)];
            threads.into_iter().map(|thread| thread.join().unwrap()).fold([0, 0], |[a, b], [c, d]| [a + c, b + d])
        });
        let [granted, ideal] = counts;
        println!("3 instances granted {granted}, one limiter {ideal}");
        // Three limiters of their own grant 2.5 to 3 times as much.
        granted.abs_diff(ideal) * 20 <= ideal
    };
    // An instance that cannot reach the store in time, as on a busy machine, counts alone for a while.
    assert!((0..4).any(|_| is_close()), "3 instances do not grant what one limiter grants");
    valkey.signal("STOP");
    eventually("the limit of an instance alone", || is_granted(&all[0]));
    valkey.signal("CONT");
}

/// Prints the time from a purge at one instance to its effect at all of three.
#[test]
#[cfg(feature = "valkey")]
fn purges_reach_all_instances() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let (origin, _) = origin();
    let store = format!("url \"valkey://{}\"\n {QUICK}", valkey.address);
    let all: Vec<Operated> = (0..3).map(|number| start(&store, number, &origin)).collect();
    for operated in &all {
        eventually("it sees all instances", || instances(operated).len() == 3);
    }
    let mut delays_ms = Vec::new();
    for round in 0..60 {
        let before: Vec<_> = all.iter().map(|operated| get(operated, "/a")).collect();
        let begun = Instant::now();
        order(&all[round % 3], &["cache", "purge", "http://h/a"]);
        for (operated, content) in all.iter().zip(&before) {
            eventually("the response is removed", || get(operated, "/a") != *content);
        }
        delays_ms.push(begun.elapsed().as_millis());
    }
    delays_ms.sort_unstable();
    let at = |share: usize| delays_ms[(delays_ms.len() - 1) * share / 100];
    println!("purge at all of 3 instances after p50 {} ms, p99 {} ms, longest {} ms", at(50), at(99), at(100));
}

/// Requests in progress count at all instances, until the instance that has them is killed.
#[test]
#[cfg(feature = "valkey")]
fn instances_share_limits_of_requests() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    std::fs::write(&key, "k".repeat(32)).unwrap();
    let held = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&held);
    let origin = FunctionServer::start(move |head| {
        if head.starts_with("GET /held") {
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::park_timeout(Duration::from_secs(600));
        }
        response("200 OK", "", "hello")
    });
    let config = format!(
        "store {{ url \"valkey://127.0.0.1:{}\"; key-file \"{}\"; timeout \"500ms\" }}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\"\n request-limit \"/*\" 3\n}}\n",
        valkey.address.port(),
        key.display(),
        origin.address
    );
    let mut all: Vec<Operated> = (0..3).map(|_| Operated::start(&config)).collect();
    eventually("all instances are there", || all.iter().all(|operated| instances(operated).len() == 3));
    let hold = |operated: &Operated, count: usize| {
        let mut stream = operated.server.connect();
        stream.write_all(b"GET /held HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        eventually("it is in progress", || held.load(Ordering::SeqCst) == count);
        stream
    };
    let status = |operated: &Operated| {
        let text = ask(&operated.server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        text.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let _streams = [hold(&all[0], 1), hold(&all[0], 2), hold(&all[1], 3)];
    for operated in &all {
        eventually("all know three requests", || status(operated) == "429");
    }
    // An instance that cannot reach the store in time, as on a busy machine, counts alone for a while.
    let has_failed = || all.iter().any(|operated| operated.file("errors.log").contains("store failed"));
    let remember = || all.iter().all(|operated| status(operated) == "429");
    stays("they remember", Duration::from_secs(7), || remember() || has_failed());
    eventually("they remember", remember);
    // Killed: its two requests are forgotten.
    drop(all.remove(0));
    for operated in &all {
        eventually("there is room", || status(operated) == "200");
    }
    // The store is away: the limit of an instance alone.
    let _more = [hold(&all[0], 4), hold(&all[0], 5)];
    eventually("both know three requests", || all.iter().all(|operated| status(operated) == "429"));
    valkey.signal("STOP");
    eventually("there is room", || status(&all[1]) == "200");
    assert_eq!(status(&all[0]), "429");
    valkey.signal("CONT");
    eventually("both know three requests", || all.iter().all(|operated| status(operated) == "429"));
}

#[test]
fn a_configuration_that_asks_for_too_much_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let short = directory.path().join("empty");
    std::fs::write(&short, "").unwrap();
    let empty = format!("url \"/srv/shared\"; key-file \"{}\"", short.display());
    for (store, expect) in [
        ("", "the store has no `url`"),
        ("url \"/srv/shared\"; share \"limits\"", "a directory cannot share `limits`"),
        ("url \"consul://a\"; share \"tickets\" \"limits\"", "Consul cannot share `limits`"),
        ("url \"s3://bucket\"", "S3 needs `username` and `password-file`"),
        ("url \"valkey://user@a\"", "the address of a store has no user and password"),
        ("url \"valkey://a\"; endpoint \"http://b\"", "`endpoint` is not for Valkey"),
        ("url \"consul://a\"; username \"b\"", "Consul has no `username`"),
        ("url \"valkey://a\"; share \"limits\"", "to share `limits` needs a `key-file`"),
        ("url \"/srv/shared\"; share \"rollouts\"", "to share `rollouts` needs a `key-file`"),
        ("url \"valkey://a\"; timeout \"10s\"", "`lease-time` is below three times `timeout`"),
        ("url \"etcd://a\"", "`etcd://a` is not the address of a store"),
        (&empty, "the file is empty"),
    ] {
        let file = directory.path().join("tailcoat.kdl");
        std::fs::write(
            &file,
            format!("store {{ {store} }}\nsite {{ listen \"127.0.0.1:0\"; respond \"/\" 200 \"a\" }}\n"),
        )
        .unwrap();
        let output = tailcoat().arg("check").arg("-c").arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && text.contains(expect), "{store}: {text}");
    }
}

/// An instance without a store has no thread for one, no connection, no file, and no lines in its metrics. Its requests take no lock
/// for one: `crates/cache/src/shared_cache`. With a store, all of these are there.
#[test]
fn no_store_costs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let site = "site {\n listen \"127.0.0.1:0\"\n metrics \"/metrics\"\n respond \"/\" 200 \"hello\"\n}\n";
    let store = format!("store {{ url \"{}\" }}\n", directory.path().join("shared").display());
    for (config, has_store) in [(site.to_owned(), false), (format!("{store}{site}"), true)] {
        let operated = Operated::start(&config);
        let get = |target: &str| {
            ask(&operated.server, &format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
        };
        assert!(get("/").contains("hello"));
        if has_store {
            eventually("it has written its record", || instances(&operated).len() == 1);
        }
        // Said once, because a directory that is not mounted would be created silently.
        let said = || operated.file("errors.log").matches("directory of the store was missing or empty").count();
        eventually("the log has its line", || said() > 0 || !has_store);
        assert_eq!(said(), usize::from(has_store));
        let server: &TestServer = &operated.server;
        let threads = server.thread_names();
        assert!(threads.iter().any(|name| name.starts_with("worker")), "{threads:?}");
        assert_eq!(threads.iter().any(|name| name == "store"), has_store, "{threads:?}");
        assert!(!threads.iter().any(|name| name == "responses"), "{threads:?}");
        assert_eq!(get("/metrics").contains("tailcoat_store_"), has_store);
        assert!(!get("/metrics").contains("tailcoat_shared_cache_"));
        assert_eq!(directory.path().join("shared").exists(), has_store);
    }
}
