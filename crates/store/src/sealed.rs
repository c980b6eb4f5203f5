//! Encryption of values, so that the engine and its other users can neither read nor forge them. Names of cached responses are
//! keyed hashes, so that they cannot find out by guessing which URLs are cached.
//!
//! An instance with another `key-file` could take values of the others for forged ones, and replace them. So the first instance
//! writes a proof, and one that cannot decrypt it neither writes nor counts. Once an instance has decrypted the proof, values
//! that it cannot decrypt are another program's: they have a flaw, and may be replaced.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::hmac;
use tailcoat_config::{StoreAbilities, StoreConfig};

use super::{
    EngineTime, Entry, Expectation, InstanceCount, LimitCharge, Pending, Put, SharedStore, Sharers, StoreError,
    StoreKey, ValueFlaw,
};

const KEY_BYTES: usize = 32;

/// Bytes of a keyed name.
const NAME_BYTES: usize = 16;

/// Bytes that encryption adds: nonce and tag.
const OVERHEAD_BYTES: usize = NONCE_LEN + 16;

/// Key of the proof, and its value.
const PROOF_KEY: &str = "key-proof";
const PROOF: &[u8] = b"tailcoat";

/// Time after which the proof is read again: before a write, and before counts, which are not encrypted.
const PROOF_TIME: Duration = Duration::from_secs(30);
const PROOF_TIME_OF_COUNTS: Duration = Duration::from_secs(2);

/// Result of the latest look at the proof.
#[derive(Clone, Copy, Debug, Default)]
struct ProofState {
    looked_at: Option<Instant>,
    /// True if the secret has decrypted the proof, in this process.
    was_proved: bool,
    /// True if the proof was there, and the secret has never decrypted it.
    is_refuted: bool,
}

/// Store that encrypts all values. Their keys are authenticated, so that a value cannot be moved to another key.
pub(super) struct SealedStore {
    store: Box<dyn SharedStore>,
    cipher: RandomizedNonceKey,
    /// Key of the names of values that may vanish.
    names: hmac::Key,
    sharers: Sharers,
    proof: Mutex<ProofState>,
}

struct CipherKeyBytes;

impl KeyType for CipherKeyBytes {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

impl SealedStore {
    pub(super) fn new(store: Box<dyn SharedStore>, secret: &[u8], sharers: Sharers) -> Result<Self, StoreError> {
        let least = StoreConfig::KEY_BYTES_MIN;
        if secret.len() < least {
            return Err(StoreError::Wrong(format!("the secret of `key-file` is shorter than {least} bytes")));
        }
        let failed = |_| StoreError::Wrong("the secret of `key-file` cannot be used".to_owned());
        let pseudorandom = Salt::new(HKDF_SHA256, b"tailcoat store").extract(secret);
        let derive = |purpose: &[u8]| {
            let mut key = [0; KEY_BYTES];
            pseudorandom.expand(&[purpose], CipherKeyBytes).and_then(|expanded| expanded.fill(&mut key)).map(|()| key)
        };
        let key = derive(b"values").map_err(failed)?;
        let names = hmac::Key::new(hmac::HMAC_SHA256, &derive(b"names").map_err(failed)?);
        Ok(Self {
            store,
            cipher: RandomizedNonceKey::new(&AES_256_GCM, &key).map_err(failed)?,
            names,
            sharers,
            proof: Mutex::default(),
        })
    }

