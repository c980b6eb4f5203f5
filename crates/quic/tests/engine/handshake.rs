//! Handshakes: losses, address validation, early data, and versions.

use std::time::Duration;

use quinn_proto::ConnectionError;
use tailcoat_quic::{Ecn, LostReason};

use super::client;
use super::network::{Fate, Way};
use super::server::{self, pattern};
use super::tls;
use super::world::{MS, SECOND, World};

#[test]
fn a_request_gets_its_response() {
    let mut world = World::connected(1);
    assert!(world.elapsed() <= 45 * MS, "{:?}", world.elapsed());
    world.client().get(1_000);
    let took = world.finish(SECOND);
    assert!(took <= 25 * MS, "{took:?}");
    assert_eq!(world.server.only().events, ["hello", "connected"]);
    assert_eq!(world.server.validated, [false]);
    assert_eq!(world.server.only().open_exchanges(), 0);
}

#[test]
fn every_lost_datagram_of_a_handshake_is_repaired() {
    for way in [Way::ToServer, Way::ToClient] {
        for lost in 0..8 {
            let mut world = World::new(2);
            world.network.rule =
                Some(Box::new(
                    move |packet| {
                        if packet.way == way && packet.number == lost { Fate::Drop } else { Fate::Pass }
                    },
                ));
            world.connect();
            world.client().get(10_000);
            world.finish(5 * SECOND);
            assert!(world.elapsed() <= 2 * SECOND, "{way:?} {lost}: {:?}", world.elapsed());
        }
    }
}

#[test]
fn handshakes_survive_heavy_loss() {
    let mut total = Duration::ZERO;
    for seed in 0..40 {
        let mut world = World::new(seed);
        world.network.set(|link| (link.loss, link.doubled, link.jitter) = (300, 100, 20 * MS));
        world.connect();
        world.client().get(3_000);
        world.finish(60 * SECOND);
        total += world.elapsed();
    }
    assert!(total <= 40 * 3 * SECOND, "{total:?}");
}

#[test]
fn damaged_datagrams_do_no_harm() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.network.set(|link| link.damaged = 200);
        world.connect();
        world.client().get(100_000);
        world.finish(60 * SECOND);
    }
}

#[test]
fn a_client_answers_a_retry_packet() {
    let mut world = World::new(3);
    world.server.retries = true;
    world.connect();
    world.client().get(5_000);
    world.finish(SECOND);
    assert_eq!(world.server.validated, [true]);
}

#[test]
fn a_retry_packet_may_be_lost() {
    for lost in 0..4 {
        let mut world = World::new(3);
        world.server.retries = true;
        world.network.rule = Some(Box::new(move |packet| match packet.way == Way::ToClient && packet.number == lost {
            true => Fate::Drop,
            false => Fate::Pass,
        }));
        world.connect();
        world.client().get(5_000);
        world.finish(3 * SECOND);
    }
}

#[test]
fn a_token_validates_the_next_connection_once() {
    let mut world = World::connected(4);
    world.client().get(100);
    world.finish(SECOND);
    world.server.retries = true;
    let now = world.now;
    world.client().connection().close(now, 0_u32.into(), "".into());
    world.run_for(5 * SECOND);
    world.server.forget_drained();
    assert_eq!(world.server.endpoint.connections(), 0);
    let before = world.network.counts(Way::ToClient).datagrams;
    world.connect();
    assert_eq!(world.server.validated, [false, true]);
    assert!(world.network.counts(Way::ToClient).datagrams > before);
    world.client().get(100);
    world.finish(SECOND);
}

#[test]
fn a_token_of_another_address_does_not_validate() {
    let mut world = World::connected(5);
    world.client().get(100);
    world.finish(SECOND);
    world.client().addr = "192.0.2.99:5000".parse().unwrap();
    world.server.connections.clear();
    world.connect();
    assert_eq!(world.server.validated, [false, false]);
}

#[test]
fn early_data_gets_its_response_early() {
    let mut world = World::connected(6);
    world.client().get(100);
    world.finish(SECOND);
    world.run_for(SECOND);
    world.server.connections.clear();
    let (start, now) = (world.now, world.now);
    world.client().connect(now);
    assert!(world.client().connection().has_0rtt());
    world.client().get(1_000);
    world.finish(SECOND);
    assert!(world.now - start <= 25 * MS, "{:?}", world.now - start);
    world.run_for(SECOND);
    assert!(world.client().connection().accepted_0rtt());
    assert_eq!(world.server.only().early_requests, 1);
    assert_eq!(world.server.only().events, ["hello", "connected"]);
}

#[test]
fn early_data_may_overtake_or_be_lost() {
    for lost in 0..6 {
        for delays in [false, true] {
            let mut world = World::connected(7);
            world.client().get(100);
            world.finish(SECOND);
            world.server.connections.clear();
            let first = world.network.counts(Way::ToServer).datagrams;
            world.network.rule =
                Some(Box::new(move |packet| match packet.way == Way::ToServer && packet.number == first + lost {
                    true if delays => Fate::Delay(15 * MS),
                    true => Fate::Drop,
                    false => Fate::Pass,
                }));
            let now = world.now;
            world.client().connect(now);
            world.client().upload(5_000);
            world.client().get(1_000);
            world.finish(3 * SECOND);
            world.run_for(SECOND);
            assert!(world.client().connection().accepted_0rtt());
        }
    }
}

