//! Routing of a request. Host and path select the site, its rules decide what happens to the request, and its handlers
//! try it in turn.

pub mod explain;
mod filters;
mod local_redirects;
mod path_index;
mod pipeline;
mod route_table;
pub mod rules;
mod site;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;
use wire::http::Status;

use self::route_table::ListenerRoutes;
use self::rules::{AllRules, PasswordGate, RequestIds, Rules, TrustedProxies, Visit};
use self::site::Site;
use crate::config::{HostPattern, ListenerRules, LogFilter, SiteConfig};
use crate::handler::{
    ClientGone, DefaultPages, Encoders, ErrorPages, FtpFiles, Handler, Now, OwnedRequest, Response, ResponsePace,
    Routed,
};
use crate::known_clients::{Bans, Locations};
use crate::log::{LogClient, LogId, ServerLog};
use crate::metrics::NameSlot;
use crate::tls::Validations;
use crate::traces::{Trace, Tracer};

/// Response that becomes available later.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response, ClientGone>>>>;

/// Response to a request, or what it waits for.
pub enum SiteResponse<W = PendingResponse> {
    /// Response that is available at once.
    Ready(Response),
    /// Response that must be waited for.
    Wait(W),
}

/// Response that the connection waits for.
pub struct PendingResponse {
    /// The response.
    pub future: ResponseFuture,
    /// Request, which the connection keeps until the response is there.
    pub request: Rc<OwnedRequest>,
}

/// Data about a request that is kept until its response is sent.
#[derive(Clone, Debug, Default)]
pub struct RequestAccount {
    /// Access log; `None` if the request is not logged.
    pub log: Option<LogId>,
    /// Choice of the requests that the log has; `None` is all.
    pub log_filter: Option<Rc<LogFilter>>,
    /// Name under which metrics count the request.
    pub counted: NameSlot,
    /// State that rules hold for the request. Dropping it releases what the request takes of their limits.
    pub visit: Option<Rc<Visit>>,
    /// Span in a trace; `None` if traces are off.
    pub trace: Option<Rc<Trace>>,
}

/// Parts from which a router makes a site.
pub struct SiteSetup<'a> {
    /// Configuration of the site.
    pub config: &'a crate::config::SiteConfig,
    /// Files over FTP; `None` for a site of HTTP.
    pub ftp: Option<FtpFiles>,
    /// Passwords of users of FTP.
    pub gate: Option<PasswordGate>,
    /// Handlers of the routes, in the order of the configuration.
    pub handlers: Vec<Handler>,
    /// Error pages of the site.
    pub error_pages: ErrorPages,
    /// Pages of the worker for other errors.
    pub default_pages: Rc<DefaultPages>,
    /// Maximum rates of responses; `None` without.
    pub pace: Option<ResponsePace>,
    /// Encoders of the worker.
    pub encoders: Rc<Encoders>,
    /// Rules of the site; `None` if it has none.
    pub rules: Option<Rules>,
    /// Access log of the site; `None` if it has none.
    pub log: Option<LogId>,
    /// Log that names the reasons of rejected requests.
    pub server_log: ServerLog,
    /// Name under which metrics count the site's requests.
    pub counted: NameSlot,
    /// TLS of the site, by [`SiteTls::id`](crate::tls::SiteTls::id); `None` without TLS.
    pub tls: Option<u32>,
}

/// Site of a worker, for its routers.
#[derive(Clone)]
pub struct WorkerSite(Rc<Site>);

impl WorkerSite {
    /// Makes a site from its parts.
    pub fn new(setup: SiteSetup<'_>) -> Self {
        Self(Rc::new(Site::new(setup)))
    }
}

/// Sites of all listeners. Each worker has its own router.
pub struct Router {
    /// Sites of each listener, by its index.
    listeners: Vec<Rc<ListenerSites>>,
    /// Trusted proxies; `None` if there are none.
    trusting: Option<Trusting>,
    /// Responses to ACME challenges; `None` without automatic certificates.
    validations: Option<Arc<Validations>>,
    /// Clients that an operator has banned.
    bans: Arc<Bans>,
    /// Databases of countries and network operators; `None` if there are none.
    locations: Option<Arc<Locations>>,
    /// Tracer and source of trace identifiers; `None` if traces are off.
    tracing: Option<(Arc<Tracer>, Rc<RequestIds>)>,
}

/// Proxies whose forwarding fields are trusted.
struct Trusting {
    rules: Arc<AllRules>,
    ids: Rc<RequestIds>,
}

/// Sites of a listener.
struct ListenerSites {
    hosts: Hosts<Rc<Site>>,
    /// Routes of a controller, in place of the hosts; `None` without any.
    routes: Option<ListenerRoutes>,
}

