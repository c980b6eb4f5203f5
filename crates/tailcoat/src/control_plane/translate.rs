//! Translates a snapshot to sites and upstreams.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use routes::{
    Backend, BackendProtocol, Endpoint, Filter, Lifetime, Listener, PersistenceKind, Protocol, Regexes, Route,
    RouteTable, Rule, Snapshot, SubjectAltName, TableEntry, intersection, is_valid_hostname,
};

use super::rule::{KnownOptions, RulePlace, depends_on_listener, depends_on_path, responds, site_of, upstream_of};
use super::state::{PemFiles, RouteState};
use super::streams::stream_listeners;
use crate::config::{
    AcceptedName, Certificate, CertificateFiles, ClientCertificates, HostPattern, Listen, RouteListener, RouteParts,
    SiteConfig, StickyCookie, Tls, UpstreamConfig, UpstreamServer, UpstreamServerAddress, UpstreamTls, WeightedSites,
};
use crate::stream_proxy::{StreamListener, accepted_clients};

/// Translates snapshots, one after another. It remembers what is slow to compile.
#[derive(Default)]
pub(super) struct Translator {
    regexes: Regexes,
    options: KnownOptions,
    number: u64,
}

/// Result of a translation.
pub(super) struct TranslatedRoutes {
    /// Sites and upstreams.
    pub parts: RouteParts,
    /// Listeners for connections and datagrams.
    pub streams: Vec<StreamListener>,
    /// Errors by kind and name, as in [`routes::Applied::errors`].
    pub errors: BTreeMap<String, String>,
    pub(super) pem: PemFiles,
}

