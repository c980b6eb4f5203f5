//! WebSocket client without a socket (RFC 6455): handshake, frames and messages.

use std::ops::Range;

use aws_lc_rs::digest;
use base64ct::{Base64, Encoding};
use wire::h1::{HeadLimits, ResponseHead, parse_response_head};

use super::check::BodyJudge;
use super::failure::{FailureClass, FailureReason};
use super::http2::Http2Request;

const HEAD_LIMITS: HeadLimits = HeadLimits { head_bytes_max: 64 << 10, fields_max: 256, target_bytes_max: 0 };
/// Maximum content of a control frame (RFC 6455, section 5.5).
const CONTROL_BYTES_MAX: u64 = 125;
/// Maximum bytes of pongs that wait to be sent. A server that sends more pings without reading gets no pong.
const PENDING_BYTES_MAX: usize = 64 << 10;

/// Handshake of a run, and the response that it requires. All connections of a run use the same key.
#[derive(Debug)]
pub(crate) struct WebSocketHandshake {
    /// Request with all fields.
    pub(crate) request: Vec<u8>,
    /// Required value of `Sec-WebSocket-Accept`.
    pub(crate) accept: String,
    /// Handshake over HTTP/2, which needs neither of them.
    pub(crate) http2: Option<Http2Request>,
}

impl WebSocketHandshake {
    /// Completes a head, without its last empty line, to a handshake with this key.
    pub(crate) fn new(head: &[u8], key: [u8; 16]) -> Self {
        let key = Base64::encode_string(&key);
        let mut request = head.to_vec();
        let fields = format!(
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
        );
        request.extend_from_slice(fields.as_bytes());
        Self { request, accept: accept_value(&key), http2: None }
    }

    /// Uses HTTP/2.
    pub(crate) fn with_http2(self, request: Http2Request) -> Self {
        Self { http2: Some(request), ..self }
    }
}

/// Value of `Sec-WebSocket-Accept` for a key (RFC 6455, section 4.2.2).
fn accept_value(key: &str) -> String {
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    Base64::encode_string(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref())
}

/// Opcodes (RFC 6455, section 5.2).
mod opcode {
    pub(super) const CONTINUATION: u8 = 0;
    pub(super) const TEXT: u8 = 1;
    pub(super) const BINARY: u8 = 2;
    pub(super) const CLOSE: u8 = 8;
    pub(super) const PING: u8 = 9;
    pub(super) const PONG: u8 = 10;
}

/// Frame of a message from the client.
pub(crate) fn message_frame(content: &[u8], is_text: bool, mask: [u8; 4]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 14);
    write_frame(&mut out, if is_text { opcode::TEXT } else { opcode::BINARY }, content, mask);
    out
}

