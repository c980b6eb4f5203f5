use std::time::Duration;

use super::{BODY_BYTES, FLAG, Kind, OPTION, OptionDefinition, Place, Set, Values, many, one};
use crate::config::buffering::Buffering;
use crate::config::model::*;
use crate::config::value::Value;

/// A time limit from a millisecond to a day.
const TIMEOUT: Kind = Kind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(86_400) };

/// Buffering of messages.
const BUFFERING: Kind = Kind::Choice(&["auto", "on", "off"]);

/// Names of fields, in lower case.
fn lower_case(values: &Values) -> Vec<Box<str>> {
    let names = values.all("name").filter_map(|(value, _)| match value {
        Value::Text(name) => Some(name.to_ascii_lowercase().into()),
        _ => None,
    });
    names.collect()
}

/// What stands in `forward` alone.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "host",
        parameters: &[one("host", Kind::ForwardHost)],
        default: "host keep",
        doc: "What the server is told as `Host`: with `keep` what the client's request says; with `upstream` the \
              address of the upstream's first server; else this name.",
        example: r#"host "app.internal""#,
        known_as: &["ProxyPreserveHost", "proxy.preserve-host", "header_up", "proxy_set_header"],
        set: Set::Forward(|forward, values| {
            forward.host = match values.text("host").as_deref() {
                None | Some("keep") => ForwardHost::Keep,
                Some("upstream") => ForwardHost::Upstream,
                Some(host) => ForwardHost::Set(host.to_owned()),
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "client-fields",
        parameters: &[one("which", Kind::Choice(&["x-forwarded", "forwarded", "both", "none", "keep"]))],
        default: "client-fields x-forwarded",
        doc: "How the server is told who the client is and what it asked for: by `X-Forwarded-For`, `-Host` and \
              `-Proto`, by `Forwarded` (RFC 7239), by `both` or `none`. What clients write there themselves, or in other \
              fields that begin with `X-Forwarded-`, is not passed on, except with `keep`. The same holds for other \
              fields that tell a client's address: `X-Real-IP`, `X-Client-IP`, `X-Cluster-Client-IP`, `Client-IP`, \
              `True-Client-IP`, `CF-Connecting-IP`, `CF-Connecting-IPv6`, `Fastly-Client-IP`, `Proxy-Client-IP`, \
              `WL-Proxy-Client-IP`, `X-Envoy-External-Address` and `X-Original-Forwarded-For`. It also holds for \
              `X-Original-URL` and `X-Rewrite-URL`, from which some applications take the path. If the request comes from one of the `trusted-proxies`, these fields pass, the list goes on from what such proxies have \
              written, and what they say of host and protocol stays. `request-header \"X-Real-IP\" \"{client}\"` sets \
              one.",
        example: "client-fields both",
        known_as: &["ProxyAddHeaders", "proxy.header", "option forwardfor", "trusted_proxies"],
        set: Set::Forward(|forward, values| {
            forward.client_fields = ClientFields::from_name(&values.text("which").unwrap_or_default());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "underscore-fields",
        parameters: FLAG,
        default: "underscore-fields off",
        doc: "Whether fields of clients whose names have underscores are passed on. Applications take `X_User` for \
              `X-User`, and some take `SCRIPT_NAME` for the front of the path, which leads around what guards paths here. \
              Those that `request-header` sets are passed on.",
        example: "underscore-fields on",
        known_as: &["underscores_in_headers", "ignore_invalid_headers"],
        set: Set::Forward(|forward, values| forward.underscore_fields = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "request-trailers",
        parameters: &[many("name", Kind::RequestFieldName)],
        doc: "Trailer fields of requests that the server gets, besides `Content-Digest`, `Repr-Digest`, `Digest` and \
              `Content-MD5`. No others are passed on: many applications take a trailer for a field of the head.",
        example: r#"request-trailers "X-Checksum""#,
        known_as: &["MergeTrailers", "proxy_pass_trailers"],
        set: Set::Forward(|forward, values| forward.intermediary.request_trailers = lower_case(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "response-trailers",
        parameters: &[many("name", Kind::FieldName)],
        doc: "Trailer fields of responses that clients get, besides `Content-Digest`, `Repr-Digest`, `Digest`, \
              `Content-MD5`, `ETag`, `Server-Timing`, `grpc-status`, `grpc-message` and `grpc-status-details-bin`. Of \
              responses to gRPC requests, all pass except those that no trailer may be, such as `Set-Cookie`.",
        example: r#"response-trailers "X-Checksum""#,
        known_as: &["proxy_pass_trailers"],
        set: Set::Forward(|forward, values| forward.intermediary.response_trailers = lower_case(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "via-name",
        parameters: &[one("name", Kind::ProxyName)],
        default: r#"via-name "tailcoat""#,
        doc: "The name of this proxy in `Via` (RFC 9110, section 7.6.3). `via-passes-max` counts it. Give proxies that \
              stand one behind the other names of their own if together they are more than `via-passes-max`.",
        example: r#"via-name "edge""#,
        known_as: &["ProxyVia", "http-request set-header Via"],
        set: Set::Forward(|forward, values| {
            forward.intermediary.via_name = values.text("name").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "via-passes-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 100 })],
        default: "via-passes-max 10",
        doc: "How often proxies of this `via-name` may have forwarded a request. One more is a loop: the request is \
              answered with 508.",
        example: "via-passes-max 3",
        known_as: &["CDN-Loop", "ProxyMaxForwards", "LimitInternalRecursion"],
        set: Set::Forward(|forward, values| {
            forward.intermediary.via_passes_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "strip-prefix",
        parameters: &[one("prefix", Kind::PathPrefix)],
        doc: "Taken from the front of paths before the server is asked: with `\"/app\"`, it is asked for `/a` where a \
              client asks for `/app/a`. Links in its answers are not changed.",
        example: r#"strip-prefix "/app""#,
        known_as: &["handle_path", "uri strip_prefix", "proxy_pass"],
        set: Set::Forward(|forward, values| forward.strip_prefix = values.text("prefix").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "upgrade",
        parameters: &[many("protocol", Kind::UpgradeProtocol)],
        default: r#"upgrade "websocket""#,
        doc: "Protocols that a connection may change to. After that, bytes go both ways unseen; `off` allows none.",
        example: r#"upgrade "websocket" "tftp""#,
        known_as: &["websocket", "proxy.tunnel", "ProxyWebsocket"],
        set: Set::Forward(|forward, values| {
            let protocols = values.all("protocol").filter_map(|(value, _)| match value {
                Value::Text(protocol) => Some(protocol.to_ascii_lowercase()),
                _ => None,
            });
            forward.upgrades = protocols.filter(|protocol| protocol != "off").collect();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "tunnel-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"tunnel-timeout "1h""#,
        doc: "How long both ends of an upgraded connection may be silent.",
        example: r#"tunnel-timeout "5m""#,
        known_as: &["timeout tunnel", "stream_timeout"],
        set: Set::Forward(|forward, values| forward.tunnel_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
];

/// What stands wherever others answer: limits of requests and of answers.
pub(super) static ANSWERS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "body-bytes-max",
        parameters: BODY_BYTES,
        doc: "Size of a request's content that is forwarded here, instead of what the site or `limits` says; see there. \
              `auto` is no limit.",
        example: r#"body-bytes-max "100MiB""#,
        known_as: &["client_max_body_size", "LimitRequestBody", "request_body", "max_size"],
        set: Set::Forward(|forward, values| forward.body_bytes_max = values.body_bytes_max("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "first-byte-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"first-byte-timeout "1m""#,
        doc: "How long the server may take to answer, from the last piece of the request that was sent; then the client \
              gets 504.",
        example: r#"first-byte-timeout "5m""#,
        known_as: &[
            "proxy_read_timeout",
            "response_header_timeout",
            "ProxyTimeout",
            "timeout server",
            "fastcgi_read_timeout",
            "CGIDScriptTimeout",
        ],
        set: Set::Forward(|forward, values| forward.first_byte_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "between-bytes-timeout",
        parameters: &[one("time", TIMEOUT)],
        default: r#"between-bytes-timeout "1m""#,
        doc: "How long the server may be silent in the middle of an answer; then the client's connection is closed, for \
              the answer can't be completed.",
        example: r#"between-bytes-timeout "10m""#,
        known_as: &["proxy_read_timeout", "read_timeout"],
        set: Set::Forward(|forward, values| {
            forward.between_bytes_timeout = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "abort-with-client",
        parameters: FLAG,
        default: "abort-with-client on",
        doc: "Whether a request is given up, and the server told so by a closed connection, when the client closes its \
              own before there is an answer, or while more of it is waited for, whatever it has sent behind the \
              request. With `off`, a client that has only ended its sending side is answered too.",
        example: "abort-with-client off",
        known_as: &["proxy_ignore_client_abort", "abortonclose"],
        set: Set::Forward(|forward, values| forward.abort_with_client = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "response-head-bytes-max",
        parameters: &[one("size", Kind::Size { min: 1 << 10, max: 1 << 20 })],
        default: r#"response-head-bytes-max "64KiB""#,
        doc: "Bytes of a response's status line and fields, and of its trailers; a server that sends more is answered \
              for with 502.",
        example: r#"response-head-bytes-max "16KiB""#,
        known_as: &["proxy_buffer_size", "LimitInternalRecursion"],
        set: Set::Forward(|forward, values| {
            forward.response_head_bytes_max = values.number("size").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "response-fields-max",
        parameters: &[one("count", Kind::Count { min: 1, max: 10_000 })],
        default: "response-fields-max 256",
        doc: "Field lines in a response's head.",
        example: "response-fields-max 1000",
        set: Set::Forward(|forward, values| {
            forward.response_fields_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "request-buffering",
        parameters: &[one("when", BUFFERING)],
        default: "request-buffering auto",
        doc: "Whether the content of a request is received whole before the upstream is asked, so that slow clients hold \
              no connection of the upstream. `auto` is on in `fastcgi`, `cgi`, `scgi` and `uwsgi` and for upstreams with a \
              `connections-max`, and off for others. gRPC is never buffered. Chunked content gets a Content-Length, which \
              scripts need. A request that is buffered whole can be sent to another server if it is idempotent. \
              Content longer than `buffer-memory-bytes-max` and `buffer-file-bytes-max` together is answered with 413.",
        example: "request-buffering off",
        known_as: &[
            "proxy_request_buffering",
            "fastcgi_request_buffering",
            "request_buffers",
            "proxy-request-buffering",
        ],
        set: Set::Forward(|forward, values| {
            forward.buffers.requests = Buffering::from_name(&values.text("when").unwrap_or_default());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "response-buffering",
        parameters: &[one("when", BUFFERING)],
        default: "response-buffering auto",
        doc: "Whether a response is read ahead of a client that takes it slowly, so that the upstream's connection is free \
              again. `auto` means the same as for `request-buffering`. As long as the client keeps up, nothing is \
              buffered. Responses with the content type `text/event-stream` or `application/grpc`, responses with the \
              field `X-Accel-Buffering: no`, and upgraded connections are never buffered. Where a buffer is full, the \
              upstream waits for the client.",
        example: "response-buffering off",
        known_as: &["proxy_buffering", "fastcgi_buffering", "flush_interval", "response_buffers"],
        set: Set::Forward(|forward, values| {
            forward.buffers.responses = Buffering::from_name(&values.text("when").unwrap_or_default());
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "buffer-memory-bytes-max",
        parameters: &[one("size", Kind::Size { min: 0, max: 1 << 30 })],
        default: r#"buffer-memory-bytes-max "64KiB""#,
        doc: "Bytes of a buffered request or response in memory. What is longer goes to a file; up to 128 KiB are on their \
              way there.",
        example: r#"buffer-memory-bytes-max "16KiB""#,
        known_as: &["client_body_buffer_size", "proxy_buffers", "fastcgi_buffers"],
        set: Set::Forward(|forward, values| {
            forward.buffers.memory_bytes_max = values.number("size").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "buffer-file-bytes-max",
        parameters: &[one("size", Kind::SizeOrAuto { min: 0, max: 1 << 50 })],
        default: "buffer-file-bytes-max auto",
        doc: "Bytes of a buffered request or response in a file of `buffer-directory`; 0 is no file. `auto` is 1 GiB, or \
              `body-bytes-max` if that is larger.",
        example: r#"buffer-file-bytes-max "100MiB""#,
        known_as: &["proxy_max_temp_file_size", "fastcgi_max_temp_file_size"],
        set: Set::Forward(|forward, values| forward.buffers.file_bytes_max = values.number_or_auto("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "cache",
        is_block_optional: true,
        doc: "Answers are kept as long as they say, and served again without asking the server (RFC 9111). Without this \
              option, none is. Without a block, `cache` uses the defaults.",
        example: r#"cache { stale-if-error "1d" }"#,
        known_as: &["proxy_cache", "CacheEnable", "proxy_cache_path", "fastcgi_cache"],
        set: Set::Block(Place::Caching),
        ..OPTION
    },
];
