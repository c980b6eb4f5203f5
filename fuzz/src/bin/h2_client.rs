//! The client's side of an HTTP/2 connection: whatever a server sends, the same events however it is split, within limits.
//!
//! The input is a row of commands for the server: a byte that says what is sent, the length of what it takes, and that.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use wire::h2::{ClientEvent, EngineTurn, H2ClientConnection, H2Limits, H2Output, OutgoingRequest};
use wire::http::Fields;

const REQUESTS: usize = 4;

fuzz_target!(|input: &[u8]| {
    let bytes = model_server(input);
    let whole = run(&bytes, bytes.len());
    assert_eq!(run(&bytes, 1), whole);
    assert_eq!(run(&bytes, 5), whole);
});

fn model_server(input: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), input);
    write_frame(&mut bytes, 4, 0, 0, &[]);
    while let [command, length, following @ ..] = rest {
        let (argument, following) = following.split_at(usize::from(*length).min(following.len()));
        rest = following;
        let stream = 1 + 2 * u32::from(*command >> 4);
        match command & 15 {
            // Heads that begin with 200, and any.
            0 | 1 => write_frame(&mut bytes, 1, 4 | (command & 1), stream, &[&[0x88], argument].concat()),
            2 | 3 => write_frame(&mut bytes, 1, 4 | (command & 1), stream, argument),
            4 | 5 => write_frame(&mut bytes, 0, command & 1, stream, argument),
            6 => write_frame(&mut bytes, 3, 0, stream, &[0, 0, 0, *length]),
            7 => write_frame(&mut bytes, 7, 0, 0, &[0, 0, 0, stream as u8, 0, 0, 0, *length]),
            8 => write_frame(&mut bytes, 8, 0, stream, &[0, 0, 0, *length]),
            9 => write_frame(&mut bytes, 4, 0, 0, &[0, 3, 0, 0, 0, *length]),
            10 => write_frame(&mut bytes, 1, 0, stream, argument),
            11 => write_frame(&mut bytes, 9, 4, stream, argument),
            12 => write_frame(&mut bytes, 4, 1, 0, &[]),
            _ => bytes.extend_from_slice(argument),
        }
    }
    bytes
}

fn write_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, high, middle, low] = (payload.len() as u32).to_be_bytes();
    out.extend([high, middle, low, kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

/// Events of a client for these bytes, and its output.
fn run(input: &[u8], step: usize) -> (Vec<String>, Vec<u8>) {
    let (limits, now) = (H2Limits { output_bytes_max: usize::MAX, ..H2Limits::default() }, Duration::ZERO);
    let (mut client, mut output, mut fields) =
        (H2ClientConnection::new(now, &limits), H2Output::default(), Fields::new());
    let mut turn = EngineTurn { now, limits: &limits, output: &mut output };
    client.start(&mut turn);
    for method in [&b"GET"[..], b"HEAD", b"GET", b"CONNECT"] {
        let path = (method != b"CONNECT").then_some(&b"/"[..]);
        let scheme = path.map(|_| &b"http"[..]);
        let request = OutgoingRequest { method, scheme, authority: Some(b"a:1"), path, protocol: None };
        client.send_request(&request, &Fields::new(), path.is_some(), &mut turn).expect("nothing forbids it");
    }
    let (mut events, mut start, mut end) = (Vec::<String>::new(), 0, 0);
    loop {
        let rest = &input[start..end];
        let handled = client.handle_input(rest, &mut fields, &mut turn);
        start += handled.consumed_bytes;
        assert!(client.open_streams() <= REQUESTS);
        match handled.event {
            ClientEvent::NeedInput if end == input.len() => break,
            ClientEvent::NeedInput => end = (end + step.max(1)).min(input.len()),
            ClientEvent::Content { stream, content, is_last } => {
                client.take_content(stream, content.len(), &mut turn);
                let content = rest[content].escape_ascii().to_string();
                match events.last_mut().filter(|last| last.starts_with(&format!("{stream}: "))) {
                    Some(last) => last.push_str(&content),
                    None => events.push(format!("{stream}: {content}")),
                }
                if is_last {
                    events.push(format!("{stream} is complete"));
                }
            }
            ClientEvent::Response { stream, status, is_last } => {
                let names: Vec<_> = fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
                events.push(format!("{stream} {status} {is_last} {names:?}"));
            }
            ClientEvent::Closed(error) => {
                events.push(format!("{error:?}"));
                break;
            }
            other => events.push(format!("{other:?}")),
        }
    }
    (events, output.bytes().to_vec())
}
