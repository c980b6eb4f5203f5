//! Translates a snapshot to sites and upstreams. What a change does not touch stays as it was translated before.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use routes::{Change, Listener, Protocol, Regexes, Snapshot};

use super::parts::{PartFiles, addresses_of, listener_site, servers_of, upstream};
use super::rule::{KnownOptions, upstream_of};
use super::rules::{RouteUnit, RulesBuilder, RulesPlace};
use super::state::{PemFiles, RouteState};
use super::streams::stream_listeners;
use crate::config::{Listen, ListenerRules, RouteParts, SiteConfig, UpstreamConfig, UpstreamServer};
use crate::stream_proxy::StreamListener;

/// Regular expressions and texts of options that are kept, at most. Beyond that they are compiled and read again.
const COMPILED_MAX: usize = 20_000;

/// Translates snapshots, one after another. It keeps the last translation, and what is slow to compile.
#[derive(Default)]
pub(super) struct Translator {
    regexes: Regexes,
    options: KnownOptions,
    number: u64,
    /// Last translation; `None` translates everything.
    known: Option<Translation>,
    /// Changes since then.
    changed: ChangedNames,
}

/// Result of a translation.
pub(super) struct TranslatedRoutes {
    /// Sites and upstreams.
    pub(crate) parts: RouteParts,
    /// Listeners for connections and datagrams; `None` if they stay.
    pub(crate) streams: Option<Vec<StreamListener>>,
    /// Errors by kind and name, as in [`routes::Applied::errors`].
    pub(crate) errors: BTreeMap<String, String>,
    /// Files that may be missing.
    pub(super) pem: PemFiles,
    /// All files in use; `None` if they stay.
    pub(super) files_in_use: Option<HashSet<PathBuf>>,
}

/// Names of what has changed since the last translation.
#[derive(Debug, Default)]
struct ChangedNames {
    listeners: BTreeSet<String>,
    routes: BTreeSet<String>,
    backends: BTreeSet<String>,
    endpoints: BTreeSet<String>,
    has_stream_routes: bool,
}

/// A translation, in the parts that a later one reuses.
#[derive(Default)]
struct Translation {
    backends: BTreeMap<String, TranslatedBackend>,
    /// Backends that have more endpoints than are used.
    overfull: BTreeSet<String>,
    listeners: BTreeMap<String, TranslatedListener>,
    listener_errors: BTreeMap<String, String>,
    /// Addresses that were left out.
    unusable: HashMap<SocketAddr, String>,
    groups: BTreeMap<SocketAddr, TranslatedGroup>,
    routes: BTreeMap<String, RouteUnit>,
    /// Routes by the listeners that they name, whether there are such or not.
    attached: HashMap<String, BTreeSet<String>>,
    /// Routes by the backends that they name.
    users: HashMap<String, BTreeSet<String>>,
    stream_errors: BTreeMap<String, String>,
}

struct TranslatedBackend {
    upstream: Result<Arc<UpstreamConfig>, String>,
    /// True if the error is one of the options.
    is_options_error: bool,
    files: Vec<PathBuf>,
}

struct TranslatedListener {
    /// Site without addresses.
    base: Result<SiteConfig, String>,
    /// Site with addresses; `None` if none can be used.
    site: Option<Arc<SiteConfig>>,
    files: Vec<PathBuf>,
}

struct TranslatedGroup {
    members: ListenerGroup,
    rules: Arc<ListenerRules>,
}

/// Listeners of an address.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
pub(super) struct ListenerGroup {
    pub(super) port: u16,
    pub(super) scheme: &'static str,
    pub(super) listeners: Vec<String>,
    /// Listeners for TLS whose connections are not for HTTP.
    pub(super) streams: Vec<String>,
}

impl ChangedNames {
    fn all_of(snapshot: &Snapshot) -> Self {
        Self {
            listeners: snapshot.listeners.keys().cloned().collect(),
            routes: snapshot.routes.keys().cloned().collect(),
            backends: snapshot.backends.keys().cloned().collect(),
            endpoints: snapshot.endpoints.keys().cloned().collect(),
            has_stream_routes: true,
        }
    }

