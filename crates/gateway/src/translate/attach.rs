//! Attachment of routes to listeners, and the statuses of routes.

use std::collections::{BTreeMap, BTreeSet};

use routes::{Route, StreamRoute, intersection};
use serde_json::{Value, json};

use super::Context;
use super::backends::Backends;
use super::gateways::{Gateways, ResolvedGateway};
use super::references::Unresolved;
use super::rules::{Judged, SpecMatch, rules};
use super::status::{StatusCondition, conditions, find};
use super::streams;
use crate::objects::{Key, Kind, ParentRef, RouteSpec, SpecResource};

/// A kind of route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RouteKind {
    Http,
    Grpc,
    Tls,
    Tcp,
    Udp,
}

/// A route after translation.
#[derive(Debug, Default)]
pub(crate) struct TranslatedRoute {
    /// Routes in the snapshot, by name: one for each Gateway.
    pub(crate) routes: BTreeMap<String, Route>,
    pub(crate) stream_routes: BTreeMap<String, StreamRoute>,
    /// Listeners to which it is attached, each by its Gateway and index.
    pub(crate) attached: BTreeSet<(Key, usize)>,
    pub(crate) backends: Backends,
    /// `None` if it names no parent of this controller.
    pub(crate) status: Option<Value>,
}

/// A parent of this controller that a route names.
pub(crate) struct Attachment<'a> {
    pub(crate) parent: &'a ParentRef,
    pub(crate) gateway: &'a ResolvedGateway,
    /// Indices of the listeners that the route attaches to, or why there are none.
    pub(crate) listeners: Result<Vec<usize>, Unresolved>,
}

/// Routes that share a name have their Gateway in their name in the snapshot. A space is less than every character of a
/// name, so that the order of routes stays that of their names.
pub(crate) fn snapshot_name(key: &Key, kind: RouteKind, gateway: &Key) -> String {
    format!("{key} {} {gateway}", kind.name())
}

/// Parts of a name in the snapshot; `None` for those of Ingresses.
pub(crate) fn snapshot_name_parts(name: &str) -> Option<(Key, RouteKind, Key)> {
    let mut words = name.split(' ');
    let (route, kind, gateway) = (words.next()?, words.next()?, words.next()?);
    let kind = RouteKind::ALL.into_iter().find(|it| it.name() == kind)?;
    let key = |text: &str| text.split_once('/').map(|(namespace, name)| Key::new(namespace, name));
    Some((key(route)?, kind, key(gateway)?))
}

/// Parents that a route names, whether there are such or not: true for ListenerSets, and their names.
pub(crate) fn parents<'a>(namespace: &'a str, parents: &'a [ParentRef]) -> impl Iterator<Item = (bool, Key)> + 'a {
    let ours = parents.iter().filter(|it| matches!(it.group.as_deref(), None | Some("gateway.networking.k8s.io")));
    ours.filter_map(move |parent| {
        let is_set = match parent.kind.as_deref().unwrap_or("Gateway") {
            "Gateway" => false,
            "ListenerSet" => true,
            _ => return None,
        };
        Some((is_set, Key::new(parent.namespace.as_deref().unwrap_or(namespace), &parent.name)))
    })
}

impl RouteKind {
    pub(crate) const ALL: [Self; 5] = [Self::Http, Self::Grpc, Self::Tls, Self::Tcp, Self::Udp];

    /// Kind of routes of a kind of resources.
    pub(crate) fn of(kind: Kind) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.kind() == kind)
    }

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
    gateways: &'a Gateways,
    kind: RouteKind,
    route: &'a SpecResource<RouteSpec<M>>,
) -> Vec<Attachment<'a>> {
    let namespace = route.metadata.namespace.as_str();
    let mut found = Vec::new();
    for parent in &route.spec.parent_refs {
        let Some((is_set, key)) = parents(namespace, std::slice::from_ref(parent)).next() else { continue };
        let gateway = if is_set { gateways.of_set(&key) } else { gateways.get(&key) };
        let Some(gateway) = gateway else { continue };
        let listeners = listeners(context, gateway, Some(&key).filter(|_| is_set), kind, route, parent);
        found.push(Attachment { parent, gateway, listeners });
    }
    found
}

