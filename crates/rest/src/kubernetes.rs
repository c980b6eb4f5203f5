//! API server of Kubernetes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use rustls::ClientConfig;

use super::{RestClient, RestError, RestLines, RestResponse};

/// Client of an API server, with the token of a user.
#[derive(Debug)]
pub struct KubernetesClient {
    client: RestClient,
    /// File of the token; it is read for each request, because Kubernetes replaces it each hour.
    token_file: Option<PathBuf>,
}

impl KubernetesClient {
    /// Client of the API server on this host; without `tls` in plain text.
    ///
    /// # Errors
    /// The host is not valid.
    pub fn new(
        (host, port): (&str, u16),
        tls: Option<Arc<ClientConfig>>,
        token_file: Option<&Path>,
        response_bytes_max: usize,
    ) -> Result<Self, RestError> {
        let client = RestClient::new(host, port, tls, response_bytes_max)?;
        Ok(Self { client, token_file: token_file.map(Path::to_owned) })
    }

    /// Sends a request and reads the whole response.
    ///
    /// # Errors
    /// There is no response, or it is too large, or the token cannot be read.
    pub async fn send(&self, method: Method, target: &str, content: Bytes) -> Result<RestResponse, RestError> {
        self.client.send(method, target, self.headers()?, content).await
    }

    /// As [`Self::send`], with another limit on the bytes of the response.
    ///
    /// # Errors
    /// There is no response, or it is too large, or the token cannot be read.
    pub async fn send_within(
        &self,
        response_bytes_max: usize,
        (method, target): (Method, &str),
        content: Bytes,
    ) -> Result<RestResponse, RestError> {
        self.client.send_within(response_bytes_max, (method, target), self.headers()?, content).await
    }

    /// Sends GET, and returns the lines of the response as they arrive.
    ///
    /// # Errors
    /// There is no response, its status is not 200, or the token cannot be read.
    pub async fn open_lines(&self, target: &str, line_bytes_max: usize) -> Result<RestLines, RestError> {
        self.client.open_lines(target, self.headers()?, line_bytes_max).await
    }

    fn headers(&self) -> Result<HeaderMap, RestError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(path) = &self.token_file {
            let denied = |error: &dyn std::fmt::Display| RestError::Denied(format!("{}: {error}", path.display()));
            let token = std::fs::read(path).map_err(|error| denied(&error))?;
            let value = HeaderValue::from_bytes(&[b"Bearer ", token.trim_ascii()].concat());
            let mut value = value.map_err(|error| denied(&error))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(headers)
    }
}
