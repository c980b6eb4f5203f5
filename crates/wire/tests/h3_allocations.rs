//! HTTP/3 on a warm connection makes no allocation, from the bytes of a request to the bytes of its response.

mod common;

use std::time::Duration;

use common::REQUEST;
use wire::h3::{H3Event, H3Limits, H3Output, H3ServerConnection, H3StreamId, H3Turn};
use wire::http::{Fields, RequestHead, Status};
use wire::qpack::{PreparedSection, QpackEncoder, write_literal};

const REQUESTS: u64 = 100;
const STREAMS: u64 = 64;
const CONTENT: &[u8] = &[b'x'; 1024];

/// Buffers that all connections of a worker share.
#[derive(Default)]
struct Shared {
    output: H3Output,
    head: RequestHead,
    text: Vec<u8>,
    sent: Vec<u8>,
}

#[test]
fn a_warm_request_allocates_nothing() {
    let (mut shared, mut input) = (Shared::default(), Vec::new());
    let mut server = connection(&mut shared);
    request(&mut input);
    for batch in 0..10 + REQUESTS {
        let counts = allocation_counter::measure(|| serve(&mut server, batch * STREAMS, &input, &mut shared));
        assert!(batch < 10 || counts.count_total == 0, "{} allocations of {STREAMS} requests", counts.count_total);
    }
}

/// Bounds the memory of an idle connection, because a server may have thousands of them.
#[test]
fn an_idle_connection_keeps_little() {
    let (mut shared, mut input, mut kept) = (Shared::default(), Vec::new(), None);
    request(&mut input);
    // Another connection grows the shared buffers.
    let mut other = connection(&mut shared);
    serve(&mut other, 0, &input, &mut shared);
    let counts = allocation_counter::measure(|| {
        let mut server = Box::new(connection(&mut shared));
        for batch in 0..10 {
            serve(&mut server, batch * STREAMS, &input, &mut shared);
        }
        server.shrink();
        kept = Some(server);
    });
    assert!(kept.is_some_and(|server| server.open_streams() == 0));
    assert!(counts.bytes_current <= 1024, "{} bytes", counts.bytes_current);
}

fn connection(shared: &mut Shared) -> H3ServerConnection {
    let limits = H3Limits::default();
    let mut server = H3ServerConnection::new(&limits);
    shared.output.control.clear();
    let mut turn = H3Turn { now: Duration::ZERO, limits: &limits, output: &mut shared.output };
    server.start(&mut turn);
    for (stream, input) in [(2, &b"\x00\x04\x00"[..]), (6, b"\x02"), (10, b"\x03")] {
        let stream = H3StreamId(stream);
        assert!(matches!(server.accept(stream, &mut turn), H3Event::NeedInput));
        let handled = server.handle_input(stream, input, false, &mut shared.head, &mut shared.text, &mut turn);
        assert!(matches!(handled.event, H3Event::NeedInput));
    }
    server
}

/// HEADERS of a request, with the fields that browsers send.
fn request(input: &mut Vec<u8>) {
    let mut section = Vec::new();
    let pairs = REQUEST.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    QpackEncoder::new(0).encode(0, pairs, &mut section, &mut Vec::new());
    input.extend([1, 0x40, section.len() as u8]);
    input.extend(section);
}

/// Opens a batch of streams and answers their requests in turns.
fn serve(server: &mut H3ServerConnection, first: u64, input: &[u8], shared: &mut Shared) {
    let limits = H3Limits::default();
    let Shared { output, head, text, sent } = shared;
    let mut turn = H3Turn { now: Duration::ZERO, limits: &limits, output };
    sent.clear();
    for number in first..first + STREAMS {
        let stream = H3StreamId(4 * number);
        assert!(matches!(server.accept(stream, &mut turn), H3Event::NeedInput));
        let handled = server.handle_input(stream, input, true, head, text, &mut turn);
        let H3Event::Head(request) = handled.event else { panic!("{:?}", handled.event) };
        assert_eq!((handled.consumed_bytes, request.target(text).path), (input.len(), &b"/page.html"[..]));
    }
    assert_eq!(server.open_streams() as u64, STREAMS);
    for number in first..first + STREAMS {
        let (stream, date) = (H3StreamId(4 * number), b"Sun, 06 Nov 1994 08:49:37 GMT");
        let add = |out: &mut Vec<u8>| write_literal(out, b"x-request", b"1");
        PREPARED.with(|section| server.send_prepared(stream, section, date, false, sent, add)).unwrap();
        server.send_data_header(stream, CONTENT.len() as u64, true, sent).unwrap();
        sent.extend_from_slice(CONTENT);
    }
    assert_eq!(server.open_streams(), 0);
    assert!(sent.len() > STREAMS as usize * CONTENT.len());
}

thread_local! {
    static PREPARED: PreparedSection = {
        let mut fields = Fields::new();
        fields.push("Content-Type", "text/html").push("Content-Length", "1024").push("ETag", "\"abc\"");
        PreparedSection::new(Status::OK, &fields)
    };
}
