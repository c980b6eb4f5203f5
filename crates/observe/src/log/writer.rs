//! Writer thread: reads the records of all rings and passes them to the outputs.
//!
//! The writer sleeps in one of two ways. Without work it parks until a thread wakes it; the first record does, and is
//! written at once. After that it dozes for the flush interval, and only a ring that fills up wakes it earlier. So
//! under load it wakes once per few hundred kilobytes of records, and without load never.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rtrb::Consumer;

use super::LogOptions;
use super::output::{Counters, LogOutput};
use super::record::{Capture, LogId, StoredRecord};
use super::server::ServerLog;
use super::tap::Tap;

/// State that recorders and the handle share with the writer.
#[derive(Debug)]
pub(super) struct LogWriterShared {
    state: AtomicU8,
    writer: OnceLock<Thread>,
    /// Logs that the writer has not adopted yet. It adopts a log before it reads a record of it, because a recorder
    /// gets the log's id only after the log is here.
    arrivals: Mutex<Vec<Arrival>>,
}

/// New log for the writer. Its id is the number of logs before it.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) output: LogOutput,
    pub(super) state: Arc<LogState>,
}

/// State of a log that recorders and the handle share.
#[derive(Debug)]
pub(super) struct LogState {
    pub(super) capture: Capture,
    pub(super) counters: Counters,
}

/// The writer works, and will check the rings before it sleeps.
const BUSY: u8 = 0;
/// The writer sleeps until its interval has passed.
const DOZING: u8 = 1;
/// The writer sleeps until a thread wakes it.
const PARKED: u8 = 2;

/// Time after which all cores have seen that the writer is parked, and the writer has seen their pushes: stores are
/// delayed by microseconds at most.
const SEEN_AFTER: Duration = Duration::from_millis(10);

impl LogWriterShared {
    /// Wakes the writer if it would not see the last push in time.
    pub(super) fn wake_after_push(&self, is_filling: bool) {
        // The writer's core may not see the record yet, nor this core the writer's state. A fence would cost half a
        // percent of a small request, so the writer checks once more after `SEEN_AFTER`.
        let state = self.state.load(Ordering::Relaxed);
        if state == PARKED || (state == DOZING && is_filling) {
            self.wake_once(state);
        }
    }

    /// Wakes the writer, unless another thread just did.
    #[cold]
    fn wake_once(&self, state: u8) {
        if self.state.compare_exchange(state, BUSY, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.wake();
        }
    }

    /// Passes new logs to the writer.
    pub(super) fn add(&self, arrivals: Vec<Arrival>) {
        self.arrivals().extend(arrivals);
    }

    fn arrivals(&self) -> MutexGuard<'_, Vec<Arrival>> {
        // No code under the lock can panic half-way through a change.
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the writer in any state.
    pub(super) fn wake(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }
}

/// Command from the handle.
#[derive(Debug)]
pub(super) enum LogWriterCommand {
    /// Read records from this ring, too.
    Adopt(Consumer<u8>),
    /// Pass records to this tap, too, while its receiver exists.
    Tap(Box<Tap>),
    /// Reopen the files.
    Reopen,
    /// Apply these options, and keep only these logs open.
    Change(LogOptions, Vec<LogId>),
    /// Write all records within this time, report that, and end.
    Shutdown { limit: Duration, done: SyncSender<()> },
    /// Write what can be written at once, and end.
    End,
}

/// Starts the thread, without a log.
pub(super) fn start(
    options: LogOptions,
    server_log: ServerLog,
) -> io::Result<(Arc<LogWriterShared>, Sender<LogWriterCommand>)> {
    let (state, writer, arrivals) = (AtomicU8::new(BUSY), OnceLock::new(), Mutex::default());
    let shared = Arc::new(LogWriterShared { state, writer, arrivals });
    let (commands, command_queue) = channel();
    let writer = LogWriter {
        shared: Arc::clone(&shared),
        commands: command_queue,
        logs: Logs::default(),
        rings: Vec::new(),
        taps: Vec::new(),
        scratch: Vec::new(),
        options,
        server_log,
        reported_at: None,
        parked_at: None,
    };
    let thread = thread::Builder::new().name("access-log".into()).spawn(move || writer.run())?;
    // Set before any recorder exists; the first round sees a command that was sent before.
    let _ = shared.writer.set(thread.thread().clone());
    Ok((shared, commands))
}

