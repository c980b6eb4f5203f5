//! Stores that lie, and programs that write to a store: instances keep their memory, their orders and their limits.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::ask;
use crate::support::engines;
use crate::support::operated::Operated;
use crate::support::waiting::{eventually, stays};

/// Limits of a store that fails in the test.
const QUICK: &str = "timeout \"500ms\"\n lease-time \"2s\"";

const SITE: &str = "site {\n listen \"127.0.0.1:0\"\n metrics \"/metrics\"\n respond \"/\" 200 \"hello\"\n";

fn start(store: &str, site: &str) -> Operated {
    Operated::start(&format!("store {{\n {store}\n {QUICK}\n}}\n{SITE}{site}}}\n"))
}

fn serves(operated: &Operated) -> bool {
    status_of(operated) == "200"
}

fn status_of(operated: &Operated) -> String {
    let text = ask(&operated.server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    text.split(' ').nth(1).unwrap_or_default().to_owned()
}

fn metric(operated: &Operated, name: &str) -> f64 {
    let text = ask(&operated.server, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

fn order(operated: &Operated, arguments: &[&str]) -> String {
    let output = operated.order(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn instances(operated: &Operated) -> usize {
    let status: serde_json::Value = serde_json::from_str(&order(operated, &["status", "--json"])).unwrap();
    status["store"]["instances"].as_array().map_or(0, Vec::len)
}

/// Says a script to Valkey.
fn say(port: u16, command: &str) {
    let reply = engines::say(port, command);
    assert!(reply.as_ref().is_some_and(|reply| !reply.starts_with('-')), "{command}: {reply:?}");
}

/// 48 records of instances and 8 events with 16 MiB each: no instance reads them, all orders go on, and one log line tells.
#[test]
fn huge_values_take_no_memory() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let port = valkey.address.port();
    let store = format!("url \"valkey://127.0.0.1:{port}\"");
    let all = [start(&store, ""), start(&store, "")];
    for operated in &all {
        eventually("both are there", || instances(operated) == 2);
    }
    let before: Vec<u64> = all.iter().map(|operated| operated.server.resident_kib_max()).collect();
    let put = |key: &str| {
        let put = "return redis.call('HSET', KEYS[1], 'v', '1', 'd', string.rep('x', 16777216))";
        say(port, &format!("EVAL \"{put}\" 1 tailcoat:{key}"));
    };
    for number in 0..48 {
        put(&format!("members/foreign-{number}"));
        say(port, &format!("SADD tailcoat:members/* members/foreign-{number}"));
    }
    (1..=8).for_each(|number| put(&format!("events/{number:016}")));
    order(&all[0], &["ban", "192.0.2.1", "--for", "10m"]);
    eventually("it holds at both", || order(&all[1], &["bans"]).contains("192.0.2.1/32"));
    for operated in &all {
        eventually("the others are there", || instances(operated) == 2);
        eventually("metrics tell", || metric(operated, "tailcoat_store_unusable_values_total") >= 48.0);
        eventually("the log tells", || operated.file("errors.log").contains("value of the store not used"));
    }
    for operated in all.iter().cycle().take(5 * all.len()) {
        // A lease may end on a slow machine, and then comes back.
        eventually("the others are there", || instances(operated) == 2);
    }
    for (operated, before) in all.iter().zip(before) {
        let log = operated.file("errors.log");
        assert_eq!(log.matches("value of the store not used").count(), 1, "{log}");
        let now = operated.server.resident_kib_max();
        println!("memory before {before} KiB, most {now} KiB");
        assert!(now < before + (64 << 10), "{now} KiB, {before} KiB before");
    }
}

/// With `key-file`: values that do not authenticate, at the keys of the next orders and of what instances share.
#[test]
fn forged_values_stop_no_orders() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let port = valkey.address.port();
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    std::fs::write(&key, "k".repeat(32)).unwrap();
    for key_file in [String::new(), format!("key-file \"{}\"", key.display())] {
        say(port, "FLUSHALL");
        let store = format!("url \"valkey://127.0.0.1:{port}\"\n {key_file}");
        let all = [start(&store, ""), start(&store, "")];
        for operated in &all {
            eventually("both are there", || instances(operated) == 2);
        }
        for round in 0..6 {
            // At the place of the next order.
            say(
                port,
                "EVAL \"for i = 1, 100 do local k = string.format('tailcoat:events/%016d', i) \
                 if redis.call('EXISTS', k) == 0 then redis.call('HSET', k, 'v', 'x' .. i, 'd', 'forged') \
                 if i % 3 == 0 then redis.call('SET', k, 'forged') end break end end return 1\" 0",
            );
            let forged = ["meta", "tickets", "leases/housekeeper", "bans", "key-proof", "meta"][round];
            say(
                port,
                &format!("EVAL \"return redis.call('HSET', KEYS[1], 'v', 'y', 'd', 'forged')\" 1 tailcoat:{forged}"),
            );
            let client = format!("192.0.2.{round}");
            order(&all[round % 2], &["ban", &client, "--for", "10m"]);
            let shown = format!("{client}/32");
            eventually("it holds at the other", || order(&all[1 - round % 2], &["bans"]).contains(&shown));
        }
        let late = start(&store, "");
        eventually("a new instance has all", || {
            let bans = order(&late, &["bans"]);
            (0..6).all(|round| bans.contains(&format!("192.0.2.{round}/32")))
        });
        eventually("metrics tell", || metric(&all[0], "tailcoat_store_unusable_values_total") > 0.0);
        eventually("the log tells", || all[0].file("errors.log").contains("value of the store not used"));
        all.iter().for_each(|operated| assert!(serves(operated)));
    }
}

/// An instance whose `key-file` is not that of the others: with `limits-without-store closed` it rejects, and it changes nothing.
#[test]
fn another_key_closes_limits() {
    let Some(valkey) = engines::valkey(&[], &[]) else { return };
    let directory = tempfile::tempdir().unwrap();
    let key_file = |name: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, name.repeat(32)).unwrap();
        format!("url \"valkey://{}\"\n limits-without-store closed\n key-file \"{}\"", valkey.address, path.display())
    };
    let limit = " rate-limit \"/\" \"1000/s\" burst=1000\n";
    let good = start(&key_file("g"), limit);
    eventually("the limit is open", || serves(&good));
    let bad = start(&key_file("b"), limit);
    eventually("the log tells", || bad.file("errors.log").contains("value of the store not used"));
    // From the first request on.
    stays("it rejects", Duration::from_secs(3), || status_of(&bad) == "429");
    // Its limit closes for a while if the store is slow.
    eventually("the limit is open", || serves(&good));
    order(&good, &["ban", "192.0.2.1", "--for", "10m"]);
    let late = start(&key_file("g"), limit);
    eventually("orders go on", || order(&late, &["bans"]).contains("192.0.2.1/32"));
    assert!(!order(&bad, &["bans"]).contains("192.0.2.1"));
    // A store that was never there.
    let absent = key_file("g").replace(&valkey.address.to_string(), "127.0.0.1:1");
    let alone = start(&absent, limit);
    stays("it rejects", Duration::from_secs(1), || status_of(&alone) == "429");
}

/// Server in place of Valkey that responds to each command with the same bytes, slowly if asked.
struct Liar {
    address: SocketAddr,
    commands: Arc<AtomicUsize>,
}

impl Liar {
    fn start(reply: Vec<u8>, pause: Option<Duration>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, commands) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let (counted, reply) = (Arc::clone(&commands), Arc::new(reply));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (counted, reply) = (Arc::clone(&counted), Arc::clone(&reply));
                std::thread::spawn(move || lie(stream, &reply, pause, &counted));
            }
        });
        Self { address, commands }
    }
}

