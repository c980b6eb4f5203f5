//! Windows in both directions, and priorities of content (RFC 9113, section 5.2; RFC 9218).

use std::time::Duration;

use proptest::prelude::*;

use super::peer::*;
use crate::h2::frame::kind;
use crate::h2::{ErrorCode, H2Limits, Placement, StreamId};

const INITIAL_WINDOW_SIZE: u16 = 4;

#[test]
fn content_goes_as_windows_allow() {
    let mut peer = TestPeer::with(H2Limits::default(), &[(INITIAL_WINDOW_SIZE, 10)]);
    peer.send(&headers(1, END, GET));
    peer.respond_with(1, 40_000);
    assert_eq!(peer.frames(), "HEADERS 1 :status=204\nDATA 1 10");
    assert!(!peer.server.has_content_to_send());
    peer.send(&settings(&[(INITIAL_WINDOW_SIZE, 15)]));
    assert_eq!(peer.frames(), "SETTINGS ack\nDATA 1 5");
    // The window becomes negative. Updates must first bring it back to zero.
    peer.send(&settings(&[(INITIAL_WINDOW_SIZE, 0)]));
    peer.send(&window_update(1, 15));
    assert_eq!(peer.frames(), "SETTINGS ack");
    peer.send(&window_update(1, 1));
    assert_eq!(peer.frames(), "DATA 1 1");
    peer.send(&window_update(1, 100_000));
    assert_eq!(peer.frames(), "DATA 1 16384\nDATA 1 16384\nDATA 1 7216 end");
    assert_eq!(peer.server.open_streams(), 0);
}

#[test]
fn all_streams_share_the_connections_window() {
    let mut peer = TestPeer::with(H2Limits::default(), &[(INITIAL_WINDOW_SIZE, 1 << 20)]);
    peer.send(&[headers(1, END, GET), headers(3, END, GET)].concat());
    peer.respond_with(1, 60_000);
    peer.respond_with(3, 60_000);
    let frames = peer.frames();
    assert!(frames.ends_with("DATA 1 10848 end\nDATA 3 5535"), "{frames}");
    peer.send(&window_update(0, 60_000));
    assert!(peer.frames().ends_with(" end"));
}

#[test]
fn room_is_kept_within() {
    let mut peer = TestPeer::with(H2Limits::default(), &[(INITIAL_WINDOW_SIZE, 1 << 20)]);
    peer.send(&headers(1, END, GET));
    peer.respond_with(1, 60_000);
    assert_eq!(peer.frames_within(20_000), "HEADERS 1 :status=204\nDATA 1 16384\nDATA 1 3598");
    assert!(peer.server.has_content_to_send());
    assert_eq!(peer.server.unsent_bytes(StreamId(1)), Some(60_000 - 16_384 - 3598));
}

#[test]
fn lost_content_resets_its_stream_only() {
    let mut peer = TestPeer::new();
    peer.send(&[headers(1, END, GET), headers(3, END, GET)].concat());
    [1, 3].into_iter().for_each(|stream| peer.respond_with(stream, 20_000));
    let lost = peer.turn(|server, turn| {
        server.poll_output(usize::MAX, turn, |stream, range, out| {
            out.extend(range.clone().map(|_| b'x'));
            if stream.get() == 1 && range.start > 0 { Placement::Lost } else { Placement::Copied }
        })
    });
    assert_eq!(lost, Some(StreamId(1)));
    assert_eq!(
        peer.frames(),
        "HEADERS 1 :status=204\nHEADERS 3 :status=204\nDATA 1 16384\nRST_STREAM 1 INTERNAL_ERROR\n\
         DATA 3 16384\nDATA 3 3616 end"
    );
}

#[test]
fn priorities_decide_the_order() {
    let with_priority = |value| [GET, &[("priority", value)]].concat();
    for (name, priorities, expect) in [
        ("as asked", ["u=3", "u=3", "u=3"], "1 1 3 3 5 5"),
        ("by urgency", ["u=5", "u=3", "u=0"], "5 5 3 3 1 1"),
        ("taking turns", ["i", "i", "i"], "1 3 5 1 3 5"),
        ("both kinds", ["u=3", "i", "i"], "1 3 1 5 3 5"),
        ("turns within an urgency", ["u=1", "u=2, i", "u=2, i"], "1 1 3 5 3 5"),
    ] {
        let mut peer = TestPeer::with(H2Limits::default(), &[(INITIAL_WINDOW_SIZE, 1 << 20)]);
        peer.send(&window_update(0, 1 << 20));
        for (stream, priority) in [1, 3, 5].into_iter().zip(priorities) {
            peer.send(&headers(stream, END, &with_priority(priority)));
        }
        [1, 3, 5].into_iter().for_each(|stream| peer.respond_with(stream, 20_000));
        let frames = peer.frames();
        let order: Vec<&str> =
            frames.lines().filter_map(|line| line.strip_prefix("DATA ")?.split(' ').next()).collect();
        assert_eq!(order.join(" "), expect, "{name}");
    }
}