/// Servers of a backend.
pub(super) fn servers_of(backend: &Backend, endpoints: &[Endpoint]) -> Vec<UpstreamServer> {
    let ready = endpoints.iter().filter(|endpoint| endpoint.is_ready).take(UpstreamConfig::SERVERS_MAX);
    let server = |endpoint: &Endpoint| {
        let port = endpoint.address.port();
        let host = match endpoint.address.ip() {
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
    let mut servers: Vec<_> = ready.map(server).collect();
    let mut known = HashSet::new();
    servers.retain(|server| known.insert(server.address.clone()));
    servers
}

impl Translator {
    /// Translates a snapshot. Addresses in `unusable` are left out, because they cannot be bound.
    pub(super) fn translate(
        &mut self,
        snapshot: &Snapshot,
        state: &RouteState,
        unusable: &HashMap<SocketAddr, String>,
    ) -> TranslatedRoutes {
        self.number += 1;
        let mut work = Work {
            snapshot,
            parts: RouteParts { number: self.number, ..RouteParts::default() },
            errors: BTreeMap::new(),
            pem: state.pem_files(),
            regexes: &mut self.regexes,
            options: &mut self.options,
            known_upstreams: HashSet::new(),
            known_sites: HashMap::new(),
        };
        work.add_backends();
        let groups = work.add_listeners(unusable);
        let taken = groups.iter().map(|group| group.address).collect();
        work.add_routes(groups);
        let streams = stream_listeners(snapshot, &taken, &mut work.errors);
        let Work { parts, errors, pem, .. } = work;
        TranslatedRoutes { parts, streams, errors, pem }
    }
}

/// Addresses on which a listener accepts connections.
pub(super) fn addresses_of(listener: &Listener) -> Vec<SocketAddr> {
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let addresses = if listener.addresses.is_empty() { &any[..] } else { &listener.addresses };
    addresses.iter().map(|address| SocketAddr::new(*address, listener.port)).collect()
}

/// Listeners of an address.
struct Group<'a> {
    address: SocketAddr,
    scheme: &'static str,
    listeners: Vec<(&'a str, &'a Listener)>,
}

/// Site of a rule: positions of route, rule, match and backend, and the listener if it matters.
type SiteKey = (usize, usize, Option<usize>, Option<usize>, Option<(&'static str, u16)>);

struct Work<'a> {
    snapshot: &'a Snapshot,
    parts: RouteParts,
    errors: BTreeMap<String, String>,
    pem: PemFiles,
    regexes: &'a mut Regexes,
    options: &'a mut KnownOptions,
    known_upstreams: HashSet<String>,
    known_sites: HashMap<SiteKey, usize>,
}

impl<'a> Work<'a> {
    fn fail(&mut self, kind: &str, name: &str, reason: impl Into<String>) {
        // The first reason counts.
        self.errors.entry(format!("{kind}/{name}")).or_insert_with(|| reason.into());
    }

    fn add_backends(&mut self) {
        let snapshot = self.snapshot;
        for (name, backend) in &snapshot.backends {
            match self.upstream(name, backend) {
                Ok(upstream) => {
                    let endpoints = snapshot.endpoints.get(name).map_or(&[][..], Vec::as_slice);
                    if endpoints.len() > UpstreamConfig::SERVERS_MAX {
                        let reason = format!("only the first {} endpoints are used", UpstreamConfig::SERVERS_MAX);
                        self.fail("backend", name, reason);
                    }
                    self.parts.servers.insert(name.clone(), servers_of(backend, endpoints));
                    self.add_upstream(upstream);
                }
                Err(reason) => self.fail("backend", name, reason),
            }
        }
    }

    fn add_upstream(&mut self, upstream: UpstreamConfig) {
        if self.known_upstreams.insert(upstream.name.clone()) {
            self.parts.upstreams.push(upstream);
        }
    }

    fn upstream(&mut self, name: &str, backend: &Backend) -> Result<UpstreamConfig, String> {
        let mut upstream = upstream_of(name, &backend.options)?;
        if let Some(tls) = &backend.tls {
            upstream.expects_tls = true;
            let certificate = tls.client_certificate.as_ref().map(|own| self.certificate(own)).transpose()?;
            let authorities = tls.authorities.as_ref().map(|text| self.authorities(text)).transpose()?;
            let accepted = tls.subject_alt_names.iter().map(|name| match name {
                SubjectAltName::Dns(name) => AcceptedName::Dns(name.clone()),
                SubjectAltName::Uri(uri) => AcceptedName::Uri(uri.clone()),
            });
            upstream.tls = UpstreamTls {
                authorities,
                server_name: Some(tls.hostname.clone()),
                certificate,
                accepted_names: accepted.collect(),
                ..UpstreamTls::default()
            };
        }
        if let Some(persistence) = &backend.persistence {
            if persistence.kind == PersistenceKind::Header {
                return Err("session persistence by a header field is not supported".to_owned());
            }
            let seconds = persistence.absolute_timeout_seconds;
            let age_max = seconds.filter(|_| persistence.lifetime == Lifetime::Permanent);
            upstream.sticky = Some(Box::new(StickyCookie {
                name: persistence.name.clone(),
                key_file: None,
                age_max: age_max.map(std::time::Duration::from_secs),
                path: persistence.path.clone().unwrap_or_else(|| "/".to_owned()),
                domain: None,
                is_secure: None,
                is_http_only: true,
                same_site: "lax",
            }));
        }
        Ok(upstream)
    }

    /// Writes a certificate to a file, if it is valid.
    fn certificate(&mut self, of: &routes::Certificate) -> Result<CertificateFiles, String> {
        Certificate::from_pem(of.chain.as_bytes(), of.key.as_bytes()).map_err(|fault| fault.to_string())?;
        let path = self.pem.add(format!("{}\n{}", of.key.trim_end(), of.chain));
        Ok(CertificateFiles { certificate: path.clone(), key: path, ocsp: None })
    }

    fn authorities(&mut self, text: &str) -> Result<std::path::PathBuf, String> {
        if !text.contains("-----BEGIN CERTIFICATE-----") {
            return Err("there is no CA certificate".to_owned());
        }
        Ok(self.pem.add(text.to_owned()))
    }

    /// Adds the site of each listener; returns the listeners by address.
    fn add_listeners(&mut self, unusable: &HashMap<SocketAddr, String>) -> Vec<Group<'a>> {
        let mut groups: BTreeMap<SocketAddr, Group<'a>> = BTreeMap::new();
        let snapshot = self.snapshot;
        for (name, listener) in snapshot.listeners.iter().filter(|(_, listener)| listener.protocol.is_http()) {
            let site = match self.listener_site(listener) {
                Ok(site) => site,
                Err(reason) => {
                    self.fail("listener", name, reason);
                    continue;
                }
            };
            let scheme = if listener.protocol == Protocol::Https { "https" } else { "http" };
            let mut listen = Vec::new();
            for address in addresses_of(listener) {
                if let Some(reason) = unusable.get(&address) {
                    self.fail("listener", name, reason.clone());
                    continue;
                }
                let group = groups.entry(address).or_insert_with(|| Group { address, scheme, listeners: Vec::new() });
                if group.scheme != scheme {
                    self.fail("listener", name, format!("another listener of {address} has another protocol"));
                } else if group.listeners.iter().any(|(_, other)| other.hostname == listener.hostname) {
                    self.fail("listener", name, format!("another listener of {address} has the same host name"));
                } else {
                    group.listeners.push((name.as_str(), listener));
                    listen.push(Listen::Tcp(address));
                }
            }
            if !listen.is_empty() {
                let tls_listen = if scheme == "https" { listen.clone() } else { Vec::new() };
                self.parts.sites.push(SiteConfig { listen, tls_listen, ..site });
            }
        }
        groups.into_values().filter(|group| !group.listeners.is_empty()).collect()
    }

    /// Site of a listener, without its addresses. It has no routes: those of the table come before.
    fn listener_site(&mut self, listener: &Listener) -> Result<SiteConfig, String> {
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
                certificates.push(self.certificate(certificate)?);
            }
            if certificates.is_empty() {
                return Err("there is no certificate".to_owned());
            }
            let client_certificates = match &listener.client_validation {
                None => None,
                Some(validation) => Some(ClientCertificates {
                    authorities: self.authorities(&validation.authorities)?,
                    accepts: accepted_clients(validation),
                }),
            };
            site.tls = Tls { certificates, client_certificates, ..Tls::default() };
        }
        Ok(site)
    }

    fn add_routes(&mut self, groups: Vec<Group<'a>>) {
        let snapshot = self.snapshot;
        let mut attached: HashMap<&str, Vec<(usize, &str, &Route)>> = HashMap::new();
        for (index, (name, route)) in snapshot.routes.iter().enumerate() {
            for listener in &route.listeners {
                if !snapshot.listeners.get(listener).is_some_and(|listener| listener.protocol.is_http()) {
                    self.fail("route", name, format!("there is no listener {listener} for HTTP"));
                }
                attached.entry(listener).or_default().push((index, name.as_str(), route));
            }
        }
        for group in groups {
            let mut targets = Vec::new();
            let mut known: HashMap<(usize, usize, Option<usize>), Option<u32>> = HashMap::new();
            let mut entries = Vec::new();
            for (listener_name, listener) in &group.listeners {
                for (index, name, route) in attached.get(listener_name).into_iter().flatten() {
                    let (listener, route) = (*listener, *route);
                    let hostnames = hostnames(listener, route);
                    if hostnames.is_empty() {
                        self.fail("route", name, format!("no host name is also one of the listener {listener_name}"));
                    }
                    for (at, rule) in route.rules.iter().enumerate() {
                        let place = (*index, *name, at, rule);
                        self.add_rule(place, listener, &hostnames, &group, (&mut targets, &mut known, &mut entries));
                    }
                }
            }
            let listeners = group.listeners.iter().map(|(_, listener)| listener.hostname.as_deref());
            match RouteTable::new(listeners, entries.iter().copied(), self.regexes) {
                Ok(table) => {
                    self.parts.listeners.push(RouteListener { listen: Listen::Tcp(group.address), table, targets });
                }
                // Local invariant: each match was checked.
                Err(reason) => self.fail("listener", group.listeners[0].0, reason),
            }
        }
    }

    #[allow(clippy::type_complexity, reason = "parts of one loop")]
    fn add_rule(
        &mut self,
        (index, name, at, rule): (usize, &'a str, usize, &'a Rule),
        listener: &'a Listener,
        hostnames: &[Option<&'a str>],
        group: &Group<'a>,
        (targets, known, entries): (
            &mut Vec<WeightedSites>,
            &mut HashMap<(usize, usize, Option<usize>), Option<u32>>,
            &mut Vec<TableEntry<'a>>,
        ),
    ) {
        static ANY: routes::Match =
            routes::Match { path: None, method: None, headers: Vec::new(), query: Vec::new(), grpc: None };
        let matches = if rule.matches.is_empty() { std::slice::from_ref(&ANY) } else { rule.matches.as_slice() };
        let filters = rule.filters.iter().chain(rule.backends.iter().flat_map(|backend| &backend.filters));
        let depends = depends_on_path(&filters.collect::<Vec<_>>());
        let created = self.snapshot.routes.get(name).map_or(0, |route| route.created);
        for (position, of) in matches.iter().enumerate() {
            if let Err(reason) = of.check(self.regexes) {
                self.fail("route", name, format!("rule {at}: {reason}"));
                continue;
            }
            let key = (index, at, depends.then_some(position));
            let target = match known.get(&key) {
                Some(target) => *target,
                None => {
                    let made = self.target((index, name, at, rule), depends.then_some((position, of)), group);
                    let target = made.map(|target| {
                        targets.push(target);
                        (targets.len() - 1) as u32
                    });
                    known.insert(key, target);
                    target
                }
            };
            let Some(target) = target else { continue };
            entries.extend(hostnames.iter().map(|hostname| TableEntry {
                listener: listener.hostname.as_deref(),
                hostname: *hostname,
                of,
                age: (created, name),
                position: (at, position),
                target,
            }));
        }
    }

    /// Sites of a rule, by the weight of their backends; `None` if a filter is not valid.
    fn target(
        &mut self,
        (index, name, at, rule): (usize, &str, usize, &'a Rule),
        matched: Option<(usize, &'a routes::Match)>,
        group: &Group<'a>,
    ) -> Option<WeightedSites> {
        let mut sites = WeightedSites::default();
        let own_response = rule.filters.iter().any(responds) || rule.error.is_some();
        let used = rule.backends.iter().enumerate().filter(|(_, backend)| backend.weight > 0 && !own_response);
        let used: Vec<_> = used.map(|(index, backend)| (Some(index), Some(backend), backend.weight)).collect();
        let used = if used.is_empty() { vec![(None, None, 1)] } else { used };
        for (backend_index, backend, weight) in used {
            let filters: Vec<&Filter> =
                rule.filters.iter().chain(backend.iter().flat_map(|backend| &backend.filters)).collect();
            let listener = depends_on_listener(&filters).then_some((group.scheme, group.address.port()));
            let key = (index, at, matched.map(|(position, _)| position), backend_index, listener);
            if let Some(site) = self.known_sites.get(&key) {
                sites.push(weight, *site);
                continue;
            }
            let upstreams = &self.known_upstreams;
            let is_backend = |name: &str| upstreams.contains(name);
            let place = RulePlace {
                path: matched.and_then(|(_, of)| of.path.as_ref()),
                scheme: group.scheme,
                port: group.address.port(),
                is_backend: &is_backend,
            };
            let usable = backend.map(|backend| backend.backend.as_str()).filter(|name| is_backend(name));
            let made = site_of(rule, &filters, usable, &place, self.options);
            let (mut site, upstreams) = match made {
                Ok(made) => made,
                Err(reason) => {
                    self.fail("route", name, format!("rule {at}: {reason}"));
                    return None;
                }
            };
            if let Some(backend) = backend.filter(|_| usable.is_none()) {
                self.fail("route", name, format!("rule {at}: there is no backend {}", backend.backend));
            }
            upstreams.into_iter().for_each(|upstream| self.add_upstream(upstream));
            site.names = vec![HostPattern::Exact(site_name(name, at, key))];
            self.parts.sites.push(site);
            let site = self.parts.sites.len() - 1;
            self.known_sites.insert(key, site);
            sites.push(weight, site);
        }
        Some(sites)
    }
}

/// Name of a rule's site, in metrics and logs: no other site has it.
fn site_name(route: &str, rule: usize, (_, _, matched, backend, listener): SiteKey) -> String {
    let mut name = format!("{route}/{rule}");
    let matched = matched.map(|matched| format!(" match {matched}"));
    let backend = backend.filter(|backend| *backend > 0).map(|backend| format!(" backend {backend}"));
    let listener = listener.map(|(scheme, port)| format!(" {scheme} {port}"));
    [matched, backend, listener].into_iter().flatten().for_each(|part| name.push_str(&part));
    name
}

/// Host names of a route on a listener; `None` is any.
fn hostnames<'a>(listener: &'a Listener, route: &'a Route) -> Vec<Option<&'a str>> {
    let of_listener = listener.hostname.as_deref();
    if route.hostnames.is_empty() {
        return vec![of_listener];
    }
    let names = route.hostnames.iter().filter(|name| is_valid_hostname(name));
    names.filter_map(|name| intersection(of_listener, name)).map(Some).collect()
}
