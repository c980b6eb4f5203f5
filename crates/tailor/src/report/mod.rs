//! What a run gave: one model, [`BenchReport`], and its forms.

mod build;
pub mod html;
pub mod json;
pub mod observe;
pub(crate) mod plot;
mod streams;
pub mod text;

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use build::Builder;
pub(crate) use streams::IntervalOutputs;

use crate::engine::{Failures, HandshakeCounts};

/// The version of the report's form; raised when a reader of the old one would err.
pub const FORMAT_VERSION: u32 = 1;

/// What a run gave.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BenchReport {
    /// The version of this form.
    pub format_version: u32,
    /// The program's version.
    pub tailor_version: String,
    /// When counting began, in seconds since 1970.
    pub start_unix_seconds: f64,
    /// The arguments of the run.
    pub arguments: Vec<String>,
    /// Where it connected.
    pub address: String,
    /// How the load was made.
    pub load: LoadShape,
    /// Whether it was broken off.
    pub interrupted: bool,
    /// How long was counted.
    pub duration_seconds: f64,
    /// Responses that passed all checks. Nothing failed is among them.
    pub served: u64,
    /// Responses served a second, while it was counted.
    pub served_per_second: f64,
    /// Failed requests by class.
    pub failures: Failures,
    /// By class, why the first request of it failed, where more is known.
    #[serde(default)]
    pub failure_reasons: std::collections::BTreeMap<String, String>,
    /// Requests that the client broke off on purpose.
    pub aborted: u64,
    /// Requests under way when the time was over: neither served nor failed.
    pub unfinished: u64,
    /// Responses by class of status: `2xx` and so on.
    pub statuses: std::collections::BTreeMap<String, u64>,
    /// Connections established.
    pub connections: u64,
    /// TLS handshakes that were completed; only with TLS.
    pub handshakes: Option<HandshakeCounts>,
    /// Bytes of payload received, heads included.
    pub bytes_received: u64,
    /// Bytes of payload sent.
    pub bytes_sent: u64,
    /// Latency of what was served, from when the request was due (closed loop: from when it began, connecting included).
    pub latency: Distribution,
    /// Open loop: latency from when the request was sent. It leaves out the wait before ("coordinated omission").
    pub latency_uncorrected: Option<Distribution>,
    /// Open loop: how late requests were started.
    pub lag: Option<Distribution>,
    /// Open loop: requests that found no free connection when they were due.
    pub waited: Option<u64>,
    /// Time to connect, TLS included.
    pub connect: Distribution,
    /// Of it, the time of the TLS handshake; only with TLS.
    pub tls_handshake: Option<Distribution>,
    /// What the simulated lines carried; only with lines.
    pub lines: Option<LineTraffic>,
    /// What the load generator itself needed.
    pub client: GeneratorUsage,
    /// What the watched server needed.
    pub server: Option<ServerUsage>,
    /// What the client ran short of: the server may be better than this shows.
    pub limits: Vec<String>,
    /// The conditions that were to be met.
    pub requirements: Vec<RequirementResult>,
    /// Whether the run passed: all conditions met, not broken off, and something served.
    pub passed: bool,
    /// The run, piece by piece.
    pub intervals: Vec<IntervalReport>,
}

/// How the load was made.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Load")]
pub struct LoadShape {
    /// `closed`, `constant`, `poisson` or `recorded`.
    pub pace: String,
    /// Requests a second that were due; open loop with a rate.
    pub rate_per_second: Option<f64>,
    /// Connections at a time.
    pub connections: u64,
    /// Threads.
    pub threads: u64,
    /// Requests under way on a connection at a time: pipelined, or as streams of HTTP/2.
    pub pipeline: u64,
    /// `HTTP/1` or `HTTP/2`.
    #[serde(default = "http1")]
    pub protocol: String,
    /// Whether TLS was spoken.
    pub tls: bool,
}

impl LoadShape {
    /// What is to be said of each connection, if that is not HTTP/1.
    pub(crate) fn streams(&self) -> String {
        match self.protocol.as_str() {
            "HTTP/2" => format!(" of up to {} streams (HTTP/2)", self.pipeline),
            _ => String::new(),
        }
    }
}

/// What reports of older versions were about.
fn http1() -> String {
    "HTTP/1".to_owned()
}

