//! Values about sources of servers.

use std::net::{IpAddr, SocketAddr};

use super::parse::Wrong;
use super::store::host_and_port;
use crate::model::discovery::DiscoverySource;
use crate::model::store::StoreEndpoint;

/// Longest name in DNS, in letters (RFC 1035, section 2.3.4).
const NAME_LETTERS_MAX: usize = 253;

const HELP: &str = "write `srv:_http._tcp.app.example` or `consul://HOST/SERVICE`; `consuls` uses TLS";

/// Reads a source of servers.
pub(super) fn parse_discovery(text: &str) -> Result<DiscoverySource, Wrong> {
    let wrong = || Wrong::help(format!("`{text}` is not a source of servers"), HELP);
    let (scheme, rest) = text.split_once(':').ok_or_else(wrong)?;
    if scheme == "srv" {
        let name = rest.trim_end_matches('.');
        return if is_service_name(name) { Ok(DiscoverySource::Srv(name.to_owned())) } else { Err(wrong()) };
    }
    if rest.contains(['@', '?', '#']) {
        return Err(Wrong::help(format!("`{text}` has more than host and name"), "use `token-file` and `tag`"));
    }
    let (authority, service) = rest.strip_prefix("//").and_then(|rest| rest.split_once('/')).ok_or_else(wrong)?;
    match scheme {
        "consul" | "consuls" if is_consul_service(service) => {
            let is_tls = scheme == "consuls";
            let (host, port) = host_and_port(authority, if is_tls { 8_501 } else { 8_500 })?;
            let endpoint = StoreEndpoint { is_tls, host, port };
            Ok(DiscoverySource::Consul { endpoint, service: service.to_owned() })
        }
        _ => Err(wrong()),
    }
}

/// Reads the address of a name server, perhaps with a port.
pub(super) fn parse_resolver(text: &str) -> Result<SocketAddr, Wrong> {
    let address = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| (ip, 53).into()));
    let help = "write an address such as `127.0.0.53` or `10.0.0.2:8600`";
    address.map_err(|_| Wrong::help(format!("`{text}` is not the address of a name server"), help))
}

/// True for names of services in DNS, whose labels may begin with `_`.
fn is_service_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=NAME_LETTERS_MAX).contains(&name.len())
        && name.split('.').all(|label| (1..=63).contains(&label.len()) && label.bytes().all(is_plain))
}

/// True for names that Consul takes and that need no escape in a URL.
fn is_consul_service(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && ![".", ".."].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources() {
        let check = |text: &str, expect: Option<&str>| {
            let found = parse_discovery(text).ok().map(|source| source.to_string());
            assert_eq!(found.as_deref(), expect, "{text}");
        };
        check("srv:_http._tcp.app.example", Some("srv:_http._tcp.app.example"));
        check("srv:app.service.consul.", Some("srv:app.service.consul"));
        check("srv:", None);
        check("srv:a..b", None);
        check("srv:a b", None);
        check(&format!("srv:{}", "a".repeat(64)), None);
        check("consul://127.0.0.1/web", Some("consul://127.0.0.1:8500/web"));
        check("consuls://consul.example:8443/web-2", Some("consuls://consul.example:8443/web-2"));
        check("consul://[::1]/web", Some("consul://[::1]:8500/web"));
        check("consul://127.0.0.1", None);
        check("consul://127.0.0.1/", None);
        check("consul://127.0.0.1/a/b", None);
        check("consul://127.0.0.1/..", None);
        check("consul://token@127.0.0.1/web", None);
        check("consul://127.0.0.1/web?dc=2", None);
        check("etcd://a/b", None);
        check("web", None);
    }

    #[test]
    fn resolvers() {
        let check = |text: &str, expect: Option<&str>| {
            assert_eq!(parse_resolver(text).ok().map(|address| address.to_string()).as_deref(), expect, "{text}");
        };
        check("127.0.0.53", Some("127.0.0.53:53"));
        check("10.0.0.2:8600", Some("10.0.0.2:8600"));
        check("[::1]:8600", Some("[::1]:8600"));
        check("::1", Some("[::1]:53"));
        check("dns.example", None);
        check("", None);
    }
}
