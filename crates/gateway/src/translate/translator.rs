//! Translates what changes touch: routes, Gateways and policies whose resources, or those that they refer to, have changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use routes::Backend;

use super::addresses::{Addresses, GATEWAY_LABEL, service_key};
use super::attach::{RouteKind, parents, snapshot_name_parts, translate_route};
use super::backends::{self, Backends, TlsPolicies};
use super::gateways::{self, Gateways, ResolvedGateway, WrittenGateway};
use super::ingresses;
use super::policies::Policies;
use super::status::StatusCondition;
use super::{ChangedObjects, Context, Frame, TranslationChange, classes, service_endpoints};
use crate::objects::{Key, Kind, Objects, ParentRef};

/// Translates resources, and after that what changes touch. It keeps what of the last translation the next one needs.
#[derive(Default)]
pub(crate) struct ResourceTranslator {
    /// False before the first translation, which is one of all resources.
    is_started: bool,
    policies: Policies,
    tls_policies: TlsPolicies,
    tls_conditions: BTreeMap<Key, Vec<StatusCondition>>,
    gateways: Gateways,
    written_gateways: BTreeMap<Key, WrittenGateway>,
    routes: BTreeMap<RouteId, RouteUnit>,
    ingresses: IngressUnit,
    used: UsedBackends,
    users: Users,
    /// Errors of servers that statuses have.
    errors: BTreeMap<String, String>,
}

/// Kind and name of a route.
type RouteId = (RouteKind, Key);

/// Names of a route's parts in the translation, so that they can be taken out.
struct RouteUnit {
    parents: Vec<(bool, Key)>,
    routes: Vec<String>,
    stream_routes: Vec<String>,
    attached: BTreeSet<(Key, usize)>,
    uses: Uses,
}

/// Names of the Ingresses' parts in the translation.
#[derive(Default)]
struct IngressUnit {
    listeners: Vec<String>,
    routes: Vec<String>,
    statuses: Vec<Key>,
    uses: Uses,
}

/// Backends and services that a route uses.
#[derive(Default)]
struct Uses {
    backends: BTreeMap<Key, BTreeMap<String, u16>>,
    /// Gateways that forward to each service.
    gateways: BTreeMap<Key, BTreeSet<Key>>,
    /// Services that it names, whether there are such or not.
    named: BTreeSet<Key>,
}

/// Backends of all routes.
#[derive(Default)]
struct UsedBackends {
    backends: HashMap<String, UsedBackend>,
    by_service: BTreeMap<Key, BTreeMap<String, u16>>,
    /// Routes by service and Gateway that forwards to it.
    gateways: BTreeMap<Key, BTreeMap<Key, usize>>,
    /// Backends that routes have begun or ceased to use, by service.
    touched: BTreeMap<Key, BTreeMap<String, u16>>,
    /// True if Gateways have begun or ceased to forward to services.
    has_new_gateways: bool,
}

struct UsedBackend {
    backend: Backend,
    users: usize,
}

/// Routes by the resources that they name, whether there are such or not.
#[derive(Default)]
struct Users {
    of_gateways: HashMap<Key, BTreeSet<RouteId>>,
    of_sets: HashMap<Key, BTreeSet<RouteId>>,
    of_services: BTreeMap<Key, BTreeSet<RouteId>>,
}

/// Parts of the translation that must be made again.
#[derive(Default)]
struct Dirty {
    routes: BTreeSet<RouteId>,
    /// Gateways whose listeners, Services and statuses are written again.
    gateways: BTreeSet<Key>,
    /// Gateways whose statuses alone are written again.
    gateway_statuses: BTreeSet<Key>,
    has_ingresses: bool,
    has_policy_statuses: bool,
    has_tls_statuses: bool,
}

