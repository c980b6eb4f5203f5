//! Known attacks: each ends in the right GOAWAY or RST_STREAM once its budget is used up.

use std::time::Duration;

use super::peer::*;
use crate::h2::frame::kind;
use crate::h2::{BudgetLimit, H2Limits, StreamId};

/// Sends `attack(0)`, `attack(1)`, … until the connection closes. Returns the number of calls, and the last frame sent.
fn flood(peer: &mut TestPeer, mut attack: impl FnMut(u32) -> Vec<u8>) -> (u32, String) {
    for count in 0..100_000 {
        let events = peer.send(&attack(count));
        let frames = peer.frames();
        assert!(peer.server.open_streams() <= peer.limits.concurrent_streams_max as usize);
        if events.contains("closed") {
            return (count, frames.lines().last().unwrap_or_default().to_owned());
        }
    }
    panic!("no limit stops it");
}

/// Checks that the attack ends exactly when its budget is used up.
fn check(name: &str, budget: impl Fn(&mut H2Limits) -> &mut BudgetLimit, attack: impl Fn(u32) -> Vec<u8>) {
    let mut limits = H2Limits::default();
    *budget(&mut limits) = BudgetLimit { burst: 10, per_second: 5 };
    let mut peer = TestPeer::with(limits, &[]);
    peer.send(&headers(1, END, GET));
    let spent_before = u32::from(name.contains("SETTINGS"));
    let (count, last) = flood(&mut peer, &attack);
    assert_eq!(count, 10 - spent_before, "{name}");
    assert!(last.starts_with("GOAWAY ") && last.ends_with(" ENHANCE_YOUR_CALM"), "{name}: {last}");
    // Within the budget it may continue indefinitely.
    let mut peer = TestPeer::with(limits, &[]);
    peer.send(&headers(1, END, GET));
    for count in 0..500 {
        peer.now += Duration::from_millis(250);
        assert!(!peer.send(&attack(count)).contains("closed"), "{name}: the {count}th in time");
        peer.output.clear();
    }
}

#[test]
fn rapid_reset_cve_2023_44487() {
    check(
        "rapid reset",
        |limits| &mut limits.peer_resets,
        |count| {
            let stream = 3 + 2 * count;
            [headers(stream, END, GET), reset(stream)].concat()
        },
    );
}

/// The client makes the server reset streams, by errors of all kinds.
#[test]
fn made_you_reset_cve_2025_8671() {
    let faults: [fn(u32) -> Vec<u8>; 5] = [
        |stream| [headers(stream, END, GET), window_update(stream, 0)].concat(),
        |stream| [headers(stream, END, GET), window_update(stream, 0x7fff_ffff)].concat(),
        |stream| [headers(stream, END, GET), data(stream, 0, b"x")].concat(),
        |stream| [headers(stream, END, GET), headers(stream, END, GET)].concat(),
        |stream| headers(stream, END, &[("x", "y")]),
    ];
    for fault in faults {
        check("MadeYouReset", |limits| &mut limits.stream_faults, |count| fault(3 + 2 * count));
    }
}

#[test]
fn continuation_flood_cve_2024_27316() {
    let mut peer = TestPeer::new();
    let (count, last) = flood(&mut peer, |count| match count {
        0 => frame(kind::HEADERS, 1, 1, &block(GET)),
        _ => frame(kind::CONTINUATION, 0, 1, &block(&[("x", "y")])),
    });
    assert_eq!((count, &last[..]), (17, "GOAWAY 1 ENHANCE_YOUR_CALM"));
    let mut peer = TestPeer::new();
    let (count, last) = flood(&mut peer, |count| match count {
        0 => frame(kind::HEADERS, 1, 1, &[0; 16_384]),
        _ => frame(kind::CONTINUATION, 0, 1, &[0; 16_384]),
    });
    assert_eq!((count, &last[..]), (2, "GOAWAY 1 ENHANCE_YOUR_CALM"), "32 KiB and no more are kept");
}

#[test]
fn settings_flood_cve_2019_9515() {
    check("SETTINGS flood", |limits| &mut limits.settings, |_| settings(&[(3, 100)]));
}

#[test]
fn ping_flood_cve_2019_9512() {
    check("PING flood", |limits| &mut limits.pings, |_| frame(kind::PING, 0, 0, b"12345678"));
}

#[test]
fn empty_frames_cve_2019_9518() {
    let limits = H2Limits { idle_frames: BudgetLimit { burst: 10, per_second: 5 }, ..H2Limits::default() };
    let mut peer = TestPeer::with(limits, &[]);
    peer.send(&headers(1, OPEN, POST));
    let (count, last) = flood(&mut peer, |_| data(1, 0, b""));
    assert_eq!((count, &last[..]), (10, "GOAWAY 1 ENHANCE_YOUR_CALM"));
    let mut peer = TestPeer::with(limits, &[]);
    let (count, _) = flood(&mut peer, |count| match count {
        0 => frame(kind::HEADERS, 1, 1, b""),
        _ => frame(kind::CONTINUATION, 0, 1, b""),
    });
    assert_eq!(count, 10);
}

