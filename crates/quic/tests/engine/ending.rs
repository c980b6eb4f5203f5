//! Ends of connections.

use quinn_proto::{ConnectionError, VarInt};
use tailcoat_quic::{Ecn, LostReason};

use super::client;
use super::network::{Fate, Way};
use super::server::{self, Server, pattern};
use super::world::{MS, SECOND, World};

/// Runs until the server has forgotten its connections.
fn assert_forgotten(world: &mut World) {
    world.run_for(2 * SECOND);
    world.server.forget_drained();
    assert_eq!((world.server.endpoint.connections(), world.server.connections.len()), (0, 0));
}

#[test]
fn the_client_closes_with_its_code() {
    let mut world = World::connected(1);
    world.client().get(1 << 20);
    world.run_for(30 * MS);
    let now = world.now;
    world.client().connection().close(now, 4_242_u32.into(), "goodbye".into());
    world.run_for(15 * MS);
    let expected = LostReason::PeerApplication { code: 4_242, reason: "goodbye".into() };
    assert_eq!(world.server.only().lost, Some(expected));
    let before = world.network.counts(Way::ToClient).datagrams;
    assert_forgotten(&mut world);
    assert_eq!(world.network.counts(Way::ToClient).datagrams, before, "draining connections are silent");
}

#[test]
fn the_server_closes_with_its_code() {
    for lost in [0, 1, 3] {
        let mut world = World::connected(2);
        world.client().get(1 << 20);
        world.run_for(100 * MS);
        let mut count = 0;
        let now = world.now;
        world.server.only().connection.close(now, 0x1234_5678, b"enough");
        world.network.rule = Some(Box::new(move |packet| {
            count += u32::from(packet.way == Way::ToClient);
            if packet.way == Way::ToClient && count <= lost { Fate::Drop } else { Fate::Pass }
        }));
        assert!(world.server.only().connection.is_closed());
        world.run_for(100 * MS);
        // With lost packets: the client goes on to send, and each time gets the close again.
        if lost > 0 {
            world.client().upload(100_000);
            world.run_for(400 * MS);
        }
        let Some(ConnectionError::ApplicationClosed(close)) = &world.client().lost else {
            panic!("{lost}: {:?}", world.client().lost)
        };
        assert_eq!((close.error_code, &close.reason[..]), (VarInt::from_u32(0x1234_5678), &b"enough"[..]));
        assert_eq!(world.server.only().lost, None, "the application knows");
        assert_forgotten(&mut world);
    }
}

#[test]
fn the_server_closes_during_the_handshake() {
    let mut world = World::new(3);
    let now = world.now;
    world.client().connect(now);
    world.run(SECOND, |world| !world.server.connections.is_empty());
    let now = world.now;
    world.server.only().connection.close(now, 7, b"secret");
    world.run_for(100 * MS);
    let Some(ConnectionError::ConnectionClosed(close)) = &world.client().lost else {
        panic!("{:?}", world.client().lost)
    };
    assert_eq!((u64::from(close.error_code), close.reason.len()), (0xc, 0));
    assert_forgotten(&mut world);
}

#[test]
fn closing_does_not_answer_every_packet() {
    let mut world = World::connected(4);
    let client = world.client().addr;
    // The client does not hear it.
    world.client().upload(1 << 20);
    world.run_for(100 * MS);
    let now = world.now;
    world.network.rule = Some(Box::new(|packet| if packet.way == Way::ToClient { Fate::Drop } else { Fate::Pass }));
    world.server.only().connection.close(now, 1, b"");
    let before = world.network.counts(Way::ToClient).datagrams;
    for _ in 0..100 {
        let now = world.now;
        let mut datagram = vec![0x40];
        datagram.extend_from_slice(&pattern(1_000));
        world.network.send(now, Way::ToServer, client, None, &datagram);
    }
    world.run_for(30 * MS);
    let answers = world.network.counts(Way::ToClient).datagrams - before;
    assert!((1..20).contains(&answers), "{answers}");
}

