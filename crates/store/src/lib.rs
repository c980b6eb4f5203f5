//! Stores that several instances share: a directory, Valkey or Redis, S3, Consul, Kubernetes.
//!
//! A store holds small values by key. [`SharedStore::put`] compares and sets in one step; leases and ordered events are built
//! on it (`crates/fleet`), so that all engines have them with the same guarantees. Engines are not trusted: each
//! operation has a time limit, each response a size limit, and a wrong response is an error.

mod consul;
mod directory;
mod key;
mod kubernetes;
mod measured;
#[cfg(feature = "valkey")]
mod resp_limit;
mod s3;
mod sealed;
#[cfg(feature = "valkey")]
mod valkey;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tailcoat_config::{StoreAbilities, StoreConfig, StoreEndpoint, StorePlace, tls_client_settings};
use tailcoat_rest::{RestClient, RestError, RestResponse};

pub use key::{KeyError, StoreKey};
pub use measured::{Measured, StoreCounts};

/// Result of an operation, some time later.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Largest number of entries of a list; further ones are an error.
pub const LIST_MAX: usize = 20_000;

/// Largest sum of the values of a list, in bytes. Further values are not read, and count as too large.
pub const LIST_BYTES_MAX: usize = 8 << 20;

/// Time after which the count of an instance that tells it no more is forgotten.
pub const COUNT_TIME: Duration = Duration::from_secs(5);

/// Largest response of an engine that is neither a value nor a list of values, in bytes.
const RESPONSE_BYTES_MAX: usize = 4 << 20;

/// Largest response of an engine with all values of a list, in bytes; each may have a third more as Base64.
const LIST_RESPONSE_BYTES_MAX: usize = 2 * LIST_BYTES_MAX;

/// Bytes that encryption adds to a value at most.
const ENVELOPE_BYTES: usize = 64;

/// Values by key.
pub trait SharedStore: Send + Sync + fmt::Debug {
    /// Abilities of the engine.
    fn abilities(&self) -> StoreAbilities;

    /// Value of a key. A value that cannot be used has a [flaw](Entry::flaw); it is an error only if the engine says no more.
    fn get<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, Option<Entry>>;

    /// Sets the value of a key if it is as expected.
    fn put<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], expect: Expectation<'a>) -> Pending<'a, Put>;

    /// Removes a key. Only for keys that are never set by [`Expectation::Version`], because a late writer may set them again.
    fn delete<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()>;

    /// Entries below a folder of keys, in the order of keys. Values that cannot be used do not affect the others.
    fn list<'a>(&'a self, folder: &'a StoreKey) -> Pending<'a, Vec<(StoreKey, Entry)>>;

    /// Counts requests of many keys; returns the backlog of each in nanoseconds, by the engine's clock.
    fn charge<'a>(&'a self, charges: &'a [LimitCharge]) -> Pending<'a, Vec<u64>> {
        let _ = charges;
        Box::pin(async { Err(StoreError::Unable) })
    }

    /// Replaces an instance's numbers of operations in progress of many keys; returns those of other instances, of each key.
    /// A number is forgotten after [`COUNT_TIME`].
    fn share_counts<'a>(&'a self, instance: &'a str, counts: &'a [InstanceCount]) -> Pending<'a, Vec<u32>> {
        let _ = (instance, counts);
        Box::pin(async { Err(StoreError::Unable) })
    }

    /// Value of a key that [`Self::put_blob`] has set; an empty value is none. A larger one than `bytes_max` is an error, and is
    /// not read.
    fn get_blob<'a>(&'a self, key: &'a StoreKey, bytes_max: usize) -> Pending<'a, Option<Vec<u8>>> {
        let _ = (key, bytes_max);
        Box::pin(async { Err(StoreError::Unable) })
    }

    /// Sets the value of a key that may vanish at any time, and does after `time` at the latest if the engine can do that. It
    /// has no version. Its folder has only such keys, and is never listed.
    fn put_blob<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], time: Duration) -> Pending<'a, ()> {
        let _ = (key, value, time);
        Box::pin(async { Err(StoreError::Unable) })
    }

    /// Removes a key that [`Self::put_blob`] has set.
    fn delete_blob<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        let _ = key;
        Box::pin(async { Err(StoreError::Unable) })
    }

    /// Time of the engine, in milliseconds since 1970, if it tells one. The flag is its accuracy, in milliseconds.
    fn time(&self) -> Pending<'_, Option<EngineTime>> {
        Box::pin(async { Ok(None) })
    }
}

/// Value with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Value; empty if it has a flaw.
    pub value: Vec<u8>,
    /// Changes with each change of the value.
    pub version: StoredVersion,
    /// Reason why the value cannot be used.
    pub flaw: Option<ValueFlaw>,
}

