//! Consul's key-value store (HTTP API, "KV Store"). Its index of changes is the version; `?cas=` compares it.

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use tailcoat_config::{StoreAbilities, StoreConfig, StoreEndpoint};
use tailcoat_rest::{RestClient, RestResponse};

use super::{
    BoundedList, EngineTime, Entry, Expectation, LIST_MAX, LIST_RESPONSE_BYTES_MAX, Pending, Put, SharedStore,
    StoreError, StoreKey, StoredVersion, ValueFlaw, get_all, rest_client, s3, salt,
};

/// Random bytes at the start of each value. A change that repeats a value leaves the index as it is.
const SALT_BYTES: usize = 8;

/// Largest response with one value. Consul rejects values above 512 KiB, unless an operator has raised that limit.
const VALUE_RESPONSE_BYTES_MAX: usize = 8 << 20;

/// Store of Consul.
#[derive(Debug)]
pub(super) struct ConsulStore {
    client: RestClient,
    prefix: String,
    headers: HeaderMap,
    abilities: StoreAbilities,
}

/// Entry as Consul reports it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ConsulEntry {
    key: String,
    value: Option<String>,
    modify_index: u64,
}

impl ConsulStore {
    pub(super) fn new(
        endpoint: &StoreEndpoint,
        prefix: &str,
        config: &StoreConfig,
        abilities: StoreAbilities,
    ) -> Result<Self, StoreError> {
        let mut headers = HeaderMap::new();
        if let Some(path) = &config.password_file {
            let token = StoreConfig::read_secret(path).map_err(|error| StoreError::Wrong(error.to_string()))?;
            let mut token = HeaderValue::from_bytes(&token).map_err(|error| StoreError::Wrong(error.to_string()))?;
            token.set_sensitive(true);
            headers.insert("X-Consul-Token", token);
        }
        Ok(Self { client: rest_client(endpoint, config)?, prefix: prefix.to_owned(), headers, abilities })
    }

    async fn send(&self, method: Method, key: &str, query: &str, content: Bytes) -> Result<RestResponse, StoreError> {
        let target = format!("/v1/kv/{}/{key}{query}", self.prefix);
        Ok(self.client.send(method, &target, self.headers.clone(), content).await?)
    }

    async fn find(&self, key: &StoreKey) -> Result<Option<ConsulEntry>, StoreError> {
        // Without `consistent`, a leader that was cut off may respond with an old value.
        let response = self.read(key.as_str(), "?consistent", VALUE_RESPONSE_BYTES_MAX).await?;
        match response.status {
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::OK => Ok(Self::entries(&response)?.pop()),
            _ => Err(StoreError::of_response(&response)),
        }
    }

    async fn read(&self, key: &str, query: &str, bytes_max: usize) -> Result<RestResponse, StoreError> {
        let target = format!("/v1/kv/{}/{key}{query}", self.prefix);
        let request = (Method::GET, target.as_str());
        Ok(self.client.send_within(bytes_max, request, self.headers.clone(), Bytes::new()).await?)
    }

    /// Names in a folder, one by one because the values are too large together.
    async fn names(&self, folder: &StoreKey) -> Result<Vec<String>, StoreError> {
        let query = "?keys&separator=%2F&consistent";
        let response = self.read(&format!("{folder}/"), query, LIST_RESPONSE_BYTES_MAX).await?;
        match response.status {
            StatusCode::NOT_FOUND => Ok(Vec::new()),
            StatusCode::OK => {
                serde_json::from_slice(&response.content).map_err(|error| StoreError::Wrong(error.to_string()))
            }
            _ => Err(StoreError::of_response(&response)),
        }
    }

    /// Key of a name, if that is in this folder.
    fn key_of(&self, name: &str, folder: &StoreKey) -> Option<StoreKey> {
        let name = name.strip_prefix(&self.prefix)?.strip_prefix('/')?;
        StoreKey::new(name).ok().filter(|key| key.folder() == folder.as_str())
    }

