//! States of streams and of the connection (RFC 9113, sections 3.4, 5.1, 5.4, 6.8).

use std::time::Duration;

use super::peer::*;
use crate::h2::frame::{PREFACE, kind};
use crate::h2::hpack::PreparedBlock;
use crate::h2::{ErrorCode, H2Limits, H2ServerConnection, StreamId};
use crate::http::{Fields, Status};

#[test]
fn beginnings() {
    let mut unsettled = TestPeer::unsettled(H2Limits::default());
    assert_eq!(unsettled.frames(), "SETTINGS\nWINDOW_UPDATE 0 65535");
    for (name, input, expect) in [
        ("HTTP/1", b"GET / HTTP/1.1\r\n".to_vec(), "closed PROTOCOL_ERROR"),
        ("half a preface", PREFACE[..12].to_vec(), ""),
        ("no SETTINGS", [&PREFACE[..], &frame(6, 0, 0, b"12345678")].concat(), "closed PROTOCOL_ERROR"),
        ("SETTINGS with ACK", [&PREFACE[..], &settings_ack()].concat(), "closed PROTOCOL_ERROR"),
        ("SETTINGS", [&PREFACE[..], &settings(&[])].concat(), ""),
    ] {
        assert_eq!(TestPeer::unsettled(H2Limits::default()).send(&input), expect, "{name}");
    }
}

