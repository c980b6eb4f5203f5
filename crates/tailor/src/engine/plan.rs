//! What a run is to do.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::arrivals::Pace;
use super::line::Line;
use super::workload::Workload;

/// A run: what is sent where, when, and over which lines.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where to connect.
    pub address: Address,
    /// TLS: its settings and the server's name.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The requests.
    pub workload: Workload,
    /// When they are due.
    pub pace: Pace,
    /// Connections at a time, over all threads.
    pub connections: usize,
    /// Threads.
    pub threads: usize,
    /// Processors to bind the threads to, in turn; none leaves them to the kernel.
    pub processors: Vec<usize>,
    /// End after so long; measured after the warm-up.
    pub duration: Option<Duration>,
    /// End after so many requests.
    pub requests_max: Option<u64>,
    /// Time at the beginning that is not counted.
    pub warm_up: Duration,
    /// The connections start spread over this time.
    pub ramp_up: Duration,
    /// Length of the intervals of the report.
    pub interval: Duration,
    /// Stay awake for so long after an event before sleeping.
    pub spin: Duration,
    /// How long connecting, and then each response, may take.
    pub time_out: Duration,
    /// How connections are used.
    pub persistence: Persistence,
    /// Requests under way on a connection at a time: pipelined, or as streams of HTTP/2.
    pub pipeline: usize,
    /// Speak HTTP/2: over TLS the server must agree to it, without TLS it is taken for granted. Each request of the
    /// workload must have its form.
    pub is_http2: bool,
    /// The line each connection is behind.
    pub line: Option<Line>,
    /// Requests that are broken off on purpose.
    pub abort: Option<Abort>,
    /// Source addresses to connect from, in turn. Without any, loopback targets get further loopback addresses when the
    /// ports of the first run short.
    pub sources: Vec<IpAddr>,
    /// Count for each request of the workload how often it was sent and served, the warm-up included.
    pub is_tallied: bool,
}

/// Where to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix domain socket.
    Unix(PathBuf),
}

/// How connections are used.
#[derive(Clone, Debug, PartialEq)]
pub struct Persistence {
    /// The share of connections that are kept alive, from 0 to 1; the others are for one request each.
    pub keep_alive_share: f64,
    /// The share of connections that speak HTTP/1.0, of those that are kept alive.
    pub http10_share: f64,
    /// The share of connections that speak HTTP/1.0, of those for one request.
    pub http10_single_share: f64,
    /// Requests on a connection that is kept alive, drawn evenly from this range.
    pub requests: RangeInclusive<u32>,
}

impl Default for Persistence {
    fn default() -> Self {
        Self { keep_alive_share: 1.0, http10_share: 0.0, http10_single_share: 0.0, requests: u32::MAX..=u32::MAX }
    }
}

/// Requests that are broken off on purpose, as users do who press "stop".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Abort {
    /// The share of requests, from 0 to 1.
    pub share: f64,
    /// Break off once so many bytes of the response have come, if it is not whole by then.
    pub after_bytes: u64,
}
