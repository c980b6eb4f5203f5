//! `reverse_proxy` and `forward_auth`.

use super::matcher::{routed, with_tests};
use super::placeholders::{self, TextPlace};
use super::rules::{add_auth, field_lines};
use super::scope::{Reach, Scope};
use super::site::CaddySiteParts;
use crate::config;
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{for_each, on_path};

/// A time of Go, such as `1h30m` or `1.5s`.
fn duration(text: &str) -> Option<std::time::Duration> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let count: f64 = rest[..digits].parse().ok()?;
        let length = rest[digits..].find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
        total += count
            * match &rest[digits..digits + length] {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                "d" => 86400.0,
                _ => return None,
            };
        rest = &rest[digits + length..];
    }
    (!text.is_empty() && total < 1e9).then(|| std::time::Duration::from_secs_f64(total))
}

/// A time as the value of an option, or a remark that it is none.
pub(super) fn time_option(name: &'static str, directive: &Directive, notes: &mut Notes) -> Option<KdlNode> {
    let found = duration(directive.first());
    if found.is_none() {
        notes.left(directive, "this is not a time");
    }
    found.map(|time| KdlNode::with(name, config::format_duration(time)))
}

/// A size such as `10MB` or `8KiB`.
pub(super) fn size(text: &str) -> Option<String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "kib" => 1 << 10,
        "m" | "mb" => 1_000_000,
        "mib" => 1 << 20,
        "g" | "gb" => 1_000_000_000,
        "gib" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(unit).map(config::format_size)
}

/// Servers and options of an upstream.
#[derive(Default)]
struct Upstream {
    servers: Vec<String>,
    options: Vec<KdlNode>,
    /// Properties of `health-check`, and its path.
    health: Option<KdlNode>,
    /// Source of servers.
    source: Option<KdlNode>,
    is_https: bool,
    is_h2c: bool,
    /// True if all servers but the first are backups.
    has_backups: bool,
}

/// Address of a server. Ports may be a range.
fn servers(text: &str, upstream: &mut Upstream) -> Result<(), String> {
    if text.contains('{') || text.starts_with("srv+") {
        return Err("a server has a fixed address; its name is resolved again automatically".to_owned());
    }
    if let Some(path) = text.strip_prefix("unix/") {
        upstream.servers.push(format!("unix:{path}"));
        return Ok(());
    }
    if let Some(path) = text.strip_prefix("unix+h2c/") {
        upstream.servers.push(format!("unix:{path}"));
        upstream.is_h2c = true;
        return Ok(());
    }
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let rest = rest.trim_end_matches('/');
    if rest.contains('/') {
        return Err("an upstream has no path".to_owned());
    }
    upstream.is_https |= scheme == "https";
    upstream.is_h2c |= scheme == "h2c";
    let rest = if rest.starts_with(':') { format!("127.0.0.1{rest}") } else { rest.to_owned() };
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host.to_owned(), port.to_owned()),
        _ => (rest.clone(), (if scheme == "https" { "443" } else { "80" }).to_owned()),
    };
    upstream.is_https |= scheme.is_empty() && port == "443";
    let (from, to) = port.split_once('-').unwrap_or((&port, &port));
    let (Ok(from), Ok(to)) = (from.parse::<u16>(), to.parse::<u16>()) else {
        return Err(format!("`{port}` is no port"));
    };
    if to < from || to - from > 255 {
        return Err("the range of ports is too long".to_owned());
    }
    upstream.servers.extend((from..=to).map(|port| format!("{host}:{port}")));
    Ok(())
}

/// `dynamic`: servers that a name stands for.
fn dynamic(directive: &Directive, upstream: &mut Upstream) -> Result<(), String> {
    match directive.arguments.as_slice() {
        // Names of servers are resolved again automatically.
        [kind, name, port] if kind == "a" => servers(&format!("{name}:{port}"), upstream),
        [kind, name] if kind == "srv" && !name.contains('{') => {
            upstream.source = Some(KdlNode::with("discover", format!("srv:{name}")));
            Ok(())
        }
        _ => Err("servers come from `dynamic a NAME PORT` or `dynamic srv NAME`, on one line".to_owned()),
    }
}

