//! Requests: order of frames, heads, content, trailers (RFC 9114, sections 4.1 to 4.4; RFC 9220), and responses.

use super::peer::*;
use crate::h3::frame::kind;
use crate::h3::{H3Limits, H3Server, H3StreamGone, H3StreamId};
use crate::http::{Fields, Status};
use crate::qpack::{DecoderLimits, PreparedSection, QpackEncoder};

type Server = TestPeer<H3Server>;

fn with<'a>(fields: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [fields, more].concat()
}

#[test]
fn order_of_frames() {
    let trailers = || headers(&[("x", "y")]);
    let grease = || frame(0x1f * 7 + 0x21, b"grease");
    let post = || headers(POST);
    for (name, frames, ends, expect) in [
        ("head", vec![headers(GET)], true, "request 0 Get /"),
        ("head, then the end", vec![headers(GET), vec![]], true, "request 0 Get /\ncontent 0  end"),
        ("content", vec![post(), data(b"ab"), data(b"c")], true, "request 0 Post /\ncontent 0 ab\ncontent 0 c end"),
        ("trailers", vec![post(), data(b"ab"), trailers()], true, "request 0 Post /\ncontent 0 ab\ntrailers 0 x=y"),
        ("only trailers", vec![post(), trailers()], true, "request 0 Post /\ntrailers 0 x=y"),
        (
            "GREASE",
            vec![grease(), post(), grease(), data(b"a"), grease(), trailers(), grease()],
            true,
            "request 0 Post /\ncontent 0 a\ntrailers 0 x=y",
        ),
        (
            "empty DATA",
            vec![post(), data(b""), data(b"a"), data(b"")],
            true,
            "request 0 Post /\ncontent 0 a\ncontent 0  end",
        ),
        ("nothing", vec![], true, "reset 0 H3_REQUEST_INCOMPLETE"),
        ("only GREASE", vec![grease()], true, "reset 0 H3_REQUEST_INCOMPLETE"),
        ("DATA first", vec![data(b"a")], false, "closed H3_FRAME_UNEXPECTED"),
        ("DATA after trailers", vec![post(), trailers(), data(b"")], false, "closed H3_FRAME_UNEXPECTED"),
        ("a third section", vec![post(), trailers(), trailers()], false, "closed H3_FRAME_UNEXPECTED"),
        ("SETTINGS", vec![settings(&[])], false, "closed H3_FRAME_UNEXPECTED"),
        ("GOAWAY", vec![frame(kind::GOAWAY, b"\0")], false, "closed H3_FRAME_UNEXPECTED"),
        ("CANCEL_PUSH", vec![frame(kind::CANCEL_PUSH, b"\0")], false, "closed H3_FRAME_UNEXPECTED"),
        ("MAX_PUSH_ID", vec![frame(kind::MAX_PUSH_ID, b"\0")], false, "closed H3_FRAME_UNEXPECTED"),
        ("PUSH_PROMISE", vec![frame(kind::PUSH_PROMISE, b"\0\0\0")], false, "closed H3_FRAME_UNEXPECTED"),
        ("PRIORITY_UPDATE", vec![frame(kind::PRIORITY_UPDATE, b"\0")], false, "closed H3_FRAME_UNEXPECTED"),
        ("PRIORITY of HTTP/2", vec![frame(2, b"")], false, "closed H3_FRAME_UNEXPECTED"),
        ("PING of HTTP/2", vec![post(), frame(6, b"")], false, "closed H3_FRAME_UNEXPECTED"),
        ("WINDOW_UPDATE of HTTP/2", vec![post(), frame(8, b"")], false, "closed H3_FRAME_UNEXPECTED"),
        ("CONTINUATION of HTTP/2", vec![post(), frame(9, b"")], false, "closed H3_FRAME_UNEXPECTED"),
        ("a large unknown frame", vec![numbers(&[0x21, (64 << 10) + 1])], false, "closed H3_EXCESSIVE_LOAD"),
        ("half a type", vec![post(), vec![0x40]], true, "closed H3_FRAME_ERROR"),
        ("half a head", vec![headers(GET)[..9].to_vec()], true, "closed H3_FRAME_ERROR"),
        ("half a DATA frame", vec![post(), data(b"ab")[..3].to_vec()], true, "closed H3_FRAME_ERROR"),
        ("half a GREASE frame", vec![post(), grease()[..5].to_vec()], true, "closed H3_FRAME_ERROR"),
    ] {
        let mut peer = Server::new();
        let mut lines = Vec::new();
        for (index, bytes) in frames.iter().enumerate() {
            let is_end = ends && index + 1 == frames.len();
            lines.push(if is_end { peer.end(0, bytes) } else { peer.send(0, bytes) });
        }
        if frames.is_empty() {
            lines.push(peer.end(0, b""));
        }
        lines.retain(|line| !line.is_empty());
        let lines = lines.join("\n");
        assert!(lines == expect || expect.starts_with("closed") && lines.ends_with(expect), "{name}: {lines}");
    }
}

