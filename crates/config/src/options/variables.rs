//! Variables of other servers, and the placeholders and log fields that have the same values. The importer uses those of
//! nginx.

/// A variable, and its names here; empty where it has none.
pub struct ForeignVariable {
    /// Name of the server, for people.
    pub server: &'static str,
    /// Name as its users search for it: without the sign of nginx and the braces of Caddy.
    pub name: &'static str,
    /// Placeholder in targets of `redirect` and `rewrite`.
    pub target: &'static str,
    /// Placeholder in values of `request-header` and `response-header`.
    pub field: &'static str,
    /// Field of access log formats.
    pub log: &'static str,
}

impl ForeignVariable {
    /// Names here and where to write them, for people.
    pub fn describe(&self) -> String {
        let uses = [
            (self.log, "the `format` of `access-log`"),
            (self.field, "`request-header` and `response-header`"),
            (self.target, "`redirect` and `rewrite`"),
        ];
        let uses = uses.into_iter().filter(|(name, _)| !name.is_empty());
        let uses: Vec<_> = uses.map(|(name, place)| format!("`{name}` in {place}")).collect();
        uses.join(", ")
    }
}

/// Finds the variable of nginx with this name.
pub fn of_nginx(name: &str) -> Option<&'static ForeignVariable> {
    VARIABLES.iter().find(|variable| variable.server == NGINX && variable.name == name)
}

/// Finds the variables with this name in all servers. Signs around the name, such as `$`, `%{}` and `{}`, do not matter.
/// Apache's letters mean different things in each case.
pub(crate) fn named(word: &str) -> impl Iterator<Item = &'static ForeignVariable> {
    let bare = word.trim_start_matches(['$', '%', '{']).trim_end_matches(['}', ';', ',', '"']).to_owned();
    let word = word.to_owned();
    VARIABLES.iter().filter(move |variable| {
        let is_letter = variable.name.starts_with('%');
        if is_letter { variable.name == word } else { variable.name.eq_ignore_ascii_case(&bare) }
    })
}

const NGINX: &str = "nginx";
const APACHE: &str = "Apache";
const CADDY: &str = "Caddy";

const fn variable(
    server: &'static str,
    name: &'static str,
    target: &'static str,
    field: &'static str,
    log: &'static str,
) -> ForeignVariable {
    ForeignVariable { server, name, target, field, log }
}

