//! Automatic certificates (ACME, RFC 8555): the model.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use base64ct::{Base64UrlUnpadded, Encoding};

use super::HostPattern;
use crate::regular_file::read_regular;

/// Settings for certificates of sites that have none of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct AutomaticCertificates {
    /// ACME directory URL of the CA.
    pub directory: String,
    /// CA certificate (PEM) for the ACME server itself; `None` trusts the system's CAs.
    pub authority: Option<PathBuf>,
    /// Contact URLs for the CA, such as `mailto:`.
    pub contacts: Vec<String>,
    /// Challenges, in order of preference; empty means automatic.
    pub challenges: Vec<ChallengeKind>,
    /// The program that changes DNS records.
    pub dns_hook: Option<DnsHook>,
    /// Account with the CA to which the ACME account is bound.
    pub external_account: Option<ExternalAccount>,
    /// Requested certificate profile; `None` is the CA's default.
    pub profile: Option<String>,
    /// Time to wait after an order has failed, at first. It doubles with each further failure.
    pub retry_interval: Duration,
    /// An order fails after this time.
    pub order_timeout: Duration,
}

/// Method that proves control over a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeKind {
    /// By a response on port 80 (RFC 8555, section 8.3).
    Http01,
    /// By a handshake on port 443 (RFC 8737).
    TlsAlpn01,
    /// By a record in DNS (RFC 8555, section 8.4).
    Dns01,
    /// By a record that stays in DNS (draft-ietf-acme-dns-persist).
    DnsPersist01,
}

/// Kind of a name, which decides how control over it can be proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateSubject {
    /// Name of a host.
    Host,
    /// All hosts below a name.
    Wildcard,
    /// IP address (RFC 8738).
    Address,
}

/// A program that adds and removes records in DNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsHook {
    /// The program.
    pub program: PathBuf,
    /// Arguments before `add` or `remove`, the name and the value.
    pub arguments: Vec<String>,
    /// Maximum run time; then the program is killed.
    pub timeout: Duration,
}

/// Account with a CA (RFC 8555, section 7.3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The key's identifier.
    pub key_id: String,
    /// A file with the HMAC key, in base64url.
    pub key_file: PathBuf,
}

/// The directory of Let's Encrypt.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The longest time between two attempts.
pub const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(86_400);

impl Default for AutomaticCertificates {
    fn default() -> Self {
        Self {
            directory: LETS_ENCRYPT.to_owned(),
            authority: None,
            contacts: Vec::new(),
            challenges: Vec::new(),
            dns_hook: None,
            external_account: None,
            profile: None,
            retry_interval: Duration::from_secs(60),
            order_timeout: Duration::from_secs(600),
        }
    }
}

impl AutomaticCertificates {
    /// Returns `true` if a certificate for this name can be obtained by default.
    pub fn can_be_got(&self, name: &HostPattern) -> bool {
        is_public(name) && !self.challenges(CertificateSubject::of(name)).is_empty()
    }

    /// Challenges that prove control over a name of this kind, the first to try first.
    pub fn challenges(&self, subject: CertificateSubject) -> Vec<ChallengeKind> {
        const CONNECTIONS: &[ChallengeKind] = &[ChallengeKind::Http01, ChallengeKind::TlsAlpn01];
        let usual = match (&self.dns_hook, subject) {
            (_, CertificateSubject::Address) | (None, CertificateSubject::Host) => CONNECTIONS,
            (Some(_), _) => &[ChallengeKind::Dns01],
            (None, CertificateSubject::Wildcard) => &[],
        };
        let can_prove = |kind: &ChallengeKind| match subject {
            CertificateSubject::Host => true,
            CertificateSubject::Wildcard => !CONNECTIONS.contains(kind),
            CertificateSubject::Address => CONNECTIONS.contains(kind),
        };
        let chosen: Vec<_> = self.challenges.iter().copied().filter(can_prove).collect();
        match (self.challenges.is_empty(), chosen.is_empty(), subject) {
            (true, ..) => usual.to_vec(),
            // A hook is enough for a wildcard, also if other names use other challenges.
            (false, true, CertificateSubject::Wildcard) => usual.to_vec(),
            _ => chosen,
        }
    }

    /// True for a directory of Let's Encrypt.
    pub fn is_lets_encrypt(&self) -> bool {
        let host = self.directory.strip_prefix("https://").and_then(|rest| rest.split('/').next());
        host.is_some_and(|host| host.ends_with(".api.letsencrypt.org"))
    }
}

impl CertificateSubject {
    /// Kind of a site's name.
    pub fn of(name: &HostPattern) -> Self {
        match name {
            HostPattern::Exact(name) if address_of(name).is_some() => Self::Address,
            HostPattern::Exact(_) => Self::Host,
            HostPattern::Suffix(_) | HostPattern::Prefix(_) => Self::Wildcard,
        }
    }
}

