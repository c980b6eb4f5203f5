//! Limits of HTTP/2.

use wire::h2::BudgetLimit;

use super::{KnownAs, OPTION, OptionDefinition, OptionSetter, Parameter, ValueKind, one};
use crate::value::Values;

/// The parameters of a budget: so many at once, and so many more each second.
const BUDGET: &[Parameter] = &[
    one("burst", ValueKind::Count { min: 1, max: 1_000_000 }),
    one("per-second", ValueKind::Count { min: 0, max: 1_000_000 }),
];

fn budget(values: &Values) -> BudgetLimit {
    let number = |name| values.number(name).unwrap_or_default() as u32;
    BudgetLimit { burst: number("burst"), per_second: number("per-second") }
}

pub(super) const DOC: &str = "\
    Limits on HTTP/2 connections. Use these options in `limits`. An option with two numbers is a budget: so many \
    at once, and so many more each second. A client that exceeds it gets `ENHANCE_YOUR_CALM`, and its connection \
    is closed. Other limits apply to HTTP/2 too: `head-bytes-max` to a header list (431) and to its compressed \
    form (the connection is closed); `head-timeout` to the client's first SETTINGS frame; `write-timeout` to a \
    stream whose window stays closed (the stream is reset); `linger-timeout` to a request that continues after its \
    response. \
    These options limit HTTP/3 connections too: `http2-streams-max`, `http2-window-bytes-max`, \
    `http2-header-table-bytes-max`, `http2-resets-max`, `http2-faults-max`, `http2-priorities-max` and \
    `http2-idle-frames-max`. An HTTP/3 client that exceeds a budget gets `H3_EXCESSIVE_LOAD`.";

pub(super) static LIMITS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "http2-streams-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 10_000 })],
        default: "http2-streams-max 128",
        doc: "Maximum number of requests in progress on a connection. Further requests are rejected with \
              `REFUSED_STREAM`, and the client may retry them. In HTTP/3, clients wait before they send further ones.",
        example: "http2-streams-max 64",
        known_as: KnownAs {
            nginx: &["http2_max_concurrent_streams"],
            apache: &["H2MaxSessionStreams"],
            others: &["max_concurrent_streams", "tune.h2.fe.max-concurrent-streams"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Limits(|limits, values| limits.http2.concurrent_streams_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-window-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 128 << 10, max: 1 << 30 })],
        default: r#"http2-window-bytes-max "1MiB""#,
        doc: "Maximum flow control window of a connection and of a stream, reached by fast clients. It bounds the \
              request body that waits to be read. In HTTP/3, a stream has this window from the start, and a connection \
              eight times as much.",
        example: r#"http2-window-bytes-max "4MiB""#,
        known_as: KnownAs {
            nginx: &["http2_body_preread_size", "http2_recv_buffer_size"],
            apache: &["H2WindowSize"],
            others: &["tune.h2.fe.initial-window-size"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Limits(|limits, values| limits.http2.window_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-header-table-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: 64 << 10 })],
        default: r#"http2-header-table-bytes-max "4KiB""#,
        doc: "Maximum size of a connection's HPACK table, in which the server keeps request header fields that the \
              client refers to later. In HTTP/3, it limits the QPACK table.",
        example: r#"http2-header-table-bytes-max "8KiB""#,
        known_as: KnownAs::NONE.nginx(&["http2_max_field_size"]).others(&["tune.h2.header-table-size"]),
        set: OptionSetter::Limits(|limits, values| limits.http2.header_table_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-continuations-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 1000 })],
        default: "http2-continuations-max 16",
        doc: "Maximum number of CONTINUATION frames of a head (CVE-2024-27316). If a client sends more, the \
              connection is closed.",
        example: "http2-continuations-max 4",
        known_as: KnownAs::NONE.others(&["tune.h2.fe.glitches-threshold"]),
        set: OptionSetter::Limits(|limits, values| limits.http2.continuations_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-resets-max",
        parameters: BUDGET,
        default: "http2-resets-max 500 50",
        doc: "Budget for streams that a client resets (rapid reset, CVE-2023-44487). It limits HTTP/3, too.",
        example: "http2-resets-max 250 25",
        known_as: KnownAs::NONE.others(&["tune.h2.fe.glitches-threshold"]),
        set: OptionSetter::Limits(|limits, values| limits.http2.peer_resets = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-faults-max",
        parameters: BUDGET,
        default: "http2-faults-max 200 10",
        doc: "Budget for streams that the server must reset because of a client's protocol errors (MadeYouReset, \
              CVE-2025-8671). It limits HTTP/3, too.",
        example: "http2-faults-max 100 5",
        known_as: KnownAs::NONE.others(&["tune.h2.fe.glitches-threshold"]),
        set: OptionSetter::Limits(|limits, values| limits.http2.stream_faults = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-settings-max",
        parameters: BUDGET,
        default: "http2-settings-max 100 10",
        doc: "Budget for SETTINGS frames (CVE-2019-9515).",
        example: "http2-settings-max 50 5",
        set: OptionSetter::Limits(|limits, values| limits.http2.settings = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-pings-max",
        parameters: BUDGET,
        default: "http2-pings-max 200 50",
        doc: "Budget for PING frames (CVE-2019-9512). Body data in either direction refills some of it.",
        example: "http2-pings-max 100 25",
        set: OptionSetter::Limits(|limits, values| limits.http2.pings = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-priorities-max",
        parameters: BUDGET,
        default: "http2-priorities-max 1000 100",
        doc: "Budget for PRIORITY and PRIORITY_UPDATE frames (CVE-2019-9513). It limits HTTP/3, too.",
        example: "http2-priorities-max 500 50",
        set: OptionSetter::Limits(|limits, values| limits.http2.priorities = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-window-updates-max",
        parameters: BUDGET,
        default: "http2-window-updates-max 2000 200",
        doc: "Budget for WINDOW_UPDATE frames (CVE-2019-9511). Body data that the server sends refills some of it.",
        example: "http2-window-updates-max 1000 100",
        set: OptionSetter::Limits(|limits, values| limits.http2.window_updates = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-idle-frames-max",
        parameters: BUDGET,
        default: "http2-idle-frames-max 200 50",
        doc: "Budget for frames without effect: empty ones (CVE-2019-9518), unknown ones, and those for closed \
              streams. It limits HTTP/3, too.",
        example: "http2-idle-frames-max 100 25",
        set: OptionSetter::Limits(|limits, values| limits.http2.idle_frames = budget(values)),
        ..OPTION
    },
];