impl ResourceTranslator {
    /// Translates what has changed; all resources if this is the first translation.
    pub(crate) fn translate(
        &mut self,
        objects: &Objects,
        frame: &Frame<'_>,
        changed: &ChangedObjects,
    ) -> TranslationChange {
        let is_whole = !std::mem::replace(&mut self.is_started, true);
        let mut to = TranslationChange { is_whole, ..TranslationChange::default() };
        let mut dirty = Dirty::default();
        if is_whole {
            dirty.routes = all_routes(objects);
            (dirty.has_ingresses, dirty.has_policy_statuses, dirty.has_tls_statuses) = (true, true, true);
        }
        self.read_policies(objects, changed, is_whole, &mut dirty, &mut to);
        self.find_users(changed, &mut dirty);
        if is_whole || changed.has_errors {
            self.read_errors(frame.errors, &mut dirty);
        }
        let (policies, tls_policies) = (std::mem::take(&mut self.policies), std::mem::take(&mut self.tls_policies));
        let context = Context { objects, frame, policies: &policies, tls_policies: &tls_policies };
        let gateways = (is_whole || self.must_read_gateways(&context, changed))
            .then(|| self.read_gateways(&context, changed, &mut dirty, &mut to));
        for id in &dirty.routes {
            self.take_out_route(id, &mut dirty.gateway_statuses, &mut to);
        }
        if let Some(mut gateways) = gateways {
            for (key, gateway) in &mut gateways.all {
                if let Some(before) = self.gateways.all.remove(key).filter(|before| before.attaches_as(gateway)) {
                    gateway.attached = before.attached;
                }
            }
            self.gateways = gateways;
        }
        for id in &dirty.routes {
            self.put_in_route(&context, id, &mut dirty.gateway_statuses, &mut to);
        }
        let has_ingress_gateway = frame.ingress_gateway.is_some_and(|gateway| dirty.gateways.contains(gateway));
        if dirty.has_ingresses || has_ingress_gateway {
            self.translate_ingresses(&context, &mut to);
        }
        self.write_gateways(&context, changed, &dirty, &mut to);
        if dirty.has_policy_statuses {
            policies.write_statuses(&context, &self.gateways, &mut to);
        }
        self.used.write(objects, &mut to);
        if dirty.has_tls_statuses || std::mem::take(&mut self.used.has_new_gateways) {
            backends::write_tls_statuses(&context, &self.tls_conditions, &self.used.gateways, &mut to);
        }
        (self.policies, self.tls_policies) = (policies, tls_policies);
        to
    }

    /// Reads policies again if one has changed, or something that they depend on.
    fn read_policies(
        &mut self,
        objects: &Objects,
        changed: &ChangedObjects,
        is_whole: bool,
        dirty: &mut Dirty,
        to: &mut TranslationChange,
    ) {
        for kind in [Kind::TrafficPolicy, Kind::BackendTlsPolicy] {
            changed.of(kind).for_each(|key| to.remove_status(kind, key));
        }
        let is_target = |(kind, key): &(Kind, Key)| *kind == Kind::TrafficPolicy || self.policies.names(*kind, key);
        if is_whole || changed.objects.iter().any(is_target) {
            let policies = Policies::new(objects);
            for (kind, key) in self.policies.differences(&policies) {
                match Kind::named(kind) {
                    Some(Kind::Gateway) => dirty.routes.extend(self.routes_of_gateway(key)),
                    Some(Kind::Service) => self.note_service(key, dirty),
                    Some(kind) => dirty.routes.extend(RouteKind::of(kind).map(|kind| (kind, key.clone()))),
                    None => {}
                }
            }
            self.policies = policies;
            dirty.has_policy_statuses = true;
        }
        let of_tls = [Kind::BackendTlsPolicy, Kind::ConfigMap, Kind::Secret, Kind::ReferenceGrant];
        if is_whole || changed.has(&of_tls) {
            let (policies, conditions) = backends::tls_policies(objects);
            let targets: BTreeSet<_> = self.tls_policies.keys().chain(policies.keys()).collect();
            for target in targets {
                if self.tls_policies.get(target) != policies.get(target) {
                    self.note_service(&target.0, dirty);
                }
            }
            (self.tls_policies, self.tls_conditions) = (policies, conditions);
            dirty.has_tls_statuses = true;
        }
    }

    /// Finds what uses changed resources.
    fn find_users(&self, changed: &ChangedObjects, dirty: &mut Dirty) {
        for (kind, key) in &changed.objects {
            match kind {
                Kind::Service => self.note_service(key, dirty),
                Kind::ReferenceGrant => {
                    let of_namespace = self.users.of_services.range(Key::new(&key.namespace, "")..);
                    let of_namespace = of_namespace.take_while(|(service, _)| service.namespace == key.namespace);
                    dirty.routes.extend(of_namespace.flat_map(|(_, users)| users).cloned());
                    dirty.has_ingresses = true;
                }
                // Listeners select namespaces by their labels.
                Kind::Namespace => {
                    let of_namespace = self.routes.keys().filter(|(_, route)| route.namespace == key.name);
                    dirty.routes.extend(of_namespace.cloned());
                }
                Kind::Ingress | Kind::IngressClass | Kind::Secret => dirty.has_ingresses = true,
                kind => dirty.routes.extend(RouteKind::of(*kind).map(|kind| (kind, key.clone()))),
            }
        }
    }

