use std::time::Duration;

use wire::http::Status;

use super::{FLAG, KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, any, many, one};
use crate::model::response_caching::{NamePattern, SetCookie};
use crate::value::Values;

const GIB: u64 = 1 << 30;

/// A time from nothing to a year.
const AGE: ValueKind = ValueKind::Duration { min: Duration::ZERO, max: Duration::from_secs(365 * 86_400) };

/// Statuses that `default-age` is for if it names none.
const DEFAULT_AGE_STATUSES: [Status; 3] = [Status::OK, Status::MOVED_PERMANENTLY, Status::PERMANENT_REDIRECT];

/// Options of `cache` in a `forward`.
pub(super) static OPTIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "object-bytes-max",
        parameters: &[one("size", ValueKind::Size { min: 0, max: GIB })],
        default: r#"object-bytes-max "1MiB""#,
        doc: "Maximum size of a response body that is cached. Larger responses are passed on uncached. All cached \
              responses and files share `memory-bytes-max`.",
        example: r#"object-bytes-max "16MiB""#,
        known_as: KnownAs::NONE.apache(&["CacheMaxFileSize"]).others(&["maximum_object_size", "max-object-size"]),
        set: OptionSetter::Caching(|caching, values| caching.object_bytes_max = values.integer("size")),
        ..OPTION
    },
    OptionDefinition {
        name: "default-age",
        parameters: &[one("time", AGE), any("status", ValueKind::Status { min: 200, max: 599 })],
        repeatable: true,
        doc: "Time for which a response is fresh if it has neither `Cache-Control` nor `Expires`. Without statuses, \
              it applies to 200, 301 and 308. Responses with statuses you list are cached even if HTTP does not make \
              them cacheable by default. It does not apply to ambiguous paths: those with a semicolon, or with `;`, \
              `?`, `#`, `/` or a control byte percent-encoded.",
        example: r#"default-age "10s" 404 410"#,
        known_as: KnownAs {
            nginx: &["proxy_cache_valid", "fastcgi_cache_valid"],
            apache: &["CacheDefaultExpire"],
            caddy: &["ttl"],
            others: &["default_ttl"],
        },
        set: OptionSetter::Caching(|caching, values| {
            let age = values.time();
            let named = values.statuses("status");
            let statuses = if named.is_empty() { &DEFAULT_AGE_STATUSES[..] } else { &named };
            caching.default_ages.extend(statuses.iter().map(|status| (*status, age)));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "heuristic",
        parameters: FLAG,
        default: "heuristic off",
        doc: "Caches responses that have only `Last-Modified`, for a tenth of their age and at most a day (RFC 9111, \
              section 4.2.2).",
        example: "heuristic",
        known_as: KnownAs {
            apache: &["CacheLastModifiedFactor", "CacheIgnoreNoLastMod"],
            others: &["refresh_pattern"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Caching(|caching, values| caching.heuristic = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "stale-while-revalidate",
        parameters: &[one("time", AGE)],
        default: r#"stale-while-revalidate "0s""#,
        doc: "Time for which a stale response is served while one request fetches a new one. The response's own \
              `Cache-Control` takes precedence. It applies only to responses with a lifetime above 0: their own, or one \
              by `default-age` or `heuristic`.",
        example: r#"stale-while-revalidate "1m""#,
        known_as: KnownAs {
            nginx: &["proxy_cache_background_update", "fastcgi_cache_background_update"],
            apache: &["CacheLock"],
            caddy: &["stale"],
            others: &["grace", "beresp.grace"],
        },
        set: OptionSetter::Caching(|caching, values| caching.stale_while_revalidate = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "stale-if-error",
        parameters: &[one("time", AGE)],
        default: r#"stale-if-error "0s""#,
        doc: "Time for which a stale response is served if the upstream cannot be reached, or answers 500, 502, 503 \
              or 504. The response's own `Cache-Control` takes precedence. It applies only to responses with a \
              lifetime above 0: their own, or one by `default-age` or `heuristic`.",
        example: r#"stale-if-error "1d""#,
        known_as: KnownAs {
            nginx: &["proxy_cache_use_stale", "fastcgi_cache_use_stale"],
            apache: &["CacheStaleOnError"],
            caddy: &["stale"],
            others: &["beresp.keep"],
        },
        set: OptionSetter::Caching(|caching, values| caching.stale_if_error = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "request-directives",
        parameters: FLAG,
        default: "request-directives off",
        doc: "Obeys `Cache-Control` and `Pragma` of requests (RFC 9111, section 5.2.1). It is off by default, so \
              that clients cannot bypass the cache by a forced reload.",
        example: "request-directives",
        known_as: KnownAs {
            apache: &["CacheIgnoreCacheControl", "CacheStorePrivate"],
            caddy: &["mode"],
            others: &["ignore_client_no_cache"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Caching(|caching, values| caching.request_directives = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "set-cookie",
        parameters: &[one("what", ValueKind::Choice(&["refuse", "drop", "keep"]))],
        // words: allow: name of a value
        default: "set-cookie refuse",
        doc: "Handling of cacheable responses with `Set-Cookie`. `refuse` does not cache them, because a cookie is \
              rarely meant for all clients. `drop` caches them without the cookie; `keep` caches them with it.",
        example: "set-cookie drop",
        known_as: KnownAs {
            nginx: &["proxy_ignore_headers", "fastcgi_ignore_headers"],
            apache: &["CacheIgnoreHeaders"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Caching(|caching, values| {
            caching.set_cookie = match values.text("what").as_deref() {
                Some("drop") => SetCookie::Drop,
                Some("keep") => SetCookie::Keep,
                _ => SetCookie::Reject,
            };
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "key-host",
        parameters: FLAG,
        default: "key-host on",
        doc: "Includes the host in the cache key. Turn it off only for servers whose responses do not depend on the \
              host. Then also set `host`; otherwise one client's host can end up in a response that all clients get.",
        example: "key-host off",
        known_as: KnownAs {
            nginx: &["proxy_cache_key", "fastcgi_cache_key"],
            apache: &["UseCanonicalName"],
            caddy: &["key"],
            others: &["hash_data"],
        },
        set: OptionSetter::Caching(|caching, values| caching.key_host = values.on()),
        ..OPTION
    },
    OptionDefinition {
        name: "key-parameters",
        parameters: &[many("name", ValueKind::Text)],
        doc: "Query parameters in the cache key. URLs that differ in other parameters share a response. By default, \
              all parameters count except those in `ignore-parameters`. A parameter always counts if its name has \
              characters other than letters, digits, `_` and `-`; it may be another spelling of a listed one.",
        example: r#"key-parameters "page" "q""#,
        known_as: KnownAs::NONE.nginx(&["proxy_cache_key"]).caddy(&["key"]).others(&["hash_data"]),
        set: OptionSetter::Caching(|caching, values| caching.key_parameters = patterns(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "key-headers",
        parameters: &[many("name", ValueKind::FieldName)],
        doc: "Request header fields in the cache key, in addition to those that a response names in `Vary`. Responses that \
              depend on a field that Tailcoat sets (X-Forwarded-For, Forwarded, Via) are not cached.",
        example: r#"key-headers "Accept-Language""#,
        known_as: KnownAs {
            nginx: &["proxy_cache_key"],
            apache: &["CacheKeyBaseURL"],
            caddy: &["key"],
            others: &["hash_data"],
        },
        set: OptionSetter::Caching(|caching, values| caching.key_fields = texts(values).map(Into::into).collect()),
        ..OPTION
    },
    OptionDefinition {
        name: "key-cookies",
        parameters: &[many("name", ValueKind::Text)],
        doc: "Cookies in the cache key. Responses must not depend on other cookies, unless they name `Cookie` in \
              `Vary` or are `private`.",
        example: r#"key-cookies "currency""#,
        known_as: KnownAs {
            nginx: &["proxy_cache_key"],
            apache: &["CacheIgnoreURLSessionIdentifiers"],
            caddy: &["key"],
            others: &["hash_data"],
        },
        set: OptionSetter::Caching(|caching, values| caching.key_cookies = texts(values).map(Into::into).collect()),
        ..OPTION
    },
    OptionDefinition {
        name: "ignore-parameters",
        parameters: &[many("name", ValueKind::Text)],
        doc: "Query parameters left out of the cache key. URLs that differ only in these share a response. \
              `\"utm_*\"` matches all names with that prefix, `\"*\"` all names. The upstream still gets them.",
        example: r#"ignore-parameters "utm_*" "fbclid""#,
        known_as: KnownAs {
            nginx: &["proxy_cache_key"],
            apache: &["CacheIgnoreQueryString", "CacheIgnoreURLSessionIdentifiers"],
            caddy: &["key"],
            others: &["hash_data"],
        },
        set: OptionSetter::Caching(|caching, values| caching.ignored_parameters = patterns(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "bypass-cookies",
        parameters: &[many("name", ValueKind::Text)],
        doc: "Cookies whose requests bypass the cache, such as those of users who are logged in. `\"session*\"` \
              matches all names with that prefix.",
        example: r#"bypass-cookies "wordpress_logged_in_*" "comment_author_*""#,
        known_as: KnownAs {
            nginx: &["proxy_cache_bypass", "proxy_no_cache", "fastcgi_cache_bypass", "fastcgi_no_cache"],
            apache: &["CacheDisable"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Caching(|caching, values| caching.bypass_cookies = patterns(values)),
        ..OPTION
    },
    OptionDefinition {
        name: "targeted-fields",
        parameters: &[many("name", ValueKind::FieldName)],
        default: r#"targeted-fields "CDN-Cache-Control""#,
        doc: "Response header fields that replace `Cache-Control` and `Expires` for this cache (RFC 9213). The first \
              one that is present and valid counts. `\"off\"` uses none.",
        example: r#"targeted-fields "Example-Cache-Control" "CDN-Cache-Control""#,
        known_as: KnownAs::NONE.nginx(&["X-Accel-Expires"]).others(&["surrogate-control"]),
        set: OptionSetter::Caching(|caching, values| {
            let names = texts(values).map(|name| name.to_ascii_lowercase()).filter(|name| name != "off");
            caching.targeted_fields = names.map(Into::into).collect();
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "collapse-timeout",
        parameters: &[one("time", ValueKind::Duration { min: Duration::ZERO, max: Duration::from_secs(3600) })],
        default: r#"collapse-timeout "5s""#,
        doc: "Maximum time that a request waits for another one that fetches the same response. After it, the \
              request goes to the upstream itself; with `\"0s\"`, none waits.",
        example: r#"collapse-timeout "30s""#,
        known_as: KnownAs {
            nginx: &["proxy_cache_lock", "proxy_cache_lock_timeout", "proxy_cache_lock_age", "fastcgi_cache_lock"],
            apache: &["CacheLock", "CacheLockMaxAge", "CacheLockPath"],
            others: &["collapsed_forwarding"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Caching(|caching, values| caching.collapse_timeout = values.time()),
        ..OPTION
    },
    OptionDefinition {
        name: "collapse-max",
        parameters: &[one("count", ValueKind::Count { min: 0, max: 1 << 20 })],
        default: "collapse-max 1000",
        doc: "Maximum number of requests that wait for one that fetches the same response. Further requests go to \
              the upstream, and so do all if the response cannot be shared. `connections-max` and `queue-max` of the \
              `upstream` then protect it.",
        example: "collapse-max 100",
        known_as: KnownAs::NONE.nginx(&["proxy_cache_lock"]),
        set: OptionSetter::Caching(|caching, values| caching.collapse_max = values.integer("count")),
        ..OPTION
    },
    OptionDefinition {
        name: "cache-status",
        parameters: FLAG,
        default: "cache-status off",
        doc: "Adds `Cache-Status` to responses: how the cache handled the request (RFC 9211).",
        example: "cache-status",
        known_as: KnownAs {
            nginx: &["upstream_cache_status"],
            apache: &["CacheHeader", "CacheDetailHeader"],
            caddy: &["cache_name"],
            others: &["X-Cache", "X-Cache-Status"],
        },
        set: OptionSetter::Caching(|caching, values| caching.cache_status = values.on()),
        ..OPTION
    },
];

fn patterns(values: &Values) -> Vec<NamePattern> {
    texts(values).map(|name| NamePattern::new(&name)).collect()
}

fn texts(values: &Values) -> impl Iterator<Item = String> {
    values.texts("name").into_iter()
}
