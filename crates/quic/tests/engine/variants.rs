//! Unusual clients, and mixtures of everything.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::VarInt;
use tailcoat_quic::{CongestionAlgorithm, TransportSettings};

use super::client::{self, Client};
use super::network::{Fate, Link, Marks, Way};
use super::server;
use super::tls;
use super::world::{MS, SECOND, World};

/// Random numbers of a test.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn clients_without_connection_ids_are_served() {
    let mut world = World::new(1);
    let tls = tls::client_tls(false);
    world.clients = (0..3)
        .map(|number| Client::without_ids(&format!("192.0.2.{number}:5000"), &tls, client::transport()))
        .collect();
    let now = world.now;
    for client in &mut world.clients {
        client.connect(now);
        client.get(100_000);
        client.upload(100_000);
    }
    assert!(world.run(5 * SECOND, |world| world.clients.iter().all(Client::all_done)));
    world.clients.iter().for_each(Client::assert_exact);
    // A NAT gives another port.
    for client in &mut world.clients {
        client.addr.set_port(6_000);
        client.get(100_000);
    }
    assert!(world.run(5 * SECOND, |world| world.clients.iter().all(Client::all_done)));
    world.clients.iter().for_each(Client::assert_exact);
}

#[test]
fn clients_of_small_datagrams_get_small_ones() {
    let mut world = World::new(2);
    let tls = tls::client_tls(false);
    world.clients = vec![Client::with_payload_max("192.0.2.1:5000", &tls, client::transport(), 1_300)];
    world.connect();
    world.client().get(1 << 20);
    world.finish(10 * SECOND);
    assert_eq!(world.network.counts(Way::ToClient).largest, 1_300);
}

#[test]
fn unidirectional_streams_both_ways() {
    for loss in [0, 100] {
        let mut world = World::connected(8);
        world.network.set(|link| link.loss = loss);
        for round in 1..=20 {
            assert!(world.server.only().send_uni(10_000));
            world.client().send_uni(5_000);
            assert!(world.run(5 * SECOND, |world| {
                world.clients[0].uni_received == round * 10_000
                    && world.server.only().uni_bytes == round as u64 * 5_000
                    && world.server.only().open_exchanges() == 0
            }));
            world.run_for(100 * MS);
        }
        world.network.set(|link| link.loss = 0);
        world.run_for(3 * SECOND);
        assert_eq!(world.server.only().connection.streams().sending(), 0);
        // As many as the client permits at once. It is slow to permit more.
        world.network.rule = Some(Box::new(|_| Fate::Drop));
        let opened = (0..1_000).take_while(|_| world.server.only().send_uni(1)).count();
        assert!((80..=100).contains(&opened), "{opened}");
    }
}

#[test]
fn early_data_that_is_rejected_is_sent_again() {
    let mut world = World::connected(9);
    world.client().get(100);
    world.finish(SECOND);
    // Another process without the sessions.
    world.server = server::Server::with_seed(server::settings(), 5);
    let now = world.now;
    world.client().connect(now);
    assert!(world.client().connection().has_0rtt());
    world.client().get(1_000);
    world.run(SECOND, |world| world.clients[0].is_connected);
    assert!(!world.client().connection().accepted_0rtt());
    assert_eq!(world.server.only().early_requests, 0);
    // The application sends its requests again.
    world.client().requests.clear();
    world.client().get(1_000);
    world.finish(SECOND);
}

#[test]
fn a_hundred_clients_at_once() {
    let mut world = World::new(3);
    world.network.set(|link| (link.loss, link.jitter) = (20, 3 * MS));
    let tls = tls::client_tls(false);
    world.clients = (0..100_u16)
        .map(|number| Client::new(&format!("192.0.2.9:{}", 1_000 + number), &tls, client::transport()))
        .collect();
    let now = world.now;
    for (number, client) in world.clients.iter_mut().enumerate() {
        client.connect(now);
        (0..10).for_each(|count| client.get(number * 100 + count * 1_000));
    }
    assert!(world.run(30 * SECOND, |world| world.clients.iter().all(Client::all_done)));
    world.clients.iter().for_each(Client::assert_exact);
    assert_eq!(world.server.endpoint.connections(), 100);
    let now = world.now;
    world.clients.iter_mut().for_each(|client| client.connection().close(now, 0_u32.into(), "".into()));
    world.network.set(|link| link.loss = 0);
    world.run_for(40 * SECOND);
    world.server.forget_drained();
    assert_eq!(world.server.endpoint.connections(), 0);
}

