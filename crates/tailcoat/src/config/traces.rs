//! How it is told what requests took part in: the model.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Traces: the context of W3C, and where spans go (OpenTelemetry).
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// Where spans are sent; `None` records none.
    pub endpoint: Option<CollectorUrl>,
    /// Certificates of the authorities that vouch for the collector; `None` takes those this machine trusts.
    pub authorities: Option<PathBuf>,
    /// Fields of requests to the collector.
    pub headers: Vec<(String, String)>,
    /// What the server is called.
    pub service_name: String,
    /// What else is said of it: names and values.
    pub resource_attributes: Vec<(String, String)>,
    /// The part of traces that are begun here, from 0 to 1, of which spans are recorded.
    pub sample_ratio: f64,
    /// Whose traces go on.
    pub accept_context: AcceptContext,
    /// Bytes of the value of an attribute.
    pub attribute_bytes_max: usize,
    /// Spans that wait to be sent; more are dropped.
    pub queue_spans_max: usize,
    /// Spans that are sent at once.
    pub batch_spans_max: usize,
    /// How long spans wait for a batch to be full.
    pub batch_delay: Duration,
    /// How long a try to send a batch may take.
    pub timeout: Duration,
    /// How long a batch is tried to be sent.
    pub retry_time: Duration,
}

/// Whose word for the trace of a request is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptContext {
    /// Anybody's.
    Any,
    /// That of proxies that are trusted.
    TrustedProxies,
    /// Nobody's: each request begins a trace.
    None,
}

/// Where a collector is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorUrl {
    /// Whether TLS is spoken with it.
    pub is_tls: bool,
    /// Name or address; one of IPv6 in brackets.
    pub host: String,
    /// Its port.
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