impl ExternalAccount {
    /// Reads the HMAC key.
    ///
    /// # Errors
    /// The file can't be read, or is not base64url: for a person.
    pub fn load_key(&self) -> Result<Vec<u8>, String> {
        let path = self.key_file.display();
        let text = read_regular(&self.key_file).map_err(|error| format!("{path}: {error}"))?;
        let text = String::from_utf8_lossy(&text);
        let text = text.trim().trim_end_matches('=');
        Base64UrlUnpadded::decode_vec(text).map_err(|_| format!("{path}: this is not a key in base64url"))
    }
}

impl ChallengeKind {
    /// All kinds, by the names that RFC 8555, RFC 8737 and draft-ietf-acme-dns-persist give them.
    pub const NAMES: &[&str] = &["http-01", "tls-alpn-01", "dns-01", "dns-persist-01"];

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "http-01" => Some(Self::Http01),
            "tls-alpn-01" => Some(Self::TlsAlpn01),
            "dns-01" => Some(Self::Dns01),
            "dns-persist-01" => Some(Self::DnsPersist01),
            _ => None,
        }
    }
}

/// Top-level domains that no public authority has certificates for (RFC 2606, RFC 6761, RFC 6762, RFC 7686, RFC 8375, and
/// those that ICANN keeps for private use).
const PRIVATE_DOMAINS: &[&str] = &[
    "alt",
    "arpa",
    "corp",
    "example",
    "home",
    "internal",
    "intranet",
    "invalid",
    "lan",
    "local",
    "localdomain",
    "localhost",
    "mail",
    "onion",
    "private",
    "test",
];

/// Returns `true` if a public CA may issue a certificate for this name.
pub fn is_public(name: &HostPattern) -> bool {
    let name = match name {
        HostPattern::Exact(name) => name.as_str(),
        HostPattern::Suffix(suffix) => suffix.strip_prefix('.').unwrap_or(suffix),
        // No certificate can have such a name.
        HostPattern::Prefix(_) => return false,
    };
    let Some((_, top)) = name.trim_end_matches('.').rsplit_once('.') else { return false };
    let is_address = name.parse::<IpAddr>().is_ok() || name.starts_with('[');
    !is_address && !top.is_empty() && !PRIVATE_DOMAINS.contains(&top) && !top.bytes().all(|byte| byte.is_ascii_digit())
}

/// Address that a host name is; one of IPv6 is in brackets.
pub fn address_of(name: &str) -> Option<IpAddr> {
    let inside = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match inside {
        Some(inside) => inside.parse().ok().filter(IpAddr::is_ipv6),
        None => name.parse().ok().filter(IpAddr::is_ipv4),
    }
}

