//! Control plane: the controller that a server gets routes from, and the sites that they become.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use routes::RouteTable;

use super::config::{Config, Listen, SiteConfig};
use super::tls::CertificateFiles;
use super::upstream::{UpstreamConfig, UpstreamServer, UpstreamServerAddress};

/// The controller that a server gets routes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPlane {
    /// Address: `https://…` or `unix:…`.
    pub address: UpstreamServerAddress,
    /// File of the token that the server sends.
    pub token_file: Option<PathBuf>,
    /// CA certificates (PEM) for the controller; `None` trusts the system's CAs.
    pub authorities: Option<PathBuf>,
    /// Certificate that the server shows the controller.
    pub certificate: Option<CertificateFiles>,
    /// Directory for the last routes; `None` is that of the server's state.
    pub directory: Option<PathBuf>,
}

impl ControlPlane {
    /// Directory for the last routes and their certificates; `None` if the environment names none.
    pub fn state_directory(&self) -> Option<PathBuf> {
        self.directory.clone().or_else(|| Some(crate::state_directory()?.join("routes")))
    }

    /// True if the connection shows who the other side is.
    pub(crate) fn is_authenticated(&self) -> bool {
        matches!(self.address, UpstreamServerAddress::Tls(..) | UpstreamServerAddress::Unix(_))
    }
}

/// Routes of a controller, as sites and upstreams.
#[derive(Debug, Default)]
pub struct RouteParts {
    /// Number of the translation; another one has another number.
    pub number: u64,
    /// Sites: first those of listeners, then those of rules, which have no address.
    pub sites: Vec<Arc<SiteConfig>>,
    /// Upstreams, without servers.
    pub upstreams: Vec<Arc<UpstreamConfig>>,
    /// Servers of the upstreams that the translation before has not, by name.
    pub servers: HashMap<String, Arc<[UpstreamServer]>>,
    /// Routes of each address. Translations that follow each other share those that stay.
    pub listeners: Vec<(Listen, Arc<ListenerRules>)>,
    /// Number of sites that the translation before has not.
    pub built: usize,
}

/// Rules of the routes of listeners with the same addresses.
#[derive(Debug, Default)]
pub struct ListenerRules {
    /// Finds the target of a request.
    pub table: RouteTable,
    /// Targets: the sites of each, by weight.
    pub targets: Vec<WeightedSites>,
    /// Sites of the targets.
    pub sites: Vec<Arc<SiteConfig>>,
}

/// Sites that share the requests of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightedSites {
    /// Sums of the weights up to each site, and its index in [`ListenerRules::sites`].
    sites: Vec<(u64, usize)>,
}

impl WeightedSites {
    /// Adds a site.
    pub fn push(&mut self, weight: u32, site: usize) {
        if weight > 0 {
            self.sites.push((self.total() + u64::from(weight), site));
        }
    }

    /// Sum of the weights.
    pub fn total(&self) -> u64 {
        self.sites.last().map_or(0, |(sum, _)| *sum)
    }

    /// Site of a number below the sum of the weights, which `random` draws if there are several.
    pub fn choose(&self, random: impl FnOnce(u64) -> u64) -> Option<usize> {
        match self.sites.as_slice() {
            [] => None,
            [(_, only)] => Some(*only),
            several => {
                let number = random(self.total());
                let index = several.partition_point(|(sum, _)| *sum <= number);
                several.get(index).map(|(_, site)| *site)
            }
        }
    }
}

impl PartialEq for RouteParts {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Config {
    /// Replaces the routes of the controller, with their sites and upstreams.
    pub fn set_routes(&mut self, routes: &Arc<RouteParts>) {
        if let Some(before) = self.routes.take() {
            self.sites.truncate(self.sites.len().saturating_sub(before.sites.len()));
            self.upstreams.truncate(self.upstreams.len().saturating_sub(before.upstreams.len()));
        }
        self.sites.extend_from_slice(&routes.sites);
        self.upstreams.extend_from_slice(&routes.upstreams);
        self.routes = Some(Arc::clone(routes));
    }

    /// Index of the first upstream of the controller's routes.
    pub fn first_route_upstream(&self) -> usize {
        self.upstreams.len() - self.routes.as_ref().map_or(0, |routes| routes.upstreams.len())
    }

    /// Index of the first site of the controller's routes.
    pub fn first_route_site(&self) -> usize {
        self.sites.len() - self.routes.as_ref().map_or(0, |routes| routes.sites.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_by_weight() {
        for (weights, number, expect) in [
            (&[][..], 0, None),
            (&[0], 0, None),
            (&[7], 0, Some(0)),
            (&[1, 3], 0, Some(0)),
            (&[1, 3], 1, Some(1)),
            (&[1, 3], 3, Some(1)),
            (&[1, 0, 2], 0, Some(0)),
            (&[1, 0, 2], 1, Some(2)),
            (&[u32::MAX, u32::MAX], u64::from(u32::MAX), Some(1)),
        ] {
            let mut sites = WeightedSites::default();
            weights.iter().enumerate().for_each(|(site, weight)| sites.push(*weight, site));
            assert_eq!(sites.choose(|_| number), expect, "{weights:?} {number}");
        }
    }

    #[test]
    fn routes_replace_routes_alone() {
        let site = |name: &str| {
            let names = vec![super::super::config::HostPattern::Exact(name.into())];
            Arc::new(SiteConfig { names, ..SiteConfig::default() })
        };
        let parts = |number, names: &[&str]| {
            let sites = names.iter().map(|name| site(name)).collect();
            let upstreams = names.iter().map(|name| Arc::new(UpstreamConfig::named(*name))).collect();
            Arc::new(RouteParts { number, sites, upstreams, ..RouteParts::default() })
        };
        let mut config = Config { sites: vec![site("own")], ..Config::default() };
        for (number, names) in [(1, &["a", "b"][..]), (2, &["c"]), (3, &[])] {
            config.set_routes(&parts(number, names));
            let labels: Vec<_> = config.sites.iter().map(|site| site.label()).collect();
            assert_eq!(labels, [&["own"][..], names].concat());
            assert_eq!((config.first_route_site(), config.upstreams.len()), (1, names.len()));
        }
    }
}
