use std::time::Duration;

use super::{BODY_BYTES, KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, one};

const DAY: Duration = Duration::from_secs(86_400);
const GIB: u64 = 1 << 30;

/// A time limit from a millisecond to a day.
const TIMEOUT: ValueKind = ValueKind::Duration { min: Duration::from_millis(1), max: DAY };

/// Options of the block `limits`, except those of HTTP/2.
pub(super) static LIMITS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "head-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 256, max: 1 << 20 })],
        default: r#"head-bytes-max "16KiB""#,
        doc: "Maximum size of a request's head, from its first byte to the empty line. A larger one gets 431.",
        example: r#"head-bytes-max "32KiB""#,
        known_as: KnownAs {
            nginx: &["large_client_header_buffers", "client_header_buffer_size"],
            apache: &["LimitRequestFieldSize"],
            caddy: &["max_header_size"],
            others: &["tune.bufsize"],
        },
        set: OptionSetter::Limits(|limits, values| limits.head_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "header-fields-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 10_000 })],
        default: "header-fields-max 100",
        doc: "Maximum number of header field lines in a request. More get 431. Trailers are limited by \
              `head-bytes-max`.",
        example: "header-fields-max 50",
        known_as: KnownAs::NONE.nginx(&["max_headers"]).apache(&["LimitRequestFields"]).others(&["tune.http.maxhdr"]),
        set: OptionSetter::Limits(|limits, values| limits.fields_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "target-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 16, max: 1 << 20 })],
        default: r#"target-bytes-max "8KiB""#,
        doc: "Maximum size of a request's target: its path and query. A larger one gets 414.",
        example: r#"target-bytes-max "4KiB""#,
        known_as: KnownAs::NONE.nginx(&["large_client_header_buffers"]).apache(&["LimitRequestLine"]),
        set: OptionSetter::Limits(|limits, values| limits.target_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "body-bytes-max",
        parameters: BODY_BYTES,
        default: "body-bytes-max auto",
        doc: "Maximum size of a request body; a `site` and a `forward` can set their own. A larger one gets 413: at \
              once if its Content-Length says so, otherwise when that many bytes have arrived. An upstream then gets \
              an incomplete request. `auto` is 1 MiB where Tailcoat itself answers. It is no limit where an upstream \
              does, because upstreams have their own limits, and a body that passes through needs no memory.",
        example: r#"body-bytes-max "64MiB""#,
        known_as: KnownAs {
            nginx: &["client_max_body_size"],
            apache: &["LimitRequestBody"],
            caddy: &["request_body", "max_size"],
            others: &["max upload size"],
        },
        set: OptionSetter::Limits(|limits, values| limits.body_bytes_max = values.body_bytes_max("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "requests-per-connection-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: u32::MAX as u64 })],
        default: "requests-per-connection-max 0",
        doc: "Maximum number of requests on a connection; the last response carries `Connection: close`. 0 means no \
              limit.",
        example: "requests-per-connection-max 1000",
        known_as: KnownAs::NONE.nginx(&["keepalive_requests"]).apache(&["MaxKeepAliveRequests"]),
        set: OptionSetter::Limits(|limits, values| limits.requests_per_connection_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "connections-max",
        parameters: &[one("count", ValueKind::CountOrAuto { min: 1, max: 10_000_000 })],
        default: "connections-max auto",
        doc: "Maximum number of open connections of the whole server, divided equally among workers. At the limit, \
              idle connections are closed first, then those of the slowest clients. A connection that makes progress \
              is closed only for a client that holds fewer. Listeners whose sites have only `status-page`, `metrics` \
              and `respond` have 16 more places for each worker. `auto` is what the limit of open files (`ulimit \
              -n`) allows.",
        example: "connections-max 20000",
        known_as: KnownAs {
            nginx: &["worker_connections", "worker_rlimit_nofile"],
            apache: &["MaxRequestWorkers", "MaxClients"],
            others: &["maxconn"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Limits(|limits, values| {
            limits.connections_max = values.number_or_auto("count").map(|count| count as usize)
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "connections-per-client-max",
        parameters: &[one("count", ValueKind::CountOrAuto { min: 0, max: 1_000_000 })],
        default: "connections-per-client-max auto",
        doc: "Maximum number of open connections from one address, over all workers; of IPv6 addresses, the first 64 \
              bits count. Further ones are closed at once. 0 means no limit. `auto` sets no limit until 7/8 of a \
              worker's places (`connections-max`) are in use. Then a client that holds an eighth of them gets new \
              ones only in exchange for its own, idle and slowest first. Trusted proxies and Unix sockets have no \
              limit. With `auto`, neither have 127.0.0.1 and ::1, because proxies on the same machine connect from \
              there.",
        example: "connections-per-client-max 100",
        known_as: KnownAs::NONE.nginx(&["limit_conn", "limit_conn_zone"]).apache(&["MaxConnPerIP"]),
        set: OptionSetter::Limits(|limits, values| {
            limits.connections_per_client_max = values.number_or_auto("count").map(|count| count as u32)
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "connections-per-network-max",
        parameters: &[one("count", ValueKind::CountOrAuto { min: 0, max: 1_000_000 })],
        default: "connections-per-network-max auto",
        doc: "Maximum number of open connections from one network, over all workers: the first 24 bits of IPv4 \
              addresses and the first 48 of IPv6 addresses. Further ones are closed at once. 0 means no limit. \
              `auto` works as for `connections-per-client-max`, with a quarter of the places. The same clients are \
              exempt.",
        example: "connections-per-network-max 1000",
        known_as: KnownAs::NONE.nginx(&["limit_conn"]),
        set: OptionSetter::Limits(|limits, values| {
            limits.connections_per_network_max = values.number_or_auto("count").map(|count| count as u32)
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "client-memory-bytes-max",
        parameters: &[one("size", ValueKind::SizeOrAuto { min: 1 << 20, max: 1 << 50 })],
        default: "client-memory-bytes-max auto",
        doc: "Maximum memory that all clients together may make the process hold. It covers request heads, request \
              bodies, responses that wait, and output that clients do not read. Above it, the client that holds most \
              loses its largest connections, until clients hold less than 7/8 of it. `tailcoat status` shows both figures. Cached \
              files and kernel socket buffers do not count. `auto` is a quarter of the memory of the machine, or of \
              its container or service (cgroups).",
        example: r#"client-memory-bytes-max "512MiB""#,
        set: OptionSetter::Limits(|limits, values| limits.client_memory_bytes_max = values.number_or_auto("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "password-checks-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 1024 })],
        default: "password-checks-max 2",
        doc: "Maximum number of `basic-auth` passwords verified at once, over all workers. One check uses a CPU core \
              for as long as its hash requires. Correct passwords are remembered for some minutes and not verified \
              again.",
        example: "password-checks-max 8",
        known_as: KnownAs::NONE.nginx(&["auth_delay"]).caddy(&["hash_cache"]),
        set: OptionSetter::Limits(|limits, values| {
            limits.password_checks_max = values.number("count").unwrap_or(1) as usize
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "password-checks-waiting-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 100_000 })],
        default: "password-checks-waiting-max 64",
        doc: "Maximum number of passwords that wait for verification. One client may have an eighth of them, but at \
              least one. Further requests get 429 with `Retry-After`.",
        example: "password-checks-waiting-max 16",
        set: OptionSetter::Limits(|limits, values| {
            limits.password_checks_waiting_max = values.number("count").unwrap_or(1) as usize
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "idle-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"idle-timeout "60s""#,
        doc: "Maximum time that a keep-alive connection stays open without a request.",
        example: r#"idle-timeout "15s""#,
        known_as: KnownAs {
            nginx: &["keepalive_timeout"],
            apache: &["KeepAliveTimeout", "KeepAlive"],
            caddy: &["idle"],
            others: &["timeout http-keep-alive"],
        },
        set: OptionSetter::Limits(|limits, values| limits.idle_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "head-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"head-timeout "15s""#,
        doc: "Maximum time to receive a request's head, from its first byte to its last.",
        example: r#"head-timeout "5s""#,
        known_as: KnownAs {
            nginx: &["client_header_timeout"],
            apache: &["RequestReadTimeout"],
            caddy: &["read_header"],
            others: &["timeout http-request"],
        },
        set: OptionSetter::Limits(|limits, values| limits.head_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-handshake-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"tls-handshake-timeout "10s""#,
        doc: "Maximum time from accepting a TLS connection to the end of its handshake.",
        example: r#"tls-handshake-timeout "5s""#,
        known_as: KnownAs::NONE.nginx(&["ssl_handshake_timeout"]).apache(&["RequestReadTimeout"]),
        set: OptionSetter::Limits(|limits, values| limits.tls_handshake_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-handshakes-per-second-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 1_000_000 })],
        default: "tls-handshakes-per-second-max 0",
        doc: "Maximum number of TLS handshakes that a worker begins in a second; 0 means no limit. Others wait, at \
              most for half of `tls-handshake-timeout`. One client may have an eighth of the waiting places; further \
              connections are closed. Whatever the limit, open connections are served after every few handshakes.",
        example: "tls-handshakes-per-second-max 500",
        known_as: KnownAs::NONE.others(&["maxsslrate"]),
        set: OptionSetter::Limits(|limits, values| limits.tls_handshakes_per_second_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "body-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"body-timeout "30s""#,
        doc: "Maximum pause between two parts of a request body.",
        example: r#"body-timeout "1m""#,
        known_as: KnownAs {
            nginx: &["client_body_timeout"],
            apache: &["RequestReadTimeout"],
            caddy: &["read_body"],
            others: &["timeout client"],
        },
        set: OptionSetter::Limits(|limits, values| limits.body_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "write-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"write-timeout "60s""#,
        doc: "Maximum time that a response makes no progress because the client does not read. Data in the kernel's \
              send buffer counts as progress when a third of it is gone. That is up to 1.3 MiB on a fast line. So 25 \
              kB/s are enough with the default, and far less on slow lines.",
        example: r#"write-timeout "10s""#,
        known_as: KnownAs::NONE.nginx(&["send_timeout"]).apache(&["TimeOut"]).caddy(&["write"]),
        set: OptionSetter::Limits(|limits, values| limits.write_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "rate-bytes-per-second-min",
        parameters: &[one("size", ValueKind::Size { min: 0, max: GIB })],
        default: r#"rate-bytes-per-second-min "240B""#,
        doc: "Minimum average rate of a request body or response after the first `write-timeout`, in bytes per \
              second. Slower clients are disconnected. Bytes above the rate pay for later pauses, at most the \
              longer of `write-timeout` and `body-timeout`. 0 means no limit.",
        example: r#"rate-bytes-per-second-min "1KiB""#,
        known_as: KnownAs::NONE.apache(&["MinRate", "RequestReadTimeout"]),
        set: OptionSetter::Limits(|limits, values| limits.rate_bytes_per_second_min = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "lag-max",
        parameters: &[one("time", ValueKind::Duration { min: Duration::ZERO, max: Duration::from_secs(60) })],
        default: r#"lag-max "1s""#,
        doc: "Event loop lag above which a worker sheds load: the time that ready connections wait for it. Being \
              busy is not enough. Each connection must wait longer than this, for as long again, and the wait must \
              not shrink. The worker then closes new TLS connections, and answers requests for programs, modules and \
              upstreams with 503 and `Retry-After`. It does so in this order, and only as often as needed. Files, \
              cached responses, the status page and ACME challenges are always answered. Values are rounded to \
              tenths of a second; `0s` turns it off.",
        example: r#"lag-max "500ms""#,
        set: OptionSetter::Limits(|limits, values| limits.lag_max = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "ranges-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 1000 })],
        default: "ranges-max 16",
        doc: "Maximum number of ranges in a request. A request with more gets the whole file; 0 turns ranges off.",
        example: "ranges-max 1",
        known_as: KnownAs::NONE.nginx(&["max_ranges"]).apache(&["MaxRanges", "MaxRangeOverlaps", "MaxRangeReversals"]),
        set: OptionSetter::Limits(|limits, values| limits.ranges_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "buffered-memory-bytes-max",
        parameters: &[one("size", ValueKind::SizeOrAuto { min: 0, max: 1 << 50 })],
        default: "buffered-memory-bytes-max auto",
        doc: "Maximum memory of all buffered requests and responses together. Beyond it, they go to files at once. \
              `auto` is 128 MiB, but at most an eighth of the memory of the machine, or of its container or service \
              (cgroups).",
        example: r#"buffered-memory-bytes-max "1GiB""#,
        known_as: KnownAs::NONE.nginx(&["proxy_buffers"]),
        set: OptionSetter::Limits(|limits, values| limits.buffers.memory_bytes_max = values.number_or_auto("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "buffered-file-bytes-max",
        parameters: &[one("size", ValueKind::SizeOrAuto { min: 0, max: 1 << 50 })],
        default: "buffered-file-bytes-max auto",
        doc: "Maximum size of all files in `buffer-directory`. Beyond it, a request waits 10 seconds for space and \
              then gets 503; an upstream waits for the client that reads its response. An upload that stands still is \
              closed with 503 to make room. `auto` is half of the file \
              system's free space at startup.",
        example: r#"buffered-file-bytes-max "20GiB""#,
        known_as: KnownAs::NONE.nginx(&["proxy_max_temp_file_size"]),
        set: OptionSetter::Limits(|limits, values| limits.buffers.file_bytes_max = values.number_or_auto("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "buffered-file-bytes-per-client-max",
        parameters: &[one("size", ValueKind::SizeOrAuto { min: 0, max: 1 << 50 })],
        default: "buffered-file-bytes-per-client-max auto",
        doc: "Maximum size of the files in `buffer-directory` for one client address; of IPv6 addresses, the first \
              64 bits count. `auto` is a quarter of `buffered-file-bytes-max`. \
              Above it, new requests of the client wait before they reach an upstream, and get 503 after 10 seconds. \
              Responses that have begun continue, up to half of `buffered-file-bytes-max`, so that the client holds no upstream.",
        example: r#"buffered-file-bytes-per-client-max "2GiB""#,
        set: OptionSetter::Limits(|limits, values| {
            limits.buffers.file_bytes_per_client_max = values.number_or_auto("size")
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "linger-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"linger-timeout "2s""#,
        doc: "Time for which the server keeps reading from a connection after its last response. Otherwise, data \
              that the client still sends could reset the connection before the client has read the response. An \
              idle connection of HTTP/3 stays open this long after GOAWAY, as in an upgrade, so that the client can end \
              it. One with a last response waits this long for packets that acknowledge it; a client that is gone sends \
              none. After an error, a connection answers late packets for this long.",
        example: r#"linger-timeout "5s""#,
        known_as: KnownAs {
            nginx: &["lingering_timeout", "lingering_time", "lingering_close"],
            apache: &["LingeringTimeout"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Limits(|limits, values| limits.linger_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "tarpit-connections-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 1_000_000 })],
        default: "tarpit-connections-max 1000",
        doc: "Maximum number of connections in the tarpit, over all workers. Each needs a file descriptor and few \
              bytes of memory. Further ones are closed.",
        example: "tarpit-connections-max 10000",
        known_as: KnownAs::NONE.others(&["tarpit"]),
        set: OptionSetter::Limits(|limits, values| limits.tarpit.connections_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "tarpit-time",
        parameters: &[one(
            "time",
            ValueKind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(86_400) },
        )],
        default: "tarpit-time \"2m\"",
        doc: "Time for which a connection stays in the tarpit.",
        example: "tarpit-time \"10m\"",
        known_as: KnownAs::NONE.others(&["timeout tarpit"]),
        set: OptionSetter::Limits(|limits, values| limits.tarpit.time = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log-ring-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 64 << 10, max: GIB })],
        default: r#"access-log-ring-bytes-max "1MiB""#,
        doc: "Memory of each worker for log records that wait for the log writer. When it is full, requests are \
              served without being logged, and counted.",
        example: r#"access-log-ring-bytes-max "16MiB""#,
        known_as: KnownAs::NONE.nginx(&["access_log"]).apache(&["BufferedLogs"]),
        set: OptionSetter::Limits(|limits, values| limits.access_log_ring_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log-pending-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 4 << 10, max: GIB })],
        default: r#"access-log-pending-bytes-max "1MiB""#,
        doc: "Memory of each log for lines that wait while the log's target accepts no data. When it is full, lines \
              are dropped and counted.",
        example: r#"access-log-pending-bytes-max "16MiB""#,
        known_as: KnownAs::NONE.nginx(&["access_log", "buffer"]).apache(&["BufferedLogs"]),
        set: OptionSetter::Limits(|limits, values| limits.access_log_pending_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log-value-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 64, max: 65_535 })],
        default: r#"access-log-value-bytes-max "8KiB""#,
        doc: "Maximum size of a logged target or header field. Longer values are cut and marked.",
        example: r#"access-log-value-bytes-max "1KiB""#,
        set: OptionSetter::Limits(|limits, values| limits.access_log_value_bytes_max = values.integer("size")),
        ..OPTION
    },
];
