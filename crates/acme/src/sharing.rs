//! Certificates that instances share through a store: one order at a time, its challenges answered by all.
//!
//! | key | value |
//! |---|---|
//! | `certificates/NAME` | certificate chain and key, as PEM |
//! | `orders/NAME` | URL of the order in progress, and the key of its certificate |
//! | `attempts/NAME` | consecutive failures, and the time of the next attempt |
//! | `accounts/CA` | credentials of the account |
//! | `challenges/ID` | challenge that all instances answer |
//! | `leases/acme-NAME` | instance that orders the certificate |

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tailcoat_config::{Config, SharedState, StoreConfig};
use tailcoat_fleet::{Expected, FleetLease, LeaseRequest};
use tailcoat_store::{Expectation, Measured, Put, SharedStore, StoreError, StoreKey, StoredVersion};
use tailcoat_tls::{Shown, Validations};
use tokio::time::sleep;

/// Time for which a challenge is answered at most; its order may have ended with its instance.
const CHALLENGE_SECONDS: u64 = 600;

/// Reads of challenges that other instances have time for, before the CA looks.
const READS_BEFORE_VALIDATION: u32 = 3;

/// Store of certificates.
#[derive(Clone, Debug)]
pub(super) struct Sharing {
    store: Arc<Measured>,
    config: StoreConfig,
    /// Name that no other process has.
    id: String,
}

/// Challenge that all instances answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SharedChallenge {
    /// Content of the response to a token.
    Http { token: String, answer: String, until_unix_seconds: u64 },
    /// Digest in the certificate for a name.
    Tls { name: String, digest: Vec<u8>, until_unix_seconds: u64 },
}

/// Order in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SharedOrder {
    pub(super) url: String,
    pub(super) key_pem: String,
}

/// Lease of a certificate. Dropping it gives the lease back.
#[derive(Debug)]
pub(super) struct Held {
    end: Option<tokio::sync::oneshot::Sender<()>>,
    state: Arc<Mutex<FleetLease>>,
    start: Instant,
}

impl Held {
    /// True while no other instance may order the certificate.
    pub(super) fn is_held(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_held(self.start.elapsed())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The task gives the lease back. Without it, the lease ends by its time.
        drop(self.end.take());
    }
}

impl Sharing {
    /// Store of this configuration, if certificates are shared.
    ///
    /// # Errors
    /// A file of the configuration cannot be read.
    pub(super) fn of(config: &Config) -> io::Result<Option<Self>> {
        let Some(config) = config.store.as_ref().filter(|store| store.has(SharedState::Certificates)) else {
            return Ok(None);
        };
        let store = tailcoat_store::open(config).map_err(io::Error::other)?;
        let name = config.instance.as_deref().unwrap_or_default();
        let id = format!("{name}-{:016x}", fastrand::u64(..));
        Ok(Some(Self { store, config: config.clone(), id }))
    }

    /// True if both use the same store in the same way.
    pub(super) fn is_same(one: Option<&Self>, other: Option<&Self>) -> bool {
        one.map(|sharing| &sharing.config) == other.map(|sharing| &sharing.config)
    }

    fn key(folder: &str, name: &str) -> Result<StoreKey, StoreError> {
        let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "-_.".contains(*letter);
        let name: String = name.chars().filter(is_plain).collect();
        StoreKey::new(format!("{folder}/{name}")).map_err(|error| StoreError::Wrong(error.to_string()))
    }

    /// Text of a key.
    pub(super) async fn read(&self, folder: &str, name: &str) -> Result<Option<String>, StoreError> {
        let key = Self::key(folder, name)?;
        let entry = self.store.get(&key).await?;
        if let Some(flaw) = entry.as_ref().and_then(|entry| entry.flaw) {
            return Err(StoreError::of_flaw(&key, flaw));
        }
        let text = |entry: tailcoat_store::Entry| String::from_utf8(entry.value);
        entry.map(text).transpose().map_err(|error| StoreError::Wrong(error.to_string()))
    }

