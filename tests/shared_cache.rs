//! Cached responses that instances share through Valkey or S3: what others serve, and what they must never serve.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::ask;
use crate::support::engines;
use crate::support::function_server::{FunctionServer, response};
use crate::support::operated::Operated;
use crate::support::real_server::RealServer;
use crate::support::waiting::{eventually, eventually_some, stays, within};

/// Time that a request of most tests waits for the store.
const TIMEOUT: &str = "response-timeout \"10s\"";

/// Server whose responses count its requests; `/large/N` has N bytes more.
struct Origin {
    server: FunctionServer,
    count: Arc<AtomicUsize>,
}

impl Origin {
    fn start() -> Self {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let server = FunctionServer::start(move |head| {
            let target = head.split(' ').nth(1).unwrap_or_default();
            let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let fields = match target.split('/').nth(1) {
                Some("tagged") => "Cache-Control: max-age=1000\r\nSurrogate-Key: news\r\n",
                Some("short") => "Cache-Control: max-age=3\r\n",
                Some("private") => "Cache-Control: private, max-age=1000\r\n",
                Some("varying") => "Cache-Control: max-age=1000\r\nVary: Accept-Language\r\n",
                _ => "Cache-Control: max-age=1000\r\n",
            };
            let size = target.strip_prefix("/large/").and_then(|size| size.parse().ok()).unwrap_or(0);
            response("200 OK", fields, &format!("{number};{}", "x".repeat(size)))
        });
        Self { server, count }
    }

    fn requests(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

/// Files that instances share.
struct Secrets(TempDir);

impl Secrets {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("key"), "k".repeat(40)).unwrap();
        std::fs::write(directory.path().join("secret"), "secret").unwrap();
        Self(directory)
    }

    fn key_file(&self) -> String {
        format!("key-file \"{}\"", self.0.path().join("key").display())
    }
}

fn valkey_store(valkey: &RealServer, secrets: &Secrets) -> String {
    format!("url \"valkey://{}\"\n {}\n share \"orders\" \"responses\"", valkey.address, secrets.key_file())
}

fn start(store: &str, origin: &Origin) -> Operated {
    start_with(store, origin, TIMEOUT)
}

/// Starts an instance whose requests wait this long for the store.
fn start_with(store: &str, origin: &Origin, response_timeout: &str) -> Operated {
    let operated = Operated::start(&format!(
        "store {{\n {store}\n {response_timeout}\n timeout \"2s\"\n lease-time \"6s\"\n}}\n\
         access-log \"@DIR@/access.log\" format=\"{{path}} {{cache_status}}\"\n\
         site {{\n listen \"127.0.0.1:0\"\n metrics \"/metrics\"\n forward \"http://{}\" {{ cache }}\n}}\n",
        origin.server.address
    ));
    eventually("responses are shared", || usage(&operated)["is_used"] == true);
    operated
}

