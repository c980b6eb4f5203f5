//! Clients that move, and attackers that only seem to be clients that moved.

use std::net::SocketAddr;

use quinn_proto::VarInt;

use super::client;
use super::network::{Fate, Way};
use super::server;
use super::world::{MS, SECOND, World};

const REBOUND: &str = "192.0.2.1:6000";
const OTHER: &str = "203.0.113.9:5000";
const ATTACKER: &str = "203.0.113.66:66";

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// World with a download of 8 MiB that has run for a while.
fn busy(seed: u64) -> World {
    let mut transport = client::transport();
    transport.stream_receive_window(VarInt::from_u32(8 << 20));
    let mut world = World::with(seed, server::settings(), transport);
    world.network.set(|link| link.rate = Some(4 << 20));
    world.connect();
    world.client().get(8 << 20);
    world.run_for(400 * MS);
    assert!((100_000..6 << 20).contains(&world.client().received()));
    world
}

#[test]
fn a_new_port_of_a_nat_is_followed() {
    for other in [REBOUND, OTHER] {
        let mut world = busy(1);
        world.client().addr = addr(other);
        let window = world.server.only().connection.congestion_window();
        world.run_for(30 * MS);
        assert_eq!(world.server.remote(), addr(other));
        let new_window = world.server.only().connection.congestion_window();
        match other == REBOUND {
            // The line is the same.
            true => assert!(new_window >= window / 2, "{window} {new_window}"),
            false => assert!(new_window < 60_000, "{window} {new_window}"),
        }
        let took = world.finish(20 * SECOND);
        assert!(took <= 4 * SECOND, "{other} {took:?}");
        assert!(world.client().connection().stats().frame_rx.path_challenge >= 1);
        assert_eq!(world.server.remote(), addr(other));
    }
}

#[test]
fn a_move_during_a_probe_of_the_size_does_not_end_the_search() {
    let mut world = World::connected(11);
    // The first probe is on its way.
    world.run_for(MS);
    world.client().addr = addr(REBOUND);
    world.client().get(2 << 20);
    world.finish(20 * SECOND);
    assert_eq!(world.server.remote(), addr(REBOUND));
    assert_eq!(world.server.only().connection.datagram_bytes(), 1_452);
}

#[test]
fn an_idle_client_moves_with_its_next_request() {
    for other in [REBOUND, OTHER] {
        let mut world = World::connected(2);
        for round in 0..5_u16 {
            world.run_for(5 * SECOND);
            let mut to = addr(other);
            to.set_port(7_000 + round);
            world.client().addr = to;
            world.client().get(50_000);
            let took = world.finish(3 * SECOND);
            assert!(took <= 300 * MS, "{round} {took:?}");
            assert_eq!(world.server.remote(), to);
        }
    }
}

#[test]
fn a_client_that_both_addresses_reach_does_not_swing() {
    let mut world = busy(3);
    let old = world.client().addr;
    world.client().other_addrs = vec![old];
    world.client().addr = addr(OTHER);
    world.run_for(100 * MS);
    assert_eq!(world.server.remote(), addr(OTHER));
    let mut moves = 0;
    let mut last = addr(OTHER);
    world.run(20 * SECOND, |world| {
        let remote = world.server.remote();
        moves += u32::from(std::mem::replace(&mut last, remote) != remote);
        world.clients[0].all_done()
    });
    world.finish(MS);
    assert_eq!(moves, 0);
}

#[test]
fn a_lost_challenge_is_repeated() {
    for other in [REBOUND, OTHER] {
        for lost in 0..6 {
            let mut world = busy(4);
            let mut sent = 0;
            world.client().addr = addr(other);
            world.network.rule = Some(Box::new(move |packet| {
                if packet.way == Way::ToClient && packet.client == addr(other) {
                    sent += 1;
                    if sent - 1 == lost {
                        return Fate::Drop;
                    }
                }
                Fate::Pass
            }));
            let took = world.finish(20 * SECOND);
            assert!(took <= 5 * SECOND, "{other} {lost} {took:?}");
            assert_eq!(world.server.remote(), addr(other));
        }
    }
}

#[test]
fn a_small_challenge_is_followed_by_one_of_the_full_size() {
    for other in [REBOUND, OTHER] {
        let mut world = World::connected(9);
        world.run_for(SECOND);
        let mut sent = 0;
        world.client().addr = addr(other);
        world.client().get(50_000);
        world.network.rule = Some(Box::new(move |packet| {
            // The old address gets a challenge, too.
            if packet.way == Way::ToServer || packet.client != addr(other) {
                return Fate::Pass;
            }
            sent += 1;
            // The limit for new addresses permits three times the request, which has about 80 bytes.
            let is_small = packet.payload.len() < 1_200;
            assert!(sent > 1 || is_small);
            if sent > 1 && is_small { Fate::Drop } else { Fate::Pass }
        }));
        let is_repeated = world.run(SECOND, |world| world.clients[0].connection().stats().frame_rx.path_challenge == 2);
        assert!(is_repeated, "{other}");
        world.network.rule = None;
        world.finish(SECOND);
        world.run_for(10 * SECOND);
        assert_eq!(world.server.remote(), addr(other));
        assert_eq!(world.client().connection().stats().frame_rx.path_challenge, 2);
    }
}

