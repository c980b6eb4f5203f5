//! Accepted, rejected and malformed requests (RFC 9113, sections 8.1 to 8.5).

use super::peer::*;
use crate::h2::{EngineTurn, H2Limits, ServerEvent};
use crate::http::KnownField;

fn with<'a>(fields: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [fields, more].concat()
}

/// Returns the outcome of a request without content.
fn outcome(fields: &[(&str, &str)]) -> String {
    let limits = H2Limits { enables_connect_protocol: true, ..H2Limits::default() };
    TestPeer::with(limits, &[]).send(&headers(1, END, fields))
}

const MALFORMED: &str = "reset 1 PROTOCOL_ERROR";

#[test]
fn taken() {
    let path = |path| [(":method", "GET"), (":scheme", "https"), (":authority", "a:443"), (":path", path)];
    let connect = [(":method", "CONNECT"), (":authority", "a:443")];
    let websocket = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https"), (":path", "/chat")];
    for (fields, expect) in [
        (GET.to_vec(), "request 1 Get /"),
        (path("/a?b=c").to_vec(), "request 1 Get /a?b=c"),
        (vec![(":path", "*"), (":scheme", "http"), (":method", "OPTIONS"), (":authority", "a")], "request 1 Options *"),
        (connect.to_vec(), "request 1 Connect a:443"),
        (with(&websocket, &[(":authority", "a")]), "request 1 Connect /chat"),
        (with(GET, &[("te", "trailers"), ("host", "A")]), "request 1 Get /"),
        (with(&path("/"), &[("host", "a")]), "request 1 Get /"),
        (with(&GET[..2], &[(":path", "/"), ("host", "a")]), "request 1 Get /"),
        (with(GET, &[("content-length", "0")]), "request 1 Get /"),
        (vec![(":method", "BREW"), (":scheme", "http"), (":authority", "a"), (":path", "/")], "request 1 Other /"),
    ] {
        assert_eq!(outcome(&fields), expect, "{fields:?}");
    }
}

#[test]
fn malformed() {
    let replaced = |index: usize, field| {
        let mut fields = GET.to_vec();
        fields[index] = field;
        fields
    };
    let mut cases: Vec<Vec<(&str, &str)>> = (0..4).map(|index| with(&GET[..index], &GET[index + 1..])).collect();
    cases.remove(2); // Without `:authority`, the response has status 400.
    cases.extend(GET.iter().map(|field| with(GET, &[*field])));
    cases.extend([
        with(&GET[..3], &[("accept", "*/*"), (":path", "/")]),
        with(GET, &[(":status", "200")]),
        with(GET, &[(":unknown", "1")]),
        with(GET, &[(":", "1")]),
        with(GET, &[("Accept", "*/*")]),
        with(GET, &[("", "x")]),
        with(GET, &[("a b", "x")]),
        with(GET, &[("x", "a\r\nb: c")]),
        with(GET, &[("x", " a")]),
        with(GET, &[("connection", "close")]),
        with(GET, &[("transfer-encoding", "chunked")]),
        with(GET, &[("upgrade", "websocket")]),
        with(GET, &[("te", "gzip")]),
        with(GET, &[("host", "b")]),
        with(GET, &[("host", "a:81")]),
        with(GET, &[("host", "a"), ("host", "a")]),
        with(GET, &[("content-length", "1")]),
        with(GET, &[("content-length", "x")]),
        with(GET, &[("content-length", "0"), ("content-length", "0")]),
        with(GET, &[(":protocol", "websocket")]),
        replaced(0, (":method", "")),
        replaced(0, (":method", "G T")),
        replaced(3, (":path", "")),
        replaced(0, (":method", "CONNECT")),
        vec![(":method", "CONNECT")],
        vec![(":method", "CONNECT"), (":authority", "a:1"), (":scheme", "http")],
        vec![(":method", "CONNECT"), (":authority", "a:1"), (":protocol", "websocket")],
    ]);
    for fields in cases {
        // No event named the stream, so the caller needs none for the reset.
        let mut peer = TestPeer::with(H2Limits { enables_connect_protocol: true, ..H2Limits::default() }, &[]);
        assert_eq!(peer.send(&headers(1, END, &fields)), "", "{fields:?}");
        assert_eq!(peer.frames(), "RST_STREAM 1 PROTOCOL_ERROR", "{fields:?}");
        assert_eq!(peer.send(&headers(3, END, GET)), "request 3 Get /", "the connection goes on");
    }
    let mut peer = TestPeer::new();
    let websocket = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", "/")];
    assert_eq!(peer.send(&headers(1, END, &with(&websocket, &[(":authority", "a")]))), "", "not offered");
}

#[test]
fn rejected_with_a_status() {
    let long_path = format!("/{}", "x".repeat(8192));
    let long_value = "x".repeat(16_300);
    let many = [("a", "")].repeat(101);
    let path = |path| vec![(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)];
    let authority =
        |authority| vec![(":method", "GET"), (":scheme", "http"), (":authority", authority), (":path", "/")];
    for (fields, status) in [
        (with(&GET[..2], &[(":path", "/")]), 400),
        (path("relative"), 400),
        (path("http://a/"), 400),
        (path("*"), 400),
        (path("/a b"), 400),
        (path("/a#b"), 400),
        (path("/\u{e9}"), 400),
        (path(&long_path), 414),
        (authority(""), 400),
        (authority("user@a"), 400),
        (authority("a,b"), 400),
        (authority("a:99999"), 400),
        (vec![(":method", "GET"), (":scheme", "ftp"), (":authority", "a"), (":path", "/")], 400),
        (vec![(":method", "CONNECT"), (":authority", "a")], 400),
        (with(GET, &[("x", &long_value)]), 431),
        (with(GET, &many), 431),
        (with(GET, &[("expect", "tea")]), 417),
    ] {
        assert_eq!(outcome(&fields), format!("refused 1 {status}"), "{:?}", &fields[..4.min(fields.len())]);
    }
    // A malformed request is reset even if another error would only reject it.
    assert_eq!(outcome(&with(&with(GET, &many), &[("Bad", "x")])), "");
    let mut peer = TestPeer::new();
    let large = with(POST, &[("content-length", "1048577")]);
    assert_eq!(peer.send(&headers(1, OPEN, &large)), "refused 1 413");
    assert_eq!(peer.send(&data(1, 0, b"ignored")), "");
    peer.respond_with(1, 0);
    assert_eq!(peer.frames(), "HEADERS 1 :status=204 end");
}

