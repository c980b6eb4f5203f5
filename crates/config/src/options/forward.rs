use std::time::Duration;

use super::{
    BODY_BYTES, FLAG, KnownAs, OPTION, OptionContext, OptionDefinition, OptionSetter, ValueKind, Values, many, one,
    property,
};
use crate::model::buffering::Buffering;
use crate::model::internal_redirects::SendfileDirectory;
use crate::model::*;

/// A time limit from a millisecond to a day.
const TIMEOUT: ValueKind = ValueKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(86_400) };

/// Buffering of messages.
const BUFFERING: ValueKind = ValueKind::Choice(&["auto", "on", "off"]);

/// Value of `Host`.
pub(super) fn forward_host(values: &Values) -> ForwardHost {
    match values.text("host").as_deref() {
        None | Some("keep") => ForwardHost::Keep,
        Some("upstream") => ForwardHost::Upstream,
        Some(host) => ForwardHost::Set(host.to_owned()),
    }
}

/// Names of fields, in lower case.
fn lower_case(values: &Values) -> Vec<Box<str>> {
    values.texts("name").into_iter().map(|name| name.to_ascii_lowercase().into()).collect()
}

/// Options of `forward` alone.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "host",
        parameters: &[one("host", ValueKind::ForwardHost)],
        default: "host keep",
        doc: "`Host` sent to the upstream. `keep` sends the client's value, `upstream` the address of the upstream's \
              first server; any other value is sent as it is.",
        example: r#"host "app.internal""#,
        known_as: KnownAs {
            nginx: &["proxy_set_header"],
            apache: &["ProxyPreserveHost"],
            caddy: &["header_up"],
            others: &["proxy.preserve-host"],
        },
        set: OptionSetter::Forward(|forward, values| {
            forward.host = forward_host(values);
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "forwarded-headers",
        parameters: &[one("which", ValueKind::Choice(&["x-forwarded", "forwarded", "both", "none", "keep"]))],
        default: "forwarded-headers x-forwarded",
        doc: "Header fields that tell the upstream who the client is and what it requested. `x-forwarded` sends \
              `X-Forwarded-For`, `X-Forwarded-Host` and `X-Forwarded-Proto`; `forwarded` sends `Forwarded` (RFC \
              7239). Values that clients send in these fields, or in others that begin with `X-Forwarded-`, are \
              dropped; `keep` passes them. Also dropped are `X-Real-IP`, `X-Client-IP`, `X-Cluster-Client-IP`, \
              `Client-IP`, `True-Client-IP`, `CF-Connecting-IP`, `CF-Connecting-IPv6`, `CF-Pseudo-IPv4`, \
              `Fastly-Client-IP`, `Fly-Client-IP` and `DO-Connecting-IP`. So are `Proxy-Client-IP`, \
              `WL-Proxy-Client-IP`, `X-Appengine-User-Ip`, `X-Appengine-Remote-Addr`, `X-Azure-ClientIP`, \
              `X-Azure-SocketIP`, `X-Envoy-External-Address`, `X-Forwarded`, `X-Nf-Client-Connection-Ip`, \
              `X-Original-Forwarded-For`, `X-Originating-IP`, `X-ProxyUser-Ip`, `X-Remote-Addr` and `X-Remote-IP`. \
              Some applications take the path from `X-Original-URL`, `X-Original-URI` or `X-Rewrite-URL`: these are \
              dropped, too. If the request comes from one of the `trusted-proxies`, all these fields pass. Tailcoat \
              then appends to the proxy's list of addresses and keeps its host and protocol. `request-header \
              \"X-Real-IP\" \"{client}\"` sets one of them.",
        example: "forwarded-headers both",
        known_as: KnownAs {
            nginx: &["proxy_set_header"],
            apache: &["ProxyAddHeaders"],
            caddy: &["trusted_proxies", "header_up"],
            others: &["proxy.header", "forwardfor", "option forwardfor"],
        },
        set: OptionSetter::Forward(|forward, values| {
            forward.client_fields = ClientFields::from_name(&values.text("which").unwrap_or_default());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "underscores-in-headers",
        parameters: FLAG,
        default: "underscores-in-headers off",
        doc: "Passes request header fields whose names contain underscores. Many applications treat `X_User` as \
              `X-User`, and some take `SCRIPT_NAME` as part of the path. Both would let clients bypass rules here, \
              so it is off by default. Fields that `request-header` sets always pass.",
        example: "underscores-in-headers on",
        known_as: KnownAs {
            nginx: &["underscores_in_headers", "ignore_invalid_headers"],
            apache: &["HttpProtocolOptions"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| forward.underscore_fields = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "pass-request-headers",
        parameters: FLAG,
        default: "pass-request-headers on",
        doc: "Passes header fields of the client to the upstream. With `off`, the upstream gets only `Host`, `Via`, the \
              length of the body, fields of `forwarded-headers`, and those that `request-header` sets. Use it for \
              upstreams of others, which must not see cookies, passwords or addresses of clients. No connection is \
              upgraded then.",
        example: "pass-request-headers off",
        known_as: KnownAs::NONE.nginx(&["proxy_pass_request_headers"]).caddy(&["header_up"]),
        set: OptionSetter::Forward(|forward, values| forward.passes_fields = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "request-trailers",
        parameters: &[many("name", ValueKind::RequestFieldName)],
        doc: "Trailer fields of requests that are passed to the upstream, in addition to `Content-Digest`, `Repr-Digest`, \
              `Digest` and `Content-MD5`. All others are dropped, because many applications treat a trailer as a \
              header field.",
        example: r#"request-trailers "X-Checksum""#,
        known_as: KnownAs::NONE.apache(&["MergeTrailers"]),
        set: OptionSetter::Forward(|forward, values| forward.intermediary.request_trailers = lower_case(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "response-trailers",
        parameters: &[many("name", ValueKind::FieldName)],
        doc: "Trailer fields of responses that are passed to clients. `Content-Digest`, `Repr-Digest`, `Digest`, \
              `Content-MD5`, `ETag`, `Server-Timing`, `grpc-status`, `grpc-message` and `grpc-status-details-bin` \
              always pass. In gRPC responses, all trailers pass except those that are never allowed there, such as \
              `Set-Cookie`.",
        example: r#"response-trailers "X-Checksum""#,
        known_as: KnownAs::NONE.nginx(&["proxy_pass_trailers", "grpc_pass_trailers"]),
        set: OptionSetter::Forward(|forward, values| forward.intermediary.response_trailers = lower_case(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "via-name",
        parameters: &[one("name", ValueKind::ProxyName)],
        default: r#"via-name "tailcoat""#,
        doc: "Name of this proxy in `Via` (RFC 9110, section 7.6.3). `via-passes-max` counts it to detect loops. \
              Give chained proxies different names if there are more of them than `via-passes-max`.",
        example: r#"via-name "edge""#,
        known_as: KnownAs::NONE.apache(&["ProxyVia"]),
        set: OptionSetter::Forward(|forward, values| {
            forward.intermediary.via_name = values.text("name").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "via-passes-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 100 })],
        default: "via-passes-max 10",
        doc: "Maximum number of times that proxies with this `via-name` may forward a request. One more is a loop, \
              and the client gets 508.",
        example: "via-passes-max 3",
        known_as: KnownAs::NONE.apache(&["ProxyMaxForwards", "LimitInternalRecursion"]).others(&["CDN-Loop"]),
        set: OptionSetter::Forward(|forward, values| forward.intermediary.via_passes_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "strip-prefix",
        parameters: &[one("prefix", ValueKind::PathPrefix)],
        doc: "Prefix removed from the path before the request is forwarded. With `\"/app\"`, the upstream gets `/a` \
              when the client requests `/app/a`. Links in responses are not changed. Letter case does not matter.",
        example: r#"strip-prefix "/app""#,
        known_as: KnownAs {
            nginx: &["proxy_pass", "rewrite"],
            apache: &["ProxyPass"],
            caddy: &["handle_path", "uri", "strip_prefix"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| forward.strip_prefix = values.text("prefix").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "upgrade",
        parameters: &[many("protocol", ValueKind::UpgradeProtocol)],
        default: r#"upgrade "websocket""#,
        doc: "Protocols to which a connection may be upgraded. After the upgrade, bytes pass both ways unchanged. \
              `off` allows none.",
        example: r#"upgrade "websocket" "tftp""#,
        known_as: KnownAs {
            nginx: &["proxy_set_header"],
            apache: &["ProxyWebsocketFallbackToProxyHttp", "upgrade"],
            caddy: &["reverse_proxy"],
            others: &["websocket", "proxy.tunnel"],
        },
        set: OptionSetter::Forward(|forward, values| {
            let protocols = values.texts("protocol").into_iter().map(|protocol| protocol.to_ascii_lowercase());
            forward.upgrades = protocols.filter(|protocol| protocol != "off").collect();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "tunnel-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"tunnel-timeout "1h""#,
        doc: "Maximum time without data in either direction on an upgraded connection (WebSocket).",
        example: r#"tunnel-timeout "5m""#,
        known_as: KnownAs {
            nginx: &["proxy_timeout", "proxy_read_timeout"],
            apache: &["ProxyWebsocketIdleTimeout"],
            caddy: &["stream_timeout"],
            others: &["timeout tunnel"],
        },
        set: OptionSetter::Forward(|forward, values| forward.tunnel_timeout = values.time()),
        ..OPTION
    },
];

/// Options of every block that forwards requests: limits of requests and responses.
pub(super) static ANSWERS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "body-bytes-max",
        parameters: BODY_BYTES,
        doc: "Maximum size of a request body that is forwarded. It replaces the value of the site or of `limits`, \
              which describes it. `auto` means no limit.",
        example: r#"body-bytes-max "100MiB""#,
        known_as: KnownAs {
            nginx: &["client_max_body_size"],
            apache: &["LimitRequestBody"],
            caddy: &["request_body", "max_size"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| forward.body_bytes_max = values.body_bytes_max("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "retry",
        parameters: &[
            many("status", ValueKind::Status { min: 400, max: 599 }),
            property("attempts", ValueKind::Count { min: 1, max: 10 }),
            property("backoff", ValueKind::Duration { min: Duration::ZERO, max: Duration::from_secs(60) }),
        ],
        doc: "Sends a request again if the upstream responds with one of these statuses, up to `attempts` times \
              (default 1), each after `backoff` (default none). The client gets the last response. Only requests \
              with idempotent methods are sent again, as long as their body is still in memory. Requests whose \
              connection fails are sent to another server without this option, too; see `tries-max`.",
        example: r#"retry 502 503 attempts=2 backoff="25ms""#,
        known_as: KnownAs::NONE.others(&["retry-on"]),
        set: OptionSetter::Forward(|forward, values| {
            forward.retry = Some(Box::new(Retry {
                statuses: values.statuses("status"),
                attempts_max: values.number("attempts").unwrap_or(1) as u32,
                backoff: values.duration("backoff").unwrap_or_default(),
            }));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "first-byte-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"first-byte-timeout "1m""#,
        doc: "Maximum time until the upstream begins its response, counted from the last bytes of the request sent. \
              After it, the client gets 504.",
        example: r#"first-byte-timeout "5m""#,
        known_as: KnownAs {
            nginx: &[
                "proxy_read_timeout",
                "fastcgi_read_timeout",
                "scgi_read_timeout",
                "uwsgi_read_timeout",
                "grpc_read_timeout",
            ],
            apache: &["ProxyTimeout", "CGIDScriptTimeout", "CGIScriptTimeout"],
            caddy: &["response_header_timeout"],
            others: &["timeout server", "timeout"],
        },
        set: OptionSetter::Forward(|forward, values| forward.first_byte_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "total-timeout",
        parameters: &[one("time", TIMEOUT)],
        doc: "Maximum time from the first connection to an upstream server to the end of the response, with all tries. \
              After it, the client gets 504, or an aborted response if that has begun. A connection that changed to \
              another protocol, and a response that the cache stores, have no such limit.",
        example: r#"total-timeout "30s""#,
        set: OptionSetter::Forward(|forward, values| forward.total_timeout = Some(values.time())),
        ..OPTION
    },
    OptionDefinition {
        name: "between-bytes-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"between-bytes-timeout "1m""#,
        doc: "Maximum pause between two parts of an upstream response. After it, Tailcoat closes the client's \
              connection, because the response cannot be completed.",
        example: r#"between-bytes-timeout "10m""#,
        known_as: KnownAs {
            nginx: &[
                "proxy_read_timeout",
                "fastcgi_read_timeout",
                "scgi_read_timeout",
                "uwsgi_read_timeout",
                "grpc_read_timeout",
                "proxy_send_timeout",
                "fastcgi_send_timeout",
            ],
            apache: &["ProxyTimeout"],
            caddy: &["read_timeout", "write_timeout"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| forward.between_bytes_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "abort-on-close",
        parameters: FLAG,
        default: "abort-on-close on",
        doc: "Aborts the upstream request when the client closes its connection before the response is complete. \
              Tailcoat does this by closing the upstream's connection. With `off`, a client that has only closed its \
              sending side still gets the response. A script whose response has no content (HEAD, 204, 205, 304, a \
              local redirect) and that has not closed its output is aborted one second after the client has \
              disconnected.",
        example: "abort-on-close off",
        known_as: KnownAs {
            nginx: &["proxy_ignore_client_abort", "fastcgi_ignore_client_abort"],
            others: &["abortonclose"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| forward.abort_with_client = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "response-head-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 1 << 10, max: 1 << 20 })],
        default: r#"response-head-bytes-max "64KiB""#,
        doc: "Maximum size of a response's status line and header fields, and of its trailers. If the upstream sends \
              more, the client gets 502.",
        example: r#"response-head-bytes-max "16KiB""#,
        known_as: KnownAs {
            nginx: &["proxy_buffer_size", "fastcgi_buffer_size"],
            apache: &["LimitRequestFieldSize", "ProxyIOBufferSize"],
            caddy: &["max_response_header"],
            others: &["tune.bufsize"],
        },
        set: OptionSetter::Forward(|forward, values| forward.response_head_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "response-header-fields-max",
        parameters: &[one("count", ValueKind::Count { min: 1, max: 10_000 })],
        default: "response-header-fields-max 256",
        doc: "Maximum number of header field lines in an upstream response.",
        example: "response-header-fields-max 1000",
        known_as: KnownAs::NONE.apache(&["LimitRequestFields"]).others(&["tune.http.maxhdr"]),
        set: OptionSetter::Forward(|forward, values| forward.response_fields_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "request-buffering",
        parameters: &[one("when", BUFFERING)],
        default: "request-buffering auto",
        doc: "Receives the whole request body before forwarding it, so that slow clients hold no connection to the \
              upstream. `auto` means `on` in `fastcgi`, `cgi`, `scgi` and `uwsgi`, and for upstreams with \
              `connections-max`; otherwise `off`. gRPC is never buffered. A chunked body gets a Content-Length, \
              which scripts need. A buffered idempotent request can be retried on another server. A body longer than \
              `buffer-memory-bytes-max` and `buffer-file-bytes-max` together gets 413.",
        example: "request-buffering off",
        known_as: KnownAs {
            nginx: &[
                "proxy_request_buffering",
                "fastcgi_request_buffering",
                "uwsgi_request_buffering",
                "scgi_request_buffering",
            ],
            apache: &["proxy-sendcl"],
            caddy: &["request_buffers"],
            others: &["proxy-request-buffering", "http-buffer-request"],
        },
        set: OptionSetter::Forward(|forward, values| {
            forward.buffers.requests = Buffering::from_name(&values.text("when").unwrap_or_default());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "response-buffering",
        parameters: &[one("when", BUFFERING)],
        default: "response-buffering auto",
        doc: "Reads the response ahead of a slow client, so that the upstream's connection is free again. `auto` \
              means the same as for `request-buffering`. Nothing is buffered while the client keeps up. Upgraded \
              connections, responses of type `text/event-stream` or `application/grpc`, and responses with \
              `X-Accel-Buffering: no` are never buffered. When the buffer is full, the upstream waits for the \
              client.",
        example: "response-buffering off",
        known_as: KnownAs {
            nginx: &["proxy_buffering", "fastcgi_buffering", "uwsgi_buffering", "scgi_buffering", "X-Accel-Buffering"],
            apache: &["flushpackets"],
            caddy: &["flush_interval", "response_buffers"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| {
            forward.buffers.responses = Buffering::from_name(&values.text("when").unwrap_or_default());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "buffer-memory-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: 1 << 30 })],
        default: r#"buffer-memory-bytes-max "64KiB""#,
        doc: "Memory for one buffered request or response. The rest goes to a file; up to 128 KiB more may be on the \
              way there.",
        example: r#"buffer-memory-bytes-max "16KiB""#,
        known_as: KnownAs {
            nginx: &["client_body_buffer_size", "proxy_buffers", "fastcgi_buffers", "proxy_busy_buffers_size"],
            apache: &["ProxyIOBufferSize"],
            caddy: &["request_buffers", "response_buffers"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| forward.buffers.memory_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "buffer-file-bytes-max",
        parameters: &[one("size", ValueKind::SizeOrAuto { min: 0, max: 1 << 50 })],
        default: "buffer-file-bytes-max auto",
        doc: "Maximum size of a buffered request or response in a file of `buffer-directory`; 0 uses no file. `auto` \
              is 1 GiB, or `body-bytes-max` if that is larger.",
        example: r#"buffer-file-bytes-max "100MiB""#,
        known_as: KnownAs::NONE.nginx(&["proxy_max_temp_file_size", "fastcgi_max_temp_file_size"]),
        set: OptionSetter::Forward(|forward, values| forward.buffers.file_bytes_max = values.number_or_auto("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "x-accel-redirect",
        parameters: &[many("path", ValueKind::PathPattern)],
        repeatable: true,
        doc: "Paths of the site that responses may name in `X-Accel-Redirect`. Such a response is not sent. The client \
              gets the response for that path, with its ranges and conditions, and with `Content-Type`, \
              `Content-Disposition`, `Cache-Control`, `Expires` and `Set-Cookie` of the upstream. All rules apply to \
              the path. Use `internal` to hide it from clients. Without this option, and for other paths, the field is \
              removed, and a warning logged. At most 10 such redirects follow each other; then the client gets 500.",
        example: r#"x-accel-redirect "/protected/*""#,
        known_as: KnownAs {
            nginx: &["X-Accel-Redirect"],
            caddy: &["intercept", "handle_response"],
            others: &["X-Accel-Mapping"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| {
            forward.internal_redirects.accel.extend(values.path_patterns("path"));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "x-sendfile",
        parameters: &[one("directory", ValueKind::File), one("path", ValueKind::PathPrefix)],
        repeatable: true,
        doc: "Directory whose files responses may name in `X-Sendfile`, and the path of the site that has these files. \
              The client gets the file as with `x-accel-redirect`. A `files` for the path serves it, so that the file is \
              never outside its `root`.",
        example: r#"x-sendfile "/srv/files" "/protected""#,
        known_as: KnownAs {
            apache: &["XSendFile", "XSendFilePath", "mod_xsendfile"],
            others: &["X-Sendfile", "x-sendfile-docroot", "fastcgi.x-sendfile"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| {
            if let (Some(directory), Some(path)) = (values.file("directory"), values.text("path")) {
                forward.internal_redirects.sendfile.push(SendfileDirectory { directory, path });
            }
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "cache",
        is_block_optional: true,
        doc: "Caches responses of the upstream (RFC 9111). Responses stay as long as their `Cache-Control` allows. \
              Without this option, none is cached. Without a block, `cache` uses the defaults.",
        example: r#"cache { stale-if-error "1d" }"#,
        known_as: KnownAs {
            nginx: &["proxy_cache", "proxy_cache_path", "fastcgi_cache", "fastcgi_cache_path", "proxy_store"],
            apache: &["CacheEnable", "CacheQuickHandler", "CacheRoot", "mod_cache"],
            caddy: &["cache"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Block(OptionContext::Caching),
        ..OPTION
    },
];
