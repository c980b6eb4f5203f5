//! Gateways with their listeners and ListenerSets, and the statuses of both.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use routes::Certificate;
use serde_json::{Value, json};

use super::addresses::{self, Assigned, Book};
use super::listeners::{ResolvedListener, mark_conflicts, permits};
use super::references::{Referrer, Unresolved};
use super::status::{StatusCondition, conditions, find};
use super::{Context, TranslationChange};
use crate::objects::{GatewaySpec, Key, Kind, ListenerSetSpec, SpecResource};

/// Gateways of accepted classes.
#[derive(Default)]
pub(crate) struct Gateways {
    pub(crate) all: BTreeMap<Key, ResolvedGateway>,
    /// Gateway of each ListenerSet.
    of_sets: HashMap<Key, Key>,
}

/// A Gateway of this controller.
pub(crate) struct ResolvedGateway {
    pub(crate) key: Key,
    pub(crate) object: Arc<SpecResource<GatewaySpec>>,
    /// Listeners of the Gateway itself, then those of ListenerSets in order of precedence.
    pub(crate) listeners: Vec<ResolvedListener>,
    /// Number of routes that are attached to each listener.
    pub(crate) attached: Vec<u32>,
    /// ListenerSets that name it, with true for those that it allows.
    pub(crate) sets: Vec<(Key, Arc<SpecResource<ListenerSetSpec>>, bool)>,
    pub(crate) assigned: Assigned,
    /// Certificate that it shows to backends.
    pub(crate) client_certificate: Option<Certificate>,
    unresolved: Option<Unresolved>,
}

/// Names of a Gateway's parts in the snapshot and in the cluster.
#[derive(Default)]
pub(crate) struct WrittenGateway {
    pub(crate) listeners: Vec<String>,
    pub(crate) service: Option<Key>,
    pub(crate) sets: Vec<Key>,
}

/// ListenerSets by name.
type NamedSets<'a> = Vec<(Key, &'a Arc<SpecResource<ListenerSetSpec>>)>;

/// All Gateways of accepted classes.
pub(crate) fn collect(context: &Context<'_>, classes: &BTreeSet<&str>) -> Gateways {
    let objects = context.objects;
    let mut sets: BTreeMap<Key, NamedSets<'_>> = BTreeMap::new();
    for (key, set) in &objects.listener_sets {
        let parent = &set.spec.parent_ref;
        let is_gateway = parent.kind.as_deref().unwrap_or("Gateway") == "Gateway"
            && matches!(parent.group.as_deref(), None | Some("gateway.networking.k8s.io"));
        if is_gateway {
            sets.entry(parent.key(&key.namespace)).or_default().push((key.clone(), set));
        }
    }
    let mut ours: Vec<_> =
        objects.gateways.values().filter(|it| classes.contains(it.spec.gateway_class_name.as_str())).collect();
    ours.sort_by_cached_key(|gateway| gateway.metadata.age());
    let plain: Vec<&SpecResource<GatewaySpec>> = ours.iter().map(|gateway| &***gateway).collect();
    let mut book = Book::new(context.frame.addresses, context.frame.assigned, objects, &plain);
    let mut gateways = Gateways::default();
    for object in ours {
        let key = object.metadata.key();
        let gateway = read(context, &mut book, object, sets.remove(&key).unwrap_or_default());
        gateways.of_sets.extend(gateway.sets.iter().map(|(set, ..)| (set.clone(), key.clone())));
        gateways.all.insert(key, gateway);
    }
    gateways
}

