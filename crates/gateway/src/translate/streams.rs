//! TLSRoutes, TCPRoutes and UDPRoutes.

use std::collections::BTreeMap;

use routes::{BackendRef, Snapshot, StreamRoute};

use super::attach::{Attachment, RouteKind, attachments, snapshot_name, write_status, write_without_parents};
use super::backends::{Backends, Wanted};
use super::gateways::ResolvedGateway;
use super::policies::Policies;
use super::references::{Referrer, Unresolved};
use super::status::StatusCondition;
use super::{Context, Statuses};
use crate::objects::{Key, NoMatch, ResourceMap, RouteSpec, SpecResource};

/// Translates all routes of a kind.
pub(super) fn attach(
    context: &Context<'_>,
    kind: RouteKind,
    gateways: &mut BTreeMap<Key, ResolvedGateway<'_>>,
    backends: &mut Backends,
    policies: &Policies<'_>,
    snapshot: &mut Snapshot,
    statuses: &mut Statuses,
) {
    let all: &ResourceMap<SpecResource<RouteSpec<NoMatch>>> = match kind {
        RouteKind::Tls => &context.objects.tls_routes,
        RouteKind::Tcp => &context.objects.tcp_routes,
        _ => &context.objects.udp_routes,
    };
    for (key, route) in all {
        let found = attachments(context, gateways, kind, route);
        if found.is_empty() {
            write_without_parents(context, kind.kind(), key, &route.status, statuses);
            continue;
        }
        let mut of_parents: Vec<(&Attachment<'_>, Vec<StatusCondition>)> = Vec::new();
        for attachment in &found {
            let (shares, unresolved) = shares(context, kind, route, &attachment.gateway, backends, policies);
            let resolved = match unresolved {
                None => StatusCondition::yes("ResolvedRefs", "ResolvedRefs"),
                Some((reason, message)) => StatusCondition::no("ResolvedRefs", reason, message),
            };
            let accepted = match &attachment.listeners {
                Ok(_) => StatusCondition::yes("Accepted", "Accepted"),
                Err((reason, message)) => StatusCondition::no("Accepted", reason, message),
            };
            of_parents.push((attachment, vec![accepted, resolved]));
            let (Ok(listeners), Some(gateway)) = (&attachment.listeners, gateways.get_mut(&attachment.gateway)) else {
                continue;
            };
            let name = snapshot_name(key, kind, &attachment.gateway);
            let of_snapshot = snapshot.stream_routes.entry(name).or_insert_with(|| StreamRoute {
                listeners: Vec::new(),
                hostnames: route.spec.hostnames.iter().map(|name| name.to_lowercase()).collect(),
                created: route.metadata.created(),
                backends: shares,
                idle_timeout_ms: None,
            });
            for at in listeners {
                let listener = &mut gateway.listeners[*at];
                if !of_snapshot.listeners.contains(&listener.name) {
                    listener.attached += 1;
                    if listener.is_programmed() {
                        of_snapshot.listeners.push(listener.name.clone());
                    }
                }
            }
        }
        write_status(context, kind.kind(), key, route, &of_parents, statuses);
    }
}

fn shares(
    context: &Context<'_>,
    kind: RouteKind,
    route: &SpecResource<RouteSpec<NoMatch>>,
    gateway: &Key,
    backends: &mut Backends,
    policies: &Policies<'_>,
) -> (Vec<BackendRef>, Option<Unresolved>) {
    let namespace = route.metadata.namespace.as_str();
    let from = Referrer { group: "gateway.networking.k8s.io", kind: kind.name(), namespace };
    let transport = if kind == RouteKind::Udp { "UDP" } else { "TCP" };
    let (mut shares, mut unresolved) = (Vec::new(), None);
    // The first rule has all connections: nothing in a rule tells them apart.
    for backend in route.spec.rules.first().iter().flat_map(|rule| &rule.backend_refs) {
        let wanted = Wanted { transport, is_stream: true, gateway: Some(gateway), ..Wanted::default() };
        let name = match backends.resolve(context, policies, from, backend, &wanted) {
            Ok(name) => name,
            Err(problem) => {
                unresolved.get_or_insert(problem);
                format!("{} unresolved", backend.to.name)
            }
        };
        shares.push(BackendRef::new(name, backend.weight.unwrap_or(1)));
    }
    (shares, unresolved)
}
