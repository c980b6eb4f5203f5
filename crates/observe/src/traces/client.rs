//! Requests to a collector, one after another, over a keep-alive connection.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tailcoat_rest::{RestClient, RestError};
use tokio::time::timeout;

use super::TracesError;
use crate::config::{CollectorUrl, Traces, tls_client_settings};

/// Bytes of a response's content that are read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// HTTP client of a collector.
pub(super) struct CollectorClient {
    client: RestClient,
    path: String,
    headers: HeaderMap,
    timeout: Duration,
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
        for (name, value) in &config.headers {
            let header = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
            let (name, value) = header.ok_or_else(|| TracesError::Header(name.clone()))?;
            headers.append(name, value);
        }
        let tls = url.is_tls.then(|| tls_client_settings(config.authorities.as_deref())).transpose();
        let client = RestClient::new(&url.host, url.port, tls.map_err(TracesError::Tls)?, ANSWER_BYTES_MAX);
        let client = client.map_err(|_| TracesError::Url(url.to_string()))?;
        Ok(Self { client, path: url.path.clone(), headers, timeout: config.timeout })
    }

    /// Sends content; returns the content of the response.
    pub(super) async fn send(&self, content: Bytes) -> Result<Bytes, SendError> {
        let sent = self.client.send(Method::POST, &self.path, self.headers.clone(), content);
        let temporary = |error: String| SendError::Temporary(error, None);
        let response = match timeout(self.timeout, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(RestError::Invalid(reason))) => return Err(SendError::Permanent(reason)),
            Ok(Err(error)) => return Err(temporary(error.to_string())),
            Err(_) => return Err(temporary("no response in time".to_owned())),
        };
        match response.status {
            status if status.is_success() => Ok(response.content),
            // "OTLP/HTTP Response", "Failures" of the specification.
            status @ (StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT) => {
                Err(SendError::Temporary(format!("status {status}"), retry_after(&response.headers)))
            }
            status => Err(SendError::Permanent(format!("status {status}"))),
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

/// Seconds of Retry-After; collectors do not send dates.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
