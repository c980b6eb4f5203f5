//! Model of a report, [`BenchReport`], and its output formats.

mod build;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod observe;
mod phases;
pub(crate) mod plot;
mod scenarios;
mod streams;
pub(crate) mod text;

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use build::Builder;
pub(crate) use phases::PhaseReport;
pub(crate) use scenarios::ScenarioReport;
pub(crate) use streams::IntervalOutputs;

use crate::engine::{DatagramCounts, Failures, HandshakeCounts};

/// Version of the report's format; raised when a program for the old format would misread the new one.
pub(crate) const FORMAT_VERSION: u32 = 2;

/// Report of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct BenchReport {
    /// Version of this format.
    pub format_version: u32,
    /// Version of tailor.
    pub tailor_version: String,
    /// Time when counting began, in seconds since 1970.
    pub start_unix_seconds: f64,
    /// Command-line arguments of the run.
    pub arguments: Vec<String>,
    /// Address of the server.
    pub address: String,
    /// Shape of the load.
    pub load: LoadShape,
    /// True if the run was interrupted.
    pub interrupted: bool,
    /// Time during which requests were counted, in seconds.
    pub duration_seconds: f64,
    /// Responses that passed all checks. Failed requests are not included.
    pub served: u64,
    /// Responses served per second while requests were counted.
    pub served_per_second: f64,
    /// Responses served within the deadline, per second while requests were counted; only with `--deadline`.
    #[serde(default)]
    pub goodput_per_second: Option<f64>,
    /// Maximum latency of a response within the deadline; only with `--deadline`.
    #[serde(default)]
    pub deadline_nanos: Option<u64>,
    /// Failed requests by class.
    pub failures: Failures,
    /// Most frequent reason of each class, if more is known than the class.
    #[serde(default)]
    pub failure_reasons: std::collections::BTreeMap<String, String>,
    /// Failed requests by class and reason, if more is known than the class.
    #[serde(default)]
    pub failure_details: std::collections::BTreeMap<String, std::collections::BTreeMap<String, u64>>,
    /// Requests that the client aborted on purpose.
    pub aborted: u64,
    /// Requests in progress at the end of the run: neither served nor failed.
    pub unfinished: u64,
    /// Responses by class of status, such as `2xx`.
    pub statuses: std::collections::BTreeMap<String, u64>,
    /// Connections established.
    pub connections: u64,
    /// Completed TLS handshakes; only with TLS.
    pub handshakes: Option<HandshakeCounts>,
    /// Bytes received from sockets, including heads and TLS records.
    pub bytes_received: u64,
    /// Bytes sent to sockets, including heads and TLS records.
    pub bytes_sent: u64,
    /// Datagrams of HTTP/3, and system calls for them; only with HTTP/3.
    #[serde(default)]
    pub datagrams: Option<DatagramCounts>,
    /// Latency of served requests from their due time; in a closed loop, from their start, with connecting. Failed
    /// requests rank in its percentiles.
    pub latency: Distribution,
    /// Open loop: latency from the time of sending. It omits the wait before it ("coordinated omission").
    pub latency_uncorrected: Option<Distribution>,
    /// Open loop: delay between the due time of a request and its start.
    pub lag: Option<Distribution>,
    /// Open loop: requests that found no free connection at their due time.
    pub waited: Option<u64>,
    /// Time to connect, including the TLS handshake.
    pub connect: Distribution,
    /// Time of the TLS handshake; only with TLS.
    pub tls_handshake: Option<Distribution>,
    /// Figures by phase; only with `--profile`.
    #[serde(default)]
    pub phases: Vec<PhaseReport>,
    /// Figures by scenario; only with `--scenario`.
    #[serde(default)]
    pub scenarios: Vec<ScenarioReport>,
    /// Traffic of the simulated lines; only with lines.
    pub lines: Option<LineTraffic>,
    /// Line that all connections shared; only with `--shared-line`.
    #[serde(default)]
    pub shared_line: Option<SharedLineReport>,
    /// CPU time and addresses that the load generator used.
    pub client: GeneratorUsage,
    /// CPU time and memory of the watched server.
    pub server: Option<ServerUsage>,
    /// Precision of the result; only with `--until-precise`.
    #[serde(default)]
    pub precision: Option<PrecisionReport>,
    /// Limits that the run reached. If one is not the server's, the server may be faster than this result.
    pub limits: Vec<Limit>,
    /// Results of the conditions of `--require`.
    pub requirements: Vec<RequirementResult>,
    /// True if all conditions hold, the run was not interrupted, and at least one request was served.
    pub passed: bool,
    /// Intervals of the run.
    pub intervals: Vec<IntervalReport>,
}

