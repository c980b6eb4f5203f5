use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::{ClientHello, ProducesTickets};

use super::early_sessions::{EarlySessions, RememberedLimits};
use super::{SiteTls, Validations};
use crate::config::{CertificateError, Config, HostPattern, HttpVersions, Listen, SiteConfig, address_of};

/// TLS of all sites that have it.
#[derive(Debug)]
pub struct AllTls {
    /// Sites with their index in the configuration.
    sites: Vec<(usize, Arc<SiteTls>)>,
    tickets: Arc<dyn ProducesTickets>,
    early: Arc<EarlySessions>,
    validations: Arc<Validations>,
    next_id: u32,
}

/// TLS of a listener: sites by server name.
#[derive(Debug)]
pub struct ListenerTls {
    exact: HashMap<String, Arc<SiteTls>>,
    /// Sites by suffix, with its leading dot.
    suffixes: HashMap<String, Arc<SiteTls>>,
    /// Sites by the start of the name, with the dot at its end.
    prefixes: HashMap<String, Arc<SiteTls>>,
    /// Sites by address, for clients that name no server: an address is no server name (RFC 6066, section 3).
    addresses: HashMap<IpAddr, Arc<SiteTls>>,
    default: Arc<SiteTls>,
    validations: Arc<Validations>,
}

impl AllTls {
    /// Reads the files of all sites. Keeps the ticket keys, and reuses sites of `reused` whose settings and files are
    /// unchanged.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn new(config: &Config, tickets: &Arc<dyn ProducesTickets>, reused: Option<&Self>) -> io::Result<Self> {
        Self::with_unchanged(config, tickets, reused, &[])
    }

    /// Reads the files of sites as [`Self::new`] does. If only routes of a controller differ from those of `reused`,
    /// `unchanged` has the index in `reused` of each site that stays. The files of such a site are not looked at.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn with_unchanged(
        config: &Config,
        tickets: &Arc<dyn ProducesTickets>,
        reused: Option<&Self>,
        unchanged: &[Option<usize>],
    ) -> io::Result<Self> {
        let sites_before = reused.map_or(&[][..], |reused| reused.sites.as_slice());
        // Both lists are in the order of the configuration.
        let before = |index: usize| {
            let before = unchanged.get(index).copied().flatten()?;
            let at = sites_before.binary_search_by_key(&before, |(index, _)| *index).ok()?;
            Some(&sites_before[at].1)
        };
        let mut known: HashMap<&[HostPattern], Vec<&Arc<SiteTls>>> = HashMap::new();
        for (_, site) in reused.into_iter().flat_map(|reused| &reused.sites) {
            known.entry(&site.names).or_default().push(site);
        }
        let remembered = RememberedLimits::of(&config.limits);
        let early = reused.map(|reused| &reused.early).filter(|early| early.remembered() == remembered);
        let mut all = Self {
            sites: Vec::new(),
            tickets: Arc::clone(tickets),
            early: early.map_or_else(|| Arc::new(EarlySessions::new(remembered)), Arc::clone),
            validations: reused.map(|reused| Arc::clone(&reused.validations)).unwrap_or_default(),
            next_id: reused.map_or(0, |reused| reused.next_id),
        };
        for (index, site) in config.sites.iter().enumerate().filter(|(_, site)| !site.tls.certificates.is_empty()) {
            if let Some(before) = before(index) {
                all.sites.push((index, Arc::clone(before)));
                continue;
            }
            let versions = config.server.http_versions;
            let known = known.get(site.names.as_slice()).into_iter().flatten();
            let known = known.copied().find(|known| known.is_of(&site.tls, versions, &all.early));
            let tls = all.site(site, versions, known);
            let tls = tls.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            all.sites.push((index, tls));
        }
        Ok(all)
    }

    fn site(
        &mut self,
        site: &SiteConfig,
        versions: HttpVersions,
        known: Option<&Arc<SiteTls>>,
    ) -> Result<Arc<SiteTls>, CertificateError> {
        if let Some(known) = known.filter(|known| !known.has_new_files()) {
            return Ok(Arc::clone(known));
        }
        // The site stays the same with newer files: a client that has presented a certificate need not present it
        // again.
        let id = known.map_or(self.next_id, |known| known.id);
        self.next_id = self.next_id.max(id.wrapping_add(1));
        SiteTls::new(id, &site.names, &site.tls, versions, &self.tickets, &self.early).map(Arc::new)
    }

    /// Sites with their index in the configuration.
    pub fn sites(&self) -> &[(usize, Arc<SiteTls>)] {
        &self.sites
    }

    /// Pending challenges of CAs.
    pub fn validations(&self) -> &Arc<Validations> {
        &self.validations
    }

    /// TLS of each listener that has it.
    pub fn listeners<'a>(&self, config: &'a Config) -> HashMap<&'a Listen, Arc<ListenerTls>> {
        let mut by_listen: HashMap<&Listen, Vec<(&SiteConfig, &Arc<SiteTls>)>> = HashMap::new();
        for (index, tls) in &self.sites {
            let site = &*config.sites[*index];
            for listen in &site.tls_listen {
                let sites = by_listen.entry(listen).or_default();
                // A site may name an address twice.
                if sites.last().is_none_or(|(last, _)| !std::ptr::eq(*last, site)) {
                    sites.push((site, tls));
                }
            }
        }
        let listener = |(listen, sites)| Some((listen, Arc::new(ListenerTls::new(sites, &self.validations)?)));
        by_listen.into_iter().filter_map(listener).collect()
    }
}

