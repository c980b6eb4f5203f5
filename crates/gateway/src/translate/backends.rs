//! Backends: services, their ports and endpoints, and TLS to them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use routes::{Backend, BackendProtocol, BackendTls, Certificate, Endpoint, SessionPersistence, SubjectAltName};
use serde_json::{Value, json};

use super::references::{Referrer, Unresolved};
use super::status::{StatusCondition, conditions, find};
use super::{Context, TranslationChange};
use crate::objects::{
    BackendRefSpec, BackendTlsPolicySpec, EndpointSlice, Key, Kind, Objects, ResourceMap, ServicePort, SpecResource,
};

/// Backends that a route uses, and their services.
#[derive(Debug, Default)]
pub(crate) struct Backends {
    pub(crate) backends: BTreeMap<String, Backend>,
    /// Backends of each service, with their ports.
    pub(crate) by_service: BTreeMap<Key, BTreeMap<String, u16>>,
    /// Gateways that forward to each service.
    pub(crate) gateways: BTreeMap<Key, BTreeSet<Key>>,
    /// Services that references name, whether there are such or not.
    pub(crate) named: BTreeSet<Key>,
}

/// Demands of a route on a backend in addition to its service.
#[derive(Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// Transport that the service's port must have: `TCP` or `UDP`.
    pub(crate) transport: &'static str,
    /// True if requests are gRPC, over HTTP/2.
    pub(crate) is_grpc: bool,
    /// True if bytes or datagrams are forwarded, and no requests.
    pub(crate) is_stream: bool,
    /// Gateway, and the certificate that it shows to backends.
    pub(crate) gateway: Option<&'a Key>,
    pub(crate) client_certificate: Option<&'a Certificate>,
    /// Session persistence, and a name for it.
    pub(crate) session: Option<(&'a str, SessionPersistence)>,
}

/// TLS of each service's port, by the name of the port; `None` is all ports.
pub(crate) type TlsPolicies = BTreeMap<(Key, Option<String>), Result<BackendTls, String>>;

impl Backends {
    /// Name of the backend that a reference leads to.
    pub(crate) fn resolve(
        &mut self,
        context: &Context<'_>,
        from: Referrer<'_>,
        to: &BackendRefSpec,
        wanted: &Wanted<'_>,
    ) -> Result<String, Unresolved> {
        let objects = context.objects;
        if !to.to.is("", "Service", "Service") {
            let kind = to.to.kind.as_deref().unwrap_or_default();
            return Err(("InvalidKind", format!("a backend must be a Service, not a {kind}")));
        }
        let key = to.to.key(from.namespace);
        self.named.insert(key.clone());
        if !objects.permits(from, "", "Service", &key) {
            return Err(("RefNotPermitted", format!("no ReferenceGrant permits the reference to Service {key}")));
        }
        let missing = || ("BackendNotFound", format!("Service {key} does not exist"));
        let service = objects.services.get(&key).ok_or_else(missing)?;
        if service.spec.r#type == "ExternalName" {
            return Err((
                "BackendNotFound",
                format!("Service {key} has the type ExternalName, which has no endpoints"),
            ));
        }
        let number =
            to.port.ok_or_else(|| ("BackendNotFound", format!("the reference to Service {key} lacks a port")))?;
        let is_port =
            |port: &&ServicePort| port.port == number && port.protocol.as_deref().unwrap_or("TCP") == wanted.transport;
        let Some(port) = service.spec.ports.iter().find(is_port) else {
            return Err(("BackendNotFound", format!("Service {key} has no {} port {number}", wanted.transport)));
        };
        let protocol = protocol(port, wanted).map_err(|name| {
            (
                "UnsupportedProtocol",
                format!("port {number} of Service {key} has the protocol {name}, which is not supported"),
            )
        })?;
        if let Some(gateway) = wanted.gateway {
            self.gateways.entry(key.clone()).or_default().insert(gateway.clone());
        }
        let tls = match context.tls_policy(&key, &port.name) {
            _ if wanted.is_stream => None,
            // Requests are answered with 500: the backend stays unknown.
            Some(Err(_)) => return Ok(format!("{key}:{number} without valid TLS")),
            Some(Ok(tls)) => Some(tls.clone()),
            None if port.app_protocol.as_deref() == Some("kubernetes.io/wss") => None,
            None => None,
        };
        let mut name = format!("{key}:{number}");
        let mut backend =
            Backend { protocol, tls, persistence: None, options: context.policies.upstream_options(&key) };
        if wanted.is_stream {
            name = format!("{name}/{}", wanted.transport.to_lowercase());
        }
        if wanted.is_grpc {
            name.push_str(" grpc");
        }
        if let (Some(certificate), Some(gateway), Some(tls)) =
            (wanted.client_certificate, wanted.gateway, backend.tls.as_mut())
        {
            tls.client_certificate = Some(certificate.clone());
            name = format!("{name} of {gateway}");
        }
        if let Some((session, persistence)) = &wanted.session {
            backend.persistence = Some(persistence.clone());
            name = format!("{name} for {session}");
        }
        self.by_service.entry(key).or_default().insert(name.clone(), number);
        self.backends.insert(name.clone(), backend);
        Ok(name)
    }
}

