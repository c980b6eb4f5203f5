//! Unidirectional streams: types, control frames, settings, priorities, shutdown (RFC 9114, sections 5.2, 6.2 and 7.2; RFC
//! 9204, section 4; RFC 9218, section 7).

use std::time::Duration;

use super::peer::*;
use crate::h3::frame::kind;
use crate::h3::{H3Client, H3Limits, H3PeerSettings, H3Server, H3StreamId};

fn number(kind: u64, number: u64) -> Vec<u8> {
    frame(kind, &numbers(&[number]))
}

fn priority(stream: u64, value: &str) -> Vec<u8> {
    frame(kind::PRIORITY_UPDATE, &[&numbers(&[stream])[..], value.as_bytes()].concat())
}

#[test]
fn what_a_client_may_send_on_its_control_stream() {
    for (name, bytes, expect) in [
        ("GREASE", frame(0x21, b"anything"), ""),
        ("a large GREASE frame", frame(0x1f * 1000 + 0x21, &[7; 5000]), ""),
        ("GOAWAY", number(kind::GOAWAY, 7), "go away 7"),
        ("GOAWAY twice", [number(kind::GOAWAY, 7), number(kind::GOAWAY, 7)].concat(), "go away 7\ngo away 7"),
        ("MAX_PUSH_ID", [number(kind::MAX_PUSH_ID, 3), number(kind::MAX_PUSH_ID, 3)].concat(), ""),
        ("a long number", frame(kind::MAX_PUSH_ID, &[0xc0, 0, 0, 0, 0, 0, 0, 1]), ""),
        ("a priority", priority(0, "u=1"), ""),
        ("a priority that is no dictionary", priority(400, "\"("), ""),
    ] {
        let mut peer = TestPeer::<H3Server>::new();
        assert_eq!(peer.send(CONTROL, &bytes), expect, "{name}");
        // Byte by byte, nothing changes.
        let mut peer = TestPeer::<H3Server>::new();
        let events: Vec<_> =
            bytes.chunks(1).map(|byte| peer.send(CONTROL, byte)).filter(|line| !line.is_empty()).collect();
        assert_eq!(events.join("\n"), expect, "{name}, byte by byte");
    }
}

#[test]
fn errors_of_a_client_on_its_control_stream() {
    for (name, bytes, expect) in [
        ("DATA", data(b""), "H3_FRAME_UNEXPECTED"),
        ("HEADERS", headers(GET), "H3_FRAME_UNEXPECTED"),
        ("PUSH_PROMISE", frame(kind::PUSH_PROMISE, b"\0"), "H3_FRAME_UNEXPECTED"),
        ("SETTINGS twice", settings(&[]), "H3_FRAME_UNEXPECTED"),
        ("PRIORITY of HTTP/2", frame(2, b""), "H3_FRAME_UNEXPECTED"),
        ("PING of HTTP/2", frame(6, b""), "H3_FRAME_UNEXPECTED"),
        ("WINDOW_UPDATE of HTTP/2", frame(8, b""), "H3_FRAME_UNEXPECTED"),
        ("CONTINUATION of HTTP/2", frame(9, b""), "H3_FRAME_UNEXPECTED"),
        ("CANCEL_PUSH of no push", number(kind::CANCEL_PUSH, 0), "H3_ID_ERROR"),
        ("an empty CANCEL_PUSH", frame(kind::CANCEL_PUSH, b""), "H3_FRAME_ERROR"),
        ("an empty GOAWAY", frame(kind::GOAWAY, b""), "H3_FRAME_ERROR"),
        ("a long GOAWAY", frame(kind::GOAWAY, b"\0\0"), "H3_FRAME_ERROR"),
        ("half a GOAWAY", frame(kind::GOAWAY, b"\x40"), "H3_FRAME_ERROR"),
        ("a long MAX_PUSH_ID", frame(kind::MAX_PUSH_ID, b"\0\0"), "H3_FRAME_ERROR"),
        ("a smaller MAX_PUSH_ID", [number(13, 3), number(13, 2)].concat(), "H3_ID_ERROR"),
        ("a larger GOAWAY", [number(7, 3), number(7, 4)].concat(), "H3_ID_ERROR"),
        ("an empty PRIORITY_UPDATE", frame(kind::PRIORITY_UPDATE, b""), "H3_FRAME_ERROR"),
        ("a priority of a server's stream", priority(1, "u=1"), "H3_ID_ERROR"),
        ("a priority of a control stream", priority(2, "u=1"), "H3_ID_ERROR"),
        ("a priority beyond the streams permitted", priority(404, "u=1"), "H3_ID_ERROR"),
        ("a priority of a push", frame(kind::PRIORITY_UPDATE_OF_PUSH, b"\0u=1"), "H3_ID_ERROR"),
        ("a frame of 1 GiB", [&numbers(&[kind::GOAWAY, 1 << 30])[..]].concat(), "H3_EXCESSIVE_LOAD"),
        ("an unknown frame of 64 KiB and a byte", numbers(&[0x21, (64 << 10) + 1]), "H3_EXCESSIVE_LOAD"),
        ("a large priority", priority(0, &"x".repeat(1100)), "H3_EXCESSIVE_LOAD"),
    ] {
        let mut peer = TestPeer::<H3Server>::new();
        peer.connection.set_streams_end(H3StreamId(404));
        let events = peer.send(CONTROL, &bytes);
        assert_eq!(events.lines().last(), Some(&format!("closed {expect}")[..]), "{name}");
        assert_eq!(peer.send(0, &headers(GET)).lines().last(), Some(&format!("closed {expect}")[..]), "{name}");
    }
}