    fn add(&mut self, change: &Change) {
        self.listeners.extend(change.listeners.keys().cloned());
        self.routes.extend(change.routes.keys().cloned());
        self.backends.extend(change.backends.keys().cloned());
        self.endpoints.extend(change.endpoints.keys().cloned());
        self.has_stream_routes |= !change.stream_routes.is_empty();
    }
}

impl Translator {
    /// Notes a change of the snapshot for the next translation.
    pub(super) fn note(&mut self, change: &Change) {
        if self.known.is_some() {
            self.changed.add(change);
        }
    }

    /// Forgets the last translation, because the server does not serve by it.
    pub(super) fn forget(&mut self) {
        (self.known, self.changed) = (None, ChangedNames::default());
    }

    /// Translates a snapshot. Addresses in `unusable` are left out, because they cannot be bound.
    pub(super) fn translate(
        &mut self,
        snapshot: &Snapshot,
        state: &RouteState,
        unusable: &HashMap<SocketAddr, String>,
    ) -> TranslatedRoutes {
        self.number += 1;
        if self.regexes.count() > COMPILED_MAX {
            self.regexes = Regexes::default();
        }
        if self.options.len() > COMPILED_MAX {
            self.options.clear();
        }
        let changed = std::mem::take(&mut self.changed);
        let (known, changed) = match self.known.take() {
            Some(known) => (known, changed),
            None => (Translation::default(), ChangedNames::all_of(snapshot)),
        };
        let mut work =
            Work { snapshot, known, changed, pem: state.pem_files(), changed_groups: BTreeSet::new(), built: 0 };
        let servers = work.translate_backends();
        let is_regrouped = work.translate_listeners(unusable);
        work.translate_routes();
        work.build_rules(&mut self.regexes, &mut self.options);
        let streams = work.translate_streams(is_regrouped);
        let files_in_use = work.files_in_use();
        let Work { known, pem, built, .. } = work;
        let parts = RouteParts { number: self.number, servers, built, ..known.parts() };
        let errors = known.errors();
        self.known = Some(known);
        TranslatedRoutes { parts, streams, errors, pem, files_in_use }
    }
}

struct Work<'a> {
    snapshot: &'a Snapshot,
    known: Translation,
    changed: ChangedNames,
    pem: PemFiles,
    /// Addresses whose rules must be built.
    changed_groups: BTreeSet<SocketAddr>,
    built: usize,
}

