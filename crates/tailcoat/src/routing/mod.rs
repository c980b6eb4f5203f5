//! From a request to its answer: host and path find the site, its rules say what is done with it, and its handlers have it
//! in turn.

mod bans;
mod filters;
mod local_redirects;
mod ruled;
pub mod rules;
mod site;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;

pub use self::bans::{Bans, TooManyBans};
use self::rules::{AllRules, RequestIds, Rules, TrustedProxies, Visit};
use self::site::Site;
use crate::config::HostPattern;
use crate::handler::{ErrorPages, Handler, OwnedRequest, Response, Routed};
use crate::log::{Client, LogId, ServerLog};
use crate::metrics::NameSlot;
use crate::tls::Validations;
use crate::traces::{Trace, Tracer};

/// An answer that has to be waited for.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Response>>>;

/// What a site says to a request.
pub enum Answer {
    /// At once.
    Ready(Response, Account),
    /// Later. The request is kept for as long.
    Wait(ResponseFuture, Rc<OwnedRequest>, Account),
}

/// What is kept of a request until its response is sent.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Where it is logged.
    pub log: Option<LogId>,
    /// Where it is counted.
    pub counted: NameSlot,
    /// What rules found out about it. What it counts for in their limits ends with this.
    pub visit: Option<Rc<Visit>>,
    /// Its place in a trace, if traces are kept.
    pub trace: Option<Rc<Trace>>,
}

/// A site, as it is given to a router.
pub struct SiteSetup<'a> {
    /// Its configuration.
    pub config: &'a crate::config::Site,
    /// Its routes' handlers, in the order of the configuration.
    pub handlers: Vec<Handler>,
    /// Its pages for errors.
    pub error_pages: ErrorPages,
    /// Its rules, if it has any.
    pub rules: Option<Rules>,
    /// Where its requests are logged.
    pub log: Option<LogId>,
    /// Where is said why requests were refused.
    pub server_log: ServerLog,
    /// Where its requests are counted.
    pub counted: NameSlot,
    /// Its TLS, if it has any: [`SiteTls::id`](crate::tls::SiteTls::id).
    pub tls: Option<u32>,
}

/// All sites, by listener. Each worker has its own.
pub struct Router {
    /// By their numbers.
    listeners: Vec<Rc<Hosts>>,
    /// If proxies are trusted.
    trusting: Option<Trusting>,
    /// If certificates are automatic: what authorities ask for.
    validations: Option<Arc<Validations>>,
    /// Clients that are kept out.
    bans: Arc<Bans>,
    /// If traces are kept.
    tracing: Option<(Arc<Tracer>, Rc<RequestIds>)>,
}

/// The proxies whose word is taken.
struct Trusting {
    rules: Arc<AllRules>,
    ids: Rc<RequestIds>,
}

/// The sites of a listener.
#[derive(Default)]
struct Hosts {
    exact: HashMap<Box<[u8]>, Rc<Site>>,
    /// By the suffix with its leading dot.
    suffixes: HashMap<Box<[u8]>, Rc<Site>>,
    default: Option<Rc<Site>>,
}

impl Router {
    /// A router for these sites. `listeners` has for each listener the indices of the sites that use it.
    pub fn new(setups: Vec<SiteSetup<'_>>, listeners: &[Vec<usize>]) -> Self {
        let configs: Vec<_> = setups.iter().map(|setup| setup.config).collect();
        let sites: Vec<_> = setups.into_iter().map(|setup| Rc::new(Site::new(setup))).collect();
        let listeners = listeners
            .iter()
            .map(|indices| {
                let mut hosts = Hosts::default();
                indices.iter().for_each(|&index| hosts.add(configs[index], &sites[index]));
                Rc::new(hosts)
            })
            .collect();
        Self { listeners, trusting: None, validations: None, bans: Arc::default(), tracing: None }
    }

    /// The router, taking the word of proxies, if any are trusted.
    pub fn trusting(mut self, rules: &Arc<AllRules>, ids: &Rc<RequestIds>) -> Self {
        let (rules, ids) = (Arc::clone(rules), Rc::clone(ids));
        self.trusting = rules.trusted_proxies.is_some().then_some(Trusting { rules, ids });
        self
    }

    /// Has the sites that another has for these listeners.
    pub fn keep(&mut self, listeners: impl Iterator<Item = usize>, before: &Self) {
        for listener in listeners {
            if let (Some(of), Some(hosts)) = (self.listeners.get_mut(listener), before.listeners.get(listener)) {
                *of = Rc::clone(hosts);
            }
        }
    }

    /// How many listeners there are.
    pub fn listener_count(&self) -> usize {
        self.listeners.len()
    }

    /// Whether this is a proxy whose word is taken.
    pub fn trusts(&self, client: Client) -> bool {
        self.trusted_proxies().is_some_and(|proxies| proxies.has(client))
    }

    fn trusted_proxies(&self) -> Option<&TrustedProxies> {
        self.trusting.as_ref().and_then(|trusting| trusting.rules.trusted_proxies.as_ref())
    }

