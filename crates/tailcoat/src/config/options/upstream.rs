use std::time::Duration;

use super::{FLAG, Kind, OPTION, OptionDefinition, Set, one, property};
use crate::config::tls::CertificateFiles;
use crate::config::upstream::*;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A time limit from a millisecond to a day.
const TIMEOUT: Kind = Kind::Duration { min: MILLISECOND, max: DAY };

const COUNT: Kind = Kind::Count { min: 0, max: 1_000_000 };

/// Servers are counted, compared and asked one by one for each request.
const WEIGHT_MAX: u64 = 1_000;

/// What stands in `upstream`.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "server",
        parameters: &[
            one("address", Kind::ServerAddress),
            property("weight", Kind::Count { min: 1, max: WEIGHT_MAX }),
            property("backup", Kind::Flag),
        ],
        repeatable: true,
        doc: "A server: `\"http://HOST:PORT\"` for HTTP/1.1, `\"h2c://HOST:PORT\"` for HTTP/2 without TLS (gRPC), \
              `\"https://HOST\"` for TLS and of both versions what the server chooses, or `\"unix:PATH\"`; for `fastcgi`, \
              `scgi` and `uwsgi`, `\"tcp://HOST:PORT\"`. `weight`, by default 1, is its share of the requests \
              relative to the others'. With `backup=on` it is asked only when all that are no backups are down. If a \
              name has several addresses, connections are shared out among them.",
        example: r#"server "unix:/run/app.sock" weight=2 backup=on"#,
        known_as: &["ProxyPass", "BalancerMember", "to", "proxy_pass", "proxy.reverse.url"],
        set: Set::Upstream(|upstream, values| {
            if let Some(address) = values.server_address("address") {
                upstream.servers.push(UpstreamServer {
                    address,
                    weight: values.number("weight").unwrap_or(1) as u32,
                    backup: values.flag("backup").unwrap_or(false),
                });
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "balance",
        parameters: &[
            one("method", Kind::Choice(&["least-connections", "round-robin", "hash"])),
            property("by", Kind::HashKey),
        ],
        default: "balance least-connections",
        doc: "Which server gets a request. `least-connections` takes two at random and of these the one with fewer \
              requests in progress; `round-robin` is each in turn; `hash` is the same server for the same key, and \
              the next best when it is down or a quarter busier than the mean. The key is `by=address` (the \
              client's, the default), `by=\"field:NAME\"` or `by=\"cookie:NAME\"`; requests without that field or \
              cookie are balanced by connections.",
        example: r#"balance hash by="cookie:session""#,
        known_as: &["lb_policy", "lbmethod", "ip_hash", "least_conn", "hash", "random", "sticky"],
        set: Set::Upstream(|upstream, values| {
            upstream.balance = match values.text("method").as_deref() {
                Some("hash") => Balance::Hash(values.hash_key("by").unwrap_or(HashKey::Address)),
                Some("round-robin") => Balance::RoundRobin,
                _ => Balance::LeastConnections,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "connect-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"connect-timeout "5s""#,
        doc: "How long a connection to a server may take to come about; then the next server is tried.",
        example: r#"connect-timeout "1s""#,
        known_as: &["proxy_connect_timeout", "dial_timeout"],
        set: Set::Upstream(|upstream, values| {
            upstream.connect_timeout = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "connections-max",
        parameters: &[one("count", COUNT)],
        default: "connections-max 10000",
        doc: "Connections in use at once to each server, by all workers together, tunnels (WebSocket) included; of \
              HTTP/2, where a connection has many, requests in progress; 0 is no limit. When all servers have as many, requests wait in a queue. Give a server no more than it can \
              work on: waiting here costs it nothing.",
        example: "connections-max 200",
        known_as: &["max_conns", "maxconn", "max"],
        set: Set::Upstream(|upstream, values| {
            upstream.connections_max = values.number("count").unwrap_or_default() as u32;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "idle-max",
        parameters: &[one("count", COUNT)],
        default: "idle-max 128",
        doc: "Unused connections that each worker keeps open to each server, for requests to come; 0 is none. A server \
              that has a process for each connection wants few.",
        example: "idle-max 8",
        known_as: &["keepalive", "keepalive_idle_conns_per_host", "pool-max-conn"],
        set: Set::Upstream(|upstream, values| {
            upstream.idle_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "idle-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"idle-timeout "4s""#,
        doc: "How long an unused connection is kept open. It is best below the time after which the servers close \
              theirs, which is 5 s for many (Node, Uvicorn, Apache): a request and that close could cross on the way.",
        example: r#"idle-timeout "55s""#,
        known_as: &["keepalive_timeout", "pool-purge-delay", "keepalive_idle_timeout"],
        set: Set::Upstream(|upstream, values| upstream.idle_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "reuse",
        parameters: &[one("policy", Kind::Choice(&["never", "safe", "always"]))],
        default: "reuse safe",
        doc: "Which clients share a kept HTTP/1.1 connection. With `safe`, all clients do until the connection has carried a \
              request with content (or a HEAD request); from then on it serves only the client connection that sent \
              it, stays open for 1 s between requests, and is closed if a proxy in front speaks for several clients. \
              So a server that ignores Content-Length cannot answer hidden content to another client (CL.0 request \
              smuggling). With `never`, no client connection shares. Use `always` only if every path on the servers \
              reads its content; it saves opening a connection for most requests with content. FastCGI and HTTP/2 \
              frame content themselves: `safe` shares their connections.",
        example: "reuse always",
        known_as: &["http-reuse"],
        set: Set::Upstream(|upstream, values| {
            upstream.reuse = match values.text("policy").as_deref() {
                Some("never") => Reuse::Never,
                Some("always") => Reuse::Always,
                _ => Reuse::Safe,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "requests-per-connection-max",
        parameters: &[one("count", Kind::Count { min: 0, max: u32::MAX as u64 })],
        default: "requests-per-connection-max 0",
        doc: "Requests sent on a connection before it is closed; 0 is no limit.",
        example: "requests-per-connection-max 1000",
        known_as: &["keepalive_requests"],
        set: Set::Upstream(|upstream, values| {
            upstream.requests_per_connection_max = values.number("count").unwrap_or_default() as u32;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "streams-per-connection-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 1_000 })],
        default: "streams-per-connection-max 100",
        doc: "Requests in progress at once on a connection of HTTP/2, if the server allows as many; for more, a worker \
              opens another. Each keeps at most 256 KiB of an answer whose client reads slowly.",
        example: "streams-per-connection-max 32",
        known_as: &["max_concurrent_streams", "http2_max_concurrent_streams"],
        set: Set::Upstream(|upstream, values| {
            upstream.streams_per_connection_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "connection-age-max",
        parameters: &[one("time", TIMEOUT)],
        default: r#"connection-age-max "1h""#,
        doc: "How old a connection may be when a request is sent on it; so that servers behind a name that has got \
              other addresses are left in the end.",
        example: r#"connection-age-max "5m""#,
        known_as: &["keepalive_time"],
        set: Set::Upstream(|upstream, values| {
            upstream.connection_age_max = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-max",
        parameters: &[one("count", COUNT)],
        default: "queue-max 1000",
        doc: "Requests that may wait, in the order in which they came, while all servers have `connections-max` \
              connections in use; more are answered 503. A client that has many waiting lets others go before; in a \
              queue that is half full it may have an eighth. Requests whose client has left leave the queue.",
        example: "queue-max 50",
        known_as: &["queue", "maxqueue", "max_queue"],
        set: Set::Upstream(|upstream, values| {
            upstream.queue_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"queue-timeout "10s""#,
        doc: "How long a request may wait so; then it is answered 503.",
        example: r#"queue-timeout "2s""#,
        set: Set::Upstream(|upstream, values| upstream.queue_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-wait-max",
        parameters: &[one("time", Kind::DurationOrAuto { min: Duration::ZERO, max: DAY })],
        default: "queue-wait-max auto",
        doc: "How long requests may wait so before the queue is overloaded; `auto` is a twentieth of `queue-timeout`. It is overloaded when the oldest request has \
              waited longer, for as long again, more requests wait than are in progress, and the queue does not drain within \
              `queue-timeout`. Then the newest \
              request is forwarded first, and requests that have waited longer are answered 503 with `Retry-After`. \
              So servers work for clients that still wait, and a burst is served whole. `0s` turns it off.",
        example: r#"queue-wait-max "250ms""#,
        set: Set::Upstream(|upstream, values| upstream.queue_wait_max = values.duration_or_auto("time")),
        ..OPTION
    },
    OptionDefinition {
        name: "tries-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 8 })],
        default: "tries-max 3",
        doc: "Servers that are tried for a request, the first included. Only what no server can have acted on, or what \
              may be repeated (RFC 9110, section 9.2.2), is tried again.",
        example: "tries-max 1",
        known_as: &["proxy_next_upstream_tries", "proxy_next_upstream", "retries", "lb_retries", "lb_try_duration"],
        set: Set::Upstream(|upstream, values| {
            upstream.tries_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "fail-max",
        parameters: &[one("count", Kind::Count { min: 0, max: 1_000 })],
        default: "fail-max 3",
        doc: "Failures in a row, within `fail-window`, after which a server is passed over for `eject-time`; 0 is \
              never. A failure is a connection that does not come about, one that ends before the answer does, an \
              answer that is no HTTP, or none in time. One that is HTTP, but malformed or too large, is none: it is \
              about what was asked for, and a client may have asked for it.",
        example: "fail-max 10",
        known_as: &["max_fails", "observe", "unhealthy_request_count"],
        set: Set::Upstream(|upstream, values| upstream.fail_max = values.number("count").unwrap_or_default() as u32),
        ..OPTION
    },
    OptionDefinition {
        name: "fail-window",
        parameters: &[one("time", TIMEOUT)],
        default: r#"fail-window "10s""#,
        doc: "In what time failures must follow one another to count together.",
        example: r#"fail-window "1m""#,
        known_as: &["fail_timeout", "fail_duration"],
        set: Set::Upstream(|upstream, values| upstream.fail_window = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "eject-time",
        parameters: &[one("time", TIMEOUT)],
        default: r#"eject-time "5s""#,
        doc: "How long a server that failed is passed over. Then one request is sent to it: if that is answered, the \
              server is back; if not, it is passed over for twice as long, up to `eject-time-max`.",
        example: r#"eject-time "30s""#,
        known_as: &["base_ejection_time", "retry"],
        set: Set::Upstream(|upstream, values| upstream.eject_time = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "eject-time-max",
        parameters: &[one("time", TIMEOUT)],
        default: r#"eject-time-max "5m""#,
        doc: "How long a server that fails again and again is passed over at most.",
        example: r#"eject-time-max "1m""#,
        known_as: &["max_ejection_time"],
        set: Set::Upstream(|upstream, values| {
            upstream.eject_time_max = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "last-resort",
        parameters: FLAG,
        default: "last-resort on",
        doc: "Whether servers that are passed over or whose checks fail are asked all the same when there are no \
              others. With `off`, such requests are answered 503 at once, which lets servers that are overloaded \
              recover (circuit breaking).",
        example: "last-resort off",
        known_as: &["circuit-breaker", "panic_threshold", "healthy_panic_threshold"],
        set: Set::Upstream(|upstream, values| upstream.last_resort = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "slow-start",
        parameters: &[one("time", Kind::Duration { min: Duration::ZERO, max: DAY })],
        default: r#"slow-start "0s""#,
        doc: "In what time a server that is back comes to its full share of requests, beginning with a tenth.",
        example: r#"slow-start "30s""#,
        known_as: &["slow_start", "slowstart"],
        set: Set::Upstream(|upstream, values| upstream.slow_start = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "resolve-interval",
        parameters: &[one("time", Kind::Duration { min: SECOND, max: DAY })],
        default: r#"resolve-interval "30s""#,
        doc: "How often names of servers are looked up again. If a name is not found, the addresses it had are kept.",
        example: r#"resolve-interval "5s""#,
        known_as: &["resolver", "resolve", "resolvers", "dynamic"],
        set: Set::Upstream(|upstream, values| {
            upstream.resolve_interval = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "proxy-protocol",
        parameters: &[one("version", Kind::Choice(&["off", "v1", "v2"]))],
        default: "proxy-protocol off",
        doc: "Whether each connection begins with the client's address, in this version of the PROXY protocol. Such \
              connections are used for one request only.",
        example: "proxy-protocol v2",
        known_as: &["proxy_protocol", "send-proxy", "send-proxy-v2", "ProxyPassMatch"],
        set: Set::Upstream(|upstream, values| {
            upstream.proxy_protocol = match values.text("version").as_deref() {
                Some("v1") => Some(ProxyProtocol::V1),
                Some("v2") => Some(ProxyProtocol::V2),
                _ => None,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-authorities",
        parameters: &[one("file", Kind::File)],
        doc: "Certificates (PEM) of the authorities of which one has to have signed for a server at `https://…`; by \
              default those that the system trusts. A certificate that its server signed itself may stand here too, if it \
              is marked as an authority's. The file is looked at every `certificate-check-interval`, and read again when it \
              has changed: connections that are opened from then on take it; one that can't be used is told in the log, and \
              what was read before stays.",
        example: r#"tls-authorities "/etc/ssl/internal-ca.pem""#,
        known_as: &["proxy_ssl_trusted_certificate", "tls_trust_pool", "ca-file", "SSLProxyCACertificateFile"],
        set: Set::Upstream(|upstream, values| upstream.tls.authorities = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-server-name",
        parameters: &[one("name", Kind::ForwardHost)],
        doc: "The name that servers at `https://…` are asked for (SNI), and that their certificates have to be for; by \
              default the host of each one's address.",
        example: r#"tls-server-name "app.internal""#,
        known_as: &["proxy_ssl_name", "tls_server_name", "sni", "verifyhost"],
        set: Set::Upstream(|upstream, values| upstream.tls.server_name = values.text("name")),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-verify",
        parameters: FLAG,
        default: "tls-verify on",
        doc: "Whether a server at `https://…` has to prove who it is. When `off`, anybody on the way can be the server, \
              read all and change all: rather name its certificate in `tls-authorities`.",
        example: "tls-verify off",
        known_as: &["proxy_ssl_verify", "tls_insecure_skip_verify", "verify", "SSLProxyVerify"],
        set: Set::Upstream(|upstream, values| upstream.tls.is_verified = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-certificate",
        parameters: &[one("file", Kind::File), property("key", Kind::File)],
        doc: "A certificate with those that lead from it to an authority's, and its private `key`, as PEM, for servers at \
              `https://…` that want to know who asks; without `key`, both are in one file. They are read again when they have changed, as \
              `tls-authorities` is.",
        example: r#"tls-certificate "/etc/ssl/proxy.pem" key="/etc/ssl/proxy.key""#,
        known_as: &["proxy_ssl_certificate", "tls_client_auth", "SSLProxyMachineCertificateFile"],
        set: Set::Upstream(|upstream, values| {
            let Some(certificate) = values.file("file") else { return };
            let key = values.file("key").unwrap_or_else(|| certificate.clone());
            upstream.tls.certificate = Some(CertificateFiles { certificate, key, ocsp: None });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-http2",
        parameters: FLAG,
        default: "tls-http2 on",
        doc: "Whether HTTP/2 is offered to servers at `https://…`. A request that is to become a WebSocket goes by \
              HTTP/1.1 unless a connection is there on which the server takes such requests (RFC 8441).",
        example: "tls-http2 off",
        known_as: &["alpn", "versions", "proxy_http_version", "H2Proxy"],
        set: Set::Upstream(|upstream, values| upstream.tls.offers_http2 = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "health-check",
        parameters: &[
            one("path", Kind::RequestTarget),
            property("host", Kind::FieldValue),
            property("interval", Kind::Duration { min: Duration::from_millis(100), max: DAY }),
            property("timeout", TIMEOUT),
            property("status-min", Kind::Status { min: 200, max: 599 }),
            property("status-max", Kind::Status { min: 200, max: 599 }),
            property("rise", Kind::Count { min: 1, max: 1_000 }),
            property("fall", Kind::Count { min: 1, max: 1_000 }),
        ],
        doc: "A GET request that is sent to each server now and then, by the whole process once: every `interval` (5 s), \
              with `host` as its Host (by default the server's). An answer within `timeout` (2 s), with a status from \
              `status-min` (200) to `status-max` (399), is good. After `fall` (3) bad ones in a row a server is down, \
              after `rise` (2) good ones it is up.",
        example: r#"health-check "/healthz" interval="2s" status-max=299"#,
        known_as: &["health_check", "health_uri", "httpchk", "option", "check", "health_path"],
        set: Set::Upstream(|upstream, values| {
            let default = HealthCheck::default();
            let count = |name, default| values.number(name).map_or(default, |count| count as u32);
            upstream.health_check = Some(HealthCheck {
                path: values.text("path").unwrap_or(default.path),
                host: values.text("host"),
                interval: values.duration("interval").unwrap_or(default.interval),
                timeout: values.duration("timeout").unwrap_or(default.timeout),
                status_min: values.status("status-min").map_or(default.status_min, |status| status.code()),
                status_max: values.status("status-max").map_or(default.status_max, |status| status.code()),
                rise: count("rise", default.rise),
                fall: count("fall", default.fall),
            });
        }),
        ..OPTION
    },
];
