//! Transfers: complete, exact, and with a bound on time and packets.

use std::time::Duration;

use quinn_proto::{TransportConfig, VarInt};
use tailcoat_quic::CongestionAlgorithm;

use super::client;
use super::network::{Fate, Marks, Way};
use super::server::{self, RESET_CODE, STOP_CODE};
use super::world::{MS, SECOND, World};

/// Transport settings of a client with large windows.
fn fast() -> TransportConfig {
    let mut transport = client::transport();
    transport.stream_receive_window(VarInt::from_u32(8 << 20));
    transport.receive_window(VarInt::from_u32(16 << 20));
    transport
}

#[test]
fn a_thousand_streams_in_turn_and_at_once() {
    let mut world = World::connected(20);
    for number in 0..1_000 {
        world.client().get(number);
    }
    let took = world.finish(20 * SECOND);
    // 100 streams a round trip, and half a megabyte in slow start.
    assert!(took <= SECOND, "{took:?}");
    assert_eq!(world.server.only().requests, 1_000);
    world.run_for(100 * MS);
    assert_eq!(world.server.only().open_exchanges(), 0);
    assert_eq!(world.server.only().connection.streams().exchanges(), 0);
    assert_eq!(world.server.only().connection.streams().sending(), 0);
    assert_eq!(world.server.only().connection.streams().unacked_bytes(), 0);
    let sent = world.network.counts(Way::ToClient).datagrams;
    assert!(sent <= 800, "{sent}");
}

#[test]
fn a_thousand_streams_with_losses() {
    for seed in 0..5 {
        let mut world = World::connected(seed);
        world.network.set(|link| (link.loss, link.jitter, link.doubled) = (50, 5 * MS, 20));
        for number in 0..1_000 {
            world.client().get(number * 7 % 3_000);
        }
        world.finish(60 * SECOND);
        world.network.set(|link| link.loss = 0);
        world.run_for(3 * SECOND);
        let streams = world.server.only().connection.streams();
        assert_eq!((streams.exchanges(), streams.sending(), streams.unacked_bytes()), (0, 0, 0));
    }
}

/// Runs a transfer on a link of 10 MB/s and 20 ms. Returns its time and the datagrams of the sender.
fn transfer(seed: u64, bytes: usize, is_upload: bool, loss: u64, congestion: CongestionAlgorithm) -> (f64, u64) {
    let settings = tailcoat_quic::TransportSettings { congestion, ..server::settings() };
    let mut world = World::with(seed, settings, fast());
    world.network.set(|link| {
        (link.loss, link.rate) = (loss, Some(10 << 20));
        link.jitter = if loss > 0 { MS / 4 } else { Duration::ZERO };
    });
    world.connect();
    match is_upload {
        true => world.client().upload(bytes),
        false => world.client().get(bytes),
    }
    let took = world.finish(600 * SECOND);
    assert_eq!(world.server.only().wrong_bytes, 0);
    let way = if is_upload { Way::ToServer } else { Way::ToClient };
    (took.as_secs_f64(), world.network.counts(way).datagrams)
}

#[test]
fn large_responses_are_exact_and_fast() {
    let bytes = 8 << 20;
    for congestion in [CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno, CongestionAlgorithm::Bbr] {
        let least = bytes as f64 / 1_400.0;
        let (took, sent) = transfer(1, bytes, false, 0, congestion);
        println!("{congestion:?} 0: {took:.2} s, {:.3} of the packets", sent as f64 / least);
        assert!(took <= 1.6 && (sent as f64) < least * 1.12, "{congestion:?} {took} {sent} {least}");
        for (loss, limit) in [(20, 20.0), (100, 90.0)] {
            let (took, sent) = transfer(2, bytes, false, loss, congestion);
            println!("{congestion:?} {loss}: {took:.2} s, {:.3} of the packets", sent as f64 / least);
            let factor = 1.15 + 2.0 * loss as f64 / 1_000.0;
            assert!(took <= limit && (sent as f64) < least * factor, "{congestion:?} {loss} {took} {sent} {least}");
        }
    }
}

#[test]
fn large_uploads_are_exact() {
    let bytes = 8 << 20;
    for (loss, limit) in [(0, 2.0), (20, 30.0), (100, 120.0)] {
        let (took, sent) = transfer(3, bytes, true, loss, CongestionAlgorithm::Cubic);
        println!("upload {loss}: {took:.2} s, {sent} packets");
        assert!(took <= limit, "{loss} {took} {sent}");
    }
}

