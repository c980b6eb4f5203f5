use std::time::Duration;

use super::{KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, one};
use crate::model::traces::AcceptContext;

pub(super) const DOC: &str = "\
    Distributed tracing by W3C Trace Context and OpenTelemetry. With the block `traces`, even an empty one, a \
    request continues the trace in its `traceparent` and `tracestate`, or begins a new one. Upstreams, FastCGI and \
    CGI programs and modules get these fields. Logs can show `{trace_id}` and `{span_id}`. With `endpoint`, \
    Tailcoat exports spans by OTLP: one for each sampled request, and one for its way to an upstream. Without the \
    block, the fields pass unchanged. Use these options in `traces`.";

const HOUR: Duration = Duration::from_secs(3600);
const TIMEOUT: ValueKind = ValueKind::Duration { min: Duration::from_millis(1), max: HOUR };

/// Options of `traces`.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "endpoint",
        parameters: &[one("url", ValueKind::CollectorUrl)],
        doc: "URL of the collector that gets the spans, by OTLP over HTTP (protobuf). A URL without a path gets \
              `/v1/traces`.",
        example: r#"endpoint "http://localhost:4318""#,
        known_as: KnownAs {
            nginx: &["otel_exporter", "endpoint"],
            caddy: &["OTEL_EXPORTER_OTLP_ENDPOINT"],
            others: &["collector"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Traces(|traces, values| traces.endpoint = values.collector_url("url")),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-ca-file",
        parameters: &[one("file", ValueKind::File)],
        doc: "CA certificates (PEM) that must have signed the certificate of a collector at `https://…`. By default, \
              Tailcoat trusts the system's CAs.",
        example: r#"tls-ca-file "/etc/ssl/internal-ca.pem""#,
        known_as: KnownAs::NONE.nginx(&["trusted_certificate"]).others(&["OTEL_EXPORTER_OTLP_CERTIFICATE"]),
        set: OptionSetter::Traces(|traces, values| traces.authorities = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "header",
        parameters: &[one("name", ValueKind::RequestFieldName), one("value", ValueKind::FieldValue)],
        repeatable: true,
        doc: "Header field of requests to the collector, such as an API key.",
        example: r#"header "Authorization" "Bearer 1234""#,
        known_as: KnownAs::NONE.nginx(&["header"]).others(&["OTEL_EXPORTER_OTLP_HEADERS"]),
        set: OptionSetter::Traces(|traces, values| {
            traces.headers.extend(values.text("name").zip(values.text("value")))
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "service-name",
        parameters: &[one("name", ValueKind::Text)],
        default: r#"service-name "tailcoat""#,
        doc: "Name of this server in spans (`service.name`).",
        example: r#"service-name "edge""#,
        known_as: KnownAs::NONE.nginx(&["otel_service_name"]).others(&["OTEL_SERVICE_NAME"]),
        set: OptionSetter::Traces(|traces, values| traces.service_name = values.text("name").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "resource-attribute",
        parameters: &[one("name", ValueKind::Text), one("value", ValueKind::Text)],
        repeatable: true,
        doc: "More attributes of this server in its spans, in addition to name, version, host and process.",
        example: r#"resource-attribute "deployment.environment.name" "production""#,
        known_as: KnownAs {
            nginx: &["otel_resource_attr", "otel_span_attr"],
            caddy: &["span_attributes"],
            others: &["OTEL_RESOURCE_ATTRIBUTES"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Traces(|traces, values| {
            traces.resource_attributes.extend(values.text("name").zip(values.text("value")));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "sample-ratio",
        parameters: &[one("ratio", ValueKind::Ratio)],
        default: "sample-ratio 1",
        doc: "Share of traces begun here whose spans are recorded, from 0 to 1. A trace begun elsewhere keeps the \
              decision made there.",
        example: "sample-ratio 0.05",
        known_as: KnownAs::NONE.nginx(&["otel_trace"]).others(&["OTEL_TRACES_SAMPLER_ARG"]),
        set: OptionSetter::Traces(|traces, values| traces.sample_ratio = values.ratio("ratio").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "accept-context",
        parameters: &[one("whose", ValueKind::Choice(&["any", "trusted-proxies", "none"]))],
        default: "accept-context any",
        doc: "Requests whose own trace context is used: `any`, only those that came through `trusted-proxies`, or \
              `none`. Other requests begin a new trace. A client that names a trace also decides whether it is \
              recorded.",
        example: "accept-context none",
        known_as: KnownAs::NONE.nginx(&["otel_trace_context"]),
        set: OptionSetter::Traces(|traces, values| {
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
        parameters: &[one("size", ValueKind::Size { min: 1, max: 64 << 10 })],
        default: r#"attribute-bytes-max "1KiB""#,
        doc: "Maximum size of an attribute's value, such as a path. Longer values are cut.",
        example: r#"attribute-bytes-max "256B""#,
        known_as: KnownAs::NONE.others(&["OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"]),
        set: OptionSetter::Traces(|traces, values| traces.attribute_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-spans-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 1 << 20 })],
        default: "queue-spans-max 2048",
        doc: "Maximum number of spans that wait to be exported. Further spans are dropped and counted, so that no \
              request waits for a collector.",
        example: "queue-spans-max 16384",
        known_as: KnownAs::NONE.nginx(&["batch_count"]).others(&["OTEL_BSP_MAX_QUEUE_SIZE"]),
        set: OptionSetter::Traces(|traces, values| traces.queue_spans_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "batch-spans-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 1 << 16 })],
        default: "batch-spans-max 512",
        doc: "Maximum number of spans in one export.",
        example: "batch-spans-max 2048",
        known_as: KnownAs::NONE.nginx(&["batch_size"]).others(&["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"]),
        set: OptionSetter::Traces(|traces, values| traces.batch_spans_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "batch-delay",
        parameters: &[one("time", TIMEOUT)],
        default: r#"batch-delay "5s""#,
        doc: "Maximum time that a span waits for others to be exported with it.",
        example: r#"batch-delay "1s""#,
        known_as: KnownAs::NONE.nginx(&["interval"]).others(&["OTEL_BSP_SCHEDULE_DELAY"]),
        set: OptionSetter::Traces(|traces, values| traces.batch_delay = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"timeout "10s""#,
        doc: "Maximum time of one export attempt, from connecting to the response.",
        example: r#"timeout "2s""#,
        known_as: KnownAs::NONE.others(&["OTEL_EXPORTER_OTLP_TIMEOUT"]),
        set: OptionSetter::Traces(|traces, values| traces.timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "retry-time",
        parameters: &[one("time", ValueKind::Duration { min: Duration::ZERO, max: HOUR })],
        default: r#"retry-time "1m""#,
        doc: "Time for which an export is retried while the collector cannot be reached or is busy. After it, the \
              spans are dropped and counted.",
        example: r#"retry-time "5m""#,
        set: OptionSetter::Traces(|traces, values| traces.retry_time = values.time()),
        ..OPTION
    },
];
