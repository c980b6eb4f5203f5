//! Server side of a connection: the state between messages.

use super::{
    BodyDecoder, BodyFraming, BodyLimits, DecodedBody, Framing, HeadLimits, MessageRejection, parse_request_head,
    request_framing,
};
use crate::http::{Fields, Host, KnownField, Request, RequestHead, RequestTarget, Version};

/// Limits on a connection's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputLimits {
    /// Limits of each head.
    pub head: HeadLimits,
    /// Limits of each request's content.
    pub body: BodyLimits,
}

/// Server role of an HTTP/1 connection, without its socket: input goes in, events for requests and their content come
/// out. The caller keeps the bytes that are not consumed.
#[derive(Debug, Default)]
pub struct H1ServerConnection {
    state: H1ServerState,
    /// Trailers of the last complete content. Boxed because they are rare.
    trailers: Option<Box<Fields>>,
}

#[derive(Debug, Default)]
enum H1ServerState {
    /// Expects a request's head.
    #[default]
    AwaitHead,
    /// Expects content of the last request.
    AwaitBody(Box<BodyDecoder>),
    /// Expects nothing: a message was rejected, so the start of the next one is unknown.
    Rejected,
}

/// Meaning of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum H1Event<'a> {
    /// The caller must provide more input.
    NeedInput,
    /// Head of a request; it is valid.
    Request(H1IncomingRequest<'a>),
    /// Piece of the request's content.
    Content(DecodedBody),
}

/// A request with a complete head. The head itself is in the [`RequestHead`] it was parsed into.
#[derive(Debug, PartialEq, Eq)]
pub struct H1IncomingRequest<'a> {
    /// Length of the head, which the caller must drop from its input.
    pub head_bytes: usize,
    /// Framing of the content, and persistence of the connection.
    pub framing: Framing,
    /// Parsed request target.
    pub target: RequestTarget<'a>,
    /// Host of the request: from the target if it names one, otherwise from the Host field. `None` for HTTP/1.0 without
    /// Host.
    pub host: Option<Host<'a>>,
}

impl H1ServerConnection {
    /// Handles input that has not been consumed. Call it until it returns [`H1Event::NeedInput`].
    pub fn handle_input<'a>(
        &mut self,
        input: &'a [u8],
        head: &mut RequestHead,
        limits: &InputLimits,
    ) -> Result<H1Event<'a>, MessageRejection> {
        let result = match self.state {
            H1ServerState::AwaitHead => self.on_head_input(input, head, limits),
            H1ServerState::AwaitBody(_) => self.on_content_input(input, limits),
            H1ServerState::Rejected => Ok(H1Event::NeedInput),
        };
        if result.is_err() {
            self.state = H1ServerState::Rejected;
        }
        result
    }

    /// Returns whether content of the last request is missing.
    pub fn awaits_content(&self) -> bool {
        matches!(self.state, H1ServerState::AwaitBody(_))
    }

    /// Returns the trailer fields of the last complete content.
    pub fn take_trailers(&mut self) -> Option<Box<Fields>> {
        self.trailers.take()
    }

    fn on_content_input<'a>(&mut self, input: &[u8], limits: &InputLimits) -> Result<H1Event<'a>, MessageRejection> {
        let H1ServerState::AwaitBody(decoder) = &mut self.state else { return Ok(H1Event::NeedInput) };
        let decoded = decoder.decode(input, &limits.body)?;
        if decoded.is_complete {
            let trailers = decoder.take_trailers();
            self.trailers = (!trailers.is_empty()).then(|| Box::new(trailers));
            self.state = H1ServerState::AwaitHead;
        } else if decoded.consumed_bytes == 0 {
            return Ok(H1Event::NeedInput);
        }
        Ok(H1Event::Content(decoded))
    }

    fn on_head_input<'a>(
        &mut self,
        input: &'a [u8],
        head: &mut RequestHead,
        limits: &InputLimits,
    ) -> Result<H1Event<'a>, MessageRejection> {
        let Some(head_bytes) = parse_request_head(input, head, &limits.head)? else { return Ok(H1Event::NeedInput) };
        let request = Request { head, bytes: input };
        let target = RequestTarget::parse(head.target.of(input), head.method)
            .map_err(|_| MessageRejection::bad_request("malformed request target"))?;
        let host = request_host(head, input)?;
        let framing = request_framing(&request)?;
        if let BodyFraming::Length(length) = framing.body
            && length > limits.body.body_bytes_max
        {
            return Err(MessageRejection::CONTENT_TOO_LARGE);
        }
        if let Some(decoder) = BodyDecoder::new(framing.body) {
            self.state = H1ServerState::AwaitBody(Box::new(decoder));
        }
        Ok(H1Event::Request(H1IncomingRequest { head_bytes, framing, target, host: target.host.or(host) }))
    }
}