fn read(
    context: &Context<'_>,
    book: &mut Book<'_>,
    object: &Arc<SpecResource<GatewaySpec>>,
    mut sets: NamedSets<'_>,
) -> ResolvedGateway {
    let key = object.metadata.key();
    let namespace = object.metadata.namespace.as_str();
    let mut listeners: Vec<ResolvedListener> = Vec::new();
    for spec in &object.spec.listeners {
        listeners.push(ResolvedListener::new(context, object, None, "Gateway", namespace, spec));
    }
    sets.sort_by_cached_key(|(_, set)| set.metadata.age());
    let allowed = object.spec.allowed_listeners.namespaces.as_ref();
    let mut judged = Vec::new();
    for (of, set) in sets {
        let is_allowed = permits(context, allowed, "None", namespace, &of.namespace);
        if is_allowed {
            for spec in &set.spec.listeners {
                let of_set = set.metadata.namespace.as_str();
                listeners.push(ResolvedListener::new(context, object, Some(of.clone()), "ListenerSet", of_set, spec));
            }
        }
        judged.push((of, Arc::clone(set), is_allowed));
    }
    mark_conflicts(&mut listeners);
    let assigned = book.assign(context.objects, object, &ports(&listeners));
    let from = Referrer { group: "gateway.networking.k8s.io", kind: "Gateway", namespace };
    let reference = object.spec.tls.backend.client_certificate_ref.as_ref();
    let certificate =
        reference.map(|reference| context.objects.certificate(from, reference, "InvalidClientCertificateRef"));
    let (client_certificate, unresolved) = match certificate {
        None => (None, None),
        Some(Ok(certificate)) => (Some(certificate), None),
        Some(Err(unresolved)) => (None, Some(unresolved)),
    };
    ResolvedGateway {
        key,
        object: Arc::clone(object),
        attached: vec![0; listeners.len()],
        listeners,
        sets: judged,
        assigned,
        client_certificate,
        unresolved,
    }
}

impl Gateways {
    pub(crate) fn get(&self, key: &Key) -> Option<&ResolvedGateway> {
        self.all.get(key)
    }

    /// Gateway of a ListenerSet.
    pub(crate) fn of_set(&self, set: &Key) -> Option<&ResolvedGateway> {
        self.all.get(self.of_sets.get(set)?)
    }

    /// Adds routes to the count of a listener, or takes them off.
    pub(crate) fn count_attached(&mut self, gateway: &Key, listener: usize, routes: i32) {
        let of_gateway = self.all.get_mut(gateway);
        if let Some(count) = of_gateway.and_then(|gateway| gateway.attached.get_mut(listener)) {
            *count = count.saturating_add_signed(routes);
        }
    }
}

/// Ports of accepted listeners, with their transports.
fn ports(listeners: &[ResolvedListener]) -> BTreeSet<(u16, &'static str)> {
    let accepted = listeners.iter().filter(|listener| listener.is_accepted());
    accepted.map(|listener| (listener.spec.port, listener.transport())).collect()
}

