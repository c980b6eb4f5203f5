//! Attacks with packets that no honest client sends.

use std::time::Duration;

use tailcoat_quic::{LostReason, TransportError};

use super::raw::{DATA, Frame, HANDSHAKE, INITIAL, Raw, ack, integers, new_id, stream};
use super::server;
use super::world::{MS, SECOND};

fn get(bytes: u64) -> Vec<u8> {
    let mut text = vec![b'G'];
    text.extend_from_slice(&bytes.to_be_bytes());
    text.resize(40, b'.');
    text
}

fn connected() -> Raw {
    Raw::connected(server::settings())
}

/// Asserts that the server has closed the connection with this code.
#[track_caller]
fn assert_closed(raw: &mut Raw, code: u64) {
    match &raw.close {
        Some((false, found, reason)) => assert_eq!(*found, code, "{reason}"),
        other => panic!("{other:?}, server {:?}", raw.server.only().lost),
    }
    assert!(matches!(&raw.server.only().lost, Some(LostReason::Transport(error)) if error.code == code));
}

#[test]
fn an_honest_raw_client_is_served() {
    let mut raw = connected();
    raw.send(&stream(0, 0, &get(5_000), true));
    raw.wait(SECOND);
    let bytes: usize =
        raw.frames.iter().map(|frame| if let Frame::Stream { bytes, .. } = frame { *bytes } else { 0 }).sum();
    assert_eq!(bytes, 5_000);
    assert_eq!(raw.close, None);
}

#[test]
fn a_first_message_may_be_in_many_pieces() {
    // Browsers shuffle pieces of it, so that boxes on the path can't rely on its form.
    for bytes in [150, 40, 12] {
        let mut raw = Raw::new(server::settings(), &[]);
        raw.part_bytes = bytes;
        raw.handshake();
        assert!(raw.server.only().has_completed, "{bytes} {:?}", raw.close);
    }
}

#[test]
fn numbers_that_were_not_sent_must_not_be_acknowledged() {
    let mut raw = connected();
    let largest = raw.largest_received();
    raw.send(&ack(&[largest + 100..=largest + 100]));
    assert_closed(&mut raw, TransportError::PROTOCOL_VIOLATION);
}

/// Optimistic acknowledgments (CVE-2025-4820).
#[test]
fn acknowledging_all_numbers_is_found() {
    let mut raw = connected();
    raw.acks = false;
    raw.send(&stream(0, 0, &get(4 << 20), true));
    for _ in 0..2_000 {
        if raw.close.is_some() {
            break;
        }
        let largest = raw.largest_received();
        raw.send(&ack(&[0..=largest]));
        raw.wait(MS);
    }
    assert_closed(&mut raw, TransportError::PROTOCOL_VIOLATION);
    assert!(raw.largest_received() < 400, "{}", raw.largest_received());
}

#[test]
fn sparse_numbers_are_bounded() {
    for step in [2, 3, 1_000, 100_000] {
        let mut raw = connected();
        raw.acks = false;
        for _ in 0..2_000 {
            *raw.next(DATA) += step - 1;
            raw.send(&[1]);
        }
        assert_eq!(raw.close, None);
        assert!(raw.largest_datagram <= 1_452);
        let most = raw.frames.iter().map(|frame| if let Frame::Ack(ranges) = frame { ranges.len() } else { 0 }).max();
        assert!(most <= Some(64), "{most:?}");
        raw.acks = true;
        raw.send(&stream(0, 0, &get(10), true));
        assert!(raw.frames.iter().any(|frame| matches!(frame, Frame::Stream { id: 0, .. })));
    }
}

#[test]
fn sparse_numbers_in_a_handshake_do_not_make_large_datagrams() {
    let settings = tailcoat_quic::TransportSettings { probes_mtu: false, ..server::settings() };
    let mut raw = Raw::new(settings, &[]);
    for _ in 0..40 {
        *raw.next(INITIAL) += 100_000;
        let mut frames = vec![1];
        frames.resize(1_162, 0);
        let packet = raw.packet(INITIAL, &frames);
        raw.throw(&packet);
    }
    *raw.next(HANDSHAKE) += 1 << 20;
    raw.handshake();
    assert!(raw.largest_datagram <= 1_200, "{}", raw.largest_datagram);
    assert_eq!(raw.close, None);
    assert!(raw.server.only().has_completed);
}