/// Parses the Host field. Each HTTP/1.1 request must have exactly one valid Host field (RFC 9112, section 3.2), even if
/// the target names a host. It may be empty only for targets without authority; CONNECT and http URIs always have one.
fn request_host<'a>(head: &RequestHead, input: &'a [u8]) -> Result<Option<Host<'a>>, MessageRejection> {
    if head.is_repeated(KnownField::Host) {
        return Err(MessageRejection::bad_request("more than one Host"));
    }
    let Some(field) = head.first(KnownField::Host) else {
        return if head.version >= Version::Http11 { Err(MessageRejection::bad_request("no Host")) } else { Ok(None) };
    };
    match Host::parse(field.value.of(input)) {
        Ok(host) if host.name.is_empty() => Err(MessageRejection::bad_request("empty Host")),
        Ok(host) => Ok(Some(host)),
        Err(_) => Err(MessageRejection::bad_request("malformed Host")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `input` in pieces of `step` bytes. Returns each request's target and content, then the status of a
    /// rejection.
    fn run(input: &[u8], step: usize) -> Vec<String> {
        let limits = InputLimits::default();
        let (mut connection, mut head) = (H1ServerConnection::default(), RequestHead::default());
        let (mut events, mut start, mut end) = (Vec::<String>::new(), 0, 0);
        loop {
            match connection.handle_input(&input[start..end], &mut head, &limits) {
                Ok(H1Event::Request(request)) => {
                    events.push(String::from_utf8_lossy(request.target.path).into_owned());
                    start += request.head_bytes;
                }
                Ok(H1Event::Content(content)) => {
                    let piece = &input[start..end][content.content];
                    events.last_mut().unwrap().push_str(&String::from_utf8_lossy(piece));
                    start += content.consumed_bytes;
                }
                Ok(H1Event::NeedInput) if end == input.len() => return events,
                Ok(H1Event::NeedInput) => end = (end + step).min(input.len()),
                Err(rejection) => {
                    events.push(rejection.status.to_string());
                    return events;
                }
            }
        }
    }

    fn check(input: &str, expect: &[&str]) {
        for step in [input.len(), 1, 5] {
            assert_eq!(run(input.as_bytes(), step), expect, "{input:?} in pieces of {step}");
        }
    }

    #[test]
    fn pipelined_requests_with_and_without_content() {
        check(
            "GET /a HTTP/1.1\r\nHost: h\r\n\r\n\
             POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz\
             POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n12\r\n1\r\n3\r\n0\r\n\r\n\
             GET /d HTTP/1.0\r\n\r\n",
            &["/a", "/bxyz", "/c123", "/d"],
        );
    }

    #[test]
    fn rejected_by_name() {
        for (name, input, status) in [
            ("no Host", "GET / HTTP/1.1\r\n\r\n", "400"),
            ("two Hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400"),
            ("two Hosts in 1.0", "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", "400"),
            ("empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", "400"),
            ("Host with path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"),
            ("Host list", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "400"),
            ("absolute-form without Host", "GET http://h/ HTTP/1.1\r\n\r\n", "400"),
            ("relative target", "GET a HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
            ("fragment", "GET /#a HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
            ("asterisk with GET", "GET * HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
            ("content too large", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1048577\r\n\r\n", "413"),
        ] {
            assert_eq!(run(input.as_bytes(), 1), [status], "{name}");
        }
    }

    #[test]
    fn of_several_faults_the_first_counts_however_the_input_is_split() {
        let (long, head_max) = ("a".repeat(8193), InputLimits::default().head.head_bytes_max);
        for (input, status) in [
            (format!("G@T /{long} HTTP/1.1\r\n\r\n"), "400"),
            (format!("GET /\x01{long} HTTP/1.1\r\n\r\n"), "400"),
            (format!("GET /{long}\x01 HTTP/1.1\r\n\r\n"), "414"),
            (format!("GET /{long}\n"), "414"),
            (format!("GET /{long} HTTP/2.0\r\n\r\n"), "414"),
            (format!("{} / HTTP/1.1\r\n\r\n", "A".repeat(257)), "400"),
            (format!("GET / HTTP/2.0\r\nA: {}\n", "a".repeat(head_max)), "505"),
            (format!("GET / HTTP/1.1\r\nA: {}\n", "a".repeat(head_max)), "431"),
            (format!("GET / HTTP/1.1\r\nA : b\r\nA: {}\r\n\r\n", "a".repeat(head_max)), "400"),
            (format!("{}GET / HTTP/2.0\r\n\r\n", "\r\n".repeat(head_max / 2)), "431"),
            (format!("GET / HTTP/1.1\r\n{}x y: z\r\n\r\n", "a: b\r\n".repeat(101)), "431"),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: x\r\nA : b\r\n\r\n".to_owned(), "400"),
        ] {
            check(&input, &[status]);
        }
    }

    #[test]
    fn the_target_overrides_the_host_field() {
        let input = b"GET http://target/ HTTP/1.1\r\nHost: field\r\n\r\n";
        let mut head = RequestHead::default();
        let event = H1ServerConnection::default().handle_input(input, &mut head, &InputLimits::default());
        let Ok(H1Event::Request(request)) = event else { panic!("{event:?}") };
        assert_eq!(request.host.map(|host| host.name), Some(&b"target"[..]));
    }

    #[test]
    fn nothing_is_read_after_a_rejected_message() {
        let mut connection = H1ServerConnection::default();
        let (mut head, limits) = (RequestHead::default(), InputLimits::default());
        assert!(connection.handle_input(b"GET / HTTP/1.1\n\r\n", &mut head, &limits).is_err());
        let next = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(connection.handle_input(next, &mut head, &limits), Ok(H1Event::NeedInput));
    }
}
