//! People who come from another server find each option by the name they know.

use crate::manual::lookup;
use crate::options::{OptionContext, foreign};

const NGINX: &[&str] = &[
    // ngx_http_core_module and the core
    "absolute_redirect",
    "aio",
    "alias",
    "auth_delay",
    "chunked_transfer_encoding",
    "client_body_buffer_size",
    "client_body_in_file_only",
    "client_body_temp_path",
    "client_body_timeout",
    "client_header_buffer_size",
    "client_header_timeout",
    "client_max_body_size",
    "connection_pool_size",
    "daemon",
    "default_type",
    "directio",
    "disable_symlinks",
    "env",
    "error_log",
    "error_page",
    "etag",
    "events",
    "http",
    "http2",
    "http3",
    "if_modified_since",
    "ignore_invalid_headers",
    "include",
    "internal",
    "keepalive_disable",
    "keepalive_requests",
    "keepalive_timeout",
    "large_client_header_buffers",
    "limit_except",
    "limit_rate",
    "limit_rate_after",
    "lingering_close",
    "lingering_time",
    "lingering_timeout",
    "listen",
    "load_module",
    "location",
    "log_not_found",
    "log_subrequest",
    "master_process",
    "max_ranges",
    "merge_slashes",
    "multi_accept",
    "accept_mutex",
    "open_file_cache",
    "open_file_cache_valid",
    "output_buffers",
    "pcre_jit",
    "pid",
    "port_in_redirect",
    "postpone_output",
    "read_ahead",
    "recursive_error_pages",
    "request_pool_size",
    "reset_timedout_connection",
    "resolver",
    "resolver_timeout",
    "root",
    "satisfy",
    "send_lowat",
    "send_timeout",
    "sendfile",
    "sendfile_max_chunk",
    "server",
    "server_name",
    "server_name_in_redirect",
    "server_names_hash_bucket_size",
    "server_tokens",
    "tcp_nodelay",
    "tcp_nopush",
    "thread_pool",
    "try_files",
    "types",
    "types_hash_max_size",
    "underscores_in_headers",
    "use",
    "user",
    "variables_hash_max_size",
    "worker_connections",
    "worker_cpu_affinity",
    "worker_processes",
    "worker_rlimit_nofile",
    "worker_shutdown_timeout",
    // access, auth_basic, autoindex, headers, index, log
    "allow",
    "deny",
    "auth_basic",
    "auth_basic_user_file",
    "auth_request",
    "autoindex",
    "autoindex_exact_size",
    "autoindex_format",
    "autoindex_localtime",
    "add_header",
    "add_trailer",
    "expires",
    "index",
    "access_log",
    "log_format",
    "open_log_file_cache",
    // gzip, gzip_static, charset
    "gzip",
    "gzip_buffers",
    "gzip_comp_level",
    "gzip_disable",
    "gzip_http_version",
    "gzip_min_length",
    "gzip_proxied",
    "gzip_static",
    "gzip_types",
    "gzip_vary",
    "gunzip",
    "charset",
    // limit_conn, limit_req, realip, rewrite, stub_status, map, geo
    "limit_conn",
    "limit_conn_dry_run",
    "limit_conn_log_level",
    "limit_conn_status",
    "limit_conn_zone",
    "limit_req",
    "limit_req_dry_run",
    "limit_req_log_level",
    "limit_req_status",
    "limit_req_zone",
    "set_real_ip_from",
    "real_ip_header",
    "real_ip_recursive",
    "break",
    "if",
    "return",
    "rewrite",
    "rewrite_log",
    "set",
    "stub_status",
    "map",
    "geo",
    "sub_filter",
    // proxy
    "proxy_bind",
    "proxy_buffer_size",
    "proxy_buffering",
    "proxy_buffers",
    "proxy_busy_buffers_size",
    "proxy_cache",
    "proxy_cache_background_update",
    "proxy_cache_bypass",
    "proxy_cache_key",
    "proxy_cache_lock",
    "proxy_cache_lock_age",
    "proxy_cache_lock_timeout",
    "proxy_cache_methods",
    "proxy_cache_min_uses",
    "proxy_cache_path",
    "proxy_cache_revalidate",
    "proxy_cache_use_stale",
    "proxy_cache_valid",
    "proxy_connect_timeout",
    "proxy_cookie_domain",
    "proxy_cookie_path",
    "proxy_headers_hash_bucket_size",
    "proxy_hide_header",
    "proxy_http_version",
    "proxy_ignore_client_abort",
    "proxy_ignore_headers",
    "proxy_intercept_errors",
    "proxy_limit_rate",
    "proxy_max_temp_file_size",
    "proxy_next_upstream",
    "proxy_next_upstream_timeout",
    "proxy_next_upstream_tries",
    "proxy_no_cache",
    "proxy_pass",
    "proxy_pass_header",
    "proxy_pass_request_headers",
    "proxy_read_timeout",
    "proxy_redirect",
    "proxy_request_buffering",
    "proxy_send_timeout",
    "proxy_set_header",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "proxy_ssl_name",
    "proxy_ssl_server_name",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_verify",
    "proxy_store",
    "proxy_temp_path",
    // fastcgi, scgi, uwsgi, grpc
    "fastcgi_buffering",
    "fastcgi_buffers",
    "fastcgi_cache",
    "fastcgi_cache_bypass",
    "fastcgi_cache_key",
    "fastcgi_cache_path",
    "fastcgi_cache_valid",
    "fastcgi_catch_stderr",
    "fastcgi_connect_timeout",
    "fastcgi_hide_header",
    "fastcgi_index",
    "fastcgi_intercept_errors",
    "fastcgi_keep_conn",
    "fastcgi_no_cache",
    "fastcgi_param",
    "fastcgi_pass",
    "fastcgi_read_timeout",
    "fastcgi_request_buffering",
    "fastcgi_send_timeout",
    "fastcgi_split_path_info",
    "scgi_pass",
    "uwsgi_pass",
    "grpc_pass",
    // ssl
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_ciphers",
    "ssl_client_certificate",
    "ssl_crl",
    "ssl_dhparam",
    "ssl_early_data",
    "ssl_ecdh_curve",
    "ssl_prefer_server_ciphers",
    "ssl_protocols",
    "ssl_session_cache",
    "ssl_session_ticket_key",
    "ssl_session_tickets",
    "ssl_session_timeout",
    "ssl_stapling",
    "ssl_stapling_verify",
    "ssl_trusted_certificate",
    "ssl_verify_client",
    "ssl_verify_depth",
    // upstream
    "upstream",
    "keepalive",
    "keepalive_time",
    "least_conn",
    "ip_hash",
    "hash",
    "random",
    "sticky",
    "zone",
    "queue",
    "slow_start",
    "max_fails",
    "fail_timeout",
    "max_conns",
    "weight",
    "backup",
    "health_check",
];

