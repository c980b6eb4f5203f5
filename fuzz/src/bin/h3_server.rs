//! An HTTP/3 connection: our server and a client that sends anything on its streams. Frames may be valid (a model client
//! follows the rules as long as the input says so) or random bytes. Our client understands all responses of our server. Memory
//! and streams stay within their limits, and split input gives the same result.
//!
//! The input is a row of commands: a byte for the command and the stream, then the length of its argument, and the argument.

#![no_main]

use std::collections::BTreeMap;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use wire::h3::{
    H3ClientConnection, H3Event, H3Limits, H3Output, H3ServerConnection, H3StreamId, H3Turn, OutgoingRequest,
};
use wire::http::{Fields, RequestHead, Status};
use wire::qpack::DecoderLimits;

const NOW: Duration = Duration::ZERO;

fn limits() -> H3Limits {
    let mut limits = H3Limits { concurrent_streams_max: 4, field_section_bytes_max: 200, ..H3Limits::default() };
    limits.decoder = DecoderLimits { table_bytes_max: 200, blocked_streams_max: 2 };
    limits.body.body_bytes_max = 300;
    limits.head.head_bytes_max = 1000;
    limits.enables_connect_protocol = true;
    limits
}

fuzz_target!(|input: &[u8]| {
    let commands = model_client(input);
    let whole = run(&commands, usize::MAX);
    assert_eq!(run(&commands, 1), whole);
    assert_eq!(run(&commands, 7), whole);
});

/// Something that the client does on a stream.
enum Action {
    Send(Vec<u8>),
    End,
    Reset,
    StopSending,
}

fn model_client(input: &[u8]) -> Vec<(u64, Action)> {
    let (mut commands, mut rest) = (vec![(2, Action::Send(vec![0, 4, 0]))], input);
    while let [command, length, following @ ..] = rest {
        let (argument, following) = following.split_at(usize::from(*length).min(following.len()));
        rest = following;
        let request = 4 * u64::from(command >> 5);
        let get = |method: u8| [&[0, 0, method, 0xd7, 0x50, 1, b'a', 0xc1][..], argument].concat();
        let (stream, action) = match command & 15 {
            0 => (request, Action::Send(frame(1, &get(0xd1)))),
            1 => (request, Action::Send(frame(1, &get(0xd4)))),
            2 => (request, Action::Send(frame(1, argument))),
            3 | 4 => (request, Action::Send(frame(0, argument))),
            5 => (request, Action::End),
            6 => (request, Action::Reset),
            7 => (request, Action::StopSending),
            8 => (2, Action::Send(argument.to_vec())),
            9 => (6, Action::Send(argument.to_vec())),
            10 => (10, Action::Send(argument.to_vec())),
            11 => (14 + request, Action::Send(argument.to_vec())),
            12 => (2, Action::Send([&[0x80, 0x0f, 7, 0, 5, request as u8][..], b"u=1"].concat())),
            _ => (request, Action::Send(argument.to_vec())),
        };
        commands.push((stream, action));
    }
    commands
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind, 0x40 | (payload.len() >> 8) as u8, payload.len() as u8], payload].concat()
}

/// A server, and what the transport keeps for it.
struct Model {
    server: H3ServerConnection,
    limits: H3Limits,
    output: H3Output,
    head: RequestHead,
    text: Vec<u8>,
    /// Input that is not consumed, and whether the stream ends after it.
    pending: BTreeMap<u64, (Vec<u8>, bool)>,
    events: Vec<String>,
    is_closed: bool,
}

/// Events of a server for these commands, and its output.
fn run(commands: &[(u64, Action)], step: usize) -> (Vec<String>, Vec<u8>, Vec<u8>) {
    let limits = limits();
    let mut model = Model {
        server: H3ServerConnection::new(&limits),
        limits,
        output: H3Output::default(),
        head: RequestHead::default(),
        text: Vec::new(),
        pending: BTreeMap::new(),
        events: Vec::new(),
        is_closed: false,
    };
    for (stream, action) in commands {
        model.act(*stream, action, step);
        if model.is_closed {
            break;
        }
    }
    (model.events, model.output.control, model.output.encoder)
}

