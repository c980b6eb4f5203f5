//! Traces of QUIC connections in qlog's form (draft-ietf-quic-qlog-main-schema), for operators who watch a client.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use quinn_proto::{QlogConfig, QlogStream};

use crate::config::Network;
use crate::log::{LineSender, LogTail, line_channel};

/// Operators that may watch at once.
const WATCHES_MAX: usize = 16;

/// Connections that one operator watches; later ones are not traced.
const CONNECTIONS_MAX: usize = 100;

/// Bytes of a record; a longer one is dropped.
const RECORD_BYTES_MAX: usize = 64 << 10;

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

/// Sends records of a trace to an operator, each as a line.
struct RecordWriter {
    lines: LineSender,
    record: Vec<u8>,
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
    pub(super) fn begin(&self, client: IpAddr, now: Instant) -> Option<QlogStream> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let client = client.to_canonical();
        let watches = &mut *self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.lines.is_watched() && watch.connections_left > 0);
        self.count.store(watches.len(), Ordering::Relaxed);
        let watch = watches.iter_mut().find(|watch| watch.clients.has(client))?;
        watch.connections_left -= 1;
        let mut config = QlogConfig::default();
        config
            .writer(Box::new(RecordWriter { lines: watch.lines.clone(), record: Vec::new() }))
            .title(Some("tailcoat".to_owned()))
            .description(Some(format!("client {client}")))
            .start_time(now);
        config.into_stream()
    }
}

impl io::Write for RecordWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            match part.strip_suffix(b"\n") {
                Some(end) => {
                    self.record.extend_from_slice(end);
                    let record = std::mem::take(&mut self.record);
                    if !record.is_empty() && record.len() <= RECORD_BYTES_MAX {
                        self.lines.send(String::from_utf8_lossy(&record).into_owned());
                    }
                }
                // The end of a record that is too long decides that it is dropped.
                None if self.record.len() <= RECORD_BYTES_MAX => self.record.extend_from_slice(part),
                None => {}
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

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
    fn records_are_lines_however_they_are_written() {
        let (lines, tail) = line_channel();
        let mut writer = RecordWriter { lines, record: Vec::new() };
        for part in ["\u{1e}{\"a\"", ":1}\n\u{1e}{}", "\n", "half"] {
            writer.write_all(part.as_bytes()).unwrap();
        }
        drop(writer);
        assert_eq!(lines_of(tail), ["\u{1e}{\"a\":1}", "\u{1e}{}"]);
    }

    #[test]
    fn only_watched_clients_are_traced() {
        let traces = QlogTraces::default();
        let client = "192.0.2.7".parse().unwrap();
        assert!(traces.begin(client, Instant::now()).is_none());
        let tail = traces.watch(network()).unwrap();
        assert!(traces.begin("198.51.100.1".parse().unwrap(), Instant::now()).is_none());
        assert!(traces.begin("::ffff:192.0.2.7".parse().unwrap(), Instant::now()).is_some());
        drop(tail);
        assert!(traces.begin(client, Instant::now()).is_none(), "the operator has gone");
    }

    #[test]
    fn operators_and_connections_are_limited() {
        let traces = QlogTraces::default();
        let network = network();
        let tails: Vec<_> = (0..WATCHES_MAX).map(|_| traces.watch(network).unwrap()).collect();
        assert!(traces.watch(network).is_none());
        drop(tails);
        let _tail = traces.watch(network).unwrap();
        let begun =
            (0..2 * CONNECTIONS_MAX).filter(|_| traces.begin(network.first(), Instant::now()).is_some()).count();
        assert_eq!(begun, CONNECTIONS_MAX);
    }
}
