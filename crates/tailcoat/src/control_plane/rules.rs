//! Rules of routes on the listeners of an address: an index, and the sites that it leads to.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use routes::{
    Filter, Listener, Match, Regexes, Route, RouteTable, Rule, Snapshot, TableEntry, intersection, is_valid_hostname,
};

use super::rule::{KnownOptions, RulePlace, depends_on_listener, depends_on_path, policy_options, responds, site_of};
use super::translate::ListenerGroup;
use crate::config::{HostPattern, ListenerRules, SiteConfig, UpstreamConfig, WeightedSites};

/// Site of a rule within its route: positions of rule, match and backend, and the listener if it matters.
type SiteKey = (usize, Option<usize>, Option<usize>, Option<(&'static str, u16)>);

/// A route, with the sites of its rules.
#[derive(Default)]
pub(super) struct RouteUnit {
    pub(super) listeners: Vec<String>,
    /// Backends that the route names.
    pub(super) backends: Vec<String>,
    pub(super) sites: BTreeMap<SiteKey, Arc<SiteConfig>>,
    /// Sites of the route as it was before.
    pub(super) before: BTreeMap<SiteKey, Arc<SiteConfig>>,
    /// Upstreams that options name by URL.
    pub(super) upstreams: Vec<Arc<UpstreamConfig>>,
    /// First error.
    pub(super) error: Option<String>,
    /// First error of the options of policies.
    pub(super) options_error: Option<String>,
}

/// Listeners of an address, and what their rules depend on.
#[derive(Clone, Copy)]
pub(super) struct RulesPlace<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) is_backend: &'a dyn Fn(&str) -> bool,
    pub(super) group: &'a ListenerGroup,
}

/// Builds the rules of an address.
pub(super) struct RulesBuilder<'a> {
    place: RulesPlace<'a>,
    routes: &'a mut BTreeMap<String, RouteUnit>,
    regexes: &'a mut Regexes,
    options: &'a mut KnownOptions,
    targets: Vec<WeightedSites>,
    /// Target of each rule, or of each match of those that depend on the path; `None` if it has an error.
    known_targets: HashMap<(&'a str, usize, Option<usize>), Option<u32>>,
    sites: Vec<Arc<SiteConfig>>,
    /// Positions in `sites`.
    positions: HashMap<*const SiteConfig, usize>,
    entries: Vec<TableEntry<'a>>,
    built: usize,
}

/// A rule of a route.
#[derive(Clone, Copy)]
struct PlacedRule<'a> {
    name: &'a str,
    at: usize,
    rule: &'a Rule,
}

impl RouteUnit {
    /// A route without sites. Those of `before` that stay are used again.
    pub(super) fn new(route: &Route, before: Option<Self>) -> Self {
        let mut backends: Vec<String> = route.rules.iter().flat_map(backends_of).map(str::to_owned).collect();
        backends.sort();
        backends.dedup();
        let before = before.map(|before| before.sites).unwrap_or_default();
        Self { listeners: route.listeners.clone(), backends, before, ..Self::default() }
    }
}

/// Backends that a rule names, some of them twice.
fn backends_of(rule: &Rule) -> impl Iterator<Item = &str> {
    let filters = rule.filters.iter().chain(rule.backends.iter().flat_map(|backend| &backend.filters));
    let of_filters = filters.filter_map(|filter| match filter {
        Filter::Mirror(mirror) => Some(mirror.backend.as_str()),
        Filter::ExternalAuth(auth) => Some(auth.backend.as_str()),
        _ => None,
    });
    rule.backends.iter().map(|backend| backend.backend.as_str()).chain(of_filters)
}

impl<'a> RulesBuilder<'a> {
    pub(super) fn new(
        place: RulesPlace<'a>,
        routes: &'a mut BTreeMap<String, RouteUnit>,
        regexes: &'a mut Regexes,
        options: &'a mut KnownOptions,
    ) -> Self {
        Self {
            place,
            routes,
            regexes,
            options,
            targets: Vec::new(),
            known_targets: HashMap::new(),
            sites: Vec::new(),
            positions: HashMap::new(),
            entries: Vec::new(),
            built: 0,
        }
    }

    /// Number of sites that no translation before has had.
    pub(super) fn built(&self) -> usize {
        self.built
    }

    /// Adds the rules of the routes of a listener.
    pub(super) fn add_listener(&mut self, listener: &str, routes: impl Iterator<Item = &'a String>) {
        let snapshot = self.place.snapshot;
        let Some((listener_name, listener)) = snapshot.listeners.get_key_value(listener) else { return };
        for (name, route) in routes.filter_map(|name| snapshot.routes.get_key_value(name)) {
            let hostnames = hostnames(listener, route);
            if hostnames.is_empty() {
                self.fail(name, || format!("no host name is also one of the listener {listener_name}"));
            }
            for (at, rule) in route.rules.iter().enumerate() {
                self.add_rule(PlacedRule { name, at, rule }, route.created, listener, &hostnames);
            }
        }
    }

    /// The rules.
    ///
    /// # Errors
    /// A match is not valid.
    pub(super) fn finish(self) -> Result<ListenerRules, String> {
        let snapshot = self.place.snapshot;
        let listeners = self.place.group.listeners.iter().filter_map(|name| snapshot.listeners.get(name));
        let hostnames = listeners.map(|listener| listener.hostname.as_deref());
        let mut table = RouteTable::new(hostnames, self.entries, self.regexes)?;
        for stream in self.place.group.streams.iter().filter_map(|name| snapshot.listeners.get(name)) {
            table.add_stream_listener(stream.hostname.as_deref());
        }
        Ok(ListenerRules { table, targets: self.targets, sites: self.sites })
    }

