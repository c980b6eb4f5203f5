use super::{Kind, OPTION, OptionDefinition, Parameter, Set, many, one, optional, property};
use crate::config::model::PathPattern;
use crate::config::rules::*;
use crate::config::value::Values;
use wire::http::Status;

/// What stands before the options of rules in the reference.
pub(super) const DOC: &str = "\
    What is done with requests before handlers have them, and with responses after. They stand outside all blocks, for \
    all sites, or in `site`. In whatever order they are written, a request passes them in this one:\n\
    \n\
    1. `allow` and `deny`: who may come, by address, and for what; else 403.\n\
    2. `rate-limit` and `request-limit`: how often; else 429.\n\
    3. `redirect` and `rewrite`: the first that fits is applied, and no other after it.\n\
    4. `basic-auth`: who may come, by password; else 401.\n\
    5. `request-header`: what handlers, and the servers behind `forward`, get to see.\n\
    6. The handlers: `files`, `respond` and the others.\n\
    7. `redirect` and `rewrite` with `missing`, if no handler has the path. After a rewrite the handlers are asked once \
    more.\n\
    8. `response-header`: on all responses, of handlers as well as of the rules above.\n\
    \n\
    Rules that guard a path (1, 2 and 4) hold for the path that the client asked for, for the one that a rewrite made of it, \
    and for the path of a directory's `index`, of a `fallback` and of a script. They also hold for every path that a server \
    behind may take for the guarded one:\n\
    \n\
    - `\"/a/*\"` also guards `/a`.\n\
    - `\"/a\"` also guards `/a/`, `/A`, `/a;x` and `/a.`.\n\
    - `\"/a.php\"` and `\"*.php\"` also guard `/a.php/b`, a program with PATH_INFO.\n\
    - `\"/cgi-bin/a\"` also guards `/cgi-bin/a/b`.\n\
    \n\
    A guard that fits a path in one of these ways only restricts: an `allow` does not let clients in by it. If an `allow` \
    fits one way to read a path and a `deny` another, the client is denied. To guard all below a path that has no extension, \
    write `\"/a/*\"`. To mind the case of letters, write an expression such as `\"~(?-i)^/Key$\"`. `tailcoat check` warns \
    where a guarded path can be reached without its guard: through `strip-prefix`, or through another site with the same \
    upstream or root.\n\
    \n\
    Of `allow` and `deny`, `redirect` and `rewrite`, and `basic-auth`, those of a \
    site come before those of all sites, and the first that fits counts; all limits that fit count; fields are changed \
    first as all sites say, then as the site says.";

