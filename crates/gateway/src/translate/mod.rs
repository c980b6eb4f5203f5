//! Translation: resources and what has changed of them in, changes of routes and statuses out. No input and output, no
//! clock.

mod addresses;
mod attach;
mod backends;
#[cfg(test)]
mod error_tests;
mod filters;
mod gateways;
mod ingresses;
#[cfg(test)]
mod input_tests;
mod listeners;
mod policies;
mod references;
mod rules;
mod status;
mod streams;
#[cfg(test)]
mod tests;
mod translation;
mod translator;
#[cfg(test)]
mod translator_tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use routes::{BackendTls, Endpoint};
use serde_json::{Value, json};

pub use self::addresses::Addresses;
pub(crate) use self::addresses::Assignments;
use self::backends::TlsPolicies;
use self::policies::Policies;
use self::status::{StatusCondition, conditions};
pub(crate) use self::translation::{ChangedObjects, Touched, Translation, TranslationChange};
pub(crate) use self::translator::ResourceTranslator;
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

/// Everything that parts of the translation read.
struct Context<'a> {
    objects: &'a Objects,
    frame: &'a Frame<'a>,
    policies: &'a Policies,
    tls_policies: &'a TlsPolicies,
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

/// Endpoints of backends of a service, which have these ports.
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

/// Names of this controller's classes that are accepted. Writes the statuses of all.
fn classes<'a>(context: &Context<'a>, to: &mut TranslationChange) -> BTreeSet<&'a str> {
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
        to.set_status(Kind::GatewayClass, &class.metadata.key(), status);
    }
    accepted
}