#[test]
fn empty_datagrams_and_packets() {
    let mut raw = connected();
    raw.throw(&[]);
    raw.throw(&[0x40]);
    raw.throw(&[0xc0]);
    for bytes in 0..40 {
        let mut datagram = vec![0x40];
        datagram.extend_from_slice(&raw.server_id.clone());
        datagram.resize(datagram.len() + bytes, 0);
        raw.throw(&datagram);
    }
    raw.exchange();
    assert_eq!(raw.close, None);
    raw.send(&stream(0, 0, &get(10), true));
    assert_eq!(raw.close, None);
    // A packet without frames.
    let packet = raw.packet(DATA, &[]);
    raw.throw(&packet);
    raw.exchange();
    assert_closed(&mut raw, TransportError::PROTOCOL_VIOLATION);
}

#[test]
fn errors_have_their_codes() {
    let token = [vec![7, 3], b"abc".to_vec()].concat();
    let cases: Vec<(&str, Vec<u8>, u64)> = vec![
        ("unknown frame", vec![0x40, 0x33], TransportError::FRAME_ENCODING_ERROR),
        ("cut frame", vec![0x10], TransportError::FRAME_ENCODING_ERROR),
        ("handshake done", vec![0x1e], TransportError::PROTOCOL_VIOLATION),
        ("new token", token, TransportError::PROTOCOL_VIOLATION),
        ("stream window", stream(0, 1 << 20, b"x", false), TransportError::FLOW_CONTROL_ERROR),
        ("stream limit", stream(4 * 100, 0, b"x", false), TransportError::STREAM_LIMIT_ERROR),
        ("uni limit", stream(4 * 3 + 2, 0, b"x", false), TransportError::STREAM_LIMIT_ERROR),
        ("server's bidirectional stream", stream(1, 0, b"x", false), TransportError::STREAM_STATE_ERROR),
        ("server's unidirectional stream", stream(3, 0, b"x", false), TransportError::STREAM_STATE_ERROR),
        ("stop of a receive-only stream", integers(&[5, 2, 0]), TransportError::STREAM_STATE_ERROR),
        ("window of a receive-only stream", integers(&[0x11, 2, 9]), TransportError::STREAM_STATE_ERROR),
        ("window of a stream that is not open", integers(&[0x11, 1, 9]), TransportError::STREAM_STATE_ERROR),
        ("two ends", [stream(0, 0, b"abc", true), stream(0, 3, b"x", true)].concat(), TransportError::FINAL_SIZE_ERROR),
        (
            "an end before data",
            [stream(0, 10, b"abc", false), integers(&[4, 0, 1, 5])].concat(),
            TransportError::FINAL_SIZE_ERROR,
        ),
        ("reset beyond the window", integers(&[4, 0, 1, 2 << 20]), TransportError::FLOW_CONTROL_ERROR),
        ("too many streams", integers(&[0x12, (1 << 60) + 1]), TransportError::FRAME_ENCODING_ERROR),
        (
            "offset",
            [integers(&[0x0c, 0, (1 << 62) - 1]), b"abc".to_vec()].concat(),
            TransportError::FRAME_ENCODING_ERROR,
        ),
        ("crypto", [integers(&[6, 0, 4]), b"abcd".to_vec()].concat(), 0x100 | 10),
        ("retired ID", integers(&[0x19, 77]), TransportError::PROTOCOL_VIOLATION),
        ("smallest number of an ACK", integers(&[2, 3, 0, 0, 4]), TransportError::FRAME_ENCODING_ERROR),
        ("gap of an ACK", integers(&[2, 3, 0, 1, 1, 1, 0]), TransportError::FRAME_ENCODING_ERROR),
        ("long ID", [integers(&[0x18, 1, 0, 21]), vec![7; 37]].concat(), TransportError::FRAME_ENCODING_ERROR),
        ("retires itself", new_id(1, 2), TransportError::FRAME_ENCODING_ERROR),
    ];
    for (name, frames, code) in cases {
        let mut raw = connected();
        // No PADDING that would complete a cut frame.
        let before = if frames.len() < 4 { vec![1; 4 - frames.len()] } else { Vec::new() };
        raw.send(&[before, frames].concat());
        let Some((false, found, _)) = &raw.close else { panic!("{name}: {:?}", raw.close) };
        assert_eq!(*found, code, "{name}");
        raw.wait(5 * SECOND);
        raw.server.forget_drained();
        assert_eq!(raw.server.endpoint.connections(), 0, "{name}");
    }
}