const APACHE: &[&str] = &[
    "AccessFileName",
    "Action",
    "AddDefaultCharset",
    "AddHandler",
    "AddType",
    "Alias",
    "AllowEncodedSlashes",
    "AllowOverride",
    "AuthBasicProvider",
    "AuthName",
    "AuthType",
    "AuthUserFile",
    "BalancerMember",
    "CacheDefaultExpire",
    "CacheEnable",
    "CacheLock",
    "CacheMaxFileSize",
    "CacheStaleOnError",
    "CustomLog",
    "DefaultType",
    "DeflateCompressionLevel",
    "Directory",
    "DirectoryIndex",
    "DirectorySlash",
    "DocumentRoot",
    "EnableSendfile",
    "ErrorDocument",
    "ErrorLog",
    "ExpiresActive",
    "ExpiresByType",
    "FallbackResource",
    "Files",
    "FileETag",
    "ForceType",
    "GracefulShutdownTimeout",
    "Group",
    "Header",
    "HostnameLookups",
    "IfModule",
    "Include",
    "IncludeOptional",
    "IndexOptions",
    "KeepAlive",
    "KeepAliveTimeout",
    "LimitRequestBody",
    "LimitRequestFields",
    "LimitRequestFieldSize",
    "LimitRequestLine",
    "Listen",
    "ListenBacklog",
    "LoadModule",
    "Location",
    "LocationMatch",
    "LogFormat",
    "LogLevel",
    "MaxKeepAliveRequests",
    "MaxRanges",
    "MaxRequestWorkers",
    "MDomain",
    "Options",
    "PidFile",
    "Protocols",
    "ProxyErrorOverride",
    "ProxyPass",
    "ProxyPassReverse",
    "ProxyPreserveHost",
    "ProxyTimeout",
    "ProxyVia",
    "Redirect",
    "RedirectMatch",
    "RemoteIPHeader",
    "RemoteIPTrustedProxy",
    "RequestHeader",
    "RequestReadTimeout",
    "Require",
    "RewriteCond",
    "RewriteEngine",
    "RewriteRule",
    "Satisfy",
    "ScriptAlias",
    "ServerAlias",
    "ServerName",
    "ServerRoot",
    "ServerSignature",
    "ServerTokens",
    "SetEnv",
    "SetHandler",
    "SSLCACertificateFile",
    "SSLCertificateChainFile",
    "SSLCertificateFile",
    "SSLCertificateKeyFile",
    "SSLCipherSuite",
    "SSLEngine",
    "SSLHonorCipherOrder",
    "SSLProtocol",
    "SSLProxyVerify",
    "SSLRequireSSL",
    "SSLSessionCache",
    "SSLSessionTickets",
    "SSLUseStapling",
    "SSLVerifyClient",
    "SuexecUserGroup",
    "ThreadsPerChild",
    "TimeOut",
    "TraceEnable",
    "User",
    "UserDir",
    "VirtualHost",
];

