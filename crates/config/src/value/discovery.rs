//! Values about sources of servers.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::ValueKind;
use super::parse::{Wrong, wrong_type};
use super::store::{host_and_port, is_label};
use crate::model::discovery::{DiscoveredPort, DiscoverySource};
use crate::model::store::StoreEndpoint;
use crate::text::kdl::KdlValue;

/// Longest name in DNS, in letters (RFC 1035, section 2.3.4).
const NAME_LETTERS_MAX: usize = 253;

const HELP: &str = "write `srv:_http._tcp.app.example`, `consul://HOST/SERVICE` (`consuls` uses TLS), \
                    `docker:/run/docker.sock` or `kubernetes://NAMESPACE/SERVICE`";

/// Reads a source of servers.
pub(super) fn parse_discovery(text: &str) -> Result<DiscoverySource, Wrong> {
    let wrong = || Wrong::help(format!("`{text}` is not a source of servers"), HELP);
    let (scheme, rest) = text.split_once(':').ok_or_else(wrong)?;
    if scheme == "srv" {
        let name = rest.trim_end_matches('.');
        return if is_service_name(name) { Ok(DiscoverySource::Srv(name.to_owned())) } else { Err(wrong()) };
    }
    if scheme == "docker" {
        let socket = Path::new(rest);
        return if socket.is_absolute() { Ok(DiscoverySource::Docker(socket.to_owned())) } else { Err(wrong()) };
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
        "kubernetes" if is_label(authority) && is_label(service) => {
            Ok(DiscoverySource::Kubernetes { namespace: authority.to_owned(), service: service.to_owned() })
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

/// Reads a port, or the name of one.
pub(super) fn parse_discovered_port(value: &KdlValue) -> Result<DiscoveredPort, Wrong> {
    let number = match value {
        KdlValue::Integer(number) => Ok(*number),
        KdlValue::String(text) => text.parse().map_err(|_| text),
        _ => return Err(wrong_type(ValueKind::DiscoveredPort, value)),
    };
    match number {
        Ok(number) => match u16::try_from(number) {
            Ok(number) if number > 0 => Ok(DiscoveredPort::Number(number)),
            _ => Err(Wrong::new(format!("{number} is not a port, which is from 1 to 65535"))),
        },
        Err(name) if is_label(name) => Ok(DiscoveredPort::Name(name.clone())),
        Err(name) => Err(Wrong::new(format!("`{name}` is not the name of a port"))),
    }
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
        check("docker:/run/docker.sock", Some("docker:/run/docker.sock"));
        check("docker:run/docker.sock", None);
        check("docker:", None);
        check("kubernetes://shop/api", Some("kubernetes://shop/api"));
        check("kubernetes://shop", None);
        check("kubernetes://shop/", None);
        check("kubernetes://Shop/api", None);
        check("kubernetes://shop/api/a", None);
        check("etcd://a/b", None);
        check("web", None);
    }

    #[test]
    fn ports() {
        let check = |value: KdlValue, expect: Option<&str>| {
            assert_eq!(parse_discovered_port(&value).ok().map(|port| port.to_string()).as_deref(), expect, "{value:?}");
        };
        let text = |text: &str| KdlValue::String(text.to_owned());
        check(KdlValue::Integer(8080), Some("8080"));
        check(text("8080"), Some("8080"));
        check(text("http"), Some("http"));
        check(KdlValue::Integer(0), None);
        check(KdlValue::Integer(65_536), None);
        check(text("-1"), None);
        check(text("a b"), None);
        check(text(""), None);
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