struct LogWriter {
    shared: Arc<LogWriterShared>,
    commands: Receiver<LogWriterCommand>,
    logs: Logs,
    rings: Vec<Consumer<u8>>,
    /// Taps of operators.
    taps: Vec<Tap>,
    /// Record that wraps around the end of its ring.
    scratch: Vec<u8>,
    options: LogOptions,
    server_log: ServerLog,
    reported_at: Option<Instant>,
    /// Time since which it is parked without any record.
    parked_at: Option<Instant>,
}

/// Logs by id.
#[derive(Default)]
struct Logs(Vec<(LogOutput, Arc<LogState>)>);

impl Logs {
    fn take_over(&mut self, arrivals: &mut Vec<Arrival>) {
        self.0.extend(arrivals.drain(..).map(|Arrival { output, state }| (output, state)));
    }

    fn append(&mut self, record: &StoredRecord<'_>, pending_bytes_max: usize, shared: &LogWriterShared) {
        let index = record.log.index();
        if index >= self.0.len() {
            self.take_over(&mut shared.arrivals());
        }
        let Some((output, state)) = self.0.get_mut(index) else {
            debug_assert!(false, "a log comes before its records");
            return;
        };
        output.append(record, pending_bytes_max, &state.counters);
    }

    fn for_each(&mut self, mut each: impl FnMut(&mut LogOutput, &Counters)) {
        self.0.iter_mut().for_each(|(output, state)| each(output, &state.counters));
    }

    fn any(&self, of: impl Fn(&LogOutput, &Counters) -> bool) -> bool {
        self.0.iter().any(|(output, state)| of(output, &state.counters))
    }
}

impl LogWriter {
    fn run(mut self) {
        loop {
            let ending = self.take_commands();
            let moved = self.drain();
            self.logs.for_each(LogOutput::flush);
            self.report();
            if let Some((limit, done)) = ending {
                self.end(limit);
                // Closed before the handle reports the end.
                self.logs.0.clear();
                // The receiver is gone if the handle was dropped.
                let _ = done.map(|done| done.send(()));
                return;
            }
            self.sleep(moved);
        }
    }

    /// Executes pending commands. Returns the time limit for an end, and the sender to report it to.
    fn take_commands(&mut self) -> Option<(Duration, Option<SyncSender<()>>)> {
        self.logs.take_over(&mut self.shared.arrivals());
        while let Ok(command) = self.commands.try_recv() {
            match command {
                LogWriterCommand::Adopt(ring) => self.rings.push(ring),
                LogWriterCommand::Tap(tap) => {
                    self.taps.retain(Tap::is_watched);
                    self.taps.push(*tap);
                }
                LogWriterCommand::Reopen => {
                    self.drain();
                    let Self { logs, server_log, .. } = self;
                    logs.for_each(|output, counters| output.reopen(counters, server_log));
                }
                LogWriterCommand::Change(options, wanted) => {
                    self.options = options;
                    self.logs.take_over(&mut self.shared.arrivals());
                    for (index, (output, _)) in self.logs.0.iter_mut().enumerate() {
                        output.set_wanted(wanted.iter().any(|id| id.index() == index));
                    }
                }
                LogWriterCommand::Shutdown { limit, done } => return Some((limit, Some(done))),
                LogWriterCommand::End => return Some((Duration::ZERO, None)),
            }
        }
        None
    }