#[test]
fn transfers_both_ways_at_once() {
    let mut world = World::with(21, server::settings(), fast());
    world.network.set(|link| (link.loss, link.jitter, link.doubled, link.damaged) = (20, 8 * MS, 10, 10));
    world.connect();
    for _ in 0..3 {
        world.client().echo(1 << 20);
        world.client().get(1 << 20);
        world.client().upload(1 << 20);
    }
    world.finish(120 * SECOND);
    assert_eq!(world.server.only().wrong_bytes, 0);
}

#[test]
fn a_transfer_passes_many_skipped_packet_numbers() {
    let mut world = World::with(22, server::settings(), fast());
    world.network.set(|link| link.rate = Some(50 << 20));
    world.connect();
    for _ in 0..12 {
        world.client().get(8 << 20);
        world.finish(30 * SECOND);
    }
    assert!(world.network.counts(Way::ToClient).datagrams > 60_000);
    assert_eq!(world.client().lost, None);
}

#[test]
fn the_client_may_update_its_keys() {
    let mut world = World::with(23, server::settings(), fast());
    world.network.set(|link| (link.loss, link.jitter) = (10, 5 * MS));
    world.connect();
    world.client().get(4 << 20);
    world.client().upload(1 << 20);
    for _ in 0..6 {
        world.run_for(250 * MS);
        world.client().connection().force_key_update();
    }
    world.finish(60 * SECOND);
    assert_eq!(world.client().lost, None);
}

#[test]
fn the_server_waits_for_windows_of_the_client() {
    let mut transport = client::transport();
    transport.stream_receive_window(VarInt::from_u32(20_000));
    transport.receive_window(VarInt::from_u32(30_000));
    let mut world = World::with(24, server::settings(), transport);
    world.connect();
    world.client().reads = false;
    world.client().get(300_000);
    world.client().get(300_000);
    world.run_for(3 * SECOND);
    let sent = world.network.counts(Way::ToClient).bytes;
    assert!((30_000..60_000).contains(&sent), "{sent}");
    let now = world.now;
    world.client().resume_reading(now);
    world.finish(20 * SECOND);
}

#[test]
fn the_client_waits_for_windows_of_the_server() {
    let mut settings = server::settings();
    (settings.streams.window_bytes, settings.streams.connection_window_bytes) = (20_000, 30_000);
    let mut world = World::with(25, settings, client::transport());
    world.connect();
    world.server.only().reads = false;
    world.client().upload(300_000);
    world.client().echo(300_000);
    world.run_for(3 * SECOND);
    assert!(world.network.counts(Way::ToServer).bytes < 80_000);
    assert!(world.server.only().connection.streams().unread_bytes() <= 30_000);
    world.server.only().resume_reading();
    world.finish(20 * SECOND);
    assert_eq!(world.server.only().wrong_bytes, 0);
    // A stream that is never read does not block the others for ever, once it is gone.
    world.client().get(10);
    world.finish(SECOND);
}

#[test]
fn a_small_send_window_bounds_what_is_kept() {
    let mut settings = server::settings();
    settings.streams.send_window_bytes = 64 << 10;
    let mut world = World::with(26, settings, fast());
    world.connect();
    world.client().get(2 << 20);
    world.client().get(2 << 20);
    let mut most = 0;
    world.run(20 * SECOND, |world| {
        most = most.max(world.server.only().connection.streams().unacked_bytes());
        world.clients[0].all_done()
    });
    assert!(most <= 64 << 10, "{most}");
    world.finish(SECOND);
}

#[test]
fn higher_priorities_are_sent_first() {
    let mut world = World::with(27, server::settings(), fast());
    world.network.set(|link| link.rate = Some(2 << 20));
    world.connect();
    for priority in [-3, 0, 7, -1, 5] {
        world.client().get_with_priority(300_000, priority);
    }
    world.finish(20 * SECOND);
    let done: Vec<_> = world.client().requests.values().map(|request| request.done_at.unwrap()).collect();
    let mut order = vec![0, 1, 2, 3, 4];
    order.sort_by_key(|&index: &usize| done[index]);
    assert_eq!(order, [2, 4, 1, 3, 0]);
}