#[test]
fn frames_that_say_nothing() {
    let frames: [fn(u32) -> Vec<u8>; 3] = [
        |_| frame(0xbe, 0, 0, b"unknown"),
        |_| frame(kind::PING, 1, 0, b"unasked!"),
        |_| frame(kind::GOAWAY, 0, 0, &[0; 8]),
    ];
    for frame in frames {
        check("idle frames", |limits| &mut limits.idle_frames, frame);
    }
}

#[test]
fn priority_flood_and_dependency_nonsense_cve_2019_9513() {
    check(
        "PRIORITY",
        |limits| &mut limits.priorities,
        |count| {
            // Each stream depends on the next one, in a circle.
            let (stream, dependency) = (1 + 2 * (count % 50), 1 + 2 * ((count + 1) % 50));
            frame(kind::PRIORITY, 0, stream, &[&dependency.to_be_bytes()[..], &[255]].concat())
        },
    );
    check(
        "PRIORITY_UPDATE",
        |limits| &mut limits.priorities,
        |count| {
            let stream = (1001 + 2 * count).to_be_bytes();
            frame(kind::PRIORITY_UPDATE, 0, 0, &[&stream[..], b"u=0"].concat())
        },
    );
}

#[test]
fn window_update_flood() {
    check("WINDOW_UPDATE", |limits| &mut limits.window_updates, |_| window_update(0, 1));
}

/// The client opens its window one byte at a time, so that each byte needs a frame.
#[test]
fn data_dribble_cve_2019_9511() {
    let limits = H2Limits { window_updates: BudgetLimit { burst: 10, per_second: 5 }, ..H2Limits::default() };
    let mut peer = TestPeer::with(limits, &[(4, 0)]);
    peer.send(&headers(1, END, GET));
    peer.respond_with(1, 1 << 20);
    let (count, last) = flood(&mut peer, |_| window_update(1, 1));
    assert_eq!((count, &last[..]), (10, "GOAWAY 1 ENHANCE_YOUR_CALM"));
    // Small messages make small frames. For each a peer may update both windows and send a PING.
    let mut peer = TestPeer::with(limits, &[]);
    peer.send(&headers(1, END, GET));
    peer.respond(StreamId(1), false);
    for _ in 0..500 {
        let offered = peer.turn(|server, turn| server.offer_content(StreamId(1), 10, false, turn));
        assert!(offered.is_ok() && peer.frames().contains("DATA 1 10"));
        let ping = frame(kind::PING, 0, 0, b"12345678");
        assert_eq!(peer.send(&[window_update(1, 10), window_update(0, 10), ping].concat()), "");
    }
    // A client that receives real content may update both windows for each frame.
    let mut peer = TestPeer::with(limits, &[(4, 0)]);
    peer.send(&headers(1, END, GET));
    peer.respond_with(1, 10 << 20);
    for _ in 0..500 {
        let update = [window_update(1, 2000), window_update(0, 2000)].concat();
        assert_eq!(peer.send(&update), "");
        assert!(peer.frames().contains("DATA 1 2000"));
    }
}

#[test]
fn slow_read_cve_2016_1546() {
    let mut peer = TestPeer::with(H2Limits::default(), &[(4, 0)]);
    peer.send(&[headers(1, END, GET), headers(3, END, GET)].concat());
    peer.respond_with(1, 100);
    peer.wait(Duration::from_secs(10));
    peer.respond_with(3, 100);
    peer.frames();
    assert_eq!(peer.server.next_timeout(&peer.limits), Some(peer.now + Duration::from_secs(20)));
    assert_eq!(peer.wait(Duration::from_secs(20)), "reset 1 ENHANCE_YOUR_CALM by us");
    peer.send(&window_update(3, 1));
    assert_eq!(peer.frames(), "RST_STREAM 1 ENHANCE_YOUR_CALM\nDATA 3 1");
    assert_eq!(peer.wait(Duration::from_secs(29)), "", "it has gone on a moment ago");
    assert_eq!(peer.wait(Duration::from_secs(1)), "reset 3 ENHANCE_YOUR_CALM by us");
}

/// A client that sends requests and does not read: input waits until the output is sent, so memory stays bounded.
#[test]
fn who_does_not_read_is_not_read_from() {
    let limits = H2Limits {
        pings: BudgetLimit { burst: u32::MAX, per_second: 0 },
        output_bytes_max: 4096,
        ..H2Limits::default()
    };
    let mut peer = TestPeer::with(limits, &[]);
    let pings = frame(kind::PING, 0, 0, b"12345678").repeat(1000);
    assert_eq!(peer.send(&pings), "await output");
    let first = peer.frames().lines().count();
    assert_eq!(first, 4096_usize.div_ceil(17));
    assert_eq!(peer.send(b""), "await output");
    let mut answers = first;
    loop {
        let frames = peer.frames().lines().count();
        if frames == 0 {
            break;
        }
        answers += frames;
        peer.send(b"");
    }
    assert_eq!(answers, 1000);
}