#[test]
fn a_path_for_small_datagrams_only_is_left() {
    for other in [REBOUND, OTHER] {
        let mut world = World::connected(10);
        world.run_for(SECOND);
        let old = world.client().addr;
        world.client().other_addrs = vec![old];
        world.client().addr = addr(other);
        world.client().get(50_000);
        let mut passed = 0;
        world.network.rule = Some(Box::new(move |packet| {
            let is_new = packet.way == Way::ToClient && packet.client == addr(other);
            passed += u32::from(is_new && packet.payload.len() <= 1_000);
            assert!(!is_new || passed > 0, "the first challenge is small");
            if is_new && packet.payload.len() > 1_000 { Fate::Drop } else { Fate::Pass }
        }));
        assert!(world.run(SECOND, |world| world.server.remote() == addr(other)));
        let moved_at = world.now;
        assert!(world.run(10 * SECOND, |world| world.server.remote() == old), "{other}");
        let took = world.now - moved_at;
        println!("{other}: left after {took:?}");
        assert!(took <= 2 * SECOND, "{other} {took:?}");
        world.client().addr = old;
        let took = world.finish(20 * SECOND);
        assert!(took <= SECOND, "{other} {took:?}");
        assert_eq!(world.server.remote(), old);
    }
}

#[test]
fn an_unproved_address_gets_little() {
    let mut world = busy(5);
    // The client's packets seem to come from another address, at which there is no client.
    let (mut received, mut forged, mut sent) = (0, 0, 0_usize);
    let report = std::rc::Rc::new(std::cell::Cell::new((0, 0)));
    let told = std::rc::Rc::clone(&report);
    world.network.rule = Some(Box::new(move |packet| {
        if packet.way == Way::ToClient && packet.client == addr(ATTACKER) {
            sent += packet.payload.len();
        } else if packet.way == Way::ToServer && forged < 3 {
            forged += 1;
            received += packet.payload.len();
            let mut copy = packet.clone();
            copy.client = addr(ATTACKER);
            return Fate::Replace(vec![copy]);
        }
        told.set((received, sent));
        Fate::Pass
    }));
    let took = world.finish(30 * SECOND);
    let (received, sent) = report.get();
    assert!(sent > 0 && sent <= 3 * received, "{sent} for {received}");
    assert!(took <= 8 * SECOND, "{took:?}");
    assert_ne!(world.server.remote(), addr(ATTACKER));
}

#[test]
fn the_server_returns_to_the_client_from_an_attacker() {
    // The attacker copies packets of the client, and is faster.
    for copies in [1, 5] {
        let mut world = busy(6);
        let client = world.client().addr;
        let mut done = 0;
        world.network.rule = Some(Box::new(move |packet| {
            if packet.way == Way::ToServer && packet.client == client && done < copies {
                done += 1;
                let mut copy = packet.clone();
                copy.client = addr(ATTACKER);
                return Fate::Replace(vec![copy, packet.clone()]);
            }
            Fate::Pass
        }));
        let took = world.finish(30 * SECOND);
        assert!(took <= 5 * SECOND, "{took:?}");
        assert_eq!(world.server.remote(), client);
        assert!(world.client().lost.is_none());
    }
}

#[test]
fn copies_from_everywhere_do_not_end_a_connection() {
    let mut world = busy(7);
    let client = world.client().addr;
    let mut count = 0_u16;
    world.network.rule = Some(Box::new(move |packet| {
        if packet.way == Way::ToServer && packet.client == client && count < 2_000 {
            count += 1;
            let mut copy = packet.clone();
            copy.client = addr(ATTACKER);
            copy.client.set_port(1_000 + count);
            return match count % 3 {
                0 => Fate::Replace(vec![copy, packet.clone()]),
                _ => Fate::Replace(vec![packet.clone(), copy]),
            };
        }
        Fate::Pass
    }));
    world.finish(60 * SECOND);
    assert_eq!(world.server.remote(), client);
}

#[test]
fn a_client_that_moves_often_gets_new_ids() {
    let mut world = World::connected(8);
    for round in 0..30_u16 {
        let mut to = addr(OTHER);
        to.set_port(8_000 + round);
        world.client().addr = to;
        world.client().connection().local_address_changed();
        world.client().get(20_000);
        let took = world.finish(3 * SECOND);
        assert!(took <= 400 * MS, "{round} {took:?}");
        world.run_for(SECOND);
        assert_eq!(world.server.remote(), to);
    }
    assert!(world.client().lost.is_none());
    let stats = world.client().connection().stats();
    assert!(stats.frame_rx.new_connection_id >= 25, "{}", stats.frame_rx.new_connection_id);
    assert!(stats.frame_rx.retire_connection_id >= 10, "{}", stats.frame_rx.retire_connection_id);
}
