//! Resources of Gateway API.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LabelSelector, ResourceRef};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GatewayClassSpec {
    pub(crate) controller_name: String,
    pub(crate) parameters_ref: Option<ResourceRef>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GatewaySpec {
    pub(crate) gateway_class_name: String,
    pub(crate) listeners: Vec<ListenerEntry>,
    pub(crate) addresses: Vec<AddressSpec>,
    pub(crate) infrastructure: Infrastructure,
    pub(crate) allowed_listeners: AllowedNamespaces,
    pub(crate) tls: GatewayTls,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct AddressSpec {
    pub(crate) r#type: Option<String>,
    pub(crate) value: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Infrastructure {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) parameters_ref: Option<ResourceRef>,
}

/// Namespaces whose resources may attach.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AllowedNamespaces {
    pub(crate) namespaces: Option<Namespaces>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Namespaces {
    pub(crate) from: Option<String>,
    pub(crate) selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GatewayTls {
    pub(crate) backend: GatewayBackendTls,
    pub(crate) frontend: FrontendTls,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct GatewayBackendTls {
    pub(crate) client_certificate_ref: Option<ResourceRef>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct FrontendTls {
    pub(crate) default: ValidatedTls,
    pub(crate) per_port: Vec<PortTls>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PortTls {
    pub(crate) port: u16,
    pub(crate) tls: ValidatedTls,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ValidatedTls {
    pub(crate) validation: Option<FrontendValidation>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct FrontendValidation {
    pub(crate) ca_certificate_refs: Vec<ResourceRef>,
    pub(crate) mode: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ListenerSetSpec {
    pub(crate) parent_ref: ResourceRef,
    pub(crate) listeners: Vec<ListenerEntry>,
}

/// A listener of a Gateway or ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ListenerEntry {
    pub(crate) name: String,
    pub(crate) hostname: Option<String>,
    pub(crate) port: u16,
    pub(crate) protocol: String,
    pub(crate) tls: Option<ListenerTlsSpec>,
    pub(crate) allowed_routes: AllowedRoutes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ListenerTlsSpec {
    pub(crate) mode: Option<String>,
    pub(crate) certificate_refs: Vec<ResourceRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct AllowedRoutes {
    pub(crate) namespaces: Option<Namespaces>,
    pub(crate) kinds: Vec<GroupKind>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct GroupKind {
    pub(crate) group: Option<String>,
    pub(crate) kind: String,
}

/// A route of any kind; `M` is the kind's match.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound = "M: Default + for<'a> Deserialize<'a>")]
pub(crate) struct RouteSpec<M> {
    pub(crate) parent_refs: Vec<ParentRef>,
    pub(crate) hostnames: Vec<String>,
    pub(crate) rules: Vec<RuleSpec<M>>,
}

/// Reference of a route to its parent. It is written into statuses as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ParentRef {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) section_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound = "M: Default + for<'a> Deserialize<'a>")]
pub(crate) struct RuleSpec<M> {
    pub(crate) name: Option<String>,
    pub(crate) matches: Vec<M>,
    pub(crate) filters: Vec<FilterSpec>,
    pub(crate) backend_refs: Vec<BackendRefSpec>,
    pub(crate) timeouts: TimeoutsSpec,
    pub(crate) retry: Option<RetrySpec>,
    pub(crate) session_persistence: Option<SessionPersistenceSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct HttpMatchSpec {
    pub(crate) path: Option<TypedValue>,
    pub(crate) headers: Vec<NamedValue>,
    pub(crate) query_params: Vec<NamedValue>,
    pub(crate) method: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GrpcMatchSpec {
    pub(crate) method: Option<GrpcMethod>,
    pub(crate) headers: Vec<NamedValue>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GrpcMethod {
    pub(crate) r#type: Option<String>,
    pub(crate) service: Option<String>,
    pub(crate) method: Option<String>,
}

/// Match of routes that have none.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct NoMatch {}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TypedValue {
    pub(crate) r#type: Option<String>,
    pub(crate) value: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NamedValue {
    pub(crate) r#type: Option<String>,
    pub(crate) name: String,
    pub(crate) value: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct BackendRefSpec {
    #[serde(flatten)]
    pub(crate) to: ResourceRef,
    pub(crate) port: Option<u16>,
    pub(crate) weight: Option<u32>,
    pub(crate) filters: Vec<FilterSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct FilterSpec {
    pub(crate) r#type: String,
    pub(crate) request_header_modifier: Option<HeaderModifier>,
    pub(crate) response_header_modifier: Option<HeaderModifier>,
    pub(crate) request_mirror: Option<MirrorSpec>,
    pub(crate) request_redirect: Option<RedirectSpec>,
    pub(crate) url_rewrite: Option<RewriteSpec>,
    pub(crate) cors: Option<CorsSpec>,
    pub(crate) external_auth: Option<ExternalAuthSpec>,
    pub(crate) extension_ref: Option<ResourceRef>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HeaderModifier {
    pub(crate) set: Vec<NamedValue>,
    pub(crate) add: Vec<NamedValue>,
    pub(crate) remove: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct MirrorSpec {
    pub(crate) backend_ref: BackendRefSpec,
    pub(crate) percent: Option<u32>,
    pub(crate) fraction: Option<FractionSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FractionSpec {
    pub(crate) numerator: u32,
    pub(crate) denominator: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RedirectSpec {
    pub(crate) scheme: Option<String>,
    pub(crate) hostname: Option<String>,
    pub(crate) path: Option<PathModifier>,
    pub(crate) port: Option<u16>,
    pub(crate) status_code: Option<u16>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PathModifier {
    pub(crate) r#type: String,
    pub(crate) replace_full_path: Option<String>,
    pub(crate) replace_prefix_match: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RewriteSpec {
    pub(crate) hostname: Option<String>,
    pub(crate) path: Option<PathModifier>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct CorsSpec {
    pub(crate) allow_origins: Vec<String>,
    pub(crate) allow_credentials: Option<bool>,
    pub(crate) allow_methods: Vec<String>,
    pub(crate) allow_headers: Vec<String>,
    pub(crate) expose_headers: Vec<String>,
    pub(crate) max_age: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ExternalAuthSpec {
    pub(crate) protocol: String,
    pub(crate) backend_ref: BackendRefSpec,
    pub(crate) http: Option<AuthConfig>,
    pub(crate) grpc: Option<AuthConfig>,
    pub(crate) forward_body: Option<ForwardBody>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct AuthConfig {
    pub(crate) path: String,
    pub(crate) allowed_headers: Vec<String>,
    pub(crate) allowed_response_headers: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ForwardBody {
    pub(crate) max_size: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct TimeoutsSpec {
    pub(crate) request: Option<String>,
    pub(crate) backend_request: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RetrySpec {
    pub(crate) codes: Vec<u16>,
    pub(crate) attempts: Option<u32>,
    pub(crate) backoff: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SessionPersistenceSpec {
    pub(crate) session_name: Option<String>,
    pub(crate) absolute_timeout: Option<String>,
    pub(crate) r#type: Option<String>,
    pub(crate) cookie_config: Option<CookieConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct CookieConfig {
    pub(crate) lifetime_type: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ReferenceGrantSpec {
    pub(crate) from: Vec<GrantFrom>,
    pub(crate) to: Vec<GrantTo>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GrantFrom {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GrantTo {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct BackendTlsPolicySpec {
    pub(crate) target_refs: Vec<TargetRef>,
    pub(crate) validation: BackendValidation,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct TargetRef {
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) section_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct BackendValidation {
    #[serde(rename = "caCertificateRefs")]
    pub(crate) ca_certificate_refs: Vec<ResourceRef>,
    #[serde(rename = "wellKnownCACertificates")]
    pub(crate) well_known: Option<String>,
    pub(crate) hostname: String,
    pub(crate) subject_alt_names: Vec<SubjectAltNameSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SubjectAltNameSpec {
    pub(crate) r#type: String,
    pub(crate) hostname: String,
    pub(crate) uri: String,
}