    /// Finds routes whose errors differ from those in their statuses.
    fn read_errors(&mut self, errors: &BTreeMap<String, String>, dirty: &mut Dirty) {
        let before = std::mem::replace(&mut self.errors, errors.clone());
        let names = before.keys().chain(errors.keys()).filter(|name| before.get(*name) != errors.get(*name));
        let changed: BTreeSet<&str> = names.map(String::as_str).filter(|name| !name.starts_with("listener/")).collect();
        if changed.is_empty() {
            return;
        }
        dirty.has_policy_statuses |= changed.iter().any(|name| Policies::has_error(name));
        // Also those that are in the snapshot no more: their statuses still have the error.
        let names =
            changed.iter().filter_map(|name| name.strip_prefix("route/").or(name.strip_prefix("stream-route/")));
        let named = names.filter_map(snapshot_name_parts).map(|(key, kind, _)| (kind, key));
        dirty.routes.extend(named.filter(|id| self.routes.contains_key(id)));
        let backends: BTreeSet<&str> = changed.iter().filter_map(|name| name.strip_prefix("backend/")).collect();
        if backends.is_empty() {
            return;
        }
        for (id, unit) in &self.routes {
            let mut used = unit.uses.backends.values().flat_map(BTreeMap::keys);
            if used.any(|name| backends.contains(name.as_str())) {
                dirty.routes.insert(id.clone());
            }
        }
    }

    fn note_service(&self, service: &Key, dirty: &mut Dirty) {
        dirty.routes.extend(self.users.of_services.get(service).into_iter().flatten().cloned());
        dirty.has_ingresses |= self.ingresses.uses.named.contains(service);
    }

    /// Routes that name a Gateway or one of its ListenerSets.
    fn routes_of_gateway(&self, gateway: &Key) -> Vec<RouteId> {
        let of_gateway = self.users.of_gateways.get(gateway);
        let sets = self.gateways.get(gateway).into_iter().flat_map(|gateway| &gateway.sets);
        let of_sets = sets.filter_map(|(set, ..)| self.users.of_sets.get(set));
        of_gateway.into_iter().chain(of_sets).flatten().cloned().collect()
    }

    fn must_read_gateways(&self, context: &Context<'_>, changed: &ChangedObjects) -> bool {
        let kinds = [
            Kind::GatewayClass,
            Kind::Gateway,
            Kind::ListenerSet,
            Kind::Secret,
            Kind::ConfigMap,
            Kind::Namespace,
            Kind::ReferenceGrant,
        ];
        let is_of_gateway = |key: &Key| {
            let service = context.objects.services.get(key);
            service.is_some_and(|service| service.metadata.labels.contains_key(GATEWAY_LABEL))
                || self.gateways.all.values().any(|gateway| service_key(&gateway.object) == *key)
        };
        let has_services = matches!(context.frame.addresses, Addresses::Services { .. });
        changed.has(&kinds) || has_services && changed.of(Kind::Service).any(is_of_gateway)
    }

    /// Reads all Gateways, and finds those that differ, with their routes.
    fn read_gateways(
        &self,
        context: &Context<'_>,
        changed: &ChangedObjects,
        dirty: &mut Dirty,
        to: &mut TranslationChange,
    ) -> Gateways {
        changed.of(Kind::GatewayClass).for_each(|key| to.remove_status(Kind::GatewayClass, key));
        let classes = classes(context, to);
        let gateways = gateways::collect(context, &classes);
        let keys: BTreeSet<&Key> = self.gateways.all.keys().chain(gateways.all.keys()).collect();
        for key in keys {
            let (before, after) = (self.gateways.get(key), gateways.get(key));
            let both = before.zip(after);
            if both.is_some_and(|(before, after)| before.is_same(after)) {
                continue;
            }
            dirty.gateways.insert(key.clone());
            if !both.is_some_and(|(before, after)| before.attaches_as(after)) {
                let sets = |of: Option<&ResolvedGateway>| {
                    let sets = of.into_iter().flat_map(|gateway| &gateway.sets);
                    sets.map(|(set, ..)| set.clone()).collect::<Vec<_>>()
                };
                let of_sets = [sets(before), sets(after)].concat();
                let of_sets = of_sets.iter().filter_map(|set| self.users.of_sets.get(set));
                let users = self.users.of_gateways.get(key).into_iter().chain(of_sets).flatten();
                dirty.routes.extend(users.cloned());
            }
            // Policies of Gateways of other controllers have no status.
            dirty.has_policy_statuses |= before.is_some() != after.is_some();
        }
        let assigned = gateways.all.iter().map(|(key, gateway)| (key.clone(), gateway.assigned.clone()));
        to.assigned = Some(Arc::new(assigned.collect()));
        gateways
    }

