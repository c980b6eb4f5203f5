//! Options of `tailor bench`; those that mean the same as in wrk, ab or curl have the same name.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rustls::{CipherSuite, NamedGroup};

use crate::engine::SimulatedLine;
use crate::units::{parse_duration, parse_number, parse_positive, parse_range, parse_share};

/// Options of `tailor bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_line_help = false)]
pub(crate) struct LoadOptions {
    /// URLs to request, all of the same server
    #[arg(value_name = "URL", required_unless_present_any = ["urls", "replay", "targets"])]
    pub url: Vec<String>,

    /// Number of concurrent connections
    #[arg(short = 'c', long, value_name = "N", default_value = "64", value_parser = parse_positive, help_heading = "Load")]
    pub connections: u64,
    /// Number of threads, which share the connections
    #[arg(short = 't', long, value_name = "N", default_value = "1", value_parser = parse_positive, help_heading = "Load")]
    pub threads: u64,
    /// Duration of the measurement [default: 10s, without -n]
    #[arg(short = 'd', long, value_name = "TIME", value_parser = parse_some_time, help_heading = "Load")]
    pub duration: Option<Duration>,
    /// Number of requests to send
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_positive, help_heading = "Load")]
    pub requests: Option<u64>,
    /// End the run when its result is precise: `1%` for the rate, or in an open loop the mean latency; `p99:2%` for another
    /// quantity. The interval has 95 % confidence. -d is then the maximum duration [default: 5m]
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = super::precision::parse,
        conflicts_with_all = ["requests", "profile", "replay", "find"],
        help_heading = "Load"
    )]
    pub until_precise: Option<super::PrecisionGoal>,
    /// Open loop: send this many requests per second, whether or not earlier ones were answered; may be a fraction
    #[arg(short = 'R', long, value_name = "N", value_parser = parse_rate, help_heading = "Load")]
    pub rate: Option<f64>,
    /// Open loop: spacing of requests
    #[arg(long, value_enum, default_value = "constant", help_heading = "Load")]
    pub arrivals: ArrivalSpacing,
    /// Open loop whose rate changes: phases RATE:TIME, such as `1k:10s,1k-5k:30s,5k:10s`; `1k-5k/5:50s` climbs in 5 steps
    #[arg(
        long,
        value_name = "PHASES",
        value_parser = super::profile::parse,
        conflicts_with_all = ["rate", "duration", "requests", "replay", "find"],
        help_heading = "Load"
    )]
    pub profile: Option<super::ProfileOption>,
    /// Maximum latency of a useful response: report the goodput, and until when each phase of --profile was late
    #[arg(long, value_name = "TIME", value_parser = parse_some_time, help_heading = "Load")]
    pub deadline: Option<Duration>,
    /// Open loop: find the highest rate at which all conditions hold, such as `p99<5ms,failures<0.1%`; each try lasts -d
    /// [default: 5s]
    #[arg(
        long,
        value_name = "CONDITIONS",
        value_delimiter = ',',
        num_args = 1,
        value_parser = super::require::parse,
        conflicts_with_all = ["rate", "requests", "replay", "require", "intervals", "hdr_log"],
        help_heading = "Load"
    )]
    pub find: Vec<super::Requirement>,
    /// Width of the interval at which --find stops, as a share of the rate
    #[arg(long, value_name = "SHARE", default_value = "2%", value_parser = parse_share, requires = "find", help_heading = "Load")]
    pub find_precision: f64,
    /// Duration of load before the measurement, not counted
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration, help_heading = "Load")]
    pub warm_up: Duration,
    /// Time over which connections are started
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration, help_heading = "Load")]
    pub ramp_up: Duration,
    /// Maximum time to connect, and for each response
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration, help_heading = "Load")]
    pub timeout: Duration,
    /// Busy-wait for this time before sleeping; spares a server on the same machine the work of waking the client
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration, help_heading = "Load")]
    pub spin: Duration,
    /// Seed of all random choices [default: another one for each run; the report names it]
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub seed: Option<u32>,
    /// CPUs to bind the threads to: `1` or `1,3`
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Load")]
    pub cpus: Vec<usize>,

    /// Header field of the request
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", help_heading = "Request")]
    pub headers: Vec<String>,
    /// Method [default: GET, or POST with a body]; a number means --streams, like h2load's -m
    #[arg(short = 'm', long, value_name = "NAME", help_heading = "Request")]
    pub method: Option<String>,
    /// Cookie of the request
    #[arg(short = 'b', long, value_name = "NAME=VALUE", help_heading = "Request")]
    pub cookie: Vec<String>,
    /// Request body, or @FILE
    #[arg(long, value_name = "TEXT", help_heading = "Request")]
    pub body: Option<String>,
    /// File with one URL or path per line, after an optional weight and a space
    #[arg(long, value_name = "FILE", help_heading = "Request")]
    pub urls: Option<PathBuf>,
    /// Targets of vegeta, in its format http or json; `-` reads them from standard input
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["urls", "replay", "scenario", "method", "body"],
        help_heading = "Request"
    )]
    pub targets: Option<PathBuf>,
    /// Message to send on a ws:// or wss:// URL, or with --grpc: a text, @FILE, or hex: with digits; may be repeated. Texts
    /// of gRPC are fields of protobuf, such as `1: "name" 2: 5`
    #[arg(
        long,
        value_name = "MESSAGE",
        conflicts_with_all = ["urls", "replay", "scenario", "targets", "body", "method"],
        help_heading = "Request"
    )]
    pub message: Vec<String>,
    /// Call the gRPC method that the path of URL names, such as /helloworld.Greeter/SayHello, over HTTP/2
    #[arg(
        long,
        group = "streamed",
        conflicts_with_all = ["urls", "replay", "scenario", "targets", "body", "method", "http3"],
        help_heading = "Request"
    )]
    pub grpc: bool,
    /// File with scenarios: sequences of requests with captured values, pauses and checks, for the server of URL. -n and -R
    /// then count runs of scenarios
    #[arg(
        long,
        value_name = "FILE",
        requires = "url",
        conflicts_with_all = [
            "urls", "zipf", "replay", "method", "body", "cookie", "http10", "pipeline", "streamed", "abort", "find",
            "expect_status", "expect_length", "expect_header", "expect_body", "expect_sha256", "expect_same",
        ],
        help_heading = "Request"
    )]
    pub scenario: Option<PathBuf>,
    /// Choose URLs by Zipf's law, the first most often
    #[arg(long, value_name = "ALPHA", conflicts_with = "replay", help_heading = "Request")]
    pub zipf: Option<f64>,
    /// Replay an access log (common or combined format) with its timing, against the server of URL
    #[arg(long, value_name = "LOG", requires = "url", conflicts_with_all = ["rate", "urls"], help_heading = "Request")]
    pub replay: Option<PathBuf>,
    /// Speed-up factor of the replay
    #[arg(long, value_name = "FACTOR", default_value = "1", requires = "replay", help_heading = "Request")]
    pub replay_speed: f64,

    /// Connect to ADDRESS instead of resolving HOST
    #[arg(long, value_name = "HOST:PORT:ADDRESS", help_heading = "Connection")]
    pub resolve: Vec<String>,
    /// Connect to a Unix domain socket
    #[arg(long, value_name = "PATH", conflicts_with = "resolve", help_heading = "Connection")]
    pub unix_socket: Option<PathBuf>,
    /// Source addresses, used in turn
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Connection")]
    pub source: Vec<IpAddr>,
    /// Share of connections that use HTTP/1.0
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = parse_share, help_heading = "Connection")]
    pub http10: f64,
    /// Share of keep-alive connections
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = parse_share, help_heading = "Connection")]
    pub keep_alive: f64,
    /// Requests on a keep-alive connection: a number, or a range such as `5-15` [default: no limit]
    #[arg(long, value_name = "N", value_parser = parse_range, help_heading = "Connection")]
    pub requests_per_connection: Option<(u32, u32)>,
    /// Pipelining: requests sent on a connection before the first response
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_positive, help_heading = "Connection")]
    pub pipeline: u64,
    /// Use HTTP/2; over TLS by ALPN, without TLS by prior knowledge
    #[arg(long, group = "streamed", conflicts_with_all = ["pipeline", "http10", "keep_alive"], help_heading = "Connection")]
    pub http2: bool,
    /// Use HTTP/3, over QUIC on the UDP port of the URL
    #[arg(
        long,
        alias = "h3",
        group = "streamed",
        conflicts_with_all = ["pipeline", "http10", "keep_alive", "unix_socket", "line"],
        help_heading = "Connection"
    )]
    pub http3: bool,
    /// Concurrent requests on an HTTP/2 or HTTP/3 connection [default: 1]
    #[arg(long, alias = "max-concurrent-streams", value_name = "N", requires = "streamed", value_parser = parse_positive, help_heading = "Connection")]
    pub streams: Option<u64>,
    /// Do not verify the server's certificate
    #[arg(short = 'k', long, help_heading = "Connection")]
    pub insecure: bool,
    /// Verify the server's certificate with the CAs in this file instead of the system's
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub cacert: Option<PathBuf>,
    /// Resume TLS sessions on new connections, like returning users
    #[arg(long, help_heading = "Connection")]
    pub resume: bool,
    /// Send the first requests of a resumed HTTP/3 connection before its handshake is complete (0-RTT)
    #[arg(long, requires_all = ["http3", "resume"], conflicts_with_all = ["body", "targets", "scenario"], help_heading = "Connection")]
    pub early_data: bool,
    /// Move each HTTP/3 connection to another UDP port after every N responses, like a client behind a NAT that forgets it
    #[arg(long, value_name = "N", requires = "http3", value_parser = parse_positive, help_heading = "Connection")]
    pub move_after: Option<u64>,
    /// Groups for the key exchange of TLS: X25519MLKEM768, X25519, P-256, P-384 [default: all, in this order]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = super::tls::parse_group, help_heading = "Connection")]
    pub tls_groups: Vec<NamedGroup>,
    /// Cipher suites of TLS, such as TLS13_AES_128_GCM_SHA256 [default: all that are safe]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = super::tls::parse_cipher_suite, help_heading = "Connection")]
    pub tls_ciphers: Vec<CipherSuite>,
    /// Use TCP Fast Open: send the first request in the first packet of a connection
    #[arg(long, conflicts_with_all = ["http3", "unix_socket"], help_heading = "Connection")]
    pub fast_open: bool,

    /// Limit each connection to a line: `56k`, `2M/100k` (receive/send), `-` for no limit, `,latency=100ms`, `,loss=1%`
    #[arg(long, value_name = "RATE", value_parser = crate::engine::parse_line, allow_hyphen_values = true, help_heading = "Users")]
    pub line: Option<SimulatedLine>,
    /// As root: a line of the kernel that all connections share, to a server on this machine, as in --line and with
    /// `,buffer=BYTES` [default: 100 ms at the rate, at least 16 KiB]. Where the kernel has no netem, tailor delays and loses
    #[arg(
        long,
        value_name = "RATE",
        value_parser = super::shared_line::parse,
        allow_hyphen_values = true,
        conflicts_with_all = ["line", "source", "unix_socket", "agents"],
        help_heading = "Users"
    )]
    pub shared_line: Option<super::SharedLine>,
    /// Share of requests to abort
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = parse_share, help_heading = "Users")]
    pub abort: f64,
    /// Bytes to receive before aborting an incomplete response
    #[arg(long, value_name = "BYTES", default_value = "1", value_parser = parse_positive, help_heading = "Users")]
    pub abort_after: u64,

    /// Expected status [default: 200 to 399]
    #[arg(long, value_name = "CODE", value_delimiter = ',', help_heading = "Checks")]
    pub expect_status: Vec<u16>,
    /// Expected length of the body
    #[arg(long, value_name = "BYTES", help_heading = "Checks")]
    pub expect_length: Option<u64>,
    /// Expected header field: `NAME` or `NAME: VALUE`
    #[arg(long, value_name = "FIELD", help_heading = "Checks")]
    pub expect_header: Vec<String>,
    /// File that the body must equal
    #[arg(long, value_name = "FILE", conflicts_with_all = ["expect_sha256", "expect_same"], help_heading = "Checks")]
    pub expect_body: Option<PathBuf>,
    /// Expected SHA-256 of the body
    #[arg(long, value_name = "HEX", conflicts_with = "expect_same", help_heading = "Checks")]
    pub expect_sha256: Option<String>,
    /// Expect the same body for all responses of a URL
    #[arg(long, help_heading = "Checks")]
    pub expect_same: bool,
    /// Condition for a passed run: `p99<5ms`, `rate>10k`, `failures=0`, `failures<0.1%`; may be repeated
    #[arg(long, value_name = "CONDITION", value_parser = super::require::parse, help_heading = "Checks")]
    pub require: Vec<super::Requirement>,

    /// Write the report as JSON (`tailor schema bench`); `-` or no value means standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", value_parser = parse_json_file, help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write the report as an HTML page with charts
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Write an HDR histogram log of latencies, one line per interval
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hdr_log: Option<PathBuf>,
    /// Write a line of JSON after each interval; `-` means standard error
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub intervals: Option<PathBuf>,
    /// Length of an interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval, help_heading = "Output")]
    pub interval: Duration,
    /// Accepted for compatibility with wrk; latencies are always reported
    #[arg(long, hide = true)]
    pub latency: bool,
    /// Do not run the client for 0.3 s against a server that answers at once, to tell limits of client and server apart
    #[arg(long, help_heading = "Output")]
    pub no_calibration: bool,
    /// Show the run on the terminal: curves of rate and latency, a histogram of latency, and failures by class
    #[arg(long, conflicts_with_all = ["quiet", "find"], help_heading = "Output")]
    pub live: bool,
    /// Serve metrics of the run for Prometheus on this address, such as 127.0.0.1:9464
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Output")]
    pub metrics: Option<std::net::SocketAddr>,
    /// Load from these agents (`tailor agent`) instead of this machine: each runs an equal part
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        requires = "secret",
        conflicts_with_all = ["find", "until_precise", "replay"],
        help_heading = "Load"
    )]
    pub agents: Vec<String>,
    /// File with the secret that the agents share
    #[arg(long, value_name = "FILE", requires = "agents", help_heading = "Load")]
    pub secret: Option<PathBuf>,
    /// Do not show progress
    #[arg(short = 'q', long, help_heading = "Output")]
    pub quiet: bool,
    /// Record CPU time and memory of this process and its children, such as a local server
    #[arg(long, value_name = "PID", help_heading = "Output")]
    pub watch: Option<u32>,
    /// Record CPU time and memory of this control group: its directory, or for cgroup v1 those of cpuacct and memory
    #[arg(
        long,
        value_name = "DIRECTORY",
        value_delimiter = ',',
        num_args = 1,
        conflicts_with = "watch",
        help_heading = "Output"
    )]
    pub watch_group: Vec<PathBuf>,
}

/// Spacing of the requests of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ArrivalSpacing {
    /// At equal intervals
    Constant,
    /// At random, like independent users
    Poisson,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match parse_number(text)? {
        rate if rate > 0.0 => Ok(rate),
        _ => Err("must be more than 0".into()),
    }
}

/// Parses the optional file of `--json`. A URL after `--json` is an error, because it is not the file.
pub(crate) fn parse_json_file(text: &str) -> Result<PathBuf, String> {
    match text.contains("://") {
        true => Err("a URL is not a file; --json - writes to standard output".into()),
        false => Ok(text.into()),
    }
}

fn parse_some_time(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("must be more than 0".into()),
        time => Ok(time),
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        interval if interval < Duration::from_millis(10) => Err("must be at least 10ms".into()),
        interval => Ok(interval),
    }
}
