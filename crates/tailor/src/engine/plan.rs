//! Plan of a run.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::arrivals::ArrivalPace;
use super::line::SimulatedLine;
use super::profile::LoadProfile;
use super::scenario::ScenarioSet;
use super::web_socket::WebSocketHandshake;
use super::workload::Workload;

/// Plan of a run: target, requests, times and lines.
#[derive(Clone, Debug)]
pub(crate) struct LoadPlan {
    /// Address of the target.
    pub address: TargetAddress,
    /// TLS settings and the server's name.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// Requests to send.
    pub workload: Workload,
    /// Scenarios, whose steps are the requests of the workload. With HTTP/1, without pipelining.
    pub scenarios: Option<Arc<ScenarioSet>>,
    /// Times of the requests, or of the starts of scenarios.
    pub pace: ArrivalPace,
    /// Connections at a time, for all threads together.
    pub connections: usize,
    /// Number of threads.
    pub threads: usize,
    /// CPUs to bind the threads to, in turn. If empty, the kernel chooses.
    pub processors: Vec<usize>,
    /// Duration of the run after the warm-up.
    pub duration: Option<Duration>,
    /// Maximum latency of a response that counts as in time.
    pub deadline: Option<Duration>,
    /// Number of requests after which the run ends.
    pub requests_max: Option<u64>,
    /// Time at the start whose requests are not counted.
    pub warm_up: Duration,
    /// Time over which the starts of the connections are spread.
    pub ramp_up: Duration,
    /// Length of a report interval.
    pub interval: Duration,
    /// Time to poll after an event before the thread sleeps.
    pub spin: Duration,
    /// Time limit for connecting, and for each response.
    pub time_out: Duration,
    /// Persistence of the connections.
    pub persistence: ConnectionPersistence,
    /// Requests in flight on a connection: pipelined, or as streams of HTTP/2 or HTTP/3. With WebSocket over HTTP/2, the number
    /// of WebSockets.
    pub pipeline: usize,
    /// Handshake of WebSocket, whose messages are the requests of the workload. With HTTP/1 or HTTP/2.
    pub web_socket: Option<Arc<WebSocketHandshake>>,
    /// Version of HTTP. Each request of the workload must have its form for it.
    pub version: LoadVersion,
    /// Simulated line of each connection.
    pub line: Option<SimulatedLine>,
    /// Requests to abort on purpose.
    pub abort: Option<Abort>,
    /// Source addresses of connections, in turn. If empty, and the target is on the loopback, the engine uses further
    /// loopback addresses when ports run short.
    pub sources: Vec<IpAddr>,
    /// True to send the first request in the first packet of a TCP connection (RFC 7413).
    pub has_fast_open: bool,
    /// Number of responses after which an HTTP/3 connection moves to another UDP port of the client.
    pub moves_after: Option<u64>,
    /// Seed of all random choices: order of requests, random arrivals, persistence, aborts.
    pub seed: u32,
    /// True to count for each request how often it was sent and served, including the warm-up.
    pub is_tallied: bool,
}

/// Version of HTTP that a run uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LoadVersion {
    /// HTTP/1.1, and HTTP/1.0 on some connections.
    #[default]
    Http1,
    /// HTTP/2. Over TLS the server must agree; without TLS the client uses prior knowledge.
    Http2,
    /// HTTP/3. The target must be an IP address with TLS.
    Http3,
}

impl LoadPlan {
    /// Name of the protocol in reports.
    pub(crate) fn protocol(&self) -> &'static str {
        match self.version {
            LoadVersion::Http1 if self.web_socket.is_some() => "WebSocket",
            LoadVersion::Http2 if self.web_socket.is_some() => "WebSocket over HTTP/2",
            LoadVersion::Http2 if self.workload.requests().iter().any(|request| request.is_grpc) => "gRPC",
            version => version.name(),
        }
    }

    /// Load profile, if the rate changes over time.
    pub(crate) fn profile(&self) -> Option<&LoadProfile> {
        match &self.pace {
            ArrivalPace::Profile { profile, .. } => Some(profile),
            _ => None,
        }
    }
}

impl LoadVersion {
    /// True if a connection has concurrent streams.
    pub(crate) fn has_streams(self) -> bool {
        self != Self::Http1
    }

    /// Name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1",
            Self::Http2 => "HTTP/2",
            Self::Http3 => "HTTP/3",
        }
    }
}

/// Address of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TargetAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// Path of a Unix domain socket.
    Unix(PathBuf),
}

/// Persistence of connections.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConnectionPersistence {
    /// Share of persistent connections, from 0 to 1. All others carry one request.
    pub keep_alive_share: f64,
    /// Share of HTTP/1.0 among persistent connections.
    pub http10_share: f64,
    /// Share of HTTP/1.0 among connections with one request.
    pub http10_single_share: f64,
    /// Requests on a persistent connection, drawn uniformly from this range.
    pub requests: RangeInclusive<u32>,
}

impl Default for ConnectionPersistence {
    fn default() -> Self {
        Self { keep_alive_share: 1.0, http10_share: 0.0, http10_single_share: 0.0, requests: u32::MAX..=u32::MAX }
    }
}

/// Requests that the client aborts, like users who press "stop".
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Abort {
    /// Share of the requests, from 0 to 1.
    pub share: f64,
    /// Received bytes of the response after which the client aborts, unless it is complete by then.
    pub after_bytes: u64,
}