impl Work<'_> {
    /// Translates backends that have changed. Returns the servers of those that the server may not have yet.
    fn translate_backends(&mut self) -> HashMap<String, Arc<[UpstreamServer]>> {
        let mut servers = HashMap::new();
        for name in self.changed.backends.iter().chain(&self.changed.endpoints) {
            let count = self.snapshot.endpoints.get(name).map_or(0, Vec::len);
            match self.snapshot.backends.contains_key(name) && count > UpstreamConfig::SERVERS_MAX {
                true => _ = self.known.overfull.insert(name.clone()),
                false => _ = self.known.overfull.remove(name),
            }
        }
        for name in &self.changed.backends {
            let before = self.known.backends.remove(name).and_then(|before| before.upstream.ok());
            let after = self.snapshot.backends.get(name).map(|backend| {
                let mut files = PartFiles { pem: &mut self.pem, used: Vec::new() };
                let options = upstream_of(name, &backend.options);
                let is_options_error = options.is_err();
                let upstream = options.and_then(|options| upstream(options, backend, &mut files));
                let endpoints = self.snapshot.endpoints.get(name).map_or(&[][..], Vec::as_slice);
                servers.insert(name.clone(), servers_of(backend, endpoints).into());
                let same = |new: &UpstreamConfig| before.as_ref().filter(|before| ***before == *new);
                let upstream = upstream.map(|new| same(&new).map_or_else(|| Arc::new(new), Arc::clone));
                TranslatedBackend { upstream, is_options_error, files: files.used }
            });
            // Rules say whether their backends exist.
            if before.is_some() != after.as_ref().is_some_and(|after| after.upstream.is_ok()) {
                self.changed.routes.extend(self.known.users.get(name).into_iter().flatten().cloned());
            }
            if let Some(after) = after {
                self.known.backends.insert(name.clone(), after);
            }
        }
        servers
    }

    /// Translates listeners that have changed, and groups all by address. Returns true if there are new groups.
    fn translate_listeners(&mut self, unusable: &HashMap<SocketAddr, String>) -> bool {
        if self.changed.listeners.is_empty() && self.known.unusable == *unusable {
            return false;
        }
        self.known.unusable.clone_from(unusable);
        let is_http = |listener: &&Listener| listener.protocol.is_http();
        for name in &self.changed.listeners {
            self.changed.routes.extend(self.known.attached.get(name).into_iter().flatten().cloned());
            self.known.listeners.remove(name);
            if let Some(listener) = self.snapshot.listeners.get(name).filter(is_http) {
                let mut files = PartFiles { pem: &mut self.pem, used: Vec::new() };
                let base = listener_site(listener, &mut files);
                self.known.listeners.insert(name.clone(), TranslatedListener { base, site: None, files: files.used });
            }
        }
        let mut before = std::mem::take(&mut self.known.groups);
        for (address, members) in self.group_listeners() {
            let is_same = |before: &TranslatedGroup| before.members == members;
            let mut all = members.listeners.iter().chain(&members.streams);
            let has_changed = all.any(|name| self.changed.listeners.contains(name));
            let rules = match before.remove(&address).filter(|before| !has_changed && is_same(before)) {
                Some(before) => before.rules,
                None => {
                    self.changed_groups.insert(address);
                    Arc::default()
                }
            };
            self.known.groups.insert(address, TranslatedGroup { members, rules });
        }
        true
    }

    /// Groups listeners by address, and gives each site its addresses.
    fn group_listeners(&mut self) -> BTreeMap<SocketAddr, ListenerGroup> {
        let snapshot = self.snapshot;
        let (built, Translation { listeners, listener_errors, unusable, attached, .. }) =
            (&mut self.built, &mut self.known);
        listener_errors.clear();
        // The first reason counts.
        let mut fail = |name: &str, reason: String| _ = listener_errors.entry(name.to_owned()).or_insert(reason);
        let mut groups: BTreeMap<SocketAddr, ListenerGroup> = BTreeMap::new();
        let mut hostnames: HashSet<(SocketAddr, Option<&str>)> = HashSet::new();
        for (name, translated) in listeners {
            // Local invariant: changed names were translated again.
            let Some(listener) = snapshot.listeners.get(name) else { continue };
            let base = match &translated.base {
                Ok(base) => base,
                Err(reason) => {
                    fail(name, reason.clone());
                    continue;
                }
            };
            let scheme = if listener.protocol == Protocol::Https { "https" } else { "http" };
            let mut listen = Vec::new();
            for address in addresses_of(listener) {
                if let Some(reason) = unusable.get(&address) {
                    fail(name, reason.clone());
                    continue;
                }
                let new = || ListenerGroup { port: address.port(), scheme, listeners: Vec::new(), streams: Vec::new() };
                let group = groups.entry(address).or_insert_with(new);
                if group.scheme != scheme {
                    fail(name, format!("another listener of {address} has another protocol"));
                } else if !hostnames.insert((address, listener.hostname.as_deref())) {
                    fail(name, format!("another listener of {address} has the same host name"));
                } else {
                    group.listeners.push(name.clone());
                    listen.push(Listen::Tcp(address));
                }
            }
            let before = translated.site.take();
            if before.as_ref().map_or(&[][..], |site| &site.listen) != listen {
                // Its routes have sites and errors by the addresses that it has.
                self.changed.routes.extend(attached.get(name).into_iter().flatten().cloned());
            }
            translated.site = match before.filter(|site| site.listen == listen) {
                None if listen.is_empty() => None,
                None => {
                    *built += 1;
                    let tls_listen = if scheme == "https" { listen.clone() } else { Vec::new() };
                    Some(Arc::new(SiteConfig { listen, tls_listen, ..base.clone() }))
                }
                known => known,
            };
        }
        let is_stream = |listener: &Listener| listener.protocol.is_tls() && !listener.protocol.is_http();
        for (name, listener) in snapshot.listeners.iter().filter(|(_, listener)| is_stream(listener)) {
            for address in addresses_of(listener) {
                let Some(group) = groups.get_mut(&address).filter(|group| group.scheme == "https") else { continue };
                if hostnames.insert((address, listener.hostname.as_deref())) {
                    group.streams.push(name.clone());
                } else {
                    fail(name, format!("another listener of {address} has the same host name"));
                }
            }
        }
        groups
    }

    /// Prepares routes that have changed, and finds the addresses whose rules they change.
    fn translate_routes(&mut self) {
        let snapshot = self.snapshot;
        let Translation { routes, attached, users, groups, .. } = &mut self.known;
        let remove = |of: &mut HashMap<String, BTreeSet<String>>, key: &str, name: &str| {
            let Some(names) = of.get_mut(key) else { return };
            names.remove(name);
            if names.is_empty() {
                of.remove(key);
            }
        };
        for name in &self.changed.routes {
            let before = routes.remove(name);
            let route = snapshot.routes.get(name);
            for listener in before.iter().flat_map(|before| &before.listeners) {
                remove(attached, listener, name);
            }
            for backend in before.iter().flat_map(|before| &before.backends) {
                remove(users, backend, name);
            }
            let of_before = before.iter().flat_map(|before| &before.listeners);
            for listener in of_before.chain(route.iter().flat_map(|route| &route.listeners)) {
                let addresses = snapshot.listeners.get(listener).map(addresses_of).unwrap_or_default();
                self.changed_groups.extend(addresses.into_iter().filter(|address| groups.contains_key(address)));
            }
            let Some(route) = route else { continue };
            let mut unit = RouteUnit::new(route, before);
            for listener in &unit.listeners {
                if !snapshot.listeners.get(listener).is_some_and(|listener| listener.protocol.is_http()) {
                    unit.error.get_or_insert_with(|| format!("there is no listener {listener} for HTTP"));
                }
                attached.entry(listener.clone()).or_default().insert(name.clone());
            }
            for backend in &unit.backends {
                users.entry(backend.clone()).or_default().insert(name.clone());
            }
            routes.insert(name.clone(), unit);
        }
    }

    /// Builds the rules of addresses whose listeners or routes have changed.
    fn build_rules(&mut self, regexes: &mut Regexes, options: &mut KnownOptions) {
        let Translation { backends, routes, attached, groups, listener_errors, .. } = &mut self.known;
        let is_backend = |name: &str| backends.get(name).is_some_and(|backend| backend.upstream.is_ok());
        // Addresses with the same listeners share their rules.
        let mut built: BTreeMap<ListenerGroup, Arc<ListenerRules>> = BTreeMap::new();
        for address in &self.changed_groups {
            let Some(group) = groups.get_mut(address) else { continue };
            if let Some(rules) = built.get(&group.members) {
                group.rules = Arc::clone(rules);
                continue;
            }
            let place = RulesPlace { snapshot: self.snapshot, is_backend: &is_backend, group: &group.members };
            let mut builder = RulesBuilder::new(place, routes, regexes, options);
            for listener in &group.members.listeners {
                builder.add_listener(listener, attached.get(listener).into_iter().flatten());
            }
            self.built += builder.built();
            match builder.finish() {
                Ok(rules) => group.rules = Arc::new(rules),
                // Local invariant: each match was checked.
                Err(reason) => {
                    let name = group.members.listeners.first().cloned().unwrap_or_default();
                    listener_errors.entry(name).or_insert(reason);
                    group.rules = Arc::default();
                }
            }
            built.insert(group.members.clone(), Arc::clone(&group.rules));
        }
        for name in &self.changed.routes {
            routes.entry(name.clone()).and_modify(|unit| unit.before.clear());
        }
    }

    /// Translates listeners for connections and datagrams, unless they stay.
    fn translate_streams(&mut self, is_regrouped: bool) -> Option<Vec<StreamListener>> {
        if !is_regrouped && !self.changed.has_stream_routes && self.changed.backends.is_empty() {
            return None;
        }
        let groups = self.known.groups.iter();
        let taken = groups.map(|(address, group)| (*address, group.members.scheme == "https")).collect();
        self.known.stream_errors.clear();
        Some(stream_listeners(self.snapshot, &taken, &mut self.known.stream_errors))
    }

    /// All files of certificates and CAs; `None` if no change can have removed one.
    fn files_in_use(&self) -> Option<HashSet<PathBuf>> {
        if self.changed.listeners.is_empty() && self.changed.backends.is_empty() {
            return None;
        }
        let of_backends = self.known.backends.values().flat_map(|backend| &backend.files);
        let of_listeners = self.known.listeners.values().flat_map(|listener| &listener.files);
        Some(of_backends.chain(of_listeners).cloned().collect())
    }
}

