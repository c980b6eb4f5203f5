use super::forward::forward_host;
use super::{
    KnownAs, OPTION, OptionContext, OptionDefinition, OptionSetter, Parameter, ValueKind, any, many, one, optional,
    property,
};
use crate::model::bots::BOT_PRESETS;
use crate::model::buffering::Buffering;
use crate::model::rules::*;
use crate::model::{Cors, ForwardConfig, PathPattern};
use crate::value::{Values, with_variables};
use expression::Place;
use std::sync::Arc;
use std::time::Duration;
use wire::http::Status;

/// Introduction to the options of rules in the reference.
pub(super) const DOC: &str = "\
    Rules apply to requests before handlers get them, and to responses afterwards. Use them at the top level for \
    all sites, or in `site`. Their order in the file does not matter: a request passes them in this order.\n\
    \n\
    1. `internal`: paths for the server itself, otherwise 404. Then `allow` and `deny`: access by address, otherwise \
    403.\n\
    2. `rate-limit` and `request-limit`: frequency and number of requests, otherwise 429.\n\
    3. `cors` answers preflight requests. Then `redirect` and `rewrite`: only the first match is applied.\n\
    4. `basic-auth`: access by password, otherwise 401. Then `forward-auth`: access by an authentication server.\n\
    5. `request-header`: header fields for handlers and upstreams.\n\
    6. The handlers: `files`, `forward`, `respond` and others.\n\
    7. `redirect` and `rewrite` with `missing`, if no handler has the path. After a rewrite, the handlers are \
    tried once more, and then the rules that follow.\n\
    8. `response-header`: header fields of all responses, including those of the rules above.\n\
    \n\
    Rules that guard a path (1, 2 and 4) apply to the path the client requested and to the path after a rewrite. \
    They also apply to the path of a directory's `index`, of a `fallback` and of a script. They also apply to every path that \
    an upstream may treat as the guarded one:\n\
    \n\
    - `\"/a/*\"` also guards `/a`.\n\
    - `\"/a\"` also guards `/a/`, `/A`, `/a;x` and `/a.`.\n\
    - `\"/a.php\"` and `\"*.php\"` also guard `/a.php/b`, a program with PATH_INFO.\n\
    - `\"/cgi-bin/a\"` also guards `/cgi-bin/a/b`.\n\
    \n\
    Such an additional match only restricts: an `allow` does not let clients in by it. If an `allow` matches one \
    reading of a path and a `deny` another, the client is rejected. To guard everything below a path without an \
    extension, write `\"/a/*\"`. For a case-sensitive match, write an expression such as `\"~(?-i)^/Key$\"`. \
    `tailcoat check` warns if a guarded path can be reached without its guard: through `strip-prefix`, or through \
    another site with the same upstream or root.\n\
    \n\
    Rules of a site come before those of all sites. Of `allow` and `deny`, of `redirect` and `rewrite`, and of \
    `basic-auth`, the first match counts. Of limits, all matches count. Header fields are changed by the rules of \
    all sites first, then by those of the site.";

