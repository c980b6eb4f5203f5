//! Resources of Kubernetes: the fields that the translation reads, and a snapshot of all resources.
//!
//! Unknown fields are ignored, and absent ones have their defaults, so that newer API servers do no harm.

mod core;
mod gateway;
mod ingress;
mod kind;
mod policy;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use self::core::{ConfigMap, EndpointSlice, KubeSecret, LabelSelector, Namespace, Service, ServicePort};
pub(crate) use gateway::*;
pub(crate) use ingress::{Ingress, IngressBackend, IngressClass, IngressPath};
pub(crate) use kind::Kind;
pub(crate) use policy::{PolicyOptions, RateLimitSpec, TrafficPolicy, TrafficPolicySpec};

/// Namespace and name. The namespace of cluster-wide resources is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Metadata of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Meta {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) generation: i64,
    pub(crate) creation_timestamp: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) uid: String,
}

/// A resource with a specification and a status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SpecResource<Spec> {
    pub(crate) metadata: Meta,
    pub(crate) spec: Spec,
    pub(crate) status: Value,
}

/// Resources of a kind.
pub(crate) type ResourceMap<T> = BTreeMap<Key, Arc<T>>;

/// Every resource that the translation reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) gateway_classes: ResourceMap<SpecResource<GatewayClassSpec>>,
    pub(crate) gateways: ResourceMap<SpecResource<GatewaySpec>>,
    pub(crate) listener_sets: ResourceMap<SpecResource<ListenerSetSpec>>,
    pub(crate) http_routes: ResourceMap<SpecResource<RouteSpec<HttpMatchSpec>>>,
    pub(crate) grpc_routes: ResourceMap<SpecResource<RouteSpec<GrpcMatchSpec>>>,
    pub(crate) tls_routes: ResourceMap<SpecResource<RouteSpec<NoMatch>>>,
    pub(crate) tcp_routes: ResourceMap<SpecResource<RouteSpec<NoMatch>>>,
    pub(crate) udp_routes: ResourceMap<SpecResource<RouteSpec<NoMatch>>>,
    pub(crate) reference_grants: ResourceMap<SpecResource<ReferenceGrantSpec>>,
    pub(crate) backend_tls_policies: ResourceMap<SpecResource<BackendTlsPolicySpec>>,
    pub(crate) traffic_policies: ResourceMap<TrafficPolicy>,
    pub(crate) services: ResourceMap<Service>,
    pub(crate) secrets: ResourceMap<KubeSecret>,
    pub(crate) config_maps: ResourceMap<ConfigMap>,
    pub(crate) namespaces: ResourceMap<Namespace>,
    pub(crate) ingresses: ResourceMap<Ingress>,
    pub(crate) ingress_classes: ResourceMap<IngressClass>,
    /// Slices by service, then by name.
    pub(crate) endpoint_slices: HashMap<Key, ResourceMap<EndpointSlice>>,
    /// Service of each slice, so that its removal is found.
    slice_services: HashMap<Key, Key>,
}

impl Key {
    /// Namespace and name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

impl Meta {
    pub(crate) fn key(&self) -> Key {
        Key::new(&self.namespace, &self.name)
    }

    /// Seconds since 1970 of the creation; 0 if unknown.
    pub(crate) fn created(&self) -> i64 {
        let format = &time::format_description::well_known::Rfc3339;
        time::OffsetDateTime::parse(&self.creation_timestamp, format).map_or(0, |at| at.unix_timestamp())
    }

    /// Order of precedence: the oldest, then the least name.
    pub(crate) fn age(&self) -> (i64, Key) {
        (self.created(), self.key())
    }
}

/// Documents of a YAML or JSON text. `on`, `yes` and the like are texts, as in YAML 1.2.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>, String> {
    // JSON is YAML, and quicker to read as what it is.
    if text.trim_start().starts_with('{') {
        let values = serde_json::Deserializer::from_str(text).into_iter();
        return values.collect::<Result<_, _>>().map_err(|error| error.to_string());
    }
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| error.to_string())
}

/// Reads a resource.
fn read<T: for<'a> Deserialize<'a>>(mut value: Value) -> Result<Arc<T>, String> {
    remove_nulls(&mut value);
    serde_json::from_value(value).map(Arc::new).map_err(|error| error.to_string())
}

/// Removes members without a value: they mean the default.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Replaces a resource. Returns true unless it was there and is the same.
fn replace<T>(map: &mut ResourceMap<T>, key: Key, new: Arc<T>, is_same: impl Fn(&T, &T) -> bool) -> bool {
    let before = map.insert(key, Arc::clone(&new));
    before.is_none_or(|before| !is_same(&before, &new))
}

/// Replaces a resource whose specification has a generation: changes of its status alone do not count.
fn replace_spec<Spec>(map: &mut ResourceMap<SpecResource<Spec>>, key: Key, new: Arc<SpecResource<Spec>>) -> bool {
    replace(map, key, new, |one, other| one.metadata.generation > 0 && one.metadata == other.metadata)
}