impl ListenerTls {
    /// Makes the TLS of a listener from its sites; `None` without sites.
    fn new(mut sites: Vec<(&SiteConfig, &Arc<SiteTls>)>, validations: &Arc<Validations>) -> Option<Self> {
        // As for requests, the first site is the default, unless another is marked as default.
        sites.sort_by_key(|(config, _)| !config.default);
        let default = Arc::clone(sites.first()?.1);
        let (mut exact, mut suffixes, mut prefixes) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut addresses = HashMap::new();
        for (config, site) in sites {
            for name in &config.names {
                if let HostPattern::Exact(name) = name
                    && let Some(address) = address_of(name)
                {
                    addresses.entry(address).or_insert_with(|| Arc::clone(site));
                }
                let (map, name) = match name {
                    HostPattern::Exact(name) => (&mut exact, name),
                    HostPattern::Suffix(suffix) => (&mut suffixes, suffix),
                    HostPattern::Prefix(prefix) => (&mut prefixes, prefix),
                };
                map.entry(name.clone()).or_insert_with(|| Arc::clone(site));
            }
        }
        Some(Self { exact, suffixes, prefixes, addresses, default, validations: Arc::clone(validations) })
    }

    /// Settings for a handshake that validates a name for a CA.
    pub fn validation(&self, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        self.validations.handshake(hello)
    }

    /// True if a handshake may validate a name for a CA.
    pub fn has_validations(&self) -> bool {
        self.validations.has_handshakes()
    }

