//! Known attacks: each ends in the right error once its budget is used up.

use std::time::Duration;

use super::peer::*;
use crate::h3::frame::kind;
use crate::h3::{BudgetLimit, H3Limits, H3Server};
use crate::qpack::DecoderLimits;

type Server = TestPeer<H3Server>;

/// Checks that the attack ends exactly when its budget is used up.
fn check(name: &str, budget: impl Fn(&mut H3Limits) -> &mut BudgetLimit, attack: impl Fn(&mut Server, u64) -> String) {
    let mut limits = H3Limits::default();
    *budget(&mut limits) = BudgetLimit { burst: 10, per_second: 5 };
    let mut peer = Server::with(limits, &[]);
    let count = (0..1000).find(|count| attack(&mut peer, *count).contains("closed H3_EXCESSIVE_LOAD"));
    assert_eq!(count, Some(10), "{name}");
    // Within the budget it may continue indefinitely.
    let mut peer = Server::with(limits, &[]);
    for count in 0..500 {
        peer.now += Duration::from_millis(250);
        let events = attack(&mut peer, count);
        assert!(!events.contains("closed"), "{name}: the {count}th in time: {events}");
        peer.output.control.clear();
    }
}

#[test]
fn rapid_reset_cve_2023_44487() {
    check(
        "rapid reset",
        |limits| &mut limits.peer_resets,
        |peer, count| {
            peer.end(4 * count, &headers(GET));
            peer.reset(4 * count)
        },
    );
    check(
        "STOP_SENDING",
        |limits| &mut limits.peer_resets,
        |peer, count| {
            peer.end(4 * count, &headers(GET));
            peer.stop_sending(4 * count)
        },
    );
}

/// The client makes the server reset streams, by errors of all kinds.
#[test]
fn made_you_reset_cve_2025_8671() {
    let faults: [fn() -> Vec<u8>; 4] = [
        Vec::new,
        || headers(&[("x", "y")]),
        || [headers(&[POST, &[("content-length", "1")]].concat()), data(b"ab")].concat(),
        || [headers(POST), headers(&[(":path", "/")])].concat(),
    ];
    for fault in faults {
        check("MadeYouReset", |limits| &mut limits.stream_faults, |peer, count| peer.end(4 * count, &fault()));
    }
}

#[test]
fn priority_update_flood_cve_2019_9513() {
    check(
        "PRIORITY_UPDATE",
        |limits| &mut limits.priorities,
        |peer, count| peer.send(CONTROL, &frame(kind::PRIORITY_UPDATE, &numbers(&[4 * (count % 3)]))),
    );
    // Priorities of streams that are not open are kept for at most as many as may be.
    let mut peer = Server::new();
    for stream in 0..900 {
        assert_eq!(peer.send(CONTROL, &frame(kind::PRIORITY_UPDATE, &numbers(&[4 * stream]))), "");
    }
    assert_eq!(peer.connection.engine.early_priorities(), peer.limits.concurrent_streams_max);
}

#[test]
fn empty_frames_cve_2019_9518() {
    check(
        "empty DATA",
        |limits| &mut limits.idle_frames,
        |peer, count| {
            let head = if count == 0 { headers(POST) } else { Vec::new() };
            peer.send(0, &[head, data(b"")].concat())
        },
    );
}

#[test]
fn frames_that_say_nothing() {
    let frames: [fn(u64) -> Vec<u8>; 3] =
        [|_| frame(0x21, b"unknown"), |_| frame(kind::MAX_PUSH_ID, &[7]), |_| frame(kind::GOAWAY, &[7])];
    for frame in frames {
        check("idle frames", |limits| &mut limits.idle_frames, |peer, count| peer.send(CONTROL, &frame(count)));
    }
    check("unknown frames", |limits| &mut limits.idle_frames, |peer, _| peer.send(0, &frame(0x21, b"unknown")));
    check("unknown streams", |limits| &mut limits.idle_frames, |peer, count| peer.end(14 + 4 * count, &[0x21]));
}

/// Streams whose type never comes.
#[test]
fn many_unidirectional_streams() {
    let mut peer = Server::new();
    let count = (0..1000).find(|count| peer.send(6 + 4 * count, b"\x40").contains("closed H3_EXCESSIVE_LOAD"));
    assert_eq!(count, Some(63));
}

/// The client resets or ends the streams that the connection needs.
#[test]
fn closed_control_streams() {
    for (stream, start) in [(CONTROL, &b""[..]), (ENCODER, b"\x02"), (DECODER, b"\x03")] {
        for ends in [true, false] {
            let mut peer = Server::new();
            assert_eq!(peer.send(stream, start), "");
            let events = if ends { peer.end(stream, b"") } else { peer.reset(stream) };
            assert_eq!(events, "closed H3_CLOSED_CRITICAL_STREAM");
        }
    }
}