/// Transport parameters that are no valid ones (CVE-2026-31812).
#[test]
fn bad_parameters_end_the_handshake() {
    let id = |bytes: usize| vec![0x55; bytes];
    for (name, key, value) in [
        ("original ID", 0x00, id(8)),
        ("reset token", 0x02, id(16)),
        ("payload", 0x03, integers(&[1_199])),
        ("ack delay exponent", 0x0a, integers(&[21])),
        ("ack delay", 0x0b, integers(&[1 << 14])),
        ("preferred address", 0x0d, id(49)),
        ("ID limit", 0x0e, integers(&[1])),
        ("twice", 0x04, integers(&[1])),
        ("retry ID", 0x10, id(8)),
        ("streams", 0x08, integers(&[(1 << 60) + 1])),
        ("length", 0x01, vec![1, 2, 3]),
    ] {
        let mut raw = Raw::new(server::settings(), &[(key, value)]);
        raw.handshake();
        let Some((false, code, _)) = &raw.close else { panic!("{name}: {:?}", raw.close) };
        assert_eq!(*code, TransportError::TRANSPORT_PARAMETER_ERROR, "{name}");
    }
    // Another ID than that of the packets.
    let mut raw = Raw::new(server::settings(), &[]);
    raw.own_id = vec![0x56; 8];
    raw.handshake();
    assert_eq!(raw.close.as_ref().map(|close| close.1), Some(TransportError::TRANSPORT_PARAMETER_ERROR));
}

#[test]
fn new_ids_are_limited() {
    let mut raw = connected();
    for sequence in 1..10 {
        raw.send(&new_id(sequence, 0));
    }
    assert_closed(&mut raw, TransportError::CONNECTION_ID_LIMIT_ERROR);
    // Each retires the one before. The client acknowledges the retirements.
    let mut raw = connected();
    for sequence in 1..500 {
        raw.own_id = vec![0x55; 8];
        raw.send(&new_id(sequence, sequence));
    }
    assert_eq!(raw.close, None);
    // The other one does not.
    let mut raw = connected();
    raw.acks = false;
    for sequence in 1..500 {
        raw.send(&new_id(sequence, sequence));
    }
    assert_closed(&mut raw, TransportError::CONNECTION_ID_LIMIT_ERROR);
    // A packet with many.
    let mut raw = connected();
    let all: Vec<u8> = (1..35).flat_map(|sequence| new_id(sequence, sequence)).collect();
    raw.send(&all);
    assert_closed(&mut raw, TransportError::CONNECTION_ID_LIMIT_ERROR);
}

#[test]
fn own_ids_are_replaced_as_fast_as_they_are_retired_and_not_faster() {
    let mut raw = connected();
    raw.wait(SECOND);
    let mut known: Vec<u64> = vec![0];
    for _ in 0..300 {
        let news: Vec<_> = raw.frames.drain(..).collect();
        known.extend(news.iter().filter_map(|frame| match frame {
            Frame::NewId { sequence, id } => {
                raw.server_id = id.clone();
                Some(*sequence)
            }
            _ => None,
        }));
        let Some(newest) = known.iter().max().copied() else { break };
        let retired: Vec<u8> =
            known.iter().filter(|sequence| **sequence != newest).flat_map(|id| integers(&[0x19, *id])).collect();
        known.retain(|sequence| *sequence == newest);
        raw.send(&[retired, vec![1]].concat());
        raw.wait(30 * MS);
    }
    assert!(known.iter().max() >= Some(&300), "{known:?}");
    raw.send(&stream(0, 0, &get(10), true));
    assert_eq!(raw.close, None);
    assert_eq!(raw.server.endpoint.connections(), 1);
}