/// Reason why a value cannot be used. A put with its version replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueFlaw {
    /// Larger than any value of its kind.
    TooLarge,
    /// In a form that no instance writes.
    Foreign,
    /// Not encrypted with the `key-file` of this instance.
    Unauthenticated,
}

/// Version of a value; no two changes of a key have the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredVersion(pub String);

impl Entry {
    fn new(value: Vec<u8>, version: StoredVersion) -> Self {
        Self { value, version, flaw: None }
    }

    fn flawed(flaw: ValueFlaw, version: StoredVersion) -> Self {
        Self { value: Vec::new(), version, flaw: Some(flaw) }
    }

    /// This entry, or a flawed one if the value has more bytes than this.
    fn within(self, bytes_max: usize) -> Self {
        if self.value.len() > bytes_max { Self::flawed(ValueFlaw::TooLarge, self.version) } else { self }
    }
}

impl fmt::Display for ValueFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "it is larger than any value of its kind",
            Self::Foreign => "no instance writes such values",
            Self::Unauthenticated => "it was not encrypted with this `key-file`",
        })
    }
}

/// Values of a list, of which the sum is bounded.
struct BoundedList {
    entries: Vec<(StoreKey, Entry)>,
    bytes_left: usize,
}

impl BoundedList {
    fn new() -> Self {
        Self { entries: Vec::new(), bytes_left: LIST_BYTES_MAX }
    }

    /// True if no further value has a place.
    fn is_full(&self) -> bool {
        self.bytes_left == 0
    }

    fn push(&mut self, key: StoreKey, entry: Entry) {
        let Some(bytes_left) = self.bytes_left.checked_sub(entry.value.len()) else {
            // No smaller value after it is read either: the engine's order decides.
            self.bytes_left = 0;
            return self.push_unread(key);
        };
        self.bytes_left = bytes_left;
        self.entries.push((key, entry));
    }

    /// Adds an entry that is not read.
    fn push_unread(&mut self, key: StoreKey) {
        self.entries.push((key, Entry::flawed(ValueFlaw::TooLarge, StoredVersion(String::new()))));
    }

    fn sorted(mut self) -> Vec<(StoreKey, Entry)> {
        self.entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        self.entries
    }
}

/// Entries of these keys, read one after another, in the order of keys.
async fn get_all(store: &impl SharedStore, mut keys: Vec<StoreKey>) -> Result<Vec<(StoreKey, Entry)>, StoreError> {
    keys.sort_unstable();
    let mut list = BoundedList::new();
    for key in keys {
        if list.is_full() {
            list.push_unread(key);
            continue;
        }
        match store.get(&key).await {
            Ok(Some(entry)) => list.push(key, entry),
            // Removed since.
            Ok(None) => {}
            Err(StoreError::Unusable(_)) => list.push_unread(key),
            Err(error) => return Err(error),
        }
    }
    Ok(list.sorted())
}

/// State of a key that a change needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation<'a> {
    /// Any state.
    Any,
    /// No value.
    Absent,
    /// Value of this version.
    Version(&'a StoredVersion),
}

/// Result of [`SharedStore::put`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// The value is set, and has this version.
    Done(StoredVersion),
    /// The key was not as expected; nothing changed.
    Conflict,
}

/// Requests of one key since the last charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCharge {
    /// Hash of the limit and the key.
    pub key: u64,
    /// Requests times the interval of the limit, in nanoseconds.
    pub cost_ns: u64,
    /// Largest backlog that is kept, in nanoseconds.
    pub backlog_ns_max: u64,
}

/// Operations in progress of one key, at one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceCount {
    /// Hash of the limit and the key.
    pub key: u64,
    /// Operations in progress.
    pub count: u32,
}

/// Time of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineTime {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// Accuracy, in milliseconds.
    pub accuracy_ms: u64,
}

/// Reason why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The engine cannot be reached.
    Unreachable(String),
    /// The operation took longer than its time limit. It may have been carried out.
    TimedOut,
    /// The engine rejects this user.
    Denied(String),
    /// The engine is overloaded, or has no space.
    Busy(String),
    /// The response is not one of this engine.
    Wrong(String),
    /// The engine works, but a value is none that this instance can use.
    Unusable(String),
    /// A value or response is larger than its limit.
    TooLarge,
    /// The engine cannot do this.
    Unable,
}