    fn take_out_route(&mut self, id: &RouteId, gateways: &mut BTreeSet<Key>, to: &mut TranslationChange) {
        to.remove_status(id.0.kind(), &id.1);
        let Some(unit) = self.routes.remove(id) else { return };
        to.change.routes.extend(unit.routes.into_iter().map(|name| (name, None)));
        to.change.stream_routes.extend(unit.stream_routes.into_iter().map(|name| (name, None)));
        for (gateway, listener) in unit.attached {
            self.gateways.count_attached(&gateway, listener, -1);
            gateways.insert(gateway);
        }
        self.users.change(id, &unit.parents, &unit.uses.named, false);
        self.used.remove(unit.uses);
    }

    fn put_in_route(
        &mut self,
        context: &Context<'_>,
        id: &RouteId,
        gateways: &mut BTreeSet<Key>,
        to: &mut TranslationChange,
    ) {
        let (kind, key) = id;
        let Some(translated) = translate_route(context, &self.gateways, *kind, key) else { return };
        for (gateway, listener) in &translated.attached {
            self.gateways.count_attached(gateway, *listener, 1);
            gateways.insert(gateway.clone());
        }
        if let Some(status) = translated.status {
            to.set_status(kind.kind(), key, status);
        }
        let parents = parents(&key.namespace, parent_refs(context.objects, id)).collect();
        let unit = RouteUnit {
            parents,
            routes: translated.routes.keys().cloned().collect(),
            stream_routes: translated.stream_routes.keys().cloned().collect(),
            attached: translated.attached,
            uses: self.used.add(translated.backends),
        };
        to.change.routes.extend(translated.routes.into_iter().map(|(name, route)| (name, Some(route))));
        let streams = translated.stream_routes.into_iter();
        to.change.stream_routes.extend(streams.map(|(name, route)| (name, Some(route))));
        self.users.change(id, &unit.parents, &unit.uses.named, true);
        self.routes.insert(id.clone(), unit);
    }

    fn translate_ingresses(&mut self, context: &Context<'_>, to: &mut TranslationChange) {
        let before = std::mem::take(&mut self.ingresses);
        to.change.listeners.extend(before.listeners.into_iter().map(|name| (name, None)));
        to.change.routes.extend(before.routes.into_iter().map(|name| (name, None)));
        before.statuses.iter().for_each(|key| to.remove_status(Kind::Ingress, key));
        self.used.remove(before.uses);
        let after = ingresses::translate(context, &self.gateways);
        self.ingresses = IngressUnit {
            listeners: after.listeners.keys().cloned().collect(),
            routes: after.routes.keys().cloned().collect(),
            statuses: after.statuses.keys().cloned().collect(),
            uses: self.used.add(after.backends),
        };
        to.change.listeners.extend(after.listeners.into_iter().map(|(name, listener)| (name, Some(listener))));
        to.change.routes.extend(after.routes.into_iter().map(|(name, route)| (name, Some(route))));
        after.statuses.into_iter().for_each(|(key, status)| to.set_status(Kind::Ingress, &key, status));
    }

    /// Writes Gateways that differ, and the statuses of those whose number of routes has changed.
    fn write_gateways(
        &mut self,
        context: &Context<'_>,
        changed: &ChangedObjects,
        dirty: &Dirty,
        to: &mut TranslationChange,
    ) {
        for key in &dirty.gateways {
            let before = self.written_gateways.remove(key).unwrap_or_default();
            to.change.listeners.extend(before.listeners.into_iter().map(|name| (name, None)));
            to.services.extend(before.service.map(|service| (service, None)));
            to.remove_status(Kind::Gateway, key);
            before.sets.iter().for_each(|set| to.remove_status(Kind::ListenerSet, set));
        }
        for gateway in dirty.gateways.iter().filter_map(|key| self.gateways.get(key)) {
            self.written_gateways.insert(gateway.key.clone(), gateways::write(context, gateway, to));
        }
        let counted = dirty.gateway_statuses.difference(&dirty.gateways).filter_map(|key| self.gateways.get(key));
        let all = self.gateways.all.values().filter(|_| changed.has_errors);
        counted.chain(all).for_each(|gateway| gateways::write_statuses(context, gateway, to));
    }
}

impl Users {
    /// Adds a route, or takes it out.
    fn change(&mut self, route: &RouteId, parents: &[(bool, Key)], services: &BTreeSet<Key>, is_added: bool) {
        for (is_set, parent) in parents {
            let of_kind = if *is_set { &mut self.of_sets } else { &mut self.of_gateways };
            let users = of_kind.entry(parent.clone()).or_default();
            if !change_member(users, route, is_added) {
                of_kind.remove(parent);
            }
        }
        for service in services {
            let users = self.of_services.entry(service.clone()).or_default();
            if !change_member(users, route, is_added) {
                self.of_services.remove(service);
            }
        }
    }
}

