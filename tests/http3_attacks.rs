//! Named attacks on QUIC and HTTP/3, on the built server. Each is bounded, and other clients are served meanwhile. The
//! engine's tests of frames, each with its budget, are in `crates/wire/src/h3/tests/attacks.rs`.

use std::process::Command;

use crate::http3::H3Server;
use crate::support::waiting::settled;

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
