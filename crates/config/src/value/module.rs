//! Values about WebAssembly modules.

use std::path::Path;

use super::network::parse_host;
use super::parse::{Wrong, not_empty};
use crate::model::HostPattern;
use crate::model::module::{CompiledDirectory, OutgoingHost};

/// Reads a host that modules may send requests to.
pub(super) fn parse_outgoing_host(text: &str) -> Result<OutgoingHost, Wrong> {
    if text.contains("://") || text.contains(['/', '@', '?', '#']) {
        let help = "write `\"HOST\"` or `\"HOST:PORT\"`: requests may use any path, with http and https";
        return Err(Wrong::help(format!("`{text}` is not only a host"), help));
    }
    // RFC 3986, section 3.2.2: the colons of an IPv6 address need brackets.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => match port.parse::<u16>() {
            Ok(port @ 1..) => (host, Some(port)),
            _ => return Err(Wrong::new(format!("`{port}` is not a port, which is from 1 to 65535"))),
        },
        _ => (text, None),
    };
    let host = parse_host(host)?;
    if matches!(host, HostPattern::Prefix(_)) {
        let help = "write `\"api.example.com\"` or `\"*.example.com\"`";
        return Err(Wrong::help(format!("`{text}` would permit hosts of any owner"), help));
    }
    Ok(OutgoingHost { host, port })
}

/// Reads the name of an environment variable.
pub(super) fn parse_environment_name(text: &str) -> Result<String, Wrong> {
    if text.contains(['=', '\0']) {
        return Err(Wrong::new(format!("`{text}` is not the name of a variable")));
    }
    not_empty(text).map(str::to_owned)
}

/// Reads where compiled modules are kept.
pub(super) fn parse_compiled_directory(text: &str, directory: &Path) -> Result<CompiledDirectory, Wrong> {
    Ok(match text {
        "auto" => CompiledDirectory::State,
        "off" => CompiledDirectory::Off,
        path => CompiledDirectory::At(directory.join(not_empty(path)?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outgoing_hosts() {
        let check = |text: &str, expect: Option<(&str, Option<u16>)>| {
            let parsed = parse_outgoing_host(text).ok().map(|outgoing| match outgoing.host {
                HostPattern::Exact(host) | HostPattern::Suffix(host) | HostPattern::Prefix(host) => {
                    (host, outgoing.port)
                }
            });
            assert_eq!(parsed, expect.map(|(host, port)| (host.to_owned(), port)), "{text}");
        };
        check("API.example.com", Some(("api.example.com", None)));
        check("*.example.com:8443", Some((".example.com", Some(8443))));
        check("127.0.0.1:80", Some(("127.0.0.1", Some(80))));
        check("[::1]", Some(("[::1]", None)));
        check("[::1]:8080", Some(("[::1]", Some(8080))));
        for wrong in ["", "*", "https://a.example", "a.example/b", "user@a.example", "a.example:0", "a.example:http"] {
            check(wrong, None);
        }
    }

    #[test]
    fn what_is_allowed() {
        let check = |pattern: &str, host: &str, port: u16, expect: bool| {
            let outgoing = parse_outgoing_host(pattern).unwrap();
            assert_eq!(outgoing.allows(host, port, 443), expect, "{pattern} {host}:{port}");
        };
        check("api.example.com", "api.example.com", 443, true);
        check("api.example.com", "api.example.com", 8443, false);
        check("api.example.com:8443", "api.example.com", 8443, true);
        check("api.example.com:8443", "api.example.com", 443, false);
        check("api.example.com", "evil-api.example.com", 443, false);
        check("*.example.com", "a.b.example.com", 443, true);
        check("*.example.com", ".example.com", 443, false);
        check("*.example.com", "example.com", 443, false);
        check("*.example.com", "badexample.com", 443, false);
    }
}