#[test]
fn clients_may_be_refused() {
    let mut world = World::new(4);
    world.server.endpoint.set_accepts(None);
    let now = world.now;
    world.client().connect(now);
    world.run_for(500 * MS);
    assert_eq!(world.network.counts(Way::ToClient).datagrams, 0);
    let tls = Arc::clone(&world.server.tls);
    world.server.endpoint.set_accepts(Some(tls));
    assert!(world.run(5 * SECOND, |world| world.clients[0].is_connected), "accepted later");
    world.server.endpoint.set_accepts(None);
    world.client().get(1_000);
    world.finish(SECOND);
}

#[test]
fn requests_beyond_the_limit_wait() {
    let mut settings = server::settings();
    settings.streams.bidi_max = 4;
    let mut world = World::with(5, settings, client::transport());
    world.connect();
    (0..40).for_each(|_| world.client().get(100));
    let slow = world.finish(5 * SECOND);
    let mut settings = server::settings();
    settings.streams.bidi_max = 50;
    let mut world = World::with(5, settings, client::transport());
    world.connect();
    (0..40).for_each(|_| world.client().get(100));
    let fast = world.finish(5 * SECOND);
    assert!(slow >= 9 * 20 * MS && fast <= slow / 2, "{slow:?} {fast:?}");
}

#[test]
fn paths_of_all_kinds() {
    for congestion in [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno, CongestionAlgorithm::Bbr] {
        for (delay_us, rate, queue) in [
            (50, None, 10 * MS),
            (500, Some(100 << 20), 5 * MS),
            (5_000, Some(20 << 20), 30 * MS),
            (50_000, Some(2 << 20), 100 * MS),
            (150_000, Some(5 << 20), 300 * MS),
            (10_000, Some(64 << 10), SECOND),
        ] {
            let settings = TransportSettings { congestion, ..server::settings() };
            let mut transport = client::transport();
            transport.stream_receive_window(VarInt::from_u32(16 << 20));
            transport.receive_window(VarInt::from_u32(16 << 20));
            let mut world = World::with(6, settings, transport);
            world.network.set(|link| {
                (link.delay, link.rate, link.queue) = (Duration::from_micros(delay_us), rate, queue);
            });
            world.connect();
            let bytes = rate.map_or(8 << 20, |rate| (rate * 4).min(8 << 20)) as usize;
            world.client().get(bytes);
            let took = world.finish(60 * SECOND).as_secs_f64();
            let round_trip = delay_us as f64 * 2e-6;
            let least = rate.map_or(0.0, |rate| bytes as f64 * 1.03 / rate as f64) + 14.0 * round_trip;
            let (limit, counts) = (least * 1.6 + 0.05, world.network.counts(Way::ToClient));
            println!(
                "{congestion:?} {delay_us} us {rate:?}: {took:.3} s of {least:.3}, {} sent, {} dropped",
                counts.datagrams, counts.dropped
            );
            assert!(took <= limit, "{congestion:?} {delay_us} {rate:?}: {took:.3} of {limit:.3}");
            assert!(counts.dropped * 4 <= counts.datagrams, "{congestion:?} {delay_us} {rate:?}: {counts:?}");
        }
    }
}

#[test]
fn two_connections_share_a_line() {
    for kinds in [[CongestionAlgorithm::Cubic; 2], [CongestionAlgorithm::Bbr; 2]] {
        let mut world = World::new(7);
        world.network.set(|link| (link.rate, link.queue) = (Some(4 << 20), 60 * MS));
        let tls = tls::client_tls(false);
        world.clients.push(Client::new("192.0.2.2:5000", &tls, client::transport()));
        for (index, congestion) in kinds.into_iter().enumerate() {
            world.server.settings.congestion = congestion;
            let now = world.now;
            world.clients[index].connect(now);
            assert!(world.run(SECOND, |world| world.clients[index].is_connected));
        }
        world.clients.iter_mut().for_each(|client| client.get(14 << 20));
        world.run_for(5 * SECOND);
        let received: Vec<_> = world.clients.iter().map(Client::received).collect();
        println!("{kinds:?} {received:?}");
        let (least, most) = (received.iter().min().unwrap(), received.iter().max().unwrap());
        assert!(least * 5 > *most && least + most > 16 << 20, "{kinds:?} {received:?}");
    }
}