    fn entries(response: &RestResponse) -> Result<Vec<ConsulEntry>, StoreError> {
        serde_json::from_slice(&response.content).map_err(|error| StoreError::Wrong(error.to_string()))
    }

    fn entry(&self, key: &StoreKey, found: ConsulEntry) -> Entry {
        let version = StoredVersion(found.modify_index.to_string());
        let value = Base64::decode_vec(found.value.as_deref().unwrap_or_default()).ok();
        match value.as_ref().and_then(|value| value.get(SALT_BYTES..)) {
            Some(value) => {
                Entry::new(value.to_vec(), version).within(key.value_bytes_max().min(self.abilities.value_bytes_max))
            }
            None => Entry::flawed(ValueFlaw::Foreign, version),
        }
    }
}

impl SharedStore for ConsulStore {
    fn abilities(&self) -> StoreAbilities {
        self.abilities
    }

    fn get<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, Option<Entry>> {
        Box::pin(async move { Ok(self.find(key).await?.map(|found| self.entry(key, found))) })
    }

    fn put<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], expect: Expectation<'a>) -> Pending<'a, Put> {
        Box::pin(async move {
            let query = match expect {
                Expectation::Any => String::new(),
                Expectation::Absent => "?cas=0".to_owned(),
                Expectation::Version(version) => match version.0.parse::<u64>() {
                    Ok(index) => format!("?cas={index}"),
                    Err(_) => return Ok(Put::Conflict),
                },
            };
            let content = Bytes::from([&salt::<SALT_BYTES>()?[..], value].concat());
            let response = self.send(Method::PUT, key.as_str(), &query, content.clone()).await?;
            match (response.status, response.content.trim_ascii()) {
                (StatusCode::OK, b"false") => Ok(Put::Conflict),
                (StatusCode::OK, b"true") => {
                    // The response has no version. A later one makes the next comparison fail, which is safe.
                    let unknown = StoredVersion("unknown".to_owned());
                    let found = self
                        .find(key)
                        .await?
                        .filter(|found| found.value.as_deref() == Some(&Base64::encode_string(&content)));
                    Ok(Put::Done(found.map_or(unknown, |found| StoredVersion(found.modify_index.to_string()))))
                }
                (StatusCode::OK, _) => Err(StoreError::Wrong("neither true nor false".to_owned())),
                _ => Err(StoreError::of_response(&response)),
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        Box::pin(async move {
            let response = self.send(Method::DELETE, key.as_str(), "", Bytes::new()).await?;
            if response.status == StatusCode::OK { Ok(()) } else { Err(StoreError::of_response(&response)) }
        })
    }

    fn list<'a>(&'a self, folder: &'a StoreKey) -> Pending<'a, Vec<(StoreKey, Entry)>> {
        Box::pin(async move {
            let response = match self.read(&format!("{folder}/"), "?recurse&consistent", LIST_RESPONSE_BYTES_MAX).await
            {
                Ok(response) => response,
                Err(StoreError::TooLarge) => {
                    let names = self.names(folder).await?;
                    let keys: Vec<StoreKey> = names.iter().filter_map(|name| self.key_of(name, folder)).collect();
                    return if keys.len() > LIST_MAX { Err(StoreError::TooLarge) } else { get_all(self, keys).await };
                }
                Err(error) => return Err(error),
            };
            let found = match response.status {
                StatusCode::NOT_FOUND => return Ok(Vec::new()),
                StatusCode::OK => Self::entries(&response)?,
                _ => return Err(StoreError::of_response(&response)),
            };
            if found.len() > LIST_MAX {
                return Err(StoreError::TooLarge);
            }
            let mut list = BoundedList::new();
            for found in found {
                if let Some(key) = self.key_of(&found.key, folder) {
                    let entry = self.entry(&key, found);
                    list.push(key, entry);
                }
            }
            Ok(list.sorted())
        })
    }

    fn time(&self) -> Pending<'_, Option<EngineTime>> {
        Box::pin(async move {
            let response =
                self.client.send(Method::GET, "/v1/status/leader", self.headers.clone(), Bytes::new()).await?;
            Ok(s3::time_of(&response.headers))
        })
    }
}
