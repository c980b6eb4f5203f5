//! Orders as events of a fleet, and back.

use tailcoat_fleet::{FleetEvent, TOPIC_BYTES_MAX};

use crate::control::ControlOrder;
use crate::shared_cache::CachePurge;

/// Largest payload of an event, in bytes. Its text has at most twice as many as a string of JSON, which each engine takes.
const PAYLOAD_BYTES_MAX: usize = 100 << 10;

/// Bytes of a purge without names, at most.
const FRAME_BYTES: usize = 200;

/// Order as an event.
pub(super) struct Publication {
    /// Subject of which only the latest order counts; `None` for purges, whose order does not matter.
    pub(super) topic: Option<String>,
    /// End of the effect, in milliseconds since 1970.
    pub(super) until_unix_ms: Option<u64>,
    pub(super) payload: String,
}

/// True for orders that hold for all instances. Others, such as the number of workers, are a machine's own; certificates
/// would put private keys into events.
pub(super) fn is_shared(order: &ControlOrder) -> bool {
    matches!(
        order,
        ControlOrder::PurgeCache { .. }
            | ControlOrder::Ban { .. }
            | ControlOrder::Unban { .. }
            | ControlOrder::SetServers { .. }
            | ControlOrder::SetSplit { .. }
            | ControlOrder::SetRateLimit { .. }
            | ControlOrder::DrainServer { .. }
    )
}

/// Purges of an order, one by one.
pub(crate) fn purges_of(order: &ControlOrder) -> Vec<CachePurge> {
    let ControlOrder::PurgeCache { urls, prefixes, tags, all } = order else { return Vec::new() };
    let urls = urls.iter().cloned().map(CachePurge::Url);
    let prefixes = prefixes.iter().cloned().map(CachePurge::Prefix);
    let tags = tags.iter().cloned().map(CachePurge::Tag);
    urls.chain(prefixes).chain(tags).chain(all.then_some(CachePurge::All)).collect()
}

/// Events for an order; none for orders that are not shared. A purge of many responses becomes several. `None` if the order is too
/// large for an event.
pub(super) fn publications(order: &ControlOrder, unix_ms: u64) -> Option<Vec<Publication>> {
    let Some(whole) = publication(order, unix_ms) else { return Some(Vec::new()) };
    if whole.topic.as_ref().is_some_and(|topic| topic.len() > TOPIC_BYTES_MAX) {
        return None;
    }
    if whole.payload.len() <= PAYLOAD_BYTES_MAX {
        return Some(vec![whole]);
    }
    let ControlOrder::PurgeCache { urls, prefixes, tags, all } = order else { return None };
    let (mut parts, mut part, mut bytes) = (Vec::new(), PurgePart::default(), FRAME_BYTES);
    part.all = *all;
    for (kind, names) in [urls, prefixes, tags].into_iter().enumerate() {
        for name in names {
            // With a comma.
            let more = serde_json::to_string(name).ok()?.len() + 1;
            if FRAME_BYTES + more > PAYLOAD_BYTES_MAX {
                return None;
            }
            if bytes + more > PAYLOAD_BYTES_MAX {
                parts.extend(publication(&std::mem::take(&mut part).order(), unix_ms));
                bytes = FRAME_BYTES;
            }
            part.names[kind].push(name.clone());
            bytes += more;
        }
    }
    parts.extend(publication(&part.order(), unix_ms));
    Some(parts)
}

/// Part of a purge.
#[derive(Default)]
struct PurgePart {
    /// URLs, prefixes and tags.
    names: [Vec<String>; 3],
    all: bool,
}

impl PurgePart {
    fn order(self) -> ControlOrder {
        let [urls, prefixes, tags] = self.names;
        ControlOrder::PurgeCache { urls, prefixes, tags, all: self.all }
    }
}

/// Event for an order; `None` for orders that are not shared.
fn publication(order: &ControlOrder, unix_ms: u64) -> Option<Publication> {
    if !is_shared(order) {
        return None;
    }
    let (topic, until_unix_ms) = match order {
        ControlOrder::Ban { client, seconds } => {
            (Some(format!("ban {client}")), Some(unix_ms.saturating_add(seconds.saturating_mul(1_000))))
        }
        // Replaces the ban; later instances need neither.
        ControlOrder::Unban { client } => (Some(format!("ban {client}")), Some(unix_ms)),
        ControlOrder::SetServers { upstream, .. } => (Some(format!("servers {upstream}")), None),
        ControlOrder::SetSplit { upstream, site, .. } => {
            (Some(format!("split {upstream} {}", site.as_deref().unwrap_or_default())), None)
        }
        ControlOrder::SetRateLimit { site, limit } => {
            let path = limit.split_whitespace().next().unwrap_or_default();
            (Some(format!("rate-limit {} {path}", site.as_deref().unwrap_or_default())), None)
        }
        ControlOrder::DrainServer { upstream, server, .. } => (Some(format!("drain {upstream} {server}")), None),
        _ => (None, None),
    };
    Some(Publication { topic, until_unix_ms, payload: serde_json::to_string(order).ok()? })
}

