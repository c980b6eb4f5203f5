//! Secrets of Kubernetes, and Leases for the keys of leases. The resource version of an object is the version.

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tailcoat_config::{KubernetesAccess, StoreAbilities, StoreConfig, tls_client_settings};
use tailcoat_rest::{KubernetesClient, RestError, RestResponse};

use super::{
    BoundedList, EngineTime, Entry, Expectation, LIST_MAX, LIST_RESPONSE_BYTES_MAX, Pending, Put, RESPONSE_BYTES_MAX,
    SharedStore, StoreError, StoreKey, StoredVersion, ValueFlaw, s3, salt,
};

/// Folder of keys that are Leases.
const LEASES: &str = "leases";

/// Entries of one page of a list.
const PAGE: usize = 500;

/// Entries of one page if more are too large together. A Secret has at most 1 MiB.
const SMALL_PAGE: usize = 4;

const LABEL: &str = "tailcoat.store/folder";
const KEY: &str = "tailcoat.store/key";
const VALUE: &str = "tailcoat.store/value";

/// Annotation with random letters. A change that repeats an object leaves its resource version as it is.
const SALT: &str = "tailcoat.store/salt";

/// Store of Kubernetes.
#[derive(Debug)]
pub(super) struct KubernetesStore {
    client: KubernetesClient,
    namespace: String,
    prefix: String,
    abilities: StoreAbilities,
}

impl KubernetesStore {
    pub(super) fn new(
        namespace: &str,
        prefix: &str,
        config: &StoreConfig,
        abilities: StoreAbilities,
    ) -> Result<Self, StoreError> {
        let StoreConfig { endpoint, authorities, password_file, .. } = config;
        let access = KubernetesAccess::new(endpoint.as_ref(), authorities.as_deref(), password_file.as_deref());
        let KubernetesAccess { endpoint, authorities, token_file } = access.map_err(StoreError::Wrong)?;
        let tls = endpoint.is_tls.then(|| tls_client_settings(authorities.as_deref())).transpose();
        let (place, tls) = ((endpoint.host.as_str(), endpoint.port), tls.map_err(StoreError::Wrong)?);
        let client = KubernetesClient::new(place, tls, token_file.as_deref(), RESPONSE_BYTES_MAX)?;
        Ok(Self { client, namespace: namespace.to_owned(), prefix: prefix.to_owned(), abilities })
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
        Ok(self.client.send(method, target, content).await?)
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
    fn entry(&self, object: &Value) -> Result<Option<(StoreKey, Entry)>, StoreError> {
        let metadata = &object["metadata"];
        let Some(key) = metadata["annotations"][KEY].as_str().and_then(|key| StoreKey::new(key).ok()) else {
            return Ok(None);
        };
        let version = Self::version(object)?;
        let encoded = metadata["annotations"][VALUE].as_str().or_else(|| object["data"]["value"].as_str());
        let entry = match Base64::decode_vec(encoded.unwrap_or_default()) {
            Ok(value) => Entry::new(value, version).within(key.value_bytes_max().min(self.abilities.value_bytes_max)),
            Err(_) => Entry::flawed(ValueFlaw::Foreign, version),
        };
        Ok(Some((key, entry)))
    }

    fn version(object: &Value) -> Result<StoredVersion, StoreError> {
        let version = object["metadata"]["resourceVersion"].as_str();
        let version = version.ok_or_else(|| StoreError::Wrong("no resource version".to_owned()))?;
        Ok(StoredVersion(version.to_owned()))
    }

    fn parse(response: &RestResponse) -> Result<Value, StoreError> {
        serde_json::from_slice(&response.content).map_err(|error| StoreError::Wrong(error.to_string()))
    }

    fn done(response: &RestResponse) -> Result<Put, StoreError> {
        Self::version(&Self::parse(response)?).map(Put::Done)
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
                StatusCode::OK => {
                    let object = Self::parse(&response)?;
                    match self.entry(&object)? {
                        Some((found, entry)) if found == *key => Ok(Some(entry)),
                        _ => Ok(Some(Entry::flawed(ValueFlaw::Foreign, Self::version(&object)?))),
                    }
                }
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
            let (mut list, mut next, mut page) = (BoundedList::new(), String::new(), PAGE);
            loop {
                let collection = self.collection(folder.as_str());
                let label = self.label_of(folder.as_str());
                // `=` and `/` of the selector must be encoded, and so may be those of the token.
                let selector = LABEL.replace('/', "%2F");
                let mut target = format!("{collection}?labelSelector={selector}%3D{label}&limit={page}");
                if !next.is_empty() {
                    target += &format!("&continue={next}");
                }
                let request = (Method::GET, target.as_str());
                let response = match self.client.send_within(LIST_RESPONSE_BYTES_MAX, request, Bytes::new()).await {
                    Err(RestError::TooLarge) if page == PAGE => {
                        page = SMALL_PAGE;
                        continue;
                    }
                    result => result?,
                };
                if response.status != StatusCode::OK {
                    return Err(StoreError::of_response(&response));
                }
                let found = Self::parse(&response)?;
                for object in found["items"].as_array().into_iter().flatten() {
                    if let Some((key, entry)) = self.entry(object)?.filter(|(key, _)| key.folder() == folder.as_str()) {
                        list.push(key, entry);
                    }
                }
                if list.entries.len() > LIST_MAX {
                    return Err(StoreError::TooLarge);
                }
                let token = found["metadata"]["continue"].as_str().unwrap_or_default();
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.=~".contains(&byte);
                match token {
                    "" => break,
                    token if token == next || !token.bytes().all(is_plain) => {
                        return Err(StoreError::Wrong("a list without end".to_owned()));
                    }
                    token => next = token.to_owned(),
                }
            }
            Ok(list.sorted())
        })
    }

    fn time(&self) -> Pending<'_, Option<EngineTime>> {
        Box::pin(async move {
            let response = self.send(Method::GET, "/version", Bytes::new()).await?;
            Ok(s3::time_of(&response.headers))
        })
    }
}