impl ResolvedGateway {
    /// True if nothing differs.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.object, &other.object)
            && self.attaches_as(other)
            && self.sets.iter().zip(&other.sets).all(|((_, one, _), (_, other, _))| Arc::ptr_eq(one, other))
            && self.assigned == other.assigned
            && self.unresolved == other.unresolved
    }

    /// True if nothing differs on which routes depend.
    pub(crate) fn attaches_as(&self, other: &Self) -> bool {
        let sets =
            |of: &Self| of.sets.iter().map(|(key, _, is_allowed)| (key.clone(), *is_allowed)).collect::<Vec<_>>();
        self.listeners == other.listeners
            && self.client_certificate == other.client_certificate
            && sets(self) == sets(other)
    }

    /// Reason why no listener of it may serve.
    fn unusable(&self) -> Option<(&'static str, String)> {
        if let Some(message) = &self.assigned.unsupported {
            return Some(("UnsupportedAddress", message.clone()));
        }
        self.object.spec.infrastructure.parameters_ref.as_ref().map(|reference| {
            let kind = reference.kind.as_deref().unwrap_or_default();
            ("InvalidParameters", format!("parameters of the kind {kind} are not supported; remove parametersRef"))
        })
    }

    fn conditions(&self, errors: &BTreeMap<String, String>) -> Vec<StatusCondition> {
        let of_listeners = || self.listeners.iter();
        let is_served = of_listeners().any(ResolvedListener::is_programmed);
        let all_accepted = of_listeners().filter(|it| it.set.is_none()).all(ResolvedListener::is_accepted);
        let accepted = match self.unusable() {
            Some((reason, message)) => StatusCondition::no("Accepted", reason, message),
            None if !of_listeners().any(ResolvedListener::is_accepted) && !self.listeners.is_empty() => {
                StatusCondition::no("Accepted", "ListenersNotValid", "no listener is valid")
            }
            None if !all_accepted => StatusCondition::noted(
                "Accepted",
                "ListenersNotValid",
                "some listeners are not valid; see their conditions",
            ),
            None => StatusCondition::yes("Accepted", "Accepted"),
        };
        let failed = of_listeners().filter(|it| it.is_programmed()).find_map(|it| errors.get(&error_name(it)));
        let all_failed = of_listeners().filter(|it| it.is_programmed()).all(|it| errors.contains_key(&error_name(it)));
        let programmed = match (&self.assigned.problem, accepted.status) {
            (_, false) => StatusCondition::no("Programmed", "Invalid", accepted.message.clone()),
            (Some((reason, message)), _) => StatusCondition::no("Programmed", reason, message),
            _ if !is_served && !self.listeners.is_empty() => {
                StatusCondition::no("Programmed", "Invalid", "no listener can serve; see their conditions")
            }
            _ => match failed.filter(|_| all_failed) {
                Some(error) => StatusCondition::no("Programmed", "Invalid", error),
                None => {
                    match errors.range("server/".to_owned()..).next().filter(|(name, _)| name.starts_with("server/")) {
                        Some((name, reason)) => StatusCondition::no(
                            "Programmed",
                            "Pending",
                            format!("{name} rejected the last change: {reason}"),
                        ),
                        None => StatusCondition::yes("Programmed", "Programmed"),
                    }
                }
            },
        };
        let resolved = match &self.unresolved {
            Some((reason, message)) => StatusCondition::no("ResolvedRefs", reason, message),
            None if of_listeners().any(|it| it.set.is_none() && it.unresolved.is_some()) => {
                let message = "references of some listeners are not resolved; see their conditions";
                StatusCondition::no("ResolvedRefs", "ListenersNotResolved", message)
            }
            None => StatusCondition::yes("ResolvedRefs", "ResolvedRefs"),
        };
        let mut all = vec![accepted, programmed, resolved];
        if of_listeners().any(|it| it.client_validation.as_ref().is_some_and(|it| it.allows_invalid)) {
            let message = "clients without a valid certificate are accepted (AllowInsecureFallback)";
            all.push(StatusCondition::noted("InsecureFrontendValidationMode", "ConfigurationChanged", message));
        }
        all
    }
}

fn error_name(listener: &ResolvedListener) -> String {
    format!("listener/{}", listener.name)
}

/// Writes listeners of a Gateway, its Service, and the statuses of it and its ListenerSets.
pub(crate) fn write(context: &Context<'_>, gateway: &ResolvedGateway, to: &mut TranslationChange) -> WrittenGateway {
    let mut written = WrittenGateway::default();
    let is_usable = gateway.unusable().is_none();
    let has_address =
        matches!(context.frame.addresses, addresses::Addresses::Services { .. }) || !gateway.assigned.bind.is_empty();
    for listener in gateway.listeners.iter().filter(|it| is_usable && has_address && it.is_programmed()) {
        let Some(protocol) = listener.protocol else { continue };
        let port = listener.spec.port;
        let target = gateway.assigned.target_ports.get(&(port, listener.transport()));
        let of_snapshot = routes::Listener {
            addresses: gateway.assigned.bind.clone(),
            port: target.copied().unwrap_or(port),
            protocol,
            hostname: listener.hostname.clone().filter(|_| protocol.is_http() || protocol.is_tls()),
            certificates: listener.certificates.clone(),
            client_validation: listener.client_validation.clone(),
        };
        to.change.listeners.insert(listener.name.clone(), Some(of_snapshot));
        written.listeners.push(listener.name.clone());
    }
    let ports = ports(&gateway.listeners);
    if is_usable && !ports.is_empty() {
        let key = addresses::service_key(&gateway.object);
        let service = addresses::service(context.frame.addresses, &gateway.object, &ports, &gateway.assigned);
        to.services.insert(key.clone(), Some(service));
        written.service = Some(key);
    }
    write_statuses(context, gateway, to);
    written.sets = gateway.sets.iter().map(|(set, ..)| set.clone()).collect();
    written
}