#[test]
fn errors_of_settings() {
    for (name, bytes, expect) in [
        ("no settings", frame(0x21, b""), "H3_MISSING_SETTINGS"),
        ("GOAWAY first", number(kind::GOAWAY, 0), "H3_MISSING_SETTINGS"),
        ("a setting of HTTP/2", settings(&[2, 0]), "H3_SETTINGS_ERROR"),
        ("a setting twice", settings(&[0x21, 0, 0x21, 0]), "H3_SETTINGS_ERROR"),
        ("CONNECT protocol 2", settings(&[8, 2]), "H3_SETTINGS_ERROR"),
        ("datagrams 2", settings(&[0x33, 2]), "H3_SETTINGS_ERROR"),
        ("half a setting", settings(&[1]), "H3_FRAME_ERROR"),
        ("65 settings", settings(&(100..230).collect::<Vec<_>>()), "H3_EXCESSIVE_LOAD"),
        ("large settings", frame(kind::SETTINGS, &[0; 1025]), "H3_EXCESSIVE_LOAD"),
    ] {
        let mut peer = TestPeer::<H3Server>::unsettled(H3Limits::default());
        assert_eq!(peer.send(CONTROL, &[&[0], &bytes[..]].concat()), format!("closed {expect}"), "{name}");
    }
    let peer = TestPeer::<H3Server>::with(H3Limits::default(), &[1, 100, 7, 2, 0x33, 1, 0x21, 5]);
    let expect = H3PeerSettings {
        table_bytes_max: 100,
        blocked_streams_max: 2,
        enables_datagrams: true,
        ..H3PeerSettings::default()
    };
    assert_eq!(peer.connection.peer_settings(), Some(&expect));
}

