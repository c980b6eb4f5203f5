//! Requests to the API server of Kubernetes over HTTP/1.1.

mod access;
mod watch;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

pub use self::access::Access;
pub(crate) use self::watch::{Event, watch};

/// Time for a connection, and for each request that is not a watch.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a response, at most; a list comes in pages.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// Bytes of an error's text that are kept.
const ERROR_TEXT_BYTES_MAX: usize = 500;

/// Content type of a merge patch (RFC 7396).
const MERGE_PATCH: &str = "application/merge-patch+json";

/// Content type of server-side apply.
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Reason why a request failed.
#[derive(Debug)]
pub(crate) enum ClientError {
    /// No response.
    Unreachable(String),
    /// A response with a status that reports an error.
    Status(u16, String),
    /// A response that is not valid.
    Invalid(String),
}

/// A client of one API server.
pub(crate) struct Client {
    access: Access,
    tls: Option<TlsConnector>,
    /// Idle connections for requests other than watches.
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    /// Requests sent so far.
    requests: std::sync::atomic::AtomicU64,
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(text) => write!(f, "the API server cannot be reached: {text}"),
            Self::Status(status, text) => write!(f, "the API server responded with status {status}: {text}"),
            Self::Invalid(text) => write!(f, "the response of the API server is not valid: {text}"),
        }
    }
}

impl ClientError {
    /// True if the resource, or its kind, does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Status(404, _))
    }

    /// True if another writer was first.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Status(409, _))
    }
}

fn unreachable(error: impl std::fmt::Display) -> ClientError {
    ClientError::Unreachable(error.to_string())
}

impl Client {
    /// Client with this access.
    ///
    /// # Errors
    /// Certificates are not valid.
    pub(crate) fn new(access: Access) -> Result<Arc<Self>, String> {
        let tls = access.tls()?.map(|config| TlsConnector::from(Arc::new(config)));
        Ok(Arc::new(Self { access, tls, idle: Mutex::default(), requests: Default::default() }))
    }

    /// Requests sent so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(std::sync::atomic::Ordering::Relaxed)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let (host, port) = self.access.endpoint();
        let stream = TcpStream::connect((host, port)).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let sender = match &self.tls {
            None => start(TokioIo::new(stream)).await,
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).map_err(unreachable)?;
                start(TokioIo::new(tls.connect(name, stream).await.map_err(unreachable)?)).await
            }
        };
        sender.map_err(unreachable)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        content: Option<(&'static str, Bytes)>,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/{path}"))
            .header(header::HOST, self.access.authority())
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("tailcoat-gateway/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = self.access.token().map_err(unreachable)? {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(unreachable)?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        let (kind, bytes) = content.unwrap_or_default();
        if !kind.is_empty() {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        self.requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        request.body(Full::new(bytes)).map_err(unreachable)
    }

    /// Sends a request on an idle connection, or on a new one. There are as many as requests have run side by side.
    async fn send(
        &self,
        method: Method,
        path: &str,
        content: Option<(&'static str, Bytes)>,
    ) -> Result<Value, ClientError> {
        let all = async {
            let mut sender = match self.take_idle() {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            sender.ready().await.map_err(unreachable)?;
            let response = sender.send_request(self.request(method, path, content)?).await.map_err(unreachable)?;
            let value = read(response).await;
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
            value
        };
        timeout(REQUEST_TIMEOUT, all).await.map_err(|_| unreachable("time-out"))?
    }

    fn take_idle(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|sender| !sender.is_closed());
        idle.pop()
    }

    /// Gets a resource or a page of a list.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.send(Method::GET, path, None).await
    }

    /// Creates a resource.
    pub(crate) async fn create(&self, path: &str, value: &Value) -> Result<Value, ClientError> {
        self.send(Method::POST, path, Some(("application/json", json_bytes(value)))).await
    }

    /// Replaces a resource.
    pub(crate) async fn replace(&self, path: &str, value: &Value) -> Result<Value, ClientError> {
        self.send(Method::PUT, path, Some(("application/json", json_bytes(value)))).await
    }

    /// Merges a status into a resource.
    pub(crate) async fn patch_status(&self, path: &str, status: &Value) -> Result<Value, ClientError> {
        let patch = serde_json::json!({ "status": status });
        self.send(Method::PATCH, &format!("{path}/status"), Some((MERGE_PATCH, json_bytes(&patch)))).await
    }

    /// Applies a resource: creates it, or changes the fields that it has.
    pub(crate) async fn apply(&self, path: &str, value: &Value) -> Result<Value, ClientError> {
        let path = format!("{path}?fieldManager=tailcoat&force=true");
        self.send(Method::PATCH, &path, Some((APPLY_PATCH, json_bytes(value)))).await
    }

    /// Opens a stream of events on a connection of its own.
    async fn open(&self, path: &str) -> Result<Response<Incoming>, ClientError> {
        let all = async {
            let mut sender = self.connect().await?;
            let response = sender.send_request(self.request(Method::GET, path, None)?).await.map_err(unreachable)?;
            if response.status().is_success() { Ok(response) } else { Err(failure(response).await) }
        };
        timeout(REQUEST_TIMEOUT, all).await.map_err(|_| unreachable("time-out"))?
    }
}

async fn start<T>(io: T) -> Result<SendRequest<Full<Bytes>>, hyper::Error>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(io).await?;
    // Ends with the connection, whose errors requests report.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn json_bytes(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

async fn read(response: Response<Incoming>) -> Result<Value, ClientError> {
    if !response.status().is_success() {
        return Err(failure(response).await);
    }
    let content = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
    let content = content.map_err(|error| ClientError::Invalid(error.to_string()))?.to_bytes();
    serde_json::from_slice(&content).map_err(|error| ClientError::Invalid(error.to_string()))
}

async fn failure(response: Response<Incoming>) -> ClientError {
    let status = response.status().as_u16();
    let content = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
    let content = content.map(|content| content.to_bytes()).unwrap_or_default();
    let message =
        serde_json::from_slice::<Value>(&content).ok().and_then(|it| Some(it["message"].as_str()?.to_owned()));
    let mut text = message.unwrap_or_else(|| String::from_utf8_lossy(&content).into_owned());
    if let Some((end, _)) = text.char_indices().find(|(at, _)| *at >= ERROR_TEXT_BYTES_MAX) {
        text.truncate(end);
    }
    ClientError::Status(status, text)
}