/// Returns `true` if a `handle_response` shows another page for errors, or a file that a response names. Clients get the
/// upstream's own response otherwise.
pub(super) fn is_of_errors(directive: &Directive, around: &Directive) -> bool {
    let name = directive.first();
    let Some(matcher) = around.children().iter().find(|child| child.name == name && name.starts_with('@')) else {
        return false;
    };
    let is_error = |status: &String| status.starts_with(['4', '5']);
    match matcher.arguments.as_slice() {
        [kind, statuses @ ..] if kind == "status" => !statuses.is_empty() && statuses.iter().all(is_error),
        [kind, field, ..] if kind == "header" => {
            ["x-accel-redirect", "x-sendfile"].iter().any(|known| field.eq_ignore_ascii_case(known))
        }
        _ => false,
    }
}

/// `reverse_proxy`.
pub(super) fn reverse_proxy(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &Scope,
    notes: &mut Notes,
) -> bool {
    let mut upstream = Upstream::default();
    let mut options: Vec<KdlNode> = Vec::new();
    let mut host = None;
    let mut addresses: Vec<String> = values.to_vec();
    let mut refusal: Option<(&Directive, String)> = None;
    for child in directive.children() {
        match child.name.as_str() {
            "to" => addresses.extend(child.arguments.iter().cloned()),
            "header_up" if child.first().eq_ignore_ascii_case("host") => host = child.arguments.get(1).cloned(),
            "header_up" => header_up(site, child, reach, scope, notes),
            "header_down" => match field_lines("response-header", &child.arguments, &reach.paths) {
                Ok(lines) => {
                    let tests = reach.tests_of_rule(scope);
                    site.parts.fields.extend(lines.into_iter().map(|node| with_tests(node, &tests)));
                }
                Err(why) => notes.left(child, why),
            },
            "transport" => {
                if let Err(why) = transport(child, &mut upstream, &mut options, notes) {
                    refusal = Some((child, why));
                }
            }
            "handle_response" | "replace_status" if is_of_errors(child, directive) => {
                notes.left(
                    child,
                    "responses of upstreams pass unchanged; `x-accel-redirect` serves files that they name",
                );
            }
            "dynamic" => {
                if let Err(why) = dynamic(child, &mut upstream) {
                    refusal = Some((child, why));
                }
            }
            "handle_response" | "method" | "rewrite" | "replace_status" => {
                refusal = Some((child, "there is no counterpart".to_owned()));
            }
            name if name.starts_with('@') => {}
            _ => option(child, &mut upstream, &mut options, notes),
        }
    }
    for address in &addresses {
        if let Err(why) = servers(address, &mut upstream) {
            refusal = Some((directive, why));
        }
    }
    if let Some((at, why)) = refusal {
        site.parts.close(at, &reach.paths, why, notes);
        return true;
    }
    if upstream.servers.is_empty() && upstream.source.is_none() {
        notes.left(directive, "it has no server: as with Caddy, requests get status 503");
        let paths = routed(&reach.paths);
        let node = |pattern| with_tests(on_path("respond", pattern).word(503), &reach.tests);
        site.parts.handlers.extend(for_each(&paths, node));
        return true;
    }
    match host.as_deref() {
        Some(
            "{upstream_hostport}" | "{http.reverse_proxy.upstream.hostport}" | "{http.reverse_proxy.upstream.host}",
        ) => {
            options.push(KdlNode::new("host").word("upstream"));
        }
        Some("{host}" | "{http.request.host}" | "{hostport}" | "{http.request.hostport}") => {}
        Some(fixed) => match placeholders::text(fixed, TextPlace::Fixed, None) {
            Ok(host) => options.push(KdlNode::with("host", host)),
            Err(why) => notes.left(directive, why),
        },
        // The certificate of the upstream is for its own name.
        None if upstream.is_https => options.push(KdlNode::new("host").word("upstream")),
        None => {}
    }
    if !scope.prefix.is_empty() {
        options.push(KdlNode::with("strip-prefix", &scope.prefix));
    }
    let to = address(site, &upstream);
    if reach.paths.is_empty() && scope.prefix.is_empty() && reach.tests.is_empty() {
        let has_root = site.parts.files.iter().any(|node| node.name() == "root");
        let node = KdlNode::with("forward", &to);
        // Where a file is missing, the root leaves the request to the last handler.
        let is_before = has_root && !reach.is_missing;
        let node = if is_before { node.property("path", "*") } else { node };
        match is_before {
            true => site.parts.handlers.push(node.block(options)),
            false => {
                site.parts.last = Some(node.block(options));
                site.has_rest_of_files |= reach.is_missing;
            }
        }
        return true;
    }
    site.parts.handlers.extend(for_each(&routed(&reach.paths), |pattern| {
        let node = KdlNode::with("forward", &to).property("path", pattern.as_deref().unwrap_or("*"));
        with_tests(node, &reach.tests).block(options.clone())
    }));
    true
}

