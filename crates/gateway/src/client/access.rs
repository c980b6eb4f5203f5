//! Access to an API server: its address, CA and credentials, from a pod's files or a kubeconfig.

use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use crate::objects::documents;

/// Address and credentials of an API server.
#[derive(Clone)]
pub struct Access {
    is_tls: bool,
    host: String,
    port: u16,
    /// Certificates of CAs, as PEM; `None` are those of the system.
    authorities: Option<Vec<u8>>,
    token: Option<Token>,
    /// Certificate chain and key, as PEM.
    certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// Namespace of the context.
    namespace: Option<String>,
}

#[derive(Clone)]
enum Token {
    Text(String),
    /// Kubelet replaces the token of a service account before it expires.
    File(PathBuf),
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Access {
    /// Access of a pod, by the environment and the files of its service account that kubelet writes into this folder.
    ///
    /// # Errors
    /// The process is not in a pod, or a file cannot be read.
    pub fn in_cluster(folder: &Path) -> Result<Self, String> {
        let variable = |name| {
            std::env::var(name)
                .map_err(|_| format!("{name} is not set; run in a pod, or name a file with --kubeconfig"))
        };
        let port = variable("KUBERNETES_SERVICE_PORT")?;
        Ok(Self {
            is_tls: true,
            host: variable("KUBERNETES_SERVICE_HOST")?,
            port: port.parse().map_err(|_| format!("KUBERNETES_SERVICE_PORT is not a port: {port}"))?,
            authorities: Some(read(&folder.join("ca.crt"))?),
            token: Some(Token::File(folder.join("token"))),
            certificate: None,
            namespace: std::fs::read_to_string(folder.join("namespace")).ok(),
        })
    }

    /// Access by the current context of a kubeconfig.
    ///
    /// # Errors
    /// The file cannot be read, or needs a program or plugin for credentials.
    pub fn from_kubeconfig(path: &Path) -> Result<Self, String> {
        let text = String::from_utf8(read(path)?).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text, path.parent().unwrap_or(Path::new("")))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        let config = documents(text)?.into_iter().next().unwrap_or_default();
        let current = config["current-context"].as_str().ok_or("there is no current-context")?;
        let named = |list: &str, name: &str, part: &str| {
            let entries = config[list].as_array().into_iter().flatten();
            let found = entries.filter(|entry| entry["name"] == name).map(|entry| entry[part].clone()).next();
            found.ok_or_else(|| format!("there is no entry {name:?} in {list}"))
        };
        let context = named("contexts", current, "context")?;
        let cluster = named("clusters", context["cluster"].as_str().unwrap_or_default(), "cluster")?;
        let user = named("users", context["user"].as_str().unwrap_or_default(), "user").unwrap_or_default();
        let server = cluster["server"].as_str().ok_or("the cluster has no server")?;
        let uri: http::Uri = server.parse().map_err(|error| format!("{server}: {error}"))?;
        let is_tls = uri.scheme_str() == Some("https");
        if !user["exec"].is_null() || !user["auth-provider"].is_null() {
            return Err("users with exec or auth-provider are not supported; use a token or a certificate".to_owned());
        }
        let content = |of: &Value, name: &str| -> Result<Option<Vec<u8>>, String> {
            if let Some(data) = of[format!("{name}-data").as_str()].as_str() {
                return Base64::decode_vec(data).map(Some).map_err(|error| format!("{name}-data: {error}"));
            }
            of[name].as_str().map(|file| read(&folder.join(file))).transpose()
        };
        let certificate = content(&user, "client-certificate")?.zip(content(&user, "client-key")?);
        let token = user["token"].as_str().map(|token| Token::Text(token.to_owned()));
        let token = token.or_else(|| Some(Token::File(folder.join(user["tokenFile"].as_str()?))));
        Ok(Self {
            is_tls,
            host: uri.host().ok_or("the server has no host")?.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            authorities: content(&cluster, "certificate-authority")?,
            token,
            certificate,
            namespace: context["namespace"].as_str().map(str::to_owned),
        })
    }

    /// Namespace of the pod or context.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub(super) fn endpoint(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    pub(super) fn token(&self) -> Result<Option<String>, String> {
        match &self.token {
            None => Ok(None),
            Some(Token::Text(text)) => Ok(Some(text.clone())),
            Some(Token::File(path)) => {
                let bytes = read(path)?;
                Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned()))
            }
        }
    }

    /// TLS to the server; `None` is none.
    pub(super) fn tls(&self) -> Result<Option<ClientConfig>, String> {
        if !self.is_tls {
            return Ok(None);
        }
        let mut roots = RootCertStore::empty();
        match &self.authorities {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let certificate = certificate.map_err(|error| format!("certificate-authority: {error}"))?;
                    roots.add(certificate).map_err(|error| format!("certificate-authority: {error}"))?;
                }
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?.with_root_certificates(roots);
        let Some((chain, key)) = &self.certificate else { return Ok(Some(builder.with_no_client_auth())) };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = chain.map_err(|error| format!("client-certificate: {error}"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("client-key: {error}"))?;
        let config = builder.with_client_auth_cert(chain, key);
        config.map(Some).map_err(|error| format!("client-certificate: {error}"))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfigs() {
        let text = |user: &str| {
            format!(
                "current-context: a\ncontexts:\n- name: a\n  context: {{cluster: c, user: u, namespace: n}}\nclusters:\n\
                 - name: c\n  cluster: {{server: 'https://[::1]:6443'}}\nusers:\n- name: u\n  user: {user}\n"
            )
        };
        let access = Access::parse(&text("{token: t}"), Path::new("")).unwrap();
        assert_eq!(access.endpoint(), ("::1", 6443));
        assert_eq!(access.namespace(), Some("n"));
        assert_eq!(access.token(), Ok(Some("t".to_owned())));
        let error = Access::parse(&text("{exec: {command: x}}"), Path::new("")).unwrap_err();
        assert!(error.contains("exec"), "{error}");
        for wrong in ["", "current-context: a", "current-context: [", "{}"] {
            assert!(Access::parse(wrong, Path::new("")).is_err(), "{wrong}");
        }
    }
}
