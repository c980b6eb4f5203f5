//! CGI variables of a request (RFC 3875, section 4.1), and others that PHP and other runtimes expect.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use wire::cgi::push_variable_name;
use wire::http::{FieldSpan, Fields, KnownField, Version, push_decimal};

use super::Script;
use crate::config::{GatewayConfig, GatewayProtocol};
use crate::handler::Routed;
use crate::handler::forward::{guarded_target, host_and_port, is_passed_on, push_trace_fields};
use crate::log::{LogClient, push_address};

/// Builds the variables of a request. Fields in `changes` replace the request's of the same names; an empty value
/// removes them.
pub(super) fn variables(
    routed: &Routed<'_>,
    script: &Script,
    config: &GatewayConfig,
    content_length: Option<u64>,
    changes: &Fields,
) -> Fields {
    let mut variables = Fields::with_capacity(routed.request.bytes.len().min(4 << 10) + 1024, 48);
    push_server(routed, &mut variables);
    push_request(routed, content_length, &mut variables);
    push_script(script, config, &mut variables);
    push_client(routed, &mut variables);
    push_fields(routed, config, changes, &mut variables);
    for (name, value) in &config.variables {
        let is_there = variables.iter().any(|(other, _)| other == name.as_bytes());
        if is_there {
            variables.remove(name);
        }
        if !value.is_empty() {
            variables.push(name, value);
        }
    }
    variables
}

fn push_server(routed: &Routed<'_>, variables: &mut Fields) {
    let destination = routed.link.link().destination();
    let is_secure = routed.is_secure();
    variables.push("GATEWAY_INTERFACE", "CGI/1.1").push("SERVER_SOFTWARE", "tailcoat");
    match (routed.host, destination) {
        (b"", Some(address)) => variables.push("SERVER_NAME", bracketed(address.ip())),
        (b"", None) => variables.push("SERVER_NAME", "localhost"),
        (host, _) => variables.push("SERVER_NAME", host),
    };
    if let Some(address) = destination {
        variables.push_with("SERVER_ADDR", |value| push_address(value, address.ip()));
    }
    let port = server_port(routed, destination, is_secure);
    variables.push_with("SERVER_PORT", |value| push_decimal(value, port.into()));
    variables.push(
        "SERVER_PROTOCOL",
        match routed.request.head.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
            Version::Http3 => "HTTP/3.0",
        },
    );
    variables.push("REQUEST_SCHEME", if is_secure { "https" } else { "http" });
    if is_secure {
        variables.push("HTTPS", "on");
    }
}

/// Port that the client asked for. If a proxy received another scheme than we did, it is that scheme's default port.
fn server_port(routed: &Routed<'_>, destination: Option<SocketAddr>, is_secure: bool) -> u16 {
    match destination {
        Some(address) if routed.proxied.is_none() => address.port(),
        Some(address) if is_secure == routed.tls.is_some() => address.port(),
        _ if is_secure => 443,
        _ => 80,
    }
}

fn push_request(routed: &Routed<'_>, content_length: Option<u64>, variables: &mut Fields) {
    let request = &routed.request;
    variables.push("REQUEST_METHOD", request.method_name());
    variables.push("REQUEST_URI", guarded_target(request.target_asked()));
    variables.push("QUERY_STRING", routed.query.unwrap_or_default());
    if let Some(length) = content_length {
        variables.push_with("CONTENT_LENGTH", |value| push_decimal(value, length));
    }
    if let Some(content_type) = request.field_by_name(b"content-type") {
        variables.push("CONTENT_TYPE", content_type);
    }
}