/// Checks connection errors and stream errors. Stream 1 is open, 3 half-closed by the client, 5 closed by both, 7 reset
/// by the client, 9 reset by the server; 11 was skipped.
#[test]
fn frames_in_all_states() {
    let priority = |stream| frame(kind::PRIORITY, 0, stream, b"\0\0\0\0\0");
    let protocol = "GOAWAY 13 PROTOCOL_ERROR";
    let closed = "GOAWAY 13 STREAM_CLOSED";
    for (input, expect) in [
        (data(3, 0, b"x"), "RST_STREAM 3 STREAM_CLOSED"),
        (headers(3, END, GET), "RST_STREAM 3 STREAM_CLOSED"),
        (data(5, 0, b"x"), closed),
        (headers(5, END, GET), closed),
        (data(7, 0, b"x"), closed),
        (headers(7, END, GET), closed),
        (data(9, 0, b"x"), ""),
        (headers(9, END, GET), ""),
        (headers(11, END, GET), protocol),
        (data(15, 0, b"x"), protocol),
        (reset(15), protocol),
        (window_update(15, 1), protocol),
        (headers(2, END, GET), protocol),
        (data(2, 0, b"x"), protocol),
        (reset(2), protocol),
        (window_update(2, 1), protocol),
        (frame(kind::CONTINUATION, 4, 1, b""), protocol),
        (frame(kind::PUSH_PROMISE, 4, 1, b"\0\0\0\x02"), protocol),
        (settings_ack(), protocol),
        (settings(&[(4, 1 << 31)]), "GOAWAY 13 FLOW_CONTROL_ERROR"),
        (window_update(0, 0), protocol),
        (window_update(1, 0), "RST_STREAM 1 PROTOCOL_ERROR"),
        (window_update(0, 0x7fff_ffff), "GOAWAY 13 FLOW_CONTROL_ERROR"),
        (window_update(1, 0x7fff_ffff), "RST_STREAM 1 FLOW_CONTROL_ERROR"),
        (window_update(5, 1), ""),
        (window_update(9, 0), ""),
        (reset(5), ""),
        (reset(9), ""),
        (reset(1), ""),
        (priority(1), ""),
        (priority(100), ""),
        (frame(kind::PRIORITY, 0, 1, b"\0\0\0\x01\0"), protocol),
        (frame(kind::HEADERS, 0x25, 15, b"\0\0\0\x0f\0\x82\x84\x86\x41\x01a"), "RST_STREAM 15 PROTOCOL_ERROR"),
        (frame(kind::HEADERS, 5, 15, b"\x80"), "GOAWAY 15 COMPRESSION_ERROR"),
        (frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x02u=1"), protocol),
        (frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x11u=1"), ""),
        ([frame(kind::HEADERS, 1, 15, b""), data(1, 0, b"")].concat(), "GOAWAY 15 PROTOCOL_ERROR"),
        ([frame(kind::HEADERS, 1, 15, b""), frame(9, 4, 1, b"")].concat(), "GOAWAY 15 PROTOCOL_ERROR"),
        (frame(0xbe, 0xff, 5, b"?"), ""),
        (settings(&[(4, 70_000), (0x5a5a, 1)]), "SETTINGS ack"),
    ] {
        let mut peer = TestPeer::new();
        let bad = [("Bad", "")];
        peer.send(&[headers(1, OPEN, POST), headers(3, END, GET), headers(5, END, GET), headers(7, END, GET)].concat());
        peer.send(&[headers(9, OPEN, &bad), reset(7), headers(13, END, &bad)].concat());
        peer.respond_with(5, 0);
        peer.frames();
        peer.send(&input);
        assert_eq!(peer.frames(), expect, "{input:x?}");
        let is_closed = expect.starts_with("GOAWAY");
        assert_eq!(peer.server.is_drained(), is_closed);
        let after = peer.send(&headers(17, END, GET));
        assert_eq!(after.starts_with("request 17"), !is_closed, "{input:x?}: {after}");
    }
}

#[test]
fn responses() {
    let mut peer = TestPeer::new();
    peer.send(&[headers(1, OPEN, POST), headers(3, END, GET)].concat());
    let mut fields = Fields::new();
    fields.push("Content-Type", "text/plain").push("Connection", "close");
    let stream = StreamId(1);
    peer.turn(|server, turn| {
        server.send_informational(stream, Status::CONTINUE, &Fields::new(), turn).unwrap();
        server.send_response(stream, Status::OK, &fields, false, turn).unwrap();
        server.offer_content(stream, 3, false, turn).unwrap();
        let mut trailers = Fields::new();
        trailers.push("grpc-status", "0");
        server.send_trailers(stream, trailers, turn).unwrap();
        let block = PreparedBlock::new(Status::NOT_FOUND, &Fields::new());
        server.send_prepared(StreamId(3), &block, b"Sun, 06 Nov 1994 08:49:37 GMT", true, turn, |_| ()).unwrap();
    });
    peer.send(&data(1, 1, b"x"));
    assert_eq!(
        peer.frames(),
        "HEADERS 1 :status=100\n\
         HEADERS 1 :status=200 content-type=text/plain\n\
         HEADERS 3 :status=404 date=Sun, 06 Nov 1994 08:49:37 GMT end\n\
         DATA 1 3\n\
         HEADERS 1 grpc-status=0 end"
    );
    assert_eq!(peer.server.open_streams(), 0);
    let gone = peer.turn(|server, turn| server.offer_content(stream, 1, true, turn));
    assert!(gone.is_err());
}

#[test]
fn an_answered_request_may_go_on_for_a_moment() {
    let mut peer = TestPeer::new();
    peer.send(&headers(1, OPEN, POST));
    peer.respond_with(1, 0);
    assert_eq!(peer.frames(), "HEADERS 1 :status=204 end");
    assert_eq!(peer.send(&data(1, 0, b"no reader")), "");
    let due = peer.server.next_timeout(&peer.limits).unwrap();
    assert_eq!(due, peer.now + peer.limits.linger_timeout);
    assert_eq!(peer.wait(Duration::from_secs(1)), "");
    assert_eq!(peer.frames(), "");
    peer.wait(Duration::from_secs(1));
    assert_eq!(peer.frames(), "RST_STREAM 1 NO_ERROR");
    assert_eq!(peer.send(&data(1, 0, b"on its way")), "");
    assert_eq!(peer.frames(), "");
}

#[test]
fn more_streams_than_allowed() {
    let limits = H2Limits { concurrent_streams_max: 2, ..H2Limits::default() };
    let mut peer = TestPeer::with(limits, &[]);
    peer.send(&[headers(1, OPEN, POST), headers(3, END, GET)].concat());
    assert_eq!(peer.send(&headers(5, END, GET)), "");
    assert_eq!(peer.frames(), "RST_STREAM 5 REFUSED_STREAM");
    // A stream with a complete response makes room while its request lingers.
    peer.respond_with(1, 0);
    assert_eq!(peer.send(&headers(7, END, GET)), "request 7 Get /");
    assert_eq!(peer.frames(), "HEADERS 1 :status=204 end\nRST_STREAM 1 NO_ERROR");
}

#[test]
fn a_graceful_end_in_two_steps() {
    for acknowledges in [true, false] {
        let mut peer = TestPeer::new();
        peer.send(&headers(1, END, GET));
        peer.turn(|server, turn| server.shut_down(turn));
        assert_eq!(peer.frames(), "GOAWAY 2147483647 NO_ERROR\nPING");
        assert_eq!(peer.send(&headers(3, END, GET)), "request 3 Get /", "it was on its way");
        if acknowledges {
            peer.send(&frame(kind::PING, 1, 0, b"shutdown"));
        } else {
            peer.wait(Duration::from_secs(1));
        }
        assert_eq!(peer.frames(), "GOAWAY 3 NO_ERROR");
        assert_eq!(peer.send(&headers(5, END, GET)), "", "too late");
        peer.respond_with(1, 0);
        assert!(!peer.server.is_drained());
        peer.respond_with(3, 0);
        assert!(peer.server.is_drained());
        assert_eq!(peer.frames(), "HEADERS 1 :status=204 end\nHEADERS 3 :status=204 end");
        peer.send(&data(0, 0, b"x"));
        assert_eq!(peer.frames(), "GOAWAY 3 PROTOCOL_ERROR", "no stream is taken back in");
    }
}

#[test]
fn settings_are_to_be_acknowledged_in_time() {
    let mut peer = TestPeer::unsettled(H2Limits::default());
    peer.send(PREFACE);
    assert_eq!(peer.server.next_timeout(&peer.limits), Some(peer.now + Duration::from_secs(10)));
    assert_eq!(peer.wait(Duration::from_secs(10)), "closed SETTINGS_TIMEOUT");
    assert_eq!(peer.frames().lines().last(), Some("GOAWAY 0 SETTINGS_TIMEOUT"));
}

#[test]
fn a_stream_reset_by_the_caller() {
    let mut peer = TestPeer::new();
    peer.send(&headers(1, END, GET));
    peer.respond(StreamId(1), false);
    peer.turn(|server, turn| {
        let _ = server.offer_content(StreamId(1), 1000, false, turn);
        server.reset(StreamId(1), ErrorCode::INTERNAL_ERROR, turn);
    });
    assert_eq!(peer.frames(), "HEADERS 1 :status=204\nRST_STREAM 1 INTERNAL_ERROR");
}

/// An upload continues for a while after its reset, while many other streams open and close.
#[test]
fn a_reset_stream_is_remembered_longer_than_others() {
    let mut peer = TestPeer::new();
    peer.answers = true;
    peer.send(&headers(1, OPEN, POST));
    peer.turn(|server, turn| server.reset(StreamId(1), ErrorCode::INTERNAL_ERROR, turn));
    for stream in (3..).step_by(2).take(1000) {
        assert!(peer.send(&headers(stream, END, GET)).starts_with("request"));
        peer.frames();
    }
    assert_eq!(peer.send(&data(1, 0, b"x")), "");
    assert_eq!(peer.send(&data(3, 0, b"x")), "", "too long ago to be judged");
    assert_eq!(peer.frames(), "");
    assert_eq!(peer.send(&data(2001, 0, b"x")), "closed STREAM_CLOSED");
}

/// A server has thousands of idle connections.
#[test]
fn an_idle_connection_is_small() {
    assert!(size_of::<H2ServerConnection>() <= 1024, "{} bytes", size_of::<H2ServerConnection>());
}
