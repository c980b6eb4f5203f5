//! HTTP client for engines that operators run, such as S3 or Consul: one request at a time on each keep-alive connection.
//! Engines are not trusted: a response has a size limit, and callers limit its time.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tailcoat_config::{StoreEndpoint, load_authority};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Idle connections that are kept.
const IDLE_MAX: usize = 4;

/// Bytes of an error's content that messages show.
const EXCERPT_BYTES: usize = 200;

/// HTTP client of one engine.
pub struct RestClient {
    endpoint: StoreEndpoint,
    response_bytes_max: usize,
    host: HeaderValue,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
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
    /// The request or the settings are not valid.
    Invalid(String),
}

impl fmt::Display for RestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(reason) => write!(f, "it cannot be reached: {reason}"),
            Self::TooLarge => f.write_str("its response is too large"),
            Self::Invalid(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for RestError {}

fn invalid(error: impl fmt::Display) -> RestError {
    RestError::Invalid(error.to_string())
}

impl RestClient {
    /// Client of an engine. `authorities` is a file of CA certificates; `None` trusts the system's CAs.
    ///
    /// # Errors
    /// The file cannot be read, or the host is not valid.
    pub fn new(
        endpoint: &StoreEndpoint,
        authorities: Option<&Path>,
        response_bytes_max: usize,
    ) -> Result<Self, RestError> {
        let tls = endpoint.is_tls.then(|| connector(authorities)).transpose()?;
        let usual = if endpoint.is_tls { 443 } else { 80 };
        let host = if endpoint.host.contains(':') { format!("[{}]", endpoint.host) } else { endpoint.host.clone() };
        let host = if endpoint.port == usual { host } else { format!("{host}:{}", endpoint.port) };
        let host = HeaderValue::try_from(host).map_err(invalid)?;
        Ok(Self { endpoint: endpoint.clone(), response_bytes_max, host, tls, idle: Mutex::default() })
    }

    /// Value of the field Host.
    pub fn host(&self) -> &str {
        self.host.to_str().unwrap_or_default()
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
        let unreachable = |error: &dyn fmt::Display| RestError::Unreachable(format!("{}: {error}", self.endpoint));
        let mut request = Request::new(Full::new(content.clone()));
        *request.method_mut() = method;
        *request.uri_mut() = target.parse().map_err(|error| invalid(format!("{target}: {error}")))?;
        *request.headers_mut() = headers;
        request.headers_mut().insert(HOST, self.host.clone());
        request
            .headers_mut()
            .insert(USER_AGENT, HeaderValue::from_static(concat!("tailcoat/", env!("CARGO_PKG_VERSION"))));
        request.headers_mut().insert(CONTENT_LENGTH, content.len().into());
        let mut connection = None;
        while let Some(mut idle) = self.take_idle() {
            if idle.ready().await.is_ok() {
                connection = Some(idle);
                break;
            }
        }
        let mut connection = match connection {
            Some(connection) => connection,
            None => self.connect().await.map_err(|error| unreachable(&error))?,
        };
        let response = match connection.try_send_request(request).await {
            Ok(response) => response,
            Err(mut error) => {
                // The engine closed the connection before it got the request.
                let Some(request) = error.take_message() else { return Err(unreachable(error.error())) };
                connection = self.connect().await.map_err(|error| unreachable(&error))?;
                connection.send_request(request).await.map_err(|error| unreachable(&error))?
            }
        };
        let (head, content) = response.into_parts();
        if content.size_hint().lower() > self.response_bytes_max as u64 {
            return Err(RestError::TooLarge);
        }
        let content = Limited::new(content, self.response_bytes_max).collect().await.map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() { RestError::TooLarge } else { unreachable(&error) }
        })?;
        self.keep(connection);
        Ok(RestResponse { status: head.status, headers: head.headers, content: content.to_bytes() })
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
        let stream = TcpStream::connect((self.endpoint.host.as_str(), self.endpoint.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => begin(stream).await,
            Some(tls) => {
                let name = ServerName::try_from(self.endpoint.host.clone()).map_err(io::Error::other)?;
                begin(tls.connect(name, stream).await?).await
            }
        }
    }
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

/// Settings of TLS to an engine.
fn connector(authorities: Option<&Path>) -> Result<TlsConnector, RestError> {
    let roots = match authorities {
        Some(file) => load_authority(file).map_err(invalid)?,
        None => {
            let mut roots = RootCertStore::empty();
            // Certificates of the system that cannot be parsed are not trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(invalid)?;
    Ok(TlsConnector::from(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())))
}

impl fmt::Debug for RestClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RestClient({})", self.endpoint)
    }
}