#[test]
fn types_of_streams() {
    const KNOWN: &[u64] = &[0, 2, 3];
    for (streams, ends, expect) in [
        (&[&[0][..], &[2], &[3]][..], false, ""),
        // RFC 9114, section 6.2.3: reserved types are ignored.
        (&[&[0x21]], false, "stop 14 H3_STREAM_CREATION_ERROR"),
        (&[&[0x21]], true, "stop 14 H3_STREAM_CREATION_ERROR"),
        (&[&[0x40, 0x21]], false, "stop 14 H3_STREAM_CREATION_ERROR"),
        (&[&[]], true, ""),
        (&[&[0x40]], true, ""),
        (&[&[1]], false, "closed H3_STREAM_CREATION_ERROR"),
        (&[&[0], &[0]], false, "closed H3_STREAM_CREATION_ERROR"),
        (&[&[2], &[2]], false, "closed H3_STREAM_CREATION_ERROR"),
        (&[&[3], &[3]], false, "closed H3_STREAM_CREATION_ERROR"),
        (&[&[0]], true, "closed H3_CLOSED_CRITICAL_STREAM"),
        (&[&[2]], true, "closed H3_CLOSED_CRITICAL_STREAM"),
        (&[&[3]], true, "closed H3_CLOSED_CRITICAL_STREAM"),
    ] {
        let mut peer = TestPeer::<H3Server>::unsettled(H3Limits::default());
        let mut last = String::new();
        for (index, bytes) in streams.iter().enumerate() {
            let stream = 14 + 4 * index as u64;
            last = if ends { peer.end(stream, bytes) } else { peer.send(stream, bytes) };
        }
        assert_eq!(last, expect, "{streams:x?}");
        let is_critical =
            streams.len() == 1 && streams[0].first().is_some_and(|kind| KNOWN.contains(&u64::from(*kind)));
        if ends && is_critical {
            // RESET_STREAM is no better.
            let mut peer = TestPeer::<H3Server>::unsettled(H3Limits::default());
            assert_eq!(peer.send(14, streams[0]), "");
            assert_eq!(peer.reset(14), expect, "{streams:x?}");
        }
    }
    let mut peer = TestPeer::<H3Server>::new();
    assert_eq!((peer.send(14, b""), peer.reset(14)), (String::new(), String::new()), "reset before its type");
    assert_eq!(peer.stop_sending(3), "closed H3_CLOSED_CRITICAL_STREAM", "our control stream");
}

#[test]
fn errors_of_qpack_have_their_codes() {
    for (name, stream, bytes, expect) in [
        ("an insertion without a table", ENCODER, &b"\x02\xc0\x00"[..], "QPACK_ENCODER_STREAM_ERROR"),
        ("a capacity beyond the limit", ENCODER, b"\x02\x21", "QPACK_ENCODER_STREAM_ERROR"),
        ("an acknowledgement of no section", DECODER, b"\x03\x80", "QPACK_DECODER_STREAM_ERROR"),
        ("an increment by 0", DECODER, b"\x03\x00", "QPACK_DECODER_STREAM_ERROR"),
        ("a section that uses no table", 0, b"\x01\x03\x02\x00\x80", "QPACK_DECOMPRESSION_FAILED"),
        ("an index beyond the static table", 0, b"\x01\x04\x00\x00\xff\x24", "QPACK_DECOMPRESSION_FAILED"),
        ("an empty section", 0, b"\x01\x00", "QPACK_DECOMPRESSION_FAILED"),
    ] {
        let mut peer = TestPeer::<H3Server>::new();
        assert_eq!(peer.send(stream, bytes), format!("closed {expect}"), "{name}");
    }
}

#[test]
fn what_a_server_may_not_send_to_a_client() {
    for (name, stream, bytes, expect) in [
        ("MAX_PUSH_ID", 3, number(kind::MAX_PUSH_ID, 1), "H3_FRAME_UNEXPECTED"),
        ("a priority", 3, priority(0, "u=1"), "H3_FRAME_UNEXPECTED"),
        ("CANCEL_PUSH", 3, number(kind::CANCEL_PUSH, 1), "H3_ID_ERROR"),
        ("GOAWAY with the id of no request", 3, number(kind::GOAWAY, 2), "H3_ID_ERROR"),
        ("a larger GOAWAY", 3, [number(kind::GOAWAY, 4), number(kind::GOAWAY, 8)].concat(), "H3_ID_ERROR"),
        ("a push stream", 7, vec![1], "H3_ID_ERROR"),
        ("a bidirectional stream", 1, vec![], "H3_STREAM_CREATION_ERROR"),
    ] {
        let mut peer = TestPeer::<H3Client>::new();
        let events = peer.send(stream, &bytes);
        assert_eq!(events.lines().last(), Some(&format!("closed {expect}")[..]), "{name}");
    }
}