/// Events do not depend on how the input is split, except for the pieces of content and where the end is known.
#[test]
fn in_pieces_of_any_size() {
    let input = [
        frame(0x21, b"grease"),
        headers(&with(POST, &[("content-length", "11")])),
        data(b"content"),
        data(b""),
        frame(0x40, b"grease"),
        data(b"more"),
        headers(&[("x", "y")]),
        frame(0x21, b""),
    ]
    .concat();
    for step in [1, 2, 3, 7, 20, input.len()] {
        let (mut peer, mut events, mut content) = (Server::new(), String::new(), String::new());
        for piece in input.chunks(step) {
            for line in peer.send(0, piece).lines() {
                match line.strip_prefix("content 0 ") {
                    Some(piece) => content.push_str(piece),
                    None => events = events + line + "\n",
                }
            }
        }
        assert_eq!(peer.end(0, b""), "");
        assert_eq!((&events[..], &content[..]), ("request 0 Post /\ntrailers 0 x=y\n", "contentmore"), "{step}");
    }
}

/// The rules are those of HTTP/2, whose tests have all of them.
#[test]
fn heads() {
    let connect = [(":method", "CONNECT"), (":authority", "a:443")];
    let websocket = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat"),
        (":authority", "a"),
    ];
    let long_path = format!("/{}", "x".repeat(8192));
    let long_value = "x".repeat(16_300);
    let path = |path| vec![(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", path)];
    for (fields, expect) in [
        (GET.to_vec(), "request 0 Get /"),
        (connect.to_vec(), "request 0 Connect a:443"),
        (websocket.to_vec(), "request 0 Connect /chat"),
        (with(GET, &[("te", "trailers"), ("host", "A")]), "request 0 Get /"),
        (with(GET, &[("content-length", "0")]), "request 0 Get /"),
        (with(GET, &[("Accept", "*/*")]), "reset 0 H3_MESSAGE_ERROR"),
        (with(GET, &[("connection", "close")]), "reset 0 H3_MESSAGE_ERROR"),
        (with(GET, &[("transfer-encoding", "chunked")]), "reset 0 H3_MESSAGE_ERROR"),
        (with(GET, &[("te", "gzip")]), "reset 0 H3_MESSAGE_ERROR"),
        (with(GET, &[("x", "a\r\nb: c")]), "reset 0 H3_MESSAGE_ERROR"),
        (with(GET, &[("", "x")]), "reset 0 H3_MESSAGE_ERROR"),
        (with(GET, &[("host", "b")]), "reset 0 H3_MESSAGE_ERROR"),
        (with(GET, &[(":status", "200")]), "reset 0 H3_MESSAGE_ERROR"),
        (with(GET, &[(":path", "/")]), "reset 0 H3_MESSAGE_ERROR"),
        (with(&[("accept", "*/*")], GET), "reset 0 H3_MESSAGE_ERROR"),
        (with(GET, &[("content-length", "1")]), "reset 0 H3_MESSAGE_ERROR"),
        (GET[1..].to_vec(), "reset 0 H3_MESSAGE_ERROR"),
        (vec![(":method", "CONNECT")], "reset 0 H3_MESSAGE_ERROR"),
        (with(&GET[..2], &[(":path", "/")]), "rejected 0 400"),
        (path("relative"), "rejected 0 400"),
        (path(&long_path), "rejected 0 414"),
        (with(GET, &[("x", &long_value)]), "rejected 0 431"),
        (with(GET, &[("a", "")].repeat(101)), "rejected 0 431"),
        (with(GET, &[("expect", "tea")]), "rejected 0 417"),
    ] {
        let limits = H3Limits { enables_connect_protocol: true, ..H3Limits::default() };
        let mut peer = Server::with(limits, &[]);
        assert_eq!(peer.end(0, &headers(&fields)), expect, "{:?}", &fields[..4.min(fields.len())]);
        assert_eq!(peer.end(4, &headers(GET)), "request 4 Get /", "the connection continues");
    }
    assert_eq!(Server::new().end(0, &headers(&websocket)), "reset 0 H3_MESSAGE_ERROR", "not offered");
}

#[test]
fn content_agrees_with_its_length() {
    let length = |length| headers(&with(POST, &[("content-length", length)]));
    for (name, head, rest, expect) in [
        ("as much", length("3"), data(b"abc"), "content 0 abc end"),
        ("none", length("0"), vec![], "content 0  end"),
        ("more", length("1"), data(b"ab"), "reset 0 H3_MESSAGE_ERROR"),
        (
            "more in two frames",
            length("3"),
            [data(b"ab"), data(b"cd")].concat(),
            "content 0 ab\nreset 0 H3_MESSAGE_ERROR",
        ),
        ("less", length("3"), data(b"ab"), "reset 0 H3_MESSAGE_ERROR"),
        ("less, and nothing", length("3"), vec![], "reset 0 H3_MESSAGE_ERROR"),
        (
            "less, then trailers",
            length("3"),
            [data(b"ab"), headers(&[])].concat(),
            "content 0 ab\nreset 0 H3_MESSAGE_ERROR",
        ),
        ("a pseudo-field in trailers", headers(POST), headers(&[(":path", "/")]), "reset 0 H3_MESSAGE_ERROR"),
    ] {
        let mut peer = Server::new();
        assert_eq!(peer.send(0, &head), "request 0 Post /");
        assert_eq!(peer.end(0, &rest), expect, "{name}");
    }
}

#[test]
fn rejected_content_is_dropped() {
    let limits =
        H3Limits { body: crate::h1::BodyLimits { body_bytes_max: 3, ..Default::default() }, ..H3Limits::default() };
    let mut peer = Server::with(limits, &[]);
    assert_eq!(
        peer.send(0, &[headers(POST), data(b"ab"), data(b"cd")].concat()),
        "request 0 Post /\ncontent 0 ab\nrejected 0 413"
    );
    assert_eq!(peer.end(0, &[data(b"more"), headers(&[("x", "y")])].concat()), "");
    assert_eq!(peer.send(4, &headers(&with(POST, &[("content-length", "4")]))), "rejected 4 413");
    assert_eq!(peer.end(4, &data(b"abcd")), "");
    // A section that is too long is not kept, whatever it holds.
    let mut long = numbers(&[kind::HEADERS, 40_000]);
    assert_eq!(peer.send(8, &long), "rejected 8 431");
    long = vec![0; 40_000];
    assert_eq!(peer.end(8, &[&long[..], &data(b"x"), &headers(POST)].concat()), "");
    for stream in [0, 4, 8] {
        assert_eq!(respond(&mut peer, stream), Ok(()));
    }
    assert_eq!(peer.connection.open_streams(), 0);
    // A tunnel has no limit, and no trailers.
    assert_eq!(peer.send(12, &headers(&[(":method", "CONNECT"), (":authority", "a:1")])), "request 12 Connect a:1");
    assert_eq!(peer.send(12, &data(b"abcdef")), "content 12 abcdef");
    assert_eq!(peer.send(12, &headers(&[])), "closed H3_FRAME_UNEXPECTED");
}

fn respond(peer: &mut Server, stream: u64) -> Result<(), H3StreamGone> {
    let (mut out, fields) = (Vec::new(), Fields::new());
    let stream = H3StreamId(stream);
    peer.turn(|server, turn| server.send_response(stream, Status::NO_CONTENT, &fields, true, &mut out, turn))
}

#[test]
fn responses() {
    let mut peer = Server::new();
    assert_eq!(peer.end(0, &headers(GET)), "request 0 Get /");
    let (mut out, mut fields, stream) = (Vec::new(), Fields::new(), H3StreamId(0));
    fields.push("X-A", "b").push("Connection", "close");
    peer.turn(|server, turn| {
        let none = Fields::new();
        server.send_response(stream, Status::new(103).unwrap(), &none, false, &mut out, turn)?;
        server.send_response(stream, Status::OK, &fields, false, &mut out, turn)?;
        server.send_data_header(stream, 3, false, &mut out)?;
        out.extend_from_slice(b"abc");
        server.send_trailers(stream, &fields, &mut out, turn)
    })
    .unwrap();
    let expect = [
        (kind::HEADERS, b"\0\0\xd8".to_vec()),
        (kind::HEADERS, b"\0\0\xd9\x23x-a\x01b".to_vec()),
        (kind::DATA, b"abc".to_vec()),
        (kind::HEADERS, b"\0\0\x23x-a\x01b".to_vec()),
    ];
    assert_eq!(frames(&out), expect);
    assert_eq!(respond(&mut peer, 0), Err(H3StreamGone), "it is complete");
    assert_eq!(peer.connection.open_streams(), 0);
    assert_eq!(peer.send(4, &headers(POST)), "request 4 Post /");
    let prepared = PreparedSection::new(Status::OK, &fields);
    out.clear();
    let date = b"Sun, 06 Nov 1994 08:49:37 GMT";
    assert!(peer.connection.send_prepared(H3StreamId(4), &prepared, date, true, &mut out, |_| {}).is_ok());
    assert_eq!(frames(&out)[0].1, [&b"\0\0\xd9\x56\x1d"[..], date, b"\x23x-a\x01b"].concat());
    assert_eq!(peer.connection.open_streams(), 1, "the request is not complete");
    assert!(peer.connection.is_receiving(H3StreamId(4)));
    assert_eq!(peer.end(4, &data(b"a")), "content 4 a end");
    assert_eq!((peer.connection.open_streams(), peer.connection.is_receiving(H3StreamId(4))), (0, false));
}

#[test]
fn sections_wait_for_instructions() {
    let decoder = DecoderLimits { table_bytes_max: 4096, blocked_streams_max: 2 };
    let mut peer = Server::with(H3Limits { decoder, ..H3Limits::default() }, &[]);
    let (mut encoder, mut instructions) = (QpackEncoder::new(4096), vec![2]);
    encoder.set_peer_limits(4096, 2, &mut instructions);
    let mut request = |instructions: &mut Vec<u8>, stream, fields: &[(&'static str, &'static str)]| {
        let mut out = Vec::new();
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        crate::h3::frame::write_headers(&mut out, |out| encoder.encode(stream, fields, out, instructions));
        out
    };
    let get = with(GET, &[("user-agent", "curl")]);
    let first = request(&mut instructions, 0, &get);
    let second = [request(&mut instructions, 4, &get), data(b"ab")].concat();
    assert_eq!(peer.send(0, &first), "blocked");
    assert_eq!(peer.end(4, &second), "blocked");
    assert_eq!(peer.end(0, b""), "blocked", "more input changes nothing");
    let events = peer.send(ENCODER, &instructions);
    assert_eq!(events, "request 0 Get /\nrequest 4 Get /\ncontent 4 ab end");
    // The type, an insert count increment of two entries, then the acknowledgements.
    assert_eq!(peer.output.decoder, b"\x03\x02\x80\x84");
    assert_eq!(encoder.handle_instructions(&peer.output.decoder[1..]), Ok(3));
    peer.output.decoder.clear();
    assert_eq!(peer.reset(4), "reset 4 H3_REQUEST_CANCELLED by peer");
    assert_eq!(peer.output.decoder, b"", "its message was complete");
    assert_eq!(peer.send(8, &headers(POST)), "request 8 Post /");
    assert_eq!(peer.reset(8), "reset 8 H3_REQUEST_CANCELLED by peer");
    assert_eq!(peer.output.decoder, b"\x48", "stream cancellation");
}