impl StoreError {
    /// Advice for the operator.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Unreachable(_) | Self::TimedOut => {
                "instances continue without it; check the engine and the network to it"
            }
            Self::Denied(_) => "check `username` and `password-file`, and what this user may do",
            Self::Busy(_) => "give the engine more memory, disk or CPU time",
            Self::Wrong(_) => "check `url`; another program may use these keys",
            Self::Unusable(_) => "check `key-file` on all instances; another program may use these keys",
            Self::TooLarge => "another program may use these keys; choose another prefix",
            Self::Unable => "share less, or use another engine",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(reason) => write!(f, "the store cannot be reached: {reason}"),
            Self::TimedOut => f.write_str("the store did not respond in time"),
            Self::Denied(reason) => write!(f, "the store denies access: {reason}"),
            Self::Busy(reason) => write!(f, "the store is busy: {reason}"),
            Self::Wrong(reason) => write!(f, "unexpected response of the store: {reason}"),
            Self::Unusable(reason) => f.write_str(reason),
            Self::TooLarge => f.write_str("a value of the store is too large"),
            Self::Unable => f.write_str("the engine of the store cannot do this"),
        }
    }
}

impl std::error::Error for StoreError {}

impl StoreError {
    /// Error for a value with a flaw.
    pub fn of_flaw(key: &StoreKey, flaw: ValueFlaw) -> Self {
        Self::Unusable(format!("the value of {key} cannot be used: {flaw}"))
    }

    /// Error for a status that the operation does not expect.
    fn of_response(response: &RestResponse) -> Self {
        let reason = response.excerpt();
        match response.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Denied(reason),
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::INSUFFICIENT_STORAGE => Self::Busy(reason),
            status if status.is_server_error() => Self::Busy(reason),
            _ => Self::Wrong(reason),
        }
    }
}

impl From<RestError> for StoreError {
    fn from(error: RestError) -> Self {
        match error {
            RestError::Unreachable(reason) => Self::Unreachable(reason),
            RestError::TooLarge => Self::TooLarge,
            RestError::Denied(reason) => Self::Denied(reason),
            RestError::Status(_, reason) | RestError::Invalid(reason) => Self::Wrong(reason),
        }
    }
}

/// Client of an engine that speaks HTTP.
fn rest_client(endpoint: &StoreEndpoint, config: &StoreConfig) -> Result<RestClient, StoreError> {
    let tls = endpoint.is_tls.then(|| tls_client_settings(config.authorities.as_deref())).transpose();
    Ok(RestClient::new(&endpoint.host, endpoint.port, tls.map_err(StoreError::Wrong)?, RESPONSE_BYTES_MAX)?)
}

/// Random bytes that make each change of a value a change for engines that compare contents.
fn salt<const COUNT: usize>() -> Result<[u8; COUNT], StoreError> {
    let mut salt = [0; COUNT];
    aws_lc_rs::rand::fill(&mut salt).map_err(|_| StoreError::Busy("no random numbers".to_owned()))?;
    Ok(salt)
}

/// Opens the store of a configuration. Connects only when an operation needs it.
///
/// # Errors
/// A file cannot be read, or this build lacks the engine.
pub fn open(config: &StoreConfig) -> Result<Arc<Measured>, StoreError> {
    open_for(config, Sharers::Instances)
}

/// Opens a store that no other instance uses.
///
/// # Errors
/// As [`open`].
pub fn open_alone(config: &StoreConfig) -> Result<Arc<Measured>, StoreError> {
    open_for(config, Sharers::None)
}

/// Other users of a store, which may have another secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharers {
    None,
    Instances,
}

fn open_for(config: &StoreConfig, sharers: Sharers) -> Result<Arc<Measured>, StoreError> {
    let wrong = |error: &dyn fmt::Display| StoreError::Wrong(error.to_string());
    let place = config.place.as_ref().ok_or_else(|| wrong(&"the store has no `url`"))?;
    let store: Box<dyn SharedStore> = match place {
        StorePlace::Directory(path) => Box::new(directory::DirectoryStore::new(path.clone(), place.abilities())),
        #[cfg(feature = "valkey")]
        StorePlace::Valkey(valkey) => Box::new(valkey::ValkeyStore::new(valkey, config, place.abilities())?),
        #[cfg(not(feature = "valkey"))]
        StorePlace::Valkey(_) => return Err(wrong(&"this build of tailcoat has no Valkey; use a packaged build")),
        StorePlace::S3 { bucket, prefix } => Box::new(s3::S3Store::new(bucket, prefix, config, place.abilities())?),
        StorePlace::Consul { endpoint, prefix } => {
            Box::new(consul::ConsulStore::new(endpoint, prefix, config, place.abilities())?)
        }
        StorePlace::Kubernetes { namespace, prefix } => {
            Box::new(kubernetes::KubernetesStore::new(namespace, prefix, config, place.abilities())?)
        }
    };
    let store = match &config.key_file {
        None => store,
        Some(path) => {
            let secret = StoreConfig::read_secret(path).map_err(|error| wrong(&error))?;
            Box::new(sealed::SealedStore::new(store, &secret, sharers)?)
        }
    };
    Ok(Arc::new(Measured::new(store, config.timeout)))
}
