//! Spans in OTLP (protobuf): the part of `opentelemetry/proto/trace/v1/trace.proto` and its imports that is used here,
//! with the same names and numbers.

use prost::Message;

use super::span::TraceSpan;

/// Instrumentation scope of all spans.
const SCOPE: &str = "tailcoat";

const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// Side of an exchange that a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum SpanKind {
    Unspecified = 0,
    Internal = 1,
    Server = 2,
    Client = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum StatusCode {
    Unset = 0,
    Ok = 1,
    Error = 2,
}

/// `KeyValue`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnyValue {
    #[prost(oneof = "AnyValueKind", tags = "1, 3")]
    value: Option<AnyValueKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AnyValueKind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<SpanMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct InstrumentationScope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(enumeration = "SpanKind", tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
    #[prost(message, repeated, tag = "11")]
    events: Vec<OtlpEvent>,
    #[prost(message, optional, tag = "15")]
    status: Option<OtlpStatus>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OtlpEvent {
    #[prost(fixed64, tag = "1")]
    time_unix_nano: u64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OtlpStatus {
    #[prost(enumeration = "StatusCode", tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

/// Part of a batch that a collector rejected.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

impl Attribute {
    pub(super) fn text(key: impl Into<String>, value: impl Into<String>) -> Self {
        let value = AnyValue { value: Some(AnyValueKind::Text(value.into())) };
        Self { key: key.into(), value: Some(value) }
    }

    pub(super) fn number(key: impl Into<String>, value: i64) -> Self {
        let value = AnyValue { value: Some(AnyValueKind::Number(value)) };
        Self { key: key.into(), value: Some(value) }
    }

    #[cfg(test)]
    pub(super) fn to_text(&self) -> (String, String) {
        let value = match self.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(AnyValueKind::Text(text)) => text.clone(),
            Some(AnyValueKind::Number(number)) => number.to_string(),
            None => String::new(),
        };
        (self.key.clone(), value)
    }
}

impl Resource {
    pub(super) fn new(attributes: Vec<Attribute>) -> Self {
        Self { attributes }
    }
}

/// Encodes a batch (ExportTraceServiceRequest).
pub(super) fn encode(resource: &Resource, batch: Vec<TraceSpan>) -> Vec<u8> {
    let scope = InstrumentationScope { name: SCOPE.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let scope_spans = ScopeSpans { scope: Some(scope), spans: batch.into_iter().map(message).collect() };
    let resource_spans = ResourceSpans { resource: Some(resource.clone()), scope_spans: vec![scope_spans] };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }.encode_to_vec()
}

/// Decodes the rejected part from a response (ExportTraceServiceResponse); `None` if it is malformed or complete.
pub(super) fn partial_success(answer: &[u8]) -> Option<PartialSuccess> {
    ExportTraceServiceResponse::decode(answer).ok()?.partial_success
}

fn message(span: TraceSpan) -> SpanMessage {
    let TraceSpan { context, parent_id, is_remote_parent, state, detail, start_unix_us, end_unix_us } = span;
    let event =
        |(name, us): (&str, u64)| OtlpEvent { time_unix_nano: (start_unix_us + us) * 1_000, name: name.to_owned() };
    let is_remote = parent_id.is_some() && is_remote_parent;
    SpanMessage {
        trace_id: context.trace_id.bytes().to_vec(),
        span_id: context.parent_id.bytes().to_vec(),
        // Checked to be ASCII before.
        trace_state: String::from_utf8(state).unwrap_or_default(),
        parent_span_id: parent_id.map_or_else(Vec::new, |id| id.bytes().to_vec()),
        name: detail.name,
        kind: detail.kind.into(),
        start_time_unix_nano: start_unix_us * 1_000,
        end_time_unix_nano: end_unix_us.max(start_unix_us) * 1_000,
        attributes: detail.attributes,
        events: detail.events.into_iter().map(event).collect(),
        status: detail.is_error.then(|| OtlpStatus { code: StatusCode::Error.into() }),
        flags: u32::from(context.flags()) | HAS_IS_REMOTE | if is_remote { IS_REMOTE } else { 0 },
    }
}