/// Adds a member or removes it. Returns false if none is left.
fn change_member(members: &mut BTreeSet<RouteId>, member: &RouteId, is_added: bool) -> bool {
    match is_added {
        true => _ = members.insert(member.clone()),
        false => _ = members.remove(member),
    }
    !members.is_empty()
}

impl UsedBackends {
    fn add(&mut self, backends: Backends) -> Uses {
        let Backends { mut backends, by_service, gateways, named } = backends;
        for (service, of_service) in &by_service {
            for (name, port) in of_service {
                // Local invariant: each name of a service is that of a backend.
                let Some(backend) = backends.remove(name) else { continue };
                let users = self.backends.get(name).map_or(0, |used| used.users);
                self.backends.insert(name.clone(), UsedBackend { backend, users: users + 1 });
                self.by_service.entry(service.clone()).or_default().insert(name.clone(), *port);
                self.touch(service, name, *port);
            }
        }
        for (service, of_service) in &gateways {
            for gateway in of_service {
                let users = self.gateways.entry(service.clone()).or_default().entry(gateway.clone()).or_default();
                *users += 1;
                self.has_new_gateways |= *users == 1;
            }
        }
        Uses { backends: by_service, gateways, named }
    }

    fn remove(&mut self, uses: Uses) {
        for (service, of_service) in uses.backends {
            for (name, port) in of_service {
                self.touch(&service, &name, port);
                let Some(used) = self.backends.get_mut(&name) else { continue };
                used.users -= 1;
                if used.users > 0 {
                    continue;
                }
                self.backends.remove(&name);
                if let Some(of_service) = self.by_service.get_mut(&service) {
                    of_service.remove(&name);
                    if of_service.is_empty() {
                        self.by_service.remove(&service);
                    }
                }
            }
        }
        for (service, of_service) in uses.gateways {
            let Some(users) = self.gateways.get_mut(&service) else { continue };
            for gateway in of_service {
                let Some(count) = users.get_mut(&gateway) else { continue };
                *count -= 1;
                if *count == 0 {
                    users.remove(&gateway);
                    self.has_new_gateways = true;
                }
            }
            if users.is_empty() {
                self.gateways.remove(&service);
            }
        }
    }

    fn touch(&mut self, service: &Key, name: &str, port: u16) {
        self.touched.entry(service.clone()).or_default().insert(name.to_owned(), port);
    }

    /// Writes touched backends and their endpoints.
    fn write(&mut self, objects: &Objects, to: &mut TranslationChange) {
        for (service, touched) in std::mem::take(&mut self.touched) {
            let of_service = self.by_service.get(&service).cloned().unwrap_or_default();
            let (used, unused): (BTreeMap<_, _>, BTreeMap<_, _>) =
                touched.into_iter().partition(|(name, _)| of_service.contains_key(name));
            for name in unused.into_keys() {
                to.change.backends.insert(name.clone(), None);
                to.change.endpoints.insert(name, None);
            }
            for (name, endpoints) in service_endpoints(objects, &service, &used) {
                let backend = self.backends.get(&name).map(|used| used.backend.clone());
                to.change.backends.insert(name.clone(), backend);
                to.change.endpoints.insert(name, Some(endpoints));
            }
            to.by_service.insert(service, of_service);
        }
    }
}

/// Parents of a route.
fn parent_refs<'a>(objects: &'a Objects, (kind, key): &RouteId) -> &'a [ParentRef] {
    let parents = match kind {
        RouteKind::Http => objects.http_routes.get(key).map(|route| &route.spec.parent_refs),
        RouteKind::Grpc => objects.grpc_routes.get(key).map(|route| &route.spec.parent_refs),
        RouteKind::Tls => objects.tls_routes.get(key).map(|route| &route.spec.parent_refs),
        RouteKind::Tcp => objects.tcp_routes.get(key).map(|route| &route.spec.parent_refs),
        RouteKind::Udp => objects.udp_routes.get(key).map(|route| &route.spec.parent_refs),
    };
    parents.map_or(&[], Vec::as_slice)
}

fn all_routes(objects: &Objects) -> BTreeSet<RouteId> {
    let of_kind = |kind: RouteKind| objects.keys(kind.kind()).into_iter().map(move |key| (kind, key));
    RouteKind::ALL.into_iter().flat_map(of_kind).collect()
}