/// Address of an upstream, or the name of a block with its servers.
fn address(site: &mut CaddySiteParts<'_, '_>, upstream: &Upstream) -> String {
    let scheme = match (upstream.is_https, upstream.is_h2c) {
        (true, _) => "https",
        (_, true) => "h2c",
        _ => "http",
    };
    let url =
        |server: &String| if server.starts_with("unix:") { server.clone() } else { format!("{scheme}://{server}") };
    let is_plain = upstream.options.is_empty() && upstream.health.is_none() && upstream.source.is_none();
    if let ([server], true) = (upstream.servers.as_slice(), is_plain) {
        return url(server);
    }
    let servers = upstream.servers.iter().enumerate();
    let line = |(index, server): (usize, &String)| match upstream.has_backups && index > 0 {
        true => KdlNode::with("server", url(server)).word_property("backup", "on"),
        false => KdlNode::with("server", url(server)),
    };
    let mut lines: Vec<KdlNode> = servers.map(line).collect();
    lines.extend(upstream.source.clone().map(|source| match scheme {
        "http" => source,
        scheme => source.property("protocol", scheme),
    }));
    lines.extend(upstream.options.iter().cloned());
    lines.extend(upstream.health.clone());
    site.shared.upstream(|name| KdlNode::with("upstream", name).required_block(lines.clone()))
}

fn header_up(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    reach: &Reach,
    scope: &Scope,
    notes: &mut Notes,
) {
    let name = directive.first().trim_start_matches(['+', '-', '?', '>']).to_ascii_lowercase();
    let value = directive.arguments.get(1).map_or("", String::as_str);
    let is_forwarded = matches!(
        (name.as_str(), value),
        ("x-forwarded-for", "{remote_host}" | "{remote}" | "{http.request.remote.host}" | "{client_ip}")
            | ("x-forwarded-proto", "{scheme}" | "{http.request.scheme}")
            | ("x-forwarded-host", "{host}" | "{http.request.host}" | "{hostport}")
            | ("upgrade" | "connection", _)
    );
    if is_forwarded {
        return notes.needless(directive, "upstreams get these fields, and upgrades");
    }
    site.upstream_fields.push((name, directive.clone(), reach.paths.clone()));
    match field_lines("request-header", &directive.arguments, &reach.paths) {
        Ok(lines) => {
            let tests = reach.tests_of_rule(scope);
            site.parts.fields.extend(lines.into_iter().map(|node| with_tests(node, &tests)));
        }
        Err(why) => notes.left(directive, why),
    }
}