/// Service of a backend, by the backend's name; `None` for one that has options of an Ingress.
pub(crate) fn service_of(backend: &str) -> Option<Key> {
    let (service, rest) = backend.split_once(':')?;
    let (namespace, name) = service.split_once('/')?;
    (!rest.contains(" of Ingress ")).then(|| Key::new(namespace, name))
}

/// Protocol of a port, or the name of one that is not supported.
fn protocol(port: &ServicePort, wanted: &Wanted<'_>) -> Result<BackendProtocol, String> {
    let of_port = match port.app_protocol.as_deref() {
        None | Some("" | "http" | "https" | "HTTP" | "HTTPS" | "tcp" | "kubernetes.io/ws" | "kubernetes.io/wss") => {
            BackendProtocol::Http1
        }
        Some("kubernetes.io/h2c" | "grpc" | "h2c") => BackendProtocol::Http2,
        Some(_) if wanted.is_stream => BackendProtocol::Http1,
        // A prefix of another project is for that project (KEP-3726).
        Some(other) if !other.starts_with("kubernetes.io/") => BackendProtocol::Http1,
        Some(other) => return Err(other.to_owned()),
    };
    Ok(if wanted.is_grpc { BackendProtocol::Http2 } else { of_port })
}

/// Endpoints of a port of a service.
pub(crate) fn endpoints(objects: &Objects, service: &Key, number: u16) -> Vec<Endpoint> {
    let Some(found) = objects.services.get(service) else { return Vec::new() };
    let names: Vec<&str> =
        found.spec.ports.iter().filter(|port| port.port == number).map(|port| port.name.as_str()).collect();
    let mut endpoints = BTreeMap::new();
    let slices: &ResourceMap<EndpointSlice> = match objects.endpoint_slices.get(service) {
        Some(slices) => slices,
        None => return Vec::new(),
    };
    for slice in slices.values().filter(|slice| slice.address_type != "FQDN") {
        let ports = slice.ports.iter().filter(|port| names.contains(&port.name.as_str())).filter_map(|port| port.port);
        for port in ports {
            for endpoint in &slice.endpoints {
                let of = &endpoint.conditions;
                let is_ready = of.ready.unwrap_or(true) && !of.terminating.unwrap_or(false);
                // One that ends serves what it has, and gets nothing new.
                if !is_ready && !of.serving.unwrap_or(false) {
                    continue;
                }
                for address in endpoint.addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok()) {
                    let address = SocketAddr::new(address, port);
                    *endpoints.entry(address).or_insert(false) |= is_ready;
                }
            }
        }
    }
    endpoints.into_iter().map(|(address, is_ready)| Endpoint { address, is_ready }).collect()
}

/// Conditions of a BackendTLSPolicy, and the TLS that it defines.
struct JudgedPolicy {
    conditions: Vec<StatusCondition>,
    tls: Result<BackendTls, String>,
}

/// All policies for TLS to backends, the oldest first, each target with one policy.
pub(crate) fn tls_policies(objects: &Objects) -> (TlsPolicies, BTreeMap<Key, Vec<StatusCondition>>) {
    let mut sorted: Vec<_> = objects.backend_tls_policies.values().collect();
    sorted.sort_by_cached_key(|policy| policy.metadata.age());
    let mut of_targets = TlsPolicies::new();
    let mut of_policies = BTreeMap::new();
    for policy in sorted {
        let key = policy.metadata.key();
        let mut judged = judge(objects, &policy.spec, &key);
        for target in policy.spec.target_refs.iter().filter(|it| it.group.is_empty() && it.kind == "Service") {
            let at = (Key::new(&key.namespace, &target.name), target.section_name.clone());
            if of_targets.contains_key(&at) {
                let message = format!("an older BackendTLSPolicy has the target Service {}", at.0);
                judged.conditions[0] = StatusCondition::no("Accepted", "Conflicted", message);
                continue;
            }
            of_targets.insert(at, judged.tls.clone());
        }
        of_policies.insert(key, judged.conditions);
    }
    (of_targets, of_policies)
}

