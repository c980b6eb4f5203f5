//! The result of all translations so far, and changes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use routes::{Change, Snapshot};
use serde_json::Value;

use super::{Assignments, service_endpoints};
use crate::objects::{Key, Kind, Objects};

/// Resources that have changed since the last translation.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangedObjects {
    /// New, changed and removed resources. Endpoints are not among them.
    pub(crate) objects: BTreeSet<(Kind, Key)>,
    /// True if errors of servers have changed.
    pub(crate) has_errors: bool,
}

/// Result of all translations so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Translation {
    pub(crate) snapshot: Snapshot,
    /// Statuses that resources must have.
    pub(crate) statuses: BTreeMap<(Kind, Key), Value>,
    /// Addresses of Gateways.
    pub(crate) assigned: Arc<Assignments>,
    /// Services that must exist.
    pub(crate) services: BTreeMap<Key, Value>,
    /// Backends of each service, with their ports: what changed endpoints of the service change.
    pub(crate) by_service: BTreeMap<Key, BTreeMap<String, u16>>,
}

/// Things that a translation sets, and with `None` removes. Some of them may be as they were.
#[derive(Debug, Default)]
pub(crate) struct TranslationChange {
    /// True if everything that it does not set is removed.
    pub(crate) is_whole: bool,
    pub(crate) change: Change,
    pub(crate) statuses: BTreeMap<(Kind, Key), Option<Value>>,
    pub(crate) services: BTreeMap<Key, Option<Value>>,
    /// Backends of services, none for services that no route uses any more.
    pub(crate) by_service: BTreeMap<Key, BTreeMap<String, u16>>,
    /// Addresses of Gateways; `None` if they stay.
    pub(crate) assigned: Option<Arc<Assignments>>,
}

/// Statuses and Services that a translation has set or removed, by the kind of their resource.
pub(crate) type Touched = BTreeSet<(Kind, Key)>;

impl ChangedObjects {
    /// True if a resource of one of these kinds has changed.
    pub(crate) fn has(&self, kinds: &[Kind]) -> bool {
        kinds.iter().any(|kind| self.of(*kind).next().is_some())
    }

    /// Changed resources of a kind.
    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = &Key> {
        let first = (kind, Key::default());
        self.objects.range(first..).take_while(move |(of, _)| *of == kind).map(|(_, key)| key)
    }
}

impl TranslationChange {
    pub(super) fn set_status(&mut self, kind: Kind, key: &Key, status: Value) {
        self.statuses.insert((kind, key.clone()), Some(status));
    }

    pub(super) fn remove_status(&mut self, kind: Kind, key: &Key) {
        self.statuses.insert((kind, key.clone()), None);
    }
}

impl Translation {
    /// Applies a change. `newer` are services whose endpoints in `objects` are newer than those that were translated.
    /// Returns what changes for servers, and which statuses and Services may have changed.
    pub(crate) fn apply(
        &mut self,
        change: TranslationChange,
        objects: &Objects,
        newer: &BTreeSet<Key>,
    ) -> (Change, Touched) {
        let mut touched = Touched::new();
        let before = change.is_whole.then(|| std::mem::take(self));
        if let Some(before) = &before {
            touched.extend(before.statuses.keys().cloned());
            touched.extend(before.services.keys().map(|key| (Kind::Service, key.clone())));
        }
        let TranslationChange { mut change, statuses, services, by_service, assigned, is_whole: _ } = change;
        touched.extend(statuses.keys().cloned());
        touched.extend(services.keys().map(|key| (Kind::Service, key.clone())));
        replace(&mut self.statuses, statuses);
        replace(&mut self.services, services);
        replace(
            &mut self.by_service,
            by_service.into_iter().map(|(key, of)| (key, Some(of).filter(|of| !of.is_empty()))),
        );
        self.assigned = assigned.unwrap_or_else(|| Arc::clone(&self.assigned));
        for service in newer {
            let Some(backends) = self.by_service.get(service) else { continue };
            let endpoints = service_endpoints(objects, service, backends);
            change.endpoints.extend(endpoints.into_iter().map(|(name, endpoints)| (name, Some(endpoints))));
        }
        let change = match before {
            Some(before) => {
                self.snapshot.apply(change);
                self.snapshot.change_from(&before.snapshot)
            }
            None => {
                change.retain_differences(&self.snapshot);
                self.snapshot.apply(change.clone());
                change
            }
        };
        (change, touched)
    }
}

fn replace<K: Ord, V>(all: &mut BTreeMap<K, V>, changes: impl IntoIterator<Item = (K, Option<V>)>) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(all.insert(key, value)),
            None => drop(all.remove(&key)),
        }
    }
}
