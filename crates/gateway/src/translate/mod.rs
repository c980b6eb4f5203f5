//! Translation: a snapshot of resources in, routes and statuses out. No input and output, no clock.

mod addresses;
mod attach;
mod backends;
mod filters;
mod gateways;
mod ingresses;
mod listeners;
mod policies;
mod references;
mod rules;
mod status;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use routes::{BackendTls, Endpoint, Snapshot};
use serde_json::{Value, json};

pub use self::addresses::Addresses;
pub(crate) use self::addresses::Assignments;
use self::attach::RouteKind;
use self::backends::{Backends, TlsPolicies};
use self::policies::Policies;
use self::status::{StatusCondition, conditions};
use crate::objects::{GatewayClassSpec, Key, Kind, Objects, SpecResource};

/// Features of Gateway API that are supported, as the suite for conformance names them, in order.
pub(crate) const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayInfrastructure",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
    "UDPRoute",
];

/// Settings and facts of a translation in addition to the resources.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    /// Name of this controller in classes.
    pub(crate) controller: &'a str,
    /// Origin of the addresses of Gateways.
    pub(crate) addresses: &'a Addresses,
    /// Addresses that Gateways got by the translation before.
    pub(crate) assigned: &'a Assignments,
    /// Gateway that serves Ingresses; `None` serves none.
    pub(crate) ingress_gateway: Option<&'a Key>,
    /// Time, in the form of RFC 3339.
    pub(crate) now: &'a str,
    /// Errors of servers, by kind and name, as in [`routes::Applied::errors`].
    pub(crate) errors: &'a BTreeMap<String, String>,
}

/// Result of a translation.
#[derive(Debug, Default)]
pub(crate) struct Translation {
    pub(crate) snapshot: Snapshot,
    pub(crate) statuses: Statuses,
    /// Addresses of Gateways.
    pub(crate) assigned: Arc<Assignments>,
    /// Services that must exist.
    pub(crate) services: BTreeMap<Key, Value>,
    /// Backends of each service, with their ports: what changed endpoints of the service change.
    pub(crate) by_service: BTreeMap<Key, BTreeMap<String, u16>>,
}

/// Statuses that resources must have.
#[derive(Debug, Default)]
pub(crate) struct Statuses(pub(crate) BTreeMap<(Kind, Key), Value>);

impl Statuses {
    fn set(&mut self, kind: Kind, key: &Key, status: Value) {
        self.0.insert((kind, key.clone()), status);
    }
}

/// Everything that parts of the translation read.
struct Context<'a> {
    objects: &'a Objects,
    frame: &'a Frame<'a>,
    tls_policies: TlsPolicies,
}

impl Context<'_> {
    fn controller(&self) -> &str {
        self.frame.controller
    }

    fn now(&self) -> &str {
        self.frame.now
    }

    /// TLS to a port of a service: that of the port, else that of the service.
    fn tls_policy(&self, service: &Key, port: &str) -> Option<&Result<BackendTls, String>> {
        let of_port = self.tls_policies.get(&(service.clone(), Some(port.to_owned())));
        of_port.or_else(|| self.tls_policies.get(&(service.clone(), None)))
    }
}

/// Translates all resources.
pub(crate) fn translate(objects: &Objects, frame: &Frame<'_>) -> Translation {
    let (tls_policies, judged) = backends::tls_policies(objects);
    let context = Context { objects, frame, tls_policies };
    let mut translation = Translation::default();
    let statuses = &mut translation.statuses;
    let classes = classes(&context, statuses);
    let policies = Policies::new(objects);
    let mut gateways = gateways::collect(&context, &classes);
    let mut backends = Backends::default();
    let snapshot = &mut translation.snapshot;
    attach::http(&context, &mut gateways, &mut backends, &policies, snapshot, statuses);
    attach::grpc(&context, &mut gateways, &mut backends, &policies, snapshot, statuses);
    for kind in [RouteKind::Tls, RouteKind::Tcp, RouteKind::Udp] {
        streams::attach(&context, kind, &mut gateways, &mut backends, &policies, snapshot, statuses);
    }
    ingresses::attach(&context, &gateways, &mut backends, &policies, snapshot, statuses);
    gateways::write(&context, &gateways, snapshot, statuses, &mut translation.services);
    policies.write_statuses(&context, &gateways, statuses);
    backends::write_tls_statuses(&context, &judged, &backends.gateways, statuses);
    snapshot.backends = backends.backends;
    let assigned = gateways.into_iter().map(|(key, gateway)| (key, gateway.assigned));
    translation.assigned = Arc::new(assigned.collect());
    for (service, of_service) in &backends.by_service {
        snapshot.endpoints.extend(service_endpoints(objects, service, of_service));
    }
    translation.by_service = backends.by_service;
    translation
}

/// Endpoints of all backends of a service.
pub(crate) fn service_endpoints(
    objects: &Objects,
    service: &Key,
    backends: &BTreeMap<String, u16>,
) -> Vec<(String, Vec<Endpoint>)> {
    let ports: BTreeSet<u16> = backends.values().copied().collect();
    let of_ports: BTreeMap<u16, Vec<Endpoint>> =
        ports.into_iter().map(|port| (port, backends::endpoints(objects, service, port))).collect();
    backends.iter().map(|(name, port)| (name.clone(), of_ports[port].clone())).collect()
}

/// Names of this controller's classes that are accepted.
fn classes<'a>(context: &Context<'a>, statuses: &mut Statuses) -> BTreeSet<&'a str> {
    let ours = |class: &&Arc<SpecResource<GatewayClassSpec>>| class.spec.controller_name == context.controller();
    let mut accepted = BTreeSet::new();
    for class in context.objects.gateway_classes.values().filter(ours) {
        let condition = match &class.spec.parameters_ref {
            None => {
                accepted.insert(class.metadata.name.as_str());
                StatusCondition::yes("Accepted", "Accepted")
            }
            Some(reference) => {
                let kind = reference.kind.as_deref().unwrap_or_default();
                let message = format!("parameters of the kind {kind} are not supported; remove parametersRef");
                StatusCondition::no("Accepted", "InvalidParameters", message)
            }
        };
        let all = [condition, StatusCondition::yes("SupportedVersion", "SupportedVersion")];
        let features: Vec<Value> = FEATURES.iter().map(|name| json!({ "name": name })).collect();
        let written = conditions(&all, &class.status["conditions"], class.metadata.generation, context.now());
        let status = json!({ "conditions": written, "supportedFeatures": features });
        statuses.set(Kind::GatewayClass, &class.metadata.key(), status);
    }
    accepted
}
