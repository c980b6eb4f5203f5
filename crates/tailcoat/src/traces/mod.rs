//! Traces: which one a request belongs to, and what is told of its way through here.
//!
//! A request's place in a trace ([`Trace`]) is found when it is routed ([`Tracer::begin`]), told to whoever answers it, and
//! logged. If it is sampled, its spans ([`ServerSpan`], [`ClientSpan`]) are left in a queue when it is logged
//! ([`Trace::record`]), from which a thread takes them to a collector (OTLP). A worker never waits for that: what the queue has
//! no room for is dropped and counted.

mod client;
mod exporter;
mod otlp;
mod span;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wire::http::Request;
use wire::http::trace_context::{SpanId, TRACEPARENT, TRACESTATE, TraceId, TraceParent, joined_tracestate};

use self::exporter::Exporter;
pub use self::exporter::TracesError;
pub use self::span::{ClientSpan, ServerSpan};
use self::span::{Span, SpanDetail};
use crate::config::{AcceptContext, Traces};
use crate::log::ServerLog;

/// What is done about traces, by one configuration.
#[derive(Debug)]
pub struct Tracer {
    config: Traces,
    /// If spans are recorded.
    exporter: Option<Exporter>,
}

/// What became of spans.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// Those that a collector has taken.
    pub exported: AtomicU64,
    /// Those for which the queue had no room.
    pub dropped: AtomicU64,
    /// Those that a collector has refused, or that it could not be given in time.
    pub failed: AtomicU64,
}

/// A request's place in a trace.
#[derive(Debug)]
pub struct Trace {
    tracer: Arc<Tracer>,
    /// As it is told to others, but that `parent_id` is our span's.
    context: TraceParent,
    /// Who has sent the request; `None` if the trace has begun here.
    parent_id: Option<SpanId>,
    /// What others keep in it.
    state: Vec<u8>,
    /// The span of the request's way to another server.
    client_span_id: SpanId,
}

impl Tracer {
    /// What is done by this configuration: as `before`, if that says the same.
    ///
    /// # Errors
    /// Spans can't be exported: authorities can't be read, or no thread started.
    pub fn succeeding(
        config: Option<&Traces>,
        counts: &Arc<SpanCounts>,
        log: &ServerLog,
        before: Option<&Arc<Self>>,
    ) -> Result<Option<Arc<Self>>, TracesError> {
        let Some(config) = config else { return Ok(None) };
        if let Some(before) = before.filter(|before| before.config == *config) {
            return Ok(Some(Arc::clone(before)));
        }
        let exporter = config.endpoint.as_ref().map(|endpoint| Exporter::start(config, endpoint, counts, log));
        Ok(Some(Arc::new(Self { config: config.clone(), exporter: exporter.transpose()? })))
    }

    /// Finds a request's place: in the trace that it names, if it may, or in a new one. `random` are numbers that nobody
    /// else has.
    pub fn begin(self: &Arc<Self>, request: &Request<'_>, is_proxied: bool, random: [u64; 4]) -> Trace {
        let may_go_on = match self.config.accept_context {
            AcceptContext::Any => true,
            AcceptContext::TrustedProxies => is_proxied,
            AcceptContext::None => false,
        };
        let lines = |name: &'static str| request.field_lines_by_name(name.as_bytes());
        let named = may_go_on.then(|| TraceParent::parse(lines(TRACEPARENT))).flatten();
        let [trace_high, trace_low, span, client_span] = random;
        // Spans of ours that nobody is told of would be a gap: then those before and after us are neighbours.
        let own = |number| match named {
            Some(named) if self.exporter.is_none() => named.parent_id,
            _ => SpanId::new(number),
        };
        let (span_id, client_span_id) = (own(span), own(client_span));
        let context = match named {
            Some(named) => TraceParent { parent_id: span_id, ..named },
            None => {
                let trace_id = TraceId::new(u128::from(trace_high) << 64 | u128::from(trace_low));
                let is_sampled = trace_id.is_among(self.config.sample_ratio);
                TraceParent { trace_id, parent_id: span_id, is_sampled, is_random: true }
            }
        };
        let state = if named.is_some() { joined_tracestate(lines(TRACESTATE)) } else { Vec::new() };
        let parent_id = named.map(|named| named.parent_id);
        Trace { tracer: Arc::clone(self), context, parent_id, state, client_span_id }
    }

    /// Sends what waits, for so long at most, and takes no more.
    pub fn end(&self, limit: Duration) {
        if let Some(exporter) = &self.exporter {
            exporter.end(limit);
        }
    }
}

impl SpanCounts {
    /// Exported, dropped and failed, by these names.
    pub fn by_result(&self) -> [(&'static str, u64); 3] {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [("exported", count(&self.exported)), ("dropped", count(&self.dropped)), ("failed", count(&self.failed))]
    }
}

impl Trace {
    /// The trace.
    pub fn trace_id(&self) -> TraceId {
        self.context.trace_id
    }

    /// The span of the request, or where none is recorded, that of who has sent it.
    pub fn span_id(&self) -> SpanId {
        self.context.parent_id
    }

    /// What is told to who answers here: a program, a module.
    pub fn told_here(&self) -> String {
        self.context.to_string()
    }

