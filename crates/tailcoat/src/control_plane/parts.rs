//! Upstreams of backends and sites of listeners.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use routes::{
    Backend, BackendProtocol, Endpoint, Lifetime, Listener, PersistenceKind, Protocol, SubjectAltName,
    is_valid_hostname,
};

use super::state::PemFiles;
use crate::config::{
    AcceptedName, Certificate, CertificateFiles, ClientCertificates, HostPattern, SiteConfig, StickyCookie, Tls,
    UpstreamConfig, UpstreamServer, UpstreamServerAddress, UpstreamTls,
};
use crate::stream_proxy::accepted_clients;

/// Files that a backend or listener names, and the collection for new ones.
pub(super) struct PartFiles<'a> {
    pub(super) pem: &'a mut PemFiles,
    pub(super) used: Vec<PathBuf>,
}

impl PartFiles<'_> {
    /// Writes a certificate to a file, if it is valid.
    fn certificate(&mut self, of: &routes::Certificate) -> Result<CertificateFiles, String> {
        Certificate::from_pem(of.chain.as_bytes(), of.key.as_bytes()).map_err(|fault| fault.to_string())?;
        let path = self.add(format!("{}\n{}", of.key.trim_end(), of.chain));
        Ok(CertificateFiles { certificate: path.clone(), key: path, ocsp: None })
    }

    fn authorities(&mut self, text: &str) -> Result<PathBuf, String> {
        if !text.contains("-----BEGIN CERTIFICATE-----") {
            return Err("there is no CA certificate".to_owned());
        }
        Ok(self.add(text.to_owned()))
    }

    fn add(&mut self, text: String) -> PathBuf {
        let path = self.pem.add(text);
        self.used.push(path.clone());
        path
    }
}

/// Servers of a backend.
pub(super) fn servers_of(backend: &Backend, endpoints: &[Endpoint]) -> Vec<UpstreamServer> {
    let ready = endpoints.iter().filter(|endpoint| endpoint.is_ready).take(UpstreamConfig::SERVERS_MAX);
    let mut known = HashSet::new();
    let new = ready.map(|endpoint| endpoint.address).filter(|address| known.insert(*address));
    let server = |address: SocketAddr| {
        let port = address.port();
        let host = match address.ip() {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        let address = match (backend.tls.is_some(), backend.protocol) {
            (true, _) => UpstreamServerAddress::Tls(host, port),
            (false, BackendProtocol::Http1) => UpstreamServerAddress::Tcp(host, port),
            (false, BackendProtocol::Http2) => UpstreamServerAddress::Http2(host, port),
        };
        UpstreamServer { address, weight: 1, backup: false }
    };
    new.map(server).collect()
}

/// Addresses on which a listener accepts connections.
pub(super) fn addresses_of(listener: &Listener) -> Vec<SocketAddr> {
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let addresses = if listener.addresses.is_empty() { &any[..] } else { &listener.addresses };
    addresses.iter().map(|address| SocketAddr::new(*address, listener.port)).collect()
}

/// Upstream of a backend, without servers, from its options.
///
/// # Errors
/// A certificate or the persistence of sessions is not valid.
pub(super) fn upstream(
    mut upstream: UpstreamConfig,
    backend: &Backend,
    files: &mut PartFiles<'_>,
) -> Result<UpstreamConfig, String> {
    if let Some(tls) = &backend.tls {
        upstream.expects_tls = true;
        let certificate = tls.client_certificate.as_ref().map(|own| files.certificate(own)).transpose()?;
        let authorities = tls.authorities.as_ref().map(|text| files.authorities(text)).transpose()?;
        let accepted = tls.subject_alt_names.iter().map(|name| match name {
            SubjectAltName::Dns(name) => AcceptedName::Dns(name.clone()),
            SubjectAltName::Uri(uri) => AcceptedName::Uri(uri.clone()),
        });
        upstream.tls = UpstreamTls {
            authorities,
            server_name: Some(tls.hostname.clone()),
            is_verified: !tls.accepts_any_certificate,
            certificate,
            accepted_names: accepted.collect(),
            ..UpstreamTls::default()
        };
    }
    if let Some(persistence) = &backend.persistence {
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if persistence.name.is_empty() || !persistence.name.bytes().all(is_name_byte) {
            return Err(format!("{:?} is no name of a cookie or header field", persistence.name));
        }
        let seconds = persistence.absolute_timeout_seconds;
        let age_max = seconds.filter(|_| persistence.lifetime == Lifetime::Permanent);
        upstream.sticky = Some(Box::new(StickyCookie {
            name: persistence.name.clone(),
            is_header: persistence.kind == PersistenceKind::Header,
            key_file: None,
            age_max: age_max.map(Duration::from_secs),
            path: persistence.path.clone().unwrap_or_else(|| "/".to_owned()),
            domain: None,
            is_secure: None,
            is_http_only: true,
            same_site: "lax",
        }));
    }
    Ok(upstream)
}

/// Site of a listener, without its addresses. It has no routes: those of the table come before.
///
/// # Errors
/// The host name or a certificate is not valid.
pub(super) fn listener_site(listener: &Listener, files: &mut PartFiles<'_>) -> Result<SiteConfig, String> {
    if let Some(hostname) = listener.hostname.as_ref().filter(|hostname| !is_valid_hostname(hostname)) {
        return Err(format!("{hostname:?} is no host name"));
    }
    let names = listener.hostname.iter().map(|name| match name.strip_prefix('*') {
        Some(suffix) => HostPattern::Suffix(suffix.to_owned()),
        None => HostPattern::Exact(name.clone()),
    });
    let mut site = SiteConfig { names: names.collect(), ..SiteConfig::default() };
    if listener.protocol == Protocol::Https {
        let mut certificates = Vec::new();
        for certificate in &listener.certificates {
            certificates.push(files.certificate(certificate)?);
        }
        if certificates.is_empty() {
            return Err("there is no certificate".to_owned());
        }
        let client_certificates = match &listener.client_validation {
            None => None,
            Some(validation) => Some(ClientCertificates {
                authorities: files.authorities(&validation.authorities)?,
                accepts: accepted_clients(validation),
            }),
        };
        site.tls = Tls { certificates, client_certificates, ..Tls::default() };
    }
    Ok(site)
}
