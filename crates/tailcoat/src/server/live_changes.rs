//! Parts of the configuration that operators replace while it is in use: servers of upstreams, certificates, rates.
//! Each lasts until the configuration is read again. No file is read, and nothing else is touched.

use std::sync::Arc;

use super::Server;
use super::orders::change_summary;
use crate::config::{self, Certificate, SiteConfig};
use crate::control::ControlReport;
use crate::log::event;
use crate::upstream::{NoTlsSettings, SharedUpstream};

impl Server {
    fn find_upstream(&self, name: &str) -> Result<&Arc<SharedUpstream>, String> {
        let found = self.assembly.parts.upstreams.iter().find(|shared| shared.name() == name);
        found.ok_or_else(|| format!("there is no upstream {name}; `tailcoat upstreams` lists them"))
    }

    /// Replaces the servers of an upstream, unless a configuration with them were invalid.
    pub(super) fn set_servers(&self, upstream: &str, servers: &[String]) -> Result<String, String> {
        let shared = self.find_upstream(upstream)?;
        if let Some(discovery) = &shared.config().discovery {
            return Err(format!("the servers of {upstream} come from {}; change them there", discovery.source));
        }
        let servers = config::servers_from_texts(servers)?;
        let changed = config::UpstreamConfig { servers: servers.clone(), ..shared.config().clone() };
        self.assembly.parts.config.validate_upstream(&changed)?;
        let lacks = self.lasting.confined.lacks_for_upstream(&changed);
        if !lacks.is_empty() {
            return Err(format!(
                "the servers need permissions that this process has dropped ({}); write them into the configuration and run \
                 `tailcoat upgrade`",
                lacks.join(", ")
            ));
        }
        shared.set_servers(&servers).map_err(|NoTlsSettings| {
            "no server of this upstream used TLS at the last reload; write the servers into the configuration and reload"
                .to_owned()
        })?;
        let names = servers.iter().map(|server| server.address.to_string()).collect::<Vec<_>>().join(", ");
        self.lasting
            .server_log
            .info(event("upstream servers replaced", &[("upstream", &upstream), ("servers", &names)]));
        Ok(format!("{upstream}: {}\n", change_summary(&format!("servers {names}"))))
    }

    pub(super) fn drain_server(&self, upstream: &str, server: &str, is_drained: bool) -> ControlReport {
        let shared = match self.find_upstream(upstream) {
            Ok(shared) => shared,
            Err(reason) => return ControlReport::Rejected(reason),
        };
        if shared.set_drained(server, is_drained).is_none() {
            let names: Vec<String> = shared.servers_in_use().into_iter().map(|(name, _)| name).collect();
            return ControlReport::Rejected(format!(
                "upstream {upstream} has no server {server}; it has {}",
                names.join(", ")
            ));
        }
        let in_use =
            shared.servers_in_use().into_iter().find(|(name, _)| *name == server).map_or(0, |(_, in_use)| in_use);
        let what = if is_drained { "upstream server drained" } else { "upstream server undrained" };
        self.lasting.server_log.info(event(what, &[("upstream", &upstream), ("server", &server)]));
        ControlReport::Done(match is_drained {
            true => format!("{server} gets no new requests; connections in use: {in_use}\n"),
            false => format!("{server} gets requests again\n"),
        })
    }

    /// Index of the site with this name; `_` is a site without names.
    fn find_site(&self, name: &str) -> Result<(usize, &SiteConfig), String> {
        let has_name = |site: &SiteConfig| match site.names.as_slice() {
            [] => name == "_",
            names => names.iter().any(|known| known.to_string().eq_ignore_ascii_case(name)),
        };
        let mut found =
            self.assembly.parts.config.sites.iter().map(|site| &**site).enumerate().filter(|(_, site)| has_name(site));
        match (found.next(), found.next()) {
            (Some(site), None) => Ok(site),
            (Some(_), Some(_)) => Err(format!("several sites have the name {name}")),
            (None, _) => Err(format!("there is no site {name}; `_` is a site without names")),
        }
    }

    /// Replaces the certificates of a site by this one.
    pub(super) fn set_certificate(&self, site: &str, certificate: &str, key: &str) -> Result<String, String> {
        let (index, config) = self.find_site(site)?;
        let tls = self.assembly.tls.sites().iter().find(|(of, _)| *of == index);
        let (_, tls) = tls.ok_or_else(|| format!("site {site} had no certificate at the last reload"))?;
        let certificate = Certificate::from_pem(certificate.as_bytes(), key.as_bytes());
        let certificate = certificate.map_err(|fault| fault.to_string())?;
        let is_named = |name: &config::HostPattern| certificate.is_for(&name.to_string());
        if !config.names.is_empty() && !config.names.iter().any(is_named) {
            let names = certificate.names.join(", ");
            return Err(format!("the certificate is for other names than the site's: {names}"));
        }
        tls.replace(certificate);
        self.lasting.server_log.info(event("certificate replaced", &[("site", &site)]));
        Ok(format!("{site}: {}\n", change_summary("certificate")))
    }

    /// Changes the share of requests that an upstream gets by `split`.
    pub(super) fn set_split(&self, upstream: &str, share: &str, site: Option<&str>) -> Result<String, String> {
        let number = share.parse().ok().filter(|number| (0.0..=1.0).contains(number));
        let number = number.ok_or_else(|| format!("{share} is not a share; it is a number from 0 to 1"))?;
        let wanted = site.map(|name| self.find_site(name)).transpose()?.map(|(index, _)| index);
        let sites = self.assembly.parts.sites.iter().enumerate();
        let mut count = 0;
        for (_, of_site) in sites.filter(|(index, _)| wanted.is_none_or(|wanted| wanted == *index)) {
            let set = of_site.set_share(upstream, number);
            count += set.map_err(|_| "the shares of the `split`s would be more than 1 together".to_owned())?;
        }
        if count == 0 {
            return Err(format!("no `split` leads to {upstream}"));
        }
        let values: [(&str, &dyn std::fmt::Display); 3] =
            [("upstream", &upstream), ("share", &share), ("site", &site.unwrap_or("all sites"))];
        self.lasting.server_log.info(event("split changed", &values));
        Ok(format!("{upstream}: {}\n", change_summary(&format!("share {share}"))))
    }

    /// Changes the rate of a site's limit, or of a limit for all sites.
    pub(super) fn set_rate_limit(&self, site: Option<&str>, limit: &str) -> Result<String, String> {
        let wanted = config::rate_limit_from_text(limit)?;
        let config = site.map(|name| self.find_site(name)).transpose()?.map(|(_, config)| config);
        if self.assembly.parts.rules.set_rate(config, &wanted) == 0 {
            return Err(match site {
                Some(name) => format!("site {name} has no rate limit for this path and key of its own"),
                None => "no rate limit for all sites has this path and key; `--site` changes that of a site".to_owned(),
            });
        }
        let of = site.unwrap_or("all sites");
        self.lasting.server_log.info(event("rate limit changed", &[("site", &of), ("limit", &limit)]));
        Ok(format!("{of}: {}\n", change_summary(&format!("rate-limit {limit}"))))
    }
}
