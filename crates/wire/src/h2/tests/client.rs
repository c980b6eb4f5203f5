//! Tests of the client role against the server role.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::peer::{TestPeer, block, data, frame, headers, settings, window_update};
use crate::h2::frame::kind;
use crate::h2::{
    ClientEvent, EngineTurn, ErrorCode, H2ClientConnection, H2Limits, H2Output, H2ServerConnection, OutgoingRequest,
    Placement, PreparedRequest, ServerEvent, StreamId,
};
use crate::http::{Fields, RequestHead, Status};

const REQUEST: OutgoingRequest<'_> =
    OutgoingRequest { method: b"GET", scheme: Some(b"http"), authority: Some(b"a"), path: Some(b"/"), protocol: None };

struct TestClient {
    connection: H2ClientConnection,
    output: H2Output,
    limits: H2Limits,
    fields: Fields,
}

impl TestClient {
    /// Creates a client whose server has sent these settings.
    fn new(server_settings: &[(u16, u32)]) -> Self {
        let limits = H2Limits { encoder_table_bytes_max: 4096, ..H2Limits::default() };
        let connection = H2ClientConnection::new(Duration::ZERO, &limits);
        let mut client = Self { connection, output: H2Output::default(), limits, fields: Fields::new() };
        client.turn(|connection, turn| connection.start(turn));
        assert_eq!(client.receive(&settings(server_settings)), "");
        client
    }

    fn turn<T>(&mut self, action: impl FnOnce(&mut H2ClientConnection, &mut EngineTurn<'_>) -> T) -> T {
        let mut turn = EngineTurn { now: Duration::ZERO, limits: &self.limits, output: &mut self.output };
        action(&mut self.connection, &mut turn)
    }

    fn ask(&mut self, method: &'static str, is_last: bool) -> Option<StreamId> {
        let request = OutgoingRequest { method: method.as_bytes(), ..REQUEST };
        self.turn(|connection, turn| connection.send_request(&request, &Fields::new(), is_last, turn))
    }

    /// Feeds output of the server; returns the events.
    fn receive(&mut self, input: &[u8]) -> String {
        let (mut at, mut lines) = (0, Vec::new());
        loop {
            let mut fields = std::mem::take(&mut self.fields);
            let handled = self.turn(|connection, turn| connection.handle_input(&input[at..], &mut fields, turn));
            self.fields = fields;
            at += handled.consumed_bytes;
            let end = |is_last| if is_last { " end" } else { "" };
            lines.push(match handled.event {
                ClientEvent::NeedInput => break,
                ClientEvent::AwaitOutput => "await output".to_owned(),
                ClientEvent::Response { stream, status, is_last } => format!("{stream}: {status}{}", end(is_last)),
                ClientEvent::Content { stream, content, is_last } => {
                    self.turn(|connection, turn| connection.take_content(stream, content.len(), turn));
                    format!("{stream}: {} bytes{}", content.len(), end(is_last))
                }
                ClientEvent::Trailers { stream } => format!("{stream}: trailers"),
                ClientEvent::Reset { stream, code, .. } => format!("{stream}: {}", code.name()),
                ClientEvent::GoAway { last_stream, code } => format!("go away {last_stream} {}", code.name()),
                ClientEvent::Closed(error) => {
                    lines.push(format!("closed {}", error.code.name()));
                    break;
                }
            });
        }
        lines.join(", ")
    }
}

#[test]
fn responses() {
    let ok = |flags| headers(1, flags, &[(":status", "200")]);
    let length = |length| headers(1, 4, &[(":status", "200"), ("content-length", length)]);
    for (name, method, input, expect) in [
        ("no content", "GET", ok(5), "1: 200 end"),
        ("content", "GET", [ok(4), data(1, 0, b"ab"), data(1, 1, b"c")].concat(), "1: 200, 1: 2 bytes, 1: 1 bytes end"),
        ("1xx", "GET", [headers(1, 4, &[(":status", "103")]), ok(5)].concat(), "1: 103, 1: 200 end"),
        (
            "trailers",
            "GET",
            [ok(4), data(1, 0, b"a"), headers(1, 5, &[("x", "y")])].concat(),
            "1: 200, 1: 1 bytes, 1: trailers",
        ),
        ("HEAD", "HEAD", headers(1, 5, &[(":status", "200"), ("content-length", "5")]), "1: 200 end"),
        ("304", "GET", headers(1, 5, &[(":status", "304"), ("content-length", "5")]), "1: 304 end"),
        ("content of HEAD", "HEAD", [ok(4), data(1, 1, b"x")].concat(), "1: 200, 1: PROTOCOL_ERROR"),
        ("too little", "GET", [length("2"), data(1, 1, b"x")].concat(), "1: 200, 1: PROTOCOL_ERROR"),
        ("too much", "GET", [length("2"), data(1, 0, b"xyz")].concat(), "1: 200, 1: PROTOCOL_ERROR"),
        ("nothing", "GET", headers(1, 5, &[(":status", "200"), ("content-length", "5")]), "1: PROTOCOL_ERROR"),
        ("no status", "GET", headers(1, 5, &[("x", "y")]), "1: PROTOCOL_ERROR"),
        ("two statuses", "GET", headers(1, 5, &[(":status", "200"), (":status", "200")]), "1: PROTOCOL_ERROR"),
        ("late status", "GET", headers(1, 5, &[("x", "y"), (":status", "200")]), "1: PROTOCOL_ERROR"),
        ("malformed status", "GET", headers(1, 5, &[(":status", "20")]), "1: PROTOCOL_ERROR"),
        ("101", "GET", headers(1, 4, &[(":status", "101")]), "1: PROTOCOL_ERROR"),
        ("the end with 100", "GET", headers(1, 5, &[(":status", "100")]), "1: PROTOCOL_ERROR"),
        ("a request's field", "GET", headers(1, 5, &[(":status", "200"), (":path", "/")]), "1: PROTOCOL_ERROR"),
        ("Connection", "GET", headers(1, 5, &[(":status", "200"), ("connection", "close")]), "1: PROTOCOL_ERROR"),
        ("DATA first", "GET", data(1, 0, b"x"), "1: PROTOCOL_ERROR"),
        ("a stream that was not opened", "GET", headers(3, 5, &[(":status", "200")]), "closed PROTOCOL_ERROR"),
        (
            "push",
            "GET",
            frame(kind::PUSH_PROMISE, 4, 1, &[&[0, 0, 0, 2], &block(&[])[..]].concat()),
            "closed PROTOCOL_ERROR",
        ),
        ("PRIORITY_UPDATE", "GET", frame(16, 0, 0, b"\0\0\0\x01u=1"), "closed PROTOCOL_ERROR"),
        ("refused", "GET", frame(kind::RST_STREAM, 0, 1, &7u32.to_be_bytes()), "1: REFUSED_STREAM"),
    ] {
        let mut client = TestClient::new(&[]);
        assert_eq!(client.ask(method, true), Some(StreamId(1)));
        assert_eq!(client.receive(&input), expect, "{name}");
    }
}

#[test]
fn as_many_requests_as_the_server_takes() {
    let mut client = TestClient::new(&[(3, 2)]);
    assert_eq!([0, 1, 2].map(|_| client.ask("GET", true)), [Some(StreamId(1)), Some(StreamId(3)), None]);
    assert_eq!(client.receive(&headers(1, 5, &[(":status", "200")])), "1: 200 end");
    assert_eq!(client.ask("GET", true), Some(StreamId(5)));
    let go_away = frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]);
    assert_eq!(client.receive(&go_away), "go away 3 NO_ERROR");
    assert_eq!((client.connection.open_streams(), client.connection.can_open()), (1, false));
    assert_eq!(client.receive(&headers(3, 5, &[(":status", "200")])), "3: 200 end");
    assert!(client.connection.is_drained());
}

