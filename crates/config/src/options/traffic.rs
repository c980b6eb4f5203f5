//! Shares of requests for other upstreams, and changes of responses.

use std::sync::Arc;

use super::{KnownAs, OPTION, OptionDefinition, OptionSetter, ValueKind, many, one, optional, property};
use crate::model::{ForwardConfig, HashKey, Mirror, ResponseRewrites, Split, Substitution, TextRewrite};
use crate::value::Values;

/// Content of a mirrored request, unless the option has another limit.
const MIRROR_BODY_BYTES: u64 = 64 << 10;

/// Mirrored requests in progress, unless the option has another limit.
const MIRROR_REQUESTS: u64 = 64;

/// Options of `forward` that send requests to several upstreams.
pub(super) static SHARES: &[OptionDefinition] = &[
    OptionDefinition {
        name: "split",
        parameters: &[
            one("to", ValueKind::ForwardTarget),
            property("share", ValueKind::Ratio),
            property("by", ValueKind::HashKey),
            property("field", ValueKind::FieldTest),
            property("cookie", ValueKind::CookieTest),
        ],
        repeatable: true,
        doc: "Sends a share of requests to another upstream (canary release, A/B test). `share` is from 0 (the default: \
              none) to 1; the rest goes to the upstream of `forward`. A client stays in its share. `by=address` (the \
              default) tells clients apart by address, `by=\"cookie:NAME\"` or `by=\"field:NAME\"` by a cookie or field. \
              Where that is missing, the address counts. Requests that fit `field` or `cookie` (`\"NAME\"` or `\"NAME=VALUE\"`) belong to the \
              share whatever its size; the first `split` that fits wins. When a share grows, no client leaves it. A \
              `cache` stores responses of each upstream on their own. `tailcoat set split` changes the share while the \
              server runs.",
        example: r#"split "http://127.0.0.1:8001" share=0.05 cookie="canary=yes""#,
        known_as: KnownAs {
            nginx: &["split_clients"],
            caddy: &["weighted_round_robin"],
            others: &["weighted_clusters", "traffic-split", "canary-weight", "canary-by-header", "canary-by-cookie"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| {
            forward.splits.push(Split {
                upstream: values.text("to").unwrap_or_default(),
                share: values.ratio("share").unwrap_or_default(),
                by: values.hash_key("by").unwrap_or(HashKey::Address),
                field: values.field_test("field"),
                cookie: values.cookie_test("cookie"),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "mirror",
        parameters: &[
            one("to", ValueKind::ForwardTarget),
            property("share", ValueKind::Ratio),
            property("body-bytes-max", ValueKind::Size { min: 0, max: 64 << 20 }),
            property("requests-max", ValueKind::Count { min: 1, max: 100_000 }),
        ],
        repeatable: true,
        doc: "Sends copies of requests to another upstream, and drops its responses. `share` is the part of requests that \
              is copied, from 0 to 1 (the default). The request itself never waits for its copy, and never fails with \
              it. A request is not copied if its body is larger than `body-bytes-max` (64 KiB). Nor is it while \
              `requests-max` (64) copies are in progress, or the server is overloaded. Upgrades (WebSocket) are not copied.",
        example: r#"mirror "http://127.0.0.1:8002" share=0.1"#,
        known_as: KnownAs {
            nginx: &["mirror", "mirror_request_body"],
            others: &["request_mirror_policies", "mirroring", "mod_proxy mirror"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| {
            forward.mirrors.push(Mirror {
                upstream: values.text("to").unwrap_or_default(),
                share: values.ratio("share").unwrap_or(1.0),
                body_bytes_max: values.number("body-bytes-max").unwrap_or(MIRROR_BODY_BYTES) as usize,
                requests_max: values.number("requests-max").unwrap_or(MIRROR_REQUESTS) as usize,
            });
        }),
        ..OPTION
    },
];

/// Options of every block that forwards requests, which change responses.
pub(super) static REWRITES: &[OptionDefinition] = &[
    OptionDefinition {
        name: "rewrite-location",
        parameters: &[one("from", ValueKind::SearchText), optional("to", ValueKind::FieldValue)],
        repeatable: true,
        doc: "Replaces the beginning of URLs in `Location` and `Refresh` of responses. The first `from` with which a URL \
              begins counts. `rewrite-location auto` removes scheme and host where they are those that the upstream \
              got, and adds `strip-prefix` before paths. Without this option, URLs pass unchanged; they usually fit, \
              because the upstream gets the client's `Host`.",
        example: r#"rewrite-location "http://app.internal:8080/" "/app/""#,
        known_as: KnownAs {
            nginx: &["proxy_redirect"],
            apache: &["ProxyPassReverse"],
            caddy: &["header_down"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| match values.get("to") {
            None if values.text("from").as_deref() == Some("auto") => rewrites(forward).is_location_automatic = true,
            _ => rewrites(forward).locations.push(text(values)),
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "rewrite-cookie-domain",
        parameters: &[one("from", ValueKind::SearchText), one("to", ValueKind::FieldValue)],
        repeatable: true,
        doc: "Replaces `Domain` of cookies that responses set. `from` is the domain, or `*` for any. An empty `to` removes \
              it, so that the cookie is for the host of the request.",
        example: r#"rewrite-cookie-domain "app.internal" "example.org""#,
        known_as: KnownAs::NONE.nginx(&["proxy_cookie_domain"]).apache(&["ProxyPassReverseCookieDomain"]),
        set: OptionSetter::Forward(|forward, values| rewrites(forward).cookie_domains.push(text(values))),
        ..OPTION
    },
    OptionDefinition {
        name: "rewrite-cookie-path",
        parameters: &[one("from", ValueKind::SearchText), one("to", ValueKind::FieldValue)],
        repeatable: true,
        doc: "Replaces the beginning of `Path` of cookies that responses set.",
        example: r#"rewrite-cookie-path "/" "/app/""#,
        known_as: KnownAs::NONE.nginx(&["proxy_cookie_path"]).apache(&["ProxyPassReverseCookiePath"]),
        set: OptionSetter::Forward(|forward, values| rewrites(forward).cookie_paths.push(text(values))),
        ..OPTION
    },
    OptionDefinition {
        name: "substitute",
        parameters: &[
            one("from", ValueKind::SearchText),
            one("to", ValueKind::Text),
            property("once", ValueKind::Flag),
        ],
        repeatable: true,
        doc: "Replaces a text in the content of responses of type `text/html`, while they are sent. Letter case does not \
              matter. `once=on` replaces only the first occurrence. Of several texts that begin at the same place, the \
              first in the configuration counts. The upstream gets no `Accept-Encoding`, because compressed content \
              cannot be searched. Three kinds of content pass unchanged: compressed, partial (206), and with \
              `Cache-Control: no-transform`. The entity tag gets weak, and checksums are removed.",
        example: r#"substitute "</head>" "<script src=/a.js></script></head>" once=on"#,
        known_as: KnownAs {
            nginx: &["sub_filter", "sub_filter_once"],
            apache: &["Substitute", "mod_substitute"],
            caddy: &["replace"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Forward(|forward, values| {
            let is_once = values.flag("once").unwrap_or(false);
            rewrites(forward).substitutions.push(Substitution { text: text(values), is_once });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "substitute-types",
        parameters: &[many("type", ValueKind::MediaType)],
        doc: "Media types that `substitute` applies to, in addition to `text/html`.",
        example: r#"substitute-types "text/css" "application/javascript""#,
        known_as: KnownAs::NONE.nginx(&["sub_filter_types"]),
        set: OptionSetter::Forward(|forward, values| {
            let types = values.texts("type").into_iter().map(|name| name.to_ascii_lowercase());
            rewrites(forward).substitute_types = types.collect();
        }),
        ..OPTION
    },
];

fn rewrites(forward: &mut ForwardConfig) -> &mut ResponseRewrites {
    Arc::make_mut(forward.rewrites.get_or_insert_default())
}

fn text(values: &Values) -> TextRewrite {
    TextRewrite { from: values.text("from").unwrap_or_default(), to: values.text("to").unwrap_or_default() }
}
