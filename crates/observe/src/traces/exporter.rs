//! Export of spans from the queue to a collector, on a thread of its own.

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver as StdReceiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::SpanCounts;
use super::client::{CollectorClient, SendError};
use super::otlp::{Attribute, Resource, encode, partial_success};
use super::span::TraceSpan;
use crate::config::{CollectorUrl, Traces};
use crate::log::{ServerLog, Trouble, event};

/// First delay after a failed attempt; doubles with each further one.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Longest delay between attempts, whatever the collector asks for.
const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(30);

/// Advice for spans that are not exported.
const HELP: &str = "check `endpoint` in `traces` and the collector; requests are served without traces";
const DROPPED_HELP: &str = "the collector is slower than the server: raise `queue-spans-max` or lower `sample-ratio`";

/// Exports spans to a collector until it is dropped.
pub(super) struct Exporter {
    queue: Sender<TraceSpan>,
    counts: Arc<SpanCounts>,
    dropping: Trouble,
    ending: watch::Sender<bool>,
    /// The thread drops the sender when it ends.
    ended: Mutex<StdReceiver<()>>,
}

/// Error that prevents the export of spans.
#[derive(Debug)]
pub enum TracesError {
    /// The URL has an invalid host.
    Url(String),
    /// A header field has an invalid name or value.
    Header(String),
    /// TLS cannot be set up.
    Tls(String),
    /// The thread cannot be started.
    Thread(io::Error),
}

impl Exporter {
    /// Starts the thread.
    pub(super) fn start(
        config: &Traces,
        endpoint: &CollectorUrl,
        counts: &Arc<SpanCounts>,
        log: &ServerLog,
    ) -> Result<Self, TracesError> {
        let client = CollectorClient::new(config, endpoint)?;
        let (queue, spans) = mpsc::channel(config.queue_spans_max);
        let (ending, is_ending) = watch::channel(false);
        let (end, ended) = channel();
        let work = ExporterThread {
            config: config.clone(),
            endpoint: endpoint.to_string(),
            resource: resource(config),
            client,
            spans,
            ending: is_ending,
            counts: Arc::clone(counts),
            failing: Trouble::new(log.clone(), HELP),
            rejecting: Trouble::new(log.clone(), ""),
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(TracesError::Thread)?;
        let run = move || {
            runtime.block_on(work.run());
            // Does not wait for a name lookup.
            runtime.shutdown_background();
            drop(end);
        };
        thread::Builder::new().name("traces".to_owned()).spawn(run).map_err(TracesError::Thread)?;
        let dropping = Trouble::new(log.clone(), DROPPED_HELP);
        Ok(Self { queue, counts: Arc::clone(counts), dropping, ending, ended: Mutex::new(ended) })
    }

    /// Queues a span; drops it if the queue is full.
    pub(super) fn take(&self, span: TraceSpan) {
        if self.queue.try_send(span).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            self.dropping.tell("spans dropped: reason=\"export queue full\"");
        }
    }

    /// Sends the queued spans, and waits at most `limit` for that.
    pub(super) fn end(&self, limit: Duration) {
        self.ending.send_replace(true);
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(limit) {
            self.dropping.tell("spans dropped: reason=\"shutdown before the export ended\"");
        }
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl fmt::Display for TracesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => write!(f, "{url} has no valid host"),
            Self::Header(name) => write!(f, "invalid header `{name}`"),
            Self::Tls(message) => f.write_str(message),
            Self::Thread(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

impl std::error::Error for TracesError {}

impl From<TracesError> for io::Error {
    fn from(error: TracesError) -> Self {
        Self::other(error)
    }
}

/// State of the thread.
struct ExporterThread {
    config: Traces,
    endpoint: String,
    resource: Resource,
    client: CollectorClient,
    spans: Receiver<TraceSpan>,
    ending: watch::Receiver<bool>,
    counts: Arc<SpanCounts>,
    failing: Trouble,
    /// The collector rejects spans.
    rejecting: Trouble,
}

impl ExporterThread {
    async fn run(mut self) {
        loop {
            let mut batch = Vec::new();
            let goes_on = self.fill(&mut batch).await;
            if !batch.is_empty() {
                self.export(batch).await;
            }
            if !goes_on {
                return;
            }
        }
    }

    /// Waits for a batch: until it is full, or its first span has waited long enough. Returns false after the last
    /// batch.
    async fn fill(&mut self, batch: &mut Vec<TraceSpan>) -> bool {
        let mut due = None;
        loop {
            let left = self.config.batch_spans_max - batch.len();
            if left == 0 {
                return true;
            }
            tokio::select! {
                biased;
                count = self.spans.recv_many(batch, left) => match count {
                    0 => return false,
                    _ => due = due.or_else(|| Some(Instant::now() + self.config.batch_delay)),
                },
                // At the end, the last spans come at once.
                () = is_ending(&mut self.ending), if !self.spans.is_closed() => self.spans.close(),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => return true,
            }
        }
    }

    /// Sends a batch, and retries if needed.
    async fn export(&mut self, batch: Vec<TraceSpan>) {
        let count = batch.len() as u64;
        let content = Bytes::from(encode(&self.resource, batch));
        let until = Instant::now() + self.config.retry_time;
        let mut interval = RETRY_INTERVAL;
        loop {
            let error = match self.client.send(content.clone()).await {
                Ok(answer) => return self.on_accepted(count, &answer),
                Err(error) => error,
            };
            let next = match &error {
                SendError::Temporary(_, wanted) => {
                    Some(Instant::now() + wanted.unwrap_or(interval).min(RETRY_INTERVAL_MAX))
                }
                SendError::Permanent(_) => None,
            };
            self.failing.tell(event("sending spans failed", &[("endpoint", &self.endpoint), ("error", &error)]));
            let Some(next) = next.filter(|next| *next <= until && !*self.ending.borrow()) else {
                self.counts.failed.fetch_add(count, Ordering::Relaxed);
                return;
            };
            tokio::select! {
                () = sleep_until(next) => interval *= 2,
                () = is_ending(&mut self.ending) => {}
            }
        }
    }

    fn on_accepted(&self, count: u64, answer: &[u8]) {
        let partial = partial_success(answer).unwrap_or_default();
        let rejected = u64::try_from(partial.rejected_spans).unwrap_or_default().min(count);
        if rejected > 0 {
            let values: &[(&str, &dyn fmt::Display)] = &[
                ("endpoint", &self.endpoint),
                ("rejected", &rejected),
                ("sent", &count),
                ("reason", &partial.error_message),
            ];
            self.rejecting.tell(event("spans rejected by the collector", values));
        }
        self.counts.failed.fetch_add(rejected, Ordering::Relaxed);
        self.counts.exported.fetch_add(count - rejected, Ordering::Relaxed);
    }
}

/// Waits for the end; forever if the sender is gone.
async fn is_ending(ending: &mut watch::Receiver<bool>) {
    if ending.wait_for(|is_ending| *is_ending).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Resource of all spans.
fn resource(config: &Traces) -> Resource {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut attributes = vec![
        Attribute::text("service.name", &config.service_name),
        Attribute::text("service.version", env!("CARGO_PKG_VERSION")),
        Attribute::text("host.name", host),
        Attribute::number("process.pid", std::process::id().into()),
        Attribute::text("telemetry.sdk.name", "tailcoat"),
        Attribute::text("telemetry.sdk.language", "rust"),
        Attribute::text("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
    ];
    attributes.extend(config.resource_attributes.iter().map(|(name, value)| Attribute::text(name, value)));
    Resource::new(attributes)
}