impl Translation {
    /// Sites, upstreams and rules.
    fn parts(&self) -> RouteParts {
        let of_listeners = self.listeners.values().filter_map(|listener| listener.site.as_ref());
        let of_rules = self.routes.values().flat_map(|unit| unit.sites.values());
        let backends = self.backends.values().filter_map(|backend| backend.upstream.as_ref().ok());
        let mut upstreams: Vec<_> = backends.cloned().collect();
        let mut names: HashSet<&str> = HashSet::new();
        let named_by_options = self.routes.values().flat_map(|unit| &unit.upstreams);
        upstreams.extend(named_by_options.filter(|upstream| names.insert(&upstream.name)).cloned());
        let listeners = self.groups.iter().map(|(address, group)| (Listen::Tcp(*address), Arc::clone(&group.rules)));
        RouteParts {
            sites: of_listeners.chain(of_rules).cloned().collect(),
            upstreams,
            listeners: listeners.collect(),
            ..RouteParts::default()
        }
    }

    /// Errors by kind and name.
    fn errors(&self) -> BTreeMap<String, String> {
        let mut errors = BTreeMap::new();
        for (name, backend) in &self.backends {
            let Err(reason) = &backend.upstream else { continue };
            errors.insert(format!("backend/{name}"), reason.clone());
            if backend.is_options_error {
                errors.insert(format!("backend-options/{name}"), reason.clone());
            }
        }
        for name in &self.overfull {
            errors.entry(format!("backend/{name}")).or_insert_with(too_many_endpoints);
        }
        let listeners = self.listener_errors.iter();
        errors.extend(listeners.map(|(name, reason)| (format!("listener/{name}"), reason.clone())));
        let routes = self.routes.iter().filter_map(|(name, unit)| Some((name, unit.error.as_ref()?)));
        errors.extend(routes.map(|(name, reason)| (format!("route/{name}"), reason.clone())));
        let options = self.routes.iter().filter_map(|(name, unit)| Some((name, unit.options_error.as_ref()?)));
        errors.extend(options.map(|(name, reason)| (format!("route-options/{name}"), reason.clone())));
        for (key, reason) in &self.stream_errors {
            errors.entry(key.clone()).or_insert_with(|| reason.clone());
        }
        errors
    }
}

/// Error of a backend that has more endpoints than are used.
pub(super) fn too_many_endpoints() -> String {
    format!("only the first {} endpoints are used", UpstreamConfig::SERVERS_MAX)
}
