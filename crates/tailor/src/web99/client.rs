//! HTTP/1 client that sends one request at a time, for commands and the checker.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use wire::h1::{
    BodyDecoder, BodyLimits, HeadLimits, ResponseFraming, ResponseHead, parse_response_head, write_request_head,
};
use wire::http::{Fields, Method, Version};

/// Maximum time to connect, and to wait for the next bytes.
const TIME_OUT: Duration = Duration::from_secs(30);
const HEAD_LIMITS: HeadLimits = HeadLimits { head_bytes_max: 64 << 10, fields_max: 256, target_bytes_max: 0 };
const BODY_LIMITS: BodyLimits =
    BodyLimits { body_bytes_max: 1 << 30, extension_bytes_max: 1 << 16, trailer_bytes_max: 1 << 16 };

/// Address and name of the server.
#[derive(Clone, Debug)]
pub(crate) struct Web99Client {
    pub(crate) address: SocketAddr,
    /// Value of the Host field.
    pub(crate) authority: String,
}

/// Response with the parts that the checker compares.
#[derive(Clone, Debug, Default)]
pub(crate) struct Web99Response {
    pub(crate) status: u16,
    pub(crate) set_cookies: Vec<String>,
    /// Value of Content-Length.
    pub(crate) content_length: Option<u64>,
    pub(crate) content: Vec<u8>,
}

impl Web99Client {
    /// Sends a request on a new connection and reads the response.
    ///
    /// # Errors
    /// The connection fails, or the response is incomplete or malformed.
    pub(crate) fn send(
        &self,
        method: &str,
        target: &str,
        cookie: Option<&str>,
        content: &str,
    ) -> Result<Web99Response, String> {
        let mut fields = Fields::new();
        fields.push("Host", self.authority.clone());
        fields.push("Connection", "close");
        if let Some(cookie) = cookie {
            fields.push("Cookie", cookie);
        }
        if !content.is_empty() {
            fields.push("Content-Type", "text/plain");
            fields.push("Content-Length", content.len().to_string());
        }
        let mut request = Vec::new();
        write_request_head(&mut request, method.as_bytes(), target.as_bytes(), Version::Http11, &fields);
        request.extend_from_slice(content.as_bytes());
        let answer = self.exchange(&request).map_err(|error| format!("{method} {target}: {error}"))?;
        parse(&answer).map_err(|error| format!("{method} {target}: {error}"))
    }

    fn exchange(&self, request: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&self.address, TIME_OUT)?;
        stream.set_read_timeout(Some(TIME_OUT))?;
        stream.write_all(request)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }
}

fn parse(answer: &[u8]) -> Result<Web99Response, String> {
    let mut head = ResponseHead::default();
    let mut rest = answer;
    let (bytes, framing) = loop {
        let length = parse_response_head(rest, &mut head, &HEAD_LIMITS).map_err(|malformed| malformed.0)?;
        let (bytes, after) = rest.split_at(length.ok_or("the response head is incomplete")?);
        rest = after;
        // Interim responses come before the final one (RFC 9110, section 15.2).
        if head.status.code() >= 200 {
            break (bytes, head.framing(bytes, Method::Get).map_err(|malformed| malformed.0)?);
        }
    };
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    Ok(Web99Response {
        status: head.status.code(),
        set_cookies: head.values(bytes, b"set-cookie").map(text).collect(),
        content_length: head.values(bytes, b"content-length").next().and_then(|value| text(value).parse().ok()),
        content: match framing {
            ResponseFraming::UntilClose => rest.to_vec(),
            ResponseFraming::Delimited(framing) => decode(BodyDecoder::new(framing), rest)?,
        },
    })
}

fn decode(decoder: Option<BodyDecoder>, input: &[u8]) -> Result<Vec<u8>, String> {
    let Some(mut decoder) = decoder else { return Ok(Vec::new()) };
    let (mut content, mut at) = (Vec::new(), 0);
    while at < input.len() {
        let decoded = decoder.decode(&input[at..], &BODY_LIMITS).map_err(|rejection| rejection.reason)?;
        content.extend_from_slice(&input[at..][decoded.content]);
        at += decoded.consumed_bytes;
        if decoded.is_complete {
            return Ok(content);
        }
        if decoded.consumed_bytes == 0 {
            break;
        }
    }
    Err("the response content is incomplete".to_owned())
}
