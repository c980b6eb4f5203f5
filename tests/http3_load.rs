//! Reloads and upgrades while clients of HTTP/3 send requests and move to other ports.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::http3::H3Server;
use crate::support::h3::H3Session;
use crate::support::waiting::eventually;

/// Clients at the same time.
const CLIENTS: usize = 6;

/// Requests after which a client moves to another port.
const REQUESTS_A_MOVE: usize = 3;

/// Counts of all clients.
#[derive(Default)]
struct Seen {
    requests: AtomicUsize,
    moves: AtomicUsize,
    /// Connections that the server has ended, as an upgrade does.
    ended: AtomicUsize,
    /// Connections of which the server no longer knew anything.
    reset: AtomicUsize,
    ends: AtomicBool,
}

/// Sends requests until the end. The client does not know GOAWAY. So the server rejects its next request, which it sends
/// again on a new connection (RFC 9114, section 5.2).
fn keep_asking(port: u16, authority: &Path, seen: &Seen) {
    let connect = || H3Session::connect(([127, 0, 0, 1], port).into(), authority);
    let mut session = connect();
    let mut is_retry = false;
    while !seen.ends.load(Ordering::Relaxed) {
        match session.order("get /").as_str() {
            "200 ok" => {
                is_retry = false;
                let count = seen.requests.fetch_add(1, Ordering::Relaxed);
                if count.is_multiple_of(REQUESTS_A_MOVE) {
                    assert_eq!(session.order("move"), "moved");
                    seen.moves.fetch_add(1, Ordering::Relaxed);
                }
            }
            // H3_NO_ERROR, H3_REQUEST_REJECTED, a stateless reset
            outcome @ ("closed 256" | "reset 267" | "closed reset") => {
                assert!(!is_retry, "a new connection serves requests");
                is_retry = true;
                seen.ended.fetch_add(1, Ordering::Relaxed);
                seen.reset.fetch_add(usize::from(outcome == "closed reset"), Ordering::Relaxed);
                session = connect();
            }
            other => panic!("{other}"),
        }
    }
}

fn check(reloads: usize, upgrades: usize) {
    let Some(mut server) = H3Server::start("respond \"/\" 200 \"ok\"") else { return };
    let seen = Arc::new(Seen::default());
    let (port, authority) = (server.port, server.operated.path().join("ca.pem"));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (seen, authority) = (Arc::clone(&seen), authority.clone());
            std::thread::spawn(move || keep_asking(port, &authority, &seen))
        })
        .collect();
    let requests = || seen.requests.load(Ordering::Relaxed);
    let is_failed = || clients.iter().any(|client| client.is_finished());
    for number in 0..reloads + upgrades {
        let before = requests();
        eventually("clients are served", || requests() > before + CLIENTS || is_failed());
        // Upgrades are spread among the reloads.
        if (number + 1) * upgrades / (reloads + upgrades) > number * upgrades / (reloads + upgrades) {
            // A process waits for its clients to go, and each needs sockets of its own.
            let is_room = || server.operated.running().len() < 4;
            eventually("old processes end", is_room);
            server.operated.upgrade();
        } else {
            assert!(server.operated.order(&["reload"]).status.success());
        }
    }
    let before = requests();
    eventually("clients are served", || requests() > before + CLIENTS || is_failed());
    seen.ends.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().expect("no request failed"));
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    println!(
        "{reloads} reloads, {upgrades} upgrades: {} requests, {} moves, {} connections ended by upgrades, \
         {} of them by a stateless reset, 0 failed",
        count(&seen.requests),
        count(&seen.moves),
        count(&seen.ended),
        count(&seen.reset)
    );
    assert!(count(&seen.moves) > 0 && count(&seen.ended) <= CLIENTS * upgrades);
}

/// Takes minutes. A client that starves meanwhile may not get the packet that closes its connection, and times out.
#[test]
#[ignore = "takes minutes, and needs an idle machine: cargo test --test blackbox http3_load -- --ignored --nocapture"]
fn clients_that_move_are_served_in_200_reloads_and_50_upgrades() {
    check(200, 50);
}

/// The short form.
#[test]
#[ignore = "needs an idle machine"]
fn clients_that_move_are_served_in_reloads_and_upgrades() {
    check(6, 3);
}