const CADDY: &[&str] = &[
    "abort",
    "acme_ca",
    "acme_dns",
    "acme_eab",
    "admin",
    "auto_https",
    "basic_auth",
    "bind",
    "browse",
    "client_auth",
    "client_ip",
    "client_ip_headers",
    "debug",
    "default_sni",
    "dial_timeout",
    "email",
    "encode",
    "env",
    "error",
    "fail_duration",
    "file_server",
    "flush_interval",
    "forward_auth",
    "grace_period",
    "handle",
    "handle_errors",
    "handle_path",
    "handle_response",
    "header",
    "header_down",
    "header_up",
    "health_interval",
    "health_status",
    "health_timeout",
    "health_uri",
    "hide",
    "http_port",
    "https_port",
    "import",
    "index",
    "intercept",
    "invoke",
    "issuer",
    "keepalive",
    "lb_policy",
    "lb_retries",
    "lb_try_duration",
    "listener_wrappers",
    "local_certs",
    "log",
    "log_skip",
    "map",
    "max_conns_per_host",
    "max_fails",
    "max_header_size",
    "max_size",
    "method",
    "metrics",
    "on_demand_tls",
    "order",
    "php_fastcgi",
    "precompressed",
    "protocols",
    "read_body",
    "read_header",
    "redir",
    "remote_ip",
    "request_body",
    "request_buffers",
    "request_header",
    "resolvers",
    "respond",
    "response_header_timeout",
    "reverse_proxy",
    "rewrite",
    "root",
    "route",
    "split_path",
    "storage",
    "templates",
    "timeouts",
    "tls",
    "tls_client_auth",
    "tls_insecure_skip_verify",
    "tls_server_name",
    "tls_trust_pool",
    "tracing",
    "trusted_proxies",
    "try_files",
    "uri",
    "vars",
    "write",
];

/// Rarely used names of nginx, Apache and Caddy; a line that begins with `#` is a comment.
const MORE: &str = include_str!("known_names.txt");

/// Returns `true` if one of the first results of a search for the name has it, or if there is a note.
fn is_found(name: &str) -> bool {
    let of_proxy = foreign::of_proxy(name);
    [Some(name), of_proxy.as_deref()].into_iter().flatten().any(|name| {
        let mut first = lookup::found(name).into_iter().take(5);
        first.any(|option| option.known_as.position(name).is_some() || option.name == name)
            || foreign::note(name).is_some()
    })
}

#[test]
fn directives_of_nginx_apache_and_caddy_are_found() {
    assert!(NGINX.len() >= 120 && APACHE.len() >= 60 && CADDY.len() >= 40);
    let more: Vec<_> = MORE.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace).collect();
    assert!(more.len() >= 500, "{}", more.len());
    for names in [NGINX, APACHE, CADDY, &more] {
        let lost: Vec<_> = names.iter().filter(|name| !is_found(name)).collect();
        assert!(lost.is_empty(), "nothing is found for {lost:?}");
    }
}

/// The text of a search says what a newcomer must know, however the word is written.
#[test]
fn a_search_answers_for_words_of_other_servers() {
    for (words, expect) in [
        ("sub_filter", "substitute FROM TO"),
        ("nginx sub_filter_last_modified", "`sub_filter_last_modified` of nginx: not supported"),
        ("auth_request;", "forward-auth"),
        ("limit_rate", "connection-rate-max SIZE"),
        ("gzip_types", "`gzip_types` of nginx: needs nothing here"),
        ("http3", "`http-versions` turns it off"),
        ("proxy_redirect", "rewrite-location FROM [TO]"),
        ("secure_link", "`secure_link` of nginx: not supported"),
        (
            "$upstream_response_time",
            "`upstream_response_time` of nginx: `{upstream_duration_s}` in the `format` of `access-log`",
        ),
        ("%D", "`%D` of Apache: `{duration_us}`"),
        ("{remote_host}", "`remote_host` of Caddy: `{client}`"),
        ("upstream_duration_us", "    `{upstream_duration_us}`: Microseconds"),
        ("fastcgi_socket_keepalive", "`proxy_socket_keepalive` of nginx: not supported"),
        ("grpc_ssl_verify_depth", "`grpc_ssl_verify_depth` is not known, but this is the same for `proxy_pass`"),
        ("mod_rewrite", "rewrite "),
        ("mirror_req", "mirror TO"),
        ("SSLFIPS", "there is no FIPS mode"),
    ] {
        let text = lookup::search(words).unwrap_or_default();
        assert!(text.contains(expect), "{words}: {text}");
    }
    assert_eq!(lookup::search("qwertzuiop"), None);
    // Words of plain English come after the options.
    for (words, option) in [("redirect http to https", "redirect-to-https "), ("proxy_set_header Host", "host HOST")] {
        let text = lookup::search(words).unwrap_or_default();
        assert!(text.starts_with(option), "{words}: {text}");
    }
}

