//! An HTTP/2 connection: our server and a client that sends anything. Frames may be valid (a model client follows the
//! rules as long as the input says so) or random bytes. Our client reads and understands all output of our server. Memory and
//! streams stay within their limits, and split input gives the same result.
//!
//! The input is a row of commands: a byte for the command, then its arguments.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use wire::h2::{
    EngineTurn, FRAME_HEADER_BYTES, H2Limits, H2Output, H2ServerConnection, PREFACE, Placement, ServerEvent, StreamId,
};
use wire::http::{Fields, RequestHead, Status};

const OUTPUT_BYTES_MAX: usize = 2000;

fn limits() -> H2Limits {
    let mut limits = H2Limits { concurrent_streams_max: 8, header_block_bytes_max: 600, ..H2Limits::default() };
    limits.output_bytes_max = OUTPUT_BYTES_MAX;
    limits.body.body_bytes_max = 1000;
    limits.head.head_bytes_max = 1000;
    limits.enables_connect_protocol = true;
    limits
}

fuzz_target!(|input: &[u8]| {
    let (bytes, step) = model_client(input);
    let whole = run(&bytes, bytes.len());
    assert_eq!(run(&bytes, 1), whole);
    assert_eq!(run(&bytes, step), whole);
});

/// Bytes that the client sends, and the size of the pieces.
fn model_client(input: &[u8]) -> (Vec<u8>, usize) {
    let (mut bytes, mut rest, mut next_stream) = (PREFACE.to_vec(), input, 1u32);
    write_frame(&mut bytes, 4, 0, 0, &[]);
    let mut step = 2;
    while let [command, following @ ..] = rest {
        let (length, following) = following.split_first().unwrap_or((&0, &[]));
        let (argument, following) = following.split_at(usize::from(*length).min(following.len()));
        rest = following;
        let stream = u32::from(*argument.first().unwrap_or(&1));
        match command % 12 {
            0 | 1 => {
                // A request: GET, or POST whose content follows.
                let is_post = command % 12 == 1;
                let mut block = vec![if is_post { 0x83 } else { 0x82 }, 0x86, 0x84, 0x41, 1, b'a'];
                block.extend_from_slice(argument);
                write_frame(&mut bytes, 1, if is_post { 4 } else { 5 }, next_stream, &block);
                next_stream += 2;
            }
            2 => write_frame(&mut bytes, 0, 0, stream, argument),
            3 => write_frame(&mut bytes, 0, 1, stream, argument),
            4 => write_frame(&mut bytes, 3, 0, stream, &[0, 0, 0, 8]),
            5 => write_frame(&mut bytes, 8, 0, stream, &[0, 0, *length, 7]),
            6 => write_frame(&mut bytes, 4, 0, 0, &[0, 4, 0, 0, *length, stream as u8]),
            7 => write_frame(&mut bytes, 16, 0, 0, &[&stream.to_be_bytes()[..], b"u=1, i"].concat()),
            8 => write_frame(&mut bytes, 1, 1, next_stream, argument),
            9 => write_frame(&mut bytes, 9, 4, next_stream, argument),
            10 => step = 2 + usize::from(*length),
            // Any bytes: frames of all types, right or not.
            _ => bytes.extend_from_slice(argument),
        }
    }
    (bytes, step)
}

fn write_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, high, middle, low] = (payload.len() as u32).to_be_bytes();
    out.extend([high, middle, low, kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

/// Events of a server for these bytes, and all its output.
fn run(input: &[u8], step: usize) -> (Vec<String>, Vec<u8>) {
    let (limits, now) = (limits(), Duration::ZERO);
    let mut server = H2ServerConnection::new(now, &limits);
    let (mut output, mut sent) = (H2Output::default(), Vec::new());
    server.start(&mut EngineTurn { now, limits: &limits, output: &mut output });
    let (mut head, mut text) = (RequestHead::default(), Vec::new());
    let (mut events, mut start, mut end) = (Vec::<String>::new(), 0, 0);
    loop {
        let rest = &input[start..end];
        let mut turn = EngineTurn { now, limits: &limits, output: &mut output };
        let handled = server.handle_input(rest, &mut head, &mut text, &mut turn);
        start += handled.consumed_bytes;
        match handled.event {
            ServerEvent::NeedInput if end == input.len() => break,
            ServerEvent::NeedInput => end = (end + step.max(1)).min(input.len()),
            ServerEvent::AwaitOutput => flush(&mut output, &mut sent),
            ServerEvent::Closed(error) => {
                events.push(format!("{error:?}"));
                break;
            }
            ServerEvent::Content { stream, content, is_last } => {
                // Content may come in other pieces.
                let content = rest[content].to_vec();
                let line = format!("{stream}: {}", content.escape_ascii());
                match events.last_mut().filter(|last| last.starts_with(&format!("{stream}: "))) {
                    Some(last) => last.push_str(&content.escape_ascii().to_string()),
                    None => events.push(line),
                }
                if is_last {
                    events.push(format!("{stream} is complete"));
                    answer(&mut server, stream, &mut turn);
                }
            }
            ServerEvent::Request(request) => {
                assert!(request.host(&text).is_some());
                let target = request.target(&text);
                events.push(format!("{} {} {}", request.stream, target.path.escape_ascii(), head.fields.len()));
                if !request.has_content {
                    answer(&mut server, request.stream, &mut turn);
                }
            }
            other => events.push(format!("{other:?}")),
        }
        assert!(server.open_streams() <= 8 && text.len() <= 4096);
        assert!(output.bytes().len() < OUTPUT_BYTES_MAX + 2000);
    }
    let mut turn = EngineTurn { now, limits: &limits, output: &mut output };
    server.poll_output(usize::MAX, &mut turn, |_, range, out| {
        out.extend(range.map(|at| at as u8));
        Placement::Copied
    });
    flush(&mut output, &mut sent);
    check_frames(&sent);
    (events, sent)
}

fn answer(server: &mut H2ServerConnection, stream: StreamId, turn: &mut EngineTurn<'_>) {
    if server.send_response(stream, Status::OK, &Fields::new(), false, turn).is_ok() {
        server.offer_content(stream, 70_000, true, turn).expect("it was there");
    }
}

fn flush(output: &mut H2Output, sent: &mut Vec<u8>) {
    sent.extend_from_slice(output.bytes());
    output.clear();
}

/// Checks that the output consists of whole, valid frames.
fn check_frames(mut sent: &[u8]) {
    while !sent.is_empty() {
        let length = usize::from(sent[0]) << 16 | usize::from(sent[1]) << 8 | usize::from(sent[2]);
        assert!(length <= 16_384 && sent[3] <= 9 && sent[3] != 5);
        sent = &sent[FRAME_HEADER_BYTES + length..];
    }
}
