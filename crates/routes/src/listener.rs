//! Listeners: addresses and ports with their protocols.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A port with its protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerSpec {
    /// Local addresses; none is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Local port.
    pub port: u16,
    /// Protocol of its connections.
    pub protocol: Protocol,
    /// Host name of its requests or connections, in lower case; `*.example.com` is any name that ends so. `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Certificates for [`Protocol::Https`] and [`Protocol::TlsTerminate`]. A handshake gets the one for its server name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<PemCertificate>,
    /// Validation of client certificates; `None` requests none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_validation: Option<ClientValidation>,
}

/// Protocol of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// HTTP/1.1, and HTTP/2 with prior knowledge.
    Http,
    /// HTTP over TLS.
    Https,
    /// TLS whose connections are forwarded unchanged, by server name.
    TlsPassthrough,
    /// TLS that ends here; the plain bytes are forwarded, by server name.
    TlsTerminate,
    /// TCP connections.
    Tcp,
    /// UDP datagrams.
    Udp,
}

/// A certificate chain and its key, as PEM.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PemCertificate {
    /// The certificate, and those that lead from it to one that clients know.
    pub chain: String,
    /// The private key, without a passphrase.
    pub key: String,
}

/// Validation of client certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientValidation {
    /// Certificates of CAs, as PEM, that must have signed client certificates.
    pub authorities: String,
    /// Accepts clients without a certificate, or with one that is not valid (`AllowInsecureFallback`).
    #[serde(default)]
    pub allows_invalid: bool,
}

impl ListenerSpec {
    /// Listener on all addresses, for all hosts, without certificates.
    pub fn new(port: u16, protocol: Protocol) -> Self {
        Self {
            addresses: Vec::new(),
            port,
            protocol,
            hostname: None,
            certificates: Vec::new(),
            client_validation: None,
        }
    }
}

impl Protocol {
    /// True if [`Route`](crate::Route)s attach to it, and no [`StreamRoute`](crate::StreamRoute)s.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }

    /// True if its connections begin with TLS.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::TlsPassthrough | Self::TlsTerminate)
    }
}

impl std::fmt::Debug for PemCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys must not reach a log.
        f.debug_struct("Certificate").field("chain", &self.chain).finish_non_exhaustive()
    }
}
