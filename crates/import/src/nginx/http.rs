//! The outer blocks: `main`, `events`, `http`.

use std::collections::{HashMap, HashSet};

use super::settings::{DirectiveContext, DirectiveLevel, ImportedRules};
use super::syntax::NginxDirective;
use super::upstream::{self, ProxyScheme, set};
use super::values::{self, Within, size, time};
use super::{Chain, Notes, forward, host_roots, server, server_names};
use crate::config::AccessLogFormat;
use crate::kdl::KdlNode;

/// Definitions of `http` to which other blocks refer.
#[derive(Default)]
pub(super) struct HttpBlock {
    /// Formats of logs, by name.
    pub(super) log_formats: HashMap<String, String>,
    /// Rate and key of each zone of `limit_req_zone`.
    pub(super) rates: HashMap<String, (String, String)>,
    /// Key of each zone of `limit_conn_zone`.
    pub(super) counts: HashMap<String, String>,
    /// Variables of `map` that decide if a connection is upgraded.
    pub(super) upgrades: HashSet<String>,
    /// Names of upstreams.
    pub(super) upstreams: HashSet<String>,
    /// Certificates and keys of the first server that has any.
    pub(super) certificates: Vec<NginxDirective>,
    /// True if some server has all names that no server has.
    pub(super) has_default: bool,
}

/// Translates the whole file.
pub(super) fn translate(directives: &[NginxDirective], maps: Vec<KdlNode>, notes: &mut Notes) -> Vec<KdlNode> {
    let mut file = ImportedFile { settings: maps, ..ImportedFile::default() };
    for directive in directives {
        file.main(directive, notes);
    }
    // A file of `sites-enabled` alone has no `http` around it. Several `http` blocks, which nginx rejects, are one.
    let mut block: Vec<NginxDirective> = directives.iter().flat_map(of_http).cloned().collect();
    block.sort_by_key(super::is_of_list);
    file.http(&block, notes);
    file.comments.extend(notes.unwritten());
    file.into_nodes()
}

/// Directives of `http` that a directive of the file has or is.
fn of_http(directive: &NginxDirective) -> &[NginxDirective] {
    match directive.name.as_str() {
        "http" => directive.children(),
        name if is_of_http(name) => std::slice::from_ref(directive),
        _ => &[],
    }
}

fn is_of_http(name: &str) -> bool {
    matches!(
        name,
        "server" | "upstream" | "map" | "limit_req_zone" | "limit_conn_zone" | "log_format" | "proxy_cache_path"
    )
}

#[derive(Default)]
struct ImportedFile {
    server: Vec<KdlNode>,
    limits: Vec<KdlNode>,
    settings: Vec<KdlNode>,
    upstreams: Vec<KdlNode>,
    sites: Vec<KdlNode>,
    /// Comments before all nodes.
    comments: Vec<String>,
}

impl ImportedFile {
    fn into_nodes(self) -> Vec<KdlNode> {
        let mut nodes = Vec::new();
        for (name, options) in [("server", self.server), ("limits", self.limits)] {
            if !options.is_empty() {
                nodes.push(KdlNode::new(name).required_block(options));
            }
        }
        nodes.extend(self.settings);
        nodes.extend(self.upstreams);
        nodes.extend(self.sites);
        if let Some(first) = nodes.first_mut() {
            first.add_comment(&self.comments.join("\n"));
        }
        nodes
    }

    fn main(&mut self, directive: &NginxDirective, notes: &mut Notes) {
        match directive.name.as_str() {
            // All `http` blocks are translated together.
            "http" => {}
            "events" => directive.children().iter().for_each(|child| self.events(child, notes)),
            "worker_processes" => set(&mut self.server, KdlNode::new("workers").word(directive.first())),
            "worker_cpu_affinity" => {
                notes.needless(directive, "each worker has its own CPU core by default (`pin-workers`)");
            }
            "worker_shutdown_timeout" => match time(directive.first()) {
                Some(time) => set(&mut self.server, KdlNode::with("grace-period", time)),
                None => notes.left(directive, "this is not a time"),
            },
            "error_log" => self.error_log(directive, notes),
            "user" => {
                let node = KdlNode::with("user", directive.first());
                let group = directive.arguments.get(1);
                set(&mut self.server, group.into_iter().fold(node, |node, group| node.property("group", group)));
            }
            "worker_rlimit_nofile" => notes.left(directive, "set it in the service's unit (`LimitNOFILE=`)"),
            "pid" | "lock_file" => notes.needless(directive, "the server writes no such file"),
            "daemon" | "master_process" | "pcre_jit" | "timer_resolution" | "worker_priority" | "thread_pool"
            | "env" => {
                notes.needless(directive, "the server runs in the foreground, and your service manager starts it");
            }
            "stream" | "mail" => notes.left(directive, "only HTTP is supported"),
            "load_module" => notes.left(directive, "nginx modules cannot be used"),
            name if is_of_http(name) => {}
            _ => notes.unknown(directive),
        }
    }