    /// The router, answering authorities that want to see whether names are ours.
    pub fn validated(mut self, validations: Option<&Arc<Validations>>) -> Self {
        self.validations = validations.cloned();
        self
    }

    /// The router, keeping out those whom an operator has banned.
    pub fn banning(mut self, bans: &Arc<Bans>) -> Self {
        self.bans = Arc::clone(bans);
        self
    }

    /// The router, keeping traces, if they are to be kept.
    pub fn tracing(mut self, tracer: Option<&Arc<Tracer>>, ids: &Rc<RequestIds>) -> Self {
        self.tracing = tracer.map(|tracer| (Arc::clone(tracer), Rc::clone(ids)));
        self
    }

    /// Whether a client is banned.
    pub fn bans(&self, client: Client) -> bool {
        self.bans.has(client)
    }

    /// Answers a request that came to this listener.
    pub fn answer(&self, listener: u16, routed: &Routed<'_>) -> Answer {
        if let Some(trusting) = &self.trusting
            && let Some(trusted) = trusting.rules.trusted_proxies.as_ref()
            && trusted.has(routed.client)
        {
            let (client, proxied) = trusted.client(routed.client, &routed.request);
            let visit = Rc::new(Visit::new(client, &trusting.ids));
            return self
                .answer_traced(listener, &Routed { client, proxied: Some(proxied), ..*routed })
                .with_visit(visit);
        }
        self.answer_traced(listener, routed)
    }

    fn answer_traced(&self, listener: u16, routed: &Routed<'_>) -> Answer {
        let Some((tracer, ids)) = &self.tracing else { return self.answer_client(listener, routed) };
        let trace = Rc::new(tracer.begin(&routed.request, routed.proxied.is_some(), ids.numbers()));
        let mut answer = self.answer_client(listener, &Routed { trace: Some(&trace), ..*routed });
        answer.account_mut().trace = Some(trace);
        answer
    }

    fn answer_client(&self, listener: u16, routed: &Routed<'_>) -> Answer {
        if self.bans.has(routed.client) {
            return Answer::Ready(site::banned(routed), self.default_account(listener));
        }
        // Before all rules: an authority knows no password, and comes to whatever host it looks at.
        if let Some(content) = self.validations.as_ref().and_then(|all| all.response(routed.path)) {
            return Answer::Ready(site::validation(content), self.default_account(listener));
        }
        match self.listeners[usize::from(listener)].find(routed.host) {
            Some(site) if site.is_misdirected(routed) => {
                Answer::Ready(site::misdirected(routed), site.account_of(routed.path))
            }
            Some(site) => site.answer(routed),
            None => Answer::Ready(site::no_site(routed), Account::default()),
        }
    }

    /// Where is logged and counted what can't be read as a request.
    pub fn default_account(&self, listener: u16) -> Account {
        self.listeners[usize::from(listener)].default.as_ref().map_or_else(Account::default, |site| site.account())
    }
}

impl Answer {
    /// With this visit, if it has none of its own.
    fn with_visit(mut self, visit: Rc<Visit>) -> Self {
        self.account_mut().visit.get_or_insert(visit);
        self
    }

    fn account_mut(&mut self) -> &mut Account {
        let (Self::Ready(_, account) | Self::Wait(.., account)) = self;
        account
    }
}

impl Hosts {
    fn add(&mut self, config: &crate::config::Site, site: &Rc<Site>) {
        for name in &config.names {
            let (map, key) = match name {
                HostPattern::Exact(name) => (&mut self.exact, name),
                HostPattern::Suffix(suffix) => (&mut self.suffixes, suffix),
            };
            map.entry(key.as_bytes().into()).or_insert_with(|| Rc::clone(site));
        }
        // The first site takes what nobody names, unless another is said to.
        if config.default || self.default.is_none() {
            self.default = Some(Rc::clone(site));
        }
    }

    fn find(&self, host: &[u8]) -> Option<&Rc<Site>> {
        if self.exact.is_empty() && self.suffixes.is_empty() {
            return self.default.as_ref();
        }
        self.exact.get(host).or_else(|| self.find_suffix(host)).or(self.default.as_ref())
    }

    /// The site with the longest suffix of this host.
    fn find_suffix(&self, host: &[u8]) -> Option<&Rc<Site>> {
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
        let names: [(&[HostPattern], bool); 4] = [
            (&[HostPattern::Exact("a.example".into())], false),
            (&[HostPattern::Suffix(".example".into())], false),
            (&[HostPattern::Suffix(".b.example".into())], false),
            (&[HostPattern::Exact("fallback".into())], true),
        ];
        let configs: Vec<_> = names
            .iter()
            .map(|(names, default)| config::Site { names: names.to_vec(), default: *default, ..Default::default() })
            .collect();
        let sites: Vec<_> = configs
            .iter()
            .map(|config| {
                Rc::new(Site::new(SiteSetup {
                    config,
                    handlers: Vec::new(),
                    error_pages: ErrorPages::default(),
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
        ] {
            let found = hosts.find(host.as_bytes()).unwrap();
            assert!(Rc::ptr_eq(found, &sites[expect]), "{host}");
        }
    }
}