fn judge(objects: &Objects, spec: &BackendTlsPolicySpec, key: &Key) -> JudgedPolicy {
    let from = Referrer { group: "gateway.networking.k8s.io", kind: "BackendTLSPolicy", namespace: &key.namespace };
    let reasons = ["InvalidCACertificateRef", "InvalidKind"];
    let (mut authorities, mut problem) = (Vec::new(), None);
    for reference in &spec.validation.ca_certificate_refs {
        match objects.authorities(from, reference, reasons) {
            Ok(text) => authorities.push(text),
            Err(unresolved) => problem = problem.or(Some(unresolved)),
        }
    }
    let resolved = match &problem {
        None => StatusCondition::yes("ResolvedRefs", "ResolvedRefs"),
        Some((reason, message)) => StatusCondition::no("ResolvedRefs", reason, message),
    };
    let is_system = spec.validation.well_known.as_deref() == Some("System");
    if authorities.is_empty() && !is_system {
        let message = problem.map_or_else(|| "no certificate of a CA is named".to_owned(), |(_, message)| message);
        let accepted = StatusCondition::no("Accepted", "NoValidCACertificate", message.clone());
        return JudgedPolicy { conditions: vec![accepted, resolved], tls: Err(message) };
    }
    let names = spec.validation.subject_alt_names.iter().map(|name| match name.r#type.as_str() {
        "URI" => SubjectAltName::Uri(name.uri.clone()),
        _ => SubjectAltName::Dns(name.hostname.to_lowercase()),
    });
    let tls = BackendTls {
        hostname: spec.validation.hostname.to_lowercase(),
        authorities: (!authorities.is_empty()).then(|| authorities.join("\n")),
        subject_alt_names: names.collect(),
        ..BackendTls::default()
    };
    JudgedPolicy { conditions: vec![StatusCondition::yes("Accepted", "Accepted"), resolved], tls: Ok(tls) }
}

/// Statuses of policies for TLS: an entry for each Gateway that forwards to a target.
pub(crate) fn write_tls_statuses(
    context: &Context<'_>,
    judged: &BTreeMap<Key, Vec<StatusCondition>>,
    gateways: &BTreeMap<Key, BTreeMap<Key, usize>>,
    to: &mut TranslationChange,
) {
    for (key, policy) in &context.objects.backend_tls_policies {
        let Some(of_policy) = judged.get(key) else { continue };
        let targets = policy.spec.target_refs.iter().map(|target| Key::new(&key.namespace, &target.name));
        let users: BTreeSet<&Key> =
            targets.filter_map(|target| gateways.get(&target)).flat_map(BTreeMap::keys).collect();
        let status = ancestors(context, policy, &users, of_policy);
        to.set_status(Kind::BackendTlsPolicy, key, status);
    }
}

fn ancestors(
    context: &Context<'_>,
    policy: &SpecResource<BackendTlsPolicySpec>,
    gateways: &BTreeSet<&Key>,
    of_policy: &[StatusCondition],
) -> Value {
    let old = &policy.status["ancestors"];
    let mut entries: Vec<Value> = old
        .as_array()
        .into_iter()
        .flatten()
        .filter(|it| it["controllerName"] != context.controller())
        .cloned()
        .collect();
    for gateway in gateways {
        let reference = json!({
            "group": "gateway.networking.k8s.io", "kind": "Gateway",
            "namespace": gateway.namespace, "name": gateway.name,
        });
        let before = find(old, |it| it["controllerName"] == context.controller() && it["ancestorRef"] == reference);
        entries.push(json!({
            "ancestorRef": reference,
            "controllerName": context.controller(),
            "conditions": conditions(of_policy, &before["conditions"], policy.metadata.generation, context.now()),
        }));
    }
    json!({ "ancestors": entries })
}