fn option(directive: &Directive, upstream: &mut Upstream, options: &mut Vec<KdlNode>, notes: &mut Notes) {
    let first = directive.first();
    let health = |upstream: &mut Upstream, name: &'static str, value: String| {
        let node = upstream.health.take().unwrap_or_else(|| KdlNode::with("health-check", "/"));
        upstream.health = Some(node.property(name, value));
    };
    match directive.name.as_str() {
        "lb_policy" => match first {
            "random" | "least_conn" | "random_choose" => {}
            "round_robin" => upstream.options.push(KdlNode::new("balance").word("round-robin")),
            "ip_hash" | "client_ip_hash" => {
                upstream.options.push(KdlNode::new("balance").word("hash").property("by", "address"));
            }
            "header" if directive.arguments.len() > 1 => {
                let by = format!("field:{}", directive.arguments[1]);
                upstream.options.push(KdlNode::new("balance").word("hash").property("by", by));
            }
            "cookie" => {
                let name = directive.arguments.get(1).map_or("lb", String::as_str);
                upstream.options.push(KdlNode::with("sticky", name));
            }
            "first" => upstream.has_backups = true,
            _ => notes.left(directive, "`balance` has no such method"),
        },
        "lb_retries" => match first.parse::<u32>() {
            Ok(count) => upstream.options.push(KdlNode::new("tries-max").word((count + 1).clamp(1, 8))),
            Err(_) => notes.left(directive, "this is not a number"),
        },
        "lb_try_duration" | "lb_try_interval" | "lb_retry_match" => {
            notes.left(directive, "`tries-max` limits tries, not their time");
        }
        "health_uri" | "health_path" => {
            let node = KdlNode::with("health-check", first);
            let properties = upstream.health.take().map_or_else(Vec::new, KdlNode::into_properties);
            upstream.health = Some(node.with_properties(properties));
        }
        "health_interval" | "health_timeout" => match duration(first) {
            Some(time) => {
                let name = if directive.name == "health_interval" { "interval" } else { "timeout" };
                health(upstream, name, config::format_duration(time));
            }
            None => notes.left(directive, "this is not a time"),
        },
        "fail_duration" => upstream.options.extend(time_option("eject-time", directive, notes)),
        "max_fails" => upstream.options.push(KdlNode::new("fail-max").word(first)),
        "flush_interval" => notes.needless(directive, "responses are sent as they come"),
        "request_buffers" | "response_buffers" | "stream_buffer_size" => {
            notes.needless(directive, "bodies are buffered as upstreams need them");
        }
        "stream_timeout" => options.extend(time_option("tunnel-timeout", directive, notes)),
        "stream_close_delay" | "verbose_logs" => notes.needless(directive, "upgraded connections survive a reload"),
        "trusted_proxies" => notes.left(directive, "`trusted-proxies` of `server` applies to all sites"),
        _ => notes.left(directive, "there is no counterpart"),
    }
}

fn transport(
    directive: &Directive,
    upstream: &mut Upstream,
    options: &mut Vec<KdlNode>,
    notes: &mut Notes,
) -> Result<(), String> {
    if directive.first() != "http" {
        return Err(format!("the transport `{}` has no counterpart", directive.first()));
    }
    for child in directive.children() {
        match child.name.as_str() {
            "tls" => upstream.is_https = true,
            "tls_insecure_skip_verify" => {
                upstream.is_https = true;
                upstream.options.push(KdlNode::new("tls-verify").word("off"));
            }
            "tls_server_name" if !child.first().contains('{') => {
                upstream.is_https = true;
                upstream.options.push(KdlNode::with("tls-server-name", child.first()));
            }
            "tls_trusted_ca_certs" => {
                upstream.is_https = true;
                upstream.options.push(KdlNode::with("tls-ca-file", child.first()));
            }
            "tls_trust_pool" if child.first() == "file" && child.arguments.len() > 1 => {
                upstream.is_https = true;
                upstream.options.push(KdlNode::with("tls-ca-file", &child.arguments[1]));
            }
            "tls_client_auth" if child.arguments.len() == 2 => {
                upstream.is_https = true;
                let node = KdlNode::with("tls-certificate", child.first()).property("key", &child.arguments[1]);
                upstream.options.push(node);
            }
            "versions" => {
                if child.first() == "h2c" {
                    upstream.is_h2c = true;
                }
            }
            "dial_timeout" => upstream.options.extend(time_option("connect-timeout", child, notes)),
            "response_header_timeout" => options.extend(time_option("first-byte-timeout", child, notes)),
            "read_timeout" => options.extend(time_option("between-bytes-timeout", child, notes)),
            "keepalive" if child.first() != "off" => upstream.options.extend(time_option("idle-timeout", child, notes)),
            "max_conns_per_host" => upstream.options.push(KdlNode::new("connections-max").word(child.first())),
            "keepalive"
            | "keepalive_interval"
            | "keepalive_idle_conns"
            | "keepalive_idle_conns_per_host"
            | "compression"
            | "read_buffer"
            | "write_buffer"
            | "write_timeout"
            | "expect_continue_timeout"
            | "dial_fallback_delay"
            | "tls_timeout"
            | "max_response_header"
            | "tls_renegotiation" => {
                notes.needless(child, "connections to upstreams have safe settings");
            }
            "resolvers" | "forward_proxy_url" | "network_proxy" | "local_address" | "proxy_protocol" => {
                notes.left(child, "see the block `upstream`");
            }
            name => return Err(format!("`{name}` has no counterpart")),
        }
    }
    Ok(())
}

