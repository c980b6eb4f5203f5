//! Named attacks on QUIC and HTTP/3, on the built server. Each is bounded, and other clients are served meanwhile. The
//! engine's tests of frames, each with its budget, are in `crates/wire/src/h3/tests/attacks.rs`.

use std::net::UdpSocket;
use std::process::Command;

use crate::http3::H3Server;
use crate::support::waiting::{eventually_some, settled};

/// Client that attacks.
const ATTACK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/support/h3_attack.py");

/// Memory that the server may keep after an attack, in KiB.
const KEPT_KIB_MAX: u64 = 8 << 10;

/// Options of a site that responds.
const SITE: &str = "respond \"/\" 200 \"ok\"";

/// Runs an attack of `h3_attack.py`; another client is served before and after it. Returns what the server did.
fn attack(name: &str) -> Option<String> {
    let server = H3Server::start(SITE)?;
    Some(attack_on(&server, name))
}

fn attack_on(server: &H3Server, name: &str) -> String {
    let mut other = server.connect();
    assert_eq!(other.order("get /"), "200 ok");
    let memory_kib = || server.operated.server.memory_kib();
    let before_kib = memory_kib();
    let mut command = Command::new("python3");
    let output = command.args([ATTACK, "127.0.0.1", &server.port.to_string(), name]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    assert_eq!(other.order("get /"), "200 ok", "{name}");
    assert_eq!(server.connect().order("get /"), "200 ok", "{name}");
    let kept_kib = settled("memory", memory_kib).saturating_sub(before_kib);
    assert!(kept_kib < KEPT_KIB_MAX, "{name}: {kept_kib} KiB");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn check(attacks: &[(&str, &str)]) {
    for (name, expect) in attacks {
        let Some(outcome) = attack(name) else { return };
        assert_eq!(outcome, *expect, "{name}");
    }
}

#[test]
fn attacks_before_the_handshake() {
    check(&[("amplification", "bounded"), ("flood", "retry"), ("garbage", "silent"), ("versions", "version 1")]);
}

#[test]
fn attacks_on_connections() {
    check(&[
        // H3_EXCESSIVE_LOAD
        ("rapid_reset", "closed 263"),
        ("priority_updates", "closed 263"),
        // H3_CLOSED_CRITICAL_STREAM
        ("closed_control_stream", "closed 260"),
        // PROTOCOL_VIOLATION
        ("retire_flood", "closed 10"),
        ("optimistic_ack", "closed 10"),
        // INTERNAL_ERROR: the gaps would cost more than the content.
        ("stream_gaps", "closed 1"),
    ]);
}

/// Content after a gap counts in the memory budget. The connection that holds most is closed.
#[test]
fn content_that_can_not_be_read_is_counted() {
    let Some(server) = H3Server::start_with("limits {\n client-memory-bytes-max \"2MiB\"\n}\n", SITE) else { return };
    // H3_EXCESSIVE_LOAD
    assert_eq!(attack_on(&server, "hoard"), "closed 263");
    server.operated.server.await_log("closed connections of the clients that held most memory: connections=");
}

/// UDP socket of the server, as the kernel shows it in `/proc/net/udp`.
struct QueueState {
    inode: String,
    waiting_bytes: u64,
    dropped: u64,
}

/// Sockets of a port.
fn queues(port: u16) -> Vec<QueueState> {
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row[1].ends_with(&format!(":{port:04X}")));
    rows.map(|row| QueueState {
        inode: row[9].to_owned(),
        waiting_bytes: u64::from_str_radix(row[4].split_once(':').unwrap().1, 16).unwrap(),
        dropped: row[row.len() - 1].parse().unwrap(),
    })
    .collect()
}

/// A flood of first packets fills the sockets that accept. While no thread of the server reads any socket, packets of
/// connections still find room in theirs.
#[test]
fn a_flood_of_first_packets_costs_no_packet_of_a_connection() {
    let Some(server) = H3Server::start(SITE) else { return };
    let mut session = server.connect();
    assert_eq!(session.order("get /"), "200 ok");
    server.operated.server.signal("STOP");
    let full = |queues: &[QueueState]| queues.iter().filter(|queue| queue.dropped > 0).count();
    let mut packet = [0; 1_200];
    packet[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
    // Each of the two workers has one.
    while full(&queues(server.port)) < 2 {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for id in 1_u64..=500 {
            packet[6..14].copy_from_slice(&id.to_be_bytes());
            client.send_to(&packet, ("127.0.0.1", server.port)).unwrap();
        }
    }
    session.give("get /");
    let own = eventually_some("the request waits in a socket that is not full", || {
        queues(server.port).into_iter().find(|queue| queue.waiting_bytes > 0 && queue.dropped == 0)
    });
    server.operated.server.signal("CONT");
    assert_eq!(session.read(), "200 ok");
    let after = queues(server.port);
    assert_eq!(full(&after), 2);
    assert!(after.iter().any(|queue| queue.inode == own.inode && queue.dropped == 0));
}
