//! Metrics of a run in the text format of Prometheus.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::engine::{Interval, IntervalRecord};
use crate::report::IntervalReport;

/// Maximum size of a request for metrics.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Maximum time for a request and its response. The server handles one at a time.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(2);
/// Upper bounds of the buckets of the latency, in seconds.
const BUCKETS: [f64; 17] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Server of metrics; dropping it ends it.
pub(super) struct MetricsServer {
    address: SocketAddr,
    state: Arc<Mutex<MetricsState>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Counts since the start of counting.
#[derive(Debug, Default)]
struct MetricsState {
    record: IntervalRecord,
    processor_seconds: f64,
    run_seconds: f64,
    server_memory_bytes: Option<u64>,
}

impl MetricsServer {
    /// Listens on an address.
    pub(super) fn start(address: SocketAddr) -> Result<Self, String> {
        let listener =
            TcpListener::bind(address).map_err(|error| format!("cannot bind {address} for metrics: {error}"))?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let (state, stop) = (Arc::<Mutex<MetricsState>>::default(), Arc::new(AtomicBool::new(false)));
        let (shared, stopped) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // A client's error concerns only that client.
                let _ = stream.and_then(|stream| respond(stream, &shared));
            }
        });
        let thread = thread.map_err(|error| format!("metrics: {error}"))?;
        Ok(Self { address, state, stop, thread: Some(thread) })
    }

    /// Adds an interval that ended.
    pub(super) fn add(&self, interval: &Interval, report: &IntervalReport) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.record.merge(&interval.record);
        state.processor_seconds += interval.processor_time.total.saturating_sub(interval.spin) as f64 / 1e9;
        state.run_seconds = interval.end_seconds;
        state.server_memory_bytes = report.server_memory_bytes;
    }

    /// Address on which the server listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A connection wakes the thread.
        if TcpStream::connect_timeout(&self.address, REQUEST_TIME_MAX).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn respond(mut stream: TcpStream, state: &Mutex<MetricsState>) -> std::io::Result<()> {
    let deadline = Instant::now() + REQUEST_TIME_MAX;
    stream.set_write_timeout(Some(REQUEST_TIME_MAX))?;
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > REQUEST_BYTES_MAX {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            length => request.extend_from_slice(&piece[..length]),
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") || request.starts_with(b"GET / ") {
        true => ("200 OK", state.lock().unwrap_or_else(PoisonError::into_inner).to_text()),
        false => ("404 Not Found", "GET /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

impl MetricsState {
    fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let record = &self.record;
        let head = |out: &mut String, name: &str, kind: &str, help: &str| {
            writeln!(out, "# HELP tailor_{name} {help}\n# TYPE tailor_{name} {kind}")
        };
        head(out, "served_total", "counter", "Responses that passed every check.")?;
        writeln!(out, "tailor_served_total {}", record.served)?;
        head(out, "failed_total", "counter", "Failed requests by class.")?;
        for class in crate::engine::FailureClass::ALL {
            writeln!(out, "tailor_failed_total{{class=\"{}\"}} {}", class.name(), record.failures.of(*class))?;
        }
        head(out, "latency_seconds", "histogram", "Latency of served requests from their due time.")?;
        for bound in BUCKETS {
            let count = record.latency.count_between(0, (bound * 1e9) as u64);
            writeln!(out, "tailor_latency_seconds_bucket{{le=\"{bound}\"}} {count}")?;
        }
        writeln!(out, "tailor_latency_seconds_bucket{{le=\"+Inf\"}} {}", record.latency.len())?;
        writeln!(out, "tailor_latency_seconds_sum {}", record.latency.mean() * record.latency.len() as f64 / 1e9)?;
        writeln!(out, "tailor_latency_seconds_count {}", record.latency.len())?;
        for (name, help, value) in [
            ("connections_total", "Connections established.", record.connections as f64),
            ("received_bytes_total", "Bytes received from sockets.", record.bytes_received as f64),
            ("sent_bytes_total", "Bytes sent to sockets.", record.bytes_sent as f64),
            ("client_cpu_seconds_total", "CPU time of the load generator.", self.processor_seconds),
        ] {
            head(out, name, "counter", help)?;
            writeln!(out, "tailor_{name} {value}")?;
        }
        head(out, "run_seconds", "gauge", "Time since counting began, up to the last interval.")?;
        writeln!(out, "tailor_run_seconds {}", self.run_seconds)?;
        if let Some(bytes) = self.server_memory_bytes {
            head(out, "server_memory_bytes", "gauge", "Memory in use of the watched server.")?;
            writeln!(out, "tailor_server_memory_bytes {bytes}")?;
        }
        Ok(())
    }
}
