use super::rules::{CONDITIONS, conditions};
use super::{
    BODY_BYTES, FLAG, KnownAs, OPTION, OptionContext, OptionDefinition, OptionSetter, Parameter, ValueKind, any,
    expressions, many, one, optional, property,
};
use crate::model::*;
use crate::value::Values;
use expression::Place;
use wire::http::Status;

/// Options at the top level.
pub(super) static TOP: &[OptionDefinition] = &[
    OptionDefinition {
        name: "site",
        parameters: &[any("name", ValueKind::Host)],
        repeatable: true,
        doc: "A site (virtual host) and the host names it answers to. `\"*.example.com\"` matches every name below \
              `example.com`. A request goes to the site that names its host, otherwise to the site with the longest \
              matching wildcard. If none matches, the default site of the listener answers: the one without names or \
              with `default`, otherwise the first that listens there.",
        example: r#"site "example.com" "*.example.com" { root "/srv/www" }"#,
        known_as: KnownAs {
            nginx: &["server", "server_name"],
            apache: &["VirtualHost", "ServerName", "ServerAlias", "NameVirtualHost"],
            caddy: &["site-address", "host"],
            others: &["vhost", "hosts", "frontend"],
        },
        set: OptionSetter::Block(OptionContext::Site),
        ..OPTION
    },
    OptionDefinition {
        name: "upstream",
        parameters: &[one("name", ValueKind::Text)],
        repeatable: true,
        doc: "A group of servers that answer the same requests (load balancing). `forward`, `fastcgi`, `scgi` and \
              `uwsgi` refer to the group by its name.",
        example: r#"upstream "app" { server "http://127.0.0.1:8001"; server "http://127.0.0.1:8002" }"#,
        known_as: KnownAs {
            nginx: &["upstream"],
            apache: &["Proxy", "balancer", "ProxySet"],
            caddy: &["dynamic"],
            others: &["backend"],
        },
        set: OptionSetter::Block(OptionContext::Upstream),
        ..OPTION
    },
    OptionDefinition {
        name: "automatic-certificates",
        doc: "Settings for certificates that Tailcoat obtains and renews itself (ACME).",
        example: r#"automatic-certificates { contact "mailto:admin@example.com" }"#,
        known_as: KnownAs {
            nginx: &["acme_issuer"],
            apache: &["MDomain", "MDContactEmail", "mod_md"],
            caddy: &["acme", "auto_https", "acme_server", "cert_issuer"],
            others: &["let's encrypt", "letsencrypt", "certbot"],
        },
        set: OptionSetter::Block(OptionContext::AutomaticCertificates),
        ..OPTION
    },
    OptionDefinition {
        name: "store",
        doc: "Store that several instances share: certificates, session keys, rate limits, purges and bans.",
        example: r#"store { url "valkey://127.0.0.1" }"#,
        known_as: KnownAs {
            nginx: &["zone_sync", "zone_sync_server"],
            apache: &["SSLSessionCache", "socache"],
            caddy: &["storage"],
            others: &["peers", "stick-table peers", "redis", "valkey", "consul", "zone_sync", "cluster"],
        },
        set: OptionSetter::Block(OptionContext::Store),
        ..OPTION
    },
    OptionDefinition {
        name: "traces",
        doc: "Distributed tracing: joins requests to W3C traces and exports spans to OpenTelemetry.",
        example: r#"traces { endpoint "http://localhost:4318" }"#,
        known_as: KnownAs::NONE.nginx(&["otel_trace"]).caddy(&["tracing"]).others(&["opentelemetry", "otel"]),
        set: OptionSetter::Block(OptionContext::Traces),
        ..OPTION
    },
    OptionDefinition {
        name: "server",
        doc: "Settings of the server process and its workers.",
        example: "server { workers 4 }",
        known_as: KnownAs::NONE.nginx(&["events", "main"]).caddy(&["global-options", "servers"]).others(&["global"]),
        set: OptionSetter::Block(OptionContext::Server),
        ..OPTION
    },
    OptionDefinition {
        name: "confinement",
        doc: "Restrictions that the server applies to itself after it has started (sandbox).",
        example: r#"confinement { read "/srv" }"#,
        known_as: KnownAs::NONE.apache(&["ChrootDir"]).others(&["chroot", "sandbox"]),
        set: OptionSetter::Block(OptionContext::Confinement),
        ..OPTION
    },
    OptionDefinition {
        name: "limits",
        doc: "Limits on request size, connections and slow clients. The defaults are safe on the open Internet.",
        example: r#"limits { idle-timeout "15s" }"#,
        known_as: KnownAs::NONE.apache(&["RequestReadTimeout"]).caddy(&["timeouts"]),
        set: OptionSetter::Block(OptionContext::Limits),
        ..OPTION
    },
    OptionDefinition {
        name: "cache",
        doc: "Memory cache for static files and responses.",
        example: r#"cache { memory-bytes-max "2GiB" }"#,
        known_as: KnownAs::NONE.nginx(&["open_file_cache"]).apache(&["CacheFile", "MMapFile"]),
        set: OptionSetter::Block(OptionContext::Cache),
        ..OPTION
    },
    OptionDefinition {
        name: "modules",
        doc: "Limits and threads that all WebAssembly modules share.",
        example: "modules { threads 2 }",
        set: OptionSetter::Block(OptionContext::Modules),
        ..OPTION
    },
    expressions::MAP_BLOCK,
    expressions::SECRET,
    OptionDefinition {
        name: "include",
        parameters: &[one("file", ValueKind::FileGlob)],
        repeatable: true,
        doc: "Reads other files as if their content stood here, at the top level or in any block. With a `*` in a part of \
              the path, all matching files are read, sorted by name; there may be none. Included files may include \
              others, up to 16 deep, but not themselves.",
        example: r#"include "sites/*.kdl""#,
        known_as: KnownAs::NONE.nginx(&["include"]).apache(&["Include", "IncludeOptional"]).caddy(&["import"]),
        set: OptionSetter::Include,
        ..OPTION
    },
    OptionDefinition {
        name: "snippet",
        parameters: &[one("name", ValueKind::Name), any("parameter", ValueKind::Name)],
        repeatable: true,
        is_block_optional: true,
        doc: "Options that `use` inserts elsewhere. In texts, `{param.NAME}` is the value of a parameter. A text that is \
              nothing else takes the value as it is, such as a number. Snippets of included files can be used too.",
        example: r#"snippet "cached" "age" { cache-control "*" "max-age={param.age}" }"#,
        known_as: KnownAs::NONE.apache(&["Macro"]).caddy(&["snippet", "import-args"]),
        set: OptionSetter::Reuse,
        ..OPTION
    },
    OptionDefinition {
        name: "use",
        parameters: &[one("name", ValueKind::Name), any("value", ValueKind::Text)],
        repeatable: true,
        doc: "Inserts the options of a `snippet`, with values for its parameters, at the top level or in any block.",
        example: r#"use "cached" "3600""#,
        known_as: KnownAs::NONE.apache(&["Use"]).caddy(&["import"]),
        set: OptionSetter::Reuse,
        ..OPTION
    },
];

