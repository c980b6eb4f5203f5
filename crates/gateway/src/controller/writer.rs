//! Writes statuses and Services to the API server, on a task of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::log;
use crate::client::{Client, ClientError};
use crate::objects::{Key, Kind, Objects};
use crate::translate::Translation;

/// Least and longest time between tries after an error.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Requests that run side by side, at most.
const REQUESTS_MAX: usize = 8;

/// A resource to write.
#[derive(Clone, Debug, PartialEq)]
struct Write {
    /// True for a status, false for a resource to apply.
    is_status: bool,
    /// Number that changes when the same value must be written again.
    edition: u64,
    value: Value,
}

/// Resources to write, by path.
type Wanted = BTreeMap<String, Write>;

/// Statuses and Services to write.
pub(super) struct Writes {
    client: Arc<Client>,
    is_leading: bool,
    wanted: watch::Sender<Arc<Wanted>>,
    /// Statuses and Services that were seen as they must be.
    confirmed: BTreeSet<(Kind, Key)>,
    /// Number of the last edition.
    edition: u64,
    /// Edition of all resources since this replica leads.
    first_edition: u64,
    /// Editions of resources that another client has removed or changed since.
    editions: BTreeMap<(Kind, Key), u64>,
}

impl Writes {
    pub(super) fn new(client: Arc<Client>) -> Self {
        let (wanted, receiver) = watch::channel(Arc::default());
        tokio::spawn(run(Arc::clone(&client), receiver));
        Self {
            client,
            is_leading: false,
            wanted,
            confirmed: BTreeSet::new(),
            edition: 0,
            first_edition: 0,
            editions: BTreeMap::new(),
        }
    }

    pub(super) fn set_leading(&mut self, is_leading: bool) {
        self.is_leading = is_leading;
        // Another replica may have written in the meantime.
        self.edition += 1;
        self.first_edition = self.edition;
        self.editions.clear();
        log(format_args!("requests sent to the API server so far: {}", self.client.requests()));
    }

    /// Sets what is written: statuses that differ from the stored ones, and all Services, each once.
    pub(super) fn set(&mut self, objects: &Objects, translation: &Translation) {
        let mut wanted = Wanted::new();
        if self.is_leading {
            for ((kind, key), status) in &translation.statuses.0 {
                if objects.status(*kind, key).is_some_and(|stored| !has(stored, status)) {
                    let edition = self.edition_of(*kind, key);
                    let write = Write { is_status: true, edition, value: status.clone() };
                    wanted.insert(path(*kind, key), write);
                }
            }
            for (key, service) in &translation.services {
                self.note(Kind::Service, key, objects.services.contains_key(key));
                let edition = self.edition_of(Kind::Service, key);
                let write = Write { is_status: false, edition, value: service.clone() };
                wanted.insert(path(Kind::Service, key), write);
            }
            let is_known =
                |at: &(Kind, Key)| translation.statuses.0.contains_key(at) || translation.services.contains_key(&at.1);
            self.confirmed.retain(is_known);
            self.editions.retain(|at, _| is_known(at));
        }
        self.wanted.send_replace(Arc::new(wanted));
    }

    /// Notes the stored status of a resource. Returns true if another client has changed it.
    pub(super) fn on_status(&mut self, objects: &Objects, translation: &Translation, kind: Kind, key: &Key) -> bool {
        let wanted = translation.statuses.0.get(&(kind, key.clone()));
        let Some((stored, wanted)) = objects.status(kind, key).zip(wanted) else { return false };
        self.note(kind, key, has(stored, wanted))
    }

    /// Notes whether a resource is as it must be. Returns true, with another edition, if it was so, and is no more.
    fn note(&mut self, kind: Kind, key: &Key, is_right: bool) -> bool {
        let at = (kind, key.clone());
        if is_right {
            self.confirmed.insert(at);
            return false;
        }
        let was_right = self.confirmed.remove(&at);
        if was_right {
            self.edition += 1;
            self.editions.insert(at, self.edition);
        }
        was_right
    }

