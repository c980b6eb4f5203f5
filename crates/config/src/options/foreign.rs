//! Directives of other servers that no option corresponds to, and why. Together with [`KnownAs`] of the options, they
//! tell people who come from those servers what to do. The importer uses the entries of nginx that need nothing.
//!
//! [`KnownAs`]: super::KnownAs

use std::fmt;

/// Directives of one server, and what you need instead.
pub(crate) struct ForeignNote {
    /// Name of the server, for people.
    pub(crate) server: &'static str,
    pub(crate) names: &'static [&'static str],
    pub(crate) answer: Answer,
}

/// Advice in place of a directive. Texts complete a sentence: they begin with a lowercase letter or a name, and have no
/// full stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// You need nothing, and why.
    NeedsNothing(&'static str),
    /// Tailcoat cannot do it, and what to use instead.
    NotSupported(&'static str),
}

impl fmt::Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeedsNothing(why) => write!(formatter, "needs nothing here, because {why}"),
            Self::NotSupported(why) => write!(formatter, "not supported: {why}"),
        }
    }
}

/// Finds the note on a directive; letter case does not matter.
pub(crate) fn note(name: &str) -> Option<&'static ForeignNote> {
    notes(name).next()
}

/// Name of the same directive for `proxy_pass`: nginx repeats most of them for each protocol.
pub(crate) fn of_proxy(name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    let families = ["fastcgi_", "grpc_", "scgi_", "uwsgi_", "memcached_"];
    families.iter().find_map(|family| Some(format!("proxy_{}", name.strip_prefix(family)?)))
}

/// Finds notes on directives of which the word is a part.
pub(crate) fn notes_with(part: &str) -> impl Iterator<Item = (&'static ForeignNote, &'static str)> {
    NOTES.iter().filter_map(move |note| Some((note, *note.names.iter().find(|name| contains(name, part))?)))
}

fn contains(name: &str, part: &str) -> bool {
    part.len() > 2 && name.to_ascii_lowercase().contains(&part.to_ascii_lowercase())
}

/// Finds the notes on a directive in all servers.
pub(crate) fn notes(name: &str) -> impl Iterator<Item = &'static ForeignNote> {
    NOTES.iter().filter(move |note| note.names.iter().any(|known| known.eq_ignore_ascii_case(name)))
}

/// Reason why a directive of nginx needs nothing here.
pub fn needless_in_nginx(name: &str) -> Option<&'static str> {
    let found = NOTES.iter().filter(|note| note.server == NGINX && note.names.contains(&name));
    found.into_iter().find_map(|note| match note.answer {
        Answer::NeedsNothing(why) => Some(why),
        Answer::NotSupported(_) => None,
    })
}

const NGINX: &str = "nginx";
const APACHE: &str = "Apache";
const CADDY: &str = "Caddy";

