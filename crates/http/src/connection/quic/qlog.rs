//! Traces of QUIC connections in qlog's form (draft-ietf-quic-qlog-main-schema), for operators who watch a client.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tailcoat_quic::QlogSink;

use crate::config::Network;
use crate::log::{LineSender, LogTail, line_channel};

/// Operators that may watch at once.
const WATCHES_MAX: usize = 16;

/// Connections that one operator watches; later ones are not traced.
const CONNECTIONS_MAX: usize = 100;

/// Bytes of a record; a longer one is dropped.
const RECORD_BYTES_MAX: usize = 64 << 10;

/// Byte before each record (RFC 7464, section 2.2).
const RECORD_SEPARATOR: char = '\u{1e}';

/// Clients whose new connections are traced.
#[derive(Debug, Default)]
pub struct QlogTraces {
    /// Length of `watches`, so that other connections take no lock.
    count: AtomicUsize,
    watches: Mutex<Vec<Watch>>,
}

/// Network that an operator watches.
#[derive(Debug)]
struct Watch {
    clients: Network,
    lines: LineSender,
    connections_left: usize,
}

impl QlogTraces {
    /// Traces new connections from a network until the receiver is dropped. Returns `None` if too many operators watch.
    pub fn watch(&self, clients: Network) -> Option<LogTail> {
        let watches = &mut *self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.lines.is_watched());
        let is_full = watches.len() >= WATCHES_MAX;
        let tail = (!is_full).then(|| {
            let (lines, tail) = line_channel();
            watches.push(Watch { clients, lines, connections_left: CONNECTIONS_MAX });
            tail
        });
        self.count.store(watches.len(), Ordering::Relaxed);
        tail
    }

    /// Begins the trace of a connection, if an operator watches its client.
    pub(super) fn begin(&self, client: IpAddr) -> Option<QlogSink> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let client = client.to_canonical();
        let watches = &mut *self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.lines.is_watched() && watch.connections_left > 0);
        self.count.store(watches.len(), Ordering::Relaxed);
        let watch = watches.iter_mut().find(|watch| watch.clients.has(client))?;
        watch.connections_left -= 1;
        Some(sink(watch.lines.clone()))
    }
}

/// Sink that sends each record of a trace to an operator, as a line.
fn sink(lines: LineSender) -> QlogSink {
    Arc::new(move |record: &str| {
        if record.len() <= RECORD_BYTES_MAX {
            lines.send(format!("{RECORD_SEPARATOR}{record}"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Tailed;

    fn network() -> Network {
        crate::config::network_from_text("192.0.2.0/24").unwrap()
    }

    fn lines_of(mut tail: LogTail) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut lines = Vec::new();
            while let Some(Tailed::Line(line)) = tail.next().await {
                lines.push(line);
            }
            lines
        })
    }

    #[test]
    fn records_are_lines() {
        let (lines, tail) = line_channel();
        let sink = sink(lines);
        for record in ["{\"a\":1}", &"x".repeat(RECORD_BYTES_MAX + 1), "{}"] {
            sink(record);
        }
        drop(sink);
        assert_eq!(lines_of(tail), ["\u{1e}{\"a\":1}", "\u{1e}{}"]);
    }

    #[test]
    fn only_watched_clients_are_traced() {
        let traces = QlogTraces::default();
        let client = "192.0.2.7".parse().unwrap();
        assert!(traces.begin(client).is_none());
        let tail = traces.watch(network()).unwrap();
        assert!(traces.begin("198.51.100.1".parse().unwrap()).is_none());
        assert!(traces.begin("::ffff:192.0.2.7".parse().unwrap()).is_some());
        drop(tail);
        assert!(traces.begin(client).is_none(), "the operator has gone");
    }

    #[test]
    fn operators_and_connections_are_limited() {
        let traces = QlogTraces::default();
        let network = network();
        let tails: Vec<_> = (0..WATCHES_MAX).map(|_| traces.watch(network).unwrap()).collect();
        assert!(traces.watch(network).is_none());
        drop(tails);
        let _tail = traces.watch(network).unwrap();
        let begun = (0..2 * CONNECTIONS_MAX).filter(|_| traces.begin(network.first()).is_some()).count();
        assert_eq!(begun, CONNECTIONS_MAX);
    }
}