/// Precision of a result, from the means of ten batches of intervals.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Precision")]
pub(crate) struct PrecisionReport {
    /// Quantity: `rate`, `mean`, `p99` and so on.
    pub quantity: String,
    /// Mean over the batches: responses per second, or nanoseconds.
    pub value: f64,
    /// Half the width of the 95 % confidence interval, as a share of the value. Null if the run was too short to know it.
    pub half_width_share: Option<f64>,
    /// Half the width at which the run ends.
    pub goal_share: f64,
    /// True if the run ended because it was precise. Otherwise its budget was used up.
    pub reached: bool,
}

impl PrecisionReport {
    /// Describes the precision in a sentence.
    pub(crate) fn sentence(&self) -> String {
        let value = match self.quantity.as_str() {
            "rate" => format!("{}/s", crate::units::format_rate(self.value)),
            _ => crate::units::format_nanos(self.value as u64),
        };
        let Some(share) = self.half_width_share else {
            return format!("the run was too short to know the precision of {}", self.quantity);
        };
        let text = format!("{} {value} +- {:.2} % (95 %)", self.quantity, share * 100.0);
        match self.reached {
            true => text,
            false => format!("{text}; the time was used up before +- {} %", self.goal_share * 100.0),
        }
    }
}

/// Limit that a run reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Limit {
    /// Part of the test that was the limit.
    pub by: LimitedBy,
    /// Measured values that show it.
    pub text: String,
}

/// Part of a test that can be its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LimitedBy {
    /// The load generator.
    Client,
    /// The kernel of the client's machine: its CPUs, ports and file descriptors.
    Kernel,
    /// The server.
    Server,
    /// The network interface, or the simulated lines.
    Line,
}

impl Limit {
    /// Describes the limit in a sentence. A limit of the server is a result; all others are warnings in capital letters.
    pub(crate) fn sentence(&self) -> String {
        let subject = match self.by {
            LimitedBy::Client => "THE CLIENT WAS THE LIMIT",
            LimitedBy::Kernel => "THE CLIENT'S KERNEL WAS THE LIMIT",
            LimitedBy::Server => "the server was the limit",
            LimitedBy::Line => "THE LINE WAS THE LIMIT",
        };
        format!("{subject}: {}", self.text)
    }

    /// True if the server may be faster than the result.
    pub(crate) fn is_warning(&self) -> bool {
        self.by != LimitedBy::Server
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Recorded {
            Limit {
                by: LimitedBy,
                text: String,
            },
            /// Older records have only limits of the client, without its name.
            Text(String),
        }
        Ok(match Recorded::deserialize(deserializer)? {
            Recorded::Limit { by, text } => Self { by, text },
            Recorded::Text(text) => Self { by: LimitedBy::Client, text },
        })
    }
}

/// Shape of a load.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Load")]
pub(crate) struct LoadShape {
    /// Pace of requests: `closed`, `constant`, `poisson`, `profile` or `recorded`.
    pub pace: String,
    /// Requests due per second, in an open loop with a rate.
    pub rate_per_second: Option<f64>,
    /// Load profile, if the rate changes over time.
    #[serde(default)]
    pub profile: Option<String>,
    /// Concurrent connections.
    pub connections: u64,
    /// Threads of the client.
    pub threads: u64,
    /// Maximum concurrent requests of a connection: pipelined, or as streams of HTTP/2 or HTTP/3.
    pub pipeline: u64,
    /// Protocol: `HTTP/1`, `HTTP/2`, `HTTP/3`, `WebSocket`, `WebSocket over HTTP/2` or `gRPC`.
    #[serde(default = "http1")]
    pub protocol: String,
    /// True if connections used TLS.
    pub tls: bool,
    /// Seed of all random choices. Older records have none.
    #[serde(default)]
    pub seed: Option<u32>,
}

