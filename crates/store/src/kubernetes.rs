//! Secrets of Kubernetes, and Leases for the keys of leases. The resource version of an object is the version.

use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tailcoat_config::{StoreAbilities, StoreConfig, StoreEndpoint};
use tailcoat_rest::{RestClient, RestResponse};

use super::{
    EngineTime, Entry, Expectation, LIST_MAX, Pending, Put, SharedStore, StoreError, StoreKey, StoredVersion,
    rest_client, s3, salt,
};

/// Files of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Folder of keys that are Leases.
const LEASES: &str = "leases";

/// Entries of one page of a list.
const PAGE: usize = 500;

const LABEL: &str = "tailcoat.store/folder";
const KEY: &str = "tailcoat.store/key";
const VALUE: &str = "tailcoat.store/value";

/// Annotation with random letters. A change that repeats an object leaves its resource version as it is.
const SALT: &str = "tailcoat.store/salt";

/// Store of Kubernetes.
#[derive(Debug)]
pub(super) struct KubernetesStore {
    client: RestClient,
    namespace: String,
    prefix: String,
    /// File of the token; it is read for each request, because Kubernetes replaces it each hour.
    token: Option<PathBuf>,
    abilities: StoreAbilities,
}

impl KubernetesStore {
    pub(super) fn new(
        namespace: &str,
        prefix: &str,
        config: &StoreConfig,
        abilities: StoreAbilities,
    ) -> Result<Self, StoreError> {
        let account = Path::new(SERVICE_ACCOUNT);
        let mut config = config.clone();
        let endpoint = match &config.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => {
                let variable = |name: &str| {
                    std::env::var(name).map_err(|_| {
                        StoreError::Wrong(format!(
                            "{name} is not set: outside of a pod, `endpoint` names the API server"
                        ))
                    })
                };
                let port = variable("KUBERNETES_SERVICE_PORT_HTTPS").ok().and_then(|port| port.parse().ok());
                let host = variable("KUBERNETES_SERVICE_HOST")?;
                let authority = account.join("ca.crt");
                config.authorities.get_or_insert(authority);
                StoreEndpoint { is_tls: true, host, port: port.unwrap_or(443) }
            }
        };
        let token = config.password_file.clone().or_else(|| Some(account.join("token")).filter(|path| path.exists()));
        let client = rest_client(&endpoint, &config)?;
        Ok(Self { client, namespace: namespace.to_owned(), prefix: prefix.to_owned(), token, abilities })
    }

    /// Path of all objects of a folder's kind.
    fn collection(&self, folder: &str) -> String {
        match folder {
            LEASES => format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace),
            _ => format!("/api/v1/namespaces/{}/secrets", self.namespace),
        }
    }

    fn path_of(&self, key: &StoreKey) -> String {
        format!("{}/{}", self.collection(key.folder()), self.name_of(key))
    }

    /// Name of the object; keys may have letters that names may not.
    fn name_of(&self, key: &StoreKey) -> String {
        format!("{}-{}", self.prefix, digest(key.as_str()))
    }

    fn label_of(&self, folder: &str) -> String {
        digest(&format!("{}/{folder}", self.prefix))
    }

    async fn send(&self, method: Method, target: &str, content: Bytes) -> Result<RestResponse, StoreError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(path) = &self.token {
            let token = StoreConfig::read_secret(path).map_err(|error| StoreError::Denied(error.to_string()))?;
            let value = HeaderValue::from_bytes(&[b"Bearer ", token.as_slice()].concat());
            let mut value = value.map_err(|error| StoreError::Denied(error.to_string()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(self.client.send(method, target, headers, content).await?)
    }

    fn object(&self, key: &StoreKey, value: &[u8], version: Option<&StoredVersion>) -> Result<Bytes, StoreError> {
        let encoded = Base64::encode_string(value);
        let mut object = json!({
            "metadata": {
                "name": self.name_of(key),
                "labels": { "app.kubernetes.io/managed-by": "tailcoat", LABEL: self.label_of(key.folder()) },
                "annotations": { KEY: key.as_str(), SALT: Base64::encode_string(&salt::<12>()?) },
            },
        });
        match key.folder() {
            LEASES => {
                object["apiVersion"] = "coordination.k8s.io/v1".into();
                object["kind"] = "Lease".into();
                object["metadata"]["annotations"][VALUE] = encoded.into();
                // For people: `kubectl get leases` shows the holder.
                let record: Value = serde_json::from_slice(value).unwrap_or_default();
                object["spec"] = match record["owner"].as_str().filter(|owner| !owner.is_empty()) {
                    Some(owner) => json!({ "holderIdentity": owner }),
                    None => json!({}),
                };
            }
            _ => {
                object["apiVersion"] = "v1".into();
                object["kind"] = "Secret".into();
                object["type"] = "Opaque".into();
                object["data"] = json!({ "value": encoded });
            }
        }
        if let Some(version) = version {
            object["metadata"]["resourceVersion"] = version.0.as_str().into();
        }
        Ok(object.to_string().into())
    }

    /// Key and entry of an object, unless it is another's.
    fn entry(object: &Value) -> Result<Option<(StoreKey, Entry)>, StoreError> {
        let wrong = || StoreError::Wrong("an object without value".to_owned());
        let metadata = &object["metadata"];
        let Some(key) = metadata["annotations"][KEY].as_str().and_then(|key| StoreKey::new(key).ok()) else {
            return Ok(None);
        };
        let encoded = metadata["annotations"][VALUE].as_str().or_else(|| object["data"]["value"].as_str());
        let value = Base64::decode_vec(encoded.unwrap_or_default()).map_err(|_| wrong())?;
        let version = metadata["resourceVersion"].as_str().ok_or_else(wrong)?.to_owned();
        Ok(Some((key, Entry { value, version: StoredVersion(version) })))
    }

    fn parse(response: &RestResponse) -> Result<Value, StoreError> {
        serde_json::from_slice(&response.content).map_err(|error| StoreError::Wrong(error.to_string()))
    }

    fn done(response: &RestResponse) -> Result<Put, StoreError> {
        let object = Self::parse(response)?;
        let version = object["metadata"]["resourceVersion"].as_str();
        let version = version.ok_or_else(|| StoreError::Wrong("no resource version".to_owned()))?;
        Ok(Put::Done(StoredVersion(version.to_owned())))
    }

    async fn create(&self, key: &StoreKey, value: &[u8]) -> Result<Put, StoreError> {
        let content = self.object(key, value, None)?;
        let response = self.send(Method::POST, &self.collection(key.folder()), content).await?;
        match response.status {
            StatusCode::CREATED | StatusCode::OK => Self::done(&response),
            StatusCode::CONFLICT => Ok(Put::Conflict),
            _ => Err(StoreError::of_response(&response)),
        }
    }
}

/// Digest that is a label and a part of a name.
fn digest(text: &str) -> String {
    Sha256::digest(text)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl SharedStore for KubernetesStore {
    fn abilities(&self) -> StoreAbilities {
        self.abilities
    }

    fn get<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, Option<Entry>> {
        Box::pin(async move {
            let response = self.send(Method::GET, &self.path_of(key), Bytes::new()).await?;
            match response.status {
                StatusCode::NOT_FOUND => Ok(None),
                StatusCode::OK => match Self::entry(&Self::parse(&response)?)? {
                    Some((found, entry)) if found == *key => Ok(Some(entry)),
                    _ => Err(StoreError::Wrong(format!("an object that is not of {key} has its name"))),
                },
                _ => Err(StoreError::of_response(&response)),
            }
        })
    }

    fn put<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], expect: Expectation<'a>) -> Pending<'a, Put> {
        Box::pin(async move {
            let version = match expect {
                Expectation::Absent => return self.create(key, value).await,
                Expectation::Any => None,
                Expectation::Version(version) => Some(version),
            };
            loop {
                let content = self.object(key, value, version)?;
                let response = self.send(Method::PUT, &self.path_of(key), content).await?;
                match response.status {
                    StatusCode::OK | StatusCode::CREATED => return Self::done(&response),
                    StatusCode::CONFLICT | StatusCode::NOT_FOUND if version.is_some() => return Ok(Put::Conflict),
                    // Another writer may create it first: then it can be replaced. The time limit ends this.
                    StatusCode::NOT_FOUND => match self.create(key, value).await? {
                        Put::Conflict => {}
                        done => return Ok(done),
                    },
                    StatusCode::CONFLICT => {}
                    _ => return Err(StoreError::of_response(&response)),
                }
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        Box::pin(async move {
            let response = self.send(Method::DELETE, &self.path_of(key), Bytes::new()).await?;
            match response.status {
                StatusCode::OK | StatusCode::ACCEPTED | StatusCode::NOT_FOUND => Ok(()),
                _ => Err(StoreError::of_response(&response)),
            }
        })
    }

    fn list<'a>(&'a self, folder: &'a StoreKey) -> Pending<'a, Vec<(StoreKey, Entry)>> {
        Box::pin(async move {
            let (mut entries, mut next) = (Vec::new(), String::new());
            loop {
                let collection = self.collection(folder.as_str());
                let label = self.label_of(folder.as_str());
                // `=` and `/` of the selector must be encoded, and so may be those of the token.
                let selector = LABEL.replace('/', "%2F");
                let mut target = format!("{collection}?labelSelector={selector}%3D{label}&limit={PAGE}");
                if !next.is_empty() {
                    target += &format!("&continue={next}");
                }
                let response = self.send(Method::GET, &target, Bytes::new()).await?;
                if response.status != StatusCode::OK {
                    return Err(StoreError::of_response(&response));
                }
                let list = Self::parse(&response)?;
                for object in list["items"].as_array().into_iter().flatten() {
                    let entry = Self::entry(object)?;
                    entries.extend(entry.filter(|(key, _)| key.folder() == folder.as_str()));
                }
                if entries.len() > LIST_MAX {
                    return Err(StoreError::TooLarge);
                }
                let token = list["metadata"]["continue"].as_str().unwrap_or_default();
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.=~".contains(&byte);
                match token {
                    "" => break,
                    token if token == next || !token.bytes().all(is_plain) => {
                        return Err(StoreError::Wrong("a list without end".to_owned()));
                    }
                    token => next = token.to_owned(),
                }
            }
            entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            Ok(entries)
        })
    }

    fn time(&self) -> Pending<'_, Option<EngineTime>> {
        Box::pin(async move {
            let response = self.send(Method::GET, "/version", Bytes::new()).await?;
            Ok(s3::time_of(&response.headers))
        })
    }
}