/// The name of a certificate for such hosts.
pub fn certificate_name(name: &HostPattern) -> String {
    match name {
        HostPattern::Exact(name) => address_of(name).map_or_else(|| name.clone(), |address| address.to_string()),
        HostPattern::Suffix(suffix) => format!("*{suffix}"),
        HostPattern::Prefix(prefix) => format!("{prefix}*"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{CheckedConfig, check_bytes};

    #[test]
    fn public_names() {
        let exact = |name: &str| HostPattern::Exact(name.into());
        for (name, expect) in [
            (exact("example.com"), true),
            (exact("a.b.co.uk"), true),
            (exact("xn--bcher-kva.de"), true),
            (HostPattern::Suffix(".example.com".into()), true),
            (HostPattern::Suffix(".com".into()), false),
            (HostPattern::Suffix(".test".into()), false),
            (exact("localhost"), false),
            (exact("www"), false),
            (exact("a.localhost"), false),
            (exact("nas.local"), false),
            (exact("a.example"), false),
            (exact("db.internal"), false),
            (exact("1.0.0.127.in-addr.arpa"), false),
            (exact("192.0.2.1"), false),
            (exact("[2001:db8::1]"), false),
            (exact("a.256"), false),
            (exact(""), false),
        ] {
            assert_eq!(is_public(&name), expect, "{name:?}");
        }
    }

    #[test]
    fn challenges_by_what_there_is() {
        use CertificateSubject::{Address, Host, Wildcard};
        use ChallengeKind::{Dns01, DnsPersist01, Http01, TlsAlpn01};

        let hook = DnsHook { program: "/hook".into(), arguments: Vec::new(), timeout: Duration::from_secs(1) };
        for (challenges, has_hook, subject, expect) in [
            (&[][..], false, Host, &[Http01, TlsAlpn01][..]),
            (&[], true, Host, &[Dns01]),
            (&[TlsAlpn01], true, Host, &[TlsAlpn01]),
            (&[DnsPersist01, Http01], false, Host, &[DnsPersist01, Http01]),
            (&[], false, Wildcard, &[]),
            (&[], true, Wildcard, &[Dns01]),
            (&[TlsAlpn01], true, Wildcard, &[Dns01]),
            (&[TlsAlpn01], false, Wildcard, &[]),
            (&[DnsPersist01, Http01], false, Wildcard, &[DnsPersist01]),
            (&[DnsPersist01, Dns01], true, Wildcard, &[DnsPersist01, Dns01]),
            (&[], true, Address, &[Http01, TlsAlpn01]),
            (&[DnsPersist01, TlsAlpn01], false, Address, &[TlsAlpn01]),
            (&[Dns01], true, Address, &[]),
        ] {
            let settings = AutomaticCertificates {
                challenges: challenges.to_vec(),
                dns_hook: has_hook.then(|| hook.clone()),
                ..Default::default()
            };
            assert_eq!(settings.challenges(subject), expect, "{challenges:?} {has_hook} {subject:?}");
        }
    }

    #[test]
    fn names_of_addresses() {
        let exact = |name: &str| HostPattern::Exact(name.into());
        for (name, subject, expect) in [
            (exact("192.0.2.1"), CertificateSubject::Address, "192.0.2.1"),
            (exact("[2001:db8::1]"), CertificateSubject::Address, "2001:db8::1"),
            (exact("a.example"), CertificateSubject::Host, "a.example"),
            (exact("[192.0.2.1]"), CertificateSubject::Host, "[192.0.2.1]"),
            (HostPattern::Suffix(".a.example".into()), CertificateSubject::Wildcard, "*.a.example"),
        ] {
            assert_eq!((CertificateSubject::of(&name), certificate_name(&name).as_str()), (subject, expect));
        }
    }

    fn checked(text: &str) -> CheckedConfig {
        check_bytes("test.kdl", text.as_bytes().to_vec(), Path::new("/base"))
    }

    #[test]
    fn sites_that_get_certificates() {
        for (names, inside, expect) in [
            ("\"example.com\"", "", true),
            ("\"example.com\" \"www.example.com\"", "listen 443 tls=on", true),
            ("\"example.com\" \"*.example.com\"", "", false),
            ("\"example.com\" \"app.internal\"", "", false),
            ("\"app.internal\"", "automatic-certificate on", true),
            ("\"192.0.2.1\"", "", false),
            ("\"192.0.2.1\" \"[2001:db8::1]\"", "automatic-certificate profile=\"shortlived\"", true),
            ("\"example.com\"", "automatic-certificate off", false),
            ("\"example.com\"", "listen 8080", false),
            ("", "", false),
        ] {
            let text = format!("site {names} {{\n respond \"/\" 200 \"x\"\n {inside}\n}}");
            let config = checked(&text).config.expect("it has no error");
            let site = &config.sites[0];
            assert_eq!(site.tls.is_automatic, expect, "{text}");
            let has_all = site.listen.len() == 4 && site.rules.redirects_to_https == Some(true);
            assert_eq!(has_all, expect && !inside.starts_with("listen"), "ports 80 and 443 of both families: {text}");
        }
    }

    #[test]
    fn what_can_not_work_is_reported() {
        let site = |names: &str, inside: &str| format!("site {names} {{\n respond \"/\" 200 \"x\"\n {inside}\n}}\n");
        let settings = |inside: &str| format!("automatic-certificates {{ {inside} }}\n{}", site("\"example.com\"", ""));
        for (text, expect) in [
            (
                site("\"*.example.com\"", "automatic-certificate on"),
                "a certificate for `*.example.com` needs a DNS challenge",
            ),
            (site("", "automatic-certificate on"), "an automatic certificate needs names"),
            (site("\"a.example\"", "listen 443 tls=on"), "this site has no certificate"),
            (site("\"example.com\"", "listen 80\n automatic-certificate on"), "no address of this site has TLS"),
            (settings("challenges \"dns-01\""), "`dns-01` needs a `dns-hook`"),
            (
                site("\"192.0.2.1\"", "automatic-certificate on")
                    + "automatic-certificates { challenges \"dns-persist-01\" }",
                "a certificate for `192.0.2.1` needs the challenge `http-01` or `tls-alpn-01`",
            ),
            (settings("directory \"http://ca.example/\""), "`http://ca.example/` is not the URL of an ACME directory"),
            (settings("dns-hook \"/nowhere/hook\""), "/nowhere/hook: there is no such program"),
            (settings("external-account \"k\" key-file=\"/nowhere/key\""), "/nowhere/key: No such file"),
            (settings("directory \"https://ca/\" ca-file=\"/nowhere/ca\""), "/nowhere/ca: there is no such file"),
        ] {
            let checked = checked(&text);
            let messages: Vec<_> = checked.diagnostics.iter().map(|one| one.message.as_str()).collect();
            assert!(checked.config.is_none(), "{text}");
            assert!(messages.iter().any(|message| message.starts_with(expect)), "{text}: {messages:?}");
        }
    }
}
