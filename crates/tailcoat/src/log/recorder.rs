use std::sync::Arc;
use std::sync::atomic::Ordering;

use rtrb::Producer;

use super::Options;
use super::record::{self, Record};
use super::writer::Shared;

/// A worker's way into the access logs: its end of the ring to the writer.
#[derive(Debug)]
pub struct Recorder {
    ring: Producer<u8>,
    shared: Arc<Shared>,
    /// The record being encoded; kept for its memory.
    scratch: Vec<u8>,
    value_bytes_max: usize,
    /// Bytes in the ring at which a writer that waits for its interval to pass is woken early.
    wake_bytes: usize,
    /// Bytes pushed since the ring's fill was last looked at: while they are few, looking is not worth it.
    unchecked_bytes: usize,
}

impl Recorder {
    pub(super) fn new(ring: Producer<u8>, shared: Arc<Shared>, options: Options) -> Self {
        Self {
            ring,
            shared,
            scratch: Vec::with_capacity(4 << 10),
            value_bytes_max: options.value_bytes_max.min(usize::from(u16::MAX)),
            wake_bytes: (options.ring_bytes_max / 4).max(1),
            unchecked_bytes: 0,
        }
    }

    /// Records a request. If the ring is full, the record is dropped and counted.
    pub fn record(&mut self, record: &Record<'_>) {
        let index = record.log.index();
        let Some(capture) = self.shared.captures.get(index) else {
            debug_assert!(false, "a log's id is of the same start as the recorder");
            return;
        };
        self.scratch.clear();
        record::encode(record, capture, self.value_bytes_max, &mut self.scratch);
        if self.ring.push_entire_slice(&self.scratch).is_err() {
            self.shared.counters[index].dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.unchecked_bytes += self.scratch.len();
        let is_filling = self.unchecked_bytes >= self.wake_bytes && self.is_filling();
        self.shared.wake_after_push(is_filling);
    }

    /// Whether the writer should come before its time.
    fn is_filling(&mut self) -> bool {
        self.unchecked_bytes = self.ring.buffer().capacity() - self.ring.slots();
        self.unchecked_bytes >= self.wake_bytes
    }
}