fn listeners<M>(
    context: &Context<'_>,
    gateway: &ResolvedGateway,
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

/// Translates a route. `None` if there is no such route.
pub(crate) fn translate_route(
    context: &Context<'_>,
    gateways: &Gateways,
    kind: RouteKind,
    key: &Key,
) -> Option<TranslatedRoute> {
    let objects = context.objects;
    Some(match kind {
        RouteKind::Http => translate_http(context, gateways, kind, objects.http_routes.get(key)?),
        RouteKind::Grpc => translate_http(context, gateways, kind, objects.grpc_routes.get(key)?),
        RouteKind::Tls => streams::translate(context, gateways, kind, objects.tls_routes.get(key)?),
        RouteKind::Tcp => streams::translate(context, gateways, kind, objects.tcp_routes.get(key)?),
        RouteKind::Udp => streams::translate(context, gateways, kind, objects.udp_routes.get(key)?),
    })
}

/// Translates an HTTPRoute or GRPCRoute.
fn translate_http<M: SpecMatch>(
    context: &Context<'_>,
    gateways: &Gateways,
    kind: RouteKind,
    route: &SpecResource<RouteSpec<M>>,
) -> TranslatedRoute {
    let key = route.metadata.key();
    let mut translated = TranslatedRoute::default();
    let found = attachments(context, gateways, kind, route);
    let mut of_gateways: BTreeMap<&Key, (&ResolvedGateway, BTreeSet<usize>)> = BTreeMap::new();
    let mut judged: BTreeMap<&Key, Judged> = BTreeMap::new();
    for Attachment { gateway, listeners, .. } in &found {
        judged.entry(&gateway.key).or_insert_with(|| rules(context, kind, route, gateway, &mut translated.backends));
        if let Ok(listeners) = listeners {
            of_gateways.entry(&gateway.key).or_insert_with(|| (gateway, BTreeSet::new())).1.extend(listeners);
        }
    }
    let of_parents = found.iter().map(|it| {
        let name = format!("route/{}", snapshot_name(&key, kind, &it.gateway.key));
        let conditions = judged[&it.gateway.key].conditions(&it.listeners);
        (it, with_server_error(context, conditions, &name, &translated.backends))
    });
    translated.status = status(context, route, &of_parents.collect::<Vec<_>>());
    for (of, (gateway, listeners)) in of_gateways {
        // Local invariant: each Gateway of an attachment was judged.
        let Some(judged) = judged.remove(of).filter(|judged| !judged.is_rejected()) else { continue };
        let programmed = listeners.iter().map(|at| &gateway.listeners[*at]).filter(|it| it.is_programmed());
        let of_snapshot = Route {
            listeners: programmed.map(|listener| listener.name.clone()).collect(),
            hostnames: route.spec.hostnames.iter().map(|name| name.to_lowercase()).collect(),
            created: route.metadata.created(),
            rules: judged.rules,
        };
        translated.routes.insert(snapshot_name(&key, kind, of), of_snapshot);
        translated.attached.extend(listeners.into_iter().map(|at| (of.clone(), at)));
    }
    translated
}

/// Status of a route: an entry for each parent of this controller, and those of other controllers. `None` if it has none of
/// this one, now and before.
pub(crate) fn status<M>(
    context: &Context<'_>,
    route: &SpecResource<RouteSpec<M>>,
    of_parents: &[(&Attachment<'_>, Vec<StatusCondition>)],
) -> Option<Value> {
    let old = &route.status["parents"];
    if of_parents.is_empty() && find(old, |it| it["controllerName"] == context.controller()).is_null() {
        return None;
    }
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
    Some(json!({ "parents": parents }))
}

/// Conditions with what servers report about a route, by its name in [`routes::Applied::errors`], or about its backends.
pub(super) fn with_server_error(
    context: &Context<'_>,
    mut conditions: Vec<StatusCondition>,
    name: &str,
    backends: &Backends,
) -> Vec<StatusCondition> {
    let errors = context.frame.errors;
    let names = backends.by_service.values().flat_map(BTreeMap::keys);
    let of_backend = || names.into_iter().find_map(|name| errors.get(&format!("backend/{name}")));
    if errors.is_empty() {
        return conditions;
    }
    let Some(error) = errors.get(name).or_else(of_backend) else { return conditions };
    let text = format!("servers report: {error}");
    match conditions.iter_mut().find(|condition| condition.kind == "PartiallyInvalid") {
        Some(known) => known.message = format!("{}; {text}", known.message),
        None => conditions.push(StatusCondition::noted("PartiallyInvalid", "UnsupportedValue", text)),
    }
    conditions
}

fn others(context: &Context<'_>, old: &Value) -> Vec<Value> {
    let all = old.as_array().into_iter().flatten();
    all.filter(|it| it["controllerName"] != context.controller()).cloned().collect()
}
