//! The client role.

use super::peer::*;
use crate::h3::frame::kind;
use crate::h3::{H3Client, H3Limits, H3PreparedRequest, H3Server, H3StreamId, OutgoingRequest};
use crate::http::Fields;
use crate::qpack::DecoderLimits;

type Client = TestPeer<H3Client>;

fn request(method: &'static [u8]) -> OutgoingRequest<'static> {
    let is_connect = method == b"CONNECT";
    OutgoingRequest {
        method,
        scheme: (!is_connect).then_some(b"https"),
        authority: Some(b"a:1"),
        path: (!is_connect).then_some(b"/"),
        protocol: None,
    }
}

/// Sends a request without content. Returns its frames.
fn ask(peer: &mut Client, stream: u64, method: &'static [u8]) -> Option<Vec<u8>> {
    let (mut out, fields, is_last) = (Vec::new(), Fields::new(), method != b"CONNECT");
    let stream = H3StreamId(stream);
    let is_sent =
        peer.turn(|client, turn| client.send_request(stream, &request(method), &fields, is_last, &mut out, turn));
    is_sent.then_some(out)
}

#[test]
fn requests() {
    let mut peer = Client::new();
    let out = ask(&mut peer, 0, b"GET").unwrap();
    assert_eq!(frames(&out), [(kind::HEADERS, b"\0\0\xd1\xd7\x50\x03a:1\xc1".to_vec())]);
    let mut prepared_out = Vec::new();
    let prepared = H3PreparedRequest::new(&request(b"GET"), &Fields::new());
    let is_sent =
        peer.turn(|client, turn| client.send_prepared_request(H3StreamId(4), &prepared, true, &mut prepared_out, turn));
    assert!(is_sent);
    assert_eq!(prepared_out, out);
}

#[test]
fn responses() {
    let ok = || headers(&[(":status", "200")]);
    let length = |length| headers(&[(":status", "200"), ("content-length", length)]);
    let interim = || headers(&[(":status", "103")]);
    for (name, method, input, expect) in [
        ("head", &b"GET"[..], ok(), "response 0 200 0"),
        (
            "interim",
            b"GET",
            [interim(), interim(), ok()].concat(),
            "response 0 103 0\nresponse 0 103 0\nresponse 0 200 0",
        ),
        ("content", b"GET", [length("2"), data(b"ab")].concat(), "response 0 200 1\ncontent 0 ab end"),
        (
            "trailers",
            b"GET",
            [ok(), data(b"ab"), headers(&[("x", "y")])].concat(),
            "response 0 200 0\ncontent 0 ab\ntrailers 0 x=y",
        ),
        ("HEAD", b"HEAD", length("2"), "response 0 200 1"),
        (
            "HEAD with content",
            b"HEAD",
            [length("2"), data(b"ab")].concat(),
            "response 0 200 1\nreset 0 H3_MESSAGE_ERROR",
        ),
        ("tunnel", b"CONNECT", [ok(), data(b"ab")].concat(), "response 0 200 0\ncontent 0 ab end"),
        (
            "tunnel with trailers",
            b"CONNECT",
            [ok(), headers(&[])].concat(),
            "response 0 200 0\nclosed H3_FRAME_UNEXPECTED",
        ),
        (
            "failed CONNECT",
            b"CONNECT",
            [headers(&[(":status", "403")]), headers(&[])].concat(),
            "response 0 403 0\ntrailers 0",
        ),
        ("nothing", b"GET", vec![], "reset 0 H3_MESSAGE_ERROR"),
        ("only interim", b"GET", interim(), "reset 0 H3_MESSAGE_ERROR"),
        (
            "content after interim",
            b"GET",
            [interim(), data(b"")].concat(),
            "response 0 103 0\nclosed H3_FRAME_UNEXPECTED",
        ),
        ("less content", b"GET", [length("3"), data(b"ab")].concat(), "response 0 200 1\nreset 0 H3_MESSAGE_ERROR"),
        ("no content", b"GET", length("3"), "reset 0 H3_MESSAGE_ERROR"),
        ("no status", b"GET", headers(&[("x", "y")]), "reset 0 H3_MESSAGE_ERROR"),
        ("status 101", b"GET", headers(&[(":status", "101")]), "reset 0 H3_MESSAGE_ERROR"),
        ("two statuses", b"GET", headers(&[(":status", "200"), (":status", "200")]), "reset 0 H3_MESSAGE_ERROR"),
        ("a request", b"GET", headers(GET), "reset 0 H3_MESSAGE_ERROR"),
        ("a long head", b"GET", numbers(&[kind::HEADERS, 40_000]), "reset 0 H3_MESSAGE_ERROR"),
        ("a push", b"GET", frame(kind::PUSH_PROMISE, b"\0\0\0"), "closed H3_ID_ERROR"),
        ("SETTINGS", b"GET", settings(&[]), "closed H3_FRAME_UNEXPECTED"),
    ] {
        let mut peer = Client::new();
        assert!(ask(&mut peer, 0, method).is_some());
        assert_eq!(peer.end(0, &input), expect, "{name}");
    }
}

#[test]
fn content_beyond_its_limit() {
    let mut limits = H3Limits::default();
    limits.body.body_bytes_max = 3;
    let mut peer = Client::with(limits, &[]);
    ask(&mut peer, 0, b"GET").unwrap();
    let events = peer.send(0, &[headers(&[(":status", "200")]), data(b"abcd")].concat());
    assert_eq!(events, "response 0 200 0\nreset 0 H3_REQUEST_CANCELLED");
}

#[test]
fn go_away_closes_streams_that_are_not_handled() {
    let mut peer = Client::new();
    for stream in [0, 4, 8] {
        assert!(ask(&mut peer, stream, b"GET").is_some());
    }
    assert_eq!(peer.send(CONTROL + 1, &frame(kind::GOAWAY, &[4])), "go away 4");
    assert_eq!(peer.connection.open_streams(), 1);
    assert!(ask(&mut peer, 12, b"GET").is_none());
    assert!(!peer.connection.is_drained());
    assert_eq!(peer.end(0, &headers(&[(":status", "200")])), "response 0 200 0");
    assert!(peer.connection.is_drained());
    peer.output.control.clear();
    peer.turn(|client, turn| client.shut_down(turn));
    assert_eq!(frames(&peer.output.control), [(kind::GOAWAY, vec![0])]);
}

/// RFC 9114, section 4.1: a server may respond without the rest of the request.
#[test]
fn a_response_may_come_before_the_request_is_sent() {
    let mut peer = Client::new();
    ask(&mut peer, 0, b"CONNECT").unwrap();
    assert_eq!(peer.stop_sending(0), "stop 0 H3_REQUEST_CANCELLED");
    let stream = H3StreamId(0);
    let sent = peer.turn(|client, _| client.send_data_header(stream, 1, false, &mut Vec::new()));
    assert!(sent.is_err());
    assert_eq!(peer.end(0, &headers(&[(":status", "403")])), "response 0 403 0");
    assert_eq!(peer.connection.open_streams(), 0);
    ask(&mut peer, 4, b"GET").unwrap();
    assert_eq!(peer.reset(4), "reset 4 H3_REQUEST_CANCELLED by peer");
}

/// A client and a server with dynamic tables: what repeats is sent as an index, and acknowledged.
#[test]
fn requests_with_a_dynamic_table() {
    let decoder = DecoderLimits { table_bytes_max: 4096, blocked_streams_max: 4 };
    let mut server = TestPeer::<H3Server>::with(H3Limits { decoder, ..H3Limits::default() }, &[]);
    let mut client = Client::unsettled(H3Limits { encoder_table_bytes_max: 4096, ..H3Limits::default() });
    assert_eq!(client.output.encoder, b"", "the server's settings have not arrived");
    assert_eq!(client.send(CONTROL + 1, &std::mem::take(&mut server.output.control)), "");
    assert_eq!(client.output.encoder, b"\x02\x3f\xe1\x1f", "the type, and the capacity");
    let (mut fields, mut lengths) = (Fields::new(), Vec::new());
    fields.push("User-Agent", "some client or other").push("X-Unknown", "1234567890");
    for stream in [0, 4, 8] {
        let mut out = Vec::new();
        let id = H3StreamId(stream);
        let request = request(b"GET");
        assert!(client.turn(|client, turn| client.send_request(id, &request, &fields, true, &mut out, turn)));
        lengths.push(frames(&out)[0].1.len());
        if stream == 0 {
            assert_eq!(server.end(stream, &out), "blocked", "the instructions are late");
            let events = server.send(ENCODER, &std::mem::take(&mut client.output.encoder));
            assert_eq!(events, "request 0 Get /");
        } else {
            assert_eq!(server.end(stream, &out), format!("request {stream} Get /"));
            assert_eq!(client.output.encoder, b"", "nothing new");
        }
        // The type is sent once; each section is acknowledged.
        assert_eq!(client.send(DECODER + 1, &std::mem::take(&mut server.output.decoder)), "");
        assert_eq!(client.end(stream, &headers(&[(":status", "204")])), format!("response {stream} 204 0"));
    }
    assert_eq!(lengths, [8, 8, 8], "a prefix of two bytes, and an index for each field");
    assert_eq!((client.connection.open_streams(), server.connection.open_streams()), (0, 3));
}
