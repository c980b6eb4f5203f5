//! Requests to the API server of Kubernetes over HTTP/1.1.

mod access;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use serde_json::Value;
use tailcoat_rest::{RestClient, RestError, RestLines, RestResponse};
use tokio::time::timeout;

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
    rest: RestClient,
    /// Requests sent so far.
    requests: AtomicU64,
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

impl From<RestError> for ClientError {
    fn from(error: RestError) -> Self {
        match error {
            RestError::Unreachable(reason) | RestError::Denied(reason) | RestError::Invalid(reason) => {
                Self::Unreachable(reason)
            }
            RestError::Status(status, reason) => Self::Status(status.as_u16(), reason),
            RestError::TooLarge => Self::Invalid(format!("it has more than {RESPONSE_BYTES_MAX} bytes")),
        }
    }
}

impl Client {
    /// Client with this access.
    ///
    /// # Errors
    /// Certificates are not valid.
    pub(crate) fn new(access: Access) -> Result<Arc<Self>, String> {
        let (host, port) = access.endpoint();
        let tls = access.tls()?.map(Arc::new);
        let rest = RestClient::new(host, port, tls, RESPONSE_BYTES_MAX).map_err(|error| error.to_string())?;
        Ok(Arc::new(Self { access, rest, requests: AtomicU64::new(0) }))
    }

    /// Requests sent so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Fields of a request.
    fn headers(&self, content_type: Option<&'static str>) -> Result<HeaderMap, ClientError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let agent = concat!("tailcoat-gateway/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        if let Some(token) = self.access.token().map_err(unreachable)? {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(unreachable)?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        if let Some(content_type) = content_type {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(headers)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content: Option<(&'static str, Bytes)>,
    ) -> Result<Value, ClientError> {
        let (content_type, content) = content.unzip();
        let headers = self.headers(content_type)?;
        let (target, content) = (format!("/{path}"), content.unwrap_or_default());
        let sent = timeout(REQUEST_TIMEOUT, self.rest.send(method, &target, headers, content)).await;
        let response = sent.map_err(|_| unreachable("time-out"))??;
        if !response.status.is_success() {
            return Err(failure(&response));
        }
        serde_json::from_slice(&response.content).map_err(|error| ClientError::Invalid(error.to_string()))
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

    /// Opens a stream of events on a connection of its own, each a line of at most `line_bytes_max`.
    async fn open_lines(&self, path: &str, line_bytes_max: usize) -> Result<RestLines, ClientError> {
        let all = async {
            let response = self.rest.open(&format!("/{path}"), self.headers(None)?).await?;
            if response.status().is_success() {
                return Ok(RestLines::new(response.into_body(), line_bytes_max));
            }
            Err(failure(&self.rest.read(response).await?))
        };
        timeout(REQUEST_TIMEOUT, all).await.map_err(|_| unreachable("time-out"))?
    }
}

fn json_bytes(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

fn failure(response: &RestResponse) -> ClientError {
    let content = &response.content;
    let message = serde_json::from_slice::<Value>(content).ok().and_then(|it| Some(it["message"].as_str()?.to_owned()));
    let mut text = message.unwrap_or_else(|| String::from_utf8_lossy(content).into_owned());
    if let Some((end, _)) = text.char_indices().find(|(at, _)| *at >= ERROR_TEXT_BYTES_MAX) {
        text.truncate(end);
    }
    ClientError::Status(response.status.as_u16(), text)
}