    fn events(&mut self, directive: &NginxDirective, notes: &mut Notes) {
        match directive.name.as_str() {
            // That is a worker's number there, and all workers' here.
            "worker_connections" => {
                notes.needless(directive, "the limit of open files sets it (`connections-max`)");
            }
            _ => notes.needless(directive, "workers always wait with epoll"),
        }
    }

    fn error_log(&mut self, directive: &NginxDirective, notes: &mut Notes) {
        let level = match directive.argument(1) {
            "" | "error" | "crit" | "alert" | "emerg" => "error",
            "warn" => "warn",
            "notice" | "info" => "info",
            _ => "debug",
        };
        set(&mut self.server, KdlNode::new("log-level").word(level));
        notes.needless(directive, "the server log goes to standard error, which the service manager stores");
    }

    fn http(&mut self, block: &[NginxDirective], notes: &mut Notes) {
        let shared = shared(block, notes);
        let proxies = block.iter().filter(|directive| directive.name == "set_real_ip_from");
        let proxies =
            proxies.fold(KdlNode::new("trusted-proxies"), |node, proxy| node.text(proxy.first().trim_end_matches(':')));
        if proxies.has_values() {
            set(&mut self.server, proxies);
        }
        let mut rules = ImportedRules::default();
        let context = DirectiveContext { level: &DirectiveLevel::Http, shared: &shared };
        for directive in block {
            let known = self.of_http(directive, notes)
                || forward::is_option(directive, notes)
                || rules.add(directive, context, notes);
            if !known {
                notes.unknown(directive);
            }
        }
        self.settings.extend(rules.into_nodes());
        self.comments.extend(notes.unwritten());
        let mut schemes = HashMap::new();
        collect_schemes(block, &mut schemes);
        for directive in block.iter().filter(|directive| directive.name == "upstream") {
            let scheme = schemes.get(directive.first()).copied().unwrap_or(ProxyScheme::Http);
            let node = upstream::translate(directive, scheme, notes);
            self.upstreams.extend(node.map(|node| node.comment(notes.unwritten().join("\n"))));
        }
        let chain = Chain::new(super::inherited(block));
        // The first server of an address gets the requests whose names no site has.
        let mut addresses = HashSet::new();
        // The first server with a name has it.
        let mut claimed: HashSet<(String, String)> = HashSet::new();
        for directive in block.iter().filter(|directive| directive.name == "server") {
            let children = directive.children();
            let listeners: Vec<&str> =
                children.iter().filter(|child| child.name == "listen").map(NginxDirective::first).collect();
            let listeners = if listeners.is_empty() { vec!["80"] } else { listeners };
            let names = server_names::of_block(children);
            let is_claimed = |name: &&String| {
                listeners.iter().all(|address| claimed.contains(&((*address).to_owned(), (*name).clone())))
            };
            let taken: Vec<String> = names.iter().filter(is_claimed).cloned().collect();
            for address in &listeners {
                claimed.extend(names.iter().map(|name| ((*address).to_owned(), name.clone())));
            }
            let known = addresses.len();
            addresses.extend(listeners);
            let is_first = addresses.len() > known;
            let site = server::translate(directive, chain, &shared, (is_first, &taken), notes);
            self.sites.push(host_roots::finish(site));
        }
    }