/// Order of an event, with the time that is left of its effect. `None` if it is over, or not an order that instances share:
/// the store is not trusted to give others.
pub(super) fn order_of(event: &FleetEvent, unix_ms: u64) -> Option<ControlOrder> {
    let order: ControlOrder = serde_json::from_str(&event.payload).ok()?;
    match order {
        ControlOrder::Ban { client, .. } => {
            let left_ms = event.until_unix_ms?.saturating_sub(unix_ms);
            (left_ms > 0).then(|| ControlOrder::Ban { client, seconds: left_ms.div_ceil(1_000) })
        }
        order => is_shared(&order).then_some(order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(order: &ControlOrder, unix_ms: u64) -> Option<FleetEvent> {
        let Publication { topic, until_unix_ms, payload } = publication(order, unix_ms)?;
        Some(FleetEvent { origin: "a".into(), number: 1, unix_ms, topic, until_unix_ms, payload })
    }

    #[test]
    fn orders_come_back() {
        let ban = ControlOrder::Ban { client: "192.0.2.1".into(), seconds: 60 };
        let unban = ControlOrder::Unban { client: "192.0.2.1".into() };
        let purge = ControlOrder::PurgeCache {
            urls: vec!["http://a/".into()],
            prefixes: Vec::new(),
            tags: vec!["news".into()],
            all: false,
        };
        let drain = ControlOrder::DrainServer { upstream: "app".into(), server: "http://a:1".into(), is_drained: true };
        for order in [&ban, &unban, &purge, &drain] {
            assert_eq!(order_of(&event(order, 5_000).unwrap(), 5_000).as_ref(), Some(order));
        }
        // Time that is left of a ban.
        let left = order_of(&event(&ban, 5_000).unwrap(), 45_500).unwrap();
        assert_eq!(left, ControlOrder::Ban { client: "192.0.2.1".into(), seconds: 20 });
        assert_eq!(order_of(&event(&ban, 5_000).unwrap(), 65_000), None);
        assert_eq!(event(&ban, 0).unwrap().topic, event(&unban, 0).unwrap().topic);
        assert_eq!(event(&purge, 0).unwrap().topic, None);
    }

    /// Purges of many responses are several events, each of a size that all engines take.
    #[test]
    fn large_orders() {
        let purge = |count: usize, bytes: usize| ControlOrder::PurgeCache {
            urls: (0..count).map(|number| format!("http://a/{number}/{}", "\"".repeat(bytes))).collect(),
            prefixes: vec!["http://b/*".into()],
            tags: vec!["news".into()],
            all: true,
        };
        let order = purge(700, 1_000);
        let parts = publications(&order, 0).unwrap();
        assert!(parts.len() > 10 && parts.iter().all(|part| part.payload.len() <= PAYLOAD_BYTES_MAX));
        let parse = |part: &Publication| purges_of(&serde_json::from_str(&part.payload).unwrap());
        let mut purges: Vec<CachePurge> = parts.iter().flat_map(parse).collect();
        let mut expected = purges_of(&order);
        let text = |purge: &CachePurge| format!("{purge:?}");
        purges.sort_by_key(text);
        expected.sort_by_key(text);
        assert!(purges == expected, "each once");
        assert_eq!(publications(&purge(1, 10), 0).unwrap().len(), 1);
        // No event has a place for one such purge, or for so many servers.
        assert!(publications(&purge(3, PAYLOAD_BYTES_MAX), 0).is_none());
        assert!(publications(&ControlOrder::Upgrade, 0).is_some_and(|parts| parts.is_empty()));
    }

    /// A hostile store gives orders of other kinds, and garbage.
    #[test]
    fn other_orders_are_not_obeyed() {
        assert!(event(&ControlOrder::Upgrade, 0).is_none());
        for payload in [r#"{"order":"upgrade"}"#, r#"{"order":"set-workers","count":1000}"#, "", "{", "null"] {
            let event = FleetEvent {
                origin: "a".into(),
                number: 1,
                unix_ms: 0,
                topic: None,
                until_unix_ms: None,
                payload: payload.into(),
            };
            assert_eq!(order_of(&event, 0), None, "{payload}");
        }
    }
}