/// Flood of path validation (CVE-2023-49295).
#[test]
fn a_flood_of_challenges_gets_few_responses() {
    let mut raw = connected();
    let many: Vec<u8> = (0..120_u64).flat_map(|number| [vec![0x1a], number.to_be_bytes().to_vec()].concat()).collect();
    for _ in 0..50 {
        raw.send_only(&many);
    }
    raw.exchange();
    let responses = raw.frames.iter().filter(|frame| matches!(frame, Frame::Response(_))).count();
    assert!((1..=16).contains(&responses), "{responses}");
    assert_eq!(raw.close, None);
    // From addresses that are not the client's: never more than three times of what they have sent.
    let home = raw.addr;
    let mut sent = std::collections::BTreeMap::new();
    for port in 1..100 {
        raw.addr = std::net::SocketAddr::new("203.0.113.5".parse().unwrap(), port);
        let packet = raw.packet(DATA, &[&[0x1a][..], &[7; 8]].concat());
        *sent.entry(raw.addr).or_insert(0) += packet.len();
        raw.throw(&packet);
    }
    // Several challenges in a datagram that permits one response of the full size.
    for port in 100..110 {
        raw.addr = std::net::SocketAddr::new("203.0.113.5".parse().unwrap(), port);
        let mut frames = [&[0x1a][..], &[7; 8]].concat().repeat(4);
        frames.resize(380, 0);
        let packet = raw.packet(DATA, &frames);
        *sent.entry(raw.addr).or_insert(0) += packet.len();
        raw.throw(&packet);
    }
    raw.addr = home;
    raw.exchange();
    raw.wait(5 * SECOND);
    for (address, bytes) in sent {
        let received = raw.receivers.get(&address).copied().unwrap_or_default();
        assert!(received <= 3 * bytes, "{received} for {bytes}");
    }
    assert_eq!(raw.server.remote(), home);
}

/// Reassembly of content with gaps (RUSTSEC-2026-0185).
#[test]
fn streams_with_gaps_are_bounded_in_memory() {
    for (step, size) in [(2, 1), (20, 10), (1_000, 1), (1_100, 1_000)] {
        let mut raw = connected();
        let counted = allocation_counter::measure(|| {
            'all: for id in 0..20 {
                let mut offset = 1;
                while offset + size < 200_000 && raw.close.is_none() {
                    let mut frames = Vec::new();
                    while frames.len() + size as usize + 20 < 1_150 && offset + size < 200_000 {
                        frames.extend(stream(4 * id, offset, &vec![1; size as usize], false));
                        offset += step;
                    }
                    raw.send_only(&frames);
                    raw.server.drive(raw.now, &mut super::network::Network::new(raw.now, 1));
                    if raw.server.only().connection.is_closed() {
                        break 'all;
                    }
                }
            }
        });
        let held = counted.bytes_current;
        println!("gaps {step} {size}: {held} bytes, closed {:?}", raw.server.only().lost);
        // At most what the connection's window of 4 MiB allows.
        assert!(held < 6 << 20, "{step} {size}: {held}");
    }
}

#[test]
fn rapid_resets_and_stops_leave_nothing() {
    let mut raw = connected();
    let mut last = 0;
    for number in 0..5_000 {
        let id = 4 * number;
        let frames = [stream(id, 0, &get(100_000), false), integers(&[4, id, 9, 40]), integers(&[5, id, 8])].concat();
        raw.send(&frames);
        if raw.close.is_some() {
            break;
        }
        last = number;
    }
    assert_eq!((last, &raw.close), (4_999, &None));
    raw.wait(SECOND);
    let streams = raw.server.only().connection.streams();
    assert_eq!((streams.exchanges(), streams.sending(), streams.unacked_bytes()), (0, 0, 0));
}

#[test]
fn crypto_data_without_its_beginning_is_bounded() {
    let mut raw = Raw::new(server::settings(), &[]);
    raw.handshake_first_gap();
    let code = raw.close.as_ref().map(|close| close.1);
    assert_eq!(code, Some(TransportError::CRYPTO_BUFFER_EXCEEDED), "{:?}", raw.close);
}