impl Model {
    fn act(&mut self, stream: u64, action: &Action, step: usize) {
        let id = H3StreamId(stream);
        if !self.pending.contains_key(&stream) {
            self.pending.insert(stream, (Vec::new(), false));
            let mut turn = H3Turn { now: NOW, limits: &self.limits, output: &mut self.output };
            let event = self.server.accept(id, &mut turn);
            self.note(event, &[]);
        }
        match action {
            Action::Send(bytes) => {
                // When instructions arrive decides which sections are blocked, and for how long. Each unidirectional stream except
                // that of SETTINGS may be the encoder's.
                let step = if stream & 2 != 0 && stream != 2 { usize::MAX } else { step };
                for piece in bytes.chunks(step.min(bytes.len()).max(1)) {
                    let Some((pending, false)) = self.pending.get_mut(&stream).filter(|_| !self.is_closed) else {
                        return;
                    };
                    pending.extend_from_slice(piece);
                    self.handle(stream);
                    while let Some(unblocked) = self.server.poll_unblocked() {
                        self.handle(unblocked.0);
                    }
                }
            }
            Action::End => {
                if let Some((_, is_fin)) = self.pending.get_mut(&stream) {
                    *is_fin = true;
                }
                self.handle(stream);
            }
            Action::Reset | Action::StopSending => {
                let code = wire::h3::H3ErrorCode::H3_REQUEST_CANCELLED;
                let mut turn = H3Turn { now: NOW, limits: &self.limits, output: &mut self.output };
                let event = match action {
                    Action::Reset => self.server.on_reset(id, code, &mut turn),
                    _ => self.server.on_stop_sending(id, code, &mut turn),
                };
                self.note(event, &[]);
            }
        }
    }

    fn handle(&mut self, stream: u64) {
        let (input, is_fin) = self.pending.remove(&stream).unwrap_or_default();
        let mut at = 0;
        loop {
            let mut turn = H3Turn { now: NOW, limits: &self.limits, output: &mut self.output };
            let (head, text) = (&mut self.head, &mut self.text);
            let handled = self.server.handle_input(H3StreamId(stream), &input[at..], is_fin, head, text, &mut turn);
            let rest = &input[at..];
            at += handled.consumed_bytes;
            if self.note(handled.event, rest) {
                break;
            }
        }
        // A section, a control frame or an instruction, each incomplete, and what waits for a section that is blocked.
        self.pending.insert(stream, (input[at..].to_vec(), is_fin));
        assert!(self.server.open_streams() <= 4 && self.text.len() <= 4096);
    }

    /// Records an event. Returns whether the input is done with.
    fn note(&mut self, event: H3Event<wire::h3::H3IncomingRequest>, input: &[u8]) -> bool {
        match event {
            H3Event::NeedInput | H3Event::Blocked | H3Event::AwaitOutput => return true,
            H3Event::Content { stream, content, is_last } => {
                // Content may come in other pieces.
                let prefix = format!("{stream}: ");
                let content = input[content].escape_ascii().to_string();
                match self.events.last_mut().filter(|last| last.starts_with(&prefix)) {
                    Some(last) => last.push_str(&content),
                    None if content.is_empty() => {}
                    None => self.events.push(prefix + &content),
                }
                if is_last {
                    self.events.push(format!("{stream} is complete"));
                }
            }
            H3Event::Head(request) => {
                assert!(request.host(&self.text).is_some());
                let path = request.target(&self.text).path.escape_ascii().to_string();
                self.events.push(format!("{} {path} {}", request.stream, self.head.fields.len()));
                self.answer(request.stream);
            }
            H3Event::Closed(error) => {
                self.is_closed = true;
                self.events.push(format!("{error:?}"));
                return true;
            }
            H3Event::Reset { .. } => {
                self.events.push(format!("{event:?}"));
                return true;
            }
            other => self.events.push(format!("{other:?}")),
        }
        false
    }

    /// Answers a request. Our client must understand the response.
    fn answer(&mut self, stream: H3StreamId) {
        let (mut out, mut fields) = (Vec::new(), Fields::new());
        fields.push("X-A", "b");
        let mut turn = H3Turn { now: NOW, limits: &self.limits, output: &mut self.output };
        self.server.send_response(stream, Status::OK, &fields, false, &mut out, &mut turn).expect("it was there");
        self.server.send_data_header(stream, 3, true, &mut out).expect("it was there");
        out.extend_from_slice(b"abc");
        let (limits, mut output) = (H3Limits::default(), H3Output::default());
        let mut turn = H3Turn { now: NOW, limits: &limits, output: &mut output };
        let mut client = H3ClientConnection::new(&limits);
        let request = OutgoingRequest {
            method: b"GET",
            scheme: Some(b"https"),
            authority: Some(b"a"),
            path: Some(b"/"),
            protocol: None,
        };
        assert!(client.send_request(stream, &request, &Fields::new(), true, &mut Vec::new(), &mut turn));
        let handled = client.handle_response(stream, &out, true, &mut fields, &mut turn);
        assert!(matches!(handled.event, H3Event::Head(response) if response.status == Status::OK && !response.is_last));
        let rest = &out[handled.consumed_bytes..];
        let handled = client.handle_response(stream, rest, true, &mut fields, &mut turn);
        assert!(
            matches!(handled.event, H3Event::Content { content, is_last: true, .. } if rest[content.clone()] == *b"abc")
        );
        assert_eq!(client.open_streams(), 0);
    }
}