/// Rules of a site or of all sites.
pub(super) static RULES: &[OptionDefinition] = &[
    OptionDefinition {
        name: "allow",
        parameters: &[CLIENT_PARAMETERS[0], CLIENT_PARAMETERS[1], CONDITIONS[0], CONDITIONS[1], CONDITIONS[2], WHEN],
        repeatable: true,
        doc: "Allows clients by address or network, or `all`. `unix` means clients on Unix sockets. `\"file:PATH\"` \
              is a list with one address or network a line and comments after `#` or `;`; a reload reads it again. \
              The first `allow` or `deny` that matches the client, the `path` and the conditions decides. The \
              conditions are those of `rewrite`. A client that matches none is allowed, so end with `deny all` to \
              reject all others. The client's address is the one found through `trusted-proxies`.",
        example: r#"allow "192.0.2.0/24" "2001:db8::/32" path="/admin/*""#,
        known_as: KnownAs {
            nginx: &["allow", "limit_except", "geo"],
            apache: &["Allow", "Require", "Order", "RequireAll", "RequireAny"],
            caddy: &["remote_ip", "client_ip"],
            others: &["acl"],
        },
        set: OptionSetter::Rules(|rules, values| rules.clients.push(client_rule(true, values))),
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
            WHEN,
            property("status", ValueKind::Status { min: 400, max: 599 }),
            property("internal", ValueKind::Flag),
            property("satisfy", ValueKind::Choice(SATISFY)),
        ],
        repeatable: true,
        doc: "Rejects clients with `status` (default 403). It takes the same clients and conditions as `allow`, \
              which describes them. A `deny` holds for each path that a request reaches. With `internal=on` it holds \
              only for the path that the client sent: `fallback`, `index`, `rewrite` and scripts still lead to it. With \
              `satisfy=\"all\"`, no password lifts it, not even one of a `basic-auth` with `satisfy=\"any\"`.",
        example: r#"deny all path="/admin/*" method="!GET HEAD" status=405"#,
        known_as: KnownAs {
            nginx: &["deny", "limit_except", "geo", "internal"],
            apache: &["Deny", "RequireNone", "AllowMethods", "LimitExcept"],
            caddy: &["remote_ip", "client_ip", "abort"],
            others: &["block", "http-request deny", "block ip address", "blacklist"],
        },
        set: OptionSetter::Rules(|rules, values| rules.clients.push(client_rule(false, values))),
        ..OPTION
    },
    OptionDefinition {
        name: "internal",
        parameters: &[many("path", ValueKind::PathPattern), WHEN],
        repeatable: true,
        doc: "Paths that clients cannot request: they get 404. Only the server itself reaches them, by \
              `x-accel-redirect`, `x-sendfile`, `error-page`, `fallback`, `index`, `rewrite` and local redirects of \
              scripts. No `allow`, no password and no `extensions` opens them.",
        example: r#"internal "/protected/*""#,
        known_as: KnownAs::NONE.nginx(&["internal"]),
        set: OptionSetter::Rules(|rules, values| {
            let when = values.condition("when");
            rules.internals.extend(values.path_patterns("path").into_iter().map(|path| internal(path, when.clone())))
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "rate-limit",
        parameters: &[
            optional("path", ValueKind::PathPattern),
            one("rate", ValueKind::Rate),
            property("burst", ValueKind::Count { min: 1, max: 1_000_000 }),
            property("key", ValueKind::LimitKey),
            property("status", ValueKind::Status { min: 400, max: 599 }),
            property("keys-max", ValueKind::Count { min: 8, max: 100_000_000 }),
            property("dry-run", ValueKind::Flag),
            WHEN,
        ],
        repeatable: true,
        doc: "Limits how often requests may come, over all workers. `burst` requests may come at once, by default as \
              many as the rate's number. With `\"10/s\"`, that is ten, then one each tenth of a second. Further \
              requests get `status` (default 429) with `Retry-After`, and do not count. `key` says how requests are \
              counted. The default is the client's address; of IPv6 addresses, the first 64 bits. Other keys are the \
              host, or the value of a header field or cookie; requests without it count by address. Clients can \
              evade a limit by a value that they choose freely. Tailcoat remembers at most `keys-max` keys (default \
              65,536), of 16 bytes each. When there are more, it forgets those nearest to their full burst. \
              `dry-run=on` only logs requests above the limit.",
        example: r#"rate-limit "/login" "5/m" burst=10"#,
        known_as: KnownAs {
            nginx: &["limit_req", "limit_req_zone", "limit_req_status", "limit_req_dry_run", "limit_req_log_level"],
            apache: &["evasive", "QS_SrvRequestRate"],
            caddy: &["rate_limit"],
            others: &["evasive.max-conns-per-ip", "stick-table"],
        },
        set: OptionSetter::Rules(|rules, values| {
            // The table gives each rate its parameter.
            let Some(rate) = values.rate("rate") else { return };
            rules.rate_limits.push(RateLimit {
                path: path(values),
                when: values.condition("when"),
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
            optional("path", ValueKind::PathPattern),
            one("count", ValueKind::Count { min: 1, max: 1_000_000 }),
            property("key", ValueKind::LimitKey),
            property("status", ValueKind::Status { min: 400, max: 599 }),
            property("dry-run", ValueKind::Flag),
            WHEN,
        ],
        repeatable: true,
        doc: "Limits how many requests are in progress at once, from the head to the end of the response, over all \
              workers. Counting, `key` and `status` work as in `rate-limit`.",
        example: r#"request-limit "/downloads/*" 4"#,
        known_as: KnownAs {
            nginx: &[
                "limit_conn",
                "limit_conn_zone",
                "limit_conn_status",
                "limit_conn_dry_run",
                "limit_conn_log_level",
            ],
            apache: &["QS_SrvMaxConnPerIP"],
            others: &["max_conns"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Rules(|rules, values| {
            rules.request_limits.push(RequestLimit {
                path: path(values),
                when: values.condition("when"),
                requests_max: values.number("count").unwrap_or(1) as u32,
                key: values.limit_key("key").unwrap_or(LimitKey::Client),
                status: values.status("status").unwrap_or(Status::TOO_MANY_REQUESTS),
                is_dry_run: values.flag("dry-run").unwrap_or(false),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "auto-ban",
        parameters: &[
            one("rate", ValueKind::Rate),
            any("status", ValueKind::Status { min: 400, max: 599 }),
            property("path", ValueKind::PathPattern),
            property("for", BAN_TIME),
            property("action", ValueKind::Choice(&["reject", "close", "tarpit", "limit"])),
            property("limit", ValueKind::Rate),
            property("keys-max", ValueKind::Count { min: 8, max: 100_000_000 }),
            property("dry-run", ValueKind::Flag),
            property("when", ValueKind::Condition(Place::Response)),
        ],
        repeatable: true,
        doc: "Bans clients whose requests are rejected too often, as `tailcoat ban` does: with `\"10/m\"`, a client is \
              banned at its tenth rejection within about a minute, over all workers. Responses with one of the statuses \
              count, by default 401, 403, 404 and 429. A ban lasts for the time `for` (default `\"1h\"`). Clients are \
              addresses; of IPv6 addresses, the first 64 bits. Trusted proxies and this machine itself are never \
              banned. `action` is what happens to a banned client. `reject` (the default) closes new connections and \
              responds with 403. `close` closes without a response. `tarpit` keeps connections open and sends a \
              byte from time to time. `limit` allows requests up to the rate `limit` (default `\"10/m\"`), with 429 \
              above it. `tailcoat bans` lists bans, `tailcoat unban` ends one, and the server log has a line for each. \
              Tailcoat remembers at most `keys-max` clients (default 65,536), of 16 bytes each, and bans at most \
              50,000 at a time. `dry-run=on` only logs clients that would be banned.",
        example: r#"auto-ban "10/m" 401 path="/login" for="1h""#,
        known_as: KnownAs {
            apache: &["DOSPageCount", "DOSBlockingPeriod"],
            others: &["fail2ban", "crowdsec", "http_err_rate", "evasive.max-conns-per-ip"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Rules(|rules, values| {
            // The table gives each rate its parameter.
            let Some(rate) = values.rate("rate") else { return };
            let named = values.statuses("status");
            rules.auto_bans.push(AutoBan {
                path: path(values),
                when: values.condition("when"),
                rate,
                statuses: if named.is_empty() { REJECTIONS.to_vec() } else { named },
                time: values.duration("for").unwrap_or(BAN_TIME_DEFAULT),
                action: match values.text("action").as_deref() {
                    Some("close") => BanAction::Close,
                    Some("tarpit") => BanAction::Tarpit,
                    Some("limit") => {
                        let rate = values.rate("limit").unwrap_or(LIMIT_DEFAULT);
                        BanAction::Limit(rate.count, u32::try_from(rate.period.as_secs()).unwrap_or(1).max(1))
                    }
                    _ => BanAction::Reject,
                },
                keys_max: values.number("keys-max").unwrap_or(65_536) as usize,
                is_dry_run: values.flag("dry-run").unwrap_or(false),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "bots",
        parameters: &[one("preset", ValueKind::Choice(BOT_PRESETS)), property("dry-run", ValueKind::Flag)],
        is_block_optional: true,
        doc: "Keeps scrapers and other bots cheap: scores requests, asks doubtful clients for a proof of work, and lets \
              crawlers and agents in that prove who they are. The presets `forum`, `forge`, `shop` and `api` suit such \
              sites; `off` turns the option off in a site. In a site, the block replaces that of all sites. \
              `dry-run=on` only counts and logs what would be done. See `docs/bots.md`.",
        example: r#"bots "forum""#,
        known_as: KnownAs::NONE.others(&["anubis", "botpolicy", "bot management", "challenge", "go-away", "iocaine"]),
        set: OptionSetter::Block(OptionContext::Bots),
        ..OPTION
    },
    OptionDefinition {
        name: "redirect",
        parameters: &[
            one("path", ValueKind::PathPattern),
            one("target", ValueKind::RedirectTarget),
            property("status", ValueKind::RedirectStatus),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            CONDITIONS[3],
            WHEN,
            property("after-auth", ValueKind::Flag),
        ],
        repeatable: true,
        doc: "Redirects clients to another URL, with `status` (default 302). The target may contain placeholders. \
              `{host}`, `{path}` and `{scheme}` are those of the request. `{query}` is its query with the `?`, \
              `{&query}` the query with `&` in its place, and `{query.NAME}` one argument. `{rest}` is what the `*` \
              of the pattern matched; `{1}` or `{name}` is a group of a regular expression. The conditions are those \
              of `rewrite`. With `after-auth=on`, only clients that `basic-auth` and `forward-auth` let in get the \
              redirect.",
        example: r##"redirect "/old/*" "/new/{rest}{query}" status=301"##,
        known_as: KnownAs {
            nginx: &["return", "rewrite"],
            apache: &["Redirect", "RedirectMatch", "RedirectPermanent", "RedirectTemp"],
            caddy: &["redir"],
            others: &["url.redirect", "return 301", "return 302"],
        },
        set: OptionSetter::Rules(|rules, values| {
            let status = values.status("status").unwrap_or(Status::FOUND);
            rules.rewrites.push(rewrite(Some(status), values));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "canonical-host",
        parameters: &[one("host", ValueKind::Host)],
        doc: "Redirects clients that request another name of the site to the same URL with this host (status 308), such \
              as from `www.example.com` to `example.com`. Scheme and port stay, unless `redirect-to-https` changes \
              them in the same redirect. Requests for hosts that are no name of the site are not redirected.",
        example: r#"canonical-host "example.com""#,
        known_as: KnownAs {
            nginx: &["server_name_in_redirect", "return"],
            apache: &["UseCanonicalName", "ServerAlias"],
            caddy: &["redir"],
            others: &["www redirect", "redirect www to non-www", "non-www"],
        },
        set: OptionSetter::Rules(|rules, values| rules.canonical_host = values.hosts("host").into_iter().next()),
        ..OPTION
    },
    OptionDefinition {
        name: "rewrite",
        parameters: &[
            one("path", ValueKind::PathPattern),
            one("target", ValueKind::RewriteTarget),
            CONDITIONS[0],
            CONDITIONS[1],
            CONDITIONS[2],
            CONDITIONS[3],
            WHEN,
        ],
        repeatable: true,
        doc: "Changes the path of a request internally; clients do not see it. Placeholders are those of `redirect`. \
              The query stays unless the target has one. All conditions must hold: `method`, `query` and `field` \
              test the request. `missing=on` means that no handler has the path, like `try_files` or Apache's `!-f` \
              and `!-d`. An upstream of `forward` gets the new path. For a front controller in an upstream, use a \
              `forward` without a path and no rewrite. Scripts of `fastcgi`, `cgi`, `scgi` and `uwsgi` find the \
              original path in `REQUEST_URI`; for their front controller, use `fallback`. Only the first `redirect` \
              or `rewrite` that matches is applied, so that no loop is possible. Rules with `missing` may still \
              follow: if no handler has the new path either, the next ones apply to that path, at most eight.",
        example: r#"rewrite "*" "/app.html" missing=on"#,
        known_as: KnownAs {
            nginx: &["rewrite", "if", "map", "try_files"],
            apache: &[
                "RewriteRule",
                "RewriteCond",
                "RewriteEngine",
                "RewriteBase",
                "RewriteMap",
                "RewriteOptions",
                "mod_rewrite",
            ],
            caddy: &["rewrite", "uri"],
            others: &["url.rewrite"],
        },
        set: OptionSetter::Rules(|rules, values| rules.rewrites.push(rewrite(None, values))),
        ..OPTION
    },
    OptionDefinition {
        name: "basic-auth",
        parameters: &[
            one("path", ValueKind::PathPattern),
            one("file", ValueKind::PasswordFile),
            property("realm", ValueKind::Text),
            property("pass-credentials", ValueKind::Flag),
            property("satisfy", ValueKind::Choice(SATISFY)),
            WHEN,
        ],
        repeatable: true,
        doc: "Requires a user name and password for paths (HTTP basic authentication, RFC 7617). The file has a line \
              `USER:HASH` for each user, as `htpasswd -B` and `tailcoat hash-password --user` write it. Hashes are \
              bcrypt, SHA-256 crypt, SHA-512 crypt or Argon2. Weak hashes of older files work with a warning: apr1 and \
              `{SHA}`. Hashes that take more than some seconds are rejected. The file is read again when it changes; the \
              server does not start without it. The first \
              `basic-auth` that matches a path counts; `off` as the file means that no password is needed. Browsers \
              show the `realm`. Handlers get the field `Authorization` only with `pass-credentials=on`. With \
              `satisfy=\"any\"`, an address or a password is enough. A client that an `allow` for the path lets in \
              needs no password, and one that a `deny` would reject may use one. Use it with TLS only: without TLS, \
              passwords can be read on the way.",
        example: r#"basic-auth "/admin/*" "/etc/tailcoat/admin.htpasswd" realm="Administration""#,
        known_as: KnownAs {
            nginx: &["auth_basic", "auth_basic_user_file", "satisfy"],
            apache: &[
                "AuthUserFile",
                "AuthType",
                "AuthName",
                "AuthBasicProvider",
                "Satisfy",
                "RequireAny",
                "mod_auth_basic",
                "AuthBasicAuthoritative",
                "AuthMerging",
            ],
            caddy: &["basic_auth", "basicauth"],
            others: &["auth.require", "htpasswd", "userlist"],
        },
        set: OptionSetter::Rules(|rules, values| {
            rules.passwords.push(PasswordRule {
                path: path(values),
                when: values.condition("when"),
                file: values.password_file("file").flatten(),
                realm: values.text("realm").unwrap_or_else(|| "Restricted".into()),
                passes_credentials: values.flag("pass-credentials").unwrap_or(false),
                is_alternative: values.text("satisfy").as_deref() == Some("any"),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "cors",
        parameters: &[
            many("origin", ValueKind::Origin),
            property("methods", ValueKind::Text),
            property("headers", ValueKind::Text),
            property("expose-headers", ValueKind::Text),
            property("credentials", ValueKind::Flag),
            property("age-max", ValueKind::Duration { min: Duration::ZERO, max: Duration::from_secs(86_400) }),
        ],
        doc: "Cross-origin resource sharing: scripts of these origins may read responses. Tailcoat answers preflight \
              requests itself, with status 204, before redirects and passwords, and sets the fields of other \
              responses in place of the upstream's. `\"https://*.a.example\"` is any host below; `\"*\"` is any origin. \
              `methods` and `headers` name what preflights allow, `expose-headers` the response fields that scripts \
              may read, each separated by spaces, or `*`. `credentials=on` permits cookies. `age-max` is the time for \
              which browsers remember a preflight. A request of another origin is served without these fields.",
        example: r#"cors "https://app.example" methods="GET PUT" headers="Content-Type" age-max="1h""#,
        known_as: KnownAs::NONE.others(&["Access-Control-Allow-Origin", "enable-cors", "accessControlAllowOriginList"]),
        set: OptionSetter::Rules(|rules, values| {
            let list = |name: &str| {
                let text = values.text(name).unwrap_or_default();
                text.split([' ', ',']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
            };
            rules.cors = Some(Arc::new(Cors {
                origins: values.origins("origin"),
                methods: list("methods"),
                headers: list("headers"),
                exposed_headers: list("expose-headers"),
                allows_credentials: values.flag("credentials").unwrap_or(false),
                age_max_seconds: values.duration("age-max").map(|time| time.as_secs() as u32),
            }));
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "forward-auth",
        parameters: &[
            one("path", ValueKind::PathPattern),
            one("to", ValueKind::ForwardTarget),
            property("uri", ValueKind::RequestTarget),
            property("copy-headers", ValueKind::FieldCopies),
            property("login", ValueKind::RedirectTarget),
            property("follow-location", ValueKind::Flag),
            property("pass-cookies", ValueKind::Flag),
            property("host", ValueKind::ForwardHost),
            property("timeout", AUTH_TIMEOUT),
            property("protocol", ValueKind::Choice(AUTH_PROTOCOLS)),
            property("body-bytes-max", ValueKind::Size { min: 0, max: ForwardAuth::BODY_BYTES_MAX as u64 }),
            WHEN,
        ],
        repeatable: true,
        doc: "Asks an authentication server about each request for these paths (forward authentication), such as \
              Authelia, Authentik or oauth2-proxy. It gets a GET request for `uri` (default `/`) with the header \
              fields of the client, but no body. `X-Forwarded-Method`, `X-Forwarded-Proto`, `X-Forwarded-Host`, \
              `X-Forwarded-Uri`, `X-Forwarded-For` and `X-Real-IP` describe the client's request. So do `X-Original-Method`, \
              `X-Original-URL` and `X-Original-URI`. A 2xx response permits the request. Redirects and 4xx \
              responses go to the client, with all their fields, and their body up to 64 KiB. Any other response is a 502, and none \
              within `timeout` (default 10 s) a 504. `copy-headers` names fields of a 2xx response that the request \
              gets; `A>B` copies field `A` to field `B`. The first is the user of logs, `{user}` and `REMOTE_USER`. \
              Clients cannot send these fields to any path of the site. `login` redirects clients there instead of \
              a 401, with the placeholders of `redirect`. `follow-location=on` makes a 401 with `Location` a redirect \
              with status 302. `host` sets `Host`, as in `forward`. `pass-cookies=on` adds the cookies of a 2xx response to the client's response. The first \
              `forward-auth` that matches a path counts; `off` as the server means that none is asked. \
              `body-bytes-max` (default 0) lets the server have the first bytes of the request's body, with the method of the \
              request; the request waits for them. `protocol=\"grpc\"` asks by Envoy's `ext_authz` over gRPC instead, at \
              an `h2c://` or `https://` address: the decision then names the fields that requests get, lose, and \
              that responses get. `uri`, `copy-headers` and `pass-cookies` have no effect. `cache` \
              stores a response for these paths only if it has `public` or `s-maxage`, and separately for each set of \
              copied values.",
        example: r#"forward-auth "/app/*" "http://127.0.0.1:9091" uri="/api/authz/forward-auth" copy-headers="Remote-User Remote-Groups""#,
        known_as: KnownAs {
            nginx: &["auth_request", "auth_request_set"],
            caddy: &["forward_auth", "copy_headers"],
            others: &["ForwardAuth", "forwardauth", "authResponseHeaders", "external authentication", "ext_authz"],
            ..KnownAs::NONE
        },
        set: OptionSetter::Rules(|rules, values| {
            let upstream = values.text("to").filter(|upstream| upstream != "off");
            rules.forward_auths.push(ForwardAuthRule {
                path: path(values),
                when: values.condition("when"),
                auth: upstream.map(|to| forward_auth(to, values)),
            });
        }),
        ..OPTION
    },
    OptionDefinition {
        name: "request-header",
        parameters: &[
            optional("path", ValueKind::PathPattern),
            one("name", ValueKind::RequestFieldName),
            one("value", ValueKind::FieldTemplate(Place::Request)),
            property("action", ValueKind::Choice(ACTIONS)),
            property("when", ValueKind::Condition(Place::Request)),
        ],
        repeatable: true,
        doc: "Sets a header field of requests, for handlers and upstreams. `action` is `set` (the default: replace \
              the client's field), `add` (add a line), `default` (set only if the client sent none) or `keep` (ignore \
              earlier rules for this field; the value is not used). An empty value removes the field. It also replaces the fields that `forwarded-headers` adds. The value may contain \
              placeholders. `{client}` is the client's address; `{host}`, `{path}`, `{query}` and `{scheme}` are \
              those of the request. `{user}` is the user of `basic-auth`, and `{request.header.NAME}` a field that \
              the client sent. `{request_id}` is 32 random hexadecimal digits, the same everywhere in one request. \
              `{tls_version}`, `{tls_cipher_suite}`, `{tls_server_name}` and `{tls_client}` (the subject of the \
              client certificate) are empty without TLS. Write `{{` for a brace. Replacing a field also replaces one \
              with underscores in its name, because many applications treat both alike.",
        example: r#"request-header "X-Request-Id" "{request_id}" action="default""#,
        known_as: KnownAs {
            nginx: &["proxy_set_header", "fastcgi_param", "proxy_pass_request_headers", "grpc_set_header"],
            apache: &["RequestHeader", "UnsetEnv"],
            caddy: &["request_header", "header_up"],
            others: &["http-request set-header"],
        },
        set: OptionSetter::Rules(|rules, values| rules.request_fields.push(field_edit(values))),
        ..OPTION
    },
    OptionDefinition {
        name: "response-header",
        parameters: &[
            optional("path", ValueKind::PathPattern),
            one("name", ValueKind::FieldName),
            one("value", ValueKind::FieldTemplate(Place::Response)),
            property("action", ValueKind::Choice(ACTIONS)),
            property("when", ValueKind::Condition(Place::Response)),
        ],
        repeatable: true,
        doc: "Sets a header field of all responses, whatever handler sends them, error pages and redirects included. \
              Actions and placeholders are those of `request-header`. `action=keep` leaves a part of the site out. \
              For static files alone, such as `Cache-Control`, prefer `header`, which has no cost per request.",
        example: r#"response-header "Strict-Transport-Security" "max-age=31536000""#,
        known_as: KnownAs {
            nginx: &[
                "add_header",
                "proxy_hide_header",
                "proxy_pass_header",
                "fastcgi_hide_header",
                "proxy_ignore_headers",
                "add_header_inherit",
            ],
            apache: &["Header", "mod_headers"],
            caddy: &["header", "header_down"],
            others: &[
                "setenv.add-response-header",
                "http-response",
                "more_set_headers",
                "more_clear_headers",
                "headers_more",
                "cors",
            ],
        },
        set: OptionSetter::Rules(|rules, values| rules.response_fields.push(field_edit(values))),
        ..OPTION
    },
];

const CLIENT_PARAMETERS: [Parameter; 2] = [many("client", ValueKind::Client), property("path", ValueKind::PathPattern)];

/// Conditions of redirects and rewrites; all except the last also apply to `allow` and `deny`, and to handlers.
pub(super) const CONDITIONS: [Parameter; 4] = [
    property("method", ValueKind::Methods),
    property("query", ValueKind::QueryTest),
    property("field", ValueKind::FieldTest),
    property("missing", ValueKind::Flag),
];

/// Statuses that `auto-ban` counts if it names none.
const REJECTIONS: [Status; 4] = [Status::UNAUTHORIZED, Status::FORBIDDEN, Status::NOT_FOUND, Status::TOO_MANY_REQUESTS];

/// Time of a ban by `auto-ban`.
const BAN_TIME: ValueKind = ValueKind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(365 * 86_400) };

/// Rate of clients that `auto-ban` limits.
const LIMIT_DEFAULT: Rate = Rate { count: 10, period: Duration::from_secs(60) };

const BAN_TIME_DEFAULT: Duration = Duration::from_secs(3_600);

/// Condition of a rule that is applied before a password has shown who the user is.
const WHEN: Parameter = property("when", ValueKind::Condition(Place::Guard));

/// Time limit of an authentication server.
const AUTH_TIMEOUT: ValueKind = ValueKind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(600) };

const AUTH_PROTOCOLS: &[&str] = &["http", "grpc"];

const SATISFY: &[&str] = &["all", "any"];

const ACTIONS: &[&str] = &["set", "add", "default", "keep"];

fn path(values: &Values) -> PathPattern {
    values.path_pattern("path").unwrap_or(PathPattern::Any)
}

fn client_rule(is_allowed: bool, values: &Values) -> ClientRule {
    let (clients, files) = values.clients("client");
    let status = values.status("status").unwrap_or(Status::FORBIDDEN);
    let is_internal = values.flag("internal").unwrap_or(false);
    ClientRule {
        path: path(values),
        conditions: conditions(values),
        is_allowed,
        is_internal,
        is_final: is_internal || values.text("satisfy").as_deref() == Some("all"),
        clients,
        files,
        status,
    }
}

/// Rejects requests of clients for these paths.
fn internal(path: PathPattern, when: Option<Condition>) -> ClientRule {
    let (conditions, clients) = (RuleConditions { when, ..RuleConditions::default() }, vec![ClientPattern::All]);
    ClientRule {
        path,
        conditions,
        is_allowed: false,
        is_internal: true,
        is_final: true,
        clients,
        files: Vec::new(),
        status: Status::NOT_FOUND,
    }
}

/// Conditions of a rule or route.
pub(crate) fn conditions(values: &Values) -> RuleConditions {
    RuleConditions {
        methods: values.methods("method"),
        query: values.query_test("query"),
        field: values.field_test("field"),
        when: values.condition("when"),
        is_missing: values.flag("missing").unwrap_or(false),
    }
}

fn forward_auth(upstream: String, values: &Values) -> ForwardAuth {
    let mut forward = ForwardConfig::to(upstream);
    forward.first_byte_timeout = values.duration("timeout").unwrap_or(Duration::from_secs(10));
    forward.between_bytes_timeout = forward.first_byte_timeout;
    // Nothing of these exchanges is large, and none is a tunnel.
    (forward.buffers.requests, forward.buffers.responses) = (Buffering::Off, Buffering::Off);
    forward.upgrades = Vec::new();
    forward.host = forward_host(values);
    let login = |target| Rewrite {
        path: PathPattern::Any,
        conditions: RuleConditions::default(),
        target: with_variables(&PathPattern::Any, target),
        status: Some(Status::FOUND),
        is_after_auth: false,
    };
    ForwardAuth {
        login: values.template("login").map(login).map(Box::new),
        forward: Box::new(forward),
        target: values.text("uri").unwrap_or_else(|| "/".into()),
        copies: values.field_copies("copy-headers").unwrap_or_default(),
        follows_location: values.flag("follow-location").unwrap_or(false),
        passes_cookies: values.flag("pass-cookies").unwrap_or(false),
        protocol: match values.text("protocol").as_deref() {
            Some("grpc") => AuthProtocol::Grpc,
            _ => AuthProtocol::Http,
        },
        body_bytes_max: values.integer("body-bytes-max"),
        asked_fields: Vec::new(),
    }
}

fn rewrite(status: Option<Status>, values: &Values) -> Rewrite {
    Rewrite {
        path: path(values),
        conditions: conditions(values),
        target: with_variables(&path(values), values.template("target").unwrap_or_default()),
        status,
        is_after_auth: values.flag("after-auth").unwrap_or(false),
    }
}

fn field_edit(values: &Values) -> FieldEdit {
    FieldEdit {
        path: path(values),
        when: values.condition("when"),
        name: values.text("name").unwrap_or_default(),
        value: values.template("value").unwrap_or_default(),
        action: match values.text("action").as_deref() {
            Some("add") => Some(FieldAction::Add),
            Some("default") => Some(FieldAction::Default),
            Some("keep") => None,
            _ => Some(FieldAction::Set),
        },
    }
}