impl Objects {
    /// Adds or replaces a resource. Returns its name, and true unless it is as it was, apart from a status that this
    /// controller writes.
    ///
    /// # Errors
    /// A field has another type than its API defines.
    pub(crate) fn insert(&mut self, kind: Kind, value: Value) -> Result<(Key, bool), String> {
        let mut metadata = value.get("metadata").cloned().unwrap_or_default();
        remove_nulls(&mut metadata);
        let key = serde_json::from_value::<Meta>(metadata).map_err(|error| error.to_string())?.key();
        let at = key.clone();
        let is_changed = match kind {
            Kind::GatewayClass => replace_spec(&mut self.gateway_classes, at, read(value)?),
            Kind::Gateway => replace_spec(&mut self.gateways, at, read(value)?),
            Kind::ListenerSet => replace_spec(&mut self.listener_sets, at, read(value)?),
            Kind::HttpRoute => replace_spec(&mut self.http_routes, at, read(value)?),
            Kind::GrpcRoute => replace_spec(&mut self.grpc_routes, at, read(value)?),
            Kind::TlsRoute => replace_spec(&mut self.tls_routes, at, read(value)?),
            Kind::TcpRoute => replace_spec(&mut self.tcp_routes, at, read(value)?),
            Kind::UdpRoute => replace_spec(&mut self.udp_routes, at, read(value)?),
            Kind::ReferenceGrant => replace_spec(&mut self.reference_grants, at, read(value)?),
            Kind::BackendTlsPolicy => replace_spec(&mut self.backend_tls_policies, at, read(value)?),
            Kind::TrafficPolicy => {
                let is_same = |one: &TrafficPolicy, other: &TrafficPolicy| {
                    one.metadata == other.metadata && one.spec == other.spec
                };
                replace(&mut self.traffic_policies, at, read(value)?, is_same)
            }
            Kind::Service => replace(&mut self.services, at, read(value)?, PartialEq::eq),
            Kind::Secret => {
                let secret = read::<KubeSecret>(value).map(KubeSecret::reduced)?;
                replace(&mut self.secrets, at, secret, PartialEq::eq)
            }
            Kind::ConfigMap => {
                let map = read::<ConfigMap>(value).map(ConfigMap::reduced)?;
                replace(&mut self.config_maps, at, map, PartialEq::eq)
            }
            Kind::Namespace => replace(&mut self.namespaces, at, read(value)?, PartialEq::eq),
            Kind::Ingress => {
                let is_same = |one: &Ingress, other: &Ingress| one.metadata == other.metadata && one.spec == other.spec;
                replace(&mut self.ingresses, at, read(value)?, is_same)
            }
            Kind::IngressClass => replace(&mut self.ingress_classes, at, read(value)?, PartialEq::eq),
            Kind::EndpointSlice => {
                let slice: Arc<EndpointSlice> = read(value)?;
                let service = slice.service();
                if self.slice_services.get(&key) != service.as_ref() {
                    self.remove(kind, &key);
                }
                match service {
                    Some(service) => {
                        self.slice_services.insert(key.clone(), service.clone());
                        let slices = self.endpoint_slices.entry(service).or_default();
                        replace(slices, at, slice, PartialEq::eq)
                    }
                    None => false,
                }
            }
        };
        Ok((key, is_changed))
    }

    /// Removes a resource.
    pub(crate) fn remove(&mut self, kind: Kind, key: &Key) {
        match kind {
            Kind::GatewayClass => drop(self.gateway_classes.remove(key)),
            Kind::Gateway => drop(self.gateways.remove(key)),
            Kind::ListenerSet => drop(self.listener_sets.remove(key)),
            Kind::HttpRoute => drop(self.http_routes.remove(key)),
            Kind::GrpcRoute => drop(self.grpc_routes.remove(key)),
            Kind::TlsRoute => drop(self.tls_routes.remove(key)),
            Kind::TcpRoute => drop(self.tcp_routes.remove(key)),
            Kind::UdpRoute => drop(self.udp_routes.remove(key)),
            Kind::ReferenceGrant => drop(self.reference_grants.remove(key)),
            Kind::BackendTlsPolicy => drop(self.backend_tls_policies.remove(key)),
            Kind::TrafficPolicy => drop(self.traffic_policies.remove(key)),
            Kind::Service => drop(self.services.remove(key)),
            Kind::Secret => drop(self.secrets.remove(key)),
            Kind::ConfigMap => drop(self.config_maps.remove(key)),
            Kind::Namespace => drop(self.namespaces.remove(key)),
            Kind::Ingress => drop(self.ingresses.remove(key)),
            Kind::IngressClass => drop(self.ingress_classes.remove(key)),
            Kind::EndpointSlice => {
                if let Some(service) = self.slice_services.remove(key)
                    && let Some(slices) = self.endpoint_slices.get_mut(&service)
                {
                    slices.remove(key);
                    if slices.is_empty() {
                        self.endpoint_slices.remove(&service);
                    }
                }
            }
        }
    }

