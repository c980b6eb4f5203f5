//! Records that stay in DNS and prove control over a name for all orders of an account (draft-ietf-acme-dns-persist).

use std::path::Path;

use serde::Deserialize;
use tailcoat_config::tls_client_settings;
use tailcoat_rest::RestClient;

/// Bytes of a CA's directory, at most.
const DIRECTORY_BYTES_MAX: usize = 64 << 10;

/// TXT record that the operator sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PersistentRecord {
    pub(super) name: String,
    pub(super) value: String,
}

/// Directory of a CA, as far as it matters here (RFC 8555, section 7.1.1).
#[derive(Deserialize)]
struct Directory {
    #[serde(default)]
    meta: DirectoryMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DirectoryMeta {
    #[serde(default)]
    caa_identities: Vec<String>,
}

impl PersistentRecord {
    /// Record for a name of an order. It permits wildcards if one of the order's names is a wildcard below it.
    pub(super) fn new(name: &str, issuer: Option<String>, account: &str, names: &[String]) -> Self {
        let issuer = issuer.as_deref().unwrap_or("DOMAIN-OF-THE-CA");
        let is_above = |other: &String| other.strip_prefix("*.").is_some_and(|parent| parent == name);
        let policy = if names.iter().any(is_above) { "; policy=wildcard" } else { "" };
        Self { name: format!("_validation-persist.{name}"), value: format!("{issuer}; accounturi={account}{policy}") }
    }
}

/// Name of a CA in records of DNS, from its directory; `None` if it does not tell, or a name that no record can have.
pub(super) async fn issuer(directory: &str, authority: Option<&Path>) -> Option<String> {
    let rest = directory.strip_prefix("https://")?;
    let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (place, 443),
    };
    let client = RestClient::new(host, port, Some(tls_client_settings(authority).ok()?), DIRECTORY_BYTES_MAX).ok()?;
    let response = client.open(&format!("/{path}"), Default::default()).await.ok()?;
    let content = client.read(response).await.ok()?.content;
    issuer_of(&content)
}

fn issuer_of(directory: &[u8]) -> Option<String> {
    let directory: Directory = serde_json::from_slice(directory).ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    directory.meta.caa_identities.into_iter().next().filter(|name| name.len() <= 253 && name.bytes().all(is_plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records() {
        let names = ["*.a.example", "a.example", "b.example"].map(str::to_owned);
        for (name, issuer, expect) in [
            ("a.example", Some("ca.example"), "ca.example; accounturi=https://ca/1; policy=wildcard"),
            ("b.example", Some("ca.example"), "ca.example; accounturi=https://ca/1"),
            ("b.example", None, "DOMAIN-OF-THE-CA; accounturi=https://ca/1"),
        ] {
            let record = PersistentRecord::new(name, issuer.map(str::to_owned), "https://ca/1", &names);
            assert_eq!((record.name, record.value.as_str()), (format!("_validation-persist.{name}"), expect));
        }
    }

    #[test]
    fn names_of_cas() {
        for (directory, expect) in [
            (r#"{"meta":{"caaIdentities":["ca.example","other.example"]}}"#, Some("ca.example")),
            (r#"{"meta":{}}"#, None),
            ("{}", None),
            ("[", None),
            (r#"{"meta":{"caaIdentities":["a\nb"]}}"#, None),
            (r#"{"meta":{"caaIdentities":[1]}}"#, None),
        ] {
            assert_eq!(issuer_of(directory.as_bytes()).as_deref(), expect, "{directory}");
        }
    }
}