    /// Directives that only `http` has, or that hold for the whole server here.
    fn of_http(&mut self, directive: &NginxDirective, notes: &mut Notes) -> bool {
        let limits = &mut self.limits;
        let mut time_limit = |name: &'static str, text: &str| match time(text) {
            Some(time) => set(limits, KdlNode::with(name, time)),
            None => notes.left(directive, "this is not a time"),
        };
        match directive.name.as_str() {
            "keepalive_timeout" => time_limit("idle-timeout", directive.first()),
            "client_header_timeout" => time_limit("head-timeout", directive.first()),
            "client_body_timeout" => time_limit("body-timeout", directive.first()),
            "send_timeout" => time_limit("write-timeout", directive.first()),
            "keepalive_requests" => {
                set(limits, KdlNode::new("requests-per-connection-max").word(directive.first()));
            }
            "large_client_header_buffers" => self.head_buffers(directive, notes),
            "error_log" => self.error_log(directive, notes),
            "client_max_body_size" => set(limits, body_size(directive)),
            "server_tokens" => {
                if directive.first() == "off" {
                    set(&mut self.server, KdlNode::new("server-tokens").word("off"));
                }
            }
            "set_real_ip_from" | "real_ip_recursive" => {}
            "real_ip_header" => match directive.first().to_ascii_lowercase().as_str() {
                "x-forwarded-for" | "proxy_protocol" => {}
                _ => notes.left(directive, "`trusted-proxies` reads `X-Forwarded-For` or `Forwarded`"),
            },
            "proxy_cache_path" | "fastcgi_cache_path" | "uwsgi_cache_path" | "scgi_cache_path" => {
                notes.needless(directive, "responses are cached in memory (`memory-bytes-max` of `cache`)");
            }
            // Each site reads these.
            name if name.starts_with("ssl_") => {}
            "upstream" | "server" | "log_format" | "limit_req_zone" | "limit_conn_zone" | "map" => {}
            _ => return false,
        }
        true
    }

    fn head_buffers(&mut self, directive: &NginxDirective, notes: &mut Notes) {
        let count: Option<u64> = directive.first().parse().ok();
        let bytes = values::size_bytes(directive.argument(1));
        match (count, bytes) {
            (Some(count), Some(bytes)) => {
                let all = count.saturating_mul(bytes);
                set(&mut self.limits, KdlNode::with("head-bytes-max", crate::config::format_size(all)));
                set(&mut self.limits, KdlNode::with("target-bytes-max", crate::config::format_size(bytes)));
            }
            _ => notes.left(directive, "this is not a number and a size"),
        }
    }
}

/// `client_max_body_size`; 0 is no limit, which is what `auto` means where another server answers.
pub(super) fn body_size(directive: &NginxDirective) -> KdlNode {
    match size(directive.first()).filter(|_| directive.first() != "0") {
        Some(size) => KdlNode::with("body-bytes-max", size),
        None => KdlNode::new("body-bytes-max").word("auto"),
    }
}

fn shared(block: &[NginxDirective], notes: &mut Notes) -> HttpBlock {
    let mut shared = HttpBlock::default();
    let servers = || block.iter().filter(|directive| directive.name == "server").map(NginxDirective::children);
    shared.has_default = servers().any(server_names::is_default);
    for directive in block {
        match directive.name.as_str() {
            "log_format" => {
                let pieces = directive.arguments.iter().skip(1).filter(|piece| !piece.starts_with("escape="));
                let text: String = pieces.map(String::as_str).collect();
                let is_json = directive.has("escape=json");
                // Values are escaped so in an object alone.
                let format = values::text(text.trim(), Within::Log).and_then(|format| {
                    if is_json && !AccessLogFormat::is_object(&format) {
                        return Err("this is not a JSON object".to_owned());
                    }
                    Ok(format)
                });
                let format = match format {
                    Ok(format) => format,
                    Err(why) if is_json => {
                        let instead = "logs that use it are in the format `json`, whose members have other names";
                        notes.left(directive, format!("{why}; {instead}"));
                        "json".to_owned()
                    }
                    Err(why) => {
                        notes.left(directive, format!("{why}; logs that use it get the combined format"));
                        continue;
                    }
                };
                shared.log_formats.insert(directive.first().to_owned(), format);
            }
            "limit_req_zone" => match (zone_name(directive), directive.named("rate").and_then(rate)) {
                (Some(zone), Some(rate)) => {
                    if let Some(key) = limit_key(directive, notes) {
                        shared.rates.insert(zone, (rate, key));
                    }
                }
                _ => notes.left(directive, "its zone or rate is missing or invalid"),
            },
            "limit_conn_zone" => {
                if let (Some(zone), Some(key)) = (zone_name(directive), limit_key(directive, notes)) {
                    shared.counts.insert(zone, key);
                }
            }
            "map" if directive.first() == "$http_upgrade" => {
                shared.upgrades.insert(directive.argument(1).to_owned());
                notes.needless(directive, "WebSockets pass by default (`upgrade`)");
            }
            "server" if shared.certificates.is_empty() => {
                let is_of_certificate = |child: &&NginxDirective| child.name.starts_with("ssl_certificate");
                let has_any = directive.children().iter().any(|child| child.name == "ssl_certificate");
                let own = directive.children().iter().filter(is_of_certificate).filter(|_| has_any);
                shared.certificates = own.cloned().collect();
            }
            "upstream" => drop(shared.upstreams.insert(directive.first().to_owned())),
            _ => {}
        }
    }
    shared
}

