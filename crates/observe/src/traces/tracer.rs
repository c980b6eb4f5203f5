//! Tracers of configurations, and the traces of requests.

use std::sync::Arc;
use std::time::Duration;

use wire::http::Request;
use wire::http::trace_context::{SpanId, TRACEPARENT, TRACESTATE, TraceId, TraceParent, joined_tracestate};

use super::exporter::{Exporter, TracesError};
use super::span::{SpanDetail, TraceSpan};
use super::{ClientSpan, ServerSpan, SpanCounts};
use crate::config::{AcceptContext, Traces};
use crate::log::ServerLog;

/// Tracing of one configuration.
#[derive(Debug)]
pub struct Tracer {
    config: Traces,
    /// Exporter, if spans are recorded.
    exporter: Option<Exporter>,
}

/// Place of a request in a trace.
#[derive(Debug)]
pub struct Trace {
    tracer: Arc<Tracer>,
    /// Context as sent to others, with this server's span as `parent_id`.
    context: TraceParent,
    /// Span of the sender; `None` if the trace begins here.
    parent_id: Option<SpanId>,
    /// State of other vendors (`tracestate`).
    state: Vec<u8>,
    /// Span of the request to an upstream server.
    client_span_id: SpanId,
}

impl Tracer {
    /// Creates the tracer of a configuration; returns `reused` if its settings are equal.
    ///
    /// # Errors
    /// Spans cannot be exported: CA certificates cannot be read, or the thread cannot be started.
    pub fn reuse(
        config: Option<&Traces>,
        counts: &Arc<SpanCounts>,
        log: &ServerLog,
        reused: Option<&Arc<Self>>,
    ) -> Result<Option<Arc<Self>>, TracesError> {
        let Some(config) = config else { return Ok(None) };
        if let Some(reused) = reused.filter(|reused| reused.config == *config) {
            return Ok(Some(Arc::clone(reused)));
        }
        let exporter = config.endpoint.as_ref().map(|endpoint| Exporter::start(config, endpoint, counts, log));
        Ok(Some(Arc::new(Self { config: config.clone(), exporter: exporter.transpose()? })))
    }

    /// Finds the request's trace: the one that it names, if that is trusted, or a new one. `random` must be unique
    /// numbers.
    pub fn begin(self: &Arc<Self>, request: &Request<'_>, is_proxied: bool, random: [u64; 4]) -> Trace {
        let may_go_on = match self.config.accept_context {
            AcceptContext::Any => true,
            AcceptContext::TrustedProxies => is_proxied,
            AcceptContext::None => false,
        };
        let lines = |name: &'static str| request.field_lines_by_name(name.as_bytes());
        let named = may_go_on.then(|| TraceParent::parse(lines(TRACEPARENT))).flatten();
        let [trace_high, trace_low, span, client_span] = random;
        // An unrecorded span would leave a gap in the trace; so the spans before and after it become neighbours.
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

    /// Sends the queued spans within `limit`, and accepts no more.
    pub fn end(&self, limit: Duration) {
        if let Some(exporter) = &self.exporter {
            exporter.end(limit);
        }
    }
}

impl Trace {
    /// Id of the trace.
    pub fn trace_id(&self) -> TraceId {
        self.context.trace_id
    }

    /// Span of the request; without a record of it, the span of the sender.
    pub fn span_id(&self) -> SpanId {
        self.context.parent_id
    }

    /// `traceparent` for a program or module of this server.
    pub fn local_traceparent(&self) -> String {
        self.context.to_string()
    }

    /// `traceparent` for an upstream server.
    pub fn upstream_traceparent(&self) -> String {
        TraceParent { parent_id: self.client_span_id, ..self.context }.to_string()
    }

    /// `tracestate` for the next one.
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    /// True if spans are recorded.
    pub fn is_recorded(&self) -> bool {
        self.context.is_sampled && self.tracer.exporter.is_some()
    }

    /// Records the span of the request, and of its forwarding, if any. Times are in microseconds since 1970.
    pub fn record(&self, server: &ServerSpan<'_>, client: Option<&ClientSpan<'_>>) {
        let Some(exporter) = self.tracer.exporter.as_ref().filter(|_| self.context.is_sampled) else { return };
        let bytes_max = self.tracer.config.attribute_bytes_max;
        exporter.take(TraceSpan {
            context: self.context,
            parent_id: self.parent_id,
            is_remote_parent: true,
            state: self.state.clone(),
            detail: SpanDetail::of_server(server, bytes_max),
            start_unix_us: server.start_unix_us,
            end_unix_us: server.end_unix_us,
        });
        if let Some(client) = client {
            exporter.take(TraceSpan {
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

#[cfg(test)]
mod tests {
    use wire::http::{KnownField, RequestHead, Span as Bytes};

    use super::*;
    use crate::config::LogLevel;

    const NAMED: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n";

    fn tracer(config: Traces) -> Arc<Tracer> {
        let log = ServerLog::stderr(LogLevel::Error);
        Tracer::reuse(Some(&config), &Arc::default(), &log, None).unwrap().unwrap()
    }

    /// Trace of a request with these fields.
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
        use AcceptContext::{Any, None as NoPeer, TrustedProxies};
        let check = |accept_context: AcceptContext, lines: &str, is_proxied: bool, expect: &str| {
            let trace = begin(&tracer(Traces { accept_context, ..Traces::default() }), lines, is_proxied);
            assert_eq!(trace.upstream_traceparent(), expect, "{accept_context:?}, {lines:?}, {is_proxied}");
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
        check(NoPeer, NAMED, true, begins);
    }

    #[test]
    fn records_are_counted_by_their_reader() {
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
        assert_eq!(trace.local_traceparent(), "00-0af7651916cd43dd8448eb211c80319c-0000000000000003-01");
        assert_eq!(trace.upstream_traceparent(), "00-0af7651916cd43dd8448eb211c80319c-0000000000000004-01");
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