#[test]
fn streams_of_the_same_priority_share() {
    let mut world = World::with(28, server::settings(), fast());
    world.network.set(|link| link.rate = Some(2 << 20));
    world.connect();
    for _ in 0..4 {
        world.client().get(500_000);
    }
    world.run(20 * SECOND, |world| world.clients[0].received() > 1_000_000);
    let received: Vec<_> = world.client().requests.values().map(|request| request.received).collect();
    assert!(received.iter().all(|&bytes| bytes > 150_000), "{received:?}");
    world.finish(20 * SECOND);
}

#[test]
fn a_reset_and_a_stop_reach_the_other_side() {
    for loss in [0, 200] {
        let mut world = World::connected(29);
        world.network.set(|link| link.loss = loss);
        world.client().begin(&b"R...."[..]);
        world.client().begin(&b"S...."[..]);
        let is_done = world.run(10 * SECOND, |world| {
            let requests: Vec<_> = world.clients[0].requests.values().collect();
            requests.len() == 2 && requests[0].reset.is_some() && requests[1].stopped.is_some()
        });
        assert!(is_done);
        let codes: Vec<_> = world.client().requests.values().map(|request| (request.reset, request.stopped)).collect();
        assert_eq!(codes, [(Some(RESET_CODE), None), (None, Some(STOP_CODE))]);
        // Now the client: it stops a response, and resets a request.
        let now = world.now;
        world.client().connect(now);
        world.run(10 * SECOND, |world| world.clients[0].is_connected);
        world.client().get(4 << 20);
        world.client().begin(&b"E...."[..]);
        world.run(10 * SECOND, |world| world.clients[0].received() > 10_000);
        let ids: Vec<_> = world.client().requests.keys().copied().collect();
        let connection = world.client().connection();
        connection.recv_stream(ids[0]).stop(5_u32.into()).unwrap();
        connection.send_stream(ids[1]).reset(6_u32.into()).unwrap();
        let is_done = world.run(10 * SECOND, |world| {
            let server = world.server.connections.values().last().unwrap();
            !server.stopped.is_empty() && !server.resets.is_empty()
        });
        assert!(is_done);
        world.network.set(|link| link.loss = 0);
        world.run_for(5 * SECOND);
        let server = world.server.connections.values_mut().last().unwrap();
        assert_eq!((server.stopped[0].1, &server.resets[..]), (5, &[6][..]));
        let streams = server.connection.streams();
        assert_eq!((streams.exchanges(), streams.sending(), streams.unacked_bytes()), (0, 0, 0));
    }
}

#[test]
fn datagrams_grow_and_shrink_with_the_path() {
    let mut world = World::with(30, server::settings(), fast());
    world.connect();
    assert_eq!(world.server.only().connection.datagram_bytes(), 1_200);
    world.client().get(2 << 20);
    world.finish(20 * SECOND);
    assert_eq!(world.server.only().connection.datagram_bytes(), 1_452);
    assert_eq!(world.network.counts(Way::ToClient).largest, 1_452);
    // A black hole.
    world.network.to_client.mtu = 1_250;
    world.client().get(1 << 20);
    let took = world.finish(30 * SECOND);
    assert!(took < 8 * SECOND, "{took:?}");
    let bytes = world.server.only().connection.datagram_bytes();
    assert!((1_200..=1_250).contains(&bytes), "{bytes}");
}

#[test]
fn datagrams_grow_to_what_the_path_carries() {
    let mut world = World::with(31, server::settings(), fast());
    world.network.to_client.mtu = 1_330;
    world.connect();
    world.client().get(2 << 20);
    let took = world.finish(20 * SECOND);
    assert!(took < 2 * SECOND, "{took:?}");
    let bytes = world.server.only().connection.datagram_bytes();
    assert!((1_290..=1_330).contains(&bytes), "{bytes}");
}

#[test]
fn congestion_is_told_by_marks() {
    let mut world = World::with(32, server::settings(), fast());
    world.network.set(|link| {
        (link.rate, link.queue) = (Some(4 << 20), SECOND);
        link.marks = Marks::CeAbove(10 * MS);
    });
    world.connect();
    world.client().get(8 << 20);
    let took = world.finish(20 * SECOND);
    let counts = world.network.counts(Way::ToClient);
    assert!(took < 4 * SECOND && counts.marked > counts.datagrams / 2, "{took:?} {counts:?}");
    // Without marks the queue of a second would have been filled.
    let window = world.server.only().connection.congestion_window();
    assert!(window < 400_000, "{window}");
    assert!(world.client().connection().stats().frame_rx.acks > 0);
}

