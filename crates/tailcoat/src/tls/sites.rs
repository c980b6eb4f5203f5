use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::ClientHello;

use super::{SiteTls, Validations};
use crate::config::{Config, HostPattern, Listen};

/// The TLS of all sites that have some.
#[derive(Debug, Default)]
pub struct AllTls {
    sites: Vec<Arc<SiteTls>>,
    validations: Arc<Validations>,
}

/// The TLS of a listener: sites by the names that clients ask for.
#[derive(Debug)]
pub struct ListenerTls {
    exact: HashMap<String, Arc<SiteTls>>,
    /// By the suffix with its leading dot.
    suffixes: HashMap<String, Arc<SiteTls>>,
    default: Arc<SiteTls>,
    validations: Arc<Validations>,
}

impl AllTls {
    /// Reads the files of all sites.
    ///
    /// # Errors
    /// A file can't be read or used.
    pub fn new(config: &Config) -> io::Result<Self> {
        let has_tls = |site: &crate::config::Site| !site.tls.certificates.is_empty();
        if !config.sites.iter().any(has_tls) {
            return Ok(Self::default());
        }
        let tickets = Ticketer::new().map_err(io::Error::other)?;
        let sites = config.sites.iter().enumerate().filter(|(_, site)| has_tls(site));
        let sites = sites
            .map(|(index, site)| SiteTls::new(index, &site.tls, config.server.http_versions, &tickets).map(Arc::new));
        let sites =
            sites.collect::<Result<_, _>>().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Self { sites, validations: Arc::default() })
    }

    /// Each site.
    pub fn sites(&self) -> &[Arc<SiteTls>] {
        &self.sites
    }

    /// What shows an authority that names are ours.
    pub fn validations(&self) -> &Arc<Validations> {
        &self.validations
    }

    /// The TLS of a listener; `None` if it has none.
    pub fn listener(&self, config: &Config, listen: &Listen) -> Option<Arc<ListenerTls>> {
        let site_config = |site: &Arc<SiteTls>| &config.sites[site.index];
        let mut sites: Vec<_> =
            self.sites.iter().filter(|site| site_config(site).tls_listen.contains(listen)).collect();
        // The first takes what nobody names, unless another is said to: as for requests.
        sites.sort_by_key(|site| !site_config(site).default);
        let default = Arc::clone(sites.first()?);
        let (mut exact, mut suffixes) = (HashMap::new(), HashMap::new());
        for site in sites {
            for name in &site_config(site).names {
                let (map, name) = match name {
                    HostPattern::Exact(name) => (&mut exact, name),
                    HostPattern::Suffix(suffix) => (&mut suffixes, suffix),
                };
                map.entry(name.clone()).or_insert_with(|| Arc::clone(site));
            }
        }
        Some(Arc::new(ListenerTls { exact, suffixes, default, validations: Arc::clone(&self.validations) }))
    }
}

impl ListenerTls {
    /// The settings for a handshake that begins now, if it is an authority's that wants to see whether a name is ours.
    pub fn validation(&self, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        self.validations.handshake(hello)
    }

    /// The site for the name that a client asks for, in lower case; that of clients which ask for none or an unknown one
    /// is the default site.
    pub fn find(&self, server_name: Option<&str>) -> &Arc<SiteTls> {
        let Some(name) = server_name else { return &self.default };
        let dots = name.match_indices('.').skip_while(|(at, _)| *at == 0);
        let by_suffix = || dots.map(|(at, _)| &name[at..]).find_map(|suffix| self.suffixes.get(suffix));
        self.exact.get(name).or_else(by_suffix).unwrap_or(&self.default)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::config::{CertificateFiles, Site, Tls};

    #[test]
    fn names_find_sites() {
        let directory = tempfile::tempdir().unwrap();
        let [certificate, key] = ["pem", "key"].map(|extension| directory.path().join("a").with_extension(extension));
        let pair = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        std::fs::write(&certificate, params.self_signed(&pair).unwrap().pem()).unwrap();
        std::fs::write(&key, pair.serialize_pem()).unwrap();
        let files = CertificateFiles { certificate, key, ocsp: None };
        let (with_tls, without) = (Listen::Tcp(([0, 0, 0, 0], 443).into()), Listen::Tcp(([0, 0, 0, 0], 80).into()));
        let site = |names: &[HostPattern], default: bool| Site {
            names: names.to_vec(),
            default,
            listen: vec![with_tls.clone(), without.clone()],
            tls_listen: vec![with_tls.clone()],
            tls: Tls { certificates: vec![files.clone()], ..Tls::default() },
            ..Site::default()
        };
        let exact = |name: &str| HostPattern::Exact(name.into());
        let suffix = |name: &str| HostPattern::Suffix(name.into());
        let config = Config {
            sites: vec![
                site(&[exact("a.example")], false),
                site(&[suffix(".example")], false),
                site(&[suffix(".b.example"), exact("a.example")], false),
                Site { tls: Tls::default(), ..site(&[exact("none.example")], false) },
                site(&[exact("d.test")], true),
            ],
            ..Config::default()
        };
        let all = AllTls::new(&config).unwrap();
        assert!(all.listener(&config, &without).is_none());
        let listener = all.listener(&config, &with_tls).unwrap();
        for (name, expect) in [
            (Some("a.example"), 0),
            (Some("c.example"), 1),
            (Some("b.example"), 1),
            (Some("c.b.example"), 2),
            (Some("none.example"), 1),
            (Some("d.test"), 4),
            (Some("e.test"), 4),
            (Some(".example"), 4),
            (Some(""), 4),
            (None, 4),
        ] {
            assert_eq!(listener.find(name).index, expect, "{name:?}");
        }
    }
}