/// Sites by host.
struct Hosts<S> {
    exact: HashMap<Box<[u8]>, S>,
    /// Sites by host suffix, with its leading dot.
    suffixes: HashMap<Box<[u8]>, S>,
    /// Sites by the start of the host, with the dot at its end.
    prefixes: HashMap<Box<[u8]>, S>,
    default: Option<S>,
}

impl Router {
    /// Makes a router for these sites. `listeners` has, for each listener, the indices of its sites.
    pub fn new(sites: &[(Arc<SiteConfig>, WorkerSite)], listeners: &[Vec<usize>]) -> Self {
        Self::with_routes(sites, listeners, &[], None)
    }

    /// Makes a router as [`Self::new`] does. `routes` has the routes of a controller for each listener that has any. Those
    /// of `before` that stay are used again.
    pub fn with_routes(
        sites: &[(Arc<SiteConfig>, WorkerSite)],
        listeners: &[Vec<usize>],
        routes: &[Option<Arc<ListenerRules>>],
        before: Option<&Self>,
    ) -> Self {
        let by_config: HashMap<*const SiteConfig, &Rc<Site>> = match routes.is_empty() {
            true => HashMap::new(),
            false => sites.iter().map(|(config, site)| (Arc::as_ptr(config), &site.0)).collect(),
        };
        let site_of = |config: &Arc<SiteConfig>| by_config.get(&Arc::as_ptr(config)).copied();
        let listener = |(number, indices): (usize, &Vec<usize>)| {
            let mut hosts = Hosts::default();
            indices.iter().for_each(|&index| hosts.add(&sites[index].0, &sites[index].1.0));
            let routes = routes.get(number).and_then(Option::as_ref).map(|rules| {
                let known = before.and_then(|before| before.listeners.get(number)?.routes.as_ref());
                let known = known.filter(|known| known.is_of(rules, site_of));
                known.map_or_else(|| ListenerRoutes::new(rules, site_of), ListenerRoutes::clone)
            });
            Rc::new(ListenerSites { hosts, routes })
        };
        let listeners = listeners.iter().enumerate().map(listener).collect();
        Self { listeners, trusting: None, validations: None, bans: Arc::default(), locations: None, tracing: None }
    }

    /// Applies the list of trusted proxies, if it is not empty.
    pub fn trusting(mut self, rules: &Arc<AllRules>, ids: &Rc<RequestIds>) -> Self {
        let (rules, ids) = (Arc::clone(rules), Rc::clone(ids));
        self.trusting = rules.trusted_proxies.is_some().then_some(Trusting { rules, ids });
        self
    }

    /// Reuses the sites of another router for these listeners.
    pub fn reuse(&mut self, listeners: impl Iterator<Item = usize>, before: &Self) {
        for listener in listeners {
            if let (Some(of), Some(hosts)) = (self.listeners.get_mut(listener), before.listeners.get(listener)) {
                *of = Rc::clone(hosts);
            }
        }
    }

    /// Number of listeners.
    pub fn listener_count(&self) -> usize {
        self.listeners.len()
    }

    /// Returns true if this address is a trusted proxy.
    pub fn trusts(&self, client: LogClient) -> bool {
        self.trusted_proxies().is_some_and(|proxies| proxies.has(client))
    }

    fn trusted_proxies(&self) -> Option<&TrustedProxies> {
        self.trusting.as_ref().and_then(|trusting| trusting.rules.trusted_proxies.as_ref())
    }

    /// Sets the responses to ACME challenges (RFC 8555, section 8).
    pub fn validated(mut self, validations: Option<&Arc<Validations>>) -> Self {
        self.validations = validations.cloned();
        self
    }

    /// Sets the table of banned clients.
    pub fn banning(mut self, bans: &Arc<Bans>) -> Self {
        self.bans = Arc::clone(bans);
        self
    }

    /// Sets the tracer; `None` turns traces off.
    pub fn tracing(mut self, tracer: Option<&Arc<Tracer>>, ids: &Rc<RequestIds>) -> Self {
        self.tracing = tracer.map(|tracer| (Arc::clone(tracer), Rc::clone(ids)));
        self
    }

    /// Returns true if a client is banned.
    pub fn bans(&self, client: LogClient) -> bool {
        self.bans.has(client)
    }

    /// Table of banned clients.
    pub fn ban_table(&self) -> &Arc<Bans> {
        &self.bans
    }

    /// Databases of countries and network operators, if there are some.
    pub fn locations(&self) -> Option<&Arc<Locations>> {
        self.locations.as_ref()
    }

    /// Sets the databases of countries and network operators.
    pub fn locating(mut self, locations: &Arc<Locations>) -> Self {
        self.locations = (!locations.is_empty()).then(|| Arc::clone(locations));
        self
    }

