//! Snapshots, and changes of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Backend, Endpoint, Listener, Route, StreamRoute};

/// Everything that a server needs to serve, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteSnapshot {
    /// Listeners.
    pub listeners: BTreeMap<String, Listener>,
    /// Routes of requests.
    pub routes: BTreeMap<String, Route>,
    /// Routes of connections and datagrams.
    pub stream_routes: BTreeMap<String, StreamRoute>,
    /// Backends.
    pub backends: BTreeMap<String, Backend>,
    /// Endpoints of each backend. A backend that is missing here has none.
    pub endpoints: BTreeMap<String, Vec<Endpoint>>,
}

/// Things to replace, and with `None` to remove, in a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteChange {
    /// Listeners.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub listeners: BTreeMap<String, Option<Listener>>,
    /// Routes of requests.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub routes: BTreeMap<String, Option<Route>>,
    /// Routes of connections and datagrams.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stream_routes: BTreeMap<String, Option<StreamRoute>>,
    /// Backends.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub backends: BTreeMap<String, Option<Backend>>,
    /// All endpoints of each named backend.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub endpoints: BTreeMap<String, Option<Vec<Endpoint>>>,
}

impl RouteSnapshot {
    /// Applies a change; returns the change that reverses it.
    pub fn apply(&mut self, change: RouteChange) -> RouteChange {
        let RouteChange { listeners, routes, stream_routes, backends, endpoints } = change;
        RouteChange {
            listeners: replace(&mut self.listeners, listeners),
            routes: replace(&mut self.routes, routes),
            stream_routes: replace(&mut self.stream_routes, stream_routes),
            backends: replace(&mut self.backends, backends),
            endpoints: replace(&mut self.endpoints, endpoints),
        }
    }

    /// Change that makes this snapshot of `before`.
    pub fn change_from(&self, before: &Self) -> RouteChange {
        RouteChange {
            listeners: difference(&before.listeners, &self.listeners),
            routes: difference(&before.routes, &self.routes),
            stream_routes: difference(&before.stream_routes, &self.stream_routes),
            backends: difference(&before.backends, &self.backends),
            endpoints: difference(&before.endpoints, &self.endpoints),
        }
    }
}

impl RouteChange {
    /// Adds a later change.
    pub fn extend(&mut self, later: Self) {
        let Self { listeners, routes, stream_routes, backends, endpoints } = later;
        self.listeners.extend(listeners);
        self.routes.extend(routes);
        self.stream_routes.extend(stream_routes);
        self.backends.extend(backends);
        self.endpoints.extend(endpoints);
    }

    /// Leaves out what is in a snapshot already.
    pub fn retain_differences(&mut self, of: &RouteSnapshot) {
        fn differs<'a, T: PartialEq>(of: &'a BTreeMap<String, T>) -> impl FnMut(&String, &mut Option<T>) -> bool + 'a {
            move |name, value| of.get(name) != value.as_ref()
        }
        self.listeners.retain(differs(&of.listeners));
        self.routes.retain(differs(&of.routes));
        self.stream_routes.retain(differs(&of.stream_routes));
        self.backends.retain(differs(&of.backends));
        self.endpoints.retain(differs(&of.endpoints));
    }

    /// True if it changes nothing.
    pub fn is_empty(&self) -> bool {
        !self.changes_structure() && self.endpoints.is_empty()
    }

    /// True if it changes more than endpoints.
    pub fn changes_structure(&self) -> bool {
        !(self.listeners.is_empty()
            && self.routes.is_empty()
            && self.stream_routes.is_empty()
            && self.backends.is_empty())
    }
}

/// Replaces values by name; returns those before.
fn replace<T>(all: &mut BTreeMap<String, T>, changes: BTreeMap<String, Option<T>>) -> BTreeMap<String, Option<T>> {
    let replace = |(name, value): (String, Option<T>)| {
        let before = match value {
            Some(value) => all.insert(name.clone(), value),
            None => all.remove(&name),
        };
        (name, before)
    };
    changes.into_iter().map(replace).collect()
}

fn difference<T: Clone + PartialEq>(
    before: &BTreeMap<String, T>,
    after: &BTreeMap<String, T>,
) -> BTreeMap<String, Option<T>> {
    let removed = before.keys().filter(|name| !after.contains_key(*name)).map(|name| (name.clone(), None));
    let set = after.iter().filter(|(name, value)| before.get(*name) != Some(*value));
    removed.chain(set.map(|(name, value)| (name.clone(), Some(value.clone())))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;

    #[test]
    fn changes_lead_from_one_snapshot_to_another() {
        let listener = |port| Listener::new(port, Protocol::Http);
        let endpoints = |port| vec![Endpoint::new(([127, 0, 0, 1], port).into())];
        let before = RouteSnapshot {
            listeners: [("a", 80), ("b", 81)].map(|(name, port)| (name.to_owned(), listener(port))).into(),
            endpoints: [("x", 1), ("y", 2)].map(|(name, port)| (name.to_owned(), endpoints(port))).into(),
            ..RouteSnapshot::default()
        };
        let mut after = before.clone();
        after.listeners.remove("a");
        after.listeners.insert("b".into(), listener(82));
        after.listeners.insert("c".into(), listener(83));
        let change = after.change_from(&before);
        assert_eq!((change.listeners.len(), change.endpoints.len(), change.changes_structure()), (3, 0, true));
        let text = serde_json::to_string(&change).unwrap();
        let mut applied = before.clone();
        let reverse = applied.apply(serde_json::from_str(&text).unwrap());
        assert_eq!(applied, after);
        let mut reversed = after.clone();
        reversed.apply(reverse);
        assert_eq!(reversed, before);
        assert!(after.change_from(&applied).is_empty());
        let mut again = change.clone();
        again.retain_differences(&before);
        assert_eq!(again, change);
        again.retain_differences(&after);
        assert!(again.is_empty());
        // Two changes in one.
        let mut both = applied.change_from(&after);
        both.extend(before.change_from(&applied));
        let mut applied_both = after.clone();
        applied_both.apply(both);
        assert_eq!(applied_both, before);
        after.endpoints.insert("x".into(), endpoints(3));
        let change = after.change_from(&applied);
        assert!(!change.changes_structure() && !change.is_empty());
    }
}