#[test]
fn our_control_stream() {
    let mut limits = H3Limits { enables_connect_protocol: true, enables_datagrams: true, ..H3Limits::default() };
    limits.decoder.table_bytes_max = 4096;
    limits.decoder.blocked_streams_max = 16;
    let peer = TestPeer::<H3Server>::unsettled(limits);
    assert_eq!(peer.output.control[0], 0);
    let payload = numbers(&[1, 4096, 6, 16 << 10, 7, 16, 8, 1, 0x33, 1]);
    assert_eq!(frames(&peer.output.control[1..]), [(kind::SETTINGS, payload)]);
    assert!(peer.output.encoder.is_empty() && peer.output.decoder.is_empty(), "opened when they are needed");
    let peer = TestPeer::<H3Client>::unsettled(H3Limits::default());
    assert_eq!(frames(&peer.output.control[1..]), [(kind::SETTINGS, numbers(&[6, 16 << 10]))]);
}

#[test]
fn priorities() {
    let mut peer = TestPeer::<H3Server>::new();
    assert_eq!(peer.send(CONTROL, &[priority(0, "u=1"), priority(4, "u=2, i")].concat()), "");
    let with_field = [GET, &[("priority", "u=5, i")]].concat();
    assert_eq!(peer.end(0, &headers(&with_field)), "request 0 Get /");
    assert_eq!(peer.end(4, &headers(GET)), "request 4 Get /");
    assert_eq!(peer.end(8, &headers(&with_field)), "request 8 Get /");
    let priorities = [0, 4, 8, 12].map(|stream| peer.connection.priority(H3StreamId(stream)));
    let priorities = priorities.map(|priority| priority.map(|known| (known.urgency, known.is_incremental)));
    assert_eq!(priorities, [Some((1, false)), Some((2, true)), Some((5, true)), None]);
    assert_eq!(peer.send(CONTROL, &priority(8, "u=0")), "priority 8 0 false");
    assert_eq!(peer.send(CONTROL, &priority(8, "u=0")), "", "nothing new");
}

#[test]
fn graceful_shutdown_of_a_server() {
    let mut peer = TestPeer::<H3Server>::new();
    peer.output.control.clear();
    assert_eq!(peer.end(0, &headers(GET)), "request 0 Get /");
    peer.turn(|server, turn| server.shut_down(turn));
    assert_eq!(frames(&peer.output.control), [(kind::GOAWAY, numbers(&[(1 << 62) - 4]))]);
    assert_eq!(peer.end(4, &headers(GET)), "request 4 Get /", "it was in flight");
    peer.output.control.clear();
    assert_eq!(peer.connection.next_timeout(), Some(peer.now + Duration::from_secs(1)));
    peer.now += Duration::from_secs(1);
    peer.turn(|server, turn| server.handle_timeout(turn));
    assert_eq!(frames(&peer.output.control), [(kind::GOAWAY, numbers(&[8]))]);
    assert_eq!((peer.connection.next_timeout(), peer.connection.is_drained()), (None, false));
    assert_eq!(peer.end(8, &headers(GET)), "reset 8 H3_REQUEST_REJECTED");
    for stream in [0, 4] {
        let sent = peer.turn(|server, _| server.send_section(H3StreamId(stream), true, &mut Vec::new(), |_| {}));
        assert_eq!(sent, Ok(()));
    }
    assert!(peer.connection.is_drained());
}

#[test]
fn refused_streams() {
    let mut peer = TestPeer::<H3Server>::with(H3Limits { concurrent_streams_max: 2, ..H3Limits::default() }, &[]);
    assert_eq!(peer.end(0, &headers(GET)), "request 0 Get /");
    assert_eq!(peer.end(4, &headers(GET)), "request 4 Get /");
    assert_eq!(peer.end(8, &headers(GET)), "reset 8 H3_REQUEST_REJECTED");
    assert_eq!(peer.reset(4), "reset 4 H3_REQUEST_CANCELLED by peer");
    assert_eq!(peer.end(12, &headers(GET)), "request 12 Get /");
    assert_eq!(peer.stop_sending(12), "reset 12 H3_REQUEST_CANCELLED by peer");
    peer.connection.refuse_streams(true);
    assert_eq!(peer.end(16, &headers(GET)), "reset 16 H3_REQUEST_REJECTED");
}