#[test]
fn priorities_may_be_updated_before_and_while() {
    let update =
        |stream: u8, value: &str| frame(kind::PRIORITY_UPDATE, 0, 0, &[&[0, 0, 0, stream], value.as_bytes()].concat());
    let mut peer = TestPeer::with(H2Limits::default(), &[(INITIAL_WINDOW_SIZE, 1 << 20)]);
    peer.send(&[update(5, "u=1"), headers(1, END, GET), headers(3, END, GET), headers(5, END, GET)].concat());
    [1, 3, 5].into_iter().for_each(|stream| peer.respond_with(stream, 10_000));
    assert!(peer.frames_within(10_009).ends_with("DATA 5 10000 end"));
    peer.send(&update(3, "u=2"));
    assert_eq!(peer.frames(), "DATA 3 10000 end\nDATA 1 10000 end");
}

#[test]
fn what_is_taken_may_come_again() {
    let mut peer = TestPeer::new();
    peer.takes = false;
    peer.send(&headers(1, OPEN, POST));
    let content = vec![0; 16_384];
    for _ in 0..3 {
        peer.send(&data(1, 0, &content));
    }
    assert_eq!(peer.frames(), "", "nothing was taken");
    // Time passes, so that windows have no reason to grow.
    peer.wait(Duration::from_secs(1));
    peer.turn(|server, turn| server.take_content(StreamId(1), 3 * 16_384, turn));
    assert_eq!(peer.frames(), "WINDOW_UPDATE 1 49152");
    for _ in 0..4 {
        peer.send(&data(1, 0, &content[..16_383]));
    }
    assert_eq!(peer.send(&data(1, 0, b"1234")), "reset 1 FLOW_CONTROL_ERROR by us");
    // A closed stream returns its share of the connection's window.
    assert_eq!(peer.frames(), "RST_STREAM 1 FLOW_CONTROL_ERROR\nWINDOW_UPDATE 0 114684");
}

#[test]
fn a_fast_peer_gets_larger_windows() {
    let mut peer = TestPeer::new();
    peer.send(&headers(1, OPEN, POST));
    for _ in 0..20 {
        peer.send(&data(1, 0, &[0; 16_384]));
        peer.send(&data(1, 0, &[0; 16_384]));
    }
    let frames = peer.frames();
    let largest = |stream: &str| {
        let increments = frames.lines().filter_map(|line| line.strip_prefix(stream)?.parse::<u32>().ok());
        increments.max().unwrap()
    };
    assert!(largest("WINDOW_UPDATE 1 ") > 500_000, "{frames}");
    assert!(largest("WINDOW_UPDATE 0 ") > 500_000);
    assert!(!frames.contains("GOAWAY"));
}

#[test]
fn padding_counts_and_goes_back_at_once() {
    let mut peer = TestPeer::new();
    peer.takes = false;
    peer.send(&headers(1, OPEN, POST));
    let mut padded = vec![255; 1];
    padded.extend([b'x'; 1]);
    padded.extend([0; 255]);
    for _ in 0..200 {
        peer.now += Duration::from_millis(100);
        assert_eq!(peer.send(&data(1, 8, &padded)), "content 1 x");
    }
    assert_eq!(peer.frames(), "WINDOW_UPDATE 1 32768");
}

#[test]
fn more_than_the_connections_window() {
    let limits = H2Limits { connection_window_bytes: 65_535, ..H2Limits::default() };
    let mut peer = TestPeer::with(limits, &[]);
    peer.takes = false;
    peer.send(&[headers(1, OPEN, POST), headers(3, OPEN, POST)].concat());
    for stream in [1, 3, 1, 3] {
        peer.send(&data(stream, 0, &[0; 16_383]));
    }
    assert_eq!(peer.send(&data(1, 0, &[0; 4])), "closed FLOW_CONTROL_ERROR");
}