/// Mixes everything: requests, uploads, moves, key updates, bad lines, pauses, closes.
fn chaos(seed: u64) {
    let mut random = Random(seed * 7_919 + 1);
    let congestion =
        [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno, CongestionAlgorithm::Bbr][random.below(3) as usize];
    let mut settings = TransportSettings { congestion, ..server::settings() };
    settings.streams.bidi_max = 1 + random.below(20);
    settings.streams.window_bytes = 2_000 + random.below(100_000);
    settings.streams.connection_window_bytes = 3_000 + random.below(200_000);
    settings.streams.send_window_bytes = 3_000 + random.below(300_000);
    let mut transport = client::transport();
    transport.stream_receive_window(VarInt::from_u32(2_000 + random.below(100_000) as u32));
    transport.receive_window(VarInt::from_u32(3_000 + random.below(300_000) as u32));
    if std::env::var_os("CHAOS_TRACE").is_some() {
        settings.qlog = Some(Arc::new(|record| println!("{record}")));
    }
    // A client that moves and says nothing can't be found.
    transport.keep_alive_interval(Some(2 * SECOND));
    let mut world = World::with_tls(seed, settings, transport, &tls::client_tls(random.below(4) == 0));
    world.server.segments_max = 1 + random.below(20) as usize;
    world.server.retries = random.below(3) == 0;
    let now = world.now;
    world.client().connect(now);
    for _ in 0..25 {
        let link = Link {
            delay: Duration::from_micros(random.below(60_000)),
            jitter: Duration::from_micros(random.below(8_000)),
            loss: random.below(120),
            doubled: random.below(100),
            // After a damaged Retry packet, quinn takes no other.
            damaged: if world.client().is_connected { random.below(40) } else { 0 },
            rate: (random.below(2) == 0).then(|| 100_000 + random.below(5_000_000)),
            queue: Duration::from_millis(5 + random.below(200)),
            mtu: [1_200, 1_280, 1_500][random.below(3) as usize],
            marks: [Marks::Kept, Marks::Cleared, Marks::AllCe, Marks::CeAbove(5 * MS)][random.below(4) as usize],
        };
        match random.below(2) {
            0 => world.network.to_server = link,
            _ => world.network.to_client = link,
        }
        // Clients must not move before the handshake is confirmed.
        let is_connected = world.server.connections.values().any(|server| server.has_completed);
        match random.below(14) {
            12 if is_connected => {
                // An attacker copies packets, to the server from other addresses, and late.
                let mut noise = Random(seed + 99);
                world.network.rule = Some(Box::new(move |packet| {
                    let mut copy = packet.clone();
                    match noise.below(8) {
                        0 if packet.way == Way::ToServer => {
                            copy.client = format!("198.18.0.{}:7", noise.below(9)).parse().unwrap();
                            Fate::Replace(vec![packet.clone(), copy])
                        }
                        1 if packet.way == Way::ToServer => {
                            copy.client = format!("198.18.0.{}:7", noise.below(9)).parse().unwrap();
                            Fate::Replace(vec![copy, packet.clone()])
                        }
                        2 => Fate::Delay(Duration::from_millis(noise.below(300))),
                        3 => {
                            copy.payload.truncate(1 + noise.below(packet.payload.len() as u64) as usize);
                            Fate::Replace(vec![copy, packet.clone()])
                        }
                        _ => Fate::Pass,
                    }
                }));
            }
            13 if is_connected => {
                let priority = random.below(20) as i8 - 10;
                world.client().get_with_priority(random.below(50_000) as usize, priority);
            }
            0..3 => (0..random.below(20)).for_each(|_| {
                let bytes = random.below(5_000) as usize;
                world.client().get(bytes);
            }),
            3 | 4 => {
                let bytes = random.below(300_000) as usize;
                world.client().get(bytes);
            }
            5 | 6 => {
                let bytes = random.below(100_000) as usize;
                world.client().upload(bytes);
            }
            7 => {
                let bytes = random.below(60_000) as usize;
                world.client().echo(bytes);
            }
            8 if is_connected => {
                let port = 2_000 + random.below(1_000) as u16;
                world.client().addr.set_port(port);
            }
            9 if is_connected => world.client().addr = format!("203.0.113.{}:99", random.below(200)).parse().unwrap(),
            10 if is_connected => world.client().connection().force_key_update(),
            11 => {
                let until = world.elapsed() + Duration::from_millis(random.below(1_500));
                let way = [Way::ToServer, Way::ToClient][random.below(2) as usize];
                world.network.rule =
                    Some(Box::new(
                        move |packet| {
                            if packet.way == way && packet.at < until { Fate::Drop } else { Fate::Pass }
                        },
                    ));
            }
            _ => {}
        }
        world.run_for(Duration::from_millis(random.below(400)));
        if let Some(reason) = &world.clients[0].lost {
            panic!("{seed}: {reason:?}");
        }
    }
    world.network.rule = None;
    world.network.set(|link| *link = Link::default());
    if std::env::var_os("CHAOS_TRACE").is_some() {
        println!("{seed}: quiet from {:?}, {congestion:?}", world.elapsed());
        world.network.rule = Some(Box::new(move |packet| {
            let (at, bytes) = (packet.at, packet.payload.len());
            println!("{at:?} {:?} {} {bytes} {:02x?}", packet.way, packet.client, &packet.payload[..bytes.min(30)]);
            Fate::Pass
        }));
    }
    let is_done = world.run(120 * SECOND, |world| world.clients[0].all_done());
    let open: Vec<_> = world.clients[0].requests.iter().filter(|(_, request)| !request.is_done).collect();
    assert!(is_done, "{seed}: {:?} {open:?}", world.clients[0].lost);
    world.client().assert_exact();
    world.run_for(20 * SECOND);
    for server in world.server.connections.values_mut().filter(|server| server.has_completed) {
        assert_eq!(server.lost, None, "{seed}");
        assert_eq!((server.wrong_bytes, server.open_exchanges()), (0, 0), "{seed}");
        let streams = server.connection.streams();
        assert_eq!((streams.exchanges(), streams.sending(), streams.unacked_bytes()), (0, 0, 0), "{seed}");
        assert_eq!(streams.unread_bytes(), 0, "{seed}");
    }
}

