//! Client that waits for each response.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use wire::h1::{BodyDecoder, BodyFraming, BodyLimits, HeadLimits, ResponseFraming, ResponseHead, parse_response_head};
use wire::http::Method;

use super::ReplayOptions;
use crate::bench::target::Url;
use crate::bench::{TlsChoices, tls_config};
use crate::engine::LoadVersion;

const READ_BYTES: usize = 64 << 10;

/// Limits of responses: they come from servers that the user has chosen, so these only bound the memory.
const HEAD_LIMITS: HeadLimits = HeadLimits { head_bytes_max: 256 << 10, fields_max: 1000, target_bytes_max: 0 };
const BODY_LIMITS: BodyLimits =
    BodyLimits { body_bytes_max: u64::MAX, extension_bytes_max: 64 << 10, trailer_bytes_max: 64 << 10 };

/// Server that requests are sent to.
pub(super) struct ReplayServer {
    address: SocketAddr,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// Field lines that each request has.
    fields: String,
    /// Origins that name the server in its own redirects.
    origins: Vec<String>,
    timeout: Duration,
}

impl ReplayServer {
    /// Resolves a server. `host` replaces the host of its URL, and `fields` are added to each request.
    pub(super) fn new(
        url: &Url,
        host: Option<&str>,
        fields: &[(&str, &str)],
        options: &ReplayOptions,
    ) -> Result<Self, String> {
        let authority = host.map_or_else(|| url.authority(), str::to_owned);
        let mut addresses =
            (url.host_name(), url.port).to_socket_addrs().map_err(|error| format!("{}: {error}", url.host))?;
        let address = addresses.next().ok_or_else(|| format!("{}: no address", url.host))?;
        let mut lines = format!("Host: {authority}\r\nUser-Agent: tailor\r\nAccept: */*\r\n");
        for (name, value) in fields {
            if format!("{name}{value}").bytes().any(|byte| byte < b' ' || byte == 0x7f) || name.is_empty() {
                return Err(format!("--header: `{name}` is not a field, or its value has control characters"));
            }
            lines += &format!("{name}: {value}\r\n");
        }
        let tls = match url.is_tls {
            true => {
                let name = host.map_or_else(|| url.host_name().to_owned(), |host| host_of(host).to_owned());
                let choices = TlsChoices {
                    insecure: options.insecure,
                    roots: options.cacert.as_deref(),
                    resumes: true,
                    ..TlsChoices::default()
                };
                Some((
                    tls_config(&choices, LoadVersion::Http1)?,
                    ServerName::try_from(name).map_err(|error| format!("name for TLS: {error}"))?,
                ))
            }
            false => None,
        };
        let names = [authority.as_str(), host_of(&authority)].map(str::to_ascii_lowercase);
        let origins = names.iter().flat_map(|name| ["http", "https"].map(|scheme| format!("{scheme}://{name}")));
        Ok(Self { address, tls, fields: lines, origins: origins.collect(), timeout: options.timeout })
    }

    /// Connects once, to find out whether the server accepts connections at all.
    pub(super) fn reach(&self) -> io::Result<()> {
        TcpStream::connect_timeout(&self.address, self.timeout).map(drop)
    }

    fn connect(&self, deadline: Instant) -> io::Result<ReplayStream> {
        let stream = TcpStream::connect_timeout(&self.address, time_until(deadline)?)?;
        stream.set_nodelay(true)?;
        let stream = TimedStream { stream, deadline };
        let Some((config, name)) = &self.tls else { return Ok(ReplayStream::Plain(stream)) };
        let session = ClientConnection::new(Arc::clone(config), name.clone()).map_err(io::Error::other)?;
        Ok(ReplayStream::Tls(Box::new(StreamOwned::new(session, stream))))
    }