/// `forward_auth`.
pub(super) fn forward_auth(
    site: &mut CaddySiteParts<'_, '_>,
    directive: &Directive,
    values: &[String],
    reach: &Reach,
    scope: &mut Scope,
    notes: &mut Notes,
) {
    let mut upstream = Upstream::default();
    let mut uri = None;
    let mut fields: Vec<String> = Vec::new();
    // The first of several reasons.
    let mut refusal: Option<String> = None;
    let mut host = None;
    let mut login = None;
    for child in directive.children() {
        let refused = match child.name.as_str() {
            "uri" => {
                uri = Some(child.first().to_owned());
                None
            }
            "copy_headers" => {
                fields.extend(child.arguments.iter().cloned());
                for inner in child.children() {
                    fields.push([std::slice::from_ref(&inner.name), &inner.arguments].concat().join(">"));
                }
                None
            }
            "to" => servers(child.first(), &mut upstream).err(),
            "header_up" if child.first().eq_ignore_ascii_case("host") => {
                host = child.arguments.get(1).cloned();
                None
            }
            "header_up" if is_of_client(child) => None,
            // The field may choose a rule of that server.
            "header_up" => Some("the authentication server gets the client's fields only".to_owned()),
            "transport" => transport(child, &mut upstream, &mut Vec::new(), notes).err(),
            "trusted_proxies" => {
                notes.left(child, "`trusted-proxies` of `server` applies to all sites");
                None
            }
            "handle_response" => match login_of(site, directive, child) {
                Ok(page) => {
                    login = Some(page);
                    None
                }
                Err(why) => Some(why),
            },
            name if name.starts_with('@') => None,
            name => Some(format!("`{name}` has no counterpart")),
        };
        refusal = refusal.or(refused);
    }
    for address in values {
        refusal = refusal.or(servers(address, &mut upstream).err());
    }
    if let Some(why) = refusal {
        return site.parts.close(directive, &reach.paths, why, notes);
    }
    let names = fields.iter().map(|field| field.rsplit_once('>').map_or(field.as_str(), |(_, name)| name));
    let changed: Vec<String> = names.map(str::to_ascii_lowercase).collect();
    let to = address(site, &upstream);
    let make = |pattern: Option<String>| {
        let mut node = on_path("forward-auth", pattern).text(&to);
        if let Some(uri) = &uri {
            node = node.property("uri", uri);
        }
        if !fields.is_empty() {
            node = node.property("copy-headers", fields.join(" "));
        }
        if let Some(login) = &login {
            node = node.property("login", login);
        }
        match host.as_deref() {
            Some(host) if host.starts_with("{upstream") || host.contains("upstream.hostport") => {
                node.word_property("host", "upstream")
            }
            _ => node,
        }
    };
    let key = format!("{to} {}", uri.as_deref().unwrap_or_default());
    add_auth(site, "forward-auth", directive, &key, reach, scope, make, notes);
    scope.changed.extend(changed);
}