#[test]
fn the_head_is_that_of_all_versions() {
    let fields = with(GET, &[("cookie", "a=1"), ("accept", "x"), ("cookie", "b=2"), ("priority", "u=1, i")]);
    let mut peer = TestPeer::new();
    let input = headers(1, END, &fields);
    let (mut head, mut text) = Default::default();
    let mut turn = EngineTurn { now: peer.now, limits: &peer.limits, output: &mut peer.output };
    let handled = peer.server.handle_input(&input, &mut head, &mut text, &mut turn);
    let ServerEvent::Request(request) = handled.event else { panic!("{:?}", handled.event) };
    assert_eq!((request.priority.urgency, request.priority.is_incremental), (1, true));
    assert_eq!(request.target(&text).path, b"/");
    assert_eq!(request.host(&text).unwrap().name, b"a");
    let value = |known| head.first(known).map(|field| field.value.of(&text));
    assert_eq!(value(KnownField::Cookie), Some(&b"a=1; b=2"[..]));
    assert_eq!(value(KnownField::Host), Some(&b"a"[..]));
    assert_eq!(value(KnownField::Accept), Some(&b"x"[..]));
    assert!(!head.is_repeated(KnownField::Cookie));
    assert_eq!(head.fields.len(), 4);
}

#[test]
fn content_agrees_with_its_length() {
    let length = |length| with(POST, &[("content-length", length)]);
    for (name, length, frames, expect) in [
        ("as much", length("3"), vec![data(1, 0, b"ab"), data(1, 1, b"c")], "content 1 ab\ncontent 1 c end"),
        ("none said", POST.to_vec(), vec![data(1, 0, b"ab"), data(1, 1, b"")], "content 1 ab\ncontent 1  end"),
        ("more", length("1"), vec![data(1, 0, b"ab")], MALFORMED),
        ("more in two frames", length("3"), vec![data(1, 0, b"ab"), data(1, 0, b"cd")], "content 1 ab\nreset 1"),
        ("less", length("3"), vec![data(1, 1, b"ab")], MALFORMED),
        ("less, then trailers", length("3"), vec![data(1, 0, b"ab"), headers(1, END, &[])], "content 1 ab\nreset 1"),
        (
            "trailers",
            length("2"),
            vec![data(1, 0, b"ab"), headers(1, END, &[("x", "y")])],
            "content 1 ab\ntrailers 1 x=y",
        ),
        ("pseudo-field in trailers", length("0"), vec![headers(1, END, &[(":path", "/")])], MALFORMED),
        ("trailers that don't end", POST.to_vec(), vec![headers(1, OPEN, &[("x", "y")])], MALFORMED),
    ] {
        let mut peer = TestPeer::new();
        assert_eq!(peer.send(&headers(1, OPEN, &length)), "request 1 Post /");
        let events = peer.send(&frames.concat());
        assert!(events.starts_with(expect), "{name}: {events}");
    }
}

/// Events and output do not depend on how the input is split, except for the pieces of content.
#[test]
fn in_pieces_of_any_size() {
    let mut padded = vec![3];
    padded.extend(block(POST));
    padded.extend([0; 3]);
    let whole_block = block(GET);
    let (first, second) = whole_block.split_at(10);
    let input = [
        frame(1, OPEN | 8, 1, &padded),
        frame(0, 8, 1, b"\x02content\0\0"),
        frame(0xbe, 0, 1, b"unknown"),
        frame(1, 1, 3, first),
        frame(9, 0, 3, b""),
        frame(9, 4, 3, second),
        frame(6, 0, 0, b"12345678"),
        frame(0, 8 | 1, 1, b"\x04more\0\0\0\0"),
        headers(5, END, &with(GET, &[("x", "a\nb")])),
        data(1, 0, b"late"),
    ]
    .concat();
    let run = |step: usize| {
        let mut peer = TestPeer::new();
        let (mut events, mut content) = (String::new(), String::new());
        for piece in input.chunks(step) {
            for line in peer.send(piece).lines() {
                match line.strip_prefix("content 1 ") {
                    Some(piece) => content.push_str(piece),
                    None => events = events + line + "\n",
                }
            }
        }
        (events, content, peer.frames())
    };
    let whole = run(input.len());
    assert_eq!(whole.0, "request 1 Post /\nrequest 3 Get /\nreset 1 STREAM_CLOSED by us\n".to_owned());
    assert_eq!(whole.1.replace(" end", ""), "contentmore");
    assert_eq!(whole.2, "PING ack\nRST_STREAM 5 PROTOCOL_ERROR\nRST_STREAM 1 STREAM_CLOSED");
    for step in [1, 2, 3, 7, 20] {
        assert_eq!(run(step), whole, "in pieces of {step}");
    }
}
