use super::{FLAG, KnownAs, OPTION, OptionContext, OptionDefinition, OptionSetter, ValueKind, one};
use expression::{MapPattern, Place, Value};

/// Cases of a map that is being read.
#[derive(Debug, Default)]
pub(crate) struct MapDraft {
    pub(crate) cases: Vec<(MapPattern, Value)>,
    pub(crate) default: Value,
    pub(crate) ignores_case: bool,
}

/// Introduction to the options of maps in the reference, and to the expression language.
pub(super) const DOC: &str = "\
    Use these options in `map`.\n\
    \n\
    **Variables.** Redirects, rewrites and header fields have values with variables in braces, such as \
    `\"{host}{path}\"`. `{{` is a brace. Braces mark variables in every option that takes them, so that a value without \
    braces means the same everywhere.\n\
    \n\
    | variable | value |\n\
    |---|---|\n\
    | `method`, `scheme`, `host`, `http_version` | of the request; the host in lower case, without the port |\n\
    | `host.1` … `host.64` | labels of the host: of `a.example.com`, `host.1` is `a` |\n\
    | `path`, `path.1` … `path.64` | the decoded path, and its segments |\n\
    | `query`, `query.NAME` | the query as sent, and a decoded argument |\n\
    | `request.header.NAME`, `cookie.NAME` | a header field or a cookie |\n\
    | `client` | the client's address, found through `trusted-proxies` |\n\
    | `user` | the user of `basic-auth` or `forward-auth` |\n\
    | `tls_version`, `tls_cipher_suite`, `tls_server_name`, `tls_client` | the TLS connection, its server name (SNI) and the subject of the client certificate; empty without TLS |\n\
    | `bot_class`, `bot_score`, `bot_name`, `bot_signals` | assessment of the request by `bots`; empty without it |\n\
    | `ja4`, `http2_fingerprint` | fingerprints of the TLS handshake and of the beginning of an HTTP/2 connection, with `fingerprints on`; empty without TLS |\n\
    | `country`, `asn` | country and network operator of the client, with `country-database` and `asn-database` |\n\
    | `request_id` | 32 random hexadecimal digits |\n\
    | `status`, `cache_status`, `response.header.NAME` | of the response, in `response-header` |\n\
    | `map.NAME`, `secret.NAME`, `env.NAME` | a `map`, the content of a `secret`, an environment variable |\n\
    | `match.1`, `match.NAME` | a group of the regular expression in `when`, or in the case of the map |\n\
    \n\
    What a request lacks is empty. In header values and URLs, `{path}` is percent-encoded, and `{query}` has its `?`. \
    `{env.NAME}` works in all options. Values that would break a header field or a URL are rejected: the client gets \
    status 400.\n\
    \n\
    **Conditions.** `when` takes a condition, as in `when=\"method == 'POST' and not cookie.session\"`. Variables have no \
    braces there, and texts stand in single quotes (`''` is one quote).\n\
    \n\
    | condition | holds if |\n\
    |---|---|\n\
    | `cookie.a` | the value is not empty |\n\
    | `host == 'a'`, `host != 'a'` | the values are equal, or differ |\n\
    | `path starts-with '/a/'`, `ends-with`, `contains` | the value has this text at that place |\n\
    | `path matches '^/v[0-9]+/'` | the [regular expression](https://docs.rs/regex) matches |\n\
    | `method in ('GET', 'HEAD')`, `not in` | the value is one of these |\n\
    | `client in ('10.0.0.0/8', '::1')` | the address belongs to one of these networks |\n\
    | `query.page > 10`, `>=`, `<`, `<=` | the numbers compare so |\n\
    | `not A`, `A and B`, `A or B`, `(A)` | as in other languages; `not` binds first, then `and` |\n\
    | `all(A, B)`, `any(A, B)` | all hold, or one |\n\
    \n\
    Some values cannot be told: an argument or cookie with two different values, a wrong encoding, more than 16 KiB, \
    a text where a number must stand. If the result of a condition depends on such a value, rules that \
    protect apply: `deny`, `internal`, `basic-auth`, `forward-auth` and limits. All others do not apply, such as `allow`, \
    redirects and handlers. A request whose `request-header` cannot be told gets status 400. For `deny` and the like, `path` is every reading of the path, as above.\n\
    \n\
    **Maps** turn one value into another:\n\
    \n\
    ```kdl\n\
    map \"language\" \"{request.header.Accept-Language}\" {\n\
        case \"de*\" \"de\"\n\
        case \"~^(?<code>fr|it)\\\\b\" \"{match.code}\"\n\
        default \"en\"\n\
    }\n\
    site \"example.com\" {\n\
        root \"/srv/www\"\n\
        redirect \"/\" \"/{map.language}/\" when=\"not cookie.language\"\n\
    }\n\
    ```";