    /// Routes a request that was received on this listener.
    pub fn answer(&self, listener: u16, routed: &Routed<'_>) -> (SiteResponse, RequestAccount) {
        let located;
        let routed = match &self.locations {
            None => routed,
            locations => {
                located = Routed { locations: locations.as_ref(), ..*routed };
                &located
            }
        };
        if let Some(trusting) = &self.trusting
            && let Some(trusted) = trusting.rules.trusted_proxies.as_ref()
            && trusted.has(routed.client)
        {
            let (client, proxied) = trusted.client(routed.client, &routed.request);
            let visit = Rc::new(Visit::new(client, &trusting.ids));
            let routed = Routed { client, proxied: Some(proxied), ..*routed };
            let (response, mut account) = self.answer_traced(listener, &routed);
            account.visit.get_or_insert(visit);
            return (response, account);
        }
        self.answer_traced(listener, routed)
    }

    fn answer_traced(&self, listener: u16, routed: &Routed<'_>) -> (SiteResponse, RequestAccount) {
        let Some((tracer, ids)) = &self.tracing else { return self.answer_client(listener, routed) };
        let trace = Rc::new(tracer.begin(&routed.request, routed.proxied.is_some(), ids.numbers()));
        let (response, mut account) = self.answer_client(listener, &Routed { trace: Some(&trace), ..*routed });
        account.trace = Some(trace);
        (response, account)
    }

    fn answer_client(&self, listener: u16, routed: &Routed<'_>) -> (SiteResponse, RequestAccount) {
        if let Some(verdict) = self.bans.verdict(routed.client) {
            return (SiteResponse::Ready(site::banned(verdict, routed)), self.default_account(listener));
        }
        // ACME challenges are answered before all rules, because the CA has no password, and uses any host.
        if let Some(content) = self.validations.as_ref().and_then(|all| all.response(routed.path)) {
            return (SiteResponse::Ready(site::validation(content)), self.default_account(listener));
        }
        let ListenerSites { hosts, routes } = &*self.listeners[usize::from(listener)];
        if let Some(routes) = routes {
            return match routes.find(routed) {
                Ok(site) => site.answer(routed),
                Err(response) => (SiteResponse::Ready(response), self.default_account(listener)),
            };
        }
        match hosts.find(routed.host) {
            Some(site) if site.is_misdirected(routed) => {
                (SiteResponse::Ready(site::misdirected(routed)), site.account_of(routed.path))
            }
            Some(site) => site.answer(routed),
            None => (SiteResponse::Ready(site::no_site(routed)), RequestAccount::default()),
        }
    }

    /// This server name in lower case, if its connections of TLS are not for HTTP, although their listener has sites. The
    /// name is empty if the client sent none.
    pub fn stream_name(&self, listener: u16, server_name: Option<&str>) -> Option<String> {
        let routes = self.listeners.get(usize::from(listener))?.routes.as_ref()?;
        let name = server_name.unwrap_or_default().to_ascii_lowercase();
        routes.is_stream(name.as_bytes()).then_some(name)
    }

    /// Site that serves FTP on this listener for a host, or for clients that have named none. `None` for a listener of
    /// HTTP, or an unknown host.
    pub fn ftp_site(&self, listener: u16, host: Option<&[u8]>) -> Option<&Rc<FtpFiles>> {
        let hosts = &self.listeners.get(usize::from(listener))?.hosts;
        let site = match host {
            Some(host) => hosts.exact.get(host).or_else(|| hosts.find_pattern(host)),
            None => hosts.default.as_ref(),
        };
        site?.ftp.as_ref()
    }

    /// Passwords of the users of a site of FTP; `None` if it has no users.
    pub fn ftp_gate(&self, listener: u16, host: Option<&[u8]>) -> Option<PasswordGate> {
        let hosts = &self.listeners.get(usize::from(listener))?.hosts;
        hosts.find(host.unwrap_or_default())?.gate.clone()
    }

    /// Log and metrics of a transfer of this path over FTP.
    pub fn ftp_account(&self, listener: u16, host: Option<&[u8]>, path: &[u8]) -> RequestAccount {
        let hosts = self.listeners.get(usize::from(listener));
        let site = hosts.and_then(|of| of.hosts.find(host.unwrap_or_default()));
        site.map_or_else(RequestAccount::default, |site| site.account_of(path))
    }

    /// True if the sites of a listener have names, so that HOST can select one.
    pub fn has_names(&self, listener: u16) -> bool {
        let hosts = self.listeners.get(usize::from(listener));
        hosts.is_some_and(|of| of.hosts.has_names())
    }