    /// Names of all resources of a kind.
    pub(crate) fn keys(&self, kind: Kind) -> Vec<Key> {
        fn of<T>(map: &ResourceMap<T>) -> Vec<Key> {
            map.keys().cloned().collect()
        }
        match kind {
            Kind::GatewayClass => of(&self.gateway_classes),
            Kind::Gateway => of(&self.gateways),
            Kind::ListenerSet => of(&self.listener_sets),
            Kind::HttpRoute => of(&self.http_routes),
            Kind::GrpcRoute => of(&self.grpc_routes),
            Kind::TlsRoute => of(&self.tls_routes),
            Kind::TcpRoute => of(&self.tcp_routes),
            Kind::UdpRoute => of(&self.udp_routes),
            Kind::ReferenceGrant => of(&self.reference_grants),
            Kind::BackendTlsPolicy => of(&self.backend_tls_policies),
            Kind::TrafficPolicy => of(&self.traffic_policies),
            Kind::Service => of(&self.services),
            Kind::Secret => of(&self.secrets),
            Kind::ConfigMap => of(&self.config_maps),
            Kind::Namespace => of(&self.namespaces),
            Kind::Ingress => of(&self.ingresses),
            Kind::IngressClass => of(&self.ingress_classes),
            Kind::EndpointSlice => self.slice_services.keys().cloned().collect(),
        }
    }

    /// Service of a slice.
    pub(crate) fn service_of_slice(&self, slice: &Key) -> Option<&Key> {
        self.slice_services.get(slice)
    }

    /// Stored status of a resource.
    pub(crate) fn status(&self, kind: Kind, key: &Key) -> Option<&Value> {
        Some(match kind {
            Kind::GatewayClass => &self.gateway_classes.get(key)?.status,
            Kind::Gateway => &self.gateways.get(key)?.status,
            Kind::ListenerSet => &self.listener_sets.get(key)?.status,
            Kind::HttpRoute => &self.http_routes.get(key)?.status,
            Kind::GrpcRoute => &self.grpc_routes.get(key)?.status,
            Kind::TlsRoute => &self.tls_routes.get(key)?.status,
            Kind::TcpRoute => &self.tcp_routes.get(key)?.status,
            Kind::UdpRoute => &self.udp_routes.get(key)?.status,
            Kind::BackendTlsPolicy => &self.backend_tls_policies.get(key)?.status,
            Kind::TrafficPolicy => &self.traffic_policies.get(key)?.status,
            Kind::Ingress => &self.ingresses.get(key)?.status,
            _ => return None,
        })
    }

    /// Stores a status, as the API server does.
    #[cfg(test)]
    pub(crate) fn set_status(&mut self, kind: Kind, key: &Key, status: Value) {
        fn set<Spec: Clone>(map: &mut ResourceMap<SpecResource<Spec>>, key: &Key, status: Value) {
            map.get_mut(key).into_iter().for_each(|found| Arc::make_mut(found).status = status.clone());
        }
        match kind {
            Kind::GatewayClass => set(&mut self.gateway_classes, key, status),
            Kind::Gateway => set(&mut self.gateways, key, status),
            Kind::ListenerSet => set(&mut self.listener_sets, key, status),
            Kind::HttpRoute => set(&mut self.http_routes, key, status),
            Kind::GrpcRoute => set(&mut self.grpc_routes, key, status),
            Kind::TlsRoute => set(&mut self.tls_routes, key, status),
            Kind::TcpRoute => set(&mut self.tcp_routes, key, status),
            Kind::UdpRoute => set(&mut self.udp_routes, key, status),
            Kind::BackendTlsPolicy => set(&mut self.backend_tls_policies, key, status),
            _ => {}
        }
    }

    /// Reads resources from YAML or JSON, in one document or several, also from lists (`kind: List`). Resources of other
    /// kinds are skipped. Returns what could not be read.
    pub(crate) fn read_manifests(&mut self, text: &str) -> Result<Vec<String>, String> {
        let documents = documents(text)?;
        let mut problems = Vec::new();
        for document in documents {
            self.read_document(document, &mut problems);
        }
        Ok(problems)
    }

    fn read_document(&mut self, document: Value, problems: &mut Vec<String>) {
        let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        if kind.ends_with("List")
            && let Value::Object(mut list) = document
        {
            let items =
                list.remove("items").and_then(|items| if let Value::Array(items) = items { Some(items) } else { None });
            for item in items.unwrap_or_default() {
                self.read_document(item, problems);
            }
            return;
        }
        if let Some(kind) = Kind::named(&kind)
            && let Err(error) = self.insert(kind, document)
        {
            problems.push(format!("a resource of kind {} could not be read: {error}", kind.name()));
        }
    }
}

/// Reference to another resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct ResourceRef {
    pub(crate) group: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl ResourceRef {
    /// Namespace and name, with a default for the namespace.
    pub(crate) fn key(&self, namespace: &str) -> Key {
        Key::new(self.namespace.as_deref().unwrap_or(namespace), &self.name)
    }

    /// True if group and kind, with the kind's default, are these.
    pub(crate) fn is(&self, group: &str, kind: &str, default_kind: &str) -> bool {
        self.group.as_deref().unwrap_or_default() == group && self.kind.as_deref().unwrap_or(default_kind) == kind
    }
}
