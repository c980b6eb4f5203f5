use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, NoServerSessionStorage};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

/// Prefix of the paths of challenges (RFC 8555, section 8.3).
const HTTP_PREFIX: &[u8] = b"/.well-known/acme-challenge/";

/// Protocol of handshakes that answer a challenge (RFC 8737, section 6.2).
const PROTOCOL: &[u8] = b"acme-tls/1";

/// Pending challenges of CAs: responses (RFC 8555, section 8.3) and handshakes (RFC 8737).
#[derive(Debug, Default)]
pub struct Validations {
    /// Responses by token.
    responses: Pending<Bytes>,
    /// Handshakes by server name, in lower case.
    handshakes: Pending<Arc<ServerConfig>>,
}

/// Guard that removes a challenge when it is dropped.
#[must_use]
pub struct Shown(Option<Box<dyn FnOnce() + Send>>);

/// Temporary entries. Workers only read them, and only for requests and handshakes of a CA.
#[derive(Debug)]
struct Pending<V>(RwLock<HashMap<String, V>>);

impl Validations {
    /// Content of the response to a challenge at this path, if there is one.
    pub fn response(&self, path: &[u8]) -> Option<Bytes> {
        let token = path.strip_prefix(HTTP_PREFIX)?;
        self.responses.get(std::str::from_utf8(token).ok()?)
    }

    /// True if a handshake challenge is pending.
    pub fn has_handshakes(&self) -> bool {
        !self.handshakes.is_empty()
    }

    /// Settings for a handshake that answers a challenge.
    pub fn handshake(&self, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        if !hello.alpn()?.eq([PROTOCOL]) {
            return None;
        }
        self.handshakes.get(&hello.server_name()?.to_ascii_lowercase())
    }

    /// Answers requests for this token.
    pub fn show_response(self: &Arc<Self>, token: &str, key_authorization: &str) -> Shown {
        self.responses.insert(token.to_owned(), Bytes::copy_from_slice(key_authorization.as_bytes()));
        let (all, token) = (Arc::clone(self), token.to_owned());
        Shown(Some(Box::new(move || all.responses.remove(&token))))
    }

    /// Answers handshakes for this name or address with a certificate that contains the digest of the key
    /// authorization.
    ///
    /// # Errors
    /// No certificate is possible for such a name.
    pub fn show_handshake(self: &Arc<Self>, name: &str, digest: &[u8]) -> Result<Shown, rcgen::Error> {
        let name = name.to_ascii_lowercase();
        let server_name = name.parse().map_or_else(|_| name.clone(), reverse_name);
        self.handshakes.insert(server_name.clone(), Arc::new(settings(&name, digest)?));
        let all = Arc::clone(self);
        Ok(Shown(Some(Box::new(move || all.handshakes.remove(&server_name)))))
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(remove) = self.0.take() {
            remove();
        }
    }
}

impl<V> Default for Pending<V> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<V: Clone> Pending<V> {
    fn get(&self, key: &str) -> Option<V> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn is_empty(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn insert(&self, key: String, value: V) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(key, value);
    }

    fn remove(&self, key: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// Server name with which a CA validates an address (RFC 8738, section 6): that of its entry in the reverse zone of DNS.
fn reverse_name(address: IpAddr) -> String {
    let mut name = String::new();
    match address {
        IpAddr::V4(address) => {
            address.octets().iter().rev().for_each(|octet| name.push_str(&format!("{octet}.")));
            name + "in-addr.arpa"
        }
        IpAddr::V6(address) => {
            let octets = address.octets();
            octets.iter().rev().for_each(|octet| name.push_str(&format!("{:x}.{:x}.", octet & 0xf, octet >> 4)));
            name + "ip6.arpa"
        }
    }
}

/// RFC 8737, section 3: a self-signed certificate for the name, with the digest in a critical extension.
fn settings(name: &str, digest: &[u8]) -> Result<ServerConfig, rcgen::Error> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let chain = vec![params.self_signed(&key)?.der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|_| rcgen::Error::CouldNotParseKeyPair)?;
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    // Local invariant: the provider has suites for all versions, and the key matches the certificate.
    let builder = builder.with_safe_default_protocol_versions().expect("each version has a cipher suite");
    // Skips verification: software that does not know the critical extension must reject the certificate, and rustls
    // does.
    let key = default_provider().key_provider.load_private_key(key);
    let certified = CertifiedKey::new(chain, key.map_err(|_| rcgen::Error::CouldNotParseKeyPair)?);
    let resolver = Arc::new(SingleCertAndKey::from(certified));
    let mut settings = builder.with_no_client_auth().with_cert_resolver(resolver);
    settings.alpn_protocols = vec![PROTOCOL.to_vec()];
    settings.session_storage = Arc::new(NoServerSessionStorage {});
    settings.send_tls13_tickets = 0;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_there_as_long_as_they_are_shown() {
        let all = Arc::new(Validations::default());
        let shown = all.show_response("abc-DEF_1", "abc-DEF_1.thumb");
        let get = |path: &str| all.response(path.as_bytes()).map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
        for (path, expect) in [
            ("/.well-known/acme-challenge/abc-DEF_1", Some("abc-DEF_1.thumb")),
            ("/.well-known/acme-challenge/abc-def_1", None),
            ("/.well-known/acme-challenge/", None),
            ("/.well-known/acme-challenge/abc-DEF_1/", None),
            ("/abc-DEF_1", None),
            ("/", None),
        ] {
            assert_eq!(get(path).as_deref(), expect, "{path}");
        }
        drop(shown);
        assert_eq!(get("/.well-known/acme-challenge/abc-DEF_1"), None);
    }

    #[test]
    fn certificates_for_names() {
        let all = Arc::new(Validations::default());
        let shown = all.show_handshake("A.example", &[7; 32]).unwrap();
        assert_eq!(all.handshakes.get("a.example").unwrap().alpn_protocols, [PROTOCOL]);
        drop(shown);
        assert!(all.handshakes.get("a.example").is_none());
        for (address, server_name) in [
            ("192.0.2.17", "17.2.0.192.in-addr.arpa"),
            ("2001:DB8::2a", "a.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"),
        ] {
            let shown = all.show_handshake(address, &[7; 32]).unwrap();
            assert!(all.handshakes.get(server_name).is_some(), "{address}");
            drop(shown);
            assert!(all.handshakes.is_empty(), "{address}");
        }
        assert!(all.show_handshake("ä", &[7; 32]).is_err());
    }
}