    /// Counts a message that cannot be parsed as a request, for bans by the rules of the default site.
    #[cold]
    pub fn count_malformed(&self, listener: u16, status: Status, client: LogClient, now: Now) {
        let site = self.listeners[usize::from(listener)].hosts.default.as_ref();
        if let Some(rules) = site.and_then(|site| site.rules.as_ref()) {
            rules.count_malformed(status, client, now.monotonic_ms);
        }
    }

    /// Log and metrics of a message that cannot be parsed as a request.
    pub fn default_account(&self, listener: u16) -> RequestAccount {
        let default = self.listeners[usize::from(listener)].hosts.default.as_ref();
        default.map_or_else(RequestAccount::default, |site| site.account())
    }
}

impl<S> Default for Hosts<S> {
    fn default() -> Self {
        Self { exact: HashMap::new(), suffixes: HashMap::new(), prefixes: HashMap::new(), default: None }
    }
}

impl<S: Clone> Hosts<S> {
    fn add(&mut self, config: &crate::config::SiteConfig, site: &S) {
        for name in &config.names {
            let (map, key) = match name {
                HostPattern::Exact(name) => (&mut self.exact, name),
                HostPattern::Suffix(suffix) => (&mut self.suffixes, suffix),
                HostPattern::Prefix(prefix) => (&mut self.prefixes, prefix),
            };
            map.entry(key.as_bytes().into()).or_insert_with(|| site.clone());
        }
        // The first site serves unknown hosts, unless another site is marked as the default.
        if config.default || self.default.is_none() {
            self.default = Some(site.clone());
        }
    }

    fn find(&self, host: &[u8]) -> Option<&S> {
        if !self.has_names() {
            return self.default.as_ref();
        }
        self.exact.get(host).or_else(|| self.find_pattern(host)).or(self.default.as_ref())
    }

    fn has_names(&self) -> bool {
        !self.exact.is_empty() || !self.suffixes.is_empty() || !self.prefixes.is_empty()
    }

    /// Returns the site with the longest matching suffix of this host, or else with the longest matching start.
    fn find_pattern(&self, host: &[u8]) -> Option<&S> {
        self.find_suffix(host).or_else(|| self.find_prefix(host))
    }

    fn find_prefix(&self, host: &[u8]) -> Option<&S> {
        if self.prefixes.is_empty() {
            return None;
        }
        let dots = host.iter().enumerate().rev().skip(1).filter(|(_, byte)| **byte == b'.');
        dots.map(|(at, _)| &host[..=at]).find_map(|prefix| self.prefixes.get(prefix))
    }

    /// Returns the site with the longest matching suffix of this host.
    fn find_suffix(&self, host: &[u8]) -> Option<&S> {
        if self.suffixes.is_empty() {
            return None;
        }
        let dots = host.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'.');
        dots.map(|(at, _)| &host[at..]).find_map(|suffix| self.suffixes.get(suffix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn hosts() {
        let names: [(&[HostPattern], bool); 6] = [
            (&[HostPattern::Exact("a.example".into())], false),
            (&[HostPattern::Suffix(".example".into())], false),
            (&[HostPattern::Suffix(".b.example".into())], false),
            (&[HostPattern::Exact("fallback".into())], true),
            (&[HostPattern::Prefix("www.".into())], false),
            (&[HostPattern::Prefix("www.shop.".into())], false),
        ];
        let configs: Vec<_> = names
            .iter()
            .map(|(names, default)| config::SiteConfig {
                names: names.to_vec(),
                default: *default,
                ..Default::default()
            })
            .collect();
        let sites: Vec<_> = configs
            .iter()
            .map(|config| {
                Rc::new(Site::new(SiteSetup {
                    ftp: None,
                    gate: None,
                    config,
                    handlers: Vec::new(),
                    error_pages: ErrorPages::default(),
                    default_pages: Rc::default(),
                    pace: None,
                    encoders: Rc::new(Encoders::without_store()),
                    rules: None,
                    log: None,
                    server_log: ServerLog::stderr(crate::config::LogLevel::Error),
                    counted: NameSlot::NONE,
                    tls: None,
                }))
            })
            .collect();
        let mut hosts = Hosts::default();
        configs.iter().zip(&sites).for_each(|(config, site)| hosts.add(config, site));
        for (host, expect) in [
            ("a.example", 0),
            ("c.example", 1),
            ("b.example", 1),
            ("c.d.example", 1),
            ("c.b.example", 2),
            ("example", 3),
            (".example", 3),
            ("", 3),
            ("other", 3),
            ("www.other", 4),
            ("www.shop.other", 5),
            ("www.shop", 4),
            ("www.", 3),
            ("www.d.example", 1),
        ] {
            let found = hosts.find(host.as_bytes()).unwrap();
            assert!(Rc::ptr_eq(found, &sites[expect]), "{host}");
        }
    }
}
