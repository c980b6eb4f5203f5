//! Requests that modules send, to granted hosts only.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context as Task, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderName, Request, Response, Uri};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsConnector;
use wasmtime_wasi_http::io::TokioIo;
use wasmtime_wasi_http::{DEFAULT_FORBIDDEN_HEADERS, Error, RequestOptions, WasiBody, WasiHttpHooks};

use crate::config::{OutgoingHost, trusted_authorities};

/// Timeout for modules that set none. The module's own limits end it earlier.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Limit of bytes per write to content. At most two such pieces wait for the client.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Hosts that a module may send requests to.
#[derive(Debug)]
pub(super) struct OutgoingHosts {
    hosts: Vec<OutgoingHost>,
}

impl OutgoingHosts {
    pub(super) fn new(hosts: Vec<OutgoingHost>) -> Self {
        Self { hosts }
    }

    /// Host and port of a request, if the module may send it there.
    fn permitted(&self, uri: &Uri) -> Result<OutgoingTarget, Error> {
        let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
        let default_port = if is_tls { 443 } else { 80 };
        let authority = uri.authority().ok_or(Error::HttpRequestUriInvalid)?;
        // Credentials in a URI do not belong in a request.
        if authority.as_str().contains('@') {
            return Err(Error::HttpRequestUriInvalid);
        }
        let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let port = authority.port_u16().unwrap_or(default_port);
        match self.hosts.iter().any(|allowed| allowed.allows(&host, port, default_port)) {
            true => Ok(OutgoingTarget { host, port, is_tls }),
            false => Err(Error::HttpRequestDenied),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct OutgoingTarget {
    host: String,
    port: u16,
    is_tls: bool,
}

/// Hooks by which an instance sends requests.
pub(super) struct Hooks(pub(super) Arc<OutgoingHosts>);

/// Result of a request: the response, and a future that must be polled for its content to arrive.
type OutgoingResponse = (Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>);

impl WasiHttpHooks for Hooks {
    fn is_forbidden_header(&mut self, name: &HeaderName) -> bool {
        DEFAULT_FORBIDDEN_HEADERS.contains(name)
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        PIECE_BYTES_MAX
    }

    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Result<OutgoingResponse, Error>> + Send> {
        let target = self.0.permitted(request.uri());
        Box::new(async move { send(request, target?, options.unwrap_or_default()).await })
    }
}

async fn send(
    mut request: Request<WasiBody>,
    target: OutgoingTarget,
    options: RequestOptions,
) -> Result<OutgoingResponse, Error> {
    let connect_timeout = options.connect_timeout.unwrap_or(TIMEOUT);
    let stream = timeout(connect_timeout, connect(&target)).await.map_err(|_| Error::ConnectionTimeout)??;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Origin form (RFC 9112, section 3.2.1).
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().map_err(|_| Error::HttpRequestUriInvalid)?;
    let first_byte_timeout = options.first_byte_timeout.unwrap_or(TIMEOUT);
    let io = tokio::spawn(connection);
    // Dropping the future closes the connection.
    let io = AbortOnDrop(io);
    let response = timeout(first_byte_timeout, sender.send_request(request)).await;
    let response = response.map_err(|_| Error::ConnectionReadTimeout)??;
    let between_bytes = options.between_bytes_timeout.unwrap_or(TIMEOUT);
    let response = response.map(|content| TimedContent::new(content, between_bytes).boxed_unsync());
    Ok((response, Box::new(io)))
}

trait OutgoingStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> OutgoingStream for S {}

async fn connect(target: &OutgoingTarget) -> Result<Box<dyn OutgoingStream>, Error> {
    let host = target.host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, target.port)).await.map_err(Error::Connect)?;
    // An error here is harmless.
    let _ = stream.set_nodelay(true);
    if !target.is_tls {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|_| Error::HttpRequestUriInvalid)?;
    let config = TLS.clone().map_err(|message| Error::Tls(io::Error::other(message)))?;
    let stream = TlsConnector::from(config).connect(name, stream).await.map_err(Error::Tls)?;
    Ok(Box::new(stream))
}

/// TLS configuration of modules' requests, with the system's trusted CAs. Loaded at first use.
static TLS: LazyLock<Result<Arc<ClientConfig>, String>> = LazyLock::new(|| {
    let roots = trusted_authorities(None).map_err(|error| error.to_string())?;
    if roots.is_empty() {
        return Err("the system has no CA certificates; install `ca-certificates`".to_owned());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
});

/// Task that moves the bytes of a connection; aborted when dropped.
struct AbortOnDrop(tokio::task::JoinHandle<hyper::Result<()>>);

impl Future for AbortOnDrop {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(task).map(|joined| match joined {
            Ok(result) => result.map_err(Error::from),
            Err(_) => Err(Error::ConnectionTerminated),
        })
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Content of a response, with a timeout for each piece.
struct TimedContent {
    content: hyper::body::Incoming,
    time: Duration,
    limit: Pin<Box<Sleep>>,
}

impl TimedContent {
    fn new(content: hyper::body::Incoming, time: Duration) -> Self {
        Self { content, time, limit: Box::pin(sleep(time)) }
    }
}

impl Body for TimedContent {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.content).poll_frame(task) {
            let next = tokio::time::Instant::now() + self.time;
            self.limit.as_mut().reset(next);
            return Poll::Ready(frame.map(|frame| frame.map_err(Error::from)));
        }
        self.limit.as_mut().poll(task).map(|()| Some(Err(Error::ConnectionReadTimeout)))
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.content.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostPattern;

    #[test]
    fn only_granted_hosts() {
        let host = HostPattern::Suffix(".example.com".into());
        let address = HostPattern::Exact("[::1]".into());
        let hosts = vec![OutgoingHost { host, port: None }, OutgoingHost { host: address, port: Some(8080) }];
        let outgoing = OutgoingHosts::new(hosts);
        let check = |uri: &str, expect: Option<(&str, u16, bool)>| {
            let target = outgoing.permitted(&uri.parse().unwrap()).ok();
            let target = target.as_ref().map(|target| (target.host.as_str(), target.port, target.is_tls));
            assert_eq!(target, expect, "{uri}");
        };
        check("https://API.example.com/a", Some(("api.example.com", 443, true)));
        check("https://api.example.com./a", Some(("api.example.com", 443, true)));
        check("http://api.example.com", Some(("api.example.com", 80, false)));
        check("http://[::1]:8080/", Some(("[::1]", 8080, false)));
        check("http://[::1]/", None);
        check("http://api.example.com:8080/", None);
        check("http://api.example.com:443/", None);
        check("http://127.0.0.1/", None);
        check("http://api.example.com@127.0.0.1/", None);
        check("http://user@api.example.com/", None);
        check("/a", None);
    }
}