/// `api` of `zone=api:10m`.
fn zone_name(directive: &NginxDirective) -> Option<String> {
    Some(directive.named("zone")?.split(':').next()?.to_owned())
}

/// `10/s` of `10r/s`.
fn rate(text: &str) -> Option<String> {
    let (count, unit) = text.split_once("r/")?;
    matches!(unit, "s" | "m").then(|| format!("{count}/{unit}"))
}

fn limit_key(directive: &NginxDirective, notes: &mut Notes) -> Option<String> {
    let key = match directive.first() {
        "$binary_remote_addr" | "$remote_addr" => "address".to_owned(),
        "$host" | "$http_host" | "$server_name" => "host".to_owned(),
        key => match (key.strip_prefix("$cookie_"), key.strip_prefix("$http_")) {
            (Some(cookie), _) => format!("cookie:{cookie}"),
            (_, Some(field)) => format!("field:{}", field.replace('_', "-")),
            _ => {
                notes.left(directive, format!("requests cannot be counted by `{key}`"));
                return None;
            }
        },
    };
    Some(key)
}

/// Protocols of servers, by the name of their upstream: that of the first directive that refers to it.
fn collect_schemes<'a>(directives: &'a [NginxDirective], schemes: &mut HashMap<&'a str, ProxyScheme>) {
    for directive in directives {
        let target = directive.first();
        let scheme = match directive.name.as_str() {
            "proxy_pass" if target.starts_with("https://") => ProxyScheme::Https,
            "proxy_pass" => ProxyScheme::Http,
            "grpc_pass" if target.starts_with("grpcs://") => ProxyScheme::Https,
            "grpc_pass" => ProxyScheme::H2c,
            "fastcgi_pass" | "uwsgi_pass" | "scgi_pass" => ProxyScheme::Tcp,
            _ => {
                collect_schemes(directive.children(), schemes);
                continue;
            }
        };
        let authority = target.split_once("://").map_or(target, |(_, rest)| rest);
        schemes.entry(authority.split('/').next().unwrap_or_default()).or_insert(scheme);
    }
}

#[cfg(test)]
mod tests {
    use crate::expression::counted;
    use crate::nginx::tests::translated;

    /// Issue 23: 100 locations took seconds, and 4,000 servers most of a minute.
    #[test]
    fn effort_grows_with_the_configuration() {
        let steps = |text: String| counted::during(|| drop(translated(&text)));
        let locations = |count: usize| {
            let one =
                |number| format!("location /p{number}/ {{ deny all; }} location ~ ^/r{number}/.*[.]x{number}$ {{ }}");
            steps(format!("server {{ listen 80; root /srv; {} }}", (0..count).map(one).collect::<String>()))
        };
        let servers = |count: usize| {
            let one = |number| {
                format!(
                    "server {{ listen 80; server_name s{number}.b; root /s; ssl_dhparam x; location /a/ {{ deny all; }} }}"
                )
            };
            steps((0..count).map(one).collect())
        };
        assert!(locations(40) < locations(20) * 5 / 2, "{} and {}", locations(20), locations(40));
        assert!(servers(40) < servers(20) * 5 / 2, "{} and {}", servers(20), servers(40));
    }
}