#[test]
fn content_beyond_its_limit_is_rejected_while_it_comes() {
    let mut peer = TestPeer::new();
    peer.send(&headers(1, OPEN, POST));
    peer.turn(|server, _| server.set_body_bytes_max(StreamId(1), 10));
    assert_eq!(peer.send(&data(1, 0, b"123456")), "content 1 123456");
    assert_eq!(peer.send(&data(1, 0, b"78901")), "refused 1 413");
    assert_eq!(peer.send(&data(1, 1, b"x")), "");
    peer.respond_with(1, 0);
    assert_eq!(peer.frames(), "HEADERS 1 :status=204 end");
    assert_eq!(peer.server.open_streams(), 0);
}

/// WebSocket and other tunnels: each direction ends on its own and has no limit.
#[test]
fn tunnels_are_closed_by_halves() {
    let mut limits = H2Limits::default();
    limits.body.body_bytes_max = 10;
    let mut peer = TestPeer::with(limits, &[]);
    peer.send(&headers(1, OPEN, &[(":method", "CONNECT"), (":authority", "a:1")]));
    peer.respond_with(1, 5);
    assert_eq!(peer.frames(), "HEADERS 1 :status=204\nDATA 1 5 end");
    peer.wait(Duration::from_secs(60));
    assert_eq!(peer.send(&data(1, 0, b"still listened to")), "content 1 still listened to");
    assert_eq!(peer.send(&data(1, 1, b"end")), "content 1 end end");
    assert_eq!((peer.frames(), peer.server.open_streams()), (String::new(), 0));
}

/// On a slow line the connection's window is nearly always closed, and a response may wait long for others.
#[test]
fn waiting_for_ones_turn_is_not_stalling() {
    let mut peer = TestPeer::with(H2Limits::default(), &[(INITIAL_WINDOW_SIZE, 1 << 20)]);
    peer.send(&[headers(1, END, GET), headers(3, END, GET)].concat());
    peer.respond_with(1, 1 << 20);
    peer.respond_with(3, 1 << 20);
    for _ in 0..10 {
        peer.frames();
        assert_eq!(peer.wait(Duration::from_secs(20)), "");
        peer.send(&window_update(0, 10_000));
    }
    peer.frames();
    assert_eq!(peer.wait(Duration::from_secs(30)).lines().count(), 2, "the client reads no more");
}

proptest! {
    /// Closed streams return their share of the connection's window in every case. Otherwise connections would stall
    /// after some time.
    #[test]
    fn the_connections_window_does_not_leak(
        commands in proptest::collection::vec((0u8..11, 0u32..6, 0usize..400), 1..120),
    ) {
        let mut limits = H2Limits::default();
        limits.body.body_bytes_max = 1000;
        let mut peer = TestPeer::with(limits, &[]);
        peer.takes = false;
        peer.send(&headers(1, OPEN, POST));
        let mut next = 3;
        for (command, index, length) in commands {
            let stream = next - 2 - (2 * index).min(next - 3);
            let padded = [&[7][..], &vec![b'x'; length], &[0; 7]].concat();
            let input = match command {
                0 | 1 => headers(next, OPEN, POST),
                2 => headers(next, OPEN, &[POST, &[("content-length", "300")]].concat()),
                3 => headers(next, OPEN, &[POST, &[("content-length", "5000")]].concat()),
                4 | 5 => data(stream, 0, &vec![b'x'; length]),
                6 => data(stream, 8, &padded),
                7 => data(stream, 9, &padded),
                8 => [data(stream, 0, b"x"), reset(stream)].concat(),
                9 => {
                    peer.respond_with(stream, 0);
                    Vec::new()
                }
                _ => {
                    peer.turn(|server, turn| {
                        server.take_content(StreamId(stream), length, turn);
                        if length > 350 {
                            server.reset(StreamId(stream), ErrorCode::CANCEL, turn);
                        }
                    });
                    Vec::new()
                }
            };
            next += if command < 4 { 2 } else { 0 };
            if peer.send(&input).contains("closed") {
                return Ok(());
            }
            peer.output.clear();
        }
        for stream in (1..next).step_by(2) {
            peer.turn(|server, turn| server.reset(StreamId(stream), ErrorCode::CANCEL, turn));
        }
        prop_assert_eq!((peer.server.open_streams(), peer.server.waiting_bytes()), (0, 0));
    }
}
