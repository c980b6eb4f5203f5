//! Values about stores.

use std::path::Path;

use super::parse::Wrong;
use super::upstream::parse_server_address;
use crate::model::store::{StoreEndpoint, StorePlace, ValkeyPlace, ValkeyTopology};
use crate::model::upstream::UpstreamServerAddress;

/// Prefix of keys unless the URL has one.
const PREFIX: &str = "tailcoat";

const HELP: &str = "write a directory such as `/srv/shared/tailcoat`, or `valkey://HOST`, `valkey-sentinel://HOST,HOST/PRIMARY`, \
                    `valkey-cluster://HOST,HOST`, `s3://BUCKET/PREFIX`, `consul://HOST/PREFIX` or \
                    `kubernetes://NAMESPACE/PREFIX`; `valkeys`, `consuls` and similar use TLS";

/// Reads the address of a store.
pub(super) fn parse_store(text: &str, directory: &Path) -> Result<StorePlace, Wrong> {
    let wrong = |message: String| Wrong::help(message, HELP);
    let Some((scheme, rest)) = text.split_once("://") else {
        return match text.contains('/') {
            true => Ok(StorePlace::Directory(directory.join(text))),
            false => Err(wrong(format!("`{text}` is not the address of a store"))),
        };
    };
    if rest.contains('@') {
        return Err(Wrong::help(
            "the address of a store has no user and password".to_owned(),
            "use `username` and `password-file`, because addresses are logged",
        ));
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.trim_end_matches('/');
    let prefix = || match path {
        "" => Ok(PREFIX.to_owned()),
        path if is_key(path) => Ok(path.to_owned()),
        path => Err(wrong(format!("`{path}` is not a prefix of keys"))),
    };
    let (is_tls, scheme) = match scheme {
        "rediss" | "valkeys" => (true, "valkey"),
        "redis" | "valkey" => (false, "valkey"),
        "consuls" => (true, "consul"),
        "valkeys-sentinel" | "rediss-sentinel" => (true, "valkey-sentinel"),
        "redis-sentinel" => (false, "valkey-sentinel"),
        "valkeys-cluster" | "rediss-cluster" => (true, "valkey-cluster"),
        "redis-cluster" => (false, "valkey-cluster"),
        scheme => (false, scheme),
    };
    match scheme {
        "file" => Ok(StorePlace::Directory(directory.join(rest))),
        "valkey" | "valkey-sentinel" | "valkey-cluster" => {
            let usual = if scheme == "valkey-sentinel" { 26_379 } else { 6_379 };
            let nodes = authority.split(',').map(|node| host_and_port(node, usual)).collect::<Result<Vec<_>, _>>()?;
            let mut parts = path.split('/').filter(|part| !part.is_empty());
            let topology = match scheme {
                "valkey-cluster" => ValkeyTopology::Cluster,
                "valkey-sentinel" => match parts.next() {
                    Some(primary) => ValkeyTopology::Sentinel(primary.to_owned()),
                    None => return Err(wrong("the address names no primary".to_owned())),
                },
                _ if nodes.len() > 1 => {
                    return Err(wrong("several servers are a cluster, or sentinels".to_owned()));
                }
                _ => ValkeyTopology::Standalone,
            };
            let database = parts.next().map_or(Ok(0), |number| {
                number.parse().map_err(|_| wrong(format!("`{number}` is not the number of a database")))
            })?;
            if parts.next().is_some() || (database != 0 && topology == ValkeyTopology::Cluster) {
                return Err(wrong(format!("`{path}` is not the number of a database")));
            }
            Ok(StorePlace::Valkey(ValkeyPlace { nodes, topology, is_tls, database }))
        }
        "s3" if is_key(authority) => Ok(StorePlace::S3 { bucket: authority.to_owned(), prefix: prefix()? }),
        "consul" => {
            let (host, port) = host_and_port(authority, if is_tls { 8_501 } else { 8_500 })?;
            Ok(StorePlace::Consul { endpoint: StoreEndpoint { is_tls, host, port }, prefix: prefix()? })
        }
        "kubernetes" if is_label(authority) => {
            let prefix = prefix()?;
            match is_label(&prefix) {
                true => Ok(StorePlace::Kubernetes { namespace: authority.to_owned(), prefix }),
                false => Err(wrong(format!("`{prefix}` is not a prefix of names of Kubernetes"))),
            }
        }
        _ => Err(wrong(format!("`{text}` is not the address of a store"))),
    }
}

/// Reads the URL of an engine that speaks HTTP.
pub(super) fn parse_store_endpoint(text: &str) -> Result<StoreEndpoint, Wrong> {
    let help = "write `\"https://HOST\"` or `\"http://HOST:PORT\"`";
    match parse_server_address(text, Path::new("/"))? {
        UpstreamServerAddress::Tcp(host, port) if text.starts_with("http://") => {
            Ok(StoreEndpoint { is_tls: false, host: without_brackets(&host), port })
        }
        UpstreamServerAddress::Tls(host, port) if text.starts_with("https://") => {
            Ok(StoreEndpoint { is_tls: true, host: without_brackets(&host), port })
        }
        _ => Err(Wrong::help(format!("`{text}` is not the URL of a server"), help)),
    }
}

pub(super) fn host_and_port(text: &str, usual: u16) -> Result<(String, u16), Wrong> {
    let has_port = text.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let url = if has_port { format!("http://{text}") } else { format!("http://{text}:{usual}") };
    parse_store_endpoint(&url).map(|endpoint| (endpoint.host, endpoint.port))
}

fn without_brackets(host: &str) -> String {
    host.trim_matches(['[', ']']).to_owned()
}

/// True for the bytes that each engine allows in keys.
fn is_key(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    (1..=100).contains(&text.len())
        && text.bytes().all(is_plain)
        && text.split('/').all(|part| !["", ".", ".."].contains(&part))
}

/// True for a label of DNS (RFC 1123).
pub(super) fn is_label(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(is_plain) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let check = |text: &str, expect: Option<&str>| {
            let found = parse_store(text, Path::new("/etc")).ok().map(|place| place.to_string());
            assert_eq!(found.as_deref(), expect, "{text}");
        };
        check("/srv/shared", Some("/srv/shared"));
        check("shared/a", Some("/etc/shared/a"));
        check("file:///srv/shared", Some("/srv/shared"));
        check("shared", None);
        check("valkey://a", Some("valkey://a:6379"));
        check("redis://a:7000/3", Some("valkey://a:7000"));
        check("rediss://a", Some("valkeys://a:6379"));
        check("valkey://[::1]:7000", Some("valkey://::1:7000"));
        check("valkey://a,b", None);
        check("valkey://a/b", None);
        check("valkey://user:secret@a", None);
        check("valkey-sentinel://a,b:7/main", Some("valkey-sentinel://a:26379,b:7"));
        check("valkey-sentinel://a", None);
        check("valkeys-cluster://a,b", Some("valkey-clusters://a:6379,b:6379"));
        check("valkey-cluster://a/1", None);
        check("s3://bucket", Some("s3://bucket/tailcoat"));
        check("s3://bucket/a/b/", Some("s3://bucket/a/b"));
        check("s3://bucket/../b", None);
        check("consul://127.0.0.1", Some("consul://127.0.0.1:8500/tailcoat"));
        check("consuls://consul.example/edge", Some("consuls://consul.example:8501/edge"));
        check("kubernetes://web", Some("kubernetes://web/tailcoat"));
        check("kubernetes://web/edge", Some("kubernetes://web/edge"));
        check("kubernetes://Web", None);
        check("etcd://a", None);
    }

    #[test]
    fn endpoints() {
        let check = |text: &str, expect: Option<&str>| {
            assert_eq!(parse_store_endpoint(text).ok().map(|url| url.to_string()).as_deref(), expect, "{text}");
        };
        check("http://127.0.0.1:9000", Some("http://127.0.0.1:9000"));
        check("https://s3.example", Some("https://s3.example:443"));
        check("http://[::1]:9000", Some("http://[::1]:9000"));
        check("ftp://a", None);
        check("a:80", None);
    }
}
