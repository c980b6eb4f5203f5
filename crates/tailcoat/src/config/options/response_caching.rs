use std::time::Duration;

use wire::http::Status;

use super::{FLAG, Kind, OPTION, OptionDefinition, Set, any, many, one};
use crate::config::response_caching::{NamePattern, SetCookie};
use crate::config::value::{Value, Values};

const GIB: u64 = 1 << 30;

/// A time from nothing to a year.
const AGE: Kind = Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(365 * 86_400) };

/// Statuses that `default-age` is for if it names none.
const DEFAULT_AGE_STATUSES: [Status; 3] = [Status::OK, Status::MOVED_PERMANENTLY, Status::PERMANENT_REDIRECT];

/// What stands in `cache` of a `forward`.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "object-bytes-max",
        parameters: &[one("size", Kind::Size { min: 0, max: GIB })],
        default: r#"object-bytes-max "1MiB""#,
        doc: "Content of a response that is stored; a longer one is passed on. All responses together share \
              `memory-bytes-max` with files.",
        example: r#"object-bytes-max "16MiB""#,
        known_as: &["CacheMaxFileSize", "maximum_object_size", "max-object-size"],
        set: Set::Caching(|caching, values| caching.object_bytes_max = values.number("size").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "default-age",
        parameters: &[one("time", AGE), any("status", Kind::Status { min: 200, max: 599 })],
        repeatable: true,
        doc: "How long a response is fresh that does not say so itself, by `Cache-Control` or `Expires`; without \
              statuses, one with 200, 301 or 308. Given, responses with these statuses are also stored that else would \
              not be. Not for paths that servers may read as shorter ones: with a semicolon, or one of `;?#/` or a \
              control byte encoded.",
        example: r#"default-age "10s" 404 410"#,
        known_as: &["proxy_cache_valid", "default_ttl", "CacheDefaultExpire", "ttl"],
        set: Set::Caching(|caching, values| {
            let age = values.duration("time").unwrap_or_default();
            let named = values.all("status").filter_map(|(value, _)| match value {
                Value::Status(status) => Some(*status),
                _ => None,
            });
            let named: Vec<_> = named.collect();
            let statuses = if named.is_empty() { &DEFAULT_AGE_STATUSES[..] } else { &named };
            caching.default_ages.extend(statuses.iter().map(|status| (*status, age)));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "heuristic",
        parameters: FLAG,
        default: "heuristic off",
        doc: "Whether a response that only has `Last-Modified` is held fresh for a tenth of its age then, at most for \
              a day (RFC 9111, section 4.2.2).",
        example: "heuristic",
        known_as: &["CacheLastModifiedFactor", "refresh_pattern"],
        set: Set::Caching(|caching, values| caching.heuristic = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "stale-while-revalidate",
        parameters: &[one("time", AGE)],
        default: r#"stale-while-revalidate "0s""#,
        doc: "How long a response that became stale is served while one request asks the server for a new one, unless \
              the response itself says how long, or forbids it.",
        example: r#"stale-while-revalidate "1m""#,
        known_as: &["proxy_cache_background_update", "grace", "beresp.grace"],
        set: Set::Caching(|caching, values| {
            caching.stale_while_revalidate = values.duration("time").unwrap_or_default();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "stale-if-error",
        parameters: &[one("time", AGE)],
        default: r#"stale-if-error "0s""#,
        doc: "How long a response that became stale is served if the server can't be reached, or answers with 500, 502, \
              503 or 504, unless the response itself says how long, or forbids it.",
        example: r#"stale-if-error "1d""#,
        known_as: &["proxy_cache_use_stale", "CacheStaleOnError", "beresp.keep"],
        set: Set::Caching(|caching, values| caching.stale_if_error = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "request-directives",
        parameters: FLAG,
        default: "request-directives off",
        doc: "Whether `Cache-Control` and `Pragma` of requests are obeyed (RFC 9111, section 5.2.1). By default they are \
              not, so that nobody makes the server work by pressing a key.",
        example: "request-directives",
        known_as: &["CacheIgnoreCacheControl", "ignore_client_no_cache"],
        set: Set::Caching(|caching, values| caching.request_directives = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "set-cookie",
        parameters: &[one("what", Kind::Choice(&["refuse", "drop", "keep"]))],
        default: "set-cookie refuse",
        doc: "What is done with responses that set cookies and may be stored: `refuse` to store them, since a cookie is \
              hardly ever for all; `drop` the cookie from what is stored; or `keep` it.",
        example: "set-cookie drop",
        known_as: &["proxy_ignore_headers", "CacheIgnoreHeaders"],
        set: Set::Caching(|caching, values| {
            caching.set_cookie = match values.text("what").as_deref() {
                Some("drop") => SetCookie::Drop,
                Some("keep") => SetCookie::Keep,
                _ => SetCookie::Refuse,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "key-host",
        parameters: FLAG,
        default: "key-host on",
        doc: "Whether the same path on different hosts is another response. `off` is only for servers whose answers \
              do not depend on the host they are asked for; tell them one by `host`, or a client can put another into \
              what all get.",
        example: "key-host off",
        known_as: &["proxy_cache_key", "hash_data"],
        set: Set::Caching(|caching, values| caching.key_host = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "key-parameters",
        parameters: &[many("name", Kind::Text)],
        doc: "Parameters of queries that make a difference: URLs that differ in others only share a response. Without \
              this, all do but those of `ignore-parameters`. So do those with other characters in their names than \
              letters, digits, `_` and `-`, which may be another spelling of one that is named here.",
        example: r#"key-parameters "page" "q""#,
        known_as: &["proxy_cache_key", "hash_data"],
        set: Set::Caching(|caching, values| caching.key_parameters = patterns(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "key-fields",
        parameters: &[many("name", Kind::FieldName)],
        doc: "Fields of requests that make a difference, besides those that a response names in its `Vary`. What \
              depends on a field that is written here (X-Forwarded-For, Forwarded, Via) is not stored.",
        example: r#"key-fields "Accept-Language""#,
        known_as: &["proxy_cache_key", "hash_data"],
        set: Set::Caching(|caching, values| caching.key_fields = texts(values).map(Into::into).collect()),
        ..OPTION
    },
    OptionDefinition {
        name: "key-cookies",
        parameters: &[many("name", Kind::Text)],
        doc: "Cookies of requests that make a difference. What is in others must not, unless a response names `Cookie` \
              in its `Vary`, or is `private`.",
        example: r#"key-cookies "currency""#,
        known_as: &["proxy_cache_key", "hash_data"],
        set: Set::Caching(|caching, values| caching.key_cookies = texts(values).map(Into::into).collect()),
        ..OPTION
    },
    OptionDefinition {
        name: "ignore-parameters",
        parameters: &[many("name", Kind::Text)],
        doc: "Parameters of queries that make no difference: URLs that differ only in them share a response. `\"utm_*\"` \
              is all that begin so, and `\"*\"` all. The server gets them all the same.",
        example: r#"ignore-parameters "utm_*" "fbclid""#,
        known_as: &["proxy_cache_key", "CacheIgnoreQueryString", "hash_data"],
        set: Set::Caching(|caching, values| caching.ignored_parameters = patterns(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "bypass-cookies",
        parameters: &[many("name", Kind::Text)],
        doc: "Cookies whose requests go to the server, past the cache: those of people who are logged in. `\"session*\"` \
              is all that begin so.",
        example: r#"bypass-cookies "wordpress_logged_in_*" "comment_author_*""#,
        known_as: &["proxy_cache_bypass", "proxy_no_cache", "fastcgi_cache_bypass"],
        set: Set::Caching(|caching, values| caching.bypass_cookies = patterns(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "targeted-fields",
        parameters: &[many("name", Kind::FieldName)],
        default: r#"targeted-fields "CDN-Cache-Control""#,
        doc: "Fields of responses that replace `Cache-Control` and `Expires` for this cache (RFC 9213). The first one that \
              is present and valid counts. With `\"off\"`, no field does.",
        example: r#"targeted-fields "Example-Cache-Control" "CDN-Cache-Control""#,
        known_as: &["surrogate-control"],
        set: Set::Caching(|caching, values| {
            let names = texts(values).map(str::to_ascii_lowercase).filter(|name| name != "off");
            caching.targeted_fields = names.map(Into::into).collect();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "collapse-timeout",
        parameters: &[one("time", Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(3600) })],
        default: r#"collapse-timeout "5s""#,
        doc: "How long a request waits for another that fetches the same, before it asks the server itself; with \
              `\"0s\"` none waits.",
        example: r#"collapse-timeout "30s""#,
        known_as: &["proxy_cache_lock_timeout", "proxy_cache_lock", "CacheLockMaxAge", "collapsed_forwarding"],
        set: Set::Caching(|caching, values| caching.collapse_timeout = values.duration("time").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "collapse-max",
        parameters: &[one("count", Kind::Count { min: 0, max: 1 << 20 })],
        default: "collapse-max 1000",
        doc: "Requests that may wait for one that fetches the same. Further ones ask the server, as all do when the \
              response turns out not to be for others; what the server is spared then is for `connections-max` and \
              `queue-max` of its `upstream`.",
        example: "collapse-max 100",
        set: Set::Caching(|caching, values| {
            caching.collapse_max = values.number("count").unwrap_or_default() as usize;
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "cache-status",
        parameters: FLAG,
        default: "cache-status off",
        doc: "Whether responses say what the cache did for them, in `Cache-Status` (RFC 9211).",
        example: "cache-status",
        known_as: &["X-Cache", "X-Cache-Status", "CacheHeader", "CacheDetailHeader"],
        set: Set::Caching(|caching, values| caching.cache_status = values.on()),
        ..OPTION
    },
];

fn patterns(values: &Values) -> Vec<NamePattern> {
    texts(values).map(NamePattern::new).collect()
}

fn texts(values: &Values) -> impl Iterator<Item = &str> {
    values.all("name").filter_map(|(value, _)| match value {
        Value::Text(text) => Some(text.as_str()),
        _ => None,
    })
}