    fn edition_of(&self, kind: Kind, key: &Key) -> u64 {
        self.editions.get(&(kind, key.clone())).copied().unwrap_or(self.first_edition)
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

/// Writes that were sent, that wait, and that run.
#[derive(Default)]
struct Queue {
    wanted: Arc<Wanted>,
    written: Wanted,
    waiting: VecDeque<String>,
    running: BTreeSet<String>,
    has_failed: bool,
}

impl Queue {
    fn set(&mut self, wanted: Arc<Wanted>) {
        self.written.retain(|path, write| wanted.get(path) == Some(write));
        self.wanted = wanted;
        self.refill();
    }

    fn refill(&mut self) {
        let missing = self.wanted.iter().filter(|(path, write)| self.written.get(*path) != Some(write));
        self.waiting = missing.map(|(path, _)| path.clone()).collect();
    }

    /// Next write to start.
    fn next(&mut self) -> Option<(String, Write)> {
        if self.running.len() >= REQUESTS_MAX {
            return None;
        }
        while let Some(path) = self.waiting.pop_front() {
            // One that runs is looked at again when it ends.
            if !self.running.contains(&path)
                && let Some(write) = self.wanted.get(&path)
            {
                self.running.insert(path.clone());
                return Some((path, write.clone()));
            }
        }
        None
    }

    fn end(&mut self, path: String, write: Write, result: &Result<(), ClientError>) {
        self.running.remove(&path);
        let is_current = self.wanted.get(&path) == Some(&write);
        match result {
            Ok(()) if is_current => drop(self.written.insert(path, write)),
            Err(_) if is_current => {
                self.has_failed = true;
                // All others would fail as well.
                if matches!(result, Err(ClientError::Unreachable(_))) {
                    self.waiting.clear();
                }
            }
            _ if self.wanted.contains_key(&path) => self.waiting.push_back(path),
            _ => {}
        }
    }

    /// True once, when all is done that can be, and something has failed.
    fn must_retry(&mut self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && std::mem::take(&mut self.has_failed)
    }
}

async fn run(client: Arc<Client>, mut wanted: watch::Receiver<Arc<Wanted>>) {
    let mut queue = Queue::default();
    let mut requests = JoinSet::new();
    let mut wait = RETRY_MIN;
    let mut retry: Option<Instant> = None;
    loop {
        while let Some((path, write)) = queue.next() {
            let client = Arc::clone(&client);
            requests.spawn(async move {
                let result = send(&client, &path, &write).await;
                (path, write, result)
            });
        }
        if queue.must_retry() {
            retry = Some(Instant::now() + wait);
            wait = (wait * 2).min(RETRY_MAX);
        }
        tokio::select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                queue.set(Arc::clone(&wanted.borrow_and_update()));
            }
            Some(ended) = requests.join_next() => {
                // A request that panics is a fault of this program; it is not tried again.
                let Ok((path, write, result)) = ended else { continue };
                match &result {
                    Ok(()) => wait = RETRY_MIN,
                    Err(error) => log(format_args!("cannot write {path}: {error}")),
                }
                queue.end(path, write, &result);
            }
            () = sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => {
                retry = None;
                queue.refill();
            }
        }
    }
}

async fn send(client: &Client, path: &str, write: &Write) -> Result<(), ClientError> {
    let result = match write.is_status {
        true => client.patch_status(path, &write.value).await,
        false => client.apply(path, &write.value).await,
    };
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

    fn wanted(writes: &[(&str, u64)]) -> Arc<Wanted> {
        let one = |(path, edition): &(&str, u64)| {
            ((*path).to_owned(), Write { is_status: true, edition: *edition, value: json!({}) })
        };
        Arc::new(writes.iter().map(one).collect())
    }

    #[test]
    fn each_write_is_sent_until_it_succeeds() {
        let mut queue = Queue::default();
        queue.set(wanted(&[("a", 1), ("b", 1)]));
        let (a, b) = (queue.next().unwrap(), queue.next().unwrap());
        assert_eq!((a.0.as_str(), b.0.as_str(), queue.next()), ("a", "b", None));
        queue.end(a.0, a.1, &Ok(()));
        queue.end(b.0, b.1, &Err(ClientError::Status(500, String::new())));
        assert!(queue.must_retry());
        assert!(!queue.must_retry());
        queue.refill();
        let again = queue.next().unwrap();
        assert_eq!((again.0.as_str(), queue.next()), ("b", None));
        // A value that changes while the one before is sent is sent after it, never beside it.
        queue.set(wanted(&[("a", 1), ("b", 2)]));
        assert_eq!(queue.next(), None);
        queue.end(again.0, again.1, &Ok(()));
        let newer = queue.next().unwrap();
        assert_eq!((newer.0.as_str(), newer.1.edition), ("b", 2));
        queue.end(newer.0, newer.1, &Ok(()));
        assert_eq!((queue.next(), queue.must_retry()), (None, false));
        // One that is wanted no more is forgotten, and sent when it is wanted again.
        queue.set(wanted(&[("a", 1)]));
        queue.set(wanted(&[("a", 1), ("b", 2)]));
        assert_eq!(queue.next().map(|(path, _)| path), Some("b".to_owned()));
    }

    #[test]
    fn writes_are_few_at_once_and_stop_while_the_server_is_away() {
        let names: Vec<String> = (0..100).map(|number| format!("{number:03}")).collect();
        let mut queue = Queue::default();
        queue.set(wanted(&names.iter().map(|name| (name.as_str(), 1)).collect::<Vec<_>>()));
        let mut running: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(running.len(), REQUESTS_MAX);
        let (path, write) = running.pop().unwrap();
        queue.end(path, write, &Err(ClientError::Unreachable(String::new())));
        assert_eq!(queue.next(), None);
        for (path, write) in running {
            queue.end(path, write, &Ok(()));
        }
        assert!(queue.must_retry());
        queue.refill();
        assert_eq!(queue.waiting.len(), 100 - (REQUESTS_MAX - 1));
    }
}
