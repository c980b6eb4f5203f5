//! References between resources: grants, secrets with certificates, CAs.

use routes::Certificate;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::objects::{Key, Objects, ResourceRef};

/// Reference that cannot be followed: a reason for a condition, and a text for people.
pub(crate) type Unresolved = (&'static str, String);

/// Resource that refers to another: its group, kind and namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Referrer<'a> {
    pub(crate) group: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespace: &'a str,
}

impl Objects {
    /// True if a reference from one namespace to another is granted, or stays in its namespace.
    pub(crate) fn permits(&self, from: Referrer<'_>, to_group: &str, to_kind: &str, to: &Key) -> bool {
        if from.namespace == to.namespace {
            return true;
        }
        let first = Key::new(&to.namespace, "");
        let of_namespace = self.reference_grants.range(first..).take_while(|(key, _)| key.namespace == to.namespace);
        of_namespace.map(|(_, grant)| &grant.spec).any(|grant| {
            grant.from.iter().any(|it| it.group == from.group && it.kind == from.kind && it.namespace == from.namespace)
                && grant.to.iter().any(|it| {
                    it.group == to_group
                        && it.kind == to_kind
                        && it.name.as_deref().is_none_or(|name| name.is_empty() || name == to.name)
                })
        })
    }

    /// Certificate of a secret. `invalid` is the reason for references that lead nowhere.
    pub(crate) fn certificate(
        &self,
        from: Referrer<'_>,
        to: &ResourceRef,
        invalid: &'static str,
    ) -> Result<Certificate, Unresolved> {
        if !to.is("", "Secret", "Secret") {
            let kind = to.kind.as_deref().unwrap_or_default();
            return Err((invalid, format!("a certificate must be in a Secret, not in a {kind}")));
        }
        let key = to.key(from.namespace);
        if !self.permits(from, "", "Secret", &key) {
            return Err(("RefNotPermitted", format!("no ReferenceGrant permits the reference to Secret {key}")));
        }
        let secret = self.secrets.get(&key).ok_or_else(|| (invalid, format!("Secret {key} does not exist")))?;
        let (Some(chain), Some(private)) = (secret.text("tls.crt"), secret.text("tls.key")) else {
            return Err((invalid, format!("Secret {key} lacks tls.crt or tls.key")));
        };
        check_certificate(&chain, &private).map_err(|error| (invalid, format!("Secret {key}: {error}")))?;
        Ok(Certificate { chain, key: private })
    }

    /// Certificates of CAs of a ConfigMap's key `ca.crt`. `invalid` and `wrong_kind` are the reasons for references that
    /// lead nowhere, and to other kinds.
    pub(crate) fn authorities(
        &self,
        from: Referrer<'_>,
        to: &ResourceRef,
        [invalid, wrong_kind]: [&'static str; 2],
    ) -> Result<String, Unresolved> {
        let is_secret = to.is("", "Secret", "ConfigMap");
        if !is_secret && !to.is("", "ConfigMap", "ConfigMap") {
            let kind = to.kind.as_deref().unwrap_or_default();
            return Err((wrong_kind, format!("certificates of CAs must be in a ConfigMap, not in a {kind}")));
        }
        let kind = if is_secret { "Secret" } else { "ConfigMap" };
        let key = to.key(from.namespace);
        if !self.permits(from, "", kind, &key) {
            return Err(("RefNotPermitted", format!("no ReferenceGrant permits the reference to {kind} {key}")));
        }
        let text = if is_secret {
            self.secrets.get(&key).map(|secret| secret.text("ca.crt"))
        } else {
            self.config_maps.get(&key).map(|map| map.data.get("ca.crt").cloned())
        };
        let text = text.ok_or_else(|| (invalid, format!("{kind} {key} does not exist")))?;
        let text = text.ok_or_else(|| (invalid, format!("{kind} {key} lacks ca.crt")))?;
        check_chain(&text).map_err(|error| (invalid, format!("{kind} {key}: {error}")))?;
        Ok(text)
    }
}

/// Checks that a PEM text has certificates, and nothing that is not one.
fn check_chain(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let chain = chain.map_err(|error| format!("the certificates are not valid PEM: {error}"))?;
    if chain.is_empty() {
        return Err("there is no certificate in PEM form".to_owned());
    }
    for certificate in &chain {
        x509_parser::parse_x509_certificate(certificate).map_err(|_| "a certificate is not valid X.509".to_owned())?;
    }
    Ok(chain)
}

/// Checks that a chain and a key belong together.
fn check_certificate(chain: &str, key: &str) -> Result<(), String> {
    let chain = check_chain(chain)?;
    let key =
        PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| format!("the key is not valid: {error}"))?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let certified = CertifiedKey::from_der(chain, key, &provider);
    certified.map(drop).map_err(|error| format!("certificate and key cannot be used: {error}"))
}
