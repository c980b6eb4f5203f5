//! Writes statuses and Services to the API server, on a task of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::log;
use crate::client::{Client, ClientError};
use crate::objects::{Key, Kind, Objects};
use crate::translate::{Touched, Translation};

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

/// Changes of what is written, until the task takes them.
#[derive(Default)]
struct Orders {
    state: Mutex<OrderedWrites>,
    has_new: Notify,
}

#[derive(Default)]
struct OrderedWrites {
    /// True if nothing of what was wanted before is wanted any more.
    is_reset: bool,
    /// Writes by path; `None` is wanted no more.
    changes: BTreeMap<String, Option<Write>>,
}

/// Statuses and Services to write.
pub(super) struct Writes {
    client: Arc<Client>,
    is_leading: bool,
    orders: Arc<Orders>,
    /// Statuses and Services that were seen as they must be.
    confirmed: BTreeSet<(Kind, Key)>,
    /// Number of the last edition.
    edition: u64,
    /// Edition of all resources since this replica leads.
    first_edition: u64,
    /// Editions of resources that another client has removed or changed since.
    editions: BTreeMap<(Kind, Key), u64>,
}

impl Orders {
    fn state(&self) -> MutexGuard<'_, OrderedWrites> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writes {
    pub(super) fn new(client: Arc<Client>) -> Self {
        let orders = Arc::default();
        tokio::spawn(run(Arc::clone(&client), Arc::clone(&orders)));
        Self {
            client,
            is_leading: false,
            orders,
            confirmed: BTreeSet::new(),
            edition: 0,
            first_edition: 0,
            editions: BTreeMap::new(),
        }
    }

    pub(super) fn set_leading(&mut self, is_leading: bool, objects: &Objects, translation: &Translation) {
        self.is_leading = is_leading;
        // Another replica may have written in the meantime.
        self.edition += 1;
        self.first_edition = self.edition;
        self.editions.clear();
        *self.orders.state() = OrderedWrites { is_reset: true, changes: BTreeMap::new() };
        let services = translation.services.keys().map(|key| (Kind::Service, key.clone()));
        self.update(objects, translation, &translation.statuses.keys().cloned().chain(services).collect());
        self.orders.has_new.notify_one();
        log(format_args!("requests sent to the API server so far: {}", self.client.requests()));
    }

    /// Sets what is written of these resources: statuses that differ from the stored ones, and all Services, each once.
    pub(super) fn update(&mut self, objects: &Objects, translation: &Translation, touched: &Touched) {
        let writes: Vec<_> = touched
            .iter()
            .map(|(kind, key)| (path(*kind, key), self.write_of(objects, translation, *kind, key)))
            .collect();
        if self.is_leading && !writes.is_empty() {
            self.orders.state().changes.extend(writes);
            self.orders.has_new.notify_one();
        }
    }

    fn write_of(&mut self, objects: &Objects, translation: &Translation, kind: Kind, key: &Key) -> Option<Write> {
        let at = (kind, key.clone());
        let (wanted, is_right) = match kind {
            Kind::Service => (translation.services.get(key), objects.services.contains_key(key)),
            _ => {
                let wanted = translation.statuses.get(&at);
                (wanted, objects.status(kind, key).zip(wanted).is_some_and(|(stored, wanted)| has(stored, wanted)))
            }
        };
        let Some(wanted) = wanted else {
            self.confirmed.remove(&at);
            self.editions.remove(&at);
            return None;
        };
        self.note(&at, is_right);
        let is_status = kind != Kind::Service;
        // A status of a resource that is gone cannot be written.
        if is_status && (is_right || objects.status(kind, key).is_none()) {
            return None;
        }
        let edition = self.editions.get(&at).copied().unwrap_or(self.first_edition);
        Some(Write { is_status, edition, value: wanted.clone() })
    }