    /// Removes the origin from a URL of this server, so that two servers' redirects can be compared. An origin of the
    /// other scheme stays, because a redirect to it is one.
    fn without_origin(&self, location: &str) -> String {
        let scheme = if self.tls.is_some() { "https://" } else { "http://" };
        let is_own = |origin: &&String| {
            let begins = location.get(..origin.len()).is_some_and(|start| start.eq_ignore_ascii_case(origin));
            begins && matches!(location.as_bytes().get(origin.len()), None | Some(b'/' | b'?' | b':'))
        };
        // The longest one first, which has the port.
        let own = self.origins.iter().filter(|origin| origin.starts_with(scheme)).find(is_own);
        own.map_or(location, |origin| &location[origin.len()..]).to_owned()
    }
}

/// Host of a value of Host, without its port.
fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// Time until a deadline.
///
/// # Errors
/// The deadline has passed.
fn time_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Connection on which a response must be complete at its deadline. A limit for each read would never end a response
/// that arrives byte by byte.
struct TimedStream {
    stream: TcpStream,
    deadline: Instant,
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(time_until(self.deadline)?))?;
        self.stream.read(buffer)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(time_until(self.deadline)?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

enum ReplayStream {
    Plain(TimedStream),
    Tls(Box<StreamOwned<ClientConnection, TimedStream>>),
}

impl ReplayStream {
    fn set_deadline(&mut self, deadline: Instant) {
        match self {
            Self::Plain(stream) => stream.deadline = deadline,
            Self::Tls(stream) => stream.sock.deadline = deadline,
        }
    }
}

impl Read for ReplayStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for ReplayStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Response of a server, as far as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplayResponse {
    pub(super) status: u16,
    /// Fields in their order; names are in lower case, and redirects to the server itself have no origin.
    pub(super) fields: Vec<(String, String)>,
    pub(super) content_bytes: u64,
    /// SHA-256 of the content.
    pub(super) digest: Vec<u8>,
}

/// Client of a server, with a connection that is kept.
pub(super) struct ReplayClient<'a> {
    server: &'a ReplayServer,
    kept: Option<ReplayStream>,
    buffer: Vec<u8>,
}

impl<'a> ReplayClient<'a> {
    /// Creates a client without a connection.
    pub(super) fn new(server: &'a ReplayServer) -> Self {
        Self { server, kept: None, buffer: vec![0; READ_BYTES] }
    }

    /// Sends a request, and reads the response.
    ///
    /// # Errors
    /// There was no valid response in time; the text says why.
    pub(super) fn fetch(&mut self, method: &str, target: &str) -> Result<ReplayResponse, String> {
        let request = format!("{method} {target} HTTP/1.1\r\n{}\r\n", self.server.fields);
        let deadline = Instant::now() + self.server.timeout;
        if let Some(mut stream) = self.kept.take() {
            stream.set_deadline(deadline);
            match self.exchange(stream, method, &request) {
                // The server may have closed the connection meanwhile.
                Err(error) if !is_timeout(&error) && error.kind() != ErrorKind::InvalidData => {}
                result => return result.map_err(|error| describe(&error)),
            }
        }
        let stream = self.server.connect(deadline).map_err(|error| describe(&error))?;
        self.exchange(stream, method, &request).map_err(|error| describe(&error))
    }

