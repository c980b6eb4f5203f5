//! Translates listeners and routes of connections and datagrams.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use routes::{Listener, Protocol, Snapshot, StreamRoute, intersection, is_valid_hostname};

use super::parts::addresses_of;
use crate::stream_proxy::{StreamKind, StreamListener, StreamTarget, StreamTls, TlsListener};

/// Translates the listeners for TLS, TCP and UDP. Addresses in `taken` have listeners for HTTP; those with true have
/// HTTPS, and share connections with listeners for TLS. Errors are added by kind and name.
pub(super) fn stream_listeners(
    snapshot: &Snapshot,
    taken: &HashMap<SocketAddr, bool>,
    errors: &mut BTreeMap<String, String>,
) -> Vec<StreamListener> {
    let mut fail = |kind: &str, name: &str, reason: String| {
        // The first reason counts.
        errors.entry(format!("{kind}/{name}")).or_insert(reason);
    };
    let routes = attached(snapshot, &mut fail);
    let mut found: BTreeMap<(SocketAddr, bool), StreamListener> = BTreeMap::new();
    for (name, listener) in snapshot.listeners.iter().filter(|(_, listener)| !listener.protocol.is_http()) {
        let of_listener = routes.get(name.as_str()).map_or(&[][..], Vec::as_slice);
        for address in addresses_of(listener) {
            let is_udp = listener.protocol == Protocol::Udp;
            let has_https = if is_udp { None } else { taken.get(&address).copied() };
            if has_https.is_some_and(|has_https| !has_https || !listener.protocol.is_tls()) {
                fail("listener", name, format!("a listener for HTTP has {address}"));
                continue;
            }
            let known = found.remove(&(address, is_udp));
            let (known, mut names) = known.map_or((None, Vec::new()), |known| (Some(known.kind), known.names));
            let (kind, fault) = with_listener(known, (name, listener), of_listener, &mut fail);
            match fault {
                Some(reason) => fail("listener", name, reason),
                None => names.push(name.clone()),
            }
            if let Some(kind) = kind {
                let is_shared = has_https.is_some();
                found.insert((address, is_udp), StreamListener { address, kind, names, is_shared });
            }
        }
    }
    found.into_values().collect()
}

type Attached<'a> = HashMap<&'a str, Vec<(&'a str, &'a StreamRoute)>>;

/// Routes of each listener, the oldest first.
fn attached<'a>(snapshot: &'a Snapshot, fail: &mut impl FnMut(&str, &str, String)) -> Attached<'a> {
    let mut routes: Attached<'a> = HashMap::new();
    for (name, route) in &snapshot.stream_routes {
        for listener in &route.listeners {
            match snapshot.listeners.get(listener) {
                Some(of) if !of.protocol.is_http() => routes.entry(listener).or_default().push((name.as_str(), route)),
                _ => {
                    fail("stream-route", name, format!("there is no listener {listener} for connections or datagrams"))
                }
            }
        }
        for backend in route.backends.iter().filter(|of| !snapshot.backends.contains_key(&of.backend)) {
            fail("stream-route", name, format!("there is no backend {}", backend.backend));
        }
    }
    routes.values_mut().for_each(|list| list.sort_by_key(|(name, route)| (route.created, *name)));
    routes
}

/// Adds a listener to what its address has already; returns the reason why it cannot be added, if there is one.
fn with_listener(
    known: Option<StreamKind>,
    (listener_name, listener): (&str, &Listener),
    routes: &[(&str, &StreamRoute)],
    fail: &mut impl FnMut(&str, &str, String),
) -> (Option<StreamKind>, Option<String>) {
    let other = || "another listener of the same address and port has another protocol".to_owned();
    let is_tls = listener.protocol.is_tls();
    let mut hosts = match known {
        Some(StreamKind::Tls(hosts)) if is_tls => hosts,
        Some(kind) => return (Some(kind), Some(other())),
        None if is_tls => routes::HostTable::default(),
        None => {
            let oldest = routes.first().map(|(_, route)| target_of(listener_name, route));
            let oldest = oldest.unwrap_or_else(|| StreamTarget::new(listener_name));
            for (name, _) in routes.iter().skip(1) {
                fail("stream-route", name, "an older route has the connections of the listener".to_owned());
            }
            let kind = if listener.protocol == Protocol::Udp { StreamKind::Udp } else { StreamKind::Tcp };
            return (Some(kind(oldest)), None);
        }
    };
    if let Some(hostname) = listener.hostname.as_ref().filter(|hostname| !is_valid_hostname(hostname)) {
        return (Some(StreamKind::Tls(hosts)), Some(format!("{hostname:?} is no host name")));
    }
    let tls = match listener.protocol {
        Protocol::TlsTerminate => match StreamTls::new(listener) {
            Ok(tls) => Some(tls),
            Err(reason) => return (Some(StreamKind::Tls(hosts)), Some(reason)),
        },
        _ => None,
    };
    let mut of_listener = TlsListener { tls, targets: routes::HostTable::default() };
    let mut taken = HashSet::new();
    for (name, route) in routes {
        let names: Vec<Option<&str>> = match route.hostnames.as_slice() {
            [] => vec![listener.hostname.as_deref()],
            names => {
                names.iter().filter_map(|name| intersection(listener.hostname.as_deref(), name)).map(Some).collect()
            }
        };
        if names.is_empty() {
            fail("stream-route", name, "no host name is also one of its listeners".to_owned());
        }
        // The oldest route has the connections of a name.
        for hostname in names.into_iter().filter(|hostname| taken.insert(*hostname)) {
            *of_listener.targets.value(hostname) = target_of(listener_name, route);
        }
    }
    *hosts.value(listener.hostname.as_deref()) = of_listener;
    (Some(StreamKind::Tls(hosts)), None)
}

fn target_of(listener: &str, route: &StreamRoute) -> StreamTarget {
    let mut target = StreamTarget::new(listener);
    route.backends.iter().for_each(|backend| target.push(backend.weight, &backend.backend));
    target.idle_timeout = route.idle_timeout_ms.map(Duration::from_millis);
    target
}