fn write_frame(out: &mut Vec<u8>, opcode: u8, content: &[u8], mask: [u8; 4]) {
    out.push(0x80 | opcode);
    match content.len() {
        length @ 0..=125 => out.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask);
    out.extend(content.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

/// Client side of a connection.
#[derive(Debug, Default)]
pub(crate) struct WebSocket {
    is_open: bool,
    /// Beginning of an incomplete head or control frame.
    partial: Vec<u8>,
    /// Rest of the data frame of which a part has arrived.
    frame: Option<DataFrame>,
    /// True after a frame that is not the last of its message.
    is_fragmented: bool,
    /// Control frames to send.
    pending: Vec<u8>,
    pub(crate) judge: BodyJudge,
    /// Content of the message so far; `None` between messages.
    pub(crate) message_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct DataFrame {
    remaining_bytes: u64,
    is_last: bool,
}

/// Event of the input.
#[derive(Debug, PartialEq)]
pub(crate) enum WebSocketEvent {
    NeedInput,
    /// The handshake is complete.
    Open,
    /// The server has not accepted the handshake.
    Rejected(FailureClass, FailureReason),
    /// Content of a message, and whether it is the end of the message.
    Content(Range<usize>, bool),
    /// A control frame that needs nothing.
    Other,
    /// The server closes the connection, with this code.
    Close(u16),
    /// The server violates the protocol.
    Malformed(&'static str),
}

impl WebSocket {
    /// WebSocket whose handshake is complete.
    pub(crate) fn opened() -> Self {
        Self { is_open: true, ..Self::default() }
    }

    /// Handles input. Returns how many bytes it consumed. Call it with the rest until it needs more.
    pub(crate) fn handle_input(
        &mut self,
        input: &[u8],
        accept: &str,
        scratch: &mut ResponseHead,
    ) -> (usize, WebSocketEvent) {
        if let Some(frame) = &mut self.frame {
            let length = usize::try_from(frame.remaining_bytes).unwrap_or(usize::MAX).min(input.len());
            if length == 0 && frame.remaining_bytes > 0 {
                return (0, WebSocketEvent::NeedInput);
            }
            frame.remaining_bytes -= length as u64;
            let DataFrame { remaining_bytes, is_last } = *frame;
            if remaining_bytes == 0 {
                self.frame = None;
            }
            return (length, WebSocketEvent::Content(0..length, remaining_bytes == 0 && is_last));
        }
        if input.is_empty() {
            return (0, WebSocketEvent::NeedInput);
        }
        if self.partial.is_empty() {
            let (consumed_bytes, event) = self.parse(input, accept, scratch);
            if event == WebSocketEvent::NeedInput {
                self.partial.extend_from_slice(input);
                return (input.len(), event);
            }
            return (consumed_bytes, event);
        }
        let earlier_bytes = self.partial.len();
        let mut whole = std::mem::take(&mut self.partial);
        whole.extend_from_slice(input);
        let (consumed_bytes, event) = self.parse(&whole, accept, scratch);
        if event == WebSocketEvent::NeedInput {
            self.partial = whole;
            return (input.len(), event);
        }
        // The earlier bytes were incomplete, so what is consumed ends after them.
        (consumed_bytes.saturating_sub(earlier_bytes), event)
    }

    fn parse(&mut self, input: &[u8], accept: &str, scratch: &mut ResponseHead) -> (usize, WebSocketEvent) {
        if self.is_open { self.parse_frame(input) } else { self.parse_handshake(input, accept, scratch) }
    }

    fn parse_handshake(&mut self, input: &[u8], accept: &str, head: &mut ResponseHead) -> (usize, WebSocketEvent) {
        let length = match parse_response_head(input, head, &HEAD_LIMITS) {
            Ok(Some(length)) => length,
            Ok(None) => return (0, WebSocketEvent::NeedInput),
            Err(malformed) => return (0, WebSocketEvent::Malformed(malformed.0)),
        };
        let has = |name: &[u8], is_right: &dyn Fn(&[u8]) -> bool| head.values(input, name).any(is_right);
        let event = match head.status.code() {
            101 if !has(b"upgrade", &|value| value.eq_ignore_ascii_case(b"websocket")) => {
                WebSocketEvent::Malformed("a status 101 without `Upgrade: websocket`")
            }
            101 if !has(b"sec-websocket-accept", &|value| value == accept.as_bytes()) => {
                WebSocketEvent::Malformed("a wrong Sec-WebSocket-Accept")
            }
            101 => {
                self.is_open = true;
                WebSocketEvent::Open
            }
            100 | 102..=199 => WebSocketEvent::Other,
            status => WebSocketEvent::Rejected(FailureClass::Status, FailureReason::Status(status)),
        };
        (length, event)
    }

    fn parse_frame(&mut self, input: &[u8]) -> (usize, WebSocketEvent) {
        let &[first, second, ..] = input else { return (0, WebSocketEvent::NeedInput) };
        let (is_last, opcode) = (first & 0x80 != 0, first & 0x0f);
        let is_control = opcode & 0x08 != 0;
        let malformed = |text| (0, WebSocketEvent::Malformed(text));
        if first & 0x70 != 0 {
            return malformed("a WebSocket frame with bits of an extension that was not agreed on");
        }
        if second & 0x80 != 0 {
            return malformed("a masked WebSocket frame from the server");
        }
        let rest = &input[2..];
        let (length, head_bytes) = match second & 0x7f {
            126 => match rest {
                &[a, b, ..] => (u64::from(u16::from_be_bytes([a, b])), 4),
                _ => return (0, WebSocketEvent::NeedInput),
            },
            127 => match rest.first_chunk::<8>() {
                Some([high, ..]) if high & 0x80 != 0 => {
                    return malformed("a WebSocket frame with a length of 2^63 bytes or more");
                }
                Some(bytes) => (u64::from_be_bytes(*bytes), 10),
                None => return (0, WebSocketEvent::NeedInput),
            },
            length => (u64::from(length), 2),
        };
        if is_control {
            if !is_last || length > CONTROL_BYTES_MAX {
                return malformed("a WebSocket control frame that is fragmented or too long");
            }
            let end = head_bytes + length as usize;
            let Some(content) = input.get(head_bytes..end) else { return (0, WebSocketEvent::NeedInput) };
            return (end, self.on_control(opcode, content));
        }
        match (opcode, self.is_fragmented) {
            (opcode::CONTINUATION, true) | (opcode::TEXT | opcode::BINARY, false) => {}
            (opcode::CONTINUATION, false) => return malformed("a WebSocket continuation without a beginning"),
            (opcode::TEXT | opcode::BINARY, true) => return malformed("a WebSocket message within another"),
            _ => return malformed("a WebSocket frame with an unknown opcode"),
        }
        self.is_fragmented = !is_last;
        match length {
            0 => (head_bytes, WebSocketEvent::Content(0..0, is_last)),
            remaining_bytes => {
                self.frame = Some(DataFrame { remaining_bytes, is_last });
                (head_bytes, WebSocketEvent::Other)
            }
        }
    }

    fn on_control(&mut self, opcode: u8, content: &[u8]) -> WebSocketEvent {
        match opcode {
            opcode::PING => {
                if self.pending.len() < PENDING_BYTES_MAX {
                    write_frame(&mut self.pending, opcode::PONG, content, [0; 4]);
                }
                WebSocketEvent::Other
            }
            opcode::PONG => WebSocketEvent::Other,
            opcode::CLOSE => match content {
                &[a, b, ..] => WebSocketEvent::Close(u16::from_be_bytes([a, b])),
                // 1005 stands for a missing code (RFC 6455, section 7.4.1).
                _ => WebSocketEvent::Close(1005),
            },
            _ => WebSocketEvent::Malformed("a WebSocket frame with an unknown opcode"),
        }
    }

    /// Announces the end of the connection.
    pub(crate) fn shut_down(&mut self) {
        write_frame(&mut self.pending, opcode::CLOSE, &1000u16.to_be_bytes(), [0; 4]);
    }

    /// Appends control frames that wait.
    pub(crate) fn take_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.pending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of an open connection, in pieces of `step` bytes. Content is joined.
    fn events(input: &[u8], step: usize) -> (Vec<String>, WebSocket) {
        let mut socket = WebSocket::opened();
        let (mut events, mut scratch, mut message) = (Vec::new(), ResponseHead::default(), Vec::new());
        for piece in input.chunks(step) {
            let mut rest = piece;
            loop {
                let (consumed_bytes, event) = socket.handle_input(rest, "", &mut scratch);
                match event {
                    WebSocketEvent::NeedInput => break,
                    WebSocketEvent::Content(range, is_last) => {
                        message.extend_from_slice(&rest[range]);
                        if is_last {
                            events.push(String::from_utf8_lossy(&std::mem::take(&mut message)).into_owned());
                        }
                    }
                    WebSocketEvent::Other => {}
                    WebSocketEvent::Malformed(reason) => {
                        events.push(reason.to_owned());
                        return (events, socket);
                    }
                    event => events.push(format!("{event:?}")),
                }
                rest = &rest[consumed_bytes..];
            }
        }
        (events, socket)
    }

    #[test]
    fn frames() {
        let long = [&b"\x82\x7e\x01\x00"[..], &[b'x'; 256]].concat();
        let longer = [&b"\x82\x7f\0\0\0\0\0\0\x01\x00"[..], &[b'x'; 256]].concat();
        let x = "x".repeat(256);
        for (input, expect) in [
            (&b"\x81\x02ab\x82\x01c"[..], &["ab", "c"][..]),
            (b"\x81\x00\x81\x01a", &["", "a"]),
            (b"\x01\x01a\x80\x01b", &["ab"]),
            (b"\x01\x01a\x89\x01p\x00\x00\x80\x01b", &["ab"]),
            (b"\x01\x01a\x80\x00", &["a"]),
            (&long, &[&x]),
            (&longer, &[&x]),
            (b"\x88\x02\x03\xe8", &["Close(1000)"]),
            (b"\x88\x00", &["Close(1005)"]),
            (b"\xc1\x00", &["a WebSocket frame with bits of an extension that was not agreed on"]),
            (b"\x81\x80", &["a masked WebSocket frame from the server"]),
            (b"\x80\x00", &["a WebSocket continuation without a beginning"]),
            (b"\x01\x00\x81\x00", &["a WebSocket message within another"]),
            (b"\x09\x00", &["a WebSocket control frame that is fragmented or too long"]),
            (b"\x89\x7e\x00\x7e", &["a WebSocket control frame that is fragmented or too long"]),
            (b"\x83\x00", &["a WebSocket frame with an unknown opcode"]),
            (b"\x8b\x00", &["a WebSocket frame with an unknown opcode"]),
        ] {
            for step in [1, 2, 5, 1000] {
                assert_eq!(events(input, step).0, expect, "{input:?} in pieces of {step}");
            }
        }
    }

    #[test]
    fn pings_get_pongs() {
        let (_, mut socket) = events(b"\x89\x02hi", 1);
        let mut out = Vec::new();
        socket.take_output(&mut out);
        assert_eq!(out, b"\x8a\x82\0\0\0\0hi");
        let (_, mut socket) = events(&b"\x89\x02hi".repeat(100_000), 1000);
        out.clear();
        socket.take_output(&mut out);
        assert!(out.len() < PENDING_BYTES_MAX + 200);
    }

    #[test]
    fn handshakes() {
        // RFC 6455, section 1.3.
        let handshake = WebSocketHandshake::new(b"GET / HTTP/1.1\r\n", *b"the sample nonce");
        assert_eq!(handshake.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let text = String::from_utf8(handshake.request).unwrap();
        assert!(text.ends_with("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"), "{text}");
        let accept = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        for (response, expect) in [
            (format!("HTTP/1.1 101 x\r\nUpgrade: WebSocket\r\n{accept}\r\n\r\n"), "Open"),
            (format!("HTTP/1.1 101 x\r\n{accept}\r\n\r\n"), "Malformed(\"a status 101"),
            ("HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n".to_owned(), "Malformed(\"a wrong Sec-WebSocket-Accept"),
            ("HTTP/1.1 404 x\r\n\r\n".to_owned(), "Rejected(Status, Status(404))"),
            ("nonsense\r\n\r\n".to_owned(), "Malformed"),
        ] {
            let (mut socket, mut scratch) = (WebSocket::default(), ResponseHead::default());
            let (first, rest) = response.as_bytes().split_at(9);
            let mut event = socket.handle_input(first, &handshake.accept, &mut scratch).1;
            if event == WebSocketEvent::NeedInput {
                event = socket.handle_input(rest, &handshake.accept, &mut scratch).1;
            }
            assert!(format!("{event:?}").starts_with(expect), "{response}: {event:?}");
        }
    }

    #[test]
    fn messages_are_masked() {
        assert_eq!(message_frame(b"ab", true, [1, 2, 3, 4]), b"\x81\x82\x01\x02\x03\x04\x60\x60");
        assert_eq!(message_frame(&[0; 200], false, [0; 4])[..8], *b"\x82\xfe\x00\xc8\0\0\0\0");
        assert_eq!(message_frame(&[0; 70_000], false, [0; 4])[..10], *b"\x82\xff\0\0\0\0\0\x01\x11\x70");
    }
}
