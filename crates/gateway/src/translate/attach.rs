//! Attachment of routes to listeners, and the statuses of routes.

use std::collections::BTreeMap;
use std::sync::Arc;

use routes::{Snapshot, intersection};
use serde::Deserialize;
use serde_json::{Value, json};

use super::backends::Backends;
use super::gateways::ResolvedGateway;
use super::policies::Policies;
use super::references::Unresolved;
use super::rules::{Judged, SpecMatch, rules};
use super::status::{StatusCondition, conditions, find};
use super::{Context, Statuses};
use crate::objects::{Key, Kind, ParentRef, ResourceMap, RouteSpec, SpecResource};

/// A kind of route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteKind {
    Http,
    Grpc,
    Tls,
    Tcp,
    Udp,
}

/// A parent of this controller that a route names.
#[derive(Debug)]
pub(crate) struct Attachment<'a> {
    pub(crate) parent: &'a ParentRef,
    pub(crate) gateway: Key,
    /// Indices of the listeners that the route attaches to, or why there are none.
    pub(crate) listeners: Result<Vec<usize>, Unresolved>,
}

/// Routes that share a name have their Gateway in their name in the snapshot. A space is less than every character of a
/// name, so that the order of routes stays that of their names.
pub(crate) fn snapshot_name(key: &Key, kind: RouteKind, gateway: &Key) -> String {
    format!("{key} {} {gateway}", kind.name())
}

impl RouteKind {
    pub(crate) fn name(self) -> &'static str {
        self.kind().name()
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Http => Kind::HttpRoute,
            Self::Grpc => Kind::GrpcRoute,
            Self::Tls => Kind::TlsRoute,
            Self::Tcp => Kind::TcpRoute,
            Self::Udp => Kind::UdpRoute,
        }
    }

    /// True if host names select its routes.
    fn has_hostnames(self) -> bool {
        !matches!(self, Self::Tcp | Self::Udp)
    }
}

/// Finds the parents of a route that belong to this controller, and their listeners.
pub(crate) fn attachments<'a, M>(
    context: &Context<'_>,
    gateways: &BTreeMap<Key, ResolvedGateway<'_>>,
    kind: RouteKind,
    route: &'a SpecResource<RouteSpec<M>>,
) -> Vec<Attachment<'a>> {
    let namespace = route.metadata.namespace.as_str();
    let mut found = Vec::new();
    for parent in &route.spec.parent_refs {
        if !matches!(parent.group.as_deref(), None | Some("gateway.networking.k8s.io")) {
            continue;
        }
        let of_parent = Key::new(parent.namespace.as_deref().unwrap_or(namespace), &parent.name);
        let (gateway, set) = match parent.kind.as_deref().unwrap_or("Gateway") {
            "Gateway" => (gateways.get(&of_parent), None),
            "ListenerSet" => {
                let has_set = |gateway: &&ResolvedGateway<'_>| gateway.sets.iter().any(|(set, ..)| *set == of_parent);
                (gateways.values().find(has_set), Some(&of_parent))
            }
            _ => continue,
        };
        let Some(gateway) = gateway else { continue };
        let listeners = listeners(context, gateway, set, kind, route, parent);
        found.push(Attachment { parent, gateway: gateway.key.clone(), listeners });
    }
    found
}

fn listeners<M>(
    context: &Context<'_>,
    gateway: &ResolvedGateway<'_>,
    set: Option<&Key>,
    kind: RouteKind,
    route: &SpecResource<RouteSpec<M>>,
    parent: &ParentRef,
) -> Result<Vec<usize>, Unresolved> {
    let all = gateway.listeners.iter().enumerate().filter(|(_, it)| it.set.as_ref() == set);
    let named: Vec<_> = all
        .filter(|(_, it)| parent.section_name.as_deref().is_none_or(|name| name == it.spec.name))
        .filter(|(_, it)| parent.port.is_none_or(|port| port == it.spec.port))
        .collect();
    if named.is_empty() {
        return Err(("NoMatchingParent", "the parent has no listener with this name and port".to_owned()));
    }
    let namespace = route.metadata.namespace.as_str();
    let allowed: Vec<_> =
        named.into_iter().filter(|(_, it)| it.kinds.contains(&kind) && it.allows(context, namespace)).collect();
    if allowed.is_empty() {
        let message = format!("no listener allows a {} of the namespace {namespace}", kind.name());
        return Err(("NotAllowedByListeners", message));
    }
    let is_wanted = |hostname: Option<&str>| {
        let names = &route.spec.hostnames;
        names.is_empty() || names.iter().any(|name| intersection(hostname, &name.to_lowercase()).is_some())
    };
    let matching: Vec<usize> = allowed
        .into_iter()
        .filter(|(_, it)| !kind.has_hostnames() || is_wanted(it.hostname.as_deref()))
        .map(|(at, _)| at)
        .collect();
    if matching.is_empty() {
        let message = "no host name of the route matches that of a listener".to_owned();
        return Err(("NoMatchingListenerHostname", message));
    }
    Ok(matching)
}