#[test]
fn chaos_ends_well() {
    let first = std::env::var("CHAOS_FIRST").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let count = std::env::var("CHAOS_COUNT").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    (first..first + count).for_each(chaos);
}

/// Connects again and again on bad lines, with tokens, Retry packets and early data.
fn reconnections(seed: u64) {
    let mut random = Random(seed * 104_729 + 3);
    let is_large = random.below(3) == 0;
    let mut settings = server::settings();
    if std::env::var_os("CHAOS_TRACE").is_some() {
        settings.qlog = Some(Arc::new(|record| println!("{record}")));
    }
    let mut world = World::with_tls(seed, settings, client::transport(), &tls::client_tls(is_large));
    for round in 0..6 {
        world.server.retries = random.below(2) == 0;
        let (loss, jitter) = (random.below(250), Duration::from_micros(random.below(30_000)));
        world.network.set(|link| (link.loss, link.jitter, link.doubled) = (loss, jitter, loss / 2));
        let now = world.now;
        world.client().connect(now);
        let is_early = world.client().connection().has_0rtt();
        for _ in 0..random.below(6) {
            let bytes = random.below(20_000) as usize;
            // If early data fills its window, quinn does not end the handshake after losses.
            match random.below(2) {
                _ if is_early => world.client().get(bytes),
                0 => world.client().get(bytes),
                _ => world.client().upload(bytes),
            }
        }
        world.client().get(5_000);
        let is_done = world.run(60 * SECOND, |world| world.clients[0].all_done());
        let client = world.client();
        assert!(is_done, "{seed} {round} early {is_early}: {:?} {:?}", client.lost, client.requests);
        client.assert_exact();
        world.run_for(SECOND);
        let now = world.now;
        world.client().connection().close(now, 0_u32.into(), "".into());
        world.network.set(|link| link.loss = 0);
        world.run_for(40 * SECOND);
        world.server.forget_drained();
        assert_eq!(world.server.endpoint.connections(), 0, "{seed} {round}");
        assert_eq!(world.server.connections.len(), 0, "{seed} {round}");
    }
}

#[test]
fn connections_after_connections() {
    let count = std::env::var("CHAOS_COUNT").ok().and_then(|text| text.parse().ok()).unwrap_or(30);
    let first = std::env::var("CHAOS_FIRST").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    (first..first + count).for_each(reconnections);
}