    /// Notes an error of a route; the first counts.
    fn fail(&mut self, route: &str, reason: impl FnOnce() -> String) {
        if let Some(unit) = self.routes.get_mut(route) {
            unit.error.get_or_insert_with(reason);
        }
    }

    fn add_rule(
        &mut self,
        placed: PlacedRule<'a>,
        created: i64,
        listener: &'a Listener,
        hostnames: &[Option<&'a str>],
    ) {
        static ANY: Match = Match { path: None, method: None, headers: Vec::new(), query: Vec::new(), grpc: None };
        let PlacedRule { name, at, rule } = placed;
        let matches = if rule.matches.is_empty() { std::slice::from_ref(&ANY) } else { rule.matches.as_slice() };
        let filters = rule.filters.iter().chain(rule.backends.iter().flat_map(|backend| &backend.filters));
        let depends = depends_on_path(&filters.collect::<Vec<_>>());
        for (position, of) in matches.iter().enumerate() {
            if let Err(reason) = of.check(self.regexes) {
                self.fail(name, || format!("rule {at}: {reason}"));
                continue;
            }
            let key = (name, at, depends.then_some(position));
            let target = match self.known_targets.get(&key) {
                Some(target) => *target,
                None => {
                    let target = self.target(placed, depends.then_some((position, of)));
                    self.known_targets.insert(key, target);
                    target
                }
            };
            let Some(target) = target else { continue };
            self.entries.extend(hostnames.iter().map(|hostname| TableEntry {
                listener: listener.hostname.as_deref(),
                hostname: *hostname,
                of,
                age: (created, name),
                position: (at, position),
                target,
            }));
        }
    }

    /// Adds the sites of a rule, by the weight of their backends; `None` if a filter is not valid.
    fn target(&mut self, placed: PlacedRule<'a>, matched: Option<(usize, &'a Match)>) -> Option<u32> {
        let mut target = WeightedSites::default();
        let rule = placed.rule;
        let own_response = rule.filters.iter().any(responds) || rule.error.is_some();
        let used = rule.backends.iter().enumerate().filter(|(_, backend)| backend.weight > 0 && !own_response);
        let used: Vec<_> = used.map(|(index, backend)| (Some(index), backend.weight)).collect();
        let used = if used.is_empty() { vec![(None, 1)] } else { used };
        for (backend, weight) in used {
            let site = self.site(placed, matched, backend)?;
            let next = self.sites.len();
            let position = *self.positions.entry(Arc::as_ptr(&site)).or_insert(next);
            if position == next {
                self.sites.push(site);
            }
            target.push(weight, position);
        }
        self.targets.push(target);
        Some((self.targets.len() - 1) as u32)
    }

    /// Site of a rule with one of its backends; `None` if a filter is not valid.
    fn site(
        &mut self,
        PlacedRule { name, at, rule }: PlacedRule<'a>,
        matched: Option<(usize, &'a Match)>,
        backend: Option<usize>,
    ) -> Option<Arc<SiteConfig>> {
        let RulesPlace { is_backend, group, .. } = self.place;
        let backend_ref = backend.and_then(|index| rule.backends.get(index));
        let filters: Vec<&Filter> =
            rule.filters.iter().chain(backend_ref.iter().flat_map(|backend| &backend.filters)).collect();
        let listener = depends_on_listener(&filters).then_some((group.scheme, group.port));
        let key = (at, matched.map(|(position, _)| position), backend, listener);
        let unit = self.routes.get_mut(name)?;
        if let Some(site) = unit.sites.get(&key) {
            return Some(Arc::clone(site));
        }
        let place = RulePlace {
            path: matched.and_then(|(_, of)| of.path.as_ref()),
            scheme: group.scheme,
            port: group.port,
            is_backend,
        };
        let named = backend_ref.map(|backend| backend.backend.as_str());
        let usable = named.filter(|name| is_backend(name));
        let options = match policy_options(rule, self.options) {
            Ok(options) => options,
            Err(reason) => {
                unit.error.get_or_insert_with(|| format!("rule {at}: {reason}"));
                unit.options_error.get_or_insert(reason);
                return None;
            }
        };
        let (mut site, upstreams) = match site_of(rule, &filters, usable, &place, &options) {
            Ok(made) => made,
            Err(reason) => {
                unit.error.get_or_insert_with(|| format!("rule {at}: {reason}"));
                return None;
            }
        };
        if let Some(named) = named.filter(|_| usable.is_none()) {
            unit.error.get_or_insert_with(|| format!("rule {at}: there is no backend {named}"));
        }
        for upstream in upstreams {
            let is_known = is_backend(&upstream.name) || unit.upstreams.iter().any(|of| of.name == upstream.name);
            if !is_known {
                unit.upstreams.push(Arc::new(upstream));
            }
        }
        site.names = vec![HostPattern::Exact(site_name(name, key))];
        let site = match unit.before.remove(&key).filter(|before| **before == site) {
            Some(before) => before,
            None => {
                self.built += 1;
                Arc::new(site)
            }
        };
        unit.sites.insert(key, Arc::clone(&site));
        Some(site)
    }
}

/// Name of a rule's site, in metrics and logs: no other site has it.
fn site_name(route: &str, (rule, matched, backend, listener): SiteKey) -> String {
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
