//! Configuration of a rollout on this machine: a process that starts while the store is away begins with it.
//!
//! It is a value in a directory below the state directory, encrypted as those of the store are: a program that can write there
//! must not be able to give the server a configuration.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tailcoat_fleet::{ConfigChange, Expected, StoreReply, StoreRequest};
use tailcoat_store::{Measured, StoreError};

use super::thread::carry_out;
use crate::config::{StoreConfig, StorePlace, state_directory};
use crate::log::{ServerLog, event};

/// Key of the value.
const KEY: &str = "rollout/kept";

/// Configuration of a rollout on this machine.
pub(super) struct KeptConfig {
    store: Arc<Measured>,
    log: ServerLog,
}

/// Value of the key.
#[derive(Deserialize, Serialize)]
struct KeptValue {
    number: u64,
    /// Configuration; `None` is that of the file.
    text: Option<String>,
}

impl KeptConfig {
    /// Opens the one of this instance of a store; `None` if there is no state directory, or no secret.
    pub(super) fn open(config: &StoreConfig, place: &str, instance: &str, log: ServerLog) -> Option<Self> {
        let digest = Sha256::digest(format!("{place}\n{instance}"));
        let digest: String = digest[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        let directory = state_directory()?.join(format!("rollout-{digest}"));
        let local = StoreConfig { place: Some(StorePlace::Directory(directory)), ..config.clone() };
        // Encryption needs the secret.
        local.key_file.as_ref()?;
        Some(Self { store: tailcoat_store::open_alone(&local).ok()?, log })
    }

    /// Configuration of the rollout that ended last, unless that is the file's.
    pub(super) async fn read(&self) -> Option<ConfigChange> {
        let kept = match carry_out(&self.store, StoreRequest::Get(KEY.to_owned())).await {
            Ok(StoreReply::Entry(Some((value, _)))) => {
                serde_json::from_slice::<KeptValue>(&value).map_err(|error| StoreError::Wrong(error.to_string()))
            }
            Ok(_) => return None,
            Err(error) => Err(error),
        };
        match kept {
            Ok(KeptValue { number, text }) => Some(ConfigChange { number, text: Some(text?) }),
            Err(error) => {
                self.log.warn(
                    event("configuration of a rollout not restored", &[("error", &error)]),
                    "the configuration file is in use until the store responds",
                );
                None
            }
        }
    }

    /// Replaces it. Does not wait for the disk.
    pub(super) fn write(&self, change: ConfigChange) {
        let (store, log) = (Arc::clone(&self.store), self.log.clone());
        tokio::spawn(async move {
            let value = KeptValue { number: change.number, text: change.text };
            let put = |value| StoreRequest::Put { key: KEY.to_owned(), value, expect: Expected::Any };
            let result = match serde_json::to_vec(&value) {
                Ok(value) => carry_out(&store, put(value)).await.err(),
                Err(error) => Some(StoreError::Wrong(error.to_string())),
            };
            if let Some(error) = result {
                log.warn(
                    event("configuration of a rollout not kept", &[("error", &error)]),
                    "a process that starts while the store is away begins with the configuration file",
                );
            }
        });
    }
}
