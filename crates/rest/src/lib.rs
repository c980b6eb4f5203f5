//! HTTP client for engines that operators run, such as S3, Consul or Kubernetes: one request at a time on each keep-alive connection.
//! Engines are not trusted: a response has a size limit, and callers limit its time.

mod encoding;
mod kubernetes;
mod lines;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
pub use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
pub use tokio_rustls::TlsConnector;

pub use self::encoding::encoded;
pub use self::kubernetes::KubernetesClient;
pub use self::lines::RestLines;

/// Idle connections that are kept.
const IDLE_MAX: usize = 8;

/// Bytes of an error's content that messages show.
const EXCERPT_BYTES: usize = 200;

/// HTTP client of one engine.
pub struct RestClient {
    place: Place,
    response_bytes_max: usize,
    host: HeaderValue,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// Connection to an engine, with TLS or without.
pub trait EngineStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> EngineStream for S {}

/// Place where an engine listens.
enum Place {
    /// Name or address, one of IPv6 without brackets, and port.
    Tcp(String, u16),
    Unix(PathBuf),
}

/// Response with its whole content.
pub struct RestResponse {
    /// Status.
    pub status: StatusCode,
    /// Header fields.
    pub headers: HeaderMap,
    /// Content.
    pub content: Bytes,
}

/// Reason why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestError {
    /// No connection, or one that ended too early.
    Unreachable(String),
    /// The response is larger than its limit.
    TooLarge,
    /// The engine rejects the request, with this status and text.
    Status(StatusCode, String),
    /// The credentials cannot be read.
    Denied(String),
    /// The request or the settings are not valid.
    Invalid(String),
}

