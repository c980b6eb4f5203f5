use super::{BODY_BYTES, FLAG, Kind, OPTION, OptionDefinition, Place, Set, any, many, one, optional, property};
use crate::config::model::*;
use crate::config::value::{Value, Values};
use wire::http::Status;

/// What stands outside all blocks.
pub(super) static TOP: &[OptionDefinition] = &[
    OptionDefinition {
        name: "site",
        parameters: &[any("name", Kind::Host)],
        repeatable: true,
        doc: "A site, and the hosts it answers to: `\"example.com\"`, or `\"*.example.com\"` for all names below it. A \
              request goes to the site that names its host, else to the one with the longest wildcard that fits, else \
              to the default site of the listener: one without names or with `default`, or the first that listens there.",
        example: r#"site "example.com" "*.example.com" { root "/srv/www" }"#,
        known_as: &["server_name", "VirtualHost", "vhost", "host", "hosts", "ServerName"],
        set: Set::Block(Place::Site),
        ..OPTION
    },
    OptionDefinition {
        name: "upstream",
        parameters: &[one("name", Kind::Text)],
        repeatable: true,
        doc: "Servers that can answer the same requests, by the name that `forward` has for them.",
        example: r#"upstream "app" { server "http://127.0.0.1:8001"; server "http://127.0.0.1:8002" }"#,
        known_as: &["backend", "balancer", "proxy", "reverse_proxy"],
        set: Set::Block(Place::Upstream),
        ..OPTION
    },
    OptionDefinition {
        name: "automatic-certificates",
        doc: "How sites without a certificate get one.",
        example: r#"automatic-certificates { contact "mailto:admin@example.com" }"#,
        known_as: &["acme", "MDomain", "MDContactEmail", "auto_https"],
        set: Set::Block(Place::AutomaticCertificates),
        ..OPTION
    },
    OptionDefinition {
        name: "traces",
        doc: "Which traces requests belong to, and where it is told what became of them here.",
        example: r#"traces { endpoint "http://localhost:4318" }"#,
        known_as: &["opentelemetry", "otel", "tracing", "otel_trace"],
        set: Set::Block(Place::Traces),
        ..OPTION
    },
    OptionDefinition {
        name: "server",
        doc: "The workers, and what they share.",
        example: "server { workers 4 }",
        known_as: &["global", "events", "main"],
        set: Set::Block(Place::Server),
        ..OPTION
    },
    OptionDefinition {
        name: "confinement",
        doc: "What the server takes from itself when it has started.",
        example: r#"confinement { read "/srv" }"#,
        known_as: &["chroot", "sandbox"],
        set: Set::Block(Place::Confinement),
        ..OPTION
    },
    OptionDefinition {
        name: "limits",
        doc: "How much a client may ask for, and how slow it may be. The defaults are safe on the open Internet.",
        example: r#"limits { idle-timeout "15s" }"#,
        known_as: &["timeouts"],
        set: Set::Block(Place::Limits),
        ..OPTION
    },
    OptionDefinition {
        name: "cache",
        doc: "The memory for responses.",
        example: r#"cache { memory-bytes-max "2GiB" }"#,
        set: Set::Block(Place::Cache),
        ..OPTION
    },
    OptionDefinition {
        name: "modules",
        doc: "What WebAssembly modules share.",
        example: "modules { threads 2 }",
        set: Set::Block(Place::Modules),
        ..OPTION
    },
    OptionDefinition {
        name: "include",
        parameters: &[one("file", Kind::FileGlob)],
        repeatable: true,
        doc: "Other files, read as if they stood here. With a `*` in the name, all that fit, in the order of their \
              names. An included file includes no others.",
        example: r#"include "sites/*.kdl""#,
        known_as: &["import", "Include", "IncludeOptional"],
        set: Set::Include,
        ..OPTION
    },
];