/// Rules of a site or of all sites.
pub(super) static RULES: &[OptionDefinition] = &[
    OptionDefinition {
        name: "allow",
        parameters: &[CLIENT_PARAMETERS[0], CLIENT_PARAMETERS[1], CONDITIONS[0], CONDITIONS[1], CONDITIONS[2]],
        repeatable: true,
        doc: "Clients that may come, by address, or `all`; `unix` are those over unix sockets; `\"file:PATH\"` is a list, with an \
              address or network a line and comments behind `#` or `;`, which reloads read again. The first `allow` or \
              `deny` that fits the client, the `path` if it has one, and the conditions, which are those of `rewrite`, \
              decides. Who fits none may come: end with `deny all` to keep out all others. The address is the one behind \
              `trusted-proxies`.",
        example: r#"allow "192.0.2.0/24" "2001:db8::/32" path="/admin/*""#,
        known_as: &["Allow", "Require", "remote_ip"],
        set: Set::Rules(|rules, values| rules.clients.push(client_rule(true, values))),
        ..OPTION
    },
    OptionDefinition {
        name: "deny",
        parameters: &[
            CLIENT_PARAMETERS[0],
            CLIENT_PARAMETERS[1],
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            property("status", Kind::Status { min: 400, max: 599 }),
        ],
        repeatable: true,
        doc: "Clients that get the `status`, by default 403. See `allow`.",
        example: r#"deny all path="/admin/*" method="!GET HEAD" status=405"#,
        known_as: &["Deny", "block"],
        set: Set::Rules(|rules, values| rules.clients.push(client_rule(false, values))),
        ..OPTION
    },
    OptionDefinition {
        name: "rate-limit",
        parameters: &[
            optional("path", Kind::PathPattern),
            one("rate", Kind::Rate),
            property("burst", Kind::Count { min: 1, max: 1_000_000 }),
            property("key", Kind::LimitKey),
            property("status", Kind::Status { min: 400, max: 599 }),
            property("keys-max", Kind::Count { min: 8, max: 100_000_000 }),
            property("dry-run", Kind::Flag),
        ],
        repeatable: true,
        doc: "How often requests may come, over all workers. `burst` may come at once, by default as many as the rate \
              has: with `\"10/s\"`, ten, and then one each tenth of a second. Those too many get the `status`, by default 429, \
              with `Retry-After`, and do not count. They are counted by client (`key`; of IPv6 addresses by the first 64 \
              bits), by host, or by the value of a field or cookie, where there is one, else by client. A value that \
              clients may choose freely holds back only those who don't change it. At most `keys-max` keys are remembered, \
              by default 65,536, in 16 bytes each; when there are more, those nearest to having all their requests again \
              are forgotten. With `dry-run=on`, those too many are only told in the server's log.",
        example: r#"rate-limit "/login" "5/m" burst=10"#,
        known_as: &[
            "limit_req",
            "rate_limit",
            "limit_req_zone",
            "limit_req_dry_run",
            "evasive.max-conns-per-ip",
            "stick-table",
        ],
        set: Set::Rules(|rules, values| {
            // The table gives each rate its parameter.
            let Some(rate) = values.rate("rate") else { return };
            rules.rate_limits.push(RateLimit {
                path: path(values),
                rate,
                burst: values.number("burst").map_or(rate.count, |burst| burst as u32),
                key: values.limit_key("key").unwrap_or(LimitKey::Client),
                status: values.status("status").unwrap_or(Status::TOO_MANY_REQUESTS),
                keys_max: values.number("keys-max").unwrap_or(65_536) as usize,
                is_dry_run: values.flag("dry-run").unwrap_or(false),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "request-limit",
        parameters: &[
            optional("path", Kind::PathPattern),
            one("count", Kind::Count { min: 1, max: 1_000_000 }),
            property("key", Kind::LimitKey),
            property("status", Kind::Status { min: 400, max: 599 }),
            property("dry-run", Kind::Flag),
        ],
        repeatable: true,
        doc: "How many requests may be in progress at the same time, from the head to the end of the response, over all \
              workers. Counted and answered as by `rate-limit`.",
        example: r#"request-limit "/downloads/*" 4"#,
        known_as: &["limit_conn", "limit_conn_zone", "max_conns"],
        set: Set::Rules(|rules, values| {
            rules.request_limits.push(RequestLimit {
                path: path(values),
                requests_max: values.number("count").unwrap_or(1) as u32,
                key: values.limit_key("key").unwrap_or(LimitKey::Client),
                status: values.status("status").unwrap_or(Status::TOO_MANY_REQUESTS),
                is_dry_run: values.flag("dry-run").unwrap_or(false),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "redirect",
        parameters: &[
            one("path", Kind::PathPattern),
            one("target", Kind::RedirectTarget),
            property("status", Kind::RedirectStatus),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            CONDITIONS[3],
        ],
        repeatable: true,
        doc: "Sends clients elsewhere. In the target, `{host}`, `{path}` and `{scheme}` are those of the request, `{query}` is its \
              query with the `?` and `{&query}` with `&` instead, `{query.NAME}` is one argument of it, `{rest}` is what the \
              `*` of the pattern stands for, and `{1}` or `{name}` what a group of a regular expression matched. The \
              status is by default 302. Conditions are those of `rewrite`.",
        example: r##"redirect "/old/*" "/new/{rest}{query}" status=301"##,
        known_as: &["return", "redir", "Redirect", "RedirectMatch", "url.redirect"],
        set: Set::Rules(|rules, values| {
            let status = values.status("status").unwrap_or(Status::FOUND);
            rules.rewrites.push(rewrite(Some(status), values));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "rewrite",
        parameters: &[
            one("path", Kind::PathPattern),
            one("target", Kind::RewriteTarget),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            CONDITIONS[3],
        ],
        repeatable: true,
        doc: "Serves a path as if another had been asked for, which clients don't see. Placeholders are those of \
              `redirect`. The query stays as it is unless the target has one. Conditions, which must all hold: `method`, \
              `query` and `field` test the request; with `missing=on`, no handler has the path, as `try_files` and \
              Apache's `!-f` and `!-d` have it. A server behind `forward` gets the new path, so that a front controller \
              behind one is better asked without a rewrite, by a `forward` without a path, which has every path; \
              scripts of `fastcgi` and its like find what the client asked for in `REQUEST_URI`, and have `fallback` for \
              it. The first `redirect` or `rewrite` that fits is applied, and no other after it, so that none goes in circles; only \
              one with `missing` may follow.",
        example: r#"rewrite "*" "/app.html" missing=on"#,
        known_as: &["RewriteRule", "RewriteCond", "url.rewrite", "if", "uri"],
        set: Set::Rules(|rules, values| rules.rewrites.push(rewrite(None, values))),
        ..OPTION
    },
    OptionDefinition {
        name: "basic-auth",
        parameters: &[
            one("path", Kind::PathPattern),
            one("file", Kind::PasswordFile),
            property("realm", Kind::Text),
            property("pass-credentials", Kind::Flag),
            property("satisfy", Kind::Choice(SATISFY)),
        ],
        repeatable: true,
        doc: "Paths that need a user name and password (RFC 7617). The file has a line `USER:HASH` for each user, as \
              `htpasswd -B` and `tailcoat hash-password --user` write it; hashes are bcrypt, SHA-256 and SHA-512 crypt, and \
              Argon2. It is read again when it has changed. Of several that fit a path the first counts; with `off` for \
              a file, its paths need no password. Browsers show the `realm`. Handlers do not get to see the password \
              (`Authorization`) unless `pass-credentials=on`. With `satisfy=\"any\"`, address or password is enough: who \
              is let in by an `allow` for the path needs no password, and whom a `deny` would keep out may come with one. \
              Without TLS, anybody on the way can read it.",
        example: r#"basic-auth "/admin/*" "/etc/tailcoat/admin.htpasswd" realm="Administration""#,
        known_as: &[
            "auth_basic",
            "auth_basic_user_file",
            "AuthUserFile",
            "AuthType",
            "basicauth",
            "basic_auth",
            "auth.require",
            "satisfy",
            "Satisfy",
            "RequireAny",
        ],
        set: Set::Rules(|rules, values| {
            rules.passwords.push(PasswordRule {
                path: path(values),
                file: values.password_file("file").flatten(),
                realm: values.text("realm").unwrap_or_else(|| "Restricted".into()),
                passes_credentials: values.flag("pass-credentials").unwrap_or(false),
                is_alternative: values.text("satisfy").as_deref() == Some("any"),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "request-header",
        parameters: &[
            optional("path", Kind::PathPattern),
            one("name", Kind::RequestFieldName),
            one("value", Kind::FieldTemplate),
            property("action", Kind::Choice(ACTIONS)),
        ],
        repeatable: true,
        doc: "A field of requests, for handlers and the servers behind `forward`. It takes the place of what the client \
              sent (`action` is `set`), is one line more (`add`), or is there if the client sent none (`default`); an \
              empty value takes the field away. It also takes the place of what `forward` says of the client by \
              itself (`client-fields`). In the value, `{client}` is the client's address, `{host}`, `{path}`, `{query}` and `{scheme}` \
              are those of the request, `{user}` is the user of `basic-auth`, `{request_id}` are 32 random digits, the same wherever \
              it stands for one request, and `{request.header.NAME}` is a field that the client sent; `{tls_version}`, \
              `{tls_cipher_suite}`, `{tls_server_name}` and `{tls_client}`, the subject of the client's certificate, are as \
              in access logs, and empty without TLS; braces are written twice: `{{`. What takes the place of a field \
              takes that of the same name with underscores, too, which many applications take for the same.",
        example: r#"request-header "X-Request-Id" "{request_id}" action="default""#,
        known_as: &["proxy_set_header", "RequestHeader", "request_header", "header_up", "fastcgi_param"],
        set: Set::Rules(|rules, values| rules.request_fields.push(field_edit(values))),
        ..OPTION
    },
    OptionDefinition {
        name: "response-header",
        parameters: &[
            optional("path", Kind::PathPattern),
            one("name", Kind::FieldName),
            one("value", Kind::FieldTemplate),
            property("action", Kind::Choice(ACTIONS)),
        ],
        repeatable: true,
        doc: "A field of all responses: of all handlers, of all statuses, of errors and redirects too. Otherwise as \
              `request-header`. For fields of files only, such as `Cache-Control`, `header` is better, and costs nothing.",
        example: r#"response-header "Strict-Transport-Security" "max-age=31536000""#,
        known_as: &[
            "add_header",
            "proxy_hide_header",
            "Header",
            "header_down",
            "setenv.add-response-header",
            "http-response",
        ],
        set: Set::Rules(|rules, values| rules.response_fields.push(field_edit(values))),
        ..OPTION
    },
];

const CLIENT_PARAMETERS: [Parameter; 2] = [many("client", Kind::Client), property("path", Kind::PathPattern)];

/// Conditions of redirects and rewrites, and but for the last those of who may come.
const CONDITIONS: [Parameter; 4] = [
    property("method", Kind::Methods),
    property("query", Kind::QueryTest),
    property("field", Kind::FieldTest),
    property("missing", Kind::Flag),
];

const SATISFY: &[&str] = &["all", "any"];

const ACTIONS: &[&str] = &["set", "add", "default"];

fn path(values: &Values) -> PathPattern {
    values.path_pattern("path").unwrap_or(PathPattern::Any)
}

fn client_rule(is_allowed: bool, values: &Values) -> ClientRule {
    let (clients, files) = values.clients("client");
    let status = values.status("status").unwrap_or(Status::FORBIDDEN);
    ClientRule { path: path(values), conditions: conditions(values), is_allowed, clients, files, status }
}

fn conditions(values: &Values) -> Conditions {
    Conditions {
        methods: values.methods("method"),
        query: values.query_test("query"),
        field: values.field_test("field"),
        is_missing: values.flag("missing").unwrap_or(false),
    }
}

fn rewrite(status: Option<Status>, values: &Values) -> Rewrite {
    Rewrite {
        path: path(values),
        conditions: conditions(values),
        target: values.template("target").unwrap_or_default(),
        status,
    }
}

fn field_edit(values: &Values) -> FieldEdit {
    FieldEdit {
        path: path(values),
        name: values.text("name").unwrap_or_default(),
        value: values.template("value").unwrap_or_default(),
        action: match values.text("action").as_deref() {
            Some("add") => FieldAction::Add,
            Some("default") => FieldAction::Default,
            _ => FieldAction::Set,
        },
    }
}