impl BenchReport {
    /// Formats the reasons of a class of failures: a single one without its count, otherwise the most frequent ones with
    /// their counts. Returns an empty text if no reason is known.
    pub(crate) fn format_reasons(&self, class: &str) -> String {
        let Some(details) = self.failure_details.get(class) else { return String::new() };
        let mut reasons: Vec<(&String, u64)> = details.iter().map(|(reason, count)| (reason, *count)).collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        match reasons.as_slice() {
            [(reason, _)] => (*reason).clone(),
            reasons => {
                let shown = reasons.iter().take(REASONS_SHOWN);
                let texts: Vec<String> = shown.map(|(reason, count)| format!("{reason} ({count})")).collect();
                let more = if reasons.len() > REASONS_SHOWN { ", ..." } else { "" };
                texts.join(", ") + more
            }
        }
    }
}

/// Maximum number of reasons of a class in texts for people.
const REASONS_SHOWN: usize = 3;

impl LoadShape {
    /// Describes the streams of a connection; empty for HTTP/1.
    pub(crate) fn streams(&self) -> String {
        let number_of = |thing| crate::units::format_number_of(self.pipeline, thing);
        match self.protocol.as_str() {
            "HTTP/1" => String::new(),
            "WebSocket" => " (WebSocket)".to_owned(),
            "WebSocket over HTTP/2" => format!(" of {} (HTTP/2)", number_of("WebSocket")),
            protocol => format!(" of up to {} ({protocol})", number_of("stream")),
        }
    }
}

/// Protocol of older reports, which do not name it.
fn http1() -> String {
    "HTTP/1".to_owned()
}

/// Distribution of times.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Minimum.
    pub min_nanos: u64,
    /// Mean.
    pub mean_nanos: f64,
    /// Standard deviation.
    pub deviation_nanos: f64,
    /// Maximum.
    pub max_nanos: u64,
    /// Values by percentile, from 0 to 100, ever closer together. Failed requests rank above all values, as if they were
    /// infinitely late; percentiles that fall on one are missing.
    pub percentiles: Vec<Percentile>,
    /// Number of failed requests that rank in the percentiles. No other figure includes them.
    #[serde(default)]
    pub failed: u64,
}

/// Point of a distribution.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Percentile {
    /// Percentage of the values that are at most `nanos`.
    pub percentile: f64,
    /// Value at this percentile.
    pub nanos: u64,
}

impl Distribution {
    /// Value at a percentile. If the percentile is not listed, it takes the next one above it. Returns `None` if the
    /// percentile falls on a failed request, or if there are too few values for it.
    pub(crate) fn at(&self, percentile: f64) -> Option<u64> {
        let is_known = percentile >= 100.0 || self.has_values_above(percentile);
        let point = self.percentiles.iter().find(|point| point.percentile >= percentile - 1e-9);
        point.filter(|_| is_known).map(|point| point.nanos)
    }

    /// True if there are enough values to tell a percentile from the maximum: p99.99 of 200 values would be the maximum.
    fn has_values_above(&self, percentile: f64) -> bool {
        (self.count + self.failed) as f64 * (100.0 - percentile) / 100.0 >= 0.5 - 1e-6
    }
}

/// Traffic of the simulated lines.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Lines")]
pub(crate) struct LineTraffic {
    /// Configured rate towards the client, in bits per second.
    pub receive_bits_per_second: Option<u64>,
    /// Lines that had a request in progress. Starved ones are among them.
    pub count: u64,
    /// Minimum rate of a line in bits per second, over the time in which it had a request in progress.
    pub min: f64,
    /// Median rate.
    pub median: f64,
    /// Mean rate.
    pub mean: f64,
    /// Maximum rate.
    pub max: f64,
    /// Lines that carried nothing although they had a request in progress.
    #[serde(default)]
    pub starved: u64,
    /// Share of lines within 2 % of the configured rate.
    pub within_2_percent_share: f64,
    /// Rate of each line.
    pub rates: Vec<f64>,
}

/// Line of the kernel that all connections share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SharedLine")]
pub(crate) struct SharedLineReport {
    /// Rate towards the client in bits per second; null for no limit.
    pub receive_bits_per_second: Option<u64>,
    /// Rate towards the server in bits per second; null for no limit.
    pub send_bits_per_second: Option<u64>,
    /// Buffer before the line towards the client.
    pub receive_buffer_bytes: u64,
    /// Buffer before the line towards the server.
    pub send_buffer_bytes: u64,
    /// Round trip time of the line.
    pub latency_nanos: u64,
    /// Share of packets that are lost on purpose.
    pub loss: f64,
    /// True if the kernel delays and loses packets. Otherwise tailor simulates that, if there is any.
    pub delays_in_kernel: bool,
}

