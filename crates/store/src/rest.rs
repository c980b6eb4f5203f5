//! HTTP client of engines that speak HTTP: one request at a time on each keep-alive connection.

use std::io;
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
use tailcoat_config::{StoreConfig, StoreEndpoint, load_authority};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{RESPONSE_BYTES_MAX, StoreError};

/// Idle connections that are kept.
const IDLE_MAX: usize = 4;

/// Bytes of an error's content that messages show.
const EXCERPT_BYTES: usize = 200;

/// HTTP client of one engine.
pub(super) struct RestClient {
    endpoint: StoreEndpoint,
    host: HeaderValue,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// Response with its whole content.
pub(super) struct RestResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) content: Bytes,
}

impl RestClient {
    pub(super) fn new(endpoint: &StoreEndpoint, config: &StoreConfig) -> Result<Self, StoreError> {
        let tls = endpoint.is_tls.then(|| connector(config)).transpose()?;
        let usual = if endpoint.is_tls { 443 } else { 80 };
        let host = if endpoint.host.contains(':') { format!("[{}]", endpoint.host) } else { endpoint.host.clone() };
        let host = if endpoint.port == usual { host } else { format!("{host}:{}", endpoint.port) };
        let host = HeaderValue::try_from(host).map_err(|error| StoreError::Wrong(error.to_string()))?;
        Ok(Self { endpoint: endpoint.clone(), host, tls, idle: Mutex::default() })
    }

    /// Value of the field Host.
    pub(super) fn host(&self) -> &str {
        self.host.to_str().unwrap_or_default()
    }

    /// Sends a request and reads the whole response. A connection that the engine has closed is replaced once.
    pub(super) async fn send(
        &self,
        method: Method,
        target: &str,
        headers: HeaderMap,
        content: Bytes,
    ) -> Result<RestResponse, StoreError> {
        let unreachable =
            |error: &dyn std::fmt::Display| StoreError::Unreachable(format!("{}: {error}", self.endpoint));
        let mut request = Request::new(Full::new(content.clone()));
        *request.method_mut() = method;
        *request.uri_mut() = target.parse().map_err(|error| StoreError::Wrong(format!("{target}: {error}")))?;
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
        if content.size_hint().lower() > RESPONSE_BYTES_MAX as u64 {
            return Err(StoreError::TooLarge);
        }
        let content = Limited::new(content, RESPONSE_BYTES_MAX).collect().await.map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() { StoreError::TooLarge } else { unreachable(&error) }
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
    /// Error for a status that the operation does not expect.
    pub(super) fn error(&self) -> StoreError {
        let text = String::from_utf8_lossy(&self.content[..self.content.len().min(EXCERPT_BYTES)]);
        let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
        let reason = format!("status {}: {text}", self.status.as_u16());
        match self.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => StoreError::Denied(reason),
            StatusCode::PAYLOAD_TOO_LARGE => StoreError::TooLarge,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::INSUFFICIENT_STORAGE => StoreError::Busy(reason),
            status if status.is_server_error() => StoreError::Busy(reason),
            _ => StoreError::Wrong(reason),
        }
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
fn connector(config: &StoreConfig) -> Result<TlsConnector, StoreError> {
    let wrong = |error: &dyn std::fmt::Display| StoreError::Wrong(error.to_string());
    let roots = match &config.authorities {
        Some(file) => load_authority(file).map_err(|error| wrong(&error))?,
        None => {
            let mut roots = RootCertStore::empty();
            // Certificates of the system that cannot be parsed are not trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| wrong(&error))?;
    Ok(TlsConnector::from(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())))
}

impl std::fmt::Debug for RestClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RestClient({})", self.endpoint)
    }
}