/// Translates HTTPRoutes.
pub(super) fn http(
    context: &Context<'_>,
    gateways: &mut BTreeMap<Key, ResolvedGateway<'_>>,
    backends: &mut Backends,
    policies: &Policies<'_>,
    snapshot: &mut Snapshot,
    statuses: &mut Statuses,
) {
    let routes = &context.objects.http_routes;
    attach(context, RouteKind::Http, routes, gateways, backends, policies, snapshot, statuses);
}

/// Translates GRPCRoutes.
pub(super) fn grpc(
    context: &Context<'_>,
    gateways: &mut BTreeMap<Key, ResolvedGateway<'_>>,
    backends: &mut Backends,
    policies: &Policies<'_>,
    snapshot: &mut Snapshot,
    statuses: &mut Statuses,
) {
    let routes = &context.objects.grpc_routes;
    attach(context, RouteKind::Grpc, routes, gateways, backends, policies, snapshot, statuses);
}

#[expect(clippy::too_many_arguments, reason = "the parts of a translation that routes read and write")]
fn attach<M: SpecMatch + Default + for<'a> Deserialize<'a>>(
    context: &Context<'_>,
    kind: RouteKind,
    all: &ResourceMap<SpecResource<RouteSpec<M>>>,
    gateways: &mut BTreeMap<Key, ResolvedGateway<'_>>,
    backends: &mut Backends,
    policies: &Policies<'_>,
    snapshot: &mut Snapshot,
    statuses: &mut Statuses,
) {
    for (key, route) in all {
        let found = attachments(context, gateways, kind, route);
        if found.is_empty() {
            write_without_parents(context, kind.kind(), key, &route.status, statuses);
            continue;
        }
        let mut of_parents = Vec::new();
        let mut of_gateways: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for attachment in &found {
            if let Ok(listeners) = &attachment.listeners {
                of_gateways.entry(attachment.gateway.clone()).or_default().extend(listeners);
            }
        }
        let mut judged: BTreeMap<&Key, Judged> = BTreeMap::new();
        for attachment in &found {
            judged.entry(&attachment.gateway).or_insert_with(|| {
                let gateway = &gateways[&attachment.gateway];
                rules(context, kind, route, Some(gateway), backends, policies)
            });
        }
        for attachment in &found {
            let of_gateway = &judged[&attachment.gateway];
            of_parents.push((attachment, of_gateway.conditions(&attachment.listeners)));
        }
        for (gateway, listeners) in &of_gateways {
            let of_gateway = &judged[gateway];
            if of_gateway.is_rejected() {
                continue;
            }
            let found = gateways.get_mut(gateway);
            let Some(gateway_found) = found else { continue };
            let mut listeners = listeners.clone();
            listeners.sort_unstable();
            listeners.dedup();
            let mut names = Vec::new();
            for at in listeners {
                gateway_found.listeners[at].attached += 1;
                if gateway_found.listeners[at].is_programmed() {
                    names.push(gateway_found.listeners[at].name.clone());
                }
            }
            let route = routes::Route {
                listeners: names,
                hostnames: route.spec.hostnames.iter().map(|name| name.to_lowercase()).collect(),
                created: route.metadata.created(),
                rules: of_gateway.rules.clone(),
            };
            snapshot.routes.insert(snapshot_name(key, kind, gateway), route);
        }
        write_status(context, kind.kind(), key, route, &of_parents, statuses);
    }
}

/// Writes the status of a route: an entry for each parent of this controller, and those of other controllers.
pub(crate) fn write_status<M>(
    context: &Context<'_>,
    kind: Kind,
    key: &Key,
    route: &Arc<SpecResource<RouteSpec<M>>>,
    of_parents: &[(&Attachment<'_>, Vec<StatusCondition>)],
    statuses: &mut Statuses,
) {
    let old = &route.status["parents"];
    let mut parents = others(context, old);
    for (attachment, of_parent) in of_parents {
        let reference = json!(attachment.parent);
        let before = find(old, |it| it["controllerName"] == context.controller() && it["parentRef"] == reference);
        parents.push(json!({
            "parentRef": reference,
            "controllerName": context.controller(),
            "conditions": conditions(of_parent, &before["conditions"], route.metadata.generation, context.now()),
        }));
    }
    statuses.set(kind, key, json!({ "parents": parents }));
}

/// Removes entries of this controller from the status of a route that no longer names a parent of it.
pub(crate) fn write_without_parents(
    context: &Context<'_>,
    kind: Kind,
    key: &Key,
    status: &Value,
    statuses: &mut Statuses,
) {
    let old = &status["parents"];
    if !find(old, |it| it["controllerName"] == context.controller()).is_null() {
        statuses.set(kind, key, json!({ "parents": others(context, old) }));
    }
}

fn others(context: &Context<'_>, old: &Value) -> Vec<Value> {
    let all = old.as_array().into_iter().flatten();
    all.filter(|it| it["controllerName"] != context.controller()).cloned().collect()
}
