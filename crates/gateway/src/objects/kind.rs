//! Kinds of resources that are watched.

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    GatewayClass,
    Gateway,
    ListenerSet,
    HttpRoute,
    GrpcRoute,
    TlsRoute,
    TcpRoute,
    UdpRoute,
    ReferenceGrant,
    BackendTlsPolicy,
    TrafficPolicy,
    Service,
    EndpointSlice,
    Secret,
    ConfigMap,
    Namespace,
    Ingress,
    IngressClass,
}

/// Each kind with its name, the path of its API, its plural, and true if a cluster may lack it.
const KINDS: &[(Kind, &str, &str, &str, bool)] = &[
    (Kind::GatewayClass, "GatewayClass", "apis/gateway.networking.k8s.io/v1", "gatewayclasses", false),
    (Kind::Gateway, "Gateway", "apis/gateway.networking.k8s.io/v1", "gateways", false),
    (Kind::ListenerSet, "ListenerSet", "apis/gateway.networking.k8s.io/v1", "listenersets", true),
    (Kind::HttpRoute, "HTTPRoute", "apis/gateway.networking.k8s.io/v1", "httproutes", false),
    (Kind::GrpcRoute, "GRPCRoute", "apis/gateway.networking.k8s.io/v1", "grpcroutes", true),
    (Kind::TlsRoute, "TLSRoute", "apis/gateway.networking.k8s.io/v1", "tlsroutes", true),
    (Kind::TcpRoute, "TCPRoute", "apis/gateway.networking.k8s.io/v1", "tcproutes", true),
    (Kind::UdpRoute, "UDPRoute", "apis/gateway.networking.k8s.io/v1", "udproutes", true),
    (Kind::ReferenceGrant, "ReferenceGrant", "apis/gateway.networking.k8s.io/v1", "referencegrants", true),
    (Kind::BackendTlsPolicy, "BackendTLSPolicy", "apis/gateway.networking.k8s.io/v1", "backendtlspolicies", true),
    (Kind::TrafficPolicy, "TrafficPolicy", "apis/gateway.tailcoat.dev/v1alpha1", "trafficpolicies", true),
    (Kind::Service, "Service", "api/v1", "services", false),
    (Kind::EndpointSlice, "EndpointSlice", "apis/discovery.k8s.io/v1", "endpointslices", false),
    (Kind::Secret, "Secret", "api/v1", "secrets", false),
    (Kind::ConfigMap, "ConfigMap", "api/v1", "configmaps", false),
    (Kind::Namespace, "Namespace", "api/v1", "namespaces", false),
    (Kind::Ingress, "Ingress", "apis/networking.k8s.io/v1", "ingresses", false),
    (Kind::IngressClass, "IngressClass", "apis/networking.k8s.io/v1", "ingressclasses", false),
];

impl Kind {
    /// All kinds.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|(kind, ..)| *kind)
    }

    /// Kind of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        KINDS.iter().find(|(_, of, ..)| *of == name).map(|(kind, ..)| *kind)
    }

    fn row(self) -> &'static (Self, &'static str, &'static str, &'static str, bool) {
        // Local invariant, which a test holds: the table has each kind at its place.
        &KINDS[self as usize]
    }

    /// Name, as in manifests.
    pub(crate) fn name(self) -> &'static str {
        self.row().1
    }

    /// Path of the API with its version.
    pub(crate) fn api(self) -> &'static str {
        self.row().2
    }

    /// Plural name, as in paths.
    pub(crate) fn plural(self) -> &'static str {
        self.row().3
    }

    /// True if a cluster without this kind is served all the same.
    pub(crate) fn is_optional(self) -> bool {
        self.row().4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_order() {
        for (at, kind) in Kind::all().enumerate() {
            assert_eq!(kind as usize, at, "{}", kind.name());
            assert_eq!(Kind::named(kind.name()), Some(kind));
        }
    }
}