/// Responds to the commands of a connection. Those that begin a connection have their usual reply.
fn lie(stream: TcpStream, reply: &[u8], pause: Option<Duration>, counted: &AtomicUsize) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let count: usize = line.strip_prefix('*')?.trim().parse().ok()?;
        let mut parts = Vec::new();
        for _ in 0..count {
            line.clear();
            reader.read_line(&mut line).ok()?;
            let mut part = vec![0; line.strip_prefix('$')?.trim().parse::<usize>().ok()? + 2];
            reader.read_exact(&mut part).ok()?;
            parts.push(part);
        }
        if parts.first()?.eq_ignore_ascii_case(b"CLIENT\r\n") {
            writer.write_all(b"+OK\r\n").ok()?;
            continue;
        }
        counted.fetch_add(1, Ordering::SeqCst);
        match pause {
            None => writer.write_all(reply).ok()?,
            Some(pause) => {
                for byte in reply {
                    writer.write_all(&[*byte]).ok()?;
                    std::thread::sleep(pause);
                }
            }
        }
    }
}

/// Stores that respond with other types, promise much, or send slowly. Instances go on without them, and their memory stays.
#[test]
fn stores_that_lie() {
    let endless = || b"$1000000000\r\n".iter().copied().chain(std::iter::repeat_n(b'x', 64 << 20)).collect::<Vec<u8>>();
    let deep = || b"*1\r\n".repeat(200_000);
    for (reply, pause) in [
        (b"+OK\r\n".to_vec(), None),
        (b":-1\r\n".to_vec(), None),
        (b"$-1\r\n".to_vec(), None),
        (b"*0\r\n".to_vec(), None),
        (b"*-1\r\n".to_vec(), None),
        (b"*2\r\n$1\r\n1\r\n:5\r\n".to_vec(), None),
        (b"*3\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n".to_vec(), None),
        (b"*2\r\n$1\r\n1\r\n$2\r\n{}\r\n".to_vec(), None),
        (
            b"*2\r\n$1\r\n1\r\n$66\r\n{\"epoch\":\"x\",\"oldest\":18446744073709551615,\"removed\":1,\"a\":12345}\r\n"
                .to_vec(),
            None,
        ),
        (b"*2\r\n$20\r\n18446744073709551615\r\n$20\r\n18446744073709551615\r\n".to_vec(), None),
        (b"-ERR no\r\n".to_vec(), None),
        (b"-MOVED 1 127.0.0.1:1\r\n".to_vec(), None),
        (b"*100000000000\r\n".to_vec(), None),
        (b"*9223372036854775807\r\n".to_vec(), None),
        (b"%9223372036854775807\r\n".to_vec(), None),
        (b"$9223372036854775807\r\n".to_vec(), None),
        (endless(), None),
        (deep(), None),
        (vec![b'+'; 32 << 20], None),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), None),
        (
            b"*2\r\n$1\r\n1\r\n$1000000\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx".to_vec(),
            Some(Duration::from_millis(20)),
        ),
    ] {
        let shown = String::from_utf8_lossy(&reply[..reply.len().min(40)]).into_owned();
        let liar = Liar::start(reply, pause);
        let operated = start(&format!("url \"valkey://{}\"", liar.address), "");
        eventually("it asks", || liar.commands.load(Ordering::SeqCst) >= 3);
        // Time is what this tests: the store may lie for a while.
        stays("it serves", Duration::from_secs(1), || serves(&operated));
        order(&operated, &["ban", "192.0.2.1", "--for", "10m"]);
        order(&operated, &["status"]);
        let lines = operated.file("errors.log").lines().count();
        assert!(lines < 20, "{shown:?}: {lines} lines");
        let most = operated.server.resident_kib_max();
        println!("{shown:?}: {most} KiB");
        assert!(most < 200 << 10, "{shown:?}: {most} KiB");
        assert!(operated.threads("store") == 1, "{shown:?}: {}", operated.file("errors.log"));
        assert!(!operated.file("errors.log").contains("panicked"), "{shown:?}: {}", operated.file("errors.log"));
    }
}
