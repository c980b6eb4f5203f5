//! `upstream`: servers that may answer the same requests.

use super::Notes;
use super::syntax::NginxDirective;
use super::values::{duration, time};
use crate::kdl::KdlNode;

/// Protocol of an upstream's servers. Here it is part of their addresses, in nginx of the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProxyScheme {
    Http,
    Https,
    /// HTTP/2 without TLS, for gRPC.
    H2c,
    /// FastCGI, SCGI, uwsgi.
    Tcp,
}

impl ProxyScheme {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::H2c => "h2c",
            Self::Tcp => "tcp",
        }
    }

    /// Address of a server in our syntax. The default port of nginx is 80, except for `https`.
    pub(super) fn address(self, server: &str) -> String {
        if let Some(path) = server.strip_prefix("unix:") {
            return format!("unix:{}", path.trim_end_matches(':'));
        }
        format!("{}://{server}", self.name())
    }
}

/// Block of an upstream; `None` if none of its servers can be translated.
pub(super) fn translate(directive: &NginxDirective, scheme: ProxyScheme, notes: &mut Notes) -> Option<KdlNode> {
    let mut servers = Vec::new();
    let mut options: Vec<KdlNode> = Vec::new();
    for child in directive.children() {
        match child.name.as_str() {
            "server" => servers.extend(server(child, scheme, &mut options, notes)),
            "least_conn" => {}
            "ip_hash" => set(&mut options, KdlNode::new("balance").word("hash").property("by", "address")),
            "hash" => hash(child, &mut options, notes),
            "random" => {}
            "keepalive" => set(&mut options, KdlNode::new("idle-max").word(child.first())),
            "keepalive_requests" => {
                set(&mut options, KdlNode::new("requests-per-connection-max").word(child.first()));
            }
            "keepalive_timeout" | "keepalive_time" => {
                let name = if child.name == "keepalive_time" { "connection-age-max" } else { "idle-timeout" };
                match time(child.first()) {
                    Some(time) => set(&mut options, KdlNode::with(name, time)),
                    None => notes.left(child, "this is not a time"),
                }
            }
            "queue" => {
                set(&mut options, KdlNode::new("queue-max").word(child.first()));
                if let Some(time) = child.named("timeout").and_then(time) {
                    set(&mut options, KdlNode::with("queue-timeout", time));
                }
            }
            "zone" | "resolver" | "resolver_timeout" => {
                notes.needless(child, "workers share the state of servers, and resolve names again automatically");
            }
            _ => notes.unknown(child),
        }
    }
    if servers.is_empty() {
        notes.left(directive, "none of its servers can be translated");
        return None;
    }
    servers.append(&mut options);
    Some(KdlNode::with("upstream", directive.first()).required_block(servers))
}

fn server(
    directive: &NginxDirective,
    scheme: ProxyScheme,
    options: &mut Vec<KdlNode>,
    notes: &mut Notes,
) -> Option<KdlNode> {
    if directive.has("down") {
        notes.left(directive, "it is marked as down, and left out");
        return None;
    }
    // The last of several parameters of a name applies.
    let (mut weight, mut is_backup) = (None, false);
    let is_always_tried = directive.named("fail_timeout").and_then(duration).is_some_and(|time| time.is_zero());
    for argument in &directive.arguments[1.min(directive.arguments.len())..] {
        match argument.split_once('=').unwrap_or((argument, "")) {
            ("weight", value) => weight = Some(value),
            ("backup", _) => is_backup = true,
            // Limits apply to all servers of an upstream.
            ("max_conns", count) => set(options, KdlNode::new("connections-max").word(count)),
            // Either says that a server is never passed over.
            ("max_fails", _) if is_always_tried => {}
            ("fail_timeout", _) if is_always_tried => set(options, KdlNode::new("fail-max").word(0)),
            ("max_fails", count) => set(options, KdlNode::new("fail-max").word(count)),
            ("fail_timeout", text) if duration(text).is_some() => {
                let time = time(text).unwrap_or_default();
                set(options, KdlNode::with("fail-window", &time));
                set(options, KdlNode::with("eject-time", time));
            }
            ("slow_start", text) if duration(text).is_some() => {
                set(options, KdlNode::with("slow-start", time(text).unwrap_or_default()));
            }
            ("resolve", _) => {}
            _ => notes.left(directive, format!("`{argument}` has no counterpart")),
        }
    }
    let node = KdlNode::with("server", scheme.address(directive.first()));
    let node = weight.into_iter().fold(node, |node, weight| node.word_property("weight", weight));
    Some(if is_backup { node.word_property("backup", "on") } else { node })
}

fn hash(directive: &NginxDirective, options: &mut Vec<KdlNode>, notes: &mut Notes) {
    let by = match directive.first().trim_start_matches('$') {
        "remote_addr" | "binary_remote_addr" => "address".to_owned(),
        name => match (name.strip_prefix("cookie_"), name.strip_prefix("http_")) {
            (Some(cookie), _) => format!("cookie:{cookie}"),
            (_, Some(field)) => format!("field:{}", field.replace('_', "-")),
            _ => return notes.left(directive, "`balance hash` uses the client's address, a header field or a cookie"),
        },
    };
    set(options, KdlNode::new("balance").word("hash").property("by", by));
}

/// Removes repetitions of a line that a block may have once.
pub(super) fn keep_first(nodes: &mut Vec<KdlNode>, name: &str) {
    let mut is_found = false;
    nodes.retain(|node| node.name() != name || !std::mem::replace(&mut is_found, true));
}

/// Puts a line in, instead of one of the same name.
pub(super) fn set(nodes: &mut Vec<KdlNode>, node: KdlNode) {
    nodes.retain(|other| other.name() != node.name());
    nodes.push(node);
}