#[test]
fn idle_connections_time_out_silently() {
    for (server_s, client_s) in [(5, 60), (60, 5), (5, 0)] {
        let mut settings = server::settings();
        settings.idle_timeout = server_s * SECOND;
        let mut transport = client::transport();
        let idle = (client_s > 0).then(|| VarInt::from_u32(client_s * 1_000).into());
        transport.max_idle_timeout(idle);
        let mut world = World::with(5, settings, transport);
        world.connect();
        world.client().get(100);
        world.finish(SECOND);
        world.run_for(SECOND);
        let before = world.network.counts(Way::ToClient).datagrams;
        world.run_for(3 * SECOND);
        assert!(world.server.only().lost.is_none());
        world.run_for(3 * SECOND);
        assert_eq!(world.server.only().lost, Some(LostReason::TimedOut));
        assert!(matches!(world.client().lost, Some(ConnectionError::TimedOut)));
        assert_eq!(world.network.counts(Way::ToClient).datagrams, before);
        assert_forgotten(&mut world);
    }
}

#[test]
fn keep_alive_packets_keep_a_connection() {
    let mut transport = client::transport();
    transport.keep_alive_interval(Some(4 * SECOND));
    let mut world = World::with(6, server::settings(), transport);
    world.connect();
    world.run_for(300 * SECOND);
    assert!(world.server.only().lost.is_none());
    world.client().get(100);
    world.finish(SECOND);
    // The server keeps it too.
    let mut world = World::connected(7);
    for _ in 0..20 {
        world.run_for(20 * SECOND);
        world.server.only().connection.ping();
    }
    world.client().get(100);
    world.finish(SECOND);
}

#[test]
fn a_client_that_vanishes_is_forgotten() {
    let mut world = World::connected(8);
    world.client().get(8 << 20);
    world.run_for(200 * MS);
    world.network.rule = Some(Box::new(|packet| if packet.way == Way::ToServer { Fate::Drop } else { Fate::Pass }));
    world.run_for(SECOND);
    let before = world.network.counts(Way::ToClient).datagrams;
    world.run_for(45 * SECOND);
    let probes = world.network.counts(Way::ToClient).datagrams - before;
    assert!((2..30).contains(&probes), "{probes}");
    assert_eq!(world.server.only().lost, Some(LostReason::TimedOut));
    assert_forgotten(&mut world);
}

#[test]
fn a_server_without_state_resets_connections() {
    let mut world = World::connected(9);
    world.client().get(100);
    world.finish(SECOND);
    // Another process with the same keys.
    world.server = Server::with_seed(server::settings(), 99);
    world.client().get(100_000);
    world.run_for(3 * SECOND);
    assert!(matches!(world.client().lost, Some(ConnectionError::Reset)), "{:?}", world.client().lost);
}

#[test]
fn resets_are_smaller_than_what_causes_them() {
    let mut world = World::new(10);
    let client = world.client().addr;
    for bytes in 0..1_300 {
        let before = world.network.counts(Way::ToClient);
        let mut datagram = vec![0x41, 0xaa];
        datagram.extend_from_slice(&pattern(1_300));
        datagram.truncate(bytes);
        let now = world.now;
        world.network.send(now, Way::ToServer, client, Some(Ecn::Ect0), &datagram);
        world.run_for(50 * MS);
        let sent = world.network.counts(Way::ToClient).bytes - before.bytes;
        assert!((sent as usize) < bytes.max(1), "{sent} for {bytes}");
        assert!(bytes < 43 || sent > 0, "{bytes}");
        datagram.iter_mut().skip(1).take(1).for_each(|byte| *byte = 0xab);
        let now = world.now;
        let before = world.network.counts(Way::ToClient);
        world.network.send(now, Way::ToServer, client, None, &datagram);
        world.run_for(50 * MS);
        assert_eq!(world.network.counts(Way::ToClient).datagrams, before.datagrams, "another server's ID");
    }
}

#[test]
fn a_client_without_state_resets_the_connection() {
    let mut world = World::connected(11);
    // The first ID of a client has no token, but the next one has.
    world.run_for(SECOND);
    world.client().addr.set_port(6_000);
    world.client().get(1_000);
    world.finish(SECOND);
    world.client().get(8 << 20);
    world.run_for(150 * MS);
    let now = world.now;
    world.client().connection().close(now, 0_u32.into(), "".into());
    let until = world.elapsed() + 400 * MS;
    world.network.rule = Some(Box::new(move |packet| {
        // The close is lost.
        if packet.way == Way::ToServer && packet.at < until { Fate::Drop } else { Fate::Pass }
    }));
    world.run_for(10 * SECOND);
    assert_eq!(world.server.only().lost, Some(LostReason::Reset));
    assert!(world.client().sent_by_endpoint > 0);
    assert_forgotten(&mut world);
}