/// What stands in a site.
pub(super) static SITE: &[OptionDefinition] = &[
    OptionDefinition {
        name: "listen",
        parameters: &[
            many("address", Kind::Listen),
            property("mode", Kind::Mode),
            property("tls", Kind::Flag),
            property("proxy-protocol", Kind::Flag),
        ],
        repeatable: true,
        is_block_optional: false,
        default: r#"listen 80"#,
        doc: "Where the site listens. A port alone is all addresses of IPv4 and IPv6; `\"127.0.0.1:8080\"` and \
              `\"[::1]:8080\"` are one address; `\"unix:/run/tailcoat.sock\"` is a unix socket, with the permissions \
              `mode`, by default 660; `\"systemd:web\"` is a socket of this name that systemd has opened. With `tls=on`, \
              TLS is spoken there, and the site has a `certificate`. With `proxy-protocol=on`, connections from `trusted-proxies` must begin with a header of the PROXY protocol, \
              version 1 or 2, and the client is who it says; others are as without.",
        example: r#"listen "127.0.0.1:8080" "unix:/run/tailcoat.sock" "systemd:web" mode="666""#,
        known_as: &["Listen", "bind", "port", "server.port", "address"],
        set: Set::Site(|site, values| {
            let mode = values.number("mode");
            for (value, _) in values.all("address") {
                let Value::Listen(addresses) = value else { unreachable!("an address is {value:?}") };
                for address in addresses.iter().cloned() {
                    let listen = match (address, mode) {
                        (Listen::Unix(path, _), Some(mode)) => Listen::Unix(path, mode as u32),
                        (address, _) => address,
                    };
                    if values.flag("proxy-protocol") == Some(true) {
                        site.proxied_listen.push(listen.clone());
                    }
                    if values.flag("tls") == Some(true) {
                        site.tls_listen.push(listen.clone());
                    }
                    site.listen.push(listen);
                }
            }
        }),
    },
    OptionDefinition {
        name: "default",
        parameters: FLAG,
        default: "default off",
        doc: "Whether the site also takes requests for hosts that no site of its listeners names.",
        example: "default",
        known_as: &["default_server", "default-server", "_default_"],
        set: Set::Site(|site, values| site.default = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "body-bytes-max",
        parameters: BODY_BYTES,
        doc: "Size of a request's content in this site, instead of what `limits` says; see there.",
        example: r#"body-bytes-max "10MiB""#,
        known_as: &["client_max_body_size", "LimitRequestBody", "request_body", "max_size"],
        set: Set::Site(|site, values| site.body_bytes_max = values.body_bytes_max("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "files",
        parameters: &[one("path", Kind::PathPattern), property("root", Kind::Root)],
        repeatable: true,
        doc: "Files for a part of the site. Inside stand the options of files; those that don't are as in the site. \
              `files`, `module`, `respond` and `forward` with a path are tried in the order in which they stand, then \
              the site's own root, then `forward` without a path.",
        example: r#"files "/downloads/*" root="/srv/downloads" { browse; strip-prefix "/downloads" }"#,
        known_as: &["location", "Directory", "Location", "handle", "route", "path", "Alias"],
        set: Set::Block(Place::Files),
        ..OPTION
    },
    OptionDefinition {
        name: "forward",
        parameters: &[one("to", Kind::ForwardTarget), property("path", Kind::PathPattern)],
        repeatable: true,
        doc: "Another server answers: `\"http://HOST:PORT\"`, `\"unix:PATH\"`, or the name of an `upstream`. With \
              `path`, it is tried where it stands among `files`, `module` and `respond`; without, it gets last what \
              nothing else here can answer: other methods, and paths that the site's root has no file for.",
        example: r#"forward "http://127.0.0.1:3000" path="/api/*""#,
        known_as: &["proxy_pass", "reverse_proxy", "ProxyPass", "proxy.reverse.url", "proxy.server", "use_backend"],
        set: Set::Block(Place::Forward),
        ..OPTION
    },
    OptionDefinition {
        name: "fastcgi",
        parameters: &[one("path", Kind::PathPattern), one("to", Kind::GatewayTarget), property("root", Kind::Root)],
        repeatable: true,
        doc: "Scripts that a server runs by FastCGI, such as php-fpm: `\"unix:PATH\"`, `\"tcp://HOST:PORT\"`, or the name of \
              an `upstream`. A path is for it if it, or a part of it up to a slash, fits the pattern and is a file below the \
              `root` (by default the site's); what follows that part is PATH_INFO. It is tried where it stands among \
              `files`, `forward` and `respond`; its `fallback` comes last of all. Files with extensions of programs are not \
              sent by a site that has one.",
        example: r#"fastcgi "*.php" "unix:/run/php/php-fpm.sock" { fallback "/index.php" }"#,
        known_as: &["fastcgi_pass", "php_fastcgi", "ProxyFCGI", "fastcgi.server", "fastcgi.connect", "php"],
        set: Set::Block(Place::FastCgi),
        ..OPTION
    },
    OptionDefinition {
        name: "cgi",
        parameters: &[one("path", Kind::PathPattern), property("root", Kind::Root)],
        repeatable: true,
        doc: "Programs that are started for each request (CGI/1.1). Which paths are for it is as for `fastcgi`. Files must be \
              executable, unless there is an `interpreter`.",
        example: r#"cgi "/cgi-bin/*" root="/usr/lib/cgi-bin" { strip-prefix "/cgi-bin" }"#,
        known_as: &["ScriptAlias", "cgi.assign", "mod_cgi", "cgi-bin", "file.custom-handler"],
        set: Set::Block(Place::Cgi),
        ..OPTION
    },
    OptionDefinition {
        name: "scgi",
        parameters: &[one("path", Kind::PathPattern), one("to", Kind::GatewayTarget)],
        repeatable: true,
        doc: "An application behind SCGI, with all paths of this pattern.",
        example: r#"scgi "/app/*" "unix:/run/app.sock" { application "/app" }"#,
        known_as: &["scgi_pass", "SCGIMount", "scgi.server"],
        set: Set::Block(Place::Scgi),
        ..OPTION
    },
    OptionDefinition {
        name: "uwsgi",
        parameters: &[one("path", Kind::PathPattern), one("to", Kind::GatewayTarget)],
        repeatable: true,
        doc: "An application behind the uwsgi protocol, with all paths of this pattern.",
        example: r#"uwsgi "*" "unix:/run/uwsgi/app.sock""#,
        known_as: &["uwsgi_pass", "uWSGIHandler"],
        set: Set::Block(Place::Uwsgi),
        ..OPTION
    },
    OptionDefinition {
        name: "module",
        parameters: &[one("path", Kind::PathPattern), one("file", Kind::File)],
        repeatable: true,
        doc: "A WebAssembly module answers: a component of the `wasi:http/proxy` world (WASI 0.2). Each request has an \
              instance of its own. It may do nothing that is not granted in the block.",
        example: r#"module "/shop/*" "/srv/shop.wasm" { environment "SHOP_NAME" "Fish & Co" }"#,
        known_as: &["wasm", "wasm_modules", "spin"],
        set: Set::Block(Place::Module),
        ..OPTION
    },
    OptionDefinition {
        name: "respond",
        parameters: &[
            one("path", Kind::PathPattern),
            one("status", Kind::Status { min: 200, max: 599 }),
            optional("body", Kind::Text),
            property("type", Kind::MediaType),
        ],
        repeatable: true,
        doc: "A fixed answer. Its `type` is by default `\"text/plain; charset=utf-8\"`.",
        example: r#"respond "/healthz" 200 "ok" type="text/plain""#,
        known_as: &["return", "static_response"],
        set: Set::Site(|site, values| {
            let respond = Respond {
                status: values.status("status").unwrap_or(Status::OK),
                body: values.text("body").unwrap_or_default(),
                content_type: values.text("type").unwrap_or_else(|| "text/plain; charset=utf-8".into()),
            };
            let path = values.path_pattern("path").unwrap_or(PathPattern::Any);
            site.routes.push(Route { path, handler: Handler::Respond(respond) });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "metrics",
        parameters: &[one("path", Kind::SitePath)],
        repeatable: true,
        doc: "Metrics of the whole server, for Prometheus: as OpenMetrics, or in its text format. Only processes of this \
              machine may see them, unless `deny` or `basic-auth` says who may; if the site can be reached from \
              elsewhere, one of them has to.",
        example: r#"metrics "/metrics""#,
        known_as: &["prometheus", "stub_status", "server-status", "vhost_traffic_status"],
        set: Set::Site(|site, values| add_status_view(site, values, StatusViewKind::Metrics)),
        ..OPTION
    },
    OptionDefinition {
        name: "status-page",
        parameters: &[one("path", Kind::SitePath)],
        repeatable: true,
        doc: "A page that plots what the whole server does. With `?json` it is the data. Who may see it is as for `metrics`.",
        example: r#"status-page "/status""#,
        known_as: &["status", "server-status", "mod_status", "status.status-url"],
        set: Set::Site(|site, values| add_status_view(site, values, StatusViewKind::Page)),
        ..OPTION
    },
];

/// Adds a route to what tells of the server, unless it is `off`.
fn add_status_view(site: &mut Site, values: &Values, kind: StatusViewKind) {
    if let Some(path) = values.text("path").filter(|path| !path.is_empty()) {
        let handler = Handler::Status(StatusView { kind });
        site.routes.push(Route { path: PathPattern::Exact(path), handler });
    }
}

/// What all sites may share, or a site may have of its own.
pub(super) static SHARED: &[OptionDefinition] = &[
    OptionDefinition {
        name: "error-page",
        parameters: &[many("status", Kind::StatusRange), one("page", Kind::ErrorPageFile)],
        repeatable: true,
        doc: "The page sent with these error statuses: a path below the site's root, or `\"file:PATH\"` for a file \
              elsewhere. The first that fits is used; those of a site come before those of all sites.",
        example: r#"error-page 403 404 "5xx" "/error.html""#,
        known_as: &["ErrorDocument", "handle_errors", "error-doc", "server.errorfile-prefix"],
        set: Set::Shared(|shared, values| {
            let file = values.error_page_file("page").unwrap_or(ErrorPageFile::BelowRoot(String::new()));
            for (value, _) in values.all("status") {
                let Value::StatusRange(from, to) = *value else { unreachable!("a status is {value:?}") };
                shared.error_pages.push(ErrorPage { from, to, file: file.clone() });
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log",
        parameters: &[one("target", Kind::LogTarget), property("format", Kind::LogFormat)],
        default: "access-log off",
        doc: "Where requests are logged: a file (opened again at SIGUSR1), `stdout`, `syslog` or `\"syslog:FACILITY\"`. \
              The format is `combined` by default, which takes the least time; a text with fields in braces is one of \
              your own, and if that is a JSON object (`#\"{{\"path\": {path}, \"status\": {status}}}\"#`), \
              its values are JSON's; `binary` has all that the other named ones say, and `tailcoat log convert` turns it into each of \
              them. In a site, it \
              replaces the log of all sites; `off` turns it off. A request whose client broke off before it was answered \
              is logged with the status 499.",
        example: r#"access-log "/var/log/tailcoat/access.log" format="json""#,
        known_as: &["CustomLog", "log_format", "LogFormat", "accesslog.filename", "log", "TransferLog"],
        set: Set::Shared(|shared, values| {
            let format = values.log_format("format").unwrap_or(AccessLogFormat::Combined);
            shared.access_log =
                values.log_target("target").map(|target| target.map(|target| AccessLog { target, format }));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "log-skip",
        parameters: &[many("path", Kind::PathPattern)],
        repeatable: true,
        doc: "Paths whose requests are not in the access log, such as those of probes. A site has those of all sites as \
              well. Metrics count them all the same. It is the path that was asked for that counts, before any `rewrite`; \
              where more follows a script's (`/a.php/b.css`), that of the script as well.",
        example: r#"log-skip "/healthz" "/assets/*""#,
        known_as: &["log_skip", "skip_log", "dontlog"],
        set: Set::Shared(|shared, values| {
            for (value, _) in values.all("path") {
                let Value::PathPattern(path) = value else { unreachable!("a path is {value:?}") };
                shared.unlogged.push(path.clone());
            }
        }),
        ..OPTION
    },
];
