use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::SharedCounter;

/// Counts of the proxy of connections and datagrams: by listener and by backend.
#[derive(Debug, Default)]
pub struct StreamMetrics {
    open: AtomicU64,
    rejections: [SharedCounter; StreamRejection::ALL.len()],
    listeners: Mutex<StreamNames>,
    backends: Mutex<StreamNames>,
}

/// Counts by name.
type StreamNames = BTreeMap<String, Arc<StreamCounts>>;

/// Counts of a listener or backend. Clients of UDP count as connections.
#[derive(Debug, Default)]
pub struct StreamCounts {
    open: SharedCounter,
    connections: SharedCounter,
    failures: SharedCounter,
    received_bytes: SharedCounter,
    sent_bytes: SharedCounter,
}

/// Values of [`StreamCounts`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamReport {
    /// Connections at present.
    pub open: u64,
    /// Connections since the start.
    pub connections: u64,
    /// Connections that reached no server.
    pub failures: u64,
    /// Bytes from clients.
    pub received_bytes: u64,
    /// Bytes to clients.
    pub sent_bytes: u64,
}

/// Reason why a connection was closed before it had a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRejection {
    /// As many connections as possible are open.
    Limit,
    /// No ClientHello of TLS arrived in time.
    Hello,
    /// No route has the server name.
    ServerName,
}

impl StreamRejection {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::Limit, Self::Hello, Self::ServerName];

    /// Label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Hello => "client-hello",
            Self::ServerName => "server-name",
        }
    }
}

impl StreamMetrics {
    /// Counts one more open connection, unless there are `open_max`. Must be followed by [`Self::leave`].
    pub fn enter(&self, open_max: u64) -> bool {
        let more = |open: u64| (open < open_max).then_some(open + 1);
        let has_entered = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if !has_entered {
            self.reject(StreamRejection::Limit);
        }
        has_entered
    }

    /// Ends the count of an open connection.
    pub fn leave(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a connection that was closed.
    pub fn reject(&self, reason: StreamRejection) {
        self.rejections[reason as usize].add(1);
    }

    /// Open connections.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Connections that were closed for a reason.
    pub fn rejections(&self, reason: StreamRejection) -> u64 {
        self.rejections[reason as usize].get()
    }

    /// Keeps the counts of these listeners, and of no others.
    pub fn keep_listeners<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let mut listeners = lock(&self.listeners);
        let mut before = std::mem::take(&mut *listeners);
        listeners.extend(names.map(|name| (name.to_owned(), before.remove(name).unwrap_or_default())));
    }

    /// Counts of a listener; `None` if it is gone.
    pub fn listener(&self, name: &str) -> Option<Arc<StreamCounts>> {
        lock(&self.listeners).get(name).cloned()
    }

    /// Counts of a backend.
    pub fn backend(&self, name: &str) -> Arc<StreamCounts> {
        let mut backends = lock(&self.backends);
        if let Some(known) = backends.get(name) {
            return Arc::clone(known);
        }
        Arc::clone(backends.entry(name.to_owned()).or_default())
    }

    /// Forgets a backend.
    pub fn forget_backend(&self, name: &str) {
        lock(&self.backends).remove(name);
    }

    /// Listeners by name.
    pub fn listeners(&self) -> Vec<(String, StreamReport)> {
        reports(&self.listeners)
    }

    /// Backends that had a connection, by name.
    pub fn backends(&self) -> Vec<(String, StreamReport)> {
        reports(&self.backends)
    }
}

impl StreamCounts {
    /// Counts a new connection.
    pub fn on_open(&self) {
        self.open.add(1);
        self.connections.add(1);
    }

    /// Counts the end of a connection.
    pub fn on_close(&self) {
        self.open.subtract(1);
    }

    /// Counts a connection that reached no server.
    pub fn on_failure(&self) {
        self.failures.add(1);
    }

    /// Counts bytes from the client, and to it.
    pub fn on_bytes(&self, received: u64, sent: u64) {
        self.received_bytes.add(received);
        self.sent_bytes.add(sent);
    }

    fn report(&self) -> StreamReport {
        StreamReport {
            open: self.open.get(),
            connections: self.connections.get(),
            failures: self.failures.get(),
            received_bytes: self.received_bytes.get(),
            sent_bytes: self.sent_bytes.get(),
        }
    }
}

fn reports(names: &Mutex<StreamNames>) -> Vec<(String, StreamReport)> {
    lock(names).iter().map(|(name, counts)| (name.clone(), counts.report())).collect()
}

fn lock(names: &Mutex<StreamNames>) -> MutexGuard<'_, StreamNames> {
    // Each change is complete before anything can panic.
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stay_while_their_listener_does() {
        let metrics = StreamMetrics::default();
        metrics.keep_listeners(["a", "b"].into_iter());
        let before = metrics.listener("a").unwrap();
        before.on_open();
        before.on_bytes(3, 4);
        metrics.keep_listeners(["a", "c"].into_iter());
        assert!(metrics.listener("b").is_none());
        let expect = StreamReport { open: 1, connections: 1, received_bytes: 3, sent_bytes: 4, ..Default::default() };
        assert_eq!(metrics.listeners(), [("a".to_owned(), expect), ("c".to_owned(), StreamReport::default())]);
        before.on_close();
        assert_eq!(metrics.listeners()[0].1.open, 0);
        metrics.backend("x").on_failure();
        assert_eq!(metrics.backends()[0].1.failures, 1);
        metrics.forget_backend("x");
        assert!(metrics.backends().is_empty());
    }

    #[test]
    fn places_are_limited() {
        let metrics = StreamMetrics::default();
        assert!(metrics.enter(2) && metrics.enter(2) && !metrics.enter(2));
        metrics.leave();
        assert!(metrics.enter(2));
        assert_eq!((metrics.open(), metrics.rejections(StreamRejection::Limit)), (2, 1));
    }
}