/// Returns `true` for a field that servers of `forward-auth` get without being told.
fn is_of_client(directive: &Directive) -> bool {
    let value = directive.arguments.get(1).map_or("", String::as_str);
    match directive.first().to_ascii_lowercase().as_str() {
        "x-real-ip" | "x-forwarded-for" => {
            matches!(value, "{remote_host}" | "{http.request.remote.host}" | "{client_ip}" | "{http.vars.client_ip}")
        }
        "x-forwarded-method" | "x-original-method" => matches!(value, "{method}" | "{http.request.method}"),
        "x-forwarded-uri" | "x-original-uri" => matches!(value, "{uri}" | "{http.request.uri}"),
        "x-forwarded-proto" => matches!(value, "{scheme}" | "{http.request.scheme}"),
        "x-forwarded-host" => matches!(value, "{host}" | "{http.request.host}" | "{hostport}"),
        _ => false,
    }
}

/// Page to which a `handle_response` redirects clients without a session.
fn login_of(site: &CaddySiteParts<'_, '_>, directive: &Directive, response: &Directive) -> Result<String, String> {
    let matcher =
        directive.children().iter().find(|child| child.name == response.first() && child.name.starts_with('@'));
    let is_of_401 = match matcher {
        Some(matcher) if matcher.block.is_none() => matcher.arguments == ["status", "401"],
        Some(matcher) => {
            matches!(matcher.children(), [one] if one.name == "status" && one.arguments == ["401"])
        }
        None => false,
    };
    let why = "`handle_response` only redirects responses with status 401";
    let [redirect] = response.children() else { return Err(why.to_owned()) };
    let target = match redirect.arguments.as_slice() {
        [target] => target,
        [first, target] if first == "*" => target,
        [target, status] | [_, target, status] if matches!(status.as_str(), "302" | "temporary" | "303") => target,
        _ => return Err(why.to_owned()),
    };
    if !is_of_401 || redirect.name != "redir" || target.starts_with('@') {
        return Err(why.to_owned());
    }
    placeholders::text(target, TextPlace::Target, site.host.as_deref())
}

/// The `forward_auth` that a `reverse_proxy` is written out of: it asks a server with GET, and goes on if that permits.
pub(super) fn written_out(directive: &Directive) -> Option<Directive> {
    let mut uri = None;
    let mut copies = Vec::new();
    let mut rest = Vec::new();
    let mut is_get = false;
    let mut is_handled = false;
    for child in directive.children() {
        match child.name.as_str() {
            "method" if child.first().eq_ignore_ascii_case("GET") => is_get = true,
            "rewrite" => uri = Some(child.arguments.last()?.clone()),
            "header_up" if is_of_client(child) => {}
            name if name.starts_with('@') => {
                if child.arguments != ["status", "2xx"] {
                    return None;
                }
            }
            "handle_response" => {
                is_handled = child.first().starts_with('@');
                for inner in child.children() {
                    let [name, value] = inner.arguments.as_slice() else { return None };
                    let from = value.strip_prefix("{http.reverse_proxy.header.")?.strip_suffix('}')?;
                    if inner.name != "request_header" {
                        return None;
                    }
                    copies.push(if from.eq_ignore_ascii_case(name) {
                        from.to_owned()
                    } else {
                        format!("{from}>{name}")
                    });
                }
            }
            _ => rest.push(child.clone()),
        }
    }
    let uri = uri.filter(|uri| is_get && is_handled && uri.starts_with('/') && !uri.contains('{'))?;
    let line = |name: &str, arguments: Vec<String>| Directive {
        name: name.to_owned(),
        arguments,
        block: None,
        ..directive.clone()
    };
    rest.push(line("uri", vec![uri]));
    if !copies.is_empty() {
        rest.push(line("copy_headers", copies));
    }
    Some(Directive { name: "forward_auth".to_owned(), block: Some(rest), ..directive.clone() })
}