    fn proof(&self) -> ProofState {
        *self.proof.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the proof, unless that was done within this time. Fails if instances have another `key-file`.
    async fn prove(&self, time: Duration) -> Result<(), StoreError> {
        if self.sharers == Sharers::None {
            return Ok(());
        }
        let known = self.proof();
        let refuted = || StoreError::Unusable("instances of this store have another `key-file`".to_owned());
        if known.looked_at.is_some_and(|at| at.elapsed() < time) {
            return if known.is_refuted { Err(refuted()) } else { Ok(()) };
        }
        let key = StoreKey::new(PROOF_KEY).map_err(|error| StoreError::Wrong(error.to_string()))?;
        let mut next = ProofState { looked_at: Some(Instant::now()), ..known };
        // Twice: another instance may write it first.
        for _ in 0..2 {
            let entry = self.store.get(&key).await?;
            let opened = entry.as_ref().filter(|entry| entry.flaw.is_none()).map(|entry| self.open(&key, &entry.value));
            if matches!(opened, Some(Some(_))) {
                (next.was_proved, next.is_refuted) = (true, false);
                break;
            }
            let expect = match &entry {
                // Only after the values of all others are gone, too: else they would be the ones that are refuted.
                None if !known.is_refuted => Expectation::Absent,
                Some(entry) if known.was_proved => Expectation::Version(&entry.version),
                _ => {
                    next.is_refuted = true;
                    break;
                }
            };
            if let Put::Done(_) = self.store.put(&key, &self.seal(&key, PROOF)?, expect).await? {
                (next.was_proved, next.is_refuted) = (true, false);
                break;
            }
        }
        *self.proof.lock().unwrap_or_else(PoisonError::into_inner) = next;
        if next.is_refuted { Err(refuted()) } else { Ok(()) }
    }

    /// Key in the same folder whose name says nothing.
    fn blob_key(&self, key: &StoreKey) -> Result<StoreKey, StoreError> {
        let tag = hmac::sign(&self.names, key.as_str().as_bytes());
        let name: String = tag.as_ref().iter().take(NAME_BYTES).map(|byte| format!("{byte:02x}")).collect();
        StoreKey::new(format!("{}/{name}", key.folder())).map_err(|error| StoreError::Wrong(error.to_string()))
    }

    fn seal(&self, key: &StoreKey, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut sealed = value.to_vec();
        let nonce = self.cipher.seal_in_place_append_tag(Aad::from(key.as_str()), &mut sealed);
        let nonce = nonce.map_err(|_| StoreError::Wrong("no random numbers".to_owned()))?;
        Ok([&nonce.as_ref()[..], &sealed].concat())
    }

    /// Decrypts a value; `None` if it was not encrypted with this secret for this key.
    fn open(&self, key: &StoreKey, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut value = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = self.cipher.open_in_place(nonce, Aad::from(key.as_str()), &mut value).ok()?.len();
        value.truncate(length);
        Some(value)
    }

    /// Decrypts the value of an entry, which has a flaw if that fails.
    fn opened(&self, key: &StoreKey, entry: Entry) -> Entry {
        if entry.flaw.is_some() {
            return entry;
        }
        match self.open(key, &entry.value) {
            Some(value) => Entry::new(value, entry.version),
            None => Entry::flawed(ValueFlaw::Unauthenticated, entry.version),
        }
    }
}

impl fmt::Debug for SealedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Does not show the key.
        f.debug_tuple("SealedStore").field(&self.store).finish()
    }
}

impl SharedStore for SealedStore {
    fn abilities(&self) -> StoreAbilities {
        let abilities = self.store.abilities();
        StoreAbilities { value_bytes_max: abilities.value_bytes_max - OVERHEAD_BYTES, ..abilities }
    }

    fn get<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, Option<Entry>> {
        Box::pin(async move {
            let entry = self.store.get(key).await?.map(|entry| self.opened(key, entry));
            if let Some(flaw) = entry.as_ref().and_then(|entry| entry.flaw) {
                // With another secret, the instance must not take the value for garbage.
                self.prove(PROOF_TIME_OF_COUNTS).await.map_err(|_| StoreError::of_flaw(key, flaw))?;
            }
            Ok(entry)
        })
    }

    fn put<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], expect: Expectation<'a>) -> Pending<'a, Put> {
        Box::pin(async move {
            self.prove(PROOF_TIME).await?;
            self.store.put(key, &self.seal(key, value)?, expect).await
        })
    }

    fn delete<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        self.store.delete(key)
    }

    fn list<'a>(&'a self, folder: &'a StoreKey) -> Pending<'a, Vec<(StoreKey, Entry)>> {
        Box::pin(async move {
            let entries = self.store.list(folder).await?.into_iter();
            Ok(entries.map(|(key, entry)| (key.clone(), self.opened(&key, entry))).collect())
        })
    }

    // Keys are hashes, and counts say nothing. With another secret, an instance would count alone.
    fn charge<'a>(&'a self, charges: &'a [LimitCharge]) -> Pending<'a, Vec<u64>> {
        Box::pin(async move {
            self.prove(PROOF_TIME_OF_COUNTS).await?;
            self.store.charge(charges).await
        })
    }

    fn share_counts<'a>(&'a self, instance: &'a str, counts: &'a [InstanceCount]) -> Pending<'a, Vec<u32>> {
        Box::pin(async move {
            self.prove(PROOF_TIME_OF_COUNTS).await?;
            self.store.share_counts(instance, counts).await
        })
    }

    fn get_blob<'a>(&'a self, key: &'a StoreKey, bytes_max: usize) -> Pending<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let stored = self.blob_key(key)?;
            let sealed = self.store.get_blob(&stored, bytes_max.saturating_add(OVERHEAD_BYTES)).await?;
            let opened = |sealed: Vec<u8>| {
                self.open(key, &sealed).ok_or_else(|| StoreError::of_flaw(key, ValueFlaw::Unauthenticated))
            };
            sealed.map(opened).transpose()
        })
    }

    fn put_blob<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], time: Duration) -> Pending<'a, ()> {
        Box::pin(async move { self.store.put_blob(&self.blob_key(key)?, &self.seal(key, value)?, time).await })
    }

    fn delete_blob<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        Box::pin(async move { self.store.delete_blob(&self.blob_key(key)?).await })
    }

    fn time(&self) -> Pending<'_, Option<EngineTime>> {
        self.store.time()
    }
}