/// An option that stands in two blocks with different meanings shows the place of each.
#[test]
fn a_search_shows_the_place_of_each_definition() {
    let text = lookup::search("strip-prefix").unwrap();
    let places: Vec<_> = text.lines().filter(|line| line.contains("Use it ")).collect();
    let mut unique = places.clone();
    unique.dedup();
    assert!(places.len() >= 2 && places == unique, "{text}");
    let text = lookup::search("idle-timeout").unwrap();
    assert!(text.contains("Use it in `upstream`.") && text.contains("Use it in `limits`."), "{text}");
}

/// A directive without an option has a reason. It names a similar option, or says that there is none.
#[test]
fn notes_say_what_to_do() {
    const OTHERS: [&str; 4] = ["the application", "service manager", "no option", "logrotate"];
    for note in foreign::NOTES {
        if let foreign::Answer::NotSupported(instead) = note.answer {
            let is_told = instead.contains('`') || OTHERS.iter().any(|other| instead.contains(other));
            assert!(is_told, "{:?}: {instead}", note.names);
        }
    }
}

/// A directive that an option knows has no note that it is not supported.
#[test]
fn names_of_options_have_no_note_against_them() {
    for note in foreign::NOTES.iter().filter(|note| matches!(note.answer, foreign::Answer::NotSupported(_))) {
        for definition in OptionContext::ALL.into_iter().flat_map(OptionContext::options) {
            let named = definition.known_as.servers().into_iter().filter(|(server, _)| *server == note.server);
            let mut both = named.flat_map(|(_, names)| names).filter(|name| note.names.contains(name));
            assert_eq!(both.next(), None, "`{}` and a note of {}", definition.name, note.server);
        }
    }
}

#[test]
fn a_search_gives_the_best_option_first() {
    let first = |words: &str| lookup::found(words).first().map(|option| option.name);
    for (words, name) in [
        ("proxy_read_timeout", "first-byte-timeout"),
        ("PROXY_READ_TIMEOUT", "first-byte-timeout"),
        ("client_max_body_size", "body-bytes-max"),
        ("limit_req", "rate-limit"),
        ("worker_processes", "workers"),
        ("proxy_pass", "forward"),
        ("ProxyPass", "forward"),
        ("reverse_proxy", "forward"),
        ("lb_policy", "balance"),
        ("keepalive_timeout", "idle-timeout"),
        ("ssl_certificate", "certificate"),
        ("DocumentRoot", "root"),
        ("stats socket", "control-socket"),
        ("directory listing", "browse"),
        ("load balancing", "upstream"),
        ("circuit breaker", "last-resort"),
        ("root", "root"),
        ("try_files", "fallback"),
        ("fastcgi_param", "variable"),
        ("geo", "allow"),
        ("return 301", "redirect"),
        ("redirect http to https", "redirect-to-https"),
        ("block ip address", "deny"),
        ("custom 404", "error-page"),
        ("hide version", "server-tokens"),
        ("max upload", "body-bytes-max"),
        ("lets encrypt", "automatic-certificates"),
        ("letsencrypt", "automatic-certificates"),
    ] {
        assert_eq!(first(words), Some(name), "{words}");
    }
    assert!(lookup::found("qwertzuiop").is_empty());
}

#[test]
fn each_name_of_another_server_stands_once() {
    for option in OptionContext::ALL.into_iter().flat_map(OptionContext::options) {
        for (server, names) in option.known_as.servers() {
            for (index, name) in names.iter().enumerate() {
                assert!(!names[..index].contains(name), "`{name}` of {server} twice in `{}`", option.name);
            }
        }
    }
    for (index, note) in foreign::NOTES.iter().enumerate() {
        for name in note.names {
            let again =
                foreign::NOTES[..index].iter().find(|other| other.server == note.server && other.names.contains(name));
            assert!(again.is_none(), "`{name}` of {} has two notes", note.server);
        }
    }
}