    /// True if the address that a client connects to may select a site.
    pub fn has_addresses(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// Site for a server name in lower case. Without a name, that of the address that the client connected to, which is
    /// asked for only if a site has one. The default site for neither, or an unknown name.
    pub fn find(&self, server_name: Option<&str>, local: impl FnOnce() -> Option<IpAddr>) -> &Arc<SiteTls> {
        let Some(name) = server_name else {
            let local = if self.has_addresses() { local() } else { None };
            let site = local.and_then(|address| self.addresses.get(&address.to_canonical()));
            return site.unwrap_or(&self.default);
        };
        let dots = name.match_indices('.').skip_while(|(at, _)| *at == 0);
        let by_suffix = || dots.map(|(at, _)| &name[at..]).find_map(|suffix| self.suffixes.get(suffix));
        let by_prefix = || {
            let ends = name.rmatch_indices('.').skip_while(|(at, _)| at + 1 == name.len());
            ends.map(|(at, _)| &name[..=at]).find_map(|prefix| self.prefixes.get(prefix))
        };
        self.exact.get(name).or_else(by_suffix).or_else(by_prefix).unwrap_or(&self.default)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::config::{CertificateFiles, SiteConfig, Tls};

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
        let site = |names: &[HostPattern], default: bool| SiteConfig {
            names: names.to_vec(),
            default,
            listen: vec![with_tls.clone(), without.clone()],
            tls_listen: vec![with_tls.clone()],
            tls: Tls { certificates: vec![files.clone()], ..Tls::default() },
            ..SiteConfig::default()
        };
        let exact = |name: &str| HostPattern::Exact(name.into());
        let suffix = |name: &str| HostPattern::Suffix(name.into());
        let config = Config {
            sites: [
                site(&[exact("a.example"), exact("[2001:db8::1]")], false),
                site(&[suffix(".example")], false),
                site(&[suffix(".b.example"), exact("a.example")], false),
                SiteConfig { tls: Tls::default(), ..site(&[exact("none.example")], false) },
                site(&[exact("d.test")], true),
                site(&[exact("192.0.2.1"), exact("e.example")], false),
            ]
            .map(Arc::new)
            .into(),
            ..Config::default()
        };
        let tickets = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
        let all = AllTls::new(&config, &tickets, None).unwrap();
        let listeners = all.listeners(&config);
        assert!(!listeners.contains_key(&without));
        let listener = &listeners[&with_tls];
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
            let local = || Some("198.51.100.1".parse().unwrap());
            assert_eq!(listener.find(name, local).names, config.sites[expect].names, "{name:?}");
        }
        for (name, local, expect) in [
            (None, "192.0.2.1", 5),
            (None, "::ffff:192.0.2.1", 5),
            (None, "2001:db8::1", 0),
            (None, "2001:db8::2", 4),
            (Some("a.example"), "192.0.2.1", 0),
        ] {
            let site = listener.find(name, || Some(local.parse().unwrap()));
            assert_eq!(site.names, config.sites[expect].names, "{name:?} {local}");
        }
        assert_eq!(listener.find(None, || None).names, config.sites[4].names);
    }

    #[test]
    fn sites_go_on_as_long_as_settings_and_files_do() {
        let directory = tempfile::tempdir().unwrap();
        let [certificate, key] = ["pem", "key"].map(|extension| directory.path().join("a").with_extension(extension));
        let write = || {
            let pair = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
            std::fs::write(&certificate, params.self_signed(&pair).unwrap().pem()).unwrap();
            std::fs::write(&key, pair.serialize_pem()).unwrap();
        };
        write();
        let files = CertificateFiles { certificate: certificate.clone(), key: key.clone(), ocsp: None };
        let site = |name: &str, has_no_tickets| SiteConfig {
            names: vec![HostPattern::Exact(name.into())],
            tls: Tls { certificates: vec![files.clone()], has_no_tickets, ..Tls::default() },
            ..SiteConfig::default()
        };
        let config =
            |sites: Vec<SiteConfig>| Config { sites: sites.into_iter().map(Arc::new).collect(), ..Config::default() };
        let tickets = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
        let first = AllTls::new(&config(vec![site("a", false), site("b", false)]), &tickets, None).unwrap();
        let ids = |all: &AllTls| all.sites.iter().map(|(_, site)| site.id).collect::<Vec<_>>();
        assert_eq!(ids(&first), [0, 1]);
        let second =
            AllTls::new(&config(vec![site("c", false), site("b", false), site("a", true)]), &tickets, Some(&first));
        let second = second.unwrap();
        assert_eq!(ids(&second), [2, 1, 3], "other settings are another site");
        assert!(Arc::ptr_eq(&second.sites[1].1, &first.sites[1].1));
        write();
        let third = AllTls::new(&config(vec![site("b", false)]), &tickets, Some(&second)).unwrap();
        assert_eq!(ids(&third), [1]);
        assert!(!Arc::ptr_eq(&third.sites[0].1, &second.sites[1].1), "its files were read again");
        std::fs::write(&key, "none").unwrap();
        assert!(AllTls::new(&config(vec![site("b", false)]), &tickets, Some(&third)).is_err());
    }
}