/// CVE-2026-48748: requests that wait for instructions which never come.
#[test]
fn blocked_streams_cve_2026_48748() {
    let decoder = DecoderLimits { table_bytes_max: 4096, blocked_streams_max: 3 };
    let mut peer = Server::with(H3Limits { decoder, ..H3Limits::default() }, &[]);
    let blocked = frame(kind::HEADERS, b"\x02\x00\x80");
    for stream in [0, 4, 8] {
        assert_eq!(peer.end(stream, &blocked), "blocked");
    }
    assert_eq!(peer.reset(4), "reset 4 H3_REQUEST_CANCELLED by peer");
    assert_eq!(peer.end(12, &blocked), "blocked", "one less waits");
    assert_eq!(peer.end(16, &blocked), "closed QPACK_DECOMPRESSION_FAILED");
    // By default none may wait.
    assert_eq!(Server::new().end(0, &blocked), "closed QPACK_DECOMPRESSION_FAILED");
}

/// A few bytes that decode to megabytes; see also the tests of `qpack`.
#[test]
fn qpack_bomb() {
    let decoder = DecoderLimits { table_bytes_max: 4096, blocked_streams_max: 0 };
    let mut peer = Server::with(H3Limits { decoder, ..H3Limits::default() }, &[]);
    let mut entry = b"\x02\x3f\xe1\x1f\x41a\x7f\x81\x1e".to_vec();
    entry.extend_from_slice(&[b'x'; 3968]);
    assert_eq!(peer.send(ENCODER, &entry), "");
    let section = [&b"\x02\x00"[..], &[0x80; 30_000]].concat();
    assert_eq!(peer.end(0, &frame(kind::HEADERS, &section)), "rejected 0 431");
    assert!(peer.buffers.text.capacity() < 64 << 10, "{}", peer.buffers.text.capacity());
}

/// Entries of the table that no message may have. The table checks an entry once, for all fields that refer to it.
#[test]
fn malformed_entries() {
    for (name, value) in [("X", "1"), ("a b", "1"), ("te", "gzip"), ("upgrade", "h2c"), ("a", "\r"), (":a", "1")] {
        let decoder = DecoderLimits { table_bytes_max: 4096, blocked_streams_max: 0 };
        let mut peer = Server::with(H3Limits { decoder, ..H3Limits::default() }, &[]);
        let (name_bytes, value_bytes) = ([0x40 | name.len() as u8], [value.len() as u8]);
        let entry = [&b"\x02\x3f\xe1\x1f"[..], &name_bytes, name.as_bytes(), &value_bytes, value.as_bytes()].concat();
        assert_eq!(peer.send(ENCODER, &entry), "");
        let section = [&b"\x02\x00\xd1\xd7\xc1\x50\x01a"[..], b"\x80"].concat();
        for stream in [0, 4] {
            let expect = format!("reset {stream} H3_MESSAGE_ERROR");
            assert_eq!(peer.end(stream, &frame(kind::HEADERS, &section)), expect, "{name}: {value:?}");
        }
    }
}

/// A client that never reads the QPACK decoder stream, which its resets and sections fill.
#[test]
fn unread_decoder_stream() {
    let decoder = DecoderLimits { table_bytes_max: 4096, blocked_streams_max: 3 };
    let limits = H3Limits { decoder, output_bytes_max: 100, ..H3Limits::default() };
    let mut peer = Server::with(limits, &[]);
    let count = (0..1000).find(|count| {
        let events = peer.send(4 * count, &headers(POST));
        peer.reset(4 * count);
        events == "await output"
    });
    assert!(count.is_some_and(|count| count < 60), "{count:?}");
    assert!(peer.output.length() < 110);
    // After the caller has sent the output, the connection continues.
    peer.output.decoder.clear();
    assert_eq!(peer.send(4000, &headers(GET)), "request 4000 Get /");
}

/// Instructions that arrive byte by byte are not decoded again for each byte.
#[test]
fn slow_instructions() {
    let decoder = DecoderLimits { table_bytes_max: 4096, blocked_streams_max: 0 };
    let mut peer = Server::with(H3Limits { decoder, ..H3Limits::default() }, &[]);
    // The Huffman code of the name is not valid, which shows only when it is decoded.
    let instruction = [&b"\x02\x3f\xe1\x1f\x7f\xe1\x1f"[..], &[0xff; 4096], b"\x05abcd"].concat();
    assert_eq!(peer.send(ENCODER, &instruction), "");
    assert_eq!(peer.send(ENCODER, b"e"), "closed QPACK_ENCODER_STREAM_ERROR");
}
