use std::time::Duration;

use super::{BODY_BYTES, FLAG, Kind, OPTION, OptionDefinition, Set, many, one, property};
use crate::config::http2::HttpVersions;
use crate::config::model::{ForwardedField, LogLevel};
use crate::config::value::Value;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const MILLISECOND: Duration = Duration::from_millis(1);
const GIB: u64 = 1 << 30;

/// A time limit from a millisecond to a day.
const TIMEOUT: Kind = Kind::Duration { min: MILLISECOND, max: DAY };

pub(super) static SERVER: &[OptionDefinition] = &[
    OptionDefinition {
        name: "user",
        parameters: &[one("name", Kind::ServerUser), property("group", Kind::ProgramGroup)],
        doc: "The user that the server becomes when it is started by root, with the user's groups; `group` instead of the user's \
              own. By default it is the user `tailcoat`; if there is none, the server stays root, but without any privilege of \
              root's but ports below 1024. A server that is started by somebody else stays what it is.",
        example: r#"user "www-data""#,
        known_as: &["User", "Group", "setuid", "user_name"],
        set: Set::Server(|server, values| {
            server.user = values.program_user("name");
            if let (Some(user), Some(group_id)) = (&mut server.user, values.number("group")) {
                user.group_id = group_id as u32;
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "workers",
        parameters: &[one("count", Kind::CountOrAuto { min: 1, max: 1024 })],
        default: "workers auto",
        doc: "Number of workers. `auto` is one for each core that the process may use.",
        example: "workers 4",
        known_as: &["worker_processes", "threads", "num-threads"],
        set: Set::Server(|server, values| server.workers = values.number_or_auto("count").map(|count| count as usize)),
        ..OPTION
    },
    OptionDefinition {
        name: "pin-workers",
        parameters: FLAG,
        default: "pin-workers on",
        doc: "Whether each worker is bound to a core of its own. Turn it off where other busy programs share the cores.",
        example: "pin-workers off",
        known_as: &["worker_cpu_affinity"],
        set: Set::Server(|server, values| server.pin_workers = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "grace-time",
        parameters: &[one("time", Kind::Duration { min: Duration::ZERO, max: DAY })],
        default: r#"grace-time "30s""#,
        doc: "How long the server waits for open requests when it is told to stop (SIGTERM, SIGINT).",
        example: r#"grace-time "2m""#,
        known_as: &["worker_shutdown_timeout", "grace_period"],
        set: Set::Server(|server, values| server.grace_time = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "upgrade-timeout",
        parameters: &[one("time", Kind::Duration { min: MILLISECOND, max: HOUR })],
        default: r#"upgrade-timeout "1m""#,
        doc: "How long a new process may take till it serves when the binary is upgraded. Then it is killed, and the old \
              process serves on.",
        example: r#"upgrade-timeout "10s""#,
        set: Set::Server(|server, values| server.upgrade_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "certificate-check-interval",
        parameters: &[one("time", Kind::Duration { min: Duration::from_millis(100), max: HOUR })],
        default: r#"certificate-check-interval "10s""#,
        doc: "How often the files of certificates are looked at, those for servers of upstreams too, to read those again that \
              have changed.",
        example: r#"certificate-check-interval "1m""#,
        set: Set::Server(|server, values| {
            server.certificate_check_interval = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "server-field",
        parameters: FLAG,
        default: "server-field on",
        doc: "Whether responses carry `Server: tailcoat`.",
        example: "server-field off",
        known_as: &["server_tokens", "ServerTokens"],
        set: Set::Server(|server, values| server.server_field = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "http-versions",
        parameters: &[many("version", Kind::Choice(&["1.1", "2"]))],
        default: r#"http-versions "1.1" "2""#,
        doc: "Versions of HTTP that are spoken. With both, it is HTTP/2 over TLS with clients that offer it (ALPN), and without \
              TLS with those that begin with its preface (prior knowledge, h2c). HTTP/1.0 comes with HTTP/1.1.",
        example: r#"http-versions "1.1""#,
        known_as: &["http2", "protocols", "Protocols", "alpn", "h2c"],
        set: Set::Server(|server, values| {
            let versions = values.texts("version");
            let has = |version: &str| versions.iter().any(|other| other == version);
            server.http_versions = HttpVersions { http1: has("1.1"), http2: has("2") };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "trusted-proxies",
        parameters: &[many("proxy", Kind::Client), property("field", Kind::Choice(&["X-Forwarded-For", "Forwarded"]))],
        doc: "Proxies in front of this server, by address, `unix` or a list (`\"file:PATH\"`, as for `allow`), whose word about the client's address is taken. \
              What they added to `X-Forwarded-For`, or to `Forwarded` (RFC 7239) if that is the `field`, is read from \
              its end, up to the first address that is not one of these: that is the client, for rules, logs and \
              handlers. Name only proxies that set the field themselves, or clients can say what they like.",
        example: r#"trusted-proxies "192.0.2.7" "10.0.0.0/8""#,
        known_as: &["set_real_ip_from", "real_ip_header", "RemoteIPTrustedProxy", "RemoteIPHeader", "trusted_proxies"],
        set: Set::Server(|server, values| {
            (server.trusted_proxies, server.trusted_proxies_files) = values.clients("proxy");
            server.forwarded_field = match values.text("field").as_deref() {
                Some("Forwarded") => ForwardedField::Forwarded,
                _ => ForwardedField::XForwardedFor,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "listen-backlog",
        parameters: &[one("count", Kind::Count { min: 1, max: 1 << 20 })],
        default: "listen-backlog 4096",
        doc: "Length of each listener's queue of connections that wait to be accepted. The kernel caps it at \
              `net.core.somaxconn`.",
        example: "listen-backlog 1024",
        known_as: &["backlog", "ListenBacklog"],
        set: Set::Server(|server, values| server.listen_backlog = values.number("count").unwrap_or_default() as u32),
        ..OPTION
    },
    OptionDefinition {
        name: "defer-accept",
        parameters: FLAG,
        default: "defer-accept on",
        doc: "Whether the kernel hands a connection over only when its first bytes have come, or a second has passed \
              (TCP_DEFER_ACCEPT).",
        example: "defer-accept off",
        known_as: &["deferred"],
        set: Set::Server(|server, values| server.defer_accept = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "fast-open-queue",
        parameters: &[one("count", Kind::Count { min: 0, max: 1 << 20 })],
        default: "fast-open-queue 0",
        doc: "Length of the TCP Fast Open queue; 0 turns Fast Open off.",
        example: "fast-open-queue 256",
        known_as: &["fastopen"],
        set: Set::Server(|server, values| server.fast_open_queue = values.number("count").unwrap_or_default() as u32),
        ..OPTION
    },
    OptionDefinition {
        name: "no-delay",
        parameters: FLAG,
        default: "no-delay on",
        doc: "Whether data is sent without waiting for full segments (TCP_NODELAY).",
        example: "no-delay off",
        known_as: &["tcp_nodelay"],
        set: Set::Server(|server, values| server.no_delay = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "kernel-tls",
        parameters: FLAG,
        default: "kernel-tls off",
        doc: "Whether the kernel enciphers large files that are sent by HTTP/1.1 over TLS (kTLS): they go from its page cache to \
              the client without passing through this process. From the first such file of a connection on, all that is sent \
              there is enciphered by the kernel. HTTP/2 goes on as it does, for its frames are no longer than records. It is \
              off by default, since whether it pays depends on the machine: it saves copying, but the kernel's ciphers may be \
              slower than those of the server. Turn it on, and compare the processor time a byte (`tailor bench`, or that of \
              the workers in `tailcoat status`); /proc/net/tls_stat counts connections (`TlsTxSw`). It takes the kernel's \
              module `tls`, which root loads by `modprobe tls`; without it the server says so once, and enciphers itself. \
              Before Linux 6.14, a connection ends on which the client asks for a new key, as hardly any does. A start takes \
              this up, a reload does not.",
        example: "kernel-tls on",
        known_as: &["ktls", "ssl_conf_command"],
        set: Set::Server(|server, values| server.kernel_tls.is_wanted = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "kernel-tls-bytes-min",
        parameters: &[one("size", Kind::Size { min: 1, max: 1 << 40 })],
        default: r#"kernel-tls-bytes-min "1MiB""#,
        doc: "The kernel takes a connection over, if `kernel-tls` says so, before a file of which so much is to be sent.",
        example: r#"kernel-tls-bytes-min "16MiB""#,
        set: Set::Server(|server, values| server.kernel_tls.file_bytes_min = values.number("size").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "blocking-threads-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 1024 })],
        default: "blocking-threads-max 16",
        doc: "Threads that a worker may use for reads that would wait for a disk, so that other requests don't.",
        example: "blocking-threads-max 64",
        known_as: &["thread_pool", "aio"],
        set: Set::Server(|server, values| {
            server.blocking_threads_max = values.number("count").unwrap_or_default() as usize
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "log-level",
        parameters: &[one("level", Kind::Choice(&["error", "warn", "info", "debug"]))],
        default: "log-level info",
        doc: "Least severity that the server's own log, on standard error, shows.",
        example: "log-level debug",
        known_as: &["error_log", "LogLevel"],
        set: Set::Server(|server, values| {
            server.log_level = values.text("level").as_deref().and_then(LogLevel::of_name).unwrap_or(LogLevel::Info);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log-flush-interval",
        parameters: &[one("time", Kind::Duration { min: MILLISECOND, max: HOUR })],
        default: r#"access-log-flush-interval "200ms""#,
        doc: "A request is in its log after this time at the latest, if the log takes it. The first after a pause is \
              written at once.",
        example: r#"access-log-flush-interval "1s""#,
        known_as: &["flush"],
        set: Set::Server(|server, values| {
            server.access_log_flush_interval = values.duration("time").unwrap_or_default()
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log-report-interval",
        parameters: &[one("time", Kind::Duration { min: MILLISECOND, max: DAY })],
        default: r#"access-log-report-interval "5s""#,
        doc: "How many requests could not be logged is told in the server's own log at most this often.",
        example: r#"access-log-report-interval "1m""#,
        set: Set::Server(|server, values| {
            server.access_log_report_interval = values.duration("time").unwrap_or_default()
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "control-socket",
        parameters: &[one("file", Kind::File)],
        doc: "A unix socket on which commands reach the running server: `tailcoat reload`, `upgrade`, `set`, `drain`, \
              `cache purge`. Only root and the user that the server runs as may use it, and no program of `cgi`, unless that \
              may read the directory that the socket is in.",
        example: r#"control-socket "/run/tailcoat/control.sock""#,
        known_as: &["admin", "stats socket"],
        set: Set::Server(|server, values| server.control_socket = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "buffer-directory",
        parameters: &[one("directory", Kind::File)],
        doc: "Where requests and responses are buffered that do not fit into memory, as files without names. By default \
              what the environment variable TMPDIR says, else `/var/tmp`. If files cannot be written there, a line in the \
              server log says so, and slow clients hold upstreams again.",
        example: r#"buffer-directory "/var/cache/tailcoat""#,
        known_as: &["client_body_temp_path", "proxy_temp_path", "fastcgi_temp_path"],
        set: Set::Server(|server, values| server.buffer_directory = values.file("directory")),
        ..OPTION
    },
    OptionDefinition {
        name: "status-listen",
        parameters: &[many("address", Kind::Listen)],
        doc: "Where the server tells of itself besides sites, to processes of this machine: the status page at `/`, \
              and metrics at `/metrics`.",
        example: r#"status-listen "127.0.0.1:9180""#,
        known_as: &["stub_status", "server-status", "mod_status", "admin"],
        set: Set::Server(|server, values| {
            for (value, _) in values.all("address") {
                let Value::Listen(addresses) = value else { unreachable!("an address is {value:?}") };
                server.status_listen.extend(addresses.iter().cloned());
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "counters",
        parameters: FLAG,
        default: "counters on",
        doc: "Whether workers count what they do: for `tailcoat status`, `metrics` and `status-page`.",
        example: "counters off",
        known_as: &["stub_status", "ExtendedStatus"],
        set: Set::Server(|server, values| server.counters = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "counted-names-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 10_000 })],
        default: "counted-names-max 100",
        doc: "Sites that are counted by themselves, by their first names, and upstreams likewise; further ones are \
              counted together as `other`. It bounds how many series `metrics` has.",
        example: "counted-names-max 500",
        set: Set::Server(|server, values| {
            server.counted_names_max = values.number("count").unwrap_or_default() as usize
        }),
        ..OPTION
    },
];

pub(super) static LIMITS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "head-bytes-max",
        parameters: &[one("size", Kind::Size { min: 256, max: 1 << 20 })],
        default: r#"head-bytes-max "16KiB""#,
        doc: "Size of a request's head, from its first byte to the empty line. A larger one is answered with 431.",
        example: r#"head-bytes-max "32KiB""#,
        known_as: &["large_client_header_buffers", "client_header_buffer_size", "max_header_size"],
        set: Set::Limits(|limits, values| limits.head_bytes_max = values.number("size").unwrap_or_default() as usize),
        ..OPTION
    },
    OptionDefinition {
        name: "fields-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 10_000 })],
        default: "fields-max 100",
        doc: "Field lines in a request's head. More are answered with 431. Trailers are held to `head-bytes-max`.",
        example: "fields-max 50",
        known_as: &["LimitRequestFields"],
        set: Set::Limits(|limits, values| limits.fields_max = values.number("count").unwrap_or_default() as usize),
        ..OPTION
    },
    OptionDefinition {
        name: "target-bytes-max",
        parameters: &[one("size", Kind::Size { min: 16, max: 1 << 20 })],
        default: r#"target-bytes-max "8KiB""#,
        doc: "Size of a request's target, which is its path and query. A larger one is answered with 414.",
        example: r#"target-bytes-max "4KiB""#,
        known_as: &["LimitRequestLine"],
        set: Set::Limits(|limits, values| limits.target_bytes_max = values.number("size").unwrap_or_default() as usize),
        ..OPTION
    },
    OptionDefinition {
        name: "body-bytes-max",
        parameters: BODY_BYTES,
        default: "body-bytes-max auto",
        doc: "Size of a request's content; it may be said for a `site` and a `forward` alone, too. A larger one is \
              answered with 413: at once if its Content-Length says so, else when it has come so far, and then the \
              server that it is forwarded to gets a request that breaks off. `auto` is 1 MiB where this server \
              answers, and no limit where another does: that one has limits of its own, which a second, smaller one \
              before it would only break, and content that passes through takes no memory.",
        example: r#"body-bytes-max "64MiB""#,
        known_as: &["client_max_body_size", "LimitRequestBody", "request_body", "max_size"],
        set: Set::Limits(|limits, values| limits.body_bytes_max = values.body_bytes_max("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "requests-per-connection-max",
        parameters: &[one("count", Kind::Count { min: 0, max: u32::MAX as u64 })],
        default: "requests-per-connection-max 0",
        doc: "Requests on a connection; the last answer says `Connection: close`. 0 is no limit.",
        example: "requests-per-connection-max 1000",
        known_as: &["keepalive_requests", "MaxKeepAliveRequests"],
        set: Set::Limits(|limits, values| {
            limits.requests_per_connection_max = values.number("count").unwrap_or_default() as u32
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "connections-max",
        parameters: &[one("count", Kind::CountOrAuto { min: 1, max: 10_000_000 })],
        default: "connections-max auto",
        doc: "Open connections of the whole server, an equal part for each worker. At the limit, idle connections make room, \
              then those of the slowest clients; one that makes progress only for a client that holds fewer places. \
              Listeners whose sites have only `status` and `respond` have 16 places a worker besides. `auto` is what the \
              limit of open files (`ulimit -n`) allows.",
        example: "connections-max 20000",
        known_as: &["worker_connections", "MaxRequestWorkers"],
        set: Set::Limits(|limits, values| {
            limits.connections_max = values.number_or_auto("count").map(|count| count as usize)
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "connections-per-client-max",
        parameters: &[one("count", Kind::CountOrAuto { min: 0, max: 1_000_000 })],
        default: "connections-per-client-max auto",
        doc: "Open connections of one address, over all workers; of IPv6 addresses the first 64 bits count. More are \
              closed at once. 0 is no limit. `auto` is no limit either, until seven eighths of a worker's places \
              (`connections-max`) are taken: then a client that holds an eighth of them gets further ones in exchange for \
              its own, the idle and the slowest first. Trusted proxies and unix sockets may have any number; by `auto`, \
              127.0.0.1 and ::1 as well, because proxies on the same machine connect from there.",
        example: "connections-per-client-max 100",
        known_as: &["limit_conn", "MaxConnPerIP"],
        set: Set::Limits(|limits, values| {
            limits.connections_per_client_max = values.number_or_auto("count").map(|count| count as u32)
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "connections-per-network-max",
        parameters: &[one("count", Kind::CountOrAuto { min: 0, max: 1_000_000 })],
        default: "connections-per-network-max auto",
        doc: "Open connections of one network, over all workers: the first 24 bits of IPv4 addresses, the first 48 of IPv6 \
              addresses. More are closed at once. 0 is no limit. `auto` is as for `connections-per-client-max`, with a \
              quarter of the places. The same clients may have any number.",
        example: "connections-per-network-max 1000",
        known_as: &["limit_conn"],
        set: Set::Limits(|limits, values| {
            limits.connections_per_network_max = values.number_or_auto("count").map(|count| count as u32)
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "client-memory-bytes-max",
        parameters: &[one("size", Kind::SizeOrAuto { min: 1 << 20, max: 1 << 50 })],
        default: "client-memory-bytes-max auto",
        doc: "Memory that all clients together may make this process hold: request heads, request content, responses that \
              wait, output that clients do not take. Above it, the connections that hold most are closed until clients \
              hold less than 7/8 of it; `tailcoat status` shows both. Cached files and kernel socket buffers do not count. \
              `auto` is a quarter of the memory that the machine has or that its container or service may have (cgroups).",
        example: r#"client-memory-bytes-max "512MiB""#,
        set: Set::Limits(|limits, values| limits.client_memory_bytes_max = values.number_or_auto("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "password-checks-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 1024 })],
        default: "password-checks-max 2",
        doc: "Passwords of `basic-auth` that are checked at the same time, over all workers. A check takes a core for as long \
              as its hash is made to take. Passwords that were right are remembered for some minutes, and not checked again.",
        example: "password-checks-max 8",
        set: Set::Limits(|limits, values| limits.password_checks_max = values.number("count").unwrap_or(1) as usize),
        ..OPTION
    },
    OptionDefinition {
        name: "password-checks-waiting-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 100_000 })],
        default: "password-checks-waiting-max 64",
        doc: "Passwords that may wait to be checked, an eighth of them, but at least one, of one client; more requests get 429 with `Retry-After`.",
        example: "password-checks-waiting-max 16",
        set: Set::Limits(|limits, values| {
            limits.password_checks_waiting_max = values.number("count").unwrap_or(1) as usize
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "idle-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"idle-timeout "60s""#,
        doc: "How long a connection may stay open without a request.",
        example: r#"idle-timeout "15s""#,
        known_as: &["keepalive_timeout", "KeepAliveTimeout"],
        set: Set::Limits(|limits, values| limits.idle_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "head-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"head-timeout "15s""#,
        doc: "How long a request's head may take from its first byte to its last.",
        example: r#"head-timeout "5s""#,
        known_as: &["client_header_timeout", "RequestReadTimeout"],
        set: Set::Limits(|limits, values| limits.head_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-handshake-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"tls-handshake-timeout "10s""#,
        doc: "How long a connection that speaks TLS may take from its beginning to the end of the handshake.",
        example: r#"tls-handshake-timeout "5s""#,
        known_as: &["ssl_handshake_timeout", "SSLHandshakeTimeout"],
        set: Set::Limits(|limits, values| {
            limits.tls_handshake_timeout = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-handshakes-per-second-max",
        parameters: &[one("count", Kind::Count { min: 0, max: 1_000_000 })],
        default: "tls-handshakes-per-second-max 0",
        doc: "Handshakes of TLS that a worker begins in a second; others wait, for half of `tls-handshake-timeout` at \
              most, and of those that may wait a client may have an eighth; more are closed. Whatever this is, \
              connections that are open have their turn after every few handshakes. 0 is no limit.",
        example: "tls-handshakes-per-second-max 500",
        known_as: &["maxsslrate"],
        set: Set::Limits(|limits, values| {
            limits.tls_handshakes_per_second_max = values.number("count").unwrap_or_default() as u32;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "body-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"body-timeout "30s""#,
        doc: "How long a request's content may stand still.",
        example: r#"body-timeout "1m""#,
        known_as: &["client_body_timeout"],
        set: Set::Limits(|limits, values| limits.body_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "write-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"write-timeout "60s""#,
        doc: "How long a response may stand still because the client does not read. What the kernel keeps for the client \
              counts when a third of it has gone: up to 1.3 MiB on a line that has been fast, so that 25 kB/s are fast \
              enough with the default, and far less on lines that are slow.",
        example: r#"write-timeout "10s""#,
        known_as: &["send_timeout"],
        set: Set::Limits(|limits, values| limits.write_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "rate-bytes-per-second-min",
        parameters: &[one("size", Kind::Size { min: 0, max: GIB })],
        default: r#"rate-bytes-per-second-min "240B""#,
        doc: "Least mean rate of a request's content or a response after the first `write-timeout`, in bytes a second. \
              Slower clients are cut off. 0 is no limit.",
        example: r#"rate-bytes-per-second-min "1KiB""#,
        known_as: &["MinRate"],
        set: Set::Limits(|limits, values| limits.rate_bytes_per_second_min = values.number("size").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "lag-max",
        parameters: &[one("time", Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(60) })],
        default: r#"lag-max "1s""#,
        doc: "How long connections that are ready may wait for their worker. A worker that is merely busy is left alone: it \
              sheds only while each of them waits longer, this has lasted as long as `lag-max`, and the wait does not \
              shrink. Then it closes new connections that speak TLS, and answers requests for programs, modules and \
              upstreams with 503 and `Retry-After`, in this order, and only as many as needed. Files, stored \
              responses, the status page and challenges of ACME are always answered. Rounded to tenths of a second; \
              `0s` turns it off.",
        example: r#"lag-max "500ms""#,
        set: Set::Limits(|limits, values| limits.lag_max = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "ranges-max",
        parameters: &[one("count", Kind::Count { min: 0, max: 1000 })],
        default: "ranges-max 16",
        doc: "Ranges in one request. A request for more is answered with the whole file; 0 turns ranges off.",
        example: "ranges-max 1",
        known_as: &["max_ranges", "MaxRanges"],
        set: Set::Limits(|limits, values| limits.ranges_max = values.number("count").unwrap_or_default() as usize),
        ..OPTION
    },
    OptionDefinition {
        name: "buffered-memory-bytes-max",
        parameters: &[one("size", Kind::SizeOrAuto { min: 0, max: 1 << 50 })],
        default: "buffered-memory-bytes-max auto",
        doc: "Memory of all requests and responses that are buffered between clients and upstreams. Beyond it, they go to \
              files at once. `auto` is 128 MiB, but no more than an eighth of the memory that the machine has or that its \
              container or service may have (cgroups).",
        example: r#"buffered-memory-bytes-max "1GiB""#,
        set: Set::Limits(|limits, values| limits.buffers.memory_bytes_max = values.number_or_auto("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "buffered-file-bytes-max",
        parameters: &[one("size", Kind::SizeOrAuto { min: 0, max: 1 << 50 })],
        default: "buffered-file-bytes-max auto",
        doc: "Size of all files in `buffer-directory`. Beyond it, a request waits 10 seconds for room and is then answered \
              with 503, and an upstream waits for the client that takes its response. `auto` is half of what the file \
              system has free at the start.",
        example: r#"buffered-file-bytes-max "20GiB""#,
        set: Set::Limits(|limits, values| limits.buffers.file_bytes_max = values.number_or_auto("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "buffered-file-bytes-per-client-max",
        parameters: &[one("size", Kind::SizeOrAuto { min: 0, max: 1 << 50 })],
        default: "buffered-file-bytes-per-client-max auto",
        doc: "The same for one address; of IPv6 addresses the first 64 bits count. `auto` is a quarter of \
              `buffered-file-bytes-max`. Above it, new requests of the client wait before they reach an upstream, and get \
              503 after 10 seconds. Responses that have begun go on, up to half of `buffered-file-bytes-max`, so that \
              the client holds no upstream.",
        example: r#"buffered-file-bytes-per-client-max "2GiB""#,
        set: Set::Limits(|limits, values| limits.buffers.file_bytes_per_client_max = values.number_or_auto("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "linger-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"linger-timeout "2s""#,
        doc: "How long a connection is read on after its last response, so that what the client still sends does not \
              reset it before the client has read the response.",
        example: r#"linger-timeout "5s""#,
        known_as: &["lingering_timeout", "lingering_time"],
        set: Set::Limits(|limits, values| limits.linger_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log-ring-bytes-max",
        parameters: &[one("size", Kind::Size { min: 64 << 10, max: GIB })],
        default: r#"access-log-ring-bytes-max "1MiB""#,
        doc: "Memory for logged requests that wait for the writer, for each worker. When it is full, requests are served \
              without being logged, and counted.",
        example: r#"access-log-ring-bytes-max "16MiB""#,
        set: Set::Limits(|limits, values| {
            limits.access_log_ring_bytes_max = values.number("size").unwrap_or_default() as usize
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log-pending-bytes-max",
        parameters: &[one("size", Kind::Size { min: 4 << 10, max: GIB })],
        default: r#"access-log-pending-bytes-max "1MiB""#,
        doc: "Memory for lines that wait while a log takes nothing, for each log. When it is full, lines are dropped and \
              counted.",
        example: r#"access-log-pending-bytes-max "16MiB""#,
        known_as: &["buffer"],
        set: Set::Limits(|limits, values| {
            limits.access_log_pending_bytes_max = values.number("size").unwrap_or_default() as usize
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log-value-bytes-max",
        parameters: &[one("size", Kind::Size { min: 64, max: 65_535 })],
        default: r#"access-log-value-bytes-max "8KiB""#,
        doc: "Size of a logged target or field. A longer one is cut and marked.",
        example: r#"access-log-value-bytes-max "1KiB""#,
        set: Set::Limits(|limits, values| {
            limits.access_log_value_bytes_max = values.number("size").unwrap_or_default() as usize
        }),
        ..OPTION
    },
];

pub(super) static CACHE: &[OptionDefinition] = &[
    OptionDefinition {
        name: "memory-bytes-max",
        parameters: &[one("size", Kind::SizeOrAuto { min: 0, max: 1 << 50 })],
        default: "memory-bytes-max auto",
        doc: "Memory for the heads and contents that all workers together keep. `auto` is 256 MiB, but no more than a quarter of \
              the memory that the machine has or that its container or service may have (cgroups).",
        example: r#"memory-bytes-max "2GiB""#,
        known_as: &["memory", "open_file_cache", "mod_mem_cache"],
        set: Set::Cache(|cache, values| {
            if let Some(bytes) = values.number_or_auto("size") {
                (cache.memory_bytes_max, cache.memory_bytes_auto) = (bytes, false);
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "object-bytes-max",
        parameters: &[one("size", Kind::Size { min: 0, max: GIB })],
        default: r#"object-bytes-max "64KiB""#,
        doc: "Files up to this size are kept in memory; larger ones as an open descriptor, sent by the kernel.",
        example: r#"object-bytes-max "256KiB""#,
        set: Set::Cache(|cache, values| cache.object_bytes_max = values.number("size").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "files-max",
        parameters: &[one("count", Kind::Count { min: 0, max: 10_000_000 })],
        default: "files-max 1024",
        doc: "Descriptors kept open for larger files.",
        example: "files-max 10000",
        set: Set::Cache(|cache, values| cache.files_max = values.number("count").unwrap_or_default() as usize),
        ..OPTION
    },
    OptionDefinition {
        name: "revalidate-after",
        parameters: &[one("time", Kind::Duration { min: Duration::ZERO, max: HOUR })],
        default: r#"revalidate-after "1s""#,
        doc: "How long an object is served before its file is looked at again. Where `watch` works, changes are seen \
              at once.",
        example: r#"revalidate-after "5s""#,
        known_as: &["open_file_cache_valid"],
        set: Set::Cache(|cache, values| cache.revalidate_after = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "watch",
        parameters: FLAG,
        default: "watch on",
        doc: "Whether directories are watched (inotify), so that changes are seen at once.",
        example: "watch off",
        set: Set::Cache(|cache, values| cache.watch = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "watches-max",
        parameters: &[one("count", Kind::Count { min: 0, max: 10_000_000 })],
        default: "watches-max 16384",
        doc: "Directories watched at a time; changes in others are seen after `revalidate-after`. The kernel has a limit \
              of its own, `fs.inotify.max_user_watches`, beyond which it is the same.",
        example: "watches-max 100000",
        set: Set::Cache(|cache, values| cache.watches_max = values.number("count").unwrap_or_default() as usize),
        ..OPTION
    },
    OptionDefinition {
        name: "roots-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 10_000_000 })],
        default: "roots-max 4096",
        doc: "Directories of a `root` with `{host}` that are kept open at a time, one for each host. With more hosts, \
              those not asked for lately are let go, and what is cached of them.",
        example: "roots-max 50000",
        set: Set::Cache(|cache, values| cache.roots_max = values.number("count").unwrap_or_default() as usize),
        ..OPTION
    },
];
