use std::time::Duration;

use super::{FLAG, KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, one, property};
use crate::model::discovery::{DiscoveredProtocol, Discovery};
use crate::model::tls::CertificateFiles;
use crate::model::upstream::*;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A time limit from a millisecond to a day.
const TIMEOUT: ValueKind = ValueKind::Duration { min: MILLISECOND, max: DAY };

const COUNT: ValueKind = ValueKind::Count { min: 0, max: 1_000_000 };

/// Each request counts and compares all servers of its upstream.
const WEIGHT_MAX: u64 = 1_000;

/// Options of `upstream`.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "server",
        parameters: &[
            one("address", ValueKind::ServerAddress),
            property("weight", ValueKind::Count { min: 1, max: WEIGHT_MAX }),
            property("backup", ValueKind::Flag),
        ],
        repeatable: true,
        doc: "A server of the group. `\"http://HOST:PORT\"` is HTTP/1.1 and `\"h2c://HOST:PORT\"` is HTTP/2 without \
              TLS (gRPC). `\"https://HOST\"` is TLS with the version that the server chooses. `\"unix:PATH\"` is a \
              Unix socket. `fastcgi`, `scgi` and `uwsgi` use `\"tcp://HOST:PORT\"`. `weight` is the server's share \
              of requests relative to the others (default 1). A server with `backup=on` gets requests only while all \
              others are down. If a name has several addresses, connections are spread over them.",
        example: r#"server "unix:/run/app.sock" weight=2 backup=on"#,
        known_as: KnownAs {
            nginx: &["server", "weight", "backup", "proxy_pass"],
            apache: &["BalancerMember"],
            caddy: &["to"],
            others: &["proxy.reverse.url"],
        },
        set: OptionSetter::Upstream(|upstream, values| {
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
        name: "discover",
        parameters: &[
            one("source", ValueKind::DiscoverySource),
            property("protocol", ValueKind::Choice(&["http", "h2c", "https", "tcp"])),
            property("port", ValueKind::DiscoveredPort),
            property("tag", ValueKind::Text),
            property("label", ValueKind::Text),
            property("network", ValueKind::Text),
            property("endpoint", ValueKind::StoreEndpoint),
            property("token-file", ValueKind::File),
            property("ca-file", ValueKind::File),
            property("resolver", ValueKind::Resolver),
        ],
        doc: "Source of the group's servers; changes are applied while requests are in progress. `\"srv:NAME\"` looks \
              up SRV records. Their weights count, and servers of a lower priority are backups. A new lookup follows \
              when the records expire, after `resolve-interval` at the latest. `\"consul://HOST:PORT/SERVICE\"` \
              watches a service in Consul, and uses its instances that pass their checks; `consuls` is TLS. \
              `\"docker:SOCKET\"` watches containers of Docker or Podman that run and are not unhealthy. \
              `\"kubernetes://NAMESPACE/SERVICE\"` watches the EndpointSlices of a service, and uses its ready \
              endpoints. `protocol` is the protocol of the servers (default `http`). `port` is the number of a \
              container's port, or the name or number of a service's port; without it, there must be only one. \
              `tag` is for Consul. `label=\"NAME=VALUE\"` and `network` choose containers; one of them is required. \
              `endpoint` is the API server of Kubernetes; without it, the server uses that of its pod, with the \
              pod's service account. `token-file` and `ca-file` are for Consul and Kubernetes. `resolver` is a name \
              server for SRV records; without it, the first of `/etc/resolv.conf` is asked. If the source fails, \
              its last servers stay, also after a restart. Servers of the file remain beside those of the source. \
              At most 1,000 servers are used.",
        example: r#"discover "srv:_http._tcp.app.example" protocol="h2c""#,
        known_as: KnownAs {
            nginx: &["resolve", "service", "resolver"],
            caddy: &["dynamic", "srv"],
            others: &["server-template", "providers.consulCatalog", "providers.docker"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Upstream(|upstream, values| {
            if let Some(source) = values.discovery_source("source") {
                let protocol = values.text("protocol").and_then(|name| DiscoveredProtocol::of_name(&name));
                upstream.discovery = Some(Box::new(Discovery {
                    source,
                    protocol: protocol.unwrap_or_default(),
                    tag: values.text("tag"),
                    label: values.text("label"),
                    network: values.text("network"),
                    port: values.discovered_port("port"),
                    endpoint: values.store_endpoint("endpoint"),
                    token_file: values.file("token-file"),
                    authorities: values.file("ca-file"),
                    resolver: values.resolver("resolver"),
                }));
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "balance",
        parameters: &[
            one("method", ValueKind::Choice(&["least-connections", "round-robin", "hash"])),
            property("by", ValueKind::HashKey),
        ],
        default: "balance least-connections",
        doc: "Load balancing method: the rule that picks the server for a request. `least-connections` picks two \
              servers at random and takes the one with fewer requests in progress. `round-robin` takes each server \
              in turn. `hash` sends the same key to the same server. It takes the next best if that server is down \
              or 25% busier than the average. The key is `by=address` (the client's address, the default), \
              `by=\"field:NAME\"` or `by=\"cookie:NAME\"`. Requests without that field or cookie use least \
              connections.",
        example: r#"balance hash by="cookie:session""#,
        known_as: KnownAs {
            nginx: &["least_conn", "ip_hash", "hash", "random", "sticky"],
            apache: &["lbmethod", "ProxySet", "stickysession"],
            caddy: &["lb_policy"],
            others: &["balance"],
        },
        set: OptionSetter::Upstream(|upstream, values| {
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
        doc: "Maximum time to open a connection to a server. After it, the next server is tried.",
        example: r#"connect-timeout "1s""#,
        known_as: KnownAs {
            nginx: &[
                "proxy_connect_timeout",
                "fastcgi_connect_timeout",
                "scgi_connect_timeout",
                "uwsgi_connect_timeout",
                "grpc_connect_timeout",
            ],
            apache: &["connectiontimeout"],
            caddy: &["dial_timeout"],
            others: &["timeout connect"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.connect_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "connections-max",
        parameters: &[one("count", COUNT)],
        default: "connections-max 10000",
        doc: "Maximum number of connections in use to each server, over all workers, tunnels (WebSocket) included. \
              For HTTP/2, it counts requests in progress. 0 means no limit. When all servers are at the limit, \
              requests wait in a queue. Set it to what a server can work on at once: a request that waits here costs \
              the server nothing.",
        example: "connections-max 200",
        known_as: KnownAs {
            nginx: &["max_conns"],
            apache: &["max"],
            caddy: &["max_conns_per_host", "unhealthy_request_count"],
            others: &["maxconn"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.connections_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "idle-max",
        parameters: &[one("count", COUNT)],
        default: "idle-max 128",
        doc: "Maximum number of idle connections that each worker keeps open to each server; 0 keeps none. Keep few \
              to servers that use a process for each connection.",
        example: "idle-max 8",
        known_as: KnownAs {
            nginx: &["keepalive"],
            apache: &["enablereuse", "disablereuse"],
            caddy: &["keepalive_idle_conns_per_host", "keepalive_idle_conns"],
            others: &["pool-max-conn"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.idle_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "idle-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"idle-timeout "4s""#,
        doc: "Maximum time that an idle connection to a server is kept open. Keep it below the server's own timeout, \
              which is 5 s in Node, Uvicorn and Apache. Otherwise a request can cross with the server's close.",
        example: r#"idle-timeout "55s""#,
        known_as: KnownAs {
            nginx: &["keepalive_timeout"],
            apache: &["ttl"],
            caddy: &["keepalive"],
            others: &["pool-purge-delay", "keepalive_idle_timeout"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.idle_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "reuse",
        parameters: &[one("policy", ValueKind::Choice(&["never", "safe", "always"]))],
        default: "reuse safe",
        doc: "Policy for sharing idle HTTP/1.1 connections among clients. `safe` shares a connection until it has \
              carried a request with a body, or a HEAD request. From then on it serves only the client connection \
              that sent that request. It stays open for 1 s between requests, and closes if a proxy in front sends \
              requests of several clients. This prevents CL.0 request smuggling, where a server ignores \
              Content-Length and answers hidden content to another client. `never` shares no connection. Use \
              `always` only if every path on the servers reads its request body; it saves opening a connection for \
              most requests with a body. FastCGI and HTTP/2 frame bodies themselves, so `safe` shares their \
              connections.",
        example: "reuse always",
        known_as: KnownAs::NONE.others(&["http-reuse"]),
        set: OptionSetter::Upstream(|upstream, values| {
            upstream.reuse = match values.text("policy").as_deref() {
                Some("never") => ConnectionReuse::Never,
                Some("always") => ConnectionReuse::Always,
                _ => ConnectionReuse::Safe,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "requests-per-connection-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: u32::MAX as u64 })],
        default: "requests-per-connection-max 0",
        doc: "Maximum number of requests on a connection before it is closed; 0 means no limit.",
        example: "requests-per-connection-max 1000",
        known_as: KnownAs::NONE.nginx(&["keepalive_requests"]).others(&["http-keep-alive"]),
        set: OptionSetter::Upstream(|upstream, values| upstream.requests_per_connection_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "streams-per-connection-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 1_000 })],
        default: "streams-per-connection-max 100",
        doc: "Maximum number of requests in progress on an HTTP/2 connection, if the server allows as many. A worker \
              opens another connection for more. Each request keeps at most 256 KiB of response for a slow client.",
        example: "streams-per-connection-max 32",
        known_as: KnownAs {
            nginx: &["http2_max_concurrent_streams"],
            caddy: &["max_conns_per_host"],
            others: &["max_concurrent_streams"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.streams_per_connection_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "connection-age-max",
        parameters: &[one("time", TIMEOUT)],
        default: r#"connection-age-max "1h""#,
        doc: "Maximum age of a connection on which a request is sent. It makes Tailcoat move to new addresses when a \
              server's name resolves differently.",
        example: r#"connection-age-max "5m""#,
        known_as: KnownAs::NONE.nginx(&["keepalive_time"]),
        set: OptionSetter::Upstream(|upstream, values| upstream.connection_age_max = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-max",
        parameters: &[one("count", COUNT)],
        default: "queue-max 1000",
        doc: "Maximum number of requests that wait while all servers have `connections-max` connections in use. \
              Further requests get 503. Requests leave in order of arrival, except that a client with many waiting \
              requests lets others go first. When the queue is half full, one client may hold an eighth of it. \
              Requests leave the queue when their client disconnects.",
        example: "queue-max 50",
        known_as: KnownAs::NONE.nginx(&["queue"]).others(&["maxqueue", "max_queue"]),
        set: OptionSetter::Upstream(|upstream, values| upstream.queue_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"queue-timeout "10s""#,
        doc: "Maximum time that a request waits in the queue. After it, the client gets 503.",
        example: r#"queue-timeout "2s""#,
        known_as: KnownAs::NONE.nginx(&["queue"]).apache(&["acquire"]).others(&["timeout queue"]),
        set: OptionSetter::Upstream(|upstream, values| upstream.queue_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "queue-wait-max",
        parameters: &[one("time", ValueKind::DurationOrAuto { min: Duration::ZERO, max: DAY })],
        default: "queue-wait-max auto",
        doc: "Waiting time above which a queue can be overloaded; `auto` is a twentieth of `queue-timeout`. A queue is \
              overloaded when three things hold. Its oldest request has waited longer than this, for as long again; \
              more requests wait than are in progress; and the queue does not drain within `queue-timeout`. Then the \
              newest request is forwarded first, and older ones get 503 with `Retry-After`. So servers work for \
              clients that still wait, and a short burst is served whole. `0s` turns it off.",
        example: r#"queue-wait-max "250ms""#,
        set: OptionSetter::Upstream(|upstream, values| upstream.queue_wait_max = values.duration_or_auto("time")),
        ..OPTION
    },
    OptionDefinition {
        name: "tries-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 8 })],
        default: "tries-max 3",
        doc: "Maximum number of servers tried for a request, the first included. A request is retried only if no \
              server can have acted on it, or if it may be repeated (RFC 9110, section 9.2.2).",
        example: "tries-max 1",
        known_as: KnownAs {
            nginx: &[
                "proxy_next_upstream",
                "proxy_next_upstream_tries",
                "proxy_next_upstream_timeout",
                "fastcgi_next_upstream",
                "fastcgi_next_upstream_tries",
            ],
            apache: &["maxattempts"],
            caddy: &["lb_retries", "lb_try_duration", "lb_try_interval", "lb_retry_match"],
            others: &["retries", "redispatch"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.tries_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "fail-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 1_000 })],
        default: "fail-max 3",
        doc: "Number of failures in a row, within `fail-window`, after which a server is ejected for `eject-time`; 0 \
              means never. A failure is a connection that cannot be opened, one that closes during the response, a \
              response that is not HTTP, or a timeout. A malformed or too large HTTP response does not count, \
              because a client could provoke it.",
        example: "fail-max 10",
        known_as: KnownAs {
            nginx: &["max_fails"],
            apache: &["failonstatus", "failontimeout"],
            caddy: &["max_fails", "unhealthy_request_count", "unhealthy_status"],
            others: &["observe", "error-limit"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.fail_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "fail-window",
        parameters: &[one("time", TIMEOUT)],
        default: r#"fail-window "10s""#,
        doc: "Time within which failures in a row count together.",
        example: r#"fail-window "1m""#,
        known_as: KnownAs::NONE.nginx(&["fail_timeout"]).caddy(&["fail_duration"]),
        set: OptionSetter::Upstream(|upstream, values| upstream.fail_window = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "eject-time",
        parameters: &[one("time", TIMEOUT)],
        default: r#"eject-time "5s""#,
        doc: "Time for which a failed server is ejected and gets no requests. Then it gets one request. If that \
              succeeds, the server is back; if not, it is ejected for twice as long, up to `eject-time-max`.",
        example: r#"eject-time "30s""#,
        known_as: KnownAs {
            nginx: &["fail_timeout"],
            apache: &["retry"],
            caddy: &["fail_duration"],
            others: &["base_ejection_time"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.eject_time = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "eject-time-max",
        parameters: &[one("time", TIMEOUT)],
        default: r#"eject-time-max "5m""#,
        doc: "Maximum time for which a server is ejected after repeated failures.",
        example: r#"eject-time-max "1m""#,
        known_as: KnownAs::NONE.others(&["max_ejection_time"]),
        set: OptionSetter::Upstream(|upstream, values| upstream.eject_time_max = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "last-resort",
        parameters: FLAG,
        default: "last-resort on",
        doc: "Sends requests to ejected or unhealthy servers if there are no others. With `off`, such requests get \
              503 at once, which lets overloaded servers recover (circuit breaker).",
        example: "last-resort off",
        known_as: KnownAs {
            apache: &["forcerecovery"],
            others: &["circuit-breaker", "panic_threshold", "healthy_panic_threshold"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.last_resort = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "slow-start",
        parameters: &[one("time", ValueKind::Duration { min: Duration::ZERO, max: DAY })],
        default: r#"slow-start "0s""#,
        doc: "Time in which a recovered server returns to its full share of requests, starting from a tenth. 0 turns \
              it off.",
        example: r#"slow-start "30s""#,
        known_as: KnownAs::NONE.nginx(&["slow_start"]).others(&["slowstart"]),
        set: OptionSetter::Upstream(|upstream, values| upstream.slow_start = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "resolve-interval",
        parameters: &[one("time", ValueKind::Duration { min: SECOND, max: DAY })],
        default: r#"resolve-interval "30s""#,
        doc: "Interval at which names of servers are resolved again. If a lookup fails, the old addresses stay in \
              use.",
        example: r#"resolve-interval "5s""#,
        known_as: KnownAs {
            nginx: &["resolver", "resolve"],
            apache: &["disablereuse"],
            caddy: &["resolvers", "refresh", "dynamic"],
            others: &["hold"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.resolve_interval = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "proxy-protocol",
        parameters: &[one("version", ValueKind::Choice(&["off", "v1", "v2"]))],
        default: "proxy-protocol off",
        doc: "Sends a PROXY protocol header of this version with the client's address on each connection. Such a \
              connection carries one request only.",
        example: "proxy-protocol v2",
        known_as: KnownAs {
            nginx: &["proxy_protocol"],
            apache: &["ProxyProtocol"],
            caddy: &["proxy_protocol"],
            others: &["send-proxy", "send-proxy-v2"],
        },
        set: OptionSetter::Upstream(|upstream, values| {
            upstream.proxy_protocol = match values.text("version").as_deref() {
                Some("v1") => Some(ProxyProtocol::V1),
                Some("v2") => Some(ProxyProtocol::V2),
                _ => None,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-ca-file",
        parameters: &[one("file", ValueKind::File)],
        doc: "CA certificates (PEM) that must have signed the certificate of a server at `https://…`. By default, \
              Tailcoat trusts the system's CAs. You can also list a self-signed server certificate here if it is \
              marked as a CA. The file is checked every `certificate-check-interval`, and new connections use its \
              new content. If it becomes invalid, the log says so and the old certificates stay in use.",
        example: r#"tls-ca-file "/etc/ssl/internal-ca.pem""#,
        known_as: KnownAs {
            nginx: &["proxy_ssl_trusted_certificate", "grpc_ssl_trusted_certificate"],
            apache: &["SSLProxyCACertificateFile", "SSLProxyCACertificatePath"],
            caddy: &["tls_trust_pool", "tls_trusted_ca_certs"],
            others: &["ca-file"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.tls.authorities = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-server-name",
        parameters: &[one("name", ValueKind::ForwardHost)],
        doc: "Name sent to servers at `https://…` (SNI), for which their certificates must be valid. It defaults to \
              the host of each server's address.",
        example: r#"tls-server-name "app.internal""#,
        known_as: KnownAs {
            nginx: &["proxy_ssl_name", "proxy_ssl_server_name", "grpc_ssl_name"],
            apache: &["SSLProxyCheckPeerName", "SSLProxyCheckPeerCN"],
            caddy: &["tls_server_name"],
            others: &["sni", "verifyhost"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.tls.server_name = values.text("name")),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-verify",
        parameters: FLAG,
        default: "tls-verify on",
        doc: "Verifies the certificates of servers at `https://…`. With `off`, an attacker on the network path can read \
              and change everything. Prefer to name the server's certificate in `tls-ca-file`.",
        example: "tls-verify off",
        known_as: KnownAs {
            nginx: &["proxy_ssl_verify", "proxy_ssl_verify_depth", "grpc_ssl_verify"],
            apache: &["SSLProxyVerify", "SSLProxyVerifyDepth"],
            caddy: &["tls_insecure_skip_verify"],
            others: &["verify"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.tls.is_verified = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "tls-certificate",
        parameters: &[one("file", ValueKind::File), property("key", ValueKind::File)],
        doc: "Client certificate chain and its private `key` (PEM) for servers at `https://…` that require one \
              (mutual TLS). Without `key`, both are in one file. Both files are read again when they change.",
        example: r#"tls-certificate "/etc/ssl/proxy.pem" key="/etc/ssl/proxy.key""#,
        known_as: KnownAs {
            nginx: &["proxy_ssl_certificate", "proxy_ssl_certificate_key", "grpc_ssl_certificate"],
            apache: &["SSLProxyMachineCertificateFile", "SSLProxyMachineCertificatePath"],
            caddy: &["tls_client_auth"],
            others: &["crt"],
        },
        set: OptionSetter::Upstream(|upstream, values| {
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
        doc: "Offers HTTP/2 to servers at `https://…`. WebSocket requests use HTTP/1.1, unless a connection is open \
              on which the server accepts them over HTTP/2 (RFC 8441).",
        example: "tls-http2 off",
        known_as: KnownAs {
            nginx: &["proxy_http_version"],
            apache: &["H2ProxyEngine"],
            caddy: &["versions"],
            others: &["alpn"],
        },
        set: OptionSetter::Upstream(|upstream, values| upstream.tls.offers_http2 = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "sticky",
        parameters: &[
            one("cookie", ValueKind::CookieName),
            property("key-file", ValueKind::File),
            property("age-max", ValueKind::Duration { min: SECOND, max: Duration::from_secs(365 * 86_400) }),
            property("path", ValueKind::SitePath),
            property("domain", ValueKind::Host),
            property("secure", ValueKind::Choice(&["auto", "on", "off"])),
            property("http-only", ValueKind::Flag),
            property("same-site", ValueKind::Choice(&["lax", "strict", "none"])),
        ],
        doc: "Keeps each client with one server by a cookie that Tailcoat sets (sticky sessions). The cookie names the \
              server by a keyed hash (HMAC-SHA-256), which reveals no address and which clients cannot make up. \
              A drained server keeps its clients and gets no new ones. If a server is down or removed, its clients go \
              to another one and get a new cookie. The key is made once and kept in the state directory; several \
              machines share the one in `key-file` (at least 16 bytes). `age-max` sets `Max-Age`; without it, the \
              cookie ends with the browser's session. `path` (default `/`), `domain`, `http-only` (default `on`) and \
              `same-site` (default `lax`) set these attributes. `Secure` is set if the client uses TLS, or as `secure` \
              says. Use another name for each upstream of a site.",
        example: r#"sticky "srv" age-max="1h" key-file="/etc/tailcoat/sticky.key""#,
        known_as: KnownAs {
            nginx: &["sticky"],
            apache: &["stickysession"],
            caddy: &["lb_policy", "cookie"],
            others: &["cookie", "sticky.cookie", "session_affinity"],
        },
        set: OptionSetter::Upstream(|upstream, values| {
            upstream.sticky = Some(Box::new(StickyCookie {
                name: values.text("cookie").unwrap_or_default(),
                is_header: false,
                key_file: values.file("key-file"),
                age_max: values.duration("age-max"),
                path: values.text("path").unwrap_or_else(|| "/".into()),
                domain: values.hosts("domain").first().map(ToString::to_string),
                is_secure: match values.text("secure").as_deref() {
                    Some("on") => Some(true),
                    Some("off") => Some(false),
                    _ => None,
                },
                is_http_only: values.flag("http-only").unwrap_or(true),
                same_site: match values.text("same-site").as_deref() {
                    Some("strict") => "Strict",
                    Some("none") => "None",
                    _ => "Lax",
                },
            }));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "health-check",
        parameters: &[
            one("path", ValueKind::RequestTarget),
            property("host", ValueKind::FieldValue),
            property("interval", ValueKind::Duration { min: Duration::from_millis(100), max: DAY }),
            property("timeout", TIMEOUT),
            property("status-min", ValueKind::Status { min: 200, max: 599 }),
            property("status-max", ValueKind::Status { min: 200, max: 599 }),
            property("rise", ValueKind::Count { min: 1, max: 1_000 }),
            property("fall", ValueKind::Count { min: 1, max: 1_000 }),
        ],
        doc: "Sends a GET request to each server at an interval (active health check). One process-wide check runs \
              every `interval` (default 5 s), with `host` as its Host (default: the server's). A response within \
              `timeout` (2 s) and with a status from `status-min` (200) to `status-max` (399) is a success. After \
              `fall` failures in a row (3) a server is down; after `rise` successes (2) it is up again.",
        example: r#"health-check "/healthz" interval="2s" status-max=299"#,
        known_as: KnownAs {
            nginx: &["health_check", "check", "match"],
            apache: &["ProxyHCExpr", "ProxyHCTemplate", "hcmethod"],
            caddy: &[
                "health_uri",
                "health_path",
                "health_interval",
                "health_timeout",
                "health_status",
                "health_port",
                "health_passes",
                "health_fails",
                "health_headers",
            ],
            others: &["httpchk"],
        },
        set: OptionSetter::Upstream(|upstream, values| {
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