#[test]
fn random_frames_do_no_harm() {
    let mut random = 0x1234_5678_9abc_def1_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random >> 11
    };
    let mut closes = std::collections::BTreeMap::new();
    let mut raw = connected();
    for _ in 0..3_000 {
        if raw.close.is_some() || raw.server.only().connection.is_closed() {
            *closes.entry(raw.close.take().map(|close| close.1)).or_insert(0) += 1;
            raw = connected();
        }
        let mut frames = Vec::new();
        for _ in 0..1 + next() % 6 {
            let kind = next() % 0x1e;
            let small = |next: &mut dyn FnMut() -> u64| match next() % 4 {
                0 => next() % 4,
                1 => next() % 64,
                2 => next() % 3_000,
                _ => next() % (1 << (next() % 50)),
            };
            let mut fields = vec![kind];
            fields.extend((0..next() % 6).map(|_| small(&mut next)));
            frames.extend(integers(&fields));
            if next() % 3 == 0 {
                let count = next() % 40;
                frames.extend((0..count).map(|_| next() as u8));
            }
            // Some that are valid.
            match next() % 5 {
                0 => frames.extend(stream(
                    4 * (next() % 110),
                    next() % 100,
                    &vec![b'G'; (next() % 90) as usize],
                    next() % 2 == 0,
                )),
                1 => frames.extend(integers(&[4 + next() % 2, 4 * (next() % 30), 3, next() % 100])),
                2 => frames.extend(integers(&[0x11, 4 * (next() % 30), next() % 100_000])),
                _ => {}
            }
        }
        raw.send(&frames);
        let pause = Duration::from_micros(next() % 40_000);
        raw.wait(pause);
    }
    println!("{closes:?}");
    assert!(!closes.is_empty());
}

/// Sends PING frames without acknowledgments until the server closes, in datagrams with this pause. Returns the memory that it takes.
fn ping_until_closed(raw: &mut Raw, pause: Duration) -> u64 {
    raw.acks = false;
    let counted = allocation_counter::measure(|| {
        for _ in 0..200_000 {
            raw.send(&[1]);
            raw.wait(pause);
            allocation_counter::opt_out(|| raw.forget());
            if raw.close.is_some() {
                break;
            }
        }
    });
    println!("{counted:?}");
    assert_closed(raw, TransportError::PROTOCOL_VIOLATION);
    counted.bytes_max
}

#[test]
fn a_client_that_acknowledges_nothing_takes_little_memory() {
    let bytes_max = ping_until_closed(&mut connected(), MS / 10);
    assert!(bytes_max < 2 << 20, "{bytes_max}");
}

#[test]
fn packets_without_acknowledgments_are_few_however_long_a_round_trip_seems() {
    let mut raw = connected();
    // No time passes, so that no timer expires. The client's own memory is a third.
    let bytes_max = ping_until_closed(&mut raw, Duration::ZERO);
    assert!(bytes_max < 6 << 20, "{bytes_max}");
    let kept = raw.server.connections.values().map(|server| server.connection.sent_memory()).sum::<usize>();
    assert!(kept < 1_000, "{kept} bytes for packets of a closed connection");
}

#[test]
fn packets_of_a_handshake_without_acknowledgments_are_few() {
    let mut settings = server::settings();
    (settings.streams.send_window_bytes, settings.streams.connection_window_bytes) = (1 << 20, 1 << 20);
    let mut raw = Raw::new(settings, &[]);
    raw.handshake_pings(20_000);
    assert_closed(&mut raw, TransportError::PROTOCOL_VIOLATION);
}

#[test]
fn numbers_are_skipped_between_packets_that_probe_the_path() {
    for number in 0..20_u64 {
        let mut raw = connected();
        let challenges = [&[0x1a][..], &number.to_be_bytes()].concat().repeat(4);
        (0..60).for_each(|_| raw.send(&challenges));
        assert!(raw.largest_received() > 200 && raw.has_gap(), "{number}: {}", raw.largest_received());
    }
}

#[test]
fn ids_that_are_retired_without_acknowledgments_take_no_memory() {
    let mut raw = connected();
    raw.wait(SECOND);
    raw.acks = false;
    let (mut newest, mut server_id) = (0, raw.server_id.clone());
    let counted = allocation_counter::measure(|| {
        for _ in 0..5_000 {
            let mut retired = Vec::new();
            allocation_counter::opt_out(|| {
                let before = newest;
                for frame in &raw.frames {
                    if let Frame::NewId { sequence, id } = frame
                        && *sequence > newest
                    {
                        (newest, server_id) = (*sequence, id.clone());
                    }
                }
                if newest > before {
                    raw.server_id = server_id.clone();
                    retired = (before..newest).flat_map(|sequence| integers(&[0x19, sequence])).collect();
                }
                retired.extend([1, 0, 0, 0]);
                raw.forget();
            });
            raw.send(&retired);
            raw.wait(MS);
            if raw.close.is_some() {
                break;
            }
        }
    });
    println!("{counted:?}, newest {newest}, {:?}", raw.close);
    assert!(newest >= 200, "{newest}");
    assert!(counted.bytes_current < 512 << 10, "{counted:?}");
    assert_eq!(raw.server.endpoint.connections(), 1);
}