#[test]
fn marks_stop_on_a_path_that_clears_them() {
    let mut world = World::with(33, server::settings(), fast());
    world.network.set(|link| link.marks = Marks::Cleared);
    world.connect();
    world.client().get(4 << 20);
    let took = world.finish(20 * SECOND);
    let counts = world.network.counts(Way::ToClient);
    assert!(counts.marked < 300 && took < 2 * SECOND, "{counts:?} {took:?}");
}

#[test]
fn a_path_that_marks_all_datagrams_still_works() {
    let mut world = World::with(34, server::settings(), fast());
    world.network.set(|link| link.marks = Marks::AllCe);
    world.connect();
    world.client().get(100_000);
    world.finish(20 * SECOND);
    world.client().upload(100_000);
    world.finish(20 * SECOND);
}

#[test]
fn a_transfer_goes_on_after_seconds_without_any_packet() {
    for is_upload in [false, true] {
        let mut world = World::with(35, server::settings(), fast());
        world.network.set(|link| link.rate = Some(1 << 20));
        world.connect();
        match is_upload {
            true => world.client().upload(2 << 20),
            false => world.client().get(2 << 20),
        }
        world.run_for(500 * MS);
        let before = world.network.counts(Way::ToClient).datagrams;
        world.network.rule = Some(Box::new(|_| Fate::Drop));
        world.run_for(6 * SECOND);
        let probes = world.network.counts(Way::ToClient).datagrams - before;
        assert!(probes < 100, "{probes}");
        world.network.rule = None;
        let took = world.finish(40 * SECOND);
        assert!(took < 12 * SECOND, "{took:?}");
    }
}

#[test]
fn many_datagrams_are_sent_in_a_batch() {
    let mut world = World::with(36, server::settings(), fast());
    world.server.segments_max = 40;
    world.network.set(|link| link.delay = MS / 10);
    world.connect();
    world.client().get(8 << 20);
    world.finish(20 * SECOND);
    let datagrams = world.network.counts(Way::ToClient).datagrams;
    assert!(datagrams / world.server.batches >= 5, "{datagrams} in {}", world.server.batches);
}

#[test]
fn acknowledgments_are_few() {
    let mut world = World::connected(37);
    world.client().upload(4 << 20);
    world.finish(20 * SECOND);
    let (sent, received) = (world.network.counts(Way::ToClient), world.network.counts(Way::ToServer));
    assert!(sent.datagrams * 10 <= received.datagrams * 7, "{} of {}", sent.datagrams, received.datagrams);
}

#[test]
fn packets_that_overtake_each_other_are_not_sent_again_and_again() {
    for jitter_us in [200, 1_000, 5_000] {
        let mut world = World::with(38, server::settings(), fast());
        world.network.set(|link| {
            (link.rate, link.jitter) = (Some(10 << 20), std::time::Duration::from_micros(jitter_us));
        });
        world.connect();
        world.client().get(8 << 20);
        let took = world.finish(20 * SECOND);
        let sent = world.network.counts(Way::ToClient).datagrams;
        println!("jitter {jitter_us} us: {took:.2?}, {sent} datagrams");
        assert!(took < 1_300 * MS && sent < 7_500, "{jitter_us} us: {took:?}, {sent} datagrams");
    }
}

#[test]
fn losses_in_a_large_window_are_mended_within_a_second() {
    let mut settings = server::settings();
    settings.congestion = CongestionAlgorithm::Bbr;
    settings.streams.send_window_bytes = 64 << 20;
    let mut transport = fast();
    transport.stream_receive_window(VarInt::from_u32(64 << 20));
    transport.receive_window(VarInt::from_u32(64 << 20));
    let mut world = World::with(39, settings, transport);
    world.network.set(|link| (link.delay, link.rate, link.queue) = (50 * MS, Some(400 << 20), SECOND));
    world.connect();
    world.client().get(16 << 20);
    world.finish(20 * SECOND);
    world.network.to_client.loss = 2;
    (0..4).for_each(|_| world.client().get(16 << 20));
    let took = world.finish(20 * SECOND);
    assert!(took < SECOND, "{took:?}");
}