/// Options of `site`.
pub(super) static SITE: &[OptionDefinition] = &[
    OptionDefinition {
        name: "listen",
        parameters: &[
            many("address", ValueKind::Listen),
            property("mode", ValueKind::Mode),
            property("tls", ValueKind::Flag),
            property("proxy-protocol", ValueKind::Flag),
        ],
        repeatable: true,
        is_block_optional: false,
        default: r#"listen 80"#,
        doc: "Addresses and ports on which the site listens. A port alone means all IPv4 and IPv6 addresses; \
              `\"127.0.0.1:8080\"` and `\"[::1]:8080\"` are single addresses. Connections to one go to the sites that \
              name it, and only the others to those of the port alone. `\"unix:/run/tailcoat.sock\"` is a Unix socket with the permissions `mode` (default 660). `\"systemd:web\"` is a socket of that name \
              which systemd has opened. `tls=on` turns on TLS; the site then needs a `certificate`. With \
              `proxy-protocol=on`, connections from `trusted-proxies` must begin with a PROXY protocol header, \
              version 1 or 2. The client address is taken from that header. Connections from other addresses are \
              served without it.",
        example: r#"listen "127.0.0.1:8080" "unix:/run/tailcoat.sock" "systemd:web" mode="666""#,
        known_as: KnownAs {
            nginx: &["listen", "ssl", "proxy_protocol"],
            apache: &["Listen", "RemoteIPProxyProtocol", "SSLEngine"],
            caddy: &["bind", "listener_wrappers", "proxy_protocol", "http_port", "https_port", "default_bind"],
            others: &["port", "server.port", "address", "accept-proxy"],
        },
        set: OptionSetter::Site(|site, values| {
            let mode = values.number("mode");
            for address in values.listens("address") {
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
        }),
    },
    OptionDefinition {
        name: "default",
        parameters: FLAG,
        default: "default off",
        doc: "Makes this the default site of its listeners. It answers requests for hosts that no other site names.",
        example: "default",
        known_as: KnownAs {
            nginx: &["default_server"],
            apache: &["_default_"],
            others: &["default-server", "default_backend"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Site(|site, values| site.default = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "body-bytes-max",
        parameters: BODY_BYTES,
        doc: "Maximum size of a request body in this site. It replaces the value in `limits`, which describes it.",
        example: r#"body-bytes-max "10MiB""#,
        known_as: KnownAs {
            nginx: &["client_max_body_size"],
            apache: &["LimitRequestBody"],
            caddy: &["request_body", "max_size"],
            others: &["max upload size"],
        },
        set: OptionSetter::Site(|site, values| site.body_bytes_max = values.body_bytes_max("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "files",
        parameters: &[
            one("path", ValueKind::PathPattern),
            property("root", ValueKind::Root),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            ROUTE_WHEN,
        ],
        repeatable: true,
        doc: "Serves static files for a part of the site. Options that you leave out of the block keep the site's \
              values. `files`, `module`, `respond`, and `forward` with a path are tried in the order of the file. \
              The site's own root follows, then `forward` without a path. `method`, `query`, `field` and `when` \
              restrict it to some requests, as for `rewrite`; others go to the next handler.",
        example: r#"files "/downloads/*" root="/srv/downloads" { browse; strip-prefix "/downloads" }"#,
        known_as: KnownAs {
            nginx: &["location", "alias"],
            apache: &["Alias", "Directory", "Location", "DirectoryMatch", "LocationMatch", "AliasMatch"],
            caddy: &["handle", "route", "file_server", "handle_path"],
            others: &["path"],
        },
        set: OptionSetter::Block(OptionContext::Files),
        ..OPTION
    },
    OptionDefinition {
        name: "forward",
        parameters: &[
            one("to", ValueKind::ForwardTarget),
            property("path", ValueKind::PathPattern),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            ROUTE_WHEN,
        ],
        repeatable: true,
        doc: "Reverse proxy: forwards requests to `\"http://HOST:PORT\"`, `\"unix:PATH\"` or a named `upstream`. \
              With `path`, it is tried in its order among `files`, `module` and `respond`. Without `path`, it gets \
              the requests that nothing else in the site answers. These are other methods, and paths without a file \
              below the site's root. WebSocket works without further options. `method`, `query`, `field` and `when` \
              restrict it to some requests, as for `rewrite`; others go to the next handler.",
        example: r#"forward "http://127.0.0.1:3000" path="/api/*""#,
        known_as: KnownAs {
            nginx: &["proxy_pass", "grpc_pass"],
            apache: &["ProxyPass", "ProxyPassReverse", "ProxyPassMatch", "ProxyMatch", "mod_proxy"],
            caddy: &["reverse_proxy", "transport"],
            others: &["proxy.reverse.url", "proxy.server", "use_backend"],
        },
        set: OptionSetter::Block(OptionContext::Forward),
        ..OPTION
    },
    OptionDefinition {
        name: "ftp",
        parameters: &[many("address", ValueKind::Listen)],
        is_block_optional: true,
        doc: "Serves the site's files over FTP on these addresses: to anonymous clients, or to `users`. The site listens for HTTP \
              only if it also has `listen`, a `root` or another handler. Access rules (`allow`, `deny`, \
              `basic-auth`) are for HTTP and cannot be combined with FTP.",
        example: r#"ftp 21 { root "/srv/ftp"; passive-ports 50000 50999 }"#,
        known_as: KnownAs::NONE.apache(&["mod_ftp", "FTP"]).others(&["anon_root", "Anonymous", "listen_port"]),
        set: OptionSetter::Block(OptionContext::Ftp),
        ..OPTION
    },
    OptionDefinition {
        name: "fastcgi",
        parameters: &[
            one("path", ValueKind::PathPattern),
            one("to", ValueKind::GatewayTarget),
            property("root", ValueKind::Root),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            ROUTE_WHEN,
        ],
        repeatable: true,
        doc: "Runs scripts through a FastCGI server such as PHP-FPM: `\"unix:PATH\"`, `\"tcp://HOST:PORT\"` or a \
              named `upstream`. A path matches if it, or a part of it that ends at a slash, fits the pattern and \
              names a file below `root`. The rest of the path becomes PATH_INFO. `root` defaults to the site's root. \
              It is tried in its order among `files`, `forward` and `respond`; its `fallback` comes last of all. A \
              site with `fastcgi` never sends the source of files with program extensions.",
        example: r#"fastcgi "*.php" "unix:/run/php/php-fpm.sock" { fallback "/index.php" }"#,
        known_as: KnownAs {
            nginx: &["fastcgi_pass", "fastcgi_split_path_info"],
            apache: &["ProxyFCGISetEnvIf", "ProxyFCGIBackendType", "FcgidWrapper", "mod_proxy_fcgi"],
            caddy: &["php_fastcgi", "split_path", "split"],
            others: &["fastcgi.server", "fastcgi.connect", "php", "php-fpm"],
        },
        set: OptionSetter::Block(OptionContext::FastCgi),
        ..OPTION
    },
    OptionDefinition {
        name: "cgi",
        parameters: &[
            one("path", ValueKind::PathPattern),
            property("root", ValueKind::Root),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            ROUTE_WHEN,
        ],
        repeatable: true,
        doc: "Runs a program for each request (CGI/1.1). Paths match as for `fastcgi`. Files must be executable \
              unless you set an `interpreter`.",
        example: r#"cgi "/cgi-bin/*" root="/usr/lib/cgi-bin" { strip-prefix "/cgi-bin" }"#,
        known_as: KnownAs {
            apache: &["ScriptAlias", "ScriptAliasMatch", "ScriptSock", "ExecCGI", "VirtualScriptAlias", "mod_cgi"],
            caddy: &["cgi"],
            others: &["cgi.assign", "mod_cgi", "cgi-bin", "file.custom-handler"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Block(OptionContext::Cgi),
        ..OPTION
    },
    OptionDefinition {
        name: "scgi",
        parameters: &[
            one("path", ValueKind::PathPattern),
            one("to", ValueKind::GatewayTarget),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            ROUTE_WHEN,
        ],
        repeatable: true,
        doc: "Forwards matching paths to an application over SCGI.",
        example: r#"scgi "/app/*" "unix:/run/app.sock" { application "/app" }"#,
        known_as: KnownAs::NONE.nginx(&["scgi_pass"]).apache(&["SCGIMount"]).others(&["scgi.server"]),
        set: OptionSetter::Block(OptionContext::Scgi),
        ..OPTION
    },
    OptionDefinition {
        name: "uwsgi",
        parameters: &[
            one("path", ValueKind::PathPattern),
            one("to", ValueKind::GatewayTarget),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            ROUTE_WHEN,
        ],
        repeatable: true,
        doc: "Forwards matching paths to an application over the uwsgi protocol.",
        example: r#"uwsgi "*" "unix:/run/uwsgi/app.sock""#,
        known_as: KnownAs::NONE.nginx(&["uwsgi_pass"]).apache(&["uWSGIHandler"]),
        set: OptionSetter::Block(OptionContext::Uwsgi),
        ..OPTION
    },
    OptionDefinition {
        name: "module",
        parameters: &[
            one("path", ValueKind::PathPattern),
            one("file", ValueKind::File),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            ROUTE_WHEN,
        ],
        repeatable: true,
        doc: "Runs a WebAssembly module for matching paths: a component of the world `wasi:http/proxy` (WASI 0.2). \
              Each request gets its own instance. The module may do only what the block grants.",
        example: r#"module "/shop/*" "/srv/shop.wasm" { environment "SHOP_NAME" "Fish & Co" }"#,
        known_as: KnownAs {
            nginx: &["load_module", "js_content"],
            apache: &["LoadModule"],
            others: &["wasm", "wasm_modules", "spin"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Block(OptionContext::Module),
        ..OPTION
    },
    OptionDefinition {
        name: "respond",
        parameters: &[
            one("path", ValueKind::PathPattern),
            one("status", ValueKind::Status { min: 200, max: 599 }),
            optional("body", ValueKind::Text),
            property("type", ValueKind::MediaType),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            ROUTE_WHEN,
        ],
        repeatable: true,
        doc: "Sends a fixed response. `type` defaults to `\"text/plain; charset=utf-8\"`.",
        example: r#"respond "/healthz" 200 "ok" type="text/plain""#,
        known_as: KnownAs::NONE.nginx(&["return"]).caddy(&["respond", "abort"]).others(&["static_response"]),
        set: OptionSetter::Site(|site, values| {
            let respond = RespondConfig {
                status: values.status("status").unwrap_or(Status::OK),
                body: values.text("body").unwrap_or_default(),
                content_type: values.text("type").unwrap_or_else(|| "text/plain; charset=utf-8".into()),
            };
            let path = values.path_pattern("path").unwrap_or(PathPattern::Any);
            let handler = HandlerConfig::Respond(respond);
            site.routes.push(RouteConfig { path, conditions: conditions(values), handler });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "connection-rate-max",
        parameters: &[
            one("size", ValueKind::Size { min: 1_024, max: 1 << 40 }),
            property("after", ValueKind::Size { min: 0, max: 1 << 50 }),
        ],
        doc: "Maximum rate of responses on a connection, in bytes a second. All responses of an HTTP/2 or HTTP/3 \
              connection share it. Behind a trusted proxy, all connections of a client's address share it. The first \
              bytes of each response, as many as `after` says, are sent without this limit. Files of such a site are \
              sent by copying, which takes more CPU time.",
        example: r#"connection-rate-max "1MiB" after="10MiB""#,
        known_as: KnownAs {
            nginx: &["limit_rate", "limit_rate_after"],
            apache: &["mod_ratelimit", "rate-limit"],
            others: &["server.connection-kbytes-per-second", "set-bandwidth-limit"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Site(|site, values| {
            site.rates.connection_max = Some(values.integer("size"));
            site.rates.free_bytes = values.integer("after");
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "site-rate-max",
        parameters: &[one("size", ValueKind::Size { min: 1_024, max: 1 << 40 })],
        doc: "Maximum rate of all responses of the site together, on all workers, in bytes a second.",
        example: r#"site-rate-max "50MiB""#,
        known_as: KnownAs::NONE.others(&["server.kbytes-per-second"]),
        set: OptionSetter::Site(|site, values| site.rates.site_max = Some(values.integer("size"))),
        ..OPTION
    },
    OptionDefinition {
        name: "route-order",
        parameters: &[one("order", ValueKind::Choice(&["file", "specific"]))],
        default: r#"route-order "file""#,
        doc: "Order in which handlers with a path are tried. `file` is the order of the file. With `specific`, the most specific \
              comes first, as in the Gateway API of Kubernetes. The path counts first: exact, then the longest `\"/a/*\"`, \
              then regular expressions, then the longest `\"*.a\"`, then `\"*\"`. Of equal paths, handlers with `method` \
              come first, then those with `field`, `query` and `when`, then the order of the file. In both orders, the site's own root \
              and `forward` without a path come last, and a request that a handler declines goes to the next. The time to find a handler depends \
              on the length of the path, not on the number of handlers. Regular expressions that do not begin with `^` \
              and a fixed text are an exception.",
        example: r#"route-order "specific""#,
        known_as: KnownAs::NONE.nginx(&["location"]).caddy(&["order"]),
        set: OptionSetter::Site(|site, values| {
            site.orders_routes = values.text("order").as_deref() == Some("specific")
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "metrics",
        parameters: &[one("path", ValueKind::SitePath)],
        repeatable: true,
        doc: "Serves metrics of the whole server for Prometheus, as OpenMetrics or in its text format. By default \
              only clients on this machine get them. If the site can be reached from other machines, you must add \
              `deny` or `basic-auth` for the path.",
        example: r#"metrics "/metrics""#,
        known_as: KnownAs {
            nginx: &["stub_status"],
            apache: &["server-status", "ExtendedStatus"],
            caddy: &["metrics"],
            others: &["prometheus", "vhost_traffic_status", "vhost_traffic_status_zone"],
        },
        set: OptionSetter::Site(|site, values| add_status_view(site, values, StatusViewKind::Metrics)),
        ..OPTION
    },
    OptionDefinition {
        name: "status-page",
        parameters: &[one("path", ValueKind::SitePath)],
        repeatable: true,
        doc: "Serves a status page with charts of the whole server; with `?json`, the data as JSON. Access is \
              limited as for `metrics`.",
        example: r#"status-page "/status""#,
        known_as: KnownAs {
            nginx: &["stub_status", "status"],
            apache: &["server-status"],
            others: &["mod_status", "status.status-url"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Site(|site, values| add_status_view(site, values, StatusViewKind::Page)),
        ..OPTION
    },
];

/// Condition of a handler.
const ROUTE_WHEN: Parameter = property("when", ValueKind::Condition(Place::Request));

/// Adds a route to what tells of the server, unless it is `off`.
fn add_status_view(site: &mut SiteConfig, values: &Values, kind: StatusViewKind) {
    if let Some(path) = values.text("path").filter(|path| !path.is_empty()) {
        let handler = HandlerConfig::Status(StatusView { kind });
        site.routes.push(RouteConfig::new(PathPattern::Exact(path), handler));
    }
}

/// Options that all sites share and a site can replace.
pub(super) static SHARED: &[OptionDefinition] = &[
    OptionDefinition {
        name: "error-page",
        parameters: &[many("status", ValueKind::StatusRange), one("page", ValueKind::ErrorPageFile)],
        repeatable: true,
        doc: "Page sent with these error statuses: a path below the site's root, or `\"file:PATH\"` for a file \
              elsewhere. The first match is used; pages of the site come before those of all sites.",
        example: r#"error-page 403 404 "5xx" "/error.html""#,
        known_as: KnownAs {
            nginx: &["error_page", "proxy_intercept_errors", "fastcgi_intercept_errors"],
            apache: &["ErrorDocument", "ProxyErrorOverride"],
            caddy: &["handle_errors", "handle_response"],
            others: &["error-doc", "server.errorfile-prefix", "errorfile", "custom 404 page"],
        },
        set: OptionSetter::Shared(|shared, values| {
            let file = values.error_page_file("page").unwrap_or(ErrorPageFile::BelowRoot(String::new()));
            for (from, to) in values.status_ranges("status") {
                shared.error_pages.push(ErrorPageConfig { from, to, file: file.clone() });
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "access-log",
        parameters: &[
            one("target", ValueKind::LogTarget),
            property("format", ValueKind::LogFormat),
            property("when", ValueKind::Condition(Place::Response)),
            property("sample", ValueKind::Ratio),
            property("ca-file", ValueKind::File),
        ],
        doc: "Writes an access log to a file, `stdout`, `syslog`, `\"syslog:FACILITY\"` or a syslog of another \
              machine: `\"syslog+udp://HOST:514/local0\"`, `\"syslog+tcp://HOST:601\"` or \
              `\"syslog+tls://HOST:6514\"` (RFC 5424). `ca-file` is the CA of such a server; by default those of the \
              system count. Records that a syslog does not accept wait, up to `access-log-pending-bytes-max`, and \
              further ones are dropped and counted. A configuration without this option logs to `stdout`. Send SIGUSR1 \
              to reopen files after rotation. With `when`, only requests are logged whose response fulfils the \
              condition, such as `when=\"status >= 400\"`; with `sample=0.01`, a random hundredth of them. `format` is `combined` by default, which is also the fastest. A text with fields \
              in braces is your own format. If it is a JSON object, as in `#\"{{\"path\": {path}, \"status\": \
              {status}}}\"#`, Tailcoat writes the values as JSON. `binary` stores every field of the other named \
              formats; `tailcoat log convert` turns it into any of them. In a site, this option replaces the log of \
              all sites; `off` turns it off. A request that the client aborted before the response is logged with \
              status 499.",
        example: r#"access-log "/var/log/tailcoat/access.log" format="json""#,
        known_as: KnownAs {
            nginx: &["access_log", "log_format"],
            apache: &["CustomLog", "LogFormat", "TransferLog", "LogIOTrackTTFB"],
            caddy: &["log", "format", "output", "sampling"],
            others: &["accesslog.filename"],
        },
        set: OptionSetter::Shared(|shared, values| {
            let format = values.log_format("format").unwrap_or(AccessLogFormat::Combined);
            let ca_file = values.file("ca-file");
            let with_ca = |target| match target {
                AccessLogTarget::Remote(remote) => {
                    AccessLogTarget::Remote(Box::new(RemoteSyslog { ca_file: ca_file.clone(), ..*remote }))
                }
                target => target,
            };
            shared.access_log = values
                .log_target("target")
                .map(|target| target.map(|target| AccessLog { target: with_ca(target), format }));
            let sample_millionths = values.ratio("sample").map(|share| (share * 1e6).round() as u32);
            let filter = LogFilter { when: values.condition("when"), sample_millionths };
            shared.log_filter = (filter != LogFilter::default()).then_some(filter);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "log-skip",
        parameters: &[many("path", ValueKind::PathPattern)],
        repeatable: true,
        doc: "Paths that the access log leaves out, such as health checks. A site also skips the paths listed for \
              all sites. Metrics still count these requests. Patterns match the path the client requested, before \
              any `rewrite`. If more follows a script's path (`/a.php/b.css`), they match the script's path too.",
        example: r#"log-skip "/healthz" "/assets/*""#,
        known_as: KnownAs {
            nginx: &["access_log", "log_not_found"],
            apache: &["dontlog", "SetEnvIf"],
            caddy: &["log_skip", "skip_log"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Shared(|shared, values| {
            shared.unlogged.extend(values.path_patterns("path"));
        }),
        ..OPTION
    },
];
