//! `tailor replay`: sends the requests of an access log to two servers, and reports how their responses differ.

mod client;
mod difference;
mod report;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use self::client::{ReplayClient, ReplayServer};
use self::difference::{FieldFilter, differences};
pub(crate) use self::report::{ReplayReport, schema};
use crate::bench::access_log::{AccessLogEntry, due_times, parse};
use crate::bench::target::Url;
use crate::end::{ProgramEnd, stop_on_signals};
use crate::units::parse_duration;

/// Maximum size of a log. All of it is held in memory.
const LOG_BYTES_MAX: u64 = 4 << 30;

/// Options of `tailor replay`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReplayOptions {
    /// Access log in the common or combined format
    #[arg(value_name = "LOG")]
    pub log: PathBuf,
    /// URL of the server whose responses are right
    #[arg(value_name = "OLD")]
    pub old: String,
    /// URL of the server that is to replace it
    #[arg(value_name = "NEW")]
    pub new: String,
    /// Host of the requests, and name for TLS, instead of those of the URLs
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Methods to send; other requests are left out, because they may change something
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "GET,HEAD")]
    pub methods: Vec<String>,
    /// Further header fields of each request
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub headers: Vec<String>,
    /// Further header fields whose values may differ
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub ignore: Vec<String>,
    /// Send each request of the log, also repeated ones
    #[arg(long)]
    pub all: bool,
    /// Keep the timing of the log, this many times faster; implies --all
    #[arg(long, value_name = "FACTOR")]
    pub speed: Option<f64>,
    /// Requests at once
    #[arg(short = 'c', long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Most requests to send
    #[arg(short = 'n', long, value_name = "N")]
    pub requests: Option<usize>,
    /// Time limit of each response
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Do not verify certificates
    #[arg(short = 'k', long)]
    pub insecure: bool,
    /// Verify certificates with the CAs in this file instead of the system's
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Requests to name for each kind of difference
    #[arg(long, value_name = "N", default_value = "3")]
    pub examples: usize,
    /// Write a report in JSON; `-` is the standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Sends the requests, and prints the differences. The result is [`ProgramEnd::Failed`] if there are any.
///
/// # Errors
/// The log cannot be read, or has no request to send. A URL or an option is invalid, or a server accepts no connection. The
/// report cannot be written.
pub(crate) fn run(options: &ReplayOptions) -> Result<ProgramEnd, String> {
    if options.speed.is_some_and(|speed| speed.is_nan() || speed <= 0.0) {
        return Err("--speed must be more than 0".into());
    }
    let filter = FieldFilter::new(&options.ignore);
    let servers = [&options.old, &options.new].map(|url| server(url, options));
    let [old, new] = servers;
    let servers = [old?, new?];
    let (requests, left_out) = requests(options)?;
    // Without this, each request to a server that is down would be a difference.
    for (url, server) in [&options.old, &options.new].into_iter().zip(&servers) {
        server.reach().map_err(|error| format!("{url}: {error}"))?;
    }
    if let Some(path) = &options.json {
        crate::report::check_writable(path)?;
    }
    let stop = stop_on_signals()?;
    let mut report = compare_all(&requests, &servers, &filter, options, &stop);
    report.left_out = left_out;
    if options.json.as_ref().is_none_or(|path| path.as_os_str() != "-") {
        crate::output::print(&report.text(options.examples))?;
    }
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| format!("report: {error}"))?;
        crate::report::write_to(path, &(text + "\n"))?;
    }
    Ok(match (stop.load(Ordering::Relaxed), report.is_same()) {
        (true, _) => ProgramEnd::Interrupted,
        (false, true) => ProgramEnd::Passed,
        (false, false) => ProgramEnd::Failed,
    })
}

fn server(url: &str, options: &ReplayOptions) -> Result<ReplayServer, String> {
    let url = Url::parse(url)?;
    if url.target != "/" {
        return Err(format!("`{}`: the paths come from the log; name the server only", url.target));
    }
    let fields = options.headers.iter().map(|line| line.split_once(':').map(|(name, value)| (name, value.trim())));
    let fields = fields.collect::<Option<Vec<_>>>().ok_or("--header: write NAME: VALUE")?;
    ReplayServer::new(&url, options.host.as_deref(), &fields, options)
}

/// Request to send, and its time in nanoseconds after the start if the log's timing is kept.
struct ReplayRequest {
    method: String,
    target: String,
    due: Option<u64>,
}

/// Reads the requests to send. Also returns the number of lines that are left out.
fn requests(options: &ReplayOptions) -> Result<(Vec<ReplayRequest>, usize), String> {
    let path = options.log.display();
    let text = crate::input::read(&options.log, LOG_BYTES_MAX)?;
    let (log, mut left_out) = parse(&String::from_utf8_lossy(&text));
    let times = options.speed.map(|speed| due_times(&log, speed));
    let mut seen = HashSet::new();
    let mut requests = Vec::new();
    for (index, AccessLogEntry { method, target, .. }) in log.into_iter().enumerate() {
        if !options.methods.contains(&method) {
            left_out += 1;
            continue;
        }
        let due = times.as_ref().map(|times| times[index]);
        if options.all || due.is_some() || seen.insert((method.clone(), target.clone())) {
            requests.push(ReplayRequest { method, target, due });
        }
    }
    requests.truncate(options.requests.unwrap_or(usize::MAX));
    if requests.is_empty() {
        return Err(format!(
            "{path}: no request to send: the log must be in the common or combined format, and have requests with {}",
            options.methods.join(", ")
        ));
    }
    Ok((requests, left_out))
}

fn compare_all(
    requests: &[ReplayRequest],
    servers: &[ReplayServer; 2],
    filter: &FieldFilter,
    options: &ReplayOptions,
    stop: &Arc<AtomicBool>,
) -> ReplayReport {
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    let work = || {
        let mut clients = servers.each_ref().map(ReplayClient::new);
        let mut report = ReplayReport::default();
        while !stop.load(Ordering::Relaxed) {
            let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            if let Some(due) = request.due {
                thread::sleep(Duration::from_nanos(due).saturating_sub(start.elapsed()));
            }
            compare(request, &mut clients, filter, options.examples, &mut report);
        }
        report
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.concurrency).map(|_| scope.spawn(work)).collect();
        let mut report = ReplayReport::default();
        for worker in workers {
            // A panic of a worker is a panic of the program.
            report.add(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), options.examples);
        }
        report
    })
}

/// Compares the responses to a request. What differs between two responses of the old server is no difference.
fn compare(
    request: &ReplayRequest,
    [old, new]: &mut [ReplayClient<'_>; 2],
    filter: &FieldFilter,
    examples: usize,
    report: &mut ReplayReport,
) {
    let fetch = |client: &mut ReplayClient<'_>| client.fetch(&request.method, &request.target);
    let (first, other) = (fetch(old), fetch(new));
    let mut found = differences(&first, &other, filter);
    let mut is_unstable = false;
    if !found.is_empty() {
        let unstable = differences(&first, &fetch(old), filter);
        let before = found.len();
        found.retain(|difference| !unstable.iter().any(|other| other.subject == difference.subject));
        is_unstable = found.len() < before;
    }
    report.count(&format!("{} {}", request.method, request.target), found, is_unstable, examples);
}