/// A few bytes that decode to megabytes; see also the tests of `hpack`.
#[test]
fn hpack_bomb_cve_2016_6581() {
    let mut bomb = block(GET);
    bomb.extend(b"\x40\x01a\x7f\x81\x1e");
    bomb.extend([b'x'; 4000 - 32]);
    bomb.extend([0xbe; 10_000]);
    let mut peer = TestPeer::new();
    assert_eq!(peer.send(&frame(kind::HEADERS, END, 1, &bomb)), "refused 1 431");
    assert!(peer.text.capacity() < 64 << 10);
    assert_eq!(peer.send(&headers(3, END, GET)), "request 3 Get /", "tables are still the same");
}

#[test]
fn many_streams_at_once() {
    let mut peer = TestPeer::new();
    for stream in (1..).step_by(2).take(128) {
        assert!(peer.send(&headers(stream, END, GET)).starts_with("request"));
    }
    for stream in (257..).step_by(2).take(200) {
        assert_eq!(peer.send(&headers(stream, END, GET)), "");
        assert_eq!(peer.frames(), format!("RST_STREAM {stream} REFUSED_STREAM"));
    }
    assert_eq!(peer.send(&headers(1001, END, GET)), "closed ENHANCE_YOUR_CALM");
}

/// The server must handle each DATA frame on a stream that it has reset, and each used to earn a PING.
#[test]
fn data_after_our_reset() {
    const IDLE: BudgetLimit = BudgetLimit { burst: 10, per_second: 0 };
    const WINDOW: usize = 65_535;
    let limits = H2Limits { idle_frames: IDLE, pings: BudgetLimit { burst: 10, per_second: 0 }, ..H2Limits::default() };
    let reset_upload = || {
        let mut peer = TestPeer::with(limits, &[]);
        peer.send(&headers(1, OPEN, POST));
        peer.turn(|server, turn| server.reset(StreamId(1), crate::h2::ErrorCode::CANCEL, turn));
        peer.frames();
        peer
    };
    // A window of content was in flight, in frames of any size. The connection of an honest client stays open.
    for frame_bytes in [16_384, 1_000, 100, 9] {
        let mut peer = reset_upload();
        let mut rest = WINDOW;
        while rest > 0 {
            let now = rest.min(frame_bytes);
            assert_eq!(peer.send(&data(1, 0, &vec![b'x'; now])), "", "frames of {frame_bytes} bytes");
            rest -= now;
        }
        peer.frames();
        assert_eq!(peer.send(&headers(3, END, GET)), "request 3 Get /");
    }
    // A client that continues knows of the reset.
    for frame_bytes in [16_384, 1] {
        let mut peer = reset_upload();
        let (count, last) = flood(&mut peer, |_| data(1, 0, &vec![b'x'; frame_bytes]));
        let in_flight = 2 * WINDOW / (frame_bytes + 9);
        assert_eq!((count as usize, &last[..]), (in_flight + 10, "GOAWAY 1 ENHANCE_YOUR_CALM"), "{frame_bytes}");
    }
    // Late content earns no PING.
    let mut peer = reset_upload();
    let (count, last) = flood(&mut peer, |_| [data(1, 0, b"x"), frame(kind::PING, 0, 0, b"12345678")].concat());
    assert_eq!((count, &last[..]), (10, "GOAWAY 1 ENHANCE_YOUR_CALM"));
}

/// Each reset permits more late content, but never more than the connection's window.
#[test]
fn many_resets_let_no_more_come_than_the_window() {
    let idle_frames = BudgetLimit { burst: 10, per_second: 0 };
    let mut peer = TestPeer::with(H2Limits { idle_frames, ..H2Limits::default() }, &[]);
    for stream in (1..).step_by(2).take(100) {
        peer.send(&headers(stream, OPEN, POST));
        peer.turn(|server, turn| server.reset(StreamId(stream), crate::h2::ErrorCode::CANCEL, turn));
    }
    let (count, _) = flood(&mut peer, |_| data(199, 0, &[b'x'; 991]));
    assert_eq!(count as usize, 2 * 2 * 65_535 / 1_000 + 10);
}

/// A connection that holds too much has new streams rejected. If its client ignores this, the connection is closed.
#[test]
fn streams_are_rejected_while_too_much_is_held() {
    let stream_faults = BudgetLimit { burst: 10, per_second: 0 };
    let mut peer = TestPeer::with(H2Limits { stream_faults, ..H2Limits::default() }, &[]);
    assert_eq!(peer.send(&headers(1, END, GET)), "request 1 Get /");
    peer.server.refuse_streams(true);
    assert_eq!(peer.send(&headers(3, END, GET)), "");
    assert_eq!(peer.frames(), "RST_STREAM 3 REFUSED_STREAM");
    peer.server.refuse_streams(false);
    assert_eq!(peer.send(&headers(5, END, GET)), "request 5 Get /");
    peer.server.refuse_streams(true);
    let (count, last) = flood(&mut peer, |count| headers(7 + 2 * count, END, GET));
    assert_eq!((count, last.ends_with("ENHANCE_YOUR_CALM")), (9, true));
}