    /// What is told to another server.
    pub fn told_elsewhere(&self) -> String {
        TraceParent { parent_id: self.client_span_id, ..self.context }.to_string()
    }

    /// What others keep in it, for the next one.
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    /// Whether spans are recorded.
    pub fn is_recorded(&self) -> bool {
        self.context.is_sampled && self.tracer.exporter.is_some()
    }

    /// Records the request's span, and that of its way to another server, if it went there. Times are in microseconds since
    /// 1970.
    pub fn record(&self, server: &ServerSpan<'_>, client: Option<&ClientSpan<'_>>) {
        let Some(exporter) = self.tracer.exporter.as_ref().filter(|_| self.context.is_sampled) else { return };
        let bytes_max = self.tracer.config.attribute_bytes_max;
        exporter.take(Span {
            context: self.context,
            parent_id: self.parent_id,
            is_remote_parent: true,
            state: self.state.clone(),
            detail: SpanDetail::of_server(server, bytes_max),
            start_unix_us: server.start_unix_us,
            end_unix_us: server.end_unix_us,
        });
        if let Some(client) = client {
            exporter.take(Span {
                context: TraceParent { parent_id: self.client_span_id, ..self.context },
                parent_id: Some(self.context.parent_id),
                is_remote_parent: false,
                state: self.state.clone(),
                detail: SpanDetail::of_client(client, bytes_max),
                start_unix_us: client.start_unix_us,
                end_unix_us: client.start_unix_us + client.upstream.duration_us.unwrap_or_default(),
            });
        }
    }
}

/// A request's trace at the end of a message, if it has one.
pub fn told<T: AsRef<Trace>>(trace: Option<T>) -> impl fmt::Display {
    let id = trace.map(|trace| trace.as_ref().trace_id());
    fmt::from_fn(move |f| id.map_or(Ok(()), |id| write!(f, ", trace {id}")))
}

#[cfg(test)]
mod tests {
    use wire::http::{KnownField, RequestHead, Span as Bytes};

    use super::*;
    use crate::config::LogLevel;

    const NAMED: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n";

    fn tracer(config: Traces) -> Arc<Tracer> {
        let log = ServerLog::stderr(LogLevel::Error);
        Tracer::succeeding(Some(&config), &Arc::default(), &log, None).unwrap().unwrap()
    }

    /// The trace of a request with these fields.
    fn begin(tracer: &Arc<Tracer>, lines: &str, is_proxied: bool) -> Trace {
        let mut head = RequestHead::default();
        let mut at = 0;
        for line in lines.split_inclusive('\n') {
            let colon = line.find(": ").unwrap();
            let (name, value) = (Bytes::new(at, at + colon), Bytes::new(at + colon + 2, at + line.len() - 1));
            head.push_field(name, value, KnownField::from_name(&line.as_bytes()[..colon]));
            at += line.len();
        }
        tracer.begin(&Request { head: &head, bytes: lines.as_bytes() }, is_proxied, [1, 2, 3, 4])
    }

    #[test]
    fn whose_traces_go_on() {
        use AcceptContext::{Any, None as Nobody, TrustedProxies};
        let check = |accept_context: AcceptContext, lines: &str, is_proxied: bool, expect: &str| {
            let trace = begin(&tracer(Traces { accept_context, ..Traces::default() }), lines, is_proxied);
            assert_eq!(trace.told_elsewhere(), expect, "{accept_context:?}, {lines:?}, {is_proxied}");
        };
        let (goes_on, begins) = (
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000010000000000000002-0000000000000004-03",
        );
        check(Any, NAMED, false, goes_on);
        check(Any, "", false, begins);
        check(Any, "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1\n", false, begins);
        check(TrustedProxies, NAMED, false, begins);
        check(TrustedProxies, NAMED, true, goes_on);
        check(Nobody, NAMED, true, begins);
    }

    #[test]
    fn who_records_is_told_of() {
        let recording = Traces {
            endpoint: Some(crate::config::CollectorUrl {
                is_tls: false,
                host: "127.0.0.1".to_owned(),
                port: 9,
                path: "/".to_owned(),
            }),
            ..Traces::default()
        };
        let trace = begin(&tracer(recording.clone()), NAMED, false);
        assert_eq!(trace.told_here(), "00-0af7651916cd43dd8448eb211c80319c-0000000000000003-01");
        assert_eq!(trace.told_elsewhere(), "00-0af7651916cd43dd8448eb211c80319c-0000000000000004-01");
        assert!(trace.is_recorded());
        let unsampled = NAMED.replace("-01\n", "-00\n");
        assert!(!begin(&tracer(recording), &unsampled, false).is_recorded());
        assert!(!begin(&tracer(Traces::default()), NAMED, false).is_recorded());
    }

    #[test]
    fn state_belongs_to_its_trace() {
        let tracer = tracer(Traces::default());
        let state = |lines: &str| String::from_utf8(begin(&tracer, lines, false).state().to_vec()).unwrap();
        assert_eq!(state(&format!("{NAMED}tracestate: a=1\ntracestate: b=2\n")), "a=1,b=2");
        assert_eq!(state(&format!("{NAMED}tracestate: A=1\n")), "");
        assert_eq!(state("tracestate: a=1\n"), "");
    }
}
