//! Encryption of values, so that the engine and its other users can neither read nor forge them. Names of cached responses are
//! keyed hashes, so that they cannot find out by guessing which URLs are cached.

use std::fmt;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::hmac;
use tailcoat_config::{StoreAbilities, StoreConfig};

use super::{
    EngineTime, Entry, Expectation, InstanceCount, LimitCharge, Pending, Put, SharedStore, StoreError, StoreKey,
};

const KEY_BYTES: usize = 32;

/// Bytes of a keyed name.
const NAME_BYTES: usize = 16;

/// Bytes that encryption adds: nonce and tag.
const OVERHEAD_BYTES: usize = NONCE_LEN + 16;

/// Store that encrypts all values. Their keys are authenticated, so that a value cannot be moved to another key.
pub(super) struct SealedStore {
    store: Box<dyn SharedStore>,
    cipher: RandomizedNonceKey,
    /// Key of the names of values that may vanish.
    names: hmac::Key,
}

struct CipherKeyBytes;

impl KeyType for CipherKeyBytes {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

impl SealedStore {
    pub(super) fn new(store: Box<dyn SharedStore>, secret: &[u8]) -> Result<Self, StoreError> {
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
        Ok(Self { store, cipher: RandomizedNonceKey::new(&AES_256_GCM, &key).map_err(failed)?, names })
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

    fn open(&self, key: &StoreKey, entry: Entry) -> Result<Entry, StoreError> {
        Ok(Entry { value: self.open_value(key, &entry.value)?, version: entry.version })
    }

    fn open_value(&self, key: &StoreKey, sealed: &[u8]) -> Result<Vec<u8>, StoreError> {
        let wrong = || StoreError::Wrong(format!("the value of {key} was not encrypted with this `key-file`"));
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>().ok_or_else(wrong)?;
        let mut value = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.cipher.open_in_place(nonce, Aad::from(key.as_str()), &mut value);
        let length = opened.map_err(|_| wrong())?.len();
        value.truncate(length);
        Ok(value)
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
        Box::pin(async move { self.store.get(key).await?.map(|entry| self.open(key, entry)).transpose() })
    }

    fn put<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], expect: Expectation<'a>) -> Pending<'a, Put> {
        Box::pin(async move { self.store.put(key, &self.seal(key, value)?, expect).await })
    }

    fn delete<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        self.store.delete(key)
    }

    fn list<'a>(&'a self, folder: &'a StoreKey) -> Pending<'a, Vec<(StoreKey, Entry)>> {
        Box::pin(async move {
            let entries = self.store.list(folder).await?.into_iter();
            entries.map(|(key, entry)| self.open(&key, entry).map(|entry| (key, entry))).collect()
        })
    }

    // Keys are hashes, and counts say nothing.
    fn charge<'a>(&'a self, charges: &'a [LimitCharge]) -> Pending<'a, Vec<u64>> {
        self.store.charge(charges)
    }

    fn share_counts<'a>(&'a self, instance: &'a str, counts: &'a [InstanceCount]) -> Pending<'a, Vec<u32>> {
        self.store.share_counts(instance, counts)
    }

    fn get_blob<'a>(&'a self, key: &'a StoreKey, bytes_max: usize) -> Pending<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let stored = self.blob_key(key)?;
            let sealed = self.store.get_blob(&stored, bytes_max.saturating_add(OVERHEAD_BYTES)).await?;
            sealed.map(|sealed| self.open_value(key, &sealed)).transpose()
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
