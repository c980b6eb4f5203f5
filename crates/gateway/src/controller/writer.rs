//! Writes statuses and Services to the API server, on a task of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;

use super::log;
use crate::client::{Client, ClientError};
use crate::objects::{Key, Kind, Objects};
use crate::translate::Translation;

/// Least and longest time between tries after an error.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Resources to write, by path. `true` is a status, `false` a resource to apply.
type Wanted = BTreeMap<String, (bool, Value)>;

/// Statuses and Services to write.
pub(super) struct Writes {
    client: Arc<Client>,
    is_leading: bool,
    wanted: watch::Sender<Arc<Wanted>>,
    /// Services as they were applied last.
    applied: BTreeMap<Key, Value>,
}

impl Writes {
    pub(super) fn new(client: Arc<Client>) -> Self {
        let (wanted, receiver) = watch::channel(Arc::default());
        tokio::spawn(run(Arc::clone(&client), receiver));
        Self { client, is_leading: false, wanted, applied: BTreeMap::new() }
    }

    pub(super) fn set_leading(&mut self, is_leading: bool) {
        self.is_leading = is_leading;
        // Another replica may have written in the meantime.
        self.applied.clear();
        log(format_args!("requests sent to the API server so far: {}", self.client.requests()));
    }

    /// Sets what is written: statuses that differ from the stored ones.
    pub(super) fn set(&mut self, objects: &Objects, translation: &Translation) {
        let mut wanted = Wanted::new();
        if self.is_leading {
            for ((kind, key), status) in &translation.statuses.0 {
                if objects.status(*kind, key).is_some_and(|stored| !has(stored, status)) {
                    wanted.insert(path(*kind, key), (true, status.clone()));
                }
            }
            for (key, service) in &translation.services {
                if self.applied.get(key) != Some(service) || !objects.services.contains_key(key) {
                    wanted.insert(path(Kind::Service, key), (false, service.clone()));
                    self.applied.insert(key.clone(), service.clone());
                }
            }
            self.applied.retain(|key, _| translation.services.contains_key(key));
        }
        self.wanted.send_replace(Arc::new(wanted));
    }
}

fn path(kind: Kind, key: &Key) -> String {
    match key.namespace.as_str() {
        "" => format!("{}/{}/{}", kind.api(), kind.plural(), key.name),
        namespace => format!("{}/namespaces/{namespace}/{}/{}", kind.api(), kind.plural(), key.name),
    }
}

/// True if a stored status has all members of a wanted one.
fn has(stored: &Value, wanted: &Value) -> bool {
    let Value::Object(members) = wanted else { return stored == wanted };
    members.iter().all(|(name, value)| {
        let stored = &stored[name.as_str()];
        // The API server does not store empty lists and numbers that are optional.
        stored == value || stored.is_null() && (value == &Value::Array(Vec::new()) || value == 0)
    })
}

async fn run(client: Arc<Client>, mut wanted: watch::Receiver<Arc<Wanted>>) {
    let mut written = Wanted::new();
    while wanted.changed().await.is_ok() {
        let mut wait = RETRY_MIN;
        'again: loop {
            let current = Arc::clone(&wanted.borrow_and_update());
            written.retain(|path, value| current.get(path) == Some(value));
            let mut failed = false;
            for (path, value) in current.iter() {
                if written.get(path) == Some(value) {
                    continue;
                }
                match write(&client, path, value).await {
                    Ok(()) => drop(written.insert(path.clone(), value.clone())),
                    Err(error) => {
                        log(format_args!("cannot write {path}: {error}"));
                        failed = true;
                    }
                }
                if wanted.has_changed().unwrap_or(false) {
                    wait = RETRY_MIN;
                    continue 'again;
                }
            }
            if !failed {
                break;
            }
            sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }
}

async fn write(client: &Client, path: &str, (is_status, value): &(bool, Value)) -> Result<(), ClientError> {
    let result = if *is_status { client.patch_status(path, value).await } else { client.apply(path, value).await };
    match result {
        Ok(_) => Ok(()),
        // The resource, or its namespace, is gone: there is nothing to write.
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stored_statuses() {
        for (stored, wanted, expect) in [
            (json!({"a": 1, "b": 2}), json!({"a": 1}), true),
            (json!({"a": 1}), json!({"a": 2}), false),
            (json!({}), json!({"a": []}), true),
            (json!({}), json!({"a": 0}), true),
            (json!({}), json!({"a": 1}), false),
            (Value::Null, json!({"a": 1}), false),
        ] {
            assert_eq!(has(&stored, &wanted), expect, "{stored} {wanted}");
        }
    }
}