/// A distribution of times.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Distribution {
    /// How many were recorded.
    pub count: u64,
    /// The least.
    pub min_nanos: u64,
    /// The mean.
    pub mean_nanos: f64,
    /// The standard deviation.
    pub deviation_nanos: f64,
    /// The greatest.
    pub max_nanos: u64,
    /// Values by percentile, from 0 towards 100, ever finer.
    pub percentiles: Vec<Percentile>,
}

/// A point of a distribution.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Percentile {
    /// So many percent of the values
    pub percentile: f64,
    /// are not greater than this.
    pub nanos: u64,
}

impl Distribution {
    /// The value at a percentile, of those that are listed the next at or above it.
    pub fn at(&self, percentile: f64) -> u64 {
        let point = self.percentiles.iter().find(|point| point.percentile >= percentile - 1e-9);
        point.map_or(self.max_nanos, |point| point.nanos)
    }
}

/// What the simulated lines carried.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Lines")]
pub struct LineTraffic {
    /// The rate towards the client that was asked for.
    pub receive_bits_per_second: Option<u64>,
    /// How many lines carried something.
    pub count: u64,
    /// Bits per second of the lines, each over the time that a request was under way: least, median, mean, greatest.
    pub min: f64,
    /// The median.
    pub median: f64,
    /// The mean.
    pub mean: f64,
    /// The greatest.
    pub max: f64,
    /// The share of lines within 2 % of the rate that was asked for.
    pub within_2_percent_share: f64,
    /// Each line's rate.
    pub rates: Vec<f64>,
}

/// What the load generator itself needed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Client")]
pub struct GeneratorUsage {
    /// Processor time a request that came to an end, in microseconds; without waiting awake for send times.
    pub processor_micros_per_request: f64,
    /// Processor time in user space, in seconds.
    pub user_seconds: f64,
    /// Processor time in the kernel, in seconds.
    pub system_seconds: f64,
    /// Of it, waiting awake for send times.
    pub spin_seconds: f64,
    /// The busiest thread's processor time as a share of the run.
    pub busiest_thread_share: f64,
    /// The time in which that thread was ready to run and no processor was free, as a share of the run.
    pub waiting_share: f64,
    /// Source addresses in use.
    pub sources: u64,
}

/// What the watched server needed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Server")]
pub struct ServerUsage {
    /// Processor time in user space, in seconds.
    pub user_seconds: f64,
    /// Processor time in the kernel, in seconds.
    pub system_seconds: f64,
    /// Processor time a request that came to an end, in microseconds.
    pub processor_micros_per_request: f64,
    /// Most memory that was seen.
    pub memory_bytes_max: u64,
    /// Most swap that was seen.
    pub swap_bytes_max: u64,
}

/// How a condition was met.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RequirementResult {
    /// The condition.
    pub text: String,
    /// Whether it holds.
    pub holds: bool,
    /// The value, in seconds or as a number.
    pub value: f64,
}

/// A piece of the run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct IntervalReport {
    /// Its beginning, in seconds since counting began.
    pub start_seconds: f64,
    /// Its end.
    pub end_seconds: f64,
    /// Responses served in it.
    pub served: u64,
    /// Responses served a second.
    pub served_per_second: f64,
    /// Failed requests by class.
    pub failures: Failures,
    /// Bytes received.
    pub bytes_received: u64,
    /// Median latency.
    pub p50_nanos: u64,
    /// 99th percentile of the latency.
    pub p99_nanos: u64,
    /// Greatest latency.
    pub max_nanos: u64,
    /// The client's processor time, as a share of one processor.
    pub client_processor_share: f64,
    /// The server's processor time in user space, as a share of one processor; if it was watched.
    pub server_user_share: Option<f64>,
    /// The server's processor time in the kernel.
    pub server_system_share: Option<f64>,
    /// The server's memory.
    pub server_memory_bytes: Option<u64>,
}

/// Whether a report can be written there: nothing that is there is touched.
///
/// # Errors
/// Why not.
pub(crate) fn check_writable(path: &Path) -> Result<(), String> {
    if path.as_os_str() == "-" {
        return Ok(());
    }
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a report to a file, or to the standard output if the path is `-`.
pub(crate) fn write_to(path: &Path, text: &str) -> Result<(), String> {
    if path.as_os_str() == "-" {
        println!("{text}");
        return Ok(());
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