/// Writes the statuses of a Gateway and its ListenerSets.
pub(crate) fn write_statuses(context: &Context<'_>, gateway: &ResolvedGateway, to: &mut TranslationChange) {
    to.set_status(Kind::Gateway, &gateway.key, gateway_status(context, gateway));
    for (of, set, is_allowed) in &gateway.sets {
        let own: Vec<(usize, &ResolvedListener)> =
            gateway.listeners.iter().enumerate().filter(|(_, it)| it.set.as_ref() == Some(of)).collect();
        to.set_status(Kind::ListenerSet, of, set_status(context, gateway, (of, set), *is_allowed, &own));
    }
}

fn gateway_status(context: &Context<'_>, gateway: &ResolvedGateway) -> Value {
    // The stored status may be newer than the object that was read.
    let old = context.objects.status(Kind::Gateway, &gateway.key).unwrap_or(&Value::Null);
    let (generation, now) = (gateway.object.metadata.generation, context.now());
    let own = gateway.listeners.iter().enumerate().filter(|(_, listener)| listener.set.is_none());
    let listeners: Vec<Value> =
        own.map(|(at, listener)| listener_status(context, listener, gateway.attached[at], old, generation)).collect();
    let has_valid = |set: &Key| gateway.listeners.iter().any(|it| it.set.as_ref() == Some(set) && it.is_programmed());
    let attached = gateway.sets.iter().filter(|(set, _, is_allowed)| *is_allowed && has_valid(set)).count();
    json!({
        "addresses": gateway.assigned.status,
        "conditions": conditions(&gateway.conditions(context.frame.errors), &old["conditions"], generation, now),
        "listeners": listeners,
        "attachedListenerSets": attached,
    })
}

fn listener_status(
    context: &Context<'_>,
    listener: &ResolvedListener,
    attached: u32,
    old: &Value,
    generation: i64,
) -> Value {
    let before = find(&old["listeners"], |it| it["name"] == listener.spec.name.as_str());
    let error = context.frame.errors.get(&error_name(listener));
    json!({
        "name": listener.spec.name,
        "supportedKinds": listener.supported_kinds(),
        "attachedRoutes": attached,
        "conditions": conditions(&listener.conditions(error), &before["conditions"], generation, context.now()),
    })
}

fn set_status(
    context: &Context<'_>,
    gateway: &ResolvedGateway,
    (key, set): (&Key, &SpecResource<ListenerSetSpec>),
    is_allowed: bool,
    own: &[(usize, &ResolvedListener)],
) -> Value {
    let old = context.objects.status(Kind::ListenerSet, key).unwrap_or(&Value::Null);
    let generation = set.metadata.generation;
    let all = if !is_allowed {
        let message = format!("Gateway {} does not allow ListenerSets of this namespace", gateway.key);
        ["Accepted", "Programmed"].map(|kind| StatusCondition::no(kind, "NotAllowed", message.clone()))
    } else if let Some((_, message)) = gateway.unusable() {
        ["Accepted", "Programmed"].map(|kind| StatusCondition::no(kind, "ParentNotAccepted", message.clone()))
    } else if !own.iter().any(|(_, listener)| listener.is_programmed()) {
        ["Accepted", "Programmed"].map(|kind| StatusCondition::no(kind, "ListenersNotValid", "no listener is valid"))
    } else if own.iter().all(|(_, listener)| listener.is_programmed()) {
        [StatusCondition::yes("Accepted", "Accepted"), StatusCondition::yes("Programmed", "Programmed")]
    } else {
        let message = "some listeners are not valid; see their conditions";
        [
            StatusCondition::noted("Accepted", "ListenersNotValid", message),
            StatusCondition::yes("Programmed", "Programmed"),
        ]
    };
    let listeners: Vec<Value> = own
        .iter()
        .map(|(at, listener)| listener_status(context, listener, gateway.attached[*at], old, generation))
        .collect();
    json!({
        "conditions": conditions(&all, &old["conditions"], generation, context.now()),
        "listeners": listeners,
    })
}