/// The block of a map.
pub(super) const MAP_BLOCK: OptionDefinition = OptionDefinition {
    name: "map",
    parameters: &[one("name", ValueKind::Name), one("value", ValueKind::Expression(Place::Map))],
    repeatable: true,
    doc: "A table that turns a value into another, as the variable `map.NAME`. Maps may use each other, but not in a \
          circle. See [maps](#maps) for variables and conditions.",
    example: r#"map "backend" "{host}" { case "a.example.com" "app1"; default "app2" }"#,
    known_as: KnownAs {
        nginx: &["map", "set"],
        apache: &["SetEnvIfNoCase", "BrowserMatch", "SetEnvIfExpr", "RewriteMap"],
        caddy: &["map", "vars"],
        others: &["variables", "set_var"],
    },
    set: OptionSetter::Block(OptionContext::Map),
    ..OPTION
};

/// A secret.
pub(super) const SECRET: OptionDefinition = OptionDefinition {
    name: "secret",
    parameters: &[one("name", ValueKind::Name), one("file", ValueKind::File)],
    repeatable: true,
    doc: "A file whose content is the variable `secret.NAME`, without line feeds at its end, at most 64 KiB. The file is \
          read with the configuration. No command and no log prints it. Secrets can be used in `request-header` and in \
          conditions. For a reload, the server's user must be able to read the file.",
    example: r#"secret "api-key" "/etc/tailcoat/api-key""#,
    known_as: KnownAs::NONE.caddy(&["{file.*}"]).others(&["credentials", "password file"]),
    set: OptionSetter::Secret,
    ..OPTION
};

/// Options of `map`.
pub(super) static MAP: &[OptionDefinition] = &[
    OptionDefinition {
        name: "case",
        parameters: &[one("pattern", ValueKind::MapPattern), one("value", ValueKind::Expression(Place::Map))],
        repeatable: true,
        doc: "The value for texts that fit the pattern. An exact text counts first, then the longest start (`\"/a/*\"`), \
              then the longest end (`\"*.css\"`), then the first regular expression (`\"~EXPRESSION\"`) that matches. \
              Patterns mind letter case; `ignore-case`, or `\"~(?i)…\"` for an expression, ignores it.",
        example: r#"case "b.example.com" "app3""#,
        set: OptionSetter::Map(|map, values| {
            let (pattern, value) = (values.map_pattern("pattern"), values.expression("value"));
            map.cases.extend(pattern.zip(value));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "default",
        parameters: &[one("value", ValueKind::Expression(Place::Map))],
        doc: "The value for all other texts; by default it is empty.",
        example: r#"default "other""#,
        set: OptionSetter::Map(|map, values| map.default = values.expression("value").unwrap_or_default()),
        ..OPTION
    },
    OptionDefinition {
        name: "ignore-case",
        parameters: FLAG,
        default: "ignore-case off",
        doc: "Ignores the letter case of ASCII in exact texts, starts and ends, as maps of nginx do. Regular expressions \
              are as they are written.",
        example: "ignore-case on",
        set: OptionSetter::Map(|map, values| map.ignores_case = values.on()),
        ..OPTION
    },
];
