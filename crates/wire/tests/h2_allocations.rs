//! HTTP/2 on a warm connection makes no allocation, from the bytes of a request to the bytes of its response.

mod common;

use std::time::Duration;

use common::REQUEST;
use wire::h2::hpack::{Encoder, PreparedBlock, write_literal};
use wire::h2::{EngineTurn, H2Limits, H2Output, H2ServerConnection, PREFACE, Placement, ServerEvent};
use wire::http::{Fields, RequestHead, Status};

const REQUESTS: u32 = 100;
const STREAMS: u32 = 64;
const CONTENT: &[u8] = &[b'x'; 1024];

#[test]
fn a_warm_request_allocates_nothing() {
    let limits = H2Limits::default();
    let (mut output, mut head, mut text) = (H2Output::default(), RequestHead::default(), Vec::new());
    let mut fields = Fields::new();
    fields.push("Content-Type", "text/html").push("Content-Length", "1024").push("ETag", "\"abc\"");
    let block = PreparedBlock::new(Status::OK, &fields);
    let mut server = H2ServerConnection::new(Duration::ZERO, &limits);
    let (mut encoder, mut stream) = (Encoder::new(4096), 1);
    let mut serve = |input: &[u8]| serve(&mut server, input, &block, &limits, &mut output, &mut head, &mut text);
    // Open the connection's window far enough for all responses.
    let mut input = [PREFACE, &b"\0\0\0\x04\0\0\0\0\0"[..], b"\0\0\x04\x08\0\0\0\0\0\x7f\0\0\0"].concat();
    for _ in 0..10 {
        requests(&mut encoder, &mut stream, &mut input);
        serve(&input);
        input.clear();
    }
    for _ in 0..REQUESTS {
        input.clear();
        requests(&mut encoder, &mut stream, &mut input);
        let counts = allocation_counter::measure(|| serve(&input));
        assert_eq!(counts.count_total, 0, "allocations of {STREAMS} requests");
    }
}

/// Bounds the memory of an idle connection, because a server may have thousands of them.
#[test]
fn an_idle_connection_keeps_little() {
    let limits = H2Limits::default();
    let (mut output, mut head, mut text) = (H2Output::default(), RequestHead::default(), Vec::new());
    let block = PreparedBlock::new(Status::OK, &Fields::new());
    let (mut encoder, mut stream) = (Encoder::new(4096), 1);
    let mut inputs = vec![[PREFACE, &b"\0\0\0\x04\0\0\0\0\0"[..], b"\0\0\x04\x08\0\0\0\0\0\x7f\0\0\0"].concat()];
    requests(&mut encoder, &mut stream, &mut inputs[0]);
    for _ in 0..10 {
        inputs.push(Vec::new());
        requests(&mut encoder, &mut stream, inputs.last_mut().unwrap());
    }
    let mut connection = None;
    // Another connection grows the buffers that all connections share.
    let mut other = H2ServerConnection::new(Duration::ZERO, &limits);
    inputs.iter().for_each(|input| serve(&mut other, input, &block, &limits, &mut output, &mut head, &mut text));
    let counts = allocation_counter::measure(|| {
        let mut server = Box::new(H2ServerConnection::new(Duration::ZERO, &limits));
        inputs.iter().for_each(|input| serve(&mut server, input, &block, &limits, &mut output, &mut head, &mut text));
        server.shrink();
        connection = Some(server);
    });
    assert!(connection.is_some_and(|server| server.open_streams() == 0));
    assert!(counts.bytes_current <= 2048, "{} bytes", counts.bytes_current);
}

/// Header blocks of a batch of requests, with the fields that browsers send.
fn requests(encoder: &mut Encoder, stream: &mut u32, input: &mut Vec<u8>) {
    for _ in 0..STREAMS {
        let mut block = Vec::new();
        for (name, value) in REQUEST {
            encoder.write_field(name.as_bytes(), value.as_bytes(), None, &mut block);
        }
        input.extend([0, 0, block.len() as u8, 1, 5]);
        input.extend(stream.to_be_bytes());
        input.extend(&block);
        *stream += 2;
    }
}

fn serve(
    server: &mut H2ServerConnection,
    input: &[u8],
    block: &PreparedBlock,
    limits: &H2Limits,
    output: &mut H2Output,
    head: &mut RequestHead,
    text: &mut Vec<u8>,
) {
    output.clear();
    let mut turn = EngineTurn { now: Duration::ZERO, limits, output };
    let (mut at, mut answered) = (0, 0);
    loop {
        let handled = server.handle_input(&input[at..], head, text, &mut turn);
        at += handled.consumed_bytes;
        match handled.event {
            ServerEvent::NeedInput => break,
            ServerEvent::Request(request) => {
                assert_eq!(request.target(text).path, b"/page.html");
                let (stream, date) = (request.stream, b"Sun, 06 Nov 1994 08:49:37 GMT");
                let add = |out: &mut Vec<u8>| write_literal(out, b"x-request", b"1");
                server.send_prepared(stream, block, date, false, &mut turn, add).unwrap();
                server.offer_content(stream, CONTENT.len() as u64, true, &mut turn).unwrap();
                answered += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((at, answered), (input.len(), STREAMS));
    server.poll_output(usize::MAX, &mut turn, |_, range, out| {
        out.extend_from_slice(&CONTENT[range.start as usize..range.end as usize]);
        Placement::Copied
    });
    assert_eq!(server.open_streams(), 0);
    assert!(output.bytes().len() > STREAMS as usize * CONTENT.len());
}