    /// Reads the records that are in the rings. Returns whether there were any.
    fn drain(&mut self) -> bool {
        let Self { logs, rings, taps, scratch, shared, options, .. } = self;
        let mut moved = false;
        let mut take = |bytes: &[u8]| {
            let Some(record) = StoredRecord::decode(bytes) else {
                debug_assert!(false, "a recorder pushes only whole records");
                return;
            };
            taps.retain_mut(|tap| tap.on_record(&record));
            logs.append(&record, options.pending_bytes_max, shared);
        };
        rings.retain_mut(|ring| {
            // Checked first: records pushed before the recorder was dropped are then seen below.
            let is_abandoned = ring.is_abandoned();
            moved |= drain_ring(ring, scratch, &mut take);
            !is_abandoned
        });
        moved
    }

    fn report(&mut self) {
        if self.reported_at.is_some_and(|at| at.elapsed() < self.options.report_interval) {
            return;
        }
        let Self { logs, server_log, reported_at, .. } = self;
        logs.for_each(|output, counters| {
            if output.has_report(counters) {
                output.report(counters, server_log);
                *reported_at = Some(Instant::now());
            }
        });
    }

    fn sleep(&mut self, moved: bool) {
        if moved || self.logs.any(|output, counters| output.is_pending() || output.has_report(counters)) {
            self.parked_at = None;
            self.shared.state.store(DOZING, Ordering::Relaxed);
            thread::park_timeout(self.options.flush_interval);
            return self.shared.state.store(BUSY, Ordering::Relaxed);
        }
        let parked_at = *self.parked_at.get_or_insert_with(|| {
            self.shared.state.store(PARKED, Ordering::Relaxed);
            Instant::now()
        });
        // Checks once more without being woken; see `LogWriterShared::wake_after_push`.
        match SEEN_AFTER.checked_sub(parked_at.elapsed()) {
            Some(rest) => thread::park_timeout(rest),
            None => thread::park(),
        }
        // A thread that woke it for a record has changed the state.
        if self.shared.state.load(Ordering::Relaxed) != PARKED {
            self.parked_at = None;
        }
    }

    /// Writes the rest, as far as possible within `limit`.
    fn end(&mut self, limit: Duration) {
        let began = Instant::now();
        while self.logs.any(|output, _| output.is_pending()) && began.elapsed() < limit {
            thread::sleep(limit.min(Duration::from_millis(20)));
            self.logs.for_each(LogOutput::flush);
        }
        let Self { logs, server_log, .. } = self;
        logs.for_each(|output, counters| {
            output.discard(counters);
            if output.has_report(counters) {
                output.report(counters, server_log);
            }
        });
    }
}

/// Calls `take` with each record of a ring. Returns whether there were any.
fn drain_ring(ring: &mut Consumer<u8>, scratch: &mut Vec<u8>, take: &mut impl FnMut(&[u8])) -> bool {
    // Recorders push whole records at once, so the available bytes end with a whole record.
    let Ok(chunk) = ring.read_chunk(ring.slots()) else { return false };
    if chunk.is_empty() {
        return false;
    }
    let (mut first, mut second) = chunk.as_slices();
    take_records(&mut first, take);
    if !first.is_empty() {
        scratch.clear();
        scratch.extend_from_slice(first);
        let known = first.len();
        scratch.extend_from_slice(&second[..second.len().min(4)]);
        let length = StoredRecord::length(scratch).unwrap_or_default().saturating_sub(known);
        scratch.truncate(known);
        if let Some((rest, others)) = second.split_at_checked(length) {
            scratch.extend_from_slice(rest);
            take(scratch);
            second = others;
        }
    }
    take_records(&mut second, take);
    chunk.commit_all();
    true
}

/// Calls `take` with each whole record.
fn take_records(records: &mut &[u8], take: &mut impl FnMut(&[u8])) {
    while let Some((record, rest)) =
        StoredRecord::length(records).filter(|length| *length > 0).and_then(|length| records.split_at_checked(length))
    {
        take(record);
        *records = rest;
    }
}
