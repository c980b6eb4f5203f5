//! Options of all sites: the block without an address.

use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;

use super::{matcher::PRIVATE_RANGES, order};

/// Options of all sites.
#[derive(Debug)]
pub(super) struct GlobalOptions {
    pub(super) http_port: u16,
    pub(super) https_port: u16,
    /// `auto_https off`, or without redirects.
    pub(super) is_automatic_off: bool,
    pub(super) default_bind: Vec<String>,
    pub(super) has_local_certificates: bool,
    /// True if clients are found in a way that is not translated.
    pub(super) has_other_clients: bool,
    /// Directives that Caddy has, in the order in which they apply.
    pub(super) order: Vec<String>,
    server: Vec<KdlNode>,
    limits: Vec<KdlNode>,
    certificates: Vec<KdlNode>,
}

impl GlobalOptions {
    /// Returns `true` if sites get certificates by themselves, on the usual ports.
    pub(super) fn is_automatic(&self) -> bool {
        !self.is_automatic_off && self.http_port == 80 && self.https_port == 443
    }

    /// Returns `true` if clients are found through proxies.
    pub(super) fn has_proxies(&self) -> bool {
        self.server.iter().any(|node| node.name() == "trusted-proxies")
    }

    pub(super) fn into_nodes(self) -> Vec<KdlNode> {
        let blocks = [("server", self.server), ("limits", self.limits), ("automatic-certificates", self.certificates)];
        let blocks = blocks.into_iter().filter(|(_, lines)| !lines.is_empty());
        blocks.map(|(name, lines)| KdlNode::new(name).required_block(lines)).collect()
    }
}

/// Reads the options.
pub(super) fn translate(options: &[Directive], notes: &mut Notes) -> GlobalOptions {
    let mut found = GlobalOptions {
        http_port: 80,
        https_port: 443,
        is_automatic_off: false,
        default_bind: Vec::new(),
        has_local_certificates: false,
        has_other_clients: false,
        order: order::usual(),
        server: Vec::new(),
        limits: Vec::new(),
        certificates: Vec::new(),
    };
    options.iter().for_each(|directive| found.add(directive, notes));
    found
}

impl GlobalOptions {
    fn add(&mut self, directive: &Directive, notes: &mut Notes) {
        let first = directive.first();
        match directive.name.as_str() {
            "http_port" => self.http_port = first.parse().unwrap_or(self.http_port),
            "https_port" => self.https_port = first.parse().unwrap_or(self.https_port),
            "default_bind" => self.default_bind.clone_from(&directive.arguments),
            "auto_https" => match first {
                "off" | "disable_redirects" | "disable_certs" => {
                    self.is_automatic_off = true;
                    if first != "off" {
                        notes.left(directive, "translated like `auto_https off`");
                    }
                }
                _ => notes.needless(directive, "a site with a `certificate` uses it"),
            },
            "local_certs" => self.has_local_certificates = true,
            "email" if first.contains('@') => {
                self.certificates.push(KdlNode::with("contact", format!("mailto:{first}")));
            }
            "email" => notes.left(directive, "`contact` of `automatic-certificates` needs an address"),
            "acme_ca" => {
                self.certificates.push(KdlNode::with("directory", first));
            }
            "acme_dns" | "cert_issuer" | "acme_eab" | "acme_ca_root" => {
                notes.left(directive, "see `automatic-certificates`: `dns-hook`, `directory`, `external-account`");
            }
            "grace_period" => self.server.extend(super::proxy::time_option("grace-period", directive, notes)),
            "servers" => {
                let finds_clients = |child: &Directive| match child.name.as_str() {
                    // Of some listeners, or from a source that is not known here.
                    "trusted_proxies" => !directive.arguments.is_empty() || child.first() != "static",
                    "client_ip_headers" => child.arguments != ["X-Forwarded-For"],
                    _ => false,
                };
                self.has_other_clients |= directive.children().iter().any(finds_clients);
                directive.children().iter().for_each(|child| self.server_option(child, notes));
            }
            "debug" => self.server.push(KdlNode::new("log-level").word("debug")),
            "log" => {
                notes.needless(directive, "the server log goes to standard error, which the service manager stores")
            }
            "on_demand_tls" => notes.left(directive, "automatic certificates are for the names of `site` blocks"),
            "admin" => notes.needless(directive, "commands reach the server through its `control-socket`"),
            "order" if order::position(first) == 0 => {
                notes.needless(directive, "directives of plugins have no counterpart");
            }
            "order" => {
                if let Err(why) = order::moved(&mut self.order, &directive.arguments) {
                    notes.left(directive, why);
                }
            }
            "storage"
            | "storage_clean_interval"
            | "storage_check"
            | "persist_config"
            | "skip_install_trust"
            | "default_sni"
            | "fallback_sni"
            | "ocsp_stapling"
            | "ocsp_interval"
            | "key_type"
            | "pki"
            | "filesystem"
            | "cert_lifetime"
            | "renew_interval"
            | "preferred_chains"
            | "shutdown_delay"
            | "renewal_window_ratio" => {
                notes.needless(directive, "certificates are stored and renewed in one fixed way");
            }
            "metrics" => {
                notes.left(directive, "write `metrics \"/metrics\"` into a site, or `status-listen` into `server`")
            }
            _ => notes.left(directive, "there is no counterpart"),
        }
    }

    fn server_option(&mut self, directive: &Directive, notes: &mut Notes) {
        match directive.name.as_str() {
            "trusted_proxies" if directive.first() == "static" => {
                let mut node = KdlNode::new("trusted-proxies");
                for network in &directive.arguments[1..] {
                    match network.as_str() {
                        "private_ranges" => node = node.texts(PRIVATE_RANGES.iter()),
                        network => node = node.text(network),
                    }
                }
                self.server.push(node);
            }
            "trusted_proxies_strict" | "strict_sni_host" | "enable_full_duplex" | "log_credentials" | "name" => {
                notes.needless(directive, "requests are always handled in the safe way");
            }
            "protocols" => {
                let versions = directive.arguments.iter().filter_map(|version| match version.as_str() {
                    "h1" => Some("1.1"),
                    "h2" => Some("2"),
                    "h3" => Some("3"),
                    _ => None,
                });
                let node = KdlNode::new("http-versions").texts(versions);
                self.server.push(node);
            }
            "timeouts" => {
                for child in directive.children() {
                    let name = match child.name.as_str() {
                        "read_header" => "head-timeout",
                        "read_body" => "body-timeout",
                        "write" => "write-timeout",
                        "idle" => "idle-timeout",
                        _ => {
                            notes.left(child, "there is no counterpart");
                            continue;
                        }
                    };
                    self.limits.extend(super::proxy::time_option(name, child, notes));
                }
            }
            "max_header_size" => match super::proxy::size(directive.first()) {
                Some(size) => self.limits.push(KdlNode::with("head-bytes-max", size)),
                None => notes.left(directive, "this is not a size"),
            },
            "listener_wrappers" => notes.left(directive, "write `proxy-protocol=on` after `listen`"),
            "metrics" => {
                notes.left(directive, "write `metrics \"/metrics\"` into a site, or `status-listen` into `server`")
            }
            _ => notes.left(directive, "there is no counterpart"),
        }
    }
}