    fn exchange(&mut self, mut stream: ReplayStream, method: &str, request: &str) -> io::Result<ReplayResponse> {
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        let (mut input, mut head) = (Vec::new(), ResponseHead::default());
        let head_bytes = loop {
            match parse_response_head(&input, &mut head, &HEAD_LIMITS).map_err(|malformed| invalid(malformed.0))? {
                Some(bytes) if head.status.code() >= 200 => break bytes,
                Some(bytes) => {
                    input.drain(..bytes);
                }
                None => {
                    let count = stream.read(&mut self.buffer)?;
                    if count == 0 {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    input.extend_from_slice(&self.buffer[..count]);
                }
            }
        };
        let framing =
            head.framing(&input, Method::from_name(method.as_bytes())).map_err(|malformed| invalid(malformed.0))?;
        let is_persistent = head.is_persistent(&input) && framing != ResponseFraming::UntilClose;
        let fields = head.fields.iter().map(|field| {
            let name = String::from_utf8_lossy(field.name.of(&input)).to_ascii_lowercase();
            let value = String::from_utf8_lossy(field.value.of(&input)).into_owned();
            let is_url = matches!(name.as_str(), "location" | "content-location");
            let value = if is_url { self.server.without_origin(&value) } else { value };
            (name, value)
        });
        let (status, fields) = (head.status.code(), fields.collect());
        input.drain(..head_bytes);
        let mut digest = Context::new(&SHA256);
        let (content_bytes, is_clean) = match framing {
            ResponseFraming::Delimited(BodyFraming::None) => (0, input.is_empty()),
            ResponseFraming::Delimited(framing) => self.read_framed(framing, &input, &mut stream, &mut digest)?,
            ResponseFraming::UntilClose => (self.read_rest(&input, &mut stream, &mut digest)?, false),
        };
        if is_persistent && is_clean {
            self.kept = Some(stream);
        }
        Ok(ReplayResponse { status, fields, content_bytes, digest: digest.finish().as_ref().to_vec() })
    }

    /// Reads content of this framing that begins with `start`. Returns its length, and whether nothing follows it.
    fn read_framed(
        &mut self,
        framing: BodyFraming,
        start: &[u8],
        stream: &mut ReplayStream,
        digest: &mut Context,
    ) -> io::Result<(u64, bool)> {
        let Some(mut decoder) = BodyDecoder::new(framing) else { return Ok((0, start.is_empty())) };
        let (mut input, mut length) = (start.to_vec(), 0);
        loop {
            let decoded = decoder.decode(&input, &BODY_LIMITS).map_err(|rejection| invalid(rejection.reason))?;
            digest.update(&input[decoded.content.clone()]);
            length += decoded.content.len() as u64;
            input.drain(..decoded.consumed_bytes);
            if decoded.is_complete {
                return Ok((length, input.is_empty()));
            }
            if decoded.consumed_bytes > 0 && !input.is_empty() {
                continue;
            }
            let count = stream.read(&mut self.buffer)?;
            if count == 0 {
                return Err(invalid("ended within its content"));
            }
            input.extend_from_slice(&self.buffer[..count]);
        }
    }

    /// Reads content that begins with `start` and ends with the connection. Returns its length.
    fn read_rest(&mut self, start: &[u8], stream: &mut ReplayStream, digest: &mut Context) -> io::Result<u64> {
        digest.update(start);
        let mut length = start.len() as u64;
        loop {
            match stream.read(&mut self.buffer)? {
                0 => return Ok(length),
                count => {
                    digest.update(&self.buffer[..count]);
                    length += count as u64;
                }
            }
        }
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason.to_owned())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        _ if is_timeout(error) => "no complete response in time".to_owned(),
        ErrorKind::UnexpectedEof => "closed the connection without a response".to_owned(),
        ErrorKind::InvalidData => format!("malformed response: {error}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_origins_are_removed() {
        let names = ["example.com:8080", "example.com"];
        let origins = names.iter().flat_map(|name| ["http", "https"].map(|scheme| format!("{scheme}://{name}")));
        let server = ReplayServer {
            address: ([127, 0, 0, 1], 1).into(),
            tls: None,
            fields: String::new(),
            origins: origins.collect(),
            timeout: Duration::from_secs(1),
        };
        for (location, expect) in [
            ("/a", "/a"),
            ("http://example.com:8080/a", "/a"),
            ("http://EXAMPLE.com/a?b", "/a?b"),
            ("http://example.com", ""),
            ("https://example.com/a", "https://example.com/a"),
            ("http://example.com.evil/a", "http://example.com.evil/a"),
            ("http://other/a", "http://other/a"),
        ] {
            assert_eq!(server.without_origin(location), expect, "{location}");
        }
    }
}
