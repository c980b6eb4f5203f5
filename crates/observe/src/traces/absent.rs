//! In the place of tracers and traces.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use wire::http::Request;
use wire::http::trace_context::{SpanId, TraceId};

use super::{ClientSpan, ServerSpan, SpanCounts};
use crate::config::{OptionalPart, Traces};
use crate::log::ServerLog;

/// Tracing of a configuration, which never exists.
#[derive(Debug)]
pub enum Tracer {}

/// Place of a request in a trace, which never exists.
#[derive(Debug)]
pub struct Trace(Infallible);

impl Tracer {
    /// No tracer.
    ///
    /// # Errors
    /// The configuration has traces.
    pub fn reuse(
        config: Option<&Traces>,
        _: &Arc<SpanCounts>,
        _: &ServerLog,
        _: Option<&Arc<Self>>,
    ) -> io::Result<Option<Arc<Self>>> {
        match config {
            Some(_) => Err(io::Error::other(OptionalPart::Traces.absence())),
            None => Ok(None),
        }
    }

    /// No trace, because there is no tracer.
    pub fn begin(self: &Arc<Self>, _: &Request<'_>, _: bool, _: [u64; 4]) -> Trace {
        match **self {}
    }

    /// Ends nothing.
    pub fn end(&self, _: Duration) {
        match *self {}
    }
}

impl Trace {
    /// No id, because there is no trace.
    pub fn trace_id(&self) -> TraceId {
        match self.0 {}
    }

    /// No span.
    pub fn span_id(&self) -> SpanId {
        match self.0 {}
    }

    /// No field for a program or module.
    pub fn local_traceparent(&self) -> String {
        match self.0 {}
    }

    /// No field for an upstream server.
    pub fn upstream_traceparent(&self) -> String {
        match self.0 {}
    }

    /// No state.
    pub fn state(&self) -> &[u8] {
        match self.0 {}
    }

    /// No record.
    pub fn is_recorded(&self) -> bool {
        match self.0 {}
    }

    /// Records nothing.
    pub fn record(&self, _: &ServerSpan<'_>, _: Option<&ClientSpan<'_>>) {
        match self.0 {}
    }
}
