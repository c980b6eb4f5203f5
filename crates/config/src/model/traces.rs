//! Traces: the model.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Traces: the context of W3C, and where spans go (OpenTelemetry).
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// Collector of spans; `None` records none.
    pub endpoint: Option<CollectorUrl>,
    /// CA certificates (PEM) for the collector; `None` trusts the system's CAs.
    pub authorities: Option<PathBuf>,
    /// Fields of requests to the collector.
    pub headers: Vec<(String, String)>,
    /// Name of the server (`service.name`).
    pub service_name: String,
    /// Additional attributes of the server: names and values.
    pub resource_attributes: Vec<(String, String)>,
    /// The part of traces that are begun here, from 0 to 1, of which spans are recorded.
    pub sample_ratio: f64,
    /// Requests whose trace context is used.
    pub accept_context: AcceptContext,
    /// Bytes of the value of an attribute.
    pub attribute_bytes_max: usize,
    /// Spans that wait to be sent; more are dropped.
    pub queue_spans_max: usize,
    /// Spans that are sent at once.
    pub batch_spans_max: usize,
    /// Maximum time that spans wait for a full batch.
    pub batch_delay: Duration,
    /// Maximum time of one export attempt.
    pub timeout: Duration,
    /// Time for which an export is retried.
    pub retry_time: Duration,
}

/// Requests whose trace context is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptContext {
    /// Trace contexts of all clients.
    Any,
    /// Requests through trusted proxies.
    TrustedProxies,
    /// No trace context: each request begins a trace.
    None,
}

/// Address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorUrl {
    /// Uses TLS.
    pub is_tls: bool,
    /// Name or address; one of IPv6 in brackets.
    pub host: String,
    /// Port of the collector.
    pub port: u16,
    /// The path that batches are sent to.
    pub path: String,
}

impl Default for Traces {
    fn default() -> Self {
        Self {
            endpoint: None,
            authorities: None,
            headers: Vec::new(),
            service_name: "tailcoat".to_owned(),
            resource_attributes: Vec::new(),
            sample_ratio: 1.0,
            accept_context: AcceptContext::Any,
            attribute_bytes_max: 1 << 10,
            queue_spans_max: 2_048,
            batch_spans_max: 512,
            batch_delay: Duration::from_secs(5),
            timeout: Duration::from_secs(10),
            retry_time: Duration::from_secs(60),
        }
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.path)
    }
}