/// All variables, by server.
static VARIABLES: &[ForeignVariable] = &[
    variable(NGINX, "args", "", "{query}", "{query}"),
    variable(NGINX, "body_bytes_sent", "", "", "{bytes}"),
    variable(NGINX, "bytes_sent", "", "", "{bytes}"),
    variable(NGINX, "document_uri", "{path}", "{path}", "{path}"),
    variable(NGINX, "host", "{host}", "{host}", "{host}"),
    variable(NGINX, "http_host", "{host}", "{host}", "{host}"),
    variable(NGINX, "http_referer", "", "{request.header.Referer}", "{referer}"),
    variable(NGINX, "http_user_agent", "", "{request.header.User-Agent}", "{user_agent}"),
    variable(NGINX, "msec", "", "", "{time_unix}"),
    variable(NGINX, "query_string", "", "{query}", "{query}"),
    variable(NGINX, "remote_addr", "", "{client}", "{client}"),
    variable(NGINX, "remote_port", "", "", "{client_port}"),
    variable(NGINX, "remote_user", "", "{user}", "{user}"),
    variable(NGINX, "request", "", "", "{request}"),
    variable(NGINX, "request_completion", "", "", "{completion}"),
    variable(NGINX, "request_id", "", "{request_id}", "{request_id}"),
    variable(NGINX, "request_method", "", "", "{method}"),
    variable(NGINX, "request_time", "", "", "{duration_s}"),
    variable(NGINX, "request_uri", "{path}{query}", "{path}{query}", "{target}"),
    variable(NGINX, "scheme", "{scheme}", "{scheme}", ""),
    variable(NGINX, "server_protocol", "", "", "{version}"),
    variable(NGINX, "ssl_cipher", "", "{tls_cipher_suite}", "{tls_cipher_suite}"),
    variable(NGINX, "ssl_client_s_dn", "", "{tls_client}", "{tls_client}"),
    variable(NGINX, "ssl_protocol", "", "{tls_version}", "{tls_version}"),
    variable(NGINX, "ssl_server_name", "", "{tls_server_name}", "{tls_server_name}"),
    variable(NGINX, "status", "", "", "{status}"),
    variable(NGINX, "time_iso8601", "", "", "{time_rfc3339}"),
    variable(NGINX, "time_local", "", "", "{time}"),
    variable(NGINX, "upstream_addr", "", "", "{upstream}"),
    variable(NGINX, "upstream_cache_status", "", "", "{cache_status}"),
    variable(NGINX, "upstream_connect_time", "", "", "{upstream_connect_s}"),
    variable(NGINX, "upstream_header_time", "", "", "{upstream_first_byte_s}"),
    variable(NGINX, "upstream_response_time", "", "", "{upstream_duration_s}"),
    variable(NGINX, "upstream_status", "", "", "{upstream_status}"),
    variable(NGINX, "uri", "{path}", "{path}", "{path}"),
    variable(NGINX, "proxy_host", "", "", "{upstream}"),
    variable(APACHE, "%a", "", "{client}", "{client}"),
    variable(APACHE, "%h", "", "{client}", "{client}"),
    variable(APACHE, "%b", "", "", "{bytes}"),
    variable(APACHE, "%B", "", "", "{bytes}"),
    variable(APACHE, "%O", "", "", "{bytes}"),
    variable(APACHE, "%D", "", "", "{duration_us}"),
    variable(APACHE, "%T", "", "", "{duration_s}"),
    variable(APACHE, "%H", "", "", "{version}"),
    variable(APACHE, "%m", "", "", "{method}"),
    variable(APACHE, "%q", "{query}", "{query}", "{query}"),
    variable(APACHE, "%r", "", "", "{request}"),
    variable(APACHE, "%s", "", "", "{status}"),
    variable(APACHE, "%>s", "", "", "{status}"),
    variable(APACHE, "%t", "", "", "{time}"),
    variable(APACHE, "%u", "", "{user}", "{user}"),
    variable(APACHE, "%U", "{path}", "{path}", "{path}"),
    variable(APACHE, "%v", "{host}", "{host}", "{host}"),
    variable(APACHE, "%V", "{host}", "{host}", "{host}"),
    variable(APACHE, "%X", "", "", "{completion}"),
    variable(APACHE, "HTTP_HOST", "{host}", "{host}", "{host}"),
    variable(APACHE, "HTTP_REFERER", "", "{request.header.Referer}", "{referer}"),
    variable(APACHE, "HTTP_USER_AGENT", "", "{request.header.User-Agent}", "{user_agent}"),
    variable(APACHE, "QUERY_STRING", "{query}", "{query}", "{query}"),
    variable(APACHE, "REMOTE_ADDR", "", "{client}", "{client}"),
    variable(APACHE, "REMOTE_USER", "", "{user}", "{user}"),
    variable(APACHE, "REQUEST_METHOD", "", "", "{method}"),
    variable(APACHE, "REQUEST_SCHEME", "{scheme}", "{scheme}", ""),
    variable(APACHE, "REQUEST_URI", "{path}", "{path}", "{path}"),
    variable(APACHE, "SERVER_NAME", "{host}", "{host}", "{host}"),
    variable(APACHE, "SERVER_PROTOCOL", "", "", "{version}"),
    variable(APACHE, "SSL_CIPHER", "", "{tls_cipher_suite}", "{tls_cipher_suite}"),
    variable(APACHE, "SSL_CLIENT_S_DN", "", "{tls_client}", "{tls_client}"),
    variable(APACHE, "SSL_PROTOCOL", "", "{tls_version}", "{tls_version}"),
    variable(APACHE, "SSL_TLS_SNI", "", "{tls_server_name}", "{tls_server_name}"),
    variable(CADDY, "host", "{host}", "{host}", "{host}"),
    variable(CADDY, "http.request.host", "{host}", "{host}", "{host}"),
    variable(CADDY, "http.request.duration", "", "", "{duration_s}"),
    variable(CADDY, "http.request.method", "", "", "{method}"),
    variable(CADDY, "http.request.remote.host", "", "{client}", "{client}"),
    variable(CADDY, "http.request.scheme", "{scheme}", "{scheme}", ""),
    variable(CADDY, "http.request.uri", "{path}{query}", "{path}{query}", "{target}"),
    variable(CADDY, "http.request.uri.path", "{path}", "{path}", "{path}"),
    variable(CADDY, "http.request.uuid", "", "{request_id}", "{request_id}"),
    variable(CADDY, "http.auth.user.id", "", "{user}", "{user}"),
    variable(CADDY, "http.reverse_proxy.upstream.hostport", "", "", "{upstream}"),
    variable(CADDY, "http.reverse_proxy.upstream.latency", "", "", "{upstream_first_byte_s}"),
    variable(CADDY, "client_ip", "", "{client}", "{client}"),
    variable(CADDY, "method", "", "", "{method}"),
    variable(CADDY, "path", "{path}", "{path}", "{path}"),
    variable(CADDY, "query", "{query}", "{query}", "{query}"),
    variable(CADDY, "remote_host", "", "{client}", "{client}"),
    variable(CADDY, "remote_port", "", "", "{client_port}"),
    variable(CADDY, "scheme", "{scheme}", "{scheme}", ""),
    variable(CADDY, "tls_cipher", "", "{tls_cipher_suite}", "{tls_cipher_suite}"),
    variable(CADDY, "tls_client_subject", "", "{tls_client}", "{tls_client}"),
    variable(CADDY, "tls_version", "", "{tls_version}", "{tls_version}"),
    variable(CADDY, "uri", "{path}{query}", "{path}{query}", "{target}"),
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{LOG_FIELDS, check_bytes};

    /// Text of the errors of a configuration with these placeholders; empty if there are none.
    fn errors(target: &str, field: &str) -> String {
        let text = format!(
            "site {{\n listen 8080\n respond \"*\" 200\n redirect \"/a\" \"https://b.example/x{target}\"\n \
             request-header \"X-A\" \"b{field}\"\n}}\n"
        );
        let diagnostics = check_bytes("test", text.into_bytes(), Path::new("/")).diagnostics;
        if diagnostics.has_error() { diagnostics.to_text(false) } else { String::new() }
    }

    /// Each name here is one that the options accept, and each variable has one.
    #[test]
    fn names_are_known() {
        for (index, variable) in VARIABLES.iter().enumerate() {
            let ForeignVariable { server, name, target, field, log } = variable;
            assert!(!variable.describe().is_empty(), "{name}");
            assert_eq!(errors(target, field), "", "{name} of {server}");
            let is_log_field = |part: &str| LOG_FIELDS.iter().any(|(known, _)| part == *known);
            let is_header = |part: &str| part.starts_with("request.header.");
            let mut parts = log.split(['{', '}']).filter(|part| !part.is_empty());
            assert!(parts.all(|part| is_log_field(part) || is_header(part)), "{name} of {server}: {log}");
            let mut before = VARIABLES[..index].iter();
            assert!(!before.any(|other| other.server == *server && other.name == *name), "{name} of {server} twice");
        }
    }

    #[test]
    fn signs_do_not_matter() {
        let found = |word: &str| named(word).map(|variable| (variable.server, variable.log)).collect::<Vec<_>>();
        assert_eq!(found("$upstream_response_time"), [("nginx", "{upstream_duration_s}")]);
        assert_eq!(found("upstream_response_time;"), [("nginx", "{upstream_duration_s}")]);
        assert_eq!(found("%{REMOTE_ADDR}"), [("nginx", "{client}"), ("Apache", "{client}")]);
        assert_eq!(found("{remote_host}"), [("Caddy", "{client}")]);
        assert_eq!(found("%D"), [("Apache", "{duration_us}")]);
        assert_eq!(found("%d"), []);
        assert_eq!(found("D"), []);
    }
}
