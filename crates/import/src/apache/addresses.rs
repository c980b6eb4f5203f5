//! Names, addresses and certificates of a host.

use super::host::{HostSource, is};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::SiteParts;

impl HostSource<'_> {
    pub(super) fn names(&self, parts: &mut SiteParts, notes: &mut Notes) {
        let own = self.blocks.last().copied().unwrap_or_default();
        for directive in own.iter().filter(|child| is(child, "servername") || is(child, "serveralias")) {
            for name in &directive.arguments {
                let name = name.split_once("://").map_or(name.as_str(), |(_, name)| name);
                let name = name.split(':').next().unwrap_or_default();
                let middle = name.strip_prefix("*.").or(name.strip_suffix(".*")).unwrap_or(name);
                if middle.contains(['*', '?']) {
                    notes.left(directive, format!("`{name}` cannot be the name of a site"));
                } else if !parts.names.iter().any(|known| known == name) {
                    parts.names.push(name.to_owned());
                }
            }
        }
    }

    pub(super) fn listen(&self, has_tls: bool, parts: &mut SiteParts) {
        let addresses: Vec<String> = match self.host {
            Some(host) => host.arguments.iter().flat_map(|address| self.of_all_ports(address, has_tls)).collect(),
            None => self.all("listen").map(|directive| directive.first().to_owned()).collect(),
        };
        for address in addresses {
            let (host, port) = match address.rsplit_once(':') {
                Some((host, port)) if !port.contains(']') => (host, port),
                None if address.parse::<u16>().is_ok() => ("*", address.as_str()),
                _ => (address.as_str(), "*"),
            };
            let port = if port == "*" { if has_tls { "443" } else { "80" } } else { port };
            let node = KdlNode::new("listen");
            let node = match host.trim_matches(['[', ']']).parse::<std::net::IpAddr>() {
                Ok(address) if !address.is_unspecified() => node.text(format!("{host}:{port}")),
                _ => node.word(port),
            };
            let node = if has_tls { node.word_property("tls", "on") } else { node };
            if !parts.options.contains(&node) {
                parts.options.push(node);
            }
        }
    }

    /// An address of a host with each port that it gets: with `*`, those at which no other host listens.
    pub(super) fn of_all_ports(&self, address: &str, has_tls: bool) -> Vec<String> {
        let is_port = |port: &str| port.parse::<u16>().is_ok();
        let port_of = |address: &str| {
            let port = address.rsplit_once(':').map_or(address, |(_, port)| port);
            Some(port.to_owned()).filter(|port| is_port(port))
        };
        let is_ip = |address: &str| address.starts_with('[') || address.parse::<std::net::IpAddr>().is_ok();
        let host = match address.rsplit_once(':') {
            Some((host, "*")) => host,
            None if !is_port(address) => address,
            _ => return vec![address.to_owned()],
        };
        let main = self.blocks[0];
        let others = main.iter().filter(|child| is(child, "virtualhost")).flat_map(|child| &child.arguments);
        let others = others.filter(|other| !is_ip(host) || other.starts_with(host));
        let taken: Vec<String> = others.filter_map(|other| port_of(other)).collect();
        let mut ports: Vec<String> =
            main.iter().filter(|child| is(child, "listen")).filter_map(|child| port_of(child.first())).collect();
        if ports.is_empty() {
            ports.push(if has_tls { "443" } else { "80" }.to_owned());
        }
        ports.retain(|port| !taken.contains(port));
        ports.iter().map(|port| format!("{host}:{port}")).collect()
    }

    pub(super) fn tls(&self, has_tls: bool, parts: &mut SiteParts, notes: &mut Notes) {
        if !has_tls {
            return;
        }
        for certificate in self.all("sslcertificatefile") {
            let node = KdlNode::with("certificate", certificate.first());
            let key = self.last("sslcertificatekeyfile");
            parts.options.push(key.into_iter().fold(node, |node, key| node.property("key", key.first())));
        }
        if let Some(chain) = self.last("sslcertificatechainfile") {
            notes.left(chain, "append the chain to the file of the `certificate`");
        }
        let only13 = |protocols: &Directive| {
            let all = protocols.arguments.join(" ");
            all == "TLSv1.3" || all == "-all +TLSv1.3" || all.contains("-TLSv1.2")
        };
        if self.last("sslprotocol").is_some_and(only13) {
            parts.options.push(KdlNode::with("tls-version-min", "1.3"));
        }
        if let Some(verify) = self.last("sslverifyclient").filter(|verify| verify.first() != "none") {
            let mode = match verify.first() {
                "require" => Some("required"),
                "optional" => Some("optional"),
                _ => None,
            };
            match (mode, self.last("sslcacertificatefile")) {
                (Some(mode), Some(file)) => {
                    parts.options.push(KdlNode::with("client-certificate", mode).property("ca-file", file.first()));
                }
                _ => parts.close(verify, &[], "client certificates need a file of CAs, and are verified", notes),
            }
        }
        for name in ["sslrequire", "sslcarevocationfile", "sslocspenable"] {
            if let Some(directive) = self.last(name) {
                parts.close(directive, &[], "there is no counterpart", notes);
            }
        }
    }
}