/// A prepared request and one that is encoded for its connection are equal for the server.
#[test]
fn prepared_requests() {
    let mut fields = Fields::new();
    fields.push("User-Agent", "test").push("Connection", "close").push("Accept", "*/*");
    let prepared = PreparedRequest::new(&REQUEST, &fields);
    let mut client = TestClient::new(&[]);
    for _ in 0..2 {
        client.turn(|connection, turn| connection.send_request(&REQUEST, &fields, true, turn)).unwrap();
        client.turn(|connection, turn| connection.send_prepared(&prepared, true, turn)).unwrap();
    }
    let mut server = TestPeer::unsettled(H2Limits::default());
    let mut events = Vec::new();
    for byte in client.output.bytes() {
        let event = server.send(&[*byte]);
        if event.starts_with("request") {
            let fields: Vec<_> = server.head.fields.iter().map(|field| field.value.of(&server.text).to_vec()).collect();
            events.push((server.head.method, server.head.target.of(&server.text).to_vec(), fields));
        }
    }
    assert_eq!(events.len(), 4);
    assert!(events.iter().all(|event| *event == events[0]), "{events:?}");
    assert_eq!(events[0].2.len(), 3);
}

#[test]
fn a_request_given_up() {
    let mut client = TestClient::new(&[]);
    client.ask("GET", true);
    client.turn(|connection, turn| connection.reset(StreamId(1), ErrorCode::CANCEL, turn));
    let late = [headers(1, 4, &[(":status", "200")]), data(1, 0, b"x"), window_update(1, 1)].concat();
    assert_eq!(client.receive(&late), "");
}

