//! Limits of HTTP/2.

use wire::h2::BudgetLimit;

use super::{Kind, OPTION, OptionDefinition, Parameter, Set, one};
use crate::config::value::Values;

/// The parameters of a budget: so many at once, and so many more each second.
const BUDGET: &[Parameter] =
    &[one("burst", Kind::Count { min: 1, max: 1_000_000 }), one("per-second", Kind::Count { min: 0, max: 1_000_000 })];

fn budget(values: &Values) -> BudgetLimit {
    let number = |name| values.number(name).unwrap_or_default() as u32;
    BudgetLimit { burst: number("burst"), per_second: number("per-second") }
}

pub(super) const DOC: &str = "Limits of a connection that speaks HTTP/2. They stand in `limits`. Those with two numbers are \
    budgets: so many at once, and so many more each second; a client that goes beyond one is told \
    `ENHANCE_YOUR_CALM`, and its connection closed. Other limits hold for HTTP/2 as well: `head-bytes-max` for a header \
    list (431) and its compressed form (the connection ends); `head-timeout` also for the client's settings; \
    `write-timeout` for a stream whose window stays closed, which is reset; `linger-timeout` for a request that goes on \
    after its answer.";

pub(super) static LIMITS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "http2-streams-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 10_000 })],
        default: "http2-streams-max 128",
        doc: "Requests that a client may have open at a time on a connection. Further ones are refused \
              (`REFUSED_STREAM`), and may be sent again.",
        example: "http2-streams-max 64",
        known_as: &["http2_max_concurrent_streams", "H2MaxSessionStreams", "max_concurrent_streams"],
        set: Set::Limits(|limits, values| {
            limits.http2.concurrent_streams_max = values.number("count").unwrap_or_default() as u32
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-window-bytes-max",
        parameters: &[one("size", Kind::Size { min: 128 << 10, max: 1 << 30 })],
        default: r#"http2-window-bytes-max "1MiB""#,
        doc: "To what the windows of a connection and its streams grow for a client that is fast: content of requests that may \
              wait to be read.",
        example: r#"http2-window-bytes-max "4MiB""#,
        known_as: &["http2_body_preread_size", "H2WindowSize"],
        set: Set::Limits(|limits, values| {
            limits.http2.window_bytes_max = values.number("size").unwrap_or_default() as u32
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-header-table-bytes-max",
        parameters: &[one("size", Kind::Size { min: 0, max: 64 << 10 })],
        default: r#"http2-header-table-bytes-max "4KiB""#,
        doc: "Memory in which a client may have fields of its requests kept, to refer to them later.",
        example: r#"http2-header-table-bytes-max "8KiB""#,
        set: Set::Limits(|limits, values| {
            limits.http2.header_table_bytes_max = values.number("size").unwrap_or_default() as u32
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-continuations-max",
        parameters: &[one("count", Kind::Count { min: 0, max: 1000 })],
        default: "http2-continuations-max 16",
        doc: "CONTINUATION frames of a head (CVE-2024-27316). With more the connection ends.",
        example: "http2-continuations-max 4",
        set: Set::Limits(|limits, values| {
            limits.http2.continuations_max = values.number("count").unwrap_or_default() as u32
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-resets-max",
        parameters: BUDGET,
        default: "http2-resets-max 500 50",
        doc: "Streams that a client resets (rapid reset, CVE-2023-44487).",
        example: "http2-resets-max 250 25",
        set: Set::Limits(|limits, values| limits.http2.peer_resets = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-faults-max",
        parameters: BUDGET,
        default: "http2-faults-max 200 10",
        doc: "Streams that the server has to reset for a client's faults (MadeYouReset, CVE-2025-8671).",
        example: "http2-faults-max 100 5",
        set: Set::Limits(|limits, values| limits.http2.stream_faults = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-settings-max",
        parameters: BUDGET,
        default: "http2-settings-max 100 10",
        doc: "SETTINGS frames (CVE-2019-9515).",
        example: "http2-settings-max 50 5",
        set: Set::Limits(|limits, values| limits.http2.settings = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-pings-max",
        parameters: BUDGET,
        default: "http2-pings-max 200 50",
        doc: "PING frames (CVE-2019-9512); content that comes or is sent earns some back.",
        example: "http2-pings-max 100 25",
        set: Set::Limits(|limits, values| limits.http2.pings = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-priorities-max",
        parameters: BUDGET,
        default: "http2-priorities-max 1000 100",
        doc: "PRIORITY and PRIORITY_UPDATE frames (CVE-2019-9513).",
        example: "http2-priorities-max 500 50",
        set: Set::Limits(|limits, values| limits.http2.priorities = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-window-updates-max",
        parameters: BUDGET,
        default: "http2-window-updates-max 2000 200",
        doc: "WINDOW_UPDATE frames (CVE-2019-9511); content that is sent earns some back.",
        example: "http2-window-updates-max 1000 100",
        set: Set::Limits(|limits, values| limits.http2.window_updates = budget(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "http2-idle-frames-max",
        parameters: BUDGET,
        default: "http2-idle-frames-max 200 50",
        doc: "Frames that say nothing: empty ones (CVE-2019-9518), unknown ones, and those for streams that are closed.",
        example: "http2-idle-frames-max 100 25",
        set: Set::Limits(|limits, values| limits.http2.idle_frames = budget(values)),
        ..OPTION
    },
];