#[test]
fn a_large_first_message_takes_several_datagrams() {
    for (lost, seed) in (0..9).zip(10..) {
        let mut world = World::with_tls(seed, server::settings(), client::transport(), &tls::client_tls(true));
        world.network.set(|link| link.jitter = 5 * MS);
        world.network.rule = Some(Box::new(move |packet| match packet.way == Way::ToServer && packet.number == lost {
            true => Fate::Drop,
            false => Fate::Pass,
        }));
        world.connect();
        world.client().get(1_000);
        world.finish(3 * SECOND);
        assert_eq!(world.server.endpoint.connections(), 1);
    }
}

#[test]
fn at_most_three_times_the_bytes_are_sent_to_an_unproved_address() {
    for is_large in [false, true] {
        let mut world = World::with_tls(8, server::settings(), client::transport(), &tls::client_tls(is_large));
        let first = if is_large { 5 } else { 1 };
        // The client's first datagrams arrive, and no others.
        world.network.rule = Some(Box::new(move |packet| match packet.way {
            Way::ToServer if packet.number < first => Fate::Pass,
            Way::ToServer | Way::ToClient => Fate::Drop,
        }));
        let now = world.now;
        world.client().connect(now);
        world.run_for(60 * SECOND);
        let to_client = world.network.counts(Way::ToClient);
        assert!(to_client.bytes > 0 && to_client.bytes <= 3 * first * 1_200, "{to_client:?}");
        world.server.forget_drained();
        assert_eq!(world.server.endpoint.connections(), 0, "the handshake has timed out");
    }
}

#[test]
fn a_client_may_wait_to_be_accepted() {
    for is_large in [false, true] {
        let mut world = World::with_tls(12, server::settings(), client::transport(), &tls::client_tls(is_large));
        world.server.defers = true;
        let now = world.now;
        world.client().connect(now);
        world.run_for(150 * MS);
        assert_eq!((world.server.waiting.len(), world.server.endpoint.connections()), (1, 0));
        assert_eq!(world.network.counts(Way::ToClient).datagrams, 0);
        let now = world.now;
        world.server.accept_waiting(now);
        let start = world.now;
        world.client().get(1_000);
        world.finish(SECOND);
        // Nothing had to be sent again.
        assert!(world.now - start <= 60 * MS, "{:?}", world.now - start);
    }
    // One that is ignored tries again.
    let mut world = World::new(13);
    world.server.defers = true;
    let now = world.now;
    world.client().connect(now);
    world.run_for(50 * MS);
    let incoming = world.server.waiting.pop().unwrap();
    world.server.endpoint.ignore(incoming);
    world.server.defers = false;
    assert!(world.run(2 * SECOND, |world| world.clients[0].is_connected));
}

#[test]
fn a_client_with_another_version_learns_the_right_one() {
    let mut world = World::new(9);
    world.client().config.version(0xff00_001d);
    let now = world.now;
    world.client().connect(now);
    world.run_for(SECOND);
    assert!(matches!(world.client().lost, Some(ConnectionError::VersionMismatch)), "{:?}", world.client().lost);
    assert_eq!(world.server.endpoint.connections(), 0);
    // Small datagrams get no response; each other one a smaller response.
    let client = world.client().addr;
    let mut datagram = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 255];
    datagram.resize(1_199, 7);
    let before = world.network.counts(Way::ToClient);
    let now = world.now;
    world.network.send(now, Way::ToServer, client, None, &datagram);
    world.run_for(SECOND);
    assert_eq!(world.network.counts(Way::ToClient).datagrams, before.datagrams);
    datagram[6 + 255] = 200;
    datagram.push(0);
    let now = world.now;
    world.network.send(now, Way::ToServer, client, None, &datagram);
    world.run_for(SECOND);
    let after = world.network.counts(Way::ToClient);
    assert_eq!(after.datagrams, before.datagrams + 1);
    assert!(after.bytes - before.bytes < 1_200);
}

#[test]
fn noise_is_dropped() {
    let mut world = World::connected(10);
    let client = world.client().addr;
    let noise = pattern(4_000);
    let before = world.network.counts(Way::ToClient).datagrams;
    for bytes in (0..1_500).chain([2_000]) {
        let now = world.now;
        let mut payload = noise[bytes..2 * bytes].to_vec();
        world.network.send(now, Way::ToServer, client, Some(Ecn::Ect0), &payload);
        if let [first, rest @ ..] = &mut payload[..] {
            *first |= 0xc0;
            if let Some(version) = rest.get_mut(..4) {
                version.copy_from_slice(&[0, 0, 0, 1]);
            }
        }
        world.network.send(now, Way::ToServer, client, Some(Ecn::Ect0), &payload);
    }
    world.run_for(MS * 15);
    assert_eq!(world.server.endpoint.connections(), 1);
    let answered = world.network.counts(Way::ToClient).datagrams - before;
    assert!(answered < 200, "{answered}");
    world.client().get(100);
    world.finish(SECOND);
}

#[test]
fn a_handshake_without_a_common_protocol_fails_with_its_alert() {
    let mut tls = tls::client_tls(false);
    tls.alpn_protocols = vec![b"other".to_vec()];
    let mut world = World::with_tls(11, server::settings(), client::transport(), &tls);
    let now = world.now;
    world.client().connect(now);
    world.run_for(50 * MS);
    let Some(ConnectionError::ConnectionClosed(close)) = &world.client().lost else {
        panic!("{:?}", world.client().lost)
    };
    assert_eq!(u64::from(close.error_code), 0x100 | 120);
    assert!(matches!(&world.server.only().lost, Some(LostReason::Transport(error)) if error.code == 0x178));
    world.run_for(10 * SECOND);
    world.server.forget_drained();
    assert_eq!(world.server.endpoint.connections(), 0);
}
