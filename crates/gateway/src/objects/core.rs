//! Resources of Kubernetes itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use serde::Deserialize;
use serde_json::Value;

use super::{Key, Meta};

/// Keys of secrets that are kept in memory.
const SECRET_KEYS: [&str; 4] = ["tls.crt", "tls.key", "ca.crt", "auth"];

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Service {
    pub(crate) metadata: Meta,
    pub(crate) spec: ServiceSpec,
    pub(crate) status: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServiceSpec {
    pub(crate) r#type: String,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: String,
    pub(crate) ports: Vec<ServicePort>,
}

/// A port of a service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServicePort {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) protocol: Option<String>,
    pub(crate) app_protocol: Option<String>,
    pub(crate) target_port: Value,
}

/// Endpoints of a service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct EndpointSlice {
    pub(crate) metadata: Meta,
    pub(crate) address_type: String,
    pub(crate) endpoints: Vec<SliceEndpoint>,
    pub(crate) ports: Vec<SlicePort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct SliceEndpoint {
    pub(crate) addresses: Vec<String>,
    pub(crate) conditions: EndpointConditions,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointConditions {
    pub(crate) ready: Option<bool>,
    pub(crate) serving: Option<bool>,
    pub(crate) terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct SlicePort {
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
}

/// A secret, reduced to the keys that matter here.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct KubeSecret {
    pub(crate) metadata: Meta,
    data: BTreeMap<String, String>,
    #[serde(rename = "stringData")]
    string_data: BTreeMap<String, String>,
}

/// A ConfigMap, reduced to certificates of CAs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ConfigMap {
    pub(crate) metadata: Meta,
    pub(crate) data: BTreeMap<String, String>,
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Namespace {
    pub(crate) metadata: Meta,
}

/// Selector of labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct LabelSelector {
    pub(crate) match_labels: BTreeMap<String, String>,
    pub(crate) match_expressions: Vec<LabelRequirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct LabelRequirement {
    pub(crate) key: String,
    pub(crate) operator: String,
    pub(crate) values: Vec<String>,
}

impl Service {
    /// Number of a port by its name.
    pub(crate) fn port_number(&self, name: &str) -> Option<u16> {
        self.spec.ports.iter().find(|port| port.name == name).map(|port| port.port)
    }
}

impl EndpointSlice {
    /// Service that it belongs to.
    pub(crate) fn service(&self) -> Option<Key> {
        let name = self.metadata.labels.get("kubernetes.io/service-name")?;
        Some(Key::new(&self.metadata.namespace, name))
    }
}

impl KubeSecret {
    /// Without keys that nothing here reads.
    pub(super) fn reduced(secret: Arc<Self>) -> Arc<Self> {
        let mut secret = Arc::unwrap_or_clone(secret);
        secret.data.retain(|key, _| SECRET_KEYS.contains(&key.as_str()));
        secret.string_data.retain(|key, _| SECRET_KEYS.contains(&key.as_str()));
        secret.metadata.annotations.clear();
        Arc::new(secret)
    }

    /// Text of a key.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        if let Some(text) = self.string_data.get(key) {
            return Some(text.clone());
        }
        let bytes = Base64::decode_vec(self.data.get(key)?).ok()?;
        String::from_utf8(bytes).ok()
    }
}

impl std::fmt::Debug for KubeSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values must not reach a log.
        f.debug_struct("Secret").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

impl ConfigMap {
    /// Without keys that nothing here reads.
    pub(super) fn reduced(map: Arc<Self>) -> Arc<Self> {
        let mut map = Arc::unwrap_or_clone(map);
        map.data.retain(|key, _| key == "ca.crt");
        map.metadata.annotations.clear();
        Arc::new(map)
    }
}

impl LabelSelector {
    /// True if the labels meet all requirements.
    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let meets = |requirement: &LabelRequirement| {
            let value = labels.get(&requirement.key);
            match requirement.operator.as_str() {
                "In" => value.is_some_and(|value| requirement.values.contains(value)),
                "NotIn" => value.is_none_or(|value| !requirement.values.contains(value)),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        };
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(meets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors() {
        let labels = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        for (selector, expect) in [
            (r#"{}"#, true),
            (r#"{"matchLabels":{"a":"1"}}"#, true),
            (r#"{"matchLabels":{"a":"2"}}"#, false),
            (r#"{"matchExpressions":[{"key":"a","operator":"In","values":["1","2"]}]}"#, true),
            (r#"{"matchExpressions":[{"key":"a","operator":"NotIn","values":["1"]}]}"#, false),
            (r#"{"matchExpressions":[{"key":"b","operator":"Exists"}]}"#, false),
            (r#"{"matchExpressions":[{"key":"b","operator":"DoesNotExist"}]}"#, true),
            (r#"{"matchExpressions":[{"key":"a","operator":"Unknown"}]}"#, false),
        ] {
            let selector: LabelSelector = serde_json::from_str(selector).unwrap();
            assert_eq!(selector.matches(&labels), expect, "{selector:?}");
        }
    }
}