    /// Takes a resource as it is stored now. Returns true if its status is as it must be; otherwise the resource must be
    /// translated again, because the stored status may have entries of others.
    pub(super) fn on_resource(&mut self, objects: &Objects, translation: &Translation, kind: Kind, key: &Key) -> bool {
        let at = (kind, key.clone());
        let is_right = match kind {
            Kind::Service if !translation.services.contains_key(key) => return true,
            Kind::Service => true,
            _ => {
                let Some(wanted) = translation.statuses.get(&at) else { return true };
                let is_right = objects.status(kind, key).is_some_and(|stored| has(stored, wanted));
                self.note(&at, is_right);
                is_right
            }
        };
        if is_right {
            self.update(objects, translation, &Touched::from([at]));
        }
        is_right
    }

    /// Notes whether a resource is as it must be. One that was so, and is no more, gets another edition.
    fn note(&mut self, at: &(Kind, Key), is_right: bool) {
        if is_right {
            self.confirmed.insert(at.clone());
        } else if self.confirmed.remove(at) {
            self.edition += 1;
            self.editions.insert(at.clone(), self.edition);
        }
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
    wanted: Wanted,
    written: Wanted,
    waiting: VecDeque<String>,
    running: BTreeSet<String>,
    has_failed: bool,
}

impl Queue {
    fn change(&mut self, OrderedWrites { is_reset, changes }: OrderedWrites) {
        if is_reset {
            (self.wanted, self.written) = (Wanted::new(), Wanted::new());
            self.waiting.clear();
        }
        for (path, write) in changes {
            if self.written.get(&path) != write.as_ref() {
                self.written.remove(&path);
            }
            match write {
                Some(write) => {
                    if self.wanted.insert(path.clone(), write.clone()) != Some(write) {
                        self.waiting.push_back(path);
                    }
                }
                None => drop(self.wanted.remove(&path)),
            }
        }
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
                && let Some(write) = self.wanted.get(&path).filter(|write| self.written.get(&path) != Some(write))
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

async fn run(client: Arc<Client>, orders: Arc<Orders>) {
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
            () = orders.has_new.notified() => {
                let changes = std::mem::take(&mut *orders.state());
                queue.change(changes);
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

    /// Changes of writes: editions, of which 0 is wanted no more.
    fn changes(writes: &[(&str, u64)]) -> OrderedWrites {
        let one = |(path, edition): &(&str, u64)| {
            let write = Write { is_status: true, edition: *edition, value: json!({}) };
            ((*path).to_owned(), Some(write).filter(|write| write.edition > 0))
        };
        OrderedWrites { is_reset: false, changes: writes.iter().map(one).collect() }
    }

    #[test]
    fn each_write_is_sent_until_it_succeeds() {
        let mut queue = Queue::default();
        queue.change(changes(&[("a", 1), ("b", 1)]));
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
        queue.change(changes(&[("a", 1), ("b", 2)]));
        assert_eq!(queue.next(), None);
        queue.end(again.0, again.1, &Ok(()));
        let newer = queue.next().unwrap();
        assert_eq!((newer.0.as_str(), newer.1.edition), ("b", 2));
        queue.end(newer.0, newer.1, &Ok(()));
        assert_eq!((queue.next(), queue.must_retry()), (None, false));
        // One that is wanted no more is forgotten, and sent when it is wanted again.
        queue.change(changes(&[("b", 0)]));
        assert_eq!(queue.next(), None);
        queue.change(changes(&[("b", 2)]));
        assert_eq!(queue.next().map(|(path, _)| path), Some("b".to_owned()));
        // Nothing that was wanted before is wanted any more.
        queue.change(OrderedWrites { is_reset: true, ..changes(&[("a", 1)]) });
        assert_eq!((queue.next().map(|(path, _)| path), queue.next()), (Some("a".to_owned()), None));
    }

    #[test]
    fn writes_are_few_at_once_and_stop_while_the_server_is_away() {
        let names: Vec<String> = (0..100).map(|number| format!("{number:03}")).collect();
        let mut queue = Queue::default();
        queue.change(changes(&names.iter().map(|name| (name.as_str(), 1)).collect::<Vec<_>>()));
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