/// State of the cache that instances share.
fn usage(operated: &Operated) -> serde_json::Value {
    let output = operated.order(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    status["shared_cache"].clone()
}

fn count(operated: &Operated, name: &str) -> u64 {
    usage(operated)[name].as_u64().unwrap_or_default()
}

fn get_with(operated: &Operated, target: &str, fields: &str) -> String {
    let answer =
        ask(&operated.server, &format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}Connection: close\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split_once("\r\n\r\n").map(|(_, content)| content.to_owned()).unwrap_or_default()
}

fn get(operated: &Operated, target: &str) -> String {
    get_with(operated, target, "")
}

/// Gets a response from the upstream and waits until others can have it.
fn fill(operated: &Operated, target: &str) -> String {
    let written = count(operated, "written");
    let content = get(operated, target);
    eventually("it is written", || count(operated, "written") > written);
    content
}

/// Gets a response at the first instance, and the same at the second. Returns its target and content. While the store is
/// slow, instances get their own; then another target is next.
fn share(first: &Operated, second: &Operated, fields: &str, target: impl Fn(usize) -> String) -> (String, String) {
    let mut number = 0;
    eventually_some("the second has what the first has got", || {
        number += 1;
        let (target, written) = (target(number), count(first, "written"));
        let content = get_with(first, &target, fields);
        within(Duration::from_secs(5), || (count(first, "written") > written).then_some(()))?;
        (get_with(second, &target, fields) == content).then_some((target, content))
    })
}

fn purge(operated: &Operated, arguments: &[&str]) {
    let output = operated.order(&[&["cache", "purge"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Cases that each engine passes.
fn responses_are_shared(store: &str) {
    let origin = Origin::start();
    let (first, second) = (start(store, &origin), start(store, &origin));
    // Each response of the upstream has a number of its own.
    let (target, content) = share(&first, &second, "", |number| format!("/a/{number}"));
    eventually("the log tells", || second.file("access.log").contains(&format!("{target} shared-hit\n")));
    let (hits, requests) = (count(&second, "hits"), origin.requests());
    assert_eq!((get(&second, &target), origin.requests()), (content, requests));
    eventually("memory has it now", || second.file("access.log").contains(&format!("{target} hit\n")));
    assert_eq!(count(&second, "hits"), hits);
    // Content as it was, and variants.
    let (_, large) = share(&first, &second, "", |number| format!("/large/{}", 300_000 + number));
    assert!(large.len() > 300_000);
    for language in ["de", "fr"] {
        let fields = format!("Accept-Language: {language}\r\n");
        share(&first, &second, &fields, |number| format!("/varying/{number}"));
    }
    // Responses for one client, and large ones, are not shared.
    let before = count(&first, "written");
    for target in ["/private", "/large/1100000"] {
        assert_ne!(get(&first, target), get(&second, target), "{target}");
    }
    assert_eq!(count(&first, "written"), before);

    // A purge at one holds for the others, by URL, prefix and tag.
    for (target, arguments) in
        [("/purged", &["http://h/purged"][..]), ("/b/c", &["http://h/b/*"]), ("/tagged/d", &["--tag", "news"])]
    {
        let content = fill(&first, target);
        // Not in the memory of the second, so that only the store can have it.
        purge(&second, arguments);
        let new = get(&second, target);
        assert_ne!(new, content, "{target}: purged where it was ordered");
        eventually("it is purged at the other", || get(&first, target) != content);
        let third = start(store, &origin);
        assert_ne!(get(&third, target), content, "{target}: at an instance that starts later");
    }
    // An unsafe request at one keeps it from reading what the store has.
    let content = fill(&first, "/e");
    ask(&second.server, "POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert_ne!(get(&second, "/e"), content);

    // Lifetimes go on in the store.
    let (target, content) = share(&first, &second, "", |number| format!("/short/{number}"));
    eventually("it is too old for both", || get(&second, &target) != content && get(&first, &target) != content);
    let metrics = ask(&first.server, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(metrics.contains("tailcoat_shared_cache_up 1"), "{metrics}");
}

/// Instances have addresses, limits and logs of their own. Sites that change requests in another way share nothing.
#[test]
fn instances_with_other_addresses_share_responses() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let (origin, secrets) = (Origin::start(), Secrets::new());
    let store = valkey_store(&valkey, &secrets);
    let first = start(&store, &origin);
    let content = fill(&first, "/a");
    let second = |listen: &str, options: &str| {
        let operated = Operated::start(&format!(
            "store {{\n {store}\n {TIMEOUT}\n timeout \"2s\"\n lease-time \"6s\"\n}}\n\
             site {{\n listen \"{listen}\"\n {options}\n forward \"http://{}\" {{ cache; first-byte-timeout \"9s\" }}\n}}\n",
            origin.server.address
        ));
        eventually("responses are shared", || usage(&operated)["is_used"] == true);
        get(&operated, "/a")
    };
    assert_eq!(second("127.0.0.2:0", ""), content);
    assert_eq!(second("127.0.0.1:0", "rate-limit \"/\" \"9/s\" burst=9"), content);
    assert_ne!(second("127.0.0.1:0", "request-header \"X-Tenant\" \"other\""), content);
}

#[test]
fn instances_share_responses_through_valkey() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    responses_are_shared(&valkey_store(&valkey, &Secrets::new()));
    let keys = engines::say(valkey.address.port(), "KEYS tailcoat:responses/*").unwrap();
    let key = keys.lines().find(|line| line.starts_with("tailcoat:responses/")).expect("there are responses");
    let time = engines::say(valkey.address.port(), &format!("TTL {key}")).unwrap();
    let seconds: i64 = time.trim_start_matches(':').trim().parse().unwrap();
    assert!((1..=1_000).contains(&seconds), "{time}");
}

#[test]
fn instances_share_responses_through_s3() {
    let Some(s3) = engines::s3() else { return };
    let secrets = Secrets::new();
    responses_are_shared(&format!(
        "url \"s3://shared/edge\"\n endpoint \"http://{}\"\n username \"id\"\n password-file \"{}\"\n {}\n poll-interval \
         \"250ms\"\n share \"orders\" \"responses\"",
        s3.address,
        secrets.0.path().join("secret").display(),
        secrets.key_file()
    ));
}

/// Says a command with arguments of any bytes to Valkey.
fn say_bytes(port: u16, arguments: &[&[u8]]) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut command = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        command.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        command.extend_from_slice(argument);
        command.extend_from_slice(b"\r\n");
    }
    stream.write_all(&command).unwrap();
    let mut reply = [0; 3];
    stream.read_exact(&mut reply).unwrap();
    assert_ne!(&reply[..1], b"-");
}

/// Value of a key of Valkey; empty if there is none.
fn value_of(port: u16, key: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(format!("GET {key}\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    let mut byte = [0; 1];
    while !head.ends_with(b"\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let length: i64 = String::from_utf8_lossy(&head[1..]).trim().parse().unwrap();
    let mut value = vec![0; usize::try_from(length).unwrap_or(0)];
    stream.read_exact(&mut value).unwrap();
    value
}

fn response_keys(port: u16) -> Vec<String> {
    let keys = engines::say(port, "KEYS tailcoat:responses/*").unwrap();
    keys.lines().filter(|line| line.starts_with("tailcoat:")).map(str::to_owned).collect()
}

/// Values that another program writes into the store are not served, and cost one read: changed bytes, cut and long values, values of
/// another kind, of another key, and old ones from before a purge.
#[test]
fn values_of_a_hostile_store() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let (origin, secrets) = (Origin::start(), Secrets::new());
    let (store, port) = (valkey_store(&valkey, &secrets), valkey.address.port());
    let first = start(&store, &origin);
    let content = fill(&first, "/a");
    let [key] = &*response_keys(port) else { panic!("one response") };
    let value = value_of(port, key);
    let mut changed = Vec::new();
    for at in [0, 11, 12, 20, 40, value.len() / 2, value.len() - 1] {
        let mut other = value.clone();
        other[at] ^= 1;
        changed.push(other);
    }
    changed.extend([value[..value.len() - 1].to_vec(), value[..5].to_vec(), [&value[..], b"x"].concat()]);
    changed.push(vec![b'x'; 5 << 20]);
    let is_other = |value: &[u8], before: &[u8]| !value.is_empty() && value != before;
    let second = start(&store, &origin);
    for (number, other) in changed.iter().enumerate() {
        say_bytes(port, &[b"SET", key.as_bytes(), other]);
        purge(&second, &["http://other/"]);
        assert_ne!(get(&second, "/a"), content, "{number}");
        // The upstream's response has replaced it in the store.
        eventually("it is written again", || is_other(&value_of(port, key), other));
        purge(&second, &["http://h/a"]);
    }
    say_bytes(port, &[b"DEL", key.as_bytes()]);
    say_bytes(port, &[b"HSET", key.as_bytes(), b"v", b"1"]);
    get(&second, "/a");
    assert!(count(&second, "damaged") >= changed.len() as u64, "{}", usage(&second));
    // The value of another key.
    let other = fill(&first, "/b");
    let of_b = response_keys(port).into_iter().find(|found| found != key).expect("a second response");
    let misplaced = value_of(port, &of_b);
    say_bytes(port, &[b"SET", key.as_bytes(), &misplaced]);
    let third = start(&store, &origin);
    assert_ne!(get(&third, "/a"), other);
    eventually("it is written again", || is_other(&value_of(port, key), &misplaced));
    // From before the purges above.
    say_bytes(port, &[b"SET", key.as_bytes(), &value]);
    let fourth = start(&store, &origin);
    assert_ne!(get(&fourth, "/a"), content, "played again");
    assert_eq!(count(&fourth, "purged"), 1, "{}", usage(&fourth));
    // The store is still used.
    assert_eq!(usage(&fourth)["is_used"], true);
}

/// While the store hangs, few requests wait, and those no longer than `response-timeout`. Purges meanwhile hold when it is back,
/// for an instance that was cut off as well.
#[test]
fn a_store_that_hangs() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let (origin, secrets) = (Origin::start(), Secrets::new());
    let store = valkey_store(&valkey, &secrets);
    let start = || start_with(&store, &origin, "response-timeout \"500ms\"");
    let (first, second) = (start(), start());
    let content = fill(&first, "/a");
    valkey.signal("STOP");
    let begun = Instant::now();
    for number in 0..50 {
        get(&second, &format!("/stopped/{number}"));
    }
    // Not a limit of speed: they would take 25 s if each waited, and 100 s if each waited for the store's own time limit.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(count(&second, "timeouts") <= 3, "{}", usage(&second));
    assert_eq!(usage(&second)["is_used"], false);
    // Cannot be published yet; the store has the response.
    purge(&second, &["http://h/a"]);
    assert_ne!(get(&second, "/a"), content);
    valkey.signal("CONT");
    eventually("the store is used again", || usage(&second)["is_used"] == true && usage(&first)["is_used"] == true);
    eventually("the purge holds at the other", || get(&first, "/a") != content);
    let third = start();
    assert_ne!(get(&third, "/a"), content);
    share(&first, &third, "", |number| format!("/b/{number}"));
}

/// An instance that was stopped has missed a purge and holds an old response. It does not bring it back.
#[test]
fn an_instance_that_was_away_brings_nothing_back() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let (origin, secrets) = (Origin::start(), Secrets::new());
    let store = valkey_store(&valkey, &secrets);
    let (first, second) = (start(&store, &origin), start(&store, &origin));
    let content = fill(&first, "/a");
    assert_eq!(get(&second, "/a"), content);
    let [key] = &*response_keys(valkey.address.port()) else { panic!("one response") };
    let value = value_of(valkey.address.port(), key);
    second.server.signal("STOP");
    purge(&first, &["http://h/a"]);
    let new = get(&first, "/a");
    assert_ne!(new, content);
    // As if it had written its old response again.
    say_bytes(valkey.address.port(), &[b"SET", key.as_bytes(), &value]);
    second.server.signal("CONT");
    eventually("it hears of the purge", || get(&second, "/a") != content);
    let third = start(&store, &origin);
    for _ in 0..5 {
        assert_ne!(get(&third, "/a"), content);
    }
}

/// A store that loses all values: instances go on, and share new responses.
#[test]
fn a_store_that_is_wiped() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let (origin, secrets) = (Origin::start(), Secrets::new());
    let store = valkey_store(&valkey, &secrets);
    let (first, second) = (start(&store, &origin), start(&store, &origin));
    let content = fill(&first, "/a");
    let [key] = &*response_keys(valkey.address.port()) else { panic!("one response") };
    let value = value_of(valkey.address.port(), key);
    assert_eq!(engines::say(valkey.address.port(), "FLUSHALL").as_deref(), Some("+OK\r\n"));
    eventually("both know", || {
        [&first, &second].iter().all(|operated| operated.file("errors.log").contains("cache emptied"))
            || (usage(&first)["is_used"] == true && get(&first, "/a") != content)
    });
    // Fetched before the store lost the purges, perhaps.
    say_bytes(valkey.address.port(), &[b"SET", key.as_bytes(), &value]);
    let third = start(&store, &origin);
    assert_ne!(get(&third, "/a"), content);
    let mut number = 0;
    eventually("new responses are shared", || {
        number += 1;
        let target = format!("/new/{number}");
        let content = get(&first, &target);
        stays("written", Duration::from_millis(300), || true);
        get(&third, &target) == content
    });
}

/// Without `share "responses"`, no response leaves the instance.
#[test]
fn responses_are_shared_only_on_request() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let (origin, secrets) = (Origin::start(), Secrets::new());
    let store = format!("url \"valkey://{}\"\n {}", valkey.address, secrets.key_file());
    let operated = Operated::start(&format!(
        "store {{\n {store}\n}}\nsite {{\n listen \"127.0.0.1:0\"\n forward \"http://{}\" {{ cache }}\n}}\n",
        origin.server.address
    ));
    get(&operated, "/a");
    assert!(usage(&operated).is_null());
    assert!(response_keys(valkey.address.port()).is_empty());
}