impl fmt::Display for RestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(reason) => write!(f, "it cannot be reached: {reason}"),
            Self::TooLarge => f.write_str("its response is too large"),
            Self::Status(_, reason) | Self::Denied(reason) | Self::Invalid(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for RestError {}

fn invalid(error: impl fmt::Display) -> RestError {
    RestError::Invalid(error.to_string())
}

impl RestClient {
    /// Client of an engine on this host, whose name or address may be in brackets; without `tls` in plain text.
    ///
    /// # Errors
    /// The host is not valid.
    pub fn new(
        host: &str,
        port: u16,
        tls: Option<Arc<ClientConfig>>,
        response_bytes_max: usize,
    ) -> Result<Self, RestError> {
        let name = host.trim_matches(['[', ']']).to_owned();
        let usual = if tls.is_some() { 443 } else { 80 };
        let host = if name.contains(':') { format!("[{name}]") } else { name.clone() };
        let host = if port == usual { host } else { format!("{host}:{port}") };
        let host = HeaderValue::try_from(host).map_err(invalid)?;
        let tls = tls.map(TlsConnector::from);
        Ok(Self { place: Place::Tcp(name, port), response_bytes_max, host, tls, idle: Mutex::default() })
    }

    /// Client of an engine that listens on a Unix socket.
    pub fn of_socket(path: &Path, response_bytes_max: usize) -> Self {
        let host = HeaderValue::from_static("localhost");
        Self { place: Place::Unix(path.to_owned()), response_bytes_max, host, tls: None, idle: Mutex::default() }
    }

    /// Value of the field Host.
    pub fn host(&self) -> &str {
        self.host.to_str().unwrap_or_default()
    }

    fn unreachable(&self, error: impl fmt::Display) -> RestError {
        RestError::Unreachable(format!("{self}: {error}"))
    }

    /// Sends a request and reads the whole response. A connection that the engine has closed is replaced once.
    ///
    /// # Errors
    /// There is no response, or it is too large.
    pub async fn send(
        &self,
        method: Method,
        target: &str,
        headers: HeaderMap,
        content: Bytes,
    ) -> Result<RestResponse, RestError> {
        self.send_within(self.response_bytes_max, (method, target), headers, content).await
    }

    /// As [`Self::send`], with another limit on the bytes of the response.
    ///
    /// # Errors
    /// There is no response, or it is too large.
    pub async fn send_within(
        &self,
        response_bytes_max: usize,
        (method, target): (Method, &str),
        headers: HeaderMap,
        content: Bytes,
    ) -> Result<RestResponse, RestError> {
        let request = self.request(method, target, headers, content)?;
        let mut connection = None;
        while let Some(mut idle) = self.take_idle() {
            if idle.ready().await.is_ok() {
                connection = Some(idle);
                break;
            }
        }
        let mut connection = match connection {
            Some(connection) => connection,
            None => self.connect().await.map_err(|error| self.unreachable(error))?,
        };
        let response = match connection.try_send_request(request).await {
            Ok(response) => response,
            Err(mut error) => {
                // The engine closed the connection before it got the request.
                let Some(request) = error.take_message() else { return Err(self.unreachable(error.error())) };
                connection = self.connect().await.map_err(|error| self.unreachable(error))?;
                connection.send_request(request).await.map_err(|error| self.unreachable(error))?
            }
        };
        let response = self.read_within(response_bytes_max, response).await?;
        self.keep(connection);
        Ok(response)
    }

    /// Sends a request without content on a connection of its own, and returns the response before its content.
    ///
    /// # Errors
    /// There is no response.
    pub async fn open(&self, target: &str, headers: HeaderMap) -> Result<Response<Incoming>, RestError> {
        let request = self.request(Method::GET, target, headers, Bytes::new())?;
        let mut connection = self.connect().await.map_err(|error| self.unreachable(error))?;
        connection.send_request(request).await.map_err(|error| self.unreachable(error))
    }

    /// As [`Self::open`]; returns the lines of the response as they arrive, each of at most `line_bytes_max`.
    ///
    /// # Errors
    /// There is no response, or its status is not 200.
    pub async fn open_lines(
        &self,
        target: &str,
        headers: HeaderMap,
        line_bytes_max: usize,
    ) -> Result<RestLines, RestError> {
        let response = self.open(target, headers).await?;
        if response.status() != StatusCode::OK {
            let response = self.read(response).await?;
            return Err(RestError::Status(response.status, response.excerpt()));
        }
        Ok(RestLines::new(response.into_body(), line_bytes_max))
    }

    /// Reads the whole content of a response.
    ///
    /// # Errors
    /// The connection ended too early, or the content is too large.
    pub async fn read(&self, response: Response<Incoming>) -> Result<RestResponse, RestError> {
        self.read_within(self.response_bytes_max, response).await
    }

    async fn read_within(&self, bytes_max: usize, response: Response<Incoming>) -> Result<RestResponse, RestError> {
        let (head, content) = response.into_parts();
        if content.size_hint().lower() > bytes_max as u64 {
            return Err(RestError::TooLarge);
        }
        let content = Limited::new(content, bytes_max).collect().await.map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() { RestError::TooLarge } else { self.unreachable(error) }
        })?;
        Ok(RestResponse { status: head.status, headers: head.headers, content: content.to_bytes() })
    }

    fn request(
        &self,
        method: Method,
        target: &str,
        mut headers: HeaderMap,
        content: Bytes,
    ) -> Result<Request<Full<Bytes>>, RestError> {
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_LENGTH, content.len().into());
        let agent = HeaderValue::from_static(concat!("tailcoat/", env!("CARGO_PKG_VERSION")));
        headers.entry(USER_AGENT).or_insert(agent);
        let mut request = Request::new(Full::new(content));
        *request.method_mut() = method;
        *request.uri_mut() = target.parse().map_err(|error| invalid(format!("{target}: {error}")))?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    fn take_idle(&self) -> Option<SendRequest<Full<Bytes>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep(&self, connection: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !connection.is_closed() {
            idle.push(connection);
        }
    }

    async fn connect(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        let (name, port) = match &self.place {
            Place::Unix(path) => return begin(UnixStream::connect(path).await?).await,
            Place::Tcp(name, port) => (name, *port),
        };
        begin(connect(name, port, self.tls.as_ref()).await?).await
    }
}

/// Connects to an engine on this host, whose name or address is without brackets; without `tls` in plain text.
///
/// # Errors
/// There is no connection, or the certificate is not trusted.
pub async fn connect(host: &str, port: u16, tls: Option<&TlsConnector>) -> io::Result<Box<dyn EngineStream>> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(tls.connect(name, stream).await?))
}

impl RestResponse {
    /// Status and the beginning of the content, for messages.
    pub fn excerpt(&self) -> String {
        let text = String::from_utf8_lossy(&self.content[..self.content.len().min(EXCERPT_BYTES)]);
        let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
        format!("status {}: {text}", self.status.as_u16())
    }
}

async fn begin<S>(stream: S) -> io::Result<SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // Ends when the sender is dropped; the sender learns of errors.
    tokio::spawn(connection);
    Ok(sender)
}

impl fmt::Display for RestClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, port) = match &self.place {
            Place::Unix(path) => return path.display().fmt(f),
            Place::Tcp(name, port) => (name, port),
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let (open, close) = if name.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}://{open}{name}{close}:{port}")
    }
}

impl fmt::Debug for RestClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RestClient({self})")
    }
}
