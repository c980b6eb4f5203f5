use std::time::Duration;

use super::{FLAG, KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, many, one, property};
use crate::model::DiskCacheConfig;
use crate::model::http2::{CongestionControl, HttpVersions};
use crate::model::{CertificateFiles, ControlPlane, CrowdSec, ForwardedField, LogLevel};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const MILLISECOND: Duration = Duration::from_millis(1);
const GIB: u64 = 1 << 30;

pub(super) static SERVER: &[OptionDefinition] = &[
    OptionDefinition {
        name: "user",
        parameters: &[one("name", ValueKind::ServerUser), property("group", ValueKind::ProgramGroup)],
        doc: "User that the server switches to when root starts it, with the user's groups; `group` replaces the \
              user's own group. The default is the user `tailcoat`. If there is no such user, the server stays root \
              but drops all privileges except binding to ports below 1024. A server started by another user keeps \
              that user.",
        example: r#"user "www-data""#,
        known_as: KnownAs::NONE.nginx(&["user"]).apache(&["User", "Group"]).others(&["setuid", "user_name"]),
        set: OptionSetter::Server(|server, values| {
            server.user = values.program_user("name");
            if let (Some(user), Some(group_id)) = (&mut server.user, values.number("group")) {
                user.group_id = group_id as u32;
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "workers",
        parameters: &[one("count", ValueKind::CountOrAuto { min: 1, max: 1024 })],
        default: "workers auto",
        doc: "Number of workers. `auto` is one for each CPU core that the process may use. HTTP/3 at an \
              address has sockets for as many workers as there are processors. If the server had more workers when it \
              first bound the address, it has sockets for these, up to 128. Further workers serve the other versions \
              there, until a restart. HTTP/3 takes 16 UDP sockets for each such worker and address with TLS. An \
              address takes at most 512, and at most a quarter of the file descriptors.",
        example: "workers 4",
        known_as: KnownAs {
            nginx: &["worker_processes"],
            apache: &["StartServers", "ThreadsPerChild", "ServerLimit"],
            others: &["threads", "num-threads", "nbthread"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Server(|server, values| {
            server.workers = values.number_or_auto("count").map(|count| count as usize)
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "pin-workers",
        parameters: FLAG,
        default: "pin-workers on",
        doc: "Binds each worker to its own CPU core. Turn it off if other busy programs share the cores.",
        example: "pin-workers off",
        known_as: KnownAs::NONE.nginx(&["worker_cpu_affinity"]).others(&["cpu-map"]),
        set: OptionSetter::Server(|server, values| server.pin_workers = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "grace-period",
        parameters: &[one("time", ValueKind::Duration { min: Duration::ZERO, max: DAY })],
        default: r#"grace-period "30s""#,
        doc: "Time that open requests have to finish when the server is stopped (SIGTERM, SIGINT).",
        example: r#"grace-period "2m""#,
        known_as: KnownAs {
            nginx: &["worker_shutdown_timeout"],
            apache: &["GracefulShutdownTimeout"],
            caddy: &["grace_period", "shutdown_delay"],
            others: &["hard-stop-after"],
        },
        set: OptionSetter::Server(|server, values| server.grace_time = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "upgrade-timeout",
        parameters: &[one("time", ValueKind::Duration { min: MILLISECOND, max: HOUR })],
        default: r#"upgrade-timeout "1m""#,
        doc: "Maximum time that a new process has to become ready when the binary is upgraded. After it, the new \
              process is killed and the old one keeps serving.",
        example: r#"upgrade-timeout "10s""#,
        set: OptionSetter::Server(|server, values| server.upgrade_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "certificate-check-interval",
        parameters: &[one("time", ValueKind::Duration { min: Duration::from_millis(100), max: HOUR })],
        default: r#"certificate-check-interval "10s""#,
        doc: "Interval at which certificate files are checked, those for upstreams included. Changed files are read \
              again.",
        example: r#"certificate-check-interval "1m""#,
        known_as: KnownAs::NONE.apache(&["MDCheckInterval"]).caddy(&["renew_interval"]),
        set: OptionSetter::Server(|server, values| server.certificate_check_interval = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "server-tokens",
        parameters: FLAG,
        default: "server-tokens on",
        doc: "Adds the header field `Server: tailcoat` to responses.",
        example: "server-tokens off",
        known_as: KnownAs::NONE
            .nginx(&["server_tokens"])
            .apache(&["ServerTokens", "ServerSignature"])
            .others(&["hide version"]),
        set: OptionSetter::Server(|server, values| server.server_field = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "http-versions",
        parameters: &[many("version", ValueKind::Choice(&["1.1", "2", "3"]))],
        default: r#"http-versions "1.1" "2" "3""#,
        doc: "HTTP versions that clients may use. Clients get HTTP/2 over TLS if they offer it (ALPN). Without TLS they \
              get it if they begin with its preface (prior knowledge, h2c). HTTP/1.0 comes with HTTP/1.1. HTTP/3 uses \
              UDP at the port of each TCP listener with TLS. Listeners with `proxy-protocol`, `unix:` or `systemd:`, \
              and those of a `control-plane`, have no HTTP/3. Responses over TLS tell clients of it (`Alt-Svc`). If the \
              UDP port cannot be bound, the server logs a warning and serves the other versions. `3` alone means `1.1` \
              and `3`, because clients learn of HTTP/3 over TCP.",
        example: r#"http-versions "1.1" "2""#,
        known_as: KnownAs {
            nginx: &["http2"],
            apache: &["Protocols", "ProtocolsHonorOrder", "H2Direct", "H2Upgrade", "mod_http2"],
            caddy: &["protocols"],
            others: &["alpn", "h2c"],
        },
        set: OptionSetter::Server(|server, values| {
            let versions = values.texts("version");
            let has = |version: &str| versions.iter().any(|other| other == version);
            server.http_versions = HttpVersions { http1: has("1.1") || !has("2"), http2: has("2"), http3: has("3") };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "quic-congestion-control",
        parameters: &[one("algorithm", ValueKind::Choice(&["cubic", "bbr", "new-reno"]))],
        default: r#"quic-congestion-control "cubic""#,
        doc: "Congestion control of HTTP/3 connections, which decides how fast the server sends. `cubic` (RFC 9438) and \
              `new-reno` (RFC 9002) slow down when packets are lost. `bbr` estimates the rate of the line instead, so that \
              random loss slows it down less; it may be unfair to other connections of a shared line. Changes apply to \
              new connections. For connections over TCP, the kernel decides (`net.ipv4.tcp_congestion_control`).",
        example: r#"quic-congestion-control "bbr""#,
        known_as: KnownAs::NONE.others(&["quic-cc-algo", "congestion-controller", "cc-algo"]),
        set: OptionSetter::Server(|server, values| {
            server.quic_congestion_control = match values.text("algorithm").as_deref() {
                Some("bbr") => CongestionControl::Bbr,
                Some("new-reno") => CongestionControl::NewReno,
                _ => CongestionControl::Cubic,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "trusted-proxies",
        parameters: &[
            many("proxy", ValueKind::Client),
            property("field", ValueKind::Choice(&["X-Forwarded-For", "Forwarded"])),
        ],
        doc: "Proxies in front of this server whose information about the client's address is trusted: addresses, \
              `unix` or a list (`\"file:PATH\"`, as in `allow`). Tailcoat reads `X-Forwarded-For`, or `Forwarded` \
              (RFC 7239) if that is the `field`, from its end. The first address that is not a trusted proxy is the \
              client, for rules, logs and handlers. List only proxies that set the field themselves; otherwise \
              clients can forge their address.",
        example: r#"trusted-proxies "192.0.2.7" "10.0.0.0/8""#,
        known_as: KnownAs {
            nginx: &["set_real_ip_from", "real_ip_header", "real_ip_recursive"],
            apache: &[
                "RemoteIPTrustedProxy",
                "RemoteIPHeader",
                "RemoteIPInternalProxy",
                "RemoteIPTrustedProxyList",
                "mod_remoteip",
            ],
            caddy: &["trusted_proxies", "client_ip_headers", "trusted_proxies_strict"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Server(|server, values| {
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
        parameters: &[one("count", ValueKind::Count { min: 1, max: 1 << 20 })],
        default: "listen-backlog 4096",
        doc: "Length of each listener's queue of connections that wait to be accepted. The kernel caps it at \
              `net.core.somaxconn`.",
        example: "listen-backlog 1024",
        known_as: KnownAs::NONE.nginx(&["backlog"]).apache(&["ListenBacklog"]),
        set: OptionSetter::Server(|server, values| server.listen_backlog = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "defer-accept",
        parameters: FLAG,
        default: "defer-accept on",
        doc: "Lets the kernel hand over a connection only when its first bytes have arrived, or after a second \
              (TCP_DEFER_ACCEPT).",
        example: "defer-accept off",
        known_as: KnownAs::NONE.nginx(&["deferred"]).apache(&["AcceptFilter"]).others(&["defer-accept"]),
        set: OptionSetter::Server(|server, values| server.defer_accept = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "fast-open-queue",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 1 << 20 })],
        default: "fast-open-queue 0",
        doc: "Length of the TCP Fast Open queue; 0 turns TCP Fast Open off.",
        example: "fast-open-queue 256",
        known_as: KnownAs::NONE.nginx(&["fastopen"]).others(&["tfo"]),
        set: OptionSetter::Server(|server, values| server.fast_open_queue = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "tcp-nodelay",
        parameters: FLAG,
        default: "tcp-nodelay on",
        doc: "Sends data without waiting for full segments (TCP_NODELAY).",
        example: "tcp-nodelay off",
        known_as: KnownAs::NONE.nginx(&["tcp_nodelay"]).others(&["tcp-smart-connect"]),
        set: OptionSetter::Server(|server, values| server.no_delay = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "kernel-tls",
        parameters: FLAG,
        default: "kernel-tls off",
        doc: "Lets the kernel encrypt large files sent by HTTP/1.1 over TLS (kTLS). The files then go from the page \
              cache to the client without passing through the process. From the first such file on, the kernel \
              encrypts everything on that connection. HTTP/2 is not affected, because its frames are no longer than \
              TLS records. It is off by default, because it saves a copy but the kernel's ciphers can be slower. \
              Turn it on and compare CPU time per byte (`tailor bench`, or the workers' in `tailcoat status`). \
              `/proc/net/tls_stat` counts connections (`TlsTxSw`). It needs the kernel module `tls` (`modprobe tls` \
              as root); without it, the server logs this once and encrypts itself. Before Linux 6.14, a connection \
              closes if the client asks for a new key, which is rare. Changing it needs a restart or upgrade.",
        example: "kernel-tls on",
        known_as: KnownAs::NONE.nginx(&["ssl_conf_command"]).others(&["ktls"]),
        set: OptionSetter::Server(|server, values| server.kernel_tls.is_wanted = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "kernel-tls-bytes-min",
        parameters: &[one("size", ValueKind::Size { min: 1, max: 1 << 40 })],
        default: r#"kernel-tls-bytes-min "1MiB""#,
        doc: "Minimum size of a file for which the kernel takes over a connection's encryption, with `kernel-tls \
              on`.",
        example: r#"kernel-tls-bytes-min "16MiB""#,
        known_as: KnownAs::NONE.nginx(&["ssl_conf_command"]).others(&["ktls"]),
        set: OptionSetter::Server(|server, values| server.kernel_tls.file_bytes_min = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "blocking-threads-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 1024 })],
        default: "blocking-threads-max 16",
        doc: "Maximum number of threads that a worker uses for reads that wait for a disk, so that other requests do \
              not wait.",
        example: "blocking-threads-max 64",
        known_as: KnownAs::NONE.nginx(&["thread_pool", "aio"]),
        set: OptionSetter::Server(|server, values| server.blocking_threads_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "log-level",
        parameters: &[one("level", ValueKind::Choice(&["error", "warn", "info", "debug"]))],
        default: "log-level info",
        doc: "Minimum severity of messages in the server log, which goes to standard error.",
        example: "log-level debug",
        known_as: KnownAs::NONE
            .nginx(&["error_log"])
            .apache(&["LogLevel", "ErrorLog", "ErrorLogFormat"])
            .caddy(&["level", "debug"]),
        set: OptionSetter::Server(|server, values| {
            server.log_level = values.text("level").as_deref().and_then(LogLevel::of_name).unwrap_or(LogLevel::Info);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log-flush-interval",
        parameters: &[one("time", ValueKind::Duration { min: MILLISECOND, max: HOUR })],
        default: r#"access-log-flush-interval "200ms""#,
        doc: "Maximum time until a request is written to its access log. The first request after a pause is written \
              at once.",
        example: r#"access-log-flush-interval "1s""#,
        known_as: KnownAs::NONE.nginx(&["flush"]).apache(&["BufferedLogs"]),
        set: OptionSetter::Server(|server, values| server.access_log_flush_interval = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log-report-interval",
        parameters: &[one("time", ValueKind::Duration { min: MILLISECOND, max: DAY })],
        default: r#"access-log-report-interval "5s""#,
        doc: "Minimum time between two messages in the server log about requests that could not be logged.",
        example: r#"access-log-report-interval "1m""#,
        set: OptionSetter::Server(|server, values| server.access_log_report_interval = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "control-socket",
        parameters: &[one("file", ValueKind::File)],
        doc: "Unix socket for commands to the running server: `tailcoat reload`, `upgrade`, `set`, `drain`, `cache \
              purge`. Only root and the server's user may use it. Programs of `cgi` may not, unless they can read \
              the socket's directory.",
        example: r#"control-socket "/run/tailcoat/control.sock""#,
        known_as: KnownAs { nginx: &["pid"], apache: &["PidFile"], caddy: &["admin"], others: &["stats socket"] },
        set: OptionSetter::Server(|server, values| server.control_socket = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "control-plane",
        parameters: &[
            one("address", ValueKind::ServerAddress),
            property("token-file", ValueKind::File),
            property("ca-file", ValueKind::File),
            property("certificate", ValueKind::File),
            property("key", ValueKind::File),
            property("directory", ValueKind::File),
        ],
        doc: "Controller that sends listeners, routes, certificates and endpoints, at `https://HOST:PORT` or \
              `unix:PATH`. Tailcoat applies each change while it serves, and adds the routes to the sites of the \
              configuration. The last state is kept in `directory` (default: `routes` in the state directory); with \
              it, Tailcoat starts and serves while the controller is away. `token-file` has the token that Tailcoat \
              sends. `ca-file` has the CA certificates (PEM) for the controller, instead of the system's. \
              `certificate` and `key` are what Tailcoat shows to the controller (mTLS).",
        example: r#"control-plane "https://controller.internal:9443" token-file="/run/secrets/token""#,
        known_as: KnownAs::NONE.others(&["xds", "dynamic_resources", "providers"]),
        set: OptionSetter::Server(|server, values| {
            server.control_plane = values.server_address("address").map(|address| {
                let certificate = values.file("certificate").zip(values.file("key"));
                Box::new(ControlPlane {
                    address,
                    token_file: values.file("token-file"),
                    authorities: values.file("ca-file"),
                    certificate: certificate.map(|(certificate, key)| CertificateFiles {
                        certificate,
                        key,
                        ocsp: None,
                    }),
                    directory: values.file("directory"),
                })
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "country-database",
        parameters: &[one("file", ValueKind::File)],
        doc: "Database of countries in MaxMind's format (`.mmdb`), such as GeoLite2 Country or DB-IP. Conditions, \
              `rate-limit` and logs can use `country` then, such as `deny all when=\"country == 'XX'\"`. The file is read \
              into memory, and read again when it changes.",
        example: r#"country-database "/var/lib/GeoIP/GeoLite2-Country.mmdb""#,
        known_as: KnownAs {
            nginx: &["geoip2", "geoip_country"],
            apache: &["MaxMindDBFile", "GeoIPDBFile"],
            caddy: &["maxmind_geolocation"],
            others: &["geoip", "maxmind"],
        },
        set: OptionSetter::Server(|server, values| server.client_knowledge.countries = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "asn-database",
        parameters: &[one("file", ValueKind::File)],
        doc: "Database of autonomous systems in MaxMind's format (`.mmdb`), such as GeoLite2 ASN. Conditions, \
              `rate-limit` and logs can use `asn` then, the number of the network operator.",
        example: r#"asn-database "/var/lib/GeoIP/GeoLite2-ASN.mmdb""#,
        known_as: KnownAs::NONE.nginx(&["geoip_org"]).others(&["asn", "maxmind"]),
        set: OptionSetter::Server(|server, values| server.client_knowledge.systems = values.file("file")),
        ..OPTION
    },
    OptionDefinition {
        name: "fingerprints",
        parameters: FLAG,
        default: "fingerprints off",
        doc: "Takes fingerprints of clients' programs: `ja4` of the TLS handshake, and `http2_fingerprint` of the beginning \
              of an HTTP/2 connection over TLS. Conditions need this option; an access log whose format names a \
              fingerprint, and a `rate-limit` by one, turn it on.",
        example: "fingerprints on",
        known_as: KnownAs::NONE.nginx(&["ssl_ja3", "ssl_ja4"]).others(&["ja3", "ja4", "fingerprint"]),
        set: OptionSetter::Server(|server, values| server.client_knowledge.fingerprints = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "crowdsec",
        parameters: &[
            one("address", ValueKind::Text),
            property("key-file", ValueKind::File),
            property("interval", ValueKind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(3_600) }),
        ],
        doc: "Bans the addresses that CrowdSec decides to ban: Tailcoat is a bouncer of its local API, whose host and \
              port this is, such as `127.0.0.1:8080`. `key-file` has the key that `cscli bouncers add tailcoat` \
              prints. Tailcoat asks for changes each `interval` (default `\"10s\"`); while the API cannot be reached, the \
              last decisions stay in force for their time.",
        example: r#"crowdsec "127.0.0.1:8080" key-file="/etc/tailcoat/crowdsec.key""#,
        known_as: KnownAs::NONE.caddy(&["crowdsec"]).others(&["crowdsec", "bouncer", "lapi"]),
        set: OptionSetter::Server(|server, values| {
            server.client_knowledge.crowdsec = Some(CrowdSec {
                authority: values.text("address").unwrap_or_default(),
                key_file: values.file("key-file").unwrap_or_default(),
                interval: values.duration("interval").unwrap_or(Duration::from_secs(10)),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "buffer-directory",
        parameters: &[one("directory", ValueKind::File)],
        doc: "Directory for buffered requests and responses that do not fit into memory, as files without names. By \
              default it is TMPDIR, otherwise `/var/tmp`. If Tailcoat cannot write there, the server log says so, \
              and slow clients occupy upstream connections again.",
        example: r#"buffer-directory "/var/cache/tailcoat""#,
        known_as: KnownAs {
            nginx: &[
                "client_body_temp_path",
                "proxy_temp_path",
                "fastcgi_temp_path",
                "uwsgi_temp_path",
                "scgi_temp_path",
            ],
            ..KnownAs::NONE
        },
        set: OptionSetter::Server(|server, values| server.buffer_directory = values.file("directory")),
        ..OPTION
    },
    OptionDefinition {
        name: "status-listen",
        parameters: &[many("address", ValueKind::Listen)],
        doc: "Addresses on which the server itself serves the status page at `/` and metrics at `/metrics`, to \
              clients on this machine.",
        example: r#"status-listen "127.0.0.1:9180""#,
        known_as: KnownAs {
            nginx: &["stub_status"],
            apache: &["server-status"],
            caddy: &["admin"],
            others: &["stats", "mod_status"],
        },
        set: OptionSetter::Server(|server, values| {
            server.status_listen.extend(values.listens("address"));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "counters",
        parameters: FLAG,
        default: "counters on",
        doc: "Counts what the workers do, for `tailcoat status`, `metrics` and `status-page`.",
        example: "counters off",
        known_as: KnownAs::NONE.nginx(&["stub_status"]).apache(&["ExtendedStatus"]).caddy(&["metrics"]),
        set: OptionSetter::Server(|server, values| server.counters = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "counted-names-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 10_000 })],
        default: "counted-names-max 100",
        doc: "Maximum number of sites, and of upstreams, with metrics of their own. Further ones are counted \
              together as `other`. It bounds the number of series in `metrics`.",
        example: "counted-names-max 500",
        known_as: KnownAs::NONE.caddy(&["per_host"]),
        set: OptionSetter::Server(|server, values| server.counted_names_max = values.integer("count")),
        ..OPTION
    },
];

pub(super) static CACHE: &[OptionDefinition] = &[
    OptionDefinition {
        name: "memory-bytes-max",
        parameters: &[one("size", ValueKind::SizeOrAuto { min: 0, max: 1 << 50 })],
        default: "memory-bytes-max auto",
        doc: "Maximum memory for cached files and responses, over all workers. `auto` is 256 MiB, but at most a \
              quarter of the memory of the machine, or of its container or service (cgroups). A quarter of it more \
              is for large files that HTTP/2 and HTTP/3 send often.",
        example: r#"memory-bytes-max "2GiB""#,
        known_as: KnownAs {
            nginx: &["open_file_cache", "proxy_cache_path"],
            apache: &["CacheSocacheMaxSize"],
            others: &["memory", "total-max-size", "mod_mem_cache"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Cache(|cache, values| {
            if let Some(bytes) = values.number_or_auto("size") {
                (cache.memory_bytes_max, cache.memory_bytes_auto) = (bytes, false);
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "object-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: GIB })],
        default: r#"object-bytes-max "64KiB""#,
        doc: "Maximum size of a file kept in memory. Larger files are kept as open file descriptors and sent by the \
              kernel. HTTP/2 and HTTP/3 need their bytes, so files up to 2 MiB that they send often are in memory, too.",
        example: r#"object-bytes-max "256KiB""#,
        known_as: KnownAs::NONE.nginx(&["open_file_cache"]).apache(&["CacheSocacheMaxSize"]),
        set: OptionSetter::Cache(|cache, values| cache.object_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "files-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 10_000_000 })],
        default: "files-max 1024",
        doc: "Maximum number of file descriptors kept open for larger files, and for responses on disk while memory is \
              full. The server keeps at most half of the file descriptors that the process may have (`LimitNOFILE`, \
              `ulimit -n`) for files, up to the default a quarter. Connections get the others.",
        example: "files-max 10000",
        known_as: KnownAs::NONE.nginx(&["open_file_cache", "worker_rlimit_nofile"]).apache(&["CacheFile"]),
        set: OptionSetter::Cache(|cache, values| cache.files_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "revalidate-after",
        parameters: &[one("time", ValueKind::Duration { min: Duration::ZERO, max: HOUR })],
        default: r#"revalidate-after "1s""#,
        doc: "Time for which a cached file is served before it is checked for changes. For the same time, a path \
              without a file is not looked up again. Where `watch` works, changes are seen at once.",
        example: r#"revalidate-after "5s""#,
        known_as: KnownAs::NONE.nginx(&["open_file_cache_valid"]),
        set: OptionSetter::Cache(|cache, values| cache.revalidate_after = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "watch",
        parameters: FLAG,
        default: "watch on",
        doc: "Watches directories for changes (inotify), so that changed files are served at once.",
        example: "watch off",
        known_as: KnownAs::NONE.nginx(&["open_file_cache"]),
        set: OptionSetter::Cache(|cache, values| cache.watch = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "watches-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 10_000_000 })],
        default: "watches-max 16384",
        doc: "Maximum number of directories watched. Changes in others are seen after `revalidate-after`, as are \
              changes beyond the kernel's own limit, `fs.inotify.max_user_watches`.",
        example: "watches-max 100000",
        set: OptionSetter::Cache(|cache, values| cache.watches_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "roots-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 10_000_000 })],
        default: "roots-max 4096",
        doc: "Maximum number of directories of a `root` with `{host}` that are kept open, one for each host. Beyond \
              it, the least recently used are closed and their cached files dropped.",
        example: "roots-max 50000",
        set: OptionSetter::Cache(|cache, values| cache.roots_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "disk",
        parameters: &[
            one("directory", ValueKind::File),
            property("bytes-max", ValueKind::Size { min: 1 << 20, max: 1 << 60 }),
            property("files-max", ValueKind::Count { min: 1, max: 100_000_000 }),
        ],
        doc: "Directory in which cached upstream responses are kept as well, so that they survive restarts and leave \
              memory for others. All response caches use it. `bytes-max` (1 GiB) and `files-max` (100000) bound it; \
              beyond them, the least recently used responses are removed. The server creates the directory with \
              permissions 0700; it must belong to the server's user. Files have checksums: what a crash has torn, or \
              another program has changed, is removed and not served. Each file takes some 350 bytes of memory. While \
              memory is full, responses are sent from their files, of which `files-max` stay open.",
        example: r#"disk "/var/cache/tailcoat" bytes-max="20GiB""#,
        known_as: KnownAs {
            nginx: &["proxy_cache_path", "fastcgi_cache_path", "proxy_temp_path"],
            apache: &["CacheRoot", "mod_cache_disk"],
            others: &["cache_dir", "storage"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Cache(|cache, values| {
            cache.disk = values.file("directory").map(|directory| DiskCacheConfig {
                directory,
                bytes_max: values.number("bytes-max").unwrap_or(GIB),
                files_max: values.number("files-max").unwrap_or(100_000) as usize,
            });
        }),
        ..OPTION
    },
];