fn push_script(script: &Script, config: &GatewayConfig, variables: &mut Fields) {
    variables.push("SCRIPT_NAME", &script.name);
    if !script.path_info.is_empty() || script.file.is_empty() {
        variables.push("PATH_INFO", &script.path_info);
    }
    if script.file.is_empty() {
        return;
    }
    let below = script.file.strip_prefix(script.root.as_slice()).unwrap_or_default();
    let root = config.server_root.as_ref().map_or(script.root.as_slice(), String::as_bytes);
    variables.push("DOCUMENT_ROOT", root);
    variables.push("SCRIPT_FILENAME", [root, below].concat());
    if !script.path_info.is_empty() {
        variables.push("PATH_TRANSLATED", [root, &script.path_info].concat());
    }
    variables.push("DOCUMENT_URI", [&script.name[..], &script.path_info].concat());
    // php-cgi demands it, so that no client can run it directly.
    variables.push("REDIRECT_STATUS", "200");
    if config.protocol == GatewayProtocol::Cgi {
        variables.push("PATH", "/usr/local/bin:/usr/bin:/bin");
    }
}

fn push_client(routed: &Routed<'_>, variables: &mut Fields) {
    if let LogClient::Ip(address) = routed.client {
        // RFC 3875, section 4.1.9: the address stands in for a name that was not looked up.
        for name in ["REMOTE_ADDR", "REMOTE_HOST"] {
            variables.push_with(name, |value| push_address(value, address.ip()));
        }
        // Unknown for a client of a proxy.
        if address.port() != 0 {
            variables.push_with("REMOTE_PORT", |value| push_decimal(value, address.port().into()));
        }
    } else {
        // RFC 3875, section 4.1.8, demands an address; a unix socket has only this host's.
        variables.push("REMOTE_ADDR", "127.0.0.1").push("REMOTE_HOST", "127.0.0.1");
    }
    if let Some(user) = routed.link.link().user() {
        variables.push("AUTH_TYPE", "Basic").push("REMOTE_USER", user);
    }
}

/// Adds the request's fields; several lines of one name become one variable.
fn push_fields(routed: &Routed<'_>, config: &GatewayConfig, changes: &Fields, variables: &mut Fields) {
    let request = &routed.request;
    let host = host_and_port(routed);
    if !host.is_empty() {
        variables.push("HTTP_HOST", host);
    }
    let is_passed = |field: &&FieldSpan| {
        let field_name = field.name.of(request.bytes);
        !field_name.eq_ignore_ascii_case(b"content-type")
            && field.known != KnownField::Expect
            && !changes.has(field_name)
            && is_passed_on(routed, field, config.forward.client_fields)
    };
    let passed: Vec<&FieldSpan> = request.head.fields.iter().filter(is_passed).collect();
    let (mut name, mut joined) = (Vec::with_capacity(64), Vec::new());
    for (index, field) in passed.iter().enumerate() {
        let field_name = field.name.of(request.bytes);
        let is_same = |other: &&FieldSpan| other.name.of(request.bytes).eq_ignore_ascii_case(field_name);
        if passed[..index].iter().any(is_same) {
            continue;
        }
        name.clear();
        if !push_variable_name(field_name, &mut name) {
            continue;
        }
        let rest = &passed[index + 1..];
        if !rest.iter().any(is_same) {
            variables.push(&name, field.value.of(request.bytes));
            continue;
        }
        // RFC 9110, section 5.3; cookies are joined in another way (RFC 9113, section 8.2.3).
        let separator: &[u8] = if field.known == KnownField::Cookie { b"; " } else { b", " };
        joined.clear();
        joined.extend_from_slice(field.value.of(request.bytes));
        for other in rest.iter().filter(|other| is_same(other)) {
            joined.extend_from_slice(separator);
            joined.extend_from_slice(other.value.of(request.bytes));
        }
        variables.push(&name, &joined);
    }
    let mut trace = Fields::new();
    push_trace_fields(routed, true, &mut trace);
    for (field_name, value) in changes.iter().filter(|(_, value)| !value.is_empty()).chain(trace.iter()) {
        name.clear();
        if push_variable_name(field_name, &mut name) {
            variables.push(&name, value);
        }
    }
}

/// Formats an address as a URL host (RFC 3986, section 3.2.2).
fn bracketed(address: IpAddr) -> String {
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = match address.to_canonical() {
        IpAddr::V4(address) => write!(text, "{address}"),
        IpAddr::V6(address) => write!(text, "[{address}]"),
    };
    String::from_utf8(text).unwrap_or_default()
}
