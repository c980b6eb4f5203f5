//! TLSRoutes, TCPRoutes and UDPRoutes.

use routes::{BackendRef, StreamRoute};

use super::Context;
use super::attach::{Attachment, RouteKind, TranslatedRoute, attachments, snapshot_name, status, with_server_error};
use super::backends::{Backends, Wanted};
use super::gateways::Gateways;
use super::references::{Referrer, Unresolved};
use super::status::StatusCondition;
use crate::objects::{Key, NoMatch, RouteSpec, SpecResource};

/// Translates a route.
pub(super) fn translate(
    context: &Context<'_>,
    gateways: &Gateways,
    kind: RouteKind,
    route: &SpecResource<RouteSpec<NoMatch>>,
) -> TranslatedRoute {
    let key = route.metadata.key();
    let mut translated = TranslatedRoute::default();
    let found = attachments(context, gateways, kind, route);
    let mut of_parents: Vec<(&Attachment<'_>, Vec<StatusCondition>)> = Vec::new();
    for attachment in &found {
        let gateway = attachment.gateway;
        let (shares, unresolved) = shares(context, kind, route, &gateway.key, &mut translated.backends);
        let resolved = match unresolved {
            None => StatusCondition::yes("ResolvedRefs", "ResolvedRefs"),
            Some((reason, message)) => StatusCondition::no("ResolvedRefs", reason, message),
        };
        let accepted = match &attachment.listeners {
            Ok(_) => StatusCondition::yes("Accepted", "Accepted"),
            Err((reason, message)) => StatusCondition::no("Accepted", reason, message),
        };
        let name = snapshot_name(&key, kind, &gateway.key);
        let conditions = vec![accepted, resolved];
        let of_snapshot = format!("stream-route/{name}");
        let conditions = with_server_error(context, conditions, &of_snapshot, &translated.backends);
        of_parents.push((attachment, conditions));
        let Ok(listeners) = &attachment.listeners else { continue };
        let of_snapshot = translated.stream_routes.entry(name).or_insert_with(|| StreamRoute {
            listeners: Vec::new(),
            hostnames: route.spec.hostnames.iter().map(|name| name.to_lowercase()).collect(),
            created: route.metadata.created(),
            backends: shares,
            idle_timeout_ms: None,
        });
        for at in listeners {
            let listener = &gateway.listeners[*at];
            if translated.attached.insert((gateway.key.clone(), *at)) && listener.is_programmed() {
                of_snapshot.listeners.push(listener.name.clone());
            }
        }
    }
    translated.status = status(context, route, &of_parents);
    translated
}

fn shares(
    context: &Context<'_>,
    kind: RouteKind,
    route: &SpecResource<RouteSpec<NoMatch>>,
    gateway: &Key,
    backends: &mut Backends,
) -> (Vec<BackendRef>, Option<Unresolved>) {
    let namespace = route.metadata.namespace.as_str();
    let from = Referrer { group: "gateway.networking.k8s.io", kind: kind.name(), namespace };
    let transport = if kind == RouteKind::Udp { "UDP" } else { "TCP" };
    let (mut shares, mut unresolved) = (Vec::new(), None);
    // The first rule has all connections: nothing in a rule tells them apart.
    for backend in route.spec.rules.first().iter().flat_map(|rule| &rule.backend_refs) {
        let wanted = Wanted { transport, is_stream: true, gateway: Some(gateway), ..Wanted::default() };
        let name = match backends.resolve(context, from, backend, &wanted) {
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