impl SharedLineReport {
    /// Describes the line.
    pub(crate) fn sentence(&self) -> String {
        let direction = |bits: Option<u64>, buffer: u64, to: &str| match bits {
            Some(bits) => {
                let (bits, buffer) =
                    (crate::units::format_bits(bits as f64), crate::units::format_bytes(buffer as f64));
                format!("{bits} to the {to} after a buffer of {buffer}")
            }
            None => format!("no limit to the {to}"),
        };
        let receive = direction(self.receive_bits_per_second, self.receive_buffer_bytes, "client");
        let send = direction(self.send_bits_per_second, self.send_buffer_bytes, "server");
        let mut text = format!("shared by all connections: {receive}, {send}");
        if self.latency_nanos > 0 || self.loss > 0.0 {
            let by = if self.delays_in_kernel { "by the kernel" } else { "by tailor, because the kernel has no netem" };
            let round_trip = crate::units::format_nanos(self.latency_nanos);
            let loss = if self.loss > 0.0 { format!(", loss of {} %", self.loss * 100.0) } else { String::new() };
            text += &format!("; round trip of {round_trip}{loss} {by}");
        }
        text
    }
}

/// Resources that the load generator used.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Client")]
pub(crate) struct GeneratorUsage {
    /// CPU time per request that ended, in microseconds, without busy-waiting for send times.
    pub processor_micros_per_request: f64,
    /// CPU time in user space, in seconds.
    pub user_seconds: f64,
    /// CPU time in the kernel, in seconds.
    pub system_seconds: f64,
    /// CPU time of busy-waiting for send times, in seconds; included in the two above.
    pub spin_seconds: f64,
    /// CPU time of the busiest thread without busy-waiting, as a share of the run.
    pub busiest_thread_share: f64,
    /// Time that this thread waited for a CPU, as a share of the run.
    pub waiting_share: f64,
    /// Source addresses that connections used.
    pub sources: u64,
}

/// Resources that the watched server used.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Server")]
pub(crate) struct ServerUsage {
    /// CPU time in user space, in seconds.
    pub user_seconds: f64,
    /// CPU time in the kernel, in seconds.
    pub system_seconds: f64,
    /// CPU time per request that ended, in microseconds.
    pub processor_micros_per_request: f64,
    /// Peak of the sampled memory in use.
    pub memory_bytes_max: u64,
    /// Peak of the sampled swap in use.
    pub swap_bytes_max: u64,
}

/// Result of a condition.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct RequirementResult {
    /// Condition as the user typed it.
    pub text: String,
    /// True if the condition holds.
    pub holds: bool,
    /// Measured value: seconds for a time, otherwise a number. Null if failed requests make it unknown.
    pub value: Option<f64>,
}

/// Figures of one interval of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct IntervalReport {
    /// Start of the interval, in seconds since counting began.
    pub start_seconds: f64,
    /// End of the interval, in seconds since counting began.
    pub end_seconds: f64,
    /// Responses served.
    pub served: u64,
    /// Responses served per second.
    pub served_per_second: f64,
    /// Failed requests by class.
    pub failures: Failures,
    /// Bytes received.
    pub bytes_received: u64,
    /// Median latency.
    pub p50_nanos: u64,
    /// 99th percentile of the latency.
    pub p99_nanos: u64,
    /// Maximum latency.
    pub max_nanos: u64,
    /// CPU time of the client as a share of one CPU.
    pub client_processor_share: f64,
    /// CPU time of the watched server in user space, as a share of one CPU.
    pub server_user_share: Option<f64>,
    /// CPU time of the watched server in the kernel, as a share of one CPU.
    pub server_system_share: Option<f64>,
    /// Memory in use of the watched server.
    pub server_memory_bytes: Option<u64>,
    /// Part of it that is the processes' own: not the kernel's memory for them, nor files.
    #[serde(default)]
    pub server_own_memory_bytes: Option<u64>,
}

/// Checks that a report can be written to this path, without changing an existing file.
///
/// # Errors
/// The file cannot be opened for writing.
pub(crate) fn check_writable(path: &Path) -> Result<(), String> {
    if path.as_os_str() == "-" {
        return Ok(());
    }
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a report to a file, or to standard output if the path is `-`.
pub(crate) fn write_to(path: &Path, text: &str) -> Result<(), String> {
    if path.as_os_str() == "-" {
        return crate::output::print(&format!("{text}\n"));
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