/// Echoes requests with content of many lengths, through windows and outputs of all sizes.
#[test]
fn both_roles_against_each_other() {
    for (step, room_bytes) in [(1 << 20, 1 << 20), (1000, 5000), (17, 40_000)] {
        let contents: Vec<Vec<u8>> =
            (0..20).map(|index| (0..index * index * 700).map(|at| (at * 7 + index) as u8).collect()).collect();
        assert_eq!(echo(&contents, step, room_bytes), contents, "in pieces of {step}");
    }
}

fn echo(contents: &[Vec<u8>], step: usize, room_bytes: usize) -> Vec<Vec<u8>> {
    let limits = H2Limits { encoder_table_bytes_max: 512, ..H2Limits::default() };
    let now = Duration::ZERO;
    let (mut client, mut server) = (H2ClientConnection::new(now, &limits), H2ServerConnection::new(now, &limits));
    let (mut to_server, mut to_client) = (H2Output::default(), H2Output::default());
    client.start(&mut EngineTurn { now, limits: &limits, output: &mut to_server });
    server.start(&mut EngineTurn { now, limits: &limits, output: &mut to_client });
    let mut asked = BTreeMap::new();
    for (index, content) in contents.iter().enumerate() {
        let mut turn = EngineTurn { now, limits: &limits, output: &mut to_server };
        let mut fields = Fields::new();
        fields.push("Content-Length", content.len().to_string()).push("X-Index", index.to_string());
        let request = OutgoingRequest { method: b"POST", ..REQUEST };
        let stream = client.send_request(&request, &fields, content.is_empty(), &mut turn).unwrap();
        if !content.is_empty() {
            client.offer_content(stream, content.len() as u64, true, &mut turn).unwrap();
        }
        asked.insert(stream, index);
    }
    let copy = |content: &[u8], range: Range<u64>, out: &mut Vec<u8>| {
        out.extend_from_slice(&content[range.start as usize..range.end as usize]);
        Placement::Copied
    };
    let (mut received, mut answers) = (BTreeMap::<StreamId, Vec<u8>>::new(), vec![Vec::new(); contents.len()]);
    let (mut at_server, mut at_client, mut complete) = (Vec::new(), Vec::new(), 0);
    let (mut head, mut text, mut fields) = (RequestHead::default(), Vec::new(), Fields::new());
    for _ in 0..100_000 {
        let mut turn = EngineTurn { now, limits: &limits, output: &mut to_server };
        client.poll_output(room_bytes, &mut turn, |stream, range, out| copy(&contents[asked[&stream]], range, out));
        at_server.extend_from_slice(to_server.bytes());
        to_server.clear();
        let piece = std::mem::take(&mut at_server);
        let mut at = 0;
        for end in (0..piece.len()).step_by(step).map(|start| (start + step).min(piece.len())) {
            loop {
                let mut turn = EngineTurn { now, limits: &limits, output: &mut to_client };
                let rest = &piece[at..end];
                let handled = server.handle_input(rest, &mut head, &mut text, &mut turn);
                at += handled.consumed_bytes;
                let complete = match handled.event {
                    ServerEvent::NeedInput => break,
                    ServerEvent::Request(request) => {
                        received.insert(request.stream, Vec::new());
                        (!request.has_content).then_some(request.stream)
                    }
                    ServerEvent::Content { stream, content, is_last } => {
                        received.get_mut(&stream).unwrap().extend_from_slice(&rest[content.clone()]);
                        server.take_content(stream, content.len(), &mut turn);
                        is_last.then_some(stream)
                    }
                    other => panic!("{other:?}"),
                };
                if let Some(stream) = complete {
                    let length = received[&stream].len() as u64;
                    server.send_response(stream, Status::OK, &Fields::new(), false, &mut turn).unwrap();
                    server.offer_content(stream, length, true, &mut turn).unwrap();
                }
            }
        }
        at_server.extend_from_slice(&piece[at..]);
        let mut turn = EngineTurn { now, limits: &limits, output: &mut to_client };
        server.poll_output(room_bytes, &mut turn, |stream, range, out| copy(&received[&stream], range, out));
        at_client.extend_from_slice(to_client.bytes());
        to_client.clear();
        let mut at = 0;
        loop {
            let mut turn = EngineTurn { now, limits: &limits, output: &mut to_server };
            let handled = client.handle_input(&at_client[at..], &mut fields, &mut turn);
            match handled.event {
                ClientEvent::NeedInput => {
                    at += handled.consumed_bytes;
                    break;
                }
                ClientEvent::Response { status, .. } => assert_eq!(status, Status::OK),
                ClientEvent::Content { stream, content, is_last } => {
                    answers[asked[&stream]].extend_from_slice(&at_client[at..][content.clone()]);
                    client.take_content(stream, content.len(), &mut turn);
                    complete += usize::from(is_last);
                }
                other => panic!("{other:?}"),
            }
            at += handled.consumed_bytes;
        }
        at_client.drain(..at);
        if complete == contents.len() {
            assert_eq!((client.open_streams(), server.open_streams()), (0, 0));
            return answers;
        }
    }
    panic!("it does not end");
}