    /// Value of a key; none if it cannot be parsed.
    pub(super) async fn read_json<T: DeserializeOwned>(
        &self,
        folder: &str,
        name: &str,
    ) -> Result<Option<T>, StoreError> {
        Ok(self.read(folder, name).await?.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Sets a key.
    pub(super) async fn write(&self, folder: &str, name: &str, text: &str) -> Result<(), StoreError> {
        self.store.put(&Self::key(folder, name)?, text.as_bytes(), Expectation::Any).await.map(|_| ())
    }

    /// Sets a key that is absent; false if another instance was first.
    pub(super) async fn create(&self, folder: &str, name: &str, text: &str) -> Result<bool, StoreError> {
        let put = self.store.put(&Self::key(folder, name)?, text.as_bytes(), Expectation::Absent).await?;
        Ok(matches!(put, Put::Done(_)))
    }

    /// Removes a key.
    pub(super) async fn remove(&self, folder: &str, name: &str) -> Result<(), StoreError> {
        self.store.delete(&Self::key(folder, name)?).await
    }

    /// Takes the lease of a certificate; none if another instance has it, or the store is away.
    pub(super) async fn hold(&self, name: &str) -> Option<Held> {
        let key = Self::key("leases", &format!("acme-{name}")).ok()?;
        let (start, patience) = (Instant::now(), self.config.lease_time * 2);
        let mut lease = FleetLease::new(&self.id, self.config.lease_time);
        while !lease.is_held(start.elapsed()) {
            if start.elapsed() > patience {
                return None;
            }
            self.drive(&mut lease, &key, start).await;
            // Another instance renews it: its work goes on.
            let is_others = !lease.owner().is_empty() && lease.owner() != self.id;
            if is_others && start.elapsed() > self.config.lease_time + self.config.lease_time / 2 {
                return None;
            }
            if !lease.is_held(start.elapsed()) {
                let wake = lease.next_wake().unwrap_or_default();
                sleep(wake.saturating_sub(start.elapsed()).clamp(Duration::from_millis(10), Duration::from_secs(1)))
                    .await;
            }
        }
        let state = Arc::new(Mutex::new(lease));
        let (end, mut ended) = tokio::sync::oneshot::channel();
        let (sharing, of_task) = (self.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            loop {
                let wake = of_task.lock().unwrap_or_else(PoisonError::into_inner).next_wake().unwrap_or_default();
                tokio::select! {
                    _ = &mut ended => break,
                    () = sleep(wake.saturating_sub(start.elapsed()).max(Duration::from_millis(10))) => {}
                }
                sharing.drive_shared(&of_task, &key, start).await;
            }
            of_task.lock().unwrap_or_else(PoisonError::into_inner).release();
            sharing.drive_shared(&of_task, &key, start).await;
        });
        Some(Held { end: Some(end), state, start })
    }

    async fn drive_shared(&self, lease: &Mutex<FleetLease>, key: &StoreKey, start: Instant) {
        let request = lease.lock().unwrap_or_else(PoisonError::into_inner).poll(start.elapsed());
        let Some(request) = request else { return };
        let reply = self.carry_out(request, key).await;
        reply.tell(&mut lease.lock().unwrap_or_else(PoisonError::into_inner), start.elapsed());
    }

    async fn drive(&self, lease: &mut FleetLease, key: &StoreKey, start: Instant) {
        while let Some(request) = lease.poll(start.elapsed()) {
            self.carry_out(request, key).await.tell(lease, start.elapsed());
        }
    }

    async fn carry_out(&self, request: LeaseRequest, key: &StoreKey) -> LeaseReply {
        match request {
            LeaseRequest::Read => match self.store.get(key).await {
                Ok(entry) => LeaseReply::Entry(entry.map(|entry| (entry.value, entry.version.0))),
                Err(_) => LeaseReply::Unknown,
            },
            LeaseRequest::Write(value, expect) => {
                let version;
                let expect = match expect {
                    Expected::Any => Expectation::Any,
                    Expected::Absent => Expectation::Absent,
                    Expected::Version(text) => {
                        version = StoredVersion(text);
                        Expectation::Version(&version)
                    }
                };
                match self.store.put(key, &value, expect).await {
                    Ok(Put::Done(version)) => LeaseReply::Written(Some(version.0)),
                    Ok(Put::Conflict) => LeaseReply::Written(None),
                    Err(_) => LeaseReply::Unknown,
                }
            }
        }
    }

    /// Lets all instances answer a challenge. Returns its name, for [`Self::remove`].
    pub(super) async fn show(&self, challenge: &SharedChallenge) -> Result<String, StoreError> {
        let text = serde_json::to_string(challenge).map_err(|error| StoreError::Wrong(error.to_string()))?;
        let name = challenge.id();
        self.write("challenges", &name, &text).await?;
        Ok(name)
    }

    /// Waits until instances that can reach the store have read the challenges.
    pub(super) async fn await_readers(&self) {
        sleep(self.read_interval() * READS_BEFORE_VALIDATION).await;
    }

    fn read_interval(&self) -> Duration {
        self.config.poll_interval().max(Duration::from_millis(250)) * 2
    }

    /// Answers the challenges of all instances, until it is dropped.
    pub(super) async fn answer_challenges(self, validations: Arc<Validations>) {
        let mut shown: HashMap<String, (SharedChallenge, Shown)> = HashMap::new();
        let Ok(folder) = StoreKey::new("challenges") else { return };
        loop {
            // While the store is away, known challenges are still answered.
            if let Ok(entries) = self.store.list(&folder).await {
                let now = unix_seconds();
                let parse = |(key, entry): (StoreKey, tailcoat_store::Entry)| {
                    let challenge: SharedChallenge = serde_json::from_slice(&entry.value).ok()?;
                    Some((key.name().to_owned(), challenge))
                };
                let mut wanted: HashMap<String, SharedChallenge> = HashMap::new();
                for (name, challenge) in entries.into_iter().filter_map(parse) {
                    if challenge.until_unix_seconds() > now {
                        wanted.insert(name, challenge);
                    } else if challenge.until_unix_seconds() + CHALLENGE_SECONDS < now {
                        // Its instance has ended.
                        let _ = self.remove("challenges", &name).await;
                    }
                }
                shown.retain(|name, (challenge, _)| wanted.get(name) == Some(challenge));
                for (name, challenge) in wanted {
                    if !shown.contains_key(&name)
                        && let Some(guard) = challenge.show(&validations)
                    {
                        shown.insert(name, (challenge, guard));
                    }
                }
            }
            sleep(self.read_interval()).await;
        }
    }
}

/// Reply to a request of a lease.
enum LeaseReply {
    Entry(Option<(Vec<u8>, String)>),
    Written(Option<String>),
    Unknown,
}

impl LeaseReply {
    fn tell(self, lease: &mut FleetLease, now: Duration) {
        match self {
            Self::Entry(entry) => lease.on_entry(now, entry),
            Self::Written(version) => lease.on_written(now, version),
            Self::Unknown => lease.on_unknown(now),
        }
    }
}

impl SharedChallenge {
    pub(super) fn http(token: &str, answer: &str) -> Self {
        let until_unix_seconds = unix_seconds() + CHALLENGE_SECONDS;
        Self::Http { token: token.to_owned(), answer: answer.to_owned(), until_unix_seconds }
    }

    pub(super) fn tls(name: &str, digest: &[u8]) -> Self {
        let until_unix_seconds = unix_seconds() + CHALLENGE_SECONDS;
        Self::Tls { name: name.to_owned(), digest: digest.to_owned(), until_unix_seconds }
    }

    fn id(&self) -> String {
        let whole = match self {
            Self::Http { token, .. } => format!("http {token}"),
            Self::Tls { name, .. } => format!("tls {name}"),
        };
        Sha256::digest(whole)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn until_unix_seconds(&self) -> u64 {
        match self {
            Self::Http { until_unix_seconds, .. } | Self::Tls { until_unix_seconds, .. } => *until_unix_seconds,
        }
    }

    fn show(&self, validations: &Arc<Validations>) -> Option<Shown> {
        match self {
            Self::Http { token, answer, .. } => Some(validations.show_response(token, answer)),
            Self::Tls { name, digest, .. } => validations.show_handshake(name, digest).ok(),
        }
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
