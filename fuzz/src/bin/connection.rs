//! The server's side of a connection: the same requests and content however the input is split, and nothing after a
//! rejection. The first line of the input is a number that decides where it is split.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailcoat_fuzz::take_number;
use wire::h1::{BodyLimits, H1Event, H1ServerConnection, HeadLimits, InputLimits, MessageRejection};
use wire::http::{RequestHead, path};

const LIMITS: InputLimits = InputLimits {
    head: HeadLimits { head_bytes_max: 300, fields_max: 10, target_bytes_max: 100 },
    body: BodyLimits { body_bytes_max: 100, extension_bytes_max: 50, trailer_bytes_max: 50 },
};

fuzz_target!(|input: &[u8]| {
    let (seed, stream) = take_number(input);
    let whole = run(stream, std::iter::repeat(stream.len()));
    assert_eq!(run(stream, std::iter::repeat(1)), whole);
    assert_eq!(run(stream, steps(seed)), whole);
});

/// Sizes of pieces, from 1 to 32 bytes, by an xorshift generator.
fn steps(seed: u64) -> impl Iterator<Item = usize> {
    let mut state = seed | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        1 + (state >> 59) as usize
    })
}

/// Result of a connection: a line for each request, with its joined content, then the status if it rejected the rest.
fn run(input: &[u8], mut steps: impl Iterator<Item = usize>) -> Vec<(String, Vec<u8>)> {
    let (mut connection, mut head) = (H1ServerConnection::default(), RequestHead::default());
    let (mut events, mut start, mut end) = (Vec::new(), 0, 0);
    loop {
        match connection.handle_input(&input[start..end], &mut head, &LIMITS) {
            Ok(H1Event::Request(request)) => {
                assert!(request.head_bytes > 0 && request.head_bytes <= LIMITS.head.head_bytes_max);
                let _ = path::normalise(request.target.path, &mut Vec::new());
                events.push((format!("{:?} {:?}", head.method, request), Vec::new()));
                start += request.head_bytes;
            }
            Ok(H1Event::Content(decoded)) => {
                assert!(decoded.consumed_bytes > 0);
                let content = &mut events.last_mut().expect("content comes after its request").1;
                content.extend_from_slice(&input[start..end][decoded.content]);
                assert!(content.len() as u64 <= LIMITS.body.body_bytes_max);
                start += decoded.consumed_bytes;
            }
            Ok(H1Event::NeedInput) if end == input.len() => return events,
            // Zero would be no progress: an empty input has none.
            Ok(H1Event::NeedInput) => end = (end + steps.next().unwrap_or(1).max(1)).min(input.len()),
            Err(rejection) => {
                check_rejected(&mut connection, &mut head, rejection);
                events.push((format!("refused with {}", rejection.status), Vec::new()));
                return events;
            }
        }
    }
}

/// The server reads nothing after a rejected message, because the start of the next one is unknown.
fn check_rejected(connection: &mut H1ServerConnection, head: &mut RequestHead, rejection: MessageRejection) {
    assert!((400..600).contains(&rejection.status.code()) && !rejection.reason.is_empty());
    let next = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    assert_eq!(connection.handle_input(next, head, &LIMITS), Ok(H1Event::NeedInput));
}