const fn needs_nothing(server: &'static str, names: &'static [&'static str], why: &'static str) -> ForeignNote {
    ForeignNote { server, names, answer: Answer::NeedsNothing(why) }
}

const fn not_supported(server: &'static str, names: &'static [&'static str], instead: &'static str) -> ForeignNote {
    ForeignNote { server, names, answer: Answer::NotSupported(instead) }
}

/// All notes, by server.
pub(crate) static NOTES: &[ForeignNote] = &[
    needs_nothing(
        NGINX,
        &[
            "sendfile",
            "sendfile_max_chunk",
            "aio",
            "aio_write",
            "directio",
            "directio_alignment",
            "tcp_nopush",
            "tcp_nodelay",
            "output_buffers",
            "postpone_output",
            "read_ahead",
            "send_lowat",
            "proxy_send_lowat",
            "ssl_buffer_size",
            "http2_chunk_size",
        ],
        "files are always sent in the cheapest way",
    ),
    needs_nothing(
        NGINX,
        &["open_file_cache", "open_file_cache_valid", "open_file_cache_min_uses", "open_file_cache_errors"],
        "files are cached in memory and checked again when they change",
    ),
    needs_nothing(
        NGINX,
        &[
            "types_hash_max_size",
            "types_hash_bucket_size",
            "server_names_hash_bucket_size",
            "server_names_hash_max_size",
            "variables_hash_max_size",
            "variables_hash_bucket_size",
            "map_hash_max_size",
            "map_hash_bucket_size",
            "connection_pool_size",
            "request_pool_size",
            "client_header_buffer_size",
            "client_body_buffer_size",
            "proxy_headers_hash_max_size",
            "proxy_headers_hash_bucket_size",
            "limit_conn_zone_size",
            "subrequest_output_buffer_size",
            "client_body_temp_path",
            "client_body_in_file_only",
            "client_body_in_single_buffer",
            "proxy_busy_buffers_size",
            "proxy_temp_file_write_size",
            "referer_hash_bucket_size",
            "http2_max_header_size",
        ],
        "tables and buffers grow to the size they need",
    ),
    needs_nothing(
        NGINX,
        &[
            "gzip_types",
            "gzip_proxied",
            "gzip_vary",
            "gzip_disable",
            "gzip_http_version",
            "gzip_buffers",
            "brotli_types",
            "zstd_types",
        ],
        "content of compressible types is compressed for all clients that accept it, and `Vary` is always sent",
    ),
    not_supported(
        NGINX,
        &["gunzip", "gunzip_buffers"],
        "compressed responses of an upstream pass unchanged; it should look at `Accept-Encoding`",
    ),
    needs_nothing(
        NGINX,
        &[
            "reset_timedout_connection",
            "lingering_close",
            "lingering_time",
            "lingering_timeout",
            "keepalive_disable",
            "keepalive_min_timeout",
            "chunked_transfer_encoding",
            "msie_padding",
            "msie_refresh",
            "etag",
            "if_modified_since",
            "max_ranges",
            "absolute_redirect",
            "port_in_redirect",
            "server_name_in_redirect",
            "merge_slashes",
            "underscores_in_headers",
            "ignore_invalid_headers",
            "port",
            "early_hints",
            "proxy_force_ranges",
            "proxy_cache_max_range_offset",
        ],
        "connections, ranges and conditional requests are handled as the RFCs say",
    ),
    needs_nothing(
        NGINX,
        &["resolver", "resolver_timeout"],
        "names of upstream servers are resolved by the system's resolver",
    ),
    needs_nothing(
        NGINX,
        &["autoindex_exact_size", "autoindex_localtime", "autoindex_format"],
        "listings show sizes and times, and are JSON for clients that ask for it",
    ),
    needs_nothing(NGINX, &["http"], "settings for all sites stand at the top level of the file"),
    needs_nothing(
        NGINX,
        &["daemon", "master_process"],
        "the server runs in the foreground, and your service manager starts it",
    ),
    needs_nothing(
        NGINX,
        &["use", "multi_accept", "accept_mutex", "accept_mutex_delay", "worker_aio_requests", "timer_resolution"],
        "each worker waits for its own connections with epoll",
    ),
    needs_nothing(NGINX, &["pcre_jit"], "regular expressions always run in linear time"),
    needs_nothing(NGINX, &["pid", "lock_file"], "the server writes no such file"),
    needs_nothing(
        NGINX,
        &["log_subrequest", "open_log_file_cache"],
        "access logs are always open, and log each request once",
    ),
    needs_nothing(
        NGINX,
        &[
            "ssl_ecdh_curve",
            "ssl_dhparam",
            "ssl_conf_command",
            "ssl_prefer_server_ciphers",
            "proxy_ssl_ciphers",
            "proxy_ssl_protocols",
            "proxy_ssl_conf_command",
            "proxy_ssl_session_reuse",
            "ssl_certificate_cache",
        ],
        "only strong cipher suites and key exchange groups are available",
    ),
    needs_nothing(
        NGINX,
        &["proxy_cache_methods", "proxy_cache_min_uses", "proxy_cache_revalidate", "proxy_cache_convert_head"],
        "the cache handles GET and HEAD, and validates stale responses, as RFC 9111 says",
    ),
    needs_nothing(NGINX, &["proxy_store_access"], "responses are cached in memory, not in files"),
    needs_nothing(
        NGINX,
        &["http2_max_requests", "http2_recv_timeout", "http2_idle_timeout"],
        "`requests-per-connection-max`, `head-timeout` and `idle-timeout` hold for all versions of HTTP",
    ),
    not_supported(NGINX, &["api"], "run `tailcoat status --json`, `tailcoat drain` and `tailcoat set` on the server"),
    needs_nothing(NGINX, &["zone"], "all workers share the state of an upstream"),
    needs_nothing(NGINX, &["recursive_error_pages"], "an error page never triggers another one"),
    needs_nothing(
        NGINX,
        &["uninitialized_variable_warn", "rewrite_log", "break"],
        "only the first `rewrite` or `redirect` that matches is applied",
    ),
    needs_nothing(
        NGINX,
        &[
            "http3",
            "quic",
            "quic_retry",
            "quic_gso",
            "quic_bpf",
            "quic_host_key",
            "quic_active_connection_id_limit",
            "http3_hq",
            "http3_max_concurrent_streams",
            "http3_stream_buffer_size",
        ],
        "HTTP/3 is on for all listeners with TLS; `http-versions` turns it off",
    ),
    not_supported(
        NGINX,
        &["http2_push", "http2_push_preload", "http2_max_concurrent_pushes"],
        "Tailcoat has no server push, which browsers removed; add `Link` with `response-header`",
    ),
    not_supported(
        NGINX,
        &["proxy_limit_rate", "proxy_upload_rate", "proxy_download_rate"],
        "`connection-rate-max` limits what clients get, and not what upstreams send",
    ),
    not_supported(
        NGINX,
        &["auth_jwt", "auth_jwt_key_file", "auth_oidc", "access_by_lua", "access_by_lua_block"],
        "check access in the application, in an authentication server (`forward-auth`), or in a WebAssembly `module`",
    ),
    not_supported(
        NGINX,
        &[
            "sub_filter_last_modified",
            "addition_types",
            "add_before_body",
            "add_after_body",
            "ssi",
            "ssi_types",
            "ssi_silent_errors",
            "xslt_stylesheet",
            "image_filter",
            "image_filter_buffer",
            "image_filter_jpeg_quality",
            "pagespeed",
            "charset_map",
            "source_charset",
            "override_charset",
        ],
        "change responses in the application, or in a WebAssembly `module`",
    ),
    not_supported(
        NGINX,
        &[
            "geoip_city",
            "geoip_proxy",
            "geoip_proxy_recursive",
            "js_import",
            "js_set",
            "perl",
            "lua_package_path",
            "lua_shared_dict",
            "rewrite_by_lua_block",
            "ancient_browser",
            "ancient_browser_value",
            "modern_browser",
            "modern_browser_value",
        ],
        "there are no scripts in the configuration; use `map` and the condition `when`, or a WebAssembly `module`",
    ),
    not_supported(
        NGINX,
        &[
            "random_index",
            "empty_gif",
            "mp4",
            "flv",
            "hls",
            "slice",
            "dav_methods",
            "dav_access",
            "create_full_put_path",
            "min_delete_depth",
            "upload_pass",
            "content_by_lua_block",
        ],
        "use `forward` to an application, or a WebAssembly `module`",
    ),
    not_supported(
        NGINX,
        &["secure_link", "secure_link_secret", "secure_link_md5"],
        "check links in the application, or in a WebAssembly `module`",
    ),
    not_supported(
        NGINX,
        &[
            "stream",
            "mail",
            "auth_http",
            "xclient",
            "memcached_pass",
            "tunnel_pass",
            "ssl_preread",
            "preread_timeout",
            "ntlm",
        ],
        "Tailcoat serves HTTP only; `forward` speaks HTTP to upstreams",
    ),
    not_supported(
        NGINX,
        &["modsecurity", "modsecurity_rules_file"],
        "there is no ModSecurity; `deny` matches requests, and a WebAssembly `module` can filter them",
    ),
    not_supported(NGINX, &["least_time"], "`balance` has `least-connections`, which also favors fast servers"),
    not_supported(NGINX, &["state"], "upstreams are those of the file; write `server` into `upstream` and reload"),
    not_supported(NGINX, &["echo"], "use `respond` for a fixed text"),
    not_supported(NGINX, &["proxy_cache_purge", "ngx_cache_purge"], "run `tailcoat cache purge URL`"),
    not_supported(NGINX, &["fancyindex"], "`browse` lists directories in one layout"),
    not_supported(NGINX, &["session_log"], "`access-log` logs requests"),
    not_supported(NGINX, &["google_perftools_profiles"], "profile the process with `perf`"),
    not_supported(
        NGINX,
        &["valid_referers", "referer_hash_max_size"],
        "test the header field `Referer` with the condition `when` of `deny`",
    ),
    not_supported(
        NGINX,
        &["userid", "userid_name", "userid_domain", "userid_expires"],
        "set cookies in the application, or with `response-header`",
    ),
    not_supported(
        NGINX,
        &["ssl_engine", "ssl_password_file", "proxy_ssl_password_file"],
        "the `key` of `certificate` must be an unencrypted PEM file",
    ),
    not_supported(
        NGINX,
        &["ssl_ocsp", "ssl_ocsp_cache", "ssl_ocsp_responder", "proxy_ssl_crl"],
        "certificates of clients (`client-certificate`) and upstreams are not checked for revocation; issue them for a short time",
    ),
    not_supported(
        NGINX,
        &["ssl_stapling_verify", "ssl_stapling_responder"],
        "fetch the OCSP response yourself, and set `ocsp` of `certificate`",
    ),
    not_supported(
        NGINX,
        &["proxy_bind", "proxy_socket_keepalive", "proxy_method", "proxy_set_body", "proxy_pass_request_body"],
        "requests are forwarded unchanged except for `request-header`",
    ),
    not_supported(
        NGINX,
        &["ssl_reject_handshake"],
        "a client that requests an unknown name gets the default site, where `deny all` can reject it",
    ),
    not_supported(NGINX, &["proxy_cookie_flags"], "attributes of cookies pass unchanged; set them in the application"),
    not_supported(NGINX, &["add_trailer"], "responses keep the trailers of the upstream (`response-trailers`)"),
    not_supported(
        NGINX,
        &["working_directory", "debug_points", "debug_connection", "worker_rlimit_core", "worker_priority"],
        "set it in the unit of your service manager",
    ),
    needs_nothing(APACHE, &["ServerRoot"], "relative paths start from the directory of the configuration file"),
    needs_nothing(
        APACHE,
        &["RewriteLog", "RewriteLogLevel"],
        "only the first `rewrite` or `redirect` that matches is applied",
    ),
    needs_nothing(
        APACHE,
        &["IfModule", "IfDefine", "IfVersion", "Define", "UnDefine", "LoadFile"],
        "all features are built in",
    ),
    needs_nothing(APACHE, &["UndefMacro"], "a `snippet` is only a name"),
    needs_nothing(
        APACHE,
        &[
            "MinSpareThreads",
            "MaxSpareThreads",
            "MinSpareServers",
            "MaxSpareServers",
            "ThreadLimit",
            "MaxConnectionsPerChild",
            "Mutex",
            "AsyncRequestWorkerFactor",
            "StartThreads",
            "ThreadStackSize",
            "MaxMemFree",
            "ScoreBoardFile",
            "WatchdogInterval",
        ],
        "a fixed number of workers handles all connections (`workers`)",
    ),
    needs_nothing(
        APACHE,
        &[
            "EnableSendfile",
            "EnableMMAP",
            "SendBufferSize",
            "ReceiveBufferSize",
            "ReadBufferSize",
            "ProxyReceiveBufferSize",
        ],
        "files are always sent in the cheapest way",
    ),
    needs_nothing(APACHE, &["HostnameLookups"], "logs contain addresses, not names"),
    needs_nothing(APACHE, &["FileETag"], "responses for files always carry an ETag"),
    not_supported(APACHE, &["TraceEnable"], "use `deny all method=\"TRACE\"`"),
    needs_nothing(
        APACHE,
        &["DeflateMemLevel", "DeflateFilterNote", "FilterDeclare", "FilterChain"],
        "content of compressible types is compressed for all clients that accept it",
    ),
    needs_nothing(
        APACHE,
        &[
            "IndexOptions",
            "IndexIgnore",
            "IndexOrderDefault",
            "IndexStyleSheet",
            "AddIcon",
            "AddAlt",
            "DefaultIcon",
            "AddDescription",
            "HeaderName",
            "ReadmeName",
            "FancyIndexing",
        ],
        "listings have one layout, and are JSON for clients that ask for it",
    ),
    needs_nothing(APACHE, &["ProxyRequests"], "Tailcoat is a reverse proxy only"),
    needs_nothing(APACHE, &["DirectorySlash"], "a directory requested without the slash is always redirected to it"),
    needs_nothing(APACHE, &["AllowEncodedSlashes"], "encoded slashes are decoded before rules and files are matched"),
    needs_nothing(
        APACHE,
        &[
            "SSLRandomSeed",
            "SSLCompression",
            "SSLInsecureRenegotiation",
            "SSLCryptoDevice",
            "SSLOpenSSLConfCmd",
            "SSLPolicy",
            "SSLProxyProtocol",
            "SSLProxyEngine",
        ],
        "TLS uses only secure settings",
    ),
    not_supported(
        APACHE,
        &["AllowOverride", "AccessFileName", "AllowOverrideList", ".htaccess", "htaccess"],
        "Tailcoat reads no `.htaccess` files; `tailcoat import` translates them into rules of the `site`",
    ),
    not_supported(
        APACHE,
        &["Options", "XBitHack", "SSIEndTag", "SSIErrorMsg", "Includes", "mod_include"],
        "there are no server-side includes; `browse` lists directories and `cgi` runs programs",
    ),
    not_supported(
        APACHE,
        &[
            "AuthDigestProvider",
            "AuthDBDUserPWQuery",
            "AuthLDAPURL",
            "AuthFormProvider",
            "AuthGroupFile",
            "AuthzProviderAlias",
            "Anonymous",
        ],
        "`basic-auth` reads one file of users; check other accounts in the application",
    ),
    not_supported(
        APACHE,
        &[
            "OutputSed",
            "ExtFilterDefine",
            "SetOutputFilter",
            "AddOutputFilter",
            "AddInputFilter",
            "SetInputFilter",
            "LuaHookFixups",
            "CharsetDefault",
            "xml2EncDefault",
        ],
        "change responses in the application, or in a WebAssembly `module`",
    ),
    not_supported(
        APACHE,
        &["SecRule", "SecRuleEngine", "mod_security"],
        "there is no ModSecurity; `deny` matches requests, and a WebAssembly `module` can filter them",
    ),
    not_supported(
        APACHE,
        &["UserDir", "mod_userdir"],
        "use `rewrite` and `files`, see the section Home pages of users in the manual",
    ),
    not_supported(APACHE, &["mod_php"], "run PHP-FPM, and use `fastcgi`"),
    not_supported(APACHE, &["mod_wsgi"], "run the application with its own server, and use `forward` or `uwsgi`"),
    not_supported(APACHE, &["mod_evasive", "QosClientEntries"], "use `rate-limit` and `request-limit`"),
    not_supported(
        APACHE,
        &["H2Push", "H2PushResource"],
        "Tailcoat has no server push; add `Link` with `response-header`",
    ),
    not_supported(
        APACHE,
        &["ProxyRemote", "NoProxy", "ProxySourceAddress"],
        "`forward` connects straight to the `server`",
    ),
    not_supported(APACHE, &["ProxyBlock", "AllowCONNECT"], "Tailcoat is a reverse proxy only; `deny` rejects paths"),
    not_supported(
        APACHE,
        &["SSLCARevocationFile", "SSLOCSPEnable"],
        "certificates of clients are not checked for revocation; issue them for a short time, see `client-certificate`",
    ),
    not_supported(APACHE, &["SSLPassPhraseDialog"], "the `key` of `certificate` must be an unencrypted PEM file"),
    not_supported(APACHE, &["SSLFIPS"], "there is no FIPS mode; `tls-cipher-suites` chooses the suites"),
    not_supported(
        APACHE,
        &["SSLRequire", "SSLOptions", "SSLUserName"],
        "`client-certificate` requires certificates; scripts get variables of TLS, and `request-header` can send `{tls_client}`",
    ),
    not_supported(APACHE, &["Session", "SessionCookieName", "CookieTracking"], "keep sessions in the application"),
    not_supported(APACHE, &["MimeMagicFile"], "types come from names of files: use `type`"),
    not_supported(
        APACHE,
        &["AddEncoding"],
        "`precompressed` serves files with `.br`, `.zst` and `.gz` beside the originals",
    ),
    not_supported(
        APACHE,
        &["DumpIOInput", "ForensicLog", "LogMessage"],
        "use `access-log`, and `log-level` of `server`",
    ),
    not_supported(APACHE, &["ImapBase", "ReflectorHeader", "Example", "MetaFiles"], "no option comes near"),
    needs_nothing(
        APACHE,
        &["MergeSlashes", "AcceptPathInfo", "ModMimeUsePathInfo"],
        "paths are normalised before rules and files are matched, and only scripts get the rest of a path",
    ),
    needs_nothing(
        APACHE,
        &["CacheDirLevels", "CacheSocache", "CacheStoreExpired", "CacheStoreNoStore"],
        "responses are cached as RFC 9111 says, in memory and on disk (`disk`)",
    ),
    needs_nothing(
        APACHE,
        &["KeptBodySize", "BufferSize"],
        "request bodies are buffered as upstreams need them (`request-buffering`)",
    ),
    needs_nothing(APACHE, &["ServerAdmin"], "error pages name no address; write your own with `error-page`"),
    needs_nothing(
        APACHE,
        &["SSLStrictSNIVHostCheck", "StrictHostCheck", "UseCanonicalPhysicalPort"],
        "a request always gets the site of its host",
    ),
    needs_nothing(
        APACHE,
        &["SSLStaplingCache"],
        "OCSP responses come from the file that `ocsp` of `certificate` names",
    ),
    not_supported(
        APACHE,
        &["CheckSpelling", "CheckCaseOnly", "LanguagePriority", "AddLanguage"],
        "files are found by their exact names, and no option changes that",
    ),
    not_supported(APACHE, &["Dav", "DavLockDB", "mod_dav"], "use `forward` to a WebDAV server"),
    not_supported(APACHE, &["ProxyHTMLEnable", "ProxyHTMLURLMap"], "replace links with `substitute`"),
    not_supported(
        APACHE,
        &["php_value", "php_admin_value", "php_flag"],
        "set it in the configuration of PHP-FPM, or with `variable \"PHP_VALUE\"`",
    ),
    needs_nothing(CADDY, &["named_routes", "invoke"], "`include` reads shared files, and `use` inserts snippets"),
    not_supported(
        CADDY,
        &["on_demand_tls", "on_demand", "ask"],
        "automatic certificates are for the names of `site` blocks",
    ),
    needs_nothing(CADDY, &["h3", "http3"], "HTTP/3 is on for all listeners with TLS; `http-versions` turns it off"),
    not_supported(CADDY, &["strip_suffix"], "use `rewrite` with a regular expression"),
    not_supported(CADDY, &["fs"], "files are served from `root` on a disk"),
    not_supported(CADDY, &["unhealthy_latency"], "set `first-byte-timeout`; `fail-max` counts such failures"),
    needs_nothing(CADDY, &["caddyfile"], "the configuration is KDL: see the page Coming from Caddy of the manual"),
    needs_nothing(CADDY, &["strict_sni_host"], "a request always gets the site of its host"),
    needs_nothing(CADDY, &["pass_thru", "disable_canonical_uri"], "requests without a file go to the next handler"),
    needs_nothing(CADDY, &["log_credentials"], "access logs have no passwords and cookies, unless a format names them"),
    needs_nothing(
        CADDY,
        &["ocsp_stapling", "ocsp_interval"],
        "OCSP responses come from the file that `ocsp` of `certificate` names",
    ),
    needs_nothing(
        CADDY,
        &["storage_clean_interval", "storage_check", "persist_config"],
        "certificates are stored in the state directory",
    ),
    needs_nothing(
        CADDY,
        &["curves", "key_type", "cert_lifetime", "renewal_window_ratio", "preferred_chains"],
        "keys and curves are strong, and the CA says when to renew",
    ),
    needs_nothing(
        CADDY,
        &["stream_close_delay", "stream_buffer_size", "trusted_proxies_unix"],
        "upgraded connections survive a reload",
    ),
    needs_nothing(
        CADDY,
        &["tls_renegotiation", "tls_timeout", "compression"],
        "connections to upstreams use safe settings",
    ),
    not_supported(
        CADDY,
        &["local_address", "network_proxy", "tls_except_ports"],
        "connections to upstreams go straight to the address of each `server`",
    ),
    not_supported(
        CADDY,
        &["skip_install_trust", "local_certs", "pki", "internal"],
        "use your own CA's ACME `directory`; `tailcoat serve --tls` makes a certificate for tests",
    ),
    needs_nothing(CADDY, &["default_sni", "fallback_sni"], "clients without SNI get the default site of the listener"),
    not_supported(
        CADDY,
        &["templates", "push", "copy_response", "copy_response_headers"],
        "change responses in the application, or in a WebAssembly `module`",
    ),
    not_supported(
        CADDY,
        &["vars_regexp", "expression", "log_append", "log_name"],
        "use `map`, and the condition `when` of rules and handlers",
    ),
    not_supported(
        CADDY,
        &["method", "header_regexp", "path_regexp", "query", "not", "protocol", "file"],
        "use path patterns, and the conditions `method`, `query`, `field`, `missing` and `when` of rules and handlers",
    ),
    not_supported(CADDY, &["error"], "use `respond` with the status, and `error-page`"),
    not_supported(CADDY, &["filter", "ip_mask"], "leave fields out of the `format` of `access-log`"),
    not_supported(CADDY, &["roll_size", "roll_keep", "roll_keep_for"], "rotate logs with logrotate, and send SIGUSR1"),
    not_supported(CADDY, &["events", "layer4"], "Tailcoat serves HTTP only; no option comes near"),
];
