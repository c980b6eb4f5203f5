//! Requests to a collector, one after another, over a keep-alive connection.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::TracesError;
use crate::config::{CollectorUrl, Traces, load_authority};

/// Bytes of a response's content that are read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// HTTP client of a collector.
pub(super) struct CollectorClient {
    url: CollectorUrl,
    headers: HeaderMap,
    tls: Option<TlsConnector>,
    timeout: Duration,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// Reason why a collector did not accept content.
#[derive(Debug)]
pub(super) enum SendError {
    /// The collector is not reachable, or cannot accept content now; with its Retry-After.
    Temporary(String, Option<Duration>),
    /// The collector will never accept it.
    Permanent(String),
}

impl CollectorClient {
    pub(super) fn new(config: &Traces, url: &CollectorUrl) -> Result<Self, TracesError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("tailcoat/", env!("CARGO_PKG_VERSION"))));
        let host = HeaderValue::try_from(format!("{}:{}", url.host, url.port));
        headers.insert(HOST, host.map_err(|_| TracesError::Url(url.to_string()))?);
        for (name, value) in &config.headers {
            let header = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
            let (name, value) = header.ok_or_else(|| TracesError::Header(name.clone()))?;
            headers.append(name, value);
        }
        let tls = url.is_tls.then(|| connector(config)).transpose()?;
        Ok(Self { url: url.clone(), headers, tls, timeout: config.timeout, connection: None })
    }

    /// Sends content; returns the content of the response.
    pub(super) async fn send(&mut self, content: Bytes) -> Result<Bytes, SendError> {
        let sent = timeout(self.timeout, self.try_send(content)).await;
        let result = sent.unwrap_or_else(|_| Err(SendError::Temporary("no response in time".to_owned(), None)));
        if result.is_err() {
            self.connection = None;
        }
        result
    }

    async fn try_send(&mut self, content: Bytes) -> Result<Bytes, SendError> {
        let temporary = |error: &dyn fmt::Display| SendError::Temporary(error.to_string(), None);
        let is_open = match &mut self.connection {
            // The collector may have closed it since.
            Some(connection) => connection.ready().await.is_ok(),
            None => false,
        };
        if !is_open {
            self.connection = Some(self.connect().await.map_err(|error| temporary(&error))?);
        }
        // Local invariant: the connection exists by now.
        let Some(connection) = &mut self.connection else { return Err(temporary(&"no connection")) };
        let mut request = Request::new(Full::new(content));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.path.parse().map_err(|error| SendError::Permanent(format!("{error}")))?;
        *request.headers_mut() = self.headers.clone();
        let response = connection.send_request(request).await.map_err(|error| temporary(&error))?;
        let (head, content) = response.into_parts();
        let content = Limited::new(content, ANSWER_BYTES_MAX).collect().await.map_err(|error| temporary(&error))?;
        match head.status {
            status if status.is_success() => Ok(content.to_bytes()),
            // "OTLP/HTTP Response", "Failures" of the specification.
            status @ (StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT) => {
                Err(SendError::Temporary(format!("status {status}"), retry_after(&head.headers)))
            }
            status => Err(SendError::Permanent(format!("status {status}"))),
        }
    }

    async fn connect(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        let host = self.url.host.trim_matches(['[', ']']);
        let stream = TcpStream::connect((host, self.url.port)).await?;
        match &self.tls {
            None => begin(stream).await,
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                begin(tls.connect(name, stream).await?).await
            }
        }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Temporary(message, _) | Self::Permanent(message) => f.write_str(message),
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

fn connector(config: &Traces) -> Result<TlsConnector, TracesError> {
    let roots = match &config.authorities {
        Some(file) => load_authority(file).map_err(|error| TracesError::Tls(error.to_string()))?,
        None => {
            let mut roots = RootCertStore::empty();
            // Certificates of the system that cannot be parsed are not trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| TracesError::Tls(error.to_string()))?;
    Ok(TlsConnector::from(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())))
}

/// Seconds of Retry-After; collectors do not send dates.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
