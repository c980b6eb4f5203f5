use std::sync::Arc;
use std::sync::atomic::Ordering;

use rtrb::Producer;

use super::LogView;
use super::record::{self, LogId, LogNeeds, LogRecord};
use super::writer::{LogState, LogWriterShared};

/// State of the logs that recorders need, by id.
pub(super) type LogTable = Arc<[Arc<LogState>]>;

/// A worker's access to the logs: its end of the ring to the writer.
#[derive(Debug)]
pub struct Recorder {
    ring: Producer<u8>,
    shared: Arc<LogWriterShared>,
    /// Logs by id.
    logs: LogTable,
    /// Record being encoded; kept to reuse its memory.
    scratch: Vec<u8>,
    value_bytes_max: usize,
    /// Bytes in the ring at which a writer that waits for its interval is woken early.
    wake_bytes: usize,
    /// Bytes pushed since the last check of the ring's fill; checking is not worth it while they are few.
    unchecked_bytes: usize,
}

impl Recorder {
    pub(super) fn new(view: LogView) -> Self {
        let ring = view.ring();
        let mut recorder = Self {
            ring,
            shared: Arc::clone(&view.shared),
            logs: Arc::default(),
            scratch: Vec::with_capacity(4 << 10),
            value_bytes_max: 0,
            wake_bytes: 0,
            unchecked_bytes: 0,
        };
        recorder.apply(&view);
        recorder
    }

    /// Applies the current state of the logs. Earlier records stay in order.
    pub fn apply(&mut self, view: &LogView) {
        let LogView { logs, options, .. } = view;
        if self.ring.buffer().capacity() != options.ring_bytes_max {
            // The writer empties the old ring before it drops it.
            self.ring = view.ring();
            self.unchecked_bytes = 0;
        }
        self.logs = Arc::clone(logs);
        self.value_bytes_max = options.value_bytes_max.min(usize::from(u16::MAX));
        self.wake_bytes = (options.ring_bytes_max / 4).max(1);
    }

    /// Parts of a request that a log needs.
    pub fn needs(&self, log: LogId) -> Option<LogNeeds<'_>> {
        let capture = &self.logs.get(log.index())?.capture;
        Some(LogNeeds { capture, value_bytes_max: self.value_bytes_max })
    }

    /// Records a request. If the ring is full, the record is dropped and counted.
    pub fn record(&mut self, record: &LogRecord<'_>) {
        let index = record.log.index();
        let Some(log) = self.logs.get(index) else {
            debug_assert!(false, "a log comes before its records");
            return;
        };
        self.scratch.clear();
        record::encode(record, &log.capture, self.value_bytes_max, &mut self.scratch);
        if self.ring.push_entire_slice(&self.scratch).is_err() {
            log.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.unchecked_bytes += self.scratch.len();
        let is_filling = self.unchecked_bytes >= self.wake_bytes && self.is_filling();
        self.shared.wake_after_push(is_filling);
    }

    /// True if the writer should be woken early.
    fn is_filling(&mut self) -> bool {
        self.unchecked_bytes = self.ring.buffer().capacity() - self.ring.slots();
        self.unchecked_bytes >= self.wake_bytes
    }
}
