use std::time::Duration;

use super::{Kind, OPTION, OptionDefinition, Set, one};
use crate::config::traces::AcceptContext;

pub(super) const DOC: &str = "\
    Which trace a request belongs to (W3C Trace Context), and the server's part in it (OpenTelemetry). With a block `traces`, \
    even an empty one, requests go on with their `traceparent` and `tracestate`, or begin a trace if they have no valid one, and \
    whoever answers them (servers that they are forwarded to, FastCGI and CGI programs, modules) is told. Logs have it as \
    `{trace_id}` and `{span_id}`. With `endpoint`, a span of each request that is sampled, and one of its way to another server, \
    are exported by OTLP. Without the block, these fields are passed on like any other. They stand in `traces`.";

const HOUR: Duration = Duration::from_secs(3600);
const TIMEOUT: Kind = Kind::Duration { min: Duration::from_millis(1), max: HOUR };

/// How traces are kept.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "endpoint",
        parameters: &[one("url", Kind::CollectorUrl)],
        doc: "Where spans are sent: a collector that takes OTLP over HTTP (protobuf). A URL without a path gets `/v1/traces`.",
        example: r#"endpoint "http://localhost:4318""#,
        known_as: &["otel_exporter", "OTEL_EXPORTER_OTLP_ENDPOINT", "collector"],
        set: Set::Traces(|traces, values| traces.endpoint = values.collector_url("url")),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-authorities",
        parameters: &[one("file", Kind::File)],
        doc: "Certificates (PEM) of the authorities of which one has to have signed for a collector at `https://…`; by default \
              those that the system trusts.",
        example: r#"tls-authorities "/etc/ssl/internal-ca.pem""#,
        known_as: &["trusted_certificate", "OTEL_EXPORTER_OTLP_CERTIFICATE"],
        set: Set::Traces(|traces, values| traces.authorities = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "header",
        parameters: &[one("name", Kind::RequestFieldName), one("value", Kind::FieldValue)],
        repeatable: true,
        doc: "A field of requests to the collector, such as a key to it.",
        example: r#"header "Authorization" "Bearer 1234""#,
        known_as: &["OTEL_EXPORTER_OTLP_HEADERS"],
        set: Set::Traces(|traces, values| traces.headers.extend(values.text("name").zip(values.text("value")))),
        ..OPTION
    },
    OptionDefinition {
        name: "service-name",
        parameters: &[one("name", Kind::Text)],
        default: r#"service-name "tailcoat""#,
        doc: "What this server is called (`service.name`).",
        example: r#"service-name "edge""#,
        known_as: &["otel_service_name", "OTEL_SERVICE_NAME"],
        set: Set::Traces(|traces, values| traces.service_name = values.text("name").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "resource-attribute",
        parameters: &[one("name", Kind::Text), one("value", Kind::Text)],
        repeatable: true,
        doc: "What else is said of this server with its spans, besides its name, version, host and process.",
        example: r#"resource-attribute "deployment.environment.name" "production""#,
        known_as: &["OTEL_RESOURCE_ATTRIBUTES"],
        set: Set::Traces(|traces, values| {
            traces.resource_attributes.extend(values.text("name").zip(values.text("value")));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "sample-ratio",
        parameters: &[one("ratio", Kind::Ratio)],
        default: "sample-ratio 1",
        doc: "The part of traces begun here of which spans are recorded. What has begun elsewhere is recorded if it was there.",
        example: "sample-ratio 0.05",
        known_as: &["otel_trace", "OTEL_TRACES_SAMPLER_ARG"],
        set: Set::Traces(|traces, values| traces.sample_ratio = values.ratio("ratio").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "accept-context",
        parameters: &[one("whose", Kind::Choice(&["any", "trusted-proxies", "none"]))],
        default: "accept-context any",
        doc: "Whose requests go on with the trace that they name: everybody's, those that came through `trusted-proxies`, or \
              nobody's; others begin one. A client that may name a trace decides whether it is recorded, too.",
        example: "accept-context none",
        known_as: &["otel_trace_context"],
        set: Set::Traces(|traces, values| {
            traces.accept_context = match values.text("whose").as_deref() {
                Some("trusted-proxies") => AcceptContext::TrustedProxies,
                Some("none") => AcceptContext::None,
                _ => AcceptContext::Any,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "attribute-bytes-max",
        parameters: &[one("size", Kind::Size { min: 1, max: 64 << 10 })],
        default: r#"attribute-bytes-max "1KiB""#,
        doc: "Size of the value of an attribute, such as a path; longer ones are cut.",
        example: r#"attribute-bytes-max "256B""#,
        known_as: &["OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"],
        set: Set::Traces(|traces, values| {
            traces.attribute_bytes_max = values.number("size").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-spans-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 1 << 20 })],
        default: "queue-spans-max 2048",
        doc: "Spans that wait to be sent. More are dropped and counted: no request waits for a collector.",
        example: "queue-spans-max 16384",
        known_as: &["OTEL_BSP_MAX_QUEUE_SIZE"],
        set: Set::Traces(|traces, values| traces.queue_spans_max = values.number("count").unwrap_or_default() as usize),
        ..OPTION
    },
    OptionDefinition {
        name: "batch-spans-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 1 << 16 })],
        default: "batch-spans-max 512",
        doc: "Spans that are sent at once.",
        example: "batch-spans-max 2048",
        known_as: &["batch_size", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"],
        set: Set::Traces(|traces, values| traces.batch_spans_max = values.number("count").unwrap_or_default() as usize),
        ..OPTION
    },
    OptionDefinition {
        name: "batch-delay",
        parameters: &[one("time", TIMEOUT)],
        default: r#"batch-delay "5s""#,
        doc: "How long a span waits for others that are sent with it.",
        example: r#"batch-delay "1s""#,
        known_as: &["OTEL_BSP_SCHEDULE_DELAY"],
        set: Set::Traces(|traces, values| traces.batch_delay = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"timeout "10s""#,
        doc: "How long a try to send spans may take, from connecting to the answer.",
        example: r#"timeout "2s""#,
        known_as: &["OTEL_EXPORTER_OTLP_TIMEOUT"],
        set: Set::Traces(|traces, values| traces.timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "retry-time",
        parameters: &[one("time", Kind::Duration { min: Duration::ZERO, max: HOUR })],
        default: r#"retry-time "1m""#,
        doc: "How long the same spans are tried to be sent while the collector can't be reached, or says that it is busy. Then \
              they are dropped and counted.",
        example: r#"retry-time "5m""#,
        set: Set::Traces(|traces, values| traces.retry_time = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
];
