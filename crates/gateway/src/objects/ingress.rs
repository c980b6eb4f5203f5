//! Ingresses.

use serde::Deserialize;
use serde_json::Value;

use super::Meta;

/// An Ingress.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Ingress {
    pub(crate) metadata: Meta,
    pub(crate) spec: IngressSpec,
    pub(crate) status: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct IngressSpec {
    pub(crate) ingress_class_name: Option<String>,
    pub(crate) default_backend: Option<IngressBackend>,
    pub(crate) tls: Vec<IngressTls>,
    pub(crate) rules: Vec<IngressRuleSpec>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct IngressTls {
    pub(crate) hosts: Vec<String>,
    pub(crate) secret_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct IngressRuleSpec {
    pub(crate) host: Option<String>,
    pub(crate) http: IngressHttp,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct IngressHttp {
    pub(crate) paths: Vec<IngressPath>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct IngressPath {
    pub(crate) path: Option<String>,
    pub(crate) path_type: String,
    pub(crate) backend: IngressBackend,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct IngressBackend {
    pub(crate) service: Option<IngressService>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct IngressService {
    pub(crate) name: String,
    pub(crate) port: IngressPort,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct IngressPort {
    pub(crate) name: Option<String>,
    pub(crate) number: Option<u16>,
}

/// A class of Ingresses.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct IngressClass {
    pub(crate) metadata: Meta,
    pub(crate) spec: IngressClassSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct IngressClassSpec {
    pub(crate) controller: String,
}
